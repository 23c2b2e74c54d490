"""Writes certificates of selection problems as container members.

Two members per certificate, named by a prefix: `P.json` (claim and records) and `P.i64` (all arrays, see `arrays`).

    P.json  {"format", "problem_sha256", "claim": {"kind", ...}, "records": [{"kind", ...}, ...], "shapes": [[...],
            ...]}

`records` is the tree as a flat list in preorder: record 0 is the root, children are numbers of later records, every
other record is the child of exactly one.  So reading needs no recursion, whatever the depth.  Lists of numbers are
array references.  Decoding checks types and structure only; whether the numbers prove anything is for `verify` to say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, assert_never

import numpy as np

from ...models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, WithinGap
from ...models.problem.selection_problem import Ints
from ..container.archive import LIMITS, Limits, Member, read_array, read_container, read_json, write_container
from ..container.arrays import ArrayPool, ArrayTable
from ..container.canonical import ContainerError, Reader, canonical
from ..container.kinds import require_kind
from .certificates import (
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

FORMAT: Final = "shardproof-selection-certificate/1"
MAX_RECORDS: Final = 100_000
PREFIX: Final = "certificate"


def write_certificate(path: Path | str | None, certificate: SelectionCertificate) -> bytes:
    """Bytes of an `.spz` file that holds this certificate alone, also written to `path` if given."""
    return write_container(path, encode_certificate(certificate))


def read_certificate(source: bytes | Path | str, limits: Limits = LIMITS) -> SelectionCertificate:
    """Inverse of `write_certificate`; `ContainerError` on anything malformed."""
    members = read_container(source, limits)
    require_kind(members, f"{PREFIX}.json")
    return decode_certificate(members)


def encode_certificate(certificate: SelectionCertificate, prefix: str = PREFIX) -> dict[str, Member]:
    """Members that hold the certificate."""
    pool = ArrayPool()
    head = {
        "format": FORMAT,
        "problem_sha256": certificate.problem_sha256,
        "claim": _encode_claim(certificate.claim, pool),
        "records": _encode_records(certificate.proof, pool),
        "shapes": pool.shapes(),
    }
    return {f"{prefix}.json": canonical(head), f"{prefix}.i64": pool.flat()}


def decode_certificate(members: Mapping[str, Member], prefix: str = PREFIX) -> SelectionCertificate:
    """The certificate under `prefix`, with exact types; `ContainerError` names what is wrong."""
    head = read_json(members, f"{prefix}.json").fields("format", "problem_sha256", "claim", "records", "shapes")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    arrays = ArrayTable(head["shapes"], read_array(members, f"{prefix}.i64"))
    digest = head["problem_sha256"]
    if len(digest.text(64)) != 64 or set(digest.text(64)) - set("0123456789abcdef"):
        digest.fail("must be 64 hexadecimal digits")
    return SelectionCertificate(
        digest.text(64), _decode_claim(head["claim"], arrays), _decode_records(head["records"], arrays)
    )


def _int(value: object) -> int:
    """Exact Python integer of an int or numpy integer (solvers work with both); never of a bool or float."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ContainerError("certificate to be written", f"{value!r} is not an integer")
    return operator.index(value)


def _ints(values: Iterable[object]) -> list[int]:
    return [_int(v) for v in values]


def _encode_claim(claim: SelectionClaim, pool: ArrayPool) -> dict[str, object]:
    match claim:
        case Optimal():
            return {"kind": "optimal", "solution": pool.add_numbers(_ints(claim.solution)), "cost": _int(claim.cost)}
        case WithinGap():
            bound = _int(claim.lower_bound)
            return {
                "kind": "within-gap",
                "solution": pool.add_numbers(_ints(claim.solution)),
                "cost": _int(claim.cost),
                "lower_bound": bound,
            }
        case LowerBound():
            return {"kind": "lower-bound", "lower_bound": _int(claim.lower_bound)}
        case Infeasible():
            return {
                "kind": "infeasible",
                "steps": pool.add_numbers(_ints(claim.steps)),
                "vertices": pool.add_numbers(_ints(claim.vertices)),
                "least_limit": None if claim.least_limit is None else _int(claim.least_limit),
                "witness": None if claim.witness is None else pool.add_numbers(_ints(claim.witness)),
            }
        case _:
            assert_never(claim)


def _decode_claim(claim: Reader, arrays: ArrayTable) -> SelectionClaim:
    match claim["kind"].text(40):
        case "optimal":
            claim.fields("kind", "solution", "cost")
            return Optimal(arrays.numbers(claim["solution"]), claim["cost"].integer())
        case "within-gap":
            claim.fields("kind", "solution", "cost", "lower_bound")
            return WithinGap(arrays.numbers(claim["solution"]), claim["cost"].integer(), claim["lower_bound"].integer())
        case "lower-bound":
            claim.fields("kind", "lower_bound")
            return LowerBound(claim["lower_bound"].integer())
        case "infeasible":
            claim.fields("kind", "steps", "vertices", "least_limit", "witness")
            limit, witness = claim["least_limit"], claim["witness"]
            return Infeasible(
                arrays.numbers(claim["steps"]),
                arrays.numbers(claim["vertices"]),
                None if limit.is_null() else limit.integer(0),
                None if witness.is_null() else arrays.numbers(witness),
            )
        case other:
            claim["kind"].fail(f"unknown claim {other!r}")


def _encode_records(root: Record, pool: ArrayPool) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    # record, list of the parent that waits for its number
    todo: list[tuple[Record, list[object] | None]] = [(root, None)]
    while todo:
        record, waiting = todo.pop()
        if waiting is not None:
            waiting.append(len(out))
        children: list[object] = []
        out.append(_encode_record(record, children, pool))
        match record:
            case Split():
                todo.extend((child, children) for child in reversed(record.children))
            case Dual() | Elimination() | Reduced():
                if record.then is not None:
                    todo.append((record.then, children))
            case RowConflict() | Point() | Open():
                pass
            case _:
                assert_never(record)
        if len(out) > MAX_RECORDS:
            raise ContainerError("certificate to be written", f"more than {MAX_RECORDS} records")
    return out


def _encode_record(record: Record, children: list[object], pool: ArrayPool) -> dict[str, object]:
    """One record; `children`: a list that takes the numbers of those below it."""
    match record:
        case Dual():
            return {
                "kind": "dual",
                "to_u": pool.add_numbers(pool.add(a) for a in record.to_u),
                "to_v": pool.add_numbers(pool.add(a) for a in record.to_v),
                "denominator": _int(record.denominator),
                "multipliers": [_ints(pair) for pair in record.multipliers],
                "then": children,
                **({"rounded": [_encode_rounded(row, pool) for row in record.rounded]} if record.rounded else {}),
            }
        case Split():
            parts = pool.add_lists([_ints(p) for p in record.parts])
            return {"kind": "split", "vertex": _int(record.vertex), "parts": parts, "children": children}
        case Elimination():
            return {
                "kind": "elimination",
                "order": pool.add_numbers(_ints(record.order)),
                "scopes": pool.add_lists([_ints(s) for s in record.scopes]),
                "messages": pool.add_numbers(pool.add(m) for m in record.messages),
                **({"fine": True} if record.fine else {}),
                **({} if record.then is None else {"then": children}),
            }
        case RowConflict():
            return {"kind": "row-conflict", "multipliers": [_ints(pair) for pair in record.multipliers]}
        case Point():
            return {"kind": "point"}
        case Open():
            return {"kind": "open"}
        case Reduced():
            # equal numbers stand together: half the file
            columns = [pool.add(np.ascontiguousarray(column)) for column in _log(record.log).T]
            steps = pool.add_numbers(pool.add(a) for a in record.steps)
            return {"kind": "reduced", "log": columns, "steps": steps, "then": children}
        case _:
            assert_never(record)


def _decode_records(records: Reader, arrays: ArrayTable) -> Record:
    items = list(records.items(MAX_RECORDS))
    if not items:
        records.fail("the proof is empty")
    # a record is taken out when its parent is built: each has one parent
    built: list[Record | None] = [None] * len(items)

    def take(parent: int, child: Reader) -> Record:
        number = child.integer(parent + 1, len(items) - 1)
        record, built[number] = built[number], None
        if record is None:
            child.fail(f"record {number} has two parents")
        return record

    for i in range(len(items) - 1, -1, -1):  # children stand after their parent
        built[i] = _decode_record(items[i], arrays, partial(take, i))
    root, built[0] = built[0], None
    stray = [i for i, record in enumerate(built) if record is not None]
    if root is None or stray:
        records.fail(f"records {stray[:5]} belong to no parent")
    return root


def _decode_record(item: Reader, arrays: ArrayTable, take: Callable[[Reader], Record]) -> Record:
    """One record; `take`: the child with a number."""
    match item["kind"].text(40):
        case "dual":
            item.fields("kind", "to_u", "to_v", "denominator", "multipliers", "then", optional=("rounded",))
            then = [take(child) for child in item["then"].items(1)]
            return Dual(
                arrays.many(item["to_u"]),
                arrays.many(item["to_v"]),
                item["denominator"].integer(),
                _pairs(item["multipliers"]),
                then[0] if then else None,
                tuple(_decode_rounded(row, arrays) for row in item["rounded"].items()) if item.has("rounded") else (),
            )
        case "split":
            item.fields("kind", "vertex", "parts", "children")
            children = tuple(take(child) for child in item["children"].items(MAX_RECORDS))
            return Split(item["vertex"].integer(), arrays.lists(item["parts"]), children)
        case "elimination":
            item.fields("kind", "order", "scopes", "messages", optional=("fine", "then"))
            then = [take(child) for child in item["then"].items(1)] if item.has("then") else []
            return Elimination(
                arrays.numbers(item["order"]),
                arrays.lists(item["scopes"]),
                arrays.many(item["messages"]),
                then[0] if then else None,
                item.has("fine") and item["fine"].flag(),
            )
        case "row-conflict":
            item.fields("kind", "multipliers")
            return RowConflict(_pairs(item["multipliers"]))
        case "point":
            item.fields("kind")
            return Point()
        case "open":
            item.fields("kind")
            return Open()
        case "reduced":
            item.fields("kind", "log", "steps", "then")
            inner = [take(child) for child in item["then"].items(1)]
            if not inner:
                item.fail("needs a record about the reduced problem")
            return Reduced(_columns(item["log"], arrays), arrays.many(item["steps"]), inner[0])
        case other:
            item["kind"].fail(f"unknown record {other!r}")


def _encode_rounded(row: Rounded, pool: ArrayPool) -> list[int]:
    return [_int(row.step), _int(row.multiplier), _int(row.modulus), pool.add(row.reference)]


def _decode_rounded(row: Reader, arrays: ArrayTable) -> Rounded:
    parts = list(row.items(4))
    if len(parts) != 4:
        row.fail("must be step, multiplier, modulus, reference")
    return Rounded(parts[0].integer(), parts[1].integer(), parts[2].integer(), arrays.get(parts[3]))


def _log(log: Ints) -> Ints:
    if log.ndim != 2 or log.shape[1] != 4 or log.dtype != np.int64:
        raise ContainerError(
            "certificate to be written",
            f"reduction log has shape {log.shape} and type {log.dtype}, not (entries, 4) int64",
        )
    return log


def _columns(log: Reader, arrays: ArrayTable) -> Ints:
    columns = [arrays.get(column) for column in log.items(4)]
    if len(columns) != 4 or any(c.ndim != 1 or c.size != columns[0].size for c in columns):
        log.fail("must be the numbers of four arrays of one length")
    return np.stack(columns, axis=1)


def _pairs(pairs: Reader) -> tuple[tuple[int, int], ...]:
    out = []
    for item in pairs.items():
        parts = list(item.items(2))
        if len(parts) != 2:
            item.fail("must be a pair: step, multiplier")
        out.append((parts[0].integer(), parts[1].integer()))
    return tuple(out)
