"""Verbs `place` and `reduce`: placements, reduction programs, and the proofs that the chosen ones are best.

The status they print is the checker's, handed back by `publish`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click

from ...models.collective_programs.collectives import READINGS
from ...models.collective_programs.cost import PRESETS, Algorithm
from ...models.collective_programs.parallelism import (
    Hierarchy,
    Matrix,
    Order,
    PlacementProblem,
    ReductionRequest,
    Request,
    UnevenRequest,
    check_reduction_axes,
    matrix_text,
)
from ...models.collective_programs.programs import fused, words
from ...models.files.output import write_file
from ...models.machine.machine import Machine, MachineError, load_machine
from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import AMOUNT, force_option, output_option
from ...models.text import InputError, bytes_text, parse_bytes, seconds_text
from ...proofs.collective_programs.certificate import CostSpec, PlacementCertificate, ReductionCertificate, Term
from ...proofs.collective_programs.file import encode_program
from ...proofs.publishing.publisher import Published, Publisher
from ..collective_programs.picture import picture
from ..collective_programs.placement import Engine, find_matrices
from ..collective_programs.synthesize import Cost, Synthesis, best_placement, considered, synthesize

DEFAULT_MACHINES = {1: "localhost", 2: "p2-a100", 3: "summit"}
"""Machine by number of levels when none is named."""

hierarchy_option = click.option("--hierarchy", help="Sizes of the levels, outermost first, such as 4x16.")
axes_option = click.option("--axes", help="Sizes of the parallelism axes, such as 16,2,2.")
machine_option = click.option(
    "--machine", help="Built-in name or TOML file; default by number of levels: p2-a100 (2), summit (3)."
)
algorithm_option = click.option(
    "--algorithm",
    type=click.Choice([a.value for a in Algorithm]),
    default="ring",
    show_default=True,
    help="How AllReduce moves data.",
)
model_option = click.option(
    "--model",
    "preset",
    type=click.Choice(PRESETS),
    default="linked",
    show_default=True,
    help="Cost model: linked = bandwidth, contention and latency.",
)
order_option = click.option(
    "--order",
    type=click.Choice(["both", *(o.value for o in Order)]),
    default="both",
    show_default=True,
    help="Order of devices when several axes are reduced.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["native", "ilp", "smt"]),
    default="native",
    show_default=True,
    help="Who searches; the proof is the same.",
)
reading_option = click.option(
    "--reading",
    type=click.Choice(list(READINGS)),
    default="paper",
    show_default=True,
    help="What the paper's rules leave open.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
certificate_option = output_option("-o", "--output", help="Write the certificate here (.spz).", replaces_results=True)


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
def place_command(
    publisher: Publisher,
    hierarchy: str | None,
    axes: str | None,
    reductions: tuple[str, ...],
    machine: str | None,
    algorithm: str,
    preset: str,
    order: str,
    reading: str,
    engine: str,
    output: Path | None,
    as_json: bool,
) -> int:
    """All placements of parallelism axes over a hierarchy, proved complete; with --reduce also the best one."""
    start = time.monotonic()
    problem = PlacementProblem(_sizes(hierarchy, "--hierarchy", "x"), _sizes(axes, "--axes", ",")).check()
    placement = PlacementCertificate(problem, find_matrices(problem, cast("Engine", engine)))
    document: dict[str, object] = {
        "count": len(placement.matrices),
        "matrices": [[list(row) for row in m] for m in placement.matrices],
    }
    if not reductions:
        published = publisher.reduction(output, placement)
        if not as_json:
            say(
                f"{len(placement.matrices)} placements of axes {axes} over {hierarchy}; that there are no others "
                f"is {published.verdict.value}"
            )
            for m in placement.matrices:
                say(f"  {matrix_text(m)}")
        return _finish(published, document, as_json, start)
    target = _machine(machine, problem.hierarchy)
    wanted = [_reduction(text) for text in reductions]
    specs = tuple(CostSpec(preset, target, payload, Algorithm(algorithm)) for _, payload, _ in wanted)
    costs = [Cost(k, spec.model()) for k, spec in enumerate(specs)]
    terms = [Term(over, k, weight) for k, (over, _, weight) in enumerate(wanted)]
    with Watch("placing"):
        best, parts, found = best_placement(placement, costs, terms, _orders(order), reading, cast("Engine", engine))
        published = publisher.reduction(output, ReductionCertificate(specs, parts, placement, best))
    scale = costs[0].model.scale
    totals = [
        sum(t.weight * min(s.cost or 0 for s in tried) for t, tried in zip(terms, row, strict=True)) for row in found
    ]
    document |= {
        "best": best.matrix,
        "cost": published.cost,
        "lower_bound": published.lower_bound,
        "scale": scale,
        "costs": totals,
    }
    if not as_json:
        say(
            f"{len(placement.matrices)} placements of axes {axes} over {hierarchy} ({target.name}, {algorithm}), "
            f"cost of the given reductions per step:"
        )
        _table(
            [["", "placement", "per step", *(f"over {','.join(map(str, t.reduce))}" for t in terms)]]
            + [
                [
                    "*" if k == best.matrix else "",
                    matrix_text(m),
                    seconds_text(totals[k], scale),
                    *(_cheapest(tried, scale) for tried in found[k]),
                ]
                for k, m in enumerate(placement.matrices)
            ]
        )
        say(
            f"best: {matrix_text(placement.matrices[best.matrix])}, {seconds_text(best.cost, scale)}; that none "
            f"is better is {published.verdict.value}"
        )
    return _finish(published, document, as_json, start)


@dataclass(frozen=True)
class _Found:
    """The best of one request over the device orders, and all that was tried."""

    request: Request
    best: Synthesis
    tried: tuple[Synthesis, ...]


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
def reduce_command(
    publisher: Publisher,
    hierarchy: str | None,
    axes: str | None,
    over: str | None,
    matrix: str | None,
    nodes: str | None,
    machine: str | None,
    payload: int,
    algorithm: str,
    preset: str,
    order: str,
    reading: str,
    synthesis: str,
    engine: str,
    svg: Path | None,
    listed: bool,
    output: Path | None,
    as_json: bool,
) -> int:
    """All reduction programs of a request, and the cheapest one with a proof that no program of any length is
    cheaper.
    """
    start = time.monotonic()
    search, size = cast("Engine", engine), payload
    if nodes is not None:
        if hierarchy or axes or over or matrix:
            raise click.UsageError(
                "--nodes stands alone: all devices of all nodes reduce; leave out --hierarchy, --axes, --reduce "
                "and --matrix"
            )
        spec, request = _uneven(_sizes(nodes, "--nodes", ","), machine, size, algorithm, reading)
        with Watch("synthesizing"):
            one = synthesize(request, spec.model(), search)
            published = publisher.reduction(output, ReductionCertificate((spec,), one.parts(0)))
        return _show(
            [_Found(request, one, (one,))], spec, published, reading, request.nodes, listed, svg, as_json, start
        )
    problem = PlacementProblem(_sizes(hierarchy, "--hierarchy", "x"), _sizes(axes, "--axes", ",")).check()
    reduce = _sizes(over, "--reduce", ",", 0)
    check_reduction_axes(problem.axes, reduce)
    spec = CostSpec(preset, _machine(machine, problem.hierarchy), size, Algorithm(algorithm))
    model, orders, tree = spec.model(), _orders(order), Hierarchy(synthesis)
    matrices = find_matrices(problem, search) if matrix is None else (problem.require(_matrix(matrix)),)
    placement = PlacementCertificate(problem, matrices) if matrix is None else None
    with Watch("synthesizing"):
        if placement is not None and tree is Hierarchy.COLLAPSED:
            best, parts, rows = best_placement(placement, [Cost(0, model)], [Term(reduce, 0)], orders, reading, search)
            found = [_found(row[0]) for row in rows]
            counts = tuple(f.best.parts(0)[0] for f in found)
            certificate = ReductionCertificate((spec,), counts + parts, placement, best)
        else:
            requests = [
                [ReductionRequest(problem.hierarchy, m, reduce, o, reading, tree) for o in considered(reduce, orders)]
                for m in matrices
            ]
            found = [_found([synthesize(r, model, search) for r in tried]) for tried in requests]
            certificate = ReductionCertificate(
                (spec,), tuple(p for f in found for one in f.tried for p in one.parts(0)), placement
            )
        published = publisher.reduction(output, certificate)
    return _show(found, spec, published, reading, problem.hierarchy, listed, svg, as_json, start)


def _found(tried: Sequence[Synthesis]) -> _Found:
    best = min(tried, key=lambda s: (s.cost is None, s.cost or 0))  # ties: the first order
    return _Found(best.request, best, tuple(tried))


def _show(
    found: list[_Found],
    spec: CostSpec,
    published: Published,
    reading: str,
    hierarchy: tuple[int, ...],
    listed: bool,
    svg: Path | None,
    as_json: bool,
    start: float,
) -> int:
    scale = spec.model().scale
    proved = published.verdict is Verdict.PROVED
    winner = min(found, key=lambda f: (f.best.cost is None, f.best.cost or 0))
    rows = [_document(f, proved) for f in found]
    document: dict[str, object] = {
        **_document(winner, proved),
        "programs": sum(f.best.count for f in found),
        "reading": reading,
        "scale": scale,
        "matrices": rows,
        "model": spec.model().name,
        "bytes": spec.payload,
    }
    if svg is not None and winner.best.program is not None:
        _draw(svg, winner.best, hierarchy)
    if not as_json:
        say(
            f"{document['programs']} programs (reading {reading!r}) for {len(found)} placement(s) on "
            f"{spec.machine.name}, {spec.algorithm.value}, {bytes_text(spec.payload)} per device"
        )
        _table(
            [["", "placement", "order", "programs", "one AllReduce", "cheapest", "program"]]
            + [_row(f, f is winner, scale) for f in found]
        )
        if listed:
            for f in found:
                say(_name(f.request))
                for program in f.best.graph.programs():
                    say(f"  {words(program, f.request.system().tree)}")
        if winner.best.cost is None:
            say(f"no program of any length does this; that is {published.verdict.value}")
        else:
            say(
                f"cheapest: {seconds_text(winner.best.cost, scale)}; that no program of any length is cheaper is "
                f"{published.verdict.value}"
            )
    code = _finish(published, document, as_json, start)
    return Exit.INFEASIBLE if code is Exit.DONE and winner.best.cost is None else code


def _row(f: _Found, best: bool, scale: int) -> list[str]:
    s = f.best
    if s.cost is None or s.program is None:
        return ["", _name(f.request), "", str(s.count), "-", "-", "none"]
    single = "-" if s.all_reduce is None else seconds_text(s.all_reduce, scale)
    order = s.request.order.value if isinstance(s.request, ReductionRequest) and len(f.tried) > 1 else "-"
    return [
        "*" if best else "",
        _name(f.request),
        order,
        str(s.count),
        single,
        seconds_text(s.cost, scale),
        words(s.program, s.request.system().tree),
    ]


def _name(request: Request) -> str:
    return (
        matrix_text(request.matrix)
        if isinstance(request, ReductionRequest)
        else f"nodes of {','.join(map(str, request.nodes))}"
    )


def _document(f: _Found, proved: bool) -> dict[str, object]:
    s = f.best
    out: dict[str, object] = {
        "programs": s.count,
        "best": [],
        "cost": s.cost,
        "lower_bound": s.cost if proved else None,
        "all_reduce_cost": s.all_reduce,
    }
    if isinstance(s.request, ReductionRequest):
        out |= {"matrix": [list(row) for row in s.request.matrix], "order": s.request.order.value}
    else:
        out["nodes"] = list(s.request.nodes)
    if s.program is not None:
        system = s.request.system()
        _, steps = system.run(s.program)
        out["best"] = [
            {
                "text": str(i),
                "slice": code[0],
                "form": code[1],
                "ancestor": code[2],
                "collective": code[3],
                "groups": [list(g) for g in step.groups],
            }
            for i, code, step in zip(s.program, encode_program(s.program), steps, strict=True)
        ]
        out["words"] = words(s.program, system.tree)
        out["fused_steps"] = len(fused(system, s.program))
    return out


def _draw(path: Path, s: Synthesis, hierarchy: tuple[int, ...]) -> None:
    if s.program is None:
        return
    system = s.request.system()
    if isinstance(s.request, ReductionRequest):
        title = f"{matrix_text(s.request.matrix)}, reduce {list(s.request.reduce)}, {s.request.order.value}"
    else:
        title, hierarchy = _name(s.request), (system.tree.positions,)
    write_file(path, picture(system.run(s.program)[1], hierarchy, title, [str(i) for i in s.program]).encode())


def _finish(published: Published, document: dict[str, object], as_json: bool, start: float) -> Exit:
    seconds = time.monotonic() - start
    if as_json:
        emit(
            {
                **document,
                "verdict": published.verdict.value,
                "seconds": round(seconds, 3),
                "certificate": None if published.path is None else str(published.path),
            }
        )
    elif published.path is not None:
        say(f"wrote {published.path} ({published.size} bytes) in {seconds:.1f} s")
    return Exit.DONE if published.verdict is Verdict.PROVED else Exit.UNDECIDED


def _cheapest(tried: Sequence[Synthesis], scale: int) -> str:
    s = _found(tried).best
    if s.program is None or s.cost is None:
        return "none"
    return f"{seconds_text(s.cost, scale)} {words(s.program, s.request.system().tree)}"


def _table(rows: list[list[str]]) -> None:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        say("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def _sizes(text: str | None, option: str, separator: str, least: int = 1) -> tuple[int, ...]:
    example = "4x16" if separator == "x" else "0,2" if least == 0 else "16,2,2"
    if text is None:
        raise click.UsageError(f"{option} is missing; write for example {option} {example}")
    parts = re.split(r"[x,]", text.strip())
    if not all(re.fullmatch(r"[0-9]{1,6}", p.strip()) for p in parts):
        raise InputError(f"{option} {text!r} is not a list of integers; write for example {option} {example}")
    values = tuple(int(p) for p in parts)
    if any(v < least for v in values):
        raise InputError(f"{option} {text!r}: entries must be at least {least}")
    return values


def _matrix(text: str) -> Matrix:
    rows = re.findall(r"\[([0-9 ,]+)\]", text)
    if not rows or re.sub(r"[\[\]0-9 ,]", "", text):
        raise InputError(f"--matrix {text!r}: write one bracket per axis, such as '[[2 4] [1 4]]'")
    return tuple(tuple(int(x) for x in row.replace(",", " ").split()) for row in rows)


def _reduction(text: str) -> tuple[tuple[int, ...], int, int]:
    """(axes, bytes, times) of `0,2:1GiB*4`."""
    match = re.fullmatch(r"([0-9,]+):([^*]+)(?:\*([0-9]{1,9}))?", text)
    if match is None:
        raise InputError(
            f"--reduce {text!r}: write axes, bytes and perhaps how often per step, such as 0:1GiB or 0,2:50MB*4"
        )
    times = int(match[3] or 1)
    if times < 1:
        raise InputError(f"--reduce {text!r}: must happen at least once")
    try:
        return _sizes(match[1], "--reduce", ",", 0), parse_bytes(match[2]), times
    except InputError as error:
        raise InputError(f"--reduce {text!r}: {error}") from None


def _orders(order: str) -> list[Order]:
    return list(Order) if order == "both" else [Order(order)]


def _machine(name: str | None, hierarchy: tuple[int, ...]) -> Machine:
    if name is None:
        if len(hierarchy) not in DEFAULT_MACHINES:
            raise InputError(
                f"there is no default machine with {len(hierarchy)} levels; name one with --machine (a TOML file "
                f"may have any number of levels)"
            )
        name = DEFAULT_MACHINES[len(hierarchy)]
    machine = load_machine(name)
    return machine if machine.hierarchy == hierarchy else machine.resized(hierarchy)


def _uneven(
    nodes: tuple[int, ...], machine: str | None, payload: int, algorithm: str, reading: str
) -> tuple[CostSpec, UnevenRequest]:
    request = UnevenRequest(nodes, reading).check()
    whole = load_machine(machine) if machine else load_machine("p2-a100").resized((len(nodes), max(nodes)))
    if len(whole.hierarchy) != 2 or whole.hierarchy[0] < len(nodes) or whole.hierarchy[1] < max(nodes):
        raise MachineError(
            f"machine {whole.name!r}",
            f"{'x'.join(map(str, whole.hierarchy))} has no room for nodes of {list(nodes)} devices",
            f"{whole.name}:{len(nodes)}x{max(nodes)}",
        )
    mask = tuple(v * whole.hierarchy[1] + d for v, size in enumerate(nodes) for d in range(size))
    return CostSpec("linked", whole, payload, Algorithm(algorithm), mask), request
