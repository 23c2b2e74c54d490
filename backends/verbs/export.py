"""The verb `export`: a checked plan in the words of another framework, a problem in those of another solver."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import click

from ...models.files.output import write_file
from ...models.schedules.problem import ScheduleProblem
from ...models.terminal.combinations import FORCE, LIMIT, OUTPUT, PLAN_KINDS, Apart, Combinations, Needs
from ...models.terminal.console import Exit, emit, say
from ...models.terminal.options import (
    SECONDS,
    STEPS,
    force_option,
    json_option,
    options_as,
    output_option,
    refuse_combinations,
    require_combination,
)
from ...models.text import InputError, seconds_text
from ...proofs.collective_programs.chosen import chosen_programs
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.plan.bundle import Plan, write_plan
from ...proofs.publishing.kind import plan_kind
from ...proofs.publishing.placed import placed_plan
from ...proofs.publishing.publisher import ENCODINGS, Encoded, Nearest, Opened, Publisher, Restricted
from ...proofs.views.certificate import SubmeshCertificate
from ..export.collective_programs import program_text
from ..export.dtensor import export_dtensor
from ..export.exported import Exported, Parts, parts_json, said_parts, said_whole, with_programs
from ..export.flags import batch_of, left_to_settings, megatron_text
from ..export.jax import export_jax
from ..export.settings_files import FILES
from ..export.torchtitan import torchtitan_file
from .export_pipelined import ACTIONS, PIPELINED, export_actions, export_pipelined, pipelined_text

TARGETS: Final[dict[str, Callable[[Plan, str, bool, Parts], Exported]]] = {"dtensor": export_dtensor, "jax": export_jax}
PROGRAMS: Final = ("torch", "jax")
"""Targets of reduction programs."""

SETTINGS: Final[dict[str, Callable[[Nearest, int], str]]] = {
    "megatron": megatron_text,
    "torchtitan": torchtitan_file,
    **FILES,
}
"""Targets that are told degrees: what is written is the nearest that they can be told."""

EXPORT: Final = Combinations(
    "export",
    ("target", "resolve", "time_limit", "work_limit", "layouts_only", "resolved", "csv", *OUTPUT),
    (
        Needs("csv", ("plan_file=pipelined",), "other plans have no schedule"),
        Needs("target=actions", ("plan_file=pipelined",), "other plans have no schedule"),
        Apart("target=actions", ("csv",), "it writes the schedule already"),
        Apart(
            "plan_file=pipelined",
            ("resolve", "resolved", "time_limit", "work_limit"),
            "it is written as it is, without a search",
        ),
        Apart(
            "plan_file=pipelined",
            tuple(f"target={t}" for t in sorted({*TARGETS, *SETTINGS} - {*PIPELINED})),
            f"pipelined plans are written for {', '.join((*PIPELINED, ACTIONS))}; what plan makes without --pipeline "
            "is written for the others",
        ),
        *(
            Apart(
                f"target={t}",
                ("resolve", "resolved", "time_limit", "work_limit", "layouts_only", "csv"),
                "it writes the problem, and says nothing of layouts",
            )
            for t in ENCODINGS
        ),
        Apart(
            "plan_file=reduction",
            (
                *("resolve", "resolved", "time_limit", "work_limit", "layouts_only", "csv"),
                *(f"target={t}" for t in sorted({*TARGETS, *SETTINGS, ACTIONS, *ENCODINGS} - {*PROGRAMS})),
            ),
            f"its steps are written as they are, for {' and '.join(PROGRAMS)}",
        ),
        *(
            Needs(f"target={t}", ("plan_file=reduction",), "plans are written for dtensor, which is of torch")
            for t in PROGRAMS
            if t not in TARGETS
        ),
        *(Apart(f"target={t}", ("resolve", "resolved"), "it always gets its nearest settings") for t in SETTINGS),
        Apart("layouts_only", tuple(f"target={t}" for t in (*SETTINGS, ACTIONS)), "it writes no layouts of tensors"),
        Needs("time_limit", ("resolve", *(f"target={t}" for t in SETTINGS)), "nothing else is searched"),
        Needs("work_limit", ("resolve", *(f"target={t}" for t in SETTINGS)), "nothing else is searched"),
        Needs("resolved", ("resolve",), "it is the file of the plan that was made again"),
        Apart(
            "plan_file=joint",
            ("resolve", *(f"target={t}" for t in SETTINGS)),
            "a joint plan is not planned again: plan its model without --joint",
        ),
    ),
    kinds={"plan_file": PLAN_KINDS},
    unmeasured={**FORCE, **LIMIT},
)

NAMED: Final = 5
"""Layouts that the target does not say, printed; `--json` and the file have all."""


@dataclass(frozen=True)
class ExportOptions:
    """The command line of `export`."""

    plan_file: Path
    target: str
    resolve: bool
    time_limit: float | None
    work_limit: int | None
    layouts_only: bool
    resolved: Path | None
    csv: Path | None
    output: Path
    as_json: bool


@click.command("export")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(sorted({*TARGETS, *SETTINGS, *PROGRAMS, ACTIONS, *ENCODINGS})),
    required=True,
    help="dtensor: a PyTorch module laid out by a Python file; jax: PartitionSpecs and Shardy's text; megatron, "
    "nemo, .. (frameworks): the nearest settings, with the proved distance from the optimum; actions: of a pipelined "
    "plan the "
    "schedule alone, forwards and backwards of every stage, as torch.distributed.pipelining loads them; torch, jax: "
    "of a reduction program its calls of torch.distributed, or shard_map; lp, mps, opb, smt2, wcsp, json: the "
    "selection problem of a file or of a plan, for other solvers ('shardproof solve --known' reads what they answer).",
)
@click.option(
    "--resolve",
    is_flag=True,
    help="Plan again within what the target can say, proved optimal there, and print what that costs.",
)
@click.option(
    "--time-limit",
    type=SECONDS,
    help="With --resolve, or settings: wall-clock seconds for the search. [default: 300; none with --work-limit]",
)
@click.option(
    "--work-limit",
    type=STEPS,
    help="The same in steps of work, instead of seconds or beside them: the same file on every machine.",
)
@click.option(
    "--layouts-only",
    is_flag=True,
    help="Write where tensors lie and nothing else of the plan: precision, recomputation, micro-batches, optimizer, "
    "loss and attention are then the job's to do, and the file says which.",
)
@output_option("--resolved", help="With --resolve: the file for that plan.", replaces_results=True)
@output_option(
    "--csv",
    help="Of a pipelined plan: the schedule's forwards and backwards, one row per stage, as "
    "torch.distributed.pipelining loads them.",
)
@output_option("-o", "--output", required=True, help="The file to write.")
@force_option
@json_option
@click.pass_obj
@refuse_combinations(EXPORT)
@options_as(ExportOptions)
def export_command(publisher: Publisher, options: ExportOptions) -> int:
    """Write PLAN, a reduction program or a selection problem for another framework or solver; the file needs nothing
    of ours.
    """
    plan_file, target, output, as_json = options.plan_file, options.target, options.output, options.as_json
    if (kind := plan_kind(plan_file)) is not None:
        require_combination(EXPORT, plan_file=kind)
    if kind == "reduction":
        return _programs(publisher, plan_file, target, output, as_json)
    if target in ENCODINGS:
        return _problem(publisher.encode(plan_file, target), plan_file, target, output, as_json)
    found, limits = publisher.open(plan_file).with_choices(), (options.time_limit, options.work_limit)
    if isinstance(found.held, PipelineCertificate):
        if target == ACTIONS:
            return export_actions(found.held, found.identity, output, as_json)
        return export_pipelined(found.held, found.identity, target, options.csv, output, as_json, options.layouts_only)
    if target in SETTINGS:
        return _settings(publisher.nearest(found, target, *limits), target, output, as_json)
    again: Restricted | None = None
    if options.resolve:
        again = publisher.replan_within(found, target, *limits)
        plan, identity = again.plan, again.identity
        if options.resolved is not None:
            publisher.publish(options.resolved, write_plan(None, plan))
        made = TARGETS[target](plan, identity, options.layouts_only, ())
    else:
        identity, made = found.identity, layouts_text(found, target, options.layouts_only)
    made = with_programs(made, found.held.machine)
    write_file(output, made.text.encode())
    if as_json:
        about = {"plan": str(plan_file), "identity": identity, "target": target, "file": str(output)}
        emit({**about, **_layouts_json(made), **({} if again is None else _price(again))})
        return Exit.DONE
    say(*_layout_lines(found.held.graph.name, made, target, again is not None))
    if again is not None:
        say(_certificates(again), again.words)
        if options.resolved is not None:
            say(f"wrote {options.resolved}")
    say(f"wrote {output}")
    return Exit.DONE


def _problem(made: Encoded, path: Path, target: str, output: Path, as_json: bool) -> int:
    """Write a problem, and say how costs are to be read."""
    problem, bits = made.problem, made.problem.fine_bits
    write_file(output, made.text.encode())
    if as_json:
        emit(
            {
                "problem": str(path),
                "problem_sha256": problem.sha256(),
                "target": target,
                "file": str(output),
                "vertices": len(problem.vertices),
                "edges": len(problem.edges),
                "choices": sum(v.cost.size for v in problem.vertices),
                "scale": problem.scale << bits,
                "shift": made.shift,
            }
        )
        return Exit.DONE
    say(f"{problem.name}: {len(problem.vertices)} vertices, {len(problem.edges)} edges")
    if made.shift:
        say(f"a solution costs {made.shift} more than the file says: its costs begin at 0")
    say(f"costs in 1/{problem.scale << bits} {problem.unit_name}", f"wrote {output} ({len(made.text)} bytes)")
    if target != "json":
        own, first = shlex.quote(str(path)), ""
        if plan_kind(path) not in (None, "other"):
            first, own = f"shardproof export {own} --to json -o PROBLEM.json; ", "PROBLEM.json"
        say(f"next, with what a solver answers: {first}shardproof solve {own} --known ANSWER")
    return Exit.DONE


def _layouts_json(made: Exported) -> dict[str, object]:
    """Layouts that the target says, and those that it does not."""
    return {
        "mesh": [list(pair) for pair in made.mesh],
        "said": made.said,
        "refused": [[r.place, r.tensor, r.reason] for r in made.refused],
        **parts_json(made),
    }


def _layout_lines(name: str, made: Exported, target: str, resolved: bool) -> list[str]:
    """The same for a terminal; `resolved`: of a plan that is within what the target says."""
    mesh = " x ".join(f"{name} {size}" for name, size in made.mesh)
    out = [f"{name}: {made.said} layouts over the mesh {mesh}"]
    slices = [r for r in made.refused if r.reason.startswith("slice:")]
    others = [r for r in made.refused if not r.reason.startswith("slice:")]
    if slices:
        out.append(
            f"{len(slices)} layouts are of parts of a tensor, such as a fused projection: each lies as the whole does"
        )
    if others:
        out.append(f"{len(others)} layouts are not what {target} can say; it will move what the plan does not:")
        out += [f"  {r.place}: {r.reason}" for r in others[:NAMED]]
        if len(others) > NAMED:
            kinds = Counter(r.place.split(" ")[0] for r in others[NAMED:])
            more = ", ".join(f"{n} of kind {kind}" for kind, n in sorted(kinds.items()))
            out.append(f"  and {more} (all in the file)")
        if not resolved:
            out.append(f"--resolve plans again within what {target} can say, and proves what that costs")
    return [*out, *said_parts(made.done, made.left_out, target), *said_whole(made.whole)]


def _programs(publisher: Publisher, path: Path, target: str, output: Path, as_json: bool) -> int:
    """Write the programs that a file of reduction programs is for."""
    certificate, published = publisher.programs(path)
    try:
        programs = chosen_programs(certificate)
        text = program_text(programs, published.identity, target)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    write_file(output, text.encode())
    if as_json:
        emit(
            {
                "plan": str(path),
                "identity": published.identity,
                "target": target,
                "file": str(output),
                "programs": [{"over": one.over, "words": one.words, "steps": len(one.program)} for one in programs],
            }
        )
        return Exit.DONE
    say(*(f"over {one.over}: {one.words}, {one.length}" for one in programs), f"wrote {output}")
    return Exit.DONE


def layouts_text(found: Opened, target: str, layouts_only: bool) -> Exported:
    """The file of a checked plan for a target that is told layouts.  Raises `InputError` for what the target does not
    do, unless only layouts are asked for, and for plans whose layouts it cannot say.
    """
    match found.held:
        case PipelineCertificate() as pipelined:
            return pipelined_text(pipelined, found.identity, target, layouts_only)
        case SubmeshCertificate():
            raise InputError(
                f"{found.place}: {target} has no operators on parts of a mesh, and this plan has: "
                "plan the model without --submeshes for what it can say"
            )
        case OverlapCertificate() as overlapped:
            plan, beside = placed_plan(overlapped), _order(overlapped, found.scale)
        case Plan() as plan:
            beside = ()
    return TARGETS[target](plan, found.identity, layouts_only, beside)


def _order(c: OverlapCertificate, scale: int) -> Parts:
    """What the order of an overlapped plan is worth to a job that runs one thing after another."""
    if c.schedule is None:
        raise InputError("the plan has no choices: nothing was found that fits its memory limit")
    tasks = c.schedule.subject.tasks if isinstance(c.schedule.subject, ScheduleProblem) else ()
    whole = seconds_text(sum(t.time for t in tasks) * c.quantum, scale)
    step = seconds_text(c.makespan, scale)
    return (("order", f"reshardings beside operators, a step of {step}; one after another it takes {whole}"),)


def _settings(found: Nearest, target: str, output: Path, as_json: bool) -> int:
    """Write the nearest settings and say what they cost."""
    graph = found.plan.graph
    write_file(output, SETTINGS[target](found, batch_of(graph)).encode())
    free, own = found.free, found.settings
    if as_json:
        emit(
            {
                "identity": found.identity,
                "target": target,
                "file": str(output),
                "settings": asdict(found.flags),
                "free": {"cost_s": float(free[0]), "lower_bound_s": float(free[1])},
                "nearest": {"cost_s": float(own[0]), "lower_bound_s": float(own[1])},
                "distance": [float(v) for v in found.distance],
                "tried": found.tried,
                "excluded": [list(pair) for pair in found.excluded],
                "left_out": dict(left_to_settings(graph)),
            }
        )
        return Exit.DONE
    f = found.flags
    copies = f.copies(found.plan.machine.devices)
    split = ", sequences split between" if f.sequence_parallel else ""
    say(
        f"{graph.name}: tensor {f.tp}{split}, context {f.cp}, data {copies}, state sharded as ZeRO-{f.zero}"
        if f.zero
        else f"{graph.name}: tensor {f.tp}{split}, context {f.cp}, data {copies}, state on every copy",
        _pair("the plan", free) + "; " + _pair("the settings, completed in their favour", own),
        found.words,
    )
    if found.excluded:
        reasons = Counter(reason.partition(": ")[2] or reason for _, reason in found.excluded)
        reason, n = reasons.most_common(1)[0]
        say(
            f"{len(found.excluded)} settings are not priced: the plan's space or model has no such placement, or they "
            f"do not fit; {n} of them: {reason[:120]}"
        )
    if left := left_to_settings(graph):
        say(f"degrees alone: what else the plan says is not in the {target} file, and is the job's to do:")
        say(*(f"  {part}: {words}" for part, words in left))
    say(f"wrote {output}")
    return Exit.DONE


def _pair(name: str, pair: tuple[Fraction, Fraction]) -> str:
    cost, bound = pair
    status = "optimal" if bound >= cost else f"at least {seconds_text(bound.numerator, bound.denominator)}"
    return f"{name} {seconds_text(cost.numerator, cost.denominator)} ({status})"


def _certificates(again: Restricted) -> str:
    """Both certificates in one line."""
    words = []
    for name, (cost, bound) in (("free", again.free), (f"within {again.vocabulary}", again.restricted)):
        status = "optimal" if bound >= cost else f"within {float(100 * (1 - bound / cost)):.2f} % of the optimum"
        words.append(f"{name} {seconds_text(cost.numerator, cost.denominator)} ({status})")
    return "; ".join(words)


def _price(again: Restricted) -> dict[str, object]:
    least, most = again.price
    return {
        "free": {"cost_s": float(again.free[0]), "lower_bound_s": float(again.free[1])},
        "restricted": {"cost_s": float(again.restricted[0]), "lower_bound_s": float(again.restricted[1])},
        "price": [float(least), float(most)],
    }
