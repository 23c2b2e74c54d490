r"""Reads strategies that say where tensors lie: DTensor's placements, JAX's PartitionSpecs, Shardy's text,
by name.

    {"mesh": {"dp": 2, "tp": 4}, "placements": {"fc1.weight": ["Replicate()", "Shard(0)"]}}
    {"mesh": {"dp": 2, "tp": 4}, "specs": {"fc1.weight": ["tp", null], "x": "P('dp')"}}
    {"mesh": "<[\"dp\"=2, \"tp\"=4]>", "shardings": {"fc1.weight": "<@mesh, [{\"tp\"}, {}]>"}}

The mesh lists its axes most significant first; their sizes multiply to the machine's devices.  Names are those of
tensors, or globs over them (a name beats every glob, among globs the later one wins; gradients are named by globs that
begin with `grad:`).  A tensor that is kept in one place for several readers decides the choice of that place; of any
other, the choices of the operator that reads it first (or writes it).  Every choice that leaves the same box of the
tensor, in the shape that the user knows, on every device agrees with the strategy; what it does not name is the
solver's to complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np

from ...models.communication.choices import resting_places
from ...models.cost.selection import Planning
from ...models.files.input import regular
from ...models.files.json_text import JsonError, parse_json
from ...models.layout.layout import LayoutSet, axis_tables, layout_set
from ...models.layout.sharding import ShardingError, digit_groups, layout_of
from ...models.layout.targets.axes import ForeignMesh, foreign_mesh
from ...models.layout.targets.dtensor import read_placements
from ...models.layout.targets.jax import read_spec
from ...models.layout.targets.shardy import parts_of, read_mesh, read_sharding
from ...models.problem.selection_problem import Ints
from ...models.program.index import Access, Affine, Axis
from ...models.text import InputError, did_you_mean
from .strategy import MAX_FILE, Applied, StrategyError, vertex_names

KINDS: Final = {"placements": "DTensor", "specs": "JAX", "shardings": "Shardy"}


@dataclass(frozen=True)
class TensorLayouts:
    """`axes`: of the mesh; `entries`: name or glob -> layout in the words of `kind` (a key of `KINDS`)."""

    kind: str
    axes: tuple[tuple[str, int], ...]
    entries: tuple[tuple[str, object], ...]
    place: str = "strategy"


def tensor_layouts(path: Path | str) -> TensorLayouts | None:
    """The layouts in a file; None if it holds none.  Raises `StrategyError` for a file of them with an error."""
    try:
        with regular(Path(path)).open("rb") as f:
            text = f.read(MAX_FILE).decode()
    except (InputError, OSError, UnicodeDecodeError):
        return None
    return read_layouts(text, str(path))


def read_layouts(text: str, place: str = "strategy") -> TensorLayouts | None:
    """`tensor_layouts` of a text.

    >>> read_layouts('{"mesh": {"dp": 2}, "specs": {"x": ["dp"]}}').entries
    (('x', ['dp']),)
    >>> read_layouts('{"fc1": {"b": {"gpus": 8}}}') is None
    True
    """
    try:
        data = parse_json(text)
    except JsonError:
        return None
    if not isinstance(data, dict) or not set(data) & set(KINDS) or "mesh" not in data:
        return None
    (kind, *others) = [k for k in KINDS if k in data]
    unknown = sorted(set(data) - {"mesh", kind})
    if others or unknown:
        raise StrategyError(
            place, f"{unknown[0][:60]!r} stands beside {kind!r}", 'write {"mesh": .., "' + kind + '": ..}'
        )
    mesh, entries = data["mesh"], data[kind]
    if not isinstance(entries, dict):
        raise StrategyError(f"{place}, {kind!r}", "is not an object", "write name -> layout")
    try:
        axes = read_mesh(mesh) if isinstance(mesh, str) else _axes(mesh)
    except ShardingError as error:
        raise StrategyError(f"{place}, 'mesh'", str(error)) from None
    return TensorLayouts(kind, axes, tuple(entries.items()), place)


def _axes(mesh: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(mesh, dict) or not all(type(n) is int and 1 <= n <= 1 << 20 for n in mesh.values()):
        raise ShardingError('it is no table of sizes; write {"dp": 2, "tp": 4}, most significant first')
    return tuple((str(name), int(n)) for name, n in mesh.items())


def resolve_layouts(given: TensorLayouts, planning: Planning) -> Applied:
    """What the layouts decide.  Raises `StrategyError` for names, meshes and layouts that do not fit, and for a layout
    that no choice of the space leaves.
    """
    graph, hierarchy = planning.graph, planning.machine.hierarchy
    tensors = {t.name: t for t in graph.tensors}
    places, vertices = resting_places(graph), vertex_names(planning)
    names_of = {v: n for n, v in vertices.items()}
    allowed: dict[int, frozenset[int]] = {}
    by: dict[int, str] = {}
    for name, (key, words) in _chosen(given, list(tensors)).items():
        place = f"{given.place}, key {key!r}"
        t = tensors[name]
        shape = t.source_shape or t.shape
        try:
            where, wanted = _boxes(given, words, shape, hierarchy)
        except ShardingError as error:
            raise StrategyError(f"{place}, tensor {name!r}" if key != name else place, str(error)) from None
        vertex, layouts = _where(planning, name, places)
        kept = np.array([_same(layouts, i, t.shape, shape, wanted) for i in range(len(layouts))], dtype=np.bool_)
        own = frozenset(np.nonzero(kept[layouts.of_choice])[0].tolist())
        if not own:
            raise StrategyError(
                place,
                f"no choice of {names_of[vertex]!r} in the space {planning.space.name!r} leaves {name!r} so on every "
                f"device",
                f"mesh {' x '.join(f'{n} {s}' for n, s in where.axes)}; try --space complete, or another order of axes",
            )
        both = own & allowed.get(vertex, own)
        if not both:
            raise StrategyError(place, f"contradicts key {by[vertex]!r}: {names_of[vertex]!r} decides both tensors")
        allowed[vertex], by[vertex] = both, key
    free = tuple(n for n, v in vertices.items() if v not in allowed)
    return Applied({v: tuple(sorted(a)) for v, a in allowed.items()}, free, ())


def _chosen(given: TensorLayouts, names: list[str]) -> dict[str, tuple[str, object]]:
    """Tensor -> key and layout of the entry that decides it."""
    out: dict[str, tuple[str, object]] = {}
    exact = {key for key, _ in given.entries} & set(names)
    for key, words in given.entries:
        if key in exact:
            out[key] = (key, words)
            continue
        gradients = key.startswith("grad:")
        found = [n for n in names if n.startswith("grad:") == gradients and fnmatchcase(n, key)]
        if not found:
            raise StrategyError(
                f"{given.place}, key {key!r}",
                "matches no tensor",
                did_you_mean(key, names).lstrip("; ") or "see explain",
            )
        out.update({n: (key, words) for n in found if n not in exact})
    return out


def _boxes(
    given: TensorLayouts, words: object, shape: tuple[int, ...], hierarchy: tuple[int, ...]
) -> tuple[ForeignMesh, Ints]:
    if given.kind == "shardings":
        if not isinstance(words, str):
            raise ShardingError(f"{str(words)[:80]!r} is no text of Shardy")
        where = foreign_mesh(given.axes, hierarchy, parts_of(words))
        found = read_sharding(words, shape, where)
    else:
        where = foreign_mesh(given.axes, hierarchy)
        if given.kind == "specs":
            found = read_spec(words, shape, where)
        elif isinstance(words, str) or (isinstance(words, list) and all(isinstance(w, str) for w in words)):
            found = read_placements(words, shape, where)
        else:
            raise ShardingError(f"{str(words)[:80]!r} are no placements; write a list of Shard(dim), Replicate()")
    if found.partial:
        raise ShardingError("partial results lie nowhere: say where the tensor lies when they are added up")
    return where, layout_of(found, shape, where.mesh).boxes


def _where(planning: Planning, name: str, places: Mapping[str, str]) -> tuple[int, LayoutSet]:
    """The vertex that decides where a tensor lies, and its layouts under all choices."""
    graph, hierarchy = planning.graph, planning.machine.hierarchy
    shape = graph.tensor(name).shape
    if name in places:
        vertex = planning.copies[places[name]]
        decision = planning.decisions[vertex]
        axes = tuple(Axis(k, shape[int(k)]) for k in decision.axes)
        access = Access(name, tuple(Affine.axis(str(k)) for k in range(len(shape))))
        return vertex, layout_set(access, shape, axis_tables(axes, decision.placements, hierarchy))
    readers = graph.readers()[name]
    op = graph.operators[readers[0][0]] if readers else next(o for o in graph.operators if o.output.tensor == name)
    vertex = planning.operators[op.name]
    decision = planning.decisions[vertex]
    tables = axis_tables(tuple(op.axis(n) for n in decision.axes), decision.placements, hierarchy)
    return vertex, layout_set(op.inputs[readers[0][1]] if readers else op.output, shape, tables)


def _same(layouts: LayoutSet, i: int, digits: tuple[int, ...], shape: tuple[int, ...], wanted: Ints) -> bool:
    """Whether the i-th layout leaves the wanted boxes of the tensor in the shape that the user knows."""
    own = [table[code] for table, code in zip(layouts.dims, layouts.codes[i], strict=True)]
    return all(
        ours is not None and np.array_equal(ours, wanted[:, k]) for k, ours in enumerate(_folded(own, digits, shape))
    )


def _folded(own: list[Ints], digits: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[Ints | None]:
    """Intervals of the dimensions of `shape` from those of its digits; None where positions do not lie together."""
    groups = digit_groups(digits, shape)
    if groups is None:
        yield None
        return
    for group in groups:
        low = np.zeros(len(own[0]) if own else 1, dtype=np.int64)
        last, held = low.copy(), np.ones_like(low)
        for k in group:
            low, last = low * digits[k] + own[k][:, 0], last * digits[k] + own[k][:, 1] - 1
            held = held * (own[k][:, 1] - own[k][:, 0])
        if (held != np.maximum(last + 1 - low, 0))[held > 0].any():
            yield None
            continue
        box = np.stack([low, last + 1], axis=1)
        box[held == 0] = 0
        yield box
