"""Loops of Python over cells come in as loops: values, three steps of AdamW, and sizes that do not grow."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch_case import compare, imported
from unrolled_loops import CASES

pytestmark = pytest.mark.torch

LOOPS = {"one after another": 2}
"""Loops of a case, where it is not one."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_unrolled_loop_is_a_loop(name: str) -> None:
    torch.manual_seed(5)
    found = compare(lambda: CASES[name](7)).graph
    assert [op.function for op in found.operators].count("scan") == LOOPS.get(name, 1)
    assert len(imported(lambda: CASES[name](12)).graph.operators) == len(found.operators)


@pytest.mark.parametrize("name", sorted(CASES))
def test_three_steps_of_adamw_are_those_of_torch(name: str) -> None:
    from benchmarks.three_steps import double_steps

    def factory() -> tuple[nn.Module, dict[str, Tensor]]:
        torch.manual_seed(5)
        module, given = CASES[name](7)
        return module, dict(zip(inspect.signature(module.forward).parameters, given, strict=True))

    worst, single = double_steps(factory)
    assert worst < 1e-9 and not single
