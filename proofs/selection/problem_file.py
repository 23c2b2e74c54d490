"""Writes selection problems as files: our own JSON (`shardproof-selection/1`, gzipped or not), and `.spz`
members.

JSON:  {"format", "name", "vertices": [{"name", "cost": [..]}], "tables": [[[..], ..]], "edges": [{"u", "v", "table",
"rows", "cols"}],
        "usages": [{"vertex", "start", "end", "amount": [..], "name"}], "limit", "constant", "scale", "unit", "space",
        "assumptions"}
with `rows`, `cols` (null: identity), `usages`, `limit` (null: none), `constant`, `scale`, `unit`, `space`,
`assumptions` optional, and "fine": {"bits", "digits": [..]} only where costs have a fine part
(`models.problem.selection_problem.Fine`).  A forbidden entry is any integer >= 2**60.  As members (`P.json`, `P.i64`)
arrays are references (see `arrays`), all else is the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ...models.problem.selection_problem import (
    MOST_FINE_BITS,
    Edge,
    Fine,
    Ints,
    SelectionProblem,
    Usage,
    Vertex,
    fine_type,
)
from ..container.archive import LIMITS, Limits, Member, read_array, read_container, read_file, read_json
from ..container.arrays import ArrayPool, ArrayTable
from ..container.canonical import INT64, ContainerError, Reader, canonical, parse
from ..container.kinds import require_kind
from ..container.room import check_room, most_text, needs

FORMAT: Final = "shardproof-selection/1"
PREFIX: Final = "problem"
_REQUIRED: Final = ("format", "name", "vertices", "tables", "edges")
_OPTIONAL: Final = ("usages", "limit", "constant", "scale", "unit", "space", "assumptions", "fine")
MOST_TEXT: Final = 1 << 30
"""Largest JSON text of a problem, after unpacking."""


def problem_json(problem: SelectionProblem) -> bytes:
    """Our own JSON text.

    >>> p = SelectionProblem("one", (Vertex("a", np.array([1, 0])),), (), ())
    >>> parse_problem(problem_json(p)).sha256() == p.sha256()
    True
    """
    return canonical(_encode(problem, lambda a: a.tolist()))


def parse_problem(data: bytes, place: str = "problem", limits: Limits = LIMITS) -> SelectionProblem:
    """A checked problem from our own JSON, gzipped JSON or `.spz` bytes.  Raises `ContainerError` or `ProblemError`."""
    if data[:4] == b"PK\3\4":
        members = read_container(data, limits)
        require_kind(members, "problem.json")
        return decode_problem(members)
    packed = len(data)
    if data[:2] == b"\x1f\x8b":
        data = gunzip(data, place, min(MOST_TEXT, most_text(packed)))
    elif len(data) > MOST_TEXT:
        raise ContainerError(place, f"text has more than {MOST_TEXT} bytes")
    check_room(needs(data), packed, place)
    return _decode(parse(data, place), _literal)


def load_problem(path: Path | str, limits: Limits = LIMITS) -> SelectionProblem:
    """`parse_problem` of a file."""
    return parse_problem(read_file(Path(path), limits.file), str(path), limits)


def encode_problem(problem: SelectionProblem, prefix: str = PREFIX) -> dict[str, Member]:
    """Container members that hold the problem; each distinct array once."""
    pool = ArrayPool()
    head = _encode(problem, pool.add)
    head["shapes"] = pool.shapes()
    return {f"{prefix}.json": canonical(head), f"{prefix}.i64": pool.flat()}


def decode_problem(members: Mapping[str, Member], prefix: str = PREFIX) -> SelectionProblem:
    """Inverse of `encode_problem`, checked."""
    head = read_json(members, f"{prefix}.json")
    arrays = ArrayTable(head["shapes"], read_array(members, f"{prefix}.i64"))

    def look_up(reference: Reader, axes: int) -> Ints:
        array = arrays.get(reference)
        if array.ndim != axes:
            reference.fail(f"must refer to an array with {axes} axes")
        return array

    return _decode(head, look_up, ("shapes",))


def _encode(problem: SelectionProblem, write: Callable[[Ints], object]) -> dict[str, object]:
    def index(a: Ints | None) -> object:
        return None if a is None else write(a)

    return {
        "format": FORMAT,
        "name": problem.name,
        "vertices": [{"name": v.name, "cost": write(v.cost)} for v in problem.vertices],
        "tables": [write(t) for t in problem.tables],
        "edges": [
            {"u": e.u, "v": e.v, "table": e.table, "rows": index(e.rows), "cols": index(e.cols)} for e in problem.edges
        ],
        "usages": [
            {"vertex": u.vertex, "start": u.start, "end": u.end, "amount": write(u.amount), "name": u.name}
            for u in problem.usages
        ],
        "limit": problem.limit,
        "constant": problem.constant,
        "scale": problem.scale,
        "unit": problem.unit_name,
        "space": problem.space,
        "assumptions": list(problem.assumptions),
        **(
            {}
            if problem.fine is None
            else {"fine": {"bits": problem.fine.bits, "digits": write(problem.fine.digits.astype(np.int64))}}
        ),
    }


def _decode(head: Reader, read: Callable[[Reader, int], Ints], extra: tuple[str, ...] = ()) -> SelectionProblem:
    head.fields(*_REQUIRED, *extra, optional=_OPTIONAL)
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")

    def index(edge: Reader, name: str) -> Ints | None:
        return read(edge[name], 1) if edge.has(name) and not edge[name].is_null() else None

    def default(name: str, value: int) -> int:
        return head[name].integer() if head.has(name) else value

    vertices = []
    for item in head["vertices"].items():
        item.fields("name", "cost")
        vertices.append(Vertex(item["name"].text(), read(item["cost"], 1)))
    edges = []
    for item in head["edges"].items():
        item.fields("u", "v", "table", optional=("rows", "cols"))
        edges.append(
            Edge(
                item["u"].integer(),
                item["v"].integer(),
                item["table"].integer(),
                index(item, "rows"),
                index(item, "cols"),
            )
        )
    fine = None
    if head.has("fine"):
        parts = head["fine"].fields("bits", "digits")
        bits, digits = parts["bits"].integer(1, MOST_FINE_BITS), read(parts["digits"], 1)
        if digits.size and not 0 <= int(digits.min()) <= int(digits.max()) < 1 << bits:
            parts["digits"].fail(f"must lie in 0..2**{bits} - 1")
        fine = Fine(bits, digits.astype(fine_type(bits)))
    usages = []
    for item in head["usages"].items() if head.has("usages") else ():
        item.fields("vertex", "start", "end", "amount", optional=("name",))
        name = item["name"].text() if item.has("name") else ""
        usages.append(
            Usage(
                item["vertex"].integer(), item["start"].integer(), item["end"].integer(), read(item["amount"], 1), name
            )
        )
    return SelectionProblem(
        name=head["name"].text(),
        vertices=tuple(vertices),
        tables=tuple(read(item, 2) for item in head["tables"].items()),
        edges=tuple(edges),
        usages=tuple(usages),
        limit=head["limit"].integer() if head.has("limit") and not head["limit"].is_null() else None,
        constant=default("constant", 0),
        scale=head["scale"].integer(1) if head.has("scale") else 1,
        unit_name=head["unit"].text() if head.has("unit") else "units",
        space=head["space"].text() if head.has("space") else "as given",
        assumptions=head["assumptions"].texts() if head.has("assumptions") else (),
        fine=fine,
    ).check()


def _literal(value: Reader, axes: int) -> Ints:
    if axes == 1:
        return np.array(value.integers(*INT64), dtype=np.int64)
    rows = [item.integers(*INT64) for item in value.items()]
    if len({len(row) for row in rows}) > 1:
        value.fail("rows differ in length")
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(rows[0]) if rows else 0)


def gunzip(data: bytes, place: str, most: int) -> bytes:
    """The text of gzip data, at most `most` bytes; `ContainerError` if it is cut off, followed by more, or larger."""
    inflater = zlib.decompressobj(31)
    try:
        text = inflater.decompress(data, most)
    except zlib.error as error:
        raise ContainerError(place, f"is not a gzip file: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise ContainerError(place, f"gzip data is cut off, has more behind it, or expands beyond {most} bytes")
    return text
