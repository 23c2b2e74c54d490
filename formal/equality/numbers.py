"""Runs programs of ranks on numbers, beside one another in one process, to find inputs on which they differ.

Every operator of `models.equality.program` in NumPy, in double precision.  Nothing here proves that programs are equal.
`after` is done with all that a step makes: nothing, or a rounding (`Rounding`), which tells how far numbers are apart
that nothing but rounding makes, such as the gradient of a bias of keys, a sum of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.equality.program import KEPT, RankProgram, Step
from ...models.equality.schedule import Meeting, meetings

Array = NDArray[np.generic]
Numbers = Mapping[int, Array]
After = Callable[[Array, str], Array]
"""What is done with all that a step makes, and its element type."""


def same_array(value: Array, dtype: str) -> Array:
    """The value."""
    return value


class Rounding:
    """Changes every number by a part of itself, drawn up to `near`."""

    def __init__(self, near: float, seed: int = 0) -> None:
        self.near, self.rng = near, np.random.default_rng(seed)

    def __call__(self, value: Array, dtype: str) -> Array:
        if not np.issubdtype(value.dtype, np.floating):
            return value
        return np.asarray(value.astype(np.float64) * (1 + self.near * self.rng.uniform(-1, 1, value.shape)))


def run_single(program: RankProgram, given: Numbers, after: After = same_array) -> dict[int, Array]:
    """All tensors of a program without collectives."""
    values = dict(given)
    with np.errstate(all="ignore"):
        for step in program.steps:
            for number, value in zip(step.makes, evaluate(step, [values[i] for i in step.reads]), strict=True):
                values[number] = after(value, program.tensors[number].dtype)
    return values


def run_alone(program: RankProgram, given: Numbers, received: Numbers, after: After = same_array) -> dict[int, Array]:
    """The tensors of one rank that receives these values; without those that it only receives in other shapes."""
    values = {**given, **received}
    with np.errstate(all="ignore"):
        for step in program.steps:
            if step.operator in KEPT or any(i not in values for i in step.reads):
                continue
            for number, value in zip(step.makes, evaluate(step, [values[i] for i in step.reads]), strict=True):
                values.setdefault(number, after(value, program.tensors[number].dtype))
    return values


def run_ranks(
    programs: Sequence[RankProgram], given: Sequence[Numbers], after: After = same_array
) -> list[dict[int, Array]]:
    """All tensors of all ranks.  Raises `Stuck`."""
    values = [dict(g) for g in given]
    with np.errstate(all="ignore"):
        for meeting in meetings(programs):
            reads = [[values[r][i] for i in s.reads] for r, s in meeting]
            for (rank, step), made in zip(meeting, meet(programs, meeting, reads), strict=True):
                for number, value in zip(step.makes, made, strict=True):
                    values[rank][number] = after(value, programs[rank].tensors[number].dtype)
    return values


def meet(
    programs: Sequence[RankProgram], meeting: Meeting, reads: Sequence[Sequence[Array]]
) -> list[tuple[Array, ...]]:
    """What ranks have behind a step that they do together, or one does alone."""
    step, many = meeting[0][1], len(meeting)
    if step.operator == "send":
        shape = programs[meeting[1][0]].tensors[meeting[1][1].makes[0]].shape
        return [(), (reads[0][0].reshape(shape),)]
    if "ranks" not in dict(step.words):
        return [evaluate(step, reads[0])]
    first = [r[0] for r in reads]
    ranks = [r for r, _ in meeting]
    words = dict(step.words)
    match step.operator:
        case "all_reduce":
            return [(_reduced(words["op"], first),)] * many
        case "reduce":
            total = _reduced(words["op"], first)
            return [(total if r == words["target"] else x,) for r, x in zip(ranks, first, strict=True)]
        case "broadcast":
            return [(first[ranks.index(words["source"])],)] * many  # type: ignore[arg-type]
        case "all_gather":
            return [(np.concatenate(first, 0),)] * many
        case "reduce_scatter":
            return [(x,) for x in np.split(_reduced(words["op"], first), many, 0)]
        case "all_to_all":
            cuts = [
                np.split(x, np.cumsum(dict(s.words)["send"])[:-1], 0) for (_, s), x in zip(meeting, first, strict=True)
            ]
            return [(np.concatenate([c[j] for c in cuts], 0),) for j in range(many)]
        case other:
            raise ValueError(f"collective {other} is not known here")


def _reduced(op: object, values: list[Array]) -> Array:
    stack = np.stack(values)
    match op:
        case "sum":
            return np.asarray(stack.sum(0))
        case "avg":
            return np.asarray(stack.mean(0))
        case "max":
            return np.asarray(stack.max(0))
        case "min":
            return np.asarray(stack.min(0))
        case _:
            return np.asarray(stack.prod(0))


def evaluate(step: Step, reads: Sequence[Array]) -> tuple[Array, ...]:
    """What a local step makes."""
    words = dict(step.words)
    if step.operator in _TWO:
        two = _TWO[step.operator]
        if "number" not in words:
            return (np.asarray(two(reads[0], reads[1])),)
        number = words["number"]
        return (np.asarray(two(number, reads[0]) if words.get("reverse") else two(reads[0], number)),)
    if step.operator in _ONE:
        one = reads[0] if step.operator == "logical_not" else _number(reads[0])
        return (np.asarray(_ONE[step.operator](one)),)
    if step.operator in ("topk", "sort"):
        dim = int(words["dim"])  # type: ignore[arg-type]
        down = bool(words.get("largest", words.get("descending", True)))
        order = np.argsort(np.negative(reads[0].astype(np.float64)) if down else reads[0], axis=dim, kind="stable")
        order = np.take(order, range(int(words.get("k", order.shape[dim]))), axis=dim)  # type: ignore[arg-type]
        return np.take_along_axis(reads[0], order, dim), order
    return (np.asarray(_MORE[step.operator](words, *reads)),)


def _number(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype == bool else x


_TWO: Final[Mapping[str, Callable[..., object]]] = {
    "add": lambda a, b: np.add(_number(np.asarray(a)), _number(np.asarray(b))),
    "sub": lambda a, b: np.subtract(_number(np.asarray(a)), _number(np.asarray(b))),
    "mul": lambda a, b: np.multiply(_number(np.asarray(a)), _number(np.asarray(b))),
    "div": np.true_divide,
    "pow": lambda a, b: np.power(np.asarray(a, np.float64), b),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}

_ONE: Final[Mapping[str, Callable[..., object]]] = {
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "abs": np.abs,
    "sign": np.sign,
    "tanh": np.tanh,
    "erf": np.vectorize(erf, otypes=[np.float64]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "logical_not": np.logical_not,
}


def _cast(w: Mapping[str, object], x: Array) -> Array:
    kind = str(w["dtype"])
    if kind == "bool":
        return np.asarray(x != 0)
    return np.trunc(x).astype(np.int64) if kind.startswith(("int", "uint")) else x.astype(np.float64)


def _slice(w: Mapping[str, object], x: Array) -> Array:
    dim = int(w["dim"])  # type: ignore[call-overload]
    at = slice(w["start"], w["stop"], w["step"])
    return np.asarray(x[(*(slice(None),) * dim, at)])


def _scatter(w: Mapping[str, object], x: Array, new: Array) -> Array:
    out = x.copy()
    dim = int(w["dim"])  # type: ignore[call-overload]
    out[(*(slice(None),) * dim, slice(w["start"], w["stop"], w["step"]))] = new
    return out


def _scatter_add(w: Mapping[str, object], x: Array, index: Array, source: Array) -> Array:
    out, dim = x.astype(np.float64), int(w["dim"])  # type: ignore[call-overload]
    at = list(np.indices(index.shape))
    at[dim] = index.astype(np.int64)
    np.add.at(out, tuple(at), source[tuple(slice(0, n) for n in index.shape)])
    return out


def _gather(w: Mapping[str, object], x: Array, index: Array) -> Array:
    dim = int(w["dim"])  # type: ignore[call-overload]
    at = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))
    return np.take_along_axis(x[at], index.astype(np.int64), dim)


def _index_add(w: Mapping[str, object], x: Array, *rest: Array) -> Array:
    out = x.astype(np.float64)
    np.add.at(out, tuple(i.astype(np.int64) for i in rest[:-1]), rest[-1])
    return out


def _reduce(function: Callable[..., object]) -> Callable[..., object]:
    return lambda w, x: function(x, axis=w["dims"], keepdims=bool(w["keep"]))


_MORE: Final[Mapping[str, Callable[..., object]]] = {
    "reshape": lambda w, x: x.reshape(w["shape"]),
    "permute": lambda w, x: x.transpose(w["dims"]),
    "expand": lambda w, x: np.broadcast_to(x, w["shape"]),
    "slice": _slice,
    "cat": lambda w, *x: np.concatenate(x, w["dim"]),
    "slice_scatter": _scatter,
    "full": lambda w: np.full(w["shape"], w["value"]),
    "iota": lambda w: w["start"] + w["step"] * np.arange(w["n"]),
    "cast": _cast,
    "where": lambda w, c, a, b: np.where(c, a, b),
    "matmul": lambda w, a, b: a @ b,
    "sum": lambda w, x: np.sum(_number(x), axis=w["dims"], keepdims=bool(w["keep"])),
    "amax": _reduce(np.max),
    "amin": _reduce(np.min),
    "gather": _gather,
    "scatter_add": _scatter_add,
    "index": lambda w, x, *i: x[tuple(k.astype(np.int64) for k in i)],
    "index_add": _index_add,
    "cumsum": lambda w, x: np.cumsum(x, axis=w["dim"]),
    "tril": lambda w, x: np.tril(x, w["diagonal"]),
    "triu": lambda w, x: np.triu(x, w["diagonal"]),
}
