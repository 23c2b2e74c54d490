"""Tensors as forms: what every element is, in boxes of positions that cover the tensor.

    digits    every dimension is a product of digits, outer first; each digit is one free variable: reshapes are other
              groups of the same digits, and heads of a dimension are variables like others
    pieces    boxes of digits that do not overlap and cover all, with the form that holds there

What is written with them: pointwise functions after broadcasting, sums and greatest elements over dimensions, slices,
concatenations, permutations, reshapes.  All else is made of these (`meaning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from math import prod

from .digits import Box, boxes_of, common_digits, joined_boxes, meet
from .functions import Forms
from .index import Index, Undecided, constant, variable
from .loops import join_pieces
from .terms import ZERO, Form

Digits = tuple[tuple[int, ...], ...]

MOST_PIECES = 256
"""Pieces of one tensor."""


@dataclass(frozen=True)
class Value:
    """`digits` of every dimension; `pieces`."""

    digits: Digits
    pieces: tuple[tuple[Box, Form], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of every dimension."""
        return tuple(prod(d) for d in self.digits)

    def variables(self, dim: int) -> range:
        """Free variables of a dimension."""
        first = sum(len(d) for d in self.digits[:dim])
        return range(first, first + len(self.digits[dim]))


def _flat(digits: Digits) -> tuple[int, ...]:
    return tuple(n for d in digits for n in d)


def require_few(pieces: int, most: int) -> None:
    """`Undecided` where a tensor falls into more pieces."""
    if pieces > most:
        raise Undecided(f"a tensor falls into more than {most} pieces")


def _full(digits: Digits) -> Box:
    return tuple((0, n) for n in _flat(digits))


class Tensors:
    """Operations on values; all forms are made by `forms`."""

    def __init__(self, forms: Forms) -> None:
        self.forms = forms

    # ------------------------------------------------------------------ sources

    def source(self, head: int, shape: Sequence[int]) -> Value:
        """A tensor of which nothing is known."""
        at = [variable(i) for i, n in enumerate(shape) if n > 1]
        digits = tuple((n,) for n in shape)
        return Value(digits, ((_full(digits), self.forms.element(head, at)),))

    def full(self, shape: Sequence[int], value: Form) -> Value:
        """The same number everywhere."""
        digits = tuple((n,) for n in shape)
        return Value(digits, ((_full(digits), value),))

    def iota(self, shape: Sequence[int], dim: int) -> Value:
        """The position along a dimension."""
        digits = tuple((n,) for n in shape)
        return Value(digits, ((_full(digits), self.forms.position(variable(dim))),))

    # ------------------------------------------------------------------ digits

    def _mapped(self, value: Value, digits: Digits, groups: Sequence[Sequence[int]]) -> Value:
        """With every digit in parts: `groups` name the new digits of each old one, among all new ones."""
        sizes = _flat(digits)
        if sizes == _flat(value.digits) and all(list(g) == [i] for i, g in enumerate(groups)):
            return Value(digits, value.pieces)
        values: dict[int, Index] = {}
        for old, group in enumerate(groups):
            weight, terms = 1, list[tuple[int, int]]()
            for k in reversed(group):
                terms.append((k, weight))
                weight *= sizes[k]
            values[old] = (tuple(sorted(terms)), 0)
        pieces = list[tuple[Box, Form]]()
        for box, form in value.pieces:
            parts = [boxes_of(*r, [sizes[k] for k in g]) if g else [()] for r, g in zip(box, groups, strict=True)]
            require_few(len(pieces) + prod(map(len, parts)), 4 * MOST_PIECES)
            moved = self.forms.substitute(form, values)
            for choice in product(*parts):
                new = [(0, n) for n in sizes]
                for group, part in zip(groups, choice, strict=True):
                    for k, r in zip(group, part, strict=True):
                        new[k] = r
                pieces.append((tuple(new), moved))
        return self._value(digits, pieces)

    def _value(self, digits: Digits, pieces: Sequence[tuple[Box, Form]]) -> Value:
        """Pieces of one form that are adjacent are one."""
        require_few(len(pieces), 4 * MOST_PIECES)
        self.forms.work(1 + len(pieces) * (1 + len(digits)) // 8)
        if len(pieces) > 1:
            alike: dict[Form, list[Box]] = {}
            for box, form in pieces:
                alike.setdefault(form, []).append(box)
            pieces = [(box, form) for form, boxes in alike.items() for box in joined_boxes(boxes)]
        require_few(len(pieces), MOST_PIECES)
        return Value(digits, tuple(sorted(pieces)))

    def refine(self, value: Value, digits: Digits) -> Value:
        """With digits that refine those of the value, dimension by dimension."""
        if digits == value.digits:
            return value
        groups, first = list[list[int]](), 0
        for mine, theirs in zip(value.digits, digits, strict=True):
            new, _, group = common_digits(theirs, mine)
            if tuple(new) != tuple(theirs):
                raise Undecided("digits of a dimension do not nest")
            groups += [[first + k for k in g] for g in group]
            first += len(theirs)
        return self._mapped(value, digits, groups)

    def join_digits(self, value: Value) -> Value:
        """With as few digits as forms allow."""
        for dim in range(len(value.digits)):
            k = 0
            while k + 1 < len(value.digits[dim]):
                v = value.variables(dim)[k]
                new = self._join(value, dim, k, v)
                if new is None:
                    k += 1
                else:
                    value, k = new, max(0, k - 1)
        return value

    def _join(self, value: Value, dim: int, k: int, h: int) -> Value | None:
        """Digits `k` and `k + 1` of a dimension as one, if every form knows them only together."""
        d, (big, size) = h + 1, value.digits[dim][k : k + 2]
        uses = [
            dict(i[0])
            for _, form in value.pieces
            for (_, factors), _ in form
            for _, at, _ in factors
            for i in at
            if any(v in (h, d) for v, _ in i[0])
        ]
        many = sum(len(at) for _, form in value.pieces for (_, factors), _ in form for _, at, _ in factors)
        self.forms.work(1 + many // 16)
        if any(u.get(h, 0) != size * u.get(d, 0) for u in uses) and not (
            (big == 1 and all(h not in u for u in uses)) or (size == 1 and all(d not in u for u in uses))
        ):
            return None
        if any(box[d] != (0, size) and box[h][1] - box[h][0] != 1 for box, _ in value.pieces):
            return None
        count = len(_flat(value.digits))
        values: dict[int, Index] = {v: variable(v - 1) for v in range(d + 1, count)}
        if big == 1 and all(h not in u for u in uses):
            values |= {d: variable(h), h: constant(0)}
        elif size == 1 and all(d not in u for u in uses):
            values |= {h: variable(h), d: constant(0)}
        else:
            values |= {d: variable(h), h: constant(0)}
        pieces = []
        for box, form in value.pieces:
            if box[d] == (0, size):
                r = (size * box[h][0], size * box[h][1])
            else:
                r = (size * box[h][0] + box[d][0], size * box[h][0] + box[d][1])
            pieces.append(((*box[:h], r, *box[d + 1 :]), self.forms.substitute(form, values)))
        mine = value.digits[dim]
        digits = (*value.digits[:dim], (*mine[:k], big * size, *mine[k + 2 :]), *value.digits[dim + 1 :])
        return self._value(digits, pieces)

    # ------------------------------------------------------------------ shapes

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The same elements in row-major order under another shape."""
        if prod(value.shape) != prod(shape):
            raise Undecided(f"a tensor of shape {value.shape} is given the shape {tuple(shape)}")
        if tuple(shape) == value.shape:
            return value
        if not prod(shape):
            return Value(tuple((n,) for n in shape), ())
        old = list(_flat(value.digits))
        groups, digits, i = [list[int]() for _ in old], list[list[int]](), 0
        left, total = (old[0] if old else 1), 0
        for n in shape:
            mine, need = list[int](), n
            while need > 1 or (n == 1 and not mine):
                if i < len(old) and old[i] == 1:
                    groups[i].append(total)
                    mine.append(1)
                    total += 1
                    i += 1
                    left = old[i] if i < len(old) else 1
                    continue
                if need == 1:
                    mine.append(1)
                    total += 1
                    break
                step = need if left % need == 0 else left
                if need % step:
                    raise Undecided(f"shape {value.shape} does not fall into {tuple(shape)}")
                groups[i].append(total)
                mine.append(step)
                total += 1
                need //= step
                left //= step
                if left == 1:
                    i += 1
                    left = old[i] if i < len(old) else 1
            digits.append(mine)
        rest = [k for k in range(i, len(old)) if old[k] == 1]
        if rest and digits:
            for k in rest:
                groups[k].append(total)
                digits[-1].append(1)
                total += 1
        elif rest:  # no dimension is left: a single element
            values: dict[int, Index] = {k: constant(0) for k in range(len(old))}
            return Value((), (((), self.forms.substitute(value.pieces[0][1], values)),))
        return self.join_digits(self._mapped(value, tuple(tuple(d) for d in digits), groups))

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        """Dimension k of the result is dimension `order[k]`."""
        names: dict[int, Index] = {}
        old = list[int]()
        for dim in order:
            for v in value.variables(dim):
                names[v] = variable(len(old))
                old.append(v)
        pieces = [(tuple(box[v] for v in old), self.forms.substitute(form, names)) for box, form in value.pieces]
        return self._value(tuple(value.digits[d] for d in order), pieces)

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Dimensions of one element repeated; new dimensions stand in front."""
        new = len(shape) - len(value.digits)
        digits, names, keep, at = list[tuple[int, ...]](), dict[int, Index](), list[int | None](), 0
        for k, n in enumerate(shape):
            mine = value.digits[k - new] if k >= new else ()
            if k < new or (prod(mine) == 1 and n != 1):
                digits.append((n,))
                keep.append(None)
                names |= {v: constant(0) for v in (value.variables(k - new) if k >= new else ())}
                at += 1
                continue
            if prod(mine) != n:
                raise Undecided(f"shape {value.shape} is not broadcast to {tuple(shape)}")
            digits.append(mine)
            for v in value.variables(k - new):
                names[v] = variable(at)
                keep.append(v)
                at += 1
        sizes = _flat(tuple(digits))
        pieces = [
            (
                tuple((0, sizes[i]) if v is None else box[v] for i, v in enumerate(keep)),
                self.forms.substitute(form, names),
            )
            for box, form in value.pieces
        ]
        return self._value(tuple(digits), pieces)

    def slice(self, value: Value, dim: int, start: int, stop: int, step: int = 1, one: bool = False) -> Value:
        """Positions `start`, `start + step`, .. before `stop` of a dimension.  `one`: a single position keeps its
        variable, as of a rank that has one head of many; else it is a number, as in a loop over heads.
        """
        sizes = value.digits[dim]
        if not 0 <= start <= stop <= prod(sizes) or step < 1:
            raise Undecided(f"a slice from {start} to {stop} of {prod(sizes)} positions")
        if (start, step) == (0, 1) and stop == prod(sizes):
            return value
        if start == stop:
            return Value((*value.digits[:dim], (0,), *value.digits[dim + 1 :]), ())
        v = value.variables(dim)
        if len(sizes) == 1:
            count = max(0, -(-(stop - start) // step))
            values: dict[int, Index] = {v[0]: (((v[0], step),), start) if count != 1 or one else constant(start)}
            pieces = []
            for box, form in value.pieces:
                low, high = box[v[0]]
                low, high = max(0, -(-(low - start) // step)), min(count, -(-(high - start) // step))
                if low < high:
                    pieces.append(((*box[: v[0]], (low, high), *box[v[0] + 1 :]), self.forms.substitute(form, values)))
            return self._value((*value.digits[:dim], (count,), *value.digits[dim + 1 :]), pieces)
        rows, rest = divmod(prod(sizes), step)
        if step > 1 and not rest and start < step and start + (rows - 1) * step < stop:  # a column of rows of `step`
            wide = self.reshape(value, (*value.shape[:dim], rows, step, *value.shape[dim + 1 :]))
            column = self.slice(wide, dim + 1, start, start + 1)
            return self.reshape(column, (*value.shape[:dim], rows, *value.shape[dim + 1 :]))
        boxes = boxes_of(start, stop, sizes)
        if len(boxes) != 1 or step != 1:
            raise Undecided(f"a slice from {start} to {stop} of a dimension with digits {sizes}")
        values = {k: (((k, 1),), low) for k, (low, _) in zip(v, boxes[0], strict=True)}
        pieces = []
        for box, form in value.pieces:
            new = list(box)
            for k, (low, high) in zip(v, boxes[0], strict=True):
                new[k] = (max(box[k][0], low) - low, min(box[k][1], high) - low)
            if all(a < b for a, b in new):
                pieces.append((tuple(new), self.forms.substitute(form, values)))
        digits = tuple(high - low for low, high in boxes[0])
        return self.join_digits(self._value((*value.digits[:dim], digits, *value.digits[dim + 1 :]), pieces))

    def concatenate(self, values: Sequence[Value], dim: int) -> Value:
        """One behind another along a dimension."""
        filled = [v for v in values if prod(v.shape)]
        if not filled:
            shape = list(values[0].shape)
            shape[dim] = sum(v.shape[dim] for v in values if len(v.shape) == len(shape))
            return Value(tuple((n,) for n in shape), ())
        inner = filled[0].digits[dim][1:]
        if any(v.digits[dim][1:] != inner for v in filled):
            raise Undecided("tensors with other digits in a dimension are concatenated along it")
        rest = self._common_digits([Value((*v.digits[:dim], *v.digits[dim + 1 :]), ()) for v in filled])
        pieces, first, size = list[tuple[Box, Form]](), 0, 0
        require_few(sum(len(v.pieces) for v in filled), 4 * MOST_PIECES)
        for value in filled:
            fine = self.refine(value, (*rest[:dim], value.digits[dim], *rest[dim:]))
            v = fine.variables(dim)[0]
            first = v
            values_: dict[int, Index] = {v: (((v, 1),), -size)}
            for box, form in fine.pieces:
                moved = (*box[:v], (box[v][0] + size, box[v][1] + size), *box[v + 1 :])
                pieces.append((moved, self.forms.substitute(form, values_)))
            size += value.digits[dim][0]
        digits = (*rest[:dim], (size, *inner), *rest[dim:])
        return self.join_digits(self._value(digits, join_pieces(self.forms, pieces, first)))

    # ------------------------------------------------------------------ functions

    def _common_digits(self, values: Sequence[Value]) -> Digits:
        digits = list(values[0].digits)
        for value in values[1:]:
            for k, theirs in enumerate(value.digits):
                if tuple(digits[k]) != tuple(theirs):
                    digits[k] = tuple(common_digits(digits[k], theirs)[0])
        return tuple(tuple(d) for d in digits)

    def alike(self, values: Sequence[Value]) -> list[Value]:
        """Tensors of one shape in the digits that all need."""
        digits = self._common_digits(values)
        return [self.refine(v, digits) for v in values]

    def pointwise(self, values: Sequence[Value], function: Callable[[Sequence[Form]], Form]) -> Value:
        """A function of elements at the same place, after broadcasting."""
        rank = max(len(v.digits) for v in values)
        shape = [1] * rank
        for value in values:
            for k, n in enumerate(value.shape):
                i = rank - len(value.digits) + k
                if n != 1 and shape[i] not in (1, n):
                    raise Undecided(f"shapes {[v.shape for v in values]} are not broadcast")
                shape[i] = n if n != 1 else shape[i]
        values = [v if v.shape == tuple(shape) else self.expand(v, shape) for v in values]
        values = self.alike(values)
        digits = values[0].digits
        parts = [(box, [form]) for box, form in values[0].pieces]
        for value in values[1:]:
            parts = [
                (meet(box, other), [*forms, form])
                for box, forms in parts
                for other, form in value.pieces
                if all(a < b for a, b in meet(box, other))
            ]
            require_few(len(parts), 4 * MOST_PIECES)
        pieces = [(box, self.forms.within(function(forms), dict(enumerate(box)))) for box, forms in parts]
        return self.join_digits(self._value(digits, pieces))

    def reduce(self, value: Value, dims: Sequence[int], keep: bool, greatest: bool = False) -> Value:
        """The sum, or the greatest element, over dimensions."""
        gone = [v for d in dims for v in value.variables(d)]
        kept = [v for v in range(len(_flat(value.digits))) if v not in gone]
        sizes = _flat(value.digits)
        cuts = [sorted({e for box, _ in value.pieces for e in box[v]} | {0, sizes[v]}) for v in kept]
        require_few(prod(len(c) - 1 for c in cuts), MOST_PIECES)
        cells = list(product(*(list(pairwise(c)) for c in cuts)))
        digits, names, place = list[tuple[int, ...]](), dict[int, Index](), list[int | None]()
        for d, mine in enumerate(value.digits):
            if d in dims:
                if keep:
                    digits.append((1,))
                    place.append(None)
                continue
            digits.append(mine)
            for v in value.variables(d):
                names[v] = variable(len(place))
                place.append(v)
        pieces = []
        for cell in cells:
            bounds = dict(zip(kept, cell, strict=True))
            inside = [
                (box, form)
                for box, form in value.pieces
                if all(box[v][0] <= bounds[v][0] and bounds[v][1] <= box[v][1] for v in kept)
            ]
            found = list[Form]()
            for box, form in inside:
                if greatest:
                    found.append(self.forms.greatest(form, [(v, box[v]) for v in gone]))
                else:
                    sizes_of = _flat(value.digits)
                    for v in gone:
                        if box[v][1] - box[v][0] == 1 < sizes_of[v]:  # a turn of a loop
                            form = self.forms.substitute(form, {v: constant(box[v][0])})
                        else:
                            form = self.forms.total(form, v, box[v])
                    found.append(form)
            total = (self.forms.larger(found) if greatest else self.forms.plus(*found)) if found else ZERO
            new = tuple((0, 1) if v is None else bounds[v] for v in place)
            pieces.append((new, self.forms.within(self.forms.substitute(total, names), dict(enumerate(new)))))
        return self.join_digits(self._value(tuple(digits), pieces))

    def add(self, *values: Value) -> Value:
        """The sum of values."""
        return self.pointwise(values, lambda f: self.forms.plus(*f))

    def multiply(self, a: Value, b: Value) -> Value:
        """The product of elements."""
        return self.pointwise([a, b], lambda f: self.forms.product(f[0], f[1]))

    def scale(self, a: Value, factor: Fraction) -> Value:
        """A multiple."""
        return Value(a.digits, tuple((box, self.forms.times(form, factor)) for box, form in a.pieces))

    def apply(self, value: Value, function: Callable[[Form], Form]) -> Value:
        """A function of every element."""
        return self.apply_where(value, lambda form, box: function(form))

    def apply_where(self, value: Value, function: Callable[[Form, Mapping[int, tuple[int, int]]], Form]) -> Value:
        """A function of every element where its variables are in ranges."""
        boxes = [(box, dict(enumerate(box)), form) for box, form in value.pieces]
        pieces = [(box, self.forms.within(function(form, here), here)) for box, here, form in boxes]
        return self.join_digits(self._value(value.digits, pieces))
