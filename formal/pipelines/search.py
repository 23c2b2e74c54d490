"""This module searches over cuts, views, micro-batches and placements of a pipelined training step.

Cases (stages, micro-batches) begin with a bound by least work.  First come leaves of one unit and a plan of one case
of many stages.  Then always the case of the least bound: leaves of one unit, which raise it, as many as it takes to see
that it is no better than the best plan; then a plan, then longer leaves, until the least bound is near the best plan,
or nothing raises it.  A plan without pipelines is the case (1, 1), so that no answer is worse than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Protocol

import numpy as np

from ...models.communication.choices import Choices
from ...models.cost.selection import DecisionKind
from ...models.pipelines.views import cut_levels
from ...models.pipelines.work import PER_SECOND
from ...models.problem.selection_problem import Ints
from ...models.schedules.pipeline import Pipeline
from ...proofs.pipelines.certificate import PipelineCertificate, Stage
from ...proofs.schedules.certificate import ScheduleCertificate
from ..schedules.drawing import peaks
from ..schedules.published import orders as actions
from ..schedules.published import starts_of
from ..schedules.search import search
from ..schedules.shop import shop
from ..selection.model.clock import Clock
from .case import FAR, NO_STEP, Case, StagePlan, cases, orders, picoseconds
from .job import Job

LARGEST_TIME = 1 << 31
"""Times of a schedule stay below this."""

TRY_SECONDS, SCHEDULE_SECONDS = 0.2, 5.0
"""For the schedule of a plan under one limit of activations; for that of the best plan."""


MOST_TRIED = 128
"""Micro-batches times stages up to which cuts are moved one by one."""

MOST_MOVES = 12
"""Moves of cuts."""


TIGHT = Fraction(1, 20)
"""Of the gap that is asked for: stages that are nearer to their leaves than this need no longer leaves."""

USUAL = 8
"""Micro-batches per stage of the first plans: with so many, filling and emptying take an eighth."""

MOST_FAILED = 3
"""Plans that are no better than the best known, one after another, until no more are made."""


class Tell(Protocol):
    """Hears of every step of the search: a text."""

    def __call__(self, text: str, /) -> None: ...


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A plan of a case with its schedule; `kept`: activations on each stage at once, `step` in picoseconds."""

    case: Case
    stages: list[StagePlan]
    quantum: int
    schedule: ScheduleCertificate
    kept: tuple[int, ...]
    waiting: tuple[int, ...]
    step: int

    @property
    def memory(self) -> list[int]:
        """Bytes on the fullest device of every stage; `waiting`: of what waits to be sent or to be read."""
        rows = zip(self.stages, self.kept, self.waiting, strict=True)
        return [self.case.peak(s, k) + w for s, k, w in rows]


@dataclass(frozen=True, eq=False)
class Searched:
    """The best plan (None: none was found), all cases with their bounds, and the least of these."""

    job: Job
    best: Scheduled | None
    cases: list[Case]
    lower_bound: int

    def certificate(self) -> PipelineCertificate:
        """What is claimed of the best plan."""
        best, job = self.best, self.job
        if best is None:
            raise ValueError("only a plan has a certificate")
        needed = [case for case in self.cases if case.coarse < self.lower_bound]
        distinct = {id(leaf): leaf for case in needed for leaf in (*case.leaves.values(), *case.passes.values())}
        return PipelineCertificate(
            job.graph,
            job.machine,
            job.where.name,
            job.memory,
            job.division,
            tuple((c.stages, c.micro) for c in self.cases),
            best.case.micro,
            tuple(Stage(s.first, s.end, _choices(best.case, s)) for s in best.stages),
            best.quantum,
            best.schedule,
            best.step,
            self.lower_bound,
            tuple(distinct.values()),
            any(len(cut_levels(job.machine, c.stages)) > 1 for c in self.cases),
            job.forbidden,
        )


def _choices(case: Case, stage: StagePlan) -> Choices:
    decisions = case.pieces.planning.decisions
    found = [(decisions[v], decisions[v].placement(x)) for v, x in sorted(stage.choices.items())]
    return Choices(
        tuple((d.name, p) for d, p in found if d.kind is DecisionKind.OPERATOR),
        tuple((d.name, p) for d, p in found if d.kind is DecisionKind.COPY),
    )


def pipeline_of(case: Case, stages: Sequence[StagePlan], kept: int) -> tuple[int, Pipeline]:
    """Picoseconds per unit, and the pipeline with the stages' times in such units."""
    scale = case.pieces.planning.problem.scale
    cuts = [case.job.division.cuts[s.first - 1] for s in stages[1:]]
    sends = [ceil(PER_SECOND * max(case.hop(t, k) for t in cut)) for k, cut in enumerate(cuts, 1)]
    send = max(sends, default=0)
    times = [(picoseconds(s.seconds.forward, scale), picoseconds(s.seconds.backward, scale)) for s in stages]
    quantum = max(1, -(-max(send, *(t for pair in times for t in pair)) // LARGEST_TIME))
    rows = tuple((-(-f // quantum), -(-b // quantum), 0) for f, b in times)
    hops = tuple(-(-send // quantum) for send in sends)
    pipe = Pipeline(rows, case.micro, max(hops, default=0), kept, hops=hops if len(set(hops)) > 1 else ())
    return quantum, pipe.check()


def step_of(case: Case, stages: Sequence[StagePlan], quantum: int, schedule: ScheduleCertificate) -> int:
    """Picoseconds until the last stage has updated; a stage updates as soon as its last backward has ended."""
    pipe = schedule.subject
    assert isinstance(pipe, Pipeline)
    return _step_of(case, stages, quantum, pipe, schedule.starts)


def _step_of(case: Case, stages: Sequence[StagePlan], quantum: int, pipe: Pipeline, starts: Ints) -> int:
    scale, times = case.pieces.planning.problem.scale, np.array(pipe.times, dtype=np.int64).T[:, :, None]
    ends = (starts.reshape(3, len(stages), case.micro) + times).max(axis=(0, 2))
    return max(int(end) * quantum + picoseconds(s.seconds.update, scale) for end, s in zip(ends, stages, strict=True))


def _best_cut(case: Case) -> tuple[int, ...]:
    """Starts of the stages for which a schedule of times as the bounds have them is shortest, by moving one cut at a
    time from where the bound is least and from even times.
    """
    micro = case.bounds().one
    n, p = case.job.division.units, case.stages
    there = case.hops().there
    quantum = max(1, max(micro[0][n], *(max(row, default=0) for row in there)) // (1 << 24))

    def value(starts: tuple[int, ...]) -> int:
        spans = [micro[i][j] // quantum for i, j in zip(starts, (*starts[1:], n), strict=True)]
        hops = tuple(there[s][starts[s]] // quantum for s in range(1, p))
        times = tuple((t // 3 + 1, t - t // 3, 0) for t in spans)
        pipe = Pipeline(times, case.micro, max(hops, default=0), case.micro, hops=hops)
        return search(shop(pipe), 0.0).makespan

    ends = [micro[0][i] for i in range(n)]
    even = tuple(min(range(n), key=lambda i: abs(ends[i] * p - s * micro[0][n])) for s in range(p))
    begins = [case.starts, *([even] if sorted(set(even)) == list(even) else [])]
    if case.micro * p > MOST_TRIED or p == 1:
        return case.starts
    known = {starts: value(starts) for starts in begins}
    for _ in range(MOST_MOVES):
        best = min(known, key=lambda s: known[s])
        around = [
            (*best[:k], best[k] + d, *best[k + 1 :])
            for k in range(1, p)
            for d in (-1, 1)
            if best[k - 1] < best[k] + d < (*best, n)[k + 1]
        ]
        new = [s for s in around if s not in known]
        known |= {s: value(s) for s in new}
        if min(known.values()) == known[best]:
            break
    return min(known, key=lambda s: known[s])


def waiting(case: Case, stages: Sequence[StagePlan], pipe: Pipeline, starts: Ints) -> tuple[int, ...]:
    """Per stage the bytes on a device of what crosses its cuts: what has come and is not read yet, what is being sent.

    A block is there from the end of its task on one side to the start of its task on the other; the sender has it
    until the send is over.
    """
    begin = starts.reshape(3, len(stages), case.micro)
    times = np.array(pipe.times, dtype=np.int64).T[:, :, None]
    end, out = begin + times, []
    for s, stage in enumerate(stages):
        total = 0
        for k, beside in ((0, s - 1), (1, s + 1)):
            if 0 <= beside < len(stages):  # what comes from there
                name = case.job.division.cuts[max(stage.first, stages[beside].first) - 1][k]
                total += _most(end[k, beside], begin[k, s]) * case.block(name)
        for k, beside in ((0, s + 1), (1, s - 1)):
            if 0 <= beside < len(stages):
                name = case.job.division.cuts[max(stage.first, stages[beside].first) - 1][k]
                total += _most(end[k, s], end[k, s] + pipe.lag(max(s, beside))) * case.block(name)
        out.append(total)
    return tuple(out)


def _most(begin: Ints, end: Ints) -> int:
    """How many of these intervals overlap at most."""
    moments = sorted([(int(t), -1) for t in end] + [(int(t), 1) for t in begin])
    return max(accumulate(change for _, change in moments))


def scheduled(
    case: Case, stages: list[StagePlan], seconds: float, clock: Clock, only: int | None = None
) -> Scheduled | None:
    """A plan with the best schedule among several limits of activations, fewest first; None if none fits.  1F1B keeps
    as many as there are stages behind; more hide what sending takes, fewer take less memory.
    """
    p, m, memory = case.stages, case.micro, case.job.memory
    few = () if memory is None else (1, 2, p // 2)
    limits = sorted({max(1, min(k, m)) for k in (*few, p, p + 2, 2 * p, 3 * p, m)}) if only is None else [only]
    best: Scheduled | None = None
    for limit in limits:
        quantum, pipe = pipeline_of(case, stages, max(limit, 1))
        arrays, problem = shop(pipe), pipe.problem()
        first: Ints | None = starts_of(pipe, actions("1f1b", pipe)) if limit >= min(p, m) else None
        found = search(arrays, seconds, first=first)
        kept, queued = tuple(peaks(problem, found.starts)), waiting(case, stages, pipe, found.starts)
        if best is not None and _step_of(case, stages, quantum, pipe, found.starts) >= best.step:
            continue  # nor would it be shorter with placements that fit
        placed = case.fitted(stages, kept, queued, clock)
        if placed is None:
            break  # more activations fit even less
        starts, makespan, argument, lower = found.starts, found.makespan, found.bound, found.lower_bound
        if placed is not stages and any(a is not b for a, b in zip(placed, stages, strict=True)):
            quantum, pipe = pipeline_of(case, placed, max(limit, 1))
            again = search(shop(pipe), seconds)
            argument, lower = again.bound, again.lower_bound
            tried = [again.starts, *([] if first is None else [starts_of(pipe, actions("1f1b", pipe))])]
            fits: list[tuple[int, int, Ints]] = []
            for x in tried:
                kept, queued = tuple(peaks(pipe.problem(), x)), waiting(case, placed, pipe, x)
                rows = zip(placed, kept, queued, strict=True)
                if memory is None or all(case.peak(s, k) + w <= memory for s, k, w in rows):
                    fits.append((int((x + shop(pipe).times).max()), len(fits), x))
            if not fits:
                continue
            makespan, _, starts = min(fits, key=lambda row: row[:2])
            kept, queued = tuple(peaks(pipe.problem(), starts)), waiting(case, placed, pipe, starts)
        certificate = ScheduleCertificate(pipe, starts, makespan, lower, argument, "best")
        made = Scheduled(case, placed, quantum, certificate, kept, queued, step_of(case, placed, quantum, certificate))
        if best is None or made.step < best.step:
            best = made
    return best


def _seeds(found: Sequence[Case]) -> list[Case]:
    """Cases that are looked at before all others: of every number of stages the one whose micro-batches are nearest to
    `USUAL` times as many; the step as it is.
    """
    stages = sorted({c.stages for c in found}, reverse=True)
    return [
        min((c for c in found if c.stages == p), key=lambda c: abs(c.micro - USUAL * p) if p > 1 else c.micro)
        for p in stages
    ]


def planned(job: Job, pairs: list[tuple[int, int]], clock: Clock, gap: Fraction, tell: Tell | None = None) -> Searched:
    """The best plan over these pairs within the time, and the bound of all of them."""
    found = cases(job, pairs)
    for case in found:
        case.update_bound(NO_STEP)
        case.coarse = case.bound
    search_of = _Search(found, clock, gap, tell or (lambda words: None))
    search_of.begin()
    search_of.close()
    search_of.improve()
    best, most = search_of.best, search_of.most
    return Searched(job, best, found, min([most, *(c.bound for c in found)]))


class _Search:
    """What is known while pairs are looked at.  `most`: picoseconds of the best plan."""

    def __init__(self, found: list[Case], clock: Clock, gap: Fraction, tell: Tell) -> None:
        self.found, self.clock, self.gap, self.tell = found, clock, gap, tell
        self.best: Scheduled | None = None
        self.most = NO_STEP
        self.slack: dict[int, Fraction] = {}
        self.tried: set[int] = set()
        self.last: Case | None = None

    def open(self, case: Case) -> bool:
        """Whether a case may still have a plan that is better by more than the gap."""
        return case.bound < self.most * (1 - self.gap)

    def turn_to(self, case: Case) -> None:
        """Give back the tables of the case that was looked at, unless the best plan is one of it."""
        if self.last is not None and self.last is not case and (self.best is None or self.best.case is not self.last):
            self.last.forget()
        self.last = case

    def prove(self, case: Case, size: int) -> None:
        """Leaves of `size` units."""
        self.turn_to(case)
        case.prove(size, self.clock, self.most)
        case.update_bound(self.most)
        self.say(case)

    def look(self, case: Case) -> None:
        """What costs least to know: leaves on nodes, or, where a view is one node, those of the view."""
        self.turn_to(case)
        if case.nodes is None:
            self.prove(case, 1)
            return
        case.look(self.clock, self.most)
        case.update_bound(self.most)
        self.say(case)

    def attempt(self, case: Case) -> None:
        """A plan where the bound is least."""
        self.turn_to(case)
        self.tried.add(id(case))
        cut = _best_cut(case)
        for order in orders(case):
            stages = case.plan(cut, self.clock, order)
            if stages is None:
                continue
            self.slack[id(case)] = min(case.slack(stages), self.slack.get(id(case), FAR))
            made = scheduled(case, stages, TRY_SECONDS, self.clock)
            if made is not None and made.step < self.most:
                self.best, self.most = made, made.step
            break
        self.say(case)

    def say(self, case: Case) -> None:
        self.tell(f"{case.stages} stages, {case.micro} micro-batches: at least {case.bound / 1e9:.4g} ms")

    def begin(self) -> None:
        """A look at a case of every number of stages, then plans, the least bound first, until there is one: leaves of
        what cannot be better end early then.
        """
        seeds = [case for case in _seeds(self.found) if case.bound < NO_STEP]
        for case in seeds:
            if len(seeds) > 1 and not self.clock.over():
                self.look(case)
        while seeds and self.best is None and not self.clock.over():
            case = min(seeds, key=lambda c: c.bound)
            seeds.remove(case)
            if case.size == 0:
                self.prove(case, 1)
            if self.open(case):
                self.attempt(case)

    def close(self) -> None:
        """Always the case of the least bound: leaves of one unit, a plan, longer leaves, until that bound stays."""
        while not self.clock.over():
            case = min(self.found, key=lambda c: c.bound)
            if not self.open(case):
                break
            if not case.looked:
                self.look(case)
            elif case.size == 0:
                self.prove(case, 1)
            elif id(case) not in self.tried:
                self.attempt(case)
            elif self.helpful(case):
                cut = case.starts
                self.prove(case, 2 * case.size)
                if case.starts != cut:
                    self.attempt(case)
            else:
                break
        if self.best is None and self.clock.over():  # even then: what is found without any search
            self.attempt(min(self.found, key=lambda c: (c.size == 0, c.stages, c.micro)))

    def helpful(self, case: Case) -> bool:
        """Whether longer leaves could raise a bound much: not where stages take what these say already."""
        longest = -(-case.job.division.units // case.stages)
        return case.size < longest and self.slack.get(id(case), FAR) >= self.gap * TIGHT

    def improve(self) -> None:
        """Plans of other cases that may be better, until several in turn are not; then the schedule of the best."""
        failed = 0
        while failed < MOST_FAILED and not self.clock.over() and any(self.open(c) for c in self.found):
            rest = [c for c in self.found if id(c) not in self.tried and c.bound < self.most]
            if not rest:
                break
            case, before = min(rest, key=lambda c: (c.size == 0, c.bound)), self.most
            if case.size == 0:
                self.prove(case, 1)
            if case.bound < self.most:
                self.attempt(case)
            failed = 0 if self.most < before else failed + 1
            self.tried.add(id(case))
        best, clock = self.best, self.clock
        if best is not None and clock.left() > 1:
            seconds = min(SCHEDULE_SECONDS, clock.left() / 2)
            better = scheduled(best.case, best.stages, seconds, clock, max(best.kept))
            if better is not None and better.step < best.step:
                self.best, self.most = better, better.step
