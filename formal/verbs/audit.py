"""The verb `audit`: is this strategy optimal?  A proof, a better strategy with the difference, or the best
certified gap.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import click

from ...models.cost.limits import check_sizes
from ...models.cost.selection import Planning
from ...models.layout.placement import SpaceError, space
from ...models.machine.machine import load_machine
from ...models.problem.claims import Verdict
from ...models.sources.load import Attention, load_model
from ...models.sources.zoo import ZOO
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import AMOUNT, BATCH, attention_option, force_option, json_option, output_option
from ...models.text import InputError
from ...proofs.publishing.publisher import Publisher
from ...proofs.selection.load import load_selection_problem
from ..explain.audit import AuditReport, Outcome, audit, audit_problem, render_audit
from ..planning.frameworks import framework_flags, strategy_of_flags
from ..planning.plan import fitting_space
from ..planning.schedules import propagate
from ..planning.strategy import ChoiceList, Strategy, StrategyError, load_strategy, resolve
from ..planning.time_limit import check_seconds, tables_in_time
from ..selection.solve import Engine
from .audit_joint import audit_program
from .results import asked_json, asked_lines
from .search_options import engine_option, gap_option, started, time_option


@click.command("audit")
@click.argument("subject", metavar="MODEL|PROBLEM")
@click.option(
    "--strategy",
    "strategy_file",
    required=True,
    type=click.Path(path_type=Path),
    help="Strategy file: per operator name or glob, a list of choices, or Megatron's, DeepSpeed's or FSDP's settings.",
)
@click.option("--machine", help="For a model: built-in name, name:4x8, 4x8, or a TOML file.")
@click.option("--batch", type=BATCH, help="Batch size of the model.")
@attention_option
@click.option("--memory", type=AMOUNT, help="Memory limit per device, such as 80GiB.")
@click.option("--space", "space_name", help="complete, two-per-level or one-per-level, optionally with ',uneven'.")
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
@engine_option
@time_option
@gap_option
@output_option("-o", "--output", help="Write the certificate here.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def audit_command(
    publisher: Publisher,
    subject: str,
    strategy_file: Path,
    machine: str | None,
    batch: int | None,
    attention: Attention | None,
    memory: int | None,
    space_name: str | None,
    carry: bool,
    joint: bool,
    rewritten: str | None,
    engine: Engine,
    time_limit: float,
    gap: Fraction,
    output: Path | None,
    as_json: bool,
) -> int:
    """Say whether a strategy for a MODEL or a selection PROBLEM is optimal."""
    clock = started(time_limit)
    if rewritten is not None and not joint:
        raise click.UsageError("--rewritten is another program of the model: give --joint too")
    flags = framework_flags(strategy_file)
    strategy = Strategy((), str(strategy_file)) if flags is not None else load_strategy(strategy_file)
    with Watch("auditing") as watch:
        if isinstance(strategy, ChoiceList):
            if joint or subject in ZOO or machine is not None:
                raise InputError(
                    f"{strategy_file} is a list of choices, which belongs to a selection problem; for a model "
                    f"write {{operator: {{axis: {{level: degree}}}}}}"
                )
            with clock.phase("tables"):
                problem = load_selection_problem(Path(subject))
            clock.hold_back(check_seconds(problem, clock))
            with clock.phase("search"):
                report = audit_problem(problem, strategy, None, gap, engine, watch, clock.clock)
        else:
            if machine is None:
                raise InputError(
                    "a strategy for a model needs --machine; for a selection problem the strategy is a list of "
                    "choice indices"
                )
            target = load_machine(machine)
            where = space(space_name) if space_name is not None else None
            graph = load_model(subject, batch, attention=attention)
            program = graph if rewritten is None else load_model(rewritten, None, attention=attention)
            if flags is not None:
                strategy = strategy_of_flags(flags, program, target, str(strategy_file))
            default = fitting_space(graph, target)
            check_sizes(graph, target, where or default)
            if carry:
                strategy = propagate(program, target, strategy).strategy(target)
            if joint:
                if (where or default).vocabulary:
                    raise InputError("--joint compares over whole spaces: leave out the vocabulary")
                return audit_program(
                    publisher,
                    graph,
                    program,
                    strategy,
                    target,
                    where or default,
                    memory,
                    gap,
                    engine,
                    clock,
                    output,
                    as_json,
                )
            planning = tables_in_time(graph, target, where, default, memory, clock, watch.count)
            if where is None and planning.space != default and not _inside(strategy, planning):
                clock.announce(f"the strategy is not in the space {planning.space.name!r}; back to {default.name!r}")
                planning = tables_in_time(graph, target, default, default, memory, clock, watch.count)
            clock.hold_back(check_seconds(planning.problem, clock))
            with clock.phase("search"):
                report = audit(planning, strategy, None, gap, engine, watch, clock=clock.clock)
    with Watch("checking"), clock.phase("check"):
        checked = _confirm(publisher, report, output)
    written = output if checked and report.certificate is not None else None
    code = Exit(report.exit_code) if checked else Exit.UNDECIDED
    if as_json:
        emit(
            {
                **report.to_json(),
                **asked_json(report.best),
                "certificate": None if written is None else str(written),
                "seconds": round(clock.clock.seconds(), 3),
                "phases": clock.rounded(),
            }
        )
        return code
    say(render_audit(report, strategy_file.name), *asked_lines(report.best, report.problem))
    if not checked and report.outcome is not Outcome.UNDECIDED:
        say("the checker did not confirm the certificate: undecided")
    elif written is not None:
        say(f"wrote {written}")
    return code


def _inside(strategy: Strategy, planning: Planning) -> bool:
    try:
        resolve(strategy, planning)
    except (SpaceError, StrategyError):
        return False
    return True


def _confirm(publisher: Publisher, report: AuditReport, output: Path | None) -> bool:
    """Every answer that rests on a bound is said only after the checker accepted the certificate behind it.

    `refuted` rests on the cost of the better solution, which is evaluated exactly, and, where the strategy leaves
    operators free, on the claim that no completion of it is cheaper: that certificate is checked too.
    """
    if report.outcome is Outcome.UNDECIDED:  # its bound is said too
        return (
            report.certificate is None
            or publisher.certificate(output, report.certificate, report.problem).verdict is Verdict.PROVED
        )
    if report.certificate is not None:
        published = publisher.certificate(output, report.certificate, report.problem)
        if published.verdict is not Verdict.PROVED and report.outcome is not Outcome.REFUTED:
            return False
    elif report.outcome is not Outcome.REFUTED:
        return False
    if report.outcome is Outcome.REFUTED and report.free:
        if report.completion_certificate is None:
            return False
        return publisher.certificate(None, report.completion_certificate, report.restricted).verdict is Verdict.PROVED
    return True
