"""Questions of ranks that are said to be alike: programs of a mesh's corners are written down, and those of all other
ranks are what these make likely (assumption `alike-ranks`).

corners     the rank at the origin, its neighbour along each dimension, the last one: a number or place that moves along
            a dimension is told by the first two, and the last must agree
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
from ...models.text import InputError
from .givens import ProgramWithSources
from .mesh_numbers import coordinates, run_mesh
from .meshes import Classes, mesh_program, moving_parts
from .numbers import After, Array, Numbers, same_array
from .parts import Places, part_elements
from .question import Difference, Question
from .rounding import Bound


def corner_ranks(sizes: Sequence[int]) -> list[int]:
    """Ranks whose programs are written down, of a mesh in row-major order.

    >>> corner_ranks((4, 2))
    [0, 1, 2, 7]
    """
    return sorted(_classes(sizes).corners)


def _classes(sizes: Sequence[int]) -> Classes:
    return Classes((tuple(range(prod(sizes))),), tuple(sizes))


def require_alike(numbers: Sequence[int], programs: Sequence[Captured]) -> None:
    """`InputError` where ranks do other steps, or call and wait otherwise, than the first."""
    first = programs[0]
    for rank, other in zip(numbers[1:], programs[1:], strict=True):
        if (step := _other_step(first.program, other.program)) is not None:
            raise InputError(f"--alike: rank {rank} is not like rank {numbers[0]}: {step}; leave --alike out")
        calls = [(e.operator, e.call, e.waits, e.which) for e in other.events]
        if calls != [(e.operator, e.call, e.waits, e.which) for e in first.events]:
            raise InputError(f"--alike: rank {rank} calls and waits otherwise than rank {numbers[0]}")
    if any(s.operator in ("send", "recv") for s in first.program.steps):
        raise InputError("--alike: ranks that send to one another are not alike; leave --alike out")


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
    """One device and ranks of a mesh of these `sizes`, of which `ranks` are the programs of the corners."""

    sizes: tuple[int, ...] = ()
    whole: Numbers = field(init=False, default_factory=dict)

    @property
    def many(self) -> int:
        """All ranks of the mesh."""
        return prod(self.sizes)

    @property
    def numbers(self) -> Sequence[int]:
        """The ranks that were written down."""
        return corner_ranks(self.sizes)

    def _places(self) -> list[Places]:
        return [Places(r, self.many) for r in self.numbers]

    def differs(self, seed: int = 0) -> Difference | None:
        """As of all ranks; the place of a difference is not looked for."""
        found = super().differs(seed)
        return found if found is None or found.rank is None else replace(found, rank=self.numbers[found.rank])

    def _values(self, given: Sequence[Numbers], after: After = same_array) -> Sequence[Numbers]:
        return run_mesh(self._program(), self.sizes, self._stacks(), list(coordinates(self.sizes, self.numbers)), after)

    def _where(self, rank: int, output: int, whole: Numbers, values: Sequence[Numbers]) -> tuple[str, str]:
        return "; without --alike the line is found", ""

    def _program(self) -> RankProgram:
        classes = _classes(self.sizes)
        programs = {r: h.program for r, h in zip(self.numbers, self.ranks, strict=True)}
        found = mesh_program(programs, classes, classes.ranks[0])
        if found is None:
            raise InputError("--alike: ranks differ otherwise than by where they are on the mesh; leave --alike out")
        return found

    def _inputs(self, inputs: Numbers) -> list[dict[int, Array]]:
        """Kept for all ranks: `_values` of them comes next."""
        self.whole = inputs
        return super()._inputs(inputs)

    def _stacks(self) -> dict[int, Array]:
        """What all ranks are given."""
        classes = _classes(self.sizes)
        parts = moving_parts(dict(zip(self.numbers, self.given, strict=True)), classes)
        if parts is None:
            raise InputError("--alike: what ranks are given does not move with where they are; leave --alike out")
        names = {s.name: self.whole[s.number] for s in self.single.program.sources}
        first, found = self.ranks[0], dict[int, Array]()
        for source in first.program.sources:
            number, what = source.number, parts.get(source.number)
            if not isinstance(what, Part):  # a constant, or as it was drawn: where it lies is found later
                array = np.asarray(first.arrays[number])
                found[number] = array.reshape((1,) * len(self.sizes) + array.shape)
                continue
            moving = tuple(n if any(m[j] for m in what.moves) else 1 for j, n in enumerate(self.sizes))
            rows = []
            for at in np.ndindex(moving):
                off = [sum(by * c for by, c in zip(m, at, strict=True)) for m in what.moves] or [0] * len(what.runs)
                runs = tuple(
                    tuple((here, there + o, many) for here, there, many in lines)
                    for lines, o in zip(what.runs, off, strict=True)
                )
                rows.append(part_elements(names[what.of], replace(what, runs=runs)))
            found[number] = np.stack(rows).reshape(moving + rows[0].shape)
        return found

    def mesh_pair(self) -> Pair | None:
        """The question of all ranks at once."""
        programs = {r: h.program for r, h in zip(self.numbers, self.ranks, strict=True)}
        return self.pair_of(_classes(self.sizes), programs)

    def pair(self) -> Pair:
        """The same: ranks that were not written down are not judged alone."""
        found = self.mesh_pair()
        if found is None:
            raise InputError("--alike: ranks differ otherwise than by where they are on the mesh; leave --alike out")
        return found

    def rounding(self) -> Bound | None:
        """None: it is of all ranks' programs."""
        return None


def alike_question(one: Captured, corners: Sequence[Captured], sizes: tuple[int, ...]) -> AlikeQuestion:
    """The question of programs of corners.  Raises `InputError` where they are not alike."""
    numbers = corner_ranks(sizes)
    require_alike(numbers, corners)
    single, *ranks = (ProgramWithSources(c.program, c.arrays, c.inputs, c.outputs) for c in (one, *corners))
    races = [(k, c.race) for k, c in enumerate(corners) if c.race is not None]
    return AlikeQuestion(single, ranks, races=races, sizes=sizes)
