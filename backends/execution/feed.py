"""The data of step n and the values that training begins with depend on numbers alone, so that a run that goes on sees
what it would have seen.

    from nothing       drawn from (seed, n, name)
    FILE.npz, DIR      row (n - 1) mod rows of each array: of the file, or of NAME.npy in the folder, which is mapped
    FILE.py:NAME       NAME(n) -> {input: array}
    what a run began with    the same inputs in every step

Weights begin as `run` draws them, what optimizers remember as zeros, the scale of a loss as 65536.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from ...models.files.input import regular
from ...models.program.graph import Graph, Role, Tensor
from ...models.sources.building.python_file import load_object
from ...models.sources.training.scaling import SCALE, STEPS
from ...models.text import InputError
from ..kernels import Array, execution_dtype
from .array_files import KINDS, PickedRows, check_positions, known_values, picked_rows, read_inputs
from .held import lasting
from .reference import as_stored, random_inputs

Maker = Callable[[int], Mapping[str, Array]]

PLACE: Final = "data of step"

_ZERO: Final = frozenset({("adam_moment1", 0), ("adam_moment2", 0), ("momentum", 0), ("lion_update", 1)})
"""(function, operand) that read what an optimizer remembers."""

_WORDS: Final = {"f": "floating-point numbers", "i": "integers", "u": "integers", "b": "truth values"}


def fed(graph: Graph) -> tuple[str, ...]:
    """The inputs of a graph that are new in every step.

    >>> from ...models.sources.training import training_step
    >>> from ...models.sources.zoo import build
    >>> fed(training_step(build("mlp-unity"), "sgd"))
    ('x', 'labels')
    """
    kept = {*lasting(graph), *known_values(graph, None)}
    return tuple(t.name for t in graph.tensors if t.role is not Role.VALUE and t.name not in kept)


def first_values(graph: Graph, seed: int, dtype: str | None = "float64") -> dict[str, Array]:
    """What training begins with, drawn from the seed, in digit shape."""
    readers, renewed = graph.readers(), {name for name, _ in graph.state}
    values = random_inputs(graph, seed, dtype, lasting(graph))
    for name, array in values.items():
        reads = {(graph.operators[i].function, j) for i, j in readers[name]}
        if name in renewed and (reads <= _ZERO or name == STEPS):
            values[name] = np.zeros_like(array)
        elif name in renewed and name == SCALE:
            values[name] = np.full_like(array, 65536)
    return values


def given_values(path: Path, graph: Graph, dtype: str | None) -> dict[str, Array]:
    """What training begins with, from an `.npz` file.  Raises `InputError` naming file and array."""
    read = read_inputs(path, graph, dtype, lasting(graph))
    return {t.name: _digits(t, read[t.name]) for t in graph.tensors if t.name in lasting(graph)}


@dataclass(frozen=True)
class Feed:
    """`graph`: whose inputs are given; `dtype`: of floating data (None: each in its own type); `stored`: rounded to the
    types of the graph.  `data`: a file, a folder, FILE.py:NAME, or empty; `same`: an `.npz` with the inputs of all
    steps; `make`: a function instead.
    """

    graph: Graph
    seed: int
    dtype: str | None = "float64"
    stored: bool = False
    data: str = ""
    same: str = ""
    make: Maker | None = None

    @property
    def is_random(self) -> bool:
        """Whether data comes from the seed."""
        return not self.data and not self.same and self.make is None

    def absolute(self) -> Feed:
        """The same from any folder."""
        file, colon, name = self.data.rpartition(":") if ".py:" in self.data else (self.data, "", "")
        here = str(Path(file).resolve()) if file else ""
        return replace(self, data=here + colon + name, same=str(Path(self.same).resolve()) if self.same else "")

    def at(self, step: int) -> dict[str, Array]:
        """The data of a step, from 1, in digit shape, with the constants of the program.  Raises `InputError` naming
        the source, the array, what it is and what it has to be.
        """
        names = fed(self.graph)
        if self.is_random:
            found = random_inputs(self.graph, self.seed, self.dtype, names, step)
        elif self.same:
            found = {n: _digits(self.graph.tensor(n), v) for n, v in self._fixed.items()}
        elif self._maker is not None:
            found = self._made(step)
        else:
            rows = self._rows
            count = min((len(v) for v in rows.values()), default=1)
            found = {n: self._fitting(n, v[(step - 1) % count], self.data) for n, v in rows.items()}
        found |= known_values(self.graph, self.dtype)
        return as_stored(self.graph, found) if self.stored else found

    def _made(self, step: int) -> dict[str, Array]:
        place = f"{self.data or 'the function'}, {PLACE} {step}"
        try:
            made = self._maker(step) if self._maker is not None else {}
        except (Exception, SystemExit) as error:
            raise InputError(f"{place}: {type(error).__name__}: {error}") from error
        if not isinstance(made, Mapping):
            raise InputError(f"{place}: gives {type(made).__name__}, not a dictionary of input -> array")
        self._check_names(set(map(str, made)), place)
        return {n: self._fitting(n, np.asarray(made[n]), place) for n in fed(self.graph)}

    @cached_property
    def _maker(self) -> Maker | None:
        if self.make is not None or ".py:" not in self.data:
            return self.make
        file, _, name = self.data.rpartition(":")
        found = load_object(Path(file), name)
        if not callable(found):
            raise InputError(f"{self.data}: is no function; write one of the step's number that gives input -> array")
        return found

    @cached_property
    def _picked(self) -> dict[str, PickedRows]:
        return picked_rows(self.graph)

    @cached_property
    def _fixed(self) -> dict[str, Array]:
        return read_inputs(Path(self.same), self.graph, self.dtype, fed(self.graph))

    @cached_property
    def _rows(self) -> dict[str, Array]:
        path = Path(self.data)
        found: dict[str, Array] = {}
        try:
            if path.is_dir():
                files = {str(f.relative_to(path).with_suffix("")): f for f in sorted(path.rglob("*.npy"))}
                self._check_names(set(files), self.data)
                found = {n: np.load(regular(f), mmap_mode="r", allow_pickle=False) for n, f in files.items()}
            else:
                if path.suffix == ".py":
                    raise ValueError("of Python's files the function is named, too")
                read = np.load(regular(path), allow_pickle=False)
                if not isinstance(read, np.lib.npyio.NpzFile):
                    raise ValueError("it is one array, not a file of several")
                with read as file:
                    self._check_names(set(file.files), self.data)
                    found = {n: file[n] for n in file.files}
        except InputError:
            raise
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError, MemoryError) as error:
            raise InputError(
                f"{self.data}: cannot be read as data: {str(error)[:200]}; give an .npz file, a folder of NAME.npy, "
                f"or FILE.py:NAME"
            ) from None
        counts = {n: len(v) if v.ndim else 0 for n, v in found.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise InputError(
                f"{self.data}: arrays need one leading axis of steps, equally long and not empty; it has "
                f"{', '.join(f'{n!r} {c}' for n, c in sorted(counts.items())[:5])}"
            )
        return found

    def _check_names(self, got: set[str], place: str) -> None:
        wanted = set(fed(self.graph))
        if got != wanted:
            raise InputError(
                f"{place}: has the arrays {', '.join(map(repr, sorted(got)[:8])) or 'none'}; the inputs of "
                f"{self.graph.name!r} are {', '.join(map(repr, sorted(wanted)[:8])) or 'none'}"
            )

    def _fitting(self, name: str, array: Array, place: str) -> Array:
        """The array in digit shape and in the type that is executed."""
        t = self.graph.tensor(name)
        if tuple(array.shape) not in (t.shape, t.source_shape):
            either = "" if t.source_shape in (None, t.shape) else f" or {t.source_shape}"
            leading = " behind the axis of steps" if self.data and self._maker is None else ""
            raise InputError(
                f"{place}: array {name!r} has shape {tuple(array.shape)}{leading}, the plan needs {t.shape}{either}"
            )
        own = np.dtype(execution_dtype(t.dtype))
        kinds = {"f": "f", "i": "iu", "u": "iu", "b": "b"}[own.kind]
        if array.dtype.kind not in kinds or array.dtype.kind not in KINDS:
            raise InputError(
                f"{place}: array {name!r} holds {array.dtype}, the plan needs {_WORDS[own.kind]} ({t.dtype})"
            )
        taken = _digits(t, array).astype(self.dtype if own.kind == "f" and self.dtype else own)
        if own.kind in "iu" and not np.array_equal(taken, _digits(t, array)):
            raise InputError(
                f"{place}: array {name!r} holds {array.dtype}, some beyond what {t.dtype} of the plan holds"
            )
        if own.kind in "iu" and name in self._picked:
            check_positions(self._picked[name], array, f"{place}: array {name!r}")
        return taken


def _digits(tensor: Tensor, array: Array) -> Array:
    return np.asarray(array).reshape(tensor.shape)
