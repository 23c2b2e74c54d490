"""The ten programs that the thesis prints (`data/thesis/programs.py`), at sizes for tests, with the schedules of its text.

A schedule is a degree per axis of one operator, 0 for the number of ranks; it is carried to the rest.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

import numpy as np

from shardproof.formal.plans.schedules import Propagated, propagate
from shardproof.formal.plans.strategy import Rule, Strategy
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.numpy.original import original_of
from shardproof.models.sources.numpy.trace import Traced, trace

PRINTED = Path(__file__).parent / "data/thesis/programs.py"
SMALL = {
    "M, K, N = 4096, 4096, 4096": "M, K, N = 24, 40, 16",
    "B, S, E, H = 8, 512, 1024, 16": "B, S, E, H = 2, 16, 32, 8",
    "ROWS, COLUMNS, NONZEROS = 4096, 4096, 65536": "ROWS, COLUMNS, NONZEROS = 40, 30, 200",
    "GRID = 512": "GRID = 24",
    "[8, 16, 512, 512]": "[8, 2, 6, 12]",
}
SCHEDULES: Mapping[str, tuple[tuple[str, Mapping[str, int]], ...]] = {
    "add": (("add", {"i1": 0}),),
    "reduce": (("sum", {"i0": 0}),),
    "grid": (("multiply", {"i0": 0}),),
    "runs_on_gpu": (("add", {"i0": 0}),),
    "unstable_softmax": (("exponent", {"i0": 0}),),
    "step": (("xTy", {"m": 0}),),
    "matmul": (("matmul", {"m": 0}),),
    "spmv": (("rows", {"r": 0}),),
    "softmax": (("rowmax", {"i0": 0}),),
    "mhsa": (("Q", {"h": 0}), ("einsum", {"h": 0}), ("einsum_2", {"i": 0})),
}
"""Program -> (operator, axis -> degree)."""


@dataclass(frozen=True)
class Printed:
    """One program under its schedule on some ranks; `expected`: the results of the function itself on `values`."""

    name: str
    traced: Traced
    done: Propagated
    values: Mapping[str, np.ndarray]
    expected: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, name: str, ranks: int, small: bool = True) -> Printed:
        """Traced, scheduled, and run by NumPy."""
        function = getattr(printed(small), name)
        traced = trace(function, name)
        rules = tuple(
            Rule(op, tuple((axis, (("0", n or ranks),)) for axis, n in axes.items())) for op, axes in SCHEDULES[name]
        )
        done = propagate(traced.graph, load_machine(f"localhost:{ranks}"), Strategy(rules))
        tensors = {n: traced.graph.tensor(n) for n in traced.arguments}
        values = arguments(name, {n: (t.source_shape or t.shape, t.dtype) for n, t in tensors.items()})
        return cls(name, traced, done, values, expected(name, function, values))

    def digits(self) -> dict[str, np.ndarray]:
        """The values in the shapes of the graph."""
        return {n: v.reshape(self.traced.graph.tensor(n).shape) for n, v in self.values.items()}

    def difference(self, outputs: Mapping[str, np.ndarray]) -> float:
        """The largest from NumPy, beside the largest number."""
        worst = 0.0
        for (name, shape), want in zip(self.traced.results, self.expected, strict=True):
            got = np.asarray(outputs[name]).reshape(shape)
            assert want.shape == shape
            worst = max(worst, float(np.abs(got - want).max() / max(1.0, np.abs(want).max())))
        return worst


def expected(name: str, function: Callable[..., object], values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """What NumPy computes; the gradient of `step`, which NumPy has no word for, is written out."""
    if name == "step":
        return (np.outer(values["dy"], np.ones(values["x"].shape[1])),)
    return original_of(function, None, ("b",) if name == "runs_on_gpu" else ()).run(values)


@cache
def printed(small: bool = True) -> ModuleType:
    """The programs, at the sizes of the file or at small ones."""
    text = PRINTED.read_text(encoding="utf-8")
    for old, new in SMALL.items() if small else ():
        assert old in text, old
        text = text.replace(old, new)
    path = Path(mkdtemp()) / "printed_programs.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("printed_programs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["printed_programs"] = module
    spec.loader.exec_module(module)
    return module


def arguments(name: str, shapes: Mapping[str, tuple[tuple[int, ...], str]], seed: int = 3) -> dict[str, np.ndarray]:
    """Numbers for the arguments; the sparse matrix has ascending rows, some of them empty."""
    rng = np.random.default_rng(seed)
    small = {n: 0.2 if n.startswith("W_") else 1.0 for n in shapes}
    out = {n: small[n] * rng.standard_normal(shape) if kind.startswith("f") else rng.integers(0, 9, shape)
           for n, (shape, kind) in shapes.items()}  # fmt: skip
    if name == "spmv":
        rows, entries, columns = shapes["A_row"][0][0], shapes["A_col"][0][0], shapes["x"][0][0]
        out["A_row"] = np.sort(np.r_[0, rng.integers(0, entries + 1, rows - 2), entries])
        out["A_col"] = rng.integers(0, columns, entries)
    return {n: v.astype(shapes[n][1]) for n, v in out.items()}
