"""Writes certificates of extractions as a container member.

    extraction.json  {"format", "egraph_sha256", "claim": {"kind", ..}, "dominated", "cuts", "records"}

Lists of tuples are kept flat.  Decoding checks types, ranges and structure; whether it proves anything is for `verify`
to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from ..container.archive import LIMITS, Limits, Member, read_container, read_json, write_container
from ..container.canonical import WIDE, Reader, canonical
from ..container.kinds import require_kind
from .certificate import ABSENT, Cut, Dual, Extraction, ExtractionCertificate, NoExtraction, Record, Split

EXTRACTION: Final = "extraction.json"
FORMAT: Final = "shardproof-extraction/1"
MAX_RECORDS: Final = 100_000
MAX_CUTS: Final = 100_000
NUMBER: Final = (0, 1 << 40)


def write_extraction(path: Path | str | None, certificate: ExtractionCertificate) -> bytes:
    """Bytes of an `.spz` file with this certificate, also written to `path` if given."""
    return write_container(path, encode_extraction(certificate))


def read_extraction(source: bytes | Path | str, limits: Limits = LIMITS) -> ExtractionCertificate:
    """Inverse of `write_extraction`; `ContainerError` on anything malformed."""
    members = read_container(source, limits)
    require_kind(members, EXTRACTION)
    return decode_extraction(members)


def encode_extraction(certificate: ExtractionCertificate) -> dict[str, Member]:
    """Members of the container."""
    claim: dict[str, object] = {"kind": "no-extraction"}
    if isinstance(certificate.claim, Extraction):
        c = certificate.claim
        kind = "optimal" if c.optimal else "within-gap"
        claim = {"kind": kind, "chosen": list(c.chosen), "cost": c.cost, "lower_bound": c.lower_bound}
    head = {
        "format": FORMAT,
        "egraph_sha256": certificate.egraph_sha256,
        "claim": claim,
        "dominated": list(chain.from_iterable(certificate.dominated)),
        "cuts": [{"top": c.top, "classes": list(c.classes)} for c in certificate.cuts],
        "records": [_encode(r) for r in certificate.records],
    }
    return {EXTRACTION: canonical(head)}


def decode_extraction(members: Mapping[str, Member]) -> ExtractionCertificate:
    """`ContainerError` names what is wrong."""
    head = read_json(members, EXTRACTION).fields("format", "egraph_sha256", "claim", "dominated", "cuts", "records")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    digest = head["egraph_sha256"].text(64)
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        head["egraph_sha256"].fail("must be 64 hexadecimal digits")
    records = tuple(_record(r) for r in head["records"].items(MAX_RECORDS))
    _tree(records, head["records"])
    cuts = tuple(
        Cut(c["top"].integer(*NUMBER), tuple(c["classes"].integers(*NUMBER)))
        for c in (item.fields("top", "classes") for item in head["cuts"].items(MAX_CUTS))
    )
    pairs = _tuples(head["dominated"], 2, NUMBER)
    return ExtractionCertificate(digest, _claim(head["claim"]), tuple((a, b) for a, b in pairs), cuts, records)


def _claim(value: Reader) -> Extraction | NoExtraction:
    match value["kind"].text(40):
        case "optimal" | "within-gap" as kind:
            value.fields("kind", "chosen", "cost", "lower_bound")
            chosen = tuple(value["chosen"].integers(*NUMBER))
            return Extraction(chosen, value["cost"].integer(), value["lower_bound"].integer(), kind == "optimal")
        case "no-extraction":
            value.fields("kind")
            return NoExtraction()
        case other:
            value["kind"].fail(f"unknown claim {other!r}; optimal, within-gap or no-extraction")


def _encode(record: Record) -> dict[str, object]:
    if isinstance(record, Split):
        return {"kind": "split", "class": record.owner, "parts": [list(p) for p in record.parts], "then": record.then}
    return {
        "kind": "dual",
        "denominator": record.denominator,
        "children": list(chain.from_iterable(record.children)),
        "parents": list(chain.from_iterable(record.parents)),
        "cuts": list(chain.from_iterable(record.cuts)),
        "then": [] if record.then is None else [record.then],
    }


def _record(value: Reader) -> Record:
    match value["kind"].text(40):
        case "split":
            value.fields("kind", "class", "parts", "then")
            parts = tuple(tuple(p.integers(ABSENT, NUMBER[1])) for p in value["parts"].items())
            then = tuple(value["then"].integers(0, MAX_RECORDS))
            if len(parts) != len(then):
                value["then"].fail(f"{len(then)} records for {len(parts)} parts")
            return Split(value["class"].integer(*NUMBER), parts, then)
        case "dual":
            value.fields("kind", "denominator", "children", "parents", "cuts", "then")
            then = tuple(value["then"].integers(0, MAX_RECORDS, 1))
            return Dual(
                value["denominator"].integer(),
                tuple((c, d, m) for c, d, m in _tuples(value["children"], 3)),
                tuple((d, m) for d, m in _tuples(value["parents"], 2)),
                tuple((k, m) for k, m in _tuples(value["cuts"], 2)),
                then[0] if then else None,
            )
        case other:
            value["kind"].fail(f"unknown record {other!r}; dual or split")


def _tuples(value: Reader, width: int, bounds: tuple[int, int] = WIDE) -> list[tuple[int, ...]]:
    flat = value.integers(*bounds)
    if len(flat) % width:
        value.fail(f"must hold tuples of {width} numbers, one after another")
    return [tuple(flat[i : i + width]) for i in range(0, len(flat), width)]


def _tree(records: tuple[Record, ...], place: Reader) -> None:
    """Record 0 is the root; every other record is named once, by an earlier one."""
    named = [False] * len(records)
    for i, record in enumerate(records):
        then = record.then if isinstance(record, Split) else () if record.then is None else (record.then,)
        for k in then:
            if not i < k < len(records) or named[k]:
                place.fail(f"record {i} names record {k}, which is no later record or is named twice")
            named[k] = True
    if not all(named[1:]):
        place.fail(f"record {named.index(False, 1)} is named by none")
