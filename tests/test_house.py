"""The house: no circle of folders, no arrow up, and a trusted base that is what docs/trust.md says."""

from __future__ import annotations

import ast
from graphlib import CycleError
from pathlib import Path

import function_sizes
import house
import pytest

UP = {"models": 0, "proofs": 1, "verify": 2, "formal": 2, "backends": 2}
"""Rooms from the ground up; those on one floor are blind to each other."""

TALKS = frozenset({"click", "rich"})


def test_no_circle_and_no_arrow_up() -> None:
    graph = house.arrows()
    house.floors(graph)
    rooms = {(a.split(".")[0], b.split(".")[0]) for a in graph for b in graph[a]}
    assert not [(a, b) for a, b in rooms if a != b and UP[a] <= UP[b]]


def test_no_circle_of_files() -> None:
    """Imports inside functions count as well: they hide a circle and do not remove it."""
    floors = house.floors({name: house.imports(name) for name in house.modules()})
    assert len(floors) > 10, "all files on the ground: the imports were not read"


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        house.floors({"a": ["b"], "b": ["c"], "c": ["a"]})


@pytest.mark.parametrize("checker", house.CHECKERS, ids=lambda c: c.kind)
def test_a_checker_imports_what_its_kind_of_file_needs(checker: house.Checker) -> None:
    base = house.closure(checker.module)
    assert {house.folder(m) for m in base} <= checker.needs
    packages = frozenset().union(*(house.foreign(m) for m in base))
    assert packages <= {"numpy"}, "a checker sees the standard library and numpy"


def test_the_sources_and_the_terminal_are_never_believed() -> None:
    base = frozenset().union(*(house.closure(c.module) for c in house.CHECKERS))
    assert not [
        m for m in base if m.startswith(("models.sources", "models.terminal", "models.verbs", "formal", "backends"))
    ]
    named = {m for m in house.modules() if m.startswith("verify.") and not m.startswith("verify.verbs")}
    assert named <= base | house.closure("verify.verbs.check"), "a module of verify that no checker and no verb needs"
    assert any(house.foreign(m) & TALKS for m in house.modules() if m.startswith("models.terminal"))


def test_the_trust_table_is_true() -> None:
    text = Path(house.ROOT, "docs", "trust.md").read_text(encoding="utf-8")
    assert house.trust() in text, "python tests/house.py trust"


def test_the_readme_counts_as_many_lines() -> None:
    (row,) = (r for r in house.trust().splitlines() if r.startswith("| plan |"))
    thousands = round(int(row.split("|")[-2].replace(",", "")) / 1000)
    assert f"rests on {thousands},000 lines" in Path(house.ROOT, "README.md").read_text(encoding="utf-8")


def test_no_module_is_longer_than_450_lines() -> None:
    long = {p: n for p in Path(house.ROOT).glob("*.py") if (n := len(p.read_text(encoding="utf-8").splitlines())) > 450}
    long |= {p: n for m, p in house.modules().items() if (n := house.lines([m])) > 450}
    assert not long, "a file is one concept"


def test_functions_fit_on_a_screen() -> None:
    """The list of those that do not only gets shorter: `python tests/function_sizes.py write`."""
    now, allowed = function_sizes.large_functions(), function_sizes.listed()
    new = {at: size for at, size in now.items() if at not in allowed}
    assert not new, "a function is one step: at most 60 lines and 8 parameters; split it along its concepts"
    larger = {at: size for at, size in now.items() if size[0] > allowed[at][0] or size[1] > allowed[at][1]}
    assert not larger, "split it, in place of another line"
    assert not set(allowed) - set(now), "it is short now: python tests/function_sizes.py write"
    assert len(allowed) <= MOST_LARGE


def test_a_long_function_is_found() -> None:
    source = "def f(a, b, *, c):\n" + "    a += b\n" * 3 + "\nclass C:\n    async def g(self, x): pass\n"
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [(n.name, house.parameters_of(n)) for n in found] == [("f", 3), ("g", 1)]


MOST_LARGE = 1
"""Functions in the list when it was last shortened."""
