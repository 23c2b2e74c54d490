"""Peaks from the data sheets of accelerators, per device: what a fitted share of a peak is a share
of.

Dense rates (no structured sparsity).  Sources: NVIDIA data sheets of A100 (2021), H100 SXM (2023), H200 (2023), DGX
B200, GB200 NVL72 (2024), DGX B300, GB300 NVL72 (2025); a system's figure divided by its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ....models.text import InputError


@dataclass(frozen=True)
class Device:
    """`bf16`, `fp8`, `fp4`: Tflop/s (0: the device has none); `memory`: GB/s; `link`, `network`: GB/s and direction."""

    bf16: float
    fp8: float
    fp4: float
    memory: float
    link: float
    network: float
    node: int

    def peak(self, precision: str) -> float:
        """Tflop/s of `bf16`, `fp8`, `fp4`; the next wider type that the device has.

        >>> DEVICES["a100_80gb"].peak("fp8"), DEVICES["h100"].peak("fp8")
        (312.0, 1979.0)
        """
        rates = {"bf16": self.bf16, "fp8": self.fp8 or self.bf16, "fp4": self.fp4 or self.fp8 or self.bf16}
        if precision not in rates:
            raise InputError(f"precision {precision!r} is none of {', '.join(rates)}")
        return rates[precision]


DEVICES: Final[Mapping[str, Device]] = {
    "v100": Device(125.0, 0, 0, 900, 150, 3.125, 8),
    "a100_40gb": Device(312.0, 0, 0, 1555, 300, 25, 8),
    "a100_80gb": Device(312.0, 0, 0, 2039, 300, 25, 8),
    "h100": Device(989.0, 1979.0, 0, 3350, 450, 50, 8),
    "h100_96gb_500w": Device(989.0, 1979.0, 0, 2400, 450, 50, 8),
    "h200": Device(989.0, 1979.0, 0, 4800, 450, 50, 8),
    "b200": Device(2250.0, 4500.0, 9000.0, 8000, 900, 50, 8),
    "gb200": Device(2500.0, 5000.0, 10000.0, 8000, 900, 50, 72),
    "b300": Device(2250.0, 4500.0, 13500.0, 8000, 900, 100, 8),
    "gb300": Device(2500.0, 5000.0, 15000.0, 8000, 900, 100, 72),
}
"""By the names of the tables, in lower case."""
