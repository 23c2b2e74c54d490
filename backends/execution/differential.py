"""This module compares an imported graph with the program it came from, known as differential testing: both run on the
same numbers, and what differs by more than rounding is a fault of the import.

    generic     of both signs, indices inside
    ties        few numbers, many of them equal, zeros of both signs; masks drawn
    negative    indices -n .. n - 1, n being the rows of the smallest table; masks all true
    outside     indices -2 n .. 2 n; masks all false
    special     infinities, NaN and zeros among others
    large       ten times as large

The program runs in its own element types.  Ours runs in them (a) and in double precision (b); how far a and b are
apart is what rounding does here (of a program in double precision: how far b moves with its numbers by a unit in the
last place), and the bar is that, and `_UNITS` in the last place of the numbers themselves.  A value that matches a or b
within the bar matches; NaN matches NaN, infinities those of their sign.

Work is counted before it is done: what one evaluation would cost more than `MOST_POINTS` or `MOST_BYTES` is not
compared, and that is said; it never hangs on seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ...models.program.graph import Graph, GraphError, Role, Tensor, UnsupportedOperators
from ...models.program.index import Axis, Combine, access
from ...models.program.operators import BY_DATA, Operator
from ...models.sources.building.original import Comparison, Differs, Original, Undefined, Values
from ...models.sources.training import build_step
from ...models.text import InputError
from ..kernels import KernelError, execution_dtype
from .reference import random_inputs, run_graph

SAMPLES: Final = ("generic", "ties", "negative", "outside", "special", "large")
MOST_POINTS: Final = 4 * 10**8
"""Floating-point operations of all evaluations together: about a second."""
MOST_BYTES: Final = 1 << 28
"""Bytes of all tensors of one evaluation, in double precision."""
_UNITS: Final = (1000, 100)
"""Units in the last place that are no difference: in double precision, where nothing else shows what rounding does, and
in coarser types.
"""
_DOUBLE: Final = 2.0**-53
_PRODUCTS: Final = frozenset({"product", "multiply"})
_TIED: Final = (-2.0, -1.0, -1.0, -0.5, -0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0)
_UNSIGNED: Final = frozenset({"argsort", "top_k_mask", "max", "min", "maximum", "minimum", "max_pool", "clip", "relu"})
"""Functions that compare zeros: of which sign theirs is where both are given, frameworks leave open."""
_ORDERS: Final = frozenset({"argsort", "top_k_mask"})
_SPECIAL: Final = (np.inf, -np.inf, np.nan, 0.0, -0.0)


def compare(graph: Graph, original: Original, wanted: bool = True, trained: bool = False) -> Comparison:
    """The comparison of a graph, and of its gradients where it is to be `trained`.  Raises `Differs` naming the sample,
    the output, and the first operator of the program where the difference appears.
    """
    try:
        return _compared(graph, original, wanted, trained)
    except KernelError as error:  # a kernel of the user's own that is not at hand
        return Comparison(original.framework, left_out=f"it does not run here: {error}")


def _compared(graph: Graph, original: Original, wanted: bool, trained: bool) -> Comparison:
    if not wanted:
        return Comparison(left_out="--no-compare")
    points = sum(graph.work(op) + prod(a.extent for a in op.axes if a.name != op.rows) for op in graph.operators)
    size = 8 * sum(prod(t.shape) for t in graph.tensors)
    if points > MOST_POINTS or size > MOST_BYTES:
        told = f"{points:.2g} operations and {size / 2**20:.0f} MiB"
        return Comparison(
            original.framework, left_out=f"one evaluation takes {told}; a smaller batch or width takes less"
        )
    if any(t.contents is not None and t.contents.values is None for t in graph.tensors):
        return Comparison(original.framework, left_out="the values of its constants are not at hand")
    many = max(1, min(len(SAMPLES), MOST_POINTS // (3 * max(1, points))))
    done = undefined = slopes = 0
    untold = ""
    why = "it makes integers of numbers that are none, or orders NaN"
    for kind in SAMPLES[:many]:
        values = sample(graph, kind)
        if kind == "ties" and not original.ties and _ordered(graph):
            untold = "the order of equal elements is left open by the framework"
            continue
        if (not original.casts and beyond(graph, values)) or _unordered(graph, values):
            undefined += 1
            continue
        try:
            theirs = original.run(_sources(graph, values))
        except Undefined as error:
            undefined, why = undefined + 1, str(error)
            continue
        results = (*graph.outputs, *(new for _, new in graph.state))
        if len(theirs) != len(results):
            raise Differs(f"{original.framework} returns {len(theirs)} arrays, the graph {len(results)}")
        worst = difference(graph, values, dict(zip(results, theirs, strict=True)), kind, original.zeros)
        if worst is not None:
            raise Differs(
                f"{graph.name}: is not what {original.framework} computes ({kind} numbers): {worst}"
                f"{_first(graph, original, values, kind)}; please report it (--no-compare takes the graph as it is)"
            )
        done += 1
        if trained and original.gradients is not None and kind == "generic":
            slopes += _compared_gradients(graph, original, values, kind)
    if not done:
        return Comparison(original.framework, undefined=undefined, left_out=untold or why)
    left = f"{many} of {len(SAMPLES)} sets, one takes {points:.2g} operations" if many < len(SAMPLES) else untold
    return Comparison(original.framework, done, slopes, undefined, _bar(graph), left)


def _bar(graph: Graph) -> str:
    return f"{_UNITS[_unit(graph) != _DOUBLE] * _unit(graph):.0e} and what rounding does"


def sample(graph: Graph, kind: str) -> dict[str, Values]:
    """Numbers for every input and parameter, in digit shape and in the element type in which they are executed."""
    out = random_inputs(graph, SAMPLES.index(kind), None)
    if kind == "generic":
        return out
    zero = 0.0 if any(op.function in _UNSIGNED for op in graph.operators) else -0.0  # x + -0 is x of either sign
    rows = min((op.axis(op.rows).extent for op in graph.operators if op.kind in BY_DATA), default=4)
    for t in graph.tensors:
        if t.role is Role.VALUE or (t.contents is not None and t.contents.values is not None):
            continue
        rng = np.random.default_rng([SAMPLES.index(kind), crc32(t.name.encode())])
        x = out[t.name]
        if x.dtype.kind == "b":
            fixed = {"negative": np.ones, "outside": np.zeros}.get(kind)
            out[t.name] = rng.integers(0, 2, x.shape).astype(bool) if fixed is None else fixed(x.shape, bool)
        elif x.dtype.kind in "iu":
            low, high = {"negative": (-rows, rows), "outside": (-2 * rows, 2 * rows + 1)}.get(kind, (0, rows))
            out[t.name] = rng.integers(0 if x.dtype.kind == "u" else low, high, x.shape).astype(x.dtype)
        elif kind == "ties":
            out[t.name] = rng.choice(_TIED, x.shape).astype(x.dtype) + zero
        elif kind == "special":
            drawn = np.asarray(rng.standard_normal(x.shape))
            flat = drawn.reshape(-1)
            at = rng.permutation(flat.size)[: -(-flat.size // 6)]
            flat[at] = np.resize(rng.permutation(_SPECIAL), at.size)
            out[t.name] = flat.reshape(x.shape).astype(x.dtype) + zero
        else:
            drawn = rng.standard_normal(x.shape) * (10 if kind == "large" else 1)
            out[t.name] = drawn.astype(x.dtype)
    return out


def _sources(graph: Graph, values: Mapping[str, Values]) -> dict[str, Values]:
    """Arrays as the program knows them."""
    return {
        n: v.reshape(t.shape if t.source_shape is None else t.source_shape)
        for n, v in values.items()
        for t in (graph.tensor(n),)
    }


def difference(
    graph: Graph, values: Mapping[str, Values], theirs: Mapping[str, Values], kind: str, zeros: bool = True
) -> str | None:
    """Where the first tensor differs, in words; None where all match; `zeros`: see `Original`."""
    found = _differing(graph, values, theirs, kind, zeros)
    return None if found is None else "".join(found)


def _differing(
    graph: Graph, values: Mapping[str, Values], theirs: Mapping[str, Values], kind: str, zeros: bool
) -> tuple[str, str] | None:
    """The first tensor that differs, and how.  Of large numbers the program may overflow where ours, which has
    functions instead of what they are composed of, does not.
    """
    unit, doubled = _unit(graph), {n: _double(v) for n, v in values.items()}
    with np.errstate(all="ignore"):
        own = run_graph(graph, values, keep=theirs, stored=_half(graph))
        double = run_graph(graph, doubled, keep=theirs)
    skipped = not zeros and kind == "special" and any(op.function in _PRODUCTS for op in graph.operators)
    reals = any(_from_reals(graph, op) for op in graph.operators)
    moved: dict[str, Values] | None = None
    for name, given in theirs.items():
        their: Values = np.asarray(given)
        if _real(their) and their.size == own[name].size:
            ours = own[name].reshape(their.shape)
            if kind == "large":
                their = np.where(np.isfinite(their), their, double[name].reshape(their.shape))
            their = np.where(np.isnan(ours) | np.isnan(their), ours, their) if skipped else their
        elif skipped:
            continue
        found = unlike(their, own[name], double[name], unit, reals=reals)
        if found is not None and unit == _DOUBLE:  # no coarser arithmetic shows what rounding does: other numbers do
            if moved is None:
                rng = np.random.default_rng(0)
                near = {
                    n: x * (1 + 4 * unit * rng.choice((-1, 1), x.shape)) if _real(x) else x for n, x in doubled.items()
                }
                with np.errstate(all="ignore"):
                    moved = run_graph(graph, near, keep=theirs)
            found = unlike(their, moved[name], double[name], unit, reals=reals)
        if found is not None:
            return name, found
    return None


def _from_reals(graph: Graph, op: Operator) -> bool:
    """Whether an operator makes integers of real numbers."""
    inputs = [graph.tensor(a.tensor) for a in op.inputs]
    return _whole(graph.tensor(op.output.tensor)) and any(t.dtype != "bool" and not _whole(t) for t in inputs)


def _real(x: Values) -> bool:
    return x.dtype.kind == "f"


def unlike(
    theirs: Values, own: Values, double: Values, unit: float, floor: float = 1.0, reals: bool = True
) -> str | None:
    """The first element that matches neither of ours, in words; `unit`: that of the last place of numbers of the size
    of the element and of `floor`, that of what it is computed from; `reals`: whether integers
    were made of real numbers.
    """
    if theirs.size != double.size:
        return f" has {theirs.size} elements, ours {double.size}"
    a, b, c = (np.asarray(x).reshape(-1) for x in (theirs, own, double))
    if a.dtype.kind not in "fc" or c.dtype.kind not in "fc":
        bad = (a != b) & (a != c)
        if (
            reals and a.dtype.kind in "iu" and c.dtype.kind in "iu"
        ):  # integers that reals were made, beyond what those tell apart
            wide = c.astype(np.float64)
            bad &= np.abs(a.astype(np.float64) - wide) > _UNITS[unit != _DOUBLE] * unit * np.abs(wide)
    else:
        a, b, c = (x.astype(np.float64) for x in (a, b, c))
        with np.errstate(all="ignore"):
            gap = np.where(np.isfinite(b) & np.isfinite(c), np.abs(b - c), 0.0)
            size = np.where(np.isfinite(c), np.abs(c), 0.0)
            bar = _UNITS[unit != _DOUBLE] * unit * (size + floor) + np.maximum(64 * gap, 4 * gap.max(initial=0.0))
            bad = ~(_near(a, b, bar) | _near(a, c, bar))
    if not bad.any():
        return None
    k = int(np.argmax(bad))
    place = tuple(int(n) for n in np.unravel_index(k, theirs.shape)) if theirs.ndim else ()
    at = f"[{', '.join(map(str, place))}]" if place else ""
    return f"{at} is {a[k].item():.7g}, ours {c[k].item():.7g} ({int(bad.sum())} of {bad.size} elements differ)"


def _near(a: Values, b: Values, bar: Values) -> npt.NDArray[np.bool_]:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b) <= bar, same)


def _double(x: Values) -> Values:
    return x.astype(np.float64) if _real(x) else x


def _half(graph: Graph) -> bool:
    return any(t.dtype in ("bfloat16", "float16") for t in graph.tensors)


def _unit(graph: Graph) -> float:
    """The unit in the last place of the coarsest floating type of a graph."""
    units = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
    return max((units.get(t.dtype, _DOUBLE) for t in graph.tensors), default=_DOUBLE)


def _ordered(graph: Graph) -> bool:
    return any(op.function in _ORDERS for op in graph.operators)


def _unordered(graph: Graph, values: Mapping[str, Values]) -> bool:
    """Whether NaN, whose sign the hardware chooses, or zeros of either sign are to be ordered: frameworks leave open
    where they come.
    """
    read = {op.inputs[0].tensor for op in graph.operators if op.function in _ORDERS}
    read = {n for n in read if graph.tensor(n).dtype.startswith(("float", "bfloat"))}
    if not read:
        return False
    with np.errstate(all="ignore"):
        found = {**values, **run_graph(graph, values, keep={n for n in read if graph.tensor(n).role is Role.VALUE})}
    return any(bool(np.any(np.isnan(x) | ((x == 0) & np.signbit(x)))) for x in (found[n] for n in read))


def beyond(graph: Graph, values: Mapping[str, Values]) -> bool:
    """Whether a real number is made an integer that is none: what then comes out, frameworks leave open."""
    casts = [op for op in graph.operators if op.function == "cast" and _whole(graph.tensor(op.output.tensor))]
    read = {op.inputs[0].tensor: graph.tensor(op.output.tensor).dtype for op in casts}
    read = {n: d for n, d in read.items() if not _whole(graph.tensor(n)) and graph.tensor(n).dtype != "bool"}
    if not read:
        return False
    inner = {n: d for n, d in read.items() if graph.tensor(n).role is Role.VALUE}
    with np.errstate(all="ignore"):
        found = {**values, **run_graph(graph, values, keep=inner)}
    for name, dtype in read.items():
        ends, x = np.iinfo(execution_dtype(dtype)), found[name].astype(np.float64)
        if not bool(np.all((x > float(ends.min) - 1) & (x < float(ends.max) + 1))):
            return True
    return False


def _whole(t: Tensor) -> bool:
    return t.dtype.startswith(("int", "uint"))


def _first(graph: Graph, original: Original, values: Mapping[str, Values], kind: str) -> str:
    """The first operator where a difference appears, in words."""
    if original.parts is None:
        return ""
    try:
        parts = original.parts()
        every = parts.graph
        own = {n: values.get(n, x).reshape(x.shape) for n, x in sample(every, kind).items()}
        theirs = dict(zip(every.outputs, parts.run(_sources(every, own)), strict=True))
        behind = set[str]() if original.ties else _behind_orders(every)
        theirs = {n: theirs[n] for n in sorted(theirs, key=lambda n: n in behind)}
        found = _differing(every, own, theirs, kind, original.zeros)
    except (Undefined, InputError, ValueError, KeyError, KernelError) as error:
        return f"; its operators one by one cannot be had ({type(error).__name__}: {str(error)[:200]})"
    if found is None:
        return "; its operators one by one compute the same: what several of them were taken for does not"
    open_order = ", behind an order of equal elements that is open" if found[0] in behind else ""
    return f"; it appears first in {parts.places[found[0]]}{open_order}"


def _behind_orders(graph: Graph) -> set[str]:
    """Tensors that depend on where equal elements come."""
    found = set[str]()
    for op in graph.operators:
        if op.function in _ORDERS or any(a.tensor in found for a in op.inputs):
            found.add(op.output.tensor)
    return found


PROBE: Final = "probe"
_SCALAR: Final = "probe.loss"


def _compared_gradients(graph: Graph, original: Original, values: Mapping[str, Values], kind: str) -> int:
    """1 where gradients of every floating output agree, 0 where there are none to compare."""
    compared = 0
    for k, name in enumerate(graph.outputs):
        t = graph.tensor(name)
        if not t.dtype.startswith(("float", "bfloat")) or original.gradients is None:
            continue
        try:
            step = build_step(_probed(graph, name), "sgd:rate=1", _SCALAR).graph
        except (UnsupportedOperators, GraphError):  # said where the step itself is asked for
            continue
        probe = np.random.default_rng(k).standard_normal(t.shape).astype(execution_dtype(t.dtype))
        try:
            theirs = original.gradients(_sources(graph, values), k, probe)
        except Undefined:
            continue
        given = {n: v for n, v in {**values, PROBE: probe}.items() if step.holds(n)}
        with np.errstate(all="ignore"):
            own = run_graph(step, given)
            double = run_graph(step, {n: _double(v) for n, v in given.items()})
        slopes = {
            weight: (given[weight] - own[after], _double(given[weight]) - double[after])
            for weight, after in step.state
            if weight in theirs
        }
        # what rounding leaves of large gradients (that of a bias of keys is 0) is measured by the large ones
        size = max((float(np.abs(g[np.isfinite(g)]).max(initial=0.0)) for _, g in slopes.values()), default=0.0)
        for weight, ours in slopes.items():
            found = unlike(theirs[weight].reshape(ours[0].shape), *ours, _unit(graph), min(1.0, size))
            if found is not None:
                raise Differs(
                    f"{graph.name}: its gradients are not those of {original.framework} ({kind} numbers): that of "
                    f"{weight}{found}; please report it (--no-compare takes the graph as it is)"
                )
        compared = 1
    return compared


def _probed(graph: Graph, name: str) -> Graph:
    """The graph with the sum of an output times a new input, whose gradient is that of every element at once."""
    t = graph.tensor(name)
    names = [f"p{k}" for k in range(len(t.shape))]
    axes = tuple(Axis(a, n, Combine.SUM) for a, n in zip(names, t.shape, strict=True))
    op = Operator(_SCALAR, "product", axes, (access(name, *names), access(PROBE, *names)), access(_SCALAR))
    tensors = (*graph.tensors, Tensor(PROBE, t.shape, t.dtype, Role.INPUT), Tensor(_SCALAR, (), t.dtype))
    return replace(graph, tensors=tensors, operators=(*graph.operators, op), outputs=(_SCALAR,)).check()
