"""Reads selection problems of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (IOPDDL JSON).

One object with the key `problem`: node intervals [s, e) half-open, costs and usages per strategy, edges of two nodes
with flat row-major cost lists, `usage_limit` (may be absent).  Costs of 10^18 and more mean forbidden, which is an
assumption of the problem as soon as one occurs (formally they are large costs); every other number is taken as it is or
refused.  Source: rules of the ASPLOS/EuroSys 2025 contest.

Files are read as a stream: beside the problem's own int64 arrays there is never more than a chunk of text and one list
in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np

from .json_stream import JsonStream
from .selection_problem import FORBIDDEN, Edge, Ints, ProblemError, SelectionProblem, Usage, Vertex, forbids

INFINITE: Final = 10**18
"""The contest's value for a forbidden combination."""

FORBIDDEN_COSTS: Final = "costs-from-10^18-are-forbidden"
"""Assumption of a problem in which such a cost occurs."""


Read = Callable[[list[object], str], Ints]
"""Numbers of the lists at a place, as int64."""


@dataclass
class _Parts:
    """What a file says, list by list; None: not there."""

    name: str = "iopddl"
    intervals: list[Ints] | None = None
    costs: list[Ints] | None = None
    usages: list[Ints] | None = None
    pairs: list[Ints] | None = None
    tables: list[Ints] | None = None
    limit: object = None


def read_iopddl(read: Callable[[int], bytes]) -> SelectionProblem:
    """The problem in a text that `read(n)` returns up to n bytes at a time.  Raises `ProblemError` naming the place.

    >>> import io
    >>> text = b'''{"problem": {"nodes": {"intervals": [[0, 2]], "costs": [[7, 4]], "usages": [[1, 9]]},
    ...                      "edges": {"nodes": [], "costs": []}}}'''
    >>> read_iopddl(io.BytesIO(text).read).vertices[0].cost.tolist()
    [7, 4]
    """
    stream, parts, found = JsonStream(read), _Parts(), False
    for key in stream.keys("file"):
        if key != "problem":
            stream.value(key)
            continue
        found = True
        for part in stream.keys("problem"):
            if part == "nodes":
                for item in stream.keys("problem.nodes"):
                    place = f"nodes.{item}"
                    if item in ("intervals", "costs", "usages"):
                        setattr(parts, item, _arrays(stream.lists(place), place, _reader(item)))
                    else:
                        stream.value(place)
            elif part == "edges":
                shared = _Shared()
                for item in stream.keys("problem.edges"):
                    place = f"edges.{item}"
                    if item == "nodes":
                        parts.pairs = _arrays(stream.lists(place), place, integers)
                    elif item == "costs":
                        parts.tables = [shared.one(a) for a in _each(stream.lists(place), place, costs)]
                    else:
                        stream.value(place)
            elif part == "usage_limit":
                parts.limit = stream.value("problem.usage_limit")
            else:
                value = stream.value(f"problem.{part}")
                parts.name = _name(value) if part == "name" else parts.name
    stream.end("file")
    if not found:
        raise ProblemError("file", "has no key problem")
    return _build(parts)


def from_iopddl(data: Mapping[str, object]) -> SelectionProblem:
    """The same from a parsed file: the problem under the key `problem`."""
    problem = _mapping(data.get("problem"), "problem")
    nodes, edges = _mapping(problem.get("nodes"), "problem.nodes"), _mapping(problem.get("edges"), "problem.edges")
    shared = _Shared()
    parts = _Parts(_name(problem.get("name", "iopddl")), limit=problem.get("usage_limit"))
    parts.intervals, parts.costs, parts.usages = (
        _arrays([_lists(nodes.get(k), f"nodes.{k}")], f"nodes.{k}", _reader(k))
        for k in ("intervals", "costs", "usages")
    )
    parts.pairs = _arrays([_lists(edges.get("nodes"), "edges.nodes")], "edges.nodes", integers)
    parts.tables = [shared.one(a) for a in _each([_lists(edges.get("costs"), "edges.costs")], "edges.costs", costs)]
    return _build(parts)


class _Shared:
    """Equal arrays become one: layers repeat."""

    def __init__(self) -> None:
        self._known: dict[bytes, Ints] = {}

    def one(self, array: Ints) -> Ints:
        digest = hashlib.sha256(array.tobytes()).digest()
        if digest not in self._known:
            self._known[digest] = array.copy()  # `array` is a view into a chunk, which need not stay
        return self._known[digest]


def _build(parts: _Parts) -> SelectionProblem:
    intervals, prices, usages = (
        _needed(parts.intervals, "nodes.intervals"),
        _needed(parts.costs, "nodes.costs"),
        _needed(parts.usages, "nodes.usages"),
    )
    if not len(prices) == len(usages) == len(intervals):
        raise ProblemError(
            "problem.nodes", f"has {len(prices)} costs, {len(usages)} usages and {len(intervals)} intervals"
        )
    vertices = tuple(Vertex(f"node {i}", c) for i, c in enumerate(prices))
    live = []
    for i, (interval, usage) in enumerate(zip(intervals, usages, strict=True)):
        if interval.size != 2:
            raise ProblemError(f"nodes.intervals[{i}]", "must be a pair")
        if usage.size != prices[i].size:
            raise ProblemError(f"nodes.usages[{i}]", f"has {usage.size} entries for {prices[i].size} strategies")
        start, end = interval.tolist()
        if start < end:
            live.append(Usage(i, start, end, usage, f"node {i}"))
    pairs, flats = _needed(parts.pairs, "edges.nodes"), _needed(parts.tables, "edges.costs")
    if len(pairs) != len(flats):
        raise ProblemError("problem.edges", f"has {len(pairs)} pairs and {len(flats)} cost lists")
    tables: list[Ints] = []
    edges: list[Edge] = []
    number: dict[tuple[int, int, int], int] = {}  # equal lists are one array here, so its id and the shape name a table
    for i, (pair, flat) in enumerate(zip(pairs, flats, strict=True)):
        place = f"edges.nodes[{i}]"
        if pair.size != 2:
            raise ProblemError(place, f"joins {pair.size} nodes; only pairs are supported")
        u, v = pair.tolist()
        if not (0 <= u < len(vertices) and 0 <= v < len(vertices)):
            raise ProblemError(place, f"names a node outside 0..{len(vertices) - 1}")
        rows, cols = vertices[u].cost.size, vertices[v].cost.size
        if flat.size != rows * cols:
            raise ProblemError(f"edges.costs[{i}]", f"has {flat.size} entries for {rows} x {cols} choices")
        key = (id(flat), rows, cols)
        if key not in number:
            number[key] = len(tables)
            tables.append(flat.reshape(rows, cols))
        edges.append(Edge(u, v, number[key]))
    limit = parts.limit
    if limit is not None and type(limit) is not int:
        raise ProblemError("problem.usage_limit", f"{_short(limit)} is not an integer")
    assumed = (FORBIDDEN_COSTS,) if forbids([*prices, *tables]) else ()
    return SelectionProblem(
        parts.name,
        vertices,
        tuple(tables),
        tuple(edges),
        tuple(live),
        limit if isinstance(limit, int) else None,
        assumptions=assumed,
    ).check()


def _needed(values: list[Ints] | None, place: str) -> list[Ints]:
    if values is None:
        raise ProblemError(place, "is missing")
    return values


def _each(batches: Iterable[list[list[object]]], place: str, read: Read) -> Iterator[Ints]:
    number = 0
    for batch in batches:
        flat = list(chain.from_iterable(batch))
        try:
            joined = read(flat, place)
        except ProblemError:
            for i, values in enumerate(batch):
                read(values, f"{place}[{number + i}]")
            raise
        yield from (joined[a:b] for a, b in pairwise(accumulate(map(len, batch), initial=0)))
        number += len(batch)


def _arrays(batches: Iterable[list[list[object]]], place: str, read: Read) -> list[Ints]:
    return list(_each(batches, place, read))


def integers(values: list[object], place: str) -> Ints:
    """Exact integers as int64; `ProblemError` names what is not an integer or does not fit."""
    if set(map(type, values)) <= {int}:  # bool is a type of its own
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    for value in values:
        if type(value) is not int:
            raise ProblemError(place, f"{_short(value)} is not an integer")
        if not -(1 << 63) <= value < 1 << 63:
            raise ProblemError(place, f"{_short(value)} is out of range, it does not fit 64 bits", "use a coarser unit")
    raise ProblemError(place, "must be a list of integers")


def costs(values: list[object], place: str) -> Ints:
    """The same for costs: those of 10^18 and more, of any size, are forbidden."""
    try:
        out = integers(values, place)
    except ProblemError:
        out = integers([min(v, INFINITE) if type(v) is int else v for v in values], place)
    if out.size and int(out.min()) < -INFINITE:
        raise ProblemError(place, f"{int(out.min())} is out of range", "use a coarser unit")
    if out.size and int(out.max()) >= INFINITE:
        out[out >= INFINITE] = FORBIDDEN
    return out


def _reader(item: str) -> Read:
    return costs if item == "costs" else integers


def _name(value: object) -> str:
    if type(value) is not str:
        raise ProblemError("problem.name", f"must be a text, not {_short(value)}")
    return value


def _short(value: object) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # an integer of too many digits
        return "a very large integer"


def _mapping(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ProblemError(place, "must be an object")
    return value


def _lists(value: object, place: str) -> list[list[object]]:
    if not isinstance(value, list) or any(not isinstance(v, list) for v in value):
        raise ProblemError(place, "must be a list of lists")
    return value
