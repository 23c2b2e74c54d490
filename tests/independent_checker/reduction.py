"""Section 5: the log of a reduced record, entry by entry."""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

from .bounds import INFINITE
from .problem import FORBIDDEN, Problem
from .reading import Array, Malformed, Refuted, need

if TYPE_CHECKING:
    from .walk import Walk


class Reduction:
    """The state of a log: `labels[i]` choices left, `cost[i][a]`, `tables[i][j][a, y]`, `pieces[i]`: (rows, amounts)."""

    def __init__(self, p: Problem, domains: list, walk: Walk, rows: list | None) -> None:
        self.p, self.walk, self.outer = p, walk, rows
        self.labels = {v: list(d) for v, d in enumerate(domains)}
        self.cost = {v: {a: min(p.costs[v][a], FORBIDDEN) for a in d} for v, d in enumerate(domains)}
        self.tables = {v: {} for v in self.labels}
        self.count = len(domains)  # vertices so far, those that joined and those that left
        self.constant, self.rows = p.constant, p.steps() if p.limit is not None else []
        self.base = dict.fromkeys(self.rows, 0)
        for u, v, t, rows_, cols in p.edges:
            table = {}
            for a, b in product(domains[u], domains[v]):
                entry = p.tables[t][a if rows_ is None else rows_[a], b if cols is None else cols[b]]
                table[a, b] = min(entry, FORBIDDEN)
            self.join(u, v, table)
        live = [u for u in p.usages if u[1] < u[2]] if p.limit is not None else []
        self.uses = {v: [] for v in self.labels}  # (rows, {choice: amount})
        for v, start, end, amount in live:
            here = frozenset(t for t in self.rows if start <= t < end)
            self.uses[v].append((here, {a: amount[a] for a in domains[v]}))

    def put(self, *terms: int) -> int:
        """A sum of costs in the state."""
        if any(t >= FORBIDDEN for t in terms):
            return FORBIDDEN
        need(-(1 << 57) < sum(terms) < 1 << 57, "costs grow too large", Refuted)
        return sum(terms)

    def join(self, i: int, j: int, table: dict) -> None:
        old = self.tables[i].get(j)
        new = table if old is None else {k: self.put(old[k], n) for k, n in table.items()}
        self.tables[i][j] = new
        self.tables[j][i] = {(b, a): n for (a, b), n in new.items()}

    def cut(self, i: int, j: int) -> dict:
        del self.tables[j][i]
        return self.tables[i].pop(j)

    def at(self, i: int, a: int, t: int) -> int:
        return sum(amount[a] for rows, amount in self.uses[i] if t in rows)

    def there(self, i: int) -> None:
        need(i in self.labels, f"vertex {i} is not there", Refuted)

    def edge(self, i: int, j: int) -> dict:
        self.there(i)
        need(j in self.tables[i], f"no edge between {i} and {j}", Refuted)
        return self.tables[i][j]

    def leave(self, i: int, gone: set) -> None:
        self.labels[i] = [a for a in self.labels[i] if a not in gone]
        self.cost[i] = {a: self.cost[i][a] for a in self.labels[i]}
        for j in self.tables[i]:
            kept = {k: n for k, n in self.tables[i][j].items() if k[0] not in gone}
            self.tables[i][j], self.tables[j][i] = kept, {(b, a): n for (a, b), n in kept.items()}

    def remove(self, i: int, constant: int) -> None:
        """Vertex i leaves; its usage, which must not depend on the choice, goes to the base."""
        for t in self.rows:
            amounts = {self.at(i, a, t) for a in self.labels[i]}
            need(len(amounts) == 1, "usage depends on the choice", Refuted)
            self.base[t] += amounts.pop()
        self.constant += constant
        del self.labels[i], self.cost[i], self.tables[i], self.uses[i]

    def run(self, r: dict) -> tuple[Problem, list] | None:
        log, k = r["log"], 0
        while k < len(log):
            rule, i, a, _ = log[k]
            end = k + 1
            if rule == 9:
                while end < len(log) and log[end][0] == 9:
                    end += 1
                self.overfull(log[k:end])
            elif rule == 10:
                while end < len(log) and log[end][0] == 10 and log[end][3] == log[k][3]:
                    end += 1
                self.clique(log[k:end])
            else:
                self.apply(rule, i, a, log[k][3], r["steps"])
            k = end
            if not all(self.labels.values()):
                return None
        return self.finish()

    def apply(self, rule: int, i: int, j: int, k: int, steps: list) -> None:
        need(rule in (*range(1, 9), 11), f"unknown rule {rule}", Refuted)
        if rule == 1:
            need(0 <= i < len(steps), "list of steps", Refuted)
            kept = steps[i].numbers
            need(len(steps[i].shape) == 1, "list of steps", Refuted)
            need(all(a < b for a, b in pairwise(kept)), "steps do not ascend", Refuted)
            need(set(kept) <= set(self.rows) and len(kept) < len(self.rows), "rows to keep", Refuted)
            self.rows = list(kept)
            return
        self.there(i)
        if rule == 2:
            if j == -1:
                gone = {a for a in self.labels[i] if self.cost[i][a] >= FORBIDDEN}
            else:
                table = self.edge(i, j)
                gone = {a for a in self.labels[i] if all(table[a, y] >= FORBIDDEN for y in self.labels[j])}
            need(gone, "no choice leaves", Refuted)
            self.leave(i, gone)
        elif rule == 3:
            need(len(self.labels[i]) == 1, "more than one choice", Refuted)
            (a,) = self.labels[i]
            need(self.cost[i][a] < FORBIDDEN, "its choice is forbidden", Refuted)
            for w in list(self.tables[i]):
                table = self.cut(i, w)
                self.cost[w] = {y: self.put(c, table[a, y]) for y, c in self.cost[w].items()}
            self.remove(i, self.cost[i][a])
        elif rule == 4:
            table, g = self.edge(j, i), {}
            for y in self.labels[j]:
                partners = [a for a in self.labels[i] if table[y, a] < FORBIDDEN]
                need(len(partners) == 1, "not exactly one partner", Refuted)
                g[y] = partners[0]
            self.absorb(i, j, g)
        elif rule == 5:
            table = self.edge(i, j)
            need(len(self.tables[i]) == 1, "has another neighbour", Refuted)
            self.absorb(i, j, {y: self.follower(i, y, table) for y in self.labels[j]})
        elif rule == 6:
            table, first = self.edge(i, j), self.labels[i][0]
            r = {a: min(table[a, y] for y in self.labels[j]) for a in self.labels[i]}
            d = {y: table[first, y] - r[first] for y in self.labels[j]}
            right = all(n < FORBIDDEN and n == r[a] + d[y] for (a, y), n in table.items())
            need(right, "not a sum of a row and a column", Refuted)
            self.cut(i, j)
            self.cost[i] = {a: self.put(c, r[a]) for a, c in self.cost[i].items()}
            self.cost[j] = {y: self.put(c, d[y]) for y, c in self.cost[j].items()}
        elif rule == 7:
            need({j, k} <= set(self.labels[i]) and j != k, "a choice is not there", Refuted)
            need(self.dominated(i, j, k), "not dominated", Refuted)
            self.leave(i, {j})
        elif rule == 8:
            self.eliminate(i)
        else:
            self.free(i, j, k)

    def follower(self, i: int, y: int, table: dict) -> int:
        sums = {a: self.put(c, table[a, y]) for a, c in self.cost[i].items()}
        allowed = [a for a in self.labels[i] if sums[a] < FORBIDDEN]
        if not allowed:
            return min(self.labels[i], key=lambda a: (self.weight(i, a), a))
        for a in allowed:
            if sums[a] == min(sums.values()) and all(
                self.at(i, a, t) <= self.at(i, b, t) for b in allowed for t in self.rows
            ):
                return a
        raise Refuted("no choice is cheapest and uses least")

    def weight(self, i: int, a: int) -> int:
        """Usage beyond the least, once per piece: rows that the same usages are live at, side by side."""
        out, before = 0, None
        for t in self.rows:
            here = [t in rows for rows, _ in self.uses[i]]
            if here != before:
                out += self.at(i, a, t) - min(self.at(i, b, t) for b in self.labels[i])
            before = here
        return out

    def absorb(self, i: int, j: int, g: dict) -> None:
        table = self.cut(j, i)
        self.cost[j] = {y: self.put(c, table[y, g[y]], self.cost[i][g[y]]) for y, c in self.cost[j].items()}
        for w in list(self.tables[i]):
            moved = self.cut(i, w)
            self.join(j, w, {(y, z): moved[g[y], z] for y in g for z in self.labels[w]})
        self.uses[j] += [(rows, {y: amount[a] for y, a in g.items()}) for rows, amount in self.uses[i]]
        del self.labels[i], self.cost[i], self.tables[i], self.uses[i]

    def dominated(self, i: int, a: int, b: int) -> bool:
        """Choice a may leave because b stays."""
        terms: list[float] = [INFINITE if self.cost[i][a] >= FORBIDDEN else self.cost[i][a] - self.cost[i][b]]
        if self.cost[i][b] >= FORBIDDEN:
            return False
        for j, table in self.tables[i].items():
            pairs = [(table[a, y], table[b, y]) for y in self.labels[j] if table[a, y] < FORBIDDEN]
            terms.append(min((-INFINITE if o >= FORBIDDEN else n - o for n, o in pairs), default=INFINITE))
        if -INFINITE in terms or sum(terms) < 0:
            return False
        return all(self.at(i, b, t) <= self.at(i, a, t) for t in self.rows)

    def eliminate(self, i: int) -> None:
        ends = list(self.tables[i])
        need(len(ends) <= 2, "has more than two neighbours", Refuted)
        tables = [self.cut(i, w) for w in ends]
        if not ends:
            least = min(self.cost[i].values())
            need(least < FORBIDDEN, "every choice is forbidden", Refuted)
            self.remove(i, least)
            return
        found = {}
        for y in product(*(self.labels[w] for w in ends)):
            parts = ([c, *(t[a, z] for t, z in zip(tables, y, strict=True))] for a, c in self.cost[i].items())
            sums = [sum(part) for part in parts if all(n < FORBIDDEN for n in part)]
            found[y] = self.put(min(sums)) if sums else FORBIDDEN
        if len(ends) == 2:
            self.join(*ends, found)
        else:
            self.cost[ends[0]] = {y: self.put(c, found[y,]) for y, c in self.cost[ends[0]].items()}
        self.remove(i, 0)

    def overfull(self, entries: list) -> None:
        need(self.p.limit is not None, "the problem has no limit", Refuted)
        gone: dict[int, set] = {}
        for _, i, a, t in entries:
            self.there(i)
            need(a in self.labels[i] and t in self.rows, "choice or step is not there", Refuted)
            others = sum(min(self.at(v, b, t) for b in self.labels[v]) for v in self.labels if v != i)
            need(self.base[t] + self.at(i, a, t) + others > self.p.limit, "the choice fits", Refuted)
            need(a not in gone.setdefault(i, set()), "a choice leaves twice", Refuted)
            gone[i].add(a)
        for i, choices in gone.items():
            self.leave(i, choices)
        steps = {self.walk.original(t, self.outer) for *_, t in entries}
        self.walk.rests_steps |= steps
        self.walk.met_steps |= steps

    def clique(self, entries: list) -> None:
        """One vertex joins, whose choice says which of the vertices named takes a choice named of it."""
        named: dict[int, list] = {}
        for _, i, a, h in entries:
            self.there(i)
            need(h == self.count and a in self.labels[i], "number or choice", Refuted)
            need(a not in named.setdefault(i, []), "a choice is named twice", Refuted)
            named[i].append(a)
        for i, j in product(named, named):
            if i != j:
                table = self.edge(i, j)
                need(all(table[a, b] >= FORBIDDEN for a in named[i] for b in named[j]), "go together", Refuted)
        h, self.count = self.count, self.count + 1
        self.labels[h] = list(range(1 + len(named)))
        self.cost[h], self.tables[h], self.uses[h] = dict.fromkeys(self.labels[h], 0), {}, []
        for k, (i, mine) in enumerate(named.items(), 1):
            pairs = product(self.labels[h], self.labels[i])
            self.join(h, i, {(c, a): 0 if (c == k) == (a in mine) else FORBIDDEN for c, a in pairs})

    def free(self, i: int, j: int, h: int) -> None:
        """What h excludes, the table of i and j need not."""
        table, one, other = self.edge(i, j), self.edge(i, h), self.edge(j, h)
        excluded = {
            (a, b)
            for (a, b), n in table.items()
            if n >= FORBIDDEN and all(max(one[a, y], other[b, y]) >= FORBIDDEN for y in self.labels[h])
        }
        need(excluded, "nothing is excluded twice", Refuted)
        new = {pair: 0 if pair in excluded else n for pair, n in table.items()}
        self.tables[i][j], self.tables[j][i] = new, {(b, a): n for (a, b), n in new.items()}

    def finish(self) -> tuple[Problem, list]:
        left = sorted(self.labels)
        number = {v: k for k, v in enumerate(left)}
        costs = [[self.cost[v][a] for a in self.labels[v]] for v in left]
        tables, edges, usages = [], [], []
        for u in left:
            for w in sorted(w for w in self.tables[u] if w > u):
                shape = len(self.labels[u]), len(self.labels[w])
                numbers = [self.tables[u][w][a, b] for a in self.labels[u] for b in self.labels[w]]
                edges.append((number[u], number[w], len(tables), None, None))
                tables.append(Array(shape, numbers))
        for row, t in enumerate(self.rows):
            for v in left:
                amounts = [self.at(v, a, t) for a in self.labels[v]]
                self.base[t] += min(amounts)
                if any(n > min(amounts) for n in amounts):
                    usages.append((number[v], row, row + 1, [n - min(amounts) for n in amounts]))
        if any(self.base[t] for t in self.rows) or not left:
            costs.append([0])
            usages += [(len(left), k, k + 1, [self.base[t]]) for k, t in enumerate(self.rows) if self.base[t]]
        need(abs(self.constant) < 1 << 57, "the constant grows too large", Refuted)
        limit = self.p.limit
        reduced = Problem(costs, tables, edges, usages, limit, self.constant)
        try:
            reduced.check()
        except Malformed as error:
            raise Refuted(f"the reduced problem: {error}") from None
        return reduced, [self.walk.original(t, self.outer) for t in self.rows]
