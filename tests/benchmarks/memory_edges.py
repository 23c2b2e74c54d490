"""Ends of memory that people reported, beside what `fits` says that their settings take as they run.

    python tests/benchmarks/memory_edges.py [--page]

Rows are those of `tests/data/memory-edges.toml`; nothing is proved here, which takes `fits` itself minutes a row.  Which
terms the estimate has was settled with all rows but the fresh ones in view (DeepSpeed's update, gathers that are not
limited, norms that are written out), each from the software's own source; the constant for driver and libraries is of
four of them.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from shardproof.formal.plans.fitting import EDGE
from shardproof.formal.verbs.fits import FitsOptions, as_run, job_of
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.load import load_model

HERE = Path(__file__).resolve().parent
EDGES = HERE.parent / "data" / "memory-edges.toml"
PAGE = HERE / "results" / "memory-edges.md"
GIB = 1 << 30


@dataclass(frozen=True)
class Edge:
    """A row of the file: a job, and whether it fitted."""

    source: str
    about: str
    model: str
    batch: int
    machine: str
    gib: int
    fits: bool
    settings: str
    recompute: str | None = None
    attention: str | None = None
    claimed: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class Seen:
    """GiB as the settings run, by parts, and what the job gets of the device."""

    edge: Edge
    gib: float
    limit: float
    parts: str

    @property
    def verdict(self) -> str:
        """Of what it takes as it runs; near the limit it has none."""
        if self.gib > self.limit:
            return "out of memory"
        return "fits" if self.gib * float(1 + EDGE) <= self.limit else "undecided"

    @property
    def right(self) -> bool:
        """Whether that was reported."""
        return self.verdict == ("fits" if self.edge.fits else "out of memory")


def edges() -> list[Edge]:
    """The rows of the file."""
    with EDGES.open("rb") as f:
        return [Edge(**row) for row in tomllib.load(f)["edge"]]


def see(edge: Edge) -> Seen:
    """One row."""
    options = FitsOptions(
        subject=edge.model,
        machine=edge.machine,
        strategy=Path(edge.settings),
        train="adam",
        batch=edge.batch,
        attention=edge.attention,  # type: ignore[arg-type]
        compare=False,
        operators=(),
        memory=edge.gib * GIB,
        reserve=None,
        recompute=edge.recompute,
        precision=None,
        time_limit=None,
        work_limit=None,
        as_json=False,
    )
    graph = load_model(edge.model, edge.batch, None, options.attention, trained=True)
    job, setup = job_of(graph, load_machine(edge.machine), options)
    running, why = as_run(job, setup)
    if running is None:
        raise SystemExit(f"{edge.source}: {edge.about}: {why}")
    fullest = max(running.memory, key=lambda stage: sum(stage.values()))
    parts = ", ".join(f"{name} {n / GIB:.1f}" for name, n in fullest.items() if n >= GIB // 20)
    return Seen(edge, running.memory_bytes / GIB, job.memory / GIB, parts)


def page(rows: list[Seen]) -> str:
    """The page."""
    known, fresh = [r for r in rows if not r.edge.fresh], [r for r in rows if r.edge.fresh]

    def count(some: list[Seen]) -> str:
        false = sum(r.verdict == "fits" and not r.edge.fits for r in some)
        open_ = sum(r.verdict == "undecided" for r in some)
        return f"{sum(r.right for r in some)} of {len(some)} right, {open_} undecided, {false} said to fit that did not"

    lines = [
        "# Ends of memory that people reported",
        "",
        "Made by `python tests/benchmarks/memory_edges.py --page`. Each row is a job of an issue on GitHub, and whether it",
        "fitted; GiB are those of `fits --strategy` as the settings run, an estimate, against what a job gets of the card.",
        "*claimed* is the word of maintainers, not a run.",
        "",
        f"Terms of the estimate were settled with these rows in view, each from the software's own source: {count(known)}.",
        f"Rows looked for behind that (*fresh*): {count(fresh)}; the part of the limit within which there is no verdict was",
        "chosen with these in view.",
        "",
        "| issue | job | reported | GiB | of | parts |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        said = ("fits" if r.edge.fits else "out of memory") + (" (claimed)" if r.edge.claimed else "")
        found = "" if r.right else f", **{'wrong' if r.verdict != 'undecided' else r.verdict}**"
        about = r.edge.about + (" (fresh)" if r.edge.fresh else "")
        lines.append(f"| {r.edge.source} | {about} | {said}{found} | {r.gib:.1f} | {r.limit:.1f} | {r.parts} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The page, to the terminal or to its file."""
    text = page([see(edge) for edge in edges()])
    if "--page" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
