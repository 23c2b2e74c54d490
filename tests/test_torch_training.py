"""PyTorch modules whose training step is derived here: loss and gradients equal autograd's in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_case import imported
from torch_step_case import compare_step

pytestmark = pytest.mark.torch


class Weighted(nn.Module):
    """A function of the input times a weight of its shape."""

    def __init__(self, function, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1.9, 2.3, torch.Size(shape).numel()).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight)


def of(function, *shape: int):
    return lambda: (Weighted(function, shape), torch.zeros(shape))


RESIZED = {
    "nearest twice": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest uneven": lambda x: F.interpolate(x, size=(5, 11)),
    "nearest smaller": lambda x: F.interpolate(x, scale_factor=0.7),
    "nearest exact": lambda x: F.interpolate(x, size=(5, 3), mode="nearest-exact"),
    "bilinear twice": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "bilinear factors": lambda x: F.interpolate(x, scale_factor=(2.3, 1.7), mode="bilinear"),
    "bilinear recomputed": lambda x: F.interpolate(
        x, scale_factor=(2.3, 1.7), mode="bilinear", recompute_scale_factor=True
    ),
    "bilinear corners": lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
    "bilinear to one": lambda x: F.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True),
    "bilinear smaller": lambda x: F.interpolate(x, size=(2, 3), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(7, 5), mode="bicubic"),
    "bicubic factors": lambda x: F.interpolate(x, scale_factor=(1.9, 0.6), mode="bicubic"),
    "bicubic corners": lambda x: F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True),
    "linear": lambda x: F.interpolate(x[:, 0], size=7, mode="linear"),
    "nearest in one dimension": lambda x: F.interpolate(x[:, 0], size=8),
    "trilinear": lambda x: F.interpolate(x[:, None], size=(4, 5, 3), mode="trilinear"),
    "area": lambda x: F.interpolate(x, size=(3, 2), mode="area"),
    "adaptive mean": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive mean, equal windows": lambda x: F.adaptive_avg_pool2d(x, (2, 2)),
    "adaptive mean, larger": lambda x: F.adaptive_avg_pool2d(x, (7, 4)),
    "adaptive mean, one dimension": lambda x: F.adaptive_avg_pool1d(x[:, 0], 4),
    "adaptive mean, some": lambda x: F.adaptive_avg_pool2d(x, (1, 5)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "no channels": lambda x: F.avg_pool2d(x[:, 0, None], (2, 1), ceil_mode=True)[:, 0] ** 2,
    "no depth": lambda x: F.max_pool3d(x[:, 1:, None], (1, 2, 2), (1, 2, 1), (0, 1, 1)),
    "beyond the edge": lambda x: F.avg_pool2d(x.permute(0, 2, 3, 1), 2, ceil_mode=True),
    "windows that are digits": lambda x: (
        F.max_pool2d(x, (2, 1)) + x.reshape(2, 3, 2, 2, 6).permute(0, 1, 3, 2, 4).softmax(3).square().sum(2)
    ),
    "means that are digits": lambda x: (
        F.avg_pool2d(x, (2, 1)) + x.reshape(2, 3, 2, 2, 6).permute(0, 1, 3, 2, 4).softmax(3).square().sum(2)
    ),
    "channels last": lambda x: F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1),
}


@pytest.mark.parametrize("name", RESIZED)
def test_images_in_another_size(name: str) -> None:
    compare_step(of(RESIZED[name], 2, 3, 4, 6))


def test_an_interpolation_is_one_contraction_per_dimension() -> None:
    graph = imported(of(RESIZED["bicubic"], 2, 3, 4, 6)).graph
    assert [op.function for op in graph.operators if op.function not in ("multiply", "constant")] == ["product"] * 2
    graph = imported(of(RESIZED["nearest twice"], 2, 3, 4, 6)).graph
    assert {op.function for op in graph.operators} <= {"multiply", "copy"}


STRIDED = {
    "transposed": lambda x: x.as_strided((4, 3), (1, 4)),
    "windows": lambda x: x.as_strided((2, 3, 2), (4, 1, 2)),
    "repeated": lambda x: x.as_strided((3, 2), (0, 5), 1),
    "of a transposed": lambda x: x.t().clone(memory_format=torch.preserve_format).as_strided((2, 6), (6, 1)),
    "one element": lambda x: x.as_strided((1, 1), (9, 9), 7),
}


@pytest.mark.parametrize("name", STRIDED)
def test_as_strided(name: str) -> None:
    compare_step(of(STRIDED[name], 3, 4))


ROUNDED = {
    "remainder": lambda x: torch.remainder(x, 0.7),
    "remainder by tensor": lambda x: torch.remainder(x, x.detach().abs() + x * x + 1),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "fmod by tensor": lambda x: torch.fmod(x, -(x * x) - 0.3),
    "floor division": lambda x: x + torch.div(x, 0.1, rounding_mode="floor") * x,
    "truncating division": lambda x: x + torch.div(x, x * x + 0.2, rounding_mode="trunc"),
    "ceil": lambda x: x * torch.ceil(x),
    "round": lambda x: x * torch.round(x),
    "round to digits": lambda x: x * torch.round(x, decimals=1),
    "trunc": lambda x: x * torch.trunc(x) + torch.frac(x),
    "floor": lambda x: x * torch.floor(x),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_and_remainders(name: str) -> None:
    compare_step(of(ROUNDED[name], 3, 5))


NORMS = {
    "two": lambda x: x.norm(dim=-1),
    "two, kept": lambda x: torch.linalg.vector_norm(x, 2, dim=(0, 2), keepdim=True),
    "two of all": lambda x: x.norm(),
    "one": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "one of all": lambda x: x.norm(p=1),
    "largest": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=-1),
    "smallest": lambda x: torch.linalg.vector_norm(x, -float("inf"), dim=-1),
    "three": lambda x: x.norm(p=3, dim=-1),
    "count": lambda x: torch.linalg.vector_norm(x, 0, dim=-1) * x.sum(-1),
    "at zero": lambda x: torch.linalg.vector_norm(F.relu(x) * 0.0, dim=-1) + x.sum(-1),
    "normalised": lambda x: F.normalize(x, dim=-1),
    "cosine": lambda x: F.cosine_similarity(x, x * x + 1, dim=-1),
    "distance": lambda x: F.pairwise_distance(x, x * x),
    "batch, training, no weights": lambda x: F.batch_norm(x, None, None, training=True),
    "instance": lambda x: F.instance_norm(x),
    "group": lambda x: F.group_norm(x, 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    compare_step(of(NORMS[name], 2, 3, 4))


class Stopped(nn.Module):
    """Gradients that stop, at a value and in a region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 5)
        self.unused = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        with torch.no_grad():
            z = torch.tanh(y) * self.unused
            w = y * 3
        return self.second(y) * y.detach() + z * y + w + x.detach().sum()


def test_detached_values_and_regions_without_gradients() -> None:
    made = compare_step(lambda: (Stopped(), torch.zeros(3, 4)))
    assert sum(op.function == "stop_gradient" for op in made.graph.operators) == 3
    assert made.constant == ("unused",)


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


NETS = {
    "batch norm without weights": lambda: net(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU()),
    "stored statistics without weights": lambda: net(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)).eval(),
    "instance norm": lambda: net(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.GELU()),
    "group norm without weights": lambda: net(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.SiLU()),
    "pointwise, strided": lambda: net(nn.Conv2d(3, 4, 1, stride=2), nn.ReLU(), nn.Conv2d(4, 5, 1)),
    "depthwise": lambda: net(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 6, 3, stride=2, groups=3)),
    "row and column": lambda: net(nn.Conv2d(3, 4, (1, 3), padding=(0, 1)), nn.Conv2d(4, 4, (3, 1), stride=(2, 1))),
    "dropout": lambda: net(nn.Conv2d(3, 4, 1), nn.Dropout(0.4), nn.Conv2d(4, 4, 1)),
    "in channels last": lambda: net(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.AdaptiveAvgPool2d(1)),
}


@pytest.mark.parametrize("name", NETS)
def test_layers(name: str) -> None:
    compare_step(lambda: (NETS[name](), torch.zeros(2, 3, 8, 7)))


class Fused(nn.Module):
    """Attention with one projection for queries, keys and values, taken apart by unbind."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, s, m = x.shape
        q, k, v = self.qkv(x).reshape(b, s, 3, 4, m // 4).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out((torch.softmax(q @ k.transpose(-1, -2), -1) @ v).transpose(1, 2).reshape(b, s, m))


class Recurrent(nn.Module):
    """The last state of a recurrent network of some steps."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn, self.head = kind(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Dropped(nn.Module):
    """Stochastic depth as Hugging Face, timm and torchvision write it; off, as in an imported graph."""

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep, self.lin = keep, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        if self.keep == 1.0:
            return y + y + y
        one = torch.floor(self.keep + torch.rand((x.shape[0], 1), dtype=x.dtype))
        other = x.new_empty((x.shape[0], 1)).bernoulli_(self.keep).div_(self.keep)
        return y / self.keep * one + y * other + F.dropout(y, 1 - self.keep)


class Words(nn.Module):
    """Tables with a row that is not trained: looked up, and read in order."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(7, 4, padding_idx=1), nn.Embedding(9, 4, padding_idx=2)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.words(ids)) + self.places(torch.arange(ids.shape[1]))


def test_a_row_for_padding_has_no_gradient() -> None:
    compare_step(lambda: (Words(), torch.zeros(2, 5, dtype=torch.int64)))


def test_indices_that_count_from_the_end() -> None:
    compare_step(of(lambda x: x[:, [-2]] * x[:, [0, -1, 1]] + x[:, :, [-1, -3]].sum(-1, keepdim=True), 3, 3, 5))


def test_a_fused_projection() -> None:
    compare_step(lambda: (Fused(), torch.zeros(2, 5, 12)))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_networks(kind: type[nn.Module]) -> None:
    compare_step(lambda: (Recurrent(kind), torch.zeros(2, 3, 5)))


def test_what_is_drawn_counts_as_its_expectation() -> None:
    drawn, plain = (imported(lambda k=k: (Dropped(k), torch.zeros(3, 4))).graph for k in (0.5, 1.0))
    assert sum(op.function == "scale" for op in drawn.operators) == 2  # 1 / keep, and the mask: halves are exact
    assert {op.function for op in plain.operators} <= {op.function for op in drawn.operators}
    assert not any(t.name.startswith("constant") for t in drawn.tensors)


class Checkpointed(nn.Module):
    """A part whose values are computed again, which the old form does without gradients first."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(lambda x: self.second(x).tanh(), self.first(x), use_reentrant=self.reentrant)
        return y.square().sum()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_have_gradients(reentrant: bool) -> None:
    step = compare_step(lambda: (Checkpointed(reentrant), torch.zeros(3, 4)))
    assert {w for w, _ in step.trained} == {"first.weight", "first.bias", "second.weight", "second.bias"}


class Paired(nn.Module):
    """A bilinear form."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Bilinear(3, 4, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.form(x, y).square().sum()


def test_a_bilinear_form() -> None:
    compare_step(lambda: (Paired(), (torch.zeros(2, 3), torch.zeros(2, 4))))
