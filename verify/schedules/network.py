"""What a schedule is checked against: a problem as arrays, and the check itself.

precedence   start(after) >= start(before) + time(before) + lag
streams      the tasks of a stream, in order of their starts, do not overlap
memory       at every moment the amounts held on a device are at most its limit
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ...proofs.container.canonical import ContainerError

PLACE = "member 'schedule.i64'"


@dataclass(frozen=True, eq=False)
class Network:
    """`times`: shape (tasks,); `streams`: the tasks of each; the rest one entry per precedence."""

    times: Ints
    streams: tuple[Ints, ...]
    before: Ints
    after: Ints
    lag: Ints


@dataclass(frozen=True, eq=False)
class Memory:
    """One entry per holding; `first` is -1 for what is held from the beginning; (`holder`[k], `last`[k]): a task at
    whose end holding `holder`[k] may end.
    """

    device: Ints
    amount: Ints
    first: Ints
    holder: Ints
    last: Ints
    limits: tuple[int | None, ...]


def integers(values: object) -> Ints:
    """An int64 array of one axis."""
    return np.asarray(values, dtype=np.int64).reshape(-1)


def network(problem: ScheduleProblem) -> tuple[Network, Memory]:
    """Arrays of a problem that was checked by its own `check`."""
    streams: list[list[int]] = [[] for _ in problem.streams]
    for k, task in enumerate(problem.tasks):
        for s in task.streams:
            streams[s].append(k)
    before = problem.precedences
    held = problem.holdings
    return Network(
        integers([t.time for t in problem.tasks]),
        tuple(integers(s) for s in streams),
        integers([p.before for p in before]),
        integers([p.after for p in before]),
        integers([p.lag for p in before]),
    ), Memory(
        integers([h.device for h in held]),
        integers([h.amount for h in held]),
        integers([-1 if h.first is None else h.first for h in held]),
        integers([k for k, h in enumerate(held) for _ in h.last]),
        integers([t for h in held for t in h.last]),
        problem.limits,
    )


def fault(net: Network, memory: Memory, starts: Ints) -> str:
    """What a schedule breaks, or nothing.

    >>> one = Network(integers([2, 3]), (integers([0, 1]),), integers([0]), integers([1]), integers([1]))
    >>> free = Memory(*(integers([]) for _ in range(5)), (None,))
    >>> fault(one, free, integers([0, 2])), fault(one, free, integers([0, 3]))
    ('precedence 0: task 1 starts at 2, task 0 ends at 2 and the lag is 1', '')
    """
    if starts.min() < 0 or starts.max() > 1 << 61:
        return f"task {int(starts.argmin())}: starts at {int(starts.min())}, or later than any schedule"
    ends = starts + net.times
    late = np.flatnonzero(starts[net.after] < ends[net.before] + net.lag)
    if late.size:
        k = int(late[0])
        a, b = int(net.before[k]), int(net.after[k])
        return f"precedence {k}: task {b} starts at {starts[b]}, task {a} ends at {ends[a]} and the lag is {net.lag[k]}"
    stream = np.repeat(np.arange(len(net.streams)), [len(s) for s in net.streams])
    tasks = np.concatenate([*net.streams, integers([])])
    order = np.lexsort((ends[tasks], starts[tasks], stream))  # all streams at once: there may be many
    stream, tasks = stream[order], tasks[order]
    bad = np.flatnonzero((stream[:-1] == stream[1:]) & (ends[tasks[:-1]] > starts[tasks[1:]]))
    if bad.size:
        s, a, b = stream[bad[0]], tasks[bad[0]], tasks[bad[0] + 1]
        return f"stream {s}: task {b} starts at {starts[b]}, before task {a} ends at {ends[a]}"
    for d, (most, limit) in enumerate(zip(peaks(memory, starts, ends), memory.limits, strict=True)):
        if limit is not None and most > limit:
            return f"device {d}: holds {most}, its limit is {limit}"
    return ""


def peaks(memory: Memory, starts: Ints, ends: Ints) -> list[int]:
    """The most that each device holds at any moment."""
    if sum(memory.amount.tolist()) >= 1 << 62:
        raise ContainerError(PLACE, "amounts of memory add up to 2**62 or more")
    begin = np.where(memory.first < 0, 0, starts[memory.first])
    over = np.full(len(begin), -1, dtype=np.int64)
    np.maximum.at(over, memory.holder, ends[memory.last])
    over[over < 0] = int(ends.max()) + 1  # nobody releases it
    there = np.flatnonzero(over > begin)
    device = np.concatenate([memory.device[there], memory.device[there]])
    moments = np.concatenate([over[there], begin[there]])
    change = np.concatenate([-memory.amount[there], memory.amount[there]])
    order = np.lexsort((change, moments, device))  # what is freed at a moment can be taken at it
    level = np.cumsum(change[order])  # every device ends at nothing, so the next one begins there
    most = np.zeros(len(memory.limits), dtype=np.int64)
    np.maximum.at(most, device[order], level)
    found: list[int] = most.tolist()
    return found
