"""The published times of P2 (tests/data/p2/appendix.csv) as requests of ours, for tests and tables."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardproof.formal.calibration.fit import spearman
from shardproof.models.collective_programs.cost import Algorithm
from shardproof.models.collective_programs.parallelism import Matrix, Order, ReductionRequest

FILE = Path(__file__).parent / "data" / "p2" / "appendix.csv"


@dataclass(frozen=True)
class Row:
    """One placement of the appendix; empty cells are None."""

    system: str
    hierarchy: tuple[int, int]
    axes: tuple[int, ...]
    reduce: tuple[int, ...]
    matrix: Matrix
    all_reduce: dict[Algorithm, float | None]
    optimal: dict[Algorithm, float | None]
    total: int | None
    published: dict[str, float | None]

    @property
    def machine(self) -> str:
        """Spec of the machine."""
        return f"p2-{self.system.lower()}:{self.hierarchy[0]}x{self.hierarchy[1]}"

    @property
    def group(self) -> tuple[str, tuple[int, int], tuple[int, ...], tuple[int, ...]]:
        """One of the 42 groups."""
        return self.system, self.hierarchy, self.axes, self.reduce

    def request(self, order: Order = Order.ROW_MAJOR) -> ReductionRequest:
        """What was measured."""
        return ReductionRequest(self.hierarchy, self.matrix, self.reduce, order)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.strip("[]").split())


def _number(text: str) -> float | None:
    return float(text) if text else None


def rows() -> list[Row]:
    """All 104 rows."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return [
            Row(
                r["system"],
                (int(r["nodes"]), int(r["gpus"])),
                _ints(r["axes"]),
                _ints(r["reduce_axes"]),
                tuple(tuple(x) for x in json.loads(r["matrix"].replace("][", "],[").replace(" ", ","))),
                {a: _number(r[f"allreduce_{a.value}_s"]) for a in Algorithm},
                {a: _number(r[f"optimal_{a.value}_s"]) for a in Algorithm},
                int(r["total_ring"]) if r["total_ring"] else None,
                {k: _number(r[k]) for k in ("synth_time_s", "sim_time_ring_s", "sim_time_tree_s")},
            )
            for r in csv.DictReader(file)
        ]


@dataclass(frozen=True)
class Fit:
    """Predicted against measured."""

    rows: int
    rank: float
    error: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"n {self.rows:3}  rho {self.rank:.3f}  error {100 * self.error:5.1f} %  ratio {self.low:.2f} .. "
            f"{self.high:.2f}"
        )


def fit(predicted: list[float], measured: list[float]) -> Fit:
    """Spearman's rho, mean of |predicted / measured - 1|, range of the ratio."""
    p, m = np.array(predicted), np.array(measured)
    ratio = p / m
    return Fit(len(p), spearman(p, m), float(abs(ratio - 1).mean()), float(ratio.min()), float(ratio.max()))
