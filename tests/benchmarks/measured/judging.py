"""What predictions are worth: relative errors, ranks inside groups, and pairs put in the right order.

error               | predicted / measured - 1 |
group               rows that one planner would choose between: the same model, batch and devices
picked within 2 %   the row predicted fastest was measured within 2 % of the fastest of its group
pair                two rows of one family whose measured values differ by more than 5 %; right: predicted in the
                    same order
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Figures = dict[str, float | int]


@dataclass(frozen=True)
class Predictions:
    """Rows of one family: what they are, what was predicted and measured (any unit, the same), their error bounds (log).

    `lower`: smaller is better (seconds); else larger is (tokens a second).  `facts` stand in the figures as they are.
    """

    labels: tuple[str, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    lower: bool = True
    bars: tuple[float, ...] = ()
    groups: tuple[Hashable, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def figures(self, ranked: bool = False, paired: bool = False) -> dict[str, object]:
        """Errors; with `ranked` those of groups, with `paired` those of pairs."""
        found: dict[str, object] = dict(errors(self.predicted, self.measured))
        if not self.measured:
            return found
        if ranked:
            found.update(ranking(self.predicted, self.measured, self.groups))
        if paired:
            found.update(pairs(self.predicted, self.measured))
        if self.bars:
            found["bar"] = float(np.mean(self.bars))
        return {**found, **self.facts}


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Figures:
    """Rows, mean and worst relative error, as fractions; without rows only their number.

    >>> errors([1.0, 3.0], [1.0, 2.0])
    {'rows': 2, 'mean_error': 0.25, 'worst_error': 0.5}
    >>> errors([], [])
    {'rows': 0}
    """
    if not len(measured):
        return {"rows": 0}
    off = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return {"rows": len(measured), "mean_error": float(off.mean()), "worst_error": float(off.max())}


def ranking(
    predicted: Sequence[float], measured: Sequence[float], groups: Sequence[Hashable], least: int = 5
) -> Figures:
    """Over groups of at least `least` rows: how many, how many picked a row within 2 % of the fastest, and the mean of
    Spearman's rank correlations.

    >>> ranking([1.0, 2, 3, 4, 5], [10.0, 20, 30, 40, 50], "aaaaa")
    {'groups': 1, 'picked_within_2_percent': 1, 'rank_correlation': 1.0}
    """
    members: dict[Hashable, list[int]] = {}
    for n, group in enumerate(groups):
        members.setdefault(group, []).append(n)
    picked, correlations = 0, []
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    for rows in members.values():
        if len(rows) < least:
            continue
        picked += bool(m[rows][p[rows].argmin()] <= 1.02 * m[rows].min())
        correlations.append(spearman(p[rows], m[rows]))
    found: Figures = {"groups": len(correlations), "picked_within_2_percent": picked}
    return {**found, "rank_correlation": float(np.mean(correlations))} if correlations else found


def spearman(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Rank correlation; ties share their mean rank; 0 if one side is constant.

    >>> spearman([1.0, 2, 3], [10.0, 30, 20])
    0.5
    """

    def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
        x = np.asarray(values, dtype=np.float64)
        low, equal = (x[None, :] < x[:, None]).sum(axis=1), (x[None, :] == x[:, None]).sum(axis=1)
        return low + (equal - 1) / 2 - (len(x) - 1) / 2

    ra, rb = ranks(a), ranks(b)
    size = float(np.sqrt((ra @ ra) * (rb @ rb)))
    return round(float(ra @ rb) / size, 12) if size else 0.0


def pairs(
    predicted: Sequence[float],
    measured: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    apart: float = 0.05,
) -> Figures:
    """Pairs (of one group, if given) measured more than `apart` apart, and how many are predicted in that order.

    >>> pairs([1.0, 2.0, 3.0], [1.0, 1.5, 1.2])
    {'pairs': 3, 'pairs_right': 2}
    """
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    far = m[:, None] > (1 + apart) * m[None, :]
    if groups is not None:
        names = {g: n for n, g in enumerate(dict.fromkeys(groups))}
        label = np.array([names[g] for g in groups])
        far &= label[:, None] == label[None, :]
    return {"pairs": int(far.sum()), "pairs_right": int((far & (p[:, None] > p[None, :])).sum())}


def words(found: Mapping[str, object]) -> str:
    """The figures of one family in one line.

    >>> words({"rows": 3, "mean_error": 0.0123, "pairs": 4, "pairs_right": 3, "rank_correlation": 0.5})
    'rows 3, mean_error 1.23 %, pairs 4, pairs_right 3, rank_correlation 0.500'
    """

    def shown(name: str, value: object) -> str:
        if isinstance(value, dict):
            return f"{name} ({words(value)})"
        if isinstance(value, float):
            return f"{name} {100 * value:.2f} %" if name.endswith(("error", "over", "bar")) else f"{name} {value:.3f}"
        return f"{name} {value}"

    return ", ".join(shown(k, v) for k, v in found.items())
