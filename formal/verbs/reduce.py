"""The verb `reduce`: all reduction programs of a request, and the cheapest one with a proof that no
program of any
length is cheaper.  The status that is printed is the checker's, handed back by `publish`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from ...models.collective_programs.parallelism import Hierarchy, PlacementProblem
from ...models.collective_programs.programs import words
from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, Watch, say
from ...models.terminal.options import AMOUNT, force_option, json_option, options_as, output_option, refuse_combinations
from ...models.text import bytes_text, seconds_text
from ...proofs.collective_programs.file import write_reduction
from ...proofs.publishing.publisher import Published, Publisher
from ..collective_programs.asked import engine_json, engine_lines
from ..collective_programs.options import ProgramOptions
from ..collective_programs.request import Reduced, reduce_axes, reduce_nodes
from .combinations import REDUCE
from .reduction_options import (
    algorithm_option,
    axes_option,
    certificate_option,
    engine_option,
    hierarchy_option,
    machine_option,
    matrix,
    model_option,
    order_option,
    reading_option,
    sizes,
)
from .reduction_results import document, draw, finish, name, row, table


@dataclass(frozen=True, kw_only=True)
class ReduceOptions(ProgramOptions):
    """The command line of `reduce`."""

    hierarchy: str | None
    axes: str | None
    over: str | None
    matrix: str | None
    nodes: str | None
    payload: int
    synthesis: str
    svg: Path | None
    listed: bool
    output: Path | None
    as_json: bool


@click.command("reduce")
@hierarchy_option
@axes_option
@click.option("--reduce", "over", help="Axes to reduce over, such as 0,2.")
@click.option("--matrix", help="Only this placement, such as '[[2 4] [1 4]]'; default: all.")
@click.option(
    "--nodes",
    help="Instead of a hierarchy: nodes with different numbers of devices, such as 4,4,2; all of them reduce.",
)
@machine_option
@click.option("--bytes", "payload", type=AMOUNT, default="2GiB", show_default=True, help="Bytes per device.")
@algorithm_option
@model_option
@order_option
@reading_option
@click.option(
    "--synthesis",
    type=click.Choice([h.value for h in Hierarchy]),
    default=Hierarchy.COLLAPSED.value,
    show_default=True,
    help="Synthesis hierarchy of the paper.",
)
@engine_option
@output_option("--svg", help="Draw who talks to whom in the best program.")
@click.option("--list", "listed", is_flag=True, help="List every program of every placement.")
@certificate_option
@force_option
@json_option
@click.pass_obj
@refuse_combinations(REDUCE)
@options_as(ReduceOptions)
def reduce_command(publisher: Publisher, options: ReduceOptions) -> int:
    """All reduction programs of a request, and the cheapest one with a proof that no program of any length is
    cheaper.
    """
    start = time.monotonic()
    how = options.how()
    with Watch("synthesizing"):
        if options.nodes is not None:
            nodes = sizes(options.nodes, "--nodes", ",")
            made = reduce_nodes(nodes, options.machine, options.payload, how)
        else:
            hierarchy, axes = sizes(options.hierarchy, "--hierarchy", "x"), sizes(options.axes, "--axes", ",")
            over = sizes(options.over, "--reduce", ",", 0)
            only = None if options.matrix is None else matrix(options.matrix)
            problem, tree = PlacementProblem(hierarchy, axes), Hierarchy(options.synthesis)
            made = reduce_axes(problem, over, only, options.machine, options.payload, how, tree)
        published = publisher.publish(options.output, write_reduction(None, made.certificate))
    return _show(options, made, published, start)


def _show(options: ReduceOptions, made: Reduced, published: Published, start: float) -> int:
    rows, spec, winner = made.rows, made.spec, made.winner
    scale = spec.model().scale
    proved = published.verdict is Verdict.PROVED
    data: dict[str, object] = {
        **document(winner, proved),
        "programs": sum(f.best.count for f in rows),
        "reading": options.reading,
        "scale": scale,
        "matrices": [document(f, proved) for f in rows],
        "model": spec.model().name,
        "bytes": spec.payload,
        **engine_json(made.asked),
    }
    if options.listed:
        data["listed"] = [[words(p, f.request.system().tree) for p in f.best.graph.programs()] for f in rows]
    if options.svg is not None and winner.best.program is not None:
        draw(options.svg, winner.best, made.hierarchy)
    if not options.as_json:
        say(
            f"{data['programs']} programs (reading {options.reading!r}) for {len(rows)} placement(s) on "
            f"{spec.machine.name}, {spec.algorithm.value}, {bytes_text(spec.payload)} per device"
        )
        table(
            [["", "placement", "order", "programs", "one AllReduce", "cheapest", "program"]]
            + [row(f, f is winner, scale) for f in rows]
        )
        if options.listed:
            for f in rows:
                say(name(f.request))
                for program in f.best.graph.programs():
                    say(f"  {words(program, f.request.system().tree)}")
        if winner.best.cost is None:
            say(f"no program of any length does this; that is {published.verdict.value}")
        else:
            say(
                f"cheapest: {seconds_text(winner.best.cost, scale)}; that no program of any length is cheaper is "
                f"{published.verdict.value}"
            )
        say(*engine_lines(made.asked))
    code = finish(published, data, options.as_json, start)
    return Exit.INFEASIBLE if code is Exit.DONE and winner.best.cost is None else code
