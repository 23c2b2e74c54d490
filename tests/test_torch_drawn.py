"""Drawn calls of PyTorch: what is imported has PyTorch's numbers, and its gradients; a sample, and by name what was found.

`python tests/torch_draws.py 0 20000` is the whole of it, `--gradients` that of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch_draws import Call, drawn, judged, outcomes


def double(*numbers: float) -> Any:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
def test_drawn_calls_have_the_numbers_of_pytorch(gradients: bool) -> None:
    first, count = (100_000, 24) if gradients else (1_000, 24)
    calls = [made for seed in range(first, first + count) if (made := drawn(seed, gradients)) is not None]
    found = [(c.words, said) for c, said in outcomes(calls, gradients)]
    assert [f for f in found if f[1] and not f[1].startswith("refused")] == []
    assert sum(not said for _, said in found) > 0.7 * len(found)


FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "quotient by zero, floored": (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        (double(1.0, -1.0, 0.0, 7.0), double(0.0, 0.0, 0.0, 2.0)),
    ),
    "floor_divide by zero": (torch.floor_divide, (double(1.0, -7.0), double(0.0, 2.0))),
    "floor_divide by the number zero": (lambda x: torch.div(x, 0.0, rounding_mode="floor"), (double(1.0, -7.0),)),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_draws_found(name: str) -> None:
    function, given = FOUND[name]
    assert judged([Call(f"x: {name}", function, given)]) == ""
