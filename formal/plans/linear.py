r"""The time of every operator and resharding of a plan as a function of the machine's constants.

    operator          max( flops / peak, bytes / memory ) + launches x launch       (one; a loop: of its body, per turn)
                      + statistics  sum_i bytes_i / bandwidth_i + n_i latency_i
    resharding    sum_i  element_bytes load_i / bandwidth_i + phases_i latency_i

Constants are called as in [sources].  A rate enters as its inverse, a time as itself, so that everything is a sum of
maxima of linear forms with coefficients >= 0: bytes, flops, counts.  Machines of one device class without measured
rows; measured forms are left out (`plain`).  Exact rationals, before rounding.

Source: `models.cost.cost`, whose counts these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ...models.communication.choices import Choices, single
from ...models.communication.reduction_programs import chooser_of
from ...models.cost.cost import STATISTIC_BYTES, operator_costs, statistics_terms
from ...models.cost.forms import OperatorForm, operator_form
from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ...proofs.plan.bundle import Moved

Linear = tuple[tuple[str, Fraction], ...]
"""(constant, coefficient) pairs, each constant once, coefficients above 0."""


@dataclass(frozen=True)
class Form:
    """The largest of `pieces` (none: 0) plus `added`."""

    pieces: tuple[Linear, ...]
    added: Linear

    def at(self, values: Mapping[str, Fraction]) -> Fraction:
        """Seconds, at inverse rates and times."""
        largest = max((total(p, values) for p in self.pieces), default=Fraction(0))
        return largest + total(self.added, values)


def total(form: Linear, values: Mapping[str, Fraction]) -> Fraction:
    """Value of a linear form."""
    return sum((c * values[path] for path, c in form), Fraction(0))


def why_not_linear(machine: Machine) -> str:
    """Why the times of this machine are not such functions; empty if they are."""
    if machine.others:
        return "it has several device classes"
    if machine.profiles:
        return "it has measured rows of operators"
    return ""


def plain(machine: Machine) -> Machine:
    """The machine without measured forms: links and roofline price everything."""
    return replace(
        machine,
        levels=tuple(replace(x, collectives=()) for x in machine.levels),
        device=replace(machine.device, products=(), attentions=()),
    )


def values(machine: Machine) -> dict[str, Fraction]:
    """Inverse rates and times of the constants that plans are priced with.

    >>> from ...models.machine.machine import load_machine
    >>> str(values(load_machine("cloud-a100"))["level.nodes.bandwidth"])
    '1/9000000000'
    """
    out = {}
    for level in machine.levels:
        out[f"level.{level.name}.bandwidth"] = 1 / level.bandwidth
        out[f"level.{level.name}.latency"] = level.latency
    device = machine.device
    out[f"device_class.{device.name}.bandwidth"] = 1 / device.bandwidth
    out[f"device_class.{device.name}.launch"] = device.launch
    if device.host is not None:
        out[f"device_class.{device.name}.host"] = 1 / device.host
    for dtype, rate in device.peaks:
        out[f"device_class.{device.name}.peaks.{dtype}"] = 1 / rate
    return out


def communication_form(loads: Sequence[int], phases: Sequence[int], element_bytes: int, machine: Machine) -> Linear:
    """Of a resharding."""
    out: list[tuple[str, Fraction]] = []
    for level, load, phase in zip(machine.levels, loads, phases, strict=True):
        out += [(f"level.{level.name}.bandwidth", Fraction(element_bytes * load))] if load else []
        out += [(f"level.{level.name}.latency", Fraction(phase))] if phase else []
    return tuple(out)


class Forms:
    """Forms of one graph on one machine; equal structures are computed once."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        self.graph, self.machine = graph, plain(machine)
        self._unit = replace(
            self.machine,
            levels=tuple(replace(x, bandwidth=Fraction(1), latency=Fraction(1)) for x in self.machine.levels),
        )
        self._known: dict[tuple[OperatorForm, tuple[tuple[int, ...], ...]], Form] = {}

    def operator(self, op: Operator, placement: Placement) -> Form:
        """Of an operator under a placement."""
        form = operator_form(op, self.graph, placement.axes)
        key = (form, placement.matrix)
        if key not in self._known:
            self._known[key] = self._operator(form, placement)
        return self._known[key]

    def _operator(self, form: OperatorForm, placement: Placement) -> Form:
        machine = self.machine
        tables = single(form.axes, placement, machine.hierarchy)
        costs = operator_costs(form, tables, machine)
        device = f"device_class.{machine.device.name}"
        flops, moved = int(costs.flops[0]), int(costs.bytes[0])
        carrier = machine.device.carrier(form.function)[0]
        pieces: list[Linear] = [((f"{device}.{carrier}", Fraction(moved)),)] if moved else []
        pieces += [((f"{device}.peaks.{form.computed_in}", Fraction(flops)),)] if flops else []
        added: dict[str, Fraction] = {f"{device}.launch": Fraction(form.launches)}
        chooser = chooser_of(machine, STATISTIC_BYTES)
        terms = statistics_terms(form.spec, form.over, tables, self._unit, Fraction(1), chooser)
        names = [f"level.{x.name}.{part}" for x in machine.levels for part in ("bandwidth", "latency")]
        for name, (weight, amount) in zip(names, terms, strict=False):
            if count := weight * int(amount[0]):
                added[name] = added.get(name, Fraction(0)) + count
        return Form(tuple(pieces), tuple(added.items()))

    def of_plan(self, choices: Choices, communication: Sequence[Moved]) -> dict[str, list[Form]]:
        """Name (of an operator; `tensor -> reader`) -> its forms, in execution order."""
        out: dict[str, list[Form]] = {}
        for name, placement in choices.operators:
            out.setdefault(name, []).append(self.operator(self.graph.operator(name), placement))
        for m in communication:
            linear = communication_form(m.loads, m.phases, self.graph.tensor(m.tensor).element_bytes, self.machine)
            if linear:
                out.setdefault(moved_name(m.tensor, m.reader), []).append(Form((), linear))
        return out


def moved_name(tensor: str, reader: str | None) -> str:
    """What a resharding is called."""
    return f"{tensor} -> {'its copy' if reader is None else reader}"
