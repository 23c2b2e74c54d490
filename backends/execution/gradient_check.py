"""Compares the gradients of an imported graph with those of its program, known as gradient checking.

Generic numbers show a wrong rule.  At corners a rule may choose: which of two equal elements has the gradient, what it
is where x = 0 or beyond a bound.  Our operators take PyTorch's choice there, so programs of PyTorch are compared at
numbers with ties and zeros and at infinities as well.  Two things are no difference: gradients where either side is
infinite or NaN, and a corner that lies behind arithmetic which rounds (of two numbers that are equal there, one is the
larger in one library and the other in another); so a difference at a corner counts where the operands of the
operator that makes it are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ...models.program.graph import Graph, GraphError, Role, Tensor, UnsupportedOperators
from ...models.program.index import Axis, Combine, access
from ...models.program.operators import Operator
from ...models.sources.building.original import Differs, Gradients, NoGradient, Original, Parts, Undefined, Values
from ...models.sources.training import TrainingStep, build_step
from ...models.text import InputError
from ..kernels import KernelError, execution_dtype
from .reference import random_inputs, run_graph
from .tolerance import as_double, of_source_shape, unit_of, unlike

CORNERS: Final = ("ties", "special")
"""Samples whose gradients are compared where the framework's choices are those of our operators."""
PROBE: Final = "probe"
_SCALAR: Final = "probe.loss"


@dataclass(frozen=True)
class Slopes:
    """Compares gradients of every floating output of a graph; steps that were built are kept for the next numbers.
    `lost`: why the framework has none, in words.
    """

    graph: Graph
    original: Original
    lost: dict[str, None] = field(default_factory=dict)
    _steps: dict[str, TrainingStep | None] = field(default_factory=dict)

    def on(self, values: Mapping[str, Values], kind: str, finite: Sequence[bool]) -> int:
        """1 where gradients of every floating output agree, 0 where there are none to compare; `finite`: of every
        output, whether any number of it is.  Raises `Differs`.
        """
        if self.original.gradients is None:
            return 0
        if kind in CORNERS:
            values = {n: np.where(np.isnan(x), 0, x).astype(x.dtype) for n, x in values.items()}
        compared = 0
        for k, name in enumerate(self.graph.outputs):
            if not finite[k]:
                continue
            try:
                found = _unlike(self.graph, name, self.original.gradients, k, values, kind in CORNERS, self._steps)
            except NoGradient as error:
                self.lost[str(error)], found = None, None
            if found is None:
                continue
            compared = 1
            if found and (place := self._place(values, kind)) is not None:
                raise Differs(
                    f"{self.graph.name}: its gradients are not those of {self.original.framework} ({kind} numbers): "
                    f"that of {found}{place}; please report it (--no-compare takes the graph as it is)"
                )
        return compared

    def _place(self, values: Mapping[str, Values], kind: str) -> str | None:
        """The first operator with another gradient, in words; None where rounding decides on it."""
        if self.original.parts is None:
            return ""
        try:
            parts = self.original.parts()
            if parts.gradients is None:
                return ""
            own = {n: values.get(n, x).reshape(x.shape) for n, x in random_inputs(parts.graph, 0, None).items()}
            first = _first_unlike(parts, parts.gradients, own, kind in CORNERS)
            if first is None:
                return "; its operators one by one have the same: what several of them were taken for does not"
            if kind in CORNERS and not _same_operands(parts, own, first):
                return None
        except (Undefined, InputError, ValueError, KeyError, KernelError) as error:
            return f"; its operators one by one cannot be had ({type(error).__name__}: {str(error)[:200]})"
        return f"; it appears first in {parts.places[first]}"


def _unlike(
    graph: Graph,
    name: str,
    gradients: Gradients,
    number: int,
    values: Mapping[str, Values],
    corner: bool,
    steps: dict[str, TrainingStep | None],
) -> str | None:
    """The first gradient of one output that differs, in words, nothing where none does; None where there is none to
    compare.
    """
    t = graph.tensor(name)
    if not t.dtype.startswith(("float", "bfloat")):
        return None
    if name not in steps:
        try:
            steps[name] = build_step(_probed(graph, name), "sgd", _SCALAR)
        except (UnsupportedOperators, GraphError):  # said where the step itself is asked for
            steps[name] = None
    step = steps[name]
    if step is None:
        return None
    probe = np.random.default_rng(number).standard_normal(t.shape).astype(execution_dtype(t.dtype))
    try:
        theirs = gradients(of_source_shape(graph, values), number, probe)
    except NoGradient:
        raise
    except Undefined:
        return None
    given = {n: v for n, v in {**values, PROBE: probe}.items() if step.graph.holds(n)}
    trained = {weight: slope for weight, slope in step.trained if weight in theirs}
    with np.errstate(all="ignore"):
        own = run_graph(step.graph, given, keep=trained.values())
        double = run_graph(step.graph, {n: as_double(v) for n, v in given.items()}, keep=trained.values())
    slopes = {weight: (own[slope], double[slope]) for weight, slope in trained.items()}
    # what rounding leaves of large gradients (that of a bias of keys is 0) is measured by the large ones
    size = max((float(np.abs(g[np.isfinite(g)]).max(initial=0.0)) for _, g in slopes.values()), default=0.0)
    for weight, (a, b) in slopes.items():
        wanted = theirs[weight].reshape(a.shape)
        if corner:
            open_ends = ~(np.isfinite(wanted) & np.isfinite(a) & np.isfinite(b))
            wanted, a, b = (np.where(open_ends, 0.0, g) for g in (wanted, a, b))
        if (found := unlike(wanted, a, b, unit_of(graph), min(1.0, size))) is not None:
            return f"{weight}{found}"
    return ""


def _probed(graph: Graph, name: str) -> Graph:
    """The graph with the sum of an output times a new input, whose gradient is that of every element at once."""
    t = graph.tensor(name)
    names = [f"p{k}" for k in range(len(t.shape))]
    axes = tuple(Axis(a, n, Combine.SUM) for a, n in zip(names, t.shape, strict=True))
    op = Operator(_SCALAR, "product", axes, (access(name, *names), access(PROBE, *names)), access(_SCALAR))
    tensors = (*graph.tensors, Tensor(PROBE, t.shape, t.dtype, Role.INPUT), Tensor(_SCALAR, (), t.dtype))
    return replace(graph, tensors=tensors, operators=(*graph.operators, op), outputs=(_SCALAR,)).check()


def _first_unlike(parts: Parts, gradients: Gradients, values: Mapping[str, Values], corner: bool) -> str | None:
    """The first value with another gradient, found by halving: one behind it that agrees may hide it."""
    every = parts.graph.outputs
    first, low, high = None, 0, len(every)
    while low < high:
        k = (low + high) // 2
        if _unlike(parts.graph, every[k], gradients, k, values, corner, {}):
            first, high = every[k], k
        else:
            low = k + 1
    return first


def _same_operands(parts: Parts, values: Mapping[str, Values], name: str) -> bool:
    """Whether what the operator behind a value reads is the same in both to the last bit."""
    makers = {op.output.tensor: op for op in parts.graph.operators}
    read, waiting = set[str](), [name]
    while waiting:
        for a in makers[waiting.pop()].inputs:
            if a.tensor in parts.graph.outputs:
                read.add(a.tensor)
            elif a.tensor in makers:
                waiting.append(a.tensor)
    theirs = dict(zip(parts.graph.outputs, parts.run(of_source_shape(parts.graph, values)), strict=True))
    with np.errstate(all="ignore"):
        own = run_graph(parts.graph, values, keep=read)
    return all(np.array_equal(np.asarray(theirs[n]).reshape(-1), own[n].reshape(-1), equal_nan=True) for n in read)
