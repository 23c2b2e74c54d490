"""Budgets of tests: steps of work, so that no verdict hangs on how fast a machine is, or on what else it does."""

from __future__ import annotations

import pytest

from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.selection.model.clock import STEPS, Clock


def work(millions: float) -> Clock:
    """A clock over so many million steps of work, about as many seconds."""
    return Clock(work=int(millions * STEPS))


def limited(millions: float) -> TimeLimit:
    """The limit of a command over as much work."""
    return TimeLimit(work(millions))


def some_or_all(some: object, everything: object) -> list[object]:
    """Values of a parameter (a tuple: of several): as much as an ordinary run can afford, and what `make test-slow`
    does.
    """
    few, many = (x if isinstance(x, tuple) else (x,) for x in (some, everything))
    return [pytest.param(*few, id="some"), pytest.param(*many, id="all", marks=pytest.mark.slow)]
