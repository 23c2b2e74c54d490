"""Operators of PyTorch programs that move or mask elements, against PyTorch in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from shardproof.models.program.graph import Role, UnsupportedOperators
from tests.torch_case import compare, imported

pytestmark = pytest.mark.torch


class _Written(nn.Module):
    """A function as a module."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


def _equal(function: object, *shapes: tuple[int, ...]) -> list[str]:
    """The functions of the imported graph, whose values are PyTorch's."""
    found = compare(lambda: (_Written(function).eval(), tuple(torch.zeros(s) for s in shapes)))
    return [op.function for op in found.graph.operators]


def test_flips_of_any_length() -> None:
    assert "embedding" in _equal(lambda x: x.flip(1) * 2.0, (3, 5))
    assert "embedding" not in _equal(lambda x: x.flip(0) * 2.0, (2, 5))
    _equal(lambda x: x.flip((0, 2)) + x, (4, 3, 5))


def test_parts_that_are_overwritten() -> None:
    def scattered(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z[:, 1:3] = y
        z[:, 3] = 0.0
        z[0] = z[0] * 3.0
        return z

    _equal(scattered, (3, 5), (3, 2))


def test_every_other_element_is_overwritten() -> None:
    def rotated(x: Tensor) -> Tensor:
        z = torch.empty_like(x)
        z[..., 0::2] = -x[..., 1::2]
        z[..., 1::2] = x[..., 0::2]
        return z * 2.0

    _equal(rotated, (3, 6))


def test_operands_without_elements() -> None:
    _equal(lambda x: torch.cat([x[:, :0], x[:, 2:], x[:, 4:4]], 1) * 2.0, (3, 4))
    _equal(lambda x: torch.cat(x.split([0, 3, 1], 1)[::-1], 1) * 2.0, (3, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 4, "stride": 2, "padding": 1, "bias": False},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 1), "stride": (1, 2)},
    ],
)
def test_transposed_convolutions(options: dict[str, int]) -> None:
    found = compare(lambda: (nn.ConvTranspose2d(4, 6, **options), torch.zeros(2, 4, 5, 3)))
    assert "product" in [op.function for op in found.graph.operators]


def test_windows_of_a_dimension() -> None:
    _equal(lambda x: x.unfold(1, 4, 4) * 2.0, (2, 9, 3))
    _equal(lambda x: x.unfold(-1, 4, 2) * 2.0, (2, 3, 10))


def test_exponential_units() -> None:
    _equal(lambda x: nn.functional.elu(x, 0.7) + nn.functional.selu(x) + nn.functional.celu(x, 1.3), (3, 5))


def test_functions_by_others() -> None:
    def many(x: Tensor) -> Tensor:
        y = torch.sinh(x) + torch.cosh(x) + torch.tan(x) + torch.asinh(x) + torch.acosh(x * x + 1.5) + torch.expm1(x)
        return (
            y
            + torch.atanh(torch.tanh(x))
            + torch.log2(x * x + 1.0)
            + torch.log10(x.exp())
            + nn.functional.leaky_relu(x)
        )

    _equal(many, (3, 5))
    _equal(lambda x: torch.atan(x) + torch.asin(0.9 * torch.tanh(x)) * torch.acos(0.9 * torch.cos(x)), (3, 5))
    _equal(lambda x: torch.where(torch.logical_xor(x > 0, x < 1) & ~torch.isinf(x), x, -x), (3, 5))


def test_powers() -> None:
    gaps = torch.tensor([[0, 1, 5], [3, 2, 7]])
    _equal(lambda x: x**gaps, (2, 1))
    _equal(lambda x: 2.0**x + torch.tensor([1.5, 3.0]) ** x, (3, 2))


def test_constant_positions_count_from_the_end() -> None:
    _equal(lambda x: x[:, [-2]] + x[:, [-1, 0, -3]], (2, 4, 3))
    _equal(lambda x: x[[-1, 0], [1, -2]] * 2.0, (2, 4))


def test_products_along_a_dimension() -> None:
    _equal(lambda x: torch.cumprod(x, 1), (3, 7))
    _equal(lambda x: torch.prod(x, 0) + torch.prod(x), (5, 3))


def test_padding_by_content_folds_and_diagonals() -> None:
    _equal(lambda x: nn.functional.pad(x, (1, 2, 2, 1), mode="reflect") * 2.0, (2, 3, 4, 5))
    _equal(lambda x: nn.functional.pad(x, (1, 0, 2, 1), mode="replicate") * 2.0, (2, 3, 4, 5))
    _equal(lambda x: torch.diagonal(x, 1, 0, 2) * 2.0, (4, 3, 4))
    _equal(lambda x: nn.functional.fold(x, (5, 6), (3, 2), stride=(2, 1), padding=(1, 0)) * 2.0, (2, 12, 15))
    _equal(lambda x, y: torch.cdist(x, y), (2, 3, 4), (2, 5, 4))


@pytest.mark.parametrize("options", [{}, {"padding_mode": "border", "align_corners": True}, {"mode": "nearest"}])
def test_images_read_between_pixels(options: dict[str, str]) -> None:
    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        return nn.functional.grid_sample(x, grid, **{"align_corners": False, **options})

    _equal(sampled, (2, 3, 4, 5), (2, 6, 3, 2))


@pytest.mark.parametrize("n", [6, 7, 72, 67])
def test_fourier_transforms(n: int) -> None:
    def filtered(x: Tensor, y: Tensor) -> Tensor:
        z = torch.fft.rfft(x, dim=1) * torch.fft.rfft(y, dim=1).conj()
        return torch.fft.irfft(z * 0.5 + 1.0, n=n, dim=1)

    _equal(filtered, (2, n, 3), (2, n, 3))
    _equal(lambda x: torch.fft.fftn(x, dim=(1, 2), norm="ortho").real, (2, n, 3))
    _equal(lambda x: torch.fft.ifft(torch.fft.fft(x)[..., :4], norm="forward").abs(), (2, n))


def test_complex_rotations_and_products() -> None:
    def rotated(x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(5.0), 1.0 / 10.0 ** torch.arange(3.0))
        turn = torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 3, 2)) * turn).flatten(2)

    _equal(rotated, (2, 5, 6))
    _equal(lambda a, b: torch.einsum("bi,io->bo", torch.complex(a, -a), torch.complex(b, 2.0 * b)).imag, (4, 3), (3, 5))


class _Deep(nn.Module):
    """Stochastic depth as Hugging Face, timm and torchvision write it, and dropout."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, keep = torch.tanh(self.layer(x)), 0.75
        if not self.training:
            return x + y
        if self.how == "floor":
            return x + y.div(keep) * (keep + torch.rand((x.shape[0], 1), dtype=x.dtype)).floor()
        if self.how == "bernoulli":
            return x + y * x.new_empty((x.shape[0], 1)).bernoulli_(keep).div_(keep)
        return x + nn.functional.dropout(y, 1 - keep)


@pytest.mark.parametrize("how", ["floor", "bernoulli", "dropout"])
def test_stochastic_depth_is_its_mean(how: str) -> None:
    import numpy as np

    from shardproof.backends.execution.reference import run_graph

    draw = np.random.default_rng(0)
    x, w, b = draw.normal(size=(3, 4)), draw.normal(size=(4, 4)), draw.normal(size=4)
    graph = imported(lambda: (_Deep(how), torch.zeros(3, 4))).graph
    (got,) = (run_graph(graph, {"x": x, "layer.weight": w, "layer.bias": b})[o] for o in graph.outputs)
    np.testing.assert_allclose(got, x + np.tanh(x @ w.T + b), rtol=1e-12)


def test_dropped_labels_are_kept() -> None:
    found = imported(
        lambda: (_Written(lambda x: torch.where(torch.rand(3) < 0.1, torch.zeros(3), x) * 2.0), torch.zeros(3))
    )
    assert [op.function for op in found.graph.operators] == ["scale"]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x + torch.randn_like(x), "normal"),
        (lambda x: x * torch.rand(3), "uniform in [0, 1)"),
        (lambda x: x * torch.empty(3).uniform_(-2, 3), "uniform in [-2, 3)"),
        (lambda x: x.gather(1, torch.rand(2, 3).argsort(1)), "uniform in [0, 1)"),
        (lambda x: x[torch.randint(0, 2, (4,))], "integers from 0 to 1"),
    ],
)
def test_other_random_numbers_are_inputs(function: object, told: str) -> None:
    found = imported(lambda: (_Written(function), torch.zeros(2, 3)))
    drawn = [t.name for t in found.graph.tensors if t.role is Role.INPUT and t.name != "given_0"]
    assert len(drawn) == 1
    assert f"{drawn[0]} ({told}" in found.notes[-1]


def test_random_numbers_by_computed_chances_are_refused_with_what_to_do() -> None:
    function = lambda x: x[0, torch.multinomial(x[0].softmax(0), 1)]
    with pytest.raises(UnsupportedOperators, match="make them an input"):
        imported(lambda: (_Written(function), torch.zeros(2, 3)))


class _Layer(nn.Module):
    """The mean square of a function of a linear layer."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x)).square().mean()


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.flip(0) * x, (3, 6)),
        (lambda x: x.unfold(1, 4, 2), (2, 6)),
        (lambda x: nn.functional.elu(x) + torch.expm1(x) + nn.functional.leaky_relu(x), (2, 6)),
        (lambda x: torch.cumprod(x, 1), (2, 6)),
        (lambda x: nn.functional.pad(x[None], (2, 1), mode="reflect"), (2, 6)),
        (lambda x: nn.functional.fold(x[..., :4], (3, 3), 2), (2, 8, 6)),
        (lambda x: torch.diagonal(x), (4, 6)),
        (lambda x: nn.functional.grid_sample(x[None, None], x[None, :, :2, None].repeat(1, 1, 1, 2) * 0.5), (4, 6)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x.tanh()), n=6), (2, 6)),
    ],
)
def test_gradients(function: object, shape: tuple[int, ...]) -> None:
    from tests.torch_step_case import compare_step

    compare_step(lambda: (_Layer(function), torch.zeros(shape)))


@pytest.mark.parametrize("options", [{"kernel_size": 2, "stride": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}])
def test_gradients_of_transposed_convolutions(options: dict[str, int]) -> None:
    from tests.torch_step_case import compare_step

    compare_step(
        lambda: (
            _Layer(nn.Sequential(nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(4, 3, **options))),
            torch.zeros(1, 2, 3, 6),
        )
    )
