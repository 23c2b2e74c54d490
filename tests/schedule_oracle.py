"""Least makespans of small pipelines by enumeration, from the definition alone: no order of micro-batches is assumed,
and nothing of the package but the numbers of a pipeline is used.

A schedule is built by appending tasks, each as early as its stream and its predecessors allow; what matters of the past
is which tasks are done, when streams are free and when tasks with open successors ended.  Of two pasts with the same
tasks one that is nowhere earlier is dropped.
"""

from __future__ import annotations

from shardproof.models.schedules.pipeline import Pipeline


def least_makespan(pipe: Pipeline) -> int:
    """By enumeration; fine for some twenty tasks.

    >>> least_makespan(Pipeline(((1, 1, 1),) * 2, 2, 0, 2))
    7
    """
    stages, count = len(pipe.times), pipe.micro_batches
    tasks = [(kind, s, i) for kind in "FIW" for s in range(stages) for i in range(count)]
    leads: dict[tuple[str, int, int], list[tuple[tuple[str, int, int], int]]] = {}
    for kind, s, i in tasks:
        before = []
        if kind == "F" and s:
            before.append((("F", s - 1, i), pipe.send))
        if kind == "I":
            before.append((("F", s, i), 0))
            if s + 1 < stages:
                before.append((("I", s + 1, i), pipe.send))
        if kind == "W":
            before.append((("I", s, i), 0))
        leads[kind, s, i] = before
    level: dict[frozenset[tuple[str, int, int]], list[dict[object, int]]] = {
        frozenset(): [dict.fromkeys(range(stages), 0)]
    }
    for _ in tasks:
        following: dict[frozenset[tuple[str, int, int]], list[dict[object, int]]] = {}
        for done, pasts in level.items():
            for task in tasks:
                kind, s, _ = task
                if task in done or any(b not in done for b, _ in leads[task]):
                    continue
                held = sum((a, b) == ("F", s) for a, b, _ in done) - sum((a, b) == ("W", s) for a, b, _ in done)
                if kind == "F" and pipe.memory is not None and held >= pipe.memory:
                    continue
                after = done | {task}
                useful = {b for t in tasks if t not in after for b, _ in leads[t]}
                for past in pasts:
                    start = max([past[s], *(past[b] + lag for b, lag in leads[task])])
                    end = start + pipe.times[s]["FIW".index(kind)]
                    now = {k: v for k, v in past.items() if isinstance(k, int) or k in useful}
                    now[s] = end
                    if task in useful:
                        now[task] = end
                    _keep(following.setdefault(after, []), now)
        level = following
    (pasts,) = level.values()
    return min(max(p[s] for s in range(stages)) for p in pasts)


def _keep(front: list[dict[object, int]], new: dict[object, int]) -> None:
    if any(all(old[k] <= v for k, v in new.items()) for old in front):
        return
    front[:] = [old for old in front if not all(v <= old[k] for k, v in new.items())]
    front.append(new)
