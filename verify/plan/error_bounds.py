"""What a plan says about the machines within its machine's error bounds, computed a second time from
index sets.

    cost       every entry of the plan on the fastest and the slowest machine; entries rise with times, fall with rates
    bound      at most (proved bound - roundings) / (1 + widest bar)
    against    of every other plan, entry by entry, what both have alike left out.  The tighter ends of two intervals:
               apart     a resharding's links, and an operator whose flops or whose bytes decide on both extreme
                         machines, are counted per constant, whose value is then the same for both plans; everything
                         else lies between its values on the extreme machines
               jointly   every entry is counted per constant, up to two numbers, and products are compared with
                         themselves (`verify/plan/error_bound_forms.py`)

    lacking    with a bar b of `step`, a cost C reaches from C / (1 + b) to C (1 + b) at least, and a difference of y
               and x from Y / (1 + b) - X to Y (1 + b) - X, their costs on the machine itself

Coefficients are read off: an operator is priced (`verify/plan/entries.py`) on a machine on which nothing else takes
time.  Claims may be looser than what is found here, never tighter.  `measure` is advice and not checked beyond that the
machine has such a bar.

Source: docs/certificate-format.md, section 9, "Error bounds".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Final

from ...models.cost.selection import DecisionKind, Planning
from ...models.layout.placement import SpaceError
from ...models.machine.machine import Machine
from ...models.machine.parts import STEP
from ...models.problem.selection_problem import FORBIDDEN
from ...models.program.operators import HOST_COPIES as HOST
from ...models.program.operators import NodeKind, Operator
from ...proofs.container.effort import OBJECT
from ...proofs.plan.error_bounds import ErrorBounds
from ..budget import Budget
from .attention_forms import attention_axes, form_of
from .effort import AGAIN, charge_entry
from .entries import communication_collectives, communication_entry, communication_loads, operator_entry
from .epilogues import finishing
from .error_bound_ends import end, widest_error_bound
from .error_bound_forms import Bounded, Product, Spans
from .measured import Collective, product_of, units
from .used_entries import Entries

ROUNDINGS: Final = 64
"""Units that rounding up can have added to one entry, at most."""
FREE: Final = Fraction(10) ** 60
"""A rate at which nothing takes time."""

KERNEL: Final = 1 << 20
"""Cells of comparing the kernels of one tile: 11 parts of the sum with each other, in fractions."""

Counts = list[tuple[int, int]]
"""Numbers of operators or movements, each with how many are like it."""

Part = tuple[dict[str, Fraction] | None, int, int]
"""Coefficients of constants (rounded up once), or None and the units on the fastest and the slowest machine."""


def wrong_error_bounds(
    planning: Planning, x: Sequence[int], bars: ErrorBounds, bound: int | None, budget: Budget | None = None
) -> str:
    """Why the record does not hold of the solution `x` with that proved bound; empty if it does."""
    machine = planning.machine
    if not machine.bars:
        return "bars: the machine has none"
    box = _Box(planning, budget)
    low, high = box.cost(x)
    if bars.cost[0] > low or bars.cost[1] < high:
        return f"bars: the plan costs {low} to {high} within them, not {bars.cost[0]} to {bars.cost[1]}"
    entries = len(planning.problem.vertices) + len(planning.problem.edges)
    least = max(Fraction(0), ((bound or 0) - ROUNDINGS * entries) / (1 + widest_error_bound(machine)))
    if bars.bound > least:
        return f"bars: {bars.bound} is proved by nothing; the bound and the widest bar give {int(least)}"
    known = dict(machine.bars)
    for other in bars.against:
        place = f"bars: against {other.name!r}"
        listed = [name for name, _ in (*other.choices.operators, *other.choices.copies)]
        if listed != [*planning.operators, *planning.copies]:
            return f"{place}: its choices are not the graph's, each once and in order"
        try:
            y = planning.solution(other.choices)
        except (SpaceError, KeyError) as error:
            return f"{place}: {error}"
        if planning.problem.cost_of(y) >= FORBIDDEN:
            return f"{place}: its choices are forbidden"
        found = box.difference(x, y)
        if other.least > found[0] or other.most < found[1]:
            return f"{place}: the difference lies between {found[0]} and {found[1]}, not {other.least} and {other.most}"
        if other.measure and not any(p == other.measure or p.startswith(f"{other.measure}.") for p in known):
            return f"{place}: the machine has no bar of {other.measure!r}"
    return ""


class _Box:
    """Entries on the extreme machines, each distinct one once."""

    def __init__(self, planning: Planning, budget: Budget | None = None) -> None:
        self.planning, self.entries = planning, Entries(planning, budget)
        self.budget = self.entries.budget
        self.graph, self.machine, self.scale = planning.graph, planning.machine, planning.problem.scale
        self.ends = end(self.machine, False), end(self.machine, True)
        links = tuple(replace(x, bandwidth=FREE, latency=Fraction(0), collectives=()) for x in self.machine.levels)
        device, one = self.machine.device, Fraction(1)

        def probe(peak: Fraction, bandwidth: Fraction) -> Machine:
            peaks = tuple((name, peak) for name, _ in device.peaks)
            only = replace(device, peaks=peaks, bandwidth=bandwidth, launch=Fraction(0), products=(), attentions=())
            return replace(self.machine, levels=links, device=only, bars=())

        self.flops, self.bytes = probe(one, FREE), probe(FREE, one)
        self.operators = {op.name: op for op in self.graph.operators}
        self.known: dict[object, tuple[int, ...]] = {}
        self.spans = Spans(self.machine, self.scale)
        self.step = next((1 + bar for path, bar in self.machine.bars if path == STEP), Fraction(1))
        self.gaps: dict[object, tuple[Fraction, Fraction]] = {}
        numbers: dict[object, int] = {}
        self.kinds = {
            op.name: numbers.setdefault(self.entries.structure(op), len(numbers)) for op in self.graph.operators
        }
        self.pairs: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Counts, Counts]] = {}

    def differences(self, x: Sequence[int], y: Sequence[int]) -> tuple[Counts, Counts]:
        """Operators and movements that two solutions do differently: the first of each kind, and how many are alike in
        structure and in both placements, so that what one takes all do.
        """
        pair = tuple(x), tuple(y)
        if pair in self.pairs:
            return self.pairs[pair]
        operators, movements = dict[object, list[int]](), dict[object, list[int]]()
        for v, decision in enumerate(self.planning.decisions):
            if decision.kind is DecisionKind.OPERATOR and x[v] != y[v]:
                key = (self.kinds[decision.name], *(self.entries.placement(v, z[v]) for z in (x, y)))
                operators.setdefault(key, [v, 0])[1] += 1
        for number, edge in enumerate(self.planning.problem.edges):
            if (x[edge.u], x[edge.v]) != (y[edge.u], y[edge.v]):
                both = [self.entries.placement(w, z[w]) for z in (x, y) for w in (edge.u, edge.v)]
                movements.setdefault((self.communication_key(number), *both), [number, 0])[1] += 1
        alike = {v for v, _ in operators.values() if self._alike(v, x[v], y[v])}
        found = [(v, n) for v, n in operators.values() if v not in alike], [(e, n) for e, n in movements.values()]
        self.pairs[pair] = found
        return found

    def communication_key(self, number: int) -> tuple[object, ...]:
        """What a movement depends on, beside the placements of its ends."""
        move = self.entries.moves[number]
        tensor, ends = self.graph.tensor(move.tensor), (move.writer, move.reader)
        return (*(name and self.kinds[name] for name in ends), move.position, tensor.shape, tensor.element_bytes)

    def operator(self, v: int, choice: int, machines: Sequence[Machine], scale: int) -> tuple[int, ...]:
        """Units of an operator on each of the machines."""
        op, placement = self.operators[self.planning.decisions[v].name], self.entries.placement(v, choice)
        key = (placement, machines, scale, self.kinds[op.name])
        self.budget.charge(AGAIN, "error bounds")
        if key not in self.known:
            dimensions = len(op.axes) + sum(len(a.index) for a in (*op.inputs, op.output))
            for _ in machines:
                charge_entry(self.machine.devices, dimensions, self.budget)
            self.known[key] = tuple(operator_entry(op, self.graph, placement, m, scale) for m in machines)
        return self.known[key]

    def cost(self, x: Sequence[int]) -> tuple[int, int]:
        """Of a solution, on the fastest and on the slowest machine."""
        low = high = self.planning.problem.constant
        for v, decision in enumerate(self.planning.decisions):
            if decision.kind is DecisionKind.OPERATOR:
                fast, slow = self.operator(v, x[v], self.ends, self.scale)
                low, high = low + fast, high + slow
        for number, edge in enumerate(self.planning.problem.edges):
            move = self.entries.moves[number]
            size = self.graph.tensor(move.tensor).element_bytes
            self.budget.charge(AGAIN, "error bounds")
            places = [self.entries.placement(w, x[w]) for w in (edge.u, edge.v)]
            key = (self.communication_key(number), *places)
            if key not in self.known:
                held = self.entries.ends(move, x[edge.u], x[edge.v])
                self.entries.charge(*held)
                self.known[key] = tuple(communication_entry(size, *held, m, self.scale) for m in self.ends)
            fast, slow = self.known[key]
            low, high = low + fast, high + slow
        if self.step == 1:
            return low, high
        least, most = self.off(self.planning.problem.cost_of(tuple(x)))
        return min(low, least), max(high, most)

    def off(self, cost: int) -> tuple[int, int]:
        """What a step of that cost takes, by what the model lacks: at least, at most."""
        top, bottom = self.step.numerator, self.step.denominator
        return cost * bottom // top, -(-cost * top // bottom)

    def difference(self, x: Sequence[int], y: Sequence[int]) -> tuple[Fraction, Fraction]:
        """Units that `y` costs more than `x`: no less, and no more, on any machine within the bars."""
        apart, jointly = self.apart(x, y), self.jointly(x, y)
        low, high = max(apart[0], jointly[0]), min(apart[1], jointly[1])
        if self.step == 1:
            return low, high
        own = self.planning.problem.cost_of(tuple(x))
        least, most = self.off(self.planning.problem.cost_of(tuple(y)))
        return min(low, Fraction(least - own)), max(high, Fraction(most - own))

    def jointly(self, x: Sequence[int], y: Sequence[int]) -> tuple[Fraction, Fraction]:
        """Every constant has one value for both plans."""
        net: dict[str, Fraction] = {}
        least = most = Fraction(0)
        operators, movements = self.differences(x, y)
        for v, n in operators:
            a, b = self._product(v, x[v]), self._product(v, y[v])
            if a and b:
                low, high = self._gap(v, x[v], y[v], a, b)
                least, most = least + n * low, most + n * high
                continue
            for sign, part in ((-n, self._bounded(v, x[v])), (n, self._bounded(v, y[v]))):
                low, high = _added(net, sign, part)
                least, most = least + low, most + high
        for number, n in movements:
            edge = self.planning.problem.edges[number]
            for sign, z in ((-n, x), (n, y)):
                for part in self._moved(number, z[edge.u], z[edge.v]):
                    low, high = _added(net, sign, part)
                    least, most = least + low, most + high
        for path, c in net.items():
            least, most = least + self.spans.of[path].down(c), most + self.spans.of[path].up(c)
        return least, most

    def _product(self, v: int, choice: int) -> Product | None:
        """A measured product whose boxes all have one size."""
        op, placement = self.operators[self.planning.decisions[v].name], self.entries.placement(v, choice)
        reading = product_of(op) if self.graph.flops_per_point(op) else None
        form = self.machine.device.product(self._type(op))
        if reading is None or form is None or self.machine.others or self.machine.profiles:
            return None
        length = {axis.name: axis.extent for axis in op.axes}
        for axis, row in zip(placement.axes, placement.matrix, strict=False):
            if length[axis] % prod(row):
                return None
            length[axis] //= prod(row)
        moved = self.operator(v, choice, (self.bytes,), 2)[0] // 2
        return Product(form, [prod(length[a] for a in part) for part in reading.parts], moved, finishing(op))

    def _gap(self, v: int, a: int, b: int, x: Product, y: Product) -> tuple[Fraction, Fraction]:
        """Of a product placed as `b` less the same placed as `a`."""
        op = self.operators[self.planning.decisions[v].name]
        key = (self.entries.placement(v, a), self.entries.placement(v, b), self.kinds[op.name])
        if key not in self.gaps:
            tiles = len(x.form.tiles)
            self.budget.charge(KERNEL * tiles + OBJECT * (11 * tiles) ** 2, "error bounds")
            one, two = (self.operator(v, choice, self.ends, self.scale) for choice in (a, b))
            low, high = -self.spans.gap(x, y, x.form) - 1, self.spans.gap(y, x, x.form) + 1
            self.gaps[key] = max(low, Fraction(two[0] - one[1])), min(high, Fraction(two[1] - one[0]))
        return self.gaps[key]

    def _type(self, op: Operator) -> str:
        """Whose peak and products count."""
        arithmetic, first = str(op.attribute("arithmetic", "")), op.inputs[0] if op.inputs else op.output
        of = first if op.kind is NodeKind.ATTENTION else op.output
        return arithmetic or self.graph.tensor(of.tensor).dtype

    def _bounded(self, v: int, choice: int) -> Bounded:
        """An operator as a form, or (measured, attention with a form, several classes, statistics exchanged) as two
        numbers.
        """
        op, placement = self.operators[self.planning.decisions[v].name], self.entries.placement(v, choice)
        flops, machine, dtype = self.graph.flops_per_point(op), self.machine, self._type(op)
        product = bool(flops) and product_of(op) is not None and machine.device.product(dtype) is not None
        seen = attention_axes(op) if flops else None
        attention = seen is not None and form_of(machine.device, dtype, seen.backward) is not None
        cut = [a for a, row in zip(placement.axes, placement.matrix, strict=False) if prod(row) > 1]
        apart = bool(op.spec.statistics) and any(a in op.over for a in cut)  # brought together, or on another link
        apart |= op.kind is NodeKind.SCAN or op.function in HOST
        if product or attention or apart or machine.others or machine.profiles:
            low, high = self.operator(v, choice, self.ends, self.scale)
            return Bounded({}, Fraction(low), Fraction(high))
        work, moved = (self.operator(v, choice, (m,), 2)[0] // 2 for m in (self.flops, self.bytes))
        return self.spans.roofline(dtype, work, moved)

    def _moved(self, number: int, u: int, w: int) -> Iterator[Bounded]:
        """A resharding: its links, and each of its measured collectives."""
        move = self.entries.moves[number]
        size = self.graph.tensor(move.tensor).element_bytes
        source, target = self.entries.ends(move, u, w)
        self.entries.charge(source, target)
        loads, phases = communication_loads(source, target)
        links: dict[str, Fraction] = {}
        for level, load, phase in zip(self.machine.levels, loads, phases, strict=True):
            if not level.collectives:
                links |= {f"level.{level.name}.bandwidth": Fraction(size * load)} if load else {}
                links |= {f"level.{level.name}.latency": Fraction(phase)} if phase else {}
        if links:
            yield Bounded(links)
        for one in communication_collectives(source, target):
            if one.share and self.machine.levels[one.level].collectives:
                yield self.spans.collective(one, size)

    def apart(self, x: Sequence[int], y: Sequence[int]) -> tuple[Fraction, Fraction]:
        """Only links, and operators with one resource, have one value for both plans."""
        shared: dict[str, Fraction] = {}
        least = most = Fraction(0)
        for n, linear, low, high in self._parts(y, x):
            least, most = least + n * low, most + n * (high + (linear is not None))
            for path, c in (linear or {}).items():
                shared[path] = shared.get(path, Fraction(0)) + n * c
        for n, linear, low, high in self._parts(x, y):
            least, most = least - n * (high + (linear is not None)), most - n * low
            for path, c in (linear or {}).items():
                shared[path] = shared.get(path, Fraction(0)) - n * c
        fast, slow = (self._units_of(m) for m in self.ends)
        for path, c in shared.items():
            least += min(c * fast[path], c * slow[path])
            most += max(c * fast[path], c * slow[path])
        return least, most

    def _units_of(self, machine: Machine) -> dict[str, Fraction]:
        """Units per byte, operation, phase or launch."""
        device, found = machine.device, {}
        for level in machine.levels:
            found[f"level.{level.name}.bandwidth"] = self.scale / level.bandwidth
            found[f"level.{level.name}.latency"] = self.scale * level.latency
        found[f"device_class.{device.name}.bandwidth"] = self.scale / device.bandwidth
        found[f"device_class.{device.name}.launch"] = self.scale * device.launch
        return found | {f"device_class.{device.name}.peaks.{d}": self.scale / rate for d, rate in device.peaks}

    def _parts(self, z: Sequence[int], other: Sequence[int]) -> Iterator[tuple[int, *Part]]:
        """Of every entry of `z` that is not alike in `other`, as often as it occurs."""
        operators, movements = self.differences(z, other)
        for v, n in operators:
            linear = self._linear(v, z[v])
            ends = (0, 0) if linear else self.operator(v, z[v], self.ends, self.scale)
            yield n, linear, ends[0], ends[1]
        for number, n in movements:
            edge = self.planning.problem.edges[number]
            yield from ((n, *part) for part in self._movement(number, z[edge.u], z[edge.v]))

    def _alike(self, v: int, a: int, b: int) -> bool:
        """Every device has a box of the same sizes under both placements, and there are no statistics or bands."""
        op = self.operators[self.planning.decisions[v].name]
        if op.kind in (NodeKind.ATTENTION, NodeKind.NORMALISE, NodeKind.SCAN) or self.machine.others:
            return False
        one, two = self.entries.placement(v, a), self.entries.placement(v, b)
        extents = {axis.name: axis.extent for axis in op.axes}
        for axis, row, column in zip(one.axes, one.matrix, two.matrix, strict=False):
            if prod(row) != prod(column) or extents[axis] % prod(row):
                return False
        return one.axes == two.axes

    def _linear(self, v: int, choice: int) -> dict[str, Fraction] | None:
        op = self.operators[self.planning.decisions[v].name]
        apart = op.kind in (NodeKind.ATTENTION, NodeKind.NORMALISE, NodeKind.SCAN) or op.function in HOST
        if self.machine.others or self.machine.profiles or apart:
            return None
        if self.machine.device.products and self.graph.flops_per_point(op) and product_of(op) is not None:
            return None
        place = f"device_class.{self.machine.device.name}"
        # twice the amount, rounded up with the trace that free resources leave
        flops = self.operator(v, choice, (self.flops,), 2)[0] // 2
        moved = self.operator(v, choice, (self.bytes,), 2)[0] // 2
        dtype = str(op.attribute("arithmetic", "")) or self.graph.tensor(op.output.tensor).dtype
        (fast, slow), path = (m.device for m in self.ends), f"{place}.peaks.{dtype}"
        launch = {f"{place}.launch": Fraction(1)}
        if not flops or moved / fast.bandwidth >= flops / slow.peak(dtype):
            return {f"{place}.bandwidth": Fraction(moved), **launch}
        if flops / fast.peak(dtype) >= moved / slow.bandwidth:
            return {path: Fraction(flops), **launch}
        return None

    def _movement(self, number: int, u: int, v: int) -> Iterator[Part]:
        move = self.entries.moves[number]
        size = self.graph.tensor(move.tensor).element_bytes
        source, target = self.entries.ends(move, u, v)
        self.entries.charge(source, target)
        loads, phases = communication_loads(source, target)
        linear: dict[str, Fraction] = {}
        for level, load, phase in zip(self.machine.levels, loads, phases, strict=True):
            if not level.collectives:
                linear |= {f"level.{level.name}.bandwidth": Fraction(size * load)} if load else {}
                linear |= {f"level.{level.name}.latency": Fraction(phase)} if phase else {}
        if linear:
            yield linear, 0, 0
        if any(level.collectives for level in self.machine.levels):
            steps: tuple[Collective, ...] = communication_collectives(source, target)
            fast, slow = (units(steps, size, m, self.scale) for m in self.ends)
            if slow:
                yield None, fast, slow


def _added(net: dict[str, Fraction], times: int, part: Bounded) -> tuple[Fraction, Fraction]:
    """Counts a form so many times (below 0: takes it off); what it leaves, with the unit that rounding up can add."""
    for path, c in part.form.items():
        net[path] = net.get(path, Fraction(0)) + times * c
    low, high = part.low, part.high + bool(part.form)
    return (times * low, times * high) if times > 0 else (times * high, times * low)
