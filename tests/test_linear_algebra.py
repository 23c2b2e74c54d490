"""Loops of linear algebra over constant indices, as NumPy programs: planned, proved, run on 1 to 4 ranks, compared
with NumPy itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.fusion import fuse
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import trace
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.plan import check_plan

N = 4
Array = np.ndarray


def definite(a: Array) -> Array:
    """A well-conditioned symmetric matrix from any matrix."""
    return a @ a.T + N * np.eye(N)


def cholesky(a: Array) -> Array:
    a = definite(a)
    out = np.zeros_like(a)
    for j in range(N):
        out[j, j] = np.sqrt(a[j, j] - (out[j, :j] * out[j, :j]).sum()) if j else np.sqrt(a[j, j])
        for i in range(j + 1, N):
            out[i, j] = (a[i, j] - (out[i, :j] * out[j, :j]).sum()) / out[j, j] if j else a[i, j] / out[j, j]
    return out


def cholesky_by_columns(a: Array) -> Array:
    a = definite(a)
    for k in range(N):
        a[k:, k] = a[k:, k] / np.sqrt(a[k, k])
        for j in range(k + 1, N):
            a[j:, j] = a[j:, j] - a[j:, k] * a[j, k]
    return a


def lu(a: Array) -> Array:
    a = definite(a)
    for k in range(N - 1):
        a[k + 1 :, k] = a[k + 1 :, k] / a[k, k]
        a[k + 1 :, k + 1 :] = a[k + 1 :, k + 1 :] - a[k + 1 :, k : k + 1] * a[k : k + 1, k + 1 :]
    return a


def back_substitution(a: Array, b: Array) -> Array:
    a = definite(a)
    x = np.zeros_like(b)
    for i in reversed(range(N)):
        x[i] = (b[i] - (a[i, i + 1 :] * x[i + 1 :]).sum()) / a[i, i] if i < N - 1 else b[i] / a[i, i]
    return x


def gram_schmidt(a: Array) -> Array:
    a = definite(a)
    out = np.zeros_like(a)
    for j in range(N):
        v = a[:, j]
        for i in range(j):
            v = v - (out[:, i] * a[:, j]).sum() * out[:, i]
        out[:, j] = v / np.sqrt((v * v).sum())
    return out


def power_iteration(a: Array, b: Array) -> tuple[Array, Array]:
    a = definite(a)
    v = b + 2.0
    for _ in range(3):
        w = a @ v
        v = w / np.sqrt((w * w).sum())
    return v, (v * (a @ v)).sum()


def corners(a: Array) -> Array:
    return a[0, 0] * 2.0 + a[N - 1, 0] - a[0, N - 1] * a[N - 1, N - 1]


def stencil(a: Array) -> Array:
    inner = a[1:-1, 1:-1] + 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) - a[0, 0]
    a[1:-1, 1:-1] = inner
    a[0, :] = a[1, :] + a[N - 1, 2]
    return a


def tridiagonal(a: Array, b: Array) -> Array:
    """Thomas' algorithm, scalar by scalar."""
    a = definite(a)
    c, d = np.zeros_like(b), np.zeros_like(b)
    c[0], d[0] = a[0, 1] / a[0, 0], b[0] / a[0, 0]
    for i in range(1, N):
        pivot = a[i, i] - a[i, i - 1] * c[i - 1]
        if i < N - 1:
            c[i] = a[i, i + 1] / pivot
        d[i] = (b[i] - a[i, i - 1] * d[i - 1]) / pivot
    for i in reversed(range(N - 1)):
        d[i] = d[i] - c[i] * d[i + 1]
    return d


def traced_sum(a: Array) -> Array:
    total = a[0, 0]
    for i in range(1, N):
        total = total + a[i, i] * a[i, i]
    return total


PROGRAMS: dict[str, Callable[..., object]] = {
    f.__name__: f
    for f in (
        cholesky,
        cholesky_by_columns,
        lu,
        back_substitution,
        gram_schmidt,
        power_iteration,
        corners,
        stencil,
        tridiagonal,
        traced_sum,
    )
}
SLOW = {"cholesky", "gram_schmidt", "tridiagonal", "back_substitution"}
"""Many small operators: tables of a training step."""


@pytest.mark.parametrize(
    "machine", [*(pytest.param(f"localhost:{n}", marks=pytest.mark.slow) for n in (1, 2, 3)), "cloud-a100:2x2"]
)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in PROGRAMS])
def test_linear_algebra(name: str, machine: str) -> None:
    function = PROGRAMS[name]
    sizes = {"a": ArraySpec((N, N)), "b": ArraySpec((N,))}
    traced = trace(
        function, name, {n: sizes[n] for n in function.__code__.co_varnames[: function.__code__.co_argcount]}
    )
    found = plan_graph(traced.graph, load_machine(machine), space("complete"))
    assert found.plan is not None
    checked = check_plan(write_plan(None, found.plan))
    assert [(r.kind, r.reason) for r in checked.results if r.verdict is not Verdict.PROVED] == []
    drawn = random_inputs(traced.graph, 1)
    result = run_virtual(fuse(lower(traced.graph, found.planning.machine.hierarchy, found.plan.choices)), drawn)
    shapes = {t.name: t.source_shape or t.shape for t in traced.graph.tensors}
    expected = function(**{n: drawn[n].reshape(shapes[n]).copy() for n in traced.arguments})
    for (tensor, shape), want in zip(
        traced.results, expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        np.testing.assert_allclose(result.outputs[tensor].reshape(shape), want, rtol=1e-9, atol=1e-9)


def test_the_front_door_takes_a_constant_index(tmp_path: Path) -> None:
    from shardproof.__main__ import run

    model, plan = tmp_path / "corner.py", str(tmp_path / "corner.spz")
    model.write_text("from shardproof import float64\ndef f(a: float64[4, 4]): return a[0, 0] * 2.0\n")
    assert run(["plan", f"{model}:f", "--machine", "localhost:2", "-o", plan]) == 0
    assert run(["check", plan]) == 0
    assert run(["run", plan, "-n", "2", "--virtual"]) == 0
