"""Matrix products of one library on A100 and H100, and Alpa's on V100: tiles in waves, fitted per GPU and element type.

`gemm` also counts pairs of one GPU and element type that were measured more than 10 % apart, and how many are
predicted in that order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shardproof.formal.calibration.matmul_times import Device, Fitted, Product, fit

from .judging import Figures, errors
from .rows import Cells, number, read, whole

__all__ = ["DEVICES", "alpa_products", "gemm"]

Key = tuple[str, str]

DEVICES: dict[Key, Device] = {
    ("a100_sxm", "bfloat16"): Device(108, 2.039e12, 312e12, 2),
    ("a100_sxm", "fp8"): Device(108, 2.039e12, 312e12, 1, scaled=True),
    ("h100_sxm", "bfloat16"): Device(132, 3.35e12, 989e12, 2),
    ("h100_sxm", "fp8"): Device(132, 3.35e12, 1979e12, 1, scaled=True),
    ("v100_sxm2", "f16"): Device(80, 0.9e12, 125e12, 2),
    ("v100_sxm2", "f32"): Device(80, 0.9e12, 15.7e12, 4),
}
"""Processors, memory and dense peak of NVIDIA's data sheets (A100 80 GB SXM, H100 SXM, V100 SXM2)."""


def _rows(folder: Path) -> dict[Key, list[Product]]:
    out: dict[Key, list[Product]] = {}
    for row in read(folder, "gemm/sample"):
        seconds = (number(row, "ms") or 0.0) / 1e3
        if seconds > 0:
            sizes = (whole(row, c, 1) for c in ("m", "n", "k"))
            out.setdefault((row["gpu"], row["dtype"]), []).append(Product(*sizes, seconds))
    return out


def _device(key: Key) -> Device:
    """The data sheet of a GPU and type; of one that is not listed, H100's in bfloat16."""
    return DEVICES.get(key, DEVICES["h100_sxm", "bfloat16"])


LAUNCH = 5e-6
"""Seconds of a kernel's start where no row was measured: what NVIDIA's tools show for an empty one."""


def _by_data_sheet(device: Device, product: Product) -> float:
    """Seconds by the roofline of a data sheet."""
    m, n, k = product.m, product.n, product.k
    moved = device.width * (m * k + k * n) + 2 * m * n
    return LAUNCH + max(2 * m * n * k / device.peak, moved / device.bandwidth)


def _nearest(found: dict[Key, Fitted], key: Key) -> Fitted | None:
    """Constants of a GPU and type, or of the same type elsewhere; None if nothing was fitted."""
    for same in (lambda k: k == key, lambda k: k[1] == key[1], lambda k: True):
        close = [k for k in found if same(k)]
        if close:
            return found[max(close, key=lambda k: found[k].rows)]
    return None


def gemm(fit_folder: Path, judge_folder: Path) -> Figures:
    """The table `gemm`."""
    asked = _rows(judge_folder)
    if not asked:
        return {"rows": 0}
    known = _rows(fit_folder)
    found = {k: fit(rows, _device(k)) for k, rows in known.items()}
    predicted, measured, pairs, right = [], [], 0, 0
    for key, rows in sorted(asked.items()):
        near, device, m = _nearest(found, key), _device(key), [r.seconds for r in rows]
        p = [_by_data_sheet(device, r) if near is None else float(near.time.seconds(r.m, r.n, r.k)) for r in rows]
        more, good = _pairs(np.array(p), np.array(m))
        predicted, measured = predicted + p, measured + m
        pairs, right = pairs + more, right + good
    facts = {"pairs": pairs, "pairs_right": right, "from": "rows" if found else "data sheets"}
    return errors(predicted, measured) | facts


def _pairs(predicted: np.ndarray, measured: np.ndarray, apart: float = 0.1, most: int = 4_000_000) -> tuple[int, int]:
    """Pairs further than `apart` and those in order; of many rows, a fixed choice of `most` pairs.

    >>> _pairs(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.5, 1.2]))
    (3, 2)
    """
    count = len(measured)
    if count * count <= most:
        i, j = (x.ravel() for x in np.meshgrid(np.arange(count), np.arange(count)))
    else:
        i, j = np.random.default_rng(0).integers(0, count, (2, most))
    far = measured[i] > (1 + apart) * measured[j]
    return int(far.sum()), int((far & (predicted[i] > predicted[j])).sum())


def alpa_products(fit_folder: Path, judge_folder: Path) -> tuple[list[float], list[float]]:
    """Predicted and measured seconds of `nccl/alpa_matmul`: squares on one V100; no work is one launch."""
    asked = _squares(read(judge_folder, "nccl/alpa_matmul"))
    known = _squares(read(fit_folder, "nccl/alpa_matmul"))
    found: dict[Key, Fitted] = {}
    predicted, measured = [], []
    for dtype, flop, seconds in asked:
        key = ("v100_sxm2", dtype)
        rows = [Product(n, n, n, s) for d, f, s in known if d == dtype and (n := _side(f))]
        if key not in found and rows:
            found[key] = fit(rows, DEVICES[key])
        near, side = _nearest(found, key), _side(flop)
        if near is None:
            continue
        idle = [s for d, f, s in known if d == dtype and not f]
        predicted.append(float(near.time.seconds(side, side, side)) if side else float(np.median(idle or [2e-5])))
        measured.append(seconds)
    return predicted, measured


def _squares(rows: list[Cells]) -> list[tuple[str, int, float]]:
    return [(r["dtype"], int(float(r["flop"])), s) for r in rows if (s := number(r, "s")) and np.isfinite(s)]


def _side(flop: int) -> int:
    """n of 2 n^3.

    >>> _side(2 * 8064**3), _side(0)
    (8064, 0)
    """
    return round((flop / 2) ** (1 / 3))
