"""Times of matrix products: whole tiles, whole waves, memory, and shapes left out of a fit."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.formal.calibration.matmul_times import Device, Product, fit
from shardproof.models.cost.matmul_times import MatmulTime

ROOT = Path(__file__).parent
DATA = ROOT / "data" / "measured"
H100 = Device(132, 3.35e12, 989e12, 2)
TIME = MatmulTime(
    Fraction("3e-6"), Fraction(10**12), 10, 2, ((64, 64),), (Fraction(10**12),), split=Fraction(1), odd=Fraction(1, 2)
)


def test_an_element_more_costs_a_tile_and_a_tile_more_a_wave() -> None:
    wave = 2 * 64 * 64 * Fraction(4096, 10**12)
    assert TIME.seconds(64, 64, 4096) == TIME.seconds(1, 1, 4096) == TIME.launch + wave
    assert TIME.seconds(640, 64, 4096) == TIME.launch + wave
    assert TIME.seconds(704, 64, 4096) == TIME.launch + 2 * wave
    assert TIME.seconds(639, 64, 4096) == TIME.launch + Fraction(3, 2) * wave
    assert TIME.seconds(64, 64, 4097) == TIME.launch + wave * Fraction(4160, 4096)


def test_a_long_product_of_few_tiles_is_split() -> None:
    split = replace(TIME, split=Fraction(0))
    assert split.seconds(64, 64, 1 << 20) - split.launch == (TIME.seconds(64, 64, 1 << 20) - TIME.launch) / 8
    slow = replace(split, sum=Fraction(1))
    assert slow.seconds(64, 64, 1 << 20) == TIME.seconds(64, 64, 1 << 20)


def test_memory_bounds_from_below() -> None:
    narrow = replace(TIME, bandwidth=Fraction(10**6))
    assert narrow.seconds(1, 64, 64) == narrow.launch + Fraction(2 * (64 + 64 * 64) + 2 * 64, 10**6)
    with pytest.raises(ValueError, match="has no work"):
        TIME.seconds(0, 1, 1)


def _rows() -> list[Product]:
    with (DATA / "gemm" / "sample.csv").open(encoding="utf-8") as file:
        return [Product(int(r["m"]), int(r["n"]), int(r["k"]), float(r["ms"]) / 1e3) for r in csv.DictReader(file)]


def test_shapes_left_out_are_predicted_within_ten_percent() -> None:
    rows = _rows()
    weights = sorted({(r.n, r.k) for r in rows})
    left_out = set(weights[::3])
    found = fit([r for r in rows if (r.n, r.k) not in left_out], H100)
    asked = [r for r in rows if (r.n, r.k) in left_out]
    off = [abs(float(found.time.seconds(r.m, r.n, r.k)) / r.seconds - 1) for r in asked]
    assert len(asked) > 100 and np.mean(off) < 0.1, np.mean(off)


def test_the_family_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in [m for m in sys.modules if m == "measured" or m.startswith("measured.")]:
        monkeypatch.delitem(sys.modules, name)
    from measured import products

    figures = products.gemm(DATA, DATA)
    assert figures["rows"] == len(_rows()) and figures["mean_error"] < 0.1
    assert figures["pairs_right"] > 0.95 * figures["pairs"]
    assert products.gemm(DATA, DATA / "nowhere") == {"rows": 0}
    predicted, measured = products.alpa_products(DATA, DATA)
    assert np.mean(np.abs(np.array(predicted) / np.array(measured) - 1)) < 0.05
