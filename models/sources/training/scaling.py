"""The loss scale: gradients in float16 are those of S times the loss, and S follows what they show.

    grad loss = S;   g := g / S for every weight, in float32
    finite    = every gradient is finite                            (their sum of squares is)
    update    = what the optimizer does where `finite`, else nothing
    S := S growth after `interval` steps in a row that were finite, S backoff after one that was not

S and the number of finite steps are parameters of the step (`loss_scale`, `loss_scale.steps`), as they are a state of
torch.amp.GradScaler, which does the same on the host.  Source: Micikevicius et al., Mixed Precision Training (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...program.graph import Role, Tensor
from ...program.index import Axis, access
from ..precision import Precision
from .backward import Backward

SCALE: Final = "loss_scale"
STEPS: Final = "loss_scale.steps"
"""Parameters of a step whose loss is scaled: start with 65536 and 0, as torch.amp.GradScaler does."""

UNSCALED: Final = "unscaled:"
"""How the names of gradients without the scale begin."""


def scaled_seed(b: Backward) -> str:
    """The gradient of the loss: the scale itself."""
    for name in (SCALE, STEPS):
        b.tensors[name] = Tensor(name, (), "float32", Role.PARAMETER)
        b.names[name] = ()
    return _scalar(b, "grad:loss_scale", "identity", [SCALE])


def divide_scale(b: Backward, trained: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """(parameter, its gradient) with the scale divided out."""
    out = []
    for w, g in trained:
        names, t = b.names[w], b.tensors[g]
        axes = [Axis(a, n) for a, n in zip(names, t.shape, strict=True)]
        reads = [access(g, *names), access(SCALE)]
        out.append((w, b.emit(f"{UNSCALED}{w}", "divide", axes, reads, names, (), b.tensors[w].dtype, t.source_shape)))
    return out


def all_finite(b: Backward, total: str) -> str:
    """Whether a sum of squares is finite: x - x is zero for every number, and no number where x is none."""
    nothing = _scalar(b, "finite:difference", "subtract", [total, total], dtype=b.tensors[total].dtype)
    return _scalar(b, "finite", "equal", [nothing], value=0.0, dtype="bool")


def next_scale(b: Backward, finite: str, precision: Precision) -> tuple[tuple[str, str], ...]:
    """The next scale and number of steps; pairs of the state."""
    steps = _scalar(b, f"{STEPS}.more", "shift", [STEPS], shift=1.0)
    due = _scalar(b, f"{SCALE}.due", "greater_equal", [steps], dtype="bool", value=float(precision.interval))
    zero = _scalar(b, f"{STEPS}.none", "fill", [STEPS], value=0.0)
    kept = _scalar(b, f"{STEPS}.kept", "where", [due, zero, steps])
    large = _scalar(b, f"{SCALE}.large", "scale", [SCALE], scale=precision.growth)
    small = _scalar(b, f"{SCALE}.small", "scale", [SCALE], scale=precision.backoff)
    grown = _scalar(b, f"{SCALE}.grown", "where", [due, large, SCALE])
    _scalar(b, f"{SCALE}.next", "where", [finite, grown, small])
    _scalar(b, f"{STEPS}.next", "where", [finite, kept, zero])
    return (SCALE, f"{SCALE}.next"), (STEPS, f"{STEPS}.next")


def _scalar(
    b: Backward, name: str, function: str, reads: Sequence[str], dtype: str = "float32", **attributes: float
) -> str:
    return b.emit(name, function, (), [access(t) for t in reads], (), tuple(attributes.items()), dtype)
