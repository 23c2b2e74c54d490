"""The zoo: sizes against published figures, repeated structure, and meaning against formulas written out in NumPy."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from math import erf, prod, sqrt
from pathlib import Path

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.program.operators import NodeKind, Operator
from shardproof.models.sources.load import load_model
from shardproof.models.sources.zoo import TINY, ZOO, ZooError, build
from shardproof.models.text import InputError


def parameters(graph: Graph) -> int:
    return sum(t.elements for t in graph.tensors if t.role is Role.PARAMETER)


def multiply_adds(graph: Graph) -> int:
    return sum(prod(a.extent for a in op.axes) for op in graph.operators if op.kind is NodeKind.CONTRACT)


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_model_builds_with_its_defaults_and_survives_its_json(name: str) -> None:
    options = {"steps": 20} if name == "rnnlm" else {}  # 8191 operators otherwise
    options |= {"layers": 2} if name == "moe" else {}
    graph = build(name, **options)
    assert graph.name == name
    assert Graph.from_json(graph.to_json()) == graph
    assert build(name, **options).sha256() == graph.sha256()


def test_every_model_has_a_tiny_size() -> None:
    assert set(TINY) == set(ZOO)
    for name, options in TINY.items():
        assert sum(t.elements for t in build(name, **options).tensors) < 1 << 26, name


PUBLISHED = {
    "resnext50": 25_028_904,
    "resnet101": 44_549_160,
    "inception-v3": 23_834_568,
    "vit": 86_567_656,
    "llama": 8_030_261_248,
    "moe": 46_702_792_704,
    "dlrm": 8 * 64_000_000 + 64 * 512 + 512 * 512 + 512 * 64 + 576 * 1024 + 2 * 1024 * 1024 + 1024,
    "xdl": 4 * 64_000_000 + 3 * 256 * 256 - 256 * 254,
    "candle-uno": (942 + 2 * 5270 + 2 * 2048) * 4192 + 5 * 7 * 4192**2 + (5 * 4192 + 2) * 4192 + 3 * 4192**2 + 4192,
    "rnnlm": 2 * 100_000 * 2048 + 2 * (2 * 2048 + 1) * 4 * 2048,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    """Published counts of the same architectures (torchvision, timm without auxiliary head, model cards); formulas
    for Unity's programs.
    """
    assert parameters(build(name)) == PUBLISHED[name]


def test_bert_large_has_the_published_number_of_parameters() -> None:
    """335,141,888 parameters of the published base model, less its pooler (1024 * 1024 + 1024), which is not part
    of the graph.
    """
    assert parameters(build("bert-large")) == 335_141_888 - (1024 * 1024 + 1024)
    assert (
        build("bert-large").tensors[0].dtype == "int32"
        and build("bert-large").tensor("layer0.ffn.up").dtype == "bfloat16"
    )


def test_bert_large_multiply_adds() -> None:
    """Per layer and token 12 m^2 in the weights and 2 s m in the attention products."""
    assert multiply_adds(build("bert-large", batch=8)) == 24 * 8 * 512 * (12 * 1024**2 + 2 * 512 * 1024)


def test_alexnet_has_pases_iteration_domains() -> None:
    """Iteration domains [b, c, h, w, r, s, n] of the published PaSE graph (shared/data/pase)."""
    graph = build("alexnet", batch=128)
    domains = {
        "conv1": (3, 55, 55, 11, 11, 96),
        "conv2": (96, 27, 27, 5, 5, 256),
        "conv3": (256, 13, 13, 3, 3, 384),
        "conv4": (384, 13, 13, 3, 3, 384),
        "conv5": (384, 13, 13, 3, 3, 256),
    }
    for name, domain in domains.items():
        op = graph.operator(name)
        assert tuple(op.axis(a).extent for a in ("c", "y", "x", "ky", "kx", "o")) == domain
    assert graph.tensor("fc6.weight").shape == (256, 6, 6, 4096) and graph.tensor("fc6.weight").source_shape == (
        9216,
        4096,
    )


def convolutions(graph: Graph) -> list[tuple[int, ...]]:
    """(input channels, rows, columns, window, output channels), sorted."""
    found = []
    for op in graph.operators:
        sizes = {a.name: a.extent for a in op.axes}
        if op.function == "product" and "ky" in sizes:
            found.append(tuple(sizes[a] for a in ("c", "y", "x", "ky", "kx", "o")))
    return sorted(found)


@pytest.mark.parametrize(("name", "published"), [("resnet101", "resnet101"), ("inception-v3", "inception3")])
def test_convolutions_have_pases_iteration_domains(name: str, published: str) -> None:
    """Every convolution of the published PaSE graph (shared/data/pase), and no other."""
    source = Path(__file__).parents[2] / "shared" / "data" / "pase" / f"{published}-p4.json.gz"
    if not source.exists():
        pytest.skip("the data set pase is not beside the checkout")
    domains = [
        n["dom"] for n in json.loads(gzip.decompress(source.read_bytes()))["nodes"] if n["name"].endswith(":Conv")
    ]
    assert convolutions(build(name)) == sorted((c, h, w, r, s, n) for _, c, h, w, r, s, n in domains)


def test_rnnlm_has_pases_sizes() -> None:
    graph = build("rnnlm", steps=2)
    assert [a.extent for a in graph.operator("logits").axes] == [64, 2, 100_000, 2048]
    assert [a.extent for a in graph.operator("lstm1.step1").axes] == [64, 4, 2048, 2048]


def test_transformer_has_pases_sizes() -> None:
    graph = build("transformer")
    assert [a.extent for a in graph.operator("decoder5.cross.scores").axes] == [64, 8, 256, 256, 64]
    assert [a.extent for a in graph.operator("logits").axes] == [64, 256, 50000, 512]
    assert sum(op.function == "softmax" for op in graph.operators) == 6 + 2 * 6 + 1
    assert graph.operator("decoder3.cross.key").inputs[0].tensor == "encoder5.ffn.norm"


def test_repeated_layers_are_equal_up_to_their_names() -> None:
    graph = build("bert-large", layers=3)

    def layer(i: int) -> list[Operator]:
        """Operators of a layer, names without prefix; the layer's input is called `in`."""
        before = "embedding.norm" if i == 0 else f"layer{i - 1}.ffn.norm"

        def plain(name: str) -> str:
            return "in" if name == before else name.removeprefix(f"layer{i}.")

        return [
            replace(
                op,
                name=plain(op.name),
                inputs=tuple(replace(a, tensor=plain(a.tensor)) for a in op.inputs),
                output=replace(op.output, tensor=plain(op.output.tensor)),
            )
            for op in graph.operators
            if op.name.startswith(f"layer{i}.")
        ]

    assert layer(0) == layer(1) == layer(2)


def test_unity_training_is_the_gradient_of_the_forward_pass() -> None:
    graph = build("mlp-unity-training", batch=5, inputs=7, hidden=6, classes=3, dtype="float64")
    v = random_inputs(graph, 1)
    out = run_graph(graph, v)

    def loss(w1: np.ndarray, w2: np.ndarray) -> float:
        return float((np.maximum(v["x"] @ w1, 0) @ w2 * v["dy"]).sum())

    for name in ("w1", "w2"):
        gradient = (v[name] - out[f"{name}.update"]) / 0.01
        for at in np.ndindex(*gradient.shape):
            step = np.zeros_like(v[name])
            step[at] = 1e-6
            up, down = ({"w1": v["w1"], "w2": v["w2"], name: v[name] + s * step} for s in (1, -1))
            assert gradient[at] == pytest.approx((loss(**up) - loss(**down)) / 2e-6, abs=1e-6)


def test_bert_is_bert() -> None:
    """One layer against the formulas of the paper, with flat weights and heads by reshape."""
    graph = build("bert-tiny", batch=2, layers=1, sequence=4)
    v = random_inputs(graph, 3)
    p = {n.removeprefix("layer0."): a.reshape(graph.tensor(n).source_shape or a.shape) for n, a in v.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * p[f"{name}.gamma"] + p[f"{name}.beta"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    x = p["embedding.word.table"][p["words"]] + p["embedding.type.table"][p["types"]] + p["embedding.position.table"]
    x = norm(x, "embedding.norm")
    q, k, u = (dense(x, f"attention.{n}").reshape(2, 4, 8, 8).transpose(0, 2, 1, 3) for n in ("query", "key", "value"))
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / sqrt(8))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ u
    x = norm(x + dense(mixed.transpose(0, 2, 1, 3).reshape(2, 4, 64), "attention.output"), "attention.norm")
    h = dense(x, "ffn.up")
    x = norm(x + dense(h * (1 + np.vectorize(erf)(h / sqrt(2))) / 2, "ffn.down"), "ffn.norm")
    np.testing.assert_allclose(run_graph(graph, v)[graph.outputs[0]], x, rtol=1e-10, atol=1e-10)


def test_convolution_stack_and_uneven_perceptron_run() -> None:
    for name, shape in (("conv-stack", (4, 10)), ("mlp-uneven", (13, 10)), ("attention", (4, 16, 64))):
        graph = build(name, dtype="float64")
        out = run_graph(graph, random_inputs(graph, 0))[graph.outputs[0]]
        assert out.shape == shape and np.isfinite(out).all() and out.std() > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "it has: alexnet, attention, bert-large"),
        ("bert-large", {"depth": 3}, "it has: batch, layers, sequence, dtype"),
        ("bert-large", {"layers": 0}, "option layers must be an integer of at least 1, got 0"),
        ("mlp-unity", {"dtype": "float8"}, "unknown element type 'float8'"),
        ("attention", {"heads": 7}, "width 64 is not a multiple of heads=7"),
    ],
)
def test_wrong_names_and_options_say_what_exists(name: str, options: dict[str, int | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **options)
    assert issubclass(ZooError, ValueError)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bert-tiny:layer=2", "has no option 'layer'"),
        ("bert-tiny:2", "'2' is not a size; write bert-tiny:key=value"),
        ("bert-tiny:", "'' is not a size"),
        ("bert-tiny:layers=1,layers=2", "is not a size"),
        ("bert-tiny:layers=-1", "an integer of at least 1"),
        ("bert-tiny:dtype=5", "unknown element type '5'"),
    ],
)
def test_sizes_in_a_name_that_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ZooError, match=message):
        load_model(spec)


def test_sizes_in_a_name() -> None:
    """The same graph as by options; defaults are told, and a batch is given once."""
    told: list[str] = []
    assert load_model("bert-tiny:layers=1,batch=4", None, told.append) == build("bert-tiny", layers=1, batch=4)
    assert told == ["bert-tiny with layers=1, batch=4; taken as they were not given: sequence=16, dtype=float64"]
    assert load_model("gpt-3-175b:depth=1", 8).name == "gpt-3-175b"
    with pytest.raises(InputError, match="says batch=4, and --batch 8"):
        load_model("bert-tiny:batch=4", 8)
