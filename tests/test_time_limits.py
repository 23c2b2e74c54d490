"""Time limits: an answer with a checked bound however little time there is, looks at the clock everywhere, and Ctrl-C.

Clocks here tick once per look, so that a limit of k means "the time is over at the k-th look": every place where a
search can be cut short is met, whatever the machine does meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from random_problems import grid_with_rows, shared_tables
from selection_cases import brute

from shardproof.__main__ import run
from shardproof.formal.explain.audit import audit_problem
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.simple import simple_plans
from shardproof.formal.plans.strategy import ChoiceList
from shardproof.formal.plans.tables import tables_in_time
from shardproof.formal.plans.time_limit import END_PART_S, END_S, TimeLimit
from shardproof.formal.selection.answer import Answer, answer_of, answer_with
from shardproof.formal.selection.bound.dual import score_of
from shardproof.formal.selection.bound.plain import plain_dual
from shardproof.formal.selection.fallback import certify, fallback
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, whole
from shardproof.formal.selection.model.interrupt import interruptible
from shardproof.formal.selection.options.limits import Limits
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import search_answer, solve
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.formal.selection.tree.infeasible import least_use
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import LowerBound, Status, Verdict
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.proofs.selection.certificates import Dual, RowConflict, SelectionCertificate
from shardproof.proofs.selection.problem_file import problem_json
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.selection.certificate import check_selection

CALLS_PER_PART = 150
"""Most calls of Python or numpy functions between two looks at the clock, per vertex and edge: what a pass over the
problem takes.
"""


LOOKS = 1_000
"""Of a run that is watched so."""


class Ticks:
    """A clock that ticks once per look.  `most`: calls of functions between two looks, where that was, and how many
    looks there were.
    """

    def __init__(self) -> None:
        self.looks = self.calls = self.most = 0
        self.where = ""
        self.last = ""

    def __call__(self) -> float:
        self.looks += 1
        self.calls = 0
        return float(self.looks)

    def count(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1
            if self.calls > self.most:
                self.most, self.where = self.calls, f"{getattr(frame, 'f_code', None)}"

    def __enter__(self) -> Self:
        sys.setprofile(self.count)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


SMALL = Limits(joint=50, work=500, kept=500, last_joint=50, last_work=500, last_kept=500)
"""Elimination hardly anywhere: messages, fixing and branching everywhere."""


def checked(problem: SelectionProblem, answer: Answer) -> None:
    """The answer holds a certificate that the checker accepts, and the numbers are the certificate's."""
    assert answer.certificate is not None
    result = check_selection(problem, answer.certificate)
    assert result.verdict is Verdict.PROVED, result.reason
    assert (
        answer.solution is not None
        or isinstance(answer.certificate.claim, LowerBound)
        or answer.status is Status.INFEASIBLE
    )
    if answer.solution is not None:
        assert result.cost == answer.cost == problem.cost_of(answer.solution)
        assert answer.lower_bound is not None and answer.cost is not None and answer.lower_bound <= answer.cost


CASES: dict[str, tuple[Callable[[], SelectionProblem], Limits | None]] = {
    "elimination": (lambda: grid_with_rows(4, 4, rows=False), None),
    "branching": (lambda: grid_with_rows(3, 4, rows=False), SMALL),
    "rows": (lambda: grid_with_rows(3, 3), SMALL),
    "rows at scale": (lambda: grid_with_rows(4, 3), None),
    "forbidden": (lambda: shared_tables(17, n=6, k=4, rows=False), SMALL),
    "infeasible": (lambda: shared_tables(3, n=6, k=4), SMALL),
}


@pytest.mark.parametrize("name", CASES)
def test_the_time_may_be_over_at_any_look(name: str) -> None:
    make, limits = CASES[name]
    problem = make()
    whole = Ticks()
    full = solve(problem, clock=Clock(1e9, now=whole), limits=limits)
    assert full.status in (Status.OPTIMAL, Status.INFEASIBLE)
    after = []
    moments = sorted({0, 1, 2, 3, 5, 8, 13, 21, *(whole.looks * k // 6 for k in range(7))})
    for moment in moments:
        ticks = Ticks()
        answer = solve(problem, clock=Clock(moment, now=ticks), limits=limits)
        checked(problem, answer)
        after.append(ticks.looks - moment)
        if full.status is Status.OPTIMAL:
            assert answer.cost is None or full.cost is None or answer.cost >= full.cost
            assert answer.lower_bound is None or full.cost is None or answer.lower_bound <= full.cost
    assert max(after) <= 200, f"looks after the time was over: {dict(zip(moments, after, strict=True))}"


@pytest.mark.parametrize("engine", ["native", "ilp", "smt"])
def test_no_time_at_all_is_enough_for_an_answer(engine: str) -> None:
    for seed in range(12):
        problem = shared_tables(seed, n=5, k=3, rows=seed % 2 == 0)
        best = brute(problem)
        answer = solve(problem, time_limit_s=0.0, engine=engine)  # type: ignore[arg-type]
        if answer.certificate is None:
            assert (
                plain_dual(problem)[1] >= 1 << 60
            )  # an edge forbids everything, which takes no time to say but a search to prove
            continue
        checked(problem, answer)
        if best is not None and answer.cost is not None and answer.lower_bound is not None:
            assert answer.lower_bound <= best[0] <= answer.cost


def test_no_bound_is_below_the_one_that_needs_no_search() -> None:
    """Messages of a search that was ended early can be worth less than none: BERT-Large, joint, 4x8 in 60 s was told
    a bound of minus 18 ms, a gap of 1,638 %.
    """
    draw, worse = np.random.default_rng(7), 0
    for seed in range(60):
        problem = shared_tables(seed, n=5, k=3, rows=False)
        best, least = brute(problem), plain_dual(problem)[1]
        shapes = [problem.tables[e.table].shape for e in problem.edges]
        early = Dual(*(tuple(draw.integers(-99, 99, shape[k]) for shape in shapes) for k in (0, 1)))
        bound = score_of(Base(problem, 1), whole(problem), early).lower()
        if best is None or bound is None or bound >= least:
            continue
        worse += 1
        x, cost = best[1], best[0]
        found = Answer(
            Status.FEASIBLE, SelectionCertificate(problem.sha256(), LowerBound(bound), early), bound, cost, x, 0
        )
        run = new_run(problem, Incumbent(problem), Clock())
        for answer in (
            answer_with(problem, x, cost, early, bound, 0.0),
            certify(problem, x, cost, found),
            answer_of(run, early, bound),
        ):
            assert answer.lower_bound is not None and answer.lower_bound >= least
            checked(problem, answer)
    assert worse > 20


@pytest.mark.parametrize("way", [solve, relax_resources])
def test_what_nothing_can_fit_is_infeasible_however_little_time_there_is(way: Callable[..., Answer]) -> None:
    """The least use of one step is above the limit: a conflict of that row alone, which the checker adds up."""
    problem = grid_with_rows(4, 4)
    least = replace(problem, limit=int(least_use(problem, np.array(problem.events(), dtype=np.int64)).max()))
    answer = way(replace(least, limit=(least.limit or 0) - 1), clock=Clock(0.0))
    assert answer.status is Status.INFEASIBLE and answer.certificate is not None
    assert isinstance(answer.certificate.proof, RowConflict)
    checked(replace(least, limit=(least.limit or 0) - 1), answer)
    assert way(least, clock=Clock(0.0)).status is not Status.INFEASIBLE
    assert check_selection(least, answer.certificate).verdict is not Verdict.PROVED


def test_a_part_of_a_clock_is_over_with_the_whole() -> None:
    ticks = Ticks()
    whole = Clock(1e9, now=ticks)
    part = whole.share(0.5).at_most(1e6).share(0.1)
    assert not part.over()
    whole.stop()
    assert part.over()
    endless = Clock()
    part = endless.share(0.3).at_most(None)
    assert part.limit_s is None and not part.over()
    endless.stop()
    assert part.over()


@pytest.mark.parametrize("name", CASES)
def test_no_phase_forgets_the_clock(name: str) -> None:
    """A loop that does not look is found by what it calls meanwhile; threads do not count."""
    make, limits = CASES[name]
    problem = make()
    solve(problem, limits=limits)  # compiled once
    parts = len(problem.vertices) + len(problem.edges)
    with Ticks() as ticks:
        solve(problem, clock=Clock(LOOKS, now=ticks), limits=limits)
    assert ticks.most <= CALLS_PER_PART * parts + 1_000, ticks.where


def test_a_phase_that_forgets_the_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: mixtures of rows once took two minutes without a look."""
    from shardproof.formal.selection.model import resources

    problem = grid_with_rows(3, 3)
    solve(problem, limits=SMALL)
    real = resources.Rows.conflict

    def forgetful(self: resources.Rows, domains: tuple[np.ndarray, ...], thorough: bool, clock: Clock) -> object:
        for _ in range(500):
            self.least(domains)
        return real(self, domains, thorough, clock)

    monkeypatch.setattr(resources.Rows, "conflict", forgetful)
    parts = len(problem.vertices) + len(problem.edges)
    with Ticks() as ticks:
        solve(problem, clock=Clock(LOOKS, now=ticks), limits=SMALL)
    assert ticks.most > CALLS_PER_PART * parts + 1_000


def test_what_was_brought_is_the_answer_when_there_was_no_time() -> None:
    problem = grid_with_rows(3, 3)
    best = solve(problem, limits=SMALL)
    assert best.solution is not None
    late = solve(problem, time_limit_s=0.0, brought=(best.solution,))
    checked(problem, late)
    assert late.cost == best.cost and late.status is Status.FEASIBLE
    assert fallback(problem, best, Clock(), ((0,) * 9,)) is best
    unknown = search_answer(new_run(problem, Incumbent(problem), Clock(0.0)))
    assert (unknown.status, unknown.certificate) == (Status.UNKNOWN, None)


def test_slack_and_audit_share_one_clock() -> None:
    problem = grid_with_rows(3, 3)
    for moment in (0, 1, 10, 100, 400):
        ticks = Ticks()
        checked(problem, relax_resources(problem, clock=Clock(moment, now=ticks)))
        ticks = Ticks()
        report = audit_problem(problem, ChoiceList((0, *[None] * 8)), None, Fraction(0), clock=Clock(moment, now=ticks))
        assert report.exit_code in (0, 5, 10)
        checked(problem, report.best)


def test_simple_plans_fit_the_space_and_split_the_batch() -> None:
    planning = build(zoo("mlp-unity"), load_machine("cloud-a100:2x4"), space("complete"))
    plans = list(simple_plans(planning))
    assert len(plans) == 3
    replicated, data, _ = (planning.choices(x) for x in plans)
    assert all(max(max(row) for row in p.matrix[:-1]) == 1 for _, p in replicated.operators)
    assert all(p.matrix[0] == (2, 4) for _, p in data.operators)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 1.0])
def test_a_plan_without_time_has_a_smaller_space_and_says_so(seconds: float) -> None:
    said: list[str] = []
    ticks = Ticks()
    limit = TimeLimit(Clock(seconds, now=ticks), checks=True, announce=said.append)
    planned = plan_graph(zoo("mlp-unity"), load_machine("cloud-a100:2x4"), limit=limit)
    assert planned.plan is not None
    results = check_plan(write_plan(None, planned.plan))
    assert results.verdict is Verdict.PROVED
    assert planned.planning.space.name == "one-per-level" and any("'one-per-level'" in text for text in said)
    assert set(limit.phases) == {"tables", "search"}


def test_a_space_that_was_asked_for_stays() -> None:
    said: list[str] = []
    limit = TimeLimit(Clock(0.0, now=Ticks()), checks=True, announce=said.append)
    planning = tables_in_time(
        zoo("mlp-unity"), load_machine("cloud-a100:2x4"), space("complete"), space("complete"), None, limit, None
    )
    assert planning.space.name == "complete"
    assert len(said) == 1 and "were over before the tables, which take about" in said[0]


def test_time_is_held_back_for_the_check() -> None:
    seconds = [0.0]
    clock = Clock(60.0, now=lambda: seconds[0])
    said: list[str] = []
    limit = TimeLimit(clock, checks=True, announce=said.append)
    limit.hold_back(5.0)
    assert clock.remaining_s() == 60.0 and not said
    seconds[0] = 20.0
    limit.hold_back(30.0)  # 1.1 * 60 + 10 - 30 - 20 are left but for the end
    assert clock.remaining_s() == pytest.approx(26.0 - END_S) and not said
    limit.load = 2.0
    limit.hold_back(30.0)  # ending takes twice as long beside other programs
    assert clock.remaining_s() == pytest.approx(26.0 - 2 * END_S) and not said
    many = shared_tables(17, n=6, k=4, rows=False)
    limit.hold_back(30.0, many)  # what is written is longer where there are more parts
    parts = len(many.vertices) + len(many.edges)
    assert clock.remaining_s() == pytest.approx(26.0 - 2 * (END_S + END_PART_S * parts)) and not said
    limit.hold_back(90.0)
    assert clock.remaining_s() == pytest.approx(6.0) and not limit.late()
    assert len(said) == 1 and "what is not confirmed by then is left to you" in said[0]


def test_a_check_that_cannot_end_in_time_is_left_to_the_user() -> None:
    """The search has its time then; and nothing is begun that only waits, or ended that was begun, before its time."""
    for check_s, search_s, ended, late in (
        (200.0, 60.0, 60.0, True),
        (120.0, 6.0, 50.0, True),
        (120.0, 6.0, 6.0, False),
    ):
        seconds = [0.0]
        said: list[str] = []
        limit = TimeLimit(Clock(60.0, now=lambda seconds=seconds: seconds[0]), checks=True, announce=said.append)  # type: ignore[misc]
        limit.hold_back(check_s)
        assert limit.clock.remaining_s() == pytest.approx(search_s) and len(said) == 1 and "is left to you" in said[0]
        seconds[0] = ended
        assert limit.late() == late
        seconds[0] = 71.0
        assert limit.late() == late


def test_a_check_ends_where_the_limit_does() -> None:
    seconds = [0.0]
    limit = TimeLimit(Clock(60.0, now=lambda: seconds[0]), checks=True)
    seconds[0] = 71.0
    assert not limit.late()
    seconds[0] = 73.0  # 1.1 * 60 + 10 - WRITING_S = 72
    assert limit.late()
    assert not TimeLimit(Clock(), checks=True).late()
    counted = TimeLimit(Clock(work=1), checks=True)
    counted.clock.charge(10**9)
    assert not counted.late()


# ------------------------------------------------------------------ the command line


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, dict[str, object]]]:
    monkeypatch.chdir(tmp_path)

    def shardproof(*arguments: str) -> tuple[int, dict[str, object]]:
        code = run([*arguments, "--json"])
        out = capsys.readouterr().out
        document = json.loads(out)
        assert isinstance(document, dict)
        return code, document

    return shardproof


PLANS = {
    "forward": ("plan", "mlp-unity", "--machine", "cloud-a100:2x4"),
    "training under a limit": (
        "plan",
        "mlp-unity",
        "--machine",
        "cloud-a100:2x4",
        "--train",
        "adam",
        "--memory",
        "200MiB",
    ),
    "recompute": (
        "plan",
        "mlp-unity",
        "--machine",
        "cloud-a100:2x4",
        "--train",
        "adam",
        "--memory",
        "200MiB",
        "--recompute",
        "auto",
    ),
    "uneven": ("plan", "mlp-uneven", "--machine", "cloud-a100:2x4", "--space", "one-per-level,uneven"),
    "ilp": ("plan", "mlp-unity", "--machine", "cloud-a100:2x2", "--engine", "ilp"),
    "smt": ("plan", "mlp-unity", "--machine", "cloud-a100:2x2", "--engine", "smt"),
}


@pytest.mark.parametrize("seconds", ["0.001", "0.01", "1"])
@pytest.mark.parametrize("name", PLANS)
def test_every_plan_has_an_answer_and_a_file(
    call: Callable[..., tuple[int, dict[str, object]]], name: str, seconds: str
) -> None:
    code, document = call(*PLANS[name], "--time-limit", seconds, "-o", "p.spz")
    assert code in (0, 5) and document["status"] in ("optimal", "feasible")
    assert (document["lower_bound"] is not None) == document["checked"]  # this machine may be busy
    assert document["checked"] or code == 5
    assert set(document["phases"]) - {"compiling"} == {"tables", "search", "check", "remarks"}  # type: ignore[call-overload]
    checked_code, checked_document = call(*str(document["check_with"]).split()[1:])
    assert (checked_code, checked_document["verdict"]) == (0, "proved")


def test_solve_and_audit_have_an_answer(call: Callable[..., tuple[int, dict[str, object]]]) -> None:
    Path("g.json").write_bytes(problem_json(grid_with_rows(6, 6)))
    Path("s.json").write_text(json.dumps([0, *[None] * 35]))
    for seconds in ("0.001", "0.01"):
        code, document = call("solve", "g.json", "--time-limit", seconds, "-o", "g.spz")
        assert code == 5 and document["lower_bound"] is not None and document["cost"] is not None
        assert call("check", "g.spz", "g.json")[0] == 0
        code, document = call("audit", "g.json", "--strategy", "s.json", "--time-limit", seconds, "-o", "a.spz")
        assert code in (5, 10) and document["lower_bound"] is not None


def test_a_limit_that_nothing_simple_fits_ends_with_a_bound(call: Callable[..., tuple[int, dict[str, object]]]) -> None:
    problem = grid_with_rows(6, 6)
    least = max(sum(int(u.amount.min()) for u in problem.usages if u.start <= t < u.end) for t in problem.events())
    tight = SelectionProblem(problem.name, problem.vertices, problem.tables, problem.edges, problem.usages, least)
    Path("g.json").write_bytes(problem_json(tight))
    code, document = call("solve", "g.json", "--time-limit", "0.001", "-o", "g.spz")
    assert code == 5 and document["lower_bound"] is not None
    assert call("check", "g.spz", "g.json")[0] == 0


# ------------------------------------------------------------------ Ctrl-C, and SIGTERM

DRIVER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell inherits "ignore"
import shardproof.formal.selection.model.clock as clock
moments = [int(x) for x in sys.argv[1].split(",")]
signals = [signal.Signals[x] for x in sys.argv[2].split(",")]
looks, real = 0, clock.Clock.remaining_s
def left(self):
    global looks
    looks += 1
    if looks in moments:
        os.kill(os.getpid(), signals[moments.index(looks) % len(signals)])
    return real(self)
clock.Clock.remaining_s = left
from shardproof.__main__ import run
sys.exit(run(sys.argv[3:]))
"""


def interrupted(
    folder: Path, moments: str, *arguments: str, signals: str = "SIGINT"
) -> subprocess.CompletedProcess[str]:
    """A run that gets signals, in turn, at looks at the clock."""
    return subprocess.run(
        [sys.executable, "-c", DRIVER, moments, signals, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


INTERRUPTED = {
    "plan, while tables are built": (
        "3",
        "plan",
        "mlp-unity",
        "--machine",
        "cloud-a100:2x4",
        "--train",
        "adam",
        "--memory",
        "200MiB",
        "-o",
        "out.spz",
    ),
    "plan, in the search": (
        "220",
        "plan",
        "mlp-unity",
        "--machine",
        "cloud-a100:2x4",
        "--train",
        "adam",
        "--memory",
        "140MiB",
        "-o",
        "out.spz",
    ),
    "solve": ("60", "solve", "g.json", "-o", "out.spz"),
    "audit": ("60", "audit", "g.json", "--strategy", "s.json", "-o", "out.spz"),
}


@pytest.mark.parametrize(
    "name",
    [n if n in ("solve", "plan, in the search") else pytest.param(n, marks=pytest.mark.slow) for n in INTERRUPTED],
)
def test_ctrl_c_keeps_the_incumbent(name: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(problem_json(grid_with_rows(12, 8)))
    (tmp_path / "s.json").write_text(json.dumps([0, *[None] * 143]))
    ended = interrupted(tmp_path, *INTERRUPTED[name])
    assert ended.returncode == 5, (ended.returncode, ended.stdout, ended.stderr)
    assert "interrupted: the best answer so far is checked" in ended.stderr and "Traceback" not in ended.stderr
    files = ["out.spz"] if name.startswith("plan") else ["out.spz", "g.json"]
    assert run(["check", *(str(tmp_path / f) for f in files)]) == 0


TERMINATED = {
    "solve": INTERRUPTED["solve"],
    "schedule": (
        "20", "schedule", "--stages", "8", "--micro-batches", "32", "--times", "2,3,2", "--memory", "10", "--send", "1",
        "-o", "out.spz",
    ),
    "pipeline": (
        "40", "plan", "mlp-8192:batch=64", "--train", "sgd", "--machine", "cloud-a100:2x2", "--pipeline", "2:4", "-o",
        "out.spz",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TERMINATED)
def test_sigterm_is_a_first_ctrl_c(name: str, tmp_path: Path) -> None:
    """Slurm and `timeout` send it: the best answer is checked and written, with the exit status of its proof."""
    (tmp_path / "g.json").write_bytes(problem_json(grid_with_rows(12, 8)))
    ended = interrupted(tmp_path, *TERMINATED[name], signals="SIGTERM")
    assert ended.returncode in (0, 5), (ended.returncode, ended.stdout, ended.stderr)
    assert "interrupted: the best answer so far is checked" in ended.stderr and "Traceback" not in ended.stderr
    assert run(["check", str(tmp_path / "out.spz"), *([str(tmp_path / "g.json")] if name == "solve" else [])]) == 0


@pytest.mark.parametrize(
    "signals",
    ["SIGTERM,SIGINT", *(pytest.param(s, marks=pytest.mark.slow) for s in ("SIGTERM,SIGTERM", "SIGINT,SIGTERM"))],
)
def test_a_second_signal_of_either_kind_ends_at_once(signals: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(problem_json(grid_with_rows(12, 8)))
    ended = interrupted(tmp_path, "60,61", "solve", "g.json", "-o", "out.spz", signals=signals)
    assert ended.returncode == 5 and "the last checked result, if any, is untouched" in ended.stderr, ended.stderr
    assert not (tmp_path / "out.spz").exists() and "Traceback" not in ended.stderr


def test_signals_of_somebody_else_are_left_alone() -> None:
    """A program that uses us waits for SIGTERM itself."""
    met: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: met.append(number))
    try:
        with interruptible(Clock()):
            os.kill(os.getpid(), signal.SIGTERM)
        assert met == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        clock = Clock()
        with interruptible(clock):
            os.kill(os.getpid(), signal.SIGTERM)
            assert clock.over()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(problem_json(grid_with_rows(12, 8)))
    ended = interrupted(tmp_path, "60,61", "solve", "g.json", "-o", "out.spz")
    assert ended.returncode == 5 and "the last checked result, if any, is untouched" in ended.stderr, ended.stderr
    assert not (tmp_path / "out.spz").exists() and "Traceback" not in ended.stderr
