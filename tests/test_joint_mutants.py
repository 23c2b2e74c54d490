"""Forged derivations and forged problems: none is accepted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.limits import Counter
from shardproof.models.joint.choices import Kind
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.problem import JointPlanning, JointSubject, build_joint
from shardproof.models.joint.rules import STATEMENTS
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Optimal, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.index import Affine
from shardproof.models.program.operators import Operator
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.plan.bundle import Plan, write_plan
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.entries import Numbers
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.joint.skeleton import Programs, wrong_skeleton
from tests.joint_cases import CASES

MUTANTS = 1000


def changed(egraph: EGraph, name: str, op: Operator) -> EGraph:
    """The e-graph with one added operator replaced."""
    return replace(egraph, operators=tuple(op if o.name == name else o for o in egraph.operators))


def mutants(egraph: EGraph, derivation: Derivation, rng: random.Random) -> Iterator[tuple[str, EGraph, Derivation]]:
    """Kinds of forgery at one random step, each in turn."""
    k = rng.choice([k for k, s in enumerate(derivation.steps) if s.place])
    step = derivation.steps[k]
    node = next(op for op in egraph.operators if op.name == step.node)
    others = [op.name for op in egraph.operators if op.name not in (*step.place, step.node)] or [step.node]

    def with_step(new: Step) -> Derivation:
        return replace(derivation, steps=(*derivation.steps[:k], new, *derivation.steps[k + 1 :]))

    yield "another rule", egraph, with_step(replace(step, rule=rng.choice(sorted(set(STATEMENTS) - {step.rule}))))
    i = rng.randrange(len(step.place))
    place = (*step.place[:i], rng.choice(others), *step.place[i + 1 :])
    yield "another place", egraph, with_step(replace(step, place=place))
    yield "a shorter place", egraph, with_step(replace(step, place=step.place[:-1]))
    yield "a longer place", egraph, with_step(replace(step, place=(*step.place, rng.choice(others))))
    yield "the place in another order", egraph, with_step(replace(step, place=step.place[::-1]))
    i = rng.randrange(len(step.facts))
    yield "a missing precondition", egraph, with_step(replace(step, facts=(*step.facts[:i], *step.facts[i + 1 :])))
    fact = (step.facts[i][0], step.facts[i][1] + rng.choice((-1, 1, 8)))
    yield "another size", egraph, with_step(replace(step, facts=(*step.facts[:i], fact, *step.facts[i + 1 :])))
    yield "no step", egraph, replace(derivation, steps=(*derivation.steps[:k], *derivation.steps[k + 1 :]))
    yield "a step twice", egraph, replace(derivation, steps=(*derivation.steps, step))
    yield "another library", egraph, replace(derivation, library=derivation.library[::-1])
    if len({a.tensor for a in node.inputs}) > 1:
        a, b = rng.sample([j for j in range(len(node.inputs))], 2)
        if node.inputs[a].tensor != node.inputs[b].tensor:
            inputs = list(node.inputs)
            inputs[a], inputs[b] = (
                replace(inputs[a], tensor=node.inputs[b].tensor),
                replace(inputs[b], tensor=node.inputs[a].tensor),
            )
            yield "swapped inputs", changed(egraph, node.name, replace(node, inputs=tuple(inputs))), derivation
    alike = [
        t.name
        for t in egraph.union.tensors
        if t.shape == egraph.union.tensor(node.output.tensor).shape and t.name != node.output.tensor
    ]
    if alike:
        other = replace(node, output=replace(node.output, tensor=rng.choice(alike)))
        yield "a class that is no equal", changed(egraph, node.name, other), derivation
    j = rng.randrange(len(node.inputs))
    given = [
        t.name
        for t in egraph.union.tensors
        if t.shape == egraph.union.tensor(node.inputs[j].tensor).shape and t.name != node.inputs[j].tensor
    ]
    if given:
        inputs_ = (*node.inputs[:j], replace(node.inputs[j], tensor=rng.choice(given)), *node.inputs[j + 1 :])
        yield "another input", changed(egraph, node.name, replace(node, inputs=inputs_)), derivation
    maps = dict(node.attributes).get("epilogue", ())
    if maps and isinstance(maps, tuple):
        other_maps = {
            "another map": (*maps[:-1], "abs" if len(node.inputs) == node.attribute("factors", 0) else "maximum"),
            "a map twice": (*maps, "negate"),
        }
        for kind, new in other_maps.items():
            attributes = tuple(sorted({**dict(node.attributes), "epilogue": new}.items()))
            yield kind, changed(egraph, node.name, replace(node, attributes=attributes)), derivation
    axis = next((a for a in node.axes if a.combine is not None), None)
    if axis is not None:
        free = replace(node, axes=tuple(replace(a, splittable=True) for a in node.axes))
        yield "a sum that may be split", changed(egraph, node.name, free), derivation
        shifted = [
            replace(
                access,
                index=tuple(
                    Affine(x.terms, x.offset + 1, x.whole) if axis.name in dict(x.terms) else x for x in access.index
                ),
            )
            for access in node.inputs
        ]
        moved = replace(node, inputs=(shifted[0], *node.inputs[1:]))
        if moved != node:
            yield "a shifted index", changed(egraph, node.name, moved), derivation


def test_no_forged_derivation_is_accepted() -> None:
    rng, seen, kinds = random.Random(19), 0, dict[str, int]()
    grown = [saturate(make()) for make in CASES.values()]
    while seen < MUTANTS:
        egraph, derivation = rng.choice(grown)
        assert wrong_derivation(egraph, derivation) == ""
        for kind, forged, steps in mutants(egraph, derivation, rng):
            if (forged, steps) == (egraph, derivation):
                continue
            assert wrong_derivation(forged, steps), (kind, steps)
            seen += 1
            kinds[kind] = kinds.get(kind, 0) + 1
    assert min(kinds.values()) >= 10 and len(kinds) == 17, kinds


def planned(name: str = "step", machine: str = "cloud-a100:2x2") -> Plan:
    found = plan_jointly(CASES[name](), load_machine(machine), space("complete"), clock=Clock())
    plan = joint_plan(found)
    assert plan is not None
    return plan


def refused(plan: Plan) -> set[str]:
    """Kinds of the results that refute a plan."""
    return {r.kind for r in check_any_plan(write_plan(None, plan)).results if r.verdict is Verdict.REFUTED}


def test_forged_files_are_refused() -> None:
    plan = planned()
    joint, claim = plan.joint, plan.certificate.claim
    assert joint is not None and isinstance(claim, Optimal) and refused(plan) == set()
    cheaper = replace(plan.certificate, claim=Optimal(claim.solution, claim.cost - 1))
    assert "Optimal" in refused(replace(plan, certificate=cheaper))
    assert "Equivalent" in refused(replace(plan, graph=replace(plan.graph, name="other")))
    assert "Parts" in refused(replace(plan, joint=replace(joint, tags=0)))
    fewer = EGraph(joint.egraph.base, (), joint.egraph.base.operators)
    assert refused(
        replace(plan, joint=replace(joint, egraph=fewer, derivation=Derivation(joint.derivation.library, 1, ())))
    )
    tanh = {op.name: replace(op, function="tanh") for op in plan.user_graph.operators if op.function == "relu"}
    base = replace(plan.user_graph, operators=tuple(tanh.get(op.name, op) for op in plan.user_graph.operators))
    swapped = EGraph(base, (), tuple(tanh.get(op.name, op) for op in joint.egraph.operators))
    assert tanh
    assert "Equivalent" in refused(replace(plan, joint=replace(joint, egraph=swapped)))


@pytest.mark.parametrize("level", [0, 1, 3])
def test_every_changed_number_is_found(level: int) -> None:
    """One entry of one table, one cost, one map at a time; all entries are compared here."""
    egraph, derivation = saturate(CASES["step"]())
    machine, where = load_machine("cloud-a100:2x2"), space("complete")
    fresh = build_joint(JointSubject(egraph, derivation.rounds, machine, where, level=level))
    counter, rng = Counter(machine.hierarchy, where), random.Random(level)

    def wrong(planning: JointPlanning) -> str:
        numbers = Numbers(planning, Programs(egraph))
        return numbers.wrong_choices(counter) or numbers.wrong_edges(1 << 27, "seed")[0]

    assert wrong(fresh) == "" and wrong_skeleton(fresh, Programs(egraph)) == ""
    problem = fresh.problem
    for _ in range(30):
        number = rng.randrange(len(problem.tables))
        table = problem.tables[number].copy()
        used = [e for e in problem.edges if e.table == number]
        e = rng.choice(used)
        rows = np.unique(e.rows) if e.rows is not None else np.arange(table.shape[0])
        columns = np.unique(e.cols) if e.cols is not None else np.arange(table.shape[1])
        at = int(rng.choice(rows.tolist())), int(rng.choice(columns.tolist()))
        table[at] = 5 if table[at] >= FORBIDDEN else rng.choice((FORBIDDEN, int(table[at]) + 1))
        tables = (*problem.tables[:number], table, *problem.tables[number + 1 :])
        assert wrong(replace(fresh, problem=replace(problem, tables=tables)))
    for _ in range(20):
        v = rng.randrange(len(problem.vertices))
        cost = problem.vertices[v].cost.copy()
        cost[rng.randrange(cost.size)] += 1
        vertices = (*problem.vertices[:v], replace(problem.vertices[v], cost=cost), *problem.vertices[v + 1 :])
        assert wrong(replace(fresh, problem=replace(problem, vertices=vertices)))


@pytest.mark.parametrize("level", [1, 3])
def test_missing_choices_and_edges_are_found(level: int) -> None:
    egraph, derivation = saturate(CASES["step"]())
    fresh = build_joint(
        JointSubject(egraph, derivation.rounds, load_machine("cloud-a100:2x2"), space("complete"), level=level)
    )
    programs = Programs(egraph)
    for v, d in enumerate(fresh.decisions):
        for i in range(len(d.blocks)):
            blocks = (*d.blocks[:i], *d.blocks[i + 1 :])
            less = (*fresh.decisions[:v], replace(d, blocks=blocks), *fresh.decisions[v + 1 :])
            assert wrong_skeleton(replace(fresh, decisions=less), programs), (d.name, i)
        for i, block in enumerate(d.blocks):
            if block.kind is Kind.COPY:
                swapped = (*d.blocks[:i], replace(block, kind=Kind.ABSENT), *d.blocks[i + 1 :])
                other = (*fresh.decisions[:v], replace(d, blocks=swapped), *fresh.decisions[v + 1 :])
                assert wrong_skeleton(replace(fresh, decisions=other), programs)
    edges = fresh.problem.edges
    for number in range(len(edges)):
        less_edges = replace(fresh.problem, edges=(*edges[:number], *edges[number + 1 :]))
        links = (*fresh.links[:number], *fresh.links[number + 1 :])
        assert wrong_skeleton(replace(fresh, problem=less_edges, links=links), programs)
