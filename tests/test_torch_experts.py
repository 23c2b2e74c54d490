"""Mixtures of experts from PyTorch: exact whatever the loads, split over tokens and experts, trained as PyTorch does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent / "torch_models"))

import experts
from torch_case import compare, imported
from torch_training import compare_gradients

from shardproof.__main__ import run
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.models.program.graph import Graph, Role
from shardproof.models.program.operators import NodeKind

pytestmark = pytest.mark.torch


def doubled(factory: Callable[..., experts.Made]) -> Callable[[], experts.Made]:
    """What is imported sorts tokens; what is compared with it loops over experts, which PyTorch can do in float64."""
    calls: list[int] = []

    def make() -> experts.Made:
        calls.append(1)
        return factory(None if len(calls) == 1 else "eager")

    return make


def test_tokens_sorted_by_expert_stay_where_they_are() -> None:
    """One order is left, that of the router; tokens and experts may be split, and no token is read by all."""
    found = compare(experts.sorted_experts)
    graph = found.graph
    count = Counter(op.function for op in graph.operators)
    assert (count["argsort"], count["grouped_product"], count["scatter_add"], count["scatter_max"]) == (1, 2, 0, 0)
    for op in graph.operators:
        if op.kind is NodeKind.GROUPED:
            assert [(a.extent, a.splittable) for a in op.axes][:3] == [(2, True), (3, True), (2, True)]
            assert op.axis(op.rows).splittable and op.axis(op.rows).extent == 4
    assert all(a.splittable for op in graph.operators for a in op.axes if a.extent in (2, 3))


def test_gradients_of_sorted_experts() -> None:
    draw = torch.Generator().manual_seed(4)
    factory = lambda: (Squared(experts.sorted_experts()[0]), experts.sorted_experts()[1])
    compare_gradients(factory, {"x": torch.randn(2, 3, 6, generator=draw, dtype=torch.float64)})


class Squared(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().sum()


def test_ends_that_are_given_name_the_experts() -> None:
    """Any running sums, not only those of a sort: rows beyond the last end belong to nobody."""

    class Ends(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
            return torch.ops.transformers.grouped_mm_fallback(x, w, sizes.cumsum(0))

    import transformers.integrations.moe  # noqa: F401

    ids = torch.zeros(4, dtype=torch.int64)
    found = compare(lambda: (Ends(), (torch.zeros(9, 3), torch.zeros(4, 3, 2), ids)), largest=3)
    assert [op.function for op in found.graph.operators if op.kind is NodeKind.GROUPED] == ["grouped_product"]


@pytest.mark.slow
@pytest.mark.parametrize("name", experts.CONFIGS)
def test_decoders(name: str) -> None:
    """Loss and gradients; PyTorch rounds norms, routers and softmax to float32.  Id 0 is padding, of no gradient there."""
    pytest.importorskip("transformers")
    ids = torch.randint(1, 64, (2, 8), generator=torch.Generator().manual_seed(1))
    step = compare_gradients(doubled(lambda how: experts.decoder(name, how)), {"ids": ids}, None, 2e-5)
    assert any(op.kind is NodeKind.GROUPED for op in step.graph.operators)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "clip"])
def test_pictures_and_text(name: str) -> None:
    pytest.importorskip("transformers")
    factory = getattr(experts, name)
    draw = torch.Generator().manual_seed(1)
    ids, pixels = factory()[1]
    given = {
        "ids": torch.randint(0, 60, ids.shape, generator=draw),
        "pixels": torch.randn(pixels.shape, generator=draw, dtype=torch.float64),
    }
    compare_gradients(factory, given, None, 2e-5)


def test_experts_picked_one_by_one() -> None:
    """A weight matrix for every token and choice is read where it lies (`batched_mm` of transformers)."""

    class Picked(experts.Sorted):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = x.reshape(-1, x.shape[-1])
            values, chosen = torch.topk(torch.nn.functional.softmax(self.router(tokens), -1), self.chosen, dim=-1)
            ids, rows = chosen.reshape(-1), tokens.repeat_interleave(self.chosen, dim=0)
            y = torch.bmm(rows.unsqueeze(1), self.up[ids]).squeeze(1) + self.bias[ids]
            y = torch.bmm(torch.relu(y).unsqueeze(1), self.down[ids]).squeeze(1) * values.reshape(-1, 1)
            return y.view(tokens.shape[0], self.chosen, -1).sum(1).view(x.shape)

    found = compare(lambda: (Picked(), (torch.zeros(2, 3, 6),)))
    assert [p for p, _ in found.patterns if p == "picked-matrices"] == ["picked-matrices"] * 2
    widest = max(t.elements for t in found.graph.tensors if t.role is Role.VALUE)
    assert widest <= 2 * 3 * 2 * 6  # no matrix per token


def test_places_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same sums with a place for every token; with fewer, experts are axes all the same."""
    model = f"{experts.__file__}:sorted_experts"
    found = {}
    for percent in (None, 0, 100):
        file = tmp_path / f"{percent}.json"
        more = () if percent is None else ("--expert-places", str(percent))
        assert run(("import", model, *more, "-o", str(file))) == 0
        found[percent] = Graph.from_json(file.read_text(encoding="utf-8"))
    values = random_inputs(found[None], 3)
    (wanted,) = run_graph(found[None], values).values()
    (got,) = run_graph(found[0], values).values()
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-12, atol=1e-12)
    for percent in (0, 100):
        assert not any(op.kind is NodeKind.GROUPED for op in found[percent].operators)
    capsys.readouterr()
    assert run(("import", "moe", "--expert-places", "100")) == 3
    assert "capacity_percent" in capsys.readouterr().err


def test_import_of_experts_is_the_same_again() -> None:
    assert imported(experts.sorted_experts).graph == imported(experts.sorted_experts).graph
