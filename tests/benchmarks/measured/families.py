"""The families that the judge's command knows: each predicts its rows of one folder from constants of another.

A family is a function of two folders, both laid out as the public tables are (any file, any row may be missing):
constants are fitted on the first alone, predictions are made for the second, whose measured column is read only to
judge them.  Without rows to fit, data-sheet constants stand in, and `from` says so; without rows to judge, `rows` is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from . import bridge, collectives, dgxc, llmfoundry, megatron, mlperf, torchtitan, vtrain

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
    "megatron": megatron.within,
}
