"""Makes a configuration that somebody has published, as a pipelined step: equal layers, one placement on
all views, 1F1B.

    stages          pp of them, each with as many layers; the embedding is in the first, the output in the last
    placements      tensor, context and data parallel degrees on every view (`models.sources.frameworks.placements`);
                    what they leave open, and how what crosses a cut is split, is completed in the configuration's
                    favour
    micro-batches   given, or the global batch / (copies x micro-batch)
    schedule        1F1B, as these frameworks run without interleaving

With restricted leaves, the same bound that counts for all cuts counts for these: with a_s what stage s takes at least
for a micro-batch, u_s its updates, c the sends, for every s

    step  >=  a_0 + u_0 + c_1 + sum over 0 < r < s of (a_r + c_(r+1)) + m a_s    and    step  >=  m a_s + u_s

so that no completion of the configuration is below the largest of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....models.cost.selection import Planning, build
from ....models.layout.placement import SpaceError
from ....models.layout.targets.degrees import Flags
from ....models.pipelines.division import Division
from ....models.pipelines.pieces import NO_CHAIN, Chain, Part, Pieces
from ....models.problem.selection_problem import FORBIDDEN, SelectionProblem, Vertex
from ....models.sources.frameworks.roles import roles
from ....models.text import InputError
from ....proofs.pipelines.certificate import Leaf
from ....proofs.schedules.certificate import ScheduleCertificate
from ...schedules.drawing import peaks
from ...schedules.published import orders as actions
from ...schedules.published import starts_of
from ...schedules.search import search
from ...schedules.shop import shop
from ...selection.model.clock import Clock
from ..frameworks import strategy_of_flags
from ..strategy import Strategy, resolve
from .bounded import NO_LIMIT
from .case import Case, cases, orders
from .job import Job
from .phases import StagePlan
from .scheduled import Scheduled, pipeline_of, step_of, waiting

PLAN_SHARE = 0.3
"""Of the time that is left, for the stages of one way to split what crosses cuts."""


class GivenPieces(Pieces):
    """Parts of a planning problem in which some vertices have the choices `allowed` only."""

    def __init__(self, planning: Planning, division: Division, allowed: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__(planning, division)
        self.allowed = allowed

    def key(self, first: int, end: int, once: bool) -> tuple[object, ...]:
        """See `Pieces`."""
        vertices = self.leaf_vertices(first, end, once)
        return (*super().key(first, end, once), tuple(self.allowed.get(v) for v in vertices))

    def _part(
        self,
        vertices: list[int],
        micro: int,
        once: int,
        fixed: Mapping[int, int],
        phase: str = "",
        chain: Chain | None = NO_CHAIN,
    ) -> Part:
        part = super()._part(vertices, micro, once, fixed, phase, chain)
        rows = list(part.problem.vertices)
        for k, v in enumerate(part.vertices):
            if v in self.allowed and v not in fixed:
                cost = np.full_like(rows[k].cost, FORBIDDEN)
                kept = list(self.allowed[v])
                cost[kept] = rows[k].cost[kept]
                rows[k] = Vertex(rows[k].name, cost)
        return Part(replace(part.problem, vertices=tuple(rows)).check(), part.vertices)


@dataclass(eq=False)
class GivenCase(Case):
    """A case in which a strategy decides placements on every view."""

    strategy: Strategy | None = None

    @property
    def pieces(self) -> Pieces:
        """See `Case`."""
        if self._pieces is None:
            limit = NO_LIMIT if self.job.memory is None else self.job.memory
            planning = build(self.graph, self.machine, self.job.where, limit, self.in_time)
            allowed = {} if self.strategy is None else resolve(self.strategy, planning).allowed
            self._pieces = GivenPieces(planning, self.job.division, allowed)
        return self._pieces


@dataclass(frozen=True, eq=False)
class Configured:
    """A configuration: `flags`, first units of its stages, the best completion that was found (None: none fits), and
    `bound`, picoseconds that no completion is below, by `leaves` of `case`.
    """

    flags: Flags
    case: Case
    starts: tuple[int, ...]
    best: Scheduled | None
    bound: int

    @property
    def proofs(self) -> list[tuple[Leaf, SelectionProblem]]:
        """Leaves with the problems that they are about."""
        made = {id(leaf): leaf for leaf in self.case.leaves.values()}
        pieces = self.case.pieces
        return [(x, pieces.leaf(x.first, x.end, x.times, int(x.once)).problem) for x in made.values()]


def micro_batches(flags: Flags, devices: int, batch: int, said: int | None) -> int:
    """How many micro-batches a step has.  `said`: by the user; `devices`: of the whole machine.

    >>> micro_batches(Flags("Megatron", tp=2, pp=4, micro_batch=1, global_batch=64), 32, 64, None)
    16
    """
    if flags.global_batch and flags.global_batch != batch:
        raise InputError(f"{flags.source}: a global batch of {flags.global_batch}, the model has {batch}; give --batch")
    copies = flags.copies(devices)
    if flags.passing and flags.passing * copies != batch:
        whole = flags.passing * copies
        raise InputError(
            f"{flags.source}: {copies} copies of {flags.passing} samples go through the stages at once, the model has "
            f"{batch}: steps of several such rounds are no plans of ours; give --batch {whole}"
            if flags.pp > 1 or flags.global_batch
            else f"{flags.source}: {copies} copies of {flags.passing} samples are a step of {whole}, the model has "
            f"{batch}; give --batch {whole}, or say the global batch in the settings"
        )
    steps = said if said is not None else flags.steps or None
    if flags.steps and steps != flags.steps:
        raise InputError(
            f"{flags.source}: {flags.steps} micro-batches (gradient accumulation), and --pipeline says {said}; leave "
            "--pipeline out, or change the settings"
        )
    if steps is not None:
        if flags.micro_batch and flags.micro_batch * copies * steps != batch:
            change = "change the settings" if said is None else "leave --pipeline out, or change the settings"
            raise InputError(
                f"{flags.source}: {copies} copies of micro-batches of {flags.micro_batch} in a batch of {batch} are "
                f"not {steps} micro-batches; {change}"
            )
        return steps
    if not flags.micro_batch:
        raise InputError(f"{flags.source}: no micro-batch size; say how many there are: --pipeline {flags.pp}:M")
    share = copies * flags.micro_batch
    if batch % share:
        raise InputError(
            f"{flags.source}: {copies} copies of micro-batches of {flags.micro_batch} do not divide a batch of {batch}"
        )
    return batch // share


def layer_starts(job: Job, stages: int) -> tuple[int, ...]:
    """First units of stages of equally many layers.  Raises `InputError` where layers cannot be cut so."""
    layer: dict[int, int] = {}
    named = roles(job.graph).repeated
    for op, unit, phase in zip(job.graph.operators, job.division.unit, job.division.phase, strict=True):
        if unit >= 0 and phase == "F" and named is not None and (found := named.match(op.name)):
            layer.setdefault(unit, int(found[1]))
    count = len(set(layer.values()))
    if not count or count % stages:
        raise InputError(f"{job.graph.name}: {count} layers are no {stages} equal stages; choose other stages")
    each = count // stages
    first: dict[int, int] = {}
    for unit in sorted(layer):
        first.setdefault(layer[unit], unit)
    found_units = tuple(0 if s == 0 else first[s * each] for s in range(stages))
    if sorted(set(found_units)) != list(found_units) or len(first) < count:
        raise InputError(f"{job.graph.name}: nothing can be cut between its layers; choose other stages")
    return found_units


def complete_configuration(job: Job, flags: Flags, micro: int, clock: Clock) -> Configured:
    """The configuration's best completion within the time, and its bound.  Raises `InputError` for degrees that do not
    fit the machine, the model or the space, `TooSlow` where its tables do not fit into the time.
    """
    cases(job, [(flags.pp, micro)])  # says what is wrong with the pair
    starts = layer_starts(job, flags.pp)
    case = GivenCase(job, flags.pp, micro, guard=clock)
    case.strategy = strategy_of_flags(replace(flags, pp=1), case.graph, case.machine, flags.source)
    try:
        assert case.pieces is not None  # built here: what the space does not have is said by name
    except SpaceError as error:
        raise InputError(f"{flags.source}: {error}") from None
    best: Scheduled | None = None
    for order in orders(case):
        stages = case.plan(starts, clock.share(PLAN_SHARE), order)
        made = None if stages is None else one_f_one_b(case, stages, clock)
        if made is not None and (best is None or made.step < best.step):
            best = made
    return Configured(flags, case, starts, best, _bound(case, starts, clock))


def one_f_one_b(case: Case, stages: list[StagePlan], clock: Clock) -> Scheduled | None:
    """The stages under 1F1B; None if they do not fit the memory."""
    most = min(case.stages, case.micro)
    placed: list[StagePlan] | None = stages
    for _ in range(2):  # other placements, other times, and perhaps more that waits
        assert placed is not None
        quantum, pipe = pipeline_of(case, placed, most)
        starts = starts_of(pipe, actions("1f1b", pipe))
        kept, queued = tuple(peaks(pipe.problem(), starts)), waiting(case, placed, pipe, starts)
        fits = case.fit_memory(placed, kept, queued, clock)
        if fits is None:
            return None
        if all(a is b for a, b in zip(fits, placed, strict=True)):
            found = search(shop(pipe), Clock(0.0), first=starts)
            makespan = int((starts + shop(pipe).times).max())
            certificate = ScheduleCertificate(pipe, starts, makespan, found.lower_bound, found.bound, "best")
            step = step_of(case, placed, quantum, certificate)
            return Scheduled(case, placed, quantum, certificate, kept, queued, step)
        placed = fits
    return None


def _bound(case: Case, starts: tuple[int, ...], clock: Clock) -> int:
    """See the module docstring; leaves are whole stages."""
    micro, ends = case.micro, (*starts[1:], case.job.division.units)
    for i, j in zip(starts, ends, strict=True):
        case.prove_run(i, j, clock)
    known, sends = case.bounds(), case.sends()
    rows = list(zip(starts, ends, strict=True))
    values = [known.step[i][j] for i, j in rows]
    before = known.updated[rows[0][0]][rows[0][1]]
    for s in range(1, len(rows)):
        i, j = rows[s]
        before += sends[i]
        values.append(before + micro * known.one[i][j])
        before += known.one[i][j]
    return max(values)
