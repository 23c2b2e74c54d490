"""Is a list of placements the whole space, and is there room to build it?

    placements of a space = matrices X with a row per axis and one of replication, X[i][j] >= 1, product of column j = h_j,
                            product of row i divides the extent n_i (uneven: is at most n_i), rows that may not be split are 1,
                            at most `rows_per_level` entries of a column above 1

`count` counts them row by row without listing them: the state is what is left of every column.  A list of distinct matrices that all
belong to the space and are as many as it has is the space (`check_list`); so an optimum over the list is an optimum over the space.

Sizes (`check_sizes`).  What `models.selection` builds grows with the number of placements K, the devices, and for every edge with the
number of layouts of both ends.  These are bounded from above before anything is built: a layout depends only on the rows it involves
and on what the rows between them multiply to, so merging each run of other rows into one gives an upper bound.  All numbers must also
fit into int64 with room for their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import prod

import numpy as np

from ..models.classes import axis_orders, copy_key, operator_key
from ..models.graph import Graph
from ..models.index import Access
from ..models.machine import Machine
from ..models.placement import Space
from ..models.problems import Ints
from .structure import copied, moves, replaces

MOST_DEVICES = 4096
MOST_AXES = 64
MOST_PLACEMENTS = 1 << 18
MOST_PER_DEVICE = 1 << 26
"""Placements times devices."""
MOST_TABLE, MOST_TABLES = 1 << 26, 1 << 29
"""Entries of one table, and of all."""
MOST_NUMBER = 1 << 61
"""Points times devices times 64 (flops per point, bytes per element and ring factors stay below that): no int64 product wraps."""
MOST_STEPS = 1 << 23
"""Steps of counting, all structures together."""


class TooLarge(ValueError):
    """Sizes beyond what is checked; the message names the place, the size and the bound."""


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


class Counter:
    """Counts placements on one hierarchy in one space; equal questions are answered once, and all together take bounded time."""

    def __init__(self, hierarchy: tuple[int, ...], where: Space) -> None:
        self.hierarchy, self.where, self.steps = hierarchy, where, 0
        self.known: dict[tuple[int, ...], int] = {}
        self.divisors = cache(_divisors)

    def count(self, limits: Sequence[int]) -> int:
        """Number of placements of axes whose degrees divide (uneven: are at most) `limits`; 1 for an axis that is not split.

        >>> from ..models.placement import space
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
                        self.steps += 1
                        if self.steps > MOST_STEPS:
                            raise TooLarge(f"counting the placements on {self.hierarchy} takes more than {MOST_STEPS} steps")
                        degree = prod(row)
                        if degree <= limit if self.where.uneven else limit % degree == 0:
                            now = tuple(u + (x > 1) for u, x in zip(used, row, strict=True)) if self.where.rows_per_level is not None else used
                            if max(now) <= most:
                                state = (tuple(n // x for n, x in zip(left, row, strict=True)), now)
                                after[state] = after.get(state, 0) + ways
                states = after
            self.known[key] = sum(
                ways for (left, used), ways in states.items() if all(u + (n > 1) <= most for n, u in zip(left, used, strict=True))
            )
        return self.known[key]

    def involving(self, limits: Sequence[int], involved: Sequence[bool]) -> int:
        """At most so many distinct layouts depend on the rows `involved` only: every run of other rows counts as one row."""
        merged: list[int] = []
        run = 1
        for limit, needed in zip(limits, involved, strict=True):
            if needed:
                merged += [run, limit]
                run = 1
            else:
                run *= limit
        return min(self.count(merged), self.count(limits))  # the last run joins the replication row


def check_list(placements: Ints, extents: Sequence[int], splittable: Sequence[bool], where: Space, counter: Counter) -> str:
    """Why `placements`, shape (K, axes + 1, levels), are not all placements of the space, each once; empty if they are."""
    hierarchy = np.array(counter.hierarchy, dtype=np.int64)
    if placements.ndim != 3 or placements.shape[1:] != (len(extents) + 1, hierarchy.size):
        return f"placements have shape {placements.shape}"
    limit = np.array([n if s else 1 for n, s in zip(extents, splittable, strict=True)], dtype=np.int64)
    degree = placements[:, :-1, :].prod(axis=2)
    fits = (degree <= limit) if where.uneven else (limit % np.maximum(degree, 1) == 0)
    good = (placements >= 1).all(axis=(1, 2)) & (placements.prod(axis=1) == hierarchy).all(axis=1) & fits.all(axis=1)
    if where.rows_per_level is not None:
        good &= ((placements > 1).sum(axis=1) <= where.rows_per_level).all(axis=1)
    if not good.all():
        return f"choice {int(np.nonzero(~good)[0][0])} is not a placement of the space"
    flat = placements.reshape(placements.shape[0], -1)
    if len({row.tobytes() for row in flat}) != flat.shape[0]:
        return "a placement occurs twice"
    expected = counter.count(limit.tolist())
    return "" if flat.shape[0] == expected else f"{flat.shape[0]} placements, the space has {expected}"


def check_sizes(graph: Graph, machine: Machine, where: Space) -> None:
    """Raise `TooLarge` if building the problem could take too much memory or time, or could leave int64."""
    devices, hierarchy = machine.devices, machine.hierarchy
    if devices > MOST_DEVICES:
        raise TooLarge(f"machine {machine.name!r}: {devices} devices, at most {MOST_DEVICES} are checked")
    for t in graph.tensors:
        if len(t.shape) > MOST_AXES or t.elements * devices * 64 > MOST_NUMBER:
            raise TooLarge(f"tensor {t.name!r}: {len(t.shape)} dimensions of {t.elements} elements on {devices} devices are too many")
    for op in graph.operators:
        place = f"operator {op.name!r}"
        extent = {a.name: a.extent for a in op.axes}
        if len(extent) > MOST_AXES or prod(extent.values()) * devices * 64 > MOST_NUMBER:
            raise TooLarge(f"{place}: {len(extent)} axes, {prod(extent.values())} points on {devices} devices are too many")
        for a in (*op.inputs, op.output):
            for index in a.index:
                reach = abs(index.offset) + sum(abs(c) * extent[name] for name, c in index.terms)
                if reach > MOST_NUMBER or any(c < 1 for _, c in index.terms):
                    raise TooLarge(f"{place}: an index of {a.tensor!r} has a coefficient below 1 or reaches {reach}")
    _check_tables(graph, Counter(hierarchy, where), devices)


def _check_tables(graph: Graph, counter: Counter, devices: int) -> None:
    orders = axis_orders(graph)
    ops = {operator_key(op.name): op for op in graph.operators}
    shapes = {t.name: t.shape for t in graph.tensors}
    limits = {
        **{name: [a.extent if a.splittable else 1 for a in (op.axis(n) for n in orders[name])] for name, op in ops.items()},
        **{copy_key(t): [shapes[t][int(k)] for k in orders[copy_key(t)]] for t in copied(graph)},
    }
    most = 1
    for width in map(len, limits.values()):
        for size in counter.hierarchy:
            most = max(most, size * Counter((size,), counter.where).count([size] * width) if width else 1)
    if most > MOST_STEPS:
        raise TooLarge(f"listing the columns of a level takes more than {MOST_STEPS} steps")
    for name, row_limits in limits.items():
        number = counter.count(row_limits)
        if number > MOST_PLACEMENTS or number * devices > MOST_PER_DEVICE:
            raise TooLarge(f"{name!r} has {number} placements on {devices} devices; at most {MOST_PLACEMENTS}, times devices {MOST_PER_DEVICE}, are checked")

    def end(access: Access | None, owner: str) -> tuple[object, int, list[int]]:
        """(structure, layouts at most, intervals per dimension at most) of one end of a movement."""
        order, bound = orders[owner], limits[owner]
        if access is None:
            touched = [{k} for k in sorted(order, key=int)]
        else:
            touched = [{name for name, _ in index.terms} for index in access.index]
        reduced = {a.name for a in ops[owner].axes if a.combine is not None} if owner in ops and access is ops[owner].output else set[str]()
        involved = reduced.union(*touched)
        pattern = [n in involved for n in order]
        parts = [[n in names for n in order] for names in touched]
        key = (tuple(bound), tuple(pattern), tuple(map(tuple, parts)))
        return key, counter.involving(bound, pattern), [counter.involving(bound, p) for p in parts]

    total, seen, replaced = 0, set[object](), replaces(graph)
    for m in moves(graph):
        copy = copy_key(replaced.get(m.tensor, m.tensor))
        writer, reader = (None if name is None else operator_key(name) for name in (m.writer, m.reader))
        a = end(ops[writer].output, writer) if writer is not None else end(None, copy)
        b = end(ops[reader].inputs[m.position], reader) if reader is not None else end(None, copy)
        if (a[0], b[0]) in seen:
            continue
        seen.add((a[0], b[0]))
        total += a[1] * b[1]
        widest = max((x * y * devices for x, y in zip(a[2], b[2], strict=True)), default=0)
        if a[1] * b[1] > MOST_TABLE or widest > MOST_PER_DEVICE or total > MOST_TABLES:
            raise TooLarge(f"tensor {m.tensor!r}: a table of up to {a[1]} x {b[1]} layouts; at most {MOST_TABLE} entries, {MOST_TABLES} in all, are checked")
