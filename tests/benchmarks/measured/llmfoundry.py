r"""`llmfoundry`: MosaicML's table of MPT models on A100s and H100s, FSDP, by a roofline with nine constants.

    T = products (1 + width / hidden) / share(kind, fp8)  +  attention / share(kind)  +  `activations` tensors / memory
        + `shards` moves  +  update  +  `host` ms a layer and micro-batch

The shares are those of the software on two kinds of GPU; `width` makes narrow models slower (a hidden size of `width` runs
at half the share).  What is left has no structure that effects of model, length or size would find: rows with one
sequence a micro-batch and 30 billion parameters, and one run each at 32 and 64 GPUs, are 15 to 26 % off whatever is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.steps.devices import DEVICES
from shardproof.formal.calibration.steps.robust import Floats, fit
from shardproof.formal.calibration.steps.roofline import at_peaks
from shardproof.formal.calibration.steps.transformer import MODELS, Layout, Transformer, work

from .judging import Predictions, pairs
from .rows import Cells, read, whole

NAMES = ("a100", "h100", "a100_attention", "h100_attention", "activations", "shards", "host", "width", "fp8")
START = np.array([0.7, 0.65, 0.4, 0.3, 10.0, 0.1, 1.0, 600.0, 1.3])
HIGH = np.array([1, 1, 1, 1, 1e3, 1, 20, 1e4, 2])
"""Shares of the dense bf16 peak (fp8: times), tensors, part not hidden, ms, hidden size.  The start stands where no row is
given to fit."""
SURE = 0.15
"""A constant that is off its start by a factor e counts like a row that is off by this: rows scatter by 5 %, shares of
software by a third.  Rows of one length, or all without recomputation, cannot tell products from attention from tensors:
with 0.01 they sent what they had not seen off by 13 and 21 % on average (197 % at worst), with 0.15 by 4 and 8 %."""


def device(row: Cells) -> str:
    """Name in the data sheets; the table's H100 is the usual one."""
    name = row["gpu"].strip().lower()
    return "h100" if name.startswith("h100") else name


def model(row: Cells) -> Transformer:
    """The shape of a row's model; one that is not known stands as an MPT of as many parameters, 128 times as wide as deep."""
    known = MODELS.get(f"mpt-{row['model']}")
    if known is not None:
        return known
    vocabulary, parameters = 50368, float(row["params"])
    hidden = 128
    while 12 * max(1, hidden // 128) * hidden**2 + vocabulary * hidden < parameters:
        hidden += 128
    return Transformer(max(1, hidden // 128), hidden, 4 * hidden, hidden // 128, hidden // 128, vocabulary, gated=False)


def columns(rows: Sequence[Cells]) -> dict[str, Floats]:
    """Terms at peaks and what the shares depend on."""
    out: dict[str, list[float]] = {}
    for row in rows:
        shape, sheet = model(row), DEVICES[device(row)]
        gpus, times = whole(row, "gpus", 8), whole(row, "accumulation", 1)
        plan = Layout(
            micro_batch=whole(row, "micro_batch", 1),
            micro_batches=times,
            seq=whole(row, "seq", 2048),
            dp=gpus,
            sharded=gpus,
            recompute=row.get("recompute") == "True",
        )
        terms = at_peaks(work(shape, plan), sheet, "bf16", replicas=gpus, crosses=gpus > sheet.node)
        for name, value in {
            **vars(terms),
            "layers": times * shape.layers * 1e-3,
            "hidden": shape.hidden,
            "h100": device(row).startswith("h"),
            "fp8": "fp8" in row["precision"],
        }.items():
            out.setdefault(name, []).append(float(value))
    return {k: np.array(v) for k, v in out.items()}


def predict(c: dict[str, Floats], x: Floats) -> Floats:
    """Seconds of a step."""
    q = dict(zip(NAMES, x, strict=True))
    share = np.where(c["h100"] > 0, q["h100"], q["a100"]) * np.where(c["fp8"] > 0, q["fp8"], 1)
    return np.asarray(
        c["products"] * (1 + q["width"] / c["hidden"]) / share
        + c["attention"] / np.where(c["h100"] > 0, q["h100_attention"], q["a100_attention"])
        + q["activations"] * c["activations"]
        + q["shards"] * c["shards"]
        + c["update"]
        + q["host"] * c["layers"]
    )


def calibrate(rows: Sequence[Cells]) -> Floats:
    """The nine constants."""
    if not rows:
        return START
    terms, measured = columns(rows), np.array([float(r["step_s"]) for r in rows])

    def residuals(x: Floats) -> Floats:
        return np.concatenate([np.log(predict(terms, x) / measured), SURE * np.log(x / START)])

    return fit(residuals, START, START / 50, HIGH).x


def usable(folder: Path) -> list[Cells]:
    """Rows of a known device with a step, of a known model or one whose parameters are counted."""
    return [
        r
        for r in read(folder, "tables/llmfoundry")
        if r.get("step_s") and (f"mpt-{r['model']}" in MODELS or r.get("params")) and device(r) in DEVICES
    ]


def predictions(fit_folder: Path, judge: Path) -> Predictions:
    """Seconds of a step."""
    rows, known = usable(judge), usable(fit_folder)
    return Predictions(
        labels=tuple(
            f"{r['model']} {r['gpu']} {r['precision']}, {r['gpus']} GPUs, {r['seq']} tokens, micro-batch {r['micro_batch']}"
            for r in rows
        ),
        predicted=tuple(predict(columns(rows), calibrate(known)).tolist()) if rows else (),
        measured=tuple(float(r["step_s"]) for r in rows),
        facts={"from": "steps" if known else "data sheets"},
    )


def judged(fit_folder: Path, judge: Path) -> dict[str, object]:
    """Errors of the step; pairs by tokens per second and GPU."""
    found = predictions(fit_folder, judge)
    if not found.measured:
        return found.figures()
    tokens = [float(r["global_batch"]) * float(r["seq"]) / float(r["gpus"]) for r in usable(judge)]
    rates = [[n / t for n, t in zip(tokens, side, strict=True)] for side in (found.predicted, found.measured)]
    return {**found.figures(), **pairs(*rates)}
