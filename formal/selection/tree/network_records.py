"""Records of a searched network, from its nodes and the labels that their checker has left.

A node was bounded against the solution that was known then.  The checker fixes labels against the last one, from which
more may follow, so it is followed here: on its labels every round is bounded again, what a node above closes by now is
left out, and so is a part whose labels are gone.  A log of presolve is about exact labels: `Split` records with one
part bring back those that have left since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....models.problem.selection_problem import Ints
from ....proofs.selection.certificates import Dual, Open, Point, Record, Split
from ..model.dense import sides
from ..model.infinity import INFINITY, NOTHING
from . import network_kernels as kernels
from .network_kernels import FAR
from .network_nodes import Net, Node

Limit = Callable[[Net], int]
"""A bound without the constant, in units of the messages."""


def record_of(node: Node, target: Limit, slack: Limit) -> tuple[Record, int]:
    """The record of a node whose problem is whole, and what it establishes, in units of the run's problem.  `target`:
    the bound that closes a node; `slack`: labels whose bound is above leave.
    """
    return _record(node, *node.net.whole(), target, slack)


def _record(node: Node, cnt: Ints, lab: Ints, target: Limit, slack: Limit) -> tuple[Record, int]:
    """The record of a node where the labels are left that its checker has.  They change in place."""
    if node.exact is not None:
        return node.exact, INFINITY
    net, enough = node.net, target(node.net)
    rounds: list[tuple[Ints, int]] = []
    record: Record
    record, bound = Open(), NOTHING
    for messages, _ in node.duals:
        found = net.score(messages, cnt, lab)
        rounds.append((messages, found))
        if found >= enough:
            break
        if kernels.drop(net.flat.label, cnt, lab, net.excess, slack(net) - found) < 0:
            bound = INFINITY
            break
    else:
        record, bound = _behind(node, cnt, lab, target, slack)
    for messages, found in reversed(rounds):
        to_u, to_v = sides(net.flat.graph, messages)
        dual = Dual(tuple(to_u), tuple(to_v), net.q)
        if found < enough and not (isinstance(record, Open) and bound <= NOTHING):
            dual = replace(dual, then=record)
        record, bound = dual, max(bound, INFINITY if found >= FAR >> 1 else net.units(found))
    return record, bound


def _behind(node: Node, cnt: Ints, lab: Ints, target: Limit, slack: Limit) -> tuple[Record, int]:
    """What follows the last round of a node."""
    if node.point:
        return Point(), INFINITY
    if node.empty:
        return Open(), INFINITY
    if node.reduced is not None:
        presolved, below = node.reduced
        record, bound = (Open(), INFINITY) if below is None else record_of(below, target, slack)
        if isinstance(record, Open) and bound <= NOTHING:
            return record, bound
        record = presolved.proof_back(record)
        for v, (then, now) in enumerate(zip(node.net.domains(node.cnt, node.lab), cnt.tolist(), strict=True)):
            if then.size != now:
                record = Split(v, (tuple(then.tolist()),), (record,))
        return record, bound
    if not node.children:
        return Open(), NOTHING
    here = node.net.flat.label[node.vertex]
    left = set(lab[here : here + cnt[node.vertex]].tolist())
    kept = [k for k, part in enumerate(node.parts) if left.intersection(part)]
    parts = [
        _record(node.children[k], *node.net.with_part(cnt, lab, node.vertex, node.parts[k]), target, slack)
        for k in kept
    ]
    if all(isinstance(r, Open) and b <= NOTHING for r, b in parts):
        return Open(), NOTHING
    return Split(node.vertex, tuple(node.parts[k] for k in kept), tuple(r for r, _ in parts)), min(b for _, b in parts)
