"""What a pipelined plan decided, stage by stage: its placements in the field's words, where its time
goes, what fills its memory.

    busy      m (forward + backward) + updates, in parts of the step; the rest a stage waits: filling and emptying,
              sends, cuts that leave others more to do
    moving    what reshardings and reductions take, in parts of that; where they run beside operators, what is left
              of them while no operator runs
    memory    of the fullest device, with as many activations as the schedule keeps there, and with one less

Where views have several chunks of the model every chunk is a stage here; the memory is that of all chunks of its view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ....models.layout.placement import space
from ....models.pipelines.exchange import Message
from ....models.pipelines.work import PER_SECOND
from ....models.schedules.pipeline import Pipeline
from ....models.text import bytes_text, seconds_text
from ....proofs.pipelines.certificate import PipelineCertificate, Stage
from ...explain.parallelism import LevelParallelism, parallelism_of
from ...schedules.drawing import text
from ..report import table_text
from .case import Case
from .chunked import kept_by_chunk, view_peaks
from .exchange_costs import exchange_costs
from .job import Job
from .phases import StagePlan, stage_with_orders
from .scheduled import waiting

COLUMNS = 100
"""Of a schedule as text."""


@dataclass(frozen=True)
class StageReport:
    """A stage: its devices (from the first to the last, in the machine's order), the tensor that it begins with, its
    units and operators, seconds of forward and backward of a micro-batch and of its updates, `busy` and `moving` (see
    above), activations kept, bytes on the fullest device, bytes of one more activation (None where one is kept), and
    the scheme of every level.
    """

    devices: tuple[int, int]
    begins: str
    units: int
    operators: int
    forward: Fraction
    backward: Fraction
    update: Fraction
    busy: Fraction
    moving: Fraction
    kept: int
    peak: int
    activation: int | None
    levels: tuple[LevelParallelism, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "devices": list(self.devices),
            "begins": self.begins,
            "units": self.units,
            "operators": self.operators,
            "times": [float(t) for t in (self.forward, self.backward, self.update)],
            "busy": float(self.busy),
            "moving": float(self.moving),
            "kept": self.kept,
            "peak_bytes": self.peak,
            "activation_bytes": self.activation,
            "scheme": [level.words() for level in self.levels],
        }


@dataclass(frozen=True)
class PipelineReport:
    """All stages of a plan, and its schedule as text, a line per stage.  `exchange`: what stages send each other once a
    step, with the bytes of a device's block.
    """

    certificate: PipelineCertificate
    stages: tuple[StageReport, ...]
    drawing: tuple[str, ...]
    exchange: tuple[tuple[Message, int], ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        c = self.certificate
        return {
            "micro_batches": c.micro,
            "step": c.step / PER_SECOND,
            "lower_bound": c.lower_bound / PER_SECOND,
            "pairs": [list(pair) for pair in c.pairs],
            **({"chunks": c.chunks} if c.chunks > 1 else {}),
            **({"interleaved": [[x.stages, x.micro, x.chunks] for x in c.interleaved]} if c.interleaved else {}),
            "stages": [stage.to_json() for stage in self.stages],
            "exchange": [
                {"tensor": x.tensor, "from": x.sender, "to": x.receiver, "bytes": size} for x, size in self.exchange
            ],
        }

    def exchange_lines(self) -> list[str]:
        """A line per pair of stages that exchange something once a step."""
        pairs: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for x, size in self.exchange:
            pairs.setdefault((x.sender, x.receiver), []).append((x.tensor, size))
        lines = []
        for (one, other), sent in pairs.items():
            most = max(sent, key=lambda row: row[1])[0]
            more = f" and {len(sent) - 1} more" if len(sent) > 1 else ""
            lines.append(
                f"once a step stage {one} sends stage {other} {most}{more}: "
                f"{bytes_text(sum(size for _, size in sent))} per device"
            )
        return lines


def explain_pipeline(c: PipelineCertificate) -> PipelineReport:
    """What a checked certificate holds, with its problem built again."""
    job = Job(c.graph, c.division, c.machine, space(c.space), c.memory, c.forbidden, c.overlap is not None)
    case, pipe = Case(job, c.views, c.micro, chunks=c.chunks), c.schedule.subject
    assert isinstance(pipe, Pipeline)
    stages = [_planned(case, c, s) for s in range(len(c.stages))]
    problem = pipe.problem()
    kept = kept_by_chunk(pipe, c.schedule.starts)
    queued = waiting(case, stages, pipe, c.schedule.starts)
    peaks = view_peaks(case, stages, pipe, c.schedule.starts)
    held = [peak + sum(queued[view :: c.views]) for view, peak in enumerate(peaks)]
    rows = [
        _row(c, case, s, plan, stage, kept[s], held[s % c.views])
        for s, (plan, stage) in enumerate(zip(stages, c.stages, strict=True))
    ]
    return PipelineReport(
        c, tuple(rows), tuple(text(problem, c.schedule.starts, COLUMNS)), exchange_costs(case, stages).blocks
    )


def _planned(case: Case, c: PipelineCertificate, s: int) -> StagePlan:
    planning, stage = case.pieces.planning, c.stages[s]
    named = [
        *((planning.operators[n], p) for n, p in stage.choices.operators),
        *((planning.copies[n], p) for n, p in stage.choices.copies),
    ]
    choices = {v: planning.decisions[v].choice(placement) for v, placement in named}
    if c.overlap is not None:
        found = (c.overlap.of(s, "F"), c.overlap.of(s, "B"), c.overlap.of(s, "U"))
        return stage_with_orders(case.pieces, (stage.first, stage.end), choices, c.memory is not None, found)
    return StagePlan(stage.first, stage.end, choices, case.pieces.seconds(stage.first, stage.end, choices))


def _row(
    c: PipelineCertificate, case: Case, s: int, plan: StagePlan, stage: Stage, kept: int, held: int
) -> StageReport:
    planning, phase = case.pieces.planning, case.pieces.phase
    scale, devices = planning.problem.scale, case.machine.devices
    computing = 0
    names = {name for name, _ in stage.choices.operators}
    x = [0] * len(planning.decisions)
    for v, choice in plan.choices.items():
        x[v] = choice
        if (costs := planning.costs[v]) is not None:
            computing += int(costs.compute[choice]) * (1 if phase[v] == "U" else c.micro)
    times = plan.seconds
    whole = c.micro * (times.forward + times.backward) + times.update
    begins = ["the input", *(name for name, _ in c.division.cuts)]
    peak = case.peak(plan, max(kept, 1))
    return StageReport(
        (s % c.views * devices, (s % c.views + 1) * devices - 1),
        begins[stage.first],
        stage.end - stage.first,
        len(names),
        Fraction(times.forward, scale),
        Fraction(times.backward, scale),
        Fraction(times.update, scale),
        Fraction(whole * PER_SECOND, scale * c.step),
        1 - Fraction(computing, whole) if whole else Fraction(0),
        kept,
        held,
        peak - case.peak(plan, kept - 1) if kept > 1 else None,
        parallelism_of(planning, x, names),
    )


def render_pipeline(report: PipelineReport) -> list[str]:
    """For people: a table of the stages, the schemes, the schedule."""
    c = report.certificate
    gap = 1 - Fraction(c.lower_bound, c.step)
    chunks = f" of {c.chunks} chunks" if c.chunks > 1 else ""
    title = (
        f"{c.graph.name} on {c.machine.name} {'x'.join(map(str, c.machine.hierarchy))}: {c.views} stages{chunks}, "
        f"{c.micro} micro-batches; step {seconds_text(c.step, PER_SECOND)}, within {float(gap):.2%} of the least over "
        f"{c.case_count} pairs of stages and micro-batches{', some with chunks' if c.interleaved else ''}"
    )
    columns = (
        *("chunk" if c.chunks > 1 else "stage", "devices", "from", "units", "forward", "backward", "updates"),
        *("busy", "moving", "activations", "memory", "one more adds"),
    )
    rows = [
        (
            str(s),
            f"{r.devices[0]}..{r.devices[1]}",
            r.begins,
            str(r.units),
            *(seconds_text(round(t * PER_SECOND), PER_SECOND) for t in (r.forward, r.backward, r.update)),
            f"{float(r.busy):.1%}",
            f"{float(r.moving):.1%}",
            str(r.kept),
            bytes_text(r.peak),
            "-" if r.activation is None else bytes_text(r.activation),
        )
        for s, r in enumerate(report.stages)
    ]
    lines: list[str] = [title, table_text("", columns, rows, (0, *range(3, len(columns))))]
    schemes: dict[tuple[str, ...], list[int]] = {}
    for s, r in enumerate(report.stages):
        schemes.setdefault(tuple(level.words() for level in r.levels), []).append(s)
    for words, where in schemes.items():
        if words:
            lines.append(f"parallelism of {_named(where)}: {' | '.join(words)}")
    pipe = c.schedule.subject
    assert isinstance(pipe, Pipeline)
    sends = [seconds_text(pipe.lag(s) * c.quantum, PER_SECOND) for s in range(1, len(c.stages))]
    if sends:
        lines.append(f"a send to the next stage, or back, takes {', '.join(dict.fromkeys(sends))}")
    lines += report.exchange_lines()
    lines.append("schedule, time from left to right; digits: forward, letters: backward of a micro-batch")
    return [*lines, *report.drawing]


def _named(stages: Sequence[int]) -> str:
    """`stage 0`, `stages 1 to 6`, `stages 0, 2`."""
    if len(stages) == 1:
        return f"stage {stages[0]}"
    if list(stages) == list(range(stages[0], stages[-1] + 1)):
        return f"stages {stages[0]} to {stages[-1]}"
    return f"stages {', '.join(map(str, stages))}"
