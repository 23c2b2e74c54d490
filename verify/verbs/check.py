"""The verb `check`: plans, and certificates together with their problems.  No solver is loaded."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypedDict, Unpack

import click

from ...models.egraphs.egraph import EGraph
from ...models.machine.machine import load_machine
from ...models.problem.claims import Verdict
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.terminal.combinations import Apart, Combinations, Needs
from ...models.terminal.console import Exit, Watch, emit, say, worst
from ...models.terminal.options import BATCH, json_option, refuse_combinations
from ...proofs.container.archive import LIMITS, Member, read_container, read_file
from ...proofs.selection.load import problem_of
from ..budget import CELLS, MORE_CELLS, Budget
from ..plan.own import ReaderSubject
from ..verdict import CheckResult, report
from ..verdict import worst as worst_verdict
from .kinds import Effort, Kind, charge_reading, kind_of, require_known
from .programs import TELL
from .request import Request
from .subject import Subject, join_documents, subject_document, subject_lines

_CODES = {Verdict.PROVED: Exit.DONE, Verdict.UNDECIDED: Exit.UNDECIDED, Verdict.REFUTED: Exit.REFUTED}


class Meant(TypedDict):
    """The model and the machine that the reader means, as options say them."""

    model: str | None
    machine: str | None
    train: str | None
    loss: str | None
    recompute: str
    batch: int | None


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
        Apart("recompute=tensors", ("model",), "it is a search: leave it out, the file holds the model's own step"),
    ),
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
    help="Recompute more table entries of a plan: all of most plans, as far as the budget of the check goes.",
)
@click.option(
    "--large", is_flag=True, help="Check files of any kind that take more than a minute or 2 GiB too, up to 8 GiB."
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
@click.option("--show-machine", is_flag=True, help="Print every constant of the file's machine, with its source.")
@json_option
@click.pass_obj
@refuse_combinations(CHECK)
def check_command(
    door: Programs,
    files: tuple[Path, ...],
    second_opinion: bool,
    large: bool,
    show_machine: bool,
    as_json: bool,
    **meant: Unpack[Meant],
) -> int:
    """Check plans, rule libraries (.spz) and certificates; a certificate needs its problem file beside it on the
    command line.
    """
    own = _own(door, meant)
    collecting = gc.isenabled()
    # problems and certificates are trees of many small arrays: looking for cycles in them takes a seventh of the time
    gc.disable()
    try:
        return _check(files, _Asked(second_opinion, large, own, show_machine), as_json)
    finally:
        if collecting:
            gc.enable()


def _own(door: Programs, meant: Meant) -> ReaderSubject:
    """What the reader means."""
    model, machine = meant["model"], meant["machine"]
    graph = (
        None
        if model is None
        else door.program(model, meant["batch"], meant["train"], meant["loss"], meant["recompute"])
    )
    return ReaderSubject(graph, None if machine is None else load_machine(machine))


@dataclass(frozen=True)
class _Asked:
    """What the command line asks of every file."""

    second_opinion: bool
    large: bool
    own: ReaderSubject
    show_machine: bool

    def request(self, watch: Watch, problems: dict[str, SelectionProblem | EGraph]) -> Request:
        """The same of one file, with a budget of its own."""
        samples, cells = (10_000, MORE_CELLS) if self.second_opinion else (1_000, CELLS)
        budget = Budget.with_large() if self.large else Budget.without_large()
        effort = Effort(samples, cells, watch.count, budget)
        return Request(effort, self.second_opinion, self.own, self.show_machine, problems)


@dataclass
class _Findings:
    """What was found about files: subjects with their results, and what could not be read."""

    subjects: list[tuple[Path, Subject]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    codes: list[Exit] = field(default_factory=list)

    def note_failure(self, path: Path, error: ValueError) -> None:
        """A file that cannot be read."""
        self.errors.append(str(error) if str(path) in str(error) else f"{path}: {error}")
        self.codes.append(Exit.BAD_INPUT)

    @property
    def results(self) -> list[CheckResult]:
        """Of all files, in their order."""
        return [r for _, subject in self.subjects for r in subject.results]


def _findings(files: tuple[Path, ...], asked: _Asked) -> _Findings:
    """Every file, judged; certificates that lie apart from their problems when all problems are read."""
    found = _Findings()
    problems: dict[str, SelectionProblem | EGraph] = {}
    apart: list[tuple[Path, Mapping[str, Member], Request, Kind]] = []
    for path in files:
        try:
            data = read_file(path, LIMITS.file)
            members: Mapping[str, Member] = read_container(data) if data[:2] == b"PK" or path.suffix == ".spz" else {}
            with Watch(f"checking {path.name}") as watch:
                request = asked.request(watch, problems)
                charge_reading(members, request.effort.budget)
                # what claims something is judged, whatever else lies beside it: a problem claims nothing
                if kind_of(members) is None and (not members or "problem.json" in members):
                    problem = problem_of(data, str(path))
                    problems[problem.sha256()] = problem
                elif (kind := require_known(members, str(path))).apart:
                    apart.append((path, members, request, kind))
                else:
                    found.subjects.append((path, TELL[kind.member](str(path), members, request, kind)))
        except ValueError as error:
            found.note_failure(path, error)
    for path, members, request, kind in apart:
        try:
            found.subjects.append((path, TELL[kind.member](str(path), members, request, kind)))
        except ValueError as error:
            found.note_failure(path, error)
    return found


def _check(files: tuple[Path, ...], asked: _Asked, as_json: bool) -> int:
    start = time.monotonic()
    found = _findings(files, asked)
    codes = [*found.codes, *(_CODES[r.verdict] for r in found.results)]
    if not codes:
        found.errors.append(
            f"{', '.join(map(str, files))}: nothing to check: only problem files were given; add the certificate (.spz)"
        )
        codes.append(Exit.BAD_INPUT)
    code, seconds = worst(codes), time.monotonic() - start
    for text in found.errors:
        say(f"error: {text}", err=True)
    if as_json:
        emit(_document(found, code, seconds, asked.show_machine))
        return code
    for path, subject in found.subjects:
        first, *rest = subject_lines(subject, asked.show_machine)
        for line in (f"{path}: {first}", *rest):
            say(line)
    if found.results:  # never a last line that says proved where a file was refused
        refused = f"not checked: {len(found.errors)} of {len(files)} files; of the others: " if found.errors else ""
        say(f"{refused}{worst_verdict(r.verdict for r in found.results).value} in {seconds:.1f} s")
    return code


def _document(found: _Findings, code: Exit, seconds: float, show_machine: bool) -> dict[str, object]:
    """What `--json` prints."""
    document: dict[str, object] = {"verdict": "undecided", "claims": [], "seconds": round(seconds, 3)}
    if found.results:
        document = report(found.results, round(seconds, 3))
    document |= join_documents([subject_document(subject, str(path), show_machine) for path, subject in found.subjects])
    if found.errors:
        document |= {"errors": found.errors, "error": "; ".join(found.errors), "exit": int(code)}
        document["verdict"] = "refuted" if code is Exit.REFUTED else "undecided"
    return document
