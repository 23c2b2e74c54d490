"""Computes gradients that read windows whole: of strided contractions, pools and local response.

Attributes as in `models.sources.training.windows`: position p = stride y + dilation t + offset of the result collects
every window y and tap t.

    strided_gradient        SUM over (y, t) and the reduced axes of  g[.., y] w[.., t]
    max_pool_gradient       SUM of g[y] where p is the first largest element of window y
    average_pool_gradient   SUM of g[y] / number of taps that count in window y
    local_response_gradient D = bias + alpha / size SUM over the window of x^2:
                            g D^-beta - 2 (alpha / size) beta x SUM over (y, t) of  g x D^(-beta - 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from types import ModuleType

from ...models.program.index import Affine, Combine
from .blocks import Array, KernelError, align, lengths, neutral
from .elementwise import number
from .task import Task


@dataclass(frozen=True)
class _Windows:
    """Dimensions `at` of the result meet dimensions `source` of the gradient."""

    at: tuple[int, ...]
    source: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    offset: tuple[int, ...]
    counts: tuple[int, ...]
    """Number of windows per dimension."""

    @staticmethod
    def of(t: Task) -> _Windows:
        source = t.integers("from")
        shape = t.graph.tensor(t.op.inputs[0].tensor).shape
        found = _Windows(
            t.integers("at"),
            source,
            t.integers("taps"),
            t.integers("stride"),
            t.integers("dilation"),
            t.integers("offset"),
            tuple(shape[d] for d in source),
        )
        for d in found.at:
            axis = t.op.axis(t.op.output.axes[d])
            if t.box[axis.name] != (0, axis.extent):
                raise KernelError(t.place, f"axis {axis.name!r} must not be split")
        return found

    def combinations(self) -> Iterator[tuple[int, ...]]:
        """Every combination of taps, row-major."""
        return product(*(range(n) for n in self.taps))

    def spans(self, extents: Sequence[int], tap: Sequence[int]) -> list[tuple[slice, slice]] | None:
        """Per window dimension: (windows y whose tap lies inside, their positions p); None if there are none."""
        out = []
        for n, (extent, k) in enumerate(zip(extents, tap, strict=True)):
            shift = self.dilation[n] * k + self.offset[n]
            low = max(0, -(shift // self.stride[n]))
            high = min(self.counts[n], (extent - 1 - shift) // self.stride[n] + 1)
            if low >= high:
                return None
            first = self.stride[n] * low + shift
            out.append((slice(low, high), slice(first, first + self.stride[n] * (high - low - 1) + 1, self.stride[n])))
        return out

    def _cuts(self, spans: list[tuple[slice, slice]], dims: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        windows, positions = [slice(None)] * dims, [slice(None)] * dims
        for d, (y, p) in zip(self.at, spans, strict=True):
            windows[d], positions[d] = y, p
        return tuple(windows), tuple(positions)

    def add(self, out: Array, values: Array, tap: Sequence[int]) -> None:
        """Add `values`, indexed by window y in the dimensions `at`, at the positions that `tap` reaches."""
        spans = self.spans([out.shape[d] for d in self.at], tap)
        if spans is not None:
            windows, positions = self._cuts(spans, out.ndim)
            out[positions] += values[windows]

    def read(self, xp: ModuleType, x: Array, tap: Sequence[int], fill: float) -> Array:
        """x at every window's tap, `fill` outside."""
        shape = list(x.shape)
        for d, n in zip(self.at, self.counts, strict=True):
            shape[d] = n
        out: Array = xp.full(shape, fill, dtype=x.dtype)
        spans = self.spans([x.shape[d] for d in self.at], tap)
        if spans is not None:
            windows, positions = self._cuts(spans, x.ndim)
            out[windows] = x[positions]
        return out


def strided_gradient(t: Task) -> Array:
    """One plain contraction per combination of taps, added at the positions it belongs to."""
    out: Array = t.xp.zeros(t.shape, dtype=t.xp.result_type(*[b.array for b in t.operands]))
    if 0 in t.shape or 0 in lengths(t.box, [a.name for a in t.op.reduction_axes]):
        return out
    windows = _Windows.of(t)
    g, w = t.part(0), t.part(1)
    through = t.integers("through")
    names = [_letter(i) for i in t.op.inputs[0].index]
    for n, dim in enumerate(windows.source):
        names[dim] = f"window {n}"
    for tap in windows.combinations():
        cut = tuple(tap[through.index(d)] if d in through else slice(None) for d in range(w.ndim))
        kept = [_letter(i) for d, i in enumerate(t.op.inputs[1].index) if d not in through]
        order = [f"window {windows.at.index(d)}" if d in windows.at else a for d, a in enumerate(t.op.output.axes)]
        values = _pair_sum(t.xp, (names, g), (kept, w[cut]), order)
        windows.add(out, values, tap)
    return out


def _letter(index: Affine) -> str:
    return index.single or ""


def _pair_sum(
    xp: ModuleType, left: tuple[list[str], Array], right: tuple[list[str], Array], out: Sequence[str]
) -> Array:
    every = list(dict.fromkeys((*out, *left[0], *right[0])))
    number_of = {a: i for i, a in enumerate(every)}
    result = xp.einsum(
        left[1],
        [number_of[a] for a in left[0]],
        right[1],
        [number_of[a] for a in right[0]],
        [number_of[a] for a in out if a in (*left[0], *right[0])],
    )
    return align(result, [a for a in out if a in (*left[0], *right[0])], out)


def _windowed(t: Task, j: int, windows: _Windows) -> Array:
    """Input j with one dimension per output axis; the gradient (j = 0) keeps windows in the dimensions `at`."""
    part, index = t.part(j), t.op.inputs[j].index
    at = iter(windows.at)
    names = []
    for d, i in enumerate(index):
        if i.whole:
            names.append(t.op.output.axes[windows.at[windows.source.index(d)] if j == 0 else next(at)])
        else:
            names.append(_letter(i))
    return align(part, names, t.op.output.axes)


def _pool_shape(t: Task, windows: _Windows) -> tuple[int, ...]:
    """Shape of the result with windows in place of positions."""
    shape = list(t.shape)
    for d, n in zip(windows.at, windows.counts, strict=True):
        shape[d] = n
    return tuple(shape)


def max_pool_gradient(t: Task) -> Array:
    """Of equal elements of a window the first, row-major, has the gradient."""
    out: Array = t.xp.zeros(t.shape, dtype=t.operands[0].array.dtype)
    if 0 in t.shape:
        return out
    windows = _Windows.of(t)
    g, x = _windowed(t, 0, windows), _windowed(t, 1, windows)
    low = neutral(x.dtype, Combine.MAX)
    taps = list(windows.combinations())
    best, winner = None, t.xp.zeros(_pool_shape(t, windows), dtype=t.xp.int64)
    for n, tap in enumerate(taps):
        value = windows.read(t.xp, x, tap, low)
        if best is not None:
            winner = t.xp.where(value > best, n, winner)  # the first of equal ones wins
        best = value if best is None else t.xp.maximum(best, value)
    for n, tap in enumerate(taps):
        windows.add(out, t.xp.where(winner == n, g, t.xp.zeros((), dtype=g.dtype)), tap)
    return out


def average_pool_gradient(t: Task) -> Array:
    """Every tap that counts has its share."""
    out: Array = t.xp.zeros(t.shape, dtype=t.operands[0].array.dtype)
    if 0 in t.shape:
        return out
    windows = _Windows.of(t)
    g = _windowed(t, 0, windows)
    if number(t.op, "count_include_pad", 0):
        counted: Array = t.xp.full((1,) * g.ndim, float(prod(windows.taps)))
    else:
        inside = t.xp.ones([t.shape[d] if d in windows.at else 1 for d in range(len(t.shape))])
        counted = t.xp.maximum(sum(windows.read(t.xp, inside, tap, 0) for tap in windows.combinations()), 1)
    share = (g / counted).astype(g.dtype)
    for tap in windows.combinations():
        windows.add(out, share, tap)
    return out


def local_response_gradient(t: Task) -> Array:
    """Windows run over channels."""
    if 0 in t.shape:
        return t.xp.zeros(t.shape, dtype=t.operands[0].array.dtype)  # type: ignore[no-any-return]
    windows = _Windows.of(t)
    g, x = _windowed(t, 0, windows), _windowed(t, 1, windows)
    scale = number(t.op, "alpha", 1e-4) / number(t.op, "size", prod(windows.taps))
    beta = number(t.op, "beta", 0.75)
    squares = sum(windows.read(t.xp, x, tap, 0) ** 2 for tap in windows.combinations())
    depth = number(t.op, "bias", 1.0) + scale * squares
    pushed: Array = t.xp.zeros(t.shape, dtype=g.dtype)
    inner = g * x * depth ** (-beta - 1)
    for tap in windows.combinations():
        windows.add(pushed, inner, tap)
    return (g * depth**-beta - 2 * scale * beta * x * pushed).astype(g.dtype)
