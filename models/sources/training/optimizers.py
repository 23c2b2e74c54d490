"""Optimizers as ordinary operators: the next value of every parameter, and of what the optimizer remembers.

    sgd     w := w - rate g
    adam    m := b1 m + (1 - b1) g;   v := b2 v + (1 - b2) g^2;   w := w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t))
                                      + epsilon)

m and v are parameters of the step, in float32 (float64 where the weight is); t is the attribute `step`, from 1.
Source: Kingma and Ba, Adam (ICLR 2015), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...program.graph import Role, Tensor
from ...program.index import Axis, access
from ...program.operators import Operator, Value

OPTIMIZERS: Final = ("sgd", "adam")


@dataclass(frozen=True)
class Settings:
    """Numbers of the update.  `rate` None: 0.01 for sgd, 0.001 for adam."""

    rate: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    step: int = 1


@dataclass(frozen=True)
class Update:
    """What an optimizer adds for one parameter: tensors, operators in order, and pairs of the state."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    state: tuple[tuple[str, str], ...]


def update(weight: Tensor, names: tuple[str, ...], gradient: str, optimizer: str, settings: Settings) -> Update:
    """The update of one parameter, its dimensions called `names`.  Raises ValueError for an unknown optimizer."""
    axes = tuple(Axis(a, n) for a, n in zip(names, weight.shape, strict=True))

    def operator(name: str, function: str, inputs: tuple[str, ...], attributes: dict[str, Value]) -> Operator:
        return Operator(
            name,
            function,
            axes,
            tuple(access(t, *names) for t in inputs),
            access(name, *names),
            tuple(sorted(attributes.items())),
        )

    def tensor(name: str, dtype: str, role: Role) -> Tensor:
        return Tensor(name, weight.shape, dtype, role, weight.source_shape)

    w = weight.name
    following = tensor(f"{w}.next", weight.dtype, Role.VALUE)
    if optimizer == "sgd":
        rate = 0.01 if settings.rate is None else settings.rate
        step = operator(following.name, "sgd_update", (w, gradient), {"rate": rate})
        return Update((following,), (step,), ((w, following.name),))
    if optimizer != "adam":
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    dtype = "float64" if weight.dtype == "float64" else "float32"
    m, v = f"{w}.adam_m", f"{w}.adam_v"
    rate = 0.001 if settings.rate is None else settings.rate
    numbers: dict[str, Value] = {
        "rate": rate,
        "beta1": settings.beta1,
        "beta2": settings.beta2,
        "epsilon": settings.epsilon,
        "step": settings.step,
    }
    operators = (
        operator(f"{m}.next", "adam_moment1", (m, gradient), {"beta1": settings.beta1}),
        operator(f"{v}.next", "adam_moment2", (v, gradient), {"beta2": settings.beta2}),
        operator(following.name, "adam_update", (w, f"{m}.next", f"{v}.next"), numbers),
    )
    tensors = (
        tensor(m, dtype, Role.PARAMETER),
        tensor(v, dtype, Role.PARAMETER),
        tensor(f"{m}.next", dtype, Role.VALUE),
        tensor(f"{v}.next", dtype, Role.VALUE),
        following,
    )
    return Update(tensors, operators, ((w, following.name), (m, f"{m}.next"), (v, f"{v}.next")))
