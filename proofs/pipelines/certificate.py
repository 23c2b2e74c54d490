"""A pipelined training step and why none of those enumerated is much faster.

enumerated   pairs (stages, micro-batches); for each every cut between units, every placement of the space on equal
             views of the machine, every schedule whose backward is one piece
step         = makespan of the pipeline's schedule + the longest update of a stage
interleaved  triples (views, micro-batches, chunks per view), likewise
proved       step >= lower bound, for every pair and triple: the programs of `models.pipelines.bound`, `.cuts` and
             `.interleaved` over least work and the leaves listed here
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.communication.choices import Choices
from ...models.machine.machine import Machine
from ...models.pipelines.channels import Channels
from ...models.pipelines.division import Division
from ...models.program.graph import Graph
from ..schedules.certificate import ScheduleCertificate
from ..selection.certificates import SelectionCertificate


@dataclass(frozen=True, eq=False)
class Leaf:
    """Units first .. end-1 on a view of `stages`, with `micro` micro-batches, and all runs of units equal to them, take
    at least `bound` picoseconds for forward and backward of `times` micro-batches (1 or all), with `once` and the
    updates of a step.  `phase`: "F" or "B" of one micro-batch alone, of one without updates.  `nodes`: the certificate
    is about the problem in which every node of the view is one device (`models.pipelines.nodes`).  `channels`: where
    reshardings run beside operators, the weights of the problem, and `chains`: names of the operators of its chain
    forward and backward; leaves with other weights do not add up with it (`models.pipelines.channels`).
    """

    stages: int
    micro: int
    first: int
    end: int
    times: int
    once: bool
    bound: int
    certificate: SelectionCertificate
    phase: str = ""
    nodes: bool = False
    channels: Channels | None = None
    chains: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Interleaved:
    """Enumerated too: `chunks` chunks of the model on each of `stages` views, chunk c on view c mod `stages`.
    `weights`: of the lines of `models.pipelines.interleaved`, in their order.
    """

    stages: int
    micro: int
    chunks: int
    weights: tuple[int, ...]

    @property
    def lines(self) -> int:
        """Of every view: one for each (k, l) but (V, V), and its own."""
        return self.stages * (self.chunks + 1) ** 2


@dataclass(frozen=True, eq=False)
class Stage:
    """Units first .. end-1 with the placements of their operators and copies; a chunk, where views have several."""

    first: int
    end: int
    choices: Choices


@dataclass(frozen=True)
class Overlap:
    """Reshardings run beside operators inside every phase.  `stages[s]`: the numbers of the orders of its forward
    and backward pass and of its updates; an order lists all tasks of the phase, its operators in the graph's order,
    then its reshardings in the problem's, as they begin; an empty one: one after another.
    """

    orders: tuple[tuple[int, ...], ...]
    stages: tuple[tuple[int, int, int], ...]

    def of(self, stage: int, phase: str) -> tuple[int, ...]:
        """The order of a phase F, B or U."""
        return self.orders[self.stages[stage]["FBU".index(phase)]]


@dataclass(frozen=True, eq=False)
class PipelineCertificate:
    """`graph`: one training step with its whole batch.  `pairs`: what is enumerated.  `quantum`: picoseconds per unit
    of the schedule.  `step` and `lower_bound` in picoseconds.  `ordered`: stages lie on the views in the machine's
    order, so a send takes what the boundary that it crosses takes; else the farthest for the plan, the nearest for the
    bound.  `forbidden`: placements that the plan and everything enumerated go without.  `chunks`: stages on each view,
    stage k on view k mod `views`; `interleaved`: what is enumerated beside `pairs`.  `overlap`: None where a phase
    takes the sum of its operators and reshardings.
    """

    graph: Graph
    machine: Machine
    space: str
    memory: int | None
    division: Division
    pairs: tuple[tuple[int, int], ...]
    micro: int
    stages: tuple[Stage, ...]
    quantum: int
    schedule: ScheduleCertificate
    step: int
    lower_bound: int
    leaves: tuple[Leaf, ...]
    ordered: bool = False
    forbidden: tuple[str, ...] = ()
    chunks: int = 1
    interleaved: tuple[Interleaved, ...] = ()
    overlap: Overlap | None = None

    @property
    def views(self) -> int:
        """Parts of the machine."""
        return len(self.stages) // self.chunks

    @property
    def case_count(self) -> int:
        """Pairs, and triples with a number of chunks."""
        return len(self.pairs) + len(self.interleaved)
