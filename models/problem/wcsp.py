"""Cost function networks in the `wcsp` format, known as weighted constraint satisfaction problems.

    name  variables  most values  functions  upper bound
    sizes of the domains
    per function:   arity  scope ..  default cost  tuples
                    per tuple:  values ..  cost

A cost at or above the upper bound is forbidden.  An arity below zero makes a function that later ones share: the k-th
of them is used again by `-k` in place of the number of tuples.  A default of -1 is a function in words:

    >= > <= < = (two variables, constant, delta)      disj (two variables, two constants, penalty)
    salldiff dec|decbi cost, salldiff var cost        (the latter where the cost is forbidden)
    clique 1 ..                                       at most one variable takes a value of its list
    knapsack, knapsackp                               sum of weights of the values >= a capacity, a row at a step

Other functions in words are refused by name.  The upper bound says nothing about sums: a solution that costs as much
is not told apart, which is an assumption of the problem.
Source: the user guide of toulbar2, "WCSP format".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Final

import numpy as np

from .cost_functions import (
    MOST_VALUES,
    AtMostOne,
    CostFunction,
    LimitedRow,
    Room,
    dense_function,
    network_problem,
    rows_under_limit,
)
from .selection_problem import FINITE_LIMIT, FORBIDDEN, Ints, SelectionProblem
from .words import Words

UPPER_BOUND: Final = "costs at or above the file's upper bound {} are forbidden; sums that reach it are not"

_Table = tuple[int, Ints, Ints]
"""Default cost, tuples, costs."""


def from_wcsp(text: bytes) -> SelectionProblem:
    """The problem of a wcsp file.  Raises `ProblemError` naming line and word.

    >>> p = from_wcsp(b"two 2 2 2 10\\n2 2\\n1 0 3 1\\n1 0\\n2 0 1 0 1\\n1 1 10\\n")
    >>> p.cost_of((1, 0)), p.cost_of((1, 1)) == FORBIDDEN
    (0, True)
    """
    return _Reader(Words(text)).problem()


class _Reader:
    """One file."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.name = words.word("the name of the problem")
        n = words.integer("the number of variables", 0, words.remaining())
        words.integer("the largest domain", 0)
        self.count = words.integer("the number of functions", 0)
        self.top = words.integer("the upper bound", 1)
        self.domains = [words.integer("the size of a domain", 1, MOST_VALUES) for _ in range(n)]
        self.functions: list[CostFunction | AtMostOne] = []
        self.rows: list[LimitedRow] = []
        self.shared: list[_Table] = []
        self.room = Room()
        self.constant = 0

    def problem(self) -> SelectionProblem:
        words = self.words
        for _ in range(self.count):
            self._function()
        if words.remaining():
            words.word("nothing")
            raise words.fail(f"follows the last of the {self.count} functions that the first line announces")
        found = rows_under_limit(self.rows, len(self.domains))
        return network_problem(
            self.name,
            self.domains,
            self.functions,
            constant=self.constant,
            limited=found,
            assumptions=(UPPER_BOUND.format(self.top),),
        )

    def _function(self) -> None:
        words = self.words
        arity = words.integer("the arity of a function", -len(self.domains), len(self.domains))
        scope = tuple(words.integer("a variable", 0, len(self.domains) - 1) for _ in range(abs(arity)))
        if len(set(scope)) < len(scope):
            raise words.fail("the scope names a variable twice")
        default = words.integer("the default cost")
        if default == -1:
            if arity < 0:
                raise words.fail("a function in words cannot be shared")
            self._in_words(scope)
            return
        if default < 0:
            raise words.fail("the default cost is negative; only -1, a function in words, is known")
        tuples = words.integer("the number of tuples")
        if tuples < 0:
            if arity < 0 or -tuples > len(self.shared):
                raise words.fail(f"shared function {-tuples} is not there")
            self._add(scope, self.shared[-tuples - 1])
            return
        table = self._tuples(scope, default, tuples)
        if arity < 0:
            self.shared.append(table)
        self._add(scope, table)

    def _tuples(self, scope: tuple[int, ...], default: int, count: int) -> _Table:
        words, arity = self.words, len(scope)
        numbers = words.integers(count * (arity + 1), "values and cost of a tuple").reshape(count, arity + 1)
        tuples, costs = numbers[:, :-1], numbers[:, -1]
        if not scope and count:
            raise words.fail("a function of no variables has no tuples")
        sizes = np.array([self.domains[v] for v in scope], dtype=np.int64)
        wrong = np.flatnonzero(((tuples < 0) | (tuples >= sizes)).any(axis=1) | (costs < 0))
        if wrong.size:
            first = int(wrong[0])
            values, cost = tuples[first].tolist(), int(costs[first])
            what = (
                f"the tuple {values} of a function over variables {list(scope)} has cost {cost}, below 0"
                if cost < 0
                else f"the tuple {values} is outside of the domains of variables {list(scope)}: {sizes.tolist()} values"
            )
            raise words.fail(
                what,
                (count - int(wrong[0])) * (arity + 1),
            )
        return default, tuples, self._costs(costs)

    def _costs(self, costs: Ints) -> Ints:
        """Those at or above the upper bound as FORBIDDEN."""
        out = np.where(costs >= self.top, FORBIDDEN, costs)
        if ((out >= FINITE_LIMIT) & (out < FORBIDDEN)).any():
            raise self.words.fail("a cost is 2**57 or more", hint="divide every cost by one number")
        return out

    def _add(self, scope: tuple[int, ...], table: _Table) -> None:
        default, tuples, costs = table
        missing = int(self._costs(np.array([default]))[0])
        sizes = [self.domains[v] for v in scope]
        if tuples.shape[1] != len(scope) or (tuples.size and (tuples >= np.array(sizes, dtype=np.int64)).any()):
            raise self.words.fail("the shared function has another arity or larger domains")
        if not scope:
            if missing < FORBIDDEN:
                self.constant += missing
            else:  # nothing is allowed
                self.functions.append(CostFunction((), np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)))
            return
        if missing >= FORBIDDEN and len(scope) > 2:
            there, last = np.unique(tuples[::-1], axis=0, return_index=True)
            kept = costs[::-1][last]  # of equal tuples the last counts
            allowed = kept < FORBIDDEN
            self.functions.append(CostFunction(scope, there[allowed], kept[allowed]))
            return
        self.room.take(sizes, f"function {len(self.functions)}")
        dense = np.full(sizes, missing, dtype=np.int64)
        dense[tuple(tuples.T)] = costs
        self.functions.append(dense_function(scope, dense))

    # ------------------------------------------------------------------ functions in words

    def _in_words(self, scope: tuple[int, ...]) -> None:
        words = self.words
        word = words.word("the name of a function")
        match word:
            case ">=" | ">" | "<=" | "<" | "=":
                constant, delta = words.integer("a constant"), words.integer("delta")
                self._pair(scope, word, lambda x, y: _compared(word, x, y, constant, delta))
            case "disj":
                first, second = words.integer("a constant"), words.integer("a constant")
                penalty = words.integer("the penalty", 0)
                self._pair(
                    scope, word, lambda x, y: np.where((x >= y + second) | (y >= x + first), 0, min(penalty, FORBIDDEN))
                )
            case "salldiff":
                self._all_different(scope)
            case "clique":
                self._at_most_one(scope)
            case "knapsack":  # weights of value 1 of variables of two values
                self._at_least(scope, words.integer("the capacity"), lambda v: {1: words.integer("a weight")})
            case "knapsackp":
                self._at_least(scope, words.integer("the capacity"), self._weights)
            case _:
                raise words.fail(
                    f"the function {word[:40]!r} is not supported",
                    hint="list its tuples, or write it as functions of few variables",
                )

    def _weights(self, v: int) -> dict[int, int]:
        words, found = self.words, dict[int, int]()
        for _ in range(words.integer("the number of values", 0, self.domains[v])):
            value = words.integer("a value", 0, self.domains[v] - 1)
            if value in found:
                raise words.fail(f"value {value} of x{v} has a weight already")
            found[value] = words.integer("a weight")
        return found

    def _at_least(self, scope: tuple[int, ...], capacity: int, read: Callable[[int], dict[int, int]]) -> None:
        """sum of weights >= capacity, as sum of (largest - weight) <= sum of largest - capacity."""
        amounts, most = dict[int, Ints](), -capacity
        for v in scope:
            weights = [0] * self.domains[v]
            for value, weight in read(v).items():
                if value >= len(weights):
                    raise self.words.fail(f"x{v} has one value, a knapsack wants two", hint="write it as knapsackp")
                if abs(weight) >= FINITE_LIMIT:
                    raise self.words.fail("a weight is 2**57 or more", hint="divide every one by one number")
                weights[value] = weight
            largest = max(weights)
            most += largest
            amounts[v] = np.array([largest - w for w in weights], dtype=np.int64)
        self.rows.append(LimitedRow(amounts, most))

    def _pair(self, scope: tuple[int, ...], word: str, cost: Callable[[Ints, Ints], Ints]) -> None:
        if len(scope) != 2:
            raise self.words.fail(f"{word} compares two variables, not {len(scope)}")
        sizes = [self.domains[v] for v in scope]
        self.room.take(sizes, f"function {len(self.functions)}")
        x, y = np.arange(sizes[0]).reshape(-1, 1), np.arange(sizes[1]).reshape(1, -1)
        table = np.broadcast_to(cost(x, y), tuple(sizes))
        self.functions.append(dense_function(scope, self._costs(np.maximum(table, 0))))

    def _all_different(self, scope: tuple[int, ...]) -> None:
        words = self.words
        kind, cost = words.word("var, dec or decbi"), words.integer("a cost", 0)
        if kind not in ("dec", "decbi") and not (kind == "var" and cost >= self.top):
            raise words.fail(
                f"salldiff {kind[:40]} {cost} is not supported", 2, "salldiff dec, or a cost at the upper bound, is"
            )
        for u, v in combinations(scope, 2):
            self._pair((u, v), "salldiff", lambda x, y: np.where(x == y, min(cost, FORBIDDEN), 0))

    def _at_most_one(self, scope: tuple[int, ...]) -> None:
        words = self.words
        if (most := words.integer("how many of a clique")) != 1:
            raise words.fail(f"clique {most} is not supported", hint="clique 1 is")
        values = []
        for v in scope:
            count = words.integer("the number of values", 0, self.domains[v])
            values.append(np.array([words.integer("a value", 0, self.domains[v] - 1) for _ in range(count)], np.int64))
        self.functions.append(AtMostOne(scope, tuple(values)))


def _compared(word: str, x: Ints, y: Ints, constant: int, delta: int) -> Ints:
    """By how much a comparison is missed; forbidden where that is more than `delta`."""
    most = 1 << 40
    constant, delta = max(-most, min(constant, most)), min(delta, most)
    match word:
        case ">=" | ">":
            missed = y + constant + (word == ">") - x
        case "<=" | "<":
            missed = x - constant + (word == "<") - y
        case _:
            missed = np.abs(y + constant - x)
    return np.where(missed > delta, FORBIDDEN, np.maximum(missed, 0))
