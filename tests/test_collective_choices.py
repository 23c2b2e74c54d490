"""`plan --collectives`: reductions choose their collective programs; price, checker and ranks agree on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardproof
from shardproof.backends.execution.job import Options, build_program, machine_text
from shardproof.backends.execution.launch import mpi_available, run_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.collectives import count
from shardproof.formal.calibration.timings import program_of
from shardproof.formal.collective_programs.synthesize import synthesize
from shardproof.formal.explain.reductions import program_lines, program_rows
from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.given import plan_strategy
from shardproof.formal.plans.pipelines.composed import StepShape, compose_step
from shardproof.formal.plans.pipelines.stage_work import stage_work
from shardproof.formal.plans.plan import PlacementJob, plan_graph
from shardproof.formal.plans.strategy import parse_strategy
from shardproof.models.collective_programs.cost import planner_cost
from shardproof.models.communication.reduction_programs import (
    Starts,
    chooser_of,
    chosen_loads,
    chosen_program,
    program_loads,
    program_words,
    programs,
)
from shardproof.models.communication.resharding import Reduction, derive
from shardproof.models.cost.selection import build
from shardproof.models.layout.layout import OpenDigit
from shardproof.models.layout.placement import space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.difference import builtin_notice, first_difference
from shardproof.models.machine.machine import Collectives, Machine, MachineError, load_machine
from shardproof.models.machine.parts import Level
from shardproof.models.machine.text import render, to_toml
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.text import Inapplicable, InputError
from shardproof.models.views.machine import submesh_machine
from shardproof.proofs.plan.bundle import Plan, read_plan, write_plan
from shardproof.verify.plan.boxes import Digit
from shardproof.verify.plan.communication import check_delivers
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.reductions import choice_of, is_structure, moved_by, reduction

from .test_plan_reductions import groups, price, request
from .test_run import SMALL, draw_choices

HIERARCHIES = [(2, 4), (3, 2), (4, 2), (2, 2, 2), (2, 3, 2)]


def machine_of(hierarchy: tuple[int, ...], collectives: Collectives) -> Machine:
    """Links that get ten times slower outwards, one start-up each."""
    levels = tuple(
        Level(f"l{j}", n, Fraction(10 ** (9 + j)), Fraction(10 - 3 * j, 10**6)) for j, n in enumerate(hierarchy)
    )
    machine = load_machine("localhost")
    sources = [s for s in machine.sources if not s[0].startswith("level.")]
    sources += [(f"level.{x.name}.{what}", "assumption: a test") for x in levels for what in ("bandwidth", "latency")]
    return replace(machine, levels=levels, sources=tuple(sorted(sources))).with_collectives(collectives)


def small_step() -> Graph:
    return build_step(zoo("mlp-8192", batch=16, layers=2, width=48), "sgd").graph


def data_parallel(collectives: Collectives, machine: str = "p2-a100:2x4") -> Plan:
    found = load_machine(machine).with_collectives(collectives)
    split = dict(zip((level.name for level in found.levels), found.hierarchy, strict=True))
    strategy = parse_strategy(json.dumps({"*": {"b": split}}))
    plan = plan_strategy(strategy, PlacementJob(small_step(), found))[0].plan
    assert plan is not None
    return plan


@st.composite
def reductions(draw: st.DrawFn) -> tuple[tuple[int, ...], list[OpenDigit], tuple[bool, ...], int]:
    hierarchy = draw(st.sampled_from(HIERARCHIES))
    known = {2: [(1, 2)], 3: [(1, 3)], 4: [(2, 2), (1, 2)]}
    every = [OpenDigit(j, *digit) for j, n in enumerate(hierarchy) for digit in known[n]]
    digits = draw(st.lists(st.sampled_from(every), unique=True, min_size=1).map(lambda d: sorted(d, key=every.index)))
    scattered = tuple(draw(st.booleans()) for _ in digits)
    return hierarchy, digits, scattered, draw(st.integers(0, 5000))


@settings(max_examples=150, deadline=None)
@given(reductions(), st.sampled_from(list(Collectives)), st.sampled_from([1, 4, 8]))
def test_checker_counts_member_by_member_what_closed_forms_price(
    drawn: tuple[tuple[int, ...], list[OpenDigit], tuple[bool, ...], int], collectives: Collectives, size: int
) -> None:
    hierarchy, digits, scattered, elements = drawn
    step = Reduction(None, tuple(digits), scattered, (), 0)  # type: ignore[arg-type]
    opened, kept = step.members(len(hierarchy))
    part = np.array([-(-elements // prod(kept))])
    mine = tuple(Digit(d.level, d.stride, d.prime) for d in digits)
    for starts in programs(len(hierarchy), Collectives.SYNTHESISED):
        found = program_loads(starts, hierarchy, opened, kept, part)
        counted = moved_by(hierarchy, mine, scattered, elements, starts)
        assert tuple(tuple(int(n[0]) for n in side) for side in found) == counted, starts
    machine = machine_of(hierarchy, collectives)
    loads, phases, _ = chosen_loads(chooser_of(machine, size), hierarchy, opened, kept, part)
    chosen = reduction(hierarchy, mine, scattered, elements, choice_of(machine, size))
    assert chosen == (tuple(int(n[0]) for n in loads), tuple(int(n[0]) for n in phases))


@pytest.mark.parametrize("spec", ["cloud-a100:4x8", "p2-a100:2x16", "p2-v100:4x8", "summit:2x2x3"])
@pytest.mark.parametrize("payload", [3 << 8, 3 << 16, 3 << 24])
def test_what_is_chosen_is_cheapest_of_all_synthesised_programs(spec: str, payload: int) -> None:
    """Of every length, for every group, small payloads included: proved by the potentials of `synthesize`."""
    machine = load_machine(spec).with_collectives(Collectives.SYNTHESISED)
    plain = replace(machine, resources=(), collectives=Collectives.HIERARCHICAL)
    cost, slack = planner_cost(plain, payload), 8  # picoseconds: programs round up once per step
    names = [level.name for level in machine.levels]
    for parts in groups(plain):
        at, chooser = request(plain, parts), chooser_of(machine, 1)
        share = np.array([payload // prod(parts)])
        loads, phases, _ = chosen_loads(chooser, machine.hierarchy, parts, parts, share)
        assert chooser is not None
        taken = sum(a * int(n[0]) + b * int(p[0]) for (a, b), n, p in zip(chooser.rates, loads, phases, strict=True))
        assert abs(synthesize(at, cost).cost - taken) <= slack, parts
        starts = chosen_program(chooser, machine.hierarchy, parts, parts, int(share[0]))
        if len(parts) == 2 and min(parts) > 1:  # P2's own words for the two
            words = "RS.L AR.P AG.L" if not starts else "AllReduce"
            assert abs(price(cost, at, program_of(words, at.system())) - taken) <= slack
            assert program_words(starts, names, parts, parts).count("all-reduce in nodes") == 1


def test_no_entry_is_dearer_than_without_a_choice() -> None:
    """So no plan is, whatever the space and the limit."""
    graph = small_step()
    for spec in ("p2-a100:2x4", "summit:2x2x3"):
        known = {
            c: build(graph, load_machine(spec).with_collectives(c), space("complete")).problem for c in Collectives
        }
        least = known[Collectives.SYNTHESISED]
        for other in (known[Collectives.HIERARCHICAL], known[Collectives.LIBRARY]):
            for mine, theirs in zip(least.vertices, other.vertices, strict=True):
                assert (mine.cost <= theirs.cost).all()
            for a, b in zip(least.edges, other.edges, strict=True):
                assert (least.tables[a.table] <= other.tables[b.table]).all()


def test_steps_of_data_parallelism_with_and_without() -> None:
    costs = {}
    for collectives in Collectives:
        plan = data_parallel(collectives)
        checked = check_plan(write_plan(None, plan))
        assert checked.verdict is Verdict.PROVED
        flag = f"collective-programs({collectives.value})"
        assert (flag in checked.results[0].assumptions) is (collectives is not Collectives.HIERARCHICAL)
        x = checked.planning.solution(plan.choices)
        costs[collectives] = checked.planning.problem.cost_of(x)
        assert PlanTerms(checked.planning).cost_at(x, plan.machine) == costs[collectives]
        slow = replace(
            plan.machine, levels=tuple(replace(v, bandwidth=v.bandwidth / 4096) for v in plan.machine.levels)
        )
        moved = build(plan.graph, slow, space(plan.space), None, unit=Fraction(1, checked.planning.problem.scale))
        assert PlanTerms(checked.planning).cost_at(x, slow) == moved.problem.cost_of(moved.solution(plan.choices))
    assert costs[Collectives.SYNTHESISED] <= costs[Collectives.LIBRARY] < costs[Collectives.HIERARCHICAL]


def test_explain_names_the_programs() -> None:
    plan = data_parallel(Collectives.SYNTHESISED)
    planning = build(plan.graph, plan.machine, space(plan.space))
    rows = program_rows(planning, planning.solution(plan.choices))
    assert [(r.program, r.members, r.count) for r in rows] == [("all-reduce in nodes and gpus", (2, 4), 3)]
    assert program_lines(planning, rows)[0] == "reductions, synthesised collectives:"
    none = build(plan.graph, plan.machine.with_collectives(Collectives.HIERARCHICAL), space(plan.space))
    assert program_rows(none, none.solution(plan.choices)) == ()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SMALL)),
    st.sampled_from([(2, 4), (2, 2, 2), (3, 2)]),
    st.sampled_from([Collectives.LIBRARY, Collectives.SYNTHESISED]),
    st.integers(0, 10**6),
)
def test_ranks_carry_out_what_was_chosen(
    name: str, hierarchy: tuple[int, ...], collectives: Collectives, seed: int
) -> None:
    """Any placements, uneven ones included: values of one process, and bytes per level as priced."""
    graph = SMALL[name]()
    choices = draw_choices(graph, hierarchy, np.random.default_rng(seed))
    options = Options(machine=machine_text(machine_of(hierarchy, collectives)))
    values = random_inputs(graph, seed)
    result = run_virtual(build_program(graph, hierarchy, choices, options), values)
    for output, expected in run_graph(graph, values).items():
        if output in result.outputs:
            np.testing.assert_allclose(result.outputs[output], expected, rtol=1e-10, atol=1e-10)
    assert all(t.fits for t in result.traffic), [t for t in result.traffic if not t.fits]


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="no MPI")
def test_mpi_ranks_too() -> None:
    plan = data_parallel(Collectives.SYNTHESISED, "p2-a100:2x2")
    values, options = random_inputs(plan.graph, 0), Options(machine=machine_text(plan.machine))
    program = build_program(plan.graph, plan.machine.hierarchy, plan.choices, options)
    before = build_program(plan.graph, plan.machine.hierarchy, plan.choices, Options())
    assert "reduce-scatter" in count(before) and set(count(program)) == {"all-reduce"}
    found = run_job(plan.graph, plan.machine.hierarchy, plan.choices, values, options).outputs
    expected: Mapping[str, object] = run_graph(plan.graph, values)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-10, atol=1e-10)  # type: ignore[arg-type]


def test_forged_programs_are_refuted() -> None:
    plan = data_parallel(Collectives.SYNTHESISED)
    for other in (Collectives.HIERARCHICAL, Collectives.LIBRARY):
        forged = replace(plan, machine=plan.machine.with_collectives(other))
        assert check_plan(write_plan(None, forged)).verdict is Verdict.REFUTED
    number = next(k for k, m in enumerate(plan.communication) if m.loads[0])
    theirs = data_parallel(Collectives.HIERARCHICAL).communication[number]
    listed = (*plan.communication[:number], theirs, *plan.communication[number + 1 :])
    found = check_plan(write_plan(None, replace(plan, communication=listed)))
    assert {r.kind for r in found.results if r.verdict is Verdict.REFUTED} == {"Bytes"}


@pytest.mark.parametrize("starts", [(1,), (0, 0), (0, 2), (0, 1, 1), (1, 0)])
def test_blocks_that_leave_a_level_out_do_not_deliver(starts: Starts) -> None:
    from shardproof.models.communication.choices import communications

    plan = data_parallel(Collectives.SYNTHESISED)
    moves = communications(plan.graph, plan.machine.hierarchy, plan.choices, plan.machine)
    move = next(m.plan for m in moves if m.plan.source.open)
    assert check_delivers(move).verdict is Verdict.PROVED and not is_structure(starts, 2)
    steps = tuple(replace(s, starts=starts) if isinstance(s, Reduction) else s for s in move.steps)
    assert "every level once" in check_delivers(replace(derive(move.source, move.target), steps=steps)).reason


def test_machine_files_keep_the_choice() -> None:
    machine = load_machine("p2-a100:2x16").with_collectives(Collectives.SYNTHESISED)
    assert Machine.from_json(machine.to_json()) == machine
    assert 'collectives = "synthesised"' in to_toml(machine) and "collectives synthesised" in render(machine)
    assert (
        "collectives 'synthesised' instead of" in builtin_notice(machine)
        and "collectives" not in load_machine("p2-a100").to_json()
    )
    assert (
        first_difference(machine, load_machine("p2-a100:2x16")) == "collectives 'synthesised' instead of 'hierarchical'"
    )
    assert read_plan(write_plan(None, data_parallel(Collectives.LIBRARY)))[0].machine.collectives is Collectives.LIBRARY
    with pytest.raises(MachineError, match=r"collectives: 'fast' is unknown \(choose hierarchical, library"):
        Machine.from_json(machine.to_json().replace('"synthesised"', '"fast"'))


def test_what_has_no_choice_is_refused_by_name() -> None:
    free = load_machine("p2-a100:2x4")
    with pytest.raises(MachineError, match="collectives in gpus have measured forms"):
        load_machine("dgx-a100:2x4").with_collectives(Collectives.LIBRARY)
    with pytest.raises(MachineError, match="error bounds are of programs that stay"):
        replace(free, bars=(("level.nodes.bandwidth", Fraction(1, 10)),)).with_collectives(Collectives.LIBRARY)
    with pytest.raises(MachineError, match="at most 4 levels, not 5"):
        replace(free, levels=free.levels * 2 + free.levels[:1]).with_collectives(Collectives.SYNTHESISED)
    with pytest.raises(Inapplicable, match="submeshes are priced level by level"):
        submesh_machine(free.with_collectives(Collectives.LIBRARY), Submesh((0, 0), (1, 4)))
    step, flags = build_step(zoo("llama", layers=1, batch=1, sequence=64), "adam", precision="bf16-master"), Flags("M")
    work = stage_work(step, free, flags, 1)
    with pytest.raises(InputError, match="priced level by level, not with library collectives"):
        compose_step(work, free.with_collectives(Collectives.LIBRARY), flags, StepShape(8, 1, layers=1))


def test_the_search_uses_what_is_cheaper() -> None:
    """A batch that pays for all devices: the proved optimum itself is cheaper."""
    graph = build_step(zoo("mlp-8192", batch=1 << 18, layers=2, width=64), "sgd").graph
    cost = {}
    for collectives in (Collectives.HIERARCHICAL, Collectives.SYNTHESISED):
        found = plan_graph(graph, load_machine("p2-a100:2x4").with_collectives(collectives))
        assert found.answer.solution is not None and found.answer.lower_bound is not None
        cost[collectives] = found.planning.problem.cost_of(found.answer.solution)
        assert found.answer.lower_bound == cost[collectives]
    assert cost[Collectives.SYNTHESISED] < cost[Collectives.HIERARCHICAL]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [{"joint": True}, {"overlap": True, "stages": "2:2"}])
def test_with_every_other_part(parts: dict[str, object]) -> None:
    machine = shardproof.machine("p2-a100:2x4", collectives="synthesised")
    plan = shardproof.plan("mlp-8192:batch=64,layers=3,width=256", machine, train="sgd", **parts)  # type: ignore[arg-type]
    ran = plan.run()
    assert plan.check().verdict is Verdict.PROVED and ran.equal and not ran.mismatched
