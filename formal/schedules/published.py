"""Published pipeline schedules as orders per device, and when their tasks start.

    gpipe          all forwards, then all backwards
    1f1b           P - s forwards on stage s, then one backward and one forward in turn, then backwards
    interleaved:V  V chunks a stage, 2 (P - 1 - s) + (V - 1) r forwards first, micro-batches in rounds of r
    zb-h1          1F1B's forwards and input backwards; the weight backwards of stage s come s micro-batches later
    zb-v           two chunks back and forth, backward in two parts throughout
    dualpipe-v     two chunks back and forth, eight phases; backward in two parts where a phase says so

An action is (word, chunk, micro-batch) in the words of torch.distributed.pipelining; B is a whole backward, I and W in
one, whose gradient leaves when W has ended.  Every action starts as soon as the one before it on its device and those
that it depends on have ended.

Source: Huang et al. 2019; Narayanan et al. 2021; Qi et al. 2023 and 2024; DeepSeek-AI 2025 (DualPipeV); the order of
interleaved follows ScheduleInterleaved1F1B, that of zb-v ScheduleZBVZeroBubble of PyTorch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.actions import Action
from ...models.schedules.pipeline import Pipeline
from ...models.text import InputError
from .kernels import heads
from .shop import links

KINDS = ("gpipe", "1f1b", "interleaved:V", "zb-h1", "zb-v", "dualpipe-v")


def with_chunks(kind: str, pipe: Pipeline) -> Pipeline:
    """The pipeline that schedules of this kind are for: its stages cut into the kind's chunks.

    >>> with_chunks("interleaved:3", Pipeline(((1, 1, 1),) * 2, 4, 0, None)).parts
    6
    """
    match = re.fullmatch(r"interleaved:([0-9]{1,2})", kind)
    if match:
        if int(match[1]) < 2:
            raise InputError(f"--kind {kind}: a stage has at least 2 chunks; for one chunk write 1f1b")
        return replace(pipe, chunks=int(match[1]))
    if kind in ("zb-v", "dualpipe-v"):
        return replace(pipe, chunks=2, wave=True)
    if kind in ("gpipe", "1f1b", "zb-h1"):
        return pipe
    raise InputError(f"--kind {kind[:60]!r} is not known; write one of {', '.join(KINDS)} or best")


def orders(kind: str, pipe: Pipeline) -> list[list[Action]]:
    """Actions of every device, in order; `pipe` is what `with_chunks` gave.

    >>> orders("1f1b", Pipeline(((1, 1, 1),) * 2, 2, 0, None))[1]
    [('F', 1, 0), ('B', 1, 0), ('F', 1, 1), ('B', 1, 1)]
    """
    if kind == "dualpipe-v" and pipe.micro_batches < 2 * pipe.stages:
        raise InputError(
            f"dualpipe-v on {pipe.stages} stages needs at least {2 * pipe.stages} micro-batches, there are "
            f"{pipe.micro_batches}"
        )
    if kind.startswith("interleaved") and pipe.micro_batches % _rounds(pipe):
        raise InputError(
            f"{kind} takes micro-batches in equal rounds of at least {pipe.stages}; {pipe.micro_batches} cannot be "
            f"divided into {_rounds(pipe)}"
        )
    makers = {
        "gpipe": _gpipe,
        "1f1b": one_forward_one_backward,
        "interleaved": _interleaved,
        "zb-h1": _zb_h1,
        "zb-v": _zb_v,
        "dualpipe-v": _dualpipe_v,
    }
    return [makers[kind.partition(":")[0]](pipe, d) for d in range(pipe.stages)]


def starts_of(pipe: Pipeline, actions: list[list[Action]]) -> Ints:
    """Start of every task, shape (tasks,), each as early as the orders allow.  ValueError if they wait in a circle or
    leave out a task.
    """
    arcs = [(p.before, p.after, p.lag) for p in pipe.problem().precedences]
    sends = {(a, b): lag for a, b, lag in arcs}
    seen = []
    for row in actions:
        tasks = []
        for word, part, i in row:
            if word == "B":
                tasks += [pipe.task(1, part, i), pipe.task(2, part, i)]
                if part:
                    ahead = pipe.task(1, part - 1, i)
                    arcs.append((pipe.task(2, part, i), ahead, sends[pipe.task(1, part, i), ahead]))
            else:
                tasks.append(pipe.task("FIW".index(word), part, i))
        arcs += [(a, b, 0) for a, b in pairwise(tasks)]
        seen += tasks
    if sorted(seen) != list(range(pipe.tasks)):
        raise ValueError("the orders do not hold every task once")
    table = np.array(arcs, dtype=np.int64).reshape(-1, 3)
    forward = links(pipe.tasks, table[:, 0], table[:, 1], table[:, 2])
    times = np.array([t.time for t in pipe.problem().tasks], dtype=np.int64)
    found: Ints = heads(forward.order, times, forward.at, forward.to, forward.lag)
    return found


def _gpipe(pipe: Pipeline, s: int) -> list[Action]:
    return [("F", s, i) for i in range(pipe.micro_batches)] + [("B", s, i) for i in range(pipe.micro_batches)]


def one_forward_one_backward(pipe: Pipeline, s: int, most: int | None = None) -> list[Action]:
    """Actions of stage s, which keeps `most` activations at most (None: as many as there are stages behind it).

    >>> one_forward_one_backward(Pipeline(((1, 1, 1),) * 3, 2, 0, None), 0, 1)
    [('F', 0, 0), ('B', 0, 0), ('F', 0, 1), ('B', 0, 1)]
    """
    m = pipe.micro_batches
    first = min(m, pipe.stages - s, m if most is None else most)
    row: list[Action] = [("F", s, i) for i in range(first)]
    for i in range(m):
        row.append(("B", s, i))
        if first + i < m:
            row.append(("F", s, first + i))
    return row


def _rounds(pipe: Pipeline) -> int:
    return max(1, pipe.micro_batches // pipe.stages)


def _interleaved(pipe: Pipeline, d: int) -> list[Action]:
    m, p, v = pipe.micro_batches, pipe.stages, pipe.chunks
    turn = m // _rounds(pipe)
    first = min(m * v, (v - 1) * turn + 2 * (p - 1 - d))
    sent, back = [0] * v, [0] * v
    row: list[Action] = []
    for step in range(first + m * v):
        if step < m * v:
            chunk = step // turn % v
            row.append(("F", chunk * p + d, sent[chunk]))
            sent[chunk] += 1
        if step >= first:
            chunk = v - 1 - (step - first) // turn % v
            row.append(("B", chunk * p + d, back[chunk]))
            back[chunk] += 1
    return row


def _zb_h1(pipe: Pipeline, s: int) -> list[Action]:
    m = pipe.micro_batches
    first = min(m, pipe.stages - s)
    row: list[Action] = [("F", s, i) for i in range(first)]
    for i in range(m):
        row.append(("I", s, i))
        if i >= s:
            row.append(("W", s, i - s))
        if first + i < m:
            row.append(("F", s, first + i))
    return row + [("W", s, i) for i in range(max(0, m - s), m)]


class _Counter:
    """Actions of one device with two chunks, each word's micro-batches counted up."""

    def __init__(self, pipe: Pipeline, d: int) -> None:
        self.parts = (d, 2 * pipe.stages - 1 - d)
        self.count = dict.fromkeys([(w, c) for w in "FBIW" for c in (0, 1)], 0)
        self.row: list[Action] = []
        self.waiting: tuple[list[int], list[int]] = ([], [])  # micro-batches whose weight backward is put off
        self.turn: list[int] = []  # their chunks, in order

    def forward(self, chunk: int) -> None:
        self.row.append(("F", self.parts[chunk], self._next("F", chunk)))

    def backward(self, chunk: int, split: bool) -> None:
        i = self._next("B", chunk)
        self.row.append(("I" if split else "B", self.parts[chunk], i))
        if split:
            self.waiting[chunk].append(i)
            self.turn.append(chunk)

    def weight(self, chunk: int | None = None) -> None:
        """The weight backward that has waited longest, of one chunk or of both."""
        taken = self.turn[0] if chunk is None else chunk
        self.turn.remove(taken)
        self.row.append(("W", self.parts[taken], self.waiting[taken].pop(0)))

    def _next(self, word: str, chunk: int) -> int:
        self.count[word, chunk] += 1
        return self.count[word, chunk] - 1


def _zb_v(pipe: Pipeline, d: int) -> list[Action]:
    p, m = pipe.stages, max(2 * pipe.stages - 1, pipe.micro_batches)
    row = _Counter(pipe, d)

    def backward(chunk: int) -> None:
        row.backward(chunk, True)
        row.weight(chunk)

    for _ in range(2 * (p - d) - 1):
        row.forward(0)
    for _ in range(d):
        row.forward(1)
        row.forward(0)
    for _ in range(p - d):
        row.forward(1)
        backward(1)
    while row.count["F", 1] < row.count["F", 0] or row.count["F", 0] < m:
        if row.count["F", 0] < m:
            row.forward(0)
        backward(0)
        row.forward(1)
        backward(1)
    for _ in range(d):
        row.backward(0, True)
        row.backward(1, True)
    for _ in range(p - d):
        row.backward(0, True)
        row.weight(0)
    for chunk in (1, 0):
        while row.waiting[chunk]:
            row.weight(chunk)
    return [a for a in row.row if a[2] < pipe.micro_batches]


def _dualpipe_v(pipe: Pipeline, d: int) -> list[Action]:
    p, m = pipe.stages, pipe.micro_batches
    row = _Counter(pipe, d)
    for _ in range(2 * (p - d - 1)):
        row.forward(0)
    for _ in range(d + 1):
        row.forward(0)
        row.forward(1)
    for _ in range(p - d - 1):
        row.backward(1, True)
        row.weight()
        row.forward(1)
    for _ in range(m - 2 * p + d + 1):
        row.forward(0)
        row.backward(1, False)
        row.forward(1)
        row.backward(0, False)
    for _ in range(p - d - 1):
        row.backward(1, False)
        row.forward(1)
        row.backward(0, False)
    half, split = (d + 1) // 2, False
    for i in range(d + 1):
        split = split or (i == half and d % 2 == 1)
        row.backward(1, split)
        split = split or (i == half and d % 2 == 0)
        row.backward(0, split)
    for _ in range(p - d - 1):
        row.weight()
        row.backward(0, True)
    for _ in range(d + 1):
        row.weight()
    return row.row
