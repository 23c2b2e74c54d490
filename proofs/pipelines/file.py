"""Writes pipelined training steps as container members.

    pipeline.json    {"format", "graph_sha256", "machine_sha256", "space", "memory_limit", "units", "phases", "cuts",
                      "pairs", "micro_batches", "stages": [[first, end, operators, copies], ..], "quantum", "step",
                      "lower_bound", "leaves": [[stages, micro, first, end, times, once, bound(, phase)(, "nodes")
                      (, channels)], ..], ("ordered": true), ("forbidden": [word, ..]), ("chunks": V),
                      ("interleaved": [[stages, micro, chunks, [weight, ..]], ..]),
                      ("overlap": {"orders": [[task, ..], ..], "stages": [[F, B, U], ..]})}
    graph.json (the step with its whole batch), machine.json, constants/..     as in plans
    schedule.*       the schedule of the chosen pipeline
    leaves/K.*       the selection certificate of leaf K

Placements are rows [name, axes, matrix] as in plans.  Channels are [[c, m, p] of F, of B, of U, [name, ..] of the
chain of F, of B].  Decoding checks types and structure; `verify` says what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...models.communication.choices import Choices
from ...models.pipelines.channels import Channels, Phase
from ...models.pipelines.division import Division
from ..container.archive import Member, read_json, write_container
from ..container.canonical import Reader, canonical
from ..container.kinds import require_kind
from ..plan.placements import placement_rows, read_placements
from ..plan.subject import HASHES, read_subject, subject_hashes, subject_members
from ..schedules.file import decode_schedule, encode_schedule
from ..selection.certificates import SelectionCertificate
from ..selection.file import decode_certificate, encode_certificate
from .certificate import Interleaved, Leaf, Overlap, PipelineCertificate, Stage

PIPELINE: Final = "pipeline.json"
FORMAT: Final = "shardproof-pipeline/1"
MOST_LEAVES: Final = 2000
MOST_PAIRS: Final = 1 << 10
MOST_CHUNKS: Final = 64
MOST_WEIGHT: Final = 1 << 10
_OPTIONAL: Final = ("ordered", "forbidden", "chunks", "interleaved", "overlap")
_FIELDS: Final = [
    "format",
    *HASHES,
    "space",
    "memory_limit",
    "units",
    "phases",
    "cuts",
    "pairs",
    "micro_batches",
    "stages",
    "quantum",
    "step",
    "lower_bound",
    "leaves",
]


def write_pipeline(path: Path | str | None, certificate: PipelineCertificate) -> bytes:
    """Bytes of an `.spz` file with a pipelined step."""
    return write_container(path, encode_pipeline(certificate))


def encode_pipeline(c: PipelineCertificate) -> dict[str, Member]:
    """Members of the container."""
    head = {
        "format": FORMAT,
        **subject_hashes(c.graph, c.machine),
        "space": c.space,
        "memory_limit": c.memory,
        "units": list(c.division.unit),
        "phases": "".join(c.division.phase),
        "cuts": [list(pair) for pair in c.division.cuts],
        "pairs": [list(pair) for pair in c.pairs],
        "micro_batches": c.micro,
        "stages": [
            [s.first, s.end, placement_rows(s.choices.operators), placement_rows(s.choices.copies)] for s in c.stages
        ],
        "quantum": c.quantum,
        "step": c.step,
        "lower_bound": c.lower_bound,
        **({"ordered": True} if c.ordered else {}),
        **({"forbidden": list(c.forbidden)} if c.forbidden else {}),
        **({"chunks": c.chunks} if c.chunks > 1 else {}),
        **({"interleaved": rows} if (rows := [_row(x) for x in c.interleaved]) else {}),
        **({} if c.overlap is None else {"overlap": _orders(c.overlap)}),
        "leaves": [
            [
                *(x.stages, x.micro, x.first, x.end, x.times, x.once, x.bound),
                *([x.phase] if x.phase else []),
                *(["nodes"] if x.nodes else []),
                *([] if x.channels is None else [_channels(x.channels, x.chains)]),
            ]
            for x in c.leaves
        ],
    }
    members: dict[str, Member] = {
        PIPELINE: canonical(head),
        **subject_members(c.graph, c.machine),
        **encode_schedule(c.schedule),
    }
    for k, leaf in enumerate(c.leaves):
        members |= encode_certificate(leaf.certificate, f"leaves/{k}")
    return members


def decode_pipeline(members: Mapping[str, Member]) -> PipelineCertificate:
    """Inverse of `encode_pipeline`; `ContainerError` names what is wrong."""
    require_kind(members, PIPELINE)
    head = read_json(members, PIPELINE).fields(*_FIELDS, optional=_OPTIONAL)
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    graph, machine = read_subject(head, members)
    unit = tuple(head["units"].integers(-1, 1 << 20))
    phase = head["phases"].text(1 << 24)
    if len(unit) != len(graph.operators) or len(phase) != len(unit) or set(phase) - set("FBU"):
        head["units"].fail("there must be one unit and one phase F, B or U per operator")
    cuts = tuple((a.text(), b.text()) for a, b in (r.parts(2) for r in head["cuts"].items()))
    stages = tuple(
        Stage(a.integer(0, 1 << 20), b.integer(0, 1 << 20), Choices(read_placements(c), read_placements(d)))
        for a, b, c, d in (r.parts(4) for r in head["stages"].items(1 << 8))
    )
    leaves = tuple(
        _leaf(r, decode_certificate(members, f"leaves/{k}")) for k, r in enumerate(head["leaves"].items(MOST_LEAVES))
    )
    if {n for n in members if n.startswith("leaves/")} != {
        f"leaves/{k}.{end}" for k in range(len(leaves)) for end in ("json", "i64")
    }:
        head["leaves"].fail("must list the certificates under leaves/, each once")
    pairs = tuple(
        (a.integer(1, 1 << 20), b.integer(1, 1 << 20)) for a, b in (r.parts(2) for r in head["pairs"].items(MOST_PAIRS))
    )
    return PipelineCertificate(
        graph,
        machine,
        head["space"].text(100),
        None if head["memory_limit"].is_null() else head["memory_limit"].integer(0, 1 << 62),
        Division(unit, tuple(phase), cuts),
        pairs,
        head["micro_batches"].integer(1, 1 << 20),
        stages,
        head["quantum"].integer(1, 1 << 40),
        decode_schedule(members),
        head["step"].integer(0, 1 << 62),
        head["lower_bound"].integer(0, 1 << 62),
        leaves,
        head.has("ordered") and head["ordered"].flag(),
        tuple(word.text(20) for word in head["forbidden"].items(8)) if head.has("forbidden") else (),
        head["chunks"].integer(2, MOST_CHUNKS) if head.has("chunks") else 1,
        tuple(map(_interleaved, head["interleaved"].items(MOST_PAIRS))) if head.has("interleaved") else (),
        _overlap(head["overlap"], len(stages)) if head.has("overlap") else None,
    )


def _row(x: Interleaved) -> list[object]:
    return [x.stages, x.micro, x.chunks, list(x.weights)]


def _interleaved(reader: Reader) -> Interleaved:
    stages, micro, chunks, weights = reader.parts(4)
    found = Interleaved(
        stages.integer(2, 1 << 8),
        micro.integer(1, 1 << 20),
        chunks.integer(2, MOST_CHUNKS),
        tuple(weights.integers(0, 1 << 20, 1 << 20)),
    )
    if len(found.weights) != found.lines or not any(found.weights):
        weights.fail(f"must have a weight for each of {found.lines} lines, not all zero")
    return found


def _orders(x: Overlap) -> dict[str, object]:
    return {"orders": [list(order) for order in x.orders], "stages": [list(row) for row in x.stages]}


def _overlap(reader: Reader, count: int) -> Overlap:
    head = reader.fields("orders", "stages")
    orders = tuple(tuple(row.integers(0, 1 << 26, 1 << 22)) for row in head["orders"].items(3 * count))
    rows = [row.integers(0, len(orders) - 1, 3) for row in head["stages"].items(count)]
    if len(rows) != count or any(len(row) != 3 for row in rows):
        head["stages"].fail(f"must have the numbers of three orders for each of {count} stages")
    return Overlap(orders, tuple((f, b, u) for f, b, u in rows))


def _channels(x: Channels, chains: tuple[tuple[str, ...], ...]) -> list[object]:
    return [*(list(x.of(phase)) for phase in "FBU"), *map(list, chains)]


def _weighed(reader: Reader) -> tuple[Channels, tuple[tuple[str, ...], tuple[str, ...]]]:
    *weights, forward, backward = reader.parts(5)
    rows: list[Phase] = []
    for x in weights:
        c, m, p = (y.integer(0, MOST_WEIGHT) for y in x.parts(3))
        rows.append((c, m, p))
    found = Channels(*rows)
    if found.whole == 0 or {sum(row) for row in rows} != {found.whole} or found.update[2]:
        reader.fail("weights of every pass must add up to the same number above 0; updates have no chain")
    return found, (forward.texts(1 << 16), backward.texts(1 << 16))


def _leaf(reader: Reader, certificate: SelectionCertificate) -> Leaf:
    row = tuple(reader.items())
    weighed = _weighed(row[-1]) if len(row) > 7 and type(row[-1].value) is list else (None, ((), ()))
    row = row if weighed[0] is None else row[:-1]
    if len(row) not in (7, 8, 9):
        reader.fail("must have 7 parts, and behind them a phase, nodes, channels, or several of these in this order")
    words = [word.text(5) for word in row[7:]]
    phase = words[0] if words and words[0] in ("F", "B") else ""
    nodes = words == [*([phase] if phase else []), "nodes"]
    if words != [*([phase] if phase else []), *(["nodes"] if nodes else [])]:
        row[7].fail("must be F or B, or nodes behind it")
    stages, micro, first, end, times = (x.integer(0, 1 << 20) for x in row[:5])
    once, bound = row[5].flag(), row[6].integer(0, 1 << 62)
    return Leaf(stages, micro, first, end, times, once, bound, certificate, phase, nodes, *weighed)
