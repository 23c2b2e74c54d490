"""Elementwise functions of the operator table: what each is, and what proofs may use of it.

`FUNCTIONS` is part of what is trusted: every property is a textbook fact of the definition beside it, over the reals.
A function that is not listed is arbitrary: equal arguments give equal results, nothing else is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Function:
    """`not_negative`: f(v) >= 0.  `keeps_zero`: f(0) = 0.  `monotone`: v <= w gives f(v) <= f(w).  `keeps_sign`:
    f(v) >= 0 for v >= 0, <= 0 for v <= 0.
    """

    definition: str
    not_negative: bool = False
    keeps_zero: bool = False
    monotone: bool = False
    keeps_sign: bool = False


FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        "relu": Function("max(v, 0)", not_negative=True, keeps_zero=True, monotone=True),
        "sigmoid": Function("1 / (1 + exp(-v))", not_negative=True, monotone=True),
        "tanh": Function("(exp(2 v) - 1) / (exp(2 v) + 1)", keeps_zero=True, monotone=True, keeps_sign=True),
        "exp": Function("e ^ v", not_negative=True, monotone=True),
        "gelu": Function(
            "v times the probability that a standard normal number is below v", keeps_zero=True, keeps_sign=True
        ),
        "reciprocal": Function("1 / v, and 0 at 0", keeps_zero=True, keeps_sign=True),
        "root": Function("1 / sqrt(v + epsilon), any epsilon from 10^-12 to 10^-3, v not negative", not_negative=True),
        "hit": Function("1 if v is the index, else 0", not_negative=True),
    }
)
ARBITRARY: Final = Function("arbitrary")


def function(name: str) -> Function:
    """What is known of a function.

    >>> function("relu").monotone, function("anything").monotone
    (True, False)
    """
    return FUNCTIONS.get(name, ARBITRARY)
