"""Steps of training in JAX, of one device and by `shard_map`, right and wrong: data parallelism, ZeRO-3, a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

NUMBERS = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return (NUMBERS.standard_normal(shape) * 0.5).astype(np.float32)


def mesh(ranks: int, *sizes: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:ranks]).reshape(sizes or (ranks,)), ("x", "t")[: len(sizes or (ranks,))])


def varying(tree: Any) -> Any:
    return jax.tree.map(lambda t: lax.pcast(t, "x", to="varying"), tree)


# ------------------------------------------------------------------ a perceptron, Adam

WEIGHTS = (_array(8, 16), _array(16), _array(16, 4), _array(4))
FIRST = tuple(np.zeros_like(w) + np.float32(0.01) for w in WEIGHTS)
SECOND = tuple(np.abs(_array(*w.shape)) for w in WEIGHTS)
X, Y = _array(8, 8), _array(8, 4)


def loss(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y) ** 2)


def adam(w: Any, g: Any, m: Any, v: Any) -> Any:
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    return jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), w, m, v), m, v


def step() -> Any:
    def one(w: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(w, x, y)
        return value, adam(w, g, m, v)

    return one, (WEIGHTS, FIRST, SECOND, X, Y)


def _replicas(ranks: int, of: Callable[..., Any]) -> Any:
    def many(w: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(varying(w), x, y)
        return lax.pmean(value, "x"), adam(w, of(g, "x"), m, v)

    specs = (P(), P(), P(), P("x"), P("x"))
    return jax.shard_map(many, mesh=mesh(ranks), in_specs=specs, out_specs=P()), (WEIGHTS, FIRST, SECOND, X, Y)


def step_right(ranks: int) -> Any:
    return _replicas(ranks, lax.pmean)


def step_summed(ranks: int) -> Any:
    return _replicas(ranks, lax.psum)


def _zero(ranks: int, whole: Callable[..., Any], own: Callable[..., Any]) -> Any:
    """Parameters and states in shards: gathered before, gradients reduced and scattered after."""

    def many(w: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(jax.tree.map(whole, w), x, y)
        return lax.pmean(value, "x"), adam(w, jax.tree.map(own, g), m, v)

    out = (P(), P("x"))
    found = jax.shard_map(many, mesh=mesh(ranks), in_specs=(P("x"),) * 5, out_specs=out, check_vma=False)
    return found, (WEIGHTS, FIRST, SECOND, X, Y)


def _gather(t: Any) -> Any:
    return lax.all_gather(t, "x", tiled=True)


def zero_right(ranks: int) -> Any:
    return _zero(ranks, _gather, lambda t: lax.psum_scatter(t, "x", tiled=True) / ranks)


def zero_summed(ranks: int) -> Any:
    return _zero(ranks, _gather, lambda t: lax.psum_scatter(t, "x", tiled=True))


def zero_own(ranks: int) -> Any:
    """Every rank keeps the gradient of its own share of the batch."""

    def own(t: Any) -> Any:
        many = t.shape[0] // ranks
        return lax.dynamic_slice_in_dim(t, lax.axis_index("x") * many, many)

    return _zero(ranks, _gather, own)


def zero_turned(ranks: int) -> Any:
    """Shards are gathered from the neighbours of those whose they are."""
    turn = [(i, (i + 1) % ranks) for i in range(ranks)]
    return _zero(
        ranks,
        lambda t: _gather(lax.ppermute(t, "x", turn)),
        lambda t: lax.psum_scatter(t, "x", tiled=True) / ranks,
    )


# ------------------------------------------------------------------ a transformer, one sample a rank

VOCABULARY, WIDTH, HEADS, POSITIONS, BATCH = 12, 8, 2, 4, 4
MODEL = {
    "table": _array(VOCABULARY, WIDTH),
    "qkv": _array(3, WIDTH, WIDTH),
    "out": _array(WIDTH, WIDTH),
    "gain": _array(WIDTH),
    "up": _array(WIDTH, 2 * WIDTH),
    "down": _array(2 * WIDTH, WIDTH),
    "head": _array(WIDTH, VOCABULARY),
}
WORDS = NUMBERS.integers(0, VOCABULARY, (BATCH, POSITIONS)).astype(np.int32)
NEXT = NUMBERS.integers(0, VOCABULARY, (BATCH, POSITIONS)).astype(np.int32)
SPLIT = {
    **dict.fromkeys(("table", "gain", "head"), P()),
    "qkv": P(None, None, "t"),
    "out": P("t"),
    "up": P(None, "t"),
    "down": P("t"),
}


def words_loss(w: Any, x: Any, y: Any, heads: int = HEADS, total: Callable[[Any], Any] = lambda t: t) -> Any:
    h = w["table"][x]
    n = h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5) * w["gain"]
    q, k, v = ((n @ m).reshape(*x.shape, heads, -1) for m in w["qkv"])
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
    s = jnp.where(jnp.tril(jnp.ones((POSITIONS, POSITIONS), bool)), s, -jnp.inf)
    seen = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v).reshape(*x.shape, -1)
    h = h + total(seen @ w["out"])
    h = h + total(jnp.tanh(h @ w["up"]) @ w["down"])
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(h @ w["head"], -1), y[..., None], -1))


def sgd(w: Any, g: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, g)


def words() -> Any:
    def one(w: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(words_loss)(w, x, y)
        return value, sgd(w, g)

    return one, (MODEL, WORDS, NEXT)


def _words(ranks: int, of: Callable[..., Any]) -> Any:
    def many(w: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(words_loss)(varying(w), x, y)
        return lax.pmean(value, "x"), sgd(w, of(g, "x"))

    return jax.shard_map(many, mesh=mesh(ranks), in_specs=(P(), P("x"), P("x")), out_specs=P()), (MODEL, WORDS, NEXT)


def words_right(ranks: int) -> Any:
    return _words(ranks, lax.pmean)


def words_summed(ranks: int) -> Any:
    return _words(ranks, lax.psum)


def words_both(ranks: int) -> Any:
    """Data and tensor parallel."""
    tensor = ranks // 2

    def many(w: Any, x: Any, y: Any) -> Any:
        def mine(w: Any) -> Any:
            return lax.pmean(words_loss(w, x, y, HEADS // tensor, lambda t: lax.psum(t, "t")), "x")

        value, g = jax.value_and_grad(mine)(w)
        return value, sgd(w, g)

    found = jax.shard_map(many, mesh=mesh(ranks, 2, tensor), in_specs=(SPLIT, P("x"), P("x")), out_specs=(P(), SPLIT))
    return found, (MODEL, WORDS, NEXT)


FAMILIES = (
    ("step", ("step_right",), ("step_summed",), 4),
    ("step", ("zero_right",), ("zero_summed", "zero_own", "zero_turned"), 2),
)
DEAR = (
    ("step", ("zero_right",), (), 4),
    ("words", ("words_right", "words_both"), ("words_summed",), 4),
    ("words", ("words_right",), (), 2),
)
"""As `jax_pairs.FAMILIES`."""
