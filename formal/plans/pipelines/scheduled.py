"""Gives the stages of a plan their schedule: times in units of the schedule, the best starts under several
limits of activations, and what waits at the cuts meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np

from ....models.pipelines.work import PER_SECOND
from ....models.problem.selection_problem import Ints
from ....models.schedules.actions import Action
from ....models.schedules.pipeline import Pipeline
from ....proofs.schedules.certificate import ScheduleCertificate
from ...schedules.drawing import peaks
from ...schedules.published import one_forward_one_backward, starts_of
from ...schedules.search import Found, search
from ...schedules.shop import shop
from ...selection.model.clock import Clock
from .case import Case, activation_limits, picoseconds
from .chunked import fit_chunks, found_within, kept_by_chunk, limits, view_peaks
from .exchange_costs import exchange_costs, last_ends
from .phases import StagePlan

LARGEST_TIME = 1 << 31
"""Times of a schedule stay below this."""

MOST_ROUNDS = 4
"""Attempts to fit stages into the memory, each with what waits at the cuts in the one before."""


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
        """Bytes on the fullest device of every view; `waiting`: of what waits to be sent or to be read."""
        return held_bytes(self.case, self.stages, self.schedule, self.kept, self.waiting)


def held_bytes(
    case: Case, stages: list[StagePlan], schedule: ScheduleCertificate, kept: Sequence[int], waiting: Sequence[int]
) -> list[int]:
    """Bytes on the fullest device of every view."""
    pipe = schedule.subject
    assert isinstance(pipe, Pipeline)
    if pipe.chunks > 1:
        peaks_of = view_peaks(case, stages, pipe, schedule.starts)
        return [peak + sum(waiting[view :: pipe.stages]) for view, peak in enumerate(peaks_of)]
    return [case.peak(s, k) + w for s, k, w in zip(stages, kept, waiting, strict=True)]


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
    several = case.chunks > 1
    hops_of = hops if len(set(hops)) > 1 else ()
    pipe = Pipeline(rows, case.micro, max(hops, default=0), kept, case.chunks, hops=hops_of, uneven=several)
    return quantum, pipe.check()


def step_of(case: Case, stages: Sequence[StagePlan], quantum: int, schedule: ScheduleCertificate) -> int:
    """Picoseconds until the last view has updated; it updates as soon as its last backward has ended."""
    pipe = schedule.subject
    assert isinstance(pipe, Pipeline)
    return _step_of(case, stages, quantum, pipe, schedule.starts)


def _step_of(case: Case, stages: Sequence[StagePlan], quantum: int, pipe: Pipeline, starts: Ints) -> int:
    times = np.array(pipe.times, dtype=np.int64).T[:, :, None]
    ends = (starts.reshape(3, len(stages), case.micro) + times).max(axis=(0, 2))
    views = [int(ends[view :: pipe.stages].max()) * quantum for view in range(pipe.stages)]
    return max(last_ends(case, exchange_costs(case, stages), views, pipe.stages))


def waiting(case: Case, stages: Sequence[StagePlan], pipe: Pipeline, starts: Ints) -> tuple[int, ...]:
    """Per stage the bytes on a device of what crosses its cuts: what has come and is not read yet, what is being sent.

    A block is there from the end of its task on one side to the start of its task on the other; the sender has it
    until the send is over.  What goes once a step counts all the time.
    """
    begin = starts.reshape(3, len(stages), case.micro)
    times = np.array(pipe.times, dtype=np.int64).T[:, :, None]
    end, out, once = begin + times, [], exchange_costs(case, stages)
    for s, stage in enumerate(stages):
        total = once.buffer_bytes(s)
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


def schedule_stages(
    case: Case,
    stages: list[StagePlan],
    seconds: float,
    clock: Clock,
    only: int | None = None,
    like: Scheduled | None = None,
) -> Scheduled | None:
    """A plan with the best schedule among several limits of activations, fewest first; None if none fits.  1F1B keeps
    as many as there are stages behind; more hide what sending takes, fewer take less memory.  `only`: this limit;
    `like`: a plan of as many stages and micro-batches: with as many activations as it keeps, no later than in its
    order.
    """
    if case.chunks > 1:
        return _scheduled_chunks(case, stages, seconds, clock, only if like is None else _limit(like), like)
    p, m, memory = case.stages, case.micro, case.job.memory
    few = () if memory is None else (1, 2, *activation_limits(p))
    limits = sorted({max(1, min(k, m)) for k in (*few, p, p + 2, 2 * p, 3 * p, m)})
    only = only if like is None else max(like.kept)
    best: Scheduled | None = None
    for limit in limits if only is None else [only]:
        quantum, pipe = pipeline_of(case, stages, limit)
        usual = _usual(pipe)
        known = usual if like is None else min(usual, in_order(pipe, like), key=lambda x: _end(pipe, x))
        found = search(shop(pipe), clock.at_most(seconds), first=known)
        none_fits = True
        # under a memory limit first as few activations on every stage as 1F1B keeps, not as many as the first one's
        tried = (found.starts,) if memory is None and like is None else (usual, known, found.starts)
        for starts in tried:
            if best is not None and _step_of(case, stages, quantum, pipe, starts) >= best.step:
                none_fits = False
                continue  # nor would it be shorter with placements that fit
            free = _scheduled(case, stages, _certificate(pipe, starts, found), quantum)
            placed = case.fit_memory(stages, free.kept, free.waiting, clock)
            if placed is None:
                continue
            none_fits = False
            made = _place(case, placed, free, limit, seconds, clock)
            if made is not None and (best is None or made.step < best.step):
                best = made
        if none_fits:
            break  # more activations fit even less
    return best


def _usual(pipe: Pipeline) -> Ints:
    """1F1B, in which stages keep as many activations as there are stages behind them, or as many as are allowed."""
    return starts_of(pipe, [one_forward_one_backward(pipe, s, pipe.memory) for s in range(pipe.stages)])


def _limit(plan: Scheduled) -> int | None:
    """Of activations, in its schedule."""
    pipe = plan.schedule.subject
    assert isinstance(pipe, Pipeline)
    return pipe.memory


def in_order(pipe: Pipeline, plan: Scheduled) -> Ints:
    """What every stage does in the order of a plan of as many stages and micro-batches, as early as it can be."""
    begin = plan.schedule.starts.reshape(3, pipe.parts, pipe.micro_batches)
    rows: list[list[tuple[int, Action]]] = [[] for _ in range(pipe.stages)]
    for row, word in enumerate("FB"):
        for part, starts in enumerate(begin[row]):
            rows[part % pipe.stages] += [(int(at), (word, part, i)) for i, at in enumerate(starts)]
    return starts_of(pipe, [[action for _, action in sorted(row, key=lambda x: x[0])] for row in rows])


def _end(pipe: Pipeline, starts: Ints) -> int:
    return int((starts + shop(pipe).times).max())


def _certificate(pipe: Pipeline, starts: Ints, found: Found) -> ScheduleCertificate:
    """A schedule with the bound that a search has found."""
    return ScheduleCertificate(pipe, starts, _end(pipe, starts), found.lower_bound, found.bound, "best")


def _place(
    case: Case, placed: list[StagePlan], free: Scheduled, limit: int, seconds: float, clock: Clock
) -> Scheduled | None:
    """Stages that fit with what `free`, a schedule without regard to memory, keeps, in the shortest schedule in which
    they do; None if they do in none.  Other times have other blocks wait at the cuts, so stages are fitted again with
    what waits then.
    """
    queued = free.waiting
    for k in range(MOST_ROUNDS):
        again = placed if k == 0 else case.fit_memory(free.stages, free.kept, queued, clock)
        if again is None:
            return None
        placed = again
        if all(a is b for a, b in zip(placed, free.stages, strict=True)):
            return free
        quantum, pipe = pipeline_of(case, placed, limit)
        found = search(shop(pipe), clock.at_most(seconds))
        tried = (found.starts, _usual(pipe), in_order(pipe, free))
        made = [_scheduled(case, placed, _certificate(pipe, x, found), quantum) for x in tried]
        fits = [x for x in made if case.job.memory is None or max(x.memory) <= case.job.memory]
        if fits:
            return min(fits, key=lambda x: x.schedule.makespan)
        queued = tuple(map(max, queued, made[-1].waiting))
    return None


def _scheduled(case: Case, stages: list[StagePlan], certificate: ScheduleCertificate, quantum: int) -> Scheduled:
    """Stages with a schedule, and what these keep."""
    pipe, starts = certificate.subject, certificate.starts
    assert isinstance(pipe, Pipeline)
    kept, queued = tuple(peaks(pipe.problem(), starts)), waiting(case, stages, pipe, starts)
    return Scheduled(case, stages, quantum, certificate, kept, queued, step_of(case, stages, quantum, certificate))


def _scheduled_chunks(
    case: Case, stages: list[StagePlan], seconds: float, clock: Clock, only: int | None, like: Scheduled | None
) -> Scheduled | None:
    """`schedule_stages` where views have several chunks."""
    memory, best = case.job.memory, None
    _, whole = pipeline_of(case, stages, case.micro)
    for limit in limits(whole, memory is not None) if only is None else [only]:
        placed: list[StagePlan] | None = stages
        made: Scheduled | None = None
        for _ in range(2):  # with other placements once more
            if placed is None or (made is not None and placed is made.stages):
                break
            quantum, pipe = pipeline_of(case, placed, limit)
            found = found_within(pipe, clock.at_most(seconds))
            known = found.starts if like is None else in_order(pipe, like)
            starts = min(found.starts, known, key=lambda x: _end(pipe, x))
            kept, queued = kept_by_chunk(pipe, starts), waiting(case, placed, pipe, starts)
            schedule = _certificate(pipe, starts, found)
            step = step_of(case, placed, quantum, schedule)
            made = Scheduled(case, placed, quantum, schedule, kept, queued, step)
            placed = fit_chunks(case, placed, pipe, starts, queued, clock)
        if made is None or placed is None:
            break  # more activations fit even less
        if (memory is None or max(made.memory) <= memory) and (best is None or made.step < best.step):
            best = made
    return best
