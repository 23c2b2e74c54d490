"""Array programs on one rank beside the function on NumPy arrays and beside JAX on the same device, one core each.

    python tests/benchmarks/array_speed.py [--rounds 7] [--write]

Fifteen programs: those of the thesis at sizes that fit a moment, the ones of the zoo, loop nests over maps.  Ours: the
program of one rank as `run` executes it, with chains fused, computed by NumPy, by loops that numba compiles (`--backend numba`) and by
PyTorch (`--backend torch`).  NumPy: the function itself, loop nests in their vector form (`VECTOR`).  JAX: `jax.jit` of the same
text, compiled before it is timed.  All in turns in one process on one core; processor seconds, because
other work may run beside it; medians over rounds; a ratio above 1.0 is slower.
"""

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from shardproof.backends.execution.launch import environment

if __name__ == "__main__" and "ARRAY_SPEED" not in os.environ:  # all with the settings that ranks are started with
    os.environ.pop("OPENBLAS_CORETYPE", None)  # every library chooses its kernels for this processor
    os.execve(sys.executable, [sys.executable, *sys.argv], {**environment(1), "ARRAY_SPEED": "1"})
if hasattr(os, "sched_setaffinity"):  # one core is the device of all
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np
from eager_steps import processor

from shardproof import dace
from shardproof.backends.execution.interpreter import run_rank
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.transport.virtual import Hub, VirtualTransport
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import Strategy
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.zoo import array_programs as zoo

PAGE = Path(__file__).parent / "results/array-speed.md"
RNG = np.random.default_rng(2)
OURS = ("ours", "ours, numba", "ours, torch")
ROWS, PER_ROW = 40_000, 16
GRID = 1500


@dace
def grid(a: dace.float64[GRID, GRID], b: dace.float64[GRID]):
    c = np.empty([GRID, GRID])
    for i, j in dace.map[GRID, GRID]:
        c[i, j] = a[i, j] + a[j, i] + b[i] * b[j]
    return c


@dace
def map_jacobi(u: dace.float64[GRID, GRID]):
    v = u * 1.0
    for i, j in dace.map[1 : GRID - 1, 1 : GRID - 1]:
        v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
    return v


@dace
def map_spmv(
    p: dace.int64[ROWS + 1],
    col: dace.int64[ROWS * PER_ROW],
    val: dace.float64[ROWS * PER_ROW],
    x: dace.float64[ROWS],
):
    b = np.zeros(ROWS)
    for i in dace.map[0:ROWS]:
        for j in dace.map[p[i] : p[i + 1]]:
            b[i] += val[j] * x[col[j]]
    return b


def norm_rows(x):
    return (x - np.mean(x, axis=-1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)


def mlp(x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2


def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def pairwise(x):
    return np.sqrt(np.add.reduce((x[:, None, :] - x[None, :, :]) ** 2, axis=-1) + 1.0)


def vector_spmv(p, col, val, x):
    return np.add.reduceat(val * x[col], p[:-1])


def jax_spmv(p, col, val, x):
    import jax

    entries = val.shape[0]
    rows = jax.numpy.searchsorted(p, jax.numpy.arange(entries), side="right") - 1
    return jax.ops.segment_sum(val * x[col], rows, num_segments=ROWS)


def vector_jacobi(u):
    v = u * 1.0
    v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
    return v


def jax_jacobi(u):
    return u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]))


def jax_in_place(u):
    for _ in range(zoo.SWEEPS):
        u = u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]))
    return u


def jax_convolutions(x, w1, w2, w3):
    import jax

    for w, stride in ((w1, 1), (w2, 1), (w3, 2)):
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME" if stride == 1 else ((1, 1), (1, 1)))
        )
    return x


VECTOR = {
    "grid": lambda a, b: a + a.T + b[:, None] * b[None, :],
    "map_jacobi": vector_jacobi,
    "map_spmv": vector_spmv,
}
"""Loop nests, as one writes them for NumPy; JAX takes the same, but for those in `FOR_JAX`."""
FOR_JAX = {
    "map_spmv": jax_spmv,
    "map_jacobi": jax_jacobi,
    "jacobi_in_place": jax_in_place,
    "convolutions": jax_convolutions,
}
F = "float32"
HEADS = {"x": (2, 128, 256), "w_q": (256, 8, 32), "w_k": (256, 8, 32), "w_v": (256, 8, 32), "w_o": (256, 256)}
PROGRAMS = {
    "matmul": (zoo.matmul, {"a": (800, 800), "b": (800, 800)}),
    "mlp": (mlp, {"x": (512, 512), "w1": (512, 1024), "w2": (1024, 512)}),
    "softmax": (zoo.softmax, {"x": (8, 8, 128, 256)}),
    "attention": (zoo.attention, HEADS),
    "fused_qkv": (lambda x, w_qkv, w_o: zoo.fused_qkv(x, w_qkv, w_o, heads=8),
                  {"x": (2, 128, 256), "w_qkv": (256, 768), "w_o": (256, 256)}),
    "monte_carlo": (zoo.monte_carlo, {"x": (200,), "y": (200,), "z": (200,)}),
    "jacobi": (zoo.jacobi, {"u": (GRID, GRID)}),
    "jacobi_in_place": (zoo.jacobi_in_place, {"u": (GRID, GRID)}),
    "convolutions": (zoo.convolutions, {"x": (2, 3, 64, 64), "w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (32, 16, 3, 3)}),
    "norm_rows": (norm_rows, {"x": (2000, 1000)}),
    "gelu": (gelu, {"x": (1500, 1000)}),
    "pairwise": (pairwise, {"x": (500, 24)}),
    "grid": (grid, None),
    "map_jacobi": (map_jacobi, None),
    "map_spmv": (map_spmv, None),
}  # fmt: skip


def numbers(specs: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    if "col" in specs:
        given = {"p": np.arange(0, ROWS * PER_ROW + 1, PER_ROW), "col": RNG.integers(0, ROWS, ROWS * PER_ROW)}
        return given | {n: RNG.standard_normal(specs[n][0]) for n in ("val", "x")}
    return {n: RNG.standard_normal(shape) / (1 if n[0] != "w" else shape[0] ** 0.5) for n, (shape, _) in specs.items()}


def ours(traced, values, library: str):
    """The step of one rank."""
    done = propagate(traced.graph, load_machine("localhost:1"), Strategy(()))
    program = build_program(traced.graph, (1,), done.choices, Options(backend=library))
    transport = VirtualTransport(Hub(60.0), 0, (1,), np)
    digits = {n: np.ascontiguousarray(v.reshape(traced.graph.tensor(n).shape)) for n, v in values.items()}
    return lambda: run_rank(program, 0, transport, lambda tensor, box: digits[tensor], np)


def row(name: str, rounds: int) -> str:
    """Milliseconds of all, and ratios."""
    import jax

    jax.config.update("jax_enable_x64", True)
    function, sizes = PROGRAMS[name]
    traced = trace(
        function, name.replace("_", ""), None if sizes is None else {n: ArraySpec(s) for n, s in sizes.items()}
    )
    values = numbers(
        {n: (traced.graph.tensor(n).source_shape or traced.graph.tensor(n).shape, "") for n in traced.arguments}
    )
    plain = VECTOR.get(name, function)
    in_jax = jax.jit(_under_jax(FOR_JAX.get(name, plain)))
    held = {n: jax.numpy.asarray(v) for n, v in values.items()}
    calls = {
        "numpy": lambda: plain(**values),
        "jax": lambda: jax.block_until_ready(in_jax(**held)),
        "ours": ours(traced, values, "numpy"),
        "ours, numba": ours(traced, values, "numba"),
        "ours, torch": ours(traced, values, "torch"),
    }
    want = np.asarray(calls["numpy"]())
    for who in OURS:
        (tensor, shape), out = traced.results[0], calls[who]()
        assert np.abs(out[tensor].reshape(shape) - want).max() <= 1e-9 * max(1.0, np.abs(want).max()), (name, who)
    assert np.abs(np.asarray(calls["jax"]()) - want).max() <= 1e-9 * max(1.0, np.abs(want).max()), (name, "jax")
    seconds: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(rounds):
        for who, call in calls.items():
            call()
            start = time.process_time()
            call()
            seconds[who].append(time.process_time() - start)
    ms = {who: 1e3 * median(s) for who, s in seconds.items()}

    def beside(who: str, other: str) -> float:
        return median(a / b for a, b in zip(seconds[who], seconds[other], strict=True))

    best = min(OURS, key=lambda w: ms[w])
    cells = [f"{ms[w]:.2f}" for w in calls] + [f"{beside(best, 'numpy'):.2f}", f"{beside(best, 'jax'):.2f}"]
    return f"| `{name}` | {' | '.join(cells)} |"


def _under_jax(function):
    """The function with `np` replaced by `jax.numpy` while it is traced."""
    import jax

    def call(**given):
        rooms = [function.__globals__, vars(zoo)]
        for room in rooms:
            room["np"] = jax.numpy
        try:
            return function(**given)
        finally:
            for room in rooms:
                room["np"] = np_of_numpy

    return call


np_of_numpy = np


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--write", action="store_true")
    asked.add_argument("--only", nargs="*", default=list(PROGRAMS))
    given = asked.parse_args()
    rows, begun = [], os.getloadavg()[0]
    for name in given.only:
        rows.append(row(name, given.rounds))
        print(rows[-1], flush=True)
    ratios = [[float(c) for c in r.split("|")[7:9]] for r in rows]
    counts = [sum(r[k] <= 1.0 for r in ratios) for k in (0, 1)]
    summary = f"At most 1.0: {counts[0]} of {len(rows)} beside NumPy, {counts[1]} of {len(rows)} beside JAX."
    where = (
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, load {begun:.1f} at the beginning and {os.getloadavg()[0]:.1f} "
        f"at the end; NumPy {np.__version__}, JAX {version('jax')}, PyTorch {version('torch')}."
    )
    print(summary, where, sep="\n")
    if given.write:
        head = [
            "# Array programs on one device\n",
            f"`python tests/benchmarks/array_speed.py --rounds {given.rounds} --write` (one core for all; the script's head says what is timed)\n",
            "Processor ms; ratios: the fastest of our three libraries beside NumPy and beside `jax.jit`, medians of ratios within a round.\n",
            "| program | NumPy | JAX | ours, NumPy | ours, numba | ours, PyTorch | beside NumPy | beside JAX |",
            "|---|---|---|---|---|---|---|---|",
        ]
        PAGE.write_text("\n".join([*head, *rows, "", summary, "", where, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
