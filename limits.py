"""How long a call of Python searches, and what is enough: the options that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Literal

from shardproof.models.text import InputError, parse_fraction

if TYPE_CHECKING:
    from shardproof.formal.plans.effort import EffortName
    from shardproof.formal.plans.time_limit import TimeLimit
    from shardproof.formal.selection.model.clock import Clock

Limit = float | Literal["default"] | None
"""Wall-clock seconds; None: any number; "default": those of the function, and none where steps of work are given."""


def clock_of(seconds: Limit, steps: int | None, default_s: float = 60.0) -> Clock:
    """The clock of a call that says more about a plan."""
    from shardproof.formal.selection.model.clock import budget

    return budget(seconds, steps, default_s)


def limit_of(seconds: Limit, steps: int | None, default_s: float = 300.0) -> TimeLimit:
    """The limit of a call that searches.  Raises `InputError` for what is no time."""
    from shardproof.formal.plans.time_limit import TimeLimit

    if isinstance(seconds, float | int) and not 0 < seconds < inf:
        raise InputError(f"time_limit_s {seconds} is not a number of seconds above 0; None for no limit")
    return TimeLimit(clock_of(seconds, steps, default_s))


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """How long is searched.  `work_limit`: steps of work instead of seconds, a million takes about one."""

    time_limit_s: Limit = "default"
    work_limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class SearchLimits(Allowance):
    """How long is searched, and how near to its bound a plan has to be (`gap`); `effort` says what is not given."""

    gap: Fraction | float | str | None = None
    effort: EffortName = "normal"

    def enough(self) -> tuple[Fraction, TimeLimit]:
        """The gap and the limit: what was given, else what the effort says."""
        from shardproof.formal.plans.effort import effort_of

        usual = effort_of(self.effort)
        share = usual.gap if self.gap is None else _share(self.gap)
        return share, limit_of(self.time_limit_s, self.work_limit, usual.seconds)


def _share(gap: Fraction | float | str) -> Fraction:
    """A gap: a part of a whole, less than 1; a text may say percent."""
    share = parse_fraction(str(gap), "gap")
    if share >= 1:
        raise InputError(f"gap {gap} is not less than 1 (100 %); for {gap} percent write '{gap}%'")
    return share
