"""Facts about a selection problem that every record needs, and exact evaluation of one solution.

No bound is computed here; `evaluate` works in Python integers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ..budget import Budget
from .layout import Flat

Bound = int | float
"""A Python integer, or plus or minus infinity.  Python compares integers with infinite floats exactly; no other
float occurs.
"""

INFINITE: Final = math.inf

Domains = list[Ints]
"""D: for every vertex the sorted numbers of the choices left."""


class Refuted(Exception):
    """The certificate states something false.  `place` names the part."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")


@dataclass
class Facts:
    """What the evaluation of a proof came across."""

    cheapest: tuple[int, tuple[int, ...]] | None = None  # cheapest feasible solution met in a Point record
    steps: set[int] = field(default_factory=set)  # rows that a RowConflict record or an OVERFULL entry rests on
    vertices: set[int] = field(default_factory=set)  # vertices with a term in these
    met_steps: set[int] = field(default_factory=set)  # those, and where a Point is over the limit
    met_vertices: set[int] = field(default_factory=set)  # vertices that some record looked at
    size: int = 0  # vertices of the claim's problem

    def rests_on(self, steps: set[int]) -> None:
        self.steps |= steps
        self.met_steps |= steps

    def looks_at_all(self) -> None:
        """A record whose number comes from costs looks at every vertex."""
        if len(self.met_vertices) < self.size:
            self.met_vertices.update(range(self.size))


class Ground:
    """A problem with the sizes of its numbers and its incidences.

    `steps`: None for the claim's problem; for a reduced one the steps of the claim's problem that its steps stand for.
    `fine_bits`: what is shown about int64 costs counts 2**fine_bits times, since costs have a fine part that is never
    negative.  `budget`: that of the whole certificate; `parts`: vertices, edges and usages, each of which costs `PART`
    cells in a record.
    """

    def __init__(
        self, problem: SelectionProblem, steps: Ints | None = None, fine_bits: int = 0, budget: Budget | None = None
    ) -> None:
        self.problem = problem
        self.budget = Budget.of(number_count(problem)) if budget is None else budget
        self.parts = len(problem.vertices) + len(problem.edges) + len(problem.usages)
        self.steps = steps
        self.fine_bits = fine_bits
        self.full: Domains = [np.arange(v.cost.size, dtype=np.int64) for v in problem.vertices]
        self.edges_at: list[list[int]] = [[] for _ in problem.vertices]
        for e, edge in enumerate(problem.edges):
            self.edges_at[edge.u].append(e)
            self.edges_at[edge.v].append(e)
        self.usages_at: list[list[int]] = [[] for _ in problem.vertices]
        for a, usage in enumerate(problem.usages):
            self.usages_at[usage.vertex].append(a)
        self.tables = [size_of(table) for table in problem.tables]
        self.costs = [size_of(vertex.cost) for vertex in problem.vertices]
        self.flat = Flat(problem)

    def original_step(self, t: int) -> int:
        """The step of the claim's problem that step `t` stands for (steps outside a reduced problem, where nothing
        is used: -1).
        """
        return t if self.steps is None else int(self.steps[t]) if 0 <= t < self.steps.size else -1

    def coarse(self, ub: Bound) -> Bound:
        """ceil(ub / 2**fine_bits): an x whose coarse cost is at least this costs at least `ub`."""
        return -(-ub >> self.fine_bits) if isinstance(ub, int) else ub

    def exact(self, bound: Bound) -> Bound:
        """What a bound on coarse costs says about costs."""
        return bound << self.fine_bits if isinstance(bound, int) else bound

    def name(self, v: int) -> str:
        return f"vertex {v} {self.problem.vertices[v].name!r}"


def number_count(problem: SelectionProblem) -> int:
    """Numbers that the problem holds: every array once, and those that describe a vertex, an edge, a usage."""
    arrays = [*(v.cost for v in problem.vertices), *problem.tables, *(u.amount for u in problem.usages)]
    arrays += [index for e in problem.edges for index in (e.rows, e.cols) if index is not None]
    return 4 * (len(problem.vertices) + len(problem.edges) + len(problem.usages)) + sum(
        {id(a): a.size for a in arrays}.values()
    )


def size_of(a: Ints) -> tuple[int, bool]:
    """(largest |entry| below FORBIDDEN, whether an entry is forbidden) in Python integers; (0, False) for an empty
    array.
    """
    if a.size == 0:
        return 0, False
    low, high = int(a.min()), int(a.max())
    if high < FORBIDDEN:
        return max(abs(low), abs(high)), False
    allowed = a[a < FORBIDDEN]
    return (max(abs(low), abs(int(allowed.max()))) if allowed.size else 0), True


def evaluate(problem: SelectionProblem, x: tuple[int, ...], limit: int | None) -> tuple[int, str]:
    """(cost of `x`, "" or why it is not feasible under `limit`); `Refuted` if `x` is not one choice per vertex."""
    if len(x) != len(problem.vertices):
        raise Refuted("solution", f"has {len(x)} choices for {len(problem.vertices)} vertices")
    total, wrong = problem.constant, ""
    for i, (choice, vertex) in enumerate(zip(x, problem.vertices, strict=True)):
        if type(choice) is not int or not 0 <= choice < vertex.cost.size:
            raise Refuted(
                f"solution, vertex {i} {vertex.name!r}", f"choice {choice!r} is not in 0..{vertex.cost.size - 1}"
            )
        entry = int(vertex.cost[choice])
        total += entry
        if entry >= FORBIDDEN:
            wrong = wrong or f"choice {choice} of vertex {i} {vertex.name!r} is forbidden"
    for i, edge in enumerate(problem.edges):
        row = x[edge.u] if edge.rows is None else int(edge.rows[x[edge.u]])
        col = x[edge.v] if edge.cols is None else int(edge.cols[x[edge.v]])
        entry = int(problem.tables[edge.table][row, col])
        total += entry
        if entry >= FORBIDDEN:
            wrong = wrong or f"edge {i} ({edge.u}, {edge.v}) is at a forbidden pair"
    total = (total << problem.fine_bits) + _fine_cost(problem, x)
    if limit is not None:
        peak, step = peak_usage(problem, x)
        if peak > limit:
            wrong = wrong or f"usage {peak} at step {step} is above the limit {limit}"
    return total, wrong


def _fine_cost(problem: SelectionProblem, x: tuple[int, ...]) -> int:
    if problem.fine is None:
        return 0
    parts = problem.fine_parts()
    total = sum(int(part[choice]) for part, choice in zip(parts, x, strict=False))
    for edge in problem.edges:
        row = x[edge.u] if edge.rows is None else int(edge.rows[x[edge.u]])
        col = x[edge.v] if edge.cols is None else int(edge.cols[x[edge.v]])
        total += int(parts[len(x) + edge.table][row, col])
    return total


def peak_usage(problem: SelectionProblem, x: tuple[int, ...]) -> tuple[int, int]:
    """(largest total usage at a step, that step): one sweep over the ends of all intervals, in Python integers."""
    change: dict[int, int] = {}
    for usage in problem.usages:
        if usage.start < usage.end:
            amount = int(usage.amount[x[usage.vertex]])
            change[usage.start] = change.get(usage.start, 0) + amount
            change[usage.end] = change.get(usage.end, 0) - amount
    best, when, now = 0, 0, 0
    for step in sorted(change):
        now += change[step]
        if now > best:
            best, when = now, step
    return best, when


def check_multipliers(problem: SelectionProblem, multipliers: tuple[tuple[int, int], ...], place: str) -> None:
    """Resource rows may be multiplied by integers n_t > 0 only, and only where the problem has a limit."""
    if multipliers and problem.limit is None:
        raise Refuted(place, "multiplies resource rows, but the problem has no limit")
    last: int | None = None
    for t, n in multipliers:
        if type(t) is not int or type(n) is not int:
            raise Refuted(place, f"multiplier ({t!r}, {n!r}) is not a pair of integers")
        if last is not None and t <= last:
            raise Refuted(place, f"steps of multipliers do not ascend at {t}")
        if n <= 0:
            raise Refuted(place, f"multiplier {n} of step {t} is not positive")
        last = t


def live_multipliers(problem: SelectionProblem, multipliers: tuple[tuple[int, int], ...]) -> list[int]:
    """For every usage [s, e): the sum of n_t over s <= t < e, by prefix sums."""
    steps = [t for t, _ in multipliers]
    prefix = [0]
    for _, n in multipliers:
        prefix.append(prefix[-1] + n)
    out = []
    for u in problem.usages:
        out.append(prefix[bisect_left(steps, u.end)] - prefix[bisect_left(steps, u.start)] if u.start < u.end else 0)
    return out


def weighted_usage(ground: Ground, v: int, domain: Ints, live: list[int], other: int = 0) -> tuple[Ints | None, int]:
    """(sum over usages a of v of live_a * amount_a, on `domain`, or None for zero; a bound of its entries).

    int64 when the bound plus `other` (what the caller will add) stays below 2**62, Python integers otherwise.
    """
    terms = [(live[a], ground.problem.usages[a].amount) for a in ground.usages_at[v] if live[a]]
    if not terms:
        return None, 0
    parts = [(n, amount[domain]) for n, amount in terms]
    bound = sum(n * int(part.max()) for n, part in parts)
    kind: type = np.int64 if bound + other < 1 << 62 else object
    total: Ints = np.zeros(domain.size, dtype=kind)
    for n, part in parts:
        if int(part.max()):  # then n <= bound fits as well
            total = total + n * part.astype(kind)
    return total, bound
