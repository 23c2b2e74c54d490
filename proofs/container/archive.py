"""The `.spz` container: a zip of canonical JSON members and raw little-endian int64 arrays.

Writing is byte-stable: members sorted by name, dates 1980-01-01, fixed attributes and compression level.
`manifest.json` lists every other member with its size, sha256 and, for arrays, shape.

    identity = sha256 over (length of name, name, length of content, content) of all members, manifest included, in
    order of names

so it depends on uncompressed content only.

Reading believes nothing.  Only the plain subset of zip that the writer produces is parsed (no zip64, no encryption, no
extra fields, no comments, no gaps, no overlap), all sizes are added up and bounded from the headers before memory is
taken, inflation stops at the declared size, and every failure is a `ContainerError`.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from ...models.files.output import write_file
from ...models.problem.selection_problem import Ints
from .canonical import ContainerError, Reader, canonical, parse
from .room import check_room, needs

Member = bytes | Ints
"""Content of a member: bytes (JSON or other), or an int64 array (read back as a read-only view of the file's bytes)."""

MANIFEST: Final = "manifest.json"
FORMAT: Final = "shardproof-container/1"
LEVEL: Final = 6  # level 9 is 8 times slower on messages and saves 1 to 12 % (measured)
MAX_AXES: Final = 32
PIECE: Final = 1 << 13
"""Bytes that are unpacked at once: they become 8 MiB at most."""

_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*", re.ASCII)
_END, _CENTRAL, _LOCAL = struct.Struct("<4s4H2LH"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")


@dataclass(frozen=True)
class Limits:
    """Caps of a container: bytes of the file, members, uncompressed bytes, expansion (beyond `free` bytes), bytes
    of one JSON member.
    """

    file: int = 1 << 30
    members: int = 4096
    total: int = 1 << 30
    ratio: int = 100
    free: int = 1 << 24
    json: int = 1 << 26


LIMITS: Final = Limits()


@dataclass(frozen=True)
class _Entry:
    name: str
    method: int
    crc: int
    packed: int
    size: int
    offset: int


def write_container(path: Path | str | None, members: Mapping[str, Member], limits: Limits = LIMITS) -> bytes:
    """Bytes of the container with `members` (manifest added here); if `path` is given also written there atomically.

    Refuses what `read_container` with the same limits would refuse.

    >>> data = write_container(None, {"a.json": b"{}", "n": np.arange(3)})
    >>> read_container(data)["n"].tolist(), data == write_container(None, read_container(data))
    ([0, 1, 2], True)
    """
    raw: dict[str, bytes] = {}
    listing: dict[str, object] = {}
    for name in sorted(set(members) - {MANIFEST}):
        _check_name(name)
        value = members[name]
        raw[name] = value if isinstance(value, bytes) else array_bytes(value)
        entry: dict[str, object] = {"size": len(raw[name]), "sha256": hashlib.sha256(raw[name]).hexdigest()}
        if not isinstance(value, bytes):
            entry["shape"] = list(value.shape)
        listing[name] = entry
    raw[MANIFEST] = canonical({"format": FORMAT, "members": listing})

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(raw):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, raw[name], compress_type=zipfile.ZIP_DEFLATED, compresslevel=LEVEL)
    data = buffer.getvalue()
    _entries(data, limits)
    if path is not None:
        write_file(Path(path), data)
    return data


def read_container(source: bytes | Path | str, limits: Limits = LIMITS) -> dict[str, Member]:
    """All members by name, manifest included, every one checked against the manifest; `ContainerError` on anything
    odd.
    """
    data = source if isinstance(source, bytes) else read_file(Path(source), limits.file)
    entries = {entry.name: entry for entry in _entries(data, limits)}
    if MANIFEST not in entries:
        raise ContainerError("container", f"has no {MANIFEST}")
    if entries[MANIFEST].size > limits.json:
        raise ContainerError(MANIFEST, "is too large")
    manifest = _inflate(data, entries[MANIFEST])
    check_room(needs(manifest), len(data), MANIFEST)
    listed = _listing(parse(manifest, MANIFEST).fields("format", "members"))
    for name in entries:
        if name != MANIFEST and name not in listed:
            raise ContainerError(f"member {name!r}", "is not listed in the manifest")
    members: dict[str, Member] = {MANIFEST: manifest}
    needed = needs(manifest)
    for name, (size, digest, shape) in listed.items():
        place = f"member {name!r}"
        if name not in entries or name == MANIFEST:
            raise ContainerError(place, "is listed but not there")
        if entries[name].size != size:
            raise ContainerError(place, f"has {entries[name].size} bytes, the manifest says {size}")
        content = _inflate(data, entries[name])
        if hashlib.sha256(content).hexdigest() != digest:
            raise ContainerError(place, "content does not have the listed sha256")
        if shape is None:
            needed += needs(content)
            check_room(needed, len(data), place)
        members[name] = content if shape is None else bytes_array(content, shape, place)
    return dict(sorted(members.items()))


def member_names(data: bytes, limits: Limits = LIMITS) -> frozenset[str]:
    """Names of the members of a container, none of them read; `ContainerError` for what is no container."""
    return frozenset(entry.name for entry in _entries(data, limits))


def identity(members: Mapping[str, Member]) -> str:
    """Identity of a container that was read (`members` holds the manifest)."""
    if MANIFEST not in members:
        raise ContainerError("container", f"has no {MANIFEST}; the identity is that of a container that was read")
    h = hashlib.sha256()
    for name, value in sorted(members.items(), key=lambda item: item[0]):
        # no copy: an array may take half of the memory that there is
        content = value if isinstance(value, bytes) else _little_endian(value).reshape(-1).view(np.uint8).data
        for part in (name.encode(), content):
            h.update(len(part).to_bytes(8, "little"))
            h.update(part)
    return h.hexdigest()


def read_json(members: Mapping[str, Member], name: str, limits: Limits = LIMITS) -> Reader:
    """Reader of the JSON member `name`."""
    place = f"member {name!r}"
    value = members.get(name)
    if not isinstance(value, bytes):
        raise ContainerError(place, "is missing" if value is None else "must be JSON, is an array")
    if len(value) > limits.json:
        raise ContainerError(place, f"JSON of {len(value)} bytes is too large")
    return parse(value, place)


def read_text(members: Mapping[str, Member], name: str) -> str:
    """The ASCII text of the member `name`."""
    value = members.get(name)
    if not isinstance(value, bytes):
        raise ContainerError(f"member {name!r}", "is missing")
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise ContainerError(f"member {name!r}", "is not ASCII") from None


def read_array(members: Mapping[str, Member], name: str) -> Ints:
    """The array member `name`."""
    value = members.get(name)
    if value is None or isinstance(value, bytes):
        raise ContainerError(f"member {name!r}", "is missing" if value is None else "must be an array")
    return value


def read_file(path: Path, most: int) -> bytes:
    """Content of a regular file of at most `most` bytes."""
    place = f"file {str(path)!r}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ContainerError(place, "is not a regular file")
        if status.st_size > most:
            raise ContainerError(place, f"has {status.st_size} bytes, more than {most}")
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ContainerError):
            raise
        raise ContainerError(place, f"cannot be read: {error}") from None
    if len(data) > most:
        raise ContainerError(place, f"has more than {most} bytes")
    return data


def array_bytes(array: Ints) -> bytes:
    """Raw little-endian content of an int64 array."""
    return _little_endian(array).tobytes()


def _little_endian(array: Ints) -> Ints:
    if array.dtype != np.int64:
        raise ContainerError("array to be written", f"has type {array.dtype}, not int64")
    return np.ascontiguousarray(array, dtype="<i8")


def bytes_array(content: bytes, shape: tuple[int, ...], place: str) -> Ints:
    """Read-only int64 array over `content`."""
    try:
        return np.frombuffer(content, dtype="<i8").reshape(shape).astype(np.int64, copy=False)
    except ValueError as error:
        raise ContainerError(place, f"cannot have shape {shape}: {error}") from None


def _check_name(name: str) -> None:
    if len(name) > 200 or not _NAME.fullmatch(name):
        raise ContainerError(
            f"member {name[:60]!r}", "name must be a plain relative path of letters, digits, '_', '.', '-'"
        )


def _listing(manifest: Reader) -> dict[str, tuple[int, str, tuple[int, ...] | None]]:
    if manifest["format"].text() != FORMAT:
        manifest["format"].fail(f"this version reads {FORMAT!r} only")
    listed = {}
    table = manifest["members"]
    if not isinstance(table.value, dict):
        table.fail("must be an object")
    for name in table.value:
        entry = table[name].fields("size", "sha256", optional=("shape",))
        size, shape = entry["size"].integer(0, 1 << 40), None
        if entry.has("shape"):
            shape = tuple(entry["shape"].integers(0, 1 << 40, MAX_AXES))
            if size != 8 * prod(shape):
                entry.fail(f"shape {shape} does not fit {size} bytes")
        listed[name] = (size, entry["sha256"].text(64), shape)
    return listed


def _entries(data: bytes, limits: Limits) -> list[_Entry]:
    """Headers of all members; sizes bounded, structure without gaps, overlap or repetition."""
    if len(data) > limits.file:
        raise ContainerError("container", f"has {len(data)} bytes, more than {limits.file}")
    if len(data) < _END.size:
        raise ContainerError("container", "is not a zip file, or is cut off")
    magic, disk, first, here, count, directory_size, directory, comment = _END.unpack(data[-_END.size :])
    if data[:1] in (b"{", b"["):
        raise ContainerError(
            "container",
            "is not a zip file but JSON text: of a selection problem, which solve, audit and check take, and export for"
            " another solver; or of a graph, which plan takes",
        )
    if magic != b"PK\5\6":
        raise ContainerError("container", "is not a zip file, or is cut off, or has bytes after its end")
    if disk or first or here != count or comment or directory + directory_size != len(data) - _END.size:
        raise ContainerError("container", "end record is inconsistent")
    if count > limits.members:
        raise ContainerError("container", f"has {count} members, more than {limits.members}")
    entries: list[_Entry] = []
    at, local, total = directory, 0, 0
    names: set[str] = set()
    for i in range(count):
        place = f"entry {i} of the zip directory"
        if at + _CENTRAL.size > len(data) - _END.size:
            raise ContainerError(place, "is cut off")
        (magic, _, _, flags, method, time, date, crc, packed, size, name_size, extra, comment, disk, _, _, offset) = (
            _CENTRAL.unpack_from(data, at)
        )
        if magic != b"PK\1\2" or flags or method not in (0, 8) or extra or comment or disk:
            raise ContainerError(place, "is not a plain stored or deflated member")
        raw_name = data[at + _CENTRAL.size : at + _CENTRAL.size + name_size]
        name = raw_name.decode("ascii", "replace")
        _check_name(name)
        if name in names:
            raise ContainerError(f"member {name!r}", "occurs twice")
        names.add(name)
        if offset != local or local + _LOCAL.size + name_size + packed > directory:
            raise ContainerError(f"member {name!r}", "does not follow the member before it")
        found = _LOCAL.unpack_from(data, local)
        if (
            found[0] != b"PK\3\4"
            or found[2:] != (flags, method, time, date, crc, packed, size, name_size, 0)
            or (data[local + _LOCAL.size : local + _LOCAL.size + name_size] != raw_name)
        ):
            raise ContainerError(f"member {name!r}", "local header disagrees with the directory")
        entries.append(_Entry(name, method, crc, packed, size, local + _LOCAL.size + name_size))
        at += _CENTRAL.size + name_size
        local += _LOCAL.size + name_size + packed
        total += size
    if at != directory + directory_size or local != directory:
        raise ContainerError("container", "has bytes that belong to no member")
    if total > limits.total or (total > limits.free and total > limits.ratio * len(data)):
        raise ContainerError("container", f"would expand from {len(data)} to {total} bytes")
    return entries


def _inflate(data: bytes, entry: _Entry) -> bytes:
    """Content of a member, piece by piece: zlib joins what it has unpacked at once in a copy."""
    place = f"member {entry.name!r}"
    packed = memoryview(data)[entry.offset : entry.offset + entry.packed]
    if entry.method == 0:
        content = bytes(packed)
    else:
        inflater, out = zlib.decompressobj(-15), io.BytesIO()
        try:
            for at in range(0, len(packed), PIECE):
                if inflater.eof or inflater.unconsumed_tail or out.tell() > entry.size:
                    raise ContainerError(place, "does not end where its header says")
                out.write(inflater.decompress(packed[at : at + PIECE], entry.size + 1 - out.tell()))
        except zlib.error as error:
            raise ContainerError(place, f"cannot be inflated: {error}") from None
        if not inflater.eof or inflater.unused_data or inflater.unconsumed_tail:
            raise ContainerError(place, "does not end where its header says")
        content = out.getvalue()
    if len(content) != entry.size or zlib.crc32(content) != entry.crc:
        raise ContainerError(place, "size or checksum differs from its header")
    return content
