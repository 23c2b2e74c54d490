"""Compares an imported graph with the program it came from, known as differential testing: both run on the
same numbers, and what differs by more than rounding is a fault of the import.

    generic     of both signs, indices inside
    ties        few numbers, many of them equal, zeros of both signs; masks drawn
    negative    indices -n .. n - 1, n being the rows of the smallest table; masks all true
    outside     indices -2 n .. 2 n; masks all false
    special     infinities, NaN and zeros among others
    large       ten times as large

The program runs in its own element types.  Ours runs in them (a) and in double precision (b); how far a and b are
apart is what rounding does here (of a program in double precision: how far b moves with its numbers by a unit in the
last place), and the bar is that, and `UNITS` in the last place of the numbers themselves.  A value that matches a or b
within the bar matches; NaN matches NaN, infinities those of their sign.

Work is counted before it is done: what one evaluation would cost more than `MOST_POINTS` or `MOST_BYTES` is not
compared, and that is said; it never hangs on seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final
from zlib import crc32

import numpy as np

from ...models.program.graph import Graph, Role, Tensor
from ...models.program.operators import BY_DATA, Operator
from ...models.sources.building.original import Comparison, Differs, Original, Undefined, Values
from ...models.text import InputError
from ..kernels import KernelError, execution_dtype
from .gradient_check import CORNERS, Slopes
from .reference import random_inputs, run_graph
from .tolerance import DOUBLE, UNITS, as_double, of_source_shape, real, unit_of, unlike

SAMPLES: Final = ("generic", "ties", "negative", "outside", "special", "large")
MOST_POINTS: Final = 4 * 10**8
"""Floating-point operations of all evaluations together: about a second."""
MOST_BYTES: Final = 1 << 28
"""Bytes of all tensors of one evaluation, in double precision."""
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
    compared = Slopes(graph, original)
    untold = ""
    why = "it makes integers of numbers that are none, or orders NaN"
    for kind in SAMPLES[:many]:
        values = {**sample(graph, kind)}
        for name, last in original.pointers.items():
            values[name] = np.sort(np.abs(values[name]) % (last + 1))
        if kind == "ties" and not original.ties and _ordered(graph):
            untold = "the order of equal elements is left open by the framework"
            continue
        if (not original.casts and beyond(graph, values)) or _unordered(graph, values):
            undefined += 1
            continue
        try:
            theirs = original.run(of_source_shape(graph, values))
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
        corner = kind in CORNERS and original.corners and (original.ties or not _ordered(graph))
        if trained and (kind == "generic" or corner):
            finite = [bool(np.isfinite(y).any()) for y in theirs]
            slopes += compared.on(values, kind, finite)
    if not done:
        return Comparison(original.framework, undefined=undefined, left_out=untold or why)
    left = f"{many} of {len(SAMPLES)} sets, one takes {points:.2g} operations" if many < len(SAMPLES) else untold
    said = "; ".join(w for w in (*compared.lost, left) if w)
    return Comparison(original.framework, done, slopes, undefined, _bar(graph), said)


def _bar(graph: Graph) -> str:
    return f"{UNITS[unit_of(graph) != DOUBLE] * unit_of(graph):.0e} and what rounding does"


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
    unit, wide = unit_of(graph), {n: as_double(v) for n, v in values.items()}
    with np.errstate(all="ignore"):
        own = run_graph(graph, values, keep=theirs, stored=_half(graph))
        double = run_graph(graph, wide, keep=theirs)
    products = [op for op in graph.operators if op.function in _PRODUCTS]
    skipped = kind == "special" and any(not zeros or _padded(op) for op in products)
    reals = any(_from_reals(graph, op) for op in graph.operators)
    moved: dict[str, Values] | None = None
    for name, given in theirs.items():
        their: Values = np.asarray(given)
        if real(their) and their.size == own[name].size:
            ours = own[name].reshape(their.shape)
            if kind == "large":
                their = np.where(np.isfinite(their), their, double[name].reshape(their.shape))
            their = np.where(np.isnan(ours) | np.isnan(their), ours, their) if skipped else their
        elif skipped:
            continue
        found = unlike(their, own[name], double[name], unit, reals=reals)
        if found is not None and unit == DOUBLE:  # no coarser arithmetic shows what rounding does: other numbers do
            if moved is None:
                rng = np.random.default_rng(0)
                near = {n: x * (1 + 4 * unit * rng.choice((-1, 1), x.shape)) if real(x) else x for n, x in wide.items()}
                with np.errstate(all="ignore"):
                    moved = run_graph(graph, near, keep=theirs)
            found = unlike(their, moved[name], double[name], unit, reals=reals)
        if found is not None:
            return name, found
    return None


def _padded(op: Operator) -> bool:
    """Whether windows reach over the edge: kernels leave open whether a weight there is multiplied by nothing, which
    an infinite one shows.
    """
    return any(i.offset < 0 for a in op.inputs for i in a.index)


def _from_reals(graph: Graph, op: Operator) -> bool:
    """Whether an operator makes integers of real numbers."""
    inputs = [graph.tensor(a.tensor) for a in op.inputs]
    return _whole(graph.tensor(op.output.tensor)) and any(t.dtype != "bool" and not _whole(t) for t in inputs)


def _half(graph: Graph) -> bool:
    return any(t.dtype in ("bfloat16", "float16") for t in graph.tensors)


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
        theirs = dict(zip(every.outputs, parts.run(of_source_shape(every, own)), strict=True))
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
