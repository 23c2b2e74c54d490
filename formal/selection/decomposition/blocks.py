"""This module starts the search of a problem whose structure repeats: a solution and messages for the whole from one
block.

    plan    the best plan that is the same in every repetition, ends included (`decomposition/symmetric.py`): often the
            optimum, found in seconds
    limit   where it exceeds a limit, plans at prices of the resource rows (`decomposition/column_generation.py`), and
            mixtures of two over the layers (`decomposition/round_master.py`)
    ring    messages of one block, given to every repetition
    seams   what they miss near the ends: through a shorter row where there are many blocks
            (`decomposition/coarsen.py`), in windows otherwise (`decomposition/interface.py`)
    whole   the search over the whole begins a few sweeps from its end

Neither is believed: the solution is evaluated on the whole problem, and whatever the messages are, the bound is
computed from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ....models.problem.selection_problem import Ints, SelectionProblem
from ....proofs.selection.certificates import Dual
from ..bound import dual
from ..bound.converge import converge
from ..bound.subgradient import apply_multipliers
from ..bound.trws import Sweeper, load
from ..elimination.factored import elimination_order
from ..model.factored import allowed, build, whole
from ..model.priced import Floats, priced
from ..tree.neighbourhood import NODES
from ..tree.run import Make, Run, converged
from .coarsen import Coarse, coarsen
from .column_generation import generate_columns
from .interface import distances, ends, sweep_windows
from .layers import layers
from .quotient import Quotient, quotient
from .symmetric import symmetric_problem

PLAN_SHARE: Final = 0.4
"""Of the time limit, for the uniform plan."""

RING_SHARE: Final = 0.1
"""Of the time limit, for messages of one block without prices."""

REACH: Final = 1
"""Edges between what the block does not describe and the first vertex that keeps the block's choice."""

SEAMS_SHARE: Final = 0.12
"""Of the time limit, for messages near the seams, or of the whole from those of a shorter row."""

SHORT_SHARE: Final = 0.22
"""Of the time limit, for the shorter row."""

NEARLY: Final = 100_000
"""Messages are swept until one part in so many of the cost is left: fixing and elimination close that sooner than
sweeps.
"""

LEAST: Final = 200
"""Vertices from which looking for repetitions pays."""


def begin(run: Run, make: Make) -> Dual | None:
    """Offer solutions to the incumbent of `search`, return messages to start from; None when nothing is repeated.

    Rows that the cheapest solution found keeps are dropped from `search`: its bound needs no prices then.
    """
    problem, clock = run.problem, run.clock
    if (
        len(problem.vertices) < LEAST
        or problem.fine is not None
        or run.fits(elimination_order(build(run.unit, whole(problem)), run.limits.joint))
    ):
        return None
    found = quotient(problem)
    if found is None or not all(d.size for d in allowed(problem)):
        return None
    same = symmetric_problem(problem, found)
    inner = make(same, clock.share(PLAN_SHARE))
    inner.nodes = NODES
    run.progress.update("uniform plan", None, None)
    first = converged(inner)
    inner.search(first)
    solution = inner.incumbent.solution
    if solution is not None:
        run.incumbent.offer(found.expand(solution))
    free = ends(problem, found, REACH)
    if len(free) * 2 > len(problem.vertices):  # the block describes too little of the whole
        free = set()
    if solution is not None and run.rows is not None and run.incumbent.solution is None:
        at = generate_columns(run, make, found, same, (solution, first), free)
        return None if at is None else _everywhere(run, make, found, *at)
    ring = converged(make(found.problem, clock.share(RING_SHARE)))
    if solution is None:
        return spread(problem, found, ring)
    run.rows = None
    return _everywhere(run, make, found, ring, None)


def settled(run: Run, found: Quotient, warm: Dual, across: bool = False) -> Dual:
    """`warm` improved at its multipliers: in windows near the seams, or with `across` everywhere."""
    run.progress.update("seams", None, run.upper())
    network = build(run.base, allowed(run.problem))
    sweeper = Sweeper(network, list(range(len(network.domains))), run.threads)
    load(sweeper, warm)
    enough = (
        None
        if run.upper() is None
        else (run.enough() - abs(run.enough()) // NEARLY) * run.denominator - network.base.constant
    )
    multipliers: tuple[tuple[int, int], ...] = ()
    if run.rows is not None:
        prices = run.multipliers(run.rows, warm)
        multipliers = run.rows.pairs(prices)
        apply_multipliers(sweeper, run.rows, prices)
        enough = None if enough is None else enough + run.rows.limit * int(prices.sum())
    until = run.clock.share(SEAMS_SHARE)
    if across:
        converge(sweeper, until, enough)
    else:
        sweep_windows(sweeper, distances(run.problem, ends(run.problem, found, 0)), enough, until)
    return Dual(*dual.spread(network, sweeper.to_u, sweeper.to_v), run.denominator, multipliers)


def _everywhere(run: Run, make: Make, found: Quotient, ring: Dual, n: Floats | None) -> Dual:
    """Messages for the whole from those of one block at prices `n` of the resource rows: what the ends ask of every
    block reaches it.

    Through a shorter row where there are many blocks (`decomposition/coarsen.py`), in windows near the seams otherwise
    (`decomposition/interface.py`).
    """
    run.progress.update("seams", None, run.upper())
    row = run.problem if n is None else priced(run.problem, run.problem.events(), n)
    short = coarsen(row, found, layers(row, found))
    warm = None if short is None else _prolonged(run, make, found, short, ring)
    if warm is not None:
        return settled(run, found, replace(warm, multipliers=_pairs(run, n, warm.denominator)), across=True)
    return settled(run, found, replace(spread(row, found, ring), multipliers=_pairs(run, n, ring.denominator)))


def _prolonged(run: Run, make: Make, found: Quotient, short: Coarse, ring: Dual) -> Dual | None:
    """Messages of a short row, swept from those of the ring, at every block; None when the time was over at once."""
    inner = make(short.problem, run.clock.share(SHORT_SHARE))
    network = build(inner.base, allowed(short.problem))
    sweeper = Sweeper(network, list(range(len(network.domains))), run.threads)
    load(sweeper, spread(short.problem, replace(found, of_edge=tuple(found.of_edge[e] for e in short.edges)), ring))
    if converge(sweeper, inner.clock) is None:
        return None
    return short.prolong(Dual(*dual.spread(network, sweeper.to_u, sweeper.to_v), inner.denominator), run.denominator)


def _pairs(run: Run, n: Floats | None, denominator: int) -> tuple[tuple[int, int], ...]:
    """Prices over the events as multipliers of a record."""
    if n is None:
        return ()
    events = run.problem.events()
    return tuple((events[k], round(float(n[k]) * denominator)) for k in np.flatnonzero(n).tolist())


def spread(problem: SelectionProblem, found: Quotient, record: Dual) -> Dual:
    """The messages of `record` on every repetition, zero on edges that the quotient lacks."""
    zeros: dict[int, Ints] = {}

    def one(side: tuple[Ints, ...], k: int | None, size: int) -> Ints:
        return zeros.setdefault(size, np.zeros(size, dtype=np.int64)) if k is None else side[k]

    pairs = list(zip(problem.edges, found.of_edge, strict=True))
    to_u = tuple(one(record.to_u, k, problem.tables[e.table].shape[0]) for e, k in pairs)
    to_v = tuple(one(record.to_v, k, problem.tables[e.table].shape[1]) for e, k in pairs)
    return Dual(to_u, to_v, record.denominator)
