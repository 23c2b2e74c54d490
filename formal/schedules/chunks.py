"""Searches for pipelines whose chunks share the memory of their device.

The arrays of a shop know the limit of each chunk alone, so that their bounds hold and their schedules may not fit; then
list schedules under the whole limit are taken, with the published schedule as the way out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.pipeline import Pipeline
from ..selection.model.clock import Clock
from .bounds import frame
from .drawing import peaks
from .memory import shorten
from .search import Found, search
from .shop import shop


def search_chunks(pipe: Pipeline, clock: Clock, first: Ints) -> Found:
    """The best schedule and bound until `clock` is over; `first` is a schedule that fits the memory.

    >>> from .published import with_chunks, orders, starts_of
    >>> cut = with_chunks("zb-v", Pipeline(((1, 1, 1),) * 2, 4, 0, 2))
    >>> search_chunks(cut, Clock(5.0), starts_of(cut, orders("zb-v", cut))).makespan
    25
    """
    problem, arrays = pipe.problem(), shop(pipe)
    shared = pipe.chunks > 1 and pipe.memory is not None
    found = search(arrays, clock.share(0.5) if shared else clock, first=first)
    if all(p <= (limit or p) for p, limit in zip(peaks(problem, found.starts), problem.limits, strict=True)):
        return found
    priority = frame(arrays).tail.astype(np.float64)
    starts = shorten(arrays, problem, first, priority, found.lower_bound, clock)
    return replace(found, starts=starts, makespan=int((starts + arrays.times).max()))
