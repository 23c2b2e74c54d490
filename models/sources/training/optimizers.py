"""Optimizers as ordinary operators: the next value of every parameter, and of what the optimizer
remembers.

    sgd      g := g + decay w;   w := w - rate u,   u = g;   with momentum  m := momentum m + g,   u = m,   or with
             nesterov  u = g + momentum m
    adam     g := g + decay w;   m := b1 m + (1 - b1) g;   v := b2 v + (1 - b2) g^2;
             w := w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
    adamw    as adam without decay of g;   w (1 - rate decay) in the place of w
    rmsprop  g := g + decay w;   v := b2 v + (1 - b2) g^2;   u = g / (sqrt(v) + epsilon);   momentum and w as in sgd
    adagrad  g := g + decay w;   v := v + g^2;               u = g / (sqrt(v) + epsilon);   w := w - rate u
    lion     w := w (1 - rate decay) - rate sign(b1 m + (1 - b1) g);   m := b2 m + (1 - b2) g
    muon, adafactor    see the modules of these names

What an optimizer remembers is a parameter of the step, in float32 (float64 where the weight is; with bits = 16 as the
weight); t is the attribute `step`, from 1.

Sources: Kingma and Ba, Adam (ICLR 2015), algorithm 1; Duchi et al., Adaptive Subgradient Methods (JMLR 2011);
Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), algorithm 2; Chen et al., Symbolic Discovery
of Optimization Algorithms (2023), algorithm 2; SGD and RMSprop of torch.optim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...program.graph import Graph, GraphError, Tensor
from ...program.operators import Value
from .adafactor import adafactor
from .muon import hidden_matrices, muon
from .settings import OPTIMIZERS, Settings
from .updates import BETWEEN, INSIDE, Update, WeightUpdate

__all__ = ["BETWEEN", "INSIDE", "OPTIMIZERS", "Settings", "Update", "assign_optimizers", "update"]


def update(
    weight: Tensor, names: tuple[str, ...], gradient: str, optimizer: str, settings: Settings, allowed: str = ""
) -> Update:
    """The update of one parameter, its dimensions called `names`.  `allowed`: a truth value of the graph; where it is
    false, nothing changes.  Raises ValueError for an unknown optimizer.
    """
    made = WeightUpdate(weight, names, allowed=allowed, alike=settings.bits == 16)
    if optimizer == "muon":
        return muon(made, gradient, settings)
    if optimizer == "adafactor":
        return adafactor(made, gradient, settings)
    rate, decay = settings.number(optimizer, "rate"), settings.number(optimizer, "decay")
    w, following = weight.name, f"{weight.name}.next"
    if optimizer in ("sgd", "adam", "rmsprop", "adagrad") and decay:
        gradient = made.operator(f"{w}.decayed", "decayed_gradient", (gradient, w), weight.dtype, decay=decay)
    match optimizer:
        case "sgd":
            momentum = settings.number(optimizer, "momentum")
            if momentum:
                m, dtype = made.state_tensor("momentum")
                fresh = made.operator(f"{m}.next", "momentum", (m, gradient), dtype, momentum=momentum)
                again = settings.number(optimizer, "nesterov")
                gradient = (
                    made.operator(f"{w}.nesterov", "momentum", (fresh, gradient), dtype, momentum=momentum)
                    if again
                    else fresh
                )
            made.operator(following, "sgd_update", (w, gradient), weight.dtype, rate=rate)
        case "rmsprop":
            (v, kept), momentum = made.state_tensor("rmsprop_v"), settings.number(optimizer, "momentum")
            squares = made.operator(
                f"{v}.next", "adam_moment2", (v, gradient), kept, beta2=settings.number(optimizer, "beta2")
            )
            gradient = made.over_root(gradient, squares, kept, settings.number(optimizer, "epsilon"))
            if momentum:
                m, dtype = made.state_tensor("momentum")
                gradient = made.operator(f"{m}.next", "momentum", (m, gradient), dtype, momentum=momentum)
            made.operator(following, "sgd_update", (w, gradient), weight.dtype, rate=rate)
        case "adagrad":
            v, kept = made.state_tensor("adagrad_v")
            square = made.operator(f"{w}.square", "product", (gradient, gradient), kept)
            squares = made.operator(f"{v}.next", "momentum", (v, square), kept, momentum=1.0)
            gradient = made.over_root(gradient, squares, kept, settings.number(optimizer, "epsilon"))
            made.operator(following, "sgd_update", (w, gradient), weight.dtype, rate=rate)
        case "lion":
            (m, dtype), beta = made.state_tensor("lion_m"), settings.number(optimizer, "beta1")
            made.operator(following, "lion_update", (w, m, gradient), weight.dtype, rate=rate, beta1=beta, decay=decay)
            made.operator(f"{m}.next", "adam_moment1", (m, gradient), dtype, beta1=settings.number(optimizer, "beta2"))
        case _:
            (m, dtype), (v, _) = made.state_tensor("adam_m"), made.state_tensor("adam_v")
            keys = ("rate", "beta1", "beta2", "epsilon")
            numbers: dict[str, Value] = {k: settings.number(optimizer, k) for k in keys}
            one = made.operator(f"{m}.next", "adam_moment1", (m, gradient), dtype, beta1=numbers["beta1"])
            two = made.operator(f"{v}.next", "adam_moment2", (v, gradient), dtype, beta2=numbers["beta2"])
            more: dict[str, Value] = {"decay": decay} if optimizer == "adamw" else {}
            made.operator(
                following, f"{optimizer}_update", (w, one, two), weight.dtype, **numbers, **more, step=settings.step
            )
    return made.done()


def assign_optimizers(
    graph: Graph, trained: Sequence[str], optimizer: str, settings: Settings
) -> Mapping[str, tuple[str, Settings]]:
    """Optimizer and settings of the trained weights that do not have the named one: muon is for hidden matrices, others
    have adamw with `adamw_rate`.  Raises `GraphError` where there is no such matrix.
    """
    if optimizer != "muon":
        return {}
    hidden = hidden_matrices(graph, trained)
    if not hidden:
        raise GraphError(
            f"graph {graph.name!r}",
            "--train: muon updates matrices between the inputs and the last layer, and there is none; give adamw",
        )
    other = Settings(rate=settings.number("muon", "adamw_rate"), step=settings.step)
    return {w: ("adamw", other) for w in trained if w not in hidden}
