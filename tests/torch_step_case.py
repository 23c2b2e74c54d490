"""A module's loss and gradients by PyTorch, against the training step of its imported graph, in float64.

Dropout and stochastic depth are the identity in an imported graph, so they are switched off in the module too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch_case import Made, _inputs, imported

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources.training import TrainingStep, build_step


def _certain(module: nn.Module) -> None:
    for m in module.modules():
        if isinstance(m, nn.modules.dropout._DropoutNd) or type(m).__name__.endswith(("StochasticDepth", "DropPath")):
            m.eval()
        for held in ("dropout", "attn_dropout", "dropout_p"):
            if isinstance(getattr(m, held, None), float):
                setattr(m, held, 0.0)


def compare_step(factory: Callable[[], Made], tolerance: float = 1e-9, largest: int = 2) -> TrainingStep:
    """Loss and the gradient of every trained parameter, relative to its largest element.  Returns the step.

    The loss is the one that the step adds: cross entropy against `labels`, the mean square against `target`, or the
    module's own scalar.
    """
    graph, values, module, (args, kwargs) = drawn(factory, largest)
    made = build_step(graph, "sgd")
    draw = np.random.default_rng(3)
    for t in made.graph.tensors:
        if t.role is Role.INPUT and t.name not in values:
            logits = made.graph.tensor(next(o for o in graph.outputs)).shape
            own = draw.integers(0, logits[-1], t.shape) if t.dtype == "int32" else draw.standard_normal(t.shape)
            values[t.name] = own.astype(t.dtype if t.dtype == "int32" else "float64")
    found = run_graph(made.graph, values, keep=[g for _, g in made.trained])
    out = tree_flatten(module(*args, **kwargs))[0][0]
    loss = _loss(out, made.graph, values)
    loss.backward()
    (name,) = made.graph.outputs
    np.testing.assert_allclose(found[name], loss.detach().numpy(), rtol=1e-9)
    weights = dict(module.named_parameters())
    assert {n for n, p in weights.items() if p.grad is not None} == {n for n, _ in made.trained}
    for n, g in made.trained:
        wanted = weights[n].grad.numpy()
        error = float(np.max(np.abs(found[g].reshape(wanted.shape) - wanted)))
        assert error <= tolerance * max(1.0, float(np.max(np.abs(wanted)))), (n, error)
    return made


def _loss(out: Tensor, step: Graph, values: dict[str, np.ndarray]) -> Tensor:
    if "labels" in values:
        labels = torch.tensor(values["labels"].reshape(-1)).long()
        return nn.functional.cross_entropy(out.reshape(labels.numel(), -1), labels)
    if "target" in values:
        return nn.functional.mse_loss(out, torch.tensor(values["target"]).reshape(out.shape))
    return out


def drawn(
    factory: Callable[[], Made], largest: int
) -> tuple[Graph, dict[str, np.ndarray], nn.Module, tuple[tuple[Tensor, ...], dict[str, Tensor]]]:
    """The imported graph, contents of its inputs and parameters, the module with the same weights, its inputs."""
    found = imported(factory)
    draw = torch.Generator().manual_seed(1)
    made = factory()
    module = made[0].to(torch.float64)
    _certain(module)
    for p in [*module.parameters(), *(b for n, b in module.named_buffers() if "running" in n)]:
        p.data += 0.1 * torch.rand(p.shape, generator=draw, dtype=p.dtype)

    def fresh(t: Tensor) -> Tensor:
        if t.is_floating_point():
            return torch.randn(t.shape, generator=draw, dtype=torch.float64)
        return torch.randint(0, largest, t.shape, generator=draw, dtype=t.dtype)

    args, kwargs = _inputs(made)
    args, kwargs = tuple(fresh(t) for t in args), {k: fresh(t) for k, t in kwargs.items()}
    values = {k: v.numpy() for k, v in kwargs.items()}
    free = [t.name for t in found.graph.tensors if t.role is Role.INPUT and t.name not in {**found.stated, **kwargs}]
    values.update({n: t.numpy() for n, t in zip(free, args, strict=True)})
    held = {t.name for t in found.graph.tensors if t.role is Role.PARAMETER}
    values.update({k: v.detach().clone().numpy() for k, v in module.state_dict().items() if k in held})
    values.update(found.stated)
    feed = {}
    for t in found.graph.tensors:
        if t.role is not Role.VALUE:
            v = np.asarray(values[t.name])
            feed[t.name] = (v.astype(np.float64) if v.dtype.kind == "f" else v).reshape(t.shape)
    return found.graph, feed, module, (args, kwargs)
