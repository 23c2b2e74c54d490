"""The cost model: exact times of operators and reshardings, rounded up once.

    operator v, placement X     t_v = max_d busy_d + statistics,   busy_d = max( flops_d / peak_d, bytes_d / memory
                                bandwidth_d ) + launch_d, or the measured time of device d's box where the machine's
                                profile has one, or the measured form of a matrix product (`products`) or of attention
                                (`attention`) where the class has one
                 (a scan: as many launches as operators of its body run)
      flops_d    flops per point x points of device d's iteration box (gather, scatter: without the row axis; grouped
                 product: the same, or divided by the number of groups and rounded up where they are even; attention:
                 pairs of query and key that its band leaves in the box), and those of an epilogue once per element of
                 its result; scan: those of its body in every turn; none if the result is no float
      bytes_d    bytes of every operand box read once plus the output box written once (gather: of the table one element
                 per point of the iteration box without the row axis, whether or not the rows are on the device;
                 scan: and what the operators of its body read and write in every turn)
                 to_host, from_host: over the link to the host, at its rate, in place of the memory's
      statistics normalise and attention operators whose `over` axes are split all-reduce each statistic ((L2) of
      `models.communication.pricing`,
                 nothing scattered), float32
    edge, layouts A -> B        t_e = sum_i element_bytes load_i / bandwidth_i + latency_i phases_i         ((L1) to
                                (L4));  at levels with measured forms the times of their collectives (`collectives`),
                                each rounded up

Operators run one after another on the whole machine; nothing overlaps (flag `no-overlap`); inputs and parameters start
in the layout that their readers want (flag `inputs-anywhere`).  Machine constants are exact rationals.  A time is an
exact rational of seconds, rounded up once to a unit (1 ps, or what `models.problem.unit` chooses) in integers:
`ceil_sum` works over one common denominator in int64 when a bound in Python integers allows it, else over Python
integers.

Source: P2 (MLSys 2022) for the shared-link loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

import numpy as np

from ..communication.collective_steps import Step, reduction_steps
from ..communication.pricing import PairLoads, check_reduction
from ..communication.reduction_programs import Chooser, chooser_of, chosen_loads
from ..layout.layout import AxisTables, OpenDigits, intervals, prime_digits, strides
from ..layout.volumes import device_volumes
from ..machine.machine import DeviceClass, Machine
from ..machine.measured import ProductForm
from ..problem.exact import ceil_sum
from ..problem.rows import distinct_rows
from ..problem.selection_problem import FORBIDDEN, Ints
from ..program.attention import Band
from ..program.attention_pairs import count
from ..program.operators import Function, NodeKind, Operator
from .attention import AttentionBoxes, attention_boxes
from .collectives import measured_levels, step_times
from .forms import OperatorForm
from .products import product_axes, product_times, result_times

UNIT = Fraction(1, 10**12)
"""The finest unit of cost: a picosecond, in seconds."""

STATISTIC_BYTES = 4
"""Statistics of softmax and layer norm are exchanged in float32."""

FLAGS = ("inputs-anywhere", "no-overlap", "receive-side")
"""Assumptions of this cost model, stated by every claim about a planned graph."""


def edge_times(loads: PairLoads, element_bytes: int, machine: Machine, unit: Fraction = UNIT) -> Ints:
    """Time of every resharding in units: shape of the loads.  What takes no byte of a device lies on hosts, and is not
    resharded.
    """
    if not element_bytes:
        moved = sum((load + phase for load, phase in zip(loads.loads, loads.phases, strict=True)), loads.loads[0] * 0)
        return np.where(moved > 0, FORBIDDEN, 0)
    terms: list[tuple[Fraction, Ints]] = [(Fraction(0), loads.loads[0])]
    for level, load, phase in zip(machine.levels, loads.loads, loads.phases, strict=True):
        if not level.collectives:
            terms.append((element_bytes / level.bandwidth / unit, load))
            terms.append((level.latency / unit, phase))
    times = ceil_sum(terms)
    return times + step_times(loads.steps, times.shape, element_bytes, machine, unit) if loads.steps else times


class Formula(Enum):
    """What decided the time of an operator on its slowest device."""

    COMPUTE = "compute"
    MEMORY = "memory"
    PROFILE = "profile"
    PRODUCT = "product"
    ATTENTION = "attention"


FORMULAS = tuple(Formula)
"""Numbers of the formulas: `FORMULAS[OperatorCosts.decided[i]]`."""


@dataclass(frozen=True, eq=False)
class OperatorCosts:
    """Per placement, shape (K,): times in units, and what they are made of (flops, bytes of the busiest device).

    `compute`: without the all-reduce of statistics, which is `reduction`.  `decided`: position in `FORMULAS`.
    """

    times: Ints
    compute: Ints
    reduction: Ints
    flops: Ints
    bytes: Ints
    decided: Ints


def operator_costs(form: OperatorForm, tables: AxisTables, machine: Machine, unit: Fraction = UNIT) -> OperatorCosts:
    """Times of an operator under every placement; `tables` are those of the form's axes.  Raises `MachineError` if
    the machine lacks the element type's peak.
    """
    gathered = form.spec.kind is NodeKind.GATHER
    touched = [intervals(operand.access, operand.shape, tables) for operand in (*form.inputs, form.output)[gathered:]]
    banded = () if form.band is None else (form.band.query, form.band.key)
    placed = [i for i, a in enumerate(form.axes) if a.name in banded or (form.loads and a.name == form.rows)]
    some = _one_of_a_kind(
        machine,
        [*tables.tables, *(table for dims, _ in touched for table in dims)],
        [tables.tables[i][..., 0] for i in placed],
    )
    tables = replace(tables, tables=tuple(table[:, some] for table in tables.tables))
    hidden = {*form.inner} if form.even else {form.rows, *form.inner}
    counted = [i for i, a in enumerate(form.axes) if a.name not in hidden and i not in placed]
    points = device_volumes(tables.tables, tables.codes, counted, some.size)
    if form.even:  # of the points of all groups together, a group's share
        points = -(-points // next(a.extent for a in form.axes if a.name == form.rows))
    if form.loads:
        points = _of_groups(points, form, tables)
    if form.band is not None:
        points = points * _pairs(form.band, form, tables)
    moved = points * form.inputs[0].element_bytes if gathered else np.zeros_like(points)
    for operand, (dims, codes) in zip((*form.inputs, form.output)[gathered:], touched, strict=True):
        moved += (
            device_volumes([table[:, some] for table in dims], codes, range(len(dims)), some.size)
            * operand.element_bytes
        )
    names = [a.name for a in form.axes]
    for rows, each in form.traffic:
        along = [names.index(r) for r in rows]
        moved += device_volumes(tables.tables, tables.codes, along, some.size) * each
    work = points * form.flops
    if form.finish:
        results = [i for i, a in enumerate(form.axes) if a.combine is None]
        work = work + form.finish * device_volumes(tables.tables, tables.codes, results, some.size)
    measured = measured_times(form, tables, machine, some.size)
    products = _Products(form, tables, moved, some.size) if any(c.products for c in machine.classes) else None
    attention = attention_boxes(form, tables, points, moved) if any(c.attentions for c in machine.classes) else None
    forms = _Forms(measured, products, attention)
    chooser = chooser_of(machine, STATISTIC_BYTES)
    extra = statistics_terms(form.spec, form.over, tables, machine, unit, chooser)
    dtype = form.computed_in
    classes = [(device, np.flatnonzero(np.isin(some, ranks))) for device, ranks in _ranks(machine)]
    by_formula = _slowest(classes, dtype, work, moved, forms, [], unit, form)
    busy, decided = np.maximum.reduce(by_formula), np.argmax(by_formula, axis=0)
    flops, read = work.max(axis=1), moved.max(axis=1)
    steps = statistics_steps(form.spec, form.over, tables, measured_levels(machine))
    if not extra and not steps:
        return OperatorCosts(busy, busy, np.zeros_like(busy), flops, read, decided)
    times = np.maximum.reduce(_slowest(classes, dtype, work, moved, forms, extra, unit, form))
    if steps:
        together = step_times(steps, times.shape, STATISTIC_BYTES, machine, unit)
        times = times + len(form.spec.statistics) * together
    return OperatorCosts(times, busy, times - busy, flops, read, decided)


def _pairs(band: Band, form: OperatorForm, tables: AxisTables) -> Ints:
    """Pairs of query and key in the band, per placement and device of the tables."""
    names = [a.name for a in form.axes]
    query, key = ((tables.tables[i], tables.codes[:, i]) for i in (names.index(band.query), names.index(band.key)))
    found = count(query[0][:, None], key[0][None], band.behind, band.ahead, band.block)
    return np.asarray(found[query[1], key[1]])


def _of_groups(points: Ints, form: OperatorForm, tables: AxisTables) -> Ints:
    """Points of the groups that a device has, of the points of all groups, per placement and device of the tables."""
    rows = next(i for i, a in enumerate(form.axes) if a.name == form.rows)
    before = np.concatenate([[0], np.cumsum(form.loads, dtype=np.int64)])
    here = (before[tables.tables[rows][..., 1]] - before[tables.tables[rows][..., 0]])[tables.codes[:, rows]]
    whole, rest = np.divmod(points, before[-1])  # so that no product is beyond 64 bits
    return np.asarray(whole * here - (-rest * here // before[-1]))


def _one_of_a_kind(machine: Machine, tables: Sequence[Ints], placed: Sequence[Ints] = ()) -> Ints:
    """Devices that stand for all: every other one is of the class of one of them, and all its intervals are as
    long.  Ascending.  `placed`: where intervals begin, of axes whose work depends on that.
    """
    rows = [table[..., 1] - table[..., 0] for table in tables]
    kind = np.zeros((1, machine.devices), dtype=np.int64)
    for number, (_, ranks) in enumerate(_ranks(machine)):
        kind[0, ranks] = number
    lengths = np.concatenate([kind, *rows, *placed])
    if (lengths == lengths[:, :1]).all():
        return np.zeros(1, dtype=np.int64)
    return np.sort(np.unique(lengths, axis=1, return_index=True)[1])


def _slowest(
    classes: Sequence[tuple[DeviceClass, Ints]],
    dtype: str,
    work: Ints,
    moved: Ints,
    forms: _Forms,
    extra: list[tuple[Fraction, Ints]],
    unit: Fraction,
    form: OperatorForm,
) -> list[Ints]:
    """Per formula (the order of `FORMULAS`) the time of the slowest device it holds for, plus the terms `extra`; 0
    where it holds for none.
    """
    zero = np.zeros(work.shape[0], dtype=np.int64)
    one = zero + 1
    found = [zero] * len(FORMULAS)
    measured, products, attention = forms.measured, forms.products, forms.attention
    free = None if measured is None else measured < 0
    for device, ranks in classes:
        here = None if free is None else free[:, ranks]
        table = None if products is None or products.axes is None else device.product(dtype)
        seen = None if attention is None else device.attention(dtype, attention.direction)
        by_form: list[tuple[Formula, Ints]] = []
        if products is not None and table is not None:  # a product has no statistics: `extra` is empty
            waits, computes = products.times(table, device, ranks, unit)
            by_form = [(Formula.MEMORY, waits), (Formula.PRODUCT, computes)]
        elif attention is not None and seen is not None:
            waits, computes = attention.times(seen, device, ranks, extra, unit)
            by_form = [(Formula.MEMORY, waits), (Formula.ATTENTION, computes)]
        for formula, time in by_form:
            k = FORMULAS.index(formula)
            found[k] = np.maximum(found[k], (time if here is None else time * here).max(axis=1))
        if by_form:
            continue
        peak = device.peak(dtype) if work.any() else Fraction(1)
        for k, (rate, amount) in enumerate(
            ((peak, work[:, ranks]), (device.carrier(form.function)[1], moved[:, ranks]))
        ):
            most = (amount if here is None else amount * here).max(axis=1)
            time = ceil_sum([(1 / rate / unit, most), (form.launches * device.launch / unit, one), *extra])
            found[k] = np.maximum(found[k], time if here is None else np.where(here.any(axis=1), time, 0))
    if measured is not None:
        most = measured.max(axis=1)
        found[2] = np.where(most >= 0, ceil_sum([(UNIT / unit, np.maximum(most, 0)), *extra]), 0)
    return found


@dataclass(frozen=True, eq=False)
class _Forms:
    """What else than the roofline may price an operator's boxes."""

    measured: Ints | None
    products: _Products | None
    attention: AttentionBoxes | None


class _Products:
    """Boxes of a matrix product, per placement and device of the tables."""

    def __init__(self, form: OperatorForm, tables: AxisTables, moved: Ints, devices: int) -> None:
        self.axes, self.moved, self.finish = product_axes(form), moved, form.finish
        axes = self.axes
        self.sizes = (
            np.empty((0, 0, 4), dtype=np.int64)
            if axes is None
            else np.stack(
                [
                    device_volumes(tables.tables, tables.codes, which, devices)
                    for which in (axes.batch, axes.m, axes.n, axes.k)
                ],
                axis=2,
            )
        )

    def times(self, table: ProductForm, device: DeviceClass, ranks: Ints, unit: Fraction) -> tuple[Ints, Ints]:
        """Units (placements, ranks) of waiting for the bytes, and of computing; equal boxes are priced once."""
        shape = self.moved[:, ranks].shape
        keys = np.concatenate([self.sizes[:, ranks], self.moved[:, ranks, None]], axis=2).reshape(-1, 5)
        each, of = distinct_rows(keys)
        sizes, moved = each[:, :4], each[:, 4]
        waits = result_times(table, sizes, moved, device.bandwidth, unit)
        finish = self.finish * sizes[:, :3].prod(axis=1)
        computes = product_times(table, sizes, finish, device.peak(table.dtype), unit)
        return waits[of].reshape(shape), computes[of].reshape(shape)


def _ranks(machine: Machine) -> list[tuple[DeviceClass, Ints]]:
    """Every device class with its ranks."""
    if not machine.others:
        return [(machine.device, np.arange(machine.devices))]
    block = np.arange(machine.devices) // (machine.devices // machine.levels[0].size)
    named = [(c, np.nonzero(np.isin(block, c.blocks))[0]) for c in machine.others]
    rest = np.nonzero(~np.isin(block, [b for c in machine.others for b in c.blocks]))[0]
    return [(machine.device, rest), *named]


def measured_times(form: OperatorForm, tables: AxisTables, machine: Machine, devices: int) -> Ints | None:
    """Per placement and each of the `devices` of the tables the measured time of its box in picoseconds, -1 where
    the profile has none; None if it has none anywhere.
    """
    if form.band is not None or form.arithmetic or form.traffic or form.loads:  # extents say no pairs, no body, ..
        return None
    order = form.profile_axes
    rows = [
        p
        for p in machine.profiles
        if p.function == form.function and p.dtype == form.output.dtype and len(p.extents) == len(order)
    ]
    if not rows:
        return None
    names = [a.name for a in form.axes]
    lengths = []
    for name in order:
        i = names.index(name)
        lengths.append((tables.tables[i][..., 1] - tables.tables[i][..., 0])[tables.codes[:, i]])
    times: Ints = np.full((tables.codes.shape[0], devices), -1, dtype=np.int64)
    for p in rows:
        here = np.ones(times.shape, dtype=bool)
        for length, n in zip(lengths, p.extents, strict=True):
            here &= length == n
        times[here] = int(p.seconds / UNIT)
    return times if bool((times >= 0).any()) else None


def statistics_terms(
    spec: Function,
    over_axes: Sequence[str],
    tables: AxisTables,
    machine: Machine,
    unit: Fraction = UNIT,
    chooser: Chooser | None = None,
) -> list[tuple[Fraction, Ints]]:
    """Terms of `ceil_sum` for the all-reduces of an operator's statistics over some axes; empty if it has none.  Levels
    with measured forms have no term: `statistics_steps`.  `chooser`: of their programs.
    """
    if not spec.statistics:
        return []
    q, g = shared_statistics(over_axes, tables)
    each, count = [g[:, j] for j in range(g.shape[1])], len(spec.statistics)
    loads, phases, _ = chosen_loads(chooser, tables.hierarchy, each, each, q)
    terms: list[tuple[Fraction, Ints]] = []
    for level, load, phase in zip(machine.levels, loads, phases, strict=True):
        if not level.collectives:
            terms.append((count * STATISTIC_BYTES / level.bandwidth / unit, load))
            terms.append((count * level.latency / unit, phase))
    return terms


def statistics_steps(spec: Function, over_axes: Sequence[str], tables: AxisTables, levels: Sequence[int]) -> list[Step]:
    """Collectives at `levels` of the all-reduce of one statistic; empty if the operator has none."""
    if not spec.statistics or not levels:
        return []
    q, g = shared_statistics(over_axes, tables)
    each = [g[:, j] for j in range(g.shape[1])]
    return reduction_steps(q, each, each, tables.hierarchy, levels)


def shared_statistics(over_axes: Sequence[str], tables: AxisTables) -> tuple[Ints, Ints]:
    """Elements of one part of a statistic, and per level how many devices share it, per placement."""
    over = [i for i, a in enumerate(tables.axes) if a.name in over_axes]
    rest = [i for i, a in enumerate(tables.axes) if a.name not in over_axes]
    devices = tables.tables[0].shape[1] if tables.tables else 1
    size = device_volumes(tables.tables, tables.codes, rest, devices).max(axis=1)
    g = np.ones((tables.placements.shape[0], len(tables.hierarchy)), dtype=np.int64)
    for i in over:
        g *= tables.placements[:, i, :]
    q = -(-size // g.prod(axis=1))
    check_reduction(int(q.max(initial=0)) * int(g.prod(axis=1).max(initial=1)), tables.hierarchy)
    return q, g


def statistics_digits(op: Operator, axes: Sequence[str], matrix: Sequence[Sequence[int]]) -> OpenDigits:
    """Prime digits of the device number along which one placement splits the `over` axes."""
    below = strides(np.array([matrix], dtype=np.int64))[0]
    out = [
        d
        for i, a in enumerate(axes)
        if a in op.over
        for j, x in enumerate(matrix[i])
        for d in prime_digits(j, x, int(below[i, j]))
    ]
    return tuple(sorted(out, key=lambda d: (d.level, -d.stride)))
