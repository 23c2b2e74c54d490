"""The page of a sweep: one line per setting, the step over what runs fastest, each with its bound, and the table."""

from __future__ import annotations

from collections.abc import Sequence

from ..plans.sweep import Outcome, Row, table
from .drawing import COLOURS, key
from .page import page
from .words import escape

MOST_LINES = len(COLOURS)
"""Lines of the picture; the table holds the others."""

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 12, 30


def sweep_page(title: str, rows: Sequence[tuple[Row, Outcome]]) -> str:
    """HTML of the rows of a sweep."""
    heads, lines = table(rows)
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    text = f"<table><tr>{head}</tr>{body}</table>"
    sections = [("table", "Plans", text)]
    if picture := curves(rows):
        sections.insert(0, ("curves", "Step and bound", picture))
    return page(title, sections)


def curves(rows: Sequence[tuple[Row, Outcome]]) -> str:
    """The step over the last key that has several values, a line for each combination of the others; dashed what no
    plan of its space is below.  Empty where no line has two points.
    """
    keys = [k for k, _ in rows[0][0].values] if rows else []
    several = [k for k in keys if len({dict(row.values)[k] for row, _ in rows}) > 1]
    if not several:
        return ""
    across = several[-1]
    marks = list(dict.fromkeys(dict(row.values)[across] for row, _ in rows))
    lines: dict[str, dict[int, tuple[float, float | None]]] = {}
    for row, found in rows:
        step, least = found.seconds("cost"), found.seconds("lower_bound")
        if step is not None:
            name = ", ".join(v for k, v in row.values if k != across and k in several) or "step"
            lines.setdefault(name, {})[marks.index(dict(row.values)[across])] = step, least
    drawn = dict(list(lines.items())[:MOST_LINES])
    if max((len(points) for points in drawn.values()), default=0) < 2:
        return ""
    most = max(step for points in drawn.values() for step, _ in points.values())
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(i: int, value: float) -> str:
        return f"{LEFT + wide * i / max(len(marks) - 1, 1):.1f},{TOP + tall * (1 - value / most):.1f}"

    out = []
    for k in range(5):
        y = TOP + tall * (1 - k / 4)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="axis end">{1e3 * most * k / 4:.4g}</text>')
    for i, mark in enumerate(marks):
        x = LEFT + wide * i / max(len(marks) - 1, 1)
        side = "axis" if i == 0 else "axis end" if i == len(marks) - 1 else "axis mid"
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" class="{side}">{escape(mark)}</text>')
    for colour, (name, points) in zip(COLOURS, drawn.items(), strict=False):
        for which, dash in ((0, ""), (1, ' stroke-dasharray="5 4"')):
            path = " ".join(at(i, value) for i in sorted(points) if (value := points[i][which]) is not None)
            said = escape(f"{name}: no plan of its space is below" if which else name)
            out.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}>'
                f"<title>{said}</title></polyline>"
            )
        out += [
            f'<circle cx="{at(i, step).replace(",", chr(34) + " cy=" + chr(34))}" r="3" fill="{colour}"/>'
            for i, (step, _) in sorted(points.items())
        ]
    note = f'<p class="soft">milliseconds of a step over {escape(across)}; dashed: what no plan of its space is below'
    note += f"; {len(lines) - MOST_LINES} more lines are in the table" if len(lines) > MOST_LINES else ""
    colours = dict(zip(drawn, COLOURS, strict=False))
    return f'{key(colours)}{note}</p><svg viewBox="0 0 {WIDTH} {HEIGHT}" class="wide" role="img">{"".join(out)}</svg>'
