"""Questions of ranks that are said to be alike: programs of a mesh's corners are written down, and those of all other
ranks are what these make likely (assumption `alike-ranks`).

corners     the rank at the origin, its neighbour along each dimension, the last one: a number or place that moves along
            a dimension is told by the first two, and the last must agree
stages      of a pipeline each is such a mesh, ranks in order of stages; a rank sends to those at its place in others
numbers     of all ranks, at once, of which the corners' are compared
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ...models.equality.captured import Captured
from ...models.equality.pair import Pair, Part
from ...models.equality.program import RankProgram
from ...models.equality.schedule import Stuck, stuck_messages
from ...models.text import InputError
from .givens import ProgramWithSources
from .mesh_numbers import coordinates, run_meshes
from .meshes import Classes, mesh_program, moving_parts
from .numbers import After, Array, Numbers, same_array
from .parts import Places, part_elements
from .question import Difference, Question
from .rounding import Bound


def corner_ranks(sizes: Sequence[int], stages: int = 1) -> list[int]:
    """Ranks whose programs are written down, of a mesh in row-major order, or of one for each stage.

    >>> corner_ranks((4, 2)), corner_ranks((2,), 2)
    ([0, 1, 2, 7], [0, 1, 2, 3])
    """
    classes = _classes(sizes, stages)
    return [ranks[place] for ranks in classes.ranks for place in sorted(classes.corners)]


def _classes(sizes: Sequence[int], stages: int) -> Classes:
    many = prod(sizes)
    return Classes(tuple(tuple(range(s * many, s * many + many)) for s in range(stages)), tuple(sizes))


def require_alike(numbers: Sequence[int], programs: Sequence[Captured], stages: int = 1) -> None:
    """`InputError` where ranks do other steps, or call and wait otherwise, than the first of their stage."""
    many = len(numbers) // stages
    for k in range(0, len(numbers), many):
        _require_alike(numbers[k : k + many], programs[k : k + many])
    if stages == 1 and any(s.operator in ("send", "recv") for s in programs[0].program.steps):
        raise InputError("--alike: ranks that send to one another are not alike; leave --alike out")


def _require_alike(numbers: Sequence[int], programs: Sequence[Captured]) -> None:
    first = programs[0]
    for rank, other in zip(numbers[1:], programs[1:], strict=True):
        if (step := _other_step(first.program, other.program)) is not None:
            raise InputError(f"--alike: rank {rank} is not like rank {numbers[0]}: {step}; leave --alike out")
        calls = [(e.operator, e.call, e.waits, e.which) for e in other.events]
        if calls != [(e.operator, e.call, e.waits, e.which) for e in first.events]:
            raise InputError(f"--alike: rank {rank} calls and waits otherwise than rank {numbers[0]}")


def _other_step(one: RankProgram, other: RankProgram) -> str | None:
    for a, b in zip(one.steps, other.steps, strict=False):
        same = (a.operator, a.reads, a.makes) == (b.operator, b.reads, b.makes)
        if not same or [one.tensors[n] for n in a.makes] != [other.tensors[n] for n in b.makes]:
            return f"{b.operator}{b.line and f' ({b.line})'} in the place of {a.operator}"
    if len(one.steps) != len(other.steps) or (one.sources, one.outputs) != (other.sources, other.outputs):
        return "it has other inputs, outputs or steps"
    return None if one.tensors == other.tensors else "its tensors have other shapes"


@dataclass
class AlikeQuestion(Question):
    """One device and ranks of a mesh of these `sizes`, or of one for each of the `stages`, of which `ranks` are the
    programs of the corners.
    """

    sizes: tuple[int, ...] = ()
    stages: int = 1
    whole: Numbers = field(init=False, default_factory=dict)

    @property
    def many(self) -> int:
        """All ranks."""
        return prod(self.sizes) * self.stages

    @property
    def numbers(self) -> Sequence[int]:
        """The ranks that were written down."""
        return corner_ranks(self.sizes, self.stages)

    @property
    def classes(self) -> Classes:
        """The ranks of every stage."""
        return _classes(self.sizes, self.stages)

    @property
    def outputs(self) -> int:
        """Outputs of all ranks."""
        return sum(len(mine) for mine in self.results[:: len(self.results) // self.stages]) * prod(self.sizes)

    def _places(self) -> list[Places]:
        many = prod(self.sizes)
        return [Places(r % many, many) for r in self.numbers]

    def differs(self, seed: int = 0) -> Difference | None:
        """As of all ranks; the place of a difference is not looked for."""
        found = super().differs(seed)
        if found is None or found.rank is None or not found.output:
            return found
        return replace(found, rank=self.numbers[found.rank])

    def _values(self, given: Sequence[Numbers], after: After = same_array) -> Sequence[Numbers]:
        corners = list(coordinates(self.sizes, sorted(self.classes.corners)))
        programs = [self._program(stage) for stage in range(self.stages)]
        rows = run_meshes(programs, self.sizes, [self._stacks(s) for s in range(self.stages)], corners, after)
        return [mine for row in rows for mine in row]

    def _where(self, rank: int, output: int, whole: Numbers, values: Sequence[Numbers]) -> tuple[str, str]:
        return "; without --alike the line is found", ""

    def _corners(self, stage: int) -> dict[int, int]:
        """Of the corners of a stage, by their places in it, which of the programs is theirs."""
        places = sorted(self.classes.corners)
        return {place: stage * len(places) + k for k, place in enumerate(places)}

    def _program(self, stage: int) -> RankProgram:
        classes = self.classes
        programs = {place: self.ranks[k].program for place, k in self._corners(stage).items()}
        found = mesh_program(programs, classes, classes.ranks[stage])
        if found is None:
            raise InputError("--alike: ranks differ otherwise than by where they are on the mesh; leave --alike out")
        return found

    def _inputs(self, inputs: Numbers) -> list[dict[int, Array]]:
        """Kept for all ranks: `_values` of them comes next."""
        self.whole = inputs
        return super()._inputs(inputs)

    def _stacks(self, stage: int) -> dict[int, Array]:
        """What all ranks of a stage are given."""
        corners = self._corners(stage)
        parts = moving_parts({place: self.given[k] for place, k in corners.items()}, self.classes)
        if parts is None:
            raise InputError("--alike: what ranks are given does not move with where they are; leave --alike out")
        names = {s.name: self.whole[s.number] for s in self.single.program.sources}
        first, found = self.ranks[corners[0]], dict[int, Array]()
        for source in first.program.sources:
            number, what = source.number, parts.get(source.number)
            if not isinstance(what, Part):  # a constant, or as it was drawn: where it lies is found later
                array = np.asarray(first.arrays[number])
                found[number] = array.reshape((1,) * len(self.sizes) + array.shape)
                continue
            found[number] = self._stack(names[what.of], what)
        return found

    def _stack(self, whole: Array, what: Part) -> Array:
        """A part that moves, of all ranks."""
        moving = tuple(n if any(m[j] for m in what.moves) else 1 for j, n in enumerate(self.sizes))
        rows = []
        for at in np.ndindex(moving):
            off = [sum(by * c for by, c in zip(m, at, strict=True)) for m in what.moves] or [0] * len(what.runs)
            runs = tuple(
                tuple((here, there + o, many) for here, there, many in lines)
                for lines, o in zip(what.runs, off, strict=True)
            )
            rows.append(part_elements(whole, replace(what, runs=runs)))
        return np.stack(rows).reshape(moving + rows[0].shape)

    def mesh_pair(self) -> Pair | None:
        """The question of all ranks at once."""
        programs = {r: h.program for r, h in zip(self.numbers, self.ranks, strict=True)}
        return self.pair_of(self.classes, programs)

    def pair(self) -> Pair:
        """The same: ranks that were not written down are not judged alone."""
        found = self.mesh_pair()
        if found is None:
            raise InputError("--alike: ranks differ otherwise than by where they are on the mesh; leave --alike out")
        return found

    def rounding(self) -> Bound | None:
        """None: it is of all ranks' programs."""
        return None


def alike_question(
    one: Captured, corners: Sequence[Captured], sizes: tuple[int, ...], stages: int = 1
) -> AlikeQuestion:
    """The question of programs of corners.  Raises `InputError` where they are not alike."""
    numbers = corner_ranks(sizes, stages)
    require_alike(numbers, corners, stages)
    single, *ranks = (ProgramWithSources(c.program, c.arrays, c.inputs, c.outputs) for c in (one, *corners))
    races = [(rank, c.race) for rank, c in zip(numbers, corners, strict=True) if c.race is not None]
    stuck = stuck_messages([c.events for c in corners])
    if stuck is not None:
        stuck = Stuck(tuple((numbers[k], step) for k, step in stuck.waiting), stuck.reason)
    return AlikeQuestion(single, ranks, races=races, stuck=stuck, sizes=sizes, stages=stages)
