"""JAX functions as their users write them: what `FILE.py:NAME` is given."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax import ShapeDtypeStruct as Of

F32, I32 = jnp.float32, jnp.int32
NHWC = ("NHWC", "HWIO", "NHWC")


def mlp(batch: int = 8):
    def forward(params, x: Array) -> Array:
        for layer in params["layers"]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x

    layers = [{"w": Of((n, m), F32), "b": Of((m,), F32)} for n, m in ((12, 16), (16, 5))]
    return forward, {"layers": layers}, Of((batch, 12), F32)


def _norm(x: Array, gain: Array, bias: Array) -> Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + bias


def transformer(length: int = 6, width: int = 32, heads: int = 4):
    def loss(params, ids: Array, labels: Array) -> dict[str, Array]:
        x = params["table"][ids] + params["place"]
        parts = jnp.split(_norm(x, params["g"], params["b"]) @ params["qkv"], 3, -1)
        q, k, v = (t.reshape(2, length, heads, width // heads).transpose(0, 2, 1, 3) for t in parts)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(width // heads)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
        x = x + mixed.transpose(0, 2, 1, 3).reshape(2, length, width) @ params["out"]
        x = x + jax.nn.gelu(_norm(x, params["g2"], params["b2"]) @ params["up"]) @ params["down"]
        logits = jax.nn.log_softmax(x @ params["table"].T)
        return {"loss": -jnp.take_along_axis(logits, labels[..., None], -1).mean()}

    shapes = {"table": (20, width), "place": (length, width), "qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {n: (width,) for n in ("g", "b", "g2", "b2")} | {"up": (width, 64), "down": (64, width)}
    ids = Of((2, length), I32)
    return loss, {k: Of(v, F32) for k, v in shapes.items()}, ids, ids


def longer():
    """A mask that is too large to be held as values."""
    return transformer(80)


def convolutions():
    def net(params, x: Array) -> Array:
        y = jax.nn.silu(lax.conv_general_dilated(x, params["first"], (2, 2), "SAME", dimension_numbers=NHWC))
        y = lax.conv_general_dilated(
            y, params["each"], (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=8, rhs_dilation=(2, 1)
        )
        y = lax.conv_general_dilated(
            y, params["groups"], (1, 1), "VALID", dimension_numbers=NHWC, feature_group_count=2
        )
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        y = lax.reduce_window(y, 0.0, lax.add, (1, 2, 1, 1), (1, 1, 1, 1), ((0, 0), (1, 0), (0, 0), (0, 0)))
        return jax.nn.gelu(y, approximate=False).mean((1, 2)) @ params["head"]

    shapes = {"first": (3, 3, 3, 8), "each": (3, 3, 1, 8), "groups": (2, 2, 4, 6), "head": (6, 5)}
    return net, {k: Of(v, F32) for k, v in shapes.items()}, Of((2, 16, 16, 3), F32)


def recurrent():
    """A scan over time, five turns."""

    def run(params, x: Array) -> Array:
        def step(h: Array, now: Array) -> tuple[Array, Array]:
            h = jnp.tanh(now @ params["u"] + h @ params["w"])
            return h, h

        return lax.scan(step, jnp.zeros((4, 8), F32), x)[1]

    return run, {"u": Of((6, 8), F32), "w": Of((8, 8), F32)}, Of((5, 4, 6), F32)


def pieces():
    """Operators one by one."""

    def several(params, x: Array, ids: Array) -> Array:
        y = jnp.concatenate([x[:, 1:], params["w"][None, :1] * jnp.ones((2, 1, 4), F32)], 1)
        y = jnp.pad(y, ((0, 0), (1, 2), (0, 0)), constant_values=1.0)[:, ::2]
        y = jnp.clip(y, -0.5, 0.7) + jnp.where(y > 0, jnp.sin(y), jnp.cos(y)) + y**3 - jnp.abs(y) * jnp.floor(y)
        y = y + jax.nn.one_hot(ids, 4, dtype=F32)[:, None] + jnp.arange(4, dtype=F32) + jax.scipy.special.erf(y)
        y = y.at[:, 1].set(params["w"][0]) + jax.nn.sigmoid(y) + jnp.log1p(jnp.exp(y)) + jnp.square(y)
        y = jnp.take(y, jnp.array([3, 0, 0]), axis=2) * jnp.sqrt(jnp.maximum(y, 0.1))[..., :3] + y.min(2, keepdims=True)
        return jax.nn.softmax(y, axis=1)

    return several, {"w": Of((3, 4), F32)}, Of((2, 5, 4), F32), Of((2,), I32)


def sorted_rows():
    """What is not supported: two kinds."""
    return lambda x: jnp.sort(x, -1) + jax.scipy.special.erfinv(x), Of((3, 4), F32)


def until():
    """A loop that ends when the numbers say so."""
    return lambda x: lax.while_loop(lambda v: v.sum() < 10, lambda v: v * 2, x), Of((3,), F32)


def half():
    return lambda x: x * 2, Of((3,), jnp.bfloat16)


def needy(width: int):
    return lambda x: x, Of((width,), F32)


def nothing() -> int:
    return 3
