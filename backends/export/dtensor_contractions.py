"""Runs contractions (matrix products over batches, einsum, convolutions) on the parts that devices hold; it
is copied into exported files.

    out[o] = sum over the other letters of the product of operands, each over its own letters

A mesh dimension that cuts letter l in every operand that has it leaves the result cut at l, or, where l is summed over,
partial: every device contracts what it holds.  An operand without l is whole along that mesh dimension, and its
gradient is a sum over it.  A convolution is such a contraction over batch, channels in and channels out; its windows
are whole.  DTensor's own rules flatten batches into one dimension, which loses which mesh dimension cut which.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


def contract(
    run: Callable[..., torch.Tensor], operands: Sequence[DTensor], letters: Sequence[str], out: str, mesh: DeviceMesh
) -> DTensor | None:
    """`run` on the parts of `operands`, of which `letters` name the first dimensions; None: nothing to cut.

    A dimension named `.` is never cut.
    """
    parts: dict[str, int] = {}
    chosen: list[str | None] = []
    order = sorted(range(len(operands)), key=lambda i: -operands[i].numel())
    extent = {v: x.shape[k] for x, own in zip(operands, letters, strict=True) for k, v in enumerate(own)}
    for m, size in enumerate(mesh.shape):
        wanted = [letters[i][p.dim] for i in order for p in (operands[i].placements[m],) if _names(p, letters[i])]
        fits = [v for v in wanted if v != "." and extent[v] % (parts.get(v, 1) * size) == 0]
        chosen.append(fits[0] if fits else None)
        if fits:
            parts[fits[0]] = parts.get(fits[0], 1) * size
    if not parts:
        return None
    local = []
    for x, own in zip(operands, letters, strict=True):
        held: list[Placement] = []
        grads: list[Placement] = []
        for v in chosen:
            held.append(Shard(own.index(v)) if v is not None and v in own else Replicate())
            grads.append(held[-1] if v is None or v in own else Partial())
        local.append(x.redistribute(mesh, held).to_local(grad_placements=grads))
    result: list[Placement] = [
        Replicate() if v is None else Shard(out.index(v)) if v in out else Partial() for v in chosen
    ]
    return DTensor.from_local(run(*local), mesh, result, run_check=False)


def _names(placement: Placement, letters: str) -> bool:
    return isinstance(placement, Shard) and placement.dim < len(letters)


def einsum_letters(equation: object, operands: Sequence[Any]) -> tuple[list[str], str] | None:
    """Letters of the operands and of the result; None for what is not written out, or takes diagonals."""
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    left, out = equation.replace(" ", "").split("->")
    letters = left.split(",")
    if len(letters) != len(operands) or any(len(set(v)) != len(v) for v in letters):
        return None
    return letters, out


def matmul_letters(x: Any, y: Any) -> tuple[list[str], str] | None:
    """Letters of a product of matrices over equal batches of two or more dimensions."""
    n = x.ndim
    if n < 4 or y.ndim != n or x.shape[:-2] != y.shape[:-2]:
        return None
    batch = "abcdefgh"[: n - 2]
    return [batch + "xz", batch + "zy"], batch + "xy"


def convolution(
    func: Callable[..., Any],
    dims: int,
    transposed: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: DeviceMesh,
) -> Any:
    """A convolution, batch and channels cut as its operands are; None where nothing is, or channels are grouped."""
    names = ["input", "weight", "bias", "stride", "padding"]
    names += ["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    if x.ndim != dims + 2 or given.get("groups", 1) != 1:
        return None
    letters = ["bi", "io" if transposed else "oi"]
    y = contract(lambda a, w: func(a, w, None, **given), [x, weight], letters, "bo", mesh)
    return y if y is None or bias is None else y + bias.reshape(1, -1, *[1] * dims)
