"""Joint plans under a memory limit: rows hold for every program, the checker finds every changed one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.selection import build
from shardproof.models.joint.problem import JointSubject, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.proofs.plan.bundle import read_plan, write_plan
from shardproof.verify.joint.entries import Numbers
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.joint.rows import wrong_rows
from shardproof.verify.joint.skeleton import Programs
from tests.joint_cases import CASES
from tests.test_joint_rules import PLACES

GRAPHS = {
    "step": CASES["step"],
    "bias": CASES["bias"],
    "shared": CASES["shared product"],
    "side": PLACES["merge-siblings"],
}
PLENTY = 1 << 40


@pytest.mark.parametrize(("name", "level"), [("step", 1), ("step", 3), ("bias", 1), ("shared", 3), ("side", 3)])
def test_no_program_needs_more_than_its_rows_say(name: str, level: int) -> None:
    """Random programs and placements: a plan that fits the rows of all programs fits those of its own; with tags that
    say everything they are those of the user's program, so that its plans stay.
    """
    graph, machine, where = GRAPHS[name](), load_machine("cloud-a100:2x2"), space("complete")
    egraph, derivation = saturate(graph)
    joint = build_joint(JointSubject(egraph, derivation.rounds, machine, where, level=level, memory_limit=PLENTY))
    rng = np.random.default_rng(0)
    for k in range(12):
        chosen = {} if k < 4 else {t: str(rng.choice([n.name for n in nodes])) for t, nodes in egraph.nodes.items()}
        modes = egraph.close_modes(chosen)
        program = egraph.graph(modes)
        alone = build(program, machine, where, PLENTY)
        x = tuple(int(rng.integers(v.cost.size)) for v in alone.problem.vertices)
        y = joint.solution(modes, alone.choices(x))
        most, least = joint.problem.peak_of(y)[0], alone.problem.peak_of(x)[0]
        assert most >= least > 0
        if k < 4 and level == 3:
            assert most == least


@pytest.mark.parametrize(("name", "level"), [("step", 1), ("bias", 3), ("side", 0)])
def test_every_changed_row_is_found(name: str, level: int) -> None:
    egraph, derivation = saturate(GRAPHS[name]())
    machine, where = load_machine("cloud-a100:2x2"), space("complete")
    fresh = build_joint(JointSubject(egraph, derivation.rounds, machine, where, level=level, memory_limit=PLENTY))
    programs, rng = Programs(egraph), random.Random(level)

    def wrong(usages: tuple) -> str:  # type: ignore[type-arg]
        planning = replace(fresh, problem=replace(fresh.problem, usages=usages))
        return wrong_rows(planning, programs, Numbers(planning, programs))

    rows = fresh.problem.usages
    assert rows and wrong(rows) == ""
    for k in rng.sample(range(len(rows)), 5):
        u = rows[k]
        amount = u.amount.copy()
        amount[rng.randrange(amount.size)] += rng.choice((-1, 1))
        some = u.amount.any()
        for other in (
            (replace(u, amount=amount),),
            *(((replace(u, end=u.end + 1),), (replace(u, start=u.start - 1),), (), (u, u)) if some else ()),
        ):
            assert wrong((*rows[:k], *other, *rows[k + 1 :])), u
        halves = (replace(u, amount=u.amount // 2), replace(u, amount=u.amount - u.amount // 2))
        assert wrong((*rows[:k], *halves, *rows[k + 1 :])) == ""  # how they are cut is free


def test_plans_under_a_limit() -> None:
    """The optimum without a limit does not fit half of its memory: another program or placement is chosen, checked."""
    graph, machine, where = CASES["step"](), load_machine("cloud-a100:2x2"), space("complete")
    free = plan_jointly(graph, machine, where, clock=Clock())
    assert free.answer.solution is not None and free.answer.cost is not None
    plenty = build_joint(
        JointSubject(free.planning.egraph, free.planning.rounds, machine, where, memory_limit=PLENTY, level=3)
    )
    modes, choices = free.planning.modes(free.answer.solution), free.planning.plan(free.answer.solution)[1]
    peak = plenty.problem.peak_of(plenty.solution(modes, choices))[0]
    loose = plan_jointly(graph, machine, where, clock=Clock(), memory_limit=peak, level=3)
    assert (loose.answer.status, loose.answer.cost) == (Status.OPTIMAL, free.answer.cost)
    tight = plan_jointly(graph, machine, where, clock=Clock(), memory_limit=peak - 1 - peak // 8)
    assert tight.answer.status is Status.OPTIMAL and tight.answer.cost is not None
    assert free.answer.cost < tight.answer.cost <= (tight.plain.cost or 0)
    plan = joint_plan(tight)
    assert plan is not None and plan.memory_limit == peak - 1 - peak // 8
    data = write_plan(None, plan)
    checked = check_any_plan(data)
    assert [(r.kind, r.reason) for r in checked.results if r.verdict is not Verdict.PROVED] == []
    assert write_plan(None, read_plan(data)[0]) == data
    assert "rows-of-open-programs" in tight.planning.problem.assumptions
    without = check_any_plan(write_plan(None, replace(plan, memory_limit=plan.memory_limit + 1)))
    assert without.verdict is Verdict.REFUTED
    nothing = plan_jointly(graph, machine, where, clock=Clock(), memory_limit=64)
    assert nothing.answer.status is Status.INFEASIBLE and joint_plan(nothing) is None
