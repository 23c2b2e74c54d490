"""Parameters and what optimizers remember stay on their ranks between steps: a rank keeps its blocks here.

read(tensor, box)   the block that the step before left here, or a part of it; before the first step, and for what
                    no step renews, what the run began with
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...models.communication.transfers import Box
from ...models.program.graph import STATED, Graph, Role
from ..kernels import Array
from ..lowering.program import Load, Program
from .interpreter import Source
from .live import alone

Blocks = Mapping[str, Sequence[tuple[Box, Array]]]
"""Tensor -> (where a block lies in it, the block)."""


class RankBlocks:
    """The blocks of one rank.  `base`: gives what was not renewed."""

    def __init__(self, base: Source, blocks: Blocks | None = None) -> None:
        self._base = base
        self._blocks = {name: list(found) for name, found in (blocks or {}).items()}

    @property
    def blocks(self) -> Blocks:
        """What steps have renewed here."""
        return self._blocks

    def renew(self, blocks: Blocks) -> None:
        """The next values: they replace what was there."""
        self._blocks.update({name: list(found) for name, found in blocks.items()})

    def source(self, data: Mapping[str, Array]) -> Source:
        """What a step reads: `data` of the step, whole, and what is held."""

        def read(tensor: str, box: Box) -> Array:
            if tensor in data:
                return data[tensor][tuple(slice(lo, hi) for lo, hi in box)]
            return self.read(tensor, box)

        return read

    def read(self, tensor: str, box: Box) -> Array:
        """A block of a parameter.  Raises `KeyError` where this rank has renewed another part of it only.

        >>> held = RankBlocks(lambda tensor, box: np.zeros(3))
        >>> held.renew({"w": [(((2, 5),), np.array([2.0, 3.0, 4.0]))]})
        >>> held.read("w", ((3, 5),)).tolist(), held.read("v", ((0, 3),)).tolist()
        ([3.0, 4.0], [0.0, 0.0, 0.0])
        """
        known = self._blocks.get(tensor)
        if known is None:
            return self._base(tensor, box)
        if any(lo == hi for lo, hi in box):
            return np.empty([hi - lo for lo, hi in box], dtype=known[0][1].dtype)
        for where, block in known:
            if all(low <= lo and hi <= high for (lo, hi), (low, high) in zip(box, where, strict=True)):
                return block[tuple(slice(lo - low, hi - low) for (lo, hi), (low, _) in zip(box, where, strict=True))]
        raise KeyError(f"tensor {tensor!r}: the step before left {[w for w, _ in known]} here, and {box} is read")


def next_blocks(program: Program, rank: int, results: Mapping[str, Array], source: Source) -> Blocks:
    """What a program's results leave on a rank for the next step.  `source`: what the step read."""
    boxes = {name: each[rank] for name, each in program.outputs}
    given = {i.tensor: i.box for i in program.ranks[rank] if isinstance(i, Load)}
    out = {}
    for parameter, value in program.graph.state:
        box = boxes[value] if value in boxes else given[value]
        out[parameter] = [(box, alone(results[value] if value in boxes else source(value, box)))]
    return out


def lasting(graph: Graph) -> tuple[str, ...]:
    """What a run begins with and carries from step to step: parameters, moments, constants whose values the program
    does not state.  The rest of what is given is data of a step (`feed.fed`).

    >>> from ...models.sources.training import training_step
    >>> from ...models.sources.zoo import build
    >>> lasting(training_step(build("mlp-unity"), "sgd"))
    ('fc1.weight', 'fc2.weight')
    """
    renewed = {name for name, _ in graph.state}
    return tuple(
        t.name
        for t in graph.tensors
        if t.role is not Role.VALUE
        and (t.contents is None or t.contents.values is None)
        and (t.role is Role.PARAMETER or t.name in renewed or t.name.startswith(STATED))
    )
