"""Translates transposed convolutions, as convolutions of stride 1 for every place inside a stride.

    out[s q + r - pad] = sum_{c, j} x[c, q - j] w[c, s j + r]          0 <= r < s

The weight in digits (j, r), taps counted backwards (j = J - 1 - j'), makes  x[q + j' - (J - 1)]  a window like any
other: as many products as there are, none of them with an inserted zero.  Gradients and prices are those of products.

Source: Shi et al., Is the deconvolution layer the same as a convolutional layer, 2016 (arXiv 1609.07009).
"""

from __future__ import annotations

from math import prod

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Unsupported, letters, part_of
from . import window
from .context import Context, Handler, Node
from .layout import flip_dimension


def convolution(c: Context, node: Node) -> None:
    """convolution; transposed with stride, padding, output padding and groups, not dilated."""
    if not node.integer("transposed", 0):
        window.convolution(c, node)
        return
    x, w = c.tensor(node.ref("input")), c.tensor(node.ref("weight"))
    (batch, channels, *_), (_, features, *kernel) = c.g.tensors[x].shape, c.g.tensors[w].shape
    rank, groups, out = len(kernel), node.integer("groups", 1), node.shape[2:]
    if any(d != 1 for d in node.integers("dilation") or ()) and prod(kernel) > 1:
        raise Unsupported("transposed=True and dilation")
    strides, pads = (
        (given if len(given) == rank else given * rank)
        for given in (node.integers("stride") or (1,), node.integers("padding") or (0,))
    )
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    weight = _in_digits(c, node, w, groups, taps, strides)
    x = c.view(node, "split", x, (batch, groups, channels // groups, *c.g.tensors[x].shape[2:]))
    counts = [-(-(n + p) // s) for n, p, s in zip(out, pads, strides, strict=True)]
    places = letters(rank + 2)[2:]
    steps, phases = [f"k{a}" for a in places], [f"p{a}" for a in places]
    outer = [Axis("b", batch), Axis("g", groups), Axis("o", features)]
    for a, r, n, s in zip(places, phases, counts, strides, strict=True):
        outer += [Axis(a, n), Axis(r, s)]
    inner = [
        Axis("c", channels // groups, Combine.SUM),
        *(Axis(j, n, Combine.SUM, False) for j, n in zip(steps, taps, strict=True) if n > 1),
    ]
    seen = [
        Affine.axis(a) if n == 1 else Affine.axis(a).plus(j).shift(1 - n)
        for a, j, n in zip(places, steps, taps, strict=True)
    ]
    stored = []
    for j, r, n in zip(steps, phases, taps, strict=True):
        stored += [Affine() if n == 1 else Affine.axis(j), Affine.axis(r)]
    reads = [
        Access(x, (Affine.axis("b"), Affine.axis("g"), Affine.axis("c"), *seen)),
        Access(weight, (Affine.axis("g"), Affine.axis("c"), Affine.axis("o"), *stored)),
    ]
    y = c.operator(node, "", "product", [*outer, *inner], reads, [a.name for a in outer])
    y = c.view(node, "merge", y, (batch, groups * features, *(n * s for n, s in zip(counts, strides, strict=True))))
    if any(pads) or c.g.tensors[y].shape != node.shape:
        cut = {k + 2: (1, p) for k, p in enumerate(pads)}
        y = part_of(c, node, "crop", y, node.shape, cut)
    bias = node.optional("bias")
    if bias is not None:
        names = letters(rank + 2)
        axes = [Axis(a, n) for a, n in zip(names, node.shape, strict=True)]
        both = [Access(y, tuple(map(Affine.axis, names))), Access(c.tensor(bias), (Affine.axis(names[1]),))]
        y = c.operator(node, "bias_add", "add", axes, both, names)
    c.put(node, y)


def _in_digits(
    c: Context, node: Node, w: str, groups: int, taps: list[int], strides: tuple[int, ...] | list[int]
) -> str:
    """w[c, o, k, ..] as w[g, c, o, j', r, ..], j' counted backwards; zeros where a kernel ends inside a stride."""
    channels, features, *kernel = c.g.tensors[w].shape
    full = [j * s for j, s in zip(taps, strides, strict=True)]
    if kernel != full:
        w = part_of(c, node, "weight_pad", w, [channels, features, *full], {k + 2: (1, 0) for k in range(len(full))})
    digits = [n for pair in zip(taps, strides, strict=True) for n in pair]
    w = c.view(node, "weight_split", w, (groups, channels // groups, features, *digits))
    for k, n in enumerate(taps):
        if n > 1:
            w = flip_dimension(c, node, "weight_turn", w, 3 + 2 * k)
    return w


HANDLERS: dict[str, Handler] = {"convolution": convolution}
