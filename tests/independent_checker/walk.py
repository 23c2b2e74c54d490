"""Section 5: the walk over the records."""

from __future__ import annotations

from .bounds import INFINITE, covering, dual, eliminate, multipliers, near, weighted
from .problem import FORBIDDEN, Problem
from .reading import Refuted, need
from .reduction import Reduction


class Walk:
    """The walk over the records: `below(record, problem, domains, ...)` gives B in units of the problem's costs."""

    def __init__(self, records: list[dict], ub: float, bits: int, vertices: int) -> None:
        self.records, self.ub, self.bits = records, ub, bits
        self.coarse_ub = ub if ub == INFINITE else -(-int(ub) >> bits)
        self.vertices = vertices
        self.rests_steps, self.rests_vertices = set(), set()
        self.met_steps, self.met_vertices = set(), set()
        self.cheapest = INFINITE

    def fine(self, bound: float) -> float:
        return bound if bound in (INFINITE, -INFINITE) else int(bound) << self.bits

    def below(self, number: int, p: Problem, domains: list, rows: list | None) -> float:
        """B of a record.  `rows`: None for the problem of the claim, else what the steps of a reduced one stand for."""
        r = self.records[number]
        if rows is None and r["kind"] not in ("split", "row-conflict", "open"):
            self.met_vertices |= set(range(self.vertices))
        match r["kind"]:
            case "dual":
                return self.then(r, *dual(p, r, domains, self.coarse_ub), p, domains, rows)
            case "split":
                parts = covering(p, r, domains)
                if rows is None:
                    self.met_vertices.add(r["vertex"])
                found = [INFINITE]
                for part, child in zip(parts, r["children"], strict=True):
                    inner = [part if v == r["vertex"] else d for v, d in enumerate(domains)]
                    found.append(self.below(child, p, inner, rows))
                return min(found)
            case "elimination":
                if r["fine"]:
                    need(p.digits is not None, "no fine part", Refuted)
                    need(not r["messages"] and not r["then"], "a fine elimination holds nothing else", Refuted)
                    return eliminate(p, r, domains, True)[0]
                b, steps = eliminate(p, r, domains, False)
                wanted = r["then"] and self.fine(b) < self.ub
                left = domains if self.ub == INFINITE or not wanted else near(p, steps, domains, self.coarse_ub - 1 - b)
                return self.then(r, b, left if wanted else None, p, domains, rows)
            case "row-conflict":
                self.conflict(p, r, domains, rows)
                return INFINITE
            case "point":
                return self.point(p, domains, rows)
            case "open":
                return -INFINITE
        self.rests_vertices |= set(range(self.vertices))
        found = Reduction(p, domains, self, rows).run(r)
        if found is None:
            return INFINITE
        inner, inner_rows = found
        return self.below(r["then"][0], inner, [list(range(len(c))) for c in inner.costs], inner_rows)

    def then(self, r: dict, b: float, left: list | None, p: Problem, domains: list, rows: list | None) -> float:
        if left is None or not r["then"]:
            return self.fine(b)
        if not all(left):
            return INFINITE
        return max(self.fine(b), self.below(r["then"][0], p, left, rows))

    def original(self, t: int, rows: list | None) -> int:
        return t if rows is None else rows[t] if 0 <= t < len(rows) else -1

    def conflict(self, p: Problem, r: dict, domains: list, rows: list | None) -> None:
        multipliers(p, r["multipliers"])
        need(r["multipliers"], "names no row", Refuted)
        total, terms = 0, set()
        for v, domain in enumerate(domains):
            allowed = [a for a in domain if p.costs[v][a] < FORBIDDEN]
            least = min((weighted(p, r["multipliers"], v, a) for a in allowed), default=INFINITE)
            total += least
            if least not in (0, INFINITE):
                terms.add(v)
        need(total > p.limit * sum(n for _, n in r["multipliers"]), "the rows can be met", Refuted)
        live = {t for t, _ in r["multipliers"] if any(u[1] <= t < u[2] for u in p.usages)}
        steps = {self.original(t, rows) for t in live}
        self.rests_steps |= steps
        self.met_steps |= steps
        if rows is None:
            self.rests_vertices |= terms
            self.met_vertices |= {u[0] for u in p.usages if any(u[1] <= t < u[2] for t, _ in r["multipliers"])}

    def point(self, p: Problem, domains: list, rows: list | None) -> float:
        need(all(len(d) == 1 for d in domains), "more than one choice is left", Refuted)
        x = [d[0] for d in domains]
        cost, forbidden = p.cost(x)
        if forbidden:
            return INFINITE
        peak, step = p.peak(x)
        if p.limit is not None and peak > p.limit:
            self.met_steps.add(self.original(step, rows))
            return INFINITE
        if p.digits is None:
            cost <<= self.bits
        if rows is None:
            self.cheapest = min(self.cheapest, cost)
        return cost
