"""Recomputes lower bounds of a network: longest paths, loads of streams, and refutations replayed row by
row.

Heads and tails are kept under precedences: raising one raises those behind it.  A SPLIT opens two cases one after the
other; each begins with the heads, tails and precedences of the rows before it.  Every case must end in a row that
contradicts it; a raise whose condition does not hold, or a row that is left over, refutes the certificate.
Source: `proofs/schedules/certificate.py`.
"""

from __future__ import annotations

from heapq import heappop, heappush

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
        case Refutation(makespan):
            Replay(net, memory, found, bound, budget).replay()
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


class Replay:
    """A refutation, row by row: heads, tails and precedences of the case at hand, and the cases that are open."""

    def __init__(self, net: Network, memory: Memory, found: State, refutation: Refutation, budget: Budget) -> None:
        self.net, self.found, self.budget = net, found, budget
        self.makespan, self.rows = refutation.makespan, refutation.rows
        self.times: list[int] = net.times.tolist()
        self.streams: list[list[int]] = [s.tolist() for s in net.streams]
        self.taken: list[set[int]] = [set() for _ in self.times]
        for s, tasks in enumerate(self.streams):
            for t in tasks:
                self.taken[t].add(s)
        self.open_cases: list[tuple[list[int], list[int], int, int, int]] = []  # heads, tails, links made, a, b
        self.made: list[tuple[int, int]] = []  # links of the splits that we are under
        self.done = False
        self.moments = Moments(memory, self.times)
        self.levels = Levels(net, self.makespan, budget)

    def replay(self) -> None:
        """`BadBound` unless every case ends in a row that contradicts it."""
        longest, run = max((len(s) for s in self.streams), default=0), 0
        for k, (word, a, b, c, d) in enumerate(self.rows.tolist()):
            place = f"row {k}"
            if k < run:
                continue
            self.budget.charge(OBJECT * (16 if word in (PRICE, FLOW) else longest + 16), place)
            if self.done:
                raise BadBound(f"{place}: all cases are closed already")
            if word in (RAISE_HEAD, RAISE_TAIL):
                self._behind_all(word == RAISE_HEAD, (a, b, c, d), place)
            elif word == SPLIT:
                self._split(a, b, place)
            elif word == ORDER:
                self._order(a, b, place)
            elif word in (AFTER_ALL, BEFORE_ALL):
                run = self._levels(k, a, b)
            elif word in (PRICE, FLOW, WAITS, APART, LEFT):
                try:
                    self._moment(k, word, (a, b, c))
                except BadMoment as error:
                    raise BadBound(f"{place}: {error}") from None
            elif word in (LOAD, PATH, WORK):
                length = self._length(word, (a, b, c), place)
                if length <= self.makespan:
                    raise BadBound(f"{place}: shows {length} only, not more than {self.makespan}")
                self._next_case()
            else:
                raise BadBound(f"{place}: unknown word {word}")
        if not self.done:
            raise BadBound(f"{len(self.open_cases) + 1} cases are left open")

    def _behind_all(self, heads: bool, row: tuple[int, int, int, int], place: str) -> None:
        """Raise the head (or tail) of task a behind the tasks of stream b with head >= c and tail >= d."""
        found, (a, b, c, d) = self.found, row
        if not 0 <= a < len(self.times) or b not in self.taken[a]:
            raise BadBound(f"{place}: task {a} is not on stream {b}")
        head, tail, least, other = (found.head, found.tail, c, d) if heads else (found.tail, found.head, d, c)
        others = [t for t in self.streams[b] if t != a]
        taken = sorted((head[x], self.times[x], tail[x]) for x in others if head[x] >= least and tail[x] >= other)
        if not taken:
            raise BadBound(f"{place}: no tasks that task {a} would come after")
        whole = sum(p for _, p, _ in taken)
        length = min(head[a], taken[0][0]) + whole + self.times[a] + min(x for _, _, x in taken)
        if length <= self.makespan:
            raise BadBound(f"{place}: task {a} may come before them, {length} is not more than {self.makespan}")
        end = 0
        for h, p, _ in taken:
            end = max(end, h) + p
        self._raise(heads, a, end)

    def _split(self, a: int, b: int, place: str) -> None:
        """Open the case in which a comes before b; the other one waits."""
        self._shared(a, b, place)
        if len(self.open_cases) >= DEEPEST:
            raise ContainerError(place, f"more than {DEEPEST} splits above one another")
        n = len(self.times)
        self.budget.charge(n >> 1, place)
        self.budget.hold(2 * n * (len(self.open_cases) + 1), place)
        self.open_cases.append((self.found.head[:], self.found.tail[:], len(self.made), a, b))
        self.link(a, b)

    def _order(self, a: int, b: int, place: str) -> None:
        """Task a comes before b, where b before a would take too long."""
        self._shared(a, b, place)
        length = self.found.head[b] + self.times[b] + self.times[a] + self.found.tail[a]
        if length <= self.makespan:
            raise BadBound(f"{place}: task {b} before {a} takes {length}, not more than {self.makespan}")
        self._after(a, b)

    def _levels(self, k: int, task: int, stream: int) -> int:
        """The row behind those that `Levels` replays from row k on."""
        try:
            run = k + self.levels.replay_rows(self.found, self.rows[k:], self.made, k)
        except Circle:
            raise BadBound(f"row {k}: links run in a circle") from None
        if run == k:
            raise BadBound(f"row {k}: there is no task {task} or no stream {stream}")
        return run

    def _moment(self, k: int, word: int, row: tuple[int, int, int]) -> None:
        """A row about the memory at a moment."""
        a, b, c = row
        if word == PRICE:
            self.moments.open(a, b, c, self.budget)
        elif word == FLOW:
            self.moments.flow(a, b, c, self.found, self.budget)
        elif word == WAITS:
            self.moments.waits(self.found, a, b, self.budget)
            self.link(a, b)
        elif word == LEFT:
            self._raise(True, b, self.moments.before(self.found, a, b, _stream(self.net, c, f"row {k}"), self.budget))
        elif self.open_cases:
            raise BadMoment("this must be known before a split")
        else:
            self.moments.apart(self.found, a, b, self.budget)
            self.taken[a].add(-1 - k)  # as if they shared a stream
            self.taken[b].add(-1 - k)

    def _length(self, word: int, row: tuple[int, int, int], place: str) -> int:
        """What no schedule of the case at hand is shorter than."""
        found, (a, b, c) = self.found, row
        if word == LOAD:
            return load(found, self.times, _stream(self.net, a, place), b, c)
        if word == WORK:
            try:
                return self.moments.work(found, a, _stream(self.net, b, place), c, self.budget)
            except BadMoment as error:
                raise BadBound(f"{place}: {error}") from None
        if not 0 <= a < len(self.times):
            raise BadBound(f"{place}: there is no task {a}")
        return found.head[a] + self.times[a] + found.tail[a]

    def _next_case(self) -> None:
        """The case at hand is contradicted: go back to the last split, the other way round."""
        self.done = not self.open_cases
        if self.open_cases:
            self.found.head, self.found.tail, links, x, y = self.open_cases.pop()
            while len(self.made) > links:
                p, q = self.made.pop()
                self.found.follow[p].pop()
                self.found.lead[q].pop()
            self.link(y, x)

    def _shared(self, a: int, b: int, place: str) -> None:
        """`BadBound` unless a and b are two tasks of one stream; `taken[t]`: the streams of task t."""
        n, taken = len(self.taken), self.taken
        if 0 <= a < n and 0 <= b < n and a != b:
            self.budget.charge(OBJECT * min(len(taken[a]), len(taken[b])), place)
            if not taken[a].isdisjoint(taken[b]):
                return
        raise BadBound(f"{place}: tasks {a} and {b} do not share a stream")

    def _raise(self, heads: bool, task: int, value: int) -> None:
        """Raise one head or tail and those behind it.  Beyond the makespan all is contradicted: values stop there."""
        found, times, most = self.found, self.times, self.makespan + 1
        values, links, sign = (found.head, found.follow, 1) if heads else (found.tail, found.lead, -1)
        if min(value, most) <= values[task]:
            return
        values[task] = min(value, most)
        todo, waiting = [(sign * found.rank[task], task)], {task}
        while todo:  # in order of ranks, so that most tasks are looked at once
            _, t = heappop(todo)
            waiting.discard(t)
            self.budget.charge(OBJECT * (2 + len(links[t])), "a raise")
            for u, lag in links[t]:
                v = min(values[t] + times[t] + lag, most)
                if v > values[u]:
                    values[u] = v
                    if u not in waiting:
                        waiting.add(u)
                        heappush(todo, (sign * found.rank[u], u))

    def link(self, a: int, b: int) -> None:
        """Task a before task b, from here on."""
        self.found.follow[a].append((b, 0))
        self.found.lead[b].append((a, 0))
        self.made.append((a, b))
        self._after(a, b)

    def _after(self, a: int, b: int) -> None:
        """What follows at once from a before b."""
        self._raise(True, b, self.found.head[a] + self.times[a])
        self._raise(False, a, self.found.tail[b] + self.times[b])
