"""The list of dear tests names tests that exist, each once, with what stays in an ordinary run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from dear_tests import DEAR

HERE = Path(__file__).parent


def test_every_name_is_that_of_a_test() -> None:
    trees: dict[str, ast.AST] = {}
    for name in DEAR:
        file, *inside = name.partition("[")[0].split("::")
        if file not in trees:
            trees[file] = ast.parse((HERE / file).read_text())
        tree = trees[file]
        for part in inside:
            found = [
                n
                for n in ast.iter_child_nodes(tree)
                if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part
            ]
            assert found, name
            tree = found[0]


def test_every_reason_has_seconds_and_says_what_stays() -> None:
    assert not [name for name, why in DEAR.items() if not re.fullmatch(r"\d+\.\d: \S.*", why)]


def test_they_are_marked(request: pytest.FixtureRequest) -> None:
    """This run's own items: whatever is listed and collected is slow, so `make test` does not run it."""
    listed = [i for i in request.session.items if i.nodeid.removeprefix("tests/") in DEAR]
    assert all(i.get_closest_marker("slow") for i in listed)
