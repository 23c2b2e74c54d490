"""Fusion: map and normalise operators on one iteration box become one instruction.

A chain  v_1 = f_1(..), v_2 = f_2(v_1, ..), ..  is fused when, on every rank,

    same box       the output boxes of all members are equal, dimension by dimension
    pointwise      a member reads an earlier member's value at the index it writes itself (no transpose, window,
                   broadcast)
    beside         a map that reads none is a member, too, where a later one reads it:  (a + b) + (c + d)
    no traffic     nothing moves between ranks in between: reshardings inside the chain have no steps and cut
                   nothing off, and no member all-reduces statistics
    whole          the axes a normalise operator takes statistics over are whole in the box (softmax, layer norm with
                   epilogue)

Loads and step-less reshardings of other operands go before the loop, frees behind it.  Values that nobody else
reads are never stored.  The decision is one for all ranks, so the collectives of the program stay in the same order
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .program import Compute, Finish, Free, Fused, Instruction, Load, Move, Program, Start

_WORTHWHILE = 6
"""Operations per point from which a single operator has temporaries worth keeping in cache."""


def fuse(program: Program, kind: type[Chain] | None = None) -> Program:
    """The same program with chains fused: same inputs, outputs and reshardings.  `kind`: which chains, these by
    default.

    >>> from ...models.sources.building.builder import Builder
    >>> from ...models.communication.choices import Choices
    >>> from ...models.layout.placement import Placement
    >>> from .program import lower
    >>> g = Builder("g")
    >>> y = g.map("y", "relu", g.map("s", "add", g.input("a", (4,)), g.input("b", (4,))))
    >>> all_of_it = Placement(("i0",), ((1,), (1,)))
    >>> one = lower(g.build(y), (1,), Choices((("s", all_of_it), ("y", all_of_it)), (("y", Placement(("0",), ((1,),
    ...     (1,)))),)))
    >>> [type(i).__name__ for i in fuse(one).ranks[0]]
    ['Load', 'Load', 'Fused', 'Free', 'Free']
    """
    ranks = [list(r) for r in program.ranks]
    lead = ranks[0]
    out: list[list[Instruction]] = [[] for _ in ranks]
    at = 0
    while at < len(lead):
        found = (kind or Chain)(program, ranks, at).grow() if isinstance(lead[at], Compute) else None
        if found is None:
            for written, given in zip(out, ranks, strict=True):
                written.append(given[at])
            at += 1
            continue
        for rank, written in enumerate(out):
            written.extend(found.instructions(rank))
        at = found.end
    fused = replace(program, ranks=tuple(tuple(r) for r in out))
    return replace(fused, ranks=_reusing(fused))


@dataclass
class Link:
    """A slot inside a chain that stands for a member's value."""

    member: int
    alive: bool = True


class Chain:
    """A chain that starts at instruction `start`; `end`: one past the last instruction it absorbs."""

    def __init__(self, program: Program, ranks: list[list[Instruction]], start: int) -> None:
        self.program, self.ranks, self.end = program, ranks, start + 1
        self.members = [start]
        self.beside: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        first = ranks[0][start]
        self.links = {first.slot: Link(0)} if isinstance(first, Compute) else {}

    def operator(self, at: int) -> Operator:
        step = self.ranks[0][at]
        if not isinstance(step, Compute):
            raise TypeError(f"instruction {at} computes nothing")
        return self.program.graph.operators[step.operator]

    def grow(self) -> Chain | None:
        """The chain with every member it can have, or None where there is nothing to gain."""
        start = self.members[0]
        if not self._fusible(start):
            return None
        lead, at = self.ranks[0], start + 1
        before, after = list[int](), list[int]()
        links = dict(self.links)
        while at < len(lead):
            match lead[at]:
                case Compute(slot=slot) if self._stands_beside(at, links):
                    links[slot] = Link(len(self.members) + len(self.beside))
                    self.beside.append(at)
                case Compute(slot=slot) if self._joins(at, links):
                    links[slot] = Link(len(self.members) + len(self.beside))
                    self.members += [*self.beside, at]
                    self.beside.clear()
                    self.before, self.after, self.end = list(before), list(after), at + 1
                    self.links = {slot: replace(link) for slot, link in links.items()}
                case Load():
                    before.append(at)
                case Move(source=source, target=target, movement=n) if not self.program.movements[n].plan.steps:
                    if source not in links:
                        before.append(at)
                    elif self._cuts(n):
                        break
                    else:
                        links[target] = replace(links[source])
                case Free(slot=slot):
                    if slot not in links:
                        after.append(at)
                    else:
                        links[slot] = replace(links[slot], alive=False)
                case _:
                    break
            at += 1
        self._finish()
        return self if self._is_worth_it() else None

    def _is_worth_it(self) -> bool:
        return len(self.members) > 1 or self.operator(self.members[0]).spec.flops >= _WORTHWHILE

    def _finish(self) -> None:
        """Absorb what follows the last member and only renames or forgets values of the chain."""
        lead = self.ranks[0]
        while self.end < len(lead):
            match lead[self.end]:
                case Free(slot=slot) if slot in self.links and self.links[slot].alive:
                    self.links[slot].alive = False
                case Free(slot=slot) if slot not in self.links:
                    self.after.append(self.end)
                case Move(source=source, target=target, movement=n) if (
                    source in self.links
                    and self.links[source].alive
                    and not self.program.movements[n].plan.steps
                    and not self._cuts(n)
                ):
                    self.links[target] = Link(self.links[source].member)
                case _:
                    break
            self.end += 1

    def _cuts(self, movement: int) -> bool:
        plan = self.program.movements[movement].plan
        return bool((plan.source.boxes != plan.target.boxes).any())

    def _fusible(self, at: int) -> bool:
        op = self.operator(at)
        if op.kind not in (NodeKind.MAP, NodeKind.NORMALISE) or {a.name for a in op.axes} != set(op.output.axes):
            return False
        for rank in self.ranks:
            step = rank[at]
            if not isinstance(step, Compute) or step.statistics:
                return False
            box = dict(zip((a.name for a in op.axes), step.box, strict=True))
            if any(box[a] != (0, op.axis(a).extent) for a in op.over if op.kind is NodeKind.NORMALISE):
                return False
        return True

    def _stands_beside(self, at: int, links: dict[str, Link]) -> bool:
        """Whether the map there reads no value of the chain, and computes on the chain's box."""
        step = self.ranks[0][at]
        if not isinstance(step, Compute) or any(slot in links for slot, _ in step.operands):
            return False
        maps = all(self.operator(k).kind is NodeKind.MAP for k in (at, self.members[0]))
        return maps and self._fusible(at) and self._on_the_box(at)

    def _on_the_box(self, at: int) -> bool:
        first = self.members[0]
        return all(
            output_box(self.program.graph, r[at]) == output_box(self.program.graph, r[first]) for r in self.ranks
        )

    def _joins(self, at: int, links: dict[str, Link]) -> bool:
        """Whether the operator there reads a value of the chain, and all such values pointwise, on the chain's box."""
        if not self._fusible(at):
            return False
        op, step = self.operator(at), self.ranks[0][at]
        if not isinstance(step, Compute):
            return False
        reads = [j for j, (slot, _) in enumerate(step.operands) if slot in links and links[slot].alive]
        if not reads or any(not pointwise(op, j) for j in reads):
            return False
        return self._on_the_box(at)

    def instructions(self, rank: int) -> list[Instruction]:
        """What replaces instructions members[0] .. end of a rank."""
        given = self.ranks[rank]
        members = tuple(step for at in self.members if isinstance(step := given[at], Compute))
        number = {slot: link.member for slot, link in self.links.items()}
        read = {slot for m in members for slot, _ in m.operands}
        links = tuple((slot, k) for slot, k in number.items() if slot in read)
        results = tuple((slot, link.member) for slot, link in self.links.items() if link.alive)
        return [*(given[at] for at in self.before), Fused(members, links, results), *(given[at] for at in self.after)]


def pointwise(op: Operator, position: int) -> bool:
    """Whether the operator reads this input at the index it writes: dimension k is output axis k."""
    return tuple(i.single for i in op.inputs[position].index) == op.output.axes


def output_box(graph: Graph, step: Instruction) -> tuple[tuple[int, int], ...]:
    """Box of the output that a Compute writes."""
    if not isinstance(step, Compute):
        raise TypeError("only a Compute has a box")
    op = graph.operators[step.operator]
    box = dict(zip((a.name for a in op.axes), step.box, strict=True))
    return tuple(box[a] for a in op.output.axes)


def _reusing(program: Program) -> tuple[tuple[Instruction, ...], ...]:
    """Every Fused with one result and one real operand that only it reads, with that operand marked.

    A value belongs to a rank alone when a Compute or a Fused made it; it has one reader when, over all slots that
    step-less reshardings give it, one instruction of the program reads it.  Values that any collective sends, and
    outputs, are thus never overwritten.
    """
    lead = program.ranks[0]
    owned: dict[str, str] = {}  # slot -> the slot under which its value was made
    part: set[str] = set()  # slots that show a part of their value
    readers: dict[str, int] = {}

    def read(slot: str, times: int = 1) -> None:
        if slot in owned:
            readers[owned[slot]] = readers.get(owned[slot], 0) + times

    for step in lead:  # slots are filled once in a program
        match step:
            case Compute(slot=slot, operands=operands):
                for name in {slot for slot, _ in operands}:
                    read(name)
                owned[slot] = slot
            case Fused(members=members, results=results):
                for name in {owned.get(slot, slot) for m in members for slot, _ in m.operands}:
                    read(name)
                if len({k for _, k in results}) == 1:
                    owned.update({slot: results[0][0] for slot, _ in results})
            case Move(source=source, target=target, movement=n):
                if program.movements[n].plan.steps:
                    read(source, 2)
                elif source in owned:
                    owned[target] = owned[source]
                    if source in part or _shrinks(program, n):
                        part.add(target)
            case Start(source=source):
                read(source, 2)
            case Load() | Free() | Finish():
                pass
    for tensor, _ in program.outputs:
        read(tensor, 2)
    single = {slot for slot, name in owned.items() if slot not in part and readers.get(name) == 1}
    spare = {
        at: found
        for at, step in enumerate(lead)
        if isinstance(step, Fused) and (found := _spare(program, step, owned, single)) is not None
    }
    return tuple(
        tuple(
            replace(step, reuse=spare[at]) if at in spare and isinstance(step, Fused) else step
            for at, step in enumerate(rank)
        )
        for rank in program.ranks
    )


def _shrinks(program: Program, movement: int) -> bool:
    plan = program.movements[movement].plan
    return bool((plan.source.boxes != plan.target.boxes).any())


def _spare(program: Program, step: Fused, owned: dict[str, str], single: set[str]) -> str | None:
    """An operand in `single` that every member reads at the point it writes."""
    reduced = any(program.graph.operators[m.operator].kind is NodeKind.REDUCE for m in step.members)
    if reduced or len({k for _, k in step.results}) != 1:  # a row is read again behind its reduction
        return None
    fine: dict[str, bool] = {}
    for member in step.members:
        op = program.graph.operators[member.operator]
        for j, (slot, _) in enumerate(member.operands):
            name = owned.get(slot, slot)
            fine[name] = fine.get(name, True) and slot in single and pointwise(op, j) and op.kind is NodeKind.MAP
    return next((slot for m in step.members for slot, _ in m.operands if fine[owned.get(slot, slot)]), None)
