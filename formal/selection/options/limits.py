"""How much work the factored search may spend where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Limits:
    """When elimination is allowed, when sweeps stop, and what a tree may hold."""

    joint: int = 20_000_000
    """entries of the largest joint table: elimination is allowed up to it"""
    work: int = 400_000_000
    """entries of all joint tables: the same"""
    kept: int = 1_000_000
    """entries of all kept messages: the same"""
    last_joint: int = 300_000_000
    """entries of the largest joint table: the same once bounds have been tried and a gap is left: seconds of exact work
    are cheaper than branching then
    """
    last_work: int = 10_000_000_000
    """entries of all joint tables: the same"""
    last_kept: int = 40_000_000
    """entries of all kept messages: the same"""
    root_sweeps: int = 800
    """double sweeps: at the root at most"""
    node_sweeps: int = 60
    """double sweeps: at another node at most"""
    node_steps: int = 40
    """double sweeps: of an ascent of multipliers at another node at most"""
    fix_share: float = 0.5
    """share of the labels: that must be fixable for sweeps to end early"""
    row_work: int = 100_000
    """entries of all joint tables: elimination below the root is allowed up to it where resource rows can bind"""
    held: int = 3 << 30
    """bytes: of messages that the nodes of a tree may keep; nodes beyond stay open"""


LIMITS: Final = Limits()
