"""What a notebook shows of a plan: one line, and a strip of colour per operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ..plans.report import label, pattern
from .drawing import REPLICATED, Palette, degrees, key, strip
from .words import escape

MOST_ROWS: Final = 60

STYLE: Final = (
    "svg.strip text.on{fill:#fff;text-anchor:middle;font:10.5px system-ui,sans-serif}.key span{margin-right:1em}"
    ".key i{display:inline-block;width:12px;height:12px;margin-right:5px}"
)


def plan_view(machine: Machine, placements: Mapping[str, Placement], title: str) -> str:
    """A piece of HTML that loads nothing; operators of repeated layers that are placed alike share a row."""
    groups: dict[tuple[str, Placement], list[str]] = {}
    for name, placement in placements.items():
        groups.setdefault((pattern(name), placement), []).append(name)
    palette, rows = Palette(), []
    for (_, placement), names in list(groups.items())[:MOST_ROWS]:
        times = f" x{len(names)}" if len(names) > 1 else ""
        drawn = strip(placement, degrees(placement) or machine.hierarchy, palette)
        rows.append(f"<tr><td>{escape(label(names))}{times}</td><td>{drawn}</td></tr>")
    more = f"<p>and {len(groups) - MOST_ROWS} rows more</p>" if len(groups) > MOST_ROWS else ""
    levels = " x ".join(f"{level.size} {level.name}" for level in machine.levels)
    return (
        f"<div><style>{STYLE}</style><p><b>{escape(title)}</b><br>{escape(machine.name)}: {escape(levels)}</p>"
        f"{key({**palette.colours, 'copies': REPLICATED})}<table>{''.join(rows)}</table>{more}</div>"
    )
