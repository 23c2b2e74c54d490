"""Communication from interval tables alone: the same class and totals as the steps, and fast enough to do for every
operator.

Tables of a whole space cost milliseconds for one placement, and the steps of an all-gather between 4,096 ranks are 16
million transfers; so one placement has a table of its own (`operand_layout`), steps are listed only when somebody wants
them, and class and totals come from closed forms.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.backends.transport.received import is_even, receives
from shardproof.backends.transport.virtual import loads
from shardproof.models.communication.choices import single
from shardproof.models.communication.resharding import CommunicationPlan, Reduction, analyse, derive
from shardproof.models.layout.layout import Layout, layout_set, operand_layout
from shardproof.models.layout.placement import Placement, matrices, space
from shardproof.models.program.index import Access, Affine, Axis, Combine
from shardproof.verify.plan.communication import check_bytes, check_delivers

HIERARCHIES = [(4,), (2, 4), (2, 2, 2), (3, 2), (6,)]


def random_layout(
    rng: np.random.Generator, hierarchy: tuple[int, ...], shape: tuple[int, ...], partial: bool
) -> tuple[Layout, Layout]:
    """A layout of a tensor by both ways: a written one, or a read with shifts, strides and windows."""
    axes = [Axis(f"i{k}", n) for k, n in enumerate(shape)]
    if partial:
        axes.append(Axis("r", int(rng.integers(1, 9)), [Combine.SUM, Combine.MAX][rng.integers(2)]))
    where = matrices([a.extent for a in axes], [True] * len(axes), hierarchy, space("complete,uneven"))
    placement = Placement(
        tuple(a.name for a in axes), tuple(tuple(int(x) for x in row) for row in where[rng.integers(len(where))])
    )
    index = []
    for k in range(len(shape)):
        i = Affine.axis(f"i{k}", 1 if partial else int(rng.integers(1, 3)))
        if not partial and rng.integers(3) == 0:
            i = i.plus(axes[int(rng.integers(len(axes)))].name)
        index.append(
            Affine.everything()
            if not partial and rng.integers(9) == 0
            else i.shift(0 if partial else int(rng.integers(-2, 3)))
        )
    access, opened = Access("t", tuple(index)), ["r"] if partial else []
    fast = operand_layout(access, shape, axes, placement.matrix, hierarchy, opened)
    return fast, layout_set(access, shape, single(tuple(axes), placement, hierarchy), opened).layout(0)


@settings(max_examples=150)
@given(st.sampled_from(HIERARCHIES), st.integers(0, 10**6))
def test_tables_of_one_placement(hierarchy: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(0, 4)))
    for partial in (False, True):
        fast, slow = random_layout(rng, hierarchy, shape, partial)
        assert fast == slow


@settings(max_examples=150)
@given(st.sampled_from(HIERARCHIES), st.integers(0, 10**6))
def test_class_and_totals_without_steps(hierarchy: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(0, 3)))
    source, target = random_layout(rng, hierarchy, shape, True)[0], random_layout(rng, hierarchy, shape, False)[0]
    plan = derive(source, target)
    short = analyse(source, target)
    assert (short.collective, short.loads, short.phases) == (plan.collective(), plan.loads(), plan.phases())
    assert check_delivers(plan).verdict.value == "proved"
    assert check_bytes(plan, short.loads, short.phases).verdict.value == "proved"
    moved = loads(receives(plan), hierarchy)
    even = all(is_even(s, group) for s in plan.steps if isinstance(s, Reduction) for group in s.groups(hierarchy))
    assert all(n <= p for n, p in zip(moved, plan.loads())) and (moved == plan.loads() or not even)


def test_steps_are_listed_on_demand() -> None:
    """An all-gather between 4,096 ranks is analysed at once; its 16 million transfers are never made."""
    axes = (Axis("i", 4096),)
    split = operand_layout(Access("t", (Affine.axis("i"),)), (4096,), axes, ((4096,), (1,)), (4096,))
    whole = operand_layout(Access("t", (Affine.everything(),)), (4096,), axes, ((4096,), (1,)), (4096,))
    plan = derive(split, whole)
    assert "steps" not in vars(plan)
    assert analyse(split, whole).loads == (4095,) and analyse(split, whole).collective == "all-gather"
    again = CommunicationPlan(whole, split, ())
    assert derive(whole, split).steps == again.steps == ()
