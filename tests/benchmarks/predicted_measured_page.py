"""Table and plot of `predicted_measured.py`: markdown and one SVG with a panel per model, both axes logarithmic."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

Result = Mapping[str, object]
PANEL, MARGIN = 250, 56
COLORS = {"optimum": "#c0392b", "data parallel": "#2471a3", "tensor parallel": "#1e8449", "replicated": "#7d3c98"}


def render(stored: Mapping[str, Result], folder: Path, by: str = "measured") -> None:
    """Write predicted-measured.md and predicted-measured.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "predicted-measured.md").write_text(page(stored) + "\n")
    (folder / "predicted-measured.svg").write_text(svg(stored, by) + "\n")


def _part(result: Result, *path: str) -> object:
    value: object = result
    for key in path:
        value = cast("Mapping[str, object]", value)[key] if value is not None else None
    return value


def _number(result: Result, *path: str) -> float:
    return float(str(_part(result, *path)))


def page(stored: Mapping[str, Result]) -> str:
    """The tables."""
    out = [
        "# Predicted against measured",
        "",
        (
            "`python tests/benchmarks/predicted_measured.py`: plans of one training step (SGD, float32) on 2 MPI "
            "ranks of one computer, one thread each, NumPy, "
            "no fusion, no overlap; the machine calibrated first (`machine calibrate`, operators by shape as "
            "`[[profile]]` rows). What the columns mean stands in the script."
        ),
        "",
        (
            f"Computer: {_cpu()}; ranks share its memory. Load is the one-minute average before and after; 2 of it "
            f"are the ranks themselves."
        ),
        "",
        (
            "| model | operators | plans | rounds | predicted ms | measured ms | rank correlation | first / best | "
            "rank (quiet) | first (quiet) | predicted / measured | load | when |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, r in stored.items():
        rows = cast("Sequence[Result]", r["plans"])
        spans = [
            f"{1e3 * min(_number(p, k) for p in rows):.1f} to {1e3 * max(_number(p, k) for p in rows):.1f}"
            for k in ("predicted", "measured")
        ]
        judged = {by: cast("Mapping[str, float]", _part(r, "judged", by)) for by in ("measured", "quiet")}
        load = cast("Sequence[float]", r["load"])
        out.append(
            f"| {name} | {r['operators']} | {len(rows)} | {r['rounds']} | {spans[0]} | {spans[1]} | "
            f"{judged['measured']['rank']:.3f} | {judged['measured']['first']:.3f} | "
            f"{judged['quiet']['rank']:.3f} | {judged['quiet']['first']:.3f} | "
            f"{judged['measured']['lowest_ratio']:.2f} to {judged['measured']['highest_ratio']:.2f} | "
            f"{load[0]:.1f}, {load[-1]:.1f} | {r['when']} |"
        )
    good = [r for r in stored.values() if _number(r, "judged", "measured", "rank") >= 0.8]
    near = [r for r in stored.values() if _number(r, "judged", "measured", "first") <= 1.15]
    out += [
        "",
        (
            f"Wanted: rank correlation at least 0.8 (reached by {len(good)} of {len(stored)} models) and the plan "
            f"predicted first within 15 % of the best measured "
            f"(reached by {len(near)} of {len(stored)})."
        ),
        "",
        "![predicted against measured](predicted-measured.svg)",
        "",
        "## Calibration",
        "",
        (
            "Errors of predicted over measured parts: mean, worst. The roofline is what stands in the machine file "
            "beside the profile rows."
        ),
        "",
        (
            "| model | collectives (reduction programs) | operators, roofline | operators, profile rows | "
            "reshardings | profile rows | link | launch |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, r in stored.items():
        fits = [
            "-"
            if part is None
            else f"{100 * part['mean_error']:.0f} %, {100 * part['worst_error']:.0f} % of {part['rows']:.0f}"
            for part in (
                cast("Mapping[str, float] | None", _part(r, *path))
                for path in (
                    ("collectives",),
                    ("calibration", "roofline"),
                    ("calibration", "profile"),
                    ("calibration", "redistributions"),
                )
            )
        ]
        constants = cast("Mapping[str, str]", _part(r, "calibration", "constants"))
        link, latency, launch = (
            _fraction(constants[k])
            for k in ("level.ranks.bandwidth", "level.ranks.latency", "device_class.core.launch")
        )
        out.append(
            f"| {name} | {' | '.join(fits)} | {_part(r, 'calibration', 'profiles')} | {link / 1e9:.2f} GB/s + "
            f"{1e6 * latency:.0f} us | {1e6 * launch:.0f} us |"
        )
    out += [
        "",
        "## Every plan",
        "",
        "Milliseconds; `median` is that of whole steps.",
        "",
        "| model | plan | predicted | measured | median | quiet |",
        "|---|---|---|---|---|---|",
    ]
    for name, r in stored.items():
        for p in sorted(cast("Sequence[Result]", r["plans"]), key=lambda p: _number(p, "predicted")):
            out.append(
                f"| {name} | {p['plan']} | "
                + " | ".join(f"{1e3 * _number(p, k):.2f}" for k in ("predicted", "measured", "median", "quiet"))
                + " |"
            )
    return "\n".join(out)


def _fraction(text: str) -> float:
    top, _, bottom = text.partition("/")
    return int(top) / int(bottom or 1)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return (
        f"{lines[0].split(':')[1].strip()}, {len(lines)} cores" if lines else platform.processor() or platform.machine()
    )


def svg(stored: Mapping[str, Result], by: str) -> str:
    """Predicted (x) against `by` (y), one dot per plan."""
    columns = min(3, max(1, len(stored)))
    size = PANEL + MARGIN
    width, height = columns * size + 20, -(-len(stored) // columns) * size + 60
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} '
            f'{height}" font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for n, (name, r) in enumerate(stored.items()):
        left, top = MARGIN + (n % columns) * size, 24 + (n // columns) * size
        rows = cast("Sequence[Result]", r["plans"])
        axes = []
        for key in ("predicted", by):
            values = [math.log10(1e3 * _number(p, key)) for p in rows]
            pad = 0.05 * max(0.1, max(values) - min(values))
            axes.append((min(values) - pad, max(values) + pad))

        def at(
            p: Result, axes: Sequence[tuple[float, float]] = axes, left: float = left, top: float = top
        ) -> tuple[float, float]:
            (x0, x1), (y0, y1) = axes
            x, y = (math.log10(1e3 * _number(p, key)) for key in ("predicted", by))
            return left + PANEL * (x - x0) / (x1 - x0), top + PANEL * (1 - (y - y0) / (y1 - y0))

        out.append(f'<rect x="{left}" y="{top}" width="{PANEL}" height="{PANEL}" fill="none" stroke="#999"/>')
        out.append(
            f'<text x="{left}" y="{top - 7}" font-weight="bold">{name}: rank '
            f"{_number(r, 'judged', by, 'rank'):.2f}, first {_number(r, 'judged', by, 'first'):.2f}</text>"
        )
        for (low, high), horizontal in zip(axes, (True, False), strict=True):
            for value in _ticks(low, high):
                part = (math.log10(value) - low) / (high - low)
                if horizontal:
                    x = left + PANEL * part
                    out.append(
                        f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + PANEL}" stroke="#eee"/><text '
                        f'x="{x:.1f}" y="{top + PANEL + 13}" text-anchor="middle">{value:g}</text>'
                    )
                else:
                    y = top + PANEL * (1 - part)
                    out.append(
                        f'<line x1="{left}" y1="{y:.1f}" x2="{left + PANEL}" y2="{y:.1f}" stroke="#eee"/><text '
                        f'x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
                    )
        for p in rows:
            x, y = at(p)
            color = COLORS.get(str(p["plan"]), "#555")
            out.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if color != "#555" else 3}" fill="{color}" '
                f'fill-opacity="0.8"><title>{p["plan"]}</title></circle>'
            )
        out.append(f'<text x="{left + PANEL / 2}" y="{top + PANEL + 26}" text-anchor="middle">predicted ms</text>')
        out.append(
            f'<text transform="translate({left - 36},{top + PANEL / 2}) rotate(-90)" text-anchor="middle">{by} '
            f"ms</text>"
        )
    x = MARGIN
    for label, color in (*COLORS.items(), ("other plans", "#555")):
        out.append(
            f'<circle cx="{x}" cy="{height - 12}" r="5" fill="{color}"/><text x="{x + 9}" '
            f'y="{height - 8}">{label}</text>'
        )
        x += 30 + 7 * len(label)
    return "\n".join([*out, "</svg>"])


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between 10^low and 10^high, at most about six."""
    found = [
        m * 10.0**e
        for e in range(math.floor(low), math.ceil(high) + 1)
        for m in (1, 2, 5)
        if low <= math.log10(m * 10.0**e) <= high
    ]
    if len(found) >= 2:
        return found
    step = 10.0 ** math.floor(math.log10(10**high - 10**low))
    return [k * step for k in range(math.ceil(10**low / step), math.floor(10**high / step) + 1)][:6]
