"""Makes schedules from a few given ones: the splits that a user names spread to the operators that read and
write the same elements.

Nodes are (operator, axis) and (tensor, dimension); an access  dimension = .. coef * axis ..  joins them.  A given
operator keeps its placement; a split of one of its axes travels through the joins, breadth first, and does not pass
other given operators.

    nearest     an axis without a placement takes the split of the nearest given axis it is joined to
    conflict    two given operators at the same distance ask for different splits of an axis, or together for more of a
                level than it has:  reported with both names, never decided silently
    dropped     a split from further away that finds no room beside a nearer one, or beside another split from the same
                operator

Copies of tensors take the split of their dimensions in the same way; whatever no split reaches is replicated.

Source: thesis on automatic partitioning of array programs, section 9.1 (propagation as future work); GSPMD (Xu et al.
2021), section 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...models.communication.choices import Choices, needs_copy
from ...models.layout.classes import axis_orders, copy_key, operator_key
from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.sources.training.derived import derived_keys
from .strategy import Rule, Strategy, StrategyError, exact_keys, matches, placement

Node = tuple[str, str]
"""(`copy_key` of a tensor, dimension) or (`operator_key`, axis)."""
Split = tuple[int, ...]
"""Degree at every level."""


@dataclass(frozen=True)
class Conflict:
    """Operator (or copy) `name` would be split as the given operators `first` and `second` ask, and cannot be split
    as both do.
    """

    name: str
    first: str
    first_axis: str
    first_split: Split
    second: str
    second_axis: str
    second_split: Split

    def words(self, levels: tuple[str, ...]) -> str:
        """One sentence."""

        def say(axis: str, split: Split) -> str:
            return f"axis {axis!r} " + ", ".join(f"{d} over {n}" for d, n in zip(split, levels, strict=True) if d > 1)

        return (
            f"{self.name!r}: {self.first!r} asks for {say(self.first_axis, self.first_split)}, {self.second!r} for "
            f"{say(self.second_axis, self.second_split)}"
        )


class ScheduleConflict(StrategyError):
    """Given schedules contradict each other somewhere; `conflicts` lists every place."""

    def __init__(self, conflicts: tuple[Conflict, ...], levels: tuple[str, ...]) -> None:
        shown = "; ".join(c.words(levels) for c in conflicts[:5])
        more = f"; and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        super().__init__("schedules", f"{shown}{more}", "give a schedule for these operators too")
        self.conflicts = conflicts


@dataclass(frozen=True)
class Propagated:
    """`choices`: a placement for every operator and copy.  `origin`: (operator, axis) -> the given operator its split
    comes from.

    `dropped`: (operator or `tensor:NAME`, axis, given operator) whose split found no room; `replicated`: names that no
    split reached.
    """

    choices: Choices
    origin: dict[Node, str]
    dropped: tuple[tuple[str, str, str], ...]
    replicated: tuple[str, ...]

    def strategy(self, machine: Machine) -> Strategy:
        """The same as a strategy that leaves nothing free."""
        levels = [level.name for level in machine.levels]
        rules = []
        for key, items in ((operator_key, self.choices.operators), (copy_key, self.choices.copies)):
            for name, p in items:
                rows = (
                    (a, tuple((n, d) for n, d in zip(levels, row, strict=True) if d > 1))
                    for a, row in zip(p.axes, p.matrix, strict=False)
                )
                rules.append(Rule(key(name), tuple((a, d) for a, d in rows if d)))
        return Strategy(tuple(rules))


def propagate(graph: Graph, machine: Machine, strategy: Strategy) -> Propagated:
    """Complete a strategy.  Raises `StrategyError` for keys, axes and degrees that do not fit, `ScheduleConflict`
    naming both operators.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.machine.machine import load_machine
    >>> from .strategy import parse_strategy
    >>> g = Builder("g")
    >>> h = g.contract("h", "b k, k n -> b n", g.input("x", (8, 4)), g.parameter("w", (4, 8)))
    >>> graph = g.build(g.map("y", "relu", h))
    >>> done = propagate(graph, load_machine("localhost:4"), parse_strategy('{"h": {"n": {"0": 4}}}'))
    >>> [(name, p.words(("ranks",))) for name, p in done.choices.operators]
    [('h', 'n over ranks'), ('y', 'i1 over ranks')]
    """
    orders = axis_orders(graph)
    copied = needs_copy(graph)
    copies = [t.name for t in graph.tensors if t.name in copied]
    ops = {operator_key(op.name): op for op in graph.operators}
    names = [*ops, *map(copy_key, copies)]
    given = {
        n: placement(_known(split, orders[n]), orders[n], machine, f"{strategy.place}, {n!r}")
        for n, split in _given(strategy, names, derived_keys(graph), orders).items()
    }
    wishes, origin, conflicts = _spread(graph, given)
    levels = tuple(level.name for level in machine.levels)
    open_names = [n for n in names if n not in given]
    free = frozenset(open_names)
    found = [c for c in conflicts if c.name in free]
    dropped: list[tuple[str, str, str]] = []
    chosen: dict[str, Placement] = dict(given)
    replicated: list[str] = []
    for n in open_names:
        splittable = {a.name for a in ops[n].axes if a.splittable} if n in ops else set(orders[n])
        wanted = [
            (distance, k, a, split)
            for k, a in enumerate(orders[n])
            if a in splittable and (n, a) in wishes
            for distance, split in [wishes[n, a]]
        ]
        rows, refused = _rows(orders[n], wanted, {a: origin[n, a] for _, _, a, _ in wanted}, machine)
        for axis, split, rival in refused:
            if rival is None:
                dropped.append((n, axis, origin[n, axis]))
            else:
                found.append(Conflict(n, origin[n, rival], rival, wishes[n, rival][1], origin[n, axis], axis, split))
        if not wanted:
            replicated.append(n)
        matrix = [tuple(rows[a]) for a in orders[n]]
        rest = tuple(level.size // prod(r[j] for r in matrix) for j, level in enumerate(machine.levels))
        chosen[n] = Placement(orders[n], (*matrix, rest))
    if found:
        raise ScheduleConflict(tuple(dict.fromkeys(found)), levels)
    result = Choices(
        tuple((op.name, chosen[name]) for name, op in ops.items()), tuple((c, chosen[copy_key(c)]) for c in copies)
    )
    return Propagated(result, {k: v for k, v in origin.items() if k[0] in free}, tuple(dropped), tuple(replicated))


def _rows(
    order: tuple[str, ...], wanted: Sequence[tuple[int, int, str, Split]], origin: Mapping[str, str], machine: Machine
) -> tuple[dict[str, list[int]], list[tuple[str, Split, str | None]]]:
    """(parts of every axis, what does not fit beside them: axis, split, and the axis as near whose split came from
    another operator).  `wanted`: distance, position, axis and split; the nearest first.
    """
    rows = {a: [1] * len(machine.levels) for a in order}
    refused: list[tuple[str, Split, str | None]] = []
    for distance, _, axis, split in sorted(wanted):
        used = [prod(r[j] for r in rows.values()) for j in range(len(machine.levels))]
        if all(level.size % (u * d) == 0 for level, u, d in zip(machine.levels, used, split, strict=True)):
            rows[axis] = list(split)
            continue
        near = (a for d, _, a, _ in wanted if d == distance and max(rows[a]) > 1 and origin[a] != origin[axis])
        refused.append((axis, split, next(near, None)))
    return rows, refused


def _given(
    strategy: Strategy, names: list[str], later: frozenset[str], orders: dict[str, tuple[str, ...]]
) -> dict[str, tuple[tuple[str, tuple[tuple[str, int], ...]], ...]]:
    """Names that the strategy decides -> their split; an exact key beats globs, the later glob beats the earlier."""
    chosen: dict[str, Rule] = {}
    for rule in exact_keys(strategy, names):
        matched, _ = matches(rule.key, names, later)
        place = f"{strategy.place}, key {rule.key!r}"
        if not matched:
            raise StrategyError(
                place, "matches nothing", f"operators: {', '.join(names[:12])}{', ..' if len(names) > 12 else ''}"
            )
        for axis, _ in rule.split or ():
            if not any(axis in orders[n] for n in matched):
                raise StrategyError(
                    place,
                    f"no axis {axis!r}",
                    f"axes: {', '.join(dict.fromkeys(a for n in matched for a in orders[n]))}",
                )
        for n in matched:
            if n == rule.key or n not in chosen or chosen[n].key != n:
                chosen[n] = rule
    return {n: rule.split for n, rule in chosen.items() if rule.split is not None}


def _known(
    split: tuple[tuple[str, tuple[tuple[str, int], ...]], ...], axes: tuple[str, ...]
) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple((a, d) for a, d in split if a in axes)


def _joins(graph: Graph) -> dict[Node, list[Node]]:
    """Neighbours of every node: axes and dimensions that an access joins, and a tensor's copy with the tensor."""
    out: dict[Node, list[Node]] = {}
    for op in graph.operators:
        free = {a.name for a in op.axes if a.splittable}
        for a in (*op.inputs, op.output):
            for k, index in enumerate(a.index):
                for name, _ in index.terms:
                    if name in free:
                        dim, axis = (copy_key(a.tensor), str(k)), (operator_key(op.name), name)
                        out.setdefault(dim, []).append(axis)
                        out.setdefault(axis, []).append(dim)
    return out


def _spread(
    graph: Graph, given: dict[str, Placement]
) -> tuple[dict[Node, tuple[int, Split]], dict[Node, str], tuple[Conflict, ...]]:
    """Breadth first from every split axis of a given operator: (distance, split) and origin per node; conflicts at
    equal distance.
    """
    joins = _joins(graph)
    wishes: dict[Node, tuple[int, Split]] = {}
    origin: dict[Node, str] = {}
    conflicts: list[Conflict] = []
    frontier = list(_seeds(given))
    for node, split in frontier:
        wishes[node], origin[node] = (0, split), node[0]
    distance = 0
    while frontier:
        distance += 1
        following: list[tuple[Node, Split]] = []
        for node, split in frontier:
            for near in joins.get(node, []):
                if near[0] in given:
                    continue
                if near not in wishes:
                    wishes[near], origin[near] = (distance, split), origin[node]
                    following.append((near, split))
                elif wishes[near][0] == distance and wishes[near][1] != split:
                    conflicts.append(
                        Conflict(near[0], origin[near], near[1], wishes[near][1], origin[node], near[1], split)
                    )
        frontier = following
    return wishes, origin, tuple(conflicts)


def _seeds(given: dict[str, Placement]) -> Iterator[tuple[Node, Split]]:
    for name, p in given.items():
        for axis, row in zip(p.axes, p.matrix, strict=False):
            if any(d > 1 for d in row):
                yield (name, axis), row
