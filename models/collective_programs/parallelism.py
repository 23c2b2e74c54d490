"""Parallelism placement: axes over a hierarchy, who reduces with whom, and the hierarchies that
programs are synthesised on.

    hierarchy   H = [h_0 .. h_n]        axes   P = [p_0 .. p_m]
    placement   matrix x, axes by levels, of positive integers;   product of column j = h_j;   product of row i = p_i

Exponents per prime q: e_q[i][j] >= 0 with row sums v_q(p_i) and column sums v_q(h_j): every prime is a transportation
problem of its own, so the number of matrices is the product of the numbers per prime, and there is one iff product(P) =
product(H).

Device digits: the index at level j is a mixed-radix number with one digit per axis, radix x[i][j], axis 0 most
significant.  Devices that agree in the digits of all other axes form a reduction group.  Position of a device in its
group, for reduction axes R:

    row-major   (axis r1: level 0, level 1, ..; axis r2: level 0, level 1, ..)        the paper's order
    aligned     (level 0: r1, r2, ..; level 1: r1, r2, ..)                            follows the hardware; equal for
                one axis

Synthesis hierarchies: (a) `system` H itself; (b) `column` all factors by columns; (c) `row` all factors by rows; (d)
`reduction` the factors of the reduction axes only, `collapsed` to one level per hardware level (default, as in the
paper) or not.

Source: P2 (MLSys 2022) sections 2.5, 3.1, 3.4, appendix B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final, assert_never

from .collectives import reading
from .programs import ReductionSystem, Tree

Matrix = tuple[tuple[int, ...], ...]
"""One row per axis, one column per level."""

MAX_DEVICES: Final = 1 << 16
MAX_CHUNKS: Final = 1 << 16


class ParallelismError(ValueError):
    """A request that cannot be met; the message names the axis, level or prime, and the next step."""


class Order(Enum):
    """Order of the positions of a reduction group."""

    ROW_MAJOR = "row-major"
    ALIGNED = "aligned"


class Hierarchy(Enum):
    """The four synthesis hierarchies of the paper, (d) with and without collapse."""

    SYSTEM = "a"
    COLUMN = "b"
    ROW = "c"
    REDUCTION = "d"
    COLLAPSED = "d-collapsed"


def factors(n: int) -> dict[int, int]:
    """Prime -> exponent, ascending.

    >>> factors(12)
    {2: 2, 3: 1}
    """
    out: dict[int, int] = {}
    p = 2
    while p * p <= n:
        while n % p == 0:
            out[p] = out.get(p, 0) + 1
            n //= p
        p += 1
    if n > 1:
        out[n] = out.get(n, 0) + 1
    return out


@dataclass(frozen=True)
class PlacementProblem:
    """All placements of `axes` over `hierarchy`; see the module docstring."""

    hierarchy: tuple[int, ...]
    axes: tuple[int, ...]

    def check(self) -> PlacementProblem:
        """Self if there is at least one placement, else `ParallelismError` that says what does not divide.

        >>> PlacementProblem((4, 16), (4, 8)).check()
        Traceback (most recent call last):
        shardproof.models.collective_programs.parallelism.ParallelismError: axes 4 x 8 = 32 do not fill the hierarchy 4
        x 16 = 64 devices: 2 divides 32 5 times and 64 6 times; the products must be equal (an axis of 2 more would do)
        """
        for what, sizes in (("hierarchy", self.hierarchy), ("axes", self.axes)):
            if not sizes:
                raise ParallelismError(f"{what}: empty; give at least one size")
            for i, size in enumerate(sizes):
                if size < 1:
                    raise ParallelismError(f"{what}, entry {i}: {size} is not a positive integer")
        h, p = prod(self.hierarchy), prod(self.axes)
        if max(h, p) > MAX_DEVICES:
            raise ParallelismError(f"{max(h, p)} devices are more than the {MAX_DEVICES} that are supported")
        if h != p:
            have, want = factors(p), factors(h)
            prime = next(q for q in sorted({*have, *want}) if have.get(q, 0) != want.get(q, 0))
            hint = f" (an axis of {h // p} more would do)" if h % p == 0 else ""
            raise ParallelismError(
                f"axes {_times(self.axes)} = {p} do not fill the hierarchy {_times(self.hierarchy)} = {h} devices: "
                f"{prime} divides {p} {have.get(prime, 0)} times and {h} {want.get(prime, 0)} times; the products "
                f"must be equal{hint}"
            )
        return self

    def require(self, matrix: Matrix) -> Matrix:
        """`matrix` if it is a placement of this problem, else `ParallelismError` naming row or column."""
        if len(matrix) != len(self.axes) or any(len(row) != len(self.hierarchy) for row in matrix):
            raise ParallelismError(
                f"matrix {matrix_text(matrix)}: needs {len(self.axes)} rows (axes) of {len(self.hierarchy)} "
                f"columns (levels)"
            )
        if any(x < 1 for row in matrix for x in row):
            raise ParallelismError(f"matrix {matrix_text(matrix)}: entries must be positive")
        for i, row in enumerate(matrix):
            if prod(row) != self.axes[i]:
                raise ParallelismError(
                    f"matrix {matrix_text(matrix)}, row {i}: product is {prod(row)}, the axis has {self.axes[i]}"
                )
        for j, column in enumerate(zip(*matrix, strict=True)):
            if prod(column) != self.hierarchy[j]:
                raise ParallelismError(
                    f"matrix {matrix_text(matrix)}, column {j}: product is {prod(column)}, the level has "
                    f"{self.hierarchy[j]}"
                )
        return matrix


def _times(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def matrix_text(matrix: Matrix) -> str:
    """The paper's notation.

    >>> matrix_text(((2, 4), (1, 4)))
    '[[2 4] [1 4]]'
    """
    return "[" + " ".join("[" + " ".join(map(str, row)) + "]" for row in matrix) + "]"


def reduction_groups(
    matrix: Matrix, reduce: Sequence[int], order: Order = Order.ROW_MAJOR
) -> tuple[tuple[int, ...], ...]:
    """Per reduction group its devices by position.

    >>> reduction_groups(((1, 2), (2, 1)), (0,))
    ((0, 1), (2, 3))
    >>> reduction_groups(((2, 2),), (0,))
    ((0, 1, 2, 3),)
    """
    levels = range(len(matrix[0]))
    chosen = set(reduce)
    inside = (
        [(i, j) for i in reduce for j in levels]
        if order is Order.ROW_MAJOR
        else [(i, j) for j in levels for i in reduce]
    )
    outside = [(i, j) for j in levels for i in range(len(matrix)) if i not in chosen]

    def offsets(cells: list[tuple[int, int]]) -> list[int]:
        """Device offsets of all digit values, last cell fastest."""
        out = [0]
        for i, j in cells:
            weight = prod(row[j] for row in matrix[i + 1 :]) * prod(
                prod(row[k] for row in matrix) for k in levels if k > j
            )
            out = [o + v * weight for o in out for v in range(matrix[i][j])]
        return out

    base = offsets(inside)
    return tuple(tuple(start + o for o in base) for start in sorted(offsets(outside)))


@dataclass(frozen=True)
class ReductionRequest:
    """Reduce over the axes `reduce` (ascending) of a placement."""

    hierarchy: tuple[int, ...]
    matrix: Matrix
    reduce: tuple[int, ...]
    order: Order = Order.ROW_MAJOR
    reading: str = "paper"
    synthesis: Hierarchy = Hierarchy.COLLAPSED

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(prod(row) for row in self.matrix)

    def check(self) -> ReductionRequest:
        """Self, or `ParallelismError` (`CollectiveError` for an unknown reading)."""
        if not self.matrix or len({len(row) for row in self.matrix}) != 1:
            raise ParallelismError("matrix: needs at least one row, and rows of equal length")
        PlacementProblem(self.hierarchy, self.axes).check().require(self.matrix)
        reading(self.reading)
        check_reduction_axes(self.axes, self.reduce)
        return self

    def system(self) -> ReductionSystem:
        """Tree, device groups and chunks that this request means."""
        self.check()
        matrix, levels = self.matrix, range(len(self.hierarchy))
        groups = reduction_groups(matrix, self.reduce, self.order)
        n = len(groups[0])
        match self.synthesis:
            case Hierarchy.COLLAPSED:
                sizes = [prod(matrix[i][j] for i in self.reduce) for j in levels]
            case Hierarchy.REDUCTION:
                by_row = self.order is Order.ROW_MAJOR
                sizes = (
                    [matrix[i][j] for i in self.reduce for j in levels]
                    if by_row
                    else [matrix[i][j] for j in levels for i in self.reduce]
                )
            case Hierarchy.SYSTEM | Hierarchy.COLUMN | Hierarchy.ROW:
                return self._whole(groups)
            case _:
                assert_never(self.synthesis)
        return ReductionSystem(Tree.regular(sizes), groups, n, self.reading)

    def _whole(self, groups: tuple[tuple[int, ...], ...]) -> ReductionSystem:
        """Hierarchies (a) to (c): one tree over all devices, which want their reduction group's sum."""
        matrix, devices = self.matrix, prod(self.hierarchy)
        order = list(range(devices))
        match self.synthesis:
            case Hierarchy.SYSTEM:
                sizes = list(self.hierarchy)
            case Hierarchy.COLUMN:
                sizes = [row[j] for j in range(len(self.hierarchy)) for row in matrix]
            case _:
                sizes = [x for row in matrix for x in row]
                order = list(reduction_groups(matrix, range(len(matrix)))[0])
        position = {device: p for p, device in enumerate(order)}
        wanted = tuple(tuple(sorted(position[d] for d in group)) for group in groups)
        return ReductionSystem(Tree.regular(sizes), (tuple(order),), devices, self.reading, wanted)


def check_reduction_axes(axes: Sequence[int], reduce: Sequence[int]) -> None:
    """`ParallelismError` unless `reduce` lists different axes in ascending order with more than one device together."""
    if not reduce:
        raise ParallelismError("reduction axes: none given; name at least one axis, such as --reduce 0")
    for r in reduce:
        if not 0 <= r < len(axes):
            raise ParallelismError(f"reduction axis {r}: there is no such axis; axes are 0 .. {len(axes) - 1}")
    if list(reduce) != sorted(set(reduce)):
        raise ParallelismError(f"reduction axes {list(reduce)}: must be different and ascending")
    if prod(axes[r] for r in reduce) < 2:
        raise ParallelismError(f"reduction axes {list(reduce)} have one device together: there is nothing to reduce")


@dataclass(frozen=True)
class UnevenRequest:
    """All devices of nodes with different numbers of devices reduce with one another: a hierarchy with a device mask.

    `nodes[v]` devices of node v take part; they are numbered 0, 1, .. node by node.

    >>> UnevenRequest((2, 1)).system().members
    ((0, 1, 2),)
    """

    nodes: tuple[int, ...]
    reading: str = "paper"

    def check(self) -> UnevenRequest:
        """Self, or `ParallelismError` (`CollectiveError` for an unknown reading)."""
        reading(self.reading)
        if len(self.nodes) < 1 or any(n < 1 for n in self.nodes):
            raise ParallelismError(f"nodes {list(self.nodes)}: every node needs at least one device")
        if not 2 <= sum(self.nodes) <= MAX_DEVICES:
            raise ParallelismError(
                f"nodes {list(self.nodes)}: {sum(self.nodes)} devices; at least 2 and at most {MAX_DEVICES} are "
                f"supported"
            )
        chunks = Tree.uneven(self.nodes).chunks
        if chunks > MAX_CHUNKS:
            raise ParallelismError(
                f"nodes {list(self.nodes)}: would need {chunks} chunks, more than {MAX_CHUNKS}; use sizes with "
                f"small common multiples"
            )
        return self

    def system(self) -> ReductionSystem:
        """Tree, the one group and chunks that this request means."""
        tree = Tree.uneven(self.check().nodes)
        return ReductionSystem(tree, (tuple(range(tree.positions)),), tree.chunks, self.reading)


Request = ReductionRequest | UnevenRequest
