"""Packs tensors behind one another, as flat buffers that are sent have them: what `values` cannot say with one set of
digits for a dimension is a list of tensors along it.

    joined    tensors of one shape but for a dimension, one behind another along it; none is empty
    runs      all elements in row-major order, as tensors of one dimension, one behind another

A tensor is joined only where its parts have other digits in the dimension (a later one of three or more is written out
in pieces instead, as patches of a picture behind a word are); a slice, or another shape, in which one part
is left is that part.  Functions of elements are those of the parts, cut where any operand is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from math import prod
from typing import Final

from ...models.equality.program import Step
from .digits import Box, boxes_of
from .index import Index, Undecided, constant, variable
from .meaning import COMPARED, OPAQUE, TWO, Meaning
from .terms import Form
from .values import MOST_PIECES, Value, require_few

ELEMENTWISE: Final = (
    TWO
    | COMPARED
    | OPAQUE
    | {"cast", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "where"}
    | {"logical_and", "logical_or", "logical_not"}
)
"""Operators of which every element is a function of elements at the same place."""


@dataclass(frozen=True)
class Joined:
    """Tensors one behind another along a dimension."""

    dim: int
    parts: tuple[Value, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of every dimension."""
        one = self.parts[0].shape
        return (*one[: self.dim], sum(p.shape[self.dim] for p in self.parts), *one[self.dim + 1 :])

    @property
    def edges(self) -> list[int]:
        """Where parts begin and end along the dimension."""
        return [0, *accumulate(p.shape[self.dim] for p in self.parts)]


Tensor = Value | Joined


class Segments:
    """Operations on tensors that may be joined; those on one of their parts are `meaning`'s."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning, self.tensors = meaning, meaning.tensors

    def of(self, step: Step, reads: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What a local step makes.  Raises `Undecided` for an operator that is not known of what it reads."""
        name, words = step.operator, dict(step.words)
        match name, words:
            case "cat", {"dim": int(dim)}:
                return (self.concatenate(reads, dim),)
            case "slice", {"dim": int(dim), "start": int(start), "stop": int(stop), "step": 1}:
                return (self.slice(reads[0], dim, start, stop),)
            case "slice_scatter", {"dim": int(dim), "start": int(start), "stop": int(stop), "step": 1}:
                x, new = reads
                parts = [self.slice(x, dim, 0, start), new, self.slice(x, dim, stop, x.shape[dim])]
                return (self.concatenate([p for p in parts if prod(p.shape)] or [x], dim),)
            case "slice_scatter", {"dim": int(dim), "start": int(start), "stop": int(stop), "step": int(by)}:
                return (self._every(reads, dim, start, stop, by),)
            case "reshape", {"shape": tuple(shape)}:
                return (self.reshape(reads[0], shape),)
        plain = [r for r in reads if isinstance(r, Value)]
        if len(plain) == len(reads):
            return self.meaning.of(step, plain)
        if name not in ELEMENTWISE:
            raise Undecided(f"{name} of tensors that are packed one behind another")
        return (self.each(reads, lambda parts: self.meaning.of(step, parts)[0]),)

    def _every(self, reads: Sequence[Tensor], dim: int, start: int, stop: int, by: int) -> Tensor:
        """Every `by`-th position of a dimension replaced: one column where the dimension is rows of `by` positions."""
        x, new = reads
        size, shape = x.shape[dim], x.shape
        rows, rest = divmod(size, by)
        taken = new.shape[dim] if dim < len(new.shape) else 0
        if rest or not 0 <= start < by or not start + (rows - 1) * by < stop <= size or taken != rows:
            raise Undecided(f"slice_scatter of every {by}-th of {size} positions from {start} to {stop}")
        wide = self.reshape(x, (*shape[:dim], rows, by, *shape[dim + 1 :]))
        column = self.reshape(new, (*shape[:dim], rows, 1, *shape[dim + 1 :]))
        parts = [self.slice(wide, dim + 1, 0, start), column, self.slice(wide, dim + 1, start + 1, by)]
        return self.reshape(self.concatenate([p for p in parts if prod(p.shape)] or [x], dim + 1), shape)

    # ------------------------------------------------------------------ parts

    def concatenate(self, values: Sequence[Tensor], dim: int) -> Tensor:
        """One behind another along a dimension."""
        plain = [v for v in values if isinstance(v, Value)]
        filled = [v for v in values if prod(v.shape)]
        inner = [v.digits[dim][1:] for v in filled if isinstance(v, Value)]
        if len(plain) == len(values) and inner.count(inner[0] if inner else ()) == len(inner):
            return self.tensors.concatenate(plain, dim)
        if len(plain) == len(values) and len(plain[0].shape) > 2 and dim:  # no flat buffer
            return self.tensors.concatenate([self._in_one_digit(v, dim) for v in plain if prod(v.shape)], dim)
        parts = [p for v in filled for p in self._parts(v, dim)]
        require_few(len(parts), MOST_PIECES)
        if dim < 0 or len({(*p.shape[:dim], *p.shape[dim + 1 :]) for p in parts}) > 1:
            raise Undecided("tensors of other shapes are packed one behind another")
        return self._joined(parts, dim)

    def _joined(self, parts: Sequence[Value], dim: int) -> Tensor:
        """Parts that are not empty, as one tensor where their digits let them be one."""
        parts = [self._trimmed(p, dim) for p in parts]
        if len({p.digits[dim][1:] for p in parts}) == 1:
            return self.tensors.concatenate(parts, dim)
        return Joined(dim, tuple(parts))

    def _trimmed(self, value: Value, dim: int) -> Value:
        """Without digits of a dimension that have one value, unless there is no other."""
        gone = [v for v, n in zip(value.variables(dim), value.digits[dim], strict=True) if n == 1]
        if len(gone) == len(value.digits[dim]):
            gone = gone[1:]
        if not gone or any(box[v] != (0, 1) for box, _ in value.pieces for v in gone):
            return value
        count = sum(map(len, value.digits))
        kept = [v for v in range(count) if v not in gone]
        names: dict[int, Index] = {**{v: constant(0) for v in gone}, **{v: variable(i) for i, v in enumerate(kept)}}
        mine = tuple(n for v, n in zip(value.variables(dim), value.digits[dim], strict=True) if v not in gone)
        pieces = tuple(
            (tuple(box[v] for v in kept), self.tensors.forms.substitute(form, names)) for box, form in value.pieces
        )
        return Value((*value.digits[:dim], mine, *value.digits[dim + 1 :]), tuple(sorted(pieces)))

    def _in_one_digit(self, value: Value, dim: int) -> Value:
        """With one digit for a dimension: pieces for every value of its outer digits."""
        mine, first = value.digits[dim], value.variables(dim)[0]
        if len(mine) == 1:
            return value
        inner, gone = mine[-1], len(mine) - 1
        require_few(len(value.pieces) * prod(mine[:-1]), MOST_PIECES)
        behind = range(first + gone + 1, sum(map(len, value.digits)))
        names: dict[int, Index] = {v: variable(v - gone) for v in behind}
        pieces = list[tuple[Box, Form]]()
        for box, form in value.pieces:
            for turn in product(*(range(*box[first + k]) for k in range(gone))):
                start = 0
                for n, size in zip(turn, mine[:-1], strict=True):
                    start = start * size + n
                start *= inner
                at: dict[int, Index] = {first + k: constant(n) for k, n in enumerate(turn)}
                at[first + gone] = (((first, 1),), -start)
                low, high = box[first + gone]
                moved = self.tensors.forms.substitute(form, {**at, **names})
                pieces.append(((*box[:first], (start + low, start + high), *box[first + gone + 1 :]), moved))
        digits = (*value.digits[:dim], (prod(mine),), *value.digits[dim + 1 :])
        return Value(digits, tuple(sorted(pieces)))

    def _parts(self, value: Tensor, dim: int) -> Sequence[Value]:
        if isinstance(value, Value):
            return (value,)
        if value.dim != dim:
            raise Undecided("tensors that are packed along another dimension are packed")
        return value.parts

    def slice(self, value: Tensor, dim: int, start: int, stop: int, one: bool = False) -> Tensor:
        """Positions from `start` up to `stop` of a dimension (`one` as of `Tensors.slice`)."""
        if isinstance(value, Value):
            edges = self._edges(value, dim, start, stop)
            if len(edges) < 3:
                return self.tensors.slice(value, dim, start, stop, one=one)
            return self._joined([self.tensors.slice(value, dim, a, b, one=one) for a, b in pairwise(edges)], dim)
        if not (0 <= dim < len(value.shape) and 0 <= start <= stop <= value.shape[dim]):
            raise Undecided(f"a slice from {start} to {stop} along dimension {dim} of {value.shape}")
        if dim != value.dim:
            found = [self.tensors.slice(p, dim, start, stop, one=one) for p in value.parts]
            if start == stop:
                return self.tensors.concatenate(found, value.dim)
            return self._joined(found, value.dim)
        if start == stop:
            return self.tensors.slice(value.parts[0], dim, 0, 0)
        found = []
        for part, (first, last) in zip(value.parts, pairwise(value.edges), strict=True):
            low, high = max(start, first), min(stop, last)
            if low < high:
                found += self._parts(self.slice(part, dim, low - first, high - first, one), dim)
        return self._joined(found, dim)

    def _edges(self, value: Value, dim: int, start: int, stop: int) -> list[int]:
        """Where an interval of a dimension is cut so that every part is a box of its digits."""
        sizes = value.digits[dim]
        if len(sizes) == 1 or not 0 <= start < stop <= prod(sizes):
            return [start, stop]
        boxes = boxes_of(start, stop, sizes)
        require_few(len(boxes), MOST_PIECES)
        return [start, *(start + e for e in accumulate(prod(high - low for low, high in box) for box in boxes))]

    def cut(self, values: Sequence[Tensor]) -> tuple[int, list[list[Value]]]:
        """The dimension along which any is joined, and all tensors in parts there, of the same extents; what has one
        element stays whole.
        """
        (dim, *others) = sorted({v.dim for v in values if isinstance(v, Joined)})
        shape = next(v.shape for v in values if isinstance(v, Joined))
        if others or any(v.shape != shape and (prod(v.shape) != 1 or len(v.shape) > len(shape)) for v in values):
            raise Undecided("tensors that are packed in other ways meet")
        edges = sorted({e for v in values if isinstance(v, Joined) for e in v.edges})
        require_few(len(edges), MOST_PIECES)
        rows = []
        for first, last in pairwise(edges):
            row = [v if v.shape != shape else self.slice(v, dim, first, last, one=True) for v in values]
            rows.append([v for v in row if isinstance(v, Value)])
        if any(len(row) != len(values) for row in rows):
            raise Undecided("tensors that are packed in other ways meet")
        return dim, rows

    def each(self, values: Sequence[Tensor], function: Callable[[list[Value]], Value]) -> Tensor:
        """A function of elements at the same place."""
        plain = [v for v in values if isinstance(v, Value)]
        if len(plain) == len(values):
            return function(plain)
        dim, rows = self.cut(values)
        return self._joined([function(row) for row in rows], dim)

    # ------------------------------------------------------------------ shapes

    def reshape(self, value: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in row-major order under another shape."""
        if isinstance(value, Value):
            return self.tensors.reshape(value, shape)
        if prod(value.shape) != prod(shape):
            raise Undecided(f"a tensor of shape {value.shape} is given the shape {tuple(shape)}")
        if tuple(shape) == value.shape:
            return value
        runs, rest = self._runs(value), prod(shape[1:])
        sizes = [prod(r.shape) for r in runs]
        if all(n % rest == 0 for n in sizes):
            rows = [self.tensors.reshape(r, (n // rest, *shape[1:])) for r, n in zip(runs, sizes, strict=True)]
            return self._joined(rows, 0)
        if len(shape) != 2:
            raise Undecided(f"tensors that are packed to shape {value.shape} do not fall into {tuple(shape)}")
        edges = sorted({e % rest for e in accumulate(sizes)} | {0, rest})
        require_few(len(edges) * shape[0], 4 * MOST_PIECES)
        flat, columns = Joined(0, tuple(runs)), []
        for first, last in pairwise(edges):
            rows = []
            for row in range(shape[0]):
                piece = self.slice(flat, 0, row * rest + first, row * rest + last, one=True)
                if not isinstance(piece, Value):
                    raise Undecided("tensors that are packed are cut within one of them")
                rows.append(self.tensors.reshape(piece, (1, last - first)))
            whole = self.concatenate(rows, 0)
            if not isinstance(whole, Value):
                raise Undecided("rows that are packed in other ways meet")
            columns.append(whole)
        return self._joined(columns, 1)

    def _runs(self, value: Joined) -> list[Value]:
        """All elements in order."""
        rows = prod(value.shape[: value.dim])
        require_few(rows * len(value.parts), 4 * MOST_PIECES)
        wide = [self.tensors.reshape(p, (rows, prod(p.shape) // rows)) for p in value.parts]
        return [
            self.tensors.reshape(self.tensors.slice(w, 0, row, row + 1, one=True), (w.shape[1],))
            for row in range(rows)
            for w in wide
        ]
