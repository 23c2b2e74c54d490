"""The verb `plan`: a model on a machine, planned, checked and written.

The status that is printed is the checker's, handed back by `publish`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import click

from ...models.layout.placement import VOCABULARIES
from ...models.machine.machine import Collectives, load_machine
from ...models.machine.shared_links import with_shared_links
from ...models.problem.unit import rounding_bound, rounding_text
from ...models.sources.compared import Reading, load_compared, with_notes
from ...models.sources.frameworks.settings import Settings
from ...models.sources.zoo import default_batch
from ...models.terminal.console import Watch, emit, say
from ...models.terminal.options import (
    BATCH,
    MEMORY,
    attention_option,
    compare_option,
    force_option,
    json_option,
    loads_option,
    operator_option,
    options_as,
    output_option,
    refuse_combinations,
    require_combination,
)
from ...models.text import bytes_text
from ...models.verbs.optimizer import LOSS, MICRO, MICRO_HELP, OPTIMIZER, PRECISION, PRECISION_HELP
from ...proofs.pipelines.words import FORBIDDEN_WORDS
from ...proofs.plan.bundle import write_plan
from ..explain.cost_table import CostRow, cost_table, render_cost_table
from ..explain.error_bounds import error_bound_lines, error_bounds_json, with_error_bounds
from ..explain.request import strategy_to_plan
from ..explain.summary import memory_parts, memory_words, next_commands, parallelism_line, short_flags, time_line
from ..plans.frameworks import pipelined_settings, settings_of_step
from ..plans.given import render_given
from ..plans.micro import render_counts
from ..plans.options import PlanOptions
from ..plans.pipelines.request import MOST_CHUNKS, PipelineRequest
from ..plans.plan import infeasible_plan
from ..plans.portfolio.freedoms import freedoms_of, stages_of
from ..plans.portfolio.words import FREEDOM_WORDS
from ..plans.recompute import render_attempts
from ..plans.remarks import Batch, Remark, remarks
from ..plans.report import labels, short_title
from ..plans.request import TENSORS, PlanOutcome, PlanRequest, carry_out
from ..plans.sizes import size_range
from ..plans.time_limit import TimeLimit
from ..plans.written import searching
from .combinations import PLAN
from .conflict import no_solution, publish_proof
from .door import Door
from .joint import run_joint
from .options import set_option, use_options_given
from .overlapped import plan_overlap
from .pipelined import plan_pipeline
from .portfolio import plan_portfolio
from .results import asked_json, asked_lines, document, outcome, sentence
from .search_options import (
    collectives_option,
    effort_option,
    engine_option,
    gap_option,
    limit_options,
    offload_option,
    rewrite_options,
    start_limit,
    threads_option,
)
from .sizes import plan_sizes
from .submeshes import run_submeshes

SETTLED: Final = "it settles what is kept, and no tensor is left to choose"
OFFLOADED: Final = "assumption: plan --offload"
"""The source of a link to the host that the command line states."""
NOT_OF_PARTS: Final = "its formula is not compared in a step of micro-batches, which reads rows of its tensors"
"""Said of operators of the user's."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand(PlanOptions):
    """The command line of `plan`: its options, read."""

    model: str
    machine: str
    expert_loads: Path | None
    operators: tuple[Path, ...]
    memory: int | None
    offload: Fraction | None
    collectives: Collectives | None
    time_limit: float | None
    work_limit: int | None
    gap: Fraction
    explain_cost: bool
    strategy: Path | None
    output: Path
    as_json: bool

    def request(self, publisher: Door, notes: list[str]) -> PlanRequest:
        """What is asked of the planner; `notes` takes what the frontend and the comparison with it say."""
        how = Reading(
            batch=self.batch,
            attention=self.attention,
            compare=self.compare,
            trained=self.train is not None,
            operators=self.operators,
        )
        graph, found = load_compared(publisher, self.model, how, notes.append)
        graph = with_notes(graph, found, notes, self.expert_loads)
        machine, shared = with_shared_links(load_machine(self.machine), self.collectives)
        notes.extend(shared)
        if self.offload is not None:
            if self.recompute not in ("none", "auto", TENSORS):  # of --best, which then leaves single tensors out
                raise click.UsageError(f"--offload and --recompute {self.recompute} do not go together: {SETTLED}")
            machine = machine.with_host(self.offload, OFFLOADED)
        if self.micro_batch != "1":
            names = sorted({use.name for use in graph.specified})
            notes.extend(f"{name}: {NOT_OF_PARTS}" for name in names)
        schedule = () if found is None else found.schedule
        strategy = self.strategy or strategy_to_plan(None, schedule, graph, machine, searching(self))
        request = PlanRequest.of(self, graph, machine, self.memory, strategy)
        return replace(request, gap=self.gap, rewrites=self.rewrites(publisher.book))

    def pipeline_of(self, request: PlanRequest) -> tuple[PipelineRequest | None, Settings | None]:
        """What is asked of pipelined steps, if anything, and the configuration that is taken instead of a search."""
        settings = None
        if self.stages is not None and self.strategy is not None:
            given, train, place = pipelined_settings(self.strategy), self.train or "", str(self.strategy)
            request = replace(request, precision=request.precision or given.precision)
            settings = settings_of_step(given, request.graph, train, self.recompute, request.precision, place)
        return stages_of(self, request), settings


@click.command("plan")
@click.argument("model")
@click.option("--machine", required=True, help="Built-in name, name:4x8, 4x8, or a TOML file.")
@click.option("--train", type=OPTIMIZER, help="Plan one training step: forward, backward, optimizer.")
@click.option("--loss", help=LOSS)
@click.option(
    "--recompute",
    default="none",
    show_default=True,
    help="With --train: blocks computed again in the backward pass: none, all, attention (its scores alone), globs "
    "such as 'layer*', or auto (with --memory: as many as pay); or tensors (with --memory): each is kept or computed "
    "again, decided together with its placement.",
)
@click.option("--batch", type=BATCH, help="Batch size.")
@click.option("--precision", type=PRECISION, help=PRECISION_HELP)
@click.option("--micro-batch", type=MICRO, default="1", show_default=True, help=MICRO_HELP)
@attention_option
@loads_option
@compare_option
@operator_option
@click.option("--memory", type=MEMORY, help="Memory limit per device, such as 80GiB.")
@offload_option
@collectives_option
@click.option("--space", "space_name", help="complete, two-per-level or one-per-level, optionally with ',uneven'.")
@click.option(
    "--vocabulary",
    type=click.Choice(VOCABULARIES),
    help="Only placements that this framework can say; the claim names the restriction.",
)
@engine_option
@effort_option
@limit_options()
@gap_option
@threads_option
@click.option("--explain-cost", is_flag=True, help="Print flops, bytes and the deciding formula of every operator.")
@click.option(
    "--strategy",
    type=click.Path(path_type=Path),
    help="Take these schedules, carried to what they are joined to, or those of a plan; search for nothing.",
)
@click.option(
    "--pipeline",
    "stages",
    metavar="auto|P:M|P:M:V",
    help="With --train: cut into stages, each with placements of its own on an equal part of the machine: auto, or P "
    "stages and M micro-batches, or these with V chunks of the model on every stage (interleaved).",
)
@click.option(
    "--interleave",
    type=click.IntRange(1, MOST_CHUNKS),
    default=1,
    show_default=True,
    help="With --pipeline auto or P:M, or --best: up to so many chunks of the model on every stage are tried, and are "
    "in the claim.",
)
@click.option(
    "--without",
    type=click.Choice((*FORBIDDEN_WORDS, *FREEDOM_WORDS)),
    multiple=True,
    help="With --pipeline, what plan and bound do without: splits of other axes than the batch (tensor), of the batch "
    "(data), of parameters and states (sharding). With --best, which freedom is not searched.",
)
@click.option(
    "--overlap",
    is_flag=True,
    help="Let reshardings run beside operators: placements and a schedule, with a bound over both; with --pipeline "
    "inside every forward and backward pass and the updates of a stage.",
)
@click.option(
    "--submeshes",
    "--views",  # its name up to 0.1, for one version
    "views",
    is_flag=True,
    help="Let parallel branches run beside each other on disjoint submeshes of the machine where that is faster.",
)
@click.option(
    "--joint",
    is_flag=True,
    help="Optimise algebra and placement together: one proof over all equal programs that the rules give.",
)
@rewrite_options("With --joint or --best")
@click.option(
    "--best",
    is_flag=True,
    help="Search all that applies: stages, overlap, submeshes, rewrites and, under a memory limit, recomputation; say "
    "what each gains and why what is left out is left out. --without leaves out more.",
)
@set_option
@output_option("-o", "--output", required=True, help="The plan file.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(PLAN)
@options_as(PlanCommand)
def plan_command(publisher: Door, options: PlanCommand) -> int:
    """Plan MODEL (zoo name, ONNX file, FILE.py:NAME or JSON graph) on a machine and prove what is said about the
    plan.
    """
    with use_options_given():
        return _plan(publisher, options)


def _plan(publisher: Door, options: PlanCommand) -> int:
    """What was asked for, by the search that knows it."""
    clock = start_limit(options.time_limit, options.work_limit)
    publisher = publisher.within(clock.late)
    notes: list[str] = []
    if (sizes := size_range(options.model, options.attention)) is not None:
        require_combination(PLAN, subject="range")
        request = replace(options, model=sizes.model(sizes.first)).request(publisher, notes)
        return plan_sizes(publisher, sizes, request, clock, options.output, options.as_json, notes)
    request = options.request(publisher, notes)
    asked, settings = options.pipeline_of(request)
    request, freedoms = freedoms_of(options, request, asked)
    if freedoms.several(request):
        return plan_portfolio(publisher, request, freedoms, clock, options.output, options.as_json, notes)
    if (options.overlap or asked is not None) and not options.as_json:
        say(*(f"note: {note}" for note in notes))
    if asked is not None:
        return plan_pipeline(publisher, asked, clock, options.output, options.as_json, settings)
    if options.overlap:
        return plan_overlap(publisher, request, clock, options.output, options.as_json)
    if options.views:
        return run_submeshes(publisher, request, options.output, options.as_json, clock, notes)
    if freedoms.programs:
        return run_joint(publisher, request, options.output, options.as_json, clock, notes)
    return plan_placements(publisher, request, clock, options, notes)


def plan_placements(
    publisher: Door, request: PlanRequest, clock: TimeLimit, options: PlanCommand, notes: list[str]
) -> int:
    """One program and its placements: plan, check, publish, and say."""
    with Watch("planning") as watch:
        found = carry_out(request, clock, watch, watch.count)
    problem, answer = found.planned.planning.problem, found.planned.answer
    if found.planned.plan is None:
        if not options.as_json:
            say(*render_attempts(found.attempts, problem), *render_counts(found.counts, problem))
        steps = [op.name for op in found.graph.operators]
        proof = infeasible_plan(found.planned)
        if proof is None:
            published = publish_proof(publisher, problem, answer, clock)
        else:
            published = publish_proof(publisher, problem, answer, clock, options.output, write_plan(None, proof))
        return no_solution(published, problem, answer, options.as_json, clock, steps)
    whole = with_error_bounds(found.planned, clock)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(options.output, write_plan(None, whole), notify=watch.count)
    code, status = outcome(published, options.gap)
    rows: tuple[CostRow, ...] = ()
    said: tuple[Remark, ...] = ()
    if answer.solution is not None:
        if options.explain_cost:
            rows = cost_table(found.planned.planning, answer.solution)
        taken = default_batch(options.model) if options.batch is None else options.batch
        batch = None if taken is None else Batch(taken, options.batch is None)
        with Watch("looking beyond the proof"), clock.phase("remarks"):
            said = () if clock.is_over() else remarks(found.planned.planning, answer.solution, batch, clock.clock)
    if options.as_json:
        data = document(status, published, problem, options.gap, clock)
        if options.explain_cost:
            data["operators"] = [r.to_json() for r in rows]
        data |= {"plan": str(options.output), "identity": published.identity, **_found_json(found, request)}
        data |= {"notes": notes} if notes else {}
        data |= {} if whole.bars is None else {"bars": error_bounds_json(whole.bars)}
        emit({**data, **asked_json(answer), "remarks": [r.to_json() for r in said]})
        return code
    say(*_found_lines(found, request, notes))
    if options.explain_cost:
        say(render_cost_table(found.planned.planning, rows))
    if found.given is not None:
        say(render_given(found.given, len(found.graph.operators)))
    say(sentence(published, problem), *asked_lines(answer, problem))
    if answer.solution is not None and not clock.is_over():
        planning = found.planned.planning
        say(*parallelism_line(planning, answer.solution), time_line(planning, answer.solution))
    elif answer.solution is not None:
        say("parallelism and remarks are left out, as the limit is over: `shardproof explain` says them")
    say(*_memory_lines(found, request))
    if whole.bars is not None:
        say(*error_bound_lines(whole.bars, found.planned.planning))
    say(f"space {problem.space}; assumptions: {short_flags(problem.assumptions)}")
    say(rounding_text(problem))
    say(*(f"remark: {r.words}" for r in said))
    say(f"identity {published.identity}")
    say(f"wrote {options.output} ({published.size} bytes) in {clock.words()}", *published.advice)
    say(next_commands(str(options.output)))
    return code


def _found_json(found: PlanOutcome, request: PlanRequest) -> dict[str, object]:
    """What was planned, and what its plan needs."""
    problem, solution, step = found.planned.planning.problem, found.planned.answer.solution, found.step
    out: dict[str, object] = {
        "space": problem.space,
        "assumptions": list(problem.assumptions),
        "rounding_bound": rounding_bound(problem),
    }
    if step is not None:
        out |= {"loss": step.loss, "trained": len(step.trained), "recomputed": list(step.recomputed)}
    if request.memory is not None and solution is not None:
        out |= {"peak_bytes": problem.peak_of(solution)[0], "limit_bytes": request.memory}
        out |= {"peak_parts": memory_parts(found.planned.planning, solution, step)}
    out |= {"counts": [a.to_json() for a in found.counts]} if found.counts else {}
    return out | ({"attempts": [a.to_json() for a in found.attempts]} if found.attempts else {})


def _found_lines(found: PlanOutcome, request: PlanRequest, notes: list[str]) -> list[str]:
    """What was planned."""
    machine, problem, step = request.machine, found.planned.planning.problem, found.step
    title = f"{short_title(found.graph.name)} on {machine.name} {'x'.join(map(str, machine.hierarchy))}"
    lines = [
        f"{title}: {len(found.graph.operators)} operators, {len(problem.vertices)} decisions",
        *(f"note: {note}" for note in notes),
    ]
    if step is not None:
        lines.append(f"{request.train}: {step.loss}; {len(step.trained)} weights are updated")
        if step.recomputed:
            lines.append(
                f"activation checkpointing (computed again in the backward pass): {', '.join(labels(step.recomputed))}"
            )
    if found.attempts:
        lines.append("numbers of blocks that were tried; every claim is about one graph, none about all of them:")
    if found.counts:
        lines.append("numbers of micro-batches that were tried; every claim is about one graph:")
    return lines + render_attempts(found.attempts, problem) + render_counts(found.counts, problem)


def _memory_lines(found: PlanOutcome, request: PlanRequest) -> list[str]:
    """The fullest device, where there is a limit."""
    operators, solution = found.graph.operators, found.planned.answer.solution
    if request.memory is None or solution is None:
        return []
    peak, at = found.planned.planning.problem.peak_of(solution)
    room, name = f"{bytes_text(peak)} of {bytes_text(request.memory)}", operators[min(at, len(operators) - 1)].name
    parts = memory_words(memory_parts(found.planned.planning, solution, found.step))
    return [f"memory: {room} on the fullest device, at operator {name}{parts}"]
