"""Says what a step does to its weights once: updates by few kernels, and a table of words that both ends read.

updates   optimizers and casts of weights go over many tensors in one kernel: a launch for every part of a stage, not
          one for every weight.  Sources: `multi_tensor_apply` of NVIDIA apex, which Megatron's and DeepSpeed's
          FusedAdam use (at most 36 tensors of 4 lists at once, or 320 chunks of 65,536 elements), and `foreach` and
          `fused` of torch.optim
tied      a table that the embedding and the output read is there once where both are on one stage.  Stages part
          them: the last one has a copy, updates it too, and the two add up their gradients.  Source: Shoeybi et al.,
          Megatron-LM (2019), section 3, and `_allreduce_word_embedding_grads` of NVIDIA/Megatron-LM,
          megatron/core/distributed/finalize_model_grads.py
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction

from ....models.cost.alone import Device, Kernel
from ....models.program.graph import Role
from ....models.program.operators import Operator
from ....models.sources.training import TrainingStep


def seconds_together(kernels: Collection[Kernel], launch: Fraction) -> Fraction:
    """Of kernels that are launched as one.

    >>> seconds_together([Kernel(Fraction(5), ("a",)), Kernel(Fraction(7), ("b",))], Fraction(2))
    Fraction(10, 1)
    """
    return sum((k.seconds - launch for k in kernels), launch) if kernels else Fraction(0)


def read_at_both_ends(
    step: TrainingStep, where: Mapping[str, str], passes: Mapping[str, str], once: str, ends: tuple[str, str]
) -> set[str]:
    """Trained weights that operators of both `ends` read forward, as they are stored or as they are cast `once`."""
    graph, readers = step.graph, step.graph.readers()
    found = set[str]()
    for weight, _ in step.trained:
        seen, waiting = set[str](), [weight]
        while waiting:
            for i, _ in readers[waiting.pop()]:
                op = graph.operators[i]
                if passes[op.name] == "F":
                    seen.add(where[op.name])
                    waiting += [op.output.tensor] if where[op.name] == once else []
        if seen.issuperset(ends):
            found.add(weight)
    return found


def updates_of(step: TrainingStep, passes: Mapping[str, str], weights: Collection[str]) -> list[Operator]:
    """The operators that update these weights, in graph order."""
    reached = {gradient for weight, gradient in step.trained if weight in weights} | set(weights)
    found = []
    for op in step.graph.operators:
        if passes[op.name] == "U" and any(a.tensor in reached for a in op.inputs):
            reached.add(op.output.tensor)
            found.append(op)
    return found


def moments_of(device: Device, updates: Collection[Operator], weights: Collection[str]) -> int:
    """Bytes here of what the optimizer keeps of weights beside them."""
    kept = {t.name for t in device.graph.tensors if t.role is Role.PARAMETER and t.name not in weights}
    sizes = {a.tensor: device.read_by(op, i) for op in updates for i, a in enumerate(op.inputs) if a.tensor in kept}
    return sum(sizes.values())


def sizes_of(
    step: TrainingStep, device: Device, where: Mapping[str, str], once: str, weights: Collection[str]
) -> tuple[int, int, int, int]:
    """Bytes here of weights as they are stored, as they are used and of their gradients; and how many they are."""
    graph, gradient_of = step.graph, dict(step.trained)
    stored = used = gradients = learnt = 0
    for weight in sorted(weights):
        i, position = graph.readers()[weight][0]
        op, tensor = graph.operators[i], graph.tensor(weight)
        size = device.read_by(op, position)
        stored += size
        used += device.bytes_of(op) if where[op.name] == once else 0
        learnt += size // tensor.element_bytes
        gradients += size // tensor.element_bytes * graph.tensor(gradient_of[weight]).element_bytes
    return stored, used, gradients, learnt
