"""What `place` and `reduce` are asked about programs: how they are searched and priced, in the words of users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ...models.collective_programs.collectives import READINGS
from ...models.collective_programs.cost import PRESETS, Algorithm
from ...models.collective_programs.parallelism import Order
from ...models.text import InputError
from .asked import Engine

if TYPE_CHECKING:
    from ...models.machine.machine import Machine
    from .request import How

BOTH = "both"
"""Orders of devices: each is tried."""


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """`machine`: None for that of the number of levels; `algorithm`: how an AllReduce moves data; `preset`: the cost
    model; `order`: of devices where several axes are reduced; `reading`: of what the paper's rules leave open.
    """

    machine: Machine | str | None = None
    algorithm: str = Algorithm.RING.value
    preset: str = "linked"
    order: str = BOTH
    reading: str = "paper"
    engine: Engine = "native"

    def how(self) -> How:
        """The same, read.  Raises `InputError` for a word that is none, with those that are."""
        from .request import How

        require_word(self.preset, PRESETS, "preset")
        require_word(self.reading, list(READINGS), "reading")
        order = require_word(self.order, [BOTH, *(o.value for o in Order)], "order")
        require_word(self.engine, get_args(Engine), "engine")
        algorithm = Algorithm(require_word(self.algorithm, [a.value for a in Algorithm], "algorithm"))
        return How(
            algorithm, self.preset, tuple(Order) if order == BOTH else (Order(order),), self.reading, self.engine
        )


def require_word(value: str, words: Sequence[str], name: str) -> str:
    """The value, if it is one of the words.  Raises `InputError`."""
    if value not in words:
        raise InputError(f"{name} {value!r}: choose one of {', '.join(words)}")
    return value
