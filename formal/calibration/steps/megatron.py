r"""Computes seconds of one optimizer step of Megatron (1F1B pipeline, gradients reduced at the end), by
twelve constants.

    tokens M = micro_batch seq,   micro-batches m = global_batch / (dp micro_batch),   r = 1 with full recomputation

    layer   L = max( host,  products + traffic + tensor + exposed host ) (1 + spread log2(8 / tp) log2(gpus / 64) / 6)
      products   flops of the four products and of attention, forward (1 + r) and backward 2, over `products`
      traffic    2 (3 + r) bytes of every activation kept:  M h (10 + 24 / tp) + 5 micro_batch heads seq^2 / tp,
                 over `memory`  (Korthikanti et al., arXiv 2205.05198, give these counts)
      tensor     4 + 2 r meetings, each `meet` log2(tp), of which 2 (1 + r) all-reduces of M h are not hidden behind
                 gradients of weights; over the data sheet's NVLink inside a node, over `node` beyond
      host       time in which Python launches the layer; `unfused` more where micro_batch heads / tp is no multiple of
                 four, for which Megatron has no fused softmax
    head    H = `ends` + output product over `products` (`whole_head` where the vocabulary is not split, inside a
            node) + loss over `memory`
    step    (m + (pp - 1) / virtual) L layers / pp  +  m H  +  0.4 `ends` (m with one stage, else 1)
            + parameters of a GPU `update`  +  4 M h (pp - 1) / `hop`  +  2 (dp - 1) / dp 2 bytes a parameter, over
            NVLink or `node` (shared by the tp groups of a node)

`profile` overrides L for named shapes (hidden, tp, tokens): measured layer times of the few shapes that the law misses
most, counted as constants like the others.  What each constant was fitted on is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from ....models.text import InputError
from .robust import Floats, exact, fit

NVLINK: Final = 300.0
"""GB/s of a GPU and direction: NVIDIA A100 data sheet, NVLink 3, 600 GB/s both directions."""

NODE: Final = 8
"""GPUs of a node."""

Shape = tuple[int, int, int]
"""hidden, tp, tokens of a micro-batch."""


@dataclass(frozen=True)
class Steps:
    """Rows of one shape of table: whole numbers as arrays of equal length; `recompute` is 0 or 1, `virtual`
    the interleaved chunks of a stage (none: 1).

    Raises `InputError` if the micro-batches do not divide the batch, or tp dp pp is not the number of GPUs.
    """

    gpus: Floats
    global_batch: Floats
    micro_batch: Floats
    hidden: Floats
    heads: Floats
    layers: Floats
    seq: Floats
    tp: Floats
    dp: Floats
    pp: Floats
    recompute: Floats
    virtual: Floats | None = None
    vocabulary: int = 50304

    def __post_init__(self) -> None:
        wrong = np.nonzero(self.tp * self.dp * self.pp != self.gpus)[0]
        if len(wrong):
            raise InputError(f"row {wrong[0]}: tp dp pp is not the number of GPUs; correct the row or leave it out")
        wrong = np.nonzero(self.global_batch % (self.dp * self.micro_batch))[0]
        if len(wrong):
            raise InputError(f"row {wrong[0]}: dp micro_batch does not divide the global batch; leave the row out")

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def micro_batches(self) -> Floats:
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def slots(self) -> Floats:
        """Micro-batches and the bubble: how many times the slowest stage's length a step takes."""
        return self.micro_batches + (self.pp - 1) / (1 if self.virtual is None else self.virtual)

    def shapes(self) -> list[Shape]:
        """Shape of every row's layer."""
        tokens = self.micro_batch * self.seq
        return [(int(h), int(t), int(m)) for h, t, m in zip(self.hidden, self.tp, tokens, strict=True)]


@dataclass(frozen=True)
class Law:
    """The constants: Tflop/s, GB/s, ms, ms, ms, share, ms, Tflop/s, ps a parameter, GB/s, GB/s, share; ms of profile
    rows.
    """

    products: Fraction
    memory: Fraction
    host: Fraction
    unfused: Fraction
    meet: Fraction
    exposed: Fraction
    ends: Fraction
    whole_head: Fraction
    update: Fraction
    hop: Fraction
    node: Fraction
    spread: Fraction
    profile: tuple[tuple[Shape, Fraction], ...] = ()

    @property
    def constants(self) -> int:
        """How many numbers the law holds."""
        return len(NAMES) + len(self.profile)


NAMES: Final = (
    "products",
    "memory",
    "host",
    "unfused",
    "meet",
    "exposed",
    "ends",
    "whole_head",
    "update",
    "hop",
    "node",
    "spread",
)

SHEET: Final = Law(
    products=Fraction(312),
    memory=Fraction(1555),
    host=Fraction(0),
    unfused=Fraction(0),
    meet=Fraction(0),
    exposed=Fraction(0),
    ends=Fraction(0),
    whole_head=Fraction(312),
    update=Fraction(28000, 1555),
    hop=Fraction(300),
    node=Fraction(100),
    spread=Fraction(0),
)
"""NVIDIA A100 40 GB data sheet (dense fp16 peak, HBM2, NVLink 3), 800 Gb/s a node; the update reads and writes 28
bytes a parameter.  The sheet knows no time of a host: without measured steps these are lower bounds, not estimates.
"""

_START: Final = np.array([260, 1400, 3.2, 1.2, 0.14, 0.4, 2.5, 110, 18, 13, 75, 0.3])
_LOW: Final = np.array([50, 300, 0.01, 0.01, 0.001, 0.01, 0.01, 10, 1, 1, 5, 0.001])
_HIGH: Final = np.array([312, 2039, 30, 30, 5, 1, 50, 312, 200, 300, 110, 2.0])
"""Peaks of the A100's data sheets (80 GB: 2,039 GB/s), a little over 800 Gb/s a node; the others are wide."""


def predict(steps: Steps, law: Law) -> Floats:
    """Milliseconds of every row.

    >>> row = {k: np.array([float(v)]) for k, v in dict(gpus=8, global_batch=64, micro_batch=4, hidden=2048, heads=16,
    ...        layers=24, seq=1024, tp=2, dp=2, pp=2, recompute=0).items()}
    >>> round(float(predict(Steps(**row), SHEET)[0]), 1)
    441.7
    """
    x = np.array([float(getattr(law, n)) for n in NAMES])
    return _times(steps, x, {s: float(v) for s, v in law.profile})


def times(steps: Steps, x: Floats) -> Floats:
    """Milliseconds of every row by the constants in the order of `NAMES`, without profile rows."""
    return _times(steps, x, {})


def _times(steps: Steps, x: Floats, profile: Mapping[Shape, float]) -> Floats:
    q = dict(zip(NAMES, x, strict=True))
    h, t, p, d = steps.hidden, steps.tp, steps.pp, steps.dp
    m, tokens, inside = steps.micro_batches, steps.micro_batch * steps.seq, np.minimum(t, NODE)
    layer = _layer(steps, q)
    if profile:
        found = np.array([profile.get(s, np.nan) for s in steps.shapes()])
        layer = np.where(np.isnan(found) | (steps.recompute > 0), layer, found)
    logits = tokens * steps.vocabulary / t
    rate = np.where((t > 1) | (steps.gpus > NODE), q["products"], q["whole_head"])
    head = q["ends"] + 6 * logits * h / rate / 1e9 + 18 * logits / q["memory"] / 1e6
    parameters = (12 * h * h * steps.layers / p + steps.vocabulary * h) / t
    wide = d * inside > NODE
    bus = np.where(wide, q["node"] / inside, NVLINK)
    return np.asarray(
        steps.slots * layer * steps.layers / p
        + m * head
        + 0.4 * q["ends"] * np.where(p == 1, m, 1)
        + parameters * q["update"] * 1e-9
        + (p - 1) * 4 * tokens * h / q["hop"] / 1e6
        + 2 * (d - 1) / d * 2 * parameters / bus / 1e6
    )


def _layer(steps: Steps, q: Mapping[str, float]) -> Floats:
    """Milliseconds of one layer, forward and backward, of one micro-batch."""
    h, t, s, b, r = steps.hidden, steps.tp, steps.seq, steps.micro_batch, steps.recompute
    tokens, inside = b * s, np.minimum(t, NODE)
    flops = (3 + r) * (24 * tokens * h * h + 4 * tokens * s * h) / t
    kept = tokens * h * (10 + 24 / t) + 5 * b * steps.heads * s * s / t
    bus = np.where(t > NODE, q["node"], NVLINK)
    reduced = 2 * (t - 1) / t * 2 * tokens * h / bus / 1e6
    tensor = np.where(t > 1, (4 + 2 * r) * q["meet"] * np.log2(inside) + 2 * (1 + r) * reduced, 0)
    launch = q["host"] * (1 + r / 3)
    host = launch + q["unfused"] * ((b * steps.heads / t) % 4 != 0)
    device = flops / q["products"] / 1e9 + 2 * (3 + r) * kept / q["memory"] / 1e6 + tensor
    spread = np.log2(NODE / inside) * np.log2(np.maximum(steps.gpus / 64, 1)) / 6
    return np.asarray(np.maximum(host, device + q["exposed"] * launch) * (1 + q["spread"] * spread))


def calibrate(tables: Sequence[tuple[Steps, Floats, float]], profile_rows: int = 3) -> Law:
    """The law fitted on tables: rows, their measured milliseconds, weight of a row.  Then, with the `profile_rows`
    shapes whose layer it misses most (counted over their rows) as further unknowns, it is fitted once more.

    Raises `InputError` if there is no row.
    """
    tables = [t for t in tables if len(t[0])]
    if not tables:
        raise InputError("no measured step to fit on; use SHEET, or name a folder with rows")

    def solve(shapes: Sequence[Shape], start: Floats) -> Floats:
        def residuals(x: Floats) -> Floats:
            profile = dict(zip(shapes, x[len(NAMES) :].tolist(), strict=True))
            return np.concatenate([w * np.log(_times(s, x[: len(NAMES)], profile) / y) for s, y, w in tables])

        extra = start[len(NAMES) :]
        return fit(residuals, start, np.concatenate([_LOW, extra / 4]), np.concatenate([_HIGH, extra * 4])).x

    x = solve((), _START)
    shapes = _missed(tables, x, profile_rows)
    if shapes:
        x = solve([s for s, _ in shapes], np.concatenate([x, [v for _, v in shapes]]))
    values = [exact(float(v)) for v in x]
    profile = tuple((s, v) for (s, _), v in zip(shapes, values[len(NAMES) :], strict=True))
    return Law(**dict(zip(NAMES, values[: len(NAMES)], strict=True)), profile=profile)


def _missed(tables: Sequence[tuple[Steps, Floats, float]], x: Floats, count: int) -> list[tuple[Shape, float]]:
    """The `count` shapes whose layer explains most of what is left, with the layer time that their rows ask for."""
    asked: dict[Shape, list[tuple[float, float]]] = {}
    for steps, measured, _ in tables:
        slots = steps.slots * steps.layers / steps.pp
        layer = _layer(steps, dict(zip(NAMES, x[: len(NAMES)], strict=True)))
        wanted = layer + (measured - _times(steps, x, {})) / slots
        share = slots * layer / measured
        for n, shape in enumerate(steps.shapes()):
            if steps.recompute[n] == 0 and wanted[n] > 0:
                asked.setdefault(shape, []).append((float(wanted[n]), float(share[n] * abs(wanted[n] / layer[n] - 1))))
    gain = sorted(((sum(g for _, g in rows), shape) for shape, rows in asked.items() if len(rows) > 2), reverse=True)
    return [(shape, float(np.median([w for w, _ in asked[shape]]))) for _, shape in gain[:count]]
