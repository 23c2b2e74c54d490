"""Shortest schedules: equal to enumeration on small pipelines, proved on large ones, and mutants are refuted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from budgets import some_or_all, work
from schedule_oracle import least_makespan

from shardproof.formal.schedules.chunks import search_chunks
from shardproof.formal.schedules.published import orders, starts_of, with_chunks
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.schedules.certificate import Load, Path, Refutation, ScheduleCertificate
from shardproof.verify.schedules.certificate import check_schedule
from shardproof.verify.schedules.pipeline import pipeline_network


def solved(pipe: Pipeline, seconds: float = 20.0) -> ScheduleCertificate:
    found = search(shop(pipe), work(seconds))
    certificate = ScheduleCertificate(pipe, found.starts, found.makespan, found.lower_bound, found.bound, "best")
    result = check_schedule(certificate)
    assert result.verdict is Verdict.PROVED, result.reason
    return certificate


def small(seed: int) -> Pipeline:
    """Some twelve to eighteen tasks with times of 0 to 9."""
    rnd = random.Random(seed)
    p, m = rnd.choice([(1, 4), (1, 5), (2, 2), (2, 2), (2, 3), (3, 2)])
    times = []
    while len(times) < p:
        row = tuple(rnd.randint(0, 9) for _ in range(3))
        if any(row):
            times.append(row)
    return Pipeline(tuple(times), m, rnd.choice([0, 1, 4]), rnd.choice([None, 1, 2, m])).check()


@pytest.mark.parametrize("seeds", some_or_all(range(8), range(8, 200)))
def test_equal_to_enumeration(seeds: range) -> None:
    for seed in seeds:
        pipe = small(seed)
        certificate = solved(pipe)
        assert certificate.makespan == certificate.lower_bound == least_makespan(pipe), pipe


def test_refutations_with_splits_are_needed_and_checked() -> None:
    rows = 0
    rnd = random.Random(1)
    for _ in range(12):
        times = tuple(tuple(rnd.randint(1, 9) for _ in range(3)) for _ in range(4))
        certificate = solved(Pipeline(times, 4, 1, 4))
        assert certificate.makespan == certificate.lower_bound
        rows += certificate.rows
    assert rows > 10


@pytest.mark.parametrize(
    ("p", "m", "memory", "send"), [(4, 64, 8, 1), (8, 16, 8, 0), (16, 16, 16, 1), (16, 64, 32, 0), (16, 64, 64, 1)]
)
def test_even_pipelines_are_proved(p: int, m: int, memory: int, send: int) -> None:
    certificate = solved(Pipeline(((1, 1, 1),) * p, m, send, memory))
    assert certificate.makespan == certificate.lower_bound


def mutants(certificate: ScheduleCertificate, rnd: random.Random) -> Iterator[tuple[str, ScheduleCertificate]]:
    """Certificates that say too much: each has a fault that somebody could make."""
    pipe, starts = certificate.subject, certificate.starts
    assert isinstance(pipe, Pipeline)
    times = np.array([t.time for t in pipe.problem().tasks])
    while True:
        match rnd.randrange(7):
            case 0:  # a task moved before what it needs, or beyond the end
                moved = starts.copy()
                moved[rnd.randrange(len(moved))] += rnd.choice([-1000, 1000])
                yield "moved", replace(certificate, starts=moved)
            case 1:  # all that needs a send starts without it
                yield "send dropped", replace(certificate, subject=replace(pipe, send=pipe.send + rnd.randint(1, 5)))
            case 2:
                yield "memory", replace(certificate, subject=replace(pipe, memory=1), bound=Path(), lower_bound=0)
            case 3:
                more = rnd.randint(1, 9)
                yield "bound", replace(certificate, lower_bound=certificate.lower_bound + more)
            case 4:  # two tasks of one stream at once
                a, b = (rnd.randrange(len(starts)) for _ in range(2))
                if a != b and a // pipe.micro_batches % pipe.parts == b // pipe.micro_batches % pipe.parts:
                    both = starts.copy()
                    both[a] = both[b]
                    if times[a] and times[b]:
                        yield "two at once", replace(certificate, starts=both)
            case 5:
                longer = [list(t) for t in pipe.times]
                longer[rnd.randrange(pipe.stages)][rnd.randrange(3)] += 50
                yield "longer", replace(certificate, subject=replace(pipe, times=tuple(map(tuple, longer))))
            case 6:
                if isinstance(certificate.bound, Refutation):
                    rows = certificate.bound.rows[: rnd.randrange(len(certificate.bound.rows))]
                    yield "cut off", replace(certificate, bound=Refutation(certificate.bound.makespan, rows))
                    later = Refutation(certificate.bound.makespan + 1, certificate.bound.rows)
                    yield "a later one", replace(certificate, bound=later, lower_bound=certificate.lower_bound + 1)
                else:
                    yield "other load", replace(certificate, bound=Load(0, 10**6, 0))


def test_a_thousand_mutants_are_refused() -> None:
    rnd = random.Random(7)
    pipes = [
        Pipeline(((2, 3, 1),) * 4, 6, 1, 4),
        Pipeline(((3, 3, 3), (1, 5, 2), (4, 1, 1)), 5, 2, 2),
        Pipeline(((5, 7, 5), (6, 2, 9), (5, 5, 8), (6, 1, 1)), 4, 1, 4),
        *(Pipeline(tuple(tuple(rnd.randint(1, 9) for _ in range(3)) for _ in range(4)), 4, 1, 4) for _ in range(8)),
    ]
    honest = [solved(pipe) for pipe in pipes]
    assert any(isinstance(c.bound, Refutation) for c in honest)
    refused: dict[str, int] = {}
    makers = [mutants(c, rnd) for c in honest]
    for k in range(1000):
        word, mutant = next(makers[k % len(makers)])
        try:
            verdict = check_schedule(mutant).verdict
        except ContainerError:
            verdict = Verdict.REFUTED
        assert verdict is Verdict.REFUTED, (word, mutant)
        refused[word] = refused.get(word, 0) + 1
    assert sum(refused.values()) == 1000 and len(refused) >= 8, refused


def test_chunks_share_the_memory_of_their_device() -> None:
    """A published schedule is beaten within its memory, by one that the checker accepts."""
    cut = with_chunks("interleaved:2", Pipeline(((1, 1, 1),) * 2, 8, 0, 3))
    starts = starts_of(cut, orders("interleaved:2", cut))
    found = search_chunks(cut, work(6.0), starts)
    certificate = ScheduleCertificate(cut, found.starts, found.makespan, found.lower_bound, found.bound, "best")
    result = check_schedule(certificate)
    assert result.verdict is Verdict.PROVED, result.reason
    net, _ = pipeline_network(cut, False)
    assert found.makespan < int((starts + net.times).max())
