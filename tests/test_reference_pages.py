"""The reference of verbs and of the Python way in is what the code says."""

from __future__ import annotations

import pytest
import reference_pages

import shardproof
from shardproof.__main__ import VERBS


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_pages_are_current(name: str) -> None:
    page = reference_pages.FOLDER / name
    assert page.read_text(encoding="utf-8") == reference_pages.PAGES[name](), "run python tests/reference_pages.py"


def test_nothing_is_left_out() -> None:
    paths = [path for path, _ in reference_pages.commands()]
    assert {path.split()[0] for path in paths} == set(VERBS) and "rules prove" in paths and "machine show" in paths
    text = reference_pages.python_page()
    assert all(f"\n## {name}\n" in text for name in shardproof.__all__ if name != "__version__")
    for _, command in reference_pages.commands():
        assert command.help and all(p.help for p in command.params if p.param_type_name == "option"), command.name
