"""Consent: which functions of the user's own may run as kernels of a plan.

A plan names its kernels, `module:name`, and may come from anybody; importing a module already executes it.  So nothing
is imported unless its name was given by the user, `--allow-kernel MODULE:NAME`, or was registered by code that the user
loaded.  Ranks are told by the process that started them, in a folder that only its user can write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Final

from ...models.program.graph import Graph
from ...models.program.opaque import OpaqueError, kernels_of, register, registered_names

_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def allow(name: str) -> None:
    """Import the kernel `module:name` and register it.  Raises `OpaqueError`."""
    if _NAME.fullmatch(name) is None:
        raise OpaqueError(f"{name[:80]!r} is not the name of a kernel; write MODULE:NAME")
    if name in registered_names():
        return
    module, _, inner = name.partition(":")
    try:
        found: object = import_module(module)
        if name in registered_names():  # by its decorator
            return
        for part in inner.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise OpaqueError(
            f"the user's kernel {name!r} cannot be loaded ({type(error).__name__}: {error}); put the folder of "
            f"{module!r} on PYTHONPATH"
        ) from error
    if not callable(found):
        raise OpaqueError(f"the user's kernel {name!r} is not a function")
    register(name, found)


def check_consent(graph: Graph) -> None:
    """Raise `OpaqueError` with all kernels of the graph that may not run: to be asked before ranks start."""
    missing = [n for n in kernels_of(graph) if n not in registered_names()]
    if missing:
        options = " ".join(f"--allow-kernel {n}" for n in missing)
        raise OpaqueError(
            f"the plan names {len(missing)} kernel(s) of the user's own that were not allowed to run: "
            f"{', '.join(map(repr, missing))}; if you trust them: run {options}"
        )


def to_ranks(graph: Graph) -> dict[str, list[str]]:
    """What ranks are told: the kernels of the graph that may run, and where modules were found here."""
    names = [n for n in kernels_of(graph) if n in registered_names()]
    return {"kernels": names, "paths": list(sys.path) if names else []}


def from_parent(kernels: Iterable[str], paths: Iterable[str]) -> None:
    """In a rank: what `to_ranks` said.  Raises `OpaqueError`."""
    sys.path.extend(p for p in paths if p not in sys.path)
    for name in kernels:
        allow(name)
