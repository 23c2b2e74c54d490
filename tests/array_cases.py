"""Array programs with small sizes and hand-written schedules, their oracle (the plain function on NumPy arrays), and a
runner.

A schedule names degrees of a few operators, as a strategy file does; `formal.plans.schedules` carries them to the
rest.  `P` stands for the number of ranks; a tuple gives the degrees for 1, 2, 4, 8 and 64 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.execution.run import RunResult, run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.schedules import Propagated, propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import Traced, trace
from shardproof.models.sources.zoo import array_programs as programs
from shardproof.verify.plan.communication import check_bytes, check_delivers

RANKS = (1, 2, 4, 8, 64)
P = (1, 2, 4, 8, 64)
RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class Case:
    """`schedule`: operator -> axis -> degree per entry of `RANKS`."""

    program: Callable[..., object]
    sizes: Mapping[str, tuple[int, ...] | ArraySpec]
    schedule: Mapping[str, Mapping[str, tuple[int, ...]]]
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    def traced(self) -> Traced:
        return trace(
            self.program, "case", {n: s if isinstance(s, ArraySpec) else ArraySpec(s) for n, s in self.sizes.items()}
        )

    def scheduled(self, traced: Traced, ranks: int) -> Propagated:
        n = RANKS.index(ranks)
        rules = tuple(
            Rule(op, tuple((a, (("0", d[n]),)) for a, d in axes.items())) for op, axes in self.schedule.items()
        )
        return propagate(traced.graph, load_machine(f"localhost:{ranks}"), Strategy(rules))

    def values(self, traced: Traced) -> dict[str, np.ndarray]:
        """In the shapes of the function's arguments."""
        drawn = random_inputs(traced.graph, 5)
        shapes = {t.name: t.source_shape or t.shape for t in traced.graph.tensors}
        return {n: self.inputs.get(n, drawn[n].reshape(shapes[n])) for n in traced.arguments}

    def expected(self, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The plain function on NumPy arrays."""
        out = self.program(**{n: v.copy() for n, v in values.items()})
        return [np.asarray(x) for x in (out if isinstance(out, (tuple, list)) else [out])]


def check_outputs(traced: Traced, outputs: Mapping[str, np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(traced.results) == len(expected)
    for (name, shape), want in zip(traced.results, expected, strict=True):
        assert shape == want.shape
        np.testing.assert_allclose(outputs[name].reshape(shape), want, rtol=1e-10, atol=1e-10)


def run_case(case: Case, ranks: int) -> tuple[Traced, Propagated, RunResult]:
    """On virtual ranks: equal to the plain function, counted bytes equal to priced ones, every resharding
    proved to deliver.
    """
    traced = case.traced()
    done = case.scheduled(traced, ranks)
    values = case.values(traced)
    program = lower(traced.graph, (ranks,), done.choices)
    result = run_virtual(program, values)
    check_outputs(traced, result.outputs, case.expected(values))
    for t in result.traffic:
        assert t.fits, t
    for m in program.movements:
        for checked in (check_delivers(m.plan), check_bytes(m.plan, m.plan.loads(), m.plan.phases())):
            assert checked.verdict.value == "proved", (m.tensor, checked.reason)
    return traced, done, result


def crs(rows: int, columns: int, entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Row pointers and columns of a random sparse matrix; some rows are empty."""
    cuts = np.sort(RNG.integers(0, entries + 1, rows - 1))
    # reduceat gives an element for an empty row, so that rows are not empty in this form
    row = np.maximum.accumulate(np.concatenate([[0], np.maximum(cuts, np.arange(1, rows)), [max(entries, rows)]]))
    return np.unique(row).astype(np.int32), RNG.integers(0, columns, int(row[-1])).astype(np.int32)


def padded(rows: int, width: int, columns: int) -> dict[str, np.ndarray]:
    """The same padded to the longest row: `row`, `col`."""
    lengths = RNG.integers(0, width + 1, rows)
    return {
        "row": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        "col": RNG.integers(0, columns, (rows, width)).astype(np.int32),
    }


ROW, COL = crs(20, 9, 70)
CSR = programs.spmv_csr(ROW, COL)
HEADS = {"x": (2, 8, 16), "w_q": (16, 8, 2), "w_k": (16, 8, 2), "w_v": (16, 8, 2), "w_o": (16, 16)}
FUSED = {"x": (2, 8, 16), "w_qkv": (16, 48), "w_o": (16, 16)}
ONE = (1, 1, 1, 1, 1)
UP_TO_4, UP_TO_8 = (1, 2, 4, 4, 4), (1, 2, 4, 8, 8)
LAYERS = {"x": (2, 3, 16, 17), "w1": (4, 3, 3, 3), "w2": (5, 4, 3, 3), "w3": (4, 5, 3, 3)}


def fused(x, w_qkv, w_o):
    return programs.fused_qkv(x, w_qkv, w_o, heads=8)


CASES = {
    "matmul m": Case(programs.matmul, {"a": (24, 36), "b": (36, 20)}, {"matmul": {"m": P}}),
    "matmul n": Case(programs.matmul, {"a": (24, 36), "b": (36, 20)}, {"matmul": {"n": P}}),
    "matmul k": Case(programs.matmul, {"a": (24, 36), "b": (36, 20)}, {"matmul": {"k": P}}),
    "matmul m-n-k": Case(
        programs.matmul,
        {"a": (24, 36), "b": (36, 20)},
        {"matmul": {"m": (1, 2, 2, 2, 4), "n": (1, 1, 2, 2, 4), "k": (1, 1, 1, 2, 4)}},
    ),
    "matmul uneven m-n-k": Case(
        programs.matmul,
        {"a": (5, 131), "b": (131, 7)},
        {"matmul": {"m": (1, 2, 2, 2, 8), "n": (1, 1, 1, 2, 4), "k": (1, 1, 2, 2, 2)}},
    ),
    "spmv rows": Case(
        programs.spmv,
        {"row": ArraySpec((21,), "int32"), "col": ArraySpec((20, 5), "int32"), "val": (20, 5), "x": (9,)},
        {"length": {"i0": P}},
        padded(20, 5, 9),
    ),
    "spmv csr entries": Case(CSR, {}, {"multiply": {"i0": P}}),
    "spmv csr rows": Case(CSR, {}, {"reduceat": {"i0": P}, "multiply": {"i0": P}}),
    "softmax whole": Case(programs.softmax, {"x": (2, 3, 10, 12)}, {"row_max": {"i2": P}}),
    "softmax split": Case(programs.softmax, {"x": (2, 3, 5, 24)}, {"row_max": {"i3": P}}),
    "attention by heads": Case(programs.attention, HEADS, {"q": {"h": P}}),
    "attention by heads, projection by data": Case(
        programs.attention,
        HEADS,
        {"q": {"h": P}, "values": {"h": P}, "einsum_2": {"b": (1, 2, 2, 2, 2), "i": (1, 1, 2, 4, 8)}},
    ),
    "fused projections by heads": Case(fused, FUSED, {"qkv": {"n.1": UP_TO_8}}),
    "monte carlo": Case(
        programs.monte_carlo,
        {"x": (12,), "y": (7,), "z": (9,)},
        {"total": {"i": (1, 2, 4, 4, 4), "j": (1, 1, 1, 2, 4), "k": (1, 1, 1, 1, 4)}},
    ),
    "jacobi rows": Case(programs.jacobi, {"u": (24, 17)}, {"vertical": {"i0": P}}),
    "jacobi rows and columns": Case(
        programs.jacobi, {"u": (24, 24)}, {"vertical": {"i0": (1, 2, 2, 4, 8), "i1": (1, 1, 2, 2, 8)}}
    ),
    "jacobi in place": Case(programs.jacobi_in_place, {"u": (19, 14)}, {"add": {"i0": P}}),
    "convolutions by rows": Case(programs.convolutions, LAYERS, {"einsum": {"y": P}}),
    "convolutions by rows and columns": Case(
        programs.convolutions, LAYERS, {"einsum": {"y": (1, 2, 2, 4, 8), "x": (1, 1, 2, 2, 8)}}
    ),
}
