"""What people found by thinking, found by solving: Megatron's split, Unity's example, and the plan against known
strategies.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from rule_elements import elements_moved, elements_problem
from strategies import KNOWN, megatron

from shardproof.formal.explain.audit import Outcome, audit
from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.strategy import apply, parse_strategy
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.layout import Layout, OpenDigit
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.program.index import Combine
from shardproof.models.sources import zoo

# ---------------------------------------------------------------- tensor parallelism


@pytest.fixture(scope="module")
def layer() -> Planning:
    return build(
        zoo.build("transformer-layer", batch=1, tokens=16, width=8192),
        load_machine("cloud-a100:1x8"),
        space("complete"),
    )


def test_tensor_parallelism_is_found(layer: Planning) -> None:
    answer = solve(layer.problem)
    assert answer.solution is not None and answer.status.value == "optimal"
    x = answer.solution

    def degree(op: str, axis: str) -> int:
        v = layer.operators[op]
        return layer.decisions[v].placement(x[v]).degree(axis)

    for op in ("query", "key", "value", "scores", "softmax", "context", "output"):
        assert degree(f"layer.attention.{op}", "h") == 8, op
    assert degree("layer.ffn.up", "f") == degree("layer.ffn.gelu", "f") == degree("layer.ffn.down", "f") == 8
    terms = PlanTerms(layer)
    reducing = {}
    for e, route in enumerate(layer.routes):
        if terms.edge_parts(e, x).summing:
            reducing[layer.decisions[route.source].name] = terms.communication_of(e, x)
    assert set(reducing) == {
        "layer.attention.output",
        "layer.ffn.down",
    }  # one reduction per half, where the rows are split
    moving = {
        layer.routes[e].tensor: terms.communication_of(e, x)
        for e in range(len(layer.routes))
        if terms.edge_parts(e, x).moving
    }
    if reducing["layer.attention.output"] == "all-reduce":
        assert moving == {}
    else:
        assert set(reducing.values()) == {"reduce-scatter"} and moving == {"layer.attention.norm": "all-gather"}
    assert all(
        int(c.reduction[x[v]]) == 0 for v, c in enumerate(layer.costs) if c is not None
    )  # no statistics are exchanged


def test_megatron_costs_at_most_five_percent_more(layer: Planning) -> None:
    report = audit(layer, megatron(layer.graph, layer.machine))
    assert report.outcome is Outcome.REFUTED and report.completed.status.value == "optimal"
    assert report.completed.cost is not None and report.best.cost is not None
    assert 100 * report.completed.cost <= 105 * report.best.cost


# ---------------------------------------------------------------- forward and weight gradient


def test_forward_and_weight_gradient_agree_where_things_are() -> None:
    planning = build(zoo.build("linear-training"), load_machine("cloud-a100:1x8"), space("complete"))
    split = '{"b": {"gpus": 2}, "n": {"gpus": 4}}'
    text = (
        f'{{"forward": {split}, "weight_gradient": {split}, "tensor:x": {{"0": {{"gpus": 2}}}}, "tensor:forward": '
        f'{{"0": {{"gpus": 2}}, "1": {{"gpus": 4}}}}}}'
    )
    small = restrict(planning.problem, apply(parse_strategy(text), planning))
    answer = solve(small.inner)
    assert answer.solution is not None
    x, terms = small.solution_back(answer.solution), PlanTerms(planning)
    quiet = [
        e
        for e, r in enumerate(planning.routes)
        if planning.decisions[r.target].name != "weight_gradient" or r.tensor == "x"
    ]
    assert len(quiet) == 3  # x to both, y to its copy; the gradient's own sum over b is the fourth
    for e in quiet:
        source, target = planning.layouts_of(e, x)
        assert not source.open and np.array_equal(source.boxes, target.boxes)
        assert terms.edge_parts(e, x).summing == terms.edge_parts(e, x).moving == 0
    (gradient,) = (e for e in range(len(planning.routes)) if e not in quiet)
    assert planning.layouts_of(gradient, x)[0].open != ()


def test_a_partial_tensor_is_never_a_replica() -> None:
    boxes = np.zeros((2, 1, 2), dtype=np.int64)
    boxes[:, :, 1] = 8
    replica = Layout((1, 2), (8,), boxes)
    partial = Layout((1, 2), (8,), boxes.copy(), (OpenDigit(1, 1, 2),), Combine.SUM)
    assert (
        replica != partial
        and replica == Layout((1, 2), (8,), boxes.copy())
        and partial != Layout((1, 2), (8,), boxes, partial.open, Combine.MAX)
    )


# ---------------------------------------------------------------- Unity, section 1

MATMULS = ("fc1", "fc2", "fc2.dw", "fc2.dx", "fc1.dw")
DATA_PARALLEL = '{"*": {"b": {"gpus": 2}}, "*.update": {}}'
REDUCTION = """{"fc1": {"k": {"gpus": 2}}, "relu1": {}, "relu1.dx": {}, "fc1.dw": {"k": {"gpus": 2}}, "w1.update": {"k": {"gpus": 2}},
 "fc2": {"n": {"gpus": 2}}, "fc2.dw": {"n": {"gpus": 2}}, "fc2.dx": {"n": {"gpus": 2}}, "w2.update": {"n": {"gpus": 2}}}"""


@pytest.fixture(scope="module")
def perceptron() -> Planning:
    return build(zoo.build("mlp-unity-training"), load_machine("cloud-a100:1x2"), space("complete"))


@pytest.fixture(scope="module")
def counted(perceptron: Planning) -> SelectionProblem:
    return elements_problem(perceptron)


@pytest.mark.parametrize(("strategy", "elements"), [(DATA_PARALLEL, 813_056), (REDUCTION, 131_072)])
def test_elements_as_unity_counts_them(
    perceptron: Planning, counted: SelectionProblem, strategy: str, elements: int
) -> None:
    small = restrict(counted, apply(parse_strategy(strategy), perceptron))
    answer = solve(small.inner)
    assert answer.status.value == "optimal" and answer.solution is not None
    assert answer.cost == elements == elements_moved(perceptron, small.solution_back(answer.solution))


def _splitting(planning: Planning) -> dict[int, tuple[int, ...]]:
    """Choices of the matmuls that split some axis, so that no matmul is repeated on both devices."""
    out = {}
    for name in MATMULS:
        v = planning.operators[name]
        rows = planning.decisions[v].placements
        out[v] = tuple(a for a in range(len(rows)) if rows[a, :-1].max() == 2)
    return out


def _brute(problem: SelectionProblem, planning: Planning, allowed: dict[int, tuple[int, ...]]) -> int:
    """Every choice of the operators; given those, each copy has only operators as neighbours and is minimised by
    itself.
    """
    operators = sorted(planning.operators.values())
    domains = [allowed.get(v, tuple(range(problem.domain_size(v)))) for v in operators]
    grids = np.array(list(itertools.product(*domains)), dtype=np.int64)
    at = {v: grids[:, i] for i, v in enumerate(operators)}
    total = sum((problem.vertices[v].cost[at[v]] for v in operators), np.zeros(len(grids), dtype=np.int64))
    copies = {v: np.tile(problem.vertices[v].cost, (len(grids), 1)) for v in planning.copies.values()}
    for e in problem.edges:
        table = problem.tables[e.table]
        full = table[
            np.ix_(*(np.arange(n) if m is None else m for m, n in ((e.rows, table.shape[0]), (e.cols, table.shape[1]))))
        ]
        if e.u in copies:
            copies[e.u] += full[:, at[e.v]].T
        elif e.v in copies:
            copies[e.v] += full[at[e.u], :]
        else:
            total = total + full[at[e.u], at[e.v]]
    return int((total + sum(c.min(axis=1) for c in copies.values())).min())


def test_with_every_matmul_split_the_solver_moves_what_enumeration_finds(
    perceptron: Planning, counted: SelectionProblem
) -> None:
    allowed = _splitting(perceptron)
    small = restrict(counted, allowed)
    answer = solve(small.inner)
    assert answer.solution is not None and answer.cost is not None and answer.status.value == "optimal"
    assert (
        answer.cost
        == _brute(counted, perceptron, allowed)
        == elements_moved(perceptron, small.solution_back(answer.solution))
    )
    assert 0 < answer.cost <= 1_280
    assert _brute(counted, perceptron, {}) == solve(counted).cost == 0  # everything on every device moves nothing


def test_statistics_count_as_well() -> None:
    planning = build(zoo.build("attention"), load_machine("cloud-a100:1x2"), space("complete"))
    v = planning.operators["attention.softmax"]
    split = planning.decisions[v].choice(
        planning.decisions[v].placement(0).__class__(("b", "s", "t", "h"), ((1, 1), (1, 1), (1, 2), (1, 1), (1, 1)))
    )
    x = tuple(split if w == v else 0 for w in range(len(planning.decisions)))
    assert elements_problem(planning).vertices[v].cost[split] == 2 * 2 * (
        4 * 16 * 8
    )  # maximum and sum of every row, over 2 devices
    assert elements_problem(planning).cost_of(x) == elements_moved(planning, x)


# ---------------------------------------------------------------- the plan against known strategies


@pytest.mark.parametrize(("machine", "batch"), [("cloud-a100:2x4", 8), ("cloud-a100:4x8", 8)])
def test_the_plan_is_never_worse_than_known_strategies(machine: str, batch: int) -> None:
    planning = build(zoo.build("bert-large", batch=batch, layers=2), load_machine(machine), space("complete"))
    costs = {}
    for name, make in KNOWN.items():
        report = audit(planning, make(planning.graph, planning.machine))
        assert (
            report.outcome in (Outcome.OPTIMAL, Outcome.REFUTED)
            and report.completed.cost is not None
            and report.best.cost is not None
        )
        assert report.best.cost <= report.completed.cost
        costs[name] = report.completed.cost
    assert len(set(costs.values())) == len(costs)  # they do differ


def test_known_strategies_decide_what_they_are_about() -> None:
    planning = build(zoo.build("bert-large", layers=1), load_machine("cloud-a100:4x8"), space("complete"))
    levels = [level.name for level in planning.machine.levels]
    expect = {
        "data parallel": (
            "b over nodes, b over 2 of gpus, replicated over 4 of gpus",
            "b over nodes, b over 2 of gpus, replicated over 4 of gpus",
        ),
        "megatron": ("b over nodes, f over gpus", "b over nodes, h over gpus"),
        "context parallel": ("b over nodes, s over gpus", "b over nodes, t over gpus"),
    }
    for name, make in KNOWN.items():
        allowed = apply(make(planning.graph, planning.machine), planning)
        up, key = (planning.operators[f"layer0.{op}"] for op in ("ffn.up", "attention.key"))
        said = tuple(planning.decisions[v].placement(allowed[v][0]).words(levels) for v in (up, key))
        assert said == expect[name]
