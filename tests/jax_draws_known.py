"""The programs that the JAX fuzzer draws of what is known when they are read: constants at the edges of their types,
masks too large to be written down, loops whose counters say places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax_draws import Array, Draw, put
from jax_draws_lax import ELEMENTWISE, OVER, PAIRS

EDGES: dict[str, tuple[float, ...]] = {
    "float64": (0.0, -0.0, 1.0, -1.5, 2.5, 0.5, -0.5, np.inf, -np.inf, np.nan, 3e9, -300.0),
    "float32": (0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 3e9, 255.7, -128.9),
    "int32": (0, 1, -1, 2, -7, 7, 2**31 - 1, -(2**31), 100), "int8": (0, 1, -1, 127, -128, 5, -3),
    "uint8": (0, 1, 255, 128, 7), "int64": (0, -1, 3, 2**40, 2**62, -(2**63)), "bool": (0, 1),
}  # fmt: skip


def _constants(d: Draw) -> bool:
    """Operators on arrays that depend on no argument, which the importer computes itself, among edges of their types."""
    rng, k = d.rng, d.pick("f")
    dtype = rng.choice([*EDGES])
    n = rng.randint(2, 6)
    a, b = (np.array([rng.choice(EDGES[dtype]) for _ in range(n)]).astype(dtype) for _ in range(2))
    other = rng.choice([*EDGES])
    (one, f), (two, g), (three, h) = (rng.choice([*t.items()]) for t in (PAIRS, ELEMENTWISE, OVER))
    way, reverse, first = rng.randrange(9), rng.random() < 0.5, np.zeros((), dtype)
    ways: list[tuple[str, Callable[[Array, Array], Array]]] = [
        (one, f), (two, lambda x, y: g(x)), (three, lambda x, y: h(x, (0,))), (f"{two}({one})", lambda x, y: g(f(x, y))),
        (f"as {other}", lambda x, y: x.astype(other)), (f"{one} as {other}", lambda x, y: f(x, y).astype(other)),
        ("where", lambda x, y: jnp.where(x > y, x, y)), ("run", lambda x, y: lax.cumsum(x, 0, reverse)),
        ("parts", lambda x, y: jnp.concatenate([x[::-1], lax.pad(y, first, [(1, -1, 0)])])),
    ]  # fmt: skip
    word, step = ways[way]
    told = f"constants.{word}({a.tolist()}, {b.tolist()}, {dtype}, {reverse})"
    if k is None or rng.random() < 0.3:
        return put(d, told, lambda v: step(jnp.asarray(a), jnp.asarray(b)))
    return put(d, f"{told} with {k}", lambda v: jnp.where(v[k].sum() > 0, step(jnp.asarray(a), jnp.asarray(b)), 1))


def _masks(d: Draw) -> bool:
    """Constants too large to be written down: masks and weights of positions."""
    k, n = d.pick("f"), d.rng.choice((70, 90))
    if k is None:
        return False
    name, f = d.rng.choice(
        [("below", lambda i, j: jnp.where(i >= j, 1.0, -jnp.inf)), ("band", lambda i, j: (i - j < 3) & (j <= i)), ("far", lambda i, j: jnp.abs(i - j) * -0.5),
         ("mixed", lambda i, j: jnp.where((i > 2) ^ (j > 4), i, j)), ("steps", lambda i, j: i // 7 == j // 7), ("sines", lambda i, j: jnp.sin(i / 10 ** (j / 90))),
         ("signs", lambda i, j: jnp.sign(i - j) * 2 + (i % 3)), ("bits", lambda i, j: (i ^ j) & 3), ("product", lambda i, j: jnp.maximum(i * j - 100, 0))]
    )  # fmt: skip

    def step(v: list[Array]) -> Array:
        i, j = jnp.arange(n)[:, None], jnp.arange(n)[None]
        x = jnp.resize(v[k], (n,))
        return (f(i, j) * jnp.where(jnp.isfinite(x), x, 0) * 1.0)[::7, ::9]

    return put(d, f"mask.{name}({k}, {n})", step)


PLACES: dict[str, Callable[[Array, int], Array]] = {
    "own": lambda j, n: j, "from the end": lambda j, n: n - 1 - j, "twice": lambda j, n: 2 * j, "least": lambda j, n: jnp.minimum(j, 2),
    "most": lambda j, n: jnp.maximum(j, 1), "clip": lambda j, n: jnp.clip(j - 1, 0, n - 1), "where": lambda j, n: jnp.where(j > 1, j, 0),
    "turned": lambda j, n: (j + 1) % n, "halved": lambda j, n: j // 2, "either": lambda j, n: jnp.where((j == 1) | (j == 3), 0, j),
    "both": lambda j, n: jnp.where((j >= 1) & (j <= 2), j, n - 1), "negated": lambda j, n: -j, "last": lambda j, n: j - 1, "next": lambda j, n: j + 1,
    "other": lambda j, n: jnp.where(j != 1, j, 2), "squared": lambda j, n: j * j, "odd": lambda j, n: (j & 1), "whole": lambda j, n: j.astype(jnp.int32) + 0,
}  # fmt: skip


def _counters(d: Draw) -> bool:
    """Loops whose turns read and write at places that counters say, in every way that counters are used."""
    k = d.pick("f")
    if k is None or not d.kinds[k][0]:
        return False
    rng, n = d.rng, d.kinds[k][0][0]
    (one, read), (two, write) = rng.choice([*PLACES.items()]), rng.choice([*PLACES.items()])
    first, last, c = rng.randint(-1, 1), rng.choice((n, n, n - 1, n + 1, 3)), rng.choice((1.0, -2.0))
    mode = rng.choice((None, "clip", "drop"))

    def step_by(j: Array, h: Array) -> Array:
        return h * c + j

    name, step = rng.choice(
        [("reads", lambda v: lax.fori_loop(first, last, lambda j, h: h + v[k][read(j, n)], v[k][0] * 0)),
         ("writes", lambda v: lax.fori_loop(first, last, lambda j, h: h.at[write(j, n)].set(c, mode=mode), v[k])),
         ("both", lambda v: lax.fori_loop(first, last, lambda j, h: h.at[write(j, n)].set(v[k][read(j, n)], mode=mode), v[k] * 0)),
         ("own", lambda v: lax.fori_loop(first, last, lambda j, h: h.at[write(j, n)].set(h[read(j, n)] + c), v[k])),
         ("number", lambda v: lax.fori_loop(first, last, lambda j, h: h * c + read(j, n), v[k])),
         ("constants", lambda v: lax.scan(lambda h, x: (h + x, h * x), v[k], jnp.arange(n) * 2 - 1)[1]),
         ("table", lambda v: lax.fori_loop(first, last, lambda j, h: h + jnp.arange(9.0)[read(j, n)], v[k])),
         ("parts", lambda v: lax.fori_loop(first, last, lambda j, h: h + lax.dynamic_slice_in_dim(v[k], read(j, n), 1, 0), v[k][:1] * 0)),
         ("at most", lambda v: lax.while_loop(lambda s: (s[0] <= last) & (s[0] != 7), lambda s: (s[0] + 2, step_by(*s)), (first, v[k]))[1]),
         ("till", lambda v: lax.while_loop(lambda s: ~(s[0] == last), lambda s: (s[0] + 1, step_by(*s)), (first, v[k]))[1]),
         ("at least", lambda v: lax.while_loop(lambda s: (s[0] >= -2) | (s[0] > 5), lambda s: (s[0] - 1, step_by(*s)), (last, v[k]))[1]),
         ("shift", lambda v: lax.fori_loop(0, 2, lambda j, h: jnp.roll(h, 1, 0) + j, v[k])), ("kept", lambda v: lax.scan(lambda h, j: (h + 1, v[k][j]), 0, jnp.arange(n))[1]),
         ("two counters", lambda v: lax.fori_loop(first, last, lambda j, s: (s[0] + 2, s[1] + v[k][s[0]]), (0, v[k][0]))[1]),
         ("stacked", lambda v: lax.scan(lambda h, x: ((h[0] + 1, h[1] + x), (h[0], h[1])), (0, v[k][0]), v[k])[1][1])]
    )  # fmt: skip
    return put(d, f"counter.{name}({k}, {one}, {two}, {first}, {last}, {c}, {mode})", step)


OPERATIONS: Sequence[Callable[[Draw], bool]] = (*(_constants,) * 3, _masks, *(_counters,) * 3)
