"""A training step as trainers in JAX write it: `jit` with shardings on a mesh of data and tensors, a scan over layers
that keeps what gradients read, causal masks of -1e30, rows of a table looked up and their gradients added up.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HEADS, HIDDEN, WORDS, POSITIONS, BATCH, LAYERS = 4, 2, 8, 6, 3, 4, 2
_KEYS = jax.random.split(jax.random.PRNGKey(0), 8)


def _drawn(k: int, *shape: int) -> Any:
    return jax.random.normal(_KEYS[k], shape) * 0.4


PARAMETERS = {
    "table": _drawn(0, WORDS, WIDTH),
    "norm": 1 + _drawn(1, LAYERS, WIDTH),
    "qkv": _drawn(2, LAYERS, WIDTH, 3, HEADS, 2),
    "out": _drawn(3, LAYERS, HEADS, 2, WIDTH),
    "up": _drawn(4, LAYERS, WIDTH, HIDDEN),
    "down": _drawn(5, LAYERS, HIDDEN, WIDTH),
}
IDS, LABELS = (jax.random.randint(_KEYS[k], (BATCH, POSITIONS), 0, WORDS) for k in (6, 7))
CUT = {
    "table": P("tensor"),
    "norm": P(),
    "qkv": P(None, None, None, "tensor"),
    "out": P(None, "tensor"),
    "up": P(None, None, "tensor"),
    "down": P(None, "tensor"),
}


def _layer(x: Any, w: Any) -> tuple[Any, None]:
    h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w["norm"]
    q, k, v = (jnp.einsum("bsd,dhe->bhse", h, w["qkv"][:, i]) for i in range(3))
    scores = jnp.where(jnp.tril(jnp.ones((POSITIONS, POSITIONS), bool)), q @ jnp.swapaxes(k, -1, -2), -1e30)
    x = x + jnp.einsum("bhse,hed->bsd", jax.nn.softmax(scores, -1) @ v, w["out"])
    return x + jax.nn.silu(x @ w["up"]) @ w["down"], None


def _loss(parameters: Any, ids: Any, labels: Any) -> Any:
    layers = {name: w for name, w in parameters.items() if name != "table"}
    x, _ = jax.lax.scan(_layer, parameters["table"][ids], layers)
    z = x @ parameters["table"].T
    return (jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, labels[..., None], -1)[..., 0]).mean()


def single() -> Any:
    return jax.value_and_grad(_loss), (PARAMETERS, IDS, LABELS)


def _parallel(ranks: int, factor: float) -> Any:
    mesh = Mesh(np.array(jax.devices()[:ranks]).reshape(2, ranks // 2), ("data", "tensor"))
    cut = {name: NamedSharding(mesh, spec) for name, spec in CUT.items()}
    rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def step(parameters: Any, ids: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(parameters, ids, labels)
        return loss, {**gradients, "up": gradients["up"] * factor}

    return jax.jit(step, in_shardings=(cut, rows, rows), out_shardings=(everywhere, cut)), (PARAMETERS, IDS, LABELS)


def right(ranks: int) -> Any:
    return _parallel(ranks, 1.0)


def wrong(ranks: int) -> Any:
    """A gradient that is added up over the ranks of one mesh dimension once too often."""
    return _parallel(ranks, 2.0)


FAMILIES = (("single", ("right",), ("wrong",), 4),)
