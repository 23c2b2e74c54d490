"""The recorder: what a traced function did, as operators of a graph in the making.

Tensors are numbered while the function runs and get their names at the end: an operator whose value a statement assigns
to a variable is called like the variable (`Q = np.einsum(..)` makes operator `Q`), others like the NumPy function.  A
name used before gets `_2`, `_3`, ..  Operators that no result needs are left out.

A NumPy function without a translation does not end the trace if NumPy itself can tell the shape of its result: all
unsupported functions of a program are listed at once, with their lines.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isnan, nan
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.graph import ELEMENT_BYTES, Graph, GraphError, Role, Tensor, UnsupportedOperators
from ...program.index import Access, Affine, Axis
from ...program.operators import FUNCTIONS, Operator, Value
from ...program.specified import Specified, specified_in
from ..building.original import Schedule
from .views import View, whole

MOST_OPERATORS: Final = 50_000
"""Operators that one program may make: four times those of the largest unrolled model of the zoo, recorded in about
5 s.
"""

Constant = npt.NDArray[np.generic]

HINT = "supported NumPy functions: 'shardproof import --list-ops'"

CONSTANT_LIMIT = 1 << 16
"""Elements of the largest array that may stand in a program as a constant; larger ones are to be passed as
arguments.
"""

_OURS = (__name__.rpartition(".")[0] + ".", "numpy.")


class TraceError(ValueError):
    """A program that cannot be traced; `place` is file and line."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass
class _Made:
    """A recorded operator; `name` is decided at the end."""

    function: str
    axes: tuple[Axis, ...]
    inputs: tuple[Access, ...]
    output: Access
    attributes: tuple[tuple[str, Value], ...]
    base: str
    assigned: str | None = None
    at: str = ""


class Recorder:
    """Collects the operators of one traced function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.made: list[_Made] = []
        self.unsupported: dict[str, list[str]] = {}
        self.leaves: list[object] = []
        self.zeros: set[str] = set()
        self.lines: dict[str, str] = {}
        self.specified: list[Specified] = []
        self.escaped: TraceError | None = None
        self.notes: list[str] = []
        self.loops: list[object] = []
        self.touched: list[tuple[object, object]] = []
        self.rows: dict[object, View] = {}
        self.pointers: dict[str, int] = {}
        self.degrees: dict[str, dict[str, Mapping[str, int]]] = {}
        self.schedule: Schedule = ()
        self._constants: dict[tuple[object, ...], View] = {}
        self._depth = 0

    def input(self, name: str, shape: Sequence[int], dtype: str, role: Role) -> View:
        """An argument of the function.  Raises `GraphError` for a shape or element type that no tensor can have."""
        if dtype not in ELEMENT_BYTES:
            raise GraphError(
                f"argument {name!r}", f"unknown element type {dtype!r}; choose one of {', '.join(ELEMENT_BYTES)}"
            )
        if any(type(n) is not int or n < 1 for n in shape):
            raise GraphError(
                f"argument {name!r}", f"shape {tuple(shape)}: every extent must be an integer of at least 1"
            )
        self.tensors[name] = Tensor(name, tuple(shape), dtype, role)
        return whole(name, shape)

    def dtype(self, view: View) -> np.dtype[np.generic]:
        """Element type of what a view shows."""
        name = self.tensors[view.tensor].dtype
        return np.dtype("float32" if name == "bfloat16" else name)

    def emit(
        self,
        function: str,
        base: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        dtype: np.dtype[np.generic],
        attributes: Mapping[str, Value] | None = None,
    ) -> View:
        """Record an operator; its result is a new tensor indexed by the axes `out`.  Raises `TraceError`."""
        if function not in FUNCTIONS:
            raise TraceError(place(), f"{base}: function {function!r} is not in the function table")
        if dtype.name not in ELEMENT_BYTES:
            raise TraceError(place(), f"{base}: element type {dtype.name!r} is not supported")
        extents = {a.name: a.extent for a in axes}
        shape = tuple(extents[a] for a in out)
        if 0 in extents.values():
            raise TraceError(place(), f"{base}: makes an array of shape {shape}; empty arrays are not supported")
        self._room()
        tensor = f"%{len(self.made)}"
        self.tensors[tensor] = Tensor(tensor, shape, dtype.name)
        output = Access(tensor, tuple(Affine.axis(a) for a in out))
        self.made.append(
            _Made(function, tuple(axes), tuple(inputs), output, tuple(sorted((attributes or {}).items())), base)
        )
        return whole(tensor, shape)

    def _room(self) -> None:
        """Room for one more operator: a loop is recorded turn by turn, and one without end would fill the memory."""
        if len(self.made) >= MOST_OPERATORS:
            raise TraceError(
                place(),
                f"the program makes more than {MOST_OPERATORS:,} operators; loops are recorded iteration by iteration: "
                f"shorten the loop, or write it as one array operation",
            )

    def add(self, op: Operator, shape: tuple[int, ...], dtype: str) -> str:
        """Record an operator as it stands, under a new tensor; `%3` in its name stands for the final name of tensor
        `%3`.
        """
        self._room()
        tensor = f"%{len(self.made)}"
        self.tensors[tensor] = Tensor(tensor, shape, dtype)
        self.made.append(
            _Made(op.function, op.axes, op.inputs, Access(tensor, op.output.index), op.attributes, op.name)
        )
        return tensor

    def plain(self, tensor: str) -> View:
        """A tensor as an array."""
        return whole(tensor, self.tensors[tensor].shape)

    def constant(self, array: Constant) -> View:
        """An array that the program holds: one value, positions, or a list of values.  Equal constants are one
        tensor.
        """
        values = np.asarray(array)
        if values.dtype == object or values.dtype.name not in ELEMENT_BYTES:
            raise TraceError(place(), f"a constant array of element type {values.dtype.name!r} is not supported")
        if values.size == 0:
            raise TraceError(place(), f"a constant array of shape {values.shape}; empty arrays are not supported")
        key = (values.dtype.name, values.shape, values.tobytes())
        if key not in self._constants:
            self._constants[key] = self._constant(values)
            self.made[-1].at = place()
        return self._constants[key]

    def _constant(self, values: Constant) -> View:
        flat, dtype = values.reshape(-1), values.dtype
        if same_bits(flat):
            first = flat[0].item() if dtype.kind == "f" else flat[0].item() + 0
            one = self.emit(
                "iota",
                "fill",
                [Axis("i0", 1)],
                [],
                ["i0"],
                dtype,
                {"along": "i0", "start": nan if isnan(first) else first, "step": 0},
            )
            if not flat[0]:
                self.zeros.add(one.tensor)
            return View(one.tensor, (Affine(),), values.shape, (1,))
        step = int(flat[1]) - int(flat[0]) if dtype.kind in "iu" else 0
        even = values.ndim == 1 and dtype.kind in "iu" and bool((np.diff(flat) == np.diff(flat[:2])).all())
        if even and abs(step) < 1 << 63:  # further apart than any int64 says: a constant
            return self.emit(
                "iota",
                "arange",
                [Axis("i0", values.size)],
                [],
                ["i0"],
                dtype,
                {"along": "i0", "start": int(flat[0]), "step": step},
            )
        if values.size > CONSTANT_LIMIT:
            raise TraceError(
                place(),
                f"a constant of {values.size} elements is larger than {CONSTANT_LIMIT}; make it an argument of "
                f"the program",
            )
        names = [f"i{k}" for k in range(values.ndim)]
        listed: Value = (
            tuple(float(x).hex() for x in flat.tolist()) if dtype.kind == "f" else tuple(int(x) for x in flat.tolist())
        )
        axes = [Axis(a, n) for a, n in zip(names, values.shape, strict=True)]
        return self.emit("constant", "constant", axes, [], names, dtype, {"values": listed})

    def enter(self) -> bool:
        """A NumPy call begins; whether the user's program made it (and not one of our translations)."""
        self._depth += 1
        return self._depth == 1

    @property
    def called_by_user(self) -> bool:
        """Whether the call that runs was made by the program, and not by one of our translations."""
        return self._depth == 1

    def leave(self, outermost: bool, before: int) -> None:
        """A NumPy call ends: the last operator it recorded is called like the variable that receives the value."""
        self._depth -= 1
        if outermost and len(self.made) > before:
            self.made[-1].assigned = self.made[-1].assigned or assigned_name()

    def miss(self, function: str) -> None:
        """Remember a function without translation, and where it was called."""
        self.unsupported.setdefault(function, []).append(place())

    def finish(
        self, outputs: Sequence[View], names: Sequence[str], state: Sequence[tuple[str, View]] = ()
    ) -> tuple[Graph, list[str]]:
        """The graph and the tensors of its outputs.  `state`: parameters and their next values.

        Raises `UnsupportedOperators`, all functions at once.
        """
        if self.unsupported:
            raise UnsupportedOperators(self.unsupported, HINT)
        wanted: list[str] = []
        for view, name in zip(outputs, names, strict=True):
            if not view.identity or view.tensor in wanted:
                axes = [Axis(f"i{k}", n) for k, n in enumerate(view.shape)]
                labels = [a.name for a in axes]
                view = self.emit("copy", name, axes, [view.access(labels)], labels, self.dtype(view))
            wanted.append(view.tensor)
        following = [(name, self._stored(name, view, wanted)) for name, view in state]
        kept = self._needed([*wanted, *(tensor for _, tensor in following)])
        final = self._names(kept)
        tensors = [t for t in self.tensors.values() if t.role is not Role.VALUE]
        operators = []
        for made in kept:
            old, new = self.tensors[made.output.tensor], final[made.output.tensor]
            tensors.append(Tensor(new, old.shape, old.dtype))
            inputs = tuple(Access(final.get(a.tensor, a.tensor), a.index) for a in made.inputs)
            operators.append(
                Operator(new, made.function, made.axes, inputs, Access(new, made.output.index), made.attributes)
            )
        self.lines = {final[made.output.tensor]: made.at for made in kept if made.at}
        results = [final.get(t, t) for t in wanted]
        self.schedule = tuple(
            (final[t], tuple((axis, tuple(d.items())) for axis, d in sorted(axes.items())))
            for t, axes in self.degrees.items()
            if t in final
        )
        pairs = tuple((name, final[tensor]) for name, tensor in following)
        graph = Graph(self.name, tuple(tensors), tuple(operators), tuple(results), pairs)
        return replace(graph, specified=tuple(specified_in(graph, self.specified, final))).check(), results

    def _stored(self, name: str, view: View, wanted: Sequence[str]) -> str:
        """The tensor that holds a parameter's next value: computed, and no output."""
        if view.identity and view.tensor not in wanted and self.tensors[view.tensor].role is Role.VALUE:
            return view.tensor
        axes = [Axis(f"i{k}", n) for k, n in enumerate(view.shape)]
        labels = [a.name for a in axes]
        return self.emit("copy", f"{name}.next", axes, [view.access(labels)], labels, self.dtype(view)).tensor

    def _needed(self, wanted: Sequence[str]) -> list[_Made]:
        alive, kept = set(wanted), []
        for made in reversed(self.made):
            if made.output.tensor in alive:
                kept.append(made)
                alive.update(a.tensor for a in made.inputs)
        return kept[::-1]

    def _names(self, kept: Sequence[_Made]) -> dict[str, str]:
        taken = {t.name for t in self.tensors.values() if t.role is not Role.VALUE}
        final: dict[str, str] = {}
        for made in kept:
            base = made.assigned or re.sub(r"%\d+", lambda m: final.get(m[0], m[0][1:]), made.base)
            name, n = base, 1
            while name in taken:
                n += 1
                name = f"{base}_{n}"
            taken.add(name)
            final[made.output.tensor] = name
        return final


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_OURS):
        frame = frame.f_back
    return frame


def same_bits(values: Constant) -> bool:
    """Whether all numbers of an array are one, NaN and the sign of zero included.

    >>> same_bits(np.array([np.nan, np.nan])), same_bits(np.array([0.0, -0.0]))
    (True, False)
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(np.dtype(f"u{flat.dtype.itemsize}")) if flat.dtype.kind == "f" else flat
    return bool((bits == bits[0]).all())


def place() -> str:
    """File and line of the user's program that runs now."""
    frame = _user_frame()
    return "program" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def own_error(error: Exception) -> bool:
    """Whether it is one that we raised with a place of its own."""
    return type(error).__module__.partition(".")[0] == __name__.partition(".")[0]


def raised_at(error: Exception) -> str:
    """File and line of the user's program where it was raised."""
    frames = [
        (f.f_code.co_filename, line)
        for f, line in walk_tb(error.__traceback__)
        if not f"{f.f_globals.get('__name__')}.".startswith(_OURS)
    ]
    return f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else "program"


_STATEMENTS: dict[str, dict[tuple[int | None, ...], str]] = {}


def assigned_name() -> str | None:
    """The variable that receives the value of the expression that runs now, if a statement `name = expression` is
    running.
    """
    frame = _user_frame()
    if frame is None:
        return None
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    file = frame.f_code.co_filename
    if positions is None:
        return None
    if file not in _STATEMENTS:
        _STATEMENTS[file] = _assignments("".join(linecache.getlines(file)))
    return _STATEMENTS[file].get(positions)


def _assignments(source: str) -> dict[tuple[int | None, ...], str]:
    """Place of the value of every statement `name = value` or `name op= value` -> name."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[int | None, ...], str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            v = node.value
            found[v.lineno, v.end_lineno, v.col_offset, v.end_col_offset] = node.targets[0].id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found[node.lineno, node.end_lineno, node.col_offset, node.end_col_offset] = node.target.id
    return found
