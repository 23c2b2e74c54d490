"""What an attack of November 2026 got proved by `equal`: files whose steps no run has, and ranks whose constants are others
than those of the one device beside a mask's greatest number.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hostile_equalities import Drawn, pair

from shardproof.formal.equality.givens import constant_of
from shardproof.models.equality.pair import Known, Pair
from shardproof.models.equality.program import Described, RankProgram, Source, Step
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
        ("tril", ((),), (), {"diagonal": 0}),
        ("index", ((2,), (2,)), (2,), {}),
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


def doubled(shape: tuple[int, ...], content: str, number: float | None = None, dtype: str = "float32") -> Pair:
    """A constant, times 2, of which the rank's has shape (2, 4) and content "c"."""
    there, here = (Drawn((s, d)) for s, d in (((2, 4), "float32"), (shape, dtype)))
    programs = []
    for drawn in (there, here):
        drawn.sources = [Source(0, "c", "constant")]
        made = drawn.step("slice", (0,), (2, 2), dim=drawn.shape(0).index(4), start=0, stop=2, step=1)
        programs.append(drawn.program(drawn.step("mul", (made,), (2, 2), number=2)))
    claim = pair(programs[1], 1, programs[0])
    known = Known(number, "c"), Known(number, content)
    return replace(claim, constants=((0, known[0]),), given=(((0, known[1]),),))


def test_one_content_has_one_shape_and_type() -> None:
    assert proved(doubled((2, 4), "c")) and not proved(doubled((2, 4), "d"))
    assert not proved(doubled((4, 2), "c")) and not proved(doubled((2, 4), "c", dtype="float64"))


def test_numbers_that_are_no_short_fractions_are_named() -> None:
    said = check_pair(doubled((2, 4), "c", 0.1), Budget.with_large())
    assert said.verdict is Verdict.PROVED and "numbers-near-fractions" in said.assumptions
    assert "numbers-near-fractions" not in check_pair(doubled((2, 4), "c", 2.0), Budget.with_large()).assumptions


def test_infinity_may_stand_in_a_constant() -> None:
    """m > m - 1 does not hold of it."""

    def program(chosen: bool) -> RankProgram:
        drawn = Drawn(((4,), "float32"), ((4,), "float32"), ((4,), "float32"))
        drawn.sources[0] = Source(0, "m", "constant")
        if not chosen:
            return drawn.program(drawn.step("mul", (1,), (4,), number=1))
        less = drawn.step("sub", (0,), (4,), number=1.0)
        drawn.tensors.append(Described((4,), "bool"))
        drawn.steps.append(Step("gt", (0, less), (4,), ()))
        made = drawn.step("where", (4, 1, 2), (4,))
        drawn.tensors[made] = Described((4,), "float32")
        return drawn.program(made)

    claim = pair(program(False), 1, program(True))
    known = Known(None, "m")
    given = ((0, known), *(g for g in claim.given[0] if g[0] != 0))
    claim = replace(claim, constants=((0, known),), given=(given,), relations=((),))
    assert not proved(claim)


def test_real_numbers_are_not_given_as_whole_ones() -> None:
    one = Drawn(((4,), "float32"))
    single = one.program(one.step("mul", (0,), (4,), number=1.0))
    for dtype, fine in (("float32", True), ("int64", False), ("bool", False)):
        drawn = Drawn(((4,), dtype))
        made = 0 if fine else drawn.step("cast", (0,), (4,), dtype="float32", was=dtype)
        if not fine:
            drawn.tensors[made] = Described((4,), "float32")
        assert proved(pair(drawn.program(made), 1, single)) is fine


@pytest.mark.parametrize(("value", "number"), [(2**53, 2.0**53), (2**53 + 1, None), (7, 7.0)])
def test_whole_numbers_that_no_float_is_stay_bytes(value: int, number: float | None) -> None:
    assert constant_of(np.full(3, value, dtype=np.int64)).number == number


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


@pytest.mark.torch
def test_ties_are_an_assumption_by_name() -> None:
    """The first greatest of PyTorch's `max` and that of `topk` may be different ones of equal elements."""
    torch = pytest.importorskip("torch")
    import shardproof

    x = torch.tensor([[4.0, 1.0, 2.0], [0.0, 9.0, 3.0]])

    def one() -> object:
        return lambda x: x.topk(2, dim=-1)[0], (x,)

    def many(rank: int, ranks: int) -> object:
        return lambda x: x.topk(2, dim=-1)[0], (x.chunk(ranks)[rank].clone(),)

    found = shardproof.equal(one, many, ranks=2)
    assert found.answer == "equal" and "no-ties" in found.assumptions
