"""Checks plans with submeshes.  It searches nothing and believes nothing that it can compute.

Views      regions and divisions are sound (`structure`); the choices are placements of the space, those of a branch on
           the view that one of its region's divisions gives it or all on the whole machine; the time of exactly these
           choices, operator by operator and movement by movement, is the claimed cost; no device holds more than the
           limit (`memory`)
Optimal..  the problem over all of them, built again (`problem`), is the one that the certificate is about, and the
           certificate holds: no choice of {whole machine, a division} for every region and of placements takes less
Space      the choices of every decision on the machine are the space's (those on views are counted as they are listed)
Entries    the numbers of the plan without views are what index sets give; all of those on views are computed from them
Delivers   the steps of every movement bring every rank its box, ranks outside of a view nothing; every element is
           written by one owner of its view
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...models.communication.choices import copy_layout, input_layout, output_layout
from ...models.communication.resharding import derive
from ...models.cost.limits import TooLarge
from ...models.cost.selection import DecisionKind, Planning, build
from ...models.layout.layout import Layout
from ...models.layout.placement import Placement, space
from ...models.layout.submesh import Submesh
from ...models.problem.claims import Optimal, Verdict, WithinGap
from ...models.problem.unit import rounding_bound
from ...proofs.container.archive import Member, identity
from ...proofs.container.canonical import NO_ROOM, ContainerError
from ...proofs.views.certificate import SubmeshCertificate
from ...proofs.views.file import decode_submesh_plan
from ..budget import Budget
from ..plan.assumptions import wrong_assumptions
from ..plan.boxes import DeviceBoxes
from ..plan.communication import check_bytes, check_delivers, plain_layout
from ..plan.effort import charge_entry, charge_steps, charge_tables
from ..plan.entries import communication_entry, communication_loads, operator_entry
from ..plan.owners import wrong_owner
from ..plan.plan import cells, entries_result, space_result
from ..plan.structure import Move
from ..plan.used_entries import Entries, wrong_structure
from ..selection.certificate import check_selection
from ..verdict import CheckResult, Rounding
from . import memory
from .lies import lies
from .prices import Prices, part_of
from .problem import assumptions, rebuilt
from .structure import Parts, parts_of, wrong_divisions, wrong_names, wrong_regions, wrong_submesh

Progress = Callable[[int, int], None]


def check_members(
    members: Mapping[str, Member],
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[SubmeshCertificate, tuple[CheckResult, ...]]:
    """The certificate of a container, and one result per claim; `ContainerError` for what is malformed."""
    certificate, results, _ = judge_members(members, samples, cells, notify, budget)
    return certificate, results


def judge_members(
    members: Mapping[str, Member],
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[SubmeshCertificate, tuple[CheckResult, ...], tuple[Rounding, ...]]:
    """`check_members`, and how times are rounded."""
    try:
        certificate = decode_submesh_plan(members)
        return certificate, *_checked(certificate, identity(members), samples, cells, notify, budget)
    except ContainerError:
        raise
    except TooLarge as error:
        raise ContainerError("views", f"is too large to be checked: {error}") from None
    except MemoryError:
        raise ContainerError("views", NO_ROOM) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ContainerError("views", f"is malformed: {type(error).__name__}: {str(error)[:300]}") from None


def check_submesh_plan(
    c: SubmeshCertificate,
    seed: str,
    samples: int,
    cells: int,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> tuple[CheckResult, ...]:
    """One result per claim."""
    return _checked(c, seed, samples, cells, notify, budget)[0]


def _checked(
    c: SubmeshCertificate, seed: str, samples: int, cells: int, notify: Progress | None, budget: Budget | None
) -> tuple[tuple[CheckResult, ...], tuple[Rounding, ...]]:
    where = space(c.space)
    if where.vocabulary:
        return (_refuted(c, f"space {c.space!r}: vocabularies are for plans of the whole machine"),), ()
    if c.machine.collectives.value != "hierarchical":
        return (_refuted(c, f"{c.machine.collectives.value} collectives are for plans of the whole machine"),), ()
    if any(t.host for t in c.graph.tensors):
        return (_refuted(c, "tensors on hosts are for plans of the whole machine"),), ()
    budget = Budget.with_large() if budget is None else budget
    c.graph.check()
    charge_tables(c.graph, c.machine, where, budget, "views")
    wrong = wrong_names(c.graph, c.regions) or wrong_divisions(c.machine, c.regions, budget)
    if wrong:
        return (_refuted(c, wrong),), ()
    limit = c.memory if c.rows else None
    planning = build(c.graph, c.machine, where, limit, notify)
    entries = Entries(planning, budget)
    wrong = wrong_structure(entries) or wrong_assumptions(planning.problem, c.graph, c.machine, where, limit)
    if wrong:
        return (_refuted(c, wrong),), ()
    parts = parts_of(entries, c.regions)
    wrong = wrong_regions(entries, c.regions, parts)
    if wrong:
        return (_refuted(c, wrong),), ()
    plan = _Chosen(c, entries, parts)
    claim = c.least.claim
    wrong = plan.wrong_choices()
    if not wrong and not isinstance(claim, Optimal | WithinGap):
        wrong = f"the claim {type(claim).__name__} says nothing about a plan"
    if not wrong and isinstance(claim, Optimal | WithinGap) and (time := plan.time()) != claim.cost:
        wrong = f"the choices take {time}, the claim says {claim.cost}"
    flags = assumptions(entries, c.regions, c.memory)
    if not wrong and c.memory is not None:
        chosen = [plan.placement(v) for v in range(len(planning.decisions))]
        peak = memory.peak_memory(entries, c.regions, chosen)
        wrong = f"the plan holds {peak} bytes on a device, the limit is {c.memory}" if peak > c.memory else ""
    if wrong:
        return (replace(_refuted(c, wrong), assumptions=flags),), ()
    first = CheckResult("Views", Verdict.PROVED, None, None, c.space, flags)
    problem = rebuilt(entries, c.regions, parts)
    least = check_selection(problem, c.least, problem.sha256(), budget)
    least = replace(least, kind=type(claim).__name__, assumptions=flags)
    said = entries_result(planning, None, samples, cells, seed, notify, budget)
    rest = (space_result(planning), said, plan.delivers())
    return (first, least, *(replace(r, assumptions=flags) for r in rest)), (
        Rounding(problem.scale, rounding_bound(problem)),
    )


def _refuted(c: SubmeshCertificate, reason: str) -> CheckResult:
    return CheckResult("Views", Verdict.REFUTED, None, None, c.space, (), reason)


class _Chosen:
    """The plan of the file: its choices, priced one by one."""

    def __init__(self, c: SubmeshCertificate, entries: Entries, parts: Parts) -> None:
        self.c, self.entries, self.parts = c, entries, parts
        self.graph, self.machine, self.hierarchy = c.graph, c.machine, c.machine.hierarchy
        self.prices, self.budget = Prices(entries, parts), entries.budget
        self.operators, self.copies = dict(c.choices.operators), dict(c.choices.copies)

    @property
    def planning(self) -> Planning:
        return self.entries.planning

    def placement(self, vertex: int) -> Placement:
        """What was chosen for a vertex."""
        d = self.planning.decisions[vertex]
        return (self.operators if d.kind is DecisionKind.OPERATOR else self.copies)[d.name]

    def wrong_choices(self) -> str:
        """Why the choices are none of the space; empty if they are."""
        for what, items, known in (
            ("operator", self.c.choices.operators, self.planning.operators),
            ("copy", self.c.choices.copies, self.planning.copies),
        ):
            if [name for name, _ in items] != list(known):
                return f"choices: the {what} placements are not those of the graph, each once and in order"
            for name, p in items:
                if p.view is not None and (wrong := wrong_submesh(p.view, self.hierarchy)):
                    return f"choices: the submesh of {what} {name!r}: {wrong}"  # before its placements are listed
                counts = self.hierarchy if p.view is None else p.view.counts
                listed = self.prices.placements(known[name], counts)
                shaped = p.axes == self.planning.decisions[known[name]].axes and listed.shape[1:] == (
                    len(p.matrix),
                    len(p.matrix[0]) if p.matrix else 0,
                )
                if not shaped or not (listed == np.array(p.matrix, dtype=np.int64)).all(axis=(1, 2)).any():
                    return f"choices: the placement of {what} {name!r} is outside the space"
        for v in range(len(self.planning.decisions)):
            if v not in self.parts.place and self.placement(v).view is not None:
                return f"choices: {self.planning.decisions[v].name!r} belongs to no branch and has a submesh"
        for r, region in enumerate(self.c.regions):
            chosen: list[Submesh | None] = []
            for b in range(len(region.branches)):
                found = {self.placement(v).view for v in self.parts.members((r, b))}
                if len(found) > 1:
                    return f"choices: branch {b} of region {r} is on two submeshes"
                chosen.append(found.pop())
            if chosen != [None] * len(chosen) and tuple(chosen) not in region.divisions:
                return f"choices: the submeshes of region {r} are none of its divisions"
        return ""

    def time(self) -> int:
        """Units that the plan takes: outside and crossing, then the slowest view of every phase."""
        scale = self.entries.problem.scale
        total, busy = 0, dict[tuple[int, int], dict[Submesh, int]]()
        for name, p in self.c.choices.operators:
            op, place = self.entries.operators[name], self.parts.place.get(self.planning.operators[name])
            charge_entry(self.machine.devices, len(op.axes) + len(op.inputs), self.budget)
            if p.view is None or place is None:
                total += operator_entry(op, self.graph, p, self.machine, scale)
                continue
            mine = operator_entry(op, self.graph, replace(p, view=None), part_of(self.machine, p.view), scale)
            phase = busy.setdefault((place[0], self.parts.phase[name]), {})
            phase[p.view] = phase.get(p.view, 0) + mine
        inner = {number: at for at, numbers in self.parts.inner.items() for number in numbers}
        for number, move in enumerate(self.entries.moves):
            size, ends = self.graph.tensor(move.tensor).element_bytes, self.prices.ends(move)
            view = self.placement(ends[0]).view
            if number in inner and view is not None:
                source, target = (self.layout_at(move, side, whole=False) for side in (0, 1))
                self.entries.charge(source, target)
                mine = communication_entry(size, source, target, part_of(self.machine, view), scale)
                at = self.parts.phase[move.reader if move.reader is not None else str(move.writer)]
                phase = busy.setdefault((inner[number][0], at), {})
                phase[view] = phase.get(view, 0) + mine
            else:
                source, target = (self.layout_at(move, side, whole=True) for side in (0, 1))
                self.entries.charge(source, target)
                total += communication_entry(size, source, target, self.machine, scale)
        return total + sum(max(by_view.values()) for by_view in busy.values())

    def layout_at(self, move: Move, side: int, whole: bool) -> DeviceBoxes:
        """What every device holds at one end of a movement; `whole`: of the machine, not of the view."""
        name = move.reader if side else move.writer
        p = self.placement(self.prices.ends(move)[side])
        home = self.entries.replaced.get(move.tensor, move.tensor) if name is None else move.tensor
        return lies(self.entries, name, move.position if side else None, home, p, whole)

    def delivers(self) -> CheckResult:
        """Owners and movements."""
        wrong = ""
        for name, p in self.c.choices.operators:
            hierarchy = self.hierarchy if p.view is None else p.view.counts
            op = self.entries.operators[name]
            charge_entry(4 * self.machine.devices, len(op.axes) + len(op.inputs), self.budget)
            wrong = wrong or wrong_owner(op, self.graph, replace(p, view=None), hierarchy)
        for number, move in enumerate(self.entries.moves):
            if wrong:
                break
            source, target = self.layout_at(move, 0, whole=True), self.layout_at(move, 1, whole=True)
            a, b = self._layouts(move)
            place = f"movement {number} of {move.tensor!r}"
            if (plain_layout(a), plain_layout(b)) != (source, target):
                wrong = f"{place}: layouts differ from what index sets give"
                break
            charge_steps(place, cells(source, target), self.machine.devices, self.budget)
            steps = derive(a, b)
            loads, phases = communication_loads(source, target)
            for found in (check_delivers(steps), check_bytes(steps, loads, phases)):
                if found.verdict is not Verdict.PROVED:
                    wrong = wrong or f"{place}: {found.reason}"
        verdict = Verdict.REFUTED if wrong else Verdict.PROVED
        return CheckResult("Delivers", verdict, None, None, self.c.space, (), wrong)

    def _layouts(self, move: Move) -> tuple[Layout, Layout]:
        found: list[Layout] = []
        for side, name in enumerate((move.writer, move.reader)):
            p = self.placement(self.prices.ends(move)[side])
            if name is None:
                home = self.planning.decisions[self.prices.ends(move)[side]].name
                found.append(copy_layout(home, self.graph, p, self.hierarchy))
            elif side:
                op = self.entries.operators[name]
                found.append(input_layout(op, move.position, self.graph, p, self.hierarchy))
            else:
                found.append(output_layout(self.entries.operators[name], self.graph, p, self.hierarchy))
        return found[0], found[1]
