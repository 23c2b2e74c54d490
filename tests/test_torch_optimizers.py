"""Three steps of every optimizer on an imported model equal torch.optim, in float64; frozen and tied weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch_training import fed, loss_of, made, near, step_of

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import parse_optimizer

nn, optim, Tensor = torch.nn, torch.optim, torch.Tensor
pytestmark = pytest.mark.torch

WORDS, LENGTH = 7, 3


class Model(nn.Module):
    """Tied embeddings, a frozen layer, a buffer that is read, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4)
        self.frozen, self.linear = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, WORDS, bias=False)
        self.head.weight = self.table.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.full((4,), 0.5))

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = torch.tanh(self.frozen(self.table(ids)) + self.shift)
        logits = self.head(self.linear(x))
        return {"loss": nn.functional.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1)), "logits": logits}


def factory() -> tuple[Any, ...]:
    ids = torch.zeros((2, LENGTH), dtype=torch.int64)
    return Model(), {"ids": ids, "labels": ids}


class Lion(optim.Optimizer):
    """Algorithm 2 of its paper, which torch.optim lacks."""

    def __init__(self, weights: Iterable[Tensor], lr: float, betas: tuple[float, float], decay: float) -> None:
        super().__init__(weights, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            (b1, b2), rate = group["betas"], group["lr"]
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.mul_(1 - rate * group["decay"]).sub_(rate * torch.sign(b1 * m + (1 - b1) * p.grad))
                    m.mul_(b2).add_((1 - b2) * p.grad)


CASES: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda w: optim.SGD(w, lr=0.01),
    "sgd:rate=0.1,momentum=0.9,decay=0.05": lambda w: optim.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.05),
    "sgd:rate=0.1,momentum=0.8,nesterov=1": lambda w: optim.SGD(w, lr=0.1, momentum=0.8, nesterov=True),
    "sgd:rate=0.5,clip=0.3": lambda w: optim.SGD(w, lr=0.5),
    "sgd:rate=0.5,clip=1e6": lambda w: optim.SGD(w, lr=0.5),
    "adam": lambda w: optim.Adam(w),
    "adam:decay=0.1,clip=0.2": lambda w: optim.Adam(w, weight_decay=0.1),
    "adamw:rate=0.02": lambda w: optim.AdamW(w, lr=0.02),
    "adamw:rate=0.02,decay=0.3,beta1=0.8,beta2=0.95,epsilon=1e-4,clip=0.5": lambda w: optim.AdamW(
        w, lr=0.02, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-4
    ),
    "rmsprop": lambda w: optim.RMSprop(w),
    "rmsprop:rate=0.02,beta2=0.8,momentum=0.7,decay=0.1,epsilon=1e-3": lambda w: optim.RMSprop(
        w, lr=0.02, alpha=0.8, momentum=0.7, weight_decay=0.1, eps=1e-3
    ),
    "adagrad:rate=0.1,decay=0.05,clip=0.5": lambda w: optim.Adagrad(w, lr=0.1, weight_decay=0.05),
    "lion": lambda w: Lion(w, 0.0001, (0.9, 0.99), 0.0),
    "lion:rate=0.01,decay=0.2,beta1=0.7,beta2=0.8": lambda w: Lion(w, 0.01, (0.7, 0.8), 0.2),
}


def advanced(graph: Graph, step: int) -> Graph:
    """The same step, the one with that number."""
    at = [
        replace(op, attributes=tuple((k, step if k == "step" else v) for k, v in op.attributes))
        for op in graph.operators
    ]
    return replace(graph, operators=tuple(at))


@pytest.mark.parametrize("text", sorted(CASES))
def test_three_steps_are_those_of_torch(text: str) -> None:
    settings = parse_optimizer(text)[1]
    made_step = step_of(factory, text)
    graph, module = made_step.graph, made(factory)
    assert graph.name == f"model+{text}"
    assert {w for w, _ in made_step.trained} == {"table.weight", "linear.weight", "linear.bias"}
    assert {t.name for t in graph.tensors if t.frozen} == {"frozen.weight", "frozen.bias", "shift"}
    before = {k: v.detach().clone() for k, v in module.state_dict().items()}
    draw = torch.Generator().manual_seed(1)
    inputs = {k: torch.randint(0, WORDS, (2, LENGTH), generator=draw) for k in ("ids", "labels")}
    weights = dict(module.named_parameters())
    optimizer = CASES[text](weights.values())
    feed = {k: v.copy() for k, v in fed(graph, module, inputs).items()}
    for step in (1, 2, 3):
        optimizer.zero_grad()
        loss = loss_of(module(**inputs))
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(weights.values(), settings.clip)
        optimizer.step()
        got = run_graph(advanced(graph, step), feed)
        near(got[graph.outputs[0]], loss, "loss")
        feed.update({old: got[new] for old, new in graph.state})
        for w, p in weights.items():
            near(feed[w], p, f"{w} after step {step}")
    for w in ("frozen.weight", "frozen.bias"):
        assert np.array_equal(feed[w], before[w].numpy())
    assert Graph.from_json(graph.to_json()) == graph


class Dot(nn.Module):
    """A loss whose gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 256))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).float().sum()


NARROW: dict[str, Callable[[Any], Any]] = {
    "sgd:rate=0.1,momentum=0.9,bits=16": lambda w: optim.SGD(w, lr=0.1, momentum=0.9),
    "adam:rate=0.01,bits=16": lambda w: optim.Adam(w, lr=0.01, fused=True),
    "adamw:rate=0.01,bits=16": lambda w: optim.AdamW(w, lr=0.01, fused=True),
    "adam:rate=0.01": lambda w: optim.Adam(w, lr=0.01, fused=True),
}


@pytest.mark.parametrize("text", sorted(NARROW))
def test_what_is_remembered_in_16_bits(text: str) -> None:
    """Three steps of weights in bfloat16: moments are the numbers that torch.optim keeps there, or nearer ones."""
    module, draw = Dot().bfloat16(), torch.Generator().manual_seed(5)
    graph = step_of(lambda: (Dot().bfloat16(), {"x": torch.zeros(256).bfloat16()}), text).graph
    kept = {t.name: t.dtype for t in graph.tensors if t.name.startswith("weight.") and t.name in dict(graph.state)}
    assert kept and set(kept.values()) == {"bfloat16" if "bits" in text else "float32"}
    optimizer, states = NARROW[text](module.parameters()), ("momentum", "adam_m", "adam_v")
    wide = deepcopy(module).float()
    feed = {k: v.astype(np.float32) for k, v in fed(graph, wide, {"x": torch.zeros(256)}).items()}
    for step in (1, 2, 3):
        x = torch.randn(256, generator=draw).bfloat16()
        optimizer.zero_grad()
        module(x).backward()
        optimizer.step()
        feed["x"] = x.float().numpy()
        got = run_graph(advanced(graph, step), feed, stored=True)
        feed.update({old: got[new] for old, new in graph.state})
        (held,) = optimizer.state.values()
        for name, theirs in zip(
            states, (held.get(k) for k in ("momentum_buffer", "exp_avg", "exp_avg_sq")), strict=True
        ):
            if theirs is not None:
                wanted = theirs.float().numpy()
                np.testing.assert_allclose(feed[f"weight.{name}"], wanted, rtol=0, atol=2.0**-7 * np.abs(wanted).max())
        np.testing.assert_allclose(feed["weight"], module.weight.detach().float().numpy(), rtol=2.0**-7, atol=2.0**-7)
