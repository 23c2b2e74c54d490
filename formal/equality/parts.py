"""Finds in which part of a whole tensor a rank's tensor lies, from shapes and values.

A block of the whole at the place where shapes let it lie; else, along one dimension, rows that are found one by one
(interleaved, zigzag).  Tensors in which nothing tells rows apart (zeros, ones) lie where the others of this rank that
are split into as many parts lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...models.equality.captured import runs_of
from ...models.equality.pair import Part, Runs
from ...models.equality.program import RankProgram

Array = NDArray[np.generic]
NEAR = 1e-6
"""Differences between tensors that are the same, as a part of their greatest element."""


ROUNDINGS = 100.0
"""How often a difference that one drawing of roundings makes may be between two programs."""


def alike(a: Array, b: Array, near: float = NEAR) -> bool:
    """Whether two arrays are the same up to rounding.

    >>> alike(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-9]))
    True
    """
    if a.shape != b.shape:
        return False
    if not a.size:
        return True
    x, y = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    most = float(np.abs(y).max())
    if most < np.inf:  # all finite, which is usual; what is no number is not less
        with np.errstate(invalid="ignore"):
            return bool(np.abs(x - y).max() <= near * most)
    good = np.isfinite(y)
    if not np.array_equal(good, np.isfinite(x)):
        return False
    most = float(np.max(np.abs(y[good]), initial=0.0))
    return bool(np.all(np.abs(x[good] - y[good]) <= near * most))


def same_elements(a: Array, b: Array) -> bool:
    """Whether one array is what a rank was given of another: whole numbers exactly, others up to rounding, each beside
    itself and beside what is usual there, at most 1: a mask's greatest finite number is no measure of the rest.

    >>> mask = np.finfo(np.float32).min
    >>> [f(np.array([0.5, mask]), np.array([0.25, mask])) for f in (same_elements, alike)]
    [False, True]
    >>> same_elements(np.array([np.inf, 1.0]), np.array([-np.inf, 1.0]))
    False
    """
    if not alike(a, b):
        return False
    if not (np.issubdtype(a.dtype, np.floating) and np.issubdtype(b.dtype, np.floating)):
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    good = np.isfinite(y)
    if not np.array_equal(x[~good], y[~good], equal_nan=True):
        return False
    size = np.abs(y[good])
    usual = min(1.0, float(np.median(size))) if size.size else 0.0
    return bool(np.all(np.abs(x[good] - y[good]) <= NEAR * np.maximum(size, usual)))


def rounded_alike(a: Array, b: Array, small: float, *runs: tuple[Array, Array]) -> bool:
    """Whether two finite arrays are no further apart than rounding makes them: of `runs`, arrays as they are and with
    every step rounded anew.  What rounding makes of one must be `small`: where it decides a condition, it is not.

    >>> zero, other = np.array([1e-17]), np.array([-2e-17])
    >>> [rounded_alike(zero, np.array([x]), 1e-6, (zero, other)) for x in (2e-17, 1e-9)]
    [True, False]
    """
    if a.shape != b.shape or not np.issubdtype(a.dtype, np.floating) or not np.issubdtype(b.dtype, np.floating):
        return False
    if not all(np.isfinite(x).all() for x in (a, b, *(r for run in runs for r in run))):
        return False
    x, y = a.astype(np.float64), b.astype(np.float64)
    moved = [one.astype(np.float64) - two.astype(np.float64) for one, two in runs]
    apart = sum(float(np.max(np.abs(m), initial=0.0)) for m in moved)
    return apart <= small and float(np.max(np.abs(x - y), initial=0.0)) <= ROUNDINGS * apart


def greatest(arrays: Iterable[Array]) -> float:
    """The greatest finite absolute value of numbers that are not whole by type."""
    return max((greatest_of(a) for a in arrays if np.issubdtype(a.dtype, np.floating)), default=0.0)


def greatest_of(x: Array) -> float:
    """The greatest finite absolute value."""
    return float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))


MOST_OTHERS = 8
"""Places where ranks have parts of one kind, that each looks at for what it receives."""


class Places:
    """What is learnt of a rank: which part it has of tensors that fall into so many."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.known: dict[int, int] = {}
        self.seen: dict[int, set[int]] = {}
        self.firsts: dict[tuple[int, int], set[int]] = {}
        self.rows = set[Runs]()
        self.cuts: dict[tuple[int, int], set[int]] = {}
        self.others: dict[tuple[int, int], tuple[Runs, ...]] = {}

    def part_number(self, parts: int) -> int:
        """Which of so many parts this rank has, as far as is known."""
        return self.known.get(parts, self.rank % parts if parts > 0 else 0)

    def first(self, n: int, m: int) -> int:
        """Where a block of n of m positions begins on this rank, as far as is known: as that of an input does."""
        usual = self.part_number(-(-m // n)) * n
        learnt = self.firsts.get((n, m), {usual})
        return usual if usual in learnt else min(learnt)

    def within(self, n: int, m: int) -> list[int]:
        """Where else it may begin: as micro-batches do, block by block inside what an input has of m positions, or as
        any rank cuts its inputs, and ranks of a mesh what was cut.
        """
        wide = [(k, first) for (k, of), firsts in sorted(self.firsts.items()) for first in sorted(firsts) if of == m]
        inside = [first + j for k, first in wide if k > n and k % n == 0 for j in range(0, k, n)]
        batch = max((k for k, of in self.cuts if of == m and k > n and k % n == 0), default=0)
        spread = [first + j for first in sorted(self.cuts.get((batch, m), ())) for j in self.on_meshes(n, batch)]
        return [*spread, *inside, *sorted(self.cuts.get((n, m), ()))]

    def on_meshes(self, n: int, m: int) -> list[int]:
        """Where it may begin on a mesh of several dimensions, of which one splits m positions into blocks of n."""
        if n <= 0 or m % n or self.ranks % (parts := m // n):
            return []
        strides = (k for k in range(1, self.ranks // parts + 1) if self.ranks // parts % k == 0)
        return [self.rank // k % parts * n for k in strides]

    def learn_cuts(self, program: RankProgram) -> None:
        """Keep in mind where a program, of this rank or of another stage, cuts its inputs: into micro-batches."""
        begins = {s.number: (0,) * len(program.tensors[s.number].shape) for s in program.sources if s.kind == "input"}
        sizes = {n: program.tensors[n].shape for n in begins}
        for step in program.steps:
            if step.operator != "slice" or step.reads[0] not in begins or step.word("step") != 1:
                continue
            dim, first, end = step.word("dim"), step.word("start"), step.word("stop")
            if isinstance(dim, int) and isinstance(first, int) and isinstance(end, int):
                before, whole = begins[step.reads[0]], sizes[step.reads[0]]
                begins[step.makes[0]] = (*before[:dim], before[dim] + first, *before[dim + 1 :])
                sizes[step.makes[0]] = whole
                self.cuts.setdefault((end - first, whole[dim]), set()).add(before[dim] + first)

    def learn(self, shape: Sequence[int], whole: Sequence[int], place: tuple[Runs, ...]) -> None:
        """Keep in mind a place that values have told."""
        for n, m, runs in zip(shape, whole, place, strict=True):
            if n and n < m and len(runs) == 1:
                self.firsts.setdefault((n, m), set()).add(runs[0][1])
            if n and n < m and m % n == 0 and len(runs) == 1 and runs[0][1] % n == 0:
                self.known.setdefault(m // n, runs[0][1] // n)
                self.seen.setdefault(m // n, set()).add(runs[0][1] // n)
            elif len(runs) > 1:
                self.rows.add(runs)

    def has(self) -> dict[tuple[int, int], set[Runs]]:
        """Where this rank has parts of n of m positions, or rows of n positions (m 0)."""
        found: dict[tuple[int, int], set[Runs]] = {
            (n, m): {((0, first, n),) for first in firsts} for (n, m), firsts in self.firsts.items()
        }
        for runs in self.rows:
            found.setdefault((sum(many for _, _, many in runs), 0), set()).add(runs)
        return found

    def usual(self, shape: Sequence[int], whole: Sequence[int], place: tuple[Runs, ...], ruled: Sequence[bool]) -> bool:
        """Whether a result may lie there: as an input does, or in the block of this rank; of a `ruled` dimension
        wherever it lies.
        """
        for n, m, runs, free in zip(shape, whole, place, ruled, strict=True):
            if free:
                continue
            if len(runs) > 1 and runs not in self.rows:
                return False
            if len(runs) == 1 and 0 < n < m:
                parts = -(-m // n)
                usual = {k * n for k in {self.part_number(parts), *self.seen.get(parts, ())}}
                if runs[0][1] not in usual | self.firsts.get((n, m), set()):
                    return False
        return True

    def is_known(self, n: int, m: int) -> bool:
        """Whether an input says where n of m positions lie."""
        return (n, m) in self.firsts or (n > 0 and -(-m // n) in self.seen)

    def by_rules(self, n: int, m: int) -> dict[str, int]:
        """Where a block of n of m positions begins on this rank by every rule that cuts them for all ranks: `chunk`'s,
        `tensor_split`'s, or that of a dimension of a mesh, whose neighbours are `stride` ranks apart.  None where an
        input that is cut so says it.

        >>> Places(1, 2).by_rules(3, 7), Places(2, 4).by_rules(4, 8)
        ({'chunk': 4, 'split': 4}, {'stride 1': 0, 'stride 2': 4})
        """
        if not n or self.is_known(n, m):
            return {}
        chunk, (least, more) = -(-m // self.ranks), divmod(m, self.ranks)
        first = self.rank * least + min(self.rank, more)
        found = {"chunk": self.rank * chunk} if n == min(chunk, m - self.rank * chunk) else {}
        if n == least + (self.rank < more):
            found["split"] = first
        if m % n == 0 and self.ranks % (parts := m // n) == 0:
            strides = [k for k in range(1, self.ranks // parts + 1) if self.ranks // parts % k == 0]
            found |= {f"stride {k}": self.rank // k % parts * n for k in strides}
        return found

    def find(self, a: Array, whole: Array) -> tuple[tuple[Runs, ...], bool] | None:
        """The place of `a` in `whole`, and whether values alone tell it; None if it is no part."""
        if a.ndim != whole.ndim or any(n > m for n, m in zip(a.shape, whole.shape, strict=True)):
            return None
        blocks = [
            place
            for place in self._offsets(a.shape, whole.shape, _first_near(a, whole))
            if same_elements(a, whole[_block(place, a.shape)])
        ]
        if blocks:
            best = blocks[0]
            return tuple(((0, first, n),) for first, n in zip(best, a.shape, strict=True)), len(blocks) == 1
        for dim in range(a.ndim):
            if any(n != m for d, (n, m) in enumerate(zip(a.shape, whole.shape, strict=True)) if d != dim):
                continue
            mine, there = np.moveaxis(a, dim, 0), np.moveaxis(whole, dim, 0)
            every = range(self.rank, len(there), self.ranks)
            if len(every) == len(mine) and same_elements(mine, there[self.rank :: self.ranks]):
                runs: Runs | None = runs_of(
                    every
                )  # rows that are equal, as those of zeros, lie where one rule puts them
            else:
                runs = _rows(mine, there)
            if runs is not None:
                place: list[Runs] = [((0, 0, n),) for n in a.shape]
                place[dim] = runs
                return tuple(place), True
        return None

    def _offsets(
        self, shape: Sequence[int], whole: Sequence[int], near: NDArray[np.bool_] | None
    ) -> Iterator[tuple[int, ...]]:
        """First positions where a block may lie, the expected one first; `near`: those where its first element may be,
        which are few, so that nothing is done for each of the others.
        """
        usual = [0 if n == m or not n else self.first(n, m) for n, m in zip(shape, whole, strict=True)]
        if near is None:
            sizes = [1 if n == m or not n else m - n + 1 for n, m in zip(shape, whole, strict=True)]
            yield from product(
                *(
                    [*range(u, min(u + 1, k)), *(x for x in range(k) if x != u)]
                    for k, u in zip(sizes, usual, strict=True)
                )
            )
            return
        there = near[tuple(slice(0, m - n + 1) for n, m in zip(shape, whole, strict=True))]
        found = [tuple(int(k) for k in place) for place in np.argwhere(there)]
        yield from sorted(found, key=lambda place: [(k != u, k) for k, u in zip(place, usual, strict=True)])


Found = tuple[tuple[Runs, ...], Sequence[int], Sequence[int]]
"""Where values tell that a tensor lies, its shape, and that of the whole."""


def tell_others(places: Sequence[Places]) -> None:
    """Tells every rank where others have parts, which they may send; not where very many have others."""
    found: dict[tuple[int, int], set[Runs]] = {}
    for mine in places:
        for key, runs in mine.has().items():
            found.setdefault(key, set()).update(runs)
    others = {key: tuple(sorted(runs)) for key, runs in found.items() if len(runs) <= MOST_OTHERS}
    for mine in places:
        mine.others = others


def one_rule(places: Sequence[Places], found: Sequence[Found]) -> list[bool]:
    """Of every dimension of a result whether one rule says where the blocks of all ranks begin."""
    out = []
    for dim in range(len(found[0][1])):
        common: set[str] | None = None
        for mine, (place, shape, whole) in zip(places, found, strict=True):
            runs = place[dim]
            rules = mine.by_rules(shape[dim], whole[dim]) if len(runs) == 1 else {}
            here = {rule for rule, first in rules.items() if first == runs[0][1]}
            if not (mine.is_known(shape[dim], whole[dim]) or mine.rows) and runs == runs_of(
                range(mine.rank, whole[dim], mine.ranks)
            ):
                here.add("every n-th")
            common = here if common is None else common & here
        out.append(bool(common))
    return out


def _first_near(a: Array, whole: Array) -> NDArray[np.bool_] | None:
    """Of every element of a whole tensor whether it may be the first of these; None where any may."""
    if not a.size or not np.isfinite(first := float(a.reshape(-1)[0])):
        return None
    x = whole.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - first) <= NEAR * greatest_of(x)
    return np.asarray(near | ~np.isfinite(x))


def _block(first: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(k, k + n) for k, n in zip(first, shape, strict=True))


def _rows(a: Array, whole: Array) -> Runs | None:
    """Where each row of one array stands in another, as runs."""
    found = list[int]()
    for row in a:
        near = found[-1] + 1 if found else 0
        order = [near, *(k for k in range(len(whole)) if k != near)]
        at = next((k for k in order if k < len(whole) and same_elements(row, whole[k])), None)
        if at is None:
            return None
        found.append(at)
    return runs_of(found)


def part_elements(whole: Array, part: Part) -> Array:
    """The elements of a part."""
    for dim, runs in enumerate(part.runs):
        if len(runs) == 1:
            ((_, there, many),) = runs
            if many < whole.shape[dim]:
                whole = whole[(*(slice(None),) * dim, slice(there, there + many))]
            continue
        index = [there + k for _, there, many in runs for k in range(many)]
        whole = np.take(whole, index, axis=dim)
    return whole


def first_difference(a: Array, b: Array) -> tuple[tuple[int, ...], float, float]:
    """Where two arrays of one shape differ most, and both numbers there."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    apart = np.where(np.isfinite(x) & np.isfinite(y), np.abs(x - y), np.inf)
    apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, apart)
    at = np.unravel_index(int(np.argmax(apart)), apart.shape) if apart.size else ()
    place = tuple(int(i) for i in at)
    return place, float(x[place]), float(y[place])


def named_first(name: str, wholes: Mapping[str, Array]) -> list[str]:
    """Names of whole tensors, that of this name first."""
    return [name, *(n for n in wholes if n != name)] if name in wholes else list(wholes)
