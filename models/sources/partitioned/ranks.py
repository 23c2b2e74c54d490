"""Writes down one rank of a module, beside what the rank's device has of it: what programs and texts have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...equality.captured import Captured, Stated, Unreadable, runs_of
from ..distributed.needed import without_waste
from .machine import Held, Machine
from .operators import made_of
from .shardings import Sharding

Plain = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Argument:
    """What a rank is given, and where it says that this lies; `sharding`: in which a manual computation reads it."""

    name: str
    array: Plain
    stated: Stated | None
    sharding: Sharding | None = None


def rank_program(
    machine: Machine,
    arguments: Sequence[Argument],
    names: Sequence[str],
    made: Callable[[int, Held], tuple[Stated | None, Plain]],
) -> Captured:
    """The program of the machine's rank; `made`: where a result of these names lies, if that is said, and what the
    rank's device has of it.  Raises `Unreadable` where shapes do not fit.
    """
    writer, rank, given = machine.writer, machine.place.rank, list[Held]()
    inputs, placed = dict[str, Stated](), dict[str, Stated]()
    for argument, there in zip(arguments, machine.main().arguments, strict=True):
        shape, dtype = made_of(writer, there.type)
        array = argument.array
        if shape != array.shape and argument.sharding is None:
            raise Unreadable(f"{argument.name} has shape {array.shape} on rank {rank}, the module says {shape}")
        number = writer.source(argument.name, "input", np.ascontiguousarray(numbers(array)).reshape(array.shape), dtype)
        given.append(Held(number, argument.sharding))
        if argument.stated is not None:
            inputs[argument.name] = argument.stated
    outputs, expected = [], []
    for k, (held, name) in enumerate(zip(machine.run(given), names, strict=True)):
        outputs.append((name, held.number))
        lies, array = made(k, held)
        if lies is not None:
            placed[name] = lies
        shape = array.shape if lies is None else lies.shape()
        if shape != writer.shape(held.number):
            where = f"{shape} of {() if lies is None else lies.whole} on rank {rank}"
            raise Unreadable(f"{name} is {where}, and was read as {writer.shape(held.number)}")
        expected.append(numbers(array))
    program = without_waste(writer.program(outputs))
    arrays = {s.number: writer.arrays[s.number] for s in program.sources}
    if machine.place.ranks == 1:
        inputs, placed = {}, {}
    return Captured(program, arrays, {}, tuple(expected), inputs=inputs, outputs=placed)


def place_in(shape: Sequence[int], index: Sequence[slice]) -> Stated:
    """Where a part of an array of this shape lies."""
    return Stated(tuple(shape), tuple(runs_of(range(n)[cut]) for n, cut in zip(shape, index, strict=True)))


def numbers(array: Plain) -> Plain:
    """Numbers of 16 bits as those of 32, which NumPy has."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.name in ("bfloat16", "float16") else array
