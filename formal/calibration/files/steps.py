"""Reads tables of Megatron's training steps: the law of `formal.calibration.steps.megatron` fitted, and
judged by constants.

Shares are derivatives of the law's logarithm, bars and refusals those of `fitting`.  Three of its constants are a
machine's: the rate of products (the peak of bf16 and fp16), the memory's bandwidth, the bandwidth between nodes; the
others (time of the host, of a meeting, ..) are said, and belong to the software that was measured.  Rows that do not
separate two of the machine's are refused; one of the software's is said not to be told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from ....models.machine.difference import constants as constants_of
from ....models.machine.machine import Machine
from ....models.text import InputError
from ..fit import Residuals
from ..steps.megatron import NAMES, SHEET, Law, Steps, calibrate, predict, times
from .fitting import FileCalibration, Fitted, Floats, error_bound_of, refuse, tied
from .observation import Observation, Step

_UNITS: Final = {"products": 10**12, "memory": 10**9, "node": 10**9}
_ROWS: Final = {
    "products": "steps of large layers (hidden 4096 or more) on one GPU",
    "memory": "steps of small layers with long sequences on one GPU",
    "host": "steps of tiny layers (hidden 1024 or less) with a micro-batch of one",
    "unfused": "steps whose micro_batch x heads / tp is no multiple of four",
    "meet": "steps with tp of 2 or more and small micro-batches",
    "exposed": "steps whose layers take a little more than their launches",
    "ends": "steps with few layers and many micro-batches",
    "whole_head": "steps on one node with tp 1",
    "update": "steps with one micro-batch of one sentence",
    "hop": "steps with pp of 2 or more",
    "node": "steps whose data-parallel groups span nodes",
    "spread": "steps on 128 GPUs or more with tp below 8",
}


def calibrate_steps(
    machine: Machine, rows: Sequence[Observation], held: Sequence[Observation], keep: Collection[str], source: str
) -> FileCalibration:
    """The machine with its three constants fitted.  Raises `InputError` for constants that no row separates."""
    if keep:
        raise InputError("--keep has no meaning for tables of steps: their law is fitted whole")
    steps, measured = _arrays(rows)
    law = calibrate([(steps, measured, 1.0)], 0)
    x = np.array([float(getattr(law, n)) for n in NAMES])
    shares = _shares(steps, x)
    paths = [n for c, n in enumerate(NAMES) if np.abs(shares[:, c]).max() > 1e-9]
    used = np.abs(shares[:, [NAMES.index(n) for n in paths]])

    def missing(name: str) -> str:
        return _ROWS[name]

    predicted = predict(steps, law)
    while (apart := tied(paths, used)) and len(paths) > 1:
        if _UNITS.keys() & set(apart):
            refuse(paths, used, missing)
        paths.remove(apart[0])
        used = np.abs(shares[:, [NAMES.index(n) for n in paths]])
    off = np.maximum(predicted / measured, measured / predicted) - 1
    errors = np.abs(predicted / measured - 1)
    bars: dict[str, Fraction] = {}
    for c, n in enumerate(paths):
        try:
            bars[n] = error_bound_of(n, c, used, off, missing)
        except InputError:
            if n in _UNITS:
                raise
    fitted, places = _replaced(machine, law, bars)
    judged = Residuals.of(predicted, measured)
    said = (
        f"calibrated: fitted to {len(rows)} steps of {source}, by `shardproof machine calibrate --from`, as "
        f"formal/calibration/steps/megatron.py: {judged.words()}"
    )
    fitted = replace(
        fitted,
        sources=tuple((p, said if p in places.values() else s) for p, s in fitted.sources if _there(p, fitted)),
        bars=tuple(
            (p, b)
            for p, b in sorted((dict(machine.bars) | {places[n]: b for n, b in bars.items() if n in places}).items())
            if _there(p, fitted)
        ),
    )
    constants = []
    for n in NAMES:
        old = new = getattr(law, n)
        if n not in bars:
            constants.append(Fitted(f"step.{n}", old, new, None, 0, 0.0, f"not told apart; needs {_ROWS[n]}", None))
            continue
        if n in places:
            old, new = _constant(machine, places[n]), _constant(fitted, places[n])
        at = places.get(n, f"step.{n}")
        constants.append(_fitted_constant(at, (old, new), bars[n], used[:, paths.index(n)], errors))
    before = Residuals.of(predict(steps, SHEET), measured)
    held_before, held_after = (_judged(SHEET, held), _judged(law, held)) if held else (None, None)
    return FileCalibration(fitted, tuple(constants), before, judged, held_before, held_after)


def _fitted_constant(
    place: str, values: tuple[Fraction, Fraction], bar: Fraction, shares: Floats, errors: Floats
) -> Fitted:
    """A constant before and after.  `shares`: of the time of every row; `errors`: of its prediction."""
    mine = shares >= 0.5
    mean = float(errors[mine].mean()) if mine.any() else None
    return Fitted(place, *values, bar, int((shares > 0.001).sum()), float(shares.max()), "", mean)


def _there(path: str, machine: Machine) -> bool:
    """Is this constant still one of the machine's?  Measured products and attention of the fitted types are dropped."""
    place, device = f"device_class.{machine.device.name}", machine.device
    forms = (("product", device.products), ("attention", device.attentions))
    for kind, kept in forms:
        if path.startswith(f"{place}.{kind}."):
            return any(path.startswith(f"{place}.{kind}.{form.dtype}.") for form in kept)
    return True


def _constant(machine: Machine, path: str) -> Fraction:
    found = constants_of(machine)[path]
    assert isinstance(found, Fraction)
    return found


def _judged(law: Law, rows: Sequence[Observation]) -> Residuals:
    steps, measured = _arrays(rows)
    return Residuals.of(predict(steps, law), measured)


def _arrays(rows: Sequence[Observation]) -> tuple[Steps, Floats]:
    """Rows of one vocabulary as arrays, with their milliseconds."""
    found = []
    for r in rows:
        if not isinstance(r.what, Step):
            raise InputError(f"{r.place}: is no training step; calibrate steps and single times one after the other")
        if r.what.tp * r.what.dp * r.what.pp != r.what.gpus:
            raise InputError(f"{r.place}: tp x dp x pp is not the number of GPUs; correct the row or leave it out")
        if r.what.global_batch % (r.what.dp * r.what.micro_batch):
            raise InputError(f"{r.place}: dp x micro_batch does not divide the global batch; leave the row out")
        found.append(r.what)
    if len({w.vocabulary for w in found}) > 1:
        raise InputError(f"{rows[0].place}: the rows differ in vocabulary; calibrate one with --where vocabulary=..")
    names = ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp", "recompute")
    arrays = {n: np.array([float(getattr(w, n)) for w in found]) for n in names}
    return Steps(**arrays, vocabulary=found[0].vocabulary), np.array([1e3 * r.seconds for r in rows])


def _shares(steps: Steps, x: Floats) -> Floats:
    """d log(time) / d log(constant), by differences."""
    out, step = np.empty((len(steps), len(x))), 1e-4
    base = np.log(times(steps, x))
    for c in range(len(NAMES)):
        moved = x.copy()
        moved[c] *= 1 + step
        out[:, c] = (np.log(times(steps, moved)) - base) / np.log1p(step)
    return out


def _replaced(machine: Machine, law: Law, bars: dict[str, Fraction]) -> tuple[Machine, dict[str, str]]:
    """The machine with the law's three constants, and which of its constants they are."""
    device, outer = machine.device, machine.levels[0]
    places: dict[str, str] = {}
    exact = {n: Fraction(f"{float(getattr(law, n) * unit):.3e}") for n, unit in _UNITS.items() if n in bars}
    if "memory" in exact:
        places["memory"] = f"device_class.{device.name}.bandwidth"
        device = replace(device, bandwidth=exact["memory"])
    if "products" in exact:
        wide = "bfloat16" if any(d == "bfloat16" for d, _ in device.peaks) else "float16"
        places["products"] = f"device_class.{device.name}.peaks.{wide}"
        both = ("bfloat16", "float16")
        peaks = tuple((d, exact["products"] if d in both else v) for d, v in device.peaks)
        # the rate of all arithmetic, attention's too
        device = replace(
            device,
            peaks=peaks,
            products=tuple(p for p in device.products if p.dtype not in both),
            attentions=tuple(a for a in device.attentions if a.dtype not in both),
        )
    levels = machine.levels
    if "node" in exact and len(levels) > 1:
        places["node"] = f"level.{outer.name}.bandwidth"
        levels = (replace(outer, bandwidth=exact["node"]), *levels[1:])
    return replace(machine, device=device, levels=levels), places
