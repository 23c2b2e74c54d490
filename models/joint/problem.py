"""From an e-graph and a machine to one selection problem over all its programs and all their
placements.

    class vertex    the choices of all e-nodes one after another, each at the time of its operator; absent: 0
    rest vertex     layouts; all cost 0
    edge            the resharding where the reader reads, 0 where it does not, forbidden where a tag is not kept

`models.joint.choices` says which choices there are.  Times and tables are those of a plan (`models.cost.structures`),
put together block by block, so every solution costs what the plan of its program costs.  Memory rows, where there is a
limit, are those of `models.joint.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..communication.choices import Choices, needs_copy
from ..cost import cost
from ..cost.assumptions import flags
from ..cost.selection import Notify
from ..cost.structures import Keyed, Structures
from ..layout.classes import axis_orders, copy_key, operator_key, same_rows
from ..layout.placement import Placement, Space
from ..machine.machine import Machine
from ..problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, TooFine, Usage, Vertex
from ..problem.unit import coarser
from ..program.graph import Graph, Role
from ..program.operators import Operator
from .choices import Block, Kind, Link, Relation, Skeleton, relations
from .egraph import EGraph, Modes, claim_flags
from .memory import FLAG, Rows
from .rules import LIBRARY

Room = Callable[[int, int], None]
"""Called with pairs of blocks to compare, and entries to hold; it raises where that is too much."""


@dataclass(frozen=True, eq=False)
class JointDecision:
    """One vertex: of the class `tensor`, or where it rests.  Choices of `blocks[i]` begin at `starts[i]`."""

    tensor: str
    rests: bool
    blocks: tuple[Block, ...]
    starts: tuple[int, ...]
    size: int

    @property
    def name(self) -> str:
        """Name of the vertex."""
        return f"copy of {self.tensor}" if self.rests else self.tensor

    def block(self, choice: int) -> tuple[Block, int]:
        """The block of a choice, and its number within."""
        i = int(np.searchsorted(self.starts, choice, side="right")) - 1
        return self.blocks[i], choice - self.starts[i]

    def span(self, i: int) -> tuple[int, int]:
        """First choice of a block and the one after its last."""
        return self.starts[i], self.starts[i + 1] if i + 1 < len(self.starts) else self.size


@dataclass(frozen=True, eq=False)
class JointPlanning:
    """A selection problem together with what its numbers mean.  `links[e]` belongs to `problem.edges[e]`."""

    egraph: EGraph
    machine: Machine
    space: Space
    rounds: int
    problem: SelectionProblem
    skeleton: Skeleton
    decisions: tuple[JointDecision, ...]
    links: tuple[Link, ...]
    classes: dict[str, int]
    rests: dict[str, int]
    structures: Structures

    def modes(self, x: Sequence[int]) -> dict[str, str | None]:
        """Which e-node computes every class."""
        out: dict[str, str | None] = {}
        for t, v in self.classes.items():
            block, _ = self.decisions[v].block(x[v])
            out[t] = None if block.node is None else block.node.name
        return out

    def plan(self, x: Sequence[int]) -> tuple[Graph, Choices]:
        """The program of a solution, and its placements."""
        graph = self.egraph.graph(self.modes(x))
        alone, operators, copies = axis_orders(graph), [], []
        for op in graph.operators:
            v = self.classes[op.output.tensor]
            _, k = self.decisions[v].block(x[v])
            key = operator_key(op.name)
            at = self._placement(self.structures.of_operator(op)[k], key)
            operators.append((op.name, replace(at, axes=alone[key]) if same_rows(op, at.axes, alone[key]) else at))
        for t, v in self.rests.items():
            block, k = self.decisions[v].block(x[v])
            if block.kind is Kind.COPY:
                copies.append((t, self._placement(self.structures.of_copy(t)[k], copy_key(t))))
        given = [t.name for t in graph.tensors if t.role is not Role.VALUE]
        order = {t: i for i, t in enumerate((*given, *(op.output.tensor for op in graph.operators)))}
        return graph, Choices(tuple(operators), tuple(sorted(copies, key=lambda c: order[c[0]])))

    def _placement(self, matrix: Ints, key: str) -> Placement:
        return Placement(self.structures.orders[key], tuple(tuple(int(x) for x in row) for row in matrix))

    def solution(self, modes: Modes, choices: Choices) -> tuple[int, ...]:
        """The solution that stands for a plan of the program of some modes.  Raises LookupError if there is none."""
        settled = self.egraph.operators_under(modes)
        placements, copies = dict(choices.operators), dict(choices.copies)
        x = [0] * len(self.decisions)
        for t, v in self.classes.items():
            node, decision = settled[t], self.decisions[v]
            i = next(i for i, b in enumerate(decision.blocks) if b.node is node and _keeps(b, settled))
            x[v] = decision.starts[i]
            if node is not None:
                x[v] += _number(self.structures.of_operator(node), placements[node.name])
        for t, v in self.rests.items():
            decision = self.decisions[v]
            for i, block in enumerate(decision.blocks):
                if _keeps(block, settled):
                    if block.kind is Kind.PASSED and settled[t] is not block.node:
                        continue
                    x[v] = decision.starts[i]
                    if block.kind is Kind.COPY:
                        x[v] += _number(self.structures.of_copy(t), copies[t])
                    if block.kind is Kind.PASSED and block.node is not None:
                        _, k = self.decisions[self.classes[t]].block(x[self.classes[t]])
                        x[v] += int(self.structures.output_layouts(block.node).layouts.of_choice[k])
                    break
            else:
                raise LookupError(f"no choice of the copy of {t!r} stands for these modes")
        return tuple(x)

    def executable(self, x: Sequence[int]) -> str:
        """Why the plan of a solution is no plan of its program as it stands alone; empty if it is one.

        The axes of all programs stand in one order here; alone, a program has its own.
        """
        graph, choices = self.plan(x)
        orders = axis_orders(graph)
        for key, items in ((operator_key, choices.operators), (copy_key, choices.copies)):
            for name, placement in items:
                if placement.axes != orders[key(name)]:
                    return f"the axes of {name!r} stand in another order in the program alone"
        if {t for t, _ in choices.copies} != needs_copy(graph):
            return "the copies are not those of the program alone"
        return ""


def _keeps(block: Block, settled: Mapping[str, Operator | None]) -> bool:
    """Whether modes are those that a tag assumes."""
    return all((None if (n := settled[t]) is None else n.name) in modes for t, modes in block.tag)


def _number(placements: Ints, placement: Placement) -> int:
    found = np.nonzero((placements == np.array(placement.matrix, dtype=np.int64)).all(axis=(1, 2)))[0]
    if not found.size:
        raise LookupError(f"placement {placement.matrix} is outside the space")
    return int(found[0])


@dataclass(frozen=True, eq=False)
class JointSubject:
    """What determines the problem: the e-graph that `rounds` of rules made, the machine, the space; how much tags say
    (`level`), bytes per device or None (`memory_limit`), the identities of the rules, with + (`library`).
    """

    egraph: EGraph
    rounds: int
    machine: Machine
    where: Space
    level: int = 1
    memory_limit: int | None = None
    library: str = LIBRARY


def build_joint(
    subject: JointSubject,
    notify: Notify | None = None,
    *,
    unit: Fraction = cost.UNIT,
    structures: Structures | None = None,
    room: Room | None = None,
) -> JointPlanning:
    """The selection problem of all programs and placements, in the finest unit that fits, from `unit` on.
    `structures`: those of the same e-graph, machine, space and unit, where they are known.  `room`: called before each
    part.

    >>> from ..machine.machine import load_machine
    >>> from ..layout.placement import space
    >>> from ..sources.zoo import build
    >>> g = build("mlp-unity")
    >>> subject = JointSubject(EGraph(g, (), g.operators), 0, load_machine("localhost:2"), space("complete"))
    >>> joint = build_joint(subject)
    >>> [d.name for d in joint.decisions]
    ['fc1', 'relu1', 'fc2', 'copy of fc2']
    """
    egraph = subject.egraph
    while True:
        try:
            if structures is None or structures.unit != unit:
                structures = Structures(egraph.union, subject.machine, subject.where, egraph.orders, unit)
            return _Builder(subject, structures, notify, room).build()
        except TooFine as error:
            unit = coarser(unit, error.total)


def choices_of(egraph: EGraph, structures: Structures, level: int) -> list[int]:
    """How many choices every vertex of the problem has whose tags say so much."""
    skeleton = Skeleton(egraph, level)
    named = [*skeleton.rests.items(), *((t, skeleton.blocks(t)) for t in skeleton.classes)]
    return [sum(_size(structures, t, b) for b in blocks) for t, blocks in named]


def _size(structures: Structures, t: str, b: Block) -> int:
    """Choices of a block."""
    if b.kind is Kind.RUNS and b.node is not None:
        return int(structures.of_operator(b.node).shape[0])
    if b.kind is Kind.COPY:
        return int(structures.of_copy(t).shape[0])
    layouts = _held(structures, t, b)
    return 1 if layouts is None else len(layouts.layouts)


def _held(structures: Structures, t: str, b: Block) -> Keyed | None:
    """Layouts in which a block of a source holds the class."""
    match b.kind:
        case Kind.COPY:
            return structures.copy_layouts(t)
        case Kind.RUNS | Kind.PASSED if b.node is not None:
            return structures.output_layouts(b.node)
        case _:
            return None


class _Builder:
    def __init__(self, subject: JointSubject, structures: Structures, notify: Notify | None, room: Room | None) -> None:
        self.subject = subject
        self.egraph, self.machine, self.where = subject.egraph, subject.machine, subject.where
        self.unit = structures.unit
        self.notify = notify
        self._room: Room = (lambda pairs, entries: None) if room is None else room
        self.skeleton = Skeleton(self.egraph, subject.level)
        self.structures = structures
        self.tables: list[Ints] = []
        self._number: dict[object, int] = {}
        self._arrays: dict[tuple[object, ...], Ints] = {}

    def build(self) -> JointPlanning:
        rounds, memory_limit, library = self.subject.rounds, self.subject.memory_limit, self.subject.library
        sk = self.skeleton
        decisions: list[JointDecision] = []
        classes, rests = dict[str, int](), dict[str, int]()
        for t in sk.rests:
            if t not in self.egraph.nodes:
                rests[t] = self._decide(decisions, t, True)
        for t in sk.classes:
            classes[t] = self._decide(decisions, t, False)
            if t in sk.rests:
                rests[t] = self._decide(decisions, t, True)
        vertices = tuple(Vertex(d.name, self._costs(d)) for d in decisions)
        edges = []
        for done, link in enumerate(sk.links):
            home = sk.homes.get(link.tensor, link.tensor)
            u = rests[home] if link.from_rest else classes[link.tensor]
            v = rests[home] if link.reader is None else classes[link.reader]
            edges.append(self._edge(link, u, v, decisions[u], decisions[v]))
            if self.notify is not None:
                self.notify(done + 1, len(sk.links))
        usages: tuple[Usage, ...] = ()
        if memory_limit is not None:
            rows = Rows(sk, self.structures)
            usages = tuple(
                u
                for v, d in enumerate(decisions)
                for u in rows.of(v, d.tensor, d.rests, d.blocks, [d.span(i) for i in range(len(d.blocks))])
            )
        assumed = flags(self.egraph.union, self.machine, self.where, memory_limit, bool(edges))
        assumed = (*assumed, *(() if memory_limit is None else (FLAG,)), *claim_flags(self.egraph, rounds, library))
        problem = SelectionProblem(
            f"{self.egraph.base.name} on {self.machine.name}, jointly",
            vertices,
            tuple(self.tables),
            tuple(edges),
            usages,
            memory_limit,
            scale=int(1 / self.unit),
            unit_name="s",
            space=self.where.name,
            assumptions=tuple(sorted(assumed)),
        ).check()
        return JointPlanning(
            self.egraph,
            self.machine,
            self.where,
            rounds,
            problem,
            sk,
            tuple(decisions),
            sk.links,
            classes,
            rests,
            self.structures,
        )

    def _decide(self, decisions: list[JointDecision], t: str, rests: bool) -> int:
        blocks = self.skeleton.rests[t] if rests else self.skeleton.blocks(t)
        sizes = [_size(self.structures, t, b) for b in blocks]
        self._room(0, sum(sizes))
        starts = tuple(int(n) for n in np.cumsum([0, *sizes[:-1]]))
        decisions.append(JointDecision(t, rests, blocks, starts, sum(sizes)))
        return len(decisions) - 1

    def _shared(self, key: tuple[object, ...], make: Callable[[], Ints]) -> Ints:
        """One array for all that are equal, so that repeated layers share them."""
        if key not in self._arrays:
            self._arrays[key] = make()
        return self._arrays[key]

    def _costs(self, d: JointDecision) -> Ints:
        parts = [
            self.structures.costs(b.node).times
            if b.kind is Kind.RUNS and b.node is not None
            else np.zeros(d.span(i)[1] - d.span(i)[0], dtype=np.int64)
            for i, b in enumerate(d.blocks)
        ]
        key = tuple(id(p) if b.kind is Kind.RUNS else p.size for p, b in zip(parts, d.blocks, strict=True))
        return self._shared(("cost", *key), lambda: np.concatenate(parts))

    def _edge(self, link: Link, u: int, v: int, a: JointDecision, b: JointDecision) -> Edge:
        self._room(len(a.blocks) * len(b.blocks), 0)
        sources = [_held(self.structures, a.tensor, x) for x in a.blocks]
        targets = [self._target(link, b, y) for y in b.blocks]
        reads = [self.egraph.count(link.tensor, y.node) if link.reader is not None else 0 for y in b.blocks]
        size = self.egraph.union.tensor(link.tensor).element_bytes
        home = self.skeleton.homes.get(link.tensor, link.tensor)
        kinds = relations(link, a.blocks, b.blocks, reads, home)
        # blocks of a source that relate to everything alike and hold the same layouts are one group of rows
        rows = _groups(
            [(_key(s), x.kind is Kind.RUNS, tuple(k)) for x, s, k in zip(a.blocks, sources, kinds, strict=True)]
        )
        columns = _groups(
            [
                (_key(s), y.kind in (Kind.RUNS, Kind.COPY), tuple(k[j] for k in kinds))
                for j, (y, s) in enumerate(zip(b.blocks, targets, strict=True))
            ]
        )
        heights = [1 if sources[g[0]] is None else len(sources[g[0]].layouts) for g in rows]  # type: ignore[union-attr]
        widths = [1 if targets[g[0]] is None else len(targets[g[0]].layouts) for g in columns]  # type: ignore[union-attr]
        cells = [[kinds[g[0]][h[0]] for h in columns] for g in rows]
        key = (
            tuple(_key(sources[g[0]]) for g in rows),
            tuple(_key(targets[h[0]]) for h in columns),
            tuple(map(tuple, cells)),
            size,
        )
        if key not in self._number:
            self._room(0, sum(heights) * sum(widths))
            self._number[key] = len(self.tables)
            self.tables.append(
                np.block(
                    [
                        [
                            self._cell(kind, sources[g[0]], targets[h[0]], size, (n, m))
                            for h, m, kind in zip(columns, widths, line, strict=True)
                        ]
                        for g, n, line in zip(rows, heights, cells, strict=True)
                    ]
                )
            )
        return Edge(
            u, v, self._number[key], self._map(a, sources, rows, heights), self._map(b, targets, columns, widths)
        )

    def _target(self, link: Link, b: JointDecision, y: Block) -> Keyed | None:
        """Layouts in which a block of the other end wants the class."""
        if link.reader is None:
            return _held(self.structures, b.tensor, y)
        if y.node is None:
            return None
        positions = self.skeleton.positions(y.node, link.tensor)
        return self.structures.read(y.node, positions[link.number]) if link.number < len(positions) else None

    def _cell(self, kind: Relation, a: Keyed | None, b: Keyed | None, size: int, shape: tuple[int, int]) -> Ints:
        match kind:
            case Relation.FORBIDDEN:
                return np.full(shape, FORBIDDEN, dtype=np.int64)
            case Relation.FREE:
                return np.zeros(shape, dtype=np.int64)
            case Relation.SAME:
                return np.where(np.eye(*shape, dtype=bool), 0, FORBIDDEN).astype(np.int64)
            case Relation.MOVES:
                if a is None or b is None:
                    raise AssertionError("what moves has layouts at both ends")
                return self.structures.tables[self.structures.table(a, b, size)]

    def _map(
        self, d: JointDecision, layouts: Sequence[Keyed | None], groups: list[list[int]], sizes: Sequence[int]
    ) -> Ints:
        """Choice -> row of the table."""
        starts = np.cumsum([0, *sizes[:-1]])
        begin = {i: int(s) for g, s in zip(groups, starts, strict=True) for i in g}
        placed = [b.kind in (Kind.RUNS, Kind.COPY) for b in d.blocks]  # choices are placements, not layouts
        key = (
            "map",
            tuple((_key(k), p, begin[i]) for i, (k, p) in enumerate(zip(layouts, placed, strict=True))),
            d.size,
        )

        def make() -> Ints:
            out = np.empty(d.size, dtype=np.int64)
            for i, k in enumerate(layouts):
                low, high = d.span(i)
                if k is None:
                    out[low:high] = begin[i]
                elif placed[i]:
                    out[low:high] = begin[i] + k.layouts.of_choice
                else:
                    out[low:high] = begin[i] + np.arange(high - low)
            return out

        return self._shared(key, make)


def _key(k: Keyed | None) -> object:
    return None if k is None else k.key


def _groups(keys: Sequence[object]) -> list[list[int]]:
    """Positions with equal keys, in order of first appearance."""
    found: dict[object, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return list(found.values())
