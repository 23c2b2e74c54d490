"""What every operator of a plan costs and why: flops, bytes, and the formula that decided.

    compute   t = flops / peak + launch                     on the slowest device; flops and bytes are those of the
    busiest one
    memory    t = bytes / memory bandwidth + launch
    measured  t from the machine's profile                   (`models.machine.parts.Profile`)
    product   t from the measured form of products           (`models.machine.measured`)
    attention t from the measured form of attention
    + statistics                                             all-reduce of the statistics of a split softmax or
    normalisation

The numbers are those of the selection problem: the times add up to the operators' share of the plan's cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import assert_never

from ...models.cost.cost import FORMULAS, Formula
from ...models.cost.selection import Planning
from ...models.machine.quantities import show
from ...models.problem.selection_problem import SelectionProblem
from ...models.text import join_lines
from ..plans.report import amount, bytes_text, label, pattern, table_text
from .terms import PlanTerms


@dataclass(frozen=True)
class CostRow:
    """One operator under its placement: `flops`, `bytes` of the busiest device, times in units of the problem."""

    operator: str
    function: str
    placement: str
    flops: int
    bytes: int
    formula: str
    busy: int
    statistics: int

    @property
    def time(self) -> int:
        """Both parts."""
        return self.busy + self.statistics

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "time": self.time}


def cost_table(planning: Planning, x: tuple[int, ...]) -> tuple[CostRow, ...]:
    """One row per operator, in the order of the graph.

    >>> from ...models.machine.machine import load_machine
    >>> from ...models.layout.placement import space
    >>> from ...models.cost.selection import build
    >>> from ...models.sources.zoo import build as zoo
    >>> planning = build(zoo("mlp-unity"), load_machine("localhost:2"), space("complete"))
    >>> [(r.operator, r.formula) for r in cost_table(planning, (0, 0, 0, 0))]
    [('fc1', 'compute'), ('relu1', 'memory'), ('fc2', 'compute')]
    """
    terms, rows = PlanTerms(planning), []
    for op in planning.graph.operators:
        v = planning.operators[op.name]
        costs, choice = planning.costs[v], x[v]
        if costs is None:  # only copies have none
            continue
        statistics = int(costs.reduction[choice])
        formula = _word(FORMULAS[int(costs.decided[choice])]) + (" + statistics" if statistics else "")
        rows.append(
            CostRow(
                op.name,
                op.function,
                terms.words(v, choice),
                int(costs.flops[choice]),
                int(costs.bytes[choice]),
                formula,
                int(costs.compute[choice]),
                statistics,
            )
        )
    return tuple(rows)


def _word(formula: Formula) -> str:
    match formula:
        case Formula.COMPUTE:
            return "compute"
        case Formula.MEMORY:
            return "memory"
        case Formula.PROFILE:
            return "measured"
        case Formula.PRODUCT:
            return "product"
        case Formula.ATTENTION:
            return "attention"
        case _:
            assert_never(formula)


def render_cost_table(planning: Planning, rows: Sequence[CostRow], width: int = 170, color: bool = False) -> str:
    """The table as text, equal operators of repeated layers in one row; then the formulas with the machine's
    constants.
    """
    problem = planning.problem
    groups: dict[tuple[object, ...], list[CostRow]] = {}
    for r in rows:
        groups.setdefault(
            (pattern(r.operator), r.function, r.placement, r.flops, r.bytes, r.formula, r.busy, r.statistics), []
        ).append(r)
    lines = []
    for members in groups.values():
        one, n = members[0], len(members)
        lines.append(
            [
                label([m.operator for m in members]),
                f"x{n}" if n > 1 else "",
                one.placement,
                f"{one.flops:.4g}" if one.flops else "-",
                bytes_text(one.bytes),
                one.formula,
                amount(one.time, problem),
                amount(n * one.time, problem) if n > 1 else "",
            ]
        )
    lines.append(["all operators", "", "", "", "", "", amount(sum(r.time for r in rows), problem), ""])
    columns = ["operator", "", "placement", "flops", "bytes", "formula", "time of one", "of all"]
    return join_lines([table_text("", columns, lines, (3, 4, 6, 7), width, color), "", *_formulas(planning, problem)])


def _formulas(planning: Planning, problem: SelectionProblem) -> list[str]:
    machine, graph = planning.machine, planning.graph
    used = {graph.computed_in(op) for op in graph.operators if graph.flops_per_point(op)}
    out = ["flops and bytes are those of the busiest device; the time is that of the slowest one"]
    for device in machine.classes:
        peaks = ", ".join(f"{show(rate, 'flops')} ({dtype})" for dtype, rate in device.peaks if dtype in used)
        out.append(
            f"{device.name}: compute = flops / {peaks or 'peak'}; memory = bytes / "
            f"{show(device.bandwidth, 'rate')}; launch {show(device.launch, 'time')}"
        )
        for form in (p for p in device.products if p.dtype in used):
            out.append(
                f"{device.name}: product ({form.dtype}) = the best of {len(form.tiles)} measured tiles in waves over "
                f"{form.processors} processors, or its bytes; launch {show(form.launch, 'time')}"
            )
        for seen in (a for a in device.attentions if a.dtype in used):
            rate = show(1 / seen.pace, "flops") if seen.pace else "no limit"
            pair, row, launch = (show(x, "time") for x in (seen.pair, seen.row, seen.launch))
            out.append(
                f"{device.name}: attention ({seen.dtype}, {seen.direction}) = pairs, and those of blocks of 128 "
                f"queries that are not full, at {rate} + {pair} a pair, {row} a query, or its bytes; launch {launch}"
            )
    if machine.profiles:
        out.append(f"measured: one of {len(machine.profiles)} times in the machine's profile, launch included")
    return out
