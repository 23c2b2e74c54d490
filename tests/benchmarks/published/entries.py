"""What an entry of the coverage list is: a family, a title, and a function that builds a module with example inputs.

    FILE.py:NAME             the module and the inputs of its forward pass, as its users write them
    FILE.py:NAME.training    the same with labels, or with the loss that is usual for it around it

Both are what `shardproof import` takes.  Weights are never loaded: modules are made from their configurations, with
few layers and the published widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, dict[str, Tensor]]
Loss = Callable[[nn.Module, dict[str, Tensor]], Built]


@dataclass(frozen=True)
class Architecture:
    """`loss`: from the module and its inputs to what returns a loss; None where the output itself is trained on."""

    family: str
    title: str
    build: Callable[[], Built]
    loss: Loss | None = None

    def __call__(self) -> Built:
        return self.build()

    def training(self) -> Built:
        """Module and inputs of a training step."""
        module, inputs = self.build()
        return (module, inputs) if self.loss is None else self.loss(module, inputs)


def next_token(module: nn.Module, inputs: dict[str, Tensor]) -> Built:
    """The model's own loss on the tokens it reads (it shifts them)."""
    return module, {**inputs, "labels": torch.zeros_like(inputs["input_ids"])}


def labelled(*shape: int, dtype: torch.dtype = torch.int64, key: str = "labels") -> Loss:
    """The model's own loss on labels of this shape."""
    return lambda module, inputs: (module, {**inputs, key: torch.zeros(shape, dtype=dtype)})


class _Classified(nn.Module):
    def __init__(self, module: nn.Module, pick: Callable[[object], Tensor]) -> None:
        super().__init__()
        self.module, self.pick = module, pick

    def forward(self, target: Tensor, **inputs: Tensor) -> Tensor:
        return functional.cross_entropy(self.pick(self.module(**inputs)), target)


class _Regressed(_Classified):
    def forward(self, target: Tensor, **inputs: Tensor) -> Tensor:
        return functional.mse_loss(self.pick(self.module(**inputs)), target)


def first(output: object) -> Tensor:
    """The first tensor of an output."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values() if isinstance(output, Mapping) else output))  # type: ignore[call-overload]
    return output


def classified(*shape: int) -> Loss:
    """Cross entropy of the first output against class numbers of this shape."""
    return lambda module, inputs: (
        _Classified(module, first),
        {"target": torch.zeros(shape, dtype=torch.int64), **inputs},
    )


def regressed(*shape: int) -> Loss:
    """Mean squared error of the first output against a target of this shape."""
    return lambda module, inputs: (_Regressed(module, first), {"target": torch.zeros(shape), **inputs})


class _Matched(nn.Module):
    """Losses of a detector for targets that are matched to its queries already: classes, and corners of boxes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, classes: Tensor, boxes: Tensor, **inputs: Tensor) -> Tensor:
        out = self.module(**inputs)
        named = functional.cross_entropy(out["logits"].flatten(0, 1), classes.flatten())
        return named + 5.0 * functional.l1_loss(out["pred_boxes"], boxes)


def matched(images: int, queries: int) -> Loss:
    """Cross entropy of classes and mean distance of boxes; who matches them (on the host) gives them per query."""
    return lambda module, inputs: (
        _Matched(module),
        {
            "classes": torch.zeros(images, queries, dtype=torch.int64),
            "boxes": torch.zeros(images, queries, 4),
            **inputs,
        },
    )


def own_loss(module: nn.Module, inputs: dict[str, Tensor]) -> Built:
    """The loss that the model returns when it is asked for one."""
    return module, {**inputs, "return_loss": True}  # type: ignore[dict-item]


def second(output: object) -> Tensor:
    """The second tensor of an output."""
    return list(output.values())[1]  # type: ignore[attr-defined]


def regressed_second(*shape: int) -> Loss:
    """Mean squared error of the second output, such as the actions among states, actions and returns."""
    return lambda module, inputs: (_Regressed(module, second), {"target": torch.zeros(shape), **inputs})


def ids(*shape: int) -> Tensor:
    """Token numbers."""
    return torch.zeros(shape, dtype=torch.int64)
