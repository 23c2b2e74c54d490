"""Checks plans.  Standard library and numpy only; it searches nothing and believes nothing that it can
compute.

A plan file holds a graph, a machine, the name of a space, choices, totals of communication and a certificate.  Its
claims:

    Parts          the parts belong together: the problem built again from graph, machine, space and memory limit is the
                   one the certificate is about (hash), its vertices, edges and memory rows are the graph's, it states
                   every assumption that is made (`verify/plan/assumptions.py`), and the choices are its solution
    Space          the choices of every vertex are all placements of the named space, each once; where the space is
                   restricted to a vocabulary, those that it does not say are forbidden (`verify/plan/vocabulary.py`)
    Optimal, ..    the claim of the certificate (`verify/selection/certificate.py`)
    Entries        every cost entry that the choices use, and `samples` seeded others, are what index sets give
                   (`verify/plan/entries.py`); so are all distinct entries, or as many as `cells` allow
                   (`verify/plan/tables.py`): how many of how many is said
    Delivers       the steps of every movement bring every rank its box, fully summed (`verify/plan/communication.py`);
                   every output element is written by one owner or the ranks of one declared sum
                   (`verify/plan/owners.py`)
    Bars           what the plan says of the machines within the error bounds of its own, if anything
                   (`verify/plan/error_bounds.py`)
    Bytes          the stored collective, loads and phases of every movement are those of its steps, and those that
                   index sets give

Verdicts: a part that is false or does not belong is REFUTED with the place.  What cannot be read, or is too large to be
checked, is a `ContainerError`; sizes are bounded before memory is taken (`models/cost/limits.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import assert_never

import numpy as np

from ...models.communication.choices import copy_layout, input_layout, output_layout
from ...models.communication.reduction_programs import chooser_of
from ...models.communication.resharding import derive
from ...models.cost.limits import Counter, TooLarge
from ...models.cost.selection import DecisionKind, Planning, build
from ...models.layout.layout import Layout
from ...models.layout.placement import SpaceError, space
from ...models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from ...models.program.graph import Graph
from ...proofs.container.archive import Member, identity, read_container
from ...proofs.container.canonical import NO_ROOM, ContainerError
from ...proofs.plan.bundle import Moved, Plan, decode_plan
from ..budget import CELLS, Budget
from ..selection.certificate import check_selection
from ..verdict import EXIT_CODES, CheckResult, Coverage, worst
from .assumptions import wrong_assumptions
from .boxes import Box, DeviceBoxes, all_inside, volume
from .communication import check_bytes, check_delivers, plain_layout
from .effort import charge_entry, charge_steps, charge_tables
from .entries import communication_loads
from .error_bounds import wrong_error_bounds
from .owners import wrong_owner
from .reductions import choice_of
from .space import check_list
from .structure import Move, moves, replaces
from .tables import wrong_anywhere
from .used_entries import Entries, wrong_sampled, wrong_structure, wrong_used
from .vocabulary import restrict

MOST_TEXT = 1 << 24
"""Bytes of plan.json, and of graph.json: a hundred times those of BERT-Large."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PlanCheck:
    """What the checker says of a plan: one result per claim.  `plan` is what was read; `planning` the rebuilt
    problem; `scale`: units in a second of the claim of a joint plan, 0 where they are those of the problem.
    """

    identity: str
    results: tuple[CheckResult, ...]
    plan: Plan
    planning: Planning
    scale: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst of the results."""
        return worst(r.verdict for r in self.results)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def check_plan(
    source: Path | bytes | Plan,
    *,
    samples: int = 1000,
    cells: int = CELLS,
    notify: Progress | None = None,
    budget: Budget | None = None,
    alone: bool = False,
) -> PlanCheck:
    """Check every claim of a plan file.  Raises `ContainerError` for what is malformed, unsupported or too large, or
    needs more than `budget` (what `check --large` allows, unless one is given).

    `notify(done, total)` is called while tables are built and again while entries are recomputed.  `alone`: of a joint
    plan (`verify/joint/plan.py`) what is about its program, not what is about all programs.
    """
    plan, name = (source, "") if isinstance(source, Plan) else read_checked(source)
    budget = Budget.with_large() if budget is None else budget
    if alone:
        return _alone(plan, _build(plan, notify, budget), samples, cells, name, notify, budget)
    return check_single(plan, name, samples, cells, notify, budget)


def check_single(plan: Plan, name: str, samples: int, cells: int, notify: Progress | None, budget: Budget) -> PlanCheck:
    """The same of a plan that was read already; `name`: its identity."""
    if plan.joint is not None:
        raise ContainerError("plan", "is a joint plan, which is checked together with its e-graph")
    whole = _build(plan, notify, budget)
    where = space(plan.space)  # known: the problem was built over it
    planning = restrict(whole, where, plan.memory_limit, budget) if where.vocabulary else whole
    results = [_parts(plan, planning), space_result(planning)]
    certified = check_selection(planning.problem, plan.certificate, budget=budget)
    results.append(replace(certified, kind=type(plan.certificate.claim).__name__))
    if results[0].verdict is Verdict.PROVED:
        x = planning.solution(plan.choices) if plan.choices.operators else None
        entries = entries_result(whole, x, samples, cells, name, notify, budget)
        results.append(replace(entries, space=where.name, assumptions=planning.problem.assumptions))
        results.extend(_communication(plan, planning, budget))
        if plan.bars is not None:
            results.append(_bars(plan, planning, x, certified, budget))
    return PlanCheck(name, tuple(results), plan, planning)


def _bars(
    plan: Plan, planning: Planning, x: tuple[int, ...] | None, certified: CheckResult, budget: Budget
) -> CheckResult:
    if plan.bars is None or x is None:
        return _result(planning, "Bars", "bars: they are said of a plan without choices")
    bound = certified.lower_bound if certified.verdict is Verdict.PROVED else None
    return _result(planning, "Bars", wrong_error_bounds(planning, x, plan.bars, bound, budget))


def _alone(
    plan: Plan, planning: Planning, samples: int, cells: int, name: str, notify: Progress | None, budget: Budget
) -> PlanCheck:
    """The program of a joint plan under its choices, without a claim about others."""
    wrong = _wrong_problem(plan, planning) or _wrong_choices(plan, planning)
    results = [_result(planning, "Parts", wrong), space_result(planning)]
    if not wrong:
        results.append(entries_result(planning, planning.solution(plan.choices), samples, cells, name, notify, budget))
        results.extend(_communication(plan, planning, budget))
    return PlanCheck(name, tuple(results), plan, planning)


def read_checked(source: Path | bytes | Mapping[str, Member]) -> tuple[Plan, str]:
    """The plan and its identity; whatever is wrong with the content is a `ContainerError`."""
    members = read_container(source) if isinstance(source, Path | bytes) else source
    for member in ("plan.json", "graph.json"):
        value = members.get(member)
        if isinstance(value, bytes) and len(value) > MOST_TEXT:
            raise ContainerError(f"member {member!r}", f"has {len(value)} bytes, at most {MOST_TEXT} are read")
    try:
        return decode_plan(members), identity(members)
    except ContainerError:
        raise
    except MemoryError:
        raise ContainerError("plan", NO_ROOM) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ContainerError("plan", f"is malformed: {_short(error)}") from None


def _build(plan: Plan, notify: Progress | None, budget: Budget) -> Planning:
    """The selection problem, built again."""
    try:
        where = space(plan.space).without_vocabulary
        plan.graph.check()
        charge_tables(plan.graph, plan.machine, where, budget, "plan")
        return build(plan.graph, plan.machine, where, plan.memory_limit, notify)
    except TooLarge as error:
        raise ContainerError("plan", f"is too large to be checked: {error}") from None
    except ContainerError:
        raise
    except MemoryError:
        raise ContainerError("plan", NO_ROOM) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ContainerError("plan", f"no selection problem can be built from it: {_short(error)}") from None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _result(planning: Planning, kind: str, wrong: str) -> CheckResult:
    verdict = Verdict.REFUTED if wrong else Verdict.PROVED
    return CheckResult(kind, verdict, None, None, planning.space.name, planning.problem.assumptions, wrong)


def _parts(plan: Plan, planning: Planning) -> CheckResult:
    """Do the parts belong together?"""
    return _result(planning, "Parts", _wrong_part(plan, planning))


def _wrong_part(plan: Plan, planning: Planning) -> str:
    if wrong := _wrong_problem(plan, planning):
        return wrong
    rebuilt, claimed = planning.problem.sha256(), plan.certificate.problem_sha256
    if rebuilt != claimed:
        return (
            f"certificate: it is about the problem {claimed[:12]}.., but graph, machine, space {plan.space!r} and "
            f"memory limit "
            f"{plan.memory_limit} give {rebuilt[:12]}.."
        )
    claim = plan.certificate.claim
    match claim:
        case Optimal() | WithinGap():
            solution: tuple[int, ...] | None = claim.solution
        case Infeasible():
            solution = claim.witness
        case LowerBound():
            solution = None
        case _:
            assert_never(claim)
    if not (plan.choices.operators or plan.choices.copies) and not isinstance(claim, Optimal | WithinGap):
        return "communication: it is listed for a plan without choices" if plan.communication else ""
    if wrong := _wrong_choices(plan, planning):
        return wrong
    found = planning.solution(plan.choices)
    if solution is None:
        return f"choices: the claim {type(claim).__name__} comes with no solution"
    for v, (a, b) in enumerate(zip(found, solution, strict=False)):
        if a != b:
            decision = planning.decisions[v]
            return f"choices: {decision.kind.value} {decision.name!r} has choice {a}, the certificate's solution {b}"
    return "" if found == solution else "choices: the certificate's solution has another length"


def _wrong_problem(plan: Plan, planning: Planning) -> str:
    """Why the rebuilt problem is not the graph's."""
    if wrong := wrong_structure(Entries(planning)):
        return f"problem: {wrong}"
    if wrong := wrong_assumptions(planning.problem, plan.graph, plan.machine, planning.space, plan.memory_limit):
        return f"problem: {wrong}"
    return ""


def _wrong_choices(plan: Plan, planning: Planning) -> str:
    """Why the choices are no solution of the problem."""
    for kind, listed, wanted in (
        ("operators", plan.choices.operators, list(planning.operators)),
        ("copies", plan.choices.copies, list(planning.copies)),
    ):
        if [name for name, _ in listed] != wanted:
            return f"choices: the {kind} are not the graph's, each once and in order"
        for name, placement in listed:
            if len(placement.matrix) != len(placement.axes) + 1 or any(
                len(row) != len(planning.machine.levels) for row in placement.matrix
            ):
                return (
                    f"choices: the matrix of {name!r} must have a row per axis, one of replication, and a column per "
                    f"level"
                )
    try:
        planning.solution(plan.choices)
    except SpaceError as error:
        return f"choices: {error}"
    return ""


def space_result(planning: Planning) -> CheckResult:
    """Are the choices of every vertex the whole space?"""
    counter, known = Counter(planning.machine.hierarchy, planning.space), set[object]()
    operators = {op.name: op for op in planning.graph.operators}
    for v, decision in enumerate(planning.decisions):
        if decision.kind is DecisionKind.OPERATOR:
            axes = [operators[decision.name].axis(n) for n in decision.axes]
            extents, split = [a.extent for a in axes], [a.splittable for a in axes]
        else:
            extents = [planning.graph.tensor(decision.name).shape[int(k)] for k in decision.axes]
            split = [True] * len(extents)
        key = (id(decision.placements), tuple(extents), tuple(split))
        wrong = "" if key in known else check_list(decision.placements, extents, split, planning.space, counter)
        known.add(key)
        if not wrong and planning.problem.domain_size(v) != decision.placements.shape[0]:
            wrong = f"{planning.problem.domain_size(v)} costs for {decision.placements.shape[0]} placements"
        if wrong:
            return _result(planning, "Space", f"{decision.kind.value} {decision.name!r}: {wrong}")
    return _result(planning, "Space", "")


def entries_result(
    planning: Planning,
    x: tuple[int, ...] | None,
    samples: int,
    cells: int,
    seed: str,
    notify: Progress | None,
    budget: Budget | None = None,
) -> CheckResult:
    entries = Entries(planning, budget)
    wrong = (wrong_used(entries, x) if x is not None else "") or wrong_sampled(entries, samples, seed, notify)
    found, coverage = ("", Coverage()) if wrong else wrong_anywhere(entries, cells, seed, notify)
    return replace(_result(planning, "Entries", wrong or found), coverage=None if wrong else coverage)


def _communication(plan: Plan, planning: Planning, budget: Budget) -> tuple[CheckResult, CheckResult]:
    """`Delivers` and `Bytes` of all movements; equal movements are derived and checked once, none before it is
    charged to the budget.
    """
    listed = list(moves(plan.graph)) if plan.choices.operators else []
    delivers, totals = _owners(plan, budget), ""
    if len(plan.communication) != len(listed):
        totals = f"the plan lists {len(plan.communication)} communications, its choices cause {len(listed)}"
    ends = _Ends(plan, planning, budget)
    known: dict[tuple[DeviceBoxes, DeviceBoxes, object, object], tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
    for number, move in enumerate(listed):
        place = f"movement {number} of {move.tensor!r} to " + (
            "its copy" if move.reader is None else f"input {move.position} of {move.reader!r}"
        )
        source, target = ends.end_layouts(move)
        layouts = ends.layouts(move)
        if (ends.plain(layouts[0]), ends.plain(layouts[1])) != (source, target):
            delivers = delivers or f"{place}: layouts differ from what index sets give"
            continue
        size = plan.graph.tensor(move.tensor).element_bytes
        chooser, choice = chooser_of(plan.machine, size), choice_of(plan.machine, size)
        key = (source, target, layouts[0].combine, choice)
        if key not in known:
            charge_steps(place, cells(source, target), plan.machine.devices, budget)
            steps = derive(*layouts, chooser)
            known[key] = (steps.collective(), *communication_loads(source, target, choice))
            delivered = check_delivers(steps)
            if delivered.verdict is not Verdict.PROVED:
                delivers = delivers or f"{place}: {delivered.reason}"
            counted = check_bytes(steps, known[key][1], known[key][2])
            if counted.verdict is not Verdict.PROVED:
                totals = totals or f"{place}: index sets and steps disagree: {counted.reason}"
        expected = Moved(move.tensor, move.writer, move.reader, move.position, *known[key])
        if not totals and plan.communication[number] != expected:
            totals = f"{place}: the plan says {_said(plan.communication[number])}, not {_said(expected)}"
    return _result(planning, "Delivers", delivers), _result(planning, "Bytes", totals)


def _owners(plan: Plan, budget: Budget) -> str:
    """The first operator of which something is computed or written by no rank, or by two."""
    placements, known = dict(plan.choices.operators), set[object]()
    for op in plan.graph.operators:
        if op.name in placements:
            key = (
                op.axes,
                op.output.index,
                plan.graph.tensor(op.output.tensor).shape,
                placements[op.name],
            )  # repeated layers are alike
            if key in known:
                continue
            charge_entry(4 * plan.machine.devices, len(op.axes) + len(op.output.index), budget)
            known.add(key)
            if wrong := wrong_owner(op, plan.graph, placements[op.name], plan.machine.hierarchy):
                return wrong
    return ""


def _said(m: Moved) -> str:
    return (
        f"{m.tensor!r} {m.writer!r} to {m.reader!r} {m.position}: {m.collective}, loads {list(m.loads)[:8]}, phases "
        f"{list(m.phases)[:8]}"
    )


def cells(source: DeviceBoxes, target: DeviceBoxes) -> int:
    """What deriving steps takes, in cells of the grid of end points; 0 if nothing moves.

    The most of: cells of the distinct boxes of the source; of all boxes of the target; of all boxes of the source, as
    far as they are wanted.

    >>> rows, columns = (((0, 1), (0, 4)), ((1, 4), (0, 4))), (((0, 4), (0, 4)), ((0, 0), (0, 0)))
    >>> cells(DeviceBoxes.of((2,), (4, 4), rows), DeviceBoxes.of((2,), (4, 4), columns)), cells(DeviceBoxes.of((2,),
    ...     (4, 4), columns), DeviceBoxes.of((2,), (4, 4), rows))
    (2, 2)
    """
    if all_inside(target.ends, source.ends):
        return 0
    cuts = [np.unique(np.concatenate([source.ends[:, k], target.ends[:, k]])) for k in range(len(source.shape))]

    def of(boxes: Sequence[Box]) -> int:
        full = np.array([box for box in boxes if volume(box)], dtype=np.int64).reshape(-1, len(cuts), 2)
        counts = [
            (np.searchsorted(cut, full[:, k, 1]) - np.searchsorted(cut, full[:, k, 0])).tolist()
            for k, cut in enumerate(cuts)
        ]
        return sum(map(prod, zip(*counts, strict=True))) if counts else len(full)

    devices = len(target.ends)
    return max(
        of(list(set(source.boxes))), of(target.boxes), min(of(source.boxes), of(list(set(target.boxes))) * devices)
    )


class _Ends:
    """Both ends of a movement, twice: from index sets, and as the layouts from which steps are derived and executed."""

    def __init__(self, plan: Plan, planning: Planning, budget: Budget) -> None:
        self.graph: Graph = plan.graph
        self.hierarchy = plan.machine.hierarchy
        self.placements, self.copies = dict(plan.choices.operators), dict(plan.choices.copies)
        self.operators = {op.name: op for op in plan.graph.operators}
        self.entries = Entries(planning, budget)
        self.replaced = replaces(plan.graph)
        self.x = planning.solution(plan.choices) if plan.choices.operators else ()
        self.known: dict[tuple[object, ...], DeviceBoxes] = {}

    def end_layouts(self, move: Move) -> tuple[DeviceBoxes, DeviceBoxes]:
        u, v = self.entries.vertex(move.writer, move.tensor), self.entries.vertex(move.reader, move.tensor)
        source, target = self.entries.ends(move, self.x[u], self.x[v])
        self.entries.charge(source, target)
        return source, target

    def layouts(self, move: Move) -> tuple[Layout, Layout]:
        g, h = self.graph, self.hierarchy
        if move.writer is None:
            a = copy_layout(move.tensor, g, self.copies[self.replaced.get(move.tensor, move.tensor)], h)
        else:
            a = output_layout(self.operators[move.writer], g, self.placements[move.writer], h)
        if move.reader is None:
            return a, copy_layout(move.tensor, g, self.copies[self.replaced.get(move.tensor, move.tensor)], h)
        return a, input_layout(self.operators[move.reader], move.position, g, self.placements[move.reader], h)

    def plain(self, layout: Layout) -> DeviceBoxes:
        """`plain_layout(layout)`, once per distinct layout."""
        key = (layout.shape, layout.boxes.tobytes(), layout.open)
        if key not in self.known:
            self.known[key] = plain_layout(layout)
        return self.known[key]
