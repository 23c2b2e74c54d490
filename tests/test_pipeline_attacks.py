"""What a pipelined step might claim wrongly: batches that cannot be cut, work that is counted too often, bounds above
the least of all schedules."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from budgets import work

from shardproof.formal.plans.pipelines.case import Case
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.scheduled import waiting
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import Division, divide
from shardproof.models.pipelines.micro import micro_batch
from shardproof.models.pipelines.work import unit_bytes
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.contents import Contents
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.pipelines.certificate import Leaf, PipelineCertificate
from shardproof.proofs.schedules.certificate import ScheduleCertificate
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.bound import least_bytes
from shardproof.verify.pipelines.certificate import _Check as Checker
from shardproof.verify.pipelines.certificate import check_pipeline
from shardproof.verify.pipelines.division import micro_batch_graph, wrong_division
from shardproof.verify.pipelines.held import crossing
from shardproof.verify.pipelines.leaves import Units
from shardproof.verify.selection.multiples import multiple

B, D = 4, 6


def gram(g: Builder) -> str:
    """Every element of the batch with every other: the sum over parts has the pairs within parts alone."""
    return g.contract("pairs", "b d, c d -> b c", "x", "x")


def first_alone(g: Builder) -> str:
    g.operator("first", "copy", [Axis("d", D)], [access("x", Affine((), 0), "d")], ["d"])
    return "first"


def shifted(g: Builder) -> str:
    axes = [Axis("b", B), Axis("d", D)]
    g.operator("late", "copy", axes, [access("x", Affine.axis("b").shift(-1), "d")], ["b", "d"])
    return "late"


def numbered(g: Builder) -> str:
    """The position in the batch."""
    g.iota("number", (B,), 0)
    return g.map("weighted", "multiply", "x", "number", text="b d, b -> b d")


def padded(g: Builder) -> str:
    """Beyond the batch nothing is read, so parts would have padding of their own."""
    g.operator("wide", "copy", [Axis("b", B + 2), Axis("d", D)], [access("x", "b", "d")], ["b", "d"])
    return "wide"


def stated(g: Builder) -> str:
    g.operator("values", "constant", [Axis("b", B)], [], ["b"], {"values": (1, 2, 3, 4)})
    return g.map("weighted", "multiply", "x", "values", text="b d, b -> b d")


def finished(g: Builder) -> str:
    """The negative of a sum is no trouble, its square root is; what an epilogue does is not looked at."""
    axes = [Axis("b", B, Combine.SUM), Axis("d", D)]
    attributes = {"parts": (1,), "maps": ("sqrt",)}
    g.operator("rooted", "fused_product", axes, [access("x", "b", "d")], ["d"], attributes)
    return "rooted"


def returned(g: Builder) -> str:
    """Every element gets the sum of all: linear, and not the sum of what parts get."""
    g.reduce("all", "b d -> d", "x")
    return g.map("back", "sum_inputs", "x", "all", text="b d, d -> b d")


def rooted(g: Builder) -> str:
    g.reduce("all", "b d -> d", "x")
    return g.map("root", "sqrt", "all")


def greatest(g: Builder) -> str:
    return g.reduce("most", "b d -> d", "x", Combine.MAX)


def softened(g: Builder) -> str:
    return g.normalise("soft", "softmax", "b d -> b d", "x", over=["b"])


def averaged(g: Builder) -> str:
    axes = [Axis("b", B, Combine.SUM, False), Axis("d", D)]
    g.operator("mean", "average_pool", axes, [access("x", "b", "d")], ["d"])
    return "mean"


@pytest.mark.parametrize(
    "joins",
    [gram, first_alone, shifted, numbered, returned, rooted, greatest, softened, averaged, stated, padded, finished],
    ids=lambda f: f.__name__,
)
def test_elements_of_a_batch_that_meet_are_found(joins: Callable[[Builder], str]) -> None:
    g = Builder("meeting")
    g.input("x", (B, D))
    out = joins(g)
    graph = Graph("meeting", tuple(g.tensors.values()), tuple(g.operators), (out,))
    count = len(graph.operators)
    found, reason = micro_batch_graph(graph, 2, Division((0,) * count, ("F",) * count, ()))
    assert reason and found is graph
    if joins not in (returned, rooted, greatest):  # what is made of a sum is for the checker alone
        with pytest.raises(InputError, match="no micro-batches"):
            micro_batch(graph, 2)


def test_a_constant_of_the_batch_is_found() -> None:
    """Stated contents that run along it: every micro-batch would see the first part of them."""
    g = Builder("weighted")
    g.input("x", (B, D))
    g.input("k", (B,))
    g.map("y", "multiply", "x", "k", text="b d, b -> b d")
    plain = g.build("y")
    said = Division((0,), ("F",), ())
    assert micro_batch_graph(plain, 2, said)[1] == ""
    tensors = tuple(replace(t, contents=Contents("0" * 64)) if t.name == "k" else t for t in plain.tensors)
    graph = replace(plain, tensors=tensors)
    assert "constant 'k'" in micro_batch_graph(graph, 2, said)[1]
    with pytest.raises(InputError, match="constant 'k'"):
        micro_batch(graph, 2)


def test_what_runs_once_a_step_cannot_be_counted_for_every_micro_batch() -> None:
    """Every update called part of the backward pass is refused by name."""
    for optimizer in ("sgd", "adam"):
        step = build_step(build("mlp-8192", batch=4, width=8, layers=2), optimizer)
        d = divide(step.graph, step.passes)
        assert wrong_division(step.graph, d) == ""
        for i, phase in enumerate(d.phase):
            if phase == "U":
                for other in "FB":
                    changed = replace(d, phase=(*d.phase[:i], other, *d.phase[i + 1 :]))
                    assert wrong_division(step.graph, changed) != "", step.graph.operators[i].name


def test_what_is_made_of_finished_gradients_is_an_update() -> None:
    """It may run once a step: counted for every micro-batch it would raise the bound."""
    g = Builder("scaled")
    g.input("x", (B, D))
    g.parameter("w", (D, D))
    g.contract("y", "b i, i j -> b j", "x", "w")
    g.contract("g", "b i, b j -> i j", "x", "y")
    g.map("h", "negate", "g")
    g.map("n", "sgd_update", "w", "h")
    graph = replace(g.build("y"), state=(("w", "n"),)).check()
    assert divide(graph, [("F", 0), ("B", 0), ("B", 0), ("U", -1)]).phase == ("F", "B", "U", "U")
    assert wrong_division(graph, Division((0,) * 4, ("F", "B", "U", "U"), ())) == ""
    assert "is no update" in wrong_division(graph, Division((0,) * 4, ("F", "B", "B", "U"), ()))
    assert "is no update" in wrong_division(graph, Division((0,) * 4, ("F", "B", "B", "B"), ()))


def test_updates_read_sums_over_the_batch() -> None:
    """What every micro-batch computes again is no sum: it would count for each of them."""
    g = Builder("again")
    g.input("x", (B, D))
    g.parameter("w", (D, D))
    g.map("t", "negate", "w")
    g.contract("y", "b i, i j -> b j", "x", "t")
    g.map("n", "sgd_update", "w", "t")
    graph = replace(g.build("y"), state=(("w", "n"),)).check()
    d = Division((0,) * 3, ("F", "F", "U"), ())
    assert wrong_division(graph, d) == ""
    assert "reads 't', which is no sum over the batch" in micro_batch_graph(graph, 2, d)[1]


def chain(copied: bool) -> Graph:
    """Forward a, b, c and backward gc, gb, ga; c reads b, or where nothing is between them a."""
    g = Builder("chain")
    g.input("x", (B, D))
    g.map("a", "relu", "x")
    g.map("b", "relu", "x")
    g.map("c", "relu", "a")
    g.map("gc", "negate", "c")
    g.map("gb", "negate", "b")
    g.map("ga", "negate", "gc")
    return g.build("a", "b", "ga", "gc") if copied else g.build("b", "ga")


def test_what_crosses_a_cut_is_written_beside_it_and_has_a_layout() -> None:
    phases = ("F", "F", "F", "B", "B", "B")
    plain = chain(True)
    two = Division((0, 0, 1, 1, 0, 0), phases, (("a", "gc"),))
    assert wrong_division(plain, two) == ""
    three = Division((0, 1, 2, 2, 1, 0), phases, (("a", "gc"), ("a", "gc")))  # over a unit that has no part in it
    assert "not written beside it" in wrong_division(plain, three)
    assert "no layouts of their own" in wrong_division(chain(False), two)
    over = Division((0, 0, 1, 1, 0, 0), ("F", "F", "U", "U", "B", "U"), (("a", "gc"),))  # updates across a cut
    assert "of unit 1 reads 'a' of unit 0" in wrong_division(plain, over)


def test_what_every_stage_computes_is_of_the_forward_pass() -> None:
    g = Builder("numbers")
    g.input("x", (B, D))
    g.iota("i", (D,), 0)
    g.map("y", "multiply", "x", "i", text="b d, d -> b d")
    g.map("z", "relu", "y")
    graph = g.build("z")
    assert wrong_division(graph, Division((-1, 0, 0), ("F", "F", "F"), ())) == ""
    for phase in "BU":
        assert "not of the forward pass" in wrong_division(graph, Division((-1, 0, 0), (phase, "F", "F"), ()))
    assert "more than constants" in wrong_division(graph, Division((-1, -1, 0), ("F", "F", "F"), ()))


def sequences(micro: int) -> Iterator[str]:
    """Orders of the forwards and backwards of a stage."""
    for places in itertools.combinations(range(2 * micro), micro):
        order = "".join("F" if k in places else "B" for k in range(2 * micro))
        if all(order[:k].count("F") >= order[:k].count("B") for k in range(2 * micro + 1)):
            yield order


def shortest(times: list[tuple[int, int, int]], sends: list[tuple[Fraction, Fraction]], micro: int) -> Fraction:
    """The least step over all orders on every stage: forward, backward, update per stage; sends there and back."""
    best, stages = Fraction(1 << 62), len(times)
    for orders in itertools.product(tuple(sequences(micro)), repeat=stages):
        ends: dict[tuple[str, int, int], Fraction] = {}
        free, at = [Fraction(0)] * stages, [[0, 0] for _ in range(stages)]
        moved = True
        while moved:
            moved = False
            for s, order in enumerate(orders):
                while sum(at[s]) < 2 * micro:
                    kind = order[sum(at[s])]
                    i = at[s][kind == "B"]
                    need = (kind, s - 1, i) if kind == "F" else (kind, s + 1, i)
                    lag = sends[s - 1][0] if kind == "F" and s else sends[s][1] if kind == "B" and s + 1 < stages else 0
                    if 0 <= need[1] < stages:
                        if need not in ends:
                            break
                        ready = ends[need] + lag
                    else:
                        ready = Fraction(0)
                    free[s] = max(free[s], ready) + times[s][kind == "B"]
                    ends[kind, s, i] = free[s]
                    at[s][kind == "B"] += 1
                    moved = True
        if all(sum(a) == 2 * micro for a in at):
            best = min(best, max(f + t[2] for f, t in zip(free, times, strict=True)))
    return best


def alone(case: Case) -> list[tuple[int, int, int]]:
    """(forward, backward, updates) of every unit on one device, in picoseconds, rounded down; movements on one device
    take no time.
    """
    division, planning = case.job.division, case.pieces.planning
    found = [[Fraction(0)] * 3 for _ in range(division.units)]
    for op, u, phase in zip(case.graph.operators, division.unit, division.phase, strict=True):
        if u >= 0:
            cost = planning.problem.vertices[planning.operators[op.name]].cost
            assert len(cost) == 1
            found[u]["FBU".index(phase)] += Fraction(int(cost[0]) * 10**12, planning.problem.scale)
    assert all(int(t.max()) == 0 for t in planning.problem.tables)
    return [(int(f), int(b), int(u)) for f, b, u in found]


@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (2, 2), (2, 4), (3, 2), (4, 2), (4, 1)])
def test_the_bound_is_not_above_any_schedule_of_any_cut(stages: int, micro: int) -> None:
    """One device per stage: every cut with every order, against the bound, the plan and the checker."""
    step = build_step(build("mlp-8192", batch=4, width=256, layers=5), "adam")
    machine = load_machine(f"1x{stages}")
    job = Job(step.graph, divide(step.graph, step.passes), machine, space("complete"), None)
    found = search_pairs(job, [(stages, micro)], work(30.0), Fraction(0))
    certificate = found.certificate()
    results = check_pipeline(certificate, "seed", 50, CELLS)
    assert [r.verdict for r in results] == [Verdict.PROVED] * len(results), [r.reason for r in results]
    case = found.cases[0]
    units, n, level = alone(case), job.division.units, machine.levels[-1]
    best = Fraction(1 << 62)
    for cut in itertools.combinations(range(1, n), stages - 1):
        times, sends = [], []
        for i, j in itertools.pairwise((0, *cut, n)):
            f, b, u = (sum(t[k] for t in units[i:j]) for k in range(3))
            times.append((f, b, u))
        for c in cut:
            sizes = [case.graph.tensor(t) for t in job.division.cuts[c - 1]]
            lags = [Fraction(t.elements * t.element_bytes) / level.bandwidth + level.latency for t in sizes]
            sends.append((lags[0] * 10**12, lags[1] * 10**12))
        best = min(best, shortest(times, sends, micro))
    assert certificate.lower_bound <= best <= certificate.step
    assert certificate.lower_bound >= 0.7 * best  # and says something


@pytest.mark.parametrize("micro", [1, 2])
def test_the_bound_is_not_above_any_placement(micro: int) -> None:
    """Two stages of two devices: all placements of every stage, boundaries free, with all orders."""
    step = build_step(build("mlp-8192", batch=4, width=64, layers=3), "sgd")
    machine = load_machine("cloud-a100:2x2")
    job = Job(step.graph, divide(step.graph, step.passes), machine, space("complete"), None)
    case = Case(job, 2, micro)
    case.prove(1, Clock())
    case.update_bound(1 << 62)
    n, best = job.division.units, Fraction(1 << 62)
    assert n > 1
    for c in range(1, n):
        sends = []
        for name in job.division.cuts[c - 1]:
            size = case.graph.tensor(name).elements * case.graph.tensor(name).element_bytes
            lags = [Fraction(size, k) / x.bandwidth + x.latency for k, x in enumerate(machine.levels, 1)]
            sends.append(sum(lags) * 10**12)
        for one, two in itertools.product(front(case, 0, c), front(case, c, n)):
            best = min(best, shortest([one, two], [(sends[0], sends[1])], micro))
    assert 0.7 * best <= case.bound <= best


def front(case: Case, first: int, end: int) -> list[tuple[int, int, int]]:
    """(forward, backward, updates) that no other placement of these units betters, in picoseconds."""
    planning, division, graph = case.pieces.planning, case.job.division, case.graph
    problem, phase = planning.problem, dict(zip((op.name for op in graph.operators), division.phase, strict=True))
    unit = dict(zip((op.name for op in graph.operators), division.unit, strict=True))
    writer = {op.output.tensor: op.name for op in graph.operators}
    names = [d.name for d in planning.decisions]
    decided: dict[int, str] = {v: name for name, v in planning.operators.items() if first <= unit[name] < end}
    reads = {a.tensor for name in decided.values() for op in graph.operators if op.name == name for a in op.inputs}
    for tensor, v in planning.copies.items():
        owner = writer.get(tensor)
        if (owner is not None and first <= unit[owner] < end) or (owner is None and tensor in reads):
            decided[v] = owner or ""
    assert len(names) == len(problem.vertices)
    gradients = {
        t.name
        for t in graph.tensors
        if t.name in writer
        and phase[writer[t.name]] == "B"
        and {phase[op.name] for op in graph.operators if t.name in {a.tensor for a in op.inputs}} == {"U"}
    }
    points: set[tuple[int, int, int]] = {(0, 0, 0)}
    order = sorted(decided)
    states: dict[tuple[int, ...], set[tuple[int, int, int]]] = {(): points}
    for k, v in enumerate(order):
        grown: dict[tuple[int, ...], set[tuple[int, int, int]]] = {}
        for x, sums in states.items():
            for choice in range(problem.domain_size(v)):
                extra = [0, 0, 0]
                name = decided[v]
                if v in planning.operators.values():
                    extra["FBU".index(phase[name])] += int(problem.vertices[v].cost[choice])
                chosen = {**dict(zip(order[:k], x, strict=True)), v: choice}
                for number, e in enumerate(problem.edges):
                    if v in (e.u, e.v) and e.u in chosen and e.v in chosen:
                        route = planning.routes[number]
                        ends = [names[w] for w in (e.u, e.v) if w in planning.operators.values()]
                        once = route.tensor in gradients or any(phase[q] == "U" for q in ends)
                        row = chosen[e.u] if e.rows is None else int(e.rows[chosen[e.u]])
                        column = chosen[e.v] if e.cols is None else int(e.cols[chosen[e.v]])
                        kind = "U" if once else phase[ends[-1]]
                        extra["FBU".index(kind)] += int(problem.tables[e.table][row, column])
                new = {(f + extra[0], b + extra[1], u + extra[2]) for f, b, u in sums}
                grown.setdefault((*x, choice), set()).update(new)
        states = best_of(grown, problem.edges, order, k)
    scale = Fraction(10**12, problem.scale)
    every = {p for sums in states.values() for p in sums}
    return [(int(f * scale), int(b * scale), int(u * scale)) for f, b, u in minimal(every)]


def best_of(
    grown: dict[tuple[int, ...], set[tuple[int, int, int]]], edges: object, order: list[int], k: int
) -> dict[tuple[int, ...], set[tuple[int, int, int]]]:
    """Of choices that agree on every vertex with a later neighbour, the best sums; the others' places hold 0."""
    later = {
        w
        for e in edges
        for w, o in ((e.u, e.v), (e.v, e.u))
        if w in order[: k + 1] and o in order[k + 1 :]  # type: ignore[attr-defined]
    }
    merged: dict[tuple[int, ...], set[tuple[int, int, int]]] = {}
    for x, sums in grown.items():
        key = tuple(c if v in later else 0 for v, c in zip(order, x, strict=False))
        merged.setdefault(key, set()).update(sums)
    return {x: set(minimal(sums)) for x, sums in merged.items()}


def minimal(points: set[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Points that no other is at most in everything."""
    kept: list[tuple[int, int, int]] = []
    for p in sorted(points):
        if not any(q[1] <= p[1] and q[2] <= p[2] for q in kept):
            kept.append(p)
    return kept


def certified() -> PipelineCertificate:
    step = build_step(build("mlp-8192", batch=4, width=64, layers=3), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:1x2"), space("complete"), None)
    return search_pairs(job, [(2, 2)], work(30.0), Fraction(1, 10)).certificate()


def reasons(c: PipelineCertificate) -> str:
    return " ".join(r.reason for r in check_pipeline(c, "seed", 50, CELLS) if r.verdict is not Verdict.PROVED)


def test_pairs_are_distinct_and_the_plan_is_one_of_them() -> None:
    c = certified()
    assert reasons(c) == ""
    assert "more than once" in reasons(replace(c, pairs=(*c.pairs, *c.pairs)))
    assert "not among those enumerated" in reasons(replace(c, pairs=((1, 1),)))
    assert reasons(replace(c, pairs=())) != ""
    assert "leaf belongs to none" in reasons(replace(c, leaves=(replace(c.leaves[0], micro=4),)))


def test_every_claim_of_stages_and_schedule_is_looked_at() -> None:
    """What no other condition would see: each mutant is refuted for its own reason."""
    c = certified()
    pipe = c.schedule.subject
    assert isinstance(pipe, Pipeline)
    assert "cannot be cut into 3" in reasons(replace(c, pairs=(*c.pairs, (2, 3))))
    wide = replace(c, machine=load_machine("cloud-a100:1x16"), pairs=(*c.pairs, (16, 2)))
    assert reasons(wide) != ""
    (first, second), n = c.stages, c.division.units
    assert "not all units" in reasons(replace(c, stages=(first, replace(second, end=n - 1))))
    assert "not all units" in reasons(replace(c, stages=(second, first)))
    assert "not all units" in reasons(replace(c, stages=()))

    def scheduled(subject: Pipeline | ScheduleProblem) -> PipelineCertificate:
        found = search(shop(subject), work(0.1))
        s = ScheduleCertificate(subject, found.starts, found.makespan, found.lower_bound, found.bound, "best")
        return replace(c, schedule=s)

    assert "one chunk a stage" in reasons(scheduled(pipe.problem()))
    assert "one chunk a stage" in reasons(scheduled(replace(pipe, chunks=2)))
    assert "other stages" in reasons(scheduled(replace(pipe, times=(*pipe.times, pipe.times[0]))))
    assert "other stages" in reasons(scheduled(replace(pipe, micro_batches=3)))
    less = replace(first.choices, operators=first.choices.operators[1:])
    assert "not those of its operators" in reasons(replace(c, stages=(replace(first, choices=less), second)))
    twice = replace(first.choices, copies=(*first.choices.copies, first.choices.copies[0]))
    assert "decided twice" in reasons(replace(c, stages=(replace(first, choices=twice), second)))


def test_a_leaf_counts_one_micro_batch_or_all_with_the_updates() -> None:
    """Honest certificates of more micro-batches than there are, or of all without the updates: counted too often."""
    step = build_step(build("mlp-8192", batch=4, width=64, layers=3), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:1x2"), space("complete"), None)
    found = search_pairs(job, [(2, 2)], work(30.0), Fraction(1, 10))
    c, case = found.certificate(), found.cases[0]
    for times, once in ((3, True), (2, False), (0, True)):
        part = case.pieces.leaf(0, 1, times, int(once))
        answer = solve(part.problem)
        assert answer.certificate is not None and answer.lower_bound is not None
        value = answer.lower_bound * 10**12 // part.problem.scale
        leaf = Leaf(2, 2, 0, 1, times, once, value, answer.certificate)
        assert f"counts {times} of 2" in reasons(replace(c, leaves=(*c.leaves, leaf)))


def test_costs_that_would_look_forbidden_are_not_multiplied() -> None:
    """A forbidden choice has no cost, so a bound over the others would be too high."""
    assert multiple(np.array([5, FORBIDDEN - 1]), 1).tolist() == [5, FORBIDDEN - 1]
    for values, factor in (([1 << 50], 1 << 11), ([FORBIDDEN - 1], 2), ([1 << 55], 1 << 20)):
        with pytest.raises(ContainerError, match="too large"):
            multiple(np.array(values), factor)


def test_more_stages_than_units_are_refused() -> None:
    step = build_step(build("mlp-8192", batch=4, width=64, layers=3), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:1x8"), space("complete"), None)
    c = search_pairs(job, [(2, 2)], work(30.0), Fraction(1, 10)).certificate()
    assert reasons(c) == ""
    assert f"8 stages of {job.division.units} units" in reasons(replace(c, pairs=(*c.pairs, (8, 2))))


def test_stages_are_planned_within_a_vocabulary() -> None:
    """Every placement of a stage is one that the framework says; another one, or another space, is refuted."""
    sizes = {"heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 64, "sequence": 8}
    step = build_step(build("llama", batch=4, layers=1, width=32, **sizes), "sgd")
    machine, division = load_machine("cloud-a100:1x4"), divide(step.graph, step.passes)
    job = Job(step.graph, division, machine, space("complete,dtensor"), None)
    c = search_pairs(job, [(1, 2)], work(2.0), Fraction(1, 10)).certificate()
    assert reasons(c) == ""
    flags = check_pipeline(c, "seed", 50, CELLS)[0].assumptions
    assert "said-by-dtensor" in flags
    planning = build_problem(micro_batch(step.graph, 2), machine, space("complete,dtensor"), None)
    (stage,), tried = c.stages, 0
    for k, (name, _) in enumerate(stage.choices.operators):
        v = planning.operators[name]
        cost = planning.problem.vertices[v].cost
        for choice in np.flatnonzero(cost >= FORBIDDEN)[:1]:
            unsaid = (name, planning.decisions[v].placement(int(choice)))
            rows = (*stage.choices.operators[:k], unsaid, *stage.choices.operators[k + 1 :])
            wrong = replace(stage, choices=replace(stage.choices, operators=rows))
            assert "one of those that are forbidden" in reasons(replace(c, stages=(wrong,)))
            tried += 1
        if tried == 3:
            break
    assert tried == 3
    assert reasons(replace(c, space="complete")) != ""
    assert reasons(replace(certified(), space="complete,dtensor")) != ""


def test_no_stage_needs_less_than_its_least_bytes() -> None:
    """Random placements of runs of units, one activation kept: the devices together have what the bound says."""
    step = build_step(build("bert-tiny", batch=16), "adam")
    division = divide(step.graph, step.passes)
    rng = random.Random(9)
    for micro in (1, 4):
        planning = build_problem(
            micro_batch(step.graph, micro), load_machine("cloud-a100:1x2"), space("complete"), 1 << 40
        )
        units, least = Units(planning, division), least_bytes(planning.graph, division, micro)
        assert least == unit_bytes(planning.graph, division, micro > 1) and min(least) > 0
        nearest = 0.0
        for i, j in itertools.combinations(range(division.units + 1), 2):
            for _ in range(3):
                x = {v: rng.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions))}
                need = 2 * units.peak(i, j, x, 1, micro)
                assert need >= sum(least[i:j])
                nearest = max(nearest, sum(least[i:j]) / need)
        assert nearest > 0.3  # and it is not idle


@pytest.mark.parametrize("machine", ["4x1", "2x2"])
def test_what_waits_between_stages_is_counted_twice_alike(machine: str) -> None:
    """Every moment at which a block is there, one by one, against both sides' counts."""
    step = build_step(build("mlp-8192", batch=8, width=16, layers=5), "sgd")
    job = Job(
        step.graph, divide(step.graph, step.passes), load_machine(f"cloud-a100:{machine}"), space("complete"), None
    )
    made = search_pairs(job, [(4, 4)], work(30.0), Fraction(1, 2)).best
    assert made is not None
    c = SearchOutcome(job, made, [made.case], 0).certificate()
    planning = made.case.pieces.planning
    units, check = Units(planning, c.division), Checker(c, "seed", 10, CELLS, None)
    pipe = c.schedule.subject
    assert isinstance(pipe, Pipeline)
    begin = c.schedule.starts.reshape(3, 4, 4)
    times = np.repeat(np.array(pipe.times).T[:, :, None], 4, axis=2)
    found = waiting(made.case, made.stages, pipe, c.schedule.starts)
    assert sum(found) > 0 and found == made.waiting
    for s in range(4):
        assert found[s] == crossing(c, units, s, check.lags(), times.reshape(-1))
        total = 0
        for k in (0, 1):
            for there, lasts in ((s - 1 if k == 0 else s + 1, False), (s + 1 if k == 0 else s - 1, True)):
                if 0 <= there < 4:
                    lag = pipe.hops[min(s, there)] if pipe.hops else pipe.send
                    rows = [
                        (int(begin[k, s, i] + times[k, s, i]), int(begin[k, s, i] + times[k, s, i]) + lag)
                        if lasts
                        else (int(begin[k, there, i] + times[k, there, i]), int(begin[k, s, i]))
                        for i in range(4)
                    ]
                    most = max(sum(a <= t < b for a, b in rows) for t, _ in rows)
                    name = c.division.cuts[c.stages[max(s, there)].first - 1][k]
                    total += most * made.case.graph.tensor(name).elements * 4
        assert total == found[s]


def test_units_that_fit_nowhere_raise_the_bound_and_memory_is_held_to_the_byte() -> None:
    step = build_step(build("mlp-8192", batch=4, width=256, layers=5), "adam")
    division, machine = divide(step.graph, step.passes), load_machine("cloud-a100:1x2")
    free = search_pairs(
        Job(step.graph, division, machine, space("complete"), None), [(1, 1), (2, 2)], work(30.0), Fraction(0)
    )
    assert free.best is not None
    need = max(free.best.memory)
    limit = (
        free.cases[0].live_bytes(0, free.job.division.units, 1) // 4 + 1
    )  # one device's half would not hold all of it
    tight = search_pairs(
        Job(step.graph, division, machine, space("complete"), limit), [(1, 1), (2, 2)], work(30.0), Fraction(0)
    )
    assert tight.cases[0].bound >= 1 << 62 > free.cases[0].bound
    exact = search_pairs(Job(step.graph, division, machine, space("complete"), need), [(2, 2)], work(30.0), Fraction(0))
    assert exact.best is not None and max(exact.best.memory) <= need
    c = exact.certificate()
    assert reasons(c) == ""
    assert "the limit is" in reasons(replace(c, memory=max(exact.best.memory) - 1))


@pytest.mark.parametrize("counted", [True, False])
def test_a_mean_over_labels_that_count_is_refused_and_one_over_all_is_not(counted: bool) -> None:
    """Micro-batches have other numbers of labels than the batch has; a constant divides them all alike."""
    g = Builder("labels", "float64")
    y = g.input("x", (4, 6))
    for k in range(3):
        y = g.map(f"y{k}", "relu", g.contract(f"z{k}", "b k, k n -> b n", y, g.parameter(f"w{k}", (6, 6))))
        y = g.map(f"s{k}", "add", y, y, text="b n, b n -> b n")
    squares = g.map("squares", "multiply", y, y, text="b n, b n -> b n")
    mark = g.map("mark", "sign", g.map("size", "abs", g.input("t", (4,)), text="b -> b"), text="b -> b")
    total = g.reduce("total", "b n -> ", g.map("kept", "multiply", squares, mark, text="b n, b -> b n"))
    loss = g.map("loss", "divide", total, g.reduce("n", "b -> ", mark), text=", -> ") if counted else total
    step = build_step(g.build(loss), "sgd")
    division = divide(step.graph, step.passes)
    assert wrong_division(step.graph, division) == ""
    reason = micro_batch_graph(step.graph, 2, division)[1]
    job = Job(step.graph, division, load_machine("cloud-a100:1x2"), space("complete"), None)
    if counted:
        assert "over the whole batch" in reason
        with pytest.raises(InputError, match="a sum over the whole batch"):
            Case(job, 1, 2)
        Case(job, 1, 1)
    else:
        assert reason == ""
        Case(job, 1, 2)
