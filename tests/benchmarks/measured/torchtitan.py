r"""`torchtitan`: Llama 3 on H100s and H200s, by a roofline with ten constants held near what is usual, and effects.

    compute  C = (products / share + attention / share + activations + tensor moves) (`eager` without torch.compile)
    T        = sqrt( C^2 + (`shards` moves)^2 )  +  update        gathering of shards runs beside products, and both slow down

Seventeen rows tell little of ten constants: each is held near its start by a prior of 10 to 50 %, and what is left is shared
by rows of one model, layout, source and precision.  A row unlike all others has the error bound of the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.steps.devices import DEVICES
from shardproof.formal.calibration.steps.effects import Effects, Factor, Row, fit
from shardproof.formal.calibration.steps.robust import Floats
from shardproof.formal.calibration.steps.robust import fit as fit_constants
from shardproof.formal.calibration.steps.roofline import at_peaks
from shardproof.formal.calibration.steps.transformer import MODELS, Layout, work

from .judging import Predictions
from .rows import Cells, read, whole

NAMES = ("bf16", "fp8", "attention", "activations", "fp8_casts", "tensor", "async_tensor", "shards", "eager", "rowwise")
START = np.array([0.6, 0.5, 0.4, 40, 20, 1.5, 0.9, 0.7, 1.25, 1.3])
PRIOR = np.array([0.15, 0.15, 0.3, 0.5, 0.5, 0.4, 0.4, 0.4, 0.1, 0.2])
SURE = 0.1
"""Residual of a row that weighs as much as a constant one prior away."""

FACTORS = (
    Factor("all", "same", lambda r: 1, 0.05),
    Factor("model", "same", lambda r: r["model"], 0.1),
    Factor("layout", "same", lambda r: (r["model"], r["tp"], r["pp"]), 0.2),
    Factor("place", "same", lambda r: (r["model"], r["gpu"], r["tp"], r["pp"], r["seq"]), 0.1),
    Factor("source", "same", lambda r: r["source"], 0.1),
    Factor("precision", "same", lambda r: r["precision"], 0.05),
)


def layout(row: Cells) -> Layout:
    """With a pipeline, local batches are its micro-batches; an interleaved schedule has two layers a chunk."""
    tp, cp, pp = (whole(row, c, 1) for c in ("tp", "cp", "pp"))
    local, layers = whole(row, "local_batch", 1), MODELS[f"llama3-{row['model']}"].layers
    return Layout(
        micro_batch=local if pp == 1 else 1,
        micro_batches=1 if pp == 1 else local,
        seq=whole(row, "seq", 8192),
        tp=tp,
        pp=pp,
        cp=cp,
        dp=max(1, whole(row, "gpus", 8) // (tp * cp * pp)),
        virtual=max(1, layers // pp // 2) if "interleaved" in row.get("schedule", "").lower() else 1,
        sharded=whole(row, "fsdp", 1),
        recompute=row.get("recompute") == "full",
    )


def columns(rows: Sequence[Cells]) -> dict[str, Floats]:
    """Terms at peaks, tokens a GPU, and what the shares depend on."""
    out: dict[str, list[float]] = {}
    for row in rows:
        plan, sheet = layout(row), DEVICES[row["gpu"]]
        low = "float8" in row["precision"]
        terms = at_peaks(
            work(MODELS[f"llama3-{row['model']}"], plan),
            sheet,
            "fp8" if low else "bf16",
            replicas=plan.dp,
            crosses=plan.sharded * plan.tp * plan.cp > sheet.node,
        )
        tokens = whole(row, "local_batch", 1) * plan.seq * plan.dp / whole(row, "gpus", 8)
        flags = {
            "fp8": low,
            "rowwise": "rowwise" in row["precision"],
            "async": row.get("async_tp") == "1",
            "eager": row.get("compile") == "0",
        }
        for name, value in {**vars(terms), "tokens": tokens, **flags}.items():
            out.setdefault(name, []).append(float(value))
    return {k: np.array(v) for k, v in out.items()}


def formula(c: dict[str, Floats], x: Floats) -> Floats:
    """Tokens per second and GPU."""
    q = dict(zip(NAMES, x, strict=True))
    products = c["products"] / np.where(c["fp8"] > 0, q["fp8"], q["bf16"]) * np.where(c["rowwise"] > 0, q["rowwise"], 1)
    compute = (
        products
        + c["attention"] / q["attention"]
        + (q["activations"] + q["fp8_casts"] * c["fp8"]) * c["activations"]
        + c["tensor"] * np.where(c["async"] > 0, q["async_tensor"], q["tensor"])
    ) * np.where(c["eager"] > 0, q["eager"], 1)
    return np.asarray(c["tokens"] / (np.sqrt(compute**2 + (q["shards"] * c["shards"]) ** 2) + c["update"]))


def known(row: Cells) -> Row:
    """What the effects may depend on."""
    return {c: row[c] for c in ("model", "gpu", "tp", "pp", "seq", "source", "precision")}


def usable(folder: Path) -> list[Cells]:
    """Rows of a known model and device with a throughput."""
    return [
        r
        for r in read(folder, "tables/torchtitan")
        if r.get("tokens_s_gpu") and f"llama3-{r['model']}" in MODELS and r["gpu"] in DEVICES
    ]


def calibrate(rows: Sequence[Cells]) -> tuple[Floats, Effects]:
    """Constants, and effects on log(measured / formula)."""
    if not rows:
        return START, fit([], np.zeros(0), FACTORS, noise=0.04)
    terms, measured = columns(rows), np.array([float(r["tokens_s_gpu"]) for r in rows])

    def residuals(x: Floats) -> Floats:
        return np.concatenate([np.log(formula(terms, x) / measured), SURE * np.log(x / START) / PRIOR])

    x = fit_constants(residuals, START, START / 20, START * 20).x
    left = np.log(measured / formula(terms, x))
    return x, fit([known(r) for r in rows], left, FACTORS, noise=0.04, climb=False)


def predictions(fit_folder: Path, judge: Path) -> Predictions:
    """Tokens per second and GPU."""
    rows, fitted = usable(judge), usable(fit_folder)
    x, effects = calibrate(fitted)
    mean, sd = effects.predict([known(r) for r in rows])
    return Predictions(
        labels=tuple(
            f"{r['model']} {r['gpu']} {r['precision']}, {r['gpus']} GPUs, tp {r['tp'] or 1} cp {r['cp'] or 1} pp {r['pp'] or 1}, "
            f"{r['seq'] or 8192} tokens, async {r['async_tp']}, compile {r['compile']}"
            for r in rows
        ),
        predicted=tuple((formula(columns(rows), x) * np.exp(mean)).tolist()) if rows else (),
        measured=tuple(float(r["tokens_s_gpu"]) for r in rows),
        lower=False,
        bars=tuple(sd.tolist()),
        facts={"from": "steps" if fitted else "data sheets"},
    )


def judged(fit_folder: Path, judge: Path) -> dict[str, object]:
    """Errors and pairs of tokens per second and GPU."""
    return predictions(fit_folder, judge).figures(paired=True)
