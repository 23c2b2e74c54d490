"""Fits a device to measured operators, links to measured reshardings, and operators by shape as
`[[profile]]` rows.

    operator        t = max( flops / peak of its type, bytes / memory bandwidth ) + launch         unknown: peaks,
                    bandwidth, launch
    resharding  t = sum over levels  bytes_i / bandwidth_i  +  phases_i latency_i              unknown: bandwidths,
                    latencies
    profile         t of (function, element type, local extents)  =  median over the operators measured that agree in
                    these

These are the formulas of `models.cost.cost` with the loads of `models.communication.pricing`, so the residuals say what
the cost model is worth where it is used.  The fit is that of `fit`.  Every constant's source ends with its residuals in
fixed words, from which `calibration_errors` reads them again for `explain`.

What is measured are the parts of candidate plans (`coverage`): every placement of every operator occurs, and so do
reshardings between most pairs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Final

import numpy as np

from ...models.communication.choices import Choices, communications, iteration_box
from ...models.cost.selection import Planning
from ...models.machine.machine import Machine
from ...models.machine.parts import MAX_PROFILES, Profile
from ...models.program.graph import Graph
from ...models.sources.building.builder import Builder
from ...models.text import InputError
from .calibrate import Constant
from .fit import Residuals, Row, active_unknowns, fit

LAUNCH_GUESS: Final = 1e-5
"""Seconds per operator from which the fit starts where the machine states none."""

PartTimes = Sequence[tuple[int, int, Sequence[float]]]
"""(candidate, number of the operator or resharding there, seconds of every round)."""


@dataclass(frozen=True)
class OperatorTime:
    """One operator on a device's box: `extents` of the output's axes, then of the reduction axes; flops and bytes
    as the cost model counts them.
    """

    name: str
    function: str
    dtype: str
    extents: tuple[int, ...]
    flops: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class CommunicationTime:
    """One resharding: bytes into the busiest subtree and phases, per level."""

    tensor: str
    bytes: tuple[int, ...]
    phases: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class PartsCalibration:
    """The fitted machine.  Residuals of the roofline before and after, of the profile rows, of reshardings
    before and after (None: none measured).
    """

    machine: Machine
    constants: tuple[Constant, ...]
    operators_before: Residuals
    operators_fitted: Residuals
    profile: Residuals | None
    movements_before: Residuals | None
    movements_fitted: Residuals | None


def coverage(planning: Planning, extra: int = 4, seed: int = 0) -> tuple[Choices, ...]:
    """Candidates in which every choice of every vertex occurs, and `extra` random ones.

    >>> from ...models.machine.machine import load_machine
    >>> from ...models.layout.placement import space
    >>> from ...models.cost.selection import build
    >>> from ...models.sources.zoo import build as zoo
    >>> planning = build(zoo("mlp-unity"), load_machine("localhost:2"), space("complete"))
    >>> len(coverage(planning))
    8
    """
    sizes = [len(v.cost) for v in planning.problem.vertices]
    rng = random.Random(seed)
    found = [tuple(k % n for n in sizes) for k in range(max(sizes))] + [
        tuple(rng.randrange(n) for n in sizes) for _ in range(extra)
    ]
    return tuple(planning.choices(x) for x in dict.fromkeys(found))


def calibration_graph() -> Graph:
    """Operators for a machine without a model: contractions, elementwise functions, sums, in float32 and float64,
    from cache-sized to larger.
    """
    g = Builder("calibration")
    outputs = []
    for dtype in ("float32", "float64"):
        g.dtype = dtype
        for m, n, k in ((64, 64, 64), (256, 256, 256), (64, 512, 1024), (512, 512, 512)):
            a, b = (g.input(f"{dtype}.{m}x{n}x{k}.{side}", shape) for side, shape in (("a", (m, k)), ("b", (k, n))))
            outputs.append(g.contract(f"{dtype}.{m}x{n}x{k}", "m k, k n -> m n", a, b))
        for rows, columns in ((64, 64), (256, 1024), (1024, 1024)):
            a, b = (g.input(f"{dtype}.{rows}x{columns}.{side}", (rows, columns)) for side in ("x", "y"))
            outputs.append(g.map(f"{dtype}.{rows}x{columns}.add", "add", a, b, text="m n, m n -> m n"))
            outputs.append(g.map(f"{dtype}.{rows}x{columns}.relu", "relu", a, text="m n -> m n"))
            outputs.append(g.reduce(f"{dtype}.{rows}x{columns}.sum", "m n -> m", a))
    return g.build(*outputs)


def operator_times(planning: Planning, candidates: Sequence[Choices], measured: PartTimes) -> tuple[OperatorTime, ...]:
    """What was measured, with what the cost model counts.  The fastest round stands; the largest box of all devices
    gives the extents.
    """
    graph, hierarchy = planning.graph, planning.machine.hierarchy
    out = []
    for candidate, number, seconds in measured:
        op = graph.operators[number]
        placement = candidates[candidate].of_operator(op.name)
        v = planning.operators[op.name]
        choice, costs = planning.decisions[v].choice(placement), planning.costs[v]
        order = (*op.output.axes, *(a.name for a in op.reduction_axes))
        boxes = [iteration_box(op, placement, hierarchy, d) for d in range(planning.machine.devices)]
        extents = max(
            (tuple(hi - lo for lo, hi in (box[a] for a in order)) for box in boxes), key=lambda e: (prod(e), e)
        )
        if costs is None or not prod(extents):
            continue
        dtype = graph.tensor(op.output.tensor).dtype
        out.append(
            OperatorTime(
                op.name, op.function, dtype, extents, int(costs.flops[choice]), int(costs.bytes[choice]), min(seconds)
            )
        )
    return tuple(out)


def communication_times(
    planning: Planning, candidates: Sequence[Choices], measured: PartTimes
) -> tuple[CommunicationTime, ...]:
    """Reshardings with their priced loads; the fastest round stands."""
    graph, hierarchy = planning.graph, planning.machine.hierarchy
    wanted: dict[int, dict[int, float]] = {}
    for candidate, number, seconds in measured:
        wanted.setdefault(candidate, {})[number] = min(seconds)
    out = []
    for candidate, numbers in wanted.items():
        for number, m in enumerate(communications(graph, hierarchy, candidates[candidate])):
            if number in numbers:
                size = graph.tensor(m.tensor).element_bytes
                out.append(
                    CommunicationTime(
                        m.tensor, tuple(n * size for n in m.plan.loads()), m.plan.phases(), numbers[number]
                    )
                )
    return tuple(m for m in out if any(m.bytes))


def calibrate_parts(
    machine: Machine, operators: Sequence[OperatorTime], moved: Sequence[CommunicationTime] = (), profile: bool = True
) -> PartsCalibration:
    """Fit the device to `operators`, the links to `moved` (if any); with `profile`, write the operators' times by shape
    as well.

    Raises `InputError` if there is nothing to fit, the machine has several device classes, or there are more shapes
    than a machine may have.
    """
    if not operators:
        raise InputError("no operator time is left to fit")
    if machine.others:
        raise InputError(
            f"machine {machine.name!r} has {len(machine.classes)} device classes; calibrate one kind of device at "
            f"a time"
        )
    machine = replace(
        machine, profiles=(), sources=tuple(s for s in machine.sources if not s[0].startswith("profile."))
    )
    device, constants, before, fitted = _device(machine, operators)
    links_before = links_fitted = None
    result = device
    if moved:
        result, more, links_before, links_fitted = _links(device, moved)
        constants += more
    rows = profile_rows(operators) if profile else ()
    if len(rows) > MAX_PROFILES:
        raise InputError(
            f"{len(rows)} shapes were measured, a machine file has at most {MAX_PROFILES} [[profile]] rows; "
            f"calibrate with fewer devices or a smaller model"
        )
    shapes = None
    if rows:
        known = {(p.function, p.dtype, p.extents): float(p.seconds) for p in rows}
        shaped = [o for o in operators if o.extents]
        shapes = Residuals.of(
            np.array([known[o.function, o.dtype, o.extents] for o in shaped]), np.array([o.seconds for o in shaped])
        )
        said = f"calibrated: measured by `shardproof machine calibrate`, shapes against operators: {shapes.words()}"
        result = replace(
            result,
            profiles=rows,
            sources=tuple(sorted((*result.sources, *((f"{p.path}.seconds", said) for p in rows)))),
        )
    return PartsCalibration(result, constants, before, fitted, shapes, links_before, links_fitted)


def profile_rows(operators: Iterable[OperatorTime]) -> tuple[Profile, ...]:
    """One row per function, element type and extents: the median of the operators that agree in them, to four
    digits, in whole picoseconds.
    """
    times: dict[tuple[str, str, tuple[int, ...]], list[float]] = {}
    for o in operators:
        if o.extents:  # a scalar without a reduction has no row
            times.setdefault((o.function, o.dtype, o.extents), []).append(o.seconds)
    return tuple(Profile(f, d, e, Fraction(f"{float(np.median(s)):.3e}")) for (f, d, e), s in sorted(times.items()))


def _device(
    machine: Machine, operators: Sequence[OperatorTime]
) -> tuple[Machine, tuple[Constant, ...], Residuals, Residuals]:
    device = machine.device
    types = sorted({o.dtype for o in operators if o.flops})
    base = f"device_class.{device.name}"
    paths = [*(f"{base}.peaks.{t}" for t in types), f"{base}.bandwidth", f"{base}.launch"]
    before = [*(device.peak(t) for t in types), device.bandwidth, device.launch]
    start = np.array([*(1 / float(x) for x in before[:-1]), float(device.launch) or LAUNCH_GUESS])
    memory, launch = len(types), len(types) + 1

    def row(o: OperatorTime) -> Row:
        pieces = [(memory, float(o.bytes))] + ([(types.index(o.dtype), float(o.flops))] if o.flops else [])
        return Row((tuple(pieces),), ((launch, 1.0),), o.seconds)

    rows = [row(o) for o in operators]
    x = fit(rows, start)
    used = active_unknowns(rows, x)
    after = [Fraction(f"{1 / v:.3e}") for v in x[:-1]] + [Fraction(f"{x[-1]:.3e}")]
    after = [a if u else b for a, b, u in zip(after, before, used, strict=True)]
    peaks = dict(device.peaks) | {t: after[k] for k, t in enumerate(types)}
    fitted = replace(
        machine,
        device=replace(device, peaks=tuple(sorted(peaks.items())), bandwidth=after[memory], launch=after[launch]),
    )

    def residuals_of(m: Machine) -> Residuals:
        rates = [m.device.bandwidth, m.device.launch]
        times = [
            max(o.bytes / float(rates[0]), o.flops / float(m.device.peak(o.dtype)) if o.flops else 0.0)
            + float(rates[1])
            for o in operators
        ]
        return Residuals.of(np.maximum(np.array(times), 1e-12), np.array([o.seconds for o in operators]))

    found = residuals_of(fitted)
    said = (
        f"calibrated: fitted to {len(operators)} operators measured by `shardproof machine calibrate`: {found.words()}"
    )
    fitted = _sourced(fitted, {p for p, u in zip(paths, used, strict=True) if u}, said)
    constants = tuple(Constant(p, b, a, u) for p, b, a, u in zip(paths, before, after, used, strict=True))
    return fitted, constants, residuals_of(machine), found


def _links(
    machine: Machine, moved: Sequence[CommunicationTime]
) -> tuple[Machine, tuple[Constant, ...], Residuals, Residuals]:
    levels = machine.levels
    n = len(levels)
    paths = [f"level.{x.name}.bandwidth" for x in levels] + [f"level.{x.name}.latency" for x in levels]
    before = [x.bandwidth for x in levels] + [x.latency for x in levels]
    start = np.array([*(1 / float(x.bandwidth) for x in levels), *(float(x.latency) or LAUNCH_GUESS for x in levels)])

    def row(m: CommunicationTime) -> Row:
        terms = [(i, float(b)) for i, b in enumerate(m.bytes) if b] + [
            (n + i, float(p)) for i, p in enumerate(m.phases) if p
        ]
        return Row((), tuple(terms), m.seconds)

    rows = [row(m) for m in moved]
    x = fit(rows, start)
    used = active_unknowns(rows, x)
    after = [Fraction(f"{1 / v:.3e}") for v in x[:n]] + [Fraction(f"{v:.3e}") for v in x[n:]]
    after = [a if u else b for a, b, u in zip(after, before, used, strict=True)]
    fitted = replace(
        machine, levels=tuple(replace(x, bandwidth=after[i], latency=after[n + i]) for i, x in enumerate(levels))
    )

    def residuals_of(m: Machine) -> Residuals:
        times = [
            sum(
                b / float(x.bandwidth) + p * float(x.latency)
                for x, b, p in zip(m.levels, t.bytes, t.phases, strict=True)
            )
            for t in moved
        ]
        return Residuals.of(np.array(times), np.array([t.seconds for t in moved]))

    found = residuals_of(fitted)
    said = f"calibrated: fitted to {len(moved)} reshardings measured by `shardproof machine calibrate`: {found.words()}"
    fitted = _sourced(fitted, {p for p, u in zip(paths, used, strict=True) if u}, said)
    return (
        fitted,
        tuple(Constant(p, b, a, u) for p, b, a, u in zip(paths, before, after, used, strict=True)),
        residuals_of(machine),
        found,
    )


def _sourced(machine: Machine, fitted: set[str], said: str) -> Machine:
    sources = dict(machine.sources) | dict.fromkeys(fitted, said)
    return replace(machine, sources=tuple(sorted(sources.items())))


_WORDS: Final = re.compile(r"^calibrated: .*mean error ([0-9]{1,6}\.[0-9]) %, worst ([0-9]{1,6}\.[0-9]) %")


def calibration_errors(machine: Machine) -> tuple[Fraction, ...]:
    """The largest mean error and the largest error that the calibrated constants' sources state; nothing if none is
    calibrated.

    >>> from ...models.machine.machine import load_machine
    >>> calibration_errors(load_machine("localhost"))
    ()
    """
    found = [(Fraction(m[1]) / 100, Fraction(m[2]) / 100) for _, text in machine.sources if (m := _WORDS.search(text))]
    return (max(a for a, _ in found), max(b for _, b in found)) if found else ()
