"""Says what every tensor that a rank is given is: a part of which tensor of the one device, or a constant; and how sure
that is.

sure      `--layouts` says it; or the name is the same and values fit in one place; or they fit in one place of one
          tensor
doubtful  values fit and do not tell (ones, zeros, layers of the same numbers): what reads the tensor tells (`uses`), as
          far as numbers go; what nothing tells is a constant
lone      no part of any tensor: a flat buffer, a table that the other side computes; a constant, as far as numbers go

Copies of what is doubtful or lone would stay as they are where the one device's tensor is varied.  So a difference on
drawn numbers counts only if it is there too where every tensor is as it was given of which there may be such copies
(`still`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby

import numpy as np

from ...models.equality.captured import Stated
from ...models.equality.pair import Given, Known, Part
from ...models.equality.program import RankProgram, Source
from .elements import Elements
from .layouts import Layout, Layouts
from .numbers import Array
from .parts import Places, named_first, part_elements, same_elements
from .uses import Uses
from .varied import is_real


@dataclass(frozen=True, eq=False)
class ProgramWithSources:
    """A program with the values of its sources; `inputs`, `outputs`: where it says itself that they lie."""

    program: RankProgram
    arrays: Mapping[int, Array]
    inputs: Mapping[str, Stated] = field(default_factory=dict)
    outputs: Mapping[str, Stated] = field(default_factory=dict)


class Unmatched(ValueError):
    """A rank's tensor is no part of any of the one device: nothing can be compared."""


@dataclass(frozen=True)
class Doubt:
    """A source of a rank, and why it is not sure what it is; `lone`: no part of any tensor."""

    rank: int
    source: Source
    reason: str
    lone: bool = False

    def __str__(self) -> str:
        return f"{self.source.kind} {self.source.name!r} of rank {self.rank}, {self.reason}"


@dataclass
class Givens:
    """What ranks are given; `places` is told what values tell."""

    single: ProgramWithSources
    ranks: Sequence[ProgramWithSources]
    said: Layouts
    places: Sequence[Places]
    wholes: dict[str, Array] = field(init=False)
    given: list[dict[int, Given]] = field(init=False)
    doubts: list[Doubt] = field(default_factory=list)
    _sure: set[str] = field(default_factory=set)
    _elements: Elements | None = None

    def __post_init__(self) -> None:
        sources = self.single.program.sources
        self.wholes = {
            s.name: np.asarray(self.single.arrays[s.number]) for s in sources if not s.name.startswith("cotangent ")
        }
        self.fixed = {s.name for s in sources if s.kind == "constant"}
        there = {s.name for held in self.ranks for s in held.program.sources}
        for name in self.said.inputs:
            if name not in there:
                raise Unmatched(f"--layouts: no rank has a tensor {name!r}; there are {', '.join(sorted(there))}")
        self.given = [{} for _ in self.ranks]
        uses = Uses(self.single.program, self.single.arrays, [(h.program, h.arrays) for h in self.ranks])
        for rank, held in enumerate(self.ranks):
            sources = tuple(s for s in held.program.sources if not s.name.startswith("cotangent "))
            later = [s for s in sources if not self._told(rank, s)]
            for source in later:  # what values tell comes first: it says where the others lie
                self._guess(rank, source, uses)

    # ------------------------------------------------------------------ of one source

    def _told(self, rank: int, source: Source) -> bool:
        """Whether layouts or values tell the place of a source."""
        array = np.asarray(self.ranks[rank].arrays[source.number])
        if (said := self.said.inputs.get(source.name)) is not None:
            if source.name not in self.wholes:
                raise Unmatched(f"--layouts: the one device has no tensor {source.name!r}")
            part = stated_part(said, source.name, rank, array, self.wholes[source.name], len(self.ranks))
        elif (stated := self._stated(rank, source, array)) is not None:
            part = stated
        else:
            if source.kind == "constant" and uniform(array):
                return False
            found = next(self._fits(rank, source, array), None)
            if found is None or not found[1]:
                return False
            part = found[0]
            if not self._named(source, part) and not self._only(rank, source, array):
                return False
        self.places[rank].learn(array.shape, self.wholes[part.of].shape, part.runs)
        self.given[rank][source.number] = part
        self._sure.add(part.of)
        return True

    def _stated(self, rank: int, source: Source, array: Array) -> Part | None:
        """The part that the program says, where the one device's tensor of this name has these values there."""
        stated, whole = self.ranks[rank].inputs.get(source.name), self.wholes.get(source.name)
        if source.kind == "constant" or stated is None or whole is None or stated.whole != whole.shape:
            return None
        part = Part(source.name, stated.runs)
        return part if same_elements(array, part_elements(whole, part)) else None

    def _fits(self, rank: int, source: Source, array: Array) -> Iterator[tuple[Part, bool]]:
        """Parts with these values, that of this name first, and whether values tell the place in that tensor."""
        if source.name in self.wholes and (source.kind != "constant" or source.name in self.fixed):
            yield from self._fit(rank, source.name, array)  # mostly it: others are not looked for
            names = [n for n in self._likely(array) if n != source.name]
        else:
            names = named_first(source.name, self._likely(array))
        if source.kind == "constant":
            names.sort(key=lambda n: n not in self.fixed)
        for name in names:
            yield from self._fit(rank, name, array)

    def _fit(self, rank: int, name: str, array: Array) -> Iterator[tuple[Part, bool]]:
        if (place := self.places[rank].find(array, self.wholes[name])) is not None:
            yield Part(name, place[0]), place[1]

    def _likely(self, array: Array) -> dict[str, Array]:
        """Tensors of the one device that have the first of these elements."""
        if self._elements is None:
            self._elements = Elements(self.wholes)
        return {name: self.wholes[name] for name in self._elements.having(array)}

    def _named(self, source: Source, part: Part) -> bool:
        return source.kind != "constant" and part.of == source.name

    def _only(self, rank: int, source: Source, array: Array) -> bool:
        """Whether one tensor, or a constant of the one device, has these values, which are more than a few numbers."""
        fits = (part.of for part, _ in self._fits(rank, source, array))
        if next(fits, "") in self.fixed and source.kind == "constant":
            return True
        return not uniform(array) and (source.kind != "constant" or is_real(array)) and next(fits, None) is None

    def _guess(self, rank: int, source: Source, uses: Uses) -> None:
        """What a source is that values do not tell."""
        array = np.asarray(self.ranks[rank].arrays[source.number])
        fits = [part for part, _ in self._fits(rank, source, array) if part.of not in self.fixed or not uniform(array)]
        constant = source.kind == "constant"
        if not fits:
            self.given[rank][source.number] = constant_of(array)
            one = uniform(array) and not self._like(array)  # a buffer of zeros where no tensor is zeros: no copy
            if not one and not (constant and uniform(array) and (not is_real(array) or self._like(array) & self.fixed)):
                reason = f"shape {tuple(array.shape)}, is no part of any tensor of the one device"
                self.doubts.append(Doubt(rank, source, reason, True))
            return
        if self._named(source, fits[0]):
            self.given[rank][source.number] = fits[0]
            self.doubts.append(Doubt(rank, source, "has values that do not tell where it lies"))
            return
        numbers = {s.name: s.number for s in self.single.program.sources}
        likely = uses.likely(rank, source.number, [numbers[p.of] for p in fits])
        part = next((p for p in fits if numbers[p.of] == likely), None)
        if part is None and not (constant and (uniform(array) or not is_real(array))):
            part = fits[0]
        self.given[rank][source.number] = constant_of(array) if part is None else part
        many = ", ".join([p.of for p in fits][:4])
        self.doubts.append(Doubt(rank, source, f"has the values of {many} of the one device, which may be by chance"))

    def _like(self, array: Array) -> set[str]:
        """Tensors of the one device that are this number everywhere."""
        return {n for n, a in self.wholes.items() if uniform(a) and a.flat[0] == array.flat[0]}

    # ------------------------------------------------------------------ what may be varied

    def still(self) -> frozenset[str]:
        """Tensors of the one device of which ranks may have copies that nothing tells to be such."""
        found = set(self.wholes) - self._sure
        for doubt in self.doubts:
            array = np.asarray(self.ranks[doubt.rank].arrays[doubt.source.number])
            if doubt.lone:
                found |= {n for n, a in self.wholes.items() if is_real(array) or not is_real(a)}
            else:
                found |= {part.of for part, _ in self._fits(doubt.rank, doubt.source, array)}
            if uniform(array):
                found |= self._like(array)
        return frozenset(found)

    def doubtful(self) -> frozenset[tuple[int, str]]:
        """Ranks with outputs that are gradients of what is doubtful."""
        return frozenset((d.rank, f"grad {d.source.name}") for d in self.doubts)

    def lone(self) -> Doubt | None:
        """The first input or parameter of a rank that is no part of any tensor; None if there is none."""
        return next((d for d in self.doubts if d.lone and d.source.kind != "constant"), None)

    def has_match(self) -> bool:
        """Whether a real parameter of a rank is part of one of the one device's: so programs are about the same."""
        return any(
            s.kind == "parameter"
            and isinstance(given.get(s.number), Part)
            and is_real(np.asarray(held.arrays[s.number]))
            for held, given in zip(self.ranks, self.given, strict=True)
            for s in held.program.sources
        )

    def in_words(self) -> str:
        """What is not sure: the first tensors of the first rank that has such, or what no rank is given."""
        for _, rows in groupby(self.doubts, key=lambda d: d.rank):
            first = list(rows)
            return "; ".join(map(str, first[:2])) + (f"; {len(first) - 2} more" if len(first) > 2 else "")
        lost = sorted(set(self.wholes) - self._sure - self.fixed)
        return f"no rank is given {', '.join(map(repr, lost[:4]))} of the one device" if lost else ""


def stated_part(said: Layout, name: str, rank: int, array: Array, whole: Array, ranks: int) -> Part:
    """The part that `--layouts` says; `Unmatched` where the rank's tensor has another shape."""
    part = said.part(name, whole.shape, rank, ranks)
    shape = tuple(sum(run[2] for run in runs) for runs in part.runs)
    if shape != array.shape:
        raise Unmatched(f"--layouts: {name!r} of rank {rank} has shape {tuple(array.shape)}, its part would be {shape}")
    return part


def placed_part(stated: Stated, name: str, of: str, rank: int, array: Array, whole: Array) -> Part:
    """The part that a program says of an output; `Unmatched` where it is of another tensor than the one device's."""
    if stated.whole != whole.shape:
        raise Unmatched(
            f"output {name!r} of rank {rank} is by its sharding of a tensor of shape {stated.whole}, that of the one"
            f" device has {tuple(whole.shape)}"
        )
    if stated.shape() != array.shape:
        raise Unmatched(
            f"output {name!r} of rank {rank} has shape {tuple(array.shape)}, and by its sharding {stated.shape()}"
        )
    return Part(of, stated.runs)


def uniform(array: Array) -> bool:
    """Whether all elements are the same.

    >>> uniform(np.ones(3)), uniform(np.arange(3))
    (True, False)
    """
    return bool(array.size) and bool(np.all(array == array.flat[0]))


def constant_of(array: Array) -> Known:
    """A constant: one number, or its bytes."""
    content = f"{array.dtype} {tuple(array.shape)} {sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}"
    one = uniform(array) and (array.dtype.kind not in "iu" or int(float(array.flat[0])) == int(array.flat[0]))
    return Known(float(array.flat[0]) if one else None, content)
