"""Sizes at which every model of the zoo runs in moments, on one process or on a few virtual ranks, in
double precision.

All structure is kept: groups, experts beyond their capacity, several layers, strides, uneven extents.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_SIZES: Final[Mapping[str, Mapping[str, int | str]]] = {
    "alexnet": {"batch": 4, "size": 99, "width": 6, "hidden": 24, "classes": 5},
    "attention": {},
    "bert-large": {"batch": 2, "layers": 1, "sequence": 2},
    "bert-tiny": {},
    "candle-uno": {"batch": 8, "width": 12, "tower": 2, "layers": 2, "features_percent": 1},
    "conv-stack": {},
    "dlrm": {"batch": 8, "tables": 3, "rows": 20, "width": 4, "bag": 2, "dense": 6, "bottom": "8-4", "top": "16-8-1"},
    "inception-v3": {"batch": 4, "size": 75, "width": 2, "classes": 5},
    "linear-training": {"batch": 8, "inputs": 12, "outputs": 16},
    "llama": {
        "batch": 2,
        "layers": 2,
        "sequence": 6,
        "width": 16,
        "heads": 4,
        "kv_heads": 2,
        "hidden": 24,
        "vocabulary": 20,
        "theta": 100,
    },
    "mlp-8192": {"batch": 8, "width": 16, "layers": 3},
    "mlp-uneven": {},
    "mlp-unity": {"batch": 8, "inputs": 12, "hidden": 16, "classes": 4},
    "mlp-unity-training": {"batch": 8, "inputs": 12, "hidden": 16, "classes": 4},
    "moe": {
        "batch": 2,
        "layers": 2,
        "sequence": 8,
        "width": 16,
        "heads": 4,
        "kv_heads": 2,
        "hidden": 24,
        "experts": 4,
        "chosen": 2,
        "capacity_percent": 100,
        "vocabulary": 20,
        "theta": 100,
    },
    "resnet101": {"batch": 4, "size": 33, "blocks": "2-1-2-1", "stem": 4, "classes": 5},
    "resnext50": {"batch": 4, "size": 32, "blocks": "1-2-1-1", "stem": 4, "groups": 2, "group_width": 2, "classes": 5},
    "rnnlm": {"batch": 4, "steps": 3, "width": 8, "vocabulary": 20},
    "transformer": {"batch": 2, "layers": 1, "sequence": 4, "width": 16, "heads": 2, "hidden": 24, "vocabulary": 20},
    "transformer-layer": {"tokens": 4, "width": 16, "heads": 4},
    "vit": {"batch": 2, "size": 12, "patch": 4, "depth": 2, "width": 16, "heads": 2, "hidden": 24, "classes": 5},
    "xdl": {"batch": 8, "tables": 3, "rows": 20, "width": 4, "bag": 2, "top": "16-2"},
}

TINY: Final[Mapping[str, Mapping[str, int | str]]] = MappingProxyType(
    {name: MappingProxyType({**options, "dtype": "float64"}) for name, options in _SIZES.items()}
)
"""Zoo name -> options.  `bert-large` has fixed widths: it builds and plans quickly, and runs in seconds."""
