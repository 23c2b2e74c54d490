"""Explanations: parts add up to the plan's cost, bounds on prices enclose exact prices, what-ifs equal enumeration."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import selection_cases as cases
from random_problems import shared_tables

from shardproof.formal.explain.balance import uneven
from shardproof.formal.explain.explain import (
    Neighbourhood,
    best_with,
    deviation_bounds,
    explain,
    render_deviation,
    render_explanation,
)
from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.strategy import StrategyError, parse_config
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.options.limits import Limits
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.program.attention import role
from shardproof.models.sources import zoo
from shardproof.models.sources.patterns.recognise import recognise
from shardproof.proofs.selection.certificates import Dual
from shardproof.verify.selection.certificate import check_selection

MODELS = [
    ("mlp-uneven", "cloud-a100:2x3", "complete,uneven"),
    ("bert-tiny", "cloud-a100:2x4", "complete"),
    ("conv-stack", "cloud-a100:2x2", "complete"),
    ("mlp-unity-training", "2x2x2", "two-per-level"),
]


def planned(name: str, machine: str, where: str) -> Planning:
    sizes = (
        load_machine(machine)
        if machine.count("x") < 2
        else load_machine("summit").resized(tuple(int(s) for s in machine.split("x")))
    )
    return build(zoo.build(name), sizes, space(where))


@pytest.mark.parametrize(("name", "machine", "where"), MODELS)
def test_parts_add_up(name: str, machine: str, where: str) -> None:
    planning = planned(name, machine, where)
    terms = PlanTerms(planning)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = tuple(int(rng.integers(planning.problem.domain_size(v))) for v in range(len(planning.decisions)))
        found = explain(planning, x)
        assert sum(o.time for o in found.operators) == found.cost == planning.problem.cost_of(x)
        assert terms.cost_at(x, planning.machine) == found.cost
        for e in range(len(planning.routes)):
            parts = terms.edge_parts(e, x)
            source, target = planning.layouts_of(e, x)
            assert (
                parts.summing >= 0
                and parts.moving >= 0
                and parts.summing + parts.moving == planning.problem.edge_cost(e, x)
            )
            assert (parts.summing > 0) == bool(source.open) and not target.open
            assert (terms.communication_of(e, x) == "none") == (parts.summing + parts.moving == 0)


@pytest.mark.parametrize("seed", range(40))
def test_bounds_enclose_the_exact_price(seed: int) -> None:
    problem = shared_tables(seed, rows=False, n=5)
    answer = solve(problem, limits=Limits(joint=1))  # never eliminates: the root is a dual record
    if answer.solution is None or answer.cost is None:
        return
    lower, least = deviation_bounds(problem, answer.solution, answer.certificate)
    assert lower == answer.lower_bound
    for v in range(len(problem.vertices)):
        rest = [d if w != v else [a for a in d if a != answer.solution[v]] for w, d in enumerate(cases.whole(problem))]
        exact = cases.brute(problem, rest) if rest[v] else None
        most, other = Neighbourhood.of(problem, answer.solution).local_alternative(v)
        if exact is None:
            assert most is None
            continue
        price = exact[0] - answer.cost
        assert least[v] <= price
        if most is not None and other is not None:
            assert (
                price <= most == problem.cost_of((*answer.solution[:v], other, *answer.solution[v + 1 :])) - answer.cost
            )


def test_some_certified_price_is_positive() -> None:
    found = 0
    for seed in range(40):
        problem = shared_tables(seed, rows=False, n=5)
        answer = solve(problem, limits=Limits(joint=1))
        if (
            answer.solution is not None
            and answer.certificate is not None
            and isinstance(answer.certificate.proof, Dual)
        ):
            found += sum(p > 0 for p in deviation_bounds(problem, answer.solution, answer.certificate)[1])
    assert found > 20


def test_a_certificate_of_another_problem_bounds_nothing() -> None:
    problem, other = shared_tables(3, rows=False, forbidden=0), shared_tables(4, rows=False, forbidden=0)
    assert deviation_bounds(problem, tuple(0 for _ in problem.vertices), solve(other).certificate)[0] is None


def test_local_alternatives_keep_the_limit() -> None:
    from shardproof.models.problem.selection_problem import Usage, Vertex

    p = SelectionProblem("p", (Vertex("a", np.array([0, 1, 5])),), (), (), (Usage(0, 0, 1, np.array([0, 9, 1])),), 5)
    assert Neighbourhood.of(p, (0,)).local_alternative(0) == (5, 2)


@pytest.mark.parametrize("seed", range(30))
def test_local_alternatives_are_those_of_trying_every_choice(seed: int) -> None:
    problem = shared_tables(seed, rows=True, n=6)
    x = solve(problem).solution
    if x is None:
        return
    near = Neighbourhood.of(problem, x)
    for v, vertex in enumerate(problem.vertices):
        others = [(*x[:v], a, *x[v + 1 :]) for a in range(len(vertex.cost)) if a != x[v]]
        costs = [problem.cost_of(y) for y in others if problem.is_feasible(y)]
        assert near.local_alternative(v)[0] == (min(costs) - problem.cost_of(x) if costs else None)


@pytest.fixture(scope="module")
def planning() -> Planning:
    return build(zoo.build("mlp-unity-training"), load_machine("cloud-a100:1x2"), space("complete"))


def test_forced_choice_is_solved_again(planning: Planning) -> None:
    answer = solve(planning.problem)
    assert answer.solution is not None and answer.cost is not None
    for words in ("b over gpus", "k over gpus", "n over gpus", "replicated over gpus"):
        d = best_with(planning, answer.solution, "fc1", parse_config(words, ("nodes", "gpus")))
        assert (
            d.exact
            and d.price is not None
            and d.choices is not None
            and d.certificate is not None
            and d.comparison is not None
        )
        v = planning.operators["fc1"]
        levels = [level.name for level in planning.machine.levels]
        assert planning.decisions[v].placement(d.choices[v]).words(levels) == words
        assert (
            planning.problem.cost_of(d.choices) - answer.cost == d.price == sum(r.difference for r in d.comparison.rows)
        )
        smaller = restrict(planning.problem, {v: (d.choices[v],)})
        assert check_selection(smaller.inner, d.certificate).verdict is Verdict.PROVED
        assert f"fc1 is {words}" in render_deviation(d, planning.problem)


def test_price_of_one_operator_is_the_least_forced_price(planning: Planning) -> None:
    answer = solve(planning.problem)
    assert answer.solution is not None
    for name in ("fc1", "fc2.dw", "tensor:x"):
        found = explain(planning, answer.solution, answer.certificate, name)
        v = planning.copies["x"] if name == "tensor:x" else planning.operators[name]
        prices = []
        for a in range(planning.problem.domain_size(v)):
            if a != answer.solution[v]:
                cost = solve(restrict(planning.problem, {v: (a,)}).inner).cost
                assert cost is not None and answer.cost is not None
                prices.append(cost - answer.cost)
        assert found.deviation is not None and found.deviation.exact and found.deviation.price == min(prices)
        row = found.operators[v]
        assert row.at_most is not None and row.at_least <= min(prices) <= row.at_most
        assert "exact: solved again" in render_explanation(found)


def test_worth_of_a_plan(planning: Planning) -> None:
    answer = solve(planning.problem)
    assert answer.solution is not None
    found = explain(planning, answer.solution, answer.certificate, errors=(Fraction(1, 20), Fraction(1, 4)))
    assert [w.ratio for w in found.worth] == [Fraction(21, 19), Fraction(5, 3)]
    text = render_explanation(found)
    assert "e = 5 %: within 10.5 %" in text and "e = 25 %: within 66.7 %" in text and "(1+e)/(1-e)" in text
    data = found.to_json()
    assert isinstance(data["operators"], list) and len(data["operators"]) == len(planning.decisions)


def test_unknown_operator_is_named(planning: Planning) -> None:
    with pytest.raises(StrategyError, match="closest: fc1"):
        explain(planning, tuple(0 for _ in planning.decisions), op="fc11")
    with pytest.raises(StrategyError, match="closest: fc1"):
        best_with(planning, tuple(0 for _ in planning.decisions), "fc11", ())


def test_queries_cut_into_runs_are_said_with_what_zigzag_would_save() -> None:
    """Causal, 8 queries in 4 runs of 2: pairs 3, 7, 11, 15 of 36, so the fullest has 15 / 9 of the mean."""
    graph = zoo.build("llama", layers=1, width=16, heads=2, kv_heads=2, hidden=16, vocabulary=16, batch=4, sequence=8)
    graph = recognise(graph, attention=True).graph
    planning = build(graph, load_machine("localhost:4"), space("complete"))
    (op,) = (o for o in graph.operators if o.function == "attention")
    v = planning.operators[op.name]
    decision = planning.decisions[v]
    degrees = [decision.placement(c).degree(role(op, "query")[0]) for c in range(planning.problem.domain_size(v))]
    x = [0] * len(planning.decisions)
    assert uneven(planning, x) == () or degrees[0] > 1
    x[v] = degrees.index(4)
    (row,) = uneven(planning, x)
    assert (row.name, row.runs, row.ratio) == (op.name, 4, Fraction(15, 9))
    assert row.lost_units == int(row.compute * Fraction(2, 5)) and row.compute > 0
    found = explain(planning, tuple(x))
    assert "the fullest 1.67 times the mean: a zigzag placement" in render_explanation(found)
    assert found.to_json()["uneven_queries"] == [
        {"name": op.name, "runs": 4, "fullest_over_mean": "5/3", "lost": row.lost_units}
    ]
