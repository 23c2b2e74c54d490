"""Translates images in another size: upsampling by neighbours or interpolation, and adaptive pools whose
windows differ.

Along every spatial dimension the result is a fixed combination of the elements,  y[o] = sum_i W[o, i] x[i]:

    nearest          W[o, i] = [i = source(o)]: a copy where every element is repeated equally often, else a gather
    linear, cubic    2 or 4 weights per row, by the distance to the neighbours; beyond the edge the edge counts
    adaptive mean    1 / size in the window [floor(o n / m), ceil((o + 1) n / m)); equal windows are a reduction
    adaptive max     the largest of the window, whose elements are gathered first

source(o) is  scale * o  with align_corners, scale = (n - 1) / (m - 1); else  scale * (o + 1/2) - 1/2, clipped at 0
unless cubic, with scale = 1 / factor where factors are given, and n / m where sizes are.  Combinations are contractions
with a constant matrix, executed and priced as such.

Source: PyTorch, aten/src/ATen/native/UpSample.h and AdaptivePooling.h.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...program.index import Access, Affine, Axis, Combine
from ..building.flat import Folding, letters, lookup, reduce_dimensions
from ..building.flat_window import pool_windows, window
from .context import Context, Handler, Node, Ref
from .pointwise import short_kind

Rows = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


def upsample(c: Context, node: Node) -> None:
    """upsample_nearest, _nearest_exact, _linear, _bilinear, _bicubic, _trilinear in one to three dimensions."""
    kind = short_kind(node)
    x, shape = c.operand(node.ref("self" if "self" in node.arguments else "input"))
    spatial, sizes = shape[2:], node.shape[2:]
    factors = _factors(node, len(spatial))
    corners = bool(node.integer("align_corners", 0))
    for k, (n, m, factor) in enumerate(zip(spatial, sizes, factors, strict=True)):
        if "nearest" in kind:
            x = _repeated(c, node, x, 2 + k, nearest(n, m, factor, "exact" in kind))
        else:
            x = _combined(c, node, x, 2 + k, interpolation(n, m, factor, corners, "cubic" in kind))
    c.put(node, x)


def _factors(node: Node, rank: int) -> tuple[float | None, ...]:
    """The scale factors that were given, per dimension."""
    listed = node.arguments.get("scale_factors")
    if isinstance(listed, tuple):
        return tuple(float(f) if isinstance(f, (int, float)) else None for f in listed)
    names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[-rank:]
    given = [node.arguments.get(n) for n in names]
    return tuple(float(f) if isinstance(f, (int, float)) else None for f in given)


def nearest(n: int, m: int, factor: float | None, exact: bool) -> Rows:
    """The element that each of m results copies, in single precision as PyTorch computes it.

    >>> nearest(2, 5, None, False).tolist(), nearest(2, 5, None, True).tolist()
    ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])
    """
    scale = np.float32(1.0 / factor) if factor is not None else np.float32(n) / np.float32(m)
    places = np.arange(m, dtype=np.float32)
    source = np.floor((places + np.float32(0.5)) * scale if exact else places * scale)
    rows: Rows = np.minimum(source.astype(np.int64), n - 1)
    return rows


def interpolation(n: int, m: int, factor: float | None, corners: bool, cubic: bool) -> Weights:
    """The matrix W of m rows and n columns.

    >>> interpolation(2, 4, None, False, False).tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    places = np.arange(m, dtype=np.float64)
    if corners:
        source = places * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        source = (places + 0.5) * (1.0 / factor if factor is not None else n / m) - 0.5
    if not cubic:
        source = np.maximum(source, 0.0)
    first = np.floor(source)
    t = source - first
    if cubic:
        taps = [(k, _cubic(np.abs(t - k))) for k in (-1, 0, 1, 2)]
    else:
        taps = [(0, 1.0 - t), (1, t)]
    out = np.zeros((m, n))
    for k, weight in taps:
        column = np.clip(first.astype(np.int64) + k, 0, n - 1)
        np.add.at(out, (np.arange(m), column), weight)
    return out


def _cubic(distance: Weights) -> Weights:
    """Cubic convolution with A = -3/4 (Keys 1981)."""
    a, d = -0.75, distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, far)


def windows(n: int, m: int) -> list[tuple[int, int]]:
    """The windows of an adaptive pool of n elements into m.

    >>> windows(5, 2)
    [(0, 3), (2, 5)]
    """
    return [(o * n // m, -(-(o + 1) * n // m)) for o in range(m)]


def adaptive_mean(c: Context, node: Node, x: str, sizes: Sequence[int]) -> str:
    """An adaptive average pool of x[b, c, ..] to [b, c, *sizes]."""
    for k, (n, m) in enumerate(zip(c.g.tensors[x].shape[2:], sizes, strict=True)):
        weights = np.zeros((m, n))
        for o, (low, high) in enumerate(windows(n, m)):
            weights[o, low:high] = 1.0 / (high - low)
        x = _combined(c, node, x, 2 + k, weights)
    return x


def adaptive_max(c: Context, node: Node, x: str, sizes: Sequence[int]) -> str:
    """An adaptive max pool; the shorter windows name their last element more than once.  Of equal elements the first,
    row-major, has the gradient: so the last dimension comes first.
    """
    for k, m in reversed(list(enumerate(sizes))):
        n = c.g.tensors[x].shape[2 + k]
        if n == m:
            continue
        found, dim = windows(n, m), 2 + k
        longest = max(high - low for low, high in found)
        rows = np.array([[min(low + t, high - 1) for t in range(longest)] for low, high in found])
        shape = c.g.tensors[x].shape
        ids = _constant(c, node, f"windows{k}", rows, "int64")
        x = lookup(c, node, f"windows{k}", (x, shape), dim, (ids, rows.shape))
        merged = (*shape[:dim], m * longest, *shape[dim + 1 :])
        x = c.view(node, f"merge{k}", x, merged)
        names = letters(len(shape))[2:]
        kernel = [longest if d == k else 1 for d in range(len(sizes))]
        wins = [window(a, e, size, size, 1, 0, 0, False) for a, e, size in zip(names, merged[2:], kernel, strict=True)]
        x = pool_windows(c, node, x, wins, "max_pool", {})
    return x


def _constant(c: Context, node: Node, part: str, array: Rows | Weights, dtype: str) -> str:
    made = Ref(f"{node.name}/{part}")
    c.constants[made], c.shapes[made], c.dtypes[made] = array, array.shape, dtype
    return c.tensor(made)


def _repeated(c: Context, node: Node, x: str, dim: int, rows: Rows) -> str:
    """Elements `rows` of a dimension."""
    shape = c.g.tensors[x].shape
    n, m = shape[dim], len(rows)
    if n == m and bool(np.all(rows == np.arange(n))):
        return x
    part = f"dim{dim}"
    if m % n == 0 and bool(np.all(rows == np.arange(m) // (m // n))):
        names = letters(len(shape))
        axes = [Axis(a, e) for a, e in zip(names, shape, strict=True)]
        axes.insert(dim + 1, Axis("again", m // n))
        read = Access(x, tuple(map(Affine.axis, names)))
        y = c.operator(node, part, "copy", axes, [read], [a.name for a in axes])
        return c.view(node, f"{part}.merge", y, (*shape[:dim], m, *shape[dim + 1 :]))
    ids = _constant(c, node, f"rows{dim}", rows, "int64")
    return lookup(c, node, part, (x, shape), dim, (ids, rows.shape))


def _combined(c: Context, node: Node, x: str, dim: int, weights: Weights) -> str:
    """W times a dimension; a mean of equal windows, which share no element, is a reduction."""
    shape = c.g.tensors[x].shape
    m, n = weights.shape
    if m == n and bool(np.all(weights == np.eye(n))):
        return x
    names = letters(len(shape))
    if n % m == 0 and bool(np.all(weights == np.kron(np.eye(m), np.full((1, n // m), m / n)))):
        inner = c.view(node, f"dim{dim}.split", x, (*shape[:dim], m, n // m, *shape[dim + 1 :]))
        cut = c.g.tensors[inner].shape
        return reduce_dimensions(c, node, f"dim{dim}", inner, cut, [dim + 1], Folding("sum", m / n))
    table = _constant(c, node, f"weights{dim}", weights, c.g.tensors[x].dtype)
    axes = [Axis(a, m if k == dim else e) for k, (a, e) in enumerate(zip(names, shape, strict=True))]
    reads = [
        Access(x, tuple(Affine.axis("from") if k == dim else Affine.axis(a) for k, a in enumerate(names))),
        Access(table, (Affine.axis(names[dim]), Affine.axis("from"))),
    ]
    return c.operator(node, f"dim{dim}", "product", [*axes, Axis("from", n, Combine.SUM)], reads, names)


HANDLERS: dict[str, Handler] = dict.fromkeys(
    (
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_trilinear3d",
        "upsample_bicubic2d",
    ),
    upsample,
)
