"""Optimizers as ordinary operators: the next value of every parameter, and of what the optimizer remembers.

    sgd      g := g + decay w;   w := w - rate u,   u = g;   with momentum  m := momentum m + g,   u = m,   or with
             nesterov  u = g + momentum m
    adam     g := g + decay w;   m := b1 m + (1 - b1) g;   v := b2 v + (1 - b2) g^2;
             w := w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
    adamw    as adam without decay of g;   w (1 - rate decay) in the place of w
    rmsprop  g := g + decay w;   v := b2 v + (1 - b2) g^2;   u = g / (sqrt(v) + epsilon);   momentum and w as in sgd
    adagrad  g := g + decay w;   v := v + g^2;               u = g / (sqrt(v) + epsilon);   w := w - rate u
    lion     w := w (1 - rate decay) - rate sign(b1 m + (1 - b1) g);   m := b2 m + (1 - b2) g

What an optimizer remembers is a parameter of the step, in float32 (float64 where the weight is); t is the attribute
`step`, from 1.

Sources: Kingma and Ba, Adam (ICLR 2015), algorithm 1; Duchi et al., Adaptive Subgradient Methods (JMLR 2011);
Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), algorithm 2; Chen et al., Symbolic Discovery
of Optimization Algorithms (2023), algorithm 2; SGD and RMSprop of torch.optim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...program.graph import Role, Tensor
from ...program.index import Axis, access
from ...program.operators import Operator, Value
from .settings import OPTIMIZERS, Settings

__all__ = ["OPTIMIZERS", "Settings", "Update", "update"]


@dataclass(frozen=True)
class Update:
    """What an optimizer adds for one parameter: tensors, operators in order, and pairs of the state."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    state: tuple[tuple[str, str], ...]


@dataclass
class _Made:
    """The update of one weight as it grows."""

    weight: Tensor
    names: tuple[str, ...]
    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    allowed: str = ""
    state: list[tuple[str, str]] = field(default_factory=list)

    def operator(self, name: str, function: str, inputs: tuple[str, ...], dtype: str, **attributes: Value) -> str:
        """An elementwise operator and its result, called alike."""
        axes = tuple(Axis(a, n) for a, n in zip(self.names, self.weight.shape, strict=True))
        reads = tuple(access(t, *self.names) for t in inputs)
        if self.allowed and function in CONDITIONAL:
            reads = (*reads, access(self.allowed))
        written = access(name, *self.names)
        self.operators.append(Operator(name, function, axes, reads, written, tuple(sorted(attributes.items()))))
        self.tensors.append(Tensor(name, self.weight.shape, dtype, Role.VALUE, self.weight.source_shape))
        return name

    def remembered(self, name: str) -> tuple[str, str]:
        """A tensor that the optimizer keeps, and its element type."""
        dtype = "float64" if self.weight.dtype == "float64" else "float32"
        full = f"{self.weight.name}.{name}"
        self.tensors.append(Tensor(full, self.weight.shape, dtype, Role.PARAMETER, self.weight.source_shape))
        self.state.append((full, f"{full}.next"))
        return full, dtype

    def over_root(self, gradient: str, squares: str, dtype: str, epsilon: float) -> str:
        """gradient / (sqrt(squares) + epsilon)"""
        w = self.weight.name
        root = self.operator(f"{w}.root", "sqrt", (squares,), dtype)
        shifted = self.operator(f"{w}.divisor", "shift", (root,), dtype, shift=epsilon)
        return self.operator(f"{w}.scaled", "divide", (gradient, shifted), dtype)

    def done(self) -> Update:
        """The weight's next value comes first in the state."""
        w = self.weight.name
        return Update(tuple(self.tensors), tuple(self.operators), ((w, f"{w}.next"), *self.state))


BETWEEN: Final = (".square", ".root", ".divisor", ".scaled")
"""Behind the weight's name: what stands between a gradient and the update of rmsprop and adagrad."""

CONDITIONAL: Final = frozenset(
    {"sgd_update", "adam_moment1", "adam_moment2", "adam_update", "adamw_update", "lion_update", "momentum"}
)
"""Updates that take a truth value last: where it is false, the old value (their first operand) stays."""


def update(
    weight: Tensor, names: tuple[str, ...], gradient: str, optimizer: str, settings: Settings, allowed: str = ""
) -> Update:
    """The update of one parameter, its dimensions called `names`.  `allowed`: a truth value of the graph; where it is
    false, nothing changes.  Raises ValueError for an unknown optimizer.
    """
    made = _Made(weight, names, allowed=allowed)
    rate, decay = settings.number(optimizer, "rate"), settings.number(optimizer, "decay")
    w, following = weight.name, f"{weight.name}.next"
    if optimizer in ("sgd", "adam", "rmsprop", "adagrad") and decay:
        gradient = made.operator(f"{w}.decayed", "decayed_gradient", (gradient, w), weight.dtype, decay=decay)
    match optimizer:
        case "sgd":
            momentum = settings.number(optimizer, "momentum")
            if momentum:
                m, dtype = made.remembered("momentum")
                fresh = made.operator(f"{m}.next", "momentum", (m, gradient), dtype, momentum=momentum)
                again = settings.number(optimizer, "nesterov")
                gradient = (
                    made.operator(f"{w}.nesterov", "momentum", (fresh, gradient), dtype, momentum=momentum)
                    if again
                    else fresh
                )
            made.operator(following, "sgd_update", (w, gradient), weight.dtype, rate=rate)
        case "rmsprop":
            (v, kept), momentum = made.remembered("rmsprop_v"), settings.number(optimizer, "momentum")
            squares = made.operator(
                f"{v}.next", "adam_moment2", (v, gradient), kept, beta2=settings.number(optimizer, "beta2")
            )
            gradient = made.over_root(gradient, squares, kept, settings.number(optimizer, "epsilon"))
            if momentum:
                m, dtype = made.remembered("momentum")
                gradient = made.operator(f"{m}.next", "momentum", (m, gradient), dtype, momentum=momentum)
            made.operator(following, "sgd_update", (w, gradient), weight.dtype, rate=rate)
        case "adagrad":
            v, kept = made.remembered("adagrad_v")
            square = made.operator(f"{w}.square", "product", (gradient, gradient), kept)
            squares = made.operator(f"{v}.next", "momentum", (v, square), kept, momentum=1.0)
            gradient = made.over_root(gradient, squares, kept, settings.number(optimizer, "epsilon"))
            made.operator(following, "sgd_update", (w, gradient), weight.dtype, rate=rate)
        case "lion":
            (m, dtype), beta = made.remembered("lion_m"), settings.number(optimizer, "beta1")
            made.operator(following, "lion_update", (w, m, gradient), weight.dtype, rate=rate, beta1=beta, decay=decay)
            made.operator(f"{m}.next", "adam_moment1", (m, gradient), dtype, beta1=settings.number(optimizer, "beta2"))
        case _:
            (m, dtype), (v, _) = made.remembered("adam_m"), made.remembered("adam_v")
            keys = ("rate", "beta1", "beta2", "epsilon")
            numbers: dict[str, Value] = {k: settings.number(optimizer, k) for k in keys}
            one = made.operator(f"{m}.next", "adam_moment1", (m, gradient), dtype, beta1=numbers["beta1"])
            two = made.operator(f"{v}.next", "adam_moment2", (v, gradient), dtype, beta2=numbers["beta2"])
            more: dict[str, Value] = {"decay": decay} if optimizer == "adamw" else {}
            made.operator(
                following, f"{optimizer}_update", (w, one, two), weight.dtype, **numbers, **more, step=settings.step
            )
    return made.done()
