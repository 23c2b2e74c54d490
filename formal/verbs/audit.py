"""The verb `audit`: is this strategy optimal?  A proof, a better strategy with the difference, or
the best
certified gap.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import click

from ...models.layout.placement import space
from ...models.machine.machine import load_machine
from ...models.machine.shared_links import with_shared_links
from ...models.sources.compared import note_comparison
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
    output_option,
    refuse_combinations,
    require_combination,
)
from ...models.text import InputError
from ...models.verbs.describe import training_of
from ...models.verbs.optimizer import OPTIMIZER, PRECISION, PRECISION_HELP
from ...proofs.joint.books import Rewrites
from ...proofs.rewrites.plain import DEFAULTS
from ...proofs.selection.load import load_selection_problem
from ..explain.audit import Outcome, render_audit, render_unconfirmed
from ..explain.request import (
    AuditRequest,
    carry_out_audit,
    carry_out_audit_of_choices,
    is_confirmed,
    strategy_for,
)
from ..plans.frameworks import framework_settings, settings_of_step
from ..plans.layouts import tensor_layouts
from ..plans.pipelines.request import PipelineRequest
from ..plans.strategy import ChoiceList, load_strategy
from ..selection.solve import Engine
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


@click.command("audit")
@click.argument("subject", metavar="MODEL|PROBLEM")
@click.option(
    "--strategy",
    required=True,
    type=click.Path(path_type=Path),
    help="Strategy file: per operator name or glob, a list of choices, layouts of tensors (DTensor, JAX, Shardy), or "
    "the settings of a framework (Megatron, NeMo, torchtitan, DeepSpeed, FSDP, accelerate, axolotl, the Trainer, "
    "nanotron, MaxText, vLLM, SGLang); or FULL_SHARD itself.",
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
@click.option("--memory", type=MEMORY, help="Memory limit per device, such as 80GiB.")
@click.option("--space", "space_name", help="complete, two-per-level or one-per-level, optionally with ',uneven'.")
@click.option(
    "--train", type=OPTIMIZER, help="Of a pipelined configuration (pp > 1): one training step with this optimizer."
)
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
def audit_command(
    publisher: Door,
    subject: str,
    strategy: Path,
    against: Path | None,
    machine: str | None,
    batch: int | None,
    attention: Attention | None,
    expert_loads: Path | None,
    compare: bool,
    memory: int | None,
    space_name: str | None,
    train: str | None,
    recompute: str | None,
    precision: str | None,
    pipeline: str | None,
    carry: bool,
    joint: bool,
    rewritten: str | None,
    rules: tuple[Path, ...],
    rewrite_rounds: int,
    rewrite_nodes: int,
    rewrite_time: float | None,
    engine: Engine,
    time_limit: float | None,
    work_limit: int | None,
    gap: Fraction,
    output: Path | None,
    as_json: bool,
) -> int:
    """Say whether a strategy for a MODEL or a selection PROBLEM is optimal."""
    clock = start_limit(time_limit, work_limit)
    publisher = publisher.within(clock.late)
    notes: list[str] = []
    settings = framework_settings(strategy)
    layouts = None if settings is not None else tensor_layouts(strategy)
    listed = load_strategy(strategy) if settings is None and layouts is None else None
    kind = (
        "settings" if settings else "layouts" if layouts else "choices" if isinstance(listed, ChoiceList) else "degrees"
    )
    require_combination(AUDIT, kind=kind)
    if settings is not None and train is not None and machine is not None and against is not None:
        model = note_comparison(publisher, subject, batch, notes, attention, compare, True, expert_loads)
        target, shared = with_shared_links(load_machine(machine))
        job = Compares(model, target, machine, train, recompute, precision, memory)
        notes.extend(shared)
        return audit_against(job, (strategy, settings), against, notes, as_json)
    if settings is not None and train is not None and machine is not None:
        model = note_comparison(publisher, subject, batch, notes, attention, compare, True, expert_loads)
        where = space_name and space(space_name)
        target, shared = with_shared_links(load_machine(machine))
        notes.extend(shared)
        if not as_json:
            say(*(f"note: {note}" for note in notes))
        which = recompute or ("none" if settings.recompute is None else settings.recompute.value)
        types = precision or settings.precision
        settings = settings_of_step(settings, model, train, which, types, str(strategy))

        def make(which: str) -> TrainingStep | None:
            return training_of(model, train, None, which, types)

        wanted = PipelineRequest(make, target, pipeline or "", which, (), where or None, memory, gap)
        return audit_pipelined(publisher, wanted, settings, clock, output, as_json)
    with Watch("auditing") as watch:
        if isinstance(listed, ChoiceList):
            if zoo_spec(subject) is not None:
                raise InputError(
                    f"{strategy} is a list of choices, which belongs to a selection problem; for a model "
                    f"write {{operator: {{axis: {{level: degree}}}}}}"
                )
            with clock.phase("tables"):
                problem = load_selection_problem(Path(subject))
            report = carry_out_audit_of_choices(problem, listed, clock, gap, engine, watch)
        else:
            if machine is None:
                raise InputError(
                    "a strategy for a model needs --machine; for a selection problem the strategy is a list of "
                    "choice indices"
                )
            target, shared = with_shared_links(load_machine(machine))
            notes.extend(shared)
            where = space(space_name) if space_name is not None else None
            graph = note_comparison(publisher, subject, batch, notes, attention, compare, False, expert_loads)
            program = (
                graph
                if rewritten is None
                else note_comparison(publisher, rewritten, None, notes, attention, compare, False, expert_loads)
            )
            given = strategy_for(strategy, program, target)
            request = AuditRequest(graph, target, given, where, memory, carry, engine, gap)
            if joint:
                books = tuple(publisher.book(path) for path in rules or DEFAULTS)
                rewrites = Rewrites(books, rewrite_rounds, rewrite_nodes, rewrite_time)
                return audit_program(publisher, program, replace(request, rewrites=rewrites), clock, output, as_json)
            report = carry_out_audit(request, clock, watch, watch.count)
    with Watch("checking"), clock.phase("check"):
        checked = is_confirmed(publisher.within(clock.late, keep=False), report, output)
    written = output if checked and report.certificate is not None else None
    code = Exit(report.exit_code) if checked else Exit.UNDECIDED
    if as_json:
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
        say(render_audit(report, strategy.name))
    else:
        say(render_unconfirmed(report, strategy.name, clock.late()))
    say(*asked_lines(report.best, report.problem))
    say(*(f"note: {note}" for note in notes))
    if written is not None:
        say(f"wrote {written}")
    return code
