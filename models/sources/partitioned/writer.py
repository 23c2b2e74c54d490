"""Writes down the steps of one rank, in the words of `models.equality.program`, and computes what is known at once.

known     small whole numbers and truth values that depend on no argument: the rank's own number, counters of loops,
          places where slices begin; a tensor of one known number is written as `full`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, prod
from typing import Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ...equality.captured import Unreadable
from ...equality.program import Described, RankProgram, Source, Step, Word
from .known import MOVED, known_result

Plain = NDArray[np.generic]
SYMMETRIC: Final = ("add", "mul", "maximum", "minimum")
NOTHING: Final = {"maximum": float("-inf"), "minimum": float("inf")}
"""Beside which the other number is taken, as XLA's simplifier does."""
MOST_KNOWN: Final = 4096
"""Elements of a tensor whose numbers are kept while a program is read: positions and counters have few."""


@dataclass
class Writer:
    """Steps of one rank; `place`: the line that is being read; `defined`: positions lie inside what they are positions
    of, as on the one device, which is defined on its inputs (JAX takes the nearest position there is).
    """

    defined: bool = False

    tensors: list[Described] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    arrays: dict[int, Plain] = field(default_factory=dict)
    known: dict[int, Plain] = field(default_factory=dict)
    values: dict[int, float | int | bool] = field(default_factory=dict)
    makers: dict[int, Step] = field(default_factory=dict)
    limits: dict[int, tuple[float, float]] = field(default_factory=dict)
    place: str = ""
    messages: int = 0
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)

    # ------------------------------------------------------------------ tensors

    def shape(self, number: int) -> tuple[int, ...]:
        """Of a tensor."""
        return self.tensors[number].shape

    def dtype(self, number: int) -> str:
        """Of a tensor."""
        return self.tensors[number].dtype

    def source(self, name: str, kind: str, array: Plain, dtype: str) -> int:
        """A tensor that is given."""
        self.tensors.append(Described(tuple(array.shape), dtype))
        number = len(self.tensors) - 1
        self.sources.append(Source(number, name, kind))
        self.arrays[number] = array
        return number

    def constant(self, array: Plain, dtype: str) -> int:
        """A constant: one number everywhere, or its elements."""
        if array.size and (array.reshape(-1)[0] == array).all():
            number = self.full(tuple(array.shape), array.reshape(-1)[0].item(), dtype)
        else:
            many = sum(s.kind == "constant" for s in self.sources)
            number = self.source(f"constant {many}", "constant", array, dtype)
        if array.size <= MOST_KNOWN:
            self.known[number] = array
        return number

    def full(self, shape: tuple[int, ...], value: float | bool, dtype: str) -> int:
        """One number everywhere."""
        key = ("full", shape, repr(value), dtype)
        if key not in self._numbers:
            whole = isinstance(value, int) and abs(value) > 1 << 53
            words: dict[str, Word] = {"shape": shape, "value": value if whole else float(value), "dtype": dtype}
            self._numbers[key] = self.step("full", (), words, shape, dtype)
            self.values[self._numbers[key]] = value
            if prod(shape) <= MOST_KNOWN:
                kind = np.bool_ if dtype == "bool" else np.int64 if dtype.startswith(("int", "uint")) else np.float64
                self.known[self._numbers[key]] = np.full(shape, value, kind)
        return self._numbers[key]

    def uniform(self, number: int) -> float | int | bool | None:
        """The only number of a tensor that is known to hold no other."""
        if number in self.values:
            return self.values[number]
        held = self.known.get(number)
        if held is None or not held.size or not (held == held.reshape(-1)[0]).all():
            return None
        found: float | int | bool = held.reshape(-1)[0].item()
        return found

    # ------------------------------------------------------------------ steps

    def step(
        self, operator: str, reads: tuple[int, ...], words: Mapping[str, Word], shape: tuple[int, ...], dtype: str
    ) -> int:
        """A step that makes one tensor."""
        return self.steps_of(operator, reads, words, ((shape, dtype),))[0]

    def steps_of(
        self,
        operator: str,
        reads: tuple[int, ...],
        words: Mapping[str, Word],
        made: Sequence[tuple[tuple[int, ...], str]],
    ) -> tuple[int, ...]:
        """A step; the numbers of what it makes."""
        described = tuple(Described(tuple(int(n) for n in s), d) for s, d in made)
        if operator != "full" and len(made) == 1 and prod(made[0][0]) <= MOST_KNOWN:
            value = known_result(operator, words, [self.known.get(n) for n in reads], described[0].dtype)
            if value is not None and value.size and (value == value.reshape(-1)[0]).all():
                return (self.full(described[0].shape, value.reshape(-1)[0].item(), described[0].dtype),)
        else:
            value = None
        first = len(self.tensors)
        self.tensors += described
        numbers = tuple(range(first, first + len(described)))
        self.steps.append(Step(operator, reads, numbers, tuple(words.items()), self.place))
        self.makers.update(dict.fromkeys(numbers, self.steps[-1]))
        if value is not None:
            self.known[first] = value
        return numbers

    def two(self, operator: str, a: int, b: int, dtype: str) -> int:
        """A function of two tensors of one shape; one number everywhere is a word."""
        shape = self.shape(a)
        x, y = self.uniform(a), self.uniform(b)
        if operator in ("maximum", "minimum") and dtype.startswith(("int", "uint")) and (x is None) != (y is None):
            return self._limited(operator, a if x is None else b, y if x is None else x)
        for one, end in ((a, y), (b, x)):
            if end is not None and NOTHING.get(operator) == end and self.dtype(one).startswith(("float", "bfloat")):
                return one
        if x is None and _is_number(y):
            return self.step(operator, (a,), {"number": y}, shape, dtype)
        if y is None and _is_number(x):
            turned: dict[str, Word] = {} if operator in SYMMETRIC else {"reverse": True}
            return self.step(operator, (b,), {"number": x, **turned}, shape, dtype)
        return self.step(operator, (a, b), {}, shape, dtype)

    def _limited(self, operator: str, number: int, end: float | None) -> int:
        """max(x, n) or min(x, n) of whole numbers, as the choice that it is: so PyTorch's `clamp` is written too."""
        end = 0 if end is None else end
        shape, dtype, low = self.shape(number), self.dtype(number), operator == "maximum"
        stays = self.step("ge" if low else "le", (number,), {"number": end}, shape, "bool")
        made = self.step("where", (stays, number, self.full(shape, end, dtype)), {}, shape, dtype)
        least, most = self.bounds(number)
        self.limits[made] = (max(least, end), max(most, end)) if low else (min(least, end), min(most, end))
        return made

    def bounds(self, number: int) -> tuple[float, float]:
        """Between which numbers all elements are known to lie: of constants, and behind `maximum`
        and `minimum`."""
        held = self.known.get(number)
        if held is not None and held.size and held.dtype.kind in "iu":
            return float(held.min()), float(held.max())
        if number in self.limits:
            return self.limits[number]
        maker = self.makers.get(number)
        if maker is None:
            return float("-inf"), float("inf")
        words = dict(maker.words)
        if maker.operator in MOVED:
            return self.bounds(maker.reads[0])
        if maker.operator == "cast":  # a narrower type wraps what it does not hold
            found = self.bounds(maker.reads[0])
            return found if holds(self.dtype(number), *found) else (float("-inf"), float("inf"))
        if maker.operator in ("topk", "sort") and number == maker.makes[-1] and isinstance(words["dim"], int):
            return 0.0, self.shape(maker.reads[0])[words["dim"]] - 1.0
        return float("-inf"), float("inf")

    def reshape(self, number: int, shape: tuple[int, ...]) -> int:
        """The same elements in another shape."""
        maker = self.makers.get(number)
        if maker is not None and maker.operator == "reshape":
            number = maker.reads[0]
        if self.shape(number) == shape:
            return number
        return self.step("reshape", (number,), {"shape": shape}, shape, self.dtype(number))

    def permute(self, number: int, dims: Sequence[int]) -> int:
        """Dimensions in another order."""
        if list(dims) == sorted(dims):
            return number
        was = self.shape(number)
        shape = tuple(was[d] for d in dims)
        if (long := [d for d in dims if was[d] != 1]) == sorted(long):
            return self.reshape(number, shape)
        return self.step("permute", (number,), {"dims": tuple(dims)}, shape, self.dtype(number))

    def expand(self, number: int, shape: tuple[int, ...]) -> int:
        """Repeated where an extent is one."""
        if self.shape(number) == shape:
            return number
        return self.step("expand", (number,), {"shape": shape}, shape, self.dtype(number))

    def slice(self, number: int, dim: int, start: int, stop: int, step: int = 1) -> int:
        """Positions of a dimension; of a buffer that was written piece by piece, as `scan` keeps what gradients read,
        those of the piece.
        """
        if step == 1:
            number, start, stop = self._piece(number, dim, start, stop)
        was = self.shape(number)
        if (start, stop, step) == (0, was[dim], 1):
            return number
        shape = (*was[:dim], len(range(start, stop, step)), *was[dim + 1 :])
        words: dict[str, Word] = {"dim": dim, "start": start, "stop": stop, "step": step}
        return self.step("slice", (number,), words, shape, self.dtype(number))

    def _piece(self, number: int, dim: int, start: int, stop: int) -> tuple[int, int, int]:
        """What was written last at positions of a buffer, and the positions there."""
        while (maker := self.makers.get(number)) is not None and maker.operator == "slice_scatter":
            words, (before, new) = dict(maker.words), maker.reads
            first = words["start"]
            if words["dim"] != dim or words["step"] != 1 or not isinstance(first, int):
                break
            last = first + self.shape(new)[dim]
            if first <= start and stop <= last:
                number, start, stop = new, start - first, stop - first
            elif stop <= first or last <= start:
                number = before
            else:
                break
        return number, start, stop

    def cat(self, numbers: Sequence[int], dim: int) -> int:
        """One behind another along a dimension."""
        if len(numbers) == 1:
            return numbers[0]
        first = self.shape(numbers[0])
        shape = (*first[:dim], sum(self.shape(n)[dim] for n in numbers), *first[dim + 1 :])
        return self.step("cat", tuple(numbers), {"dim": dim}, shape, self.dtype(numbers[0]))

    def cast(self, number: int, dtype: str) -> int:
        """In another element type."""
        was = self.dtype(number)
        if was == dtype:
            return number
        return self.step("cast", (number,), {"dtype": dtype, "was": was}, self.shape(number), dtype)

    # ------------------------------------------------------------------ the end

    def refuse(self, what: str) -> Unreadable:
        """An error that names the line."""
        return Unreadable(f"{what}{f' ({self.place})' if self.place else ''}")

    def program(self, outputs: Sequence[tuple[str, int]]) -> RankProgram:
        """What was written down."""
        return RankProgram(tuple(self.sources), tuple(self.steps), tuple(outputs), tuple(self.tensors))


def holds(dtype: str, least: float, most: float) -> bool:
    """Whether an integer type has all whole numbers between these.

    >>> holds("int8", 0, 127), holds("int8", 0, 128), holds("float32", 0, 1)
    (True, False, False)
    """
    if not dtype.startswith(("int", "uint")):
        return False
    ends = np.iinfo(dtype)
    return ends.min <= least and most <= ends.max


def _is_number(value: float | bool | None) -> TypeGuard[float]:
    """Whether it is a number that a step may name: neither a truth value nor NaN."""
    return value is not None and not isinstance(value, bool) and not isnan(value)
