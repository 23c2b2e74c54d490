"""Movements of a plan are charged to the budget of the check before they are derived."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost.limits import LARGE, SMALL
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.budget import Budget
from shardproof.verify.plan import effort
from shardproof.verify.plan import plan as checker
from shardproof.verify.plan.plan import check_plan


@pytest.fixture(scope="module")
def data() -> bytes:
    planned = plan_graph(build("bert-tiny", batch=1), load_machine("localhost:8"))
    assert planned.plan is not None and planned.plan.communication
    return write_plan(None, planned.plan)


def test_every_movement_is_charged_by_its_grid(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[tuple[int, int]] = []
    charge = effort.charge_steps

    def spy(place: str, cells: int, devices: int, budget: Budget) -> None:
        before = budget.work
        charge(place, cells, devices, budget)
        charged.append((cells, before - budget.work))

    monkeypatch.setattr(checker, "charge_steps", spy)
    check_plan(data, budget=Budget.without_large())
    assert charged and all(cost == effort.GRID * (cells + effort.HELD * 8) for cells, cost in charged)
    most = max(cells for cells, _ in charged)
    monkeypatch.setattr(effort, "SMALL", replace(SMALL, cells_at_once=most))
    check_plan(data, budget=Budget.without_large())
    monkeypatch.setattr(effort, "SMALL", replace(SMALL, cells_at_once=most - 1))
    with pytest.raises(ContainerError, match=r"movement \d+ of '.*cells.*'shardproof check --large' takes its time"):
        check_plan(data, budget=Budget.without_large())


def test_a_budget_is_exact_to_one_cell(data: bytes) -> None:
    """What a check takes is the same in every run; with one cell less it ends, and says how to go on."""
    spent = set()
    for _ in range(2):
        budget = Budget.without_large()
        check_plan(data, cells=1000, budget=budget)
        spent.add(Budget.without_large().work - budget.work)
    (work,) = spent
    check_plan(data, cells=1000, budget=Budget(work, 1 << 27, None, False))
    with pytest.raises(ContainerError, match="1 .*more steps|more steps.*check --large"):
        check_plan(data, cells=1000, budget=Budget(work - 1, 1 << 27, None, False))


def test_nothing_is_derived_beyond_the_budget(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "derive", lambda *_: pytest.fail("derived before it was charged"))
    monkeypatch.setattr(effort, "GRID", 1 << 60)
    with pytest.raises(ContainerError, match="--large"):
        check_plan(data, budget=Budget.without_large())


def test_what_is_planned_is_more_than_what_is_checked_unasked() -> None:
    assert SMALL.cells_at_once < LARGE.cells_at_once and Budget.without_large().work < Budget.with_large().work


def test_beyond_large_there_is_no_advice_to_take_longer(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "LARGE", replace(LARGE, cells_at_once=0))
    with pytest.raises(ContainerError, match="too many to be checked, at most 0$"):
        check_plan(data, budget=Budget.with_large())
