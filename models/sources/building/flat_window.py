"""Builds convolutions and pools over flat dimensions: per spatial dimension  index = stride * out +
dilation * tap - pad.

Taps of extent 1 are left out, so that a 1x1 convolution reads plain axes.  Grouped convolutions work on channels in
digits, x[b, g, c, ..] * w[g, o, c, ..] -> [b, g, o, ..], between two views; one channel per group (depthwise) needs no
views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...program.graph import GraphError
from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import Value
from .flat import Flat, Named, letters


@dataclass(frozen=True)
class Window:
    """Geometry of one spatial dimension; `overhang`: the last window reaches beyond the padding (ceil mode)."""

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


def window(name: str, n: int, kernel: int, stride: int, dilation: int, before: int, after: int, ceil: bool) -> Window:
    """Geometry of a window over `n` elements.  Raises `GraphError` if it does not fit.

    >>> window("y", 224, 7, 2, 1, 3, 3, False).out
    112
    """
    reach = dilation * (kernel - 1) + 1
    steps = n + before + after - reach
    if steps < 0:
        raise GraphError("node", f"a window of {reach} does not fit into {n} + padding {before} + {after}")
    count = steps // stride + 1
    if ceil and steps % stride and count * stride < n + before:  # a last, partial window must start inside the tensor
        count += 1
    return Window(name, n, count, kernel, stride, dilation, before, (count - 1) * stride > steps)


def convolve(c: Flat, node: Named, x: str, w: str, bias: str | None, wins: Sequence[Window], group: int) -> str:
    """Convolution of x[b, c, ..] by w[o, c / group, ..] plus bias[o]; channels and windows must fit."""
    (batch, channels, *_), (features, per_group, *_) = c.g.tensors[x].shape, c.g.tensors[w].shape
    if per_group * group != channels or features % group:
        raise GraphError("node", f"{channels} channels, weight {c.g.tensors[w].shape} and group={group} do not fit")
    b, g, o, i = Axis("b", batch), Axis("g", group), Axis("o", features // group), Axis("c", per_group, Combine.SUM)
    depthwise = group > 1 and per_group == 1 and features == group
    if group == 1:
        lead, weight, summed = ["b", "c"], ["o", "c"], [b, o]
    elif depthwise:
        lead, weight, summed = ["b", "c"], ["c"], [b, Axis("c", group)]
    else:
        spatial, kernel = c.g.tensors[x].shape[2:], c.g.tensors[w].shape[2:]
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
    if bias is None:
        return y
    names, shape = letters(2 + len(wins)), c.g.tensors[y].shape
    full, stored = Access(y, tuple(map(Affine.axis, names))), Access(bias, (Affine.axis(names[1]),))
    return c.operator(
        node, "bias_add", "add", [Axis(a, n) for a, n in zip(names, shape, strict=True)], [full, stored], names
    )


def pool_windows(
    c: Flat, node: Named, x: str, wins: Sequence[Window], function: str, attributes: Mapping[str, Value]
) -> str:
    """max_pool or average_pool of x[b, c, ..] over its last dimensions."""
    batch, channels, *_ = c.g.tensors[x].shape
    names = letters(2 + len(wins))
    outer = [Axis(names[0], batch), Axis(names[1], channels), *(Axis(v.name, v.out) for v in wins)]
    axes = [*outer, *(t for v in wins for t in v.taps(Combine.SUM if function == "average_pool" else Combine.MAX))]
    reads = Access(x, (Affine.axis(names[0]), Affine.axis(names[1]), *(v.index for v in wins)))
    return c.operator(node, "", function, axes, [reads], [a.name for a in outer], attributes)
