"""Small files that ask for much: time, memory or both.  Every maker gives the files of one `check`; none of them is a
mistake in the format.

`fewer` divides how often something is repeated: for tests with a small budget.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import numpy as np

from shardproof.models.problem.claims import LowerBound
from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Usage, Vertex
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.container.canonical import canonical
from shardproof.proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Point,
    Record,
    Reduced,
    Rounded,
    RowConflict,
    SelectionCertificate,
    Split,
)
from shardproof.proofs.selection.file import encode_certificate
from shardproof.proofs.selection.presolve_log import Rule
from shardproof.proofs.selection.problem_file import encode_problem

Files = dict[str, bytes]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def wide(
    n: int = 3, k: int = 8000, *, rows: bool = False, edges: list[tuple[int, int]] | None = None, distinct: bool = False
) -> SelectionProblem:
    """n vertices of k choices, every two joined through maps to one small table; with `distinct` the maps tell 250
    choices apart.
    """
    size = 250 if distinct else 1
    table = np.zeros((size, size), dtype=np.int64)
    index = np.arange(k, dtype=np.int64) % size
    cost = np.zeros(k, dtype=np.int64)
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)] if edges is None else edges
    amount = np.ones(k, dtype=np.int64)
    usages = tuple(Usage(v, t, t + 2, amount) for v in range(n) for t in range(20)) if rows else ()
    return SelectionProblem("wide", tuple(Vertex("v", cost) for _ in range(n)), (table,), tuple(Edge(u, v, 0, index, index) for u, v in pairs), usages,
                            5 if rows else None).check()  # fmt: skip


def files(problem: SelectionProblem, proof: Record) -> Files:
    claim = LowerBound(1 << 500)
    certificate = SelectionCertificate(problem.sha256(), claim, proof)
    return {
        "problem.spz": write_container(None, encode_problem(problem)),
        "certificate.spz": write_container(None, encode_certificate(certificate)),
    }


def log(*entries: tuple[int, ...], then: Record | None = None) -> Reduced:
    return Reduced(np.array([(*e, 0, 0, 0)[:4] for e in entries], dtype=np.int64), (), then or Open())


def chain(make: Callable[[Record | None], Record], times: int) -> Record:
    record: Record | None = None
    for _ in range(times):
        record = make(record)
    assert record is not None
    return record


def many(k: int, times: int, child: Record) -> Record:
    """`child` (written again each time) under `times` splits of vertex 0, in which every part is the whole domain."""
    part = tuple(range(k))
    return Split(0, (part,) * times, (child,) * times)


def dual(problem: SelectionProblem, then: Record | None = None, size: int = 0, **more: object) -> Dual:
    to_u = {t: np.full(problem.tables[t].shape[0], size, dtype=np.int64) for t in range(len(problem.tables))}
    messages = tuple(to_u[e.table] for e in problem.edges)
    return Dual(messages, messages, then=then, **more)  # type: ignore[arg-type]


def eliminate_three(fewer: int = 1) -> Files:
    return files(wide(), log((Rule.ELIMINATE, 0)))


def zero_messages(fewer: int = 1) -> Files:
    """Elimination records that share their messages, in a split of 3,000 parts."""
    problem = wide(3, 200, distinct=True)
    square, line = np.zeros((200, 200), dtype=np.int64), np.zeros(200, dtype=np.int64)
    return files(
        problem, many(200, 3000 // fewer, Elimination((0, 1, 2), ((1, 2), (2,), ()), (square, line, np.array(0))))
    )


def left_out_messages(fewer: int = 1) -> Files:
    return files(
        wide(4, 250, distinct=True),
        many(250, 2000 // fewer, Elimination((0, 1, 2, 3), ((1, 2, 3), (2, 3), (3,), ()), ())),
    )


def eliminations_with_more(fewer: int = 1) -> Files:
    problem = wide(3, 200, distinct=True)
    square, line = np.zeros((200, 200), dtype=np.int64), np.zeros(200, dtype=np.int64)
    return files(
        problem,
        chain(
            lambda then: Elimination((0, 1, 2), ((1, 2), (2,), ()), (square, line, np.array(0)), then or Open()),
            1500 // fewer,
        ),
    )


def duals(fewer: int = 1) -> Files:
    problem = wide(4, 8000, distinct=True)
    return files(problem, chain(lambda then: dual(problem, then), 20_000 // fewer))


def duals_of_long_numbers(fewer: int = 1) -> Files:
    problem = wide(4, 2000, distinct=True)
    return files(problem, chain(lambda then: dual(problem, then, 1 << 61, denominator=(1 << 500) + 1), 5000 // fewer))


def rounded_rows(fewer: int = 1) -> Files:
    problem = wide(3, 1000, rows=True)
    reference = np.zeros(3, dtype=np.int64)
    rows = tuple(Rounded(t, 1 << 60, 7, reference) for t in range(20))
    return files(problem, many(1000, 300 // fewer, dual(problem, None, rounded=rows)))


def conflicts(fewer: int = 1) -> Files:
    problem = wide(3, 500, rows=True)
    return files(problem, many(500, 3000 // fewer, RowConflict(tuple((t, 1 << 500) for t in range(1, 4)))))


def wide_splits(fewer: int = 1) -> Files:
    part = tuple(range(1000))
    return files(
        wide(3, 1000), chain(lambda then: Split(0, (part,) * 8, ((then or Open()), *(Open(),) * 7)), 1000 // fewer)
    )


def points(fewer: int = 1) -> Files:
    n = 200
    problem = wide(n, 2, rows=True, edges=[(i, i + 1) for i in range(n - 1)])
    one: Record = Point()
    for v in range(1, n):
        one = Split(v, ((0,), (1,)), (one, Open()))
    return files(problem, many(2, 240 // fewer, Split(0, ((0,), (1,)), (one, Open()))))


def small_eliminations(fewer: int = 1) -> Files:
    """Many vertices of one choice: what costs is not the entries."""
    problem = wide(2000, 1, edges=[(i, i + 1) for i in range(1999)])
    order = tuple(range(2000))
    scopes = (*(((i + 1),) for i in range(1999)), ())
    return files(problem, many(1, 1000 // fewer, Elimination(order, scopes, ())))


def logs_of_one_entry(fewer: int = 1) -> Files:
    problem = wide(3, 1500, distinct=True)
    return files(problem, many(1500, 900 // fewer, log((Rule.SEPARABLE, 0, 1))))


def long_logs(fewer: int = 1) -> Files:
    """FOLLOW, MERGE, DOMINATED and OVERFULL over and over: each may be tested before it is refused."""
    k = 3000
    problem = wide(3, k, rows=True)
    pairs = [(Rule.DOMINATED, 0, a, a + 1) for a in range(k - 1)]
    alternating = [
        entry for a, b in zip(pairs[::2], pairs[::2], strict=True) for entry in (a, (Rule.DOMINATED, 1, b[2], b[3]))
    ]
    return files(problem, many(k, 20, log(*alternating)))


def overfull_runs(fewer: int = 1) -> Files:
    problem = wide(60, 40, rows=True, edges=[])
    entries = [entry for a in range(39) for entry in ((Rule.DOMINATED, 0, a, a + 1), (Rule.OVERFULL, 1, 0, 3))]
    return files(problem, many(40, 600 // fewer, log(*entries)))


def gzip_of(piece: bytes, times: int, start: bytes = b"", end: bytes = b"") -> bytes:
    """Gzip data of start + piece * times + end, without the text in memory."""
    packer = zlib.compressobj(9, wbits=31)
    out = [packer.compress(start)]
    block = piece * 1000
    out += [packer.compress(block) for _ in range(times // 1000)]
    return b"".join([*out, packer.compress(end), packer.flush()])


def empty_objects(fewer: int = 1) -> Files:
    return {
        "objects.json.gz": gzip_of(
            b"{},", 20_000_000 // min(fewer, 5), b'{"format":"shardproof-selection/1","vertices":[', b"{}]}"
        )
    }


def empty_lists(fewer: int = 1) -> Files:
    return {"lists.json.gz": gzip_of(b"[],", 95_000_000 // fewer, b'{"problem":{"nodes":{"costs":[', b"[]]}}}")}


def one_long_list(fewer: int = 1) -> Files:
    return {"list.json.gz": gzip_of(b"0,", 140_000_000 // min(fewer, 5), b'{"problem":{"nodes":{"costs":[[', b"0]]}}}")}


def long_skipped_value(fewer: int = 1) -> Files:
    return {"skipped.json.gz": gzip_of(b"1,[2],", 60_000_000 // fewer, b'{"problem":{"strange":[', b"0]}}")}


def spaces(fewer: int = 1) -> Files:
    return {"spaces.json.gz": gzip_of(b"          ", 90_000_000 // min(fewer, 3), b'{"problem":{', b"}}")}


def one_vertex_objects(fewer: int = 1) -> Files:
    start = b'{"format":"shardproof-selection/1","name":"","tables":[],"edges":[],"vertices":['
    return {
        "vertices.json.gz": gzip_of(
            b'{"name":"","cost":[0]},', 10_000_000 // min(fewer, 8), start, b'{"name":"","cost":[0]}]}'
        )
    }


def objects_in_a_certificate(fewer: int = 1) -> Files:
    text = b'{"format":"shardproof-selection-certificate/1","records":[' + b"{}," * 5_000_000 + b"{}]}"
    return {
        "certificate.spz": write_container(
            None, {"certificate.json": text, "certificate.i64": np.zeros(0, dtype=np.int64)}
        )
    }


def many_vertices(fewer: int = 1) -> Files:
    text = json.dumps(
        {
            "problem": {
                "name": "x",
                "nodes": {"intervals": [], "costs": [], "usages": []},
                "edges": {"nodes": [], "costs": []},
            }
        }
    )
    head, tail = text.split('"costs": []', 1)
    return {
        "nodes.json.gz": gzip.compress((head + '"costs": [' + "[0]," * (900_000 // fewer) + "[0]]" + tail).encode(), 9)
    }


def reduction(part: dict[str, object], times: int) -> Files:
    """A file of `times` equal parts; the machines and costs are empty, the claims need none."""
    head = {
        "format": "shardproof-reduction/1",
        "machines": [],
        "costs": [],
        "parts": [part] * times,
        "best": None,
        "shapes": [[0]],
    }
    return {
        "reduction.spz": write_container(
            None, {"reduction.json": canonical(head), "reduction.i64": np.zeros(0, dtype=np.int64)}
        )
    }


def request(devices: int) -> dict[str, object]:
    return {
        "kind": "placement",
        "hierarchy": [devices],
        "matrix": [[devices]],
        "reduce": [0],
        "order": "row-major",
        "reading": "paper",
        "synthesis": "d-collapsed",
    }


def long_programs(fewer: int = 1) -> Files:
    program = [[0, "InsideGroup", None, "ReduceScatter"], [0, "InsideGroup", None, "AllGather"]] * 500
    return reduction({"request": request(512), "claim": {"kind": "correct", "program": program}, "potentials": 0}, 20)


def many_programs(fewer: int = 1) -> Files:
    program = [[0, "InsideGroup", None, "AllReduce"]]
    return reduction(
        {"request": request(256), "claim": {"kind": "correct", "program": program}, "potentials": 0}, 20_000 // fewer
    )


def many_devices(fewer: int = 1) -> Files:
    return reduction({"request": request(1 << 16), "claim": {"kind": "impossible"}, "potentials": 0}, 1)


def many_states(fewer: int = 1) -> Files:
    """All programs over a deep hierarchy, none listed."""
    deep = {**request(2), "hierarchy": [2] * 8, "matrix": [[2] * 8], "reading": "literal"}
    return reduction({"request": deep, "claim": {"kind": "count", "lengths": [1]}, "potentials": 0}, 1)


MAKERS: tuple[Callable[..., Files], ...] = (
    eliminate_three, zero_messages, left_out_messages, eliminations_with_more, duals, duals_of_long_numbers, rounded_rows, conflicts, wide_splits, points,
    small_eliminations, logs_of_one_entry, long_logs, overfull_runs, empty_objects, empty_lists, one_long_list, long_skipped_value, spaces,
    one_vertex_objects, objects_in_a_certificate, many_vertices, long_programs, many_programs, many_devices, many_states,
)  # fmt: skip
