"""Builds models made of dense layers: the perceptrons of Unity, their hand-written training graph, a linear
layer with its gradient.

    forward      z = x w1;  h = relu(z);  y = h w2
    backward     dw2 = h' dy;  dh = dy w2';  dz = dh where z > 0;  dw1 = x' dz
    update       w := w - rate * dw

Source: Unity, OSDI 2022, section 1 (784-512-10, batch 64) and section 7 (16 layers of 8192).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...program.graph import Graph
from ..building.builder import Builder
from . import layers


def _perceptron(name: str, batch: int, sizes: Sequence[int], dtype: str, bias: bool) -> Graph:
    """Dense layers of the given sizes with relu between them."""
    g = Builder(name, dtype)
    x = g.input("x", (batch, sizes[0]))
    for i, features in enumerate(sizes[1:], 1):
        x = layers.dense(g, f"fc{i}", x, features, bias)
        if i < len(sizes) - 1:
            x = layers.relu(g, f"relu{i}", x)
    return g.build(x)


def mlp_unity(
    batch: int = 64, inputs: int = 784, hidden: int = 512, classes: int = 10, dtype: str = "float32"
) -> Graph:
    """Unity's image classifier 784-512-10, forward."""
    return _perceptron("mlp-unity", batch, (inputs, hidden, classes), dtype, bias=False)


def mlp_8192(batch: int = 64, width: int = 8192, layers: int = 16, dtype: str = "float32") -> Graph:
    """Unity's large perceptron: 16 layers of 8192.  The paper has 256 samples per GPU; the default batch is a
    quarter of one GPU's.
    """
    return _perceptron("mlp-8192", batch, [width] * (layers + 1), dtype, bias=False)


def mlp_uneven(batch: int = 13, dtype: str = "float32") -> Graph:
    """57-131-77-10 with biases: no size is divisible by a usual number of devices."""
    return _perceptron("mlp-uneven", batch, (57, 131, 77, 10), dtype, bias=True)


def mlp_unity_training(
    batch: int = 64, inputs: int = 784, hidden: int = 512, classes: int = 10, dtype: str = "float32", rate: str = "0.01"
) -> Graph:
    """One training step of Unity's classifier, as in the introduction of the paper; the loss gradient `dy` is an input.

    Outputs: y and the updated weights.
    """
    g = Builder("mlp-unity-training", dtype)
    x, dy = g.input("x", (batch, inputs)), g.input("dy", (batch, classes))
    w1, w2 = g.parameter("w1", (inputs, hidden)), g.parameter("w2", (hidden, classes))
    z = g.contract("fc1", "b k, k n -> b n", x, w1)
    h = layers.relu(g, "relu1", z)
    y = g.contract("fc2", "b k, k n -> b n", h, w2)
    dw2 = g.contract("fc2.dw", "b k, b n -> k n", h, dy)
    dh = g.contract("fc2.dx", "b n, k n -> b k", dy, w2)
    dz = g.map("relu1.dx", "relu_gradient", dh, z, text="b n, b n -> b n")
    dw1 = g.contract("fc1.dw", "b k, b n -> k n", x, dz)
    next1, next2 = (
        g.map(f"{w}.update", "sgd_update", w, dw, text="k n, k n -> k n", rate=float(rate))
        for w, dw in ((w1, dw1), (w2, dw2))
    )
    return g.build(y, next1, next2)


def linear_training(batch: int = 64, inputs: int = 1024, outputs: int = 1024, dtype: str = "float32") -> Graph:
    """y = x w and the weight gradient dw = x' dy, with dy given."""
    g = Builder("linear-training", dtype)
    x, dy = g.input("x", (batch, inputs)), g.input("dy", (batch, outputs))
    y = g.contract("forward", "b k, k n -> b n", x, g.parameter("w", (inputs, outputs)))
    dw = g.contract("weight_gradient", "b k, b n -> k n", x, dy)
    return g.build(y, dw)
