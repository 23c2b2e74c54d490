"""Plans a program for every size of a range, `prog.py:layer:N=1024..4096`: a plan at either end, then wherever the
sizes between two plans are not known to be near enough to the best, one more between them.

How far the placements of either of two sizes are from the best in between is the checker's word
(`verify/portfolio/sizes.py`): this module chooses sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, inf, isqrt
from typing import Final

from ...models.cost.sized import SizedJob, SizeEnd
from ...models.problem.claims import Optimal, WithinGap
from ...models.program.graph import Graph
from ...models.program.sized import SizedGraph
from ...models.sources.load import PYTHON, Attention, load_model
from ...models.text import InputError
from ...proofs.plan.bundle import write_plan
from ...proofs.portfolio.file import MOST_PLANS
from ...proofs.portfolio.sizes import MILLION, MOST_SIZE, SizesHead, write_sizes
from ...proofs.publishing.publisher import Publisher
from .plan import fitting_space
from .request import PlanRequest, carry_out
from .time_limit import TimeLimit

ENOUGH: Final = Fraction(1, 100)
"""The gap that is asked for where no other is: plans of single sizes may be optimal, those of ranges rarely are."""

OWN_SHARE: Final = 10
"""Part of the gap that a plan of one size may have: what lies between sizes needs the rest."""

TIME_SHARE: Final = 4
"""Part of the time that is left which the next plan may take."""

_RANGE: Final = re.compile(
    r"(?<=[:,])([A-Za-z_][A-Za-z_0-9]*)=([0-9]{1,10})\.\.([0-9]{1,10})(?:\+([0-9]{1,10}))?(?=,|$)"
)


@dataclass(frozen=True)
class SizeRange:
    """`before` and `after`: the rest of the name of the model; `step`: as asked, 0 for whatever is possible;
    `attention`: how it is written.
    """

    before: str
    name: str
    first: int
    last: int
    step: int
    after: str
    attention: Attention | None = None

    def program(self, size: int) -> Graph:
        """The program of a size, without being compared with what it came from."""
        return load_model(self.model(size), None, None, self.attention)

    def model(self, size: int) -> str:
        """The model of one size."""
        return f"{self.before}{self.name}={size}{self.after}"


def size_range(model: str, attention: Attention | None = None) -> SizeRange | None:
    """The range in the name of a model, if it has one.  Raises `InputError` for two, and for none that can be.

    >>> size_range("f.py:f:H=8,N=64..256").model(128)
    'f.py:f:H=8,N=128'
    """
    python = PYTHON.match(model)
    found = [] if python is None or python["sizes"] is None else list(_RANGE.finditer(model))
    if not found:
        return None
    one = found[0]
    made = SizeRange(
        model[: one.start()], one[1], int(one[2]), int(one[3]), int(one[4] or 0), model[one.end() :], attention
    )
    if len(found) > 1:
        raise InputError(f"model {model[:200]!r}: one size has a range; 'shardproof sweep' plans several, size by size")
    if not 1 <= made.first < made.last <= MOST_SIZE or one[4] == "0":
        raise InputError(f"model {model[:200]!r}: {one[0]!r} is no range of sizes; write N=64..4096 or N=64..4096+64")
    return made


@dataclass(frozen=True)
class SizedOutcome:
    """What was found: the head of the file, its plans, the gaps of their `own` sizes, and that of every class."""

    head: SizesHead
    plans: tuple[bytes, ...]
    own: tuple[Fraction, ...]
    gaps: tuple[Fraction, ...]

    @property
    def data(self) -> bytes:
        """Bytes of the file."""
        return write_sizes(None, self.head, self.plans)


@dataclass(eq=False)
class SizesSearch:
    """Plans of the sizes of `asked`.  `request`: of the first of them."""

    publisher: Publisher
    asked: SizeRange
    request: PlanRequest
    limit: TimeLimit
    notes: list[str]
    ends: dict[int, SizeEnd] = field(default_factory=dict)
    plans: dict[int, bytes] = field(default_factory=dict)

    @property
    def enough(self) -> Fraction:
        """The gap that is asked for."""
        return self.request.gap or ENOUGH

    def search_all(self) -> SizedOutcome:
        """The plans, until every class is near enough to the best, or time or room is over."""
        self.job, self.step = self._job()
        low, high = self.job.programs.ends
        self._solve(low)
        self._solve(high)
        classes = {(low, high): self._best(low, high)}
        while len(self.plans) < MOST_PLANS and not self.limit.clock.over():
            wide = [(gap, ends) for ends, (gap, _) in classes.items() if gap > self.enough and self._middle(ends)]
            if not wide:
                break
            ends = max(wide)[1]
            middle = self._middle(ends)
            self._solve(middle)
            del classes[ends]
            classes |= {pair: self._best(*pair) for pair in ((ends[0], middle), (middle, ends[1]))}
        sizes = sorted(self.plans)
        number = {size: i for i, size in enumerate(sizes)}
        found = [classes[pair] for pair in pairwise(sizes)]
        most = max(*(gap for gap, _ in found), *(end.gap for end in self.ends.values()))
        gap = min(MILLION - 1, ceil(most * MILLION))
        head = SizesHead(self.asked.name, self.step, tuple(sizes), tuple(number[taken] for _, taken in found), gap)
        plans, own = tuple(self.plans[size] for size in sizes), tuple(self.ends[size].gap for size in sizes)
        return SizedOutcome(head, plans, own, tuple(gap for gap, _ in found))

    def _job(self) -> tuple[SizedJob, int]:
        """What is planned, from the first size to the last that have equal blocks, and the step between sizes."""
        asked = self.asked
        family = SizedGraph(
            asked.name, (asked.first, asked.last), self.request.graph, self.asked.program(asked.last)
        ).check()
        where = self.request.space or fitting_space(self.request.graph, self.request.machine)
        job = SizedJob(family, self.request.machine, where)
        if why := job.reason_against:
            raise InputError(
                f"{family.low.name}: no plan is for all sizes {asked.name} = {asked.first}..{asked.last}: {why}; "
                "'shardproof sweep' plans size by size"
            )
        step = asked.step or job.step
        first, last = -(-asked.first // step) * step, asked.last // step * step
        if step % job.step or (asked.step and (first, last) != (asked.first, asked.last)) or first >= last:
            first, last = -(-asked.first // job.step) * job.step, max(2, asked.last // job.step) * job.step
            raise InputError(
                f"{asked.name} = {asked.first}..{asked.last} in steps of {step}: blocks have one length at multiples "
                f"of {job.step} on {self.request.machine.devices} devices; write "
                f"{asked.name}={first}..{max(last, first + job.step)}+{job.step}"
            )
        if (first, last, step) != (asked.first, asked.last, 1):
            self.notes.append(
                f"sizes are {asked.name} = {first}..{last} in steps of {step}, where blocks have one length on "
                f"{self.request.machine.devices} devices; 'run' refuses others"
            )
        ends = SizedGraph(asked.name, (first, last), family.at(first), family.at(last)).check()
        return replace(job, programs=ends), step

    def _solve(self, size: int) -> None:
        """The plan of a size.  Raises `InputError` where the program of the size is none of the family."""
        graph = self.job.programs.at(size)
        if self.asked.program(size).to_json() != graph.to_json():
            raise InputError(
                f"{graph.name}: the program of {self.asked.name} = {size} is another one than those of the ends of the "
                "range, in proportion; 'shardproof sweep' plans size by size"
            )
        left = self.limit.clock.remaining_s()
        request = replace(self.request, graph=graph, space=self.job.space, gap=self.enough / OWN_SHARE)
        planned = carry_out(request, self.limit.part(None if left == inf else left / TIME_SHARE)).planned
        if planned.plan is None or planned.answer.solution is None:
            raise InputError(f"no plan of {self.asked.name} = {size} was found in its part of the time; give it more")
        claim = planned.plan.certificate.claim
        bound = claim.cost if isinstance(claim, Optimal) else claim.lower_bound if isinstance(claim, WithinGap) else 0
        self.ends[size] = SizeEnd(size, planned.planning, planned.answer.solution, bound)
        self.plans[size] = write_plan(None, planned.plan)

    def _best(self, low: int, high: int) -> tuple[Fraction, int]:
        """The gap of the sizes between two plans, and whose placements are taken."""
        ends = self.ends[low], self.ends[high]
        found = self.publisher.gap_between(self.job, self.step, ends, ends[0], self.enough), low
        if found[0] <= self.enough or ends[0].solution == ends[1].solution:
            return found
        return min(found, (self.publisher.gap_between(self.job, self.step, ends, ends[1], self.enough), high))

    def _middle(self, ends: tuple[int, int]) -> int:
        """The size between two that is as much larger than one as smaller than the other, about; 0 if there is none."""
        low, high = ends
        if high - low <= self.step:
            return 0
        return min(max(low + self.step, isqrt(low * high) // self.step * self.step), high - self.step)
