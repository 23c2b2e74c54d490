"""The `.spz` container and the files in it: byte-stable, small, and hostile files are one error type with bounded
memory.
"""

from __future__ import annotations

import gzip
import io
import random
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import selection_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import shared_tables

from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal
from shardproof.models.problem.selection_problem import ProblemError
from shardproof.proofs.container.archive import (
    PIECE,
    Limits,
    identity,
    read_array,
    read_container,
    read_json,
    write_container,
)
from shardproof.proofs.container.arrays import ArrayPool
from shardproof.proofs.container.canonical import ContainerError, canonical, parse
from shardproof.proofs.selection.certificates import Dual, Open, Point, Split
from shardproof.proofs.selection.file import encode_certificate, read_certificate, write_certificate
from shardproof.proofs.selection.problem_file import (
    decode_problem,
    encode_problem,
    load_problem,
    parse_problem,
    problem_json,
)

MEMBERS = {
    "b/x.json": b'{"a":1}',
    "a.i64": np.arange(6).reshape(2, 3),
    "empty": b"",
    "none.i64": np.zeros((0, 4), dtype=np.int64),
}


def zipped(pairs: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, content in pairs:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, method)
    return buffer.getvalue()


def contents(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def test_round_trip_is_byte_stable_and_plain(tmp_path: Path) -> None:
    data = write_container(tmp_path / "x.spz", MEMBERS)
    assert data == (tmp_path / "x.spz").read_bytes() == write_container(None, dict(reversed(MEMBERS.items())))
    assert [p.name for p in tmp_path.iterdir()] == ["x.spz"]  # no temporary file stays
    members = read_container(tmp_path / "x.spz")
    assert list(members) == sorted([*MEMBERS, "manifest.json"])
    assert (
        read_array(members, "a.i64").tolist() == [[0, 1, 2], [3, 4, 5]]
        and not read_array(members, "a.i64").flags.writeable
    )
    assert read_array(members, "none.i64").shape == (0, 4)
    assert read_json(members, "b/x.json")["a"].integer() == 1
    infos = zipfile.ZipFile(tmp_path / "x.spz").infolist()
    assert [i.filename for i in infos] == list(members) and {i.date_time for i in infos} == {(1980, 1, 1, 0, 0, 0)}


def test_identity_is_that_of_the_content_not_of_the_compression() -> None:
    data = write_container(None, MEMBERS)
    again = zipped(contents(data), zipfile.ZIP_STORED)
    assert again != data and identity(read_container(again)) == identity(read_container(data))
    seen = {identity(read_container(data))}
    for change in ({"empty": b"x"}, {"new": b""}, {"a.i64": np.arange(6).reshape(3, 2)}):
        seen.add(identity(read_container(write_container(None, {**MEMBERS, **change}))))
    assert len(seen) == 4
    with pytest.raises(ContainerError):
        identity(MEMBERS)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_container(tmp_path / "x.spz", MEMBERS)
    before = (tmp_path / "x.spz").read_bytes()
    for bad in (
        {"../x": b""},
        {"/x": b""},
        {"a//b": b""},
        {"a/./b": b""},
        {"": b""},
        {"\u00e9": b""},
        {"a": np.arange(3.0)},
    ):
        with pytest.raises(ContainerError):
            write_container(tmp_path / "x.spz", bad)
    assert (tmp_path / "x.spz").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_not_a_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", "bad\0name"):
        with pytest.raises(ContainerError):
            read_container(path)


@pytest.mark.parametrize(
    "limits", [Limits(file=100), Limits(members=2), Limits(total=30), Limits(free=0, ratio=0), Limits(json=5)]
)
def test_limits(limits: Limits, tmp_path: Path) -> None:
    data = write_container(tmp_path / "x.spz", MEMBERS)
    for source in (data, tmp_path / "x.spz"):
        with pytest.raises(ContainerError):
            read_container(source, limits)


def patched(data: bytes, signature: bytes, offset: int, layout: str, value: int) -> bytes:
    """Every header with this signature changed at one field."""
    out, at = bytearray(data), -1
    while (at := data.find(signature, at + 1)) >= 0:
        struct.pack_into(layout, out, at + offset, value)
    return bytes(out)


def hostile() -> list[tuple[str, bytes]]:
    data = write_container(None, MEMBERS)
    pairs = contents(data)
    manifest = dict(pairs)["manifest.json"]
    out = [(f"cut at {n}", data[:n]) for n in (0, 1, 21, 22, 60, len(data) // 2, len(data) - 1)]
    out += [("behind", data + b"x"), ("before", b"x" + data), ("not a zip", b"hello" * 100), ("text", manifest)]
    local, central, end = b"PK\3\4", b"PK\1\2", b"PK\5\6"
    for name, at_local, at_central, layout, value in [
        ("encrypted", 6, 8, "<H", 1), ("streamed", 6, 8, "<H", 8), ("bzip2", 8, 10, "<H", 12), ("lzma", 8, 10, "<H", 14), ("crc", 14, 16, "<L", 1),
        ("packed", 18, 20, "<L", 0xFFFFFFFF), ("packed 0", 18, 20, "<L", 0), ("size", 22, 24, "<L", 0xFFFFFFF0), ("size 0", 22, 24, "<L", 0),
        ("size 900 MB", 22, 24, "<L", 900 << 20), ("name length", 26, 28, "<H", 0xFFFF), ("extra", 28, 30, "<H", 4),
    ]:  # fmt: skip
        out.append(
            (
                f"{name} in both headers",
                patched(patched(data, local, at_local, layout, value), central, at_central, layout, value),
            )
        )
        out.append((f"{name} in the local headers", patched(data, local, at_local, layout, value)))
        out.append((f"{name} in the directory", patched(data, central, at_central, layout, value)))
    for name, offset, layout, value in [("disk", 4, "<H", 1), ("count", 10, "<H", 0xFFFF), ("count 2", 8, "<L", 0x20002), ("count 0", 8, "<L", 0),
                                        ("directory size", 12, "<L", 1 << 31), ("directory offset", 16, "<L", 0), ("comment", 20, "<H", 7)]:  # fmt: skip
        out.append((f"end record: {name}", patched(data, end, offset, layout, value)))
    out.append(("offset of members", patched(data, central, 42, "<L", 0)))
    out.append(("file comment", patched(data, central, 32, "<H", 3)))
    out.append(("duplicate", zipped([*pairs, pairs[0]])))
    out.append(("duplicate with other content", zipped([*pairs, (pairs[0][0], b"zzz")])))
    out.append(("unlisted", zipped([*pairs, ("more", b"")])))
    out.append(("missing", zipped(pairs[1:])))
    out.append(("no manifest", zipped([p for p in pairs if p[0] != "manifest.json"])))
    out.append(("empty zip", zipped([])))
    out.append(("changed content", zipped([(n, b'{"a":2}' if n == "b/x.json" else c) for n, c in pairs])))
    for name in ("../up", "/root", "a\\b", "c:d", "a/../b", "x" * 300, "a b", "sp\u00e4t"):
        out.append((f"name {name[:9]!r}", zipped([*pairs, (name, b"")])))

    def with_manifest(text: bytes) -> bytes:
        return zipped([(n, text if n == "manifest.json" else c) for n, c in pairs])

    for old, new in [
        (b'"size":48', b'"size":49'), (b'"size":48', b'"size":48.0'), (b'"size":48', b'"size":true'), (b'"size":48', b'"size":-48'),
        (b'"shape":[2,3]', b'"shape":[3,3]'), (b'"shape":[2,3]', b'"shape":[-2,-3]'), (b'"shape":[2,3]', b'"shape":[1099511627776,1099511627776]'),
        (b'"shape":[2,3]', b'"shape":[6.0]'), (b'"shape":[2,3]', b'"shape":6'), (b'"shape":[0,4]', b'"shape":[0,1099511627776,1099511627776]'),
        (b'"shape":[2,3]', b'"shape":[' + b"1," * 40 + b"6]"), (b'"sha256":"', b'"sha256":"0'), (b'"members":{', b'"members":{"manifest.json":{"sha256":"","size":0},'),
        (b"container/1", b"container/2"), (b'"members":{', b'"members":[{'), (b'{"format"', b'{"format":1,"format"'), (b'{"format"', b'{"x":1,"format"'),
        (b'"size":48', b'"size":NaN'), (b'"size":48', b'"size":1e400'), (b'"size":48', b'"size":' + b"9" * 5000), (b'"size":48', b'"size":48,"odd":1'),
    ]:  # fmt: skip
        assert old in manifest
        out.append((f"manifest {new[:30]!r}", with_manifest(manifest.replace(old, new, 1))))
    for text in (
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"format":"shardproof-container/1"}',
    ):
        out.append((f"manifest is {text[:12]!r}", with_manifest(text)))
    return out


def alone(name: bytes, packed: bytes, size: int, crc: int = 0) -> bytes:
    """A zip of one member, whose headers agree with each other."""
    head = struct.pack("<5H3L2H", 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0)
    local = b"PK\3\4" + head + name + packed
    central = b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<3H2L", 0, 0, 0, 0, 0) + name
    return local + central + b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 1, 1, len(central), len(local), 0)


def bomb() -> bytes:
    """1 GiB of zeros in about 1 MB, with honest headers."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    # more than it holds; the cap must stop it before anything is inflated
    return alone(b"bomb", packed, 900 << 20)


def test_hostile_containers_are_refused_with_bounded_memory() -> None:
    files = [*hostile(), ("bomb", bomb())]
    assert len(files) >= 100 and len({write_container(None, MEMBERS), *(data for _, data in files)}) == len(files) + 1
    tracemalloc.start()
    try:
        for name, data in files:
            tracemalloc.reset_peak()
            with pytest.raises(ContainerError) as caught:
                read_container(data)
            assert caught.value.place, name
            assert tracemalloc.get_traced_memory()[1] < 32 << 20, name
    finally:
        tracemalloc.stop()


def test_the_bomb_is_refused_for_its_size() -> None:
    with pytest.raises(ContainerError, match="would expand"):
        read_container(bomb())


def test_members_of_many_pieces_end_where_their_headers_say() -> None:
    """Longer than what is unpacked at once: no piece is left out, none is behind the end, none is too many."""
    content = random.Random(3).randbytes(3 * PIECE + 5)
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    assert len(packed) > 3 * PIECE
    whole, right = write_container(None, {"x": content}), zlib.crc32(content)
    assert read_container(whole)["x"] == content
    zeros = zlib.compressobj(9, zlib.DEFLATED, -15)
    many = zeros.compress(bytes(100 * PIECE)) + zeros.flush()
    ends = "does not end where its header says"
    for name, data, size, words in (
        ("cut", packed[: 2 * PIECE], len(content), ends),
        ("cut in a piece", packed[:-1], len(content), ends),
        ("more pieces behind", packed + bytes(2 * PIECE), len(content), ends),
        ("a letter behind", packed + b"x", len(content), ends),
        ("a piece less", packed, len(content) - PIECE, ends),
        ("a letter less", packed, len(content) - 1, "size or checksum differs"),
        ("a letter more", packed, len(content) + 1, "size or checksum differs"),
        ("nothing", packed, 0, ends),
        ("much more than it says", many, PIECE, ends),
        ("other content", packed, len(content), "size or checksum differs"),
    ):
        with pytest.raises(ContainerError, match=words):
            read_container(alone(b"manifest.json", data, size, right + (name == "other content")))


def test_long_members_are_read_and_named_without_a_copy() -> None:
    """What a file unpacks to is there once: zlib, arrays and hashes make no second one."""
    size = 48 << 20
    data = write_container(None, {"a": np.zeros(size >> 3, dtype=np.int64)}, wide := Limits(ratio=1 << 20))
    tracemalloc.start()
    try:
        members = read_container(data, wide)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * size
        tracemalloc.reset_peak()
        identity(members)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * size
    finally:
        tracemalloc.stop()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    """Unprotected header bytes (dates, versions, attributes) may change; content may not."""
    raw = bytearray(write_container(None, MEMBERS))
    before = identity(read_container(bytes(raw)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        assert identity(read_container(bytes(raw))) == before
    except ContainerError:
        pass


def test_canonical_json() -> None:
    assert canonical({"b": (1, True), "a": "\u00fc"}) == b'{"a":"\\u00fc","b":[1,true]}'
    for bad in (1.0, [float("nan")], {"a": {1: 2}}, {1, 2}, b"x", np.int64(3)):
        with pytest.raises(ContainerError):
            canonical(bad)
    reader = parse(b'{"i":3,"b":true,"l":[1,2],"t":"x"}', "here")
    assert reader["l"].integers() == [1, 2] and reader["t"].text() == "x"
    for check in (
        lambda: reader["b"].integer(), lambda: reader["i"].integer(4), lambda: reader["i"].text(), lambda: reader["i"].integers(),
        lambda: reader["l"].integers(2), lambda: reader["l"].integers(most=1), lambda: reader["x"], lambda: reader.fields("i"),
        lambda: reader["t"].text(0), lambda: reader["i"]["j"], lambda: list(reader["t"].items()),
    ):  # fmt: skip
        with pytest.raises(ContainerError, match="here"):
            check()


@pytest.mark.parametrize("seed", range(40))
def test_problem_forms_keep_the_hash(seed: int, tmp_path: Path) -> None:
    problem = shared_tables(seed)
    text = problem_json(problem)
    (tmp_path / "p.json").write_bytes(text)
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(text))
    write_container(tmp_path / "p.spz", encode_problem(problem))
    for name in ("p.json", "p.json.gz", "p.spz"):
        assert load_problem(tmp_path / name).sha256() == problem.sha256()
    back = decode_problem(encode_problem(problem))
    assert [e.table for e in back.edges] == [e.table for e in problem.edges]


def test_malformed_problems() -> None:
    text = problem_json(shared_tables(3))
    assert b'"scale":1' in text
    for old, new in [
        (b'"scale":1', b'"scale":0'), (b'"scale":1', b'"scale":1.0'), (b'"scale":1', b'"scale":true'), (b'"scale":1', b'"scale":NaN'), (b'"cost":[', b'"cost":[9223372036854775808,'),
        (b'"cost":[', b'"cost":[0.5,'), (b'"cost":[', b'"cost":[null,'), (b'"tables":[', b'"tables":[[[1],[1,2]],'), (b'"tables":[', b'"tables":[3,'), (b'"name":', b'"nane":'),
        (b"selection/1", b"selection/9"), (b'"vertices":[', b'"vertices":[{"name":"e","cost":[]},'),
    ]:  # fmt: skip
        assert old in text
        for data in (text.replace(old, new, 1), gzip.compress(text.replace(old, new, 1))):
            with pytest.raises((ContainerError, ProblemError)):
                parse_problem(data)
    for data in (b"", b"{}", gzip.compress(text)[:-3], gzip.compress(text) + b"x", b"\x1f\x8b", text[:-1], b"PK\3\4"):
        with pytest.raises(ContainerError):
            parse_problem(data)


@pytest.mark.parametrize("seed", range(60))
def test_certificates_survive_and_are_byte_stable(seed: int) -> None:
    problem = shared_tables(seed, n=3, k=3)
    rng = random.Random(seed)
    for claim in cases.all_claims(problem):
        for proof in (cases.random_tree(problem, rng, 10**6), cases.points(problem, conflicts=True)):
            certificate = cases.certified(problem, claim, proof)
            data = write_certificate(None, certificate)
            back = read_certificate(data)
            assert back.claim == certificate.claim and write_certificate(None, back) == data


def test_numpy_integers_are_written_as_integers_and_others_refused() -> None:
    claim = Optimal((np.int64(1), 0), np.int64(5))  # type: ignore[arg-type]
    back = read_certificate(write_certificate(None, cases.SelectionCertificate("0" * 64, claim, Open())))
    assert back.claim == Optimal((1, 0), 5) and {type(x) for x in (*back.claim.solution, back.claim.cost)} == {int}
    for bad in (True, 1.0, None, "1"):
        with pytest.raises(ContainerError):
            encode_certificate(cases.SelectionCertificate("0" * 64, LowerBound(bad), Open()))  # type: ignore[arg-type]


def test_deep_trees_need_no_recursion() -> None:
    record = Point()
    for _ in range(20_000):
        record = Split(0, ((0,),), (record,))
    certificate = cases.SelectionCertificate("0" * 64, Infeasible((), (), None, None), record)
    back = read_certificate(write_certificate(None, certificate)).proof
    depth = 0
    while isinstance(back, Split):
        depth, back = depth + 1, back.children[0]
    assert depth == 20_000


def test_shared_messages_are_stored_once_and_the_file_is_small() -> None:
    """2,000 edges that share 8 message pairs of 200 entries below 10**6, and one elimination-sized array."""
    rng = np.random.default_rng(0)
    distinct = [rng.integers(0, 10**6, 200) for _ in range(16)]
    pick = rng.integers(0, 8, 2000)
    dual = Dual(tuple(distinct[i].copy() for i in pick), tuple(distinct[8 + i].copy() for i in pick))
    data = write_certificate(None, cases.SelectionCertificate("0" * 64, LowerBound(0), dual))
    assert len(data) < 20_000  # 16 arrays of 200 numbers of 20 bits are 8,000 bytes
    back = read_certificate(data).proof
    assert isinstance(back, Dual) and len({id(a) for a in (*back.to_u, *back.to_v)}) == 16
    assert all(np.array_equal(a, b) for a, b in zip(back.to_u, dual.to_u, strict=True))


def test_array_pool_distinguishes_shapes() -> None:
    pool = ArrayPool()
    a = np.arange(6)
    assert [
        pool.add(a),
        pool.add(a.reshape(2, 3)),
        pool.add(a.copy()),
        pool.add(np.asfortranarray(a.reshape(2, 3))),
    ] == [0, 1, 0, 1]
    with pytest.raises(ContainerError):
        pool.add(np.arange(3.0))


def test_json_is_called_so() -> None:
    """A problem where a plan is wanted says what it is, and who takes it."""
    with pytest.raises(ContainerError, match="JSON text: of a selection problem, which solve, audit and check take"):
        read_container(b'{"vertices": []}' + b" " * 30)
