"""The search over programs: tags of several sizes, and answers that are never worse than the graph as it is."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from budgets import work

from shardproof.formal.plans.simple import simple_plans
from shardproof.formal.rewriting.joint import solve as search
from shardproof.formal.rewriting.joint.levels import LARGE, MIDDLE
from shardproof.formal.rewriting.joint.request import rules_for
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build
from shardproof.models.joint.choices import MOST_TAGS, Skeleton
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.problem import JointPlanning, JointSubject, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.joint.books import Rewrites, read_book
from shardproof.proofs.plan.bundle import write_plan
from shardproof.proofs.rewrites.plain import DEFAULTS
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.joint.skeleton import Programs, wrong_skeleton
from tests.test_joint_rules import PLACES

WHERE = space("complete")
DEFAULT_BOOKS = Rewrites(tuple(read_book(path.read_bytes()) for path in DEFAULTS))


@pytest.mark.parametrize(
    ("name", "sizes", "machine"),
    [("vit", {"depth": 2}, "cloud-a100:2x2"), ("bert-large", {"layers": 2}, "cloud-a100:1x8")],
)
def test_transformers_are_proved(name: str, sizes: dict[str, int], machine: str) -> None:
    """With the modes of all readers and of the writer in the tags; how often each class is read says too little."""
    found = plan_jointly(zoo(name, **sizes), load_machine(machine), WHERE, clock=Clock())
    assert found.answer.status is Status.OPTIMAL and found.planning.skeleton.level == MIDDLE
    assert found.answer.cost is not None and found.plain.cost is not None
    scale = found.planning.problem.scale
    assert Fraction(found.answer.cost, scale) < Fraction(found.plain.cost, found.plain_scale)


def test_never_worse_than_the_plain_plan_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rows of all programs, which say more than those of one, leave no room for the user's plan, and what they
    leave is dearer or nothing, the answer is the user's plan: no operators added, and its file is accepted.
    """
    graph, machine = PLACES["merge-siblings"](), load_machine("cloud-a100:1x2")
    free = build(graph, machine, WHERE, 1 << 40)
    best = relax_resources(free.problem, clock=Clock())
    limit = free.problem.peak_of(best.solution or ())[0]

    def narrow(egraph: EGraph, rounds: int, *of: Any, memory_limit: int | None = None, **more: Any) -> JointPlanning:
        less = memory_limit // 4 if rounds and memory_limit is not None else memory_limit
        return build_joint(JointSubject(egraph, rounds, *of, memory_limit=less, **more))

    monkeypatch.setattr(search, "build_joint", narrow)
    for clock in (Clock(), work(1.0)):
        found = plan_jointly(graph, machine, WHERE, clock=clock, memory_limit=limit)
        assert found.plain.cost == best.cost and found.answer.cost is not None
        assert Fraction(found.answer.cost, found.planning.problem.scale) == Fraction(best.cost or 0, free.problem.scale)
        plan = joint_plan(found)
        assert plan is not None and found.planning.rounds == 0
        checked = check_any_plan(write_plan(None, plan))
        assert [(r.kind, r.reason) for r in checked.results if r.verdict is not Verdict.PROVED] == []


def test_the_rows_of_all_programs_leave_room_for_something_cheaper() -> None:
    """The same with the rows as they are: merged, the products fit, and cost less."""
    graph, machine = PLACES["merge-siblings"](), load_machine("cloud-a100:1x2")
    found = plan_jointly(graph, machine, WHERE, clock=Clock(), memory_limit=864)
    assert found.answer.status is Status.OPTIMAL and found.planning.rounds > 0
    assert (found.answer.cost or 0) < (found.plain.cost or 0)


def wide(readers: int) -> Graph:
    """A gradient that goes through many activations, each of which gives it from what it read or from what it gave."""
    b = Builder("wide")
    g, out = b.input("g", (4, 4)), []
    for i in range(readers):
        z = b.input(f"z{i}", (4, 4))
        out += [b.map(f"r{i}", "relu", z), b.map(f"y{i}", "relu_gradient", g, z)]
    return b.build(*out)


def test_tags_of_too_many_readers_say_less() -> None:
    """Where the readers of a tensor have more modes together than a vertex may have tags, they say how often it is read,
    and the checker accepts it.
    """
    few, many = saturate(wide(3))[0], saturate(wide(12))
    assert 2 ** len(many[0].readers["g"]) > MOST_TAGS
    assert {len(b.tag) for b in Skeleton(few, MIDDLE).rests["g"]} == {3}
    assert {len(b.tag) for b in Skeleton(many[0], MIDDLE).rests["g"]} == {0}
    for level in (MIDDLE, LARGE):
        planning = build_joint(
            JointSubject(many[0], many[1].rounds, load_machine("cloud-a100:1x2"), WHERE, level=level)
        )
        assert wrong_skeleton(planning, Programs(many[0])) == ""


@pytest.mark.parametrize("steps", [20_000, 200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "sizes"), [("transformer-layer", {}), ("dlrm", {}), ("llama", {"layers": 2})])
def test_no_limit_is_so_short_that_rules_make_a_plan_worse(name: str, sizes: dict[str, int], steps: int) -> None:
    """The graph as it is comes first, with all the time that a plan without rules has."""
    graph, machine = build_step(zoo(name, **sizes), "sgd").graph, load_machine("cloud-a100:2x4")
    base = build(graph, machine, WHERE, None)
    alone = solve(base.problem, clock=Clock(work=steps), brought=simple_plans(base))
    found = plan_jointly(graph, machine, WHERE, clock=Clock(work=steps), rules=rules_for(DEFAULT_BOOKS))
    assert alone.cost is not None and found.answer.cost is not None
    assert Fraction(found.answer.cost, found.planning.problem.scale) <= Fraction(alone.cost, base.problem.scale)
