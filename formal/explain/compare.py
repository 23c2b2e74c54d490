"""Computes the difference between two solutions of one problem, term by term.

    F(y) - F(x) = sum_v (c_v[y_v] - c_v[x_v]) + sum_e (T_e(y) - T_e(x))

Every vertex or edge that differs is in exactly one row; rows whose names agree up to numbers and whose words and costs
agree are one row with a count (repeated layers).  The rows add up to the difference exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ...models.problem.selection_problem import SelectionProblem
from ...models.text import join_lines
from ..plans.report import amount, label, pattern, percent, table_text
from .terms import Names


@dataclass(frozen=True)
class Row:
    """`count` equal terms.  Costs are of one of them; `first`, `second`: what each solution chose there."""

    kind: str
    names: tuple[str, ...]
    first: str
    second: str
    first_cost: int
    second_cost: int

    @property
    def count(self) -> int:
        """Number of terms in the row."""
        return len(self.names)

    @property
    def difference(self) -> int:
        """Second minus first, over all terms of the row."""
        return self.count * (self.second_cost - self.first_cost)


@dataclass(frozen=True, eq=False)
class Comparison:
    """`rows`: largest difference first.  Costs in units of `problem`."""

    problem: SelectionProblem
    first_cost: int
    second_cost: int
    rows: tuple[Row, ...]

    @property
    def difference(self) -> int:
        """Cost of the second minus cost of the first."""
        return self.second_cost - self.first_cost

    def __str__(self) -> str:
        return str(render_comparison(self, "the first", "the second"))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> dict[str, object]:
        """Plain data; costs in units of the problem."""
        return {
            "first_cost": self.first_cost,
            "second_cost": self.second_cost,
            "difference": self.difference,
            "rows": [
                {
                    "kind": r.kind,
                    "label": label(r.names),
                    "count": r.count,
                    "names": list(r.names),
                    "first": r.first,
                    "second": r.second,
                    "first_cost": r.first_cost,
                    "second_cost": r.second_cost,
                    "difference": r.difference,
                }
                for r in self.rows
            ],
        }


def compare(problem: SelectionProblem, names: Names, x: tuple[int, ...], y: tuple[int, ...]) -> Comparison:
    """Every term in which the solutions `x` and `y` differ."""
    groups: dict[tuple[str, str, str, str, int, int], list[str]] = {}

    def add(kind: str, name: str, first: str, second: str, a: int, b: int) -> None:
        groups.setdefault((kind, pattern(name), first, second, a, b), []).append(name)

    for v in range(len(problem.vertices)):
        if x[v] != y[v]:
            add(
                names.kind(v),
                names.vertex(v),
                names.words(v, x[v]),
                names.words(v, y[v]),
                problem.vertex_cost(v, x[v]),
                problem.vertex_cost(v, y[v]),
            )
    for e, edge in enumerate(problem.edges):
        a, b = problem.edge_cost(e, x), problem.edge_cost(e, y)
        if a != b and (x[edge.u], x[edge.v]) != (y[edge.u], y[edge.v]):
            add("move", names.edge(e), names.communication_of(e, x), names.communication_of(e, y), a, b)
    rows = [Row(key[0], tuple(members), *key[2:]) for key, members in groups.items()]
    rows.sort(key=lambda r: (-abs(r.difference), r.names))
    return Comparison(problem, problem.cost_of(x), problem.cost_of(y), tuple(rows))


def render_comparison(
    c: Comparison, first: str, second: str, most: int = 40, width: int = 160, color: bool = False
) -> str:
    """A table of the rows with a difference, and how many others only look different."""
    problem = c.problem
    shown = [r for r in c.rows if r.difference][:most]
    rows = [
        [
            label(r.names),
            f"x{r.count}" if r.count > 1 else "",
            r.first,
            r.second,
            amount(r.count * r.first_cost, problem),
            amount(r.count * r.second_cost, problem),
            amount(r.difference, problem, signed=True),
        ]
        for r in shown
    ]
    rest = [r for r in c.rows if r.difference][most:]
    if rest:
        rows.append(
            [
                f"{len(rest)} more",
                f"x{sum(r.count for r in rest)}",
                "",
                "",
                "",
                "",
                amount(sum(r.difference for r in rest), problem, signed=True),
            ]
        )
    rows.append(
        [
            "total",
            "",
            "",
            "",
            amount(c.first_cost, problem),
            amount(c.second_cost, problem),
            amount(c.difference, problem, signed=True),
        ]
    )
    even = sum(r.count for r in c.rows if not r.difference)
    text = table_text(
        f"{first} against {second}",
        ["term", "", first, second, f"{first}, time", f"{second}, time", "difference"],
        rows,
        (4, 5, 6),
        width,
        color,
    )
    notes = [f"the difference is {percent(c.difference, c.first_cost)} of {first}"] if c.first_cost else []
    if even:
        notes.append(f"{even} more choices differ at the same cost")
    return join_lines([text, *notes])
