"""PyTorch import: Hugging Face models from configurations, every operator against PyTorch, digits, constants,
refusals.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import dense as dense_models
from canonical_graph import canonical
from graph_equality import same_up_to_names
from torch import Tensor, nn
from torch_case import compare, imported

from shardproof.__main__ import run
from shardproof.models.program.graph import Graph, GraphError, UnsupportedOperators
from shardproof.models.program.index import access
from shardproof.models.sources.load import load_model
from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.importer import import_torch, supported_operators
from shardproof.models.sources.torch.refused import NEAREST
from shardproof.models.sources.zoo import build as build_zoo

pytestmark = pytest.mark.torch
FILE = Path(dense_models.__file__)


class Program(nn.Module):
    """A module made of one function."""

    def __init__(self, function, *parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        self.held = nn.ParameterList(parameters)

    def forward(self, *args: Tensor) -> object:
        return self.function(*args, *self.held)


def made(function, *shapes: tuple[int, ...] | Tensor, weights: tuple[tuple[int, ...], ...] = ()):
    def factory():
        inputs = tuple(s if isinstance(s, Tensor) else torch.zeros(s, dtype=torch.float64) for s in shapes)
        return Program(function, *(nn.Parameter(torch.zeros(w, dtype=torch.float64)) for w in weights)), inputs

    return factory


# ---- Hugging Face models, from configurations

BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}


def bert(attention: str, **sizes: int):
    from transformers import BertConfig, BertModel

    def factory():
        config = BertConfig(**{**BERT, **sizes}, pad_token_id=None, attn_implementation=attention)
        ids = torch.zeros(2, config.max_position_embeddings, dtype=torch.int32)
        return BertModel(config, add_pooling_layer=False).eval(), (ids,), {"token_type_ids": ids}

    return factory


def gpt2(attention: str):
    from transformers import GPT2Config, GPT2LMHeadModel

    def factory():
        config = GPT2Config(
            n_embd=24,
            n_layer=2,
            n_head=3,
            vocab_size=50,
            n_positions=16,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation=attention,
        )
        return GPT2LMHeadModel(config).eval(), (torch.zeros(2, 16, dtype=torch.int64),)

    return factory


def llama(attention: str):
    from transformers import LlamaConfig, LlamaModel

    def factory():
        config = LlamaConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            intermediate_size=40,
            vocab_size=50,
            max_position_embeddings=16,
            use_cache=False,
            attn_implementation=attention,
        )
        return LlamaModel(config).eval(), (torch.zeros(2, 16, dtype=torch.int64),)

    return factory


HUGGING_FACE = {"bert": bert, "gpt2": gpt2, "llama": llama}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model", sorted(HUGGING_FACE))
def test_hugging_face_models_have_the_numbers_of_pytorch(model: str, attention: str) -> None:
    pytest.importorskip("transformers")
    single = model == "llama"  # its norms and rotary tables compute in single precision, whatever the weights are
    found = compare(
        HUGGING_FACE[model](attention),
        torch.float32 if single else torch.float64,
        1e-5 if single else 1e-9,
        50 if model == "gpt2" else 2,
    )
    assert not found.digits.opaque and not found.digits.affine
    counts = [op.function for op in found.graph.operators]
    assert "max" not in counts and "equal" not in counts, "a mask that does nothing stayed"
    assert counts.count("softmax") == 2
    if model == "llama":
        assert counts.count("rms_norm") == 5 and counts.count("silu") == 2 and "rsqrt" not in counts
    if model == "gpt2":
        assert [op.attribute("approximate", "") for op in found.graph.operators if op.function == "gelu"] == [
            "tanh",
            "tanh",
        ]
        assert counts.count("mask_fill") == 2 and counts.count("greater_equal") == 1


def test_heads_of_bert_are_digits_of_its_weights() -> None:
    pytest.importorskip("transformers")
    graph = imported(bert("eager")).graph
    at = "encoder.layer.1.attention"
    for name, shape in (
        (f"{at}.self.query.weight", (3, 8, 24)),
        (f"{at}.self.value.weight", (3, 8, 24)),
        (f"{at}.output.dense.weight", (24, 3, 8)),
    ):
        assert (graph.tensor(name).shape, graph.tensor(name).source_shape) == (shape, (24, 24))
    scores = graph.operator(f"{at}.self.bmm")
    assert [a.extent for a in scores.axes] == [2, 3, 16, 16, 8]
    assert [a.tensor for a in scores.inputs] == [f"{at}.self.query.bias_add", f"{at}.self.key.bias_add"]


def test_fused_projection_of_gpt2_has_three_digits() -> None:
    pytest.importorskip("transformers")
    graph = imported(gpt2("sdpa")).graph
    weight, bias = graph.tensor("transformer.h.0.attn.c_attn.weight"), graph.tensor("transformer.h.0.attn.c_attn.bias")
    assert (weight.shape, weight.source_shape) == ((24, 3, 3, 8), (24, 72))
    assert (bias.shape, bias.source_shape) == ((3, 3, 8), (72,))
    tied = [t.name for t in graph.tensors if t.source_shape is None and t.shape == (50, 24)]
    assert tied == ["transformer.wte.weight"], "the vocabulary projection shares the embedding's weight"


def test_fused_projection_of_the_published_gpt2() -> None:
    def factory():
        return Program(
            lambda x, w: [p.view(2, 5, 12, 64) * 1.5 for p in (x @ w).split(768, -1)],
            nn.Parameter(torch.zeros(768, 2304)),
        ), (torch.zeros(2, 5, 768),)

    assert imported(factory).graph.tensor("held.0").shape == (768, 3, 12, 64)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_grouped_queries_of_llama_read_shared_keys(attention: str) -> None:
    pytest.importorskip("transformers")
    graph = imported(llama(attention)).graph
    at = "layers.0.self_attn"
    assert graph.tensor(f"{at}.q_proj.weight").shape == (2, 3, 2, 2, 24), "2 key-value heads x 3 queries x halves of 4"
    assert graph.tensor(f"{at}.k_proj.weight").shape == (2, 2, 2, 24)
    context = graph.operator(f"{at}.bmm#2")
    keys = context.inputs[1]
    assert keys.tensor == f"{at}.v_proj" and len(keys.axes) == 4, "values are not copied for each query of a group"
    assert [a.extent for a in context.axes] == [2, 2, 3, 16, 4, 16]


def test_hugging_face_bert_is_the_zoo_s_bert() -> None:
    pytest.importorskip("transformers")
    from functools import partial

    def factory():
        return bert("sdpa", hidden_size=64, num_attention_heads=8, intermediate_size=256, vocab_size=96)()

    zoo = canonical(build_zoo("bert-tiny", batch=2, dtype="float32"))
    assert same_up_to_names(canonical(imported(factory).graph), zoo) is None
    assert same_up_to_names(canonical(imported(partial(bert("sdpa"))).graph), zoo) is not None


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_bert_large_is_imported() -> None:
    pytest.importorskip("transformers")
    found = imported(bert("eager", **LARGE))
    zoo = build_zoo("bert-large", batch=2, dtype="float32")
    assert same_up_to_names(canonical(found.graph), canonical(zoo)) is None


# ---- operators


def test_pointwise_functions_and_reductions() -> None:
    compare(dense_models.everything)


OPERATORS = {
    "linear": made(lambda x, w, b: nn.functional.linear(x, w, b), (3, 2, 4), weights=((5, 4), (5,))),
    "bmm": made(lambda x, y: x @ y, (2, 3, 4), (2, 4, 5)),
    "broadcast matmul": made(lambda x, y: x @ y, (2, 3, 4), (4, 5)),
    "vector": made(lambda x, y: x @ y, (3, 4), (4,)),
    "einsum": made(lambda x, y: torch.einsum("abc,cdb->da", x, y), (2, 3, 4), (4, 5, 3)),
    "addmm": made(lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2.0), (5,), (3, 4), (4, 5)),
    "conv stride pad dilation": made(
        lambda x, w, b: nn.functional.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)),
        (2, 3, 9, 8),
        weights=((4, 3, 3, 2), (4,)),
    ),
    "conv groups": made(
        lambda x, w: nn.functional.conv2d(x, w, None, 1, 1, groups=2), (2, 4, 5, 5), weights=((6, 2, 3, 3),)
    ),
    "conv depthwise": made(
        lambda x, w: nn.functional.conv2d(x, w, None, groups=4), (2, 4, 5, 5), weights=((4, 1, 3, 3),)
    ),
    "conv one dimension": made(lambda x, w: nn.functional.conv1d(x, w, stride=2), (2, 3, 9), weights=((4, 3, 3),)),
    "conv three dimensions": made(lambda x, w: nn.functional.conv3d(x, w), (1, 2, 4, 5, 4), weights=((3, 2, 2, 2, 2),)),
    "patches": made(lambda x, w: nn.functional.conv2d(x, w, stride=4), (2, 3, 8, 12), weights=((5, 3, 4, 4),)),
    "max pool": made(lambda x: nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 3, 8, 7)),
    "average pool": made(lambda x: nn.functional.avg_pool2d(x, 3, 2, 1), (2, 3, 8, 8)),
    "average pool without padding": made(
        lambda x: nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 8, 8)
    ),
    "adaptive": made(lambda x: nn.functional.adaptive_avg_pool2d(x, (2, 3)), (2, 3, 8, 9)),
    "adaptive to one": made(lambda x: nn.functional.adaptive_avg_pool2d(x, 1), (2, 3, 8, 9)),
    "adaptive maximum": made(lambda x: nn.functional.adaptive_max_pool2d(x, (4, 3)), (2, 3, 8, 9)),
    "embedding": made(
        lambda i, w: nn.functional.embedding(i, w), torch.zeros(2, 3, dtype=torch.int64), weights=((5, 4),)
    ),
    "embedding bag": made(
        lambda i, w: nn.functional.embedding_bag(i, w, mode="mean"),
        torch.zeros(4, 3, dtype=torch.int64),
        weights=((5, 4),),
    ),
    "index select": made(lambda x, i: x.index_select(1, i), (2, 3, 4), torch.zeros(5, dtype=torch.int64)),
    "rows": made(lambda x, i: x[i], (3, 4), torch.zeros(2, 2, dtype=torch.int64)),
    "lower triangle": made(lambda x: x[:, torch.tril_indices(4, 4, -1)[0], torch.tril_indices(4, 4, -1)[1]], (2, 4, 4)),
    "positions": made(lambda w: w[torch.arange(2, 5)] * 2.0, weights=((6, 3),)),
    "group norm": made(lambda x, w, b: nn.functional.group_norm(x, 2, w, b), (2, 4, 3, 3), weights=((4,), (4,))),
    "causal attention": made(
        lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (2, 3, 4, 5),
        (2, 3, 4, 5),
        (2, 3, 4, 5),
    ),
    "attention with a mask of the user": made(
        lambda q, k, v, m: nn.functional.scaled_dot_product_attention(q, k, v, m),
        (2, 3, 4, 5),
        (2, 3, 6, 5),
        (2, 3, 6, 5),
        (4, 6),
    ),
    "grouped attention": made(
        lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (2, 6, 4, 5),
        (2, 2, 4, 5),
        (2, 2, 4, 5),
    ),
    "multi-head attention": lambda: (
        nn.MultiheadAttention(8, 2, batch_first=True).eval(),
        tuple(torch.zeros(2, 5, 8) for _ in range(3)),
    ),
    "transformer": lambda: (
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True, dropout=0.0).eval(),
        tuple(torch.zeros(2, 5, 8) for _ in range(2)),
    ),
    "lstm": lambda: (nn.LSTM(4, 3, batch_first=True), (torch.zeros(2, 3, 4),)),
    "batch norm in training": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        (torch.zeros(3, 3, 6, 6),),
    ),
    "batch norm at inference": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(),
        (torch.zeros(3, 3, 6, 6),),
    ),
    "buffers": lambda: (Buffers(), (torch.zeros(2, 4, dtype=torch.float64),)),
    "outputs that are inputs": made(lambda x: (x, x.t(), x.relu()), (3, 4)),
}


class Buffers(nn.Module):
    """Constants of every kind: not stored, stored, tied, made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(4).flip(0) * 3, persistent=False)
        self.register_buffer("table", torch.tensor([[3.0, 1.0, 4.0, 1.5]]))
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        odd = torch.tensor([1.0, -1.0, 2.5, 7.0], dtype=x.dtype)
        return self.second(self.first(x) + self.places) * self.table + odd


@pytest.mark.parametrize("case", sorted(OPERATORS))
def test_operators(case: str) -> None:
    compare(OPERATORS[case])


def test_mask_of_the_user_keeps_the_rows_that_see_nothing() -> None:
    found = imported(OPERATORS["attention with a mask of the user"]).graph
    assert "max" in {op.function for op in found.operators}


def test_constants_become_as_little_as_describes_them() -> None:
    found = imported(OPERATORS["buffers"])
    made_of = {op.name: op for op in found.graph.operators if op.function == "iota"}
    assert [dict(op.attributes)["step"] for op in made_of.values()] == [-3]
    assert [v.tolist() for v in found.stated.values()] == [[1.0, -1.0, 2.5, 7.0]]
    assert {t.name for t in found.graph.tensors if t.role.value == "parameter"} == {
        "first.weight",
        "first.bias",
        "second.bias",
        "table",
    }


def test_window_side_by_side_is_a_reshape_in_disguise() -> None:
    graph = imported(OPERATORS["patches"]).graph
    assert graph.operators[0].inputs[0] == access("args_0", "b", "c", "y", "ky", "x", "kx")
    assert all(a.splittable for a in graph.operators[0].axes)


def test_names_follow_the_modules() -> None:
    names = {op.name for op in imported(OPERATORS["buffers"]).graph.operators}
    assert {"first", "first.bias_add", "second", "second.bias_add"} <= names


# ---- files, command line


def test_files_and_saved_programs_give_the_same_graph(tmp_path: Path) -> None:
    import dense

    direct = load_model(f"{FILE}:mlp_unity")
    assert direct.tensor("0.weight").shape == (512, 784) and direct.tensor("2").shape == (64, 10)
    module, inputs = dense.mlp_unity()
    torch.export.save(torch.export.export(module, inputs), tmp_path / "mlp_unity.pt2")
    saved = load_model(str(tmp_path / "mlp_unity.pt2"))
    assert same_up_to_names(direct, saved) is None
    assert load_model(f"{FILE}:mlp_unity", batch=32).tensor("2").shape == (32, 10)


def test_module_classes_bring_their_inputs(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        "
        "self.fc = torch.nn.Linear(4, 3)\n"
        "    def forward(self, x):\n        return self.fc(x)\n    @staticmethod\n    def example_inputs():\n     "
        "   return torch.zeros(2, 4)\n"
    )
    assert [op.name for op in load_model(f"{tmp_path}/net.py:Net").operators] == ["fc", "fc.bias_add"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", f"{FILE}:xdl", "--batch", "64", "--json", "-o", str(tmp_path / "xdl.json")]) == 0
    assert json.loads(capsys.readouterr().out)["operators"] == 11
    assert Graph.from_json((tmp_path / "xdl.json").read_text()).tensor("top.0").shape == (64, 256)
    assert run(["import", "--list-ops"]) == 0
    assert "aten.addmm" in capsys.readouterr().out.splitlines()


def test_planning_a_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", f"{FILE}:mlp_unity", "--machine", "localhost:4", "-o", str(tmp_path / "a.spz"), "--json"]) == 0
    imported_cost = json.loads(capsys.readouterr().out)["cost"]
    assert run(["plan", "mlp-unity", "--machine", "localhost:4", "-o", str(tmp_path / "b.spz"), "--json"]) == 0
    assert imported_cost == json.loads(capsys.readouterr().out)["cost"]


def test_imported_bert_costs_what_the_zoo_s_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The published formula scales the scores, the zoo scales the queries, which are smaller: in one form the
    optima are equal.
    """
    import language

    costs = {}
    zoo = build_zoo("bert-tiny", layers=1)
    for name, graph in {
        "import": imported(lambda: language.bert_tiny(layers=1)).graph,
        "zoo": zoo,
        "canonical": canonical(zoo),
    }.items():
        (tmp_path / f"{name}.json").write_text(graph.to_json())
        assert (
            run(
                [
                    "plan",
                    str(tmp_path / f"{name}.json"),
                    "--machine",
                    "cloud-a100:2x2",
                    "-o",
                    str(tmp_path / f"{name}.spz"),
                    "--json",
                ]
            )
            == 0
        )
        found = json.loads(capsys.readouterr().out)
        assert found["status"] == "optimal"
        costs[name] = found["cost"]
    assert costs["import"] == costs["canonical"] > costs["zoo"]


# ---- refusals


def test_unsupported_operators_are_listed_at_once_with_places() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Program(lambda x: torch.linalg.inv(x) @ torch.kthvalue(x, 2).values)

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return y + torch.kthvalue(x, 1, 0).values + torch.atan2(x, y), torch.histc(x, 4)

    with pytest.raises(UnsupportedOperators) as error:
        imported(lambda: (Bad(), (torch.zeros(4, 4),)))
    assert {k: len(v) for k, v in error.value.missing.items() if "kthvalue" in k} == {"aten.kthvalue.default": 2}
    assert "inner.kthvalue" in error.value.missing["aten.kthvalue.default"][0]
    assert any("histc" in k and "limits" in k for k in error.value.missing) and "--list-ops" in str(error.value)


def test_import_goes_on_behind_what_is_refused() -> None:
    """Every kind with its number and places, not only those that nothing refused comes before; and what is near."""

    def chain(x: Tensor, i: Tensor) -> Tensor:
        y = torch.linalg.inv(x)
        y = (y @ x).sum(0)
        y = torch.kthvalue(y, 2).values + torch.atan2(y, torch.kthvalue(x, 1).values)
        return y.scatter_reduce(0, i, y, "prod")

    with pytest.raises(UnsupportedOperators) as error:
        imported(lambda: (Program(chain), (torch.zeros(4, 4), torch.zeros(4, dtype=torch.int64))))
    counts = {k: len(v) for k, v in error.value.missing.items()}
    assert counts == {
        "aten.linalg_inv_ex.default": 1,
        "aten.kthvalue.default": 2,
        "aten.atan2.default": 1,
        "aten.scatter_reduce.two with reduce=prod of float32 (sum, amax, amin are supported, and mean of floats)": 1,
    }
    assert "aten.kthvalue.default (2: kthvalue, kthvalue_1), nearest: aten.topk;" in str(error.value)


def test_what_is_near_is_supported() -> None:
    known = set(supported_operators())
    for text in NEAREST.values():
        assert set(re.findall(r"aten[.]\w+", text)) <= known


REFUSED = {
    "data-dependent size": (
        made(lambda x: x[x > 0].sum(0) + x.nonzero().sum(), (3, 4)),
        "depends on the contents of a tensor",
    ),
    "data-dependent branch": (made(lambda x: x if x.sum() > 0 else -x, (3, 4)), "depend.* on the contents of a tensor"),
    "unknown element type": (
        made(lambda x: x.to(torch.uint32).to(torch.float32), (3, 4)),
        "has element type uint32, which cannot be represented",
    ),
    "empty batch": (
        made(lambda x: x.relu(), (0, 4)),
        r"shape \(0, 4\): every extent, also the batch, must be at least 1",
    ),
    "empty result": (made(lambda x: x[:, 4:].relu(), (3, 4)), "is a constant of the program"),
    "long axis": (made(lambda x: x.relu(), (1 << 31, 2)), "more than int32 can count"),
    "not a module": (lambda: 3, r"must return \(module, example inputs\) or \(train_step, .*\), returned int"),
    "no tensor": (made(lambda x: 3, (3, 4)), "returns no tensor"),
    "constant": (made(lambda x: torch.ones(3) * 2, (3, 4)), "is a constant of the program"),
    "untraceable": (made(lambda x: x.numpy() + 1, (3, 4)), "torch.export cannot trace it"),
    "contents in the constructor": (
        lambda: (nn.Linear(int(torch.randn(1).item()), 2), (torch.zeros(1),)),
        "cannot be built on the meta device",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refusals_name_the_place_and_the_next_step(case: str) -> None:
    factory, message = REFUSED[case]
    with pytest.raises((TorchError, UnsupportedOperators), match=message):
        imported(factory)


def test_constant_outputs_beside_others_are_left_out() -> None:
    found = imported(made(lambda x: (x.relu(), torch.ones(3) * 2), (3, 4)))
    assert len(found.graph.outputs) == 1
    assert any("outputs that are constants of the program are left out" in note for note in found.notes)


def test_wrong_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"nothing")
    with pytest.raises(TorchError, match="is not a program saved by torch.export.save.*not a ZIP archive"):
        import_torch(str(tmp_path / "bad.pt2"))
    assert capfd.readouterr() == ("", ""), "PyTorch logs a traceback; the reason is in the error"
    with pytest.raises(TorchError, match="--batch needs a parameter 'batch' of everything"):
        import_torch(f"{FILE}:everything", batch=2)
    with pytest.raises(TorchError, match="example_inputs"):
        import_torch(f"{FILE}:Everything")
    with pytest.raises(ValueError, match="has no 'nothing'"):
        import_torch(f"{FILE}:nothing")
    assert run(["import", f"{FILE}:nothing"]) == 3


def test_supported_operators_are_named_as_pytorch_names_them() -> None:
    for name in supported_operators():
        assert hasattr(torch.ops.aten, name.removeprefix("aten.")), name


def test_wrong_weights_are_noticed() -> None:
    """The comparison itself can fail: a weight that is not the module's gives other numbers."""
    with pytest.raises(GraphError):
        graph = imported(made(lambda x, w: x @ w, (3, 4), weights=((4, 5),))).graph
        from shardproof.backends.execution.reference import run_graph

        run_graph(graph, {"args_0": np.zeros((3, 4)), "held.0": np.zeros((5, 4))})
