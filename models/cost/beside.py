"""Counts what a framework runs beside the operators of a graph: dropout, masked softmax, loss, sums of gradients.

    extra     bytes of memory a device moves and launches, forward and backward, of one part of a step
    dropout   of attention's probabilities and of what a layer adds to the stream:  keep or drop, with a byte of mask
    softmax   Megatron's kernel masks and normalises in one where batch x heads of a device is a multiple of 4; else
              five kernels in float32
    loss      of logits that are cast to float32 and taken through one kernel after another
    sums      every micro-batch after the first adds its gradients of weights to those before

The graph of a model says what is computed; these say by which kernels.  Counts are bytes an element, read off the
frameworks' own code (named at each), none is fitted.  Source of what dropout keeps: Korthikanti et al., Reducing
Activation Recomputation in Large Transformer Models (2022), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Loss = Literal["one", "fused", "vocabulary", "float32"]
"""How logits become a loss: the graph's two operators as kernels of their own; one kernel, as flash-attn has it;
Megatron's vocabulary parallel cross entropy; PyTorch's on logits that autocast has made float32."""

TOGETHER: Final = 4
"""Batch x heads of a device of which Megatron's masked softmax needs a multiple: `is_kernel_available` of
NVIDIA/Megatron-LM, megatron/core/fusions/fused_softmax.py."""


@dataclass(frozen=True)
class Extra:
    """Bytes moved and kernels launched, forward and backward; negative where a framework runs less than the graph."""

    forward: int = 0
    backward: int = 0
    forward_kernels: int = 0
    backward_kernels: int = 0

    def __add__(self, other: Extra) -> Extra:
        return Extra(
            self.forward + other.forward,
            self.backward + other.backward,
            self.forward_kernels + other.forward_kernels,
            self.backward_kernels + other.backward_kernels,
        )


def dropout(elements: int, fused: bool) -> Extra:
    """Dropout of so many 16-bit elements.  Forward it reads and writes them and a mask, unless it is `fused` with the
    addition that follows (Megatron's bias-dropout-add), which adds the mask; backward it is always its own kernel.

    >>> dropout(10, fused=False), dropout(10, fused=True).forward
    (Extra(forward=50, backward=50, forward_kernels=1, backward_kernels=1), 10)
    """
    return Extra(elements, 5 * elements, 0, 1) if fused else Extra(5 * elements, 5 * elements, 1, 1)


def masked_softmax(scores: int, rows: int) -> Extra:
    """Megatron's softmax of so many 16-bit scores, for `rows` = batch x heads of a device, beside a graph that masks
    in one kernel and normalises in another, 2 + 2 bytes a score each.

    In one kernel the mask's pass is gone.  Else: to float32 (6), scaled (8), masked (8), normalised (8), to 16 bits
    (6), and back the same way with one more read.  Source: `FusedScaleMaskSoftmax`, NVIDIA/Megatron-LM,
    megatron/core/fusions/fused_softmax.py.

    >>> masked_softmax(100, 8).forward, masked_softmax(100, 2).forward, masked_softmax(100, 2).backward_kernels
    (-400, 2800, 3)
    """
    if rows % TOGETHER == 0:
        return Extra(-4 * scores, -4 * scores, -1, -1)
    return Extra((36 - 8) * scores, (40 - 10) * scores, 3, 3)


def loss(logits: int, kind: Loss) -> Extra:
    """The loss of so many logits beside a graph that reads 2 and writes 4 bytes forward, 8 and 2 backward.

    vocabulary  to float32 (6), largest (4), less it (8), exponentials (8), their sum (4), divided (8); back: times the
                gradient (8), to 16 bits (6); 20 and 6 kernels more for other devices' words and the loss mask:
                `_VocabParallelCrossEntropy`, NVIDIA/Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py
    fused       read (2) forward, read and written in place (4) backward: flash_attn.losses.cross_entropy
    float32     to float32 (6), log_softmax (8); back: zeros with one picked (4), log_softmax (12), to 16 bits (6):
                torch.nn.functional.cross_entropy under autocast

    >>> loss(10, "vocabulary"), loss(10, "float32").forward, loss(10, "one") == Extra()
    (Extra(forward=320, backward=40, forward_kernels=20, backward_kernels=6), 80, True)
    """
    match kind:
        case "one":
            return Extra()
        case "vocabulary":
            return Extra((38 - 6) * logits, (14 - 10) * logits, 20, 6)
        case "fused":
            return Extra((2 - 6) * logits, (4 - 10) * logits)
        case "float32":
            return Extra((14 - 6) * logits, (22 - 10) * logits, 1, 2)


def summed_gradients(weights: int) -> int:
    """Bytes in which autograd adds a micro-batch's 16-bit gradients of so many weights to those before: two reads and
    a write of 2 bytes.  (Megatron adds inside the product, behind its arithmetic: `--no-gradient-accumulation-fusion`
    takes that away.)

    >>> summed_gradients(100)
    600
    """
    return 6 * weights
