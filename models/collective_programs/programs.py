"""Reduction programs: the language, and the device groups its instructions stand for.

    program      sequence of instructions (slice, form, collective)
    positions    0 .. n-1 of one reduction group, cut by a *tree*: level 0 is the root, level l has blocks of
                 consecutive positions
    InsideGroup  each block of level `slice`
    Parallel(e)  e an ancestor level: for each block of level e and each offset j: the j-th position of every block of
    `slice` inside it
    Master(e)    only offset 0 of Parallel(e): one group per block of level e, or only the very first
                 (`Reading.masters`)

Groups of one position are dropped, empty instructions are dropped, and instructions with the same set of groups are one
(the first in the order root to leaf, InsideGroup, Parallel, Master).  On a regular tree of two levels four remain: A
the whole group, L inside a block, P across blocks, M across the first positions.  On uneven trees (nodes with different
numbers of devices) offset j takes the blocks that have a j-th position, so the language needs no change there.

The same program runs in every reduction group: lowering maps positions to devices.

Source: P2 (MLSys 2022) section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import lcm, prod

from .collectives import (
    PAPER,
    Collective,
    CollectiveError,
    Groups,
    LoweredStep,
    MasterGroups,
    Reading,
    State,
    apply,
    final,
    initial,
    reading,
    refusal,
    rows_of,
)


class Form(Enum):
    """How the groups of an instruction are chosen."""

    INSIDE = "InsideGroup"
    PARALLEL = "Parallel"
    MASTER = "Master"


@dataclass(frozen=True)
class Tree:
    """`blocks[l]` = (start, stop) of the blocks of level l, in order; level 0 is one block of all positions; the
    last level is single positions.
    """

    blocks: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def regular(sizes: Sequence[int]) -> Tree:
        """Tree with `sizes[l]` children per block; levels of size 1 are harmless.

        >>> Tree.regular((2, 2)).blocks
        (((0, 4),), ((0, 2), (2, 4)), ((0, 1), (1, 2), (2, 3), (3, 4)))
        """
        if any(s < 1 for s in sizes):
            raise CollectiveError(f"level sizes {list(sizes)} must be positive")
        n = prod(sizes)
        out = []
        step = n
        for size in (1, *sizes):
            step //= size
            out.append(tuple((i, i + step) for i in range(0, n, step)))
        return Tree(tuple(out))

    @staticmethod
    def uneven(nodes: Sequence[int]) -> Tree:
        """Two levels, block i has `nodes[i]` positions.

        >>> Tree.uneven((2, 1)).blocks[1]
        ((0, 2), (2, 3))
        """
        if not nodes or any(s < 1 for s in nodes):
            raise CollectiveError(f"blocks of {list(nodes)} positions: every block needs at least one")
        ends = [sum(nodes[:i]) for i in range(len(nodes) + 1)]
        return Tree((((0, ends[-1]),), tuple(pairwise(ends)), tuple((i, i + 1) for i in range(ends[-1]))))

    @property
    def positions(self) -> int:
        return self.blocks[0][0][1]

    @property
    def chunks(self) -> int:
        """Least number of chunks that every ReduceScatter of an even tree can divide; on uneven trees that of each
        level and of the whole.
        """
        return lcm(self.positions, *(stop - start for level in self.blocks for start, stop in level))


@dataclass(frozen=True)
class Instruction:
    """`ancestor` is None for InsideGroup.  Levels count from 0, the root."""

    slice: int
    form: Form
    ancestor: int | None
    collective: Collective

    def __str__(self) -> str:
        where = self.form.value if self.ancestor is None else f"{self.form.value}({self.ancestor})"
        return f"({self.slice}, {where}, {self.collective.value})"


Program = tuple[Instruction, ...]


@dataclass(frozen=True)
class Pattern:
    """Instructions that differ only in the collective: a form with its groups of positions."""

    slice: int
    form: Form
    ancestor: int | None
    groups: Groups

    def instruction(self, kind: Collective) -> Instruction:
        return Instruction(self.slice, self.form, self.ancestor, kind)


def groups_of(tree: Tree, level: int, form: Form, ancestor: int | None, masters: MasterGroups) -> Groups:
    """Groups of two and more positions of one form, ordered by first position."""
    blocks = tree.blocks[level]
    if form is Form.INSIDE:
        return tuple(tuple(range(a, b)) for a, b in blocks if b - a > 1)
    if ancestor is None or not 0 <= ancestor < level:
        raise CollectiveError(f"{form.value} at level {level} needs an ancestor level 0 .. {level - 1}, not {ancestor}")
    found: list[tuple[int, ...]] = []
    for start, stop in tree.blocks[ancestor]:
        inside = [(a, b) for a, b in blocks if start <= a and b <= stop]
        offsets = max(b - a for a, b in inside) if form is Form.PARALLEL else 1
        found.extend(tuple(a + j for a, b in inside if a + j < b) for j in range(offsets))
        if form is Form.MASTER and masters is MasterGroups.GLOBAL_FIRST:
            break
    return tuple(sorted(g for g in found if len(g) > 1))


def patterns(tree: Tree, rules: Reading = PAPER) -> tuple[Pattern, ...]:
    """All different forms, root to leaf, InsideGroup, Parallel, Master.

    >>> [len(patterns(Tree.regular(s))) for s in ((2,), (4, 16), (1, 4, 1, 16), (2, 2, 2), (2, 2, 2, 2))]
    [1, 4, 4, 9, 16]
    """
    out: dict[Groups, Pattern] = {}
    last = len(tree.blocks) - 1
    for level in range(last + 1):
        forms: list[tuple[Form, int | None]] = [(Form.INSIDE, None)]
        forms += [(Form.PARALLEL, e) for e in range(level)]
        if rules.master and (rules.master_last or level < last):
            forms += [(Form.MASTER, e) for e in range(level)]
        for form, e in forms:
            groups = groups_of(tree, level, form, e, rules.masters)
            if groups:
                out.setdefault(groups, Pattern(level, form, e, groups))
    return tuple(out.values())


def label(pattern: Pattern | Instruction, tree: Tree) -> str:
    """`A`, and on trees of two levels `L`, `P`, `M` (`F`: the first block only); deeper: `I1`, `P1.0`, `M1.0`."""
    real = [i for i, level in enumerate(tree.blocks) if i == 0 or len(level) > len(tree.blocks[i - 1])]
    level = max(r for r in real if r <= pattern.slice)
    if pattern.form is Form.INSIDE and level == 0:
        return "A"
    ancestor = None if pattern.ancestor is None else real.index(max(r for r in real if r <= pattern.ancestor))
    if len(real) == 3:
        match pattern.form, real.index(level), ancestor:
            case (Form.INSIDE, 1, _) | (Form.PARALLEL, 2, 1):
                return "L"
            case Form.PARALLEL, 1, 0:
                return "P"
            case Form.MASTER, 1, 0:
                return "M"
            case Form.MASTER, 2, 1:
                return "F"
    return f"{pattern.form.value[0]}{real.index(level)}" + ("" if ancestor is None else f".{ancestor}")


def words(program: Program, tree: Tree) -> str:
    """`RS.L AR.P AG.L`."""
    return " ".join(f"{i.collective.short}.{label(i, tree)}" for i in program)


@dataclass(frozen=True)
class ReductionSystem:
    """Everything that decides which programs there are and what they do.

    `members[g][p]` = device at position p of copy g of the tree; every copy runs the same program.  `wanted`: the
    positions that must end with one another's sum, () for all of them (synthesis hierarchies that span several
    reduction groups need it).
    """

    tree: Tree
    members: tuple[tuple[int, ...], ...]
    chunks: int
    reading: str = "paper"
    wanted: Groups = ()

    @property
    def rules(self) -> Reading:
        return reading(self.reading)

    def check(self) -> ReductionSystem:
        """Self if consistent, else `CollectiveError`: a tree of nested consecutive blocks down to single positions,
        disjoint groups of its size.
        """
        _ = self.rules
        n = self.tree.positions
        if self.chunks < 1 or n < 2:
            raise CollectiveError(
                f"a reduction over {n} device(s) in {self.chunks} chunks: nothing to reduce; choose axes of at least 2"
            )
        for i, level in enumerate(self.tree.blocks):
            ends = [a for a, _ in level] + [n]
            if (
                ends[0] != 0
                or any(b != e for (_, b), e in zip(level, ends[1:], strict=True))
                or any(a >= b for a, b in level)
            ):
                raise CollectiveError(f"tree, level {i}: blocks must be consecutive and cover 0 .. {n - 1}")
            if i and not {a for a, _ in self.tree.blocks[i - 1]} <= {a for a, _ in level}:
                raise CollectiveError(f"tree, level {i}: a block crosses a border of level {i - 1}")
        if len(self.tree.blocks[0]) != 1 or len(self.tree.blocks[-1]) != n:
            raise CollectiveError("tree: level 0 must be one block and the last level single positions")
        seen: set[int] = set()
        for g, row in enumerate(self.members):
            if len(row) != n or len(set(row)) != n or seen & set(row):
                raise CollectiveError(
                    f"reduction group {g}: must list {n} different devices that are in no other group"
                )
            seen.update(row)
        if not self.members:
            raise CollectiveError("there is no reduction group")
        if self.wanted and sorted(p for part in self.wanted for p in part) != list(range(n)):
            raise CollectiveError(f"wanted sums: every position 0 .. {n - 1} must be in exactly one of the parts")
        return self

    def start(self) -> State:
        return initial(self.tree.positions, self.chunks)

    def goal(self) -> State:
        if not self.wanted:
            return final(self.tree.positions, self.chunks)
        mask = {p: sum(1 << q for q in part) for part in self.wanted for p in part}
        return tuple((((1 << self.chunks) - 1, mask[p]),) for p in range(self.tree.positions))

    def lower(self, groups: Groups, kind: Collective, before: State, after: State) -> LoweredStep:
        """One step on all devices; `rows` by the states before and after."""
        source = after if kind is Collective.ALL_GATHER else before
        rows = tuple(rows_of(source[g[0]]).bit_count() for g in groups)
        return LoweredStep(
            kind,
            tuple(tuple(row[p] for p in g) for row in self.members for g in groups),
            rows * len(self.members),
            self.chunks,
        )

    def groups(self, instruction: Instruction) -> Groups:
        """Groups of positions of an instruction.  Raises `CollectiveError` for levels that do not exist and
        collectives the reading forbids.
        """
        if not 0 <= instruction.slice < len(self.tree.blocks):
            raise CollectiveError(
                f"{instruction}: no level {instruction.slice}; levels are 0 .. {len(self.tree.blocks) - 1}"
            )
        if instruction.form is Form.INSIDE and instruction.ancestor is not None:
            raise CollectiveError(f"{instruction}: InsideGroup has no ancestor")
        groups = groups_of(self.tree, instruction.slice, instruction.form, instruction.ancestor, self.rules.masters)
        if not groups:
            raise CollectiveError(f"{instruction}: has no group of two or more positions")
        known = {
            p.groups: p for p in patterns(self.tree, self.rules)
        }  # by groups: a Master that equals a Parallel is one
        if groups not in known or instruction.collective not in self.rules.allowed_collectives(
            known[groups].form is Form.MASTER
        ):
            raise CollectiveError(f"{instruction}: the reading {self.reading!r} has no such instruction")
        return groups

    def execute(self, program: Program) -> tuple[list[State], list[LoweredStep]]:
        """States from the start on (one more than steps) and the lowered steps.  Raises `CollectiveError` at a step
        that does not apply.
        """
        states, steps = [self.start()], []
        known = {p.groups: p.form is Form.MASTER for p in patterns(self.tree, self.rules)}
        for number, instruction in enumerate(program):
            groups = self.groups(instruction)
            after = apply(states[-1], groups, instruction.collective, self.rules, known[groups])
            if after is None:
                reason = refusal(states[-1], groups, instruction.collective, self.rules, known[groups])
                raise CollectiveError(f"step {number} {instruction}: {reason}")
            steps.append(self.lower(groups, instruction.collective, states[-1], after))
            states.append(after)
        return states, steps


def fuse_all_reduces(system: ReductionSystem, program: Program) -> list[LoweredStep]:
    """Lowered steps with adjacent AllReduce steps joined where one AllReduce over the joined groups does the same (XLA
    does so).

    >>> s = ReductionSystem(Tree.regular((2, 2)), ((0, 1, 2, 3),), 4)
    >>> two = (Instruction(1, Form.INSIDE, None, Collective.ALL_REDUCE), Instruction(1, Form.PARALLEL, 0,
    ...     Collective.ALL_REDUCE))
    >>> [step.groups for step in fuse_all_reduces(s, two)]
    [((0, 1, 2, 3),)]
    """
    states, steps = system.execute(program)
    groups = [system.groups(i) for i in program]
    out: list[LoweredStep] = []
    i = 0
    while i < len(program):
        j, joined, step = i + 1, groups[i], steps[i]
        while j < len(program) and program[i].collective is program[j].collective is Collective.ALL_REDUCE:
            wider = _components(joined, groups[j])
            if apply(states[i], wider, Collective.ALL_REDUCE, system.rules) != states[j + 1]:
                break
            joined, step = wider, system.lower(wider, Collective.ALL_REDUCE, states[i], states[j + 1])
            j += 1
        out.append(step)
        i = j
    return out


def _components(a: Groups, b: Groups) -> Groups:
    parts = [set(g) for g in a]
    for g in b:
        touching = [p for p in parts if p & set(g)]
        parts = [p for p in parts if not p & set(g)] + [set(g).union(*touching)]
    return tuple(sorted(tuple(sorted(p)) for p in parts))
