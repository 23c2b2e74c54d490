"""Budgets of tests: steps of work, so that no verdict hangs on how fast a machine is, or on what else it does."""

from __future__ import annotations

from shardproof.formal.planning.time_limit import TimeLimit
from shardproof.formal.selection.model.clock import STEPS, Clock


def work(millions: float) -> Clock:
    """A clock over so many million steps of work, about as many seconds."""
    return Clock(work=int(millions * STEPS))


def limited(millions: float) -> TimeLimit:
    """The limit of a command over as much work."""
    return TimeLimit(work(millions))
