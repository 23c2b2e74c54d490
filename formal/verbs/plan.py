"""Verbs of the formal room: `plan` and `solve`.  The status they print is the checker's, handed back by `publish`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, cast

import click
import numpy as np

from ...models.layout.placement import VOCABULARIES, space
from ...models.machine.machine import load_machine
from ...models.problem.claims import Infeasible, Verdict
from ...models.problem.selection_problem import SelectionProblem, Usage
from ...models.problem.unit import rounding_bound, rounding_text
from ...models.program.graph import Graph
from ...models.sources.load import Attention, load_model
from ...models.sources.training import TrainingStep, build_step
from ...models.sources.training.recompute import blocks
from ...models.sources.zoo import default_batch
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    AMOUNT,
    BATCH,
    SECONDS,
    SHARE,
    THREADS,
    attention_option,
    force_option,
    output_option,
)
from ...models.text import InputError, bytes_text, seconds_text
from ...models.verbs.describe import training_of
from ...models.verbs.optimizer import LOSS, OPTIMIZER
from ...proofs.publishing.publisher import Published, Publisher
from ...proofs.selection.load import load_selection_problem
from ..explain.cost_table import cost_table, render_cost_table
from ..planning.given import given_schedules, plan_strategy, render_given
from ..planning.plan import Planned, fitting_space, plan_graph
from ..planning.recompute import Attempt, plan_recomputed, render_attempts
from ..planning.remarks import Batch, remarks
from ..planning.schedules import Propagated
from ..planning.time_limit import TimeLimit, check_seconds
from ..selection.answer import Answer
from ..selection.engines.consult import conversation
from ..selection.model.clock import Clock
from ..selection.model.interrupt import interruptible
from ..selection.solve import solve
from ..selection.tree.infeasible import least_use
from .options import print_options

EngineName = Literal["native", "ilp", "smt"]

INTERRUPTED = (
    "\ninterrupted: the best answer so far is checked and written (Ctrl-C again: end at once, nothing is written)\n"
)
"""Said when the first Ctrl-C arrives; the exit code is 5 unless the answer is proved."""

engine_option = click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt"]),
    default="native",
    show_default=True,
    help="Who looks for the solution; the proof is native. What was asked and answered is printed.",
)
time_option = click.option(
    "--time-limit",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="Seconds of the wall for tables and search; then the best plan known is checked and written. Ctrl-C ends them "
    "early, a second Ctrl-C everything.",
)
gap_option = click.option(
    "--gap",
    type=SHARE,
    default="0",
    show_default=True,
    help="Stop when (cost - bound) / cost is at most this (0.01 or 1%).",
)
threads_option = click.option(
    "--threads",
    type=THREADS,
    default=2,
    show_default=True,
    help="Threads of the search; plain elimination and the search for large problems with memory rows use one.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command("plan")
@click.argument("model")
@click.option("--machine", required=True, help="Built-in name, name:4x8, 4x8, or a TOML file.")
@click.option("--train", type=OPTIMIZER, help="Plan one training step: forward, backward, optimizer.")
@click.option("--loss", help=LOSS)
@click.option(
    "--recompute",
    default="none",
    show_default=True,
    help="With --train: blocks computed again in the backward pass: none, all, globs such as 'layer*', or auto (with "
    "--memory: as many as pay).",
)
@click.option("--batch", type=BATCH, help="Batch size.")
@attention_option
@click.option("--memory", type=AMOUNT, help="Memory limit per device, such as 80GiB.")
@click.option("--space", "space_name", help="complete, two-per-level or one-per-level, optionally with ',uneven'.")
@click.option(
    "--vocabulary",
    type=click.Choice(VOCABULARIES),
    help="Only placements that this framework can say; the claim names the restriction.",
)
@engine_option
@time_option
@gap_option
@threads_option
@click.option("--explain-cost", is_flag=True, help="Print flops, bytes and the deciding formula of every operator.")
@click.option(
    "--strategy",
    "strategy_file",
    type=click.Path(path_type=Path),
    help="Take these schedules, carried to what they are joined to; search for nothing.",
)
@click.option("--joint", is_flag=True, help="Optimise algebra and parallelism together.")
@output_option("-o", "--output", required=True, help="The plan file.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def plan_command(
    publisher: Publisher,
    model: str,
    machine: str,
    train: str | None,
    loss: str | None,
    recompute: str,
    batch: int | None,
    attention: Attention | None,
    memory: int | None,
    space_name: str | None,
    vocabulary: str | None,
    engine: str,
    time_limit: float,
    gap: Fraction,
    threads: int,
    explain_cost: bool,
    strategy_file: Path | None,
    joint: bool,
    output: Path,
    as_json: bool,
) -> int:
    """Plan MODEL (zoo name, ONNX file, FILE.py:NAME or JSON graph) on a machine and prove what is said about the
    plan.
    """
    clock = started(time_limit)
    if joint:
        raise InputError("--joint is not supported by this version; plan the graph as it is")
    if strategy_file is not None and engine != "native":
        raise click.UsageError(
            f"--strategy searches for nothing, so there is nothing to ask {engine} about: give one of the two"
        )
    if recompute == "auto" and (memory is None or strategy_file is not None):
        raise click.UsageError(
            "--recompute auto weighs time against memory and searches: give --memory, and no --strategy"
        )
    notes: list[str] = []
    forward = graph = load_model(model, batch, notes.append, attention)
    step = training_of(graph, train, loss, "none" if recompute == "auto" and train is not None else recompute)
    if step is not None:
        graph = step.graph
    target = load_machine(machine)
    where = space(space_name) if space_name is not None else None
    if vocabulary is not None:
        where = space(f"{(where or fitting_space(graph, target)).name},{vocabulary}")
    limit, allowed = memory, gap
    given: Propagated | None = None
    attempts: tuple[Attempt, ...] = ()
    with Watch("planning") as watch:
        if recompute == "auto" and train is not None:

            def candidate(which: str) -> TrainingStep:
                return build_step(forward, train or "", loss, recompute=which)

            def planner(made: Graph, seconds: float | None) -> Planned:
                return plan_graph(
                    made,
                    target,
                    where,
                    limit,
                    engine=cast("EngineName", engine),
                    time_limit_s=seconds,
                    gap=allowed,
                    threads=threads,
                    progress=watch,
                    notify=watch.count,
                    limit=clock,
                )

            chosen = plan_recomputed(tuple(blocks(forward)), candidate, planner, None, clock.clock)
            planned, step, attempts = chosen.planned, chosen.step, chosen.attempts
            graph = step.graph
        elif strategy_file is not None:
            planned, given = plan_strategy(
                graph,
                target,
                given_schedules(strategy_file),
                where,
                limit,
                threads=threads,
                progress=watch,
                notify=watch.count,
                limit=clock,
            )
        else:
            planned = plan_graph(
                graph,
                target,
                where,
                limit,
                engine=cast("EngineName", engine),
                gap=allowed,
                threads=threads,
                progress=watch,
                notify=watch.count,
                limit=clock,
            )
    problem, answer = planned.planning.problem, planned.answer
    tried = render_attempts(attempts, problem)
    if planned.plan is None:
        if not as_json:
            say(*tried)
        return _no_solution(publisher, problem, answer, None, as_json, clock, [op.name for op in graph.operators])
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.plan(output, planned.plan, watch.count)
    code, status = _outcome(published, allowed)
    rows = cost_table(planned.planning, answer.solution) if explain_cost and answer.solution is not None else ()
    taken = default_batch(model) if batch is None else batch
    with Watch("looking beyond the proof"), clock.phase("remarks"):
        said = (
            ()
            if answer.solution is None
            else remarks(
                planned.planning, answer.solution, None if taken is None else Batch(taken, batch is None), clock.clock
            )
        )
    if as_json:
        document = _document(status, published, problem, allowed, clock)
        if explain_cost:
            document["operators"] = [r.to_json() for r in rows]
        emit(
            {
                **document,
                "plan": str(output),
                "identity": published.identity,
                "space": problem.space,
                "assumptions": list(problem.assumptions),
                "rounding_bound": rounding_bound(problem),
                **(
                    {}
                    if step is None
                    else {"loss": step.loss, "trained": len(step.trained), "recomputed": list(step.recomputed)}
                ),
                **(
                    {}
                    if limit is None or answer.solution is None
                    else {"peak_bytes": problem.peak_of(answer.solution)[0], "limit_bytes": limit}
                ),
                **({"attempts": [a.to_json() for a in attempts]} if attempts else {}),
                **({"notes": notes} if notes else {}),
                **asked_json(answer),
                "remarks": [r.to_json() for r in said],
            }
        )
        return code
    say(
        f"{graph.name} on {target.name} {'x'.join(map(str, target.hierarchy))}: {len(graph.operators)} operators, "
        f"{len(problem.vertices)} decisions"
    )
    say(*(f"note: {note}" for note in notes))
    if step is not None:
        say(f"{train}: {step.loss}; {len(step.trained)} weights are updated")
        if step.recomputed:
            say(f"recomputed for the backward pass: {', '.join(step.recomputed)}")
    if tried:
        say("numbers of blocks that were tried; every claim is about one graph, none about all of them:", *tried)
    if explain_cost:
        say(render_cost_table(planned.planning, rows))
    if given is not None:
        say(render_given(given, len(graph.operators)))
    say(_sentence(published, problem), *asked_lines(answer, problem))
    if limit is not None and answer.solution is not None:
        peak, at = problem.peak_of(answer.solution)
        say(
            f"memory: {bytes_text(peak)} of {bytes_text(limit)} on the fullest device, at operator "
            f"{graph.operators[min(at, len(graph.operators) - 1)].name}"
        )
    say(f"space {problem.space}; assumptions: {', '.join(problem.assumptions)}")
    say(rounding_text(problem))
    say(*(f"remark: {r.words}" for r in said))
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}")
    return code


@click.command("solve")
@click.argument("problem_file", metavar="PROBLEM", type=click.Path(path_type=Path), required=False)
@click.option("--options", "show_options", is_flag=True, help="Print the constants of the search, solve nothing.")
@engine_option
@time_option
@gap_option
@threads_option
@output_option("-o", "--output", help="The certificate file.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
def solve_command(
    publisher: Publisher,
    problem_file: Path | None,
    show_options: bool,
    engine: str,
    time_limit: float,
    gap: Fraction,
    threads: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Solve a selection problem and write a certificate."""
    if show_options:
        return print_options(as_json)
    if problem_file is None:
        raise click.MissingParameter(param_type="argument", param_hint="'PROBLEM'")
    clock = started(time_limit)
    with clock.phase("tables"):
        problem = load_selection_problem(problem_file)
    clock.hold_back(check_seconds(problem, clock))
    allowed = gap
    with Watch("solving", problem.scale) as watch, clock.phase("search"):
        answer = solve(
            problem,
            clock=clock.clock.at_most(None),
            gap=allowed,
            engine=cast("EngineName", engine),
            progress=watch,
            threads=threads,
        )
    if answer.solution is None or answer.certificate is None:
        return _no_solution(publisher, problem, answer, output, as_json, clock)
    with Watch("checking"), clock.phase("check"):
        published = publisher.certificate(output, answer.certificate, problem)
    code, status = _outcome(published, allowed)
    if as_json:
        emit(
            {
                **_document(status, published, problem, allowed, clock),
                "solution": list(answer.solution),
                **asked_json(answer),
            }
        )
        return code
    say(f"{problem.name}: {len(problem.vertices)} vertices, {len(problem.edges)} edges")
    say(_sentence(published, problem), *asked_lines(answer, problem))
    if published.path is not None:
        say(f"wrote {published.path} ({published.size} bytes) in {clock.words()}")
    return code


def started(seconds: float) -> TimeLimit:
    """The time limit of a command, from its first line on.  Ctrl-C lets it pass, until the command ends."""
    limit = TimeLimit(Clock(seconds), checks=True, announce=lambda text: say(f"note: {text}", err=True))
    click.get_current_context().with_resource(interruptible(limit.clock, INTERRUPTED))
    return limit


def cost_text(units: int, problem: SelectionProblem) -> str:
    """A cost of the problem for people: a time if its unit is the second, else the number."""
    if problem.unit_name == "s":
        return seconds_text(units, problem.scale)
    return f"{units}" if problem.scale == 1 else f"{float(Fraction(units, problem.scale)):.12g}"


def asked_lines(answer: Answer, problem: SelectionProblem) -> list[str]:
    """What another engine was asked and answered; nothing when none was."""
    return conversation(answer.asked, answer.cost, lambda units: cost_text(units, problem))


def asked_json(answer: Answer) -> dict[str, object]:
    """The same as data, under `engine`."""
    return {"engine": [a.to_json() for a in answer.asked]} if answer.asked else {}


def _outcome(published: Published, allowed: Fraction) -> tuple[Exit, str]:
    if published.verdict is not Verdict.PROVED or published.cost is None or published.lower_bound is None:
        return Exit.UNDECIDED, "feasible"
    if published.lower_bound >= published.cost:
        return Exit.DONE, "optimal"
    return (
        Exit.DONE if published.cost - published.lower_bound <= allowed * abs(published.cost) else Exit.UNDECIDED
    ), "feasible"


def _document(
    status: str, published: Published, problem: SelectionProblem, allowed: Fraction, clock: TimeLimit
) -> dict[str, object]:
    gap = None
    if published.cost is not None and published.lower_bound is not None:
        gap = (
            0.0
            if published.cost <= published.lower_bound
            else (published.cost - published.lower_bound) / max(1, abs(published.cost))
        )
    return {
        "status": status,
        "cost": published.cost,
        "lower_bound": published.lower_bound,
        "scale": problem.scale,
        "gap": gap,
        "seconds": round(clock.clock.seconds(), 3),
        "phases": clock.rounded(),
        "certificate": None if published.path is None else str(published.path),
        "problem_sha256": problem.sha256(),
    }


def _sentence(published: Published, problem: SelectionProblem) -> str:
    if published.cost is None:
        return f"the checker says {published.verdict.value}: {published.reason}"
    cost = cost_text(published.cost, problem)
    if published.lower_bound is None:
        return f"cost {cost}; no lower bound proved"
    if published.lower_bound >= published.cost:
        return (
            f"cost {cost}, proved optimal over the space {problem.space!r} (checked: {published.cost} of "
            f"1/{problem.scale})"
        )
    gap = (published.cost - published.lower_bound) / max(1, abs(published.cost))
    return f"cost {cost}, proved within {gap:.3%} of optimal (lower bound {cost_text(published.lower_bound, problem)})"


def _no_solution(
    publisher: Publisher,
    problem: SelectionProblem,
    answer: Answer,
    output: Path | None,
    as_json: bool,
    clock: TimeLimit,
    steps: Sequence[str] = (),
) -> int:
    with clock.phase("check"):
        published = None if answer.certificate is None else publisher.certificate(output, answer.certificate, problem)
    claim = None if answer.certificate is None else answer.certificate.claim
    infeasible = published is not None and published.verdict is Verdict.PROVED and isinstance(claim, Infeasible)
    status = "infeasible" if infeasible else "unknown"
    document: dict[str, object] = {
        "status": status,
        "cost": None,
        "lower_bound": published.lower_bound if published and not infeasible else None,
        "scale": problem.scale,
        "gap": None,
        "seconds": round(clock.clock.seconds(), 3),
        "phases": clock.rounded(),
        "certificate": None if published is None or published.path is None else str(published.path),
        "problem_sha256": problem.sha256(),
    }
    if isinstance(claim, Infeasible) and infeasible:
        document["conflict"] = conflict(problem, claim)
    if as_json:
        emit(document)
    elif isinstance(claim, Infeasible) and infeasible:
        say(f"{problem.name}: proved infeasible")
        for line in conflict_lines(problem, claim, steps):
            say("  " + line)
    else:
        known = (
            "nothing is proved"
            if published is None or published.lower_bound is None
            else f"none costs less than {cost_text(published.lower_bound, problem)} (checked)"
        )
        say(f"{problem.name}: no solution found within the time limit; {known}. Give it more time with --time-limit.")
        for line in _room(problem, steps):
            say("  " + line)
    return Exit.INFEASIBLE if infeasible else Exit.UNDECIDED


def conflict(problem: SelectionProblem, claim: Infeasible) -> dict[str, object]:
    """The conflict of an infeasible problem as data."""
    rows = [
        {
            "step": t,
            "least_use": sum(int(u.amount.min()) for u in problem.usages if u.start <= t < u.end),
            "tensors": [u.name or problem.vertices[u.vertex].name for u in _largest(problem, t)],
        }
        for t in claim.steps
    ]
    return {
        "limit": problem.limit,
        "least_known_limit": claim.least_limit,
        "rows": rows,
        "vertices": [problem.vertices[v].name for v in claim.vertices[:20]],
    }


def conflict_lines(problem: SelectionProblem, claim: Infeasible, steps: Sequence[str] = ()) -> list[str]:
    """The conflict in words: which steps (operators `steps`, if they have names), which tensors, which limit, what
    would work.
    """
    lines = []
    use = {t: sum(int(u.amount.min()) for u in problem.usages if u.start <= t < u.end) for t in claim.steps}
    for t in sorted(use, key=lambda t: (-use[t], t))[:5]:
        names = ", ".join(
            f"{u.name or problem.vertices[u.vertex].name} ({int(u.amount.min())})" for u in _largest(problem, t)
        )
        at = f"step {t}" + (f" ({steps[t]})" if t < len(steps) else "")
        over = (
            ""
            if problem.limit is not None and use[t] > problem.limit
            else " (less, but not with what the other steps need)"
        )
        lines.append(
            f"{at}: even the smallest choices use {use[t]}, the limit is {problem.limit}{over}; largest: {names}"
        )
    if not claim.steps:
        lines.append(
            "no combination of choices is allowed and fits; vertices involved: "
            + ", ".join(problem.vertices[v].name for v in claim.vertices[:10])
        )
    if claim.least_limit is not None:
        lines.append(f"the least limit for which a solution is known is {claim.least_limit}")
    return lines


def _room(problem: SelectionProblem, steps: Sequence[str]) -> list[str]:
    """What is known about whether anything fits: the step where the smallest choices need most."""
    events = np.array(problem.events(), dtype=np.int64)
    if problem.limit is None or not events.size:
        return []
    least = least_use(problem, events)
    k, limit = int(least.argmax()), problem.limit
    at = int(events[k])
    named = f"step {at}" + (f" ({steps[at]})" if at < len(steps) else "")
    fits = "so that something may fit" if int(least[k]) <= limit else "so that nothing fits"
    return [f"{named}: the smallest choices alone use {int(least[k])}, the limit is {limit}, {fits}"]


def _largest(problem: SelectionProblem, step: int) -> list[Usage]:
    live = [u for u in problem.usages if u.start <= step < u.end]
    return sorted(live, key=lambda u: (-int(u.amount.min()), u.vertex))[:5]
