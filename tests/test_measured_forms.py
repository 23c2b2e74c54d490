"""Plans priced by measured forms: three implementations agree, the checker notices any change of a constant or of a
formula, claims say what is measured and what is not, and no time falls with size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_builder_cases import CASES, chain, machine, small

from shardproof.formal.plans.plan import plan_graph
from shardproof.models.communication import collective_steps
from shardproof.models.communication.collective_steps import Step
from shardproof.models.cost import assumptions, collectives, cost, products
from shardproof.models.cost.collective_times import CollectiveTime, Group, Operation
from shardproof.models.cost.collectives import step_times
from shardproof.models.cost.matmul_times import MatmulTime
from shardproof.models.cost.products import product_times
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.difference import differences
from shardproof.models.machine.machine import Machine, MachineError
from shardproof.models.machine.measured import COLLECTIVES
from shardproof.models.machine.parts import Level
from shardproof.models.machine.text import render, to_toml
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.work import amounts, unit_work
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import Ints
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.pipelines.bound import least_work, work_of
from shardproof.verify.plan.assumptions import all_assumptions
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.tables import wrong_anywhere
from shardproof.verify.plan.used_entries import Entries

PICO = Fraction(1, 10**12)


def training() -> Graph:
    return build_step(zoo("mlp-unity", batch=8), "sgd", None).graph


@pytest.mark.parametrize("name", ["measured chain", "measured epilogues", "measured partial sums"])
def test_the_checker_agrees_everywhere(name: str) -> None:
    planning = CASES[name].planning()
    wrong, coverage = wrong_anywhere(Entries(planning), 1 << 30, "seed")
    assert wrong == "" and coverage.checked == coverage.total


def test_a_plan_is_proved_and_says_what_it_is_priced_with() -> None:
    found = plan_graph(chain(), machine("measured"), where=space("one-per-level"))
    assert found.plan is not None
    results = {r.kind: r for r in check_plan(write_plan(None, found.plan)).results}
    assert all(r.verdict is Verdict.PROVED for r in results.values()), results
    assert {"measured-collectives(gpus)", "links-by-bandwidth(nodes)", "measured-products(float32)"} <= set(
        results["Optimal"].assumptions
    )


@pytest.mark.parametrize(
    "graph", [training(), small("attention"), small("resnet101"), chain("float64")], ids=lambda g: g.name
)
def test_both_lists_of_assumptions_agree(graph: Graph) -> None:
    for target in (machine("measured"), machine("measured").resized((1, 4)), machine("measured").resized((8, 1))):
        named = set(assumptions.flags(graph, target, space("complete"), None, True))
        assert named == all_assumptions(graph, target, space("complete"), None)
        assert any(flag.startswith("roofline-work") for flag in named) == (graph.name != "none")


# One formula broken for planner and checker alike.


def _other_depth(operation: str) -> Callable[[pytest.MonkeyPatch], None]:
    def broken(patch: pytest.MonkeyPatch) -> None:
        true = collectives._times
        patch.setattr(collectives, "_times", lambda form, o, g, *rest: true(form, operation, g, *rest))

    return broken


def _other_constants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collectives, "COLLECTIVES", COLLECTIVES[::-1])


def _never_fast(patch: pytest.MonkeyPatch) -> None:
    true = collectives._times
    patch.setattr(collectives, "_times", lambda form, *rest: true(replace(form, start=form.start + 1), *rest))


def _no_splits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products, "SPLITS", (1,))


def _first_tile(patch: pytest.MonkeyPatch) -> None:
    true = cost.product_times
    patch.setattr(cost, "product_times", lambda table, *rest: true(replace(table, tiles=table.tiles[:1]), *rest))


def _never_odd(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products, "LARGE", 1 << 40)


def _no_bytes(patch: pytest.MonkeyPatch) -> None:
    true = cost.result_times
    patch.setattr(cost, "result_times", lambda table, sizes, moved, *rest: true(table, sizes, moved * 0, *rest))


def _roofline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cost, "product_axes", lambda form: None)


def _everything_gathers(patch: pytest.MonkeyPatch) -> None:
    true = collective_steps.fetch_steps
    from shardproof.models.communication import pricing

    patch.setattr(pricing, "fetch_steps", lambda l, held, wanted, *rest: true(l, held, wanted + (1 << 40), *rest))


def _two_phases(patch: pytest.MonkeyPatch) -> None:
    """An all-reduce as a reduce-scatter and an all-gather."""
    from shardproof.models.communication import pricing

    def split(steps: list[Step]) -> list[Step]:
        out = []
        for s in steps:
            both = ("reduce_scatter", "all_gather") if s.operation == "all_reduce" else (s.operation,)
            out += [replace(s, operation=o) for o in both]
        return out

    true = pricing.reduction_steps
    patch.setattr(pricing, "reduction_steps", lambda *a: split(true(*a)))


def _statistics_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cost, "statistics_steps", lambda *a: [])


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "one round": (_other_depth("alltoall"), "measured chain"),
    "two passes": (_other_depth("all_reduce"), "measured chain"),
    "constants of another operation": (_other_constants, "measured chain"),
    "the slow protocol alone": (_never_fast, "measured chain"),
    "no splits along k": (_no_splits, "long sums"),
    "odd sizes as fast as even ones": (_never_odd, "odd sizes"),
    "one tile": (_first_tile, "measured chain"),
    "no bytes": (_no_bytes, "slow memory"),
    "the roofline": (_roofline, "measured epilogues"),
    "every fetch a gather": (_everything_gathers, "measured chain"),
    "no all_reduce": (_two_phases, "measured partial sums"),
    "no statistics": (_statistics_for_nothing, "measured softmax and norms"),
}


def asked(name: str) -> Planning:
    """A case of the second builder, or one whose sizes matter here."""
    target = machine("measured").resized((1, 4))
    match name:
        case "long sums":
            g = Builder("long")
            graph = g.build(
                g.contract("y", "b k, k n -> b n", g.input("x", (2, 1 << 14)), g.parameter("w", (1 << 14, 4)))
            )
        case "odd sizes":
            graph = zoo("mlp-unity", batch=8 * 129)
        case "slow memory":
            graph, target = chain(), replace(target, device=replace(target.device, bandwidth=Fraction(10**6)))
        case _:
            return CASES[name].planning()
    return build(graph, target, space("one-per-level"))


@cache
def proved(name: str) -> bool:
    """Nothing is wrong with a case as it is."""
    return wrong_anywhere(Entries(asked(name)), 1 << 30, "seed")[0] == ""


@pytest.mark.parametrize("what", BROKEN)
def test_another_formula_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, name = BROKEN[what]
    assert proved(name)
    broken(monkeypatch)
    assert wrong_anywhere(Entries(asked(name)), 1 << 30, "seed")[0]


def constants(target: Machine) -> list[str]:
    """Measured constants of a machine."""
    return [
        path
        for path, _ in target.sources
        if ".product." in path or ".attention." in path or any(f".{operation}." in path for operation in COLLECTIVES)
    ]


@pytest.mark.parametrize("path", constants(machine("measured")))
def test_every_constant_is_read_written_and_named(path: str) -> None:
    """One constant is doubled in the JSON: another machine, another text, and that constant is said to differ."""
    target = machine("measured")
    data = json.loads(target.to_json())
    parts = path.split(".")
    if parts[0] == "level":
        table = next(x for x in data["level"] if x["name"] == parts[1])[parts[2]]
    elif parts[2] == "attention":
        tables = data["device_class"][0]["attention"]
        table = next(a for a in tables if (a["dtype"], a["direction"]) == (parts[3], parts[4]))
    else:
        table = data["device_class"][0]["product"][0]
        table = table["tiles"] if parts[4] == "tiles" else table
    table[parts[-1]] = str(2 * Fraction(table[parts[-1]]))
    other = Machine.from_json(json.dumps(data, sort_keys=True, separators=(",", ":")))
    assert [d.constant for d in differences(other, target)] == [path] and other.sha256() != target.sha256()
    assert render(other) != render(target) and Machine.from_json(other.to_json()) == other


def test_toml_reads_back(tmp_path: object) -> None:
    from pathlib import Path

    from shardproof.models.machine.machine import load_machine

    assert isinstance(tmp_path, Path)
    (tmp_path / "m.toml").write_text(to_toml(machine("measured")))
    assert load_machine("m.toml", tmp_path).to_json() == machine("measured").to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["level"][1].pop("alltoall"), ("gpus", "alltoall", "all of")),
        (lambda d: d["level"][1].update(all_gather=3), ("all_gather", "must be a table")),
        (lambda d: d["level"][1]["all_gather"].pop("hop"), ("all_gather", "hop", "missing")),
        (lambda d: d["level"][1]["all_gather"].update(hop="-1"), ("all_gather", "hop", "not an exact")),
        (lambda d: d["level"][1]["all_gather"].update(more="1"), ("all_gather", "more", "unknown")),
        (lambda d: d["device_class"][0]["product"][0].update(dtype="int4"), ("product", "dtype", "no peak")),
        (lambda d: d["device_class"][0]["product"][0].update(tiles={}), ("tiles", "0 tiles")),
        (lambda d: d["device_class"][0]["product"][0]["tiles"].update({"8x": "1"}), ("'8x'", "not a tile")),
        (lambda d: d["device_class"][0]["product"][0]["tiles"].update({"2x4": "0"}), ("2x4", "greater than 0")),
        (lambda d: d["device_class"][0]["product"][0].update(processors=0), ("processors", "whole number")),
        (lambda d: d["device_class"][0].update(product={}), ("product", "double brackets")),
        (lambda d: d["device_class"][0]["product"].append(d["device_class"][0]["product"][0]), ("twice",)),
    ],
)
def test_what_is_wrong_is_refused_by_place(change: Callable[[dict], object], words: tuple[str, ...]) -> None:
    data = json.loads(machine("measured").to_json())
    change(data)
    with pytest.raises(MachineError) as e:
        Machine.from_json(json.dumps(data))
    assert all(w in str(e.value) for w in words), str(e.value)


# The forms: against the fitted formulas, and monotone.

small_time = st.builds(lambda n, d: Fraction(n, 10**d), st.integers(0, 999), st.integers(5, 12))


@settings(deadline=None, max_examples=12)
@given(
    st.lists(small_time, min_size=6, max_size=6),
    st.integers(2, 16),
    st.integers(1, 1 << 30),
    st.sampled_from(COLLECTIVES),
)
def test_a_collective_is_the_fitted_formula(values: list[Fraction], g: int, share: int, operation: str) -> None:
    time = CollectiveTime(*values)
    form = replace(
        machine("measured").levels[1].collectives[0],
        **dict(zip(("fixed", "hop", "slow", "start", "wire", "own"), values, strict=True)),
    )
    target = replace(machine("measured"), levels=(Level("l", g, Fraction(1), Fraction(0), (form,) * 4),))

    def units(size: int) -> int:
        shares: Ints = np.array([size])
        step = Step(operation, 0, np.array([g]), shares)
        return int(step_times([step], (1,), 1, target, PICO)[0])

    exact = time.seconds(Operation(operation), Group(g), g * share) / PICO
    assert units(share) == -(-exact.numerator // exact.denominator)
    assert units(share) <= units(share + 1) <= units(2 * share)


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 9000))
def test_a_product_is_the_fitted_formula(m: int, n: int, k: int) -> None:
    monkeypatch = pytest.MonkeyPatch()
    form = machine("measured").device.products[0]
    rates = tuple(Fraction(2 * a * b * 64) / time for a, b, time in form.tiles)
    fitted = MatmulTime(
        form.launch,
        Fraction(10**30),
        form.processors,
        4,
        tuple((a, b) for a, b, _ in form.tiles),
        rates,
        form.tail,
        form.step / 64,
        form.split,
        form.sum,
        form.result,
        Fraction(0),
        form.odd,
    )
    sizes: Ints = np.array([[1, m, n, k]])
    zero: Ints = np.zeros(1, dtype=np.int64)
    found = int(product_times(form, sizes, zero, Fraction(1), PICO)[0])
    exact = fitted.seconds(m, n, k) / PICO
    assert found <= exact + 1  # the fitted formula tries up to 32 parts of k, the form up to 1,024
    monkeypatch.setattr(products, "SPLITS", products.SPLITS[:6])
    fewer = int(product_times(form, sizes, zero, Fraction(1), PICO)[0])
    monkeypatch.undo()
    assert abs(fewer - exact) <= 1
    assert Fraction(found) * PICO >= 2 * m * n * k * form.pace  # what bounds of pipelines rest on


def test_least_work_stays_below_every_placement() -> None:
    """The pipeline's bound on a unit, from both sides, against the cheapest placement of each operator."""
    graph, target = training(), machine("measured").resized((1, 4))
    slow = replace(target, device=replace(target.device, peaks=tuple((d, v / 1000) for d, v in target.device.peaks)))
    step = build_step(zoo("mlp-unity", batch=8), "sgd", None)
    division = divide(graph, step.passes)
    planning = build(graph, slow, space("complete,uneven"))
    cheapest = [0] * division.units
    for op, unit, phase in zip(graph.operators, division.unit, division.phase, strict=True):
        if unit >= 0 and phase != "U":
            cheapest[unit] += int(planning.problem.vertices[planning.operators[op.name]].cost.min())
    found = unit_work(amounts(graph, division), slow)
    assert found == least_work(work_of(graph, division), slow)
    assert all(0 < f <= c for f, c in zip(found, cheapest, strict=True))


def test_few_cells_and_groups_without_any() -> None:
    """A scalar that nobody splits fills no cells; a budget far below one group's still draws."""
    planning = CASES["scalars"].planning()
    for cells in (1, 1 << 8, 1 << 16):
        wrong, coverage = wrong_anywhere(Entries(planning), cells, "seed")
        assert wrong == "" and 0 < coverage.checked <= coverage.total
