"""The rules of `proofs/selection/presolve_log.py` once more, literally: dictionaries, loops over single entries, no
arrays, no shared code.

`State.applies` is the condition of an entry, `State.apply` its effect, `reduced` the whole of a `Reduced` record.
"""

from __future__ import annotations

import numpy as np

from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import Reduced
from shardproof.proofs.selection.presolve_log import AT_MOST_ONE, BASELINE, Rule

INF = float("inf")


class State:
    """Costs, tables and usages by choice numbers of the problem; infinity is forbidden.  `used[v][a][t]`: usage at
    step t.
    """

    def __init__(self, problem: SelectionProblem, domains: list[list[int]] | None = None) -> None:
        self.problem = problem
        self.labels = {
            v: list(d) for v, d in enumerate(domains or [list(range(x.cost.size)) for x in problem.vertices])
        }
        self.cost = {v: {a: _cost(int(problem.vertices[v].cost[a])) for a in d} for v, d in self.labels.items()}
        self.table: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
        for e in problem.edges:
            one = {}
            for a in self.labels[e.u]:
                for b in self.labels[e.v]:
                    one[a, b] = _cost(
                        int(
                            problem.tables[e.table][
                                a if e.rows is None else e.rows[a], b if e.cols is None else e.cols[b]
                            ]
                        )
                    )
            self._add(e.u, e.v, one)
        self.constant: float = problem.constant
        self.limit = problem.limit
        self.steps = problem.events() if problem.limit is not None else []
        self.base = dict.fromkeys(self.steps, 0)
        self.used = {
            v: {
                a: {
                    t: sum(int(u.amount[a]) for u in problem.usages if u.vertex == v and u.start <= t < u.end)
                    for t in self.steps
                }
                for a in d
            }
            for v, d in self.labels.items()
        }
        self.count = len(problem.vertices)
        self.clique: list[tuple[int, int]] = []  # named by the CLIQUE entries just before

    def _add(self, i: int, j: int, entries: dict[tuple[int, int], float]) -> None:
        for (a, b), value in entries.items():
            for pair, at in (((i, j), (a, b)), ((j, i), (b, a))):
                table = self.table.setdefault(pair, {})
                table[at] = table.get(at, 0) + value

    def near(self, i: int) -> list[int]:
        return [j for j in self.labels if (i, j) in self.table]

    def lighter(self, i: int, b: int, a: int) -> bool:
        return all(self.used[i][b][t] <= self.used[i][a][t] for t in self.steps)

    def applies(self, rule: int, i: int, a: int, b: int, steps: tuple[np.ndarray, ...] = ()) -> bool:
        """The condition of an entry."""
        if rule == Rule.ROWS:
            kept = steps[i].tolist() if 0 <= i < len(steps) else [-99]
            return set(kept) < set(self.steps) and kept == sorted(set(kept))
        if i not in self.labels:
            return False
        labels, j = self.labels[i], a
        match rule:
            case Rule.ARC if a == -1:
                return INF in self.cost[i].values()
            case Rule.FIX:
                return len(labels) == 1 and self.cost[i][labels[0]] < INF
            case Rule.DOMINATED:
                if a == b or a not in labels or b not in labels or self.cost[i][b] == INF:
                    return False
                worse = self.cost[i][a] - self.cost[i][b]
                for w in self.near(i):
                    t = self.table[i, w]
                    worse += min((t[a, y] - t[b, y] for y in self.labels[w] if t[a, y] < INF), default=INF)
                return worse >= 0 and self.lighter(i, b, a)
            case Rule.ELIMINATE:
                if self.near(i) == [] and all(c == INF for c in self.cost[i].values()):
                    return False
                return len(self.near(i)) <= 2 and all(self.used[i][x] == self.used[i][labels[0]] for x in labels)
            case Rule.OVERFULL:
                if self.limit is None or a not in labels or b not in self.steps:
                    return False
                others = sum(min(self.used[v][x][b] for x in self.labels[v]) for v in self.labels if v != i)
                return self.used[i][a][b] + self.base[b] + others > self.limit
            case Rule.CLIQUE if a not in labels:
                return False
            case Rule.CLIQUE if b == self.count - 1 and self.clique:
                pairs = [(self.table.get((i, w), {}).get((a, y), 0), w) for w, y in self.clique]
                return (i, a) not in self.clique and all(w == i or cost == INF for cost, w in pairs)
            case Rule.CLIQUE:
                return b == self.count
            case Rule.IMPLIED:
                return bool(self._freed(i, j, b))
            case Rule.ARC | Rule.MERGE | Rule.FOLLOW | Rule.SEPARABLE:
                return (i, j) in self.table and self._pair_applies(rule, i, j)
            case _:
                return False

    def _freed(self, i: int, j: int, h: int) -> list[tuple[int, int]]:
        """Entries of T_ij that IMPLIED sets to 0."""
        if not all(pair in self.table for pair in ((i, j), (i, h), (j, h))):
            return []
        one, other = self.table[i, h], self.table[j, h]
        return [
            (x, y)
            for (x, y), cost in self.table[i, j].items()
            if cost == INF and all(one[x, z] == INF or other[y, z] == INF for z in self.labels[h])
        ]

    def _join_clique(self, h: int) -> None:
        """The vertex h of the choices named so far."""
        members = list(dict.fromkeys(v for v, _ in self.clique))
        for w in self.near(h) if h in self.labels else []:
            del self.table[h, w], self.table[w, h]
        self.labels[h] = list(range(1 + len(members)))
        self.cost[h] = dict.fromkeys(self.labels[h], 0)
        self.used[h] = {k: dict.fromkeys(self.steps, 0) for k in self.labels[h]}
        for place, v in enumerate(members):
            one = {}
            for k in self.labels[h]:
                for x in self.labels[v]:
                    one[k, x] = 0 if (k == 1 + place) == ((v, x) in self.clique) else INF
            self._add(h, v, one)

    def _pair_applies(self, rule: int, i: int, j: int) -> bool:
        t, labels, others = self.table[i, j], self.labels[i], self.labels[j]
        match rule:
            case Rule.ARC:
                return any(all(t[x, y] == INF for y in others) for x in labels)
            case Rule.MERGE:
                return all(sum(t[x, y] < INF for x in labels) == 1 for y in others)
            case Rule.SEPARABLE:
                x0, y0 = labels[0], others[0]
                return all(v < INF for v in t.values()) and all(
                    t[x, y] - t[x, y0] == t[x0, y] - t[x0, y0] for x in labels for y in others
                )
            case _:
                return self.near(i) == [j] and all(self._follower(i, j, y) is not None for y in others)

    def _follower(self, i: int, j: int, y: int) -> int | None:
        """The choice of `i` that FOLLOW takes for choice y of `j`."""
        total = {x: self.cost[i][x] + self.table[i, j][x, y] for x in self.labels[i]}
        allowed = [x for x in total if total[x] < INF]
        best = [x for x in total if total[x] == min(total.values()) and all(self.lighter(i, x, z) for z in allowed)]
        return best[0] if best else None

    def apply(self, rule: int, i: int, a: int, b: int, steps: tuple[np.ndarray, ...] = ()) -> None:
        """The effect of an entry that applies."""
        j = a
        if rule != Rule.CLIQUE or b == self.count:
            self.clique = []
        match rule:
            case Rule.ROWS:
                self.steps = steps[i].tolist()
                for use in (use for by_label in self.used.values() for use in by_label.values()):
                    for t in set(use) - set(self.steps):
                        del use[t]
            case Rule.ARC if a == -1:
                self._keep(i, [x for x in self.labels[i] if self.cost[i][x] < INF])
            case Rule.ARC:
                self._keep(i, [x for x in self.labels[i] if any(self.table[i, j][x, y] < INF for y in self.labels[j])])
            case Rule.FIX:
                x = self.labels[i][0]
                for w in self.near(i):
                    for y in self.labels[w]:
                        self.cost[w][y] += self.table[i, w][x, y]
                self.constant += self.cost[i][x]
                self._drop(i, x)
            case Rule.MERGE:
                self._absorb(
                    i, j, {y: next(x for x in self.labels[i] if self.table[i, j][x, y] < INF) for y in self.labels[j]}
                )
            case Rule.FOLLOW:
                self._absorb(i, j, {y: self._follower(i, j, y) for y in self.labels[j]})
            case Rule.SEPARABLE:
                t = self.table[i, j]
                r = {x: min(t[x, y] for y in self.labels[j]) for x in self.labels[i]}
                for x in self.labels[i]:
                    self.cost[i][x] += r[x]
                x0 = self.labels[i][0]
                for y in self.labels[j]:
                    self.cost[j][y] += t[x0, y] - r[x0]
                del self.table[i, j], self.table[j, i]
            case Rule.DOMINATED | Rule.OVERFULL:
                self._keep(i, [x for x in self.labels[i] if x != a])
            case Rule.CLIQUE:
                self.count = b + 1
                self.clique.append((i, a))
                self._join_clique(b)
            case Rule.IMPLIED:
                for x, y in self._freed(i, j, b):
                    self.table[i, j][x, y] = self.table[j, i][y, x] = 0
            case Rule.ELIMINATE:
                ends, c = self.near(i), self.cost[i]
                if not ends:
                    self.constant += min(c.values())
                elif len(ends) == 1:
                    for y in self.labels[ends[0]]:
                        self.cost[ends[0]][y] += min(c[x] + self.table[i, ends[0]][x, y] for x in self.labels[i])
                else:
                    one, two = (self.table[i, w] for w in ends)
                    self._add(
                        *ends,
                        {
                            (y, z): min(c[x] + one[x, y] + two[x, z] for x in self.labels[i])
                            for y in self.labels[ends[0]]
                            for z in self.labels[ends[1]]
                        },
                    )
                self._drop(i, self.labels[i][0])
            case _:
                raise AssertionError(rule)

    def _keep(self, i: int, kept: list[int]) -> None:
        self.labels[i] = kept
        self.cost[i] = {x: self.cost[i][x] for x in kept}
        for w in self.near(i):
            self.table[i, w] = {(x, y): c for (x, y), c in self.table[i, w].items() if x in kept}
            self.table[w, i] = {(y, x): c for (y, x), c in self.table[w, i].items() if x in kept}

    def _absorb(self, i: int, j: int, g: dict[int, int]) -> None:
        for y in self.labels[j]:
            self.cost[j][y] += self.table[i, j][g[y], y] + self.cost[i][g[y]]
            for t in self.steps:
                self.used[j][y][t] += self.used[i][g[y]][t]
        for w in self.near(i):
            if w != j:
                self._add(j, w, {(y, z): self.table[i, w][g[y], z] for y in self.labels[j] for z in self.labels[w]})
        self._forget(i)

    def _drop(self, i: int, x: int) -> None:
        for t in self.steps:
            self.base[t] += self.used[i][x][t]
        self._forget(i)

    def _forget(self, i: int) -> None:
        for w in self.near(i):
            del self.table[i, w], self.table[w, i]
        del self.labels[i], self.cost[i], self.used[i]

    def problem_left(self) -> SelectionProblem:
        """P' of the record; usages by single steps."""
        number = {v: k for k, v in enumerate(sorted(self.labels))}
        names = [v.name for v in self.problem.vertices] + [AT_MOST_ONE] * self.count
        vertices = [Vertex(names[v], _array([self.cost[v][a] for a in self.labels[v]])) for v in number]
        pairs = sorted((i, j) for i, j in self.table if i < j)
        tables = [
            np.stack([_array([self.table[i, j][a, b] for b in self.labels[j]]) for a in self.labels[i]])
            for i, j in pairs
        ]
        usages, base = [], dict(self.base)
        for k, t in enumerate(self.steps):
            for v, new in number.items():
                least = min(self.used[v][a][t] for a in self.labels[v])
                base[t] += least
                usages.append(Usage(new, k, k + 1, _array([self.used[v][a][t] - least for a in self.labels[v]])))
        if any(base[t] for t in self.steps) or not number:
            usages += [Usage(len(vertices), k, k + 1, _array([base[t]])) for k, t in enumerate(self.steps)]
            vertices.append(Vertex(BASELINE, _array([0])))
        edges = tuple(Edge(number[i], number[j], k) for k, (i, j) in enumerate(pairs))
        return SelectionProblem(
            "left", tuple(vertices), tuple(tables), edges, tuple(usages), self.limit, int(self.constant)
        ).check()


def reduced(problem: SelectionProblem, record: Reduced, domains: list[list[int]]) -> SelectionProblem | None:
    """The reduced problem, None when a domain is emptied.  Fails when an entry does not apply."""
    state = State(problem, domains)
    for entry in record.log.tolist():
        assert state.applies(*entry, record.steps), entry
        state.apply(*entry, record.steps)
        if any(not d for d in state.labels.values()):
            return None
    return state.problem_left()


def _cost(value: int) -> float:
    return INF if value >= FORBIDDEN else value


def _array(values: list[float]) -> np.ndarray:
    return np.array([FORBIDDEN if v == INF else v for v in values], dtype=np.int64)
