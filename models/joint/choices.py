"""What is decided when algebra and placement are decided together: per class which e-node computes it,
and where.

    class vertex    of every class that is computed:
                      runs(n)    e-node n computes it, at one of the placements of n
                      absent     nobody computes it                                       (optional classes only)
    rest vertex     of every class that may have a layout of its own between writer and readers:
                      copy       it lies in one of the layouts of a copy                 (read twice or more, or wanted)
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

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import product
from math import prod
from typing import Final

from ..cost.limits import TooLarge
from ..program.operators import Operator
from .egraph import EGraph

MOST_TAGS: Final = 1 << 11
"""Tags of one vertex."""

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

    def open_modes(self, tensor: str, rests: bool) -> dict[str, tuple[str | None, ...]]:
        """Modes that a choice leaves open, for every class that it says something of; `tensor`: its own."""
        own = {} if rests else {tensor: (None if self.node is None else self.node.name,)}
        if self.kind is Kind.PASSED and self.node is not None:
            own = {tensor: (self.node.name,)}
        return {**dict(self.tag), **own}


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
    """Vertices and edges, without numbers.  `level`: how much tags say, for a better relaxation: 0 what is needed, 1
    how often each class is read, 2 the modes of all readers and of the writer, 3 class vertices likewise.
    """

    def __init__(self, egraph: EGraph, level: int = 1) -> None:
        self.egraph, self.level = egraph, level
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
        out = []
        for mode in self.modes(tensor):
            for tag in self._assumptions(self._beside(tensor)) if self.level > 2 else ((),):
                if self._possible({**_sets(tag), tensor: (None if mode is None else mode.name,)}):
                    out.append(Block(Kind.ABSENT if mode is None else Kind.RUNS, mode, tag))
        return tuple(out)

    def _beside(self, tensor: str) -> list[str]:
        """Classes with several modes that read a class, or that it may read, in order."""
        near = set(self.egraph.readers[tensor])
        near |= {a.tensor for n in self.egraph.nodes.get(tensor, ()) for a in n.inputs}
        return [t for t in self.classes if t in near and len(self.modes(t)) > 1]

    def _rest(self, t: str) -> tuple[Block, ...]:
        nodes = self.egraph.nodes.get(t, ())
        readers = self.egraph.readers[t]
        counts = {r: self.reads(r, t) for r in readers}
        always = t in self.stored or (t in self.egraph.wanted_classes and bool(nodes))
        most, least = (sum(f(c) for c in counts.values()) for f in (max, min))
        if not always and most < 2:
            return ()
        if (always or least > 1) and self.level == 0:
            return (Block(Kind.COPY),)
        groups = [self._by_count(r, counts[r]) for r in readers if len(set(counts[r])) > 1]
        if self.level > 1:
            named = [r for r in readers if len(self.modes(r)) > 1]
            if t in self.egraph.nodes and len(self.modes(t)) > 1:
                named.append(t)
            if prod(len(self.modes(r)) for r in named) <= MOST_TAGS:
                groups = [[(r, (_name(m),)) for m in self.modes(r)] for r in named]
        if (always or least > 1) and prod(map(len, groups)) > MOST_TAGS:
            return (Block(Kind.COPY),)  # it has a copy in every program: what reads it need not be said
        _bounded(t, groups)
        out: list[Block] = []
        for choice in product(*groups):
            tag = dict(choice)
            if self._possible(tag):
                reads = sum(
                    min(k for m, k in zip(self.modes(r), counts[r], strict=True) if r not in tag or _name(m) in tag[r])
                    for r in readers
                )
                out.extend(self._choices(t, nodes, choice, reads, always))
        return tuple(out)

    def _by_count(self, r: str, counts: tuple[int, ...]) -> list[tuple[str, tuple[str | None, ...]]]:
        found: dict[int, list[str | None]] = {}
        for mode, k in zip(self.modes(r), counts, strict=True):
            found.setdefault(k, []).append(_name(mode))
        return [(r, tuple(found[k])) for k in sorted(found)]

    def _assumptions(self, classes: list[str]) -> Iterator[Tag]:
        if prod(len(self.modes(t)) for t in classes) > MOST_TAGS:
            classes = []
        yield from product(*([(t, (_name(m),)) for m in self.modes(t)] for t in classes))

    def _choices(self, t: str, nodes: tuple[Operator, ...], tag: Tag, reads: int, always: bool) -> Iterator[Block]:
        if always or reads > 1:
            yield Block(Kind.COPY, None, tag)
        elif reads == 0:
            if t in self.egraph.optional or not nodes:
                yield Block(Kind.ABSENT, None, tag)
        elif nodes:
            open_ = dict(tag).get(t)
            yield from (Block(Kind.PASSED, n, tag) for n in nodes if open_ is None or n.name in open_)
        else:
            yield Block(Kind.GIVEN, None, tag)

    def _possible(self, tag: Mapping[str, tuple[str | None, ...]]) -> bool:
        """Whether some modes of these classes fit together, as far as they say."""
        for t, modes in tag.items():
            absent = modes.count(None)
            every = self.egraph.readers[t]
            readers = [r for r in every if r in tag]
            if absent == len(modes):
                if any(all(map(self._times[t, r].__getitem__, tag[r])) for r in readers):
                    return False
            elif (
                not absent
                and t in self.egraph.optional
                and len(readers) == len(every)
                and not any(any(map(self._times[t, r].__getitem__, tag[r])) for r in readers)
            ):
                return False
        return True

    @cached_property
    def _times(self) -> Mapping[tuple[str, str], Mapping[str | None, int]]:
        """Of a class and one that reads it, how often the modes of that one do."""
        return {
            (t, r): {_name(m): k for m, k in zip(self.modes(r), self.reads(r, t), strict=True)}
            for t, readers in self.egraph.readers.items()
            for r in readers
        }

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every edge: given tensors first, then class by class into its rest vertex, and to its readers."""
        out = list[Link]()
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
    MOVES = "moves"  # the resharding


def relations(
    link: Link, a: Sequence[Block], b: Sequence[Block], reads: Sequence[int], home: str
) -> list[list[Relation]]:
    """What a link costs between the blocks of its source, one row each, and those of its target; `reads`: how often
    these read the class; `home`: the class in whose rest vertex it lies.
    """
    sources = [_open(x, home if link.from_rest else link.tensor, link.from_rest) for x in a]
    targets = [_open(y, home if link.reader is None else link.reader, link.reader is None) for y in b]
    both = [t for t in dict.fromkeys(t for s in sources for t in s) if any(t in s for s in targets)]

    def common(blocks: list[dict[str, frozenset[str | None]]]) -> list[list[tuple[str, frozenset[str | None]]]]:
        return [[(t, s[t]) for t in both if t in s] for s in blocks]

    rows, columns = common(sources), [dict(s) for s in common(targets)]
    return [
        [
            Relation.FORBIDDEN
            if any(t in column and modes.isdisjoint(column[t]) for t, modes in row)
            else _relation(link, x, y, k)
            for y, k, column in zip(b, reads, columns, strict=True)
        ]
        for x, row in zip(a, rows, strict=True)
    ]


def _open(block: Block, tensor: str, rests: bool) -> dict[str, frozenset[str | None]]:
    return {t: frozenset(modes) for t, modes in block.open_modes(tensor, rests).items()}


def _relation(link: Link, a: Block, b: Block, reads: int) -> Relation:
    """The same between two blocks whose modes fit together."""
    if link.reader is None:
        if a.kind is Kind.ABSENT or b.kind is Kind.ABSENT:
            return Relation.FREE if a.kind is b.kind else Relation.FORBIDDEN
        if b.kind is Kind.PASSED:
            return Relation.SAME if a.node is b.node else Relation.FORBIDDEN
        return Relation.MOVES
    if a.kind is Kind.ABSENT and reads:
        return Relation.FORBIDDEN
    if a.kind is Kind.RUNS and not reads:  # its only reader does not want it
        return Relation.FORBIDDEN
    return Relation.MOVES if reads > link.number and a.kind is not Kind.GIVEN else Relation.FREE


def _bounded(tensor: str, groups: Sequence[Sized]) -> None:
    """Raises `TooLarge` for more tags than any vertex may have."""
    if prod(map(len, groups)) > MOST_TAGS:
        raise TooLarge(f"what reads {tensor!r} can be chosen in more than {MOST_TAGS} ways")


def _name(mode: Operator | None) -> str | None:
    return None if mode is None else mode.name


def _sets(tag: Tag) -> dict[str, tuple[str | None, ...]]:
    return dict(tag)
