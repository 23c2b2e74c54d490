"""What is under way when only the end fits into the time is given up, wherever that is: an answer without it is one that
the checker accepts, and nothing is said that was not found.

Nothing here waits: what is given up is chosen by counted calls, and moments are those of clocks of the test's own.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Self

import pytest
from random_problems import grid_with_rows, shared_tables

from shardproof.__main__ import run
from shardproof.formal.plans.overlap.request import carry_out_overlapped
from shardproof.formal.plans.overlap.search import Overlapped
from shardproof.formal.plans.pipelines.request import carry_out_pipelined, pipeline_request
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.portfolio.freedoms import Freedoms
from shardproof.formal.plans.portfolio.search import Searches
from shardproof.formal.plans.request import PlanRequest
from shardproof.formal.plans.tables import tables_in_time
from shardproof.formal.plans.time_limit import AGAIN_S, END_S, PART_SLACK, TimeLimit
from shardproof.formal.rewriting.joint.request import carry_out_jointly
from shardproof.formal.selection.model.clock import Clock, Overdue, budget
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import solve
from shardproof.front_door import FrontDoor
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import LowerBound, Verdict
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.terminal.ticks import ticking
from shardproof.proofs.overlap.file import write_overlap
from shardproof.proofs.pipelines.file import write_pipeline
from shardproof.proofs.plan.bundle import write_plan
from shardproof.proofs.selection.problem_file import problem_json
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.verbs import kinds

WORK = 300_000
HERE = str(Path(__file__).parent)


class GivenUp:
    """Raises `Overdue` at the call of one of our functions number `at`, as a tick would; `calls`: how many there were.
    `only`: in files whose path holds it.
    """

    def __init__(self, at: int, only: str = "/formal/") -> None:
        self.at, self.only, self.calls = at, only, 0

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and self.only in code.co_filename and not code.co_flags & CO_GENERATOR:
            self.calls += 1
            if self.calls == self.at:
                raise Overdue("the time is over")

    def __enter__(self) -> Self:
        sys.setprofile(self.count)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def moments(whole: int, count: int) -> list[int]:
    """So many calls among `whole`, the first and the last among them, nearer to each other at the beginning."""
    return sorted({1 + int((whole - 1) * (k / (count - 1)) ** 2) for k in range(count)})


# ------------------------------------------------------------------ the tick


@pytest.fixture
def alarm() -> Iterator[None]:
    """The alarm, which pytest's own time-outs use, is nobody's."""
    before, left = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and sys.gettrace() is None
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.mark.usefixtures("alarm")
def test_a_question_ends_what_is_under_way_and_nothing_else() -> None:
    asked: list[str] = []

    def look() -> None:
        asked.append("outer")
        if len(asked) > 2:
            raise Overdue("now")

    with ticking(look, 60.0, HERE):
        signal.raise_signal(signal.SIGALRM)
        with ticking(lambda: asked.append("inner"), 60.0):  # one inside another asks alone
            signal.raise_signal(signal.SIGALRM)
        assert signal.getitimer(signal.ITIMER_REAL)[1] == 60.0
        with pytest.raises(Overdue):
            signal.raise_signal(signal.SIGALRM)
            asked.append("behind")
    assert asked == ["outer", "inner", "outer"]


@pytest.mark.usefixtures("alarm")
def test_a_loop_that_looks_at_nothing_is_ended() -> None:
    """By the timer itself: as long as the machine takes to let a hundredth of a second pass."""

    def look() -> None:
        raise Overdue("now")

    with pytest.raises(Overdue), ticking(look, 0.01, HERE):
        while True:
            sum(range(1000))


@pytest.mark.usefixtures("alarm")
def test_compiled_code_is_left_before_anything_is_raised() -> None:
    """A tick in the midst of compiled code, or of somebody else's, comes out of the next line of ours."""
    lines: list[str] = []

    def look() -> None:
        raise Overdue("now")

    def ours(word: str) -> int:
        if word == "b":
            signal.raise_signal(signal.SIGALRM)
        lines.append(word)
        return len(lines)

    text = "def theirs(words):\n    for w in words:\n        alarm()\n        said.append(w)\n"
    said: list[str] = []
    names: dict[str, Callable[[str], None]] = {}
    known = {"alarm": partial(signal.raise_signal, signal.SIGALRM), "said": said}
    exec(compile(text, "/other.py", "exec"), known, names)  # noqa: S102, a file of somebody else
    with pytest.raises(Overdue), ticking(look, 60.0, HERE):
        sorted("abc", key=ours)
    assert lines == ["a"]
    with pytest.raises(Overdue), ticking(look, 60.0, HERE):
        names["theirs"]("abc")
        lines.append("behind")
    assert lines == ["a"] and sys.gettrace() is None
    with ticking(look, 60.0, HERE):
        names["theirs"]("abc")  # the way out is no line of ours
    assert sys.gettrace() is None
    left: list[str] = []
    with pytest.raises(Overdue), ticking(look, 60.0, HERE):
        with closing(left):
            names["theirs"]("abc")
        left.append("behind")
    assert left == ["closed"]  # a `with` is left as if nothing were


@pytest.mark.usefixtures("alarm")
def test_timers_of_others_and_other_threads_are_left_alone() -> None:
    met: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: met.append(number))
    try:
        with ticking(lambda: met.append(0), 0.001):
            signal.raise_signal(signal.SIGALRM)
        assert met == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)

    def elsewhere() -> None:
        with ticking(lambda: met.append(0), 60.0):
            met.append(-1)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert met == [signal.SIGALRM, -1]


@contextmanager
def closing(left: list[str]) -> Iterator[None]:
    yield
    left.append("closed")


# ------------------------------------------------------------------ when


def test_only_tables_and_searches_and_what_is_before_them_are_given_up() -> None:
    seconds = [0.0]
    limit = TimeLimit(Clock(60.0, now=lambda: seconds[0]), checks=True)
    last = 76.0 - END_S
    seconds[0] = last - 0.1
    limit.look()
    seconds[0] = last
    with pytest.raises(Overdue, match="the time limit of 60 s was over before there was an answer"):
        limit.look()
    limit.look()  # an answer is being made without it
    seconds[0] = last + END_S
    with pytest.raises(Overdue):
        limit.look()
    for name, given_up in (("tables", True), ("search", True), ("check", False), ("remarks", False)):
        seconds[0] += END_S
        with limit.phase(name):
            if given_up:
                with pytest.raises(Overdue):
                    limit.look()
            else:
                limit.look()
        seconds[0] += END_S
        limit.look()  # there is an answer
    seconds[0] += END_S
    with limit.phase("search"):
        limit.settle()
        limit.look()


def test_a_busy_machine_needs_more_time_for_the_end() -> None:
    seconds = [0.0]
    limit = TimeLimit(Clock(60.0, now=lambda: seconds[0]), checks=True, load=2.0)
    seconds[0] = 76.0 - 2 * END_S
    with pytest.raises(Overdue):
        limit.look()


def test_a_part_is_given_up_alone_and_has_no_end_of_its_own() -> None:
    seconds = [0.0]
    whole = TimeLimit(Clock(60.0, now=lambda: seconds[0]), checks=True)
    seconds[0] = 10.0
    part = whole.part(20.0)
    assert part.room == 20.0 and part.elapsed_s == 0.0
    seconds[0] = 29.0
    whole.look()
    part.hold_back(5.0)
    assert part.clock.remaining_s() == 1.0 and whole.check_s == part.check_s == 5.0
    seconds[0] = 30.0  # its clock is over; what looks at it ends as a whole
    assert part.clock.over()
    whole.look()
    seconds[0] = 10.0 + (1 + PART_SLACK) * 20.0 + AGAIN_S
    with pytest.raises(Overdue):
        whole.look()
    seconds[0] = 40.0
    other = whole.part(30.0)
    seconds[0] = 50.0
    whole.look()
    assert other.clock.remaining_s() == 10.0  # of the whole
    whole.known_s = 5.0
    seconds[0] = 76.0 - END_S - 5.0
    with pytest.raises(Overdue):  # the check of what is known comes before the end of a part
        whole.look()
    whole.settle()
    seconds[0] = 1000.0
    whole.look()


def test_steps_of_work_give_nothing_up() -> None:
    limit = TimeLimit(Clock(work=1), checks=True)
    limit.clock.charge(10**9)
    limit.look()
    limit.part(1.0)
    limit.look()


def test_a_limit_counts_from_the_start_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = budget(60.0, None, gone_s=50.0)
    assert 49.0 < clock.seconds() and clock.remaining_s() < 10.5
    both = budget(60.0, 1_000_000, gone_s=50.0)
    assert both.seconds() == 0.0 and both.wall.remaining_s() < 10.5
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_bytes(problem_json(grid_with_rows(3, 3)))
    line = ["solve", "g.json", "--time-limit", "60", "-o", "g.spz", "--json"]
    assert run(line, begun=time.monotonic() - 1000) == 5
    assert json.loads(capsys.readouterr().out)["checked"] is False


# ------------------------------------------------------------------ where: any call


@pytest.mark.parametrize("name", ["rows", "dense", "factored"])
def test_a_selection_search_that_is_given_up_has_a_checked_answer(name: str) -> None:
    problem = {
        "rows": lambda: grid_with_rows(4, 3),
        "dense": lambda: grid_with_rows(3, 3),
        "factored": lambda: shared_tables(17, n=6, k=4, rows=False),
    }[name]()
    search: Callable[..., object] = relax_resources if name == "rows" else solve
    with GivenUp(0, "/selection/") as counted:
        search(problem)
    met = 0
    for at in moments(counted.calls, 20):
        try:
            with GivenUp(at, "/selection/"):
                found = search(problem)
        except Overdue:  # while the answer without it was made, or before anything was begun
            continue
        met += 1
        if found.certificate is not None:  # type: ignore[attr-defined]
            result = check_selection(problem, found.certificate)  # type: ignore[attr-defined]
            assert result.verdict is Verdict.PROVED, (at, result.reason)
            assert found.solution is not None or isinstance(found.certificate.claim, LowerBound)  # type: ignore[attr-defined]
    assert met > 12


def request_of(model: str, train: str | None = None) -> PlanRequest:
    return PlanRequest(zoo(model), load_machine("cloud-a100:2x2"), train)


def made_plan(limit: TimeLimit) -> bytes | None:
    found = plan_graph(zoo("mlp-unity"), load_machine("cloud-a100:2x2"), space("complete"), limit=limit)
    return None if found.plan is None else write_plan(None, found.plan)


def made_overlap(limit: TimeLimit) -> bytes | None:
    found = carry_out_overlapped(request_of("mlp-unity"), limit)[1]
    return write_overlap(None, found.certificate()) if isinstance(found, Overlapped) else None


def made_stages(limit: TimeLimit) -> bytes | None:
    found = carry_out_pipelined(pipeline_request(request_of("mlp-8192", "sgd"), "auto"), limit)[0]
    return None if found.best is None else write_pipeline(None, found.certificate())


def made_jointly(limit: TimeLimit) -> bytes | None:
    found = carry_out_jointly(request_of("mlp-unity"), limit).plan
    return None if found is None else write_plan(None, found)


def made_together(limit: TimeLimit) -> bytes | None:
    request = request_of("mlp-8192", "sgd")
    stages = pipeline_request(request, "2:2")
    return Searches(request, Freedoms(overlap=True, rewrites=True, stages=stages), limit).search_all().data()


PLANS = {
    "plan": made_plan,
    "overlapped": made_overlap,
    "pipelined": made_stages,
    "joint": made_jointly,
    "together": made_together,
}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 5) for name in PLANS),
        *(pytest.param(name, 150, marks=pytest.mark.slow) for name in PLANS),
    ],
)
def test_a_plan_whose_search_is_given_up_is_proved(name: str, count: int) -> None:
    make = PLANS[name]

    def limit() -> TimeLimit:
        return TimeLimit(Clock(work=WORK), checks=True)

    with GivenUp(0) as counted:
        assert make(limit()) is not None
    for at in moments(counted.calls, count):
        try:
            with GivenUp(at):
                data = make(limit())
        except Overdue:
            continue
        if data is not None:
            found = FrontDoor().read(data)
            assert found.published.verdict is Verdict.PROVED, (at, found.published.reason)


def test_the_tables_of_a_larger_space_give_way_to_a_plan_that_is_known() -> None:
    graph, machine = zoo("mlp-unity"), load_machine("cloud-a100:2x2")
    small = build(graph, machine, space("one-per-level"))
    limit = TimeLimit(Clock(), checks=True)

    def overdue(done: int, total: int) -> None:
        raise Overdue("now")

    found = tables_in_time(graph, machine, None, space("complete"), None, limit, overdue, small)
    assert found is small
    with pytest.raises(Overdue):
        tables_in_time(graph, machine, None, space("complete"), None, limit, overdue)


# ------------------------------------------------------------------ the check


@pytest.mark.usefixtures("alarm")
def test_a_check_that_does_not_look_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.json").write_bytes(problem_json(grid_with_rows(3, 3)))
    over = [False]
    monkeypatch.setattr(TimeLimit, "late", lambda self: over[0])
    of = next(kind for kind in kinds.KINDS if kind.member == "certificate.json")

    def judge(*arguments: object) -> object:
        over[0] = True
        signal.raise_signal(signal.SIGALRM)
        return of.checker(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(
        kinds, "KINDS", tuple(replace(kind, checker=judge) if kind is of else kind for kind in kinds.KINDS)
    )
    assert run(["solve", "g.json", "--work-limit", "1000000", "-o", "g.spz", "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["checked"] is False and Path("g.spz").exists()
