"""Explores one node of the proof tree, known as branch and bound: eliminate where the width allows,
otherwise bound, fix by reduced costs, and branch.

At a node with domains D:
  1. one point left, or elimination of D fits the limits: solved exactly;
  2. otherwise sweeps until the gap is closed, half of the labels can be fixed, or the bound stalls;
  3. the messages are rounded, their bound and reduced costs computed in integers, and labels fixed by reduced
     costs (`Dual`);
  4. if that removed enough, the node is solved again on what survived, with the messages kept (tables are small now);
     otherwise the domain of one vertex is split and the parts are searched, most promising first (`Split`).
Resource rows add multipliers to the bound (`bound/subgradient.py`), a test for conflicts at every node, and repair of
solutions (`primal/repair.py`); elimination ignores rows and then closes a node only if its solution fits or its value
reaches the incumbent. Time runs out: what is left is `Open`, and the enclosing dual still gives a bound.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ....models.problem.selection_problem import Ints
from ....proofs.selection.certificates import Dual, Elimination, Open, Point, RowConflict
from ..bound.decode import decode
from ..bound.dual import branching_vertex, gather, row_costs, score, spread
from ..bound.subgradient import factored_ascent
from ..bound.trws import Sweeper
from ..elimination.factored import eliminate, elimination_order, recorded_order
from ..model.factored import Domains, Network, build
from ..model.infinity import INFINITY
from ..model.resources import Rows
from .proof_tree import DualNode, EliminationNode, Leaf, ProofTree, SplitNode
from .run import Run
from .sweeps import bound_now, sweep


def eliminator(run: Run, domains: Domains, before: Elimination) -> tuple[Elimination, int] | None:
    """Elimination for the assembly, in the order of `before`: it was possible on larger domains then, so it may
    take `assembly_s` beyond the limit.
    """
    network = build(run.unit, domains)
    if run.assembly is None:
        left = run.clock.remaining_s()
        run.assembly = run.clock.beside(max(left, 0.0) + run.options.tree.assembly_s)
    outcome = eliminate(network, recorded_order(network, before), run.assembly, run.options.elimination)
    return None if outcome is None else (outcome.record, outcome.value)


def explore(run: Run, domains: Domains, warm: Dual | None, depth: int) -> ProofTree:
    """The proof tree of `domains`; `warm` is a dual of an enclosing node to start from."""
    if any(d.size == 0 for d in domains) or run.nodes == 0 or run.held > run.limits.held:
        return Leaf(Open())
    if run.nodes is not None:
        run.nodes -= 1
    if all(d.size == 1 for d in domains):
        run.incumbent.offer(tuple(int(d[0]) for d in domains))
        return Leaf(Point())
    if run.rows is not None:
        found = run.rows.conflict(domains, run.incumbent.solution is None, run.clock)
        if found is not None:
            return Leaf(RowConflict(found))
    network = build(run.unit, domains)
    run.charge(network)
    at, rows = run.limits, run.rows is not None
    exact = _eliminated(
        run, network, domains, (at.joint, min(at.work, at.row_work) if rows and depth else at.work, at.kept)
    )
    if exact is not None:
        return exact
    if run.base is not run.unit:
        network = build(run.base, domains)
    node, below = _bounded(run, network, domains, warm, depth)
    del network  # its tables would wait on the stack, one set per level, while the parts are searched
    if below is not None:
        node.child = _below(run, below, node, warm, depth)
    return node


def _bounded(
    run: Run, network: Network, domains: Domains, warm: Dual | None, depth: int
) -> tuple[DualNode, Domains | None]:
    """A dual on `domains`, and what it leaves of them; None when nothing is left to search."""
    if run.holes and not run.clock.over():
        swept = _consistent(run, network, domains)
        if swept is not None:
            return swept
    sweeper = run.sweeper(network, warm)
    if (
        warm is None or not warm.multipliers
    ):  # otherwise sweeps at n = 0 would spoil messages that belong to multipliers
        sweep(run, sweeper, depth)
    multipliers: tuple[tuple[int, int], ...] = ()
    if run.rows is not None and (warm is not None or not run.is_closed(bound_now(sweeper))):
        multipliers = _multiply(run, sweeper, run.rows, warm, depth)
    record, result = run.record(network, sweeper, multipliers)
    node = DualNode(record, domains, result)
    run.held += sum(m.nbytes for m in (*record.to_u, *record.to_v))
    lower = result.lower()
    run.progress.update("bound", lower if depth == 0 else None, run.upper())
    if lower is None or lower >= run.enough():
        return node, None
    return node, result.fix(domains, run.incumbent.cost)


def _below(run: Run, kept: Domains, node: DualNode, warm: Dual | None, depth: int) -> ProofTree:
    """What is left after the dual of `node`: solved again when little is, otherwise split."""
    if node.consistency:
        return explore(run, kept, warm, depth)
    if run.clock.over():
        return Leaf(Open())
    if any(d.size == 0 for d in kept):  # nothing below is better than the incumbent
        return Leaf(Open())
    left, before = sum(d.size for d in kept), sum(d.size for d in node.domains)
    if left <= run.options.tree.again * before or all(d.size < 2 for d in kept):
        return explore(run, kept, node.record, depth)
    if run.rows is None:
        at = run.limits
        exact = _eliminated(run, build(run.unit, kept), kept, (at.last_joint, at.last_work, at.last_kept))
        if exact is not None:
            return exact
    if left <= run.options.tree.again_late * before:
        return explore(run, kept, node.record, depth)
    return _branch(run, kept, node.record, depth)


def _eliminated(run: Run, network: Network, domains: Domains, limits: tuple[int, int, int]) -> EliminationNode | None:
    """Exact elimination within `limits` (`EliminationOrder.within`); None if it does not fit, the time runs out, or its
    solution breaks a row and its value is below the incumbent.
    """
    joint, work, kept = limits
    run.charge(network)
    order = elimination_order(network, joint)
    if not order.within(joint, min(work, run.replay), kept):
        return None
    run.progress.update("elimination", None, run.upper())
    outcome = eliminate(network, order, run.clock, run.options.elimination)
    if outcome is None:
        return None
    exact = outcome.choice is None or run.offer(network, list(outcome.choice), polish=run.rows is not None)
    if not (run.rows is None or exact or outcome.value >= run.enough()) or not run.proves(outcome):
        return None
    return EliminationNode(domains, outcome.record, outcome.value)


def _consistent(run: Run, network: Network, domains: Domains) -> tuple[DualNode, Domains] | None:
    """One round of arc consistency as a dual without messages, if it removes enough: against a good incumbent a hundred
    rounds may remove a little each, and every round takes as long as a sweep.
    """
    run.charge(network)
    zero_u = [np.zeros(network.tables[a.table].shape[0], dtype=np.int64) for a in network.arcs]
    zero_v = [np.zeros(network.tables[a.table].shape[1], dtype=np.int64) for a in network.arcs]
    result = score(network, zero_u, zero_v)
    kept = result.fix(domains, run.incumbent.cost)
    before, left = sum(d.size for d in domains), sum(k.size for k in kept)
    at = run.options.tree
    if left == before or (before > at.consistent_labels and (before - left) * at.consistent < before):
        return None
    to_u, to_v = spread(network, zero_u, zero_v)
    return DualNode(Dual(to_u, to_v, run.denominator), domains, result, consistency=True), kept


def _multiply(run: Run, sweeper: Sweeper, rows: Rows, warm: Dual | None, depth: int) -> tuple[tuple[int, int], ...]:
    """Ascent over the multipliers, in rounds with a repaired solution after each."""
    network, at = sweeper.network, run.options.tree
    n = run.multipliers(rows, warm)
    last: int | None = None
    for _ in range(1 if depth else at.ascent_rounds):
        cost = run.incumbent.cost
        target = None if cost >= INFINITY else cost * run.denominator - network.base.constant
        until = run.clock.at_most(
            None if depth or run.clock.limit_s is None else at.ascent_share * run.clock.remaining_s()
        )
        strides = max(1, run.limits.node_steps // run.options.bound.stride) if depth else None
        state = factored_ascent(sweeper, rows, n, target, until, strides)
        n = state.n
        run.offer(network, decode(sweeper), polish=len(network.domains) < at.repaired)
        if state.bound is None:
            break
        bound = state.bound + network.base.constant
        run.progress.update("multipliers", None if depth else bound // run.denominator, run.upper())
        flat = last is not None and (bound - last) * at.ascent_gain <= abs(last)
        if run.clock.over() or run.is_closed(bound) or flat:
            break
        last = bound
    return rows.pairs(n)


def _branch(run: Run, domains: Domains, warm: Dual, depth: int) -> ProofTree:
    vertex, cuts = _cuts(run, domains, warm)
    node = SplitNode(vertex, tuple(tuple(sorted(int(a) for a in part)) for part in cuts), [])
    for part in node.parts:
        if run.clock.over():
            node.children.append(Leaf(Open()))
            continue
        chosen = np.array(part, dtype=np.int64)
        node.children.append(explore(run, (*domains[:vertex], chosen, *domains[vertex + 1 :]), warm, depth + 1))
    return node


def _cuts(run: Run, domains: Domains, warm: Dual) -> tuple[int, list[Ints]]:
    """The vertex to branch on and the parts of its domain, cheapest first."""
    network = build(run.base, domains)
    run.charge(network)
    to_u, to_v = gather(network, warm)
    inner = score(network, to_u, to_v, *row_costs(run.problem, domains, warm.multipliers))
    vertex = branching_vertex(network, inner)
    labels = domains[vertex][np.argsort(inner.reduced_costs[vertex], kind="stable")]
    size = labels.size
    return vertex, [labels[i : i + 1] for i in range(size)] if size <= run.options.tree.singles else [
        labels[: size // 2],
        labels[size // 2 :],
    ]


new_run = partial(Run, explorer=explore)
"""A run of this branch and bound."""
