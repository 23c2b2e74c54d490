"""Modules without weights: built on the meta device, with the contents of what is computed from
nothing.

Under `torch.device("meta")` a tensor has a shape and no contents, so a model of any size is built in moments.  Small
tensors that are made from numbers alone (position ids, masks, rotary frequencies) are worth knowing: `Shadow` watches
the operators of the construction and computes those beside the meta tensors, on the CPU.  An operator has a shadow if
all its tensors have one, it draws no random numbers, and its result is small; what an unknown value is written into
loses its shadow, with all its views.  A tensor that is overwritten entirely (`zero_`, `fill_`, `copy_`) gets one, and
`tolist` and `numpy` read it.  The meta device also forgets that a tensor is quantized: `Shadow` remembers.

`hollow` then replaces the meta tensors by fake tensors of the CPU, so that code that names no device can be exported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Protocol

from .own_gradients import keep_hooks

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

Options = dict[str, object]

MOST_ELEMENTS = 1 << 22
"""Largest tensor that a shadow computes."""

_QUANTIZES = ("aten::quantize_per_", "aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized")
_LEAVES_QUANTIZED = frozenset({"aten::dequantize", "aten::int_repr", "aten::copy_"})
"""Operators whose result is no quantized tensor, whatever they read."""


class Shadow(Protocol):
    """What the construction knows."""

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Contents of a meta tensor, if it was computed from nothing and not written since."""

    def is_quantized(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor, which on the meta device looks like a plain one, is quantized."""


class _Shadows:
    """Contents of meta tensors, and which are quantized.  `lost`: storages of shadows that something unknown was
    written into; `shadow_of`: storages of tensors that were overwritten, and of their shadows.
    """

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.known, self.quantized = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self.lost: set[int] = set()
        self.shadow_of: dict[int, int] = {}

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See `Shadow`."""
        found: torch.Tensor | None = self.known.get(tensor)
        return None if found is None or found.untyped_storage()._cdata in self.lost else found

    def is_quantized(self, tensor: torch.Tensor) -> bool:
        """See `Shadow`."""
        return tensor in self.quantized

    def keep(self, out: object, shadow: object) -> None:
        """The results of an operator have these contents."""
        import torch
        from torch.utils._pytree import tree_flatten

        for t, s in zip(tree_flatten(out)[0], tree_flatten(shadow)[0], strict=True):
            if isinstance(t, torch.Tensor):
                self.known[t] = s

    def overwrite(self, tensor: torch.Tensor, shadow: torch.Tensor) -> None:
        """All of a tensor is written."""
        self.known[tensor] = shadow
        self.shadow_of[tensor.untyped_storage()._cdata] = shadow.untyped_storage()._cdata

    def lose(
        self, func: Callable[..., object], args: tuple[object, ...], shadows: dict[int, torch.Tensor | None]
    ) -> None:
        """Something unknown is written into the arguments that an operator changes."""
        import torch

        for argument, value in zip(func._schema.arguments, args, strict=False):  # type: ignore[attr-defined]
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor):
                old = shadows.get(id(value))
                home = value.untyped_storage()._cdata
                self.lost.add(self.shadow_of.get(home, 0) if old is None else old.untyped_storage()._cdata)

    def literal(self, out: object, func: Callable[..., object], args: tuple[object, ...], named: Options) -> None:
        """Numbers written in Python, which the meta device forgets before any operator sees them."""
        import torch
        from torch.utils._pytree import tree_flatten

        data = args[0] if args else named.get("data", named.get("obj"))
        plain = not any(isinstance(t, torch.Tensor) for t in tree_flatten(data)[0])
        if plain and isinstance(out, torch.Tensor) and out.is_meta and out.numel() <= MOST_ELEMENTS:
            self.known[out] = func(*args, **{**named, "device": "cpu"})


def _covers(tensor: torch.Tensor) -> bool:
    """Is a tensor all of its memory, and small?"""
    whole: bool = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return whole and bool(tensor.is_meta) and bool(tensor.numel() <= MOST_ELEMENTS)


def _is_worth(func: Callable[..., object], out: object) -> bool:
    """Whether results are small meta tensors without random numbers."""
    import torch
    from torch.utils._pytree import tree_flatten

    results = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
    tags = {torch.Tag.nondeterministic_seeded}.intersection(func.tags)  # type: ignore[attr-defined]
    return not tags and "empty" not in str(func) and all(t.is_meta and t.numel() <= MOST_ELEMENTS for t in results)


def watch_modules() -> tuple[AbstractContextManager[object], Shadow]:
    """A context under which modules are built, and what it found out."""
    known, stack = _Shadows(), ExitStack()

    class Both(AbstractContextManager[object]):
        """The meta device, and the watch over it."""

        def __enter__(self) -> object:
            import torch

            stack.enter_context(torch.device("meta"))
            stack.enter_context(_literal_watch(known))
            return stack.enter_context(_operator_watch(known))

        def __exit__(self, *error: object) -> bool | None:
            return stack.__exit__(*error)  # type: ignore[arg-type]

    return Both(), known


def _operator_watch(known: _Shadows) -> AbstractContextManager[object]:
    """Watches operators."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map_only

    ops = torch.ops.aten
    overwriting = (ops.zero_.default, ops.fill_.Scalar, ops.fill_.Tensor, ops.copy_.default)

    class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to mypy
        """See the module docstring."""

        def __torch_dispatch__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            named = kwargs or {}
            tensors = [t for t in tree_flatten((args, named))[0] if isinstance(t, torch.Tensor)]
            shadows = {id(t): known.value(t) for t in tensors}
            complete = all(s is not None for s in shadows.values())
            if func is torch.ops.aten._local_scalar_dense.default and tensors[0].is_meta:
                only = known.value(tensors[0])
                if only is None:  # PyTorch refuses too, but not in every state of its registrations
                    raise RuntimeError("a number is read of a tensor whose contents are random or were never set")
                return only.item()
            out = func(*args, **named)
            kind = func._schema.name  # type: ignore[attr-defined]
            if kind.startswith(_QUANTIZES) or (kind not in _LEAVES_QUANTIZED and any(map(known.is_quantized, tensors))):
                for t in tree_flatten(out)[0]:
                    if isinstance(t, torch.Tensor):
                        known.quantized[t] = True
            if complete and _is_worth(func, out):
                given = tree_map_only(torch.Tensor, lambda t: shadows[id(t)], (args, named))
                known.keep(out, func(*given[0], **{**given[1], **({"device": "cpu"} if "device" in named else {})}))
            elif func in overwriting and _covers(tensors[0]) and all(shadows[id(t)] is not None for t in tensors[1:]):
                made = torch.empty_like(tensors[0], device="cpu")
                func(made, *tree_map_only(torch.Tensor, lambda t: shadows[id(t)], args[1:]))
                known.overwrite(tensors[0], made)
            elif func._schema.is_mutable:  # type: ignore[attr-defined]
                known.lose(func, args, shadows)
            return out

    return Watch()


def _literal_watch(known: _Shadows) -> AbstractContextManager[object]:
    """Watches the functions that make tensors of Python's numbers."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Literals(TorchFunctionMode):  # type: ignore[misc]  # torch is Any to mypy
        """Watches the functions that make tensors of Python's numbers, and those that ask for them again."""

        def __torch_function__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: Options | None = None,
        ) -> object:
            if func in (torch.Tensor.tolist, torch.Tensor.numpy) and (found := known.value(args[0])) is not None:
                args = (found, *args[1:])
            out = func(*args, **(kwargs or {}))
            if func in (torch.tensor, torch.as_tensor, torch.asarray):
                known.literal(out, func, args, kwargs or {})
            return out

    return Literals()


def is_module(model: object) -> bool:
    """Whether a value is a PyTorch module; PyTorch is not loaded to say no.

    >>> is_module(3)
    False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def without_weights(module: torch.nn.Module) -> torch.nn.Module:
    """A copy whose parameters are on the meta device and whose buffers are those of the module, which stays as it is.
    Raises what `copy.deepcopy` does.
    """
    import copy

    import torch

    memo: dict[int, object] = {}
    for p in module.parameters():
        memo[id(p)] = copied_p = torch.nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)
        keep_hooks(p, copied_p)
    for part in module.modules():
        for held in (part._buffers, part.__dict__):
            memo |= {id(t): t for t in held.values() if isinstance(t, torch.Tensor) and id(t) not in memo}
    copied: torch.nn.Module = copy.deepcopy(module, memo)
    return copied


def hollow(
    module: torch.nn.Module,
    mode: FakeTensorMode,
    known: Callable[[torch.Tensor], torch.Tensor | None] = lambda _: None,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Replace the meta tensors of a module by fake tensors on the CPU; return the function that does so for one
    tensor.  Attributes that are no buffers get what is `known` of them, so that they are constants of the program.
    """
    import torch

    done: dict[
        int, tuple[torch.Tensor, torch.Tensor]
    ] = {}  # tied weights stay tied; the first keeps the identity taken

    def fake(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in done:
            made = mode.fake_tensor_converter.from_meta_and_device(mode, t.detach().to("meta"), torch.device("cpu"))
            done[id(t)] = (
                t,
                torch.nn.Parameter(made, requires_grad=t.requires_grad) if isinstance(t, torch.nn.Parameter) else made,
            )
        return done[id(t)][1]

    for part in module.modules():
        for held in (part._parameters, part._buffers, part.__dict__):
            for key, value in list(held.items()):
                if isinstance(value, torch.Tensor):
                    plain = held is part.__dict__ and value.is_meta and not isinstance(value, torch.nn.Parameter)
                    contents = known(value) if plain else None
                    held[key] = fake(value) if contents is None else contents.clone()
    return fake
