"""This module branches between the two active columns of the restricted master, two solutions that prices cannot tell
apart, until no mixture of them is free.

Under a limit the best prices of the relaxation are those at which two plans tie, one that exceeds the limit and one
that leaves some of it.  The bound is then a mixture of both at no cost for the *interface* between them, which every
real mixture pays.  So the domain of a vertex where they differ is split into labels that go with the one plan and
labels that go with the other: in each part one of the plans pays for two interfaces there, other prices are best, and
the bound rises.

    vertex   in the middle of the longest run of layers where the plans differ; there the one where the other plan's
             label costs most
    parts    label a goes with the plan whose neighbours make it cheaper, compared with that plan's own label
    plans    in a part: those that it allows, and the other one changed at the vertex alone, before it, or after it,
             searched again around it (`search_neighbourhood`)
    prices   of the master program (`bound/restricted_master.py`) over the plans of the part
    order    the part with the lowest bound first

Nothing here is believed: parts are `Split` records, prices and messages `Dual` records on them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem, Vertex
from ....proofs.selection.certificates import Dual, Open
from ..bound.accelerated import AcceleratedSweeper
from ..bound.restricted_master import Column, master
from ..bound.subgradient import apply_multipliers
from ..bound.trws import Sweeper, load
from ..model.factored import Domains, Network, build, whole
from ..model.local_costs import local_costs
from ..model.priced import Floats, priced
from .neighbourhood import search_neighbourhood
from .proof_tree import DualNode, Leaf, ProofTree, SplitNode

if TYPE_CHECKING:
    from .run import Run
from .run import ActiveColumns


@dataclass(frozen=True, eq=False)
class _Node:
    """A part: its domains, what is known about it, the plans that it allows, the labels that it leaves to vertices
    split on the way here.
    """

    domains: Domains
    draft: DualNode | None
    record: Dual
    lower: int
    plans: tuple[Column, ...]
    parts: dict[int, Ints]
    rising: bool = False
    """More sweeps at these prices would raise the bound: it was enough for the time being."""


def branch_on_columns(run: Run, active: ActiveColumns, domains: Domains, record: Dual, lower: int) -> ProofTree:
    """The parts of `domains`, which the messages and prices of `record` bound by `lower`, as far as the time goes;
    `Open` when the plans do not tie.

    A part whose own plans do not tie is searched as any other node.
    """
    root = _Node(domains, None, record, lower, tuple(_column(run, x) for x in active.plans), {})
    top: ProofTree = Leaf(Open())
    heap = [(lower, 0, root)]
    count = 0
    while heap and not run.clock.over() and run.held <= run.limits.held:
        _, _, node = heapq.heappop(heap)
        if node.lower >= run.enough():
            break
        if node.rising:
            count += 1
            node = _swept_on(run, node)
            heapq.heappush(heap, (node.lower, count, node))
            continue
        split, children = _split(run, active, node)
        if node.draft is not None:
            node.draft.child = run.explore(_fixed(run, node), node.record, len(node.parts)) if split is None else split
        elif split is not None:
            top = split
        for child in children:
            count += 1
            heapq.heappush(heap, (child.lower, count, child))
        if heap:
            run.progress.update("parts", heap[0][0], run.upper())
    return top


def _column(run: Run, x: tuple[int, ...]) -> Column:
    assert run.rows is not None
    return Column(x, run.problem.cost_of(x), run.rows.use(x).astype(np.float64))


def _split(run: Run, active: ActiveColumns, node: _Node) -> tuple[SplitNode | None, list[_Node]]:
    """The split of a node and its parts; None when its plans do not tie or nothing tells them apart."""
    assert run.rows is not None
    if len(node.plans) < 2:
        return None, []
    mixed = master(list(node.plans), run.rows.limit, run.options.bound)
    both = np.argsort(-mixed.weights, kind="stable")[:2].tolist()
    if mixed.over > 0.0 or mixed.weights[both[1]] <= 0.0:
        return None, []
    one, other = (node.plans[k] for k in sorted(both))
    found = _where(
        build(run.unit, whole(run.problem)),
        active.layer,
        one.plan,
        other.plan,
        {int(active.layer[v]) for v in node.parts},
        run.options.tree.window,
    )
    if found is None:
        return None, []
    vertex, cut = found
    fixed = _fixed(run, node)
    split = SplitNode(vertex, tuple(tuple(p for p in part.tolist() if _inside(fixed[vertex], p)) for part in cut), [])
    children: list[_Node] = []
    for part, kept, moved in ((cut[0], one, other), (cut[1], other, one)):
        split.children.append(Leaf(Open()))
        domains = (*fixed[:vertex], np.intersect1d(fixed[vertex], part), *fixed[vertex + 1 :])
        if any(d.size == 0 for d in domains):  # nothing there is better than the best solution
            continue
        parts = {**node.parts, vertex: part}
        others = [
            _searched_around(run, active, parts, x, vertex, mixed.n)
            for x in _starts(kept.plan, moved.plan, active.layer, vertex)
        ]
        for x in others:
            run.incumbent.offer(x)
        columns = [c for c in (_column(run, x) for x in others) if c.cost < FORBIDDEN]
        plans = [*(c for c in node.plans if _inside(part, c.plan[vertex])), *columns]
        enough = (
            run.enough()
            if not children
            else children[0].lower + (run.enough() - children[0].lower) // run.options.tree.part_ahead
        )
        child = _part(run, replace(node, domains=domains, draft=None, plans=tuple(plans), parts=parts), mixed.n, enough)
        if child is not None and child.draft is not None:
            split.children[-1] = child.draft
            children.append(child)
    return split, children


def _fixed(run: Run, node: _Node) -> Domains:
    """What the record of a node leaves of its domains."""
    return node.domains if node.draft is None else node.draft.score.fix(node.domains, run.incumbent.cost)


def _inside(domain: Ints, a: int) -> bool:
    k = int(np.searchsorted(domain, a))
    return k < domain.size and int(domain[k]) == a


def _where(
    network: Network, layer: Ints, one: tuple[int, ...], other: tuple[int, ...], done: set[int], window: int
) -> tuple[int, tuple[Ints, Ints]] | None:
    """The vertex to split, labels that go with `one` and labels that go with `other`; None when they differ nowhere
    but within `window` layers of those in `done`.
    """
    differ = np.array(one) != np.array(other)
    at = np.array(
        [k for k in np.unique(layer[differ]).tolist() if all(abs(k - d) > window for d in done)], dtype=np.int64
    )
    if at.size == 0:
        return None
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    longest = max(runs, key=len)
    middle = longest[len(longest) // 2]
    places = [network.positions(x) for x in (one, other)]
    best: tuple[int, int, Ints] | None = None
    for v in np.flatnonzero(differ & (layer == middle)).tolist():
        here, there = (local_costs(network, x, v) for x in places)
        a, b = places[0][v], places[1][v]
        apart = min(int(here[b] - here[a]), int(there[a] - there[b]))
        if best is None or apart > best[0]:
            best = apart, v, (here - here[a]) - (there - there[b])
    assert best is not None
    apart, v, lean = best
    if apart <= 0:
        return None
    return v, (network.domains[v][lean <= 0], network.domains[v][lean > 0])


def _part(run: Run, node: _Node, n: Floats, enough: int) -> _Node | None:
    """Prices and messages on `node`, from those it has, until they bound by `enough`; None when the time is over at
    once.
    """
    rows = run.rows
    assert rows is not None
    plans = list(node.plans)
    network = build(run.base, node.domains)
    sweeper = run.sweeper(network)
    load(sweeper, node.record)
    best: tuple[int, Ints, list[Ints], list[Ints]] | None = None
    old = run.multipliers(rows, node.record)
    mixed = master(plans, rows.limit, run.options.bound)
    aim = np.rint((mixed.n if mixed.over <= 0.0 else run.options.tree.part_dearer * n) * run.denominator).astype(
        np.int64
    )
    aim = old + ((aim - old) * _far_enough(run, plans, old, aim) >> run.options.tree.price_steps)
    rising = False
    for k in range(run.options.tree.price_rounds):
        prices = old + ((aim - old) >> k)
        found = _swept(run, sweeper, prices, enough, node.lower)
        if found is None:
            break
        bound, rising = found
        if best is None or bound > best[0]:
            best = bound, prices, list(sweeper.to_u), list(sweeper.to_v)
        if bound > node.lower or run.clock.over():
            break
        load(sweeper, node.record)  # messages for prices far away are no start for those nearby
    if best is None:
        return None
    _, prices, sweeper.to_u, sweeper.to_v = best
    return _recorded(run, replace(node, rising=rising), sweeper, prices)


def _far_enough(run: Run, plans: list[Column], old: Ints, aim: Ints) -> int:
    """How many of 2**`price_steps` steps from prices `old` to `aim` take what the cheapest of `plans` costs at them
    past that of the best solution.
    """
    assert run.rows is not None
    before = False
    for k in range(1 << run.options.tree.price_steps):
        n = (old + ((aim - old) * k >> run.options.tree.price_steps)) / run.denominator
        past = min(c.cost + float(n @ (c.use - run.rows.limit)) for c in plans) >= run.incumbent.cost
        if past and before:
            return k
        before = not past or before
    return 1 << run.options.tree.price_steps


def _swept(run: Run, sweeper: Sweeper, n: Ints, enough: int, floor: int) -> tuple[int, bool] | None:
    """Sweeps at prices `n` until the bound hardly moves, reaches `enough`, or is not going to reach `floor`; the bound,
    and whether it was enough.

    None when the time is over at once.
    """
    rows, q = run.rows, run.denominator
    assert rows is not None
    apply_multipliers(sweeper, rows, n)
    offset = sweeper.network.base.constant - rows.limit * int(n.sum())
    moving, history = AcceleratedSweeper(sweeper), list[int]()
    while True:
        bound = moving.run(run.options.tree.part_stride, run.clock, enough * q - offset)
        if bound is None:
            return None
        history.append(bound + offset)
        gain = history[-1] - history[-2] if len(history) > 1 else history[-1]
        if run.clock.over() or history[-1] >= enough * q or gain * run.options.tree.part_flat <= abs(history[-1]):
            break
        if len(history) >= run.options.tree.part_look and history[-1] + run.options.tree.part_hope * gain < floor * q:
            break
    moving.store()
    return history[-1] // q, history[-1] >= enough * q and enough < run.enough()


def _swept_on(run: Run, node: _Node) -> _Node:
    """`node` with more sweeps at its prices."""
    assert run.rows is not None
    sweeper = run.sweeper(build(run.base, node.domains))
    load(sweeper, node.record)
    n = run.multipliers(run.rows, node.record)
    if _swept(run, sweeper, n, run.enough(), node.lower) is None:
        return replace(node, rising=False)
    return _recorded(run, replace(node, rising=False), sweeper, n)


def _recorded(run: Run, node: _Node, sweeper: Sweeper, n: Ints) -> _Node:
    """`node` with the messages of `sweeper` at prices `n` as its record."""
    assert run.rows is not None
    record, score = run.record(sweeper.network, sweeper, run.rows.pairs(n))
    found = score.lower()
    lower = run.enough() if found is None else found
    if node.draft is not None:  # it is part of a tree
        if lower <= node.lower:
            return node
        node.draft.record, node.draft.score = record, score
        return replace(node, record=record, lower=lower)
    run.held += sum(m.nbytes for m in (*record.to_u, *record.to_v))
    return replace(node, draft=DualNode(record, node.domains, score), record=record, lower=max(lower, node.lower))


def _starts(kept: tuple[int, ...], moved: tuple[int, ...], layer: Ints, vertex: int) -> list[tuple[int, ...]]:
    """`moved` with the label of `kept` at `vertex`: nowhere else, and with `kept` before, and after."""
    one, other = np.array(kept), np.array(moved)
    alone = np.arange(layer.size) == vertex
    return [
        tuple(np.where(where | alone, one, other).tolist())
        for where in (alone, layer < layer[vertex], layer > layer[vertex])
    ]


def _searched_around(
    run: Run, active: ActiveColumns, parts: dict[int, Ints], start: tuple[int, ...], vertex: int, n: Floats
) -> tuple[int, ...]:
    """`start` searched again around `vertex`, within `parts` at the prices `n`."""
    assert run.rows is not None
    window = set(np.flatnonzero(np.abs(active.layer - active.layer[vertex]) <= run.options.tree.window).tolist())
    problem = _within(priced(run.problem, run.rows.events, n), parts)
    return search_neighbourhood(
        run, active.make, problem, start, window, run.clock.share(run.options.tree.window_share)
    )


def _within(problem: SelectionProblem, parts: dict[int, Ints]) -> SelectionProblem:
    """`problem` with everything else forbidden."""
    vertices = list(problem.vertices)
    for v, part in parts.items():
        cost = np.full(vertices[v].cost.size, FORBIDDEN, dtype=np.int64)
        cost[part] = vertices[v].cost[part]
        vertices[v] = Vertex(vertices[v].name, cost)
    return replace(problem, vertices=tuple(vertices))
