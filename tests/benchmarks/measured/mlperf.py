r"""`mlperf_405b`: Llama 3.1 405B in fp8 on 256 to 2,560 GPUs, by a roofline with two constants and a scale per kind of GPU.

    T = scale(kind) (products + attention + `tensors` activations + moves)  +  `step`

`tensors` and `step` belong to the software; both start from a prior (140 tensors a layer and pass, 0.25 s a step for what
neither slots nor peaks explain: optimizer, first and last exchange of shards, loading), since runs of one size cannot
tell a step's constant part from its slots.  The H100 has scale 1; another kind has that of its own runs, or 1 where there
is none: then the data sheets alone carry the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.steps.devices import DEVICES
from shardproof.formal.calibration.steps.robust import Floats, exact, fit
from shardproof.formal.calibration.steps.roofline import TUNED, Shares, seconds
from shardproof.formal.calibration.steps.transformer import MODELS, Layout, work

from .judging import Predictions
from .rows import Cells, read, whole

REFERENCE = "h100"
START = replace(TUNED, activations=Fraction(140), tensor=Fraction(1, 2), step=Fraction(1, 4))
SURE = 0.004
"""Spread of repeated runs; a prior that is off by a factor e counts like a row that is off by this."""


def kind(row: Cells) -> str:
    """Device of a row."""
    return row["gpu"].strip().lower()


def layout(row: Cells) -> Layout:
    """Layout of a row; embedding and loss count as pipeline layers."""
    return Layout(
        micro_batch=whole(row, "micro_batch", 1),
        micro_batches=whole(row, "micro_batches", 1),
        seq=whole(row, "seq", 8192),
        tp=whole(row, "tp", 1),
        pp=whole(row, "pp", 1),
        virtual=whole(row, "vp", 1),
        cp=whole(row, "cp", 1),
        dp=whole(row, "dp", 1),
        ends_as_layers=2,
    )


def formula(row: Cells, shares: Shares) -> float:
    """Seconds without the scale of the kind."""
    plan = layout(row)
    return seconds(
        work(MODELS["llama3-405b"], plan), DEVICES[kind(row)], "fp8", shares, replicas=plan.dp * plan.cp, crosses=True
    )


def usable(folder: Path) -> list[Cells]:
    """Rows of a known kind with a step."""
    return [r for r in read(folder, "mlperf_405b/steps") if r.get("median_s") and kind(r) in DEVICES]


def calibrate(rows: Sequence[Cells]) -> tuple[Shares, dict[str, Fraction]]:
    """Constants of the software, scale of every kind that has rows."""
    kinds = sorted({kind(r) for r in rows} - {REFERENCE})
    measured = np.array([float(r["median_s"]) for r in rows])
    start = np.array([float(START.activations), float(START.step), *[1.0 for _ in kinds]])

    def constants(x: Floats) -> tuple[Shares, dict[str, Fraction]]:
        shares = replace(START, activations=exact(float(x[0])), step=exact(float(x[1])))
        return shares, {REFERENCE: Fraction(1), **{k: exact(float(v)) for k, v in zip(kinds, x[2:], strict=True)}}

    # the formula is linear in both constants: three evaluations of a row give it for every x
    zero, one, two = (
        np.array([formula(r, replace(START, activations=Fraction(a), step=Fraction(0))) for r in rows])
        for a in (0, 1, 2)
    )
    slope = (two - zero) / 2
    number = np.array([0 if kind(r) == REFERENCE else 1 + kinds.index(kind(r)) for r in rows], dtype=int)
    assert np.allclose(one, zero + slope)

    def residuals(x: Floats) -> Floats:
        scale = np.concatenate([[1.0], x[2:]])
        predicted = scale[number] * (zero + slope * x[0]) + x[1]
        held = SURE * np.concatenate([np.log(x / start) / np.array([0.3, 0.3, *[0.1 for _ in kinds]])])
        return np.concatenate([np.log(predicted / measured), held])

    return constants(fit(residuals, start, start / 20, start * 20, soft=0.02).x)


def predictions(fit_folder: Path, judge: Path) -> Predictions:
    """Seconds of all runs."""
    rows, known = usable(judge), usable(fit_folder)
    shares, scales = calibrate(known) if known else (START, {})
    predicted = [
        float(scales.get(kind(r), Fraction(1))) * formula(r, replace(shares, step=Fraction(0))) + float(shares.step)
        for r in rows
    ]
    return Predictions(
        labels=tuple(f"{r['gpu']} {r['gpus']} {r['org']}, run {r['run']}" for r in rows),
        predicted=tuple(predicted),
        measured=tuple(float(r["median_s"]) for r in rows),
        facts={"from": "steps" if known else "data sheets"},
    )


def judged(fit_folder: Path, judge: Path) -> dict[str, object]:
    """Figures of all runs."""
    return predictions(fit_folder, judge).figures()
