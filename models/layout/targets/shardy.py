r"""Writes shardings as Shardy's text (MLIR's dialect `sdy`), and reads them back.

    sdy.mesh @mesh = <["node"=2, "gpu"=8]>
    #sdy.sharding<@mesh, [{"node", "gpu":(1)4}, {}], unreduced={"gpu":(4)2}>

Per dimension of the tensor the axes that cut it, major first; `"x":(m)k` is the sub-axis of size k behind m of x, so
that one mesh of the machine's levels says every factored dimension.  Neighbouring sub-axes that are one are written as
one.  Blocks are of ceil(n / D), the last ones padded, which is our rule.  Unreduced axes hold parts of a sum; partial
maxima are refused by name.  Read too: `replicated={..}`; refused: open dimensions (`?`) and priorities, which ask for
propagation and say no layout.

Source: OpenXLA Shardy, "Sharding representation" and the definition of the `sdy` dialect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...program.index import Combine
from ..sharding import Sharding, ShardingError
from .axes import ForeignMesh, Part

_NAME = r'"(?:[^"\\]|\\.)*"'
_ONE = re.compile(r'"(?P<name>(?:[^"\\]|\\.)*)"(?::\((?P<before>\d{1,9})\)(?P<size>\d{1,9}))?')
_LIST = rf"\{{(?:{_NAME}(?::\(\d{{1,9}}\)\d{{1,9}})?,?)*\}}"
_TEXT = re.compile(
    rf"(?:#?sdy\.sharding)?<@(?P<mesh>[\w.$-]+),\[(?P<dims>(?:{_LIST},?)*)\]"
    rf"(?:,replicated=(?P<replicated>{_LIST}))?(?:,unreduced=(?P<unreduced>{_LIST}))?>"
)
_MESH = re.compile(rf"(?:sdy\.mesh@[\w.$-]+=)?<\[(?P<axes>(?:{_NAME}=\d{{1,9}},?)*)\]>")
_SPACE = re.compile(rf"({_NAME})|\s+")


def mesh_text(where: ForeignMesh, name: str = "mesh") -> str:
    """The mesh as an operation.

    >>> from .axes import foreign_mesh
    >>> mesh_text(foreign_mesh([("node", 2), ("gpu", 8)], (2, 8)))
    'sdy.mesh @mesh = <["node"=2, "gpu"=8]>'
    """
    return f"sdy.mesh @{name} = <[{', '.join(f'{_quoted(n)}={size}' for n, size in where.axes)}]>"


def sharding_text(sharding: Sharding, where: ForeignMesh, name: str = "mesh") -> str:
    """The attribute.  Raises `ShardingError`.

    >>> from .axes import foreign_mesh
    >>> where = foreign_mesh([("node", 2), ("gpu", 8)], (2, 8), [("gpu", 1, 4)])
    >>> sharding_text(Sharding((("node", "gpu_0"), ()), ("gpu_1",), Combine.SUM), where)
    '#sdy.sharding<@mesh, [{"node", "gpu":(1)4}, {}], unreduced={"gpu":(4)2}>'
    """
    if sharding.partial and sharding.combine is not Combine.SUM:
        raise ShardingError(
            f"partial: it holds partial results of kind {sharding.combine.value if sharding.combine else 'unknown'}, "
            "and unreduced axes are sums"
        )
    dims = ", ".join(_axes(names, where) for names in sharding.splits)
    unreduced = f", unreduced={_axes(sharding.partial, where)}" if sharding.partial else ""
    return f"#sdy.sharding<@{name}, [{dims}]{unreduced}>"


def read_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Names and sizes of a mesh's axes.  Raises `ShardingError`.

    >>> read_mesh('sdy.mesh @mesh = <["node"=2, "gpu"=8]>')
    (('node', 2), ('gpu', 8))
    """
    found = _MESH.fullmatch(_SPACE.sub(lambda m: m[1] or "", text)) if len(text) < 1 << 16 else None
    if found is None:
        raise ShardingError(f'{text[:80]!r} is no mesh of Shardy; write sdy.mesh @mesh = <["x"=2, "y"=4]>')
    pairs = re.finditer(r'"(?P<name>(?:[^"\\]|\\.)*)"\s*=\s*(?P<size>\d+)', found["axes"])
    return tuple((_plain(m["name"]), int(m["size"])) for m in pairs)


def parts_of(text: str) -> tuple[Part, ...]:
    """Sub-axes that a sharding names: what `foreign_mesh` has to cut."""
    return tuple(
        (_plain(m["name"]), int(m["before"]), int(m["size"])) for m in _ONE.finditer(text) if m["before"] is not None
    )


def read_sharding(text: str, shape: Sequence[int], where: ForeignMesh) -> Sharding:
    """The sharding that an attribute means.  Raises `ShardingError`.

    >>> from .axes import foreign_mesh
    >>> print(read_sharding('<@mesh, [{"gpu":(4)2}, {"node"}]>', (4, 4), foreign_mesh([("node", 2), ("gpu", 8)], (2, 8),
    ...     [("gpu", 4, 2)])))
    [gpu_1, node]
    """
    found = _TEXT.fullmatch(_SPACE.sub(lambda m: m[1] or "", text)) if len(text) < 1 << 16 else None
    if found is None:
        more = "; open dimensions and priorities say no layout" if re.search(r"\?|}p\d", text) else ""
        raise ShardingError(f'{text[:80]!r} is no sharding of Shardy; write <@mesh, [{{"x"}}, {{}}]>{more}')
    lists = re.findall(_LIST, found["dims"])
    if len(lists) != len(shape):
        raise ShardingError(f"{len(lists)} dimensions for a tensor of {len(shape)}")
    splits = tuple(_names(one, where) for one in lists)
    partial = _names(found["unreduced"] or "{}", where)
    used = [*(n for names in splits for n in names), *partial, *_names(found["replicated"] or "{}", where)]
    if len(set(used)) < len(used):
        raise ShardingError(f"{text[:80]!r} names a part of an axis twice")
    ordered = tuple(sorted(partial, key=where.mesh.names.index))
    return Sharding(splits, ordered, Combine.SUM if partial else None)


def _axes(names: Sequence[str], where: ForeignMesh) -> str:
    merged: list[Part] = []
    for axis, before, size in (where.part(n) for n in names):
        if merged and merged[-1][0] == axis and merged[-1][1] * merged[-1][2] == before:
            merged[-1] = (axis, merged[-1][1], merged[-1][2] * size)
        else:
            merged.append((axis, before, size))
    return (
        "{" + ", ".join(_quoted(n) + ("" if k == where.size(n) else f":({before}){k}") for n, before, k in merged) + "}"
    )


def _names(text: str, where: ForeignMesh) -> tuple[str, ...]:
    out: tuple[str, ...] = ()
    for m in _ONE.finditer(text):
        name = _plain(m["name"])
        out += where.names(name) if m["before"] is None else where.names(name, int(m["before"]), int(m["size"]))
    return out


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)
