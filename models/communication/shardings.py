"""All layouts of a plan as shardings over one mesh: what every operator reads and writes, and where
every tensor rests.

    reads[o, i]   the layout in which operator o takes its input i
    writes[o]     the layout in which it leaves its result, partial over the reduction axes that were split
    rests[t]      the layout in which tensor t is kept: that of its copy; of a tensor without one, what its one reader
                  takes; of an output that nobody reads, what its operator writes

Layouts that are no sharding (`models.layout.sharding`) are listed with the reason, none is left out in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..layout.layout import Layout
from ..layout.mesh import Mesh, mesh
from ..layout.sharding import Sharding, ShardingError, sharding
from ..program.graph import Graph
from .choices import Choices, copy_layout, input_layout, output_layout, resting_places


@dataclass(frozen=True)
class NotASharding:
    """`place` (an operator, its input, a tensor) has a layout that no mesh dimension says."""

    place: str
    tensor: str
    reason: str


@dataclass(frozen=True)
class PlanShardings:
    """See the module docstring.  Keys that are missing are in `refused`."""

    mesh: Mesh
    reads: dict[tuple[str, int], Sharding]
    writes: dict[str, Sharding]
    rests: dict[str, Sharding]
    refused: tuple[NotASharding, ...]

    @property
    def count(self) -> int:
        """Layouts that are said."""
        return len(self.reads) + len(self.writes) + len(self.rests)


def plan_shardings(graph: Graph, hierarchy: tuple[int, ...], levels: Sequence[str], choices: Choices) -> PlanShardings:
    """All layouts of a plan.  `levels`: names of the machine's levels.  Raises `MeshError` where no mesh holds all
    placements.
    """
    placements, copies = dict(choices.operators), dict(choices.copies)
    where = mesh(hierarchy, levels, (*placements.values(), *copies.values()))
    known: dict[tuple[object, ...], Sharding | ShardingError] = {}
    refused: list[NotASharding] = []

    def sharding_of(place: str, tensor: str, layout: Layout) -> Sharding | None:
        key = (layout.shape, layout.boxes.tobytes(), layout.open, layout.combine)
        if key not in known:
            try:
                known[key] = sharding(layout, where)
            except ShardingError as error:
                known[key] = error
        found = known[key]
        if isinstance(found, ShardingError):
            refused.append(NotASharding(place, tensor, str(found)))
            return None
        return found

    reads, writes, rests = {}, {}, {}
    places, readers = resting_places(graph), graph.readers()
    for op in graph.operators:
        for i, a in enumerate(op.inputs):
            taken = sharding_of(
                f"input {i} of operator {op.name!r}",
                a.tensor,
                input_layout(op, i, graph, placements[op.name], hierarchy),
            )
            if taken is not None:
                reads[op.name, i] = taken
        left = sharding_of(
            f"result of operator {op.name!r}",
            op.output.tensor,
            output_layout(op, graph, placements[op.name], hierarchy),
        )
        if left is not None:
            writes[op.name] = left
    writer = graph.writer()
    for t in graph.tensors:
        if t.name in places:
            kept = sharding_of(
                f"tensor {t.name!r}", t.name, copy_layout(t.name, graph, copies[places[t.name]], hierarchy)
            )
        elif readers[t.name]:
            i, j = readers[t.name][0]
            kept = reads.get((graph.operators[i].name, j))
        else:
            kept = writes.get(graph.operators[writer[t.name]].name) if t.name in writer else None
        if kept is not None:
            rests[t.name] = kept
    return PlanShardings(where, reads, writes, rests, tuple(refused))
