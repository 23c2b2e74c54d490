"""Graph networks in plain PyTorch: messages gathered along edges and scattered to nodes, trained as PyTorch does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch_training import compare_gradients

nn, Tensor = torch.nn, torch.Tensor
pytestmark = pytest.mark.torch

NODES, EDGES, WIDTH = 5, 12, 4


class Convolution(nn.Module):
    """Sums of neighbours, divided by the roots of the degrees (Kipf and Welling, 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        degree = x.new_zeros(NODES).scatter_add(0, target, x.new_ones(EDGES)) + 1
        norm = degree.rsqrt()
        messages = self.linear(x)[source] * (norm[source] * norm[target]).unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, target, messages)


class Attention(nn.Module):
    """A softmax over the edges that end in a node (Velickovic et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        h = self.linear(x)
        score = nn.functional.leaky_relu(self.left(h)[source] + self.right(h)[target], 0.2).squeeze(-1)
        most = x.new_full((NODES,), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - most[target]).exp()
        total = x.new_zeros(NODES).scatter_add(0, target, weight)
        place = target.unsqueeze(-1).expand(-1, WIDTH)
        return torch.zeros_like(x).scatter_add(0, place, h[source] * (weight / total[target]).unsqueeze(-1))


class Pooled(nn.Module):
    """A layer, the mean over the nodes of every graph, the sum of squares."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edges: Tensor, graphs: Tensor) -> Tensor:
        y = self.layer(x, edges).relu()
        place = graphs.unsqueeze(-1).expand(-1, WIDTH)
        means = y.new_zeros(2, WIDTH).scatter_reduce(0, place, y, "mean", include_self=False)
        return means.square().sum()


@pytest.mark.parametrize("layer", [Convolution, Attention])
def test_layers(layer: type[nn.Module]) -> None:
    draw = torch.Generator().manual_seed(7)
    inputs = {
        "x": torch.randn(NODES, WIDTH, generator=draw, dtype=torch.float64),
        "edges": torch.randint(0, NODES, (2, EDGES), generator=draw),
        "graphs": torch.tensor([0, 0, 1, 1, 1]),
    }
    shapes = tuple(torch.zeros(t.shape, dtype=t.dtype) for t in inputs.values())
    compare_gradients(lambda: (Pooled(layer()).double(), shapes), inputs)
