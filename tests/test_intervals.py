"""Intervals of integers hold what a run gives, whatever the operators; kernels keep integers in their element types."""

from __future__ import annotations

import numpy as np
import pytest

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.intervals import interval, never_negative, of_type, result_interval

TYPES = ("int8", "uint8", "int16", "int32", "int64", "bool")
NUMBERS = (-300, -128, -7, -1, 0, 1, 2, 3, 100, 127, 128, 255, 1 << 20, (1 << 53) + 1)
UNARY = ("negate", "abs", "relu", "sign", "stop_gradient", "floor")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")


def _grown(g: Builder, draw: np.random.Generator, known: list[str]) -> str:
    """One more operator over (3, 4)."""

    def pick(*of: object) -> object:
        return of[int(draw.integers(len(of)))]

    name, x, y = f"t{len(known)}", str(pick(*known)), str(pick(*known))
    own, other = g.tensors[x].dtype, str(pick(*TYPES[:-1]))
    by, divisor = int(str(pick(*NUMBERS))), int(str(pick(2, 3, 7, 100, -3)))
    if own == "bool":
        return g.map(name, "cast", x, dtype=other)
    match int(draw.integers(14)):
        case 0 | 1:
            return g.map(name, "cast", x, dtype=other)
        case 2:
            return g.map(name, str(pick(*UNARY)), x, dtype=own)
        case 3 | 4:
            both = str(np.result_type(own, g.tensors[y].dtype))
            return g.map(name, str(pick(*BINARY)), x, y, dtype=both) if g.tensors[y].dtype != "bool" else x
        case 5:
            return g.map(name, "scale", x, dtype=own, scale=by)
        case 6:
            return g.map(name, "shift", x, dtype=own, shift=by)
        case 7:
            return g.map(name, "clip", x, dtype=own, low=pick(-9, 0, 3), high=pick(3, 20, 100))
        case 8:
            return g.map(name, str(pick("remainder", "fmod", "floor_divide")), x, dtype=own, value=abs(divisor))
        case 9:
            mask = g.map(f"{name}.mask", "less", x, value=by % 100)
            return g.map(name, "mask_fill", x, mask, dtype=own, value=by % 100)
        case 10:
            axes = [Axis("a", 3), Axis("b", 4, Combine.SUM)]
            total = g.operator(f"{name}.sum", "sum", axes, [access(x, "a", "b")], ["a"], {}, own)
            return g.map(name, "add", total, x, text="a, a b -> a b", dtype=own)
        case 11:
            mask = g.map(f"{name}.mask", "greater_equal", x, value=by % 100)
            return g.map(name, "cast", mask, dtype=other)
        case 12:
            return g.iota(name, (3, 4), int(draw.integers(2)), dtype=other)
        case _:
            return g.map(name, "power", x, dtype=own, exponent=pick(2, 3))


def test_what_a_run_gives_lies_inside() -> None:
    shown = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        g = Builder("g")
        given = {}
        for k in range(2):
            dtype = str(draw.choice(TYPES))
            low, high = of_type(dtype)
            x = g.input(f"x{k}", (3, 4), dtype)
            given[x] = draw.integers(int(low), int(high), (3, 4), endpoint=True).astype(dtype)
        known = [*given]
        for _ in range(8):
            name = _grown(g, draw, known)
            known += [] if name in known else [name]
        used = {a.tensor for op in g.operators for a in op.inputs} | set(given)
        last = [n for n in g.tensors if n not in used]
        if not last:
            continue
        graph = g.build(*last)
        with np.errstate(all="ignore"):
            found = run_graph(
                graph, {n: v for n, v in given.items() if n in {t.name for t in graph.tensors}}, keep=known[2:]
            )
        for n, values in found.items():
            low, high = interval(g.operators, g.tensors, n)
            assert values.dtype.name == g.tensors[n].dtype
            assert low <= int(values.min()) and int(values.max()) <= high, (seed, n)
            shown += (low, high) != of_type(g.tensors[n].dtype)
            assert not never_negative(g.operators, g.tensors, n) or int(values.min()) >= 0
    assert shown > 300  # it says something


@pytest.mark.parametrize(("dtype", "wanted"), [("int8", (-128, 127)), ("int16", (0, 300))])
def test_what_wraps_around_lies_anywhere(dtype: str, wanted: tuple[int, int]) -> None:
    g = Builder("g")
    x = g.map("y", "cast", g.map("x", "clip", g.input("i", (4,), "int64"), dtype="int64", low=0, high=300), dtype=dtype)
    assert interval(g.operators, g.tensors, x) == wanted
    assert never_negative(g.operators, g.tensors, x) == (wanted[0] == 0)


def test_real_numbers_that_are_rounded_may_lie_outside() -> None:
    """127.4, upwards, is no number of int8; nor is what bfloat16 makes of 32767 one of int16."""
    g = Builder("g")
    near = g.map("near", "clip", g.input("x", (4,)), low=-0.5, high=127.4)
    assert interval(g.operators, g.tensors, g.map("up", "ceil", near)) == (-1, 128)
    coarse = g.map("coarse", "cast", g.input("i", (4,), "int16"), dtype="bfloat16")
    assert interval(g.operators, g.tensors, coarse) == (-np.inf, np.inf)
    fine = g.map("fine", "cast", "i", dtype="float32")
    assert interval(g.operators, g.tensors, fine) == (-32768, 32767)


def test_numbers_that_are_none_say_nothing() -> None:
    g = Builder("g")
    g.map("y", "shift", g.input("x", (4,)), shift=float("nan"))
    assert result_interval(g.operators[0], [(0, 1)]) == (-np.inf, np.inf)


def test_kernels_keep_integers_in_their_types() -> None:
    g = Builder("g")
    x = g.input("x", (3,), "int8")
    made_of = [
        g.map("more", "shift", x, dtype="int8", shift=300.0),
        g.map("times", "scale", x, dtype="int8", scale=200.0),
        g.map("wide", "cast", x, dtype="int64"),
        g.map("narrow", "identity", "wide", dtype="uint8"),
    ]
    found = run_graph(g.build(*made_of), {"x": np.array([100, -128, 5], "int8")})
    assert {k: (v.dtype.name, v.tolist()) for k, v in found.items()} == {
        "more": ("int8", [-112, -84, 49]),
        "times": ("int8", [32, 0, -24]),
        "wide": ("int64", [100, -128, 5]),
        "narrow": ("uint8", [100, 128, 5]),
    }


@pytest.mark.parametrize(("dtype", "values"), [("uint8", [0, 1, 255]), ("int8", [-128, 0, 127])])
def test_the_largest_integers(dtype: str, values: list[int]) -> None:
    g = Builder("g")
    x = g.input("x", (3,), dtype)
    y = g.operator("y", "top_k_mask", [Axis("b", 3, None, False)], [access(x, "b")], ["b"], {"over": ("b",), "k": 1})
    assert run_graph(g.build(y), {"x": np.array(values, dtype)})["y"].tolist() == [False, False, True]
