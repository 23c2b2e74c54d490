"""Forgeries of selection certificates, plans, reduction programs and placements: none that is accepted may be false.

All of them, with the counts by kind of each share:  python -m pytest tests/test_forgeries.py -m slow -s
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import forgeries_plan
import forgeries_reduction
import forgeries_selection
import pytest
from forgeries import Tally

JUDGES: dict[str, tuple[Callable[[range, Tally], None], int, int]] = {
    "selection": (forgeries_selection.judge, 1500, 45_000),
    "reduction": (forgeries_reduction.judge, 500, 15_000),
    "plan": (forgeries_plan.judge, 60, 10_000),
}
"""What draws and judges forgeries of a kind of file; how many in every run, and how many in the slow one."""


@pytest.mark.parametrize("kind", JUDGES)
def test_no_false_forgery_is_accepted(kind: str) -> None:
    judge, some, _ = JUDGES[kind]
    tally = Tally()
    judge(range(some), tally)
    assert tally.total == some and not tally.false, tally.examples
    assert sum(tally.true.values()) > some // 50, "the oracle was hardly asked"


def shares(part: int = 5_000) -> Iterator[tuple[str, int, int]]:
    """(kind, first seed, the one behind the last) of pieces of all forgeries, so that processes can share them."""
    for kind, (_, _, many) in JUDGES.items():
        yield from ((kind, a, b) for a, b in pairwise((*range(0, many, part), many)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "first", "end"), list(shares()))
def test_no_false_forgery_is_accepted_of_70_000(kind: str, first: int, end: int) -> None:
    tally = Tally()
    JUDGES[kind][0](range(first, end), tally)
    print("\n" + tally.table())
    assert tally.total == end - first and not tally.false, tally.examples


def test_the_shares_are_70_000() -> None:
    assert sum(end - first for _, first, end in shares()) == 70_000


def test_the_oracles_say_no() -> None:
    """A tally of lies: true claims made false are found by the oracles."""
    problem = {
        "vertices": [{"cost": [3, 1]}, {"cost": [0, 5]}], "tables": [[[0, 9], [2, 0]]], "edges": [{"u": 0, "v": 1, "table": 0, "rows": None, "cols": None}],
        "usages": [{"vertex": 0, "start": 0, "end": 1, "amount": [4, 1]}], "limit": 9, "constant": 0,
    }  # fmt: skip
    from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, WithinGap

    assert forgeries_selection.true(problem, Optimal((0, 0), 3)) and forgeries_selection.true(
        problem, Optimal((1, 0), 3)
    )
    for lie in (
        Optimal((0, 0), 2),
        Optimal((1, 1), 6),
        WithinGap((0, 0), 3, 4),
        LowerBound(4),
        Infeasible((), (), None, None),
        Infeasible((0,), (0,), 4, (0, 0)),
    ):
        assert not forgeries_selection.true(problem, lie)
    tight = {**problem, "limit": 0}
    assert forgeries_selection.true(tight, Infeasible((0,), (0,), 1, (1, 0)))
    for lie in (
        Infeasible((5,), (0,), 1, (1, 0)),
        Infeasible((0,), (0,), 2, (1, 0)),
        Infeasible((0,), (7,), None, None),
    ):
        assert not forgeries_selection.true(tight, lie)
