"""Translates branches that a program takes on tensors whose contents are known while it is exported.

    made from numbers alone (torch.ones, arange, and what is computed of them)    computed beside the traced tensors
    isfinite(x), isinf(x), isnan(x)                                               true and false: numbers are finite
    one random number (layers skipped at random)                                  its mean: what happens more often
    `if x: raise ..`, `assert x`                                                  the program goes on (`guards`)

Exporting a module asks for the value of a tensor where Python branches on it (`if mask.all()`), and gives up, for a
traced tensor has none.  Masks that nobody passed and guards against overflow have one all the same.  In-place writes
are followed; a tensor that something unknown was written into is unknown, with all its views.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from .guards import goes_on

if TYPE_CHECKING:
    import torch

MOST_ELEMENTS = 1 << 20
"""Largest tensor whose contents are followed."""

_ASKED: Final = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero", "equal"})
_UNKNOWN: Final = object()
_FINITE: Final = {"isfinite": True, "isinf": False, "isnan": False}


def _covariance(name: str, args: tuple[object, ...], named: dict[str, object]) -> torch.Tensor | None:
    """torch.cov and torch.corrcoef as they are defined: theirs look at contents first; None with weights."""
    import torch

    given = dict(zip(("input", "correction"), args, strict=False)) | named
    x, correction = given.get("input"), given.get("correction", 1)
    plain = given.get("fweights") is None and given.get("aweights") is None
    if not plain or not isinstance(x, torch.Tensor) or x.dim() > 2 or not isinstance(correction, int):
        return None
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    centred = rows - rows.mean(1, keepdim=True)
    found = centred @ centred.T / max(rows.shape[1] - correction, 0)
    if name == "corrcoef":
        deviation = found.diagonal().sqrt()
        found = (found / deviation[:, None] / deviation[None, :]).clip(-1, 1)
    return found if x.dim() == 2 else found.reshape(())


class _Contents:
    """What is known of tensors beside the traced program.  `random`: what depends on random numbers; branches may ask
    for it, arithmetic may not.  `lost`: storages that something unknown was written into.
    """

    def __init__(self) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.held, self.random = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self.lost: set[int] = set()

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Contents of a tensor, if they are known."""
        found: torch.Tensor | None = self.held.get(tensor)
        return None if found is None or found.untyped_storage()._cdata in self.lost else found

    def keep(self, out: object, value: object) -> None:
        """The results of an operator have these contents."""
        import torch
        from torch.utils._pytree import tree_flatten

        for t, v in zip(tree_flatten(out)[0], tree_flatten(value)[0], strict=False):
            if isinstance(t, torch.Tensor) and isinstance(v, torch.Tensor) and t.shape == v.shape:
                self.held[t] = v

    def assume(self, name: str, out: torch.Tensor) -> bool:
        """Whether the contents of this function's result are taken for known: numbers are finite, one random number is
        its mean.
        """
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        if name in _FINITE:
            with _disable_current_modes():
                self.held[out] = torch.full((), _FINITE[name]).expand(out.shape)
            return True
        if name in ("rand", "rand_like") and out.numel() == 1:
            with _disable_current_modes():
                self.held[out] = torch.full(out.shape, 0.5)
            self.random[out] = True
            return True
        return False


def _beside(
    func: Callable[..., object],
    args: tuple[object, ...],
    named: dict[str, object],
    values: dict[int, torch.Tensor | None],
) -> object:
    """What a function makes of contents."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_map_only

    given, options = tree_map_only(torch.Tensor, lambda t: values[id(t)], (args, named))
    try:
        with _disable_current_modes():
            return func(*given, **options)
    except Exception:  # noqa: BLE001  # what cannot be computed beside the traced program is not known
        return _UNKNOWN


def _is_small(func: Callable[..., object], name: str, out: object) -> bool:
    """Whether the contents of a result are worth computing."""
    import torch
    from torch.utils._pytree import tree_flatten

    results = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
    sizes = [n for t in results for n in t.shape]
    random = name.startswith(("rand", "bernoulli", "multinomial", "normal", "dropout", "empty", "new_empty"))
    return (
        not random
        and (bool(results) or name == "__setitem__")
        and all(type(n) is int for n in sizes)
        and all(t.numel() <= MOST_ELEMENTS for t in results)
        and not any(isinstance(t, torch.nn.Parameter) for t in results)
        and getattr(func, "__module__", "") != "torch.nn.init"
    )


def known_branches() -> AbstractContextManager[object]:
    """A context for `torch.export`."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_flatten

    known = _Contents()

    class Follow(TorchFunctionMode):  # type: ignore[misc]  # torch is Any to mypy
        """See the module docstring."""

        def __torch_function__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            if torch.compiler.is_dynamo_compiling():  # the body of a loop (`scans`), which Dynamo follows itself
                return func(*args, **(kwargs or {}))
            named, name = kwargs or {}, getattr(func, "__name__", "")
            if func is torch.autograd.grad:
                raise RuntimeError(
                    "it asks for gradients inside its forward pass (torch.autograd.grad), which torch.export does not "
                    "follow: write the derivative out, or import the model without that penalty"
                )
            if name in ("cov", "corrcoef") and (made := _covariance(name, args, named)) is not None:
                return made
            tensors = [t for t in tree_flatten((args, named))[0] if isinstance(t, torch.Tensor)]
            values = {id(t): known.value(t) for t in tensors}
            complete = all(v is not None for v in values.values())
            drawn = any(t in known.random for t in tensors)
            if name in _ASKED and tensors and complete and (name == "__bool__" or not drawn):
                answer = _beside(func, args, named, values)
                return func(*args, **named) if answer is _UNKNOWN else answer
            if name == "__bool__" and (answer := goes_on(sys._getframe(1))) is not None:
                return answer
            written = name.endswith("_") and not name.endswith("__") or name == "__setitem__" or "out" in named
            target = values.get(id(tensors[0])) if tensors and written else None
            out = func(*args, **named)
            if isinstance(out, torch.Tensor) and known.assume(name, out):
                return out
            value = _beside(func, args, named, values) if complete and _is_small(func, name, out) else _UNKNOWN
            if value is not _UNKNOWN:
                known.keep(out, value)
                known.random.update({t: True for t in tree_flatten(out)[0] if drawn and isinstance(t, torch.Tensor)})
            elif target is not None:
                known.lost.add(target.untyped_storage()._cdata)
            return out

    return Follow()
