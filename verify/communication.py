"""Checks of communication steps by set arithmetic, rank by rank: `Delivers` and `Bytes`.

`check_delivers` follows what every device holds.  The state before the first step is: device d holds the elements of its source box
A_d, each with the one contribution of d.  The claim is that after the last step d holds every element of its target box B_d with
the contributions of exactly the devices that differ from d in the open digits of the source, each once.

    reduction   at most one, first, and only for a partial source, which needs one
                * the groups are the classes of devices that agree outside the open digits, each device in one group, each once
                * every member holds every tile of its group; members that agree in the scattered digits have the same tile
                * a digit is flagged scattered only if the tiles change along it
                afterwards d holds its tile with all contributions
    exchange    levels ascend from one exchange to the next; a transfer
                * stays inside the tensor, is not empty, and crosses `level` first
                * starts from a device that held all of its box when the exchange began
                * brings its target only elements of B_d that it did not have, each once
    end         |B_d and A_d| + what d received = |B_d|: nothing is missing

`check_bytes` adds the elements and phases up again, transfer by transfer.

No code of `models/communication`, `models/pricing` or `models/layout` is used: the plan is read as data (its groups are what a
backend executes).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..models.claims import Verdict
from ..models.communication import CommunicationPlan, Exchange, Reduction
from ..models.layout import Layout
from .boxes import Box, Digit, Held, difference, inside, volume
from .entries import Loads, reduction
from .verdict import CheckResult

MOST_CELLS = 1 << 24


class _Refuted(Exception):
    """A step that is wrong; the message names rank and box."""


def held(layout: Layout) -> Held:
    """A layout as plain numbers; ValueError if it is not one box per device inside the tensor, or has impossible digits."""
    devices = prod(layout.hierarchy)
    if layout.boxes.shape != (devices, len(layout.shape), 2):
        raise ValueError(f"the layout has boxes of shape {layout.boxes.shape} for {devices} devices and a tensor of shape {layout.shape}")
    boxes: list[Box] = [tuple((low, high) for low, high in box) for box in layout.boxes.tolist()]
    for device, box in enumerate(boxes):
        if any(not 0 <= low <= high <= n for (low, high), n in zip(box, layout.shape, strict=True)):
            raise ValueError(f"rank {device}: box {box} is not inside the tensor of shape {layout.shape}")
    digits = tuple(Digit(d.level, d.stride, d.prime) for d in layout.open)
    for d in digits:
        if not 0 <= d.level < len(layout.hierarchy) or d.stride < 1 or d.prime < 2 or layout.hierarchy[d.level] % (d.stride * d.prime):
            raise ValueError(f"{d} is not a digit of the device numbers of {layout.hierarchy}")
    return Held(layout.hierarchy, layout.shape, tuple(boxes), digits)


def check_delivers(plan: CommunicationPlan) -> CheckResult:
    """Do the steps bring every device its target box, fully summed?  See the module docstring."""
    try:
        _deliver(plan)
    except (_Refuted, ValueError) as wrong:
        return CheckResult("Delivers", Verdict.REFUTED, None, None, "", (), str(wrong))
    return CheckResult("Delivers", Verdict.PROVED, None, None, "")


def check_bytes(plan: CommunicationPlan, loads: Sequence[int], phases: Sequence[int]) -> CheckResult:
    """Are `loads` (elements into the fullest subtree) and `phases`, per level, those of the steps?"""
    try:
        found = totals(plan)
    except (_Refuted, ValueError) as wrong:
        return CheckResult("Bytes", Verdict.REFUTED, None, None, "", (), str(wrong))
    for name, said, counted in (("loads", tuple(loads), found[0]), ("phases", tuple(phases), found[1])):
        if said != counted:
            return CheckResult("Bytes", Verdict.REFUTED, None, None, "", (), f"{name} per level are {counted}, not {said}")
    return CheckResult("Bytes", Verdict.PROVED, None, None, "")


def totals(plan: CommunicationPlan) -> Loads:
    """Loads and phases per level, counted from the steps."""
    hierarchy = plan.source.hierarchy
    levels = range(len(hierarchy))
    loads, phases = [0] * len(hierarchy), [0] * len(hierarchy)
    entering = [[0] * prod(hierarchy[: i + 1]) for i in levels]
    for step in plan.steps:
        if isinstance(step, Reduction):
            kept = prod(d.prime for d, s in zip(step.digits, step.scattered, strict=True) if not s)
            if step.padded != -(-max(map(volume, step.tiles)) // kept) * kept:
                raise _Refuted(f"reduction: {step.padded} is not the size of the largest tile padded to a multiple of {kept}")
            digits = tuple(Digit(d.level, d.stride, d.prime) for d in step.digits)
            for total, part in zip((loads, phases), reduction(hierarchy, digits, step.scattered, step.padded), strict=True):
                for i in levels:
                    total[i] += part[i]
        else:
            for t in step.transfers:
                for i in levels:
                    below = prod(hierarchy[i + 1 :])
                    if t.source // below != t.target // below:
                        entering[i][t.target // below] += volume(t.box)
    for i in levels:
        loads[i] += max(entering[i])
        phases[i] += int(any(entering[i]))
    return tuple(loads), tuple(phases)


def _deliver(plan: CommunicationPlan) -> None:
    source, target = held(plan.source), held(plan.target)
    if source.hierarchy != target.hierarchy or source.shape != target.shape:
        raise _Refuted("source and target are not layouts of one tensor on one machine")
    if target.open:
        raise _Refuted("the target is partial")
    have, steps = source.boxes, list(plan.steps)
    if source.open:
        if not steps or not isinstance(steps[0], Reduction):
            raise _Refuted("the source is partial, and the first step is not its reduction")
        have = _reduced(steps.pop(0), plan, source)
    received: list[list[Box]] = [[] for _ in have]
    level = -1
    for step in steps:
        if not isinstance(step, Exchange):
            raise _Refuted("a reduction of values that are not partial would add replicas up")
        if step.level <= level:
            raise _Refuted(f"the exchange over level {step.level} comes after that over level {level}")
        level = step.level
        _exchange(step, source.hierarchy, source.shape, have, received)
    for device, (mine, need) in enumerate(zip(have, target.boxes, strict=True)):
        _check_arrived(device, mine, need, received[device])


def _reduced(step: object, plan: CommunicationPlan, source: Held) -> tuple[Box, ...]:
    """The tiles, after every test of the module docstring."""
    if not isinstance(step, Reduction):
        raise _Refuted("the first step is not a reduction")
    hierarchy, devices = source.hierarchy, len(source.boxes)
    digits = [Digit(d.level, d.stride, d.prime) for d in step.digits]
    if sorted(map(repr, digits)) != sorted(map(repr, source.open)) or len(step.scattered) != len(digits):
        raise _Refuted(f"reduction over the digits {digits}, but the source is partial along {list(source.open)}")
    if step.combine is not plan.source.combine:
        raise _Refuted(f"reduction by {step.combine.value}, but the source is partial in another way")
    expected: dict[int, list[int]] = {}
    scattered_from: dict[int, int] = {}
    for d in range(devices):
        leader = keeper = d
        for digit, scattered in zip(digits, step.scattered, strict=True):
            leader = digit.zeroed(leader, hierarchy)
            keeper = keeper if scattered else digit.zeroed(keeper, hierarchy)
        expected.setdefault(leader, []).append(d)
        scattered_from[d] = keeper
    groups = step.groups(hierarchy)
    for group in groups:
        members = expected.pop(min(group), None)
        if members is None or sorted(group) != members:
            raise _Refuted(f"reduction: ranks {list(group)} are not the ranks that hold parts of the same sum, each once ({members})")
    if expected:
        raise _Refuted(f"reduction: ranks {next(iter(expected.values()))} hold parts of one sum and are in no group")
    if len(step.tiles) != devices:
        raise _Refuted(f"reduction: {len(step.tiles)} tiles for {devices} devices")
    for group in groups:
        for box in {step.tiles[m] for m in group}:
            _check_box(box, source.shape, f"reduction: rank {min(group)}")
            for m in group:
                if not inside(box, source.boxes[m]):
                    raise _Refuted(f"reduction: rank {m} holds no part of {box}, which its group sums")
    for d in range(devices):
        if step.tiles[d] != step.tiles[scattered_from[d]]:
            raise _Refuted(f"reduction: ranks {scattered_from[d]} and {d} agree in the scattered digits, but their tiles differ: {step.tiles[d]}")
    for digit, scattered in zip(digits, step.scattered, strict=True):
        if scattered and all(step.tiles[d] == step.tiles[digit.zeroed(d, hierarchy)] for d in range(devices)):
            raise _Refuted(f"reduction: {digit} is flagged scattered, but no tile changes along it")
    return step.tiles


def _exchange(step: Exchange, hierarchy: tuple[int, ...], shape: tuple[int, ...], have: Sequence[Box], received: list[list[Box]]) -> None:
    """Test every transfer of one exchange, then add it to what its target received."""
    if not 0 <= step.level < len(hierarchy):
        raise _Refuted(f"exchange over level {step.level}, which does not exist")
    around, child = prod(hierarchy[step.level :]), prod(hierarchy[step.level + 1 :])
    before = {d: np.array(boxes, dtype=np.int64) for d, boxes in enumerate(received) if boxes}
    for t in step.transfers:
        place = f"transfer of {t.box} from rank {t.source} to rank {t.target}"
        if not (0 <= t.source < len(have) and 0 <= t.target < len(have)):
            raise _Refuted(f"{place}: there are {len(have)} ranks")
        _check_box(t.box, shape, place)
        if volume(t.box) == 0:
            raise _Refuted(f"{place}: nothing is sent")
        if t.source // around != t.target // around or t.source // child == t.target // child:
            raise _Refuted(f"{place}: level {step.level} is not the first one it crosses")
        if not inside(t.box, have[t.source]) and not _covered(t.box, have[t.source], before.get(t.source)):
            raise _Refuted(f"{place}: the sender does not hold it at the start of the exchange over level {step.level}")
        received[t.target].append(t.box)


def _covered(box: Box, mine: Box, earlier: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None) -> bool:
    """`box` is inside the union of `mine` and the boxes received earlier: shape (boxes, dimensions, 2)."""
    if earlier is None:
        return False
    want = np.array(box, dtype=np.int64)
    touching = earlier[((earlier[:, :, 0] < want[:, 1]) & (earlier[:, :, 1] > want[:, 0])).all(axis=1)]
    if ((touching[:, :, 0] <= want[:, 0]) & (touching[:, :, 1] >= want[:, 1])).all(axis=1).any():
        return True
    pieces: list[Box] = [tuple((low, high) for low, high in piece) for piece in touching.tolist()]
    return difference([box], [mine, *pieces]) == 0


def _check_arrived(device: int, mine: Box, need: Box, received: list[Box]) -> None:
    """What `device` had and what it received make up its target box, without overlap."""
    overlap: Box = tuple((max(a, x), min(b, y)) for (a, b), (x, y) in zip(mine, need, strict=True))
    parts = [*([overlap] if volume(overlap) and volume(mine) else []), *received]
    for box in received:
        if not inside(box, need):
            raise _Refuted(f"rank {device} receives {box}, which is not in its target box {need}")
    total = sum(map(volume, parts))
    if total < volume(need):
        raise _Refuted(f"rank {device} lacks {volume(need) - total} elements of its target box {need}")
    if len(parts) < 2:
        return
    cuts = [sorted({end for box in parts for end in box[k]}) for k in range(len(need))]
    if prod(len(c) - 1 for c in cuts) > MOST_CELLS:
        raise _Refuted(f"rank {device} receives {len(received)} boxes, too finely cut to be checked")
    places = [{end: i for i, end in enumerate(c)} for c in cuts]
    seen = np.zeros([len(c) - 1 for c in cuts], dtype=bool)
    for box in parts:
        cells = seen[tuple(slice(p[low], p[high]) for p, (low, high) in zip(places, box, strict=True))]
        if cells.any():
            raise _Refuted(f"rank {device} receives elements of {box} that it already has")
        cells[...] = True


def _check_box(box: Box, shape: tuple[int, ...], place: str) -> None:
    if len(box) != len(shape) or any(not 0 <= low <= high <= n for (low, high), n in zip(box, shape, strict=True)):
        raise _Refuted(f"{place}: {box} is not a box of the tensor of shape {shape}")
