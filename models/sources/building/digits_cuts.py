"""Cuts: where the axes of a graph are divided into digits.

An axis of N elements with cuts 1 < c_1 < .. < c_k < N (a divisibility chain 1 | c_1 | .. | c_k | N) is written in mixed
radix: its digits, most significant first, have N/c_k, c_k/c_(k-1), .., c_1 values.

(C1) a dimension and the axis that indexes it alone, over its full extent, are one class and share all cuts  ->
     `CutSystem._join`
(C2) a row-major view: both sides have the same linear positions, so their boundaries and cuts are shared    ->
     `CutSystem.accept`
(C3) a slice or a part of a concatenation, index = axis + offset: cuts that divide the offset are shared     ->
     `CutSystem._shift`
(C4) every other read must stay affine: `split_index` finds no carry between the digits of the dimension     ->
     `CutSystem._settle`

A view whose cuts would break a chain or (C4) is rejected as a whole and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import prod

from ...program.attention import band
from ...program.graph import Graph, GraphError
from ...program.index import Affine
from ...program.operators import NodeKind, Operator

Place = tuple[str, str, str]
"""("dim", tensor, position) or ("axis", operator, axis name)."""


class Conflict(Exception):
    """The cuts asked for contradict each other; never leaves this module."""


def is_view(op: Operator) -> bool:
    """Whether the operator is a row-major view of its whole input (a reshape).

    >>> from .builder import Builder
    >>> g = Builder("g")
    >>> _ = g.view("flat", g.input("x", (2, 3)), (6,))
    >>> is_view(g.operators[0])
    True
    """
    return (
        op.kind is NodeKind.LAYOUT
        and len(op.inputs) == 1
        and bool(op.inputs[0].index)
        and all(i.whole for i in op.inputs[0].index)
    )


def digit_extents(extent: int, cuts: Sequence[int]) -> tuple[int, ...]:
    """Digits of an axis, most significant first.

    >>> digit_extents(2304, (64, 768))
    (3, 12, 64)
    """
    bounds = [1, *cuts, extent]
    return tuple(bounds[i + 1] // bounds[i] for i in range(len(bounds) - 2, -1, -1)) if cuts else (extent,)


def split_index(terms: Sequence[tuple[str, int, int]], offset: int, cuts: Sequence[int]) -> tuple[Affine, ...] | None:
    """The index `sum weight * axis + offset` written per digit of a dimension cut at `cuts`, most significant first.

    `terms` are (axis, weight, extent).  None when some digit is not affine in the axes (a carry is possible).

    >>> split_index([("h", 64, 12), ("e", 1, 64)], 768, (64, 768))
    (Affine(terms=(), offset=1, whole=False), Affine(terms=(('h', 1),), offset=0, whole=False), Affine(terms=(('e',
    1),), offset=0, whole=False))
    >>> split_index([("y", 2, 8), ("k", 1, 3)], -1, (4,)) is None
    True
    """
    bounds = [1, *cuts]
    digits: list[Affine] = []
    rest, remaining = offset, [t for t in terms if t[2] > 1 or not cuts]
    for i, low in enumerate(bounds):
        high = bounds[i + 1] if i + 1 < len(bounds) else None
        own = [t for t in remaining if high is None or t[1] < high]
        if any(w % low for _, w, _ in own):
            return None
        constant = rest // low if high is None else (rest % high) // low
        if high is not None and (sum(w * (n - 1) for _, w, n in own) + rest % high) // high != 0:
            return None
        rest -= constant * low
        remaining = [t for t in remaining if t not in own]
        digits.append(Affine(tuple((a, w // low) for a, w, _ in own), constant))
    return tuple(reversed(digits))


def groups(left: Sequence[int], right: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Shortest runs of dimensions with equal products, dimensions of extent 1 left out.  The products must be equal.

    >>> groups((8, 1, 12, 64), (8, 768))
    [([0], [0]), ([2, 3], [1])]
    """
    i, j, out = 0, 0, []
    a, b = [k for k, n in enumerate(left) if n > 1], [k for k, n in enumerate(right) if n > 1]
    while i < len(a) or j < len(b):
        mine, theirs, p, q = [a[i]], [b[j]], left[a[i]], right[b[j]]
        i, j = i + 1, j + 1
        while p != q:
            if p < q:
                mine.append(a[i])
                p, i = p * left[a[i]], i + 1
            else:
                theirs.append(b[j])
                q, j = q * right[b[j]], j + 1
        out.append((mine, theirs))
    return out


@dataclass(frozen=True)
class _Group:
    """One run of a view: (class member, stride in the run, extent) of both sides."""

    members: tuple[tuple[Place, int, int], ...]


@dataclass(frozen=True)
class _Read:
    """An access of one dimension that is more than one axis: sum of coef * axis + offset."""

    dim: Place
    extent: int
    terms: tuple[tuple[Place, str, int, int], ...]
    offset: int


class CutSystem:
    """Classes of dimensions and axes of a graph, and their cuts."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._parent: dict[Place, Place] = {}
        self._extent: dict[Place, int] = {
            **{("dim", t.name, str(k)): n for t in graph.tensors for k, n in enumerate(t.shape)},
            **{("axis", op.name, a.name): a.extent for op in graph.operators for a in op.axes},
        }
        self._cuts: dict[Place, tuple[int, ...]] = {}
        self._fixed: set[Place] = set()
        self._products = {
            ("dim", a.tensor, str(k))
            for op in graph.operators
            if op.kind is NodeKind.CONTRACT
            for a in op.inputs
            for k in range(len(a.index))
        }
        self._groups: dict[Place, list[_Group]] = {}
        self._reads: dict[Place, list[_Read]] = {}
        self._undo: dict[Place, tuple[int, ...]] = {}
        self._dirty: list[Place] = []
        reads = list(chain.from_iterable(self._collect(op) for op in graph.operators))
        for name, value in graph.state:  # a next value is stored where its parameter was
            for k in range(len(graph.tensor(name).shape)):
                self._join(("dim", name, str(k)), ("dim", value, str(k)))
        self._fixed = {self._root(p) for p in self._fixed}
        for read in reads:
            for place in {self._root(p) for p in (read.dim, *(t[0] for t in read.terms))}:
                self._reads.setdefault(place, []).append(read)
        for read in reads:
            self._hint(read)

    def _root(self, place: Place) -> Place:
        at = place
        while (up := self._parent.get(at, at)) != at:
            at = up
        self._parent[place] = at
        return at

    def _join(self, a: Place, b: Place) -> None:
        self._parent[self._root(b)] = self._root(a)

    def _collect(self, op: Operator) -> list[_Read]:
        """Join what an operator indexes plainly; return its other reads."""
        for name in ("rows", "axis", "along"):
            if isinstance(value := op.attribute(name, ""), str) and value:
                self._fixed.add(("axis", op.name, value))
        if op.kind is NodeKind.NORMALISE and not op.spec.statistics:  # these go along one axis, element after element
            self._fixed |= {("axis", op.name, a) for a in op.over}
        if op.kind is NodeKind.ATTENTION and (seen := band(op)) is not None:  # a band counts positions
            self._fixed |= {("axis", op.name, seen.query), ("axis", op.name, seen.key)}
        if (kept := op.attribute("positional", ())) and isinstance(
            kept, tuple
        ):  # these axes, and what is read whole, keep the user's shape
            self._fixed |= {("axis", op.name, str(a)) for a in kept}
            self._fixed |= {("dim", a.tensor, str(k)) for a in op.inputs for k, i in enumerate(a.index) if i.whole}
        reads: list[_Read] = []
        for a in (op.output, *(() if is_view(op) else op.inputs)):
            for k, index in enumerate(a.index):
                dim, extent = ("dim", a.tensor, str(k)), self.graph.tensor(a.tensor).shape[k]
                if index.single is not None and op.axis(index.single).extent == extent:
                    self._join(dim, ("axis", op.name, index.single))
                elif not index.whole:
                    terms = tuple((("axis", op.name, t), t, c, op.axis(t).extent) for t, c in index.terms)
                    reads.append(_Read(dim, extent, terms, index.offset))
        return reads

    def cuts(self, place: Place) -> tuple[int, ...]:
        """Cuts of a dimension or axis, ascending."""
        return self._cuts.get(self._root(place), ())

    def axis_digits(self, op: Operator, axis: str) -> tuple[tuple[int, int], ...]:
        """(weight, extent) of the digits of an axis, most significant first."""
        place = ("axis", op.name, axis)
        cuts = self.cuts(place)
        return tuple(zip((*reversed(cuts), 1), digit_extents(op.axis(axis).extent, cuts), strict=True))

    def dim_digits(self, tensor: str) -> list[tuple[int, ...]]:
        """Digits of every dimension of a tensor."""
        shape = self.graph.tensor(tensor).shape
        return [digit_extents(n, self.cuts(("dim", tensor, str(k)))) for k, n in enumerate(shape)]

    def accept(self, op: Operator) -> bool:
        """Let the view `op` share its boundaries (C2).  False, and nothing changed, if that is impossible."""
        x, y = op.inputs[0].tensor, op.output.tensor
        left, right = self.graph.tensor(x).shape, self.graph.tensor(y).shape
        if prod(left) != prod(right):
            raise GraphError(f"operator {op.name!r}", f"cannot view {x!r} of shape {left} as {right}")
        found: list[_Group] = []
        for mine, theirs in groups(left, right):
            members: list[tuple[Place, int, int]] = []
            for tensor, shape, dims in ((x, left, mine), (y, right, theirs)):
                strides = [*accumulate((shape[k] for k in reversed(dims)), lambda p, n: p * n, initial=1)][-2::-1]
                members += [(("dim", tensor, str(k)), s, shape[k]) for k, s in zip(dims, strides, strict=True)]
            found.append(_Group(tuple(members)))
        for group in found:
            self._register(group, True)
        if self._attempt(found, ()):
            return True
        for group in found:
            self._register(group, False)
        return False

    def _register(self, group: _Group, add: bool) -> None:
        for place in {self._root(m[0]) for m in group.members}:
            known = self._groups.setdefault(place, [])
            known.append(group) if add else known.remove(group)

    def _hint(self, read: _Read) -> None:
        """An equal piece of a dimension cuts it at the size of the piece, if nothing forbids it; so do the patches
        of a contraction.
        """
        if len(read.terms) == 2 and read.offset == 0 and read.dim in self._products:
            (_, _, step, places), (_, _, one, taps) = sorted(read.terms, key=lambda t: -t[2])
            if (
                one == 1 and taps == step and places * step == read.extent
            ):  # windows side by side: a reshape in disguise (patches of an image)
                self._attempt((), ((read.dim, step),))
        if len(read.terms) == 1 and read.terms[0][2] == 1:
            n = read.terms[0][3]
            if 1 < n < read.extent and read.extent % n == 0 and read.offset >= 0 and read.offset % n == 0:
                self._attempt((), ((read.dim, n),))

    def _attempt(self, found: Iterable[_Group], wanted: Iterable[tuple[Place, int]]) -> bool:
        self._undo, self._dirty = {}, []
        try:
            for group in found:
                self._share(group)
            for place, cut in wanted:
                self._add(place, cut)
            self._settle()
        except Conflict:
            self._cuts.update(self._undo)
            return False
        return True

    def _fits(self, place: Place, cut: int) -> bool:
        root = self._root(place)
        bounds = [1, *sorted({*self._cuts.get(root, ()), cut}), self._extent[root]]
        return root not in self._fixed and all(0 < b < c and c % b == 0 for b, c in pairwise(bounds))

    def _add(self, place: Place, cut: int) -> None:
        root = self._root(place)
        old = self._cuts.get(root, ())
        if cut in old:
            return
        if not self._fits(root, cut):
            raise Conflict
        self._undo.setdefault(root, old)
        self._cuts[root] = tuple(sorted((*old, cut)))
        self._dirty.append(root)

    def _share(self, group: _Group) -> None:
        """(C2): every linear boundary inside a member becomes a cut of it."""
        linear = {s for _, s, _ in group.members} | {s * c for p, s, _ in group.members for c in self.cuts(p)}
        for place, stride, extent in group.members:
            for f in sorted(linear):
                if stride < f < stride * extent:
                    if f % stride:
                        raise Conflict
                    self._add(place, f // stride)

    def _shift(self, read: _Read) -> None:
        """(C3), as far as the chains allow; what is needed is decided by (C4)."""
        if len(read.terms) != 1 or read.terms[0][2] != 1:
            return
        axis = read.terms[0][0]
        # a slice lends its digits to what it slices (fused projections); a concatenation keeps them: its flat parts can
        # be read in digits
        ways = [(read.dim, axis), (axis, read.dim)] if read.terms[0][3] < read.extent else [(read.dim, axis)]
        for source, target in ways:
            for cut in self.cuts(source):
                if read.offset % cut == 0 and self._fits(target, cut):
                    self._add(target, cut)

    def _settle(self) -> None:
        """Propagate to a fixed point, then test (C4) wherever a cut appeared."""
        touched: dict[Place, None] = {}
        while self._dirty:
            root = self._dirty.pop()
            touched[root] = None
            for group in self._groups.get(root, ()):
                self._share(group)
            for read in self._reads.get(root, ()):
                self._shift(read)
        for root in touched:
            for read in self._reads.get(root, ()):
                if self.index(read.terms, read.offset, self.cuts(read.dim)) is None:
                    raise Conflict

    def index(
        self, terms: Iterable[tuple[Place, str, int, int]], offset: int, cuts: Sequence[int]
    ) -> tuple[Affine, ...] | None:
        """`split_index` after the axes of `terms` (place, name, coefficient, extent) have become digits."""
        fine = [
            (name, coef * weight, extent)
            for place, axis, coef, n in terms
            for name, weight, extent in named_digits(axis, n, self.cuts(place))
        ]
        return split_index(fine, offset, cuts)


def named_digits(axis: str, extent: int, cuts: Sequence[int]) -> list[tuple[str, int, int]]:
    """(name, weight, extent) of the digits of an axis: `k` stays `k`, or becomes `k.0`, `k.1`, .. (most significant
    first).

    >>> named_digits("k", 9216, (6, 36))
    [('k.0', 36, 256), ('k.1', 6, 6), ('k.2', 1, 6)]
    """
    if not cuts:
        return [(axis, 1, extent)]
    weights = (*reversed(cuts), 1)
    return [(f"{axis}.{i}", w, n) for i, (w, n) in enumerate(zip(weights, digit_extents(extent, cuts), strict=True))]
