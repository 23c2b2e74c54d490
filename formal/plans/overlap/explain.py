"""What an overlapped plan decided: what its two streams do, which reshardings run while no operator does and who
waits for them, what fills its memory, and its parallelism in the field's words.

    hidden    what of a resharding runs beside operators
    exposed   the rest of it
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ....models.cost.selection import build
from ....models.layout.placement import space
from ....models.problem.selection_problem import Ints
from ....models.schedules.problem import ScheduleProblem
from ....models.text import bytes_text, seconds_text
from ....proofs.overlap.certificate import OverlapCertificate
from ...explain.parallelism import LevelParallelism, parallelism_of
from .planned import exposed_times, most_held
from .tasks import COMPUTE, HOST, LINKS

SHOWN = 5
"""Reshardings that are printed, the most exposed first."""


@dataclass(frozen=True)
class Exposed:
    """A resharding, or (`host`) a copy to hosts or back: its time, and how much of it runs while no operator does, in
    units of the problem; the operator that begins when it has ended, which waited for it.
    """

    name: str
    time: int
    exposed: int
    waiting: str
    host: bool = False


def exposures(problem: ScheduleProblem, starts: Ints, quantum: int) -> list[Exposed]:
    """Every resharding and copy to hosts of a schedule, the most exposed first."""
    tasks, exposed = problem.tasks, exposed_times(problem, starts).tolist()
    computing = sorted((int(starts[k]), k) for k, t in enumerate(tasks) if t.streams == (COMPUTE,))
    out = []
    for k, t in enumerate(tasks):
        if t.streams in ((LINKS,), (HOST,)):
            after = bisect_left(computing, (int(starts[k]) + t.time, -1))
            waiting = tasks[computing[after][1]].name if after < len(computing) else ""
            out.append(Exposed(t.name, t.time * quantum, exposed[k] * quantum, waiting, t.streams == (HOST,)))
    return sorted(out, key=lambda e: (-e.exposed, e.name))


@dataclass(frozen=True)
class OverlapReport:
    """`sums`: of operators and of reshardings, in units of the problem, `scale` of them a second; `peak`: bytes of
    the fullest device, None without a limit; nothing of all this where nothing fits.
    """

    certificate: OverlapCertificate
    scale: int
    sums: tuple[int, int]
    rows: tuple[Exposed, ...]
    peak: int | None
    levels: tuple[LevelParallelism, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data, times in seconds."""
        c, scale = self.certificate, self.scale
        return {
            "step": c.makespan / scale,
            "lower_bound": c.lower_bound / scale,
            "operators": self.sums[0] / scale,
            "redistributions": self.sums[1] / scale,
            **host_copies_json(self.rows, scale),
            "hidden": sum(e.time - e.exposed for e in self.rows) / scale,
            "exposed": [[e.name, e.time / scale, e.exposed / scale, e.waiting] for e in self.rows if e.exposed],
            "peak_bytes": self.peak,
            "scheme": [level.words() for level in self.levels],
        }


def explain_overlap(c: OverlapCertificate, scale: int) -> OverlapReport:
    """What a checked certificate holds; `scale`: units of its problem in a second."""
    if c.schedule is None:
        return OverlapReport(c, scale, (0, 0), (), None, ())
    subject = c.schedule.subject
    assert isinstance(subject, ScheduleProblem)
    sums = [sum(t.time for t in subject.tasks if t.streams == (s,)) * c.quantum for s in (COMPUTE, LINKS)]
    planning = build(c.graph, c.machine, space(c.space))
    x = planning.solution(c.choices)
    return OverlapReport(
        c,
        scale,
        (sums[0], sums[1]),
        tuple(exposures(subject, c.schedule.starts, c.quantum)),
        most_held(subject, c.schedule.starts),
        parallelism_of(planning, list(x), {op.name for op in c.graph.operators}),
    )


def render_overlap(report: OverlapReport) -> list[str]:
    """For people."""
    c, scale = report.certificate, report.scale
    title = f"{c.graph.name} on {c.machine.name} {'x'.join(map(str, c.machine.hierarchy))}, overlapped"
    if c.schedule is None:
        return [f"{title}: nothing fits {bytes_text(c.memory or 0)} per device, whatever runs beside what"]
    gap = 1 - Fraction(c.lower_bound, c.makespan) if c.makespan else Fraction(0)
    near = f"within {float(gap):.2%} of the least over all placements and orders"
    lines = [
        f"{title}: step {seconds_text(c.makespan, scale)}, {near}",
        *stream_lines(report.sums, report.rows, scale),
    ]
    if report.peak is not None:
        lines.append(f"memory {bytes_text(report.peak)} at most, of {bytes_text(c.memory or 0)}")
    words = [level.words() for level in report.levels]
    return [*lines, *([f"parallelism: {' | '.join(words)}"] if words else [])]


def host_copies_json(rows: Sequence[Exposed], scale: int) -> dict[str, float]:
    """Seconds of copies to hosts and back, of plans that have any."""
    copied = sum(e.time for e in rows if e.host)
    return {"host_copies": copied / scale} if copied else {}


def stream_lines(sums: tuple[int, int], rows: tuple[Exposed, ...], scale: int) -> list[str]:
    """What the streams take, and the reshardings and copies to hosts that are exposed most."""
    shown, hidden = sum(e.exposed for e in rows), sum(e.time - e.exposed for e in rows)
    apart = f"{seconds_text(hidden, scale)} are hidden and {seconds_text(shown, scale)} exposed"
    operators, moved = (seconds_text(t, scale) for t in sums)
    copied = sum(e.time for e in rows if e.host)
    copies = f", copies to hosts and back {seconds_text(copied, scale)}" if copied else ""
    return [
        f"operators {operators}; reshardings {moved}{copies}, of which {apart}",
        *(
            f"  exposed {seconds_text(e.exposed, scale)} of {seconds_text(e.time, scale)}: {e.name}"
            + (f"; {e.waiting} waits" if e.waiting else "; nothing is left to run")
            for e in rows[:SHOWN]
            if e.exposed
        ),
    ]
