"""Writes plans with submeshes as container members.

    views.json       {"format", "graph_sha256", "machine_sha256", "space", "regions", "operators", "copies"},
                     "memory_limit" (bytes per device) where there is a limit
                     regions: [{"branches": [[[operator, ..] per phase] per branch], "divisions": [[view per branch]]}]
                     placements: [name, axes, matrix, view], view: [starts, counts] or null
    graph.json, machine.json, constants/..     as in plans      least.*     the certificate

Decoding checks types and structure; `verify` says what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...models.communication.choices import Choices
from ...models.layout.placement import Placement
from ...models.layout.submesh import Submesh
from ...models.views.regions import Region, regions_json
from ..container.archive import Member, read_json, write_container
from ..container.canonical import Reader, canonical
from ..container.kinds import require_kind
from ..plan.subject import HASHES, read_subject, subject_hashes, subject_members
from ..selection.file import decode_certificate, encode_certificate
from .certificate import SubmeshCertificate

VIEWS: Final = "views.json"
FORMAT: Final = "shardproof-views/1"
MOST_SIZE: Final = 1 << 20
_FIELDS: Final = ["format", *HASHES, "space", "regions", "operators", "copies"]

Placements = tuple[tuple[str, Placement], ...]


def write_submesh_plan(path: Path | str | None, certificate: SubmeshCertificate) -> bytes:
    """Bytes of an `.spz` file with a plan with submeshes."""
    return write_container(path, encode_submesh_plan(certificate))


def encode_submesh_plan(c: SubmeshCertificate) -> dict[str, Member]:
    """Members of the container."""
    head = {
        "format": FORMAT,
        **subject_hashes(c.graph, c.machine),
        "space": c.space,
        "regions": regions_json(c.regions),
        "operators": _listed(c.choices.operators),
        "copies": _listed(c.choices.copies),
        **({} if c.memory is None else {"memory_limit": c.memory}),
        **({"rows": True} if c.rows else {}),
    }
    return {
        VIEWS: canonical(head),
        **subject_members(c.graph, c.machine),
        **encode_certificate(c.least, "least"),
    }


def _listed(items: Placements) -> list[object]:
    return [
        [
            name,
            list(p.axes),
            [list(r) for r in p.matrix],
            None if p.view is None else [list(p.view.starts), list(p.view.counts)],
        ]
        for name, p in items
    ]


def decode_submesh_plan(members: Mapping[str, Member]) -> SubmeshCertificate:
    """Inverse of `encode_submesh_plan`; `ContainerError` names what is wrong."""
    require_kind(members, VIEWS)
    head = read_json(members, VIEWS).fields(*_FIELDS, optional=("memory_limit", "rows"))
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    rows = head.has("rows") and head["rows"].flag()
    if head.has("rows") and not (rows and head.has("memory_limit")):
        head["rows"].fail("must be true, of a plan with a memory limit, or missing")
    graph, machine = read_subject(head, members)
    return SubmeshCertificate(
        graph,
        machine,
        head["space"].text(100),
        tuple(_region(row) for row in head["regions"].items()),
        Choices(_placements(head["operators"]), _placements(head["copies"])),
        decode_certificate(members, "least"),
        head["memory_limit"].integer(0, 1 << 60) if head.has("memory_limit") else None,
        rows,
    )


def _region(row: Reader) -> Region:
    fields = row.fields("branches", "divisions")
    branches = tuple(tuple(phase.texts() for phase in branch.items()) for branch in fields["branches"].items())
    divisions = tuple(tuple(_view(v) for v in views.items()) for views in fields["divisions"].items())
    if len(branches) < 2 or {len(b) for b in branches} not in ({1}, {2}):
        fields["branches"].fail("must be two or more, all of one phase or all of two")
    if not divisions or any(len(views) != len(branches) for views in divisions):
        fields["divisions"].fail("must be one or more, with a submesh for every branch")
    return Region(branches, divisions)


def _view(row: Reader) -> Submesh:
    starts, counts = row.parts(2)
    return Submesh(tuple(starts.integers(0, MOST_SIZE)), tuple(counts.integers(1, MOST_SIZE)))


def _placements(rows: Reader) -> Placements:
    out = []
    for row in rows.items():
        name, axes, matrix, view = row.parts(4)
        rows_of = tuple(tuple(r.integers(1, 1 << 40)) for r in matrix.items())
        if len({len(r) for r in rows_of}) > 1:
            matrix.fail("must have rows of one length")
        where = None if view.is_null() else _view(view)
        out.append((name.text(), Placement(axes.texts(), rows_of, where)))
    return tuple(out)
