"""The pages build without a warning, and every page can be reached from the first one.

`make docs` does the same; it needs the extra [docs].
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
OUTSIDE = {"_build", "history"}
"""Folders whose pages are not of the site: what is built, and the changes of old versions in the words of their time."""


def test_every_page_is_in_the_index() -> None:
    trees = [(DOCS / page).read_text(encoding="utf-8") for page in ("index.md", "certificate-format.md")]
    blocks = re.findall(r"```{toctree}\n(.*?)```", "\n".join(trees), re.DOTALL)
    listed = {line for block in blocks for line in block.splitlines()}
    pages = {p.relative_to(DOCS).with_suffix("").as_posix() for p in DOCS.rglob("*.md") if not OUTSIDE & set(p.parts)}
    assert pages - {"index"} == {line for line in listed if line and not line.startswith(":")}


def test_the_index_has_a_sentence_per_page_in_four_kinds() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^## (\w[\w-]*):", index, re.MULTILINE)
    assert kinds == ["Tutorials", "How-to", "Explanation", "Reference"]
    for kind in kinds:
        table = re.split(r"^## ", index.split(f"## {kind}:")[1], maxsplit=1, flags=re.MULTILINE)[0]
        rows = re.findall(r"^\| \[[^\]]+\]\(([\w/-]+)\.md\) \| (.+) \|$", table, re.MULTILINE)
        tree = re.search(rf"```{{toctree}}\n:caption: {kind}\n(.*?)```", index, re.DOTALL)
        assert tree is not None
        listed = [line for line in tree[1].splitlines() if line and not line.startswith(":")]
        assert [page for page, _ in rows] == listed and all(len(words.split()) >= 4 for _, words in rows)


@pytest.mark.slow
def test_pages_build(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    call = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "howto/cluster.html" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_page_is_read_at_one_sitting() -> None:
    """Pages that are written by hand; the reference is written from the code."""
    pages = [p for p in DOCS.rglob("*.md") if not {*OUTSIDE, "reference"} & set(p.parts)]
    long = {p.name: n for p in pages if (n := len(p.read_text(encoding="utf-8").splitlines())) > 330}
    assert len(pages) > 40 and not long
    wide = {p.name: n for p in pages if (n := prose_columns(p.read_text(encoding="utf-8"))) > 120}
    assert not wide


def prose_columns(text: str) -> int:
    """The longest line that is no table, console, heading, comment, formula or name."""
    fenced, found = False, 0
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith(("|", "!", "```", "#", "    ", "<!--", "`")):
            found = max(found, len(line))
    return found
