"""Carries out requests for pipelined training steps: what the command line and the Python way in ask
alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from ....models.layout.placement import Space
from ....models.machine.machine import Machine
from ....models.pipelines.division import check_sums, divide
from ....models.pipelines.micro import batch_of, micro_batch
from ....models.pipelines.views import equal_submesh
from ....models.pipelines.work import PER_SECOND
from ....models.sources.training import TrainingStep
from ....models.sources.training.recompute import blocks
from ....models.text import Inapplicable, InputError
from ....proofs.pipelines.words import FORBIDDEN_WORDS
from ...selection.model.clock import Clock
from ..plan import default_space
from ..request import TENSORS, PlanRequest, asked_space, program_of
from ..time_limit import SAFE, TimeLimit
from .bounded import NO_STEP
from .case import cases
from .job import Job
from .outcome import SearchOutcome, Triple
from .recompute import SHARE, TIGHT_SHARE, CandidateOutcome, Turns, plan_with_checkpointing
from .search import Wanted, search_pairs
from .shelf import Shelf

AUTO: Final = "auto"
MOST_CHUNKS: Final = 16
MOST_STAGES: Final = 16
MOST_MICRO_BATCHES: Final = 256
"""What `auto` enumerates: equal views, and powers of two that divide the batch, up to these."""

CHECK_SHARE: Final = 0.25
"""Of a limit of work, left out: the check of what is found comes on top.  Of a limit of time what the check takes is
held back, as far as it is known."""

IN_TURN_SHARE: Final = 0.5
"""Of the time, for plans in which reshardings and operators take turns, if there is one by then: a case costs a tenth
of what it costs with both beside each other, so many cases are looked at.
"""

IN_TURN_GAP: Final = Fraction(1, 20)
"""How near such a plan has to be to the best of its kind: it is a beginning."""


def pairs_of(
    text: str, step: TrainingStep, machine: Machine, units: int, memory: int | None = None
) -> list[tuple[int, int]]:
    """(stages, micro-batches) that are enumerated: without pipelines, then all of `auto`; or the one pair P:M.  None
    for the triple P:M:V.  Several micro-batches on one stage keep less and take longer: only where `memory` is limited.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text)
    if match is not None:
        return [(int(match[1]), int(match[2]))]
    if triple_of(text) is not None:
        return []
    if text != AUTO:
        raise InputError(
            f"--pipeline {text[:40]!r}: write auto, STAGES:MICRO-BATCHES such as 4:16, or with several chunks a stage "
            "STAGES:MICRO-BATCHES:CHUNKS such as 4:16:2"
        )
    batch = batch_of(step.graph)
    micro = [m for m in (1 << k for k in range(MOST_MICRO_BATCHES.bit_length())) if batch % m == 0]
    stages = [p for p in range(2, MOST_STAGES + 1) if p <= units and equal_submesh(machine, p) is not None]
    several = memory is not None and (bool(stages) or _has_micro_batches(step))  # stages refuse the step by name
    return [*((1, m) for m in (micro if several else micro[:1])), *((p, m) for p in stages for m in micro)]


def _has_micro_batches(step: TrainingStep) -> bool:
    """Whether the step is the same in micro-batches: no operator looks at the whole batch."""
    try:
        check_sums(step.graph, divide(step.graph, step.passes))
        micro_batch(step.graph, 2)
    except InputError:
        return False
    return True


def triple_of(text: str) -> Triple | None:
    """The triple P:M:V, if that is what a text says.  Raises `InputError` for one chunk.

    >>> triple_of("4:16:2"), triple_of("4:16")
    ((4, 16, 2), None)
    """
    match = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3}):([1-9][0-9]?)", text)
    if match is None:
        return None
    stages, micro, chunks = (int(x) for x in match.groups())
    if not 2 <= chunks <= MOST_CHUNKS:
        raise InputError(f"--pipeline {text}: a stage has 2 to {MOST_CHUNKS} chunks; for one write {stages}:{micro}")
    return stages, micro, chunks


def triples_of(request: PipelineRequest, pairs: Sequence[tuple[int, int]], units: int) -> list[Triple]:
    """(stages, micro-batches, chunks a stage) that are enumerated: P:M:V; or of every pair of several stages 2 chunks
    and so on up to `interleave`, in equal rounds of as many micro-batches as there are stages.
    """
    said = triple_of(request.stages)
    if said is not None:
        return [said]
    chunks = range(2, request.interleave + 1)
    return [(p, m, v) for v in chunks for p, m in pairs if p > 1 and m % p == 0 and p * v <= units]


@dataclass(frozen=True)
class PipelineRequest:
    """What is asked.  `make`: the step with these blocks recomputed (a `recompute` text, as `build_step` takes it);
    `recompute`: such a text, or "auto" for the best number of `blocks` from the first stage on; `stages`: auto, P:M or
    P:M:V; `without`: placements that are forbidden, in order of `FORBIDDEN_WORDS`; `interleave`: chunks that a stage
    may have; `overlap`: reshardings run beside operators inside a phase; `tight`: the whole machine has no room for the
    step without recomputation; `known`: seconds of a step that another search has found; `whole`: steps on the
    whole machine are what other searches are about, so that one stage is not asked for but in several micro-batches.
    """

    make: Callable[[str], TrainingStep | None]
    machine: Machine
    stages: str = AUTO
    recompute: str = "none"
    blocks: tuple[str, ...] = ()
    space: Space | None = None
    memory: int | None = None
    gap: Fraction = Fraction(0)
    without: tuple[str, ...] = ()
    interleave: int = 1
    overlap: bool = False
    tight: bool = False
    known: Fraction | None = None
    whole: bool = False


def require_words(without: Collection[str], known: Collection[str]) -> None:
    """Nothing if all that is to be left out is `known`; else an `InputError` that names the first word that is not."""
    if (odd := next((word for word in without if word not in known), None)) is not None:
        raise InputError(f"without {odd[:40]!r}: write {', '.join(known)}")


def pipeline_request(
    request: PlanRequest, stages: str, without: tuple[str, ...] = (), interleave: int = 1, overlap: bool = False
) -> PipelineRequest:
    """The same job in stages, which compute whole blocks again: as many as pay where every tensor is left open.
    Raises `InputError` for a word of `without` that is none of `FORBIDDEN_WORDS`.
    """
    require_words(without, FORBIDDEN_WORDS)
    again = AUTO if request.recompute == TENSORS else request.recompute

    def make(which: str) -> TrainingStep | None:
        return program_of(replace(request, recompute=which))[1]

    names = tuple(blocks(request.graph)) if again == AUTO else ()
    return PipelineRequest(
        make,
        request.machine,
        stages,
        again,
        names,
        asked_space(request, request.graph),
        request.memory,
        request.gap,
        tuple(word for word in FORBIDDEN_WORDS if word in without),
        interleave,
        overlap,
    )


def uncut(step: TrainingStep) -> Inapplicable:
    """Why a step has no cuts, and what to change."""
    return Inapplicable(
        f"{step.graph.name} cannot be cut into stages: nowhere does one tensor alone go on and one "
        "gradient come back (two tensors between layers, running statistics, or a weight whose readers share one "
        "gradient operator join them)",
        "plan it without --pipeline",
    )


def require_cut(request: PipelineRequest) -> tuple[TrainingStep, list[tuple[int, int]]]:
    """The step, and the pairs (stages, micro-batches) that are enumerated.  Raises `InputError` where there is no step,
    or none that can be cut.
    """
    step = request.make("none" if request.recompute == AUTO else request.recompute)
    if step is None:
        raise InputError("--pipeline cuts training steps: give --train sgd or --train adam too")
    division = divide(step.graph, step.passes)
    pairs = pairs_of(request.stages, step, request.machine, division.units, request.memory)
    if division.units == 1:
        raise uncut(step)
    return step, pairs


def is_crowded(request: PipelineRequest, step: TrainingStep, pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether there is no room without recomputation, neither on the whole machine (`tight`) nor for the activations of
    any number of stages and micro-batches.
    """
    if not request.tight:
        return False
    cut = divide(step.graph, step.passes)
    where = request.space or default_space(request.machine)
    job = Job(step.graph, cut, request.machine, where, request.memory, request.without, request.overlap)
    several = [(p, m) for p, m in pairs if p <= cut.units and (p, m) != (1, 1)]
    # most stages and micro-batches first: the less a stage does at once, the likelier it has room
    return not any(case.roomy() for pair in reversed(several) for case in cases(job, [pair]))


def carry_out_pipelined(
    request: PipelineRequest, limit: TimeLimit, tell: Callable[[str], None] | None = None, insist: bool = True
) -> tuple[SearchOutcome, tuple[CandidateOutcome, ...]]:
    """The best pipelined step that was found, and the numbers of recomputed blocks that were tried where that was left
    open.  Where reshardings run beside operators, first the best in which they take turns, which is where the other
    search begins.  `insist`: a plan that comes late is better than none.  Raises `InputError` where there is no step,
    or none that can be cut.
    """
    step, pairs = require_cut(request)
    searches = _Searches(request, step, pairs, tell or (lambda words: None), insist)

    def hold(seconds: float) -> None:
        limit.hold_back(SAFE * limit.slowness() * seconds)

    within = limit.clock.share(1 - CHECK_SHARE if limit.clock.counts else 1)
    with limit.phase("search"):
        if not request.overlap:
            return searches.search(within, hold)
        in_turn = replace(request, overlap=False, gap=max(request.gap, IN_TURN_GAP))
        first = replace(searches, request=in_turn, enough=IN_TURN_SHARE)
        found, tried = first.search(within, lambda seconds: None)
        blocks = min(((t.step, t.blocks) for t in tried if t.step is not None), default=(0, None))[1]
        return searches.search(within, hold, found, blocks)


@dataclass(frozen=True, eq=False)
class _Searches:
    """What is searched for a request: one step, or those with several numbers of recomputed blocks.  `enough`: of the
    time, after which a plan is enough.  `shelf`: tables, which plans with and without overlap share.
    """

    request: PipelineRequest
    step: TrainingStep
    pairs: Sequence[tuple[int, int]]
    tell: Callable[[str], None]
    insist: bool
    enough: float = 1.0
    shelf: Shelf = field(default_factory=Shelf)

    def search(
        self,
        within: Clock,
        hold: Callable[[float], None],
        brought: SearchOutcome | None = None,
        blocks: int | None = None,
    ) -> tuple[SearchOutcome, tuple[CandidateOutcome, ...]]:
        """See `carry_out_pipelined`.  `brought`: plans that are known, with `blocks` recomputed where that is open;
        `hold`: hears how many processor seconds the check takes.
        """
        request, steps = self.request, list[int]()  # of other numbers of recomputed blocks
        elsewhere = NO_STEP if request.known is None else ceil(request.known * PER_SECOND)

        def plan(which: str, clock: Clock) -> SearchOutcome:
            job = self._job(which)
            wanted = Wanted(min([elsewhere, *steps]), not steps, self.insist, enough=self.enough)
            if brought is not None and brought.job.graph.sha256() == job.graph.sha256():
                wanted = replace(wanted, brought=brought.best, failed=brought.failed)
            fits = self._fitting(job.division.units)
            more = triples_of(request, fits, job.division.units)
            found = search_pairs(job, fits, clock, request.gap, self.tell, more, hold, wanted)
            steps.extend([] if found.best is None else [found.best.step])
            return found

        if request.recompute != AUTO:
            return plan(request.recompute, within), ()
        tight = is_crowded(request, self.step, self.pairs)
        share = TIGHT_SHARE if request.tight and not tight else SHARE
        turns = Turns(tight, share, blocks, self.enough)
        return plan_with_checkpointing(request.blocks, plan, within, request.gap, elsewhere, turns)

    def _job(self, which: str) -> Job:
        """The step with these blocks recomputed, divided."""
        request = self.request
        made = request.make(which) or self.step
        cut = divide(made.graph, made.passes)
        where = request.space or default_space(request.machine)
        without, overlap = request.without, request.overlap
        return Job(made.graph, cut, request.machine, where, request.memory, without, overlap, self.shelf)

    def _fitting(self, units: int) -> list[tuple[int, int]]:
        """Pairs for which there are enough units: what has too few is refused later, if none has."""
        fits = [(p, m) for p, m in self.pairs if p <= units] or [*self.pairs]
        if self.request.stages == AUTO and self.request.whole:
            fits = [(p, m) for p, m in fits if (p, m) != (1, 1)] or fits
        return fits
