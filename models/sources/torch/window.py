"""Translates core ATen convolutions and pools: arguments become windows (`flat_window`)."""

from __future__ import annotations

from collections.abc import Sequence

from ...program.operators import Value
from ..building.flat import Folding, Unsupported, letters, reduce_dimensions, scale_of_mean
from ..building.flat_window import Window, convolve, pool_windows, window
from .context import Context, Handler, Node
from .resample import adaptive_max, adaptive_mean


def _each(values: Sequence[int] | None, rank: int, default: int) -> tuple[int, ...]:
    """One number per spatial dimension."""
    given = tuple(values or (default,))
    return given * rank if len(given) == 1 else given


def _windows(
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
) -> list[Window]:
    names = letters(len(spatial) + 2)[2:]
    return [
        window(a, n, k, s, d, p, p, ceil)
        for a, n, k, s, d, p in zip(names, spatial, kernel, stride, dilation, pad, strict=True)
    ]


def convolution(c: Context, node: Node) -> None:
    """convolution with stride, padding, dilation and groups; not transposed."""
    if node.integer("transposed", 0):
        raise Unsupported("transposed=True")
    x, w = c.tensor(node.ref("input")), c.tensor(node.ref("weight"))
    spatial, kernel = c.g.tensors[x].shape[2:], c.g.tensors[w].shape[2:]
    if len(spatial) != len(kernel):
        raise Unsupported("an input without batch dimension")
    rank = len(spatial)
    stride, pad, dilation = (
        _each(node.integers(k), rank, d) for k, d in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    wins = _windows(spatial, kernel, stride, pad, dilation, False)
    bias = node.optional("bias")
    c.put(node, convolve(c, node, x, w, None if bias is None else c.tensor(bias), wins, node.integer("groups", 1)))


def pool(c: Context, node: Node) -> None:
    """max_pool (its indices unread) and avg_pool, in one to three dimensions."""
    c.require_unused(node, 1)
    x, average = c.tensor(node.ref("self")), "avg_pool" in node.kind
    kernel = node.integers("kernel_size") or ()
    rank, shape = int(node.kind.partition("pool")[2][0]), c.g.tensors[x].shape
    single = len(shape) == rank + 1  # one example, without a batch dimension
    if single:
        x = c.view(node, "batch", x, (1, *shape))
    spatial, seen = shape[-rank:], node.shape[-rank:]
    sizes = _each(kernel, rank, 1)
    stride = _each(node.integers("stride") or sizes, rank, 1)
    pad, dilation = _each(node.integers("padding"), rank, 0), _each(node.integers("dilation"), rank, 1)
    if node.integer("ceil_mode", 0):  # a window larger than all there is: what there is
        sizes = tuple(
            min(k, n + 2 * p) if m == 1 and d == 1 else k
            for k, n, p, d, m in zip(sizes, spatial, pad, dilation, seen, strict=True)
        )
    wins = _windows(spatial, sizes, stride, pad, dilation, bool(node.integer("ceil_mode", 0)))
    attributes: dict[str, Value] = {}
    if average:
        if node.integers("divisor_override") is not None:
            raise Unsupported("divisor_override")
        include = node.integer("count_include_pad", 1)
        if include and any(pad) and any(v.overhang for v in wins):
            raise Unsupported("count_include_pad=True with windows beyond the padding")
        attributes["count_include_pad"] = int(bool(include and any(pad)))
    y = pool_windows(c, node, x, wins, "average_pool" if average else "max_pool", attributes)
    c.put(node, c.view(node, "example", y, node.shape) if single else y)


def adaptive(c: Context, node: Node) -> None:
    """Adaptive pools; equal windows (every extent is a multiple of the size asked for) are ordinary ones."""
    c.require_unused(node, 1)
    x, rank = c.tensor(node.ref("self")), int(node.kind.partition("pool")[2][0])
    sizes, average = node.shape[-rank:], "avg" in node.kind
    if single := len(node.shape) == rank + 1:  # one example, without a batch dimension
        x = c.view(node, "batch", x, (1, *c.g.tensors[x].shape))
    shape = c.g.tensors[x].shape
    if any(n % m for n, m in zip(shape[2:], sizes, strict=True)):
        y = (adaptive_mean if average else adaptive_max)(c, node, x, sizes)
    elif shape[2:] == sizes:
        y = x
    elif average and all(m == 1 for m in sizes):
        dims = range(2, len(shape))
        y = reduce_dimensions(c, node, "", x, shape, dims, Folding("sum", scale_of_mean(shape, dims), True))
    else:
        kernel = [n // m for n, m in zip(shape[2:], sizes, strict=True)]
        wins = _windows(shape[2:], kernel, kernel, [0] * len(kernel), [1] * len(kernel), False)
        attributes: dict[str, Value] = {"count_include_pad": 0} if average else {}
        y = pool_windows(c, node, x, wins, "average_pool" if average else "max_pool", attributes)
    c.put(node, c.view(node, "example", y, node.shape) if single else y)


HANDLERS: dict[str, Handler] = {
    "convolution": convolution,
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d"), pool
    ),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), pool),
    **dict.fromkeys(
        (
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d",
            "adaptive_avg_pool1d",
            "adaptive_avg_pool2d",
            "adaptive_max_pool2d",
            "adaptive_max_pool1d",
        ),
        adaptive,
    ),
}
