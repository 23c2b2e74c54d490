"""Generates row kernels: reductions and normalisations along the last dimension of a dense (rows, columns)
array, with an elementwise epilogue.

    sum max min    one value per row
    softmax        s_0 = max x,  s_1 = sum exp(x - s_0),      y = exp(x - s_0) / s_1        log_softmax: y = x - s_0 -
                   log s_1
    layer_norm     s_0 = sum x,  s_1 = sum (x - s_0 / n)^2,   y = (x - s_0 / n) / sqrt(s_1 / n + epsilon)
    rms_norm       s_0 = sum x^2,                             y = x / sqrt(s_0 / n + epsilon)

T threads share a row: a warp for short rows (several rows per block), a block for long ones.  A thread keeps its
elements in registers, so that a row is read once and written once; rows beyond 32 registers per thread are read again
per pass.  Partial results meet by shuffles inside a warp and through shared memory between warps; every thread of a
block takes part in every meeting, also for rows beyond the last, which is what lets the host shim replay a block with
one fiber per thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .chain import Step, values
from .kernel import LANES, REALS, VECTORS, Kernel, KernelTextError, Operand, infinity, literal, unique_name
from .scalar import larger, smaller

_BLOCK = 128
_REGISTERS = 32
_MOST_THREADS = 512


@dataclass(frozen=True)
class _Function:
    """`statistics`: (combine, text of the summand); `value`: text of y.  {x}: element, s0 s1: statistics, {n}:
    columns, {f}: suffix.
    """

    statistics: tuple[tuple[str, str], ...]
    value: str | None


_FUNCTIONS: Final = MappingProxyType(
    {
        "sum": _Function((("sum", "{x}"),), None),
        "max": _Function((("max", "{x}"),), None),
        "min": _Function((("min", "{x}"),), None),
        "softmax": _Function((("max", "{x}"), ("sum", "exp{f}({x} - s0)")), "(exp{f}({x} - s0) / s1)"),
        "log_softmax": _Function((("max", "{x}"), ("sum", "exp{f}({x} - s0)")), "({x} - s0 - log{f}(s1))"),
        "layer_norm": _Function(
            (("sum", "{x}"), ("sum", "({x} - s0 / {n}) * ({x} - s0 / {n})")),
            "(({x} - s0 / {n}) / sqrt{f}(s1 / {n} + {epsilon}))",
        ),
        "rms_norm": _Function((("sum", "{x} * {x}"),), "({x} / sqrt{f}(s0 / {n} + {epsilon}))"),
    }
)
FUNCTIONS: Final = tuple(_FUNCTIONS)
"""Names of the row functions."""


@dataclass(frozen=True)
class Rows:
    """`function` along the columns of a dense array of `dtype`.

    `operands` have (row, column) strides; a step's argument 0 is the normalised value, argument i > 0 is operand i - 1,
    then come the values of the steps.  `results`: 0 is the normalised value, k > 0 the value of step k - 1.  Reductions
    take none of these.  `scale`: factor of a sum.
    """

    function: str
    rows: int
    columns: int
    dtype: str
    epsilon: float = 1e-5
    scale: float = 1.0
    operands: tuple[Operand, ...] = ()
    steps: tuple[Step, ...] = ()
    results: tuple[int, ...] = (0,)


def threads_for(columns: int, width: int) -> int:
    """Threads per row: eight vectors each, between a warp and half a block of the largest size.

    >>> threads_for(53, 1), threads_for(4096, 4), threads_for(1 << 20, 4)
    (32, 128, 512)
    """
    threads = 32
    while threads < _MOST_THREADS and threads * width * 8 < columns:
        threads *= 2
    return threads


def generate(spec: Rows, threads: int | None = None) -> Kernel:
    """The kernel of a row function.  `threads` overrides the number per row (a power of two, 32 .. 1024).

    Raises `KernelTextError` for an unknown function, an element type without text, or an empty array.
    """
    function = _FUNCTIONS.get(spec.function)
    if function is None or spec.dtype not in REALS:
        raise KernelTextError(f"{spec.function!r} of {spec.dtype} has no row kernel")
    if spec.rows * spec.columns == 0:
        raise KernelTextError("an empty array needs no kernel")
    real = REALS[spec.dtype]
    width = VECTORS[real][1]
    if spec.columns % width or any(
        o.dtype not in REALS or o.strides[1] not in (0, 1) or (o.strides[1] and o.strides[0] % width)
        for o in spec.operands
    ):
        width = 1
    threads = threads or threads_for(spec.columns, width)
    per_thread = -(-spec.columns // (threads * width))
    writer = _Writer(spec, real, width, threads, per_thread if per_thread * width <= _REGISTERS else 0)
    text = writer.text(function)
    name, text = unique_name(spec.function, text)
    block = _block(threads)
    types = (real, *(o.c_type for o in spec.operands), *([real] * (len(spec.results) if function.value else 1)))
    return Kernel(name, text, types, (-(-spec.rows // (block // threads)), 1), block, width, fibers=True)


class _Writer:
    """`held`: vectors per thread kept in registers; 0: elements are read again in every pass."""

    def __init__(self, spec: Rows, real: str, width: int, threads: int, held: int) -> None:
        self.spec, self.real, self.width, self.threads, self.held = spec, real, width, threads, held
        self.f = "f" if real == "float" else ""

    def loop(self, body: Sequence[str], load: bool) -> list[str]:
        """`body` for every element x of the thread's part of the row; `load`: elements come from memory."""
        step = self.threads * self.width
        if self.held:
            head = [
                (
                    f"#pragma unroll\n    for (int k = 0; k < {self.held}; ++k) {{ const int column = k * {step} + "
                    f"lane * {self.width};"
                )
            ]
            array = "held[k]"
        else:
            head = [
                (
                    f"for (int column = lane * {self.width}; column < {self.spec.columns}; column += {step}) {{ "
                    f"{self.real} here[{self.width}];"
                )
            ]
            array = "here"
        return [
            *head,
            f"if (live && column < {self.spec.columns}) {{",
            *(self.read(array) if load or not self.held else []),
            *body,
            "} }",
        ]

    def read(self, array: str) -> list[str]:
        if self.width == 1:
            return [f"{array}[0] = source[column];"]
        kind = VECTORS[self.real][0]
        return [
            f"const {kind} q = *reinterpret_cast<const {kind}*>(source + column);",
            *(f"{array}[{n}] = q.{LANES[n]};" for n in range(self.width)),
        ]

    def element(self, lane: int) -> str:
        return f"held[k][{lane}]" if self.held else f"here[{lane}]"

    def statistic(self, k: int, combine: str, summand: str) -> list[str]:
        start = literal(0.0, self.real) if combine == "sum" else infinity(self.real, "-" if combine == "max" else "")
        body = [
            f"{{ const {self.real} t = {self.formula(summand, n)}; part = {_joined(combine, 'part', 't')}; }}"
            for n in range(self.width)
        ]
        return [
            f"{self.real} s{k};",
            "{",
            f"{self.real} part = {start};",
            *self.loop(body, False),
            f"s{k} = NAME_{combine}(part);",
            "}",
        ]

    def formula(self, text: str, lane: int) -> str:
        """A formula of the table for element `lane` of the vector at hand."""
        n, epsilon = literal(float(self.spec.columns), self.real), literal(self.spec.epsilon, self.real)
        return text.format(x=self.element(lane), f=self.f, n=n, epsilon=epsilon)

    def text(self, function: _Function) -> str:
        spec, real = self.spec, self.real
        per_block = _block(self.threads) // self.threads
        lines = [
            f"const int lane = threadIdx.x % {self.threads};",
            f"const int row = blockIdx.x * {per_block} + threadIdx.x / {self.threads};",
        ]
        lines += [
            f"const bool live = row < {spec.rows};",
            f"const {real}* source = x_ + (long long)(live ? row : 0) * {spec.columns};",
        ]
        if self.held:
            lines += [f"{real} held[{self.held}][{self.width}];", *self.loop([], True)]
        for k, (combine, summand) in enumerate(function.statistics):
            lines += self.statistic(k, combine, summand)
        if function.value is None:
            lines.append(
                f"if (live && lane == 0) y0[row] = s0{'' if spec.scale == 1.0 else ' * ' + literal(spec.scale, real)};"
            )
        else:
            lines += self.loop(self.store_statements(function.value), False)
        parameters = [
            f"const {real}* __restrict__ x_",
            *(f"const {o.c_type}* __restrict__ p{j}" for j, o in enumerate(spec.operands)),
        ]
        parameters += [f"{real}* __restrict__ y{n}" for n in range(len(spec.results) if function.value else 1)]
        body = "\n    ".join(lines)
        helpers = "".join(_meeting(c, real, self.threads) for c in dict.fromkeys(c for c, _ in function.statistics))
        return (
            f'{helpers}extern "C" __global__ void __launch_bounds__({_block(self.threads)}) '
            f"NAME({', '.join(parameters)}) {{\n    {body}\n}}\n"
        )

    def store_statements(self, value: str) -> list[str]:
        """Statements that compute and store the results of one vector of elements."""
        spec, real, lines = self.spec, self.real, list[str]()
        names: list[list[str]] = []
        for n in range(self.width):
            given = [(real, f"z_{n}")]
            for j, o in enumerate(spec.operands):
                # the compiler joins neighbouring loads
                place = f"(long long)row * {o.strides[0]} + (column + {n}) * {o.strides[1]}"
                given.append((o.c_type, f"p{j}_{n}"))
                lines.append(f"const {o.c_type} p{j}_{n} = p{j}[{place}];")
            lines.append(f"const {real} z_{n} = {self.formula(value, n)};")
            statements, found = values(spec.steps, given, real, f"_{n}")
            lines += statements
            if any(found[r - 1][0] != real for r in spec.results if r):
                raise KernelTextError("a row kernel writes real numbers only")
            names.append([f"z_{n}" if r == 0 else found[r - 1][1] for r in spec.results])
        for k in range(len(spec.results)):
            place = f"y{k} + (long long)row * {spec.columns} + column"
            kind = VECTORS[real][0]
            lines.append(
                f"*({place}) = {names[0][k]};"
                if self.width == 1
                else f"*reinterpret_cast<{kind}*>({place}) = "
                f"make_{kind}({', '.join(names[n][k] for n in range(self.width))});"
            )
        return lines


def _block(threads: int) -> int:
    """Warps that work alone share a block; threads that talk through shared memory have one to themselves."""
    return _BLOCK if threads == 32 else threads


def _joined(combine: str, a: str, b: str) -> str:
    return f"({a} + {b})" if combine == "sum" else larger(a, b) if combine == "max" else smaller(a, b)


def _meeting(combine: str, real: str, threads: int) -> str:
    """A device function: the combination of `a` over the threads of a row, known to all of them."""
    lines = [
        "#pragma unroll\n    for (int mask = 16; mask; mask >>= 1) {",
        f"const {real} b = __shfl_xor_sync(0xffffffffu, a, mask);",
        f"a = {_joined(combine, 'a', 'b')}; }}",
    ]
    if threads > 32:
        lines += [
            f"__shared__ {real} part[{threads // 32}];",
            "__syncthreads();  // the previous meeting may still be read",
            "if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = a;",
            "__syncthreads();",
            "a = part[0];",
            (
                f"for (int w = 1; w < {threads // 32}; ++w) {{ const {real} b = part[w]; a = "
                f"{_joined(combine, 'a', 'b')}; }}"
            ),
        ]
    body = "\n    ".join([*lines, "return a;"])
    return f"static __device__ __forceinline__ {real} NAME_{combine}({real} a) {{\n    {body}\n}}\n"
