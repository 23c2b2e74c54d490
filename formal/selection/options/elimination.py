"""The options of the phase `elimination`: what elimination keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EliminationOptions:
    """What elimination keeps."""

    stored: int = 1_000_000
    """message entries: up to which a record holds its messages; beyond, the checker computes them again"""
    replay_share: float = 0.75
    """of the work that a file may ask of its checker: goes to eliminations; the rest is for messages and presolve"""
    fine_work: int = 1 << 20
    """entries of all joint tables: that are worked on in Python integers, where a problem has a fine part"""


ELIMINATION: Final = EliminationOptions()
"""As they are unless `solve` is told otherwise."""
