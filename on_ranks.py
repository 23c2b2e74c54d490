"""What runs here or on MPI ranks, for verbs of other rooms: times of programs and of their parts, work shared out, an
import compared with the program that it came from.

`formal.verbs.calibrate.Measurer` and `PartsMeasurer` say what is asked for; the front door is one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardproof.models.collective_programs.programs import Program, ReductionSystem
    from shardproof.models.communication.choices import Choices
    from shardproof.models.program.graph import Graph
    from shardproof.models.sources.building.original import Comparison, Original

    Times = list[tuple[int, int, tuple[float, ...]]]

Item = TypeVar("Item")
Found = TypeVar("Found")


class Ranks:
    """Modules are imported when the first is asked for: most commands run nothing."""

    def compare_import(self, graph: Graph, original: Original, wanted: bool, trained: bool) -> Comparison:
        """An imported graph beside the program that it came from."""
        from shardproof.backends.execution.differential import compare

        return compare(graph, original, wanted, trained)

    def measure(
        self, system: ReductionSystem, programs: Sequence[Program], payload: int, repeats: int, timeout_s: float
    ) -> list[tuple[float, ...]]:
        """Times of reduction programs on MPI ranks, for `formal.verbs.calibrate.Measurer`."""
        from shardproof.backends.execution.collective_programs import seconds_on_ranks

        return seconds_on_ranks(system, programs, payload, repeats, timeout_s)

    def measure_parts(
        self,
        graph: Graph,
        hierarchy: tuple[int, ...],
        candidates: Sequence[Choices],
        rounds: int,
        timeout_s: float,
        backend: str,
    ) -> tuple[Times, Times]:
        """Times of operators and reshardings on MPI ranks, for `formal.verbs.calibrate.PartsMeasurer`."""
        from shardproof.backends.execution.timing import seconds_of_parts

        return seconds_of_parts(graph, hierarchy, candidates, rounds, timeout_s, backend)

    def over_ranks(self, work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[tuple[Item, Found]]:
        """See `backends.execution.pool`."""
        from shardproof.backends.execution.pool import over_ranks

        return over_ranks(work, items)
