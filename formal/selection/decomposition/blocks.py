"""Starts the search of a problem whose structure repeats: a solution and messages for the whole from one
block.

    plan    the best plan that is the same in every repetition, ends included (`decomposition/symmetric.py`): often the
            optimum, found in seconds
    limit   where it exceeds a limit, plans at prices of the resource rows (`decomposition/column_generation.py`), and
            mixtures of two over the layers (`decomposition/round_master.py`)
    ring    messages of one block, given to every repetition
    interfaces   what they miss near the ends: through a shorter row where there are many blocks
            (`decomposition/coarsen.py`)
    whole   the search over the whole begins a few sweeps from its end

Neither is believed: the solution is evaluated on the whole problem, and whatever the messages are, the bound is
computed from them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....models.problem.selection_problem import Ints, SelectionProblem
from ....proofs.selection.certificates import Dual
from ..elimination.factored import elimination_order
from ..model.factored import allowed_domains, build, exact_cost, whole
from ..model.priced import Floats, priced_problem
from ..model.resources import Rows
from ..tree.run import Run, converge_on_whole
from .coarsen import coarsen
from .column_generation import generate_columns
from .interface import ends
from .layers import layers
from .quotient import Quotient, quotient
from .symmetric import symmetric_problem


def begin(run: Run) -> Dual | None:
    """Offer solutions to the incumbent of `run`, return messages to start from; None when nothing is repeated.

    Rows that the cheapest solution found keeps are dropped from `run`: its bound needs no prices then.
    """
    problem, clock, options = run.problem, run.clock, run.options.decomposition
    if (
        len(problem.vertices) < options.vertices
        or problem.fine is not None
        or (run.rows is None and run.fits(elimination_order(build(run.unit, whole(problem)), run.limits.joint)))
    ):
        return None
    found = quotient(problem, options)
    if found is None or not all(d.size for d in allowed_domains(problem)):
        return None
    same = symmetric_problem(problem, found)
    inner = run.part(replace(same, usages=(), limit=None), clock.share(options.symmetric_share))
    inner.nodes = run.options.tree.nodes
    run.progress.update("uniform plan", None, None)
    first = converge_on_whole(inner)
    inner.search(first)
    solution = inner.incumbent.solution
    fits = False
    if solution is not None:
        same_everywhere = found.solution_back(solution)
        run.incumbent.offer(same_everywhere)
        fits = exact_cost(problem, same_everywhere) is not None
    free = ends(problem, found, options.reach, run.options.bound.hub)
    if len(free) * 2 > len(problem.vertices):  # the block describes too little of the whole
        free = set()
    if solution is not None and run.rows is not None and not fits:
        at = generate_columns(run, found, Rows(same), (solution, first), free)
        return None if at is None else _everywhere(run, found, *at)
    ring = converge_on_whole(run.part(found.problem, clock.share(options.ring_share)))
    if solution is None:
        return spread(problem, found, ring)
    run.rows = None
    return _everywhere(run, found, ring, None)


def converge_at(run: Run, warm: Dual) -> Dual:
    """`warm` improved at its multipliers."""
    run.progress.update("seams", None, run.upper())
    enough = run.enough() - abs(run.enough()) // run.options.decomposition.nearly
    share = run.options.decomposition.interface_share
    return converge_on_whole(run, warm, share, None if run.upper() is None else enough)


def _everywhere(run: Run, found: Quotient, ring: Dual, n: Floats | None) -> Dual:
    """Messages for the whole from those of one block at prices `n` of the resource rows: what the ends ask of every
    block reaches it.

    Through a shorter row where there are many blocks (`decomposition/coarsen.py`).
    """
    run.progress.update("seams", None, run.upper())
    row = run.problem if n is None or run.rows is None else priced_problem(run.rows, n)
    short = coarsen(row, found, layers(row, found), run.options.decomposition)
    if short is None:
        warm = spread(row, found, ring)
    else:
        few = replace(found, of_edge=tuple(found.of_edge[e] for e in short.edges))
        until = run.clock.share(run.options.decomposition.coarse_share)
        swept = converge_on_whole(run.part(short.problem, until), spread(short.problem, few, ring), 1.0)
        warm = short.prolong(swept, run.denominator)
    if n is None:
        return converge_at(run, warm)
    events = run.problem.events()
    pairs = ((events[k], round(float(n[k]) * warm.denominator)) for k in np.flatnonzero(n).tolist())
    return converge_at(run, replace(warm, multipliers=tuple(pairs)))


def spread(problem: SelectionProblem, found: Quotient, record: Dual) -> Dual:
    """The messages of `record` on every repetition, zero on edges that the quotient lacks."""
    zeros: dict[int, Ints] = {}

    def one(side: tuple[Ints, ...], k: int | None, size: int) -> Ints:
        return zeros.setdefault(size, np.zeros(size, dtype=np.int64)) if k is None else side[k]

    pairs = list(zip(problem.edges, found.of_edge, strict=True))
    to_u = tuple(one(record.to_u, k, problem.tables[e.table].shape[0]) for e, k in pairs)
    to_v = tuple(one(record.to_v, k, problem.tables[e.table].shape[1]) for e, k in pairs)
    return Dual(to_u, to_v, record.denominator)
