"""The program that a graph was imported from, as its own framework runs it, and what became of
comparing the two.

Loaders hand it back beside the graph; `backends.execution.differential` runs both on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...program.graph import Graph
from ...text import InputError

Values = npt.NDArray[np.float64]
"""An array of any element type, as kernels take it."""
Schedule = tuple[tuple[str, tuple[tuple[str, tuple[tuple[str, int], ...]], ...]], ...]
"""Operator -> axis -> level -> degree."""
Run = Callable[[Mapping[str, Values]], tuple[Values, ...]]
Gradients = Callable[[Mapping[str, Values], int, Values], Mapping[str, Values]]


class Undefined(Exception):
    """The framework refuses these numbers, leaves open what it makes of them, or does not run the program here; its
    text says which.
    """


class NoGradient(Undefined):
    """The framework has no gradient of the program, of which ours has one; its text says why."""


@dataclass(frozen=True)
class Parts:
    """A program whose every value is an output: its `graph`; `run`: values of inputs and parameters to those of the
    graph's outputs, in order; `places`: the operator of the program that makes an output, and its line; `gradients`:
    as those of an `Original`.
    """

    graph: Graph
    run: Run
    places: Mapping[str, str]
    gradients: Gradients | None = None


@dataclass(frozen=True)
class Original:
    """`framework`: name and version.  `run`: values of the graph's inputs and parameters by name, as arrays of their
    source shape and element type (bfloat16 as float32), to its outputs and next states in order; raises `Undefined`.
    `gradients`: the same values, the number of an output and an array of its shape, to the gradients of the sum of
    their product by parameter; None where the framework has none.  `parts`: the same program operator by operator;
    raises `Undefined` and the errors of imports where it cannot be had.  `ties`: whether the order
    of equal elements is said.  `casts`: whether it is said which integer a real number becomes that is none.  `zeros`:
    whether its products of arrays make NaN of 0 times infinity just where the program has both (libraries of linear
    algebra skip zeros, or bring zeros of their own).  `corners`: whether it chooses as our operators do where a
    function has several gradients.  `pointers`: inputs that say where rows begin, so that they ascend, and the last
    place they may name.  `schedule`: what the program says about the degrees of its operators.  `maps`: whether its
    maps are recorded from one turn, so that only a comparison shows that all turns do the same.
    """

    framework: str
    run: Run
    gradients: Gradients | None = None
    parts: Callable[[], Parts] | None = None
    ties: bool = True
    casts: bool = False
    zeros: bool = True
    corners: bool = False
    pointers: Mapping[str, int] = field(default_factory=dict)
    schedule: Schedule = ()
    maps: bool = False


def not_run(framework: str, why: str) -> Original:
    """The original of a program that its framework does not run here.

    >>> not_run("NumPy", "it calls backward").framework
    'NumPy'
    """

    def refuse(values: Mapping[str, Values]) -> tuple[Values, ...]:
        raise Undefined(why)

    return Original(framework, refuse)


@dataclass(frozen=True)
class Comparison:
    """What a graph was compared with.  `samples`: sets of numbers on which both gave the same; `gradients`: those whose
    gradients were compared too; `undefined`: sets that the framework refuses; `bar`: the greatest difference that is
    none, in words; `left_out`: why nothing was compared, or what was not.
    `schedule`: that of the program, as of an `Original`.
    """

    framework: str = ""
    samples: int = 0
    gradients: int = 0
    undefined: int = 0
    bar: str = ""
    left_out: str = ""
    schedule: Schedule = ()

    @property
    def words(self) -> str:
        """One line for people.

        >>> Comparison("NumPy 2.3", 5, bar="1e-13").words
        'compared with NumPy 2.3 on 5 sets of numbers: equal (to 1e-13)'
        >>> Comparison(left_out="--no-compare").words
        'not compared with the program it came from: --no-compare'
        """
        if not self.samples:
            return f"not compared with the program it came from: {self.left_out}"
        many = f"{self.samples} set{'s' if self.samples > 1 else ''} of numbers"
        slopes = f", gradients on {self.gradients}" if self.gradients else ""
        rest = f"; {self.left_out}" if self.left_out else ""
        return f"compared with {self.framework} on {many}{slopes}: equal (to {self.bar}){rest}"

    def to_json(self) -> dict[str, object]:
        """What `--json` says."""
        return {
            "framework": self.framework or None,
            "samples": self.samples,
            "gradients": self.gradients,
            "undefined": self.undefined,
            "bar": self.bar or None,
            "left_out": self.left_out or None,
        }


class Differs(InputError):
    """A graph that does something else than the program it came from; exit 3."""


class Comparer(Protocol):
    """Compares graphs with their originals; the front door does, which sees the kernels."""

    def compare_import(self, graph: Graph, original: Original, wanted: bool, trained: bool) -> Comparison:
        """The comparison, of gradients too where the graph is `trained`.  Raises `Differs`."""
        ...
