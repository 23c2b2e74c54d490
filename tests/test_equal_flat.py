"""Verb `equal` on parameters in flat shards, as ZeRO-3 holds them: gathered, shaped and differentiated by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

import shardproof

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch.manual_seed(0)
A, B = torch.randn(8, 16), torch.randn(16, 4)
X, Y = torch.randn(8, 8), torch.randn(8, 4)


class Gathered(torch.autograd.Function):
    """All shards, one behind another; gradients are reduced and scattered, and divided by `share`."""

    @staticmethod
    def forward(c: Any, shard: Any, order: tuple[int, ...], share: float) -> Any:
        c.order, c.share = order, share
        whole = torch.empty(shard.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard.contiguous())
        rows = whole.view(len(order), -1)
        return torch.cat([rows[k] for k in order])

    @staticmethod
    def backward(c: Any, g: Any) -> Any:
        own = torch.empty(g.numel() // dist.get_world_size())
        dist.reduce_scatter_tensor(own, g.contiguous())
        return own / c.share, None, None


def single() -> Any:
    a, b = torch.nn.Parameter(A), torch.nn.Parameter(B)

    def loss(x: Any, y: Any) -> Any:
        return ((x @ a).tanh() @ b - y).square().mean()

    return loss, (X, Y)


def job(
    order: Callable[[int], tuple[int, ...]] = lambda n: tuple(range(n)), share: float = 0, turned: bool = False
) -> Any:
    def parallel(rank: int, ranks: int) -> Any:
        def shard(t: Any) -> Any:
            return torch.nn.Parameter(t.reshape(-1).chunk(ranks)[rank].clone())

        a, b = shard(A), shard(B)
        x, y = X.chunk(ranks)[rank], Y.chunk(ranks)[rank]

        def loss(x: Any, y: Any) -> Any:
            whole = [Gathered.apply(s, order(ranks), share or ranks) for s in (a, b)]
            left = whole[0].view(16, 8).t() if turned else whole[0].view(8, 16)
            return ((x @ left).tanh() @ whole[1].view(16, 4) - y).square().mean()

        return loss, (x, y)

    return parallel


MEAN = {"outputs": {"output": {"partial": "mean"}}}


@pytest.mark.parametrize("ranks", [2, 4])
def test_flat_shards_are_equal_with_their_gradients(ranks: int) -> None:
    found = shardproof.equal(single, job(), ranks=ranks, grad=True, layouts=MEAN)
    assert found.answer == "equal", found
    assert any("grad a" in row["tensor"] and "dimension 0" in row["is"] for row in found.outputs)


@pytest.mark.parametrize(
    "wrong",
    [job(order=lambda n: tuple(reversed(range(n)))), job(share=1.0), job(turned=True)],
    ids=["another order", "a sum for a mean", "another shape"],
)
def test_wrong_ones_are_different(wrong: Any) -> None:
    found = shardproof.equal(single, wrong, ranks=2, grad=True, layouts=MEAN)
    assert found.answer == "different", found


def test_shards_of_a_matrix_that_is_turned_are_its_numbers_one_by_one() -> None:
    """Rows of the transposed matrix in a row: no block of the flat numbers, but each is one of the matrix."""

    def parallel(rank: int, ranks: int) -> Any:
        a = torch.nn.Parameter(A.t().reshape(-1).chunk(ranks)[rank].clone())

        def f(x: Any) -> Any:
            return x @ Gathered.apply(a, tuple(range(ranks)), 1.0).view(16, 8).t()

        return f, (X,)

    def one() -> Any:
        a = torch.nn.Parameter(A)
        return lambda x: x @ a, (X,)

    found = shardproof.equal(one, parallel, ranks=2)
    assert found.answer == "equal" and any(row["tensor"] == "a[0:1]" for row in found.inputs), found
