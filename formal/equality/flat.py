"""Takes inputs of the one device flat where ranks hold parts of them flat: shards of ZeRO-3 written by hand, one buffer
row by row cut evenly over ranks.

A flat part is no part of a matrix in its own shape.  So the one device is given the matrix flat too, and shapes it
first: the same program of the same numbers, of which a rank's shard is a block.  Its gradient, where it is compared, is
flat as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ...models.equality.program import Described, Step
from .givens import ProgramWithSources
from .numbers import Array


def with_flat_inputs(
    single: ProgramWithSources, ranks: Sequence[ProgramWithSources], said: Collection[str]
) -> ProgramWithSources:
    """The one device with those inputs flat of which every rank that has them has a block of the flat numbers, but not
    those of which it is `said` where they lie.
    """
    program, arrays = single.program, dict(single.arrays)
    tensors, sources, first, last = list(program.tensors), list(program.sources), list[Step](), list[Step]()
    outputs = dict(program.outputs)
    for k, source in enumerate(program.sources):
        whole = np.asarray(arrays[source.number])
        if source.kind == "constant" or source.name in said or whole.ndim < 2 or not _flat(source.name, whole, ranks):
            continue
        made = program.tensors[source.number]
        flat = Described((whole.size,), made.dtype)
        number = len(tensors)
        tensors.append(flat)
        sources[k] = replace(source, number=number)
        first.append(Step("reshape", (number,), (source.number,), (("shape", made.shape),)))
        arrays[number] = arrays.pop(source.number).reshape(-1)
        gradient = outputs.get(f"grad {source.name}")
        if gradient is not None:
            outputs[f"grad {source.name}"] = len(tensors)
            last.append(Step("reshape", (gradient,), (len(tensors),), (("shape", flat.shape),)))
            tensors.append(flat)
    if not first:
        return single
    changed = replace(
        program,
        sources=tuple(sources),
        steps=(*first, *program.steps, *last),
        outputs=tuple(outputs.items()),
        tensors=tuple(tensors),
    )
    return replace(single, program=changed, arrays=arrays)


def _flat(name: str, whole: Array, ranks: Sequence[ProgramWithSources]) -> bool:
    """Whether ranks that have this tensor have blocks of its numbers in a row, each the next one."""
    mine = [
        (rank, np.asarray(held.arrays[s.number]))
        for rank, held in enumerate(ranks)
        for s in held.program.sources
        if s.name == name
    ]
    numbers = whole.reshape(-1)
    return bool(mine) and all(
        array.ndim == 1
        and array.size * len(ranks) == whole.size
        and np.array_equal(array, numbers[rank * array.size : (rank + 1) * array.size])
        for rank, array in mine
    )
