"""What a device holds while a framework runs a step, by parts: an estimate, since no framework says what it frees.

    stored      weights, moments; a half copy of the weights beside them, or casts that come and go (`Storage`)
    backward    gradients, what the micro-batches in flight keep, a layer that is computed again, the largest results,
                gathered weights, buffers in which gradients are reduced
    update      gradients, and what the update takes beside them
    fullest     stored + max(backward, update)

What each framework does stands in `configuration`, with its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import Final, Literal

from ....models.layout.targets.degrees import Flags
from .parts import LAST, Part, StageWork

Copies = Literal["kept", "cast", "gathered"]
"""Weights in the half type: kept beside those in float32; cast from these in every pass, and kept by autograd until it
is over; cast as they are gathered, unit by unit."""

HALF: Final = 2
WIDE: Final = 4
"""Bytes of the half types, and of float32."""


@dataclass(frozen=True)
class Storage:
    """How a framework keeps what it has.  `copies`: of weights in the half type; `update`: bytes that the update takes
    for every weight whose moments are here, beside these and the gradients, of `updated` weights at once (0: all);
    `bucket`: gradients in each of `buckets` buffers in which they are reduced (0: as many as there are); `live`:
    weights that are left gathered (0: two units, None: all of them); `wide`: gradients lie in float32, whatever they
    are summed in.
    """

    copies: Copies = "kept"
    update: int = 0
    updated: int = 0
    bucket: int = 0
    buckets: int = 0
    live: int | None = 0
    wide: bool = False


KEPT: Final = Storage()
"""Megatron's: a half copy beside float32; kernels of the update that take nothing beside it."""


@dataclass(frozen=True)
class Running:
    """How a stage runs: `copies` that share its state, the stage's number, micro-batches of a step and chunks of
    layers on it.
    """

    copies: Sequence[int]
    stage: int
    micro_batches: int
    chunks: int


def memory_of_stage(
    names: Sequence[str], work: StageWork, running: Running, flags: Flags, storage: Storage
) -> dict[str, int]:
    """Bytes of a device of a stage, by parts."""
    parts = [work.parts[name] for name in names]
    ways = prod(running.copies)
    kept = [p.kept for p, name in zip(parts, names, strict=True) if name != LAST]
    last = sum(p.kept for p, name in zip(parts, names, strict=True) if name == LAST)
    ahead = in_flight(running.stage, flags.pp, running.micro_batches, running.chunks)
    held = _stored(parts, ways, flags, storage)
    passing = {
        "gathered weights": _gathered(parts, ways, flags, storage),
        "buffers of gradients": _buffers(parts, ways, flags, storage),
        "activations": int(ahead * sum(kept)) + last,
        "computed again": max((p.again for p in parts), default=0),
        "results in passing": 2 * max((p.largest for p in parts), default=0),
    }
    learnt = -(-sum(p.learnt for p in parts) // (ways if flags.zero else 1))
    updated = storage.update * (min(learnt, storage.updated) if storage.updated else learnt)
    return {**held, **passing, "update, beyond these": max(0, updated - sum(passing.values()))}


def _stored(parts: Sequence[Part], ways: int, flags: Flags, storage: Storage) -> dict[str, int]:
    used = sum(p.used for p in parts)
    stored, moments, gradients = (sum(getattr(p, name) for p in parts) for name in ("stored", "moments", "gradients"))
    if storage.wide and used:
        gradients = WIDE * sum(p.learnt for p in parts)
    apart = used and storage.copies == "kept"  # float32 lies with the moments, the half copy is what passes read
    weights, optimizer = (used, moments + stored) if apart else (stored, moments)
    if flags.zero >= 1:
        optimizer = -(-optimizer // ways)
    if flags.zero >= 2:
        gradients = -(-gradients // ways)
    if flags.zero == 3:
        weights = -(-weights // ways)
    elif flags.zero == 2 and storage.copies == "gathered":  # gathered once, and left so behind the forward pass
        weights = -(-weights // ways) + (used or stored)
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def _gathered(parts: Sequence[Part], ways: int, flags: Flags, storage: Storage) -> int:
    if storage.copies == "cast":
        return sum(p.used for p in parts)
    if flags.zero < 3 or ways == 1:
        return 0
    units = 2 * max(p.used or p.stored for p in parts)
    if storage.copies == "gathered":  # the gradients of a unit lie whole, too, until they are scattered
        units += max(p.used or p.stored for p in parts)
    whole = sum(p.used or p.stored for p in parts)
    return max(units, whole if storage.live is None else min(whole, HALF * storage.live))


def _buffers(parts: Sequence[Part], ways: int, flags: Flags, storage: Storage) -> int:
    if ways == 1 or not storage.buckets:
        return 0
    gradients = sum(p.gradients for p in parts)
    if not storage.bucket:
        return storage.buckets * gradients
    learnt = max(1, sum(p.learnt for p in parts))
    return storage.buckets * ceil(Fraction(gradients * min(learnt, storage.bucket), learnt))


def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> Fraction:
    """Micro-batches whose activations a stage holds at once, in parts where a stage has several chunks.

    >>> [int(in_flight(s, 4, 8, 1)) for s in range(4)], in_flight(0, 4, 8, 2)
    ([4, 3, 2, 1], Fraction(11, 2))
    """
    if chunks == 1:
        return Fraction(min(micro_batches, stages - stage))
    return min(Fraction(micro_batches), Fraction(2 * (stages - stage - 1) + (chunks - 1) * stages + 1, chunks))
