"""What every device receives in a resharding, element by element: the exact counterpart of the
loads that are priced.

    portion k of n elements in p parts   [ k n // p, (k+1) n // p )                                parts differ by one
                                         element at most
    reduction   the devices that want the same tile own a portion of it each; s_v = size of the portion of member v
                scatter, block = last .. first  (g - 1) * sum of s_v over the members v that agree with the device in
                                                the digits of this block and those inside it
                gather,  block = first .. last  the portions of the members that differ in this block and those outside
                                                it, less those it has already
                either from the member before it in the ring of the block, whose number is the next smaller one
    exchange    the boxes of its transfers

Summed over the group this is  (g - 1) * (elements of all its distinct tiles) + (replicas - 1) * (the same):  the least
that a sum can cost where every rank holds a part (`backends.lowering.traffic`).  (L2) of `models.communication.pricing`
prices the largest portion for everybody: never less than this, and equal where tiles are equal and can be cut evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from math import prod

import numpy as np

from ...models.communication.resharding import CommunicationPlan, Reduction
from ...models.communication.transfers import crossing


def portion(elements: int, k: int, parts: int) -> tuple[int, int]:
    """Range of part k when `elements` are cut into parts as equal as they can be.

    >>> [portion(7, k, 3) for k in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    return k * elements // parts, (k + 1) * elements // parts


def reduction_receives(step: Reduction, hierarchy: tuple[int, ...]) -> list[list[int]]:
    """Elements that every device receives in a reduction, by the outermost level they cross: [device][level].

    >>> from ...models.program.index import Combine
    >>> from ...models.layout.layout import OpenDigit
    >>> # one number, summed over four devices and wanted by all: device 3 receives three parts, the others the sum
    >>> one = (((0, 1),),) * 4
    >>> reduction_receives(Reduction(Combine.SUM, (OpenDigit(0, 2, 2), OpenDigit(0, 1, 2)), (False, False), one, 4),
    ...     (4,))
    [[1], [1], [1], [3]]
    """
    blocks = step.blocks(len(hierarchy))
    both = [*blocks, *(tuple(k for k in block if not step.scattered[k]) for block in blocks)]
    rings = {block: _Ring(step, block, hierarchy) for block in both if block}
    received = [[0] * len(hierarchy) for _ in range(prod(hierarchy))]
    radix, kept = [d.prime for d in step.digits], [k for k, scattered in enumerate(step.scattered) if not scattered]
    values = list(product(*(range(p) for p in radix)))
    for group in step.groups(hierarchy):
        sizes = []
        for v, device in zip(values, group, strict=True):
            part = 0
            for k in kept:
                part = part * radix[k] + v[k]
            low, high = portion(prod(b - a for a, b in step.tiles[device]), part, prod(radix[k] for k in kept))
            sizes.append(high - low)
        table = np.array(sizes, dtype=np.int64).reshape(radix)
        for v, device in zip(values, group, strict=True):
            outside: set[int] = set()
            for block in blocks:
                ways = prod(radix[k] for k in block)
                own = tuple(slice(None) if k in outside else v[k] for k in range(len(radix)))
                received[device][rings[block].level(device, v)] += (ways - 1) * int(table[own].sum())
                back = tuple(k for k in block if k in kept)
                if back:
                    level = rings[back].level(device, v)
                    before = tuple(slice(None) if k in outside and k in kept else v[k] for k in range(len(radix)))
                    after = tuple(
                        slice(None) if (k in outside or k in back) and k in kept else v[k] for k in range(len(radix))
                    )
                    received[device][level] += int(table[after].sum()) - int(table[before].sum())
                outside.update(block)
    return received


class _Ring:
    """The ring over the digits `block`: of every member the outermost level between it and the member before it."""

    def __init__(self, step: Reduction, block: Sequence[int], hierarchy: tuple[int, ...]) -> None:
        self._block = block
        self._weights = [step.digits[k].stride * prod(hierarchy[step.digits[k].level + 1 :]) for k in block]
        self._below = [prod(hierarchy[i + 1 :]) for i in range(len(hierarchy))]
        ways = product(*(range(step.digits[k].prime) for k in block))
        offsets = sorted(sum(v * w for v, w in zip(way, self._weights, strict=True)) for way in ways)
        self._previous = dict(zip(offsets, (offsets[-1], *offsets), strict=False))

    def level(self, device: int, values: tuple[int, ...]) -> int:
        """`values`: of all digits of the step at `device`."""
        mine = sum(values[k] * w for k, w in zip(self._block, self._weights, strict=True))
        previous = device - mine + self._previous[mine]
        return next(i for i, w in enumerate(self._below) if device // w != previous // w)


def is_even(step: Reduction, group: tuple[int, ...]) -> bool:
    """Whether every tile of the group has `padded` elements, so that all portions are equal."""
    return all(prod(high - low for low, high in step.tiles[device]) == step.padded for device in group)


def receives(plan: CommunicationPlan) -> list[list[int]]:
    """Elements that every device receives from outside its level-i subtree: [device][level i]."""
    hierarchy = plan.source.hierarchy
    received = np.zeros((prod(hierarchy), len(hierarchy)), dtype=np.int64)
    for step in plan.steps:
        if isinstance(step, Reduction):
            received += np.array(reduction_receives(step, hierarchy), dtype=np.int64)
        else:
            t = step.transfers
            np.add.at(received, (t.targets, crossing(t.sources, t.targets, hierarchy)), t.volumes())
    return [list(accumulate(levels)) for levels in received.tolist()]
