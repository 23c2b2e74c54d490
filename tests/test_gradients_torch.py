"""Gradients against PyTorch autograd, in float64: every function on random instances, and whole scaled-down zoo models.

The forward graph is run by PyTorch, operator by operator, with PyTorch's own functions; nothing of our kernels takes
part there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_gradients import CASES, MODELS, inputs_of

from shardproof.backends.execution.reference import run_graph
from shardproof.backends.kernels import Block, execute, full_box
from shardproof.models.program.attention import role
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.operators import NodeKind, Operator
from shardproof.models.sources.training import build_step
from shardproof.models.sources.training.rules import positions
from shardproof.models.sources.zoo import build

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch

MAPS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "negate": torch.neg,
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
    "cos": torch.cos,
    "sin": torch.sin,
    "atan": torch.atan,
    "abs": torch.abs,
    "reciprocal": torch.reciprocal,
    "softplus": F.softplus,
    "silu": F.silu,
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "squared_difference": lambda x, y: (x - y) ** 2,
    "relu_gradient": lambda g, x: torch.where(x > 0, g, 0.0),
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    "fused_scale_shift": lambda x, a, b: x * a + b,
    "sum_inputs": lambda *a: sum(a),
}


def attribute(op: Operator, name: str, default: float = 0.0) -> float:
    value = op.attribute(name, default)
    assert isinstance(value, (int, float))
    return value


def mapped(op: Operator, a: list[Any]) -> Any:
    if op.function in MAPS:
        return MAPS[op.function](*a)
    match op.function:
        case "scale":
            return a[0] * attribute(op, "scale", 1.0)
        case "shift":
            return a[0] + attribute(op, "shift")
        case "clip":
            return torch.clamp(a[0], attribute(op, "low"), attribute(op, "high"))
        case "power":
            return a[0] ** attribute(op, "exponent")
        case "cast":
            return a[0].to(torch.float64)
        case "gelu":
            return F.gelu(a[0], approximate=str(op.attribute("approximate", "none")))
        case "mask_fill":
            return torch.where(a[1] != 0, a[0], attribute(op, "value"))
        case "batch_norm":
            return (a[0] - a[3]) / torch.sqrt(a[4] + attribute(op, "epsilon")) * a[1] + a[2]
    pytest.skip(f"no PyTorch counterpart of {op.function} written")


def spread(op: Operator, t: Any, names: list[str]) -> Any:
    """A tensor with dimensions `names` in the order of the output axes, length 1 where it lacks one."""
    out = op.output.axes
    moved = t.permute([names.index(a) for a in out if a in names])
    return moved[tuple(slice(None) if a in names else None for a in out)]


def names_of(op: Operator, j: int) -> list[str] | None:
    singles = [i.single for i in op.inputs[j].index]
    return None if None in singles or len(set(singles)) < len(singles) else [str(s) for s in singles]


def window(op: Operator, shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """kernel, stride, dilation, front and back padding of the last two dimensions of input 0."""
    out = op.output.axes
    found: tuple[list[int], ...] = ([], [], [], [], [])
    for index, extent in zip(op.inputs[0].index[-2:], shape[-2:], strict=True):
        ((y, stride),) = [(n, c) for n, c in index.terms if n in out]
        taps = [(n, c) for n, c in index.terms if n not in out]
        ((tap, dilation),) = taps
        k = op.axis(tap).extent
        reach = stride * (op.axis(y).extent - 1) + dilation * (k - 1) + 1
        for part, value in zip(found, (k, stride, dilation, -index.offset, reach + index.offset - extent), strict=True):
            part.append(value)
    return found[0], found[1], found[2], found[3], found[4]


def padded(x: Any, front: list[int], back: list[int], value: float) -> Any:
    return F.pad(x, (front[1], back[1], front[0], back[0]), value=value)  # negative padding cuts


def convolved(op: Operator, x: Any, w: Any) -> Any:
    k, stride, dilation, front, back = window(op, tuple(x.shape))
    x = padded(x, front, back, 0.0)
    if x.ndim == 4:
        return F.conv2d(x, w, stride=stride, dilation=dilation)
    b, g, c, h, v = x.shape
    y = F.conv2d(x.reshape(b, g * c, h, v), w.reshape(-1, c, *k), stride=stride, dilation=dilation, groups=g)
    return y.reshape(b, g, -1, *y.shape[2:])


def normalised(op: Operator, a: list[Any]) -> Any:
    out = op.output.axes
    x = spread(op, a[0], names_of(op, 0) or [])
    last = [out.index(n) for n in op.over]
    order = [d for d in range(len(out)) if d not in last] + last
    moved = x.permute(order).flatten(len(out) - len(last))
    shape = x.permute(order).shape
    match op.function:
        case "softmax" | "log_softmax":
            y = getattr(torch, op.function)(moved, dim=-1)
        case "layer_norm":
            y = F.layer_norm(moved, moved.shape[-1:], eps=attribute(op, "epsilon", 1e-5))
        case "rms_norm":
            y = F.rms_norm(moved, moved.shape[-1:], eps=attribute(op, "epsilon", 1e-5))
        case "cumulative_sum":
            y = torch.cumsum(moved, dim=-1) - (moved if attribute(op, "exclusive") else 0)
        case _:
            pytest.skip(f"no PyTorch counterpart of {op.function} written")
    y = y.reshape(shape).permute([order.index(d) for d in range(len(out))])
    for j, t in enumerate(a[1:], 1):
        s = spread(op, t, names_of(op, j) or [])
        y = y * s if j == 1 else y + s
    return y


def attended(op: Operator, a: list[Any]) -> Any:
    """Attention by its definition, scores stored."""
    letters = {x.name: chr(97 + i) for i, x in enumerate(op.axes)}
    words = ["".join(letters[x] for x in access.axes) for access in op.inputs]
    out, key = "".join(letters[x] for x in op.output.axes), letters[role(op, "key")[0]]
    rows = "".join(x for x in out if x not in {letters[n] for n in role(op, "value_feature")})
    values = [seen(op, j, x) for j, x in enumerate(a)]
    s = torch.einsum(f"{words[0]},{words[1]}->{rows}{key}", *values[:2]) * attribute(op, "scale", 1.0)
    if cap := attribute(op, "softcap", 0.0):
        s = cap * torch.tanh(s / cap)
    hidden = torch.zeros(s.shape, dtype=torch.bool)
    if len(values) > 3:
        mask = spread_to(values[3], words[3], rows + key)
        s, hidden = (s, mask.expand(s.shape) == 0) if a[3].dtype == torch.bool else (s + mask, hidden)
    extent = {letters[x.name]: x.extent for x in op.axes}
    if {"behind", "ahead", "block"} & dict(op.attributes).keys():
        query = letters[role(op, "query")[0]]
        apart = torch.arange(extent[key])[None, :] - torch.arange(extent[query])[:, None]
        block = int(attribute(op, "block", 99))
        outside = (apart < -attribute(op, "behind", 99)) | (apart > attribute(op, "ahead", 99))
        outside = outside | (
            torch.arange(extent[key])[None, :] // block != torch.arange(extent[query])[:, None] // block
        )
        hidden = hidden | spread_to(outside, query + key, rows + key)
    s = s.masked_fill(hidden, -torch.inf)
    none = hidden.all(-1, keepdim=True)  # PyTorch gives nan where no key is seen
    p = torch.softmax(s.masked_fill(none, 0.0), dim=-1).masked_fill(none, 0.0)
    return torch.einsum(f"{rows}{key},{words[2]}->{out}", p, values[2])


def spread_to(x: Any, have: str, want: str) -> Any:
    """Dimensions `have` in the order of `want`, length 1 where there is none."""
    moved = x.permute([have.index(n) for n in want if n in have])
    return moved[tuple(slice(None) if n in have else None for n in want)]


def applied(op: Operator, a: list[Any]) -> Any:
    """The operator by PyTorch."""
    out = op.output.axes
    match op.kind:
        case NodeKind.MAP:
            values = torch.broadcast_tensors(*[spread(op, t, names_of(op, j) or []) for j, t in enumerate(a)])
            shape = [op.axis(n).extent for n in out]
            return mapped(op, [v.expand(shape) for v in values])
        case NodeKind.CONTRACT:
            ranks = tuple(len(x.index) for x in (*op.inputs, op.output))
            if names_of(op, 0) is None and len(op.axes) > 5 and ranks in ((4, 4, 4), (5, 5, 5)):
                return convolved(op, a[0], a[1])
            letters = {x.name: chr(97 + i) for i, x in enumerate(op.axes)}
            words = ["".join(letters[x] for x in access.axes) for access in op.inputs]
            plain = [tuple(op.axis(n).extent for n in names_of(op, j) or []) == tuple(x.shape) for j, x in enumerate(a)]
            values = [x if plain[j] else seen(op, j, x) for j, x in enumerate(a)]
            return torch.einsum(",".join(words) + "->" + "".join(letters[x] for x in out), *values)
        case NodeKind.REDUCE:
            names = list(op.inputs[0].axes)
            dims = [d for d, n in enumerate(names) if n not in out]
            y = seen(op, 0, a[0])
            if dims:
                y = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[op.function](y, dim=dims)
            return spread(op, y * attribute(op, "scale", 1.0), [n for n in names if n in out])
        case NodeKind.NORMALISE:
            return normalised(op, a)
        case NodeKind.WINDOW if any(len(i.terms) > 2 for i in op.inputs[0].index):
            pytest.skip("PyTorch has no windows in digits")
        case NodeKind.ATTENTION:
            return attended(op, a)
        case NodeKind.WINDOW if op.function != "local_response":
            k, stride, _, front, back = window(op, tuple(a[0].shape))
            if op.function == "max_pool":
                return F.max_pool2d(padded(a[0], front, back, -torch.inf), k, stride)
            total = F.avg_pool2d(padded(a[0], front, back, 0.0), k, stride, divisor_override=1)
            count = torch.ones_like(a[0])
            inside = F.avg_pool2d(
                padded(count, front, back, float(attribute(op, "count_include_pad") != 0)),
                k,
                stride,
                divisor_override=1,
            )
            return total / inside
        case NodeKind.WINDOW:
            size = int(attribute(op, "size"))
            if size % 2 == 0:
                pytest.skip("PyTorch centres even windows elsewhere")
            return F.local_response_norm(
                a[0], size, attribute(op, "alpha"), attribute(op, "beta"), attribute(op, "bias")
            )
        case NodeKind.GATHER:
            table, ids = names_of(op, 0) or [], names_of(op, 1) or []
            rows = str(op.attribute("rows", ""))
            hot = F.one_hot(a[1].long(), op.axis(rows).extent).to(a[0].dtype)
            letters = {x.name: chr(97 + i) for i, x in enumerate(op.axes)}
            words = ["".join(letters[x] for x in names) for names in (table, [*ids, rows], out)]
            return torch.einsum(f"{words[0]},{words[1]}->{words[2]}", a[0], hot)
        case NodeKind.LAYOUT if op.function == "copy":
            return copied(op, a)
        case _:
            pytest.skip(f"no PyTorch counterpart of {op.function} written")


def copied(op: Operator, a: list[Any]) -> Any:
    """By PyTorch's reshape, or by its indexing with arrays."""
    out = op.output.axes
    shape = [op.axis(n).extent for n in out]
    if any(i.whole for i in op.inputs[0].index):
        kept = [str(i.single) for i in op.inputs[0].index if not i.whole]
        order = [d for d, i in enumerate(op.inputs[0].index) if not i.whole] + [
            d for d, i in enumerate(op.inputs[0].index) if i.whole
        ]
        names = [*kept, *(n for n in out if n not in kept)]
        return a[0].permute(order).reshape([op.axis(n).extent for n in names]).permute([names.index(n) for n in out])
    return sum(spread(op, seen(op, j, x), list(op.inputs[j].axes)).expand(shape) for j, x in enumerate(a))


def seen(op: Operator, j: int, x: Any) -> Any:
    """What input j reads, one dimension per axis of its access, by PyTorch's indexing with arrays; zero outside the
    tensor.
    """
    access = op.inputs[j]
    shape = [op.axis(n).extent for n in access.axes]
    grid = dict(zip(access.axes, np.indices(shape), strict=True))
    places = [i.offset + sum((c * grid[n] for n, c in i.terms), np.zeros(shape, dtype=np.int64)) for i in access.index]
    inside = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(places, x.shape, strict=True)])
    read = x[tuple(torch.tensor(np.clip(p, 0, n - 1)) for p, n in zip(places, x.shape, strict=True))]
    return torch.where(torch.tensor(inside), read, 0.0)


def check(graph: Graph, seed: int, tolerance: float = 1e-9) -> None:
    made = build_step(graph, "sgd")
    values = inputs_of(made.graph, seed)
    found = run_graph(made.graph, values, keep=[g for _, g in made.trained])
    tensors = {n: torch.tensor(v) for n, v in values.items()}
    for n, _ in made.trained:
        tensors[n].requires_grad_()
    for op in made.graph.operators:
        if op.output.tensor.startswith("grad:"):
            break
        if positions(op) == () or all(
            not tensors[a.tensor].requires_grad for a in op.inputs
        ):  # positions, masks: no part of what is differentiated
            blocks = [Block(tensors[a.tensor].detach().numpy(), (0,) * len(a.index)) for a in op.inputs]
            tensors[op.output.tensor] = torch.tensor(execute(np, op, made.graph, full_box(op.axes), blocks))
        else:
            tensors[op.output.tensor] = applied(op, [tensors[a.tensor] for a in op.inputs])
    (loss,) = made.graph.outputs
    tensors[loss].backward()
    np.testing.assert_allclose(found[loss], tensors[loss].detach().numpy(), rtol=1e-10, atol=1e-12)
    for n, g in made.trained:
        expected = tensors[n].grad.numpy()
        scale = 1 + float(np.abs(expected).max(initial=0))
        assert float(np.abs(found[g] - expected).max(initial=0)) <= tolerance * scale, (n, g)


INDEXED = {"grouped_product", "scatter_add", "scatter_max", "scatter_min"}
"""PyTorch has them under index tensors of other shapes: `test_torch_indexed.py`; loops are in `test_torch_loops.py`."""


@pytest.mark.parametrize("name", sorted(set(CASES) - {"update", "scan"} - INDEXED))
def test_gradients_equal_autograd(name: str) -> None:
    done = 0
    for seed in range(100, 112):
        graph = CASES[name](np.random.default_rng([seed, len(name)]))
        try:
            build_step(graph, "sgd")
        except GraphError as error:
            assert "nothing to train" in str(error)
            continue
        try:
            check(graph, seed)
        except pytest.skip.Exception:
            continue
        done += 1
    assert done >= 3


def small(name: str, **options: int | str) -> Callable[[], Graph]:
    return lambda: build(name, dtype="float64", **options)


WHOLE = {
    **MODELS,
    "uneven": small("mlp-uneven"),
    "attention": small("attention", batch=2, tokens=5, width=16, heads=4),
    "dlrm": small("dlrm", batch=6, tables=3, rows=11, width=4, bag=2, dense=5, bottom="6-4", top="7-1"),
    "xdl": small("xdl", batch=6, tables=3, rows=11, width=4, bag=2, top="7-2"),
    "candle": small("candle-uno", batch=5, width=7, tower=2, layers=2, features_percent=1),
    "alexnet": small("alexnet", batch=2, size=99, width=3, hidden=12, classes=5),
    "inception": small("inception-v3", batch=2, size=75, width=2, classes=5),
    "resnext": small("resnext50", batch=2, size=33, blocks="1-1-1-1", stem=4, groups=2, group_width=2, classes=5),
    "resnet": small("resnet101", batch=2, size=33, blocks="1-1-1-1", stem=4, classes=5),
    "rnnlm": small("rnnlm", batch=2, steps=3, width=4, layers=2, vocabulary=7),
    "llama": small("llama", batch=2, layers=2, sequence=4, width=16, heads=4, kv_heads=2, hidden=12, vocabulary=9),
    "moe": small(
        "moe", batch=2, layers=1, sequence=4, width=16, heads=4, kv_heads=2, hidden=12, experts=4, vocabulary=9
    ),
    "vit": small("vit", batch=2, size=16, patch=8, depth=2, width=16, heads=4, hidden=12, classes=5),
}


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_whole_models_equal_autograd(name: str) -> None:
    check(WHOLE[name](), 7)
