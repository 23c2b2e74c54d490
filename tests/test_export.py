"""The verb `export`: what a file says is what the plan says, device by device."""

from __future__ import annotations

import ast
import json
import runpy
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from click.testing import CliRunner
from export_cases import plan_data

from shardproof.__main__ import cli
from shardproof.backends.export.dtensor import export_dtensor
from shardproof.backends.export.exported import Exported
from shardproof.backends.export.jax import export_jax
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.communication.choices import copy_layout, input_layout, needs_copy, output_layout
from shardproof.models.communication.shardings import plan_shardings
from shardproof.models.layout.mesh import Mesh
from shardproof.models.layout.sharding import Sharding, ShardingError, layout_of, unfold
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.plan.bundle import Plan, read_plan, write_plan

CASES = [
    ("mlp-unity", "adam", "localhost:4"),
    ("bert-tiny", "adam", "cloud-a100:2x2"),
    ("conv-stack", None, "localhost:8"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c[0])
def plan(request: pytest.FixtureRequest) -> Plan:
    name, train, machine = request.param
    graph = build(name)
    if train:
        graph = build_step(graph, train).graph
    planned = plan_graph(graph, load_machine(machine))
    assert planned.plan is not None
    return planned.plan


def chunks(extent: int, parts: int) -> list[tuple[int, int]]:
    """What `torch.chunk` cuts: blocks of the size of the first, the last ones shorter or empty."""
    size = -(-extent // parts)
    return [(min(i * size, extent), min((i + 1) * size, extent)) for i in range(parts)]


def dtensor_box(
    splits: list[list[str]], shape: tuple[int, ...], mesh: Mesh, device: int
) -> tuple[tuple[int, int], ...]:
    """DTensor's rule: mesh dimension after mesh dimension cuts what the device holds.  Written from its document."""
    at = mesh.coordinates()[device]
    box = [(0, n) for n in shape]
    for d, coordinate in zip(mesh.dimensions, at, strict=True):
        for k, names in enumerate(splits):
            if d.name in names:
                low, high = box[k]
                first, last = chunks(high - low, d.size)[coordinate]
                box[k] = (low + first, low + last)
    return tuple(box)


def test_every_layout_of_a_plan_is_said_or_named(plan: Plan) -> None:
    """Each sharding, spelled out, is the layout that the plan has there; the boxes of DTensor's rule are the same."""
    graph, hierarchy = plan.graph, plan.machine.hierarchy
    found = plan_shardings(graph, hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    refused = {r.place for r in export_dtensor(plan, "0" * 64).refused}
    placements, copies = dict(plan.choices.operators), dict(plan.choices.copies)
    said = 0
    for op in graph.operators:
        for i, a in enumerate(op.inputs):
            there = input_layout(op, i, graph, placements[op.name], hierarchy)
            if (op.name, i) in found.reads:
                assert layout_of(found.reads[op.name, i], there.shape, found.mesh) == there
                said += 1
            else:
                assert f"input {i} of operator {op.name!r}" in refused, a.tensor
        there = output_layout(op, graph, placements[op.name], hierarchy)
        assert layout_of(found.writes[op.name], there.shape, found.mesh) == there
    for name in needs_copy(graph):
        t, kept = graph.tensor(name), found.rests[name]
        there = copy_layout(name, graph, copies[name], hierarchy)
        assert layout_of(kept, t.shape, found.mesh) == there
        if f"tensor {name!r}" not in refused and t.source_shape is None:
            splits = [list(s) for s in kept.splits]
            for device in range(found.mesh.devices):
                box = dtensor_box(splits, t.shape, found.mesh, device)
                empty = any(lo >= hi for lo, hi in box)
                assert empty or box == there.box(device), (name, device)
    assert said > 0


def test_the_dtensor_file_is_python_and_says_the_stored_layouts(plan: Plan) -> None:
    made = export_dtensor(plan, "ab" * 32)
    tree = ast.parse(made.text)
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any(m and m.startswith("shardproof") for m in imported), imported
    data = plan_data(made.text)
    assert data["identity"] == "ab" * 32
    found = plan_shardings(plan.graph, plan.machine.hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    for name, entry in data["parameters"].items():
        t = plan.graph.tensor(name)
        flat = unfold(found.rests[name], t.shape, tuple(entry["shape"]), found.mesh)
        assert entry["splits"] == [list(s) for s in flat.splits]
        assert prod(entry["shape"]) == t.elements
    assert made.text == export_dtensor(plan, "ab" * 32).text, "same plan, same bytes"


def test_the_jax_file_says_what_rests(plan: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run without JAX: stand-ins for the three names that it takes from there."""
    made = export_jax(plan, "cd" * 32)
    fake, sharding = types.ModuleType("jax"), types.ModuleType("jax.sharding")
    for name in ("Mesh", "NamedSharding", "PartitionSpec"):
        setattr(sharding, name, lambda *parts: parts)
    fake.sharding = sharding  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.setitem(sys.modules, "jax.sharding", sharding)
    path = tmp_path / "specs.py"
    path.write_text(made.text)
    module = runpy.run_path(str(path))
    assert prod(size for _, size in module["MESH"]) == plan.machine.devices
    assert set(module["PARAMETERS"]) | set(module["RESULTS"]) | {r.tensor for r in made.refused} >= {
        t.name for t in plan.graph.tensors
    } - {t.name for t in plan.graph.tensors if t.name not in module["PARAMETERS"] and not _is_read(plan, t.name)}
    assert module["spec"]([["a", "b"], []]) == (("a", "b"), None)


def _is_read(plan: Plan, tensor: str) -> bool:
    return any(a.tensor == tensor for op in plan.graph.operators for a in op.inputs)


def test_the_verb(tmp_path: Path) -> None:
    planned = plan_graph(build("mlp-unity"), load_machine("localhost:4"))
    assert planned.plan is not None
    (tmp_path / "p.spz").write_bytes(write_plan(None, planned.plan))
    run = CliRunner().invoke
    done = run(
        cli, ["export", str(tmp_path / "p.spz"), "--to", "dtensor", "-o", str(tmp_path / "x.py"), "--json"],
        standalone_mode=False, obj=None,
    )  # fmt: skip
    assert done.return_value == 0, done.output
    said = json.loads(done.output)
    assert said["refused"] == [] and said["mesh"] == [["ranks", 4]]
    assert said["identity"] == read_plan(tmp_path / "p.spz")[1]
    assert said["identity"][:16] in (tmp_path / "x.py").read_text()
    again = run(cli, ["export", str(tmp_path / "p.spz"), "--to", "jax", "-o", str(tmp_path / "x.py")])
    assert again.exit_code != 0, "an existing file needs --force"


HOSTILE = 'x"""\nimport os\nos.system("false")\n"""' + "\\"


@pytest.mark.parametrize("export", [export_dtensor, export_jax])
def test_names_of_a_file_write_no_code(export: Callable[[Plan, str], Exported]) -> None:
    """A graph, a machine and tensors whose names would end a text and go on as Python: they stay texts."""

    def written(suffix: str) -> list[str]:
        graph = build("mlp-unity", batch=8)
        on = load_machine("localhost:2")
        text = graph.to_json().replace('"fc1', '"fc1' + json.dumps(suffix)[1:-1])
        planned = plan_graph(replace(Graph.from_json(text), name="g" + suffix), replace(on, name="m" + suffix))
        assert planned.plan is not None
        return [type(n).__name__ for n in ast.parse(export(planned.plan, "0" * 64).text).body]

    assert written(HOSTILE) == written("")


def test_what_dtensor_cannot_say_is_named() -> None:
    """Rows of unequal blocks over two mesh dimensions: DTensor cuts the blocks again, we cut the whole."""
    from shardproof.backends.export.dtensor import reasons
    from shardproof.models.layout.mesh import MeshDimension
    from shardproof.models.program.graph import Graph, Tensor

    where = Mesh((2, 2), (MeshDimension("a", 0, 1, 2), MeshDimension("b", 1, 1, 2)))
    graph = Graph("g", (Tensor("x", (5,)),), (), ())
    kept = Sharding((("a", "b"),))
    (found,) = reasons("here", graph, "x", kept, where)
    assert found.reason == "uneven: dimension 0 of 5 is cut into 4 by a x b"
    ours = [layout_of(kept, (5,), where).box(d) for d in range(4)]
    theirs = [dtensor_box([["a", "b"]], (5,), where, d) for d in range(4)]
    assert ours != theirs
    even = Graph("g", (Tensor("x", (8,)),), (), ())
    (found,) = reasons("here", even, "x", Sharding((("b", "a"),)), where)
    assert found.reason.startswith("order: dimension 0 is cut by b x a")
    with pytest.raises(ShardingError):
        unfold(Sharding((("a",), ("b",))), (4, 4), (16,), where)
