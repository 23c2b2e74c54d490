"""A second checker of selection certificates, written from docs/certificate-format.md alone: standard library only.

    python tests/independent_checker.py certificate.spz problem.json

It is slow (Python integers, dictionaries, no vectors) and short, so that it can be read beside the document; sections
are those of the document.  `check` gives (verdict, why): "proved", "refuted", "undecided" or "malformed".
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import struct
import sys
import zlib
from itertools import product
from math import prod
from pathlib import Path

FORBIDDEN = 1 << 60
INFINITE = float("inf")
WIDE = 1 << 512


class Malformed(Exception):
    """The file is not what the document says a file is."""


class Refuted(Exception):
    """The file states something false."""


def need(right: object, why: str, wrong: type[Exception] = Malformed) -> None:
    if not right:
        raise wrong(why)


# ---- 2. numbers and JSON


def parse_json(data: bytes) -> object:
    def once(pairs: list) -> dict:
        need(len(dict(pairs)) == len(pairs), "a key occurs twice")
        return dict(pairs)

    def no_float(text: str) -> None:
        raise Malformed(f"{text} is not an integer")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_float=no_float, parse_constant=no_float)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # refuses half characters
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    return value


def fields(value: object, names: str, optional: str = "") -> dict:
    need(isinstance(value, dict), "must be an object")
    have, wanted, more = set(value), set(names.split()), set(optional.split())
    need(wanted <= have <= wanted | more, f"has the fields {sorted(have)}, not {sorted(wanted)}")
    return value


def integer(value: object, low: int = -WIDE, high: int = WIDE) -> int:
    need(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
    return value


def text(value: object, most: int = 10_000) -> str:
    need(type(value) is str and len(value) <= most, f"{value!r} is no text")
    return value


def items(value: object, most: int = 1 << 22) -> list:
    need(type(value) is list and len(value) <= most, "must be a list")
    return value


# ---- 3. the container


def read_members(data: bytes) -> dict[str, tuple[bytes, list[int] | None]]:
    """Name -> (content, shape or None), the manifest left out."""
    need(len(data) >= 22, "no zip file")
    magic, disk, first, here, count, size, start, comment = struct.unpack("<4s4H2LH", data[-22:])
    need(magic == b"PK\5\6" and not (disk or first or comment) and here == count, "end record")
    need(start + size == len(data) - 22, "directory is not before the end record")
    raw, at, local = {}, start, 0
    for _ in range(count):
        need(at + 46 <= len(data) - 22, "directory is cut off")
        entry = struct.unpack("<4s6H3L5H2L", data[at : at + 46])
        magic, _, _, flags, method, time, date, crc, packed, full, length, extra, remark, disk, _, _, offset = entry
        need(magic == b"PK\1\2" and not (flags or extra or remark or disk) and method in (0, 8), "directory entry")
        name = data[at + 46 : at + 46 + length]
        need(local + 30 + length + packed <= start and offset == local, "members do not follow each other")
        header = struct.unpack("<4s5H3L2H", data[local : local + 30])
        need(header[0] == b"PK\3\4", "local header")
        need(header[2:] == (flags, method, time, date, crc, packed, full, length, 0), "headers disagree")
        need(data[local + 30 : local + 30 + length] == name, "names disagree")
        content = data[local + 30 + length : local + 30 + length + packed]
        if method == 8:
            inflater = zlib.decompressobj(-15)
            try:
                content = inflater.decompress(content, full + 1)
            except zlib.error as error:
                raise Malformed(str(error)) from None
            need(inflater.eof and not inflater.unused_data and not inflater.unconsumed_tail, "deflated member")
        need(len(content) == full and zlib.crc32(content) == crc, "size or checksum")
        word = name.decode("ascii", "replace")
        plain = re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", word, re.ASCII) and len(word) <= 200
        need(plain and not {".", ".."} & set(word.split("/")) and word not in raw, f"name {word!r}")
        raw[word] = content
        at, local = at + 46 + length, local + 30 + length + packed
    need(at == start + size and local == start, "bytes that belong to no member")
    need("manifest.json" in raw, "no manifest")
    manifest = fields(parse_json(raw.pop("manifest.json")), "format members")
    need(manifest["format"] == "shardproof-container/1", "format of the manifest")
    need(isinstance(manifest["members"], dict) and set(manifest["members"]) == set(raw), "manifest lists other members")
    out = {}
    for name, listed in manifest["members"].items():
        fields(listed, "size sha256", "shape")
        need(integer(listed["size"], 0, 1 << 40) == len(raw[name]), f"size of {name}")
        need(text(listed["sha256"]) == hashlib.sha256(raw[name]).hexdigest(), f"sha256 of {name}")
        shape = listed.get("shape")
        if "shape" in listed:
            need(8 * prod(integer(n, 0, 1 << 40) for n in items(shape, 32)) == listed["size"], f"shape of {name}")
        out[name] = raw[name], shape
    return out


class Array:
    """Row-major integers of a shape; `a[i, j]`."""

    def __init__(self, shape: tuple[int, ...], numbers: list[int]) -> None:
        self.shape, self.numbers = shape, numbers
        self.strides = [prod(shape[k + 1 :]) for k in range(len(shape))]

    def __getitem__(self, index: int | tuple[int, ...]) -> int:
        at = index if isinstance(index, tuple) else (index,)
        return self.numbers[sum(i * s for i, s in zip(at, self.strides, strict=True))]


class Pool:
    """The arrays of a member `P.i64` by number."""

    def __init__(self, members: dict, prefix: str, shapes: object) -> None:
        need(f"{prefix}.i64" in members, "arrays are missing")
        content, shape = members[f"{prefix}.i64"]
        need(shape is not None and len(shape) == 1, "the pool must have one axis")
        numbers = list(struct.unpack(f"<{len(content) // 8}q", content))
        self.arrays, at = [], 0
        for listed in items(shapes):
            size = tuple(integer(n, 0, 1 << 40) for n in items(listed, 32))
            need(not (0 in size and len(size) > 2) and at + prod(size) <= len(numbers), "shapes do not fit")
            self.arrays.append(Array(size, numbers[at : at + prod(size)]))
            at += prod(size)
        need(at == len(numbers), "shapes do not fit")

    def array(self, reference: object, axes: int | None = None) -> Array:
        found = self.arrays[integer(reference, 0, len(self.arrays) - 1)]
        need(axes is None or len(found.shape) == axes, f"array {reference} must have {axes} axes")
        return found

    def numbers(self, reference: object) -> list[int]:
        return self.array(reference, 1).numbers

    def arrays_of(self, reference: object) -> list[Array]:
        return [self.array(k) for k in self.numbers(reference)]

    def lists(self, pair: object) -> list[list[int]]:
        need(len(items(pair)) == 2, "must be lengths and contents")
        lengths, joined = self.numbers(pair[0]), self.numbers(pair[1])
        need(all(n >= 0 for n in lengths) and sum(lengths) == len(joined), "lengths do not fit the contents")
        out, at = [], 0
        for n in lengths:
            out.append(joined[at : at + n])
            at += n
        return out


# ---- 4. selection problems


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


# ---- 5. selection certificates


def read_certificate(data: bytes) -> tuple[str, dict, list[dict]]:
    """(hash of the problem, claim, records), with arrays in place of references."""
    members = read_members(data)
    need("certificate.json" in members and "plan.json" not in members, "holds no selection certificate")
    head = fields(parse_json(members["certificate.json"][0]), "format problem_sha256 claim records shapes")
    need(head["format"] == "shardproof-selection-certificate/1", "format of the certificate")
    need(re.fullmatch("[0-9a-f]{64}", text(head["problem_sha256"]), re.ASCII), "problem_sha256")
    pool = Pool(members, "certificate", head["shapes"])
    return head["problem_sha256"], read_claim(head["claim"], pool), read_records(head["records"], pool)


def read_claim(claim: object, pool: Pool) -> dict:
    need(isinstance(claim, dict), "claim must be an object")
    kind = claim.get("kind")
    if kind == "infeasible":
        c = fields(claim, "kind steps vertices least_limit witness")
        limit, witness = c["least_limit"], c["witness"]
        return {
            "kind": kind,
            "steps": pool.numbers(c["steps"]),
            "vertices": pool.numbers(c["vertices"]),
            "least_limit": None if limit is None else integer(limit, 0),
            "witness": None if witness is None else pool.numbers(witness),
        }
    wanted = {"optimal": "solution cost", "within-gap": "solution cost lower_bound", "lower-bound": "lower_bound"}
    need(kind in wanted, f"unknown claim {kind!r}")
    c = fields(claim, "kind " + wanted[kind])
    out = {k: integer(c[k]) for k in ("cost", "lower_bound") if k in c}
    return {"kind": kind, **out, **({"solution": pool.numbers(c["solution"])} if "solution" in c else {})}


def read_records(listed: object, pool: Pool) -> list[dict]:
    records = items(listed, 100_000)
    need(records, "the proof is empty")
    parents = [0] * len(records)
    out = []

    def children(number: int, value: object, most: int = 100_000) -> list[int]:
        found = [integer(child, number + 1, len(records) - 1) for child in items(value, most)]
        for child in found:
            parents[child] += 1
        return found

    def pairs(value: object) -> list[tuple[int, int]]:
        need(all(len(items(p)) == 2 for p in items(value)), "multipliers must be pairs")
        return [(integer(t), integer(n)) for t, n in value]

    for i, r in enumerate(records):
        need(isinstance(r, dict), "a record must be an object")
        match r.get("kind"):
            case "dual":
                fields(r, "kind to_u to_v denominator multipliers then", "rounded")
                rows = items(r.get("rounded", []))
                need(all(len(items(row)) == 4 for row in rows), "a rounded row has four parts")
                out.append(
                    {
                        "to_u": pool.arrays_of(r["to_u"]),
                        "to_v": pool.arrays_of(r["to_v"]),
                        "q": integer(r["denominator"]),
                        "multipliers": pairs(r["multipliers"]),
                        "then": children(i, r["then"], 1),
                        "rounded": [(*(integer(n) for n in row[:3]), pool.array(row[3])) for row in rows],
                    }
                )
            case "split":
                fields(r, "kind vertex parts children")
                out.append(
                    {
                        "vertex": integer(r["vertex"]),
                        "parts": pool.lists(r["parts"]),
                        "children": children(i, r["children"]),
                    }
                )
            case "elimination":
                fields(r, "kind order scopes messages", "fine then")
                need(type(r.get("fine", False)) is bool, "fine must be true or false")
                out.append(
                    {
                        "order": pool.numbers(r["order"]),
                        "scopes": pool.lists(r["scopes"]),
                        "messages": pool.arrays_of(r["messages"]),
                        "fine": r.get("fine", False),
                        "then": children(i, r.get("then", []), 1),
                    }
                )
            case "row-conflict":
                out.append({"multipliers": pairs(fields(r, "kind multipliers")["multipliers"])})
            case "point" | "open":
                fields(r, "kind")
                out.append({})
            case "reduced":
                fields(r, "kind log steps then")
                need(len(items(r["log"])) == 4, "a log has four columns")
                columns = [pool.array(c, 1).numbers for c in r["log"]]
                need(len({len(c) for c in columns}) == 1, "columns of a log differ in length")
                then = children(i, r["then"], 1)
                need(then, "needs a record about the reduced problem")
                log = list(zip(*columns, strict=True))
                out.append({"log": log, "steps": [a for a in pool.arrays_of(r["steps"])], "then": then})
            case other:
                raise Malformed(f"unknown record {other!r}")
        out[-1]["kind"] = r["kind"]
    need(parents[0] == 0 and all(n == 1 for n in parents[1:]), "every record but the first has one parent")
    return out


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


def multipliers(p: Problem, pairs: list) -> None:
    need(not pairs or p.limit is not None, "multiplies rows of a problem without a limit", Refuted)
    need(all(a[0] < b[0] for a, b in zip(pairs, pairs[1:], strict=False)), "steps do not ascend", Refuted)
    need(all(n >= 1 for _, n in pairs), "a multiplier is not positive", Refuted)


def weighted(p: Problem, pairs: list, v: int, a: int) -> int:
    return sum(n * p.usage(t, v, a) for t, n in pairs)


def covering(p: Problem, r: dict, domains: list) -> list:
    v, parts = r["vertex"], r["parts"]
    need(0 <= v < len(domains), "splits no vertex", Refuted)
    need(len(parts) == len(r["children"]), "parts and children differ in number", Refuted)
    need(all(part and all(0 <= a < len(p.costs[v]) for a in part) for part in parts), "a part is no part", Refuted)
    need(set(domains[v]) <= {a for part in parts for a in part}, "a choice is in no part", Refuted)
    return [sorted(set(part)) for part in parts]


def dual(p: Problem, r: dict, domains: list, ub: float) -> tuple[float, list | None]:
    """(b, domains after fixing, or None if `then` is not to be looked at)."""
    q, to_u, to_v = r["q"], r["to_u"], r["to_v"]
    need(q >= 1, "denominator", Refuted)
    multipliers(p, r["multipliers"])
    need(len(to_u) == len(to_v) == len(p.edges), "one message per edge and side", Refuted)
    for (_, _, t, _, _), a, b in zip(p.edges, to_u, to_v, strict=True):
        need(a.shape == (p.tables[t].shape[0],) and b.shape == (p.tables[t].shape[1],), "shape of a message", Refuted)
    lb = q * p.constant - sum(n for _, n in r["multipliers"]) * (p.limit or 0)
    theta = [{a: q * p.costs[v][a] + weighted(p, r["multipliers"], v, a) for a in d} for v, d in enumerate(domains)]
    for t, n, g, z in r["rounded"]:
        need(p.limit is not None and n >= 1 and g >= 1, "rounded row", Refuted)
        need(z.shape == (len(domains),), "reference of a rounded row", Refuted)
        need(all(0 <= a < len(c) for a, c in zip(z.numbers, p.costs, strict=True)), "reference", Refuted)
        s = [p.usage(t, v, a) for v, a in enumerate(z.numbers)]
        c = p.limit - sum(s)
        rest = c % g
        lb -= n * (g - rest) * (c // g)
        for v, row in enumerate(theta):
            for a in row:
                d = p.usage(t, v, a) - s[v]
                row[a] += n * ((g - rest) * (d // g) + max(0, d % g - rest))
    for e, (u, v, _, rows, cols) in enumerate(p.edges):
        for a in domains[u]:
            theta[u][a] += to_u[e][a if rows is None else rows[a]]
        for b in domains[v]:
            theta[v][b] += to_v[e][b if cols is None else cols[b]]
    allowed = [[a for a in d if p.costs[v][a] < FORBIDDEN] for v, d in enumerate(domains)]
    if not all(allowed):
        return INFINITE, None
    low = [min(theta[v][a] for a in mine) for v, mine in enumerate(allowed)]
    brackets = []
    for e, (u, v, t, rows, cols) in enumerate(p.edges):
        reach_u = {a if rows is None else rows[a] for a in domains[u]}
        reach_v = {b if cols is None else cols[b] for b in domains[v]}
        by_row, by_col = dict.fromkeys(reach_u, INFINITE), dict.fromkeys(reach_v, INFINITE)
        for i, j in product(reach_u, reach_v):
            entry = p.tables[t][i, j]
            if entry < FORBIDDEN:
                here = q * entry - to_u[e][i] - to_v[e][j]
                by_row[i], by_col[j] = min(by_row[i], here), min(by_col[j], here)
        least = min(by_row.values())
        if least == INFINITE:
            return INFINITE, None
        lb += least
        brackets.append((by_row, by_col, least))
    lb += sum(low)
    b = -(-lb // q)
    if not r["then"] or b >= ub:
        return b, None
    left = []
    for v, mine in enumerate(allowed):
        kept = []
        for a in mine:
            excess = theta[v][a] - low[v]
            for e, (u, w, _, rows, cols) in enumerate(p.edges):
                by_row, by_col, least = brackets[e]
                if u == v:
                    excess += by_row[a if rows is None else rows[a]] - least
                elif w == v:
                    excess += by_col[a if cols is None else cols[a]] - least
            if excess != INFINITE and (ub == INFINITE or lb + excess <= q * (ub - 1)):
                kept.append(a)
        left.append(kept)
    return b, left


def eliminate(p: Problem, r: dict, domains: list, fine: bool) -> tuple[float, list]:
    """(b, steps): a step is (vertex, scope, consumed tables, message); a table is (scope, {choices: number})."""
    n, order, scopes, messages = len(domains), r["order"], r["scopes"], r["messages"]
    need(sorted(order) == list(range(n)), "order", Refuted)
    need(len(scopes) == n and len(messages) in (0, n), "scopes and messages", Refuted)
    need(all(0 <= w < n for scope in scopes for w in scope), "scope", Refuted)

    def number(coarse: int, digit: int) -> float:
        return INFINITE if coarse >= FORBIDDEN else (coarse << p.bits) + digit if fine else coarse

    pool = []
    for v, d in enumerate(domains):
        pool.append(((v,), {(a,): number(p.costs[v][a], p.digits[v][a] if fine else 0) for a in d}))
    for u, v, t, rows, cols in p.edges:
        table, entries = p.tables[t], {}
        for a, b in product(domains[u], domains[v]):
            i, j = a if rows is None else rows[a], b if cols is None else cols[b]
            entries[a, b] = number(table[i, j], p.digits[n + t][i * table.shape[1] + j] if fine else 0)
        pool.append(((u, v), entries))
    bound: float = p.constant << (p.bits if fine else 0)
    gone, steps = set(), []
    for k, (v, scope) in enumerate(zip(order, scopes, strict=True)):
        consumed = [t for t in pool if v in t[0]]
        pool = [t for t in pool if v not in t[0]]
        gone.add(v)
        need(all(a < b for a, b in zip(scope, scope[1:], strict=False)) and not gone & set(scope), "scope", Refuted)
        need({w for t in consumed for w in t[0]} - {v} <= set(scope), "a scope leaves out a vertex", Refuted)
        given = messages[k] if messages else None
        shape = tuple(len(domains[w]) for w in scope)
        need(given is None or given.shape == shape, "shape of a message", Refuted)
        message = {}
        for place in product(*(range(size) for size in shape)):
            s = tuple(domains[w][i] for w, i in zip(scope, place, strict=True))
            least = min(total(consumed, scope, s, v, a) for a in domains[v])
            if given is None:
                message[s] = least
                continue
            stated = given.numbers[0] if not place else given[place]
            need(least == INFINITE or stated <= least and stated < FORBIDDEN, "a message is above its sum", Refuted)
            message[s] = INFINITE if stated >= FORBIDDEN else stated
        steps.append((v, scope, consumed, message))
        if scope:
            pool.append((tuple(scope), message))
        else:
            bound += message[()]
    return bound, steps


def total(consumed: list, scope: list, s: tuple, v: int, a: int) -> float:
    at = {**dict(zip(scope, s, strict=True)), v: a}
    return sum(entries[tuple(at[w] for w in axes)] for axes, entries in consumed)


def near(p: Problem, steps: list, domains: list, slack: int) -> list:
    """What an elimination leaves of the domains."""
    if slack >= 1 << 62:
        return domains
    left = [list(d) for d in domains]
    for v, scope, consumed, message in reversed(steps):
        if len(left[v]) * prod(len(left[w]) for w in scope) > 1 << 22:
            continue
        kept = []
        for a in left[v]:
            for s in product(*(left[w] for w in scope)):
                here = total(consumed, scope, s, v, a)
                if here != INFINITE and here - message[s] <= slack:
                    kept.append(a)
                    break
        left[v] = kept
    return left


class Reduction:
    """The state of a log: `labels[i]` choices left, `cost[i][a]`, `tables[i][j][a, y]`, `pieces[i]`: (rows, amounts)."""

    def __init__(self, p: Problem, domains: list, walk: Walk, rows: list | None) -> None:
        self.p, self.walk, self.outer = p, walk, rows
        self.labels = {v: list(d) for v, d in enumerate(domains)}
        self.cost = {v: {a: min(p.costs[v][a], FORBIDDEN) for a in d} for v, d in enumerate(domains)}
        self.tables = {v: {} for v in self.labels}
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
            else:
                self.apply(rule, i, a, log[k][3], r["steps"])
            k = end
            if not all(self.labels.values()):
                return None
        return self.finish()

    def apply(self, rule: int, i: int, j: int, k: int, steps: list) -> None:
        need(rule in range(1, 9), f"unknown rule {rule}", Refuted)
        if rule == 1:
            need(0 <= i < len(steps), "list of steps", Refuted)
            kept = steps[i].numbers
            need(len(steps[i].shape) == 1, "list of steps", Refuted)
            need(all(a < b for a, b in zip(kept, kept[1:], strict=False)), "steps do not ascend", Refuted)
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
        else:
            self.eliminate(i)

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


def check(certificate: bytes, problem: bytes) -> tuple[str, str]:
    """(verdict, why) of a certificate about a problem, from the bytes of both files."""
    try:
        p, sha256 = read_problem(problem)
        about, claim, records = read_certificate(certificate)
        return judge(p, sha256, about, claim, records)
    except Malformed as error:
        return "malformed", str(error)
    except Refuted as error:
        return "refuted", str(error)


def judge(p: Problem, sha256: str, about: str, claim: dict, records: list[dict]) -> tuple[str, str]:
    need(about == sha256, "is about another problem")  # the command line: not checked
    kind, ub, needed = claim["kind"], INFINITE, claim.get("lower_bound", INFINITE)
    if "solution" in claim:
        x = claim["solution"]
        need(len(x) == len(p.costs), "solution", Refuted)
        need(all(0 <= a < len(c) for a, c in zip(x, p.costs, strict=True)), "solution", Refuted)
        ub, forbidden = p.cost(x)
        need(not forbidden and (p.limit is None or p.peak(x)[0] <= p.limit), "the solution is not feasible", Refuted)
        need(ub == claim["cost"], f"the solution costs {ub}", Refuted)
        needed = claim["cost"] if kind == "optimal" else claim["lower_bound"]
        need(needed <= ub, "the bound is above the cost", Refuted)
    if kind == "infeasible":
        witnessed(p, claim)
    walk = Walk(records, ub, p.bits, len(p.costs))
    bound = min(walk.below(0, p, [list(range(len(c))) for c in p.costs], None), ub)
    need(walk.cheapest >= needed, f"the proof holds a solution that costs {walk.cheapest}", Refuted)
    if bound < needed:
        return "undecided", f"only the bound {bound}"
    if kind == "infeasible":
        steps, vertices = set(claim["steps"]), set(claim["vertices"])
        need(steps <= walk.met_steps and vertices <= walk.met_vertices, "names what the proof does not meet", Refuted)
        if not (walk.rests_steps <= steps and walk.rests_vertices <= vertices):
            return "undecided", "does not name all that the proof rests on"
    return "proved", f"bound {bound}"


def witnessed(p: Problem, claim: dict) -> None:
    for values in (claim["steps"], claim["vertices"]):
        need(all(a < b for a, b in zip(values, values[1:], strict=False)), "does not ascend", Refuted)
    need(all(0 <= v < len(p.costs) for v in claim["vertices"]), "names a vertex that is not there", Refuted)
    x, least = claim["witness"], claim["least_limit"]
    need((x is None) == (least is None), "witness and least limit come together", Refuted)
    if x is None:
        return
    need(p.limit is not None, "there is no limit", Refuted)
    need(len(x) == len(p.costs) and all(0 <= a < len(c) for a, c in zip(x, p.costs, strict=True)), "witness", Refuted)
    need(not p.cost(x)[1], "the witness is forbidden", Refuted)
    need(p.peak(x)[0] == least, "least limit", Refuted)
    need(least > p.limit, "the witness is feasible", Refuted)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__)
        return 2
    verdict, why = check(*(Path(a).read_bytes() for a in arguments))
    print(f"{verdict}: {why}")
    return {"proved": 0, "undecided": 5, "refuted": 10, "malformed": 3}[verdict]


if __name__ == "__main__":
    sys.setrecursionlimit(100_000)
    raise SystemExit(main(sys.argv[1:]))
