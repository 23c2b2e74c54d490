"""Runs the steps of a resharding, carried out by one rank.

Reduction.  Open digits o_1 .. o_m with primes p_k, tile of `padded` elements, R = product of the replicated primes, q =
padded / R.
    pack        buffer[v_1, .., v_m, :]  =  chunk (v_k, k replicated) of the tile that the members with scattered digits
                (v_k, k scattered) want, cut from the rank's partial block
    scatter     per block of levels, innermost first: combine over the group of the block's digits, keep the own values
    gather      per block of levels, outermost first: collect the chunks of the block's replicated digits
Blocks are those of the step's program, one level each where the machine leaves no choice
(`models.communication.reduction_programs`).  A reduction inside one block with nothing scattered is one all-reduce.
Where tiles are unequal or R does not divide them, chunks are the portions of `backends.transport.received`, and the
collectives are those with counts: nothing is padded.

Exchange.  Every rank holds its source block and what arrived in earlier phases; received boxes go straight into the
target.

The steps are generators of requests: `carry` drives them to the end at once, `carry_beside` without blocking, `Flight`
starts them and finishes them later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from math import prod
from types import ModuleType

from ...models.communication.resharding import CommunicationPlan, Reduction, digit_value
from ...models.communication.transfers import Box, Exchange
from ...models.layout.layout import OpenDigit
from ..cuda import KernelTextError, device
from ..cuda.exchange import Run, pack, unpack
from ..kernels import Array
from ..transport import Pending, Transport, TransportError, carry_out
from ..transport.patterns import patterns
from ..transport.received import is_even, portion
from ..transport.requests import (
    AllGather,
    AllReduce,
    Exchanged,
    ReduceScatter,
    Request,
    Result,
    Steps,
    apart,
    array_of,
    as_one,
    between_neighbours,
    parts_of,
)


def volume(box: Box) -> int:
    """Number of elements."""
    return prod(hi - lo for lo, hi in box)


def sides(box: Box) -> tuple[int, ...]:
    """Shape of a block."""
    return tuple(hi - lo for lo, hi in box)


def common(a: Box, b: Box) -> Box:
    """Intersection; (x, x) where there is none."""
    out = []
    for (al, ah), (bl, bh) in zip(a, b, strict=True):
        low = max(al, bl)
        out.append((low, max(low, min(ah, bh))))
    return tuple(out)


def block_part(array: Array, box: Box, part: Box) -> Array:
    """The view of `part` inside the block `array` of `box`; `TransportError` if it is not all there."""
    if not box:  # indexing by () would turn a 0-dimensional array into a number
        return array
    if volume(part) == 0:
        return array[(slice(0, 0),) * len(box)].reshape(sides(part))
    if any(pl < bl or ph > bh for (pl, ph), (bl, bh) in zip(part, box, strict=True)):
        raise TransportError(f"{part} is not inside the block {box}")
    return array[tuple(slice(pl - bl, ph - bl) for (pl, ph), (bl, _) in zip(part, box, strict=True))]


def group_of(rank: int, digits: list[OpenDigit], hierarchy: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks that differ from `rank` in these digits only, in mixed-radix order (first digit most significant).

    >>> group_of(5, [OpenDigit(0, 1, 2)], (2, 4)), group_of(5, [OpenDigit(1, 2, 2)], (2, 4))
    ((1, 5), (5, 7))
    """
    weights = [d.stride * prod(hierarchy[d.level + 1 :]) for d in digits]
    base = rank - sum(digit_value(rank, d, hierarchy) * w for d, w in zip(digits, weights, strict=True))
    return tuple(
        base + sum(v * w for v, w in zip(values, weights, strict=True))
        for values in product(*(range(d.prime) for d in digits))
    )


def carry(transport: Transport, steps: Steps) -> Array:
    """Carry out every request as it comes; the block at the end."""
    try:
        request = next(steps)
        while True:
            request = steps.send({} if request is None else carry_out(transport, request))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def carry_together(xp: ModuleType, transport: Transport, several: Sequence[Steps]) -> list[Array]:
    """`carry` of each, side by side: what all of them ask for at the same time is one message where it can be, and
    messages between neighbours are all under way before the first is waited for.
    """
    blocks, answers = dict[int, Array](), dict[int, Result | None](dict.fromkeys(range(len(several))))
    while answers:
        requests = dict[int, Request | None]()
        for k, answer in answers.items():
            try:
                requests[k] = next(several[k]) if answer is None else several[k].send(answer)
            except StopIteration as done:
                blocks[k] = done.value
        asked = [r for r in requests.values() if r is not None]
        joined = as_one(xp, asked) if len(asked) == len(requests) > 1 else None
        if joined is not None:
            parts = apart(carry_out(transport, joined), asked)
            answers = dict(zip(requests, parts, strict=True))
        elif all(between_neighbours(r) for r in asked):
            begun = {k: None if r is None else transport.start(r) for k, r in requests.items()}
            answers = {k: {} if pending is None else pending.wait() for k, pending in begun.items()}
        else:
            answers = {k: {} if r is None else carry_out(transport, r) for k, r in requests.items()}
    return [blocks[k] for k in range(len(several))]


LOOK_S = 50e-6
"""How long one sleeps between two looks at a collective that runs beside other work of the same processor."""


def carry_beside(transport: Transport, steps: Steps) -> Array:
    """`carry` for a thread beside others: collectives do not block, and nobody waits for them with a processor."""
    try:
        request = next(steps)
        while True:
            if request is None:
                request = steps.send({})
            else:
                pending = transport.start(request)
                while not pending.poll():
                    time.sleep(LOOK_S)
                request = steps.send(pending.wait())
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class Flight:
    """Steps whose first collective is under way.  `finish` waits for it and carries out the rest."""

    def __init__(self, transport: Transport, steps: Steps) -> None:
        self._transport, self._steps = transport, steps
        self._block: Array | None = None
        self._pending: Pending | None = None
        try:
            request = next(steps)
            self._idle = request is None
            if request is not None:
                self._pending = transport.start(request)
        except StopIteration as done:
            self._idle, self._block = False, done.value

    def poll(self) -> None:
        """Let the collective make progress."""
        if self._pending is not None:
            self._pending.poll()

    def finish(self) -> Array:
        """The block."""
        if self._pending is not None or self._idle:
            pending, self._pending, self._idle = self._pending, None, False
            try:
                request = self._steps.send({} if pending is None else pending.wait())
                while True:
                    request = self._steps.send({} if request is None else carry_out(self._transport, request))
            except StopIteration as done:
                self._block = done.value
        if self._block is None:
            raise TransportError("finished twice, or never started")
        return self._block


def reshard(xp: ModuleType, transport: Transport, plan: CommunicationPlan, array: Array) -> Array:
    """This rank's block of `plan.target`, from its block of `plan.source`.  All ranks call it together."""
    return carry(transport, reshard_steps(xp, transport.rank, plan, array))


def reshard_steps(xp: ModuleType, rank: int, plan: CommunicationPlan, array: Array) -> Steps:
    """The requests of `reshard` and, at the end, the block."""
    box, hierarchy = plan.source.box(rank), plan.source.hierarchy
    for step in plan.steps:
        if isinstance(step, Reduction):
            array = yield from reduction(xp, rank, step, hierarchy, array, box)
            box = step.tiles[rank]
    exchanges = [step for step in plan.steps if isinstance(step, Exchange)]
    target = plan.target.box(rank)
    if not exchanges:
        return block_part(array, box, target)
    out: Array = xp.empty(sides(target), dtype=array.dtype)
    kept = common(box, target)
    if volume(kept):
        block_part(out, target, kept)[...] = block_part(array, box, kept)
    for step in exchanges:
        yield from _exchange(xp, rank, step, (array, box), (out, target))
    return out


def _exchange(xp: ModuleType, rank: int, step: Exchange, source: tuple[Array, Box], target: tuple[Array, Box]) -> Steps:
    pattern = next((p for p in patterns(step) if rank in p.group), None)
    if pattern is None:
        yield None
        return target[0]
    outgoing: dict[int, list[Box]] = {}
    expected: dict[int, list[Box]] = {}
    for t in pattern.transfers:
        if t.source == rank:
            outgoing.setdefault(t.target, []).append(t.box)
        if t.target == rank:
            expected.setdefault(t.source, []).append(t.box)
    copies: dict[tuple[Box, ...], Array] = {}  # an all-gather or a broadcast sends the same to many
    for boxes in outgoing.values():
        if tuple(boxes) not in copies:
            copies[tuple(boxes)] = _packed(xp, boxes, source, target)
    flat = {r: copies[tuple(boxes)] for r, boxes in outgoing.items()}
    counts = {r: sum(volume(b) for b in boxes) for r, boxes in expected.items()}
    arrived = parts_of((yield Exchanged(pattern, flat, counts, source[0])))
    for r, boxes in expected.items():
        _unpacked(xp, boxes, arrived[r], target)
    return target[0]


def launcher(xp: ModuleType) -> Run | None:
    """What launches generated kernels on arrays of `xp`; None on the host."""
    return device.launch if device.is_device(xp) else None


def _packed(xp: ModuleType, boxes: list[Box], source: tuple[Array, Box], target: tuple[Array, Box]) -> Array:
    """The boxes, flat, one after another: what one partner gets."""
    run = launcher(xp)
    if run is not None and all(common(b, source[1]) == b for b in boxes):
        try:
            return pack(xp, run, source[0], [_relative(b, source[1]) for b in boxes])
        except KernelTextError:
            pass  # element types and layouts without a kernel go the general way
    parts = [_held(xp, b, source, target).reshape(-1) for b in boxes]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts)


def _unpacked(xp: ModuleType, boxes: list[Box], flat: Array, target: tuple[Array, Box]) -> None:
    run = launcher(xp)
    if run is not None:
        try:
            unpack(xp, run, flat, target[0], [_relative(b, target[1]) for b in boxes])
            return
        except KernelTextError:
            pass
    start = 0
    for b in boxes:
        block_part(*target, b)[...] = flat[start : start + volume(b)].reshape(sides(b))
        start += volume(b)


def _relative(box: Box, block: Box) -> Box:
    return tuple((lo - low, hi - low) for (lo, hi), (low, _) in zip(box, block, strict=True))


def _held(xp: ModuleType, box: Box, source: tuple[Array, Box], target: tuple[Array, Box]) -> Array:
    """`box`, dense: elements of the source block, and others that arrived in the target in earlier phases.

    Memory of its own, or a part of the source block that is dense already: sources are not written while they are sent.
    """
    own, arrived = common(box, source[1]), common(box, target[1])
    if own == box:
        return xp.ascontiguousarray(block_part(*source, box))  # type: ignore[no-any-return]
    if volume(own) + volume(arrived) - volume(common(own, arrived)) != volume(box):
        raise TransportError(f"{box} is to be sent and is not held")
    out: Array = xp.empty(sides(box), dtype=source[0].dtype)
    for part, block in ((arrived, target), (own, source)):
        if volume(part):
            block_part(out, box, part)[...] = block_part(*block, part)
    return out


def reduction(xp: ModuleType, rank: int, step: Reduction, hierarchy: tuple[int, ...], array: Array, box: Box) -> Steps:
    """The requests of a reduction and, at the end, this rank's tile, combined over its group.  `array`: its partial
    block of `box`.
    """
    tile = step.tiles[rank]
    blocks = step.blocks(len(hierarchy))
    members = group_of(rank, list(step.digits), hierarchy)
    if len(blocks) == 1 and not any(step.scattered):
        flat = xp.ascontiguousarray(block_part(array, box, tile)).reshape(-1)
        return array_of((yield AllReduce(members, flat, step.combine))).reshape(sides(tile))
    if not is_even(step, members):
        return (yield from _unequal(xp, rank, step, hierarchy, array, box))
    buffer, chunk = _pack(xp, rank, step, hierarchy, array, box)
    left = list(range(len(step.digits)))
    for here in reversed(blocks):
        moved = buffer.transpose(
            [*(left.index(k) for k in here), *(n for n, k in enumerate(left) if k not in here), len(left)]
        )
        left = [k for k in left if k not in here]
        parts = xp.ascontiguousarray(moved).reshape(prod(step.digits[k].prime for k in here), -1)
        part = array_of(
            (yield ReduceScatter(group_of(rank, [step.digits[k] for k in here], hierarchy), parts, step.combine))
        )
        buffer = part.reshape((*(step.digits[k].prime for k in left), chunk))
    gathered: list[int] = []
    for block in blocks:
        back = [k for k in block if not step.scattered[k]]
        if back:
            everyone = array_of(
                (yield AllGather(group_of(rank, [step.digits[k] for k in back], hierarchy), buffer.reshape(-1)))
            )
            gathered = [*back, *gathered]
            buffer = everyone.reshape((*(step.digits[k].prime for k in gathered), chunk))
    ordered = buffer.transpose([*(gathered.index(k) for k in sorted(gathered)), len(gathered)])
    return xp.ascontiguousarray(ordered).reshape(-1)[: volume(tile)].reshape(sides(tile))  # type: ignore[no-any-return]


def _pack(
    xp: ModuleType, rank: int, step: Reduction, hierarchy: tuple[int, ...], array: Array, box: Box
) -> tuple[Array, int]:
    """The buffer of the module docstring and the length q of a chunk."""
    replicated = [d.prime for d, s in zip(step.digits, step.scattered, strict=True) if not s]
    scattered = [d for d, s in zip(step.digits, step.scattered, strict=True) if s]
    chunk = step.padded // prod(replicated)
    buffer: Array = xp.empty((*(d.prime for d in step.digits), chunk), dtype=array.dtype)
    members = group_of(rank, scattered, hierarchy)
    for values, member in zip(product(*(range(d.prime) for d in scattered)), members, strict=True):
        at = iter(values)
        index = tuple(next(at) if s else slice(None) for s in step.scattered)
        buffer[index] = block_part(array, box, step.tiles[member]).reshape((*replicated, chunk))
    return buffer, chunk


def _unequal(xp: ModuleType, rank: int, step: Reduction, hierarchy: tuple[int, ...], array: Array, box: Box) -> Steps:
    """`reduction` with portions of any size.  Members of the group are named by the values of their digits."""
    digits, kept = step.digits, [k for k, s in enumerate(step.scattered) if not s]
    blocks = step.blocks(len(hierarchy))
    everyone = dict(
        zip(product(*(range(d.prime) for d in digits)), group_of(rank, list(digits), hierarchy), strict=True)
    )
    mine = next(values for values, member in everyone.items() if member == rank)
    flat: dict[Box, Array] = {}
    chunks: dict[tuple[int, ...], Array] = {}
    sizes: dict[tuple[int, ...], int] = {}
    for values, member in everyone.items():
        tile, part = step.tiles[member], 0
        for k in kept:
            part = part * digits[k].prime + values[k]
        if tile not in flat:
            flat[tile] = xp.ascontiguousarray(block_part(array, box, tile)).reshape(-1)
        low, high = portion(volume(tile), part, prod(digits[k].prime for k in kept))
        chunks[values], sizes[values] = flat[tile][low:high], high - low
    for here in reversed(blocks):
        ways = list(product(*(range(digits[k].prime) for k in here)))
        listed = {way: [v for v in chunks if tuple(v[k] for k in here) == way] for way in ways}
        counts = tuple(sum(sizes[v] for v in listed[way]) for way in ways)
        sent = xp.concatenate([chunks[v] for way in ways for v in listed[way]])
        got = array_of(
            (yield ReduceScatter(group_of(rank, [digits[k] for k in here], hierarchy), sent, step.combine, counts))
        )
        chunks = _split(got, listed[tuple(mine[k] for k in here)], sizes)
    for block in blocks:
        back = [k for k in block if k in kept]
        if back:
            ways = list(product(*(range(digits[k].prime) for k in back)))
            order = [[_with(v, back, way) for v in chunks] for way in ways]
            counts = tuple(sum(sizes[v] for v in members) for members in order)
            sent = xp.concatenate(list(chunks.values()))
            got = array_of((yield AllGather(group_of(rank, [digits[k] for k in back], hierarchy), sent, counts)))
            chunks = _split(got, [v for members in order for v in members], sizes)
    return xp.concatenate([chunks[v] for v in sorted(chunks)]).reshape(sides(step.tiles[rank]))  # type: ignore[no-any-return]


def _with(values: tuple[int, ...], places: list[int], new: tuple[int, ...]) -> tuple[int, ...]:
    """`values` with those at `places` replaced."""
    out = list(values)
    for k, v in zip(places, new, strict=True):
        out[k] = v
    return tuple(out)


def _split(
    array: Array, names: list[tuple[int, ...]], sizes: dict[tuple[int, ...], int]
) -> dict[tuple[int, ...], Array]:
    """Consecutive pieces of a flat array."""
    edges = [0, *accumulate(sizes[n] for n in names)]
    return {n: array[a:b] for n, (a, b) in zip(names, pairwise(edges), strict=True)}
