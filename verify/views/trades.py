"""Rebuilds branches in two phases, a second time: which pairs of times a branch can have on a view, for
every label.

Every row is one choice of all decisions that are held and a pair of times.  A decision is joined to all rows, what it
moves is added, and decisions whose movements all are counted leave: of the rows that then agree, those that another one
is nowhere above stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ...models.problem.selection_problem import Ints
from ...proofs.container.canonical import ContainerError
from ...proofs.container.effort import OBJECT
from ..budget import Budget

MOST_ROWS = 1 << 23
MOST_KEYS = 1 << 62
ROW = 1 << 5
"""Cells of one number of one row: it is repeated, looked up and sorted."""

Link = tuple[int, int, int, Ints]
Labels = tuple[tuple[int, ...], ...]


def pareto_rows(keys: Ints, pairs: Ints) -> Ints:
    """Numbers of the rows whose pair no other row with the same key is at most equal to in both, by key and pair; of
    equal rows one.

    >>> pareto_rows(np.array([0, 0, 0, 1]), np.array([(3, 1), (1, 2), (2, 2), (9, 9)])).tolist()
    [1, 0, 3]
    """
    order = np.lexsort((pairs[:, 1], pairs[:, 0], keys))
    group, second = keys[order], pairs[order, 1]
    begins = np.concatenate([np.ones(1, dtype=bool), group[1:] != group[:-1]])
    number, step = np.cumsum(begins) - 1, int(pairs.max(initial=0)) + 1
    if (int(number[-1]) + 1) * step >= MOST_KEYS:
        raise ContainerError("views", "a branch takes too long to be checked in two phases")
    low = second - number * step  # every later group is below all earlier ones, so one running minimum serves them all
    stays = begins.copy()
    stays[1:] |= low[1:] < np.minimum.accumulate(low)[:-1]
    return np.asarray(order[stays])


def tradeoff_labels(
    members: Sequence[int],
    border: Sequence[int],
    classes: Sequence[Ints],
    costs: Mapping[int, Ints],
    phase_of: Mapping[int, int],
    links: Sequence[Link],
    budget: Budget | None = None,
) -> tuple[Labels, Labels]:
    """Labels in order, once per pair, and the pairs."""
    budget = Budget.with_large() if budget is None else budget
    columns: dict[int, Ints] = {}
    pairs = np.zeros((1, 2), dtype=np.int64)
    open_links, waiting = list(links), list(members)
    while waiting:
        budget.charge(OBJECT * 4 * (1 + len(waiting)) * (1 + len(open_links)), "trades of a branch")
        v = _next(waiting, columns, open_links, border, costs)
        waiting.remove(v)
        size = costs[v].size
        if len(pairs) * size > MOST_ROWS:
            raise ContainerError("views", f"a branch of {len(members)} decisions has too many trades to be checked")
        budget.hold(len(pairs) * size * 2 * (3 + len(columns)), "trades of a branch")
        budget.charge(ROW * len(pairs) * size * (2 + len(columns)), "trades of a branch")
        columns = {w: np.repeat(of, size) for w, of in columns.items()}
        columns[v] = np.tile(np.arange(size), len(pairs))
        pairs = np.repeat(pairs, size, axis=0)
        pairs[:, phase_of[v]] += costs[v][columns[v]]
        for a, b, phase, times in open_links:
            if v in (a, b) and a in columns and b in columns:
                pairs[:, phase] += times[columns[a], columns[b]]
        open_links = [link for link in open_links if not {*link[:2]} <= columns.keys()]
        needed = {w for link in open_links for w in link[:2]} | {*border}
        if not columns.keys() <= needed:
            columns = {w: of for w, of in columns.items() if w in needed}
            stay = pareto_rows(_keys([(of, costs[w].size) for w, of in columns.items()], len(pairs)), pairs)
            columns, pairs = {w: of[stay] for w, of in columns.items()}, pairs[stay]
    counts = [int(of.max()) + 1 for of in classes]
    shown = [of[columns[v]] for v, of in zip(border, classes, strict=True)]
    stay = pareto_rows(_keys(list(zip(shown, counts, strict=True)), len(pairs)), pairs)
    labels = np.stack([column[stay] for column in shown], axis=1) if shown else np.zeros((len(stay), 0), dtype=np.int64)
    return tuple(map(tuple, labels.tolist())), tuple(map(tuple, pairs[stay].tolist()))


def _keys(columns: Sequence[tuple[Ints, int]], rows: int) -> Ints:
    """One number per row for its values, in lexicographic order."""
    if prod(size for _, size in columns) >= MOST_KEYS:
        raise ContainerError("views", "a branch has too many choices to be checked")
    keys = np.zeros(rows, dtype=np.int64)
    for values, size in columns:
        keys = keys * size + values
    return keys


def _next(
    waiting: Sequence[int],
    held: Mapping[int, Ints],
    links: Sequence[Link],
    border: Sequence[int],
    costs: Mapping[int, Ints],
) -> int:
    """The decision with the fewest rows behind it; of those that are linked to what is held, if there are any."""
    linked = {w for a, b, *_ in links for w in (a, b) if (a in held) != (b in held)} - held.keys()

    def rows(v: int) -> tuple[int, int, int]:
        left = {w for a, b, *_ in links if not {a, b} <= held.keys() | {v} for w in (a, b)} | {*border}
        return prod(costs[w].size for w in (held.keys() | {v}) & left), costs[v].size, v

    return min(linked or waiting, key=rows)
