"""Integers of PyTorch programs: they wrap around in their element types, whole numbers beyond 2^53 stay what they are,
and what is shown to fit costs no operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch_case import imported
from torch_draws import Call, drawn, judged, outcomes, whole

BYTES = torch.tensor([100, -128, 5, 0, 127], dtype=torch.int8)
UNSIGNED = torch.tensor([200, 0, 5, 255, 1], dtype=torch.uint8)
SHORT = torch.tensor([300, -32768, 5, 0, 32767], dtype=torch.int16)
WORDS = torch.tensor([2**31 - 1, -(2**31), 5, 0, 70000], dtype=torch.int32)
LONG = torch.tensor([300, -1, 2**40 + 7, 2**53 + 1, -(2**63)])
LARGE = torch.tensor([2**53 + 1, 2**24 + 1, -5, 2**62, 3])
REAL = torch.tensor([300.0, -129.7, -1.0, 2.9, -2.9, 70000.5, -0.0], dtype=torch.float64)
TYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
TYPED = {t.dtype: t for t in (BYTES, UNSIGNED, SHORT, WORDS, LONG)}
MORE = 2**53 + 1

Function = Callable[..., Any]
ARITHMETIC: dict[str, Function] = {
    "sum of two": lambda x: x + x,
    "and 300": lambda x: x + 300,
    "difference": lambda x: x - x.flip(0),
    "less 5": lambda x: x - 5,
    "3 less": lambda x: 3 - x,
    "times 7": lambda x: x * 7,
    "times itself": lambda x: x * x,
    "negative": lambda x: -x,
    "size": lambda x: x.abs(),
    "cube": lambda x: x**3,
    "running sum": lambda x: x.cumsum(0, dtype=x.dtype),
    "running sum, wide": lambda x: x.cumsum(0),
    "total": lambda x: x.sum(0, dtype=x.dtype),
    "total, wide": lambda x: x.sum(),
    "product": lambda x: x.prod(),
    "running product": lambda x: x.cumprod(0, dtype=x.dtype),
    "quotient": lambda x: x // -1,
    "quotient towards zero": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "number over": lambda x: 100 // x.abs().clamp(1, 100),
    "remainder": lambda x: x % 7,
    "equals 200": lambda x: x == 200,
    "less than 300": lambda x: x < 300,
    "with bytes": lambda x: x + BYTES,
    "times unsigned": lambda x: x * UNSIGNED,
    "after bytes": lambda x: torch.cat((x, BYTES)),
    "widened": lambda x: x.long() * 3 + 2**40,
    "descending": lambda x: x.sort(descending=True)[0],
    "largest": lambda x: torch.zeros_like(x).scatter(0, x.topk(2)[1], 1),
    "added where": lambda x: torch.zeros(3, dtype=x.dtype).scatter_add(0, torch.tensor([1, 1, 2, 2, 2]), x),
    "inner product": lambda x: x[None] @ x[:, None],
}
EXAMPLES: dict[str, tuple[Function, Any]] = {
    **{f"{x.dtype} to {t}": (lambda x, t=t: x.to(t), x) for x in TYPED.values() for t in TYPES},
    **{f"{x.dtype} to {t}, times": (lambda x, t=t: x.to(t).long() * 1000, x) for x in TYPED.values() for t in TYPES},
    **{f"numbers to {t}": (lambda x, t=t: x.to(t), REAL) for t in TYPES},
    **{f"truth to {t}": (lambda x, t=t: (x > 0).to(t) - 1, BYTES) for t in TYPES},
    **{f"positions {t}": (lambda x, t=t: x + torch.arange(125, 130).to(t), torch.zeros(5, dtype=t)) for t in TYPES},
    **{f"{n}, {x.dtype}": (f, x) for x in TYPED.values() for n, f in ARITHMETIC.items()},
}
EXAMPLES |= {
    "products of places": (lambda x: x.argsort().to(torch.int8).cumprod(0, dtype=torch.int8) + x, BYTES),
    "powers of places": (lambda x: (x.argsort().to(torch.int8) + 3) ** torch.tensor([1, 9, 2, 7, 5]), BYTES),
    "powers of places in their type": (
        lambda x: (x.argsort() + 3).to(torch.int8) ** torch.tensor([1, 9, 2, 7, 5], dtype=torch.int8),
        BYTES,
    ),
    "total of places": (lambda x: (x.argsort() * 20).to(torch.int8).sum(dtype=torch.int8) + x, BYTES),
    "places added where": (
        lambda x: torch.zeros(3, dtype=torch.int8).index_add(
            0, torch.tensor([1, 1, 1, 2, 2]), (x.argsort() * 20).to(torch.int8)
        ),
        BYTES,
    ),
    "inner product of places": (
        lambda x: (x.argsort() * 20).to(torch.int8)[None] @ (x.argsort() * 20).to(torch.int8)[:, None],
        BYTES,
    ),
    "sums of places": (lambda x: (x.argsort() * 20).to(torch.int8) + (x.argsort() * 20).to(torch.int8), BYTES),
}
BEYOND: dict[str, tuple[Function, Any]] = {
    "sum": (lambda x: x + MORE, LARGE),
    "product": (lambda x: x * MORE, LARGE),
    "equal to": (lambda x: x == MORE, LARGE),
    "equal to its neighbour": (lambda x: x == 2**53, LARGE),
    "equal to a real number": (lambda x: x == float(2**53), LARGE),
    "equal to a real number in single precision": (lambda x: x == float(2**24), LARGE),
    "above a real number": (lambda x: x > 16777216.5, LARGE),
    "equal to real ones": (lambda x: x[:, None] == torch.tensor([2.0**24, 2.0**53]), LARGE),
    "equal to real inputs": (lambda x: x == x.float() * 1.0, LARGE),
    "bound": (lambda x: x.clamp(-3, MORE), LARGE),
    "filled": (lambda x: x.masked_fill(x > 3, MORE), LARGE),
    "chosen": (lambda x: torch.where(x > 3, x, MORE), LARGE),
    "full": (lambda x: x + torch.full((5,), MORE), LARGE),
    "constant": (lambda x: x + torch.tensor([MORE, -(2**63), 2**62 + 1, 5, 9]), LARGE),
    "two ends": (lambda x: x[:2] + torch.tensor([-(2**63), 2**63 - 1]), LARGE),
    "positions": (lambda x: x + torch.arange(2**53, 2**53 + 5), LARGE),
    "quotient": (lambda x: x // MORE, LARGE),
    "remainder": (lambda x: x % MORE, LARGE),
    "towards zero": (lambda x: torch.div(x, 3, rounding_mode="trunc"), LARGE),
    "number over": (lambda x: MORE // x, LARGE),
    "multiple": (lambda x: torch.add(x, x, alpha=MORE), LARGE),
    "multiple of a number": (lambda x: torch.add(x, MORE, alpha=3), LARGE),
    "padded": (lambda x: nn.functional.pad(x, (1, 0), value=MORE), LARGE),
    "scattered": (lambda x: x.scatter(0, torch.tensor([1, 2]), MORE), LARGE),
    "picked": (lambda i: torch.tensor([MORE, 5, -(2**63)])[i], torch.tensor([0, 1, 2])),
}
REFUSED: dict[str, tuple[Function, str]] = {
    "shift": (lambda x: x << 1, "aten.__lshift__"),
    "bits": (lambda x: x & 3, "aten.bitwise_and.Scalar with integers"),
    "opposite bits": (lambda x: ~x, "aten.bitwise_not.default with integers"),
    "any": (lambda x: x.any(), "element type int8"),
}


def _different(examples: dict[str, tuple[Function, Any]]) -> dict[str, str]:
    calls = [Call(f"x x {name}", f, (x,)) for name, (f, x) in examples.items()]
    return {c.words: said for k in range(0, len(calls), 64) for c, said in outcomes(calls[k : k + 64]) if said}


def test_casts_and_arithmetic_wrap_around() -> None:
    assert _different(EXAMPLES) == {}


def test_whole_numbers_beyond_what_floats_hold() -> None:
    assert _different(BEYOND) == {}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_here_is_refused(name: str) -> None:
    function, words = REFUSED[name]
    found = judged([Call("x", function, (BYTES,))])
    assert found.startswith("refused: ") and words in found


def test_unsigned_indices_are_masks() -> None:
    given = (torch.zeros(5), UNSIGNED, torch.ones(()))
    assert "a mask as index" in judged([Call("x", lambda x, i, v: x.index_put((i,), v), given)])


def test_drawn_integers() -> None:
    """Of the draws those of integers alone; `tests/torch_draws.py` has more."""
    made = [c for seed in range(4_000, 4_240) if (c := drawn(seed)) is not None and " of torch." in c.words][:24]
    found = outcomes(made)
    assert [(c.words, s) for c, s in found if s and not s.startswith("refused")] == []
    assert whole.__doc__ and sum(not s for _, s in found) > 12


def _functions(function: Function, *given: Any) -> list[str]:
    class Held(nn.Module):
        def forward(self, *x: Any) -> Any:
            return function(*x)

    return [op.function for op in imported(lambda: (Held(), given)).graph.operators]


TABLE = torch.zeros(7, 3)
IDS = torch.zeros(2, 4, dtype=torch.int64)

FREE: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "positions of what is there": (lambda i: (i.ne(1).int().cumsum(1).to(torch.int32) * i.ne(1).int()).long() + 1, (IDS,)),
    "narrow indices": (lambda t, i: t[i.long()], (TABLE, IDS.int())),
    "counts": (lambda m: m.sum(1).to(torch.int32), (IDS.bool(),)),
    "order": (lambda t: t.argsort(dim=1, stable=True).to(torch.int8), (TABLE,)),
    "bounded": (lambda i: (i.clamp(0, 100).to(torch.uint8), (i % 50).to(torch.int8)), (IDS,)),
    "place": (lambda t: t.argmax(1).to(torch.int32) + 1, (TABLE,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FREE)
def test_what_is_shown_to_fit_costs_no_cast(name: str) -> None:
    """But for the casts of truth values, which have no integers."""
    function, given = FREE[name]

    class Held(nn.Module):
        def forward(self, *x: Any) -> Any:
            return function(*x)

    graph = imported(lambda: (Held(), given)).graph
    assert [
        op.name
        for op in graph.operators
        if op.function == "cast" and graph.tensor(op.inputs[0].tensor).dtype not in ("bool", "float32")
    ] == []


def test_what_may_not_fit_has_a_cast() -> None:
    assert _functions(lambda i: i.to(torch.int32), IDS) == ["cast"]
    assert _functions(lambda i: i.long() * 3, IDS.int()) == ["cast", "scale"]
    assert _functions(lambda i: (i.long() * 3, i.long() * 4), IDS.int()).count("cast") == 1
    assert _functions(lambda x: x.to(torch.int8), TABLE) == ["cast", "cast"]
    assert _functions(lambda x: x.clamp(-128, 127).to(torch.int8), TABLE) == ["clip", "cast"]
