"""Draws a schedule as SVG and as text: time from left to right, one row per stream, what each device holds
below.

Micro-batches are colours; forward is pale, the backward for the input full, the backward for the weights dark.  Tasks
of other problems are coloured by their stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from colorsys import hls_to_rgb
from fractions import Fraction
from html import escape

from ...models.problem.selection_problem import Ints
from ...models.schedules.problem import ScheduleProblem
from ...models.text import bytes_text, seconds_text

MOST_BOXES = 20_000
"""Tasks that are drawn one by one; of larger schedules the longest are."""

_NAME = re.compile(r"([FIW])(\d+)\.(\d+)")
_SHADE = {"F": (70, 78), "I": (70, 55), "W": (55, 36)}
LEFT, ROW, GAP, MEMORY = 90, 24, 6, 30


def held_over_time(problem: ScheduleProblem, starts: Ints) -> list[list[tuple[int, int]]]:
    """Per device (moment, amount held from then on), moments rising.

    >>> from ...models.schedules.pipeline import Pipeline
    >>> import numpy as np
    >>> held_over_time(Pipeline(((1, 1, 1),), 1, 0, None).problem(), np.array([0, 1, 2]))
    [[(0, 1), (3, 0)]]
    """
    ends = [int(s) + t.time for s, t in zip(starts, problem.tasks, strict=True)]
    last = max(ends)
    changes: list[dict[int, int]] = [{} for _ in problem.limits]
    for h in problem.holdings:
        begin = 0 if h.first is None else int(starts[h.first])
        end = max((ends[t] for t in h.last), default=last)
        if end > begin:
            here = changes[h.device]
            here[begin] = here.get(begin, 0) + h.amount
            here[end] = here.get(end, 0) - h.amount
    found = []
    for here in changes:
        level, steps = 0, []
        for moment in sorted(here):
            level += here[moment]
            steps.append((moment, level))
        found.append(steps)
    return found


def peaks(problem: ScheduleProblem, starts: Ints) -> list[int]:
    """The most that each device holds."""
    return [max((amount for _, amount in steps), default=0) for steps in held_over_time(problem, starts)]


def picture(problem: ScheduleProblem, starts: Ints, title: str, second: Fraction | None = None) -> str:
    """SVG text.  `second`: seconds that a time of 1 stands for; without it times have no unit.

    >>> from ...models.schedules.pipeline import Pipeline
    >>> import numpy as np
    >>> svg = picture(Pipeline(((1, 1, 1),), 1, 0, None).problem(), np.array([0, 1, 2]), "one")
    >>> svg.startswith("<svg"), svg.count('class="t"')
    (True, 3)
    >>> timed = picture(Pipeline(((1, 1, 1),), 1, 0, None).problem(), np.array([0, 1, 2]), "one", Fraction(1, 1000))
    >>> ">300 us<" in timed, ">2 ms to 3 ms<" in timed.replace(": ", ">").replace("</title", "<")
    (True, True)
    """
    end = max(int(s) + t.time for s, t in zip(starts, problem.tasks, strict=True)) or 1
    width = 1200
    scale = width / end
    rows: list[str] = []
    shown = sorted(range(len(problem.tasks)), key=lambda t: -problem.tasks[t].time)[:MOST_BOXES]
    boxes = {s: [t for t in shown if s in problem.tasks[t].streams] for s in range(len(problem.streams))}
    held = held_over_time(problem, starts)
    y = 46
    for d in range(len(problem.limits)):
        for s, stream in enumerate(problem.streams):
            if stream.device != d:
                continue
            label = f"device {d}" if stream.kind == "compute" else stream.kind
            rows.append(f'<text x="8" y="{y + 16}" class="n">{escape(label)}</text>')
            rows.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{ROW}" fill="#f3f3f3"/>')
            rows += [_box(problem, starts, t, s, y, scale, second) for t in sorted(boxes[s])]
            y += ROW + 2
        if held[d]:
            rows += _level(problem, d, held[d], end, y, scale)
            y += MEMORY
        y += GAP
    ticks = []
    for k in range(11):
        x = LEFT + width * k / 10
        ticks.append(f'<line x1="{x:.1f}" y1="40" x2="{x:.1f}" y2="{y}" stroke="#ddd" stroke-width="0.5"/>')
        ticks.append(
            f'<text x="{x:.1f}" y="{y + 12}" class="a">{_moment(problem, Fraction(end * k, 10), second)}</text>'
        )
    note = "" if len(shown) == len(problem.tasks) else f"; the {len(shown)} longest of {len(problem.tasks)} tasks"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + width + 30}" height="{y + 24}" '
        f'viewBox="0 0 {LEFT + width + 30} {y + 24}">\n'
        "<style>text{font-family:sans-serif;fill:#222}.h{font-size:15px;font-weight:bold}.n{font-size:12px}"
        ".l{font-size:10px;text-anchor:middle}.a{font-size:10px;text-anchor:middle;fill:#666}.k{font-size:11px}"
        ".m{font-size:9px;fill:#666}</style>\n"
        f'<rect width="100%" height="100%" fill="white"/>\n<text x="8" y="20" class="h">{escape(title + note)}</text>\n'
        + _legend(problem)
        + "\n".join([*ticks, *rows])
        + "\n</svg>\n"
    )


def _moment(problem: ScheduleProblem, units: Fraction, second: Fraction | None) -> str:
    """A time of a schedule for people."""
    time = units / problem.scale
    if second is None or not time:
        return f"{float(time):.4g}"
    return seconds_text((time * second).numerator, (time * second).denominator)


def _box(problem: ScheduleProblem, starts: Ints, t: int, s: int, y: int, scale: float, second: Fraction | None) -> str:
    task = problem.tasks[t]
    x, w = LEFT + int(starts[t]) * scale, task.time * scale
    match = _NAME.fullmatch(task.name)
    label = ""
    if match:
        strength, light = _SHADE[match[1]]
        colour = _colour(int(match[3]) * 137, strength, light)
        if w > 14:
            ink = "#fff" if match[1] == "W" else "#222"
            label = f'<text x="{x + w / 2:.1f}" y="{y + 16}" class="l" style="fill:{ink}">{match[3]}</text>'
    else:
        colour = _colour(s * 137 + 210, 55, 50 + t % 3 * 8)
    border = ' stroke="#fff" stroke-width="0.5"' if w > 3 else ""
    begin, end = int(starts[t]), int(starts[t]) + task.time
    spoken = (begin, end) if second is None else (_moment(problem, Fraction(x), second) for x in (begin, end))
    name = f"<title>{escape(task.name)}: {' to '.join(map(str, spoken))}</title>"
    box = f'<rect class="t" x="{x:.2f}" y="{y}" width="{w:.2f}" height="{ROW}" fill="{colour}"{border}>{name}</rect>'
    return box + label


def _colour(hue: int, strength: int, light: int) -> str:
    """Degrees and percent as six digits, which every reader of SVG knows."""
    return "#" + "".join(f"{round(255 * x):02x}" for x in hls_to_rgb(hue % 360 / 360, light / 100, strength / 100))


def _level(
    problem: ScheduleProblem, device: int, steps: Sequence[tuple[int, int]], end: int, y: int, scale: float
) -> list[str]:
    limit = problem.limits[device]
    most = max(*(amount for _, amount in steps), limit or 0, 1)
    y, high = y + 3, MEMORY - 8
    points, before = [f"{LEFT},{y + high}"], 0
    for moment, amount in [*steps, (end, 0)]:
        x = LEFT + moment * scale
        points += [f"{x:.2f},{y + high - before / most * high:.2f}", f"{x:.2f},{y + high - amount / most * high:.2f}"]
        before = amount
    out = [f'<polygon points="{" ".join(points)}" fill="#9db4c8"/>']
    if limit is not None:
        line = y + high - limit / most * high
        out.append(
            f'<line x1="{LEFT}" y1="{line:.1f}" x2="{LEFT + end * scale:.1f}" y2="{line:.1f}" stroke="#b33" '
            'stroke-width="0.7" stroke-dasharray="4 3"/>'
        )
    peak = max(amount for _, amount in steps)
    most_held = bytes_text(peak) if problem.unit == "s" else f"{Fraction(peak, problem.scale)}"
    out.append(f'<text x="8" y="{y + high}" class="m">holds {most_held} at most</text>')
    return out


def _legend(problem: ScheduleProblem) -> str:
    if not _NAME.fullmatch(problem.tasks[0].name):
        return ""
    words = {"F": "forward", "I": "backward for the input", "W": "backward for the weights"}
    out, x = "", LEFT
    for kind, word in words.items():
        strength, light = _SHADE[kind]
        out += f'<rect x="{x}" y="27" width="12" height="10" fill="{_colour(210, strength, light)}"/>'
        out += f'<text x="{x + 16}" y="36" class="k">{word}</text>'
        x += 40 + 7 * len(word)
    return (
        out
        + f'<text x="{x}" y="36" class="k">colour: micro-batch; below each device: activations that it holds</text>\n'
    )


def text(problem: ScheduleProblem, starts: Ints, columns: int = 100) -> list[str]:
    """One line per stream; a column is the task that runs in the middle of its span.

    Forwards are digits (last one of the micro-batch), backwards for the input small letters, for the weights capitals.

    >>> from ...models.schedules.pipeline import Pipeline
    >>> import numpy as np
    >>> text(Pipeline(((1, 1, 2),), 1, 0, None).problem(), np.array([0, 1, 2]))
    ['  0 |0aAA|']
    """
    end = max(int(s) + t.time for s, t in zip(starts, problem.tasks, strict=True)) or 1
    columns = min(columns, end)
    lines = [[" "] * columns for _ in problem.streams]
    for task, start in zip(problem.tasks, starts.tolist(), strict=True):
        match = _NAME.fullmatch(task.name)
        if match:
            mark = {"F": "0123456789", "I": "abcdefghij", "W": "ABCDEFGHIJ"}[match[1]][int(match[3]) % 10]
        else:
            mark = "#"
        # columns k with start <= (k + 1/2) end / columns < start + time
        first = -((end - 2 * start * columns) // (2 * end))
        for k in range(max(0, first), columns):
            if (2 * k + 1) * end >= 2 * (start + task.time) * columns:
                break
            for s in task.streams:
                lines[s][k] = mark
    names = [f"{s.device}" if s.kind == "compute" else s.kind for s in problem.streams]
    wide = max(3, *(len(n) for n in names))
    return [f"{name:>{wide}} |{''.join(line)}|" for name, line in zip(names, lines, strict=True)]
