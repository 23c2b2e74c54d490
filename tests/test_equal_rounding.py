"""Bounds of rounding: no run in float32, bfloat16 or float16 is further from exact numbers than they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.formal.equality.numbers import run_ranks, run_single
from shardproof.formal.equality.rounding import errors_of_ranks, round_to, rounding_bound
from shardproof.models.equality.pair import Part
from shardproof.models.equality.program import Described, RankProgram, Source, Step

ONE = ("exp", "tanh", "sigmoid", "erf", "neg", "abs", "sqrt", "log1p", "sin", "expm1")
TWO = ("add", "sub", "mul", "div", "maximum", "minimum")


def program(choices: list[tuple[str, int, int]], dtype: str, n: int) -> RankProgram:
    """Square matrices through steps that are drawn; every rank ends in a sum over ranks."""
    tensors, steps = [Described((n, n), dtype)] * 2, list[Step]()

    def made(operator: str, reads: tuple[int, ...], shape: tuple[int, ...], kind: str = dtype, **words: Any) -> int:
        tensors.append(Described(shape, kind))
        steps.append(Step(operator, reads, (len(tensors) - 1,), tuple(words.items())))
        return len(tensors) - 1

    live = [0, 1]
    for name, i, j in choices:
        a, b = live[i % len(live)], live[j % len(live)]
        if name in ONE:
            inner = made("abs", (a,), (n, n)) if name in ("sqrt", "log1p") else a
            live.append(made(name, (inner,), (n, n)))
        elif name in TWO:
            live.append(made(name, (a, b), (n, n)))
        elif name == "scaled":
            live.append(made("mul", (a,), (n, n), number=0.1))
        elif name == "matmul":
            live.append(made("matmul", (a, b), (n, n)))
        elif name == "mean":
            total = made("sum", (a,), (n, 1), dims=(1,), keep=True)
            total = made("div", (total,), (n, 1), number=n)
            live.append(made("sub", (b, total), (n, n)))
        elif name == "chosen":
            truth = made("gt", (a,), (n, n), "bool", number=0.25)
            live.append(made("where", (truth, a, b), (n, n)))
        elif name == "softmax":
            most = made("amax", (a,), (n, 1), dims=(1,), keep=True)
            low = made("exp", (made("sub", (a, most), (n, n)),), (n, n))
            live.append(made("div", (low, made("sum", (low,), (n, 1), dims=(1,), keep=True)), (n, n)))
        else:
            live.append(made("all_reduce", (a,), (n, n), op=name, ranks=(0, 1, 2)))
    sources = (Source(0, "x", "input"), Source(1, "y", "input"))
    return RankProgram(sources, tuple(steps), (("output", live[-1]),), tuple(tensors))


NAMES = (*ONE, *TWO, "scaled", "matmul", "mean", "chosen", "softmax", "sum", "avg", "max")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    st.sampled_from(("float32", "bfloat16", "float16")),
    st.integers(0, 1 << 20),
)
def test_no_run_is_further_from_exact_numbers_than_its_bound(
    choices: list[tuple[str, int, int]], dtype: str, seed: int
) -> None:
    rng, one = np.random.default_rng(seed), program(choices, dtype, 4)
    inputs = [{k: round_to(rng.standard_normal((4, 4)), dtype) for k in (0, 1)} for _ in range(3)]
    with np.errstate(all="ignore"):
        exact, run = run_ranks([one] * 3, inputs), run_ranks([one] * 3, inputs, round_to)
        bounds = errors_of_ranks([one] * 3, exact)
    for values, near, errors in zip(exact, run, bounds, strict=True):
        for number, e in errors.items():
            if values[number].dtype == bool or not np.isfinite(values[number]).all():
                continue
            apart = np.abs(near[number] - values[number])
            assert (np.isnan(apart) | (apart <= e * (1 + 1e-9) + 1e-300)).all(), (dtype, number)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [8, 64])
def test_two_ways_of_a_product_are_apart_by_less_than_their_bound(dtype: str, n: int) -> None:
    """x y beside the sum of two halves, one per rank: the bound is above what is measured, and within 1,000 times."""
    square = Described((n, n), dtype)
    sources = (Source(0, "x", "input"), Source(1, "y", "input"))
    product = Step("matmul", (0, 1), (2,))
    single = RankProgram(sources, (product,), (("output", 2),), (square,) * 3)
    reduce = Step("all_reduce", (2,), (3,), (("op", "sum"), ("ranks", (0, 1))))
    halves = (Described((n, n // 2), dtype), Described((n // 2, n), dtype), square, square)
    rank = RankProgram(sources, (product, reduce), (("output", 3),), halves)
    rng = np.random.default_rng(n)
    x, y = (round_to(rng.standard_normal((n, n)), dtype) for _ in range(2))
    mine = [{0: x[:, : n // 2], 1: y[: n // 2]}, {0: x[:, n // 2 :], 1: y[n // 2 :]}]
    whole = Part("output", (((0, 0, n),), ((0, 0, n),)))
    found = rounding_bound(single, [rank, rank], ({0: x, 1: y}, mine), [[("output", whole)]] * 2)
    assert found is not None and found.precision == dtype
    assert 0 < found.measured <= found.bound < 1000 * found.measured


def test_sixteen_bits_are_rounded_to_nearest_even() -> None:
    values = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, np.inf, 3.0e38])
    assert round_to(values, "bfloat16").tolist()[:4] == [1.0, 1 + 4 * 2.0**-8, -1.0, np.inf]
    assert round_to(np.array([65519.0, 1e6]), "float16").tolist() == [65504.0, np.inf]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["layer", "attention", "loss", "gelu"])
def test_pytorch_is_within_the_bound(name: str, dtype: str) -> None:
    """PyTorch's own kernels on one device, beside exact numbers of the steps."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    from shardproof.models.sources.distributed.capture import capture

    generator = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    x, w, b = (torch.randn(s, generator=generator).to(kind) for s in ((6, 32), (32, 32), (32,)))
    programs = {
        "layer": lambda x: F.layer_norm(x @ w, (32,), b, b),
        "attention": lambda x: torch.softmax((x @ w) @ x.t() / 8, -1) @ x,
        "loss": lambda x: F.cross_entropy((x @ w).float(), torch.arange(6)),
        "gelu": lambda x: F.gelu(x @ w + b) @ w,
    }
    held = capture(lambda: (programs[name], (x,)), None, 1, False)
    arrays = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in held.arrays.items()}
    values = run_single(held.program, arrays)
    errors = errors_of_ranks([held.program], [values])[0]
    for (_, number), result in zip(held.program.outputs, held.results, strict=True):
        apart = np.abs(result - values[number])
        assert np.isfinite(errors[number]).all() and (apart <= errors[number]).all(), (
            apart.max(),
            errors[number].max(),
        )


@pytest.mark.torch
def test_the_verb_says_it_beside_the_proof(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    import equality_pairs as pairs

    from shardproof.__main__ import run

    words = ["equal", f"{Path(pairs.__file__)}:mlp", f"{Path(pairs.__file__)}:pipeline", "--ranks", "2"]
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["rounding"]
    assert told["precision"] == "float32" and "steps-rounded-once" in told["assumptions"]
    assert 0 <= float(told["measured"]) <= float(told["bound"]) < 1e-3
    assert run(words) == 0
    assert "equal up to rounding: measured" in capsys.readouterr().out


@pytest.mark.torch
def test_a_bound_that_overflows_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Errors that are multiplied and then exponents are beyond all numbers in the end: that is said, no number is."""
    pytest.importorskip("torch")
    from shardproof.__main__ import run

    (tmp_path / "deep.py").write_text(
        "import torch\nX = torch.linspace(-1, 1, 16).reshape(4, 4)\n"
        "def f(x):\n    for _ in range(5):\n        x = torch.softmax(x * 1e6, -1) * 8\n    return x\n"
        "def one():\n    return f, (X,)\n"
        "def many(rank, ranks):\n    return f, (X.chunk(ranks)[rank].clone(),)\n"
    )
    words = ["equal", f"{tmp_path / 'deep.py'}:one", f"{tmp_path / 'deep.py'}:many", "--ranks", "2"]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounding"]["bound"] is None
    assert run(words) == 0 and "no bound of rounding is known" in capsys.readouterr().out
