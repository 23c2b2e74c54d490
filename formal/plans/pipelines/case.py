"""One number of stages and micro-batches: its lower bound, and plans for it.

Leaves are runs of one unit, then of two, of four ..; equal ones are solved once.  A plan cuts where the bound is least,
gives every stage the placements that are best between even layouts at its cuts, and runs 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from math import ceil

from ....models.pipelines.channels import Channels
from ....models.pipelines.pieces import Part, Pieces
from ....models.pipelines.views import equal_submesh
from ....models.pipelines.work import PER_SECOND
from ....models.problem.selection_problem import SelectionProblem
from ....models.text import Inapplicable, InputError
from ...selection.model.clock import Clock, Overdue
from ...selection.options import options_in_use
from ...selection.relax_resources import relax_resources
from ...selection.solve import solve
from ..simple import simple_plans
from .bounded import Bounded
from .job import Job
from .layouts import even_choices
from .leaf import LEAF_GAP
from .menus import Menus
from .mixed import mixture
from .phases import AHEAD, StagePlan, stage_with_times

MOST_WHOLE = 400
"""Vertices of a stage up to which its placements are found at once; beyond, unit by unit (`menus`)."""

FAR = Fraction(1, 10)
"""Stages of options of units that take longer than their leaves by more than this are found at once after all."""

PLAN_SHARE = 0.15
"""Of the time limit, for all placements of one plan that are found at once."""

MENU_SHARE = 0.7
"""Of the time limit, for the options of units of one plan: what is cut short there is slow on every stage, and all that
follows is quick.
"""

MENU_PART, MENU_SECONDS = 0.125, 60.0
"""For one option of a menu: of what is left of that, and at most so much."""

FIT_SHARE = 0.1
"""Of the time limit, to fit one stage into the memory."""

LATE = 0.02
"""What a part of the updates counts that other stages do while the first one still works."""

MOST_FITS = 8
"""Attempts to fit a stage with options of its units."""


@dataclass(eq=False)
class Case(Bounded):
    """`stages` stages and `micro` micro-batches, as in `Bounded`, and plans for them."""

    _menus: Menus | None = None
    _prepared: dict[tuple[Channels | None, tuple[tuple[str, int], ...]], Menus] = field(default_factory=dict)
    """Options of units, which serve all cuts."""
    _fits: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    """Hash of a stage's problem without memory -> solutions that fitted into the memory of an equal stage."""
    _timed: dict[tuple[int, int, int | None, tuple[tuple[int, int], ...]], StagePlan] = field(default_factory=dict)
    """Stages with their orders: every schedule asks again for those that may run less far ahead."""

    def forget(self) -> None:
        """Give the tables back; leaves and bound stay."""
        super().forget()
        self._menus = None
        self._prepared.clear()
        self._fits.clear()
        self._timed.clear()

    def plan(
        self, starts: tuple[int, ...], clock: Clock, order: tuple[int, ...], channels: Channels | None = None
    ) -> list[StagePlan] | None:
        """Stages that begin at these units, cuts split along dimensions in this order; None where one is not found.
        `channels`: what placements are cheap by; None: the sum of all.

        Memory is for `fit_memory`.
        """
        pieces = self.pieces if channels is None else self.pieces.weighing(channels)
        layouts = even_choices(self.pieces.planning, self.job.division.cuts, order)
        if layouts is None:
            return None
        out: list[StagePlan] = []
        known: dict[str, tuple[int, ...] | None] = {}
        self._menus = None
        runs = _runs(starts, self.job.division.units)
        common, settled = self.common_copies, dict[int, int]()
        if max(len(self.pieces.stage_vertices(i, j)) for i, j in runs) > MOST_WHOLE:
            stages = self._by_units(pieces, starts, clock.share(MENU_SHARE), layouts)
            # leaves of weighted channels leave out what waits, so they are far from every stage
            if stages is None or self.job.overlap or self.slack(stages) <= FAR:
                return stages
            self._menus = None
        clock = clock.share(PLAN_SHARE)
        for i, j in runs:
            part = pieces.stage(i, j, self.micro + self.stages - 1, 1, layouts, settled=settled)
            key = part.problem.sha256()
            if key not in known:
                known[key] = self._answer(part, clock)
            x = known[key]
            if x is None:
                return None
            choices = dict(zip(part.vertices, x, strict=True))
            settled |= {v: choices[v] for v in common & choices.keys()}  # by the first stage that has it
            out.append(self.time_stage(i, j, choices))
        return out

    @property
    def common_copies(self) -> frozenset[int]:
        """Vertices of copies that have one layout on all stages: of what these may send each other once a step."""
        units = self.job.division.units
        found = self.exchange(tuple(range(1, units + 1)) if self.parts > 1 else (units,))
        return frozenset(self.pieces.planning.copies[t] for t in found.layouts(self.graph))

    def mix_placements(self, starts: tuple[int, ...], clock: Clock, order: tuple[int, ...]) -> list[list[StagePlan]]:
        """Stages of placements of units that are mixed so that more is hidden (`mix_placements`), with all updates
        counted, and with those of the first stage alone, which come last; none where phases do not overlap, or a unit
        has no placement.
        """
        layouts = even_choices(self.pieces.planning, self.job.division.cuts, order) if self.job.overlap else None
        if layouts is None:
            return []
        limit, times = clock.share(MENU_SHARE), self.micro + self.stages - 1

        def solve_placements(
            problem: Callable[[], SelectionProblem], known: list[tuple[int, ...]]
        ) -> tuple[int, ...] | None:
            return solve(problem(), clock=limit.at_most(MENU_SECONDS), gap=LEAF_GAP, known=known).solution

        def menus(pieces: Pieces) -> Menus:
            return Menus(pieces, layouts, times, min(self.stages, self.micro), self.micro > 1, solve_placements)

        found = mixture(self.pieces, menus, self.tried, self.micro)
        if found is None:
            return []
        self._menus, options = found
        runs = _runs(starts, self.job.division.units)

        def stage(i: int, j: int, update: float) -> StagePlan:
            made = [self.time_stage(i, j, x) for x in options.ways(i, j, update)]
            return min(
                made, key=lambda s: self.micro * (s.seconds.forward + s.seconds.backward) + update * s.seconds.update
            )

        return [
            [stage(i, j, late if i else 1.0) for i, j in runs] for late in ((1.0, LATE) if len(runs) > 1 else (1.0,))
        ]

    def time_stage(
        self, first: int, end: int, choices: dict[int, int], ahead: int | None = None, clock: Clock | None = None
    ) -> StagePlan:
        """A stage with its times; where phases overlap, in orders that are found (`phases`)."""
        if not self.job.overlap:
            return StagePlan(first, end, choices, self.pieces.seconds(first, end, choices))
        key = first, end, ahead, tuple(sorted(choices.items()))
        if key not in self._timed or clock is not None:
            limited = self.job.memory is not None
            self._timed[key] = stage_with_times(
                self.pieces, (first, end), choices, limited, self.job.orders, ahead, clock
            )
        return self._timed[key]

    def within(self, first: int, end: int, choices: dict[int, int], kept: int, limit: int) -> StagePlan | None:
        """A stage whose reshardings run as far ahead as fits, or one after another; None if that does not fit."""
        for ahead in AHEAD if self.job.overlap else ():
            stage = self.time_stage(first, end, choices, ahead)
            if self.peak(stage, kept) <= limit:
                return stage
        stage = StagePlan(first, end, choices, self.pieces.seconds(first, end, choices))
        return stage if self.peak(stage, kept) <= limit else None

    def _by_units(
        self, pieces: Pieces, starts: tuple[int, ...], clock: Clock, layouts: dict[str, int]
    ) -> list[StagePlan] | None:
        """Stages of options of their units, the fastest ones."""

        def solve_placements(
            problem: Callable[[], SelectionProblem], known: list[tuple[int, ...]]
        ) -> tuple[int, ...] | None:
            if known and clock.over():  # not what is known as an answer: with more time there may be another
                return None
            part = clock.at_most(None).share(MENU_PART).at_most(MENU_SECONDS)
            return solve(problem(), clock=part, gap=LEAF_GAP, known=known).solution

        times, key = self.micro + self.stages - 1, (pieces.channels, tuple(sorted(layouts.items())))
        menus = self._prepared.get(key)
        if menus is None:
            menus = Menus(pieces, layouts, times, min(self.stages, self.micro), self.micro > 1, solve_placements)
            if not menus.prepare():
                return None
            self._prepared[key] = menus
        menus.solve = solve_placements
        self._menus = menus
        out = []
        for i, j in _runs(starts, self.job.division.units):
            choices = menus.choose_within(i, j, 1, None)
            assert choices is not None  # nothing limits them
            out.append(self.time_stage(i, j, choices))
        return out

    def slack(self, stages: Sequence[StagePlan]) -> Fraction:
        """By what part these stages take longer than the leaves say, all micro-batches and updates together."""
        known, scale = self.bounds().step, self.pieces.planning.problem.scale
        least_all = sum(known[s.first][s.end] for s in stages)
        spent = sum(self.micro * (s.seconds.forward + s.seconds.backward) + s.seconds.update for s in stages)
        return Fraction(spent * PER_SECOND, scale * max(1, least_all)) - 1

    def peak(self, stage: StagePlan, kept: int) -> int:
        """Bytes on the fullest device of a stage that keeps activations of `kept` micro-batches."""
        rows = self.pieces.usages(stage.first, stage.end, kept, self.micro > 1)
        change = [0] * (len(self.graph.operators) + 2)
        for u in rows:
            amount = int(u.amount[stage.choices[u.vertex]])
            change[u.start] += amount
            change[u.end] -= amount
        held = list(accumulate(change))
        return max(max(held), *(a + b for a, b in zip(held, stage.extras, strict=False))) if stage.extras else max(held)

    def cut_within(self) -> tuple[int, ...] | None:
        """First units of stages that are fast within the memory, each with the activations that 1F1B keeps, or with
        fewer where a step takes less so; None where no stage had to be fitted with options of its units.
        """
        menus, limit, p = self._menus, self.job.memory, self.stages
        if menus is None or limit is None or not menus.extended or self.chunks > 1:
            return None
        best: tuple[float, tuple[int, ...]] | None = None
        for most in reversed(activation_limits(p)):
            found = menus.cut_within([min(self.micro, p - s, most) for s in range(p)], limit)
            longer = max(1.0, min(self.micro, p) / most)
            if found is not None and (best is None or found[0] * longer < best[0]):
                best = found[0] * longer, found[1]
        return None if best is None else best[1]

    def block(self, tensor: str) -> int:
        """Bytes on a device of what crosses a cut, evenly split."""
        t = self.graph.tensor(tensor)
        return -(-t.elements // self.machine.devices) * t.element_bytes

    def fit_memory(
        self, stages: list[StagePlan], kept: Sequence[int], waiting: Sequence[int], clock: Clock
    ) -> list[StagePlan] | None:
        """The stages within the memory, with other placements where that is needed; None if one does not fit.
        `waiting`: bytes of what waits between stages.
        """
        limit = self.job.memory
        if limit is None:
            return stages
        out = list(stages)
        # where most is kept first: what fits there fits equal stages that keep less
        for k in sorted(range(len(stages)), key=lambda k: (-kept[k], k)):
            stage, count, left = stages[k], kept[k], limit - waiting[k]
            if self.peak(stage, count) > left:
                less = None if left <= 0 else self._fit(stage, count, left, clock)
                if less is None:
                    return None
                out[k] = less
        return out

    def _fit(self, stage: StagePlan, kept: int, limit: int, clock: Clock) -> StagePlan | None:
        """A stage within `limit` bytes, with other placements where that is needed.  Raises `Overdue` where the time
        for tables is over, too: then no placement is looked for.
        """
        run = stage.first, stage.end
        less = self.within(*run, stage.choices, kept, limit)
        if less is not None:
            return less
        if self.guard is not None and not self.guard.counts and self.guard.over():
            raise Overdue("--pipeline: no time is left to fit a stage into the memory")
        if self._menus is not None:
            choices = self._fit_by_units(stage, kept, limit)
            return None if choices is None else self.within(*run, choices, kept, limit)
        return self._fit_whole(stage, kept, limit, clock)

    def _fit_whole(self, stage: StagePlan, kept: int, limit: int, clock: Clock) -> StagePlan | None:
        """A stage under rows of memory, with the layouts at its cuts and those in common; the placements of an equal
        stage where they fit.
        """
        i, j = stage.first, stage.end
        fixed = {t: stage.choices[self.pieces.planning.copies[t]] for t in self.pieces.crossing(i, j)}
        common = {v: stage.choices[v] for v in self.common_copies & stage.choices.keys()}
        part = self.pieces.stage(i, j, self.micro + self.stages - 1, 1, fixed, settled=common)
        known = self._fits.setdefault(part.problem.sha256(), [])
        for x in known:
            again = self.within(i, j, dict(zip(part.vertices, x, strict=True)), kept, limit)
            if again is not None:
                return again
        limited = self.pieces.with_memory_rows(part, self.pieces.usages(i, j, kept, self.micro > 1), limit)
        asked = options_in_use()
        options = replace(asked, tree=replace(asked.tree, least_limit_s=0.0))  # that nothing fits is answer enough
        answer = relax_resources(limited.problem, clock=clock.share(FIT_SHARE), gap=LEAF_GAP, options=options)
        if answer.solution is None:
            return None
        known.append(answer.solution)
        return self.within(i, j, dict(zip(part.vertices, answer.solution, strict=True)), kept, limit)

    def _fit_by_units(self, stage: StagePlan, kept: int, limit: int) -> dict[int, int] | None:
        """Choices of a stage from the menus: less is allowed between the passes by what other moments need more."""
        assert self._menus is not None and self.job.memory is not None
        self._menus.extend(self.job.memory)
        allowed = limit
        for k in range(MOST_FITS):
            choices = self._menus.choose_within(stage.first, stage.end, kept, allowed)
            if choices is None:
                return None
            over = self.peak(replace(stage, choices=choices, extras=()), kept) - limit
            if over <= 0:
                return choices
            # an exchange may free another moment than the fullest: then longer steps, at last an eighth of all
            allowed -= over if k < MOST_FITS // 2 else max(over, limit >> (MOST_FITS + 2 - k))
        return None

    def _answer(self, part: Part, clock: Clock) -> tuple[int, ...] | None:
        whole = part.vertices == tuple(range(len(self.pieces.planning.decisions)))
        brought = simple_plans(self.pieces.planning) if whole else ()
        return solve(part.problem, clock=clock.at_most(None), gap=LEAF_GAP, brought=brought).solution


def activation_limits(stages: int) -> tuple[int, ...]:
    """Activations that stages may keep where the memory is small: with fewer than there are stages, a step takes longer
    by the ratio of both.

    >>> activation_limits(16), activation_limits(2)
    ((8, 10, 12, 14, 16), (1, 2))
    """
    return tuple(sorted({max(1, -(-stages * k // 8)) for k in (4, 5, 6, 7, 8)}))


def _runs(starts: Sequence[int], units: int) -> list[tuple[int, int]]:
    return list(zip(starts, (*starts[1:], units), strict=True))


def orders(case: Case) -> Iterator[tuple[int, ...]]:
    """Dimensions in which what crosses cuts may be split first."""
    rank = max((len(case.graph.tensor(t).shape) for names in case.job.division.cuts for t in names), default=1)
    for k in range(rank):
        yield (k, *(i for i in range(rank) if i != k))


def cases(job: Job, pairs: list[tuple[int, int]]) -> list[Case]:
    """Cases of (stages, micro-batches); `InputError` where the batch or the machine cannot be cut so."""
    for p, _ in pairs:
        if equal_submesh(job.machine, p) is None:
            raise InputError(
                f"--pipeline: {p} stages are no equal parts of {job.machine.name} "
                f"{'x'.join(map(str, job.machine.hierarchy))}"
            )
        if p > job.division.units:
            raise Inapplicable(
                f"--pipeline: {job.graph.name} has {job.division.units} units, too few for {p} stages",
                f"ask for {job.division.units} stages at most",
            )
    return [Case(job, p, m) for p, m in pairs]


def picoseconds(units: int, scale: int) -> int:
    """Units of a problem in picoseconds, rounded up."""
    return ceil(Fraction(units * PER_SECOND, scale))
