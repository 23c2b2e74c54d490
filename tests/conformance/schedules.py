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
    LOAD,
    ORDER,
    PATH,
    RAISE_HEAD,
    RAISE_TAIL,
    SPLIT,
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


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def rows(*found: tuple[int, int, int, int, int]) -> Refutation:
    return Refutation(5, np.array(found, dtype=np.int64).reshape(-1, 5))


def jobs(bound: Bound, starts: tuple[int, ...] = STARTS, makespan: int = 6, least: int = 6) -> ScheduleCertificate:
    return ScheduleCertificate(JOBS, ints(*starts), makespan, least, bound, "by hand")


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
