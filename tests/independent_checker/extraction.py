"""Section 11: extractions from e-graphs."""

from __future__ import annotations

import gzip
import hashlib
import json
from decimal import Decimal
from fractions import Fraction
from math import gcd

from .reading import Malformed, Refuted, fields, integer, items, need, parse_json, read_members, text

FAR = 1 << 40


class Graph:
    """An e-graph as numbers."""

    def __init__(self, data: bytes) -> None:
        raw = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(raw, parse_float=Decimal)
        nodes = document["nodes"]
        classes: dict[str, int] = {}
        for entry in nodes.values():
            classes.setdefault(entry["eclass"], len(classes))
        self.owner = [classes[e["eclass"]] for e in nodes.values()]
        place = {n: i for i, n in enumerate(nodes)}
        self.kids = [{self.owner[place[k]] for k in e.get("children", [])} for e in nodes.values()]
        costs = [Fraction(e.get("cost", 1)) for e in nodes.values()]
        scale = 1
        while any((c * scale).denominator > 1 for c in costs):
            scale *= 10
        self.cost = [int(c * scale) for c in costs]
        self.classes = len(classes)
        asked = dict.fromkeys(document["root_eclasses"])
        self.roots = sorted(classes[r] for r in asked if r in classes)
        head = {
            "format": "shardproof-egraph/1",
            "classes": list(classes),
            "nodes": list(nodes),
            "owner": self.owner,
            "children": [sorted(k) for k in self.kids],
            "cost": self.cost,
            "scale": scale,
            "roots": self.roots,
            "absent": [r for r in asked if r not in classes],
        }
        self.sha256 = hashlib.sha256(json.dumps(head, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def check(self, claim: dict) -> None:
        """Whether the chosen nodes are an extraction of the cost that is claimed."""
        choice: dict[int, int] = {}
        for n in claim["chosen"]:
            need(n < len(self.owner) and self.owner[n] not in choice, f"chosen node {n}", Refuted)
            choice[self.owner[n]] = n
        reached, new = set(), set(self.roots)
        while new:
            need(new <= set(choice), "a needed class has no node", Refuted)
            reached |= new
            new = {d for c in new for d in self.kids[choice[c]]} - reached
        need(reached == set(choice), "a node that nothing needs", Refuted)
        done: set[int] = set()
        while more := {c for c in reached - done if self.kids[choice[c]] <= done}:
            done |= more
        need(done == reached, "a circle", Refuted)
        need(sum(self.cost[n] for n in choice.values()) == claim["cost"], "another cost", Refuted)

    def ground(self, pairs: list[int]) -> None:
        """Take away what costs nothing, what needs its own class, and what is dominated."""
        signed = any(c < 0 for c in self.cost)
        free: set[int] = set()
        while not signed:
            more = {c for c, k, w in zip(self.owner, self.kids, self.cost, strict=True) if w == 0 and k <= free} - free
            if not more:
                break
            free |= more
        left = {n for n, c in enumerate(self.owner) if c not in free and c not in self.kids[n]}
        self.kids = [k - free for k in self.kids]
        for n, m in zip(pairs[::2], pairs[1::2], strict=True):
            fits = n != m and {n, m} <= left and self.owner[n] == self.owner[m] and self.cost[m] <= self.cost[n]
            need(fits and not signed and self.kids[m] <= self.kids[n], f"pair {n}, {m}", Refuted)
            left.discard(n)
        self.nodes, self.known = left, set(range(self.classes)) - free
        self.roots = [r for r in self.roots if r not in free]
        self.members = [[n for n in sorted(left) if self.owner[n] == c] for c in range(self.classes)]


Case = tuple[set[int], set[int]]


def narrowed(g: Graph, allowed: set[int], needed: set[int]) -> Case | None:
    extractable: set[int] = set()
    while more := {g.owner[n] for n in allowed if g.kids[n] <= extractable} - extractable:
        extractable |= more
    allowed = {n for n in allowed if g.kids[n] <= extractable}
    reached, new = set(), set(g.roots)
    while new:
        reached |= new
        new = {d for n in allowed if g.owner[n] in new for d in g.kids[n]} - reached
    allowed = {n for n in allowed if g.owner[n] in reached}
    if not needed <= reached:
        return None
    while True:
        before = set(needed)
        for c in before:
            found = [g.kids[n] for n in g.members[c] if n in allowed]
            if not found:
                return None
            needed = needed | set.intersection(*found)
        if needed == before:
            return allowed, needed


class Proof:
    """The records of a certificate about an e-graph."""

    def __init__(self, g: Graph, cuts: list[dict], records: list[dict], upper: int) -> None:
        self.g, self.cuts, self.records, self.upper = g, cuts, records, upper
        self.step = gcd(*g.cost) or 1

    def below(self, number: int, case: Case, above: int | None) -> int | None:
        """B of a record; None if it is infinite."""
        record = self.records[number]
        if record["kind"] == "split":
            return self.split(record, case, above)
        found = self.dual(record, case)
        if found is None:
            return None
        bound, case = found
        above = bound if above is None else max(above, bound)
        if not record["then"] or above >= self.upper:
            return above
        rest = narrowed(self.g, *case)
        return None if rest is None else self.below(record["then"][0], rest, above)

    def split(self, record: dict, case: Case, above: int | None) -> int | None:
        allowed, needed = case
        c, members = record["class"], set()
        need(c < self.g.classes, "a class that is not there", Refuted)
        members = set(self.g.members[c])
        covered = {n for part in record["parts"] for n in part}
        need(allowed & members <= covered and (c in needed or -1 in covered), "not all choices are covered", Refuted)
        found = []
        for part, then in zip(record["parts"], record["then"], strict=True):
            new = narrowed(self.g, allowed - (members - set(part)), needed if -1 in part else needed | {c})
            if new is not None:
                found.append(self.below(then, new, above))
        return min((b for b in found if b is not None), default=None)

    def dual(self, record: dict, case: Case) -> tuple[int, Case] | None:
        g, q, (allowed, needed) = self.g, record["denominator"], case
        need(q >= 1, "denominator", Refuted)
        theta = {n: q * g.cost[n] for n in g.nodes}

        def row(m: int, plus: set[int], minus: set[int]) -> None:
            need(m >= 0, "a negative multiplier", Refuted)
            for n in plus:
                theta[n] += m
            for n in minus:
                theta[n] -= m

        def of(c: int) -> set[int]:
            need(c in g.known, "a class that is not there", Refuted)
            return set(g.members[c])

        def users(d: int) -> set[int]:
            return {n for n in g.nodes if d in g.kids[n]}

        for c, d, m in zip(*[iter(record["children"])] * 3, strict=True):
            row(m, of(c) & users(d), of(d))
        for d, m in zip(*[iter(record["parents"])] * 2, strict=True):
            need(d not in g.roots, "a parent row of a root", Refuted)
            row(m, of(d), users(d))
        for k, m in zip(*[iter(record["cuts"])] * 2, strict=True):
            need(0 <= k < len(self.cuts), "a cut that is not there", Refuted)
            inside, top = self.cuts[k]["classes"], self.cuts[k]["top"]
            need(inside == sorted(set(inside)) and top in inside, "a cut that is none", Refuted)
            nodes = {n for c in inside for n in of(c)}
            row(m, of(top), {n for n in nodes if not g.kids[n] & set(inside)})
        least = []
        for c in range(g.classes):
            values = [theta[n] for n in g.members[c] if n in allowed] + ([] if c in needed else [0])
            if not values:
                return None
            least.append(min(values))
        total = sum(least)
        bound = -(-total // (self.step * q)) * self.step
        if bound < self.upper:
            limit = q * (self.upper - self.step)
            allowed = {n for n in allowed if total - least[g.owner[n]] + theta[n] <= limit}
            needed = needed | {c for c in range(g.classes) if total - least[c] > limit}
        return bound, (allowed, needed)


def read(data: bytes) -> dict:
    members = read_members(data)
    need("extraction.json" in members and members["extraction.json"][1] is None, "no extraction")
    head = fields(parse_json(members["extraction.json"][0]), "format egraph_sha256 claim dominated cuts records")
    need(head["format"] == "shardproof-extraction/1", "format")
    need(len(text(head["egraph_sha256"], 64)) == 64, "hash")
    claim = head["claim"]
    need(isinstance(claim, dict) and claim.get("kind") in ("optimal", "within-gap", "no-extraction"), "claim")
    fields(claim, "kind" if claim["kind"] == "no-extraction" else "kind chosen cost lower_bound")
    if "chosen" in claim:
        integer(claim["cost"]), integer(claim["lower_bound"])
        [integer(n, 0, FAR) for n in items(claim["chosen"])]
    need(len([integer(n, 0, FAR) for n in items(head["dominated"])]) % 2 == 0, "half a pair")
    for cut in items(head["cuts"], 100_000):
        fields(cut, "top classes")
        [integer(c, 0, FAR) for c in [cut["top"], *items(cut["classes"])]]
    named: set[int] = set()
    for i, record in enumerate(items(head["records"], 100_000)):
        need(isinstance(record, dict) and record.get("kind") in ("dual", "split"), "record")
        if record["kind"] == "split":
            fields(record, "kind class parts then")
            integer(record["class"], 0, FAR)
            need(len(items(record["parts"])) == len(items(record["then"])), "parts")
            [integer(n, -1, FAR) for part in record["parts"] for n in items(part)]
        else:
            fields(record, "kind denominator children parents cuts then")
            integer(record["denominator"])
            for name, width in (("children", 3), ("parents", 2), ("cuts", 2)):
                need(len([integer(n) for n in items(record[name])]) % width == 0, "a row is cut off")
            need(len(items(record["then"])) <= 1, "then")
        for k in record["then"]:
            need(i < integer(k, 0, FAR) < len(head["records"]) and k not in named, "no tree")
            named.add(k)
    need(not head["records"] or len(named) == len(head["records"]) - 1, "no tree")
    return head


def check_extraction(certificate: bytes, egraph: bytes) -> tuple[str, str]:
    """(verdict, why) of an extraction from an e-graph that is well formed."""
    try:
        head, g = read(certificate), Graph(egraph)
        need(head["egraph_sha256"] == g.sha256, "is about another e-graph")  # the command line: not checked
        claim = head["claim"]
        if claim["kind"] == "no-extraction":
            need(not (head["dominated"] or head["cuts"] or head["records"]), "a proof of what needs none", Refuted)
            g.ground([])
            need(narrowed(g, g.nodes, set(g.roots)) is None, "there is an extraction", Refuted)
            return "proved", ""
        need((claim["kind"] == "optimal") == (claim["cost"] == claim["lower_bound"]), "kind", Refuted)
        need(claim["lower_bound"] <= claim["cost"], "the bound is above the cost", Refuted)
        g.check(claim)
        g.ground(head["dominated"])
        first = narrowed(g, g.nodes, set(g.roots))
        need(first is not None and head["records"], "nothing is shown", Refuted)
        bound = Proof(g, head["cuts"], head["records"], claim["cost"]).below(0, first, None)
        good = bound is None or min(bound, claim["cost"]) >= claim["lower_bound"]
        return ("proved" if good else "undecided"), f"bound {bound}"
    except Malformed as error:
        return "malformed", str(error)
    except Refuted as error:
        return "refuted", str(error)
