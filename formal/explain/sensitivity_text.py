"""Says how far constants may move before a plan is no longer proved optimal, and what to measure first, in words."""

from __future__ import annotations

from fractions import Fraction

from ...models.machine.machine import Collectives
from ...models.machine.quantities import error_bound_text, show
from ...models.text import join_lines
from ..plans.report import amount, percent, table_text
from .sensitivity import Constant, Sensitivity


def render_sensitivity(s: Sensitivity, width: int = 160, color: bool = False) -> str:
    """One row per constant: the factors and values tested, and what is better beyond."""
    problem = s.planning.problem
    if not s.base_proved:
        return "the plan is not proved optimal at the machine's own constants: nothing to vary"
    rows = []
    for r in s.ranges:
        c = r.constant
        rows.append(
            [
                c.name,
                show(c.value, c.dimension),
                f"x {float(r.low):.4g} .. x {float(r.high):.4g}",
                f"{_value(c, r.low)} .. {_value(c, r.high)}",
                _beyond(r.low_open, r.low_better),
                _beyond(r.high_open, r.high_better),
                str(len(r.tests)),
            ]
        )
    columns = ["constant", "value", "plan stays proved optimal, tested at", "that is", "below", "above", "solves"]
    lines = [table_text("", columns, rows, (6,), width, color), ""]
    lines.append(
        f"the plan ({amount(s.cost, problem)}, space {problem.space!r}) was proved optimal again at each end, one "
        f"constant moved at a time; grid x 1.01 .. x 100"
    )
    lines.append(
        "tested at the ends only: collective programs are chosen anew for every machine"
        if s.planning.machine.collectives is Collectives.SYNTHESISED
        else "links: in between the plan is optimal up to rounding (a plan's cost is linear in 1/bandwidth and "
        "latency); peaks and memory bandwidth: tested at the ends"
    )
    lines.extend(f"{name} cannot matter: {why}" for name, why in s.irrelevant)
    lines.extend(_measure_lines(s))
    if not s.complete:
        lines.append("time ran out: the constants not listed were not tested")
    return join_lines(lines)


def _measure_lines(s: Sensitivity) -> list[str]:
    """Which measurements would change the plan, the one of the largest regret first."""
    problem, changing = s.planning.problem, [m for m in s.measurements if m.regret]
    lines = []
    for m in changing:
        lost = f"another plan costs {amount(m.regret, problem)} less, which choosing now may lose"
        lines.append(f"measure {m.constant.name} (within {error_bound_text(m.bar)}): at x {float(m.factor):.4g} {lost}")
        lines.append(f"  {m.command}")
    if s.measurements and not changing:
        lines.append("no constant within its error bound makes another plan that was found better")
    return lines


def _beyond(factor: Fraction | None, better: tuple[int, int] | None) -> str:
    if factor is None:
        return "no other plan to the end of the grid"
    if better is None:
        return f"x {float(factor):.4g}: not closed"
    return f"x {float(factor):.4g}: another plan is {percent(better[1] - better[0], better[1])} better"


def _value(c: Constant, factor: Fraction) -> str:
    try:
        return show(c.value * factor, c.dimension)
    except (ValueError, ArithmeticError):
        return f"{float(c.value * factor):.4g}"
