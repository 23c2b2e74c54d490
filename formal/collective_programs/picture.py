"""Draws who talks to whom, step by step, as one self-contained SVG.

One panel per step.  Devices stand in a row in machine order, with wider gaps between blocks of outer levels; every
group is a colour and a comb of lines above its members, groups that overlap in the row at different heights.  Devices
outside every group are grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import prod

from ...models.collective_programs.collectives import LoweredStep

MAX_DEVICES = 256
"""Larger machines are drawn up to the first groups that lie within this many devices, and the title says so."""


def picture(steps: Sequence[LoweredStep], hierarchy: Sequence[int], title: str, captions: Sequence[str]) -> str:
    """SVG text.

    >>> from shardproof.models.collective_programs.collectives import Collective
    >>> svg = picture([LoweredStep(Collective.ALL_REDUCE, ((0, 1), (2, 3)), (2, 2), 2)], (2, 2), "t", ["AR"])
    >>> svg.count("<polyline"), svg.count("<rect"), svg.startswith("<svg")
    (2, 5, True)
    """
    devices = prod(hierarchy)
    shown = min(devices, MAX_DEVICES)
    size = 18 if shown <= 64 else 9
    x = _places(hierarchy, shown, size)
    width = x[-1] + size + 20
    body: list[str] = []
    y = 26
    for number, (step, caption) in enumerate(zip(steps, captions, strict=True)):
        groups = [g for g in step.groups if max(g) < shown]
        heights = _heights(groups)
        top = y + 20
        base = top + 7 * (max(heights, default=0) + 1) + 6
        share = f"{step.rows[0]}/{step.chunks} of the data" if len(set(step.rows)) == 1 else "unequal shares"
        body.append(
            f'<text x="10" y="{y + 12}" class="c">{number + 1}. {escape(caption)} - {len(step.groups)} groups of '
            f"{len(step.groups[0])}, {share}</text>"
        )
        colour = ["#cccccc"] * shown
        for k, (g, h) in enumerate(zip(groups, heights, strict=True)):
            hue = f"hsl({k * 137 % 360},65%,{42 + k * 29 % 18}%)"
            line = base - 4 - 7 * h
            members = sorted(g)
            feet = [x[d] + size // 2 for d in members]
            points = " ".join(f"{f},{line} {f},{base} {f},{line}" for f in feet[1:-1])
            points = f"{feet[0]},{base} {feet[0]},{line} {points} {feet[-1]},{line} {feet[-1]},{base}"
            body.append(f'<polyline points="{points}" fill="none" stroke="{hue}" stroke-width="1.5"/>')
            for d in g:
                colour[d] = hue
        for d in range(shown):
            body.append(
                f'<rect x="{x[d]}" y="{base}" width="{size - 2}" height="{size - 2}" rx="3" fill="{colour[d]}"/>'
            )
            if size > 10:
                body.append(f'<text x="{x[d] + size // 2 - 1}" y="{base + 11}" class="d">{d}</text>')
        y = base + size + 12
    note = "" if shown == devices else f" (first {shown} of {devices} devices)"
    wide = max(width, 420)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y + 6}" width="{wide}" height="{y + 6}">'
        "<style>text{font-family:sans-serif;fill:#222}.t{font-size:14px;font-weight:bold}.c{font-size:11px}.d{font-size:8px;text-anchor:middle;fill:#fff}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/><text x="10" y="18" class="t">{escape(title + note)}</text>'
    )
    return head + "".join(body) + "</svg>\n"


def _places(hierarchy: Sequence[int], shown: int, size: int) -> list[int]:
    """Left edge of every device: a gap of 10 more per level that changes, except the innermost."""
    out, at = [], 10
    for d in range(shown):
        if d:
            at += size + sum(10 for j in range(1, len(hierarchy)) if d % prod(hierarchy[j:]) == 0)
        out.append(at)
    return out


def _heights(groups: Sequence[tuple[int, ...]]) -> list[int]:
    """Smallest height per group so that combs of equal height do not overlap."""
    ends: list[list[tuple[int, int]]] = []
    out = []
    for g in groups:
        low, high = min(g), max(g)
        h = next((h for h, taken in enumerate(ends) if all(b < low or high < a for a, b in taken)), len(ends))
        if h == len(ends):
            ends.append([])
        ends[h].append((low, high))
        out.append(h)
    return out
