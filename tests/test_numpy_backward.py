"""Training steps that users write: gradients against central differences, buffers as in PyTorch, nothing recorded
that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import UnsupportedOperators
from shardproof.models.sources.numpy.opaque import opaque
from shardproof.models.sources.numpy.program import ArraySpec, parameter
from shardproof.models.sources.numpy.trace import Traced, TraceError, trace
from shardproof.verify.plan.communication import check_delivers


def functions(traced: Traced) -> list[str]:
    return [op.function for op in traced.graph.operators]


def difference(loss: Callable[..., float], values: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Central differences of a scalar."""
    out, step = np.empty_like(values[name]), 1e-6
    for at in np.ndindex(out.shape):
        moved = {n: v.copy() for n, v in values.items()}
        moved[name][at] += step
        up = float(loss(**moved))
        moved[name][at] -= 2 * step
        out[at] = (up - float(loss(**moved))) / (2 * step)
    return out


def check_gradients(loss: Callable[..., object], leaves: str, **shapes: tuple[int, ...]) -> Traced:
    def step(**arrays: object) -> list[object]:
        for n in leaves:
            arrays[n].requires_grad_()
        loss(**arrays).backward()
        return [arrays[n].grad for n in leaves]

    step.__signature__ = __import__("inspect").signature(loss)
    traced = trace(step, "step", {n: ArraySpec(s) for n, s in shapes.items()})
    values = random_inputs(traced.graph, 2)
    outputs = run_graph(traced.graph, values)
    for n, (tensor, _) in zip(leaves, traced.results, strict=True):
        np.testing.assert_allclose(outputs[tensor], difference(loss, values, n), rtol=1e-6, atol=1e-7)
    return traced


def test_the_step_of_the_thesis() -> None:
    """Figure 7.2: the reverse pass needs dy and nothing of the forward pass but the shape of the loss."""

    def step(x, dy):
        x.requires_grad_()
        xTy = x.T @ dy
        loss = np.add.reduce(xTy)
        loss.backward()
        return x.grad

    traced = trace(step, "step", {"x": ArraySpec((10, 5)), "dy": ArraySpec((10,))})
    assert functions(traced) == ["product", "sum", "fill", "identity", "product"]  # no zeroing, no accumulation
    values = random_inputs(traced.graph, 0)
    np.testing.assert_allclose(
        run_graph(traced.graph, values)[traced.results[0][0]], np.repeat(values["dy"][:, None], 5, axis=1)
    )


def written(x, a):
    b = a * 2
    b[1:3] = x * a[:2]
    b[0, 1:] += x[1, :2]
    return b


LOSSES: dict[str, tuple[Callable[..., object], str, dict[str, tuple[int, ...]]]] = {
    "two layers": (lambda x, a, b: np.mean((np.tanh(x @ a) @ b) ** 2), "ab", {"x": (4, 3), "a": (3, 5), "b": (5, 2)}),
    "read twice": (lambda x, a: np.sum(np.exp(a) * a) + np.sum((x * a) @ a.T), "a", {"x": (3, 4), "a": (3, 4)}),
    "softmax": (
        lambda x, a: np.sum(np.exp(x * a) / np.sum(np.exp(x * a), axis=1, keepdims=True) * x),
        "a",
        {"x": (3, 4), "a": (3, 4)},
    ),
    "views": (lambda x, a: np.sum(np.concatenate([a[1:], a[:1]]) * x * a.T[:, :3].T), "a", {"x": (3, 3), "a": (3, 3)}),
    "padding": (
        lambda x, a: np.sum(np.square(np.pad(a, 1)[:-2, 1:-1] + x * np.pad(a, 1)[2:, 1:-1])),
        "a",
        {"x": (4, 3), "a": (4, 3)},
    ),
    "in place": (lambda x, a: np.sum(written(x, a) ** 2), "ax", {"x": (2, 3), "a": (4, 3)}),
    "einsum and views": (
        lambda x, a: np.sum(np.einsum("bi,ij->bj", x, a[:, ::2]) * x[:, :2]),
        "ax",
        {"x": (3, 4), "a": (4, 4)},
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_central_differences(name: str) -> None:
    loss, leaves, shapes = LOSSES[name]
    check_gradients(loss, leaves, **shapes)


def two_losses(x, w1, w2, target):
    w1.requires_grad_()
    w2.requires_grad_()
    hidden = np.tanh(x @ w1)
    loss = np.mean((hidden @ w2 - target) ** 2)
    penalty = 0.01 * np.sum(w1 * w1)
    loss.backward()
    penalty.backward()
    w1 -= 0.1 * w1.grad
    w2 -= 0.1 * w2.grad
    return loss


SHAPES = {"x": ArraySpec((8, 5)), "w1": parameter(5, 6), "w2": parameter(6, 4), "target": ArraySpec((8, 4))}


def by_hand(x, w1, w2, target):
    hidden = np.tanh(x @ w1)
    error = 2 * (hidden @ w2 - target) / target.size
    inner = (error @ w2.T) * (1 - hidden**2)
    return w1 - 0.1 * (x.T @ inner + 0.02 * w1), w2 - 0.1 * (hidden.T @ error)


def test_two_backward_calls_accumulate_where_both_write() -> None:
    traced = trace(two_losses, "step", SHAPES)
    assert [n for n, _ in traced.graph.state] == ["w1", "w2"]
    added = [op for op in traced.graph.operators if op.name.startswith("grad") and op.function == "add"]
    assert len(added) == 1  # only w1's buffer is written twice
    values = random_inputs(traced.graph, 1)
    outputs = run_graph(traced.graph, values)
    for (_, tensor), want in zip(traced.graph.state, by_hand(**values), strict=True):
        np.testing.assert_allclose(outputs[tensor], want, rtol=1e-10, atol=1e-12)


def test_a_step_is_planned_and_run_on_ranks() -> None:
    traced = trace(two_losses, "step", SHAPES)
    planned = plan_graph(traced.graph, load_machine("localhost:4"))
    assert planned.plan is not None
    values = random_inputs(traced.graph, 1)
    program = lower(traced.graph, (4,), planned.plan.choices)
    assert all(check_delivers(m.plan).verdict.value == "proved" for m in program.movements)
    result, expected = run_virtual(program, values), run_graph(traced.graph, values)
    for name in traced.graph.results:
        np.testing.assert_allclose(result.outputs[name], expected[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", ["none", "zeros", "kept"])
def test_buffers_between_steps(way: str) -> None:
    """Two steps of descent: a buffer that is cleared, either way, is written again without an addition; one that is
    kept accumulates.
    """

    def descend(x, w):
        w.requires_grad_()
        for _ in range(2):
            np.sum((x @ w) ** 2).backward()
            w -= 0.01 * w.grad
            if way == "none":
                w.grad = None
            if way == "zeros":
                w.grad[...] = 0
        return w

    traced = trace(descend, "descend", {"x": ArraySpec((4, 3)), "w": ArraySpec((3, 2))})
    values = random_inputs(traced.graph, 3)
    x, w, grad = values["x"], values["w"], 0.0
    for _ in range(2):
        new = 2 * x.T @ (x @ w)
        grad = grad + new if way == "kept" else new
        w = w - 0.01 * grad
    np.testing.assert_allclose(run_graph(traced.graph, values)[traced.results[0][0]], w, rtol=1e-10)
    assert functions(traced).count("add") == (way == "kept")


def test_backward_from_a_given_gradient() -> None:
    def step(x, w, dy):
        w.requires_grad_()
        (x @ w).backward(dy)
        return w.grad

    traced = trace(step, "step", {"x": ArraySpec((4, 3)), "w": ArraySpec((3, 2)), "dy": ArraySpec((4, 2))})
    values = random_inputs(traced.graph, 3)
    np.testing.assert_allclose(
        run_graph(traced.graph, values)[traced.results[0][0]], values["x"].T @ values["dy"], rtol=1e-10
    )


def test_values_of_the_forward_pass_survive_writes() -> None:
    """The reverse pass reads what the forward pass computed, although the buffer is overwritten in between."""

    def step(x, w):
        w.requires_grad_()
        hidden = np.exp(x * w)
        loss = hidden.sum()
        hidden[...] = 0
        loss.backward()
        return w.grad

    traced = trace(step, "step", {"x": ArraySpec((4,)), "w": ArraySpec((4,))})
    values = random_inputs(traced.graph, 3)
    np.testing.assert_allclose(
        run_graph(traced.graph, values)[traced.results[0][0]],
        values["x"] * np.exp(values["x"] * values["w"]),
        rtol=1e-10,
    )


def unmarked(x, w):
    np.sum(x * w).backward()
    return w


def vector(x, w):
    w.requires_grad_()
    (x * w).backward()
    return w


def part(x, w):
    w[1:].requires_grad_()
    return w


def integers(x, w):
    x.astype("int64").requires_grad_()
    return w


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unmarked, "depends on no array"),
        (vector, r"needs the gradient to start from"),
        (part, "not a part of another"),
        (integers, "floats, not int64"),
    ],
)
def test_refused_with_the_place(function: Callable[..., object], message: str) -> None:
    with pytest.raises(TraceError, match=message) as error:
        trace(function, "p", {"x": ArraySpec((4,)), "w": ArraySpec((4,))})
    assert "test_numpy_backward.py:" in str(error.value)


def test_functions_without_a_derivative_are_named() -> None:
    kernel = opaque(reference=np.exp)(lambda x: np.exp(x))

    def step(x, w):
        w.requires_grad_()
        np.sum(kernel(x * w)).backward()
        return w.grad

    with pytest.raises(UnsupportedOperators, match=r"opaque \(1: test_numpy_backward.py:"):
        trace(step, "p", {"x": ArraySpec((4,)), "w": ArraySpec((4,))})
