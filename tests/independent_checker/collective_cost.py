"""Section 7, "What a step costs": loads of links, switches and buses as fractions."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from math import ceil, prod

RING = {
    "AllReduce": lambda m: Fraction(2 * (m - 1), m),
    "ReduceScatter": lambda m: Fraction(m - 1, m),
    "AllGather": lambda m: Fraction(m - 1, m),
}


class Machine:
    """`of[l][d]`: the link of level l that device d hangs on; `rates[l][link]`; switches, buses: (of, rate, levels)."""

    def __init__(self, text: str) -> None:
        data = json.loads(text)
        names, sizes = [x["name"] for x in data["level"]], [x["size"] for x in data["level"]]
        self.sizes, self.devices = sizes, prod(sizes)
        below = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
        self.of = [[d // b for d in range(self.devices)] for b in below]
        self.rates = [
            [Fraction(x["bandwidth"])] * (self.devices // b) for x, b in zip(data["level"], below, strict=True)
        ]
        self.latencies = [Fraction(x["latency"]) for x in data["level"]]
        self.switches, self.buses = [], []
        self.constants = {key: Fraction(value) for key, value in data.get("reduction", {}).items()}
        for r in data["resource"]:
            n, rate, only, traffic = r["devices"], Fraction(r["capacity"]), r.get("only", []), r["traffic"]
            blocks = [d // n for d in range(self.devices)]
            level = names.index(traffic[0])
            if len(traffic) == 1 and below[level] == n:
                for v in only or range(self.devices // n):
                    self.rates[level][v] = min(self.rates[level][v], rate)
            elif names[-1] in traffic and n < sizes[-1] and sizes[-1] % n == 0 and not only:
                self.switches.append((blocks, rate, []))
            else:
                loaded = [names.index(t) for t in traffic]
                self.buses.append(([b if not only or b in only else -1 for b in blocks], rate, loaded))


def double_tree(links: int) -> list[int]:
    """Edges at every link of the double binary tree."""
    degree = [0] * links
    for r in range(1, links):
        bit = r & -r
        parent = (r & ~bit) | 2 * bit
        parent = parent if parent < links else r & ~bit
        for end in (r, parent):
            degree[end] += 1
            degree[links - 1 - end if links % 2 == 0 else (end + 1) % links] += 1
    return degree


class Step:
    """One step of a program: `groups` of devices (renumbered), `rows` that the root of each moves, of `chunks`."""

    def __init__(self, spec: dict, machine: Machine, kind: str, groups: list, rows: list[int], chunks: int) -> None:
        kept = spec["devices"] or list(range(machine.devices))
        self.preset, self.kind, self.groups = spec["preset"], kind, groups
        self.bytes = [Fraction(spec["payload"]) * r / chunks for r in rows]
        self.of = [*([o[d] for d in kept] for o in machine.of[:-1]), list(range(len(kept)))]
        self.rates = [*machine.rates[:-1], [machine.rates[-1][d] for d in kept]]
        self.switches, self.buses = (
            [([of[d] for d in kept], rate, levels) for of, rate, levels in part]
            for part in (machine.switches, machine.buses)
        )
        self.constants = machine.constants if self.preset in ("m2", "linked") else {}
        self.latencies = machine.latencies if self.preset in ("linked", "planned") else [Fraction(0)] * len(self.of)
        if self.preset in ("m0", "m1"):
            self.rates[0] = [Fraction(8 * 10**9)] * len(self.rates[0])
        if self.preset in ("m0", "m1", "planned"):
            self.switches, self.buses = [], []
        self.tree = spec["algorithm"] == "tree" and kind == "AllReduce" and self.preset != "planned"

    def time(self) -> int:
        """Picoseconds, rounded up once."""
        pairs = list(zip(self.groups, self.bytes, strict=True))
        seconds = max(self.busy([pair]) for pair in pairs) if self.preset == "m1" else self.busy(pairs)
        if "copy" in self.constants:
            seconds += 2 * max(self.bytes) / self.constants["copy"]
        crossed = [next(l for l, of in enumerate(self.of) if len({of[d] for d in g}) > 1) for g in self.groups]
        phases = 2 if self.kind == "AllReduce" else 1
        return ceil((seconds + max(self.latencies[l] for l in crossed) * phases) * 10**12)

    def busy(self, pairs: list) -> Fraction:
        into, out = [[[Fraction(0)] * len(r) for r in self.rates] for _ in range(2)]
        switched = [[Fraction(0)] * (max(of) + 1) for of, _, _ in self.switches]
        flow = Fraction(0)
        for group, size in pairs:
            flow = max(flow, self.links(group, size, into, out))
            for at, (of, _, _) in zip(switched, self.switches, strict=True):
                self.switch(group, size, at, of)
        levels = [
            max(max(a, b) / rate for a, b, rate in zip(*part, strict=True))
            for part in zip(into, out, self.rates, strict=True)
        ]
        others = [x / rate for at, (_, rate, _) in zip(switched, self.switches, strict=True) for x in at]
        for of, rate, loaded in self.buses:
            for block in set(of) - {-1}:
                links = [(l, v) for l in loaded for v in {self.of[l][d] for d, b in enumerate(of) if b == block}]
                others.append(sum((into[l][v] for l, v in links), Fraction(0)) / rate)
        if "tree_flow" in self.constants:
            others.append(flow / self.constants["tree_flow"])
        return max([sum(levels), *others] if self.preset == "planned" else [*levels, *others])

    def links(self, group: tuple, size: Fraction, into: list, out: list) -> Fraction:
        """Adds what a group loads; the largest load of one outermost link by a tree."""
        m, last, span, flow = len(group), len(self.of) - 1, None, Fraction(0)
        ring = size * RING.get(self.kind, lambda _: Fraction(1))(m)
        for level, of in enumerate(self.of):
            parents: dict[int, dict[int, None]] = {}
            for d in group:
                parents.setdefault(self.of[level - 1][d] if level else 0, {})[of[d]] = None
            for links in map(list, parents.values()):
                crossed = len(links) > 1
                if not crossed and not (self.preset == "planned" and span is not None):
                    continue
                if crossed and span is None:
                    span = level
                chain = [ring] * (len(links) - 1)
                if self.tree and span == level and level < last:
                    arriving = leaving = [size * e / 2 for e in double_tree(len(links))]
                    flow = max(flow, *arriving) if level == 0 else flow
                elif self.tree:
                    each = size if span != level else (Fraction(5, 2) - Fraction(3, 2 * m)) * size
                    arriving = leaving = [each] * len(links)
                elif level < last and crossed and self.kind == "Reduce":
                    arriving, leaving = [*chain, Fraction(0)], [Fraction(0), *chain]
                elif level < last and crossed and self.kind == "Broadcast":
                    arriving, leaving = [Fraction(0), *chain], [*chain, Fraction(0)]
                else:
                    arriving = leaving = [ring] * len(links)
                for link, a, b in zip(links, arriving, leaving, strict=True):
                    into[level][link] += a
                    out[level][link] += b
        return flow

    def switch(self, group: tuple, size: Fraction, at: list, of: list[int]) -> None:
        node = self.of[-2] if len(self.of) > 1 else [0] * len(of)
        nodes: dict[int, list[int]] = {}
        for d in sorted(group):
            nodes.setdefault(node[d], []).append(d)
        for number, members in nodes.items():
            q = len(members)
            if q < 2 or q == node.count(number) or len({of[d] for d in members}) == 1:
                continue
            load = 2 * size if self.tree else size * RING.get(self.kind, lambda _: Fraction(1))(len(group))
            if q == 4 and members[0] % 4 == 0 and members[3] == members[0] + 3:
                if self.tree:
                    continue
                load *= self.constants.get("switch_quad", Fraction(1))
            elif self.tree and q == 2:
                load = size
            ring = [(members[-1], members[0])] if len(nodes) == 1 else []
            for a, b in [*pairwise(members), *ring]:
                if of[a] != of[b]:
                    at[of[a]] += load
                    at[of[b]] += load
            if len(nodes) > 1:
                at[of[members[0]]] += load
                at[of[members[-1]]] += load
