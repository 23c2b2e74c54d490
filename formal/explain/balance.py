r"""How unevenly a plan spreads a causal mask: queries that are cut into runs see more keys the later
they stand.

    runs r = 1 .. D of the queries, P_r pairs that the mask leaves in run r          P_1 < .. < P_D for a causal mask
    priced   max P_r;       even   sum P_r / D        lost  =  1 - even / priced  of the operator's time

A zigzag placement (run i and run 2 D - 1 - i of 2 D halves on one device; Llama 3's context parallelism, striped
attention) has nearly even loads.  It is not in the space, where every device holds one run (`contiguous-queries`), so
what it would gain is said beside the plan.

Source: Brandon et al., Striped Attention (2023); Grattafiori et al., Llama 3 (2024), section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...models.cost.selection import Planning
from ...models.program.attention import band
from ...models.program.attention_pairs import count
from ...models.program.operators import Operator


@dataclass(frozen=True)
class Uneven:
    """Attention `name` in `runs` runs of its queries: pairs of the fullest over the mean, `ratio`; `compute`: units."""

    name: str
    runs: int
    ratio: Fraction
    compute: int

    @property
    def lost_units(self) -> int:
        """Units that even runs would take less, at most: where pairs alone are the time."""
        return int(self.compute * (1 - 1 / self.ratio))


def uneven(planning: Planning, choices: Sequence[int]) -> tuple[Uneven, ...]:
    """Attention with a band whose queries the plan cuts into runs of unequal work."""
    found = []
    for op in planning.graph.operators:
        seen = band(op) if op.spec.name.startswith("attention") else None
        if seen is None:
            continue
        v = planning.operators[op.name]
        runs = planning.decisions[v].placement(choices[v]).degree(seen.query)
        ratio = _ratio(op, runs)
        costs = planning.costs[v]
        if ratio > 1 and costs is not None:
            found.append(Uneven(op.name, runs, ratio, int(costs.compute[choices[v]])))
    return tuple(found)


def _ratio(op: Operator, runs: int) -> Fraction:
    """Pairs of the fullest run over the mean; 1 where nothing is cut."""
    seen = band(op)
    if seen is None or runs < 2:
        return Fraction(1)
    n, keys = op.axis(seen.query).extent, np.array([0, op.axis(seen.key).extent])
    each = -(-n // runs)
    starts = np.minimum(np.arange(runs) * each, n)
    pairs = count(np.stack([starts, np.minimum(starts + each, n)], axis=1), keys, seen.behind, seen.ahead, seen.block)
    return Fraction(int(pairs.max()) * runs, max(1, int(pairs.sum())))


def balance_text(rows: Sequence[Uneven], amounts: Sequence[str]) -> str:
    """One sentence; `amounts`: what is lost together, and what these operators take, in words.

    >>> balance_text([Uneven("a", 4, Fraction(7, 4), 700)], ["300 us", "700 us"])[:75]
    'queries of 1 masked attention (a) are cut into runs, the fullest 1.75 times'
    """
    worst = max(rows, key=lambda r: r.ratio)
    return (
        f"queries of {len(rows)} masked attention{'s' if len(rows) > 1 else ''} ({rows[0].name}"
        f"{', ..' if len(rows) > 1 else ''}) are cut into runs, the fullest {float(worst.ratio):.3g} times the mean: a "
        f"zigzag placement, which is not in the space, could save up to {amounts[0]} of their {amounts[1]}"
    )
