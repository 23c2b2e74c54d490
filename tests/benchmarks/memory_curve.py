"""The step of BERT-Large over the memory of a device: whole blocks computed again, and tensors by themselves.

    python tests/benchmarks/memory_curve.py [--folder DIR] [--seconds 90] [--page FILE]

One `sweep`: batch 128, SGD, eight A100 (dgx-a100:1x8), space one-per-level, gap 1 %.  `--folder` keeps the plans, so that
what was planned is not planned again; a plan whose check did not fit into `--seconds` has no bound here.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import click

LIMITS = ("2GiB", "3GiB", "4GiB", "6GiB", "8GiB", "10GiB", "12GiB", "16GiB")
WAYS = ("auto", "tensors")
COLOURS = {"auto": "#c1272d", "tensors": "#0057b8"}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 60, 40, 20

Rows = dict[tuple[str, str], dict[str, str]]
"""(way, limit) -> the row of the sweep."""


def swept(folder: Path, seconds: int) -> Rows:
    """Every combination, planned."""
    file = folder / "curve.toml"
    file.write_text(
        f'[every]\nbatch = 128\ntrain = "sgd"\nmachine = "dgx-a100:1x8"\nspace = "one-per-level"\n'
        f'time-limit = {seconds}\ngap = "1%"\n\n[each]\nmodel = ["bert-large"]\n'
        f"recompute = {list(WAYS)!r}\nmemory = {list(LIMITS)!r}\n".replace("'", '"'),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "shardproof", "sweep", str(file), "-o", str(folder / "swept"), "--workers", "1"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    with (folder / "swept" / "sweep.csv").open(encoding="utf-8") as text:
        return {(row["recompute"], row["memory"]): row for row in csv.DictReader(text)}


def picture(rows: Rows) -> str:
    """Step over limit, from the least bound on; dashed the bound."""
    steps = [float(r[k]) for r in rows.values() for k in ("step ms", "at least ms") if r[k]]
    low, high = 0.95 * min(steps), 1.02 * max(steps)

    def x(k: int) -> float:
        return LEFT + (WIDTH - LEFT - 20) * k / (len(LIMITS) - 1)

    def y(ms: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - ms) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for k, limit in enumerate(LIMITS):
        out.append(f'<text x="{x(k):.0f}" y="{HEIGHT - 18}" text-anchor="middle" fill="#333333">{limit}</text>')
    for ms in range(int(low // 10 + 1) * 10, int(high) + 1, 10):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(ms) + 4:.1f}" text-anchor="end" fill="#333333">{ms} ms</text>')
    for way in WAYS:
        for column, dash in (("step ms", ""), ("at least ms", ' stroke-dasharray="4 4"')):
            points = [(k, rows[way, m][column]) for k, m in enumerate(LIMITS) if rows[way, m][column]]
            line = " ".join(f"{x(k):.1f},{y(float(ms)):.1f}" for k, ms in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[way]}" stroke-width="2"{dash}/>')
    for k, (way, words) in enumerate((("auto", "whole blocks"), ("tensors", "tensor by tensor"))):
        out.append(
            f'<text x="{WIDTH - 250}" y="{TOP + 16 * k + 12}" fill="{COLOURS[way]}">{words} (dashed: bound)</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def table(rows: Rows) -> str:
    """A line per limit."""
    out = [
        "| limit per device | whole blocks, ms | at least (of the graph chosen) | tensor by tensor, ms | at least (of all sets) | less |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for limit in LIMITS:
        blocks, tensors = (rows[way, limit] for way in WAYS)
        less = 100 * (1 - float(tensors["step ms"]) / float(blocks["step ms"]))
        cells = [blocks["step ms"], blocks["at least ms"] or "not checked in time"]
        cells += [tensors["step ms"], tensors["at least ms"] or "not checked in time", f"{less:.1f} %"]
        out.append(f"| {limit} | " + " | ".join(cells) + " |")
    return "\n".join(out)


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the plans here, and go on.")
@click.option("--seconds", type=click.IntRange(10, 3600), default=90, show_default=True, help="Time limit of a plan.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Write the page, and the picture beside.")
def main(folder: Path | None, seconds: int, page: Path | None) -> None:
    """Plan, and print the table."""
    with tempfile.TemporaryDirectory() as there:
        place = folder or Path(there)
        place.mkdir(parents=True, exist_ok=True)
        rows = swept(place, seconds)
    text = table(rows)
    print(text)
    if page is not None:
        page.with_suffix(".svg").write_text(picture(rows), encoding="utf-8")
        page.write_text(
            "# The step over the memory of a device\n\n"
            f"Made by `python tests/benchmarks/memory_curve.py --seconds {seconds} --page {page.name}`.\n\n"
            "BERT-Large, batch 128, SGD, on eight A100 (dgx-a100:1x8), space one-per-level, gap 1 %: "
            "`--recompute auto` computes whole blocks again, `--recompute tensors` decides tensor by tensor, together "
            "with placements.  The bound of the first is about the graph with the blocks that were chosen, that of the "
            "second about every set of tensors.\n\n"
            f"![step over memory]({page.with_suffix('.svg').name})\n\n{text}\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
