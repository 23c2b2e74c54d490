"""A module and its imported graph, run on the same weights and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Role
from shardproof.models.sources.torch.context import Imported
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build

Made = tuple[nn.Module, object] | tuple[nn.Module, object, object]


def imported(factory: Callable[[], Made], name: str = "model", attention: bool = False) -> Imported:
    """The graph of what the factory makes, through the meta device; `attention`: as one operator."""
    return convert(build(factory, name, attention=attention))


def _inputs(made: Made) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    args: tuple[Tensor, ...] = ()
    kwargs: dict[str, Tensor] = {}
    for part in made[1:]:
        if isinstance(part, dict):
            kwargs = part
        else:
            args = (part,) if isinstance(part, Tensor) else tuple(cast("Iterable[Tensor]", part))
    return args, kwargs


def compare(
    factory: Callable[[], Made],
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-9,
    largest: int = 2,
    attention: bool = False,
) -> Imported:
    """Outputs of the module (its own weights, in `dtype`) against the reference run of its graph, relative to the
    largest element.

    Integer inputs are drawn below `largest`.  Returns the import.
    """
    found = imported(factory, attention=attention)
    draw = torch.Generator().manual_seed(1)
    made = factory()
    module = made[0].to(dtype)
    for p in [*module.parameters(), *(b for n, b in module.named_buffers() if "running" in n)]:
        p.data += 0.1 * torch.rand(p.shape, generator=draw, dtype=p.dtype)

    def fresh(t: Tensor) -> Tensor:
        if t.is_floating_point():
            return torch.randn(t.shape, generator=draw, dtype=dtype)
        return torch.randint(0, largest, t.shape, generator=draw, dtype=t.dtype)

    args, kwargs = _inputs(made)
    args, kwargs = tuple(fresh(t) for t in args), {k: fresh(t) for k, t in kwargs.items()}
    weights = {k: v.detach().clone() for k, v in module.state_dict().items()}
    with torch.no_grad():
        out = module(*args, **kwargs)
    wanted = [t for t in tree_flatten(dict(out) if hasattr(out, "keys") else out)[0] if isinstance(t, Tensor)]
    # the names PyTorch gives to inputs: those of `forward`, star arguments numbered
    given = [*kwargs.items()]
    stored = {t.name for t in found.graph.tensors if t.role is Role.PARAMETER}
    names = [
        t.name
        for t in found.graph.tensors
        if t.role is Role.INPUT and t.name not in found.stated and t.name not in kwargs
    ]
    values: dict[str, np.ndarray] = {k: v.numpy() for k, v in given}
    values.update({n: t.numpy() for n, t in zip(names, args, strict=True)})
    values.update({k: v.numpy() for k, v in weights.items() if k in stored})
    values.update(found.stated)
    feed = {}
    for t in found.graph.tensors:
        if t.role is not Role.VALUE:
            v = np.asarray(values[t.name])
            feed[t.name] = (v.astype(str(dtype).removeprefix("torch.")) if v.dtype.kind == "f" else v).reshape(t.shape)
    got = run_graph(found.graph, feed)
    assert len(found.graph.outputs) == len(wanted)
    for o, w in zip(found.graph.outputs, wanted, strict=True):
        reference = w.numpy()
        error = np.max(np.abs(got[o].reshape(reference.shape).astype(float) - reference))
        assert error <= tolerance * max(1.0, float(np.max(np.abs(reference)))), (o, error)
    return found
