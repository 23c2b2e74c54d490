"""Reductions of the contest's development instances: sizes before and after, CPU seconds of reducing and of the
checker's replay, bytes of the log.

    python tests/benchmarks/selection_reductions.py [folder with asplos-2025-iopddl-*.json.gz]

The replay must rebuild the reduced problem number by number; the script fails if it does not.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.models.problem.claims import LowerBound
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.proofs.selection.certificates import Open, SelectionCertificate
from shardproof.proofs.selection.file import write_certificate
from shardproof.proofs.selection.load import load_selection_problem
from shardproof.proofs.selection.presolve_log import Rule
from shardproof.verify.selection.ground import Facts, Ground
from shardproof.verify.selection.presolve import replay

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "iopddl"


def sizes(problem: SelectionProblem) -> str:
    labels = [v.cost.size for v in problem.vertices]
    cells = sum(problem.tables[e.table].size for e in problem.edges)
    return f"{len(labels)} / {len(problem.edges)} / {sum(labels)} / {cells} / {max(labels)}"


def seconds(start: float) -> float:
    return time.process_time() - start


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    files = sorted(folder.glob("*.json.gz"))
    if not files:
        print(f"no *.json.gz in {folder}", file=sys.stderr)
        return 0
    presolve(load_selection_problem(files[0]))  # compiles
    print(
        "| X | vertices / edges / labels / entries / max | reduced | load, reduce, replay (CPU s) | log entries, "
        "bytes | rules | peak MiB |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in files:
        start = time.process_time()
        problem = load_selection_problem(path)
        load = seconds(start)
        start = time.process_time()
        reduction = presolve(problem)
        reducing = seconds(start)
        assert reduction is not None and reduction.problem is not None
        record = reduction.proof_back(Open())
        ground = Ground(problem)
        start = time.process_time()
        made = replay(ground, record, list(ground.full), Facts(), path.name)
        replaying = seconds(start)
        assert made is not None and same(made.problem, reduction.problem), path.name
        size = len(write_certificate(None, SelectionCertificate("0" * 64, LowerBound(0), record)))
        applied = Counter(Rule(r).name.lower() for r in reduction.log[:, 0])
        rules = ", ".join(f"{name} {n}" for name, n in applied.items())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        name = path.name.removesuffix(".json.gz").rsplit("-", 1)[-1]
        print(
            f"| {name} | {sizes(problem)} | {sizes(reduction.problem)} | {load:.1f}, {reducing:.1f}, "
            f"{replaying:.1f} | {len(record.log)}, {size} | {rules} | {peak} |"
        )
    return 0


def same(a: SelectionProblem, b: SelectionProblem) -> bool:
    return (
        len(a.vertices) == len(b.vertices)
        and a.constant == b.constant
        and all(np.array_equal(x.cost, y.cost) for x, y in zip(a.vertices, b.vertices, strict=True))
        and [(e.u, e.v) for e in a.edges] == [(e.u, e.v) for e in b.edges]
        and all(np.array_equal(x, y) for x, y in zip(a.tables, b.tables, strict=True))
        and all(
            a.peak_of(x) == b.peak_of(x)
            for x in (tuple(0 for _ in a.vertices), tuple(v.cost.size - 1 for v in a.vertices))
        )
    )


if __name__ == "__main__":
    sys.exit(main())
