"""Generated CUDA text: compiled by NVRTC for sm_80 and sm_90, and run through the host shim against NumPy.

No GPU is needed.  All kernels of this file are compiled together, once per compiler; odd shapes (37 x 53) go through
the scalar paths, shapes divisible by 4 through the 16-byte ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
from budgets import some_or_all

from shardproof.backends.cuda import Kernel, KernelTextError, Operand, boxes, chain, nvrtc, rows, shim
from shardproof.backends.cuda.expressions import EXPRESSIONS
from shardproof.backends.cuda.kernel import dense, merge_dimensions
from shardproof.backends.kernels.elementwise import MAPS as FORWARD
from shardproof.backends.kernels.gradient_maps import GRADIENT_MAPS
from shardproof.models.program.index import Axis, access
from shardproof.models.program.operators import FUNCTIONS, NodeKind, Operator

MAPS = {**FORWARD, **GRADIENT_MAPS}

needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="no libnvrtc: pip install nvidia-cuda-nvrtc-cu12")
needs_compiler = pytest.mark.skipif(not shim.available(), reason="no g++ on the PATH")

ATTRIBUTES = {
    "scale": (("scale", 0.37),),
    "shift": (("shift", -1.25),),
    "clip": (("high", 0.8), ("low", -0.4)),
    "power": (("exponent", 1.7),),
    "mask_fill": (("value", -3.5),),
    "batch_norm": (("epsilon", 1e-3),),
    "sgd_update": (("rate", 0.05),),
    "clip_gradient": (("high", 0.8), ("low", -0.4)),
    "power_gradient": (("exponent", 1.7),),
    "fill": (("value", 2.5),),
    "adamw_update": (("beta1", 0.8), ("beta2", 0.95), ("decay", 0.3), ("epsilon", 1e-4), ("rate", 0.1), ("step", 3)),
    "lion_update": (("beta1", 0.8), ("decay", 0.3), ("rate", 0.1)),
    "momentum": (("momentum", 0.7),),
    "decayed_gradient": (("decay", 0.3),),
    "clip_factor": (("clip", 0.9),),
    "adam_update": (("beta1", 0.8), ("beta2", 0.95), ("epsilon", 1e-4), ("rate", 0.1), ("step", 3)),
}
POSITIVE = {
    "log",
    "sqrt",
    "rsqrt",
    "power",
    "reciprocal",
    "divide",
    "batch_norm",
    "power_gradient",
    "divide_gradient",
    "sqrt_gradient",
    "batch_norm_gradient",
    "batch_norm_scale_gradient",
    "adam_update",
    "adamw_update",
    "clip_factor",
}
ODD, EVEN = (37, 53), (12, 56)
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def operator(function: str, inputs: int, attributes: tuple = ()) -> Operator:
    axes = (Axis("m", ODD[0]), Axis("n", ODD[1]))
    return Operator(
        function,
        function,
        axes,
        tuple(access(f"x{j}", "m", "n") for j in range(inputs)),
        access("y", "m", "n"),
        attributes,
    )


def data(shape: tuple[int, ...], dtype: str, seed: int, positive: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out = shim.empty(shape, dtype)
    out[...] = (
        rng.uniform(0.5, 1.5, shape)
        if positive
        else rng.integers(0, 2, shape)
        if dtype == "bool"
        else rng.standard_normal(shape)
    )
    return out


def near(got: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    if got.dtype == bool:
        np.testing.assert_array_equal(got, expected)
    else:
        assert str(got.dtype) == dtype
        largest = float(np.abs(expected[np.isfinite(expected)]).max())
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * max(1.0, largest))


# --- what is generated ------------------------------------------------------------------------------------------------


def masks(name: str) -> set[int]:
    return {
        "where": {0},
        "mask_fill": {1},
        "mask_clear": {1},
        "logical_and": {0, 1},
        "logical_or": {0, 1},
        "logical_not": {0},
    }.get(name, set())


@dataclass(frozen=True)
class Every:
    """One kernel that computes many functions: compiling them one by one would take minutes."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, int]
    spec: chain.Chain
    kernel: Kernel

    def arrays(self) -> list[np.ndarray]:
        """Five signed operands, five positive ones, two masks; the first columns are equal, for comparisons."""
        out = [data(self.shape, o.dtype, j, 5 <= j < 10) for j, o in enumerate(self.spec.operands)]
        for a in out[:5]:
            a[0, :3] = 0.5
        return out


def step_of(name: str, attributes: tuple = ()) -> chain.Step:
    arity = 3 if name == "sum_inputs" else FUNCTIONS[name].arity[1]
    first, mask = 5 if name in POSITIVE else 0, iter((10, 11))
    arguments = tuple(next(mask) if j in masks(name) else first + j for j in range(arity))
    return chain.Step(operator(name, arity, attributes or ATTRIBUTES.get(name, ())), arguments)


@cache
def everyone() -> list[Every]:
    """Every map function, in float32 and float64; those without masks and truth values also 16 bytes at a time."""
    truth = {n for n in EXPRESSIONS if FUNCTIONS[n].logical}
    plain = tuple(sorted(n for n in EXPRESSIONS if not masks(n) and n not in truth))
    rest = tuple(sorted(set(EXPRESSIONS) - set(plain)))
    tanh, ends = (("approximate", "tanh"),), (("high", 0.5), ("low", -0.4))
    out = []
    for names, (dtype, shape) in [
        *product((plain,), (("float32", ODD), ("float32", EVEN), ("float64", EVEN))),
        *product((rest,), (("float32", ODD), ("float64", EVEN))),
    ]:
        steps = [step_of(n) for n in names]
        if names is plain:
            steps += [step_of("gelu", tanh), step_of("gelu_gradient", tanh)]
            steps += [step_of("clip_gradient", (("tie", share), *ends)) for share in (0.0, 0.5, 1.0)]
            steps += [step_of(f"{n}_gradient", (("tie", 1.0),)) for n in ("maximum", "minimum")]
        else:
            steps.append(step_of("mask_fill", (("value", -np.inf),)))
        operands = (Operand(dtype, dense(shape)),) * 10 + (
            (Operand("bool", dense(shape)),) * 2 if names is rest else ()
        )
        spec = chain.Chain(shape, operands, tuple(steps), tuple(range(len(steps))))
        out.append(Every(names, dtype, shape, spec, chain.generate(spec)))
    return out


STEPS = (  # bias, gelu, times a column, plus the transposed operand, where a mask allows it
    chain.Step(operator("add", 2), (0, 1)),
    chain.Step(operator("gelu", 1), (5,)),
    chain.Step(operator("multiply", 2), (6, 2)),
    chain.Step(operator("add", 2), (7, 3)),
    chain.Step(operator("where", 3), (4, 8, 0)),
    chain.Step(operator("greater", 2), (9, 1)),
)


@cache
def chains() -> list[tuple[chain.Chain, Kernel]]:
    """A chain of six operators with broadcast, transposed and mask operands and three results; and a vectorised
    bias-activation.
    """
    out = []
    for shape, dtype in product((ODD, EVEN), ("float32", "float64")):
        m, n = shape
        operands = (
            Operand(dtype, (n, 1)),
            Operand(dtype, (0, 1)),
            Operand(dtype, (1, 0)),
            Operand(dtype, (1, m)),
            Operand("bool", (n, 1)),
        )
        spec = chain.Chain(shape, operands, STEPS, (1, 4, 5))
        out.append((spec, chain.generate(spec)))
        bias = chain.Chain(
            shape, operands[:2], (chain.Step(operator("add", 2), (0, 1)), chain.Step(operator("relu", 1), (2,))), (1,)
        )
        out.append((bias, chain.generate(bias)))
    return out


AFFINE = (
    chain.Step(operator("multiply", 2), (0, 1)),
    chain.Step(operator("add", 2), (3, 2)),
    chain.Step(operator("gelu", 1), (4,)),
)


@cache
def row_kernels() -> list[tuple[rows.Rows, int, Kernel]]:
    """Every row function: warp per row, block per row, rows too long for registers, epilogue with gamma and beta."""
    out = []
    for name, dtype in product(rows.FUNCTIONS, ("float32", "float64")):
        for (m, n), threads in ((ODD, 32), (ODD, 128), (EVEN, 64), ((3, 1101), 32)):
            spec = rows.Rows(name, m, n, dtype, 1e-4, 0.5 if name == "sum" else 1.0)
            out.append((spec, threads, rows.generate(spec, threads)))
        if name in ("softmax", "layer_norm", "rms_norm"):
            for (m, n), threads in ((ODD, 32), (EVEN, 64), ((3, 1100), 32)):
                operands = (Operand(dtype, (0, 1)), Operand(dtype, (n, 1)))
                spec = rows.Rows(name, m, n, dtype, 1e-4, 1.0, operands, AFFINE, (0, 2, 3))
                out.append((spec, threads, rows.generate(spec, threads)))
    return out


BOXES = {
    (5, 37, 53): [
        ((0, 5), (3, 4), (0, 53)),
        ((1, 2), (0, 37), (50, 53)),
        ((4, 5), (36, 37), (0, 1)),
        ((2, 2), (0, 1), (0, 1)),
    ],
    (6, 8, 16): [((0, 2), (1, 3), (4, 12)), ((5, 6), (0, 8), (0, 16))],
}


@cache
def box_kernels() -> list[tuple[str, str, tuple[int, ...], Kernel]]:
    out = []
    for shape, dtype, direction in product(BOXES, ("float32", "float64"), ("pack", "unpack")):
        t = boxes.table(shape, BOXES[shape])
        largest = int(t[:, 2:].prod(axis=1).max())
        out.append(
            (
                direction,
                dtype,
                shape,
                boxes.generate(direction, dtype, shape, len(t), largest, boxes.aligned_width(dtype, shape, t)),
            )
        )
    return out


def everything() -> list[Kernel]:
    found = [
        *(e.kernel for e in everyone()),
        *(k for _, k in chains()),
        *(k for *_, k in row_kernels()),
        *(k for *_, k in box_kernels()),
    ]
    return list({k.name: k for k in found}.values())


@cache
def module() -> shim.HostModule:
    return shim.HostModule(everything())


# --- the gate ---------------------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("architecture", some_or_all(*nvrtc.ARCHITECTURES))
def test_every_kernel_compiles(architecture: str) -> None:
    text = "\n".join(k.text for k in everything())
    cubin = nvrtc.compile_cubin(text, architecture)
    assert cubin[:4] == b"\x7fELF"
    assert all(k.name.encode() in cubin for k in everything())
    assert len(everything()) > 70


@needs_nvrtc
def test_bad_text_is_rejected_with_the_log() -> None:
    good = chains()[0][1].text
    with pytest.raises(nvrtc.NvrtcError, match="undefined"):
        nvrtc.compile_cubin(good.replace("erff", "nothing"), "sm_90")


# --- numerics ---------------------------------------------------------------------------------------------------------


@needs_compiler
def test_every_map_function_equals_numpy() -> None:
    """NumPy in float64 on the same operands: within 1e-6 of the largest value in float32."""
    assert {n for e in everyone() for n in e.names} == set(EXPRESSIONS) <= set(MAPS)
    for e in everyone():
        arrays = e.arrays()
        out = [shim.empty(e.shape, t) for t in chain.result_types(e.spec)]
        module().launch(e.kernel, [*arrays, *out])
        for step, y in zip(e.spec.steps, out):
            given = [a.astype(np.float64) if a.dtype == np.float32 else a for a in (arrays[i] for i in step.arguments)]
            near(y, np.asarray(MAPS[step.operator.function](np, given, step.operator)), e.dtype)
    assert {e.kernel.vector for e in everyone()} == {1, 2, 4}


@needs_compiler
def test_not_a_number_goes_through_as_in_numpy() -> None:
    e = everyone()[0]
    arrays = e.arrays()
    arrays[0][0, 0] = arrays[1][1, 1] = np.nan
    out = [shim.empty(e.shape, t) for t in chain.result_types(e.spec)]
    module().launch(e.kernel, [*arrays, *out])
    for name in ("relu", "maximum", "minimum", "add", "sign"):
        step = e.spec.steps[e.names.index(name)]
        expected = MAPS[name](np, [arrays[i] for i in step.arguments], step.operator)
        assert np.isnan(expected).any()
        np.testing.assert_array_equal(out[e.names.index(name)], expected)


def test_functions_without_text_are_those_that_change_the_type() -> None:
    maps = {n for n, f in FUNCTIONS.items() if f.kind is NodeKind.MAP}
    assert {"cast"} <= maps - set(EXPRESSIONS)
    with pytest.raises(KernelTextError, match="'cast' has no CUDA text"):
        chain.generate(chain.Chain((4,), (Operand("float32", (1,)),), (chain.Step(operator("cast", 1), (0,)),), (0,)))
    with pytest.raises(KernelTextError, match="no common real type"):
        chain.generate(
            chain.Chain(
                (4,),
                (Operand("float32", (1,)), Operand("float64", (1,))),
                (chain.Step(operator("add", 2), (0, 1)),),
                (0,),
            )
        )
    with pytest.raises(KernelTextError, match="int64"):
        chain.generate(
            chain.Chain(
                (4,),
                (Operand("float32", (1,)), Operand("int64", (1,))),
                (chain.Step(operator("add", 2), (0, 1)),),
                (0,),
            )
        )


@needs_compiler
def test_chains_equal_numpy() -> None:
    widths = set()
    for spec, kernel in chains():
        m, n = spec.shape
        dtype = spec.operands[0].dtype
        widths.add(kernel.vector)
        x, b = data((m, n), dtype, 1), data((n,), dtype, 2)
        if len(spec.operands) == 2:
            y = shim.empty((m, n), dtype)
            module().launch(kernel, [x, b, y])
            near(y, np.maximum(x + b, 0), dtype)
            continue
        c, t, keep = data((m,), dtype, 3), data((n, m), dtype, 4), data((m, n), "bool", 5)
        out = [shim.empty((m, n), d) for d in chain.result_types(spec)]
        module().launch(kernel, [x, b, c, t, keep, *out])
        gelu = MAPS["gelu"](np, [x + b], STEPS[1].operator)
        last = np.where(keep, gelu * c[:, None] + t.T, x)
        near(out[0], gelu, dtype)
        near(out[1], last, dtype)
        assert out[2].dtype == bool
        assert (out[2] == (last > b)).mean() > 0.999  # a tie may fall either way
    assert widths == {1, 2, 4}


def expected_row(spec: rows.Rows, x: np.ndarray) -> np.ndarray:
    """By the definition, in float64."""
    x = x.astype(np.float64)
    match spec.function:
        case "sum":
            return x.sum(1) * spec.scale
        case "max":
            return x.max(1)
        case "min":
            return x.min(1)
        case "softmax":
            e = np.exp(x - x.max(1, keepdims=True))
            return e / e.sum(1, keepdims=True)
        case "log_softmax":
            c = x - x.max(1, keepdims=True)
            return c - np.log(np.exp(c).sum(1, keepdims=True))
        case "layer_norm":
            return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + spec.epsilon)
        case "rms_norm":
            return x / np.sqrt((x * x).mean(1, keepdims=True) + spec.epsilon)
    raise NotImplementedError(spec.function)


@needs_compiler
def test_row_kernels_equal_the_definition_whatever_the_order_of_threads() -> None:
    """Threads of a block in ascending, descending and shuffled order: the same bits, so nothing is read before it
    is written.
    """
    for number, (spec, _, kernel) in enumerate(row_kernels()):
        shape = (spec.rows, spec.columns)
        x = data(shape, spec.dtype, number)
        expected = expected_row(spec, x)
        given, wanted = [x], [expected]
        if spec.operands:
            gamma, beta = data((spec.columns,), spec.dtype, 8), data(shape, spec.dtype, 9)
            given += [gamma, beta]
            affine = expected * gamma + beta
            wanted += [affine, MAPS["gelu"](np, [affine], AFFINE[2].operator)]
        first: list[np.ndarray] | None = None
        for order in (0, 1, 5):
            out = [shim.empty(w.shape, spec.dtype) for w in wanted]
            module().launch(kernel, [*given, *out], order)
            for o, w in zip(out, wanted):
                scale = max(1.0, float(np.abs(w).max()))
                assert float(np.abs(o - w).max()) / scale <= TOLERANCE[spec.dtype], kernel.name
            if first is None:
                first = out
            assert all(np.array_equal(a, b) for a, b in zip(first, out)), kernel.name
    assert {k.vector for *_, k in row_kernels()} == {1, 2, 4}
    assert {k.block for *_, k in row_kernels()} == {64, 128}


@needs_compiler
def test_boxes_are_packed_and_unpacked() -> None:
    for direction, dtype, shape, kernel in box_kernels():
        t = boxes.table(shape, BOXES[shape])
        whole, parts = data(shape, dtype, 1), [tuple(slice(*s) for s in b) for b in BOXES[shape]]
        flat = np.concatenate([whole[p].reshape(-1) for p in parts])
        if direction == "pack":
            buffer = shim.empty(flat.shape, dtype)
            module().launch(kernel, [t, whole, buffer])
            np.testing.assert_array_equal(buffer, flat)
        else:
            target, buffer = shim.empty(shape, dtype), shim.empty(flat.shape, dtype)
            target[...], buffer[...] = -1, flat
            module().launch(kernel, [t, target, buffer])
            outside = np.ones(shape, dtype=bool)
            for p in parts:
                np.testing.assert_array_equal(target[p], whole[p])
                outside[p] = False
            assert (target[outside] == -1).all()
    assert {k.vector for *_, k in box_kernels()} == {1, 2, 4}
    with pytest.raises(ValueError, match="not inside"):
        boxes.table((4, 4), [((0, 5), (0, 1))])


# --- the shim itself --------------------------------------------------------------------------------------------------


RACE = 'extern "C" __global__ void NAME(const float* x, float* y) {\n    __shared__ float s[64];\n    %s\n}\n'


@needs_compiler
def test_the_shim_shows_races_and_missed_meetings() -> None:
    good = Kernel(
        "good",
        RACE.replace("NAME", "good")
        % "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = s[63 - threadIdx.x];",
        ("float", "float"),
        (1, 1),
        64,
        1,
        True,
    )
    race = Kernel(
        "race",
        RACE.replace("NAME", "race") % "s[threadIdx.x] = x[threadIdx.x]; y[threadIdx.x] = s[63 - threadIdx.x];",
        ("float", "float"),
        (1, 1),
        64,
        1,
        True,
    )
    missed = Kernel(
        "missed",
        RACE.replace("NAME", "missed") % "if (threadIdx.x < 32) __syncthreads(); y[threadIdx.x] = x[threadIdx.x];",
        ("float", "float"),
        (1, 1),
        64,
        1,
        True,
    )
    host, x = shim.HostModule([good, race, missed]), data((64,), "float32", 0)

    def run(kernel: Kernel, order: int) -> np.ndarray:
        y = np.zeros(64, dtype=np.float32)
        host.launch(kernel, [x, y], order)
        return y

    assert all(np.array_equal(run(good, order), x[::-1]) for order in range(4))
    assert not all(np.array_equal(run(race, order), x[::-1]) for order in range(2))
    with pytest.raises(shim.ShimError, match="ended while others waited"):
        run(missed, 0)


@needs_compiler
def test_misaligned_and_missing_arrays_are_refused() -> None:
    spec, kernel = next((s, k) for s, k in chains() if k.vector == 4)
    m, n = spec.shape
    x, b, y = data((m, n), "float32", 0), data((n + 1,), "float32", 1), shim.empty((m, n), "float32")
    with pytest.raises(KernelTextError, match="multiple of 16"):
        module().launch(kernel, [x, b[1:], y])
    with pytest.raises(KernelTextError, match="takes 3 arrays, got 2"):
        module().launch(kernel, [x, y])


def test_dimensions_are_merged_only_where_all_operands_agree() -> None:
    assert merge_dimensions((2, 1, 3, 4), [(12, 0, 4, 1), (12, 9, 4, 1)]) == ((24,), [(1,), (1,)])
    assert merge_dimensions((3, 4), [(4, 1), (1, 3)]) == ((3, 4), [(4, 1), (1, 3)])
    assert merge_dimensions((1, 1), [(5, 5)]) == ((1,), [(0,)])


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_bandwidth_on_a_gpu() -> None:
    """At least 85 % of the measured copy bandwidth for a fused chain, softmax and layer norm of 256 MiB."""
    import cupy

    from shardproof.backends.cuda import device

    shape = (65536, 1024)
    x = cupy.random.default_rng(0).standard_normal(shape, dtype=cupy.float32)
    y, bias = cupy.empty_like(x), cupy.ones(shape[1], dtype=cupy.float32)

    def gigabytes_per_s(work) -> float:
        work()
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        times = []
        for _ in range(20):
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end))
        return 2 * x.nbytes / sorted(times)[10] / 1e6

    copy = gigabytes_per_s(lambda: cupy.copyto(y, x))
    steps = (chain.Step(operator("add", 2), (0, 1)), chain.Step(operator("gelu", 1), (2,)))
    fused = chain.generate(
        chain.Chain(shape, (Operand("float32", dense(shape)), Operand("float32", (0, 1))), steps, (1,))
    )
    report = {"bias + gelu": gigabytes_per_s(lambda: device.launch(fused, [x, bias, y]))}
    for name in ("softmax", "layer_norm", "rms_norm"):
        kernel = rows.generate(rows.Rows(name, *shape, "float32"))
        report[name] = gigabytes_per_s(lambda kernel=kernel: device.launch(kernel, [x, y]))
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{name}: copy {copy:.0f} GB/s; " + ", ".join(f"{k} {v:.0f} ({v / copy:.0%})" for k, v in report.items()))
    assert min(report.values()) >= 0.85 * copy
