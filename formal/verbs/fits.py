"""The verb `fits`: does a job fit into the memory of its devices, and if not, what is the least change that helps?

With settings, what they take as they run (`configuration`, by parts) stands beside the proof.  The status that is
printed is the checker's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from ...models.cost.limits import TooLarge
from ...models.machine.machine import Machine, load_machine
from ...models.machine.shared_links import with_shared_links
from ...models.pipelines.micro import batch_of
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph
from ...models.sources.compared import Reading, note_comparison
from ...models.sources.load import Attention
from ...models.sources.training import TrainingStep
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.terminal.options import (
    BATCH,
    MEMORY,
    MEMORY_OR_NONE,
    attention_option,
    compare_option,
    json_option,
    operator_option,
    options_as,
    refuse_combinations,
)
from ...models.text import InputError, bytes_text
from ...models.verbs.describe import training_of
from ...models.verbs.optimizer import OPTIMIZER, PRECISION, PRECISION_HELP
from ...proofs.selection.file import write_certificate
from ..plans.fitting import EDGE, KEEPS, RESERVE, Fit, Held, Job, Setup, changes, reserve_of, verdict_of
from ..plans.frameworks import pipelined_settings, settings_of_step, strategy_of_settings
from ..plans.pipelines.composed import Composed
from ..plans.pipelines.configuration import configuration
from ..plans.pipelines.given import micro_batches
from ..plans.remark_prices import least_memory
from ..plans.time_limit import TimeLimit, TooSlow
from ..selection.model.clock import Overdue
from .combinations import FITS
from .door import Door
from .search_options import limit_options, start_limit

_EXITS = {
    Fit.FITS: Exit.DONE,
    Fit.NOT: Exit.INFEASIBLE,
    Fit.RUNS_NOT: Exit.REFUTED,
    Fit.RUNS: Exit.UNDECIDED,
    Fit.UNDECIDED: Exit.UNDECIDED,
}


_FITTING = (Fit.FITS, Fit.RUNS)


@dataclass(frozen=True)
class FitsOptions:
    """The command line of `fits`."""

    subject: str
    machine: str
    strategy: Path | None
    train: str | None
    batch: int | None
    attention: Attention | None
    compare: bool
    operators: tuple[Path, ...]
    memory: int | None
    reserve: int | None
    recompute: str | None
    precision: str | None
    time_limit: float | None
    work_limit: int | None
    as_json: bool


@dataclass(frozen=True, eq=False)
class Answer:
    """A verdict about a setup that the checker has confirmed (`held` is None: the time was over before there was one),
    and what the settings take as they run (None: no settings, or a reason why they are not priced in `unpriced`).
    """

    setup: Setup
    held: Held | None
    fit: Fit
    running: Composed | None
    unpriced: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain data: bytes on the fullest device."""
        found, setup = self.held, self.setup
        peak = None if found is None else found.peak
        return {
            "verdict": self.fit.value,
            "micro_batches": setup.micro,
            "recompute": setup.recompute,
            "zero": setup.zero,
            "devices": setup.machine.devices,
            "space": None if found is None else found.problem.space,
            "peak_bytes": peak,
            "parts": None if found is None or peak is None else {"stored": found.stored, "passing": found.passing},
            "configuration": None if self.running is None else self.running.to_json(),
            **({"not_priced": self.unpriced} if self.unpriced else {}),
        }


@click.command("fits")
@click.argument("subject", metavar="MODEL")
@click.option("--machine", required=True, help="Built-in name, name:4x8, 4x8, or a TOML file.")
@click.option("--strategy", type=click.Path(path_type=Path), help="Settings of a framework, a file or the text itself.")
@click.option("--train", type=OPTIMIZER, help="Of a training step with this optimizer; without it of a forward pass.")
@click.option("--batch", type=BATCH, help="Batch size of the model.")
@attention_option
@compare_option
@operator_option
@click.option("--memory", type=MEMORY, help="Memory of a device, such as 80GiB [default: the machine's].")
@click.option(
    "--reserve",
    type=MEMORY_OR_NONE,
    help="Memory of a device that driver and libraries keep [default: 2GiB, at most a twentieth; 0 below 4GiB].",
)
@click.option(
    "--recompute", help="With --train: none, all, attention, or blocks, as in plan [default: what the settings say]."
)
@click.option("--precision", type=PRECISION, help=f"With --train [default: what the settings say]. {PRECISION_HELP}")
@limit_options()
@json_option
@click.pass_obj
@refuse_combinations(FITS)
@options_as(FitsOptions)
def fits_command(publisher: Door, options: FitsOptions) -> int:
    """Say whether a MODEL fits into the memory of a machine, and the least changes that make it fit."""
    clock = start_limit(options.time_limit, options.work_limit)
    publisher = publisher.within(clock.late)
    notes: list[str] = []
    machine, shared = with_shared_links(load_machine(options.machine))
    notes.extend(shared)
    how = Reading(
        batch=options.batch,
        attention=options.attention,
        compare=options.compare,
        trained=options.train is not None,
        operators=options.operators,
    )
    graph = note_comparison(publisher, options.subject, how, notes)
    job, setup = job_of(graph, machine, options)
    with Watch("fitting"):
        first = _judged(publisher, job, setup, clock)
        tried = [] if first.fit in _FITTING else _changed(publisher, job, setup, clock, first.held is not None)
    if options.as_json:
        emit(
            {
                **first.to_json(),
                "memory_bytes": job.memory,
                "reserved_bytes": job.reserve,
                "changes": [
                    {"kind": kind, "change": found.setup.words, "least": least, **found.to_json()}
                    for kind, found, least in tried
                ],
                "assumptions": [
                    *(() if first.held is None else first.held.problem.assumptions),
                    *([KEEPS] if setup.micro > 1 else []),
                    *([RESERVE] if job.reserve else []),
                ],
                "settings": None if job.settings is None else job.settings.to_json(),
                "seconds": round(clock.elapsed_s, 3),
                **({"notes": notes} if notes else {}),
            }
        )
        return _EXITS[first.fit]
    if job.reserve:
        kept, whole = bytes_text(job.reserve), bytes_text(job.memory + job.reserve)
        notes.append(f"driver and libraries keep {kept} of {whole} ({RESERVE}; --reserve says another amount)")
    say(*_lines(first, job.memory))
    for kind, found, least in tried:
        say(*_change_lines(kind, found, least, job.memory))
    if not tried and first.fit not in _FITTING:
        say("no change of one kind was found to fit (micro-batches, recomputation, sharding, nodes)")
    if job.settings is not None:
        say(job.settings.line())
    say(*(f"note: {note}" for note in notes))
    return _EXITS[first.fit]


def job_of(graph: Graph, machine: Machine, options: FitsOptions) -> tuple[Job, Setup]:
    """The job and its setup.  Raises `InputError` for settings of another model, and stages."""
    settings = None if options.strategy is None else pipelined_settings(options.strategy)
    place = str(options.strategy)
    recompute, types, micro = options.recompute or "none", options.precision, 1
    if settings is not None and settings.flags.pp > 1 and options.train is None:
        raise InputError(
            f"{settings.flags.source}: {settings.flags.pp} stages hold what they hold in a training step; give --train "
            "adam, or the settings of one stage"
        )
    if settings is not None and options.train is not None:
        recompute = options.recompute or ("none" if settings.recompute is None else settings.recompute.value)
        types = options.precision or settings.precision
        settings = settings_of_step(settings, graph, options.train, recompute, types, place)
        if settings.flags.micro_batch or settings.flags.steps:
            micro = micro_batches(settings.flags, machine.devices, batch_of(graph), None)
    elif settings is not None:
        settings = strategy_of_settings(settings, graph, machine, place).settings

    def step(part: Graph, which: str) -> TrainingStep | None:
        return training_of(part, options.train, None, which, types)

    memory = options.memory or least_memory(machine)[1]
    reserve = reserve_of(memory) if options.reserve is None else options.reserve
    if reserve >= memory:
        raise InputError(f"--reserve {bytes_text(reserve)} leaves nothing of {bytes_text(memory)}; give less")
    zero = None if settings is None else settings.flags.zero
    return Job(graph, step, settings, memory - reserve, reserve), Setup(machine, micro, recompute, zero)


def _judged(publisher: Door, job: Job, setup: Setup, clock: TimeLimit, proved: bool = True) -> Answer:
    """One setup, with what the checker says of it; the estimate alone of stages, and where nothing is `proved`."""
    running, why = as_run(job, setup)
    staged = job.settings is not None and job.settings.flags.pp > 1
    try:
        found = None if staged or not proved else verdict_of(job, setup, clock)
    except (TooSlow, Overdue):
        if running is None:
            raise
        found = None
    if found is None:
        return Answer(setup, None, _with_running(Fit.UNDECIDED, running, job), running, why)
    fit = found.fit
    if found.certificate is None and fit is not Fit.UNDECIDED:
        fit = Fit.UNDECIDED
    elif found.certificate is not None:
        data = write_certificate(None, found.certificate)
        if publisher.publish(None, data, found.problem).verdict is not Verdict.PROVED:
            fit = Fit.UNDECIDED
    return Answer(setup, found, _with_running(fit, running, job), running, why)


def _with_running(fit: Fit, running: Composed | None, job: Job) -> Fit:
    """The verdict beside what the settings take as they run: placements that they leave open may fit all the same."""
    if fit is Fit.NOT or running is None:
        return fit
    if running.memory_bytes > job.memory:
        return Fit.RUNS_NOT
    if running.memory_bytes * (1 + EDGE) > job.memory:
        return Fit.UNDECIDED
    return Fit.RUNS if fit is Fit.UNDECIDED else fit


def as_run(job: Job, setup: Setup) -> tuple[Composed | None, str]:
    """What the settings take as they run; without it, the reason."""
    if job.settings is None or (step := job.step(job.graph, setup.recompute)) is None:
        return None, ""
    flags = replace(job.settings.flags, zero=setup.zero or 0, micro_batch=0, global_batch=0, steps=0, dp=0)
    found = configuration(step, setup.machine, replace(job.settings, flags=flags), setup.micro)
    return (None, found) if isinstance(found, str) else (found, "")


def _changed(publisher: Door, job: Job, setup: Setup, clock: TimeLimit, proved: bool) -> list[tuple[str, Answer, bool]]:
    """Of each kind the least change that fits, and whether all smaller ones are proved not to fit; by the estimate
    where there was no time to have the setup itself `proved`.
    """
    sizes = tuple(level.size for level in setup.machine.levels)

    def machine_of(times: int) -> Machine:
        return setup.machine.resized((sizes[0] * times, *sizes[1:]))

    out = []
    for kind, setups in changes(job, setup, machine_of):
        least = True
        for one in setups:
            try:
                found = _judged(publisher, job, one, clock, proved)
            except InputError:  # degrees that do not divide what is left: no change of this size
                continue
            except (TooSlow, TooLarge, Overdue):  # no verdict: nothing behind it is proved least
                least = False
                continue
            if found.fit in _FITTING:
                out.append((kind, found, least and found.fit is Fit.FITS))
                break
            least = least and found.fit is Fit.NOT
    return sorted(out, key=lambda x: (x[1].running is None, x[1].running.seconds if x[1].running else 0))


def _lines(found: Answer, memory: int) -> list[str]:
    limit = bytes_text(memory)
    lines = []
    held = found.held
    peak = None if held is None else held.peak
    match found.fit:
        case Fit.FITS:
            margin = _margin(peak, memory)
            lines.append(f"fits (proved): at most {bytes_text(peak or 0)} of {limit} on a device, {margin}")
        case Fit.NOT:
            assert held is not None, "what is proved is proved of something"
            which = f"no placement of the space {held.problem.space!r}"
            which += "" if found.setup.zero is None else " that the settings allow"
            lines.append(f"does not fit (proved): {which} keeps within {limit} on every device")
        case Fit.RUNS_NOT:
            lines.append(f"does not fit as these settings run (an estimate): more than {limit} on a device")
            if peak is not None:
                lines.append(f"  another placement of what they leave open holds {bytes_text(peak)}")
        case Fit.RUNS:
            lines.append(f"fits as these settings run (an estimate, nothing is proved): within {limit} on a device")
        case Fit.UNDECIDED:
            near = found.running is not None and found.running.memory_bytes * (1 + EDGE) > memory
            why = f"what it takes is within {EDGE:.0%} of it, the error of the estimate" if near else "is not proved"
            lines.append(f"undecided: whether it fits {limit} on a device: {why}")
            if peak is not None:
                lines.append(f"  a placement of what the settings leave open holds {bytes_text(peak)}")
    if held is not None and peak is not None:
        stored, passing = held.stored or 0, held.passing or 0
        lines.append(f"  stored {bytes_text(stored)} (weights, state), in passing {bytes_text(passing)}")
    return [*lines, *_running_lines(found, memory)]


def _running_lines(found: Answer, memory: int) -> list[str]:
    if found.running is None:
        return [f"  as these settings run: not priced: {found.unpriced}"] if found.unpriced else []
    fullest = max(found.running.memory, key=lambda stage: sum(stage.values()))
    parts = ", ".join(f"{name} {bytes_text(n)}" for name, n in fullest.items() if n)
    total = found.running.memory_bytes
    return [f"  as these settings run: {bytes_text(total)}, {_margin(total, memory)}: {parts}"]


def _margin(taken: int | None, memory: int) -> str:
    left = memory - (taken or 0)
    return f"{bytes_text(left)} are left" if left >= 0 else f"{bytes_text(-left)} too much"


def _change_lines(kind: str, found: Answer, least: bool, memory: int) -> list[str]:
    proved = "the least of its kind (proved)" if least else "smaller ones are not proved impossible"
    if found.fit is Fit.RUNS:
        proved = "the least of its kind by the estimate, nothing is proved"
    time = "" if found.running is None else f", about {float(found.running.seconds):.4g} s a step"
    return [f"fits with {found.setup.words}: {proved}{time}", *_lines(found, memory)[1:]]
