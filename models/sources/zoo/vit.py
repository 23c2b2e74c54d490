"""Builds the vision transformer: an image as a sequence of patches.

The image is read in digits, rows = Y x p and columns = X x q with patches of p x q pixels, so that the embedding of
patches is a plain contraction  e[b, Y, X, m] = sum_{c, p, q} image[b, c, Y, p, X, q] w[m, c, p, q]  (a convolution with
stride p, without a window).  Then Y X becomes the sequence behind one class token, positions are added, and pre-norm
encoder layers follow:

    x = x + attention(norm(x));   x = x + feed_forward(norm(x));      at the end norm, and a dense layer on the class
                                  token

Source: Dosovitskiy et al., ICLR 2021, Table 1 (ViT-Base, patches of 16 x 16); training batch 4096 as in its appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...keywords import keywords_of
from ...program.graph import Graph, GraphError
from ...program.index import Access, Affine, Axis, access
from ..building.builder import Builder
from . import layers
from .layers import Width


def _tokens(g: Builder, patches: str, width: int) -> str:
    """Class token in front of the patches [b, Y, X, m] -> [b, 1 + Y X, m]."""
    batch, rows, columns, _ = g.tensors[patches].shape
    axes = [Axis("b", batch), Axis("s", rows * columns, None, False), Axis("m", width)]
    whole = Access(patches, (Affine.axis("b"), Affine.everything(), Affine.everything(), Affine.axis("m")))
    flat = g.operator("patches.flat", "copy", axes, [whole], ["b", "s", "m"])
    first = g.parameter("class_token", (1, width))
    both = [access(first, "s", "m"), access(flat, "b", Affine.axis("s").shift(-1), "m")]
    return g.operator(
        "tokens", "copy", [Axis("b", batch), Axis("s", rows * columns + 1), Axis("m", width)], both, ["b", "s", "m"]
    )


def _layer(g: Builder, name: str, x: str, w: Width) -> str:
    """Pre-norm encoder layer."""
    y = layers.layer_norm(g, f"{name}.attention.norm", x, w)
    x = g.map(
        f"{name}.attention.add",
        "add",
        x,
        layers.attention(g, f"{name}.attention", y, y, w),
        text="b s m, b s m -> b s m",
    )
    y = layers.layer_norm(g, f"{name}.ffn.norm", x, w)
    return g.map(f"{name}.ffn.add", "add", x, layers.feed_forward(g, f"{name}.ffn", y, w), text="b s m, b s m -> b s m")


@dataclass(frozen=True)
class VitSizes:
    """See `vit`."""

    batch: int = 4096
    size: int = 224
    patch: int = 16
    depth: int = 12
    width: int = 768
    heads: int = 12
    hidden: int = 3072
    classes: int = 1000
    dtype: str = "bfloat16"


@keywords_of(VitSizes)
def vit(of: VitSizes) -> Graph:
    """ViT-Base/16: 86,567,656 parameters; output: logits [b, n]."""
    size, patch, width = of.size, of.patch, of.width
    if size % patch or width % of.heads:
        raise GraphError(
            "model 'vit'", f"size={size} must be a multiple of patch={patch}, width={width} of heads={of.heads}"
        )
    g, w, side = Builder("vit", of.dtype), Width(width, of.heads, of.hidden, epsilon=1e-6), size // patch
    image = g.input("image", (of.batch, 3, side, patch, side, patch), source_shape=(of.batch, 3, size, size))
    kernel = g.parameter("patches.weight", (width, 3, patch, patch))
    x = g.contract("patches", "b c y p x q, m c p q -> b y x m", image, kernel)
    x = g.map("patches.bias_add", "add", x, g.parameter("patches.bias", (width,)), text="b y x m, m -> b y x m")
    x = _tokens(g, x, width)
    x = g.map(
        "position_add", "add", x, g.parameter("position.table", (side * side + 1, width)), text="b s m, s m -> b s m"
    )
    for i in range(of.depth):
        x = _layer(g, f"layer{i}", x, w)
    x = layers.layer_norm(g, "norm", x, w)
    token = g.operator(
        "token", "copy", [Axis("b", of.batch), Axis("k", width)], [access(x, "b", Affine(), "k")], ["b", "k"]
    )
    return g.build(layers.dense(g, "head", token, of.classes))
