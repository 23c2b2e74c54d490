"""Sameness up to names: invariance under renaming and reordering, sensitivity to every real change, and the
canonical form's values.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from canonical_graph import canonical
from graph_equality import same_up_to_names

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.program.index import Access, Affine
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import TINY, ZOO, build

MODELS = sorted(set(ZOO) - {"inception-v3", "resnet101"})


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same graph under other names, in another topological order, with dimensions and commuting operands in
    another order.
    """
    draw = random.Random(seed)
    names = {t.name: f"t{k}" for k, t in enumerate(draw.sample(graph.tensors, len(graph.tensors)))}
    order = {t.name: draw.sample(range(len(t.shape)), len(t.shape)) for t in graph.tensors}
    ready = {t.name for t in graph.tensors if t.role is not Role.VALUE}
    left, operators = list(graph.operators), []
    while left:
        op = draw.choice([o for o in left if all(a.tensor in ready for a in o.inputs)])
        left.remove(op)
        ready.add(op.output.tensor)
        axes = {a.name: f"x{k}" for k, a in enumerate(draw.sample(op.axes, len(op.axes)))}

        def access(a: Access, axes: dict[str, str] = axes) -> Access:
            index = [a.index[k] for k in order[a.tensor]]
            return Access(
                names[a.tensor], tuple(replace(i, terms=tuple((axes[t], c) for t, c in i.terms)) for i in index)
            )

        inputs = list(map(access, op.inputs))
        if op.function in ("add", "multiply", "product"):
            draw.shuffle(inputs)
        attributes = tuple(
            (
                k,
                tuple(axes[str(x)] for x in v)
                if k == "over" and isinstance(v, tuple)
                else axes.get(str(v), v)
                if k in ("rows", "along", "axis")
                else v,
            )
            for k, v in op.attributes
        )
        new_axes = tuple(replace(a, name=axes[a.name]) for a in draw.sample(op.axes, len(op.axes)))
        operators.append(
            replace(
                op,
                name=f"o{len(operators)}",
                axes=new_axes,
                inputs=tuple(inputs),
                output=access(op.output),
                attributes=attributes,
            )
        )
    tensors = tuple(
        replace(t, name=names[t.name], shape=tuple(t.shape[k] for k in order[t.name]), source_shape=None)
        for t in graph.tensors
    )
    state = tuple((names[p], names[v]) for p, v in graph.state)
    return Graph(
        "other",
        tuple(draw.sample(tensors, len(tensors))),
        tuple(operators),
        tuple(names[o] for o in graph.outputs),
        state,
    ).check()


@pytest.mark.parametrize("model", MODELS)
def test_renaming_and_reordering_change_nothing(model: str) -> None:
    graph = build(model, **TINY[model])
    for seed in range(2):
        assert same_up_to_names(graph, shuffled(graph, seed)) is None


def mutants(graph: Graph, draw: random.Random) -> list[tuple[str, Graph]]:
    """Graphs that differ from the given one in one thing."""

    def with_operator(k: int, **changes: object) -> Graph:
        operators = list(graph.operators)
        operators[k] = replace(operators[k], **changes)
        return replace(graph, operators=tuple(operators))

    def some(test: object) -> list[int]:
        found = [k for k, op in enumerate(graph.operators) if test(op)]  # type: ignore[operator]
        return [draw.choice(found)] if found else []

    out: list[tuple[str, Graph]] = []
    for k in some(lambda op: op.function in ("relu", "gelu", "silu", "tanh", "sigmoid")):
        out.append(("another function", with_operator(k, function="exp", attributes=())))
    for k in some(lambda op: "epsilon" in dict(op.attributes)):
        changed = tuple((n, 0.5 if n == "epsilon" else v) for n, v in graph.operators[k].attributes)
        out.append(("another epsilon", with_operator(k, attributes=changed)))
    for k in some(
        lambda op: (
            op.function not in ("scale", "copy", "iota") and any(a.combine is None and a.splittable for a in op.axes)
        )
    ):
        axes = [replace(a, splittable=False) for a in graph.operators[k].axes]
        out.append(("axes that may not be split", with_operator(k, axes=tuple(axes))))
    for k in some(
        lambda op: (
            op.function == "add" and op.inputs[0] != op.inputs[1] and len(op.inputs[0].index) == len(op.output.index)
        )
    ):
        op = graph.operators[k]
        out.append(("one operand twice", with_operator(k, inputs=(op.inputs[0], op.inputs[0]))))
    for k in some(
        lambda op: op.function in ("subtract", "divide") and len(op.inputs[0].index) == len(op.inputs[1].index)
    ):
        out.append(("operands that do not commute", with_operator(k, inputs=graph.operators[k].inputs[::-1])))
    for k in some(lambda op: op.function == "copy" and any(i.offset for a in op.inputs for i in a.index)):
        op = graph.operators[k]
        shifted = tuple(
            replace(a, index=tuple(Affine(i.terms, i.offset + bool(i.offset), i.whole) for i in a.index))
            for a in op.inputs
        )
        out.append(("another offset", with_operator(k, inputs=shifted)))
    position = draw.choice([k for k, t in enumerate(graph.tensors) if t.role is Role.PARAMETER])
    tensors = list(graph.tensors)
    tensors[position] = replace(tensors[position], dtype="float16")
    out.append(("another element type", replace(graph, tensors=tuple(tensors))))
    tensors[position] = replace(graph.tensors[position], role=Role.INPUT)
    out.append(("an input in place of a weight", replace(graph, tensors=tuple(tensors))))
    if len(graph.operators) > 1:
        out.append(("another output", replace(graph, outputs=(graph.operators[-2].output.tensor,))))
    return out


@pytest.mark.parametrize(
    "model",
    [
        *("bert-tiny", "conv-stack", "dlrm", "mlp-unity", "mlp-unity-training", "moe"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("transformer", "vit")),
    ],
)
def test_every_mutant_differs_and_the_difference_is_named(model: str) -> None:
    graph, draw = build(model, **TINY[model]), random.Random(model)
    for what, mutant in mutants(graph, draw):
        found = same_up_to_names(graph, mutant)
        assert found is not None, what
        assert found.what and str(found)
        assert same_up_to_names(canonical(graph), canonical(mutant)) is not None, (
            f"{what}: hidden by the canonical form"
        )


def test_weights_that_are_shared_are_not_weights_of_their_own() -> None:
    def graph(shared: bool) -> Graph:
        g = Builder("g")
        w = [g.parameter("w", (8, 8))] * 2 if shared else [g.parameter(n, (8, 8)) for n in "uv"]
        x = g.contract("first", "b k, k n -> b n", g.input("x", (4, 8)), w[0])
        return g.build(g.contract("second", "b k, k n -> b n", x, w[1]))

    assert same_up_to_names(graph(True), graph(True)) is None
    assert same_up_to_names(graph(True), graph(False)) is not None


def test_transposed_weight_of_a_square_layer_is_told_apart_where_it_matters() -> None:
    """x w and x w' are the same up to the order of dimensions; x w w and x w w' are not."""

    def graph(second: str) -> Graph:
        g = Builder("g")
        w = g.parameter("w", (8, 8))
        x = g.contract("first", "b k, k n -> b n", g.input("x", (4, 8)), w)
        return g.build(g.contract("second", f"b k, {second} -> b n", x, w))

    assert same_up_to_names(graph("k n"), graph("k n")) is None
    assert same_up_to_names(graph("k n"), graph("n k")) is not None


def test_the_first_difference_is_told_from_the_inputs_on() -> None:
    found = same_up_to_names(build("bert-tiny"), build("bert-tiny", layers=3))
    assert str(found) == "layer1.ffn.norm | layer1.ffn.norm: place among the outputs 0 | none"
    a, b = build("mlp-unity"), build("mlp-unity", hidden=256)
    assert str(same_up_to_names(a, b)) == "fc1 | fc1: axes 512, 64, 784 sum | 256, 64, 784 sum"


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"bert-large"}))
def test_canonical_form_keeps_the_values(model: str) -> None:
    graph = build(model, **TINY[model])
    new = canonical(graph)
    inputs = random_inputs(graph, 3)
    before = run_graph(graph, inputs)
    held = {t.name: t for t in new.tensors}
    after = run_graph(new, {n: v.reshape(held[n].shape) for n, v in inputs.items() if n in held})
    for old, o in zip(graph.results, new.results, strict=True):
        np.testing.assert_allclose(after[o].reshape(before[old].shape), before[old], rtol=1e-9, atol=1e-12)


def test_canonical_form_joins_scales_wherever_they_stand() -> None:
    def graph(place: str) -> Graph:
        g = Builder("g")
        q, k = g.input("q", (2, 5, 4)), g.input("k", (2, 6, 4))
        if place == "query":
            q = g.map("sq", "scale", q, scale=0.25)
        if place == "both":
            q, k = g.map("sq", "scale", q, scale=0.5), g.map("sk", "scale", k, scale=0.5)
        s = g.contract("s", "b s d, b t d -> b s t", q, k)
        if place == "scores":
            s = g.map("ss", "scale", s, scale=0.25)
        return g.build(g.normalise("p", "softmax", "b s t -> b s t", s, over=("t",)))

    forms = [canonical(graph(p)) for p in ("query", "both", "scores", "")]
    assert same_up_to_names(forms[0], forms[1]) is None and same_up_to_names(forms[1], forms[2]) is None
    assert same_up_to_names(forms[2], forms[3]) is not None
