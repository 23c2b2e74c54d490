"""The verb `audit`: is this strategy optimal?  A proof, a better strategy with the difference, or the best gap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import click

from ...models.layout.placement import space
from ...models.machine.machine import load_machine
from ...models.machine.shared_links import with_shared_links
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.sources.compared import Reading, note_comparison
from ...models.sources.frameworks.settings import Settings
from ...models.sources.load import Attention
from ...models.sources.training import TrainingStep
from ...models.sources.zoo import zoo_spec
from ...models.terminal.console import Exit, Watch, emit, say
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
from ...models.text import InputError
from ...models.verbs.describe import training_of
from ...models.verbs.optimizer import OPTIMIZER, PRECISION, PRECISION_HELP
from ...proofs.selection.load import load_selection_problem
from ..explain.audit import AuditReport, Outcome, render_audit, render_unconfirmed
from ..explain.request import (
    AuditRequest,
    carry_out_audit,
    carry_out_audit_of_choices,
    is_confirmed,
    strategy_for,
)
from ..plans.frameworks import framework_settings, settings_of_step
from ..plans.layouts import tensor_layouts
from ..plans.options import RewriteOptions
from ..plans.pipelines.request import PipelineRequest
from ..plans.strategy import ChoiceList
from ..plans.strategy_file import load_strategy
from ..plans.time_limit import TimeLimit
from ..selection.question import Engine
from .audit_against import Compares, audit_against
from .audit_joint import audit_program
from .audit_pipelined import audit_pipelined
from .combinations import AUDIT
from .door import Door
from .results import asked_json, asked_lines
from .search_options import effort_option, engine_option, gap_option, limit_options, rewrite_options, start_limit

UNCONFIRMED: Final[dict[str, object]] = {
    "outcome": Outcome.UNDECIDED.value,
    "strategy_lower_bound": None,
    "strategy_status": "unknown",
    "lower_bound": None,
    "status": "unknown",
    "gap": None,
    "bars": None,
}
"""What is left of an answer that the checker has not confirmed: costs, which are evaluated."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(RewriteOptions):
    """The command line of `audit`."""

    subject: str
    strategy: Path
    against: Path | None
    machine: str | None
    batch: int | None
    attention: Attention | None
    expert_loads: Path | None
    compare: bool
    operators: tuple[Path, ...]
    memory: int | None
    space_name: str | None
    train: str | None
    recompute: str | None
    precision: str | None
    pipeline: str | None
    carry: bool
    joint: bool
    rewritten: str | None
    engine: Engine
    time_limit: float | None
    work_limit: int | None
    gap: Fraction
    output: Path | None
    as_json: bool

    def model(self, publisher: Door, subject: str, batch: int | None, notes: list[str], trained: bool) -> Graph:
        """A program of the command line."""
        how = Reading(
            batch=batch,
            attention=self.attention,
            compare=self.compare,
            trained=trained,
            operators=self.operators,
        )
        return note_comparison(publisher, subject, how, notes, self.expert_loads)


@click.command("audit")
@click.argument("subject", metavar="MODEL|PROBLEM")
@click.option(
    "--strategy",
    required=True,
    type=click.Path(path_type=Path),
    help="Strategy file: per operator name or glob, a list of choices, layouts of tensors (DTensor, JAX, Shardy), or "
    "the settings of a framework (Megatron, NeMo, torchtitan, DeepSpeed, FSDP, accelerate, axolotl, the Trainer, "
    "nanotron, MaxText, vLLM, SGLang); or FULL_SHARD itself; or a plan, whose placements it takes at other sizes.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    help="With --train: settings of a second configuration; say which is faster, term by term, and search nothing.",
)
@click.option("--machine", help="For a model: built-in name, name:4x8, 4x8, or a TOML file.")
@click.option("--batch", type=BATCH, help="Batch size of the model.")
@attention_option
@loads_option
@compare_option
@operator_option
@click.option("--memory", type=MEMORY, help="Memory limit per device, such as 80GiB.")
@click.option("--space", "space_name", help="complete, two-per-level or one-per-level, optionally with ',uneven'.")
@click.option("--train", type=OPTIMIZER, help="One training step with this optimizer.")
@click.option(
    "--recompute", help="With --train: blocks computed again, as in plan [default: what the settings say, or none]"
)
@click.option(
    "--precision",
    type=PRECISION,
    help=f"With --train [default: what the settings say, with weights in float32 beside it]. {PRECISION_HELP}",
)
@click.option(
    "--pipeline",
    help="With --train: what it is compared with: P:M, its own stages and micro-batches (the default, where the "
    "micro-batch size is said), or auto: all numbers of stages and of micro-batches.",
)
@click.option(
    "--propagate",
    "carry",
    is_flag=True,
    help="Carry the schedules to the operators they are joined to, instead of leaving those to the solver.",
)
@click.option(
    "--joint",
    is_flag=True,
    help="Compare with all equal programs that the rules give, under all placements; -o takes the best joint plan.",
)
@click.option(
    "--rewritten",
    metavar="MODEL",
    help="With --joint: the program that the strategy is for, if it is another one than the model's.",
)
@rewrite_options("With --joint")
@engine_option
@effort_option
@limit_options()
@gap_option
@output_option("-o", "--output", help="Write the certificate here.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(AUDIT)
@options_as(AuditOptions)
def audit_command(publisher: Door, options: AuditOptions) -> int:
    """Say whether a strategy for a MODEL or a selection PROBLEM is optimal."""
    clock = start_limit(options.time_limit, options.work_limit)
    publisher = publisher.within(clock.late)
    notes: list[str] = []
    settings = framework_settings(options.strategy)
    layouts = None if settings is not None else tensor_layouts(options.strategy)
    listed = load_strategy(options.strategy) if settings is None and layouts is None else None
    kind = (
        "settings" if settings else "layouts" if layouts else "choices" if isinstance(listed, ChoiceList) else "degrees"
    )
    require_combination(AUDIT, kind=kind)
    if settings is not None and options.train is not None and options.machine is not None:
        return _audit_step(publisher, options, settings, (options.train, options.machine), clock, notes)
    with Watch("auditing") as watch:
        if isinstance(listed, ChoiceList):
            with clock.phase("tables"):
                problem = _selection_problem(options)
            report = carry_out_audit_of_choices(problem, listed, clock, options.gap, options.engine, watch)
        else:
            program, request = _placement_request(publisher, options, notes)
            if options.joint:
                return audit_program(publisher, program, request, clock, options.output, options.as_json)
            report = carry_out_audit(request, clock, watch, watch.count)
    with Watch("checking"), clock.phase("check"):
        checked = is_confirmed(publisher.within(clock.late, keep=False), report, options.output)
    return _tell_report(options, report, checked, clock, notes)


def _selection_problem(options: AuditOptions) -> SelectionProblem:
    """The problem that a list of choices is for."""
    if zoo_spec(options.subject) is not None:
        raise InputError(
            f"{options.strategy} is a list of choices, which belongs to a selection problem; for a model "
            f"write {{operator: {{axis: {{level: degree}}}}}}"
        )
    return load_selection_problem(Path(options.subject))


def _placement_request(publisher: Door, options: AuditOptions, notes: list[str]) -> tuple[Graph, AuditRequest]:
    """The program that degrees or layouts are for, and what is asked about them, with the rules of `--joint`."""
    if options.machine is None:
        raise InputError(
            "a strategy for a model needs --machine; for a selection problem the strategy is a list of choice indices"
        )
    target, shared = with_shared_links(load_machine(options.machine))
    notes.extend(shared)
    where = space(options.space_name) if options.space_name is not None else None
    graph = program = options.model(publisher, options.subject, options.batch, notes, False)
    if options.rewritten is not None:
        program = options.model(publisher, options.rewritten, None, notes, False)
    given = strategy_for(options.strategy, program, target)
    request = AuditRequest(graph, target, given, where, options.memory, options.carry, options.engine, options.gap)
    if options.joint:
        request = replace(request, rewrites=options.rewrites(publisher.book))
    return program, request


def _tell_report(options: AuditOptions, report: AuditReport, checked: bool, clock: TimeLimit, notes: list[str]) -> int:
    """Print what was found, less what the checker has not confirmed; the exit status."""
    written = options.output if checked and report.certificate is not None else None
    code = Exit(report.exit_code) if checked else Exit.UNDECIDED
    if options.as_json:
        emit(
            {
                **report.to_json(),
                **({} if checked else UNCONFIRMED),
                **asked_json(report.best),
                "checked": checked,
                "certificate": None if written is None else str(written),
                "seconds": round(clock.elapsed_s, 3),
                "processor_seconds": round(clock.processor_s, 3),
                "phases": clock.phase_seconds(),
                "work": clock.work,
                **({"notes": notes} if notes else {}),
            }
        )
        return code
    if checked:
        say(render_audit(report, options.strategy.name))
    else:
        say(render_unconfirmed(report, options.strategy.name, clock.late()))
    say(*asked_lines(report.best, report.problem))
    say(*(f"note: {note}" for note in notes))
    if written is not None:
        say(f"wrote {written}")
    return code


def _audit_step(
    publisher: Door,
    options: AuditOptions,
    settings: Settings,
    job: tuple[str, str],
    clock: TimeLimit,
    notes: list[str],
) -> int:
    """Settings of a framework as a training step, alone or against others.  `job`: the optimizer, and the machine."""
    train, machine = job
    model = options.model(publisher, options.subject, options.batch, notes, True)
    target, shared = with_shared_links(load_machine(machine))
    notes.extend(shared)
    if options.against is not None:
        compared = Compares(model, target, machine, train, options.recompute, options.precision, options.memory)
        return audit_against(compared, (options.strategy, settings), options.against, notes, options.as_json)
    where = space(options.space_name) if options.space_name else None
    if not options.as_json:
        say(*(f"note: {note}" for note in notes))
    which = options.recompute or ("none" if settings.recompute is None else settings.recompute.value)
    types = options.precision or settings.precision
    settings = settings_of_step(settings, model, train, which, types, str(options.strategy))

    def make(which: str) -> TrainingStep | None:
        return training_of(model, train, None, which, types)

    stages = options.pipeline or ""
    wanted = PipelineRequest(make, target, stages, which, (), where, options.memory, options.gap)
    return audit_pipelined(publisher, wanted, settings, clock, options.output, options.as_json)
