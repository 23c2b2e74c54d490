"""References in documents and docstrings lead somewhere: every named path exists, every named module can be
imported and has the named attribute.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from house import ROOT, modules

NAMED = re.compile(r"`((?:models|proofs|verify|formal|backends|tests|docs)[/.][\w/.{},*<>-]+)`")
LINKED = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
FILES = sorted(
    {
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "history"),  # in the words of their time
        *modules().values(),
        *(ROOT / "tests").rglob("*.py"),
    }
)


def leads_nowhere(name: str) -> bool:
    """Of a path below the root, with braces and stars, or of a dotted name.

    >>> leads_nowhere("models/text.py"), leads_nowhere("models/nothing.py")
    (False, True)
    >>> leads_nowhere("models.text.bytes_text"), leads_nowhere("models.text.bites_text"), leads_nowhere("models.nothing")
    (False, True, True)
    """
    if "/" in name:
        pattern = re.sub(r"\{[^}]*\}|<[^>]*>", "*", name).rstrip("/")
        return not any(ROOT.glob(pattern)) and not any(ROOT.glob(f"{pattern}.py"))
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        if ".".join(parts[:at]) in modules():
            found: object = importlib.import_module(f"shardproof.{'.'.join(parts[:at])}")
            for part in parts[at:]:
                if not hasattr(found, part):
                    return True
                found = getattr(found, part)
            return False
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_references_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lost = [n for n in NAMED.findall(text) if leads_nowhere(n.rstrip("."))]
    if path.suffix == ".md":
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        lost += [n for n in LINKED.findall(prose) if not (path.parent / n).exists()]
    if path != Path(__file__):
        assert not lost, lost


def test_theorems_name_functions_and_tests_that_exist() -> None:
    """The tables of composed bounds: checkers of `verify/`, and what tries to break them."""
    text = (ROOT / "docs" / "composed-bounds.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "|---" not in line]
    named = {n for row in rows for n in re.findall(r"`([a-z_A-Z.]+)`", row)} | set(re.findall(r"`(test_\w+)`", text))
    names = {n.split(".")[-1] for n in named if not n.endswith(".py")}
    sources = [p.read_text(encoding="utf-8") for room in ("verify", "tests") for p in (ROOT / room).rglob("*.py")]
    known = {n for source in sources for n in re.findall(r"^ *def (\w+)", source, re.MULTILINE)}
    assert len(names) > 30 and not names - known
