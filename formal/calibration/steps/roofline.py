r"""Computes seconds of a step's work on a device: every term over a share of its data-sheet peak.

    T = products / (share peak)  +  attention / (`attention` bf16 peak)  +  `activations` tensors / memory
        + `tensor` moves / link  +  `shards` moves / (network, or link inside a node)  +  28 bytes a parameter / memory
        + `step`

`activations` says how many such tensors a layer reads and writes per pass; `tensor` and `shards` which part of the
moves is not hidden behind products.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from .devices import Device
from .transformer import Work


@dataclass(frozen=True)
class Shares:
    """Of the peaks, as the module says; `step` in seconds."""

    bf16: Fraction
    fp8: Fraction
    fp4: Fraction
    attention: Fraction
    activations: Fraction
    tensor: Fraction
    shards: Fraction
    step: Fraction


TUNED: Final = Shares(
    bf16=Fraction(7, 10),
    fp8=Fraction(6, 10),
    fp4=Fraction(4, 10),
    attention=Fraction(1, 2),
    activations=Fraction(20),
    tensor=Fraction(3, 10),
    shards=Fraction(1, 10),
    step=Fraction(0),
)
"""What NVIDIA's tuned recipes reach on H100s, to 10 %: chosen by leaving rows out of `dgxc` one by one; products of
8,192 cubed reach 0.73 to 0.76 (bf16) and 0.41 to 0.52 (fp8 with block scales) of the H100's peak in the table `gemm`.
"""


@dataclass(frozen=True)
class Terms:
    """Seconds of each term at the data sheet's peaks, nothing hidden."""

    products: float
    attention: float
    activations: float
    tensor: float
    shards: float
    update: float


def at_peaks(work: Work, device: Device, precision: str, replicas: int = 1, crosses: bool = True) -> Terms:
    """The terms that shares divide; `replicas` share the update of a parameter; `crosses`: shards are gathered between
    nodes.

    >>> from .devices import DEVICES
    >>> from .transformer import MODELS, Layout, work
    >>> w = work(MODELS["mpt-7b"], Layout(micro_batch=6, micro_batches=2, seq=2048, dp=8, sharded=8))
    >>> t = at_peaks(w, DEVICES["a100_80gb"], "bf16", replicas=8, crosses=False)
    >>> round(t.products, 2), round(t.shards, 2)
    (3.14, 0.24)
    """
    return Terms(
        products=work.products / (device.peak(precision) * 1e12),
        attention=work.attention / (device.bf16 * 1e12),
        activations=work.activations / (device.memory * 1e9),
        tensor=work.tensor / (device.link * 1e9),
        shards=work.shards / ((device.network if crosses else device.link) * 1e9),
        update=28 * work.parameters / replicas / (device.memory * 1e9),
    )


def seconds(
    work: Work, device: Device, precision: str, shares: Shares, replicas: int = 1, crosses: bool = True
) -> float:
    """One step; `replicas` and `crosses` as in `at_peaks`.

    >>> from .devices import DEVICES
    >>> from .transformer import MODELS, Layout, work
    >>> w = work(MODELS["llama3-8b"], Layout(micro_batch=1, micro_batches=32, seq=8192, cp=2, dp=4))
    >>> round(seconds(w, DEVICES["h100"], "bf16", TUNED), 2)
    11.2
    """
    share = {"bf16": shares.bf16, "fp8": shares.fp8, "fp4": shares.fp4}[precision]
    terms = at_peaks(work, device, precision, replicas, crosses)
    return (
        terms.products / float(share)
        + terms.attention / float(shares.attention)
        + float(shares.activations) * terms.activations
        + float(shares.tensor) * terms.tensor
        + float(shares.shards) * terms.shards
        + terms.update
        + float(shares.step)
    )
