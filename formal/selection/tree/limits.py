"""This module says how much work the native search may spend where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """When elimination is allowed (entries of the largest joint, of all joints, of all kept messages), and when sweeps
    stop.

    `last_*`: the same once bounds have been tried and a gap is left: seconds of exact work are cheaper than branching
    then.  `held`: bytes of messages that the nodes of a tree may keep; nodes beyond stay open.
    """

    joint: int = 20_000_000
    work: int = 400_000_000
    kept: int = 1_000_000
    last_joint: int = 300_000_000
    last_work: int = 10_000_000_000
    last_kept: int = 40_000_000
    root_sweeps: int = 400
    node_sweeps: int = 60
    root_steps: int = 300
    node_steps: int = 40
    fix_share: float = 0.5
    row_work: int = 100_000
    held: int = 3 << 30
