"""Writes the loop nest of a chain as Python text for numba.

    rows:     for every row of the box
    loops:      for every column, one loop after another:  full members, and sums or extremes of the row
                between two loops:  members of the row

A full member stands in the first loop in which its operands are known, and no earlier than a later one needs it; one
that a later loop reads again is computed again where that is cheap, read back from its result, or kept in a row of
memory.  Sizes, offsets and strides are no part of the text but for the stride of columns (0, 1 or any) and short rows,
so that a text serves every rank and size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...models.program.operators import Operator
from ..kernels.elementwise import number
from .rows import Form
from .texts import CHEAP, REDUCTIONS, text_of

SHORT: Final = 64
"""Columns up to which their number is part of the text of a reduction: the loop is then unrolled whole."""
BLOCK: Final = (16, 512)
"""Rows and columns that are walked together where an operand is transposed: what is read of it in a row, 64 bytes per
column, is in the second cache for the next rows.  a + a.T of 1500 x 1500 float64 on a Xeon: 6.9 ms; 8.2 in blocks of
64 x 64, 9.0 where those are copied first.
"""
ANY: Final = -1
ACROSS: Final = -2


@dataclass(frozen=True)
class Source:
    """An operand: array number `array` at a stride per column of 0, 1, `ANY` (given at the call), or `ACROSS`: any,
    and 1 per row.
    """

    array: int
    column: int


@dataclass(frozen=True)
class Step:
    """A member.  `arguments`: i < number of sources: that one; else the value of step i - number of sources."""

    operator: Operator
    form: Form
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Nest:
    """`rank`: dimensions of the box; `arrays`: how many are given; `results`: steps whose values are written;
    `columns`: their number where it is in the text, else 0; `real`: element type.
    """

    rank: int
    arrays: int
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    real: str
    columns: int = 0


@dataclass
class _Plan:
    """Where steps stand: `loop` of full ones and reductions; of a row member the first loop that may read it."""

    loop: list[int]
    kept: set[int]
    again: dict[int, list[int]]


def _place(nest: Nest) -> _Plan:
    base, steps = len(nest.sources), nest.steps
    loop = [0] * len(steps)

    def loop_behind(k: int) -> int:
        return loop[k] + 1 if steps[k].form is Form.REDUCTION else loop[k]

    for k, step in enumerate(steps):
        loop[k] = max((loop_behind(a - base) for a in step.arguments if a >= base), default=0)
    readers: list[list[int]] = [[] for _ in steps]
    for k, step in enumerate(steps):
        for a in step.arguments:
            if a >= base:
                readers[a - base].append(k)
    for k in reversed(range(len(steps))):
        if steps[k].form is Form.FULL and readers[k]:
            loop[k] = max(loop[k], min(loop[r] for r in readers[k]))
    plan = _Plan(loop, set(), {})
    for k, step in enumerate(steps):
        later = sorted({loop[r] for r in readers[k] if loop[r] != loop[k]})
        if step.form is not Form.FULL or not later:
            continue
        outer = all(a < base or steps[a - base].form is not Form.FULL for a in step.arguments)
        if step.operator.function in CHEAP and outer:
            plan.again[k] = later
        else:
            plan.kept.add(k)
    return plan


class _Writer:
    def __init__(self, nest: Nest) -> None:
        self.nest, self.plan, self.base = nest, _place(nest), len(nest.sources)
        self.lines: list[str] = []
        self.depth = 1
        self.outer = nest.rank - 1

    def say(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, argument: int) -> str:
        return f"a{argument}" if argument < self.base else f"v{argument - self.base}"

    def text(self) -> str:
        nest, outer = self.nest, self.outer
        names = [*(f"x{k}" for k in range(nest.arrays)), *(f"y{n}" for n in range(len(nest.results)))]
        self.lines.append(f"def kernel(g, {', '.join(names)}):")
        at = self._numbers()
        turned = any(s.column == ACROSS for s in nest.sources)
        self.say("first, last = 0, " + (str(nest.columns) if nest.columns else f"n{outer}"))
        for k in sorted(self.plan.kept - set(nest.results)):
            self.say(f"t{k} = np.empty(n{outer}, np.{nest.real})")
        for d in range(outer):
            if turned and d == outer - 1:
                self._blocks()
            self.say(f"for i{d} in range({'top, bottom' if turned and d == outer - 1 else f'n{d}'}):")
            self.depth += 1
            for name in at:
                here = f"{name}p{d - 1}" if d else f"{name}b"
                self.say(f"{name}p{d} = {here} + i{d} * {name}s{d}")
        self._rows()
        return "\n".join(self.lines) + "\n"

    def _blocks(self) -> None:
        """Loops over blocks of rows, and in each of columns."""
        outer, (rows, columns) = self.outer, BLOCK
        for low, high, d, most in (("top", "bottom", outer - 1, rows), ("first", "last", outer, columns)):
            self.say(f"for {low} in range(0, n{d}, {most}):")
            self.depth += 1
            self.say(f"{high} = min({low} + {most}, n{d})")

    def _numbers(self) -> list[str]:
        """Names of what walks, and the lines that read sizes, offsets and strides."""
        nest, place = self.nest, 0
        for d in range(nest.rank):
            self.say(f"n{d} = g[{place}]")
            place += 1
        at = [*(f"a{k}" for k in range(self.base)), *(f"y{n}" for n in range(len(nest.results)))]
        for name in at:
            for part in ("b", *(f"s{d}" for d in range(nest.rank))):
                self.say(f"{name}{part} = g[{place}]")
                place += 1
        return at

    def _where(self, name: str, column: int | None) -> str:
        row = f"{name}p{self.outer - 1}" if self.outer else f"{name}b"
        if column is None or column == 0:
            return f"np.uint64({row})"
        return f"np.uint64({row} + j)" if column == 1 else f"np.uint64({row} + j * {name}s{self.outer})"

    def _rows(self) -> None:
        nest, plan = self.nest, self.plan
        for k, source in enumerate(nest.sources):
            if source.column == 0:
                self.say(f"a{k} = x{source.array}[{self._where(f'a{k}', None)}]")
        self._row_members(0)
        loops = [plan.loop[k] for k, s in enumerate(nest.steps) if s.form is not Form.ROW]
        for n in range(max(loops) + 1):
            self._loop(n)
            self._row_members(n + 1)

    def _row_members(self, n: int) -> None:
        for k, step in enumerate(self.nest.steps):
            if step.form is Form.ROW and self.plan.loop[k] == n:
                self.say(f"v{k} = real({text_of(step.operator, [self.name(a) for a in step.arguments])})")
                self._store(k)

    def _loop(self, n: int) -> None:
        nest, plan = self.nest, self.plan
        sums = [k for k, s in enumerate(nest.steps) if s.form is Form.REDUCTION and plan.loop[k] == n]
        here = [
            k for k, s in enumerate(nest.steps) if s.form is Form.FULL and n in (plan.loop[k], *plan.again.get(k, ()))
        ]
        for k in sums:
            self.say(f"v{k} = real({REDUCTIONS[nest.steps[k].operator.function][0]})")
        self.say("for j in range(first, last):")
        self.depth += 1
        read = sorted({a for k in (*here, *sums) for a in nest.steps[k].arguments})
        for a in read:
            if a < self.base and nest.sources[a].column != 0:
                source = nest.sources[a]
                self.say(f"a{a} = x{source.array}[{self._where(f'a{a}', source.column)}]")
            elif a >= self.base and (a - self.base) in plan.kept and plan.loop[a - self.base] < n:
                self.say(f"v{a - self.base} = {self._memory(a - self.base)}")
        for k in here:
            step = nest.steps[k]
            self.say(f"v{k} = real({text_of(step.operator, [self.name(a) for a in step.arguments])})")
            if plan.loop[k] == n:
                if k in plan.kept and k not in nest.results:
                    self.say(f"{self._memory(k)} = v{k}")
                self._store(k)
        for k in sums:
            step = nest.steps[k]
            self.say(f"v{k} = {REDUCTIONS[step.operator.function][1]}(v{k}, {self.name(step.arguments[0])})")
        self.depth -= 1
        for k in sums:
            scale = float(number(nest.steps[k].operator, "scale", 1.0))
            if nest.steps[k].operator.function == "sum" and scale != 1.0:
                self.say(f"v{k} = real(v{k} * real({scale!r}))")
            self._store(k)

    def _memory(self, k: int) -> str:
        if k in self.nest.results:
            return f"y{self.nest.results.index(k)}[{self._where(f'y{self.nest.results.index(k)}', 1)}]"
        return f"t{k}[np.uint64(j)]"

    def _store(self, k: int) -> None:
        for n, result in enumerate(self.nest.results):
            if result == k:
                full = self.nest.steps[k].form is Form.FULL
                self.say(f"y{n}[{self._where(f'y{n}', 1 if full else None)}] = v{k}")


def write(nest: Nest) -> str:
    """The text of a function `kernel(g, arrays.., results..)` on flat arrays; `g`: sizes, then per source and per
    result offset and strides.
    """
    return _Writer(nest).text()


def pack(sizes: Sequence[int], walks: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
    """The numbers `g` of a call.

    >>> pack((2, 3), [(0, (3, 1)), (5, (0, 1))])
    [2, 3, 0, 3, 1, 5, 0, 1]
    """
    return [*sizes, *(n for offset, strides in walks for n in (offset, *strides))]
