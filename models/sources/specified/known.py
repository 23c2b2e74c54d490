"""Keeps the operators that the user has specified in this process: by name, as a function on arrays and as
PyTorch's operators of that name.

A file says what an operator computes, and executes nothing.  `operator` is called in a user's program; the command line
has `--operator FILE`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from ...files.input import regular
from ...program.index import Access, Axis
from ...program.operators import Value
from ...program.specified import Specified
from .expansion import expand, placements, use_of
from .gradient import check_gradients, evaluate
from .specification import Specification, SpecificationError, specification

if TYPE_CHECKING:
    from ...program.graph import Graph
    from ..numpy.array import TracedArray
    from ..numpy.recorder import Recorder

ArrayT = TypeVar("ArrayT")

_KNOWN: dict[str, Specification] = {}
_CALLED: set[str] = set()


def know(s: Specification) -> Specification:
    """Make an operator known in this process.  Raises `SpecificationError` if another one has its name."""
    if _KNOWN.setdefault(s.name, s) != s:
        raise SpecificationError(s.name, "is specified twice, and not alike; give one of the two another name")
    return s


def forget() -> None:
    """Know no operator any more."""
    _KNOWN.clear()
    _CALLED.clear()


MOST_BYTES: Final = 1 << 16
"""Bytes of a file: a hundred times those of a long formula."""


def read_specification(path: Path) -> Specification:
    """The operator of a file, whose stated gradients are compared with its formula.  Raises `SpecificationError`."""
    place = str(path)
    try:
        regular(path)
        raw = path.read_bytes()
    except OSError as error:
        raise SpecificationError(place, f"cannot be read: {error.strerror or error}") from None
    if len(raw) > MOST_BYTES:
        raise SpecificationError(place, f"has {len(raw)} bytes, at most {MOST_BYTES} are read")
    try:
        data = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise SpecificationError(place, f"is not TOML: {str(error)[:200]}") from None
    return check_gradients(specification(data, place), place)


def known_as(called: str) -> Specification | None:
    """The operator that PyTorch calls `namespace.name.overload`.

    >>> known_as("aten.add.Tensor") is None
    True
    """
    space, _, rest = called.partition(".")
    name = rest.partition(".")[0]
    return _KNOWN.get(f"{space}::{name}") or (None if space == "aten" else _KNOWN.get(name))


def read_operators(files: Sequence[Path]) -> tuple[Specification, ...]:
    """The operators of files, known from now on.  Raises `SpecificationError`."""
    return tuple(know(read_specification(path)) for path in files)


def note_call(s: Specification, tensors: Mapping[str, str], result: str) -> Specified:
    """What a graph says of a call; the operator counts as called from now on."""
    _CALLED.add(s.name)
    return use_of(s, tensors, result)


def operator_notes(operators: Sequence[Specification], graph: Graph) -> list[str]:
    """What splitting the axes of the operators that a graph calls means, in words.  Raises `SpecificationError` for one
    of `operators` that no program has called.
    """
    if idle := [s.name for s in operators if s.name not in _CALLED]:
        raise SpecificationError(idle[0], "is specified, and the model does not call it; leave out --operator")
    stated = dict.fromkeys(use.name for use in graph.specified)
    words = [f"{name}: {' | '.join(placements(_KNOWN[name]))}" for name in stated if name in _KNOWN]
    lost = [s.name for s in operators if s.name not in stated]
    return words + [f"{name}: its formula is not compared, as parts of its tensors became others" for name in lost]


@dataclass(frozen=True)
class SpecifiedOperator:
    """A function of arrays: NumPy's are computed as the formula says, those of a traced program are recorded."""

    specification: Specification

    def __call__(self, *arrays: ArrayT) -> ArrayT:
        """The operator's result.  Raises `SpecificationError` for arrays that do not fit it."""
        from ..numpy.array import TracedArray
        from ..numpy.recorder import TraceError, place

        s = self.specification
        if len(arrays) != len(s.operands):
            names = ", ".join(o.name for o in s.operands)
            raise SpecificationError(s.name, f"takes {names}, and is given {len(arrays)} arrays")
        found = next((a for a in arrays if isinstance(a, TracedArray)), None)
        if found is None:
            given = {o.name: np.asarray(a, dtype=np.float64) for o, a in zip(s.operands, arrays, strict=True)}
            extents = s.extents({name: a.shape for name, a in given.items()})
            return evaluate(s.formula, given, extents).astype(np.result_type(*map(np.asarray, arrays)))  # type: ignore[return-value]
        traced = [a for a in arrays if isinstance(a, TracedArray)]
        if len(traced) != len(arrays):
            raise TraceError(place(), f"{s.name}: takes traced arrays, nothing else; make numbers arguments")
        return found.record(lambda: _recorded(found.recorder, s, traced))  # type: ignore[return-value]


def operator(path: str | PathLike[str]) -> SpecifiedOperator:
    """The operator that a specification says (`docs/howto/operators.md`), for NumPy programs, and for PyTorch modules
    that call an operator of its name.  Raises `SpecificationError` naming place and next step.
    """
    return SpecifiedOperator(know(read_specification(Path(path))))


def _recorded(recorder: Recorder, s: Specification, arrays: Sequence[TracedArray]) -> TracedArray:
    from ..numpy.array import TracedArray
    from ..numpy.write import materialise

    views = {o.name: materialise(recorder, a.view) for o, a in zip(s.operands, arrays, strict=True)}
    kinds = {recorder.dtype(v) for v in views.values()}
    if len(kinds) != 1 or min(kinds).kind != "f":
        named = ", ".join(sorted(k.name for k in kinds))
        raise SpecificationError(s.name, f"takes real numbers of one element type, and is given {named}")
    tensors, shapes = {n: v.tensor for n, v in views.items()}, {n: v.shape for n, v in views.items()}

    def emit(
        part: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Mapping[str, Value],
    ) -> str:
        base = f"{s.short}.{part}" if part else s.short
        return recorder.emit(function, base, axes, inputs, out, min(kinds), attributes).tensor

    result = expand(s, tensors, shapes, emit)
    recorder.specified.append(note_call(s, tensors, result))
    return TracedArray.of(recorder, recorder.plain(result))
