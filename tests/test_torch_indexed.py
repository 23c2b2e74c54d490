"""What reads and writes where data says, imported from PyTorch: values and gradients against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor
from torch.nn import functional as F
from torch_case import compare, imported

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Role
from shardproof.models.sources.building.stated import with_constants
from shardproof.models.sources.training import build_step

pytestmark = pytest.mark.torch
D = torch.float64


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def real(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=D)


VALUES = {
    "argmax": (lambda x: x.argmax(1), real(3, 5)),
    "argmax of all": (lambda x: x.argmax(), real(3, 5)),
    "argmin kept": (lambda x: x.argmin(-1, keepdim=True), real(3, 5)),
    "argmax of equal integers": (lambda i: i.argmax(-1), ids(4, 6)),
    "max with positions": (lambda x: x.max(1), real(4, 5)),
    "min with positions": (lambda x: x.min(0, keepdim=True), real(4, 5)),
    "topk": (lambda x: x.topk(3, 1), real(4, 6)),
    "topk smallest": (lambda x: x.topk(2, 0, largest=False), real(4, 6)),
    "topk all": (lambda x: x.topk(6, -1), real(4, 6)),
    "sort": (lambda x: x.sort(0), real(4, 6)),
    "sort descending": (lambda x: x.sort(1, descending=True), real(4, 6)),
    "stable sort of equal integers": (lambda i: i.sort(stable=True, dim=1), ids(3, 7)),
    "argsort": (lambda x: x.argsort(-1), real(4, 6)),
    "histc": (lambda x: torch.histc(x, bins=7, min=-1.5, max=2.0), real(40)),
    "histc of integers": (lambda i: torch.histc(i.double(), bins=2, min=0, max=1), ids(12)),
    "histc up to the number of bins": (lambda i: torch.histc(i.double(), bins=3, min=0, max=3), ids(12)),
    "one_hot": (lambda i: F.one_hot(i, 4), ids(3, 2)),
    "full_like of a computed number": (lambda x: torch.full_like(x, 3.0) + x, real(3, 2)),
    "full_like": (lambda x: x * torch.full_like(x, 3.0), real(3, 2)),
    "new_full": (lambda x: x.new_full((2, 3), 2.5) + x[:2, :1], real(3, 2)),
    "scalar_tensor": (lambda x: torch.where(x > 0, torch.tensor(0.5, dtype=D), x), real(3, 2)),
    "computed index from the end": (lambda x, i: x[i - 2], real(5, 3), ids(4)),
    "two computed indices from the end": (lambda x, i, j: x[i - 1, :, j - 3], real(5, 3, 4), ids(6), ids(6)),
    "written at an index from the end": (
        lambda x, i: x.index_put((i - 2,), torch.ones(1, dtype=D), accumulate=True),
        real(4),
        ids(3),
    ),
    "a number and part of a mask": (lambda x: torch.add(0.25, x > 0, alpha=0.5) * x, real(3, 4)),
    "a number less a part": (lambda x: torch.sub(torch.tensor(2.0, dtype=D), x, alpha=0.5), real(3, 4)),
    "a pool of all there is": (
        lambda x: F.avg_pool2d(x, 9, ceil_mode=True) + F.max_pool2d(x, 16, ceil_mode=True),
        real(1, 2, 5, 4),
    ),
    "arange": (lambda x: x + torch.arange(1, 9, 3, dtype=D), real(2, 3)),
    "floor division": (lambda i: (i * 7 + 5) // 3, ids(12)),
    "floor division of reals": (lambda x: torch.div(x, 0.3, rounding_mode="floor"), real(12)),
    "floor division of two": (lambda i, j: torch.div(i * 9, j + 2, rounding_mode="floor"), ids(12), ids(12)),
    "integers times a number": (lambda i: i * 3 + 1, ids(5)),
    "scatter values": (lambda x, i, s: x.scatter(1, i, s), real(3, 4), ids(3, 1), real(3, 1)),
    "scatter a number": (lambda x, i: x.scatter(0, i, 2.5), real(3, 4), ids(2, 4)),
    "scatter marks": (lambda i: torch.zeros(3, 4, dtype=D).scatter(1, i, 1.0), ids(3, 2)),
    "scatter into a part": (lambda x, i, s: x.scatter(0, i, s), real(5, 4), ids(1, 2), real(3, 3)),
    "scatter reduce=add": (lambda x, i, s: x.scatter(1, i, s, reduce="add"), real(3, 4), ids(3, 5), real(3, 5)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), real(3, 4), ids(5, 4), real(5, 4)),
    "scatter_add into zeros": (lambda i, s: s.new_zeros(3, 4).scatter_add(0, i, s), ids(5, 4), real(5, 4)),
    "scatter_add of a part": (lambda x, i, s: x.scatter_add(1, i, s), real(4, 4), ids(2, 3), real(3, 5)),
    **{
        f"scatter_reduce {how}{'' if own else ' without self'}": (
            lambda x, i, s, how=how, own=own: x.scatter_reduce(1, i, s, how, include_self=own),
            real(3, 3),
            ids(3, 4),
            real(3, 4),
        )
        for how in ("sum", "mean", "amax", "amin")
        for own in (True, False)
    },
    **{
        f"index_reduce {how}{'' if own else ' without self'}": (
            lambda x, i, s, how=how, own=own: x.index_reduce(1, i, s, how, include_self=own),
            real(3, 4),
            ids(5),
            real(3, 5),
        )
        for how in ("mean", "amax", "amin")
        for own in (True, False)
    },
    "index_add": (lambda x, i, s: x.index_add(1, i, s), real(3, 4), ids(5), real(3, 5)),
    "index_add with alpha": (lambda x, i, s: x.index_add(0, i, s, alpha=0.5), real(3, 4), ids(5), real(5, 4)),
    "index_select": (lambda x, i: x.index_select(1, i), real(3, 4), ids(5)),
    "index by two": (lambda x, i, j: x[i, j], real(3, 4, 2), ids(5), ids(5)),
    "index by two, broadcast": (lambda x, i, j: x[:, i[:, None], j], real(2, 3, 4), ids(5), ids(2)),
    "index by two, apart": (lambda x, i, j: x[i, :, j], real(3, 2, 4), ids(5), ids(5)),
    "index by positions and data": (lambda x, i: x[torch.arange(3), i], real(3, 4, 2), ids(3)),
    "index at the largest": (lambda x, i: x[torch.arange(3), i.argmax(-1)], real(3, 4, 2), ids(3, 4)),
    "index_put accumulate": (
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        real(4, 3),
        ids(6),
        real(6, 3),
    ),
    "index_put accumulate by two": (
        lambda x, i, j, s: x.index_put((i, j), s, accumulate=True),
        real(4, 3, 2),
        ids(6),
        ids(6),
        real(2),
    ),
    "index_put apart": (
        lambda x, i, j, s: _apart(x, i, j, s),
        real(4, 3, 2),
        ids(6),
        ids(6),
        real(6, 3),
    ),
    "index_put": (lambda x, s: x.index_put((torch.tensor([2, 0]),), s), real(4, 3), real(2, 3)),
    "index_put from the end": (lambda x, s: x.index_put((torch.tensor([-1, 0]),), s), real(4, 3), real(3)),
    "index_put one": (lambda x, i, s: x.index_put((i,), s), real(4, 3), ids(1), real(1, 3)),
    "index_put a number": (lambda x, i: x.index_put((i,), torch.tensor(2.0, dtype=D)), real(4, 3), ids(3)),
    "assignment by two": (lambda x, i: _assigned(x, i), real(3, 4), ids(3)),
    "assignment by mask": (lambda x, i: _masked(x, i), real(3, 4), ids(3, 4)),
    "assignment of a row by mask": (lambda x, i, s: _row_masked(x, i, s), real(3, 2, 4), ids(3, 2), real(4)),
    "pools of one example": (lambda x: F.max_pool2d(x, 3, 1, 1) + F.avg_pool2d(x, 3, 1, 1), real(2, 5, 4)),
    "inverse permutation": (lambda x: _inverse(x), real(7)),
    "masked_fill": (lambda x, i: x.masked_fill(i > 0, -2.0), real(3, 4), ids(3, 4)),
    "masked_scatter": (lambda x, i, s: x.masked_scatter(i > 0, s), real(3, 4), ids(3, 4), real(4, 3)),
    "masked_scatter of rows": (
        lambda x, i, s: x.masked_scatter((i > 0)[..., None].expand_as(x), s),
        real(2, 5, 3),
        ids(2, 5),
        real(10, 3),
    ),
    "where": (lambda x, y, i: torch.where(i > 0, x, y), real(3, 4), real(4), ids(3, 1)),
    "complex rotation": (lambda x: _rotated(x), real(2, 3, 4, 6)),
    "complex product": (lambda x, y: _complex_product(x, y), real(3, 2), real(4, 3, 2)),
    "slice_scatter": (lambda x, s: torch.slice_scatter(x, s, 1, 1, 3), real(3, 4), real(3, 2)),
    "slices written side by side": (lambda x, s: _side_by_side(x, s), real(3, 4), real(3, 2)),
    "slices written over each other": (lambda x, s: _over(x, s), real(3, 4), real(3, 2)),
    "select_scatter": (lambda x, s: torch.select_scatter(x, s, 1, 2), real(3, 4), real(3)),
    "take_along_dim": (lambda x, i: x.scatter_add(1, i, x[:, :2]), real(3, 4), ids(3, 2)),
}


def _apart(x: Tensor, i: Tensor, j: Tensor, s: Tensor) -> Tensor:
    y = x.clone()
    y[i[:1], :, j[:1]] = s[:1]
    return y


def _assigned(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[torch.arange(3), i] = 1.5
    return y


def _masked(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i > 0] = 1.5
    return y


def _row_masked(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    y = x.clone()
    y[i > 0] = s
    return y.index_put((i > 1,), s[None], accumulate=True)


def _rotated(x: Tensor) -> Tensor:
    """Rotary embeddings as Llama was published with."""
    angles = torch.outer(torch.arange(3, dtype=D), 0.5 ** torch.arange(3, dtype=D))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 3, 4, 3, 2)) * turn).flatten(3)


def _complex_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y))


def _inverse(x: Tensor) -> Tensor:
    order = torch.sort(x)[1]
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    return x[order][back] * 2


def _side_by_side(x: Tensor, s: Tensor) -> Tensor:
    y = x.new_empty(3, 6)
    y[:, 4:] = s
    y[:, :4] = x
    return y


def _over(x: Tensor, s: Tensor) -> Tensor:
    y = x.new_zeros(3, 5)
    y[:, 1:3] = s
    y[:, :4] = x
    return y


class Several(torch.nn.Module):
    """Functions side by side, each with inputs of its own: an export for all of them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.calls = [(VALUES[n][0], len(VALUES[n]) - 1) for n in names]

    def forward(self, *inputs: Tensor) -> tuple[object, ...]:
        rest = iter(inputs)
        return tuple(function(*(next(rest) for _ in range(count))) for function, count in self.calls)


def groups(names: list[str]) -> list[tuple[str, ...]]:
    return [tuple(names[k : k + 10]) for k in range(0, len(names), 10)]


@pytest.mark.parametrize("names", groups(list(VALUES)), ids=lambda n: f"{n[0]} to {n[-1]}")
def test_values(names: tuple[str, ...]) -> None:
    inputs = tuple(t for n in names for t in VALUES[n][1:])
    compare(lambda: (Several(names), inputs))


SMOOTH = [
    name
    for name, (_, *inputs) in VALUES.items()
    if any(t.is_floating_point() for t in inputs)
    and not name.startswith(("arg", "histc", "floor", "new_full"))
    and name not in ("scatter into a part", "scatter reduce=add", "scatter_add of a part")  # PyTorch has no gradient
]


class Weighed(torch.nn.Module):
    """The sum of squares of what the functions give; their real operands are the parameters."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.functions, self.inputs = [VALUES[n][0] for n in names], [VALUES[n][1:] for n in names]
        draw = torch.Generator().manual_seed(5)
        self.held = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(t.shape, generator=draw, dtype=D))
            for i in self.inputs
            for t in i
            if real_(t)
        )

    def forward(self, *whole: Tensor) -> Tensor:
        reals, others, parts = iter(self.held), iter(whole), []
        for function, inputs in zip(self.functions, self.inputs):
            out = function(*(next(reals) if real_(t) else next(others) for t in inputs))
            found = out if isinstance(out, Tensor) else out[0]
            parts.append((found * found).reshape(-1))
        return torch.cat(parts).sum()


def real_(t: Tensor) -> bool:
    return t.is_floating_point()


@pytest.mark.parametrize("names", groups(SMOOTH), ids=lambda n: f"{n[0]} to {n[-1]}")
def test_gradients(names: tuple[str, ...]) -> None:
    whole = tuple(t for n in names for t in VALUES[n][1:] if not real_(t))
    found = imported(lambda: (Weighed(names), whole))
    step = build_step(with_constants(found.graph, found.stated), "sgd")
    module = Weighed(names)
    draw = torch.Generator().manual_seed(2)
    given = [torch.randint(0, 2, t.shape, generator=draw) for t in whole]
    loss = module(*given)
    loss.backward()
    inputs = [t.name for t in step.graph.tensors if t.role is Role.INPUT]
    values = {n: t.numpy() for n, t in zip(inputs, given, strict=True)}
    values |= {n: p.detach().numpy() for n, p in module.named_parameters()}
    shaped = {n: v.reshape(step.graph.tensor(n).shape) for n, v in values.items()}
    got = run_graph(step.graph, shaped, keep=[g for _, g in step.trained])
    np.testing.assert_allclose(got[step.graph.outputs[0]], loss.detach().numpy(), rtol=1e-12)
    weights = dict(module.named_parameters())
    assert {n for n, p in weights.items() if bool(p.grad.abs().max() > 0)} <= {n for n, _ in step.trained}
    for n, g in step.trained:
        wanted = weights[n].grad
        np.testing.assert_allclose(got[g].reshape(wanted.shape), wanted.numpy(), rtol=1e-9, atol=1e-12)


def test_positions_that_count_from_the_front_need_no_remainder() -> None:
    """What a sort or a count gives is never negative."""

    class Sorted(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x[:, 0].argsort()]

    graph = imported(lambda: (Sorted(), (torch.zeros(5, 3),))).graph
    assert "remainder" not in {op.function for op in graph.operators}


def test_draws_without_noise_are_the_likeliest() -> None:
    """Experts drawn by exponential waiting times, and jitter around one."""

    class Drawn(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            best = (x - torch.empty_like(x).exponential_().log()).argmax(-1)
            return x.gather(1, best[:, None]) * torch.empty_like(x[:, :1]).uniform_(0.75, 1.25)

    found = imported(lambda: (Drawn(), (torch.zeros(6, 5),)))
    x = np.random.default_rng(0).standard_normal((6, 5))
    got = run_graph(found.graph, {"x": x, **found.stated})[found.graph.outputs[0]]
    np.testing.assert_allclose(got.reshape(-1), x.max(1))
