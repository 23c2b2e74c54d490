"""How a training step is computed, beside where its tensors lie: a value per part, and its words.

What a job of PyTorch cannot do is in `refused`, by part, with the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHORT: Final = {"bfloat16": "bf16", "float16": "fp16"}
TORCH: Final = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad"}
"""Optimizers of training steps that torch.optim has."""

LAYOUTS_ONLY: Final = "--layouts-only writes the layouts alone and says so"


@dataclass(frozen=True)
class Group:
    """Weights that one rule updates: `kind` as in `--train`, `numbers` under the names of torch.optim."""

    kind: str
    numbers: tuple[tuple[str, float | tuple[float, float] | bool], ...]
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Loss:
    """`kind`: `returned` by the model; `cross-entropy`, `log-likelihood` or `squared-error` of the output `of` (its
    shape in a micro-batch) against the input `target`.  `over`: how those of micro-batches make that of the batch:
    `mean` and `sum` of them, or `counted`, a mean over the labels that count.
    """

    kind: str
    of: str
    shape: tuple[int, ...]
    target: str
    over: str


@dataclass(frozen=True)
class Recipe:
    """See the module docstring.  `half`: None where every operator computes in the types of the model.  `kernels`:
    attention operators of a forward pass; `scores`: softmaxes whose operand is a product.  `refused`: (part, why it is
    not what a job of PyTorch does, and what to do).
    """

    trained: bool
    half: str | None
    autocast: bool
    reduce: str
    recomputed: tuple[str, ...]
    micro_batches: int
    once: bool
    groups: tuple[Group, ...]
    clip: float | None
    loss: Loss | None
    kernels: int
    scores: int
    refused: tuple[tuple[str, str], ...]

    @property
    def precision(self) -> str:
        """As `--precision` has it; `as the model` where nothing is cast."""
        if self.half is None:
            return "as the model"
        name = f"{SHORT[self.half]}-{'mixed' if self.autocast else 'master'}"
        return name if self.reduce == "float32" else f"{name}:reduce={self.reduce}"

    @property
    def attention(self) -> str:
        """The kernel of attention."""
        if self.kernels:
            return f"one kernel that stores no scores, {self.kernels} times"
        return f"scores that are stored, {self.scores} times" if self.scores else "none"

    @property
    def optimizer(self) -> str:
        """Kind and numbers in words."""
        if not self.groups:
            return "none"
        words = "; ".join(
            f"{g.kind} " + ", ".join(f"{k} {v}" for k, v in g.numbers) + f" of {len(g.weights)} weights"
            for g in self.groups
        )
        return words if self.clip is None else f"{words}; gradients clipped to norm {self.clip}"

    def words(self) -> tuple[tuple[str, str], ...]:
        """(part of the plan, what it says) of every part."""
        once = ", gradients brought together once" if self.once else ""
        loss = "none"
        if self.loss is not None:
            added = f"{self.loss.kind} of {self.loss.of!r} against {self.loss.target!r}"
            loss = "what the model returns" if self.loss.kind == "returned" else added
        return (
            ("precision", self.precision),
            ("recomputation", ", ".join(self.recomputed) or dict(self.refused).get("recomputation", "none")),
            ("micro-batches", f"{self.micro_batches}{once}"),
            ("optimizer", self.optimizer),
            ("loss", loss),
            ("attention", self.attention),
        )
