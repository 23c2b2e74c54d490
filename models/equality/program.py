"""Programs of ranks: what one rank computes and sends, step by step, without views and without writing in place.

    source   a tensor that is given: an input, a parameter, a constant of the program
    step     operator, numbers of the tensors that it reads and makes, words (attributes), the line of the user's file
    output   name and number; gradients are outputs named `grad NAME`

Operators and their words (dims are >= 0; `x` the first operand; floats are exact doubles):

    reshape shape | permute dims | expand shape | slice dim start stop step | cat dim
    slice_scatter dim start stop step (x with the second operand in that place) | full shape value dtype
    iota n start step dtype | cast dtype
    add sub mul div maximum minimum pow (two operands, or one and `number`; `reverse`: the number stands first)
    neg exp log sqrt rsqrt reciprocal abs sign tanh erf sigmoid sin cos floor ceil round trunc log1p expm1
    gt ge lt le eq ne (likewise with `number`; truth values) | logical_and logical_or logical_not
    where (condition, a, b) | matmul (ranks 2 x 2 or 3 x 3) | sum amax amin (dims, keep)
    gather dim wrap (index) | scatter_add dim wrap (x, index, source)
    index wrap (x, index tensors of the first dimensions)
    index_add wrap (x, index tensors for the first dimensions, source; accumulated)
    cumsum dim | topk dim k largest (two outputs) | sort dim descending (two outputs) | tril triu diagonal
    all_reduce op ranks | all_gather ranks (one behind another along dimension 0) | reduce_scatter op ranks
    all_to_all ranks send receive (splits of dimension 0) | broadcast ranks source | reduce op ranks target
    send to tag (no output) | recv of tag | barrier ranks
    `wrap`: negative positions count from the end (where the word is not there: of `index`, `index_add`); else there
    are none
    `op` is sum, avg, max, min or product; `ranks` are global, in the order of the group

The program of ranks on a mesh (`pair.Mesh`) says for the rank at coordinates c, counted from 0:

    along    instead of `ranks`: mesh dimensions; the group is of the ranks that differ in these alone, in row-major
             order; `source` is a place in it
    moves    of `number`, `value`, or `start` and `stop`: they are greater by the sum of moves[j] c[j]
    to of    a program instead of a rank: the one of its ranks that has the same coordinates
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Word = str | int | float | bool | tuple[int, ...]

COLLECTIVES: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"})
"""Operators for which ranks wait for one another."""

KEPT: Final = COLLECTIVES | {"send", "recv", "barrier"}
"""Operators that say something to other ranks: they stay, whether or not anything reads what they make."""


@dataclass(frozen=True)
class Described:
    """A tensor: its shape and element type, as PyTorch calls it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Source:
    """A given tensor; `kind`: input, parameter or constant."""

    number: int
    name: str
    kind: str


@dataclass(frozen=True)
class Step:
    """One operator."""

    operator: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    words: tuple[tuple[str, Word], ...] = ()
    line: str = ""

    def word(self, name: str) -> Word:
        """A word; ValueError if the step has none of this name."""
        for key, value in self.words:
            if key == name:
                return value
        raise ValueError(f"{self.operator} says no {name}")


@dataclass(frozen=True)
class RankProgram:
    """What one rank does; `tensors` by number."""

    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, int], ...]
    tensors: tuple[Described, ...]
