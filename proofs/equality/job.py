"""A plan and the job that runs it in one file: what the plan costs, that the job computes the model, what it sends.

    job.json        {"format", "plan": identity, "equality": identity, "file": sha256, "pass", "excess"}
    plan.spz        the plan, as it would stand alone
    equality.spz    the proof that what ranks of the job do is what one device does, as it would stand alone
    job.py          the exported file that the job runs

`pass`: "forward", or "step" of a plan that trains.  `excess`: bytes that a rank may receive beyond those that are
priced.  Decoding checks types, structure and hashes; `verify.equality.job` says what is true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..container.archive import LIMITS, MANIFEST, Limits, Member, identity, read_container, read_json, write_container
from ..container.canonical import ContainerError, canonical
from ..container.kinds import JOB, require_kind
from .file import EQUALITY

FORMAT: Final = "shardproof-job/1"
PLAN, PROOF, FILE = "plan.spz", "equality.spz", "job.py"
PASSES: Final = ("forward", "step")
MOST_EXCESS: Final = 1 << 62
MOST_TEXT: Final = 1 << 24
"""Bytes of an exported file: ten times those of a model of 126 layers that are all written out."""


@dataclass(frozen=True, eq=False)
class Job:
    """`plan`, `equality`: members of their containers; `identity`: of the plan; `text` of the exported file, and the
    `digest` of it.
    """

    plan: Mapping[str, Member]
    equality: Mapping[str, Member]
    identity: str
    text: str
    digest: str
    trains: bool
    excess: int


def write_job(plan: bytes, equality: bytes, text: str, trains: bool, excess: int) -> bytes:
    """Bytes of an `.spz` file with these files inside."""
    content = text.encode()
    head = {
        "format": FORMAT,
        "plan": identity(read_container(plan)),
        "equality": identity(read_container(equality)),
        "file": hashlib.sha256(content).hexdigest(),
        "pass": PASSES[trains],
        "excess": excess,
    }
    return write_container(None, {JOB: canonical(head), PLAN: plan, PROOF: equality, FILE: content})


def decode_job(members: Mapping[str, Member], limits: Limits = LIMITS) -> Job:
    """Inverse of `write_job`; `ContainerError` names what is wrong, and for what is inside where that is."""
    require_kind(members, JOB)
    head = read_json(members, JOB, limits).fields("format", "plan", "equality", "file", "pass", "excess")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    wanted = {MANIFEST, JOB, PLAN, PROOF, FILE}
    if set(members) != wanted:
        odd = min(set(members) ^ wanted)
        raise ContainerError(f"member {odd!r}", "is missing" if odd in wanted else "belongs to no part of the job")
    left = limits.total - sum(len(m) for m in members.values() if isinstance(m, bytes))
    inside = []
    for name, kind, key in ((PLAN, "plan.json", "plan"), (PROOF, EQUALITY, "equality")):
        found = _read(_bytes(members, name), name, kind, left, limits)
        left -= sum(len(m) if isinstance(m, bytes) else m.nbytes for m in found.values())
        if head[key].text(64) != identity(found):
            head[key].fail(f"{name} is another one than the file says")
        inside.append(found)
    content = _bytes(members, FILE)
    if len(content) > MOST_TEXT:
        raise ContainerError(f"member {FILE!r}", f"has more than {MOST_TEXT} bytes")
    if head["file"].text(64) != hashlib.sha256(content).hexdigest():
        head["file"].fail(f"{FILE} is another one than the file says")
    if head["pass"].text(16) not in PASSES:
        head["pass"].fail(f"is one of {', '.join(PASSES)}")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ContainerError(f"member {FILE!r}", "is no text") from None
    trains, excess = head["pass"].text(16) == PASSES[1], head["excess"].integer(0, MOST_EXCESS)
    return Job(inside[0], inside[1], head["plan"].text(64), text, head["file"].text(64), trains, excess)


def _bytes(members: Mapping[str, Member], name: str) -> bytes:
    content = members[name]
    if not isinstance(content, bytes):
        raise ContainerError(f"member {name!r}", "must be a file, is an array")
    return content


def _read(content: bytes, place: str, kind: str, room: int, limits: Limits) -> Mapping[str, Member]:
    """A container inside, of the kind that `kind` gives away, of at most `room` bytes."""
    within = Limits(limits.file, limits.members, max(0, room), limits.ratio, limits.free, limits.json)
    try:
        inner = read_container(content, within)
        require_kind(inner, kind)
    except ContainerError as error:
        raise ContainerError(f"member {place!r}, {error.place}", error.message) from None
    if JOB in inner:
        raise ContainerError(f"member {place!r}", "holds a job itself")
    return inner
