"""A training step written in PyTorch, imported whole: what it calls is recorded while its forward
pass is exported.

    def train_step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)             the forward pass, exported
        loss.backward()                                 what is minimised; several calls add up, as gradients do
        clip_grad_norm_(model.parameters(), 1.0)        `clip` of the step
        optimizer.step()                                its kind, and the numbers of every group of parameters

    def main(): return train_step, model, optimizer, (x, y)         what FILE.py:NAME returns

In the place of one optimizer may stand a list, tuple or dict of them (muon beside adamw), each of which has its step.

So the reverse pass is derived here, and everything that a plan needs to know of it is known.  What a recording cannot
see is refused by name: gradients that the step reads or writes itself, an optimizer that is not handed in, a closure.
`GradScaler` scales nothing here: in exact arithmetic it changes no number; `--train .. --precision fp16-mixed` has it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ...program.graph import Graph
from ..training import Settings, build_step
from ..training.settings import DEFAULTS
from .context import TorchError

if TYPE_CHECKING:
    import torch

KNOWN: Final = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "Muon", "Adafactor")
"""Classes of optimizers whose numbers are read, by their name."""
_OWN: Final = ("Muon", "Adafactor")
"""Classes that differ between libraries: those of torch.optim are meant."""
_PLAIN: Final[Mapping[str, object]] = {"maximize": False, "amsgrad": False, "dampening": 0, "centered": False}
"""Options of groups that have to be as they are by default."""
_CALLS: Final = "backward, torch.nn.utils.clip_grad_norm_, and zero_grad and step of the optimizer"


@dataclass
class Stepping:
    """A step as it is recorded.  `names`: id of a parameter -> its stored name; `zeroed`, `stepped`: positions of the
    optimizers that were, `again`: zeroed after a backward."""

    function: Callable[..., object]
    optimizers: tuple[torch.optim.Optimizer, ...]
    names: Mapping[int, str]
    place: str
    losses: list[torch.Tensor] = field(default_factory=list)
    clip: float | None = None
    zeroed: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    stepped: set[int] = field(default_factory=set)

    @property
    def groups(self) -> list[tuple[torch.optim.Optimizer, Mapping[str, object]]]:
        """Every group of parameters, with its optimizer."""
        return [(o, g) for o in self.optimizers for g in o.param_groups]

    @property
    def optimized_tensors(self) -> list[torch.Tensor]:
        """The tensors that optimizers follow."""
        return [p for o in self.optimizers for g in o.param_groups for p in g["params"]]

    def refuse(self, why: str) -> TorchError:
        """An error at this step."""
        return TorchError(self.place, f"the step {why}")

    def backward(
        self,
        loss: torch.Tensor,
        gradient: object = None,
        retain_graph: object = None,
        create_graph: bool = False,
        inputs: object = None,
    ) -> None:
        """In the place of Tensor.backward."""
        if gradient is not None or create_graph or inputs is not None:
            raise self.refuse("gives arguments to backward: call it on the loss alone")
        if self.stepped:
            raise self.refuse("calls backward after optimizer.step(): import a function of one step")
        if loss.numel() != 1:
            raise self.refuse(f"calls backward on a tensor of shape {tuple(loss.shape)}; it needs one number")
        self.losses.append(loss.reshape(()))

    def zero(self, which: int) -> None:
        """In the place of optimizer.zero_grad."""
        self.zeroed.add(which)
        if not self.stepped and self.losses:
            self.again.add(which)
            if len(self.again) == len(self.optimizers):
                self.losses.clear()
                self.again.clear()
                self.clip = None

    def step(self, which: int, closure: object = None) -> None:
        """In the place of optimizer.step."""
        if closure is not None:
            raise self.refuse("hands a closure to optimizer.step(); call backward before it")
        if which in self.stepped:
            raise self.refuse("calls optimizer.step() twice: import a function of one step")
        self.stepped.add(which)

    def record_clipping(
        self, parameters: object, max_norm: float, norm_type: float = 2.0, *_: object, **__: object
    ) -> object:
        """In the place of clip_grad_norm_."""
        import torch

        given = [parameters] if isinstance(parameters, torch.Tensor) else list(_tensors(parameters))
        trained = sum(p.requires_grad for p in self.optimized_tensors)
        if float(norm_type) != 2.0 or sum(p.requires_grad for p in given) != trained:
            raise self.refuse("clips something else than the 2-norm of all gradients that the optimizer follows")
        if not self.losses or self.stepped or self.clip is not None:
            raise self.refuse("clips gradients otherwise than once, between backward and optimizer.step()")
        self.clip = float(max_norm)
        return torch.zeros(())

    def other(self, *_: object, **__: object) -> object:
        """In the place of what else PyTorch has for gradients."""
        raise self.refuse(f"reads gradients, which are known only when it is a graph; it may call {_CALLS}")

    def loss(self) -> torch.Tensor:
        """The sum of what backward was called on."""
        if not self.losses or len(self.stepped) < len(self.optimizers):
            raise self.refuse("calls no backward, or no optimizer.step() after it; what it calls is recorded")
        if self.again:
            raise self.refuse("clears the gradients of some of its optimizers after backward: clear those of all")
        if len(self.zeroed) < len(self.optimizers):
            raise self.refuse("calls no optimizer.zero_grad(), so gradients of earlier steps would be added; call it")
        total = self.losses[0]
        for more in self.losses[1:]:
            total = total + more
        return total


def _tensors(parameters: object) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(parameters, Iterable):
        yield from (p for p in parameters if isinstance(p, torch.Tensor))


def optimizers(given: object) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers of a step; none where something else is given."""
    import torch

    several = tuple(given.values()) if isinstance(given, dict) else given
    every = several if isinstance(several, (list, tuple)) else (several,)
    found = tuple(o for o in every if isinstance(o, torch.optim.Optimizer))
    return found if len(found) == len(every) else ()


def stepping(function: Callable[..., object], module: torch.nn.Module, given: object, place: str) -> Stepping:
    """Let the module's forward pass be the step, recorded; parameters that the optimizer does not follow get no
    gradient.  `given`: an optimizer, or a list, tuple or dict of them.
    """
    names = {id(p): n for n, p in module.named_parameters()}
    found = Stepping(function, optimizers(given), names, place)
    followed = {id(p) for p in found.optimized_tensors}
    if len(followed) < len(found.optimized_tensors):
        raise found.refuse("has two optimizers of one parameter")
    if unknown := followed - names.keys():
        raise found.refuse(f"has an optimizer of {len(unknown)} tensors that are no parameters of the module")
    for p in module.parameters():
        p.requires_grad_(p.requires_grad and id(p) in followed)
    plain, inside = module.forward, [False]

    def forward(*inputs: object, **named: object) -> object:
        if inside[0]:
            return plain(*inputs, **named)
        inside[0] = True
        try:
            with _recorded(found):
                function(module, given, *inputs, **named)
        finally:
            inside[0] = False
        return found.loss()

    every = inspect.signature(function)
    forward.__signature__ = every.replace(parameters=list(every.parameters.values())[2:])  # type: ignore[attr-defined]
    module.forward = forward
    return found


@contextmanager
def _recorded(found: Stepping) -> Iterator[None]:
    """What a step calls is recorded instead of done."""
    import torch
    from torch.nn import utils

    tensor, scaler = torch.Tensor, torch.amp.GradScaler
    held = tensor.__mro__[1].grad  # the attribute of the C type
    others = (utils.clip_grad_value_, utils.get_total_norm, utils.clip_grads_with_norm_)
    clipping = {id(utils.clip_grad_norm_): found.record_clipping, **{id(f): found.other for f in others}}
    spaces = [vars(utils), vars(utils.clip_grad), getattr(found.function, "__globals__", {})]

    def gradient(t: torch.Tensor) -> object:
        if not str(sys._getframe(1).f_globals.get("__name__", "")).startswith("torch"):
            found.other()
        return held.__get__(t)

    def refuse_write(t: torch.Tensor, value: object) -> None:
        if value is not None and not str(sys._getframe(1).f_globals.get("__name__", "")).startswith("torch"):
            raise found.refuse(f"writes gradients itself; it may call {_CALLS}")
        held.__set__(t, value)

    replaced = [
        (tensor, "backward", lambda t, *a, **k: found.backward(t, *a, **k)),
        (tensor, "grad", property(gradient, refuse_write)),
        (scaler, "scale", lambda _, outputs: outputs),
        (scaler, "unscale_", lambda *_: None),
        (scaler, "step", lambda _, optimizer, *a, **k: optimizer.step(*a, **k)),
        (scaler, "update", lambda *_, **__: None),
    ]
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in replaced]
    named = [(space, k, v) for space in spaces for k, v in list(space.items()) if id(v) in clipping]
    for k, o in enumerate(found.optimizers):
        vars(o).update(step=partial(found.step, k), zero_grad=_without_arguments(found.zero, k))
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        for space, k, v in named:
            space[k] = clipping[id(v)]
        yield
    finally:
        for space, k, v in named:
            space[k] = v
        for owner, name, value in before:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        for o in found.optimizers:
            for call in ("step", "zero_grad"):
                del vars(o)[call]


def _without_arguments(function: Callable[[int], None], which: int) -> Callable[..., None]:
    return lambda *_, **__: function(which)


def whole_step(graph: Graph, found: Stepping, number: int = 1) -> Graph:
    """The graph of the forward pass with its reverse pass and the updates that the step's optimizers make in step
    `number`.
    """
    groups = [(*_settings(found, o, g), g["params"]) for o, g in found.groups]
    of = {found.names[id(p)]: (k, replace(s, step=number)) for k, s, params in groups for p in _tensors(params)}
    kinds = "+".join(dict.fromkeys(k for k, _, _ in groups))
    return build_step(graph, kinds, settings=Settings(clip=found.clip, step=number), groups=of).graph


def _settings(found: Stepping, optimizer: torch.optim.Optimizer, group: Mapping[str, object]) -> tuple[str, Settings]:
    """Name of an optimizer, and the numbers of a group of its parameters."""
    known = [c for c in type(optimizer).__mro__ if c.__name__ in KNOWN]
    kind = known[0].__name__ if known else ""
    if not kind or (kind in _OWN and not known[0].__module__.startswith("torch.optim")):
        whose = f" of {known[0].__module__}" if known else ""
        raise found.refuse(
            f"has the optimizer {type(optimizer).__name__}{whose}; known: {', '.join(KNOWN)} of torch.optim"
        )
    odd = [f"{k}={group[k]}" for k, v in _PLAIN.items() if group.get(k, v) != v]
    if odd:
        raise found.refuse(f"has {kind} with {', '.join(odd)}, which has no update here")

    def number(key: str, index: int | None = None) -> float | None:
        value = group.get(key)
        if index is not None:
            value = value[index] if isinstance(value, (tuple, list)) else None
        return float(value) if isinstance(value, (int, float)) or hasattr(value, "__float__") else None

    if kind == "Adam" and group.get("decoupled_weight_decay"):
        kind = "AdamW"
    base = Settings(rate=number("lr"), decay=number("weight_decay"))
    own: dict[str, float | None] = {
        "SGD": {"momentum": number("momentum"), "nesterov": float(bool(group.get("nesterov")))},
        "RMSprop": {"momentum": number("momentum"), "beta2": number("alpha"), "epsilon": number("eps")},
        "Adagrad": {"epsilon": number("eps")},
        "Lion": {"beta1": number("betas", 0), "beta2": number("betas", 1)},
        "Muon": {
            "momentum": number("momentum"),
            "nesterov": float(bool(group.get("nesterov"))),
            "epsilon": number("eps"),
            "iterations": number("ns_steps"),
            "match_rms": float(group.get("adjust_lr_fn") == "match_rms_adamw"),
        },
        "Adafactor": {
            "power": -(number("beta2_decay") or 0.0),
            "epsilon": number("eps", 0),
            "epsilon2": number("eps", 1),
            "d": number("d"),
        },
    }.get(kind, {"beta1": number("betas", 0), "beta2": number("betas", 1), "epsilon": number("eps")})
    if kind == "Adagrad" and (group.get("lr_decay") or group.get("initial_accumulator_value")):
        raise found.refuse("has Adagrad with lr_decay or initial_accumulator_value, which has no update here")
    if kind == "Muon":
        base = replace(base, coefficients=tuple(group["ns_coefficients"]))  # type: ignore[arg-type]
    if "bits" in DEFAULTS[kind.lower()]:
        base = replace(base, bits=16)  # torch.optim remembers in the type of the weight
    return kind.lower(), replace(base, **{k: v for k, v in own.items() if v is not None})  # type: ignore[arg-type]
