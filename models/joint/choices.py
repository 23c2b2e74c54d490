"""What is decided when algebra and placement are decided together: per class which e-node computes it, and where.

    class vertex    of every class that is computed:
                      runs(n)    e-node n computes it, at one of the placements of n
                      absent     nobody computes it                                       (optional classes only)
    rest vertex     of every class that may have a layout of its own between writer and readers:
                      copy       it lies in one of the layouts of a copy                  (read twice or more, or wanted)
                      passed(n)  its only reader takes it from n as n left it, in one of the layouts of n
                      given      its only reader finds it where it wants it               (inputs and parameters)
                      absent     nobody reads it

Whether a class is copied depends on how many e-nodes read it, which other vertices decide; so every choice of a rest
vertex but `absent` carries a *tag*: for every class whose modes read it differently often, those modes of which one is
assumed.  Edges forbid a tag that its readers do not keep.  So the cost of a choice of all vertices is that of the plan
of the program it stands for, to the unit, and the linear relaxation cannot use one copy for two programs.

    tags left out    an absent class is read by a mode; an optional class is computed, and all its readers are in the
                     tag and none reads it

A class needs no rest vertex where no choice of modes reads it twice and nobody wants it.  The next value of a parameter
rests in the parameter's copy, as in a plan (`models.communication.choices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import product

from ..program.operators import Operator
from .egraph import EGraph

Tag = tuple[tuple[str, tuple[str | None, ...]], ...]
"""(class, modes of it of which one is assumed), in the order of classes."""


class Kind(Enum):
    """What a run of choices means: see the module docstring."""

    RUNS = "runs"
    COPY = "copy"
    PASSED = "passed"
    GIVEN = "given"
    ABSENT = "absent"


@dataclass(frozen=True)
class Block:
    """Choices that differ in placement or layout only.  `node`: of `runs` and `passed`."""

    kind: Kind
    node: Operator | None = None
    tag: Tag = ()

    def assumes(self, tensor: str, mode: str | None) -> bool:
        """Whether the tag leaves this mode of a class open."""
        for t, modes in self.tag:
            if t == tensor:
                return mode in modes
        return True


@dataclass(frozen=True)
class Link:
    """An edge: from the class vertex or the rest vertex of `tensor` to its rest vertex (`reader` None) or to the class
    vertex of `reader`, as the `number`-th operand that its e-nodes read `tensor` as.
    """

    tensor: str
    from_rest: bool
    reader: str | None
    number: int = 0


class Skeleton:
    """Vertices and edges, without numbers.  `tagged`: tags where they are not needed too, for a better relaxation."""

    def __init__(self, egraph: EGraph, tagged: bool = True) -> None:
        self.egraph, self.tagged = egraph, tagged
        self.homes = {value: parameter for parameter, value in egraph.base.state}
        self.stored = set(self.homes.values())

    def modes(self, tensor: str) -> tuple[Operator | None, ...]:
        """E-nodes of a class; None where it can be absent."""
        nodes = self.egraph.nodes[tensor]
        return (*nodes, None) if tensor in self.egraph.optional else nodes

    def reads(self, reader: str, tensor: str) -> tuple[int, ...]:
        """How often the modes of a class read another."""
        return tuple(self.egraph.count(tensor, m) for m in self.modes(reader))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Classes that are computed, in the order in which their last e-node stands."""
        last = {op.output.tensor: i for i, op in enumerate(self.egraph.operators)}
        return tuple(sorted(last, key=last.__getitem__))

    @cached_property
    def rests(self) -> dict[str, tuple[Block, ...]]:
        """Classes with a rest vertex, and its blocks; inputs and parameters first."""
        given = [t.name for t in self.egraph.union.tensors if t.name not in self.egraph.nodes]
        out = {}
        for t in (*given, *self.classes):
            if t not in self.homes and (blocks := self._rest(t)):
                out[t] = blocks
        return out

    def blocks(self, tensor: str) -> tuple[Block, ...]:
        """Blocks of a class vertex."""
        return tuple(Block(Kind.ABSENT) if m is None else Block(Kind.RUNS, m) for m in self.modes(tensor))

    def _rest(self, t: str) -> tuple[Block, ...]:
        nodes = self.egraph.nodes.get(t, ())
        readers = self.egraph.readers[t]
        counts = {r: self.reads(r, t) for r in readers}
        always = t in self.stored or (t in self.egraph.wanted and bool(nodes))
        most, least = (sum(f(c) for c in counts.values()) for f in (max, min))
        if not always and most < 2:
            return ()
        if (always or least > 1) and not self.tagged:
            return (Block(Kind.COPY),)
        variable = [r for r in readers if len(set(counts[r])) > 1]
        return tuple(b for tag, k in self._tags(t, variable, counts) for b in self._choices(t, nodes, tag, k, always))

    def _choices(self, t: str, nodes: tuple[Operator, ...], tag: Tag, reads: int, always: bool) -> Iterator[Block]:
        if always or reads > 1:
            yield Block(Kind.COPY, None, tag)
        elif reads == 0:
            if t in self.egraph.optional or not nodes:
                yield Block(Kind.ABSENT, None, tag)
        elif nodes:
            yield from (Block(Kind.PASSED, n, tag) for n in nodes)
        else:
            yield Block(Kind.GIVEN, None, tag)

    def _tags(self, t: str, variable: list[str], counts: dict[str, tuple[int, ...]]) -> Iterator[tuple[Tag, int]]:
        """Tags that some program keeps, with how often the class is read."""
        fixed = sum(counts[r][0] for r in counts if r not in variable)
        groups = []
        for r in variable:
            found: dict[int, list[Operator | None]] = {}
            for mode, k in zip(self.modes(r), counts[r], strict=True):
                found.setdefault(k, []).append(mode)
            groups.append([(r, k, modes) for k, modes in sorted(found.items(), key=lambda item: item[0])])
        for choice in product(*groups):
            if self._possible({r: modes for r, _, modes in choice}):
                tag = tuple((r, tuple(None if m is None else m.name for m in modes)) for r, _, modes in choice)
                yield tag, fixed + sum(k for _, k, _ in choice)

    def _possible(self, tag: dict[str, list[Operator | None]]) -> bool:
        for t, modes in tag.items():
            readers = [r for r in self.egraph.readers[t] if r in tag]
            if all(m is None for m in modes) and any(all(self.egraph.count(t, m) for m in tag[r]) for r in readers):
                return False
            if (
                all(m is not None for m in modes)
                and t in self.egraph.optional
                and len(readers) == len(self.egraph.readers[t])
                and not any(self.egraph.count(t, m) for r in readers for m in tag[r])
            ):
                return False
        return True

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every edge: given tensors first, then class by class into its rest vertex, and to its readers."""
        out = []
        for t in self.rests:
            if t not in self.egraph.nodes:
                out.extend(self._to_readers(t, True))
        for t in self.classes:
            home = self.homes.get(t, t)
            if home in self.rests:
                out.append(Link(t, False, None))
            out.extend(self._to_readers(t, home in self.rests))
        return tuple(out)

    def _to_readers(self, t: str, from_rest: bool) -> Iterator[Link]:
        for r in self.egraph.readers[t]:
            for number in range(max(self.reads(r, t))):
                yield Link(t, from_rest, r, number)

    def positions(self, node: Operator, tensor: str) -> tuple[int, ...]:
        """Input positions at which an e-node reads a class."""
        return tuple(j for j, a in enumerate(node.inputs) if a.tensor == tensor)


class Relation(Enum):
    """What an edge costs between two blocks."""

    FORBIDDEN = "forbidden"
    FREE = "free"
    SAME = "same"  # nothing between equal layouts, forbidden between others
    MOVES = "moves"  # the redistribution


def relation(link: Link, a: Block, b: Block, reads: int) -> Relation:
    """What a link costs between a block of its source and one of its target; `reads`: how often the target block reads
    the class.
    """
    if link.reader is None:
        if a.kind is Kind.ABSENT or b.kind is Kind.ABSENT:
            return Relation.FREE if a.kind is b.kind else Relation.FORBIDDEN
        if b.kind is Kind.PASSED:
            return Relation.SAME if a.node is b.node else Relation.FORBIDDEN
        return Relation.MOVES
    mode = None if b.node is None else b.node.name
    if not a.assumes(link.reader, mode) or (a.kind is Kind.ABSENT and reads):
        return Relation.FORBIDDEN
    if a.kind is Kind.RUNS and not reads:  # its only reader does not want it
        return Relation.FORBIDDEN
    return Relation.MOVES if reads > link.number and a.kind is not Kind.GIVEN else Relation.FREE
