"""A scheduling problem as arrays for compiled loops: successors and predecessors in rows, tasks by stream.

For a pipeline the micro-batches are put in order and memory becomes precedence, as `proofs.schedules.certificate` has
it; every schedule of these arrays obeys the memory limit then, if stages have one chunk.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.pipeline import Pipeline
from ...models.schedules.problem import ScheduleProblem
from ..compiling import njit

KEPT: Final = 4
"""Pipelines whose arrays are kept: one plan asks for those of its schedule several times."""


class Links(NamedTuple):
    """Rows of arcs: task t leads to `to[at[t]:at[t+1]]` with `lag`; `order`: every task behind those before it."""

    at: Ints
    to: Ints
    lag: Ints
    order: Ints


class Shop(NamedTuple):
    """What compiled loops read of a problem.  `times`: shape (tasks,); streams of task t:
    `taken[taken_at[t]:taken_at[t+1]]`; tasks of stream s: `tasks[tasks_at[s]:tasks_at[s+1]]`.
    """

    times: Ints
    taken_at: Ints
    taken: Ints
    tasks_at: Ints
    tasks: Ints
    forward: Links
    backward: Links

    @property
    def streams(self) -> int:
        """How many there are; compiled loops have no properties."""
        return len(self.tasks_at) - 1


@njit(cache=True)
def topological(at: Ints, to: Ints, missing: Ints) -> Ints:
    """Tasks behind those before them, first come first; `missing`: how many lead to each.  Shorter if there is a
    circle.
    """
    n = len(at) - 1
    order = np.empty(n, np.int64)
    missing = missing.copy()
    first, last = 0, 0
    for t in range(n):
        if missing[t] == 0:
            order[last] = t
            last += 1
    while first < last:
        t = order[first]
        first += 1
        for k in range(at[t], at[t + 1]):
            u = to[k]
            missing[u] -= 1
            if missing[u] == 0:
                order[last] = u
                last += 1
    return order[:last]


def shop(subject: Pipeline | ScheduleProblem) -> Shop:
    """Arrays of a pipeline, or of any problem (then without its memory).  ValueError for a circle.

    >>> one = shop(Pipeline(((1, 1, 1),) * 2, 3, 0, 1))
    >>> len(one.times), one.streams, len(one.forward.to)
    (18, 2, 34)
    """
    return _of_pipeline(subject) if isinstance(subject, Pipeline) else _arrays(subject, None)


@lru_cache(maxsize=KEPT)
def _of_pipeline(pipe: Pipeline) -> Shop:
    return _arrays(pipe.problem(), pipe)


def _arrays(problem: ScheduleProblem, pipe: Pipeline | None) -> Shop:
    arcs = [(p.before, p.after, p.lag) for p in problem.precedences]
    if pipe is not None:
        arcs += ordering(pipe)
    rows = np.array(arcs, dtype=np.int64).reshape(-1, 3)
    taken = [t.streams for t in problem.tasks]
    by_stream: list[list[int]] = [[] for _ in problem.streams]
    for k, streams in enumerate(taken):
        for s in streams:
            by_stream[s].append(k)
    n = len(problem.tasks)
    forward = links(n, rows[:, 0], rows[:, 1], rows[:, 2])
    return Shop(
        np.array([t.time for t in problem.tasks], dtype=np.int64),
        *_flat(taken),
        *_flat(by_stream),
        forward,
        links(n, rows[:, 1], rows[:, 0], rows[:, 2]),
    )


def ordering(pipe: Pipeline) -> list[tuple[int, int, int]]:
    """Arcs that put equal micro-batches in order, and those of the memory of each chunk."""
    m = pipe.micro_batches
    arcs = [
        (pipe.task(kind, v, i), pipe.task(kind, v, i + 1), 0)
        for kind in range(3)
        for v in range(pipe.parts)
        for i in range(m - 1)
    ]
    if pipe.memory is not None:
        limit = pipe.memory * pipe.chunks
        arcs += [
            (pipe.task(2, v, i), pipe.task(0, v, i + limit), 0) for v in range(pipe.parts) for i in range(m - limit)
        ]
    return arcs


def in_order(pipe: Pipeline, starts: Ints) -> Ints:
    """The same schedule, where equal micro-batches are named in the order in which they start.

    >>> in_order(Pipeline(((1, 1, 1),), 2, 0, None), np.array([1, 0, 3, 2, 4, 5])).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    return np.sort(starts.reshape(3, pipe.parts, pipe.micro_batches), axis=2).reshape(-1)


def _flat(lists: list[tuple[int, ...]] | list[list[int]]) -> tuple[Ints, Ints]:
    sizes = np.array([0, *(len(x) for x in lists)], dtype=np.int64)
    return np.cumsum(sizes), np.array([x for part in lists for x in part], dtype=np.int64)


def links(n: int, source: Ints, target: Ints, lag: Ints) -> Links:
    """Rows of arcs from `source` to `target`, each shape (arcs,).  ValueError for a circle."""
    by = np.argsort(source, kind="stable")
    at = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n))]).astype(np.int64)
    to = np.ascontiguousarray(target[by])
    order = topological(at, to, np.bincount(target, minlength=n).astype(np.int64))
    if len(order) < n:
        raise ValueError("precedences run in a circle")
    return Links(at, to, np.ascontiguousarray(lag[by]), order)
