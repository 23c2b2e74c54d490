"""Which choices and edges the problem over all programs of an e-graph must have, written a second time
from what they are for.

A *mode* of a class is an e-node of it, or nothing for a class that can be absent; a *program* is modes of all classes
that fit together.  Every vertex looks at some classes: those that its tags name, and its own.  The problem has every
program and all its placements among its solutions, at their cost, if

    choices   for all modes of the classes that a vertex looks at, unless no program has them, it has the choices that
              such a program has there: placements of the e-node of a class; layouts of a copy where the class is wanted
              or read twice; the layouts of its e-node where it is read once; one choice where it is not read
    edges     there is one per class and how often a reader reads it, and one into every copy
    entries   between choices that no program has together: forbidden.  Else what the program's plan costs there: the
              resharding where the reader reads the class; 0 where it does not

What is looked at beyond need is free; what is needed: all classes whose modes read a class differently often, unless it
is always read twice, or wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ...models.joint.choices import Block, Kind
from ...models.joint.egraph import EGraph
from ...models.joint.problem import JointPlanning
from ...models.program.operators import Operator

Assumed = dict[str, frozenset[str | None]]


@dataclass(frozen=True)
class ExpectedEdge:
    """An edge that there must be: `tensor`, from its copy or from its class, to its copy (no reader) or a reader's
    `number`-th reading of it.
    """

    tensor: str
    from_copy: bool
    reader: str | None
    number: int


class Programs:
    """What is known of the programs of an e-graph, from the operators alone."""

    def __init__(self, egraph: EGraph) -> None:
        self.graph = egraph.union
        self.writers: dict[str, dict[str | None, Operator | None]] = {}
        for op in egraph.operators:
            self.writers.setdefault(op.output.tensor, {})[op.name] = op
        self.replaced = {value: parameter for parameter, value in egraph.base.state}
        self.results = (set(egraph.base.outputs) | set(self.replaced)) & set(self.writers)
        self.read_by: dict[str, list[str]] = {t.name: [] for t in self.graph.tensors}
        for op in egraph.operators:
            for a in op.inputs:
                if op.output.tensor not in self.read_by[a.tensor]:
                    self.read_by[a.tensor].append(op.output.tensor)
        for t in dict.fromkeys(op.output.tensor for op in reversed(egraph.operators)):  # who reads it comes first
            if t in self.results or not self.read_by[t]:
                continue
            if all(any(self.times(r, m, t) == 0 for m in self.writers[r]) for r in self.read_by[t]):
                self.writers[t][None] = None

    def times(self, reader: str, mode: str | None, tensor: str) -> int:
        """How often a mode of a class reads a tensor."""
        op = self.writers[reader][mode]
        return 0 if op is None else [a.tensor for a in op.inputs].count(tensor)

    def no_program(self, assumed: Mapping[str, frozenset[str | None]]) -> bool:
        """Whether these modes contradict each other: what is read is absent, or what all ignore is computed."""
        for t, modes in assumed.items():
            near = [r for r in self.read_by[t] if r in assumed]
            if modes == {None} and any(min(self.times(r, m, t) for m in assumed[r]) > 0 for r in near):
                return True
            if (
                None not in modes
                and None in self.writers[t]
                and len(near) == len(self.read_by[t])
                and all(self.times(r, m, t) == 0 for r in near for m in assumed[r])
            ):
                return True
        return False

    def rests_in(self, tensor: str) -> str:
        """The tensor in whose copy it rests."""
        return self.replaced.get(tensor, tensor)

    def always_copied(self, tensor: str) -> bool:
        """Whether it has a copy in every program."""
        return tensor in self.replaced.values() or tensor in self.results

    def most_read(self, tensor: str) -> int:
        """The number of times it is read in no program more than."""
        return sum(max(self.times(r, m, tensor) for m in self.writers[r]) for r in self.read_by[tensor])

    def has_copy(self, tensor: str) -> bool:
        """Whether it has a vertex for where it rests."""
        return tensor not in self.replaced and (self.always_copied(tensor) or self.most_read(tensor) > 1)

    def wanted_edges(self) -> list[ExpectedEdge]:
        """Every edge."""
        out = []
        for t in self.read_by:
            rests = self.has_copy(self.rests_in(t))
            if t in self.writers and rests:
                out.append(ExpectedEdge(t, False, None, 0))
            if t in self.writers or rests:
                for r in self.read_by[t]:
                    most = max(self.times(r, m, t) for m in self.writers[r])
                    out.extend(ExpectedEdge(t, rests, r, k) for k in range(most))
        return out


def wrong_skeleton(planning: JointPlanning, programs: Programs) -> str:
    """Why the vertices and edges of a problem are not those of all programs; empty if they are."""
    seen = [d.tensor for d in planning.decisions if not d.rests]
    if sorted(seen) != sorted(programs.writers) or len(set(seen)) != len(seen):
        return "the class vertices are not the classes that are computed"
    copies = [d.tensor for d in planning.decisions if d.rests]
    if sorted(copies) != sorted(t for t in programs.read_by if programs.has_copy(t)):
        return "the copies are not the tensors that may have one"
    for v, d in enumerate(planning.decisions):
        if (planning.rests if d.rests else planning.classes).get(d.tensor) != v:
            return f"vertex {v} does not decide {d.name!r}"
        if wrong := _wrong_choices(programs, d.tensor, d.rests, d.blocks):
            return f"{d.name!r}: {wrong}"
    ends = []
    for w in programs.wanted_edges():
        home = programs.rests_in(w.tensor)
        ends.append(
            (
                planning.rests[home] if w.from_copy else planning.classes[w.tensor],
                planning.rests[home] if w.reader is None else planning.classes[w.reader],
                w,
            )
        )
    found = [
        (e.u, e.v, ExpectedEdge(k.tensor, k.from_rest, k.reader, k.number))
        for e, k in zip(planning.problem.edges, planning.links, strict=True)
    ]
    if len(found) != len(set(found)) or set(found) != set(ends):
        return "the edges are not what the programs move"
    return ""


def _wrong_choices(programs: Programs, tensor: str, rests: bool, blocks: Sequence[Block]) -> str:
    looked_at = {tuple(sorted(t for t, _ in b.tag)) for b in blocks}
    if len(looked_at) != 1:
        return "its tags name different classes"
    (classes,) = looked_at
    if any(t not in programs.writers for t in classes) or (not rests and tensor in classes):
        return "its tags name what has no modes"
    parts: dict[str, set[tuple[str | None, ...]]] = {t: set() for t in classes}
    for b in blocks:
        for t, modes in b.tag:
            parts[t].add(modes)
    for t, groups in parts.items():
        every = [m for g in groups for m in g]
        if len(set(every)) != len(every) or not set(every) <= set(programs.writers[t]):
            return f"its tags do not divide the modes of {t!r}"
    found = [(b.kind, None if b.node is None else b.node.name, tuple(sorted(b.tag))) for b in blocks]
    if len(set(found)) != len(found):
        return "a choice is there twice"
    expected = set(_expected(programs, tensor, rests, classes, parts))
    if set(found) != expected:
        return "it has not the choices of all programs"
    return ""


def _expected(
    programs: Programs,
    tensor: str,
    rests: bool,
    classes: tuple[str, ...],
    parts: Mapping[str, set[tuple[str | None, ...]]],
) -> Iterator[tuple[Kind, str | None, tuple[tuple[str, tuple[str | None, ...]], ...]]]:
    """Kind, e-node and tag of every block that a vertex must have, if its tags divide modes into these parts, and modes
    that are in no part are in no program with the others.
    """
    groups = []
    for t in classes:
        missing = tuple(m for m in programs.writers[t] if all(m not in g for g in parts[t]))
        groups.append([*sorted(parts[t], key=repr), *((m,) for m in missing)])
    for chosen in product(*groups):
        tag = tuple(zip(classes, chosen, strict=True))
        assumed = {t: frozenset(modes) for t, modes in tag}
        if not rests:
            for mode in programs.writers[tensor]:
                if not programs.no_program({**assumed, tensor: frozenset([mode])}):
                    yield (Kind.ABSENT if mode is None else Kind.RUNS), mode, tag
            continue
        if programs.no_program(assumed):
            continue
        counts = [
            {programs.times(r, m, tensor) for m in assumed.get(r, frozenset(programs.writers[r]))}
            for r in programs.read_by[tensor]
        ]
        least, most = sum(map(min, counts)), sum(map(max, counts))
        if programs.always_copied(tensor) or least > 1:
            yield Kind.COPY, None, tag
        elif least != most:
            yield Kind.COPY, "how often it is read is left open", tag
        elif most == 0:
            if None in programs.writers.get(tensor, {None: None}):
                yield Kind.ABSENT, None, tag
        elif tensor not in programs.writers:
            yield Kind.GIVEN, None, tag
        else:
            for mode, op in programs.writers[tensor].items():
                if op is not None and mode in assumed.get(tensor, frozenset(programs.writers[tensor])):
                    yield Kind.PASSED, mode, tag


def assumed_by(tensor: str, rests: bool, block: Block) -> Assumed:
    """Modes that a choice leaves open, for the classes that it says something of."""
    out: Assumed = {t: frozenset(modes) for t, modes in block.tag}
    if not rests or block.kind is Kind.PASSED:
        out[tensor] = frozenset([None if block.node is None else block.node.name])
    return out


def together(a: Assumed, b: Assumed) -> bool:
    """Whether some modes are left open by both."""
    return all(modes & b[t] for t, modes in a.items() if t in b)
