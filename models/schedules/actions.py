"""Writes a pipeline's schedule as rows of actions, one row per device, in the words of
torch.distributed.pipelining.

    3F0          forward of micro-batch 0 on stage 3 (a stage of torch is a chunk of the model)
    3I0, 3W0     backward for inputs, for weights; 3B0 both in one piece
    3SEND_F0     right behind the action whose result it is; 4RECV_F0 on the neighbour before the first action that
                 starts when it has been produced; SEND_B and RECV_B the same for gradients
    3UNSHARD     before the first action of a stage, 3RESHARD behind its last, then 3REDUCE_GRAD

Sends between two devices are received in the order in which they are sent, so nothing waits in a circle.  Neighbouring
chunks on one device hand over without a send.  `_PipelineScheduleRuntime._load_csv(.., format="compute_comms")` takes
the rows as they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from ..problem.selection_problem import Ints
from .pipeline import Pipeline

Action = tuple[str, int, int]
"""Word (F, I, W, B), chunk of the model, micro-batch."""


@dataclass(frozen=True)
class Timed:
    """An action with its start and end."""

    word: str
    part: int
    micro_batch: int
    start: int
    end: int


def timed_actions(pipe: Pipeline, starts: Ints, orders: Sequence[Sequence[Action]] | None) -> list[list[Timed]]:
    """Actions of every device by start.  `orders`: those of a published schedule, which say where a backward is one
    piece; without, it is where backward for weights takes no time.
    """
    times = [t.time for t in pipe.problem().tasks]

    def one(word: str, part: int, i: int) -> Timed:
        whole = 1 if orders is None else 2  # weights that take no time may be anywhere behind
        first, last = {"F": (0, 0), "I": (1, 1), "W": (2, 2), "B": (1, whole)}[word]
        a, b = pipe.task(first, part, i), pipe.task(last, part, i)
        return Timed(word, part, i, int(starts[a]), int(starts[b]) + times[b])

    if orders is not None:
        return [[one(*action) for action in row] for row in orders]
    rows: list[list[Timed]] = [[] for _ in range(pipe.stages)]
    for part in range(pipe.parts):
        device = pipe.device(part)
        words = ("F", "I", "W") if pipe.times_of(part)[2] else ("F", "B")
        rows[device] += [one(word, part, i) for word in words for i in range(pipe.micro_batches)]
    return [sorted(row, key=_place) for row in rows]


def compute_rows(pipe: Pipeline, starts: Ints) -> list[list[str]]:
    """Rows of forwards and backwards alone, between which torch puts sends and receives itself
    (`_load_csv(file)`, `pipeline_parallel_schedule_csv` of torchtitan).

    >>> import numpy as np
    >>> compute_rows(Pipeline(((1, 1, 0),) * 2, 1, 0, None), np.array([0, 1, 3, 2, 4, 3]))
    [['0F0', '0B0'], ['1F0', '1B0']]
    """
    return [[f"{a.part}{a.word}{a.micro_batch}" for a in row] for row in timed_actions(pipe, starts, None)]


def action_rows(pipe: Pipeline, starts: Ints, orders: Sequence[Sequence[Action]] | None = None) -> list[list[str]]:
    """Rows of actions with sends and receives.

    >>> import numpy as np
    >>> pipe = Pipeline(((1, 1, 0),) * 2, 1, 0, None)
    >>> action_rows(pipe, np.array([0, 1, 3, 2, 4, 3]))[0]
    ['0UNSHARD', '0F0', '0SEND_F0', '0RECV_B0', '0B0', '0RESHARD', '0REDUCE_GRAD']
    """
    rows = timed_actions(pipe, starts, orders)
    arrivals: list[list[tuple[int, int, int, str]]] = [[] for _ in rows]  # produced at, sender, place there, words
    out: list[list[str]] = [[] for _ in rows]
    for device, row in enumerate(rows):
        for k, a in enumerate(row):
            target = _next(pipe, a)
            if target is not None and pipe.device(target) != device:
                kind = "F" if a.word == "F" else "B"
                arrivals[pipe.device(target)].append((a.end, device, k, f"{target}RECV_{kind}{a.micro_batch}"))
    for device, row in enumerate(rows):
        waiting = sorted(arrivals[device])
        last = {a.part: k for k, a in enumerate(row)}
        seen: set[int] = set()
        for k, a in enumerate(row):
            while waiting and waiting[0][0] <= a.start:
                out[device].append(waiting.pop(0)[3])
            if a.part not in seen:
                seen.add(a.part)
                out[device].append(f"{a.part}UNSHARD")
            out[device].append(f"{a.part}{a.word}{a.micro_batch}")
            target = _next(pipe, a)
            if target is not None and pipe.device(target) != device:
                out[device].append(f"{a.part}SEND_{'F' if a.word == 'F' else 'B'}{a.micro_batch}")
            if last[a.part] == k:
                out[device] += [f"{a.part}RESHARD", f"{a.part}REDUCE_GRAD"]
    return out


def _place(a: Timed) -> tuple[int, int, int, int, int]:
    """Order on a device; tasks that take no time stand in the order of the model."""
    return a.start, a.end, "FBIW".index(a.word), a.part if a.word == "F" else -a.part, a.micro_batch


def _next(pipe: Pipeline, a: Timed) -> int | None:
    """The chunk that wants an action's result."""
    if a.word == "W":
        return None
    target = a.part + 1 if a.word == "F" else a.part - 1
    return target if 0 <= target < pipe.parts else None


def csv_bytes(rows: Sequence[Sequence[str]]) -> bytes:
    """A file of rows, one per device."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("ascii")
