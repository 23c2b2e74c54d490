"""Pseudo-Boolean programs in the `opb` format: linear objective, linear constraints over variables of 0 and 1.

    * comment
    min: +3 x1 -2 x2 ;
    +1 x1 +2 ~x2 >= 2 ;          ~x is 1 - x;   =, <= too

    one vertex per variable with the choices 0 and 1
    objective       costs of choice 1, and the constant
    constraints     sum a l <= b with a >= 0, made so by replacing l by 1 - ~l
                    of one or two variables: forbidden choices or pairs
                    of more: a row at a step of its own; all rows share the limit max b, so that a last vertex with one
                    choice uses what the smaller ones have less

Products of variables, soft constraints and `max:` are refused by name.
Source: O. Roussel and V. Manquinho, "Input/Output Format and Solver Requirements for the Competitions of
Pseudo-Boolean Solvers", 2012.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from .cost_functions import CostFunction, LimitedRow, dense_function, network_problem, rows_under_limit
from .selection_problem import FINITE_LIMIT, FORBIDDEN, ProblemError, SelectionProblem

MOST_TERMS: Final = 1 << 24
"""Terms of a program: some 2 GiB of Python objects."""

_TOKEN: Final = re.compile(r"min:|max:|soft:|>=|<=|=|;|[+-]?[0-9]{1,40}(?![^\s;])|~?[A-Za-z_\[\]{}^\\][^\s;]*|\S+")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_LITERAL: Final = re.compile(r"~?[A-Za-z_][^\s;~]*")

Terms = dict[int, int]
"""Coefficient of every variable."""


@dataclass(frozen=True)
class Row:
    """sum over v of terms[v] x_v  <=  most."""

    terms: Terms
    most: int


def from_opb(text: bytes) -> SelectionProblem:
    """The problem of an opb file.  Raises `ProblemError` naming line and word.

    >>> p = from_opb(b"min: 2 x1 3 x2 ;\\n1 x1 1 x2 >= 1 ;\\n")
    >>> p.cost_of((1, 0)), p.cost_of((0, 0)) == FORBIDDEN
    (2, True)
    """
    return _Reader(text.decode("utf-8", "replace")).problem()


class _Reader:
    """One file."""

    def __init__(self, text: str) -> None:
        self.variables: dict[str, int] = {}
        self.terms = 0
        self.tokens = _tokens(text)
        self.at: tuple[int, str] = (1, "")

    def problem(self) -> SelectionProblem:
        costs, constant, rows, first = Terms(), 0, list[Row](), True
        for number, word in self.tokens:
            self.at = (number, word)
            if word in ("max:", "soft:"):
                raise self.fail(f"{word!r} is not supported", "write a minimum, and hard constraints")
            if word == "min:":
                if not first:
                    raise self.fail("the objective stands before the constraints, and once")
                costs, constant, end = self._sum(self._next())
                if end != ";":
                    raise self.fail("the objective ends with ';'")
            else:
                rows += self._constraint(word)
            first = False
        return _problem(list(self.variables), costs, constant, rows)

    def fail(self, message: str, hint: str = "") -> ProblemError:
        number, word = self.at
        return ProblemError(f"line {number}, {word[:40]!r}", message, hint)

    def _next(self) -> str:
        found = next(self.tokens, None)
        if found is None:
            raise self.fail("the file ends here; ';' is missing")
        self.at = found
        return found[1]

    def _sum(self, word: str) -> tuple[Terms, int, str]:
        """(coefficients, constant, the word behind): the sum that begins with `word`."""
        terms, constant = Terms(), 0
        while word not in (";", ">=", "<=", "="):
            if not _NUMBER.fullmatch(word):
                raise self.fail("a coefficient should stand here", "every term is a number and a variable")
            number, literal = int(word), self._next()
            if not _LITERAL.fullmatch(literal):
                raise self.fail("a variable should stand here")
            self.terms += 1
            if self.terms > MOST_TERMS:
                raise self.fail(f"more than {MOST_TERMS} terms")
            v = self.variables.setdefault(literal.removeprefix("~"), len(self.variables))
            if literal.startswith("~"):
                constant, number = constant + number, -number
            terms[v] = terms.get(v, 0) + number
            word = self._next()
            if _LITERAL.fullmatch(word):
                raise self.fail("a product of variables is not supported", "add a variable and constraints for it")
        return terms, constant, word

    def _constraint(self, word: str) -> list[Row]:
        terms, constant, relation = self._sum(word)
        if relation == ";":
            raise self.fail("a constraint needs >=, <= or =")
        word = self._next()
        if not _NUMBER.fullmatch(word):
            raise self.fail("the right side must be an integer")
        right = int(word) - constant
        if self._next() != ";":
            raise self.fail("a constraint ends with ';'")
        rows = []
        if relation != ">=":
            rows.append(Row(terms, right))
        if relation != "<=":
            rows.append(Row({v: -a for v, a in terms.items()}, -right))
        return rows


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """(line, word) of everything but comments."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("*"):
            for match in _TOKEN.finditer(line):
                yield number, match.group()


def _problem(names: list[str], costs: Terms, constant: int, rows: list[Row]) -> SelectionProblem:
    if abs(constant) + sum(map(abs, costs.values())) >= FINITE_LIMIT:
        raise ProblemError("objective", "its coefficients sum to 2**57 or more", "divide them by one number")
    functions: list[CostFunction] = []
    for v, c in costs.items():
        functions.append(dense_function((v,), np.array([0, c], dtype=np.int64)))
    wide: list[Row] = []
    for row in rows:
        live = {v: a for v, a in row.terms.items() if a}
        if len(live) > 2:
            # a x = a + |a| (1 - x) for a < 0: amounts are never negative
            wide.append(Row(live, row.most - sum(min(a, 0) for a in live.values())))
        else:
            functions.append(_small(live, row.most))
    found = rows_under_limit([_limited_row(row) for row in wide], len(names))
    return network_problem(
        "opb",
        [2] * len(names),
        functions,
        constant=constant,
        names=names,
        limited=found,
    )


def _limited_row(row: Row) -> LimitedRow:
    amounts = {v: np.array([max(-a, 0), max(a, 0)], dtype=np.int64) for v, a in row.terms.items()}
    return LimitedRow(amounts, row.most)


def _small(terms: Terms, most: int) -> CostFunction:
    """A constraint of at most two variables."""
    scope = tuple(sorted(terms))
    left = np.zeros((2,) * len(scope), dtype=object)
    for axis, v in enumerate(scope):
        left = left + np.array([0, terms[v]], dtype=object).reshape([2 if i == axis else 1 for i in range(len(scope))])
    return dense_function(scope, np.where(np.asarray(left <= most, dtype=bool), 0, FORBIDDEN).astype(np.int64))
