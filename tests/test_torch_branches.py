"""Branches on tensors whose contents are known while a program is exported."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from shardproof.models.sources.torch.context import TorchError
from tests.torch_case import compare, imported

pytestmark = pytest.mark.torch


class Guarded(nn.Module):
    """Guards against overflow, a mask that nobody passed, a size read from it, numbers counted in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if not torch.isfinite(y).all() or torch.isnan(y).any():
            y = y.clamp(-1, 1)
        mask = torch.ones(x.shape[:2], device=x.device)
        y = y * 2 if mask.all() else y * 3
        mask[:, 2:] = 0.0
        y = y[:, : int(mask.sum(1).max().item())]
        count = torch.arange(3)
        count += 1
        return y + 1 if count.tolist() == [1, 2, 3] else y


class Written(nn.Module):
    """A mask into a view of which an input is written."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(2, 3)
        mask[0].copy_(x[0, :, 0])
        return x * 2 if mask.all() else x


def test_what_is_made_of_numbers_is_known() -> None:
    found = compare(lambda: (Guarded(), torch.zeros(2, 3, 4)))
    assert "clip" not in [op.function for op in found.graph.operators]
    assert found.graph.tensor(found.graph.outputs[0]).shape == (2, 2, 4)


class Checked(nn.Module):
    """Guards that raise, a layer that is skipped at random."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if torch.any(x < -1e9):
            raise ValueError("too small")
        if not (x < 1e9).all():
            message = "too large"
            raise ValueError(message)
        assert x.sum() < 1e9, "too much"
        if not torch.rand([]) < 0.1:
            x = self.layer(x)
        return x


class Decided(nn.Module):
    """A branch on an input that does something."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.any(x < 0):
            x = x * 2
        return x + 1


def test_guards_and_layers_that_are_skipped_at_random() -> None:
    found = imported(lambda: (Checked(), torch.zeros(2, 3, 4)))
    assert found.graph.tensor(found.graph.outputs[0]).shape == (2, 3, 4)
    assert any(op.function == "product" for op in found.graph.operators)


def test_branches_that_decide_are_refused() -> None:
    with pytest.raises(TorchError, match="depends on the contents of a tensor"):
        imported(lambda: (Decided(), torch.zeros(2, 3, 4)))


def test_what_an_input_was_written_into_is_not() -> None:
    with pytest.raises(TorchError, match=r"depends on the contents of a tensor at .*test_torch_branches.py:\d+"):
        imported(lambda: (Written(), torch.zeros(2, 3, 4)))
