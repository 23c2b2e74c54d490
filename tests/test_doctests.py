"""The examples in docstrings run.

Modules are imported by name: `pytest --doctest-modules` imports by path, under the name of the checkout's folder, and
fails when that is not an identifier.
"""

from __future__ import annotations

import doctest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("backends", "formal", "models", "proofs", "verify")
MODULES = sorted(
    ".".join(("shardproof", *f.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for room in ROOMS
    for f in (ROOT / room).rglob("*.py")
)
OPTIONAL = {"cupy", "jax", "mpi4py", "ortools", "pytoulbar2", "torch"}
"""Packages of extras: a module may need one at its top, and is then not importable here."""

if find_spec("mpi4py"):
    import mpi4py

    mpi4py.rc.initialize = False  # importing a module of the MPI transport must not make a rank of the test process


@pytest.mark.parametrize("name", [*MODULES, "shardproof", "shardproof.__main__"])
def test_examples(name: str) -> None:
    try:
        module = import_module(name)
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"needs {e.name}, which belongs to an extra")
    result = doctest.testmod(module, optionflags=doctest.FAIL_FAST | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed, see the output above"


def test_there_are_examples() -> None:
    """The finder looks at something: two modules known to have examples have some."""
    for name in ("shardproof.models.machine.machine", "shardproof.models.machine.quantities"):
        assert sum(len(t.examples) for t in doctest.DocTestFinder().find(import_module(name))) >= 3
