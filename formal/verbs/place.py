"""This module holds the verb `place`: all placements of parallelism axes over a hierarchy, proved complete, and the
best one for given
reductions.  The status that is printed is the checker's, handed back by `publish`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from ...models.collective_programs.cost import Algorithm
from ...models.collective_programs.parallelism import PlacementProblem, matrix_text
from ...models.terminal.console import Watch, say
from ...models.terminal.options import combined, force_option, gathered, json_option
from ...models.text import seconds_text
from ...proofs.collective_programs.certificate import CostSpec, PlacementCertificate, ReductionCertificate, Term
from ...proofs.collective_programs.file import write_placement, write_reduction
from ...proofs.publishing.publisher import Publisher
from ..collective_programs.asked import Engine, engine_json, engine_lines
from ..collective_programs.placement import find_matrices
from ..collective_programs.synthesize import Cost, best_placement
from .combinations import PLACE
from .reduction_options import (
    algorithm_option,
    axes_option,
    certificate_option,
    engine_option,
    hierarchy_option,
    machine,
    machine_option,
    model_option,
    order_option,
    orders,
    reading_option,
    reduction,
    sizes,
)
from .reduction_results import cheapest, finish, table


@dataclass(frozen=True)
class PlaceOptions:
    """The command line of `place`."""

    hierarchy: str | None
    axes: str | None
    reductions: tuple[str, ...]
    machine: str | None
    algorithm: str
    preset: str
    order: str
    reading: str
    engine: Engine
    output: Path | None
    as_json: bool


@click.command("place")
@hierarchy_option
@axes_option
@click.option(
    "--reduce",
    "reductions",
    multiple=True,
    metavar="AXES:BYTES[*N]",
    help="A reduction over axes, bytes per device, N times per step: 0:1GiB or 0,2:50MB*4.",
)
@machine_option
@algorithm_option
@model_option
@order_option
@reading_option
@engine_option
@certificate_option
@force_option
@json_option
@click.pass_obj
@combined(PLACE)
@gathered(PlaceOptions)
def place_command(publisher: Publisher, options: PlaceOptions) -> int:
    """All placements of parallelism axes over a hierarchy, proved complete; with --reduce also the best one."""
    start = time.monotonic()
    problem = PlacementProblem(sizes(options.hierarchy, "--hierarchy", "x"), sizes(options.axes, "--axes", ",")).check()
    matrices, asked = find_matrices(problem, options.engine)
    placement = PlacementCertificate(problem, matrices)
    document: dict[str, object] = {
        "count": len(placement.matrices),
        "matrices": [[list(row) for row in m] for m in placement.matrices],
    }
    counted = f"{len(placement.matrices)} placements of axes {options.axes} over {options.hierarchy}"
    if not options.reductions:
        published = publisher.publish(options.output, write_placement(None, placement))
        if not options.as_json:
            say(f"{counted}; that there are no others is {published.verdict.value}")
            for m in placement.matrices:
                say(f"  {matrix_text(m)}")
            say(*engine_lines([asked]))
        document |= engine_json([asked])
        return finish(published, document, options.as_json, start)
    target = machine(options.machine, problem.hierarchy)
    wanted = [reduction(text) for text in options.reductions]
    algorithm = Algorithm(options.algorithm)
    specs = tuple(CostSpec(options.preset, target, payload, algorithm) for _, payload, _ in wanted)
    costs = [Cost(k, spec.model()) for k, spec in enumerate(specs)]
    terms = [Term(over, k, weight) for k, (over, _, weight) in enumerate(wanted)]
    with Watch("placing"):
        best, parts, found = best_placement(
            placement, costs, terms, orders(options.order), options.reading, options.engine
        )
        published = publisher.publish(
            options.output, write_reduction(None, ReductionCertificate(specs, parts, placement, best))
        )
    scale = costs[0].model.scale
    conversation = [asked, *(s.asked for row in found for tried in row for s in tried)]
    totals = [
        sum(t.weight * min(s.cost or 0 for s in tried) for t, tried in zip(terms, row, strict=True)) for row in found
    ]
    document |= {
        "best": best.matrix,
        "cost": published.cost,
        "lower_bound": published.lower_bound,
        "scale": scale,
        "costs": totals,
        **engine_json(conversation),
    }
    if not options.as_json:
        say(f"{counted} ({target.name}, {options.algorithm}), cost of the given reductions per step:")
        table(
            [["", "placement", "per step", *(f"over {','.join(map(str, t.reduce))}" for t in terms)]]
            + [
                [
                    "*" if k == best.matrix else "",
                    matrix_text(m),
                    seconds_text(totals[k], scale),
                    *(cheapest(tried, scale) for tried in found[k]),
                ]
                for k, m in enumerate(placement.matrices)
            ]
        )
        say(
            f"best: {matrix_text(placement.matrices[best.matrix])}, {seconds_text(best.cost, scale)}; that none "
            f"is better is {published.verdict.value}",
            *engine_lines(conversation),
        )
    return finish(published, document, options.as_json, start)
