"""Computes steps whose operands are known before a run: whole numbers and truth values, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...equality.program import Word

Plain = NDArray[np.generic]

TWO: Final[Mapping[str, Callable[..., object]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
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


MOVED: Final = ("reshape", "permute", "expand", "slice")
"""Operators that move elements, whatever they are."""


def known_result(operator: str, words: Mapping[str, Word], reads: Sequence[Plain | None], dtype: str) -> Plain | None:
    """What a step makes of known operands; None where one is not known, or the operator is none of these.

    >>> known_result("add", {"number": 2}, [np.array([1, 5])], "int32")
    array([3, 7])
    """
    given = [r for r in reads if r is not None]
    whole = dtype == "bool" or dtype.startswith(("int", "uint"))
    if len(given) != len(reads):
        return None
    exact = whole and all(r.dtype.kind in "iub" for r in given)
    if not exact and operator not in MOVED and not (operator == "cast" and not whole):
        return None
    made = _result(operator, words, given)
    if made is None:
        return None
    value = np.asarray(made)
    if whole and dtype != "bool" and value.size and not _fits(value, dtype):
        return None
    return value.astype(np.bool_ if dtype == "bool" else np.int64) if whole else value


def _fits(value: Plain, dtype: str) -> bool:
    ends = np.iinfo(dtype)
    return bool(value.min() >= ends.min and value.max() <= ends.max)


def _result(operator: str, words: Mapping[str, Word], given: Sequence[Plain]) -> object:
    if operator in TWO:
        if "number" not in words:
            return TWO[operator](given[0], given[1])
        pair = (words["number"], given[0]) if words.get("reverse") else (given[0], words["number"])
        return TWO[operator](*pair)
    match operator, words:
        case "reshape", {"shape": tuple(shape)}:
            return given[0].reshape(shape)
        case "permute", {"dims": tuple(dims)}:
            return given[0].transpose(dims)
        case "expand", {"shape": tuple(shape)}:
            return np.broadcast_to(given[0], shape)
        case "slice", {"dim": int(dim), "start": int(start), "stop": int(stop), "step": int(step)}:
            return given[0][(*(slice(None),) * dim, slice(start, stop, step))]
        case "cat", {"dim": int(dim)}:
            return np.concatenate(list(given), dim)
        case "iota", {"n": int(n), "start": start, "step": step} if isinstance(start, float | int):
            return (float(start) + float(str(step)) * np.arange(n)).astype(np.int64)
        case "cast", {"dtype": str(kind)} if not kind.startswith(("int", "uint", "bool")):
            return given[0].astype(np.float64)
        case "cast", {"dtype": str(kind)}:
            return given[0] != 0 if kind == "bool" else given[0].astype(np.int64)
        case "where", _:
            return np.where(given[0], given[1], given[2])
        case "neg", _:
            return np.negative(given[0])
        case "sign", _:
            return np.sign(given[0])
        case "abs", _:
            return np.abs(given[0])
        case "logical_not", _:
            return np.logical_not(given[0])
        case _:
            return None
