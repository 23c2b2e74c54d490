"""Fits the constants of a machine's links to measured times of reduction programs.

    unknowns       inverse rates of links, switches, tree flow, copy; latencies
    time of a row  sum over steps  max over resources (load_r x_r)  +  copied x_copy  +  phases x_latency         ->
                   calibrate_fit.fit()

A constant that no row depends on is not identified: it keeps the machine's value, and the report says so.
Constants are returned as decimal text of four digits, so that they are exact and can stand in a machine file.

Loads: `models.collective_programs.loads`.  Source: the note's section 7; the linear step is least absolute relative
deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ...models.collective_programs.collectives import Collective, LoweredStep
from ...models.collective_programs.cost import LinkCost, custom
from ...models.collective_programs.loads import Algorithm, step_loads
from ...models.machine.machine import Machine
from ...models.machine.parts import MachineError, ReductionConstants
from ...models.machine.topology import of_machine, part_of
from ...models.text import InputError
from .fit import Residuals, Row, active_unknowns, fit
from .timings import Timing, program_of

if TYPE_CHECKING:
    from ...models.machine.topology import Topology


@dataclass(frozen=True)
class Constant:
    """One constant before and after; `identified`: some row's time depends on it at the solution."""

    path: str
    before: Fraction | None
    after: Fraction | None
    identified: bool


@dataclass(frozen=True)
class Calibration:
    """The fitted machine, its constants, and residuals: of the old and new constants on the rows fitted, and on
    rows held out.
    """

    machine: Machine
    constants: tuple[Constant, ...]
    before: Residuals
    fitted: Residuals
    held_out_before: Residuals | None
    held_out: Residuals | None
    latencies: bool


def calibrate(
    machine: Machine, timings: Sequence[Timing], held_out: Sequence[Timing] = (), latencies: bool = False
) -> Calibration:
    """Fit to `timings`; `held_out` rows are only judged.  Raises `InputError` if there is nothing to fit, or a row
    does not fit the machine.
    """
    if not timings:
        raise InputError("no timing is left to fit; check --where and --hold-out")
    paths = _paths(machine, timings, latencies)
    rows = [_row(machine, t, paths) for t in timings]
    start = np.array([_start(machine, path) for path in paths])
    best = fit(rows, start)
    found = active_unknowns(rows, best)
    after = [_decimal(best[c], path) if found[c] else _value(machine, path) for c, path in enumerate(paths)]
    fitted = _replaced(machine, dict(zip(paths, after, strict=True)))
    constants = tuple(Constant(p, _value(machine, p), after[c], bool(found[c])) for c, p in enumerate(paths))
    judged = residuals(fitted, timings, latencies)
    said = (
        f"calibrated: fitted to {len(timings)} collectives measured, by `shardproof machine calibrate`: "
        f"{judged.words()}"
    )
    fitted = replace(
        fitted,
        sources=tuple((p, said if p in {c.path for c in constants if c.identified} else s) for p, s in fitted.sources),
    )
    return Calibration(
        fitted,
        constants,
        residuals(machine, timings, latencies),
        judged,
        residuals(machine, held_out, latencies) if held_out else None,
        residuals(fitted, held_out, latencies) if held_out else None,
        latencies,
    )


def predict(machine: Machine, timing: Timing, latencies: bool = False) -> float:
    """Seconds that the cost model gives for a measured program."""
    cost = _cost(machine, timing, latencies)
    return float(sum((cost.step_seconds(s) for s in _steps(timing)), Fraction(0)))


def residuals(machine: Machine, timings: Sequence[Timing], latencies: bool = False) -> Residuals:
    """Predicted against measured."""
    return Residuals.of(
        np.array([predict(machine, t, latencies) for t in timings]), np.array([t.seconds for t in timings])
    )


def _cost(machine: Machine, timing: Timing, latencies: bool) -> LinkCost:
    topology = of_machine(machine.resized(timing.hierarchy))
    if not latencies:
        topology = replace(topology, levels=tuple(replace(x, latency=Fraction(0)) for x in topology.levels))
    return custom("calibration", topology, timing.payload, timing.algorithm, machine.reduction)


def _steps(timing: Timing) -> list[LoweredStep]:
    system = timing.system()
    try:
        return system.execute(program_of(timing.program, system))[1]
    except ValueError as error:
        raise InputError(f"{timing.place}: {error}") from None


def _paths(machine: Machine, timings: Sequence[Timing], latencies: bool) -> list[str]:
    """Constants that may be fitted; tree flow and copy only if the machine has them (a model without them stays
    without).
    """
    out = [f"level.{x.name}.bandwidth" for x in machine.levels]
    out += [f"resource.{r.name}.capacity" for r in machine.resources]
    constants = machine.reduction or ReductionConstants()
    if constants.tree_flow is not None and any(t.algorithm is Algorithm.TREE for t in timings):
        out.append("reduction.tree_flow")
    if constants.copy is not None:
        out.append("reduction.copy")
    return out + ([f"level.{x.name}.latency" for x in machine.levels] if latencies else [])


def _value(machine: Machine, path: str) -> Fraction:
    kind, name, *field = path.split(".")
    value: Fraction | None
    match kind:
        case "level":
            level = next(x for x in machine.levels if x.name == name)
            value = level.bandwidth if field == ["bandwidth"] else level.latency
        case "resource":
            value = next(r for r in machine.resources if r.name == name).capacity
        case _:
            value = getattr(machine.reduction, name)
    if value is None:
        raise MachineError(f"machine {machine.name!r}, {path}", "has no value")
    return value


def _start(machine: Machine, path: str) -> float:
    value = _value(machine, path)
    return float(value) if path.endswith("latency") else float(1 / value)


def _row(machine: Machine, timing: Timing, paths: list[str]) -> Row:
    """Loads of one timing.  Links of one level are alike while fitting."""
    machine = machine.resized(timing.hierarchy)
    topology = of_machine(machine)
    index = {p: c for c, p in enumerate(paths)}
    quad = (
        machine.reduction.switch_quad
        if machine.reduction and machine.reduction.switch_quad is not None
        else Fraction(1)
    )
    steps: list[tuple[tuple[int, float], ...]] = []
    added: dict[int, float] = {}
    for step in _steps(timing):
        loads = step_loads(topology, step.collective, step.groups, step.rows, timing.algorithm, quad)
        scale = timing.payload / step.chunks / loads.denominator
        pieces = [
            (index[f"level.{level.name}.bandwidth"], max(*a, *b) * scale)
            for level, a, b in zip(topology.levels, loads.into, loads.out, strict=True)
        ]
        pieces += [
            (index[f"resource.{s.name}.capacity"], max(at) * scale)
            for s, at in zip(topology.switches, loads.switches, strict=True)
        ]
        pieces += [
            (index[f"resource.{b.name}.capacity"], max(at) * scale)
            for b, at in zip(topology.buses, loads.buses, strict=True)
        ]
        for r in machine.resources:
            kind, l = part_of(machine, r)
            if kind == "link":  # in series with the level's own link: both must carry the load
                most = max(max(loads.into[l][v], loads.out[l][v]) for v in r.only or range(len(loads.into[l])))
                pieces.append((index[f"resource.{r.name}.capacity"], most * scale))
        if "reduction.tree_flow" in index:
            pieces.append((index["reduction.tree_flow"], loads.flow * scale))
        steps.append(tuple((c, v) for c, v in pieces if v))
        if "reduction.copy" in index:
            added[index["reduction.copy"]] = added.get(index["reduction.copy"], 0.0) + 2 * loads.copied * scale
        path = f"level.{topology.levels[_outermost(topology, step)].name}.latency"
        if path in index:
            added[index[path]] = added.get(index[path], 0.0) + (2 if step.collective is Collective.ALL_REDUCE else 1)
    return Row(tuple(steps), tuple(added.items()), timing.seconds)


def _outermost(topology: Topology, step: LoweredStep) -> int:
    return next(
        l for l, level in enumerate(topology.levels) if any(len({level.of[d] for d in g}) > 1 for g in step.groups)
    )


def _decimal(x: float, path: str) -> Fraction:
    value = x if path.endswith("latency") else 1 / x
    return Fraction(f"{value:.3e}")


def _replaced(machine: Machine, values: dict[str, Fraction]) -> Machine:
    levels = tuple(
        replace(
            x, bandwidth=values[f"level.{x.name}.bandwidth"], latency=values.get(f"level.{x.name}.latency", x.latency)
        )
        for x in machine.levels
    )
    resources = tuple(replace(r, capacity=values[f"resource.{r.name}.capacity"]) for r in machine.resources)
    reduction = machine.reduction
    if reduction is not None:
        reduction = replace(
            reduction,
            tree_flow=values.get("reduction.tree_flow", reduction.tree_flow),
            copy=values.get("reduction.copy", reduction.copy),
        )
    return replace(machine, levels=levels, resources=resources, reduction=reduction)
