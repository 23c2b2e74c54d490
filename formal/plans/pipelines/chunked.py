"""Schedules plans whose views hold several chunks of the model, and counts what these hold together.

A view works on one task at a time.  While it does, its other chunks rest: parameters, sums of gradients, and what their
backward passes will read of the micro-batches that they keep then.

    memory of a view  =  the most, over starts of tasks, of  what the chunk at work needs + what the others rest on
                      +  what waits at the cuts of its chunks
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....models.problem.selection_problem import Ints
from ....models.schedules.pipeline import Pipeline
from ....models.text import InputError
from ...schedules.chunks import search_chunks
from ...schedules.drawing import peaks
from ...schedules.published import orders, starts_of
from ...schedules.search import Found, search
from ...schedules.shop import shop
from ...selection.model.clock import Clock
from .case import Case
from .phases import StagePlan
from .weights import neighbour_cuts

MOST_IMPROVED = 1000
"""Tasks of a schedule that is improved within a part of a second."""

MOST_TASKS_TRIED = 200_000
"""Tasks of all schedules that are made to compare cuts: some five seconds."""


def resting(case: Case, stage: StagePlan, kept: int) -> int:
    """Bytes on the fullest device of a chunk that keeps `kept` activations, between its passes."""
    if kept == 0:
        one, two = (resting(case, stage, k) for k in (1, 2))
        return max(0, 2 * one - two)
    pieces = case.pieces
    phases = [case.job.division.phase[i] for i in pieces.stage_operators(stage.first, stage.end)]
    moments = phases.count("F"), len(phases) - phases.count("U")
    rows = pieces.usages(stage.first, stage.end, kept, case.micro > 1)
    return sum(int(u.amount[stage.choices[u.vertex]]) for u in rows if any(u.start < at < u.end for at in moments))


def kept_at(pipe: Pipeline, starts: Ints, view: int) -> list[tuple[int, tuple[int, ...]]]:
    """For every task of a view, in order: its chunk (its number on the view), activations of every chunk then."""
    table = starts.reshape(3, pipe.parts, pipe.micro_batches)
    mine = range(view, pipe.parts, pipe.stages)
    ends = [table[2, c] + pipe.times_of(c)[2] for c in mine]
    tasks = sorted((int(t), k) for k, c in enumerate(mine) for kind in (0, 1) for t in table[kind, c])
    moments = np.array([t for t, _ in tasks])
    counts = [
        np.searchsorted(np.sort(table[0, c]), moments, "right") - np.searchsorted(np.sort(end), moments, "right")
        for c, end in zip(mine, ends, strict=True)
    ]
    return [
        (k, tuple(max(int(row[at]), int(j == k)) for j, row in enumerate(counts))) for at, (_, k) in enumerate(tasks)
    ]


def view_peaks(case: Case, stages: Sequence[StagePlan], pipe: Pipeline, starts: Ints) -> list[int]:
    """Bytes on the fullest device of every view, without what waits at cuts."""
    out = []
    for view in range(pipe.stages):
        mine = stages[view :: pipe.stages]
        busy: dict[tuple[int, int], int] = {}
        quiet: dict[tuple[int, int], int] = {}
        most = 0
        for k, kept in dict.fromkeys(kept_at(pipe, starts, view)):
            total = 0
            for j, count in enumerate(kept):
                table = busy if j == k else quiet
                if (j, count) not in table:
                    table[j, count] = case.peak(mine[j], count) if j == k else resting(case, mine[j], count)
                total += table[j, count]
            most = max(most, total)
        out.append(most)
    return out


def kept_by_chunk(pipe: Pipeline, starts: Ints) -> tuple[int, ...]:
    """The most activations of every chunk of the model."""
    out = [0] * pipe.parts
    for view in range(pipe.stages):
        for _, kept in kept_at(pipe, starts, view):
            for j, count in enumerate(kept):
                out[view + j * pipe.stages] = max(out[view + j * pipe.stages], count)
    return tuple(out)


def published_starts(pipe: Pipeline) -> Ints | None:
    """Interleaved 1F1B with these times; None where micro-batches make no equal rounds."""
    try:
        return starts_of(pipe, orders(f"interleaved:{pipe.chunks}", pipe))
    except InputError:
        return None


def limits(pipe: Pipeline, few: bool) -> list[int]:
    """Activations of whole stages that a view may keep, fewest first: what interleaved 1F1B keeps, then more; `few`:
    less than that too.
    """
    first = published_starts(pipe)
    most = pipe.micro_batches if first is None else -(-max(peaks(pipe.problem(), first)) // pipe.chunks)
    less = (1, 2, most // 2) if few else ()
    return sorted({max(1, min(k, pipe.micro_batches)) for k in (*less, most, most + 1, most + pipe.stages, 1 << 20)})


def known_schedule(pipe: Pipeline) -> Ints:
    """Interleaved 1F1B, or all forwards first; where that keeps too much, one micro-batch after another."""
    found = published_starts(pipe)
    if found is None:
        found = starts_of(pipe, [_forwards_first(pipe, d) for d in range(pipe.stages)])
    limit = pipe.micro_batches if pipe.memory is None else pipe.memory
    if max(peaks(pipe.problem(), found)) > limit * pipe.chunks:
        found = starts_of(pipe, [_one_by_one(pipe, d) for d in range(pipe.stages)])
    return found


def found_within(pipe: Pipeline, clock: Clock) -> Found:
    """The best schedule until `clock` is over; many tasks get list schedules alone where there is little time, as a
    round of anything else takes more than that.
    """
    first, arrays = known_schedule(pipe), shop(pipe)
    listed = search(arrays, Clock(0.0))
    problem = pipe.problem()
    fits = all(p <= (limit or p) for p, limit in zip(peaks(problem, listed.starts), problem.limits, strict=True))
    if fits and listed.makespan < known_end(pipe):
        first = listed.starts
    return search_chunks(pipe, Clock(0.0) if pipe.tasks > MOST_IMPROVED and clock.remaining_s() < 1 else clock, first)


def known_end(pipe: Pipeline) -> int:
    """When that ends."""
    table = known_schedule(pipe).reshape(3, pipe.parts, pipe.micro_batches)
    return int((table + np.array(pipe.times, dtype=np.int64).T[:, :, None]).max())


def _forwards_first(pipe: Pipeline, view: int) -> list[tuple[str, int, int]]:
    """All forwards, then all backwards."""
    mine = range(view, pipe.parts, pipe.stages)
    row = [("F", c, i) for c in mine for i in range(pipe.micro_batches)]
    return row + [("B", c, i) for c in reversed(mine) for i in range(pipe.micro_batches)]


def _one_by_one(pipe: Pipeline, view: int) -> list[tuple[str, int, int]]:
    mine = range(view, pipe.parts, pipe.stages)
    rows = ([("F", c, i) for c in mine] + [("B", c, i) for c in reversed(mine)] for i in range(pipe.micro_batches))
    return [action for row in rows for action in row]


def fit_chunks(
    case: Case, stages: list[StagePlan], pipe: Pipeline, starts: Ints, queued: Sequence[int], clock: Clock
) -> list[StagePlan] | None:
    """The chunks within the memory, with other placements where that is needed; None if a view does not fit.
    `queued`: bytes that wait at the cuts of every chunk.  Chunks of a view give up memory in proportion to what they
    rest on.
    """
    limit = case.job.memory
    if limit is None:
        return stages
    kept, out = kept_by_chunk(pipe, starts), stages
    for view, held in enumerate(view_peaks(case, stages, pipe, starts)):
        mine = range(view, pipe.parts, pipe.stages)
        room = limit - sum(queued[c] for c in mine)
        if held <= room:
            continue
        rest = {c: resting(case, stages[c], kept[c]) for c in mine}
        work = max(case.peak(stages[c], kept[c]) - rest[c] for c in mine)
        if room <= work:
            return None
        for c in mine:
            others = sum(rest[o] for o in mine if o != c) * (room - work) // max(1, sum(rest.values()))
            fit = case.fit_memory([stages[c]], [kept[c]], [limit - room + others], clock)
            if fit is None:
                return None
            out = [*out[:c], fit[0], *out[c + 1 :]]
    return out


def best_chunk_cut(case: Case, begins: Sequence[tuple[int, ...]], moves: int) -> tuple[int, ...]:
    """The starts of chunks for which a schedule is shortest, with times as bounds have them, by moving one unit from
    chunk to chunk at a time, from the best of these cuts.
    """
    n, p = case.job.division.units, case.parts
    known, there = case.passes_known(case.bounds()), case.hops().there
    one = known.one
    quantum = max(1, max(one[0][n], *(max(row, default=0) for row in there)) // (1 << 24))

    def value(cut: tuple[int, ...]) -> int:
        runs = zip(cut, (*cut[1:], n), strict=True)
        spans = [(known.forward[i][j] // quantum, one[i][j] // quantum) for i, j in runs]
        hops = tuple(there[c][cut[c]] // quantum for c in range(1, p))
        times = tuple((f, max(1, t - f), 0) for f, t in spans)
        pipe = Pipeline(times, case.micro, max(hops), None, case.chunks, hops=hops, uneven=True)
        return min(known_end(pipe), search(shop(pipe), Clock(0.0)).makespan)

    found = {cut: value(cut) for cut in begins}
    left = MOST_TASKS_TRIED // (3 * p * case.micro)
    for _ in range(moves):
        best = min(found, key=lambda c: found[c])
        new = [c for c in neighbour_cuts(best, n) if c not in found][:left]
        left -= len(new)
        found |= {c: value(c) for c in new}
        if left <= 0 or min(found.values()) == found[best]:
            break
    return min(found, key=lambda c: found[c])
