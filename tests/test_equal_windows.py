"""Verb `equal`: convolutions, pools, bags of rows, counts and grouped products beside PyTorch's own kernels, right and
wrong jobs of them, and what the checker newly sees: rows of several digits, complements of whole numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_equality_forms import Bench, seen

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.nn.functional as F

import shardproof
from shardproof.models.sources.distributed.capture import Unreadable, capture

pytestmark = pytest.mark.torch

Called = Callable[..., Any]


def kernels(seed: int) -> list[tuple[str, Called, tuple[Any, ...]]]:
    """Functions of drawn sizes, and their operands."""
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g)

    groups = rng.choice((1, 2))
    kernel, stride, padding, dilation = (
        rng.choice((1, 2, 3)),
        rng.choice((1, 2, 3)),
        rng.choice((0, 1)),
        rng.choice((1, 2)),
    )
    size = rng.choice((5, 6, 8))
    conv: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    mode = rng.choice(("sum", "mean"))
    pad = min(padding, kernel // 2)
    ids = torch.randint(0, 6, (12,), generator=g)
    offs = torch.tensor([3, 3, 7, 12], dtype=torch.int32)
    return [
        ("conv1d", lambda x, w, b: F.conv1d(x, w, b, **conv), (draw(2, 4, size), draw(6, 4 // groups, kernel), draw(6))),
        ("conv2d", lambda x, w: F.conv2d(x, w, **conv), (draw(2, 4, size, 6), draw(2, 4 // groups, kernel, 2))),
        ("patches", lambda x, w: F.conv2d(x, w, stride=2), (draw(2, 3, 4, 6), draw(5, 3, 2, 2))),
        ("max", lambda x: F.max_pool2d(x.relu(), kernel, stride, pad), (draw(2, 2, size, 6),)),
        ("mean", lambda x: F.avg_pool2d(x, kernel, stride, pad, count_include_pad=bool(groups - 1)), (draw(2, 2, size, 6),)),
        ("bags", lambda w: F.embedding_bag(ids.view(4, 3), w, mode=mode), (draw(6, 3),)),
        ("uneven", lambda w: F.embedding_bag(ids, w, torch.tensor([0, 2, 3, 9]), mode="sum"), (draw(6, 3),)),
        ("groups", lambda a, b: torch._grouped_mm(a, b, offs=offs), (draw(12, 8), draw(4, 8, 8))),
        ("picked", lambda x: x[:, [0, 2, 1], [1, 1, 0]], (draw(3, 4, 2),)),
        ("best", lambda x: x.topk(2, 1).values, (draw(3, 5),)),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_parts_are_what_kernels_compute(seed: int) -> None:
    for name, called, operands in kernels(seed):
        found = capture(lambda c=called, o=operands: (c, o), None, 1, True)  # type: ignore[misc]
        leaves = [x.clone().requires_grad_(True) for x in operands]
        out = called(*leaves)
        cotangents = {s.name: s.number for s in found.program.sources if s.name.startswith("cotangent")}
        given = torch.as_tensor(found.arrays[cotangents["cotangent output"]])
        wanted = [out.detach(), *torch.autograd.grad(out, leaves, given)]
        for got, want in zip(found.results, wanted, strict=True):
            np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{name} {seed}")


def test_counts_are_those_of_the_kernel() -> None:
    x = torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(0)).float()
    for bins, low, high in ((5, 0, 4), (4, 0, 4), (3, 1, 3), (7, -1, 6)):
        found = capture(lambda b=(bins, low, high): (lambda t: t.histc(*b), (x,)), None, 1, False)  # type: ignore[misc]
        np.testing.assert_array_equal(found.results[0], x.histc(bins, low, high).numpy())


@pytest.mark.parametrize(
    ("called", "shape", "words"),
    [
        (lambda x: F.conv_transpose2d(x, torch.ones(2, 2, 2, 2)), (1, 2, 4, 4), "transposed"),
        (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (1, 2, 5, 5), "ceil_mode"),
        (lambda x: x.histc(4), (8,), "range that data say"),
        (lambda x: torch.zeros(8).index_put((x.long(),), x), (8,), "may be the same"),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(called: Called, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(Unreadable, match=words) as refused:
        capture(lambda: (called, (torch.ones(*shape),)), None, 1, False)
    assert "test_equal_windows.py:" in str(refused.value)


G = torch.Generator().manual_seed(3)
X, W, V = (torch.randn(*s, generator=G) for s in ((4, 2, 6, 6), (4, 2, 3, 3), (3, 4)))


def net(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = F.max_pool2d(F.conv2d(x, w, stride=1, padding=1).relu(), 2)
    return (v @ F.avg_pool2d(y, 3).flatten(1).t()).square().sum()


def step(summed: bool) -> Called:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        w, v = W.clone().requires_grad_(True), V.clone().requires_grad_(True)
        grads = torch.autograd.grad(net(x, w, v), (w, v))
        for g in grads if summed else ():
            dist.all_reduce(g)
        return {"w": grads[0], "v": grads[1]}

    return f


def test_a_convolution_by_parts_of_the_batch_is_proved_and_wrong_ones_are_not() -> None:
    def job(summed: bool, stale: bool = False) -> Callable[[int, int], object]:
        return lambda rank, ranks: (step(summed), (X.chunk(ranks)[0 if stale else rank].clone(),))

    def single() -> object:
        return step(False), (X,)

    right = shardproof.equal(single, job(True), ranks=2)
    assert right, str(right)
    wrong = shardproof.equal(single, job(False), ranks=2)
    assert wrong.answer == "different" and wrong.output == "output.w"
    assert shardproof.equal(single, job(True, stale=True), ranks=2).answer != "equal"


def test_a_convolution_by_channels_needs_its_sum() -> None:
    def single() -> object:
        return lambda x: F.conv2d(x, W, padding=1), (X,)

    def job(rank: int, ranks: int, how: str = "sum") -> object:
        w = W.chunk(ranks, 1)[rank].clone()

        def f(x: torch.Tensor) -> torch.Tensor:
            y = F.conv2d(x, w, padding=1 if how != "edge" or rank else 0)
            y = F.pad(y, (1, 1, 1, 1)) if y.shape[-1] < x.shape[-1] else y
            if how != "open":
                dist.all_reduce(y)
            return y

        return f, (X.chunk(ranks, 1)[rank].clone(),)

    assert shardproof.equal(single, job, ranks=2)
    for how in ("open", "edge"):
        assert shardproof.equal(single, lambda r, n, h=how: job(r, n, h), ranks=2).answer == "different"  # type: ignore[misc]


def test_patches_behind_a_word_are_rows_in_order() -> None:
    """A cut of tokens in two digits is joined to others; in another order of digits it is another tensor."""
    w = torch.randn(5, 3, 2, 2, generator=G)
    x = torch.randn(2, 3, 4, 6, generator=G)

    def tokens(x: torch.Tensor, turned: bool) -> torch.Tensor:
        y = F.conv2d(x, w, stride=2)
        y = (y.transpose(2, 3) if turned else y).flatten(2).transpose(1, 2)
        return torch.cat([torch.ones(x.shape[0], 1, 5), y], 1).exp()

    def job(turned: bool) -> Callable[[int, int], object]:
        return lambda rank, ranks: (lambda x: tokens(x, turned), (x.chunk(ranks)[rank].clone(),))

    def single() -> object:
        return lambda x: tokens(x, False), (x,)

    assert shardproof.equal(single, job(False), ranks=2)
    assert shardproof.equal(single, job(True), ranks=2).answer == "different"


def test_a_sorted_row_of_two_digits_is_not_the_one_in_another_order() -> None:
    b = Bench()
    x = b.source("x", np.arange(6.0).reshape(2, 3))
    y = b.source("y", np.arange(6.0).reshape(3, 2))
    row = b.do("reshape", x, shape=(6,))
    mixed = b.do("reshape", b.do("permute", y, dims=(1, 0)), shape=(6,))  # digits that do not join
    turned = b.do("reshape", y, shape=(6,))
    for part in (0, 1):
        one, two, three, again = (
            b.segments.of(_sort(), [v])[part] for v in (row, mixed, turned, b.do("reshape", b.do("permute", y, dims=(1, 0)), shape=(6,)))
        )  # fmt: skip
        assert seen(b, two, again)  # type: ignore[arg-type]
        assert not seen(b, two, three) and not seen(b, one, two)  # type: ignore[arg-type]


def _sort() -> Any:
    from shardproof.models.equality.program import Step

    return Step("sort", (), (), (("dim", 0), ("descending", False)))


def test_conditions_on_whole_numbers_have_one_form_and_on_others_two() -> None:
    for whole in (True, False):
        b = Bench()
        y = b.source("y", np.arange(4))
        if whole:
            b.forms.integers.add(y.pieces[0][1][0][0][1][0][0])
        below = b.do("lt", y, number=3)
        assert seen(b, below, b.do("le", y, number=2)) == whole
        assert not seen(b, below, b.do("le", y, number=3)) and not seen(b, below, b.do("lt", y, number=4))
        assert seen(b, below, b.do("logical_not", b.do("ge", y, number=3)))


def test_whole_numbers_and_floats_are_told_apart_by_their_type() -> None:
    ids = torch.randint(0, 9, (6,), generator=torch.Generator().manual_seed(0))
    for x in (ids, ids.double() + 0.5, ids.double()):
        found = shardproof.equal(
            lambda x=x: (lambda t: (t < 4).double(), (x,)),  # type: ignore[misc]
            lambda rank, ranks, x=x: (lambda t: (t <= 3).double(), (x,)),  # type: ignore[misc]
            ranks=2,
        )
        assert bool(found) == (x is ids), str(found)


def test_where_bags_begin_is_no_input() -> None:
    """Sums of two rows each are what offsets 0, 2, 4 give, not what others do: an input may be another one."""
    ids, table = torch.tensor([0, 2, 1, 3, 2, 0]), torch.randn(4, 3, generator=G)

    def by_offsets(i: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
        w = table.clone().requires_grad_(True)
        return torch.autograd.grad(F.embedding_bag(i, w, o, mode="mean").square().sum(), w)[0]

    for called in (lambda i, o: F.embedding_bag(i, table, o, mode="sum"), by_offsets):
        with pytest.raises(Unreadable, match="on the host") as refused:
            capture(lambda c=called: (c, (ids, torch.tensor([0, 2, 4]))), None, 1, False)  # type: ignore[misc]
        assert "test_equal_windows.py:" in str(refused.value)


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_ranks_that_name_different_roots_are_no_job(name: str) -> None:
    x = torch.arange(1.0, 5.0)

    def job(rank: int, ranks: int, roots: tuple[int, int]) -> object:
        def f(x: torch.Tensor) -> torch.Tensor:
            y = x.clone() * (1 - rank if name == "broadcast" else 1)
            getattr(dist, name)(y, roots[rank])
            return y if name == "broadcast" or rank == 0 else x * 2

        return f, (x,)

    def single() -> object:
        return lambda x: x if name == "broadcast" else x * 2, (x,)

    assert shardproof.equal(single, lambda r, n: job(r, n, (0, 0)), ranks=2)
    assert shardproof.equal(single, lambda r, n: job(r, n, (0, 1)), ranks=2).answer == "different"
