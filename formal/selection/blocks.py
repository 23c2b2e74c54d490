"""Repeated blocks first: a solution and messages for a problem whose structure repeats, from one block and the two ends.

    block   the quotient (`repeat`) is solved as a problem of its own: a ring, often closed to optimality in seconds
    ends    choices of the block in the interior, everything near the ends searched again around them: a good solution of the whole
    seams   messages of the block at every repetition, those near the ends swept again in windows (`seams`)
    whole   the search over the whole begins a few sweeps from its end

Neither is believed: the solution is evaluated on the whole problem, and whatever the messages are, the bound is computed from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...models.problems import Ints, SelectionProblem
from ...proofs.certificates import Dual
from . import bounds
from .ascent import apply
from .columns import generate
from .eliminate import plan
from .mend import NODES, Make, converged, mend
from .messages import Sweeper, load
from .mixtures import Floats, layers, priced
from .network import allowed, build, whole
from .repeat import Quotient, quotient
from .seams import converge, distances, ends, settle
from .search import Search
from .shorten import Short, shorten

BLOCK_SHARE: Final = 0.4
"""Of the time limit, for the block."""

ENDS_SHARE: Final = 0.1
"""Of the time limit, for the ends."""

BEYOND: Final = 1.03
"""What exceeds a limit by more is not made to keep it at the ends alone."""

REACH: Final = 1
"""Edges between what the block does not describe and the first vertex that keeps the block's choice."""

SEAMS_SHARE: Final = 0.25
"""Of the time limit, for messages near the seams, or of the whole from those of a shorter row."""

SHORT_SHARE: Final = 0.12
"""Of the time limit, for the shorter row."""

STEEPER: Final = (1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
"""Multiples of the prices for which the block was solved, tried in turn while the bound of the short row rises."""

LEAST: Final = 200
"""Vertices from which looking for repetitions pays."""


def begin(search: Search, make: Make) -> Dual | None:
    """Offer solutions to the incumbent of `search`, return messages to start from; None when nothing is repeated.

    Rows that the cheapest solution found keeps are dropped from `search`: its bound needs no prices then.
    """
    problem, clock = search.problem, search.clock
    if len(problem.vertices) < LEAST or problem.fine is not None or search.fits(plan(build(search.unit, whole(problem)), search.limits.joint)):
        return None
    found = quotient(problem)
    if found is None or not all(d.size for d in allowed(problem)):
        return None
    inner = make(found.problem, clock.share(BLOCK_SHARE))
    inner.nodes = NODES
    search.progress.update("block", None, None)
    ring = converged(inner, make)
    inner.run(ring)
    solution = inner.incumbent.solution
    if solution is None:
        return spread(problem, found, ring)
    free = ends(problem, found, REACH)
    if len(free) * 2 > len(problem.vertices):  # the block describes too little of the whole
        free = set()
    x = found.expand(solution)
    if search.rows is None or int(search.rows.use(x).max(initial=0)) <= BEYOND * search.rows.limit:
        x = mend(search, make, replace(problem, limit=None, usages=()), x, free, clock.share(ENDS_SHARE))
    if search.rows is None or search.incumbent.offer(x):
        search.incumbent.offer(x)
        search.rows = None
        return _everywhere(search, make, found, ring, None)
    at = generate(search, make, found, (solution, ring), free)
    return None if at is None else _everywhere(search, make, found, *at)


def settled(search: Search, found: Quotient, warm: Dual, across: bool = False) -> Dual:
    """`warm` improved at its multipliers: in windows near the seams, or with `across` everywhere."""
    search.progress.update("seams", None, search.upper())
    network = build(search.base, allowed(search.problem))
    sweeper = Sweeper(network, list(range(len(network.domains))), search.threads)
    load(sweeper, warm)
    enough = None if search.upper() is None else search.enough() * search.denominator - network.base.constant
    multipliers: tuple[tuple[int, int], ...] = ()
    if search.rows is not None:
        prices = search.multipliers(search.rows, warm)
        multipliers = search.rows.pairs(prices)
        apply(sweeper, search.rows, prices)
        enough = None if enough is None else enough + search.rows.limit * int(prices.sum())
    until = search.clock.share(SEAMS_SHARE)
    if across:
        converge(sweeper, until, enough)
    else:
        settle(sweeper, distances(search.problem, ends(search.problem, found, 0)), enough, until)
    return Dual(*bounds.spread(network, sweeper.to_u, sweeper.to_v), search.denominator, multipliers)


def _everywhere(search: Search, make: Make, found: Quotient, ring: Dual, n: Floats | None) -> Dual:
    """Messages for the whole from those of one block at prices `n` of its resource rows: what the ends ask of every block reaches it.

    Through a shorter row where there are many blocks (`shorten`), in windows near the seams otherwise (`seams`).
    """
    problem = search.problem
    search.progress.update("seams", None, search.upper())
    short = shorten(problem, found, layers(problem, found))
    warm = None if short is None else _lengthened(search, make, found, short, ring, n)
    if warm is not None:
        return settled(search, found, warm, across=True)
    return settled(search, found, replace(spread(problem, found, ring), multipliers=_pairs(search, n, ring.denominator)))


def _lengthened(search: Search, make: Make, found: Quotient, short: Short, ring: Dual, n: Floats | None) -> Dual | None:
    """Messages of a short row at every block, with the best multipliers among some multiples of `n`; None when the time was over at once."""
    start = spread(short.problem, replace(found, of_edge=tuple(found.of_edge[e] for e in short.edges)), ring)
    until = search.clock.share(SHORT_SHARE)
    best: tuple[float, Dual] | None = None
    for factor in STEEPER if n is not None else (1.0,):
        if n is None:
            row = short.problem
            taken = 0.0
        else:
            events = short.long.events()
            steep = short.prices(n, factor * n)
            row = short.costs(priced(short.long, events, steep), priced(short.long, events, factor * n), found)
            taken = factor * float(n.sum()) * (short.long.limit or 0)
        inner = make(row, until)
        network = build(inner.base, allowed(row))
        sweeper = Sweeper(network, list(range(len(network.domains))), search.threads)
        load(sweeper, start)
        bound = converge(sweeper, until)
        if bound is None:
            break
        start = Dual(*bounds.spread(network, sweeper.to_u, sweeper.to_v), inner.denominator)
        value = (bound + network.base.constant) / inner.denominator - taken
        if best is not None and value <= best[0]:
            break
        long = short.lengthen(start, search.denominator)
        best = value, replace(long, multipliers=_pairs(search, None if n is None else factor * n, long.denominator))
    return None if best is None else best[1]


def _pairs(search: Search, n: Floats | None, denominator: int) -> tuple[tuple[int, int], ...]:
    """Prices over the events as multipliers of a record."""
    if n is None:
        return ()
    events = search.problem.events()
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
