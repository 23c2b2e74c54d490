"""Writes out the tables of whole numbers and truth values that a rank holds and no tensor of the one device has:
positions of its own rows, masks.

Of a constant the checker knows its hash alone.  As steps it knows every number: a row is runs of numbers that follow
one another at equal distances, rows that are equal are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ...models.equality.pair import Given, Known
from ...models.equality.program import KEPT, Described, Step, Word
from .givens import ProgramWithSources
from .numbers import Array, evaluate

MOST_STEPS: Final = 256
"""Into which one table is written out: 64 rows of a mask take 4 steps each."""
MOST_NUMBERS: Final = 1 << 20
"""Of a table that is put in order."""
MOST_WHOLE: Final = 1 << 53
"""Numbers beyond are no doubles."""


def with_tables(held: ProgramWithSources, given: dict[int, Given]) -> ProgramWithSources:
    """A rank with steps for those of its constants that are whole numbers or truth values and few steps make; what is
    a step is `given` no more.
    """
    program, arrays = held.program, held.arrays
    constants = {n for n, what in given.items() if isinstance(what, Known) and what.number is None}
    tensors, made = list(program.tensors), list[Step]()
    for source in program.sources:
        array = np.asarray(arrays[source.number])
        table = source.number in constants and array.dtype.kind in "iub" and array.ndim > 0 and array.size > 1
        if table and int(np.abs(array.astype(object)).max()) < MOST_WHOLE:
            steps = _Written(source.number, program.tensors[source.number].dtype, len(tensors)).of(array)
            if steps is not None:
                made += [step for step, _ in steps]
                tensors += [described for step, described in steps if step.makes != (source.number,)]
    gone = {step.makes[0] for step in made}
    kept = tuple(s for s in program.sources if s.number not in gone)
    for number in gone & constants:
        del given[number]
    ordered = _in_order((*made, *program.steps), tensors)
    return replace(held, program=replace(program, sources=kept, steps=ordered, tensors=tuple(tensors)))


def _in_order(steps: tuple[Step, ...], tensors: list[Described]) -> tuple[Step, ...]:
    """Steps with whole numbers that constants alone are put in order of written out too: places of rows that are put
    back.
    """
    if all(step.operator != "sort" for step in steps):
        return steps
    known, kept = dict[int, Array](), list[Step]()
    for step in steps:
        kept.append(step)
        whole = all(tensors[n].dtype.startswith("int") for n in step.makes)
        if not whole or step.operator in KEPT or "ranks" in dict(step.words) or any(n not in known for n in step.reads):
            continue
        if sum(known[n].size for n in step.reads) > MOST_NUMBERS:
            continue
        values = evaluate(step, [known[n] for n in step.reads])
        known |= {n: v for n, v in zip(step.makes, values, strict=True) if bool(np.all(v == np.floor(v)))}
        if step.operator == "sort" and len(np.unique(known[step.reads[0]])) == known[step.reads[0]].size:
            written = [_written(n, tensors[n].dtype, v, tensors) for n, v in zip(step.makes, values, strict=True)]
            if all(w is not None for w in written):
                kept[-1:] = [one for w in written if w is not None for one in w]
    return tuple(kept)


def _written(number: int, dtype: str, value: Array, tensors: list[Described]) -> list[Step] | None:
    steps = _Written(number, dtype, len(tensors)).of(value.astype(np.int64))
    if steps is None:
        return None
    tensors += [described for step, described in steps if step.makes != (number,)]
    return [step for step, _ in steps]


class _Written:
    """The steps of one table, the last of which makes tensor `number`; others are numbered from `first` on."""

    def __init__(self, number: int, dtype: str, first: int) -> None:
        self.number, self.dtype, self.first = number, dtype, first
        self.steps = list[tuple[Step, Described]]()

    def of(self, array: Array) -> list[tuple[Step, Described]] | None:
        """None for more than `MOST_STEPS`."""
        if self._tensor(array) is None:
            return None
        last, described = self.steps[-1]
        self.steps[-1] = replace(last, makes=(self.number,)), described
        return self.steps

    def _step(self, name: str, reads: tuple[int, ...], words: Mapping[str, Word], shape: tuple[int, ...]) -> int:
        number = self.first + len(self.steps)
        self.steps.append((Step(name, reads, (number,), tuple(words.items())), Described(shape, self.dtype)))
        return number

    def _tensor(self, array: Array) -> int | None:
        if len(self.steps) >= MOST_STEPS:
            return None
        if bool(np.all(array == array.flat[0])):
            words: dict[str, Word] = {"shape": array.shape, "value": float(array.flat[0]), "dtype": self.dtype}
            return self._step("full", (), words, array.shape)
        if array.ndim == 1:
            return self._joined([self._run(piece) for piece in _runs(array)], array.shape)
        equal = bool(np.all(array == array[:1]))
        wide = [self._shaped(self._tensor(row), (1, *row.shape)) for row in (array[:1] if equal else array)]
        if not equal or len(array) == 1 or wide[0] is None:
            return self._joined(wide, array.shape)
        return self._step("expand", (wide[0],), {"shape": array.shape}, array.shape)

    def _shaped(self, number: int | None, shape: tuple[int, ...]) -> int | None:
        return None if number is None else self._step("reshape", (number,), {"shape": shape}, shape)

    def _joined(self, parts: list[int | None], shape: tuple[int, ...]) -> int | None:
        numbers = [n for n in parts if n is not None]
        if len(numbers) < len(parts) or len(self.steps) >= MOST_STEPS:
            return None
        return numbers[0] if len(numbers) == 1 else self._step("cat", tuple(numbers), {"dim": 0}, shape)

    def _run(self, piece: Array) -> int | None:
        if len(piece) == 1 or piece[0] == piece[1]:
            return self._tensor(piece)
        by = int(piece[1]) - int(piece[0])
        words: dict[str, Word] = {"n": len(piece), "start": float(piece[0]), "step": float(by), "dtype": self.dtype}
        return self._step("iota", (), words, piece.shape)


def _runs(row: Array) -> list[Array]:
    """Parts of a row in which numbers follow one another at equal distances; truth values, those that are the same.

    >>> [r.tolist() for r in _runs(np.array([0, 1, 6, 7, 7]))]
    [[0, 1], [6, 7], [7]]
    """
    by = np.diff(row.astype(np.int64))
    found, first = list[Array](), 0
    while first < len(row):
        last = first + 1
        while last < len(row) and by[last - 1] == by[first] and (row.dtype != np.bool_ or not by[first]):
            last += 1
        found.append(row[first:last])
        first = last
    return found
