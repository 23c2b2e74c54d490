"""The bound that needs no search: messages that are all zero,

    constant + sum_v min c_v + sum_e min T_e.

Where no entry is negative, it is none either.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, SelectionProblem
from ....proofs.selection.certificates import Dual, Record
from ..model.factored import INFINITE
from ..model.infinity import INFINITY


def plain_dual(problem: SelectionProblem) -> tuple[Dual, int]:
    """Messages that are all zero, and the bound they establish in units of the coarse tables (INFINITY: nothing is
    allowed).

    >>> from ....models.problem.selection_problem import Edge, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 2])), Vertex("b", np.array([0, 5]))), (np.array([[3, 9],
    ...     [9, 4]]),), (Edge(0, 1, 0),))
    >>> plain_dual(p)[1]
    4
    """
    least = [int(table.min(initial=FORBIDDEN)) for table in problem.tables]
    costs = [int(v.cost.min()) for v in problem.vertices]
    used = [least[e.table] for e in problem.edges]
    rows = [np.zeros(table.shape[0], dtype=np.int64) for table in problem.tables]
    columns = [np.zeros(table.shape[1], dtype=np.int64) for table in problem.tables]
    record = Dual(tuple(rows[e.table] for e in problem.edges), tuple(columns[e.table] for e in problem.edges))
    if max((*costs, *used), default=0) >= INFINITE:
        return record, INFINITY
    return record, problem.constant + sum(costs) + sum(used)


def at_least_plain(problem: SelectionProblem, record: Record, bound: int) -> tuple[Record, int]:
    """`record` and the bound that it establishes, in units of the problem, or the plain one where that says more:
    messages of a search that was ended early may be worth less than none.
    """
    plain, least = plain_dual(problem)
    least = least if least >= INFINITY else least << problem.fine_bits
    return (record, bound) if bound >= least or least >= INFINITY else (plain, least)
