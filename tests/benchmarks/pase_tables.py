"""The published PaSE tables: ours with the certificate in memory, plain numpy elimination and toulbar2 side by side, in
one process.

    python tests/benchmarks/pase_tables.py [--data FOLDER] [--only NAME] [--repeat N] [--wall]

For every table the methods take turns N times after one warm-up; the median CPU time of each stands in the table (all
use one thread; --wall:  wall time, for a quiet machine).  Reading the file is in no one's time.  Ours: `solve` of a
problem object made anew for each turn: well-formedness, order, elimination, exact comparison of what the last bits
decide, hash of the problem, certificate.  Plain elimination: float64 tables, least joint table first, `numpy.min` over
an axis, back substitution; no proof, and floats are its only precision.  toulbar2: costs rounded to integers, and only
`Solve` counts, not the hand-over.  Answers are compared with the published optima in exact arithmetic, and our
certificates go through the checker (last column).  Not a test.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from shardproof.formal.plans.report import table_text
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Status
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.proofs.selection.load import load_selection_problem
from shardproof.verify.selection.certificate import check_selection

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "pase"
RATIO = 1.2
LATER_MS = 5.0

Floats = NDArray[np.float64]
Tables = tuple[list[Floats], list[tuple[int, int, Floats]]]


def plain_elimination(unary: list[Floats], pairs: list[tuple[int, int, Floats]]) -> tuple[float, list[int]]:
    """(optimum, choices): what one writes by hand, with care: a heap of joint sizes, small tables added first,
    minima over axis 0.
    """
    n = len(unary)
    dims = [c.size for c in unary]
    near: list[set[int]] = [set() for _ in range(n)]
    pool: list[dict[int, tuple[tuple[int, ...], Floats]]] = [{v: ((v,), unary[v])} for v in range(n)]
    for k, (u, v, table) in enumerate(pairs, n):
        near[u].add(v)
        near[v].add(u)
        pool[u][k] = pool[v][k] = ((u, v), table) if u < v else ((v, u), table.T)
    fresh = n + len(pairs)

    def joint(v: int) -> int:
        out = dims[v]
        for w in near[v]:
            out *= dims[w]
        return out

    key = [joint(v) for v in range(n)]
    heap = [(size, v) for v, size in enumerate(key)]
    heapq.heapify(heap)
    gone: list[tuple[int, list[tuple[tuple[int, ...], Floats]]]] = []
    done = [False] * n
    total = 0.0
    while heap:
        size, v = heapq.heappop(heap)
        if done[v] or size != key[v]:
            continue
        done[v] = True
        scope = tuple(sorted(near[v]))
        axes = (v, *scope)
        consumed = pool[v]
        gone.append((v, list(consumed.values())))
        parts = []
        for where, table in consumed.values():
            order = [where.index(w) for w in axes if w in where]
            parts.append(table.transpose(order)[tuple(slice(None) if w in where else None for w in axes)])
        parts.sort(key=lambda part: part.size)
        sums = parts[0]
        for part in parts[1:]:
            sums = sums + part
        least = sums.min(axis=0)
        if not scope:
            total += float(least)
        for w in scope:
            for k in consumed:
                pool[w].pop(k, None)
            pool[w][fresh] = (scope, least)
            near[w].update(scope)
            near[w] -= {v, w}
            if (size := joint(w)) != key[w]:
                key[w] = size
                heapq.heappush(heap, (size, w))
        fresh += 1
    x = [0] * n
    for v, factors in reversed(gone):
        line: Floats | float = 0.0
        for where, table in factors:
            line = line + table[tuple(slice(None) if w == v else x[w] for w in where)]
        x[v] = int(np.argmin(line))
    return total, x


def toulbar2(
    unary: list[Floats], pairs: list[tuple[int, int, Floats]], clock: Callable[[], float]
) -> tuple[float, list[int] | None]:
    """(seconds in Solve, choices)."""
    import pytoulbar2

    top = int(sum(c.max() for c in unary) + sum(t.max() for _, _, t in pairs)) + 1
    network = pytoulbar2.CFN(top)
    for v, c in enumerate(unary):
        network.AddVariable(f"x{v}", range(c.size))
        network.AddFunction([f"x{v}"], np.rint(c).astype(np.int64).tolist())
    for u, v, table in pairs:
        network.AddFunction([f"x{u}", f"x{v}"], np.rint(table).astype(np.int64).reshape(-1).tolist())
    started = clock()
    found = network.Solve()
    return clock() - started, None if found is None else [int(a) for a in found[0]]


def exact_cost(tables: Tables, x: list[int]) -> Fraction:
    """Cost of `x` in the numbers of the file."""
    unary, pairs = tables
    terms = [c[a] for c, a in zip(unary, x, strict=True)] + [t[x[u], x[v]] for u, v, t in pairs]
    return sum((Fraction(float(t)) for t in terms), start=Fraction(0))


def machine() -> str:
    """Processor, cores, versions."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = f"{lines[0].split(':')[1].strip()}, {len(lines)} cores" if lines else name
    return f"{name}; Python {platform.python_version()}, numpy {np.__version__}; one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", default="", help="part of the file names")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--wall", action="store_true", help="wall time instead of CPU time")
    chosen = parser.parse_args()
    clock = time.perf_counter if chosen.wall else time.process_time
    rival = find_spec("pytoulbar2") is not None
    rows: list[list[str]] = []
    sums = [0.0, 0.0, 0.0]
    later = exact = 0
    for path in sorted(chosen.data.glob("*.json.gz")):
        if chosen.only not in path.name:
            continue
        data = json.loads(gzip.decompress(path.read_bytes()))
        tables: Tables = (
            [np.array(n["cost"], dtype=float) for n in data["nodes"]],
            [(u, v, np.array(m, dtype=float)) for u, v, m in data["edges"]],
        )
        problem = load_selection_problem(path)
        answer = solve(problem)
        value = exact_cost(tables, list(answer.solution or ()))
        published = exact_cost(tables, data["exact"]["x"])
        checked = (
            check_selection(problem, read_certificate(write_certificate(None, answer.certificate)))
            if answer.certificate is not None
            else None
        )
        right = answer.status is Status.OPTIMAL and value == published == Fraction(answer.cost or 0, problem.scale)
        exact += right and checked is not None and checked.exit_code == 0
        _, plain_x = plain_elimination(*tables)
        times: list[list[float]] = [[], [], []]
        runs: list[Callable[[], object]] = [
            lambda problem=problem: solve(replace(problem)),
            lambda tables=tables: plain_elimination(*tables),
        ]  # type: ignore[misc]
        their = None
        for _ in range(chosen.repeat):
            for k, run in enumerate(runs):
                started = clock()
                run()
                times[k].append(clock() - started)
            if rival and len(times[2]) < 5:
                seconds, their = toulbar2(*tables, clock)
                times[2].append(seconds)
        a, b = median(times[0]), median(times[1])
        c = median(times[2]) if times[2] else float("nan")
        later += (a - c) * 1000 > LATER_MS
        for k, t in enumerate((a, b, c)):
            sums[k] += t
        bits = (problem.scale.bit_length() - 1) + int(
            sum(t.max() for t in tables[0]) + sum(t.max() for _, _, t in tables[1])
        ).bit_length()
        rows.append([
            path.name.removesuffix(".json.gz"), f"{1000 * a:.2f}", f"{1000 * b:.2f}", f"{a / b:.2f}", f"{1000 * c:.2f}", f"{1000 * (a - c):+.2f}",
            str(bits), "exact" if right else "NOT EXACT",
            "equal" if exact_cost(tables, plain_x) == published else f"off by {float(exact_cost(tables, plain_x) - published):.3g}",
            "-" if their is None else "equal" if exact_cost(tables, their) == published else f"off by {float(exact_cost(tables, their) - published):.3g}",
            "-" if checked is None else checked.verdict.value,
        ])  # fmt: skip
    rows.append(
        [
            "sum",
            f"{1000 * sums[0]:.1f}",
            f"{1000 * sums[1]:.1f}",
            f"{sums[0] / sums[1]:.2f}",
            f"{1000 * sums[2]:.1f}",
            "",
            "",
            f"{exact} of {len(rows)}",
            "",
            "",
            "",
        ]
    )
    print(table_text(
        f"PaSE tables, {'wall' if chosen.wall else 'CPU'} milliseconds (median of {chosen.repeat}): {machine()}",
        ["table", "ours", "plain", "ours/plain", "toulbar2", "ours-toulbar2", "bits", "ours", "plain", "toulbar2", "certificate"], rows, width=160,
    ))  # fmt: skip
    print(f"ours / plain = {sums[0] / sums[1]:.2f} (wanted: at most {RATIO}); slower than toulbar2 by more than " f"{LATER_MS:g} ms: "
          f"{later if rival else 'toulbar2 is not installed'} (wanted: 0); exact and checked: {exact} of " f"{len(rows) - 1}")  # fmt: skip


if __name__ == "__main__":
    main()
