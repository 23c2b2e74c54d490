"""A question of equality: a program on one device, programs on ranks, and which part of what every rank is given.

runs       of one dimension: (first here, first there, how many): where a rank's positions lie in the whole tensor
part       the name of the whole and the runs of every dimension
known      a constant of one number, or the hash of one's bytes: equal hashes are equal constants
relation   of a tensor that a rank makes: the tensor of the one device of which it is a part, and which
moves      of ranks on a mesh: how much farther a part lies for one step along each mesh dimension
"""

from __future__ import annotations

from dataclasses import dataclass

from .program import RankProgram

Runs = tuple[tuple[int, int, int], ...]
Moves = tuple[tuple[int, ...], ...]
"""Of every dimension, for every dimension of the mesh; () where a part is the same for all ranks of a program."""


@dataclass(frozen=True)
class Part:
    """A rank's tensor as a part of a whole one; with `moves`, that of the rank at the origin of the mesh."""

    of: str
    runs: tuple[Runs, ...]
    moves: Moves = ()

    def shape(self) -> tuple[int, ...]:
        """The rank's."""
        return tuple(sum(many for _, _, many in runs) for runs in self.runs)

    def whole(self, shape: tuple[int, ...]) -> bool:
        """Whether it is all of a tensor of this shape, in order."""
        return all(r == ((0, 0, n),) for r, n in zip(self.runs, shape, strict=True))


@dataclass(frozen=True)
class Known:
    """A constant: one number, or the hash of its bytes."""

    number: float | None
    content: str


Given = Part | Known


@dataclass(frozen=True)
class Relation:
    """`number`: of a rank's tensor; `whole`: of the one device's; `runs` of every dimension."""

    number: int
    whole: int
    runs: tuple[Runs, ...]
    moves: Moves = ()


@dataclass(frozen=True)
class Mesh:
    """Ranks that do the same but for where they are: `sizes` of the dimensions; `ranks`: for every program of the pair
    the numbers of the ranks that run it, in row-major order of their coordinates; `captured`: those of them whose
    programs were written down.  Of the others it is assumed that they are as the program of the mesh says.
    """

    sizes: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    captured: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """`given`: for one device and for every rank, what its sources are, by number; `results`: for every rank, in which
    part of which output of the one device each of its outputs lies; `floors`: integer inputs of one device that are
    never below 0; `relations`: for every rank, what is to be seen on the way, by number.

    With a `mesh` each of `ranks` is the program of as many ranks as the mesh has (a stage of a pipeline, or all), whose
    words say what differs between them (`program`).
    """

    single: RankProgram
    ranks: tuple[RankProgram, ...]
    constants: tuple[tuple[int, Known], ...]
    given: tuple[tuple[tuple[int, Given], ...], ...]
    results: tuple[tuple[tuple[str, Part], ...], ...]
    floors: tuple[str, ...]
    relations: tuple[tuple[Relation, ...], ...]
    mesh: Mesh | None = None
