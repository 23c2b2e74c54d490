"""Translates grid_sampler_2d: an image read between its pixels, at points that are computed.

    x = ((g + 1) n - 1) / 2        align_corners = False;  g in [-1, 1] from edge to edge
    x = (g + 1) (n - 1) / 2        align_corners = True

bilinear: the four pixels around a point, weighted by how near they are; one outside counts nothing (zeros), or is the
nearest one inside (border).  Pixels are rows of an embedding over the flat image, whose ids share the batch with it.
"""

from __future__ import annotations

from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import Value
from ..building.flat import Unsupported, pointwise
from .context import Context, Handler, Node

_POINT, _PIXEL = ["b", "y", "x"], ["b", "c", "y", "x"]


def _axes(node: Node, names: list[str]) -> list[Axis]:
    extents = dict(zip(_PIXEL, node.shape, strict=True))
    return [Axis(a, extents[a]) for a in names]


def _step(c: Context, node: Node, part: str, function: str, *tensors: str, **attributes: Value) -> str:
    """An elementwise operator over the points."""
    shape = (node.shape[0], *node.shape[2:])
    return pointwise(c, node, part, function, [(t, shape) for t in tensors], None, **attributes)


def _cast(c: Context, node: Node, part: str, tensor: str, dtype: str) -> str:
    return pointwise(c, node, part, "cast", [(tensor, (node.shape[0], *node.shape[2:]))], dtype, dtype=dtype)


def _neighbours(c: Context, node: Node, grid: str, k: int, n: int) -> list[tuple[str, str]]:
    """(pixel, weight) of what is around the points along one of n pixels; the weight of a pixel outside is 0."""
    read = Access(grid, (*map(Affine.axis, _POINT), Affine((), k)))
    at = c.operator(node, f"point{k}", "copy", _axes(node, _POINT), [read], _POINT)
    corners = node.integer("align_corners", 0)
    by = (n - 1) / 2 if corners else n / 2
    at = _step(c, node, f"scaled{k}", "scale", at, scale=by)
    at = _step(c, node, f"shifted{k}", "shift", at, shift=by if corners else by - 0.5)
    if node.integer("padding_mode", 0) == 1:
        at = _step(c, node, f"border{k}", "clip", at, low=0.0, high=float(n - 1))
    if node.integer("interpolation_mode", 0) == 1:
        pixels: list[tuple[str, str | None]] = [(_step(c, node, f"nearest{k}", "round", at), None)]
    else:
        low = _step(c, node, f"low{k}", "floor", at)
        far = _step(c, node, f"far{k}", "subtract", at, low)
        near = _step(c, node, f"near{k}", "shift", _step(c, node, f"back{k}", "negate", far), shift=1.0)
        pixels = [(low, near), (_step(c, node, f"high{k}", "shift", low, shift=1.0), far)]
    out = []
    for pixel, weight in pixels:
        inside = _step(c, node, f"inside{k}", "clip", pixel, low=0.0, high=float(n - 1))
        there = _step(c, node, f"there{k}", "equal", pixel, inside)
        if weight is None:
            out.append((inside, _cast(c, node, f"weight{k}", there, node.dtype)))
        else:
            out.append((inside, _step(c, node, f"weight{k}", "mask_fill", weight, there, value=0.0)))
    return out


def grid_sampler(c: Context, node: Node) -> None:
    """grid_sampler_2d, bilinear or nearest, with zeros or the border outside."""
    if node.integer("interpolation_mode", 0) > 1 or node.integer("padding_mode", 0) > 1:
        raise Unsupported("bicubic sampling, or reflection outside (bilinear, nearest, zeros and border are supported)")
    image, (batch, channels, high, wide) = c.operand(node.ref("input"))
    grid = c.tensor(node.ref("grid"))
    flat = c.view(node, "flat", image, (batch, channels, high * wide))
    columns = _neighbours(c, node, grid, 0, wide)
    total: str | None = None
    for y, down in _neighbours(c, node, grid, 1, high):
        row = _step(c, node, "row", "scale", y, scale=float(wide))
        for x, right in columns:
            place = _cast(c, node, "place", _step(c, node, "sum", "add", row, x), "int32")
            weight = _step(c, node, "weight", "multiply", down, right)
            reads = [
                Access(flat, (Affine.axis("b"), Affine.axis("c"), Affine.axis("v"))),
                Access(place, tuple(map(Affine.axis, _POINT))),
            ]
            axes = [*_axes(node, _PIXEL), Axis("v", high * wide, Combine.SUM)]
            pixel = c.operator(node, "pixel", "embedding", axes, reads, _PIXEL, {"rows": "v"})
            both = [Access(pixel, tuple(map(Affine.axis, _PIXEL))), Access(weight, tuple(map(Affine.axis, _POINT)))]
            part = c.operator(node, "weighted", "multiply", _axes(node, _PIXEL), both, _PIXEL)
            total = part if total is None else pointwise(c, node, "", "add", [(total, node.shape), (part, node.shape)])
    if total is not None:
        c.put(node, total)


HANDLERS: dict[str, Handler] = {"grid_sampler_2d": grid_sampler}
