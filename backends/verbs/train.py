"""The verb `run --steps`: many steps of a plan on its ranks, a line per step, states written and taken up again.

One process does all of the steps too, and the results of the last one are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from ...models.program.opaque import OpaqueError
from ...models.terminal.console import Exit, Watch, emit, report_error, say
from ...models.terminal.options import Count
from ...models.text import InputError
from ...proofs.publishing.publisher import Opened
from ..execution import checkpoint, comparison
from ..execution.conditioning import Compared, compare, other_digits
from ..execution.consent import allow, check_consent
from ..execution.interpreter import RankError
from ..execution.job import Options
from ..execution.launch import LaunchError
from ..execution.provenance import of_run
from ..execution.repeatable import repeatable
from ..execution.train_rank import Goal, train_job
from ..execution.trainer import Trainer
from ..execution.training_run import Numbers, StartState, StepDone, begin, in_one_process, is_due
from ..kernels import Array
from .scheduled import RunRequest

STEPS: Final = Count(1, 10**9)

GROWTH: Final = 10
"""How many times as much as in one step the results of many steps may differ."""

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option("--steps", type=STEPS, help="Train: so many steps, a line (with --json an object) for each."),
    click.option(
        "--data",
        metavar="FILE.npz|DIR|FILE.py:NAME",
        help="Data of the steps: arrays with a leading axis of steps (DIR: NAME.npy), or a function of the step's "
        "number that gives {input: array} (default: drawn from seed and step).",
    ),
    click.option(
        "--save", type=click.Path(path_type=Path), metavar="DIR", help="Write the state behind the last step to DIR."
    ),
    click.option("--save-every", "save_every", type=STEPS, metavar="M", help="And behind every M steps."),
    click.option(
        "--resume",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Go on from the last state in DIR, of this or another plan of the same model.",
    ),
    click.option(
        "--compare/--no-compare",
        default=True,
        help="Let one process do the same steps, and compare the results of the last one (on).",
    ),
)


@dataclass(frozen=True)
class Training:
    """What the user asked of a run of many steps."""

    steps: int
    data: str | None
    save: Path | None
    every: int | None
    resume: Path | None
    compared: bool
    force: bool
    kernels: tuple[str, ...]
    fuse: bool
    overlap: bool


def training_options(command: Command) -> Command:
    """The options of `run --steps`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def run_training(found: Opened, place: Path, asked: RunRequest, training: Training) -> int:
    """Train and say what came of it."""
    try:
        for name in training.kernels:
            allow(name)
        check_consent(found.held.graph)
    except OpaqueError as error:
        raise InputError(str(error)) from None
    begun = begin(
        found,
        str(place),
        seed=asked.seed,
        numbers=cast("Numbers | None", asked.dtype),
        data=training.data or "",
        inputs=asked.inputs,
        resume=training.resume,
    )
    last = begun.step + training.steps
    if training.save is not None:
        size = sum(value.nbytes for value in begun.state.values())
        checkpoint.check_folder(training.save, begun.step, training.force, size)
    lines = _Lines(begun, last, asked.as_json)
    wanted = training.compared or asked.output is not None
    try:
        lines.first(place, asked)
        outputs, transport = _ranks(found, begun, asked, training, last, lines.report_step, wanted)
    except (RankError, LaunchError) as error:
        first, *rest = str(error).split("\n")
        return report_error(first, Exit.INTERNAL, asked.as_json, rest)
    if asked.output is not None:
        asked.write(asked.output, outputs)
    compared = _compared(begun, last, outputs) if training.compared else None
    lines.last(transport, compared)
    return Exit.DONE if compared is None or compared.equal else Exit.REFUTED


def _ranks(
    found: Opened,
    begun: StartState,
    asked: RunRequest,
    training: Training,
    last: int,
    told: Callable[[StepDone], None],
    wanted: bool,
) -> tuple[dict[str, Array], str]:
    """(results of the last step where they are wanted, transport)."""
    options = Options(training.fuse, training.overlap, backend=asked.library, stored=begun.has_graph_types)
    if not asked.virtual:
        goal = Goal(last, training.save, training.every, wanted)
        return train_job(found, begun, options, goal, asked.timeout, told)
    trainer = Trainer(repeatable(found.held, found.scale, options), begun, asked.timeout)
    for number in range(begun.step + 1, last + 1):
        done = trainer.step()
        saved = None
        if training.save is not None and is_due(number, last, training.every):
            saved = str(trainer.save(training.save.resolve()))
        told(StepDone(done.step, done.loss, done.seconds, saved))
    return trainer.results() if wanted else {}, "virtual"


def _compared(begun: StartState, last: int, outputs: dict[str, Array]) -> Compared:
    """The last step beside that of one process.  Rounding adds up: as many times as much is allowed as steps were done,
    at most `GROWTH` times; beyond that one process decides that begins with other last digits.
    """
    with Watch("running in one process"):
        graph, inputs, expected = in_one_process(begun, last)
    allowed = comparison.tolerance_of(of_run(graph, inputs, begun.has_graph_types).computed) * min(
        GROWTH, last - begun.step
    )

    def again() -> dict[str, Array]:
        return in_one_process(replace(begun, state=other_digits(begun.state)), last)[2]

    return compare(graph, inputs, outputs, expected, allowed, begun.has_graph_types, again)


class _Lines:
    """What is said, step by step.  The last line waits for the comparison."""

    def __init__(self, begun: StartState, last: int, as_json: bool) -> None:
        self._begun, self._last, self._as_json = begun, last, as_json
        self._held: dict[str, object] = {}
        self._good: str | None = None  # the last state behind steps whose losses are numbers
        self._lost = False

    def first(self, place: Path, asked: RunRequest) -> None:
        """Before the ranks begin."""
        begun, origin = self._begun, self._begun.origin
        if self._as_json:
            return
        ranks = f"{asked.ranks} {'virtual' if asked.virtual else 'MPI'} ranks"
        say(
            f"{origin.model}: plan {origin.plan[:16]}, {ranks}, steps {begun.step + 1} to {self._last}, "
            f"{'every tensor in its own type' if begun.has_graph_types else origin.numbers}, {asked.library}"
        )
        if begun.feed.is_random:
            say(f"  data drawn from seed {origin.seed} and the number of the step (--data gives your own)")
        if begun.step == 0 and asked.inputs is None:
            say(f"  parameters drawn from seed {origin.seed} (--inputs gives your own, --resume a state)")
        if begun.no_loss is not None:
            say(f"  no loss: {begun.no_loss}")

    def report_step(self, done: StepDone) -> None:
        """A step has ended."""
        self._watch_loss(done)
        if self._as_json:
            loss_or_none = done.loss if done.loss is not None and isfinite(done.loss) else None
            facts: dict[str, object] = {"step": done.step, "loss": loss_or_none, "seconds": round(done.seconds, 6)}
            if done.loss is not None and loss_or_none is None:
                facts["no_loss"] = f"the loss is {done.loss}"
            if done.step == self._begun.step + 1 and self._begun.no_loss is not None:
                facts["no_loss"] = self._begun.no_loss
            if done.saved is not None:
                facts["saved"] = done.saved
            if done.step == self._last:
                self._held = facts
            else:
                emit(facts)
            return
        loss = "" if done.loss is None else f", loss {done.loss:.9g}"
        per_s = (self._begun.examples or 1) / max(done.seconds, 1e-9)
        rate = f"{per_s:.4g} {'steps' if self._begun.examples is None else 'examples'}/s"
        saved = "" if done.saved is None else f", saved in {done.saved}"
        say(f"  step {done.step}{loss}, {done.seconds:.4f} s, {rate}{saved}")

    def _watch_loss(self, done: StepDone) -> None:
        """Say once that the loss is no number any more, and which state was written before."""
        if self._lost or done.loss is None or isfinite(done.loss):
            self._good = self._good if self._lost or done.saved is None else done.saved
            return
        self._lost = True
        state = f"the last state before it is {self._good}" if self._good else "this run wrote no state before it"
        say(f"note: the loss of step {done.step} is {done.loss}; {state}", err=True)

    def last(self, transport: str, compared: Compared | None) -> None:
        """All ranks have ended, and one process has done the same."""
        if self._as_json:
            emit(self._held | {"transport": transport} | ({} if compared is None else compared.facts()))
        elif compared is not None:
            say(f"  transport {transport}", *(f"  {line}" for line in compared.lines()))
