"""Nodes of the search of small networks, and the arrays of their problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ....proofs.selection.certificates import Elimination
from ..model.dense import DenseProblem, concatenate_all, dense_problem
from ..model.factored import Domains
from ..model.units import denominator_for
from ..presolve.presolve import Presolved
from . import network_kernels as kernels
from .network_kernels import FAR, LIMIT


@dataclass(eq=False)
class Net:
    """A reduced problem in arrays: costs in units of 1/q, `constant` beside them.  `lift`: its solutions as those of
    the run's problem; `dense`: it has more table entries than what it was made of.
    """

    flat: DenseProblem
    q: int
    weight: Ints
    cells: Ints
    lift: Callable[[tuple[int, ...]], tuple[int, ...]]
    dense: bool = False

    def __post_init__(self) -> None:
        self.constant = self.flat.problem.constant * self.q
        self.excess = np.zeros(self.flat.labels, dtype=np.int64)
        self.degree = np.diff(self.flat.graph.near)

    @staticmethod
    def of(problem: SelectionProblem, lift: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Net | None:
        """None where numbers are too large for sums of messages."""
        flat, q = dense_problem(problem), denominator_for(problem)
        largest = max((int(np.abs(a[a < FORBIDDEN]).max(initial=0)) for a in (flat.cost, flat.cells)), default=0)
        degree = int(np.diff(flat.graph.near).max(initial=0))
        if largest * q >= LIMIT >> 1 or degree * 4 * LIMIT >= FAR:
            return None
        weight, cells = (
            np.where(a >= FORBIDDEN, FAR, np.where(a >= FORBIDDEN, 0, a) * q) for a in (flat.cost, flat.cells)
        )
        return Net(flat, q, weight, cells, lift)

    def units(self, bound: int) -> int:
        """A bound in units of the problem, rounded up."""
        return -(-(bound + self.constant) // self.q)

    def whole(self) -> tuple[Ints, Ints]:
        """All labels: how many of each vertex, and which."""
        sizes = np.diff(self.flat.label).astype(np.int64)
        return sizes, concatenate_all(np.arange(k, dtype=np.int64) for k in sizes)

    def score(self, messages: Ints, cnt: Ints, lab: Ints) -> int:
        """The bound of the labels left without the constant, with `excess` beside it."""
        graph = self.flat.graph
        return int(kernels.score(graph, self.weight, self.cells, messages, cnt, lab, self.excess))

    def with_part(self, cnt: Ints, lab: Ints, v: int, part: tuple[int, ...]) -> tuple[Ints, Ints]:
        """The labels left, of `v` those of the part."""
        cnt, lab = cnt.copy(), lab.copy()
        here = self.flat.label[v]
        cnt[v] = len(part)
        lab[here : here + len(part)] = sorted(part)
        return cnt, lab

    def entries(self, cnt: Ints) -> int:
        """Table entries of the labels left, where both ends have several."""
        graph = self.flat.graph
        several = np.where(cnt > 1, cnt, 0)
        return int((several[graph.u] * several[graph.v]).sum())

    def domains(self, cnt: Ints, lab: Ints) -> Domains:
        """The labels left, vertex by vertex."""
        return tuple(lab[i : i + k].copy() for i, k in zip(self.flat.label[:-1].tolist(), cnt.tolist(), strict=True))


@dataclass(eq=False)
class Node:
    """Labels left (`cnt`, `lab`), messages to begin from, and what is known.

    `duals`: the rounds, messages and bound each; `vertex`, `parts`, `children`: the split below; `reduced`: what is
    left presolved, with the node of the new problem (None: nothing is left); `exact`: it was eliminated.  `first`: of
    its problem.
    """

    net: Net
    bound: int
    cnt: Ints
    lab: Ints
    messages: Ints
    depth: int = 0
    first: bool = False
    duals: list[tuple[Ints, int]] = field(default_factory=list)
    vertex: int = -1
    parts: tuple[tuple[int, ...], ...] = ()
    children: list[Node] = field(default_factory=list)
    reduced: tuple[Presolved, Node | None] | None = None
    exact: Elimination | None = None
    empty: bool = False
    point: bool = False

    @property
    def key(self) -> float:
        """The bound in units of the problem."""
        return (self.bound + self.net.constant) / self.net.q


def first_node(net: Net, messages: Ints | None, bound: int, depth: int) -> Node:
    """The node of a whole problem."""
    zero = np.zeros(int(net.flat.graph.message[-1]), dtype=np.int64)
    return Node(net, bound, *net.whole(), zero if messages is None else messages, depth, first=True)
