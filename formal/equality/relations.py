"""Finds of which tensor of the one device a tensor on the way of a rank is a part: what the proof goes along.

Numbers tell it, on the inputs that are given and on drawn ones; the checker sees it again from forms.  What the same
operator makes of the tensors that a rank's are parts of is looked at first.  Of others that have the same numbers (the
masks of two layers) one that the same operator makes is taken, and the first behind the one that was taken last.

Where ranks have their dimensions in another order (positions before the batch, as Megatron-LM does), the tensor of the
one device is turned: a permutation, which nothing reads, stands behind its steps, and the rank's tensor is a part of
what that makes.  So is a multiple, as gradients are of a loss that is a mean over the rank's own part of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from operator import eq
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.equality.captured import runs_of
from ...models.equality.pair import Given, Part, Relation, Runs
from ...models.equality.program import Described, RankProgram, Step
from .numbers import Array
from .parts import NEAR, Places, alike, greatest_of, part_elements, same_elements

Run = Mapping[int, Array]
Shape = tuple[int, ...]
Found = tuple[int, tuple[Runs, ...]]
"""A tensor of the one device, and a part of it."""
Candidates = tuple[list[Found], NDArray[np.float64], list[int]]
"""Parts; their last elements in order, and whose they are."""
Change = tuple[int, ...] | Fraction
"""An order of dimensions, or a multiple."""

MOST_PLACES: Final = 64
"""Places of one shape in another that are looked at."""
MOVES: Final = frozenset(
    {"reshape", "permute", "expand", "slice", "cat", "slice_scatter", "all_gather", "all_to_all", "broadcast"}
)
"""Operators that make other arrangements: what is made of those is likelier the same tensor of the one device."""
MOST_MULTIPLE: Final = 64
"""Numerator and denominator of a multiple: ranks that share a batch, times micro-batches."""
TURNS: Final[Mapping[int, tuple[tuple[int, ...], ...]]] = {
    3: ((1, 0, 2),),
    4: ((2, 0, 1, 3), (1, 0, 2, 3), (0, 2, 1, 3)),
}
"""Orders of dimensions that are looked at: positions before the batch, of tensors with heads too."""


@dataclass(frozen=True)
class Sought:
    """What is known of a rank's tensor: what makes it, tensors of the one device that the same makes of the tensors
    that those it is made of are parts of, the one that was found last, where those that it is made of lie, in which
    tensors of the one device it may lie if it is another arrangement of them, and which it has as operands of several.
    """

    operator: str
    mirrored: Sequence[int]
    last: int
    places: Places
    beside: Sequence[tuple[Runs, ...]]
    of: Collection[int]
    operands: Collection[int]

    def agrees(self, place: tuple[Runs, ...]) -> int:
        """In how many dimensions a place is that of what it is made of."""
        alike = (sum(map(eq, place, other)) for other in self.beside if len(other) == len(place))
        return max(alike, default=0)


@dataclass
class Relations:
    """`runs`: of the one device, the tensors of every run by number."""

    single: RankProgram
    runs: Sequence[Run]
    _corners: dict[tuple[int, Shape], Candidates] = field(default_factory=dict)
    _shapes: dict[Shape, list[int]] = field(default_factory=dict)
    _blocks: dict[tuple[int, Shape, Shape], list[tuple[Runs, ...]]] = field(default_factory=dict)
    _made: dict[int, str] = field(default_factory=dict)
    _mirrored: dict[tuple[str, int, tuple[int, ...]], list[int]] = field(default_factory=dict)
    _moves: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _fixed: set[int] = field(default_factory=set)
    _behind: dict[tuple[int, Change], int] = field(default_factory=dict)

    def is_multiple(self, relation: Relation) -> bool:
        """Whether it is one to a multiple of a tensor of the one device."""
        return any(k == relation.whole and isinstance(change, Fraction) for (_, change), k in self._behind.items())

    def of(
        self, rank: int, program: RankProgram, given: Mapping[int, Given], runs: Sequence[Run], places: Places
    ) -> tuple[Relation, ...]:
        """Relations of a rank's tensors, which have these values in the same runs; of what it is given it is known."""
        if not self._made:
            self._look()
        sources = {s.name: s.number for s in self.single.sources}
        wholes = {n: sources[g.of] for n, g in given.items() if isinstance(g, Part)}
        lie = {n: g.runs for n, g in given.items() if isinstance(g, Part)}
        found, last, behind = list[Relation](), -1, dict[int, set[int]]()
        for step in program.steps:
            beside = [lie[i] for i in step.reads if i in lie]
            of = set[int]().union(*(self._moved(wholes.get(i, -1)) | behind.get(i, set()) for i in step.reads))
            behind.update(dict.fromkeys(step.makes, of if step.operator in MOVES else set()))
            of -= {-1}
            operands = {wholes[i] for i in step.reads if i in wholes} if len(step.reads) > 1 else set[int]()
            of -= set() if step.operator in MOVES else operands
            for which, number in enumerate(step.makes):
                mine = [run[number] for run in runs]
                if mine[0].size <= 1 or bool(np.all(mine[0] == mine[0].flat[0])):
                    continue
                mirrored = self._mirrored.get((step.operator, which, tuple(wholes.get(i, -1) for i in step.reads)), ())
                sought = Sought(step.operator, mirrored, last, places, beside, of, operands)
                if (part := self._part(mine, sought)) is not None:
                    wholes[number], lie[number] = part
                    last = last if part[0] in self._fixed else part[0]
                    found.append(Relation(number, *part))
                    continue
                for change, one in self._changed(mine, sought):
                    part = self._part(one, sought)
                    if part is not None and (isinstance(change, tuple) or self._real(part[0])):
                        last = wholes[number] = part[0]
                        found.append(self._relation(number, part, change))
                        lie[number] = found[-1].runs
                        break
        return tuple(found)

    def _moved(self, whole: int) -> set[int]:
        """A tensor of the one device, and those of which it is another arrangement."""
        found = {whole}
        while len(reads := self._moves.get(whole, ())) == 1:
            (whole,) = reads
            found.add(whole)
        return found

    def _changed(self, mine: Sequence[Array], sought: Sought) -> Iterator[tuple[Change, list[Array]]]:
        """The step that makes a rank's tensor of a part of one of the one device, and what that part would be."""
        for turn in TURNS.get(mine[0].ndim, ()):
            back = tuple(turn.index(d) for d in range(len(turn)))
            yield turn, [m.transpose(back) for m in mine]
        if not np.issubdtype(mine[0].dtype, np.floating):
            return
        ranks = sought.places.ranks
        factors = [Fraction(n) for n in range(2, ranks + 1) if ranks % n == 0]
        at = int(np.argmax(np.abs(mine[0])))
        for whole in sought.mirrored:
            for place in self._places(mine[0], whole, sought.places):
                there = float(part_elements(self.runs[0][whole], Part("", place)).reshape(-1)[at])
                quotient = float(mine[0].reshape(-1)[at]) / there if there else 0.0
                if np.isfinite(quotient) and (near := Fraction(quotient).limit_denominator(MOST_MULTIPLE)) > 0:
                    factors += [near] * (abs(float(near) - quotient) <= NEAR * quotient and near <= MOST_MULTIPLE)
        for factor in dict.fromkeys(factors):
            if factor != 1:
                yield factor, [m.astype(np.float64) / float(factor) for m in mine]

    def _real(self, whole: int) -> bool:
        """Whether a tensor of the one device is one of real numbers: a multiple of others need not be one."""
        return self.single.tensors[whole].dtype.startswith(("float", "bfloat"))

    def _relation(self, number: int, part: Found, change: Change) -> Relation:
        changed = self._behind.setdefault((part[0], change), len(self.single.tensors) + len(self._behind))
        runs = tuple(part[1][d] for d in change) if isinstance(change, tuple) else part[1]
        return Relation(number, changed, runs)

    def _part(self, mine: Sequence[Array], sought: Sought) -> Found | None:
        """Of which tensor of the one device these are a part: of mirrored ones, or the first behind the last; of places
        with the same numbers, as masks have, the one where the tensors lie of which it is made.
        """
        mirrored = [(n, p) for n in sought.mirrored for p in self._places(mine[0], n, sought.places)]
        part = self._first(mine, sorted(mirrored, key=lambda found: -sought.agrees(found[1])))
        if part is None:
            last, of = sought.last, sought.of

            def likely(found: Found) -> tuple[bool, bool, bool, bool, int, int]:
                whole, place = found
                return (
                    whole not in of,
                    whole in sought.operands,  # where(p, x, 0) is x where p is always true
                    self._made[whole] != sought.operator,
                    whole <= last,
                    whole,
                    -sought.agrees(place),
                )

            part = self._first(mine, sorted(self._near(mine[0], sought.places), key=likely))
        return part

    def place(self, mine: Sequence[Array], whole: int, places: Places) -> tuple[Runs, ...] | None:
        """Where a rank's tensor lies in one of the one device."""
        if whole >= len(self.single.tensors):
            return None
        part = self._first(mine, [(whole, p) for p in self._places(mine[0], whole, places)])
        return None if part is None else part[1]

    def single_with_changed(self) -> RankProgram:
        """The program of the one device with what was turned or multiplied behind its steps."""
        single, steps, tensors = self.single, list[Step](), list[Described]()
        for (n, change), k in self._behind.items():
            was = single.tensors[n]
            if isinstance(change, tuple):
                steps.append(Step("permute", (n,), (k,), (("dims", change),)))
                tensors.append(Described(tuple(was.shape[d] for d in change), was.dtype))
            else:
                steps.append(Step("mul", (n,), (k,), (("number", float(change)),)))
                tensors.append(was)
        return replace(single, steps=(*single.steps, *steps), tensors=(*single.tensors, *tensors))

    def is_part(self, array: Array, places: Places) -> bool:
        """Whether an array is a tensor that the one device makes or is given, in the first run, or a rank's part."""
        if not self._shapes:
            self._look()
        return array.size > 0 and self._first([array], self._near(array, places)) is not None

    def _look(self) -> None:
        """Writes down what makes the tensors of the one device, and of what; what it is given may be sent, too.  What
        the same operator makes of the same tensors, as the masks of all layers are made, is looked at once.  What
        is made of no input (positions) is `_fixed`: it does not say how far a rank has come.
        """
        firsts, seen = dict[int, int](), dict[tuple[object, ...], int]()
        for source in self.single.sources:
            self._made[source.number] = ""
            if source.kind == "constant":
                self._fixed.add(source.number)
            self._shapes.setdefault(self.runs[0][source.number].shape, []).append(source.number)
        for step in self.single.steps:
            for which, n in enumerate(step.makes):
                self._made[n] = step.operator
                if self._fixed.issuperset(step.reads):
                    self._fixed.add(n)
                if step.operator in MOVES:
                    self._moves[n] = step.reads
                reads = tuple(firsts.get(i, i) for i in step.reads)
                firsts[n] = seen.setdefault((step.operator, step.words, reads, which), n)
                if firsts[n] == n:
                    self._shapes.setdefault(self.runs[0][n].shape, []).append(n)
                self._mirrored.setdefault((step.operator, which, step.reads), []).append(n)

    def _first(self, mine: Sequence[Array], parts: Sequence[tuple[int, tuple[Runs, ...]]]) -> Found | None:
        """The first of these parts that has the same numbers in all runs, each beside itself; else beside the greatest,
        which where masks put -1e30 are all numbers there are.
        """
        near: Found | None = None
        for whole, place in parts:
            theirs = [part_elements(run[whole], Part(str(whole), place)) for run in self.runs]
            if not all(map(alike, mine, theirs)):
                continue
            if all(map(same_elements, mine, theirs)):
                return whole, place
            near = near or (whole, place)
        return near

    def _places(self, mine: Array, whole: int, places: Places) -> list[tuple[Runs, ...]]:
        there = self.runs[0][whole].shape
        key = places.rank, mine.shape, there
        if key not in self._blocks:
            self._blocks[key] = _places(mine.shape, there, places)
        return self._blocks[key]

    def _near(self, mine: Array, places: Places) -> list[Found]:
        """Parts of tensors whose last element is that of a rank's tensor, those in a rank's usual places first: the
        first element is often one number in all, such as the 1 of a first position that looks at itself alone.
        """
        key = places.rank, mine.shape
        if key not in self._corners:
            self._corners[key] = self._candidates(mine.shape, places)
        parts, corners, order = self._corners[key]
        last, most = float(mine.reshape(-1)[-1]), greatest_of(mine.astype(np.float64, copy=False))
        low, high = np.searchsorted(corners, [last - NEAR * most, last + NEAR * most], "left")
        while high < len(corners) and corners[high] <= last + NEAR * most:
            high += 1
        return [parts[k] for k in sorted(order[low:high])]

    def _candidates(self, shape: Shape, places: Places) -> Candidates:
        """Parts of this shape, and the order of their last elements, without those that are no number there."""
        parts, lasts = list[Found](), list[float]()
        for whole, numbers in self._shapes.items():
            for place in _places(shape, whole, places):
                at = tuple(runs[-1][1] + runs[-1][2] - 1 for runs in place)
                parts += [(n, place) for n in numbers]
                lasts += [float(self.runs[0][n][at]) for n in numbers]
        corners = np.asarray(lasts, np.float64)
        order = [int(k) for k in np.argsort(corners, kind="stable") if not np.isnan(corners[k])]
        return parts, corners[order], order


def _places(shape: Sequence[int], whole: Sequence[int], places: Places) -> list[tuple[Runs, ...]]:
    """Where a rank may have a part of this shape: in its block, or in rows as it has of other tensors."""
    if len(whole) != len(shape) or not all(shape) or any(n > m for n, m in zip(shape, whole, strict=True)):
        return []
    choices = list[list[Runs]]()
    for n, m in zip(shape, whole, strict=True):
        if n == m:
            choices.append([((0, 0, n),)])
            continue
        rows = [r for r in sorted(places.rows) if sum(k for _, _, k in r) == n and max(t + k for _, t, k in r) <= m]
        known = m % n == 0 or (n, m) in places.firsts
        firsts = dict.fromkeys(
            [*([places.first(n, m)] if known else []), *places.within(n, m), *places.on_meshes(n, m)]
        )
        every = range(places.rank, m, places.ranks)
        rows += [runs_of(every)] if 1 < n == len(every) else []
        blocks = [((0, first, n),) for first in firsts]  # first: masks of every other row have the same numbers
        others = [r for r in places.others.get((n, 0), ()) if max(t + k for _, t, k in r) <= m]
        choices.append(list(dict.fromkeys([*blocks, *rows, *places.others.get((n, m), ()), *others])))
    return [place for place, _ in zip(product(*choices), range(MOST_PLACES), strict=False)]
