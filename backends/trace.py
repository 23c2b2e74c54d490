"""What a run did and when: one span per instruction and one per resharding in flight, as a table
and as a Chrome trace.

    compute        time in operators                       wait      time in reshardings that cannot go on without
    their partners
    in flight      from a resharding's start to its end
    overlap        part of the time in flight during which the rank computed:  1 - wait / in flight

Times are seconds of `time.perf_counter`, minus that at the common start; on one computer all processes share this
clock.  Format: Trace Event Format of Chrome (`ph` X: complete events, b and e: asynchronous ones, M: names), read by
Perfetto as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..models.files.json_text import parse_json
from ..models.files.output import write_file

KINDS = ("compute", "communication", "flight", "data")


@dataclass(frozen=True)
class Span:
    """`kind`: one of `KINDS`; flight: a resharding under way beside other work."""

    rank: int
    name: str
    kind: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


class Recorder:
    """Collects the spans of one rank.  `origin_s`: the common start on the clock.  A mark is what `now` gives: here
    seconds since the start.
    """

    def __init__(self, rank: int, origin_s: float | None = None) -> None:
        self.rank, self.origin_s = rank, time.perf_counter() if origin_s is None else origin_s
        self.spans: list[Span] = []

    def now(self) -> float:
        """A mark."""
        return time.perf_counter() - self.origin_s

    def add(self, name: str, kind: str, start: float) -> None:
        """A span from a mark until now."""
        self.span(name, kind, start, self.now())

    def span(self, name: str, kind: str, start_s: float, end_s: float) -> None:
        """A span whose seconds are known."""
        self.spans.append(Span(self.rank, name, kind, start_s, end_s))

    def settle(self) -> None:
        """At the end of a run: all of its spans are there."""


@dataclass(frozen=True)
class Row:
    """Times of one operator, or of one resharding, over all ranks: the slowest rank's seconds, and the mean."""

    name: str
    kind: str
    slowest_s: float
    mean_s: float


@dataclass(frozen=True)
class Summary:
    """`rows`: longest first.  `overlap`: see the module docstring, over all ranks; None if nothing was in flight."""

    rows: tuple[Row, ...]
    compute_s: float
    wait_s: float
    flight_s: float

    @property
    def overlap(self) -> float | None:
        """Share of the time in flight that no rank waited."""
        return None if self.flight_s == 0 else max(0.0, 1 - self.wait_s / self.flight_s)


def summary(spans: Iterable[Span], ranks: int) -> Summary:
    """The table of a run.

    >>> spans = [Span(0, "y", "compute", 0.0, 3.0), Span(0, "m", "flight", 1.0, 5.0), Span(0, "m", "communication",
    ...     3.0, 5.0)]
    >>> summary(spans, 1).overlap
    0.5
    """
    times: dict[tuple[str, str], list[float]] = {}
    for s in spans:
        times.setdefault((s.name, s.kind), [0.0] * ranks)[s.rank] += s.seconds
    rows = [Row(name, kind, max(t), sum(t) / ranks) for (name, kind), t in times.items() if kind != "data"]

    def total(kind: str) -> float:
        return sum(sum(t) for (_, k), t in times.items() if k == kind)

    rows.sort(key=lambda r: (-r.slowest_s, r.name))
    # a resharding that was not split is in flight exactly while its rank waits
    split = {name for name, kind in times if kind == "flight"}
    plain = sum(sum(t) for (name, k), t in times.items() if k == "communication" and name not in split)
    return Summary(tuple(rows), total("compute"), total("communication"), total("flight") + plain)


def table(times: Summary, ranks: int, most: int = 12) -> list[str]:
    """The longest rows as lines of text, and how much of the communication ran beside computation."""
    lines = [f"{'slowest rank':>12}  {'mean':>10}  operator, or resharding waited for"]
    shown = [r for r in times.rows if r.kind != "flight"]
    lines += [f"{1e3 * r.slowest_s:>9.3f} ms  {1e3 * r.mean_s:>7.3f} ms  {r.name}" for r in shown[:most]]
    if len(shown) > most:
        lines.append(
            f"{1e3 * sum(r.slowest_s for r in shown[most:]):>9.3f} ms  {'':>10}  {len(shown) - most} more rows together"
        )
    share = (
        "nothing communicated"
        if times.overlap is None
        else f"{times.overlap:.0%} of {1e3 * times.flight_s / ranks:.3f} ms in flight ran beside computation"
    )
    lines.append(
        f"per rank: {1e3 * times.compute_s / ranks:.3f} ms computing, {1e3 * times.wait_s / ranks:.3f} ms "
        f"waiting; {share}"
    )
    return lines


def chrome(spans: Iterable[Span], name: str, lines: Mapping[int, str] | None = None) -> dict[str, object]:
    """The trace as a JSON object; one line per rank, times in microseconds.  `lines`: names of lines that are no
    ranks.
    """
    ordered = sorted(spans, key=lambda s: (s.rank, s.start_s, -s.end_s))
    events: list[Mapping[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": name}}
    ]
    events += [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": r, "args": {"name": (lines or {}).get(r, f"rank {r}")}}
        for r in sorted({s.rank for s in ordered})
    ]
    for number, s in enumerate(ordered):
        common = {"name": s.name, "cat": s.kind, "pid": 0, "tid": s.rank}
        start, length = round(s.start_s * 1e6, 3), round(s.seconds * 1e6, 3)
        if s.kind == "flight":
            events += [
                {**common, "ph": "b", "id": number, "ts": start},
                {**common, "ph": "e", "id": number, "ts": round(start + length, 3)},
            ]
        else:
            events.append({**common, "ph": "X", "ts": start, "dur": length, "args": {}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_json(path: Path, trace: Mapping[str, object]) -> None:
    """Write a trace; a file that is there is replaced at once or not at all."""
    write_file(path, json.dumps(trace, separators=(",", ":")).encode())


def write_spans(path: Path, spans: Iterable[Span]) -> None:
    """One rank's spans, for the parent."""
    path.write_text(json.dumps([[s.rank, s.name, s.kind, s.start_s, s.end_s] for s in spans]))


def read_spans(path: Path) -> list[Span]:
    """`write_spans` read back."""
    data: Any = parse_json(path.read_text())
    return [Span(int(r), str(n), str(k), float(a), float(b)) for r, n, k, a, b in data]
