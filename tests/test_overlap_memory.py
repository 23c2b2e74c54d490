"""`plan --overlap --memory`: what is held and when, by builder and checker, against every placement and order of a small
program, and ways to break it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from budgets import work
from test_overlap_plans import planning_of, reasons

from shardproof.__main__ import run
from shardproof.formal.plans.overlap.memory import kept_past, program_order, rows_of_every_order
from shardproof.formal.plans.overlap.planned import schedule_if_fits
from shardproof.formal.plans.overlap.search import NothingFits, Overlapped, every_order, search_overlap
from shardproof.formal.plans.overlap.tasks import tasks_of
from shardproof.formal.selection.tree.infeasible import least_use
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.schedules.problem import Holding, ScheduleProblem
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import decode_overlap, encode_overlap, write_overlap
from shardproof.verify.budget import CELLS
from shardproof.verify.overlap.certificate import check_members, expected_tasks
from shardproof.verify.overlap.memory import blocks, inescapable, unavoidable
from shardproof.verify.plan.used_entries import Entries

LIMIT = 950 << 10


def limited(graph: Graph, machine: str, limit: int) -> Planning:
    return build_problem(graph, load_machine(machine), space("complete"), limit)


def step() -> Graph:
    return build_step(build("mlp-8192", batch=64, width=256, layers=3), "adam").graph


@cache
def training() -> Planning:
    return limited(step(), "localhost:4", LIMIT)


@cache
def found() -> Overlapped:
    plan = search_overlap(training(), work(60.0), Fraction(1, 20))
    assert isinstance(plan, Overlapped)
    return plan


def held_at_most(problem: ScheduleProblem, starts: list[int]) -> int:
    """Moment by moment: at every start of a task, what is held then."""
    most = 0
    ends = [s + t.time for s, t in zip(starts, problem.tasks, strict=True)]
    for moment in sorted({0, *starts}):
        now = 0
        for h in problem.holdings:
            begin = 0 if h.first is None else starts[h.first]
            if begin <= moment and (not h.last or moment < max(ends[t] for t in h.last)):
                now += h.amount
        most = max(most, now)
    return most


def test_builder_and_checker_hold_the_same_blocks_and_use_the_same_rows() -> None:
    rng = random.Random(3)
    bert = build_step(build("bert-tiny", batch=8, layers=1), "sgd").graph
    for planning in (training(), limited(bert, "localhost:2", 1 << 20)):
        entries = Entries(planning)
        rows = [(u.vertex, u.start, u.end, u.amount.tolist()) for u in rows_of_every_order(planning)]
        assert rows == [(u.vertex, u.start, u.end, u.amount.tolist()) for u in inescapable(entries)]
        assert 0 < len(rows) < len(planning.problem.usages)
        for _ in range(4):
            x = tuple(rng.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions)))
            built = tasks_of(planning, x, 1)
            mine = sorted((h.amount, -1 if h.first is None else h.first, h.last) for h in built.holdings)
            assert mine == blocks(entries, x, expected_tasks(entries, x, 1)[2])


def test_no_order_holds_less_than_the_rows_that_prove_infeasibility() -> None:
    """Random placements in random orders: what is held while an operator runs is never below its rows."""
    rng = random.Random(11)
    bert = build_step(build("bert-tiny", batch=4, layers=1), "sgd").graph
    for planning in (training(), limited(bert, "2x2", 1 << 20)):
        entries, count = Entries(planning), len(planning.graph.operators)
        past = [(u.vertex, u.start, u.end, int(u.amount[0])) for u in kept_past(planning)]
        assert past == [(u.vertex, u.start, u.end, int(u.amount[0])) for u in unavoidable(entries)]
        assert len(past) > count // 4
        rows = (*inescapable(entries), *unavoidable(entries))
        near = 0.0
        for _ in range(4):
            x = tuple(rng.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions)))
            problem = tasks_of(planning, x, 1)
            place = {k: n for n, k in enumerate(random_order(problem, rng))}
            for k in (k for k in range(count) if problem.tasks[k].time):
                at = place[k]  # one task after another: it runs alone
                held = sum(
                    h.amount
                    for h in problem.holdings
                    if (h.first is None or place[h.first] <= at) and (not h.last or at <= max(place[t] for t in h.last))
                )
                least = sum(int(u.amount[x[u.vertex]]) for u in rows if u.start <= k < u.end)
                assert least <= held
                near = max(near, least / held)
        assert near > 0.5, "the rows say something"


def random_order(problem: ScheduleProblem, rng: random.Random) -> list[int]:
    """Any order in which nothing begins before what it waits for."""
    waits = [sum(p.after == k for p in problem.precedences) for k in range(len(problem.tasks))]
    ready, order = [k for k, n in enumerate(waits) if not n], list[int]()
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for p in problem.precedences:
            if p.before == order[-1]:
                waits[p.after] -= 1
                ready += [] if waits[p.after] else [p.after]
    return order


def test_what_is_infeasible_is_proved_by_what_every_order_holds() -> None:
    rows = every_order(training())
    need = int(least_use(rows, np.array(rows.events(), dtype=np.int64)).max())
    tight = search_overlap(limited(step(), "localhost:4", need - 1), work(30.0), Fraction(0))
    assert isinstance(tight, NothingFits)
    c, full = tight.certificate(), found().certificate()
    assert reasons(c) == "" and decode_overlap(encode_overlap(c)).schedule is None
    assert "another problem" in reasons(replace(c, memory=need))
    assert "no limit" in reasons(replace(c, memory=None))
    assert "is chosen" in reasons(replace(c, choices=full.choices))
    assert "is chosen" in reasons(replace(c, choices=replace(full.choices, copies=())))
    assert "is chosen" in reasons(replace(c, choices=replace(full.choices, operators=())))
    assert "is chosen" in reasons(replace(c, chains=(("fc1",),), weights=(1, 1, 0)))
    assert "is chosen" in reasons(replace(c, lower_bound=1))
    assert "does not say" in reasons(replace(c, least=full.least))


def test_program_order_needs_no_more_than_the_rows_of_the_plan_without_overlap() -> None:
    rng = random.Random(5)
    for _ in range(5):
        planning = training()
        x = tuple(rng.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions)))
        problem = tasks_of(planning, x, 1)
        order = program_order(problem.tasks, problem.precedences, len(planning.graph.operators))
        assert sorted(order.tolist()) == list(range(len(problem.tasks)))
        operators = [k for k in order.tolist() if k < len(planning.graph.operators)]
        assert operators == list(range(len(planning.graph.operators)))
        times = np.array([t.time for t in problem.tasks])
        starts = np.zeros(len(times), dtype=np.int64)
        starts[order] = np.concatenate([[0], np.cumsum(times[order])[:-1]])
        place = {k: n for n, k in enumerate(order.tolist())}
        assert all(place[p.before] < place[p.after] for p in problem.precedences)
        rows = [0] * (len(planning.graph.operators) + 1)
        for u in planning.problem.usages:
            for t in range(u.start, u.end):
                rows[t] += int(u.amount[x[u.vertex]])
        assert held_at_most(problem, starts.tolist()) <= max(rows)


def small() -> Graph:
    g = Builder("small")
    g.input("x", (4, 64))
    g.parameter("w", (64, 64))
    g.parameter("v", (64, 64))
    g.contract("a", "b i, i j -> b j", "x", "w")
    g.contract("c", "b i, i j -> b j", "a", "v")
    g.reduce("d", "b j -> b", "a")
    return g.build("c", "d")


def shortest(problem: ScheduleProblem, limit: int, best: int) -> int:
    """Over all orders of both streams, every task as early as it may, those that never hold more than the limit.

    Starting later can save memory only by waiting for another task to end: that is an order with the same streams in
    which the task waits, so starts are tried at every end, too.
    """
    n = len(problem.tasks)
    before: dict[int, list[int]] = {}
    for p in problem.precedences:
        before.setdefault(p.after, []).append(p.before)

    def grow(starts: dict[int, int], free: tuple[int, int]) -> None:
        nonlocal best
        if max(free) >= best:
            return
        if len(starts) == n:
            row = [starts[k] for k in range(n)]
            if held_at_most(problem, row) <= limit:
                best = max(free)
            return
        ends = sorted({starts[k] + problem.tasks[k].time for k in starts})
        for k in range(n):
            if k in starts or any(b not in starts for b in before.get(k, [])):
                continue
            (s,) = problem.tasks[k].streams
            least = max([free[s], *(starts[b] + problem.tasks[b].time for b in before.get(k, []))])
            for begin in {least, *(e for e in ends if e > least)}:
                end = begin + problem.tasks[k].time
                grow({**starts, k: begin}, (end, free[1]) if s == 0 else (free[0], end))

    grow({}, (0, 0))
    return best


@pytest.mark.parametrize("share", [pytest.param(0.55, marks=pytest.mark.slow), 0.75])
def test_no_placement_and_no_order_within_the_limit_is_below_the_bound(share: float) -> None:
    whole = sum(planning_bytes(small()))
    limit = int(share * whole)
    planning = limited(small(), "localhost:2", limit)
    plan = search_overlap(planning, work(30.0), Fraction(0))
    problem, best = planning.problem, 1 << 62
    for x in itertools.product(*(range(problem.domain_size(v)) for v in range(len(problem.vertices)))):
        tasks = tasks_of(planning, x, 1)
        longest = max(sum(t.time for t in tasks.tasks if t.streams == (s,)) for s in (0, 1))
        always = sum(h.amount for h in tasks.holdings if h.first is None and not h.last)
        if longest < best and always <= limit:
            best = shortest(tasks, limit, best)
    if plan is None:
        assert best == 1 << 62
        return
    assert reasons(plan.certificate()) == ""
    assert plan.lower_bound <= best <= plan.best.makespan
    assert plan.best.peak is not None and plan.best.peak <= limit
    assert plan.best.peak == held_at_most(plan.best.problem, plan.best.found.starts.tolist())


def planning_bytes(graph: Graph) -> list[int]:
    return [graph.tensor(t.name).elements * t.element_bytes for t in graph.tensors]


def test_a_limit_makes_the_plan_slower_and_the_bound_no_lower_and_it_is_kept() -> None:
    free = search_overlap(planning_of(step(), "localhost:4"), work(30.0), Fraction(1, 20))
    tight = found()
    assert free is not None and tight.best.peak is not None
    assert tight.best.peak <= LIMIT
    loose = tasks_of(limited(step(), "localhost:4", 1 << 40), free.best.x, free.best.quantum)
    assert held_at_most(loose, free.best.found.starts.tolist()) > LIMIT  # the limit binds
    assert tight.best.makespan > free.best.makespan * 0.999
    c = tight.certificate()
    results = check_members(read_container(write_overlap(None, c)), 100, CELLS)[1]
    assert all(r.verdict is Verdict.PROVED for r in results), [r.reason for r in results]
    assert "every-operand-received" in results[0].assumptions


def problem_of(c: OverlapCertificate) -> ScheduleProblem:
    assert isinstance(c.schedule.subject, ScheduleProblem)
    return c.schedule.subject


def other(c: OverlapCertificate, **changes: object) -> OverlapCertificate:
    return replace(c, schedule=replace(c.schedule, subject=replace(problem_of(c), **changes)))  # type: ignore[arg-type]


def changed(c: OverlapCertificate, which: Callable[[Holding], bool], **fields: object) -> OverlapCertificate:
    rows = list(problem_of(c).holdings)
    k = next(k for k, h in enumerate(rows) if which(h))
    rows[k] = replace(rows[k], **fields)  # type: ignore[arg-type]
    return other(c, holdings=tuple(rows))


def prefetched(h: Holding) -> bool:
    """An operand's buffer, from its resharding on."""
    return h.first is not None and h.first >= len(training().graph.operators) and bool(h.last)


def shrunk(c: OverlapCertificate, by: int) -> OverlapCertificate:
    """A limit below what the schedule holds, everywhere."""
    limit = (found().best.peak or 0) - by
    return replace(other(c, limits=(limit,)), memory=limit)


MUTANTS: tuple[tuple[str, Callable[[OverlapCertificate], OverlapCertificate]], ...] = (
    ("other blocks", lambda c: other(c, holdings=problem_of(c).holdings[1:])),
    ("other blocks", lambda c: other(c, holdings=())),
    ("other blocks", lambda c: other(c, holdings=(*problem_of(c).holdings, problem_of(c).holdings[0]))),
    ("other blocks", lambda c: changed(c, lambda h: h.amount > 0, amount=0)),
    ("other blocks", lambda c: changed(c, lambda h: h.first is None, first=0)),
    ("other blocks", lambda c: changed(c, prefetched, first=problem_of(c).holdings[-1].first)),
    ("other blocks", lambda c: changed(c, lambda h: not h.last, last=(0,))),
    ("other blocks", lambda c: changed(c, lambda h: len(h.last) > 1, last=(0,))),
    ("another memory limit", lambda c: other(c, limits=(None,))),
    ("another memory limit", lambda c: other(c, limits=(1 << 50,))),
    ("another memory limit", lambda c: replace(c, memory=1 << 50)),
    ("other blocks", lambda c: replace(other(c, limits=(None,)), memory=None)),
    ("its limit is", lambda c: shrunk(c, 1)),
    ("gives a bound of", lambda c: replace(c, lower_bound=c.lower_bound + 1)),
)


@pytest.mark.parametrize(("words", "mutant"), MUTANTS, ids=range(len(MUTANTS)))
def test_a_mutant_is_not_proved(words: str, mutant: Callable[[OverlapCertificate], OverlapCertificate]) -> None:
    try:
        said = reasons(mutant(found().certificate()))
    except ContainerError as error:
        said = str(error)
    assert said and words in said


def test_the_least_limit_of_a_schedule_is_what_it_holds() -> None:
    """With exactly the peak as limit the schedule is accepted; the bound may be another one."""
    c = shrunk(found().certificate(), 0)
    said = reasons(c)
    assert "its limit" not in said and "memory limit" not in said


def test_placements_that_fit_in_no_order_are_left_out() -> None:
    tight = limited(step(), "localhost:4", 1 << 20)
    x = tuple(0 for _ in tight.decisions)
    assert schedule_if_fits(tight, x, 0.1) is None


def test_the_command_line_takes_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["plan", "mlp-unity", "--train", "sgd", "--machine", "cloud-a100:1x2", "--overlap", "-o", "o.spz"]
    assert run([*line, "--memory", "8GiB", "--json"]) in (0, 5)
    said = json.loads(capsys.readouterr().out)
    assert 0 < said["peak_memory"] <= said["memory_limit"] == 8 << 30
    assert run(["check", "o.spz"]) == 0
    capsys.readouterr()
    assert run([*line, "--memory", "1KiB", "--force"]) == 20
    assert "proved infeasible, whatever runs beside what" in capsys.readouterr().out
    assert run(["check", "o.spz"]) == 0
    assert "Infeasible   proved" in capsys.readouterr().out
    assert run(["run", "o.spz", "-n", "2", "--virtual"]) == 3
    assert "nothing to run" in capsys.readouterr().err
    assert run([*line, "--memory", "1KiB", "--force", "--json"]) == 20
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "infeasible" and said["conflict"]["rows"] and said["verdict"] == "proved"
