"""Constants too large for the graph: their digest in it, their values beside it and in the plan, and run with."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.provenance import made_up
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.contents import (
    beside,
    constants,
    contents_of,
    encode_contents,
    fill_contents,
    read_beside,
    write_beside,
)
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.stated import LIMIT, asked_for
from shardproof.models.sources.load import load_model
from shardproof.models.terminal.console import Exit
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.overlap.file import decode_overlap
from shardproof.proofs.plan.bundle import decode_plan
from shardproof.proofs.views.file import decode_submesh_plan

ROWS, COLUMNS = 300, 220


def table() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def graph() -> Graph:
    g = Builder("g")
    assert ROWS * COLUMNS > LIMIT
    stated = asked_for(g, "constant.table", table(), "float32")
    y = g.contract("y", "b k, k n -> b n", g.input("x", (4, ROWS)), g.parameter("w", (ROWS, COLUMNS)))
    return g.build(g.map("z", "add", y, g.reduce("s", "k n -> n", stated), text="b n, n -> b n"))


def test_the_digest_is_of_the_elements_whatever_the_shape() -> None:
    a = np.arange(6, dtype=np.int64)
    assert contents_of(a.reshape(2, 3), "int64") == contents_of(a, "int64") != contents_of(a, "int32")
    assert contents_of(a, "int64") != contents_of(a[::-1], "int64")
    assert contents_of(a.astype(">i8"), "int64") == contents_of(a, "int64")


def test_a_graph_file_and_its_constants_read_back(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(graph().to_json())
    bare = load_model(str(path))
    assert bare == graph()
    assert not encode_contents(bare)
    assert write_beside(path, bare) is None
    assert write_beside(path, graph()) == beside(path)
    again = load_model(str(path))
    assert again.to_json() == graph().to_json()
    (held,) = [t.contents for t in again.tensors if t.contents is not None]
    np.testing.assert_array_equal(held.values.reshape(ROWS, COLUMNS), table())
    first = beside(path).read_bytes()
    write_beside(path, again)
    assert beside(path).read_bytes() == first


def test_a_run_takes_the_values_of_the_program() -> None:
    values = random_inputs(graph(), 0)
    np.testing.assert_array_equal(values["constant.table"], table().astype(np.float64))
    expected = values["x"] @ values["w"] + table().astype(np.float64).sum(0)
    np.testing.assert_allclose(run_graph(graph(), values)["z"], expected, rtol=1e-12)
    assert made_up(graph(), 0).constants == ()
    bare = Graph.from_json(graph().to_json())
    assert made_up(bare, 0).constants == ("constant.table",)


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("change", [flipped, lambda data: data[:-4], lambda data: data + b"0000"])
def test_other_values_are_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    ((digest, data),) = encode_contents(graph()).items()
    with pytest.raises(ValueError, match=r"constant 'constant\.table'"):
        fill_contents(graph(), {digest: change(data)})
    path = tmp_path / "g.json"
    path.write_text(graph().to_json())
    with zipfile.ZipFile(beside(path), "w") as archive:
        archive.writestr(digest, flipped(data))
    with pytest.raises(InputError, match="g.json.constants"):
        load_model(str(path))
    beside(path).write_bytes(b"no zip")
    with pytest.raises(ValueError, match="zip"):
        read_beside(path, graph())


def test_contents_belong_to_inputs() -> None:
    data = json.loads(graph().to_json())
    for t in data["tensors"]:
        if t["name"] in ("w", "constant.table"):
            t["contents"] = "0" * 64 if t["name"] == "w" else t["contents"]
    with pytest.raises(GraphError, match="tensor 'w': has contents"):
        Graph.from_json(json.dumps(data))
    text = graph().to_json()
    with pytest.raises(GraphError, match="sha256"):
        Graph.from_json(text.replace(next(iter(constants(graph()))), "abc"))


@pytest.mark.parametrize("way", ["", "--overlap", "--views"])
def test_a_plan_holds_them_and_runs_with_them(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plan = tmp_path / "g.json", tmp_path / "g.spz"
    path.write_text(graph().to_json())
    write_beside(path, graph())
    made = run(["plan", str(path), "--machine", "localhost:2", "-o", str(plan), *way.split()])
    assert made in (Exit.DONE, Exit.UNDECIDED)
    assert run(["check", str(plan)]) == 0
    capsys.readouterr()
    out = tmp_path / "out.npz"
    assert run(["run", str(plan), "-n", "2", "--virtual", "--dtype", "float64", "-o", str(out)]) == 0
    assert "constants made up" not in capsys.readouterr().out
    wanted = run_graph(graph(), random_inputs(graph(), 0))["z"]
    np.testing.assert_allclose(np.load(out)["z"], wanted, rtol=1e-9)
    members = {name: m for name, m in read_container(plan).items() if name != "manifest.json"}
    decode = {"": decode_plan, "--overlap": decode_overlap, "--views": decode_submesh_plan}[way]
    held = decode(members)
    (name,) = [m for m in members if m.startswith("constants/")]
    assert name.removeprefix("constants/") in constants(graph())
    for broken in ({name: flipped(bytes(members[name]))}, {"constants/" + "0" * 64: b"abcd"}):
        with pytest.raises(ContainerError, match="constant"):
            decode(read_container(write_container(None, {**members, **broken})))
    assert decode({k: v for k, v in members.items() if k != name}).graph == held.graph
