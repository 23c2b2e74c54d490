"""The checker of plans on true plans, and on plans made by a broken `models/`.

Tables are built again by the same code that planned, so a mistake in that code makes a plan that fits its own
certificate.  The tests below break one function of `models/` at a time, for planner and checker alike, and the
independent recomputation must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.selection.solve import solve
from shardproof.models.communication import choices as models_choices
from shardproof.models.communication.choices import Choices
from shardproof.models.communication.reduction_programs import Chooser
from shardproof.models.communication.resharding import CommunicationPlan
from shardproof.models.communication.transfers import Exchange
from shardproof.models.cost import cost, memory
from shardproof.models.cost import structures as models_structures
from shardproof.models.cost.selection import build
from shardproof.models.layout.layout import Layout
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, Status, Verdict
from shardproof.models.problem.selection_problem import Ints
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import Plan, write_plan
from shardproof.proofs.selection.certificates import SelectionCertificate
from shardproof.verify.plan import effort
from shardproof.verify.plan import plan as verify_plan
from shardproof.verify.plan.boxes import DeviceBoxes
from shardproof.verify.plan.plan import PlanCheck, check_plan
from shardproof.verify.verdict import CheckResult

KINDS = ["Parts", "Space", "Optimal", "Entries", "Delivers", "Bytes"]


def planned(model: str, machine: str, where: str = "complete", limit: int | None = None, **options: int) -> Plan:
    found = plan_graph(zoo(model, **options), load_machine(machine), space(where), limit)
    assert found.plan is not None
    return found.plan


def result(checked: PlanCheck, kind: str) -> CheckResult:
    (found,) = [r for r in checked.results if r.kind == kind]
    return found


@pytest.mark.parametrize(
    ("model", "machine", "where", "limit"),
    [
        ("mlp-unity", "cloud-a100:2x4", "complete", None),
        ("conv-stack", "cloud-a100:2x3", "complete,uneven", None),
        ("mlp-uneven", "cloud-a100:2x6", "two-per-level,uneven", None),
        ("attention", "cloud-a100:2x4", "complete", 1 << 20),
        ("bert-tiny", "summit:2x2x3", "complete,uneven", None),
        ("mlp-unity-training", "localhost:2", "one-per-level", None),
        ("transformer-layer", "cloud-a100:1x4", "complete", 4 << 30),
        ("linear-training", "localhost:1", "complete", None),
    ],
)
def test_true_plans_are_proved(model: str, machine: str, where: str, limit: int | None) -> None:
    plan = planned(model, machine, where, limit)
    checked = check_plan(write_plan(None, plan), samples=200)
    assert [r.kind for r in checked.results] == KINDS
    assert {r.verdict for r in checked.results} == {Verdict.PROVED}, [r.reason for r in checked.results]
    optimal = result(checked, "Optimal")
    assert (
        optimal.cost == optimal.lower_bound == checked.planning.problem.cost_of(checked.planning.solution(plan.choices))
    )
    assert optimal.space == where
    assert {"no-overlap", "class-order"} <= set(optimal.assumptions)
    assert checked.exit_code == 0


def test_bytes_and_files_are_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "plan.spz"
    data = write_plan(path, planned("mlp-unity", "cloud-a100:2x4"))
    seen: list[tuple[int, int]] = []
    a, b = check_plan(data, notify=lambda done, total: seen.append((done, total))), check_plan(path)
    assert (a.identity, a.results) == (b.identity, b.results)
    assert len(a.identity) == 64
    assert (1000, 1000) in seen and seen[-1][0] == seen[-1][1]  # draws, then arrays
    assert check_plan(write_plan(None, planned("mlp-unity", "cloud-a100:2x4"))).identity == a.identity
    with pytest.raises(ContainerError):
        check_plan(tmp_path / "no such file")


@pytest.mark.timeout(150)
def test_bert_on_4x8_is_checked() -> None:
    """Three layers: a first, a last and one between, all structures of 24, which README plans and checks."""
    data = write_plan(None, planned("bert-large", "cloud-a100:4x8", batch=8, layers=3))
    assert check_plan(data).verdict is Verdict.PROVED


def test_a_proved_infeasible_plan() -> None:
    """No choices and no movements belong to it; a witness may be laid open."""
    graph, machine, limit = zoo("mlp-unity"), load_machine("cloud-a100:2x2"), 1000
    planning = build(graph, machine, space("complete"), limit)
    answer = solve(planning.problem)
    assert answer.status is Status.INFEASIBLE
    assert answer.certificate is not None
    plan = Plan(graph, machine, "complete", limit, Choices((), ()), (), answer.certificate, ())
    checked = check_plan(write_plan(None, plan), samples=50)
    assert [r.kind for r in checked.results] == ["Parts", "Space", "Infeasible", "Entries", "Delivers", "Bytes"]
    assert checked.verdict is Verdict.PROVED, [r.reason for r in checked.results]
    other = planned("mlp-unity", "cloud-a100:2x2")
    assert check_plan(write_plan(None, replace(plan, choices=other.choices)), samples=5).verdict is Verdict.REFUTED
    assert (
        check_plan(write_plan(None, replace(plan, communication=other.communication)), samples=5).verdict
        is Verdict.REFUTED
    )
    claim = answer.certificate.claim
    assert isinstance(claim, Infeasible)
    if claim.witness is not None:
        choices = planning.choices(claim.witness)
        shown = check_plan(write_plan(None, replace(plan, choices=choices)), samples=5)
        assert result(shown, "Parts").verdict is Verdict.PROVED
        assert result(shown, "Bytes").verdict is Verdict.REFUTED  # its movements must be listed too


def test_a_bare_lower_bound() -> None:
    plan = planned("mlp-unity", "cloud-a100:2x2")
    certificate = plan.certificate
    assert isinstance(certificate.claim, Optimal)
    bound = SelectionCertificate(certificate.problem_sha256, LowerBound(certificate.claim.cost), certificate.proof)
    bare = replace(plan, choices=Choices((), ()), communication=(), certificate=bound)
    checked = check_plan(write_plan(None, bare), samples=5)
    assert result(checked, "Parts").verdict is Verdict.PROVED
    assert result(checked, "LowerBound").verdict is not Verdict.REFUTED


# One function of models/ broken at a time, for planner and checker alike.

Break = Callable[[pytest.MonkeyPatch], None]


def later_operators(patch: pytest.MonkeyPatch) -> None:
    true = cost.operator_costs

    def wrong(*args: object) -> cost.OperatorCosts:
        costs = true(*args)  # type: ignore[arg-type]
        return replace(costs, times=costs.times + 1)

    patch.setattr(cost, "operator_costs", wrong)


def cheaper_edges(patch: pytest.MonkeyPatch) -> None:
    true = cost.edge_times
    patch.setattr(cost, "edge_times", lambda *args: true(*args) // 2)


def smaller_amounts(patch: pytest.MonkeyPatch) -> None:
    true = memory.usages
    patch.setattr(
        memory, "usages", lambda *args, **named: tuple(replace(u, amount=u.amount // 2) for u in true(*args, **named))
    )


def forgotten_usage(patch: pytest.MonkeyPatch) -> None:
    true = memory.usages
    patch.setattr(memory, "usages", lambda *args, **named: true(*args, **named)[1:])


def fewer_placements(patch: pytest.MonkeyPatch) -> None:
    true = models_structures.matrices
    patch.setattr(
        models_structures, "matrices", lambda *args: true(*args)[:-1] if len(true(*args)) > 1 else true(*args)
    )


def foreign_placements(patch: pytest.MonkeyPatch) -> None:
    """Placements that leave devices out would be cheaper."""
    true = models_structures.matrices

    def wrong(*args: object) -> Ints:
        found = true(*args).copy()  # type: ignore[arg-type]
        found[0] = 1
        return found

    patch.setattr(models_structures, "matrices", wrong)


def forgotten_transfer(patch: pytest.MonkeyPatch) -> None:
    true = verify_plan.derive

    def wrong(a: Layout, b: Layout, chooser: Chooser | None) -> CommunicationPlan:
        plan = true(a, b, chooser)
        return replace(
            plan,
            steps=tuple(replace(s, transfers=s.transfers[1:]) if isinstance(s, Exchange) else s for s in plan.steps),
        )

    patch.setattr(verify_plan, "derive", wrong)


def forgotten_reduction(patch: pytest.MonkeyPatch) -> None:
    true = verify_plan.derive
    patch.setattr(
        verify_plan,
        "derive",
        lambda a, b, _: replace(true(a, b), steps=tuple(s for s in true(a, b).steps if isinstance(s, Exchange))),
    )


def replica_for_partial(patch: pytest.MonkeyPatch) -> None:
    """The executed layouts forget that sums are open."""
    true = models_choices.output_layout
    patch.setattr(verify_plan, "output_layout", lambda *args: replace(true(*args), open=(), combine=None))


def shifted_boxes(patch: pytest.MonkeyPatch) -> None:
    true = models_choices.input_layout

    def wrong(*args: object) -> Layout:
        layout = true(*args)  # type: ignore[arg-type]
        return replace(layout, boxes=np.roll(layout.boxes, 1, axis=0))

    patch.setattr(verify_plan, "input_layout", wrong)


@pytest.mark.parametrize(
    ("break_", "kind"),
    [
        (later_operators, "Entries"),
        (cheaper_edges, "Entries"),
        (smaller_amounts, "Entries"),
        (forgotten_usage, "Parts"),
        (fewer_placements, "Space"),
        (foreign_placements, "Space"),
        (forgotten_transfer, "Delivers"),
        (forgotten_reduction, "Delivers"),
        (replica_for_partial, "Delivers"),
        (shifted_boxes, "Delivers"),
    ],
)
def test_mistakes_of_the_builders_are_refuted(break_: Break, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_(monkeypatch)
    graph, machine = zoo("mlp-8192", layers=3, batch=8), load_machine("cloud-a100:2x4")
    found = plan_graph(graph, machine, space("complete"), 1 << 30)
    assert found.plan is not None
    checked = check_plan(write_plan(None, found.plan), samples=100)
    assert result(checked, "Optimal").verdict is Verdict.PROVED  # the certificate fits the wrong tables
    wrong = result(checked, kind)
    assert wrong.verdict is Verdict.REFUTED
    assert wrong.reason
    assert checked.exit_code == 10


def test_too_large_plans_are_refused_by_name() -> None:
    plan = planned("mlp-unity", "cloud-a100:2x4")
    with pytest.raises(ContainerError, match="8192 devices, at most 4096"):
        check_plan(write_plan(None, replace(plan, machine=load_machine("cloud-a100:1024x8"))))
    with pytest.raises(ContainerError, match="unknown space 'all'"):
        check_plan(write_plan(None, replace(plan, space="all")))


def test_movements_that_are_too_finely_cut_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_plan(None, planned("mlp-8192", "cloud-a100:2x4", "complete", 1 << 30, layers=3, batch=8))
    monkeypatch.setattr(effort, "LARGE", replace(effort.LARGE, cells_at_once=5))
    with pytest.raises(
        ContainerError, match=r"movement \d+ of '.*' to .*: its boxes have \d+ cells, too many to be checked, at most 5"
    ):
        check_plan(data)


def test_cells_of_both_ends_of_a_movement_are_bounded() -> None:
    """Steps are derived from lists of both: three whole copies count where four devices want them, not where one
    wants one cell.
    """
    quarters = tuple(((k, k + 1),) for k in range(4))
    whole, swapped = (((0, 4),),) * 3, (((0, 0),),) * 3
    many = DeviceBoxes.of((4,), (4,), (*whole, quarters[0]))
    few = DeviceBoxes.of((4,), (4,), (*swapped, ((1, 3),)))
    assert verify_plan.cells(many, few) == 3 + 1
    assert verify_plan.cells(few, many) == 3 * 3 + 1
    assert verify_plan.cells(many, DeviceBoxes.of((4,), (4,), (*swapped, quarters[0]))) == 0
