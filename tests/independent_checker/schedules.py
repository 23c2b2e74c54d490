"""Section 10: schedules.  Heads and tails are recomputed from all links after every row, instead of being raised."""

from __future__ import annotations

import struct
from itertools import pairwise

from .reading import Malformed, Refuted, need, parse_json, read_members

DEEPEST = 200


class Shop:
    """`times[t]`, `streams[s]`: tasks, `links`: (before, after, lag), `extra`: those of the network alone."""

    def __init__(self, subject: dict) -> None:
        self.extra: list[tuple[int, int, int]] = []
        if subject["kind"] == "tasks":
            self.times = [t[1] for t in subject["tasks"]]
            self.streams = [
                [k for k, t in enumerate(subject["tasks"]) if s in t[2]] for s in range(len(subject["streams"]))
            ]
            self.links = [tuple(p) for p in subject["precedences"]]
            self.holdings, self.limits = subject["holdings"], subject["limits"]
        else:
            self.pipeline(subject)

    def pipeline(self, subject: dict) -> None:
        stages, c, m = len(subject["times"]), subject["chunks"], subject["micro_batches"]
        chunks = range(stages * c)
        device = [stages - 1 - v % stages if subject["wave"] and v // stages % 2 else v % stages for v in chunks]

        def task(kind: int, v: int, i: int) -> int:
            return (kind * len(chunks) + v) * m + i

        self.times = [subject["times"][device[v]][kind] for kind in range(3) for v in chunks for _ in range(m)]
        self.streams = [
            [task(kind, v, i) for kind in range(3) for v in chunks if device[v] == d for i in range(m)]
            for d in range(stages)
        ]
        self.links = []
        for i in range(m):
            for v in chunks:
                self.links += [(task(0, v, i), task(1, v, i), 0), (task(1, v, i), task(2, v, i), 0)]
            for v, w in pairwise(chunks):
                lag = 0 if device[v] == device[w] else c * subject["send"]
                if subject.get("hops"):
                    lag = subject["hops"][v]
                self.links += [(task(0, v, i), task(0, w, i), lag), (task(1, w, i), task(1, v, i), lag)]
        limit = None if subject["memory"] is None else c * subject["memory"]
        self.holdings = [[device[v], 1, task(0, v, i), [task(2, v, i)]] for v in chunks for i in range(m)]
        self.limits = [limit] * stages
        self.extra = [(task(k, v, i), task(k, v, i + 1), 0) for k in range(3) for v in chunks for i in range(m - 1)]
        if limit is not None:
            self.extra += [(task(2, v, i), task(0, v, i + limit), 0) for v in chunks for i in range(m - limit)]

    def check(self, starts: list[int]) -> int:
        """The end of a schedule that breaks nothing."""
        ends = [s + t for s, t in zip(starts, self.times, strict=True)]
        need(min(starts) >= 0, "a task starts before 0", Refuted)
        need(all(starts[b] >= ends[a] + lag for a, b, lag in self.links), "a precedence is broken", Refuted)
        for stream in self.streams:
            order = sorted(stream, key=lambda t: (starts[t], ends[t]))
            need(all(ends[a] <= starts[b] for a, b in pairwise(order)), "two tasks at once", Refuted)
        spans = [
            (d, n, 0 if first is None else starts[first], max((ends[t] for t in last), default=max(ends) + 1))
            for d, n, first, last in self.holdings
        ]
        for d, limit in enumerate(self.limits):
            mine = [(n, begin, over) for e, n, begin, over in spans if e == d]
            peak = max((sum(n for n, b, o in mine if b <= at < o) for _, at, _ in mine), default=0)
            need(limit is None or peak <= limit, "more is held than fits", Refuted)
        return max(ends)


class Cases:
    """Least heads and tails under the links, and what the rows have raised, case by case."""

    def __init__(self, shop: Shop, most: int) -> None:
        self.shop, self.most = shop, 1 << 62
        self.links = [*shop.links, *shop.extra]
        self.given = len(self.links)
        self.head, self.tail = [0] * len(shop.times), [0] * len(shop.times)
        need(self.settle(len(shop.times) + 1), "precedences run in a circle")
        self.most = most

    def settle(self, passes: int = 1 << 62) -> bool:
        """Heads and tails follow the links, up to the makespan and one; a circle of splits climbs to there."""
        times, moved = self.shop.times, True
        while moved:
            if passes == 0:
                return False
            moved, passes = False, passes - 1
            for a, b, lag in self.links:
                head = min(self.head[a] + times[a] + lag, self.most)
                tail = min(self.tail[b] + times[b] + lag, self.most)
                moved = moved or head > self.head[b] or tail > self.tail[a]
                self.head[b], self.tail[a] = max(self.head[b], head), max(self.tail[a], tail)
        return True

    def path(self, t: int) -> int:
        return self.head[t] + self.shop.times[t] + self.tail[t]

    def load(self, stream: int, head: int, tail: int) -> int:
        need(0 <= stream < len(self.shop.streams), "no such stream", Refuted)
        taken = [t for t in self.shop.streams[stream] if self.head[t] >= head and self.tail[t] >= tail]
        if not taken:
            return 0
        times = sum(self.shop.times[t] for t in taken)
        return min(self.head[t] for t in taken) + times + min(self.tail[t] for t in taken)

    def order(self, a: int, b: int) -> None:
        """Task a is before b: their head and tail follow at once, others along the links."""
        times = self.shop.times
        self.head[b] = max(self.head[b], min(self.head[a] + times[a], self.most))
        self.tail[a] = max(self.tail[a], min(self.tail[b] + times[b], self.most))
        self.settle()

    def reached(self, tasks: list[int], before: bool) -> set[int]:
        """All that leads to these tasks, or that they lead to."""
        found: set[int] = set()
        todo = list(tasks)
        while todo:
            t = todo.pop()
            for x, y, _ in self.links:
                near, far = (y, x) if before else (x, y)
                if near == t and far not in found:
                    found.add(far)
                    todo.append(far)
        return found

    def circle(self) -> bool:
        """Whether links run in a circle, which those of the network do not."""
        if len(self.links) == self.given:
            return False
        return any(t in self.reached([t], True) for t in range(len(self.shop.times)))

    def left(self, moment: Moment | None, t: int, counted: list[int]) -> int:
        """Time of `counted` that is left when t starts."""
        need(moment is not None and moment.work > 0, "no price of time", Refuted)
        need(0 <= t < len(self.shop.times) and self.shop.times[t] > 0, "no task that takes time", Refuted)
        begun = [x for x in counted if x != t]
        most = moment.most(self.reached([t], True) | {t}, self.reached([t], False), {t}, begun)
        return sum(self.shop.times[x] for x in counted) - most // moment.work

    def all_before(self, task: int, stream: list[int], least: int, before: bool) -> None:
        """Tasks of a stream that come before `task` by the links run one after another (or after it, mirrored)."""
        found = self.reached([task], before)
        need(task not in found and not self.circle(), "links run in a circle", Refuted)
        values = self.head if before else self.tail
        end = 0
        for t in sorted((t for t in stream if t in found and values[t] >= least), key=lambda t: values[t]):
            end = max(end, values[t]) + self.shop.times[t]
        values[task] = max(values[task], min(end, self.most))
        self.settle()

    def raised(self, values: list[int], others: list[int], task: int, taken: list[int]) -> None:
        """`task` comes after all of `taken`, seen from the side of `values`."""
        times = self.shop.times
        need(taken, "no other tasks", Refuted)
        whole = min(values[t] for t in (*taken, task)) + sum(times[t] for t in (*taken, task))
        need(whole + min(others[t] for t in taken) > self.most - 1, "the task may come earlier", Refuted)
        end = 0
        for t in sorted(taken, key=lambda t: values[t]):
            end = max(end, values[t]) + times[t]
        values[task] = max(values[task], min(end, self.most))
        self.settle()


class Moment:
    """The open argument about one moment: prices on a device, and what flows."""

    def __init__(self, shop: Shop, device: int, price: int, work: int) -> None:
        need(0 <= device < len(shop.limits) and shop.limits[device] is not None, "no limit there", Refuted)
        need(price >= 0 and work >= 0, "a price below 0", Refuted)
        self.shop, self.device, self.price, self.work = shop, device, price, work
        self.worth: dict[object, int] = {}

    def flow(self, links: list[tuple[int, int, int]], x: int, u: int, f: int) -> None:
        n = len(self.shop.times)
        if 0 <= x < n:
            need(any(a == u and b == x for a, b, _ in links), "no such link", Refuted)
        else:
            need(n <= x < n + len(self.shop.holdings) and u in self.shop.holdings[x - n][3], "no such end", Refuted)
        need(f >= 0, "a flow below 0", Refuted)
        self.worth[x] = self.worth.get(x, 0) - f
        self.worth[u] = self.worth.get(u, 0) + f

    def most(self, started: set[int], barred: set[int], running: set[int], counted: list[int]) -> int:
        n, total = len(self.shop.times), self.price * self.shop.limits[self.device]
        worth = {t: self.worth.get(t, 0) + (self.work * self.shop.times[t] if t in counted else 0) for t in range(n)}
        for k, (d, amount, first, last) in enumerate(self.shop.holdings):
            if d != self.device:
                continue
            if first is None:
                total -= self.price * amount
            else:
                worth[first] -= self.price * amount
            if last and not any(t in barred or t in running for t in last):
                total += max(0, self.price * amount + self.worth.get(n + k, 0))
        for t in range(n):
            if t in started:
                total += worth[t]
            elif t not in barred:
                total += max(0, worth[t])
        return total


def refute(shop: Shop, makespan: int, rows: list[tuple[int, ...]]) -> None:
    cases = Cases(shop, makespan + 1)
    waiting: list[tuple[list[int], list[int], int, int, int]] = []
    n, done, moment, apart = len(shop.times), False, None, set()
    for word, a, b, c, d in rows:
        need(not done, "a row after the end", Refuted)
        together = a != b and ((a, b) in apart or any(a in s and b in s for s in shop.streams))
        if word in (0, 1):
            need(0 <= a < n and 0 <= b < len(shop.streams) and a in shop.streams[b], "not on the stream", Refuted)
            taken = [t for t in shop.streams[b] if t != a and cases.head[t] >= c and cases.tail[t] >= d]
            sides = (cases.head, cases.tail) if word == 0 else (cases.tail, cases.head)
            cases.raised(*sides, a, taken)
        elif word == 2:
            need(together, "no stream in common", Refuted)
            need(len(waiting) < DEEPEST, "too many splits")
            waiting.append((list(cases.head), list(cases.tail), len(cases.links), a, b))
            cases.links.append((a, b, 0))
            cases.order(a, b)
        elif word == 5:
            need(together, "no stream in common", Refuted)
            length = cases.head[b] + shop.times[b] + shop.times[a] + cases.tail[a]
            need(length > makespan, "b may be before a", Refuted)
            cases.order(a, b)
        elif word in (6, 7):
            need(0 <= a < n and 0 <= b < len(shop.streams), "no such task or stream", Refuted)
            cases.all_before(a, shop.streams[b], c, word == 6)
        elif word == 8:
            moment = Moment(shop, a, b, c)
        elif word == 9:
            need(moment is not None, "no argument is open", Refuted)
            moment.flow(cases.links, a, b, c)
        elif word in (10, 11):
            need(moment is not None and 0 <= a < n and 0 <= b < n and shop.times[b] > 0, "no argument", Refuted)
            first = [b] if word == 10 else [a, b]
            barred = cases.reached([a, b], False)
            need(moment.most(cases.reached(first, True) | set(first), barred, {a, b}, []) < 0, "it fits", Refuted)
            if word == 10:
                cases.links.append((a, b, 0))
                cases.order(a, b)
            else:
                need(not waiting and shop.times[a] > 0, "a split is open", Refuted)
                apart |= {(a, b), (b, a)}
            moment = None
        elif word == 13:
            need(0 <= b < n and 0 <= c < len(shop.streams), "no such task or stream", Refuted)
            left = cases.left(moment, a, [t for t in shop.streams[c] if t in cases.reached([b], True)])
            if left > 0:
                cases.head[b] = max(cases.head[b], min(cases.head[a] + left, cases.most))
                cases.settle()
            moment = None
        else:
            need(word in (3, 4, 12) and (word == 3 or 0 <= a < n), "no such row", Refuted)
            if word == 12:
                need(0 <= b < len(shop.streams), "no such stream", Refuted)
                left = cases.left(moment, a, [t for t in shop.streams[b] if cases.tail[t] >= c])
                need(left > 0 and cases.head[a] + left + c > makespan, "no contradiction", Refuted)
                moment = None
            else:
                need((cases.load(a, b, c) if word == 3 else cases.path(a)) > makespan, "no contradiction", Refuted)
            done = not waiting
            if waiting:
                cases.head, cases.tail, kept, x, y = waiting.pop()
                del cases.links[kept:]
                cases.links.append((y, x, 0))
                cases.order(y, x)
    need(done, "cases are left open", Refuted)


def shown(shop: Shop, bound: dict, rows: list[tuple[int, ...]]) -> int:
    """The bound that the argument gives."""
    if bound["kind"] == "refutation":
        refute(shop, bound["makespan"], rows)
        return bound["makespan"] + 1
    cases = Cases(shop, 1 << 62)
    if bound["kind"] == "path":
        return max(map(cases.path, range(len(shop.times))))
    return cases.load(bound["stream"], bound["head"], bound["tail"])


def check_schedule(data: bytes) -> str:
    """The verdict on a file with a schedule (well-formedness below its members is not judged)."""
    try:
        members = read_members(data)
        head = parse_json(members["schedule.json"][0])
        content = members["schedule.i64"][0]
        numbers = list(struct.unpack(f"<{len(content) // 8}q", content))
        starts, rest = numbers[: head["tasks"]], numbers[head["tasks"] :]
        rows = [tuple(rest[k : k + 5]) for k in range(0, len(rest), 5)]
        shop = Shop(head["subject"])
        end = shop.check(starts)
        need(end == head["makespan"], "another end", Refuted)
        need(head["lower_bound"] <= shown(shop, head["bound"], rows) <= end, "another bound", Refuted)
        return "proved"
    except Refuted:
        return "refuted"
    except Malformed:
        return "malformed"
