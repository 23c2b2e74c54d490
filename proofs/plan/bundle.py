"""The plan bundle: one file that ties model, machine, choices, certificate and versions together.

    plan.json         {"format", "space", "memory_limit", "problem_sha256", "graph_sha256", "machine_sha256",
                       "decisions": {"operators": [[name, axes, matrix], ..], "copies": [[tensor, axes, matrix], ..]},
                       "communication": [[tensor, writer, reader, position, collective, loads, phases], ..],
                       "versions": {..}}
    graph.json, machine.json, constants/..      what the plan is about (`proofs.plan.subject`)
    certificate.*     the selection certificate
    bars.json         of a machine with error bounds: what holds within them (`proofs.plan.error_bounds`)
    joint.json, ..    of a joint plan (`proofs.joint.file`): then graph.json is the program that was chosen, and the
                      certificate is about the problem over all programs

Cost tables are not stored: whoever checks builds them again.  No times of day, no durations, no paths: two runs give
the same bytes.  Identity: see `container.identity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ...models.communication.choices import Choices
from ...models.machine.machine import Machine
from ...models.program.graph import Graph, Role
from ..container.archive import Member, identity, read_container, read_json, write_container
from ..container.canonical import ContainerError, Reader, canonical
from ..container.kinds import require_kind
from ..joint.file import HEAD, Jointly, decode_joint, encode_joint
from ..selection.certificates import SelectionCertificate
from ..selection.file import decode_certificate, encode_certificate
from .error_bounds import MEMBER, ErrorBounds, decode_error_bounds, encode_error_bounds
from .placements import placement_rows, read_placements
from .subject import HASHES, read_subject, same_hash, subject_hashes, subject_members

FORMAT: Final = "shardproof-plan/1"


@dataclass(frozen=True)
class Moved:
    """Totals of one resharding: elements and phases per level; `reader` None is the copy, `writer` None the
    copy.
    """

    tensor: str
    writer: str | None
    reader: str | None
    position: int
    collective: str
    loads: tuple[int, ...]
    phases: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Everything a plan says.  `memory_limit`: bytes per device, or None.  `joint`: of a plan whose program was chosen
    together with its placements.  `bars`: what holds within the machine's error bounds, if it has some.
    """

    graph: Graph
    machine: Machine
    space: str
    memory_limit: int | None
    choices: Choices
    communication: tuple[Moved, ...]
    certificate: SelectionCertificate
    versions: tuple[tuple[str, str], ...]
    joint: Jointly | None = None
    bars: ErrorBounds | None = None

    @property
    def user_graph(self) -> Graph:
        """The user's graph: that of the plan, or of a joint plan the one that its program is equal to."""
        if self.joint is None:
            return self.graph
        base = self.joint.egraph.base
        given = {t.name: t for t in self.graph.tensors}  # with the constants that the file holds
        return replace(base, tensors=tuple(t if t.role is Role.VALUE else given[t.name] for t in base.tensors))


def encode_plan(plan: Plan) -> dict[str, Member]:
    """Members of the plan's container."""

    head = {
        "format": FORMAT,
        "space": plan.space,
        "memory_limit": plan.memory_limit,
        "problem_sha256": plan.certificate.problem_sha256,
        **subject_hashes(plan.graph, plan.machine),
        "decisions": _decisions(plan.choices),
        "communication": [
            [m.tensor, m.writer, m.reader, m.position, m.collective, list(m.loads), list(m.phases)]
            for m in plan.communication
        ],
        "versions": dict(plan.versions),
    }
    return {
        "plan.json": canonical(head),
        **subject_members(plan.graph, plan.machine),
        **encode_certificate(plan.certificate),
        **({} if plan.joint is None else encode_joint(plan.joint)),
        **({} if plan.bars is None else {MEMBER: encode_error_bounds(plan.bars, _decisions)}),
    }


def _decisions(choices: Choices) -> dict[str, object]:
    return {"operators": placement_rows(choices.operators), "copies": placement_rows(choices.copies)}


def write_plan(path: Path | str | None, plan: Plan) -> bytes:
    """Bytes of the plan's `.spz` file, also written to `path` if given."""
    return write_container(path, encode_plan(plan))


def read_plan(source: bytes | Path | str) -> tuple[Plan, str]:
    """The plan and its identity.  `ContainerError` on anything malformed, hashes that do not fit included."""
    members = read_container(source)
    return decode_plan(members), identity(members)


def decode_plan(members: Mapping[str, Member]) -> Plan:
    """Inverse of `encode_plan`."""
    require_kind(members, "plan.json")
    head = read_json(members, "plan.json").fields(
        "format",
        "space",
        "memory_limit",
        "problem_sha256",
        *HASHES,
        "decisions",
        "communication",
        "versions",
    )
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    graph, machine = read_subject(head, members)
    certificate = decode_certificate(members)
    same_hash(head["problem_sha256"], certificate.problem_sha256)
    versions = head["versions"]
    if not isinstance(versions.value, dict):
        versions.fail("must be an object")
    if HEAD in members and MEMBER in members:
        raise ContainerError(f"member {MEMBER!r}", "is not known in a joint plan")
    return Plan(
        graph,
        machine,
        head["space"].text(100),
        None if head["memory_limit"].is_null() else head["memory_limit"].integer(0, 1 << 62),
        _choices(head["decisions"]),
        tuple(_moved(m) for m in head["communication"].items()),
        certificate,
        tuple((name, versions[name].text(200)) for name in sorted(versions.value)),
        decode_joint(members) if HEAD in members else None,
        decode_error_bounds(read_json(members, MEMBER), _choices) if MEMBER in members else None,
    )


def _choices(decisions: Reader) -> Choices:
    both = decisions.fields("operators", "copies")
    return Choices(read_placements(both["operators"]), read_placements(both["copies"]))


def _moved(row: Reader) -> Moved:
    tensor, writer, reader, position, collective, loads, phases = row.parts(7)
    return Moved(
        tensor.text(),
        None if writer.is_null() else writer.text(),
        None if reader.is_null() else reader.text(),
        position.integer(0, 1 << 20),
        collective.text(100),
        tuple(loads.integers(0)),
        tuple(phases.integers(0)),
    )
