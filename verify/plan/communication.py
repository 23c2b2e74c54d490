"""Checks communication steps by set arithmetic, rank by rank: `Delivers` and `Bytes`.

`check_delivers` follows what every device holds.  The state before the first step is: device d holds the elements of
its source box A_d, each with the one contribution of d.  The claim is that after the last step d holds every element of
its target box B_d with the contributions of exactly the devices that differ from d in the open digits of the source,
each once.

    reduction   at most one, first, and only for a partial source, which needs one
                * the groups are the classes of devices that agree outside the open digits, each device in one group,
                  each once
                * every member holds every tile of its group; members that agree in the scattered digits have the same
                  tile
                * a digit is flagged scattered only if the tiles change along it
                * the blocks of levels of its program hold every level once (`reductions`)
                afterwards d holds its tile with all contributions
    exchange    levels ascend from one exchange to the next; a transfer
                * stays inside the tensor, is not empty, and crosses `level` first
                * starts from a device that held all of its box when the exchange began
                * brings its target only elements of B_d that it did not have, each once
    end         |B_d and A_d| + what d received = |B_d|: nothing is missing

Transfers are tested in `verify/plan/transfers.py`, all of an exchange at a time.  `check_bytes` adds the elements and
phases up again, transfer by transfer.

No code of `models/communication/resharding`, `models/communication/pricing` or `models/layout/layout` is used: the
plan is read as data (its groups are what a backend executes).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...models.communication.resharding import CommunicationPlan, Reduction
from ...models.communication.transfers import Exchange
from ...models.layout.layout import Layout
from ...models.problem.claims import Verdict
from ..verdict import CheckResult
from .boxes import Box, DeviceBoxes, Digit, boxes_of, inside, volume
from .reductions import Loads, is_structure, moved_by
from .transfers import Arrivals, Refuted, refuse


def plain_layout(layout: Layout) -> DeviceBoxes:
    """A layout as plain numbers; ValueError if it is not one box per device inside the tensor, or has impossible
    digits.
    """
    devices = prod(layout.hierarchy)
    if layout.boxes.shape != (devices, len(layout.shape), 2):
        raise ValueError(
            f"the layout has boxes of shape {layout.boxes.shape} for {devices} devices and a tensor of shape "
            f"{layout.shape}"
        )
    extent = np.array(layout.shape, dtype=np.int64)
    low, high = layout.boxes[:, :, 0], layout.boxes[:, :, 1]
    outside = ((low < 0) | (low > high) | (high > extent)).any(axis=1)
    if outside.any():
        device = int(np.argmax(outside))
        raise ValueError(
            f"rank {device}: box {boxes_of(layout.boxes[device : device + 1])[0]} is not inside the tensor of "
            f"shape {layout.shape}"
        )
    digits = tuple(Digit(d.level, d.stride, d.prime) for d in layout.open)
    for d in digits:
        if (
            not 0 <= d.level < len(layout.hierarchy)
            or d.stride < 1
            or d.prime < 2
            or layout.hierarchy[d.level] % (d.stride * d.prime)
        ):
            raise ValueError(f"{d} is not a digit of the device numbers of {layout.hierarchy}")
    return DeviceBoxes(layout.hierarchy, layout.shape, layout.boxes, digits)


def check_delivers(plan: CommunicationPlan) -> CheckResult:
    """Do the steps bring every device its target box, fully summed?  See the module docstring."""
    try:
        _deliver(plan)
    except (Refuted, ValueError) as wrong:
        return CheckResult("Delivers", Verdict.REFUTED, None, None, "", (), str(wrong))
    return CheckResult("Delivers", Verdict.PROVED, None, None, "")


def check_bytes(plan: CommunicationPlan, loads: Sequence[int], phases: Sequence[int]) -> CheckResult:
    """Are `loads` (elements into the fullest subtree) and `phases`, per level, those of the steps?"""
    try:
        found = totals(plan)
    except (Refuted, ValueError) as wrong:
        return CheckResult("Bytes", Verdict.REFUTED, None, None, "", (), str(wrong))
    for name, said, counted in (("loads", tuple(loads), found[0]), ("phases", tuple(phases), found[1])):
        if said != counted:
            return CheckResult(
                "Bytes", Verdict.REFUTED, None, None, "", (), f"{name} per level are {counted}, not {said}"
            )
    return CheckResult("Bytes", Verdict.PROVED, None, None, "")


def totals(plan: CommunicationPlan) -> Loads:
    """Loads and phases per level, counted from the steps."""
    hierarchy = plan.source.hierarchy
    levels = range(len(hierarchy))
    loads, phases = [0] * len(hierarchy), [0] * len(hierarchy)
    entering = [np.zeros(prod(hierarchy[: i + 1]), dtype=np.int64) for i in levels]
    for step in plan.steps:
        if isinstance(step, Reduction):
            kept = prod(d.prime for d, s in zip(step.digits, step.scattered, strict=True) if not s)
            if step.padded != -(-max(map(volume, step.tiles)) // kept) * kept:
                raise Refuted(
                    f"reduction: {step.padded} is not the size of the largest tile padded to a multiple of {kept}"
                )
            digits = tuple(Digit(d.level, d.stride, d.prime) for d in step.digits)
            for total, part in zip(
                (loads, phases),
                moved_by(hierarchy, digits, step.scattered, step.padded, step.starts or tuple(levels)),
                strict=True,
            ):
                for i in levels:
                    total[i] += part[i]
        else:
            t = step.transfers
            ranks = prod(hierarchy)
            refuse(
                t,
                (t.sources < 0) | (t.sources >= ranks) | (t.targets < 0) | (t.targets >= ranks),
                f"there are {ranks} ranks",
            )
            if prod(plan.source.shape) >= 1 << 62:
                raise ValueError(f"a tensor of shape {plan.source.shape} has too many elements to be counted")
            low, high = t.boxes[:, :, 0], t.boxes[:, :, 1]
            outside = ((low < 0) | (high > np.array(plan.source.shape, dtype=np.int64))).any(axis=1)
            refuse(t, np.asarray(outside), f"it is not a box of the tensor of shape {plan.source.shape}")
            volumes = np.maximum(high - low, 0).prod(axis=1)
            if (int((volumes >> 31).sum()) << 31) + int(
                (volumes & (1 << 31) - 1).sum()
            ) >= 1 << 62:  # halves, so that no sum wraps
                raise ValueError(
                    f"{len(t)} transfers of a tensor of shape {plan.source.shape} have too many elements to be counted"
                )
            for i in levels:
                below = prod(hierarchy[i + 1 :])
                enters = t.sources // below != t.targets // below
                np.add.at(entering[i], t.targets[enters] // below, volumes[enters])
    for i in levels:
        loads[i] += int(entering[i].max())
        phases[i] += int(entering[i].any())
    return tuple(loads), tuple(phases)


def _deliver(plan: CommunicationPlan) -> None:
    source, target = plain_layout(plan.source), plain_layout(plan.target)
    if source.hierarchy != target.hierarchy or source.shape != target.shape:
        raise Refuted("source and target are not layouts of one tensor on one machine")
    if target.open:
        raise Refuted("the target is partial")
    have, steps = source.boxes, list(plan.steps)
    if source.open:
        if not steps or not isinstance(steps[0], Reduction):
            raise Refuted("the source is partial, and the first step is not its reduction")
        have = _reduced(steps.pop(0), plan, source)
    arrivals = Arrivals(source.hierarchy, source.shape, have)
    level = -1
    for step in steps:
        if not isinstance(step, Exchange):
            raise Refuted("a reduction of values that are not partial would add replicas up")
        if step.level <= level:
            raise Refuted(f"the exchange over level {step.level} comes after that over level {level}")
        level = step.level
        arrivals.add(step)
    arrivals.check(target.boxes)


def _reduced(step: object, plan: CommunicationPlan, source: DeviceBoxes) -> tuple[Box, ...]:
    """The tiles, after every test of the module docstring."""
    if not isinstance(step, Reduction):
        raise Refuted("the first step is not a reduction")
    hierarchy, devices = source.hierarchy, len(source.boxes)
    digits = [Digit(d.level, d.stride, d.prime) for d in step.digits]
    if sorted(map(repr, digits)) != sorted(map(repr, source.open)) or len(step.scattered) != len(digits):
        raise Refuted(f"reduction over the digits {digits}, but the source is partial along {list(source.open)}")
    if step.starts and not is_structure(step.starts, len(hierarchy)):
        raise Refuted(f"reduction: blocks that begin at levels {list(step.starts)} do not hold every level once")
    if step.combine is not plan.source.combine:
        raise Refuted(f"reduction by {step.combine.value}, but the source is partial in another way")
    expected: dict[int, list[int]] = {}
    scattered_from: dict[int, int] = {}
    for d in range(devices):
        leader = keeper = d
        for digit, scattered in zip(digits, step.scattered, strict=True):
            leader = digit.device_at_zero(leader, hierarchy)
            keeper = keeper if scattered else digit.device_at_zero(keeper, hierarchy)
        expected.setdefault(leader, []).append(d)
        scattered_from[d] = keeper
    groups = step.groups(hierarchy)
    for group in groups:
        members = expected.pop(min(group), None)
        if members is None or sorted(group) != members:
            raise Refuted(
                f"reduction: ranks {list(group)} are not the ranks that hold parts of the same sum, each once "
                f"({members})"
            )
    if expected:
        raise Refuted(f"reduction: ranks {next(iter(expected.values()))} hold parts of one sum and are in no group")
    if len(step.tiles) != devices:
        raise Refuted(f"reduction: {len(step.tiles)} tiles for {devices} devices")
    for group in groups:
        parts = {
            source.boxes[m]: m for m in reversed(group)
        }  # members hold parts of the same elements: one box, many tiles
        for box in dict.fromkeys(step.tiles[m] for m in group):
            _check_box(box, source.shape, f"reduction: rank {min(group)}")
            for part, m in parts.items():
                if not inside(box, part):
                    raise Refuted(f"reduction: rank {m} holds no part of {box}, which its group sums")
    for d in range(devices):
        if step.tiles[d] != step.tiles[scattered_from[d]]:
            raise Refuted(
                f"reduction: ranks {scattered_from[d]} and {d} agree in the scattered digits, but their tiles "
                f"differ: {step.tiles[d]}"
            )
    for digit, scattered in zip(digits, step.scattered, strict=True):
        if scattered and all(step.tiles[d] == step.tiles[digit.device_at_zero(d, hierarchy)] for d in range(devices)):
            raise Refuted(f"reduction: {digit} is flagged scattered, but no tile changes along it")
    return step.tiles


def _check_box(box: Box, shape: tuple[int, ...], place: str) -> None:
    if len(box) != len(shape) or any(not 0 <= low <= high <= n for (low, high), n in zip(box, shape, strict=True)):
        raise Refuted(f"{place}: {box} is not a box of the tensor of shape {shape}")
