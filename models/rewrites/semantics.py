"""A hash over what operators mean: proofs name the rows of the table they were written for.

Every row is built for its ranks and the values of its enumerated parameters; the text of all meanings is hashed, so
that a change of meaning changes the hash and a change of layout or comments does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from itertools import permutations, product

from .ops import OPERATORS, RankError, Row, meaning
from .rule import Node, Parameter

RANKS = range(5)


def semantics_hash(operators: Iterable[str]) -> str:
    """Hash of the rows of these operators, 16 hexadecimal digits; unknown ones count by name.

    >>> len(semantics_hash(["add", "mul"])), semantics_hash(["add"]) == semantics_hash(["mul"])
    (16, False)
    """
    h = hashlib.sha256()
    for name in sorted(set(operators)):
        h.update(_row_hash(name).encode())
    return h.hexdigest()[:16]


@cache
def _row_hash(name: str) -> str:
    lines = _meanings(OPERATORS[name]) if name in OPERATORS else []
    return hashlib.sha256("\n".join([name, *lines]).encode()).hexdigest()


def _meanings(row: Row) -> list[str]:
    out = []
    if row.texts:
        return [f"{row.name} {[key for key, _ in row.texts]} {row.arity}"]  # what it means stands in the rule
    for count in range(row.arity[0], row.arity[1] + 1):
        for ranks in product(RANKS, repeat=count):
            for parameters in _parameters(row, ranks[0] if ranks else 0):
                try:
                    found = meaning(Node(row.name, tuple(range(-1, -1 - count, -1)), parameters), ranks)
                except RankError:
                    continue
                out.append(f"{row.name}{parameters}{ranks}{found!r}")
    return out


def _parameters(row: Row, rank: int) -> list[tuple[tuple[str, Parameter], ...]]:
    choices: list[list[tuple[str, Parameter]]] = [[(k, f"p_{k}")] for k in row.numbers]
    choices += [[(k, w) for w in words] for k, words in row.words]
    choices += [[(k, a) for a in range(max(rank, 1))] for k in row.integers]
    choices += [[(k, p) for p in permutations(range(rank))] for k in row.permutations]
    return [tuple(sorted(chosen)) for chosen in product(*choices)]
