"""Opaque kernels: operators that a user computes with a function of their own.

An operator of function `opaque` has the attribute `kernel`, the function's `module:name`.  Its axes and accesses come
from a pure reference function, traced in its place: whatever computes the same values reads and writes the same
elements, so communication derived from the reference is right for any implementation.

The name stands in a file, and a file must not decide what is executed.  `resolve` therefore imports nothing: a kernel
is one that this process has registered, by the decorator `opaque` in code that the user loaded, or by the user's word
(`backends.execution.consent`).

Source: thesis on automatic partitioning of array programs, section 4.6.1 (library nodes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import Graph

_REGISTRY: dict[str, Callable[..., object]] = {}


class OpaqueError(ValueError):
    """A user's kernel that may not run, or cannot be found; the message says what to do."""


def qualified_name(function: Callable[..., object]) -> str:
    """`module:name` of a function.

    >>> qualified_name(resolve)[-14:]
    'opaque:resolve'
    """
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def register(name: str, function: Callable[..., object]) -> None:
    """Make a kernel known in this process."""
    _REGISTRY[name] = function


def registered_names() -> frozenset[str]:
    """Names of the kernels that this process knows."""
    return frozenset(_REGISTRY)


def kernels_of(graph: Graph) -> tuple[str, ...]:
    """The kernels that a graph names, each once, in the order of its operators."""
    return tuple(dict.fromkeys(str(op.attribute("kernel", "")) for op in graph.operators if op.function == "opaque"))


def resolve(name: str) -> Callable[..., object]:
    """The kernel called `module:name`, if this process has registered it.  Raises `OpaqueError`."""
    found = _REGISTRY.get(name)
    if found is None:
        raise OpaqueError(
            f"the user's kernel {name!r} is named by the model and was not allowed to run; if you trust it: run "
            f"--allow-kernel {name}"
        )
    return found
