"""Translates NumPy programs: a plain function, traced through NumPy's array protocols on arrays that have a
shape and no elements.

    __array_ufunc__       elementwise functions, reductions, matmul         -> `ufuncs`
    __array_function__    einsum, concatenate, pad, where, windows, ..      -> `functions`, `shapes`
    methods, operators    slices, reshape, transpose, in-place updates      -> `index`, `write`

The function runs once, with Python's own control flow, and is not changed.  What it returns are the outputs of the
graph; a parameter that it writes in place has a next value (`Graph.state`).  `backward` is differentiated here
(`backward`).  Reshapes are removed by splitting axes into digits (`digits`).  Whatever depends on data (`if x:`,
boolean masks) is refused with file and line.

Source: thesis on automatic partitioning of array programs, chapter 8 (its programs are in
`models/sources/zoo/array_programs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...program.graph import Graph, GraphError, Role
from ..building.digits import digits_and_tensors
from ..building.original import Original, Schedule
from ..building.python_file import load_object
from . import backward as numpy_trace_backward
from . import functions as numpy_trace_functions
from . import index as numpy_trace_index
from . import map_access as numpy_trace_map_access
from .array import FUNCTION, UFUNC, TracedArray
from .containers import program_runs
from .maps import note
from .original import original_of
from .program import MARKED, ArraySpec, arguments_of, is_numpy_program
from .recorder import Recorder, TraceError, own_error, raised_at
from .repeated import check_repeats, states
from .table import FUNCTIONS, function
from .ufuncs import SUPPORTED, ufunc
from .views import View

UFUNC.append(ufunc)
FUNCTION.append(function)

Arrays = Sequence[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Traced:
    """`graph`; `arguments`: names of the inputs in the order of the signature; `results`: for every array that the
    function returns, in order, the tensor of the graph and the shape that the function gives it; `schedule`: what the
    program says about its maps; `notes`: what it says about devices, which is decided elsewhere,
    and takes for granted of its data; `pointers`: arguments that say where rows begin, and the last place they name;
    `written`: arguments whose new values are the last results."""

    graph: Graph
    arguments: tuple[str, ...]
    results: tuple[tuple[str, tuple[int, ...]], ...]
    schedule: Schedule = ()
    notes: tuple[str, ...] = ()
    pointers: tuple[tuple[str, int], ...] = ()
    written: tuple[str, ...] = ()


def trace(
    program: Callable[..., object], name: str = "", arguments: Mapping[str, ArraySpec | tuple[int, ...]] | None = None
) -> Traced:
    """The graph of a NumPy program.  `arguments` replaces shapes that it was given (a tuple keeps the element type and
    the role).

    Raises `GraphError` for arguments without shapes, `TraceError` with file and line for what cannot be traced, and
    `UnsupportedOperators` listing every NumPy function without a translation.

    >>> from .program import program
    >>> @program(a=(4, 6), b=(6, 5))
    ... def matmul(a, b):
    ...     return a @ b
    >>> op, = trace(matmul).graph.operators
    >>> op.name, [a.name for a in op.axes], op.function
    ('matmul', ['m', 'n', 'k'], 'product')
    """
    label = name or getattr(program, "__name__", "program")
    specs = arguments_of(program, arguments)
    once, _ = _traced(program, label, specs)
    before = states(program)
    again, places = _traced(program, label, specs)
    check_repeats(label, once.graph, again.graph, before, states(program), places)
    return once


def _traced(
    program: Callable[..., object], label: str, specs: Mapping[str, ArraySpec]
) -> tuple[Traced, dict[str, str]]:
    """One run of the program, and the lines of its constants."""
    recorder = Recorder(label)
    for storage in sorted({s.storage for s in specs.values() if s.storage}):
        note(recorder, f"{storage} of an argument")
    arrays = {n: _argument(recorder, n, s) for n, s in specs.items()}
    try:
        with program_runs(recorder, hasattr(program, MARKED)):
            returned = program(**arrays)
    except Exception as error:  # the user's program ran; what it raises is a fault of the program, at a line of it
        if own_error(error):
            raise
        raise recorder.escaped or TraceError(raised_at(error), f"{type(error).__name__}: {str(error)[:300]}") from error
    if recorder.escaped is not None:  # the program caught it, and went on without the data
        raise recorder.escaped
    if recorder.loops:
        raise TraceError(f"program {label!r}", "a map is left before its end (break or return)")
    results = [] if returned is None else _results(returned)
    state = [(n, a.view) for n, a in arrays.items() if specs[n].role is Role.PARAMETER and a.view.tensor != n]
    if hasattr(program, MARKED):  # what such a program writes into an argument is a result of it
        written = [n for n, a in arrays.items() if specs[n].role is not Role.PARAMETER and a.view.tensor != n]
        results += [arrays[n] for n in written]
    else:
        written = []
    if not results and not state:
        raise GraphError(f"program {label!r}", "returns no array")
    views = [r.view for r in results]
    names = [label if len(views) == 1 else f"{label}_{k}" for k in range(len(views))]
    graph, tensors = recorder.finish(views, names, state)
    final, stored = digits_and_tensors(graph)
    out = tuple((stored[t], r.shape) for t, r in zip(tensors, results, strict=True))
    return Traced(
        final,
        tuple(specs),
        out,
        recorder.schedule,
        tuple(recorder.notes),
        tuple(recorder.pointers.items()),
        tuple(written),
    ), recorder.lines


def load_program(
    path: Path,
    name: str,
    original: Callable[[Original], None] | None = None,
    tell: Callable[[str], None] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of the program `name` of a file; `original`, `tell` and `sizes` as of `graph_of`.  Raises `InputError`
    if there is none, and the errors of `trace`.
    """
    found = load_object(path, name)
    if not is_numpy_program(found) or not callable(found):
        raise GraphError(
            f"{path}:{name}", "is not a NumPy program: decorate it with @shardproof.program(x=(64, 784), ..)"
        )
    return graph_of(found, name, original=original, tell=tell, sizes=sizes)


def graph_of(
    program: Callable[..., object],
    name: str = "",
    arguments: Mapping[str, ArraySpec | tuple[int, ...]] | None = None,
    original: Callable[[Original], None] | None = None,
    tell: Callable[[str], None] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph that `trace` makes; `original` takes the function as NumPy runs it, `tell` hears the notes; `sizes`:
    numbers of sizes that have names.
    """
    specs = arguments_of(program, arguments, sizes)
    found = trace(program, name, specs)
    if original is not None:
        run = original_of(program, specs, (*found.written, *(n for n, _ in found.graph.state)))
        original(replace(run, pointers=dict(found.pointers), schedule=found.schedule))
    if tell is not None:
        for said in found.notes:
            tell(said)
    return found.graph


def supported_functions() -> dict[str, str]:
    """NumPy functions that have a translation -> what they become."""
    names = {f"np.{f.__name__}": "ufunc" for f in SUPPORTED}
    return dict(sorted({**names, **{f"np.{f.__name__}": "function" for f in FUNCTIONS}}.items()))


def _argument(recorder: Recorder, name: str, spec: ArraySpec) -> TracedArray:
    return TracedArray.of(recorder, recorder.input(name, spec.shape, spec.dtype, spec.role))


def _results(returned: object) -> list[TracedArray]:
    if isinstance(returned, TracedArray):
        return [returned]
    if isinstance(returned, dict):
        return [r for v in returned.values() for r in _results(v)]
    if isinstance(returned, (tuple, list)):
        return [r for v in returned for r in _results(v)]
    raise TraceError("return value", f"{type(returned).__name__} is not an array that depends on the arguments")


def digits_of(graph: Graph) -> Graph:
    """The graph with reshapes removed where digits allow it."""
    return digits_and_tensors(graph)[0]


__all__ = [
    "TraceError",
    "Traced",
    "View",
    "digits_of",
    "is_numpy_program",
    "load_program",
    "numpy_trace_backward",
    "numpy_trace_functions",
    "numpy_trace_index",
    "numpy_trace_map_access",
    "supported_functions",
    "trace",
]
