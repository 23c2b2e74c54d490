"""Schedules that a program writes beside its maps, `for i in dace.map[0:M] @ {"ranks": 4}:`, as a strategy.

They are taken as a strategy file is: carried to the rest, nothing is searched.  A strategy that is given replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...models.sources.building.original import Schedule
from ...models.text import InputError
from .options import PlanOptions
from .strategy import Rule, Strategy


def searching(options: PlanOptions) -> dict[str, bool]:
    """Options that look for schedules, by the names of the command line, and whether they are given."""
    return {
        "--overlap": options.overlap,
        "--submeshes": options.views,
        "--joint": options.joint,
        "--best": options.best,
        "--pipeline": options.stages is not None,
        "--recompute": options.recompute in ("auto", "tensors"),
        "--micro-batch": options.micro_batch == "auto",
        "--engine": options.engine != "native",
    }


def written_strategy(schedule: Schedule, searches: Mapping[str, bool]) -> Strategy | None:
    """The strategy that a program writes, if any; `searches`: options that look for schedules, and whether
    they are given.  Raises `InputError` for one that is, since nothing is left to it.
    """
    if not schedule:
        return None
    if asked := [name for name, given in searches.items() if given]:
        raise InputError(
            f"the program writes schedules beside its maps, and {asked[0]} searches others; take them out of the "
            "program, or plan the graph that 'shardproof import' makes of it, which has none"
        )
    return Strategy(tuple(Rule(operator, axes) for operator, axes in schedule), "the schedules of the program")
