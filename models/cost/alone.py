"""Prices operators on one device that has a share of every axis, without placing anything anywhere.

    share       axis a of n positions cut into d parts: ceil(n / d) of them
    seconds     `models.cost.cost` of that box: the time which a plan has for a device with this box
    in a chain  maps that only maps read are one kernel, as frameworks fuse them: their intermediate results stay in
                registers, so a chain reads what comes from outside once and writes what leaves it

    steady      products at the clock that a device holds for seconds: `STEADY` of what its measured form says
    float8      products at 1.77 to 1.98 times the rate (`FLOAT8`), their operands cast before

Equal boxes of equal operators are priced once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

from ..layout.classes import axis_orders, operator_key
from ..layout.layout import AxisTables
from ..machine.machine import Machine, load_machine
from ..machine.measured import ProductForm
from ..machine.parts import DeviceClass, MachineError
from ..program.graph import Graph
from ..program.operators import NodeKind, Operator
from .cost import FORMULAS, UNIT, Formula, operator_costs
from .float8 import cast_bytes, reads
from .forms import OperandForm, OperatorForm, operator_forms
from .kernels import (
    ALIKE,
    ATTENTION,
    EAGER,
    FLASH,
    FLOAT8,
    FUSED,
    LIKE,
    STEADY,
    STREAM,
    TRITON,
    UNALIGNED,
    WHOLE,
    Kernels,
)
from .products import product_times, result_times

Ways = Mapping[str, int]
"""Axis -> into how many parts it is cut; what is left out is whole."""


@dataclass(frozen=True)
class Kernel:
    """What runs as one launch: seconds, and the operators that it stands for, in graph order."""

    seconds: Fraction
    operators: tuple[str, ...]


def alone(machine: Machine) -> Machine:
    """One device of the machine's first class, without links.

    >>> from ..machine.machine import load_machine
    >>> alone(load_machine("dgx-h100:2x8")).hierarchy
    (1,)
    """
    level = replace(machine.levels[-1], size=1, collectives=())
    return replace(machine, levels=(level,), resources=(), others=(), sources=(), bars=())


class Device:
    """Prices of one device for the operators of `graph`, cut into `ways` (operator -> axis -> parts).

    `eight`: names of products in float8.  Raises `MachineError` where the device has
    no float8 and some are.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        ways: Mapping[str, Ways],
        kernels: Kernels = FUSED,
        eight: Collection[str] = (),
    ) -> None:
        self.graph, self.ways, self.machine, self.eight = graph, ways, alone(machine), eight
        self.chains, self.attention, self.flash = kernels.chains, kernels.attention, kernels.flash
        self.experts, self.scaling = kernels.experts, kernels.scaling
        self._orders = axis_orders(graph)
        self._fixed = _fixed(graph)
        self._forms = operator_forms(graph, self._orders)
        self._seconds: dict[tuple[OperatorForm, tuple[int, ...], bool, Fraction], tuple[Fraction, Fraction]] = {}
        own = self.machine.device
        device = with_forms(own)
        self.steady = STEADY.get(own.name, Fraction(1)) if device.products else Fraction(1)
        self.machine = replace(self.machine, device=device)
        self.stream = device.bandwidth * STREAM.get(device.name, Fraction(1))
        if eight and device.name not in FLOAT8:
            raise MachineError(f"{machine.name}, [[device_class]] {device.name!r}", "multiplies no float8")
        narrow = FLOAT8.get(device.name, Fraction(1))
        peaks = tuple((t, narrow * p if t == "bfloat16" else p) for t, p in device.peaks)
        fast = replace(device, peaks=peaks, products=tuple(_faster(f, narrow) for f in device.products))
        self._fast = replace(self.machine, device=fast)

    def share(self, op: Operator) -> dict[str, int]:
        """Positions of every axis that are here."""
        ways = self.ways.get(op.name, {})
        return {a.name: -(-a.extent // ways.get(a.name, 1)) for a in op.axes}

    def _priced(self, op: Operator) -> tuple[Fraction, Fraction]:
        form, share = self._forms[op.name], self.share(op)
        sizes = tuple(share[name] for name in self._orders[operator_key(op.name)])
        if op.kind is NodeKind.GROUPED and (form.even or form.loads):
            ways = self.ways.get(op.name, {}).get(op.rows, 1)
            form = replace(form, even=True, loads=())
            if ways > 1:
                form = _of_local_groups(form, ways)  # rows came here: those of the experts that are here
        key = form, sizes, op.name in self.eight, self.heaviest(op)
        if key not in self._seconds:
            blocks = tuple(np.array([[[0, n]]], dtype=np.int64) for n in sizes)
            whole = np.ones((1, len(sizes) + 1, 1), dtype=np.int64)
            tables = AxisTables((1,), form.axes, whole, blocks, np.zeros((1, len(sizes)), dtype=np.int64))
            priced = operator_costs(form, tables, self._fast if key[2] else self.machine)
            time, by = int(priced.times[0]) * UNIT, FORMULAS[priced.decided[0]]
            if op.kind is NodeKind.GROUPED:
                time = max(time, self._grouped(op, key[2])) * self.heaviest(op)
            slow = UNALIGNED.get(self.machine.device.name)
            if slow is not None and self._has_odd_rows(op):
                time = max(time, int(priced.flops[0]) / slow)
            tensor = by in (Formula.PRODUCT, Formula.COMPUTE) and op.kind in (NodeKind.CONTRACT, NodeKind.GROUPED)
            rate = self.steady if tensor else Fraction(1)
            if self.attention != "cudnn" and op.kind is NodeKind.ATTENTION and by is Formula.ATTENTION:
                rate = FLASH.get(self.machine.device.name, rate)
                rate *= TRITON[op.function] if self.attention == "triton" else 1
            if by is Formula.MEMORY and elementwise(op):
                rate *= STREAM.get(self.machine.device.name, Fraction(1))
            if not self.chains and not self.flash:
                rate *= EAGER.get(op.function.removesuffix("_gradient"), Fraction(1))
            self._seconds[key] = time, time / rate
        return self._seconds[key]

    def _has_odd_rows(self, op: Operator) -> bool:
        """Whether a product has an operand of 16 bits whose rows here are no whole vectors."""
        if op.kind is not NodeKind.CONTRACT or not op.reduction_axes or len(op.inputs) < 2:
            return False
        share = self.share(op)
        for a in (*op.inputs, op.output):
            read = self.graph.tensor(a.tensor)
            row = sum((share[x] - 1) * abs(c) for x, c in a.index[-1].terms) + 1 if a.index else 0
            if read.element_bytes == 2 and row * 2 % WHOLE and row > 1:
                return True
        return False

    def _grouped(self, op: Operator, eight: bool) -> Fraction:
        """A product for each of the experts that are here, of as many rows each, by the form of products."""
        device = (self._fast if eight else self.machine).device
        form = device.product(self.graph.computed_in(op))
        share, along = self.share(op), {i.single for i in op.inputs[-1].index}
        wide = [n for a, n in share.items() if a not in along and a != op.rows]
        if form is None or not (op.even or op.loads) or len(wide) != 2:
            return Fraction(0)
        here = share[op.rows]
        each = max(1, prod(n for a, n in share.items() if a in along) // here)
        at_once, times = (1, here) if self.experts == "apart" else (here, 1)
        sizes = (at_once, *wide, each) if op.rows in op.output.axes else (at_once, each, *wide)
        box = np.array([sizes], dtype=np.int64)
        none = np.zeros(1, dtype=np.int64)
        return times * int(product_times(form, box, none, device.peak(form.dtype), UNIT)[0]) * UNIT

    def product_seconds(self, op: Operator, sizes: tuple[int, int, int], moved: int) -> Fraction | None:
        """Of a product of m x k and k x n of the types of `op`, `sizes` (m, n, k); None without a form of products."""
        device = (self._fast if op.name in self.eight else self.machine).device
        form = device.product(self.graph.computed_in(op))
        if form is None:
            return None
        box, none = np.array([(1, *sizes)], dtype=np.int64), np.zeros(1, dtype=np.int64)
        works = int(product_times(form, box, none, device.peak(form.dtype), UNIT)[0])
        waits = int(result_times(form, box, np.array([moved]), device.bandwidth, UNIT)[0])
        return works * UNIT / self.steady if works >= waits else waits * UNIT

    def heaviest(self, op: Operator) -> Fraction:
        """Points of the part of the groups that has most, over those of an even part; 1 where none were counted."""
        ways = self.ways.get(op.name, {}).get(op.rows, 1) if op.loads else 1
        if ways == 1:
            return Fraction(1)
        each = -(-len(op.loads) // ways)
        most = max(sum(op.loads[k : k + each]) for k in range(0, len(op.loads), each))
        return Fraction(most * ways, sum(op.loads))

    def seconds(self, op: Operator) -> Fraction:
        """The time of an operator's box in a step.  Raises `MachineError` if the machine lacks the type's peak."""
        return self._priced(op)[1]

    def planned_time(self, op: Operator) -> Fraction:
        """The time that a plan has for the box: at the clock of a single kernel."""
        return self._priced(op)[0]

    def least(self, op: Operator, devices: int) -> Fraction:
        """What a product or an attention takes at least, spread over `devices` in any way; 0 for other operators."""
        if op.kind not in (NodeKind.CONTRACT, NodeKind.GROUPED, NodeKind.ATTENTION):
            return Fraction(0)
        device = (self._fast if op.name in self.eight else self.machine).device
        dtype = self.graph.computed_in(op)
        form, seen = device.product(dtype), device.attention(dtype, "backward")
        fastest = [1 / device.peak(dtype), *([form.pace] if form else [])]
        if op.kind is NodeKind.ATTENTION:
            fastest += [seen.pace] if seen else []
        return self.graph.work(op) * min(fastest) / devices

    def cast_seconds(self, size: int, learns: bool = True) -> Fraction:
        """A 16-bit operand of `size` bytes cast to float8; `learns`: the gradient of a weight reads it too."""
        moved = cast_bytes(size, self.scaling, self.machine.device.name, learns)
        return Fraction(moved) / self.stream + reads(self.scaling) * self.machine.device.launch

    def bytes_of(self, op: Operator) -> int:
        """Bytes of the share of the result that is here."""
        share = self.share(op)
        read = self.graph.tensor(op.output.tensor)
        sizes = [
            min(n, sum((share[a] - 1) * abs(c) for a, c in i.terms) + 1)
            for i, n in zip(op.output.index, read.shape, strict=True)
        ]
        return prod(sizes) * read.element_bytes

    def read_by(self, op: Operator, position: int) -> int:
        """Bytes of the share of an input that is read here."""
        share, access = self.share(op), op.inputs[position]
        read = self.graph.tensor(access.tensor)
        sizes = [
            min(n, sum((share[a] - 1) * abs(c) for a, c in i.terms) + 1)
            for i, n in zip(access.index, read.shape, strict=True)
        ]
        return prod(sizes) * read.element_bytes

    def flops(self, op: Operator) -> int:
        """Operations of the box of a map."""
        return prod(self.share(op).values()) * self.graph.flops_per_point(op)

    def kernels(self, operators: Sequence[Operator]) -> list[Kernel]:
        """The operators (of one pass, in graph order), with chains of maps put together where there are any."""
        together: list[list[Operator]] = []
        for chain in self._chains(operators) if self.chains or self.flash else [[op] for op in operators]:
            whole = self.chains or any(a.tensor in self._fixed for op in chain for a in op.inputs)
            together += [chain] if whole else [[op] for op in chain]
        return [
            Kernel(self.seconds(chain[0]) if len(chain) == 1 else self._of_chain(chain), tuple(o.name for o in chain))
            for chain in together
        ]

    def _chains(self, operators: Sequence[Operator]) -> list[list[Operator]]:
        """A map or copy is joined with that whose result it waits for last, and with others that wait for the same."""
        joined = {op.name: [op] for op in operators}
        first: dict[str, str] = {}
        for op in operators:
            latest = self._latest(op) if elementwise(op) else None
            if latest is None:
                continue
            before = first.setdefault(latest.output.tensor, op.name)
            for name in (before, latest.name if elementwise(latest) else before):
                if name in joined and joined[name] is not joined[op.name]:
                    left, right = joined[name], joined[op.name]
                    left += right
                    for moved in right:
                        joined[moved.name] = left
        seen, out = set[int](), []
        for op in operators:
            chain = joined[op.name]
            if id(chain) not in seen:
                seen.add(id(chain))
                out.append(chain)
        return out

    def _latest(self, op: Operator) -> Operator | None:
        """The operator whose result `op` waits for last; None where all it reads is there from the start."""
        found = [i for a in op.inputs if (i := self.graph.writer().get(a.tensor)) is not None]
        return self.graph.operators[max(found)] if found else None

    def _of_chain(self, chain: Sequence[Operator]) -> Fraction:
        inside = {op.name for op in chain}
        written = {op.output.tensor for op in chain}
        readers, results = self.graph.readers(), {*self.graph.results}
        read: dict[str, int] = {}
        moved = 0
        for op in chain:
            for position, a in enumerate(op.inputs):
                if a.tensor not in written:
                    read[a.tensor] = max(read.get(a.tensor, 0), self.read_by(op, position))
            name = op.output.tensor
            if name in results or any(self.graph.operators[i].name not in inside for i, _ in readers[name]):
                moved += self.bytes_of(op)
        device = self.machine.device
        moved += sum(read.values())
        work = sum(self.flops(op) for op in chain)
        return max(Fraction(work) / device.peak("float32"), Fraction(moved) / self.stream) + device.launch


def _fixed(graph: Graph) -> frozenset[str]:
    """What is computed of nothing that a step is given: masks, tables of positions."""
    found = set[str]()
    for op in graph.operators:
        if all(a.tensor in found for a in op.inputs):
            found.add(op.output.tensor)
    return frozenset(found)


def _of_local_groups(form: OperatorForm, ways: int) -> OperatorForm:
    """A grouped product of a part of its groups, as if there were no others."""
    axes = tuple(replace(a, extent=-(-a.extent // ways)) if a.name == form.rows else a for a in form.axes)

    def local(operand: OperandForm) -> OperandForm:
        sizes = zip(operand.shape, operand.index, strict=True)
        return replace(operand, shape=tuple(-(-n // ways) if i.single == form.rows else n for n, i in sizes))

    return replace(form, axes=axes, inputs=tuple(map(local, form.inputs)), output=local(form.output))


@lru_cache(maxsize=64)
def with_forms(device: DeviceClass) -> DeviceClass:
    """The class with measured forms of products and attention, borrowed where it has none of its own.

    >>> from ..machine.machine import load_machine
    >>> here = load_machine("dgx-a100").device
    >>> len(here.attentions), len(with_forms(here).attentions), with_forms(here).products == here.products
    (0, 4, True)
    """
    like = load_machine(LIKE).device
    if device.name not in ALIKE:
        return device
    faster = device.peak("bfloat16") / like.peak("bfloat16")
    pairs = ATTENTION.get(device.name, faster)
    products = device.products or tuple(_faster(f, faster) for f in like.products)
    attentions = device.attentions or tuple(
        replace(f, pace=f.pace / pairs, pair=f.pair / pairs, row=f.row / pairs) for f in like.attentions
    )
    return replace(device, products=products, attentions=attentions)


def _faster(form: ProductForm, ways: Fraction) -> ProductForm:
    """A product form at so many times the rate."""
    return replace(form, tiles=tuple((rows, columns, time / ways) for rows, columns, time in form.tiles))


def elementwise(op: Operator) -> bool:
    """Whether frameworks put an operator into one kernel with its neighbours: a map, or a copy.

    >>> from ..sources.zoo import build
    >>> [elementwise(op) for op in build("mlp-unity").operators]
    [False, True, False]
    """
    return op.kind is NodeKind.MAP or op.function in ("copy", "sum_inputs")
