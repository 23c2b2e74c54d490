"""Verb `schedule`: the shortest schedule of a pipeline, or a published one and whether a shorter one
exists.

The status it prints is the checker's, handed back by `publish`.  Exit codes as of `audit`: 0 optimal, 5 a gap is left,
10 a published schedule is not the shortest and a shorter one is there, 20 it does not fit the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import click

from ...models.files.output import write_file
from ...models.problem.claims import Verdict
from ...models.schedules.actions import action_rows, csv_bytes
from ...models.schedules.pipeline import Pipeline
from ...models.sources.overlap.graph import OverlapGraph, read_overlap
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    Count,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
    require_combination,
)
from ...proofs.publishing.publisher import Published, Publisher
from ...proofs.schedules.file import write_schedule
from ..plans.time_limit import TimeLimit
from ..schedules.drawing import peaks, picture, text
from ..schedules.engines.request import Answer, parse_times, schedule_graph, schedule_pipeline
from ..schedules.options import ScheduleOptions
from ..schedules.overlap import Overlapped
from ..schedules.published import KINDS, orders
from .combinations import SCHEDULE
from .search_options import limit_options, start_limit

SCHEDULE_S = 60.0
"""Seconds of a command that is given no limit."""

CHECK_SHARE = 0.15
"""Of the time limit, kept for the checker."""


@dataclass(frozen=True, kw_only=True)
class ScheduleCommand(ScheduleOptions):
    """The command line of `schedule`."""

    graph: Path | None
    time_limit: float | None
    work_limit: int | None
    output: Path | None
    svg: Path | None
    csv: Path | None
    as_json: bool


@click.command("schedule")
@click.argument("graph", required=False, type=click.Path(path_type=Path))
@click.option("--stages", type=Count(1, 256), help="Stages of the pipeline.")
@click.option("--micro-batches", type=Count(1, 4096), help="Micro-batches of a step.")
@click.option(
    "--times",
    help="Forward, backward for inputs, backward for weights: 1,1,1, or one triple per stage separated by ';'.",
)
@click.option("--send", type=Count(0, (1 << 32) - 1), default=0, show_default=True, help="Time of a send.")
@click.option("--memory", type=Count(1, 1 << 20), help="Most activations that a stage keeps at once; default: any.")
@click.option("--kind", default="best", show_default=True, help=f"best, or {', '.join(KINDS)}.")
@click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt", "cp-sat"]),
    default="native",
    show_default=True,
    help="Who looks for a schedule first: HiGHS, z3 or CP-SAT (extra [solvers]); the proof is native.",
)
@limit_options("Wall-clock seconds, check included. Ctrl-C or SIGTERM ends the search early.", SCHEDULE_S)
@click.option("--machine", help="With a graph: machine for times that nobody published; default: dgx-a100.")
@output_option("-o", "--output", help="Write schedule and proof (.spz).", replaces_results=True)
@output_option("--svg", help="Draw the schedule.")
@output_option("--csv", help="Write the actions of every device for torch.distributed.pipelining.")
@force_option
@json_option
@click.pass_obj
@refuse_combinations(SCHEDULE)
@options_as(ScheduleCommand)
def schedule_command(publisher: Publisher, options: ScheduleCommand) -> int:
    """The shortest schedule of a pipeline with a proof, or a published schedule and whether a shorter one exists; or
    the shortest schedule of a GRAPH of operators and collectives (.json).
    """
    limit = start_limit(options.time_limit, options.work_limit, SCHEDULE_S)
    publisher = publisher.within(limit.late)
    clock = limit.clock.share(1 - CHECK_SHARE)
    require_combination(SCHEDULE, subject="pipeline" if options.graph is None else "graph")
    if options.graph is not None:
        with Watch("scheduling"), limit.phase("search"):
            read = read_overlap(options.graph, options.machine)
            answer, done = schedule_graph(read.problem, options.engine, clock)
        return _publish(
            publisher, answer, options.output, options.svg, options.as_json, limit, _overlap_extra(read, done)
        )
    for name, value in (
        ("--stages", options.stages),
        ("--micro-batches", options.micro_batches),
        ("--times", options.times),
    ):
        if value is None:
            raise click.UsageError(
                f"{name} is missing; write for example schedule --stages 4 --micro-batches 8 --times 1,1,1 --memory 4"
            )
    assert options.stages is not None and options.micro_batches is not None and options.times is not None
    pipe = Pipeline(
        parse_times(options.times, options.stages), options.micro_batches, options.send, options.memory
    ).check()
    with Watch("scheduling"), limit.phase("search"):
        answer = schedule_pipeline(pipe, options.kind, options.engine, clock)
    code = _publish(publisher, answer, options.output, options.svg, options.as_json, limit)
    if options.csv is not None and answer.fits and isinstance(answer.subject, Pipeline):
        given = None if options.kind == "best" else orders(options.kind, answer.subject)
        write_file(options.csv, csv_bytes(action_rows(answer.subject, answer.found.starts, given)))
    return code


def _number(units: int, scale: int) -> int | float:
    value = Fraction(units, scale)
    return int(value) if value.denominator == 1 else float(value)


def _publish(
    publisher: Publisher,
    answer: Answer,
    output: Path | None,
    svg: Path | None,
    as_json: bool,
    limit: TimeLimit,
    extra: Mapping[str, object] | None = None,
) -> Exit:
    found, scale = answer.found, answer.scale
    most = peaks(answer.problem, found.starts)
    shared = answer.subject.chunks if isinstance(answer.subject, Pipeline) else 1
    document: dict[str, object] = {
        "kind": answer.kind,
        "makespan": _number(found.makespan, scale),
        "lower_bound": None,
        "makespan_units": found.makespan,
        "scale": scale,
        "peak_memory": [_number(m, shared) for m in most],
    }
    if svg is not None:
        title = f"{answer.kind}: {answer.problem.name}, makespan {answer.time(found.makespan)}"
        write_file(svg, picture(answer.problem, found.starts, title).encode())
    if not answer.fits:
        return _unfit(answer, document, as_json, limit)
    with Watch("checking"), limit.phase("check"):
        published = publisher.publish(output, write_schedule(None, answer.certificate()))
    status, code = _outcome(published, answer)
    document |= {"status": status, **_published_json(published, answer, limit), **(extra or {})}
    if answer.asked is not None:
        document["engine"] = answer.asked.to_json(lambda units: _number(units, scale), _best(answer))
    if answer.shorter is not None:
        document["better"] = _number(answer.shorter, scale)
    if as_json:
        emit(document)
        return code
    for line in text(answer.problem, found.starts):
        say(line)
    say(f"{answer.kind}: {_sentence(published, answer)}")
    if isinstance(answer.subject, Pipeline):
        say(f"most activations kept, by device: {', '.join(str(Fraction(m, shared)) for m in most)}")
    for word, value in (extra or {}).items():
        say(f"{word.replace('_', ' ')}: {_listed(value)}")
    if answer.asked is not None:
        say(*answer.asked.lines(answer.time, _best(answer)))
    if published.path is not None:
        say(f"wrote {published.path} ({published.size} bytes) in {limit.elapsed_s:.1f} s", *published.advice)
    return code


def _published_json(published: Published, answer: Answer, limit: TimeLimit) -> dict[str, object]:
    """What was proved of a schedule, and the time that it took."""
    least = published.lower_bound
    return {
        "lower_bound": None if least is None else _number(least, answer.scale),
        "gap": None if least is None else 1 - least / answer.found.makespan,
        "verdict": published.verdict.value,
        "identity": published.identity,
        "certificate": None if published.path is None else str(published.path),
        **published.to_json(),
        **limit.to_json(),
    }


def _listed(value: object) -> object:
    """Names, perhaps with how often, in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{n} {name}" for name, n in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _best(answer: Answer) -> int:
    """The shortest makespan that is known."""
    return answer.found.makespan if answer.shorter is None else answer.shorter


def _overlap_extra(read: OverlapGraph, done: Overlapped) -> dict[str, object]:
    """What is exposed: seconds of the schedule in which nothing is computed."""
    scale = read.problem.scale
    return {
        "machine": read.machine.name,
        "computing": read.busy / scale,
        "communicating": sum(t.time for t in read.problem.tasks if t.streams != (0,)) / scale,
        "exposed": (done.found.makespan - read.busy) / scale,
        "exposed_at_least": max(0, done.found.lower_bound - read.busy) / scale,
        "program_order": done.program_order / scale,
        "greedy_prefetch": done.greedy / scale,
        "compute_times_of_model": read.modelled_compute,
        "collective_times_of_table": read.tabled,
        "collective_times_of_model": read.modelled_collectives,
        **({"priced_by_the_machine": dict(read.priced)} if read.priced else {}),
        **({"groups_of_consecutive_ranks": list(read.apart)} if read.apart else {}),
        "memory_limit": read.problem.limits[0],
    }


def _outcome(published: Published, answer: Answer) -> tuple[str, Exit]:
    if published.verdict is not Verdict.PROVED or published.cost is None or published.lower_bound is None:
        return "feasible", Exit.UNDECIDED
    if published.lower_bound >= published.cost:
        return "optimal", Exit.DONE
    return ("refuted", Exit.REFUTED) if answer.shorter is not None else ("feasible", Exit.UNDECIDED)


def _sentence(published: Published, answer: Answer) -> str:
    if not published.checked:
        return f"makespan {answer.time(answer.found.makespan)}, as the search says: {published.reason}"
    if published.cost is None or published.lower_bound is None:
        return f"the checker says {published.verdict.value}: {published.reason}"
    makespan, bound = answer.time(published.cost), answer.time(published.lower_bound)
    if published.lower_bound >= published.cost:
        return f"makespan {makespan}, proved: none is shorter"
    gap = f"lower bound {bound}, gap {1 - published.lower_bound / published.cost:.2%}"
    if answer.shorter is not None:
        return f"makespan {makespan}, not the shortest: {answer.time(answer.shorter)} is possible; {gap}"
    return f"makespan {makespan}, {gap}"


def _unfit(answer: Answer, document: dict[str, object], as_json: bool, limit: TimeLimit) -> Exit:
    most = max(x for x in answer.problem.limits if x is not None)
    shared = answer.subject.chunks if isinstance(answer.subject, Pipeline) else 1
    need = Fraction(max(peaks(answer.problem, answer.found.starts)), shared)
    if as_json:
        emit(
            {
                **document,
                "status": "infeasible",
                "needs": float(need),
                "seconds": round(limit.elapsed_s, 3),
                "processor_seconds": round(limit.processor_s, 3),
            }
        )
    else:
        say(f"{answer.kind}: keeps {need} activations on one stage, the memory is for {Fraction(most, shared)}")
    return Exit.INFEASIBLE
