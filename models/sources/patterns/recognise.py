"""Recognises named patterns: compositions in an imported graph that are one function of the table.

    gelu-exact     x/2 (1 + erf(x / sqrt 2))                          -> gelu
    gelu-tanh      x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))      -> gelu, approximate = tanh
    silu           x sigmoid(x)                                       -> silu
    sigmoid        1 / (1 + exp(-x))                                  -> sigmoid
    softplus       log(1 + exp(x)), or x itself where x > 20          -> softplus (beyond 20 they agree to 2.1e-9)
    rms-norm       x (sum(x^2)/n + epsilon)^(-1/2)                    -> rms_norm
    norm-gain      rms_norm(x) * w, w over the normalised axes        -> rms_norm with gamma
    narrow         cast(f(cast(x))) of and to a 16-bit type           -> f, which widens inside
    narrow-norm    norm(cast(x)) of and to a 16-bit type              -> norm(x), which widens inside
    widened-norm   cast(norm(cast(x), cast(w))) of and to 16 bits     -> norm(x, w), which widens inside
    exclusive-sum  sums along an axis minus the element itself        -> cumulative_sum with exclusive = 1
    picked-matrices  sum_k x[s, k] w[ids[s], n, k]                  -> grouped_product
    safe-softmax   softmax(s), 0 where every s of the row is -inf     -> softmax, if no row is all -inf
    attention      softmax(scale q k + mask) v, where asked for      -> attention
    attention-mask attention with a mask that is a band and more     -> attention in the band, with what is left

Formulas are compared in normal form (`algebra`).  A pattern is applied where everything inside it serves nothing else.
For safe-softmax, rows hold a finite score if scores are products of finite numbers, and constant masks leave one in
every row; a mask that is an input of the program keeps the composition.  Each pattern is tested by evaluating both
sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.graph import Graph
from ...program.index import Access
from ...program.operators import Operator
from ...program.specified import with_specified
from ..building.flat import used
from . import attention as pattern_attention
from . import attention_masks as pattern_attention_masks
from . import experts as pattern_experts
from . import masks as pattern_masks
from . import norms as pattern_norms
from . import pointwise as pattern_pointwise
from . import widened as pattern_widened
from .view import View


@dataclass(frozen=True)
class Recognised:
    """A graph after the patterns, which pattern made which operator, and the operators whose names changed."""

    graph: Graph
    applied: tuple[tuple[str, str], ...]
    renamed: Mapping[str, str]


def recognise(
    graph: Graph, stated: Mapping[str, npt.NDArray[np.generic]] | None = None, attention: bool = False
) -> Recognised:
    """Apply all patterns, that of attention where it is asked for; `stated` gives the contents of inputs that are
    constants of the program.

    >>> from ..building.builder import Builder
    >>> g = Builder("g")
    >>> x = g.input("x", (4,))
    >>> y = g.map("y", "multiply", x, g.map("s", "sigmoid", x))
    >>> found = recognise(g.build(y))
    >>> [op.function for op in found.graph.operators], found.applied
    (['silu'], (('silu', 'y'),))
    """
    applied: dict[str, str] = {}
    patterns = {**PATTERNS, **(ATTENTION if attention else {})}
    while True:
        view = View(graph, stated or {})
        found = {}
        for op in graph.operators:
            for name, pattern in patterns.items():
                new = pattern(view, op)
                if new is not None:
                    found[op.name] = new
                    applied[op.name] = name
                    break
        if not found:
            break
        graph = used(replace(graph, operators=tuple(found.get(op.name, op) for op in graph.operators))).check()
    functions = {op.name: op.function for op in graph.operators}
    renamed: dict[str, str] = {}
    taken = {t.name for t in graph.tensors}
    for old in applied:
        if old in functions:
            better = f"{old.rpartition('.')[0]}.{functions[old]}".strip(".")
            if better not in taken and old not in graph.outputs:
                taken.add(better)
                renamed[old] = better
    made = tuple((pattern, renamed.get(old, old)) for old, pattern in applied.items() if old in functions)
    return Recognised(_with_names(graph, renamed), made, MappingProxyType(renamed))


def _with_names(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with operators, and the tensors they write, renamed."""

    def access(a: Access) -> Access:
        return replace(a, tensor=names.get(a.tensor, a.tensor))

    tensors = tuple(replace(t, name=names.get(t.name, t.name)) for t in graph.tensors)
    operators = tuple(
        replace(op, name=names.get(op.name, op.name), inputs=tuple(map(access, op.inputs)), output=access(op.output))
        for op in graph.operators
    )
    renamed = replace(graph, tensors=tensors, operators=operators, specified=())
    return with_specified(renamed, graph, names).check()


ATTENTION: Final[Mapping[str, Callable[[View, Operator], Operator | None]]] = MappingProxyType(
    {"attention": pattern_attention.attend, "attention-mask": pattern_attention_masks.narrow}
)
"""Patterns that are applied where attention is wanted as an operator."""

PATTERNS: Final[Mapping[str, Callable[[View, Operator], Operator | None]]] = MappingProxyType(
    {
        **{row[0]: pattern_pointwise.of_one_value(*row) for row in pattern_pointwise.formulas()},
        "softplus-where": pattern_pointwise.softplus,
        "rms-norm": pattern_norms.rms_norm,
        "norm-gain": pattern_norms.norm_gain,
        "narrow": pattern_widened.narrow,
        "narrow-norm": pattern_widened.narrow_norm,
        "widened-norm": pattern_widened.widened_norm,
        "exclusive-sum": pattern_norms.exclusive_sum,
        "safe-softmax": pattern_masks.safe_softmax,
        "picked-matrices": pattern_experts.picked_matrices,
    }
)
"""Pattern -> rewriting of its topmost operator, or None where it does not apply."""
