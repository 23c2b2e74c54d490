"""Rows of the operator table: parallel operators, on shards, devices and time."""

from __future__ import annotations

from .index_expressions import Digit, Plus, Read, Total, where
from .meaning import Auxiliary, Meaning, Quotient, RankError, Shrunk
from .nodes import Divides, Equal, Node
from .polynomial import ONE, Poly
from .row_parts import P, at, axis_of, coordinates, degree, shift_index, size, sizes, with_size

# ---- parallel operators
# ---------------------------------------------------------------------------------------------------------------


def degrees(rank: int, axis: int, new: Poly) -> tuple[Poly, ...]:
    return tuple(new if a == axis else degree(0, a) for a in range(rank))


def partition(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], axis_of(node, ranks[0])
    new = P("degree") * degree(0, a)
    return Meaning(
        sizes(0, r),
        Read(0, tuple(coordinates(r))),
        (Divides(new, size(0, a)),),
        degrees=degrees(r, a, new),
        auxiliary=Auxiliary(),
    )


def combine(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r, a = ranks[0], axis_of(node, ranks[0])
    define = (Quotient("left_over", degree(0, a), P("degree")),)
    return Meaning(
        sizes(0, r),
        Read(0, tuple(coordinates(r))),
        define=define,
        degrees=degrees(r, a, P("left_over")),
        auxiliary=Auxiliary(),
    )


def tile(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Replicate on a data axis, as FlexFlow's public rules have it: x[i mod n]."""
    r, a = ranks[0], axis_of(node, ranks[0])
    body = Digit("u", P(f"i{a}"), size(0, a), Read(0, shift_index(r, a, -P("u") * size(0, a))))
    new = P("degree") * degree(0, a)
    return Meaning(
        with_size(0, r, a, P("degree") * size(0, a)), body, degrees=degrees(r, a, new), auxiliary=Auxiliary()
    )


def block_sum(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Reduce on a data axis: sum of `degree` equal blocks."""
    r, a = ranks[0], axis_of(node, ranks[0])
    define = (Shrunk("left_over", degree(0, a), P("degree")), Quotient("block", size(0, a), P("degree")))
    body = Total("u", P("degree"), Read(0, shift_index(r, a, P("u") * P("block"))))
    return Meaning(
        with_size(0, r, a, P("block")),
        body,
        define=define,
        degrees=degrees(r, a, P("left_over")),
        auxiliary=Auxiliary(),
    )


def replicate(node: Node, ranks: tuple[int, ...]) -> Meaning:
    r = ranks[0]
    return Meaning(
        sizes(0, r), Read(0, tuple(coordinates(r))), degrees=degrees(r, -1, ONE), auxiliary=Auxiliary(copy=P("degree"))
    )


def reduce(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Sums the outermost PARTIAL-SUM coordinate, which must have extent `degree`."""
    r = ranks[0]
    body = Total("u", P("degree"), Read(0, tuple(coordinates(r)), device=(P("u"),)))
    require = (Equal(P("0.sum"), P("degree")),)
    return Meaning(sizes(0, r), body, require, degrees=degrees(r, -1, ONE), auxiliary=Auxiliary(sums_taken=1))


def all_reduce(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Reduce and Replicate in one: every device of the group gets the sum."""
    r = ranks[0]
    body = Total("u", P("degree"), Read(0, tuple(coordinates(r)), device=(P("u"),)))
    require = (Equal(P("0.sum"), P("degree")),)
    return Meaning(
        sizes(0, r), body, require, degrees=degrees(r, -1, ONE), auxiliary=Auxiliary(copy=P("degree"), sums_taken=1)
    )


def stack(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Two tensors become the two parts of a partial sum."""
    if ranks[0] != ranks[1]:
        raise RankError(f"operands have ranks {ranks}, which differ")
    r = ranks[0]
    same = tuple(Equal(f(0, a), f(1, a)) for f in (size, degree) for a in range(r))
    q = P("q0")
    body = Plus((where(at(0, *coordinates(r)), -q), where(at(1, *coordinates(r)), q - 1)))
    return Meaning(sizes(0, r), body, same, degrees=degrees(r, -1, ONE), auxiliary=Auxiliary(sums=(P(2),)))


def pipeline(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Cuts an axis into `steps` pieces that are processed one after another."""
    r, a = ranks[0], axis_of(node, ranks[0])
    body = Read(0, shift_index(r, a, P("t0") * P("piece")))
    define = (Quotient("piece", size(0, a), P("steps")),)
    fits = (Divides(degree(0, a), P("piece")),)
    aux = Auxiliary(times=((a, P("steps")),))
    return Meaning(with_size(0, r, a, P("piece")), body, fits, define, degrees=degrees(r, -1, ONE), auxiliary=aux)


def batch(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Joins the outermost TIME coordinate, of `steps` pieces, to an axis."""
    r, a = ranks[0], axis_of(node, ranks[0])
    i, n = P(f"i{a}"), size(0, a)
    body = Digit("t", i, n, Read(0, shift_index(r, a, -P("t") * n), time=(P("t"),)))
    require = (Equal(P("0.time"), P("steps")), Equal(P("0.time.axis"), P(a)))
    return Meaning(
        with_size(0, r, a, P("steps") * n),
        body,
        require,
        degrees=degrees(r, -1, ONE),
        auxiliary=Auxiliary(times_taken=1),
    )


def accumulate(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """Sums over the outermost TIME coordinate (weight gradients)."""
    r = ranks[0]
    body = Total("t", P("0.time"), Read(0, tuple(coordinates(r)), time=(P("t"),)))
    return Meaning(sizes(0, r), body, degrees=degrees(r, -1, ONE), auxiliary=Auxiliary(times_taken=1))
