"""What units of a pipelined step cost and hold, where names of operators are not those of tensors and stages share
constants; and menus of their placements.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from budgets import work

from shardproof.formal.plans.pipelines import case as cases
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.layouts import even_choice
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.bound import IMPOSSIBLE, Bounds, all_cuts_reach, closure
from shardproof.models.pipelines.division import SHARED, Division, divide
from shardproof.models.pipelines.micro import micro_batch
from shardproof.models.pipelines.pieces import Pieces
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.program.graph import Role
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.bound import least_step, parts, send
from shardproof.verify.pipelines.certificate import check_pipeline
from shardproof.verify.pipelines.leaves import Units


@cache
def renamed(optimizer: str) -> tuple[Pieces, Units]:
    """A small Llama, whose stages all compute positions and masks, with operators named like other tensors."""
    sizes = {"layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 64, "sequence": 16}
    step = build_step(build("llama", batch=4, **sizes), optimizer)
    outputs = [op.output.tensor for op in step.graph.operators]
    others = [*outputs[1:], outputs[0]]
    operators = tuple(replace(op, name=name) for op, name in zip(step.graph.operators, others, strict=True))
    graph = replace(step.graph, operators=operators).check()
    division = divide(graph, step.passes)
    assert SHARED in division.unit
    planning = build_problem(micro_batch(graph, 2), load_machine("cloud-a100:1x2"), space("complete"), 1 << 40)
    return Pieces(planning, division), Units(planning, division)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_builder_and_checker_agree_whatever_operators_are_called(optimizer: str) -> None:
    """Adam reads a gradient twice, so it has a copy, whose way counts once a step although no update is in the leaf."""
    pieces, units = renamed(optimizer)
    if optimizer == "adam":
        one = units.leaf(0, pieces.division.units, 1, False)
        inside = {v for v, (unit, update) in enumerate(units.where) if unit is not None and unit >= 0 and not update}
        edges = [k for k, e in enumerate(pieces.planning.problem.edges) if {e.u, e.v} <= inside]
        assert len(one.edges) == sum(not units.updating[k] for k in edges) < len(edges)
    rng, n, problem = random.Random(5), pieces.division.units, pieces.planning.problem
    for i, j in itertools.combinations(range(n + 1), 2):
        for times, once in ((1, False), (1, True), (2, True)):
            assert pieces.leaf(i, j, times, int(once)).problem.sha256() == units.leaf(i, j, times, once).sha256()
        x = {v: rng.randrange(problem.domain_size(v)) for v in range(len(problem.vertices))}
        found = pieces.seconds(i, j, x)
        assert (found.forward, found.backward, found.update) == units.seconds(i, j, x)
        names = [pieces.graph.operators[k].name for k in pieces.stage_operators(i, j)]
        assert names == units.operators(i, j)
        for kept, accumulated in ((1, False), (1, True), (3, False), (3, True)):
            change = np.zeros(len(names) + 1, dtype=np.int64)
            for u in pieces.usages(i, j, kept, accumulated):
                change[u.start] += u.amount[x[u.vertex]]
                change[u.end] -= u.amount[x[u.vertex]]
            micro = 2 if accumulated else 1
            assert np.cumsum(change)[:-1].tolist() == units.moments(i, j, x, kept, micro)
            assert int(np.cumsum(change).max()) == units.peak(i, j, x, kept, micro)


def test_runs_that_differ_anywhere_are_not_alike() -> None:
    """A leaf counts for all runs that are alike: one cost, table, row or flag that differs, and it does not; movements
    of updates alone are no difference between leaves without updates.
    """
    step = build_step(build("mlp-8192", batch=4, width=64, layers=5), "adam")
    division = divide(step.graph, step.passes)
    planning = build_problem(micro_batch(step.graph, 2), load_machine("cloud-a100:1x2"), space("complete"), 1 << 40)
    whole, n = planning.problem, division.units
    first = Units(planning, division)
    a, b = next(p for p in itertools.combinations(range(n), 2) if len({first.alike(u, u + 1, True) for u in p}) == 1)
    assert first.leaf(a, a + 1, 2, True).sha256() == first.leaf(b, b + 1, 2, True).sha256()
    mine = [v for v, (unit, _) in enumerate(first.where) if unit == b]
    inside = [k for k, e in enumerate(whole.edges) if {e.u, e.v} <= {*mine}]

    def equal(changed: SelectionProblem | Units, once: bool) -> bool:
        units = changed if isinstance(changed, Units) else Units(planning, division)
        if isinstance(changed, SelectionProblem):
            units.planning = replace(planning, problem=changed)
        return units.alike(a, a + 1, once) == units.alike(b, b + 1, once)

    assert equal(whole, True) and equal(whole, False)
    for v in mine:
        vertices = list(whole.vertices)
        vertices[v] = replace(vertices[v], cost=vertices[v].cost + 1)
        assert not equal(replace(whole, vertices=tuple(vertices)), True)
        units = Units(planning, division)
        units.where[v] = units.where[v][0], not units.where[v][1]
        assert not equal(units, True)
    assert {first.updating[k] for k in inside} == {True, False}
    for k in inside:
        e, edges = whole.edges[k], list(whole.edges)
        for other in (
            replace(e, table=len(whole.tables)),
            replace(e, rows=np.zeros(whole.domain_size(e.u), dtype=np.int64)),
            replace(e, cols=np.zeros(whole.domain_size(e.v), dtype=np.int64)),
            replace(e, u=e.v, v=e.u),
        ):
            edges[k] = other
            tables = (*whole.tables, whole.tables[e.table] + 1)
            changed = replace(whole, edges=tuple(edges), tables=tables)
            assert not equal(changed, True)
            assert equal(changed, False) == first.updating[k]
        units = Units(planning, division)
        units.updating[k] = not units.updating[k]
        assert not equal(units, True)


def straight(optimizer: str) -> tuple[Planning, Division]:
    """Two products with one device: every tensor is whole, so its bytes can be written down."""
    g = Builder("straight")
    x = g.input("x", (2, 8))
    y = g.map("r", "relu", g.contract("y", "b i, i j -> b j", x, g.parameter("w", (8, 16))))
    z = g.contract("z", "b i, i j -> b j", y, g.parameter("v", (16, 32)))
    step = build_step(g.build(g.reduce("loss", "b j -> ", z)), optimizer)
    return (
        build_problem(step.graph, load_machine("cloud-a100:1x1"), space("complete"), 1 << 40),
        divide(step.graph, step.passes),
    )


def held(planning: Planning, division: Division, kept: int, micro: int) -> list[int]:
    """The same from the sentences alone: at every operator of the one stage, what is there."""
    graph = planning.graph
    phase = {op.name: p for op, p in zip(graph.operators, division.phase, strict=True)}
    names = sorted(phase, key=lambda n: ("FBU".index(phase[n]), [op.name for op in graph.operators].index(n)))
    at, by_name = {n: t for t, n in enumerate(names)}, {op.name: op for op in graph.operators}
    updates = sum(p == "U" for p in phase.values())
    total = [0] * len(names)
    next_of, writer = {v: p for p, v in graph.state}, {op.output.tensor: op.name for op in graph.operators}
    for t in graph.tensors:
        readers = [at[op.name] for op in graph.operators if t.name in {a.tensor for a in op.inputs}]
        size, written = t.elements * t.element_bytes, at.get(writer.get(t.name, ""))
        behind = [r for r in readers if phase[names[r]] == "B"]
        forward = written is None or phase[names[written]] == "F"
        final = written is not None and phase[names[written]] == "B" and readers
        final = bool(final) and all(phase[names[r]] == "U" for r in readers)
        for moment in range(len(names)):
            if t.role is Role.PARAMETER:
                total[moment] += size if readers or t.name in planning.copies else 0
                continue
            begin = written if written is not None else min(readers, default=0)
            there = begin <= moment <= max([begin, *readers]) and (readers or written is not None)
            if t.name in next_of:
                there = moment == written
            if t.name in planning.copies:
                total[moment] += size * bool(there)  # the copy; what is written is there at the writer alone
                there = moment == written
                if final and micro > 1 and moment < len(names) - updates:
                    there = True
            elif final and micro > 1:
                there = moment <= max(readers)
            total[moment] += size * bool(there)
            if kept > 1 and forward and behind and moment < len(names) - updates:
                total[moment] += size * (kept - 1)
    for n in names:
        moved = {k: a for k, a in enumerate(by_name[n].inputs) if a.tensor in writer or a.tensor in planning.copies}
        total[at[n]] += sum(
            graph.tensor(a.tensor).elements * graph.tensor(a.tensor).element_bytes for a in moved.values()
        )
    return total


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_a_stage_holds_at_every_operator_is_what_the_page_says(optimizer: str) -> None:
    """On one device, byte for byte: gradients lie until their update has read them, kept activations until the last
    backward, and none of them where a stage takes no time.
    """
    planning, division = straight(optimizer)
    units, pieces = Units(planning, division), Pieces(planning, division)
    x = dict.fromkeys(range(len(planning.decisions)), 0)
    assert any(phase == "U" for phase in division.phase)
    for kept, micro in ((0, 1), (1, 1), (1, 2), (2, 2), (5, 8)):
        found = units.moments(0, division.units, x, kept, micro)
        assert found == held(planning, division, kept, micro)
        change = [0] * (len(found) + 1)
        for u in pieces.usages(0, division.units, kept, micro > 1):
            change[u.start] += int(u.amount[0])
            change[u.end] -= int(u.amount[0])
        assert list(itertools.accumulate(change))[:-1] == found


def test_parts_of_a_machine_are_cut_from_the_outermost_level() -> None:
    for shape, stages, sizes in (
        ("cloud-a100:1x4", 2, (1, 2)),
        ("cloud-a100:4x2", 2, (2, 2)),
        ("cloud-a100:2x4", 4, (1, 2)),
        ("cloud-a100:2x4", 8, (1, 1)),
        ("cloud-a100:6x4", 4, None),
        ("cloud-a100:2x4", 16, None),
        ("cloud-a100:2x4", 1, (2, 4)),
    ):
        machine = load_machine(shape)
        assert parts(machine, stages) == sizes
        if sizes is None:
            with pytest.raises(ValueError, match=f"does not divide into {stages} parts"):
                send(machine, stages, 1, True)


def answered(memory: int | None) -> SearchOutcome:
    step = build_step(build("bert-tiny", batch=4096, layers=1), "adam")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x2"), space("complete"), memory)
    return search_pairs(job, [(2, 4)], work(60.0), Fraction(1, 50))


def test_stages_of_unit_options_are_near_the_best_ones_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = answered(None).best
    monkeypatch.setattr(cases, "MOST_WHOLE", 0)
    free = answered(None).best
    assert whole is not None and free is not None and free.step <= 1.02 * whole.step
    limit = int(0.8 * max(free.memory))
    found = answered(limit)
    assert found.best is not None and max(found.best.memory) <= limit
    results = check_pipeline(found.certificate(), "seed", 50, CELLS)
    assert [r.reason for r in results if r.verdict is not Verdict.PROVED] == []
    assert answered(1 << 20).best is None


def test_a_value_is_reached_if_every_cut_has_a_line_at_it() -> None:
    rng = random.Random(3)
    for _ in range(150):
        n, m, limit = rng.randint(2, 7), rng.randint(1, 6), rng.randint(5, 20)
        runs = [
            {(i, j): rng.randint(0, 30) for i, j in itertools.combinations(range(n + 1), 2) if rng.random() < 0.7}
            for _ in range(3)
        ]
        one, updated, step = (closure(n, known) for known in runs)
        weight = [rng.randint(1, 6) for _ in range(n)]
        for i, j in itertools.combinations(range(n + 1), 2):
            if sum(weight[i:j]) > limit:
                one[i][j] = updated[i][j] = step[i][j] = IMPOSSIBLE
        forward = [rng.randint(0, 6) for _ in range(n)]
        there = [rng.randint(0, 3) for _ in range(n)]
        sends = [c + rng.randint(0, 3) for c in there]
        for p in range(2, n + 1):
            best = IMPOSSIBLE
            for cut in itertools.combinations(range(1, n), p - 1):
                worst = whole = ahead = 0
                for s, (i, j) in enumerate(itertools.pairwise((0, *cut, n))):
                    worst = max(worst, ahead + step[i][j], whole + m * one[i][j] if s else 0)
                    if j < n:
                        whole += (one if s else updated)[i][j] + sends[j]
                        ahead += sum(forward[i:j]) + there[j]
                best = min(best, worst)
            known = Bounds(one, updated, step)
            arguments = [runs[0]], [runs[1]], [runs[2]]
            for value in (best, best + 1):
                if value >= IMPOSSIBLE:
                    continue
                assert all_cuts_reach(known, forward, m, sends, there, p, value) == (value == best)
                checked = least_step(n, p, m, arguments, sends, (weight, limit), (value, forward, there))
                assert (checked == value) == (value == best) and checked <= value


def test_what_crosses_a_cut_splits_its_first_dimensions_over_the_outermost_levels() -> None:
    """Ways of a sequence that lie between nodes would be walked for every key and value; in a node they are cheap."""
    step = build_step(build("bert-tiny", batch=16), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:4x4"), space("complete"), None)
    case = cases.Case(job, 2, 4)  # four sequences on 2x4
    decisions, copies = case.pieces.planning.decisions, case.pieces.planning.copies
    name = job.division.cuts[1][0]
    found = even_choice(case.pieces.planning, name, (0, 1, 2))
    assert found is not None
    decision = decisions[copies[name]]
    rows = {int(a): decision.placements[found][k].tolist() for k, a in enumerate(decision.axes)}
    assert rows[0] == [2, 2] and rows[1] == [1, 2]


@pytest.mark.slow
def test_all_pairs_together_are_no_worse_than_any_alone() -> None:
    step = build_step(build("bert-tiny", batch=64), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("2x2"), space("complete"), None)
    pairs = [(1, 1), *((p, m) for p in (2, 4) for m in (2, 8))]
    together = search_pairs(job, pairs, work(60.0), Fraction(1, 100))
    assert together.best is not None
    for pair in pairs:
        alone = search_pairs(job, [pair], work(60.0), Fraction(1, 100)).best
        assert alone is None or together.best.step <= alone.step * Fraction(101, 100), pair
    # leaves of pairs that least work excludes are not in the file, and it is proved without them
    certificate = together.certificate()
    kept = {(leaf.stages, leaf.micro) for leaf in certificate.leaves}
    assert all((c.stages, c.micro) not in kept for c in together.cases if c.coarse >= together.lower_bound)
    assert [r.reason for r in check_pipeline(certificate, "seed", 50, CELLS) if r.verdict is not Verdict.PROVED] == []
    if 1 < together.best.case.stages:
        assert any(c.coarse < together.lower_bound for c in together.cases)
