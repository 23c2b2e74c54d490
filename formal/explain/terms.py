"""What the cost of a plan is made of, term by term, in units of the problem.

    F(x) = constant + sum_v c_v[x_v] + sum_e T_e[..]
    c_v  = compute + statistics                    (max of compute and memory time, launch; all-reduce of softmax and
                                                   norm statistics)
    T_e  = summing + moving                        (L2), what partial results cost, and (L1), what the fetch costs
                                                   (models.communication.pricing)

Edges carry one rounding: `summing` is the (L2) part rounded up, `moving` the rest, so that the parts add up to the
table's entry.  Times at another machine are computed from the same loads (`cost_at`), without building tables: equal to
the entry that a build for that machine would have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np

from ...models.communication.choices import single
from ...models.communication.pricing import PairLoads, pair_loads, reduction_loads
from ...models.communication.reduction_programs import chooser_of
from ...models.communication.resharding import derive
from ...models.cost import cost
from ...models.cost.forms import operator_form
from ...models.cost.selection import Decision, DecisionKind, Planning
from ...models.layout.layout import LayoutSet
from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import SelectionProblem


class Names(Protocol):
    """What the parts of a problem are called, and what a choice means."""

    def vertex(self, v: int) -> str: ...
    def kind(self, v: int) -> str: ...
    def words(self, v: int, choice: int) -> str: ...
    def edge(self, e: int) -> str: ...
    def communication_of(self, e: int, x: tuple[int, ...]) -> str: ...


@dataclass(frozen=True, eq=False)
class PlainNames:
    """A problem that came as numbers."""

    problem: SelectionProblem

    def vertex(self, v: int) -> str:
        """Name of a vertex, its number if it has none."""
        return self.problem.vertices[v].name or f"vertex {v}"

    def kind(self, v: int) -> str:
        """Always `vertex`."""
        return "vertex"

    def words(self, v: int, choice: int) -> str:
        """`choice 3`."""
        return f"choice {choice}"

    def edge(self, e: int) -> str:
        """`u -> v`."""
        return f"{self.vertex(self.problem.edges[e].u)} -> {self.vertex(self.problem.edges[e].v)}"

    def communication_of(self, e: int, x: tuple[int, ...]) -> str:
        """The two choices."""
        return f"choices {x[self.problem.edges[e].u]}, {x[self.problem.edges[e].v]}"


@dataclass(frozen=True)
class EdgeParts:
    """`loads`, `phases` per level (elements into the busiest subtree of the level); `summing + moving` is the
    table's entry.
    """

    loads: tuple[int, ...]
    phases: tuple[int, ...]
    summing: int
    moving: int
    element_bytes: int


@dataclass(eq=False)
class PlanTerms:
    """Names and parts of a planning problem.  Equal structures are computed once."""

    planning: Planning
    _edges: dict[tuple[object, ...], tuple[EdgeParts, PairLoads]] = field(default_factory=dict)
    _moved: dict[tuple[int, int, int, int], str] = field(default_factory=dict)
    _operators: dict[tuple[int, int, Machine], int] = field(default_factory=dict)

    @property
    def unit(self) -> Fraction:
        """Of the problem's times, in seconds."""
        return Fraction(1, self.planning.problem.scale)

    def vertex(self, v: int) -> str:
        """Name of the operator, `copy of` tensor for a copy."""
        decision = self.planning.decisions[v]
        return ("copy of " if decision.kind is DecisionKind.COPY else "") + decision.name

    def kind(self, v: int) -> str:
        """`operator` or `copy`."""
        return self.planning.decisions[v].kind.value

    def words(self, v: int, choice: int) -> str:
        """The placement in words; dimensions of a copy are called as its writer (an input: its first reader) calls
        them.
        """
        decision = self.planning.decisions[v]
        p = decision.placement(choice)
        return Placement(self.letters(decision), p.matrix).words([level.name for level in self.planning.machine.levels])

    def letters(self, decision: Decision) -> tuple[str, ...]:
        """Names of the rows of a decision."""
        graph = self.planning.graph
        if decision.kind is DecisionKind.OPERATOR:
            return decision.axes
        writer = graph.writer()
        if decision.name in writer:
            index = graph.operators[writer[decision.name]].output.index
        else:
            index = next((graph.operators[i].inputs[j].index for i, j in graph.readers()[decision.name]), ())
        return tuple((index[int(k)].single if int(k) < len(index) else None) or f"dim {k}" for k in decision.axes)

    def edge(self, e: int) -> str:
        """`tensor -> operator`, or `tensor -> its copy`."""
        route = self.planning.routes[e]
        target = self.planning.decisions[route.target]
        return f"{route.tensor} -> " + ("its copy" if target.kind is DecisionKind.COPY else target.name)

    def communication_of(self, e: int, x: tuple[int, ...]) -> str:
        """The collective that the edge amounts to, `none` if nothing moves."""
        r = self.planning.routes[e]
        key = (
            id(r.layouts[0]),
            int(r.layouts[0].of_choice[x[r.source]]),
            id(r.layouts[1]),
            int(r.layouts[1].of_choice[x[r.target]]),
        )
        if key not in self._moved:
            parts = self.edge_parts(e, x)
            quiet = not any(parts.loads) and not any(parts.phases)
            self._moved[key] = "none" if quiet else derive(*self.planning.layouts_of(e, x)).collective()
        return self._moved[key]

    def edge_parts(self, e: int, x: tuple[int, ...]) -> EdgeParts:
        """Loads and time of an edge under the solution `x`."""
        return self._edge(e, x, self.planning.machine)[0]

    def priced_edge(self, e: int, x: tuple[int, ...]) -> tuple[EdgeParts, PairLoads]:
        """`edge_parts`, and what a machine's links and measured forms price (1 x 1)."""
        return self._edge(e, x, self.planning.machine)

    def _edge(self, e: int, x: tuple[int, ...], chosen_on: Machine) -> tuple[EdgeParts, PairLoads]:
        planning = self.planning
        r = planning.routes[e]
        a, b = r.layouts
        ia, ib = int(a.of_choice[x[r.source]]), int(b.of_choice[x[r.target]])
        size = planning.graph.tensor(r.tensor).element_bytes
        chooser = chooser_of(chosen_on, size)
        key = (id(a), ia, id(b), ib, size, chooser)
        if key not in self._edges:
            one_a, one_b = only(a, ia), only(b, ib)
            every = range(len(planning.machine.levels))
            pair = pair_loads(one_a, one_b, every, chooser)
            total = int(cost.edge_times(pair, size, planning.machine, self.unit)[0, 0])
            summing = 0
            digits = one_a.signatures[0]
            if digits:
                inside = np.array([[fetch_is_empty(one_a, one_b)]])
                ends = (one_a.volumes(), one_b.volumes())
                loads = reduction_loads(digits, one_b, inside, *ends, measured=every, chooser=chooser)
                summing = int(cost.edge_times(loads, size, planning.machine, self.unit)[0, 0])
            numbers = tuple(int(n[0, 0]) for n in pair.loads), tuple(int(n[0, 0]) for n in pair.phases)
            self._edges[key] = EdgeParts(*numbers, summing, total - summing, size), pair
        return self._edges[key]

    def operator_at(self, v: int, choice: int, machine: Machine) -> int:
        """Time of an operator under one placement on `machine`."""
        planning = self.planning
        key = (id(planning.costs[v]), choice, machine)
        if key not in self._operators:
            decision = planning.decisions[v]
            op = planning.graph.operator(decision.name)
            form = operator_form(op, planning.graph, decision.axes)
            tables = single(form.axes, decision.placement(choice), machine.hierarchy)
            self._operators[key] = int(cost.operator_costs(form, tables, machine, self.unit).times[0])
        return self._operators[key]

    def cost_at(self, x: tuple[int, ...], machine: Machine) -> int:
        """Cost of the solution on a machine of the same hierarchy: what
        `build(graph, machine, ..).problem.cost_of(x)` says.
        """
        if machine.hierarchy != self.planning.machine.hierarchy:
            raise ValueError(f"machine has hierarchy {machine.hierarchy}, the plan {self.planning.machine.hierarchy}")
        total = sum(self.operator_at(v, x[v], machine) for v in self.planning.operators.values())
        times: dict[int, int] = {}
        for e in range(len(self.planning.routes)):
            parts, pair = self._edge(e, x, machine)
            if id(pair) not in times:
                times[id(pair)] = int(cost.edge_times(pair, parts.element_bytes, machine, self.unit)[0, 0])
            total += times[id(pair)]
        return total + self.planning.problem.constant


def only(layouts: LayoutSet, i: int) -> LayoutSet:
    """The set that holds just the i-th layout."""
    dims = tuple(np.ascontiguousarray(t[layouts.codes[i, k]][None]) for k, t in enumerate(layouts.dims))
    zero = np.zeros(1, dtype=np.int64)
    return LayoutSet(
        layouts.hierarchy,
        layouts.shape,
        dims,
        np.zeros((1, len(dims)), dtype=np.int64),
        (layouts.signatures[int(layouts.signature[i])],),
        zero,
        zero,
        layouts.combine,
        layouts.coupled,
    )


def fetch_is_empty(a: LayoutSet, b: LayoutSet) -> bool:
    """Every device already holds what it needs (both sets hold one layout)."""
    need = [t[0] for t in b.dims]
    empty = np.zeros(need[0].shape[0] if need else 1, dtype=bool)
    covered = np.ones_like(empty)
    for have, want in zip((t[0] for t in a.dims), need, strict=True):
        empty |= want[:, 0] >= want[:, 1]
        covered &= (have[:, 0] <= want[:, 0]) & (want[:, 1] <= have[:, 1])
    return bool((empty | covered).all())
