"""What a training step did, in words: its loss, the parameters it has renewed, the memory its ranks
have held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...models.cost.selection import build
from ...models.layout.placement import space
from ...models.program.graph import Graph
from ...proofs.plan.bundle import Plan
from ..kernels import Array

Difference = Callable[[Array, Array], float]


def losses(graph: Graph, outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, tuple[float, float]]:
    """Scalar outputs of a training step: on the ranks, in one process.  Empty for a graph without a state."""
    scalars = [name for name in graph.outputs if graph.state and graph.tensor(name).shape == ()]
    return {name: (float(outputs[name]), float(expected[name])) for name in scalars}


def worst_parameter(
    graph: Graph, outputs: Mapping[str, Array], expected: Mapping[str, Array], difference: Difference
) -> tuple[str, float] | None:
    """The parameter whose next value differs most from that of one process, and by how much; None without a state."""
    found = [(difference(outputs[value], expected[value]), name) for name, value in graph.state]
    worst, name = max(found, default=(0.0, ""))
    return (name, worst) if found else None


def step_lines(
    graph: Graph, outputs: Mapping[str, Array], expected: Mapping[str, Array], difference: Difference
) -> list[str]:
    """Loss and renewed parameters as lines."""
    lines = [
        f"{name} {here!r}, in one process {there!r}" for name, (here, there) in losses(graph, outputs, expected).items()
    ]
    if (worst := worst_parameter(graph, outputs, expected, difference)) is not None:
        lines.append(
            f"{len(graph.state)} renewed parameters and moments: largest difference from one process "
            f"{worst[1]:.2e}, at {worst[0]}"
        )
    return lines


def predicted_peak(plan: Plan) -> int | None:
    """Bytes on the fullest device by the plan's memory rows; None for a plan without a limit."""
    if plan.memory_limit is None:
        return None
    planning = build(plan.graph, plan.machine, space(plan.space), plan.memory_limit)
    return planning.problem.peak_of(planning.solution(plan.choices))[0]
