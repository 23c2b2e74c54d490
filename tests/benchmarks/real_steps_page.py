"""Page and plots of `real_steps.py`: every family predicted by what was fitted on other parts of the same tables.

    python tests/benchmarks/real_steps_page.py --data DIR [--parts 5] [--to tests/benchmarks/results] [--only ..]

Writes `real-steps.md` and `real-steps.svg` (a panel per family, logarithmic; the diagonal is a perfect prediction).  With
`--only`, the other families keep their rows of the table.  Words beside the worst rows stand in `measured/why.py`; the page names a family that has none.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from real_steps import package

PANEL, MARGIN, COLUMNS = 230, 52, 4
WORST = 5


def main() -> None:
    """Cut, predict, write."""
    package()
    from measured.families import FAMILIES, PREDICTIONS
    from measured.folds import cut, joined
    from measured.judging import Predictions

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of public measurements")
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--only", nargs="*", help="these families alone")
    given = parser.parse_args()
    figures: dict[str, Mapping[str, object]] = {}
    points: dict[str, Predictions] = {}
    with TemporaryDirectory(prefix="real-steps-") as scratch:
        sides = list(cut(given.data, Path(scratch), given.parts))
        for name, family in FAMILIES.items():
            if given.only and name not in given.only:
                continue
            figures[name] = joined([dict(family(fit, judge)) for fit, judge in sides])
            if name in PREDICTIONS:
                points[name] = merged([PREDICTIONS[name](fit, judge) for fit, judge in sides])
            print(name, figures[name], file=sys.stderr, flush=True)
    given.to.mkdir(parents=True, exist_ok=True)
    target = given.to / "real-steps.md"
    before = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    kept = [line for line in before for name in FAMILIES if name not in figures and line.startswith(f"| {name} | ")]
    target.write_text(page(figures, points, given.parts, kept), encoding="utf-8")
    (given.to / "real-steps.svg").write_text(svg(points), encoding="utf-8")


def merged(parts: Sequence[object]) -> object:
    """Predictions of all parts as one."""
    from measured.judging import Predictions

    found = [p for p in parts if isinstance(p, Predictions)]
    return Predictions(
        labels=tuple(x for p in found for x in p.labels),
        predicted=tuple(x for p in found for x in p.predicted),
        measured=tuple(x for p in found for x in p.measured),
        lower=found[0].lower,
    )


def page(
    figures: Mapping[str, Mapping[str, object]], points: Mapping[str, object], parts: int, kept: Sequence[str]
) -> str:
    """The tables; `kept`: rows of families that were not asked for, as the page had them."""
    from measured.why import BARS, NOTES, WHY

    lines = [
        "# Real steps",
        "",
        (
            f"`python tests/benchmarks/real_steps_page.py --data DIR --parts {parts}`: public measurements cut into {parts} parts "
            "(groups of strategies and runs of one system stay together), every part predicted by constants fitted on the "
            "others.  What the columns mean stands in `real_steps.py`, where the data comes from in "
            "[`tests/data/measured/README.md`](../../data/measured/README.md)."
        ),
        "",
        "| family | rows | mean error | worst | wanted | others |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in figures.items():
        lines.append(_row(name, found, BARS.get(name, "")))
    lines += [*kept, "", *NOTES, "", "![predicted against measured](real-steps.svg)", "", "## Worst rows", ""]
    for name, found in points.items():
        lines += [f"### {name}", "", WHY.get(name, "No word on these yet."), ""]
        lines += ["| row | predicted | measured | off |", "|---|---|---|---|"]
        lines += [f"| {label} | {p:.4g} | {m:.4g} | {100 * (p / m - 1):+.0f} % |" for label, p, m in _worst(found)]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(name: str, found: Mapping[str, object], wanted: str) -> str:
    rest = []
    if "groups" in found:
        rest.append(
            f"{found['picked_within_2_percent']} of {found['groups']} groups picked within 2 %, rank correlation "
            f"{float(str(found['rank_correlation'])):.3f}"
        )
    if "pairs" in found:
        rest.append(
            f"{100 * int(str(found['pairs_right'])) / int(str(found['pairs'])):.1f} % of {found['pairs']} pairs right"
        )
    if "bar" in found:
        rest.append(f"error bound {100 * float(str(found['bar'])):.1f} %")
    if "below_measured" in found:
        rest.append(f"below measured {found['below_measured']}, within 5 % {found['within_5_percent']}")
    errors = [f"{100 * float(str(found[k])):.1f} %" if k in found else "" for k in ("mean_error", "worst_error")]
    return f"| {name} | {found.get('rows', 0)} | {errors[0]} | {errors[1]} | {wanted} | {'; '.join(rest)} |"


def _worst(found: object) -> Iterator[tuple[str, float, float]]:
    """The rows furthest off, worst first."""
    from measured.judging import Predictions

    assert isinstance(found, Predictions)
    rows = zip(found.labels, found.predicted, found.measured, strict=True)
    yield from sorted(rows, key=lambda r: -abs(math.log(r[1] / r[2])))[:WORST]


def svg(points: Mapping[str, object]) -> str:
    """Measured (x) against predicted (y)."""
    from measured.judging import Predictions

    size = PANEL + MARGIN
    columns, rows = min(COLUMNS, max(1, len(points))), -(-len(points) // COLUMNS)
    width, height = columns * size + 20, rows * size + 30
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for n, (name, found) in enumerate(points.items()):
        assert isinstance(found, Predictions)
        left, top = MARGIN + (n % COLUMNS) * size, 24 + (n // COLUMNS) * size
        out += _panel(name, found, left, top)
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(name: str, found: object, left: float, top: float) -> Iterator[str]:
    from measured.judging import Predictions

    assert isinstance(found, Predictions)
    values = [math.log10(v) for v in (*found.predicted, *found.measured)]
    pad = 0.04 * max(0.1, max(values) - min(values))
    low, high = min(values) - pad, max(values) + pad

    def at(value: float) -> float:
        return PANEL * (math.log10(value) - low) / (high - low)

    unit = "seconds" if found.lower else "tokens/s/GPU"
    unit = "milliseconds" if name.startswith("vtrain") else unit
    yield f'<text x="{left}" y="{top - 7}" font-weight="bold">{name}, {unit}</text>'
    yield f'<rect x="{left}" y="{top}" width="{PANEL}" height="{PANEL}" fill="none" stroke="#999"/>'
    yield f'<line x1="{left}" y1="{top + PANEL}" x2="{left + PANEL}" y2="{top}" stroke="#c0392b"/>'
    for tick in _ticks(low, high):
        x, y = left + at(tick), top + PANEL - at(tick)
        yield f'<text x="{x:.1f}" y="{top + PANEL + 13}" text-anchor="middle">{tick:g}</text>'
        yield f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for label, p, m in zip(found.labels, found.predicted, found.measured, strict=True):
        x, y = left + at(m), top + PANEL - at(p)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="#2471a3" fill-opacity="0.5"><title>{label}</title></circle>'
        )


def _ticks(low: float, high: float) -> list[float]:
    """One, two and five of every decade inside; at most six."""
    found = [f * 10.0**d for d in range(math.floor(low), math.ceil(high) + 1) for f in (1, 2, 5)]
    inside = [v for v in found if low <= math.log10(v) <= high]
    return inside if len(inside) <= 6 else [v for v in inside if f"{v:e}".startswith("1")]


if __name__ == "__main__":
    main()
