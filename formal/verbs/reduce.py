"""This module holds the verb `reduce`: all reduction programs of a request, and the cheapest one with a proof that no
program of any
length is cheaper.  The status that is printed is the checker's, handed back by `publish`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from ...models.collective_programs.cost import Algorithm
from ...models.collective_programs.parallelism import (
    Hierarchy,
    PlacementProblem,
    ReductionRequest,
    check_reduction_axes,
)
from ...models.collective_programs.programs import words
from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, Watch, say
from ...models.terminal.options import AMOUNT, combined, force_option, gathered, json_option, output_option
from ...models.text import bytes_text, seconds_text
from ...proofs.collective_programs.certificate import CostSpec, PlacementCertificate, ReductionCertificate, Term
from ...proofs.collective_programs.file import write_reduction
from ...proofs.publishing.publisher import Published, Publisher
from ..collective_programs.asked import Asked, Engine, engine_json, engine_lines
from ..collective_programs.placement import find_matrices
from ..collective_programs.synthesize import Cost, best_placement, considered, synthesize
from .combinations import REDUCE
from .reduction_options import (
    algorithm_option,
    axes_option,
    certificate_option,
    engine_option,
    hierarchy_option,
    machine,
    machine_option,
    matrix,
    model_option,
    order_option,
    orders,
    reading_option,
    sizes,
    uneven,
)
from .reduction_results import Found, document, draw, finish, found, name, row, table


@dataclass(frozen=True)
class ReduceOptions:
    """The command line of `reduce`."""

    hierarchy: str | None
    axes: str | None
    over: str | None
    matrix: str | None
    nodes: str | None
    machine: str | None
    payload: int
    algorithm: str
    preset: str
    order: str
    reading: str
    synthesis: str
    engine: Engine
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
@combined(REDUCE)
@gathered(ReduceOptions)
def reduce_command(publisher: Publisher, options: ReduceOptions) -> int:
    """All reduction programs of a request, and the cheapest one with a proof that no program of any length is
    cheaper.
    """
    start = time.monotonic()
    if options.nodes is not None:
        return _between_nodes(publisher, options, options.nodes, start)
    problem = PlacementProblem(sizes(options.hierarchy, "--hierarchy", "x"), sizes(options.axes, "--axes", ",")).check()
    over = sizes(options.over, "--reduce", ",", 0)
    check_reduction_axes(problem.axes, over)
    target = machine(options.machine, problem.hierarchy)
    spec = CostSpec(options.preset, target, options.payload, Algorithm(options.algorithm))
    model, tried, tree = spec.model(), orders(options.order), Hierarchy(options.synthesis)
    every = options.matrix is None
    matrices, asked = (
        find_matrices(problem, options.engine) if every else ((problem.require(matrix(options.matrix or "")),), None)
    )
    placement = PlacementCertificate(problem, matrices) if every else None
    with Watch("synthesizing"):
        if placement is not None and tree is Hierarchy.COLLAPSED:
            best, parts, programs = best_placement(
                placement, [Cost(0, model)], [Term(over, 0)], tried, options.reading, options.engine
            )
            rows = [found(p[0]) for p in programs]
            counts = tuple(f.best.parts(0)[0] for f in rows)
            certificate = ReductionCertificate((spec,), counts + parts, placement, best)
        else:
            requests = [
                [
                    ReductionRequest(problem.hierarchy, m, over, o, options.reading, tree)
                    for o in considered(over, tried)
                ]
                for m in matrices
            ]
            rows = [found([synthesize(r, model, options.engine) for r in same]) for same in requests]
            certificate = ReductionCertificate(
                (spec,), tuple(p for f in rows for one in f.tried for p in one.parts(0)), placement
            )
        published = publisher.publish(options.output, write_reduction(None, certificate))
    return _show(options, rows, spec, published, problem.hierarchy, asked, start)


def _between_nodes(publisher: Publisher, options: ReduceOptions, nodes: str, start: float) -> int:
    """All devices of nodes of different sizes reduce."""
    spec, request = uneven(
        sizes(nodes, "--nodes", ","), options.machine, options.payload, options.algorithm, options.reading
    )
    with Watch("synthesizing"):
        one = synthesize(request, spec.model(), options.engine)
        data = write_reduction(None, ReductionCertificate((spec,), one.parts(0)))
        published = publisher.publish(options.output, data)
    return _show(options, [found([one])], spec, published, request.nodes, None, start)


def _show(
    options: ReduceOptions,
    rows: list[Found],
    spec: CostSpec,
    published: Published,
    hierarchy: tuple[int, ...],
    asked: Asked | None,
    start: float,
) -> int:
    scale = spec.model().scale
    proved = published.verdict is Verdict.PROVED
    winner = min(rows, key=lambda f: (f.best.cost is None, f.best.cost or 0))
    conversation = [asked, *(s.asked for f in rows for s in f.tried)]
    data: dict[str, object] = {
        **document(winner, proved),
        "programs": sum(f.best.count for f in rows),
        "reading": options.reading,
        "scale": scale,
        "matrices": [document(f, proved) for f in rows],
        "model": spec.model().name,
        "bytes": spec.payload,
        **engine_json(conversation),
    }
    if options.listed:
        data["listed"] = [[words(p, f.request.system().tree) for p in f.best.graph.programs()] for f in rows]
    if options.svg is not None and winner.best.program is not None:
        draw(options.svg, winner.best, hierarchy)
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
        say(*engine_lines(conversation))
    code = finish(published, data, options.as_json, start)
    return Exit.INFEASIBLE if code is Exit.DONE and winner.best.cost is None else code
