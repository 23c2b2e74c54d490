"""Operators of ONNX as the specification has them, where the reference evaluator of `onnx`
contradicts it.

Found with onnx 1.23 while comparing the nine light graphs and the package's own tests:

LRN                     loops over the batch where it must loop over channels, so only the first ones are normalised
BatchNormalization      before operator set 14 it mixes the batch's own statistics in, though it has one output
GlobalMaxPool           of one or three spatial dimensions it reduces two of the wrong ones
MaxPool, AveragePool    pads of two dimensions in the wrong order, no dilations of averages, another SAME_LOWER
Softmax                 before operator set 13 it must flatten from `axis` (default 1), and normalises the last one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..building.original import Values


@dataclass(frozen=True)
class _Windows:
    """Windows over all dimensions behind the first two, as ONNX states them."""

    kernel: Sequence[int]
    auto: str
    ceil: bool
    dilations: Sequence[int] | None
    pads: Sequence[int] | None
    strides: Sequence[int] | None

    def sizes(self, shape: Sequence[int]) -> tuple[list[int], list[int], list[int], list[int]]:
        """(result sizes, padding before and behind every dimension, steps, dilations)."""
        kernel, auto, rank = self.kernel, self.auto, len(shape)
        steps, spread = self.strides or [1] * rank, self.dilations or [1] * rank
        around = [0] * (2 * rank) if self.pads is None or auto != "NOTSET" else list(self.pads)
        sizes = []
        for k, n in enumerate(shape):
            reach = spread[k] * (kernel[k] - 1) + 1
            if auto.startswith("SAME"):
                size = -(-n // steps[k])
                total = max(0, (size - 1) * steps[k] + reach - n)
                around[k] = total // 2 if auto == "SAME_UPPER" else total - total // 2
                around[rank + k] = total - around[k]
            else:
                room = n + around[k] + around[rank + k] - reach
                size = (-(-room // steps[k]) if self.ceil else room // steps[k]) + 1
                if self.ceil and (size - 1) * steps[k] >= n + around[k]:
                    size -= 1
            sizes.append(size)
        return sizes, around, list(steps), list(spread)


def _pooled(x: Values, windows: _Windows, average: bool, include: bool) -> tuple[Values]:
    """The mean or the largest element of every window; `include`: padding counts in a mean."""
    rank, kernel = x.ndim - 2, windows.kernel
    sizes, around, steps, spread = windows.sizes(x.shape[2:])
    out = np.zeros((*x.shape[:2], *sizes), x.dtype)
    for at in np.ndindex(*sizes):
        inside, counted = [], 0
        for tap in np.ndindex(*kernel):
            where = [i * s + t * d - p for i, s, t, d, p in zip(at, steps, tap, spread, around, strict=False)]
            if all(0 <= w < n for w, n in zip(where, x.shape[2:], strict=True)):
                inside.append(x[(slice(None), slice(None), *where)])
            counted += all(w < n + p for w, n, p in zip(where, x.shape[2:], around[rank:], strict=True))
        place = (slice(None), slice(None), *at)
        if average:
            out[place] = np.sum(inside, axis=0) / (counted if include else len(inside))
        else:
            out[place] = np.max(inside, axis=0)
    return (out,)


def repaired_operators(opset: int) -> list[type]:
    """The operators that an operator set needs instead of the evaluator's own."""
    from onnx.reference.op_run import OpRun

    class LRN(OpRun):  # type: ignore[misc]  # onnx is Any to mypy
        op_domain = ""

        def _run(self, x: Values, alpha: float, beta: float, bias: float, size: int) -> tuple[Values]:
            total, channels = np.zeros_like(x), x.shape[1]
            for c in range(channels):
                low, high = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
                total[:, c] = (x[:, low:high] ** 2).sum(axis=1)
            return ((x / (float(bias) + float(alpha) / size * total) ** float(beta)).astype(x.dtype),)

    class BatchNormalization(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(
            self, x: Values, gamma: Values, beta: Values, mean: Values, variance: Values, **attributes: float
        ) -> tuple[Values]:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            scale = gamma / np.sqrt(variance + (attributes.get("epsilon") or 1e-5))
            return ((x * scale.reshape(shape) + (beta - mean * scale).reshape(shape)).astype(x.dtype),)

    class GlobalMaxPool(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: Values) -> tuple[Values]:
            return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)

    class Softmax(OpRun):  # type: ignore[misc]
        op_domain = ""
        op_schema = None

        def _run(self, x: Values, axis: int | None = None) -> tuple[Values]:
            axes = tuple(range(1 if axis is None else axis % x.ndim, x.ndim))
            e = np.exp(x - x.max(axis=axes, keepdims=True))
            return (e / e.sum(axis=axes, keepdims=True),)

    return [LRN, BatchNormalization, GlobalMaxPool, *_pools(), *([Softmax] if opset < 13 else [])]


def _pools() -> list[type]:
    """Windows with padding, dilations and rounding up."""
    from onnx.reference.op_run import OpRun

    class MaxPool(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(
            self,
            x: Values,
            auto_pad: str | None = None,
            ceil_mode: int = 0,
            dilations: Sequence[int] | None = None,
            kernel_shape: Sequence[int] = (),
            pads: Sequence[int] | None = None,
            storage_order: int = 0,
            strides: Sequence[int] | None = None,
        ) -> tuple[Values]:
            windows = _Windows(kernel_shape, auto_pad or "NOTSET", bool(ceil_mode), dilations, pads, strides)
            return _pooled(x, windows, False, False)

    class AveragePool(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(
            self,
            x: Values,
            auto_pad: str | None = None,
            ceil_mode: int = 0,
            count_include_pad: int = 0,
            dilations: Sequence[int] | None = None,
            kernel_shape: Sequence[int] = (),
            pads: Sequence[int] | None = None,
            strides: Sequence[int] | None = None,
        ) -> tuple[Values]:
            windows = _Windows(kernel_shape, auto_pad or "NOTSET", bool(ceil_mode), dilations, pads, strides)
            return _pooled(x, windows, True, bool(count_include_pad))

    return [MaxPool, AveragePool]
