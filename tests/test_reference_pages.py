"""The reference of verbs and of the Python way in is what the code says."""

from __future__ import annotations

import inspect

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


def test_every_keyword_of_plan_is_explained() -> None:
    """It has them from a class (`models.keywords`), where a new one is one line."""
    keywords = set(inspect.signature(shardproof.plan).parameters) - {"machine"}
    assert len(keywords) > 30
    assert not {name for name in keywords if f"`{name}`" not in (shardproof.plan.__doc__ or "")}


EXAMPLE = {
    "plan": ("mlp-unity", "localhost:2"),
    "pipeline": ("mlp-unity", "localhost:2", "sgd"),
    "audit": ("mlp-unity", "localhost:2", {}),
    "solve": ("p.json",),
    "place": ("2x4", "2,4"),
    "reduce": (),
    "schedule": (),
}


@pytest.mark.parametrize("name", EXAMPLE)
def test_misspelled_keywords_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) .*unexpected keyword argument 'thraeds'"):
        getattr(shardproof, name)(*EXAMPLE[name], thraeds=1)


def test_positional_arguments_stand_in_the_order_of_users() -> None:
    """Fields of classes that are joined come in the order of the classes: the first arguments are written down here."""
    kinds = {
        name: tuple(
            p.name
            for p in inspect.signature(getattr(shardproof, name)).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD
        )
        for name in EXAMPLE
    }
    assert kinds == {
        "plan": ("model", "machine"),
        "pipeline": ("model", "machine", "train"),
        "audit": ("model", "machine", "strategy"),
        "solve": ("problem",),
        "place": ("hierarchy", "axes", "reductions"),
        "reduce": ("hierarchy", "axes", "over"),
        "schedule": ("graph",),
    }
