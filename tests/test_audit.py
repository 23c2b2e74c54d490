"""Audits against enumeration; the certificate that an audit hands out proves the user's own solution to the checker."""

from __future__ import annotations

from fractions import Fraction

import pytest
import selection_cases as cases
from random_problems import shared_tables

from shardproof.formal.explain.audit import Outcome, audit, audit_problem, decide, render_audit
from shardproof.formal.explain.compare import compare
from shardproof.formal.explain.terms import PlainNames
from shardproof.formal.plans.report import amount, label, pattern, table_text
from shardproof.formal.plans.strategy import ChoiceList, parse_strategy, strategy_of
from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Optimal, Status, Verdict
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.sources import zoo
from shardproof.verify.selection.certificate import check_selection


@pytest.mark.parametrize("seed", range(60))
def test_random_problems_against_enumeration(seed: int) -> None:
    problem = shared_tables(seed, rows=False)
    best = cases.brute(problem)
    fixed = ChoiceList(tuple(0 if v % 2 == seed % 2 else None for v in range(len(problem.vertices))))
    domains = [[0] if c is not None else d for c, d in zip(fixed.choices, cases.whole(problem), strict=True)]
    inside = cases.brute(problem, domains)
    report = audit_problem(problem, fixed)
    if best is None:
        assert report.outcome is Outcome.INFEASIBLE and report.exit_code == 20
        return
    if inside is None:
        assert report.outcome is Outcome.REFUTED and report.completed.cost is None and report.best.cost == best[0]
        return
    assert report.completion_certificate is not None
    assert check_selection(report.restricted, report.completion_certificate).verdict is Verdict.PROVED
    assert report.completed.cost == inside[0] and report.best.cost == best[0]
    assert report.outcome is (Outcome.OPTIMAL if inside[0] == best[0] else Outcome.REFUTED)
    assert report.certificate is not None and check_selection(problem, report.certificate).verdict is Verdict.PROVED
    if report.outcome is Outcome.OPTIMAL:
        claim = report.certificate.claim
        assert isinstance(claim, Optimal) and all(
            c in (None, a) for c, a in zip(fixed.choices, claim.solution, strict=True)
        )
        assert report.comparison is None
    else:
        assert report.comparison is not None
        assert sum(r.difference for r in report.comparison.rows) == report.comparison.difference == best[0] - inside[0]


@pytest.mark.parametrize("seed", range(40))
def test_rows_of_a_comparison_add_up(seed: int) -> None:
    problem = shared_tables(seed, forbidden=0.0, rows=False, n=5)
    x, y = tuple(0 for _ in problem.vertices), tuple(v.cost.size - 1 for v in problem.vertices)
    c = compare(problem, PlainNames(problem), x, y)
    assert sum(r.difference for r in c.rows) == problem.cost_of(y) - problem.cost_of(x)


def _answer(status: Status, cost: int | None, lower: int | None) -> Answer:
    return Answer(status, None, lower, cost, None if cost is None else (0,), 0.0)


@pytest.mark.parametrize(
    ("inner", "outer", "gap", "outcome"),
    [
        ((Status.OPTIMAL, 10, 10), (Status.OPTIMAL, 10, 10), 0, Outcome.OPTIMAL),
        (
            (Status.FEASIBLE, 10, 7),
            (Status.FEASIBLE, 11, 10),
            0,
            Outcome.OPTIMAL,
        ),  # the completion is better than what the search found
        ((Status.OPTIMAL, 10, 10), (Status.FEASIBLE, 10, 9), 0, Outcome.UNDECIDED),
        ((Status.OPTIMAL, 10, 10), (Status.FEASIBLE, 10, 9), Fraction(1, 10), Outcome.WITHIN_GAP),
        ((Status.OPTIMAL, 10, 10), (Status.FEASIBLE, 9, 8), 0, Outcome.REFUTED),
        (
            (Status.OPTIMAL, 100, 100),
            (Status.FEASIBLE, 99, 80),
            Fraction(1, 20),
            Outcome.UNDECIDED,
        ),  # better by 1 %, perhaps by 20 %
        ((Status.OPTIMAL, 100, 100), (Status.FEASIBLE, 90, 80), Fraction(1, 20), Outcome.REFUTED),
        (
            (Status.FEASIBLE, 10, 8),
            (Status.OPTIMAL, 9, 9),
            0,
            Outcome.UNDECIDED,
        ),  # another completion may cost 8, but then 9 were wrong: see next
        ((Status.FEASIBLE, 10, 9), (Status.FEASIBLE, 8, 5), 0, Outcome.REFUTED),
        ((Status.UNKNOWN, None, None), (Status.OPTIMAL, 8, 8), 0, Outcome.UNDECIDED),
        ((Status.UNKNOWN, None, 9), (Status.OPTIMAL, 8, 8), 0, Outcome.REFUTED),
        ((Status.INFEASIBLE, None, None), (Status.FEASIBLE, 8, 1), 0, Outcome.REFUTED),
        ((Status.INFEASIBLE, None, None), (Status.UNKNOWN, None, 1), 0, Outcome.UNDECIDED),
        ((Status.INFEASIBLE, None, None), (Status.INFEASIBLE, None, None), 0, Outcome.INFEASIBLE),
    ],
)
def test_outcomes(
    inner: tuple[Status, int, int], outer: tuple[Status, int, int], gap: Fraction, outcome: Outcome
) -> None:
    assert decide(_answer(*inner), _answer(*outer), Fraction(gap)) is outcome
    assert (
        outcome.exit_code
        == {"optimal": 0, "within-gap": 0, "refuted": 10, "undecided": 5, "infeasible": 20}[outcome.value]
    )


@pytest.fixture(scope="module")
def planning() -> Planning:
    return build(zoo.build("bert-tiny"), load_machine("cloud-a100:2x4"), space("complete"))


def test_the_solvers_own_plan_is_optimal_and_partial_strategies_are_completed(planning: Planning) -> None:
    best = solve(planning.problem)
    assert best.solution is not None
    own = audit(planning, strategy_of(planning, best.solution))
    assert own.outcome is Outcome.OPTIMAL and own.free == () and own.comparison is None
    assert own.certificate is not None and check_selection(planning.problem, own.certificate).verdict is Verdict.PROVED
    some = audit(planning, parse_strategy("{}"))
    assert some.outcome is Outcome.OPTIMAL and len(some.free) == len(planning.decisions)
    assert "left to the solver (best completion, proved)" in render_audit(some)


def test_a_bad_strategy_is_refuted_operator_by_operator(planning: Planning) -> None:
    report = audit(planning, parse_strategy('{"layer*": {}}'))
    assert report.outcome is Outcome.REFUTED and report.comparison is not None
    assert report.comparison.difference == sum(r.difference for r in report.comparison.rows) < 0
    assert any(r.count == 2 for r in report.comparison.rows)  # both layers in one row
    text = render_audit(report, "all replicated")
    assert "refuted: all replicated costs" in text and "layer{0..1}." in text and "\x1b" not in text
    data = report.to_json()
    assert data["outcome"] == "refuted" and data["strategy_cost"] == report.completed.cost


def test_numbers_in_names() -> None:
    assert pattern("layer12.fc1") == "layer*.fc*"
    assert label(["a0.b1", "a2.b1", "a3.b1"]) == "a{0,2..3}.b1"
    assert label([f"a{i}" for i in (1, 3, 5, 7)]) == "a{1,3,5,7}"
    assert label([f"a{i}" for i in range(1, 15, 2)]) == "a{7 of 1..13}"
    assert label([f"h.{i}.q" for i in range(1, 15, 2)]) == "h.{7 of 1..13}.q"
    assert label(["h.0/w", "h.1/w"]) == "h.0..1/w" and label(["x#2", "x#3"]) == "x#{2..3}"


def test_amounts_and_tables() -> None:
    seconds = SelectionProblem("p", (), (), (), scale=10**12, unit_name="s")
    assert [amount(v, seconds, signed=True) for v in (0, 5, -1_500, 2_000_000_000_000)] == [
        "0",
        "+5 ps",
        "-1.5 ns",
        "+2 s",
    ]
    assert (
        amount(1234567, SelectionProblem("p", (), (), ())) == "1,234,567 units" and amount(None, seconds) == "unknown"
    )
    assert table_text("", ["a", "b"], [["x[0]", "1"], ["[bold]", "22"]], (1,)).splitlines() == [
        "a        b",
        "x[0]     1",
        "[bold]  22",
    ]
    assert "\x1b[" in table_text("t", ["a"], [["x"]], color=True)
