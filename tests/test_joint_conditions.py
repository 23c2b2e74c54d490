"""Every condition on the parts of a joint problem refuses what only it sees, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from shardproof.formal.joint.saturate import saturate
from shardproof.formal.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.limits import Counter
from shardproof.models.joint.choices import Block, Kind
from shardproof.models.joint.problem import JointDecision, JointPlanning, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Optimal
from shardproof.models.program.graph import Graph
from shardproof.proofs.plan.bundle import Plan
from shardproof.verify.joint.entries import Numbers
from shardproof.verify.joint.program import wrong_choices, wrong_cost, wrong_program
from shardproof.verify.joint.skeleton import Programs, wrong_skeleton
from tests.joint_cases import CASES

MACHINE, WHERE = load_machine("cloud-a100:1x2"), space("complete")


@cache
def problem(level: int) -> JointPlanning:
    egraph, derivation = saturate(CASES["step"]())
    return build_joint(egraph, derivation.rounds, MACHINE, WHERE, level=level)


def changed(p: JointPlanning, v: int, blocks: tuple[Block, ...]) -> JointPlanning:
    return replace(p, decisions=(*p.decisions[:v], replace(p.decisions[v], blocks=blocks), *p.decisions[v + 1 :]))


def decision(p: JointPlanning, wanted: Callable[[JointDecision], bool]) -> int:
    return next(v for v, d in enumerate(p.decisions) if wanted(d))


def tagged(rests: bool) -> Callable[[JointDecision], bool]:
    return lambda d: d.rests is rests and len(d.blocks) > 1 and bool(d.blocks[0].tag)


def broken(p: JointPlanning) -> Iterator[tuple[str, JointPlanning]]:
    """What is said, and a problem of which only that is true."""
    last = decision(p, lambda d: not d.rests)
    gone = (*p.decisions[:last], *p.decisions[last + 1 :])
    yield "class vertices", replace(p, decisions=gone)
    yield "class vertices", replace(p, decisions=(*p.decisions, p.decisions[last]))
    copy = decision(p, lambda d: d.rests)
    yield "copies are not", replace(p, decisions=(*p.decisions[:copy], *p.decisions[copy + 1 :]))
    yield "copies are not", replace(p, decisions=(*p.decisions, p.decisions[copy]))
    other = next(t for t in p.classes if p.classes[t] != last)
    name = p.decisions[last].tensor
    yield "does not decide", replace(p, classes={**p.classes, name: p.classes[other]})
    v = decision(p, tagged(True))
    blocks = p.decisions[v].blocks
    yield "name different classes", changed(p, v, (replace(blocks[0], tag=()), *blocks[1:]))
    none = tuple(replace(b, tag=(("x", (None,)),)) for b in blocks)
    yield "what has no modes", changed(p, v, none)
    unknown = tuple(replace(b, tag=((b.tag[0][0], ("nobody",)), *b.tag[1:])) for b in blocks)
    yield "do not divide", changed(p, v, unknown)
    every = tuple(m for b in blocks for m in b.tag[0][1])
    more = replace(blocks[0], tag=((blocks[0].tag[0][0], tuple(dict.fromkeys(every))), *blocks[0].tag[1:]))
    yield "do not divide", changed(p, v, (*blocks, more))
    yield "is there twice", changed(p, v, (*blocks, blocks[0]))
    yield "not the choices of all", changed(p, v, blocks[1:])
    edges, links = p.problem.edges, p.links
    yield "edges are not", replace(p, problem=replace(p.problem, edges=edges[1:]), links=links[1:])
    yield (
        "edges are not",
        replace(p, problem=replace(p.problem, edges=(*edges, edges[0])), links=(*links, links[0])),
    )
    yield "edges are not", replace(p, links=(replace(links[0], number=links[0].number + 1), *links[1:]))
    yield "edges are not", replace(p, links=(links[-1], *links[1:-1], links[0]))


@pytest.mark.parametrize("level", [1, 3])
def test_skeleton(level: int) -> None:
    p = problem(level)
    programs = Programs(p.egraph)
    assert wrong_skeleton(p, programs) == ""
    for said, other in broken(p):
        assert said in wrong_skeleton(other, programs), said


def test_a_class_does_not_look_at_itself() -> None:
    p = problem(3)
    v = decision(p, tagged(False))
    d = p.decisions[v]
    blocks = tuple(replace(b, tag=(*b.tag, (d.tensor, (None if b.node is None else b.node.name,)))) for b in d.blocks)
    assert "what has no modes" in wrong_skeleton(changed(p, v, blocks), Programs(p.egraph))


@pytest.mark.parametrize("kind", [Kind.ABSENT, Kind.PASSED, Kind.RUNS])
def test_choices(kind: Kind) -> None:
    """A block with a choice more than there are placements, layouts, or ways to be nowhere; one that costs."""
    p = problem(1)
    numbers = Numbers(p, Programs(p.egraph))
    counter = Counter(MACHINE.hierarchy, WHERE)
    v = decision(p, lambda d: any(b.kind is kind for b in d.blocks))
    d, cost = p.decisions[v], p.problem.vertices[v].cost
    i = next(i for i, b in enumerate(d.blocks) if b.kind is kind)
    high = d.span(i)[1]
    longer = replace(p.problem.vertices[v], cost=np.insert(cost, high, cost[high - 1]))
    vertices = (*p.problem.vertices[:v], longer, *p.problem.vertices[v + 1 :])
    wider = replace(p, problem=replace(p.problem, vertices=vertices))
    assert "costs" in Numbers(wider, Programs(p.egraph)).wrong_choices(counter)
    starts = tuple(n + 1 if k > i else n for k, n in enumerate(d.starts))
    sized = (*p.decisions[:v], replace(d, size=d.size + 1, starts=starts), *p.decisions[v + 1 :])
    said = Numbers(replace(wider, decisions=sized), Programs(p.egraph)).wrong_choices(counter)
    expected = {Kind.ABSENT: "more than once", Kind.PASSED: "are passed on", Kind.RUNS: "costs for"}
    assert expected[kind] in said
    late = (*p.decisions[:v], replace(d, starts=(1, *d.starts[1:])), *p.decisions[v + 1 :])
    assert Numbers(replace(p, decisions=late), Programs(p.egraph)).wrong_choices(counter)
    assert numbers.wrong_choices(counter) == ""


@cache
def solved() -> tuple[Plan, JointPlanning, tuple[int, ...]]:
    found = plan_jointly(CASES["two layers"](), MACHINE, WHERE, clock=Clock())
    plan = joint_plan(found)
    assert plan is not None and isinstance(plan.certificate.claim, Optimal)
    return plan, found.planning, plan.certificate.claim.solution


def other_programs(g: Graph) -> Iterator[tuple[str, Graph]]:
    yield "outputs or its state", replace(g, outputs=(*g.outputs, g.operators[0].output.tensor))
    yield "is none of the e-graph", replace(g, operators=(replace(g.operators[0], name="new"), *g.operators[1:]))
    yield "is none of the e-graph", replace(g, operators=(replace(g.operators[0], function="sin"), *g.operators[1:]))
    yield "in another order", replace(g, operators=g.operators[::-1])
    yield "in another order", replace(g, operators=(g.operators[0], *g.operators))
    yield "its tensors are not", replace(g, tensors=g.tensors[1:])
    yield "its tensors are not", replace(g, tensors=(*g.tensors, g.tensors[0]))
    first = g.tensors[0]
    yield "is another one", replace(g, tensors=(replace(first, shape=(*first.shape, 1)), *g.tensors[1:]))
    yield "it is called", replace(g, name="other")


def test_program() -> None:
    plan, planning, _ = solved()
    assert wrong_program(plan.graph, planning.egraph) == ""
    for said, other in other_programs(plan.graph):
        assert said in wrong_program(other, planning.egraph), said
    both = tuple(op for op in planning.egraph.operators if op.output.tensor == plan.graph.operators[-1].output.tensor)
    assert len(both) > 1
    twice = replace(plan.graph, operators=(*[o for o in plan.graph.operators if o not in both], *both))
    assert "the same class" in wrong_program(twice, planning.egraph)
    kept = {t.name for t in plan.graph.tensors}
    absent = next(t for t in planning.egraph.union.tensors if t.name not in kept)
    exchanged = replace(plan.graph, tensors=(absent, *plan.graph.tensors[1:]))
    assert "its tensors are not" in wrong_program(exchanged, planning.egraph)


def test_plan_of_the_program() -> None:
    plan, planning, x = solved()
    assert wrong_choices(plan.graph, plan.choices, planning, x) == ""
    assert "decides something else" in wrong_choices(plan.graph, plan.choices, planning, x[1:])
    fewer = replace(plan.graph, operators=plan.graph.operators[1:])
    assert "its operators are not" in wrong_choices(fewer, plan.choices, planning, x)
    operators = plan.choices.operators
    for other in (operators[1:], (*operators, operators[0])):
        assert "they are not" in wrong_choices(plan.graph, replace(plan.choices, operators=other), planning, x)
    name, placed = operators[0]
    moved = replace(placed, matrix=placed.matrix[::-1])
    assert moved != placed
    again = replace(plan.choices, operators=((name, moved), *operators[1:]))
    assert "they are not" in wrong_choices(plan.graph, again, planning, x)
    problem_ = planning.problem
    cost = problem_.cost_of(x)
    assert wrong_cost(problem_, x, problem_, cost) == "" != wrong_cost(problem_, x, problem_, cost - 1)
