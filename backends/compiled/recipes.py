"""From a fused chain to the calls of compiled loops that compute it.

A box is cut where an operand begins or ends to leave its tensor: inside a piece an operand is read everywhere, or is
zero everywhere.  The largest piece has a text of its own; the margins share one that walks with any strides.

    index of a tensor's dimension  =  sum over axes of coefficient * axis + offset
    ->  an element of the block    =  offset of the piece + sum over dimensions of the box of stride * place

Working this out takes longer than a small loop.  It depends on the instruction and on the layout of its operands only:
an instruction keeps its recipes, and a step looks its arrays up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Final

import numpy as np

from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from ..kernels import Array
from ..kernels.blocks import KernelError
from ..kernels.library import OURS
from ..lowering.program import Compute, Fused
from .chains import ChainLibrary
from .kernel import Kernel, flat, function_of, walks_forward
from .nest import ACROSS, ANY, SHORT, Nest, Source, Step, pack, write
from .rows import Form, box_of, dimensions, form_of
from .texts import REALS, has_text

Interval = tuple[int, int]
Piece = tuple[Interval, ...]


@dataclass(frozen=True)
class Recipe:
    """`operands`: slots whose memory is read (None: a zero); `results`: (member, shape); `calls`: a kernel and its
    numbers.
    """

    operands: tuple[str | None, ...]
    results: tuple[tuple[int, tuple[int, ...]], ...]
    real: str
    calls: tuple[tuple[Kernel, Array], ...]


@dataclass(frozen=True)
class _Read:
    """An operand of a member: slot, and per dimension of its tensor the coefficients over the box's dimensions,
    the offset, the extent and where the block begins.
    """

    slot: str
    index: tuple[tuple[tuple[int, ...], int, int, int], ...]
    place: str


def run(graph: Graph, step: Fused, slots: Mapping[str, Array]) -> dict[int, Array] | None:
    """The values of members that are results; None where operands have no common real type.

    Raises `KernelError` for a block that is too small.
    """
    linked = {slot for slot, _ in step.links}
    read = list(dict.fromkeys(slot for m in step.members for slot, _ in m.operands if slot not in linked))
    firsts = _firsts([slots[slot] for slot in read])
    owners = {slot: read[first] for slot, first in zip(read, firsts, strict=True)}
    arrays = {
        slot: slots[slot] if walks_forward(slots[slot]) else np.ascontiguousarray(slots[slot])
        for slot in dict.fromkeys(owners.values())
    }
    key = (firsts, *((a.dtype.str, a.shape, a.strides) for a in arrays.values()))
    recipe = step.recipes.get(key)
    if recipe is None:
        recipe = step.recipes[key] = _Group(graph, step, arrays, owners).recipe()
    if not isinstance(recipe, Recipe):
        return None
    spare = slots.get(step.reuse) if step.reuse is not None else None
    out = {k: _memory(shape, recipe.real, spare) for k, shape in recipe.results}
    nothing = np.zeros(1, recipe.real)
    given = [nothing if slot is None else flat(arrays[slot]) for slot in recipe.operands]
    taken = [a.reshape(-1) for a in out.values()]
    for kernel, numbers in recipe.calls:
        kernel(numbers, *given, *taken)
    return out


def _firsts(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Of each array the number of the first that is the same numbers in the same memory: what a movement leaves where
    it is has a slot of its own, and a loop that knows two names for it loads it twice.

    >>> x = np.zeros(4)
    >>> _firsts([x, x[1:], x[:], x[1:].view("int64")])
    (0, 1, 0, 3)
    """
    known = dict[object, int]()
    return tuple(
        known.setdefault((a.__array_interface__["data"][0], a.dtype.str, a.shape, a.strides), n)
        for n, a in enumerate(arrays)
    )


def _memory(shape: tuple[int, ...], real: str, spare: Array | None) -> Array:
    fits = spare is not None and spare.shape == shape and spare.dtype == real
    if spare is not None and fits and spare.flags.c_contiguous and spare.flags.writeable:
        return spare
    return np.empty(shape, real)


class _Group:
    """`arrays`: by slot; `owners`: of every operand the slot whose array it is."""

    def __init__(self, graph: Graph, step: Fused, arrays: Mapping[str, Array], owners: Mapping[str, str]) -> None:
        self.graph, self.step, self.arrays, self.owners = graph, step, arrays, owners
        first = step.members[0]
        form = Form.REDUCTION if self._operator(first).kind is NodeKind.REDUCE else Form.FULL
        self.box = box_of(graph, first, form, 0)
        self.rows = len(self.box) - 1
        self.forms = [form_of(graph, m, self.box) for m in step.members]
        self.wanted = list(dict.fromkeys(k for _, k in step.results))
        self.reads: list[_Read] = []
        self.steps: list[tuple[Operator, Form, tuple[int, ...]]] = []
        self.number: list[int] = []

    def _operator(self, member: Compute) -> Operator:
        return self.graph.operators[member.operator]

    def recipe(self) -> Recipe | str:
        """The recipe, or why there is none."""
        kinds = {str(a.dtype) for a in self.arrays.values()}
        if len(kinds) != 1 or not kinds <= REALS:
            return f"operands of {sorted(kinds)}"
        if any(f is None for f in self.forms) or not all(
            has_text(self._operator(m), self.graph) for m in self.step.members
        ):
            return "a member without a text"
        real = kinds.pop()
        self._read_members()
        results = tuple((k, self._shape(k)) for k in self.wanted)
        pieces = [p for p in product(*(pairwise(c) for c in self._cuts()))] if self.box else [()]
        pieces = [p for p in pieces if all(lo < hi for lo, hi in p)]
        sizes = [prod(hi - lo for lo, hi in p) for p in pieces]
        largest = sizes.index(max(sizes)) if sizes else -1
        calls = [self._call(p, real, n != largest) for n, p in enumerate(pieces)]
        if not pieces and all(lo < hi for lo, hi in self.box[:-1]):  # no columns: reductions of nothing
            calls = [self._call(self.box, real, False)]
        slots = [*dict.fromkeys(r.slot for r in self.reads), None]
        return Recipe(tuple(slots), results, real, tuple(calls))

    def _shape(self, member: int) -> tuple[int, ...]:
        step = self.step.members[member]
        op = self._operator(step)
        box = dict(zip((a.name for a in op.axes), step.box, strict=True))
        return tuple(max(0, box[a][1] - box[a][0]) for a in op.output.axes)

    def _read_members(self) -> None:
        """Members as steps, equal ones once, over distinct operands."""
        linked, known = dict(self.step.links), dict[object, int]()
        refs: list[tuple[tuple[bool, int], ...]] = []
        for member, form in zip(self.step.members, self.forms, strict=True):
            op = self._operator(member)
            mine = tuple(
                (False, self.number[linked[slot]])
                if slot in linked
                else (True, self._operand(member, j, form or Form.FULL))
                for j, (slot, _) in enumerate(member.operands)
            )
            key = (op.function, op.attributes, form, mine)
            if key not in known:
                known[key] = len(refs)
                refs.append(mine)
                self.steps.append((op, form or Form.FULL, ()))
            self.number.append(known[key])
        base = len(self.reads)
        self.steps = [
            (op, form, tuple(n if outer else base + n for outer, n in mine))
            for (op, form, _), mine in zip(self.steps, refs, strict=True)
        ]

    def _operand(self, member: Compute, position: int, form: Form) -> int:
        op = self._operator(member)
        slot, origin = member.operands[position]
        walk, access = dimensions(op, form, self.rows), op.inputs[position]
        shape = self.graph.tensor(access.tensor).shape
        index = []
        for i, extent, begin in zip(access.index, shape, origin, strict=True):
            own = dict(i.terms)
            index.append(
                (tuple(own.get(a, 0) for a in walk) + (0,) * (len(self.box) - len(walk)), i.offset, extent, begin)
            )
        found = _Read(self.owners[slot], tuple(index), f"operator {op.name!r}, input {position}")
        same = [n for n, r in enumerate(self.reads) if (r.slot, r.index) == (found.slot, found.index)]
        if not same:
            self.reads.append(found)
        return same[0] if same else len(self.reads) - 1

    def _cuts(self) -> list[list[int]]:
        """Per dimension of the box where an operand begins or ends to lie in its tensor."""
        out = [{lo, hi} if lo < hi else {lo} for lo, hi in self.box]
        for read in self.reads:
            for coefficients, offset, extent, _ in read.index:
                for d, c in enumerate(coefficients):
                    if c and sum(map(bool, coefficients)) == 1:
                        low, high = self.box[d]
                        ends = (-(offset // c), (extent - 1 - offset) // c + 1)
                        out[d] |= {e for e in ends if low < e < high}
        return [sorted(c) for c in out]

    def _call(self, piece: Piece, real: str, margin: bool) -> tuple[Kernel, Array]:
        sizes = [hi - lo for lo, hi in piece]
        walks = [self._walk(r, piece) for r in self.reads]
        results = [self._result(k, piece) for k in self.wanted]
        reduced = any(form is not Form.FULL for _, form, _ in self.steps)
        sizes, walks, results = _merged(sizes, walks, results, self.rows if reduced else len(sizes))
        slots = list(dict.fromkeys(r.slot for r in self.reads))
        empty = len(slots)
        sources = []
        for read, (offset, strides) in zip(self.reads, walks, strict=True):
            last = strides[-1] if strides else 0
            outside = offset < 0
            column = last if last in (0, 1) and not margin else ANY
            if column == ANY and not margin and not reduced and len(strides) > 1 and strides[-2] == 1:
                column = ACROSS
            sources.append(Source(empty if outside else slots.index(read.slot), column))
        steps = tuple(Step(*s) for s in self.steps)
        columns = sizes[-1] if reduced and 0 < sizes[-1] <= SHORT else 0
        numbers = tuple(self.number[k] for k in self.wanted)
        nest = Nest(len(sizes), empty + 1, tuple(sources), steps, numbers, real, columns)
        used = [(max(offset, 0), strides) for offset, strides in walks]
        return function_of(write(nest), real), np.array(pack(sizes, [*used, *results]), dtype=np.int64)

    def _walk(self, read: _Read, piece: Piece) -> tuple[int, tuple[int, ...]]:
        """Offset and strides of an operand on a piece; offset -1 where it is zero there.  Raises `KernelError`."""
        array = self.arrays[read.slot]
        strides, offset = [0] * len(piece), 0
        if any(c and lo >= hi for k, _, _, _ in read.index for c, (lo, hi) in zip(k, piece, strict=True)):
            return -1, tuple(strides)  # nothing of it is read
        spans = []
        for coefficients, constant, _, _ in read.index:
            ends = [c * v for c, (lo, hi) in zip(coefficients, piece, strict=True) for v in (lo, max(lo, hi - 1))]
            spans.append((constant + sum(ends[::2]), constant + sum(ends[1::2]) + 1))
        if any(hi <= 0 or lo >= n for (lo, hi), (_, _, n, _) in zip(spans, read.index, strict=True)):
            return -1, tuple(strides)
        steps = [s // array.itemsize for s in array.strides]
        for k, ((low, high), (coefficients, _, _, begin)) in enumerate(zip(spans, read.index, strict=True)):
            if low < begin or high > begin + array.shape[k]:
                held = f"the block holds [{begin}, {begin + array.shape[k]})"
                raise KernelError(read.place, f"dimension {k} needs [{low}, {high}), {held}")
            offset += (low - begin) * steps[k]
            for d, c in enumerate(coefficients):
                strides[d] += c * steps[k]
        return offset, tuple(strides)

    def _result(self, member: int, piece: Piece) -> tuple[int, tuple[int, ...]]:
        """Offset and strides of a result on a piece, dense in its own shape."""
        full = self.forms[member] is Form.FULL
        lengths = [hi - lo for lo, hi in (self.box if full else self.box[:-1])]
        strides = [prod(lengths[d + 1 :]) for d in range(len(lengths))] + ([] if full else [0])
        return sum((lo - low) * s for (lo, _), (low, _), s in zip(piece, self.box, strides, strict=True)), tuple(
            strides
        )


Walk = tuple[int, tuple[int, ...]]


def _merged(
    sizes: list[int], walks: list[Walk], results: list[Walk], most: int
) -> tuple[list[int], list[Walk], list[Walk]]:
    """The same walk with neighbouring dimensions as one where everything passes from one to the other; of the first
    `most` only.
    """
    count, d = len(walks), 0
    every = [*walks, *results]
    while d + 1 < min(most, len(sizes)):
        if sizes[d] == 1 or all(s[d] == s[d + 1] * sizes[d + 1] for _, s in every):
            every = [(o, (*s[:d], *s[d + 1 :])) for o, s in every]
            sizes = [*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :]]
            most -= 1
        else:
            d += 1
    return sizes, every[:count], every[count:]


NUMBA: Final = ChainLibrary(OURS.execute, OURS.functions, chain=run)
"""Chains of maps and reductions as numba's loops, and our kernels for the rest."""
