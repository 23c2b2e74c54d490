"""All gradients of an attention as one operator, against the formulas over whole scores, in boxes of all axes at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from test_attention import case, scores
from test_kernels import tight

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.kernels import attention_parts
from shardproof.backends.kernels.dispatch import execute
from shardproof.models.program.graph import Role
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.attention import with_fused_gradients
from shardproof.models.sources.training import build_step

Array = np.ndarray


def packed(attention: Operator, q: Array, k: Array, v: Array, mask: Array | None, g: Array) -> Array:
    """[b, h, x, j, c] from softmax(cap(scale q k) + mask) v: gradients of queries, keys and values side by side."""
    seen, scale = scores(attention, q, k, mask), float(attention.attribute("scale", 1.0))
    cap, plain = float(attention.attribute("softcap", 0.0)), np.einsum("bhgsd,bhtd->bhgst", q, k) * scale
    slope = 1 - np.tanh(plain / cap) ** 2 if cap else np.ones_like(plain)
    top = np.max(seen, axis=-1, keepdims=True)
    e = np.exp(seen - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    p = np.where(total > 0, e / np.where(total > 0, total, 1), 0)
    inward = np.einsum("bhgse,bhte->bhgst", g, v)
    w = p * (inward - (p * inward).sum(axis=-1, keepdims=True)) * slope * scale
    b, h, groups, s, d = q.shape
    t, width = v.shape[2:]
    out = np.zeros((b, h, max(s, t), groups + 2, max(d, width)))
    out[:, :, :s, :groups, :d] = np.einsum("bhgst,bhtd->bhsgd", w, k)
    out[:, :, :t, groups, :d] = np.einsum("bhgst,bhgsd->bhtd", w, q)
    out[:, :, :t, groups + 1, :width] = np.einsum("bhgst,bhgse->bhte", p, g)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_boxes_of_all_axes_at_once_give_the_formulas(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven parts of batch, heads, groups, queries and keys together, causal, sliding and in blocks, with masks: every
    box adds its own part, and nothing else.
    """
    for name, size in (("KEYS", 4), ("QUERIES", 2), ("SCORES", 40)):
        monkeypatch.setattr(attention_parts, name, size)
    rng = np.random.default_rng(7000 + seed)
    graph, _, _ = case(rng)
    (attention,) = graph.operators
    trained = [replace(t, role=Role.PARAMETER) if t.name in ("q", "k", "v") else t for t in graph.tensors]
    fused = build_step(with_fused_gradients(replace(graph, tensors=tuple(trained))), "sgd").graph
    (op,) = (o for o in fused.operators if o.function == "attention_gradients")
    values = random_inputs(fused, seed)
    outputs = tuple(a.tensor for a in op.inputs if a.tensor in fused.writer())
    known = {**values, **run_graph(replace(fused, outputs=outputs), values)}
    reads = [known[a.tensor] for a in op.inputs]
    extent = {a.name: a.extent for a in op.axes}
    assert set(op.inputs[0].axes) == set("bhgse") and {*op.output.axes[:2]} == {*"bh"}
    g = np.einsum("".join(op.inputs[0].axes) + "->bhgse", reads[0])
    mask = None
    if "m" in known:
        (read,) = (a for a in op.inputs if a.tensor == "m")
        shape = [extent[n] if n in read.axes else 1 for n in "bhgst"]
        mask = np.broadcast_to(known["m"].reshape(shape), [extent[n] for n in "bhgst"])
    wanted = packed(attention, known["q"], known["k"], known["v"], mask, g)
    wanted = wanted if op.output.axes[0] == "b" else wanted.swapaxes(0, 1)
    for _ in range(2):
        ends = {
            a.name: sorted(
                {0, a.extent, *map(int, rng.integers(0, a.extent + 1, 2))} if a.splittable else {0, a.extent}
            )
            for a in op.axes
        }
        found = np.zeros_like(wanted)
        for runs in product(*(list(pairwise(e)) for e in ends.values())):
            box = dict(zip(ends, runs, strict=True))
            part = execute(np, op, fused, box, tight(op, fused, box, reads))
            found[tuple(slice(*box[n]) for n in op.output.axes)] += part
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11)
