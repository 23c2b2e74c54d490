"""The ten programs that the thesis prints, at its sizes: planned, proved, run on ranks, equal to NumPy, least bytes.

    python tests/benchmarks/thesis_programs.py [RANKS ..] [--mpi RANKS ..] [--small] [--write]    (2 4 8; MPI 2 4)

Per program and number of ranks: the best schedule (`plan`, whose claim the checker makes), and the schedule of the
thesis' text with the bytes that it moves, beside the least, and the largest difference from the function on NumPy arrays
of the results on virtual ranks, and on MPI ranks where they are asked for.  `--write` writes the results page.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from thesis_cases import SCHEDULES, Printed, printed

import shardproof
from shardproof.backends.execution.job import write_job
from shardproof.backends.execution.launch import launch
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.backends.lowering.traffic import traffic
from shardproof.models.communication.root import root_transfers
from shardproof.models.machine.machine import load_machine
from shardproof.verify.plan.communication import check_bytes, check_delivers

PAGE = Path(__file__).parent / "results/thesis-programs.md"
HEAD = """# The ten programs of the thesis as printed

`python tests/benchmarks/thesis_programs.py --write` (2 cores; programs and sizes: `tests/data/thesis`)

Best: the plan that `plan` finds on `localhost:RANKS` and what its checker says. Thesis: the schedule of the thesis' text,
every resharding proved to deliver what its readers want; bytes that all ranks receive in it beside the least that they
must. From root: bytes received where
inputs are scattered from rank 0 and outputs gathered to it, each the least. Difference: the largest from the function on NumPy arrays, beside the largest result, on virtual and on MPI ranks
(float32 but for `add`, `reduce`, `grid` and `runs_on_gpu`; - : not run).

| program | ranks | best | thesis' schedule | bytes | least | from root | delivers | virtual | MPI |
|---|---|---|---|---|---|---|---|---|---|
"""


def measured(name: str, ranks: int, mpi: bool, small: bool) -> str:
    """One row of the page."""
    with contextlib.redirect_stderr(io.StringIO()):
        best = shardproof.plan(getattr(printed(small), name), machine=f"localhost:{ranks}", compare=small)
    claim = f"{best.check().verdict.value}: {best.status}"
    case = Printed.of(name, ranks, small)
    program = lower(case.traced.graph, (ranks,), case.done.choices)
    delivers = all(
        verdict.verdict.value == "proved"
        for m in program.movements
        for verdict in (check_delivers(m.plan), check_bytes(m.plan, m.plan.loads(), m.plan.phases()))
    )
    virtual = case.difference(run_virtual(program, case.digits()).outputs)
    entries = traffic(case.traced.graph, (ranks,), case.done.choices)
    moved, least = (
        sum(n * t.element_bytes for n, t in zip(counts, entries, strict=True))
        for counts in ([t.moved for t in entries], [t.bound for t in entries])
    )
    root = tuple(root_transfers(case.traced.graph, load_machine(f"localhost:{ranks}"), case.done.choices))
    delivers = delivers and all(m.moved == m.least and check_delivers(m.plan).verdict.value == "proved" for m in root)
    ends = sum(m.moved for m in root)
    words = ", ".join(f"{op}: {' '.join(axes)}" for op, axes in SCHEDULES[name])
    distributed = f"{_on_mpi(case, ranks):.0e}" if mpi else "-"
    proved = "proved" if delivers else "refuted"
    return f"| `{name}` | {ranks} | {claim} | {words} | {moved} | {least} | {ends} | {proved} | {virtual:.0e} | {distributed} |"


def _on_mpi(case: Printed, ranks: int) -> float:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        write_job(place, case.traced.graph, (ranks,), case.done.choices, case.digits())
        launch([str(Path(__file__).resolve().parent.parent / "mpi_jobs.py"), str(place)], ranks, 300)
        outputs = {t: np.load(place / f"outputs/{n}.npy") for n, t in enumerate(case.traced.graph.outputs)}
    return case.difference(outputs)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("ranks", type=int, nargs="*", default=[2, 4, 8])
    asked.add_argument("--mpi", type=int, nargs="*", default=[2, 4])
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--write", action="store_true")
    given = asked.parse_args()
    rows = []
    print(HEAD, end="")
    for name in SCHEDULES:
        for ranks in given.ranks:
            rows.append(measured(name, ranks, ranks in given.mpi, given.small))
            print(rows[-1], flush=True)
    if given.write:
        PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
