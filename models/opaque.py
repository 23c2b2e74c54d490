"""Opaque kernels: operators that a user computes with a function of their own.

An operator of function `opaque` has the attribute `kernel`, the function's `module:name`.  Its axes and accesses come from a pure reference
function, traced in its place: whatever computes the same values reads and writes the same elements, so communication derived
from the reference is right for any implementation.  `resolve` finds the function when a program runs.

Source: thesis on automatic partitioning of array programs, section 4.6.1 (library nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module

_REGISTRY: dict[str, Callable[..., object]] = {}


class OpaqueError(ValueError):
    """A user's kernel that cannot be found; the message says what was tried and what to do."""


def qualified(function: Callable[..., object]) -> str:
    """`module:name` of a function.

    >>> qualified(resolve)[-14:]
    'opaque:resolve'
    """
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def register(name: str, function: Callable[..., object]) -> None:
    """Make a kernel known in this process."""
    _REGISTRY[name] = function


def check_kernels(names: Iterable[str]) -> None:
    """Raise `OpaqueError` for the first kernel that cannot be found: to be asked before ranks start."""
    for name in dict.fromkeys(names):
        resolve(name)


def resolve(name: str) -> Callable[..., object]:
    """The kernel called `module:name`: one registered in this process, else the module is imported.  Raises `OpaqueError`."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    module, _, inner = name.partition(":")
    try:
        found: object = import_module(module)
        for part in inner.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OpaqueError(
            f"the user's kernel {name!r} cannot be loaded ({type(error).__name__}: {error}); put the folder of {module!r} on PYTHONPATH of every rank"
        ) from None
    if not callable(found):
        raise OpaqueError(f"the user's kernel {name!r} is not a function")
    return found
