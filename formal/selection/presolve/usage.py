"""Usage over time while a problem is reduced.

    total usage at row r  =  base_r + sum_v u_r,v(x_v)

Rows are steps of the original problem, numbered from 0; only ends of maximal runs of starts matter at first, later only
rows that can still exceed the limit and that no neighbouring row implies.  Usage of a vertex is a list of parts (first
row, last row, amount per label); `settle` turns it into disjoint spans beyond the minimum over the labels, whose rest
is in the base.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints, SelectionProblem, Usage

Part = tuple[Ints, Ints, Ints]
"""(first, last, amount): shapes (n,), (n,), (n, labels)."""


class RowUsage:
    """`amount` columns follow the labels left of each vertex: `keep` and `move` must be told about every change."""

    def __init__(self, problem: SelectionProblem, domains: tuple[Ints, ...]) -> None:
        self.limit = problem.limit
        self.parts: list[list[Part]] = [[] for _ in problem.vertices]
        self.tidy = [True] * len(problem.vertices)
        self.spans = [0] * len(problem.vertices)  # spans of all parts, settled or not
        live = [u for u in problem.usages if u.start < u.end and self.limit is not None and int(u.amount.max()) > 0]
        starts, ends = (
            np.array([u.start for u in live], dtype=np.int64),
            np.array([u.end for u in live], dtype=np.int64),
        )
        self.rows = last_starts(starts, ends)
        self.change = np.zeros(self.rows.size + 1, dtype=np.int64)
        first, last = np.searchsorted(self.rows, starts), np.searchsorted(self.rows, ends)
        for u, s, e in zip(live, first, last, strict=True):
            if s < e:
                self.parts[u.vertex].append((np.array([s]), np.array([e]), u.amount[None, domains[u.vertex]]))
                self.tidy[u.vertex] = False
                self.spans[u.vertex] += 1

    def add_vertex(self) -> None:
        """A vertex more, which uses nothing."""
        self.parts.append([])
        self.tidy.append(True)
        self.spans.append(0)

    def base(self) -> Ints:
        """Usage per row that does not depend on choices any more; complete after `settle` of every vertex."""
        return np.cumsum(self.change)[:-1]

    def settle(self, v: int) -> Part | None:
        """Disjoint spans of `v` beyond its minimum per row; None if it uses the same whatever it chooses."""
        if not self.tidy[v]:
            self._settle(v)
        return self.parts[v][0] if self.parts[v] else None

    def _settle(self, v: int) -> None:
        first, last, amount = self._joined(v)
        if first.size == 1:
            cuts, level = np.array([first[0], last[0]]), amount
        else:
            cuts = np.unique(np.concatenate([first, last]))
            steps = np.zeros((cuts.size, amount.shape[1]), dtype=np.int64)
            np.add.at(steps, np.searchsorted(cuts, first), amount)
            np.subtract.at(steps, np.searchsorted(cuts, last), amount)
            level = np.cumsum(steps, axis=0)[:-1]
        least = level.min(axis=1)
        self.change[cuts] += np.diff(least, prepend=0, append=0)  # cuts are distinct
        level = level - least[:, None]
        used = level.any(axis=1)
        first, last, level = cuts[:-1][used], cuts[1:][used], level[used]
        if first.size > 1:  # equal neighbours are one span
            new = np.concatenate([[True], (first[1:] != last[:-1]) | (level[1:] != level[:-1]).any(axis=1)])
            ends = np.append(np.flatnonzero(new)[1:] - 1, first.size - 1)
            first, last, level = first[new], last[ends], level[new]
        self.parts[v] = [(first, last, level)] if first.size else []
        self.tidy[v] = True
        self.spans[v] = first.size

    def _joined(self, v: int) -> Part:
        parts = self.parts[v]
        if len(parts) == 1:
            return parts[0]
        return (
            np.concatenate([p[0] for p in parts]),
            np.concatenate([p[1] for p in parts]),
            np.concatenate([p[2] for p in parts]),
        )

    def keep(self, v: int, kept: Ints) -> None:
        """Label a of `v` becomes what was label kept[a]."""
        if self.parts[v]:
            first, last, amount = self._joined(v)
            self.parts[v], self.tidy[v] = [(first, last, amount[:, kept])], False

    def move(self, i: int, j: int, g: Ints) -> None:
        """Usage of `i` joins `j`, whose label y means label g[y] of `i`."""
        if self.parts[i]:
            first, last, amount = self._joined(i)
            self.parts[j].append((first, last, amount[:, g]))
            self.tidy[j] = False
            self.spans[j] += self.spans[i]
            self.parts[i], self.tidy[i], self.spans[i] = [], True, 0

    def needed_rows(self, alive: list[int]) -> Ints:
        """Positions of rows that the others, and the limit, do not imply; `alive` vertices are settled first.

        A row goes when the largest usages fit, or when a neighbouring row that is kept uses at least as much for every
        label and has no more room.
        """
        assert self.limit is not None
        most = np.zeros(self.rows.size + 1, dtype=np.int64)
        rises, falls = (
            np.zeros(self.rows.size + 1, dtype=bool),
            np.zeros(self.rows.size + 1, dtype=bool),
        )  # between row r - 1 and row r
        for v in alive:
            part = self.settle(v)
            if part is None:
                continue
            first, last, amount = part
            high = amount.max(axis=1)
            np.add.at(most, first, high)
            np.subtract.at(most, last, high)
            touch = first[1:] == last[:-1]
            if touch.any():
                step = amount[1:] - amount[:-1]
                at = first[1:][touch]
                rises[at] |= np.asarray((step > 0).any(axis=1))[touch]
                falls[at] |= np.asarray((step < 0).any(axis=1))[touch]
            rises[first[np.concatenate([[True], ~touch])]] = True
            falls[last[np.concatenate([~touch, [True]])]] = True
        room = self.limit - self.base()
        binding = np.cumsum(most)[:-1] > room
        if (room < 0).any():  # nothing fits: keep the worst row only
            return np.array([int(np.argmin(room))])
        kept: list[int] = []
        up, down = np.cumsum(rises), np.cumsum(falls)
        for r in np.flatnonzero(binding).tolist():
            while kept and down[r] == down[kept[-1]] and room[kept[-1]] >= room[r]:
                kept.pop()  # nothing falls in between, so row r uses at least as much
            if kept and up[r] == up[kept[-1]] and room[kept[-1]] <= room[r]:
                continue
            kept.append(r)
        return np.array(kept, dtype=np.int64)

    def keep_rows(self, kept: Ints) -> Ints:
        """Only the rows at positions `kept` stay; their steps."""
        base = self.base()[kept]
        self.rows = self.rows[kept]
        self.change = np.diff(base, prepend=0, append=0)
        for v, parts in enumerate(self.parts):
            if parts:
                first, last, amount = self._joined(v)
                first, last = np.searchsorted(kept, first), np.searchsorted(kept, last)
                used = first < last
                self.parts[v] = [(first[used], last[used], amount[used])] if used.any() else []
                self.tidy[v] = not self.parts[v]
                self.spans[v] = int(used.sum())
        return self.rows

    def overfull(self, alive: list[int]) -> list[tuple[int, int, int]]:
        """(vertex, label position, step) of labels that exceed the limit although all others use their least."""
        assert self.limit is not None
        for v in alive:
            self.settle(v)
        room = self.limit - self.base()
        out = []
        for v in alive:
            part = self.settle(v)
            if part is None:
                continue
            first, last, amount = part
            least = np.array([room[s:e].min() for s, e in zip(first.tolist(), last.tolist(), strict=True)])
            over = amount > least[:, None]
            if over.any():
                for a in np.flatnonzero(over.any(axis=0)).tolist():
                    k = int(np.argmax(over[:, a]))
                    s = int(first[k])
                    out.append((v, a, int(self.rows[s + int(np.argmin(room[s : int(last[k])]))])))
        return out

    def usages(self, number: dict[int, int]) -> list[Usage]:
        """Usages of the vertices `number` (old to new), with row numbers as steps."""
        out = []
        for v, new in number.items():
            part = self.settle(v)
            if part is not None:
                out += [
                    Usage(new, s, e, amount)
                    for s, e, amount in zip(part[0].tolist(), part[1].tolist(), part[2], strict=True)
                ]
        return out


def last_starts(starts: Ints, ends: Ints) -> Ints:
    """Starts that are followed by an end before the next start: at these steps the set of live usages is maximal.

    >>> last_starts(np.array([0, 1, 4]), np.array([3, 9, 6])).tolist()
    [1, 4]
    """
    begin, end = np.unique(starts), np.unique(ends)
    following = end[np.minimum(np.searchsorted(end, begin, side="right"), end.size - 1)] if end.size else end
    return begin[np.append(following[:-1] <= begin[1:], True)] if begin.size else begin
