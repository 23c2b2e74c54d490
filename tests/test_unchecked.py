"""What was not checked in time is written, said to be unchecked, and proved by the command that is printed beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from budgets import work
from random_problems import grid_with_rows

from shardproof.__main__ import run
from shardproof.formal.plans.first import First
from shardproof.formal.plans.pipelines.case import Case, orders
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.search import Wanted, _Search, search_pairs
from shardproof.formal.plans.time_limit import TimeLimit, TooSlow
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.front_door import FrontDoor
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.channels import Channels
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.selection.problem_file import problem_json
from shardproof.verify.budget import Budget

MODEL = ("plan", "mlp-unity", "--machine", "cloud-a100:2x2", "--work-limit", "500000")
EGRAPH = {
    "nodes": {
        "a": {"op": "a", "cost": 3, "children": [], "eclass": "0"},
        "b": {"op": "b", "cost": 1, "children": [], "eclass": "0"},
    },
    "root_eclasses": ["0"],
}

KINDS = {
    "plan": MODEL,
    "plan within error bounds": ("plan", "mlp-unity", "--machine", "dgx-a100:1x2", "--work-limit", "500000"),
    "overlapped": (*MODEL[:-1], "300k", "--overlap"),
    "pipelined": ("plan", "mlp-8192:batch=64", *MODEL[2:-1], "300k", "--train", "sgd", "--pipeline", "2:4"),
    "views": ("plan", "candle-uno:batch=16,width=512,tower=2,layers=1", *MODEL[2:], "--views"),
    "joint": (*MODEL, "--joint"),
    "the best of several": (*MODEL[:-1], "300k", "--overlap", "--joint"),
    "selection": ("solve", "g.json", "--work-limit", "1000000"),
    "extraction": ("solve", "e.json", "--work-limit", "1000000"),
    "schedule": ("schedule", "--stages", "2", "--micro-batches", "4", "--times", "1,1,1", "--work-limit", "1000000"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_bytes(problem_json(grid_with_rows(3, 3)))
    Path("e.json").write_text(json.dumps(EGRAPH))
    yield


def ends_at(look: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the time of checks be over at a look; how many there were."""
    looks = [0]

    def late(self: TimeLimit) -> bool:
        looks[0] += 1
        return looks[0] > look

    monkeypatch.setattr(TimeLimit, "late", late)
    return looks


@pytest.mark.parametrize("name", KINDS)
def test_a_check_without_time_leaves_a_file_and_its_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_at(0, monkeypatch)
    code = run([*KINDS[name], "-o", "out.spz", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 5 and said["checked"] is False
    assert said["lower_bound"] is None and said["gap"] is None and said["status"] == "feasible"
    assert "bars" not in said and said.get("verdict", "undecided") == "undecided"
    program, *words = shlex.split(said["check_with"])
    assert program == "shardproof" and run(words) == 0
    assert "proved" in capsys.readouterr().out

    assert run([*KINDS[name], "-o", "out.spz"]) == 5
    shown = capsys.readouterr().out
    assert "proved" not in shown and f"written, not checked here: run {said['check_with']}" in shown


@pytest.mark.parametrize("name", KINDS)
def test_every_checker_looks_at_the_time_while_it_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is ended, the file is there; with all the time nothing is different."""
    looks = ends_at(10**9, monkeypatch)
    assert run([*KINDS[name], "-o", "out.spz", "--json"]) in (0, 5)
    whole, data = looks[0], Path("out.spz").read_bytes()
    assert whole > 2, "a check that never looks"
    for look in (whole // 2, whole - 1):
        ends_at(look, monkeypatch)
        assert run([*KINDS[name], "-o", "out.spz", "--json"]) == 5
        assert Path("out.spz").read_bytes() == data


def test_an_interrupt_of_the_check_leaves_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Budget, cells: int, place: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Budget, "charge", interrupted)
    assert run([*MODEL, "-o", "out.spz", "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["checked"] is False and Path("out.spz").exists()
    with pytest.raises(KeyboardInterrupt):  # nobody limits a check from Python: it is the caller's to end
        FrontDoor().open(Path("out.spz"))


@pytest.mark.parametrize("subject", [("g.json",), ("mlp-unity", "--machine", "cloud-a100:2x2")])
def test_an_audit_without_its_check_is_undecided_and_writes_nothing(
    subject: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its certificate is about a problem that no file holds, where the subject is a model."""
    given: object = [0, *[None] * 8] if len(subject) == 1 else {"*": {}}
    Path("s.json").write_text(json.dumps(given))
    ends_at(0, monkeypatch)
    words = ["audit", *subject, "--strategy", "s.json", "--work-limit", "500000", "-o", "a.spz"]
    assert run([*words, "--json"]) == 5
    said = json.loads(capsys.readouterr().out)
    assert (said["outcome"], said["checked"], said["lower_bound"], said["certificate"]) == (
        "undecided",
        False,
        None,
        None,
    )
    assert run(words) == 5 and not Path("a.spz").exists()
    shown = capsys.readouterr().out
    assert "proved" not in shown and "the check did not end in time" in shown


def test_the_checker_itself_knows_no_time() -> None:
    """A verdict that comes is the same: what looks can end a check, and nothing else."""
    seen = []
    budget = Budget.with_large(lambda: seen.append(1))
    budget.charge(5, "here")
    assert seen == [1] and Budget.with_large().work - budget.work == 5
    assert Budget.without_large().look is None and Verdict.UNDECIDED.value == "undecided"


# ------------------------------------------------------------------ tables by the clock


def test_an_audit_whose_tables_do_not_fit_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rows on one level are in no smaller space than `two-per-level`; without time for that there is no answer."""
    Path("s.json").write_text(json.dumps({"fc1": {"b": {"gpus": 2}, "n": {"gpus": 2}}}))
    words = ["audit", "mlp-unity", "--machine", "cloud-a100:2x4", "--strategy", "s.json", "--json"]
    assert run([*words, "--work-limit", "1"]) == 5
    told = capsys.readouterr()
    assert "do not fit into the time limit: raise --time-limit" in json.loads(told.out)["error"]
    assert "on to 'two-per-level'" in told.err
    assert run([*words, "--work-limit", "500000"]) in (0, 10)


def job() -> Job:
    step = build_step(zoo("mlp-8192", batch=64), "sgd")
    return Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x2"), space("complete"), None)


def test_pipelines_build_no_tables_when_the_time_is_over() -> None:
    """A clock that passes while tables are built ends them; the plan of a case with tables stays."""
    case = Case(job(), 2, 4)
    case.guard = Clock(0.0)
    with pytest.raises(TooSlow, match="raise it"):
        assert case.pieces
    case.guard = Clock()
    assert case.pieces.planning.problem.vertices


@pytest.mark.parametrize("after", [1, 40])
def test_a_search_whose_tables_end_early_has_an_answer(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, built = work(3600.0), [0]
    real = Case.in_time

    def in_time(self: Case, done: int, total: int) -> None:
        built[0] += 1
        if built[0] == after:
            clock.stop()
        real(self, done, total)

    monkeypatch.setattr(Case, "in_time", in_time)
    found = search_pairs(job(), [(1, 4), (2, 4)], clock, Fraction(0))
    assert found.best is not None and found.lower_bound <= found.best.step


def test_a_plan_of_stages_is_not_begun_late_where_nobody_needs_one() -> None:
    """Without time there is a plan only where one has to be; a limit of seconds that passes inside an attempt ends it
    at the next placements, a limit of work lets it end as a whole.
    """
    pairs, now = [(1, 4), (2, 4)], [0.0]
    assert search_pairs(job(), pairs, Clock(0.0), Fraction(0), wanted=Wanted(insist=False)).best is None
    assert search_pairs(job(), pairs, Clock(0.0), Fraction(0)).best is not None
    made = list[int]()

    def placements(case: Case, clock: Clock, insist: bool) -> int:
        search = _Search([case], clock, Fraction(0), lambda text: None, lambda seconds: None, Wanted(insist=insist))
        case.channels = [Channels((8, 0, 0), (8, 0, 0), (8, 0, 0)), Channels((4, 4, 0), (4, 4, 0), (4, 4, 0))]
        made.clear()
        for _ in search.placements(case, (0, 2), next(orders(case)), search.clock):
            made.append(1)
            now[0] = 20.0  # the limit passes while the first are made
        now[0] = 0.0
        return len(made)

    assert placements(Case(job(), 2, 4), Clock(10.0, now=lambda: now[0]), insist=False) == 1
    assert placements(Case(job(), 2, 4), Clock(10.0, now=lambda: now[0]), insist=True) == 3
    assert placements(Case(job(), 2, 4), work(60.0), insist=False) == 3


def test_the_smallest_space_is_not_searched_twice_without_time() -> None:
    planning = build(zoo("mlp-unity"), load_machine("cloud-a100:2x2"), space("one-per-level"))
    answer = relax_resources(planning.problem)
    first = First(planning, replace(answer, lower_bound=0))
    assert not first.enough(Fraction(0), Clock()) and first.enough(Fraction(0), Clock(0.0))
    assert First(planning, answer).enough(Fraction(0), Clock())
    assert not First(planning, replace(answer, solution=None)).enough(Fraction(0), Clock(0.0))
