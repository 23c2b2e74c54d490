"""Writes shardings as DTensor's placements, one per mesh dimension, and reads them back.

DTensor applies the mesh dimensions in their order.  `Shard(k)` cuts what a device has of dimension k into `torch.chunk`
parts of c = ceil(n / D), the last of them shorter or empty, so that rows of unequal parts over two mesh dimensions
differ from ours.  What it cannot say is refused by name:

    order     a dimension is cut by mesh dimensions in another order than the mesh's
    uneven    a dimension that its blocks do not divide is cut by two mesh dimensions
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...program.index import Combine
from ..mesh import Mesh
from ..sharding import Sharding, ShardingError
from .axes import ForeignMesh

_WORD = re.compile(
    r"(?:(?P<shard>Shard|S)\((?:dim=)?(?P<k>-?\d{1,4})\)|(?P<whole>Replicate\(\)|R)"
    r"|(?P<partial>Partial|P)(?:\((?:reduce_op=)?['\"]?(?P<op>\w{0,12})['\"]?\))?)"
)


def placements(sharding: Sharding, shape: Sequence[int], mesh: Mesh) -> tuple[str, ...]:
    """One word per mesh dimension.  Raises `ShardingError`.

    >>> from ..mesh import MeshDimension
    >>> mesh = Mesh((2, 2), (MeshDimension("node", 0, 1, 2), MeshDimension("gpu", 1, 1, 2)))
    >>> placements(Sharding((("node",), ()), ("gpu",), Combine.SUM), (4, 6), mesh)
    ('Shard(0)', 'Partial(sum)')
    """
    for k, (names, extent) in enumerate(zip(sharding.splits, shape, strict=True)):
        if [*names] != sorted(names, key=mesh.names.index):
            raise ShardingError(f"order: dimension {k} is cut by {' x '.join(names)}")
        if len(names) > 1 and extent % mesh.size(names):
            raise ShardingError(
                f"uneven: dimension {k} of {extent} is cut into {mesh.size(names)} by {' x '.join(names)}"
            )
    out = []
    for name in mesh.names:
        at = [k for k, names in enumerate(sharding.splits) if name in names]
        op = sharding.combine.value if sharding.combine else ""
        out.append(f"Shard({at[0]})" if at else f"Partial({op})" if name in sharding.partial else "Replicate()")
    return tuple(out)


def read_placements(words: Sequence[str] | str, shape: Sequence[int], where: ForeignMesh) -> Sharding:
    """The sharding that placements over the axes of a mesh mean: a list of words, or one text such as
    `(Shard(dim=0), Replicate())` or `S(0)R`.  Raises `ShardingError`.

    >>> from .axes import foreign_mesh
    >>> print(read_placements("(Shard(dim=0), Partial(sum))", (4, 6), foreign_mesh([("dp", 2), ("tp", 2)], (4,))))
    [dp, *] partial sum over tp
    """
    splits: list[tuple[str, ...]] = [() for _ in shape]
    partial: list[str] = []
    kinds: set[str] = set()
    given = _words(words)
    if len(given) != len(where.axes):
        raise ShardingError(f"{len(given)} placements for a mesh of {len(where.axes)} axes")
    for (axis, _), word in zip(where.axes, given, strict=True):
        found = _WORD.fullmatch(word.strip())
        if found is None:
            raise ShardingError(f"{word[:60]!r} is no placement; write Shard(dim), Replicate() or Partial(sum)")
        names = where.names(axis)
        if found["shard"]:
            k = int(found["k"]) + (len(splits) if found["k"].startswith("-") else 0)
            if not 0 <= k < len(splits):
                raise ShardingError(f"{word!r}: the tensor has {len(splits)} dimensions")
            splits[k] += names
        elif found["partial"]:
            partial += names
            kinds.add(found["op"] or "sum")
    if len(kinds) > 1 or not kinds <= {c.value for c in Combine}:
        raise ShardingError(f"partial results of kind {', '.join(sorted(kinds))}: one of sum, max, min is said")
    for k, (names, extent) in enumerate(zip(splits, shape, strict=True)):
        cut = [axis for axis, size in where.axes if size > 1 and where.names(axis)[0] in names]
        if len(cut) > 1 and extent % where.mesh.size(names):
            raise ShardingError(
                f"uneven: dimension {k} of {extent} is cut into {where.mesh.size(names)} by {' x '.join(cut)}"
            )
    return Sharding(tuple(splits), tuple(partial), Combine(next(iter(kinds))) if partial else None)


def _words(given: Sequence[str] | str) -> list[str]:
    if not isinstance(given, str):
        return [*given]
    text = given.strip()
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    if "," in text:
        return [w for w in (part.strip() for part in text.split(",")) if w]
    found = list(_WORD.finditer(text))
    if "".join(m[0] for m in found) != text:
        raise ShardingError(f"{given[:80]!r} are no placements; write them as (Shard(0), Replicate())")
    return [m[0] for m in found]
