"""Loaders: the stream against Python's JSON, errors that name the place, gzip, memory, floats to integers."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from shardproof.models.problem import json_stream
from shardproof.models.problem.iopddl import from_iopddl, read_iopddl
from shardproof.models.problem.json_stream import JsonStream
from shardproof.models.problem.pase import from_pase
from shardproof.models.problem.selection_problem import FINITE_LIMIT, FORBIDDEN, ProblemError
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.selection.load import load_selection_problem, selection_problem

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def document(seed: int) -> dict:
    rng = random.Random(seed)
    n = rng.randint(1, 7)
    sizes = [rng.randint(1, 4) for _ in range(n)]

    def number() -> int:
        return rng.choice([rng.randint(0, 9), rng.randint(-50, 10**9), 10**18, 10**18 + 7, 10**30])

    pairs = [rng.sample(range(n), 2) for _ in range(rng.randint(0, 9))] if n > 1 else []
    starts = [rng.randint(-3, 9) for _ in range(n)]
    problem = {
        "name": rng.choice(["x", 'quote " ] \\ é 漢', ""]),
        "nodes": {
            "intervals": [[s, s + rng.randint(0, 5)] for s in starts],
            "costs": [[number() for _ in range(k)] for k in sizes],
            "usages": [[rng.randint(0, 10**10) for _ in range(k)] for k in sizes],
        },
        "edges": {
            "nodes": pairs,
            "costs": [[rng.choice([0, number()]) for _ in range(sizes[u] * sizes[v])] for u, v in pairs],
        },
        "comment": {"any": [1, {"]": [None, True, -1.5e3, "}"]}], "e": {}, "l": []},
        "usage_limit": rng.choice([10**10, 0]),
    }
    if rng.random() < 0.3:
        del problem["usage_limit"]
    keys = list(problem)
    rng.shuffle(keys)
    return {"problem": {k: problem[k] for k in keys}, "more": [1, 2], "last": 7}


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1 << 20])
def test_stream_equals_python_json(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    for seed in range(60):
        data = document(seed)
        for text in (
            json.dumps(data),
            json.dumps(data, indent=2),
            json.dumps(data, separators=(",", ":"), ensure_ascii=False),
        ):
            raw = io.BytesIO(text.encode())
            made = read_iopddl(lambda n, raw=raw: raw.read(min(n, 3 * chunk)))
            assert made.sha256() == from_iopddl(data).sha256()


def test_values_mean_what_the_format_says() -> None:
    data = {"problem": {"nodes": {"intervals": [[0, 2], [3, 3]], "costs": [[1, 10**18], [5, 6]], "usages": [[3, 4], [9, 9]]},
                        "edges": {"nodes": [[1, 0], [0, 1]], "costs": [[1, 2, 3, 10**40], [0, 0, 0, 0]]}, "usage_limit": 4}}  # fmt: skip
    problem = selection_problem(json.dumps(data).encode(), "f")
    assert problem.vertices[0].cost.tolist() == [1, FORBIDDEN]
    assert [(e.u, e.v) for e in problem.edges] == [(1, 0), (0, 1)] and problem.tables[0].tolist() == [
        [1, 2],
        [3, FORBIDDEN],
    ]
    assert [(u.vertex, u.start, u.end) for u in problem.usages] == [(0, 0, 2)]  # an empty interval uses nothing
    assert problem.cost_of((0, 1)) == 1 + 6 + 3


def broken(edit) -> bytes:
    data = {"problem": {"name": "p", "nodes": {"intervals": [[0, 2], [3, 4]], "costs": [[1, 2], [5, 6]], "usages": [[3, 4], [9, 9]]},
                        "edges": {"nodes": [[1, 0]], "costs": [[1, 2, 3, 4]]}, "usage_limit": 4}}  # fmt: skip
    edit(data["problem"])
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "edit, place",
    [
        (lambda p: p["nodes"]["costs"].__setitem__(1, [5, 6.0]), r"nodes\.costs\[1\].*6\.0"),
        (lambda p: p["nodes"]["costs"].__setitem__(1, [5, True]), r"nodes\.costs\[1\].*True"),
        (lambda p: p["nodes"]["costs"].__setitem__(0, [5, "x"]), r"nodes\.costs\[0\].*'x'"),
        (lambda p: p["nodes"]["costs"].__setitem__(1, 7), r"nodes\.costs\[1\].*must be a list"),
        (lambda p: p["nodes"]["costs"].__setitem__(1, [[7]]), r"nodes\.costs\[1\].*flat"),
        (lambda p: p["nodes"]["costs"].__setitem__(1, [-(10**19), 1]), r"nodes\.costs\[1\].*out of range"),
        (lambda p: p["nodes"]["costs"].__setitem__(1, []), r"vertex 1|nodes\.usages\[1\]"),
        (lambda p: p["nodes"]["usages"].__setitem__(1, [7]), r"nodes\.usages\[1\].*1 entries for 2"),
        (lambda p: p["nodes"]["usages"].__setitem__(1, [7, -1]), r"usage 1 'node 1'.*negative"),
        (lambda p: p["nodes"]["intervals"].__setitem__(0, [1]), r"nodes\.intervals\[0\].*pair"),
        (lambda p: p["nodes"]["intervals"].pop(), r"problem\.nodes.*1 intervals"),
        (lambda p: p["nodes"].pop("usages"), r"nodes\.usages.*missing"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [1, 2]), r"edges\.nodes\[0\].*outside 0\.\.1"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [1, 0, 1]), r"edges\.nodes\[0\].*joins 3"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [1, 1]), r"edge 0 \(1, 1\)"),
        (lambda p: p["edges"]["costs"][0].pop(), r"edges\.costs\[0\].*3 entries for 2 x 2"),
        (lambda p: p["edges"]["costs"].append([1]), r"problem\.edges.*2 cost lists"),
        (lambda p: p.update(usage_limit=1.5), r"usage_limit.*1\.5"),
        (lambda p: p.update(usage_limit=-1), r"limit.*negative"),
        (lambda p: p.update(nodes=[1]), r"problem\.nodes.*'\{'"),
        (lambda p: p["edges"].update(costs=None), r"edges\.costs.*'\['"),
    ],
)  # fmt: skip
def test_errors_name_the_place(edit, place: str) -> None:
    with pytest.raises((ProblemError, ContainerError), match=r"(?s)^file\.json, .*" + place):
        selection_problem(broken(edit), "file.json")


def test_every_cut_and_every_stray_byte_is_an_error() -> None:
    good = broken(lambda p: None)
    selection_problem(good, "f")
    for end in range(12, len(good)):
        with pytest.raises((ProblemError, ContainerError)):
            selection_problem(good[:end], "f")
    for at in range(0, len(good) + 1, 3):
        for stray in (b"]", b"{", b",", b'"', b"\x00"):
            if stray == b'"' or good[at - 1 : at].isalpha():
                continue  # inside a string, or one that opens a longer one
            with pytest.raises((ProblemError, ContainerError)):
                selection_problem(good[:at] + stray + good[at:], "f")
    for text in (b'{"problem": {}, "problem": {}}', b'{"problem": {"nodes": {"costs": [], "costs": []}}}'):
        with pytest.raises(ProblemError, match="twice"):
            selection_problem(text, "f")


def test_gzip_as_a_stream(tmp_path: Path) -> None:
    good = broken(lambda p: None)
    packed = gzip.compress(good)
    path = tmp_path / "p.json.gz"
    path.write_bytes(packed)
    expected = selection_problem(good, "f").sha256()
    assert load_selection_problem(path).sha256() == selection_problem(packed, "f").sha256() == expected
    for wrong in (
        packed[:-1],
        packed[: len(packed) // 2],
        packed + b"x",
        packed + packed,
        packed[:20] + b"\xff" + packed[21:],
    ):
        path.write_bytes(wrong)
        with pytest.raises((ContainerError, ProblemError)):
            load_selection_problem(path)
    with pytest.raises(ContainerError, match="cannot be read"):
        load_selection_problem(tmp_path / "none.json")
    with pytest.raises(ContainerError, match="regular"):
        load_selection_problem(tmp_path)


def test_memory_is_that_of_the_arrays(tmp_path: Path) -> None:
    """6 MB of text, 8 MB of numbers: parsed objects would be 30 MB and more."""
    rng = np.random.default_rng(1)
    path = tmp_path / "p.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as f:
        f.write('{"problem": {"nodes": {"intervals": [' + ", ".join(["[0, 1]"] * 1000) + '], "costs": [')
        f.write(
            ", ".join(["[" + ", ".join(["3"] * 32) + "]"] * 1000)
            + '], "usages": ['
            + ", ".join(["[" + ", ".join(["3"] * 32) + "]"] * 1000)
        )
        f.write(']}, "edges": {"nodes": [' + ", ".join(f"[{i}, {i + 1}]" for i in range(999)) + '], "costs": [')
        for i in range(999):
            f.write((", [" if i else "[") + ", ".join(map(str, rng.integers(0, 9999, 1024).tolist())) + "]")
        f.write("]}}}")
    tracemalloc.start()
    try:
        problem = load_selection_problem(path)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert problem.tables[998].shape == (32, 32)
    assert held > 8 * 999 * 1024 and peak < held + (22 << 20)


def test_skipped_values_and_strings() -> None:
    text = b' {"a" : [1, [2, {"b": "}]\\"" }]] , "c":"\\u00e9\\n", "d": -1.5e3,"e":null, "f": [] }  '
    stream = JsonStream(io.BytesIO(text).read)
    assert {key: stream.value(key) for key in stream.keys("top")} == json.loads(text)
    stream.end("top")
    with pytest.raises(ProblemError, match="behind its end"):
        late = JsonStream(io.BytesIO(b"[] 1").read)
        list(late.lists("x"))
        late.end("x")


def test_floats_become_integers_exactly_or_are_refused() -> None:
    rng = random.Random(5)
    kinds = {"coarse": 0, "fine": 0, "refused": 0}
    for top in (1.0, 3e4, 1e9, 3e13):
        for _ in range(20):
            k = [rng.randint(1, 4) for _ in range(3)]
            least = rng.choice([2.0**-40, 2.0**-60, 1e-9])

            def number(top: float = top, least: float = least) -> float | int:
                return rng.choice(
                    [
                        0,
                        rng.randint(0, int(top)),
                        rng.random() * top,
                        rng.randint(0, 64) / 64,
                        -rng.randint(1, 99) * least,
                    ]
                )

            data = {"nodes": [{"name": str(i), "cost": [number() for _ in range(n)]} for i, n in enumerate(k)],
                    "edges": [[u, v, [[number() for _ in range(k[v])] for _ in range(k[u])]] for u, v in ((0, 1), (1, 2))]}  # fmt: skip
            given = [n["cost"] for n in data["nodes"]] + [list(chain.from_iterable(e[2])) for e in data["edges"]]
            needed = max(Fraction(x).denominator.bit_length() - 1 for values in given for x in values)
            largest = sum(max(abs(Fraction(x)) for x in values) for values in given)
            try:
                problem = from_pase(data)
            except ProblemError as error:
                kinds["refused"] += 1
                assert "too many to scale exactly" in str(error) and largest * 2**needed >= FINITE_LIMIT << 51
                continue
            kinds["coarse" if problem.fine is None else "fine"] += 1
            assert problem.scale == 1 << needed and not problem.assumptions
            arrays = [*(v.cost for v in problem.vertices), *problem.tables]
            fine = problem.fine_parts() or [np.zeros(a.shape, dtype=np.int64) for a in arrays]
            for coarse, low, values in zip(arrays, fine, given, strict=True):
                made = [
                    (c << problem.fine_bits) + f
                    for c, f in zip(coarse.reshape(-1).tolist(), low.reshape(-1).tolist(), strict=True)
                ]
                assert [Fraction(m, problem.scale) for m in made] == [Fraction(x) for x in values]
            if problem.fine is not None:
                assert (
                    largest * (problem.scale >> problem.fine_bits) * 2 >= FINITE_LIMIT - 16
                )  # no larger int64 part fits
    assert min(kinds.values()) > 3, kinds


@pytest.mark.parametrize(
    "data, place",
    [
        ({"nodes": [{"cost": [float("nan")]}], "edges": []}, r"nodes\[0\]\.cost.*nan"),
        ({"nodes": [{"cost": [1, float("inf")]}], "edges": []}, r"nodes\[0\]\.cost.*inf"),
        ({"nodes": [{"cost": [True]}], "edges": []}, r"nodes\[0\]\.cost.*True"),
        ({"nodes": [{"cost": [2**53 + 1]}], "edges": []}, r"nodes\[0\]\.cost.*53 bits"),
        ({"nodes": [{"cost": [1e300]}], "edges": []}, r"costs.*57 bits"),
        ({"nodes": [{"cost": [1]}, {"cost": [1]}], "edges": [[0, 1, [[1, 2]]]]}, r"edges\[0\].*1 rows and 1 columns"),
        ({"nodes": [{"cost": [1]}, {"cost": [1]}], "edges": [[0, 1, [["x"]]]]}, r"edges\[0\] row 0.*'x'"),
        ({"nodes": [{"cost": [1]}], "edges": [[0, 1, [[1]]]]}, r"edges\[0\].*outside"),
        ({"nodes": [{}], "edges": []}, r"nodes\[0\].*cost"),
    ],
)  # fmt: skip
def test_pase_errors_name_the_place(data: dict, place: str) -> None:
    with pytest.raises(ProblemError, match=place):
        from_pase(data)


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets lie outside the repository")
def test_published_files() -> None:
    for path in sorted((DATA / "pase").glob("*-p4.json.gz")):
        problem, data = load_selection_problem(path), json.loads(gzip.decompress(path.read_bytes()))
        exact = data["exact"]
        assert problem.cost_of(tuple(exact["x"])) / problem.scale == pytest.approx(exact["cost"], rel=1e-12)
    example = load_selection_problem(DATA / "iopddl" / "example.json")
    assert example.cost_of((0, 0, 2, 1, 0)) == 445 and example.is_feasible((0, 0, 2, 1, 0))
    assert example.cost_of((0, 0, 1, 1, 0)) == 415 and example.peak_of((0, 0, 1, 1, 0))[0] == 55
    small = load_selection_problem(DATA / "iopddl" / "asplos-2025-iopddl-G.json.gz")
    assert (len(small.vertices), len(small.edges), small.limit) == (816, 1023, 14392528)
