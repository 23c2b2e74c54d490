"""Shorthands for writing rows of the operator table."""

from __future__ import annotations

from .index_expressions import Call, Expression, Index, Read
from .meaning import RankError
from .nodes import Node
from .polynomial import Poly

P = Poly.of


def size(k: int, a: int) -> Poly:
    """Size of axis a of operand k."""
    return P(f"{k}.{a}")


def degree(k: int, a: int) -> Poly:
    """Degree of axis a of operand k."""
    return P(f"{k}.{a}.degree")


def at(k: int, *index: Poly | str) -> Read:
    """Operand k at an index of polynomials and names."""
    return Read(k, tuple(P(i) for i in index))


def coordinates(rank: int) -> list[Poly]:
    """Output index i0, i1, .."""
    return [P(f"i{a}") for a in range(rank)]


def sizes(k: int, rank: int) -> tuple[Poly, ...]:
    """All sizes of operand k."""
    return tuple(size(k, a) for a in range(rank))


def need_ranks(given: tuple[int, ...], *wanted: int) -> None:
    """`RankError` unless the operands have these ranks."""
    if given != wanted:
        raise RankError(f"operands have ranks {given}, needs {wanted}")


def axis_of(node: Node, rank: int, key: str = "axis") -> int:
    """The axis parameter, `RankError` if the operand has no such axis."""
    axis = node.parameter(key)
    if not isinstance(axis, int) or axis >= rank:
        raise RankError(f"has no axis {axis}: rank {rank}")
    return axis


def word(node: Node, key: str) -> str:
    """An enumerated parameter."""
    return str(node.parameter(key))


def activate(activation: str, e: Expression) -> Expression:
    """e under an activation."""
    return e if activation == "none" else Call(activation, (), (e,))


def shift_index(rank: int, axis: int, by: Poly) -> Index:
    """Output index with `by` added on one axis."""
    return tuple(P(f"i{a}") + by if a == axis else P(f"i{a}") for a in range(rank))


def with_size(k: int, rank: int, axis: int, new: Poly) -> tuple[Poly, ...]:
    """Operand k's sizes with one of them replaced."""
    return tuple(new if a == axis else size(k, a) for a in range(rank))


def in_range(p: Poly, n: Poly) -> tuple[Poly, Poly]:
    """Guards of 0 <= p < n."""
    return p, n - 1 - p


def inverse(e: Expression) -> Expression:
    """1 / e."""
    return Call("reciprocal", (), (e,))
