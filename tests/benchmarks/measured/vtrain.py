"""`vtrain`: training steps of Megatron on A100s in groups that differ in the strategy only, on one node and on many.

One law for both tables (`formal/calibration/steps/megatron.py`): twelve constants and three profile rows.  The single-node
rows fit without recomputation (with it their products would run at 1.2 times the peak); the others are those of the
launch files, with full recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.steps.megatron import SHEET, Law, Steps, calibrate, predict

from .judging import Predictions
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
    rows = [r for r in read(folder, f"vtrain/{name}") if _whole(r)]
    return steps(rows, int(name == "multi")), np.array([float(r["iteration_ms"]) for r in rows]), rows


def _whole(row: Cells) -> bool:
    """Nothing is missing, and the layout fits the GPUs and the batch."""
    if not all(row.get(c) for c in (*COLUMNS, "iteration_ms")):
        return False
    gpus, batch, micro, tp, dp, pp = (
        int(float(row[c])) for c in ("gpus", "global_batch", "micro_batch", "tp", "dp", "pp")
    )
    return tp * dp * pp == gpus and batch % (dp * micro) == 0


@cache
def law(folder: Path, profile_rows: int = 3) -> Law:
    """The law fitted on both tables of a folder; the data sheet's where there is no row."""
    tables = [(*table(folder, name)[:2], weight) for name, weight in WEIGHTS.items()]
    return calibrate(tables, profile_rows) if any(len(t[0]) for t in tables) else SHEET


def predictions(fit: Path, judge: Path, name: str, profile_rows: int = 3) -> Predictions:
    """Milliseconds of the rows of one table."""
    rows, measured, cells = table(judge, name)
    fitted = law(fit, profile_rows)
    return Predictions(
        labels=tuple(label(r) for r in cells),
        predicted=tuple(predict(rows, fitted).tolist()) if len(rows) else (),
        measured=tuple(measured.tolist()),
        groups=tuple(tuple(r[c] for c in GROUP) for r in cells),
        facts={"constants": fitted.constants, "from": "data sheets" if fitted is SHEET else "steps"},
    )


def label(row: Cells) -> str:
    """One row in words."""
    return (
        f"hidden {row['hidden']}, {row['layers']} layers, {row['gpus']} GPUs, batch {row['global_batch']} by "
        f"{row['micro_batch']}, tp {row['tp']} dp {row['dp']} pp {row['pp']}"
    )


def judged(fit: Path, judge: Path, name: str) -> dict[str, object]:
    """Figures of one table; `law_alone` repeats them without profile rows."""
    found = predictions(fit, judge, name).figures(ranked=True)
    if found["rows"]:
        found["law_alone"] = predictions(fit, judge, name, profile_rows=0).figures(ranked=True)
    return found


def check(fit: Path, judge: Path) -> Predictions:
    """Steps of Megatron on Selene (Calculon's validation rows, `tables/calculon`) by the law of vTrain's machine."""
    rows = [r for r in read(judge, "tables/calculon") if r.get("quantity") == "step" and r.get("value")]
    fitted = law(fit)
    arrays = {c: np.array([float(r[c]) for r in rows]) for c in COLUMNS}
    recompute = np.array([float(r["recompute"] == "full") for r in rows])
    chunks = np.array([float(r.get("interleaving") or 1) for r in rows])
    return Predictions(
        labels=tuple(f"{r['model']} {r['mode']}, {r['gpus']} GPUs" for r in rows),
        predicted=tuple((predict(Steps(**arrays, recompute=recompute, virtual=chunks), fitted) / 1e3).tolist()),
        measured=tuple(float(r["value"]) for r in rows),
        facts={"from": "data sheets" if fitted is SHEET else "steps of vtrain"},
    )


def calculon(fit: Path, judge: Path) -> dict[str, object]:
    """The check's figures: nothing of these rows was fitted."""
    return check(fit, judge).figures()


def single(fit: Path, judge: Path) -> dict[str, object]:
    """One node."""
    return judged(fit, judge, "single")


def multi(fit: Path, judge: Path) -> dict[str, object]:
    """Many nodes."""
    return judged(fit, judge, "multi")
