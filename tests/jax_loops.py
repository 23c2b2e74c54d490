"""Loops of JAX: what `FILE.py:NAME` is given; the length of each is an argument of its factory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax import ShapeDtypeStruct as Of

F32, I32 = jnp.float32, jnp.int32
PARAMS = {"u": Of((6, 8), F32), "w": Of((8, 8), F32), "b": Of((8,), F32)}


def cell(batch: int = 5):
    """An RNN cell over time; its states, and the last."""

    def run(params, x: Array) -> tuple[Array, Array]:
        def step(h: Array, now: Array) -> tuple[Array, Array]:
            h = jnp.tanh(now @ params["u"] + h @ params["w"] + params["b"])
            return h, h

        return lax.scan(step, jnp.zeros((4, 8), F32), x)

    return run, PARAMS, Of((batch, 4, 6), F32)


def cell_loss(batch: int = 5):
    """A loss of the states, and a product of each that the loop does not need."""

    def loss(params, x: Array) -> Array:
        def step(h: Array, now: Array) -> tuple[Array, Array]:
            h = jnp.tanh(now @ params["u"] + h @ params["w"] + params["b"])
            return h, h @ params["w"]

        last, seen = lax.scan(step, jnp.zeros((4, 8), F32), x)
        return (seen**2).mean() + last.sum()

    return loss, PARAMS, Of((batch, 4, 6), F32)


def cell_gradient(batch: int = 5):
    """The gradient that JAX makes: a second loop, from the last turn to the first."""
    loss, params, x = cell_loss(batch)
    return jax.grad(loss), params, x


def backwards(batch: int = 5):
    """From the last turn to the first, over two arrays, one of them along its second dimension."""

    def run(x: Array, y: Array) -> tuple[Array, Array]:
        def step(h: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            h = 0.5 * h + now[0] * now[1]
            return h, jnp.exp(-h)

        return lax.scan(step, x[0], (x, jnp.swapaxes(y, 0, 1)), reverse=True)

    return run, Of((batch, 3, 2), F32), Of((3, batch, 2), F32)


def space(batch: int = 6):
    """A diagonal state-space model, its output and its gradient."""

    def loss(params, x: Array) -> Array:
        decay = jax.nn.sigmoid(params["a"])

        def step(s: Array, now: Array) -> tuple[Array, Array]:
            s = decay * s + now[..., None] * (now @ params["b"])[:, None]
            return s, (s * params["d"]).sum(-1)

        return (lax.scan(step, jnp.zeros((4, 5, 3), F32), x)[1] ** 2).sum()

    shapes = {"a": (5, 3), "b": (5, 3), "d": (5, 3)}
    return jax.value_and_grad(loss), {k: Of(v, F32) for k, v in shapes.items()}, Of((batch, 4, 5), F32)


def sums(batch: int = 6):
    """Totals, products and the greatest till now; an array of positions is read turn by turn."""

    def run(x: Array) -> tuple[Array, ...]:
        def step(c: tuple[Array, ...], now: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
            total, most = c
            row, k = now
            most = jnp.maximum(most, row)
            return (total + row * most, most), most * k

        (total, most), seen = lax.scan(step, (x[0] * 2, x[0]), (x, jnp.arange(batch, dtype=F32)))
        return total, most, seen

    return run, Of((batch, 3), F32)


def counted(batch: int = 6):
    """`fori_loop` over every second row, from the third on."""

    def run(x: Array) -> Array:
        return lax.fori_loop(1, batch, lambda i, h: jnp.tanh(h + x[2 * i + 1]), jnp.ones((3,), F32))

    return run, Of((2 * batch + 1, 3), F32)


def delayed(batch: int = 6):
    """A carry that is the row before, one that is another carry, one that never changes."""

    def run(x: Array) -> tuple[Array, ...]:
        def step(c: tuple[Array, ...], now: Array) -> tuple[tuple[Array, ...], Array]:
            before, older, same = c
            return (now, before, same), now - before * same + older

        return lax.scan(step, (x[0], x[1], x[2]), x)

    return run, Of((batch, 3), F32)


def by_turn(batch: int = 6):
    """What a turn computes depends on its number: recorded turn by turn."""
    return lambda x: lax.fori_loop(0, batch, lambda i, h: jnp.tanh(h * i + x[i]), jnp.ones((3,), F32)), Of(
        (batch, 3), F32
    )


def nested(batch: int = 4):
    """A loop in a loop: the inner one is an operator, the outer is recorded turn by turn."""

    def run(x: Array) -> Array:
        def outer(h: Array, now: Array) -> tuple[Array, Array]:
            return lax.scan(lambda g, row: (jnp.tanh(g + row), g * row), h, now)

        return lax.scan(outer, jnp.zeros((3,), F32), x)[1]

    return run, Of((batch, 5, 3), F32)


def reshaped(batch: int = 5):
    """A carry that is seen in another shape: heads of a state."""

    def run(params, x: Array) -> Array:
        def step(h: Array, now: Array) -> tuple[Array, Array]:
            heads = jnp.einsum("bhk,hkj->bhj", h.reshape(4, 2, 4), params["w"])
            h = jnp.tanh(heads.reshape(4, 8) + now)
            return h, h[:, ::2]

        return lax.scan(step, jnp.zeros((4, 8), F32), x)[1]

    return run, {"w": Of((2, 4, 4), F32)}, Of((batch, 4, 8), F32)


def mixed(batch: int = 5):
    """A carry of whole numbers that depend on data, beside one of floats: results of a loop have one type."""

    def run(x: Array) -> tuple[Array, Array]:
        def step(c: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], None]:
            h, seen = c
            h = jnp.where(seen > 2, h * 0.5, h + now)
            return (h, seen + (now > 0).astype(I32)), None

        return lax.scan(step, (x[0], jnp.zeros((3,), I32)), x)[0]

    return run, Of((batch, 3), F32)


def scattered(batch: int = 5):
    """Rows of an array that a turn reads, too, are overwritten."""

    def turn(i: int, x: Array) -> Array:
        return x.at[i].set(jnp.tanh(x[i] + x[0]))

    return lambda x: lax.fori_loop(0, batch, turn, x), Of((batch, 3), F32)


def two_orders(batch: int = 5):
    """One array is read forwards, one backwards."""

    def run(x: Array, y: Array) -> Array:
        return lax.fori_loop(0, batch, lambda i, h: jnp.tanh(h + x[i] * y[batch - 1 - i]), jnp.ones((3,), F32))

    return run, Of((batch, 3), F32), Of((batch, 3), F32)


def unfilled(batch: int = 5):
    """Results that leave the first row as it was."""

    def turn(i: int, c: tuple[Array, Array], x: Array) -> tuple[Array, Array]:
        h, seen = c
        h = jnp.tanh(h + lax.dynamic_index_in_dim(x, i, 0, False))
        return h, lax.dynamic_update_index_in_dim(seen, h, i, 0)

    def run(x: Array) -> Array:
        return lax.fori_loop(1, batch, lambda i, c: turn(i, c, x), (x[0], 2 * x))[1]

    return run, Of((batch, 3), F32)


def read_back(batch: int = 5):
    """A buffer that turns write, and read one row before."""

    def turn(i: int, seen: Array) -> Array:
        row = lax.dynamic_index_in_dim(seen, i - 1, 0, False)
        return lax.dynamic_update_index_in_dim(seen, jnp.tanh(row * 0.5), i, 0)

    return lambda x: lax.fori_loop(1, batch, turn, x), Of((batch, 3), F32)


def clamped(batch: int = 5):
    """Places beyond the end, which XLA pushes inside."""

    def turn(i: int, h: Array, x: Array) -> Array:
        return jnp.tanh(h + lax.dynamic_index_in_dim(x, i + 2, 0, False))

    return lambda x: lax.fori_loop(0, batch, lambda i, h: turn(i, h, x), jnp.ones((3,), F32)), Of((batch, 3), F32)
