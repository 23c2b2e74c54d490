"""Section 4: selection problems, their costs and their hash."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct

from .reading import Array, Pool, fields, integer, items, need, parse_json, read_members, text

FORBIDDEN = 1 << 60


class Problem:
    """Tables are lists of rows; `edges`: (u, v, table, rows, cols); `usages`: (vertex, start, end, amounts)."""

    def __init__(self, costs: list, tables: list, edges: list, usages: list, limit: int | None, constant: int) -> None:
        self.costs, self.tables, self.edges, self.usages = costs, tables, edges, usages
        self.limit, self.constant, self.bits, self.digits = limit, constant, 0, None

    def check(self) -> None:
        def largest(numbers: list) -> int:
            return max((abs(n) for n in numbers if n < FORBIDDEN), default=0)

        total = abs(self.constant) + sum(map(largest, self.costs))
        need(all(self.costs), "a vertex without choices")
        for u, v, t, rows, cols in self.edges:
            need(0 <= u < len(self.costs) and 0 <= v < len(self.costs) and u != v, "ends of an edge")
            need(0 <= t < len(self.tables), "table of an edge")
            height, width = self.tables[t].shape
            for end, index, size in ((u, rows, height), (v, cols, width)):
                choices = len(self.costs[end])
                if index is None:
                    need(size == choices, "identity map of another size")
                else:
                    need(len(index) == choices and all(0 <= i < size for i in index), "map of an edge")
            total += largest(self.tables[t].numbers)
        need(total < 1 << 57, "numbers are too large")
        for v, start, end, amount in self.usages:
            need(0 <= v < len(self.costs) and len(amount) == len(self.costs[v]), "usage")
            need(min(amount) >= 0 and max(abs(start), abs(end)) < 1 << 62, "usage")
        need(sum(max(u[3]) for u in self.usages) < 1 << 62, "usages are too large")
        need(self.limit is None or 0 <= self.limit <= 1 << 62, "limit")

    def edge(self, e: int, x: list) -> tuple[int, int, int]:
        """(table, row, column) under the choices of both ends."""
        u, v, t, rows, cols = self.edges[e]
        return t, x[u] if rows is None else rows[x[u]], x[v] if cols is None else cols[x[v]]

    def cost(self, x: list) -> tuple[int, bool]:
        """(cost with its fine part, whether something used is FORBIDDEN)."""
        used = [self.costs[v][a] for v, a in enumerate(x)]
        places = [self.edge(e, x) for e in range(len(self.edges))]
        used += [self.tables[t][r, c] for t, r, c in places]
        total = (self.constant + sum(used)) << self.bits
        if self.digits is not None:
            total += sum(self.digits[v][a] for v, a in enumerate(x))
            total += sum(self.digits[len(x) + t][r * self.tables[t].shape[1] + c] for t, r, c in places)
        return total, any(n >= FORBIDDEN for n in used)

    def usage(self, t: int, v: int, a: int) -> int:
        return sum(u[3][a] for u in self.usages if u[0] == v and u[1] <= t < u[2])

    def steps(self) -> list[int]:
        return sorted({u[1] for u in self.usages if u[1] < u[2]})

    def peak(self, x: list) -> tuple[int, int]:
        """(largest usage, first step where it is reached)."""
        best, when = 0, 0
        for t in self.steps():
            here = sum(u[3][x[u[0]]] for u in self.usages if u[1] <= t < u[2])
            if here > best:
                best, when = here, t
        return best, when


def read_problem(data: bytes) -> tuple[Problem, str]:
    """The problem in a file, and its hash."""
    pool, extra = None, ""
    if data[:4] == b"PK\3\4":
        members = read_members(data)
        need("problem.json" in members, "holds no problem")
        data, extra = members["problem.json"][0], " shapes"
    elif data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    head = fields(
        parse_json(data),
        "format name vertices tables edges" + extra,
        "usages limit constant scale unit space assumptions fine",
    )
    need(head["format"] == "shardproof-selection/1", "format of the problem")
    if extra:
        pool = Pool(members, "problem", head["shapes"])

    def array(value: object, axes: int) -> Array:
        if pool is not None:
            return pool.array(value, axes)
        int64 = -(1 << 63), (1 << 63) - 1
        if axes == 1:
            numbers = [integer(n, *int64) for n in items(value, 1 << 26)]
            return Array((len(numbers),), numbers)
        rows = [[integer(n, *int64) for n in items(row, 1 << 26)] for row in items(value)]
        need(len({len(row) for row in rows}) < 2, "rows differ in length")
        return Array((len(rows), len(rows[0]) if rows else 0), [n for row in rows for n in row])

    vertices = [(text(v["name"]), array(v["cost"], 1)) for v in items(head["vertices"]) if fields(v, "name cost")]
    tables = [array(t, 2) for t in items(head["tables"])]
    edges, usages, maps, amounts = [], [], [], []
    for e in items(head["edges"]):
        fields(e, "u v table", "rows cols")
        pair = [None if e.get(k) is None else array(e[k], 1) for k in ("rows", "cols")]
        maps += [m for m in pair if m is not None]
        ends = [integer(e[k]) for k in ("u", "v", "table")]
        edges.append((*ends, *(None if m is None else m.numbers for m in pair)))
    for u in items(head.get("usages", [])):
        fields(u, "vertex start end amount", "name")
        amounts.append(array(u["amount"], 1))
        where = [integer(u[k]) for k in ("vertex", "start", "end")]
        usages.append((*where, amounts[-1].numbers, text(u.get("name", ""))))
    limit = None if head.get("limit") is None else integer(head["limit"])
    constant = integer(head.get("constant", 0))
    problem = Problem([c.numbers for _, c in vertices], tables, edges, [u[:4] for u in usages], limit, constant)
    said = {
        "name": text(head["name"]),
        "constant": constant,
        "scale": integer(head.get("scale", 1), 1),
        "unit": text(head.get("unit", "units")),
        "space": text(head.get("space", "as given")),
        "assumptions": [text(a) for a in items(head.get("assumptions", []))],
        "limit": limit,
        "vertices": [name for name, _ in vertices],
        "edges": [[u, v, t, rows is not None, cols is not None] for u, v, t, rows, cols in edges],
        "usages": [[v, start, end, name] for v, start, end, _, name in usages],
    }
    h = hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())
    for a in (*(c for _, c in vertices), *tables, *maps, *amounts):
        shape = "(" + ", ".join(map(str, a.shape)) + (",)" if len(a.shape) == 1 else ")")
        h.update(hashlib.sha256(shape.encode() + struct.pack(f"<{len(a.numbers)}q", *a.numbers)).digest())
    if "fine" in head:
        fine = fields(head["fine"], "bits digits")
        problem.bits = integer(fine["bits"], 1, 52)
        digits = array(fine["digits"], 1).numbers
        plain = [*problem.costs, *(t.numbers for t in tables)]
        need(len(digits) == sum(map(len, plain)), "digits do not fit")
        need(all(0 <= d < 1 << problem.bits for d in digits), "a digit is out of range")
        flat = [n for part in plain for n in part]
        need(not any(d for d, n in zip(digits, flat, strict=True) if n >= FORBIDDEN), "digit of a forbidden number")
        problem.digits, at = [], 0
        for part in plain:
            problem.digits.append(digits[at : at + len(part)])
            at += len(part)
        width = next(n for n in (1, 2, 4, 8) if 8 * n >= problem.bits)
        h.update(f"fine {problem.bits}".encode() + b"".join(d.to_bytes(width, "little") for d in digits))
    problem.check()
    return problem, h.hexdigest()
