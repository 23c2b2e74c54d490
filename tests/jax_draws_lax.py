"""The programs that the JAX fuzzer draws by the names of `lax`: every attribute of convolutions, products, gathers,
scatters, windows, sorts and parts, every other element-wise operator, loops and branches of all shapes, and derivatives
and batches of what was drawn before, which make operators that nobody writes by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax_draws import Array, Draw, Step, dimension, put, run_steps

ELEMENTWISE: dict[str, Callable[[Array], Array]] = {
    "logistic": lax.logistic, "ceil": lax.ceil, "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), "is_finite": lax.is_finite, "tan": lax.tan,
    "asin": lax.asin, "acos": lax.acos, "atan": lax.atan, "sinh": lax.sinh, "cosh": lax.cosh, "asinh": lax.asinh,
    "acosh": lax.acosh, "atanh": lax.atanh, "cbrt": lax.cbrt, "erf_inv": lax.erf_inv, "lgamma": lax.lgamma,
    "digamma": lax.digamma, "exp2": lax.exp2, "log1p": lax.log1p, "erf": lax.erf, "erfc": lax.erfc, "cos": lax.cos,
    "sin": lax.sin, "sign": lax.sign, "floor": lax.floor, "barrier": lax.optimization_barrier, "not": lax.bitwise_not,
    "precision": lambda x: lax.reduce_precision(x, 8, 7), "powers": lambda x: lax.integer_pow(x, 3), "squared": lax.square,
    "inverse": lambda x: lax.integer_pow(x, -2), "count": lax.population_count, "zeros": lax.clz, "root": lax.rsqrt,
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.int32), "half": lambda x: x.astype(jnp.float16),
    "brain": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), "short": lambda x: x.astype(jnp.int16) * 3,
    "wide": lambda x: x.astype(jnp.uint32), "byte": lambda x: x.astype(jnp.int8), "truth": lambda x: x.astype(bool),
    "lower bytes": lambda x: (x * 100).astype(jnp.int8), "unsigned": lambda x: (x * 50).astype(jnp.uint8),
    "nth": lambda x: x ** jnp.int32(2), "exponents": lambda x: x ** jnp.arange(x.shape[-1], dtype=x.dtype),
    "negative": lax.neg, "absolute": lax.abs, "minus": lambda x: -x - 1, "noise": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "complex": lambda x: (x + 1j * x).real, "step": lambda x: jnp.select([x < 0, x < 1], [x, x * 2], -x),
    "pieces": lambda x: jnp.piecewise(x, [x < 0], [lambda y: -y, lambda y: y * 2]), "ids": lambda x: jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0])),
    "searched": lambda x: jnp.searchsorted(jnp.array([-1.0, 0.0, 0.0, 1.0]), x), "interp": lambda x: jnp.interp(x, jnp.arange(3.0), jnp.array([1.0, 0, 2])),
    "polynomial": lambda x: jnp.polyval(jnp.array([1.0, -2.0, 0.5]), x), "select": lambda x: lax.select_n((x > 0).astype(jnp.int32), x, x * 2),
    "three": lambda x: lax.select_n(jnp.clip(x, 0, 2).astype(jnp.int32), x, x * 2, -x), "nan": lambda x: jnp.where(jnp.isnan(x), 0, x),
}  # fmt: skip
PAIRS: dict[str, Callable[[Array, Array], Array]] = {
    "div": lax.div, "rem": lax.rem, "pow": lax.pow, "atan2": lax.atan2, "max": lax.max, "min": lax.min, "sub": lax.sub,
    "left": lax.shift_left, "right": lax.shift_right_arithmetic, "logical": lax.shift_right_logical, "xor": lax.bitwise_xor,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "after": lax.nextafter, "ge": lax.ge, "ne": lax.ne, "floor": jnp.floor_divide,
    "mod": jnp.mod, "divmod": lambda a, b: jnp.divmod(a, b)[1], "ldexp": lambda a, b: jnp.ldexp(a, 2) + b,
    "gcd": jnp.gcd, "isclose": jnp.isclose, "logaddexp2": jnp.logaddexp2, "cross": lambda a, b: a * b - b * a,
    "norm": lambda a, b: a / (jnp.abs(b) + jnp.finfo(a.dtype).eps), "select": lambda a, b: lax.select(a > b, a, b),
    "clamp": lambda a, b: lax.clamp(a, b, a + 1), "clamp numbers": lambda a, b: lax.clamp(jnp.asarray(-1, a.dtype), a, jnp.asarray(0, a.dtype)),
}  # fmt: skip
RUNS: dict[str, Callable[..., Array]] = {
    "cumsum": lax.cumsum, "cumprod": lax.cumprod, "cummax": lax.cummax, "cummin": lax.cummin, "cumlogsumexp": lax.cumlogsumexp,
}  # fmt: skip
OVER: dict[str, Callable[..., Array]] = {
    "sum": lambda x, axes: lax.reduce(x, np.zeros((), x.dtype), lax.add, axes), "max": lambda x, axes: jnp.max(x, axes, initial=0),
    "masked": lambda x, axes: jnp.sum(x, axes, where=x > 0), "masked max": lambda x, axes: jnp.max(x, axes, where=x < 1, initial=-2),
    "whole": lambda x, axes: jnp.sum(x, axes, dtype=jnp.int32), "mean whole": lambda x, axes: jnp.mean(x, axes, where=x > 0),
    "all": jnp.all, "any": jnp.any, "xor": lambda x, axes: lax.reduce(x > 0, False, lax.bitwise_xor, axes),
    "and": lambda x, axes: lax.reduce(x > 0, True, lax.bitwise_and, axes), "or bits": lambda x, axes: lax.reduce(x.astype(jnp.int32), np.int32(0), lax.bitwise_or, axes),
    "norm": lambda x, axes: jnp.linalg.norm(x.reshape(-1)), "logsumexp": lambda x, axes: jax.nn.logsumexp(x, axes, b=2.0),
    "weights": lambda x, axes: jax.nn.logsumexp(x, axes, return_sign=True)[1], "average": lambda x, axes: jnp.average(x, axes[0], weights=jnp.arange(x.shape[axes[0]])),
    "softmax": lambda x, axes: jax.nn.softmax(x, axes, where=x > -1, initial=-jnp.inf), "softmax over": jax.nn.softmax,
    "log_softmax over": jax.nn.log_softmax, "argmax": lambda x, axes: lax.argmax(x, axes[0], jnp.int32), "quantile": lambda x, axes: jnp.quantile(x, 0.5, axes[0]),
    "two": lambda x, axes: lax.reduce((x, x * 2), (np.zeros((), x.dtype),) * 2, lambda a, b: (lax.add(a[0], b[0]), lax.max(a[1], b[1])), axes)[1],
    "variance": lambda x, axes: jnp.var(x, axes, ddof=1), "prod": jnp.prod, "trace": lambda x, axes: jnp.trace(x),
    "precision": lambda x, axes: jnp.sum(x, axes, dtype=jnp.float32), "min": lambda x, axes: jnp.min(x, axes, keepdims=True),
}  # fmt: skip


def _fresh(
    d: Draw, word: str, kinds: Sequence[tuple[Sequence[int], str]], step: Callable[[list[Array]], Array]
) -> bool:
    """A first operator, of arguments of its own; `step` takes those alone."""
    if d.steps:
        return False
    arguments, before = list(d.arguments), list(d.kinds)
    at = [d.argument(shape, dtype) for shape, dtype in kinds]
    if put(d, f"{word} {[tuple(s) for s, _ in kinds]}", lambda v: step([v[k] for k in at])):
        return True
    d.arguments, d.kinds = arguments, before
    return False


def _elementwise(d: Draw) -> bool:
    k, (name, f) = d.pick("fi" if d.rng.random() < 0.9 else "fib"), d.rng.choice([*ELEMENTWISE.items()])
    return k is not None and put(d, f"lax.{name}({k})", lambda v: f(v[k]))


def _pairs(d: Draw) -> bool:
    kinds = d.rng.choice(("f", "i", "i", "fib"))
    a, b, (name, f) = d.pick(kinds), d.pick(kinds), d.rng.choice([*PAIRS.items()])
    number = d.rng.choice((None, None, 1, 2, -3, 7))
    if a is None or b is None:
        return False
    if number is not None:
        turned = d.rng.random() < 0.4
        return put(
            d, f"lax.{name}({a}, {number}, {turned})",
            lambda v: f(jnp.full_like(v[a], number), v[a]) if turned else f(v[a], jnp.full_like(v[a], number)),
        )  # fmt: skip
    return put(d, f"lax.{name}({a}, {b})", lambda v: f(v[a], v[b].astype(v[a].dtype)))


def _runs(d: Draw) -> bool:
    k, (name, f), reverse = d.pick("fi"), d.rng.choice([*RUNS.items()]), d.rng.random() < 0.5
    axis = None if k is None else dimension(d, k)
    return axis is not None and put(
        d, f"lax.{name}({k}, {axis}, {reverse})", lambda v: f(v[k], axis=axis, reverse=reverse)
    )


def _over(d: Draw) -> bool:
    k, (name, f) = d.pick("f" if d.rng.random() < 0.7 else "fib"), d.rng.choice([*OVER.items()])
    if k is None or not (rank := len(d.kinds[k][0])):
        return False
    axes = tuple(d.rng.sample(range(rank), d.rng.randint(1, rank)))
    return put(d, f"reduced.{name}({k}, {axes})", lambda v: f(v[k], axes))


def _convolution(d: Draw) -> bool:
    """Every attribute of a convolution; layouts in any order."""
    rng, rank = d.rng, d.rng.choice((1, 1, 2, 2, 3))
    group = rng.choice((1, 1, 2, 3))
    batches = rng.choice((1, 1, 1, 1, 2))
    each, out = rng.choice((1, 1, 2)), rng.choice((1, 2)) * group * batches
    sizes = {"n": rng.choice((1, 2)) * batches, "c": each * group}
    space = [rng.randint(1, 5) for _ in range(rank)]
    taps = [rng.randint(1, 3) for _ in range(rank)]
    orders = [rng.sample(range(rank + 2), rank + 2) for _ in range(3)]
    x, w = [sizes["n"], sizes["c"], *space], [out, each, *taps]
    specs = lax.ConvDimensionNumbers(*(tuple(o) for o in orders))
    shapes = []
    for dims, order in zip((x, w), orders, strict=False):
        shape = [0] * (rank + 2)
        for n, at in zip(dims, order, strict=True):
            shape[at] = n
        shapes.append(shape)
    stride = [rng.choice((1, 1, 2)) for _ in range(rank)]
    edges: Any = rng.choice(("SAME", "VALID", [(rng.randint(-1, 2), rng.randint(-1, 2)) for _ in range(rank)]))
    left = [rng.choice((1, 1, 1, 2)) for _ in range(rank)] if rng.random() < 0.3 else None
    right = [rng.choice((1, 1, 2)) for _ in range(rank)]
    dtype = rng.choice(("float64", "float64", "float32", "int32"))
    word = f"convolution({specs}, {stride}, {edges}, {left}, {right}, {group}, {batches})"
    return _fresh(
        d, word, [(s, dtype) for s in shapes],
        lambda v: lax.conv_general_dilated(
            v[0], v[1], stride, edges, left, right, specs, feature_group_count=group, batch_group_count=batches
        ),
    )  # fmt: skip


def _transposed(d: Draw) -> bool:
    rng = d.rng
    stride, taps, edges = [rng.choice((1, 2))], rng.randint(1, 3), rng.choice(("SAME", "VALID"))
    kernel = rng.random() < 0.5
    return _fresh(
        d, f"conv_transpose({stride}, {edges}, {kernel})", [((2, rng.randint(1, 4), 2), "float64"), ((taps, 2, 2), "float64")],
        lambda v: lax.conv_transpose(v[0], v[1], stride, edges, dimension_numbers=("NHC", "HIO", "NHC"), transpose_kernel=kernel),
    )  # fmt: skip


def _product(d: Draw) -> bool:
    """Batched and contracted dimensions in any order and number."""
    rng = d.rng
    batch = [rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 1, 1, 2)))]
    gone = [rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((0, 1, 1, 2)))]
    sides = []
    for _ in range(2):
        own = [rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 1, 1, 2)))]
        dims = [*batch, *gone, *own]
        order = rng.sample(range(len(dims)), len(dims))
        sides.append(([dims[k] for k in order], [order.index(k) for k in range(len(dims))]))
    (a, left), (b, right) = sides
    m, n = len(batch), len(batch) + len(gone)
    numbers = ((tuple(left[m:n]), tuple(right[m:n])), (tuple(left[:m]), tuple(right[:m])))
    dtypes = rng.choice(
        (("float64",) * 2, ("float64",) * 2, ("float32",) * 2, ("int32",) * 2, ("float32", "float64"), ("int8",) * 2)
    )
    wanted = rng.choice((None, None, "float64", "int32"))
    return _fresh(
        d, f"dot_general({numbers}, {wanted}, {dtypes})", [(a, dtypes[0]), (b, dtypes[1])],
        lambda v: lax.dot_general(v[0], v[1], numbers, preferred_element_type=wanted),
    )  # fmt: skip


MODES = ("clip", "fill", "promise_in_bounds", None)


def _gather(d: Draw) -> bool:
    """Every attribute of a gather."""
    rng, rank = d.rng, d.rng.choice((1, 2, 2, 3))
    table = [rng.randint(1, 4) for _ in range(rank)]
    batched = rng.sample(range(rank), rng.choice((0, 0, 0, 1))) if rank > 1 else []
    free = [k for k in range(rank) if k not in batched]
    along = rng.sample(free, rng.randint(1, len(free)) if rng.random() < 0.3 else 1)
    sizes = [
        1 if k in batched or (k in along and rng.random() < 0.8) else rng.choice((n, n, rng.randint(1, n)))
        for k, n in enumerate(table)
    ]
    collapsed = sorted(k for k in free if sizes[k] == 1 and rng.random() < 0.8)
    places = [rng.randint(1, 3) for _ in range(rng.choice((0, 1, 1, 2)))]
    at = sorted(rng.sample(range(len(places) + len(batched)), len(batched)))
    ids = list(places)
    for k, where in zip(batched, at, strict=True):
        ids.insert(where, table[k])
    windows = rank - len(collapsed) - len(batched)
    offsets = sorted(rng.sample(range(len(ids) + windows), windows))
    numbers = lax.GatherDimensionNumbers(
        tuple(offsets), tuple(collapsed), tuple(along), tuple(sorted(batched)), tuple(at)
    )
    mode = rng.choice(MODES[:2])
    dtype = rng.choice(("float64", "float32", "int32", "bool"))
    return _fresh(
        d, f"gather({numbers}, {sizes}, {mode})", [(table, dtype), ([*ids, len(along)], rng.choice(("int32", "int64", "uint8")))],
        lambda v: lax.gather(v[0], v[1], numbers, tuple(sizes), mode=mode, fill_value=None if dtype == "bool" else 5),
    )  # fmt: skip


SCATTERS: dict[str, Callable[..., Array]] = {
    "set": lax.scatter, "add": lax.scatter_add, "mul": lax.scatter_mul, "min": lax.scatter_min, "max": lax.scatter_max,
}  # fmt: skip


def _scatter(d: Draw) -> bool:
    """Every attribute of a scatter; places are data or constants, one or several."""
    rng, rank = d.rng, d.rng.choice((1, 2, 2, 3))
    table = [rng.randint(1, 4) for _ in range(rank)]
    along = rng.sample(range(rank), rng.randint(1, rank))
    inserted = sorted(k for k in along if rng.random() < 0.7)
    window = [rng.choice((n, 1, rng.randint(1, n))) for k, n in enumerate(table) if k not in inserted]
    places = [rng.randint(1, 3) for _ in range(rng.choice((0, 0, 0, 1)))]
    at = sorted(rng.sample(range(len(places) + len(window)), len(window)))
    numbers = lax.ScatterDimensionNumbers(tuple(at), tuple(inserted), tuple(along))
    shape, rest, middle = [], iter(places), iter(window)
    for k in range(len(places) + len(window)):
        shape.append(next(middle) if k in at else next(rest))
    name, f = rng.choice([("set", lax.scatter), *SCATTERS.items()])
    mode, dtype = rng.choice(MODES[:2]), rng.choice(("float64", "float32", "int32"))
    known = rng.random() < 0.7
    listed = np.array([rng.randint(-2, 4) for _ in range(int(np.prod(places, dtype=int)) * len(along))]).reshape(
        [*places, len(along)]
    )
    kinds: list[tuple[Sequence[int], str]] = [(table, dtype), (shape, dtype)]
    word = f"scatter.{name}({numbers}, {mode}, {listed.tolist() if known else 'data'})"
    if known:
        return _fresh(d, word, kinds, lambda v: f(v[0], jnp.asarray(listed), v[1], numbers, mode=mode))
    return _fresh(d, word, [*kinds, (listed.shape, "int32")], lambda v: f(v[0], v[2], v[1], numbers, mode=mode))


def _sorted(d: Draw) -> bool:
    k, other = d.pick("fi"), d.pick("fi")
    axis = None if k is None else dimension(d, k)
    if k is None or other is None or axis is None:
        return False
    many, stable, which = d.rng.choice((1, 2)), d.rng.random() < 0.5, d.rng.choice((0, 1))
    return put(
        d, f"lax.sort({k}, {axis}, {many}, {stable})[{which}]",
        lambda v: lax.sort((v[k], v[k] * 2), dimension=axis, num_keys=many, is_stable=stable)[which],
    )  # fmt: skip


def _parts(d: Draw) -> bool:
    """Dynamic parts along several dimensions, at numbers and at data."""
    k, i = d.pick("fib"), d.pick("i")
    if k is None or not (shape := d.kinds[k][0]):
        return False
    rng, sizes = d.rng, [d.rng.randint(1, n) for n in shape]
    at: list[int | None] = [rng.randint(-3, 5) for _ in shape]
    if i is not None and rng.random() < 0.5:
        at = [None if n != s and rng.random() < 0.5 else a for a, n, s in zip(at, shape, sizes, strict=True)]
    write = rng.random() < 0.5
    kind = rng.choice((jnp.int32, jnp.int64, jnp.int8))

    def starts(v: list[Array]) -> list[Array]:
        return [jnp.asarray(a, kind) if a is not None else v[i].reshape(-1)[0].astype(kind) for a in at]  # type: ignore[index]

    if write:
        c = rng.choice((1, -2))
        return put(
            d, f"dynamic_update_slice({k}, {sizes}, {at}, {c})",
            lambda v: lax.dynamic_update_slice(v[k], lax.slice(v[k], [0] * len(shape), sizes) * 0 + jnp.asarray(c).astype(v[k].dtype), starts(v)),
        )  # fmt: skip
    return put(d, f"dynamic_slice({k}, {sizes}, {at})", lambda v: lax.dynamic_slice(v[k], starts(v), sizes))


def _shaped(d: Draw) -> bool:
    k = d.pick("fib")
    if k is None:
        return False
    shape, rng = d.kinds[k][0], d.rng
    rank = len(shape)
    dims = sorted(rng.sample(range(rank + 2), rank))
    wide = [rng.choice((1, 2, 3)) for _ in range(rank + 2)]
    for at, n in zip(dims, shape, strict=True):
        wide[at] = n if n > 1 or rng.random() < 0.5 else rng.choice((1, 3))
    low = [rng.randint(0, n - 1) for n in shape]
    high = [rng.randint(a + 1, n) for a, n in zip(low, shape, strict=True)]
    steps = [rng.choice((1, 1, 2, 3)) for _ in shape]
    order = rng.sample(range(rank), rank)
    axes = tuple(rng.sample(range(rank), rng.randint(0, rank)))
    name, step = rng.choice(
        [("broadcast_in_dim", lambda v: lax.broadcast_in_dim(v[k], wide, dims)), ("rev", lambda v: lax.rev(v[k], axes)),
         ("slice", lambda v: lax.slice(v[k], low, high, steps)), ("reshape order", lambda v: lax.reshape(v[k], (v[k].size,), order)),
         ("three", lambda v: lax.concatenate([v[k], v[k] * 2, v[k]], axes[0])), ("constant behind", lambda v: lax.concatenate([v[k], jnp.ones_like(v[k])], axes[0])),
         ("split", lambda v: jnp.split(v[k], 2, axes[0])[1]), ("array_split", lambda v: jnp.array_split(v[k], 2, axes[0])[0]),
         ("diagonal", lambda v: jnp.diagonal(v[k])), ("diag", lambda v: jnp.diag(v[k])), ("rot90", lambda v: jnp.rot90(v[k])),
         ("swap", lambda v: jnp.swapaxes(v[k], 0, -1)), ("triu", lambda v: jnp.triu(v[k], 1)), ("roll two", lambda v: jnp.roll(v[k], (1, -2), (0, 1))),
         ("meshgrid", lambda v: jnp.meshgrid(v[k], v[k])[1]), ("resize", lambda v: jnp.resize(v[k], (3, 4))), ("nonzero", lambda v: jnp.nonzero(v[k], size=3)[0]),
         ("unique", lambda v: jnp.unique(v[k], size=3)), ("bincount", lambda v: jnp.bincount(v[k], length=4)), ("segments", lambda v: jax.ops.segment_sum(v[k], jnp.arange(v[k].shape[0]) // 2, 3)),
         ("larger", lambda v: jax.image.resize(v[k], [2 * n for n in shape], "nearest")), ("linear", lambda v: jax.image.resize(v[k], [n + 1 for n in shape], "bilinear")),
         ("insert", lambda v: jnp.insert(v[k], 1, 7, axis=0)), ("delete", lambda v: jnp.delete(v[k], 0, axis=0)), ("block", lambda v: jnp.block([[v[k], v[k]]])),
         ("windows", lambda v: jnp.stack([v[k][i : i + 2] for i in range(v[k].shape[0] - 1)])), ("patches", lambda v: lax.conv_general_dilated_patches(v[k][None, None], [2] * rank, [1] * rank, "SAME")),
         ("put_along", lambda v: jnp.put_along_axis(v[k], jnp.zeros((1,) * rank, int), 3, axis=0, inplace=False)), ("fill_diagonal", lambda v: jnp.fill_diagonal(v[k], 4, inplace=False)),
         ("packed", lambda v: jnp.packbits(v[k] > 0)), ("zeros", lambda v: jnp.zeros_like(v[k])), ("empty", lambda v: v[k][:0].sum() + v[k])]
    )  # fmt: skip
    return put(d, f"lax.{name}({k}, {wide}, {dims}, {low}, {high}, {steps}, {order}, {axes})", step)


def _pooled(d: Draw) -> bool:
    """Pools of several operands, of other axes, by their derivatives."""
    rng = d.rng
    shape, stride, edges = [2, rng.randint(2, 5), 2], rng.choice((1, 2)), rng.choice(("SAME", "VALID"))
    size, dtype = (1, rng.randint(1, 3), 1), rng.choice(("float64", "float32", "int32"))
    low = -np.inf if dtype != "int32" else np.iinfo(dtype).min
    name, f = rng.choice(
        [("max", lambda x: lax.reduce_window(x, np.asarray(low, dtype), lax.max, size, (1, stride, 1), edges)),
         ("average", lambda x: lax.reduce_window(x, np.zeros((), dtype), lax.add, size, (1, stride, 1), edges)
          / lax.reduce_window(jnp.ones_like(x), np.zeros((), dtype), lax.add, size, (1, stride, 1), edges)),
         ("two", lambda x: lax.reduce_window((x, x), (np.zeros((), dtype),) * 2, lambda a, b: (lax.add(a[0], b[0]), lax.max(a[1], b[1])), size, (1, stride, 1), edges)[0]),
         ("grad max", lambda x: jax.grad(lambda y: (lax.reduce_window(y, np.asarray(low, dtype), lax.max, size, (1, stride, 1), edges) ** 2).sum())(x)),
         ("grad sum", lambda x: jax.grad(lambda y: (lax.reduce_window(y, np.zeros((), dtype), lax.add, size, (1, stride, 1), edges) ** 2).sum())(x)),
         ("min", lambda x: lax.reduce_window(x, np.asarray(-low if dtype != "int32" else np.iinfo(dtype).max, dtype), lax.min, size, (1, stride, 1), edges))]
    )  # fmt: skip
    return _fresh(d, f"pool.{name}({size}, {stride}, {edges})", [(shape, dtype)], lambda v: f(v[0]))


def _loop(d: Draw) -> bool:
    k, i = d.pick("f" if d.rng.random() < 0.8 else "fi"), d.pick("i")
    if k is None or not d.kinds[k][0]:
        return False
    n, turns, c = d.kinds[k][0][0], d.rng.randint(0, 4), d.rng.choice((1, 2, -1))
    first, last = d.rng.randint(-1, 2), d.rng.randint(1, 5)

    def two(h: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        return (h[1] + x[0], h[0] * c), h[0] + x[1]

    def fibonacci(h: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        return (h[1], h[0] + h[1]), h[0]

    def window(j: Array, s: Array) -> Array:
        return s + lax.dynamic_slice_in_dim(s, j, 1, 0) * c

    name, step = d.rng.choice(
        [("two", lambda v: lax.scan(two, (v[k][0], v[k][-1]), (v[k], v[k][::-1]))[1]), ("two carried", lambda v: lax.scan(two, (v[k][0], v[k][-1]), (v[k], v[k] * 2), reverse=True)[0][1]),
         ("length", lambda v: lax.scan(fibonacci, (v[k], v[k] * c), None, length=turns + 1)[1]), ("unrolled", lambda v: lax.scan(lambda h, x: (h * x, h), v[k][0], v[k], unroll=2)[1]),
         ("number", lambda v: lax.scan(lambda h, x: (h + 1, x * h), 0, v[k])[1]), ("counted", lambda v: lax.scan(lambda h, x: (h + 1, h), jnp.int32(3), v[k])[1]),
         ("from", lambda v: lax.fori_loop(first, last, lambda j, x: x + j, v[k])), ("row", lambda v: lax.fori_loop(first, last, lambda j, x: x + v[k][j], v[k] * 0)),
         ("own row", lambda v: lax.fori_loop(0, n, window, v[k])), ("previous", lambda v: lax.fori_loop(1, n, lambda j, x: x.at[j].set(x[j - 1] + x[j]), v[k])),
         ("every other", lambda v: lax.fori_loop(0, n // 2, lambda j, x: x.at[2 * j].set(c), v[k])), ("reversed", lambda v: lax.fori_loop(0, n, lambda j, x: x.at[n - 1 - j].set(v[k][j]), v[k])),
         ("outside", lambda v: lax.fori_loop(0, n + 2, lambda j, x: x.at[j].set(c), v[k])), ("added", lambda v: lax.fori_loop(0, n, lambda j, x: x.at[j].add(v[k][j]), v[k])),
         ("data turns", lambda v: lax.fori_loop(0, v[i].reshape(-1)[0], lambda j, x: x + 1, v[k])), ("while", lambda v: lax.while_loop(lambda s: s[0] < turns, lambda s: (s[0] + 1, s[1] * 2), (0, v[k]))[1]),
         ("while data", lambda v: lax.while_loop(lambda x: jnp.abs(x).sum() < 10, lambda x: x * 2 + 1, v[k])), ("doubling", lambda v: lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] * 2, s[1] + s[0]), (1, v[k]))[1]),
         ("down", lambda v: lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] * s[0]), (turns, v[k]))[1]), ("swapped", lambda v: lax.fori_loop(0, turns, lambda j, s: (s[1], s[0] + 1), (v[k], v[k] * 2))[0]),
         ("nested", lambda v: lax.fori_loop(0, 2, lambda j, x: lax.fori_loop(0, 3, lambda l, y: y * c + l + j, x), v[k])), ("nested scan", lambda v: lax.scan(lambda h, x: (lax.fori_loop(0, 2, lambda j, y: y + x, h), h), v[k][0], v[k])[1]),
         ("switch", lambda v: lax.switch(v[i].reshape(-1)[0], [lambda x: x, lambda x: -x, lambda x: x * 2], v[k])), ("known switch", lambda v: lax.switch(turns, [lambda x: x, lambda x: -x, lambda x: x * 2], v[k])),
         ("branch", lambda v: lax.cond(v[k].sum() > 0, lambda x: x * 2, lambda x: x - 1, v[k])), ("known branch", lambda v: lax.cond(turns > 1, lambda x: x * 2, lambda x: x - 1, v[k])),
         ("associative", lambda v: lax.associative_scan(jnp.add, v[k])), ("associative product", lambda v: lax.associative_scan(lambda a, b: a * b, v[k], reverse=True)),
         ("mapped", lambda v: lax.map(lambda x: x.sum() + c, v[k])), ("mapped two", lambda v: lax.map(lambda p: p[0] * p[1].sum(), (v[k], v[k]), batch_size=2)),
         ("columns", lambda v: lax.scan(lambda h, x: (h + x, h * x), jnp.zeros_like(v[k][..., 0]), jnp.moveaxis(v[k], -1, 0))[1]),
         ("maximum", lambda v: lax.scan(lambda h, x: (jnp.where(x > h, x, h), x > h), v[k][0], v[k])[1]), ("kept", lambda v: lax.scan(lambda h, x: (h, h + x), v[k][0], v[k])[1])]
    )  # fmt: skip
    return put(d, f"loop.{name}({k}, {turns}, {c}, {first}, {last})", step)


def _derived(d: Draw) -> bool:
    """A derivative, or a batch, of all that was drawn so far."""
    if not d.steps:
        return False
    steps, many, rng = list(d.steps), len(d.arguments), d.rng
    j = rng.choice([k for k, a in enumerate(d.arguments) if a.shape] or [0])

    def of(v: list[Array]) -> Callable[[Array], Array]:
        return lambda x: run_steps(d, [x if k == j else a for k, a in enumerate(v[:many])], steps)[-1]

    def loss(v: list[Array], x: Array) -> Array:
        return (of(v)(x) ** 2).sum()

    ways: list[tuple[str, Step]] = [
        ("grad", lambda v: jax.grad(partial(loss, v))(v[j])), ("checkpoint", lambda v: jax.grad(jax.checkpoint(partial(loss, v)))(v[j])),
        ("vjp", lambda v: jax.vjp(of(v), v[j])[1](jnp.ones_like(of(v)(v[j])))[0]), ("jvp", lambda v: jax.jvp(of(v), (v[j],), (v[j],))[1]),
        ("vmap", lambda v: jax.vmap(of(v))(jnp.stack([v[j], v[j] * 2]))), ("vmap last", lambda v: jax.vmap(of(v), -1, -1)(jnp.stack([v[j], v[j] * 2], -1))),
        ("jit", lambda v: jax.jit(of(v))(v[j])), ("vmap grad", lambda v: jax.vmap(jax.grad(partial(loss, v)))(jnp.stack([v[j], -v[j]]))),
        ("stop", lambda v: jax.grad(lambda x: (of(v)(x) * lax.stop_gradient(of(v)(x))).sum())(v[j])), ("jacobian", lambda v: jax.jacfwd(of(v))(v[j])),
        ("again", lambda v: jax.grad(lambda x: (jax.grad(partial(loss, v))(x) ** 2).sum())(v[j])),
    ]  # fmt: skip
    name, step = rng.choice(ways)
    return put(d, f"{name}({j})", step)


OPERATIONS: Sequence[Callable[[Draw], bool]] = (
    *(_elementwise,) * 3, *(_pairs,) * 2, _runs, *(_over,) * 2, *(_convolution,) * 2, _transposed, *(_product,) * 2,
    *(_gather,) * 3, *(_scatter,) * 2, _sorted, *(_parts,) * 2, *(_shaped,) * 3, _pooled, *(_loop,) * 4, *(_derived,) * 4,
)  # fmt: skip
