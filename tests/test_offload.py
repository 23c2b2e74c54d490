"""`--recompute tensors --offload`: every tensor is kept, computed again, or lies in the memory of its device's host."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from budgets import work
from test_recompute_tensors import NONE, deep
from test_second_builder import agrees

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans.overlap.request import carry_out_overlapped
from shardproof.formal.plans.overlap.search import Overlapped
from shardproof.formal.plans.request import PlanRequest
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.rewriting.joint.checkpoints import computed_again, modes_with, tensors_on_hosts, ways_of
from shardproof.formal.rewriting.joint.request import carry_out_jointly
from shardproof.formal.rewriting.joint.rules.growing import facts
from shardproof.formal.rewriting.joint.rules.recompute import with_recomputation
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.models.cost.selection import build
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.rules import AGAIN, EQUAL, LIBRARY, OFFLOAD
from shardproof.models.layout.placement import space
from shardproof.models.machine.difference import first_difference
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.parts import MachineError
from shardproof.models.machine.quantities import QuantityError
from shardproof.models.machine.text import to_toml
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.fused import can_follow
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import Operator
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.scan import Loop, scan
from shardproof.models.sources.training import TrainingStep
from shardproof.proofs.joint.derivation import Derivation, Step
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.budget import CELLS
from shardproof.verify.joint.derivation import wrong_derivation
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.overlap.certificate import OF_HOSTS, check_overlap
from shardproof.verify.pipelines.division import wrong_division
from shardproof.verify.plan.tables import wrong_anywhere
from shardproof.verify.plan.used_entries import Entries

FAST = load_machine("cloud-a100:1x2").with_host("600 GB/s", "assumption: a test")
WHERE = space("one-per-level")


def widened(step: TrainingStep) -> tuple[EGraph, Derivation]:
    plain = EGraph(step.graph, (), step.graph.operators)
    return with_recomputation(plain, Derivation(LIBRARY, 1, ()), step, hosts=True)


def there_and_back() -> Graph:
    b = Builder("away")
    x = b.input("x", (8, 12))
    h = b.map("h", "to_host", b.map("y", "relu", x))
    return b.build(b.map("z", "negate", b.map("back", "from_host", h)))


def loop(*functions: str, host: bool = False) -> Graph:
    """A loop of three turns that adds these maps of what it reads; `host`: its body reads that on hosts."""
    body = Builder("body")
    carry, read = body.input("h", (4, 8)), body.input("x", (4, 8))
    if host:
        body.tensors[read] = replace(body.tensors[read], host=True)
    for k, function in enumerate(functions):
        read = body.map(f"v{k}", function, read)
    body.map("next", "add", carry, read)
    g = Builder("loop")
    given = [g.input("h0", (4, 8)), g.input("x0", (3, 4, 8))]
    (last,) = scan(
        g, "loop", Loop(body.build("next"), 1, ("b f", "t b f"), ("b",), "t", 3, ("last h",)), given, {0: "y"}
    )
    return g.build(last)


def least_of_all_ways(step: TrainingStep, limit: int) -> int | None:
    """The least step over all ways in which every tensor is kept, computed again or offloaded, each a program."""
    egraph, derivation = widened(step)
    names = sorted(tensors_on_hosts(egraph, derivation))
    found = []
    for way in product(range(3), repeat=len(names)):
        again, away = (frozenset(t for t, w in zip(names, way, strict=True) if w in which) for which in ((1, 2), (2,)))
        program = egraph.graph(modes_with(egraph, derivation, again, away))
        answer = relax_resources(build(program, FAST, WHERE, limit).problem, clock=Clock())
        assert answer.status in (Status.OPTIMAL, Status.INFEASIBLE)
        found += [] if answer.cost is None else [answer.cost]
    return min(found, default=None)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in (700_000, 900_000, 1_500_000)]


@pytest.mark.parametrize("limit", [800_000, 1_100_000, *SLOW])
def test_the_optimum_is_that_of_all_ways(limit: int) -> None:
    step = deep(1, 64, 1024)
    request = PlanRequest(step.graph, FAST, None, None, "tensors", WHERE, limit, rewrites=NONE)
    made = carry_out_jointly(request, TimeLimit(Clock()), of=step)
    least = least_of_all_ways(step, limit)
    if least is None:
        assert made.found.answer.status is Status.INFEASIBLE
        return
    assert made.found.answer.status is Status.OPTIMAL and made.plan is not None
    assert made.found.answer.cost == least
    assert check_any_plan(write_plan(None, made.plan)).verdict is Verdict.PROVED


def test_every_way_is_a_program_of_its_own() -> None:
    step = deep(2)
    egraph, derivation = widened(step)
    assert wrong_derivation(egraph, derivation) == ""
    assert {s.rule for s in derivation.steps} == {AGAIN, EQUAL, OFFLOAD}
    for way in ways_of(egraph, derivation):
        program = egraph.graph(modes_with(egraph, derivation, way.again | way.away, way.away))
        assert tensors_on_hosts(egraph, derivation, program) == way.away
        assert set(computed_again(egraph, derivation, program)) == way.again - way.away
        names = [op.name for op in program.operators]
        for t in way.away:
            assert names.index(f"offload:{t}") == names.index(t) + 1
    assert len(ways_of(egraph, derivation)) == 4
    assert (
        len(
            ways_of(*with_recomputation(EGraph(step.graph, (), step.graph.operators), Derivation(LIBRARY, 1, ()), step))
        )
        == 2
    )


def forged(egraph: EGraph, derivation: Derivation, rng: random.Random) -> Iterator[tuple[str, EGraph, Derivation]]:
    """Wrong copies to hosts and back."""
    away = rng.choice([s for s in derivation.steps if s.rule == OFFLOAD and len(s.place) == 1])
    back = next(s for s in derivation.steps if s.rule == OFFLOAD and s.place[-1] == away.node)
    by = {op.name: op for op in egraph.operators}
    there, here = by[away.node], by[back.node]

    def told(step: Step, **changes: object) -> Derivation:
        new = replace(step, **changes)  # type: ignore[arg-type]
        return replace(derivation, steps=tuple(new if s is step else s for s in derivation.steps))

    def put(new: Operator) -> EGraph:
        return replace(egraph, operators=tuple(new if op.name == new.name else op for op in egraph.operators))

    others = [s for s in derivation.steps if s.rule == OFFLOAD and len(s.place) == 1 and s is not away]
    other, another = rng.choice(others), rng.choice([op for op in egraph.base.operators if op.name != away.place[0]])
    yield "of another operator", egraph, told(away, place=(another.name,))
    yield "of no operator", egraph, told(away, place=())
    yield "of two operators", egraph, told(away, place=(*away.place, another.name))
    yield "once more", egraph, told(away, rule=AGAIN)
    yield "an equality", egraph, told(back, rule=EQUAL)
    yield "of an older library", egraph, replace(derivation, library="0" * 64)
    yield "other sizes", egraph, told(away, facts=away.facts[1:])
    yield "back of another tensor", egraph, told(back, place=(another.name, *back.place[1:]))
    yield "back by another copy", egraph, told(back, place=(*back.place[:2], other.node))
    yield "back without the copy", egraph, told(back, place=back.place[:2])
    wrong = next(op for op in egraph.operators if op.name == other.node)
    if egraph.union.tensor(wrong.output.tensor).shape == egraph.union.tensor(there.output.tensor).shape:
        read = replace(here, inputs=(replace(here.inputs[0], tensor=wrong.output.tensor),))
        yield "what another copy took there", put(read), derivation
    yield "another function", put(replace(here, function="identity")), derivation
    yield "an attribute", put(replace(here, attributes=(("value", 2.0),))), derivation
    if len(here.axes) > 1 and here.axes[0].extent == here.axes[1].extent:
        turned = replace(here.output, index=here.output.index[::-1])
        yield "turned", put(replace(here, output=turned)), derivation
    lies = tuple(replace(t, host=False) if t.name == there.output.tensor else t for t in egraph.tensors)
    yield "not on hosts", replace(egraph, tensors=lies), derivation
    stays = tuple(replace(t, host=True) if t.name == here.output.tensor else t for t in egraph.tensors)
    yield "still on hosts", replace(egraph, tensors=stays), derivation


def test_no_forged_copy_is_accepted() -> None:
    rng, seen = random.Random(3), dict[str, int]()
    cases = [widened(deep(2)), widened(deep(3, 16, 32)), widened(deep(2, 32, 64))]
    for _ in range(40):
        egraph, derivation = rng.choice(cases)
        for kind, graphs, steps in forged(egraph, derivation, rng):
            if (graphs, steps) != (egraph, derivation):
                assert wrong_derivation(graphs, steps), kind
                seen[kind] = seen.get(kind, 0) + 1
    assert len(seen) >= 15 and min(seen.values()) >= 3, seen


def test_what_has_a_meaning_gets_no_second_one() -> None:
    egraph, derivation = widened(deep(1))
    step = next(s for s in derivation.steps if s.rule == OFFLOAD and len(s.place) == 1)
    node = next(op for op in egraph.operators if op.name == step.node)
    twin = replace(node, name="twin")
    operators = [x for op in egraph.operators for x in ((op, twin) if op is node else (op,))]
    at = derivation.steps.index(step) + 1
    steps = (*derivation.steps[:at], Step(OFFLOAD, "twin", step.place, facts(twin)), *derivation.steps[at:])
    assert "has a meaning already" in wrong_derivation(
        replace(egraph, operators=tuple(operators)), replace(derivation, steps=steps)
    )


@pytest.mark.parametrize("machine", ["localhost:4", "cloud-a100:2x2", "dgx-h100:1x4", "summit:1x2x3"])
def test_two_checkers_and_a_second_builder_price_them_alike(machine: str) -> None:
    """Operators, forbidden reshardings of what lies on hosts, and memory rows without a byte of it."""
    target = load_machine(machine).with_host("30 GB/s", "assumption: a test")
    planning = build(there_and_back(), target, space("complete"), 1 << 30)
    wrong, coverage = wrong_anywhere(Entries(planning), CELLS, "seed")
    assert wrong == "" and coverage.checked > 10
    away = next(k for k, r in enumerate(planning.routes) if r.tensor == "h")
    table = planning.problem.tables[planning.problem.edges[away].table]
    assert set(table.ravel().tolist()) == {0, FORBIDDEN}
    held = [u for u in planning.problem.usages if u.name.startswith("h")]
    assert held and not any(u.amount.any() for u in held)
    agrees(planning)
    bytes_there = 8 * 12 * 4
    device = target.device
    alone = build(there_and_back(), target.resized([1] * len(target.levels)), space("complete"))
    expected = (bytes_there / (device.host or 1) + device.launch) * alone.problem.scale
    assert int(alone.problem.vertices[alone.operators["h"]].cost[0]) == -(-expected.numerator // expected.denominator)


def test_a_forged_table_of_what_lies_on_hosts_is_found() -> None:
    planning = build(there_and_back(), FAST, WHERE)
    away = next(k for k, r in enumerate(planning.routes) if r.tensor == "h")
    number = planning.problem.edges[away].table
    tables = list(planning.problem.tables)
    tables[number] = tables[number] * 0
    mended = replace(planning, problem=replace(planning.problem, tables=tuple(tables)))
    assert wrong_anywhere(Entries(mended), CELLS, "seed")[0]


def test_machines_say_their_link_to_the_host() -> None:
    plain = load_machine("dgx-a100:2x4")
    told = plain.with_host("25 GB/s", "assumption: PCIe 4.0 x16")
    assert Machine.from_json(told.to_json()) == told != plain
    assert first_difference(told, plain) == "device_class.a100.host 2.5e+10 instead of nothing"
    assert 'host = "25000000000"' in to_toml(told) or "host" in to_toml(told)
    with pytest.raises(MachineError, match="states no link to the host"):
        build(there_and_back(), plain, WHERE)
    for wrong in ('"0 GB/s"', '"-1 GB/s"', '"fast"', "1e999"):
        with pytest.raises(MachineError):
            Machine.from_json(told.to_json().replace('"host":"25000000000"', f'"host":{wrong}'))


def test_graphs_in_which_hosts_are_mistaken_are_refused() -> None:
    graph = there_and_back()
    said = graph.to_json()
    assert Graph.from_json(said) == graph and '"host":true' in said
    for old, new in (
        ('"host":true', '"host":false'),
        ('"function":"from_host"', '"function":"relu"'),
        ('"function":"to_host"', '"function":"relu"'),
        ('"host":true', '"host":1'),
    ):
        assert old in said
        with pytest.raises(ValueError, match=r"host|true"):
            Graph.from_json(said.replace(old, new)).check()


def test_it_goes_through_every_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned under a limit that kept tensors break, beside operators, checked, run, explained, refused by exports."""
    file = tmp_path / "p.spz"
    line = ("plan", "mlp-8192:layers=4,width=16,batch=4096", "--machine", "localhost:4", "--train", "sgd", "--json")
    more = ("--recompute", "tensors", "--memory", "600KiB", "--work-limit", "4M", "--space", "one-per-level")
    assert run([*line, *more, "--offload", "400GB/s", "-o", str(file)]) in (0, 5)
    said = json.loads(capsys.readouterr().out)
    assert said["status"] in ("optimal", "feasible") and said["offloaded"]
    for words in (("check", file), ("run", file, "-n", 4, "--virtual"), ("explain", file)):
        assert run([*map(str, words)]) in (0, 5), words
    assert "~back" in capsys.readouterr().out
    assert run(["export", str(file), "--to", "dtensor", "-o", str(tmp_path / "x.py")]) == 3
    assert "copy tensors to hosts and back, which no target says" in capsys.readouterr().err
    assert run(["export", str(file), "--to", "jax", "-o", str(tmp_path / "x.py")]) == 0  # layouts: the rest is named
    assert "copy tensors to hosts and back, which no target says" in capsys.readouterr().out


def test_copies_to_hosts_run_beside_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have a stream of their own; the checker finds a schedule without it, and a bound that counts them."""
    step = deep(2, 16, 512)
    egraph, derivation = widened(step)
    every = tensors_on_hosts(egraph, derivation)
    program = egraph.graph(modes_with(egraph, derivation, every, every))
    machine = load_machine("localhost:2").with_host("2 GB/s", "assumption: a test")
    _, found = carry_out_overlapped(PlanRequest(program, machine, space=WHERE), TimeLimit(work(20.0)))
    assert isinstance(found, Overlapped)
    claim = found.certificate()
    results = check_overlap(claim, "seed", 100, CELLS)
    assert {r.verdict for r in results} == {Verdict.PROVED} and OF_HOSTS in results[0].assumptions
    assert claim.schedule is not None
    subject = claim.schedule.subject
    assert isinstance(subject, ScheduleProblem) and [s.kind for s in subject.streams] == ["compute", "links", "host"]
    copied = [t for t in subject.tasks if t.streams == (2,)]
    assert len(copied) == 2 * len(every)
    operators = sum(t.time for t in subject.tasks if t.streams == (0,))
    assert claim.makespan < operators + sum(t.time for t in copied)

    def with_subject(other: ScheduleProblem) -> OverlapCertificate:
        assert claim.schedule is not None
        return replace(claim, schedule=replace(claim.schedule, subject=other))

    aside = tuple(replace(t, streams=(0,)) if t.streams == (2,) else t for t in subject.tasks)
    linked = tuple(replace(t, streams=(1,)) if t.streams == (2,) else t for t in subject.tasks)
    nowhere = tuple(replace(t, time=0) if t.streams == (2,) else t for t in subject.tasks)
    for tasks in (aside, linked, nowhere):
        assert (
            check_overlap(with_subject(replace(subject, tasks=tasks)), "seed", 100, CELLS)[0].verdict is Verdict.REFUTED
        )
    few = replace(subject, streams=subject.streams[:2], tasks=aside)
    assert check_overlap(with_subject(few), "seed", 100, CELLS)[0].verdict is Verdict.REFUTED
    counted = replace(claim, lower_bound=claim.makespan)
    assert any(r.verdict is Verdict.REFUTED for r in check_overlap(counted, "seed", 100, CELLS)) or (
        claim.lower_bound == claim.makespan
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--offload", "25GB/s"), "--offload needs"),
        (("--offload", "25GB/s", "--recompute", "tensors"), "weighs time against memory"),
        (("--offload", "25GB/s", "--best", "--memory", "1GiB", "--without", "recompute"), "does without"),
        (("--offload", "25GB/s", "--best", "--memory", "1GiB", "--recompute", "all"), "no tensor is left to choose"),
        (("--offload", "fast", "--recompute", "tensors", "--memory", "1GiB"), "not a decimal number with a unit"),
        (("--offload", "0", "--recompute", "tensors", "--memory", "1GiB"), "0"),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("plan", "mlp-8192:layers=2,width=16,batch=16", "--machine", "localhost:2", "--train", "sgd")
    assert run([*line, *words, "-o", "p.spz"]) == 2
    assert told in capsys.readouterr().err


def test_python_says_it_of_the_machine() -> None:
    with pytest.raises(QuantityError):
        shardproof.machine("4x8", host="fast")
    target = shardproof.machine("localhost:4", host="400 GB/s")
    made = shardproof.plan(
        "mlp-8192:layers=4,width=16,batch=4096",
        target,
        train="sgd",
        memory="600KiB",
        recompute="tensors",
        space_name="one-per-level",
        work_limit=4_000_000,
    )
    assert any(op.function == "from_host" for op in made.graph.operators)


def test_loops_hold_nothing_on_hosts() -> None:
    """Found by an attack: copies inside a body, and what it reads on hosts, were priced as nothing."""
    assert loop("negate", "relu").operators
    for functions, host in ((("to_host", "from_host"), False), (("from_host",), True)):
        with pytest.raises(ValueError, match="in a loop|tensors on hosts"):
            loop(*functions, host=host)


def test_state_stays_where_it_is() -> None:
    """Found by an attack: nobody paid the way of a parameter on a device whose next value is on hosts."""
    g = Builder("state")
    w = g.parameter("w", (8, 8))
    graph = g.build(g.map("out", "relu", g.map("back", "from_host", g.map("next", "to_host", w))))
    with pytest.raises(ValueError, match="lies on devices, its next value 'next' does not"):
        replace(graph, state=(("w", "next"),)).check()


def test_maps_of_a_product_leave_no_device() -> None:
    """Found by an attack: a copy to hosts became part of the product before it."""
    assert not can_follow("to_host") and not can_follow("from_host")


def test_a_strategy_takes_nothing_on_hosts_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found by an attack: it ended in exit 6."""
    (tmp_path / "m.toml").write_text(to_toml(load_machine("localhost:4").with_host("1 GB/s", "assumption: a test")))
    (tmp_path / "g.json").write_text(there_and_back().to_json())
    (tmp_path / "s.json").write_text(
        json.dumps({"back": {"i0": {"ranks": 1}, "i1": {"ranks": 4}}, "h": {"i0": {"ranks": 4}}})
    )
    files = (str(tmp_path / name) for name in ("g.json", "m.toml", "s.json", "o.spz"))
    graph, machine, strategy, out = files
    assert run(["plan", graph, "--machine", machine, "--strategy", strategy, "-o", out]) in (3, 20)
    assert "hosts" in capsys.readouterr().err


def test_overlapped_plans_take_nothing_on_hosts_elsewhere() -> None:
    """Found by an attack: a move that no plan may make was a task of 2^60 units, and proved."""
    graph, machine = there_and_back(), load_machine("localhost:4").with_host("1 GB/s", "assumption: a test")
    planning, found = carry_out_overlapped(PlanRequest(graph, machine, space=WHERE), TimeLimit(work(5.0)))
    assert isinstance(found, Overlapped)
    claim = found.certificate()
    away = next(k for k, r in enumerate(planning.routes) if r.tensor == "h")
    edge = planning.problem.edges[away]
    x = list(found.best.x)
    table = planning.problem.tables[edge.table]
    rows, columns = (
        range(planning.problem.domain_size(v)) if to is None else to
        for v, to in ((edge.u, edge.rows), (edge.v, edge.cols))
    )
    x[edge.u], x[edge.v] = next(
        (i, j) for i, r in enumerate(rows) for j, c in enumerate(columns) if table[r, c] >= FORBIDDEN
    )
    other = replace(claim, choices=planning.choices(tuple(x)))
    assert check_overlap(other, "seed", 100, CELLS)[0].verdict is Verdict.REFUTED
    assert "nothing is moved between" in check_overlap(other, "seed", 100, CELLS)[0].reason


def test_vocabularies_are_said_once(tmp_path: Path) -> None:
    """Found by an attack: parts in the space of the placements had the vocabulary twice."""
    line = ("plan", "mlp-unity", "--batch", "16", "--machine", "localhost:4", "--best", "--vocabulary", "dtensor")
    assert run([*line, "--work-limit", "1M", "-o", str(tmp_path / "p.spz")]) in (0, 5)


def test_no_stage_is_given_what_lies_on_hosts() -> None:
    """Found by an attack: a tensor that takes no bytes of a device was sent to the next stage for nothing."""
    step = deep(2)
    division = divide(step.graph, step.passes)
    crossing = division.cuts[0][0]
    assert wrong_division(step.graph, division) == ""
    away = tuple(replace(t, host=t.name == crossing) for t in step.graph.tensors)
    assert "no message takes it" in wrong_division(replace(step.graph, tensors=away), division)
    assert divide(replace(step.graph, tensors=away), step.passes).units < division.units
