"""A program of one rank as it was written down in a run, with the numbers of that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .program import RankProgram
from .schedule import Event, Race


class Unreadable(ValueError):
    """A program that cannot be written down: what, and where."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A program with the values of its sources, what it received in the run, by number, and what the run gave then for
    its outputs; `race`: what it does while a collective is under way; `events`: its calls and waits.
    """

    program: RankProgram
    arrays: Mapping[int, NDArray[np.generic]]
    received: Mapping[int, NDArray[np.generic]]
    results: tuple[NDArray[np.generic], ...]
    race: Race | None = None
    events: tuple[Event, ...] = ()
