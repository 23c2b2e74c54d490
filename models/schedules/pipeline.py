"""Pipelines: M equal micro-batches through P stages, each with a forward, a backward for its input
and one for its weights.

Stage s lies on device s and is cut into `chunks` equal parts, its chunks; chunk v = c P + k of the model lies on

    device k              without `wave` (interleaved: every chunk of P goes around)
    device k, P - 1 - k   with `wave`, for even and odd c (back and forth, a V for two chunks)

Tasks of chunk v and micro-batch i, in units of 1/chunks of the given unit, so that all times are integers:

    F(v, i)  time F[s]   after F(v-1, i)  plus the send
    I(v, i)  time I[s]   after I(v+1, i)  plus the send, and after F(v, i)
    W(v, i)  time W[s]   after I(v, i)

    send     chunks * `send` between chunks on different devices, nothing on the same one; a lag: sends do not wait for
             each other; with `hops` (one chunk a stage) between stages s and s + 1 hops[s] of them, of which `send` is
             the longest
    uneven   every chunk has times and sends of its own: times[v] of chunk v, hops[v] between chunks v and v + 1 (or
             `send`), in the given unit
    memory   one activation of chunk v from the start of F(v, i) to the end of W(v, i); a device keeps at most
             chunks * `memory` (an activation of a whole stage is the unit, so a chunk's is 1/chunks of it)

Weights are the same for all micro-batches of a step (synchronous semantics): nothing of the next step is here.

Source: Huang et al. 2019 (GPipe), Narayanan et al. 2021 (1F1B, interleaved), Qi et al. 2023 (backward in two parts).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ..text import InputError
from .problem import MOST_TIME, Holding, Precedence, ScheduleProblem, Stream, Task

KINDS = ("F", "I", "W")
"""Forward, backward for the input, backward for the weights: the words of torch.distributed.pipelining."""

MOST_STAGES = 256
MOST_MICRO_BATCHES = 4096
MOST_PIPELINE_TASKS = 1 << 18

Times = tuple[int, int, int]


@dataclass(frozen=True)
class Pipeline:
    """P stages of (F, I, W) times (`uneven`: as many chunks), micro-batches, time of a send, activations kept at once
    (None: unlimited).

    >>> Pipeline(((1, 1, 1),) * 4, 8, 0, 4).check().tasks
    96
    >>> Pipeline(((1, 1, 1), (2, 1, 1)) * 2, 8, 0, 4, 2, uneven=True).check().stages
    2
    """

    times: tuple[Times, ...]
    micro_batches: int
    send: int
    memory: int | None
    chunks: int = 1
    wave: bool = False
    hops: tuple[int, ...] = ()
    uneven: bool = False

    @property
    def stages(self) -> int:
        """Devices of the pipeline."""
        return len(self.times) // self.chunks if self.uneven else len(self.times)

    @property
    def parts(self) -> int:
        """Chunks of the whole model."""
        return self.stages * self.chunks

    @property
    def tasks(self) -> int:
        return 3 * self.parts * self.micro_batches

    def device(self, part: int) -> int:
        """Device of chunk `part`.

        >>> [Pipeline(((1, 1, 1),) * 2, 1, 0, None, 2, wave).device(v) for wave in (False, True) for v in range(4)]
        [0, 1, 0, 1, 0, 1, 1, 0]
        """
        turn, at = divmod(part, self.stages)
        return self.stages - 1 - at if self.wave and turn % 2 else at

    @property
    def scale(self) -> int:
        """Units of the tasks' times in the given unit."""
        return 1 if self.uneven else self.chunks

    def times_of(self, part: int) -> Times:
        """(F, I, W) of chunk `part`, in units of the tasks' times."""
        return self.times[part if self.uneven else self.device(part)]

    def lag(self, boundary: int) -> int:
        """What a send between stages `boundary` - 1 and `boundary` (`uneven`: chunks) takes, in units of the tasks'
        times.
        """
        return self.hops[boundary - 1] if self.hops else self.send * self.scale

    def task(self, kind: int, part: int, micro_batch: int) -> int:
        """Number of a task: by kind, chunk, micro-batch."""
        return (kind * self.parts + part) * self.micro_batches + micro_batch

    def check(self) -> Pipeline:
        """Self, if every number is in range; `InputError` says which is not."""
        if not 1 <= self.chunks <= 64:
            raise InputError(f"{self.chunks} chunks of a stage; there may be 1 to 64")
        if self.uneven and (self.chunks < 2 or self.wave or len(self.times) % self.chunks):
            raise InputError("uneven: of two chunks a stage or more, as many on every stage, without a wave")
        if not 1 <= self.stages <= MOST_STAGES:
            raise InputError(f"a pipeline of {self.stages} stages; there may be 1 to {MOST_STAGES}")
        if not 1 <= self.micro_batches <= MOST_MICRO_BATCHES:
            raise InputError(f"{self.micro_batches} micro-batches; there may be 1 to {MOST_MICRO_BATCHES}")
        if self.tasks > MOST_PIPELINE_TASKS:
            raise InputError(
                f"{self.tasks} tasks, more than {MOST_PIPELINE_TASKS}; take fewer stages, chunks or micro-batches"
            )
        for s, times in enumerate(self.times):
            if len(times) != 3 or not all(0 <= t < MOST_TIME >> 8 for t in times) or not any(times):
                raise InputError(f"stage {s}: times {times} must be three integers of 0 or more, not all zero")
        if not 0 <= self.send < MOST_TIME >> 8:
            raise InputError(f"the time of a send is {self.send}, must be 0 or more and less than 2**32")
        even = self.chunks > 1 and not self.uneven
        if self.hops and (even or len(self.hops) != self.parts - 1 or max(self.hops) != self.send):
            raise InputError("hops: of stages of one chunk, one fewer than these, the longest of them is the send")
        if min(self.hops, default=0) < 0:
            raise InputError(f"the time of a send is {min(self.hops)}, must be 0 or more")
        if self.memory is not None and not 1 <= self.memory <= 1 << 20:
            raise InputError(f"memory for {self.memory} activations; a stage keeps at least 1 (at most 2**20)")
        return self

    def problem(self) -> ScheduleProblem:
        """The same as a scheduling problem, task by task.

        >>> p = Pipeline(((1, 2, 3), (1, 2, 3)), 2, 1, 2).problem()
        >>> len(p.tasks), len(p.precedences), p.tasks[4].name, p.limits
        (12, 12, 'I0.0', (2, 2))
        """
        return self._problem

    @cached_property  # every look at a schedule asks
    def _problem(self) -> ScheduleProblem:
        m, v = self.micro_batches, self.parts
        device = [self.device(k) for k in range(v)]
        if self.uneven:
            lag = [0 if a == b else self.lag(k) for k, (a, b) in enumerate(pairwise(device), 1)]
        else:
            lag = [0 if a == b else self.lag(max(a, b)) for a, b in pairwise(device)]
        tasks = [
            Task(f"{name}{k}.{i}", self.times_of(k)[kind], (device[k],))
            for kind, name in enumerate(KINDS)
            for k in range(v)
            for i in range(m)
        ]
        before = []
        for k in range(v):
            for i in range(m):
                f, b, w = (self.task(kind, k, i) for kind in range(3))
                before += [Precedence(f, b), Precedence(b, w)]
                if k:
                    before += [
                        Precedence(self.task(0, k - 1, i), f, lag[k - 1]),
                        Precedence(b, self.task(1, k - 1, i), lag[k - 1]),
                    ]
        holdings = [
            Holding(device[k], 1, self.task(0, k, i), (self.task(2, k, i),)) for k in range(v) for i in range(m)
        ]
        limit = None if self.memory is None else self.memory * self.chunks
        return ScheduleProblem(
            f"pipeline of {self.stages} stages, {m} micro-batches",
            tuple(Stream(d, "compute") for d in range(self.stages)),
            tuple(tasks),
            tuple(before),
            tuple(holdings),
            (limit,) * self.stages,
            "unit",
            self.scale,
        )
