"""A module in PyTorch and its imported training step: the loss, every gradient, several steps of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build
from shardproof.models.sources.training import Settings, build_step

Made = tuple[Any, ...]
Arrays = dict[str, np.ndarray]


def step_of(
    factory: Callable[[], Made], optimizer: str = "sgd", loss: str | None = None, settings: Settings | None = None
) -> Any:
    """The training step of what the factory makes."""
    found = convert(build(factory, "model"))
    return build_step(with_constants(found.graph, found.stated), optimizer, loss, settings)


def fed(graph: Graph, module: nn.Module, inputs: Mapping[str, Tensor]) -> Arrays:
    """Inputs and weights of the graph in float64; what an optimizer remembers begins as zero."""
    held = {**{k: v.detach() for k, v in module.state_dict().items()}, **inputs}
    out = {}
    for t in graph.tensors:
        if t.role is not Role.VALUE:
            v = held[t.name].numpy() if t.name in held else np.zeros(t.shape)
            out[t.name] = (v.astype(np.float64) if v.dtype.kind == "f" else v).reshape(t.shape)
    return out


def near(ours: np.ndarray, theirs: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Relative to the largest element."""
    wanted = theirs.detach().numpy()
    error = float(np.max(np.abs(ours.reshape(wanted.shape) - wanted), initial=0.0))
    assert error <= tolerance * max(1.0, float(np.max(np.abs(wanted), initial=0.0))), (what, error)


def made(factory: Callable[[], Made]) -> nn.Module:
    """The module in float64, weights drawn anew, and nothing random in it (dropout)."""
    torch.manual_seed(3)
    module = factory()[0].double().eval()
    for p in module.parameters():
        p.data = 0.3 * torch.randn(p.shape, dtype=torch.float64) + 0.05
    return module


def loss_of(out: object) -> Tensor:
    """The loss among what a module returns."""
    found = out["loss"] if hasattr(out, "keys") and "loss" in out else None
    if found is None:
        (found,) = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.numel() == 1]
    return found


def compare_gradients(
    factory: Callable[[], Made], inputs: Mapping[str, Tensor], loss: str | None = None, tolerance: float = 1e-9
) -> Any:
    """Loss and gradients of every weight; returns the step."""
    step = step_of(factory, "sgd", loss)
    module = made(factory)
    theirs = loss_of(module(**inputs))
    theirs.backward()
    feed = fed(step.graph, module, inputs)
    got = run_graph(step.graph, feed, keep=[g for _, g in step.trained])
    near(got[step.graph.outputs[0]], theirs, "loss", tolerance)
    weights = dict(module.named_parameters(remove_duplicate=False))  # a tied weight has one of its names here
    moved = {id(p) for p in weights.values() if p.grad is not None and bool(p.grad.abs().max() > 0)}
    assert moved <= {id(weights[w]) for w, _ in step.trained}
    for w, g in step.trained:
        wanted = weights[w].grad
        near(got[g], torch.zeros_like(weights[w]) if wanted is None else wanted, w, tolerance)
    return step
