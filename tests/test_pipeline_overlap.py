"""Pipelined steps whose reshardings run beside operators inside every phase: against all cuts, placements and
orders of small ones, with every way to break their files, and run on virtual ranks.
"""

from __future__ import annotations

import ast
import itertools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from budgets import work

import shardproof
from shardproof.__main__ import run
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.pipeline import run_pipeline
from shardproof.backends.execution.pipeline_rank import run_pipeline_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.lowering.program import Compute, Move
from shardproof.backends.lowering.stages import staged_program
from shardproof.formal.plans.pipelines.case import Case
from shardproof.formal.plans.pipelines.channels import chain_of, chains
from shardproof.formal.plans.pipelines.explain import explain_pipeline
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.phases import Network, StagePlan, find_order, in_flight, networks
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.channels import Channels
from shardproof.models.pipelines.division import Division, divide
from shardproof.models.pipelines.micro import micro_batch
from shardproof.models.pipelines.pieces import Pieces
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.pipelines.certificate import Leaf, Overlap, PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline, encode_pipeline, write_pipeline
from shardproof.verify.budget import CELLS, Budget
from shardproof.verify.pipelines import phases as checked
from shardproof.verify.pipelines import runs
from shardproof.verify.pipelines.bound import table
from shardproof.verify.pipelines.certificate import check_members, check_pipeline
from shardproof.verify.pipelines.choices import Wrong
from shardproof.verify.pipelines.leaves import Units
from shardproof.verify.pipelines.weighed import chains_of, why_not_one_chain

from .test_pipeline_attacks import shortest

FLAGS = {"one-stream-of-redistributions", "phases-one-after-another", "statistics-in-their-operator"}


def linear(layers: int) -> TrainingStep:
    """Products one behind the other, and the sum of what comes out; rows of three cannot be cut in two."""
    g = Builder("linear")
    y, sizes = g.input("x", (4, 3)), (3, 6, 3, 6)
    for k in range(layers):
        y = g.contract(f"y{k}", "b i, i j -> b j", y, g.parameter(f"w{k}", sizes[k : k + 2]))
    g.reduce("loss", "b j -> ", y)
    return build_step(g.build("loss"), "sgd")


def job_of(step: TrainingStep, machine: str, memory: int | None = None, overlap: bool = True) -> Job:
    division = divide(step.graph, step.passes)
    return Job(step.graph, division, load_machine(machine), space("complete"), memory, (), overlap)


def balanced(job: Job) -> Job:
    """On a machine whose operators take about as long as what moves."""
    device = job.machine.device
    slow = replace(device, peaks=tuple((dtype, Fraction(2 * 10**7)) for dtype, _ in device.peaks))
    return replace(job, machine=replace(job.machine, device=slow))


def reasons(c: PipelineCertificate) -> str:
    return " ".join(r.reason for r in check_pipeline(c, "seed", 50, CELLS) if r.verdict is not Verdict.PROVED)


# Everything that there is, of small steps: an enumerator of its own.


class Everything:
    """All placements of a stage and all orders of its phases, from the tables of a planning problem alone."""

    def __init__(self, case: Case, first: int, end: int) -> None:
        planning, division, graph = case.pieces.planning, case.job.division, case.graph
        self.planning, self.cuts = planning, division.cuts
        self.phase = {op.name: p for op, p in zip(graph.operators, division.phase, strict=True)}
        unit = {op.name: u for op, u in zip(graph.operators, division.unit, strict=True)}
        self.here = [op.name for op in graph.operators if first <= unit[op.name] < end]
        by_name = {op.name: op for op in graph.operators}
        touched = {a.tensor for name in self.here for a in (*by_name[name].inputs, by_name[name].output)}
        self.next = {value: parameter for parameter, value in graph.state}
        self.copies = {t for t in planning.copies if t in touched or t in {self.next.get(x) for x in touched}}
        self.readers = {
            t.name: {op.name for op in graph.operators if t.name in {a.tensor for a in op.inputs}}
            for t in graph.tensors
        }
        self.writer = {op.output.tensor: op.name for op in graph.operators}
        self.known: dict[object, int] = {}
        self.edges: dict[str, list[tuple[int, str | None, str | None, str]]] = {"F": [], "B": [], "U": []}
        for k, route in enumerate(planning.routes):
            names = [planning.decisions[v].name for v in (route.source, route.target)]
            ends = [
                name if v in planning.operators.values() else None
                for name, v in zip(names, (route.source, route.target), strict=True)
            ]
            lies = [self.next.get(t, t) in self.copies for t, e in zip(names, ends, strict=True) if e is None]
            if all(e in self.here for e in ends if e is not None) and all(lies):
                self.edges[self.when(route.tensor, ends)].append((k, ends[0], ends[1], route.tensor))

    def when(self, tensor: str, ends: list[str | None]) -> str:
        """The phase of a resharding: that of who reads, but gradients of updates once a step."""
        gradient = self.readers[tensor] and {self.phase[r] for r in self.readers[tensor]} == {"U"}
        if "U" in {self.phase[e] for e in ends if e} or (
            gradient and self.phase.get(self.writer.get(tensor, "")) == "B"
        ):
            return "U"
        return self.phase[next(e for e in reversed(ends) if e is not None)]

    def vertices(self, phase: str) -> list[int]:
        found = {self.planning.operators[n] for n in self.here if self.phase[n] == phase}
        for k, *_ in self.edges[phase]:
            found |= {self.planning.problem.edges[k].u, self.planning.problem.edges[k].v}
        return sorted(found)

    def least(self, phase: str, x: Mapping[int, int]) -> int:
        """The shortest of all orders of a phase under these choices."""
        problem = self.planning.problem
        names = [n for n in self.here if self.phase[n] == phase]
        times = [int(problem.vertices[v].cost[x[v]]) for v in (self.planning.operators[n] for n in names)]
        waits: list[set[int]] = [set() for _ in (*names, *self.edges[phase])]
        for k, *_ in self.edges[phase]:
            e = problem.edges[k]
            row, column = (x[v] if m is None else int(m[x[v]]) for v, m in ((e.u, e.rows), (e.v, e.cols)))
            times.append(int(problem.tables[e.table][row, column]))
        for t, (_, writer, reader, tensor) in enumerate(self.edges[phase], len(names)):
            if writer in names:
                waits[t].add(names.index(writer))
            if writer is None:
                waits[t] |= {
                    len(names) + s
                    for s, (_, w, r, other) in enumerate(self.edges[phase])
                    if r is None and w is not None and other == tensor
                }
            if reader in names:
                waits[names.index(reader)].add(t)
        for value, parameter in self.next.items():
            if self.writer[value] in names:
                before = {names.index(r) for r in self.readers[parameter] if r in names and r != self.writer[value]}
                waits[names.index(self.writer[value])] |= before
        key = phase, tuple(times)
        if key not in self.known:
            self.known[key] = shortest_phase(times, waits, len(names))
        return self.known[key]

    def front(self) -> dict[tuple[int, ...], set[tuple[int, int, int]]]:
        """Layouts at the cuts -> (forward, backward, updates) that nothing betters, in units of the problem."""
        problem, planning = self.planning.problem, self.planning
        used = {phase: self.vertices(phase) for phase in "FBU"}
        shared = sorted({v for a, b in itertools.combinations("FBU", 2) for v in {*used[a]} & {*used[b]}})
        cut = [planning.copies[t] for pair in self.cuts for t in pair if t in self.copies]
        keep = sorted({*shared, *cut})
        tables: dict[str, dict[tuple[int, ...], int]] = {}
        for phase in "FBU":
            mine = [v for v in keep if v in used[phase]]
            found: dict[tuple[int, ...], int] = {}
            for x in itertools.product(*(range(problem.domain_size(v)) for v in used[phase])):
                chosen = dict(zip(used[phase], x, strict=True))
                at = tuple(chosen[v] for v in mine)
                found[at] = min(found.get(at, 1 << 62), self.least(phase, chosen))
            tables[phase] = found
        out: dict[tuple[int, ...], set[tuple[int, int, int]]] = {}
        for x in itertools.product(*(range(problem.domain_size(v)) for v in keep)):
            chosen = dict(zip(keep, x, strict=True))
            point = tuple(tables[p][tuple(chosen[v] for v in keep if v in used[p])] for p in "FBU")
            out.setdefault(tuple(chosen[v] for v in cut), set()).add((point[0], point[1], point[2]))
        return out


def shortest_phase(times: list[int], waits: list[set[int]], operators: int) -> int:
    """The least makespan on two streams, by trying every task next."""
    best = sum(times)
    timed = [k < operators or times[k] > 0 for k in range(len(times))]

    def follow(ends: dict[int, int], free: tuple[int, int]) -> None:
        nonlocal best
        if len(ends) == len(times):
            best = min(best, max(ends.values(), default=0))
            return
        for k in range(len(times)):
            if k in ends or not waits[k] <= ends.keys():
                continue
            stream, ready = int(k >= operators), max((ends[w] for w in waits[k]), default=0)
            end = (max(ready, free[stream]) if timed[k] else ready) + times[k]
            left = (
                sum(t for j, t in enumerate(times) if j not in ends and (j < operators) == (k < operators)) - times[k]
            )
            if end + (left if timed[k] else 0) < best:
                after = (free[0], end) if stream else (end, free[1])
                follow({**ends, k: end}, after if timed[k] else free)
            if not timed[k]:
                return  # it takes nothing: now or later is the same

    follow({}, (0, 0))
    return best


def even(planning: Planning, tensor: str, choice: int) -> bool:
    """Whether a copy lies in equal parts on all devices."""
    decision = planning.decisions[planning.copies[tensor]]
    parts = 1
    for row in decision.placement(choice).matrix[: len(planning.graph.tensor(tensor).shape)]:
        for n in row:
            parts *= n
    return parts == planning.machine.devices


@pytest.mark.parametrize(("layers", "stages", "micro"), [(2, 1, 1), (3, 2, 1), (3, 2, 2)])
def test_the_bound_is_not_above_the_best_of_all_cuts_placements_and_orders(
    layers: int, stages: int, micro: int
) -> None:
    machine = "cloud-a100:2x2" if stages == 2 else "cloud-a100:1x2"
    job = balanced(job_of(linear(layers), machine))
    found = search_pairs(job, [(stages, micro)], work(30.0), Fraction(0))
    c, case, n = found.certificate(), found.cases[0], job.division.units
    assert reasons(c) == ""
    scale, best = Fraction(10**12, case.pieces.planning.problem.scale), Fraction(1 << 62)
    for cut in itertools.combinations(range(1, n), stages - 1):
        assert len(cut) <= 1
        parts = [Everything(case, i, j).front() for i, j in itertools.pairwise((0, *cut, n))]
        names = [t for k in cut for t in job.division.cuts[k - 1]]
        sends = [
            sum(
                Fraction(s.elements * s.element_bytes, k) / x.bandwidth + x.latency
                for k, x in enumerate(job.machine.levels, 1)
            )
            * 10**12
            for s in map(case.graph.tensor, names)
        ]
        for layouts in parts[0]:
            if not all(even(case.pieces.planning, t, x) for t, x in zip(names, layouts, strict=True)):
                continue
            for points in itertools.product(*(part.get(layouts, set()) for part in parts)):
                times = [tuple(int(t * scale) for t in point) for point in points]
                lags = [(sends[0], sends[1])] if cut else []
                best = min(best, shortest([(f, b, u) for f, b, u in times], lags, micro))
    assert c.lower_bound <= best <= c.step
    assert c.lower_bound >= 0.6 * best and c.step <= 1.2 * best


@cache
def tiny() -> tuple[TrainingStep, Pieces, Units]:
    step = build_step(build("bert-tiny", batch=16), "adam")
    division = divide(step.graph, step.passes)
    planning = build_problem(micro_batch(step.graph, 4), load_machine("cloud-a100:1x4"), space("complete"), 1 << 40)
    return step, Pieces(planning, division), Units(planning, division)


def test_weighed_leaves_of_builder_and_checker_are_one_problem_and_lie_alike() -> None:
    _, pieces, units = tiny()
    n, channels = pieces.division.units, Channels((4, 1, 3), (2, 3, 3), (0, 8, 0))
    weighed = pieces.weighing(channels)
    assert why_not_one_chain(units) == "" and pieces.joins
    for i, j in itertools.combinations(range(n + 1), 2):
        names = chains(pieces, i, j)
        assert names[0] and names[1]
        chain = chain_of(pieces, names)
        leaf = Leaf(1, 4, i, j, 1, True, 0, None, "", False, channels, names)  # type: ignore[arg-type]
        assert chains_of(units, leaf, i) == (chain.vertices, chain.edges)
        for times, once in ((1, False), (1, True), (4, True)):
            built = weighed.leaf(i, j, times, int(once), chain).problem
            assert built.sha256() == units.leaf(i, j, times, once, "", channels, (chain.vertices, chain.edges)).sha256()
        for phase in "FB":
            built = weighed.one_pass(i, j, phase, chain).problem
            found = units.leaf(i, j, 1, False, phase, channels, (chain.vertices, chain.edges))
            assert built.sha256() == found.sha256()
    for i, j in itertools.combinations(range(n), 2):
        for once in (False, True):
            same = pieces.weighed_key(i, i + 1, once) == pieces.weighed_key(j, j + 1, once)
            assert not same or units.alike(i, i + 1, once, "", True) == units.alike(j, j + 1, once, "", True)


def chosen(pieces: Pieces, rng: random.Random) -> dict[int, int]:
    problem = pieces.planning.problem
    return {v: rng.randrange(problem.domain_size(v)) for v in range(len(problem.vertices))}


def test_phases_take_and_hold_the_same_for_builder_and_checker() -> None:
    """Random placements of random stages, in orders that are found, one after another, and at random."""
    _, pieces, units = tiny()
    rng, n, beside = random.Random(3), pieces.division.units, 0
    for _ in range(some := 12):
        i, j = sorted(rng.sample(range(n + 1), 2))
        x = chosen(pieces, rng)
        whole = pieces.seconds(i, j, x)
        for phase, net, total in zip(
            "FBU", networks(pieces, i, j, x), (whole.forward, whole.backward, whole.update), strict=True
        ):
            tasks = checked.tasks_of(units, i, j, x, phase)
            assert tasks.times == net.times and tasks.moves == net.edges
            assert {(a, b) for b, waits in enumerate(tasks.waits) for a in waits} == set(net.arcs)
            assert sum(net.times) == total == tasks.takes(()) == net.takes(())
            for fixed, ahead in ((False, None), (True, None), (True, 4), (True, 1)):
                order = find_order(net, Clock(0.0), fixed, ahead)
                assert tasks.takes(order) == net.takes(order) <= total
                beside += bool(order)
                if order:
                    assert max(sum(net.times[: len(net.operators)]), sum(net.times[len(net.operators) :])) <= net.takes(
                        order
                    )
                if order and fixed:
                    assert checked.in_flight(units, tasks, x, order) == in_flight(pieces, net, x, order)
    assert beside > some


def test_orders_are_near_the_best_of_all() -> None:
    """Random small phases, some of whose reshardings take no time: against every order."""
    rng, equal = random.Random(11), 0
    for _ in range(rounds := 150):
        operators = 4
        times = [rng.randint(1, 9) for _ in range(operators)] + [
            rng.choice([0, 0, rng.randint(1, 9)]) for _ in range(5)
        ]
        arcs = set[tuple[int, int]]()
        for move in range(operators, len(times)):
            after = rng.randrange(operators)
            arcs.add((move, after))
            if after and rng.random() < 0.6:
                arcs.add((rng.randrange(after), move))
        net = Network(tuple(range(operators)), tuple(range(5)), tuple(times), tuple(sorted(arcs)))
        waits = [{a for a, b in arcs if b == t} for t in range(len(times))]
        best, order = shortest_phase(times, waits, operators), find_order(net, work(0.05), False, None)
        assert best <= net.takes(order) <= sum(times)
        equal += net.takes(order) == best
        in_line = find_order(net, work(0.05), True, None)
        assert best <= net.takes(in_line) and [t for t in in_line if t < operators] in ([], list(range(operators)))
    assert equal >= 0.9 * rounds


def test_no_placement_and_no_order_is_below_what_is_known_of_a_run() -> None:
    """Random placements, and those that compute or move least: C, M and the longest way against all tables."""
    step = build_step(build("bert-tiny", batch=16), "adam")
    case = Case(job_of(step, "cloud-a100:2x2"), 2, 4)
    case.channels += [
        Channels((8, 0, 0), (8, 0, 0), (8, 0, 0)),
        Channels((0, 8, 0), (0, 8, 0), (0, 8, 0)),
        Channels((4, 1, 3), (3, 1, 4), (2, 6, 0)),
    ]
    case.prove(1, work(60.0))
    (forward, backward), both = case.run_bounds()
    pieces, rng, n = case.pieces, random.Random(8), case.job.division.units
    scale, nearest = Fraction(10**12, pieces.planning.problem.scale), Fraction(0)
    plans = [chosen(pieces, rng) for _ in range(2)]
    for channels in case.channels:
        part = pieces.weighing(channels).leaf(0, n, 4, 1)
        found = solve(part.problem, clock=work(5.0)).solution
        assert found is not None
        plans.append({**plans[0], **dict(zip(part.vertices, found, strict=True))})
    for x in plans:
        for i, j in itertools.combinations(range(n + 1), 2):
            f, b, u = (least_of(net) * scale for net in networks(pieces, i, j, x))
            for known, time in (
                (forward, f),
                (backward, b),
                (both.one, f + b),
                (both.updated, f + b + u),
                (both.step, 4 * (f + b) + u),
            ):
                assert known[i][j] <= time
                nearest = max(nearest, Fraction(known[i][j], 1) / time)
    assert nearest > 0.5


def least_of(net: object) -> int:
    """The largest of C, M and the longest way: no order is shorter."""
    count, times = len(net.operators), net.times  # type: ignore[attr-defined]
    ends = [0] * len(times)
    for _ in times:  # as often as the longest way has tasks
        before = list(ends)
        for k, time in enumerate(times):
            ends[k] = time + max((ends[a] for a, b in net.arcs if b == k), default=0)  # type: ignore[attr-defined]
        if ends == before:
            break
    return max(sum(times[:count]), sum(times[count:]), *ends, 0)


def test_leaves_of_other_weights_do_not_add_up() -> None:
    """C of one unit and M of the next take the same time."""
    one, other = {(0, 1): 10}, {(1, 2): 10}
    assert table(2, [{**one, **other}], None, Budget.with_large())[0][2] == 20
    assert table(2, [one, other], None, Budget.with_large())[0][2] == 10


@cache
def found(memory: int | None = None) -> SearchOutcome:
    step = build_step(build("mlp-8192", batch=64), "sgd")
    return search_pairs(job_of(step, "cloud-a100:2x2", memory), [(2, 4)], work(60.0), Fraction(1, 100))


def plan() -> PipelineCertificate:
    return found().certificate()


def test_a_plan_is_proved_comes_back_from_its_file_and_is_never_longer_than_the_sum() -> None:
    c = plan()
    again, results = check_members(read_container(write_pipeline(None, c)), 50, CELLS)
    assert all(r.verdict is Verdict.PROVED for r in results), [r.reason for r in results]
    assert write_pipeline(None, again) == write_pipeline(None, c)
    assert set(results[0].assumptions) >= FLAGS and "no-overlap" not in results[0].assumptions
    assert c.overlap is not None and any(c.overlap.orders)
    best = found().best
    assert best is not None
    for stage in best.stages:
        whole = best.case.pieces.seconds(stage.first, stage.end, stage.choices)
        assert stage.seconds.forward <= whole.forward and stage.seconds.backward <= whole.backward
        assert stage.seconds.update <= whole.update
    step = build_step(build("mlp-8192", batch=64), "sgd")
    plain = search_pairs(
        job_of(step, "cloud-a100:2x2", overlap=False), [(2, 4)], work(60.0), Fraction(1, 100)
    ).certificate()
    assert c.step < plain.step and plain.overlap is None
    assert b"overlap" not in bytes(encode_pipeline(plain)["pipeline.json"])  # files without keep their bytes
    report = explain_pipeline(c)
    assert [s.update * 10**12 for s in report.stages] and report.stages[0].forward > 0


def test_memory_is_held_at_every_moment_of_every_phase() -> None:
    """A limit just above and below what the free plan needs; reshardings ahead count."""
    free = found(1 << 40)
    assert free.best is not None
    need, c = max(free.best.memory), free.certificate()
    assert reasons(c) == "" and any(any(s.extras) for s in free.best.stages)
    assert reasons(replace(c, memory=need)) == ""
    assert "the limit is" in reasons(replace(c, memory=need - 1))


def test_what_is_in_flight_counts_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    best = found(1 << 40).best
    assert best is not None
    c = replace(found(1 << 40).certificate(), memory=max(best.memory))
    count = checked.in_flight

    def one_more(units: Units, tasks: checked.Tasks, x: Mapping[int, int], order: tuple[int, ...]) -> list[int]:
        return [more + 1 for more in count(units, tasks, x, order)]

    monkeypatch.setattr(checked, "in_flight", one_more)
    assert "the limit is" in reasons(c)


def test_redistributions_run_as_far_ahead_as_fits() -> None:
    """Random placements under limits between what one after another needs and what the free order needs."""
    step = build_step(build("bert-tiny", batch=16), "adam")
    case = Case(job_of(step, "cloud-a100:2x4", 1 << 40), 2, 4)
    rng, met = random.Random(2), 0
    for _ in range(6):
        x = chosen(case.pieces, rng)
        free, bare = case.time_stage(1, 3, x), StagePlan(1, 3, x, case.pieces.seconds(1, 3, x))
        most, least = case.peak(free, 1), case.peak(bare, 1)
        assert least <= most
        for limit in {most, most - 1, (most + least) // 2, least}:
            made = case.within(1, 3, x, 1, limit)
            assert limit < least or (made is not None and case.peak(made, 1) <= limit)
            met += made is not None and made.orders != free.orders
        assert case.within(1, 3, x, 1, least - 1) is None
    assert met > 3


Change = Callable[[PipelineCertificate], PipelineCertificate]


def overlap_of(c: PipelineCertificate) -> Overlap:
    assert c.overlap is not None
    return c.overlap


def with_orders(c: PipelineCertificate, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> PipelineCertificate:
    overlap = overlap_of(c)
    return replace(c, overlap=replace(overlap, orders=tuple(change(o) if o else o for o in overlap.orders)))


def weighed(c: PipelineCertificate, change: Callable[[Leaf], Leaf]) -> PipelineCertificate:
    """The first leaf with chains, and a letter or none, changed."""
    at = next(k for k, leaf in enumerate(c.leaves) if len(leaf.chains[0]) > 1 and leaf.first)
    return replace(c, leaves=(*c.leaves[:at], change(c.leaves[at]), *c.leaves[at + 1 :]))


def beside(c: PipelineCertificate, leaf: Leaf) -> tuple[str, ...]:
    """The backward chain by way of an operator that is not on it."""
    rows = zip(c.graph.operators, c.division.unit, c.division.phase, strict=True)
    mine = [op.name for op, u, p in rows if leaf.first <= u < leaf.end and p == "B"]
    first, *_, last = chains(case_of(c).pieces, leaf.first, leaf.end)[1]
    return first, next(name for name in mine if name not in (first, last) and name.endswith("weight")), last


def case_of(c: PipelineCertificate) -> Case:
    return Case(Job(c.graph, c.division, c.machine, space(c.space), c.memory, (), True), c.views, c.micro)


BREAKS: Mapping[str, tuple[Change, str]] = {
    "a task twice": (lambda c: with_orders(c, lambda o: (*o[:-1], o[0])), "does not list"),
    "a task less": (lambda c: with_orders(c, lambda o: o[:-1]), "does not list"),
    "an order backwards": (lambda c: with_orders(c, lambda o: o[::-1]), "before what it waits for"),
    "one after another": (lambda c: with_orders(c, lambda _: ()), "the schedule says"),
    "no orders": (lambda c: replace(c, overlap=None), "only there"),
    "orders of other stages": (lambda c: replace(c, overlap=replace(overlap_of(c), stages=overlap_of(c).stages[:1])), "of other stages"),
    "a leaf without weights": (lambda c: weighed(c, lambda x: replace(x, channels=None)), "only there"),
    "a higher leaf": (lambda c: weighed(c, lambda x: replace(x, bound=x.bound + 1)), "gives less"),
    "other weights": (lambda c: weighed(c, lambda x: replace(x, channels=Channels((1, 0, 0), (1, 0, 0), (1, 0, 0)))), "leaf"),
    "no chain": (lambda c: weighed(c, lambda x: replace(x, chains=((), ()))), "leaf"),
    "a chain of nobody": (lambda c: weighed(c, lambda x: replace(x, chains=(("nobody",), ()))), "no operator of the leaf"),
    "a chain with a gap": (lambda c: weighed(c, lambda x: replace(x, chains=((), beside(c, x)))), "reads nothing"),
    "a chain that begins late": (lambda c: weighed(c, lambda x: replace(x, chains=(x.chains[0][1:], ()))), "does not read"),
    "a chain that ends early": (lambda c: weighed(c, lambda x: replace(x, chains=(x.chains[0][:-1], ()))), "does not write"),
    "a chain that comes back": (lambda c: weighed(c, lambda x: replace(x, chains=((x.chains[0][0], *x.chains[0]), ()))), "comes back"),
    "a chain in the other pass": (lambda c: weighed(c, lambda x: replace(x, chains=((), x.chains[0]))), "leaves its pass"),
    "a shorter step": (lambda c: replace(c, step=c.step - 1), "the step takes"),
    "a higher bound": (lambda c: replace(c, lower_bound=c.lower_bound + c.step // 50), "give a bound"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_every_broken_file_is_refuted_for_its_reason(name: str) -> None:
    change, reason = BREAKS[name]
    assert reason in reasons(change(plan()))


def test_operators_out_of_the_graphs_order_have_no_memory() -> None:
    _, pieces, units = tiny()
    rng = random.Random(5)
    x = chosen(pieces, rng)
    tasks = checked.tasks_of(units, 1, 2, x, "B")
    net = networks(pieces, 1, 2, x)[1]
    order = next(
        o
        for seed in range(9)
        if (o := find_order(net, work(1.0), False, None))
        and [t for t in o if t < len(net.operators)] != list(range(len(net.operators)))
    )
    with pytest.raises(Wrong, match="keep the graph's order"):
        checked.in_flight(units, tasks, x, order)


def test_what_waits_is_counted_to_the_byte() -> None:
    """Moment by moment, block by block, for one stage: nothing that is there is left out."""
    _, pieces, units = tiny()
    rng = random.Random(7)
    for _ in range(6):
        x = chosen(pieces, rng)
        for phase, net in zip("FBU", networks(pieces, 1, 3, x), strict=True):
            order = find_order(net, Clock(0.0), True, None)
            if not order:
                continue
            tasks, spans = checked.tasks_of(units, 1, 3, x, phase), net.spans(order)
            found, count, moves = checked.in_flight(units, tasks, x, order), len(net.operators), units.entries.moves
            assert len(found) == count
            for now in sorted({t for span in spans for t in span}):
                began = max([0, *(k for k in range(count) if spans[k][0] <= now)])
                total = 0
                for task, number in enumerate(tasks.moves, count):
                    m = moves[number]
                    if (
                        tasks.times[task]
                        and m.reader is not None
                        and spans[task][0] <= now < spans[tasks.operators.index(m.reader)][0]
                    ):
                        v = units.planning.operators[m.reader]
                        total += (
                            units.entries.layout_at(m.reader, m.position, m.tensor, x[v]).largest
                            * units.graph.tensor(m.tensor).element_bytes
                        )
                assert total <= found[began]


def test_chains_that_do_not_join_say_nothing() -> None:
    """What crosses the second cut does not depend on what crosses the first: a graph of two inputs."""
    _, pieces, units = tiny()
    broken = Units(units.planning, pieces.division)
    (a, ga), (b, gb), *others = broken.cuts
    broken.cuts = ((b, ga), (a, gb), *others)
    assert "do not add up" in why_not_one_chain(broken)


def weighed_leaf(first: int, channels: Channels, names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())) -> Leaf:
    return Leaf(1, 4, first, first + 1, 1, False, 7, None, "", False, channels, names)  # type: ignore[arg-type]


def alike_pair(units: Units) -> tuple[int, int]:
    """Two units, neither the first nor the last, with one weighed problem."""
    inner = range(1, len(units.in_unit) - 1)
    key = {u: units.alike(u, u + 1, False, "", True) for u in inner}
    return next((a, b) for a, b in itertools.combinations(inner, 2) if key[a] == key[b])


def test_leaves_add_up_in_groups_of_their_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pieces, units = tiny()
    monkeypatch.setattr(runs, "leaf_bound", lambda units, leaf: 1000)
    n, one, other = (
        pieces.division.units,
        Channels((8, 0, 0), (8, 0, 0), (8, 0, 0)),
        Channels((0, 8, 0), (0, 8, 0), (0, 8, 0)),
    )
    none = [0] * n
    groups = runs.learn(
        runs.least_work_group(none, none, none, 4),
        [weighed_leaf(0, one), weighed_leaf(n - 1, other)],
        lambda _: units,
        lambda channels: runs.weighed_group(channels, none, none, 4),
        n,
    )
    best = table(n, [g.both for g in groups], None, Budget.with_large())
    assert best[0][1] == best[n - 1][n] == best[0][n] == 1000


def test_chains_are_looked_at_wherever_a_leaf_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units whose cuts say otherwise: a leaf is not about them, and where chains do not join none counts."""
    (_, pieces, units), leaf_bound = tiny(), runs.leaf_bound
    monkeypatch.setattr(runs, "leaf_bound", lambda units, leaf: 1000)
    (a, b), channels, n = alike_pair(units), Channels((0, 0, 8), (0, 0, 8), (8, 0, 0)), pieces.division.units
    leaf, none = weighed_leaf(a, channels, chains(pieces, a, a + 1)), [0] * n

    def known(of: Units) -> set[tuple[int, int]]:
        first = runs.least_work_group(none, none, none, 4)
        return set(runs.learn(first, [leaf], lambda _: of, lambda _: runs.Group(), n)[1].both)

    assert {(a, a + 1), (b, b + 1)} <= known(units)
    broken = Units(units.planning, pieces.division)
    broken.cuts = (*units.cuts[: b - 1], units.cuts[b], *units.cuts[b:])
    with pytest.raises(Wrong, match="do not add up"):
        known(broken)
    monkeypatch.setattr(runs, "why_not_one_chain", lambda units: "")
    assert (a, a + 1) in known(broken) and (b, b + 1) not in known(broken)
    with pytest.raises(Wrong, match="has chains and no weights"):
        leaf_bound(units, replace(leaf, channels=None))


def other_pass(units: Units, number: int, k: int) -> str:
    """One movement in the other pass."""
    return {"F": "B", "B": "F"}[units.pass_of(k)] if k == number else units.pass_of(k)


def test_units_are_alike_if_their_passes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pieces, units = tiny()
    a, b = alike_pair(units)
    for kind in ("operators", "movements"):
        other = Units(units.planning, pieces.division)
        if kind == "operators":
            name = next(name for name, u in units.unit.items() if u == b and units.phase[name] == "B")
            other.phase = {**units.phase, name: "F"}
        else:
            number = next(k for k in units.inside(b, b + 1, False)[1] if not units.updating[k])
            monkeypatch.setattr(other, "pass_of", partial(other_pass, units, number))
        assert other.alike(a, a + 1, False, "", True) != other.alike(b, b + 1, False, "", True)
        assert other.alike(a, a + 1, False) == other.alike(b, b + 1, False)


def test_a_parameter_is_replaced_behind_all_that_read_it_in_the_pass() -> None:
    g = Builder("replaced")
    g.parameter("w", (4, 6))
    g.map("a", "negate", "w")
    g.map("n", "relu", "w")
    graph = replace(g.build("a"), state=(("w", "n"),)).check()
    planning = build_problem(graph, load_machine("cloud-a100:1x2"), space("complete"), 1 << 40)
    division = Division((0, 0), ("F", "F"), ())
    x = dict.fromkeys(range(len(planning.decisions)), 0)
    tasks = checked.tasks_of(Units(planning, division), 0, 1, x, "F")
    assert 0 in tasks.waits[1] and (0, 1) in networks(Pieces(planning, division), 0, 1, x)[0].arcs
    with pytest.raises(Wrong, match="before what it waits for"):
        tasks.spans(tuple(reversed(range(len(tasks.times)))))


def test_malformed_parts_are_named() -> None:
    members = encode_pipeline(plan())
    head = json.loads(bytes(members["pipeline.json"]))
    for change, place in (
        (lambda h: h["overlap"]["stages"].pop(), "three orders"),
        (lambda h: h["overlap"]["stages"][0].pop(), "three orders"),
        (lambda h: h["overlap"]["stages"][0].__setitem__(0, 99), "element 0"),
        (lambda h: h["overlap"].__setitem__("more", 1), "unknown field"),
        (lambda h: h["leaves"][0][-1].pop(), "5 parts"),
        (lambda h: h["leaves"][0][-1].__setitem__(0, [9, 0, 0]), "add up"),
        (lambda h: h["leaves"][0][-1].__setitem__(2, [7, 0, 1]), "add up"),
    ):
        broken = json.loads(json.dumps(head))
        change(broken)
        with pytest.raises(ContainerError, match=place):
            decode_pipeline({**members, "pipeline.json": canonical(broken)})
    assert write_container(None, members) == write_pipeline(None, plan())


RUNS = {
    "2x2": ("cloud-a100:2x2", 2, 4, 1),
    "2x2 interleaved": ("cloud-a100:2x2", 2, 4, 2),
    "2x1": ("cloud-a100:2x1", 2, 2, 1),
}


@cache
def to_run(name: str) -> PipelineCertificate:
    text, stages, micro, chunks = RUNS[name]
    step = build_step(build("bert-tiny", batch=16), "adam")
    triples = [(stages, micro, chunks)] if chunks > 1 else []
    pairs = [] if triples else [(stages, micro)]
    return search_pairs(job_of(step, text), pairs, work(30.0), Fraction(1, 2), None, triples).certificate()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n.startswith("2x2") else ()) for n in RUNS])
def test_virtual_ranks_do_what_one_process_does_in_the_planned_order(name: str) -> None:
    c = to_run(name)
    assert reasons(c) == ""
    program, inputs = staged_program(c), random_inputs(c.graph, 3)
    done, expected = run_pipeline(program, inputs), run_graph(c.graph, inputs)
    for tensor, value in expected.items():
        np.testing.assert_allclose(done.outputs[tensor], value, rtol=1e-9, atol=1e-12, err_msg=tensor)
    assert done.traffic and all(t.fits for t in done.traffic)
    assert all(sent == priced for _, sent, priced in done.sent)
    for s, stage in enumerate(program.stages):
        for phase, positions in stage.steps.items():
            order = overlap_of(c).of(s, phase)
            if order:
                steps = [stage.program.ranks[0][p] for p in positions]
                keys = [
                    (0, x.operator) if isinstance(x, Compute) else (1, x.movement)
                    for x in steps
                    if isinstance(x, Compute | Move)
                ]
                assert [sorted(keys).index(k) for k in keys] == list(order)
    assert any(overlap_of(c).orders) == (name != "2x1")  # one device moves nothing
    if name == "2x1":
        return
    with pytest.raises(InputError, match="does not list the tasks"):
        staged_program(with_orders(c, lambda o: o[:-1]))


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_mpi_ranks_do_what_one_process_does() -> None:
    c = to_run("2x2")
    inputs = random_inputs(c.graph, 3)
    outputs, _, transport = run_pipeline_job(c, inputs, False, True, 60.0)
    for tensor, value in run_graph(c.graph, inputs).items():
        np.testing.assert_allclose(outputs[tensor], value, rtol=1e-9, atol=1e-12, err_msg=tensor)
    assert "mpi" in transport


def test_the_command_line_and_python_plan_check_and_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, machine = "mlp-8192:layers=4,width=512", "cloud-a100:2x2"
    line = ["plan", model, "--batch", "64", "--train", "sgd", "--machine", machine, "--pipeline", "2:2"]
    assert run([*line, "--overlap", "-o", "best.spz", "--gap", "20%", "--work-limit", "2M", "--json"]) in (0, 5)
    said = json.loads(capsys.readouterr().out)
    made = shardproof.pipeline(model, machine, "sgd", stages="2:2", batch=64, overlap=True, work_limit=1_000_000)
    made.save("p.spz")
    assert run(["check", "p.spz", "--json"]) in (0, 5)
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert set(claims[0]["assumptions"]) >= FLAGS
    assert run(["run", "p.spz", "-n", "4", "--virtual", "--json"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert ran["equal"] and ran["bytes_counted_equal_priced"]
    assert run(["explain", "p.spz"]) == 0
    assert "2 stages" in capsys.readouterr().out
    assert made.certificate.overlap is not None
    steps = {one["parts"]: one["step_s"] for one in said["among"]}  # with stages, and without, which may be less
    assert steps[made.parts] == pytest.approx(float(made.step_s), rel=0.05)
    assert said["cost"] / said["scale"] == min(steps.values())
    assert run(["export", "p.spz", "--to", "dtensor", "-o", "x.py"]) == 3
    assert "--overlap" in capsys.readouterr().err


def test_no_checker_of_a_part_imports_another_for_a_helper() -> None:
    """Every part is believed by itself: what two need lies where neither lives."""
    rooms = ("overlap", "pipelines", "views", "joint")
    here = Path(__file__).parent.parent / "verify"
    for room in rooms:
        for path in (here / room).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 2:
                    assert (node.module or "").split(".")[0] not in {*rooms} - {room}, path
