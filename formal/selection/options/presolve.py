"""The options of the phase `presolve`: what presolve may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PresolveOptions:
    """What presolve may cost."""

    cells: int = 1 << 26
    """table entries, all edges dense: larger problems are left as they are: their tables are shared, and the state of
    presolve would not share them
    """
    growth: int = 1_000_000
    """table entries: that one merge of a vertex into one with more labels may add"""
    eliminated_table: int = 20_000
    """table entries: largest table that the elimination of a vertex with two neighbours may make"""
    dominance_cells: int = 1 << 24
    """table entries at a vertex: above, dominance is not tried"""
    clique: int = 3
    """choices, 2 and more, that exclude each other: fewer are left to their pairs, whose bound is as good"""
    exclusions: int = 100_000
    """pairs of choices that exclude each other, 0 and more: with more, no cliques are looked for, which takes long"""
    dropped_rows: float = 0.03
    """share of the rows: that must go before a shorter list is worth its place in the log"""


PRESOLVE: Final = PresolveOptions()
"""As they are unless `solve` is told otherwise."""
