"""Builds layers of convolutional networks: channels in digits, normalisation over the batch, concatenation.

An image is x[b, c, y, x], or x[b, g, c, y, x] where the channels are read as g groups of c.  A convolution with a
square or oblong window sums over input channels and taps; which of the two digits it keeps decides what it is:

    plain     y[b, o, ..]    = sum_{c, taps}     x[b, c, ..]     w[o, c, taps]
    to groups y[b, g, o, ..] = sum_{c, taps}     x[b, c, ..]     w[g, o, c, taps]
    grouped   y[b, g, o, ..] = sum_{c, taps}     x[b, g, c, ..]  w[g, o, c, taps]
    from them y[b, o, ..]    = sum_{g, c, taps}  x[b, g, c, ..]  w[o, g, c, taps]

so that nothing is reshaped, and a split over groups stays one split from the first to the last.  `source_shape` keeps
the flat weight.

Batch normalisation takes its statistics over (b, y, x), one per channel, as in training: it is a layer norm over those
axes.  Splitting the batch all-reduces the statistics (synchronised batch normalisation, so that a plan never changes
the result).  `frozen`: stored mean and variance instead, as in inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...program.index import Access, Affine, Axis, Combine, access
from ..building.builder import Builder


@dataclass(frozen=True)
class Normalisation:
    """How convolutions are normalised: `frozen` statistics or those of the batch, and epsilon."""

    frozen: bool = False
    epsilon: float = 1e-5


def _letters(rank: int) -> str:
    return "b g c y x" if rank == 5 else "b c y x"


def convolve(
    g: Builder,
    name: str,
    x: str,
    channels: int | tuple[int, int],
    kernel: tuple[int, int],
    stride: int = 1,
    pad: tuple[int, int] = (0, 0),
    grouped: bool = False,
) -> str:
    """A row of the table above, without bias; `channels` = (groups, channels of one) gives digits, `grouped` keeps
    those of the input.
    """
    shape = g.tensors[x].shape
    digits = len(shape) == 5
    out = (channels,) if isinstance(channels, int) else channels
    (kh, kw), (height, width) = kernel, shape[-2:]
    sizes = [(n + 2 * p - k) // stride + 1 for n, p, k in ((height, pad[0], kh), (width, pad[1], kw))]
    written = [Axis("g", out[0]), Axis("o", out[1])] if len(out) == 2 else [Axis("o", out[0])]
    summed = [Axis("c", shape[-3], Combine.SUM), Axis("ky", kh, Combine.SUM, False), Axis("kx", kw, Combine.SUM, False)]
    if digits and not grouped:
        summed.insert(0, Axis("g", shape[1], Combine.SUM))
    axes = [Axis("b", shape[0]), *written, Axis("y", sizes[0]), Axis("x", sizes[1]), *summed]
    flat = (
        out[0] * out[-1] if len(out) == 2 else out[0],
        shape[-3] * (shape[1] if digits and not grouped else 1),
        kh,
        kw,
    )
    reads = (*(a.name for a in written), *(a.name for a in summed))
    extents = {a.name: a.extent for a in axes}
    weight_shape = tuple(extents[a] for a in reads)
    w = g.parameter(f"{name}.weight", weight_shape, source_shape=None if weight_shape == flat else flat)
    rows, columns = (
        Affine.axis("y", stride).plus("ky").shift(-pad[0]),
        Affine.axis("x", stride).plus("kx").shift(-pad[1]),
    )
    image = access(x, "b", *(("g",) if digits else ()), "c", rows, columns)
    return g.operator(name, "product", axes, [image, access(w, *reads)], ["b", *(a.name for a in written), "y", "x"])


def batch_norm(g: Builder, name: str, x: str, how: Normalisation) -> str:
    """Normalisation per channel, with scale and shift."""
    shape = g.tensors[x].shape
    letters = _letters(len(shape))
    channel = letters[2:-4]  # `g c` or `c`
    sizes = shape[1:-2]
    flat = (sizes[0] * sizes[1],) if len(sizes) == 2 else None
    per_channel = [
        g.parameter(f"{name}.{p}", sizes, source_shape=flat)
        for p in ("gamma", "beta", *(("mean", "variance") if how.frozen else ()))
    ]
    text = f"{letters}, " + ", ".join([channel] * len(per_channel)) + f" -> {letters}"
    if how.frozen:
        return g.map(name, "batch_norm", x, *per_channel, text=text, epsilon=how.epsilon)
    return g.normalise(name, "layer_norm", text, x, *per_channel, over=("b", "y", "x"), epsilon=how.epsilon)


def relu(g: Builder, name: str, x: str) -> str:
    """Rectified linear unit of an image."""
    letters = _letters(len(g.tensors[x].shape))
    return g.map(name, "relu", x, text=f"{letters} -> {letters}")


@dataclass(frozen=True)
class Window:
    """How an image is read: extents of the kernel, stride, padding (of rows and columns), group by group or whole."""

    kernel: int | tuple[int, int]
    stride: int = 1
    pad: int | tuple[int, int] = 0
    grouped: bool = False


def block(
    g: Builder,
    name: str,
    x: str,
    channels: int | tuple[int, int],
    window: Window,
    how: Normalisation,
    activation: bool = True,
) -> str:
    """Convolution, normalisation and, unless `activation` is False, relu."""
    kernel = (window.kernel, window.kernel) if isinstance(window.kernel, int) else window.kernel
    border = (window.pad, window.pad) if isinstance(window.pad, int) else window.pad
    y = convolve(g, f"{name}.conv", x, channels, kernel, window.stride, border, window.grouped)
    x = batch_norm(g, f"{name}.norm", y, how)
    return relu(g, f"{name}.relu", x) if activation else x


def concatenate(g: Builder, name: str, parts: Sequence[str]) -> str:
    """Images (or matrices) one behind the other along dimension 1."""
    shapes = [g.tensors[p].shape for p in parts]
    names = ["b", "c", "y", "x"][: len(shapes[0])]
    inputs, offset = [], 0
    for part, shape in zip(parts, shapes, strict=True):
        index = [Affine.axis(a) for a in names]
        index[1] = index[1].shift(-offset)
        inputs.append(Access(part, tuple(index)))
        offset += shape[1]
    axes = [Axis(a, offset if a == "c" else n) for a, n in zip(names, shapes[0], strict=True)]
    return g.operator(name, "copy", axes, inputs, names)


def image_mean(g: Builder, name: str, x: str) -> str:
    """Mean over rows and columns: x[b, c, y, x] -> [b, c]."""
    rows, columns = g.tensors[x].shape[-2:]
    return g.reduce(name, "b c y x -> b c", x, scale=1.0 / (rows * columns))
