"""How far each machine constant may move before the same plan is no longer proved optimal.

Constant k is multiplied by a factor f, tables are built again for that machine, and the problem is solved again with a
certificate: the plan x passes at f when F_x(f) = F*(f) is proved.  Factors come from a fixed grid of exact rationals.

Which factors are solved.  Every solve that refutes x at f yields a witness y with F_y(f) < F_x(f); at other factors F_y
- F_x is evaluated exactly from the loads of both plans, without solving, and factors at which a known witness beats x
  are skipped:
they are refuted already.  The outermost factor that no witness refutes is solved next, until x passes or nothing is
left; after a solve that did not close, factors are halved instead.

What lies between.  For a link's bandwidth or latency, F_y is linear in 1/bandwidth or latency up to rounding (one unit
per term), so the set where x is optimal is an interval: between two factors that pass, x costs at most 2 (V + E) units
more than the optimum.  For peaks and memory bandwidth the roofline's maximum is only piecewise linear: there "tested
at" means just that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Final, Protocol

from ...models.cost.selection import Planning
from ...models.joint.problem import JointPlanning
from ...models.machine.machine import Collectives, DeviceClass, Machine
from ...models.machine.quantities import Dimension
from ...models.problem.claims import Optimal, Status
from ...models.problem.selection_problem import FORBIDDEN
from ...proofs.selection.certificates import SelectionCertificate
from ..selection.model.clock import Clock
from ..selection.solve import solve
from .elsewhere import AllPrograms, Elsewhere, OneProgram

GRID: Final = tuple(
    Fraction(n, 100)
    for n in (101, 102, 105, 110, 120, 135, 150, 175, 200, 250, 300, 400, 500, 700, 1000, 2000, 3000, 5000, 10000)
)
"""Factors 1.01 .. 100; downwards their inverses."""


class Part(Enum):
    """Which constant of a machine."""

    BANDWIDTH = "bandwidth"
    LATENCY = "latency"
    PEAK = "peak"
    MEMORY_BANDWIDTH = "memory bandwidth"
    HOST = "link to the host"


@dataclass(frozen=True)
class Constant:
    """`where`: number of the level (links), or the element type (peaks)."""

    part: Part
    where: int | str
    name: str
    value: Fraction
    dimension: Dimension

    def error_bound(self, machine: Machine) -> Fraction | None:
        """How far the machine says that it may be off, None where it does not say: the widest of its classes."""
        level, classes = machine.levels[int(self.where)].name if isinstance(self.where, int) else "", machine.classes
        paths = {
            Part.BANDWIDTH: [f"level.{level}.bandwidth"],
            Part.LATENCY: [f"level.{level}.latency"],
            Part.PEAK: [f"device_class.{c.name}.peaks.{self.where}" for c in classes],
            Part.MEMORY_BANDWIDTH: [f"device_class.{c.name}.bandwidth" for c in classes],
            Part.HOST: [f"device_class.{c.name}.host" for c in classes],
        }[self.part]
        return max((bar for path, bar in machine.bars if path in paths), default=None)

    def scale_constant(self, machine: Machine, factor: Fraction) -> Machine:
        """`machine` with this constant multiplied by `factor`."""
        if self.part is Part.BANDWIDTH or self.part is Part.LATENCY:
            level = machine.levels[int(self.where)]
            moved = (
                replace(level, bandwidth=level.bandwidth * factor)
                if self.part is Part.BANDWIDTH
                else replace(level, latency=level.latency * factor)
            )
            return replace(
                machine, levels=(*machine.levels[: int(self.where)], moved, *machine.levels[int(self.where) + 1 :])
            )
        return replace(
            machine,
            device=self._scaled(machine.device, factor),
            others=tuple(self._scaled(c, factor) for c in machine.others),
        )

    def _scaled(self, device: DeviceClass, factor: Fraction) -> DeviceClass:
        """A device class with this constant multiplied by `factor`: in a mixed machine all classes move together."""
        if self.part is Part.PEAK:
            return replace(device, peaks=tuple((d, v * factor if d == self.where else v) for d, v in device.peaks))
        if self.part is Part.HOST:
            return replace(device, host=None if device.host is None else device.host * factor)
        return replace(device, bandwidth=device.bandwidth * factor)


@dataclass(frozen=True, eq=False)
class Test:
    """One solve at a moved constant.  `passed`: the plan's cost is the proved optimum there."""

    factor: Fraction
    plan_cost: int
    best_cost: int | None
    lower_bound: int | None
    passed: bool
    certificate: SelectionCertificate | None


@dataclass(frozen=True, eq=False)
class Range:
    """`low`, `high`: outermost factors of the grid at which the plan passed (1 where none but the base did).
    `low_open`, `high_open`: the next factor outwards, at which it did not (None: passed to the end of the grid).
    `low_better`, `high_better`: cost of a better plan and of this one there; None where the solve did not close in
    time.  `tests`: all solves, by factor."""

    constant: Constant
    low: Fraction
    high: Fraction
    low_open: Fraction | None
    high_open: Fraction | None
    low_better: tuple[int, int] | None
    high_better: tuple[int, int] | None
    between: str
    tests: tuple[Test, ...]


@dataclass(frozen=True)
class Measurement:
    """What measuring a constant may be worth: at `factor`, an end of its error bound `bar`, this plan costs `plan_cost`
    and a plan that was found `better_cost`: so much at least is lost by planning without it.  0 apart where the plan
    stayed the best that is known at both ends.
    """

    constant: Constant
    bar: Fraction
    factor: Fraction
    plan_cost: int
    better_cost: int
    command: str

    @property
    def regret(self) -> int:
        """Units that the plan costs more than the better one."""
        return self.plan_cost - self.better_cost


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Ranges of every constant that can matter, and those that cannot with the reason."""

    planning: Planning | JointPlanning
    choices: tuple[int, ...]
    cost: int
    base_proved: bool
    ranges: tuple[Range, ...]
    irrelevant: tuple[tuple[str, str], ...]
    complete: bool
    measurements: tuple[Measurement, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain data; factors as exact fractions, costs in units of 1/scale."""

        def factor(f: Fraction | None) -> str | None:
            return None if f is None else str(f)

        return {
            "cost": self.cost,
            "base_proved": self.base_proved,
            "complete": self.complete,
            "scale": self.planning.problem.scale,
            "space": self.planning.space.name,
            "grid": [str(f) for f in GRID],
            "constants": [
                {
                    "name": r.constant.name,
                    "value": str(r.constant.value),
                    "low": str(r.low),
                    "high": str(r.high),
                    "not_proved_low": factor(r.low_open),
                    "not_proved_high": factor(r.high_open),
                    "better_low": None if r.low_better is None else list(r.low_better),
                    "better_high": None if r.high_better is None else list(r.high_better),
                    "between": r.between,
                    "tests": [
                        {
                            "factor": str(t.factor),
                            "plan_cost": t.plan_cost,
                            "best_cost": t.best_cost,
                            "lower_bound": t.lower_bound,
                            "passed": t.passed,
                        }
                        for t in r.tests
                    ],
                }
                for r in self.ranges
            ],
            "irrelevant": [{"name": n, "reason": why} for n, why in self.irrelevant],
            "measurements": [
                {
                    "name": m.constant.name,
                    "error_bound": float(m.bar),
                    "factor": str(m.factor),
                    "plan_cost": m.plan_cost,
                    "better_cost": m.better_cost,
                    "regret": m.regret,
                    "command": m.command,
                }
                for m in self.measurements
            ],
        }


class Watch(Protocol):
    """Progress: constants done, constants in all, what is being solved."""

    def __call__(self, done: int, total: int, stage: str) -> None: ...


Grid = tuple[Fraction, ...]


def sensitivity(
    planning: Planning | AllPrograms,
    choices: tuple[int, ...],
    base: SelectionCertificate | None = None,
    *,
    grid: Grid = GRID,
    constants: tuple[str, ...] | None = None,
    clock: Clock | None = None,
    solve_limit: float | None = 15.0,
    progress: Watch | None = None,
) -> Sensitivity:
    """Ranges of the machine's constants over which `choices` stays proved optimal.

    `base`: a certificate, already checked, at the constants as they are; without one (or if it claims another cost) the
    base is solved here.  `constants`: names to test (default all that can matter).  `clock`: for
    everything; what is not reached is left out and `complete` is False.  `solve_limit`: seconds for one solve; where it
    neither proves the plan nor finds a better one, the factor counts as not closed.
    """
    clock, subject = clock or Clock(), planning if isinstance(planning, AllPrograms) else OneProgram(planning)
    tester = _Tester(subject, choices, clock, solve_limit)
    cost = subject.problem.cost_of(choices)
    claim = None if base is None or base.problem_sha256 != subject.problem.sha256() else base.claim
    proved = isinstance(claim, Optimal) and claim.cost == cost
    if not proved:
        answer = solve(subject.problem, clock=clock)
        proved = answer.status is Status.OPTIMAL and answer.cost == cost
    candidates, irrelevant = constants_of(subject)
    if constants is not None:
        candidates = tuple(c for c in candidates if c.name in constants)
    ranges: list[Range] = []
    for i, c in enumerate(candidates if proved else ()):

        def say(stage: str, i: int = i) -> None:
            if progress is not None:
                progress(i, len(candidates), stage)

        found = tester.range(c, grid, say)
        if found is None:
            break
        ranges.append(found)
    whole = len(ranges) == len(candidates)
    worth = tester.measurements([r.constant for r in ranges])
    return Sensitivity(subject.planning, choices, cost, proved, tuple(ranges), irrelevant, whole, worth)


def constants_of(subject: Planning | Elsewhere) -> tuple[tuple[Constant, ...], tuple[tuple[str, str], ...]]:
    """Constants that can change which plan is best, and those that cannot, with the reason."""
    machine, graph = subject.machine, subject.graph
    out: list[Constant] = []
    never: list[tuple[str, str]] = []
    for i, level in enumerate(machine.levels):
        if level.size == 1:
            never.append((f"level {level.name}", "it has one child: nothing crosses it"))
            continue
        if level.collectives:
            never.append((f"level {level.name}", "its collectives are priced by measured forms, which are not varied"))
            continue
        out.append(Constant(Part.BANDWIDTH, i, f"{level.name}.bandwidth", level.bandwidth, "rate"))
        if level.latency:
            out.append(Constant(Part.LATENCY, i, f"{level.name}.latency", level.latency, "time"))
    used = [graph.computed_in(op) for op in graph.operators if graph.flops_per_point(op)]
    for dtype, value in machine.device.peaks:
        if dtype in used:
            out.append(Constant(Part.PEAK, dtype, f"peak.{dtype}", value, "flops"))
    out.append(Constant(Part.MEMORY_BANDWIDTH, "", "memory.bandwidth", machine.device.bandwidth, "rate"))
    if machine.device.host is not None:
        out.append(Constant(Part.HOST, "", "host", machine.device.host, "rate"))
    if machine.device.launch:
        never.append(("launch", "every plan pays it equally often"))
    return tuple(out), tuple(never)


@dataclass(eq=False)
class _Tester:
    subject: Elsewhere
    choices: tuple[int, ...]
    clock: Clock
    solve_limit: float | None

    def __post_init__(self) -> None:
        self.witnesses: list[tuple[int, ...]] = []

    def range(self, constant: Constant, grid: Grid, say: Callable[[str], None]) -> Range | None:
        """The range of one constant; None when time is over."""
        tests: list[Test] = []
        ends = []
        for upward in (False, True):
            end = self._end(constant, grid, upward, tests, say)
            if end is None:
                return None
            ends.append(end)
        (low, low_open, low_better), (high, high_open, high_better) = ends
        # the cost of a plan that chooses its collective programs is a least of linear ones
        chosen = self.subject.machine.collectives is Collectives.SYNTHESISED
        linear = constant.part in (Part.BANDWIDTH, Part.LATENCY) and not chosen
        terms = len(self.subject.problem.vertices) + len(self.subject.problem.edges)
        between = (
            f"within {2 * terms} units of optimal in between (linear up to rounding)"
            if linear
            else "tested at the ends only"
        )
        return Range(
            constant,
            low,
            high,
            low_open,
            high_open,
            low_better,
            high_better,
            between,
            tuple(sorted(tests, key=lambda t: t.factor)),
        )

    def measurements(self, constants: Sequence[Constant]) -> tuple[Measurement, ...]:
        """Of the constants with an error bound, by regret; against the plans that were found better somewhere."""
        found = []
        for c in constants:
            bar = c.error_bound(self.subject.machine)
            if not bar:
                continue
            ends, command = list[Measurement](), _command(c, self.subject.machine)
            for factor in (1 / (1 + bar), 1 + bar):
                machine = c.scale_constant(self.subject.machine, factor)
                this = self.subject.cost_at(self.choices, machine)
                if this is None:
                    continue
                others = (self.subject.cost_at(y, machine) for y in self.witnesses)
                better = min((cost for cost in others if cost is not None), default=this)
                ends.append(Measurement(c, bar, factor, this, min(better, this), command))
            if ends:
                found.append(max(ends, key=lambda m: m.regret))
        return tuple(sorted(found, key=lambda m: (-m.regret, m.constant.name)))

    def _end(
        self, constant: Constant, grid: Grid, upward: bool, tests: list[Test], say: Callable[[str], None]
    ) -> tuple[Fraction, Fraction | None, tuple[int, int] | None] | None:
        factors = [f if upward else 1 / f for f in grid]
        machines = [constant.scale_constant(self.subject.machine, f) for f in factors]
        refuted: dict[int, tuple[int, int] | None] = {}  # position -> (better, this), None where a solve did not close
        known, low, high, halving = (
            0,
            -1,
            len(factors),
            False,
        )  # factors[low] passed (-1: the base), factors[high] did not (len: none failed)
        while True:
            for y in self.witnesses[known:]:
                for i, m in enumerate(machines):
                    better, this = self.subject.cost_at(y, m), self.subject.cost_at(self.choices, m)
                    if better is None or this is None:
                        continue
                    if better < this and (refuted.get(i) is None or better < (refuted[i] or (better + 1, 0))[0]):
                        refuted[i] = (better, this)
            known = len(self.witnesses)
            while high - 1 > low and high - 1 in refuted:
                high -= 1
            if high - 1 == low:
                return (
                    Fraction(1) if low < 0 else factors[low],
                    None if high == len(factors) else factors[high],
                    refuted.get(high),
                )
            at = (low + high) // 2 if halving else high - 1
            if at in refuted:
                high = at
                continue
            if self.clock.over():
                return None
            say(f"{constant.name} x {float(factors[at]):.4g}")
            test = self._solve(factors[at], machines[at])
            tests.append(test)
            if test.passed:
                low = at
            elif test.best_cost is None or test.best_cost >= test.plan_cost:
                refuted[at], high, halving = None, at, True
            else:
                refuted[at], high = (test.best_cost, test.plan_cost), at

    def _solve(self, factor: Fraction, machine: Machine) -> Test:
        moved = self.subject.on(machine)
        plan_cost = moved.cost_of(self.choices)
        answer = solve(moved, clock=self.clock.at_most(self.solve_limit))
        passed = answer.lower_bound is not None and answer.lower_bound >= plan_cost and plan_cost < FORBIDDEN
        if answer.solution is not None and answer.cost is not None and answer.cost < plan_cost:
            self.witnesses.append(answer.solution)
        return Test(factor, plan_cost, answer.cost, answer.lower_bound, passed, answer.certificate)


def _command(c: Constant, machine: Machine) -> str:
    if c.part is Part.HOST:
        return "copies of 64 MB or more between a device and its host, timed; host in the machine file"
    file = {
        Part.BANDWIDTH: "nccl-tests.txt",
        Part.LATENCY: "nccl-tests.txt",
        Part.PEAK: "products.csv",
        Part.MEMORY_BANDWIDTH: "trace.json",
    }[c.part]
    latencies = " --latencies" if c.part is Part.LATENCY else ""
    sizes = "x".join(map(str, machine.hierarchy))
    return f"shardproof machine calibrate {machine.name}:{sizes} --from {file}{latencies} -o measured.toml"
