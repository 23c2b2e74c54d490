"""Rows of a gzipped table, as dictionaries; a table that is not there has none.

cell    empty: the source does not say.  `number` and `whole` give None then, unless told a default.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from pathlib import Path

Cells = Mapping[str, str]


def read(folder: Path, name: str) -> list[Cells]:
    """The rows of `folder/name.csv.gz` (or `.csv`) in their order.

    >>> read(Path("/nowhere"), "vtrain/single")
    []
    """
    packed, plain = folder / f"{name}.csv.gz", folder / f"{name}.csv"
    if packed.exists():
        with gzip.open(packed, "rt", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    if plain.exists():
        with plain.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    return []


def number(row: Cells, column: str, default: float | None = None) -> float | None:
    """A cell as a number.

    >>> number({"a": "2.5", "b": ""}, "a"), number({"a": "2.5", "b": ""}, "b"), number({}, "c", 1.0)
    (2.5, None, 1.0)
    """
    text = (row.get(column) or "").strip()
    return float(text) if text else default


def whole(row: Cells, column: str, default: int) -> int:
    """A cell as a whole number.

    >>> whole({"tp": "8"}, "tp", 1), whole({"tp": ""}, "tp", 1)
    (8, 1)
    """
    text = (row.get(column) or "").strip()
    return int(float(text)) if text else default
