"""What an attack of November 2026 got proved by `equal`: files whose steps no run has, and ranks whose constants are others
than those of the one device beside a mask's greatest number.
"""

from __future__ import annotations

import pytest
from hostile_equalities import Drawn, pair

from shardproof.models.equality.pair import Pair
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair
from shardproof.verify.equality.steps import Malformed


def proved(claim: Pair) -> bool:
    try:
        return check_pair(claim, Budget.with_large()).verdict is Verdict.PROVED
    except (ContainerError, Malformed):
        return False


def same(operator: str, shapes: tuple[tuple[int, ...], ...], made: tuple[int, ...], **words: object) -> Pair:
    """One rank does what the one device does."""
    drawn = Drawn(*((shape, "float32") for shape in shapes))
    return pair(drawn.program(drawn.step(operator, tuple(range(len(shapes))), made, **words)))


@pytest.mark.parametrize(
    ("operator", "shapes", "made", "words"),
    [
        ("matmul", ((2, 3), (3, 2)), (2, 2), {}),
        ("matmul", ((5, 2, 3), (1, 3, 2)), (5, 2, 2), {}),
        ("permute", ((2, 3),), (3, 2), {"dims": (1, 0)}),
        ("expand", ((3,),), (2, 3), {"shape": (2, 3)}),
    ],
)
def test_steps_that_runs_have_are_proved(
    operator: str, shapes: tuple[tuple[int, ...], ...], made: tuple[int, ...], words: dict[str, object]
) -> None:
    assert proved(same(operator, shapes, made, **words))


@pytest.mark.parametrize(
    ("operator", "shapes", "made", "words"),
    [
        ("matmul", ((2, 1), (3, 2)), (2, 2), {}),
        ("matmul", ((2, 3), (1, 2)), (2, 2), {}),
        ("matmul", ((2, 3), (3,)), (2,), {}),
        ("permute", ((2, 3),), (2,), {"dims": (0,)}),
        ("permute", ((2, 1),), (2,), {"dims": (0,)}),
        ("expand", ((3,),), (), {"shape": ()}),
    ],
)
def test_steps_that_no_run_has_are_not(
    operator: str, shapes: tuple[tuple[int, ...], ...], made: tuple[int, ...], words: dict[str, object]
) -> None:
    assert not proved(same(operator, shapes, made, **words))


@pytest.mark.parametrize(("rows", "fine"), [(1, True), (4, False)])
def test_rows_that_nobody_is_sent_are_not_dropped(rows: int, fine: bool) -> None:
    drawn = Drawn(((rows, 4), "float32"))
    sent = drawn.step("all_to_all", (0,), (1, 4), ranks=(0,), send=(1,), receive=(1,))
    one = Drawn(((rows, 4), "float32"))
    row = one.step("slice", (0,), (1, 4), dim=0, start=0, stop=1, step=1)
    assert proved(pair(drawn.program(sent), 1, one.program(row))) is fine


@pytest.mark.parametrize(
    ("operator", "words", "fine"), [("mul", {"number": 2}, True), ("mul", {"number": 0.5}, False), ("exp", {}, False)]
)
def test_whole_numbers_of_fractions(operator: str, words: dict[str, object], fine: bool) -> None:
    drawn = Drawn(((4,), "int64"))
    assert proved(pair(drawn.program(drawn.step(operator, (0,), (4,), **words)))) is fine


@pytest.mark.torch
def test_other_slopes_beside_a_mask_are_different() -> None:
    """The greatest number of float32 is no measure of the numbers beside it."""
    import torch

    import shardproof

    x, ones = torch.randn(4, 3, 3), torch.ones(3, 3)

    def bias(heads: range) -> torch.Tensor:
        slopes = torch.tensor([2.0 ** -(h + 1) for h in heads]).view(-1, 1, 1)
        distances = torch.arange(3.0) - torch.arange(3.0).view(-1, 1)
        return (slopes * distances).masked_fill(ones.triu(1).bool(), torch.finfo(torch.float32).min)

    def single() -> tuple[object, tuple[torch.Tensor, ...]]:
        b = bias(range(4))
        return (lambda y: torch.softmax(y + b, -1)), (x,)

    def parallel(right: bool) -> object:
        def on_rank(rank: int, ranks: int) -> tuple[object, tuple[torch.Tensor, ...]]:
            b = bias(range(2 * rank, 2 * rank + 2) if right else range(2))
            return (lambda y: torch.softmax(y + b, -1)), (x[2 * rank : 2 * rank + 2].clone(),)

        return on_rank

    assert shardproof.equal(single, parallel(True), ranks=2).answer == "equal"
    assert shardproof.equal(single, parallel(False), ranks=2).answer == "different"
