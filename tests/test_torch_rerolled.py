"""Loops of Python over cells come in as loops: values, three steps of AdamW, and sizes that do not grow."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch_case import compare, imported
from unrolled_loops import CASES

from shardproof.models.sources.torch import scans
from shardproof.models.sources.torch.context import TorchError

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


class Nested(nn.Module):  # type: ignore[misc]
    """A scan in a scan."""

    def forward(self, x: Tensor) -> Tensor:
        def inner(h: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
            return h + now, h * now

        def outer(h: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            h, seen = scan(inner, h, rows)
            return h.clone(), seen.sum(0)

        return scan(outer, x[0, 0], x)[1].sum()


def test_what_torch_scan_may_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TorchError, match="write the inner one as a loop of Python"):
        imported(lambda: (Nested(), (torch.zeros(4, 5, 3),)))
    monkeypatch.setattr(scans, "MOST_NODES", 40)
    with pytest.raises(TorchError, match="torch.scan of 7 iterations and 11 operators each: at most 40"):
        imported(lambda: CASES["torch.scan"](7))


def test_an_associative_scan_is_a_tree_of_products() -> None:
    class Linear(nn.Module):  # type: ignore[misc]
        """h = a h + x, as (a, x) pairs that compose."""

        def forward(self, x: Tensor) -> Tensor:
            def compose(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
                return left[0] * right[0], right[0] * left[1] + right[1]

            return associative_scan(compose, (torch.sigmoid(x), x), 1, combine_mode="generic")[1].square().sum()

    sizes = [len(compare(lambda n=n: (Linear(), (torch.zeros(2, n, 3),))).graph.operators) for n in (8, 16)]
    assert sizes[1] - sizes[0] < sizes[0]
