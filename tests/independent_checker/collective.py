"""Sections 6 and 7: placements and collective programs; states are tuples of sets, nothing is packed into bits."""

from __future__ import annotations

import json
from itertools import pairwise
from math import lcm, prod

from .collective_cost import Machine, Step
from .reading import Malformed, Pool, Refuted, need, parse_json, read_members

KINDS = ("AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast")
AR, RS, AG, R, B = KINDS
READINGS = {
    "paper": ((AR,), ""),
    "vacuous": ((), "skip"),
    "guarded_ag": ((AR, RS, AG, R), "guarded"),
    "guarded_b": ((AR, RS, R, B), "guarded"),
    "strict_a": ((AR, AG, B), "strict"),
    "strict_b": ((AR, RS, R, B), "strict"),
    "literal": (KINDS, ""),
    "literal_first": (KINDS, "first"),
    "strict_all": (KINDS, "strict"),
    "no_master": ((), ""),
    "paper_first": ((AR,), "first not-last"),
    "paper_first_last": ((AR,), "first"),
}
"""Collectives of Master, and what else the reading says."""

SEVERITY = ("proved", "undecided", "refuted", "malformed")


def exponents(n: int) -> dict[int, int]:
    out: dict[int, int] = {}
    p = 2
    while n > 1:
        while n % p == 0:
            out[p] = out.get(p, 0) + 1
            n //= p
        p += 1
    return out


def tables(rows: tuple[int, ...], columns: tuple[int, ...]) -> int:
    """Number of tables of integers >= 0 with these sums."""
    if not columns:
        return int(not any(rows))

    def taken(left: tuple[int, ...], rest: int) -> list[tuple[int, ...]]:
        if not left:
            return [()] if rest == 0 else []
        return [(left[0] - t, *more) for t in range(min(left[0], rest) + 1) for more in taken(left[1:], rest - t)]

    return sum(tables(after, columns[1:]) for after in taken(rows, columns[0]))


def check_placements(head: dict) -> None:
    hierarchy, axes, matrices = head["hierarchy"], head["axes"], head["matrices"]
    need(hierarchy and axes, "empty hierarchy or axes", Refuted)
    for m in matrices:
        need(len(m) == len(axes) and all(len(row) == len(hierarchy) for row in m), "shape of a matrix", Refuted)
        need([prod(row) for row in m] == axes, "product of a row", Refuted)
        need([prod(column) for column in zip(*m, strict=True)] == hierarchy, "product of a column", Refuted)
    need(len({json.dumps(m) for m in matrices}) == len(matrices), "a matrix is listed twice", Refuted)
    found = {n: exponents(n) for n in (*hierarchy, *axes)}
    primes = {q for e in found.values() for q in e}
    wanted = prod(
        tables(*(tuple(found[n].get(q, 0) for n in part) for part in (axes, hierarchy)))  # type: ignore[arg-type]
        for q in primes
    )
    need(len(matrices) == wanted, f"{len(matrices)} of {wanted} matrices", Refuted)


class System:
    """`tree[l]`: blocks (start, stop); `members`: devices by position, per copy; `wanted[p]`: positions to be summed."""

    def __init__(self, request: dict) -> None:
        need(request["reading"] in READINGS, "unknown reading", Refuted)
        self.masters, self.rules = READINGS[request["reading"]]
        if request["kind"] == "uneven":
            ends = [sum(request["nodes"][:i]) for i in range(len(request["nodes"]) + 1)]
            n = ends[-1]
            levels = [[(0, n)], list(pairwise(ends)), [(i, i + 1) for i in range(n)]]
            self.tree, self.members, self.wanted = levels, [list(range(n))], [frozenset(range(n))] * n
            self.chunks = lcm(n, *(b - a for level in levels for a, b in level))
        else:
            self.regular(request)
        self.n = len(self.wanted)
        self.start = tuple((frozenset([p]),) * self.chunks for p in range(self.n))
        self.goal = tuple((frozenset(w),) * self.chunks for w in self.wanted)
        self.options = self.all_groups()

    def regular(self, request: dict) -> None:
        sizes, x, reduce = request["hierarchy"], request["matrix"], request["reduce"]
        levels, axes = range(len(sizes)), range(len(x))
        need([prod(column) for column in zip(*x, strict=True)] == sizes, "matrix", Refuted)
        need(reduce == sorted(set(reduce)) and set(reduce) <= set(axes), "axes to reduce", Refuted)
        need(prod(prod(x[r]) for r in reduce) > 1, "nothing to reduce", Refuted)
        devices = prod(sizes)
        digits = []
        for d in range(devices):
            rest, at = d, {}
            for j in reversed(levels):
                rest, c = divmod(rest, sizes[j])
                for i in reversed(axes):
                    c, at[i, j] = divmod(c, x[i][j])
            digits.append(at)
        by_row = [(r, j) for r in reduce for j in levels]
        cells = by_row if request["order"] == "row-major" else [(r, j) for j in levels for r in reduce]
        groups: dict[tuple[int, ...], list[int]] = {}
        for d in range(devices):
            groups.setdefault(tuple(digits[d][i, j] for j in levels for i in axes if i not in reduce), []).append(d)
        ordered = sorted(sorted(g, key=lambda d: [digits[d][c] for c in cells]) for g in groups.values())
        children = {
            "d-collapsed": [prod(x[r][j] for r in reduce) for j in levels],
            "d": [x[i][j] for i, j in cells],
            "a": sizes,
            "b": [x[i][j] for j in levels for i in axes],
            "c": [x[i][j] for i in axes for j in levels],
        }[request["synthesis"]]
        n = step = prod(children)
        self.chunks, self.tree = n, [[(0, n)]]
        for size in children:
            step //= size
            self.tree.append([(a, a + step) for a in range(0, n, step)])
        self.members, self.wanted = ordered, [frozenset(range(n))] * n
        if request["synthesis"] in "abc":
            every = list(range(devices))
            if request["synthesis"] == "c":
                every.sort(key=lambda d: [digits[d][i, j] for i in axes for j in levels])
            place = {d: p for p, d in enumerate(every)}
            self.members = [every]
            self.wanted = [frozenset(place[q] for g in ordered if d in g for q in g) for d in every]

    def groups(self, level: int, form: str, ancestor: int | None) -> tuple[tuple[int, ...], ...]:
        blocks = self.tree[level]
        if form == "InsideGroup":
            return tuple(tuple(range(a, b)) for a, b in blocks if b - a > 1)
        out = []
        for start, stop in self.tree[ancestor or 0]:
            inside = [(a, b) for a, b in blocks if start <= a and b <= stop]
            offsets = max(b - a for a, b in inside) if form == "Parallel" else 1
            out += [tuple(a + k for a, b in inside if a + k < b) for k in range(offsets)]
            if form == "Master" and "first" in self.rules.split():
                break
        return tuple(sorted(g for g in out if len(g) > 1))

    def all_groups(self) -> dict:
        """Groups -> the first form that has them."""
        out: dict[tuple, str] = {}
        for level in range(len(self.tree)):
            forms: list = [("InsideGroup", None), *(("Parallel", e) for e in range(level))]
            if self.masters and not ("not-last" in self.rules and level == len(self.tree) - 1):
                forms += [("Master", e) for e in range(level)]
            for form, e in forms:
                if found := self.groups(level, form, e):
                    out.setdefault(found, form)
        return out

    def allowed(self, groups: tuple) -> tuple[str, ...]:
        return self.masters if self.options[groups] == "Master" else KINDS

    def apply(self, state: tuple, groups: tuple, kind: str) -> tuple | None:
        if self.options[groups] == "Master" and "guarded" in self.rules:
            inside = {p for g in groups for p in g}
            if any(held(s) for p, s in enumerate(state) if p not in inside):
                return None
        out = list(state)
        for g in groups:
            after = self.group([state[p] for p in g], kind)
            if after is None:
                return None
            for p, s in zip(g, after, strict=True):
                out[p] = s
        return tuple(out)

    def group(self, members: list, kind: str) -> list | None:
        m, root, chunks = len(members), members[0], range(self.chunks)
        union = tuple(frozenset().union(*(s[i] for s in members)) for i in chunks)
        if kind in (AR, RS, R):
            if "skip" in self.rules and not any(map(held, members)):
                return members
            mine = held(root)
            twice = any(len(union[i]) < sum(len(s[i]) for s in members) for i in chunks)
            if not mine or twice or any(held(s) != mine for s in members):
                return None
            if kind == AR:
                return [union] * m
            if kind == R:
                return [union, *[(frozenset(),) * self.chunks] * (m - 1)]
            part, rest = divmod(len(mine), m)
            own = [set(mine[j * part : (j + 1) * part]) for j in range(m)]
            return None if rest else [tuple(union[i] if i in o else frozenset() for i in chunks) for o in own]
        if kind == AG:
            fits = all(map(held, members)) and all(sum(bool(s[i]) for s in members) < 2 for i in chunks)
            return [union] * m if fits else None
        equal = sum(s == root for s in members[1:])
        if not held(root) or union != root or equal == m - 1 or ("strict" in self.rules and equal):
            return None
        return [root] * m

    def moved(self, before: tuple, after: tuple, groups: tuple, kind: str) -> list[int]:
        source = after if kind == AG else before
        return [len(held(source[g[0]])) for g in groups]


def held(state: tuple) -> list[int]:
    """Rows that are not empty, ascending."""
    return [i for i, s in enumerate(state) if s]


class Checked:
    """A part with its verdict, cost and bound."""

    def __init__(self, part: dict, costs: list, machines: list[Machine], pool: Pool) -> None:
        self.part, self.verdict = part, "proved"
        self.cost: int | None = None
        self.bound: int | None = None
        claim = part["claim"]
        try:
            self.system = System(part["request"])
            if claim["kind"] == "correct":
                self.run(claim["program"])
            elif claim["kind"] == "cheapest":
                self.spec = costs[claim["model"]]
                self.machine = machines[self.spec["machine"]]
                self.cheapest(claim, pool.numbers(part["potentials"]))
            else:
                self.counted(claim)
        except Refuted:
            self.verdict, self.cost, self.bound = "refuted", None, None

    def run(self, program: list) -> list:
        s, state, steps = self.system, self.system.start, []
        for level, form, ancestor, kind in program:
            inside = form == "InsideGroup"
            need(
                0 <= level < len(s.tree) and (inside or (ancestor is not None and ancestor < level)), "levels", Refuted
            )
            groups = s.groups(level, form, ancestor)
            need(groups in s.options and kind in s.allowed(groups), "no such instruction", Refuted)
            after = s.apply(state, groups, kind)
            need(after is not None, "does not apply", Refuted)
            steps.append((kind, groups, s.moved(state, after, groups, kind)))
            state = after
        need(state == s.goal, "does not reach the goal", Refuted)
        return steps

    def price(self, kind: str, groups: tuple, rows: list[int]) -> int:
        members = self.system.members
        devices = [tuple(row[p] for p in g) for row in members for g in groups]
        return Step(self.spec, self.machine, kind, devices, rows * len(members), self.system.chunks).time()

    def cheapest(self, claim: dict, phi: list[int]) -> None:
        request, machine = self.part["request"], self.machine
        if request["kind"] == "placement":
            need(not self.spec["devices"] and machine.sizes == request["hierarchy"], "another machine", Refuted)
        else:
            nodes = [d // (machine.devices // machine.sizes[0]) for d in self.spec["devices"]]
            counts = [nodes.count(v) for v in dict.fromkeys(nodes)]
            need(nodes == sorted(nodes) and counts == request["nodes"], "another mask", Refuted)
        self.cost = sum(self.price(*step) for step in self.run(claim["program"]))
        need(self.cost == claim["cost"], "another cost", Refuted)
        self.bound = self.shown(phi)
        self.verdict = "proved" if self.bound >= self.cost else "undecided"

    def shown(self, phi: list[int]) -> int:
        """What the potentials prove."""
        if not phi:
            return 0
        states, number, edges = self.expand(len(phi))
        need(len(phi) <= len(states), "more potentials than states", Refuted)
        value = dict(enumerate(phi))
        need(value.get(number.get(self.system.goal, -1), 0) <= 0, "potential of the goal", Refuted)
        known: dict[tuple, int] = {}
        for s, found in enumerate(edges):
            for kind, groups, rows, t in found:
                key = (kind, groups, tuple(rows))
                if key not in known:
                    known[key] = self.price(kind, groups, rows)
                need(value[s] <= known[key] + value.get(t, 0), f"potential of state {s}", Refuted)
        return phi[0]

    def expand(self, most: int | None) -> tuple[list, dict, list]:
        """(states, their numbers, steps from the first `most` of them: collective, groups, rows, target)."""
        s = self.system
        states, number, edges = [s.start], {s.start: 0}, []
        while len(edges) < len(states) and (most is None or len(edges) < most):
            state, found = states[len(edges)], []
            for groups in s.options if state != s.goal else ():
                for kind in s.allowed(groups):
                    after = s.apply(state, groups, kind)
                    if after is None or after == state:
                        continue
                    if after not in number:
                        number[after] = len(states)
                        states.append(after)
                    found.append((kind, groups, s.moved(state, after, groups, kind), number[after]))
            edges.append(found)
        return states, number, edges

    def counted(self, claim: dict) -> None:
        _, number, edges = self.expand(None)
        goal = number.get(self.system.goal)
        if claim["kind"] == "impossible":
            need(goal is None, "the goal can be reached", Refuted)
            return
        ways, lengths = ({} if goal is None else {goal: 1}), []
        while True:
            lengths.append(ways.get(0, 0))
            ways = {s: n for s, found in enumerate(edges) if (n := sum(ways.get(t, 0) for *_, t in found))}
            if not ways:
                break
        need(lengths == claim["lengths"], f"programs by length are {lengths}", Refuted)


def best(claim: dict, matrices: list, parts: list[Checked]) -> str:
    known: dict[tuple, tuple[int, int]] = {}
    for p in parts:
        request = p.part["request"]
        if p.part["claim"]["kind"] == "cheapest" and p.cost is not None and request.get("synthesis") == "d-collapsed":
            key = json.dumps(request["matrix"]), tuple(request["reduce"]), request["order"], p.part["claim"]["model"]
            known[key] = p.cost, p.bound or 0
    if len({p.part["request"]["reading"] for p in parts}) != 1:
        return "refuted"
    sums = []
    for m in matrices:
        cost = bound = 0
        for t in claim["terms"]:
            orders = claim["orders"] if len(t["reduce"]) > 1 else claim["orders"][:1]
            found = [known.get((json.dumps(m), tuple(t["reduce"]), order, t["model"])) for order in orders]
            if None in found:
                return "refuted"
            cost += t["weight"] * min(f[0] for f in found if f)
            bound += t["weight"] * min(f[1] for f in found if f)
        sums.append((cost, bound))
    if not claim["terms"] or sums[claim["matrix"]][0] != claim["cost"]:
        return "refuted"
    return "proved" if min(bound for _, bound in sums) >= claim["cost"] else "undecided"


def check_collective(data: bytes) -> str:
    """The verdict on a file of placements or collective programs (well-formedness below its members is not judged)."""
    try:
        members = read_members(data)
        found, placements = [], None
        if "placement.json" in members:
            placements = parse_json(members["placement.json"][0])
            try:
                check_placements(placements)
                found.append("proved")
            except Refuted:
                found.append("refuted")
        if "reduction.json" in members:
            head = parse_json(members["reduction.json"][0])
            pool = Pool(members, "reduction", head["shapes"])
            machines = [Machine(text) for text in head["machines"]]
            parts = [Checked(part, head["costs"], machines, pool) for part in head["parts"]]
            found += [p.verdict for p in parts]
            if head["best"] is not None:
                complete = placements is not None and found[0] == "proved"
                found.append(best(head["best"], placements["matrices"], parts) if complete else "refuted")
        return max(found, key=SEVERITY.index, default="undecided")
    except Malformed:
        return "malformed"
