"""Many small arrays as one: distinct int64 arrays are stored once, end to end, in one flat array;
references are numbers.

A certificate of a graph with 50,000 edges has 100,000 arrays of a few entries: one zip member each would cost more than
the contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

import numpy as np

from ...models.problem.selection_problem import Ints
from .archive import MAX_AXES, array_bytes
from .canonical import Reader

_SHORT: Final = 64
"""Bytes of an array that stand for themselves."""


class ArrayPool:
    """Collects arrays in order of first use; equal content (and shape) gets the same number.

    >>> pool = ArrayPool()
    >>> pool.add(np.arange(3)), pool.add(np.array(7)), pool.add(np.arange(3))
    (0, 1, 0)
    >>> pool.flat().tolist(), pool.shapes()
    ([0, 1, 2, 7], [[3], []])
    """

    def __init__(self) -> None:
        self._arrays: list[Ints] = []
        self._by_content: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._by_id: dict[int, tuple[int, Ints]] = {}  # holds the array too, so that its id stays taken

    def add(self, array: Ints) -> int:
        """Number of `array`."""
        known = self._by_id.get(id(array))
        if known is not None:
            return known[0]
        content = array_bytes(array)  # of more entries than a digest has: the shape tells them apart
        key = (array.shape, content if len(content) <= _SHORT else hashlib.sha256(content).digest())
        number = self._by_content.setdefault(key, len(self._arrays))
        if number == len(self._arrays):
            self._arrays.append(array)
        self._by_id[id(array)] = (number, array)
        return number

    def add_numbers(self, numbers: Iterable[int]) -> int:
        """Number of the one-dimensional array with these entries; `OverflowError` beyond int64."""
        return self.add(np.array(list(numbers), dtype=np.int64))

    def add_lists(self, lists: Sequence[Sequence[int]]) -> list[int]:
        """Numbers of two arrays, lengths and joined contents."""
        return [self.add_numbers(len(part) for part in lists), self.add_numbers(x for part in lists for x in part)]

    def shapes(self) -> list[list[int]]:
        return [list(a.shape) for a in self._arrays]

    def flat(self) -> Ints:
        """Everything, shape (sum of sizes,)."""
        return np.concatenate(
            [np.zeros(0, dtype=np.int64), *(np.ascontiguousarray(a).reshape(-1) for a in self._arrays)]
        )


class ArrayTable:
    """Arrays by number, cut (as read-only views) out of a flat array along `shapes`, which are checked against it."""

    def __init__(self, shapes: Reader, flat: Ints, most: int = 1 << 22) -> None:
        if flat.ndim != 1:
            shapes.fail("the flat array must have one axis")
        self._arrays: list[Ints] = []
        self._numbers: dict[
            int, tuple[int, ...]
        ] = {}  # equal references give one tuple: a small file cannot ask for many copies
        self._lists: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
        self._many: dict[int, tuple[Ints, ...]] = {}
        at = 0
        for item in shapes.items(most):
            shape = tuple(item.integers(0, 1 << 40, MAX_AXES))
            end = at + (shape[0] if len(shape) == 1 else prod(shape))
            if end > flat.size or (0 in shape and len(shape) > 2):
                item.fail(f"shape {shape} does not fit the stored numbers")
            self._arrays.append(flat[at:end] if len(shape) == 1 else flat[at:end].reshape(shape))
            at = end
        if at != flat.size:
            shapes.fail(f"describe {at} numbers, but {flat.size} are stored")

    def get(self, reference: Reader) -> Ints:
        """The array whose number is `reference`."""
        return self._arrays[reference.integer(0, len(self._arrays) - 1)]

    def numbers(self, reference: Reader) -> tuple[int, ...]:
        """Entries of a one-dimensional array, as exact integers."""
        array, number = self.get(reference), reference.integer()
        if array.ndim != 1:
            reference.fail("must refer to a one-dimensional array")
        if number not in self._numbers:
            self._numbers[number] = tuple(array.tolist())
        return self._numbers[number]

    def many(self, reference: Reader) -> tuple[Ints, ...]:
        """The arrays whose numbers are the entries of the referred array."""
        key = reference.integer()
        if key not in self._many:
            array = self.get(reference)
            if array.ndim != 1 or (array.size and not 0 <= int(array.min()) <= int(array.max()) < len(self._arrays)):
                reference.fail(f"must refer to a list of numbers of the {len(self._arrays)} arrays")
            self._many[key] = tuple(self._arrays[number] for number in array.tolist())
        return self._many[key]

    def lists(self, reference: Reader) -> tuple[tuple[int, ...], ...]:
        """Inverse of `ArrayPool.add_lists`."""
        parts = list(reference.items(2))
        if len(parts) != 2:
            reference.fail("must hold two array numbers: lengths, contents")
        lengths, joined = self.numbers(parts[0]), self.numbers(parts[1])
        key = (parts[0].integer(), parts[1].integer())
        if key in self._lists:
            return self._lists[key]
        if any(n < 0 for n in lengths) or sum(lengths) != len(joined):
            reference.fail("lengths do not fit the contents")
        out, at = [], 0
        for n in lengths:
            out.append(joined[at : at + n])
            at += n
        self._lists[key] = tuple(out)
        return self._lists[key]
