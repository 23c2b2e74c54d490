"""The verbs `explain` and `sensitivity`: what a checked plan decided, what alternatives cost, how
robust it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import click

from ...models.cost.selection import Planning
from ...models.files.output import write_file
from ...models.machine.difference import builtin_notice
from ...models.machine.machine import Machine
from ...models.problem.claims import Infeasible, Verdict
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    SECONDS,
    SHARE,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
    require_combination,
)
from ...models.text import InputError, join_lines
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.kind import plan_kind
from ...proofs.publishing.placed import parts_of
from ...proofs.publishing.publisher import Opened, Publisher
from ..calibration.parts import calibration_errors
from ..explain.constraints import plan_constraints, render, to_json
from ..explain.cost_table import cost_table, render_cost_table
from ..explain.deviation import best_with, render_deviation
from ..explain.elsewhere import all_programs
from ..explain.error_bounds import error_bound_lines, error_bounds_json
from ..explain.explain import DEFAULT_ERRORS, explain, render_explanation
from ..explain.parallel_graph import picture, priced_graph, render_parallel
from ..explain.request import problem_again, problem_of
from ..explain.sensitivity import sensitivity
from ..explain.sensitivity_text import render_sensitivity
from ..explain.stored_state import render_stored_state, stored_state
from ..plans.remarks import remarks
from ..plans.strategy import parse_config
from ..report.explained import among_json, among_lines, explain_parts
from ..rewriting.joint.gains import gains, lines
from .combinations import EXPLAIN, SENSITIVITY
from .conflict import conflict, conflict_lines
from .search_options import limit_options, reading

GAINS_S = 20.0
"""Seconds at most for planning the program of a joint plan again with a rewriting undone."""

plan_argument = click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))


@dataclass(frozen=True)
class ExplainOptions:
    """The command line of `explain`."""

    plan_file: Path
    op: str | None
    instead: str | None
    errors: tuple[Fraction, ...]
    symbolic: bool
    cost: bool
    state: bool
    pcg: bool
    svg: Path | None
    time_limit: float | None
    work_limit: int | None
    as_json: bool


@click.command("explain")
@plan_argument
@click.option("--op", help="One operator: the exact price of choosing anything else there.")
@click.option(
    "--instead",
    metavar="CONFIG",
    help="With --op: what this placement would cost, re-solved, e.g. 'b over node, h over gpu'.",
)
@click.option(
    "--error",
    "errors",
    type=SHARE,
    multiple=True,
    help="Relative error of the cost model to translate into a bound, e.g. 3%; may be repeated.",
)
@click.option(
    "--symbolic",
    is_flag=True,
    help="With --op: what each rank reads and writes, as formulas in the process coordinates.",
)
@click.option("--cost", is_flag=True, help="Only flops, bytes and the deciding formula of every operator.")
@click.option(
    "--state",
    is_flag=True,
    help="Only how a training step keeps weights, gradients and optimizer state, and what synchronises them.",
)
@click.option(
    "--pcg",
    is_flag=True,
    help="Only the parallel computation graph: operators with degrees; partition, combine, replicate, reduce between.",
)
@output_option("--svg", help="With --pcg: draw it; of a pipelined plan: draw the schedule.")
@force_option
@limit_options()
@json_option
@click.pass_obj
@refuse_combinations(EXPLAIN)
@options_as(ExplainOptions)
def explain_command(publisher: Publisher, options: ExplainOptions) -> int:
    """Show what PLAN decided, where its time goes, and what the best alternative to a choice costs."""
    if (kind := plan_kind(options.plan_file)) is not None:
        require_combination(EXPLAIN, plan_file=kind)
    clock = reading(options.time_limit, options.work_limit)
    opened = publisher.open(options.plan_file)
    plan, identity = opened.held, opened.identity
    if not isinstance(plan, Plan) or opened.published.cost is None:
        return _parts(opened, options.svg, options.as_json)
    notice = builtin_notice(plan.machine)
    about: dict[str, object] = {"identity": identity, **among_json(opened)}
    about |= {"machine_notice": notice} if notice else {}
    if not options.as_json:
        say(*among_lines(opened))
    if notice and not options.as_json:
        say(f"note: the machine is {notice}")
    if options.symbolic and options.op is not None:
        formulas = plan_constraints(plan, options.op)
        return _shown((to_json(formulas), join_lines(render(formulas))), about, options.as_json)
    with Watch("explaining") as watch:
        planning, x = problem_of(opened, plan)
        part: _Said | None = None
        if options.pcg or options.state or options.cost:
            part = _whole_table(
                planning,
                x,
                options.plan_file,
                options.svg,
                "pcg" if options.pcg else "state" if options.state else "cost",
            )
        elif options.op is not None and options.instead is not None:
            config = parse_config(options.instead, tuple(level.name for level in plan.machine.levels))
            change = best_with(planning, x, options.op, config, clock, progress=watch)
            part = change.to_json(), render_deviation(change, planning.problem)
        if part is not None:
            return _shown(part, about, options.as_json)
        own = Fraction(planning.problem.cost_of(x), planning.problem.scale)
        gained = [] if plan.joint is None or options.op is not None else list(gains(plan, own, clock.at_most(GAINS_S)))
        wanted = list(options.errors) or calibration_errors(plan.machine) or DEFAULT_ERRORS
        found = explain(planning, x, plan.certificate, options.op, wanted, clock=clock, progress=watch)
        said = remarks(planning, x, clock=clock) if options.op is None else ()
    if options.as_json:
        rewrites = {"rewrites": [r for g in gained for r in g.to_json()]} if plan.joint is not None else {}
        about |= {} if plan.bars is None else {"bars": error_bounds_json(plan.bars)}
        emit({**about, **found.to_json(), "remarks": [r.to_json() for r in said], **rewrites})
        return Exit.DONE
    if plan.joint is not None:
        say(f"program of {len(plan.joint.egraph.operators)} equal operators; rewritten:", *lines(gained))
    say(render_explanation(found), *([_errors_words(options.errors, plan.machine)] if found.worth else []))
    say(*(f"remark: {r.words}" for r in said))
    if plan.bars is not None and options.op is None:
        say(*error_bound_lines(plan.bars, planning))
    return Exit.DONE


def _errors_words(given: tuple[Fraction, ...], machine: Machine) -> str:
    """Where the errors e come from."""
    if given:
        return "the errors e are those of --error"
    if calibration_errors(machine):
        return "the errors e are the largest mean and largest error of calibrated constants (`machine show`)"
    return "the errors e are examples: none is known of this machine (`machine calibrate` measures them)"


def _whole_table(planning: Planning, x: tuple[int, ...], file: Path, svg: Path | None, what: str) -> _Said:
    """A table of the whole plan: the parallel graph, where parameters are stored, or what every operator costs."""
    match what:
        case "pcg":
            return _parallel_graph(planning, x, planning.graph.name, svg)
        case "state":
            return _stored_state(planning, x, file)
        case _:
            return _costs(planning, x)


def _shown(part: _Said, about: Mapping[str, object], as_json: bool) -> int:
    """One part of an explanation, printed."""
    if as_json:
        emit({**about, **part[0]})
    else:
        say(part[1])
    return Exit.DONE


def _costs(planning: Planning, x: tuple[int, ...]) -> _Said:
    """Where the time of every operator comes from."""
    rows = cost_table(planning, x)
    document: dict[str, object] = {"scale": planning.problem.scale, "operators": [r.to_json() for r in rows]}
    return document, render_cost_table(planning, rows)


_Said = tuple[dict[str, object], str]
"""A part of an explanation as plain data and as text."""


def _parallel_graph(planning: Planning, x: tuple[int, ...], name: str, svg: Path | None) -> _Said:
    """The parallel computation graph, drawn where that is asked for."""
    parallel = priced_graph(planning, x)
    if svg is not None:
        write_file(svg, picture(parallel, name).encode())
    return parallel.to_json(), render_parallel(parallel)


def _stored_state(planning: Planning, x: tuple[int, ...], file: Path) -> _Said:
    """How the state of a training step is kept.  Raises `InputError` for a plan that trains nothing."""
    kept = stored_state(planning, x)
    if not kept:
        raise InputError(f"{file}: the plan trains nothing; make one with 'shardproof plan MODEL --train adam'")
    return {"stored_state": [s.to_json() for s in kept]}, render_stored_state(kept)


def _nothing_fits(opened: Opened, plan: Plan, as_json: bool) -> int:
    """Say which steps need more than there is, of a file whose claim is about a limit that nothing fits."""
    claim, problem = plan.certificate.claim, (opened.planning or problem_again(plan)).problem
    if not isinstance(claim, Infeasible):
        opened.with_choices()
    elif as_json:
        emit({"identity": opened.identity, "status": "infeasible", "conflict": conflict(problem, claim)})
    else:
        steps = [op.name for op in plan.graph.operators]
        say(f"{problem.name}: proved infeasible", *("  " + line for line in conflict_lines(problem, claim, steps)))
    return Exit.DONE


def _parts(opened: Opened, svg: Path | None, as_json: bool) -> int:
    """Say what stages, streams or branches do, and draw the schedule; or why nothing fits."""
    said = opened.published
    if said.verdict is not Verdict.PROVED:
        say(f"note: the checker says {said.verdict.value}: {said.reason}", err=True)
        if said.cost is None:
            if as_json:
                emit({"identity": opened.identity, "status": "unknown", "reason": said.reason})
            return Exit.UNDECIDED
    if isinstance(opened.held, Plan):
        return _nothing_fits(opened, opened.held, as_json)
    with Watch("explaining"):
        explained = explain_parts(opened)
    if svg is not None:
        write_file(svg, explained.drawing().encode())
    if as_json:
        emit({"identity": opened.identity, **among_json(opened), **explained.to_json()})
    else:
        say(*among_lines(opened), *explained.lines())
    return Exit.DONE


@click.command("sensitivity")
@plan_argument
@click.option(
    "--solve-limit",
    type=SECONDS,
    default=15.0,
    show_default=True,
    help="Seconds for one solve, counted ones with --work-limit; beyond it a factor counts as not closed.",
)
@limit_options()
@json_option
@click.pass_obj
@refuse_combinations(SENSITIVITY)
def sensitivity_command(
    publisher: Publisher,
    plan_file: Path,
    solve_limit: float,
    time_limit: float | None,
    work_limit: int | None,
    as_json: bool,
) -> int:
    """Show how far each machine constant may move before PLAN stops being proved optimal."""
    clock = reading(time_limit, work_limit)
    opened = publisher.open(plan_file).with_choices()
    plan, identity = opened.held, opened.identity
    if not isinstance(plan, Plan):
        raise InputError(
            f"{plan_file}: has {parts_of(plan)}: its proof rests on several problems, and constants are moved in one; "
            "give a plan made without --pipeline, --overlap and --submeshes"
        )
    if opened.published.among:
        raise InputError(
            f"{plan_file}: is the best of several plans, whose proofs are about several problems; give one that was "
            "made without --pipeline, --overlap and --submeshes"
        )
    with Watch("testing constants") as watch:
        subject, x = problem_of(opened, plan) if plan.joint is None else all_programs(plan)

        def progress(done: int, total: int, stage: str) -> None:
            watch.label = f"testing constants, {stage}"
            watch.count(done, total)

        found = sensitivity(
            subject,
            x,
            plan.certificate,
            clock=clock,
            solve_limit=solve_limit,
            progress=progress,
        )
    if as_json:
        emit({"identity": identity, **found.to_json()})
    else:
        say(render_sensitivity(found))
    return Exit.DONE if found.complete else Exit.UNDECIDED
