"""This module holds the verb `check`: plans, and certificates together with their problems.  No solver is loaded."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import click

from ...models.cost.limits import LARGE, SMALL, Budget
from ...models.egraphs.egraph import EGraph
from ...models.machine.machine import load_machine
from ...models.problem.claims import Verdict
from ...models.problem.selection_problem import SelectionProblem
from ...models.problem.unit import rounding_bound, rounding_text
from ...models.program.graph import Graph
from ...models.program.opaque import kernels_of
from ...models.terminal.combinations import PLAN_KINDS, Apart, Combinations, Needs
from ...models.terminal.console import Exit, Watch, emit, say, worst
from ...models.terminal.options import BATCH, combined, json_option, require_combination
from ...models.text import seconds_text
from ...proofs.collective_programs.file import PLACEMENT, REDUCTION
from ...proofs.container.archive import LIMITS, MANIFEST, Member, identity, read_container, read_file
from ...proofs.container.canonical import ContainerError
from ...proofs.container.kinds import plan_kind
from ...proofs.egraphs.file import EXTRACTION, decode_extraction
from ...proofs.schedules.certificate import ScheduleCertificate
from ...proofs.schedules.file import SCHEDULE
from ...proofs.selection.file import decode_certificate
from ...proofs.selection.load import problem_of
from ..collective_programs.program import check_members
from ..egraphs.extraction import check_extraction
from ..joint.plan import check_any_plan
from ..plan.own import Own
from ..plan.tables import CELLS, MORE_CELLS
from ..rewrites.library import HEAD as RULES
from ..rewrites.library import check_members as check_library_members
from ..rewrites.library import library_result
from ..schedules.certificate import check_members as check_schedule_members
from ..selection.certificate import check_selection
from ..verdict import CheckResult, report
from ..verdict import worst as worst_verdict
from .programs import PROGRAMS
from .subject import subject_document, subject_lines

_CODES = {Verdict.PROVED: Exit.DONE, Verdict.UNDECIDED: Exit.UNDECIDED, Verdict.REFUTED: Exit.REFUTED}


class Programs(Protocol):
    """Who reads a model that the reader means: frontends are no part of the checkers."""

    def program(self, model: str, batch: int | None, train: str | None, loss: str | None, recompute: str) -> Graph:
        """The graph of a model, or of its training step, as `plan` would have it."""
        ...


_OWN: Final = ("train", "loss", "recompute", "batch")
CHECK: Final = Combinations(
    "check",
    ("second_opinion", "large", "model", "machine", *_OWN, "show_machine", "as_json"),
    (
        *(Needs(name, ("model",), "it is of the model that the plan's is compared with") for name in _OWN),
        Needs("loss", ("train",), "it says what a training step minimises"),
        Needs("recompute", ("train",), "it says what a backward pass computes again"),
        Apart("recompute=auto", ("model",), "it is a search: give the blocks that 'plan' says are recomputed"),
        Apart(
            "files=other",
            ("second_opinion", "large", "model", "machine", "show_machine"),
            "there is no plan to compare, to look at more closely, or whose machine could be shown",
        ),
    ),
    kinds={"files": PLAN_KINDS},
    neutral={"recompute": "none"},
    unmeasured={
        "large": "permits what takes more than a minute or 2 GiB",
        "second_opinion": "most small plans are recomputed whole without it",
    },
)


def _optimizer(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A name of an optimizer; the module that knows them is loaded only when one is given."""
    if value is None:
        return None
    from ...models.verbs.optimizer import OPTIMIZER

    return OPTIMIZER.convert(value, option, context)


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--second-opinion",
    is_flag=True,
    help="Recompute more table entries of a plan: all of most plans, in about a minute.",
)
@click.option(
    "--large", is_flag=True, help="Check plans whose tables take more than a minute or 2 GiB too, up to 8 GiB."
)
@click.option("--model", help="Compare the plan's model with this one: whatever 'plan' takes.")
@click.option("--machine", help="Compare the plan's machine with this one: whatever 'plan' takes.")
@click.option(
    "--train", metavar="OPTIMIZER", callback=_optimizer, help="With --model: compare with one training step of it."
)
@click.option("--loss", help="With --train: as given to 'plan'.")
@click.option(
    "--recompute",
    default="none",
    show_default=True,
    help="With --train: blocks computed again, by name or glob; of 'auto' those that 'plan' printed.",
)
@click.option("--batch", type=BATCH, help="With --model: batch size.")
@click.option("--show-machine", is_flag=True, help="Print every constant of the plan's machine, with its source.")
@json_option
@click.pass_obj
@combined(CHECK)
def check_command(
    door: Programs,
    files: tuple[Path, ...],
    second_opinion: bool,
    large: bool,
    model: str | None,
    machine: str | None,
    train: str | None,
    loss: str | None,
    recompute: str,
    batch: int | None,
    show_machine: bool,
    as_json: bool,
) -> int:
    """Check plans, rule libraries (.spz) and certificates; a certificate needs its problem file beside it on the
    command line.
    """
    kinds = {plan_kind(path) for path in files}
    if "other" in kinds and kinds <= {"other", None}:
        require_combination(CHECK, files="other")
    own = _own(door, model, machine, train, loss, recompute, batch)
    collecting = gc.isenabled()
    # problems and certificates are trees of many small arrays: looking for cycles in them takes a seventh of the time
    gc.disable()
    try:
        return _check(files, second_opinion, LARGE if large else SMALL, own, show_machine, as_json)
    finally:
        if collecting:
            gc.enable()


def _own(
    door: Programs,
    model: str | None,
    machine: str | None,
    train: str | None,
    loss: str | None,
    recompute: str,
    batch: int | None,
) -> Own:
    """What the reader means."""
    graph = None if model is None else door.program(model, batch, train, loss, recompute)
    return Own(graph, None if machine is None else load_machine(machine))


def _check(
    files: tuple[Path, ...], second_opinion: bool, budget: Budget, own: Own, show_machine: bool, as_json: bool
) -> int:
    start = time.monotonic()
    results: list[CheckResult] = []
    lines: list[str] = []
    codes: list[Exit] = []
    errors: list[str] = []
    kernels: tuple[str, ...] = ()
    rounding: list[dict[str, object]] = []
    stated: list[dict[str, object]] = []  # what is shown and no claim covers
    plans: list[dict[str, object]] = []
    problems: dict[str, SelectionProblem | EGraph] = {}
    certificates: list[tuple[Path, Mapping[str, Member]]] = []
    samples, cells = (10_000, MORE_CELLS) if second_opinion else (1_000, CELLS)
    for path in files:
        try:
            data = read_file(path, LIMITS.file)
            members = read_container(data) if data[:2] == b"PK" or path.suffix == ".spz" else {}
            if "plan.json" in members:
                with Watch(f"checking {path.name}") as watch:
                    checked = check_any_plan(
                        data,
                        samples=samples,
                        cells=cells,
                        notify=watch.count,
                        budget=budget,
                    )
                found = (*own.results(checked.plan.asked, checked.plan.machine), *checked.results)
                results.extend(found)
                codes.extend(_CODES[r.verdict] for r in found)
                lines.append(f"{path}: plan {checked.identity}")
                lines += subject_lines(checked.plan, checked.planning, show_machine)
                plans.append(
                    {
                        "file": str(path),
                        "identity": checked.identity,
                        **subject_document(checked.plan, checked.planning, show_machine),
                    }
                )
                lines.extend(_line(r, checked.planning.problem) for r in found)
                lines.append("  " + rounding_text(checked.planning.problem))
                versions = ", ".join(" ".join(version) for version in checked.plan.versions)
                lines.append(f"  stated by the writer, not checked: versions {versions or 'of nothing'}")
                stated.append({"file": str(path), "versions": dict(checked.plan.versions)})
                rounding.append(
                    {
                        "file": str(path),
                        "scale": checked.planning.problem.scale,
                        "rounding_bound": rounding_bound(checked.planning.problem),
                    }
                )
                kernels += (here := kernels_of(checked.plan.graph))
                if here:
                    lines.append(f"  kernels of the user's own, which no claim covers: {', '.join(map(ascii, here))}")
            elif PLACEMENT in members or REDUCTION in members:
                found = check_members(members)
                results.extend(found)
                codes.extend(_CODES[r.verdict] for r in found)
                lines.append(
                    f"{path}: {'reduction programs' if REDUCTION in members else 'placements'} {identity(members)}"
                )
                lines.extend(_line(r) for r in found)
            elif kind := next((kind for kind in PROGRAMS if kind in members), ""):
                with Watch(f"checking {path.name}") as watch:
                    said = PROGRAMS[kind](members, samples, cells, own, watch.count)
                results.extend(said.results)
                codes.extend(_CODES[r.verdict] for r in said.results)
                lines += [f"{path}: {said.lines[0]}", *said.lines[1:]]
                plans.append({"file": str(path), "identity": identity(members), **said.document})
            elif SCHEDULE in members:
                schedule, claim = check_schedule_members(members)
                results.append(claim)
                codes.append(_CODES[claim.verdict])
                lines.append(f"{path}: schedule {identity(members)}")
                lines += [_schedule_line(claim, schedule), *(f"  assumed: {a}" for a in claim.assumptions)]
            elif RULES in members:
                library, rules = check_library_members(members)
                claim = library_result(rules)
                results.append(claim)
                codes.append(_CODES[claim.verdict])
                lines.append(f"{path}: {library.title} {identity(members)}")
                lines.append(f"{_line(claim)}; {claim.space}")
                lines += [f"  {r.name}: {r.word} at degree 1 only" for r in rules if r.degree_one]
            elif "certificate.json" in members or EXTRACTION in members:
                certificates.append((path, members))
            elif members and "problem.json" not in members:
                raise ContainerError(
                    str(path),
                    f"holds nothing that this version knows (members: "
                    f"{', '.join(sorted(set(members) - {MANIFEST})[:5])})",
                )
            else:
                problem = problem_of(data, str(path))
                problems[problem.sha256()] = problem
        except ValueError as error:
            errors.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            codes.append(Exit.BAD_INPUT)
    for path, held in certificates:
        try:
            result, words, told = _certificate(path, held, problems)
        except ValueError as error:
            errors.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            codes.append(Exit.BAD_INPUT)
            continue
        results.append(result)
        codes.append(_CODES[result.verdict])
        lines += words
        stated += told
    if not codes:
        errors.append(
            f"{', '.join(map(str, files))}: nothing to check: only problem files were given; add the certificate (.spz)"
        )
        codes.append(Exit.BAD_INPUT)
    code = worst(codes)
    seconds = time.monotonic() - start
    for text in errors:
        say(f"error: {text}", err=True)
    if as_json:
        document = (
            report(results, round(seconds, 3))
            if results
            else {"verdict": "undecided", "claims": [], "seconds": round(seconds, 3)}
        )
        if plans:
            document["plans"] = plans
        if rounding:
            document["rounding"] = rounding
        if stated:
            document["stated_not_checked"] = stated
        if kernels:
            document["kernels"] = list(kernels)
        if errors:
            document |= {"errors": errors, "error": "; ".join(errors), "exit": int(code)}
            document["verdict"] = "refuted" if code is Exit.REFUTED else "undecided"
        emit(document)
        return code
    for line in lines:
        say(line)
    if results:  # never a last line that says proved where a file was refused
        refused = f"not checked: {len(errors)} of {len(files)} files; of the others: " if errors else ""
        say(f"{refused}{worst_verdict(r.verdict for r in results).value} in {seconds:.1f} s")
    return code


def _certificate(
    path: Path, held: Mapping[str, Member], problems: Mapping[str, SelectionProblem | EGraph]
) -> tuple[CheckResult, list[str], list[dict[str, object]]]:
    """Verdict on a certificate about one of the problems, what is said of it, and what is stated and not checked."""
    name = f"{path}: {'extraction' if EXTRACTION in held else 'certificate'} {identity(held)}"
    if EXTRACTION in held:
        extraction = decode_extraction(held)
        egraph = _about(path, extraction.egraph_sha256, problems, "an extraction from the e-graph", "e-graph")
        if not isinstance(egraph, EGraph):
            raise ContainerError(str(path), "is an extraction, and the problem with its hash is no e-graph")
        result = check_extraction(egraph, extraction)
        return result, [name, _extraction_line(result, egraph), *(f"  assumed: {a}" for a in result.assumptions)], []
    certificate = decode_certificate(held)
    problem = _about(path, certificate.problem_sha256, problems, "a certificate of the problem", "problem")
    if isinstance(problem, EGraph):
        raise ContainerError(str(path), "is a certificate of a selection problem, and its hash is that of an e-graph")
    result = check_selection(problem, certificate, certificate.problem_sha256)  # loaded, so checked
    assumed = f", assumptions {', '.join(problem.assumptions)}" if problem.assumptions else ""
    unit = f"unit 1/{problem.scale} {problem.unit_name}"
    told: dict[str, object] = {
        "file": str(path),
        "problem": problem.name,
        "space": problem.space,
        "unit": problem.unit_name,
        "assumptions": list(problem.assumptions),
    }
    return (
        result,
        [
            name,
            _line(result, problem),
            f"  stated by the problem file, not checked: space {problem.space}, {unit}{assumed}",
        ],
        [told],
    )


def _about(
    path: Path, digest: str, problems: Mapping[str, SelectionProblem | EGraph], what: str, kind: str
) -> SelectionProblem | EGraph:
    if digest not in problems:
        raise ContainerError(str(path), f"is {what} with sha256 {digest[:16]}..; give that {kind}'s file too")
    return problems[digest]


def _extraction_line(result: CheckResult, egraph: EGraph) -> str:
    """Costs as the decimal numbers that the e-graph's are."""
    parts = [f"  {result.kind:<12} {result.verdict.value}"]
    if result.cost is not None:
        parts.append(f"cost {egraph.decimal(result.cost)}")
    if result.lower_bound is not None and result.lower_bound != result.cost:
        parts.append(f"lower bound {egraph.decimal(result.lower_bound)}")
    return "; ".join(part for part in (*parts, result.space, result.reason) if part)


def _line(result: CheckResult, problem: SelectionProblem | None = None) -> str:
    timed = problem is None or problem.unit_name == "s"
    scale = 10**12 if problem is None else problem.scale

    def number(value: int) -> str:
        return seconds_text(value, scale) if timed else str(value)

    parts = [f"  {result.kind:<12} {result.verdict.value}"]
    if result.cost is not None:
        parts.append(f"cost {number(result.cost)}")
    if result.lower_bound is not None and result.lower_bound != result.cost:
        parts.append(f"lower bound {number(result.lower_bound)}")
    if result.space and result.cost is not None:
        parts.append(f"space {result.space}")
    if result.coverage is not None:
        parts.append(result.coverage.words)
    if result.reason:
        parts.append(result.reason)
    return "; ".join(parts)


def _schedule_line(result: CheckResult, schedule: ScheduleCertificate) -> str:
    """A makespan in the unit of its problem, exactly."""
    parts = [f"  {result.kind:<12} {result.verdict.value}"]
    if result.cost is not None:
        parts.append(f"makespan {schedule.text(result.cost)}")
    if result.lower_bound is not None and result.lower_bound != result.cost:
        parts.append(f"lower bound {schedule.text(result.lower_bound)}")
    return "; ".join(part for part in (*parts, result.space, result.reason) if part)
