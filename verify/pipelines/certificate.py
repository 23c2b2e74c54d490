"""Checks pipelined training steps.  It searches nothing and believes nothing that it can compute.

Pipeline   units, phases and cuts are the graph's; the batch may be cut; every stage has the placements of its
           operators and copies, the same even layouts at both sides of a cut, and fits the memory with as many
           activations as the schedule keeps there; its times are the schedule's; the step ends with the last update,
               each right behind the last backward of its stage, or behind what another one sends it once a step
               (`exchange`); with orders of phases their times are those of
               operators and reshardings on two streams (`phases`)
Schedule   the schedule obeys its times, order and memory (`verify.schedules`)
Space, Entries   per pair that has leaves or is chosen: the choices are the space's, the entries those of index sets
WithinGap  for every enumerated pair, least work and the leaves give a bound that is not below the stated one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil

from ...models.communication.choices import Choices
from ...models.cost.limits import TooLarge
from ...models.cost.selection import build
from ...models.layout.placement import Space, space
from ...models.machine.machine import Machine
from ...models.machine.parts import MachineError
from ...models.problem.claims import Verdict
from ...models.problem.unit import rounding_bound
from ...models.program.graph import Graph
from ...models.schedules.pipeline import Pipeline
from ...proofs.container.archive import Member, identity
from ...proofs.container.canonical import NO_ROOM, ContainerError
from ...proofs.container.effort import OBJECT, PART
from ...proofs.pipelines.certificate import Interleaved, PipelineCertificate, Stage
from ...proofs.pipelines.file import decode_pipeline
from ..budget import Budget
from ..plan.assumptions import wrong_assumptions
from ..plan.effort import charge_graph, charge_tables
from ..plan.plan import entries_result, space_result
from ..plan.used_entries import wrong_structure
from ..plan.vocabulary import restrict
from ..schedules.certificate import check_schedule
from ..schedules.pipeline import pipeline_network
from ..verdict import CheckResult, Rounding
from .assumptions import assumptions, required_flags
from .bound import (
    PICO,
    Work,
    cells_of,
    crossed_level,
    hops,
    least_bytes,
    least_step,
    least_work,
    parts,
    send,
    send_over,
    table,
    work_of,
)
from .choices import Wrong, solution
from .cuts import Known, none_below
from .division import micro_batch_graph, wrong_division
from .exchange import Rounds
from .forbidden import forbid, is_allowed
from .held import view_memory
from .interleaved import least_mean
from .leaves import Units
from .nodes import free, node_machine, simple
from .phases import phases
from .runs import Groups, learn, least_work_group, weighed_group

NO_LIMIT = 1 << 50
"""Bytes for which memory rows are built where no limit was given."""

Progress = Callable[[int, int], None]


def check_members(
    members: Mapping[str, Member],
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[PipelineCertificate, tuple[CheckResult, ...]]:
    """The certificate of a container, and one result per claim; `ContainerError` for what is malformed."""
    certificate, results, _ = judge_members(members, samples, cells, notify, budget)
    return certificate, results


def judge_members(
    members: Mapping[str, Member],
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[PipelineCertificate, tuple[CheckResult, ...], tuple[Rounding, ...]]:
    """`check_members`, and how times are rounded."""
    try:
        certificate = decode_pipeline(members)
    except ContainerError:
        raise
    except MemoryError:
        raise ContainerError("pipeline", NO_ROOM) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ContainerError("pipeline", f"is malformed: {type(error).__name__}: {str(error)[:300]}") from None
    check = _Check(certificate, identity(members), samples, cells, notify, budget)
    return certificate, check.results(), tuple(check.rounding)


def check_pipeline(
    c: PipelineCertificate,
    seed: str,
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[CheckResult, ...]:
    """One result per claim."""
    return _Check(c, seed, samples, cells, notify, budget).results()


class _Check:
    def __init__(
        self,
        c: PipelineCertificate,
        seed: str,
        samples: int,
        cells: int,
        notify: Progress | None,
        budget: Budget | None = None,
    ) -> None:
        self.budget = Budget.with_large() if budget is None else budget
        self.c, self.seed, self.samples, self.cells, self.notify = c, seed, samples, cells, notify
        self.built: list[CheckResult] = []
        self.rounding: list[Rounding] = []
        self.units: dict[tuple[int, int, bool], Units] = {}
        self.graphs: dict[int, Graph] = {}
        self.works: dict[int, Work] = {}
        self.assumptions: tuple[str, ...] = tuple(sorted(required_flags(c)))

    def results(self) -> tuple[CheckResult, ...]:
        """One per claim."""
        found = [self.result("Pipeline", self.wrong_pipeline)]
        if found[0].verdict is Verdict.PROVED:
            found.append(replace(check_schedule(self.c.schedule, self.budget), kind="Schedule"))
            found.append(self.check_bound())
            found += self.built
        return tuple(replace(r, assumptions=self.assumptions) for r in found)

    def result(self, kind: str, wrong: Callable[[], str]) -> CheckResult:
        try:
            reason = wrong()
        except Wrong as error:
            reason = str(error)
        verdict = Verdict.REFUTED if reason else Verdict.PROVED
        return CheckResult(kind, verdict, None, None, self.c.space, self.assumptions, reason)

    def view(self, stages: int) -> Machine:
        machine = self.c.machine
        sizes = parts(machine, stages)
        if sizes is None or machine.others:
            raise Wrong(f"{stages} stages are no equal parts of the machine")
        try:
            return machine.resized(sizes)
        except MachineError as error:
            raise Wrong(str(error)) from None

    def graph(self, micro: int) -> Graph:
        if micro not in self.graphs:
            charge_graph(self.c.graph, self.budget, "pipeline")
            graph, reason = micro_batch_graph(self.c.graph, micro, self.c.division)
            if reason:
                raise Wrong(reason)
            self.graphs[micro] = graph
        return self.graphs[micro]

    def graph_or_none(self, micro: int) -> Graph | None:
        try:
            return self.graph(micro)
        except Wrong:
            return None

    def work(self, micro: int) -> Work:
        if micro not in self.works:
            self.works[micro] = work_of(self.graph(micro), self.c.division)
        return self.works[micro]

    def problem(self, stages: int, micro: int, choices: tuple[Choices, ...] = (), nodes: bool = False) -> Units:
        """The problem of a micro-batch on a view (or on its nodes), built again, with what its check says among the
        results.
        """
        if (stages, micro, nodes) in self.units:
            return self.units[stages, micro, nodes]
        c = self.c
        limit: int | None = NO_LIMIT if c.memory is None else c.memory
        try:
            graph, machine, where = self.graph(micro).check(), self.view(stages), space(c.space)
            if nodes:
                machine, limit = self.on_nodes(graph, machine, where), None
            charge_tables(graph, machine, where.without_vocabulary, self.budget, "pipeline")
            everything = build(graph, machine, where.without_vocabulary, limit, self.notify)
            planning = restrict(everything, where, limit, self.budget) if where.vocabulary else everything
        except TooLarge as error:
            raise ContainerError("pipeline", f"is too large to be checked: {error}") from None
        except ContainerError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ContainerError("pipeline", f"no problem can be built from it: {str(error)[:300]}") from None
        units = Units(planning, c.division, self.budget)
        if nodes:
            units.free = free(graph, units.entries.moves)
        if wrong := wrong_structure(units.entries):
            raise Wrong(f"problem: {wrong}")
        if wrong := wrong_assumptions(planning.problem, graph, machine, where, limit):
            raise Wrong(f"problem: {wrong}")
        whole = [0] * len(planning.decisions)
        for chosen in choices:
            for v, choice in solution(planning, chosen).items():
                whole[v] = choice
        entries = entries_result(
            everything,
            tuple(whole) if choices else None,
            self.samples,
            self.cells,
            f"{self.seed}:{stages}:{micro}{' nodes' if nodes else ''}",
            self.notify,
            self.budget,
        )
        if c.forbidden and not nodes and (wrong := forbid(units, c.forbidden)):
            raise Wrong(wrong)
        name = f" {stages}:{micro}{' nodes' if nodes else ''}"
        self.rounding.append(Rounding(planning.problem.scale, rounding_bound(planning.problem), name.strip()))
        self.built += [replace(space_result(planning), kind="Space" + name), replace(entries, kind="Entries" + name)]
        self.units[stages, micro, nodes] = units
        return units

    def on_nodes(self, graph: Graph, machine: Machine, where: Space) -> Machine:
        """The machine of a view's nodes."""
        found = node_machine(machine, where) if simple(graph) else None
        if found is None:
            raise Wrong("a leaf is on nodes, and nodes are no bound there")
        return found

    def wrong_pipeline(self) -> str:
        c, size = self.c, len(self.c.graph.operators) + sum(len(op.inputs) for op in self.c.graph.operators)
        self.budget.charge(OBJECT * 16 * (1 + len(c.division.cuts)) * size, "pipeline")
        if wrong := wrong_division(c.graph, c.division):
            return wrong
        n = c.division.units
        if not c.stages or [s.first for s in c.stages] != [0, *(s.end for s in c.stages[:-1])] or c.stages[-1].end != n:
            return "the stages are not all units, one after another"
        triples = [(x.stages, x.micro, x.chunks) for x in c.interleaved]
        if c.chunks < 1 or len(c.stages) % c.chunks:
            return f"{len(c.stages)} stages are not {c.chunks} on every submesh"
        mine = (c.views, c.micro) in c.pairs if c.chunks == 1 else (c.views, c.micro, c.chunks) in triples
        if any(s.first >= s.end for s in c.stages) or not mine:
            return "a stage is empty, or its number of stages and micro-batches is not among those enumerated"
        if len(set(c.pairs)) < len(c.pairs) or len(set(triples)) < len(triples):
            return "a pair is enumerated more than once"
        known = {*c.pairs, *(t[:2] for t in triples)}
        if any((x.stages, x.micro) not in known for x in c.leaves):
            return "a leaf belongs to none of the pairs that are enumerated"
        if c.overlap is not None and len(c.overlap.stages) != len(c.stages):
            return "the orders of phases are those of other stages"
        if any((x.channels is None) != (c.overlap is None) for x in c.leaves):
            return "leaves have weights of channels where reshardings run beside operators, and only there"
        pipe = c.schedule.subject
        if not isinstance(pipe, Pipeline) or pipe.chunks != c.chunks or pipe.wave or pipe.uneven != (c.chunks > 1):
            chunks = "one chunk" if c.chunks == 1 else f"{c.chunks} chunks"
            return f"the schedule is not one of a pipeline with {chunks} a stage"
        units = self.problem(c.views, c.micro, tuple(s.choices for s in c.stages))
        self.assumptions = assumptions(c, space(c.space), self.graph_or_none)
        return self._wrong_stages(units)

    def _wrong_stages(self, units: Units) -> str:
        c, pipe = self.c, self.pipe()
        scale, layouts, updates = units.planning.problem.scale, dict[str, int](), list[list[int]]()
        extras, later = list[list[int]](), list[int]()
        net, _ = pipeline_network(pipe, True)
        sizes = len(units.graph.operators) + len(units.entries.moves)
        self.budget.charge(OBJECT * 256 * len(c.stages) * sizes, "stages")
        if len(pipe.times) != len(c.stages) or pipe.micro_batches != c.micro:
            return "the schedule has other stages or micro-batches"
        chosen = [solution(units.planning, stage.choices) for stage in c.stages]
        rounds = Rounds(c, units)
        if wrong := rounds.wrong_layouts(chosen):
            return wrong
        for s, (stage, x) in enumerate(zip(c.stages, chosen, strict=True)):
            if wrong := self._wrong_choices(units, stage, x, layouts):
                return f"stage {s}: {wrong}"
            times, more = phases(c, units, s, x, rounds.late(s))
            extras.append(more)
            forward, backward = (ceil(Fraction(t * PICO, scale)) for t in times[:2])
            later.append(times[2])
            expected = (-(-forward // c.quantum), -(-backward // c.quantum), 0)
            if pipe.times[s] != expected:
                return f"stage {s}: takes {expected} of {c.quantum} ps, the schedule says {pipe.times[s]}"
        for s, update in enumerate(later):
            updates.append([ceil(Fraction(t * PICO, scale)) for t in rounds.takes(chosen, s, update)])
        for view in range(c.views):
            peak = 0 if c.memory is None else view_memory(c, units, chosen, net.times, self.lags(), view, extras)
            peak += sum(rounds.buffer_bytes(s, chosen) for s in range(view, len(c.stages), c.views))
            if c.memory is not None and peak > c.memory:
                return f"stage {view}: needs {peak} bytes with the activations of the schedule, the limit is {c.memory}"
        for s in range(1, len(c.stages)):
            level = crossed_level(c.machine, c.views, s)
            for name in c.division.cuts[c.stages[s].first - 1]:
                size = units.graph.tensor(name).elements * units.graph.tensor(name).element_bytes
                far = send(c.machine, c.views, size, True)
                seconds = send_over(c.machine, c.views, size, level) if c.ordered else far
                if self.lags()[s] * c.quantum < seconds * PICO:
                    return f"sending {name!r} takes longer than the schedule says"
        ends = (c.schedule.starts + net.times).reshape(3, len(c.stages), c.micro).max(axis=(0, 2))
        last = [int(ends[view :: c.views].max()) * c.quantum for view in range(c.views)]
        step = max(rounds.ends(chosen, last, updates))
        return "" if step == c.step else f"the step takes {step} ps, the claim says {c.step}"

    def pipe(self) -> Pipeline:
        """What is scheduled."""
        if not isinstance(self.c.schedule.subject, Pipeline):
            raise Wrong("its schedule is that of no pipeline")
        return self.c.schedule.subject

    def lags(self) -> list[int]:
        """What the schedule says of the sends in front of every stage, in its units."""
        pipe = self.pipe()
        return [0, *(pipe.hops or [pipe.send] * (len(pipe.times) - 1))]

    def _wrong_choices(self, units: Units, stage: Stage, x: Mapping[int, int], layouts: dict[str, int]) -> str:
        names, copies = units.decisions_of(stage.first, stage.end)
        if {n for n, _ in stage.choices.operators} != names or {n for n, _ in stage.choices.copies} != copies:
            return "the choices are not those of its operators and copies"
        if len(stage.choices.operators) != len(names) or len(stage.choices.copies) != len(copies):
            return "something is decided twice"
        if not all(is_allowed(units.planning, v, choice) for v, choice in x.items()):
            return "a placement is one of those that are forbidden"
        cuts = self.c.division.cuts
        for c in (stage.first, stage.end):
            for name in cuts[c - 1] if 0 < c <= len(cuts) else ():
                v = units.planning.copies[name]
                if layouts.setdefault(name, x[v]) != x[v]:
                    return f"{name!r} has another layout than on the stage before"
                held = units.entries.layout_at(None, None, name, x[v])
                t = units.graph.tensor(name)
                if held.largest * units.planning.machine.devices != t.elements:
                    return f"{name!r} is not split evenly over the devices"
        return ""

    def check_bound(self) -> CheckResult:
        """The claim about the lower bound."""
        c = self.c
        try:
            found = self.least_of_all()
        except Wrong as error:
            return CheckResult("WithinGap", Verdict.REFUTED, None, None, c.space, self.assumptions, str(error))
        reason, verdict = "", Verdict.PROVED
        if found < c.lower_bound or c.lower_bound > c.step:
            verdict = Verdict.REFUTED
            reason = f"the leaves give a bound of {found} ps, the claim says {c.lower_bound}"
        kind = "Optimal" if c.lower_bound == c.step else "WithinGap"
        proved = verdict is Verdict.PROVED
        return CheckResult(
            kind,
            verdict,
            c.step if proved else None,
            min(found, c.step) if proved else None,
            c.space,
            self.assumptions,
            reason,
        )

    def least_of_all(self) -> int:
        """Picoseconds that nothing enumerated goes below."""
        c, found = self.c, list[int]()
        for pair in dict.fromkeys([*c.pairs, *((x.stages, x.micro) for x in c.interleaved)]):
            runs = self.runs(*pair)
            if pair in c.pairs:
                found.append(self.least(*pair, runs))
            found += [self.least_interleaved(x, runs) for x in c.interleaved if (x.stages, x.micro) == pair]
            for nodes in (False, True):  # tables of one pair at a time: there may be gigabytes of them
                self.units.pop((*pair, nodes), None)
        return min(found)

    def runs(self, stages: int, micro: int) -> Groups:
        """Least times of runs of units."""
        c, n = self.c, self.c.division.units
        if stages > n:
            raise Wrong(f"{stages} stages of {n} units")
        view = self.view(stages)
        cuts = PART * 16 * n * (1 + len(view.levels)) + OBJECT * len(c.leaves)
        self.budget.charge(cuts + cells_of(self.work(micro), view), "least work")
        both, forward, backward = (least_work(self.work(micro), view, phases) for phases in ("FB", "F", "B"))
        leaves = [leaf for leaf in c.leaves if (leaf.stages, leaf.micro) == (stages, micro)]
        base = least_work_group(forward, backward if c.overlap is not None else (), both, micro)
        return learn(
            base,
            leaves,
            lambda nodes: self.problem(stages, micro, nodes=nodes),
            lambda channels: weighed_group(channels, forward, backward, micro),
            n,
        )

    def memory(self, stages: int, micro: int) -> tuple[list[int], int] | None:
        """Bytes per unit at least, and what the devices of a view may hold; nothing without a limit."""
        if self.c.memory is None:
            return None
        return least_bytes(self.graph(micro), self.c.division, micro), self.c.memory * self.view(stages).devices

    def least(self, stages: int, micro: int, runs: Groups) -> int:
        """Picoseconds of a step on `stages` stages with `micro` micro-batches at least."""
        c, n, graph = self.c, self.c.division.units, self.graph(micro)
        first = least_work(self.work(micro), self.view(stages), "F")
        sends, there = [0], [0]
        for pair in c.division.cuts:
            sizes = [graph.tensor(t).elements * graph.tensor(t).element_bytes for t in pair]
            sends.append(int(PICO * sum(send(c.machine, stages, size, False) for size in sizes)))
            there.append(int(PICO * send(c.machine, stages, sizes[0], False)))
        memory, wanted = self.memory(stages, micro), (c.lower_bound, first, there)
        known = [g.both for g in runs], [g.updated for g in runs], [g.step for g in runs]
        found = least_step(n, stages, micro, known, sends, memory, wanted, self.budget)
        phases = any(leaf.phase for leaf in c.leaves if (leaf.stages, leaf.micro) == (stages, micro))
        if found >= c.lower_bound or stages == 1 or not (c.ordered or phases):
            return found
        tables = self.run_tables(stages, micro, stages, runs)
        return c.lower_bound if none_below(tables, stages, micro, c.lower_bound, self.budget) else found

    def least_interleaved(self, x: Interleaved, runs: Groups) -> int:
        """Picoseconds of a step with several chunks on every view at least."""
        stages = x.stages * x.chunks
        if stages > self.c.division.units or x.stages < 2 or x.chunks < 2:
            raise Wrong(f"{x.stages} times {x.chunks} chunks of {self.c.division.units} units")
        if len(x.weights) != x.lines or min(x.weights) < 0 or not any(x.weights):
            raise Wrong(f"{x.stages}:{x.micro}:{x.chunks} has no weights of its lines")
        known = self.run_tables(x.stages, x.micro, stages, runs)
        return least_mean(known, x.stages, x.chunks, x.micro, x.weights, self.budget)

    def run_tables(self, views: int, micro: int, stages: int, runs: Groups) -> Known:
        """Tables of all runs, and sends in front of every stage."""
        n, memory = self.c.division.units, self.memory(views, micro)
        kinds = zip(*((g.forward, g.backward, g.both, g.updated, g.step) for g in runs), strict=True)
        rows = (table(n, found, memory, self.budget) for found in kinds)
        self.budget.charge(PART * 8 * stages * n * (1 + len(self.c.machine.levels)), "sends")
        graph = self.graph(micro)
        ways = ([graph.tensor(pair[way]) for pair in self.c.division.cuts] for way in (0, 1))
        sizes = ([t.elements * t.element_bytes for t in crossing] for crossing in ways)
        return Known(*rows, *(hops(self.c.machine, of, views, stages, self.c.ordered) for of in sizes))
