"""This module holds the verbs `report` and `diff`: a checked plan, or the difference of two, as one page; `diff` prints
it too.
"""

from __future__ import annotations

from pathlib import Path

import click

from ...models.files.output import write_file
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import combined, force_option, json_option, output_option
from ...models.text import InputError, bytes_text
from ...proofs.publishing.publisher import Publisher
from ..explain.compare import compare, render_comparison
from ..explain.explain import explain
from ..explain.request import rebuilt
from ..explain.terms import PlanTerms
from ..planning.remarks import remarks
from ..report.page import Shown, diff_page, plan_page
from ..selection.model.clock import Clock
from .combinations import DIFF, REPORT
from .explain import plan_argument
from .search_options import asked, limit_options


@click.command("report")
@plan_argument
@output_option("-o", "--output", required=True, help="The page, a file of HTML.")
@force_option
@limit_options()
@json_option
@click.pass_obj
@combined(REPORT)
def report_command(
    publisher: Publisher,
    plan_file: Path,
    output: Path,
    time_limit: float | None,
    work_limit: int | None,
    as_json: bool,
) -> int:
    """Write PLAN as one page to look at: placements, memory, communication, prices of alternatives, certificate."""
    with Watch("reading") as watch:
        shown = _shown(publisher, plan_file, asked(time_limit, work_limit), watch)
    page = plan_page(shown).encode()
    write_file(output, page)
    if as_json:
        emit({"identity": shown.published.identity, "file": str(output), "bytes": len(page)})
        return Exit.DONE
    say(f"wrote {output}: {shown.plan.graph.name} on {shown.plan.machine.name}, {bytes_text(len(page))}")
    return Exit.DONE


@click.command("diff")
@click.argument("first", metavar="PLAN", type=click.Path(path_type=Path))
@click.argument("second", metavar="OTHER", type=click.Path(path_type=Path))
@output_option("-o", "--output", help="A page of it, a file of HTML.")
@force_option
@limit_options()
@json_option
@click.pass_obj
@combined(DIFF)
def diff_command(
    publisher: Publisher,
    first: Path,
    second: Path,
    output: Path | None,
    time_limit: float | None,
    work_limit: int | None,
    as_json: bool,
) -> int:
    """Every term in which two plans of one problem differ, priced; the rows add up to the difference."""
    with Watch("reading") as watch:
        a, b = (
            _shown(publisher, path, asked(time_limit, work_limit), watch, output is not None)
            for path in (first, second)
        )
    ours, theirs = a.explanation.planning.problem, b.explanation.planning.problem
    if ours.sha256() != theirs.sha256():
        raise InputError(
            f"{first} and {second} are of different problems (model, machine, space or limit): nothing to compare"
        )
    planning = a.explanation.planning
    found = compare(ours, PlanTerms(planning), a.explanation.choices, b.explanation.choices)
    if output is not None:
        write_file(output, diff_page(a, b, found).encode())
    if as_json:
        emit({"first": a.published.identity, "second": b.published.identity, **found.to_json()})
        return Exit.DONE
    say(render_comparison(found, str(first), str(second)))
    if output is not None:
        say(f"wrote {output}")
    return Exit.DONE


def _shown(publisher: Publisher, path: Path, clock: Clock, watch: Watch, whole: bool = True) -> Shown:
    """The plan of a file, rebuilt and explained; `whole`: with remarks."""
    plan, _ = publisher.checked_plan(path)
    if not plan.choices.operators:
        raise InputError(f"{path} has no choices: nothing was found that fits its memory limit")
    published = publisher.plan(None, plan, watch.count)
    planning, x = rebuilt(plan)
    found = explain(planning, x, plan.certificate, clock=clock)
    said = remarks(planning, x, clock=clock) if whole else ()
    return Shown(plan, published, found, said)
