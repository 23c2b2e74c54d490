"""Training steps written in PyTorch are imported whole: three of them give the loss and the weights that PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch import Tensor, nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.torch.train_step import whole_step

pytestmark = pytest.mark.torch

Step = Callable[..., object]
Optimizer = Callable[[nn.Module], optim.Optimizer]


class Adapted(nn.Linear):
    """A frozen layer and a trained product of low rank beside it (LoRA)."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(n, m)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.ones(2, n)), nn.Parameter(torch.ones(m, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T * 0.5


def perceptron() -> nn.Module:
    """Three layers; the second is adapted."""
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), Adapted(8, 8), nn.Tanh(), nn.Linear(8, 5))


def plain(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def clipped(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> float:
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    return loss.item()


def accumulated(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> None:
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.cross_entropy(model(a), b, ignore_index=3) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.1)
    optimizer.step()
    optimizer.zero_grad()


SCALER = torch.amp.GradScaler("cpu", enabled=False)


def scaled(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    SCALER.scale(loss).backward()
    SCALER.unscale_(optimizer)
    SCALER.step(optimizer)
    SCALER.update()
    return loss.detach()


def checkpointed(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    hidden = torch.utils.checkpoint.checkpoint(model[:3], x, use_reentrant=False)
    F.cross_entropy(model[3:](hidden), y).backward()
    optimizer.step()


def groups(model: nn.Module) -> optim.Optimizer:
    """Weight decay of matrices only, as language models are trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, others = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim < 2]
    return optim.AdamW(
        [{"params": matrices, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0, "lr": 0.03}],
        lr=0.02,
        betas=(0.8, 0.95),
    )


CASES: dict[str, tuple[Step, Optimizer]] = {
    "sgd": (plain, lambda m: optim.SGD(m.parameters(), lr=0.1)),
    "nesterov, clipped": (
        clipped,
        lambda m: optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (scaled, lambda m: optim.Adam(m.parameters(), lr=0.02, weight_decay=0.1)),
    "groups of adamw": (plain, groups),
    "accumulated": (accumulated, lambda m: optim.AdamW(m.parameters(), lr=0.01)),
    "recomputed": (checkpointed, lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5)),
    "adagrad": (plain, lambda m: optim.Adagrad(m.parameters(), lr=0.1)),
    "head only": (plain, lambda m: optim.SGD(m[5].parameters(), lr=0.1)),
}


def given(step: Step, optimizer: Optimizer, model: Callable[[], nn.Module] = perceptron) -> Callable[[], object]:
    """What FILE.py:NAME is."""

    def factory() -> object:
        module = model()
        return step, module, optimizer(module), (torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))

    return factory


def imported(factory: Callable[[], object]) -> Graph:
    """The whole step."""
    program = build(factory, "model")
    found = convert(program)
    assert program.step is not None
    return whole_step(with_constants(found.graph, found.stated), program.step)


def numbered(graph: Graph, step: int) -> Graph:
    """The step of that number."""
    new = [
        replace(op, attributes=tuple((k, step if k == "step" else v) for k, v in op.attributes))
        for op in graph.operators
    ]
    return replace(graph, operators=tuple(new))


@pytest.mark.parametrize("name", CASES)
def test_three_steps(name: str) -> None:
    step, optimizer = CASES[name]
    graph = imported(given(step, optimizer))
    torch.manual_seed(3)
    module = perceptron().double()
    for p in module.parameters():
        p.data = 0.4 * torch.randn(p.shape, dtype=torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 3, 4, 1])
    held = {**{k: v.detach().numpy() for k, v in deepcopy(module).state_dict().items()}, "x": x.numpy(), "y": y.numpy()}
    feed = {
        t.name: held.get(t.name, np.zeros(t.shape)).reshape(t.shape) for t in graph.tensors if t.role is not Role.VALUE
    }
    before, following = deepcopy(module.state_dict()), optimizer(module)
    for number in (1, 2, 3):
        step(module, following, x, y)
        got = run_graph(numbered(graph, number), feed)
        feed |= {old: got[new] for old, new in graph.state}
        for k, p in module.named_parameters():
            np.testing.assert_allclose(feed[k].reshape(p.shape), p.detach().numpy(), rtol=1e-9, atol=1e-12)
    changed = {k for k, v in module.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {w for w, _ in graph.state if w in before}
    assert nn.utils.clip_grad_norm_ is clip_grad_norm_  # nothing stays replaced
    assert "grad" not in vars(Tensor)


def sees(what: Callable[[nn.Module, optim.Optimizer, Tensor], object]) -> Step:
    """A step that does something else as well."""

    def step(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        what(model, optimizer, loss)
        loss.backward()
        optimizer.step()

    return step


def without(words: str) -> Step:
    """A step that leaves a call out."""

    def step(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> None:
        calls = {
            "zero_grad": optimizer.zero_grad,
            "backward": F.cross_entropy(model(x), y).backward,
            "step": optimizer.step,
        }
        for name, call in calls.items():
            if name != words:
                call()

    return step


SGD: Optimizer = lambda m: optim.SGD(m.parameters(), lr=0.1)
REFUSED: dict[str, tuple[Step, Optimizer, str]] = {
    "gradients read": (sees(lambda m, o, _: m[0].weight.grad), SGD, "reads gradients"),
    "gradients written": (sees(lambda m, o, _: setattr(m[0].weight, "grad", m[0].weight)), SGD, "writes gradients"),
    "gradients cut": (sees(lambda m, o, _: clip_grad_value_(m.parameters(), 1.0)), SGD, "reads gradients"),
    "clipped too early": (
        sees(lambda m, o, _: clip_grad_norm_([p for p in m.parameters() if p.requires_grad], 1.0)),
        SGD,
        "between backward",
    ),
    "two steps": (sees(lambda m, o, loss: (loss.backward(), o.step())), SGD, "after optimizer.step"),
    "no zero_grad": (without("zero_grad"), SGD, "calls no optimizer.zero_grad"),
    "no backward": (without("backward"), SGD, "calls no backward"),
    "no step": (without("step"), SGD, "no optimizer.step"),
    "unknown": (plain, lambda m: optim.Rprop(m.parameters()), "has the optimizer Rprop; known: SGD"),
    "amsgrad": (plain, lambda m: optim.Adam(m.parameters(), amsgrad=True), "amsgrad=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_recording_cannot_see_is_refused(name: str) -> None:
    step, optimizer, words = REFUSED[name]
    with pytest.raises(TorchError, match=words):
        imported(given(step, optimizer))
