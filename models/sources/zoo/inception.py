"""Builds Inception-v3: towers of convolutions side by side, concatenated over channels.

    A   1x1 | 1x1 5x5 | 1x1 3x3 3x3 | pool 1x1            35 x 35          (5x5 factorised once: 3x3 3x3)
    B   3x3/2 | 1x1 3x3 3x3/2 | pool/2                    35 -> 17
    C   1x1 | 1x1 1x7 7x1 | 1x1 7x1 1x7 7x1 1x7 | pool 1x1    17 x 17      (7x7 factorised)
    D   1x1 3x3/2 | 1x1 1x7 7x1 3x3/2 | pool/2            17 -> 8
    E   1x1 | 1x1 (1x3, 3x1) | 1x1 3x3 (1x3, 3x1) | pool 1x1   8 x 8

Every convolution is normalised (epsilon 0.001) and followed by relu; no auxiliary head.

Sources: Szegedy et al., CVPR 2016, Table 1 and Figures 5 to 7; the published PaSE graph `inception3` has the same
iteration domains.  PaSE: batch 128.  Unity (OSDI 2022), section 6.1: 64 images per GPU; the default batch, 1024, is
that for 16 GPUs.
"""

from __future__ import annotations

from ...program.graph import Graph
from ..building.builder import Builder
from . import convolutions as conv
from . import layers
from .convolutions import Normalisation


class _Net:
    """A builder that scales channels: `width` channels in the first convolution instead of 32."""

    def __init__(self, g: Builder, width: int, how: Normalisation) -> None:
        self.g, self.width, self.how = g, width, how

    def unit(
        self,
        name: str,
        x: str,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
    ) -> str:
        """Convolution, normalisation, relu."""
        return conv.block(
            self.g, name, x, max(1, channels * self.width // 32), conv.Window(kernel, stride, pad), self.how
        )

    def chain(self, name: str, x: str, *parts: tuple[int, int | tuple[int, int]], last_stride: int = 1) -> str:
        """(channels, kernel) one after another, same-padded; the last one with `last_stride` and then without
        padding.
        """
        for i, (channels, kernel) in enumerate(parts):
            window = (kernel, kernel) if isinstance(kernel, int) else kernel
            last = last_stride > 1 and i == len(parts) - 1
            pad = (0, 0) if last else (window[0] // 2, window[1] // 2)
            x = self.unit(f"{name}.{i}", x, channels, window, last_stride if last else 1, pad)
        return x

    def average_branch(self, name: str, x: str, channels: int) -> str:
        """Average over 3x3, then 1x1."""
        return self.unit(
            f"{name}.project",
            self.g.pool(name, "average_pool", x, (3, 3), (1, 1), (1, 1), count_include_pad=1),
            channels,
        )

    def halve(self, name: str, x: str) -> str:
        """Maximum over 3x3 with stride 2."""
        return self.g.pool(name, "max_pool", x, (3, 3), (2, 2))

    def join(self, name: str, *parts: str) -> str:
        """Towers side by side."""
        return conv.concatenate(self.g, f"{name}.concat", parts)


_ROW, _COLUMN = (1, 7), (7, 1)


def _a(n: _Net, name: str, x: str, pooled: int) -> str:
    return n.join(
        name,
        n.unit(f"{name}.one", x, 64),
        n.chain(f"{name}.five", x, (48, 1), (64, 5)),
        n.chain(f"{name}.three", x, (64, 1), (96, 3), (96, 3)),
        n.average_branch(f"{name}.pool", x, pooled),
    )


def _b(n: _Net, name: str, x: str) -> str:
    return n.join(
        name,
        n.unit(f"{name}.one", x, 384, 3, 2),
        n.chain(f"{name}.three", x, (64, 1), (96, 3), (96, 3), last_stride=2),
        n.halve(f"{name}.pool", x),
    )


def _c(n: _Net, name: str, x: str, inner: int) -> str:
    return n.join(
        name,
        n.unit(f"{name}.one", x, 192),
        n.chain(f"{name}.seven", x, (inner, 1), (inner, _ROW), (192, _COLUMN)),
        n.chain(f"{name}.twice", x, (inner, 1), (inner, _COLUMN), (inner, _ROW), (inner, _COLUMN), (192, _ROW)),
        n.average_branch(f"{name}.pool", x, 192),
    )


def _d(n: _Net, name: str, x: str) -> str:
    return n.join(
        name,
        n.chain(f"{name}.three", x, (192, 1), (320, 3), last_stride=2),
        n.chain(f"{name}.seven", x, (192, 1), (192, _ROW), (192, _COLUMN), (192, 3), last_stride=2),
        n.halve(f"{name}.pool", x),
    )


def _e(n: _Net, name: str, x: str) -> str:
    def fork(part: str, y: str) -> str:
        sides = (n.unit(f"{part}.row", y, 384, (1, 3), 1, (0, 1)), n.unit(f"{part}.column", y, 384, (3, 1), 1, (1, 0)))
        return n.join(part, *sides)

    return n.join(
        name,
        n.unit(f"{name}.one", x, 320),
        fork(f"{name}.three", n.unit(f"{name}.three", x, 384)),
        fork(f"{name}.twice", n.chain(f"{name}.twice", x, (448, 1), (384, 3))),
        n.average_branch(f"{name}.pool", x, 192),
    )


def inception_v3(
    batch: int = 1024, size: int = 299, width: int = 32, classes: int = 1000, frozen: str = "no", dtype: str = "float32"
) -> Graph:
    """Inception-v3: 23,834,568 parameters; `size` at least 75; output: logits [b, n].  `frozen=yes`: stored
    statistics.
    """
    g = Builder("inception-v3", dtype)
    n = _Net(g, width, Normalisation(frozen == "yes", 1e-3))
    x = g.input("image", (batch, 3, size, size))
    x = n.unit("stem.0", x, 32, 3, 2)
    x = n.unit("stem.1", x, 32, 3)
    x = n.unit("stem.2", x, 64, 3, 1, 1)
    x = n.unit("stem.3", n.halve("stem.pool2", x), 80)
    x = n.halve("stem.pool4", n.unit("stem.4", x, 192, 3))
    for i, pooled in enumerate((32, 64, 64)):
        x = _a(n, f"a{i}", x, pooled)
    x = _b(n, "b", x)
    for i, inner in enumerate((128, 160, 160, 192)):
        x = _c(n, f"c{i}", x, inner)
    x = _d(n, "d", x)
    for i in range(2):
        x = _e(n, f"e{i}", x)
    return g.build(layers.dense(g, "fc", conv.image_mean(g, "mean", x), classes))
