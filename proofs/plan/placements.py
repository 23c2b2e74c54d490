"""This module reads placements: rows [name, axes, matrix]."""

from __future__ import annotations

from ...models.layout.placement import Placement
from ..container.canonical import Reader


def read_placements(rows: Reader) -> tuple[tuple[str, Placement], ...]:
    """Names with their placements, in the order of the file.  Raises `ContainerError`."""
    out = []
    for row in rows.items():
        name, axes, matrix = row.parts(3)
        out.append((name.text(), Placement(axes.texts(), tuple(tuple(r.integers(1, 1 << 40)) for r in matrix.items()))))
    return tuple(out)
