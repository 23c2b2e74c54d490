"""Checks reduction programs: `Correct`, `Cheapest`, `Count`, `Impossible`, and `Best` placement.  No
search, no
solver.

Invariants
- Correct      two replays agree and reach the goal: row by row (`replay`) and by the rules of
  `models.collective_programs.collectives`.
- Cheapest     correct; its cost, recomputed by the cost model, is the claimed one; and for potentials phi of the listed
  states
                 phi(goal) <= 0,  phi(s) <= cost(s, t) + phi(t) for every instruction that applies in s (0 for unlisted
                 t), all costs >= 0.
               Then every program of any length costs at least phi(start).  Proved if phi(start) >= cost; less is a
               weaker bound.
- Count        programs counted again, length by length, on the closed graph derived here.
- Impossible   the goal is not in the closed graph.
- Best         placements complete; for every placement, reduction and order a Cheapest part that holds; sums and minima
  recomputed.

What replays and expanded states take is charged to one budget for all parts before it is done.
Source: `proofs/collective_programs/certificate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...models.collective_programs.collectives import (
    Collective,
    CollectiveCost,
    CollectiveError,
    Groups,
    LoweredStep,
    State,
    apply,
    rows_of,
)
from ...models.collective_programs.parallelism import Hierarchy, ParallelismError, ReductionRequest, Request
from ...models.collective_programs.programs import Form, Program, ReductionSystem, Tree, patterns
from ...models.machine.parts import MachineError
from ...models.problem.claims import Verdict
from ...proofs.collective_programs.certificate import (
    MAX_COST,
    Best,
    Cheapest,
    Correct,
    CostSpec,
    Impossible,
    Part,
    ReductionCertificate,
    ReductionCertificateError,
    ReductionClaim,
    claim_name,
)
from ...proofs.collective_programs.file import REDUCTION, decode_placement, decode_reduction
from ...proofs.container.archive import Member
from ...proofs.container.canonical import ContainerError
from ...proofs.container.effort import OBJECT, PART
from ..budget import Budget
from ..verdict import CheckResult
from .placement import check_placement
from .replay import MAX_CELLS, ReplayError, replay

STEP = 3 * PART >> 4
"""Cells of one position in one step of a state: a few operations on sets kept as integers."""


PLACE = f"member {REDUCTION!r}"


class Refuted(Exception):
    """The claim does not hold; the message says where."""


@dataclass
class Closure:
    """Reachable states of a system, expanded one by one in order of discovery; `steps[s]`: (groups, collective,
    target, rows moved).
    """

    system: ReductionSystem
    budget: Budget
    states: list[State] = field(default_factory=list)
    steps: list[list[tuple[int, Groups, Collective, int, tuple[int, ...]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = self.system.rules
        self.rules, self.goal = rules, self.system.goal()
        self.options = [
            (i, p.groups, kind, p.form is Form.MASTER)
            for i, p in enumerate(patterns(self.system.tree, rules))
            for kind in rules.allowed_collectives(p.form is Form.MASTER)
        ]
        self.states.append(self.system.start())
        self.number = {self.states[0]: 0}

    def expand(self, most: int) -> bool:
        """Expand the first `most` states; True if that is all of them."""
        while len(self.steps) < min(most, len(self.states)):
            state = self.states[len(self.steps)]
            self.budget.charge(STEP * len(self.options) * self.system.tree.positions, PLACE)
            found = []
            for i, groups, kind, master in self.options if state != self.goal else ():
                after = apply(state, groups, kind, self.rules, master)
                if after is None or after == state:
                    continue
                target = self.number.setdefault(after, len(self.states))
                if target == len(self.states):
                    self.states.append(after)
                source = after if kind is Collective.ALL_GATHER else state
                found.append((i, groups, kind, target, tuple(rows_of(source[g[0]]).bit_count() for g in groups)))
            self.steps.append(found)
        return len(self.steps) == len(self.states)

    def whole(self) -> None:
        """Expand everything."""
        while not self.expand(len(self.states)):
            pass


class _Work:
    """What several parts share: closures by system, cost models, the budget."""

    def __init__(self, costs: Sequence[CostSpec], budget: Budget) -> None:
        self.specs = costs
        self.budget = budget
        self.models: dict[int, CollectiveCost] = {}
        self.closures: dict[tuple[Tree, int, str, Groups], Closure] = {}

    def closure(self, system: ReductionSystem) -> Closure:
        key = (system.tree, system.chunks, system.reading, system.wanted)
        if key not in self.closures:
            self.closures[key] = Closure(
                ReductionSystem(
                    system.tree, (tuple(range(system.tree.positions)),), system.chunks, system.reading, system.wanted
                ),
                self.budget,
            )
        return self.closures[key]

    def model(self, number: int) -> CollectiveCost:
        if number not in self.models:
            if not 0 <= number < len(self.specs):
                raise Refuted(f"there is no cost model {number}")
            self.models[number] = self.specs[number].model()
        return self.models[number]


def check_members(members: Mapping[str, Member], budget: Budget | None = None) -> tuple[CheckResult, ...]:
    """Check a container with `placement.json` or `reduction.json`; `ContainerError` on anything malformed."""
    if REDUCTION in members:
        return check_reduction(decode_reduction(members), budget)
    return (check_placement(decode_placement(members), budget),)


def check_reduction(certificate: ReductionCertificate, whole: Budget | None = None) -> tuple[CheckResult, ...]:
    """One result per claim: the placements, every part, the best placement."""
    potentials = {id(p.potentials): p.potentials.size for p in certificate.parts}
    listed = 0 if certificate.placement is None else len(certificate.placement.matrices)
    work = _Work(certificate.costs, Budget.of(sum(potentials.values()) + 16 * (len(certificate.parts) + listed), whole))
    results = []
    complete = None
    if certificate.placement is not None:
        complete = check_placement(certificate.placement, work.budget)
        results.append(complete)
    parts = [_part(p, work) for p in certificate.parts]
    results.extend(parts)
    if certificate.best is not None:
        work.budget.charge(PART * len(certificate.best.terms) * listed, PLACE)
        results.append(_checked_best(certificate, certificate.best, complete, parts))
    if not results:
        results.append(CheckResult("Cheapest", Verdict.UNDECIDED, None, None, "", (), "the certificate claims nothing"))
    return tuple(results)


def _part(part: Part, work: _Work) -> CheckResult:
    kind = claim_name(part.claim)
    space, assumed = _space(part.request), _assumed(part.request, part.claim, work)
    try:
        request = part.request.check()
        devices, cuts = _extent(request)
        work.budget.charge(OBJECT * devices * cuts, PLACE)
        system = request.system().check()
        cells = system.tree.positions * max(system.chunks, system.tree.positions)
        if cells > MAX_CELLS:
            raise ContainerError(
                PLACE,
                f"is too large to be checked: {system.tree.positions} positions x {system.chunks} chunks, at most "
                f"{MAX_CELLS} together",
            )
        cost, bound = _claim(part, system, work)
    except (Refuted, ReplayError, CollectiveError, ParallelismError, MachineError, ReductionCertificateError) as error:
        return CheckResult(kind, Verdict.REFUTED, None, None, space, assumed, str(error))
    if isinstance(part.claim, Cheapest) and cost is not None and (bound is None or bound < cost):
        return CheckResult(
            kind,
            Verdict.UNDECIDED,
            cost,
            bound,
            space,
            assumed,
            f"potentials prove only that no program costs less than {bound}",
        )
    return CheckResult(kind, Verdict.PROVED, cost, bound, space, assumed)


def _extent(request: Request) -> tuple[int, int]:
    """(devices, digits of a device)."""
    if isinstance(request, ReductionRequest):
        return prod(request.hierarchy), 1 + len(request.hierarchy) * len(request.matrix)
    return sum(request.nodes), 2


def _space(request: Request) -> str:
    if isinstance(request, ReductionRequest):
        matrix = " ".join("[" + " ".join(map(str, row)) + "]" for row in request.matrix)
        return (
            f"reading {request.reading}, [{matrix}] reduce {list(request.reduce)}, {request.order.value}, hierarchy "
            f"({request.synthesis.value})"
        )
    return f"reading {request.reading}, nodes of {list(request.nodes)} devices"


def _assumed(request: Request, claim: ReductionClaim, work: _Work) -> tuple[str, ...]:
    out = [f"reading-{request.reading}"]
    if isinstance(claim, Cheapest):
        try:
            out.append(f"cost-model {work.model(claim.model).name}")
        except (Refuted, MachineError, ReductionCertificateError):
            out.append("cost-model unknown")
    return tuple(out)


def _claim(part: Part, system: ReductionSystem, work: _Work) -> tuple[int | None, int | None]:
    """(cost, lower bound) of a claim that holds; `Refuted` otherwise."""
    claim = part.claim
    if isinstance(claim, Correct):
        _replayed(part.request, claim.program, system, work.budget)
        return None, None
    if isinstance(claim, Cheapest):
        model = work.model(claim.model)
        _fits(part.request, work.specs[claim.model])
        steps = _replayed(part.request, claim.program, system, work.budget)
        cost = sum(_priced(model, step) for step in steps)
        if cost != claim.cost:
            raise Refuted(f"the program costs {cost}, not {claim.cost}")
        return cost, _bound(part.potentials.tolist(), system, work.closure(system), model)
    closure = work.closure(system)
    closure.whole()
    if isinstance(claim, Impossible):
        if closure.goal in closure.number:
            raise Refuted("there is a program: the goal can be reached")
        return None, None
    lengths = _lengths(closure)
    if lengths != claim.lengths:
        raise Refuted(f"programs by length are {list(lengths)}, not {list(claim.lengths)}")
    return None, None


def _fits(request: Request, spec: CostSpec) -> None:
    """`Refuted` unless the cost model prices the devices of the request: same hierarchy, or a mask that keeps its
    nodes.
    """
    machine = spec.machine.hierarchy
    if isinstance(request, ReductionRequest):
        if spec.devices or machine != request.hierarchy:
            raise Refuted(
                f"the cost model is for another machine: "
                f"{'x'.join(map(str, machine))}{' with a device mask' if spec.devices else ''}"
            )
        return
    nodes = [d // (spec.machine.devices // machine[0]) for d in spec.devices]
    if [nodes.count(v) for v in dict.fromkeys(nodes)] != list(request.nodes) or nodes != sorted(nodes):
        raise Refuted(f"the device mask of the cost model does not leave nodes of {list(request.nodes)} devices")


def _replayed(request: Request, program: Program, system: ReductionSystem, budget: Budget) -> list[LoweredStep]:
    rules, n = system.rules, system.tree.positions
    budget.charge(
        (1 + len(program)) * (OBJECT * n * system.chunks + STEP * _extent(request)[0] * len(system.tree.blocks)), PLACE
    )
    steps = replay(request, program, rules.masters.value == "global_first", rules.skip_empty)
    states, again = system.execute(program)
    if states[-1] != system.goal() or [_unordered(s) for s in steps] != [_unordered(s) for s in again]:
        raise Refuted("the two replays of the program disagree")
    return steps


def _unordered(step: LoweredStep) -> tuple[Collective, list[tuple[tuple[int, ...], int]], int]:
    return step.collective, sorted(zip(step.groups, step.rows, strict=True)), step.chunks


def _priced(model: CollectiveCost, step: LoweredStep) -> int:
    cost = model.step_time(step)
    if not 0 <= cost < MAX_COST:
        raise Refuted(f"a step has the cost {cost}, outside 0 .. {MAX_COST}")
    return cost


def _bound(phi: list[int], system: ReductionSystem, closure: Closure, model: CollectiveCost) -> int:
    """phi(start), if the potentials prove it."""
    if not phi:
        return 0  # costs are not negative
    closure.expand(len(phi))
    if len(phi) > len(closure.states):
        raise Refuted(f"{len(phi)} potentials are listed, there are only {len(closure.states)} states")
    goal = closure.number.get(closure.goal)
    if goal is not None and goal < len(phi) and phi[goal] > 0:
        raise Refuted(f"the potential of the goal (state {goal}) is {phi[goal]}, must not be positive")
    prices: dict[tuple[int, Collective, tuple[int, ...]], int] = {}
    for s, value in enumerate(phi):
        for pattern, groups, kind, t, rows in closure.steps[s]:
            key = (pattern, kind, rows)
            if key not in prices:
                closure.budget.charge(PART + STEP * len(system.members) * sum(map(len, groups)), PLACE)
                devices = tuple(tuple(row[p] for p in g) for row in system.members for g in groups)
                prices[key] = _priced(model, LoweredStep(kind, devices, rows * len(system.members), system.chunks))
            after = phi[t] if t < len(phi) else 0
            if value > prices[key] + after:
                raise Refuted(
                    f"state {s}: potential {value} is more than {prices[key]} for {kind.value} on "
                    f"{list(groups[0][:4])}.. and {after} from state {t} on"
                )
    return phi[0]


def _lengths(closure: Closure) -> tuple[int, ...]:
    """Programs of length 0, 1, 2, ..: paths to the goal, counted backwards from the goal."""
    goal = closure.number.get(closure.goal)
    ways = {} if goal is None else {goal: 1}  # state -> programs of the current length from it
    out = []
    edges = len(closure.states) + sum(map(len, closure.steps))
    for _ in range(len(closure.states) + 1):
        closure.budget.charge(OBJECT * edges, PLACE)
        out.append(ways.get(0, 0))
        ways = {s: n for s, steps in enumerate(closure.steps) if (n := sum(ways.get(t, 0) for _, _, _, t, _ in steps))}
        if not ways:
            return tuple(out)
    raise Refuted("the state graph has a cycle")


def _checked_best(
    certificate: ReductionCertificate, best: Best, complete: CheckResult | None, parts: Sequence[CheckResult]
) -> CheckResult:
    orders = ", ".join(best.orders)
    space = f"all placements, orders {orders}"
    assumed = tuple(dict.fromkeys(a for p in parts for a in p.assumptions))
    try:
        cost, bound = _best(certificate, best, complete, parts)
    except Refuted as error:
        return CheckResult("Best", Verdict.REFUTED, None, None, space, assumed, str(error))
    if bound < cost:
        return CheckResult(
            "Best",
            Verdict.UNDECIDED,
            cost,
            bound,
            space,
            assumed,
            f"the parts prove only that no placement costs less than {bound}",
        )
    return CheckResult("Best", Verdict.PROVED, cost, bound, space, assumed)


def _best(
    certificate: ReductionCertificate, best: Best, complete: CheckResult | None, parts: Sequence[CheckResult]
) -> tuple[int, int]:
    placement = certificate.placement
    if placement is None or complete is None or complete.verdict is not Verdict.PROVED:
        raise Refuted("the list of placements is not proved complete")
    if (
        not best.terms
        or not best.orders
        or len(set(best.orders)) != len(best.orders)
        or not 0 <= best.matrix < len(placement.matrices)
    ):
        raise Refuted("needs at least one reduction, distinct orders, and a placement of the list")
    known: dict[tuple[object, ...], tuple[int, int]] = {}
    for part, result in zip(certificate.parts, parts, strict=True):
        r = part.request
        if (
            not isinstance(part.claim, Cheapest)
            or not isinstance(r, ReductionRequest)
            or result.cost is None
            or result.lower_bound is None
        ):
            continue
        if r.synthesis is Hierarchy.COLLAPSED and r.hierarchy == placement.problem.hierarchy:
            known[r.matrix, r.reduce, r.order.value, part.claim.model] = (result.cost, result.lower_bound)
    readings = {p.request.reading for p in certificate.parts}
    if len(readings) != 1:
        raise Refuted(f"parts with different readings ({', '.join(sorted(readings))}) cannot be compared")
    costs, bounds = [], []
    for matrix in placement.matrices:
        cost = bound = 0
        for term in best.terms:
            if term.weight < 1:
                raise Refuted("weights must be at least 1")
            orders = best.orders if len(term.reduce) > 1 else best.orders[:1]  # one axis: all orders are the same
            found = [known.get((matrix, term.reduce, order, term.model)) for order in orders]
            if any(f is None for f in found):
                raise Refuted(f"no proved part for placement {matrix}, reduction over {list(term.reduce)}")
            cost += term.weight * min(f[0] for f in found if f is not None)
            bound += term.weight * min(f[1] for f in found if f is not None)
        costs.append(cost)
        bounds.append(bound)
    if costs[best.matrix] != best.cost:
        raise Refuted(f"placement {best.matrix} costs {costs[best.matrix]}, not {best.cost}")
    return best.cost, min(bounds)
