"""Writes shardings as JAX's PartitionSpecs, and reads them back.

A PartitionSpec lists, for every dimension of an array, the mesh axes that cut it, major first, in any order; dimensions
that it does not reach are whole.  What it cannot say is refused by name:

    partial   the array is a partial result
    uneven    a dimension that its blocks do not divide
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..mesh import Mesh
from ..sharding import Sharding, ShardingError
from .axes import ForeignMesh

Entry = str | list[str] | None
"""Of one dimension: no axis, one, several."""


def specification(sharding: Sharding, shape: Sequence[int], mesh: Mesh) -> list[list[str]]:
    """Mesh axes per dimension.  Raises `ShardingError`.

    >>> from ..mesh import MeshDimension
    >>> mesh = Mesh((4,), (MeshDimension("gpu", 0, 1, 4),))
    >>> specification(Sharding(((), ("gpu",))), (3, 8), mesh)
    [[], ['gpu']]
    """
    if sharding.partial:
        raise ShardingError(f"partial: it is partial over {' x '.join(sharding.partial)}")
    for k, (names, extent) in enumerate(zip(sharding.splits, shape, strict=True)):
        if extent % mesh.size(names):
            raise ShardingError(
                f"uneven: dimension {k} of {extent} is cut into {mesh.size(names)} blocks that are not equal"
            )
    return [list(names) for names in sharding.splits]


def spec_text(splits: Sequence[Sequence[str]]) -> str:
    """As Python writes it.

    >>> spec_text([[], ["gpu"], ["x", "y"]])
    "PartitionSpec(None, 'gpu', ('x', 'y'))"
    """
    entries = (None if not names else names[0] if len(names) == 1 else tuple(names) for names in splits)
    return f"PartitionSpec({', '.join(repr(e) for e in entries)})"


def read_spec(value: object, shape: Sequence[int], where: ForeignMesh) -> Sharding:
    """The sharding of a PartitionSpec: its text, or a list with null, a name or a list of names per dimension.

    >>> from .axes import foreign_mesh
    >>> print(read_spec("P(None, ('dp', 'tp'))", (3, 8), foreign_mesh([("dp", 2), ("tp", 2)], (4,))))
    [*, dp x tp]
    """
    entries = _entries(value)
    if len(entries) > len(shape):
        raise ShardingError(f"{len(entries)} entries for an array of {len(shape)} dimensions")
    splits: list[tuple[str, ...]] = []
    used: set[str] = set()
    for k, extent in enumerate(shape):
        entry = entries[k] if k < len(entries) else None
        axes = [] if entry is None else [entry] if isinstance(entry, str) else entry
        for axis in axes:
            if axis in used:
                raise ShardingError(f"axis {axis!r} cuts two dimensions")
            used.add(axis)
        names = tuple(name for axis in axes for name in where.names(axis))
        if extent % where.mesh.size(names):
            raise ShardingError(
                f"uneven: dimension {k} of {extent} is cut into {where.mesh.size(names)} blocks that are not equal"
            )
        splits.append(names)
    return Sharding(tuple(splits))


def _entries(value: object) -> list[Entry]:
    said = f"{str(value)[:80]!r} is no PartitionSpec; write P(None, 'x'), or [null, \"x\"]"
    if isinstance(value, str):
        head, bracket, rest = value.strip().partition("(")
        if head not in ("P", "PartitionSpec", "jax.sharding.PartitionSpec", "") or not bracket or len(value) > 4096:
            raise ShardingError(said)
        try:
            value = ast.literal_eval(f"[{rest.removesuffix(')')}]")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ShardingError(said) from None
    if not isinstance(value, (list, tuple)):
        raise ShardingError(said)
    out: list[Entry] = []
    for entry in value:
        if entry is None or isinstance(entry, str):
            out.append(entry)
        elif isinstance(entry, (list, tuple)) and all(isinstance(name, str) for name in entry):
            out.append([*entry])
        else:
            raise ShardingError(said)
    return out
