"""Graphical models in the `uai` format: Markov random fields and Bayesian networks, as most probable assignments.

    MARKOV | BAYES     variables     sizes of the domains     functions
    per function:   arity  scope ..
    per function:   entries  p ..                     the last variable of the scope runs fastest

A value p > 0 costs  round(N ln(max / p)),  N = -1 / ln(1 - 10**-7) = 9,999,999.49..,  max = the largest value of the
function for MARKOV, 1 for BAYES; p = 0 is forbidden.  Values are read as decimal text, and the cost is the nearest
integer to the exact number.  A cost of N is a factor e in probability: this rounding is an assumption of the problem.
Evidence is not part of the file; a model given evidence has to have it in its functions.
Source: the UAI 2014 inference competition (format); the rule of toulbar2 at its resolution of 7 digits.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Final

import numpy as np

from .cost_functions import MOST_VALUES, CostFunction, Room, dense_function, network_problem
from .selection_problem import FORBIDDEN, Ints, ProblemError, SelectionProblem
from .words import Words

DIGITS: Final = 7
"""Resolution: probabilities that differ by a factor of 1 - 10**-7 differ by a cost of 1."""

PRECISE: Final = 60
"""Decimal digits of the logarithms: 40 behind the point of the largest cost."""

ROUNDED: Final = (
    "probabilities are costs round({N} ln(max/p)), max the largest value of {whose}: 7 digits; p = 0 is forbidden"
)

NEAR_HALF: Final = 1e-4
"""Floats that are so near to half an integer are computed again in decimals: their error is below 1e-6."""


def from_uai(text: bytes) -> SelectionProblem:
    """The problem of a uai file.  Raises `ProblemError` naming line and word.

    >>> p = from_uai(b"MARKOV 1 3 1  1 0  3 0.5 0.25 0")
    >>> p.vertices[0].cost.tolist() == [0, 6931471, FORBIDDEN]
    True
    """
    words = Words(text)
    kind = words.word("MARKOV or BAYES")
    if kind not in ("MARKOV", "BAYES"):
        raise words.fail(f"the kind {kind[:40]!r} is not supported", hint="MARKOV and BAYES are")
    n = words.integer("the number of variables", 0, words.remaining())
    domains = [words.integer("the size of a domain", 1, MOST_VALUES) for _ in range(n)]
    scopes = []
    for _ in range(words.integer("the number of functions", 0, words.remaining())):
        arity = words.integer("the arity of a function", 0, n)
        scopes.append(tuple(words.integer("a variable", 0, n - 1) for _ in range(arity)))
        if len(set(scopes[-1])) < arity:
            raise words.fail("the scope names a variable twice")
    room, functions = Room(), list[CostFunction]()
    constant = 0
    for k, scope in enumerate(scopes):
        sizes = [domains[v] for v in scope]
        cells = room.take(sizes, f"function {k}")
        if (given := words.integer("the number of entries", 0)) != cells:
            raise words.fail(f"function {k} has {given} entries, its scope needs {cells}")
        costs = _costs(words.decimals(cells, f"an entry of function {k}"), kind == "MARKOV", f"function {k}")
        if scope or int(costs[0]) >= FORBIDDEN:
            functions.append(dense_function(scope, costs.reshape(sizes)))
        else:
            constant += int(costs[0])
    if words.remaining():
        words.word("nothing")
        raise words.fail("follows the last function", hint="evidence belongs into the functions")
    scale = f"{float(_scale()):.2f}"
    assumed = ROUNDED.format(N=scale, whose="its function" if kind == "MARKOV" else "1, that is")
    return network_problem("uai", domains, functions, constant=constant, assumptions=(assumed,))


def _costs(values: list[str], relative: bool, place: str) -> Ints:
    """Costs of probabilities; `relative`: to the largest."""
    floats = np.array(values, dtype=np.float64)
    if not np.isfinite(floats).all():
        raise ProblemError(place, "an entry is too large to be a number of 64 bits")
    positive = [k for k, text in enumerate(values) if Decimal(text)] if (floats == 0).any() else None
    if positive is not None and any(floats[k] == 0 for k in positive):
        raise ProblemError(place, "an entry is positive and below 1e-308", "leave it out: write 0")
    most = str(max((Decimal(v) for v in set(values)), default=Decimal(1))) if relative else "1"
    if relative and not Decimal(most):
        most = "1"
    with np.errstate(divide="ignore"):
        rough = np.where(floats > 0, float(_scale()) * (np.log(float(most)) - np.log(floats)), 0)
    out = np.where(floats > 0, np.rint(rough), FORBIDDEN).astype(np.int64)
    doubtful = (floats > 0) & (np.abs(rough - np.floor(rough) - 0.5) < NEAR_HALF)
    for k in np.flatnonzero(doubtful):
        out[k] = _exact(values[k], most)
    return out


def _exact(value: str, most: str) -> int:
    """The nearest integer to N ln(most / value)."""
    with localcontext(Context(prec=PRECISE)):
        exact = _scale() * (Decimal(most) / Decimal(value)).ln()
        return int(exact.to_integral_value(ROUND_HALF_EVEN))


def _scale() -> Decimal:
    """N."""
    with localcontext(Context(prec=PRECISE)):
        return -1 / (1 - Decimal(10) ** -DIGITS).ln()
