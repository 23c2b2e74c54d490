"""Finds what changes gradients where an export does not see it: gradients that are not the derivative of
what the forward pass computes.

    torch.autograd.Function                          its `backward` is never traced: the export inlines its `forward`
    hooks on tensors, parameters and backward passes of modules, pack and unpack of saved tensors
    x.data                                           read: `x.detach()`, which it means; assigned: refused
    torch.inference_mode                             a region without gradients, as torch.no_grad
    requires_grad of parameters set in forward       refused: an export knows one value of it

A graph of such a program is right, its derivative is not what PyTorch computes.  So its outputs carry the list as
attribute `own` of a `stop_gradient`, and a training step refuses them by these words (`training.rules.own_gradient`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from .context import TorchError

if TYPE_CHECKING:
    import torch

_DERIVED: Final = ("torch._", "torch.utils.checkpoint", "torch.nn.modules._functions")
"""Modules of PyTorch whose Functions compute what they differentiate, or stand for hooks that are found otherwise."""

_MISSING: Final = object()


def hooks_of(module: torch.nn.Module) -> list[str]:
    """Hooks on gradients that a module was made with, in words."""
    from torch.nn.modules import module as machinery

    found: list[str] = []
    for name, part in module.named_modules():
        hooks = [*part._backward_hooks.values(), *part._backward_pre_hooks.values()]
        at = f"of module {name!r}" if name else "of the module"
        found += [f"backward hook {_called(h)} {at}" for h in hooks]
    for name, p in module.named_parameters():
        hooks = [*(p._backward_hooks or {}).values(), *(getattr(p, "_post_accumulate_grad_hooks", None) or {}).values()]
        found += [f"hook {_called(h)} of parameter {name!r}" for h in hooks]
    every = (machinery._global_backward_hooks, machinery._global_backward_pre_hooks)
    found += [f"backward hook {_called(h)} of all modules" for hooks in every for h in hooks.values()]
    return list(dict.fromkeys(found))


def keep_hooks(old: torch.Tensor, new: torch.Tensor) -> None:
    """Let a copy of a parameter have the hooks of its original."""
    if old._backward_hooks:
        new._backward_hooks = old._backward_hooks
    if held := getattr(old, "_post_accumulate_grad_hooks", None):
        new._post_accumulate_grad_hooks = held


@contextmanager
def own_gradients(found: list[str]) -> Iterator[None]:
    """Within, what has a gradient of its own is added to `found`, in words with its line.  Raises `TorchError` for what
    has no reading at all."""
    changed = [*_noted(found), *_without_gradients(), *_refused()]
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, name, _ in changed]
    try:
        for owner, name, value in changed:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, held in before:
            if held is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, held)


Patches = list[tuple[type, str, object]]
"""(class of PyTorch, attribute, what stands there for a while)."""


def _noted(found: list[str]) -> Patches:
    """Functions with a backward pass of their own, hooks of tensors, and hooks on what is saved: each a line of
    `found`.
    """
    import torch

    tensor, function, saved = torch.Tensor, torch.autograd.Function, torch.autograd.graph.saved_tensors_hooks
    apply, enter = vars(function)["apply"], saved.__enter__

    def note(words: str) -> None:
        if words not in found:
            found.append(words)

    def note_backward(kind: type, /, *args: object, **named: object) -> object:
        if torch.is_grad_enabled() and not kind.__module__.startswith(_DERIVED) and _trained((args, named)):
            backward = getattr(kind, "backward", None) or getattr(kind, "vjp", None)
            code = getattr(backward, "__code__", None)
            at = "" if code is None else f", backward at {Path(code.co_filename).name}:{code.co_firstlineno}"
            note(f"torch.autograd.Function {kind.__name__} ({_line(sys._getframe(1))}{at})")
        return apply.__func__(kind, *args, **named)

    def watch_hook(method: str) -> Callable[..., object]:
        plain = getattr(tensor, method)

        def register(t: torch.Tensor, hook: object) -> object:
            if t.requires_grad and _users(sys._getframe(1)):
                note(f"tensor.{method} of {_called(hook)} ({_line(sys._getframe(1))})")
            return plain(t, hook)

        return register

    def note_pack_hook(context: object) -> object:
        if type(context).__module__ != saved.__module__ or type(context) is saved:
            hooks = getattr(context, "pack_hook", None), getattr(context, "unpack_hook", None)
            if not all(str(getattr(h, "__module__", "")).startswith("torch.") for h in hooks):
                note(f"saved_tensors_hooks with {_called(hooks[0])} ({_line(sys._getframe(1))})")
        return enter(context)

    return [
        (function, "apply", classmethod(note_backward)),
        *((tensor, m, watch_hook(m)) for m in ("register_hook", "register_post_accumulate_grad_hook")),
        (saved, "__enter__", note_pack_hook),
    ]


def _without_gradients() -> Patches:
    """`torch.inference_mode` is a region without gradients."""
    import torch

    regions: dict[int, object] = {}

    def enter_region(context: object) -> None:
        regions[id(context)] = region = torch.set_grad_enabled(not getattr(context, "mode", True))
        region.__enter__()

    def leave_region(context: object, *error: object) -> None:
        regions.pop(id(context)).__exit__(*error)  # type: ignore[attr-defined]

    return [(torch.inference_mode, "__enter__", enter_region), (torch.inference_mode, "__exit__", leave_region)]


def _refused() -> Patches:
    """`.data` is `detach()` and is not assigned; no parameter begins or ends to be trained."""
    import torch

    tensor = torch.Tensor
    base = tensor.__mro__[1]  # the C type, which has the attributes

    def data(t: torch.Tensor) -> object:
        return t.detach() if _users(sys._getframe(1)) else base.data.__get__(t)

    def refuse_data(t: torch.Tensor, value: object) -> None:
        if _users(sys._getframe(1)):
            raise TorchError(_line(sys._getframe(1)), "assigns .data in the forward pass; return the new value instead")
        base.data.__set__(t, value)

    def set_requires_grad(t: torch.Tensor, value: bool) -> None:
        _same(t, value, sys._getframe(1))
        base.requires_grad.__set__(t, value)

    def require(t: torch.Tensor, requires_grad: bool = True) -> object:
        _same(t, requires_grad, sys._getframe(1))
        return base.requires_grad_(t, requires_grad)

    return [
        (tensor, "data", property(data, refuse_data)),
        (tensor, "requires_grad", property(base.requires_grad.__get__, set_requires_grad)),
        (tensor, "requires_grad_", require),
    ]


def _same(t: torch.Tensor, value: bool, frame: FrameType) -> None:
    """Refuse to stop or start training of a parameter; a detached tensor may ask for gradients."""
    import torch

    held = isinstance(t, torch.nn.Parameter) or (t.is_leaf and t.requires_grad)
    if bool(value) != t.requires_grad and held and _users(frame):
        raise TorchError(_line(frame), "sets requires_grad of a parameter in the forward pass; set it before")


def _trained(tree: object) -> bool:
    import torch
    from torch.utils._pytree import tree_flatten

    return any(t.requires_grad for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor))


def _users(frame: FrameType | None) -> bool:
    """Whether the frame is not PyTorch's own."""
    return frame is not None and not f"{frame.f_globals.get('__name__', '')}.".startswith("torch.")


def _line(frame: FrameType | None) -> str:
    """The innermost line outside of PyTorch and of ours."""
    ours = __name__.rpartition(".")[0]
    while frame is not None and (not _users(frame) or str(frame.f_globals.get("__name__")).startswith(ours)):
        frame = frame.f_back
    return "forward" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _called(hook: object) -> str:
    """A function by its name and line."""
    code, name = getattr(hook, "__code__", None), getattr(hook, "__qualname__", type(hook).__name__)
    with suppress(AttributeError):
        return f"{name.rpartition('.')[2]} ({Path(code.co_filename).name}:{code.co_firstlineno})"  # type: ignore[union-attr]
    return str(name)
