"""How partial results are combined follows from the function: a graph file that says otherwise is refused, whatever
the operator.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import loop_cases
import pytest

from shardproof.models.program.attention import FUSED, OPERANDS
from shardproof.models.program.graph import Graph, GraphError, Role, Tensor
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import BY_DATA, FUNCTIONS, NodeKind, Operator, Value
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo

SUMS = {
    NodeKind.CONTRACT,
    NodeKind.REDUCE,
    NodeKind.WINDOW,
    NodeKind.GATHER,
    NodeKind.SCATTER,
    NodeKind.GROUPED,
    NodeKind.ATTENTION,
    NodeKind.SCAN,
}
"""Kinds that add, unless the function says otherwise below; written here a second time, from the text of
`models/program/operators.py`.
"""
OTHERS = {
    "max": Combine.MAX,
    "max_pool": Combine.MAX,
    "min": Combine.MIN,
    "copy_gradient": Combine.SUM,
    "scatter_max": Combine.MAX,
    "scatter_min": Combine.MIN,
    "attention_lse": Combine.MAX,
}


def allowed(name: str) -> set[Combine]:
    if name == "opaque":  # as the user's reference does, but one for all axes
        return set(Combine)
    return {OTHERS[name]} if name in OTHERS else {Combine.SUM} if FUNCTIONS[name].kind in SUMS else set()


def graph_of(function: str, *combines: Combine, splittable: bool = False) -> Graph:
    """An operator of the function with one reduction axis for each of `combines`."""
    count = max(FUNCTIONS[function].arity[0], 1 if FUNCTIONS[function].arity[1] else 0)
    axes = tuple(Axis(f"r{i}", 2, c, splittable) for i, c in enumerate(combines))
    shape, names = (2,) * len(axes), [a.name for a in axes]
    if function == FUSED:
        return packed_of(combines)
    if function == "scan":
        return loop_of(combines)
    if FUNCTIONS[function].kind is NodeKind.ATTENTION:
        return attention_of(function, axes)
    inputs = tuple(Tensor(f"x{i}", shape, role=Role.INPUT) for i in range(count))
    attributes: tuple[tuple[str, Value], ...] = (("rows", "r0"),) if FUNCTIONS[function].kind in BY_DATA else ()
    if function == "fused_product":
        attributes = (("epilogue", ("relu",)), ("factors", 1))
    reads = [access(t.name, *names) for t in inputs]
    if FUNCTIONS[function].kind is NodeKind.GROUPED:  # its ids name the group
        inputs = (*inputs[:-1], replace(inputs[-1], shape=shape[1:]))
        reads[-1] = access(inputs[-1].name, *names[1:])
    op = Operator("made", function, axes, tuple(reads), access("y"), attributes)
    return Graph("g", (*inputs, Tensor("y", ())), (op,), ("y",))


def attention_of(function: str, axes: tuple[Axis, ...]) -> Graph:
    """Attention reduces keys, gradients of what keys have reduce rows."""
    names, least = tuple(a.name for a in axes), FUNCTIONS[function].arity[0]
    keys = function in ("attention", "attention_lse", "attention_query_gradient")
    has = {name: names if (name in "kv") == keys and name != "mask" else () for name in OPERANDS[function][:least]}
    inputs = tuple(Tensor(name, (2,) * len(a), role=Role.INPUT) for name, a in has.items())
    given = {"query": () if keys else names, "key": names if keys else (), "feature": (), "value_feature": ()}
    reads = tuple(access(name, *a) for name, a in has.items())
    op = Operator("made", function, axes, reads, access("y"), tuple(sorted(given.items())))
    return Graph("g", (*inputs, Tensor("y", ())), (op,), ("y",))


def loop_of(combines: tuple[Combine, ...]) -> Graph:
    """A loop whose axes besides its rows are combined in these ways, in turn."""
    graph = loop_cases.lstm()
    op = replace(graph.operators[0], name="made")
    summed = [a.name for a in op.reduction_axes]
    ways = {name: combines[i % len(combines)] for i, name in enumerate(summed)}
    op = replace(op, axes=tuple(replace(a, combine=ways.get(a.name)) for a in op.axes))
    return Graph("g", (*graph.tensors[:5],), (op,), (op.output.tensor,))


def packed_of(combines: tuple[Combine, ...]) -> Graph:
    """All gradients of an attention: queries and keys by the first and the last of the functions."""
    both = (combines[0], combines[-1])
    axes = [Axis(n, size, None, False) for n, size in (("x", 2), ("j", 3), ("c", 2))]
    axes += [Axis(n, 2, both[i % 2], n in "st") for i, n in enumerate("stde")]
    reads = {"g": "se", "q": "sd", "k": "td", "v": "te", "lse": "s", "delta": "s"}
    inputs = tuple(Tensor(name, (2,) * len(a), role=Role.INPUT) for name, a in reads.items())
    given = {"query": "s", "key": "t", "feature": "d", "value_feature": "e", "packed": "xjc"}
    attributes = tuple(sorted((k, tuple(v)) for k, v in given.items()))
    accesses = tuple(access(name, *a) for name, a in reads.items())
    op = Operator("made", FUSED, tuple(axes), accesses, access("y", *"xjc"), attributes)
    return Graph("g", (*inputs, Tensor("y", (2, 3, 2))), (op,), ("y",))


@pytest.mark.parametrize(("function", "combine"), list(product(sorted(FUNCTIONS), Combine)))
def test_every_function_with_every_combine(function: str, combine: Combine) -> None:
    graph = graph_of(function, combine)
    if combine in allowed(function):
        assert graph.check() is graph and Graph.from_json(graph.to_json()) == graph
        return
    for refused in (graph.check, lambda: Graph.from_json(graph.to_json())):
        with pytest.raises(
            GraphError, match=f"operator 'made': {function} (combines partial results by|has no reduction axes)"
        ):
            refused()


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_two_combine_functions_in_one_operator(function: str) -> None:
    for pair in product(Combine, repeat=2):
        if pair[0] is not pair[1]:
            with pytest.raises(GraphError, match="operator 'made'"):
                graph_of(function, *pair).check()


def test_max_by_sum() -> None:
    """The reproduction: it passed, and two ranks added their maxima."""
    g = Builder("g")
    graph = g.build(g.reduce("most", "b n -> b", g.input("x", (4, 8)), Combine.MAX))
    (op,) = graph.operators
    wrong = replace(op, axes=tuple(a if a.combine is None else replace(a, combine=Combine.SUM) for a in op.axes))
    with pytest.raises(GraphError, match="operator 'most': max combines partial results by max, axis 'n' says sum"):
        replace(graph, operators=(wrong,)).check()


@pytest.mark.parametrize("function", sorted(name for name, row in FUNCTIONS.items() if row.kind is NodeKind.WINDOW))
def test_taps_of_a_window_are_not_split(function: str) -> None:
    (combine,) = allowed(function)
    graph_of(function, combine).check()
    with pytest.raises(GraphError, match="operator 'made'.* tap axis 'r0' must not be splittable"):
        graph_of(function, combine, splittable=True).check()


def test_taps_of_a_strided_gradient_are_not_split() -> None:
    (op, *_), graph = (
        graph_of("strided_gradient", Combine.SUM, splittable=True).operators,
        graph_of("strided_gradient", Combine.SUM, splittable=True),
    )
    graph.check()  # channels, which an operand is read along
    tap = Axis("t", 3, Combine.SUM)
    with pytest.raises(GraphError, match="tap axis 't'"):
        replace(graph, operators=(replace(op, axes=(*op.axes, tap)),)).check()
    replace(graph, operators=(replace(op, axes=(*op.axes, replace(tap, splittable=False))),)).check()


@pytest.mark.parametrize("name", ["bert-tiny", "alexnet", "mlp-unity"])
def test_what_we_make_passes(name: str) -> None:
    graph = zoo(name, batch=4)
    assert graph.check() is graph
    step = build_step(graph, "adam", None).graph
    assert step.check() is step
