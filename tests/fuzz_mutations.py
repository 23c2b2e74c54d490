"""Hostile variants of valid files: seeded changes of bytes, of text, of JSON values and of the members of archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np

from shardproof.proofs.container.archive import Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
"""(source of chance, a valid file, all valid files of the kind) -> a variant."""

TOKENS = [
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"'", b"{", b"}", b"[", b"]", b"[[", b"]]", b",", b":", b"=", b"-", b"+", b".", b"\\", b"\n", b"\r", b"#",
    b"0", b"1", b"-1", b"1e999", b"1e-999", b"1e30", b"9" * 400, b"NaN", b"nan", b"Infinity", b"inf", b"null", b"true", b"false", b"1.5", b'""', b"{}", b"[]", b"0x1F",
    b"1_0", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"1267650600228229401496703205376", b'"\\ud800"', b'"\\u0000"', b"\\ud800", b"\x1b[2J",
    "漢".encode(), b"/", b"..", b"[" * 3000, b"{\"a\":" * 2000, b"(", b")", b"*", b"1e6 s", b"s", b"2147483648", b"4294967296", b"1099511627776", b"65536",
]  # fmt: skip

VALUES: list[object] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**61, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 2**100, 10**18,
    10**30, 10**400, -(2**100), 0.0, 0.5, -1.5, 1e300, -1e300, 5e-324, "", "x", "\0", "\ud800", "\x1b[31m", "漢", "a" * 3000, "0", "-1", "nan", "1/0", "1e6 s", "1e99 GB/s", "../x",
    [], {}, [[]], [{}], {"": None}, [None], [0], [-1], [1, 1], [2**63], ["x"], [[1], [1, 2]], [0.5], list(range(70)), {"x": 1}, [[[[[[]]]]]],
]  # fmt: skip


def changed_bytes(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """One to eight changes of bytes: flipped, replaced, cut out, doubled, put in, taken from another file."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 1, 2, 4, 8, 30, 200)))
        match rng.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2:
                del out[at:end]
            case 3:
                out[at:at] = out[at:end] * rng.choice((1, 1, 2, 50))
            case 4:
                out[at:end] = rng.choice(TOKENS)
            case 5:
                other = rng.choice(seeds)
                start = rng.randrange(len(other) + 1)
                out[at:end] = other[start : start + rng.choice((1, 8, 64))]
            case 6 if rng.random() < 0.3:
                del out[at:]
            case _:
                out[at:at] = rng.choice(TOKENS)
    return bytes(out)


def changed_words(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Words and lines of a text: replaced, doubled, removed, exchanged; text that stays close to its grammar."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        k = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines.insert(k, lines[rng.randrange(len(lines))])
            case 1 if len(lines) > 1:
                del lines[k]
            case 2:
                j = rng.randrange(len(lines))
                lines[k], lines[j] = lines[j], lines[k]
            case _:
                spans = _words(lines[k])
                if spans:
                    a, b = rng.choice(spans)
                    others = [w for line in lines[:40] for w in ([line[c:d] for c, d in _words(line)][:6])] or [b"x"]
                    lines[k] = lines[k][:a] + rng.choice((rng.choice(TOKENS), rng.choice(others))) + lines[k][b:]
    return b"\n".join(lines)


def _words(line: bytes) -> list[tuple[int, int]]:
    spans, start = [], None
    for i, c in enumerate(line + b" "):
        inside = chr(c).isalnum() or c in b"._-+"
        if inside and start is None:
            start = i
        elif not inside and start is not None:
            spans.append((start, i))
            start = None
    return spans


def changed_json(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """One to four values, keys or elements of a JSON text changed; now and then a key twice, or very deep."""
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = change_value(rng, value)
    text = json.dumps(value)
    if rng.random() < 0.05:
        at = text.find('"', rng.randrange(len(text)))
        text = text[:at] + rng.choice(('"a": 1, "a": 2, ', "[" * 5000, "NaN", '"\\udc00"')) + text[at:]
    return text.encode()


def change_value(rng: random.Random, value: object) -> object:
    """The value with one node changed."""
    path: list[tuple[object, object]] = []
    here = value
    while isinstance(here, (list, dict)) and here and rng.random() < 0.93:
        key = rng.randrange(len(here)) if isinstance(here, list) else rng.choice(list(here))
        path.append((here, key))
        here = here[key]
    if not path:
        return deepcopy(rng.choice(VALUES))
    holder, key = path[-1]
    match rng.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[rng.randrange(len(holder))])))
        case 2 if isinstance(holder, dict):
            holder[rng.choice(["", "x", "format", "name", "\ud800", key + "x" if isinstance(key, str) else "y"])] = (
                holder.pop(key)
            )
        case 3 if isinstance(holder, list) and len(holder) > 1:
            rng.shuffle(holder)
        case 4:
            holder[key] = [holder[key]]
        case 5 if isinstance(here, int) and not isinstance(here, bool):
            holder[key] = rng.choice(
                (here + 1, here - 1, -here, here * 2, here << 32, max(-(2**60), min(here, 2**60)) * 1.0, str(here))
            )
        case 6 if len(path) > 1:
            other, at = rng.choice(path[:-1])
            holder[key] = json.loads(json.dumps(other[at])) if len(json.dumps(other[at])) < 20_000 else None
        case _:
            holder[key] = deepcopy(rng.choice(VALUES))
    return value


def changed_gzip(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """The text inside changed and packed again; sometimes cut, doubled, or with something behind it."""
    inside = changed_json(rng, gzip.decompress(data), seeds)
    packed = gzip.compress(inside, 1, mtime=0)
    match rng.randrange(6):
        case 0:
            return changed_bytes(rng, packed, seeds)
        case 1:
            return packed + rng.choice((b"x", packed))
        case _:
            return packed


def changed_members(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Members of a container changed and the manifest written anew, hashes of a plan's parts too: what the
    archive's own checks cannot see.
    """
    members = dict(read_container(data))
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice([n for n in members if n != "manifest.json"] or ["x.json"])
        value = members.get(name, b"{}")
        match rng.randrange(12):
            case 0:
                members.pop(name, None)
            case 1:
                members[rng.choice(("x.json", "plan.json", "certificate.i64", "problem.json", "library.json"))] = value
            case 2:
                other = read_container(rng.choice(seeds))
                members[name] = rng.choice(list(other.values()))
            case 3 if isinstance(value, bytes):
                members[name] = changed_bytes(rng, value, [value])
            case _:
                members[name] = _changed_member(rng, value)
    _tied(rng, members)
    try:
        return write_container(None, members)
    except (ContainerError, OverflowError):
        return changed_bytes(rng, data, seeds)


def _changed_member(rng: random.Random, value: Member) -> Member:
    if isinstance(value, bytes):
        try:
            changed = change_value(rng, json.loads(value))
            return canonical(changed) if rng.random() < 0.9 else json.dumps(changed).encode()
        except (ValueError, RecursionError, ContainerError):
            return value
    array = np.array(value)
    if array.size and rng.random() < 0.8:
        at = rng.randrange(array.size)
        array.reshape(-1)[at] = rng.choice(
            (0, 1, -1, 2**31, 2**62, -(2**63), 2**63 - 1, min(int(array.reshape(-1)[at]), 2**63 - 2) + 1)
        )
        return array
    match rng.randrange(3):
        case 0:
            return array.reshape(-1)[: rng.randrange(array.size + 1)]
        case 1:
            return array.reshape(1, -1)
        case _:
            return np.concatenate([array.reshape(-1)] * 2)


def _tied(rng: random.Random, members: dict[str, Member]) -> None:
    """Hashes in a plan's head that fit its parts again, so that what is wrong in the parts is what is read."""
    head, certificate = members.get("plan.json"), members.get("certificate.json")
    if not isinstance(head, bytes) or rng.random() < 0.2:
        return
    try:
        data = json.loads(head)
        for field, part in (("graph_sha256", "graph.json"), ("machine_sha256", "machine.json")):
            text = members.get(part)
            if isinstance(text, bytes):
                data[field] = hashlib.sha256(text).hexdigest()
        if isinstance(certificate, bytes):
            data["problem_sha256"] = json.loads(certificate)["problem_sha256"]
        members["plan.json"] = canonical(data)
    except (ValueError, KeyError, TypeError, ContainerError):
        return


def changed_arrays(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """An .npz archive whose members were changed and packed again with right checksums; or one of them alone (.npy)."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(n, archive.read(n)) for n in archive.namelist()]
    k = rng.randrange(len(members))
    name, content = members[k]
    match rng.randrange(8):
        case 0:
            return changed_bytes(rng, content, [content]) if rng.random() < 0.5 else content
        case 1:
            members.append(rng.choice(members))
        case 2:
            del members[k]
        case 3:
            members[k] = (rng.choice((name[:-4], "x.npy", "../x.npy", "", name + "x", "漢.npy")), content)
        case 4:
            made = io.BytesIO()
            np.save(
                made,
                np.array(
                    rng.choice([[1 + 2j], ["x"], [None], [True], [[0.5] * 3] * 2, 7, [], float("nan")]), dtype=None
                ),
                allow_pickle=True,
            )
            members[k] = (name, made.getvalue())
        case 5:
            header = rng.choice(
                (
                    b"(1099511627776,)",
                    b"(-1,)",
                    b"(2, 99999999999999999999)",
                    b"()",
                    b"(0,)",
                    b"None",
                    b"(1" + b",1" * 40 + b")",
                    b"(__import__('os'),)",
                    b"(" * 500,
                )
            )
            at = content.find(b"(")
            members[k] = (name, content[:at] + header + content[content.find(b")", at) + 1 :])
        case 6:
            kind = rng.choice(
                (
                    b"'|O'",
                    b"'<c16'",
                    b"'<U9'",
                    b"'<M8[s]'",
                    b"'<f2'",
                    b"'>f8'",
                    b"'V9'",
                    b"[('a', '<f4')]",
                    b"''",
                    b"'<f99'",
                    b"None",
                    b"'S0'",
                )
            )
            at = content.find(b"'<f")
            members[k] = (name, content[:at] + kind + content[at + 5 :])
        case _:
            members[k] = (name, changed_bytes(rng, content, [content]))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for n, c in members:
            archive.writestr(zipfile.ZipInfo(n), c)
    return out.getvalue()


def changed_protobuf(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """An ONNX file with one to three fields changed, found by reflection: every kind of field comes up."""
    import onnx

    model = onnx.load_from_string(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        attributes = [a for n in model.graph.node for a in n.attribute]
        slots = _slots(rng.choice(attributes) if attributes and rng.random() < 0.5 else model)
        if slots:
            _change_field(rng, *rng.choice(slots))
    return model.SerializeToString()


def _slots(message: object) -> list[tuple[object, object, object, bool]]:
    """(message, field, value, whether it is a list) of everything in a message, itself included."""
    out = []
    for item, value in message.ListFields():
        many = _repeated(item)
        out.append((message, item, value, many))
        if item.type == item.TYPE_MESSAGE:
            for part in value if many else [value]:
                out += _slots(part)
    return out


def _repeated(field: object) -> bool:
    return (
        bool(getattr(field, "is_repeated", False))
        if hasattr(field, "is_repeated")
        else field.label == field.LABEL_REPEATED
    )


def _change_field(rng: random.Random, message: object, field: object, value: object, many: bool) -> None:
    integers = (0, 1, -1, 2, 3, 7, 64, 2**31 - 1, -(2**31))
    wide = (*integers, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
    new: object = {
        field.TYPE_INT64: rng.choice(wide), field.TYPE_INT32: rng.choice(integers), field.TYPE_ENUM: rng.choice((0, 1, 2, 3, 7)), field.TYPE_FLOAT: rng.choice((0.0, -1.0, 1e30, float("nan"))),
        field.TYPE_STRING: rng.choice(("", "x", "Conv", "Reshape", "\x1b", "a" * 500)), field.TYPE_BYTES: rng.choice((b"", b"\xff", b"\0" * 8, b"SAME_UPPER")),
    }.get(field.type)  # fmt: skip
    if many:
        match rng.randrange(4):
            case 0:
                del value[rng.randrange(len(value))]
            case 1:
                value.append(value[rng.randrange(len(value))])
            case 2 if new is not None:
                value[rng.randrange(len(value))] = new
            case _:
                message.ClearField(field.name)
    elif new is None or rng.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, new)
