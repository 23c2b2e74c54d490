"""Order inside groups: which groups of published steps are put in the wrong order, and by which pair of rows.

group      rows that differ in the configuration only
picked     the row predicted fastest was measured within 2 % of the fastest of its group
worst pair the two rows whose predicted ratio is farthest from the measured one, of those in the wrong order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from measured.judging import spearman

from .predicting import Told

LEAST, NEAR, SHOWN = 5, 1.02, 10
"""Rows of a group whose rank counts; how near to the fastest a picked row is; groups of the table."""


@dataclass(frozen=True)
class Group:
    """Rows of a group, and the rank correlation of predicted and measured seconds a token."""

    rows: tuple[Told, ...]
    rank: float

    @property
    def picked(self) -> bool:
        """Whether the row predicted fastest is nearly the fastest."""
        best = min(self.rows, key=lambda t: t.told)
        return best.measured <= NEAR * min(t.measured for t in self.rows)

    @property
    def worst(self) -> tuple[Told, Told] | None:
        """The faster and the slower row of the worst pair; None where all are in the right order."""
        pairs = [(a, b) if a.measured < b.measured else (b, a) for a, b in combinations(self.rows, 2)]
        wrong = [(a, b) for a, b in pairs if a.told > b.told]
        return max(wrong, key=lambda p: p[1].measured / p[0].measured * p[0].told / p[1].told, default=None)


def groups_of(told: Sequence[Told]) -> list[Group]:
    """Groups of two rows and more, the worst order first."""
    found: dict[object, list[Told]] = {}
    for t in told:
        if t.row.group is not None:
            found.setdefault(t.row.group, []).append(t)
    several = [tuple(rows) for rows in found.values() if len(rows) > 1]
    ranked = [Group(rows, spearman([t.told for t in rows], [t.measured for t in rows])) for rows in several]
    return sorted(ranked, key=lambda g: (g.rank, g.rows[0].row.label))


def lines_of(told: Sequence[Told]) -> list[str]:
    """Markdown: how many groups are in order, and the worst of them."""
    groups = groups_of(told)
    large = [g for g in groups if len(g.rows) >= LEAST]
    picked, orderly = sum(g.picked for g in groups), sum(g.rank >= 0.95 for g in large)
    said = (
        f"Of {len(groups)} groups of two rows or more, the row predicted fastest is within 2 % of the fastest in {picked}.  "
        f"Of {len(large)} groups of {LEAST} or more, {orderly} have a rank correlation of 0.95 or more.  "
        f"The {SHOWN} worst, each with the pair that is farthest from its measured ratio of those in the wrong order:"
    )
    out = [
        said,
        "",
        "| group | rows | rank | measured faster | measured slower | measured ratio | predicted |",
        "|---|---:|---:|---|---|---:|---:|",
    ]
    for g in large[:SHOWN]:
        if g.worst is not None:
            fast, slow = g.worst
            start, _, way = fast.row.label.partition(" by ")
            other = slow.row.label.partition(" by ")[2]
            measured, predicted = slow.measured / fast.measured, slow.told / fast.told
            out.append(
                f"| {g.rows[0].row.family}: {start} | {len(g.rows)} | {g.rank:.3f} | by {way} | by {other} | "
                f"{measured:.2f} | {predicted:.2f} |"
            )
    return out
