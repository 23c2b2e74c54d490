"""JAX programs of one device and of a mesh, right and wrong, as users write them: `FAMILIES` says which is which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

NUMBERS = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return NUMBERS.standard_normal(shape).astype(np.float32)


X, W1, W2 = _array(8, 8), _array(8, 16), _array(16, 8)
QKV, OUT = _array(3, 8, 8), _array(8, 8)
SEQUENCE = _array(2, 8, 8)
GAIN = _array(8)
ROUTER, EXPERTS = _array(8, 4), _array(4, 8, 8)
TABLE, IDS = _array(16, 8), np.array([[3, 0, 9, 15], [1, 7, 7, 2]], np.int32)
TARGET = _array(8, 8)
QUERIES, SHARED, POSITIONS, SEEDS = _array(4, 4, 2), _array(4, 2, 2), _array(5, 4), _array(5, 4, 2)


def mesh(ranks: int, *names: str, sizes: tuple[int, ...] | None = None) -> Mesh:
    return Mesh(np.array(jax.devices()[:ranks]).reshape(sizes or (ranks,)), names or ("x",))


def split(f: Callable[..., Any], ranks: int, ins: Any, outs: Any, **more: Any) -> Any:
    return jax.shard_map(f, mesh=mesh(ranks), in_specs=ins, out_specs=outs, **more)


# ------------------------------------------------------------------ a perceptron, columns then rows


def perceptron() -> Any:
    return lambda x, w1, w2: jax.nn.gelu(x @ w1) @ w2, (X, W1, W2)


def _columns(ranks: int, last: Callable[[Any], Any], scale: float = 1.0) -> Any:
    def f(x: Any, w1: Any, w2: Any) -> Any:
        return last(scale * (jax.nn.gelu(x @ w1) @ w2))

    return split(f, ranks, (P(), P(None, "x"), P("x")), P()), (X, W1, W2)


def perceptron_right(ranks: int) -> Any:
    return _columns(ranks, lambda y: lax.psum(y, "x"))


def perceptron_mean(ranks: int) -> Any:
    return _columns(ranks, lambda y: lax.pmean(y, "x"))


def perceptron_max(ranks: int) -> Any:
    return _columns(ranks, lambda y: lax.pmax(y, "x"))


def perceptron_jit(ranks: int) -> Any:
    on = mesh(ranks)
    lies = [NamedSharding(on, s) for s in (P(), P(None, "x"), P("x"))]
    return jax.jit(perceptron()[0], in_shardings=tuple(lies), out_shardings=lies[0]), (X, W1, W2)


def perceptron_jit_halved(ranks: int) -> Any:
    on = mesh(ranks)
    lies = [NamedSharding(on, s) for s in (P(), P(None, "x"), P("x"))]
    f = perceptron()[0]
    return jax.jit(lambda x, w1, w2: f(x, w1, w2 * 0.5), in_shardings=tuple(lies), out_shardings=lies[0]), (X, W1, W2)


def perceptron_by_rank(rank: int, ranks: int) -> Any:
    return perceptron_right(ranks)


# ------------------------------------------------------------------ attention, heads apart


def _attend(x: Any, qkv: Any, out: Any, heads: int) -> Any:
    b, n, _ = x.shape
    q, k, v = (jnp.einsum("bnd,de->bne", x, w).reshape(b, n, heads, -1) for w in qkv)
    scores = jnp.einsum("bnhd,bmhd->bhnm", q, k) / np.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
    seen = jnp.einsum("bhnm,bmhd->bnhd", jax.nn.softmax(scores, -1), v)
    return seen.reshape(b, n, -1) @ out


def attention() -> Any:
    return lambda x, qkv, out: _attend(x, qkv, out, 4), (SEQUENCE, QKV, OUT)


def _heads(ranks: int, heads: int, last: Callable[[Any], Any]) -> Any:
    def f(x: Any, qkv: Any, out: Any) -> Any:
        return last(_attend(x, qkv, out, heads))

    return split(f, ranks, (P(), P(None, None, "x"), P("x")), P()), (SEQUENCE, QKV, OUT)


def attention_right(ranks: int) -> Any:
    return _heads(ranks, 4 // ranks, lambda y: lax.psum(y, "x"))


def attention_fewer_heads(ranks: int) -> Any:
    return _heads(ranks, 2 // ranks, lambda y: lax.psum(y, "x"))


# ------------------------------------------------------------------ data parallelism, gradients


def _loss(w: Any, x: Any, y: Any) -> Any:
    return jnp.square(jnp.tanh(x @ w[0]) @ w[1] - y).mean()


def data() -> Any:
    return jax.value_and_grad(_loss), ((W1, W2), X, TARGET)


def _shares(ranks: int, of: Callable[..., Any], gradient: Callable[[Any], Any]) -> Any:
    def f(w: Any, x: Any, y: Any) -> Any:
        w = jax.tree.map(lambda t: lax.pcast(t, "x", to="varying"), w)
        loss, g = jax.value_and_grad(_loss)(w, x, y)
        return of(loss), jax.tree.map(gradient, g)

    return split(f, ranks, (P(), P("x"), P("x")), P()), ((W1, W2), X, TARGET)


def data_right(ranks: int) -> Any:
    return _shares(ranks, lambda t: lax.pmean(t, "x"), lambda t: lax.pmean(t, "x"))


def data_summed(ranks: int) -> Any:
    return _shares(ranks, lambda t: lax.pmean(t, "x"), lambda t: lax.psum(t, "x"))


def data_outside(ranks: int) -> Any:
    """Differentiated around `shard_map`, so that JAX makes the collectives of the gradients."""
    inner = split(lambda w, x, y: lax.pmean(_loss(w, x, y), "x"), ranks, (P(), P("x"), P("x")), P())
    return jax.value_and_grad(inner), ((W1, W2), X, TARGET)


# ------------------------------------------------------------------ a norm, positions apart


def _norm(x: Any, gain: Any) -> Any:
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain


def norm() -> Any:
    return lambda x, gain, w: _norm(x, gain) @ w, (X, GAIN, W1)


def _rows(ranks: int, gain: Callable[[Any], Any]) -> Any:
    def f(x: Any, g: Any, w: Any) -> Any:
        rows = _norm(x, gain(g))
        return lax.all_gather(rows, "x", axis=0, tiled=True) @ w

    return split(f, ranks, (P("x"), P(), P(None, "x")), P(None, "x")), (X, GAIN, W1)


def norm_right(ranks: int) -> Any:
    return _rows(ranks, lambda g: g)


def norm_scaled(ranks: int) -> Any:
    return _rows(ranks, lambda g: g * ranks)


def _hidden(ranks: int, mean: Callable[[Any], Any]) -> Any:
    def f(x: Any, g: Any, w: Any) -> Any:
        return lax.psum((x * lax.rsqrt(mean(x**2) + 1e-5) * g) @ w, "x")

    return split(f, ranks, (P(None, "x"), P("x"), P("x")), P()), (X, GAIN, W1)


def norm_hidden(ranks: int) -> Any:
    return _hidden(ranks, lambda t: lax.pmean(t.mean(-1, keepdims=True), "x"))


def norm_local(ranks: int) -> Any:
    return _hidden(ranks, lambda t: t.mean(-1, keepdims=True))


# ------------------------------------------------------------------ experts, tokens exchanged


def _gates(x: Any, router: Any) -> Any:
    return jax.nn.softmax(x @ router, -1)


def experts() -> Any:
    def f(x: Any, router: Any, w: Any) -> Any:
        gates = _gates(x, router)
        return jnp.einsum("te,ted->td", gates, jnp.einsum("td,edf->tef", x, w))

    return f, (X, ROUTER, EXPERTS)


def _exchange(ranks: int, back: Callable[[Any], Any]) -> Any:
    def f(x: Any, router: Any, w: Any) -> Any:
        gates = _gates(x, router)
        many, mine = router.shape[1], w.shape[0]
        sent = jnp.broadcast_to(x, (many, *x.shape))  # experts, tokens, hidden
        there = lax.all_to_all(sent, "x", split_axis=0, concat_axis=1, tiled=True)
        assert there.shape[0] == mine
        made = back(jnp.einsum("etd,edf->etf", there, w))
        return jnp.einsum("te,etd->td", gates, made)

    return split(f, ranks, (P("x"), P(), P("x")), P("x")), (X, ROUTER, EXPERTS)


def experts_right(ranks: int) -> Any:
    return _exchange(ranks, lambda t: lax.all_to_all(t, "x", split_axis=1, concat_axis=0, tiled=True))


def experts_turned(ranks: int) -> Any:
    return _exchange(ranks, lambda t: lax.all_to_all(t, "x", split_axis=1, concat_axis=0, tiled=True)[::-1])


# ------------------------------------------------------------------ a ring


def ring() -> Any:
    return lambda x, w: x @ w, (X, W1)


def _ring(ranks: int, shift: int, there: Callable[[Any, int], Any]) -> Any:
    """Blocks of the product's inner dimension pass around."""

    def f(x: Any, w: Any) -> Any:
        me, size = lax.axis_index("x"), w.shape[0]
        total = jnp.zeros((x.shape[0], w.shape[1]), np.float32)
        total = lax.pcast(total, "x", to="varying")

        def turn(k: Any, held: Any) -> Any:
            total, w = held
            block = lax.dynamic_slice_in_dim(x, there(me, k) % ranks * size, size, 1)
            return total + block @ w, lax.ppermute(w, "x", [(i, (i + shift) % ranks) for i in range(ranks)])

        return lax.fori_loop(0, ranks, turn, (total, w))[0]

    return split(f, ranks, (P("x"), P("x")), P("x")), (X, W1)


def ring_right(ranks: int) -> Any:
    return _ring(ranks, 1, lambda me, k: me - k)


def ring_wrong_way(ranks: int) -> Any:
    return _ring(ranks, 1, lambda me, k: me + k)


# ------------------------------------------------------------------ a table of words in parts


def words() -> Any:
    return lambda table, ids: table[ids], (TABLE, IDS)


def _lookup(ranks: int, masked: bool) -> Any:
    def f(table: Any, ids: Any) -> Any:
        size = table.shape[0]
        mine = ids - lax.axis_index("x") * size
        rows = table[jnp.clip(mine, 0, size - 1)]
        if masked:
            rows = jnp.where(((mine >= 0) & (mine < size))[..., None], rows, 0)
        return lax.psum(rows, "x")

    return split(f, ranks, (P("x"), P()), P()), (TABLE, IDS)


def words_right(ranks: int) -> Any:
    return _lookup(ranks, True)


def words_unmasked(ranks: int) -> Any:
    return _lookup(ranks, False)


# ------------------------------------------------------------------ a sum scattered, a mesh of two axes


def scattered(ranks: int) -> Any:
    def f(x: Any, w1: Any, w2: Any) -> Any:
        return lax.psum_scatter(jax.nn.gelu(x @ w1) @ w2, "x", scatter_dimension=1, tiled=True)

    return split(f, ranks, (P(), P(None, "x"), P("x")), P(None, "x")), (X, W1, W2)


def _two_axes(ranks: int, over: str) -> Any:
    on = mesh(ranks, "data", "model", sizes=(2, ranks // 2))

    def f(x: Any, w1: Any, w2: Any) -> Any:
        return lax.psum(jax.nn.gelu(x @ w1) @ w2, over)

    specs = (P("data"), P(None, "model"), P("model"))
    return jax.shard_map(f, mesh=on, in_specs=specs, out_specs=P("data"), check_vma=False), (X, W1, W2)


def two_axes(ranks: int) -> Any:
    return _two_axes(ranks, "model")


def two_axes_wrong(ranks: int) -> Any:
    return _two_axes(ranks, "data")


# ------------------------------------------------------------------ a loss over words in parts, heads that ranks share


def _of_each(e: Any, x: Any, y: Any) -> Any:
    logits, seen = x @ e.T, y >= 0
    own = jnp.take_along_axis(logits, jnp.maximum(y, 0)[:, None], 1, mode="promise_in_bounds")[:, 0]
    return jnp.where(seen, jax.nn.logsumexp(logits, -1) - own, 0).sum() / seen.sum()


def vocabulary() -> Any:
    return _of_each, (TABLE, X[:6], jnp.array([0, 7, -1, 3, -1, 5]))


def _parts_of_words(ranks: int, first: Callable[[int], Any], count: Callable[[Any], Any]) -> Any:
    def f(e: Any, x: Any, y: Any) -> Any:
        logits, seen, many = x @ e.T, y >= 0, e.shape[0]
        most = lax.pmax(logits.max(-1), "x")
        total = lax.psum(jnp.exp(logits - most[:, None]).sum(-1), "x")
        at = jnp.maximum(y, 0) - first(many)
        own = jnp.take_along_axis(logits, jnp.clip(at, 0, many - 1)[:, None], 1)[:, 0]
        own = lax.psum(jnp.where((at >= 0) & (at < many), own, 0), "x")
        return jnp.where(seen, most + jnp.log(total) - own, 0).sum() / count(seen)

    return split(f, ranks, (P("x"), P(), P()), P()), vocabulary()[1]


def vocabulary_right(ranks: int) -> Any:
    return _parts_of_words(ranks, lambda many: lax.axis_index("x") * many, lambda seen: seen.sum())


def vocabulary_all_places(ranks: int) -> Any:
    return _parts_of_words(ranks, lambda many: lax.axis_index("x") * many, lambda seen: seen.shape[0])


def _of_queries(x: Any, wq: Any, wk: Any) -> Any:
    q, k = jnp.einsum("sd,dhe->she", x, wq), jnp.einsum("sd,dhe->she", x, wk)
    k = jnp.repeat(k, wq.shape[1] // wk.shape[1], 1)
    return jnp.einsum("hqk,khe->qhe", jax.nn.softmax(jnp.einsum("qhe,khe->hqk", q, k), -1), k)


def _gradients(x: Any, wq: Any, wk: Any, c: Any, own: Callable[[Any], Any]) -> Any:
    return jax.grad(lambda a, b: (_of_queries(x, a, own(b)) * c).sum(), (0, 1))(wq, wk)


def shared_keys() -> Any:
    return lambda x, wq, wk, c: _gradients(x, wq, wk, c, lambda w: w), (POSITIONS, QUERIES, SHARED, SEEDS)


def _by_number(ranks: int, head: Callable[[Any], Any]) -> Any:
    def f(x: Any, wq: Any, wk: Any, c: Any) -> Any:
        own = head(lax.axis_index("x"))
        q, k = _gradients(x, wq, wk, c, lambda w: lax.dynamic_slice(w, (0, own, 0), (4, 1, 2)))
        return q, lax.psum(k, "x")

    cut = P(None, "x")
    return split(f, ranks, (P(), cut, P(), cut), (cut, P()), check_vma=False), shared_keys()[1]


def shared_keys_right(ranks: int) -> Any:
    return _by_number(ranks, lambda rank: rank // 2)


def shared_keys_turned(ranks: int) -> Any:
    return _by_number(ranks, lambda rank: rank % 2)


FAMILIES = (
    ("perceptron", ("perceptron_right", "perceptron_jit", "perceptron_by_rank", "scattered", "two_axes"),
     ("perceptron_mean", "perceptron_max", "perceptron_jit_halved", "two_axes_wrong"), 4),
    ("attention", ("attention_right",), ("attention_fewer_heads",), 2),
    ("data", ("data_right", "data_outside"), ("data_summed",), 4),
    ("norm", ("norm_right", "norm_hidden"), ("norm_scaled", "norm_local"), 4),
    ("experts", ("experts_right",), ("experts_turned",), 4),
    ("ring", ("ring_right",), ("ring_wrong_way",), 4),
    ("words", ("words_right",), ("words_unmasked",), 4),
)  # fmt: skip
"""One device, right ones, wrong ones, ranks."""
LATE = (
    ("vocabulary", ("vocabulary_right",), ("vocabulary_all_places",), 4),
    ("shared_keys", ("shared_keys_right",), ("shared_keys_turned",), 4),
)
"""The same, not judged as texts too."""


# ------------------------------------------------------------------ what is refused by name


def random(ranks: int) -> Any:
    def f(x: Any, w1: Any, w2: Any) -> Any:
        return lax.psum(jax.nn.gelu(x @ w1) @ w2 + jax.random.normal(jax.random.key(0), (8, 8)), "x")

    return split(f, ranks, (P(), P(None, "x"), P("x")), P()), (X, W1, W2)


def branches(ranks: int) -> Any:
    def f(x: Any, w1: Any, w2: Any) -> Any:
        y = jax.nn.gelu(x @ w1) @ w2
        return lax.psum(lax.cond(x[0, 0] > 0, lambda: y, lambda: y * 2), "x")

    return split(f, ranks, (P(), P(None, "x"), P("x")), P()), (X, W1, W2)


def unread(ranks: int) -> Any:
    f, (x, w1, w2) = perceptron_right(ranks)
    return jax.jit(lambda x, w1, w2, more: f(x, w1, w2)), (x, w1, w2, X)


def no_mesh(ranks: int) -> Any:
    return perceptron()


def other_by_rank(rank: int, ranks: int) -> Any:
    return _columns(ranks, lambda y: lax.psum(y, "x"), 1.0 + rank)


def bare(ranks: int) -> Any:
    return perceptron()[0]


REFUSED = (
    ("random", "shift_right_logical"),
    ("branches", "which branch runs depends on data"),
    ("unread", "keep_unused"),
    ("no_mesh", "a program of 1 devices, and 4"),
    ("other_by_rank", "rank 1 makes another program"),
    ("bare", "a JAX program returns"),
)
"""Name, words of the refusal."""
