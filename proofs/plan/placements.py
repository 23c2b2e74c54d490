"""Writes and reads placements: rows [name, axes, matrix]."""

from __future__ import annotations

from ...models.layout.placement import Placement
from ..container.canonical import Reader

Placements = tuple[tuple[str, Placement], ...]


def placement_rows(items: Placements) -> list[object]:
    """Placements as rows."""
    return [[name, list(p.axes), [list(r) for r in p.matrix]] for name, p in items]


def read_placements(rows: Reader) -> Placements:
    """Names with their placements, in the order of the file.  Raises `ContainerError`."""
    out = []
    for row in rows.items():
        name, axes, matrix = row.parts(3)
        rows_of = tuple(tuple(r.integers(1, 1 << 40)) for r in matrix.items())
        if len({len(r) for r in rows_of}) > 1:
            matrix.fail("must have rows of one length")
        out.append((name.text(), Placement(axes.texts(), rows_of)))
    return tuple(out)
