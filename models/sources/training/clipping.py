"""Gradients clipped by their global norm, as `torch.nn.utils.clip_grad_norm_` does.

    n2 = sum over all gradients of the sum of their squares;   c = min(1, clip / (sqrt(n2) + 1e-6));   g := c g

Every update then waits for all gradients: they are all held until the last of them is known.
Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks (ICML 2013), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...program.index import Axis, Combine, access
from .backward import Backward

CLIPPED: Final = "clipped:"
"""How the names of clipped gradients begin."""


def total_of_squares(b: Backward, trained: Sequence[tuple[str, str]]) -> str:
    """The sum of squares of all gradients, in float32 (float64 where one of them is)."""
    wide = "float64" if any(b.tensors[g].dtype == "float64" for _, g in trained) else "float32"
    squares = []
    for w, g in trained:
        names = b.names[w]
        axes = [Axis(a, n, Combine.SUM) for a, n in zip(names, b.tensors[g].shape, strict=True)]
        squares.append(b.emit(f"norm:{w}", "product", axes, [access(g, *names)] * 2, (), (), wide))
    return b.emit("norm:all", "sum_inputs", (), [access(t) for t in squares], (), (), wide)


def clip_gradients(
    b: Backward, trained: Sequence[tuple[str, str]], most: float, known: str = ""
) -> list[tuple[str, str]]:
    """(parameter, its gradient) with the gradients clipped; the operators are added to the reverse pass.  `known`:
    the sum of their squares, if it is computed already.
    """
    total = known or total_of_squares(b, trained)
    wide = b.tensors[total].dtype
    factor = b.emit("norm:factor", "clip_factor", (), [access(total)], (), (("clip", most),), wide)
    out = []
    for w, g in trained:
        names = b.names[w]
        axes = [Axis(a, n) for a, n in zip(names, b.tensors[g].shape, strict=True)]
        reads = [access(g, *names), access(factor)]
        t = b.tensors[g]
        dtype = b.tensors[w].dtype if b.typed else t.dtype
        out.append((w, b.emit(f"{CLIPPED}{w}", "multiply", axes, reads, names, (), dtype, t.source_shape)))
    return out
