"""Computes communication constraints as formulas in the process coordinates: which part of every operand a
rank reads or writes.

    process grid     p_a = rank along axis a, 0 <= p_a < P_a; from the coordinates c of the machine's levels:
                     digit of a at level j = floor(c_j / s_aj) mod X_aj,  p_a = the digits of all levels as one
                     mixed-radix number
    rank tiling      axis a of extent n in blocks of b = ceil(n / P_a):   [ b p_a, min(n, b p_a + b) )
    operand          dimension  sum coef * a + offset  of extent N, axis by axis:   [ max(0, low), min(N, high) ),
                     low = offset + sum coef * b p_a,   high = offset + 1 + sum coef * (min(n, b p_a + b) - 1);  empty
                                                        where a block is
    partial          an output is a part of a sum along p_a of every reduction axis a with P_a > 1

SymPy only prints: what is planned, moved and checked are integer tables (`models.layout.layout`), and tests compare the
two on every rank.

Source: thesis on automatic partitioning of array programs, chapters 3 (rank tiling) and 4 (communication constraints).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.program.index import Access
from ...models.program.operators import Operator
from ...proofs.plan.bundle import Plan
from ..plans.strategy import StrategyError

if TYPE_CHECKING:
    from sympy import Expr

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Process:
    """Coordinate of the process grid along one axis; `value` in the coordinates of the levels."""

    axis: str
    size: int
    extent: int
    value: Expr
    low: Expr
    high: Expr


@dataclass(frozen=True, eq=False)
class Constraint:
    """`dims[k]`: [low, high) of dimension k in process coordinates; nothing is touched where the block of one of
    `axes[k]` is empty.

    `role`: "reads" or "writes"; `summed`: axes along whose process coordinate a written value is a part of a sum.
    """

    role: str
    tensor: str
    shape: tuple[int, ...]
    dims: tuple[tuple[Expr, Expr], ...]
    axes: tuple[tuple[str, ...], ...]
    summed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Constraints:
    """Of one operator under one placement."""

    operator: str
    levels: tuple[str, ...]
    hierarchy: tuple[int, ...]
    grid: tuple[Process, ...]
    operands: tuple[Constraint, ...]

    def box(self, constraint: Constraint, rank: int) -> Box:
        """The formulas of an operand, evaluated for a rank; (0, 0) in every dimension that is empty."""
        at = {}
        for j, size in enumerate(self.hierarchy):
            at[_level(self.levels[j])] = rank // prod(self.hierarchy[j + 1 :]) % size
        process = {_process(p.axis): p.value.subs(at) for p in self.grid}
        block = {p.axis: (int(p.low.subs(process)), int(p.high.subs(process))) for p in self.grid}
        out = []
        for (low, high), axes in zip(constraint.dims, constraint.axes, strict=True):
            values = int(low.subs(process)), int(high.subs(process))
            empty = any(block[a][0] >= block[a][1] for a in axes if a in block)
            out.append((0, 0) if empty or values[0] >= values[1] else values)
        return tuple(out)


def _level(name: str) -> Expr:
    from sympy import Symbol

    return Symbol(f"c_{name}", integer=True, nonnegative=True)


def _process(axis: str) -> Expr:
    from sympy import Symbol

    return Symbol(f"p_{axis}", integer=True, nonnegative=True)


def constraints(op: Operator, graph: Graph, placement: Placement, machine: Machine) -> Constraints:
    """The constraints of an operator; axes that are not split have no process coordinate.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.machine.machine import load_machine
    >>> g = Builder("g")
    >>> graph = g.build(g.contract("y", "b k, k n -> b n", g.input("x", (8, 6)), g.parameter("w", (6, 5))))
    >>> found = constraints(graph.operators[0], graph, Placement(("b", "n", "k"), ((2,), (2,), (1,), (1,))),
    ...     load_machine("localhost:4"))
    >>> print("\\n".join(render(found)))
    y on a process grid of b 2, n 2
      p_b = floor(c_ranks/2)          b in [4*p_b, 4*p_b + 4)
      p_n = Mod(c_ranks, 2)           n in [3*p_n, Min(5, 3*p_n + 3))
      reads  x[4*p_b : 4*p_b + 4, :]
      reads  w[:, 3*p_n : Min(5, 3*p_n + 3)]
      writes y[4*p_b : 4*p_b + 4, 3*p_n : Min(5, 3*p_n + 3)]
    """
    import sympy

    levels = tuple(level.name for level in machine.levels)
    extent = {a.name: a.extent for a in op.axes}
    grid = []
    for i, axis in enumerate(placement.axes):
        row, below = placement.matrix[i], [prod(r[j] for r in placement.matrix[i + 1 :]) for j in range(len(levels))]
        size, n = prod(row), extent[axis]
        if size == 1:
            continue
        value = sympy.Integer(0)
        for j, (degree, stride) in enumerate(zip(row, below, strict=True)):
            if degree > 1:
                digit = sympy.floor(_level(levels[j]) / stride)
                value = value * degree + (
                    digit if degree * stride == machine.levels[j].size else sympy.Mod(digit, degree)
                )
        block = -(-n // size)
        low = block * _process(axis)
        high = low + block if n % size == 0 else sympy.Min(n, low + block)
        grid.append(Process(axis, size, n, value, low, high))
    known = {p.axis: (p.low, p.high) for p in grid}
    for name, n in extent.items():
        known.setdefault(name, (sympy.Integer(0), sympy.Integer(n)))
    inputs = [_constraint("reads", a, graph, known, extent) for a in op.inputs]
    summed = tuple(p.axis for p in grid if op.axis(p.axis).combine is not None)
    output = _constraint("writes", op.output, graph, known, extent, summed)
    return Constraints(op.name, levels, machine.hierarchy, tuple(grid), (*inputs, output))


def _constraint(
    role: str,
    a: Access,
    graph: Graph,
    known: dict[str, tuple[Expr, Expr]],
    extent: dict[str, int],
    summed: tuple[str, ...] = (),
) -> Constraint:
    import sympy

    shape = graph.tensor(a.tensor).shape
    dims = []
    for index, size in zip(a.index, shape, strict=True):
        if index.whole:
            dims.append((sympy.Integer(0), sympy.Integer(size)))
            continue
        low = sum((coef * known[name][0] for name, coef in index.terms), sympy.Integer(index.offset))
        high = sum((coef * (known[name][1] - 1) for name, coef in index.terms), sympy.Integer(index.offset + 1))
        reach = index.offset + 1 + sum(coef * (extent[name] - 1) for name, coef in index.terms)
        dims.append((sympy.Max(0, low) if index.offset < 0 else low, sympy.Min(size, high) if reach > size else high))
    return Constraint(
        role, a.tensor, shape, tuple(dims), tuple(tuple(name for name, _ in index.terms) for index in a.index), summed
    )


def plan_constraints(plan: Plan, name: str) -> Constraints:
    """The constraints of an operator of a plan.  Raises `StrategyError` naming the operators if there is none of
    this name.
    """
    op = next((op for op in plan.graph.operators if op.name == name), None)
    if op is None:
        names = ", ".join(o.name for o in plan.graph.operators[:12])
        raise StrategyError(
            "--op",
            f"the plan has no operator {name!r}",
            f"operators: {names}{', ..' if len(plan.graph.operators) > 12 else ''}",
        )
    return constraints(op, plan.graph, plan.choices.of_operator(name), plan.machine)


def render(found: Constraints) -> list[str]:
    """The formulas as text."""
    lines = [
        f"{found.operator} on a process grid of "
        + (", ".join(f"{p.axis} {p.size}" for p in found.grid) or "one process")
    ]
    for p in found.grid:
        lines.append(f"  p_{p.axis} = {p.value}".ljust(34) + f"{p.axis} in [{p.low}, {p.high})")
    for c in found.operands:
        dims = ", ".join(
            ":" if (low, high) == (0, size) else f"{low} : {high}"
            for (low, high), size in zip(c.dims, c.shape, strict=True)
        )
        parts = f"  a part of the sum along {', '.join(f'p_{a}' for a in c.summed)}" if c.summed else ""
        lines.append(f"  {c.role:<6} {c.tensor}[{dims}]{parts}")
    return lines


def to_json(found: Constraints) -> dict[str, object]:
    """The same as plain data; formulas as SymPy text."""
    return {
        "operator": found.operator,
        "grid": [
            {"axis": p.axis, "size": p.size, "process": str(p.value), "low": str(p.low), "high": str(p.high)}
            for p in found.grid
        ],
        "operands": [
            {
                "role": c.role,
                "tensor": c.tensor,
                "dims": [[str(a), str(b)] for a, b in c.dims],
                "part_of_sum_along": list(c.summed),
            }
            for c in found.operands
        ],
    }
