"""Recomputes whole arrays of a selection problem from boxes: the formulas of `verify/plan/entries.py` for
all placements, or all pairs of layouts, at once.

Unions of boxes below a subtree are boxes themselves nearly always (blocks of one axis lie side by side); then

    | B_u minus A_u |  =  | B_u |  -  | A_u and B_u |       in closed form

and where one is not, the pair is counted cell by cell (`boxes.difference`).  Times are exact: integers over one
denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm, prod

import numpy as np

from ...models.machine.machine import Machine
from ...models.machine.parts import DeviceClass
from ...models.problem.selection_problem import FORBIDDEN, Ints
from ...models.program.operators import NodeKind
from ...proofs.container.effort import PART
from ..budget import Budget
from .attention_forms import attention_seconds, form_of
from .bands import pairs_of_boxes
from .box_tables import Layouts, Shape, blocks, operand_boxes, parts, volumes
from .boxes import Box, Digit, difference, open_digits
from .device_work import carrier_rate, measured_by_box
from .effort import charge_hulls, charge_unions
from .entries import STATISTIC_BYTES, seconds
from .measured import of_fetch, of_reduction, product_seconds, units
from .reductions import Choice, Loads, choice_of, reduction

PAIRS = 1 << 20
"""Cells (pairs x subtrees) worked on at a time."""
_SAFE = 1 << 62

Numbered = tuple[Ints, list[Fraction]]
"""Seconds of distinct boxes, and which of them every placement and device has."""
Truths = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def operator_times(shape: Shape, matrices: Ints, machine: Machine, scale: int) -> Ints:
    """Times of an operator under all placements, in units of 1/`scale` s.  Raises `MachineError` if the machine
    lacks the element type's peak.
    """
    found = [
        _times(shape, matrices[part], machine, scale)
        for part in parts(matrices, machine.devices, len(shape.extents) + 4)
    ]
    return np.concatenate(found)


def _times(shape: Shape, matrices: Ints, machine: Machine, scale: int) -> Ints:
    block = blocks(shape.extents, matrices, machine.hierarchy)
    length = block[..., 1] - block[..., 0]
    apart = {shape.rows, *shape.inner, *((shape.band[:2]) if shape.band else ())}
    points = np.asarray(
        length[:, :, [i for i in range(len(shape.extents)) if i not in apart]].prod(axis=2, dtype=np.int64)
    )
    if shape.groups:  # every group has as many points as any other
        points = -(-points * length[:, :, shape.rows] // shape.groups)
    if shape.counts and shape.rows is not None:
        upto = np.array([sum(shape.counts[:k]) for k in range(len(shape.counts) + 1)], dtype=np.int64)
        mine, total = upto[block[:, :, shape.rows, 1]] - upto[block[:, :, shape.rows, 0]], int(upto[-1])
        points = points // total * mine + (points % total * mine + total - 1) // total
    if shape.band:
        query, key, bounds = shape.band
        points = points * pairs_of_boxes(block[:, :, query], block[:, :, key], bounds)
    moved = np.zeros_like(points)
    for k, (operand, size) in enumerate(zip((*shape.inputs, shape.output), shape.sizes, strict=True)):
        rows_only = k == 0 and shape.spec.kind is NodeKind.GATHER
        moved += size * (points if rows_only else volumes(operand_boxes(operand, block)))
    for along, size in shape.turning:
        moved += size * length[:, :, list(along)].prod(axis=2, dtype=np.int64)
    known = np.full(points.shape, -1, dtype=np.int64)
    table = {
        extents: time
        for (function, dtype, extents), time in measured_by_box(machine).items()
        if (function, dtype) == (shape.function, shape.dtype)
    }
    if table and shape.profiled:
        per_box = length[:, :, list(shape.order)]
        for number, extents in enumerate(table):
            if len(extents) == len(shape.order):
                known[(per_box == np.array(extents, dtype=np.int64)).all(axis=2)] = number
    work = points * shape.flops
    if shape.finish and shape.flops:
        work = work + shape.finish * volumes(operand_boxes(shape.output, block))
    by_form = [
        _products(shape, c, length, moved) or _attended(shape, c, length, points, moved) for c in machine.classes
    ]
    amounts = _Amounts(work, moved, known, tuple(table.values()))
    return _rounded(shape, matrices, machine, scale, amounts, length, by_form)


@dataclass(frozen=True)
class _Amounts:
    """Of every placement and device: flops, bytes, and the number of its time in `measured` (seconds), -1 for none."""

    work: Ints
    moved: Ints
    known: Ints
    measured: tuple[Fraction, ...]


def _rounded(
    shape: Shape,
    matrices: Ints,
    machine: Machine,
    scale: int,
    amounts: _Amounts,
    length: Ints,
    by_form: list[Numbered | None],
) -> Ints:
    """The slowest device of every placement, plus its statistics, over one denominator."""
    rates = [
        (1 / c.peak(shape.peak) if shape.flops else Fraction(0), 1 / carrier_rate(shape.function, c), c.launch)
        for c in machine.classes
    ]
    statistics, more = _statistics(shape, matrices, machine, length, scale)
    known, begin = amounts.known, len(amounts.measured)
    measured = [
        *amounts.measured,
        *(time for found in by_form if found for time in found[1]),
    ]  # one more list, by number
    whole = lcm(*(f.denominator for rate in rates for f in rate), *(f.denominator for f in (*measured, *statistics)))
    worst = np.zeros(known.shape[0], dtype=object)
    device_class = np.array([machine.classes.index(machine.class_of(d)) for d in range(machine.devices)])
    for number, (compute, transfer, launch) in enumerate(rates):
        free = (device_class == number)[None, :] & (known < 0)
        if found := by_form[number]:
            known = np.where(free, begin + found[0], known)
            begin += len(found[1])
            continue
        most = [np.where(free, amount, 0).max(axis=1).astype(object) for amount in (amounts.work, amounts.moved)]
        busy = np.maximum(most[0] * int(compute * whole), most[1] * int(transfer * whole))
        time = busy + shape.launches * int(launch * whole)
        worst = np.where(free.any(axis=1), np.maximum(worst, time), worst)
    for number, value in enumerate(measured):
        worst = np.where((known == number).any(axis=1), np.maximum(worst, int(value * whole)), worst)
    total = (worst + np.array([int(f * whole) for f in statistics], dtype=object)) * scale
    return np.array([-(-int(n) // whole) + m for n, m in zip(total, more, strict=True)], dtype=np.int64)


def _products(shape: Shape, at: DeviceClass, length: Ints, moved: Ints) -> Numbered | None:
    """Seconds of a matrix product on a class of devices; None where the class has no measured form of it."""
    form = at.product(shape.peak) if shape.product and shape.flops else None
    if form is None:
        return None
    of, distinct = _numbered([*(_volume(length, part) for part in shape.product), moved])
    times = []
    for *sizes, size in distinct:
        finish = prod(sizes[:3]) * shape.finish / at.peak(shape.peak)
        times.append(product_seconds(form, sizes, finish, size / at.bandwidth))
    return of, times


def _attended(shape: Shape, at: DeviceClass, length: Ints, pairs: Ints, moved: Ints) -> Numbered | None:
    """Seconds of an attention on a class of devices; None where the class has no measured form of it."""
    if shape.attended is None or not shape.flops:
        return None
    backward, rows, keys = shape.attended
    form = form_of(at, shape.peak, backward)
    if form is None:
        return None
    of, distinct = _numbered([pairs, _volume(length, rows), _volume(length, keys), moved])
    times = [
        attention_seconds(form, amounts, shape.flops, shape.band is not None, size / at.bandwidth)
        for *amounts, size in distinct
    ]
    return of, times


def _volume(length: Ints, rows: tuple[int, ...]) -> Ints:
    return np.asarray(length[:, :, list(rows)].prod(axis=2, dtype=np.int64))


def _numbered(columns: list[Ints]) -> tuple[Ints, list[tuple[int, ...]]]:
    """The distinct rows of some numbers per placement and device, and which one each has."""
    keys = np.stack(columns, axis=2).reshape(-1, len(columns))
    seen: dict[tuple[int, ...], int] = {}
    of = np.array([seen.setdefault(tuple(key), len(seen)) for key in keys.tolist()], dtype=np.int64)
    return of.reshape(columns[0].shape), list(seen)


def _statistics(
    shape: Shape, matrices: Ints, machine: Machine, length: Ints, scale: int
) -> tuple[list[Fraction], list[int]]:
    """The all-reduces of a normalise or attention operator's statistics under every placement: seconds on links, and
    units at levels with measured forms.
    """
    if shape.spec.kind not in (NodeKind.NORMALISE, NodeKind.ATTENTION):
        return [Fraction(0)] * matrices.shape[0], [0] * matrices.shape[0]
    rest = [i for i in range(len(shape.extents)) if i not in shape.over]
    values = length[:, :, rest].prod(axis=2, dtype=np.int64).max(axis=1)
    known: dict[tuple[object, int], tuple[Fraction, int]] = {}
    out, count = [], len(shape.spec.statistics)
    for matrix, value in zip(matrices.tolist(), values.tolist(), strict=True):
        digits = open_digits(tuple(map(tuple, matrix)), shape.over)
        if (digits, value) not in known:
            kept = (False,) * len(digits)
            moved = reduction(machine.hierarchy, digits, kept, value, choice_of(machine, STATISTIC_BYTES))
            once = seconds(moved, STATISTIC_BYTES, machine)
            more = units([*of_reduction(machine.hierarchy, digits, kept, value)], STATISTIC_BYTES, machine, scale)
            known[digits, value] = count * once, count * more
        out.append(known[digits, value])
    return [on_links for on_links, _ in out], [more for _, more in out]


def communication_times(
    source: Layouts, target: Layouts, element_bytes: int, machine: Machine, scale: int, budget: Budget | None = None
) -> Ints:
    """Times of the resharding from every layout of `source` to every (closed) layout of `target`, in units of
    1/`scale` s.  `budget`: spent by the pairs that are counted cell by cell.
    """
    if not element_bytes:
        loads, phases = communication_loads(source, target, budget)
        moved = sum((n != 0 for n in (*loads, *phases)), np.zeros(loads[0].shape, dtype=np.int64))
        return np.where(moved > 0, FORBIDDEN, 0)
    loads, phases = communication_loads(source, target, budget, choice_of(machine, element_bytes))
    rates = [
        (Fraction(0), Fraction(0))  # priced by its collectives
        if level.collectives
        else (element_bytes * scale / level.bandwidth, level.latency * scale)
        for level in machine.levels
    ]
    whole = lcm(*(f.denominator for rate in rates for f in rate))
    terms = [
        (int(f * whole), n)
        for rate, pair in zip(rates, zip(loads, phases, strict=True), strict=True)
        for f, n in zip(rate, pair, strict=True)
    ]
    wide = sum(f * max(1, int(n.max(initial=0))) for f, n in terms) + whole >= _SAFE
    total = np.zeros(loads[0].shape, dtype=object if wide else np.int64)
    for f, n in terms:
        total = total + f * n.astype(total.dtype)
    linear = np.asarray(-(-total // whole), dtype=np.int64)
    if not any(level.collectives for level in machine.levels):
        return linear
    if budget is not None:
        budget.charge(PART * linear.size, "collectives")
    return linear + _collectives(source, target, element_bytes, machine, scale, budget)


def _collectives(
    source: Layouts, target: Layouts, element_bytes: int, machine: Machine, scale: int, budget: Budget | None
) -> Ints:
    """Units of the collectives of every pair at levels with measured forms; pairs that agree in all that counts have
    one price.
    """
    hierarchy, loads = source.hierarchy, _fetched(source, target, budget)
    within = loads[-1] == 0
    held, wanted = (np.broadcast_to(n, within.shape) for n in (source.largest[:, None], target.largest[None, :]))
    weights = [[(d.stride * prod(hierarchy[d.level + 1 :]), d.prime) for d in digits] for digits in source.open]
    varies = {w: _varies(target, *w) for row in weights for w in row}
    total = np.zeros(within.shape, dtype=np.int64)
    fetches: dict[tuple[int, ...], int] = {}
    reductions: dict[object, int] = {}
    for i, digits in enumerate(source.open):
        columns = np.stack([held[i], wanted[i], *(load[i] for load in loads)], axis=1).tolist()
        for j, (mine, its, *entering) in enumerate(columns):
            inside = bool(within[i, j])
            if not inside:
                key = (mine, its, *entering)
                if key not in fetches:
                    found = [*of_fetch(hierarchy, entering, mine, its)]
                    fetches[key] = units(found, element_bytes, machine, scale)
                total[i, j] += fetches[key]
            if digits:
                scattered = tuple(inside and bool(varies[w][j]) for w in weights[i])
                size = its if inside else mine
                if (digits, scattered, size) not in reductions:
                    reduced = [*of_reduction(hierarchy, digits, scattered, size)]
                    reductions[digits, scattered, size] = units(reduced, element_bytes, machine, scale)
                total[i, j] += reductions[digits, scattered, size]
    return total


def _fetched(source: Layouts, target: Layouts, budget: Budget | None) -> list[Ints]:
    """What enters the fullest subtree of every level; nothing where every device holds what it wants."""
    loads = [_entering(source, target, level, budget) for level in range(len(source.hierarchy))]
    return [np.where(loads[-1] == 0, 0, load) for load in loads]  # below the last level there are single devices


def communication_loads(
    source: Layouts, target: Layouts, budget: Budget | None = None, choice: Choice | None = None
) -> tuple[list[Ints], list[Ints]]:
    """Elements that enter the fullest subtree, and phases, per level: arrays (layouts of the source, layouts of the
    target).
    """
    levels, loads = len(source.hierarchy), _fetched(source, target, budget)
    within = loads[-1] == 0
    phases = [(load > 0).astype(np.int64) for load in loads]
    for digits in dict.fromkeys(source.open):
        if digits:
            mine = np.array([open_ == digits for open_ in source.open])
            varies = [_varies(target, d.stride * prod(target.hierarchy[d.level + 1 :]), d.prime) for d in digits]
            pattern = sum(
                (v.astype(np.int64) << k for k, v in enumerate(varies)), np.zeros(len(target.open), dtype=np.int64)
            )
            inside = [
                _reduced(source.hierarchy, digits, int(p), int(n), choice)
                for p, n in zip(pattern, target.largest, strict=True)
            ]
            outside = [_reduced(source.hierarchy, digits, 0, int(n), choice) for n in source.largest[mine]]
            for total, kind in ((loads, 0), (phases, 1)):
                for i in range(levels):
                    columns, rows = (
                        np.array([one[kind][i] for one in side], dtype=np.int64) for side in (inside, outside)
                    )
                    total[i][mine] += np.where(within[mine], columns[None, :], rows[:, None])
    return loads, phases


@lru_cache(maxsize=1 << 14)
def _reduced(
    hierarchy: tuple[int, ...], digits: tuple[Digit, ...], pattern: int, elements: int, choice: Choice | None
) -> Loads:
    return reduction(hierarchy, digits, tuple(bool(pattern >> k & 1) for k in range(len(digits))), elements, choice)


def _varies(target: Layouts, weight: int, prime: int) -> Truths:
    """Per layout: some device's box is not that of the device whose digit is 0."""
    device = np.arange(target.boxes.shape[1])
    zeroed = device - device // weight % prime * weight
    return np.asarray((target.boxes != target.boxes[:, zeroed]).any(axis=(1, 2, 3)))


def _entering(source: Layouts, target: Layouts, level: int, budget: Budget | None) -> Ints:
    """max over subtrees u of | B_u minus A_u |, for every pair."""
    below = prod(source.hierarchy[level + 1 :])
    (hull_a, full_a), (hull_b, full_b) = _hulls(source, below, budget), _hulls(target, below, budget)
    need = volumes(hull_b)
    kind = np.int32 if int(need.max(initial=0)) < 1 << 31 else np.int64  # no product of overlaps is larger
    need = need.astype(kind)
    columns = [(*_distinct(hull_a[:, :, k]), *_distinct(hull_b[:, :, k])) for k in range(hull_a.shape[2])]
    out = np.empty((hull_a.shape[0], hull_b.shape[0]), dtype=np.int64)
    step = max(1, PAIRS // max(1, need.size))
    for first in range(0, out.shape[0], step):
        part = slice(first, first + step)
        shared = np.ones((out[part].shape[0], *need.shape), dtype=kind)
        for have, of_a, want, of_b in columns:
            here, number = np.unique(of_a[part], return_inverse=True)
            low = np.maximum(have[here, None, :, 0], want[None, :, :, 0])
            overlap = np.maximum(np.minimum(have[here, None, :, 1], want[None, :, :, 1]) - low, 0).astype(kind)
            shared *= overlap[number[:, None], of_b[None, :]]
        np.subtract(need[None], shared, out=shared)
        out[part] = shared.max(axis=2)
    odd = ~(full_a[:, None] & full_b[None, :])
    if budget is not None and odd.any():
        charge_unions(int(odd.sum()), below, source.boxes, target.boxes, budget)
    for i, j in zip(*np.nonzero(odd), strict=True):
        out[i, j] = max(
            difference(b, a)
            for a, b in zip(_below(source.boxes[i], below), _below(target.boxes[j], below), strict=True)
        )
    return out


def _distinct(intervals: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of (layouts, subtrees, ends), and the number of every layout's."""
    seen: dict[bytes, int] = {}
    of = np.array(
        [seen.setdefault(np.ascontiguousarray(row).tobytes(), len(seen)) for row in intervals], dtype=np.int64
    )
    return intervals[np.unique(of, return_index=True)[1]], of


def _hulls(side: Layouts, below: int, budget: Budget | None) -> tuple[Ints, Truths]:
    """Hull of the boxes below every subtree (layouts, subtrees, dimensions, 2), and per layout whether every union
    is its hull.
    """
    if below == 1:
        return side.boxes, np.ones(side.boxes.shape[0], dtype=bool)
    if below not in side.hulls:
        count, devices, dimensions = side.boxes.shape[:3]
        if budget is not None:
            charge_hulls(count, devices, below, dimensions, budget)
        grouped = side.boxes.reshape(count, devices // below, below, dimensions, 2)
        step = max(1, PAIRS // (devices * below))
        found = [_hull(grouped[first : first + step]) for first in range(0, count, step)]
        side.hulls[below] = np.concatenate([hull for hull, _ in found]), np.concatenate([full for _, full in found])
    return side.hulls[below]


def _hull(grouped: Ints) -> tuple[Ints, Truths]:
    """`_hulls` of boxes (layouts, subtrees, devices below, dimensions, ends)."""
    size = volumes(grouped)
    filled = size > 0
    low = np.where(filled[..., None], grouped[..., 0], np.iinfo(np.int64).max).min(axis=2)
    high = np.where(filled[..., None], grouped[..., 1], 0).max(axis=2)
    hull = np.stack([np.where(np.asarray(filled.any(axis=2))[..., None], low, 0), high], axis=3)
    pairs = (*filled.shape, filled.shape[2])
    same, apart = np.ones(pairs, dtype=bool), ~(filled[..., :, None] & filled[..., None, :])
    for k in range(grouped.shape[3]):
        (a, b), (c, d) = (
            tuple(ends[..., k, e] for e in (0, 1)) for ends in (grouped[:, :, :, None], grouped[:, :, None])
        )
        same &= (a == c) & (b == d)
        apart |= (b <= c) | (d <= a)
    clear = np.asarray((same | apart).all(axis=(2, 3)))  # equal or disjoint, all of them: each box counts once
    first = ~np.tril(same, -1).any(axis=3)
    full = clear & np.asarray((size * first).sum(axis=2) == volumes(hull))
    known: dict[bytes, int] = {}
    for i, u in zip(*np.nonzero(~clear), strict=True):  # overlaps, as of halos
        moved = grouped[i, u] - np.where(filled[i, u, :, None, None], hull[i, u, None, :, :1], 0)
        key = moved.tobytes()
        if key not in known:
            known[key] = difference([tuple(map(tuple, box)) for box in moved.tolist()], ())
        full[i, u] = known[key] == int(volumes(hull[i, u]))
    return hull, full.all(axis=1)


def _below(boxes: Ints, below: int) -> list[tuple[Box, ...]]:
    """Boxes of the devices below every subtree."""
    all_ = [tuple((low, high) for low, high in box) for box in boxes.tolist()]
    return [tuple(all_[first : first + below]) for first in range(0, len(all_), below)]
