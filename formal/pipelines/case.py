"""This module holds one number of stages and micro-batches: its lower bound, and plans for it.

Leaves are runs of one unit, then of two, of four ..; equal ones are solved once.  A plan cuts where the bound is least,
gives every stage the placements that are best between even layouts at its cuts, and runs 1F1B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor

from ...models.cost.selection import build
from ...models.pipelines.bound import IMPOSSIBLE, Bounds, closure, least, reached
from ...models.pipelines.cuts import Hops, Passes, least_cut
from ...models.pipelines.forbidden import without
from ...models.pipelines.nodes import loose, nodes
from ...models.pipelines.pieces import Part, Pieces, Seconds
from ...models.pipelines.views import send_between, send_time, view
from ...models.pipelines.work import PER_SECOND, unit_work
from ...models.problem.selection_problem import SelectionProblem
from ...models.text import InputError
from ...proofs.pipelines.certificate import Leaf
from ..planning.simple import simple_plans
from ..planning.time_limit import TooSlow
from ..selection.model.clock import Clock
from ..selection.relax_resources import relax_resources
from ..selection.solve import solve
from .job import Job
from .layouts import even_choices
from .leaf import LEAF_GAP, solved
from .menus import Menus

MOST_WHOLE = 400
"""Vertices of a stage up to which its placements are found at once; beyond, unit by unit (`menus`)."""

FAR = Fraction(1, 10)
"""Stages of options of units that take longer than their leaves by more than this are found at once after all."""

PLAN_SHARE = 0.15
"""Of the time limit, for all placements of one plan that are found at once."""

MENU_SHARE = 0.5
"""Of the time limit, for the options of units of one plan: what is cut short there is slow on every stage."""

MENU_SECONDS = 60.0
"""For one option of a menu."""

FIT_SHARE = 0.1
"""Of the time limit, to fit one stage into the memory."""

FINE = 16
"""Binary digits to which the bound of a case is found."""

MOST_FITS = 8
"""Attempts to fit a stage with options of its units."""

NO_STEP = 1 << 62
"""Picoseconds: no plan is known, or none fits."""

NO_LIMIT = 1 << 50
"""Bytes; rows are built all the same, to say what a stage needs."""


@dataclass(frozen=True, eq=False)
class StagePlan:
    """A stage: units first .. end-1, choices (vertex of the planning problem -> choice), its times."""

    first: int
    end: int
    choices: dict[int, int]
    seconds: Seconds


@dataclass(eq=False)
class Case:
    """`stages` stages and `micro` micro-batches.  `bound`: picoseconds that a step takes at least; `coarse`: what least
    work alone says; `chunks`: on each of `stages` views (`interleaved`);
    `begins`: cuts from which better ones are looked for.  `guard`: until when tables may be built.
    """

    job: Job
    stages: int
    micro: int
    leaves: dict[tuple[int, int, int, bool], Leaf] = field(default_factory=dict)
    passes: dict[tuple[int, int, str], Leaf] = field(default_factory=dict)
    bound: int = 0
    coarse: int = 0
    starts: tuple[int, ...] = ()
    size: int = 0
    looked: bool = False
    chunks: int = 1
    begins: tuple[tuple[int, ...], ...] = ()
    guard: Clock | None = None
    _pieces: Pieces | None = None
    _joined: Pieces | None = None
    _menus: Menus | None = None

    def __post_init__(self) -> None:
        machine = view(self.job.machine, self.stages)
        assert machine is not None
        self.machine = machine
        self.graph = self.job.micro_batch(self.micro)
        self.work = unit_work(self.job.amounts(self.micro), machine)
        self.forward = unit_work(self.job.amounts(self.micro), machine, "F")
        self.weight = self.job.unit_bytes(self.micro)
        self.nodes = nodes(machine, self.job.where) if self.job.single else None

    @property
    def parts(self) -> int:
        """Runs of units that a plan has."""
        return self.stages * self.chunks

    @property
    def home(self) -> Case:
        """The case whose tables this one uses."""
        return self

    @property
    def pieces(self) -> Pieces:
        """The problem on one view, built when it is first needed."""
        if self._pieces is None:
            limit = NO_LIMIT if self.job.memory is None else self.job.memory
            planning = build(self.graph, self.machine, self.job.where, limit, self.in_time)
            planning = without(planning, self.job.division, self.job.forbidden)
            self._pieces = Pieces(planning, self.job.division)
        return self._pieces

    @property
    def joined(self) -> Pieces:
        """The problem in which every node of the view is one device; only where there are `nodes`."""
        if self._joined is None:
            assert self.nodes is not None
            planning = build(self.graph, self.nodes, self.job.where, None, self.in_time)
            self._joined = Pieces(planning, self.job.division, loose(planning), True)
        return self._joined

    def in_time(self, done: int, total: int) -> None:
        """Hears of tables that are built; `TooSlow` when their time is over."""
        if self.guard is not None and self.guard.left() <= 0:
            raise TooSlow(f"tables of {self.job.where.name!r} do not fit into the time limit: raise it, or cut --space")

    def forget(self) -> None:
        """Give the tables back; leaves and bound stay."""
        self._pieces = self._joined = self._menus = None

    def bounds(self) -> Bounds:
        """What every run of units takes at least, as far as it is known."""
        n, m = self.job.division.units, self.micro
        one = {(u, u + 1): w for u, w in enumerate(self.work)}
        updated, step = dict(one), {(u, u + 1): w * m for u, w in enumerate(self.work)}

        def learn(known: dict[tuple[int, int], int], run: tuple[int, int], value: int) -> None:
            known[run] = max(known.get(run, 0), value)

        for (i, j, times, once), leaf in self.leaves.items():
            if not once:
                learn(one, (i, j), leaf.bound)
            if times == 1:
                learn(updated, (i, j), leaf.bound)
            learn(step, (i, j), leaf.bound if once else leaf.bound * m)
        found = closure(n, one), closure(n, updated), closure(n, step)
        for i in range(n):
            for j in range(i + 1, n + 1):
                if self.too_heavy(i, j):
                    for rows in found:
                        rows[i][j] = IMPOSSIBLE
        return Bounds(*found)

    def passes_known(self, both: Bounds) -> Passes:
        """What is known of runs of units, forward and backward apart."""
        n = self.job.division.units
        least_f = {(u, u + 1): w for u, w in enumerate(self.forward)}
        least_b: dict[tuple[int, int], int] = {}
        for (i, j, phase), leaf in self.passes.items():
            rows = least_f if phase == "F" else least_b
            rows[i, j] = max(rows.get((i, j), 0), leaf.bound)
        return Passes(closure(n, least_f), closure(n, least_b), both.one, both.updated, both.step)

    def hops(self) -> Hops:
        """Sends in front of every stage, in picoseconds."""
        cuts, stages = self.job.division.cuts, range(1, self.parts)

        def ways(k: int) -> list[list[int]]:
            return [[], *([0, *(floor(PER_SECOND * self.hop(pair[k], s)) for pair in cuts)] for s in stages)]

        return Hops(ways(0), ways(1))

    def hop(self, tensor: str, boundary: int) -> Fraction:
        """Seconds to send a tensor between the stages (chunks: they go around) at a boundary."""
        t = self.graph.tensor(tensor)
        return send_between(self.job.machine, self.stages, t.elements * t.element_bytes, boundary)

    def too_heavy(self, first: int, end: int) -> bool:
        """Whether no placement of these units fits the memory, evenly split over a view, with one activation kept."""
        limit = self.job.memory
        return limit is not None and sum(self.weight[first:end]) > limit * self.machine.devices

    def sends(self) -> list[int]:
        """Per cut, picoseconds there and back at least; one entry per unit, the first of no meaning."""
        return [0, *(floor(PER_SECOND * self.send(c, False)) for c in range(1, self.job.division.units))]

    def send(self, cut: int, outermost: bool) -> Fraction:
        """Seconds to send forward and back at a cut."""
        return sum((self.one_way(t, outermost) for t in self.job.division.cuts[cut - 1]), Fraction(0))

    def one_way(self, tensor: str, outermost: bool) -> Fraction:
        """Seconds to send a tensor to the neighbouring view."""
        t = self.graph.tensor(tensor)
        return send_time(self.job.machine, self.stages, t.elements * t.element_bytes, outermost)

    def update_bound(self, most: int) -> None:
        """The bound again, after leaves came in; `most`: what is of no interest."""
        known, sends = self.bounds(), self.sends()
        value, starts = least(known, self.micro, sends, self.stages, most)
        self.starts = starts or self.starts
        there = [0, *(floor(PER_SECOND * self.one_way(pair[0], False)) for pair in self.job.division.cuts)]

        def holds(value: int) -> bool:
            return reached(known, self.forward, self.micro, sends, there, self.stages, value)

        low, high = max(self.bound, value), most
        step = max(1, low >> 8)
        while low < most and step > low >> FINE:  # longer steps while they hold, then shorter ones
            at = min(low + step, high, most)
            if at > low and holds(at):
                low, step = at, 2 * step if high == most else step // 2
            else:
                high, step = at, step // 2
        self.bound = low
        if self.passes and self.starts and self.stages > 1 and low < most:
            better = least_cut(self.passes_known(known), self.hops(), self.micro, self.starts, low, most)
            if better is not None:
                self.bound, self.starts = better[0], better[1] or self.starts

    def look(self, clock: Clock, most: int = NO_STEP) -> None:
        """Solve leaves of one unit on nodes, where there are some: a bound that costs little."""
        self.looked = True
        if self.nodes is not None:
            self._prove(1, clock, most, True)
            self._joined = None

    def prove(self, size: int, clock: Clock, most: int = NO_STEP) -> None:
        """Solve the leaves of `size` units, those that say most first, until the bound is `most`."""
        self.looked = True
        self._prove(size, clock, most, False)
        self.size = size

    def _prove(self, size: int, clock: Clock, most: int, joined: bool) -> None:
        pieces, n = self.joined if joined else self.pieces, self.job.division.units
        for times, once, phase in self._kinds():
            alike: dict[object, list[int]] = {}
            for i in range(n - size + 1):
                key = pieces.pass_key(i, i + size) if phase else pieces.key(i, i + size, once)
                alike.setdefault(key, []).append(i)
            for runs in sorted(alike.values(), key=lambda runs: (-len(runs), runs[0])):
                leaf = self._solved(pieces, (runs[0], runs[0] + size), times, once, phase, clock)
                if leaf is not None:
                    for i in runs:
                        self._learn(leaf, i, i + size)
                    if most < NO_STEP:
                        self.update_bound(most)
                    if self.bound >= most:
                        return

    def _solved(
        self, pieces: Pieces, run: tuple[int, int], times: int, once: bool, phase: str, clock: Clock
    ) -> Leaf | None:
        """See `leaf.solved`."""
        return solved(pieces, (self.stages, self.micro), run, times, once, phase, clock)

    def _learn(self, leaf: Leaf, first: int, end: int) -> None:
        """A leaf of these units, unless one is known that says as much."""
        if leaf.phase:
            before = self.passes.get((first, end, leaf.phase))
            if before is None or before.bound < leaf.bound:
                self.passes[first, end, leaf.phase] = leaf
        else:
            before = self.leaves.get((first, end, leaf.times, leaf.once))
            if before is None or before.bound < leaf.bound:
                self.leaves[first, end, leaf.times, leaf.once] = leaf

    def _kinds(self) -> list[tuple[int, bool, str]]:
        """What leaves count: (micro-batches, whether updates too, the pass or both).  Of one stage the step counts, of
        several what a micro-batch takes too.
        """
        if self.stages == 1:
            return [(self.micro, True, "")]
        whole = dict.fromkeys([(self.micro, True, ""), (1, False, ""), (1, True, "")])
        return [*whole, (1, False, "F"), (1, False, "B")]

    def prove_run(self, first: int, end: int, clock: Clock) -> None:
        """Solve the leaves of one run of units, however many a step counts."""
        for times, once in sorted({(1, False), (1, True), (self.micro, True)}):
            leaf = self._solved(self.pieces, (first, end), times, once, "", clock)
            if leaf is not None:
                self._learn(leaf, first, end)

    def plan(self, starts: tuple[int, ...], clock: Clock, order: tuple[int, ...]) -> list[StagePlan] | None:
        """Stages that begin at these units, cuts split along dimensions in this order; None where one is not found.

        Memory is for `fitted`.
        """
        layouts = even_choices(self.pieces.planning, self.job.division.cuts, order)
        if layouts is None:
            return None
        out: list[StagePlan] = []
        known: dict[str, tuple[int, ...] | None] = {}
        self._menus = None
        runs = _runs(starts, self.job.division.units)
        if max(len(self.pieces.stage_vertices(i, j)) for i, j in runs) > MOST_WHOLE:
            stages = self._by_units(starts, clock.share(MENU_SHARE), layouts)
            if stages is None or self.slack(stages) <= FAR:
                return stages
            self._menus = None
        clock = clock.share(PLAN_SHARE)
        for i, j in runs:
            part = self.pieces.stage(i, j, self.micro + self.stages - 1, 1, layouts)
            key = part.problem.sha256()
            if key not in known:
                known[key] = self._answer(part, clock)
            x = known[key]
            if x is None:
                return None
            choices = dict(zip(part.vertices, x, strict=True))
            out.append(StagePlan(i, j, choices, self.pieces.seconds(i, j, choices)))
        return out

    def _by_units(self, starts: tuple[int, ...], clock: Clock, layouts: dict[str, int]) -> list[StagePlan] | None:
        """Stages of options of their units, the fastest ones."""

        def placed(problem: SelectionProblem, known: list[tuple[int, ...]]) -> tuple[int, ...] | None:
            return solve(problem, clock=clock.at_most(MENU_SECONDS), gap=LEAF_GAP, known=known).solution

        times = self.micro + self.stages - 1
        menus = Menus(self.pieces, layouts, times, min(self.stages, self.micro), self.micro > 1, placed)
        if not menus.prepare():
            return None
        self._menus = menus
        out = []
        for i, j in _runs(starts, self.job.division.units):
            choices = menus.chosen(i, j, 1, None)
            assert choices is not None  # nothing limits them
            out.append(StagePlan(i, j, choices, self.pieces.seconds(i, j, choices)))
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
        return max(accumulate(change))

    def block(self, tensor: str) -> int:
        """Bytes on a device of what crosses a cut, evenly split."""
        t = self.graph.tensor(tensor)
        return -(-t.elements // self.machine.devices) * t.element_bytes

    def fitted(
        self, stages: list[StagePlan], kept: Sequence[int], waiting: Sequence[int], clock: Clock
    ) -> list[StagePlan] | None:
        """The stages within the memory, with other placements where that is needed; None if one does not fit.
        `waiting`: bytes of what waits between stages.
        """
        limit = self.job.memory
        if limit is None:
            return stages
        out = []
        for stage, count, queued in zip(stages, kept, waiting, strict=True):
            if self.peak(stage, count) + queued > limit:
                if queued >= limit:
                    return None
                fit = self._fit_by_units if self._menus is not None else self._fit_whole
                choices = fit(stage, count, limit - queued, clock)
                if choices is None:
                    return None
                i, j = stage.first, stage.end
                stage = replace(stage, choices=choices, seconds=self.pieces.seconds(i, j, choices))
            out.append(stage)
        return out

    def _fit_whole(self, stage: StagePlan, kept: int, limit: int, clock: Clock) -> dict[int, int] | None:
        """Choices of a stage under rows of memory, with the layouts at its cuts as they are."""
        i, j = stage.first, stage.end
        fixed = {t: stage.choices[self.pieces.planning.copies[t]] for t in self.pieces.crossing(i, j)}
        part = self.pieces.stage(i, j, self.micro + self.stages - 1, 1, fixed)
        limited = self.pieces.limited(part, self.pieces.usages(i, j, kept, self.micro > 1), limit)
        answer = relax_resources(limited.problem, clock=clock.share(FIT_SHARE), gap=LEAF_GAP)
        return None if answer.solution is None else dict(zip(part.vertices, answer.solution, strict=True))

    def _fit_by_units(self, stage: StagePlan, kept: int, limit: int, clock: Clock) -> dict[int, int] | None:
        """Choices of a stage from the menus: less is allowed between the passes by what other moments need more."""
        assert self._menus is not None and self.job.memory is not None
        self._menus.extend(self.job.memory)
        allowed = limit
        for _ in range(MOST_FITS):
            choices = self._menus.chosen(stage.first, stage.end, kept, allowed)
            if choices is None:
                return None
            over = self.peak(replace(stage, choices=choices), kept) - limit
            if over <= 0:
                return choices
            allowed -= over
        return None

    def _answer(self, part: Part, clock: Clock) -> tuple[int, ...] | None:
        whole = part.vertices == tuple(range(len(self.pieces.planning.decisions)))
        brought = simple_plans(self.pieces.planning) if whole else ()
        return solve(part.problem, clock=clock.at_most(None), gap=LEAF_GAP, brought=brought).solution


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
        if view(job.machine, p) is None:
            raise InputError(
                f"--pipeline: {p} stages are no equal parts of {job.machine.name} "
                f"{'x'.join(map(str, job.machine.hierarchy))}"
            )
        if p > job.division.units:
            raise InputError(f"--pipeline: {job.graph.name} has {job.division.units} units, too few for {p} stages")
    return [Case(job, p, m) for p, m in pairs]


def picoseconds(units: int, scale: int) -> int:
    """Units of a problem in picoseconds, rounded up."""
    return ceil(Fraction(units * PER_SECOND, scale))
