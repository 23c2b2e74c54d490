"""How much a resharding moves: loads per level for every pair of layouts at once.

A resharding takes a tensor from layout A (perhaps partial) to closed layout B.  Let A_d, B_d be the boxes of
device d; for a subtree u of level i (the devices that share their coordinates at levels 0..i) let A_u, B_u be the
unions over its devices; every level-i subtree hangs on one link, which must carry what enters it.  Volumes in elements.

(L1) fetch, A closed:            load_i = max over level-i subtrees u of |B_u \\ A_u|               -> fetch_loads()
     each element enters each subtree that needs it once; nothing moves (all loads 0) if B_d is inside A_d for all d
(L2) reduction, A with open digits o_1 .. o_m (primes) at levels l(o):                              -> reduction_loads()
     inside  =  B_d inside A_d for every d.   digit o is *scattered* if inside and some B_d changes with o
     (some interval of B_d differs from that of the device whose digit o is set to 0), else it is *replicated*
     g_j = product of the open primes at level j, r_j = product of the replicated ones, w_i = devices below a level-i
     subtree t = max_d |B_d| if inside else max_d |A_d|;  q = ceil(t / prod_j r_j);  n := q prod_j g_j
     reduce-scatter, level j = last .. 0, if g_j > 1:   n := n / g_j,  load_i += w_i (g_j - 1) n  for i >= j
     all-gather,     level j = 0 .. last, if r_j > 1:   load_i += w_i (r_j - 1) n for i >= j,  n := n r_j
     an all-reduce, or its parts, over several levels at once instead: `reduction_programs`, where the machine says so
     q is the largest part: where parts are unequal less is sent (`backends.transport.received`), and this is an upper
     bound
(L3) a partial tensor that is not inside is reduced to A without its open digits, then fetched: the loads of (L2), then
     (L1)
(L4) phases_i counts the collective phases whose outermost level is i: one per reduce-scatter or all-gather at level i,
     (none where n = 0: nothing is wanted), one for the fetch if its load_i is positive

    time = sum_i  element_bytes * load_i / bandwidth_i  +  latency_i * phases_i                     -> models.cost.cost

Where a level has measured forms, the collectives at that level take the place of its terms: `collective_steps.Step`.

(L1) is the least that hierarchical links can carry on the receiving side; `models.communication.resharding` derives
     steps that reach
it.  The sending side is not priced (flag `receive-side`).

Entries are exact integers.  Where |B_u| is the same for all u, and the overlap |A_u & B_u| varies with u in one
dimension at most or is zero for some u in one, the maximum over subtrees factors over dimensions; other pairs are
enumerated.  Where one axis runs through two dimensions of an operand (a diagonal), A_u and B_u are no products of
intervals: their cells are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..layout.layout import LayoutSet, OpenDigit, OpenDigits
from ..problem.rows import distinct_rows
from ..problem.selection_problem import Ints, ProblemError
from .collective_steps import Step, fetch_steps, reduction_steps
from .reduction_programs import Chooser, chosen_loads

_INT64_SAFE = 1 << 62
"""Loads stay below this, so that int64 cannot wrap."""

Flags = NDArray[np.bool_]

_BLOCK = 1 << 16
"""Pairs of layouts that are priced at once: the temporaries stay in cache, and are not asked of the system again."""

_CHUNK = 1 << 16
"""Entries enumerated at a time: the temporaries stay in cache."""

_PAIRS = 1 << 22
"""Pairs of layouts enumerated at a time."""


@dataclass(frozen=True, eq=False)
class PairLoads:
    """`loads[i]`, `phases[i]`: shape (layouts of A, layouts of B) per level i; loads in elements.  `steps`: the
    collectives of the levels that were asked for.
    """

    loads: tuple[Ints, ...]
    phases: tuple[Ints, ...]
    steps: tuple[Step, ...] = ()


def subtrees(hierarchy: tuple[int, ...], level: int) -> int:
    """Number of level-`level` subtrees.

    >>> subtrees((4, 8), 0), subtrees((4, 8), 1)
    (4, 32)
    """
    return prod(hierarchy[: level + 1])


def pair_loads(a: LayoutSet, b: LayoutSet, measured: Sequence[int] = (), chooser: Chooser | None = None) -> PairLoads:
    """Loads and phases of every resharding from a layout of `a` to a layout of `b` (closed); the collectives of the
    levels `measured`.  `chooser`: of the programs of reductions.
    """
    levels, shape = len(a.hierarchy), (len(a), len(b))
    loads = tuple(np.zeros(shape, dtype=np.int64) for _ in range(levels))
    phases = tuple(np.zeros(shape, dtype=np.int64) for _ in range(levels))
    steps: list[Step] = []
    for rows, found in pair_blocks(a, b, measured, max(1, prod(shape)), chooser):
        for i in range(levels):
            loads[i][rows], phases[i][rows] = found.loads[i], found.phases[i]
        steps += [replace(step, rows=rows) for step in found.steps]
    return PairLoads(loads, phases, tuple(steps))


def pair_blocks(
    a: LayoutSet,
    b: LayoutSet,
    measured: Sequence[int] = (),
    entries: int = _BLOCK,
    chooser: Chooser | None = None,
) -> Iterator[tuple[Ints, PairLoads]]:
    """`pair_loads` in blocks of some `entries`: numbers of layouts of `a`, which share their open digits, and what
    holds for them.
    """
    fetch, of_row = _fetch_loads(a, b)
    volume_a, volume_b = a.volumes(), b.volumes()
    changes = {digit: changes_along(b, digit) for digit in sorted({d for digits in a.signatures for d in digits})}
    size = max(1, entries // max(1, len(b)))
    for s, digits in enumerate(a.signatures):
        every = np.nonzero(a.signature == s)[0]
        for start in range(0, every.size, size):
            rows = every[start : start + size]
            loads = [f[of_row[rows]] for f in fetch]
            inside = loads[-1] == 0
            for f in loads[:-1]:
                f[inside] = 0
            phases = [(f > 0).astype(np.int64) for f in loads]
            steps: list[Step] = []
            if measured:
                steps += fetch_steps([f.copy() for f in loads], volume_a[rows], volume_b, a.hierarchy, measured)
            if digits:
                found = reduction_loads(digits, b, inside, volume_a[rows], volume_b, changes, measured, chooser)
                steps += found.steps
                for i in range(len(loads)):
                    loads[i] += found.loads[i]
                    phases[i] += found.phases[i]
            yield rows, PairLoads(tuple(loads), tuple(phases), tuple(steps))


def reduction_loads(
    digits: OpenDigits,
    b: LayoutSet,
    inside: Flags,
    volume_a: Ints,
    volume_b: Ints,
    changes: Mapping[OpenDigit, Flags] | None = None,
    measured: Sequence[int] = (),
    chooser: Chooser | None = None,
) -> PairLoads:
    """(L2) for the rows that share the open `digits`: loads and phases per level, each of shape `inside.shape`.

    `changes`: `changes_along` of every digit, where that is known.
    """
    hierarchy = b.hierarchy
    levels = len(hierarchy)
    varies = np.stack([changes_along(b, d) if changes is None else changes[d] for d in digits], axis=1)
    size = np.where(inside, volume_b[None, :], volume_a[:, None])
    g = [prod(d.prime for d in digits if d.level == j) for j in range(levels)]
    r = []
    for j in range(levels):
        kept = np.ones(inside.shape, dtype=np.int64)
        for k, d in enumerate(digits):
            if d.level == j:
                kept *= np.where(inside & varies[None, :, k], 1, d.prime)
        r.append(kept)
    q = -(-size // np.prod(np.stack(r), axis=0))
    check_reduction(int(q.max(initial=0)) * prod(g), hierarchy)
    loads, phases, _ = chosen_loads(chooser, hierarchy, g, r, q)
    steps = reduction_steps(q, g, r, hierarchy, measured) if measured else []
    return PairLoads(tuple(loads), tuple(phases), tuple(steps))


def check_reduction(elements: int, hierarchy: tuple[int, ...]) -> None:
    """Raise `ProblemError` if the loads of a reduction of (L2) that starts with n = `elements` may not fit: each
    phase adds at most w_0 n.
    """
    if elements * 2 * len(hierarchy) * prod(hierarchy[1:]) >= _INT64_SAFE:
        place = f"reduction of {elements} elements on {'x'.join(map(str, hierarchy))} devices"
        raise ProblemError(place, "what it moves is not below 2**62 elements", "plan a smaller instance")


def changes_along(b: LayoutSet, digit: OpenDigit) -> Flags:
    """Per layout: does any box differ from the box of the device whose `digit` is set to 0?  shape (layouts,)."""
    weight = digit.stride * prod(b.hierarchy[digit.level + 1 :])
    out = np.zeros(len(b), dtype=bool)
    for k, table in enumerate(b.dims):
        by_digit = table.reshape(
            table.shape[0], -1, digit.prime, 2 * weight
        )  # (tables, upper digits, the digit, lower digits and ends)
        out |= (by_digit[:, :, 1:] != by_digit[:, :, :1]).reshape(table.shape[0], -1).any(axis=1)[b.codes[:, k]]
    return out


def fetch_loads(a: LayoutSet, b: LayoutSet) -> list[Ints]:
    """(L1) for every pair, per level."""
    loads, of_row = _fetch_loads(a, b)
    return [load[of_row] for load in loads]


def _fetch_loads(a: LayoutSet, b: LayoutSet) -> tuple[list[Ints], Ints]:
    """(L1) for every box of A, per level, and the box of every layout of A: rows that differ in open digits alone are
    computed once.
    """
    boxes, of_row = distinct_rows(a.codes)
    out = []
    for level in range(len(a.hierarchy)):
        width = subtrees(a.hierarchy, level)
        if (a.coupled or b.coupled) and width < prod(a.hierarchy):
            out.append(_coupled_load(boxes, a.dims, b, width))
        else:
            out.append(_level_load(boxes, a.dims, b, width))
    return out, of_row


def _level_load(codes: Ints, dims: Sequence[Ints], b: LayoutSet, width: int) -> Ints:
    """Load of one level with `width` subtrees for the boxes `codes` over `dims` and every layout of `b`."""
    dimensions = [
        _shared(_Table(table_a), _Table(table_b), width) for table_a, table_b in zip(dims, b.dims, strict=True)
    ]
    total = np.ones(len(b), dtype=np.int64)
    uneven = np.zeros(len(b), dtype=bool)
    for k, shared in enumerate(dimensions):
        total *= shared.need[b.codes[:, k]]
        uneven |= shared.uneven[b.codes[:, k]]
    load = np.empty((codes.shape[0], len(b)), dtype=np.int64)
    irregular = np.empty(load.shape, dtype=bool)
    size = max(1, _BLOCK // max(1, len(b)))
    for start in range(0, codes.shape[0], size):  # temporaries stay in cache
        part = codes[start : start + size]
        held = np.ones((part.shape[0], len(b)), dtype=np.int64)
        varying = np.zeros(held.shape, dtype=np.int8)
        for k, shared in enumerate(dimensions):
            held *= shared.low[part[:, k]].take(b.codes[:, k], axis=1)
            if shared.varies.any():
                varying += shared.varies[part[:, k]].take(b.codes[:, k], axis=1)
        load[start : start + size] = total[None, :] - held
        irregular[start : start + size] = uneven[None, :] | ((varying > 1) & (held > 0))
    if irregular.any():
        _enumerate(
            load,
            irregular,
            [_Overlaps(table_a, table_b, width) for table_a, table_b in zip(dims, b.dims, strict=True)],
            codes,
            b,
            width,
        )
    return load


@dataclass(frozen=True, eq=False)
class _Table:
    """The intervals of one dimension under all layouts, equal where they are: operators share them."""

    intervals: Ints

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Table) and np.array_equal(self.intervals, other.intervals)

    def __hash__(self) -> int:
        return hash((self.intervals.shape, self.intervals.tobytes()))


@dataclass(frozen=True, eq=False)
class _Shared:
    """One dimension of two layout sets: |B_u| of the first subtree, whether others differ (n_b); least |A_u & B_u|,
    whether others differ (n_a, n_b).
    """

    need: Ints
    uneven: Flags
    low: Ints
    varies: Flags


@lru_cache(maxsize=64)
def _shared(a: _Table, b: _Table, width: int) -> _Shared:
    overlaps = _Overlaps(a.intervals, b.intervals, width)
    every = np.arange(b.intervals.shape[0])
    need = overlaps.need(every)
    low, varies = (
        np.empty((a.intervals.shape[0], every.size), dtype=np.int64),
        np.empty((a.intervals.shape[0], every.size), dtype=bool),
    )
    for i in range(a.intervals.shape[0]):  # one at a time: the temporaries stay in cache
        share = overlaps.share(np.full(every.size, i), every)
        low[i] = share.min(axis=1)
        varies[i] = (share != share[:, :1]).any(axis=1)
    return _Shared(need[:, 0].copy(), (need != need[:, :1]).any(axis=1), low, varies)


def _coupled_load(codes: Ints, dims: Sequence[Ints], b: LayoutSet, width: int) -> Ints:
    """`_level_load` for unions that are no products: cells between the ends of all intervals, one pair of layouts
    after the other.
    """
    load = np.empty((codes.shape[0], len(b)), dtype=np.int64)
    for i, row in enumerate(codes):
        have = [dims[k][c] for k, c in enumerate(row)]
        for j, column in enumerate(b.codes):
            need = [b.dims[k][c] for k, c in enumerate(column)]
            points = [
                np.unique(np.concatenate([x.reshape(-1), y.reshape(-1)])) for x, y in zip(have, need, strict=True)
            ]
            weight: Ints = np.ones((), dtype=np.int64)
            for p in points:
                weight = weight[..., None] * np.diff(p)
            missing = _cells(need, points, width) & ~_cells(have, points, width)
            load[i, j] = (missing * weight[..., None]).reshape(-1, width).sum(axis=0).max()
    return load


def _cells(intervals: Sequence[Ints], points: Sequence[Ints], width: int) -> Flags:
    """Cells inside the union of every subtree's boxes: shape (cells of dimension 0, .., width)."""
    inside: Flags = np.ones((intervals[0].shape[0],), dtype=bool)
    for table, p in zip(intervals, points, strict=True):
        inside = inside[..., None, :] & ((table[:, 0] <= p[:-1, None]) & (table[:, 1] >= p[1:, None]))
    return np.asarray(inside.reshape(*inside.shape[:-1], width, -1).any(axis=-1))


def _enumerate(
    load: Ints, irregular: Flags, overlaps: Sequence[_Overlaps], codes: Ints, b: LayoutSet, width: int
) -> None:
    """Fill the irregular entries of `load`: subtree by subtree for the dimensions in which subtrees differ, once
    for all pairs that agree in them.
    """
    rows, cols = np.nonzero(irregular)
    for start in range(0, rows.size, _PAIRS):
        r, c = rows[start : start + _PAIRS], cols[start : start + _PAIRS]
        group, labels = np.zeros(r.size, dtype=np.int64), np.empty((r.size, len(overlaps)), dtype=np.int64)
        want, have = (
            np.ones(r.size, dtype=np.int64),
            np.ones(r.size, dtype=np.int64),
        )  # what the other dimensions multiply to
        for k, o in enumerate(overlaps):
            which, label = np.unique(codes[r, k] * o.b.shape[0] + b.codes[c, k], return_inverse=True)
            label = label.reshape(-1)
            need, share = o.need(which % o.b.shape[0]), o.share(*np.divmod(which, o.b.shape[0]))
            varies = ((need != need[:, :1]) | (share != share[:, :1])).any(axis=1)
            want *= np.where(varies, 1, need[:, 0])[label]
            have *= np.where(varies, 1, share[:, 0])[label]
            labels[:, k] = np.where(varies, which, -1)[label]
            group = np.unique(
                group * (which.size + 1) + np.where(varies[label], label, which.size), return_inverse=True
            )[1].reshape(-1)
        _, first = np.unique(group, return_index=True)
        load[r, c] = _slowest(labels[first], group, want, have, overlaps, width)


def _slowest(labels: Ints, group: Ints, want: Ints, have: Ints, overlaps: Sequence[_Overlaps], width: int) -> Ints:
    """max over subtrees u of  want * need_u - have * share_u  for every pair; `labels[group]`: per dimension the
    pair of intervals, or -1.
    """
    found = np.zeros(group.size, dtype=np.int64)
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(labels.shape[0] + 1))
    step = max(1, _CHUNK // width)
    for start in range(0, labels.shape[0], step):
        part = labels[start : start + step]
        needs, shares = np.ones((part.shape[0], width), dtype=np.int64), np.ones((part.shape[0], width), dtype=np.int64)
        for k, o in enumerate(overlaps):
            at = np.flatnonzero(part[:, k] >= 0)
            if at.size:
                i, j = np.divmod(part[at, k], o.b.shape[0])
                needs[at] *= o.need(j)
                shares[at] *= o.share(i, j)
        members = order[ends[start] : ends[start + part.shape[0]]]
        mine = group[members] - start
        while needs.max(initial=-1) >= 0:  # every value of need with the least share there, the largest first; -1: done
            largest = needs.max(axis=1)
            here = needs == largest[:, None]
            least = np.where(here, shares, np.iinfo(np.int64).max).min(axis=1)
            live = largest[mine] >= 0
            m = members[live]
            found[m] = np.maximum(found[m], want[m] * largest[mine[live]] - have[m] * least[mine[live]])
            needs[here] = -1
    return found


class _Overlaps:
    """|B_u| and |A_u & B_u| of one dimension for the `width` subtrees of a level, for tables `a` (n_a, devices, 2)
    and `b`.
    """

    def __init__(self, a: Ints, b: Ints, width: int) -> None:
        self.a, joined_a = _unions(a, width)
        self.b, joined_b = _unions(b, width)
        self.counted: tuple[Ints, Ints] | None = None
        if not (joined_a and joined_b):
            points = np.unique(np.concatenate([a.reshape(-1), b.reshape(-1)]))
            weight = np.diff(points)
            in_a, in_b = _covered(a, points, width), _covered(b, points, width)
            self.counted = (
                np.asarray((in_b * weight).sum(axis=2), dtype=np.int64),
                np.einsum("aus,bus->abu", in_a * weight, in_b),
            )

    def need(self, j: Ints) -> Ints:
        """|B_u| under each of the tables `j`: shape (j, width)."""
        return self.b[j, :, 1] - self.b[j, :, 0] if self.counted is None else self.counted[0][j]

    def share(self, i: Ints, j: Ints) -> Ints:
        """|A_u & B_u| under each pair of tables `i`, `j`: shape (i, width)."""
        if self.counted is not None:
            return self.counted[1][i, j]
        low = np.maximum(self.a[i, :, 0], self.b[j, :, 0])
        return np.asarray(np.maximum(np.minimum(self.a[i, :, 1], self.b[j, :, 1]) - low, 0))


def _covered(table: Ints, points: Ints, width: int) -> Ints:
    """0/1 per (entry, subtree, segment): the union over the subtree's devices covers the segment."""
    n = table.shape[0]
    grouped = table.reshape(n, width, -1, 2)
    inside = (grouped[..., :1] <= points[:-1]) & (grouped[..., 1:] >= points[1:])
    return np.asarray(inside.any(axis=2), dtype=np.int64)


def _unions(table: Ints, width: int) -> tuple[Ints, bool]:
    """Hull of the union over every subtree (n, width, 2), and whether every union fills its hull."""
    n = table.shape[0]
    grouped = table.reshape(n, width, -1, 2)
    if grouped.shape[2] == 1:
        return grouped[:, :, 0, :], True
    empty = grouped[..., 0] >= grouped[..., 1]
    big = np.iinfo(np.int64).max
    low = np.where(empty, big, grouped[..., 0])
    high = np.where(empty, -1, grouped[..., 1])
    order = np.argsort(low, axis=2, kind="stable")
    low, high = np.take_along_axis(low, order, 2), np.take_along_axis(high, order, 2)
    reach = np.maximum.accumulate(high, axis=2)
    gap = (low[..., 1:] > reach[..., :-1]) & (low[..., 1:] != big)
    hull = np.stack([low[..., 0], reach[..., -1]], axis=2)
    hull[reach[..., -1] < 0] = 0
    return hull, not bool(gap.any())
