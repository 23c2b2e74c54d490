"""Writes overlapped plans as container members.

    overlap.json     {"format", "graph_sha256", "machine_sha256", "space", "operators", "copies", "quantum", "chains",
                      "weights", "makespan", "lower_bound"} and, with a limit, "memory_limit"; "makespan" null where
                      nothing fits
    graph.json, machine.json, constants/..     as in plans
    schedule.*       the schedule, if any      least.*      the bound

Placements are rows [name, axes, matrix] as in plans.  Decoding checks types and structure; `verify` says what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...models.communication.choices import Choices
from ..container.archive import Member, read_json, write_container
from ..container.canonical import canonical
from ..container.kinds import require_kind
from ..plan.placements import placement_rows, read_placements
from ..plan.subject import HASHES, read_subject, subject_hashes, subject_members
from ..schedules.file import decode_schedule, encode_schedule
from ..selection.file import decode_certificate, encode_certificate
from .certificate import OverlapCertificate

OVERLAP: Final = "overlap.json"
FORMAT: Final = "shardproof-overlap/1"
MOST_WEIGHT: Final = 1 << 10
MOST_CHAINS: Final = 16
_FIELDS: Final = [
    "format",
    *HASHES,
    "space",
    "operators",
    "copies",
    "quantum",
    "chains",
    "weights",
    "makespan",
    "lower_bound",
]


def write_overlap(path: Path | str | None, certificate: OverlapCertificate) -> bytes:
    """Bytes of an `.spz` file with an overlapped plan."""
    return write_container(path, encode_overlap(certificate))


def encode_overlap(c: OverlapCertificate) -> dict[str, Member]:
    """Members of the container."""
    head = {
        "format": FORMAT,
        **subject_hashes(c.graph, c.machine),
        "space": c.space,
        "operators": placement_rows(c.choices.operators),
        "copies": placement_rows(c.choices.copies),
        "quantum": c.quantum,
        "chains": [list(chain) for chain in c.chains],
        "weights": list(c.weights),
        "makespan": None if c.schedule is None else c.makespan,
        "lower_bound": c.lower_bound,
        **({} if c.memory is None else {"memory_limit": c.memory}),
    }
    return {
        OVERLAP: canonical(head),
        **subject_members(c.graph, c.machine),
        **({} if c.schedule is None else encode_schedule(c.schedule)),
        **encode_certificate(c.least, "least"),
    }


def decode_overlap(members: Mapping[str, Member]) -> OverlapCertificate:
    """Inverse of `encode_overlap`; `ContainerError` names what is wrong."""
    require_kind(members, OVERLAP)
    head = read_json(members, OVERLAP).fields(*_FIELDS, optional=("memory_limit",))
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    graph, machine = read_subject(head, members)
    chains = tuple(row.texts(1 << 20) for row in head["chains"].items(MOST_CHAINS))
    weights = tuple(head["weights"].integers(0, MOST_WEIGHT, 2 + MOST_CHAINS))
    if len(weights) != 2 + len(chains) or sum(weights) == 0:
        head["weights"].fail("must be two integers and one per chain, not all 0")
    nothing = head["makespan"].is_null()
    if nothing and any(name.startswith("schedule.") for name in members):
        head["makespan"].fail("is null, and there is a schedule")
    return OverlapCertificate(
        graph,
        machine,
        head["space"].text(100),
        Choices(read_placements(head["operators"]), read_placements(head["copies"])),
        head["quantum"].integer(1, 1 << 40),
        None if nothing else decode_schedule(members),
        chains,
        weights,
        0 if nothing else head["makespan"].integer(0, 1 << 62),
        head["lower_bound"].integer(0, 1 << 62),
        decode_certificate(members, "least"),
        head["memory_limit"].integer(0, 1 << 60) if head.has("memory_limit") else None,
    )
