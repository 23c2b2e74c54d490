"""Schedules in files that ask for much work or memory: what a row or a device costs does not grow with what it does not
touch, and what is held is counted before it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.container.effort import OBJECT, PART
from shardproof.proofs.schedules.certificate import (
    AFTER_ALL,
    FLOW,
    ORDER,
    PATH,
    PRICE,
    RAISE_HEAD,
    SPLIT,
    WAITS,
    Path,
    Refutation,
    ScheduleCertificate,
)
from shardproof.verify.budget import Budget
from shardproof.verify.schedules.bounds import BadBound, lower_bound
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.schedules.network import Memory, network, peaks


def rows(makespan: int, row: tuple[int, ...], times: int) -> Refutation:
    """The same row again and again."""
    return Refutation(makespan, np.tile(np.array([[*row, *(0,) * (5 - len(row))]]), (times, 1)))


def two(streams: int) -> ScheduleProblem:
    """Two tasks on the last of many streams."""
    last = (streams - 1,)
    names = tuple(Stream(0, "s") for _ in range(streams))
    return ScheduleProblem("two", names, (Task("a", 5, last), Task("b", 5, last)), (), (), (None,)).check()


def traced(call: Callable[[], object]) -> int:
    """Lines and calls that Python runs in the checker of schedules."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "/verify/schedules/" not in frame.f_code.co_filename:
            return None
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("row", [(ORDER, 0, 1), (RAISE_HEAD, 0, 1)], ids=["order", "raise"])
def test_a_row_costs_the_same_however_many_streams_there_are(row: tuple[int, ...]) -> None:
    """3,770 bytes with 65,536 streams and 20,000 rows took 37 s."""

    def steps(streams: int, times: int) -> int:
        word, first, second = row
        words = (word, first, second if word == ORDER else streams - 1)
        bound = rows(9, words, times)
        certificate = ScheduleCertificate(two(streams), np.array([0, 5]), 10, 10, bound, "by hand")
        return traced(lambda: check_schedule(certificate))

    def per_row(streams: int) -> int:
        return steps(streams, 7) - steps(streams, 3)

    assert per_row(1) == per_row(500) > 0


def test_the_memory_of_many_devices_is_added_up_at_once() -> None:
    """One look at all holdings per device was devices times holdings: 65,536 times as many."""
    seen = 0

    class Counted(np.ndarray[Any, Any]):
        def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Any:
            nonlocal seen
            seen += self.size
            plain = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
            return getattr(ufunc, method)(*plain, **options)

    n = 300
    holdings = tuple(Holding(d, d + 1, None, (0,)) for d in range(n))
    problem = ScheduleProblem("many", (Stream(0, "s"),), (Task("a", 1, (0,)),), (), holdings, (None,) * n).check()
    net, memory = network(problem)
    counted = Memory(
        *(getattr(memory, k).view(Counted) for k in ("device", "amount", "first", "holder", "last")), memory.limits
    )
    starts = np.zeros(1, dtype=np.int64)
    assert peaks(counted, starts, starts + net.times) == list(range(1, n + 1))
    assert 0 < seen <= 20 * n


def test_what_wide_collectives_cost_is_counted() -> None:
    """Two tasks on thousands of streams with none in common: a row looks at all of the fewer ones."""
    wide = 1000
    tasks = (Task("a", 1, tuple(range(wide))), Task("b", 1, tuple(range(wide, 3 * wide))))
    net, memory = network(
        ScheduleProblem("wide", tuple(Stream(0, "s") for _ in range(3 * wide)), tasks, (), (), (None,))
    )
    budget = Budget()
    before = budget.work
    with pytest.raises(BadBound, match="do not share a stream"):
        lower_bound(net, memory, rows(0, (ORDER, 0, 1), 1), budget)
    assert before - budget.work > OBJECT * wide


def test_splits_hold_no_more_than_the_budget() -> None:
    """Half a million tasks and 200 splits above one another held 2 GB: 18 KB of file."""
    tasks = tuple(Task("t", 1, (0,)) for _ in range(5))
    net, memory = network(ScheduleProblem("five", (Stream(0, "s"),), tasks, (), (), (None,)))
    bound = Refutation(9, np.array([[SPLIT, k, k + 1, 0, 0] for k in range(3)]))
    with pytest.raises(BadBound, match="4 cases are left open"):
        lower_bound(net, memory, bound, Budget(held=2 * 5 * 3))
    with pytest.raises(ContainerError, match="its tables have 30 entries, at most 29"):
        lower_bound(net, memory, bound, Budget(held=2 * 5 * 3 - 1))


def test_rows_that_numpy_replays_are_counted_as_calls_of_numpy() -> None:
    pair = (Task("a", 1, (0,)), Task("b", 1, (0,)))
    net, memory = network(ScheduleProblem("pair", (Stream(0, "s"),), pair, (Precedence(0, 1),), (), (None,)))

    def spent(times: int) -> int:
        budget = Budget()
        before = budget.work
        with pytest.raises(BadBound, match="left open"):
            lower_bound(net, memory, rows(5, (AFTER_ALL, 1, 0), times), budget)
        return before - budget.work

    assert spent(20) - spent(10) > 10 * PART


def test_arguments_about_moments_are_counted() -> None:
    """A flow looks at the links before its task, an argument at all tasks and holdings."""
    n, ends = 200, 300
    tasks = (*(Task("t", 1, ()) for _ in range(n)), Task("last", 1, (0,)))
    links = tuple(Precedence(k, n) for k in range(n))
    held = tuple(Holding(0, 1, None, (k % n, (k + 1) % n)) for k in range(ends))
    problem = ScheduleProblem("wide", (Stream(0, "s"),), tasks, links, held, (ends,)).check()

    def spent(*found: tuple[int, ...]) -> int:
        budget = Budget()
        before = budget.work
        table = np.array([[*row, *(0,) * (5 - len(row))] for row in found])
        with pytest.raises(BadBound):
            lower_bound(*network(problem), Refutation(9, table), budget)
        return before - budget.work

    begun = spent((PRICE, 0, 1, 0))
    assert begun - spent((PATH, 0)) >= OBJECT * (2 * ends - 1)
    assert spent((PRICE, 0, 1, 0), (FLOW, n, 0, 1)) - begun > OBJECT * n
    argued = spent((PRICE, 0, 1, 0), (WAITS, 0, n))
    assert argued - begun > OBJECT * (2 * n + 3 * ends + 4 * ends)
    more = spent((PRICE, 0, 1, 0), *((FLOW, n, 0, 0),) * 100, (WAITS, 0, n))
    assert more - argued - 100 * (spent((PRICE, 0, 1, 0), (FLOW, n, 0, 0)) - begun) >= OBJECT * 100


def test_a_circle_of_splits_that_climbs_for_ever_is_too_large() -> None:
    """Splits that contradict each other raise heads by one a turn, up to the makespan: 2**40 turns."""
    tasks = tuple(Task("t", 1, (0,)) for _ in range(3))
    problem = ScheduleProblem("circle", (Stream(0, "s"),), tasks, (), (), (None,))
    bound = Refutation(1 << 40, np.array([[SPLIT, k, (k + 1) % 3, 0, 0] for k in range(3)]))
    with pytest.raises(ContainerError, match="a raise: is too large to be checked"):
        lower_bound(*network(problem), bound, Budget(work=1 << 20))


def test_a_stream_without_tasks_and_a_task_without_streams_are_fine() -> None:
    """Streams are looked at together, so an empty one between two others must not join them."""
    streams = tuple(Stream(0, "s") for _ in range(3))
    tasks = (Task("a", 3, (0,)), Task("b", 3, (2,)), Task("c", 2, ()))
    problem = ScheduleProblem("apart", streams, tasks, (), (), (None,)).check()
    certificate = ScheduleCertificate(problem, np.array([0, 0, 1]), 3, 3, Path(), "by hand")
    assert check_schedule(certificate).verdict is Verdict.PROVED
    nothing = ScheduleProblem("none", (), (Task("c", 2, ()),), (), (), ()).check()
    alone = ScheduleCertificate(nothing, np.array([0]), 2, 2, Path(), "by hand")
    assert check_schedule(alone).verdict is Verdict.PROVED
