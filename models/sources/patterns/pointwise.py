"""Recognises patterns of functions of one value, recognised by their normal form."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Final

from ...program.index import Access
from ...program.operators import Operator, Value
from . import algebra
from .algebra import Form, TooLarge
from .view import SPECIAL, View, axes_of, number, replacement


def formulas() -> list[tuple[str, str, dict[str, Value], Callable[[Form], Form]]]:
    """(pattern, function, attributes, formula) of the functions of one value."""
    plus, scaled, product, applied, one = (
        algebra.plus,
        algebra.scale_form,
        algebra.product,
        algebra.apply_function,
        algebra.constant(1.0),
    )

    def half(x: Form, inner: Form) -> Form:
        return scaled(product(x, plus(one, inner)), 0.5)

    return [
        ("gelu-exact", "gelu", {}, lambda x: half(x, applied("erf", scaled(x, sqrt(0.5))))),
        (
            "gelu-tanh",
            "gelu",
            {"approximate": "tanh"},
            lambda x: half(x, applied("tanh", scaled(plus(x, scaled(algebra.power(x, 3.0), 0.044715)), sqrt(2 / pi)))),
        ),
        ("silu", "silu", {}, lambda x: product(x, applied("sigmoid", x))),
        ("sigmoid", "sigmoid", {}, lambda x: algebra.power(plus(one, applied("exp", scaled(x, -1.0))), -1.0)),
        ("softplus", "softplus", {}, lambda x: applied("log", plus(one, applied("exp", x)))),
    ]


_TOPS: Final = frozenset({"multiply", "scale", "divide", "reciprocal", "add", "log"})


def of_one_value(
    pattern: str, function: str, attributes: dict[str, Value], formula: Callable[[Form], Form]
) -> Callable[[View, Operator], Operator | None]:
    def rewrite(view: View, op: Operator) -> Operator | None:
        if op.function not in _TOPS or not view.near(op, SPECIAL):
            return None
        for leaf in view.sources(op):
            try:
                found = view.form((op.output.tensor, op.output.index), leaf[0])
                wanted = formula(algebra.leaf(leaf))
            except TooLarge:
                continue
            if found == wanted:
                return replacement(op, function, [Access(*leaf)], attributes)
        return None

    rewrite.__name__ = pattern
    return rewrite


def softplus(view: View, op: Operator) -> Operator | None:
    """x where x > 20, else log(1 + exp(x)): how PyTorch writes softplus."""
    if op.function != "where":
        return None
    mask, x, formula = view.reads(op)
    test = view.writer.get(mask[0])
    if (
        test is None
        or test.function != "greater"
        or number(test, "value", 0.0) < 20.0
        or view.reads(test, mask[1]) != [x]
    ):
        return None
    wanted = algebra.apply_function(
        "log", algebra.plus(algebra.constant(1.0), algebra.apply_function("exp", algebra.leaf(x)))
    )
    written = view.writer.get(formula[0])
    if written is not None and written.function == "softplus":
        same = view.reads(written, formula[1]) == [x]
    else:
        same = view.form(formula, x[0]) == wanted
    if not same or set(axes_of(x)) != set(op.output.axes) or view.inner(op, x) is None:
        return None
    return replacement(op, "softplus", [Access(*x)], {})
