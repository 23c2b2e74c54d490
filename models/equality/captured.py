"""A program of one rank as it was written down in a run, with the numbers of that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .pair import Runs
from .program import RankProgram
from .schedule import Event, Race


class Unreadable(ValueError):
    """A program that cannot be written down: what, and where."""


@dataclass(frozen=True)
class Stated:
    """Where a program itself says that a rank's tensor lies, by its sharding: shape of the whole, and runs in it;
    `everywhere`: the whole is that of all ranks, not of some, which may have a part of the one device's only.
    """

    whole: tuple[int, ...]
    runs: tuple[Runs, ...]
    everywhere: bool = True

    def shape(self) -> tuple[int, ...]:
        """The rank's."""
        return tuple(sum(many for _, _, many in runs) for runs in self.runs)


def runs_of(positions: Sequence[int]) -> Runs:
    """Positions in a whole tensor, as runs.

    >>> runs_of([4, 5, 0, 1])
    ((0, 4, 2), (2, 0, 2))
    >>> runs_of([])
    ((0, 0, 0),)
    """
    runs = list[tuple[int, int, int]]()
    for here, there in enumerate(positions):
        if runs and there == runs[-1][1] + runs[-1][2]:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((here, there, 1))
    return tuple(runs) or ((0, 0, 0),)


@dataclass(frozen=True, eq=False)
class Captured:
    """A program with the values of its sources, what it received in the run, by number, and what the run gave then for
    its outputs; `race`: what it does while a collective is under way; `events`: its calls and waits; `inputs`,
    `outputs`: where it says itself that they lie, by name.
    """

    program: RankProgram
    arrays: Mapping[int, NDArray[np.generic]]
    received: Mapping[int, NDArray[np.generic]]
    results: tuple[NDArray[np.generic], ...]
    race: Race | None = None
    events: tuple[Event, ...] = ()
    inputs: Mapping[str, Stated] = field(default_factory=dict)
    outputs: Mapping[str, Stated] = field(default_factory=dict)
