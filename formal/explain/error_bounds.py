r"""What holds of a plan on every machine within the error bounds of its own.

    cost(m)        of a choice on machine m, rounded as the problem's: rises with every time and falls with every rate
    plan x         cost(fastest) <= cost(m) <= cost(slowest)
    any plan y     cost(y) >= (L - R) / (1 + b):  no constant changes by more than the widest bar b, prices are sums
                   of products of one constant each, L is the proved bound, R what rounding can have added
    y minus x      entries that x and y share cancel.  Two bounds, of which the tighter one counts at either end:
                   apart    those that are linear in the constants (links, phases, operators that one resource decides
                            on every machine) are added up per constant, each at its end; the others are between their
                            values on the two extreme machines
                   jointly  every entry is a linear form up to two numbers, and a product is compared with itself under
                            the other placement (`envelopes`): only what the plans do differently is left
    what is lacking with a bar b of `step` also  Y / (1 + b) - X .. Y (1 + b) - X,  X and Y the costs at the machine's
                   own constants: the hull of both, either source of error alone; likewise for a plan's own cost

A difference whose interval contains zero is undecided: the constant that adds most to its width is named.

Roundings: one per operator and resharding, and one per collective with a measured form (`MOST_ROUNDINGS`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, prod
from typing import Final

from ...models.cost.attention import direction
from ...models.cost.collectives import step_times
from ...models.cost.cost import FORMULAS, Formula, OperatorCosts
from ...models.cost.forms import operator_form
from ...models.cost.products import product_axes
from ...models.cost.selection import DecisionKind, Planning
from ...models.machine.error_bounds import extreme, step_error_bound, widest
from ...models.machine.machine import Machine
from ...models.machine.measured import COLLECTIVES
from ...models.machine.parts import STEP
from ...models.machine.quantities import error_bound_text
from ...models.problem.selection_problem import FORBIDDEN
from ...models.program.operators import HOST_COPIES, NodeKind
from ...proofs.plan.bundle import Plan
from ...proofs.plan.error_bounds import Against, ErrorBounds
from ..plans.linear import values
from ..plans.plan import Planned
from ..plans.report import amount
from ..plans.simple import named_plans
from ..plans.time_limit import TimeLimit
from .envelopes import Constants, Envelope, Placed, product_entries
from .terms import PlanTerms

MOST_ROUNDINGS: Final = 64
"""Of one entry: an all-reduce per statistic on each of at most eight levels, in at most three collectives each."""

Counts = list[tuple[int, int]]
"""Numbers of vertices or edges, each with how many are like it."""

Other = tuple[str, tuple[int, ...]]
"""A name and a solution."""


def lower_bound_within(bound: int, planning: Planning) -> int:
    """What no plan costs less than on any machine within the bars, from the bound on the machine itself."""
    problem = planning.problem
    rounded = MOST_ROUNDINGS * (len(problem.vertices) + len(problem.edges))
    return max(0, floor((bound - rounded) / (1 + widest(planning.machine))))


def error_bounds_of(
    planning: Planning, x: tuple[int, ...], bound: int | None, others: Iterable[Other]
) -> ErrorBounds | None:
    """The record of a plan; None for a machine without bars."""
    if not planning.machine.bars:
        return None
    box = Box(planning)
    against = []
    for name, y in others:
        if y == x or planning.problem.cost_of(y) >= FORBIDDEN:
            continue
        least, most, measure = box.difference(x, y)
        against.append(Against(name, planning.choices(y), least, most, measure))
    return ErrorBounds(box.cost(x), lower_bound_within(bound or 0, planning), tuple(against))


def with_error_bounds(planned: Planned, limit: TimeLimit | None = None) -> Plan:
    """The plan that was found, with what holds of it within its machine's error bounds: beside the plans that people
    compare with, as far as they fit.  Where `limit` leaves no time for the check, without, which is announced.
    """
    plan, planning, answer = planned.plan, planned.planning, planned.answer
    assert plan is not None
    if answer.solution is None or not planning.machine.bars:
        return plan
    if limit is not None and limit.late():
        limit.announce("nothing is said of the machine's error bounds: the time limit leaves no time for them")
        return plan
    problem = planning.problem
    fits = [
        (name, y)
        for name, y in named_plans(planning)
        if problem.limit is None or problem.peak_of(y)[0] <= problem.limit
    ]
    return replace(plan, bars=error_bounds_of(planning, answer.solution, answer.lower_bound, fits))


class Box:
    """The machines within the bars of a planning problem's machine."""

    def __init__(self, planning: Planning) -> None:
        self.planning, self.terms = planning, PlanTerms(planning)
        self.fast, self.slow = extreme(planning.machine, False), extreme(planning.machine, True)
        scale = planning.problem.scale
        self.low = {p: v * scale for p, v in values(self.fast).items()}
        self.high = {p: v * scale for p, v in values(self.slow).items()}
        self.unit = Fraction(1, scale)
        self.constants = Constants(planning.machine, self.fast, self.slow, scale)
        self.known: dict[tuple[int, int, int], tuple[Fraction, Fraction]] = {}
        self.priced: dict[int, list[Envelope]] = {}
        self.lacking = 1 + step_error_bound(planning.machine)
        self.products: dict[tuple[int, int], Placed | None] = {}
        self.pairs: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Counts, Counts]] = {}

    def cost(self, x: tuple[int, ...]) -> tuple[int, int]:
        """Units on the fastest and on the slowest machine."""
        low, high = self.terms.cost_at(x, self.fast), self.terms.cost_at(x, self.slow)
        if self.lacking > 1:
            own = self.planning.problem.cost_of(x)
            low, high = min(low, floor(own / self.lacking)), max(high, ceil(own * self.lacking))
        return low, high

    def difference(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, int, str]:
        """Least and most that `y` costs more than `x`, and the constant that adds most to what lies between."""
        apart, jointly = self._apart(x, y), self._jointly(x, y)
        least, most = max(apart[0], jointly[0]), min(apart[1], jointly[1])
        measure = min((apart, jointly), key=lambda found: found[1] - found[0])[2]
        if self.lacking > 1:
            own, other = (self.planning.problem.cost_of(z) for z in (x, y))
            low, high = floor(other / self.lacking) - own, ceil(other * self.lacking) - own
            measure = STEP if high - low > most - least else measure
            least, most = min(least, low), max(most, high)
        return least, most, measure if least < most else ""

    def _changed(self, z: tuple[int, ...], other: tuple[int, ...]) -> tuple[Counts, Counts]:
        """Operators and reshardings that `z` does otherwise than `other`, alike operators left out: the first of
        each structure and placements, and how many of them there are.
        """
        if (z, other) in self.pairs:
            return self.pairs[z, other]
        planning = self.planning
        operators, moved = dict[object, list[int]](), dict[object, list[int]]()
        for v, decision in enumerate(planning.decisions):
            if decision.kind is DecisionKind.OPERATOR and z[v] != other[v]:
                costs = planning.costs[v]  # one object for all operators of one form
                key = (v,) if costs is None else (id(costs), z[v], other[v])
                operators.setdefault(key, [v, 0])[1] += 1
        for e, edge in enumerate(planning.problem.edges):
            if z[edge.u] != other[edge.u] or z[edge.v] != other[edge.v]:
                moved.setdefault(id(self.terms.priced_edge(e, z)[1]), [e, 0])[1] += 1
        own = [(v, n) for v, n in operators.values() if not self._alike(v, z[v], other[v])]
        found = own, [(e, n) for e, n in moved.values()]
        self.pairs[z, other] = found
        return found

    def _jointly(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, int, str]:
        """Every constant moved once for both plans."""
        box, blame = self.constants, dict[str, Fraction]()
        together: dict[str, Fraction] = {}
        least, most = Fraction(0), Fraction(0)

        def add_blame(name: str, width: Fraction) -> None:
            if width:
                blame[name] = blame.get(name, Fraction(0)) + width

        for v, n in self._changed(x, y)[0]:
            products = self._product(v, x[v]), self._product(v, y[v])
            if products[0] is not None and products[1] is not None:
                low, high = self._product_difference(v, x[v], y[v], products[0], products[1])
                least, most = least + n * low, most + n * high
                add_blame(self._name(v, x[v]), n * (high - low))
        for sign, z, other in ((1, y, x), (-1, x, y)):
            for n, e in (*self._operator_envelopes(z, other), *self._edge_envelopes(z, other)):
                for path, c in e.linear.items():
                    together[path] = together.get(path, Fraction(0)) + sign * n * c
                ends = sign * n * e.low, sign * n * (e.high + bool(e.linear))  # rounded up once
                least, most = least + min(ends), most + max(ends)
                add_blame(e.name, n * (e.high - e.low))
        least, most = least + box.bottom(together), most + box.top(together)
        for path, c in together.items():
            add_blame(measured_name(path), abs(c) * (box.high[path] - box.low[path]))
        return floor(least), ceil(most), max(blame, key=lambda p: (blame[p], p), default="")

    def _product(self, v: int, choice: int) -> Placed | None:
        """A product with a measured form, in boxes of one size; None for other operators."""
        machine, costs = self.planning.machine, self.planning.costs[v]
        if costs is None or machine.others or machine.profiles:
            return None
        key = (id(costs), choice)
        if key not in self.products:
            self.products[key] = self._placed(v, costs, choice)
        return self.products[key]

    def _placed(self, v: int, costs: OperatorCosts, choice: int) -> Placed | None:
        planning, machine, decision = self.planning, self.planning.machine, self.planning.decisions[v]
        form = operator_form(planning.graph.operator(decision.name), planning.graph, decision.axes)
        axes, table = product_axes(form), machine.device.product(form.computed_in)
        degrees = [prod(row) for row in decision.placement(choice).matrix[:-1]]
        if axes is None or table is None or any(a.extent % d for a, d in zip(form.axes, degrees, strict=True)):
            return None
        lengths = [a.extent // d for a, d in zip(form.axes, degrees, strict=True)]
        b, m, n, k = (prod(lengths[i] for i in part) for part in (axes.batch, axes.m, axes.n, axes.k))
        device = f"device_class.{machine.device.name}"
        return product_entries(table, (b, m, n, k), form.finish * b * m * n, int(costs.bytes[choice]), device)

    def _product_difference(self, v: int, a: int, b: int, x: Placed, y: Placed) -> tuple[Fraction, Fraction]:
        """Least and most that choice `b` of a product takes longer than `a`."""
        key = (id(self.planning.costs[v]), a, b)
        if key not in self.known:
            (fast_a, slow_a), (fast_b, slow_b) = (
                [self.terms.operator_at(v, choice, m) for m in (self.fast, self.slow)] for choice in (a, b)
            )
            least, most = -self.constants.apart(x, y) - 1, self.constants.apart(y, x) + 1
            self.known[key] = max(least, Fraction(fast_b - slow_a)), min(most, Fraction(slow_b - fast_a))
        return self.known[key]

    def _operator_envelopes(self, z: tuple[int, ...], other: tuple[int, ...]) -> Iterable[tuple[int, Envelope]]:
        """Of operators that are no measured products, and how often each occurs."""
        planning = self.planning
        machine = planning.machine
        for v, n in self._changed(z, other)[0]:
            decision = planning.decisions[v]
            if self._product(v, z[v]) is not None and self._product(v, other[v]) is not None:
                continue
            costs, op = planning.costs[v], planning.graph.operator(decision.name)
            form = operator_form(op, planning.graph, decision.axes)
            measured = product_axes(form) is not None and machine.device.product(form.computed_in) is not None
            measured |= machine.device.attention(form.computed_in, direction(form)) is not None
            degrees = map(prod, decision.placement(z[v]).matrix[:-1])
            exchanged = form.spec.statistics and any(
                d > 1 and a in op.over for a, d in zip(decision.axes, degrees, strict=True)
            )
            loop = (
                op.kind is NodeKind.SCAN or op.function in HOST_COPIES
            )  # launches as often as its body runs; another link
            if costs is None or machine.others or machine.profiles or measured or exchanged or loop:
                low, high = (Fraction(self.terms.operator_at(v, z[v], m)) for m in (self.fast, self.slow))
                yield n, Envelope({}, low, high, self._name(v, z[v]))
                continue
            device, flops, moved = f"device_class.{machine.device.name}", costs.flops[z[v]], costs.bytes[z[v]]
            yield n, self.constants.roofline(device, form.computed_in, int(flops), int(moved))

    def _edge_envelopes(self, z: tuple[int, ...], other: tuple[int, ...]) -> Iterable[tuple[int, Envelope]]:
        machine = self.planning.machine
        for e, n in self._changed(z, other)[1]:
            parts, pair = self.terms.priced_edge(e, z)
            linear = link_form(parts.loads, parts.phases, parts.element_bytes, machine)
            if linear:
                yield n, Envelope(linear)
            if id(pair) not in self.priced:
                self.priced[id(pair)] = list(self.constants.collectives(pair.steps, parts.element_bytes, machine))
            yield from ((n, envelope) for envelope in self.priced[id(pair)])

    def _apart(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, int, str]:
        """What is not linear on either side at ends of its own."""
        together: dict[str, Fraction] = {}
        least, most, blame = Fraction(0), Fraction(0), dict[str, Fraction]()
        for sign, z, other in ((1, y, x), (-1, x, y)):
            for n, linear, low, high, name in (*self._operators(z, other), *self._edges(z, other)):
                rounding = 0
                if linear is not None:
                    rounding = 1
                    for path, c in linear.items():
                        together[path] = together.get(path, Fraction(0)) + sign * n * c
                least += n * low if sign > 0 else -n * (high + rounding)
                most += n * (high + rounding) if sign > 0 else -n * low
                if high > low:
                    blame[name] = blame.get(name, Fraction(0)) + n * (high - low)
        for path, c in together.items():
            ends = c * self.low[path], c * self.high[path]
            least, most = least + min(ends), most + max(ends)
            if ends[0] != ends[1]:
                blame[path] = blame.get(path, Fraction(0)) + abs(ends[1] - ends[0])
        return floor(least), ceil(most), max(blame, key=lambda p: (blame[p], p), default="")

    def _operators(
        self, z: tuple[int, ...], other: tuple[int, ...]
    ) -> Iterable[tuple[int, dict[str, Fraction] | None, int, int, str]]:
        """Of operators whose time is not the same function in both: how often, linear form, or values at both ends."""
        for v, n in self._changed(z, other)[0]:
            linear = self._linear(v, z[v])
            if linear is not None:
                yield n, linear, 0, 0, ""
                continue
            low, high = (self.terms.operator_at(v, z[v], m) for m in (self.fast, self.slow))
            yield n, None, low, high, self._name(v, z[v])

    def _alike(self, v: int, a: int, b: int) -> bool:
        """Do both placements give every device a box of the same sizes, and nothing to bring together?"""
        op = self.planning.graph.operator(self.planning.decisions[v].name)
        if op.kind in (NodeKind.ATTENTION, NodeKind.NORMALISE, NodeKind.SCAN) or self.planning.machine.others:
            return False
        decision = self.planning.decisions[v]
        degrees = [tuple(map(prod, decision.placement(c).matrix[:-1])) for c in (a, b)]
        extents = [op.axis(name).extent for name in decision.axes]
        return degrees[0] == degrees[1] and all(n % d == 0 for n, d in zip(extents, degrees[0], strict=True))

    def _linear(self, v: int, choice: int) -> dict[str, Fraction] | None:
        """Of an operator that one resource decides on every machine within the bars; None if none does."""
        planning, costs = self.planning, self.planning.costs[v]
        machine, decision = planning.machine, planning.decisions[v]
        op = planning.graph.operator(decision.name)
        apart = op.kind in (NodeKind.ATTENTION, NodeKind.NORMALISE, NodeKind.SCAN) or op.function in HOST_COPIES
        if costs is None or machine.others or machine.profiles or apart:
            return None
        form = operator_form(op, planning.graph, decision.axes)
        if machine.device.products and product_axes(form) is not None:
            return None
        device = f"device_class.{machine.device.name}"
        pieces = [(f"{device}.bandwidth", int(costs.bytes[choice]))]
        pieces += [(f"{device}.peaks.{form.computed_in}", int(costs.flops[choice]))] if costs.flops[choice] else []
        for path, count in pieces:
            if all(count * self.low[path] >= n * self.high[p] for p, n in pieces if p != path):
                return {path: Fraction(count), f"{device}.launch": Fraction(1)}
        return None

    def _edges(
        self, z: tuple[int, ...], other: tuple[int, ...]
    ) -> Iterable[tuple[int, dict[str, Fraction] | None, int, int, str]]:
        for e, n in self._changed(z, other)[1]:
            parts, pair = self.terms.priced_edge(e, z)
            linear = link_form(parts.loads, parts.phases, parts.element_bytes, self.planning.machine)
            if linear:
                yield n, linear, 0, 0, ""
            low, high = (
                int(step_times(pair.steps, (1, 1), parts.element_bytes, m, self.unit)[0, 0])
                for m in (self.fast, self.slow)
            )
            if high:
                yield n, None, low, high, self._collective(e, z)

    def _collective(self, e: int, z: tuple[int, ...]) -> str:
        """The measured form that a resharding waits for most."""
        parts, pair = self.terms.priced_edge(e, z)
        found: dict[str, int] = {}
        for step in pair.steps:
            time = int(step_times((step,), (1, 1), parts.element_bytes, self.slow, self.unit)[0, 0])
            name = f"level.{self.slow.levels[step.level].name}.{step.operation}"
            found[name] = found.get(name, 0) + time
        return max(found, key=lambda p: (found[p], p))

    def _name(self, v: int, choice: int) -> str:
        """The constants that decide an operator's time."""
        costs, device = self.planning.costs[v], self.planning.machine.device
        place = f"device_class.{device.name}"
        if costs is None:
            return place
        form = operator_form(
            self.planning.graph.operator(self.planning.decisions[v].name),
            self.planning.graph,
            self.planning.decisions[v].axes,
        )
        match FORMULAS[int(costs.decided[choice])]:
            case Formula.PRODUCT:
                return f"{place}.product.{form.computed_in}"
            case Formula.ATTENTION:
                return f"{place}.attention.{form.computed_in}.{direction(form)}"
            case Formula.COMPUTE:
                return f"{place}.peaks.{form.computed_in}"
            case Formula.MEMORY | Formula.PROFILE:
                return f"{place}.{'host' if form.function in HOST_COPIES else 'bandwidth'}"


def measured_name(path: str) -> str:
    """What is measured for a constant: of a measured form, the form.

    >>> measured_name("level.gpus.all_gather.wire"), measured_name("level.gpus.latency")
    ('level.gpus.all_gather', 'level.gpus.latency')
    """
    parts = path.split(".")
    kept = {"product": 4, "attention": 5}.get(parts[2], 3) if len(parts) > 3 and parts[2] != "peaks" else len(parts)
    return ".".join(parts[:kept])


def link_form(
    loads: tuple[int, ...], phases: tuple[int, ...], element_bytes: int, machine: Machine
) -> dict[str, Fraction]:
    """Of the levels that have no measured forms."""
    out = {}
    for level, load, phase in zip(machine.levels, loads, phases, strict=True):
        if level.collectives:
            continue
        if load:
            out[f"level.{level.name}.bandwidth"] = Fraction(element_bytes * load)
        if phase:
            out[f"level.{level.name}.latency"] = Fraction(phase)
    return out


def measurement(constant: str, machine: Machine) -> str:
    """The measurement that a constant asks for, in words."""
    if constant == STEP:
        return "a step of each of the two"
    kind, name, *rest = constant.split(".")
    if kind == "level" and rest and rest[0] in COLLECTIVES:
        return f"{rest[0]} of the plan's sizes among {name} (nccl-tests: {rest[0]}_perf)"
    if kind == "level":
        across = "across" if name == machine.levels[0].name and len(machine.levels) > 1 else "among"
        small = rest == ["latency"]
        return f"{'all_reduce of 8 bytes to 1 KB' if small else 'all_gather of 256 MB or more'} {across} {name}"
    if rest and rest[0] in ("product", "peaks"):
        return f"products of {rest[1]} of the plan's sizes"
    if rest and rest[0] == "attention":
        return f"attention in {rest[1]} of the plan's sizes, {rest[2]}"
    if rest == ["host"]:
        return "copies of 64 MB or more between a device and its host"
    if rest == ["launch"]:
        return "an elementwise operator on a few elements"
    return "elementwise operators of the plan's sizes"


def error_bound_lines(bars: ErrorBounds, planning: Planning, plan: str = "this plan") -> list[str]:
    """What is said of a plan on a machine with error bounds."""
    problem, machine = planning.problem, planning.machine
    low, high = (amount(c, problem) for c in bars.cost)
    most = f"error bounds of {machine.name} (at most {error_bound_text(widest(machine))})"
    least = f"no plan of the space less than {amount(bars.bound, problem)}"
    lines = [f"{most}: on every machine within them {plan} takes {low} to {high}, and {least}"]
    for a in bars.against:
        least, most = (amount(n, problem, signed=True) for n in (a.least, a.most))
        if a.verdict == "undecided":
            lines.append(
                f"undecided against {a.name}: it takes {least} to {most} within these bounds; measure "
                f"{measurement(a.measure, machine)} ({a.measure})"
            )
        elif a.verdict == "better":
            lines.append(f"decided against {a.name}: it takes {least} to {most} within these bounds")
        else:
            lines.append(f"beaten by {a.name}: it takes {least} to {most} within these bounds")
    return lines


def error_bounds_json(bars: ErrorBounds) -> dict[str, object]:
    """The same as plain data; units of the problem."""
    return {
        "cost": list(bars.cost),
        "bound": bars.bound,
        "against": [
            {"name": a.name, "least": a.least, "most": a.most, "verdict": a.verdict, "measure": a.measure}
            for a in bars.against
        ],
    }
