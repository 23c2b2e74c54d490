"""Builds residual networks: ResNet-101 (PaSE) and ResNeXt-50 32x4d (Unity).

    bottleneck   y = relu( N(1x1) o relu N(3x3, stride, groups) o relu N(1x1) (x)  +  shortcut(x) )

where N(.) is a normalised convolution and the shortcut is the identity, or a normalised 1x1 convolution in the first
block of a stage.  The stride is in the 3x3 convolution.  In a ResNeXt the inner channels are digits: 32 groups x
channels of a group.

Sources: He et al., CVPR 2016, Table 1; Xie et al., CVPR 2017, Table 1.  PaSE (IPDPS 2021), published graph `resnet101`:
batch 128, first convolution 114 x 114, so 227 pixels.  Unity (OSDI 2022), section 6.1: 64 images per GPU; the default
batch is that for 16 GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...keywords import keywords_of
from ...program.graph import Graph, GraphError
from ..building.builder import Builder
from . import convolutions as conv
from . import layers
from .convolutions import Normalisation, Window


def _counts(name: str, blocks: str) -> list[int]:
    """`3-4-6-3` as numbers."""
    parts = blocks.split("-")
    if not all(p.isdecimal() and 0 < int(p) < 1000 for p in parts):
        raise GraphError(f"model {name!r}", f"option blocks must read like 3-4-6-3 (blocks per stage), got {blocks!r}")
    return [int(p) for p in parts]


def _bottleneck(
    g: Builder, name: str, x: str, inner: int, groups: int, outer: int, stride: int, how: Normalisation
) -> str:
    """See the module docstring; `inner` channels inside, in digits when there is more than one group."""
    middle: int | tuple[int, int] = inner if groups == 1 else (groups, inner // groups)
    y = conv.block(g, f"{name}.reduce", x, middle, Window(1), how)
    y = conv.block(g, f"{name}.window", y, middle, Window(3, stride, 1, groups > 1), how)
    y = conv.block(g, f"{name}.expand", y, outer, Window(1), how, activation=False)
    if stride > 1 or g.tensors[x].shape[1] != outer:
        x = conv.block(g, f"{name}.shortcut", x, outer, Window(1, stride), how, activation=False)
    return conv.relu(g, f"{name}.relu", g.map(f"{name}.add", "add", y, x, text="b c y x, b c y x -> b c y x"))


@dataclass(frozen=True)
class ResidualSizes:
    """`stem` channels after the first convolution; stage i has 2^i * 4 * stem outside, 2^i * groups * group_width
    inside.
    """

    batch: int = 1024
    size: int = 224
    blocks: str = "3-4-6-3"
    stem: int = 64
    groups: int = 32
    group_width: int = 4
    classes: int = 1000
    frozen: str = "no"
    dtype: str = "float32"


def _residual(name: str, of: ResidualSizes) -> Graph:
    g, how = Builder(name, of.dtype), Normalisation(of.frozen == "yes")
    x = g.input("image", (of.batch, 3, of.size, of.size))
    x = conv.block(g, "stem", x, of.stem, Window(7, 2, 3), how)
    x = g.pool("stem.pool", "max_pool", x, (3, 3), (2, 2), (1, 1))
    for stage, count in enumerate(_counts(name, of.blocks)):
        for i in range(count):
            x = _bottleneck(
                g,
                f"stage{stage + 1}.block{i}",
                x,
                of.groups * of.group_width << stage,
                of.groups,
                4 * of.stem << stage,
                1 + (stage > 0 and i == 0),
                how,
            )
    return g.build(layers.dense(g, "fc", conv.image_mean(g, "mean", x), of.classes))


@keywords_of(ResidualSizes)
def resnext50(of: ResidualSizes) -> Graph:
    """ResNeXt-50 32x4d: 25,028,904 parameters; output: logits [b, n].  `frozen=yes`: stored statistics in the
    normalisations.
    """
    return _residual("resnext50", of)


def resnet101(
    batch: int = 128,
    size: int = 227,
    blocks: str = "3-4-23-3",
    stem: int = 64,
    classes: int = 1000,
    frozen: str = "no",
    dtype: str = "float32",
) -> Graph:
    """ResNet-101: 44,549,160 parameters; output: logits [b, n].  `frozen=yes`: stored statistics in the
    normalisations.
    """
    return _residual("resnet101", ResidualSizes(batch, size, blocks, stem, 1, stem, classes, frozen, dtype))
