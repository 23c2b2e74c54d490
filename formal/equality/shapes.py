"""Sees that a program that was read from a file can be run: every step makes tensors of the shapes that the file says,
of no more elements than fit into memory.

Numbers are computed with what a file says, so a size in it is believed only once it follows from those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from ...models.equality.program import RankProgram, Step, Word
from ...models.text import InputError

MOST_ELEMENTS: Final = 1 << 28
"""Of all tensors of a rank together: 2 GiB in double precision."""
ONE: Final = frozenset(
    {
        *("neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "sign", "tanh", "erf", "sigmoid", "sin", "cos"),
        *("floor", "ceil", "round", "trunc", "log1p", "expm1", "logical_not", "cumsum", "tril", "triu", "cast"),
        *("all_reduce", "broadcast", "reduce"),
    }
)
TWO: Final = frozenset(
    {
        *("add", "sub", "mul", "div", "maximum", "minimum", "pow", "gt", "ge", "lt", "le", "eq", "ne"),
        *("logical_and", "logical_or"),
    }
)
Shape = tuple[int, ...]


def require_runs(program: RankProgram, place: str) -> None:
    """`InputError` that names the step which no run has."""
    elements = sum(prod(t.shape) for t in program.tensors)
    if elements > MOST_ELEMENTS:
        raise InputError(f"{place}: tensors of {elements} elements; at most {MOST_ELEMENTS} are run here")
    for k, step in enumerate(program.steps):
        reads = [program.tensors[n].shape for n in step.reads]
        said = [program.tensors[n].shape for n in step.makes]
        try:
            made = [said[0]] if step.operator == "recv" else _shapes(step.operator, dict(step.words), reads)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{place}: step {k}, {step.operator}, cannot be run: {error!r}") from error
        if made != said:
            raise InputError(f"{place}: step {k}, {step.operator}, makes shapes {made}, the file says {said}")
        _require_numbers(step, place, k)


def _require_numbers(step: Step, place: str, k: int) -> None:
    words = dict(step.words)
    for name in ("value", "number", "start", "stop", "step", "diagonal", "dim", "k"):
        if name in words and not isinstance(words[name], int | float):
            raise InputError(f"{place}: step {k}, {step.operator}: {name} is no number")


def _whole(words: Mapping[str, Word], name: str) -> int:
    value = words[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{name} is {value!r}")
    return value


def _sizes(words: Mapping[str, Word], name: str) -> Shape:
    value = words[name]
    if not isinstance(value, tuple) or any(n < 0 for n in value):
        raise TypeError(f"{name} is {value!r}")
    return value


def _shapes(name: str, words: Mapping[str, Word], reads: Sequence[Shape]) -> list[Shape]:
    if name in ONE or (name in TWO and "number" in words):
        (x,) = reads
        if name == "cumsum":
            _along(words, x)
        if name == "cast" and not isinstance(words["dtype"], str):
            raise TypeError("dtype is no text")
        return [x]
    if name in TWO:
        return [np.broadcast_shapes(reads[0], reads[1])]
    if name == "where":
        return [np.broadcast_shapes(reads[0], reads[1], reads[2])]
    if name in ("send", "barrier"):
        return []
    if name in ("topk", "sort"):
        (x,) = reads
        dim = _along(words, x)
        k = _whole(words, "k") if name == "topk" else x[dim]
        if k > x[dim]:
            raise ValueError(f"{k} of {x[dim]}")
        return [(*x[:dim], k, *x[dim + 1 :])] * 2
    return [_moved(name, words, reads)]


def _along(words: Mapping[str, Word], x: Shape) -> int:
    dim = _whole(words, "dim")
    if dim >= len(x):
        raise IndexError(f"dimension {dim} of {x}")
    return dim


def _moved(name: str, words: Mapping[str, Word], reads: Sequence[Shape]) -> Shape:
    """Of an operator that makes one tensor of another shape."""
    match name:
        case "full":
            return _sizes(words, "shape")
        case "iota":
            return (_whole(words, "n"),)
        case "reshape":
            shape = _sizes(words, "shape")
            if prod(shape) != prod(reads[0]):
                raise ValueError(f"{reads[0]} as {shape}")
            return shape
        case "expand":
            shape = _sizes(words, "shape")
            if np.broadcast_shapes(reads[0], shape) != shape:
                raise ValueError(f"{reads[0]} to {shape}")
            return shape
        case "permute":
            dims = _sizes(words, "dims")
            if sorted(dims) != list(range(len(reads[0]))):
                raise ValueError(f"{dims} of {reads[0]}")
            return tuple(reads[0][d] for d in dims)
        case "matmul":
            a, b = reads
            if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2] or a[:-2] != b[:-2]:
                raise ValueError(f"{a} times {b}")
            return (*a[:-1], b[-1])
        case "sum" | "amax" | "amin":
            dims, x = _sizes(words, "dims"), reads[0]
            if any(d >= len(x) for d in dims) or len(set(dims)) != len(dims):
                raise IndexError(f"dimensions {dims} of {x}")
            return tuple(1 if d in dims else n for d, n in enumerate(x) if words["keep"] or d not in dims)
        case "slice" | "slice_scatter":
            return _cut(name, words, reads)
        case "cat":
            dim = _along(words, reads[0])
            if len({(*r[:dim], *r[dim + 1 :]) for r in reads}) != 1 or len({len(r) for r in reads}) != 1:
                raise ValueError(f"{list(reads)[:4]}")
            return (*reads[0][:dim], sum(r[dim] for r in reads), *reads[0][dim + 1 :])
        case "gather" | "scatter_add":
            dim = _along(words, reads[0])
            rest = zip(reads[0], reads[1], strict=True)
            if any(n > m for d, (m, n) in enumerate(rest) if d != dim):
                raise ValueError(f"positions {reads[1]} in {reads[0]}")
            return reads[1] if name == "gather" else _at_least(reads[0], reads[2], reads[1])
        case "index" | "index_add":
            return _indexed(name, reads)
        case _:
            return _collected(name, words, reads[0])


def _at_least(made: Shape, source: Shape, index: Shape) -> Shape:
    if any(n > m for n, m in zip(index, source, strict=True)):
        raise ValueError(f"{source} is added at {index}")
    return made


def _cut(name: str, words: Mapping[str, Word], reads: Sequence[Shape]) -> Shape:
    x, dim, step = reads[0], _along(words, reads[0]), _whole(words, "step")
    start, stop = _whole(words, "start"), _whole(words, "stop")
    if not step or stop > x[dim]:
        raise ValueError(f"from {start} to {stop} by {step} of {x[dim]}")
    part = (*x[:dim], len(range(start, stop, step)), *x[dim + 1 :])
    if name == "slice":
        return part
    if part != reads[1]:
        raise ValueError(f"{reads[1]} in the place of {part}")
    return x


def _indexed(name: str, reads: Sequence[Shape]) -> Shape:
    table = reads[0]
    ids = reads[1:] if name == "index" else reads[1:-1]
    if not ids or len(ids) > len(table):
        raise ValueError(f"{len(ids)} positions in {table}")
    found = (*np.broadcast_shapes(*ids), *table[len(ids) :])
    if name == "index":
        return found
    if np.broadcast_shapes(reads[-1], found) != found:
        raise ValueError(f"{reads[-1]} is added at {found}")
    return table


def _collected(name: str, words: Mapping[str, Word], x: Shape) -> Shape:
    ranks = len(_sizes(words, "ranks"))
    if not x:
        raise ValueError(f"{name} of one number")
    match name:
        case "all_gather":
            return (x[0] * ranks, *x[1:])
        case "reduce_scatter":
            if not ranks or x[0] % ranks:
                raise ValueError(f"{x[0]} rows for {ranks} ranks")
            return (x[0] // ranks, *x[1:])
        case "all_to_all":
            send, receive = _sizes(words, "send"), _sizes(words, "receive")
            if sum(send) != x[0] or len(send) != ranks or len(receive) != ranks:
                raise ValueError(f"{send} of {x[0]} rows")
            return (sum(receive), *x[1:])
        case _:
            raise KeyError(f"operator {name} is not known here")
