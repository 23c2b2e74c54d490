r"""Whether a job fits into the memory of its devices, and the least change of each kind that makes it fit.

What is held is that of one micro-batch on every copy: gradients pile up where they are (assumption
`a-step-in-micro-batches-keeps-what-one-micro-batch-keeps`).  The placements of a job, those that its settings leave
open, or all of them, are a selection problem with memory rows (`models.cost.memory`):

    fits       a placement within the limit, evaluated by the checker; with settings, what they take as they run and
               `EDGE` more, too
    not        a certificate that no placement is within the limit
    runs not   what the settings take as they run, an estimate, is above the limit, and nothing is proved
    runs       it is below the limit, and nothing is proved: the time was over, or the settings have stages
    undecided  anything else

The limit is the memory of a device less what driver and libraries take of it (`reserve_of`).

A change is one of: more micro-batches (smaller ones), whole layers computed again, more of the state sharded over the
copies, more nodes.  Of each kind the least that fits is looked for from below, so that what stands before it has its
own verdict: where all of these are `not`, the change is proved least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Final

from ...models.layout.placement import SpaceError
from ...models.machine.machine import Machine
from ...models.pipelines.micro import batch_of, micro_batch
from ...models.problem.claims import Infeasible
from ...models.problem.selection_problem import SelectionProblem
from ...models.program.graph import Graph
from ...models.sources.frameworks.settings import Settings
from ...models.sources.training import TrainingStep
from ...models.sources.training.recompute import blocks
from ...models.text import InputError
from ...proofs.selection.certificates import SelectionCertificate
from ..selection.model.restrict import restrict
from ..selection.solve import solve
from .frameworks import strategy_of_flags
from .plan import fitting_space, require_size
from .strategy import StrategyError, resolve
from .tables import tables_in_time
from .time_limit import TimeLimit

KEEPS: Final = "a-step-in-micro-batches-keeps-what-one-micro-batch-keeps"
"""What a proof about one micro-batch rests on beside its certificate."""

RESERVE: Final = "driver-and-libraries-keep-a-part-of-the-memory"
"""What a verdict rests on where a part of the memory is kept."""

_KEPT: Final = 2 << 30
_MOST_KEPT: Final = Fraction(1, 20)
_ACCELERATOR: Final = 4 << 30
"""Bytes that the driver, CUDA's context and NCCL keep on a device, at most this part of it, and on devices of this much
memory and more.  Of 80 GiB (A800) 2.0, of 40 (A100) 1.9, of 32 (V100) 1.8, of 48 (RTX A6000) 1.2: what logs of ends of
memory name as capacity less allocated, reserved and free bytes (hiyouga/LlamaFactory, issues 1158, 2908 and 1221;
pytorch/torchtitan, issue 620)."""

EDGE: Final = Fraction(8, 100)
"""What settings take as they run fits where so much more would fit, too: allocators keep pieces that no request fits,
and the estimate has an error (within 4 % of three logged amounts, tests/test_published_steps.py; 8 % above one,
tests/benchmarks/results/memory-edges.md, whose fresh rows were in view when this was chosen)."""

MOST_NODES: Final = 8
"""Times as many nodes as there are: what is looked for beyond is another job."""


class Fit(Enum):
    """The verdicts."""

    FITS = "fits"
    NOT = "does not fit"
    RUNS_NOT = "does not fit as it runs"
    RUNS = "fits as it runs"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Setup:
    """What may change: the machine, into how many micro-batches the batch is cut, what is computed again (as in
    `--recompute`), and the stage of ZeRO (None: no settings, placements are free).  `words`: the change.
    """

    machine: Machine
    micro: int
    recompute: str
    zero: int | None
    words: str = ""


@dataclass(frozen=True, eq=False)
class Job:
    """A model with its batch, `step` that makes its training step (None of a forward pass), the settings, bytes that
    a device may hold, and those beside them that driver and libraries keep.
    """

    graph: Graph
    step: Callable[[Graph, str], TrainingStep | None]
    settings: Settings | None
    memory: int
    reserve: int = 0


@dataclass(frozen=True, eq=False)
class Held:
    """A verdict that the checker has to confirm: by `certificate` about `problem`.  `stored` and `passing`: bytes on
    the fullest device that are there all the time (weights, state), and only at its fullest step.
    """

    setup: Setup
    fit: Fit
    problem: SelectionProblem
    certificate: SelectionCertificate | None
    stored: int | None = None
    passing: int | None = None
    cost: Fraction | None = None

    @property
    def peak(self) -> int | None:
        """Bytes on the fullest device; None where nothing was found."""
        return None if self.stored is None or self.passing is None else self.stored + self.passing


def reserve_of(memory: int) -> int:
    """Bytes of a device that no job gets.

    >>> reserve_of(80 << 30) >> 20, reserve_of(16 << 30) >> 20, reserve_of(1 << 30)
    (2048, 819, 0)
    """
    return min(_KEPT, int(memory * _MOST_KEPT)) if memory >= _ACCELERATOR else 0


def verdict_of(job: Job, setup: Setup, limit: TimeLimit) -> Held:
    """The verdict of one setup within the limit.

    Raises `InputError` for micro-batches and degrees that do not divide the batch, the machine or the model, `TooSlow`
    and `TooLarge` where the tables do not fit into the time or are too large.
    """
    part = job.graph if setup.micro == 1 else micro_batch(job.graph, setup.micro)
    step = job.step(part, setup.recompute)
    graph = part if step is None else step.graph
    default = fitting_space(graph, setup.machine)
    require_size(graph, setup.machine, default)
    planning = tables_in_time(graph, setup.machine, None, default, job.memory, limit, None)
    problem, back = planning.problem, None
    if job.settings is not None:
        flags = replace(job.settings.flags, zero=setup.zero or 0, micro_batch=0, global_batch=0, steps=0, dp=0)
        try:
            back = restrict(problem, resolve(strategy_of_flags(flags, graph, setup.machine), planning).allowed)
        except (SpaceError, StrategyError) as error:
            raise InputError(str(error)) from None
        problem = back.inner
    with limit.phase("search"):
        answer = solve(problem, gap=Fraction(1), clock=limit.clock)  # any placement will do
    claim = None if answer.certificate is None else answer.certificate.claim
    if isinstance(claim, Infeasible):
        return Held(setup, Fit.NOT, problem, answer.certificate)
    if answer.solution is None:
        return Held(setup, Fit.UNDECIDED, problem, answer.certificate)
    peak, _ = problem.peak_of(answer.solution)
    end = max((u.end for u in problem.usages), default=0)
    always = [u for u in problem.usages if u.start == 0 and u.end >= end]
    stored = sum(int(u.amount[answer.solution[u.vertex]]) for u in always)
    cost = None if answer.cost is None else Fraction(answer.cost, problem.scale)
    return Held(setup, Fit.FITS, problem, answer.certificate, stored, peak - stored, cost)


def changes(job: Job, setup: Setup, scaled: Callable[[int], Machine]) -> Iterator[tuple[str, list[Setup]]]:
    """Kinds of changes with what may be tried of each, the least first.  `scaled`: the machine with so many times its
    nodes.
    """
    trained = job.step(job.graph, "none") is not None
    copies = setup.machine.devices if job.settings is None else job.settings.flags.copies(setup.machine.devices)
    share = batch_of(job.graph) // (setup.micro * copies)
    if trained and share > 1:
        counts = [setup.micro * n for n in range(2, share + 1) if share % n == 0]
        yield (
            "micro-batches",
            [
                replace(setup, micro=n, words=f"{n} micro-batches of {batch_of(job.graph) // (n * copies)} on a copy")
                for n in counts
            ],
        )
    if trained and setup.recompute != "all" and blocks(job.graph):
        yield "recomputation", [replace(setup, recompute="all", words="every layer computed again (recompute all)")]
    if trained and setup.zero is not None and setup.zero < 3 and copies > 1:
        yield "sharding", [replace(setup, zero=z, words=f"state sharded as ZeRO-{z}") for z in range(setup.zero + 1, 4)]
    more = []
    times = 2
    while times <= MOST_NODES:
        machine = scaled(times)
        size = " x ".join(str(level.size) for level in machine.levels)
        more.append(replace(setup, machine=machine, words=f"{times} times the nodes ({size})"))
        times *= 2
    yield "nodes", more
