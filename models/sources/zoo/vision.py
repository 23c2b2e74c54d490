"""Builds convolutional models: AlexNet with PaSE's layer sizes, and a small stack of convolutions with
halo.

Before the first dense layer nothing is flattened: the weight is read as [c, y, x, n] and contracted over the three
digits.
"""

from __future__ import annotations

from ...program.graph import Graph
from ..building.builder import Builder
from . import layers


def alexnet(
    batch: int = 128, size: int = 227, width: int = 96, hidden: int = 4096, classes: int = 1024, dtype: str = "float32"
) -> Graph:
    """AlexNet in one tower: images 3 x 227 x 227, convolutions 96-256-384-384-256, dense 4096-4096-1024, softmax.

    `width`: channels of the first convolution, in whose proportion the others grow or shrink; `hidden`: features of the
    dense layers; `size`: pixels in a row, at least 67 (the last pool is left one element then).

    Source of the sizes: PaSE (IPDPS 2021), published implementation, graph `alexnet`.
    """
    g = Builder("alexnet", dtype)
    second, third, last = (max(1, channels * width // 96) for channels in (256, 384, 256))
    x = g.input("image", (batch, 3, size, size))
    x = layers.convolution(g, "conv1", x, width, 11, stride=4)
    x = g.pool("pool1", "max_pool", x, (3, 3), (2, 2))
    x = layers.convolution(g, "conv2", x, second, 5, pad=2)
    x = g.pool("pool2", "max_pool", x, (3, 3), (2, 2))
    x = layers.convolution(g, "conv3", x, third, 3, pad=1)
    x = layers.convolution(g, "conv4", x, third, 3, pad=1)
    x = layers.convolution(g, "conv5", x, last, 3, pad=1)
    x = g.pool("pool5", "max_pool", x, (3, 3), (2, 2))
    x = layers.relu(g, "relu6", _dense_image(g, "fc6", x, hidden))
    x = layers.relu(g, "relu7", layers.dense(g, "fc7", x, hidden))
    x = layers.dense(g, "fc8", x, classes)
    return g.build(g.normalise("softmax", "softmax", "b n -> b n", x, over=("n",)))


def _dense_image(g: Builder, name: str, x: str, features: int) -> str:
    """Dense layer over an image x[b, c, y, x]: the flat axis c*y*x stays split in its digits."""
    _, c, y, v = g.tensors[x].shape
    w = g.parameter(f"{name}.weight", (c, y, v, features), source_shape=(c * y * v, features))
    out = g.contract(name, "b c y x, c y x n -> b n", x, w)
    return g.map(f"{name}.bias_add", "add", out, g.parameter(f"{name}.bias", (features,)), text="b n, n -> b n")


def conv_stack(batch: int = 4, size: int = 29, channels: int = 8, dtype: str = "float32") -> Graph:
    """3 x size x size -> three convolutions (halo, stride 2, wide window), a pool, the mean over the image, a dense
    layer.
    """
    g = Builder("conv-stack", dtype)
    x = g.input("image", (batch, 3, size, size))
    x = layers.convolution(g, "conv1", x, channels, 3, pad=1)
    x = layers.convolution(g, "conv2", x, 2 * channels, 3, stride=2, pad=1)
    x = g.pool("pool2", "max_pool", x, (3, 3), (1, 1), (1, 1))
    x = layers.convolution(g, "conv3", x, channels, 5, pad=2)
    rows, columns = g.tensors[x].shape[2:]
    x = g.reduce("mean", "b c y x -> b c", x, scale=1.0 / (rows * columns))
    return g.build(layers.dense(g, "fc", x, 10))
