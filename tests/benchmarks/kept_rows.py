"""Writes a table of a results page anew in pieces: rows of this run in the place of those that are about the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def with_kept_rows(page: Path, lines: Sequence[str], cells: int) -> list[str]:
    """A table, head first, and the rows of the page's that begin with other `cells` cells: in the page's order, new ones
    behind them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "page.md"
    ...     _ = page.write_text("# Title\\n\\n| a | b |\\n|---|---|\\n| 1 | x |\\n| 2 | x |\\n")
    ...     with_kept_rows(page, ["| a | b |", "|---|---|", "| 3 | y |", "| 1 | y |"], 1)[2:]
    ['| 1 | y |', '| 2 | x |', '| 3 | y |']
    """
    head, new = list(lines[:2]), {_key(line, cells): line for line in lines[2:]}
    text = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    old = text[text.index(head[0]) + 2 :] if head[0] in text else []
    kept = [new.pop(_key(line, cells), line) for line in old if line.startswith("|")]
    return [*head, *kept, *new.values()]


def _key(line: str, cells: int) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("|")[1 : cells + 1])
