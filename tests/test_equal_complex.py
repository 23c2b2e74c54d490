"""Verb `equal`: complex numbers as pairs of real ones, beside what PyTorch computes; rotary embeddings of the original
Llama, right and wrong; what is not known of complex numbers is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import equality_complex as jobs
import numpy as np
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import shardproof
from shardproof.formal.equality.numbers import run_single
from shardproof.models.sources.distributed.capture import Unreadable, capture

pytestmark = pytest.mark.torch
CASES = [
    (one, job, ranks, grad, verdict)
    for one, right, wrong, ranks, grad in jobs.FAMILIES
    for verdict, many in (("equal", right), ("different", wrong))
    for job in many
]


@pytest.mark.parametrize(
    ("one", "job", "ranks", "grad", "verdict"), CASES, ids=[f"{c[1].__name__}-{c[2]}" for c in CASES]
)
def test_rotary(one: Any, job: Any, ranks: int, grad: bool, verdict: str) -> None:
    found = shardproof.equal(one, job, ranks=ranks, grad=grad)
    assert found.answer == verdict, str(found)
    assert verdict == "equal" or found.output == "output"


G = torch.Generator().manual_seed(1)
X, Y = torch.randn(3, 4, 2, generator=G), torch.randn(3, 4, 2, generator=G)
Z = torch.view_as_complex(torch.randn(4, 2, generator=G))
Op = Callable[[Any, Any], Any]
OPERATORS: dict[str, Op] = {
    "product": lambda a, b: a * b,
    "product with numbers": lambda a, b: a * (2 - 1j) + 3 * b - (0.5j) * a,
    "product with reals": lambda a, b: a * b.real,
    "broadcast product": lambda a, b: a * b[:, :1] * Z,
    "sum and difference": lambda a, b: torch.add(a, b, alpha=2) - torch.sub(b, a.imag, alpha=3),
    "sum with a number": lambda a, b: a + 1j - 2,
    "quotients": lambda a, b: a / b + a / 4 + b / (1 + 2j) + a / b.abs(),
    "conjugate": lambda a, b: a.conj() * b + b.conj().resolve_conj(),
    "real and imaginary": lambda a, b: torch.complex(a.imag, b.real),
    "sizes": lambda a, b: (a * b).abs(),
    "polar": lambda a, b: torch.polar(a.real.abs(), b.imag),
    "minus": lambda a, b: -a,
    "sums": lambda a, b: a.sum(1) + b.sum((0, 1)) + a.sum(0, keepdim=True).squeeze(0).sum(),
    "shapes": lambda a, b: torch.cat([a.transpose(0, 1)[1:3], b.permute(1, 0)[:2].clone()], 1).reshape(-1, 2).T,
    "other types": lambda a, b: (a.to(torch.complex128) * b).to(torch.complex64),
    "expanded": lambda a, b: a[:1].expand(3, 4) * b.unsqueeze(0),
    "in place": lambda a, b: a.clone().mul_(b).add_(1),
    "written in part": lambda a, b: _written(a, b),
    "zeros": lambda a, b: torch.zeros(3, 4, dtype=torch.complex64) + a,
    "a constant": lambda a, b: a * Z,
}


def _written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Real parts of what lies in complex memory, and the other way round."""
    a = a.clone()
    torch.view_as_real(a)[:, 1].fill_(2.0)
    a[2].copy_(b[0])
    return a


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_what_pytorch_says(name: str) -> None:
    def called(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return OPERATORS[name](torch.view_as_complex(x), torch.view_as_complex(y))

    held = capture(lambda: (called, (X, Y)), None, 1, False)
    values = run_single(held.program, held.arrays)
    want = called(X.clone(), Y.clone()).resolve_conj()
    shape = np.asarray(torch.view_as_real(want) if want.is_complex() else want)
    assert np.allclose(values[dict(held.program.outputs)["output"]], shape, rtol=1e-4, atol=1e-5)
    assert np.allclose(held.results[0], shape)
    assert not any(t.dtype.startswith("complex") for t in held.program.tensors)
    assert shardproof.equal(lambda: (called, (X, Y)), lambda rank, n: (called, (X, Y)), ranks=2)


def test_gradients_go_through_complex_numbers() -> None:
    def called(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = torch.view_as_complex(x), torch.view_as_complex(y)
        return torch.view_as_real(a * b.conj() / (b * Z)).pow(2).sum()

    held = capture(lambda: (called, (X, Y)), None, 1, True)
    values = run_single(held.program, held.arrays)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    called(x, y).backward()
    for name, grad in (("grad input 0", x.grad), ("grad input 1", y.grad)):
        assert np.allclose(values[dict(held.program.outputs)[name]], grad, rtol=1e-3, atol=1e-4), name


REFUSED: dict[str, tuple[Op, str]] = {
    "a power": (lambda a, b: a**3, "pow .* of complex"),
    "an angle": (lambda a, b: a.angle(), "angle .* of complex"),
    "a matrix product": (lambda a, b: a @ b.T, "mm .* of complex"),
    "a transform": (lambda a, b: torch.fft.fft(a), "fft"),
    "the real part by type": (lambda a, b: a.to(torch.float32), "_to_copy .* of complex"),
    "a sum over ranks": (lambda a, b: functional.all_reduce(a, "sum", dist.group.WORLD), "send their parts"),
    "an exponential": (lambda a, b: a.exp(), "exp .* of complex"),
    "complex of reals by type": (lambda a, b: a * b.real.to(torch.complex64), "_to_copy .* of complex"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_of_complex_numbers_is_refused(name: str) -> None:
    operator, words = REFUSED[name]

    def called(x: torch.Tensor, y: torch.Tensor) -> Any:
        return operator(torch.view_as_complex(x), torch.view_as_complex(y))

    with pytest.raises(Unreadable, match=words):
        capture(lambda rank, ranks: (called, (X, Y)), 0, 2, False)


def test_gradients_of_complex_parameters_are_refused() -> None:
    z = Z.clone().requires_grad_()
    with pytest.raises(Unreadable, match="is complex"):
        capture(lambda: (lambda x: (torch.view_as_complex(x) * z).abs().sum(), (X,)), None, 1, True)
