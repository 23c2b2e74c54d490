"""`dgxc`: NVIDIA's recipes on DGX H100, by a roofline with the shares of tuned software, and effects of family, size,
mode and precision that shrink towards it.

Columns that the source prints wrongly (data parallel ranks, accumulation) are computed again from the others; a blank
`vp` means one layer a chunk, which is what the recipes set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.steps.devices import DEVICES
from shardproof.formal.calibration.steps.effects import Effects, Factor, Row, fit
from shardproof.formal.calibration.steps.roofline import TUNED, seconds
from shardproof.formal.calibration.steps.transformer import MODELS, Layout, Transformer, work

from .judging import Predictions
from .rows import Cells, read, whole

FACTORS = (
    Factor("all", "same", lambda r: 1, 0.2),
    Factor("precision", "same", lambda r: r["precision"], 0.1),
    Factor("family", "same", lambda r: r["family"], 0.15),
    Factor("size", "same", lambda r: (r["family"], r["size"], r["mode"]), 0.08),
    Factor("family, precision", "same", lambda r: (r["family"], r["precision"]), 0.05),
    Factor("size, precision", "same", lambda r: (r["family"], r["size"], r["mode"], r["precision"]), 0.03),
    Factor("gpus", "linear", lambda r: r["gpus"], 0.004),
)
"""Scales: 0.1 is ten percent; of `gpus`, per doubling."""


def model(row: Cells) -> Transformer:
    """The shape of a row's model; one that is not known stands as a Llama of as many parameters."""
    family = row["family"].split("-")[-1].split(".")[0]
    name = f"{family}-{row['size'].split('-')[0]}"
    known = MODELS.get(name)
    if known is not None:
        layers = whole(row, "layers", known.layers)
        return Transformer(
            layers, known.hidden, known.ffn, known.heads, known.kv_heads, known.vocabulary, gated=known.gated
        )
    billions = re.match(r"([\d.]+)b", row["size"])
    return like_llama(float(billions[1]) if billions else 70.0, whole(row, "layers", 0))


def like_llama(billions: float, layers: int = 0) -> Transformer:
    """A gated transformer of about so many parameters, 102.4 times as wide as deep (Llama 3 70B: 8,192 and 80).

    >>> round(like_llama(70).parameters / 1e9, -1)
    70.0
    """
    hidden = 128 * max(4, round((billions * 1e9 / 13.5 * 102.4) ** (1 / 3) / 128))
    per_layer = 13.5 * hidden * hidden
    return Transformer(
        layers or max(1, round((billions * 1e9 - 2 * hidden * 128256) / per_layer)),
        hidden,
        round(3.5 * hidden),
        hidden // 128,
        8,
        128256,
        gated=True,
    )


def formula(row: Cells) -> float:
    """Seconds by data sheets and tuned shares."""
    shape = model(row)
    gpus, tp, pp, cp = (whole(row, c, 1) for c in ("gpus", "tp", "pp", "cp"))
    dp = max(1, gpus // (tp * pp * cp))
    micro = whole(row, "micro_batch", 1)
    plan = Layout(
        micro_batch=micro,
        micro_batches=max(1, whole(row, "global_batch", dp * micro) // (dp * micro)),
        seq=whole(row, "seq", 8192),
        tp=tp,
        pp=pp,
        virtual=whole(row, "vp", max(1, shape.layers // pp) if pp > 1 else 1),
        cp=cp,
        dp=dp,
        adapters=row["mode"] == "lora",
    )
    return seconds(work(shape, plan), DEVICES["h100"], row["precision"], TUNED, replicas=dp)


def known(row: Cells) -> Row:
    """What the effects may depend on."""
    return {
        **{c: row[c] for c in ("family", "size", "mode", "precision")},
        "gpus": math.log2(whole(row, "gpus", 64) / 64),
    }


def usable(folder: Path) -> list[Cells]:
    """Rows with a step."""
    return [
        r for r in read(folder, "dgxc/steps") if r.get("step_s") and r.get("gpus") and r["precision"] in ("bf16", "fp8")
    ]


def effects(rows: Sequence[Cells]) -> Effects:
    """Fitted on rows."""
    left = np.array([math.log(float(r["step_s"]) / formula(r)) for r in rows])
    return fit([known(r) for r in rows], left, FACTORS, noise=0.01)


def predictions(fit_folder: Path, judge: Path) -> Predictions:
    """Seconds of all rows."""
    rows, fitted = usable(judge), usable(fit_folder)
    mean, sd = effects(fitted).predict([known(r) for r in rows])
    return Predictions(
        labels=tuple(f"{r['family']} {r['size']} {r['mode']} {r['precision']}, {r['gpus']} GPUs" for r in rows),
        predicted=tuple(formula(r) * math.exp(m) for r, m in zip(rows, mean, strict=True)),
        measured=tuple(float(r["step_s"]) for r in rows),
        bars=tuple(sd.tolist()),
        facts={"from": "steps" if fitted else "data sheets"},
    )


def judged(fit_folder: Path, judge: Path) -> dict[str, object]:
    """Figures of all rows; `bar` is the predicted standard deviation, on average."""
    return predictions(fit_folder, judge).figures()
