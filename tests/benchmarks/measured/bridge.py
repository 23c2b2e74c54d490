r"""`megatron_bridge`: NVIDIA's throughput tables of ten releases, by a share of the peak and effects of what rows share.

    tokens per second and GPU = 0.35 bf16 peak  (fp8: 0.75, fp4: 0.5 of that share of its own peak)  /  flops of a token
                                times effects of model, system, precision, layout and release, and their pairs

Most rows return in other releases with other software, which moves them by 1 to 60 % (mixtures of experts on GB200 and GB300
gained half between 26.04 and 26.06): no formula of ours knows software, so most of what is known of a row is what its
neighbours measured.  Flops of a token are the table's own for a model that was fitted (throughput over Tflop/s), else
six times the active parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from shardproof.formal.calibration.steps.devices import DEVICES
from shardproof.formal.calibration.steps.effects import Effects, Factor, Row, fit

from .judging import Predictions
from .rows import Cells, read, whole

ACTIVE = {
    "DeepSeekV3": 37.0,
    "DeepSeekV4 Flash": 13.0,
    "GPT OSS 20B": 3.6,
    "GPT OSS 120B": 5.1,
    "Kimi K2": 32.0,
    "Nemotron_3_Nano": 3.5,
    "Nemotron_3_Super": 12.0,
    "Nemotron_3_Ultra": 55.0,
}
"""Billions, by their model cards, where the name does not say."""

Tokens = Mapping[tuple[str, str], float]
"""Model and length -> Tflop of a token."""


def model(row: Cells) -> str:
    """Name without what stands in parentheses."""
    return row["model"].split(" (")[0]


def device(row: Cells) -> str:
    """Name in the data sheets."""
    return row["system"].removeprefix("DGX-").lower()


def precision(row: Cells) -> str:
    """bf16, fp8 or fp4; the oldest release leaves it blank and ran fp8."""
    text = row["precision"].upper()
    return "fp4" if "FP4" in text else "bf16" if "BF16" in text else "fp8"


def release(row: Cells) -> float:
    """Months since 26.04; a point release half a month later."""
    year, month, *point = (int(v) for v in row["release"].split("."))
    return 12 * (year - 26) + month - 4 + (0.5 if point and point[0] else 0)


def kind(row: Cells) -> str:
    """Dense, mixture of experts, or hybrid of attention and state space."""
    name = model(row).upper()
    return "dense" if "LLAMA" in name else "hybrid" if "NEMOTRON" in name else "experts"


def per_token(rows: Sequence[Cells]) -> dict[tuple[str, str], float]:
    """Tflop of a token, by model and length, of the rows fitted."""
    found: dict[tuple[str, str], list[float]] = {}
    for r in rows:
        if r.get("model_tflops_gpu"):
            ratio = float(r["model_tflops_gpu"]) / float(r["tokens_s_gpu"])
            found.setdefault((model(r), r["seq"]), []).append(ratio)
    return {k: median(v) for k, v in found.items()}


def active(name: str) -> float:
    """Billions of parameters that a token meets.

    >>> active("Qwen3_235B_a22B"), active("LLAMA3_70B"), active("Nemotron_3_Ultra")
    (22.0, 70.0, 55.0)
    """
    if name in ACTIVE:
        return ACTIVE[name]
    sizes = re.search(r"[aA](\d+\.?\d*)B", name) or re.search(r"(\d+\.?\d*)B", name)
    return float(sizes[1]) if sizes else 20.0


def formula(row: Cells, tokens: Tokens) -> float:
    """Tokens per second and GPU by the data sheet."""
    name = model(row)
    other = [v for (m, _), v in tokens.items() if m == name]
    cost = tokens.get((name, row["seq"])) or (median(other) if other else 6e-3 * active(name))
    share = {"bf16": 0.35, "fp8": 0.35 * 0.75, "fp4": 0.35 * 0.5}[precision(row)]
    return share * DEVICES[device(row)].peak(precision(row)) / cost


def known(row: Cells) -> Row:
    """What the effects may depend on."""
    gpus = whole(row, "gpus", 64)
    logs = {c: math.log2(whole(row, c, 1) or 1) for c in ("micro_batch", "tp", "pp", "ep")}
    layout = tuple(
        row.get(c, "") for c in ("gpus", "global_batch", "micro_batch", "seq", "fsdp", "tp", "pp", "cp", "ep")
    )
    return {
        "model": model(row),
        "full name": row["model"],
        "system": device(row),
        "written precision": row["precision"],
        "precision": precision(row),
        "kind": kind(row),
        "month": release(row),
        "release": row["release"],
        "phase": row["phase"],
        "layout": layout,
        "variant": row.get("variant", ""),
        "gpus": math.log2(gpus / 64),
        "batch": math.log2(whole(row, "global_batch", 512) / gpus),
        **logs,
    }


def _same(scale: float, *names: str) -> Factor:
    return Factor(", ".join(names), "same", lambda r: tuple(r[n] for n in names), scale)


def _linear(name: str, scale: float) -> Factor:
    return Factor(name, "linear", lambda r: r[name], scale)


FACTORS = (
    _same(0.3),
    _same(0.1, "phase"),
    _same(0.3, "kind"),
    _same(0.2, "model"),
    _same(0.05, "full name"),
    _same(0.1, "system"),
    _same(0.1, "written precision"),
    _same(0.1, "precision"),
    _same(0.1, "kind", "system"),
    _same(0.1, "kind", "precision"),
    _same(0.1, "model", "system"),
    _same(0.1, "model", "precision"),
    _same(0.05, "model", "system", "precision"),
    _same(0.1, "model", "system", "layout"),
    _same(0.05, "model", "layout"),
    _same(0.05, "model", "variant"),
    Factor("month", "near", lambda r: r["month"], 0.05, 3.0),
    Factor("month of experts", "near", lambda r: r["month"] if r["kind"] == "experts" else None, 0.1, 2.0),
    _same(0.02, "release"),
    _same(0.05, "kind", "release"),
    _same(0.05, "model", "release"),
    _same(0.03, "model", "system", "precision", "release"),
    _linear("micro_batch", 0.05),
    _linear("tp", 0.05),
    _linear("pp", 0.03),
    _linear("ep", 0.03),
    _linear("gpus", 0.03),
    _linear("batch", 0.03),
)
"""Scales: 0.1 is ten percent, of a slope per doubling."""


def usable(folder: Path) -> list[Cells]:
    """Rows of a known device with a throughput."""
    return [r for r in read(folder, "tables/megatron_bridge") if r.get("tokens_s_gpu") and device(r) in DEVICES]


def calibrate(rows: Sequence[Cells]) -> tuple[Tokens, Effects]:
    """Flops of tokens, and effects on log(measured / formula)."""
    tokens = per_token(rows)
    left = np.array([math.log(float(r["tokens_s_gpu"]) / formula(r, tokens)) for r in rows])
    return tokens, fit([known(r) for r in rows], left, FACTORS, noise=0.02)


def predictions(fit_folder: Path, judge: Path) -> Predictions:
    """Tokens per second and GPU."""
    rows, fitted = usable(judge), usable(fit_folder)
    tokens, effects = calibrate(fitted)
    mean, sd = effects.predict([known(r) for r in rows])
    return Predictions(
        labels=tuple(
            f"{r['release']} {r['model']} {r['system']} {r['gpus']} GPUs {r['precision']}, ep {r['ep'] or 1}"
            for r in rows
        ),
        predicted=tuple(formula(r, tokens) * math.exp(m) for r, m in zip(rows, mean, strict=True)),
        measured=tuple(float(r["tokens_s_gpu"]) for r in rows),
        lower=False,
        bars=tuple(sd.tolist()),
        facts={"from": "steps" if fitted else "data sheets"},
    )


def judged(fit_folder: Path, judge: Path) -> dict[str, object]:
    """Errors and pairs of tokens per second and GPU."""
    return predictions(fit_folder, judge).figures(paired=True)
