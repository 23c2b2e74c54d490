"""Reads selection problems in the form of the PaSE tables: `{"info", "nodes": [{name, configs, cost}],
"edges": [[u, v, matrix]]}`.

Costs are floats, that is dyadic rationals, and become integers over one power of two `scale`, exactly:

    scale = 2**b                        b = fraction bits of the finest entry, if then  sum_T max |scale T| < 2**57
                                        (T: cost tables)
    scale = 2**(c + f), c + f = b       otherwise: c the most bits that fit, floor(2**c T) the int64 part, the other f
                                        bits the fine part

Published tables need 47 to 77 bits.  What needs more than 57 + 52 is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .selection_problem import (
    FINITE_LIMIT,
    MOST_FINE_BITS,
    Edge,
    Fine,
    Ints,
    ProblemError,
    SelectionProblem,
    Vertex,
    fine_type,
)

Floats = NDArray[np.float64]

EXACT_FLOAT: Final = 1 << 53
MOST_BITS: Final = 450
"""Largest scale is 2**(450 + 52), which our own files can hold; ldexp of what fits cannot overflow."""


def from_pase(data: Mapping[str, object]) -> SelectionProblem:
    """The problem of a PaSE table file.  Raises `ProblemError` naming the place.

    >>> p = from_pase({"nodes": [{"name": "a", "cost": [0.5, 3]}, {"name": "b", "cost": [0.25]}], "edges": [[0, 1,
    ...     [[1], [0]]]]})
    >>> p.scale, p.vertices[0].cost.tolist(), p.tables[0].tolist(), p.assumptions
    (4, [2, 12], [[4], [0]], ())
    """
    nodes, edges, info = data.get("nodes"), data.get("edges"), data.get("info")
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise ProblemError("PaSE file", "needs the lists nodes and edges")
    names: list[str] = []
    costs: list[Floats] = []
    for i, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("cost"), list):
            raise ProblemError(f"nodes[{i}]", "needs a list cost")
        costs.append(_floats(node["cost"], f"nodes[{i}].cost"))
        names.append(str(node.get("name", f"node {i}")))
    matrices: list[Floats] = []
    ends: list[tuple[int, int]] = []
    for i, edge in enumerate(edges):
        if (
            not isinstance(edge, list)
            or len(edge) != 3
            or type(edge[0]) is not int
            or type(edge[1]) is not int
            or not isinstance(edge[2], list)
        ):
            raise ProblemError(f"edges[{i}]", "must be [u, v, matrix]")
        u, v = edge[0], edge[1]
        if not (0 <= u < len(costs) and 0 <= v < len(costs)):
            raise ProblemError(f"edges[{i}]", f"names a node outside 0..{len(costs) - 1}")
        rows = [_floats(row, f"edges[{i}] row {r}") for r, row in enumerate(edge[2])]
        if len(rows) != costs[u].size or any(row.size != costs[v].size for row in rows):
            raise ProblemError(f"edges[{i}]", f"matrix must have {costs[u].size} rows and {costs[v].size} columns")
        matrices.append(np.array(rows, dtype=np.float64).reshape(costs[u].size, costs[v].size))
        ends.append((u, v))
    bits, fine_bits = _scale([*costs, *matrices])
    coarse: list[Ints] = []
    fine: list[NDArray[np.unsignedinteger]] = []
    for values in (*costs, *matrices):
        scaled = np.ldexp(values, bits)
        floor = np.floor(scaled)  # exact, and so is what is left of 53 bits
        coarse.append(floor.astype(np.int64))
        if fine_bits:
            fine.append(np.ldexp(scaled - floor, fine_bits).astype(fine_type(fine_bits)).reshape(-1))
    n = len(costs)
    vertices = tuple(Vertex(name, c) for name, c in zip(names, coarse[:n], strict=True))
    name = f"{info.get('graph', 'pase')}-p{info.get('p', '')}" if isinstance(info, dict) else "pase"
    made = tuple(Edge(u, v, i) for i, (u, v) in enumerate(ends))
    low = Fine(fine_bits, np.concatenate(fine)) if fine_bits else None
    return SelectionProblem(name, vertices, tuple(coarse[n:]), made, scale=1 << (bits + fine_bits), fine=low).check()


def _scale(tables: list[Floats]) -> tuple[int, int]:
    """(bits of the scale that int64 holds, bits of the fine part)."""
    total = sum((Fraction(float(np.abs(t).max())) for t in tables if t.size), start=Fraction(0))
    needed = max((_fraction_bits(t) for t in tables), default=0)
    room = FINITE_LIMIT - len(tables)  # the floor of a negative entry is up to 1 larger in size
    if total >= room:
        raise ProblemError(
            "costs",
            f"the largest entries sum to {float(total):.3g}, which does not fit 57 bits",
            "divide every cost of the file by the same number",
        )
    bits = 0
    while bits < min(needed, MOST_BITS) and total * (1 << (bits + 1)) < room:
        bits += 1
    if needed - bits > MOST_FINE_BITS:
        raise ProblemError(
            "costs",
            f"largest entries sum to {float(total):.3g} and the finest has {needed} fraction bits: too many to "
            f"scale exactly",
            "round them to a common unit",
        )
    return bits, needed - bits


def _fraction_bits(values: Floats) -> int:
    """Least b >= 0 such that all values are multiples of 2**-b."""
    mantissa, exponent = np.frexp(values[values != 0])
    if not mantissa.size:
        return 0
    digits = np.ldexp(mantissa, 53).astype(np.int64)
    zeros = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    return max(0, int((53 - exponent - zeros).max()))


def _floats(values: object, place: str) -> Floats:
    """Numbers without loss, or `ProblemError`."""
    if not isinstance(values, list):
        raise ProblemError(place, "must be a list of numbers")
    if not set(map(type, values)) <= {int, float} or any(_lossy(values)):
        for value in values:
            if type(value) not in (int, float) or (type(value) is int and abs(value) > EXACT_FLOAT):
                raise ProblemError(place, f"{_short(value)} is not a number that 53 bits hold")
    out = np.array(values, dtype=np.float64)
    if not np.isfinite(out).all():
        raise ProblemError(place, f"{values[int(np.argmin(np.isfinite(out)))]!r} is not a finite number")
    return out


def _short(value: object) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # an integer of too many digits
        return "a very large integer"


def _lossy(values: list[object]) -> Iterator[bool]:
    return (type(value) is int and abs(value) > EXACT_FLOAT for value in values)
