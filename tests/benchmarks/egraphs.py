"""Extraction from public e-graphs: our cost and bound with a checked certificate, beside what CBC finds.

    python tests/benchmarks/egraphs.py [--seconds 60] [--only NAME] [--ours] [FOLDER]       writes results/egraphs.md

FOLDER holds instances of the extraction gym (default: ../shared/data/measured/egraphs).  CBC gets the usual integer
program (a binary per node and class, children are needed, order variables where classes can need each other) through
PuLP, with the same number of seconds; what it returns is evaluated exactly, and believed to be optimal where CBC says
so.  Limits and times are of the processor, reading left out; the last column of ours is the check of the certificate
alone.  `--only` replaces the rows of the instances with NAME in their path, `--ours` leaves CBC's half of them.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx
import pulp

from shardproof.formal.rewriting.egraphs.solve import extract
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.egraphs.egraph import EGraph
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.egraphs.file import read_extraction, write_extraction
from shardproof.proofs.selection.load import load_problem
from shardproof.verify.egraphs.extraction import check_extraction

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured" / "egraphs"
RESULTS = Path(__file__).resolve().parent / "results" / "egraphs.md"


@dataclass(frozen=True)
class Row:
    """One instance."""

    name: str
    nodes: int
    classes: int
    cost: float | None
    bound: float | None
    seconds: float
    check: float
    size: int
    cbc: float | None
    cbc_word: str
    cbc_seconds: float


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cbc(graph: EGraph, seconds: float) -> tuple[float | None, str]:
    """Cost of CBC's extraction, and what CBC says of it."""
    model = pulp.LpProblem("extraction", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{n}", cat="Binary") for n in range(len(graph.nodes))]
    y = [pulp.LpVariable(f"y{c}", cat="Binary") for c in range(len(graph.classes))]
    model += pulp.lpSum(cost / graph.scale * v for cost, v in zip(graph.cost, x, strict=True))
    arcs = networkx.DiGraph()
    arcs.add_nodes_from(range(len(graph.classes)))
    for n, kids in enumerate(graph.children):
        arcs.add_edges_from((graph.owner[n], d) for d in kids)
    circle: dict[int, int] = {}
    for k, part in enumerate(networkx.strongly_connected_components(arcs)):
        circle.update(dict.fromkeys(part, k))
    order = [pulp.LpVariable(f"t{c}", 0, len(graph.classes)) for c in range(len(graph.classes))]
    parents: list[list[int]] = [[] for _ in graph.classes]
    for c, members in enumerate(graph.members):
        model += pulp.lpSum(x[n] for n in members) == y[c]
        for n in members:
            for d in graph.children[n]:
                model += x[n] <= y[d]
                parents[d].append(n)
                if d == c:
                    model += x[n] == 0
                elif circle[c] == circle[d]:
                    model += order[c] >= order[d] + 1 - (len(graph.classes) + 1) * (1 - x[n])
    for r in graph.roots:
        model += y[r] == 1
    if graph.has_negative_cost:
        for c in range(len(graph.classes)):
            if c not in graph.roots:
                model += y[c] <= pulp.lpSum(x[n] for n in parents[c])
    model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, options=[f"sec {seconds}", "timeMode cpu"]))
    if any(v.value() is None for v in x):
        return None, "nothing"
    word = "optimal" if model.sol_status == pulp.LpSolutionOptimal else "feasible"
    needed, stack = set(graph.roots), list(graph.roots)
    total = 0
    while stack:
        found = [n for n in graph.members[stack.pop()] if (x[n].value() or 0) > 0.5]
        if not found:
            return None, "nothing"
        total += graph.cost[found[0]]
        for d in graph.children[found[0]]:
            if d not in needed:
                needed.add(d)
                stack.append(d)
    return total / graph.scale, word


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.gz').removesuffix('.json')}"


def row(path: Path, seconds: float, known: Row | None) -> Row:
    """Our half, and CBC's unless it is `known`."""
    graph = load_problem(path)
    assert isinstance(graph, EGraph)
    start = time.process_time()
    found = extract(graph, Clock(seconds, now=time.process_time))
    used = time.process_time() - start
    data = write_extraction(None, found.certificate)
    start = time.process_time()
    checked = check_extraction(graph, read_extraction(data))
    check = time.process_time() - start
    if checked.verdict is not Verdict.PROVED:
        raise SystemExit(f"{path}: {checked.reason}")
    start, before = time.process_time(), children_seconds()
    if known is not None:
        value, word = known.cbc, known.cbc_word
    else:
        value, word = cbc(graph, seconds) if graph.roots else (0.0, "no root")
    cbc_seconds = known.cbc_seconds if known is not None else time.process_time() - start + children_seconds() - before
    return Row(
        name_of(path),
        len(graph.nodes),
        len(graph.classes),
        None if checked.cost is None else checked.cost / graph.scale,
        None if checked.lower_bound is None else checked.lower_bound / graph.scale,
        used,
        check,
        len(data),
        value,
        word,
        cbc_seconds,
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.9g}"


def written() -> dict[str, Row]:
    """Rows of the last results by name."""
    out = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []:
        cells = [c.strip().replace(",", "") for c in line.strip("|").split("|")]
        if len(cells) == 11 and "/" in cells[0]:
            cost = None if cells[3] == "-" else float(cells[3])
            bound = cost if cells[4] == "optimal" else None if cells[4] == "-" else float(cells[4])
            found = None if cells[8] == "-" else float(cells[8])
            out[cells[0]] = Row(
                cells[0], int(cells[1]), int(cells[2]), cost, bound, float(cells[5]), float(cells[6]), int(cells[7]), found, cells[9], float(cells[10])
            )  # fmt: skip
    return out


PARTS = (
    "Our columns are of one run; CBC's are of runs before, with limits of the wall on a busy machine, where 60 s were 4 to "
    "20 of the processor; its seconds say what it got."
)


def table(rows: list[Row], seconds: float, parts: bool = False) -> Iterator[str]:
    proved = sum(r.cost == r.bound for r in rows)
    shown = [
        (float(number(r.cost)), None if r.cbc is None else float(number(r.cbc))) for r in rows if r.cost is not None
    ]
    better = sum(cbc is None or cost < cbc for cost, cbc in shown)  # as printed: rows are read back from the page
    worse = sum(cbc is not None and cost > cbc for cost, cbc in shown)
    yield "# Extraction from the e-graphs of the extraction gym"
    yield ""
    yield f"`python tests/benchmarks/egraphs.py --seconds {seconds:g}`, limits and times in seconds of the processor."
    yield f"{len(rows)} instances: {proved} proved optimal, the others with a certified gap; every certificate checked."
    yield f"Cheaper than CBC's extraction on {better}, dearer on {worse}."
    if parts:
        yield PARTS
    yield ""
    yield "| instance | nodes | classes | cost | proved bound | s | check s | bytes | CBC | CBC says | CBC s |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|"
    for r in rows:
        bound = "optimal" if r.cost == r.bound else number(r.bound)
        yield (
            f"| {r.name} | {r.nodes:,} | {r.classes:,} | {number(r.cost)} | {bound} | {r.seconds:.1f} | {r.check:.1f} | "
            f"{r.size:,} | {number(r.cbc)} | {r.cbc_word} | {r.cbc_seconds:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--ours", action="store_true")
    options = parser.parse_args()
    rows = written() if options.only else {}
    for path in sorted(options.folder.glob("*/*.json*")):
        if options.only in str(path):
            known = rows.get(name_of(path)) if options.ours else None
            rows[name_of(path)] = row(path, options.seconds, known)
            print(*list(table([rows[name_of(path)]], options.seconds))[-1:], flush=True)
    RESULTS.write_text(
        "\n".join(table([rows[n] for n in sorted(rows)], options.seconds, bool(options.only))) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
