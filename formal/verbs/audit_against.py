"""`audit --against`: which of two configurations of a training step is faster, and what would decide it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from ...models.machine.machine import Machine
from ...models.machine.quantities import error_bound_text
from ...models.pipelines.micro import batch_of
from ...models.pipelines.work import PER_SECOND
from ...models.program.graph import Graph
from ...models.sources.frameworks.settings import Settings
from ...models.terminal.console import Exit, emit, say
from ...models.text import InputError, bytes_text, seconds_text
from ...models.verbs.describe import training_of
from ..plans.frameworks import framework_settings, settings_of_step
from ..plans.pipelines.compared import BARS, Compared, Faster, Manner, Measurement, differences, error_bound_of_pair
from ..plans.pipelines.composed import Composed
from ..plans.pipelines.configuration import configuration, hidden_by, kernels_of
from ..plans.pipelines.given import micro_batches
from ..plans.remark_prices import least_memory
from .audit_pipelined import words

_EXITS: Final = {Faster.FASTER: Exit.DONE, Faster.SLOWER: Exit.REFUTED, Faster.UNDECIDED: Exit.UNDECIDED}

_LINKS: Final = {
    "tensor parallel": "all-reduces",
    "gradients": "reduce-scatters",
    "weights": "all-gathers",
    "sharded weights": "all-gathers",
    "tied gradients": "all-reduces",
    "experts": "all-to-alls",
    "context parallel": "sends",
    "sends": "sends",
}
"""Terms that wait for links -> what to measure."""

_KERNELS: Final = {
    "products": ("the matrix products of the step (m, n, k, dtype, us)", "products.csv"),
    "other kernels": ("a step with PyTorch's profiler", "trace.json"),
    "updates": ("a step with PyTorch's profiler", "trace.json"),
}
"""The other terms whose constants one kind of measurement gives -> what to measure, and its file."""

_STEPS: Final = ("steps of both configurations", "steps.csv")
"""What decides everything else: a table of whole steps."""

SHOWN: Final = 3
"""Measurements that are listed for people; `--json` has all."""


@dataclass(frozen=True)
class Compares:
    """What both configurations are of: model, machine and how it was named, optimizer, and the options that are not
    said (None: what each one's settings say); `memory`: of a device, in bytes.
    """

    model: Graph
    machine: Machine
    named: str
    train: str
    recompute: str | None
    precision: str | None
    memory: int | None


@dataclass(frozen=True)
class _Run:
    """One configuration, priced."""

    name: str
    settings: Settings
    manner: Manner
    step: Composed


def audit_against(job: Compares, given: tuple[Path, Settings], against: Path, notes: list[str], as_json: bool) -> Exit:
    """Compare, and say it.  Raises `InputError` for settings of another model, and for steps that are not priced."""
    other = framework_settings(against)
    if other is None:
        raise InputError(f"{against}: no settings of a framework that is read; --against takes what --strategy takes")
    runs = [_priced(job, str(given[0]), given[1]), _priced(job, str(against), other)]
    kinds = differences(runs[0].manner, runs[1].manner)
    found = Compared(runs[0].step, runs[1].step, kinds, error_bound_of_pair(kinds))
    limit = job.memory or least_memory(job.machine)[1]
    if as_json:
        emit(_document(job, runs, found, limit) | ({"notes": notes} if notes else {}))
    else:
        say(*_lines(job, runs, found, limit), *(f"note: {note}" for note in notes))
    return _EXITS[found.verdict]


def _priced(job: Compares, name: str, settings: Settings) -> _Run:
    which = job.recompute or ("none" if settings.recompute is None else settings.recompute.value)
    types = job.precision or settings.precision
    machine = job.machine
    settings = settings_of_step(settings, job.model, job.train, which, types, name)
    step = training_of(job.model, job.train, None, which, types)
    assert step is not None  # `train` is said
    flags = settings.flags
    said = None if flags.micro_batch or flags.steps or flags.pp > 1 else 1  # without stages, the batch as a whole
    micro = micro_batches(flags, machine.devices, batch_of(step.graph), said)
    found = configuration(step, machine, settings, micro)
    if isinstance(found, str):
        raise InputError(f"{name}: the configuration as it runs is not priced: {found}")
    manner = Manner(flags, micro, 1, which, types, kernels_of(settings), hidden_by(settings))
    return _Run(name, settings, manner, found)


def _measuring(term: str, machine: str) -> tuple[str, str]:
    """What to measure for a term, and the command that takes it."""
    what, _, level = term.partition(", ")
    if level:
        kind, file = f"{_LINKS[what]} over {level}, as nccl-tests do", "nccl-tests.txt"
    else:
        kind, file = _KERNELS.get(term, _STEPS)
    return kind, f"shardproof machine calibrate {machine} --from {file} -o measured.toml"


def _needed(found: Compared) -> list[Measurement]:
    """Measurements that could turn the answer; where none does by itself, none."""
    return [m for m in found.measurements if m.regret]


def _text(seconds: Fraction) -> str:
    sign = "-" if seconds < 0 else ""
    return sign + seconds_text(round(abs(seconds) * PER_SECOND), PER_SECOND)


def _lines(job: Compares, runs: list[_Run], found: Compared, limit: int) -> list[str]:
    names = [Path(run.name).name[:24] for run in runs]
    rows = list(zip(names, runs, strict=True))
    lines = [f"{name}: {words(run.manner.flags, run.manner.micro_batches)}" for name, run in rows]
    width = max(22, *(len(term) for term, _, _ in found.terms))
    lines.append(f"{'':{width}} {names[0]:>24} {names[1]:>24} {'difference':>14}")
    for term, a, b in found.terms:
        lines.append(f"{term:{width}} {_text(a):>24} {_text(b):>24} {_text(a - b):>14}")
    a, b = (run.step.seconds for run in runs)
    lines.append(f"{'step':{width}} {_text(a):>24} {_text(b):>24} {_text(a - b):>14}")
    sizes = [bytes_text(run.step.memory_bytes) for run in runs]
    lines.append(f"{'memory, fullest device':{width}} {sizes[0]:>24} {sizes[1]:>24}")
    for name, run in rows:
        if run.step.memory_bytes > limit:
            lines.append(f"{name} does not fit: {bytes_text(run.step.memory_bytes)} of {bytes_text(limit)} on a device")
    return [*lines, *_verdict_lines(job, names, found)]


def _verdict_lines(job: Compares, names: list[str], found: Compared) -> list[str]:
    ratio, bar = f"{float(found.ratio):.3g} times", error_bound_text(found.bar)
    if not found.kinds:
        return ["undecided: the two are one configuration"]
    ways = ", ".join(kind.value for kind in found.kinds)
    error = f"they differ in {ways}: such pairs are predicted within {bar} (all published ones)"
    if found.kinds[0] not in BARS:
        error = f"they differ in {ways}, of which few pairs are published: the widest error counts, {bar}"
    if found.verdict is not Faster.UNDECIDED:
        return [f"{found.verdict.value}: {names[0]} takes {ratio} as long as {names[1]}", error]
    lines = [f"undecided: {names[0]} is predicted to take {ratio} as long as {names[1]}", error]
    needed = _needed(found)[:SHOWN]
    for m in needed:
        kind, command = _measuring(m.term, job.named)
        turns = "" if m.turns is None else f"; both are alike where it takes {float(m.turns):.3g} times its price"
        between = f"the difference is {_text(m.low)} to {_text(m.high)}"
        lines.append(f"measure {kind} ({m.term}): {between}, choosing now costs up to {_text(m.regret)}{turns}")
        lines.append(f"  {command}")
    if not needed:
        widest = max(found.measurements, key=lambda m: m.high - m.low)
        kind, command = _measuring("", job.named)
        between = f"{widest.term}, the widest: {_text(widest.low)} to {_text(widest.high)}"
        lines.append(f"no term turns it by itself ({between}); measure {kind}")
        lines.append(f"  {command}")
    return lines


def _document(job: Compares, runs: list[_Run], found: Compared, limit: int) -> dict[str, object]:
    def side(run: _Run) -> dict[str, object]:
        fits = run.step.memory_bytes <= limit
        return {**run.step.to_json(), "fits": fits, "settings": run.settings.to_json(), "name": run.name}

    def measure(m: Measurement) -> dict[str, object]:
        kind, command = _measuring(m.term, job.named)
        return {
            "term": m.term,
            "measure": kind,
            "command": command,
            "difference_low": float(m.low),
            "difference_high": float(m.high),
            "turns_at": None if m.turns is None else float(m.turns),
            "regret": float(m.regret),
        }

    undecided = found.verdict is Faster.UNDECIDED and bool(found.kinds)
    kind, command = _measuring("", job.named)
    steps: dict[str, object] = {"term": "step", "measure": kind, "command": command}
    listed: list[dict[str, object]] = [measure(m) for m in _needed(found)] or [steps]
    return {
        "verdict": found.verdict.value,
        "ratio": float(found.ratio),
        "difference": float(found.difference),
        "differ_in": [kind.value for kind in found.kinds],
        "error_bound": float(found.bar),
        "terms": [
            {"name": n, "seconds": float(a), "against": float(b), "difference": float(a - b)} for n, a, b in found.terms
        ],
        "strategy": side(runs[0]),
        "against": side(runs[1]),
        "measurements": listed if undecided else [],
    }
