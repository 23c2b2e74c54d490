"""What is too large to be planned and checked, before anything is built; the planner asks first, the
checker enforces it.

What `models.cost.selection` builds grows with the number of placements K, the devices, and for every edge with the
number of layouts of both ends.  These are bounded from above before: a layout depends only on the rows it involves and
on what the rows between them multiply to, so merging each run of other rows into one gives an upper bound.  Points of
an iteration space are no measure of anything: what is computed and checked are boxes, a few per device, and their
volumes, which must fit into int64.

    tensor, n elements      loads are below 4 n (devices + 1): a reduce-scatter and an all-gather into a subtree, padded
                            by at most one device each
    operator                flops of all points (without the row axis of a gather), and bytes of all operands
    edge                    entries, layouts of one end x layouts of the other; overlaps, intervals x intervals x
                            devices, per dimension a dimension of several axes, cut into s segments: overlaps x s
                            an operand in which an axis runs through two dimensions: every entry x devices, cells below
                            a level-0 subtree

`count` counts placements row by row without listing them: the state is what is left of every column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import Final

from ..communication.choices import needs_copy, resting_places
from ..layout.classes import axis_orders, copy_key, operator_key
from ..layout.placement import Space
from ..machine.machine import Machine
from ..program import fused, scan
from ..program.graph import Graph
from ..program.operators import NodeKind, Operator
from .edge_ends import End, Ends, communication_edges, coupled_cells

MOST_DEVICES: Final = 4096
"""Of what is planned as one: 8,192 with whole tables took 24 GB.  Stages of a larger machine have fewer."""
MOST_AXES: Final = 64
MOST_PLACEMENTS: Final = 1 << 18
MOST_PER_DEVICE: Final = 1 << 26
"""Placements times devices: volumes of eight bytes, a few arrays of them at a time, where splits are uneven."""
MOST_TABLE: Final = 1 << 26
"""Entries of one table."""
MOST_OVERLAPS: Final = 1 << 30
"""Overlaps of intervals of one dimension, below every subtree of a level."""
MOST_SEGMENTS: Final = 1 << 36
"""Overlaps times segments, where unions of intervals have gaps."""
MOST_COUPLED: Final = 1 << 24
"""Entries times devices, where an axis runs through two dimensions."""
MOST_CELLS: Final = 1 << 26
"""Cells of the grid of end points of boxes that are compared, of eight bytes each."""
MOST_NUMBER: Final = 1 << 61
"""Volumes, bytes, flops and loads stay below: no int64 product or sum of two wraps."""
MOST_STEPS: Final = 1 << 23
"""Steps of counting, all structures together."""


@dataclass(frozen=True)
class Budget:
    """What building and checking a problem may take, or takes: `entries` of all tables, overlaps of intervals for all
    of them, of which `segments` where unions have gaps; `coupled`: cells of the grids of all pairs of layouts of
    operands in which an axis runs through two dimensions; `steps` of counting placements; `boxes` of all placements of
    distinct operators on all devices, times their axes; `at_once`: overlaps of one tensor with segments, held.
    `tables`: of resharding times, distinct ones, however small; `compared`: subtrees of pairs of layouts that are
    looked at one by one, where splits may be uneven, times dimensions.

    `cells`: of the boxes of all distinct movements that a plan causes together, `cells_at_once` of one, which is held
    in memory.
    """

    entries: int
    overlaps: int
    cells: int = 1 << 29
    cells_at_once: int = 1 << 26
    segments: int = 1 << 38
    coupled: int = 1 << 36
    steps: int = MOST_STEPS
    boxes: int = 1 << 36
    at_once: int = 1 << 30
    tables: int = 1 << 19
    compared: int = 1 << 36


LARGE: Final = Budget(1 << 29, 1 << 32)
"""What is planned: minutes, and up to 8 GiB; an exchange of all with all between 4,096 devices has 2**24 cells."""
SMALL: Final = Budget(1 << 27, 1 << 30, 1 << 24, 1 << 22, 1 << 32, 1 << 32, 1 << 21, 1 << 31, 1 << 25, 1 << 13, 1 << 30)
"""What `check` does unasked, each alone: about a minute, and 2 GiB (exchanges of all with all: 1,024 devices 2**20
cells, 3 s, 0.3 GiB; 2,048 four times each).  Together they are counted in one unit (`verify/plan/effort.py`).
"""


class TooLarge(ValueError):
    """Sizes beyond what is planned and checked; the message names the place, the size and the bound."""


class OverBudget(TooLarge):
    """What fits the limits, but takes more than the budget given."""


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@dataclass
class Steps:
    """Steps of counting taken, and the most that several counters may take together."""

    most: int = MOST_STEPS
    taken: int = 0


class Counter:
    """Counts placements on one hierarchy in one space; equal questions are answered once, and all together take
    bounded time.
    """

    def __init__(self, hierarchy: tuple[int, ...], where: Space, steps: Steps | None = None) -> None:
        self.hierarchy, self.where = hierarchy, where
        self.steps = Steps(MOST_STEPS) if steps is None else steps
        self.known: dict[tuple[int, ...], int] = {}
        self.divisors = cache(_divisors)

    def count(self, limits: Sequence[int]) -> int:
        """Number of placements of axes whose degrees divide (uneven: are at most) `limits`; 1 for an axis that is not
        split.

        >>> from ..layout.placement import space
        >>> Counter((4, 8), space("complete")).count([8, 3])
        9
        """
        key = tuple(sorted(limits))
        if key not in self.known:
            most = len(key) + 1 if self.where.rows_per_level is None else self.where.rows_per_level
            states = {(self.hierarchy, (0,) * len(self.hierarchy)): 1}
            for limit in (n for n in key if n > 1):
                after: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
                for (left, used), ways in states.items():
                    for row in product(*(self.divisors(n) for n in left)):
                        self.steps.taken += 1
                        if self.steps.taken > self.steps.most:
                            error = TooLarge if self.steps.most >= MOST_STEPS else OverBudget
                            what = f"counting the placements on {self.hierarchy}"
                            raise error(f"{what} takes more than {self.steps.most} steps")
                        degree = prod(row)
                        if degree <= limit if self.where.uneven else limit % degree == 0:
                            now = (
                                tuple(u + (x > 1) for u, x in zip(used, row, strict=True))
                                if self.where.rows_per_level is not None
                                else used
                            )
                            if max(now) <= most:
                                state = (tuple(n // x for n, x in zip(left, row, strict=True)), now)
                                after[state] = after.get(state, 0) + ways
                states = after
            self.known[key] = sum(
                ways
                for (left, used), ways in states.items()
                if all(u + (n > 1) <= most for n, u in zip(left, used, strict=True))
            )
        return self.known[key]

    def involving(self, limits: Sequence[int], involved: Sequence[bool]) -> int:
        """At most so many distinct layouts depend on the rows `involved` only: every run of other rows counts as
        one row.
        """
        merged: list[int] = []
        run = 1
        for limit, needed in zip(limits, involved, strict=True):
            if needed:
                merged += [run, limit]
                run = 1
            else:
                run *= limit
        return min(self.count(merged), self.count(limits))  # the last run joins the replication row


class Listing:
    """What listing placements of one hierarchy in one space fills, level by level: all that fit the levels so far, each
    with every column of the next level, before those that fit are kept.
    """

    def __init__(self, hierarchy: tuple[int, ...], where: Space, steps: Steps) -> None:
        self.levels = [Counter(hierarchy[:j], where, steps) for j in range(1, len(hierarchy))]
        columns = {size: Counter((size,), where, steps) for size in hierarchy}
        self.columns = [columns[size] for size in hierarchy]

    def entries(self, limits: Sequence[int]) -> int:
        """Entries for the axes that may be split, of these extents.

        >>> from ..layout.placement import space
        >>> Listing((4, 8), space("complete"), Steps()).entries([8, 3])
        198
        """
        rows, seen = len(limits) + 1, [1, *(counter.count(limits) for counter in self.levels)]
        return sum(
            kept * column.count([column.hierarchy[0]] * len(limits)) * rows * (j + 1)
            for j, (kept, column) in enumerate(zip(seen, self.columns, strict=False))
        )


def check_sizes(graph: Graph, machine: Machine, where: Space, budget: Budget = LARGE) -> Budget:
    """What building the problem takes, at most.  Raises `TooLarge` if that could be too much, or could leave int64;
    `OverBudget` if it is more than `budget`.
    """
    devices = machine.devices
    if devices > MOST_DEVICES:
        raise TooLarge(f"machine {machine.name!r}: {devices} devices, at most {MOST_DEVICES} are planned as one")
    for t in graph.tensors:
        if len(t.shape) > MOST_AXES or 4 * t.elements * (devices + 1) > MOST_NUMBER:
            size = f"{len(t.shape)} dimensions of {t.elements} elements on {devices} devices"
            raise TooLarge(f"tensor {t.name!r}: {size} are too many")
    for op in graph.operators:
        _check_operator(op, graph)
    return _check_tables(
        graph, Counter(machine.hierarchy, where, Steps(min(budget.steps, MOST_STEPS))), devices, budget
    )


def _check_operator(op: Operator, graph: Graph) -> None:
    place, extent = f"operator {op.name!r}", {a.name: a.extent for a in op.axes}
    flops = graph.points(op) * max(1, graph.flops_per_point(op))
    flops += fused.operations(op) * graph.tensor(op.output.tensor).elements
    moved = sum(graph.tensor(a.tensor).elements * graph.tensor(a.tensor).element_bytes for a in (*op.inputs, op.output))
    moved += scan.bytes_moved(op, graph.body(op)) if op.kind is NodeKind.SCAN else 0
    if len(extent) > MOST_AXES or flops > MOST_NUMBER or moved > MOST_NUMBER:
        raise TooLarge(
            f"{place}: {len(extent)} axes, {flops} operations and {moved} bytes are too many; numbers up to "
            f"{MOST_NUMBER} are counted"
        )
    for a in (*op.inputs, op.output):
        for index in a.index:
            reach = abs(index.offset) + sum(abs(c) * extent[name] for name, c in index.terms)
            if reach > MOST_NUMBER or any(c < 1 for _, c in index.terms):
                raise TooLarge(f"{place}: an index of {a.tensor!r} has a coefficient below 1 or reaches {reach}")


def _check_tables(graph: Graph, counter: Counter, devices: int, budget: Budget) -> Budget:
    orders = axis_orders(graph)
    ops = {operator_key(op.name): op for op in graph.operators}
    shapes = {t.name: t.shape for t in graph.tensors}
    copied = needs_copy(graph)
    limits = {
        name: [a.extent if a.splittable else 1 for a in (op.axis(n) for n in orders[name])] for name, op in ops.items()
    }
    copies = [(copy_key(t.name), t.shape) for t in graph.tensors if t.name in copied]
    limits |= {key: [shape[int(k)] for k in orders[key]] for key, shape in copies}
    listing = Listing(counter.hierarchy, counter.where, counter.steps)
    _check_columns(listing, {*map(len, limits.values())})
    alike = {n: _structure(ops[n], shapes) if n in ops else tuple(rows) for n, rows in limits.items()}
    found = Budget(0, 0, 0, 0, 0, 0, 0, _boxes(counter, listing, limits, alike, budget), 0, 0, 0)
    ends = Ends(counter.involving, devices, counter.where.uneven, ops, orders, limits)
    seen, tables, resting = set[object](), set[object](), resting_places(graph)
    intervals = set[object]()
    for tensor, writer, reader, position in communication_edges(graph):
        copy = copy_key(resting.get(tensor, tensor))
        a = ends.of(ops[writer].output, writer) if writer else ends.of(None, copy)
        b = ends.of(ops[reader].inputs[position], reader) if reader else ends.of(None, copy)
        tables.add((id(a), id(b), shapes[tensor], graph.tensor(tensor).element_bytes))  # ends are kept: `ends`
        found = replace(found, tables=len(tables))
        if (a.key, b.key) in seen:
            continue
        seen.add((a.key, b.key))
        _check_pair(f"tensor {tensor!r}", a, b, shapes[tensor], counter.hierarchy)
        found = _with_pair(found, a, b, shapes[tensor], counter, intervals)
        _check_budget(f"tensor {tensor!r}", found, budget)
    return replace(found, steps=counter.steps.taken)


def _check_columns(listing: Listing, widths: set[int]) -> None:
    """`TooLarge` where the columns of a level are too many to be listed, for axes of these numbers."""
    hierarchy = [column.hierarchy[0] for column in listing.columns]
    for width in widths:
        for size, column in zip(hierarchy, listing.columns, strict=True):
            if width and size * column.count([size] * width) > MOST_STEPS:
                raise TooLarge(
                    f"listing the columns of a level takes more than {MOST_STEPS} steps; try --space one-per-level"
                )


def _boxes(
    counter: Counter,
    listing: Listing,
    limits: Mapping[str, Sequence[int]],
    alike: Mapping[str, object],
    budget: Budget,
) -> int:
    """Boxes of all placements of distinct operators and copies, and entries that listing them fills; `alike`: equal for
    those that are priced once.
    """
    boxes, structures, devices = 0, set[object](), prod(counter.hierarchy)
    large = budget.boxes >= LARGE.boxes
    for name, row_limits in limits.items():
        number = counter.count(row_limits)
        if alike[name] not in structures:
            structures.add(alike[name])
            filled = listing.entries(row_limits)
            if filled > (LARGE if large else SMALL).entries:
                error = TooLarge if large else OverBudget
                raise error(f"{name!r}: listing its placements fills {filled} entries; try a smaller --space")
            boxes += number * devices * (1 + len(row_limits)) + filled
        if number > MOST_PLACEMENTS or number * devices > MOST_PER_DEVICE:
            raise TooLarge(
                f"{name!r} has {number} placements on {devices} devices; at most {MOST_PLACEMENTS}, times devices "
                f"{MOST_PER_DEVICE}, are planned and checked; try a smaller --space"
            )
        _check_budget(repr(name), Budget(0, 0, 0, 0, 0, 0, 0, boxes, 0, 0, 0), budget)
    return boxes


def _with_pair(found: Budget, a: End, b: End, shape: Sequence[int], counter: Counter, intervals: set[object]) -> Budget:
    """What a pair of ends takes besides; `intervals`: of dimensions that were counted before."""
    devices, uneven = prod(counter.hierarchy), counter.where.uneven
    overlaps = segments = at_once = compared = 0
    for k, pair in enumerate(zip(a.intervals, b.intervals, strict=True)):
        gaps, extent = a.gaps[k] or b.gaps[k], shape[k]
        at_once += prod(pair) * devices if gaps else 0
        if (key := (pair, extent, gaps)) not in intervals:
            intervals.add(key)
            overlaps += prod(pair) * devices
            segments += prod(pair) * devices * min(extent, 4 * devices) if gaps else 0
    if at_once:  # pairs whose subtrees differ are sorted, dimension by dimension
        segments += 16 * a.layouts * b.layouts * len(shape)
        below = sum(prod(counter.hierarchy[: j + 1]) for j in range(len(counter.hierarchy)))
        different = min(a.layouts * b.layouts, prod(1 + prod(n) for n in zip(a.intervals, b.intervals, strict=True)))
        compared = different * below * len(shape) if uneven else 0  # else few pairs differ
    return replace(
        found,
        entries=found.entries + a.layouts * b.layouts,
        overlaps=found.overlaps + overlaps,
        segments=found.segments + segments,
        coupled=found.coupled + coupled_cells(a, b, counter.hierarchy),
        at_once=max(found.at_once, at_once),
        compared=found.compared + compared,
    )


def _structure(op: Operator, shapes: Mapping[str, tuple[int, ...]]) -> object:
    """Equal for operators that are priced once."""
    return op.function, op.attributes, op.axes, *((a.index, shapes[a.tensor]) for a in (*op.inputs, op.output))


def _check_budget(place: str, needed: Budget, given: Budget) -> None:
    for amount, name, most, allowed in (
        (needed.entries, "entries of tables", LARGE.entries, given.entries),
        (needed.overlaps, "overlaps of intervals", LARGE.overlaps, given.overlaps),
        (needed.segments, "segments of intervals", LARGE.segments, given.segments),
        (needed.at_once, "overlaps of intervals with gaps, of one tensor,", LARGE.at_once, given.at_once),
        (needed.boxes, "boxes of placements", LARGE.boxes, given.boxes),
        (needed.coupled, "cells of diagonals", LARGE.coupled, given.coupled),
        (needed.tables, "tables of reshardings", LARGE.tables, given.tables),
        (needed.compared, "subtrees of uneven layouts", LARGE.compared, given.compared),
    ):
        if amount > most:
            raise TooLarge(
                f"{place}: up to {amount} {name} until there; at most {most} are planned and checked; try a "
                f"smaller --space"
            )
        if amount > allowed:
            raise OverBudget(f"{place}: up to {amount} {name} until there; at most {allowed} without --large")


def _check_pair(place: str, a: End, b: End, shape: Sequence[int], hierarchy: tuple[int, ...]) -> None:
    devices, table = prod(hierarchy), a.layouts * b.layouts
    if table > MOST_TABLE:
        raise TooLarge(
            f"{place}: a table of up to {a.layouts} x {b.layouts} layouts; at most {MOST_TABLE} entries; try a "
            f"smaller --space"
        )
    for x, y, merged, extent in zip(a.intervals, b.intervals, map(max, a.merged, b.merged), shape, strict=True):
        if x * y * devices > MOST_OVERLAPS:
            raise TooLarge(
                f"{place}: {x} x {y} intervals of a dimension on {devices} devices; at most {MOST_OVERLAPS} "
                f"overlaps; try a smaller --space"
            )
        if merged and x * y * devices * min(extent, 4 * devices) > MOST_SEGMENTS:
            raise TooLarge(
                f"{place}: a dimension of several axes, {x} x {y} intervals on {devices} devices; at most "
                f"{MOST_SEGMENTS} segments are compared"
            )
    if a.coupled or b.coupled:
        cells = (
            prod(2 * min(2 * prod(hierarchy[1:]), m + n) + 1 for m, n in zip(a.blocks, b.blocks, strict=True))
            if len(hierarchy) > 1
            else 1
        )
        if table * devices > MOST_COUPLED or cells > MOST_CELLS:
            raise TooLarge(
                f"{place}: an axis runs through two dimensions of it; {table} pairs of layouts on {devices} devices, "
                f"{cells} cells each, are too many; at most {MOST_COUPLED} pairs times devices, {MOST_CELLS} cells"
            )
