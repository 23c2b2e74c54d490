"""Evaluates a specification on arrays, and compares the gradients that it states with differences of its
values.

    dL / dx[p]  =  (L(x + h e_p) - L(x - h e_p)) / 2h  + O(h^2),      L = sum of grad[o] y[o]

on random numbers, which meet no corner of a maximum or of relu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.formula import Apply, Expression, Formula, FormulaError, Number, Read, read_formula
from ...program.index import Combine
from .specification import GRADIENT, Specification, SpecificationError, check_names, sample_extents

Array = npt.NDArray[np.float64]

STEP: Final = 1e-5
"""h: what is left of h^2 and what is lost by rounding are both 1e-10 of the values."""
TOLERANCE: Final = 1e-6
"""Difference that is none, of values near 1."""


def _erf(x: Array) -> Array:
    """2 / sqrt(pi) times the integral of exp(-u^2) from 0 to x, by Gauss's rule on [0, x]."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    u = np.clip(x, -6, 6)[..., None] * (nodes + 1) / 2
    return np.asarray(np.clip(x, -6, 6) / np.sqrt(np.pi) * np.sum(weights * np.exp(-u * u), axis=-1))


_FUNCTIONS: Final[Mapping[str, Callable[..., Array]]] = MappingProxyType(
    {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
        "negate": np.negative,
        "relu": lambda x: np.maximum(x, 0.0),
        "abs": np.abs,
        "sign": np.sign,
        "floor": np.floor,
        "ceil": np.ceil,
        "reciprocal": lambda x: 1.0 / x,
        "tanh": np.tanh,
        "sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
        "exp": np.exp,
        "erf": _erf,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1.0 / np.sqrt(x),
        "log": np.log,
        "cos": np.cos,
        "sin": np.sin,
        "silu": lambda x: x * 0.5 * (1.0 + np.tanh(0.5 * x)),
        "softplus": lambda x: np.logaddexp(0.0, x),
        "maximum": np.maximum,
        "minimum": np.minimum,
    }
)
_POSITIVE: Final = frozenset({"sqrt", "rsqrt", "log"})
"""Functions of positive numbers only."""


def evaluate(f: Formula, arrays: Mapping[str, Array], extents: Mapping[str, int]) -> Array:
    """The values of a formula; what is read outside an array is 0.

    >>> f = read_formula("y[i] = sum j: x[i + j - 1] * w[j]")
    >>> evaluate(f, {"x": np.array([1.0, 2.0, 4.0]), "w": np.ones(3)}, {"i": 3, "j": 3})
    array([3., 7., 6.])
    """
    names = (*f.axes, *f.over)
    shape = tuple(extents[a] for a in names)
    grid = {a: np.arange(extents[a]).reshape([-1 if b == a else 1 for b in names]) for a in names}
    values = np.broadcast_to(_value(f.body, arrays, grid), shape)
    over = tuple(range(len(f.axes), len(names)))
    match f.combine:
        case Combine.SUM:
            return np.asarray(values.sum(axis=over))
        case Combine.MAX:
            return np.asarray(values.max(axis=over))
        case Combine.MIN:
            return np.asarray(values.min(axis=over))
        case None:
            return np.array(values)


def _value(e: Expression, arrays: Mapping[str, Array], grid: Mapping[str, npt.NDArray[np.int64]]) -> Array:
    match e:
        case Number():
            return np.asarray(float(e.value))
        case Apply():
            return _FUNCTIONS[e.function](*[_value(x, arrays, grid) for x in e.of])
        case Read():
            array = arrays[e.operand]
            at = [sum((c * grid[a] for a, c in i.terms), np.asarray(i.offset)) for i in e.index]
            inside = np.asarray(True)
            for i, n in zip(at, array.shape, strict=True):
                inside = inside & (i >= 0) & (i < n)
            read = array[tuple(np.clip(i, 0, n - 1) for i, n in zip(at, array.shape, strict=True))]
            return np.where(inside, read, 0.0)


def check_gradients(s: Specification, place: str) -> Specification:
    """The specification, if every gradient that it states is one.  Raises `SpecificationError` with the element and
    both values where it is not.
    """
    extents = sample_extents(s)
    rng = np.random.default_rng(1)
    positive = any(isinstance(e, Apply) and e.function in _POSITIVE for e in _parts(s.formula.body))
    shapes = {o.name: tuple(extents[a] for a in o.axes) for o in s.operands}
    arrays = {name: rng.uniform(0.5, 1.5, shape) if positive else rng.standard_normal(shape)
              for name, shape in shapes.items()}  # fmt: skip
    incoming = rng.standard_normal(tuple(extents[a] for a in s.formula.axes))
    for name, text in s.gradients:
        where = f"{place}, gradient of {name}"
        try:
            f = read_formula(text)
        except FormulaError as error:
            raise SpecificationError(f"{where}, {error.place}", error.message) from None
        own = next(o.axes for o in s.operands if o.name == name)
        known = {o.name: o.axes for o in s.operands} | {GRADIENT: s.formula.axes, s.formula.output: s.formula.axes}
        check_names(f, known, frozenset(extents), where)
        if f.axes != own:
            raise SpecificationError(where, f"is a formula over {', '.join(f.axes)}, the operand has {', '.join(own)}")
        stated = evaluate(f, {**arrays, GRADIENT: incoming, s.formula.output: evaluate(s.formula, arrays, extents)},
                          extents)  # fmt: skip
        for at in np.ndindex(*shapes[name]):
            ends = []
            for sign in (1, -1):
                moved = arrays[name].copy()
                moved[at] += sign * STEP
                ends.append(float(np.sum(incoming * evaluate(s.formula, {**arrays, name: moved}, extents))))
            found = (ends[0] - ends[1]) / (2 * STEP)
            if not abs(found - stated[at]) <= TOLERANCE * max(1.0, abs(found)):
                raise SpecificationError(
                    where,
                    f"is {stated[at]:.6g} at {', '.join(f'{a} = {k}' for a, k in zip(own, at, strict=True))}, the "
                    f"formula changes by {found:.6g} there; correct it, or leave it out: it follows from the formula",
                )
    return s


def _parts(e: Expression) -> list[Expression]:
    return [e, *(p for x in e.of for p in _parts(x))] if isinstance(e, Apply) else [e]
