"""Checks that the program of a joint plan is one of its e-graph, and its plan what the certificate's
solution says.

A program of an e-graph has operators of it, in its order, one per class that it computes, and the inputs, parameters,
outputs and state of the user's graph: as every operator computes its class, so does the program.  A solution says per
class which operator computes it, or none, and where; and of every copy where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ...models.communication.choices import Choices
from ...models.joint.choices import Block, Kind
from ...models.joint.egraph import EGraph
from ...models.joint.problem import JointDecision, JointPlanning
from ...models.problem.selection_problem import Ints, SelectionProblem
from ...models.program.graph import Graph, Role

Where = dict[str, tuple[tuple[int, ...], ...]]


def wrong_program(graph: Graph, egraph: EGraph) -> str:
    """Why a graph is no program of an e-graph; empty if it is one."""
    base, union = egraph.base, egraph.union
    if (graph.outputs, graph.state) != (base.outputs, base.state):
        return "its outputs or its state are not the user's"
    order = {op.name: i for i, op in enumerate(egraph.operators)}
    last = -1
    for op in graph.operators:
        if op.name not in order or egraph.operators[order[op.name]] != op:
            return f"operator {op.name!r} is none of the e-graph"
        if order[op.name] <= last:
            return f"operator {op.name!r} stands in another order than in the e-graph"
        last = order[op.name]
    writes = [op.output.tensor for op in graph.operators]
    if len(set(writes)) != len(writes):
        return "two operators compute the same class"
    needed = {t.name for t in union.tensors if t.role is not Role.VALUE} | set(writes)
    if {t.name for t in graph.tensors} != needed or len(graph.tensors) != len(needed):
        return "its tensors are not the user's inputs and parameters, and what it computes"
    if changed := [t.name for t in graph.tensors if union.tensor(t.name) != t]:
        return f"tensor {changed[0]!r} is another one in the e-graph"
    users = {op.name for op in graph.operators} == {op.name for op in base.operators}
    if graph.name != (base.name if users else f"{base.name}+rewritten"):
        return f"it is called {graph.name!r}"
    return ""


def wrong_choices(graph: Graph, choices: Choices, planning: JointPlanning, solution: Sequence[int]) -> str:
    """Why a plan is not what a solution of the joint problem says; empty if it is."""
    if len(solution) != len(planning.decisions):
        return "the solution decides something else"
    computed: dict[str, str] = {}
    where, copies = Where(), Where()
    for d, choice in zip(planning.decisions, solution, strict=True):
        block, k = _chosen(d, choice)
        if d.rests:
            if block.kind is Kind.COPY:
                copies[d.tensor] = _rows(planning.structures.of_copy(d.tensor), k)
        elif block.node is not None:
            computed[d.tensor] = block.node.name
            where[block.node.name] = _rows(planning.structures.of_operator(block.node), k)
    if computed != {op.output.tensor: op.name for op in graph.operators}:
        return "its operators are not those of the certificate's solution"
    for found, expected in ((choices.operators, where), (choices.copies, copies)):
        if len(found) != len(expected) or {name: p.matrix for name, p in found} != expected:
            return "they are not those of the certificate's solution"
    return ""


def _chosen(d: JointDecision, choice: int) -> tuple[Block, int]:
    """The block of a choice, and its number there."""
    i = max(i for i, start in enumerate(d.starts) if start <= choice)
    return d.blocks[i], choice - d.starts[i]


def _rows(placements: Ints, k: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in row) for row in placements[k])


def wrong_cost(alone: SelectionProblem, x: tuple[int, ...], joint: SelectionProblem, cost: int) -> str:
    """Why the plan of a program costs alone something else than jointly; empty if it does not.

    Where units differ, every term of either sum was rounded by a unit at most.
    """
    costs = Fraction(alone.cost_of(tuple(x)), alone.scale), Fraction(cost, joint.scale)
    terms = len(alone.vertices) + len(alone.edges) + len(joint.vertices) + len(joint.edges)
    apart = Fraction(terms, min(alone.scale, joint.scale)) if alone.scale != joint.scale else Fraction(0)
    if abs(costs[0] - costs[1]) <= apart:
        return ""
    return f"the plan of the program alone costs {float(costs[0])} s, the claim says {float(costs[1])} s"
