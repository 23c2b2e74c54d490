"""Sections 2 and 3: numbers, JSON, the container, arrays."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from math import prod

WIDE = 1 << 512


class Malformed(Exception):
    """The file is not what the document says a file is."""


class Refuted(Exception):
    """The file states something false."""


def need(right: object, why: str, wrong: type[Exception] = Malformed) -> None:
    if not right:
        raise wrong(why)


def parse_json(data: bytes) -> object:
    def once(pairs: list) -> dict:
        need(len(dict(pairs)) == len(pairs), "a key occurs twice")
        return dict(pairs)

    def no_float(text: str) -> None:
        raise Malformed(f"{text} is not an integer")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_float=no_float, parse_constant=no_float)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # refuses half characters
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    return value


def fields(value: object, names: str, optional: str = "") -> dict:
    need(isinstance(value, dict), "must be an object")
    have, wanted, more = set(value), set(names.split()), set(optional.split())
    need(wanted <= have <= wanted | more, f"has the fields {sorted(have)}, not {sorted(wanted)}")
    return value


def integer(value: object, low: int = -WIDE, high: int = WIDE) -> int:
    need(type(value) is int and low <= value <= high, f"{value!r} is no integer from {low} to {high}")
    return value


def text(value: object, most: int = 10_000) -> str:
    need(type(value) is str and len(value) <= most, f"{value!r} is no text")
    return value


def items(value: object, most: int = 1 << 22) -> list:
    need(type(value) is list and len(value) <= most, "must be a list")
    return value


def read_members(data: bytes) -> dict[str, tuple[bytes, list[int] | None]]:
    """Name -> (content, shape or None), the manifest left out."""
    need(len(data) >= 22, "no zip file")
    magic, disk, first, here, count, size, start, comment = struct.unpack("<4s4H2LH", data[-22:])
    need(magic == b"PK\5\6" and not (disk or first or comment) and here == count, "end record")
    need(start + size == len(data) - 22, "directory is not before the end record")
    raw, at, local = {}, start, 0
    for _ in range(count):
        need(at + 46 <= len(data) - 22, "directory is cut off")
        entry = struct.unpack("<4s6H3L5H2L", data[at : at + 46])
        magic, _, _, flags, method, time, date, crc, packed, full, length, extra, remark, disk, _, _, offset = entry
        need(magic == b"PK\1\2" and not (flags or extra or remark or disk) and method in (0, 8), "directory entry")
        name = data[at + 46 : at + 46 + length]
        need(local + 30 + length + packed <= start and offset == local, "members do not follow each other")
        header = struct.unpack("<4s5H3L2H", data[local : local + 30])
        need(header[0] == b"PK\3\4", "local header")
        need(header[2:] == (flags, method, time, date, crc, packed, full, length, 0), "headers disagree")
        need(data[local + 30 : local + 30 + length] == name, "names disagree")
        content = data[local + 30 + length : local + 30 + length + packed]
        if method == 8:
            inflater = zlib.decompressobj(-15)
            try:
                content = inflater.decompress(content, full + 1)
            except zlib.error as error:
                raise Malformed(str(error)) from None
            need(inflater.eof and not inflater.unused_data and not inflater.unconsumed_tail, "deflated member")
        need(len(content) == full and zlib.crc32(content) == crc, "size or checksum")
        word = name.decode("ascii", "replace")
        plain = re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", word, re.ASCII) and len(word) <= 200
        need(plain and not {".", ".."} & set(word.split("/")) and word not in raw, f"name {word!r}")
        raw[word] = content
        at, local = at + 46 + length, local + 30 + length + packed
    need(at == start + size and local == start, "bytes that belong to no member")
    need("manifest.json" in raw, "no manifest")
    manifest = fields(parse_json(raw.pop("manifest.json")), "format members")
    need(manifest["format"] == "shardproof-container/1", "format of the manifest")
    need(isinstance(manifest["members"], dict) and set(manifest["members"]) == set(raw), "manifest lists other members")
    out = {}
    for name, listed in manifest["members"].items():
        fields(listed, "size sha256", "shape")
        need(integer(listed["size"], 0, 1 << 40) == len(raw[name]), f"size of {name}")
        need(text(listed["sha256"]) == hashlib.sha256(raw[name]).hexdigest(), f"sha256 of {name}")
        shape = listed.get("shape")
        if "shape" in listed:
            need(8 * prod(integer(n, 0, 1 << 40) for n in items(shape, 32)) == listed["size"], f"shape of {name}")
        out[name] = raw[name], shape
    return out


class Array:
    """Row-major integers of a shape; `a[i, j]`."""

    def __init__(self, shape: tuple[int, ...], numbers: list[int]) -> None:
        self.shape, self.numbers = shape, numbers
        self.strides = [prod(shape[k + 1 :]) for k in range(len(shape))]

    def __getitem__(self, index: int | tuple[int, ...]) -> int:
        at = index if isinstance(index, tuple) else (index,)
        return self.numbers[sum(i * s for i, s in zip(at, self.strides, strict=True))]


class Pool:
    """The arrays of a member `P.i64` by number."""

    def __init__(self, members: dict, prefix: str, shapes: object) -> None:
        need(f"{prefix}.i64" in members, "arrays are missing")
        content, shape = members[f"{prefix}.i64"]
        need(shape is not None and len(shape) == 1, "the pool must have one axis")
        numbers = list(struct.unpack(f"<{len(content) // 8}q", content))
        self.arrays, at = [], 0
        for listed in items(shapes):
            size = tuple(integer(n, 0, 1 << 40) for n in items(listed, 32))
            need(not (0 in size and len(size) > 2) and at + prod(size) <= len(numbers), "shapes do not fit")
            self.arrays.append(Array(size, numbers[at : at + prod(size)]))
            at += prod(size)
        need(at == len(numbers), "shapes do not fit")

    def array(self, reference: object, axes: int | None = None) -> Array:
        found = self.arrays[integer(reference, 0, len(self.arrays) - 1)]
        need(axes is None or len(found.shape) == axes, f"array {reference} must have {axes} axes")
        return found

    def numbers(self, reference: object) -> list[int]:
        return self.array(reference, 1).numbers

    def arrays_of(self, reference: object) -> list[Array]:
        return [self.array(k) for k in self.numbers(reference)]

    def lists(self, pair: object) -> list[list[int]]:
        need(len(items(pair)) == 2, "must be lengths and contents")
        lengths, joined = self.numbers(pair[0]), self.numbers(pair[1])
        need(all(n >= 0 for n in lengths) and sum(lengths) == len(joined), "lengths do not fit the contents")
        out, at = [], 0
        for n in lengths:
            out.append(joined[at : at + n])
            at += n
        return out
