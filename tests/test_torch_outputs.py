"""What modules return: losses among tensors, objects that hold none; modules that read what they compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch_training import compare_gradients, step_of

from shardproof.__main__ import run
from shardproof.models.program.graph import GraphError
from shardproof.models.sources.torch.importer import convert
from shardproof.models.sources.torch.program import build

nn, Tensor = torch.nn, torch.Tensor
pytestmark = pytest.mark.torch


class SomeCache:
    """Keys and values of a decoder, as no pytree."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Model(nn.Module):
    def __init__(self, returned: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.linear, self.returned = nn.Linear(4, 3), returned

    def forward(self, x: Tensor) -> object:
        y = self.linear(x)
        return self.returned(y, (y**2).mean())


def factory(returned: Callable[[Tensor, Tensor], object]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (Model(returned), {"x": torch.zeros(2, 4)})


INPUT = {"x": torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)}
RETURNED = {
    "scalar": lambda y, loss: loss,
    "tuple": lambda y, loss: (y, loss),
    "nested": lambda y, loss: (y, {"inner": (loss, y * 2)}),
    "dictionary": lambda y, loss: {"loss": loss, "logits": y},
    "several": lambda y, loss: {"penalty": y.abs().sum(), "loss": loss, "size": y.sum()},
    "sum": lambda y, loss: {"total": (y**2).sum(), "y": y},
    "cache": lambda y, loss: {"loss": loss, "past": SomeCache(y), "logits": y},
    "caches": lambda y, loss: (loss, (SomeCache(y), SomeCache(y)), y),
}


@pytest.mark.parametrize("name", sorted(RETURNED))
def test_the_loss_among_the_outputs(name: str) -> None:
    step = compare_gradients(factory(RETURNED[name]), INPUT)
    (loss,) = step.graph.outputs
    assert step.graph.tensor(loss).shape == ()
    if name in ("dictionary", "several", "cache"):
        assert loss == "loss"
        assert step.loss.startswith("the loss is the output 'loss', one of ")


def test_several_scalars_and_none_called_loss() -> None:
    with pytest.raises(GraphError, match="returns 2 scalars, none called 'loss': .*--loss"):
        step_of(factory(lambda y, loss: {"a": loss, "b": y.sum()}))


def test_what_holds_no_tensor_is_left_out_and_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = build(factory(RETURNED["cache"]), "m")
    found = convert(program)
    assert found.notes == ("outputs that hold no tensors are left out: past (SomeCache)",)
    assert len(found.graph.outputs) == 2
    source = tmp_path / "model.py"
    source.write_text(
        "import torch\nclass SomeCache: pass\nclass M(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.l = torch.nn.Linear(4, 3)\n"
        "    def forward(self, x):\n        return {'y': self.l(x), 'past': SomeCache()}\n"
        "def make():\n    return M(), torch.zeros(2, 4)\n"
    )
    assert run(["import", f"{source}:make"]) == 0
    assert "note: outputs that hold no tensors are left out: past (SomeCache)" in capsys.readouterr().out


class Reads(nn.Module):
    """Reads numbers that it computed, which the meta device does not have; its table is written as numbers."""

    def __init__(self, read: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        with torch.no_grad():
            self.scale = float(read(self.linear.weight * 0 + 2.5))
        self.register_buffer("table", torch.tensor([1.0, 10.0, 100.0, 1000.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.table * self.scale).sum()


@pytest.mark.parametrize("read", [lambda t: t.tolist()[0][0], lambda t: t.numpy()[0, 0]])
def test_modules_that_read_what_they_compute_are_built_with_their_weights(read: Callable[[Tensor], float]) -> None:
    def make() -> tuple[Any, ...]:
        return Reads(read), {"x": torch.zeros(2, 4)}

    (note,) = build(make, "m").notes
    assert "weights were in memory" in note
    step = compare_gradients(make, INPUT)
    assert any(op.attribute("scale", 0.0) == 2.5 for op in step.graph.operators)
    numbers = [op.attribute("values", ()) for op in step.graph.operators if op.function == "constant"]
    assert [[float.fromhex(str(v)) for v in values] for values in numbers] == [[1.0, 10.0, 100.0, 1000.0]]
    np.testing.assert_equal(len(step.trained), 2)
