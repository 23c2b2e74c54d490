"""Tensors that no operator of a graph can read: sparse, nested, quantized ones, and those whose
class gives PyTorch's functions another meaning.

A module may hold such a tensor without reading it in its forward pass (alignment marks of a recogniser, statistics of
a calibration).  So it is replaced, before the export, by an object that names it as soon as it is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from .context import TorchError

if TYPE_CHECKING:
    import torch


QUANTIZED: Final = "a quantized tensor; give it as .dequantize()"


def unreadable(tensor: torch.Tensor) -> str:
    """What a tensor is that no operator can read; empty if one can."""
    import torch

    if tensor.is_nested:
        return "a nested tensor; pad it, and mask"
    if tensor.is_quantized or str(tensor.dtype).startswith(("torch.q", "torch.bits")):
        return QUANTIZED
    if tensor.layout is not torch.strided:
        return f"a sparse tensor ({tensor.layout}); give it as .to_dense()"
    plain = (torch.Tensor, torch.nn.Parameter)
    kind = type(tensor)
    if kind.__module__.startswith("torch._subclasses"):  # what an export has in their places
        return ""
    functions = {getattr(k.__torch_function__, "__func__", k.__torch_function__) for k in plain}
    own = getattr(kind.__torch_function__, "__func__", kind.__torch_function__) not in functions
    if own or getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__:
        return f"a {kind.__module__}.{kind.__qualname__}, whose functions are its own; give it as a plain tensor"
    return ""


class UnreadableError(TorchError, AttributeError):
    """A tensor was touched that no operator can read; who only asks what attributes it has is answered: none."""


@dataclass(frozen=True)
class Unreadable:
    """Stands for a tensor, and raises `TorchError` with its name where it is touched."""

    name: str
    reason: str

    def _raise(self) -> NoReturn:
        raise UnreadableError(repr(self.name), f"is read by the forward pass, and is {self.reason}")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # what Python and copies ask every object
            raise AttributeError(attribute)
        self._raise()

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> NoReturn:
        import torch.utils._pytree as tree

        leaves = tree.tree_flatten((args, kwargs or {}))[0]
        next(x for x in leaves if isinstance(x, Unreadable))._raise()

    def _read(self, *_: object) -> NoReturn:
        self._raise()

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _read
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __len__ = __iter__ = __bool__ = __float__ = _read


def withhold(module: torch.nn.Module, quantized: Callable[[torch.Tensor], bool]) -> None:
    """Replace what no operator can read among parameters, buffers and attributes of a module and its parts;
    `quantized` says which tensors are, that do not say so themselves.
    """
    import torch

    for path, part in module.named_modules():
        for held in (part._parameters, part._buffers, part.__dict__):
            for key, value in list(held.items()):
                if not isinstance(value, torch.Tensor):
                    continue
                if reason := QUANTIZED if quantized(value) else unreadable(value):
                    del held[key]
                    part.__dict__[key] = Unreadable(f"{path}.{key}".strip("."), reason)
