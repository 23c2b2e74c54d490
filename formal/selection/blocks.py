"""Repeated blocks first: a solution and messages for a problem whose structure repeats, from one block and the two ends.

    block   the quotient (`repeat`) is solved as a problem of its own: a ring, often closed to optimality in seconds
    ends    choices of the block in the interior, everything near the ends searched again around them: a good solution of the whole
    seams   messages of the block at every repetition, those near the ends swept again in windows (`seams`)
    whole   the search over the whole begins a few sweeps from its end

Neither is believed: the solution is evaluated on the whole problem, and whatever the messages are, the bound is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import networkx as nx
import numpy as np

from ...models.problems import Ints, SelectionProblem
from ...proofs.certificates import Dual
from . import bounds
from .ascent import apply
from .aspire import apart
from .clock import Clock
from .draft import Draft, DualDraft
from .eliminate import plan
from .messages import Sweeper, load
from .mixtures import Column, Floats, Mixed, Profile, cost_of, layers, master, priced
from .network import allowed, build, whole
from .repeat import Quotient, quotient
from .restrict import condition
from .seams import converge, distances, ends, settle
from .search import Search
from .shorten import Short, shorten

BLOCK_SHARE: Final = 0.4
"""Of the time limit, for the block."""

ENDS_SHARE: Final = 0.1
"""Of the time limit, for the ends."""

PRICES_SHARE: Final = 0.25
"""Of the time limit, for prices of resource rows."""

COLUMN_SHARE: Final = 0.05
"""Of the time limit, for one plan of the block at given prices."""

COLUMNS: Final = 12
"""Plans of the block at most."""

SEAMS: Final = 2
"""Layers that change their plan when the seam has been searched again and does not fit."""

DEARER: Final = (1.0, 1.25)
"""Prices at which ends and seam are searched, in turn until the result fits."""

IDLE: Final = 2
"""Columns without gain after which prices stay."""

NEAR: Final = 0.95
"""Prices are averaged with the best ones once their bound is this share of the master program's value."""

CLOSE: Final = 0.002
"""Prices are good enough when the master program is so near its bound."""

BEYOND: Final = 1.03
"""What exceeds a limit by more is not made to keep it at the ends alone."""

REACH: Final = 1
"""Edges between what the block does not describe and the first vertex that keeps the block's choice."""

NODES: Final = 12
"""Nodes of the search on the block and on the ends: without a proof at the end they are only a start."""

COLUMN_NODES: Final = 2
"""The same for one plan of the block at given prices."""

RING_SHARE: Final = 0.5
"""Of the time limit of the block, for messages that converge."""

SEAMS_SHARE: Final = 0.25
"""Of the time limit, for messages near the seams, or of the whole from those of a shorter row."""

SHORT_SHARE: Final = 0.2
"""Of the time limit, for the shorter row."""

STEEPER: Final = (1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
"""Multiples of the prices for which the block was solved, tried in turn while the bound of the short row rises."""

LEAST: Final = 200
"""Vertices from which looking for repetitions pays."""

Make = Callable[[SelectionProblem, Clock], Search]
"""A search on another problem with the settings of the present one."""


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
    inner = make(found.problem, share(clock, BLOCK_SHARE))
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
    x = expand(found, solution)
    if search.rows is None or int(search.rows.use(x).max(initial=0)) <= BEYOND * search.rows.limit:
        x = mend(search, make, replace(problem, limit=None, usages=()), x, free)
    if search.rows is None or search.incumbent.offer(x):
        search.incumbent.offer(x)
        search.rows = None
        return _everywhere(search, make, found, ring, None)
    at = _under_rows(search, make, found, (solution, ring), free)
    return None if at is None else _everywhere(search, make, found, *at)


def converged(inner: Search, make: Make) -> Dual:
    """Messages on the whole of `inner`, swept until the bound hardly moves; solutions near that bound are offered."""
    domains = allowed(inner.problem)
    network = build(inner.base, domains)
    sweeper = Sweeper(network, list(range(len(network.domains))), inner.threads)
    converge(sweeper, share(inner.clock, RING_SHARE))
    apart(inner, make, domains, bounds.score(network, sweeper.to_u, sweeper.to_v, threads=inner.threads))
    return Dual(*bounds.spread(network, sweeper.to_u, sweeper.to_v), inner.denominator)


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
    until = share(search.clock, SEAMS_SHARE)
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
    until = share(search.clock, SHORT_SHARE)
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


def _under_rows(search: Search, make: Make, found: Quotient, first: tuple[tuple[int, ...], Dual], free: set[int]) -> tuple[Dual, Floats] | None:
    """Prices and plans of the block by column generation, then mixtures of them; messages of the block at the last prices, and these."""
    problem, clock, rows = search.problem, search.clock, search.rows
    assert rows is not None and problem.limit is not None
    profile = Profile(problem, found)
    columns = [Column(first[0], cost_of(found, first[0]), profile.use(first[0]))]
    until = clock.seconds() + share(clock, PRICES_SHARE).left()
    best, n, warm = -np.inf, np.zeros(len(profile.events)), first[1]
    values: list[float] = []
    for _ in range(COLUMNS):
        mixed = master(columns, problem.limit)
        values.append(mixed.value if mixed.over <= 0.0 else np.inf)
        if len(values) > IDLE and values[-1 - IDLE] - values[-1] <= 0.001 * values[-1]:
            break
        if clock.seconds() > until or mixed.over <= 0.0 and mixed.value - best <= CLOSE * abs(mixed.value):
            break
        at = mixed.n if mixed.over > 0.0 or best < NEAR * mixed.value else 0.5 * (n + mixed.n)  # far away half a step only costs time
        column, record, slack = _column(make, found, profile, at, columns, warm, until - clock.seconds(), clock)
        warm = record if record is not None else warm
        value = column.cost + float(at @ column.use) - problem.limit * float(at.sum())
        if value - slack > best:
            best, n = value - slack, at
        columns.append(column)
        search.incumbent.offer(expand(found, column.plan))  # whatever comes of mixtures, a plan that fits is kept
        search.progress.update("prices", None, search.incumbent.cost if search.incumbent.solution is not None else None)
    mixed = master(columns, problem.limit)
    if mixed.over > 0.0:
        return None
    mix(search, make, found, columns, mixed, free)
    column, record, _ = _column(make, found, profile, mixed.n, columns, warm, share(clock, BLOCK_SHARE).left(), clock)
    return None if record is None else (record, mixed.n)


def _column(
    make: Make, found: Quotient, profile: Profile, n: Floats, columns: list[Column], warm: Dual, seconds: float, clock: Clock
) -> tuple[Column, Dual | None, float]:
    """The block's plan at prices `n`, messages, and how far the plan may be from the best one over all repetitions."""
    small = profile.priced(found.problem, n)
    inner = make(small, Clock(None if clock.limit_s is None else max(0.0, min(seconds, clock.left(), clock.limit_s * COLUMN_SHARE))))
    for column in columns:
        inner.incumbent.offer(column.plan)
    inner.nodes = COLUMN_NODES
    draft = inner.run(warm)
    x = inner.incumbent.solution
    assert x is not None
    lower = draft.score.lower() if isinstance(draft, DualDraft) else inner.incumbent.cost
    slack = 0.0 if lower is None else float(max(0, inner.incumbent.cost - lower)) * max(profile.size.tolist())
    return Column(x, cost_of(found, x), profile.use(x)), _root(draft), slack


def mix(search: Search, make: Make, found: Quotient, columns: list[Column], mixed: Mixed, free: set[int]) -> None:
    """Offer mixtures of the two heaviest columns; with the leanest of all instead of the leaner one if none of these fits."""
    heavy = [columns[k] for k in np.argsort(-mixed.weights, kind="stable")[:2] if mixed.weights[k] > 1e-9]
    leanest = min(columns, key=lambda c: float(c.use.max()))
    cheap, lean = sorted((*heavy, leanest)[:2], key=lambda c: c.cost)
    for other in (lean, leanest):
        if _mixtures(search, make, found, (cheap, other), mixed.n, free):
            break


def _mixtures(search: Search, make: Make, found: Quotient, pair: tuple[Column, Column], n: Floats, free: set[int]) -> bool:
    """As many layers with the cheaper plan as fit, from either side, ends and seam searched again; False if not even the leaner plan alone fits.

    What the ends need is known when they have been searched: the seam moves on by as many layers as fit then, or back.
    """
    problem, rows = search.problem, search.rows
    assert rows is not None
    at_prices = [priced(problem, rows.events, dearer * n) for dearer in DEARER]
    plans = tuple(np.array(expand(found, column.plan)) for column in pair)
    layer = layers(problem, found)
    most = int(layer.max()) + 1
    step = max(1.0, float((pair[0].use - pair[1].use).max()) / most)
    any_fits = False

    def peak(x: tuple[int, ...]) -> int:
        return int(rows.use(x).max(initial=0))

    def mixture(k: int, early: bool) -> Ints:
        return np.where(layer < k if early else layer >= most - k, *plans)

    for early in (True, False):
        k = next((k for k in range(most, -1, -1) if peak(tuple(mixture(k, early).tolist())) <= rows.limit), None)
        if k is None:
            continue
        any_fits = True
        ends = mixture(k, early)
        tried: set[int] = set()
        while k not in tried and 0 <= k <= most and len(tried) <= SEAMS:
            tried.add(k)
            seam = k if early else most - k
            window = free | set(np.flatnonzero((layer >= seam - 1) & (layer <= seam)).tolist())
            x = mixture(k, early)
            x[sorted(free)] = ends[sorted(free)]
            start = tuple(x.tolist())
            search.incumbent.offer(start)
            for prices in at_prices:
                y = mend(search, make, prices, start, window)
                offered = search.incumbent.offer(y)
                search.progress.update("mixture", None, search.upper())
                fits = offered or peak(y) <= rows.limit
                if fits:
                    break
            if fits and search.incumbent.solution != y:
                break  # the other side is better
            ends = np.array(y)
            k += int((rows.limit - peak(y)) // step) if fits else -1
    return any_fits


def expand(found: Quotient, plan: tuple[int, ...]) -> tuple[int, ...]:
    """The plan of the block at every repetition."""
    return tuple(plan[c] for c in found.of_vertex)


def share(clock: Clock, part: float) -> Clock:
    """A clock over `part` of the limit of `clock`, at most what it has left."""
    return Clock(None if clock.limit_s is None else max(0.0, min(clock.left(), part * clock.limit_s)))


def mend(search: Search, make: Make, problem: SelectionProblem, solution: tuple[int, ...], free: set[int]) -> tuple[int, ...]:
    """`solution` of `problem` (without rows) with the choices of `free` searched again, one connected part after another; no dearer."""
    until = share(search.clock, ENDS_SHARE)
    parts = _connected(problem, free)
    left = len(free)
    for part in parts:
        smaller, back = condition(problem, solution, part)
        search.progress.update("ends", None, None)
        inner = make(smaller, share(until, len(part) / left))
        left -= len(part)
        inner.nodes = NODES
        inner.incumbent.offer(tuple(solution[v] for v in sorted(part)))
        inner.run(None if inner.fits(plan(build(inner.unit, whole(smaller)), inner.limits.joint)) else converged(inner, make))
        if inner.incumbent.solution is not None:
            solution = back(inner.incumbent.solution)
    return solution


def _connected(problem: SelectionProblem, free: set[int]) -> list[set[int]]:
    """The parts of `free` that no edge joins, smallest first."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(sorted(free))
    graph.add_edges_from((e.u, e.v) for e in problem.edges if e.u in free and e.v in free)
    return sorted(nx.connected_components(graph), key=lambda part: (len(part), min(part)))


def _root(draft: Draft) -> Dual | None:
    return draft.record if isinstance(draft, DualDraft) else None


def spread(problem: SelectionProblem, found: Quotient, record: Dual) -> Dual:
    """The messages of `record` on every repetition, zero on edges that the quotient lacks."""
    zeros: dict[int, Ints] = {}

    def one(side: tuple[Ints, ...], k: int | None, size: int) -> Ints:
        return zeros.setdefault(size, np.zeros(size, dtype=np.int64)) if k is None else side[k]

    pairs = list(zip(problem.edges, found.of_edge, strict=True))
    to_u = tuple(one(record.to_u, k, problem.tables[e.table].shape[0]) for e, k in pairs)
    to_v = tuple(one(record.to_v, k, problem.tables[e.table].shape[1]) for e, k in pairs)
    return Dual(to_u, to_v, record.denominator)
