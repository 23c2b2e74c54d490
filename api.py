"""The Python way in: plan a model, check a plan, read what it decided, audit a strategy, hand a plan on.

    import shardproof
    plan = shardproof.plan("bert-large", "cloud-a100:4x8", batch=8, train="adam", memory="80GiB")
    plan.check().verdict, plan.layouts["layer0.attention.query.weight"]
    plan.save("plan.spz")

The command line does the same things through the same functions (`tests/test_api_is_the_way_in.py`): requests are
carried out by `formal/*/request.py`, and results checked before anybody sees them.

Versions: names and meanings here change only with the first number of the version that is not zero.
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from shardproof.answers import NoPlan, Plan
from shardproof.formal.plans.options import Job, PlanOptions, StepOptions
from shardproof.limits import Limit, SearchLimits, limit_of
from shardproof.models.keywords import keywords_of
from shardproof.models.layout.placement import Space, space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.shared_links import planned_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.objects import graph_of_object
from shardproof.models.terminal.combinations import require_keywords
from shardproof.models.text import InputError, parse_memory
from shardproof.proofs.plan.bundle import write_plan

if TYPE_CHECKING:
    from shardproof.formal.explain.audit import AuditReport
    from shardproof.formal.explain.request import Splits
    from shardproof.formal.plans.pipelines.request import PipelineRequest
    from shardproof.formal.plans.plan import Planned
    from shardproof.formal.plans.portfolio.freedoms import Freedoms
    from shardproof.formal.plans.request import PlanRequest
    from shardproof.formal.plans.time_limit import TimeLimit
    from shardproof.formal.selection.question import Engine
    from shardproof.models.sources.building.original import Original
    from shardproof.models.sources.frameworks.settings import Settings
    from shardproof.models.sources.load import Attention
    from shardproof.proofs.joint.books import Rewrites


@dataclass(frozen=True)
class ModelJob(SearchLimits, Job):
    """What Python asks of a model: example `inputs` beside it, limits, and how near the bound is enough."""

    _: KW_ONLY
    inputs: object = None

    def graph(self, attention: Attention | None = None, trained: bool = False) -> tuple[Graph, Original | None]:
        """The graph of whatever a model is, and the program that a frontend read; what the frontend did to it, its
        sizes, and what it was compared with is said on stderr.  Raises `Differs` where it is not what it computes.
        """
        from shardproof.front_door import FrontDoor

        taken: list[Original] = []
        graph = graph_of_object(self.model, self.inputs, self.batch, attention, _tell, taken.append, trained)
        for original in taken:
            _tell(FrontDoor().compare_import(graph, original, self.compare, trained).words)
        return graph, taken[0] if taken else None

    @property
    def bytes(self) -> int | None:
        """Memory of a device."""
        return None if self.memory is None else parse_memory(self.memory)

    @property
    def usual_space(self) -> str | None:
        """The space, or that of the effort."""
        from shardproof.formal.plans.effort import effort_of

        return self.space_name or effort_of(self.effort).space


@dataclass(frozen=True)
class PlanKeywords(ModelJob, PlanOptions):
    """See `plan`."""


@dataclass(frozen=True)
class PipelineKeywords(StepOptions, ModelJob):
    """See `pipeline`."""

    train: str = field(kw_only=False)
    _: KW_ONLY
    stages: str = "auto"
    interleave: int = 1
    overlap: bool = False
    strategy: str | Path | None = None


@dataclass(frozen=True)
class AuditKeywords(ModelJob):
    """See `audit`."""

    strategy: str | Path | Splits
    _: KW_ONLY
    attention: Attention | None = None
    carry: bool = False
    engine: Engine = "native"


@keywords_of(PlanKeywords)
def plan(options: PlanKeywords) -> Plan:
    """The best plan found for a model on a machine, checked.

    `model`: what the command line takes (a zoo name, with sizes or without, a file, FILE.py:NAME), a `Graph`, a NumPy
    function with shapes (`@shardproof.program`, or its arrays as `inputs`), or a PyTorch module with its example
    `inputs`; `batch`: its size; `attention`: as one operator or taken apart.  `train`: the optimizer of a step that
    minimises `loss`; `precision`: what it computes in 16 bits; `micro_batch`: parts of the batch, or "auto".  `memory`:
    bytes per device, or a text such as "80GiB".  `vocabulary`: the framework that must be able to say every placement.
    `strategy`: schedules carried to the rest, a file or {operator: {axis: {level: degree}}}.  `joint`: algebra and
    placement together, with the libraries of rules that come along or the files `rules`, tried `rewrite_rounds` times,
    up to `rewrite_nodes` operators added in at most `rewrite_time` seconds (None: 30 % of the limit).  `recompute`:
    blocks computed again (none, all, globs, "auto"), or "tensors": each by itself, with its placement. `compare`: run
    what is imported beside the program that it came from, and refuse it where they differ.  `views`: branches beside
    each other on submeshes.  `overlap`: reshardings beside operators.  `stages`, `interleave`: of a training step, as
    `pipeline` takes them.  Of several freedoms the best plan that was found is taken, with a claim over all
    (`Plan.among`).  `best`: all of them that apply, and recomputation under a limit, but `without` some ("overlap",
    "stages", "submeshes", "rewrites", "recompute"); with `stages` alone as in `pipeline`.  `engine`: who looks for the
    solution, native, ilp, smt or cp-sat; `threads` of the search.  `time_limit_s`: wall-clock seconds, None for any
    number; `work_limit`: steps of work instead (a million: about a second): the same plan on every machine.  `gap`:
    (cost - bound) / cost that is enough.  `effort`: what counts where limit, `gap`, `space_name` are not given: "quick"
    (60 s, 3 %, one-per-level), "normal" (300 s, 0, the default space), "thorough" (3600 s).

    Raises `NoPlan`, `InputError`, and the errors of the frontends.
    """
    from shardproof.formal.explain.request import strategy_to_plan
    from shardproof.formal.plans.portfolio.freedoms import freedoms_of, stages_of
    from shardproof.formal.plans.request import PlanRequest
    from shardproof.formal.plans.written import searching
    from shardproof.formal.verbs.combinations import PLAN

    require_keywords(PLAN, options)
    share, limit = options.enough()
    options = replace(options, space_name=options.usual_space)
    graph, original = options.graph(options.attention, options.train is not None)
    target, schedule = planned_machine(options.machine), () if original is None else original.schedule
    given = strategy_to_plan(options.strategy, schedule, graph, target, searching(options))
    if options.train is not None and given is not None and given.settings is not None:
        raise InputError(
            f"{given.place}: settings of a framework are of a training step in micro-batches; give them to pipeline, "
            "or plan without them"
        )
    request = PlanRequest.of(options, graph, target, options.bytes, given)
    request = replace(request, gap=share, rewrites=_rewrites(options))
    request, freedoms = freedoms_of(options, request, stages_of(options, request))
    return _answer(_search(request, freedoms, limit))


@keywords_of(PipelineKeywords)
def pipeline(options: PipelineKeywords) -> Plan:
    """A training step cut into stages, each with placements of its own on an equal part of the machine, checked.

    `stages`: "auto", or "P:M" for P stages and M micro-batches, or "P:M:V" with V chunks of the model on every stage;
    `interleave`: with "auto" or "P:M", up to so many chunks are tried and in the claim; `overlap`: reshardings run
    beside operators inside every forward and backward pass and the updates of a stage; `strategy`: a framework's
    settings (stages, tensor, context and data parallel degrees, micro-batches), as a file or as text, whose best
    completion is taken instead of the best plan, beside the bound of all plans; the other arguments are those of
    `plan`.
    """
    from shardproof.formal.plans.frameworks import pipelined_settings, settings_of_step
    from shardproof.formal.plans.pipelines.request import pipeline_request
    from shardproof.formal.plans.request import TENSORS, PlanRequest
    from shardproof.formal.verbs.combinations import PLAN

    require_keywords(PLAN, options, stages=options.stages)
    if options.recompute == TENSORS:
        raise InputError("stages compute whole blocks again: recompute='auto', or plan(.., stages=..) for both")
    share, limit = options.enough()
    (graph, _), target = options.graph(trained=True), planned_machine(options.machine)
    settings, precision = None, options.precision
    if options.strategy is not None:
        said = pipelined_settings(options.strategy)
        precision = precision or said.precision
        place = str(options.strategy)[:200]
        settings = settings_of_step(said, graph, options.train, options.recompute, precision, place)
    what = graph, target, options.train, options.loss, options.recompute, _space(options.usual_space), options.bytes
    request = PlanRequest(*what, gap=share, precision=precision)
    asked = pipeline_request(request, options.stages, (), options.interleave, options.overlap)
    return _answer(_pipelined(graph, asked, settings, limit))


def load(path: Path | str) -> Plan:
    """A plan of whatever kind from its file, checked.  Raises `RefutedPlan`, `ContainerError` for what is no plan."""
    from shardproof.front_door import FrontDoor

    return Plan(FrontDoor().open(Path(path)))


@keywords_of(AuditKeywords)
def audit(options: AuditKeywords) -> AuditReport:
    """Whether a strategy is optimal, refuted by a better one, or undecided.

    `strategy`: {operator or glob: {axis: {level: degree}}}, a file of that, or a framework's settings, as a file or as
    text ("FULL_SHARD").  `carry`: take it to the operators that its own are joined to, instead of leaving those to the
    solver; `effort` as for `plan`, but for the space.  What is said was accepted by the checker.
    """
    from shardproof.formal.explain.request import AuditRequest, carry_out_audit, is_confirmed, strategy_for
    from shardproof.formal.verbs.combinations import AUDIT
    from shardproof.front_door import FrontDoor

    require_keywords(AUDIT, options)
    share, limit = options.enough()
    (graph, _), target = options.graph(options.attention), planned_machine(options.machine)
    given, where = strategy_for(options.strategy, graph, target), _space(options.space_name)
    request = AuditRequest(graph, target, given, where, options.bytes, options.carry, options.engine, share)
    report = carry_out_audit(request, limit)
    if not is_confirmed(FrontDoor(), report):
        raise RuntimeError("our own checker did not confirm the audit; please report it")
    return report


def rules(path: Path | str, time_limit_s: Limit = "default", work_limit: int | None = None) -> dict[str, str]:
    """Rule of a file -> what the checker says of our judgement: proved (for all shapes), refuted, vacuous, undecided.

    `path`: FlexFlow's JSON, TASO's protobuf or axioms, a library (.spz), or the word "parallel".
    `time_limit_s`: of the processor for one rule, 60 by default; `work_limit`: steps of work for one.
    """
    from shardproof.formal.rewriting.rule_files import judge_items, load_rules, overall
    from shardproof.front_door import FrontDoor
    from shardproof.proofs.rewrites.library import Library

    items = load_rules(Path(path))
    judged = list(
        judge_items(items, limit_of(time_limit_s, work_limit, 60.0).clock.allowance(), 1, lambda done, total: None)
    )
    words = FrontDoor().rules(None, Library(Path(path).name, tuple(j for js in judged for j in js), (), "rules prove"))
    return {i.name: overall(tuple(words[j.rule.name] for j in js)) for i, js in zip(items, judged, strict=True)}


def machine(spec: Machine | str | Path, collectives: str | None = None, host: str | None = None) -> Machine:
    """A machine: itself, a built-in name, name:4x8, bare sizes, or a TOML file.  `collectives`: "hierarchical",
    "library" or "synthesised", the programs of reductions; `host`: "25 GB/s" to hosts (None: what the machine says).

    >>> machine("dgx-a100:2x8").devices, [level.name for level in machine("4x8").levels]
    (16, ['nodes', 'gpus'])
    """
    found = spec if isinstance(spec, Machine) else load_machine(str(spec))
    found = found if host is None else found.with_host(host, "assumption: machine(host=..)")
    return found if collectives is None else found.with_collectives(collectives)


def _answer(data: bytes) -> Plan:
    """The plan in these bytes, checked."""
    from shardproof.front_door import FrontDoor

    return Plan(FrontDoor().read(data))


def _pipelined(graph: Graph, asked: PipelineRequest, settings: Settings | None, limit: TimeLimit) -> bytes:
    from shardproof.formal.plans.pipelines.audit import audit_pipeline
    from shardproof.formal.plans.pipelines.request import carry_out_pipelined
    from shardproof.proofs.pipelines.file import write_pipeline

    if settings is None:
        found, _ = carry_out_pipelined(asked, limit)
    else:
        found = audit_pipeline(asked, settings.flags, limit).configuration
    if found.best is None:
        raise NoPlan(f"{graph.name}: no pipeline was found that fits; more time or memory may help", infeasible=False)
    return write_pipeline(None, found.certificate())


def _with_views(request: PlanRequest, limit: TimeLimit) -> bytes:
    from shardproof.formal.plans.submeshes.request import carry_out_on_submeshes
    from shardproof.proofs.views.file import write_submesh_plan

    found = carry_out_on_submeshes(request, limit)
    if found.certificate is None:
        raise NoPlan(f"{found.graph.name}: no plan found within the time limit; give it more time", infeasible=False)
    return write_submesh_plan(None, found.certificate)


def _overlapped(request: PlanRequest, limit: TimeLimit) -> bytes:
    from shardproof.formal.plans.overlap.request import carry_out_overlapped
    from shardproof.formal.plans.overlap.search import NothingFits
    from shardproof.front_door import FrontDoor
    from shardproof.proofs.overlap.file import write_overlap

    _, found = carry_out_overlapped(request, limit)
    if found is None:
        raise NoPlan(f"{request.graph.name}: no plan found within the time limit; give it more time", infeasible=False)
    data = write_overlap(None, found.certificate())
    if isinstance(found, NothingFits) and FrontDoor().read(data).published.verdict is Verdict.PROVED:
        raise NoPlan(f"{request.graph.name}: proved that no plan fits {request.memory} bytes in any order", True)
    return data


def _rewrites(options: PlanOptions) -> Rewrites:
    """What a joint search may use.  Raises `InputError` for numbers out of range."""
    from shardproof.front_door import FrontDoor
    from shardproof.models.joint.rules import MOST_ROUNDS, NODES_ASKED

    rounds, nodes, seconds = options.rewrite_rounds, options.rewrite_nodes, options.rewrite_time
    for name, value, most in (("rounds", rounds, MOST_ROUNDS), ("nodes", nodes, NODES_ASKED)):
        if not 1 <= value <= most:
            raise InputError(f"rewrite_{name}={value}: give 1 to {most}")
    if seconds is not None and not 0 < seconds < inf:
        raise InputError(f"rewrite_time {seconds} is not a number of seconds above 0; None for 30 % of the limit")
    return options.rewrites(FrontDoor().book)


def _space(name: str | None) -> Space | None:
    return None if name is None else space(name)


def _search(request: PlanRequest, freedoms: Freedoms, limit: TimeLimit) -> bytes:
    """The plan file that the search makes which knows all that is asked."""
    from shardproof.formal.explain.error_bounds import with_error_bounds
    from shardproof.formal.plans.portfolio.search import Searches
    from shardproof.formal.plans.request import carry_out
    from shardproof.formal.rewriting.joint.request import carry_out_jointly

    name = request.graph.name
    if freedoms.several(request):
        found = Searches(request, freedoms, limit).search_all()
        if (data := found.data()) is None:
            why = "; ".join(f"{x.part}: {x.why}" for x in found.left_out)
            raise NoPlan(f"{name}: no plan was found ({why}); more time or memory may help", infeasible=False)
        return data
    if freedoms.stages is not None:
        return _pipelined(request.graph, freedoms.stages, None, limit)
    if freedoms.submeshes:
        return _with_views(request, limit)
    if freedoms.overlap:
        return _overlapped(request, limit)
    if freedoms.programs:
        made = carry_out_jointly(request, limit).plan
    else:
        planned = carry_out(request, limit).planned
        if planned.plan is None:
            raise _no_plan(planned)
        made = with_error_bounds(planned)
    if made is None:
        raise NoPlan(f"{name}: no plan found within the time limit; give it more time", infeasible=False)
    return write_plan(None, made)


def _tell(note: str) -> None:
    print(f"note: {note}", file=sys.stderr)


def _no_plan(planned: Planned) -> NoPlan:
    from shardproof.formal.plans.plan import infeasible_plan
    from shardproof.front_door import FrontDoor

    name, proof = planned.planning.graph.name, infeasible_plan(planned)
    if proof is not None:
        data = write_plan(None, proof)
        if FrontDoor().publish(None, data).verdict is Verdict.PROVED:
            least = getattr(proof.certificate.claim, "least_limit", None)
            known = "" if least is None else f"; the least limit for which a plan is known is {least} bytes"
            return NoPlan(f"{name}: proved that no plan fits {proof.memory_limit} bytes{known}", True, data)
    return NoPlan(f"{name}: no plan found within the time limit; give it more time", infeasible=False)
