"""What is left to the searches of a plan, and all that applies to a job.

    stages        of a training step, on several devices
    overlap       on several devices
    submeshes     on several devices, the batch whole, in no vocabulary (none says parts of a machine)
    rewrites      in no vocabulary (whole spaces are searched)
    recompute     of a training step under a memory limit, where nothing else is said: whole blocks, and, the batch
                  whole and in no vocabulary, tensor by tensor together with rewrites

What does not apply is left out with the reason, and so is what the user does without.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ..options import PlanOptions
from ..pipelines.request import AUTO, PipelineRequest, pipeline_request, require_words
from ..request import TENSORS, PlanRequest
from .words import FREEDOM_WORDS


@dataclass(frozen=True)
class LeftOut:
    """A part that no plan has, and why."""

    part: str
    why: str


@dataclass(frozen=True)
class Freedoms:
    """What is left to the searches.  `tensors`: whether it is decided tensor by tensor what is computed again;
    `stages`: what is asked of pipelined steps, or None.  `placements`: whether the plan without any freedom is searched
    too; `left_out`: what was not asked, and why.
    """

    overlap: bool = False
    submeshes: bool = False
    rewrites: bool = False
    tensors: bool = False
    stages: PipelineRequest | None = None
    placements: bool = False
    left_out: tuple[LeftOut, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return self.overlap + self.submeshes + self.programs + (self.stages is not None)

    @property
    def programs(self) -> bool:
        """Whether equal programs are searched: those of rules, or those that compute tensors again."""
        return self.rewrites or self.tensors

    def several(self, request: PlanRequest) -> bool:
        """Whether no one search knows all that is asked.  What stages do without, no other search does without: then
        stages alone are searched.
        """
        if self.placements:
            return True
        if self.stages is not None and self.stages.without:
            return False
        alone = self.overlap or self.submeshes or self.programs
        beside = AUTO in (request.recompute, request.micro_batch) or (self.submeshes and request.memory is not None)
        return self.count > 1 or (alone and beside)


def everything(
    request: PlanRequest, without: Collection[str] = (), stages: str | None = None, interleave: int = 1
) -> tuple[PlanRequest, Freedoms]:
    """The job with all left open that applies to it.  `without`: of `FREEDOM_WORDS`; `stages` and `interleave`: as
    `pipeline_request` takes them; what is said cannot be left out.  Raises
    `InputError` for another word.
    """
    require_words(without, FREEDOM_WORDS)
    left = {word: "--without" for word in without}

    def applies(word: str, *obstacles: str | None) -> bool:
        why = next((why for why in obstacles if why is not None), None)
        if why is not None:
            left.setdefault(word, why)
        return word not in left

    one = "there is one device" if request.machine.devices == 1 else None
    forward = "it is of training steps" if request.train is None else None
    word = request.vocabulary or (request.space.vocabulary if request.space is not None else None)
    spoken = f"no placement of {word} says it" if word else None
    parts = None if request.micro_batch == "1" else "the batch is cut into micro-batches"
    free = "it weighs time against memory, and there is no limit" if request.memory is None else None
    said = None if request.recompute in ("none", AUTO, TENSORS) else f"--recompute {request.recompute} settles it"
    tensors = applies(
        "recompute", forward, said, free, "micro-batches are left open" if request.micro_batch == AUTO else None
    )
    if tensors:
        request = replace(request, recompute=AUTO)
    overlap = applies("overlap", one)
    asked = None
    if stages is not None or applies("stages", forward, one, parts):
        asked = pipeline_request(request, stages or AUTO, (), interleave, overlap)
    views, rules = applies("submeshes", one, parts, spoken), applies("rewrites", spoken)
    told = tuple(LeftOut(word, left[word]) for word in FREEDOM_WORDS if word in left)
    tensors = tensors and parts is None and spoken is None
    return request, Freedoms(overlap, views, rules, tensors, asked, placements=True, left_out=told)


def stages_of(options: PlanOptions, request: PlanRequest) -> PipelineRequest | None:
    """What a user asks of pipelined steps, if anything."""
    if options.stages is None:
        return None
    without = () if options.best else options.without
    return pipeline_request(request, options.stages, without, options.interleave, options.overlap)


def freedoms_of(
    options: PlanOptions, request: PlanRequest, asked: PipelineRequest | None
) -> tuple[PlanRequest, Freedoms]:
    """What a user leaves to the searches, and the job with that open; `asked`: what `stages_of` says."""
    if options.best:
        return everything(request, options.without, options.stages, options.interleave)
    return request, Freedoms(options.overlap, options.views, options.joint, options.recompute == TENSORS, asked)
