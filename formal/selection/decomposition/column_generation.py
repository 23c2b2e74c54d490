"""Finds symmetric solutions at prices of the resource rows, known as column generation: multipliers from
the restricted master (`bound/restricted_master.py`), the cheapest symmetric solution at them as the next column
(`decomposition/symmetric.py`), until no column is cheaper than its prices; then the master's solution is rounded
(`decomposition/round_master.py`).

The better the plans, the better everything after them: what a plan misses at its prices, every layer of the mixture
misses, and the prices are wrong by as much.  (Measured: BERT-Large with Adam, batch 64, 4x8, limit 3.45 GiB: plans 5 %
from their bounds, mixture 113.2 ms, bound 107.4; plans 0.3 % from them, 111.1 with one layer too many, 108.9.)
"""

from __future__ import annotations

import numpy as np

from ....proofs.selection.certificates import Dual
from ..bound.restricted_master import Column, master
from ..model.clock import Clock
from ..model.priced import Floats, priced_problem
from ..model.resources import Rows
from ..options import DecompositionOptions
from ..tree.proof_tree import DualNode
from ..tree.run import Run, converge_on_whole
from .quotient import Quotient
from .round_master import round_master
from .symmetric import average


def generate_columns(
    run: Run,
    found: Quotient,
    same: Rows,
    first: tuple[tuple[int, ...], Dual],
    free: set[int],
) -> tuple[Dual, Floats] | None:
    """Offers mixtures to the incumbent; messages of one block at the prices that bound best, and these.  None if no
    plans fit together.

    `same`: the symmetric problem under its rows; `first`: its plan and messages without prices; `free`: vertices that
    the block does not describe.
    """
    options, limit = run.options.decomposition, same.limit
    columns = [column_of(same, first[0])]
    until = run.clock.share(options.prices_share)
    best, n, warm = -np.inf, np.zeros(len(same.events)), first[1]
    values: list[float] = []
    for _ in range(options.columns):
        mixed = master(columns, limit, run.options.bound)
        values.append(mixed.value if mixed.over <= 0.0 else np.inf)
        if len(values) > options.idle and values[-1 - options.idle] - values[-1] <= options.idle_gain * values[-1]:
            break
        if until.over() or mixed.over <= 0.0 and mixed.value - best <= options.close * abs(mixed.value):
            break
        at = _steep(columns, limit, options) if mixed.over > 0.0 else mixed.n
        found_next = _column(run, same, at, columns, warm, until.share(options.column_share))
        if found_next is None:
            break
        column, record, slack = found_next
        warm = record if record is not None else warm
        value = column.cost + float(at @ column.use) - limit * float(at.sum())
        if value - slack > best:
            best, n = value - slack, at
        columns.append(column)
        run.incumbent.offer(found.solution_back(column.plan))  # whatever comes of mixtures, a plan that fits is kept
        run.progress.update("prices", None, run.upper())
    mixed = master(columns, limit, run.options.bound)
    if mixed.over > 0.0:
        return None
    round_master(run, found, columns, mixed.n, free)
    return converge_on_whole(run.part(average(same, found, n), run.clock.share(options.priced_ring_share))), n


def column_of(same: Rows, plan: tuple[int, ...]) -> Column:
    """What a symmetric plan costs and uses."""
    return Column(plan, same.problem.cost_of(plan), same.use(plan).astype(np.float64))


def _steep(columns: list[Column], limit: int, options: DecompositionOptions) -> Floats:
    """Prices while nothing fits: at the events where the plans tried use most, more where later ones do, and steeper
    with every plan.
    """
    k, n = len(columns) - 1, np.zeros(columns[0].use.size)
    for column in columns:
        n[int(column.use.argmax())] += max(1.0, float(n.max()))
    total = options.steep * options.steeper ** (k * (k + 1) // 2) * columns[0].cost / limit
    return n * (total / float(n.sum()))


def _column(
    run: Run, same: Rows, n: Floats, columns: list[Column], warm: Dual, until: Clock
) -> tuple[Column, Dual | None, float] | None:
    """The symmetric solution at prices `n`, messages, and how far the plan may be from the best one; None where the
    prices forbid everything.
    """
    inner = run.part(priced_problem(same, n), until)
    for column in columns:
        inner.incumbent.offer(column.plan)
    inner.nodes, inner.gap = inner.options.tree.nodes, inner.options.decomposition.column_gap
    draft = inner.search(converge_on_whole(inner, warm))
    x = inner.incumbent.solution
    if x is None:
        return None
    lower = draft.score.lower() if isinstance(draft, DualNode) else inner.incumbent.cost
    slack = 0.0 if lower is None else float(max(0, inner.incumbent.cost - lower))
    return column_of(same, x), draft.record if isinstance(draft, DualNode) else None, slack
