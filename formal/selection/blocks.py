"""Repeated blocks first: a solution and messages for a problem whose structure repeats.

    plan    the best plan that is the same in every repetition, ends included (`uniform`): often the optimum, found in
            seconds
    limit   where it exceeds a limit, plans at prices of the resource rows (`columns`), and mixtures of two over the
            layers (`layered`)
    ring    messages of one block, given to every repetition
    seams   what they miss near the ends: through a shorter row where there are many blocks (`shorten`), in windows
            otherwise (`seams`)
    whole   the search over the whole begins a few sweeps from its end

Neither is believed: the solution is evaluated on the whole problem, and whatever the messages are, the bound is
computed from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...models.problem.selection_problem import Ints, SelectionProblem
from ...proofs.selection.certificates import Dual
from . import bounds
from .ascent import apply
from .columns import generate
from .eliminate import plan
from .mend import NODES, Make, swept
from .messages import Sweeper, load
from .mixtures import layers
from .network import allowed, build, whole
from .repeat import Quotient, quotient
from .seams import converge, distances, ends, settle
from .search import Search
from .shorten import Short, shorten
from .uniform import Floats, priced, uniform

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


def begin(search: Search, make: Make) -> Dual | None:
    """Offer solutions to the incumbent of `search`, return messages to start from; None when nothing is repeated.

    Rows that the cheapest solution found keeps are dropped from `search`: its bound needs no prices then.
    """
    problem, clock = search.problem, search.clock
    if (
        len(problem.vertices) < LEAST
        or problem.fine is not None
        or search.fits(plan(build(search.unit, whole(problem)), search.limits.joint))
    ):
        return None
    found = quotient(problem)
    if found is None or not all(d.size for d in allowed(problem)):
        return None
    same = uniform(problem, found)
    inner = make(same, clock.share(PLAN_SHARE))
    inner.nodes = NODES
    search.progress.update("uniform plan", None, None)
    first = swept(inner)
    inner.run(first)
    solution = inner.incumbent.solution
    if solution is not None:
        search.incumbent.offer(found.expand(solution))
    free = ends(problem, found, REACH)
    if len(free) * 2 > len(problem.vertices):  # the block describes too little of the whole
        free = set()
    if solution is not None and search.rows is not None and search.incumbent.solution is None:
        at = generate(search, make, found, same, (solution, first), free)
        return None if at is None else _everywhere(search, make, found, *at)
    ring = swept(make(found.problem, clock.share(RING_SHARE)))
    if solution is None:
        return spread(problem, found, ring)
    search.rows = None
    return _everywhere(search, make, found, ring, None)


def settled(search: Search, found: Quotient, warm: Dual, across: bool = False) -> Dual:
    """`warm` improved at its multipliers: in windows near the seams, or with `across` everywhere."""
    search.progress.update("seams", None, search.upper())
    network = build(search.base, allowed(search.problem))
    sweeper = Sweeper(network, list(range(len(network.domains))), search.threads)
    load(sweeper, warm)
    enough = (
        None
        if search.upper() is None
        else (search.enough() - abs(search.enough()) // NEARLY) * search.denominator - network.base.constant
    )
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
    """Messages for the whole from those of one block at prices `n` of the resource rows: what the ends ask of every
    block reaches it.

    Through a shorter row where there are many blocks (`shorten`), in windows near the seams otherwise (`seams`).
    """
    search.progress.update("seams", None, search.upper())
    row = search.problem if n is None else priced(search.problem, search.problem.events(), n)
    short = shorten(row, found, layers(row, found))
    warm = None if short is None else _lengthened(search, make, found, short, ring)
    if warm is not None:
        return settled(search, found, replace(warm, multipliers=_pairs(search, n, warm.denominator)), across=True)
    return settled(search, found, replace(spread(row, found, ring), multipliers=_pairs(search, n, ring.denominator)))


def _lengthened(search: Search, make: Make, found: Quotient, short: Short, ring: Dual) -> Dual | None:
    """Messages of a short row, swept from those of the ring, at every block; None when the time was over at once."""
    inner = make(short.problem, search.clock.share(SHORT_SHARE))
    network = build(inner.base, allowed(short.problem))
    sweeper = Sweeper(network, list(range(len(network.domains))), search.threads)
    load(sweeper, spread(short.problem, replace(found, of_edge=tuple(found.of_edge[e] for e in short.edges)), ring))
    if converge(sweeper, inner.clock) is None:
        return None
    return short.lengthen(
        Dual(*bounds.spread(network, sweeper.to_u, sweeper.to_v), inner.denominator), search.denominator
    )


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
