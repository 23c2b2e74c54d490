"""The checker of schedules: what it accepts was drawn by hand, and every way to break it is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import Holding, Precedence, ScheduleProblem, Stream, Task
from shardproof.models.text import InputError
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.schedules.certificate import (
    LOAD,
    ORDER,
    PATH,
    RAISE_HEAD,
    SPLIT,
    Load,
    Path,
    Refutation,
    ScheduleCertificate,
)
from shardproof.proofs.schedules.file import read_schedule, write_schedule
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.schedules.network import network
from shardproof.verify.schedules.pipeline import pipeline_network

TWO = Pipeline(((1, 1, 1),) * 2, 2, 0, 2)
#            F0.0 F0.1 F1.0 F1.1 I0.0 I0.1 I1.0 I1.1 W0.0 W0.1 W1.0 W1.1
DRAWN = np.array([0, 1, 1, 3, 3, 5, 2, 4, 4, 6, 5, 6])
GOOD = ScheduleCertificate(TWO, DRAWN, 7, 7, Load(1, 0, 0), "drawn")


def test_a_drawn_schedule_is_optimal() -> None:
    result = check_schedule(GOOD)
    assert (result.verdict, result.kind, result.cost, result.lower_bound) == (Verdict.PROVED, "Optimal", 7, 7)
    assert "2 activations" in result.space


@pytest.mark.parametrize(
    ("task", "start", "words"),
    [
        (2, 0, "precedence"),
        (6, 1, "precedence"),
        (9, 3, "precedence"),
        (0, -1, "starts at -1"),
        (11, 5, "stream 1"),
        (9, 8, "ends at 9"),
    ],
)
def test_a_moved_task_is_refuted(task: int, start: int, words: str) -> None:
    starts = DRAWN.copy()
    starts[task] = start
    result = check_schedule(replace(GOOD, starts=starts))
    assert result.verdict is Verdict.REFUTED and words in result.reason
    assert result.cost is None and result.lower_bound is None


def test_memory_sends_and_times_are_recomputed() -> None:
    for other, words in (
        (replace(TWO, memory=1), "holds 2, its limit is 1"),
        (replace(TWO, send=1), "the lag is 1"),
        (replace(TWO, times=((1, 1, 2), (1, 1, 1))), "stream 0"),
    ):
        result = check_schedule(replace(GOOD, subject=other))
        assert result.verdict is Verdict.REFUTED and words in result.reason


def test_bounds_are_recomputed() -> None:
    for changed, words in (
        (replace(GOOD, bound=Path()), "gives a lower bound of 6"),
        (replace(GOOD, bound=Load(1, 3, 0)), "gives a lower bound"),
        (replace(GOOD, bound=Load(2, 0, 0)), "no stream 2"),
        (replace(GOOD, lower_bound=8), "gives a lower bound of 7"),
        (replace(GOOD, makespan=6), "ends at 7"),
    ):
        result = check_schedule(changed)
        assert result.verdict is Verdict.REFUTED and words in result.reason
    weaker = check_schedule(replace(GOOD, bound=Path(), lower_bound=6))
    assert (weaker.verdict, weaker.kind, weaker.lower_bound) == (Verdict.PROVED, "WithinGap", 6)


def rows(*words: tuple[int, ...]) -> Refutation:
    return Refutation(6, np.array([[*w, *(0,) * (5 - len(w))] for w in words]).reshape(-1, 5))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (rows(), "1 cases are left open"),
        (rows((LOAD, 0, 0, 0)), "shows 6 only"),
        (rows((PATH, 0)), "shows 6 only"),
        (rows((LOAD, 1, 0, 0), (LOAD, 1, 0, 0)), "closed already"),
        (rows((SPLIT, 0, 1), (LOAD, 1, 0, 0)), "1 cases are left open"),
        (rows((SPLIT, 0, 2), (LOAD, 1, 0, 0), (LOAD, 1, 0, 0)), "do not share a stream"),
        (rows((RAISE_HEAD, 0, 0, 0, 0), (LOAD, 1, 0, 0)), "may come before them"),
        (rows((RAISE_HEAD, 0, 1, 0, 0), (LOAD, 1, 0, 0)), "is not on stream"),
        (rows((RAISE_HEAD, 0, 0, 99, 0), (LOAD, 1, 0, 0)), "no tasks"),
        (rows((ORDER, 1, 0), (LOAD, 1, 0, 0)), "not more than 6"),
        (rows((14, 1, 0), (LOAD, 1, 0, 0)), "unknown word 14"),
    ],
)
def test_bad_refutations_are_refuted(argument: Refutation, words: str) -> None:
    result = check_schedule(replace(GOOD, bound=argument))
    assert result.verdict is Verdict.REFUTED and words in result.reason


def test_a_refutation_with_a_split_is_replayed() -> None:
    argument = rows((SPLIT, 0, 1), (LOAD, 1, 0, 0), (LOAD, 1, 0, 0))
    assert check_schedule(replace(GOOD, bound=argument)).verdict is Verdict.PROVED


def test_the_file_keeps_everything() -> None:
    for certificate in (
        GOOD,
        replace(GOOD, bound=rows((SPLIT, 0, 1), (LOAD, 1, 0, 0), (LOAD, 1, 0, 0))),
        replace(GOOD, subject=TWO.problem(), bound=Load(1, 0, 0)),
    ):
        data = write_schedule(None, certificate)
        again = read_schedule(data)
        assert write_schedule(None, again) == data
        assert again.subject == certificate.subject and again.starts.tolist() == DRAWN.tolist()
        assert check_schedule(again).verdict is Verdict.PROVED


def test_pipelines_are_built_twice_alike() -> None:
    for pipe in (
        Pipeline(((1, 2, 3), (4, 5, 6), (7, 8, 9)), 5, 2, 2),
        Pipeline(((1, 2, 3), (4, 5, 6), (7, 8, 9)), 5, 2, 2, 2, True),
        Pipeline(((1, 2, 3), (4, 5, 6)), 3, 2, None, 3),
    ):
        (net, memory), (other, held) = pipeline_network(pipe, False), network(pipe.problem())
        assert net.times.tolist() == other.times.tolist() and memory.limits == held.limits
        arcs = [sorted(zip(n.before, n.after, n.lag, strict=True)) for n in (net, other)]
        assert arcs[0] == arcs[1]
        assert [s.tolist() for s in net.streams] == [s.tolist() for s in other.streams]
        for name in ("device", "amount", "first", "holder", "last"):
            assert getattr(memory, name).tolist() == getattr(held, name).tolist()


def test_collectives_and_memory_of_any_problem() -> None:
    both = Task("all-reduce", 2, (0, 1))
    problem = ScheduleProblem(
        "two devices",
        (Stream(0, "compute"), Stream(1, "compute")),
        (Task("a", 3, (0,)), Task("b", 1, (1,)), both),
        (Precedence(0, 2), Precedence(1, 2)),
        (Holding(0, 5, 0, (2,)), Holding(1, 4, None, (1,)), Holding(1, 3, 2, ())),
        (5, 4),
    ).check()
    starts = np.array([0, 0, 3])
    certificate = ScheduleCertificate(problem, starts, 5, 5, Path(), "drawn")
    assert check_schedule(certificate).verdict is Verdict.PROVED
    tight = replace(problem, limits=(5, 3))
    assert "device 1: holds 4" in check_schedule(replace(certificate, subject=tight)).reason
    late = replace(certificate, starts=np.array([0, 3, 4]), makespan=6)
    assert "" == check_schedule(replace(late, lower_bound=5)).reason
    overlapped = replace(certificate, starts=np.array([0, 3, 3]))
    assert check_schedule(overlapped).verdict is Verdict.REFUTED


def test_circles_and_bad_numbers_are_refused() -> None:
    one = Task("a", 1, (0,))
    circle = ScheduleProblem("c", (Stream(0, "c"),), (one, one), (Precedence(0, 1), Precedence(1, 0)), (), (None,))
    assert check_schedule(ScheduleCertificate(circle, np.array([0, 1]), 2, 2, Path(), "")).verdict is Verdict.REFUTED
    for bad in (
        replace(TWO, times=()),
        replace(TWO, times=((0, 0, 0),)),
        replace(TWO, micro_batches=0),
        replace(TWO, memory=0),
        replace(TWO, send=-1),
        replace(TWO, micro_batches=4096, times=((1, 1, 1),) * 256),
    ):
        with pytest.raises(InputError):
            bad.check()
    with pytest.raises(InputError, match="stream is 7"):
        replace(TWO.problem(), tasks=(Task("a", 1, (7,)),), precedences=(), holdings=()).check()
    with pytest.raises(ContainerError, match="start times for 12 tasks"):
        read_schedule(write_schedule(None, replace(GOOD, starts=np.zeros(7, dtype=np.int64))))
