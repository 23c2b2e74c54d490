"""What is planned on a pipeline, and what all numbers of stages share: graphs of micro-batches, and
what their units do and hold, each made once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ....models.layout.placement import Space
from ....models.machine.machine import Machine
from ....models.pipelines.division import Division, check_sums
from ....models.pipelines.exchange import Exchange, exchange
from ....models.pipelines.micro import Along, batch_test, micro_batch
from ....models.pipelines.nodes import single
from ....models.pipelines.work import Amounts, amounts, unit_live_bytes, unit_peak_bytes
from ....models.program.graph import Graph
from .phases import Memo
from .shelf import Shelf


@dataclass(frozen=True)
class Job:
    """What is planned: a training step, divided, on a machine; `forbidden`: what it goes without; `overlap`: whether
    reshardings run beside operators inside a phase; `shelf`: of tables that other searches of the job have built too.
    """

    graph: Graph
    division: Division
    machine: Machine
    where: Space
    memory: int | None
    forbidden: tuple[str, ...] = ()
    overlap: bool = False
    shelf: Shelf | None = field(default=None, compare=False, repr=False)
    orders: Memo = field(default_factory=dict, compare=False, repr=False)
    check_s: dict[tuple[int, int, bool], float] = field(default_factory=dict, compare=False, repr=False)
    """(stages, micro-batches, whether of nodes) -> processor seconds that the check of that problem takes, of all whose
    tables were built."""
    _graphs: dict[int, Graph] = field(default_factory=dict, compare=False, repr=False)
    _bytes: dict[int, tuple[list[int], list[int], list[int]]] = field(default_factory=dict, compare=False, repr=False)
    _amounts: dict[int, Amounts] = field(default_factory=dict, compare=False, repr=False)
    _exchanges: dict[tuple[int, ...], Exchange] = field(default_factory=dict, compare=False, repr=False)

    def micro_batch(self, micro: int) -> Graph:
        """The graph of a micro-batch, made once.  `InputError` names what stands in the way."""
        if micro not in self._graphs:
            if micro > 1 and all(m == 1 for m in self._graphs):
                check_sums(self.graph, self.division)
            self._graphs[micro] = micro_batch(self.graph, micro, self._along)
        return self._graphs[micro]

    @cached_property
    def single(self) -> bool:
        """Whether problems of nodes bound it (`models.pipelines.nodes`); micro-batches have the same indices."""
        return single(self.graph)

    @cached_property
    def _along(self) -> Along:
        return batch_test(self.graph)

    def amounts(self, micro: int) -> Amounts:
        """What the operators of every unit do for a micro-batch."""
        if micro not in self._amounts:
            self._amounts[micro] = amounts(self.micro_batch(micro), self.division)
        return self._amounts[micro]

    def exchange(self, ends: tuple[int, ...]) -> Exchange:
        """What stages that end before these units send each other once a step."""
        if ends not in self._exchanges:
            self._exchanges[ends] = exchange(self.graph, self.division, ends)
        return self._exchanges[ends]

    def unit_bytes(self, micro: int) -> tuple[list[int], list[int], list[int]]:
        """Least bytes per unit with micro-batches of this number: those that stay, those of every activation, and the
        most while its own operators run.
        """
        if micro not in self._bytes:
            graph = self.micro_batch(micro)
            fixed, kept = unit_live_bytes(graph, self.division, micro > 1)
            self._bytes[micro] = fixed, kept, unit_peak_bytes(graph, self.division)
        return self._bytes[micro]
