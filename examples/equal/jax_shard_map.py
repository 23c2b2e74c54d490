"""A training loss by JAX's `shard_map`, batch apart: `parallel` is right, `wrong` adds up gradients of means.

shardproof equal examples/equal/jax_shard_map.py:single examples/equal/jax_shard_map.py:parallel --ranks 4
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

NUMBERS = np.random.default_rng(0)
W, X, Y = (NUMBERS.standard_normal(s).astype(np.float32) for s in ((8, 8), (8, 8), (8, 8)))


def loss(w, x, y):
    return ((jnp.tanh(x @ w) - y) ** 2).mean()


def single():
    return jax.value_and_grad(loss), (W, X, Y)


def _shares(ranks, together):
    def f(w, x, y):
        value, grad = jax.value_and_grad(loss)(jax.lax.pcast(w, "x", to="varying"), x, y)
        return jax.lax.pmean(value, "x"), together(grad)

    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))
    return jax.shard_map(f, mesh=mesh, in_specs=(P(), P("x"), P("x")), out_specs=P()), (W, X, Y)


def parallel(ranks):
    return _shares(ranks, lambda g: jax.lax.pmean(g, "x"))


def wrong(ranks):
    return _shares(ranks, lambda g: jax.lax.psum(g, "x"))
