"""Every condition on the parts of a joint problem refuses what only it sees, by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from test_joint_memory import PLENTY

from shardproof.formal.rewriting.joint.job import Joint
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.models.cost.limits import Counter
from shardproof.models.joint.choices import Block, Kind
from shardproof.models.joint.problem import JointDecision, JointPlanning, JointSubject, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import LowerBound, Optimal, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem
from shardproof.models.program.graph import Graph
from shardproof.proofs.plan.bundle import Plan, write_plan
from shardproof.verify.joint import entries
from shardproof.verify.joint import plan as checker
from shardproof.verify.joint.entries import Numbers
from shardproof.verify.joint.program import wrong_choices, wrong_cost, wrong_program
from shardproof.verify.joint.skeleton import Programs, wrong_skeleton
from tests.joint_cases import CASES

MACHINE, WHERE = load_machine("cloud-a100:1x2"), space("complete")


@cache
def problem(level: int) -> JointPlanning:
    egraph, derivation = saturate(CASES["step"]())
    return build_joint(JointSubject(egraph, derivation.rounds, MACHINE, WHERE, level=level))


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


@pytest.mark.parametrize("level", [1, 3])
def test_what_is_forbidden_is_not_free(level: int) -> None:
    """A layout passed on as another, two programs' choices together: one forbidden entry at a time becomes a cost."""
    p = problem(level)
    programs, rng = Programs(p.egraph), random.Random(level)
    places = []
    for number, table in enumerate(p.problem.tables):
        used = [e for e in p.problem.edges if e.table == number]
        rows = {int(r) for e in used for r in (range(table.shape[0]) if e.rows is None else e.rows)}
        columns = {int(c) for e in used for c in (range(table.shape[1]) if e.cols is None else e.cols)}
        places += [(number, r, c) for r, c in np.argwhere(table >= FORBIDDEN).tolist() if r in rows and c in columns]
    for number, row, column in rng.sample(places, 30):
        table = p.problem.tables[number].copy()
        table[row, column] = rng.choice((0, 5))
        tables = (*p.problem.tables[:number], table, *p.problem.tables[number + 1 :])
        free = replace(p, problem=replace(p.problem, tables=tables))
        assert Numbers(free, programs).wrong_edges(1 << 20, "seed")[0], (number, row, column)


def test_placements_outside_the_space_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(1)
    monkeypatch.setattr(entries, "check_list", lambda *of: "a placement is missing")
    wrong = Numbers(p, Programs(p.egraph)).wrong_choices(Counter(MACHINE.hierarchy, WHERE))
    assert "a placement is missing" in wrong


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


def said(plan: Plan) -> dict[str, str]:
    """Reasons of what is refuted."""
    results = checker.check_any_plan(write_plan(None, plan)).results
    return {r.kind: r.reason for r in results if r.verdict is Verdict.REFUTED}


@cache
def searched(memory: int | None = None) -> Joint:
    return plan_jointly(CASES["two layers"](), MACHINE, WHERE, clock=Clock(), memory_limit=memory, level=1)


Change = Callable[[SelectionProblem], SelectionProblem]


def built(changed_to: Change, monkeypatch: pytest.MonkeyPatch, memory: int | None = None) -> dict[str, str]:
    """What the checker says of a plan that is optimal for another problem, if the shared builder makes that one: a
    builder that is wrong must not be believed.
    """
    found = searched(memory)

    def other(subject: JointSubject, *_: object, **__: object) -> JointPlanning:
        planning = build_joint(subject)
        return replace(planning, problem=changed_to(planning.problem))

    planning = replace(found.planning, problem=changed_to(found.planning.problem))
    answer = relax_resources(planning.problem, clock=Clock())
    assert answer.solution is not None
    plan = joint_plan(replace(found, planning=planning, answer=answer))
    assert plan is not None
    monkeypatch.setattr(checker, "build_joint", other)
    return said(replace(plan, memory_limit=memory))


def dear_tables(p: SelectionProblem) -> SelectionProblem:
    """The reshardings of one table, which the plan does without, take a unit longer."""
    x = next(n for n, t in enumerate(p.tables) if ((t > 0) & (t < FORBIDDEN)).any())
    table = p.tables[x].copy()
    table[(table > 0) & (table < FORBIDDEN)] += 1
    return replace(p, tables=(*p.tables[:x], table, *p.tables[x + 1 :]))


def dear_vertices(p: SelectionProblem) -> SelectionProblem:
    v = max(range(len(p.vertices)), key=lambda v: int(p.vertices[v].cost.max()))
    cost = p.vertices[v].cost.copy()
    cost[cost.argmax()] += 1
    return replace(p, vertices=(*p.vertices[:v], replace(p.vertices[v], cost=cost), *p.vertices[v + 1 :]))


def cheap_vertices(p: SelectionProblem) -> SelectionProblem:
    vertices = tuple(replace(v, cost=v.cost // 2) for v in p.vertices)
    return replace(p, vertices=vertices)


def one_assumption_less(p: SelectionProblem) -> SelectionProblem:
    return replace(p, assumptions=tuple(a for a in p.assumptions if a != "real-arithmetic"))


def another_assumption(p: SelectionProblem) -> SelectionProblem:
    others = {"real-arithmetic": "real-arithmetics"}
    return replace(p, assumptions=tuple(sorted(others.get(a, a) for a in p.assumptions)))


def no_limit(p: SelectionProblem) -> SelectionProblem:
    return replace(p, usages=(), limit=None)


def more_memory(p: SelectionProblem) -> SelectionProblem:
    """A byte more in one row, which would exclude what fits."""
    first, *others = p.usages
    return replace(p, usages=(replace(first, amount=first.amount + 1), *others))


BUILT: dict[str, tuple[Change, int | None, str, str]] = {
    "redistributions": (dear_tables, None, "Entries", "costs"),
    "times that the plan has not": (dear_vertices, None, "Space", "costs"),
    "times": (cheap_vertices, None, "Parts", "the plan of the program alone costs"),
    "assumptions": (one_assumption_less, None, "Parts", "real-arithmetic"),
    "another assumption": (another_assumption, None, "Parts", "real-arithmetic"),
    "a limit that is lost": (no_limit, PLENTY, "Parts", "its memory limit is not the plan's"),
    "rows": (more_memory, PLENTY, "Entries", "memory of"),
}


@pytest.mark.parametrize("name", BUILT)
def test_a_wrong_builder_is_not_believed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, memory, kind, words = BUILT[name]
    refuted = built(change, monkeypatch, memory)
    assert words in refuted[kind]


def test_a_plan_that_needs_more_than_its_rows_say_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of all: the plan of the program alone has rows of its own, built elsewhere."""
    refuted = built(lambda p: replace(p, usages=p.usages[:1]), monkeypatch, PLENTY)
    assert "the plan of the program alone needs" in refuted["Parts"]


def test_claims_of_a_file_are_all_there() -> None:
    plan = solved()[0]
    results = checker.check_any_plan(write_plan(None, plan)).results
    assert [r.kind for r in results] == ["Equivalent", "Parts", "Space", "Optimal", "Entries", "Delivers", "Bytes"]
    assert all(r.verdict is Verdict.PROVED for r in results)


def test_files_that_say_something_else() -> None:
    plan = solved()[0]
    claim = plan.certificate.claim
    assert isinstance(claim, Optimal)
    bound = replace(plan.certificate, claim=LowerBound(claim.cost))
    assert "LowerBound comes with no solution" in said(replace(plan, certificate=bound))["Parts"]
    (name, placed), *others = plan.choices.operators
    turned = replace(placed, matrix=placed.matrix[::-1])
    assert turned != placed
    moved = replace(plan, choices=replace(plan.choices, operators=((name, turned), *others)))
    assert said(moved)["Parts"]
    assert "it is about the problem" in said(replace(plan, memory_limit=PLENTY))["Parts"]
    assert set(said(replace(plan, communication=plan.communication[1:]))) == {"Bytes"}
    about = replace(plan.certificate, problem_sha256="0" * 64)
    assert "it is about the problem 000000000000.." in said(replace(plan, certificate=about))["Parts"]
