"""Attention of PyTorch programs as one operator, however it was written: values, masks, gradients.

What a program is without the operator (`--attention matrices`) is tested in `test_torch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent / "torch_models"))

import torch.nn.functional as F
from canonical_graph import canonical
from graph_equality import same_up_to_names
from test_torch import OPERATORS, bert, gpt2, llama, made
from torch import Tensor, nn
from torch_case import compare, imported

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.program.operators import NodeKind, Operator
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.load import load_model
from shardproof.models.sources.patterns.recognise import recognise
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as build_zoo

pytestmark = pytest.mark.torch

Q, K, V = (2, 6, 4, 5), (2, 6, 7, 5), (2, 6, 7, 3)
KV = (2, 2, 7, 5)


def of(graph: Graph) -> list[Operator]:
    return [op for op in graph.operators if op.kind is NodeKind.ATTENTION]


def eager(
    scale: float = 0.4, cap: float = 0.0, mask: Callable[[Tensor], Tensor] = lambda s: s, upcast: bool = False
) -> Callable[..., Tensor]:
    """Attention as models write it."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = torch.matmul(q, k.transpose(-1, -2)) * scale
        s = mask(torch.tanh(s / cap) * cap if cap else s)
        p = torch.softmax(s, -1, dtype=torch.float32).to(q.dtype) if upcast else torch.softmax(s, -1)
        return torch.matmul(F.dropout(p, 0.1, training=False), v)

    return attention


def repeated(x: Tensor, times: int) -> Tensor:
    b, h, t, d = x.shape
    return x[:, :, None].expand(b, h, times, t, d).reshape(b, h * times, t, d)


CAUSAL = torch.ones(4, 7, dtype=torch.bool).tril(3)
ADDED = torch.zeros(4, 7, dtype=torch.float64).masked_fill(~CAUSAL, torch.finfo(torch.float32).min)
WINDOW = CAUSAL & torch.ones(4, 7, dtype=torch.bool).triu(2)
ODD = torch.tensor([[(i * j) % 3 != 1 for j in range(7)] for i in range(4)])

FORMS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], dict[str, object]]] = {
    "sdpa": (F.scaled_dot_product_attention, (Q, K, V), {"scale": 5**-0.5}),
    "sdpa, causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, K, V), {"ahead": 0}),
    "sdpa, shared keys": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (Q, KV, KV), {}),
    "sdpa, mask of truth values": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, CAUSAL), (Q, K, V), {"ahead": 3}),
    "sdpa, added mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ADDED), (Q, K, V), {"ahead": 3}),
    "sdpa, window": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, WINDOW), (Q, K, V), {"ahead": 3, "behind": -2}
    ),
    "sdpa, mask that is no band": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ODD), (Q, K, V), {}),
    "fused for the cpu": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=0.3)[0],
        (Q, Q, Q),
        {"ahead": 0, "scale": 0.3},
    ),
    "sdpa, two dimensions": (F.scaled_dot_product_attention, ((4, 5), (7, 5), (7, 3)), {}),
    "eager": (eager(), (Q, K, V), {"scale": 0.4}),
    "eager, in single precision": (eager(upcast=True), (Q, K, V), {}),
    "eager, capped": (eager(0.7, 2.0), (Q, K, V), {"scale": 0.7, "softcap": 2.0}),
    "eager, masked by -inf": (eager(mask=lambda s: s.masked_fill(~CAUSAL, -torch.inf)), (Q, K, V), {"ahead": 3}),
    "eager, masked by where": (eager(mask=lambda s: torch.where(CAUSAL, s, torch.finfo(s.dtype).min)), (Q, K, V), {"ahead": 3}),
    "eager, mask added": (eager(mask=lambda s: s + ADDED), (Q, K, V), {"ahead": 3}),
    "eager, any mask added": (eager(mask=lambda s: s + torch.arange(28, dtype=s.dtype).reshape(4, 7).sin()), (Q, K, V), {}),
    "eager, keys repeated": (lambda q, k, v: eager()(q, repeated(k, 3), repeated(v, 3)), (Q, KV, KV), {}),
    "einsum": (
        lambda q, k, v: torch.einsum(
            "bhst,bthe->bshe", torch.softmax(torch.einsum("bshd,bthd->bhst", q, k) / 2.0, -1), v
        ),
        ((2, 4, 3, 5), (2, 7, 3, 5), (2, 7, 3, 6)),
        {"scale": 0.5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    function, shapes, wanted = FORMS[name]
    found = compare(made(function, *shapes), tolerance=1e-6 if "single" in name else 1e-12, attention=True)
    (op,) = of(found.graph)
    given = dict(op.attributes)
    assert {k: pytest.approx(given.get(k)) for k in wanted} == wanted
    assert {"behind", "ahead"} & given.keys() == {"behind", "ahead"} & wanted.keys()
    assert not {"softmax", "product"} & {o.function for o in found.graph.operators}
    if "shared" in name or "repeated" in name:
        assert [len(a.axes) for a in op.inputs] == [5, 4, 4], "keys are read once for all queries of a group"


def test_masks_of_the_user_are_operands() -> None:
    found = compare(
        made(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), Q, K, V, (2, 1, 4, 7)), attention=True
    )
    (op,) = of(found.graph)
    assert [a.tensor for a in op.inputs][3:] == [t.name for t in found.graph.tensors if t.role is Role.INPUT][3:]


def test_padding_is_an_operand_and_the_causal_part_is_not() -> None:
    """What decoders of Hugging Face make of an attention mask: causal and padding."""

    def causal_and(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        n = torch.arange(4)
        mask = (n[None, :] <= n[:, None])[None, None] & padding[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, mask)

    found = compare(made(causal_and, Q, Q, Q, torch.ones(2, 4, dtype=torch.bool)), attention=True)
    (op,) = found.graph.operators
    assert op.function == "attention" and op.attribute("ahead", None) == 0
    assert [len(a.axes) for a in op.inputs] == [4, 4, 4, 2]


def test_saved_programs_whole_or_decomposed_for_the_cpu(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            y = F.scaled_dot_product_attention(q, k, v, mask)
            return F.scaled_dot_product_attention(y, k, v, is_causal=True, scale=0.3)

    tensors = [torch.randn(s, dtype=torch.float64) for s in ((2, 6, 4, 5), (2, 6, 7, 5), (2, 6, 7, 5), (4, 7))]
    whole = torch.export.export(Model(), tuple(tensors), strict=False)
    wanted = Model()(*tensors).numpy()
    for name, program in (("whole", whole), ("parts", whole.run_decompositions())):
        torch.export.save(program, tmp_path / f"{name}.pt2")
        graph = load_model(str(tmp_path / f"{name}.pt2"))
        assert [op.function for op in graph.operators] == ["attention"] * 2
        inputs = dict(zip(["q", "k", "v", "mask"], (t.numpy() for t in tensors), strict=True))
        (found,) = run_graph(graph, inputs).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_scores_that_are_wanted_stay() -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1)
        return torch.matmul(p, v), p

    found = compare(made(both, Q, K, V), attention=True)
    assert not of(found.graph) and "softmax" in {op.function for op in found.graph.operators}


@pytest.mark.parametrize(
    "case", ["causal attention", "attention with a mask of the user", "grouped attention", "transformer"]
)
def test_operators(case: str) -> None:
    found = compare(OPERATORS[case], attention=True)
    assert of(found.graph)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model", ["bert", "gpt2", "llama"])
def test_hugging_face_models(model: str, attention: str) -> None:
    pytest.importorskip("transformers")
    single = model == "llama"  # its norms and rotary tables compute in single precision
    factory = {"bert": bert, "gpt2": gpt2, "llama": llama}[model](attention)
    found = compare(
        factory,
        torch.float32 if single else torch.float64,
        1e-5 if single else 1e-9,
        50 if model == "gpt2" else 2,
        attention=True,
    )
    made_of = [op.function for op in found.graph.operators]
    assert len(of(found.graph)) == 2 and not {"softmax", "mask_fill", "greater_equal"} & {*made_of}
    if model != "bert":
        assert all(op.attribute("ahead", None) == 0 and len(op.inputs) == 3 for op in of(found.graph))


def test_both_ways_give_the_graph_of_the_zoo() -> None:
    """BERT imported with the operator, and the zoo's BERT after recognition."""
    pytest.importorskip("transformers")

    def factory() -> object:
        sizes = {"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 256, "vocab_size": 96}
        return bert("sdpa", **sizes)()

    zoo = recognise(build_zoo("bert-tiny", batch=2, dtype="float32"), attention=True).graph
    mine = imported(factory, attention=True).graph
    assert [op.function for op in of(zoo)] == [op.function for op in of(mine)] == ["attention"] * 2
    again = recognise(imported(factory).graph, attention=True).graph
    assert same_up_to_names(canonical(again), canonical(zoo)) is None


class Block(nn.Module):
    """Projections around attention, with a causal mask, shared keys and a learned bias of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(12, 24), nn.Linear(12, 8), nn.Linear(12, 8)
        self.o, self.bias = nn.Linear(24, 12), nn.Parameter(torch.zeros(6, 5, 5))
        self.fixed = False

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, 6, 4).transpose(1, 2)
        k, v = (f(x).view(b, s, 2, 4).transpose(1, 2) for f in (self.k, self.v))
        mask = self.bias + torch.full((s, s), -torch.inf, dtype=x.dtype).triu(1)
        y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        y = y + F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, s, 24)).square().mean()


def test_gradients_equal_autograd() -> None:
    """float64, 1e-9: projections, biases, and the mask that is added."""
    module = Block().double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    found = imported(lambda: (Block().double(), (torch.zeros(2, 5, 12, dtype=torch.float64),)), attention=True)
    graph = with_constants(found.graph, found.stated)
    assert len(of(graph)) == 2
    step = build_step(graph, "sgd")
    with torch.no_grad():
        module.bias.normal_()
    module(x).backward()
    weights = {n: p.detach().numpy() for n, p in module.named_parameters()}
    (data,) = [t.name for t in step.graph.tensors if t.role is Role.INPUT]
    shapes = {t.name: t.shape for t in step.graph.tensors}
    values = {n: w.reshape(shapes[n]) for n, w in weights.items()} | {data: x.numpy().reshape(shapes[data])}
    got = run_graph(step.graph, values, keep=[g for _, g in step.trained])
    gradients = dict(module.named_parameters())
    assert {n for n, _ in step.trained} == {*gradients}
    for name, gradient in step.trained:
        wanted = gradients[name].grad.numpy().reshape(shapes[name])
        np.testing.assert_allclose(got[gradient], wanted, rtol=1e-9, atol=1e-12)
