"""Views: where the elements of a traced array lie in a tensor.

    array[d_0, .., d_n]  =  tensor[ .., sum coef * d + offset, .. ]          (0 where an index leaves the tensor)

Transposes, basic slices, new axes, broadcasting, zero padding and sliding windows are such maps, and they compose:

    slice a:b:s     d  ->  s * d + a                 new axis, broadcast   d occurs nowhere
    window          d  ->  y + k                     padding by p          d  ->  d - p

so they cost no operator; the operator that reads the array gets the composed access map.  NumPy does the same with
strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...program.index import Access, Affine

Terms = tuple[tuple[tuple[int, int], ...], int]
"""An old dimension in new ones: ((new dimension, coefficient), ..), offset."""


def plain(dim: int) -> Terms:
    """The old dimension is the new dimension `dim`."""
    return ((dim, 1),), 0


def constant(value: int) -> Terms:
    """The old dimension stands at one index."""
    return (), value


@dataclass(frozen=True)
class View:
    """`index`: one map per tensor dimension, in axes named after the array's dimensions ("0", "1", ..).

    `shape`: of the array; `extents`: of the tensor; `taps`: dimensions of the array that walk through a window.

    >>> v = whole("t", (10,)).map_dimensions((4, 3), [(((0, 2), (1, 1)), -1)])
    >>> v.access(["y", "k"]).index
    (Affine(terms=(('y', 2), ('k', 1)), offset=-1, whole=False),)
    >>> v.has_padding
    True
    """

    tensor: str
    index: tuple[Affine, ...]
    shape: tuple[int, ...]
    extents: tuple[int, ...]
    taps: frozenset[int] = frozenset()

    def map_dimensions(self, shape: Sequence[int], places: Sequence[Terms], taps: Sequence[int] = ()) -> View:
        """The array of shape `shape` whose old dimension d stands at `places[d]`.  `taps`: new dimensions to mark."""
        index = []
        for old in self.index:
            terms: dict[str, int] = {}
            offset = old.offset
            for name, coef in old.terms:
                new, start = places[int(name)]
                offset += coef * start
                for dim, step in new:
                    terms[str(dim)] = terms.get(str(dim), 0) + coef * step
            index.append(Affine(tuple(terms.items()), offset))
        marked = {dim for d in self.taps for dim, _ in places[d][0]} | set(taps)
        return View(self.tensor, tuple(index), tuple(shape), self.extents, frozenset(marked))

    @property
    def identity(self) -> bool:
        """Whether the array is the tensor."""
        return self.shape == self.extents and all(i.single == str(k) for k, i in enumerate(self.index))

    @property
    def has_padding(self) -> bool:
        """Whether some element lies outside the tensor."""
        box = {str(d): (0, n) for d, n in enumerate(self.shape)}
        return any(
            i.unclipped_interval(box)[0] < 0 or i.unclipped_interval(box)[1] > n
            for i, n in zip(self.index, self.extents, strict=True)
        )

    def covers(self, dim: int) -> bool:
        """Whether the dimension runs over a whole tensor dimension of its own: what lies beyond the array lies
        beyond the tensor.
        """
        touched = [k for k, i in enumerate(self.index) if any(name == str(dim) for name, _ in i.terms)]
        if len(touched) != 1:
            return False
        index, extent = self.index[touched[0]], self.extents[touched[0]]
        return index.terms == ((str(dim), 1),) and index.offset <= 0 and index.offset + self.shape[dim] >= extent

    def access(self, axes: Sequence[str | None]) -> Access:
        """The access of an operator whose axis `axes[d]` runs over dimension d (None: the dimension stands at 0)."""
        index = []
        for i in self.index:
            terms: dict[str, int] = {}
            for name, coef in i.terms:
                axis = axes[int(name)]
                if axis is not None:
                    terms[axis] = terms.get(axis, 0) + coef
            index.append(Affine(tuple(terms.items()), i.offset))
        return Access(self.tensor, tuple(index))


def whole(tensor: str, shape: Sequence[int]) -> View:
    """The tensor itself."""
    return View(tensor, tuple(Affine.axis(str(k)) for k in range(len(shape))), tuple(shape), tuple(shape))


def transpose_view(view: View, order: Sequence[int]) -> View:
    """New dimension k is old dimension `order[k]`."""
    return view.map_dimensions([view.shape[d] for d in order], [plain(list(order).index(d)) for d in range(len(order))])


def broadcast(view: View, shape: Sequence[int]) -> View:
    """The array repeated to `shape` by NumPy's rules; the caller has tested that they allow it."""
    lead = len(shape) - len(view.shape)
    return view.map_dimensions(
        shape, [plain(lead + d) if n == shape[lead + d] else constant(0) for d, n in enumerate(view.shape)]
    )


def insert_dimensions(view: View, at: Sequence[int]) -> View:
    """New dimensions of extent 1 at the positions `at` of the result."""
    rank = len(view.shape) + len(at)
    kept = [d for d in range(rank) if d not in at]
    shape = [1] * rank
    for d, n in zip(kept, view.shape, strict=True):
        shape[d] = n
    return view.map_dimensions(shape, [plain(d) for d in kept])


def drop_dimensions(view: View, dims: Sequence[int]) -> View:
    """Without dimensions of extent 1."""
    kept = [d for d in range(len(view.shape)) if d not in dims]
    return view.map_dimensions(
        [view.shape[d] for d in kept],
        [plain(kept.index(d)) if d in kept else constant(0) for d in range(len(view.shape))],
    )


def pad_view(view: View, before: Sequence[int], after: Sequence[int]) -> View:
    """Zeros around the array; every padded dimension must satisfy `covers`."""
    shape = [b + n + a for b, n, a in zip(before, view.shape, after, strict=True)]
    return view.map_dimensions(shape, [(((d, 1),), -b) for d, b in enumerate(before)])


def windows(view: View, dims: Sequence[int], sizes: Sequence[int]) -> View:
    """`sliding_window_view`: dimension d becomes d + k, the k's are appended."""
    shape, rank = list(view.shape), len(view.shape)
    places = [plain(d) for d in range(rank)]
    for n, (d, size) in enumerate(zip(dims, sizes, strict=True)):
        terms, offset = places[d]
        places[d] = ((*terms, (rank + n, 1)), offset)
        shape[d] -= size - 1
    return view.map_dimensions([*shape, *sizes], places, range(rank, rank + len(sizes)))
