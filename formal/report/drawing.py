"""Draws what a page shows as SVG text: placements as strips of colour, bars of parts, lines over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2, prod

from ...models.layout.placement import Placement
from .words import escape

COLOURS = (
    "#2f6db5", "#d9822b", "#3a9a5b", "#b8474f", "#7b5ea7", "#8a6d4b", "#c76ba5", "#5f7f8f", "#a8a02e", "#2a9d9d",
    "#5b5fd0", "#e0a13c", "#7fb04a", "#d2664b", "#9a86c9", "#b3967a",
)  # fmt: skip
REPLICATED = "#e4e4e0"
FAR = 3
"""Times the peak beyond which a limit is written down and not drawn."""
PARTS = {"compute": "#2f6db5", "reduction": "#d9822b", "resharding": "#b8474f"}


class Palette:
    """One colour per axis, in the order in which axes are met."""

    def __init__(self) -> None:
        self.colours: dict[str, str] = {}

    def of(self, axis: str) -> str:
        """The colour of an axis."""
        return self.colours.setdefault(axis, COLOURS[len(self.colours) % len(COLOURS)])


def degrees(placement: Placement) -> tuple[int, ...]:
    """Devices per level that a placement is on: of the machine, its stage or its submesh."""
    return tuple(prod(column) for column in zip(*placement.matrix, strict=True))


def strip(
    placement: Placement,
    hierarchy: Sequence[int],
    palette: Palette,
    copy: bool = False,
    width: int = 190,
    height: int = 15,
) -> str:
    """A placement: a box per level, as wide as its devices are many (in powers), filled by the axes that cut it.
    `copy`: of a tensor's copy, whose axes are the numbers of its dimensions.
    """
    sizes = [max(log2(n), 0.5) if n > 1 else 0.35 for n in hierarchy]
    unit = (width - 4 * (len(sizes) - 1)) / sum(sizes)
    out, x = [], 0.0
    for j, size in enumerate(sizes):
        rows = [(i, row[j]) for i, row in enumerate(placement.matrix) if row[j] > 1] or [(len(placement.axes), 1)]
        share = sum(max(log2(n), 0.5) for _, n in rows)
        for i, n in rows:
            axis = placement.axes[i] if i < len(placement.axes) else ""
            axis = f"dim {axis}" if axis and copy else axis
            w = size * unit * max(log2(n), 0.5) / share
            colour = palette.of(axis) if axis else REPLICATED
            title = f"{axis} over {n}" if axis else f"copies on {n}" if n > 1 else "one device"
            out.append(
                f'<rect x="{x:.1f}" width="{w:.1f}" height="{height}" fill="{colour}">'
                f"<title>{escape(title)}</title></rect>"
            )
            if axis and w > 7 * len(axis) + 4:
                out.append(f'<text x="{x + w / 2:.1f}" y="{height - 4}" class="on">{escape(axis)}</text>')
            x += w
        x += 4
    return f'<svg class="strip" width="{width}" height="{height}" role="img">{"".join(out)}</svg>'


def bar(parts: Mapping[str, float], whole: float, width: int = 260, height: int = 15) -> str:
    """A bar of parts, as long as their share of `whole`."""
    out, x = [], 0.0
    for name, value in parts.items():
        w = width * value / whole if whole else 0.0
        if w:
            out.append(
                f'<rect x="{x:.2f}" width="{max(w, 0.3):.2f}" height="{height}" fill="{PARTS.get(name, COLOURS[0])}">'
                f"<title>{escape(name)}</title></rect>"
            )
        x += w
    return f'<svg width="{width}" height="{height}" role="img">{"".join(out)}</svg>'


def steps(
    lines: Mapping[str, Sequence[int]], limit: int | None, unit: int, name: str, width: int = 860, height: int = 220
) -> str:
    """Lines over the steps of a plan, with a rule where the limit is; values in multiples of `unit`, called `name`."""
    count = max((len(v) for v in lines.values()), default=0)
    most = max([*(max(v, default=0) for v in lines.values()), 1])
    near = limit is not None and limit <= FAR * most
    peak = limit if limit is not None and near else most
    peak = max(peak, most)
    left, right, top, bottom = 62, 10, 10, 26
    wide, tall = width - left - right, height - top - bottom

    def at(i: int, value: float) -> str:
        return f"{left + wide * i / max(count - 1, 1):.1f},{top + tall * (1 - value / peak):.1f}"

    out = []
    for k in range(5):
        value = peak * k / 4
        y = top + tall * (1 - k / 4)
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="axis end">{value / unit:.3g}</text>')
    for colour, (label, values) in zip(COLOURS, lines.items(), strict=False):
        stride = max(1, len(values) // 1200)
        picked = [(i, max(values[i : i + stride])) for i in range(0, len(values), stride)]
        area = f"{at(0, 0)} {' '.join(at(i, v) for i, v in picked)} {at(picked[-1][0] if picked else 0, 0)}"
        out.append(f'<polygon points="{area}" fill="{colour}" fill-opacity="0.18"/>')
        out.append(
            f'<polyline points="{" ".join(at(i, v) for i, v in picked)}" fill="none" stroke="{colour}" '
            f'stroke-width="1.6"><title>{escape(label)}</title></polyline>'
        )
    if limit is not None and not near:
        said = f"limit {limit / unit:.3g} {escape(name)}, above"
        out.append(f'<text x="{width - right}" y="{top + 14}" class="axis end">{said}</text>')
    elif limit is not None:
        y = top + tall * (1 - limit / peak)
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" class="limit"/>')
        out.append(f'<text x="{left + 6}" y="{y + 14:.1f}" class="axis">limit</text>')
    out.append(f'<text x="{left}" y="{height - 8}" class="axis">step 0</text>')
    out.append(f'<text x="{width - right}" y="{height - 8}" class="axis end">step {max(count - 1, 0)}</text>')
    out.append(f'<text x="{left + wide / 2}" y="{height - 8}" class="axis mid">{escape(name)} over the step</text>')
    return f'<svg viewBox="0 0 {width} {height}" class="wide" role="img">{"".join(out)}</svg>'


def key(colours: Mapping[str, str], title: str = "") -> str:
    """What colours mean; `title`: of what."""
    items = (f'<span><i style="background:{c}"></i>{escape(name)}</span>' for name, c in colours.items())
    said = f'<b class="soft">{escape(title)}</b>' if title else ""
    return f'<p class="key">{said}{"".join(items)}</p>'
