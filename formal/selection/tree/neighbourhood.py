"""Searches part of a solution again around the rest of it, known as large neighbourhood search (fix and
optimise), and repairs it locally at prices (Lagrangian repair).

    search_neighbourhood    the vertices of a window, without rows or at their prices, one connected part after another
    repair_by_prices        a small window under the rows themselves

Prices alone leave a limit either exceeded or badly used: as they rise the best choices jump from one to the next
corner of the convex hull of (usage, cost), and a solution that just fits is most often none of the corners.  So
`repair_by_prices` moves the prices until the window's choices fit, and searches below the limit from there, with the
messages and prices that it has: the bound is then right at the first node.

Measured (BERT-Large with Adam, batch 64, 4x8, limit 3.45 GiB; the layer where the plans change, 187 vertices; ms):
corners 111.05, which exceeds the limit by 0.02 GiB, and 112.11; between them 111.97 after 0.8 s and 111.80 after 7 s
(no less than 111.48).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.selection.certificates import Dual
from ..elimination.factored import elimination_order
from ..model.clock import Clock
from ..model.factored import build, whole
from ..model.priced import Floats, priced_problem
from ..model.restrict import condition

if TYPE_CHECKING:
    from .run import Run
from .run import converge_on_whole


def search_neighbourhood(
    run: Run, problem: SelectionProblem, solution: tuple[int, ...], free: set[int], until: Clock
) -> tuple[int, ...]:
    """`solution` of `problem` (without rows) with the choices of `free` searched again, one connected part after
    another; no dearer.
    """
    left = len(free)
    for part in connected_parts(problem, free):
        small = condition(problem, solution, part)
        run.progress.update("ends", None, None)
        inner = run.part(small.inner, until.share(len(part) / left))
        left -= len(part)
        inner.nodes, inner.gap = run.options.tree.nodes, run.options.tree.part_gap
        inner.incumbent.offer(tuple(solution[v] for v in sorted(part)))
        inner.search(
            None
            if inner.fits(elimination_order(build(inner.unit, whole(small.inner)), inner.limits.joint))
            else converge_on_whole(inner)
        )
        if inner.incumbent.solution is not None:
            solution = small.solution_back(inner.incumbent.solution)
    return solution


def repair_by_prices(
    run: Run, solution: tuple[int, ...], n: Floats, free: set[int], until: Clock
) -> tuple[int, ...] | None:
    """The cheapest solution found that fits and differs from `solution` only in `free`; `n`: prices of the rows of
    `run` over their events.

    Where `solution` exceeds the limit most at a row without a price, that one gets a price, otherwise all prices rise.
    None if none was found.
    """
    rows = run.rows
    assert rows is not None

    def fits(x: tuple[int, ...]) -> bool:
        return int(rows.use(x).max(initial=0)) <= rows.limit

    def at(factor: float, x: tuple[int, ...]) -> tuple[tuple[int, ...], Dual]:
        prices = n + (factor - 1.0) * direction
        small = condition(priced_problem(rows, prices), solution, free)
        inner = run.part(small.inner, until.share(run.options.tree.prices_share / len(run.options.tree.dearer)))
        inner.nodes = run.options.tree.nodes
        inner.incumbent.offer(tuple(x[v] for v in sorted(free)))
        warm = converge_on_whole(inner)
        inner.search(warm)
        found = inner.incumbent.solution
        pairs = tuple(
            (t, round(float(k) * warm.denominator))
            for t, k in zip(rows.events, prices.tolist(), strict=True)
            if k > 0.0
        )
        return x if found is None else small.solution_back(found), replace(warm, multipliers=pairs)

    run.progress.update("under the limit", None, run.upper())
    direction, use = n, rows.use(solution)
    worst = int(use.argmax())
    if use[worst] > rows.limit and n[worst] == 0.0:
        direction = np.zeros(n.size)
        direction[worst] = max(1.0, float(n.sum()))
    best: tuple[int, ...] | None = solution if fits(solution) else None
    warm: Dual | None = None
    x = solution
    for factor in run.options.tree.dearer if best is None else run.options.tree.cheaper:
        x, record = at(factor, x)
        if fits(x):
            best, warm = x, record
        if fits(x) != fits(solution) or until.over():
            break
    if best is None:
        return None
    if warm is None:
        _, warm = at(1.0, best)
    small = condition(run.problem, best, free)
    inner = run.part(small.inner, until)
    inner.nodes = run.options.tree.nodes
    inner.incumbent.offer((*(best[v] for v in sorted(free)), 0))
    inner.search(warm)
    return best if inner.incumbent.solution is None else small.solution_back(inner.incumbent.solution)


def connected_parts(problem: SelectionProblem, free: set[int]) -> list[set[int]]:
    """The parts of `free` that no edge joins, smallest first."""
    near: dict[int, list[int]] = {v: [] for v in sorted(free)}
    for e in problem.edges:
        if e.u in free and e.v in free:
            near[e.u].append(e.v)
            near[e.v].append(e.u)
    parts: list[set[int]] = []
    for v in sorted(free):
        if v in near:
            part, todo = {v}, [v]
            while todo:
                fresh = set(near.pop(todo.pop())) - part  # two vertices may have several edges
                part |= fresh
                todo += fresh
            parts.append(part)
    return sorted(parts, key=lambda part: (len(part), min(part)))
