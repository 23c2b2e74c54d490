"""The contest's development instances (or others): ours, PaSE-style dynamic programming, HiGHS, toulbar2 and CP-SAT
side by side.

    python tests/benchmarks/contest.py [--only AB] [--data FOLDER] [--limit SECONDS] [--others SECONDS] [--out FOLDER]

Ours: load, reduce, solve, write, read, check; CPU seconds of each.  The others get the reduced core, which we trust
here because the checker replays the log for our own run: HiGHS and toulbar2 with resource rows added when violated,
CP-SAT with all rows, dynamic programming without rows (a lower bound at best; "too wide" where its tables do not fit).
toulbar2 and CP-SAT only if installed.  Writes `contest.txt` (the table) and `contest.svg` (certified gap over time).
Not a timed test.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from math import log10
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pase_dp import pase_dp

from shardproof.formal.plans.report import table_text
from shardproof.formal.selection.model.dense import DenseProblem, dense_problem
from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.formal.selection.primal.local_search import Improver
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.selection_problem import FORBIDDEN, ProblemError, SelectionProblem
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.proofs.selection.load import load_selection_problem
from shardproof.verify.selection.certificate import check_selection

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "iopddl"
LIMITS = {"A": 60, "B": 60, "C": 60, "G": 120, "K": 180, "M": 180, "S": 240}
ROUND = 25


@dataclass
class Trace:
    """Progress of a run as (seconds, lower, upper)."""

    begun: float = field(default_factory=time.monotonic)
    points: list[tuple[float, int | None, int | None]] = field(default_factory=list)

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        self.points.append((time.monotonic() - self.begun, lower, upper))

    def gaps(self, last: tuple[int, int]) -> list[tuple[float, float]]:
        """(seconds, gap in percent) with the best bounds so far; ends with the certified pair `last`."""
        low, high, out = None, None, []
        for t, lower, upper in [*self.points, (time.monotonic() - self.begun, *last)]:
            low = lower if low is None or (lower is not None and lower > low) else low
            high = upper if high is None or (upper is not None and upper < high) else high
            if low is not None and high is not None:
                out.append((t, max(0.0, 100 * (high - low) / high)))
        return out


def row_over(flat: DenseProblem, x: np.ndarray, known: set[int]) -> list[int]:
    """Rows that `x` breaks most, not in `known`."""
    use = Improver(flat).usage(x)
    over = [int(r) for r in np.argsort(-use, kind="stable")[: 4 * ROUND] if use[r] > flat.limit and int(r) not in known]
    return over[:ROUND]


def coefficients(flat: DenseProblem, row: int) -> list[tuple[int, int, int]]:
    """(vertex, label, amount) of the resource row."""
    total: dict[tuple[int, int], int] = {}
    for v in range(flat.vertices):
        for p in range(int(flat.spans.part[v]), int(flat.spans.part[v + 1])):
            if flat.spans.first[p] <= row < flat.spans.last[p]:
                for a in range(int(flat.label[v + 1] - flat.label[v])):
                    total[v, a] = total.get((v, a), 0) + int(flat.spans.amount[flat.spans.at[p] + a])
    return [(v, a, q) for (v, a), q in total.items() if q]


def cells_between(flat: DenseProblem, e: int) -> np.ndarray:
    """The table of edge `e`, row by row."""
    return flat.network.tables[flat.network.arcs[e].table].reshape(-1)


def lazily(flat: DenseProblem, seconds: float, ask: Callable[[set[int], float], np.ndarray | None]) -> str:
    """Cost of the first answer that breaks no row, rows added as needed."""
    begun, rows = time.monotonic(), set[int]()
    while (left := seconds - (time.monotonic() - begun)) > 0:
        x = ask(rows, left)
        if x is None:
            break
        over = row_over(flat, x, rows)
        if not over:
            cost = flat.problem.cost_of(flat.solution(x))
            return f"{cost} in {time.monotonic() - begun:.1f} s, {len(rows)} rows"
        rows.update(over)
    return f"nothing in {seconds:.0f} s"


def highs(flat: DenseProblem, seconds: float) -> str:
    """Local-polytope MILP (x binary, pair variables continuous), objective scaled to about 10^6."""
    import highspy

    cells, cost = flat.cells < FORBIDDEN, flat.cost < FORBIDDEN
    if int(cells.sum()) > 400_000:
        return "not run (more than 400000 pairs)"
    scale = 1e6 / max(1.0, float(flat.cost[cost].max(initial=1)))
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("threads", 1)
    h.setOptionValue("mip_rel_gap", 0.0)
    n = flat.labels
    for a in range(n):
        h.addCol(float(flat.cost[a]) * scale if cost[a] else 0.0, 0.0, 1.0 if cost[a] else 0.0, 0, [], [])
        h.changeColIntegrality(a, highspy.HighsVarType.kInteger)
    for v in range(flat.vertices):
        at = np.arange(flat.label[v], flat.label[v + 1], dtype=np.int32)
        h.addRow(1.0, 1.0, at.size, at, np.ones(at.size))
    column = n
    for e in range(flat.graph.u.size):
        u, v, t = int(flat.graph.u[e]), int(flat.graph.v[e]), int(flat.graph.table[e])
        ku, kv = int(flat.label[u + 1] - flat.label[u]), int(flat.label[v + 1] - flat.label[v])
        table = flat.cells[t : t + ku * kv].reshape(ku, kv)
        number = np.full(table.shape, -1, dtype=np.int64)
        for a, b in np.argwhere(table < FORBIDDEN).tolist():
            number[a, b] = column
            h.addCol(float(table[a, b]) * scale, 0.0, 1.0, 0, [], [])
            column += 1
        for lines, vertex in ((number, u), (number.T, v)):
            for a, line in enumerate(lines):
                at = np.append(line[line >= 0], flat.label[vertex] + a).astype(np.int32)
                h.addRow(0.0, 0.0, at.size, at, np.append(np.ones(at.size - 1), -1.0))
    done: set[int] = set()

    def ask(rows: set[int], left: float) -> np.ndarray | None:
        for row in sorted(rows - done):
            terms = coefficients(flat, row)
            most = max(q for _, _, q in terms)
            at = np.array([flat.label[v] + a for v, a, _ in terms], dtype=np.int32)
            h.addRow(
                -highspy.kHighsInf,
                100.0 * flat.limit / most,
                at.size,
                at,
                np.array([100.0 * q / most for _, _, q in terms]),
            )
        done.update(rows)
        h.setOptionValue("time_limit", h.getRunTime() + left)
        h.run()
        if h.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        value = np.array(h.getSolution().col_value[:n])
        return np.array([int(np.argmax(value[a:b])) for a, b in zip(flat.label[:-1], flat.label[1:], strict=True)])

    return lazily(flat, seconds, ask)


def toulbar2(flat: DenseProblem, seconds: float, upper: int) -> str:
    """Cost function network with the rows as linear constraints, seeded with 1.2 times our cost as upper bound."""
    if find_spec("pytoulbar2") is None:
        return "not installed"
    import pytoulbar2

    least = min(0, int(flat.cost.min(initial=0)))

    def ask(rows: set[int], left: float) -> np.ndarray | None:
        top = int(1.2 * (upper - flat.problem.constant)) - least * flat.vertices + 1
        network = pytoulbar2.CFN(top)
        for v in range(flat.vertices):
            network.AddVariable(f"x{v}", range(int(flat.label[v + 1] - flat.label[v])))
        for v in range(flat.vertices):
            network.AddFunction([v], [min(int(c) - least, top) for c in flat.cost[flat.label[v] : flat.label[v + 1]]])
        for e in range(flat.graph.u.size):
            network.AddFunction(
                [int(flat.graph.u[e]), int(flat.graph.v[e])],
                np.minimum(cells_between(flat, e), top).tolist(),
            )
        for row in sorted(rows):
            network.AddGeneralizedLinearConstraint([(v, a, q) for v, a, q in coefficients(flat, row)], "<=", flat.limit)
        found = network.Solve(timeLimit=max(1, int(left)))
        return None if not found else np.array(found[0][: flat.vertices])

    return lazily(flat, seconds, ask)


def cp_sat(flat: DenseProblem, seconds: float) -> str:
    """Boolean per label and per pair, all rows."""
    if find_spec("ortools") is None:
        return "not installed"
    if flat.cells.size > 400_000:
        return "not run (more than 400000 pairs)"
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(flat.labels)]
    terms = []
    for v in range(flat.vertices):
        here = range(int(flat.label[v]), int(flat.label[v + 1]))
        model.add_exactly_one([x[a] for a in here])
        terms += [int(flat.cost[a]) * x[a] for a in here if flat.cost[a] < FORBIDDEN]
        for a in here:
            if flat.cost[a] >= FORBIDDEN:
                model.add(x[a] == 0)
    for e in range(flat.graph.u.size):
        u, v = int(flat.graph.u[e]), int(flat.graph.v[e])
        kv = int(flat.label[v + 1] - flat.label[v])
        for k, c in enumerate(cells_between(flat, e).tolist()):
            a, b = x[flat.label[u] + k // kv], x[flat.label[v] + k % kv]
            if c >= FORBIDDEN:
                model.add_bool_or([a.negated(), b.negated()])
            elif c:
                y = model.new_bool_var("")
                model.add_bool_or([a.negated(), b.negated(), y])
                terms.append(c * y)
    for row in range(flat.events.size):
        model.add(sum(q * x[flat.label[v] + a] for v, a, q in coefficients(flat, row)) <= flat.limit)
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, 1
    status = solver.solve(model)
    bound = int(solver.best_objective_bound) + flat.problem.constant
    cost = (
        f"{round(solver.objective_value) + flat.problem.constant}"
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        else "none"
    )
    return f"{cost}, bound {bound} in {solver.wall_time:.0f} s"


def apart(engine: Callable[..., str], *arguments: object) -> str:
    """In a process of its own: the libraries of HiGHS and OR-Tools do not bear each other, and one that dies leaves
    the table.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(engine, *arguments).result()
        except Exception as error:  # noqa: BLE001 - whatever another library throws belongs into its column
            return f"failed: {type(error).__name__} {error}"[:60]


def dynamic_programming(core: SelectionProblem) -> str:
    """Without rows: a lower bound."""
    begun = time.monotonic()
    try:
        result = pase_dp(replace(core, usages=(), limit=None))
    except ProblemError as error:
        return f"does not apply ({error.message})"
    return f"bound {result.cost} in {time.monotonic() - begun:.1f} s, width {result.width}"


def picture(curves: dict[str, list[tuple[float, float]]]) -> str:
    """Gap in percent (log scale, 0.0001 stands for closed) over seconds (log scale) as SVG."""
    width, height, left, top = 760, 420, 70, 20
    colors = ["#1b6ca8", "#c0392b", "#27864b", "#8e44ad", "#d08010", "#16808a", "#555555"]
    last = max((t for c in curves.values() for t, _ in c), default=1.0)

    def at(t: float, gap: float) -> tuple[float, float]:
        x = left + (width - left - 90) * (log10(max(t, 0.3)) - log10(0.3)) / max(
            0.1, log10(max(last, 1.0)) - log10(0.3)
        )
        return x, top + (height - 70) * (2 - log10(min(100.0, max(gap, 1e-4)))) / 6

    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in range(-4, 3):
        _, y = at(1, 10.0**power)
        text = "closed" if power == -4 else f"{10.0**power:g} %"
        out.append(
            f'<line x1="{left}" x2="{width - 90}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/><text x="8" '
            f'y="{y + 4:.1f}">{text}</text>'
        )
    for t in (1, 3, 10, 30, 100, 300):
        if t <= last:
            x, _ = at(t, 1)
            out.append(f'<text x="{x - 8:.1f}" y="{height - 30}">{t} s</text>')
    out.append(
        f'<text x="{left}" y="{height - 8}">certified gap over seconds since the start of the search, ours</text>'
    )
    for (name, curve), color in zip(curves.items(), colors * 9, strict=False):
        points, y0 = [], None
        for t, gap in curve:
            x, y = at(t, gap)
            if y0 is not None:
                points.append(f"{x:.1f},{y0:.1f}")
            points.append(f"{x:.1f},{y:.1f}")
            y0 = y
        out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>')
        if curve:
            x, y = at(*curve[-1])
            out.append(f'<text x="{x + 6:.1f}" y="{y + 4:.1f}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", default="", help="letters at the end of the file names")
    parser.add_argument("--limit", type=float, help="seconds for ours (default: the contest's, else 120)")
    parser.add_argument("--others", type=float, default=60.0, help="seconds for each of the others; 0 leaves them out")
    parser.add_argument("--out", type=Path, default=Path())
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    ours: list[list[str]] = []
    others: list[list[str]] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for file in sorted(chosen.data.glob("*.json.gz")):
        name = file.name.removesuffix(".json.gz").rsplit("-", 1)[-1]
        if chosen.only and name not in chosen.only:
            continue
        cpu, wall = time.process_time(), time.monotonic()
        problem = load_selection_problem(file)
        limit = chosen.limit or LIMITS.get(name, 120)
        trace = Trace()
        answer = solve(problem, time_limit_s=limit - (time.monotonic() - wall), progress=trace)
        solved = time.process_time() - cpu, time.monotonic() - wall
        if answer.certificate is None:
            ours.append([name, answer.status.value])
            continue
        data = write_certificate(None, answer.certificate)
        begun = time.process_time()
        result = check_selection(problem, read_certificate(data))
        checked = time.process_time() - begun
        gap = "-"
        if result.cost is not None and result.lower_bound is not None:
            gap = f"{max(0.0, 100 * (result.cost - result.lower_bound) / result.cost):.4f} %"
            curves[name] = trace.gaps((result.lower_bound, result.cost))
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        ours.append(
            [
                name,
                answer.status.value,
                result.verdict.value,
                f"{result.cost}",
                f"{result.lower_bound}",
                gap,
                f"{solved[0]:.1f}",
                f"{solved[1]:.1f}",
                f"{len(data)}",
                f"{checked:.2f}",
                f"{rss}",
            ]
        )
        print(" ".join(ours[-1]), flush=True)
        reduction = presolve(problem) if chosen.others else None
        if reduction is None or reduction.problem is None:
            continue
        flat = dense_problem(reduction.problem)
        others.append(
            [
                name,
                apart(dynamic_programming, reduction.problem),
                apart(highs, flat, chosen.others),
                apart(toulbar2, flat, chosen.others, answer.cost or FORBIDDEN),
                apart(cp_sat, flat, chosen.others),
            ]
        )
        print(" | ".join(others[-1]), flush=True)
    text = table_text(
        "ours",
        ["", "status", "checker", "cost", "bound", "gap", "CPU s", "wall s", "bytes", "check CPU s", "MiB"],
        ours,
        right=range(3, 11),
        width=200,
    )
    if others:
        text += "\n\n" + table_text(
            "others, on the core", ["", "PaSE-style DP, no rows", "HiGHS", "toulbar2", "CP-SAT"], others, width=220
        )
    (chosen.out / "contest.txt").write_text(text + "\n", encoding="utf-8")
    (chosen.out / "contest.svg").write_text(picture(curves), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
