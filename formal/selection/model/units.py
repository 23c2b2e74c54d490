"""Tells what the numbers of a problem ask for: the unit of the messages, and whether resource rows can
bind at all.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints, SelectionProblem
from ..options.bound import BOUND, BoundOptions
from .factored import INFINITE
from .resources import Rows


def denominator_for(problem: SelectionProblem) -> int:
    """Q: finer units than the costs when they are small integers, 1 when they are large or the tables are."""
    cells = sum(t.size for t in problem.tables)
    total = abs(problem.constant) + sum(_largest(v.cost) for v in problem.vertices)
    largest = [_largest(t) for t in problem.tables]
    total += sum(largest[e.table] for e in problem.edges)
    if cells > 1 << 24:
        return 1
    # multipliers are costs per unit of usage, often far below one: rows need the finer unit
    return 1 << max(0, min(24, (40 if problem.limit is None else 54) - total.bit_length()))


def binding_rows(problem: SelectionProblem, options: BoundOptions = BOUND) -> Rows | None:
    """The rows of `problem`, None when no choice at all can exceed the limit."""
    if problem.limit is None or not problem.usages:
        return None
    rows = Rows(problem, options)
    most = np.zeros(len(rows.events), dtype=np.int64)
    for kinds in rows.kinds:
        if kinds is not None:
            most[kinds.span] += kinds.usage.max(axis=0)
    return rows if most.size and int(most.max()) > problem.limit else None


def _largest(a: Ints) -> int:
    finite = a[a < INFINITE] if a.size and int(a.max()) >= INFINITE else a
    return 0 if finite.size == 0 else max(abs(int(finite.max())), abs(int(finite.min())))
