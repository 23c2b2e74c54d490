"""Every sentence with which a refutation of a makespan is refused: one wrong row for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from shardproof.models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from shardproof.proofs.schedules.certificate import (
    AFTER_ALL,
    APART,
    FLOW,
    LEFT,
    LOAD,
    ORDER,
    PATH,
    PRICE,
    RAISE_HEAD,
    RAISE_TAIL,
    SPLIT,
    WAITS,
    WORK,
    Refutation,
)
from shardproof.verify.budget import Budget
from shardproof.verify.schedules.bounds import BadBound, lower_bound
from shardproof.verify.schedules.network import network

Row = tuple[int, int, int, int, int]


def bound(makespan: int, rows: Sequence[Row]) -> int:
    """Two tasks of 3 and one of 2 on stream 0, one of 4 on stream 1 behind the first; two units of memory."""
    tasks = (Task("a", 3, (0,)), Task("b", 3, (0,)), Task("c", 2, (0,)), Task("d", 4, (1,)))
    streams = (Stream(0, "compute"), Stream(0, "group"))
    held = (Holding(0, 1, 0, (3,)), Holding(0, 1, 1, (1,)))
    problem = ScheduleProblem("p", streams, tasks, (Precedence(0, 3),), held, (2,)).check()
    net, memory = network(problem)
    return lower_bound(net, memory, Refutation(makespan, np.array(rows, dtype=np.int64).reshape(-1, 5)), Budget.of(0))


def test_the_right_one_holds() -> None:
    assert bound(7, [(LOAD, 0, 0, 0, 0)]) == 8
    assert bound(6, [(PATH, 3, 0, 0, 0)]) == 7
    assert bound(7, [(SPLIT, 0, 1, 0, 0), (LOAD, 0, 0, 0, 0), (LOAD, 0, 0, 0, 0)]) == 8


@pytest.mark.parametrize(
    ("makespan", "rows", "words"),
    [
        (7, [(99, 0, 0, 0, 0)], "row 0: unknown word 99"),
        (8, [(LOAD, 0, 0, 0, 0)], "shows 8 only, not more than 8"),
        (7, [(LOAD, 5, 0, 0, 0)], "there is no stream 5"),
        (7, [(PATH, 9, 0, 0, 0)], "there is no task 9"),
        (7, [(PATH, 0, 0, 0, 0)], "shows 7 only, not more than 7"),
        (7, [(LOAD, 0, 0, 0, 0), (PATH, 0, 0, 0, 0)], "row 1: all cases are closed already"),
        (7, [], "1 cases are left open"),
        (7, [(SPLIT, 0, 1, 0, 0), (LOAD, 0, 0, 0, 0)], "1 cases are left open"),
        (7, [(SPLIT, 0, 3, 0, 0)], "tasks 0 and 3 do not share a stream"),
        (7, [(SPLIT, 0, 0, 0, 0)], "tasks 0 and 0 do not share a stream"),
        (7, [(ORDER, 0, 9, 0, 0)], "tasks 0 and 9 do not share a stream"),
        (10, [(ORDER, 0, 1, 0, 0)], "task 1 before 0 takes 10, not more than 10"),
        (7, [(RAISE_HEAD, 0, 1, 0, 0)], "task 0 is not on stream 1"),
        (7, [(RAISE_TAIL, 9, 0, 0, 0)], "task 9 is not on stream 0"),
        (7, [(RAISE_HEAD, 0, 0, 99, 0)], "no tasks that task 0 would come after"),
        (20, [(RAISE_HEAD, 0, 0, 0, 0)], "task 0 may come before them"),
        (7, [(AFTER_ALL, 9, 0, 0, 0)], "there is no task 9 or no stream 0"),
        (7, [(AFTER_ALL, 0, 9, 0, 0)], "there is no task 0 or no stream 9"),
        (7, [(WAITS, 0, 1, 0, 0)], "no price was named"),
        (7, [(FLOW, 0, 1, 1, 0)], "no price was named"),
        (7, [(PRICE, 5, 1, 1, 0)], "there is no limit on device 5"),
        (7, [(PRICE, 0, -1, 1, 0)], "a price is 0 or more"),
        (7, [(PRICE, 0, 1, 1, 0), (FLOW, 0, 1, -1, 0)], "a flow is 0 or more"),
        (7, [(PRICE, 0, 1, 1, 0), (FLOW, 0, 2, 1, 0)], "no flow leads from 0 to 2"),
        (7, [(PRICE, 0, 1, 1, 0), (WAITS, 0, 9, 0, 0)], "there is no task 9"),
        (7, [(PRICE, 0, 1, 0, 0), (WORK, 0, 0, 0, 0)], "time has no price"),
        (7, [(PRICE, 0, 1, 0, 0), (WORK, 0, 7, 0, 0)], "there is no stream 7"),
        (7, [(PRICE, 0, 1, 0, 0), (LEFT, 0, 9, 0, 0)], "there is no task 9"),
        (7, [(PRICE, 0, 1, 0, 0), (WAITS, 0, 1, 0, 0)], "task 1 may start before task 0 has ended"),
        (7, [(PRICE, 0, 1, 0, 0), (APART, 0, 3, 0, 0)], "may run at the same moment"),
        (7, [(PRICE, 0, 1, 0, 0), (SPLIT, 0, 1, 0, 0), (APART, 0, 3, 0, 0)], "this must be known before a split"),
    ],
)
def test_rows_that_are_wrong(makespan: int, rows: Sequence[Row], words: str) -> None:
    with pytest.raises(BadBound) as refused:
        bound(makespan, rows)
    assert words in str(refused.value)
