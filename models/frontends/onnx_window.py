"""ONNX convolutions and pools: per spatial dimension  index = stride * out + dilation * tap - pad.

Taps of extent 1 are left out, so that a 1x1 convolution reads plain axes.  Grouped convolutions work on channels in digits,
x[b, g, c, ..] * w[g, o, c, ..] -> [b, g, o, ..], between two views; one channel per group (depthwise) needs no views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..index import Access, Affine, Axis, Combine
from ..operators import Value
from .onnx_context import Context, Handler, Node, OnnxError, Unsupported, letters


@dataclass(frozen=True)
class Window:
    """Geometry of one spatial dimension."""

    name: str
    extent: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    overhang: bool

    @property
    def index(self) -> Affine:
        """Index of the input dimension."""
        plain = Affine.axis(self.name, self.stride)
        return (plain if self.kernel == 1 else plain.plus(f"k{self.name}", self.dilation)).shift(-self.pad)

    @property
    def tap(self) -> Affine:
        """Index of the weight's dimension."""
        return Affine() if self.kernel == 1 else Affine.axis(f"k{self.name}")

    def taps(self, combine: Combine) -> list[Axis]:
        """The tap axis, if there is more than one tap."""
        return [] if self.kernel == 1 else [Axis(f"k{self.name}", self.kernel, combine, False)]


def windows(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """Geometry per spatial dimension.  Raises `OnnxError` when a list has the wrong length or a window does not fit."""
    rank, place = len(spatial), f"node {node.name!r}"
    strides = node.integers("strides") or (1,) * rank
    dilations = node.integers("dilations") or (1,) * rank
    pads = node.integers("pads") or (0,) * (2 * rank)
    for what, given, wanted in (("kernel_shape", kernel, rank), ("strides", strides, rank), ("dilations", dilations, rank), ("pads", pads, 2 * rank)):
        if len(given) != wanted:
            raise OnnxError(place, f"{what} needs {wanted} numbers, has {list(given)}")
    auto, ceil = node.text("auto_pad", "NOTSET"), node.integer("ceil_mode", 0)
    out: list[Window] = []
    for k, (n, size, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = d * (size - 1) + 1
        before, after = pads[k], pads[rank + k]
        match auto:
            case "SAME_UPPER" | "SAME_LOWER":
                total = max(0, ((n + s - 1) // s - 1) * s + reach - n)
                before, after = (total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2)
            case "VALID":
                before, after = 0, 0
            case "NOTSET":
                pass
            case _:
                raise OnnxError(place, f"unknown auto_pad {auto!r}")
        steps = n + before + after - reach
        if steps < 0:
            raise OnnxError(place, f"a window of {reach} does not fit into {n} + padding {before} + {after}")
        count = steps // s + 1
        if ceil and steps % s and count * s < n + before:  # a last, partial window must start inside the tensor
            count += 1
        name = letters(rank + 2)[2 + k]
        out.append(Window(name, n, count, size, s, d, before, (count - 1) * s > steps))
    return out


def convolution(c: Context, node: Node) -> None:
    """Conv with groups, dilation, padding and bias."""
    x, w = c.tensor(node.inputs[0]), c.tensor(node.inputs[1])
    (batch, channels, *spatial), (features, per_group, *kernel) = c.g.tensors[x].shape, c.g.tensors[w].shape
    group = node.integer("group", 1)
    if per_group * group != channels or features % group:
        raise OnnxError(f"node {node.name!r}", f"{channels} channels, weight {c.g.tensors[w].shape} and group={group} do not fit")
    wins = windows(node, spatial, node.integers("kernel_shape") or kernel)
    if [v.kernel for v in wins] != kernel:
        raise OnnxError(f"node {node.name!r}", f"kernel_shape contradicts the weight's shape {c.g.tensors[w].shape}")
    b, g, o, i = Axis("b", batch), Axis("g", group), Axis("o", features // group), Axis("c", per_group, Combine.SUM)
    depthwise = group > 1 and per_group == 1 and features == group
    if group == 1:
        lead, weight, summed = ["b", "c"], ["o", "c"], [b, o]
    elif depthwise:
        lead, weight, summed = ["b", "c"], ["c"], [b, Axis("c", group)]
    else:
        x = c.view(node, "split", x, (batch, group, per_group, *spatial))
        w = c.view(node, "weight_split", w, (group, features // group, per_group, *kernel))
        lead, weight, summed = ["b", "g", "c"], ["g", "o", "c"], [b, g, o]
    places = [Axis(v.name, v.out) for v in wins]
    axes = [*summed, *places, *([] if depthwise else [i]), *(t for v in wins for t in v.taps(Combine.SUM))]
    reads = Access(x, (*map(Affine.axis, lead), *(v.index for v in wins)))
    single = [Affine()] if depthwise else []
    stored = Access(w, (*map(Affine.axis, weight), *single, *(v.tap for v in wins)))
    y = c.operator(node, "", "product", axes, [reads, stored], [a.name for a in (*summed, *places)])
    y = c.view(node, "merge", y, (batch, features, *(v.out for v in wins)))
    if node.has(2):
        names, bias = letters(2 + len(wins)), c.tensor(node.inputs[2])
        full = Access(y, tuple(map(Affine.axis, names)))
        all_axes = [Axis(a, n) for a, n in zip(names, c.g.tensors[y].shape, strict=True)]
        y = c.operator(node, "bias_add", "add", all_axes, [full, Access(bias, (Affine.axis(names[1]),))], names)
    c.result(node, y)


def pool(c: Context, node: Node) -> None:
    """MaxPool and AveragePool."""
    c.unused(node, 1)
    x = c.tensor(node.inputs[0])
    batch, channels, *spatial = c.g.tensors[x].shape
    kernel = node.integers("kernel_shape")
    if kernel is None:
        raise OnnxError(f"node {node.name!r}", "lacks kernel_shape")
    wins, average = windows(node, spatial, kernel), node.kind == "AveragePool"
    attributes: dict[str, Value] = {}
    if average:
        include = node.integer("count_include_pad", 0)
        if include and any(v.overhang for v in wins):
            raise Unsupported("count_include_pad=1 with windows beyond the padding")
        attributes["count_include_pad"] = include
    names = letters(2 + len(wins))
    outer = [Axis(names[0], batch), Axis(names[1], channels), *(Axis(v.name, v.out) for v in wins)]
    axes = [*outer, *(t for v in wins for t in v.taps(Combine.SUM if average else Combine.MAX))]
    reads = Access(x, (Affine.axis(names[0]), Affine.axis(names[1]), *(v.index for v in wins)))
    function = "average_pool" if average else "max_pool"
    c.result(node, c.operator(node, "", function, axes, [reads], [a.name for a in outer], attributes))


HANDLERS: dict[str, Handler] = {"Conv": convolution, "MaxPool": pool, "AveragePool": pool}
