"""How the files of the conformance suite are put together: containers byte by byte, and faults put into them.

Members are stored, not deflated, so that the bytes do not depend on a compressor.
"""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shardproof.proofs.container.archive import MANIFEST, Member
from shardproof.proofs.container.canonical import canonical

Head = dict  # a JSON object, as Python has it


@dataclass(frozen=True)
class Case:
    """One file of the suite: what it is, what is to be said of it, and a sentence that the checker says."""

    name: str
    kind: str
    verdict: str
    sentence: str
    data: bytes
    problem: str = ""  # file of the problem beside it, for selection certificates
    fault: str = ""  # the one thing that is wrong with it


@dataclass(frozen=True)
class Suite:
    """Cases under way; `add` is called once per file."""

    kind: str
    cases: list[Case] = field(default_factory=list)

    def add(self, name: str, verdict: str, sentence: str, data: bytes, problem: str = "", fault: str = "") -> None:
        self.cases.append(Case(name, self.kind, verdict, sentence, data, problem, fault))


def plain(value: Member) -> bytes:
    return value if isinstance(value, bytes) else np.ascontiguousarray(value, dtype="<i8").tobytes()


def manifest(members: Mapping[str, Member]) -> Head:
    listed = {}
    for name, value in members.items():
        content = plain(value)
        listed[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if not isinstance(value, bytes):
            listed[name]["shape"] = list(value.shape)
    return {"format": "shardproof-container/1", "members": listed}


def container(members: Mapping[str, Member], listing: Head | None = None, deflated: bool = False) -> bytes:
    """The file that holds `members`; `listing` in place of the true manifest."""
    whole = {MANIFEST: canonical(manifest(members) if listing is None else listing)}
    whole |= {name: plain(value) for name, value in members.items()}
    return zipped(sorted(whole.items()), deflated)


def zipped(members: list[tuple[str, bytes]], deflated: bool = False) -> bytes:
    """A zip file of members in this order; `deflated`: as one deflate block of stored bytes, which every inflater reads."""
    body, directory = b"", b""
    for name, content in members:
        packed = b"\1" + struct.pack("<HH", len(content), 65535 - len(content)) + content if deflated else content
        common = struct.pack("<4H3L", 0, 8 if deflated else 0, 0, 33, zlib.crc32(content), len(packed), len(content))
        word = name.encode()
        directory += b"PK\1\2" + struct.pack("<2H", 20, 20) + common
        directory += struct.pack("<5H2L", len(word), 0, 0, 0, 0, 0, len(body)) + word
        body += b"PK\3\4" + struct.pack("<H", 20) + common + struct.pack("<2H", len(word), 0) + word + packed
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + end


def changed(members: Mapping[str, Member], name: str, change: Callable[[Head], object]) -> dict[str, Member]:
    """The members with `change` made to the JSON of one of them."""
    value = members[name]
    assert isinstance(value, bytes)
    head = copy.deepcopy(json.loads(value))
    change(head)
    return {**members, name: canonical(head)}


def retold(members: Mapping[str, Member], name: str, old: bytes, new: bytes) -> dict[str, Member]:
    """The members with the text `old`, which occurs once, replaced in one of them."""
    value = members[name]
    assert isinstance(value, bytes) and value.count(old) == 1, (name, old)
    return {**members, name: value.replace(old, new)}
