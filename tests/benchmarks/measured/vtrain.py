"""`vtrain`: training steps of Megatron on A100s in groups that differ in the strategy only, on one node and on many.

One law for both tables (`formal/calibration/steps/megatron.py`): twelve constants and three profile rows.  The single-node
rows fit without recomputation (with it their products would run at 1.3 times the peak); the others are those of the
launch files, with full recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.steps.megatron import SHEET, Law, Steps, calibrate, predict

from .judging import Figures, errors, ranking
from .rows import Cells, read

COLUMNS = ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp")
GROUP = ("hidden", "heads", "layers", "seq", "global_batch", "gpus")
WEIGHTS = {"single": 1.0, "multi": 2.5}
"""Of a row: there are eighteen times fewer on many nodes, and they alone tell about the network."""


def steps(rows: Sequence[Cells], recompute: int) -> Steps:
    """Rows of a table as arrays."""
    arrays = {c: np.array([float(r[c]) for r in rows]) for c in COLUMNS}
    return Steps(**arrays, recompute=np.full(len(rows), float(recompute)))


def table(folder: Path, name: str) -> tuple[Steps, np.ndarray, list[Cells]]:
    """The rows of `vtrain/name` that say all there is to say, with milliseconds."""
    rows = [r for r in read(folder, f"vtrain/{name}") if all(r.get(c) for c in (*COLUMNS, "iteration_ms"))]
    return steps(rows, int(name == "multi")), np.array([float(r["iteration_ms"]) for r in rows]), rows


@cache
def law(folder: Path, profile_rows: int = 3) -> Law:
    """The law fitted on both tables of a folder; the data sheet's where there is no row."""
    tables = [(*table(folder, name)[:2], weight) for name, weight in WEIGHTS.items()]
    return calibrate(tables, profile_rows) if any(len(t[0]) for t in tables) else SHEET


def judged(fit: Path, judge: Path, name: str) -> Figures | dict[str, object]:
    """Figures of one table; `law` repeats them without profile rows."""
    rows, measured, cells = table(judge, name)
    if not len(rows):
        return {"rows": 0}
    groups = [tuple(r[c] for c in GROUP) for r in cells]
    found: dict[str, object] = {}
    for profile_rows in (3, 0):
        fitted = law(fit, profile_rows)
        predicted = predict(rows, fitted).tolist()
        figures = {**errors(predicted, measured.tolist()), **ranking(predicted, measured.tolist(), groups)}
        if profile_rows:
            found.update(figures)
            found["constants"] = fitted.constants
            found["from"] = "data sheets" if fitted is SHEET else "steps"
        else:
            found["law_alone"] = figures
    return found


def single(fit: Path, judge: Path) -> dict[str, object]:
    """One node."""
    return dict(judged(fit, judge, "single"))


def multi(fit: Path, judge: Path) -> dict[str, object]:
    """Many nodes."""
    return dict(judged(fit, judge, "multi"))
