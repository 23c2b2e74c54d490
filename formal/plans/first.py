"""Finds a first plan quickly: the best of the smallest default space, taken into the space that is asked
about.

Tables of `complete` and `two-per-level` grow with the square of the placements, those of `one-per-level` hardly; spaces
are nested, so that a plan of the smaller one is one of the larger.  It is there before the larger tables are begun, is
what the answer is never worse than, and is the answer where those tables do not fit into the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ...models.cost.selection import Notify, Planning, build
from ...models.layout.placement import Space, space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.text import seconds_text
from ..selection.answer import Answer
from ..selection.model.clock import Clock
from ..selection.relax_resources import relax_resources
from .simple import simple_plans
from .tables import SMALLER, WorkCounter
from .time_limit import TimeLimit

FROM_DEVICES: Final = 9
"""Up to eight devices the tables of all spaces are small."""

FROM_OPERATORS: Final = 100
"""Programs of fewer operators have small tables, too."""

SHARE: Final = 0.15
"""Of the limit, at most, for the search of a first plan."""

GAP: Final = Fraction(1, 100)
"""Near enough for a beginning."""


@dataclass(frozen=True, eq=False)
class First:
    """A plan of the smallest space, with its tables."""

    planning: Planning
    answer: Answer

    def enough(self, gap: Fraction, clock: Clock) -> bool:
        """Whether there is no need, or no time, to search the same space again."""
        if self.answer.solution is None or self.answer.certificate is None:
            return False
        return self.answer.gap() <= gap or clock.remaining_s() <= 0

    def lift_solutions(self, planning: Planning) -> tuple[tuple[int, ...], ...]:
        """The plan among the solutions of a larger space; nothing if there is none."""
        if self.answer.solution is None:
            return ()
        return (planning.solution(self.planning.choices(self.answer.solution)),)


def first_plan(
    graph: Graph,
    machine: Machine,
    default: Space,
    memory: int | None,
    limit: TimeLimit,
    gap: Fraction,
    threads: int,
    notify: Notify | None,
) -> First | None:
    """A first plan, which is announced; None where the default space is the smallest, or everything is small."""
    small = space(SMALLER[-1])
    if default == small or machine.devices < FROM_DEVICES or len(graph.operators) < FROM_OPERATORS:
        return None
    begun = limit.clock.seconds()
    with limit.phase("tables"):
        planning = build(graph, machine, small, memory, WorkCounter(limit, notify))
    limit.tables_s = limit.clock.seconds() - begun
    limit.expect(planning.problem)
    with limit.phase("search"):
        answer = relax_resources(
            planning.problem,
            clock=limit.clock.share(SHARE),
            gap=max(gap, GAP),
            threads=threads,
            brought=simple_plans(planning),
        )
    if answer.cost is not None:
        limit.announce(
            f"first plan after {limit.processor_s:.0f} s of the processor: "
            f"{seconds_text(answer.cost, planning.problem.scale)}, in the space {small.name!r}; now "
            f"{default.name!r} is looked at (Ctrl-C or SIGTERM: the best plan so far)"
        )
    return First(planning, answer)
