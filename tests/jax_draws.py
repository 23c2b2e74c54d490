"""The programs that the JAX fuzzer draws: one to four operators of `jax.numpy` and `lax` with attributes, shapes and
constants from a seed.  What is drawn by the names of `lax`, attribute by attribute: `jax_draws_lax`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Step = Callable[[list[Array]], Array]
FLOATS, INTS = ("float64", "float32"), ("int32", "int64", "int8", "uint8")


FAULTS = (
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    AssertionError,
    StopIteration,
)
"""What a framework, or a defect of ours, may raise."""


@dataclass
class Draw:
    """A program in the making: `arguments` are shapes and types, `steps` functions of all values so far; `words`."""

    rng: random.Random
    arguments: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    kinds: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def argument(self, shape: Sequence[int], dtype: str) -> int:
        """A new argument; its number among the values."""
        self.arguments.append(jax.ShapeDtypeStruct(tuple(shape), dtype))
        self.kinds.insert(len(self.arguments) - 1, (tuple(shape), dtype))
        return len(self.arguments) - 1

    def pick(self, kinds: str) -> int | None:
        """A value whose type is one of f, i, b; late ones more often."""
        found = [k for k, (_, d) in enumerate(self.kinds) if _letter(d) in kinds]
        return None if not found else max(self.rng.choices(found, k=2))


def _letter(dtype: str) -> str:
    return {"f": "f", "i": "i", "u": "i", "b": "b"}[np.dtype(dtype).kind]


UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": jnp.abs, "neg": lambda x: -x, "exp": jnp.exp, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "silu": jax.nn.silu, "softplus": jax.nn.softplus,
    "elu": jax.nn.elu, "sign": jnp.sign, "floor": jnp.floor, "square": jnp.square, "erf": lax.erf, "erfc": lax.erfc,
    "isnan": jnp.isnan, "isfinite": jnp.isfinite, "isinf": jnp.isinf, "leaky": jax.nn.leaky_relu,
    "relu6": jax.nn.relu6, "hardtanh": jax.nn.hard_tanh, "nan_to_num": jnp.nan_to_num, "reciprocal": lambda x: 1 / x,
    "cube": lambda x: x**3, "sqrt_power": lambda x: x**0.5, "inverse_square": lambda x: x**-2.0,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False), "gelu": jax.nn.gelu, "selu": jax.nn.selu,
    "log_sigmoid": jax.nn.log_sigmoid, "power_of_two": lambda x: 2.0**x, "celu": jax.nn.celu, "ceil": jnp.ceil,
    "round": jnp.round, "trunc": jnp.trunc, "logit": jax.scipy.special.logit, "tan": jnp.tan, "atan": jnp.arctan,
    "half": lambda x: x / 2, "third": lambda x: x / 3, "floor_third": lambda x: jnp.floor(x / 3),
    "one_minus": lambda x: 1 - x, "over": lambda x: 3 / x, "clip": lambda x: jnp.clip(x, -1, 1),
    "clip_low": lambda x: jnp.clip(x, 0.5), "maximum": lambda x: jnp.maximum(x, 0), "minimum": lambda x: jnp.minimum(x, 1),
    "mod": lambda x: x % 3, "fmod": lambda x: jnp.fmod(x, 2), "floordiv": lambda x: x // 2, "mish": jax.nn.mish,
    "precision": lambda x: lax.reduce_precision(x, 5, 10), "xlogx": lambda x: jax.scipy.special.xlogy(x, x),
    "sinc": jnp.sinc, "deg": jnp.deg2rad, "hardswish": jax.nn.hard_swish, "entr": jax.scipy.special.entr,
    "stop": lax.stop_gradient, "signbit": jnp.signbit, "cbrt": jnp.cbrt, "exp2": jnp.exp2, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "log2": jnp.log2, "log10": jnp.log10, "angle": lambda x: jnp.heaviside(x, 0.5),
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": jnp.add, "subtract": jnp.subtract, "multiply": jnp.multiply, "divide": jnp.divide, "maximum": jnp.maximum,
    "minimum": jnp.minimum, "logaddexp": jnp.logaddexp, "fmax": jnp.fmax, "fmin": jnp.fmin, "pow": lambda a, b: a**b,
    "mod": lambda a, b: a % b, "floordiv": lambda a, b: a // b, "rem": lambda a, b: lax.rem(a, b),
    "hypot": jnp.hypot, "copysign": jnp.copysign, "atan2": jnp.arctan2, "xlogy": jax.scipy.special.xlogy,
    "where_self": lambda a, b: jnp.where(a > b, a, b), "where_nan": lambda a, b: jnp.where(b > 0, a, jnp.nan),
    "where_inf": lambda a, b: jnp.where(b > 0, a, -jnp.inf), "squared": lambda a, b: (a - b) ** 2,
    "clip_two": lambda a, b: jnp.clip(a, b, b + 1), "clamp": lambda a, b: lax.clamp(b, a, a * 2),
}  # fmt: skip
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip
REDUCE: dict[str, Callable[..., Array]] = {
    "sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min, "var": jnp.var, "std": jnp.std, "prod": jnp.prod,
    "logsumexp": jax.nn.logsumexp, "nansum": jnp.nansum, "nanmax": jnp.nanmax, "argmax": jnp.argmax,
    "argmin": jnp.argmin, "any": jnp.any, "all": jnp.all, "nanmean": jnp.nanmean, "ptp": jnp.ptp,
    "count_nonzero": jnp.count_nonzero, "median": jnp.median,
}  # fmt: skip
ALONG: dict[str, Callable[..., Array]] = {
    "softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax, "cumsum": jnp.cumsum, "cumprod": jnp.cumprod,
    "cummax": lambda x, axis: lax.cummax(x, axis), "cummin": lambda x, axis: lax.cummin(x, axis),
    "cumlogsumexp": lambda x, axis: lax.cumlogsumexp(x, axis), "flip": jnp.flip, "sort": jnp.sort,
    "argsort": jnp.argsort, "standardize": jax.nn.standardize, "roll": lambda x, axis: jnp.roll(x, 1, axis),
    "cumsum_reverse": lambda x, axis: lax.cumsum(x, axis, reverse=True), "diff": lambda x, axis: jnp.diff(x, axis=axis),
    "glu": lambda x, axis: jax.nn.glu(x, axis), "normalise": lambda x, axis: x / jnp.linalg.norm(x, axis=axis, keepdims=True),
}  # fmt: skip
REGIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": lax.add, "max": lax.max, "min": lax.min, "mul": lax.mul, "logaddexp": jnp.logaddexp,
    "second": lambda a, b: b, "swapped": lambda a, b: lax.add(b, a), "double": lambda a, b: lax.add(a, a),
    "max_abs": lambda a, b: lax.max(lax.abs(a), lax.abs(b)), "difference": lambda a, b: lax.sub(a, b),
    "add_one": lambda a, b: a + b + 1, "negated": lambda a, b: -lax.max(-a, -b),
}  # fmt: skip


def put(d: Draw, word: str, step: Step) -> bool:
    """One more step, if JAX takes it."""
    try:
        made = jax.eval_shape(lambda *a: run_steps(d, a, [*d.steps, step])[-1], *d.arguments)
    except FAULTS:
        return False
    if not hasattr(made, "shape") or 0 in made.shape or np.prod(made.shape, dtype=int) > 400:
        return False
    try:
        _letter(str(made.dtype))
    except (KeyError, TypeError):
        return False
    d.steps.append(step)
    d.words.append(word)
    d.kinds.append((tuple(made.shape), str(made.dtype)))
    return True


def run_steps(d: Draw, given: Sequence[Array], steps: Sequence[Step]) -> list[Array]:
    """All values of a program."""
    values = list(given)
    for step in steps:
        values.append(step(values))
    return values


def _unary(d: Draw) -> bool:
    k, (name, f) = d.pick("f" if d.rng.random() < 0.8 else "fib"), d.rng.choice([*UNARY.items()])
    return k is not None and put(d, f"{name}({k})", lambda v: f(v[k]))


def _binary(d: Draw) -> bool:
    kinds = d.rng.choice(("f", "f", "i", "fi", "fib"))
    a, b, (name, f) = d.pick(kinds), d.pick(kinds), d.rng.choice([*BINARY.items(), *COMPARE.items()])
    return a is not None and b is not None and put(d, f"{name}({a}, {b})", lambda v: f(v[a], v[b]))


def _number(d: Draw) -> bool:
    k = d.pick("fi")
    c = d.rng.choice((0, 1, -1, 2, 3, 0.5, -0.0, 0.1, 7, 1e-3))
    (name, f), turned = d.rng.choice([*BINARY.items(), *COMPARE.items()]), d.rng.random() < 0.4
    return k is not None and put(
        d, f"{name}({'number' if turned else k}, {k if turned else 'number'}, {c})",
        lambda v: f(jnp.asarray(c, v[k].dtype), v[k]) if turned else f(v[k], c),
    )  # fmt: skip


def _bits(d: Draw) -> bool:
    a, b = d.pick("ib"), d.pick("ib")
    name, f = d.rng.choice(
        [("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y),
         ("not", lambda x, y: ~x), ("left", lambda x, y: x << y), ("right", lambda x, y: x >> y),
         ("logical_and", jnp.logical_and), ("logical_xor", jnp.logical_xor)]
    )  # fmt: skip
    return a is not None and b is not None and put(d, f"{name}({a}, {b})", lambda v: f(v[a], v[b]))


def _cast(d: Draw) -> bool:
    k, to = d.pick("fib"), d.rng.choice((*FLOATS, *INTS, "bool"))
    return k is not None and put(d, f"astype({k}, {to})", lambda v: v[k].astype(to))


def _where(d: Draw) -> bool:
    p, a, b = d.pick("b" if d.rng.random() < 0.8 else "bif"), d.pick("fib"), d.pick("fib")
    if p is None or a is None or b is None:
        return False
    fill = d.rng.choice((None, jnp.nan, -jnp.inf, 0.0, 1.0, -1e9))
    if fill is None:
        return put(d, f"where({p}, {a}, {b})", lambda v: jnp.where(v[p], v[a], v[b]))
    if d.rng.random() < 0.5:
        return put(d, f"where({p}, {fill}, {a})", lambda v: jnp.where(v[p], fill, v[a]))
    return put(d, f"where({p}, {a}, {fill})", lambda v: jnp.where(v[p], v[a], fill))


def dimension(d: Draw, k: int) -> int | None:
    """One of its dimensions; None if it has none."""
    rank = len(d.kinds[k][0])
    return None if not rank else d.rng.randrange(rank)


def _reduced(d: Draw) -> bool:
    k = d.pick("fib")
    if k is None:
        return False
    axis, (name, f), keep = d.rng.choice((None, dimension(d, k))), d.rng.choice([*REDUCE.items()]), d.rng.random() < 0.3
    options = {"keepdims": True} if keep else {}
    return put(d, f"{name}({k}, {axis}, {options})", lambda v: f(v[k], axis=axis, **options))


def _along(d: Draw) -> bool:
    k = d.pick("f" if d.rng.random() < 0.8 else "fib")
    axis, (name, f) = None if k is None else dimension(d, k), d.rng.choice([*ALONG.items()])
    return k is not None and axis is not None and put(d, f"{name}({k}, {axis})", lambda v: f(v[k], axis=axis))


def _region(d: Draw) -> bool:
    k, (name, f) = d.pick("fi"), d.rng.choice([*REGIONS.items()])
    axis = None if k is None else dimension(d, k)
    if k is None or axis is None:
        return False
    first = d.rng.choice((0, 1, -5, 3, -np.inf, np.inf))
    shape, dtype = d.kinds[k]
    if not np.isfinite(first) and _letter(dtype) == "i":
        first = np.iinfo(dtype).max if first > 0 else np.iinfo(dtype).min
    if first < 0 and dtype.startswith("u"):
        first = 0
    if d.rng.random() < 0.5:
        return put(
            d, f"reduce({k}, {first}, {name}, {axis})", lambda v: lax.reduce(v[k], np.asarray(first, dtype), f, (axis,))
        )
    sizes = [d.rng.randint(1, n) for n in shape]
    strides = [d.rng.choice((1, 1, 2)) for _ in shape]
    padding = d.rng.choice(("VALID", "SAME", [(d.rng.randint(0, 1), d.rng.randint(0, 1)) for _ in shape]))
    wide = d.rng.choice((None, None, [d.rng.choice((1, 2)) for _ in shape]))
    base = d.rng.choice((None, None, None, [d.rng.choice((1, 2)) for _ in shape]))
    return put(
        d, f"reduce_window({k}, {first}, {name}, {sizes}, {strides}, {padding}, {base}, {wide})",
        lambda v: lax.reduce_window(
            v[k], np.asarray(first, dtype), f, sizes, strides, padding, base_dilation=base, window_dilation=wide
        ),
    )  # fmt: skip


def _indexed(d: Draw) -> bool:
    k, i = d.pick("fib"), d.pick("i")
    axis = None if k is None else dimension(d, k)
    if k is None or i is None or axis is None:
        return False
    mode = d.rng.choice((None, "clip", "fill", "wrap", "promise_in_bounds"))
    if mode == "promise_in_bounds":
        mode = "clip"
    way = d.rng.randrange(9)
    n = d.kinds[k][0][axis]
    at = d.rng.randint(-n - 1, n + 1)
    if way == 0:
        return put(d, f"take({k}, {i}, {axis}, {mode})", lambda v: jnp.take(v[k], v[i], axis=axis, mode=mode))
    if way == 1:
        return put(d, f"{k}[{i}]", lambda v: v[k][v[i]])
    if way == 2:
        return put(d, f"{k}[..., {i}]", lambda v: v[k][..., v[i]])
    if way == 3:
        return put(d, f"{k}[{i}, {i}]", lambda v: v[k][v[i], v[i]])
    if way == 4:
        return put(
            d, f"take_along_axis({k}, {i}, {axis}, {mode})",
            lambda v: jnp.take_along_axis(
                v[k], jnp.broadcast_to(v[i].reshape(-1)[:1].reshape([1] * v[k].ndim), [1 if a == axis else m for a, m in enumerate(v[k].shape)]),
                axis, mode=mode),
        )  # fmt: skip
    if way == 5:
        return put(
            d, f"dynamic_index({k}, {i}, {axis})",
            lambda v: lax.dynamic_index_indimension(v[k], v[i].reshape(-1)[0], axis, keepdims=False),
        )  # fmt: skip
    if way == 6:
        size = d.rng.randint(1, n)
        return put(
            d,
            f"dynamic_slice({k}, {at}, {size}, {axis})",
            lambda v: lax.dynamic_slice_indimension(v[k], at, size, axis),
        )
    if way == 7:
        return put(
            d, f"{k}.at[{i}].get({mode}, fill 5)", lambda v: v[k].at[v[i]].get(mode=mode or "fill", fill_value=5)
        )
    return put(d, f"one_hot({i})", lambda v: jax.nn.one_hot(v[i], n))


def _written(d: Draw) -> bool:
    k, b = d.pick("fi"), d.pick("fi")
    if k is None or b is None or not d.kinds[k][0]:
        return False
    n, at = d.kinds[k][0][0], d.rng.randint(-7, 7)
    how, mode = (
        d.rng.choice(("set", "add", "multiply", "max", "min", "apply")),
        d.rng.choice((None, "clip", "drop", "fill")),
    )
    way = d.rng.randrange(6)
    c = d.rng.choice((1, 2.5, -1))
    if way == 0:
        return put(
            d, f"{k}.at[{at}].{how}({c}, {mode})",
            lambda v: v[k].at[at].apply(lambda x: x * 2, mode=mode) if how == "apply" else getattr(v[k].at[at], how)(c, mode=mode),
        )  # fmt: skip
    if way == 1:
        cut = slice(*sorted((d.rng.randint(-n, n), d.rng.randint(-n, n))))
        return put(d, f"{k}.at[{cut}].set({c})", lambda v: v[k].at[cut].set(c))
    if way == 2:
        return put(d, f"{k}.at[..., {at}].set({b}, {mode})", lambda v: v[k].at[..., at].set(v[b], mode=mode))
    if way == 3:
        return put(d, f"{k}.at[[{at}]].{how}({c})", lambda v: v[k].at[jnp.array([at])].set(c, mode=mode))
    if way == 4:
        return put(
            d, f"dynamic_update({k}, {at})",
            lambda v: lax.dynamic_update_slice_indimension(v[k], v[k][:1] * 0 + jnp.asarray(1, v[k].dtype), at, 0),
        )  # fmt: skip
    i = d.pick("i")
    return i is not None and put(
        d, f"{k}.at[{i}].{how}({c})", lambda v: getattr(v[k].at[v[i]], how if how != "apply" else "set")(c)
    )


def _shaped(d: Draw) -> bool:
    k = d.pick("fib")
    if k is None:
        return False
    shape, _ = d.kinds[k]
    rank, rng = len(shape), d.rng
    way = rng.randrange(14)
    if way == 0:
        order = rng.sample(range(rank), rank)
        return put(d, f"transpose({k}, {order})", lambda v: v[k].transpose(order))
    if way == 1:
        return put(d, f"ravel({k})", lambda v: v[k].ravel())
    if way == 2 and rank > 1:
        return put(d, f"merge({k})", lambda v: v[k].reshape(-1, v[k].shape[-1]))
    if way == 3:
        return put(d, f"{k}[::2]", lambda v: v[k][::2])
    if way == 4:
        return put(d, f"{k}[::-1]", lambda v: v[k][::-1])
    if way == 5:
        width = [(rng.randint(0, 2), rng.randint(0, 2)) for _ in shape]
        mode = rng.choice(("constant", "constant", "edge", "wrap", "reflect"))
        return put(d, f"pad({k}, {width}, {mode})", lambda v: jnp.pad(v[k], width, mode))
    if way == 6:
        config = [(rng.randint(-1, 2), rng.randint(-1, 2), rng.choice((0, 0, 1))) for _ in shape]
        c = rng.choice((0.0, 1.0, -2.0, np.inf, np.nan))
        return put(d, f"lax.pad({k}, {config}, {c})", lambda v: lax.pad(v[k], jnp.asarray(c, v[k].dtype), config))
    if way == 7:
        other = d.pick("fib")
        axis = dimension(d, k)
        return axis is not None and put(
            d, f"concatenate({k}, {other}, {axis})", lambda v: jnp.concatenate([v[k], v[other]], axis)
        )
    if way == 8:
        other = d.pick("fib")
        return put(d, f"stack({k}, {other})", lambda v: jnp.stack([v[k], v[other]]))
    if way == 9:
        return put(d, f"tile({k})", lambda v: jnp.tile(v[k], 2))
    if way == 10:
        return put(d, f"repeat({k})", lambda v: jnp.repeat(v[k], 2, 0))
    if way == 11:
        return put(d, f"tril({k})", lambda v: jnp.tril(v[k], rng.randint(-1, 1) * 0))
    if way == 12:
        return put(d, f"broadcast({k})", lambda v: jnp.broadcast_to(v[k], (2, *v[k].shape)))
    axis = dimension(d, k)
    many = rng.randint(1, 3)
    which = rng.randrange(2)
    return axis is not None and put(
        d, f"top_k({k}, {many})[{which}]", lambda v: lax.top_k(_ordinary(v[k]), many)[which]
    )


def _ordinary(x: Array) -> Array:
    """Without NaN and -0, whose places in the order hang on the sign of NaN, which the hardware chooses."""
    return jnp.where(jnp.isnan(x), 0, x) + 0 if jnp.issubdtype(x.dtype, jnp.floating) else x


def _product(d: Draw) -> bool:
    a, b = d.pick("f" if d.rng.random() < 0.8 else "fib"), d.pick("f" if d.rng.random() < 0.8 else "fib")
    if a is None or b is None:
        return False
    name, f = d.rng.choice(
        [("matmul", lambda x, y: x @ y), ("matmul_t", lambda x, y: x @ y.T), ("outer", jnp.outer), ("inner", jnp.inner),
         ("tensordot", lambda x, y: jnp.tensordot(x, y, 1)), ("kron", jnp.kron), ("vdot", jnp.vdot),
         ("self", lambda x, y: x.T @ x), ("convolve", lambda x, y: jnp.convolve(x, y, "same")),
         ("batched", lambda x, y: jnp.einsum("i...,i...->i", x, y)), ("cross", lambda x, y: jnp.einsum("ij,kj->ik", x, y))]
    )  # fmt: skip
    return put(d, f"{name}({a}, {b})", lambda v: f(v[a], v[b]))


def _loop(d: Draw) -> bool:
    k = d.pick("f")
    if k is None or not d.kinds[k][0]:
        return False
    c, way, turns = d.rng.choice((0.5, 1.0, -1.0)), d.rng.randrange(8), d.rng.randint(1, 4)
    if way == 0:
        return put(
            d, f"scan_sum({k})", lambda v: lax.scan(lambda h, x: (h * c + x, h), jnp.zeros_like(v[k][0]), v[k])[1]
        )
    if way == 1:
        return put(
            d,
            f"scan_max({k})",
            lambda v: lax.scan(lambda h, x: (jnp.maximum(h, x),) * 2, jnp.zeros_like(v[k][0]), v[k], reverse=True)[1],
        )
    if way == 2:
        return put(d, f"fori({k}, {turns})", lambda v: lax.fori_loop(0, turns, lambda i, x: jnp.tanh(x) + c, v[k]))
    if way == 3:
        return put(d, f"fori_count({k}, {turns})", lambda v: lax.fori_loop(0, turns, lambda i, x: x * i + c, v[k]))
    if way == 4:
        return put(
            d,
            f"fori_write({k}, {turns})",
            lambda v: lax.fori_loop(0, v[k].shape[0], lambda i, x: x.at[i].set(x[i] * 2), v[k]),
        )
    if way == 5:
        return put(d, f"map({k})", lambda v: lax.map(lambda x: jnp.exp(-x * x), v[k]))
    if way == 6:
        return put(d, f"cond({k})", lambda v: lax.cond(v[k].sum() > 0, lambda x: x, lambda x: -x, v[k]))
    return put(d, f"scan_last({k})", lambda v: lax.scan(lambda h, x: (h + x, None), jnp.ones_like(v[k][0]), v[k])[0])


def _made(d: Draw) -> bool:
    k = d.pick("f")
    if k is None:
        return False
    name, f = d.rng.choice(
        [("arange", lambda x: x + jnp.arange(x.shape[-1], dtype=x.dtype)), ("linspace", lambda x: x * jnp.linspace(0, 1, x.shape[-1])),
         ("iota", lambda x: x + lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)), ("eye", lambda x: x + jnp.eye(x.shape[-1])),
         ("full", lambda x: jnp.full_like(x, jnp.nan)), ("mask", lambda x: jnp.where(jnp.tril(jnp.ones((x.shape[-2], x.shape[-1]), bool)), x, -jnp.inf)),
         ("attention", lambda x: jax.nn.softmax(x @ x.T) @ x), ("norm", lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)),
         ("causal", lambda x: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((x.shape[0],) * 2, bool)), x @ x.T, -jnp.inf)) @ x),
         ("cross_entropy", lambda x: -jnp.take_along_axis(jax.nn.log_softmax(x), jnp.zeros((x.shape[0], 1), jnp.int32), -1).mean()),
         ("constant", lambda x: x * jnp.asarray(np.random.default_rng(0).standard_normal(x.shape)))]
    )  # fmt: skip
    return put(d, f"{name}({k})", lambda v: f(v[k]))


OPERATIONS: Sequence[Callable[[Draw], bool]] = (
    *(_unary,) * 4, *(_binary,) * 4, *(_number,) * 2, _bits, *(_cast,) * 2, *(_where,) * 2, *(_reduced,) * 3,
    *(_along,) * 2, *(_region,) * 2, *(_indexed,) * 4, *(_written,) * 2, *(_shaped,) * 3, _product, _loop, _made,
)  # fmt: skip
