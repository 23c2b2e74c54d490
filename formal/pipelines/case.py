"""One number of stages and micro-batches: its lower bound, and plans for it.

Leaves are runs of one unit, then of two, of four ..; equal ones are solved once.  A plan cuts where the bound is least,
gives every stage the placements that are best between even layouts at its cuts, and runs 1F1B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor, prod

from ...models.cost.selection import Planning, build
from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.pipelines.bound import IMPOSSIBLE, Bounds, closure, least
from ...models.pipelines.division import Division
from ...models.pipelines.micro import micro_batch
from ...models.pipelines.pieces import Part, Pieces, Seconds
from ...models.pipelines.views import send_time, view
from ...models.pipelines.work import PER_SECOND, unit_bytes, unit_work
from ...models.problem.selection_problem import ProblemError
from ...models.program.graph import Graph
from ...models.text import InputError
from ...proofs.pipelines.certificate import Leaf
from ..planning.simple import simple_plans
from ..selection.model.clock import Clock
from ..selection.relax_resources import relax_resources
from ..selection.solve import solve

LEAF_GAP = Fraction(1, 1000)
"""Leaves are proved to this gap."""

NO_LIMIT = 1 << 50
"""Bytes; rows are built all the same, to say what a stage needs."""


@dataclass(frozen=True)
class Job:
    """What is planned: a training step, divided, on a machine."""

    graph: Graph
    division: Division
    machine: Machine
    where: Space
    memory: int | None


@dataclass(frozen=True, eq=False)
class StagePlan:
    """A stage: units first .. end-1, choices (vertex of the planning problem -> choice), its times."""

    first: int
    end: int
    choices: dict[int, int]
    seconds: Seconds


@dataclass(eq=False)
class Case:
    """`stages` stages and `micro` micro-batches.  `bound`: picoseconds that a step takes at least."""

    job: Job
    stages: int
    micro: int
    leaves: dict[tuple[int, int, int, bool], Leaf] = field(default_factory=dict)
    bound: int = 0
    starts: tuple[int, ...] = ()
    size: int = 0
    _pieces: Pieces | None = None

    def __post_init__(self) -> None:
        machine = view(self.job.machine, self.stages)
        assert machine is not None
        self.machine = machine
        self.graph = micro_batch(self.job.graph, self.micro)
        self.work = unit_work(self.graph, machine, self.job.division)
        self.weight = unit_bytes(self.graph, self.job.division, self.micro > 1)

    @property
    def pieces(self) -> Pieces:
        """The problem on one view, built when it is first needed."""
        if self._pieces is None:
            limit = NO_LIMIT if self.job.memory is None else self.job.memory
            planning = build(self.graph, self.machine, self.job.where, limit)
            self._pieces = Pieces(planning, self.job.division)
        return self._pieces

    def forget(self) -> None:
        """Give the tables back; leaves and bound stay."""
        self._pieces = None

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
        value, starts = least(self.bounds(), self.micro, self.sends(), self.stages, most)
        self.bound = max(self.bound, value)
        self.starts = starts or self.starts

    def prove(self, size: int, clock: Clock) -> None:
        """Solve the leaves of `size` units."""
        pieces, n = self.pieces, self.job.division.units
        solved: dict[object, Leaf | None] = {}
        for i in range(n - size + 1):
            for times, once in sorted({(1, False), (1, True), (self.micro, True)}):
                if (self.stages == 1 and times < self.micro) or (times > 1 and self.stages > 1):
                    continue  # of one stage the step counts, of several what a micro-batch takes
                key = (times, once, pieces.key(i, i + size, once))
                if key not in solved:
                    solved[key] = self._solved(i, i + size, times, once, clock)
                leaf = solved[key]
                if leaf is not None:
                    self.leaves[i, i + size, times, once] = leaf
        self.size = size

    def prove_run(self, first: int, end: int, clock: Clock) -> None:
        """Solve the leaves of one run of units, however many a step counts."""
        for times, once in sorted({(1, False), (1, True), (self.micro, True)}):
            if (leaf := self._solved(first, end, times, once, clock)) is not None:
                self.leaves[first, end, times, once] = leaf

    def _solved(self, first: int, end: int, times: int, once: bool, clock: Clock) -> Leaf | None:
        if clock.over():
            return None
        try:
            part = self.pieces.leaf(first, end, times, int(once))
        except ProblemError:  # costs too large for their unit
            return None
        answer = solve(part.problem, clock=clock.at_most(None), gap=LEAF_GAP)
        if answer.certificate is None or answer.lower_bound is None:
            return None
        value = answer.lower_bound * PER_SECOND // part.problem.scale
        return Leaf(self.stages, self.micro, first, end, times, once, value, answer.certificate)

    def plan(self, starts: tuple[int, ...], clock: Clock, order: tuple[int, ...]) -> list[StagePlan] | None:
        """Stages that begin at these units, cuts split along dimensions in this order; None where one is not found.

        Memory is for `fitted`.
        """
        layouts = self._layouts(order)
        if layouts is None:
            return None
        out: list[StagePlan] = []
        known: dict[str, tuple[int, ...] | None] = {}
        for i, j in zip(starts, (*starts[1:], self.job.division.units), strict=True):
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
                i, j = stage.first, stage.end
                fixed = {t: stage.choices[self.pieces.planning.copies[t]] for t in self.pieces.crossing(i, j)}
                part = self.pieces.stage(i, j, self.micro + self.stages - 1, 1, fixed)
                rows = self.pieces.usages(i, j, count, self.micro > 1)
                if queued >= limit:
                    return None
                limited = self.pieces.limited(part, rows, limit - queued)
                answer = relax_resources(limited.problem, clock=clock.at_most(None), gap=LEAF_GAP)
                if answer.solution is None:
                    return None
                choices = dict(zip(part.vertices, answer.solution, strict=True))
                stage = replace(stage, choices=choices, seconds=self.pieces.seconds(i, j, choices))
            out.append(stage)
        return out

    def _answer(self, part: Part, clock: Clock) -> tuple[int, ...] | None:
        whole = part.vertices == tuple(range(len(self.pieces.planning.decisions)))
        brought = simple_plans(self.pieces.planning) if whole else ()
        return solve(part.problem, clock=clock.at_most(None), gap=LEAF_GAP, brought=brought).solution

    def _layouts(self, order: tuple[int, ...]) -> dict[str, int] | None:
        """For what crosses cuts, the even layout that splits dimensions in this order; None if there is none."""
        planning, out = self.pieces.planning, {}
        for names in self.job.division.cuts:
            for name in names:
                choice = even_choice(planning, name, order)
                if choice is None:
                    return None
                out[name] = choice
        return out


def even_choice(planning: Planning, tensor: str, order: tuple[int, ...]) -> int | None:
    """The choice of a tensor's copy without replication that splits early dimensions of `order` most."""
    d = planning.decisions[planning.copies[tensor]]
    shape = planning.graph.tensor(tensor).shape
    best: tuple[tuple[int, ...], int] | None = None
    for choice, matrix in enumerate(d.placements):
        if (matrix[-1] != 1).any():
            continue
        degree = {int(a): prod(int(x) for x in matrix[k]) for k, a in enumerate(d.axes)}
        if any(shape[k] % n for k, n in degree.items()):
            continue
        score = tuple(degree.get(k, 1) for k in order if k < len(shape))
        if best is None or score > best[0]:
            best = score, choice
    return None if best is None else best[1]


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
