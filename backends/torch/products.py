"""Computes products of operands: convolutions in their three roles with PyTorch, matrix products with the BLAS that is
faster on the processor at hand.

    Y[b, o, y]  =  sum over c, k of  X[b, c, s y + d k + offset]  W[o, c, k]          (y, k: one per window, o: outputs)

An operator that reads X and W and writes Y is a convolution of stride s and dilation d; with W turned around (attribute
`reversed`) it is the gradient of X where s is 1.  One that reads X and Y and writes W is the gradient of W.  Axes that
X, W and Y share are groups.  A product that is summed but for axes that both operands have is multiplied and summed.

Everything else becomes matrix products as in `kernels.contract`.  On processors of Intel's they are PyTorch's where it
has Intel's library, elsewhere those of NumPy's wheels (float32, one thread, ms):

                                           AMD EPYC           Intel Xeon, AVX-512
                                           NumPy   PyTorch    NumPy   PyTorch
    512 x 768 by 768 x 3072                18.6    22.5       21.9    20.5
    512 x 1024 by 1024 x 1024                                 10.4     8.7
    64 x 256 by 8 x 256 x 784               1.9     6.0        2.8     2.2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F

from ..kernels.blocks import Array, align, lengths, spread, view
from ..kernels.contract import Factor, contract, pair
from ..kernels.task import Task
from .arrays import are_real, array, tensor


@dataclass(frozen=True)
class _Window:
    """An index  stride point + dilation tap + offset."""

    point: str
    tap: str
    stride: int
    dilation: int


@dataclass(frozen=True)
class _Convolution:
    """`image`: number of the input that is X.  `shared`: axes of all three, `lead`: of X and Y, `inward`: of X and W,
    `outward`: of W and Y."""

    image: int
    windows: tuple[_Window, ...]
    shared: tuple[str, ...]
    lead: tuple[str, ...]
    inward: tuple[str, ...]
    outward: tuple[str, ...]
    of_weights: bool

    @property
    def points(self) -> tuple[str, ...]:
        """One per window."""
        return tuple(w.point for w in self.windows)

    @property
    def taps(self) -> tuple[str, ...]:
        """One per window."""
        return tuple(w.tap for w in self.windows)


def product(t: Task) -> Array | None:
    """The sum of products over the box; None where the operands are not real numbers of one type."""
    if not are_real([b.array for b in t.operands]):
        return None
    found = _convolution(t)
    if found is not None:
        return _gradient_of_weights(t, found) if found.of_weights else _convolved(t, found)
    return contract(t.xp, t.op, t.graph, t.box, t.operands, _pair)


def product_sum(t: Task) -> Array | None:
    """Products of pairs of operands, added up."""
    total: torch.Tensor | None = None
    for j in range(0, len(t.op.inputs), 2):
        two = replace(t.op, function="product", inputs=t.op.inputs[j : j + 2])
        part = product(replace(t, op=two, operands=t.operands[j : j + 2]))
        if part is None:
            return None
        total = tensor(part) if total is None else total.add_(tensor(part))
    return None if total is None else array(total)


def _pair(xp: ModuleType, left: Factor, right: Factor, kept: set[str], out: Sequence[str]) -> Factor:
    """`kernels.contract.pair`, but where nothing is left of a matrix product and what is summed is not dense."""
    same = {*left[0]} == {*right[0]} and not kept >= {*left[0]}
    if same and (left[0][-1] != right[0][-1] or left[0][-1] in kept or kept.isdisjoint(left[0])):
        both = tensor(left[1]) * tensor(align(right[1], right[0], left[0]))
        dims = [d for d, a in enumerate(left[0]) if a not in kept]
        return tuple(a for a in left[0] if a in kept), array(both.sum(dim=dims))
    return pair(xp, left, right, kept, out, _matmul if is_intels() else None)


def _matmul(left: Array, right: Array) -> Array:
    return array(torch.matmul(tensor(left), tensor(right)))


@cache
def is_intels(file: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is Intel's and PyTorch has Intel's library; False where the system does not say."""
    try:
        with file.open("rb") as text:
            return b"GenuineIntel" in text.read(1 << 12) and bool(torch.backends.mkl.is_available())
    except OSError:
        return False


def _convolution(t: Task) -> _Convolution | None:
    """What a product of two operands is, if one of them is read through windows along one or two dimensions."""
    if len(t.op.inputs) != 2:
        return None
    for image in (0, 1):
        x, other = t.op.inputs[image], t.op.inputs[1 - image]
        sliding = [i for i in x.index if len(i.terms) == 2]
        plain = [i.single for i in x.index if len(i.terms) != 2]
        if not 1 <= len(sliding) <= 2 or None in plain or any(i.single is None for i in other.index):
            continue
        mine, its, out = {*map(str, plain)}, {*other.axes}, {*t.op.output.axes}
        windows = [_windowed(i.terms, out - its, its - out) for i in sliding]
        found = tuple(w for w in windows if w is not None)
        if len(found) < len(windows):
            continue
        of_weights = prod(lengths(t.box, [w.tap for w in found])) > prod(lengths(t.box, [w.point for w in found]))
        if of_weights:  # what slides over many taps to few points is the gradient of W, whose taps are written
            found = tuple(_Window(w.tap, w.point, w.dilation, w.stride) for w in found)
        inside = {a for w in found for a in (w.point, w.tap)}
        third, result = its - inside, out - inside
        if of_weights:
            third, result = result, third  # X and Y give W
        kinds = (mine & third & result, mine & result - third, mine & third - result, third & result - mine)
        known = set().union(inside, *kinds)
        turned = t.op.attribute("reversed", ())
        back = {*map(str, turned)} if isinstance(turned, tuple) else set()
        if known != {a.name for a in t.op.axes} or (back and (of_weights or not back <= {w.tap for w in found})):
            continue
        ordered = [tuple(a.name for a in t.op.axes if a.name in names) for names in kinds]
        return _Convolution(image, found, ordered[0], ordered[1], ordered[2], ordered[3], of_weights)
    return None


def _windowed(terms: Sequence[tuple[str, int]], points: set[str], taps: set[str]) -> _Window | None:
    (a, n), (b, m) = terms
    if a in points and b in taps:
        return _Window(a, b, n, m)
    return _Window(b, a, m, n) if b in points and a in taps else None


def _padding(t: Task, c: _Convolution) -> list[int] | None:
    """Padding along height and width that PyTorch's kernels add by themselves, as much at both ends; None where the
    ends differ, or nothing lies inside.
    """
    a = t.op.inputs[c.image]
    found = dict.fromkeys(c.points, 0)
    for i, (low, high), n in zip(a.index, t.spans(c.image), t.graph.tensor(a.tensor).shape, strict=True):
        before, behind = max(0, -low), max(0, high - n)
        if before == behind == 0:
            continue
        if before != behind or low >= n or high <= 0 or len(i.terms) != 2:
            return None
        found.update((p, before) for p in c.points if p in dict(i.terms))
    return [*(0,) * (2 - len(found)), *found.values()]


def _image(t: Task, c: _Convolution, padded: bool) -> torch.Tensor:
    """(lead, shared and inward, height, width); `padded`: with its padding."""
    x = t.op.inputs[c.image]
    names = [i.single or next(f"{w.point} {w.tap}" for w in c.windows if w.point in dict(i.terms)) for i in x.index]
    order = [*c.lead, *c.shared, *c.inward, *(f"{w.point} {w.tap}" for w in c.windows)]
    moved = align(t.part(c.image, padded), names, order)
    channels = prod(lengths(t.box, (*c.shared, *c.inward)))
    return tensor(moved.reshape((prod(lengths(t.box, c.lead)), channels, *_flat(moved.shape[-len(c.windows) :]))))


def _flat(sizes: Sequence[int]) -> tuple[int, ...]:
    """Height and width; a single dimension has height 1."""
    return (1,) * (2 - len(sizes)) + tuple(sizes)


def _other(t: Task, c: _Convolution, first: Sequence[str], second: Sequence[str], last: Sequence[str]) -> torch.Tensor:
    """The operand that is not X, as (first, second, height, width)."""
    j = 1 - c.image
    a = t.op.inputs[j]
    seen = view(t.xp, t.operands[j], a, t.box, t.graph.tensor(a.tensor).shape, 0, f"{t.place}, input {j}")
    moved = align(seen, a.axes, (*first, *second, *last))
    sizes = _flat(lengths(t.box, last))
    return tensor(moved.reshape((prod(lengths(t.box, first)), prod(lengths(t.box, second)), *sizes)))


def _steps(c: _Convolution) -> tuple[list[int], list[int]]:
    """Strides and dilations along height and width."""
    return [*_flat([w.stride for w in c.windows])], [*_flat([w.dilation for w in c.windows])]


def _convolved(t: Task, c: _Convolution) -> Array:
    weights, (strides, dilations) = _other(t, c, (*c.shared, *c.outward), c.inward, c.taps), _steps(c)
    if t.op.attribute("reversed", ()):
        back = t.op.attribute("reversed", ())
        names = {*map(str, back)} if isinstance(back, tuple) else set()
        weights = torch.flip(weights, [4 - len(c.taps) + d for d, a in enumerate(c.taps) if a in names])
    groups = prod(lengths(t.box, c.shared))
    padding = _padding(t, c)
    image = _image(t, c, padding is None)
    found = F.conv2d(image, weights, None, strides, padding or [0, 0], dilations, groups)
    names_of_result = (*c.lead, *c.shared, *c.outward, *c.points)
    return _result(t, found, names_of_result)


def _gradient_of_weights(t: Task, c: _Convolution) -> Array:
    g, (strides, dilations) = _other(t, c, c.lead, (*c.shared, *c.outward), c.points), _steps(c)
    padding = _padding(t, c)
    x, groups = _image(t, c, padding is None), prod(lengths(t.box, c.shared))
    sizes = (g.shape[1], prod(lengths(t.box, c.inward)), *_flat(lengths(t.box, c.taps)))
    like = torch.empty(sizes, dtype=g.dtype)
    none, wanted = [0, 0], [False, True, False]
    found = torch.ops.aten.convolution_backward(
        g, x, like, None, strides, padding or none, dilations, False, none, groups, wanted
    )[1]
    return _result(t, found, (*c.shared, *c.outward, *c.inward, *c.taps))


def _result(t: Task, found: torch.Tensor, names: Sequence[str]) -> Array:
    apart = array(found).reshape(lengths(t.box, names))
    return spread(t.xp, align(apart, names, t.op.output.axes), t.shape)
