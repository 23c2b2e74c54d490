"""Pictures of docs/ are what `python tests/pictures.py` draws from the house's own objects, and pages show them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pictures
import pytest
from svg import Canvas

ROOT = Path(__file__).resolve().parent.parent
TEXT = "{http://www.w3.org/2000/svg}text"


SLOW = {"parts", "schedule"}
"""Plans are made for them."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in pictures.PICTURES]
)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    drawn = pictures.PICTURES[name]().svg()
    assert (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, "python tests/pictures.py"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_has_a_title_and_text_inside_it_for_light_and_dark_pages(name: str) -> None:
    text = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    width, height = (float(root.attrib[k]) for k in ("width", "height"))
    words = root.findall(TEXT)
    assert len(words) >= 5 and root.findtext("{http://www.w3.org/2000/svg}title")
    for word in words:
        assert 0 < float(word.attrib["x"]) < width and 10 <= float(word.attrib["y"]) < height, word.text
    assert "prefers-color-scheme:dark" in text


def test_every_picture_is_shown_with_words_in_its_place() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        Path(path).stem
        for page in pages
        for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]*pictures/[^)]*)\)", page.read_text(encoding="utf-8"))
        if words
    }
    assert shown == set(pictures.PICTURES) == {p.stem for p in pictures.FOLDER.glob("*.svg")}


def test_words_of_a_picture_are_escaped() -> None:
    canvas = Canvas(10, 10, "a < b")
    canvas.text(1, 1, "x & y")
    assert ElementTree.fromstring(canvas.svg()).findtext(TEXT) == "x & y"
