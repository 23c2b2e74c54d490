"""Translates `FILE.py:NAME` of a JAX function: a function without arguments that returns (function, example
arguments ..).

    def mlp():
        def forward(params, x):
            return jax.nn.relu(x @ params["w1"]) @ params["w2"]
        return forward, {"w1": ShapeDtypeStruct((784, 512), float32), ..}, ShapeDtypeStruct((64, 784), float32)

Arrays, or only their shapes and types, are what `jax.jit(function).lower` takes; nothing is computed.  Leaves of the
first argument are stored weights where other arguments follow, as `jax.grad` takes it; all else is input.  They are
called by their paths: `params.layers.0.w`.  What the function returns are the outputs of the graph, those of a
dictionary by its keys.

JAX lowers the function to StableHLO, whose operators are carried out on arrays that have a shape and no elements
(`numpy.array`), so that a graph is recorded (`operators`).  Loops whose number of turns is known (`lax.scan`,
`fori_loop`) are one operator each (`loops`), turn by turn where their turns differ.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

from ...program.graph import Graph, GraphError, Role, UnsupportedOperators
from ..building.layer_names import layer_names, with_layer_names
from ..building.original import Original
from ..loops.reroll import reroll_loops
from ..numpy.array import TracedArray
from ..numpy.recorder import Recorder, TraceError, own_error
from ..numpy.trace import digits_of
from ..patterns.recognise import recognise
from . import handlers
from .ir import Module, holds, text
from .loops import loop
from .operators import Machine
from .original import Argument, Lowered, original_of


def is_jax(found: object) -> bool:
    """Whether a function of the user's file uses JAX, and not PyTorch.

    >>> is_jax(is_jax)
    False
    """
    held = getattr(inspect.unwrap(found), "__globals__", {}) if callable(found) else {}
    rooms = {str(getattr(v, "__name__", "")).partition(".")[0] for v in held.values() if isinstance(v, ModuleType)}
    rooms |= {str(getattr(v, "__module__", "")).partition(".")[0] for v in held.values() if callable(v)}
    return "jax" in sys.modules and bool(rooms & {"jax", "flax", "optax", "equinox"}) and "torch" not in rooms


def load_jax(
    path: Path,
    name: str,
    found: object,
    batch: int | None = None,
    attention: bool = True,
    original: Callable[[Original], None] | None = None,
) -> Graph:
    """The graph of the function that the factory `found` returns.  `batch`: handed to the factory's argument of that
    name.  `original` takes the function as JAX runs it.  Raises `GraphError` with what to write instead,
    `UnsupportedOperators` with all operators that have no translation.
    """
    place = f"{path}:{name}"
    function, arguments = _made(place, found, batch)
    return graph_of(place, name, function, arguments, attention, original)


def graph_of(
    place: str,
    name: str,
    function: Callable[..., object],
    arguments: Sequence[object],
    attention: bool = True,
    original: Callable[[Original], None] | None = None,
) -> Graph:
    """The graph of a function of these example arguments; errors as of `load_jax`."""
    function, lowered, module, names, kept = _lowered(place, function, arguments)
    if original is not None:
        zeros = not holds(module, "stablehlo.convolution")
        original(original_of(place, name, function, arguments, lowered, names, graph_of, zeros))
    recorder = Recorder(name)
    arrays = [
        TracedArray.of(recorder, recorder.input(n, shape, dtype, Role.PARAMETER if stored else Role.INPUT))
        for n, shape, dtype, stored in names
    ]
    functions = {text(f.operation, "sym_name"): f.operation for f in module.body.operations}
    machine = Machine(recorder, functions, handlers.HANDLERS, loop)
    try:
        results = machine.call("main", arrays)
    except Exception as error:
        if own_error(error) and not isinstance(error, TraceError):
            raise
        told = error.message if isinstance(error, TraceError) else f"{type(error).__name__}: {str(error)[:300]}"
        raise GraphError(place, f"{machine.place}: {told}") from error
    labels = kept if len(set(kept)) == len(kept) else [f"{n}_{k}" for k, n in enumerate(kept)]
    if recorder.unsupported:
        raise UnsupportedOperators(recorder.unsupported)
    views = [machine.view(r) for r in results]
    for made in recorder.made:
        names_of = [label for view, label in zip(views, labels, strict=True) if view.tensor == made.output.tensor]
        made.assigned = names_of[0] if names_of else None
    graph, _ = recorder.finish(views, labels)
    graph = once(graph)
    graph = with_layer_names(graph, layer_names(graph, {op.name for op in graph.operators}))
    return recognise(reroll_loops(digits_of(graph)), attention=attention).graph


def once(graph: Graph) -> Graph:
    """The graph without operators that compute what another one has computed: what XLA does with a program."""
    seen: dict[tuple[object, ...], str] = {}
    same: dict[str, str] = {}
    operators = []
    for op in graph.operators:
        inputs = tuple(replace(a, tensor=same.get(a.tensor, a.tensor)) for a in op.inputs)
        out = op.output.tensor
        key = (op.function, op.axes, inputs, op.output.index, op.attributes, graph.tensor(out).dtype)
        if key in seen and out not in graph.results:
            same[out] = seen[key]
            continue
        seen.setdefault(key, out)
        operators.append(replace(op, inputs=inputs))
    tensors = tuple(t for t in graph.tensors if t.name not in same)
    return replace(graph, tensors=tensors, operators=tuple(operators)).check()


def _made(place: str, found: object, batch: int | None) -> tuple[Callable[..., object], tuple[object, ...]]:
    """What the factory returns: the function and its arguments."""
    write = "write a function without arguments that returns (function, its example arguments ..)"
    if not callable(found):
        raise GraphError(place, f"is no function; {write}")
    taken = inspect.signature(found).parameters
    needed = [n for n, p in taken.items() if p.default is inspect.Parameter.empty and n != "batch"]
    if needed:
        raise GraphError(place, f"takes the argument {needed[0]!r}; {write}")
    if batch is not None and "batch" not in taken:
        raise GraphError(place, "--batch needs a factory with an argument called batch; its sizes are written in")
    if batch is None and "batch" in taken and taken["batch"].default is inspect.Parameter.empty:
        raise GraphError(place, "takes the argument 'batch'; give --batch, or the argument a default")
    try:
        made = found(**({} if batch is None else {"batch": batch}))
    except Exception as error:
        raise GraphError(place, f"{type(error).__name__}: {str(error)[:300]}") from error
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise GraphError(place, f"returns no function; {write}")
    return made[0], made[1:]


def _lowered(
    place: str, function: Callable[..., object], arguments: Sequence[object]
) -> tuple[Callable[..., object], Lowered, Module, list[Argument], list[str]]:
    """The function that JAX traced, what it lowered, its module in StableHLO, arguments and names of results."""
    import jax

    def structure(leaf: object) -> object:
        return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: leaf)

    try:
        shapes = jax.tree_util.tree_map(structure, tuple(arguments))
        jitted = jax.jit(function, keep_unused=True)  # traced once: its gradients and its results ask it again
        lowered = jitted.lower(*shapes)
        out = jax.tree_util.tree_leaves_with_path(jax.eval_shape(jitted, *shapes))
    except Exception as error:
        raise GraphError(place, f"JAX cannot lower it: {type(error).__name__}: {str(error)[:300]}") from error
    try:
        called = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        called = []
    names: list[Argument] = []
    for k, argument in enumerate(shapes):
        first = called[k] if k < len(called) else f"arg{k}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            stored = k == 0 and len(shapes) > 1 and leaf.dtype.kind == "f"
            names.append((_dotted(first, jax.tree_util.keystr(path)), tuple(leaf.shape), leaf.dtype.name, stored))
    results = [_dotted("", jax.tree_util.keystr(path)) for path, _ in out]
    label = getattr(function, "__name__", "output")
    return (
        cast("Callable[..., object]", jitted),
        cast("Lowered", lowered),
        cast("Module", lowered.compiler_ir("stablehlo")),
        names,
        [label if not r or r[0].isdigit() else r for r in results],
    )


def _dotted(first: str, path: str) -> str:
    """`params` and `['layers'][0].w` as `params.layers.0.w`.

    >>> _dotted("params", "['layers'][0].w")
    'params.layers.0.w'
    """
    parts = [a or b or c for a, b, c in cast("list[tuple[str, str, str]]", _STEP.findall(path))]
    return ".".join([*([first] if first else []), *parts])


_STEP = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
