"""The steps of a redistribution, carried out by one rank.

Reduction.  Open digits o_1 .. o_m with primes p_k, tile of `padded` elements, R = product of the replicated primes, q = padded / R.
    pack        buffer[v_1, .., v_m, :]  =  chunk (v_k, k replicated) of the tile that the members with scattered digits
                (v_k, k scattered) want, cut from the rank's partial block; neutral elements fill up
    scatter     per level, innermost first: combine over the group of that level's digits, keep the own values
    gather      per level, outermost first: collect the chunks of that level's replicated digits
A reduction inside one level with nothing scattered is one all-reduce.

Exchange.  Every rank holds its source block and what arrived in earlier phases; received boxes go straight into the target.
"""

from __future__ import annotations

from itertools import product
from math import prod
from types import ModuleType

from ..models.communication import Box, CommunicationPlan, Exchange, Reduction, digit_value
from ..models.layout import OpenDigit
from .kernels import Array, neutral
from .transport import Transport, TransportError
from .transport.patterns import patterns


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


def cut(array: Array, box: Box, part: Box) -> Array:
    """The view of `part` inside the block `array` of `box`; `TransportError` if it is not all there."""
    if volume(part) == 0:
        return array[(slice(0, 0),) * len(box)].reshape(sides(part)) if box else array
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
    return tuple(base + sum(v * w for v, w in zip(values, weights, strict=True)) for values in product(*(range(d.prime) for d in digits)))


def redistribute(xp: ModuleType, transport: Transport, plan: CommunicationPlan, array: Array) -> Array:
    """This rank's block of `plan.target`, from its block of `plan.source`.  All ranks call it together."""
    rank, hierarchy = transport.rank, plan.source.hierarchy
    box = plan.source.box(rank)
    for step in plan.steps:
        if isinstance(step, Reduction):
            array, box = reduce(xp, transport, step, hierarchy, array, box), step.tiles[rank]
    exchanges = [step for step in plan.steps if isinstance(step, Exchange)]
    target = plan.target.box(rank)
    if not exchanges:
        return cut(array, box, target)
    out: Array = xp.empty(sides(target), dtype=array.dtype)
    kept = common(box, target)
    if volume(kept):
        cut(out, target, kept)[...] = cut(array, box, kept)
    for step in exchanges:
        _exchange(xp, transport, step, (array, box), (out, target))
    return out


def _exchange(xp: ModuleType, transport: Transport, step: Exchange, source: tuple[Array, Box], target: tuple[Array, Box]) -> None:
    rank = transport.rank
    pattern = next((p for p in patterns(step) if rank in p.group), None)
    if pattern is None:
        return
    outgoing: dict[int, list[Array]] = {}
    expected: dict[int, list[Box]] = {}
    for t in pattern.transfers:
        if t.source == rank:
            outgoing.setdefault(t.target, []).append(_held(xp, t.box, source, target).reshape(-1))
        if t.target == rank:
            expected.setdefault(t.source, []).append(t.box)
    flat = {r: parts[0] if len(parts) == 1 else xp.concatenate(parts) for r, parts in outgoing.items()}
    counts = {r: sum(volume(b) for b in boxes) for r, boxes in expected.items()}
    arrived = transport.exchange(pattern, flat, counts, source[0])
    for r, boxes in expected.items():
        start = 0
        for b in boxes:
            cut(*target, b)[...] = arrived[r][start : start + volume(b)].reshape(sides(b))
            start += volume(b)


def _held(xp: ModuleType, box: Box, source: tuple[Array, Box], target: tuple[Array, Box]) -> Array:
    """A fresh copy of `box`: elements of the source block, and others that arrived in the target in earlier phases."""
    own, arrived = common(box, source[1]), common(box, target[1])
    if volume(own) + volume(arrived) - volume(common(own, arrived)) != volume(box):
        raise TransportError(f"{box} is to be sent and is not held")
    out: Array = xp.empty(sides(box), dtype=source[0].dtype)
    for part, block in ((arrived, target), (own, source)):
        if volume(part):
            cut(out, box, part)[...] = cut(*block, part)
    return out


def reduce(xp: ModuleType, transport: Transport, step: Reduction, hierarchy: tuple[int, ...], array: Array, box: Box) -> Array:
    """This rank's tile, combined over its group.  `array` is its partial block of `box`."""
    rank = transport.rank
    tile = step.tiles[rank]
    levels = sorted({d.level for d in step.digits})
    if len(levels) == 1 and not any(step.scattered):
        flat = _padded(xp, cut(array, box, tile), step)
        total = transport.all_reduce(group_of(rank, list(step.digits), hierarchy), flat, step.combine)
        return total[: volume(tile)].reshape(sides(tile))
    buffer, chunk = _pack(xp, transport.rank, step, hierarchy, array, box)
    left = list(range(len(step.digits)))
    for level in reversed(levels):
        here = [k for k in left if step.digits[k].level == level]
        moved = buffer.transpose([*(left.index(k) for k in here), *(n for n, k in enumerate(left) if k not in here), len(left)])
        left = [k for k in left if k not in here]
        parts = xp.ascontiguousarray(moved).reshape(prod(step.digits[k].prime for k in here), -1)
        part = transport.reduce_scatter(group_of(rank, [step.digits[k] for k in here], hierarchy), parts, step.combine)
        buffer = part.reshape((*(step.digits[k].prime for k in left), chunk))
    gathered: list[int] = []
    for level in levels:
        here = [k for k, d in enumerate(step.digits) if d.level == level and not step.scattered[k]]
        if here:
            everyone = transport.all_gather(group_of(rank, [step.digits[k] for k in here], hierarchy), buffer.reshape(-1))
            gathered = [*here, *gathered]
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
        buffer[index] = _padded(xp, cut(array, box, step.tiles[member]), step).reshape((*replicated, chunk))
    return buffer, chunk


def _padded(xp: ModuleType, tile: Array, step: Reduction) -> Array:
    """The tile, flat, with neutral elements up to `step.padded`."""
    flat: Array = xp.full((step.padded,), neutral(tile.dtype, step.combine), dtype=tile.dtype)
    flat[: tile.size] = tile.reshape(-1)
    return flat
