"""A trained PyTorch program has one operator for all gradients of an attention by default, where PyTorch has the kernel,
at a batch of one as at any other: with the gradients of PyTorch.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch_training import fed, loss_of, made, near

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.load import Attention, load_model
from shardproof.models.sources.torch.importer import convert, with_gradients
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.training import build_step

F = torch.nn.functional
WORDS, POSITIONS, SEPARATE = 11, 4, {"attention_query_gradient", "attention_key_gradient", "attention_value_gradient"}


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Decoder(nn.Module):
    """One layer as decoders have it.  `heads` of queries and `shared` of keys and values; `repeat`: how the latter come
    to every query head; `written`: attention as products and softmax."""

    def __init__(
        self,
        heads: int = 4,
        shared: int = 2,
        rope: bool = True,
        repeat: str = "expand",
        one: bool = False,
        norm: bool = False,
        bias: bool = False,
        written: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.shared, self.rope, self.repeat, self.one, self.written = (
            heads,
            shared,
            rope,
            repeat,
            one,
            written,
        )
        self.each = width = 4
        sizes = [heads * width, shared * width, shared * width]
        self.sizes, model = sizes, 8
        self.table, self.head = nn.Embedding(WORDS, model), nn.Linear(model, WORDS, bias=False)
        if one:
            self.qkv = nn.Linear(model, sum(sizes), bias=bias)
        else:
            self.q, self.k, self.v = (nn.Linear(model, n, bias=bias) for n in sizes)
        self.out = nn.Linear(heads * width, model, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-5) if norm else nn.Identity()
        angles = torch.outer(torch.arange(POSITIONS).float(), 0.1 ** torch.arange(0, width, 2).float())
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.table(ids)
        batch, positions = ids.shape
        q, k, v = self.qkv(x).split(self.sizes, -1) if self.one else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.view(batch, positions, -1, self.each).transpose(1, 2) for t in (q, k, v))
        q, k = self.norm(q), self.norm(k)
        if self.rope:
            q, k = rotated(q, self.cos, self.sin), rotated(k, self.cos, self.sin)
        many = self.heads // self.shared
        if many > 1 and self.repeat == "interleave":
            k, v = (t.repeat_interleave(many, 1) for t in (k, v))
        elif many > 1 and self.repeat == "expand":
            k, v = (t[:, :, None].expand(batch, self.shared, many, positions, self.each).flatten(1, 2) for t in (k, v))
        if self.written:
            hidden = torch.ones(positions, positions, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-1, -2) / math.sqrt(self.each)).masked_fill(hidden, -math.inf)
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.repeat == "kernel")
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, positions, -1))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


CASES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "plain": {"shared": 4, "rope": False},
    "rope": {"shared": 4},
    "one head of keys": {"shared": 1},
    "one head": {"heads": 1, "shared": 1},
    "one product": {"one": True},
    "one plain product": {"one": True, "shared": 4, "rope": False},
    "interleaved": {"repeat": "interleave"},
    "grouped in the kernel": {"repeat": "kernel"},
    "normalised": {"norm": True},
    "with bias": {"bias": True},
}


def decoder(batch: int, options: dict[str, Any]) -> Any:
    ids = torch.arange(batch * POSITIONS).reshape(batch, POSITIONS) * 7 % WORDS
    return Decoder(**options), (ids, (ids + 3) % WORDS)


def step(batch: int, options: dict[str, Any], attention: Attention | None = None) -> Any:
    found = convert(build(lambda: decoder(batch, options), "model", attention=attention != "matrices"))
    return build_step(with_constants(with_gradients(found, attention, True), found.stated), "sgd")


def functions(graph: Graph) -> list[str]:
    return [op.function for op in graph.operators]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_all_gradients_are_one_operator_and_pytorchs(name: str, batch: int) -> None:
    """At a batch of one, and with one head of keys, there were three: a dimension of one element is read at 0."""
    found = step(batch, CASES[name])
    assert functions(found.graph).count("attention_gradients") == 1
    assert not SEPARATE.intersection(functions(found.graph))
    module = made(lambda: decoder(batch, CASES[name]))
    inputs = dict(zip(("ids", "labels"), decoder(batch, {})[1], strict=True))
    theirs = loss_of(module(**inputs))
    theirs.backward()
    values = fed(found.graph, module, inputs)
    got = run_graph(found.graph, values, keep=[g for _, g in found.trained])
    near(got[found.graph.outputs[0]], theirs, "loss")
    weights = dict(module.named_parameters())
    assert {w for w, _ in found.trained} == {*weights}
    for w, g in found.trained:
        near(got[g], weights[w].grad, w)


def test_who_asks_for_gradients_apart_gets_them() -> None:
    assert functions(step(2, {}, "operator").graph).count("attention_key_gradient") == 1
    assert not any("attention" in f for f in functions(step(2, {}, "matrices").graph))


def test_attention_that_pytorch_computes_without_a_kernel_keeps_a_gradient_for_each() -> None:
    assert SEPARATE < {*functions(step(2, {"written": True}).graph)}
    assert "attention_gradients" in functions(step(2, {"written": True}, "fused").graph)


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import torch
from test_torch_fused_attention import decoder

def forward():
    return decoder(1, {{}})

def step(model, optimizer, ids, labels):
    optimizer.zero_grad()
    model(ids, labels).backward()
    optimizer.step()

def train():
    model, inputs = decoder(1, {{}})
    return step, model, torch.optim.SGD(model.parameters(), lr=0.1), inputs
"""


def test_the_default_is_that_of_files_and_of_steps_and_changes_no_inference(tmp_path: Path) -> None:
    """A whole step never was fused, whatever was asked for."""
    file = tmp_path / "net.py"
    file.write_text(PROGRAM.format(folder=str(Path(__file__).parent)))
    plain, trained = (load_model(f"{file}:forward", trained=t) for t in (False, True))
    assert [op.attribute("gradient", "") for g in (plain, trained) for op in g.operators if "attention" in op.name] == [
        "",
        "fused",
    ]
    for attention, many in ((None, 1), ("fused", 1), ("operator", 0)):
        assert functions(load_model(f"{file}:train", attention=attention)).count("attention_gradients") == many
