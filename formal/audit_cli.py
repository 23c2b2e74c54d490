"""The verb `audit`: is this strategy optimal?  A proof, a better strategy with the difference, or the best certified gap."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import cast

import click

from ..models.claims import Verdict
from ..models.console import Exit, InputError, Watch, emit, say
from ..models.frontends.load import load_model
from ..models.machine import load_machine
from ..models.options import AMOUNT, BATCH, force_option, output_option
from ..models.placement import space
from ..models.selection import build
from ..models.zoo import ZOO
from ..proofs.load import load_selection_problem
from ..proofs.publisher import Publisher
from .audit import AuditReport, Outcome, audit, audit_problem, render_audit
from .cli import EngineName, engine_option, gap_option, json_option, time_option
from .plan import default_space
from .schedules import propagate
from .strategy import ChoiceList, load_strategy


@click.command("audit")
@click.argument("subject", metavar="MODEL|PROBLEM")
@click.option("--strategy", "strategy_file", required=True, type=click.Path(path_type=Path), help="Strategy file: per operator name or glob, or a list of choices.")
@click.option("--machine", help="For a model: built-in name, name:4x8, 4x8, or a TOML file.")
@click.option("--batch", type=BATCH, help="Batch size of the model.")
@click.option("--memory", type=AMOUNT, help="Memory limit per device, such as 80GiB.")
@click.option("--space", "space_name", help="complete, two-per-level or one-per-level, optionally with ',uneven'.")
@click.option("--propagate", "carry", is_flag=True, help="Carry the schedules to the operators they are joined to, instead of leaving those to the solver.")
@engine_option
@time_option
@gap_option
@output_option("-o", "--output", help="Write the certificate here.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def audit_command(
    publisher: Publisher, subject: str, strategy_file: Path, machine: str | None, batch: int | None, memory: int | None, space_name: str | None,
    carry: bool, engine: str, time_limit: float, gap: Fraction, output: Path | None, as_json: bool,
) -> int:
    """Say whether a strategy for a MODEL or a selection PROBLEM is optimal."""
    start = time.monotonic()
    strategy = load_strategy(strategy_file)
    name = cast("EngineName", engine)
    with Watch("auditing") as watch:
        if isinstance(strategy, ChoiceList):
            if subject in ZOO or machine is not None:
                raise InputError(f"{strategy_file} is a list of choices, which belongs to a selection problem; for a model write {{operator: {{axis: {{level: degree}}}}}}")
            report = audit_problem(load_selection_problem(Path(subject)), strategy, time_limit, gap, name, watch)
        else:
            if machine is None:
                raise InputError("a strategy for a model needs --machine; for a selection problem the strategy is a list of choice indices")
            target = load_machine(machine)
            where = space(space_name) if space_name else default_space(target)
            graph = load_model(subject, batch)
            if carry:
                strategy = propagate(graph, target, strategy).strategy(target)
            planning = build(graph, target, where, memory, watch.count)
            report = audit(planning, strategy, time_limit, gap, name, watch)
        checked = _confirm(publisher, report, output)
    code = Exit(report.exit_code) if checked else Exit.UNDECIDED
    if as_json:
        emit({**report.to_json(), "certificate": str(output) if output is not None and checked else None, "seconds": round(time.monotonic() - start, 3)})
        return code
    say(render_audit(report, strategy_file.name))
    if not checked and report.outcome is not Outcome.UNDECIDED:
        say("the checker did not confirm the certificate: undecided")
    elif output is not None:
        say(f"wrote {output}")
    return code


def _confirm(publisher: Publisher, report: AuditReport, output: Path | None) -> bool:
    """Every answer that rests on a bound is said only after the checker accepted the certificate behind it.

    `refuted` rests on the cost of the better solution, which is evaluated exactly, and, where the strategy leaves operators
    free, on the claim that no completion of it is cheaper: that certificate is checked too.
    """
    if report.outcome is Outcome.UNDECIDED:
        return True
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
