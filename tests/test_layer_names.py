"""Operators of functional programs are called after the layer whose weights they read, and results stay what they are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.execution.reference import run_graph
from shardproof.formal.plans.report import label, pattern
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.layer_names import layer_names, with_layer_names
from shardproof.models.sources.onnx.importer import import_onnx


def functional(layers: int = 3, weight: str = "layers.{}.{}") -> Graph:
    """Products, an elementwise function and a residual sum per layer, a head, and a sum."""
    g = Builder("functional")
    x, count = g.input("x", (4, 8)), 0
    for k in range(layers):
        up, down = (g.parameter(weight.format(k, part), (8, 8)) for part in ("up", "down"))
        turned = g.map(f"permute_{k}", "scale", up, scale=2.0)
        y = g.map(f"gelu_{k}", "gelu", g.contract(f"mm_{(count := count + 1)}", "b k, k n -> b n", x, turned))
        y = g.contract(f"mm_{(count := count + 1)}", "b k, k n -> b n", y, down)
        x = g.map(f"add_{k}", "add", x, y)
    head = g.contract("mm_head", "b k, k n -> b n", x, g.parameter("head", (8, 2)))
    return g.build(g.reduce("sum", "b n -> b", head))


def every(graph: Graph) -> set[str]:
    return {op.name for op in graph.operators}


def test_every_operator_stands_behind_a_weight() -> None:
    graph = functional()
    names = layer_names(graph, every(graph))
    layer = ["up.permute", "up.mm", "up.gelu", "down.mm", "down.add"]
    assert [*names.values()] == [f"layers.{k}.{part}" for k in range(3) for part in layer] + ["head.mm_head"]
    assert "sum" not in names, "the result keeps its name, and what reads no layer's value too"
    rows: dict[str, list[str]] = {}
    for name in names.values():
        rows.setdefault(pattern(name), []).append(name)
    assert [label(row) for row in rows.values()] == [*(f"layers.0..2.{part}" for part in layer), "head.mm_head"]


def test_only_names_differ() -> None:
    graph = functional()
    renamed = with_layer_names(graph, layer_names(graph, every(graph))).check()
    draw = np.random.default_rng(0)
    values = {t.name: draw.standard_normal(t.shape).astype("float32") for t in graph.tensors if t.name in READ}
    assert run_graph(renamed, values)["sum"].tobytes() == run_graph(graph, values)["sum"].tobytes()
    assert [op.function for op in renamed.operators] == [op.function for op in graph.operators]
    assert [op.axes for op in renamed.operators] == [op.axes for op in graph.operators]


READ = {"x", "head", *(f"layers.{k}.{part}" for k in range(3) for part in ("up", "down"))}


def test_a_module_s_own_operators_keep_their_names() -> None:
    graph = functional()
    bare = every(graph) - {"mm_1", "gelu_0"}
    names = layer_names(graph, bare)
    assert not {"mm_1", "gelu_0"} & set(names) and names["mm_2"] == "layers.0.down.mm"


def test_weights_without_layers_say_nothing() -> None:
    graph = functional(weight="w{}{}")
    assert layer_names(graph, every(graph)) == {} and with_layer_names(graph, {}) is graph


def test_names_that_are_taken() -> None:
    g = Builder("taken")
    x, w = g.input("x", (4, 8)), g.parameter("l.0.w", (8, 8))
    g.parameter("l.0.w.mm", (8, 8))
    a = g.contract("mm", "b k, k n -> b n", x, w)
    b = g.contract("mm#2", "b k, k n -> b n", a, w)
    graph = g.build(g.map("out", "relu", g.contract("mm#3", "b k, k n -> b n", b, "l.0.w.mm")))
    renamed = with_layer_names(graph, layer_names(graph, every(graph))).check()
    assert [op.name for op in renamed.operators] == ["l.0.w.mm#2", "l.0.w.mm#3", "l.0.w.mm.mm", "out"]


TORCH = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ParameterList([nn.Parameter(torch.zeros(16, 8)) for _ in range(3)])
        self.down = nn.ParameterList([nn.Parameter(torch.zeros(8, 16)) for _ in range(3)])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for up, down in zip(self.up, self.down):
            x = x + F.linear(F.gelu(F.linear(x, up)), down)
        return self.head(x).relu() * 2.0


def net():
    return Net(), (torch.zeros(4, 8),)
"""


@pytest.mark.torch
def test_a_functional_module_of_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(TORCH)
    assert run(["plan", f"{tmp_path / 'net.py'}:net", "--machine", "localhost:2", "-o", str(tmp_path / "p.spz")]) == 0
    assert run(["explain", str(tmp_path / "p.spz")]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {"up.0..2.mm", "up.0..2.gelu", "down.0..2.mm", "down.0..2.add", "head"} <= set(rows)
    assert not [row for row in rows if re.match(r"(mm|gelu|add)\b", row)]
    assert run(["check", str(tmp_path / "p.spz")]) == 0


def test_a_functional_program_of_jax() -> None:
    jax = pytest.importorskip("jax")
    from shardproof.models.sources.jax.importer import graph_of

    def net(params, x):  # type: ignore[no-untyped-def]
        for p in params["layers"]:
            x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
        return x @ params["head"]

    def shape(*sizes: int) -> object:
        return jax.ShapeDtypeStruct(sizes, "float32")

    layers = [{"up": shape(8, 16), "down": shape(16, 8)} for _ in range(2)]
    graph = graph_of("here", "net", net, [{"layers": layers, "head": shape(8, 4)}, shape(4, 8)])
    names = [op.name for op in graph.operators]
    assert {f"params.layers.{k}.down.add" for k in range(2)} <= set(names) and names[-1] == "net"
    assert all(name.startswith("params.layers.") for name in names[:-1])


def test_nodes_of_onnx_without_paths(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    nodes, stored, value = [], [], "x"
    for k in range(2):
        name = f"layers.{k}.weight"
        stored.append(helper.make_tensor(name, TensorProto.FLOAT, (8, 8), np.zeros(64, "float32")))
        nodes += [
            helper.make_node("MatMul", [value, name], [f"m{k}"], name=f"MatMul_{k}"),
            helper.make_node("Relu", [f"m{k}"], [value := f"r{k}"], name=f"block/Relu_{k}"),
        ]
    nodes.append(helper.make_node("Sigmoid", [value], ["y"], name="Sigmoid_9"))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 8)) for n in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "net", ends[:1], ends[1:], stored))
    model.ir_version, model.opset_import[0].version = 8, 17
    onnx.save(model, str(tmp_path / "net.onnx"))
    found = import_onnx(tmp_path / "net.onnx")
    names = [op.name for op in found.graph.operators]
    assert names == ["layers.0.weight.MatMul", "block/Relu_0", "layers.1.weight.MatMul", "block/Relu_1", "Sigmoid_9"]
    assert found.where["layers.0.weight.MatMul"] == "MatMul_0" and found.values["m1"] == names[2]
