"""Runs a JAX function that was imported, with its gradients and every value on the way."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast

import numpy as np

from ...program.graph import Graph
from ..building.original import Original, Parts, Undefined, Values

Argument = tuple[str, tuple[int, ...], str, bool]
"""Name, shape, element type, whether it is a stored weight."""


PLAIN: Final[Mapping[str, bool | int | str]] = MappingProxyType(
    {
        "xla_disable_hlo_passes": "algsimp",
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }
)
"""How XLA is to compile: its algebra makes 0 of 0 / sqrt(0), and what runs once needs no optimisation (a third of the
time).
"""


class Lowered(Protocol):
    """A function that JAX has lowered."""

    def compile(self, compiler_options: Mapping[str, bool | int | str] | None = None) -> Callable[..., object]:
        """What runs it."""


def compile_plain(lowered: Lowered) -> Callable[..., object]:
    """What runs a function as it stands; an XLA that lacks options of ours gets the first one alone."""
    try:
        return lowered.compile(dict(PLAIN))
    except Exception as error:
        if "option" not in str(error):
            raise
        first = next(iter(PLAIN))
        return lowered.compile({first: PLAIN[first]})


@contextmanager
def explain_death(name: str) -> Iterator[None]:
    """Within, a signal that ends this process leaves a line on stderr that says why: XLA divides by zero while it folds
    some constants.  A shell waits for a line from us, and finds the end of its input instead.
    """
    told = (
        f"shardproof: the process ended while JAX compiled or ran {name!r} to compare the import with it: XLA itself "
        "fails on this program; --no-compare takes the graph as it is"
    )
    words = ["/bin/sh", "-c", 'read -r line || echo "$0" >&2', told]
    if not Path(words[0]).exists():
        yield
        return
    with subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as shell:
        try:
            yield
        finally:
            with suppress(OSError):  # an interrupt ended the shell too
                shell.communicate("\n")


GraphOf = Callable[[str, str, Callable[..., object], Sequence[object], bool, Callable[[Original], None] | None], Graph]
"""`importer.graph_of`."""


def original_of(
    place: str,
    name: str,
    function: Callable[..., object],
    arguments: Sequence[object],
    lowered: Lowered,
    names: Sequence[Argument],
    graph_of: GraphOf,
    zeros: bool = True,
) -> Original:
    """The function as JAX runs it; `names`: the leaves of its arguments in order, read or not;
    `graph_of`: the importer, which the parts of the function go through once more; `zeros`: see `Original`
    (XLA's convolutions skip the zeros of padding, and make groups with zeros).
    """
    import jax

    treedef = jax.tree_util.tree_structure(tuple(arguments))

    def arguments_of(values: Mapping[str, Values]) -> tuple[object, ...]:
        leaves = [
            np.asarray(values[n]).astype(dtype).reshape(shape) if n in values else np.zeros(shape, dtype)
            for n, shape, dtype, _ in names
        ]
        return cast("tuple[object, ...]", jax.tree_util.tree_unflatten(treedef, leaves))

    def leaves_of(made: object) -> tuple[Values, ...]:
        return tuple(np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(made))

    made: list[Callable[..., object]] = []

    def execute(values: Mapping[str, Values]) -> tuple[Values, ...]:
        with explain_death(name):
            if not made:
                made.append(compile_plain(lowered))
            return leaves_of(made[0](*arguments_of(values)))

    def gradients(values: Mapping[str, Values], output: int, weights: Values) -> Mapping[str, Values]:
        stored = [k for k, argument in enumerate(names) if argument[3]]
        if not stored:
            raise Undefined
        with explain_death(name):
            leaves = jax.tree_util.tree_leaves(arguments_of(values))
            slopes = _slopes(function, treedef, leaves, stored, output, weights)
        return {names[k][0]: np.asarray(g) for k, g in zip(stored, slopes, strict=True)}

    def parts() -> Parts:
        labels = list[str]()
        every = _every(function, arguments, labels)
        held: list[Original] = []

        @wraps(function)
        def named_parts(*given: object) -> dict[str, object]:
            return {f"equation {k:05}": x for k, x in enumerate(every(*given))}

        graph = graph_of(place, name, named_parts, arguments, False, held.append)
        return Parts(graph, held[0].run, dict(zip(graph.outputs, labels, strict=True)))

    return Original(f"JAX {jax.__version__}", execute, gradients, parts, casts=True, zeros=zeros)


def _slopes(
    function: Callable[..., object],
    treedef: object,
    leaves: Sequence[object],
    stored: Sequence[int],
    output: int,
    weights: Values,
) -> list[object]:
    """Gradients of a weighted sum of one output by the leaves `stored`, as `jax.grad` has them."""
    import jax

    def loss_of(*chosen: object) -> object:
        filled = dict(zip(stored, chosen, strict=True))
        every = [filled.get(k, leaf) for k, leaf in enumerate(leaves)]
        results = function(*jax.tree_util.tree_unflatten(treedef, every))
        found = jax.tree_util.tree_leaves(results)[output]
        return (found * weights.reshape(found.shape)).sum()

    reverse = jax.grad(loss_of, argnums=tuple(range(len(stored))))
    chosen = [leaves[k] for k in stored]
    return list(jax.tree_util.tree_leaves(compile_plain(jax.jit(reverse).lower(*chosen))(*chosen)))


_WITHIN: Final = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
"""Primitives that do what their jaxpr does."""


def _every(
    function: Callable[..., object], arguments: Sequence[object], labels: list[str]
) -> Callable[..., list[object]]:
    """A function that returns the value of every equation of another one; what those are called is written to `labels`
    whenever it runs.
    """
    import jax
    from jax.extend.core import ClosedJaxpr, Literal

    def structure(leaf: object) -> object:
        return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: leaf)

    shapes = jax.tree_util.tree_map(structure, tuple(arguments))
    whole = jax.make_jaxpr(function)(*shapes)

    def walk(closed: ClosedJaxpr, given: Sequence[object], out: list[object]) -> list[object]:
        known = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(closed.jaxpr.invars, given, strict=True))
        for e in closed.jaxpr.eqns:
            operands = [v.val if isinstance(v, Literal) else known[v] for v in e.invars]
            inner = e.params.get("jaxpr", e.params.get("call_jaxpr"))
            if e.primitive.name in _WITHIN and isinstance(inner, ClosedJaxpr):
                known.update(zip(e.outvars, walk(inner, operands, out), strict=True))
                continue
            bound = e.primitive.get_bind_params(e.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # older JAX hands functions apart
            made = e.primitive.bind(*functions, *operands, **params)
            results = made if e.primitive.multiple_results else [made]
            known.update(zip(e.outvars, results, strict=True))
            for v, x in zip(e.outvars, results, strict=True):
                if not jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.extended):  # keys of random numbers
                    labels.append(f"equation {len(labels)} ({e.primitive.name}){_line(e.source_info)}")
                    out.append(x)
        return [v.val if isinstance(v, Literal) else known[v] for v in closed.jaxpr.outvars]

    def every(*given: object) -> list[object]:
        labels.clear()
        out: list[object] = []
        walk(whole, jax.tree_util.tree_leaves(given), out)
        return out

    return every


def _line(source: object) -> str:
    """Where the program wrote it, as far as JAX says."""
    import jax

    traceback = getattr(source, "traceback", None)
    own = str(Path(jax.__file__).parent)
    frames = [] if traceback is None else [f for f in traceback.frames if not f.file_name.startswith(own)]
    return f" at {Path(frames[0].file_name).name}:{frames[0].line_num}" if frames else ""
