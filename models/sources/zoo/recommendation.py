"""Builds models of large tables and wide dense layers: DLRM and XDL (advertising), CANDLE-Uno (dose
response of drugs).

    DLRM   concat( MLP(dense features), sum of rows of table_1, .., of table_k )  ->  MLP  ->  sigmoid
    XDL    concat( sum of rows of table_1, .., of table_k )                       ->  MLP  ->  sigmoid
    Uno    concat( tower(feature_1), .., dose_1, dose_2 )                         ->  MLP  ->  one number

Dense layers have no biases and are followed by relu, as in the published FlexFlow programs that Unity's evaluation
runs.

Source: Unity (OSDI 2022), section 6.1: 1024 samples per GPU for DLRM and XDL, 256 for CANDLE-Uno; the default batches
are those for 16 GPUs.  Sizes, which the paper does not print: the published programs `examples/cpp/DLRM/run_summit.sh`
(8 tables), `XDL/xdl.cc`, `candle_uno.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...keywords import keywords_of
from ...program.graph import Graph, GraphError
from ..building.builder import Builder
from . import layers
from .convolutions import concatenate


def _sizes(model: str, option: str, text: str) -> list[int]:
    """`512-512-64` as numbers."""
    parts = text.split("-")
    if not all(p.isdecimal() and 0 < int(p) < 1 << 31 for p in parts):
        raise GraphError(
            f"model {model!r}", f"option {option} must read like 512-256-64 (widths of dense layers), got {text!r}"
        )
    return [int(p) for p in parts]


def _perceptron(g: Builder, name: str, x: str, widths: Sequence[int], last: str = "relu") -> str:
    """Dense layers with relu behind each; `last` behind the last one (empty: nothing)."""
    for i, n in enumerate(widths):
        x = layers.dense(g, f"{name}{i}", x, n, bias=False)
        function = last if i == len(widths) - 1 else "relu"
        if function:
            x = g.map(f"{name}{i}.{function}", function, x, text="b n -> b n")
    return x


def _tables(g: Builder, batch: int, tables: int, rows: int, width: int, bag: int) -> list[str]:
    """Per table the sum of `bag` rows: [b, m]."""
    found = []
    for i in range(tables):
        ids = g.input(f"sparse{i}", (batch, bag), "int64")
        found.append(g.embedding(f"table{i}", "v m, b q -> b m", g.parameter(f"table{i}.rows", (rows, width)), ids))
    return found


@dataclass(frozen=True)
class DlrmSizes:
    """See `dlrm`."""

    batch: int = 16384
    tables: int = 8
    rows: int = 1_000_000
    width: int = 64
    bag: int = 1
    dense: int = 64
    bottom: str = "512-512-64"
    top: str = "1024-1024-1024-1"
    dtype: str = "float32"


@keywords_of(DlrmSizes)
def dlrm(of: DlrmSizes) -> Graph:
    """DLRM with concatenated features; output: probability of a click [b, 1]."""
    g = Builder("dlrm", of.dtype)
    x = _perceptron(g, "bottom", g.input("dense", (of.batch, of.dense)), _sizes("dlrm", "bottom", of.bottom))
    features = concatenate(g, "features", [x, *_tables(g, of.batch, of.tables, of.rows, of.width, of.bag)])
    return g.build(_perceptron(g, "top", features, _sizes("dlrm", "top", of.top), "sigmoid"))


def xdl(
    batch: int = 16384,
    tables: int = 4,
    rows: int = 1_000_000,
    width: int = 64,
    bag: int = 1,
    top: str = "256-256-2",
    dtype: str = "float32",
) -> Graph:
    """XDL: tables only; output: [b, 2]."""
    g = Builder("xdl", dtype)
    features = concatenate(g, "features", _tables(g, batch, tables, rows, width, bag))
    return g.build(_perceptron(g, "top", features, _sizes("xdl", "top", top), "sigmoid"))


UNO_FEATURES = (
    ("cell.rnaseq", 942),
    ("dose1", 1),
    ("dose2", 1),
    ("drug1.descriptors", 5270),
    ("drug1.fingerprints", 2048),
    ("drug2.descriptors", 5270),
    ("drug2.fingerprints", 2048),
)
"""Inputs of CANDLE-Uno in the order of their concatenation, with their numbers of features; doses go in as they are."""


def candle_uno(
    batch: int = 4096,
    width: int = 4192,
    tower: int = 8,
    layers: int = 4,
    features_percent: int = 100,
    dtype: str = "float32",
) -> Graph:
    """CANDLE-Uno: five towers of `tower` layers, then `layers` layers, all of `width`; output: predicted growth [b,
    1].
    """
    g = Builder("candle-uno", dtype)
    parts = []
    for name, size in UNO_FEATURES:
        x = g.input(name, (batch, size if size == 1 else max(1, size * features_percent // 100)))
        parts.append(x if name.startswith("dose") else _perceptron(g, f"{name}.dense", x, [width] * tower))
    y = _perceptron(g, "dense", concatenate(g, "features", parts), [width] * layers)
    return g.build(_perceptron(g, "growth", y, [1], ""))
