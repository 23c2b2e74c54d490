"""Folds constants with PyTorch itself: what depends on no input and no weight is computed once, when it is
small.

Attention masks, position ids and rotary tables are programs of a dozen operators that start from `arange`; models build
them in every forward pass.  After folding, a mask of nothing but ones is known to be one, and an `embedding` of 0, 1,
2, .. is the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from .context import Constant, Context, Ref

if TYPE_CHECKING:
    import torch
    from torch.fx import Node as FxNode

MOST_ELEMENTS = 1 << 26
"""Largest value that is computed."""


class Folder:
    """Values of the constants of a context, as tensors."""

    def __init__(self, context: Context, ref: Callable[[FxNode], Ref]) -> None:
        self.c, self._ref = context, ref
        self._tensors: dict[Ref, torch.Tensor] = {}

    def keep(self, value: Ref, tensor: torch.Tensor) -> None:
        """Remember a constant."""
        self._tensors[value] = tensor.detach()
        self.c.constants[value] = array(tensor)

    def _tensor(self, value: Ref) -> torch.Tensor:
        """A constant as a tensor; a handler may have made it."""
        import torch

        if value not in self._tensors:
            made, dtype = self.c.constants[value], getattr(torch, self.c.dtypes[value])
            if made.size and not any(made.strides):
                self._tensors[value] = torch.tensor(made[(0,) * made.ndim].item(), dtype=dtype).expand(made.shape)
            else:
                self._tensors[value] = torch.from_numpy(np.ascontiguousarray(made)).to(dtype)
        return self._tensors[value]

    def fold(self, node: FxNode) -> bool:
        """Compute the node now if all its tensors are known; True if that was done."""
        import torch

        refs = [self._ref(n) for n in node.all_input_nodes]
        if any(r not in self.c.constants for r in refs) or not isinstance(node.target, torch._ops.OpOverload):
            return False
        results = node.meta["val"] if isinstance(node.meta.get("val"), (tuple, list)) else (node.meta.get("val"),)
        if not all(isinstance(t, torch.Tensor) and _static(t.shape) and t.numel() <= MOST_ELEMENTS for t in results):
            return False
        if torch.Tag.nondeterministic_seeded in node.target.tags or node.target._schema.name in _UNKNOWN:
            return False
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: self._tensor(self._ref(n)))
        kwargs = {k: torch.device("cpu") if k == "device" and v is not None else v for k, v in arguments[1].items()}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = node.target(*arguments[0], **kwargs)
        for k, t in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            self.keep(Ref(node.name, k), t)
        return True


_UNKNOWN = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty"}
)


def _static(shape: Iterable[object]) -> bool:
    return all(type(n) is int for n in shape)


def array(tensor: torch.Tensor) -> Constant:
    """Contents as an array; bfloat16, which NumPy lacks, as float32."""
    import torch

    held = tensor.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Constant = (held.float() if held.dtype == torch.bfloat16 else held).resolve_neg().resolve_conj().numpy()
    return found
