"""Attention priced by a measured form: builder and checker agree, the checker notices any other constant or formula, no
time falls with size, claims say what is measured, and bounds and error bounds hold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_builder_cases import CASES, attentions, machine, masked_attention, small, trained_attention
from test_bars import drawn

from shardproof.formal.explain.cost_table import cost_table, render_cost_table
from shardproof.formal.explain.error_bounds import Box, lower_bound_within, measured_name, measurement
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost import assumptions, attention, cost
from shardproof.models.cost.attention import AttentionBoxes
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.error_bounds import extreme
from shardproof.models.machine.machine import Machine, MachineError
from shardproof.models.machine.measured import AttentionForm
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.work import amounts, unit_work
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.proofs.plan.error_bounds import Against, ErrorBounds
from shardproof.verify.pipelines.bound import least_work, work_of
from shardproof.verify.plan.assumptions import all_assumptions
from shardproof.verify.plan.attention_forms import attention_axes, attention_seconds, form_of
from shardproof.verify.plan.error_bounds import _Box, wrong_error_bounds
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.tables import wrong_anywhere
from shardproof.verify.plan.used_entries import Entries

CASE = "measured causal attention"
NAMES = [name for name in CASES if name.startswith("measured") and "attention" in name]
CONSTANTS = [f.name for f in fields(AttentionForm)[3:]]
FORWARD = AttentionForm("float32", "forward", 3, *(Fraction(n) for n in (1000, 3, 2, 7)), Fraction(2), Fraction(1, 2))
"""Seconds: launch 1000, pace 3, pair 2, row 7; wave 2, band 1/2."""


def wrong(planning: Planning) -> str:
    return wrong_anywhere(Entries(planning), 1 << 30, "seed")[0]


def llama() -> Graph:
    """A layer with grouped queries, attention as an operator."""
    sizes = {"sequence": 32, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 32, "vocabulary": 16}
    graph = zoo("llama-3-8b", batch=2, layers=1, **sizes)
    assert any(op.kind is NodeKind.ATTENTION for op in graph.operators)
    return graph


def halves() -> Machine:
    """Four devices that compute in bfloat16 as the measured ones in float32."""
    target = machine("measured").resized((1, 4))
    device = target.device
    forms = tuple(replace(a, dtype="bfloat16") for a in device.attentions if a.dtype == "float32")
    sources = tuple((p.replace("attention.float32", "attention.bfloat16"), text) for p, text in target.sources)
    peaks = (("bfloat16", device.peak("float32")), *device.peaks)
    return replace(target, device=replace(device, attentions=forms, peaks=peaks), sources=sources)


@pytest.mark.parametrize("name", NAMES)
def test_the_checker_agrees_everywhere(name: str) -> None:
    planning = CASES[name].planning()
    found, coverage = wrong_anywhere(Entries(planning), 1 << 30, "seed")
    assert found == "" and coverage.checked == coverage.total


def test_a_plan_is_proved_and_says_what_it_is_priced_with() -> None:
    found = plan_graph(trained_attention(), machine("measured"), where=space("one-per-level"))
    assert found.plan is not None and found.answer.solution is not None
    results = {r.kind: r for r in check_plan(write_plan(None, found.plan)).results}
    assert all(r.verdict is Verdict.PROVED for r in results.values()), results
    flags = results["Optimal"].assumptions
    assert "measured-attention(float32 float64)" in flags
    assert not any("roofline-work" in f and "gradient" in f for f in flags), flags
    rows = cost_table(found.planning, found.answer.solution)
    words = {r.formula for r in rows if r.function.startswith("attention")}
    assert words <= {"attention", "memory", "attention + statistics", "memory + statistics"} and words
    text = render_cost_table(found.planning, rows)
    assert "g: attention (float32, forward) = pairs" in text and "launch 2.9 us" in text


@pytest.mark.parametrize("graph", [trained_attention(), masked_attention(), small("attention")], ids=lambda g: g.name)
def test_both_lists_of_assumptions_agree(graph: Graph) -> None:
    whole = machine("measured")
    some = replace(whole, device=replace(whole.device, attentions=whole.device.attentions[1:]))
    alone = replace(
        some, device=replace(some.device, products=()), levels=tuple(replace(x, collectives=()) for x in some.levels)
    )
    linear = []
    for target in (whole, some, alone):
        named = set(assumptions.flags(graph, target, space("complete"), None, True))
        assert named == all_assumptions(graph, target, space("complete"), None)
        by_roofline = next((f for f in named if f.startswith("roofline-work")), "roofline-work(0:")
        linear.append(int(by_roofline.removeprefix("roofline-work(").partition(":")[0]))
    gradients = [op for op in graph.operators if op.function in ("attention_query_gradient", "attention_key_gradient")]
    assert linear[1] - linear[0] >= len(gradients)  # the form of float32's gradients was left out


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_plan_made_with_another_constant_is_refused(name: str, direction: str) -> None:
    """The tables of a machine on which one constant is a little less."""
    target = machine("measured").resized((1, 4))

    def less(form: AttentionForm) -> AttentionForm:
        changed = form.dtype == "float32" and form.direction == direction
        return replace(form, **{name: getattr(form, name) * Fraction(99, 100)}) if changed else form

    other = replace(target, device=replace(target.device, attentions=tuple(map(less, target.device.attentions))))
    graph = attentions(ahead=2) if direction == "forward" else trained_attention()
    planning = build(graph, other, space("one-per-level"))
    assert wrong(planning) == "" and wrong(replace(planning, machine=target))


# One formula broken in the planner alone.


def _no_waves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttentionForm, "idle", lambda self, banded: Fraction(0))


def _no_band(patch: pytest.MonkeyPatch) -> None:
    true = AttentionForm.idle
    patch.setattr(AttentionForm, "idle", lambda self, banded: true(self, False))


def _always_a_band(patch: pytest.MonkeyPatch) -> None:
    true = AttentionForm.idle
    patch.setattr(AttentionForm, "idle", lambda self, banded: true(self, True))


def _operations_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttentionForm, "each", lambda self, operations: self.pace * operations)


def _the_other_pass(patch: pytest.MonkeyPatch) -> None:
    true = attention.direction
    patch.setattr(
        attention, "direction", lambda form: {"forward": "backward", "backward": "forward", "": ""}[true(form)]
    )


def _changed(**what: Callable[[AttentionBoxes], object]) -> Callable[[pytest.MonkeyPatch], None]:
    def broken(patch: pytest.MonkeyPatch) -> None:
        true = attention.attention_boxes

        def other(*rest: object) -> AttentionBoxes | None:
            found = true(*rest)  # type: ignore[arg-type]
            return found and replace(found, **{key: value(found) for key, value in what.items()})  # type: ignore[arg-type]

        patch.setattr(cost, "attention_boxes", other)

    return broken


def _roofline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cost, "attention_boxes", lambda *rest: None)


def _no_statistics(patch: pytest.MonkeyPatch) -> None:
    true = AttentionBoxes.times
    patch.setattr(
        AttentionBoxes, "times", lambda self, form, at, ranks, extra, unit: true(self, form, at, ranks, [], unit)
    )


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "waves are full": (_no_waves, "measured attention"),
    "bands are even": (_no_band, CASE),
    "everything has a band": (_always_a_band, "measured attention"),
    "a pair is its operations": (_operations_alone, CASE),
    "forward for backward": (_the_other_pass, CASE),
    "backward for forward": (_the_other_pass, "measured gradients of attention as one operator"),
    "no rows": (_changed(rows=lambda b: b.rows * 0), CASE),
    "rows of a group": (_changed(rows=lambda b: -(-b.rows // 2)), "measured attention"),
    "pairs without a band": (_changed(pairs=lambda b: b.rows * b.keys), CASE),
    "one operation more": (_changed(operations=lambda b: b.operations + 1), CASE),
    "one key less": (_changed(keys=lambda b: b.keys - 1), CASE),
    "no bytes": (_changed(moved=lambda b: b.moved * 0), "slow memory"),
    "the roofline": (_roofline, "measured masked attention"),
    "no statistics": (_no_statistics, "split keys"),
}


def asked(name: str) -> Planning:
    """A case of the second builder, or one whose constants matter here."""
    target = machine("measured").resized((1, 4))
    match name:
        case "slow memory":
            target = replace(target, device=replace(target.device, bandwidth=Fraction(10**6)))
        case "split keys":
            target = replace(target, levels=tuple(replace(x, collectives=()) for x in target.levels))
        case _:
            return CASES[name].planning()
    return build(attentions(ahead=2), target, space("one-per-level"))


@cache
def proved(name: str) -> bool:
    return wrong(asked(name)) == ""


@pytest.mark.parametrize("what", BROKEN)
def test_another_formula_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, name = BROKEN[what]
    assert proved(name)
    broken(monkeypatch)
    assert wrong(asked(name))


# The checker's formula, on figures made by hand.


@pytest.mark.parametrize(
    ("amounts", "banded", "transfer", "seconds"),
    [
        ((100, 5, 10), False, 0, 1000 + (100 + 2 * 128 * 3 * 10) * (3 * 4 + 2) + 7 * 5),
        ((100, 5, 10), True, 0, 1000 + (100 + Fraction(5, 2) * 128 * 3 * 10) * (3 * 4 + 2) + 7 * 5),
        ((0, 5, 10), True, 0, 1000 + 7 * 5),  # no key of the box is in the band
        ((0, 0, 0), True, 0, 1000),
        ((0, 5, 10), True, 36, 1000 + 36),  # waits for its bytes
        ((0, 5, 10), True, 34, 1000 + 35),
    ],
)
def test_what_the_checker_computes(
    amounts: tuple[int, int, int], banded: bool, transfer: int, seconds: Fraction
) -> None:
    assert attention_seconds(FORWARD, amounts, 4, banded, Fraction(transfer)) == seconds
    if not transfer:
        assert FORWARD.seconds(*amounts, 4, banded) == seconds


def test_which_operators_the_checker_reads_as_attention() -> None:
    found = {op.function: attention_axes(op) for op in (*attentions(ahead=2).operators, *trained_attention().operators)}
    assert {f for f, seen in found.items() if seen} == {f for f in found if f.startswith("attention")}
    first = found["attention"]
    assert first is not None and not first.backward and first.banded and first.keys == ("t",)
    assert {f for f, seen in found.items() if seen and seen.backward} >= {
        "attention_query_gradient",
        "attention_key_gradient",
        "attention_value_gradient",
    }
    (packed,) = CASES["measured gradients of attention as one operator"].graph().operators
    seen = attention_axes(packed)
    assert seen is not None and seen.backward and len(seen.rows) == 4 and len(seen.keys) == 1
    device = machine("measured").device
    assert [form_of(device, "float64", way) is None for way in (False, True)] == [False, True]


# The form.

small_time = st.builds(lambda n, d: Fraction(n, 10**d), st.integers(0, 999), st.integers(5, 12))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(small_time, min_size=6, max_size=6),
    st.tuples(*(st.integers(0, 300) for _ in range(4))),
    st.integers(0, 3),
    st.booleans(),
)
def test_no_time_falls_with_an_extent(
    values: list[Fraction], sizes: tuple[int, int, int, int], grown: int, banded: bool
) -> None:
    """Heads, queries, keys and operations of a box; with a band, the pairs at or below its diagonal."""
    form = AttentionForm("float32", "forward", 7, *values)

    def seconds(heads: int, queries: int, keys: int, operations: int) -> Fraction:
        pairs = heads * (sum(min(i + 1, keys) for i in range(queries)) if banded else queries * keys)
        return form.seconds(pairs, heads * queries, keys, operations, banded)

    more = [n + (i == grown) for i, n in enumerate(sizes)]
    assert seconds(*sizes) <= seconds(*more)


def test_machine_files_say_which_table_is_wrong() -> None:
    def refused(change: Callable[[dict], object], *words: str) -> None:
        data = json.loads(machine("measured").to_json())
        change(data["device_class"][0]["attention"])
        with pytest.raises(MachineError) as e:
            Machine.from_json(json.dumps(data))
        assert all(w in str(e.value) for w in ("attention", *words)), str(e.value)

    refused(lambda t: t[0].pop("pace"), "pace", "missing")
    refused(lambda t: t[0].update(more="1"), "more", "unknown")
    refused(lambda t: t[0].update(dtype="int4"), "dtype", "no peak")
    refused(lambda t: t[0].update(direction="sideways"), "direction", "forward, backward")
    refused(lambda t: t[0].update(direction=3), "direction", "no direction")
    refused(lambda t: t[0].update(wave="-1"), "wave", "not an exact")
    refused(lambda t: t[0].update(processors=0), "processors", "whole number")
    refused(lambda t: t.append(t[0]), "twice")
    refused(lambda t: t.extend([t[0]] * 30), "at most 20")


def test_a_machine_without_forms_keeps_its_bytes() -> None:
    plain = replace(machine("measured"), device=replace(machine("measured").device, attentions=()))
    assert "attention" not in json.loads(plain.to_json())["device_class"][0]


# Bounds and error bounds.


@pytest.mark.parametrize("fused", [False, True])
def test_least_work_stays_below_every_placement(fused: bool) -> None:
    """The pipeline's bound on a unit, from both sides, against the cheapest placement of each operator."""
    from shardproof.models.sources.building.attention import with_fused_gradients

    graph = with_fused_gradients(llama()) if fused else llama()
    target = halves()
    step = build_step(graph, "sgd", None)
    division = divide(step.graph, step.passes)
    planning = build(step.graph, target, space("one-per-level"))
    cheapest = [0] * division.units
    for op, unit, phase in zip(step.graph.operators, division.unit, division.phase, strict=True):
        if unit >= 0 and phase != "U":
            cheapest[unit] += int(planning.problem.vertices[planning.operators[op.name]].cost.min())
    found = unit_work(amounts(step.graph, division), target)
    assert found == least_work(work_of(step.graph, division), target)
    assert all(0 < f <= c for f, c in zip(found, cheapest, strict=True))
    roofline = replace(target, device=replace(target.device, attentions=()))
    assert unit_work(amounts(step.graph, division), roofline) != found


def barred() -> Machine:
    target = halves()
    rng = random.Random(5)
    paths = [path for path, _ in target.sources if not path.endswith("memory")]
    return replace(target, bars=tuple((p, Fraction(rng.randint(1, 60), 100)) for p in paths))


def test_differences_hold_on_machines_within_the_bars() -> None:
    target, rng = barred(), random.Random(11)
    graph = build_step(llama(), "sgd").graph
    planning = build(graph, target, space("one-per-level"))
    box, checker = Box(planning), _Box(planning)
    machines = [target, extreme(target, False), extreme(target, True), *(drawn(target, rng) for _ in range(3))]
    for _ in range(2):
        x, y = (tuple(rng.randrange(v.cost.size) for v in planning.problem.vertices) for _ in range(2))
        least, most, _ = box.difference(x, y)
        for m in machines:
            assert least <= box.terms.cost_at(y, m) - box.terms.cost_at(x, m) <= most
        again = checker.difference(x, y)
        assert least <= again[0] < least + 1 and most - 1 < again[1] <= most
        bars = ErrorBounds(
            box.cost(x), lower_bound_within(0, planning), (Against("other", planning.choices(y), least, most, ""),)
        )
        assert not wrong_error_bounds(planning, x, bars, 0)
        (claim,) = bars.against
        for tighter in (replace(claim, least=least + 1), replace(claim, most=most - 1)):
            assert "the difference lies between" in wrong_error_bounds(
                planning, x, replace(bars, against=(tighter,)), 0
            )


def test_an_undecided_attention_asks_for_attention() -> None:
    constant = measured_name("device_class.g.attention.float32.backward.pace")
    assert constant == "device_class.g.attention.float32.backward"
    assert measurement(constant, machine("measured")) == "attention in float32 of the plan's sizes, backward"
