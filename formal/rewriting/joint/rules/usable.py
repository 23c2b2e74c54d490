"""Which rules of a library plans can use, and in which direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .....models.rewrites.rule import Node, Substitution
from .....models.rewrites.specified_rows import SPECIFIED, STATEMENT, sums_of_statement
from .....proofs.joint.books import Book
from .....proofs.rewrites.plain import backwards, plain_rules
from .written import function_of

MOST_SUMS: Final = 6
"""Sums inside each other, of either side: a plan's checker brings no more into one order."""
SUMS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("matmul", "batch_matmul", "linear", "reduce_sum"), 1),
    **dict.fromkeys(("embedding", "embedding_rows"), 1),
    **dict.fromkeys(("embedding_bag", "average_pool", "average_pool_inside"), 2),
    "conv": 3,
}


def usable(rule: Substitution) -> bool:
    """Whether plans can use a rule: one result, every operator of the left side is needed for it and every pattern
    input is on it, and all operators are written in those of graphs.
    """
    if len(rule.outputs) != 1 or rule.unbound:
        return False
    a, b = rule.outputs[0]
    return (
        a >= 0
        and b < len(rule.right)
        and _needed(rule.left, a) == set(range(len(rule.left)))
        and _needed(rule.right, b) == set(range(len(rule.right)))
        and max(_sums(rule.left, a), _sums(rule.right, b)) <= MOST_SUMS
        and all(function_of(n) is not None for n in (*rule.left, *rule.right))
    )


def usable_rules(book: Book) -> tuple[Substitution, ...]:
    """The rules of a library that plans can use, in either direction."""
    found = plain_rules(book.data)
    return tuple(r for rule in found for r in (rule, backwards(rule)) if usable(r))


def _needed(nodes: Sequence[Node], wire: int) -> set[int]:
    """Operators on which a wire rests."""
    todo, out = [wire], set[int]()
    while todo:
        w = todo.pop()
        if w >= 0 and w not in out:
            out.add(w)
            todo.extend(nodes[w].inputs)
    return out


def _sums(nodes: Sequence[Node], wire: int) -> int:
    """Sums that a wire has, written out."""
    if wire < 0:
        return 0
    n = nodes[wire]
    own = sums_of_statement(str(n.parameter(STATEMENT))) if n.operator == SPECIFIED else SUMS.get(n.operator, 0)
    return own + sum(_sums(nodes, w) for w in n.inputs)
