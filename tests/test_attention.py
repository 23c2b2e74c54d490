"""Attention as an operator: values against the formula over whole scores, parts against the whole, pairs counted.

The formula here stores scores and knows nothing of tiles.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import check_split, whole

from shardproof.__main__ import run as command_line
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.kernels import attention_parts
from shardproof.models.program import attention_pairs
from shardproof.models.program.attention import inner
from shardproof.models.program.graph import Graph, GraphError, Role
from shardproof.models.program.index import Access, Affine, Axis
from shardproof.models.program.operators import NodeKind, Operator
from shardproof.models.sources.building.attention import attention, lse_of, with_fused_gradients
from shardproof.models.sources.building.band import Bounds, bounds_of
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.patterns.recognise import recognise
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY
from shardproof.models.sources.zoo import build as zoo
from shardproof.verify.plan import bands

Rng = np.random.Generator


def scores(op: Operator, q: np.ndarray, k: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Scores [b, h, g, s, t] of q[b, h, g, s, d] and k[b, h, t, d]; -inf where a key is not seen."""
    s = np.einsum("bhgsd,bhtd->bhgst", q, k) * float(op.attribute("scale", 1.0))
    cap = float(op.attribute("softcap", 0.0))
    s = cap * np.tanh(s / cap) if cap else s
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    apart = np.arange(s.shape[-1])[None, :] - np.arange(s.shape[-2])[:, None]
    behind, ahead = op.attribute("behind", 10**6), op.attribute("ahead", 10**6)
    block = op.attribute("block", 10**6)
    same = np.arange(s.shape[-1])[None, :] // block == np.arange(s.shape[-2])[:, None] // block
    return np.where((apart >= -behind) & (apart <= ahead) & same, s, -np.inf)


def expected(op: Operator, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    s = scores(op, q, k, mask)
    top = np.max(s, axis=-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return np.einsum("bhgst,bhte->bhgse", e / np.where(total > 0, total, 1), v)


def case(rng: Rng) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """A drawn attention over [b, h, g, s, ..], its operands, and what it should be."""
    b, h, g, s, t, d, e = (int(n) for n in rng.integers(1, 5, 7))
    s, t = s * 3, t * 3
    builder = Builder("attention", "float64")
    q, k, v = builder.input("q", (b, h, g, s, d)), builder.input("k", (b, h, t, d)), builder.input("v", (b, h, t, e))
    values = [rng.standard_normal(builder.tensors[n].shape) for n in (q, k, v)]
    mask, text, full = [], "", None
    if (kind := int(rng.integers(0, 4))) > 0:
        letters = ["t", "s t", "b h s t"][kind - 1]
        shape = {"b": b, "h": h, "s": s, "t": t}
        logical = bool(rng.integers(0, 2))
        mask = [builder.input("m", [shape[a] for a in letters.split()], "bool" if logical else None)]
        value = (
            rng.integers(0, 3, builder.tensors["m"].shape) > 0
            if logical
            else rng.standard_normal(builder.tensors["m"].shape)
        )
        values.append(value)
        full = np.broadcast_to(
            value.reshape((b, h, 1, s, t) if kind == 3 else (s, t) if kind == 2 else (t,)), (b, h, g, s, t)
        )
        text = f", {letters}"
    attention(
        builder,
        "y",
        f"b h g s d, b h t d, b h t e{text} -> " + str(rng.choice(["b h g s e", "b s h g e", "e g h s b"])),
        q,
        k,
        v,
        *mask,
        query="s",
        scale=float(rng.choice([1.0, 0.3])),
        softcap=float(rng.choice([0.5, 2.0])) if rng.integers(0, 3) == 0 else None,
        behind=int(rng.integers(0, 6)) if rng.integers(0, 3) == 0 else None,
        ahead=int(rng.integers(0, 6)) if rng.integers(0, 2) == 0 else None,
        block=int(rng.integers(2, 8)) if rng.integers(0, 4) == 0 else None,
    )
    graph = builder.build("y")
    (op,) = graph.operators
    y = expected(op, *values[:3], full)
    return graph, values, np.einsum("bhgse->" + "".join(op.output.axes), y)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that every case has several."""
    monkeypatch.setattr(attention_parts, "KEYS", 4)
    monkeypatch.setattr(attention_parts, "QUERIES", 2)
    monkeypatch.setattr(attention_parts, "SCORES", 40)


@pytest.mark.parametrize("seed", range(40))
def test_values(seed: int, small_tiles: None) -> None:
    graph, values, y = case(np.random.default_rng(seed))
    np.testing.assert_allclose(whole(graph.operators[0], graph, values), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_parts_of_every_axis(seed: int, small_tiles: None) -> None:
    """Batch, heads, groups, queries as parts of the result; keys as parts of a sum, with statistics in between."""
    rng = np.random.default_rng(1000 + seed)
    graph, values, _ = case(rng)
    (op,) = graph.operators
    for axis in op.axes:
        if axis.splittable:
            cuts = [int(c) for c in rng.integers(0, axis.extent + 1, 2)]
            check_split(op, graph, values, axis, cuts)


@pytest.mark.parametrize("seed", range(24))
def test_fused_gradients(seed: int, small_tiles: None) -> None:
    """One operator for the gradients of q, k and v: what three operators give, and what parts of every axis add up to."""
    rng = np.random.default_rng(2000 + seed)
    graph, _, _ = case(rng)
    inputs = tuple(replace(t, role=Role.PARAMETER) if t.name in ("q", "k", "v") else t for t in graph.tensors)
    graph = replace(graph, tensors=inputs)
    apart, fused = build_step(graph, "sgd").graph, build_step(with_fused_gradients(graph), "sgd").graph
    (op,) = (o for o in fused.operators if o.function == "attention_gradients")
    assert not {o.function for o in fused.operators} & {"attention_query_gradient", "attention_key_gradient"}
    values = random_inputs(fused, seed)
    wanted, found = run_graph(apart, values), run_graph(fused, values)
    assert {*wanted} == {*found}
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)
    every = replace(fused, outputs=tuple(a.tensor for a in op.inputs if fused.writer().get(a.tensor) is not None))
    known = {**values, **run_graph(every, values)}
    reads = [known[a.tensor] for a in op.inputs]
    for axis in op.axes:
        if axis.splittable:
            cuts = [int(c) for c in rng.integers(0, axis.extent + 1, 2)]
            check_split(op, fused, reads, axis, cuts)


def test_fused_gradients_of_features_in_two_axes(small_tiles: None) -> None:
    """Rotary positions leave the two halves of a feature as axes of their own."""
    b = Builder("halves", "float64")
    q, k, v = b.parameter("q", (2, 6, 3, 2, 4)), b.parameter("k", (2, 9, 2, 4)), b.parameter("v", (2, 9, 5))
    graph = b.build(attention(b, "y", "h s g r i, h t r i, h t e -> h g s e", q, k, v, query="s", ahead=1, scale=0.4))
    apart, fused = build_step(graph, "sgd").graph, build_step(with_fused_gradients(graph), "sgd").graph
    assert "attention_gradients" in {o.function for o in fused.operators}
    values = random_inputs(fused, 5)
    wanted, found = run_graph(apart, values), run_graph(fused, values)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)


def test_fused_gradients_of_a_batch_of_one(small_tiles: None) -> None:
    """PyTorch's programs, taken apart, read queries, keys and values without a batch of one that the result has."""
    b = Builder("one", "float64")
    q, k, v = b.parameter("q", (6, 2, 3, 4)), b.parameter("k", (9, 2, 4)), b.parameter("v", (9, 2, 5))
    attention(b, "y", "s h g d, t h d, t h e -> h g s e", q, k, v, query="s", ahead=0, scale=0.4)
    graph = b.build("y")
    (op,) = graph.operators
    one = replace(op, axes=(Axis("b", 1), *op.axes), output=Access("y", (Affine.axis("b"), *op.output.index)))
    tensors = tuple(replace(t, shape=(1, *t.shape)) if t.name == "y" else t for t in graph.tensors)
    graph = replace(graph, operators=(one,), tensors=tensors).check()
    apart, fused = build_step(graph, "sgd").graph, build_step(with_fused_gradients(graph), "sgd").graph
    assert "attention_gradients" in {o.function for o in fused.operators}
    values = random_inputs(fused, 6)
    wanted, found = run_graph(apart, values), run_graph(fused, values)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)
    (op,) = (o for o in fused.operators if o.function == "attention_gradients")
    every = replace(fused, outputs=tuple(a.tensor for a in op.inputs if fused.writer().get(a.tensor) is not None))
    known = {**values, **run_graph(every, values)}
    for axis in op.axes:
        if axis.splittable:
            check_split(op, fused, [known[a.tensor] for a in op.inputs], axis, [axis.extent // 2])


def test_fused_gradients_need_a_common_layout() -> None:
    """Keys that have a row which values lack, queries of two axes, a value that is not trained: one operator per
    gradient, as without the option."""
    for text, shapes in {
        "h s d, h t d, t e -> h s e": ((2, 4, 3), (2, 5, 3), (5, 3)),
        "s r d, t d, t e -> s r e": ((4, 3, 2), (5, 2), (5, 3)),
        "h s d, h t d, h t e -> h s e": ((2, 4, 3), (2, 5, 3), (2, 5, 3)),
    }.items():
        b = Builder("apart", "float64")
        trained = ["q", "k"] if text.startswith("h s d, h t d, h") else ["q", "k", "v"]
        names = [(b.parameter if n in trained else b.input)(n, s) for n, s in zip("qkv", shapes, strict=True)]
        graph = b.build(attention(b, "y", text, *names, query=None if " r " in text else "s"))
        functions = [o.function for o in build_step(with_fused_gradients(graph), "sgd").graph.operators]
        assert "attention_gradients" not in functions
        assert functions == [o.function for o in build_step(graph, "sgd").graph.operators]


PACKED_WRONG: dict[str, Callable[[Operator], Operator]] = {
    "packed axes of attention_gradients must be 8 x 3 x 4 long": lambda op: replace(
        op, axes=tuple(replace(a, extent=9) if a.name == "position" else a for a in op.axes)
    ),
    "needs one query axis, one key axis and three packed ones": lambda op: replace(
        op,
        attributes=tuple(sorted({**dict(op.attributes), "packed": ("position", "slot")}.items())),
    ),
    "the result of attention_gradients has the rows of k, then the packed axes": lambda op: replace(
        op, output=Access(op.output.tensor, (*op.output.index[1:3], op.output.index[0], *op.output.index[3:]))
    ),
    "needs k and v with the same rows, all of them rows of q": lambda op: replace(
        op, inputs=(*op.inputs[:3], Access("v", (Affine(), *op.inputs[3].index[1:])), *op.inputs[4:])
    ),
    "axis 'slot' is inside a pair of query and key": lambda op: replace(
        op, axes=tuple(replace(a, splittable=True) if a.name == "slot" else a for a in op.axes)
    ),
}


@pytest.mark.parametrize("message", PACKED_WRONG)
def test_malformed_packed_gradients(message: str) -> None:
    b = Builder("packed", "float64")
    y = attention(b, "y", "h s d, h t d, h t e -> h s e", *(b.parameter(n, (2, 8, 4)) for n in "qkv"), query="s")
    graph = build_step(with_fused_gradients(b.build(y)), "sgd").graph
    changed = [PACKED_WRONG[message](o) if o.function == "attention_gradients" else o for o in graph.operators]
    shapes = {o.output.tensor: tuple(o.axis(n).extent for n in o.output.axes) for o in changed}
    tensors = tuple(replace(t, shape=shapes.get(t.name, t.shape)) for t in graph.tensors)
    with pytest.raises(GraphError, match=message):
        replace(graph, operators=tuple(changed), tensors=tensors).check()


def test_log_sum_exp(small_tiles: None) -> None:
    rng = np.random.default_rng(3)
    for seed in range(20):
        graph, values, _ = case(np.random.default_rng(seed))
        g = Builder("lse", "float64")
        g.tensors.update({t.name: t for t in graph.tensors})
        g.operators.extend(graph.operators)
        lse_of(g, "l", "y")
        both = g.build("y", "l")
        op = both.operator("l")
        reads = [x for j, x in enumerate(values) if j != 2]
        found = whole(op, both, reads)
        mask = None
        if len(values) > 3:
            letters = "".join(graph.operators[0].inputs[3].axes)
            sizes = {a.name: a.extent for a in op.axes}
            mask = values[3].reshape([sizes[a] if a in letters else 1 for a in "bhgst"])
        s = scores(graph.operators[0], values[0], values[1], mask)
        with np.errstate(divide="ignore"):
            wanted = np.einsum("bhgs->" + "".join(op.output.axes), np.log(np.exp(s).sum(axis=-1)))
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
        axis = op.axis("t")
        check_split(op, both, reads, axis, [int(rng.integers(0, axis.extent + 1))])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_pairs_are_counted(data: st.DataObject) -> None:
    queries, keys = (sorted(data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12)))) for _ in range(2))
    behind, ahead = (data.draw(st.one_of(st.none(), st.integers(-8, 12))) for _ in range(2))
    block = data.draw(st.one_of(st.none(), st.integers(1, 14)))
    wanted = sum(
        (behind is None or j - i >= -behind)
        and (ahead is None or j - i <= ahead)
        and (block is None or i // block == j // block)
        for i in range(*queries)
        for j in range(*keys)
    )
    assert int(attention_pairs.count(np.array(queries), np.array(keys), behind, ahead, block)) == wanted
    assert bands.pairs(tuple(queries), tuple(keys), (behind, ahead, block)) == wanted


def test_pairs_of_long_sequences_do_not_overflow() -> None:
    n = 1 << 30
    for ahead, pairs in ((0, n * (n + 1) // 2), (1 << 40, n * n), (-(1 << 40), 0)):
        assert int(attention_pairs.count(np.array([0, n]), np.array([0, n]), None, ahead)) == pairs
        assert bands.pairs((0, n), (0, n), (None, ahead, None)) == pairs


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_masks_that_are_bands_are_found(data: st.DataObject) -> None:
    """Whatever is found says the same as the mask; a band is found."""
    rows, keys = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    behind, ahead = (data.draw(st.one_of(st.none(), st.integers(0, 9))) for _ in range(2))
    block = data.draw(st.one_of(st.none(), st.integers(2, 9)))
    query, key = np.arange(rows)[:, None], np.arange(keys)[None, :]

    def plane(b: Bounds) -> np.ndarray:
        low, high = (10**6 if n is None else n for n in (b.behind, b.ahead))
        same = (query // (b.block or 10**6)) == (key // (b.block or 10**6))
        return (key - query >= -low) & (key - query <= high) & same

    seen = plane(Bounds(behind, ahead, block))
    if data.draw(st.booleans()):
        seen[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, keys - 1))] ^= True
        found = bounds_of(seen)
        assert found is None or bool((plane(found) == seen).all())
    else:
        found = bounds_of(seen)
        assert found is None or bool((plane(found) == seen).all())
        assert found is not None or block is not None or not seen.any()


def causal(rows: int = 8, keys: int = 8, **options: int) -> Graph:
    g = Builder("causal", "float64")
    q, k, v = g.input("q", (2, rows, 4)), g.input("k", (2, keys, 4)), g.input("v", (2, keys, 6))
    return g.build(attention(g, "y", "h s d, h t d, h t e -> h s e", q, k, v, **options))


def test_flops_know_the_mask() -> None:
    each = 2 * 4 + 2 * 6 + 12
    assert causal().work(causal().operators[0]) == 2 * 64 * each
    assert causal(ahead=0).work(causal(ahead=0).operators[0]) == 2 * 36 * each
    window = causal(ahead=0, behind=1)
    assert window.work(window.operators[0]) == 2 * 15 * each


def test_scores_are_not_stored() -> None:
    """1 x 2,048 queries x 2,048 keys: 32 MiB of scores in float64; operands and result are 3 MiB."""
    g = Builder("long", "float64")
    n, d = 2048, 32
    graph = g.build(attention(g, "y", "s d, t d, t e -> s e", *(g.input(x, (n, d)) for x in "qkv"), scale=0.2, ahead=0))
    values = [np.random.default_rng(i).standard_normal((n, d)) for i in range(3)]
    tracemalloc.start()
    whole(graph.operators[0], graph, values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20 < n * n * 8


@pytest.mark.parametrize("name", ["attention", "bert-tiny", "llama", "transformer", "vit"])
def test_models_of_the_zoo_are_recognised(name: str) -> None:
    """The same values without a softmax of scores; a model that nobody asked about stays as it was."""
    sizes = {**TINY[name], **({} if name == "bert-tiny" else {"dtype": "float64"})}
    before = zoo(name, **sizes)
    after = recognise(before, attention=True).graph
    assert recognise(before).graph == before
    made = [op for op in after.operators if op.kind is NodeKind.ATTENTION]
    assert len(made) == sum(op.function == "softmax" and len(op.axes) > 3 for op in before.operators) > 0
    values = random_inputs(before, 0)
    kept = {n: v for n, v in values.items() if n in {t.name for t in after.tensors}}
    for x, y in zip(run_graph(before, values).values(), run_graph(after, kept).values(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
    if name == "llama":
        assert {op.attribute("ahead", None) for op in made} == {0} and "greater_equal" not in {
            op.function for op in after.operators
        }


def test_training_steps_are_the_same_with_and_without_the_operator() -> None:
    """Loss, weights and moments after a step of Adam, also where layers are computed again."""
    sizes = {**TINY["llama"], "dtype": "float64"}
    plain = zoo("llama", **sizes)
    made = recognise(plain, attention=True).graph
    step = build_step(plain, "adam").graph
    values = random_inputs(step, 0)
    wanted = run_graph(step, values)
    for recompute in ("none", "all"):
        other = build_step(made, "adam", recompute=recompute).graph
        assert [op.function for op in other.operators].count("attention") == (2 if recompute == "none" else 4)
        kept = {t.name for t in other.tensors}
        found = run_graph(other, {n: v for n, v in values.items() if n in kept})
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)


def test_the_command_line_asks_for_it(tmp_path: Path) -> None:
    def functions(*options: str) -> set[str]:
        assert command_line(["import", "attention", *options, "-o", str(tmp_path / "g.json"), "--force"]) == 0
        return {op.function for op in Graph.from_json((tmp_path / "g.json").read_text()).operators}

    assert "attention" in functions("--attention", "operator") and "softmax" in functions()
    assert functions("--attention", "matrices") == functions()
    gradients = {"attention_query_gradient", "attention_gradients"}
    for written, function in (("operator", "attention_query_gradient"), ("fused", "attention_gradients")):
        assert functions("--attention", written, "--train", "sgd") & gradients == {function}


WRONG = {
    "must not be splittable": lambda op: replace(op, axes=tuple(replace(a, splittable=True) for a in op.axes)),
    "names unknown axis 'z'": lambda op: with_attribute(op, "key", ("z",)),
    "must be a tuple of axis names": lambda op: with_attribute(op, "feature", "d"),
    "an axis has two roles": lambda op: with_attribute(op, "query", ("t",)),
    "needs one query axis and one key axis": lambda op: with_attribute(op, "query", ()),
    "no key lies from 1 behind to -2 ahead": lambda op: with_attribute(with_attribute(op, "behind", 1), "ahead", -2),
    "attribute gradient is 'apart'; there is fused": lambda op: with_attribute(op, "gradient", "apart"),
    "attribute block is 0": lambda op: with_attribute(op, "block", 0),
    "operand k must not be read along axis 's'": lambda op: replace(
        op, inputs=(op.inputs[0], Access("k", (Affine.axis("h"), Affine.axis("s"), Affine.axis("d"))), op.inputs[2])
    ),
    "operand v is not read along axis 't'": lambda op: replace(
        op, inputs=(*op.inputs[:2], Access("v", (Affine.axis("h"), Affine(), Affine.axis("e"))))
    ),
}


def with_attribute(op: Operator, name: str, value: object) -> Operator:
    return replace(op, attributes=tuple(sorted({**dict(op.attributes), name: value}.items())))


@pytest.mark.parametrize("message", WRONG)
def test_malformed(message: str) -> None:
    graph = causal(ahead=0)
    changed = replace(graph, operators=(WRONG[message](graph.operators[0]),))
    with pytest.raises(GraphError, match=f"operator 'y': .*{message}"):
        changed.check()


def test_written_and_read() -> None:
    graph = causal(ahead=0, behind=2)
    assert Graph.from_json(graph.to_json()) == graph
    op = graph.operators[0]
    assert prod(op.axis(a).extent for a in inner(op)) == 24
