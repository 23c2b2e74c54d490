"""Prices linear layers that read the same rows as frameworks run them: as one product.

    forward              x W_1 .. x W_n               ->  x [W_1 .. W_n]           columns side by side
    gradients of weights x^T y_1 .. x^T y_n           ->  x^T [y_1 .. y_n]         likewise
    gradient of rows     y_1 W_1^T + .. + y_n W_n^T   ->  [y_1 .. y_n] [W_1 .. W_n]^T    one sum, and nothing is added

A graph has the projections of attention and the two halves of a gate apart; Megatron (`linear_qkv`, `linear_fc1`) and
nanotron (`qkv_proj`, `gate_up_proj`) keep their weights in one tensor.  Wider and deeper products fill a device better
(`models.cost.products`).  How many kernels are launched is not changed: where one product stands for three, splits into
heads are launched that a graph has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from ..program.operators import Operator
from .alone import Device, Kernel


@dataclass(frozen=True)
class _Linear:
    """A product of two matrices: m x k times k x n; `summed`: dimensions of both operands that are summed."""

    op: Operator
    m: int
    n: int
    k: int
    summed: tuple[tuple[int, ...], tuple[int, ...]]


def joint_kernels(device: Device, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels of one pass, with products of the same rows at the time of one product.

    >>> from ..machine.machine import load_machine
    >>> from ..sources.zoo import build
    >>> graph = build("llama", layers=1, batch=1, sequence=1024)
    >>> device = Device(graph, load_machine("dgx-h100"), {})
    >>> apart = device.kernels(graph.operators)
    >>> together = joint_kernels(device, apart)
    >>> len(apart) == len(together), sum(k.seconds for k in together) < sum(k.seconds for k in apart)
    (True, True)
    """
    graph, out = device.graph, list(kernels)
    at = {kernel.operators[0]: i for i, kernel in enumerate(kernels) if len(kernel.operators) == 1}
    linear = {name: found for name in at if (found := _linear(device, graph.operator(name))) is not None}
    for group, side in _side_by_side(list(linear.values())):
        moved = device.read_by(group[0].op, side)
        moved += sum(device.read_by(x.op, 1 - side) + device.bytes_of(x.op) for x in group)
        one = group[0]
        wide = (sum(x.m for x in group), one.n, one.k) if side else (one.m, sum(x.n for x in group), one.k)
        _put(out, [at[x.op.name] for x in group], device.product_seconds(one.op, wide, moved))
    writer = graph.writer()
    for name, i in at.items():
        added = graph.operator(name)
        sources = [writer.get(a.tensor) for a in added.inputs] if added.function == "sum_inputs" else []
        terms = [linear.get(graph.operators[w].name) for w in sources if w is not None]
        group = [x for x in terms if x is not None]
        if len(group) < 2 or len(group) < len(sources) or len({(x.m, x.n) for x in group}) > 1:
            continue
        moved = sum(device.read_by(x.op, side) for x in group for side in (0, 1)) + device.bytes_of(added)
        deep = group[0].m, group[0].n, sum(x.k for x in group)
        _put(out, [*(at[x.op.name] for x in group), i], device.product_seconds(group[0].op, deep, moved))
    return out


def _put(out: list[Kernel], where: Sequence[int], seconds: Fraction | None) -> None:
    """The kernels there take so long together, if that is less than they do."""
    if seconds is not None and seconds < sum(out[i].seconds for i in where):
        for i in where:
            out[i] = replace(out[i], seconds=seconds if i == where[0] else Fraction(0))


def _linear(device: Device, op: Operator) -> _Linear | None:
    """The operator as a product of two matrices; None for any other."""
    if op.function != "product" or len(op.inputs) != 2:
        return None
    if any(i.single is None for a in op.inputs for i in a.index):
        return None
    share, reduced = device.share(op), {a.name for a in op.reduction_axes}
    first, second = (set(a.axes) for a in op.inputs)
    if first & second != reduced or not (reduced and first - reduced and second - reduced):
        return None
    m, n, k = (prod(share[x] for x in axes) for axes in (first - reduced, second - reduced, reduced))
    summed = [tuple(d for d, i in enumerate(a.index) if i.single in reduced) for a in op.inputs]
    return _Linear(op, m, n, k, (summed[0], summed[1]))


def _side_by_side(found: Sequence[_Linear]) -> list[tuple[list[_Linear], int]]:
    """Products that read one tensor in the same way, two and more of them, and which operand that is."""
    groups = dict[tuple[str, int, tuple[int, ...], int, int], list[_Linear]]()
    for x in found:
        for side, own in ((0, x.m), (1, x.n)):
            groups.setdefault((x.op.inputs[side].tensor, side, x.summed[side], own, x.k), []).append(x)
    return [(group, key[1]) for key, group in groups.items() if len(group) > 1]
