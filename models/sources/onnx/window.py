"""Translates ONNX convolutions and pools: attributes become windows (`flat_window`)."""

from __future__ import annotations

from collections.abc import Sequence

from ...program.operator_invariants import MOST_AXIS
from ...program.operators import Value
from ..building.flat import Unsupported, letters
from ..building.flat_window import Window, convolve, pool_windows, window
from .context import Context, Handler, Node, OnnxError


def windows(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """Geometry per spatial dimension.  Raises `OnnxError` when a list has the wrong length or a window does not fit."""
    rank, place = len(spatial), f"node {node.name!r}"
    strides = node.integers("strides") or (1,) * rank
    dilations = node.integers("dilations") or (1,) * rank
    pads = node.integers("pads") or (0,) * (2 * rank)
    for what, given, wanted in (
        ("kernel_shape", kernel, rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(given) != wanted:
            raise OnnxError(place, f"{what} needs {wanted} numbers, has {list(given)}")
        least = 0 if what == "pads" else 1
        if not all(least <= n <= MOST_AXIS for n in given):
            raise OnnxError(place, f"{what} {list(given)}: every number must lie between {least} and {MOST_AXIS}")
    auto, ceil = node.text("auto_pad", "NOTSET"), node.integer("ceil_mode", 0)
    out: list[Window] = []
    for k, (n, size, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = d * (size - 1) + 1
        before, after = pads[k], pads[rank + k]
        match auto:
            case "SAME_UPPER" | "SAME_LOWER":
                total = max(0, ((n + s - 1) // s - 1) * s + reach - n)
                before, after = (
                    (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)
                )
            case "VALID":
                before, after = 0, 0
            case "NOTSET":
                pass
            case _:
                raise OnnxError(place, f"unknown auto_pad {auto!r}")
        out.append(window(letters(rank + 2)[2 + k], n, size, s, d, before, after, bool(ceil)))
    return out


def convolution(c: Context, node: Node) -> None:
    """Conv with groups, dilation, padding and bias."""
    x, w = c.tensor(node.inputs[0]), c.tensor(node.inputs[1])
    spatial, kernel = c.g.tensors[x].shape[2:], c.g.tensors[w].shape[2:]
    wins = windows(node, spatial, node.integers("kernel_shape") or kernel)
    if tuple(v.kernel for v in wins) != kernel:
        raise OnnxError(f"node {node.name!r}", f"kernel_shape contradicts the weight's shape {c.g.tensors[w].shape}")
    bias = c.tensor(node.inputs[2]) if node.has(2) else None
    c.result(node, convolve(c, node, x, w, bias, wins, node.integer("group", 1)))


def pool(c: Context, node: Node) -> None:
    """MaxPool and AveragePool."""
    c.require_unused(node, 1)
    x, kernel = c.tensor(node.inputs[0]), node.integers("kernel_shape")
    if kernel is None:
        raise OnnxError(f"node {node.name!r}", "lacks kernel_shape")
    wins, average = windows(node, c.g.tensors[x].shape[2:], kernel), node.kind == "AveragePool"
    attributes: dict[str, Value] = {}
    if average:
        include = node.integer("count_include_pad", 0)
        if include and any(v.overhang for v in wins):
            raise Unsupported("count_include_pad=1 with windows beyond the padding")
        attributes["count_include_pad"] = include
    c.result(node, pool_windows(c, node, x, wins, "average_pool" if average else "max_pool", attributes))


HANDLERS: dict[str, Handler] = {"Conv": convolution, "MaxPool": pool, "AveragePool": pool}
