"""Which placements another framework can express: a space may be restricted to its vocabulary.

Every level of h devices is cut at the strides 1 = b_0 | b_1 | .. | b_n = h whose quotients are the primes of h in
ascending order; between two strides lies one mesh dimension.  A placement is said by a target if

    mesh       every row of degree x > 1 and stride s begins and ends at strides of the chain: s and s x are among them
    blocks     every dimension of every operand is the same interval on all devices, or equal blocks [r c, (r+1) c) of
               c = n / D positions, r the device's number along the mesh dimensions that cut it, D of them
    stored     a dimension of an input or parameter, as the user knows it, holds several digits: a digit is cut only
               where every digit before it is cut into single positions, and into parts that divide it
    order      `dtensor` only: what cuts such a dimension follows the order of the mesh
    windows    `dtensor` only: a convolution is cut over batch and channels, not through windows or groups of channels

Partial results are said by DTensor's `Partial`; JAX sums them where they arise.  Choices that are not said cost
`FORBIDDEN`, and the claim names the space `complete,dtensor`.  The checker draws the line again from its own boxes
(`verify/plan/vocabulary.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..layout.layout import LayoutSet
from ..layout.mesh import Mesh, MeshDimension
from ..layout.sharding import digit_groups
from ..problem.selection_problem import FORBIDDEN, Ints
from ..program.graph import Graph, Role
from ..program.operators import Operator
from .structures import Structures

Truths = NDArray[np.bool_]
Cut = tuple[int, ...] | None
"""Mesh dimensions that cut a dimension of a tensor, in the order of the mesh; None: it is no row of equal blocks."""


class Vocabulary:
    """What `target` says of the choices of one graph's vertices on one machine."""

    def __init__(self, graph: Graph, structures: Structures, target: str) -> None:
        self.graph, self.structures, self.target = graph, structures, target
        self.mesh = prime_mesh(structures.machine.hierarchy)
        self.known: dict[object, Truths] = {}
        self.cuts: dict[tuple[bytes, int], Cut] = {}

    def of_operator(self, op: Operator) -> Truths:
        """Choices of an operator that are said."""
        placements = self.structures.of_operator(op)
        operands = [(self.structures.read(op, i), a.tensor) for i, a in enumerate(op.inputs)]
        operands.append((self.structures.output_layouts(op), op.output.tensor))
        kept = self._on_chain(placements)
        if self.target == "dtensor":
            order = self.structures.order(op)
            whole = [order.index(name) for name in window_axes(op)]
            kept = kept & (placements[:, whole, :] == 1).all(axis=(1, 2))
        for keyed, tensor in operands:
            key = (keyed.key, self._digits(tensor))
            if key not in self.known:
                self.known[key] = self._said(keyed.layouts, key[1])
            kept = kept & self.known[key][keyed.layouts.of_choice]
        return kept

    def of_copy(self, tensor: str) -> Truths:
        """Choices of a tensor's copy that are said."""
        keyed = self.structures.copy_layouts(tensor)
        said = self._said(keyed.layouts, self._digits(tensor))[keyed.layouts.of_choice]
        return np.asarray(said & self._on_chain(self.structures.of_copy(tensor)))

    def _digits(self, tensor: str) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...] | None]:
        """Digits of a tensor, and which of them make up every dimension of it as it is stored; None if they do not."""
        t = self.graph.tensor(tensor)
        if t.role is Role.VALUE or t.source_shape is None:
            return t.shape, tuple((k,) for k in range(len(t.shape)))
        groups = digit_groups(t.shape, t.source_shape)
        return t.shape, None if groups is None else tuple(map(tuple, groups))

    def _on_chain(self, placements: Ints) -> Truths:
        below = np.ones_like(placements)
        below[:, :-1, :] = np.cumprod(placements[:, :0:-1, :], axis=1)[:, ::-1, :]
        kept = np.ones(placements.shape[0], dtype=np.bool_)
        for j, size in enumerate(self.structures.machine.hierarchy):
            chain = np.array(prime_strides(size), dtype=np.int64)
            low, high = below[:, :-1, j], below[:, :-1, j] * placements[:, :-1, j]
            on = np.isin(low, chain) & np.isin(high, chain)
            kept &= (on | (placements[:, :-1, j] == 1)).all(axis=1)
        return kept

    def _said(self, found: LayoutSet, digits: tuple[tuple[int, ...], tuple[tuple[int, ...], ...] | None]) -> Truths:
        """Which of the distinct layouts are said."""
        shape, groups = digits
        cuts = [[self._cut(table, n) for table in tables] for tables, n in zip(found.dims, shape, strict=True)]
        verdicts: dict[tuple[Cut, ...], bool] = {}
        out = np.empty(len(found), dtype=np.bool_)
        for i, codes in enumerate(found.codes.tolist()):
            own = tuple(cuts[k][c] for k, c in enumerate(codes))
            if own not in verdicts:
                verdicts[own] = self._stored(own, shape, groups)
            out[i] = verdicts[own]
        return out

    def _stored(self, cuts: tuple[Cut, ...], shape: tuple[int, ...], groups: object) -> bool:
        names = [c for c in cuts if c is not None]
        if len(names) < len(cuts):
            return False
        if not isinstance(groups, tuple):
            return not any(names)
        for group in groups:
            row: list[int] = []
            whole = True
            for i in group:
                parts = prod(self.mesh.sizes[m] for m in names[i])
                if names[i] and not (whole and shape[i] % parts == 0):
                    return False
                row += names[i]
                whole = whole and parts == shape[i]
            if self.target == "dtensor" and row != sorted(row):
                return False
        return True

    def _cut(self, table: Ints, extent: int) -> Cut:
        key = (table.tobytes(), extent)
        if key not in self.cuts:
            self.cuts[key] = self._found(table, extent)
        return self.cuts[key]

    def _found(self, table: Ints, extent: int) -> Cut:
        if bool((table[:, 0] >= table[:, 1]).any()):
            return None
        grid = table.reshape(*self.mesh.sizes, 2)
        names = tuple(
            m for m, size in enumerate(self.mesh.sizes) if size > 1 and not (grid == np.take(grid, [0], axis=m)).all()
        )
        parts = prod(self.mesh.sizes[m] for m in names)
        if not names:
            return ()
        if extent % parts:
            return None
        rank = np.zeros(table.shape[0], dtype=np.int64)
        at = self.mesh.coordinates()
        for m in names:
            rank = rank * self.mesh.sizes[m] + at[:, m]
        size = extent // parts
        return names if np.array_equal(table, np.stack([rank * size, (rank + 1) * size], axis=1)) else None


def window_axes(op: Operator) -> list[str]:
    """Axes of a convolution that are neither its batch nor its channels: windows, their taps, groups of channels."""
    if op.function != "product" or not any(len(index.terms) > 1 for a in op.inputs for index in a.index):
        return []
    found = {name for a in op.inputs for index in a.index if len(index.terms) > 1 for name, _ in index.terms}
    operands = [{name for index in a.index for name, _ in index.terms} for a in (*op.inputs, op.output)]
    return sorted(found | set.intersection(*operands))


def restrict_costs(costs: Ints, said: Truths) -> Ints:
    """Costs of a vertex in which what is not said is forbidden."""
    return np.where(said, costs, np.int64(FORBIDDEN))


@lru_cache(maxsize=64)
def prime_strides(size: int) -> tuple[int, ...]:
    """Strides of the mesh inside a level.

    >>> prime_strides(12), prime_strides(1)
    ((1, 2, 4, 12), (1,))
    """
    strides, left, p = [1], size, 2
    while left > 1:
        while left % p == 0:
            strides.append(strides[-1] * p)
            left //= p
        p += 1
    return tuple(strides)


def prime_mesh(hierarchy: Sequence[int]) -> Mesh:
    """The mesh whose dimensions have prime sizes.

    >>> prime_mesh((2, 6)).sizes
    (2, 3, 2)
    """
    dimensions = []
    for level, size in enumerate(hierarchy):
        chain = prime_strides(size)
        parts = [(low, high // low) for low, high in pairwise(chain)][::-1] or [(1, 1)]
        dimensions += [MeshDimension(f"{level}_{low}", level, low, p) for low, p in parts]
    return Mesh(tuple(hierarchy), tuple(dimensions))
