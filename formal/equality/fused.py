"""Takes apart what a rank holds in one tensor and the one device in several: queries, keys and values as one matrix, a
vocabulary with rows of zeros behind it, parameters in one flat buffer.

    rows     along a dimension, each is a row of one tensor of the one device, or zeros
    flat     numbers in a row, each stretch of them one of a tensor: the end of a row, whole rows, the beginning of one

Parts of it are what the rank is given, and its first step puts them together; its gradient falls into those of parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

import numpy as np

from ...models.equality.program import Described, RankProgram, Source, Step, Word
from .givens import ProgramWithSources
from .numbers import Array

MOST_STRETCHES: Final = 64
"""Into which one tensor is taken apart."""
MOST_NUMBERS: Final = 1 << 22
"""Of the one device that are looked at one by one for flat buffers."""

Where = tuple[str, int]
"""A tensor of the one device and a row in it."""


class Stretch(NamedTuple):
    """Rows `first` to `last` of a rank's tensor, of one of the one device from a row on; of no name: zeros."""

    first: int
    last: int
    of: str
    there: int


def with_parts(
    single: ProgramWithSources, ranks: Sequence[ProgramWithSources], said: Collection[str]
) -> list[ProgramWithSources]:
    """Ranks with what they hold of several tensors in parts; not what is `said` to be part of one."""
    wholes = {
        s.name: np.asarray(single.arrays[s.number])
        for s in single.program.sources
        if s.kind != "constant" and not s.name.startswith("cotangent ")
    }
    wholes = {name: a for name, a in wholes.items() if a.ndim and np.issubdtype(a.dtype, np.floating)}
    rows = _Rows(wholes)
    found = []
    for held in ranks:
        apart = _Apart(held)
        for source in held.program.sources:
            a = np.asarray(held.arrays[source.number])
            mine = source.kind != "constant" and source.name not in said and source.name not in held.inputs
            if mine and a.ndim and np.issubdtype(a.dtype, np.floating) and not source.name.startswith("cotangent "):
                _take(apart, source, a, wholes, rows)
        found.append(apart.program())
    return found


def _take(apart: _Apart, source: Source, a: Array, wholes: Mapping[str, Array], rows: _Rows) -> None:
    """Takes one tensor apart, if rows tell that it is of several."""
    if any(same.shape == a.shape and np.array_equal(same, a) for same in wholes.values()):
        return
    for dim in dict.fromkeys((0, a.ndim - 1)) if a.ndim > 1 else ():
        stretches = rows.of(np.moveaxis(a, dim, 0), dim != 0)
        if stretches is not None and len({s.of for s in stretches}) > 1:
            apart.rows(source, dim, stretches, a)
            return
    if a.ndim == 1:
        stretches = rows.flat(a)
        if stretches is not None and (
            len({s.of for s in stretches}) > 1 or any(s.of and wholes[s.of].ndim > 1 for s in stretches)
        ):
            apart.flat(source, stretches, wholes, a)


class _Rows:
    """Rows of the tensors of the one device by their numbers."""

    def __init__(self, wholes: Mapping[str, Array]) -> None:
        self.wholes = wholes
        self._known: dict[tuple[object, ...], dict[bytes, list[Where]]] = {}

    def of(self, a: Array, last: bool) -> list[Stretch] | None:
        """Where rows stand, of tensors with their `last` dimension in front."""
        key = a.ndim, a.shape[1:], last
        if key not in self._known:
            same = ((n, np.moveaxis(w, -1, 0) if last else w) for n, w in self.wholes.items() if w.ndim == a.ndim)
            self._known[key] = _by_numbers((n, w) for n, w in same if w.shape[1:] == a.shape[1:])
        return _stretches(a, self._known[key])

    def flat(self, a: Array) -> list[Stretch] | None:
        """Where numbers stand in tensors whose numbers are in a row."""
        if sum(w.size for w in self.wholes.values()) > MOST_NUMBERS or a.size > MOST_NUMBERS:
            return None
        if ("flat",) not in self._known:
            self._known["flat",] = _by_numbers((n, w.reshape(-1)) for n, w in self.wholes.items() if w.ndim <= 2)
        return _stretches(a, self._known["flat",])


def _by_numbers(arrays: Iterator[tuple[str, Array]]) -> dict[bytes, list[Where]]:
    found: dict[bytes, list[Where]] = {}
    for name, w in arrays:
        for k, row in enumerate(np.ascontiguousarray(w.astype(np.float64))):
            found.setdefault(row.tobytes(), []).append((name, k))
    return found


def _stretches(a: Array, known: Mapping[bytes, Sequence[Where]]) -> list[Stretch] | None:
    """Rows that follow one another as in one tensor; None where a row is in none, or nothing tells in which."""
    found = list[Stretch]()
    for k, row in enumerate(np.ascontiguousarray(a.astype(np.float64))):
        at, last = known.get(row.tobytes(), ()), found[-1] if found else None
        if last is not None and last.of and (last.of, last.there + k - last.first) in at:
            found[-1] = last._replace(last=k + 1)
            continue
        if len(at) == 1:
            found.append(Stretch(k, k + 1, *at[0]))
        elif not at and not np.any(row):
            if last is not None and not last.of:
                found[-1] = last._replace(last=k + 1)
            else:
                found.append(Stretch(k, k + 1, "", 0))
        else:
            return None
        if len(found) > MOST_STRETCHES:
            return None
    return found


class _Apart:
    """A rank's program with parts in place of some of its sources."""

    def __init__(self, held: ProgramWithSources) -> None:
        self._held, self._program = held, held.program
        self._tensors, self._arrays = list(held.program.tensors), dict(held.arrays)
        self._sources, self._gone = list[Source](), set[int]()
        self._first, self._last = list[Step](), list[Step]()
        self._outputs = dict(held.program.outputs)

    def program(self) -> ProgramWithSources:
        """The program, with what parts are."""
        if not self._gone:
            return self._held
        kept = [s for s in self._program.sources if s.number not in self._gone]
        program = RankProgram(
            (*kept, *self._sources),
            (*self._first, *self._program.steps, *self._last),
            tuple(self._outputs.items()),
            tuple(self._tensors),
        )
        return replace(self._held, program=program, arrays=self._arrays)

    def rows(self, source: Source, dim: int, stretches: Sequence[Stretch], a: Array) -> None:
        """Parts along a dimension."""
        parts = [
            self._part(source, s, np.moveaxis(np.moveaxis(a, dim, 0)[s.first : s.last], 0, dim)) for s in stretches
        ]
        self._join(source, dim, stretches, parts)

    def flat(self, source: Source, stretches: Sequence[Stretch], wholes: Mapping[str, Array], a: Array) -> None:
        """Parts of numbers in a row, in the shapes that they have in their tensors."""
        pieces = [piece for s in stretches for piece in _in_rows(s, wholes)]
        parts = [self._part(source, s, a[s.first : s.last].reshape(shape)) for s, shape in pieces]
        self._join(source, 0, [s for s, _ in pieces], parts)

    def _tensor(self, shape: Sequence[int], dtype: str) -> int:
        self._tensors.append(Described(tuple(shape), dtype))
        return len(self._tensors) - 1

    def _part(self, source: Source, stretch: Stretch, a: Array) -> int:
        dtype = self._tensors[source.number].dtype
        number = self._tensor(a.shape, dtype)
        if stretch.of:
            self._sources.append(replace(source, number=number, name=f"{source.name}[{stretch.first}:{stretch.last}]"))
            self._arrays[number] = a
        else:
            words: dict[str, Word] = {"shape": a.shape, "value": 0.0, "dtype": dtype}
            self._first.append(Step("full", (), (number,), tuple(words.items())))
        return number

    def _join(self, source: Source, dim: int, stretches: Sequence[Stretch], parts: Sequence[int]) -> None:
        """The step that makes the tensor of its parts, and those that make the gradients of parts of its gradient."""
        whole = self._tensors[source.number]
        shapes = [(*whole.shape[:dim], s.last - s.first, *whole.shape[dim + 1 :]) for s in stretches]
        placed = [self._shaped(self._first, n, shape) for n, shape in zip(parts, shapes, strict=True)]
        self._first.append(Step("cat", tuple(placed), (source.number,), (("dim", dim),)))
        self._gone.add(source.number)
        del self._arrays[source.number]
        gradient = self._outputs.pop(f"grad {source.name}", None)
        for s, number, shape in zip(stretches, parts, shapes, strict=True):
            if gradient is None or not s.of:
                continue
            cut = self._tensor(shape, whole.dtype)
            words: dict[str, Word] = {"dim": dim, "start": s.first, "stop": s.last, "step": 1}
            self._last.append(Step("slice", (gradient,), (cut,), tuple(words.items())))
            name = f"grad {source.name}[{s.first}:{s.last}]"
            self._outputs[name] = self._shaped(self._last, cut, self._tensors[number].shape)

    def _shaped(self, steps: list[Step], number: int, shape: Sequence[int]) -> int:
        was = self._tensors[number]
        if was.shape == tuple(shape):
            return number
        made = self._tensor(shape, was.dtype)
        steps.append(Step("reshape", (number,), (made,), (("shape", tuple(shape)),)))
        return made


def _in_rows(stretch: Stretch, wholes: Mapping[str, Array]) -> list[tuple[Stretch, tuple[int, ...]]]:
    """Numbers in a row as boxes of their tensor, each with its shape: the end of a row, whole rows, a beginning.

    >>> [shape for _, shape in _in_rows(Stretch(0, 9, "w", 2), {"w": np.zeros((5, 4))})]
    [(1, 2), (1, 4), (1, 3)]
    """
    if not stretch.of or wholes[stretch.of].ndim == 1:
        return [(stretch, (stretch.last - stretch.first,))]
    width, count = prod(wholes[stretch.of].shape[1:]), stretch.last - stretch.first
    low, high = stretch.there, stretch.there + count
    inside = [-(-low // width) * width, high // width * width]
    edges = [low, *(e for e in dict.fromkeys(inside) if low < e < high), high]
    found = list[tuple[Stretch, tuple[int, ...]]]()
    for first, last in pairwise(edges):
        moved = first - low + stretch.first
        shape = ((last - first) // width, width) if first % width == 0 and last % width == 0 else (1, last - first)
        found.append((Stretch(moved, moved + last - first, stretch.of, first), shape))
    return found
