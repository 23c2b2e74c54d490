"""What the larger models of the zoo compute, against formulas written out in NumPy with flat weights."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.zoo import TINY, build


def values_of(
    name: str, seed: int = 3, **options: int | str
) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tiny graph, its inputs in digits, and the same in the flat shapes that users know."""
    graph = build(name, **{**TINY[name], **options})
    v = random_inputs(graph, seed)
    return graph, v, {n: a.reshape(graph.tensor(n).source_shape or a.shape) for n, a in v.items()}


def agrees(graph: Graph, v: dict[str, np.ndarray], expected: np.ndarray) -> None:
    assert expected.std() > 1e-3
    np.testing.assert_allclose(run_graph(graph, v)[graph.outputs[0]], expected, rtol=1e-9, atol=1e-11)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


def relu_mlp(x: np.ndarray, p: dict[str, np.ndarray], name: str, last: str) -> np.ndarray:
    count = sum(n.startswith(name) and n.endswith(".weight") for n in p)
    for i in range(count):
        x = x @ p[f"{name}{i}.weight"]
        if i < count - 1 or last == "relu":
            x = np.maximum(x, 0)
    return 1 / (1 + np.exp(-x)) if last == "sigmoid" else x


def test_dlrm_xdl_and_uno() -> None:
    for name in ("dlrm", "xdl"):
        graph, v, p = values_of(name)
        features = [p[f"table{i}.rows"][p[f"sparse{i}"]].sum(axis=1) for i in range(3)]
        if name == "dlrm":
            features.insert(0, relu_mlp(p["dense"], p, "bottom", "relu"))
        agrees(graph, v, relu_mlp(np.concatenate(features, axis=1), p, "top", "sigmoid"))
    graph, v, p = values_of("candle-uno")
    inputs = [t.name for t in graph.tensors if t.name in p and not t.name.endswith("weight")]
    assert len(inputs) == 7
    features = [p[n] if n.startswith("dose") else relu_mlp(p[n], p, f"{n}.dense", "relu") for n in sorted(inputs)]
    agrees(graph, v, relu_mlp(np.concatenate(features, axis=1), p, "dense", "relu") @ p["growth0.weight"])


def test_rnnlm_is_two_lstms() -> None:
    graph, v, p = values_of("rnnlm")
    x = p["embedding.table"][p["words"]]
    for layer in range(2):
        w, u, bias = (p[f"lstm{layer}.{n}"] for n in ("weight", "recurrent", "bias"))
        c = h = np.zeros((4, 8))
        states = []
        for t in range(3):
            i, f, z, o = np.split(x[:, t] @ w + h @ u + bias, 4, axis=1)
            c = c / (1 + np.exp(-f)) + np.tanh(z) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
            states.append(h)
        x = np.stack(states, axis=1)
    logits = x @ p["logits.weight"]
    agrees(graph, v, logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def rms(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gamma


def rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """x[b, s, h, d] as complex numbers x[i] + j x[i + d/2], turned by s theta^(-2i/d)."""
    d = x.shape[-1]
    z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(
        1j * np.arange(x.shape[1])[:, None, None] * theta ** (-2 * np.arange(d // 2) / d)
    )
    return np.concatenate([z.real, z.imag], axis=-1)


def causal_attention(x: np.ndarray, p: dict[str, np.ndarray], name: str) -> np.ndarray:
    """4 heads of 4 over 2 key-value heads, theta 100, one query position at a time."""
    b, s, _ = x.shape
    q, k, u = ((x @ p[f"{name}.{n}.weight"]).reshape(b, s, -1, 4) for n in ("query", "key", "value"))
    q, k = rotated(q, 100.0), rotated(k, 100.0)
    k, u = np.repeat(k, 2, axis=2), np.repeat(u, 2, axis=2)
    out = np.zeros((b, s, 4, 4))
    for i in range(s):
        weights = softmax(np.einsum("bhd,bthd->bht", q[:, i], k[:, : i + 1]) / 2)
        out[:, i] = np.einsum("bht,bthd->bhd", weights, u[:, : i + 1])
    return out.reshape(b, s, 16) @ p[f"{name}.output.weight"]


def decoded(p: dict[str, np.ndarray], ffn: Callable[[np.ndarray, str], np.ndarray]) -> np.ndarray:
    x = p["embedding.table"][p["words"]]
    for i in range(2):
        x = x + causal_attention(rms(x, p[f"layer{i}.attention.norm.gamma"]), p, f"layer{i}.attention")
        x = x + ffn(rms(x, p[f"layer{i}.ffn.norm.gamma"]), f"layer{i}.ffn")
    return rms(x, p["norm.gamma"]) @ p["logits.weight"]


def test_llama_is_llama() -> None:
    graph, v, p = values_of("llama")

    def ffn(x: np.ndarray, name: str) -> np.ndarray:
        return (silu(x @ p[f"{name}.gate.weight"]) * (x @ p[f"{name}.up.weight"])) @ p[f"{name}.down.weight"]

    agrees(graph, v, decoded(p, ffn))


@pytest.mark.parametrize("percent", [0, 50, 100, 400])
def test_experts_take_tokens_one_by_one(percent: int) -> None:
    """Tokens in order, each to its two best experts as long as they have a place; with 0 percent they always have."""
    graph, v, p = values_of("moe", capacity_percent=percent)
    capacity, dropped = max(1, percent * 2 * 8 // 400) if percent else 16, 0

    def ffn(x: np.ndarray, name: str) -> np.ndarray:
        nonlocal dropped
        out, odds = np.zeros_like(x), softmax(x @ p[f"{name}.route.weight"])
        for b in range(2):
            taken = [0] * 4
            for s in range(8):
                best = sorted(range(4), key=lambda e: -odds[b, s, e])[:2]
                for e in best:
                    taken[e] += 1
                    if taken[e] > capacity:
                        dropped += 1
                        continue
                    h = silu(x[b, s] @ p[f"{name}.gate.weight"][e]) * (x[b, s] @ p[f"{name}.up.weight"][e])
                    out[b, s] += odds[b, s, e] / odds[b, s, best].sum() * (h @ p[f"{name}.down.weight"][e])
        return out

    agrees(graph, v, decoded(p, ffn))
    assert (dropped > 0) == (0 < percent < 400)


def windowed(x: np.ndarray, w: np.ndarray, stride: int, pad: int, groups: int = 1) -> np.ndarray:
    """Convolution, tap by tap."""
    b, c, h, _ = x.shape
    o, _, k, _ = w.shape
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    n = (h + 2 * pad - k) // stride + 1
    out = np.zeros((b, groups, o // groups, n, n))
    for i in range(k):
        for j in range(k):
            part = x[:, :, i : i + stride * n : stride, j : j + stride * n : stride][:, :, :n, :n].reshape(
                b, groups, c // groups, n, n
            )
            out += np.einsum("bgcyx,goc->bgoyx", part, w[:, :, i, j].reshape(groups, o // groups, c // groups))
    return out.reshape(b, o, n, n)


@pytest.mark.parametrize("frozen", ["no", "yes"])
def test_resnext_is_resnext(frozen: str) -> None:
    graph, v, p = values_of("resnext50", frozen=frozen)

    def unit(x: np.ndarray, name: str, stride: int = 1, pad: int = 0, groups: int = 1) -> np.ndarray:
        y = windowed(x, p[f"{name}.conv.weight"], stride, pad, groups)
        stored = (
            [p[f"{name}.norm.{n}"] for n in ("mean", "variance")]
            if frozen == "yes"
            else [y.mean((0, 2, 3)), y.var((0, 2, 3))]
        )
        mean, variance, gamma, beta = (
            s[:, None, None] for s in (*stored, p[f"{name}.norm.gamma"], p[f"{name}.norm.beta"])
        )
        return (y - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    x = np.pad(np.maximum(unit(p["image"], "stem", 2, 3), 0), ((0, 0), (0, 0), (1, 1), (1, 1)))
    x = np.max([x[:, :, i : i + 15 : 2, j : j + 15 : 2] for i in range(3) for j in range(3)], axis=0)
    for stage, blocks in enumerate((1, 2, 1, 1)):
        for i in range(blocks):
            name, stride = f"stage{stage + 1}.block{i}", 2 if stage and not i else 1
            y = np.maximum(unit(x, f"{name}.reduce"), 0)
            y = unit(np.maximum(unit(y, f"{name}.window", stride, 1, 2), 0), f"{name}.expand")
            x = np.maximum(y + (unit(x, f"{name}.shortcut", stride) if i == 0 else x), 0)
    agrees(graph, v, x.mean((2, 3)) @ p["fc.weight"] + p["fc.bias"])


def test_vision_transformer_is_one() -> None:
    graph, v, p = values_of("vit")

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * p[f"{name}.gamma"] + p[
            f"{name}.beta"
        ]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    patches = windowed(p["image"], p["patches.weight"], 4, 0) + p["patches.bias"][:, None, None]
    x = (
        np.concatenate(
            [np.broadcast_to(p["class_token"], (2, 1, 16)), patches.reshape(2, 16, 9).transpose(0, 2, 1)], axis=1
        )
        + p["position.table"]
    )
    for i in range(2):
        y = norm(x, f"layer{i}.attention.norm")
        q, k, u = (
            dense(y, f"layer{i}.attention.{n}").reshape(2, 10, 2, 8).transpose(0, 2, 1, 3)
            for n in ("query", "key", "value")
        )
        mixed = softmax(q @ k.transpose(0, 1, 3, 2) / sqrt(8)) @ u
        x = x + dense(mixed.transpose(0, 2, 1, 3).reshape(2, 10, 16), f"layer{i}.attention.output")
        h = dense(norm(x, f"layer{i}.ffn.norm"), f"layer{i}.ffn.up")
        x = x + dense(h * (1 + np.vectorize(erf)(h / sqrt(2))) / 2, f"layer{i}.ffn.down")
    agrees(graph, v, dense(norm(x, "norm")[:, 0], "head"))


def test_inception_block_is_four_towers() -> None:
    """The first block against the same convolutions, run apart and put side by side."""
    graph, v, p = values_of("inception-v3")
    keep = [
        "stem.pool4",
        "a0.concat",
        "a0.pool",
        "a0.pool.project.relu",
        "a0.five.1.relu",
        "a0.three.2.relu",
        "a0.one.relu",
    ]
    out = run_graph(graph, v, keep=keep)
    towers = [out[f"a0.{n}.relu"] for n in ("one", "five.1", "three.2", "pool.project")]
    np.testing.assert_array_equal(out["a0.concat"], np.concatenate(towers, axis=1))
    x = np.pad(out["stem.pool4"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    side = out["stem.pool4"].shape[-1]
    np.testing.assert_allclose(
        out["a0.pool"], sum(x[:, :, i : i + side, j : j + side] for i in range(3) for j in range(3)) / 9, rtol=1e-12
    )
    y = windowed(out["stem.pool4"], p["a0.one.conv.weight"], 1, 0)
    y = (y - y.mean((0, 2, 3), keepdims=True)) / np.sqrt(y.var((0, 2, 3), keepdims=True) + 1e-3)
    y = y * p["a0.one.norm.gamma"][:, None, None] + p["a0.one.norm.beta"][:, None, None]
    np.testing.assert_allclose(out["a0.one.relu"], np.maximum(y, 0), rtol=1e-9, atol=1e-11)
