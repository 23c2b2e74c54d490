"""The verb `place`: all placements of parallelism axes over a hierarchy, proved complete, and the
best one for given
reductions.  The status that is printed is the checker's, handed back by `publish`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from ...models.collective_programs.parallelism import PlacementProblem, matrix_text
from ...models.files.output import write_file
from ...models.terminal.console import Watch, say
from ...models.terminal.options import force_option, json_option, options_as, output_option, refuse_combinations
from ...models.text import seconds_text
from ...proofs.collective_programs.file import write_placement, write_reduction
from ...proofs.export.device_mesh import TARGETS, MeshTarget, mesh_text
from ...proofs.publishing.publisher import Publisher
from ..collective_programs.asked import engine_json, engine_lines
from ..collective_programs.options import ProgramOptions
from ..collective_programs.request import Placed, place_axes
from .combinations import PLACE
from .place_experts import place_all_experts
from .reduction_options import (
    algorithm_option,
    axes_option,
    certificate_option,
    engine_option,
    hierarchy_option,
    machine_option,
    model_option,
    order_option,
    reading_option,
    reduction,
    sizes,
)
from .reduction_results import cheapest, finish, table


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(ProgramOptions):
    """The command line of `place`."""

    hierarchy: str | None
    axes: str | None
    reductions: tuple[str, ...]
    target: MeshTarget | None
    mesh: Path | None
    experts: Path | None
    ranks: int | None
    copies: int
    permuted: Path | None
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
@click.option("--to", "target", type=click.Choice(TARGETS), help="With --mesh: DeviceMesh of torch, or Mesh of jax.")
@output_option("--mesh", help="Write the device order of the best placement here (Python).")
@click.option(
    "--experts",
    type=click.Path(path_type=Path),
    help="Instead: tokens of every expert (as plan --expert-loads takes them), to be placed evenly on ranks.",
)
@click.option("--ranks", type=click.IntRange(1, 1 << 16), help="With --experts: how many ranks share the experts.")
@click.option(
    "--copies",
    type=click.IntRange(0, 1 << 16),
    default=0,
    show_default=True,
    help="With --experts: copies of experts in all, beside one of each.",
)
@output_option("--permuted", help="With --experts: write the counts in their new order here (JSON).")
@certificate_option
@force_option
@json_option
@click.pass_obj
@refuse_combinations(PLACE)
@options_as(PlaceOptions)
def place_command(publisher: Publisher, options: PlaceOptions) -> int:
    """All placements of parallelism axes over a hierarchy, proved complete; with --reduce also the best one."""
    start = time.monotonic()
    if options.experts is not None:
        return place_all_experts(
            publisher, options.experts, options.ranks or 1, options.copies, options.permuted, options.as_json
        )
    problem = PlacementProblem(sizes(options.hierarchy, "--hierarchy", "x"), sizes(options.axes, "--axes", ",")).check()
    with Watch("placing"):
        placed = place_axes(problem, [reduction(text) for text in options.reductions], options.machine, options.how())
        placement, best = placed.placement, placed.best
        data = (
            write_placement(None, placement)
            if placed.certificate is None
            else write_reduction(None, placed.certificate)
        )
        published = publisher.publish(options.output, data)
    document: dict[str, object] = {
        "count": len(placement.matrices),
        "matrices": [[list(row) for row in m] for m in placement.matrices],
        **engine_json(placed.asked),
    }
    counted = f"{len(placement.matrices)} placements of axes {options.axes} over {options.hierarchy}"
    if best is None or placed.certificate is None:
        if not options.as_json:
            say(f"{counted}; that there are no others is {published.verdict.value}")
            for m in placement.matrices:
                say(f"  {matrix_text(m)}")
            say(*engine_lines(placed.asked))
        return finish(published, document, options.as_json, start)
    scale = placed.scale
    document |= {
        "best": best.matrix,
        "cost": published.cost,
        "lower_bound": published.lower_bound,
        "scale": scale,
        "costs": list(placed.totals),
    }
    if options.mesh is not None and options.target is not None:
        write_file(options.mesh, mesh_text(placement.matrices[best.matrix], options.target).encode())
        document |= {"mesh": str(options.mesh), "target": options.target}
    if not options.as_json:
        name = placed.certificate.costs[0].machine.name
        say(f"{counted} ({name}, {options.algorithm}), cost of the given reductions per step:")
        table(_price_rows(placed, best.matrix))
        say(
            f"best: {matrix_text(placement.matrices[best.matrix])}, {seconds_text(best.cost, scale)}; that none "
            f"is better is {published.verdict.value}",
            *engine_lines(placed.asked),
        )
        if options.mesh is not None:
            say(f"wrote {options.mesh}")
    return finish(published, document, options.as_json, start)


def _price_rows(placed: Placed, best: int) -> list[list[str]]:
    """A row per placement, with what every reduction costs under it."""
    rows = [["", "placement", "per step", *(f"over {','.join(map(str, t.reduce))}" for t in placed.terms)]]
    for k, m in enumerate(placed.placement.matrices):
        prices = (cheapest(tried, placed.scale) for tried in placed.programs[k])
        rows.append(["*" if k == best else "", matrix_text(m), seconds_text(placed.totals[k], placed.scale), *prices])
    return rows
