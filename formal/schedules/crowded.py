"""Raises lower bounds by memory: what cannot run beside what, and how much can have begun before a task.

Near the beginning of a backward pass all saved activations are held, so that little can be fetched or computed ahead:
while a collective runs that all else waits for, the compute stream has no more to do than memory lets it begin.  Of the
tasks on which most depends, pairs are tried first: one waits for the other, or they run apart (then both orders are
cases).  In each case heads and tails are raised again, and the work that can have begun when one of these tasks starts
is bounded (`moments`): what is left comes after it, before the end or before a task that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ...proofs.container.effort import OBJECT, PART
from ...proofs.container.effort import WORK as MOST_WORK
from ...proofs.schedules.certificate import (
    AFTER_ALL,
    APART,
    BEFORE_ALL,
    FLOW,
    LEFT,
    LOAD,
    PATH,
    PRICE,
    SPLIT,
    WAITS,
    WORK,
    Bound,
    Refutation,
)
from ..selection.model.clock import Clock
from .bounds import Frame
from .kernels import best_load
from .levels import MOST_TASKS, NEVER, before_bits, raise_heads
from .moments import Moments, arcs
from .shop import Links, Shop, links

CANDIDATES = 24
"""Tasks that are looked at, those first on which most depends."""

SHORTEST, SMALLEST = 1 << 12, 1 << 7
"""Candidates take at least this part of the makespan, or this part of the limit."""

TARGETS, BEGINS = 16, 3
"""Tasks whose heads are raised by what is left when a candidate starts, and candidates of each that are tried."""

Row = tuple[int, int, int, int, int]
Made = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Crowded:
    """A lower bound with its argument; `begun`: tasks that have begun, where most have, when `task` starts."""

    value: int
    bound: Bound
    task: int
    begun: Ints


@dataclass(frozen=True, eq=False)
class Case:
    """Heads and tails under the links `made` beside those of the shop."""

    made: Made
    forward: Links
    backward: Links
    head: Ints
    tail: Ints
    rows: list[Row]


@dataclass(frozen=True, eq=False)
class Closed:
    """How a case ends: no schedule is shorter than `value`, by `rows`."""

    value: int
    rows: list[Row]
    task: int
    begun: Ints


def memory_bound(found: Frame, problem: ScheduleProblem, makespan: int, clock: Clock) -> Crowded | None:
    """A better bound than that of `found`, whose heads and tails hold for all schedules; None if there is none."""
    shop = found.shop
    load, stream, _, _ = best_load(shop.times, found.head, found.tail, shop.tasks_at, shop.tasks)
    device = problem.streams[stream].device if problem.streams else 0
    if not load or problem.limits[device] is None or len(shop.times) > MOST_TASKS:
        return None
    search = _Search(shop, Moments(problem, shop, device), stream, clock)
    taken = [set(t.streams) for t in problem.tasks]
    candidates = _candidates(found, search.moments, makespan)
    first = _tuples(found.bound.rows[:-1]) if isinstance(found.bound, Refutation) else []
    made: Made = []
    apart: list[tuple[int, int, list[Row]]] = []
    moments = search.moments
    for b in candidates:
        for a in candidates:
            if clock.over():
                break
            if a == b or a in moments.ancestors([b], True) or a in moments.ancestors([b], False):
                continue
            clock.charge(len(shop.times))
            argument = moments.waits(a, b)
            if argument.most < 0:
                first += [*_tuples(argument.rows), (WAITS, a, b, 0, 0)]
                moments.link(a, b)
                made.append((a, b))
            elif a < b and not taken[a] & taken[b] and (argument := moments.together(a, b)).most < 0:
                apart.append((a, b, [*_tuples(argument.rows), (APART, a, b, 0, 0)]))
    root = search.case(made, found.head, found.tail)
    value, rows, last = 0, list[Row](), None
    for a, b, words in apart:
        if clock.over():
            break
        if a in moments.ancestors([b], True) or a in moments.ancestors([b], False):
            continue  # links found since have put them in order
        split, ends = [*first, *root.rows, *words, (SPLIT, a, b, 0, 0)], []
        for link in ((a, b), (b, a)):
            moments.link(*link)
            case = search.case([*made, link], root.head, root.tail)
            ends.append(search.close_case(case, candidates))
            split += [*case.rows, *ends[-1].rows]
            moments.unlink()
        if min(c.value for c in ends) > value:
            value, rows, last = min(c.value for c in ends), split, ends[0]
    if last is None or not clock.over():
        closed = search.close_case(root, candidates)
        if closed.value > value:
            value, rows, last = closed.value, [*first, *root.rows, *closed.rows], closed
    assert last is not None
    array = np.array([_capped(row, value) for row in rows], dtype=np.int64).reshape(-1, 5)
    if value <= found.value or _effort(array, problem, shop, len(apart)) > MOST_WORK:
        return None
    return Crowded(value, Refutation(value - 1, array), last.task, last.begun)


@dataclass(frozen=True, eq=False)
class _Search:
    """Bounds of the cases of one shop: the work of `stream` within the memory of its device."""

    shop: Shop
    moments: Moments
    stream: int
    clock: Clock

    @property
    def here(self) -> Ints:
        """Tasks of the stream."""
        return self.shop.tasks[self.shop.tasks_at[self.stream] : self.shop.tasks_at[self.stream + 1]]

    def case(self, made: Made, head: Ints, tail: Ints) -> Case:
        """Raise heads and tails under more links."""
        shop, n = self.shop, len(self.shop.times)
        known = arcs(shop.forward)
        both = np.concatenate([known, np.array(made, dtype=np.int64).reshape(-1, 2)])
        lag = np.concatenate([shop.forward.lag, np.zeros(len(made), dtype=np.int64)])
        forward, backward = links(n, both[:, 0], both[:, 1], lag), links(n, both[:, 1], both[:, 0], lag)
        case = Case(made, forward, backward, head, tail, [])
        return self.raise_heads(case)

    def raise_heads(self, case: Case) -> Case:
        """The case with heads and tails raised along its links and by what must run before and after."""
        shop, n = self.shop, len(self.shop.times)
        values, rows = [case.head, case.tail], list(case.rows)
        for k, (way, word) in enumerate(((case.forward, AFTER_ALL), (case.backward, BEFORE_ALL))):
            room = np.zeros((4 * n, 5), dtype=np.int64)
            values[k], used = raise_heads(shop, way, before_bits(way), room, word, values[k], values[1 - k], NEVER)
            rows += _tuples(room[:used])
        return Case(case.made, case.forward, case.backward, values[0], values[1], rows)

    def close_case(self, case: Case, candidates: list[int]) -> Closed:
        """The best end of a case."""
        best, begins = self.earliest_end(case, candidates)
        further = self.lift_heads(case, begins)
        if further is None:
            return best
        again, _ = self.earliest_end(further, begins)
        if again.value <= best.value:
            return best
        return Closed(again.value, [*further.rows[len(case.rows) :], *again.rows], again.task, again.begun)

    def earliest_end(self, case: Case, candidates: list[int]) -> tuple[Closed, list[int]]:
        """A load, a path, or the work that is left when a candidate starts, and the candidates with most of it."""
        times = self.shop.times
        load, s, r, q = best_load(times, case.head, case.tail, self.shop.tasks_at, self.shop.tasks)
        path = case.head + times + case.tail
        none = np.zeros(0, dtype=np.int64)
        best = Closed(int(load), [(LOAD, int(s), int(r), int(q), 0)], -1, none)
        if path.max() > load:
            best = Closed(int(path.max()), [(PATH, int(path.argmax()), 0, 0, 0)], -1, none)
        least = int(case.tail[self.here].min())
        whole = int(times[self.here].sum())
        values: list[tuple[int, int]] = []
        times_here = {t: int(times[t]) for t in self.here.tolist()}
        for t in candidates:
            begun = sum(times_here.get(u, 0) for u in self.moments.ancestors([t], True))
            if self.clock.over() or int(case.head[t]) + whole - begun + least <= best.value:
                continue
            self.clock.charge(len(self.shop.times))
            argument, most = self.moments.work(t, self.here)
            values.append((int(case.head[t]) + whole - most, t))
            value = int(case.head[t]) + whole - most + least
            if value > best.value and whole > most:
                rows = [*_tuples(argument.rows), (WORK, t, self.stream, least, 0)]
                best = Closed(value, rows, t, np.flatnonzero(argument.taken))
        return best, [t for _, t in sorted(values, reverse=True)[:BEGINS]]

    def lift_heads(self, case: Case, begins: list[int]) -> Case | None:
        """The case with heads of tasks on other streams raised by the work that is left before them when a candidate
        starts; None if no head was raised.
        """
        head, rows = case.head.copy(), list(case.rows)
        elsewhere = np.setdiff1d(np.flatnonzero(self.shop.times > 0), self.here)
        by_head = elsewhere[np.argsort(head[elsewhere], kind="stable")]
        targets = by_head[np.linspace(0, len(by_head) - 1, min(TARGETS, len(by_head))).astype(np.int64)]
        for y in targets.tolist():
            before = self.moments.ancestors([y], True)
            counted = np.array([t for t in self.here.tolist() if t in before], dtype=np.int64)
            best, words = int(head[y]), list[Row]()
            for t in begins:
                if self.clock.over() or t not in before:
                    continue
                whole = int(self.shop.times[counted].sum())
                if int(case.head[t]) + whole <= best:
                    continue
                self.clock.charge(len(self.shop.times))
                argument, most = self.moments.work(t, counted)
                value = int(case.head[t]) + whole - most
                if value > best:
                    best, words = value, [*_tuples(argument.rows), (LEFT, t, y, self.stream, 0)]
            head[y] = best
            rows += words
        if len(rows) == len(case.rows):
            return None
        return self.raise_heads(Case(case.made, case.forward, case.backward, head, case.tail, rows))


def _candidates(found: Frame, moments: Moments, makespan: int) -> list[int]:
    large = np.maximum(moments.own * SMALLEST >= moments.limit, found.shop.times * SHORTEST >= makespan)
    order = np.argsort(-(found.tail + found.shop.times), kind="stable")
    return [t for t in order.tolist() if large[t] and found.shop.times[t]][:CANDIDATES]


def _effort(rows: Ints, problem: ScheduleProblem, shop: Shop, splits: int) -> int:
    """About as many cells as the checker takes for the rows (`verify/schedules/bounds.py`)."""
    n, links = len(shop.times), len(shop.forward.to)
    short = int(np.isin(rows[:, 0], (PRICE, FLOW)).sum())
    moments = int((rows[:, 0] == PRICE).sum())
    longest = int(np.diff(shop.tasks_at).max(initial=0))
    ends = sum(len(h.last) for h in problem.holdings)
    return (
        (len(rows) - short) * (PART + OBJECT * (longest + 16))
        + short * OBJECT * (16 + links // n + 1)
        + moments * OBJECT * (2 * (n + links) + 3 * len(problem.holdings) + 2 * ends)
        + 2 * (1 + 2 * splits) * (OBJECT + n // 8) * (n + links)
        + 8 * OBJECT * (n + links) * (2 + splits)
    )


def _capped(row: Row, value: int) -> Row:
    """A row that ends a case, for a checker whose heads and tails stop at `value`, where all is contradicted: the worse
    of two cases may go far beyond the bound of both.
    """
    word, a, b, c, d = row
    if word == LOAD:
        return word, a, min(b, value), min(c, value), d
    return (word, a, b, min(c, value), d) if word == WORK else row


def _tuples(rows: Ints) -> list[Row]:
    return [(a, b, c, d, e) for a, b, c, d, e in rows.tolist()]
