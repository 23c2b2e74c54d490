"""Several freedoms at once: every search that knows some of them is asked, and the plan of the least step is taken.

    as it is        the plan of placements, where recomputation or micro-batches are left open and it settles them, or
                    where all that applies is searched (`freedoms.everything`): one sees what each part gains
    as it is given  where that plan computes blocks again, or cuts the batch: overlap, submeshes and rewrites of the
                    step without, too, which streams and rules may make the cheaper of the two
    stages          pipelined steps, with reshardings beside operators inside a phase where that is asked
    overlap         reshardings beside operators of the job's program
    submeshes       its branches on parts of the machine
    rewrites        programs that rules derive, or that compute tensors again; the one that is chosen is cut into
                    stages, overlapped, put on submeshes

The claim (`proofs.portfolio.file`) is over the union of what these searches are about.  A freedom that a search does
not know is named with it (`LeftOut`), and so is one that has nothing to work on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Final

from ....models.cost.limits import TooLarge
from ....models.cost.selection import Notify
from ....models.pipelines.work import PER_SECOND
from ....models.problem.claims import Infeasible
from ....models.program.graph import Graph
from ....models.sources.training import TrainingStep
from ....models.text import Inapplicable, InputError, NoAnswer, seconds_text
from ....proofs.overlap.file import write_overlap
from ....proofs.pipelines.file import write_pipeline
from ....proofs.plan.bundle import write_plan
from ....proofs.portfolio.file import write_portfolio
from ....proofs.views.file import write_submesh_plan
from ...explain.error_bounds import with_error_bounds
from ...rewriting.joint.checkpoints import NOTHING, has_choices
from ...rewriting.joint.request import carry_out_jointly
from ...selection.model.clock import Overdue, Progress, Quiet
from ..overlap.request import carry_out_overlapped
from ..overlap.search import NothingFits
from ..pipelines.request import AUTO, PipelineRequest, carry_out_pipelined, require_cut
from ..plan import Planned
from ..recompute import least_bytes
from ..request import TENSORS, PlanRequest, carry_out, program_of
from ..submeshes.request import carry_out_on_submeshes
from ..time_limit import TimeLimit
from .freedoms import Freedoms, LeftOut
from .passes import derived_step


@dataclass(frozen=True, eq=False)
class Candidate:
    """`data`: a plan as a file of its own, which claims `cost` in units of 1/`scale` s; `alone`: placements only;
    `check_s`: seconds of the wall that its check may take; `part`: what its search is called.
    """

    data: bytes
    cost: int
    scale: int
    alone: bool = False
    check_s: float = 0.0
    part: str = ""

    @property
    def step(self) -> Fraction:
        """Seconds."""
        return Fraction(self.cost, self.scale)


@dataclass(frozen=True, eq=False)
class Best:
    """`graph`: the program of the job; plans in the order in which they were searched; what was left out."""

    graph: Graph
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def best_candidate(self) -> Candidate | None:
        """The plan of the least step, of plans that take as long the first; None without any."""
        return min(self.candidates, key=lambda c: c.step, default=None)

    def data(self) -> bytes | None:
        """The file of all plans, or of the only one; None without any."""
        if self.best_candidate is None or len(self.candidates) == 1:
            return None if self.best_candidate is None else self.best_candidate.data
        return write_portfolio(None, [c.data for c in self.candidates], self.candidates.index(self.best_candidate))


UNCHECKED: Final = "the limit leaves no time for the check of its plan, which takes {step}: the claim is without it"
"""Of a part that has a plan, which is not the one that is taken."""

MOST_PART: Final = 0.8
"""Of what is left of a limit, for stages where nothing fits on the whole machine."""

LEAST_PART: Final = 0.15
"""Of a limit of time, what a search is begun with at least where there is a plan already: tables alone take seconds."""

WHOLE_BLOCKS: Final = "stages compute whole blocks again, as many as pay; the program that was chosen alone is cut too"
AS_GIVEN: Final = "{part} of the step as it is given"
"""A search of the step without the recomputation and micro-batches that the plan of placements settled."""

NOT_IN_STAGES: Final = "a stage has the whole of its part of the machine"


@dataclass(eq=False)
class Searches:
    """One search after the other, each within its part of what is left of the limit."""

    request: PlanRequest
    freedoms: Freedoms
    limit: TimeLimit
    progress: Progress = field(default_factory=Quiet)
    notify: Notify | None = None
    tell: Callable[[str], None] = lambda words: None

    def __post_init__(self) -> None:
        self.found: list[Candidate] = []
        self.left_out = [*self.freedoms.left_out]
        self.planned: set[bytes] = set()
        self.part, self.within = "placements alone", self.limit
        self.begun = self.joined = self.tight = self.nothing_fits = False
        self.too_large: TooLarge | None = None
        self.alone: Planned | None = None
        self.whole = False
        """Whether plans on the whole machine are in the claim: overlapped ones, where these are asked for."""
        self.step: TrainingStep | None = None
        self.given: tuple[PlanRequest, TrainingStep | None] | None = None
        """The job as it is given, where the plan of placements settled it to be another program."""
        self.derived: list[tuple[PlanRequest, TrainingStep | None]] = []
        f = self.freedoms
        self.coming = (self._open or f.placements) + f.programs + (2 if f.programs else 1) * self._of_one

    @property
    def _of_one(self) -> int:
        """Searches of one program."""
        return self.freedoms.overlap + self.freedoms.submeshes + (self.freedoms.stages is not None)

    @property
    def _open(self) -> bool:
        """Whether recomputation or the number of micro-batches is left open."""
        return AUTO in (self.request.recompute, self.request.micro_batch)

    def search_all(self) -> Best:
        """All of them: what is soon left out first, then what gains most on large jobs for the least search; programs
        that rules make come last, and what the others leave is theirs.
        """
        freedoms = self.freedoms
        if freedoms.stages is not None and freedoms.stages.stages != AUTO:
            require_cut(freedoms.stages)  # what was asked so cannot be left out
        job = self._settled()
        if freedoms.placements and not self._open:
            self._attempt("placements alone", partial(self._alone, job))
        if self.alone is not None:  # tables that did not fit into the limit do not fit into a part of it
            self.request = replace(self.request, space=self.alone.planning.space.without_vocabulary)
            job = replace(job, space=self.request.space)
        if self.nothing_fits:
            self._try_stages()
        self._on_whole_machine(job, "{part}")
        if self.given is not None:
            self._on_whole_machine(self.given[0], AS_GIVEN)
        if not self.nothing_fits:
            self._try_stages()
        if freedoms.programs:
            part = "rewrites" if freedoms.rewrites else "tensors computed again"
            self._attempt(part, partial(self._jointly, job, self.step))
            if self.given is not None and not freedoms.tensors:
                self._attempt(AS_GIVEN.format(part=part), partial(self._jointly, *self.given))
            self.coming += (len(self.derived) - 1) * self._of_one
        for program, step in self.derived:
            self._attempt_derived(program, step)
        if freedoms.stages is not None and freedoms.submeshes:
            self.left_out.append(LeftOut("submeshes inside stages", NOT_IN_STAGES))
        if freedoms.stages is not None and freedoms.tensors:
            self.left_out.append(LeftOut("single tensors computed again inside stages", WHOLE_BLOCKS))
        if freedoms.submeshes and freedoms.overlap:
            self.left_out.append(LeftOut("overlap on submeshes", "branches run beside each other, not their messages"))
        if not self.found and not self._open and not freedoms.placements:
            self.coming += 1
            self._attempt("placements alone", partial(self._alone, job))
        if not self.found and self.too_large is not None and freedoms.stages is None:
            raise self.too_large
        self.limit.settle()
        return Best(job.graph, self._checkable(), tuple(self.left_out))

    def _on_whole_machine(self, job: PlanRequest, words: str) -> None:
        """The searches of one program that are not about stages."""
        if self.freedoms.submeshes:
            self._attempt(words.format(part="submeshes"), partial(self._on_submeshes, job))
        if self.freedoms.overlap:
            self._attempt(words.format(part="overlap"), partial(self._overlapped, job))

    def _try_stages(self) -> None:
        """Stages, where they are asked for: first where nothing fits on the whole machine, since streams and submeshes
        have no more room there.
        """
        stages = self.freedoms.stages
        if stages is None:
            return
        asked = replace(stages, tight=self.tight)
        self._attempt("stages", partial(self._pipelined, asked), must=stages.stages != AUTO)

    def _attempt_derived(self, program: PlanRequest, step: TrainingStep | None) -> None:
        """The same of the program that was chosen among equal ones, of those of `step`."""
        stages = self.freedoms.stages
        self._on_whole_machine(program, "{part}")
        if stages is not None and step is not None:
            asked = self._in_stages(stages, step, program.graph)
            self._attempt("stages of the rewritten program", partial(self._pipelined, asked))

    def _checkable(self) -> tuple[Candidate, ...]:
        """What is found, but for plans whose check no longer fits beside that of the plan that is taken: a plan that
        nobody has checked is worth less than a claim that is about fewer.  All of it where nothing limits the check.
        """
        taken = min(self.found, key=lambda c: c.step, default=None)
        if taken is None:
            return ()
        left, kept = self.limit.left_for_check_s - taken.check_s, [taken]
        for candidate in self.found:
            if candidate is not taken and candidate.check_s <= left:
                kept.append(candidate)
                left -= candidate.check_s
        for candidate in self.found:
            if candidate not in kept:
                step = seconds_text(candidate.cost, candidate.scale)
                self.left_out.append(LeftOut(candidate.part, UNCHECKED.format(step=step)))
        self.limit.check_s = sum(c.check_s for c in kept)
        return tuple(c for c in self.found if c in kept)

    def _settled(self) -> PlanRequest:
        """The job as a program of its own: what was left open is settled by the plan of placements."""
        request = self.request
        if not self._open:
            graph, self.step = program_of(request)
        else:
            try:
                outcome = carry_out(request, self._part(), self.progress, self.notify)
            except TooLarge as error:  # stages have parts of the machine, which may be small enough
                if self.freedoms.stages is None:
                    raise
                self.left_out.append(LeftOut("placements alone", str(error)))
                graph, self.step = program_of(replace(request, recompute="none", micro_batch="1"))
            else:
                graph, self.step = outcome.graph, outcome.step
                self.tight = any(a.blocks == 0 and a.tried.cost is None for a in outcome.attempts)
                if why := self._keep_placements(outcome.planned):
                    self.left_out.append(LeftOut("placements alone", why))
                self._keep_given(graph)
        return self._program(graph)

    def _keep_given(self, settled: Graph) -> None:
        """Search the step as it is given, too, where what was settled is another one and there may be room for it."""
        freedoms = self.freedoms
        searches = freedoms.submeshes + freedoms.overlap + (freedoms.rewrites and not freedoms.tensors)
        if not searches or (self.step is not None and not self.step.recomputed and self.request.micro_batch != AUTO):
            return
        recompute = "none" if self.request.recompute == AUTO else self.request.recompute
        micro = "1" if self.request.micro_batch == AUTO else self.request.micro_batch
        graph, step = program_of(replace(self.request, recompute=recompute, micro_batch=micro))
        memory = self.request.memory
        if memory is not None and least_bytes(graph) > memory * self.request.machine.devices:
            return
        if graph.sha256() != settled.sha256():
            self.given = self._program(graph), step
            self.coming += searches

    def _program(self, graph: Graph) -> PlanRequest:
        """The same request about a program as it is."""
        return replace(
            self.request, graph=graph, train=None, loss=None, recompute="none", precision=None, micro_batch="1"
        )

    def _jointly(self, job: PlanRequest, step: TrainingStep | None) -> str:
        """Plan together with rewrites, and with what is computed again where every tensor is left open: then of the
        step in which nothing is.  Keep the program that this gave, if it is another one.
        """
        self.joined = True
        part = self._part()
        if self.freedoms.tensors:
            graph, step = program_of(replace(self.request, recompute="none"))
            job = replace(self._program(graph), recompute=TENSORS)
        made = carry_out_jointly(job, part, self.progress, self.notify, step)
        if made.plan is None or made.found.answer.cost is None:
            return "no plan was found in its part of the limit"
        self._keep(write_plan(None, made.plan), made.found.answer.cost, made.found.planning.problem.scale)
        if self.freedoms.tensors and not has_choices(made.found.derivation):
            self.left_out.append(LeftOut("tensors computed again", NOTHING))
        if made.plan.graph.sha256() != job.graph.sha256():
            self.derived.append((self._program(made.plan.graph), step))
        return ""

    def _overlapped(self, job: PlanRequest) -> str:
        alone = (
            self.alone if self.alone is not None and self.alone.planning.graph.sha256() == job.graph.sha256() else None
        )
        planning, found = carry_out_overlapped(job, self._part(), self.notify, self.tell, alone)
        if found is None or isinstance(found, NothingFits):
            return "nothing was found that fits in any order" if found else "no plan was found in its part of the limit"
        self.whole = True
        self._keep(write_overlap(None, found.certificate()), found.best.makespan, planning.problem.scale)
        return ""

    def _on_submeshes(self, job: PlanRequest) -> str:
        made = carry_out_on_submeshes(job, self._part(), self.progress, self.notify)
        if made.certificate is None:
            return "no plan was found in its part of the limit"
        self._keep(
            write_submesh_plan(None, made.certificate), made.found.answer.cost, made.found.planning.problem.scale
        )
        return ""

    def _in_stages(self, asked: PipelineRequest, step: TrainingStep, graph: Graph) -> PipelineRequest:
        """The same stages of the program that rules made of the step; nothing of it is recomputed once more."""
        derived = derived_step(step, graph)
        return replace(asked, make=lambda which: derived, recompute="none", blocks=())

    def _pipelined(self, asked: PipelineRequest) -> str:
        insist = not self.found or asked.stages != AUTO
        known = min((c.step for c in self.found), default=None)
        asked = replace(asked, known=known, whole=self.whole)
        found, _ = carry_out_pipelined(asked, self._part(), self.tell, insist)
        if found.best is None:
            return "no pipeline was found that fits"
        self._keep(write_pipeline(None, found.certificate()), found.best.step, PER_SECOND)
        return ""

    def _alone(self, job: PlanRequest) -> str:
        outcome = carry_out(job, self._part(), self.progress, self.notify)
        return self._keep_placements(outcome.planned)

    def _attempt(self, part: str, search: Callable[[], str], must: bool = False) -> None:
        """Search; what has nothing to work on is left out, and so is what comes when the limit has passed and there is
        a plan.  `must`: what was asked so cannot be left out.
        """
        self.part, begun = part, self.begun
        self.begun = True
        if (self.found and self._too_late()) or (begun and self.limit.clock.remaining_s() <= 0):
            self.left_out.append(LeftOut(part, "too little of the limit was left when it was its turn"))
            return
        try:
            why = search()
        except Overdue:
            why = "nothing was found in its part of the limit"
        except MemoryError:
            if must or not self.found:
                raise
            why = "memory ended in it"
        except (InputError, NoAnswer, TooLarge) as error:
            if must:
                raise
            why = error.fact if isinstance(error, Inapplicable) else str(error)
            if isinstance(error, TooLarge):
                self.too_large = error
        if why:
            self.left_out.append(LeftOut(part, why))

    def _too_late(self) -> bool:
        """Whether what is left is too little for another search, which also has to end as a whole."""
        clock, limit = self.limit.clock, self.limit.limit_s
        if clock.counts or limit is None:
            return clock.over()
        return clock.remaining_s() < LEAST_PART * limit

    def _keep_placements(self, planned: Planned) -> str:
        """Keep the plan; why there is none otherwise."""
        self.alone = planned
        if planned.plan is not None:
            self.whole = not self.freedoms.overlap
            scale = planned.planning.problem.scale
            self._keep(write_plan(None, with_error_bounds(planned)), planned.answer.cost, scale, alone=True)
            return ""
        certificate = planned.answer.certificate
        if certificate is not None and isinstance(certificate.claim, Infeasible):
            self.nothing_fits = self.freedoms.stages is not None
            return "no placements fit the limit; 'shardproof plan' with no other freedom prints the proof"
        return "no placements were found that fit"

    def _keep(self, data: bytes, cost: int | None, scale: int, alone: bool = False) -> None:
        if cost is not None and data not in self.planned:
            self.planned.add(data)
            self.found.append(Candidate(data, cost, scale, alone, self.within.check_s, self.part))
            self.limit.known_s = min(self.found, key=lambda c: c.step).check_s

    def _part(self) -> TimeLimit:
        """An equal part of what is left, for the next of the searches that are still to come."""
        left, coming = self.limit.clock.remaining_s(), self.coming
        if not self.joined:  # programs that nobody has derived yet may never come
            coming -= self._of_one * self.freedoms.programs
        least = MOST_PART if self.nothing_fits and self.part == "stages" else 0.0
        share = max(1 / max(1, coming), least)
        part = None if left == float("inf") else left * share
        self.coming -= 1
        self.within = self.limit.part(part)
        return self.within
