"""The parallel computation graph of a plan: operators with degrees, and between them what changes how
tensors lie.

    parallel tensor   per level of the machine: degree of every dimension, replicas, and open sums; their product is the
                      number of subtrees of the level, so every device has a part, a copy of one, or a term of one
    operator          with the degree of every axis per level (its placement)
    copy              where a tensor rests between one writer and several readers
    parallel nodes    partition(dim, d)   d replicas keep a d-th of a dimension each
                      combine(dim, d)     d parts of a dimension are put together, and all d have the whole
                      reduce(d)           d terms are added up, and all d have the sum (an all-reduce)
                      replicate(d)        of a given tensor, which is one: d replicas
                      rearrange           the same degrees, by other devices, or with the neighbours' borders

A movement from one parallel tensor to another is, per level, reduce, combine, then partition, by the factors by which
degrees differ; followed, they give the other tensor (`apply_steps`).  Its price is that of the movement as a whole.
`choices` gives the placements back.

Source: Unity (OSDI 2022), section 3, whose combine and reduce leave one copy, which its replicate multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import gcd, prod

from ..layout.layout import Layout
from ..layout.placement import Placement
from ..program.graph import Graph, Role
from ..program.index import Access
from ..program.operators import Operator
from .choices import Choices, communications, copy_layout, input_layout, output_layout, resting_places

Degrees = tuple[int, ...]
"""One number per level."""


class Parallel(Enum):
    """Kinds of parallel nodes."""

    PARTITION = "partition"
    COMBINE = "combine"
    REDUCE = "reduce"
    REPLICATE = "replicate"
    REARRANGE = "rearrange"


@dataclass(frozen=True)
class ParallelTensor:
    """`dimensions[k]`, `replicas`, `sums`: degrees per level."""

    tensor: str
    dimensions: tuple[Degrees, ...]
    replicas: Degrees
    sums: Degrees


@dataclass(frozen=True)
class Step:
    """A parallel node: `dimension` of partition and combine; `degree` at `level`."""

    kind: Parallel
    level: int = 0
    degree: int = 1
    dimension: int | None = None


@dataclass(frozen=True)
class Change:
    """What happens to a tensor on its way: `steps` turn `source` into `target`.  `writer`, `reader`: operators, None
    for the tensor's copy (or a given tensor); `position`: which input of the reader.
    """

    tensor: str
    writer: str | None
    reader: str | None
    position: int
    source: ParallelTensor
    target: ParallelTensor
    steps: tuple[Step, ...]
    given: bool = False
    """Whether it is the beginning of a given tensor: one whole, which costs nothing to bring where it is wanted."""


@dataclass(frozen=True)
class ParallelGraph:
    """`operators`, `copies`: (name, placement); `changes`: in execution order, given tensors first."""

    graph: Graph
    hierarchy: tuple[int, ...]
    operators: tuple[tuple[str, Placement], ...]
    copies: tuple[tuple[str, Placement], ...]
    changes: tuple[Change, ...]

    def choices(self) -> Choices:
        """The placements that it says."""
        return Choices(self.operators, self.copies)


def apply_steps(tensor: ParallelTensor, steps: Sequence[Step]) -> ParallelTensor:
    """A parallel tensor after parallel nodes.  Raises ValueError for a degree that is not there.

    >>> whole = ParallelTensor("t", ((1,),), (4,), (1,))
    >>> apply_steps(whole, [Step(Parallel.PARTITION, 0, 2, 0)])
    ParallelTensor(tensor='t', dimensions=((2,),), replicas=(2,), sums=(1,))
    """
    dims, replicas, sums = [list(d) for d in tensor.dimensions], list(tensor.replicas), list(tensor.sums)
    for s in steps:
        match s.kind:
            case Parallel.PARTITION if s.dimension is not None:
                _move(replicas, dims[s.dimension], s)
            case Parallel.COMBINE if s.dimension is not None:
                _move(dims[s.dimension], replicas, s)
            case Parallel.REDUCE:
                _move(sums, replicas, s)
            case Parallel.REPLICATE:
                replicas[s.level] *= s.degree
            case _:
                pass
    return ParallelTensor(tensor.tensor, tuple(map(tuple, dims)), tuple(replicas), tuple(sums))


def _move(source: list[int], target: list[int], s: Step) -> None:
    if source[s.level] % s.degree:
        raise ValueError(f"{s.kind.value} by {s.degree} at level {s.level}: only {source[s.level]} are there")
    source[s.level] //= s.degree
    target[s.level] *= s.degree


def steps_between(source: ParallelTensor, target: ParallelTensor, alike: bool) -> tuple[Step, ...]:
    """Parallel nodes that turn one into the other; `alike`: no device gets anything, if they have the same degrees."""
    out = []
    for level in range(len(source.replicas)):
        if source.sums[level] > 1:
            out.append(Step(Parallel.REDUCE, level, source.sums[level]))
        pairs = [(a[level], b[level]) for a, b in zip(source.dimensions, target.dimensions, strict=True)]
        out += [
            Step(Parallel.COMBINE, level, a // gcd(a, b), k) for k, (a, b) in enumerate(pairs) if a // gcd(a, b) > 1
        ]
        out += [
            Step(Parallel.PARTITION, level, b // gcd(a, b), k) for k, (a, b) in enumerate(pairs) if b // gcd(a, b) > 1
        ]
    return tuple(out) if out or alike else (Step(Parallel.REARRANGE),)


def parallel_graph(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> ParallelGraph:
    """The parallel computation graph of a plan.  Raises `ChoicesError` for choices that are not the graph's."""
    placements, copies = dict(choices.operators), dict(choices.copies)
    places, writer = resting_places(graph), graph.writer()
    changes = list[Change]()

    def copy_of(t: str) -> ParallelTensor:
        placement = copies[places[t]]
        row = dict(zip(placement.axes, placement.matrix, strict=False))
        dims = tuple(row[str(k)] for k in range(len(graph.tensor(t).shape)))
        return ParallelTensor(t, dims, placement.matrix[-1], tuple(1 for _ in hierarchy))

    def read(op: Operator, j: int) -> ParallelTensor:
        return _operand(op.inputs[j], placements[op.name], len(hierarchy), ())

    one = tuple(1 for _ in hierarchy)
    for t in (t.name for t in graph.tensors if t.role is not Role.VALUE):
        first: list[tuple[ParallelTensor, str | None, int]]
        first = [(read(graph.operators[i], j), graph.operators[i].name, j) for i, j in graph.readers()[t]]
        for target, reader, position in [(copy_of(t), None, 0)] if t in copies else first:
            dims = tuple(one for _ in target.dimensions)
            steps = [Step(Parallel.REPLICATE, i, n) for i, n in enumerate(hierarchy) if n > 1]
            steps += steps_between(ParallelTensor(t, dims, hierarchy, one), target, True)
            changes.append(
                Change(t, None, reader, position, ParallelTensor(t, dims, one, one), target, tuple(steps), True)
            )
    for m in communications(graph, hierarchy, choices):
        a = (
            copy_of(m.tensor)
            if m.writer is None
            else _written(graph.operators[writer[m.tensor]], placements, hierarchy)
        )
        b = copy_of(m.tensor) if m.reader is None else read(graph.operator(m.reader), m.position)
        alike = _same(*_layouts(graph, hierarchy, choices, places, m.tensor, m.writer, m.reader, m.position))
        changes.append(Change(m.tensor, m.writer, m.reader, m.position, a, b, steps_between(a, b, alike)))
    return ParallelGraph(graph, hierarchy, choices.operators, choices.copies, tuple(changes))


def _written(op: Operator, placements: dict[str, Placement], hierarchy: tuple[int, ...]) -> ParallelTensor:
    return _operand(op.output, placements[op.name], len(hierarchy), tuple(a.name for a in op.reduction_axes))


def _operand(access: Access, placement: Placement, levels: int, opened: tuple[str, ...]) -> ParallelTensor:
    """Degrees of what an operator touches; rows of axes that it does not name are replicas, or open sums."""
    row = dict(zip(placement.axes, placement.matrix, strict=False))
    used = set()
    dims = []
    for i in access.index:
        names = [] if i.whole else [n for n, _ in i.terms if n not in used]
        used |= set(names)
        dims.append(tuple(prod(row[n][j] for n in names) for j in range(levels)))
    sums = tuple(prod(row[n][j] for n in opened if n not in used) for j in range(levels))
    rest = [r for n, r in row.items() if n not in used and n not in opened] + [placement.matrix[-1]]
    return ParallelTensor(access.tensor, tuple(dims), tuple(prod(r[j] for r in rest) for j in range(levels)), sums)


def _layouts(
    graph: Graph,
    hierarchy: tuple[int, ...],
    choices: Choices,
    places: dict[str, str],
    tensor: str,
    writer: str | None,
    reader: str | None,
    position: int,
) -> tuple[Layout, Layout]:
    placements, copies = dict(choices.operators), dict(choices.copies)

    def rest() -> Layout:
        return copy_layout(tensor, graph, copies[places[tensor]], hierarchy)

    source = rest() if writer is None else output_layout(graph.operator(writer), graph, placements[writer], hierarchy)
    if reader is None:
        return source, rest()
    return source, input_layout(graph.operator(reader), position, graph, placements[reader], hierarchy)


def _same(a: Layout, b: Layout) -> bool:
    """Whether every device has already what it needs."""
    return not a.open and bool(((a.boxes[..., 0] <= b.boxes[..., 0]) & (a.boxes[..., 1] >= b.boxes[..., 1])).all())
