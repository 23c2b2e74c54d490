"""A differential fuzzer of the NumPy frontend: small programs are drawn, traced, and run by NumPy and by us on the same
numbers.

    python tests/fuzz_numpy.py --programs 20000 --seed 0 [--seconds 600]

A program is one to five statements with attributes, shapes and constants drawn from a seed, writes in place among
them.  What tracing refuses is counted; what it accepts must compute what NumPy does, on every set of numbers of
`backends.execution.differential`, element types included.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shardproof.backends.execution.differential import compare
from shardproof.models.program.graph import GraphError, UnsupportedOperators
from shardproof.models.sources.building.original import Differs, Original
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.recorder import TraceError
from shardproof.models.sources.numpy.trace import graph_of

Step = Callable[[list[Any]], Any]

UNARY: dict[str, Callable[[Any], Any]] = {
    **{f.__name__: f for f in (
        np.negative, np.exp, np.tanh, np.sqrt, np.log, np.cos, np.sin, np.arctan, np.absolute, np.fabs, np.sign,
        np.floor, np.reciprocal, np.logical_not, np.invert, np.square, np.positive, np.log1p, np.expm1, np.rint,
        np.ceil, np.trunc, np.isnan, np.isfinite, np.cbrt, np.log2, np.exp2)},
    "half": lambda x: x / 2, "third": lambda x: x / 3, "floor third": lambda x: np.floor(x / 3), "over": lambda x: 3 / x,
    "power 0.5": lambda x: x**0.5, "cube": lambda x: x**3, "inverse": lambda x: x**-1.0, "square": lambda x: x**2,
    "two to": lambda x: 2.0**x, "one to": lambda x: 1.0**x, "zero power": lambda x: x**0, "mod": lambda x: x % 3,
    "mod negative": lambda x: x % -2.5, "floordiv": lambda x: x // 2, "clip": lambda x: np.clip(x, -1, 1),
    "clip low": lambda x: x.clip(0.5), "clip crossed": lambda x: np.clip(x, 1, -1), "abs": abs, "copy": lambda x: x.copy(),
    "nan_to_num": np.nan_to_num, "round": np.round, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "zeros": np.zeros_like, "ones": np.ones_like, "full nan": lambda x: np.full_like(x, np.nan),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))), "relu": lambda x: np.maximum(x, 0),
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    f.__name__: f for f in (
        np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmax, np.fmin, np.logical_and,
        np.logical_or, np.bitwise_and, np.bitwise_or, np.equal, np.not_equal, np.less, np.less_equal, np.greater,
        np.greater_equal, np.power, np.remainder, np.floor_divide, np.fmod, np.arctan2, np.bitwise_xor, np.left_shift,
        np.hypot, np.copysign, np.logical_xor)
}  # fmt: skip
REDUCE: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (
        np.sum, np.mean, np.max, np.min, np.any, np.all, np.var, np.std, np.prod, np.argmax, np.nansum, np.ptp)
}  # fmt: skip


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
    arguments: dict[str, ArraySpec] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def argument(self, shape: Sequence[int], dtype: str) -> None:
        """A new argument."""
        self.arguments[f"x{len(self.arguments)}"] = ArraySpec(tuple(shape), dtype)
        self.values.append(np.ones(tuple(shape), dtype))

    def pick(self, kinds: str) -> int | None:
        """A value whose type is one of f, i, b; late ones more often."""
        found = [k for k, v in enumerate(self.values) if np.asarray(v).dtype.kind.replace("u", "i") in kinds]
        return None if not found else max(self.rng.choices(found, k=2))


def _run(given: Sequence[Any], steps: Sequence[Step]) -> list[Any]:
    values = list(given)
    for step in steps:
        values.append(step(values))
    return values


def put(d: Draw, word: str, step: Step) -> bool:
    """One more step, if NumPy takes it."""
    fresh = [np.ones(s.shape, s.dtype) for s in d.arguments.values()]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values = _run(fresh, [*d.steps, step])
        except FAULTS:
            return False
    made = values[-1]
    if (
        not isinstance(made, np.ndarray | np.generic)
        or made.size == 0
        or made.size > 400
        or made.dtype.kind not in "fiub"
    ):
        return False
    d.values[:] = values
    d.steps.append(step)
    d.words.append(word)
    return True


def _unary(d: Draw) -> bool:
    k, (name, f) = d.pick("f" if d.rng.random() < 0.7 else "fib"), d.rng.choice([*UNARY.items()])
    return k is not None and put(d, f"{name}({k})", lambda v: f(v[k]))


def _binary(d: Draw) -> bool:
    kinds = d.rng.choice(("f", "f", "i", "b", "fi", "fib"))
    a, b, (name, f) = d.pick(kinds), d.pick(kinds), d.rng.choice([*BINARY.items()])
    if d.rng.random() < 0.1:
        return a is not None and b is not None and put(d, f"{name}.outer({a}, {b})", lambda v: f.outer(v[a], v[b]))
    return a is not None and b is not None and put(d, f"{name}({a}, {b})", lambda v: f(v[a], v[b]))


def _number(d: Draw) -> bool:
    k = d.pick("fib")
    c = d.rng.choice(
        (0, 1, -1, 2, 3, 0.5, -0.0, 0.1, 7, 1e-3, 49.0, np.inf, np.float32(0.1), np.float64(0.1), np.int64(3), True)
    )
    (name, f), turned = d.rng.choice([*BINARY.items()]), d.rng.random() < 0.4
    if name in ("maximum", "minimum", "fmax", "fmin"):
        c += 0  # which of 0 and -0 is the greater, IEEE leaves open
    return k is not None and put(
        d, f"{name}({k}, {c!r}{', turned' if turned else ''})", lambda v: f(c, v[k]) if turned else f(v[k], c)
    )


def _cast(d: Draw) -> bool:
    k, to = d.pick("fib"), d.rng.choice(("float64", "float32", "int32", "int64", "int8", "uint8", "bool", "float16"))
    return k is not None and put(d, f"astype({k}, {to})", lambda v: v[k].astype(to))


def _where(d: Draw) -> bool:
    p, a, b = d.pick("b" if d.rng.random() < 0.8 else "bif"), d.pick("fib"), d.pick("fib")
    if p is None or a is None or b is None:
        return False
    fill, way = d.rng.choice((np.nan, -np.inf, 0.0, 1, -1e9, True)), d.rng.randrange(3)
    f = (
        lambda v: np.where(v[p], v[a], v[b]), lambda v: np.where(v[p], fill, v[a]), lambda v: np.where(v[p], v[a], fill)
    )[way]  # fmt: skip
    return put(d, f"where({p}, {(a, fill, a)[way]}, {(b, a, fill)[way]})", f)


def _dim(d: Draw, k: int) -> int | None:
    rank = np.ndim(d.values[k])
    return None if not rank else d.rng.randrange(-rank, rank)


def _reduced(d: Draw) -> bool:
    k = d.pick("f" if d.rng.random() < 0.7 else "fib")
    if k is None:
        return False
    axis, (name, f) = d.rng.choice((None, _dim(d, k))), d.rng.choice([*REDUCE.items()])
    options: dict[str, Any] = {"keepdims": True} if d.rng.random() < 0.3 else {}
    if d.rng.random() < 0.15:
        options["dtype"] = d.rng.choice(("float32", "float64", "int32", "int64"))
    if d.rng.random() < 0.1:
        options["ddof"] = 1
    if d.rng.random() < 0.1:
        options["initial"] = 2
    if d.rng.random() < 0.2:
        u = d.rng.choice((np.add, np.maximum, np.minimum, np.fmax, np.fmin, np.logical_or, np.logical_and, np.multiply))
        return put(d, f"{u.__name__}.reduce({k}, {axis}, {options})", lambda v: u.reduce(v[k], axis=axis, **options))
    return put(d, f"{name}({k}, {axis}, {options})", lambda v: f(v[k], axis=axis, **options))


def _along(d: Draw) -> bool:
    k = d.pick("f" if d.rng.random() < 0.7 else "fib")
    axis = None if k is None else _dim(d, k)
    if k is None or axis is None:
        return False
    name, f = d.rng.choice(
        [("cumsum", lambda x: np.cumsum(x, axis)), ("accumulate", lambda x: np.add.accumulate(x, axis)),
         ("maximum.accumulate", lambda x: np.maximum.accumulate(x, axis)), ("flip", lambda x: np.flip(x, axis)),
         ("sort", lambda x: np.sort(x, axis)), ("argsort", lambda x: np.argsort(x, axis)), ("roll", lambda x: np.roll(x, 2, axis)),
         ("diff", lambda x: np.diff(x, axis=axis)), ("repeat", lambda x: np.repeat(x, 2, axis)),
         ("softmax", lambda x: np.exp(x - x.max(axis, keepdims=True)) / np.exp(x - x.max(axis, keepdims=True)).sum(axis, keepdims=True)),
         ("norm", lambda x: (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)),
         ("logsumexp", lambda x: np.log(np.exp(x).sum(axis))), ("windows", lambda x: sliding_window_view(x, 2, axis).sum(-1)),
         ("window max", lambda x: sliding_window_view(np.pad(x, 1), 2, axis).max(-1)),
         ("reduceat", lambda x: np.add.reduceat(x, [0, 1, 1])), ("split", lambda x: np.array_split(x, 2, axis)[0])]
    )  # fmt: skip
    return put(d, f"{name}({k}, {axis})", lambda v: f(v[k]))


def _indexed(d: Draw) -> bool:
    k, i = d.pick("fib"), d.pick("i")
    axis = None if k is None else _dim(d, k)
    if k is None or axis is None:
        return False
    n = d.values[k].shape[axis]
    at, way = d.rng.randint(-n, n - 1), d.rng.randrange(10)
    cut = slice(
        d.rng.choice((None, d.rng.randint(-n, n))),
        d.rng.choice((None, d.rng.randint(-n, n))),
        d.rng.choice((None, 1, 2, -1, -2)),
    )
    listed = [d.rng.randint(-n, n - 1) for _ in range(d.rng.randint(1, 3))]
    m = d.values[k].shape[0]
    first = [d.rng.randint(-m, m - 1) for _ in range(d.rng.randint(1, 3))]
    if way == 0:
        return i is not None and put(d, f"take({k}, {i}, {axis})", lambda v: np.take(v[k], v[i], axis=axis))
    if way == 1:
        return i is not None and put(d, f"{k}[{i}]", lambda v: v[k][v[i]])
    if way == 2:
        return i is not None and put(d, f"{k}[..., {i}]", lambda v: v[k][..., v[i]])
    if way == 3:
        return put(d, f"{k}[{cut}]", lambda v: v[k][cut])
    if way == 4:
        return put(d, f"{k}[..., {cut}]", lambda v: v[k][..., cut])
    if way == 5:
        return put(d, f"take({k}, {listed}, {axis})", lambda v: np.take(v[k], listed, axis=axis))
    if way == 6:
        return put(d, f"{k}[{first}]", lambda v: v[k][first])
    if way == 7:
        return put(d, f"take({k}, {at}, {axis})", lambda v: np.take(v[k], at, axis=axis))
    if way == 8:
        return put(d, f"{k}[..., {at}]", lambda v: v[k][..., min(at, v[k].shape[-1] - 1)])
    mode = d.rng.choice(("clip", "wrap"))
    return i is not None and put(
        d, f"take({k}, {i}, {axis}, {mode})", lambda v: np.take(v[k], v[i], axis=axis, mode=mode)
    )


def _written(d: Draw) -> bool:
    k, b = d.pick("f" if d.rng.random() < 0.8 else "fib"), d.pick("fi")
    if k is None or b is None or not np.ndim(d.values[k]):
        return False
    n, rng = d.values[k].shape[0], d.rng
    at, c = rng.randint(-n, n - 1), rng.choice((1, 2.5, -1, np.nan))
    cut = slice(*sorted((rng.randint(0, n), rng.randint(0, n))))
    u = rng.choice((np.add, np.subtract, np.multiply, np.divide, np.maximum))

    def whole(v: list[Any]) -> Any:
        x = v[k].copy()
        u(x, c, out=x)
        return x

    def part(v: list[Any]) -> Any:
        x = v[k].copy()
        x[cut] = c
        return x

    def added(v: list[Any]) -> Any:
        x = v[k].copy()
        x[at] += c
        return x * 2

    def seen(v: list[Any]) -> Any:
        x = v[k].copy()
        y = x[cut]
        x[at] = c
        return y + 1

    def other(v: list[Any]) -> Any:
        x = v[k].copy()
        x[..., :1] = np.sum(v[b])
        return x

    def own(v: list[Any]) -> Any:
        v[k] *= 2
        return v[k] + 0

    def column(v: list[Any]) -> Any:
        x = np.zeros_like(v[k])
        x.T[at % x.shape[-1]] = c
        return x

    def masked(v: list[Any]) -> Any:
        x = v[k].copy()
        x[x > 0] = c
        return x

    f = rng.choice((whole, part, added, seen, other, own, column, masked))
    return put(d, f"{f.__name__}({k}, {u.__name__}, {at}, {cut}, {c})", f)


def _shaped(d: Draw) -> bool:
    k, other = d.pick("fib"), d.pick("fib")
    if k is None or other is None:
        return False
    shape, rng = np.shape(d.values[k]), d.rng
    order, width = rng.sample(range(len(shape)), len(shape)), [(rng.randint(0, 2), rng.randint(0, 2)) for _ in shape]
    mode, fill = (
        rng.choice(("constant", "constant", "edge", "wrap", "reflect", "symmetric")),
        rng.choice((0, 1.5, np.nan)),
    )
    name, f = rng.choice(
        [("transpose", lambda v: v[k].transpose(order)), ("ravel", lambda v: v[k].ravel()),
         ("merge", lambda v: v[k].reshape(-1, v[k].shape[-1])), ("turned", lambda v: v[k].T.reshape(-1)),
         ("pad", lambda v: np.pad(v[k], width, mode)), ("pad fill", lambda v: np.pad(v[k], width, constant_values=fill)),
         ("concatenate", lambda v: np.concatenate([v[k], v[other]])), ("last", lambda v: np.concatenate([v[k], v[other]], -1)),
         ("stack", lambda v: np.stack([v[k], v[other]], 0)), ("hstack", lambda v: np.hstack([v[k], v[other]])),
         ("tile", lambda v: np.tile(v[k], 2)), ("tril", lambda v: np.tril(v[k])), ("triu", lambda v: np.triu(v[k], 1)),
         ("broadcast", lambda v: np.broadcast_to(v[k], (2, *v[k].shape)) + 0), ("expand", lambda v: v[k][..., None]),
         ("squeeze", lambda v: np.squeeze(v[k])), ("moveaxis", lambda v: np.moveaxis(v[k], 0, -1)),
         ("diagonal", lambda v: np.einsum("ii->i", v[k])), ("trace", lambda v: np.trace(v[k])), ("roll", lambda v: np.roll(v[k], 3))]
    )  # fmt: skip
    return put(d, f"{name}({k}, {other}, {order}, {width}, {mode}, {fill})", f)


def _product(d: Draw) -> bool:
    a, b = d.pick("f" if d.rng.random() < 0.8 else "fib"), d.pick("f" if d.rng.random() < 0.8 else "fib")
    if a is None or b is None:
        return False
    name, f = d.rng.choice(
        [("matmul", lambda x, y: x @ y), ("matmul_t", lambda x, y: x @ y.T), ("outer", np.outer), ("inner", np.inner),
         ("dot", np.dot), ("tensordot", lambda x, y: np.tensordot(x, y, 1)), ("vdot", np.vdot), ("self", lambda x, y: x.T @ x),
         ("rows", lambda x, y: np.einsum("i...,i...->i", x, y)), ("cross", lambda x, y: np.einsum("ij,kj->ik", x, y)),
         ("total", lambda x, y: np.einsum("ij->", x)), ("attention", lambda x, y: np.exp(x @ x.T) @ x)]
    )  # fmt: skip
    return put(d, f"{name}({a}, {b})", lambda v: f(v[a], v[b]))


def _made(d: Draw) -> bool:
    k = d.pick("fi")
    if k is None:
        return False
    name, f = d.rng.choice(
        [("arange", lambda x: x + np.arange(x.shape[-1])), ("linspace", lambda x: x * np.linspace(0, 1, x.shape[-1])),
         ("eye", lambda x: x + np.eye(x.shape[-1])), ("minus zero", lambda x: 1 / (x * 0 + np.full(x.shape, -0.0))),
         ("mask", lambda x: np.where(np.tri(x.shape[-2], x.shape[-1], dtype=bool), x, -np.inf)),
         ("constant", lambda x: x * np.linspace(-1, 2, x.size).reshape(x.shape)), ("nan", lambda x: x * np.array(np.nan)),
         ("nans", lambda x: np.where(x > 0, x, np.full(x.shape, np.nan))), ("small", lambda x: x + np.array([0.0, -0.0])[:1])]
    )  # fmt: skip
    return put(d, f"{name}({k})", lambda v: f(v[k]))


OPERATIONS: Sequence[Callable[[Draw], bool]] = (
    *(_unary,) * 4, *(_binary,) * 4, *(_number,) * 3, *(_cast,) * 2, *(_where,) * 2, *(_reduced,) * 4, *(_along,) * 2,
    *(_indexed,) * 4, *(_written,) * 3, *(_shaped,) * 3, *(_product,) * 2, _made,
)  # fmt: skip


def draw(seed: int) -> Draw:
    """The program of a seed."""
    rng = random.Random(f"numpy {seed}")
    d = Draw(rng)
    rank = rng.choice((0, 1, 1, 2, 2, 2, 3))
    shape = [rng.choice((1, 2, 3, 4, 5)) for _ in range(rank)]
    d.argument(shape, rng.choice(("float64", "float64", "float32", "int32", "int8", "uint8", "bool")))
    for _ in range(rng.choice((0, 1, 1, 2))):
        mine = [n if rng.random() < 0.8 else 1 for n in shape][rng.choice((0, 0, 0, 1)) :]
        d.argument(mine, rng.choice(("float64", "float64", "float32", "int32", "bool")))
    if rng.random() < 0.5:
        d.argument([rng.choice((1, 2, 3)) for _ in range(rng.choice((0, 1, 1, 2)))], "int64")
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        for _ in range(20):
            if rng.choice(OPERATIONS)(d):
                break
    return d


def program(d: Draw) -> Callable[..., Any]:
    """Its function, whose arguments have names."""
    names = ", ".join(d.arguments)
    space: dict[str, Any] = {"run": _run, "steps": d.steps}
    exec(f"def drawn({names}):\n    return run([{names}], steps)[-1]", space)  # noqa: S102  # names of our own
    made: Callable[..., Any] = space["drawn"]
    return made


@dataclass
class Found:
    """Counts, and what differed: seed, words, where."""

    programs: int = 0
    accepted: int = 0
    broken: list[tuple[int, str, str]] = field(default_factory=list)
    wrong: list[tuple[int, str, str]] = field(default_factory=list)


def fuzz(seeds: Sequence[int], found: Found) -> None:
    """The programs of some seeds."""
    for seed in seeds:
        d = draw(seed)
        found.programs += 1
        words, taken = ", ".join(d.words), list[Original]()
        try:
            graph = graph_of(program(d), "drawn", d.arguments, taken.append)
        except (GraphError, UnsupportedOperators, TraceError):
            continue
        except FAULTS as error:
            found.broken.append((seed, words, f"{type(error).__name__}: {str(error)[:300]}"))
            continue
        found.accepted += 1
        try:
            compare(graph, taken[0])
        except Differs as error:
            found.wrong.append((seed, words, str(error)))
        except FAULTS as error:
            found.broken.append((seed, words, f"{type(error).__name__}: {str(error)[:300]}"))
        dtype = str(np.asarray(d.values[-1]).dtype)
        if dtype != graph.tensor(graph.outputs[0]).dtype:
            found.wrong.append((seed, words, f"is {dtype}, ours {graph.tensor(graph.outputs[0]).dtype}"))


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    asked = parser.parse_args()
    found, start = Found(), time.monotonic()
    for seed in range(asked.seed, asked.seed + asked.programs):
        if time.monotonic() - start > asked.seconds:
            break
        fuzz([seed], found)
    print(
        f"{found.programs} programs from seed {asked.seed}: {found.accepted} accepted, {found.programs - found.accepted} "
        f"refused, {len({s for s, *_ in found.wrong})} wrong, {len({s for s, *_ in found.broken})} broken, {time.process_time():.0f} s of processor"
    )
    seen: Counter[int] = Counter()
    for what, rows in (("wrong", found.wrong), ("broken", found.broken)):
        for seed, words, told in rows:
            seen[seed] += 1
            if seen[seed] == 1:
                print(f"  {what} {seed}: {words}: {told}")


if __name__ == "__main__":
    main()
