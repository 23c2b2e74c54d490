"""The families that the judge's command knows: each predicts its rows of one folder from constants of another.

A family is a function of two folders, both laid out as the public tables are (any file, any row may be missing):
constants are fitted on the first alone, predictions are made for the second, whose measured column is read only to
judge them.  Without rows to fit, data-sheet constants stand in, and `from` says so; without rows to judge, `rows` is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from . import bridge, collectives, dgxc, llmfoundry, megatron, mlperf, products, torchtitan, vtrain
from .judging import Predictions

Family = Callable[[Path, Path], Mapping[str, object]]

FAMILIES: dict[str, Family] = {
    "vtrain_single": vtrain.single,
    "vtrain_multi": vtrain.multi,
    "mlperf_405b": mlperf.judged,
    "dgxc": dgxc.judged,
    "llmfoundry": llmfoundry.judged,
    "torchtitan": torchtitan.judged,
    "megatron_bridge": bridge.judged,
    "calculon": vtrain.calculon,
    "nccl": collectives.nccl,
    "vidur": collectives.vidur,
    "alpa": collectives.alpa,
    "gemm": products.gemm,
    "megatron": megatron.within,
}

PREDICTIONS: dict[str, Callable[[Path, Path], Predictions]] = {
    "vtrain_single": lambda fit, judge: vtrain.predictions(fit, judge, "single"),
    "vtrain_multi": lambda fit, judge: vtrain.predictions(fit, judge, "multi"),
    "mlperf_405b": mlperf.predictions,
    "dgxc": dgxc.predictions,
    "llmfoundry": llmfoundry.predictions,
    "torchtitan": torchtitan.predictions,
    "megatron_bridge": bridge.predictions,
    "calculon": vtrain.check,
}
"""Families whose rows the page plots and names one by one."""
