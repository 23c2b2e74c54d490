"""Movements of a plan are charged to the budget of the check before they are derived."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.formal.planning.plan import plan_graph
from shardproof.models.cost.limits import LARGE, SMALL, Budget
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan import plan as checker
from shardproof.verify.plan.plan import check_plan


@pytest.fixture(scope="module")
def data() -> bytes:
    planned = plan_graph(build("bert-tiny", batch=1), load_machine("localhost:8"))
    assert planned.plan is not None and planned.plan.communication
    return write_plan(None, planned.plan)


def test_the_budget_is_exact_to_one_cell(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[tuple[int, int]] = []
    charge = checker._charge

    def spy(place: str, size: int, spent: int, budget: Budget) -> None:
        charged.append((size, spent))
        charge(place, size, spent, budget)

    monkeypatch.setattr(checker, "_charge", spy)
    check_plan(data, budget=SMALL)
    most, all_ = max(size for size, _ in charged), charged[-1][1]
    assert most > 0 and all_ == sum(size + checker.HELD * 8 for size, _ in charged)
    check_plan(data, budget=replace(SMALL, cells=all_, cells_at_once=most))
    for smaller in (replace(SMALL, cells=all_ - 1), replace(SMALL, cells_at_once=most - 1)):
        with pytest.raises(
            ContainerError, match=r"movement \d+ of '.*cells.*'shardproof check --large' takes its time"
        ):
            check_plan(data, budget=smaller)


def test_nothing_is_derived_beyond_the_budget(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "derive", lambda *_: pytest.fail("derived before it was charged"))
    with pytest.raises(ContainerError, match="--large"):
        check_plan(data, budget=replace(SMALL, cells=0))


def test_what_is_planned_is_more_than_what_is_checked_unasked() -> None:
    assert SMALL.cells < LARGE.cells and SMALL.cells_at_once < LARGE.cells_at_once


def test_beyond_large_there_is_no_advice_to_take_longer(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "LARGE", replace(LARGE, cells=0))
    with pytest.raises(ContainerError, match="too many to be checked, at most 0$"):
        check_plan(data, budget=LARGE)
