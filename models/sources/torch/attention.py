"""Translates `scaled_dot_product_attention` into the attention operator.

    softmax(scale q k^T + mask) v      q[.., s, d], k[.., t, d], v[.., t, e];  scale = d^(-1/2) unless given
    is_causal        query i sees the keys up to i (aligned at the first key)
    enable_gqa       heads of q are as many groups of those of k and v: two digits, nothing is repeated
    attn_mask        truth values, or numbers that are added; a constant one that is a band becomes attributes
    dropout_p        the identity, as everywhere

A row that sees no key gives 0, as PyTorch does.  With `--attention matrices` the call is decomposed into products and a
softmax, as it was before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from ...program.index import Access, Affine
from ...program.operators import Value
from ..building.attention import attributes, axes_of
from ..building.band import Bounds, bounds_of, seen_by
from ..building.flat import Unsupported, broadcast
from .context import Constant, Context, Handler, Node, Ref, uniform_along
from .recurrent import KEPT as LOOPS

if TYPE_CHECKING:
    from torch import Tensor
    from torch._ops import OpOverload
    from torch.export.decomp_utils import CustomDecompTable


_FUSED = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""What the call becomes in programs that were decomposed for a device; results beside the first serve PyTorch's own
gradient."""


def decompositions(attention: bool) -> CustomDecompTable:
    """What is decomposed: all that is not core ATen, `attention` not if it is wanted as an operator, nor
    recurrent layers: they are loops, nor what has another gradient then."""
    import torch

    table = torch.export.default_decompositions()
    for name in ("scaled_dot_product_attention", *_FUSED) if attention else ():
        if hasattr(torch.ops.aten, name):
            kept: OpOverload = getattr(torch.ops.aten, name).default
            table.pop(kept, None)
    for name in ("Tensor", "Scalar_Other"):  # becomes a choice whose gradient is NaN at 0
        table.pop(getattr(torch.ops.aten.xlogy, name), None)
    for name in LOOPS:
        table.pop(getattr(torch.ops.aten, name).input, None)
    table[torch.ops.aten.bilinear.default] = _bilinear
    return table


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Two products in the place of one of three factors, which PyTorch sums after multiplying all of them."""
    import torch

    out: Tensor = torch.einsum("...oj,...j->...o", torch.einsum("...i,oij->...oj", x, weight), y)
    return out if bias is None else out + bias


def scaled_dot_product(c: Context, node: Node) -> None:
    """See the module docstring."""
    c.require_unused(node, 1)
    q, k, v = (c.operand(node.ref(n)) for n in ("query", "key", "value"))
    rank = len(q[1])
    if rank < 2 or len(k[1]) != rank or len(v[1]) != rank:
        raise Unsupported("query, key and value of different ranks")
    groups = _groups(node, q[1], k[1], v[1])
    lead = ["b", "h", *(f"h{i}" for i in range(rank))][: rank - 2]
    extents = [max(n) for n in zip(q[1][:-2], k[1][:-2], v[1][:-2], strict=True)]
    if groups > 1:
        extents[-1] //= groups
        lead.append("g")
        extents.append(groups)
        q = _split(c, node, "query", q, groups)
    length, keys = q[1][-2], k[1][-2]
    reads = [
        _read(*q, lead, extents, ["s", "d"]),
        _read(*k, lead[: rank - 2], extents, ["t", "d"]),
        _read(*v, lead[: rank - 2], extents, ["t", "e"]),
    ]
    bounds = Bounds(None, 0) if node.integer("is_causal", 0) else Bounds(None, None)
    if (mask := node.optional("attn_mask") or node.optional("attn_bias")) is not None:
        found = _band(c, mask, length, keys)
        bounds = found or bounds
        if found is None:
            reads.append(_mask(c, node, mask, lead, extents, groups))
    size = {**dict(zip(lead, extents, strict=True)), "s": length, "t": keys, "d": q[1][-1], "e": v[1][-1]}
    roles = {"query": ("s",), "key": ("t",), "feature": ("d",), "value_feature": ("e",)}
    scale = node.number("scale", 1.0 / sqrt(q[1][-1]))
    given: dict[str, Value] = {**roles, **attributes(scale, None, bounds.behind, bounds.ahead, bounds.block)}
    out = [*lead, "s", "e"]
    y = c.operator(node, "", "attention", axes_of(out, size, roles), reads, out, given)
    c.put(node, c.view(node, "heads", y, node.shape))


def _groups(node: Node, q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> int:
    """Query heads per key head."""
    if not node.integer("enable_gqa", 0) or len(q) < 3 or q[-3] == k[-3]:
        return 1
    if k[-3] != v[-3] or q[-3] % k[-3]:
        raise Unsupported(f"{q[-3]} query heads over {k[-3]} key and {v[-3]} value heads")
    return q[-3] // k[-3]


def _split(
    c: Context, node: Node, part: str, value: tuple[str, tuple[int, ...]], groups: int
) -> tuple[str, tuple[int, ...]]:
    """Heads as two dimensions, key heads and groups."""
    tensor, shape = value
    apart = (*shape[:-3], shape[-3] // groups, groups, *shape[-2:])
    return c.view(node, part, tensor, apart), apart


def _read(tensor: str, shape: Sequence[int], lead: Sequence[str], extents: Sequence[int], inner: list[str]) -> Access:
    """An operand along its leading dimensions, those of extent 1 at 0, and two more."""
    first = broadcast(tensor, shape[:-2], lead, extents[: len(lead)])
    return Access(tensor, (*first.index, *map(Affine.axis, inner)))


def _band(c: Context, mask: Ref, length: int, keys: int) -> Bounds | None:
    """The band that a constant mask is; layers share masks, so each is looked at once."""
    if mask not in c.bands:
        c.bands[mask] = _look(c, mask, length, keys)
    found = c.bands[mask]
    return found if isinstance(found, Bounds) else None


def _look(c: Context, mask: Ref, length: int, keys: int) -> Bounds | None:
    found = c.constant_of(mask)
    if found is None or found.ndim < 2 or found.shape[-2:] != (length, keys):
        return None
    if not all(uniform_along(found, k) for k in range(found.ndim - 2)):
        return None
    plane: Constant = found[(0,) * (found.ndim - 2)]
    seen = seen_by(plane)
    if seen is None or (plane.dtype.kind == "f" and not bool(np.all(np.any(seen, axis=1)))):
        return None  # where all keys are hidden, adding numbers leaves their shares
    return bounds_of(seen)


def _mask(c: Context, node: Node, mask: Ref, lead: Sequence[str], extents: Sequence[int], groups: int) -> Access:
    """The mask along whichever rows it has."""
    tensor, shape = c.operand(mask)
    if groups > 1 and len(shape) > 2:
        if shape[-3] > 1:
            tensor, shape = _split(c, node, "mask", (tensor, shape), groups)
        else:
            shape = (*shape[:-2], 1, *shape[-2:])
            tensor = c.view(node, "mask", tensor, shape)
    length, keys = c.shapes[node.ref("query")][-2], c.shapes[node.ref("key")][-2]
    return broadcast(tensor, shape, [*lead, "s", "t"], [*extents, length, keys])


HANDLERS: dict[str, Handler] = {
    "scaled_dot_product_attention": scaled_dot_product,
    **dict.fromkeys(_FUSED, scaled_dot_product),
}
