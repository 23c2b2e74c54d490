"""Conditions of the checker of schedules that nothing else notices: each test fails where one of them is left out."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.schedules import CROWD, CROWD_STARTS, crowd_rows

from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.container.effort import OBJECT
from shardproof.proofs.schedules.certificate import (
    AFTER_ALL,
    BEFORE_ALL,
    LEFT,
    LOAD,
    ORDER,
    PATH,
    PRICE,
    RAISE_HEAD,
    RAISE_TAIL,
    SPLIT,
    Bound,
    Load,
    Path,
    Refutation,
    ScheduleCertificate,
)
from shardproof.verify.budget import Budget
from shardproof.verify.schedules.bounds import BadBound, lower_bound
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.schedules.levels import Levels
from shardproof.verify.schedules.network import network

ONE = (Stream(0, "s"),)


def problem(
    tasks: tuple[Task, ...],
    links: tuple[Precedence, ...] = (),
    held: tuple[Holding, ...] = (),
    limit: int | None = None,
    streams: tuple[Stream, ...] = ONE,
) -> ScheduleProblem:
    return ScheduleProblem("small", streams, tasks, links, held, (limit,)).check()


def on(*times: int) -> tuple[Task, ...]:
    """Tasks on the one stream."""
    return tuple(Task(f"t{k}", t, (0,)) for k, t in enumerate(times))


def check(what: ScheduleProblem, starts: tuple[int, ...], least: int, *rows: tuple[int, ...]) -> tuple[Verdict, str]:
    at = np.array(starts, dtype=np.int64)
    end = int((at + np.array([t.time for t in what.tasks])).max())
    bound: Bound = Path()
    if rows:
        bound = Refutation(least - 1, np.array([[*row, *(0,) * (5 - len(row))] for row in rows]))
    result = check_schedule(ScheduleCertificate(what, at, end, least, bound, "by hand"))
    return result.verdict, result.reason


def proved(*given: object) -> None:
    verdict, reason = check(*given)  # type: ignore[arg-type]
    assert verdict is Verdict.PROVED, reason


def refused(words: str, *given: object) -> None:
    verdict, reason = check(*given)  # type: ignore[arg-type]
    assert verdict is Verdict.REFUTED and words in reason, reason


def test_starts_beyond_all_schedules() -> None:
    proved(problem(on(1)), (1 << 61,), 1)
    refused("later than any schedule", problem(on(1)), ((1 << 61) + 1,), 1)
    refused("stream 0: task 0 starts at 4, before task 2 ends at 5", problem(on(1, 1, 2)), (4, 0, 3), 1)


def test_what_is_held_and_when() -> None:
    many = tuple(Holding(0, 1 << 51, None, ()) for _ in range(1 << 11))
    proved(problem(on(1), held=many[1:]), (0,), 1)
    with pytest.raises(ContainerError, match="add up to"):
        check(problem(on(1), held=many), (0,), 1)
    late = (Holding(0, 3, 0, (0,)), Holding(0, 3, 1, (1,)))  # what task 0 takes is not there before it starts
    proved(problem(on(2, 2), held=late, limit=5), (2, 0), 2)
    freed = (Holding(0, 3, None, (0,)), Holding(0, 3, 1, (1,)))  # freed at 0 by a task that takes no time
    proved(problem((Task("free", 0, ()), Task("b", 2, (0,))), held=freed, limit=3), (0, 0), 2)
    refused("holds 4", problem((*on(2), Task("last", 0, ())), held=(Holding(0, 4, 1, ()),), limit=3), (0, 2), 2)
    kept = (Holding(0, 3, None, ()), Holding(0, 3, 1, (1,)))
    refused("holds 6", problem(on(2, 2), held=kept, limit=5), (0, 2), 2)


def test_memory_of_a_pipeline_is_a_precedence_where_it_binds() -> None:
    """More than there are micro-batches binds nothing; one activation makes the second micro-batch wait."""
    roomy = ScheduleCertificate(Pipeline(((1, 1, 1),), 2, 0, 3), np.array([0, 3, 1, 4, 2, 5]), 6, 4, Path(), "")
    assert check_schedule(roomy).verdict is Verdict.PROVED
    starts = np.array([0, 5, 1, 6, 3, 8, 2, 7, 4, 9, 3, 8])
    for memory, least in ((1, 10), (2, 6), (None, 6)):
        pipe = Pipeline(((1, 1, 1),) * 2, 2, 0, memory)
        for claimed, verdict in ((least, Verdict.PROVED), (least + 1, Verdict.REFUTED)):
            assert check_schedule(ScheduleCertificate(pipe, starts, 10, claimed, Path(), "")).verdict is verdict


def test_the_budget_grows_with_starts_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Budget.of
    monkeypatch.setattr(
        Budget, "of", staticmethod(lambda numbers, whole=None: seen.append(numbers) or real(numbers, whole))
    )
    proved(problem(on(1, 1)), (0, 1), 2, (LOAD, 0, 0, 0))
    assert seen == [3]


def test_paths_rows_and_splits_are_charged() -> None:
    links = tuple(Precedence(k, k + 1) for k in range(200))
    what = problem(on(*(1,) * 300), links, streams=(*ONE, Stream(0, "without tasks")))
    parts = 300 + 200
    with pytest.raises(ContainerError, match="the longest paths"):
        lower_bound(*network(what), Path(), Budget(work=OBJECT * 8 * parts - 1))

    def spent(*rows: tuple[int, ...]) -> int:
        budget = Budget()
        before = budget.work
        with pytest.raises(BadBound):
            lower_bound(*network(what), Refutation(600, np.array([[*r, *(0,) * (5 - len(r))] for r in rows])), budget)
        return before - budget.work

    raised = spent((RAISE_HEAD, 0, 0, 900, 0))
    assert raised - spent((99, 0)) == 0  # a row is charged whatever it says
    assert raised > OBJECT * (300 + 16) + OBJECT * 8 * parts
    assert spent((SPLIT, 0, 299)) - raised >= 300 >> 1


def test_splits_above_one_another() -> None:
    what = problem(on(1, 1))
    refused("201 cases are left open", what, (0, 1), 2, *((SPLIT, 0, 1),) * 200)
    with pytest.raises(ContainerError, match="more than 200 splits"):
        check(what, (0, 1), 2, *((SPLIT, 0, 1),) * 201)


@pytest.mark.parametrize("task", [-1, 2, 3])
def test_tasks_that_are_not_there(task: int) -> None:
    what = problem(on(2, 2))
    close = (LOAD, 0, 0, 0)
    refused(f"task {task} is not on stream 0", what, (0, 2), 4, (RAISE_HEAD, task, 0, 0, 0), close)
    refused("do not share a stream", what, (0, 2), 4, (SPLIT, task, 0), close, close)
    refused("do not share a stream", what, (0, 2), 4, (SPLIT, 0, task), close, close)
    refused("do not share a stream", what, (0, 2), 4, (ORDER, task, 0), close)
    refused(f"there is no task {task}", what, (0, 2), 4, (PATH, task))
    refused(f"there is no task {task} or", what, (0, 2), 4, (AFTER_ALL, task, 0, 0), close)
    refused("no stream 1", what, (0, 2), 4, (AFTER_ALL, 0, 1, 0), close)
    refused("no stream -1", what, (0, 2), 4, (BEFORE_ALL, 0, -1, 0), close)
    refused("do not share a stream", what, (0, 2), 4, (SPLIT, 1, 1), close, close)
    refused("do not share a stream", what, (0, 2), 4, (ORDER, 1, 1), close)


def test_the_link_of_a_case_that_is_closed_is_gone() -> None:
    """a after one unit, b at once: a first takes 5, b first 4."""
    what = problem((*on(2, 2), Task("lead", 1, ())), (Precedence(2, 0),))
    refused("shows 4 only", what, (2, 0, 0), 5, (SPLIT, 0, 1), (PATH, 1), (PATH, 0))
    refused("shows 4 only", what, (2, 0, 0), 5, (SPLIT, 0, 1), (PATH, 1), (LOAD, 0, 0, 0))
    proved(what, (2, 0, 0), 4, (SPLIT, 0, 1), (PATH, 1), (AFTER_ALL, 0, 0, 0), (PATH, 0))
    refused("links run in a circle", what, (2, 0, 0), 5, (SPLIT, 0, 1), (SPLIT, 1, 0), (AFTER_ALL, 0, 0, 0))
    behind = problem((*on(2, 2), Task("end", 1, ())), (Precedence(0, 2),))
    proved(behind, (0, 2, 2), 4, (SPLIT, 1, 0), (PATH, 1), (BEFORE_ALL, 0, 0, 0), (PATH, 0))


def test_only_tasks_with_enough_behind_them_are_before_another() -> None:
    """x has 5 behind it, y nothing: t cannot come before x, but before y."""
    what = problem((*on(2, 1, 1), Task("behind", 5, ())), (Precedence(0, 3),))
    refused("may come before them", what, (0, 2, 3, 2), 7, (RAISE_HEAD, 2, 0, 0, 0), (PATH, 2))
    verdict, reason = check(what, (0, 2, 3, 2), 7, (RAISE_HEAD, 2, 0, 0, 5), (PATH, 2))
    assert verdict is Verdict.REFUTED and "shows" in reason  # the raise holds, the path is short
    mirrored = problem((*on(2, 1, 1), Task("ahead", 5, ())), (Precedence(3, 0),))
    verdict, reason = check(mirrored, (5, 0, 1, 0), 7, (RAISE_TAIL, 2, 0, 5, 0), (PATH, 2))
    assert verdict is Verdict.REFUTED and "shows" in reason
    refused("may come before them", mirrored, (5, 0, 1, 0), 7, (RAISE_TAIL, 2, 0, 0, 0), (PATH, 2))
    refused("no tasks", mirrored, (5, 0, 1, 0), 7, (RAISE_HEAD, 2, 0, 5, 1), (PATH, 2))


def test_loads_count_the_tasks_that_they_name() -> None:
    """Of two tasks one has 5 behind it; a load of none shows nothing."""
    what = problem((*on(2, 2), Task("behind", 5, ())), (Precedence(0, 2),))
    starts = np.array([0, 2, 2])
    for bound, least in ((Load(0, 0, 5), 7), (Load(0, 0, 0), 4), (Load(0, 1, 0), 0), (Load(0, 0, 6), 0)):
        for claimed, verdict in ((least, Verdict.PROVED), (least + 1, Verdict.REFUTED)):
            assert check_schedule(ScheduleCertificate(what, starts, 7, claimed, bound, "")).verdict is verdict
    proved(what, (0, 2, 2), 7, (LOAD, 0, 0, 5))
    refused("shows 4 only", what, (0, 2, 2), 7, (LOAD, 0, 0, 0))


def test_a_run_of_rows_is_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    real = Levels.replay_rows
    monkeypatch.setattr(Levels, "replay_rows", lambda *given: runs.append(given[-1]) or real(*given))
    what = problem(on(1, 1), (Precedence(0, 1),))
    run = ((AFTER_ALL, 1, 0, 0), (BEFORE_ALL, 0, 0, 0)) * 4
    proved(what, (0, 1), 2, (ORDER, 0, 1), *run, (ORDER, 0, 1), *run, (LOAD, 0, 0, 0))
    assert runs == [1, 10]


def test_tables_of_what_comes_before_are_held_within_the_budget() -> None:
    what = problem(on(*(1,) * 64), (Precedence(0, 1),))
    bound = Refutation(63, np.array([[AFTER_ALL, 1, 0, 0, 0], [LOAD, 0, 0, 0, 0]]))
    needed = 2 * 64 * (64 + 7) // 64
    assert lower_bound(*network(what), bound, Budget(held=needed)) == 64
    with pytest.raises(ContainerError, match=f"its tables have {needed} entries"):
        lower_bound(*network(what), bound, Budget(held=needed - 1))


def test_a_raise_never_lowers() -> None:
    lower = ((PRICE, 0, 0, 4), (LEFT, 1, 8, 0))
    proved(CROWD, CROWD_STARTS, 11, *crowd_rows((LEFT, 1, 8, 0)), *lower, (PATH, 8))
