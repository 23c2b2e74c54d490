"""Schedules of the conformance suite: a small pipeline, and two tasks that want one stream at the same time.

In `JOBS` tasks 2 and 3 take two units each on stream 0, after one unit and before one unit on streams of their own: six
in all, and no shorter, as every kind of row shows in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.writing import Head, Suite, changed, container
from shardproof.models.problem.selection_problem import Ints
from shardproof.models.schedules.pipeline import Pipeline
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
    Bound,
    Load,
    Path,
    Refutation,
    ScheduleCertificate,
)
from shardproof.proofs.schedules.file import encode_schedule

JOBS = ScheduleProblem(
    "jobs",
    tuple(Stream(0, kind) for kind in ("shared", "first", "second", "third", "fourth")),
    (
        Task("before a", 1, (1,)),
        Task("before b", 1, (2,)),
        Task("a", 2, (0,)),
        Task("b", 2, (0,)),
        Task("after a", 1, (3,)),
        Task("after b", 1, (4,)),
    ),
    (Precedence(0, 2), Precedence(1, 3), Precedence(2, 4), Precedence(3, 5)),
    (Holding(0, 4, 2, (4,)), Holding(0, 4, 3, (5,))),
    (8,),
)
STARTS = (0, 0, 1, 3, 3, 5)
A, B = 2, 3

PIPELINE = Pipeline(((1, 1, 1), (1, 1, 1)), 2, 0, 2)
"""Tasks: F(0, 0), F(0, 1), F(1, 0), F(1, 1), then I and W likewise."""
PIPELINE_STARTS = (0, 1, 1, 3, 3, 5, 2, 4, 4, 6, 5, 6)
"""Device 0: F F . I W I W; device 1: . F I F I W W."""


ASIDE = ScheduleProblem(
    "aside",
    (Stream(0, "compute"), Stream(0, "link")),
    (Task("a", 3, (0,)), Task("b", 3, (1,))),
    (),
    (Holding(0, 3, 0, (0,)), Holding(0, 3, 1, (1,))),
    (5,),
)
"""Two tasks on two streams that do not fit into memory together."""

TIGHT = ScheduleProblem(
    "tight",
    (Stream(0, "compute"), Stream(0, "link")),
    (Task("c", 2, (0,)), Task("d", 2, (1,))),
    (),
    (Holding(0, 3, None, (0,)), Holding(0, 5, 1, (1,))),
    (6,),
)
"""Task 1 takes what task 0 frees."""

CROWD = ScheduleProblem(
    "crowd",
    (Stream(0, "compute"), Stream(0, "link")),
    (
        Task("t", 4, (1,)),
        Task("y", 1, (1,)),
        Task("g", 0, ()),
        Task("x1", 3, (0,)),
        Task("x2", 3, (0,)),
        Task("z1", 1, (0,)),
        Task("z2", 1, (0,)),
        Task("e", 2, (0,)),
        Task("w", 2, (1,)),
        Task("v", 1, (0,)),
    ),
    tuple(
        Precedence(a, b) for a, b in ((0, 1), (1, 5), (1, 6), (1, 9), (2, 3), (3, 5), (4, 6), (5, 8), (6, 8), (7, 9))
    ),
    (Holding(0, 4, 2, (5,)), Holding(0, 4, 4, (6,)), Holding(0, 4, None, (7,)), Holding(0, 5, 7, (9,))),
    (9,),
)
"""When y starts, at 4, only one of x1 and x2 can have begun, for each keeps 4 until its z, and e turns 4 into 5."""
CROWD_STARTS = (0, 4, 2, 2, 6, 5, 9, 0, 10, 10)


def crowd_rows(*end: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """An argument about CROWD: 3 per unit of memory, 4 per unit of time, and what pays for what."""
    return ((PRICE, 0, 3, 4), (FLOW, 3, 2, 12), (FLOW, 12, 7, 12), *end)


CROWD_ROWS = (*crowd_rows((LEFT, 1, 8, 0)), (PATH, 8))


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def rows(*found: tuple[int, int, int, int, int]) -> Refutation:
    return Refutation(5, np.array(found, dtype=np.int64).reshape(-1, 5))


def jobs(bound: Bound, starts: tuple[int, ...] = STARTS, makespan: int = 6, least: int = 6) -> ScheduleCertificate:
    return ScheduleCertificate(JOBS, ints(*starts), makespan, least, bound, "by hand")


def moment(
    problem: ScheduleProblem, starts: tuple[int, ...], least: int, found: tuple[tuple[int, ...], ...]
) -> ScheduleCertificate:
    """A schedule with a refutation of anything shorter than `least`."""
    end = max(s + t.time for s, t in zip(starts, problem.tasks, strict=True))
    table = np.array([[*row, *(0,) * (5 - len(row))] for row in found], dtype=np.int64)
    return ScheduleCertificate(problem, ints(*starts), end, least, Refutation(least - 1, table), "by hand")


CLOSED = rows((SPLIT, A, B, 0, 0), (PATH, B, 0, 0, 0), (PATH, A, 0, 0, 0))


def suite() -> Suite:
    out = Suite("schedule")

    def add(name: str, verdict: str, sentence: str, c: ScheduleCertificate, fault: str = "") -> None:
        out.add(f"schedule-{name}", verdict, sentence, container(encode_schedule(c)), fault=fault)

    nodes = Pipeline(((1, 1, 0),) * 3, 1, 2, None, hops=(2, 0))
    add("hops", "proved", "Optimal      proved; makespan 10",
        ScheduleCertificate(nodes, ints(0, 3, 4, 9, 6, 5, 10, 7, 6), 10, 10, Path(), "by hand"))  # fmt: skip
    add("hop", "refuted", "the lag is 2", ScheduleCertificate(nodes, ints(0, 2, 3, 7, 5, 4, 8, 6, 5), 8, 8, Path(), "by hand"),
        "a send of 2 that takes 1")  # fmt: skip
    add("load", "proved", "Optimal      proved; makespan 6", jobs(Load(0, 1, 1)))
    add("path", "proved", "WithinGap    proved; makespan 6 unit; lower bound 4", jobs(Path(), least=4))
    add("split", "proved", "Optimal      proved; makespan 6", jobs(CLOSED))
    add("raise-head", "proved", "Optimal      proved", jobs(rows((RAISE_HEAD, B, 0, 0, 0), (PATH, B, 0, 0, 0))))
    add("raise-tail", "proved", "Optimal      proved", jobs(rows((RAISE_TAIL, A, 0, 0, 0), (PATH, A, 0, 0, 0))))
    add("order", "proved", "Optimal      proved", jobs(rows((ORDER, A, B, 0, 0), (PATH, B, 0, 0, 0))))
    add("load-row", "proved", "Optimal      proved", jobs(rows((LOAD, 0, 1, 1, 0))))
    after = jobs(rows((SPLIT, A, B, 0, 0), (PATH, B, 0, 0, 0), (AFTER_ALL, A, 0, 0, 0), (PATH, A, 0, 0, 0)))
    add("after-all", "proved", "Optimal      proved", after)
    aside = ((PRICE, 0, 1, 0), (APART, 0, 1), (SPLIT, 0, 1), (PATH, 1), (PATH, 0))
    add("apart", "proved", "Optimal      proved", moment(ASIDE, (0, 3), 6, aside))
    add(
        "waits", "proved", "Optimal      proved", moment(TIGHT, (0, 2), 4, ((PRICE, 0, 1, 0), (WAITS, 0, 1), (PATH, 1)))
    )
    add("work", "proved", "lower bound 10", moment(CROWD, CROWD_STARTS, 10, crowd_rows((WORK, 1, 0, 0))))
    add("left", "proved", "lower bound 11", moment(CROWD, CROWD_STARTS, 11, CROWD_ROWS))
    drawn = ScheduleCertificate(PIPELINE, ints(*PIPELINE_STARTS), 7, 6, Load(1, 0, 0), "drawn")
    add("pipeline", "proved", "proved; makespan 7", replace(drawn, lower_bound=7))

    def refuted(name: str, sentence: str, c: ScheduleCertificate, fault: str) -> None:
        add(name, "refuted", sentence, c, fault)

    refuted(
        "stream",
        "stream 0: task 3 starts at 2",
        jobs(Path(), (0, 0, 1, 2, 3, 5), least=4),
        "two tasks at once on a stream",
    )
    refuted(
        "precedence",
        "precedence 3: task 5 starts at 4",
        jobs(Path(), (0, 0, 1, 3, 3, 4), 5, 4),
        "a task starts before one that it waits for has ended",
    )
    tight = replace(JOBS, limits=(4,))
    refuted(
        "memory",
        "device 0: holds 8, its limit is 4",
        replace(jobs(Path(), least=4), subject=tight),
        "more is held than fits",
    )
    refuted(
        "makespan",
        "the schedule ends at 6, the claim says 5",
        jobs(Path(), makespan=5, least=4),
        "it ends later than claimed",
    )
    refuted("negative", "starts at -1", jobs(Path(), (-1, 0, 1, 3, 3, 5), least=4), "a task starts before 0")
    refuted(
        "bound",
        "the argument gives a lower bound of 4, the claim says 6",
        jobs(Path()),
        "the longest path is shorter than claimed",
    )
    refuted("no-stream", "there is no stream 5", jobs(Load(5, 0, 0)), "a stream that is not there")
    refuted(
        "open",
        "1 cases are left open",
        jobs(rows((SPLIT, A, B, 0, 0), (PATH, B, 0, 0, 0))),
        "the second case is missing",
    )
    refuted(
        "left-over",
        "all cases are closed already",
        jobs(rows((LOAD, 0, 1, 1, 0), (LOAD, 0, 1, 1, 0))),
        "a row follows the end",
    )
    refuted("path-row", "shows 4 only, not more than 5", jobs(rows((PATH, B, 0, 0, 0))), "the case is not contradicted")
    refuted(
        "raise-alone",
        "no tasks that task 4 would come after",
        jobs(rows((RAISE_HEAD, 4, 3, 0, 0))),
        "there is no other task on the stream",
    )
    roomy = replace(ASIDE, limits=(6,))
    refuted("apart-fits", "tasks 0 and 1 may run at the same moment", moment(roomy, (0, 3), 6, aside), "both fit")
    refuted(
        "waits-not",
        "task 0 may start before task 1 has ended",
        moment(TIGHT, (0, 2), 4, ((PRICE, 0, 1, 0), (WAITS, 1, 0), (PATH, 0))),
        "the first does not need what the second frees",
    )
    refuted(
        "work-less",
        "shows 10 only, not more than 10",
        moment(CROWD, CROWD_STARTS, 11, crowd_rows((WORK, 1, 0, 0))),
        "less is left",
    )
    refuted(
        "flow-missing",
        "only, not more than 9",
        moment(CROWD, CROWD_STARTS, 10, (*crowd_rows()[:2], (WORK, 1, 0, 0))),
        "what frees memory is not charged for what it needs",
    )
    refuted(
        "flow-back",
        "no flow leads from 2 to 3",
        moment(CROWD, CROWD_STARTS, 10, crowd_rows((FLOW, 2, 3, 1), (WORK, 1, 0, 0))),
        "a flow against the links",
    )
    refuted(
        "price-below-0",
        "a price is 0 or more",
        moment(CROWD, CROWD_STARTS, 10, ((PRICE, 0, -3, 4), (WORK, 1, 0, 0))),
        "memory that costs less than nothing",
    )
    refuted(
        "price-missing",
        "no price was named",
        moment(TIGHT, (0, 2), 4, ((WAITS, 0, 1), (PATH, 1))),
        "no argument is open",
    )
    refuted(
        "no-limit",
        "there is no limit on device 0",
        moment(replace(TIGHT, limits=(None,)), (0, 2), 4, ((PRICE, 0, 1, 0), (WAITS, 0, 1), (PATH, 1))),
        "memory without a limit binds nothing",
    )
    refuted(
        "split-apart",
        "do not share a stream",
        jobs(rows((SPLIT, 0, 1, 0, 0))),
        "the two tasks have no stream in common",
    )
    refuted("word", "unknown word 99", jobs(rows((99, 0, 0, 0, 0))), "there is no such row")
    refuted(
        "pipeline-order",
        "precedence",
        replace(drawn, starts=ints(2, 1, 1, *PIPELINE_STARTS[3:])),
        "a micro-batch is on the second stage first",
    )
    whole = encode_schedule(jobs(CLOSED))

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(whole, "schedule.json", change))
        out.add(f"schedule-{name}", "malformed", sentence, data, fault=fault)

    malformed(
        "objective",
        "this version knows the objective 'makespan' only",
        lambda h: h.update(objective="energy"),
        "another objective",
    )
    malformed("bound-unknown", "unknown bound 'guess'", lambda h: h["bound"].update(kind="guess"), "an unknown bound")
    malformed("subject", "unknown subject 'game'", lambda h: h["subject"].update(kind="game"), "an unknown subject")
    malformed("tasks", "start times for 6 tasks", lambda h: h.update(tasks=1), "another number of tasks")
    malformed(
        "stream-missing",
        "task 2 (a): stream is 9",
        lambda h: h["subject"]["tasks"][2].__setitem__(2, [9]),
        "a task on a stream that is not there",
    )
    malformed(
        "rows", "rows belong to a refutation", lambda h: h.update(bound={"kind": "path"}), "rows beside another bound"
    )
    return out
