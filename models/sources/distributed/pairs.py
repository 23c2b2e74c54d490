"""Computes with complex numbers as pairs of real ones, in a last dimension of two: what the original Llama's rotary
embedding multiplies.

    (a + b i) (c + d i) = (a c - b d) + (a d + b c) i        |a + b i| = sqrt(a a + b b)
    polar(r, t) = r cos t + r sin t i                        conj(a + b i) = a - b i

Every function is PyTorch's of the same name, by operators of real numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from .views import positive

Number = bool | int | float | complex


def _parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part of a tensor or a number."""
    if isinstance(x, torch.Tensor):
        return tuple(torch.view_as_real(x).unbind(-1)) if x.is_complex() else (x, 0)
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0)


def _pair(re: Any, im: Any) -> torch.Tensor:
    """A complex tensor of its parts."""
    if not isinstance(im, torch.Tensor):
        im = torch.full_like(re, im)
    re, im = torch.broadcast_tensors(re, im)
    return torch.view_as_complex(torch.stack((re, im), -1))


def _mul(x: Any, y: Any) -> torch.Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    if _is_nothing(d):
        return _pair(a * c, b * c)
    if _is_nothing(b):
        return _pair(a * c, a * d)
    return _pair(a * c - b * d, a * d + b * c)


def _is_nothing(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) and x == 0


def _add(x: Any, y: Any, *, alpha: Number = 1) -> Any:
    if isinstance(alpha, complex):
        return NotImplemented
    (a, b), (c, d) = _parts(x), _parts(y)
    return _pair(a + c * alpha, b + d * alpha)


def _sub(x: Any, y: Any, *, alpha: Number = 1) -> Any:
    return NotImplemented if isinstance(alpha, complex) else _add(x, y, alpha=-alpha)


def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    (a, b), (c, d) = _parts(x), _parts(y)
    if rounding_mode is not None:
        return NotImplemented
    if _is_nothing(d):
        return _pair(a / c, b / c)
    size = c * c + d * d
    return _pair((a * c + b * d) / size, (b * c - a * d) / size)


def _neg(x: torch.Tensor) -> torch.Tensor:
    a, b = _parts(x)
    return _pair(-a, -b)


def _conj(x: torch.Tensor) -> torch.Tensor:
    a, b = _parts(x)
    return _pair(a, -b)


def _abs(x: torch.Tensor) -> Any:
    if not x.is_complex():
        return torch.abs(x)
    a, b = _parts(x)
    return (a * a + b * b).sqrt()


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return _pair(size * angle.cos(), size * angle.sin())


def _sum(x: torch.Tensor, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is not None:
        return NotImplemented
    dims = list(range(x.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
    dims = [positive(d, x.dim()) for d in dims]
    return torch.view_as_complex(torch.view_as_real(x).sum(dims, keepdim).contiguous())


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    if len({t.dim() for t in tensors}) > 1:
        return NotImplemented
    pairs = [torch.view_as_real(t) if t.is_complex() else torch.view_as_real(_pair(t, 0)) for t in tensors]
    return torch.view_as_complex(torch.cat(pairs, positive(dim, tensors[0].dim())))


PAIRS: Final[Mapping[str, Callable[..., Any]]] = {
    "mul": _mul,
    "add": _add,
    "sub": _sub,
    "div": _div,
    "neg": _neg,
    "_conj": _conj,
    "conj_physical": _conj,
    "abs": _abs,
    "polar": _polar,
    "complex": _pair,
    "sum": _sum,
    "cat": _cat,
}
