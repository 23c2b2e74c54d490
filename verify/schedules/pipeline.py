"""Rebuilds the network of a pipeline, from its numbers alone, and why it may be stricter than the pipeline.

The plain network has the precedences of `models.schedules.pipeline`, built here a second time.  The ordered one adds

    FIFO      on every chunk v:  F(v, i) before F(v, i+1),  I(v, i) before I(v, i+1),  W(v, i) before W(v, i+1)
    memory    where a device keeps at most L activations of chunks:  W(v, i) before F(v, i+L)

Every schedule has another of the same makespan that obeys them.  Micro-batches are equal, so call the i-th F of
chunk v, in order of starts, micro-batch i, and so for I and W; streams stay as busy as they were.
 - Precedences hold: when the i-th F of chunk v starts, i+1 different micro-batches have started it, all of which had
   ended F on chunk v-1 and had been sent, so the i-th F there had ended and been sent; the same for I after I and F,
   and W after I.  Tasks of one kind and chunk take equally long, so order of starts is order of ends.
 - Memory is the number of F started less the number of W ended, per chunk: it does not depend on names.
 - F(v, i) of one chunk run on one stream, so they follow each other.
 - When F(v, i+L) starts, i+L+1 activations of chunk v have been taken, at most L are there: i+1 have been released, so
   W(v, i) has ended.
"""

from __future__ import annotations

import numpy as np

from ...models.problem.selection_problem import Ints
from ...models.schedules.pipeline import Pipeline
from .network import Memory, Network, integers


def pipeline_network(pipe: Pipeline, ordered: bool) -> tuple[Network, Memory]:
    """Arrays of a pipeline; with FIFO and memory as precedences if `ordered`.

    >>> plain, memory = pipeline_network(Pipeline(((1, 1, 1),) * 2, 3, 0, 1), False)
    >>> strict, _ = pipeline_network(Pipeline(((1, 1, 1),) * 2, 3, 0, 1), True)
    >>> len(plain.before), len(strict.before), memory.limits
    (18, 34, (1, 1))
    """
    c, m = pipe.chunks, pipe.micro_batches
    p = len(pipe.times) // c if pipe.uneven else len(pipe.times)
    part = np.arange(p * c)
    turn, at = part // p, part % p
    device = np.where(turn % 2 == 1, p - 1 - at, at) if pipe.wave else at
    number = np.arange(3 * p * c * m, dtype=np.int64).reshape(3, p * c, m)  # kind, chunk, micro-batch
    forward, inward, weight = number
    times = np.broadcast_to(
        np.array(pipe.times, dtype=np.int64)[part if pipe.uneven else device].T[:, :, None], number.shape
    )
    send = pipe.send * (1 if pipe.uneven else c)
    sends = np.array(pipe.hops or [send] * (p * c - 1), dtype=np.int64)
    sends = np.where(device[1:] == device[:-1], 0, sends)
    hop = np.broadcast_to(sends[:, None], (p * c - 1, m))
    rows: list[tuple[Ints, Ints, Ints | int]] = [
        (forward, inward, 0),
        (inward, weight, 0),
        (forward[:-1], forward[1:], hop),
        (inward[1:], inward[:-1], hop),
    ]
    limit = None if pipe.memory is None else pipe.memory * c
    if ordered:
        rows.append((number[:, :, :-1], number[:, :, 1:], 0))
        if limit is not None and limit < m:
            rows.append((weight[:, : m - limit], forward[:, limit:], 0))
    net = Network(
        integers(times),
        tuple(integers(number[:, device == d]) for d in range(p)),
        np.concatenate([a.reshape(-1) for a, _, _ in rows]),
        np.concatenate([b.reshape(-1) for _, b, _ in rows]),
        np.concatenate([integers(np.broadcast_to(lag, a.shape)) for a, _, lag in rows]),
    )
    count = p * c * m
    memory = Memory(
        integers(np.repeat(device, m)),
        np.ones(count, dtype=np.int64),
        forward.reshape(-1),
        np.arange(count, dtype=np.int64),
        weight.reshape(-1),
        (limit,) * p,
    )
    return net, memory
