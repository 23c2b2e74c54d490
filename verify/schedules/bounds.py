"""Recomputes lower bounds of a network: longest paths, loads of streams, and refutations replayed row by
row.

Heads and tails are kept under precedences: raising one raises those behind it.  A SPLIT opens two cases one after the
other; each begins with the heads, tails and precedences of the rows before it.  Every case must end in a row that
contradicts it; a raise whose condition does not hold, or a row that is left over, refutes the certificate.
Source: `proofs/schedules/certificate.py`.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ...models.problem.selection_problem import Ints
from ...proofs.container.canonical import ContainerError
from ...proofs.container.effort import OBJECT
from ...proofs.schedules.certificate import (
    AFTER_ALL,
    APART,
    BEFORE_ALL,
    FLOW,
    LEFT,
    LOAD,
    ORDER,
    PATH,
    PRICE,
    RAISE_HEAD,
    RAISE_TAIL,
    SPLIT,
    WAITS,
    WORK,
    Bound,
    Load,
    Path,
    Refutation,
)
from ..budget import Budget
from .levels import Circle, Levels, State, ranks
from .moments import BadMoment, Moments
from .network import Memory, Network

DEEPEST = 200
"""Splits above one another: each holds the heads and tails of its second case."""


class BadBound(Exception):
    """An argument that does not hold; the message names the row."""


def state(net: Network, budget: Budget) -> State:
    """Longest paths; `ContainerError` if precedences run in a circle."""
    n = len(net.times)
    budget.charge(OBJECT * 8 * (n + len(net.before)), "the longest paths")
    times = net.times.tolist()
    follow: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    lead: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for a, b, lag in zip(net.before.tolist(), net.after.tolist(), net.lag.tolist(), strict=True):
        follow[a].append((b, lag))
        lead[b].append((a, lag))
    try:
        rank = ranks(follow, lead, budget)
    except Circle:
        raise ContainerError("precedences", "run in a circle, so that nothing can be scheduled") from None
    order = sorted(range(n), key=rank.__getitem__)
    head, tail = [0] * n, [0] * n
    for t in order:
        for u, lag in follow[t]:
            head[u] = max(head[u], head[t] + times[t] + lag)
    for t in reversed(order):
        for u, lag in follow[t]:
            tail[t] = max(tail[t], tail[u] + times[u] + lag)
    return State(head, tail, rank, follow, lead)


def lower_bound(net: Network, memory: Memory, bound: Bound, budget: Budget) -> int:
    """The bound that the argument gives; `BadBound` if it does not hold."""
    found = state(net, budget)
    times: list[int] = net.times.tolist()
    match bound:
        case Path():
            return max(h + p + q for h, p, q in zip(found.head, times, found.tail, strict=True))
        case Load(stream, head, tail):
            return load(found, times, _stream(net, stream, "the bound"), head, tail)
        case Refutation(makespan, rows):
            _replay(net, memory, found, times, makespan, rows, budget)
            return makespan + 1


def load(found: State, times: list[int], tasks: list[int], head: int, tail: int) -> int:
    """Least head, times and least tail of the tasks with head and tail at least these; 0 if there are none."""
    taken = [t for t in tasks if found.head[t] >= head and found.tail[t] >= tail]
    if not taken:
        return 0
    return min(found.head[t] for t in taken) + sum(times[t] for t in taken) + min(found.tail[t] for t in taken)


def _stream(net: Network, number: int, place: str) -> list[int]:
    if not 0 <= number < len(net.streams):
        raise BadBound(f"{place}: there is no stream {number}")
    tasks: list[int] = net.streams[number].tolist()
    return tasks


def _replay(
    net: Network, memory: Memory, found: State, times: list[int], makespan: int, rows: Ints, budget: Budget
) -> None:
    n = len(times)
    streams = [s.tolist() for s in net.streams]
    taken: list[set[int]] = [set() for _ in range(n)]
    for s, tasks in enumerate(streams):
        for t in tasks:
            taken[t].add(s)
    longest = max((len(s) for s in streams), default=0)
    open_cases: list[tuple[list[int], list[int], int, int, int]] = []  # heads, tails, links made, a, b
    made: list[tuple[int, int]] = []  # links of the splits that we are under
    done = False
    moments = Moments(memory, times)
    levels, run = Levels(net, makespan, budget), 0
    for k, (word, a, b, c, d) in enumerate(rows.tolist()):
        place = f"row {k}"
        if k < run:
            continue
        budget.charge(OBJECT * (16 if word in (PRICE, FLOW) else longest + 16), place)
        if done:
            raise BadBound(f"{place}: all cases are closed already")
        if word in (RAISE_HEAD, RAISE_TAIL):
            if not 0 <= a < n or b not in taken[a]:
                raise BadBound(f"{place}: task {a} is not on stream {b}")
            others = [t for t in streams[b] if t != a]
            if word == RAISE_HEAD:
                value = _last(found.head, found.tail, times, others, a, c, d, makespan, place)
                _raise(found, times, True, a, value, makespan, budget)
            else:
                value = _last(found.tail, found.head, times, others, a, d, c, makespan, place)
                _raise(found, times, False, a, value, makespan, budget)
        elif word == SPLIT:
            _shared(taken, a, b, place, budget)
            if len(open_cases) >= DEEPEST:
                raise ContainerError(place, f"more than {DEEPEST} splits above one another")
            budget.charge(n >> 1, place)
            budget.hold(2 * n * (len(open_cases) + 1), place)
            open_cases.append((found.head[:], found.tail[:], len(made), a, b))
            _link(found, times, a, b, makespan, budget, made)
        elif word == ORDER:
            _shared(taken, a, b, place, budget)
            length = found.head[b] + times[b] + times[a] + found.tail[a]
            if length <= makespan:
                raise BadBound(f"{place}: task {b} before {a} takes {length}, not more than {makespan}")
            _after(found, times, a, b, makespan, budget)
        elif word in (AFTER_ALL, BEFORE_ALL):
            try:
                run = k + levels.replay_rows(found, rows[k:], made, k)
            except Circle:
                raise BadBound(f"{place}: links run in a circle") from None
            if run == k:
                raise BadBound(f"{place}: there is no task {a} or no stream {b}")
        elif word in (PRICE, FLOW, WAITS, APART, LEFT):
            try:
                if word == PRICE:
                    moments.open(a, b, c, budget)
                elif word == FLOW:
                    moments.flow(a, b, c, found, budget)
                elif word == WAITS:
                    moments.waits(found, a, b, budget)
                    _link(found, times, a, b, makespan, budget, made)
                elif word == LEFT:
                    value = moments.before(found, a, b, _stream(net, c, place), budget)
                    _raise(found, times, True, b, value, makespan, budget)
                elif open_cases:
                    raise BadMoment("this must be known before a split")
                else:
                    moments.apart(found, a, b, budget)
                    taken[a].add(-1 - k)  # as if they shared a stream
                    taken[b].add(-1 - k)
            except BadMoment as error:
                raise BadBound(f"{place}: {error}") from None
        elif word in (LOAD, PATH, WORK):
            if word == LOAD:
                length = load(found, times, _stream(net, a, place), b, c)
            elif word == WORK:
                try:
                    length = moments.work(found, a, _stream(net, b, place), c, budget)
                except BadMoment as error:
                    raise BadBound(f"{place}: {error}") from None
            elif 0 <= a < n:
                length = found.head[a] + times[a] + found.tail[a]
            else:
                raise BadBound(f"{place}: there is no task {a}")
            if length <= makespan:
                raise BadBound(f"{place}: shows {length} only, not more than {makespan}")
            done = not open_cases
            if open_cases:
                found.head, found.tail, links, x, y = open_cases.pop()
                while len(made) > links:
                    p, q = made.pop()
                    found.follow[p].pop()
                    found.lead[q].pop()
                _link(found, times, y, x, makespan, budget, made)
        else:
            raise BadBound(f"{place}: unknown word {word}")
    if not done:
        raise BadBound(f"{len(open_cases) + 1} cases are left open")


def _shared(taken: list[set[int]], a: int, b: int, place: str, budget: Budget) -> None:
    """`BadBound` unless a and b are two tasks of one stream; `taken[t]`: the streams of task t."""
    n = len(taken)
    if 0 <= a < n and 0 <= b < n and a != b:
        budget.charge(OBJECT * min(len(taken[a]), len(taken[b])), place)
        if not taken[a].isdisjoint(taken[b]):
            return
    raise BadBound(f"{place}: tasks {a} and {b} do not share a stream")


def _last(
    head: list[int], tail: list[int], times: list[int], others: list[int], task: int, r: int, q: int, t: int, place: str
) -> int:
    """The head of `task` behind all others with head >= r and tail >= q, if it cannot come before the last of them."""
    taken = sorted((head[x], times[x], tail[x]) for x in others if head[x] >= r and tail[x] >= q)
    if not taken:
        raise BadBound(f"{place}: no tasks that task {task} would come after")
    whole = sum(p for _, p, _ in taken)
    length = min(head[task], taken[0][0]) + whole + times[task] + min(x for _, _, x in taken)
    if length <= t:
        raise BadBound(f"{place}: task {task} may come before them, {length} is not more than {t}")
    end = 0
    for h, p, _ in taken:
        end = max(end, h) + p
    return end


def _raise(found: State, times: list[int], heads: bool, task: int, value: int, makespan: int, budget: Budget) -> None:
    """Raise one head or tail and those behind it.  Beyond the makespan all is contradicted, and values stop there."""
    values, links, sign = (found.head, found.follow, 1) if heads else (found.tail, found.lead, -1)
    if min(value, makespan + 1) <= values[task]:
        return
    values[task] = min(value, makespan + 1)
    todo, waiting = [(sign * found.rank[task], task)], {task}
    while todo:  # in order of ranks, so that most tasks are looked at once
        _, t = heappop(todo)
        waiting.discard(t)
        budget.charge(OBJECT * (2 + len(links[t])), "a raise")
        for u, lag in links[t]:
            v = min(values[t] + times[t] + lag, makespan + 1)
            if v > values[u]:
                values[u] = v
                if u not in waiting:
                    waiting.add(u)
                    heappush(todo, (sign * found.rank[u], u))


def _link(
    found: State, times: list[int], a: int, b: int, makespan: int, budget: Budget, made: list[tuple[int, int]]
) -> None:
    """Task a before task b, from here on."""
    found.follow[a].append((b, 0))
    found.lead[b].append((a, 0))
    made.append((a, b))
    _after(found, times, a, b, makespan, budget)


def _after(found: State, times: list[int], a: int, b: int, makespan: int, budget: Budget) -> None:
    """What follows at once from a before b."""
    _raise(found, times, True, b, found.head[a] + times[a], makespan, budget)
    _raise(found, times, False, a, found.tail[b] + times[b], makespan, budget)
