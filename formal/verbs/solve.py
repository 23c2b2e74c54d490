"""The verb `solve`: a selection problem or an e-graph from a file, its certificate into another.
The status that is
printed is the checker's, handed back by `publish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from ...models.egraphs.egraph import EGraph
from ...models.problem.selection_problem import SelectionProblem
from ...models.terminal.console import Watch, emit, say
from ...models.terminal.options import (
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
    require_combination,
)
from ...models.text import InputError
from ...proofs.container.archive import LIMITS, read_file
from ...proofs.container.canonical import ContainerError
from ...proofs.publishing.publisher import Published, Publisher
from ...proofs.selection.load import load_problem
from ..plans.report import amount
from ..plans.time_limit import TimeLimit, check_seconds
from ..selection.engines.encodings.answers import read_answer
from ..selection.question import Engine
from ..selection.solve import solve
from .combinations import SOLVE
from .conflict import no_solution, publish_proof
from .extraction import solve_extraction
from .options import options_given, print_options, set_option
from .results import asked_json, asked_lines, cost_text, document, outcome, sentence
from .search_options import (
    alone_option,
    effort_option,
    engine_option,
    gap_option,
    limit_options,
    start_limit,
    threads_option,
)

ONE_THREAD: Final[dict[Engine, str]] = {"smt": "z3", "cp-sat": "CP-SAT"}
"""Engines that decide alone with one thread, and what they are called."""


def read_known(path: Path, problem: SelectionProblem) -> tuple[int, ...]:
    """The solution in a file.  Raises `InputError` for what is none."""
    try:
        return read_answer(read_file(path, LIMITS.file).decode("utf-8", "replace"), problem)
    except (ContainerError, InputError) as error:
        raise InputError(f"--known {path}: {error}") from None


@dataclass(frozen=True)
class SolveOptions:
    """The command line of `solve`."""

    problem_file: Path | None
    show_options: bool
    engine: Engine
    alone: bool
    time_limit: float | None
    work_limit: int | None
    gap: Fraction
    threads: int
    known: Path | None
    output: Path | None
    as_json: bool


@click.command("solve")
@click.argument("problem_file", metavar="PROBLEM", type=click.Path(path_type=Path), required=False)
@click.option("--options", "show_options", is_flag=True, help="Print the constants of the search, solve nothing.")
@engine_option
@alone_option
@effort_option
@limit_options()
@gap_option
@threads_option
@click.option(
    "--known",
    type=click.Path(path_type=Path),
    help="A solution that the search begins with and is never worse than: numbers of choices (JSON, or toulbar2's), or "
    "what a solver answered to 'shardproof export PROBLEM --to lp|mps|opb|smt2|wcsp'.",
)
@set_option
@output_option("-o", "--output", help="The certificate file.", replaces_results=True)
@force_option
@json_option
@click.pass_obj
@refuse_combinations(SOLVE)
@options_as(SolveOptions)
def solve_command(publisher: Publisher, options: SolveOptions) -> int:
    """Solve a selection problem, or extract a term of least DAG cost from an e-graph, and write a certificate.

    PROBLEM is our JSON, a cost function network (.wcsp), a graphical model (.uai), a linear pseudo-Boolean program
    (.opb), IOPDDL's JSON, PaSE's tables, or an e-graph of the extraction gym, packed or not. --json has `solution`.
    """
    if options.show_options:
        return print_options(options.as_json, options.problem_file)
    if options.problem_file is None:
        raise click.MissingParameter(param_type="argument", param_hint="'PROBLEM'")
    _refuse_threads(options.engine, options.alone)
    clock = start_limit(options.time_limit, options.work_limit)
    publisher = publisher.within(clock.late)
    with clock.phase("tables"):
        problem = load_problem(options.problem_file)
    if isinstance(problem, EGraph):
        require_combination(SOLVE, problem="egraph")
        return solve_extraction(
            publisher, problem, options.problem_file, clock, options.gap, options.output, options.as_json
        )
    begun = None if options.known is None else read_known(options.known, problem)
    clock.hold_back(check_seconds(problem, clock))
    with Watch("solving", lambda units: cost_text(units, problem)) as watch, clock.phase("search"):
        answer = solve(
            problem,
            clock=clock.clock.at_most(None),
            gap=options.gap,
            engine=options.engine,
            alone=options.alone,
            progress=watch,
            threads=options.threads,
            known=() if begun is None else (begun,),
            options=options_given(options.alone),
        )
    with Watch("checking"):
        published = publish_proof(publisher, problem, answer, clock, options.output)
    if answer.solution is None or published is None:
        return no_solution(published, problem, answer, options.as_json, clock, beside=(options.problem_file,))
    code, status = outcome(published, options.gap)
    if options.as_json:
        told = document(status, published, problem, options.gap, clock, (options.problem_file,))
        told |= {"assumptions": list(problem.assumptions)} if problem.assumptions else {}
        told |= {} if begun is None else {"known_cost": problem.cost_of(begun)}
        emit({**told, "solution": list(answer.solution), **asked_json(answer)})
        return code
    say(f"{problem.name}: {len(problem.vertices)} vertices, {len(problem.edges)} edges")
    if begun is not None:
        say(f"known: {amount(problem.cost_of(begun), problem)}, {options.known}")
    assumed = [f"assumed, not checked: {', '.join(problem.assumptions)}"] if problem.assumptions else []
    lines = [sentence(published, problem), *assumed, *asked_lines(answer, problem)]
    say(*lines, *_written(published, options.problem_file, clock))
    return code


def _written(published: Published, problem_file: Path, clock: TimeLimit) -> tuple[str, ...]:
    if published.path is None:
        return ()
    wrote = f"wrote {published.path} ({published.size} bytes) in {clock.words()}"
    return wrote, *published.advice_lines(problem_file)


def _refuse_threads(engine: Engine, alone: bool) -> None:
    """Raises `UsageError` where threads were asked for of an engine alone that has one."""
    asked = click.get_current_context().get_parameter_source("threads") is ParameterSource.COMMANDLINE
    if alone and asked and engine in ONE_THREAD:
        words = f"--alone and --threads do not go together: {ONE_THREAD[engine]} decides with one thread"
        raise click.UsageError(words)
