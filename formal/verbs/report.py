"""The verbs `report` and `diff`: a checked plan, or the difference of two, as one page; `diff` prints
it too.
"""

from __future__ import annotations

from pathlib import Path

import click

from ...models.files.output import write_file
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import force_option, json_option, output_option, refuse_combinations
from ...models.text import bytes_text
from ...proofs.plan.bundle import Plan
from ...proofs.publishing.publisher import Opened, Publisher
from ..explain.compare import compare, render_comparison
from ..explain.differing import differing, render_differing
from ..explain.explain import explain
from ..explain.request import problem_of
from ..explain.terms import PlanTerms
from ..plans.remarks import remarks
from ..report.page import PageSubject, diff_page, plan_page
from ..report.parts import parts_diff_page, parts_page
from ..selection.model.clock import Clock
from .combinations import DIFF, REPORT
from .explain import plan_argument
from .search_options import clock_of, limit_options, reading


@click.command("report")
@plan_argument
@output_option("-o", "--output", required=True, help="The page, a file of HTML.")
@force_option
@limit_options()
@json_option
@click.pass_obj
@refuse_combinations(REPORT)
def report_command(
    publisher: Publisher,
    plan_file: Path,
    output: Path,
    time_limit: float | None,
    work_limit: int | None,
    as_json: bool,
) -> int:
    """Write PLAN as one page to look at: placements, memory, communication, prices of alternatives, certificate."""
    clock = reading(time_limit, work_limit)
    with Watch("reading"):
        found = publisher.open(plan_file).with_choices()
        if isinstance(found.held, Plan):
            page = plan_page(_shown(found, found.held, clock)).encode()
        else:
            page = parts_page(found).encode()
    write_file(output, page)
    if as_json:
        emit({"identity": found.identity, "file": str(output), "bytes": len(page)})
        return Exit.DONE
    say(f"wrote {output}: {found.held.graph.name} on {found.held.machine.name}, {bytes_text(len(page))}")
    return Exit.DONE


@click.command("diff")
@click.argument("first", metavar="PLAN", type=click.Path(path_type=Path))
@click.argument("second", metavar="OTHER", type=click.Path(path_type=Path))
@output_option("-o", "--output", help="A page of it, a file of HTML.")
@force_option
@limit_options()
@json_option
@click.pass_obj
@refuse_combinations(DIFF)
def diff_command(
    publisher: Publisher,
    first: Path,
    second: Path,
    output: Path | None,
    time_limit: float | None,
    work_limit: int | None,
    as_json: bool,
) -> int:
    """Every term in which two plans of one problem differ, priced; the rows add up to the difference.  Of plans of one
    model on one machine otherwise (stages, streams, submeshes, rewritten programs, other spaces and limits): what a
    step takes, and every operator that is placed otherwise.
    """
    clock = reading(time_limit, work_limit)
    with Watch("reading"):
        one, other = publisher.open(first).with_choices(), publisher.open(second).with_choices()
        if not (isinstance(one.held, Plan) and isinstance(other.held, Plan)):
            return _apart(one, other, output, as_json)
        again = clock if work_limit is None else clock_of(None, work_limit)
        a = _shown(one, one.held, clock.share(0.5) if work_limit is None else clock, output is not None)
        b = _shown(other, other.held, again, output is not None)
    ours, theirs = a.explanation.planning.problem, b.explanation.planning.problem
    if ours.sha256() != theirs.sha256():
        return _apart(one, other, output, as_json)
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


def _apart(one: Opened, other: Opened, output: Path | None, as_json: bool) -> int:
    """Two plans that are not of one problem of placements."""
    found = differing(one, other)
    if output is not None:
        write_file(output, parts_diff_page(one, other, found).encode())
    if as_json:
        emit({"first": one.identity, "second": other.identity, **found.to_json()})
        return Exit.DONE
    say(*render_differing(found, one.place, other.place))
    if output is not None:
        say(f"wrote {output}")
    return Exit.DONE


def _shown(found: Opened, plan: Plan, clock: Clock, whole: bool = True) -> PageSubject:
    """A checked plan, rebuilt and explained; `whole`: with remarks."""
    planning, x = problem_of(found, plan)
    explained = explain(planning, x, plan.certificate, clock=clock)
    said = remarks(planning, x, clock=clock) if whole else ()
    return PageSubject(plan, found.published, explained, said)
