"""The options of the phase `solve`: which search a problem gets, and what is kept for the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class SolveOptions:
    """Which search a problem gets, and what is kept for the end."""

    dense_vertices_with_rows: int = 12
    """vertices: from so many on a problem with resource rows goes to the dense search (measured: 18 made-up vertices
    0.03 s there, 0.9 s in the factored one)
    """
    dense_vertices: int = 5_000
    """vertices: the same without rows, where elimination is hard to beat"""
    repeated_cells: int = 20_000_000
    """entries over all edges: from so many on repeated blocks are solved as such (measured, BERT-Large with limits that
    bind: 3.6 million 0.0004 % densely and 0.08 % as blocks after 30 s, 28 million 27 % and 11 %)
    """
    plain_joint: int = 20_000_000
    """entries of the largest joint table: what elimination of plain tables may cost"""
    plain_work: int = 400_000_000
    """entries of all joint tables: the same"""
    plain_kept: int = 40_000_000
    """entries of all kept messages: the same"""
    recursion: int = 50_000
    """Python frames: room for branching: a path of the tree takes a few frames per split"""
    inner_gap_share: int = 4
    """divisor of the gap: searches of parts close a gap that is so many times smaller"""
    relaxed_share: float = 0.25
    """share of the time limit: after it the attempt without rows must have a solution that fits, or ends"""
    fallback_s: float = 2.0
    """seconds: moves that make a solution fit once the time is over: without them there may be no answer at all"""


SOLVE: Final = SolveOptions()
"""As they are unless `solve` is told otherwise."""
