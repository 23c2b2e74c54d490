"""Muon and Adafactor of torch.optim: three steps of `--train` and of whole steps, in float64, Muon's matrices in bfloat16
as PyTorch has them.

Muon iterates in bfloat16 whatever the weights are, so equality is equality of every rounding: one that differed would
show as 2^-8 of the update, far above the bounds here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch_training import loss_of, near

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, GraphError, Role
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.torch.train_step import whole_step
from shardproof.models.sources.training import build_step

F, nn, optim, Tensor = torch.nn.functional, torch.nn, torch.optim, torch.Tensor
pytestmark = pytest.mark.torch

WORDS = 7
Weights = dict[str, Tensor]


class Model(nn.Module):
    """Tables, tall and wide matrices, attention's heads (a matrix in three dimensions), a convolution, vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)  # keys' bias has no gradient
        self.up, self.norm, self.down = nn.Linear(8, 20), nn.LayerNorm(20), nn.Linear(20, 8)
        self.mixed = nn.Conv1d(3, 3, 3, padding=1)
        self.head = nn.Linear(8, WORDS)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.table(ids)
        q, k, v = (t.view(2, 3, 2, 4).transpose(1, 2) for t in self.qkv(x).split(8, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 3, 8))
        x = x + self.down(torch.tanh(self.norm(self.up(x))))
        logits = self.head(torch.tanh(self.mixed(x)))
        return {"loss": F.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))}


HIDDEN = ("qkv.weight", "out.weight", "up.weight", "down.weight")


def factory() -> tuple[Any, ...]:
    ids = torch.zeros((2, 3), dtype=torch.int64)
    return Model().double(), {"ids": ids, "labels": ids}


def muon(**numbers: Any) -> Callable[[Weights], list[Any]]:
    """Muon of the hidden matrices, AdamW of the rest."""

    def made(w: Weights) -> list[Any]:
        others = [p for k, p in w.items() if k not in HIDDEN]
        return [optim.Muon([w[k] for k in HIDDEN], **numbers), optim.AdamW(others, lr=1e-3)]

    return made


CASES: dict[str, Callable[[Weights], list[Any]]] = {
    "muon": muon(),
    "muon:rate=0.05,match_rms=1,nesterov=0,decay=0.3,iterations=3,momentum=0.8": muon(
        lr=0.05, adjust_lr_fn="match_rms_adamw", nesterov=False, weight_decay=0.3, ns_steps=3, momentum=0.8
    ),
    "adafactor": lambda w: [optim.Adafactor(w.values())],
    "adafactor:rate=0.5,decay=0.1,d=1.5,power=0.5,epsilon=1e-3,epsilon2=0.01": lambda w: [
        optim.Adafactor(w.values(), lr=0.5, weight_decay=0.1, d=1.5, beta2_decay=-0.5, eps=(1e-3, 1e-2))
    ],
}


def drawn() -> tuple[Any, dict[str, Tensor]]:
    """The module with its weights, and inputs."""
    torch.manual_seed(3)
    module = Model().double()
    for p in module.parameters():
        p.data = 0.3 * torch.randn(p.shape, dtype=torch.float64) + 0.05
    return module, {k: torch.randint(0, WORDS, (2, 3)) for k in ("ids", "labels")}


def compared(graphs: Iterable[Graph], module: Any, inputs: dict[str, Tensor], step: Callable[[], Any]) -> None:
    """Every graph is one step; after each the weights are those that `step` leaves."""
    feed: dict[str, np.ndarray] = {}
    held = {
        **{k: v.detach().numpy().copy() for k, v in module.state_dict().items()},
        **{k: v.numpy() for k, v in inputs.items()},
    }
    for graph in graphs:
        for t in graph.tensors:
            if t.role is not Role.VALUE and t.name not in feed:
                feed[t.name] = held.get(t.name, np.zeros(t.shape)).reshape(t.shape)
        loss = step()
        got = run_graph(graph, feed, stored=True)
        near(got[graph.outputs[0]], loss, "loss")
        feed |= {old: got[new] for old, new in graph.state}
        for k, p in module.named_parameters():
            near(feed[k], p, k)


@pytest.mark.parametrize("text", CASES)
def test_three_steps_are_those_of_torch(text: str) -> None:
    found = convert(build(factory, "model"))
    forward = with_constants(found.graph, found.stated)
    graphs = [build_step(forward, f"{text}{',' if ':' in text else ':'}step={t}").graph for t in (1, 2, 3)]
    module, inputs = drawn()
    optimizers = CASES[text](dict(module.named_parameters()))

    def step() -> Tensor:
        for o in optimizers:
            o.zero_grad()
        loss = loss_of(module(**inputs))
        loss.backward()
        for o in optimizers:
            o.step()
        return loss

    compared(graphs, module, inputs, step)
    if text.startswith("adafactor"):  # rows and columns for matrices
        sizes = {t.name: t.elements for t in graphs[0].tensors}
        assert (sizes["up.weight.adafactor_row"], sizes["up.weight.adafactor_column"]) == (20, 8)
        assert sizes["head.bias.adafactor_v"] == WORDS


def both(model: nn.Module, optimizers: Any, ids: Tensor, labels: Tensor) -> Tensor:
    several = optimizers.values() if isinstance(optimizers, dict) else optimizers
    for o in several:
        o.zero_grad()
    loss = model(ids, labels)["loss"]
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for o in several:
        o.step()
    return loss


def only(model: nn.Module, optimizer: Any, ids: Tensor, labels: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(ids, labels)["loss"]
    loss.backward()
    optimizer.step()
    return loss


def named(made: Callable[[Weights], list[Any]]) -> Callable[[nn.Module], Any]:
    return lambda m: made(dict(m.named_parameters()))


WHOLE: dict[str, tuple[Callable[..., Tensor], Callable[[nn.Module], Any]]] = {
    "muon and adamw, a list": (both, named(muon(lr=0.02, weight_decay=0.0, ns_coefficients=(2.0, -1.5, 0.5)))),
    "muon and sgd, a dict": (
        both,
        lambda m: {
            "matrices": optim.Muon([p for n, p in m.named_parameters() if n in HIDDEN], lr=0.02),
            "rest": optim.SGD([p for n, p in m.named_parameters() if n not in HIDDEN], lr=0.1, momentum=0.9),
        },
    ),
    "adafactor": (only, lambda m: optim.Adafactor(m.parameters(), lr=0.2, weight_decay=0.1)),
}


def imported(step: Callable[..., Any], made: Callable[[nn.Module], Any], number: int = 1) -> Graph:
    def given() -> object:
        module, inputs = factory()
        return step, module, made(module), tuple(inputs.values())

    program = build(given, "model")
    found = convert(program)
    assert program.step is not None
    return whole_step(with_constants(found.graph, found.stated), program.step, number)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_steps(name: str) -> None:
    step, made = WHOLE[name]
    module, inputs = drawn()
    optimizers = made(module)
    compared(
        [imported(step, made, t) for t in (1, 2, 3)], module, inputs, lambda: step(module, optimizers, *inputs.values())
    )


class Muon(optim.SGD):
    """Another library's."""


def forgets(model: nn.Module, optimizers: Any, ids: Tensor, labels: Tensor) -> None:
    for o in optimizers:
        o.zero_grad()
    model(ids, labels)["loss"].backward()
    optimizers[0].step()


def clears(model: nn.Module, optimizers: Any, ids: Tensor, labels: Tensor) -> None:
    for o in optimizers:
        o.zero_grad()
    model(ids, labels)["loss"].backward()
    optimizers[1].zero_grad()
    for o in optimizers:
        o.step()


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[nn.Module], Any], str]] = {
    "of another library": (
        only,
        lambda m: Muon(m.parameters(), lr=0.1),
        r"has the optimizer Muon of .*test_torch_muon",
    ),
    "one of two": (forgets, named(muon()), "no optimizer.step"),
    "cleared": (clears, named(muon()), "clears the gradients of some"),
    "two of one parameter": (
        both,
        lambda m: [optim.SGD(m.parameters(), lr=0.1), optim.AdamW(m.head.parameters())],
        "two optimizers of one parameter",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    step, made, words = REFUSED[name]
    with pytest.raises(TorchError, match=words):
        imported(step, made)


def test_muon_needs_a_hidden_matrix() -> None:
    found = convert(build(lambda: (nn.Linear(4, 3), torch.zeros(2, 4)), "model"))
    with pytest.raises(GraphError, match="there is none; give adamw"):
        build_step(with_constants(found.graph, found.stated), "muon")
