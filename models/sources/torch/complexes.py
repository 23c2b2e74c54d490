"""Complex numbers between `view_as_complex` and `view_as_real`: pairs of reals, as rotary embeddings write them.

    (a + i b)(c + i d) = (a c - b d) + i (a d + b c)

A complex value is a tensor of reals with a last dimension of 2.  What is known on them are products, with constants of
the program or with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...program.index import Access, Affine, Axis
from ..building.flat import Unsupported, joined, letters, pointwise
from .context import Context, Handler, Node, Ref
from .pointwise import binary

Shaped = tuple[str, tuple[int, ...]]

KINDS: Final = frozenset({"view_as_complex", "mul"})
"""Operators whose results may be complex."""


def as_complex(c: Context, node: Node) -> None:
    """view_as_complex: the pairs are the value."""
    c.pairs[Ref(node.name)] = c.tensor(node.ref("self"))


def as_real(c: Context, node: Node) -> None:
    """view_as_real: the pairs."""
    found = c.pairs.get(node.ref("self"))
    if found is None:
        raise Unsupported("a complex number that is no product of view_as_complex")
    c.put(node, found)


def product(c: Context, node: Node) -> None:
    """mul of complex numbers; of others as ever."""
    operands = [node.arguments["self"], node.arguments["other"]]
    if not node.dtype.startswith("complex"):
        binary(c, node)
        return
    pairs = [_pair(c, node, v) for v in operands]
    (a, b), (p, q) = [[_part(c, node, f"{name}{k}", x, k) for k in (0, 1)] for name, x in zip("xy", pairs, strict=True)]
    real = _sum(c, node, "real", "subtract", (a, p), (b, q))
    imaginary = _sum(c, node, "imaginary", "add", (a, q), (b, p))
    single = (*node.shape, 1)
    parts = [c.view(node, part, x, single) for part, x in (("first", real), ("second", imaginary))]
    c.pairs[Ref(node.name)] = joined(c, node, "", parts, len(node.shape))


def _pair(c: Context, node: Node, value: object) -> Shaped:
    """A complex operand as pairs."""
    if isinstance(value, Ref) and value in c.pairs:
        return c.pairs[value], (*c.shapes[value], 2)
    known = c.constants.get(value) if isinstance(value, Ref) else None
    if known is None or known.dtype.kind != "c" or not isinstance(value, Ref):
        raise Unsupported("a factor that is no complex constant and not made by view_as_complex")
    made = Ref(f"{value.node}/pairs", value.result)
    c.constants[made] = np.stack([np.real(known), np.imag(known)], -1)
    c.shapes[made], c.dtypes[made] = (*known.shape, 2), "float64" if node.dtype == "complex128" else "float32"
    return c.operand(made)


def _part(c: Context, node: Node, name: str, x: Shaped, k: int) -> Shaped:
    """The real (0) or the imaginary (1) parts."""
    tensor, shape = x
    inner: Sequence[int] = shape[:-1] or (1,)
    names = letters(len(inner))
    read = Access(tensor, (*(map(Affine.axis, names) if shape[:-1] else ()), Affine((), k)))
    axes = [Axis(a, n) for a, n in zip(names, inner, strict=True)]
    return c.operator(node, name, "copy", axes, [read], names), tuple(shape[:-1])


def _sum(
    c: Context, node: Node, name: str, function: str, left: tuple[Shaped, Shaped], right: tuple[Shaped, Shaped]
) -> str:
    """The sum or difference of two products."""
    one, two = (
        (pointwise(c, node, f"{name}_{side}", "multiply", list(pair)), node.shape)
        for side, pair in (("left", left), ("right", right))
    )
    return pointwise(c, node, name, function, [one, two])


HANDLERS: dict[str, Handler] = {"view_as_complex": as_complex, "view_as_real": as_real, "mul": product}
