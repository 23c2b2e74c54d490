"""Digit splitting: reshapes and transposes disappear, values stay.

The property test runs random programs of views, transposes, slices, concatenations, windows, contractions and softmax
before and after the pass and compares every output.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.digits import split_digits
from shardproof.models.sources.building.digits_cuts import groups, split_index


def compare(graph: Graph) -> Graph:
    """Run the graph before and after the pass; return the new one."""
    new = split_digits(graph).graph
    inputs = random_inputs(graph, 0)
    before = run_graph(graph, inputs)
    after = run_graph(new, {n: v for n, v in inputs.items() if n in {t.name for t in new.tensors}})
    assert len(graph.outputs) == len(new.outputs)
    for old, o in zip(graph.outputs, new.outputs, strict=True):
        np.testing.assert_allclose(after[o].reshape(before[old].shape), before[old], rtol=1e-12, atol=1e-12)
    return new


def copy(g: Builder, name: str, x: str, order: tuple[int, ...]) -> str:
    """Transpose."""
    shape = g.tensors[x].shape
    names = [f"a{k}" for k in range(len(shape))]
    return g.operator(
        name, "copy", [Axis(names[k], shape[k]) for k in order], [access(x, *names)], [names[k] for k in order]
    )


def shifted(g: Builder, name: str, parts: list[str], dim: int, extent: int, offsets: list[int], step: int = 1) -> str:
    """Sum of parts read at step * a + offset along one dimension: slice, concatenation."""
    shape = list(g.tensors[parts[0]].shape)
    shape[dim] = extent
    names = [f"a{k}" for k in range(len(shape))]
    inputs = []
    for p, offset in zip(parts, offsets, strict=True):
        index = [Affine.axis(a) for a in names]
        index[dim] = Affine.axis(names[dim], step).shift(offset)
        inputs.append(access(p, *index))
    return g.operator(name, "copy", [Axis(a, n) for a, n in zip(names, shape, strict=True)], inputs, names)


def test_flatten_becomes_a_contraction_over_digits() -> None:
    g = Builder("g")
    x = g.view("flat", g.input("x", (4, 6, 3, 5)), (4, 90))
    new = compare(g.build(g.contract("fc", "b k, n k -> b n", x, g.parameter("w", (7, 90)))))
    assert [(op.name, [a.extent for a in op.axes]) for op in new.operators] == [("fc", [4, 7, 6, 3, 5])]
    assert (new.tensor("w").shape, new.tensor("w").source_shape) == ((7, 6, 3, 5), (7, 90))


def test_attention_over_flat_weights_gets_head_axes() -> None:
    g = Builder("g")
    x = g.input("x", (2, 5, 24))
    heads = []
    for p in "qk":
        y = g.contract(p, "b s m, m n -> b s n", x, g.parameter(f"w{p}", (24, 24)))
        heads.append(copy(g, f"{p}t", g.view(f"{p}v", y, (2, 5, 4, 6)), (0, 2, 1, 3)))
    scores = g.contract("scores", "b h s d, b h t d -> b h s t", *heads)
    new = compare(g.build(g.normalise("p", "softmax", "b h s t -> b h s t", scores, over=("t",))))
    assert [op.name for op in new.operators] == ["q", "k", "scores", "p"]
    assert new.tensor("wq").shape == (24, 4, 6)
    assert new.operator("scores").inputs[0] == access("q", "b", "s", "h", "d")


def test_fused_projection_gets_three_digits() -> None:
    """GPT-2: 2304 = [3, 12, 64], heads of one projection are ordinary axes (research note, 4.2)."""
    g = Builder("g")
    y = g.contract("qkv", "s m, m n -> s n", g.input("x", (2, 8)), g.parameter("w", (8, 36)))
    parts = [g.view(f"h{i}", shifted(g, f"p{i}", [y], 1, 12, [12 * i]), (2, 3, 4)) for i in range(3)]
    scores = g.contract("scores", "s h d, t h d -> h s t", parts[0], parts[1])
    new = compare(g.build(scores, g.map("v", "relu", parts[2])))
    assert new.tensor("w").shape == (8, 3, 3, 4)
    assert new.operator("p1").inputs[0].index[1] == Affine((), 1)


def repeated(g: Builder, name: str, x: str, dim: int, times: int) -> str:
    """x[.., ..] -> [.., r, ..]: elements repeated along a new dimension."""
    shape = list(g.tensors[x].shape)
    names = [f"a{k}" for k in range(len(shape))]
    out = [*names[:dim], "r", *names[dim:]]
    extents = {**dict(zip(names, shape, strict=True)), "r": times}
    return g.operator(name, "copy", [Axis(a, extents[a]) for a in out], [access(x, *names)], out)


def test_keys_that_heads_share_are_not_copied() -> None:
    """Grouped queries: [b, kv, s, d] repeated to [b, kv, group, s, d] and flattened to heads is read as it is."""
    g = Builder("g")
    keys = g.map("k", "identity", g.input("k_in", (2, 3, 5, 4)))
    heads = g.view("flat", repeated(g, "repeat", keys, 2, 2), (2, 6, 5, 4))
    scores = g.contract("scores", "b h s d, b h t d -> b h s t", g.input("q", (2, 6, 7, 4)), heads)
    new = compare(g.build(scores))
    assert [op.name for op in new.operators] == ["k", "scores"]
    assert new.operator("scores").inputs[1] == access("k", "b", "h.0", "t", "d")


def test_repetition_is_written_out_where_it_must_exist() -> None:
    g = Builder("g")
    x = repeated(g, "repeat", g.input("x", (3, 4)), 1, 5)
    window = [Axis("a", 3), Axis("r", 5), Axis("b", 4), Axis("k", 3, Combine.SUM, False)]
    y = g.operator(
        "pool", "average_pool", window, [access(x, "a", Affine.axis("r").plus("k").shift(-1), "b")], ["a", "r", "b"]
    )
    assert [op.name for op in compare(g.build(y)).operators] == ["repeat", "pool"], "read beyond its end"
    g = Builder("h")
    assert [op.name for op in compare(g.build(repeated(g, "repeat", g.input("x", (3, 4)), 0, 2))).operators] == [
        "repeat"
    ], "wanted by the user"


def test_patches_cut_an_image_and_their_taps_become_axes() -> None:
    g = Builder("g")
    y = g.convolution("patches", g.input("x", (2, 3, 8, 12)), g.parameter("w", (5, 3, 4, 4)), (4, 4))
    new = compare(g.build(y))
    assert new.tensor("x").shape == (2, 3, 2, 4, 3, 4) and all(a.splittable for a in new.operators[0].axes)


def test_positions_and_running_sums_keep_their_axis_whole() -> None:
    g = Builder("g")
    x = g.normalise("sum", "cumulative_sum", "b s -> b s", g.input("x", (2, 12)), over=("s",))
    y = g.map("y", "add", x, g.iota("i", (12,), 0, dtype="float64"), text="b s, s -> b s")
    new = compare(g.build(g.map("z", "relu", g.view("v", y, (2, 3, 4)))))
    assert new.tensor("sum").shape == (2, 12) and new.tensor("i").shape == (12,)


def test_channel_shuffle_is_a_renaming() -> None:
    g = Builder("g")
    x = g.view("split", g.input("x", (2, 12, 5)), (2, 3, 4, 5))
    y = g.map("r", "relu", g.view("merge", copy(g, "shuffle", x, (0, 2, 1, 3)), (2, 12, 5)))
    new = compare(g.build(y))
    assert [op.name for op in new.operators] == ["r"] and new.tensor("x").shape == (2, 3, 4, 5)


@pytest.mark.parametrize(("first", "second"), [((4, 6), (6, 4)), ((17, 4), (4, 17)), ((9, 10), (6, 15))])
def test_boundaries_without_a_chain_stay_as_one_opaque_copy(first: tuple[int, int], second: tuple[int, int]) -> None:
    g = Builder("g")
    n = first[0] * first[1]
    x = g.map("r", "relu", g.input("x", (3, *first)))
    y = g.map("u", "tanh", g.view("merge", x, (3, n)))
    graph = g.build(g.map("z", "exp", g.view("split", y, (3, *second))))
    found = split_digits(graph)
    assert len(found.opaque) == 1 and not found.affine
    (kept,) = (op for op in found.graph.operators if op.name in found.opaque)
    assert [a.splittable for a in kept.axes] == [True] + [False] * (len(kept.axes) - 1)
    compare(graph)


def test_flat_dimension_read_by_a_window_is_read_in_digits_by_an_affine_copy() -> None:
    g = Builder("g")
    x = g.input("x", (20,))
    taps = [Axis("a", 20), Axis("k", 3, Combine.SUM, False)]
    y = g.operator("window", "average_pool", taps, [access(x, Affine.axis("a").plus("k").shift(-1))], ["a"])
    z = g.operator("again", "average_pool", taps, [access(y, Affine.axis("a").plus("k").shift(-1))], ["a"])
    graph = g.build(z, g.map("r", "relu", g.view("split", y, (4, 5))))
    found = split_digits(graph)
    assert found.affine == ("split",) and not found.opaque
    assert found.graph.operator("split").inputs[0].index == (Affine((("d0", 5), ("d1", 1))),)
    compare(graph)


def test_transposed_outputs_and_repeated_outputs_are_written_out() -> None:
    g = Builder("g")
    x = g.map("r", "relu", g.input("x", (3, 4)))
    t = copy(g, "t", x, (1, 0))
    new = compare(g.build(t, g.view("v", x, (12,)), x))
    assert {op.name for op in new.operators} == {"r", "t", "v"}


def test_extent_one_dimension_read_with_padding_is_kept() -> None:
    g = Builder("g")
    x = g.view("column", g.input("x", (5,)), (5, 1))
    y = g.operator(
        "pool",
        "average_pool",
        [Axis("a", 5), Axis("b", 1), Axis("k", 3, Combine.SUM, False)],
        [access(x, "a", Affine.axis("b").plus("k").shift(-1))],
        ["a", "b"],
        {"count_include_pad": 1},
    )
    new = compare(g.build(y))
    assert new.operators[0].name == "column"


def test_a_view_of_another_size_is_refused_with_its_name() -> None:
    g = Builder("g")
    with pytest.raises(GraphError, match="operator 'v'"):
        g.view("v", g.input("x", (3, 4)), (11,))


@given(st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_programs_keep_their_values(data: st.DataObject) -> None:
    sizes = st.sampled_from([(4, 6), (2, 12), (24,), (6, 4), (2, 2, 6), (3, 8), (1, 24), (4, 1, 6), (2, 3, 4)])
    g = Builder("random")
    values = [g.input("x", data.draw(sizes))]
    for i in range(data.draw(st.integers(2, 7))):
        x = data.draw(st.sampled_from(values))
        shape = g.tensors[x].shape
        dim = data.draw(st.integers(0, len(shape) - 1))
        match data.draw(
            st.sampled_from(
                [
                    "view",
                    "view",
                    "transpose",
                    "repeat",
                    "map",
                    "slice",
                    "concat",
                    "contract",
                    "softmax",
                    "window",
                    "add",
                ]
            )
        ):
            case "view":
                n = g.tensors[x].elements
                new: list[int] = []
                while n > 1 and len(new) < 3:
                    new.append(data.draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0])))
                    n //= new[-1]
                values.append(g.view(f"v{i}", x, [*new, n]))
            case "transpose":
                values.append(copy(g, f"v{i}", x, tuple(data.draw(st.permutations(range(len(shape)))))))
            case "repeat" if g.tensors[x].elements <= 48:
                values.append(repeated(g, f"v{i}", x, dim, data.draw(st.sampled_from([2, 3]))))
            case "slice":
                n = data.draw(st.integers(1, shape[dim]))
                values.append(shifted(g, f"v{i}", [x], dim, n, [data.draw(st.integers(0, shape[dim] - n))]))
            case "concat" if shape[dim] * 2 <= 48:
                values.append(shifted(g, f"v{i}", [x, x], dim, 2 * shape[dim], [0, -shape[dim]]))
            case "contract":
                w = g.parameter(f"w{i}", (shape[dim], data.draw(st.sampled_from([4, 6]))))
                letters = [f"a{k}" for k in range(len(shape))]
                out = [a if k != dim else "n" for k, a in enumerate(letters)]
                values.append(g.contract(f"v{i}", f"{' '.join(letters)}, {letters[dim]} n -> {' '.join(out)}", x, w))
            case "softmax":
                letters = [f"a{k}" for k in range(len(shape))]
                text = " ".join(letters)
                values.append(g.normalise(f"v{i}", "softmax", f"{text} -> {text}", x, over=(letters[dim],)))
            case "window":
                letters = [f"a{k}" for k in range(len(shape))]
                index = [Affine.axis(a) for a in letters]
                index[dim] = index[dim].plus("k").shift(-1)
                axes = [*(Axis(a, n) for a, n in zip(letters, shape, strict=True)), Axis("k", 3, Combine.MAX, False)]
                values.append(g.operator(f"v{i}", "max_pool", axes, [access(x, *index)], letters))
            case "add":
                values.append(g.map(f"v{i}", "add", x, x))
            case _:
                values.append(g.map(f"v{i}", "tanh", x))
    outputs = [values[-1], *data.draw(st.lists(st.sampled_from(values[1:]), max_size=2, unique=True))]
    compare(g.build(*dict.fromkeys(outputs)))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_split_index_is_exact_wherever_it_answers(data: st.DataObject) -> None:
    chain = data.draw(st.sampled_from([(4,), (2, 4), (3, 6), (5,)]))
    terms = [
        (f"a{i}", data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 12])), data.draw(st.integers(1, 6)))
        for i in range(data.draw(st.integers(0, 3)))
    ]
    offset = data.draw(st.integers(-20, 20))
    digits = split_index(terms, offset, chain)
    if digits is None:
        return
    weights = [*reversed(chain), 1]
    for point in np.ndindex(*(n for _, _, n in terms)):
        at = {a: p for (a, _, _), p in zip(terms, point, strict=True)}
        parts = [sum(c * at[a] for a, c in d.terms) + d.offset for d in digits]
        assert sum(w * p for w, p in zip(weights, parts, strict=True)) == sum(w * at[a] for a, w, _ in terms) + offset
        for p, low, high in zip(parts[1:], weights[1:], weights[:-1], strict=True):
            assert 0 <= p < high // low


def test_groups_cover_both_sides() -> None:
    assert groups((2, 3, 4), (6, 1, 4)) == [([0, 1], [0]), ([2], [2])]
    assert groups((1, 1), (1,)) == []


@pytest.mark.parametrize("flat", [False, True])
def test_next_values_keep_their_parameters(flat: bool) -> None:
    """A weight of 3 x 4 heads and its next value, which a transpose or a view makes: same digits, stored where the
    weight is.
    """
    g = Builder("g")
    x, w = g.input("x", (5, 12)), g.parameter("w", (12, 12))
    heads = g.view("heads", g.contract("y", "b k, k n -> b n", x, w), (5, 3, 4))
    total = g.reduce("total", "b h e -> b h", heads)
    half = g.map("half", "tanh", w)
    value = g.view("back", g.view("line", half, (144,)), (12, 12)) if flat else copy(g, "turned", half, (1, 0))
    graph = replace(g.build(total), state=((w, value),)).check()
    new = compare(graph)
    assert new.state == ((w, value),)
    assert new.tensor(w).shape == new.tensor(value).shape and new.operators[-1].output.tensor == value
    stored = {n: v.reshape(new.tensor(n).shape) for n, v in random_inputs(graph, 0).items()}
    np.testing.assert_allclose(
        run_graph(new, stored)[value].reshape(12, 12), run_graph(graph, random_inputs(graph, 0))[value]
    )
