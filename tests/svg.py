"""A canvas of SVG for the pictures of docs/: text stays text, and both light and dark pages are served by one file."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

COLOURS = ("#2f6db5", "#d9822b", "#3a9a5b", "#b8474f", "#7b5ea7", "#8a6d4b", "#2a9d9d", "#a8a02e")
"""One per device or stage; drawn over the paper at part of their strength, so that ink is read on all of them."""

STYLE = """
text{font-family:system-ui,"DejaVu Sans",sans-serif;font-size:14px}
.paper{fill:#ffffff}.ink{fill:#1b1f24}.soft{fill:#57606a;font-size:12px}.bold{font-weight:600}
.line{stroke:#57606a;fill:none;stroke-width:1.4}.tip{fill:#57606a}
.box{fill:#f4f6f8;stroke:#57606a}.trust{fill:#dff2e5;stroke:#2f7d4f;stroke-width:1.6}.none{fill:none;stroke:#57606a}
.upper{stroke:#b8474f;fill:none;stroke-width:2}.lower{stroke:#2f6db5;fill:none;stroke-width:2}
"""
DARK = """.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#a3adb8}.line{stroke:#a3adb8}.tip{fill:#a3adb8}
.box{fill:#1c232c;stroke:#8b949e}.trust{fill:#173a25;stroke:#5fbf80}.none{stroke:#8b949e}
.upper{stroke:#ef8088}.lower{stroke:#6fb0f5}
"""


@dataclass
class Canvas:
    """A drawing of `width` x `height` pixels; `title` is what is read aloud in its place."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, kind: str = "box", round_: int = 6) -> None:
        """A rectangle of a class of `STYLE`, or of colour number `kind` (c0, c1, ..)."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round_}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "ink", anchor: str = "middle") -> None:
        """Words on the line y, centred unless `anchor` says start or end."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def label(self, x: float, y: float, w: float, h: float, lines: list[str], kind: str = "box") -> None:
        """A box with lines in it: the first one bold, the others soft."""
        self.box(x, y, w, h, kind)
        top = y + h / 2 - 9 * (len(lines) - 1) + 5
        for k, line in enumerate(lines):
            self.text(x + w / 2, top + 18 * k, line, "ink bold" if k == 0 else "soft")

    def path(self, points: list[tuple[float, float]], kind: str = "line") -> None:
        """A line through points."""
        self.parts.append(f'<polyline class="{kind}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>')

    def arrow(self, points: list[tuple[float, float]]) -> None:
        """A line with a tip at its end."""
        self.path(points)
        (x0, y0), (x1, y1) = points[-2:]
        size = max(abs(x1 - x0), abs(y1 - y0)) or 1
        dx, dy = (x1 - x0) / size * 8, (y1 - y0) / size * 8
        ends = f"{x1:g},{y1:g} {x1 - dx - dy / 2:g},{y1 - dy + dx / 2:g} {x1 - dx + dy / 2:g},{y1 - dy - dx / 2:g}"
        self.parts.append(f'<polygon class="tip" points="{ends}"/>')

    def svg(self, scheme: str = "auto") -> str:
        """The file.  `scheme`: "auto" follows the reader's; "dark" is dark anywhere, for looking at it."""
        tints = "".join(
            f".c{k}{{fill:{c};fill-opacity:.42;stroke:{c};stroke-opacity:.9}}" for k, c in enumerate(COLOURS)
        )
        dark = {"auto": f"@media (prefers-color-scheme:dark){{{DARK}}}", "dark": DARK}[scheme]
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>\n'
        paper = f'<rect class="paper" width="{self.width}" height="{self.height}" rx="8"/>'
        return "\n".join([f"{head}<style>{STYLE}{tints}\n{dark}</style>", paper, *self.parts, "</svg>"]) + "\n"
