"""What the devices of a view hold: the chunk at work, the others at rest, blocks that wait at cuts.

A view works on one task at a time.  When a task of chunk k starts, with n(c) activations of every chunk c from the
start of their forward to the end of their backward passes, there are on the fullest device no more than

    all that chunk k needs at its fullest operator with n(k), with what reshardings beside it add (`phases`)
    +  sum over the others of what they rest on with n(c)
    +  sum over the chunks of what has come over their cuts and is not read yet, and of what is being sent
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.container.effort import OBJECT, PART
from ...proofs.pipelines.certificate import PipelineCertificate
from ..budget import Budget
from ..plan.effort import BOX
from .leaves import Units

Chosen = Sequence[Mapping[int, int]]


def activations(c: PipelineCertificate, times: Ints, view: int, budget: Budget) -> set[tuple[int, tuple[int, ...]]]:
    """(chunk of the view at work, activations of every chunk of it) at starts of tasks; of several with one chunk at
    work only those that none of them exceeds everywhere.
    """
    starts = c.schedule.starts.reshape(3, len(c.stages), c.micro)
    ends = starts + times.reshape(starts.shape)
    mine = range(view, len(c.stages), c.views)
    budget.charge(len(mine) ** 2 * (PART + BOX * 2 * c.micro**2), "activations")
    found: set[tuple[int, tuple[int, ...]]] = set()
    for k, chunk in enumerate(mine):
        moments = np.unique(starts[:2, chunk])
        counts = [((starts[0, o][:, None] <= moments) & (ends[2, o][:, None] > moments)).sum(axis=0) for o in mine]
        counts[k] = np.maximum(counts[k], 1)  # a chunk that takes no time keeps 0 at any moment
        budget.charge(OBJECT * 4 * min(len(moments), c.micro ** len(mine)) * len(mine), "activations")
        rows = {tuple(int(x) for x in row) for row in zip(*counts, strict=True)}
        budget.charge(OBJECT * 4 * len(rows) ** 2, "activations")
        found |= {
            (k, a) for a in rows if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in rows)
        }
    return found


def view_memory(
    c: PipelineCertificate,
    units: Units,
    chosen: Chosen,
    times: Ints,
    lags: Sequence[int],
    view: int,
    extras: Sequence[Sequence[int]],
) -> int:
    """Bytes on the fullest device of a view.  `chosen`: choices of every chunk of the model; `extras`: per operator of
    each what reshardings beside it add, or nothing where they are not beside any.
    """
    mine = range(view, len(c.stages), c.views)
    known: dict[tuple[bool, int, int], int] = {}

    def bytes_of(chunk: int, kept: int, works: bool) -> int:
        key = works, chunk, kept
        if key not in known:
            stage, x = c.stages[chunk], chosen[chunk]
            units.entries.budget.charge(OBJECT * 64 * (len(units.rows) + len(units.graph.operators)), "activations")
            if works and extras[chunk]:
                rows = zip(units.moments(stage.first, stage.end, x, kept, c.micro), extras[chunk], strict=True)
                known[key] = max(amount + more for amount, more in rows)
                return known[key]
            count = units.peak if works else units.resting
            known[key] = count(stage.first, stage.end, x, kept, c.micro)
        return known[key]

    most = max(
        sum(bytes_of(chunk, n, j == k) for j, (chunk, n) in enumerate(zip(mine, counts, strict=True)))
        for k, counts in activations(c, times, view, units.entries.budget)
    )
    return most + sum(crossing(c, units, chunk, lags, times) for chunk in mine)


def crossing(c: PipelineCertificate, units: Units, s: int, lags: Sequence[int], times: Ints) -> int:
    """Bytes on a device of chunk s of what waits there: forward tensors and gradients that have come and are not read
    yet, and those that are being sent.
    """
    total = 0
    units.entries.budget.charge(4 * c.micro * (PART + BOX * c.micro), "what waits at cuts")
    starts = c.schedule.starts.reshape(3, len(c.stages), c.micro)
    ends = starts + times.reshape(starts.shape)
    cuts = c.division.cuts
    blocks: list[tuple[str, Ints, Ints]] = []
    if s > 0:
        forward, gradient = cuts[c.stages[s].first - 1]
        blocks += [(forward, ends[0, s - 1], starts[0, s]), (gradient, ends[1, s], ends[1, s] + lags[s])]
    if s + 1 < len(c.stages):
        forward, gradient = cuts[c.stages[s].end - 1]
        blocks += [(forward, ends[0, s], ends[0, s] + lags[s + 1]), (gradient, ends[1, s + 1], starts[1, s])]
    for name, begin, end in blocks:
        t = units.graph.tensor(name)
        at_once = max(int(((begin <= moment) & (end > moment)).sum()) for moment in begin)
        total += at_once * -(-t.elements // units.planning.machine.devices) * t.element_bytes
    return total
