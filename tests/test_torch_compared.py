"""PyTorch programs are compared with the module that they came from, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import numpy as np
from torch import nn
from torch.nn import functional as F

import shardproof
from shardproof.__main__ import run
from shardproof.backends.execution.differential import compare, difference, sample
from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.original import Comparison, Differs, Original
from shardproof.models.sources.load import load_model
from shardproof.models.sources.torch import importer
from shardproof.models.sources.torch.module import load_module
from shardproof.models.sources.training import maps
from shardproof.models.sources.training.maps import Local


def of(module: nn.Module, *inputs: torch.Tensor) -> tuple[Graph, Comparison]:
    taken: list[Original] = []
    graph = load_module(module, inputs, lambda note: None, None, taken.append)
    return graph, compare(graph, taken[0], trained=True)


class Layer(nn.Module):
    """Two outputs, the first of which is returned twice; a weight under two names; a buffer; a table."""

    def __init__(self, drop: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7)
        self.head.weight = self.table.weight
        self.norm = nn.BatchNorm1d(6)
        self.drop = drop

    def forward(self, x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.where(mask[:, None], self.drop(self.norm(x)), self.table(ids))
        return h, self.head(h), h


INPUTS = torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.bool)


def test_forward_and_gradients_are_compared() -> None:
    _, found = of(Layer(nn.Dropout(0.5)).eval(), *INPUTS)
    assert (found.samples, found.undefined, found.gradients) == (4, 2, 3)  # PyTorch refuses indices outside


def test_what_lies_outside_may_be_multiplied_or_not() -> None:
    """An infinite weight times the zeros of a padding is NaN; PyTorch's kernels leave it out on some processors."""
    of(nn.Conv2d(4, 4, 3, padding=1, bias=False), torch.zeros(2, 4, 6, 6))
    graph, found = of(nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), torch.zeros(2, 4, 6, 6))
    assert found.left_out == "" and found.samples > 4
    values = sample(graph, "special")
    with np.errstate(all="ignore"):
        ours = run_graph(graph, values)
    (name,) = graph.outputs
    assert np.isnan(ours[name]).any() and not np.isnan(ours[name]).all()
    kept = {name: np.where(np.isnan(ours[name]), 1.0, ours[name])}
    assert difference(graph, values, kept, "special") is None
    wrong = {name: np.where(np.isnan(ours[name]), 1.0, ours[name] + 1)}
    assert difference(graph, values, wrong, "special") is not None
    free, _ = of(nn.Conv2d(4, 4, 3, groups=4, bias=False), torch.zeros(2, 4, 6, 6))
    values = sample(free, "special")
    with np.errstate(all="ignore"):
        ours = run_graph(free, values)
    (name,) = free.outputs
    assert difference(free, values, {name: np.where(np.isnan(ours[name]), 1.0, ours[name])}, "special") is not None


def test_tensors_that_are_neither_parameters_nor_buffers_are_replaced_too() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.shift = torch.arange(4.0)
            self.inner.scale = torch.ones(4)  # type: ignore[assignment]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x + self.shift) * self.inner.scale

    module = Shifted()
    _, found = of(module, torch.zeros(3, 4))
    assert (found.samples, found.gradients) == (6, 3)
    assert module.shift.tolist() == [0, 1, 2, 3]


def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)

    assert of(Attention(), torch.zeros(2, 6, 8))[1].gradients == 2  # that of the bias of k


class Bounded(nn.Module):
    """A bound that passes no gradient where it is met, behind a product."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardtanh(self.w * 2.0, -1.0, 1.0) * x


def test_gradients_at_ties_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generic numbers do not meet a bound."""
    assert of(Bounded(), torch.zeros(4, 6))[1].gradients == 3
    wrong = {"clip": (Local("clip_gradient", ("g", "0"), ("low", "high")),)}  # without the share that a bound has
    monkeypatch.setattr(maps, "MAP_RULES", {**maps.MAP_RULES, **wrong})
    place = r"\(ties numbers\): that of w\[.*; it appears first in aten.hardtanh.default \(hardtanh\) at test_torch_compared.py"
    with pytest.raises(Differs, match=place):
        of(Bounded(), torch.zeros(4, 6))


def test_a_corner_behind_rounding_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Original] = []
    graph = load_module(Bounded(), (torch.zeros(4, 6),), lambda note: None, None, taken.append)
    assert taken[0].parts is not None
    parts = taken[0].parts()
    moved = replace(parts, run=lambda values: tuple(x * (1 + 1e-7) for x in parts.run(values)))
    wrong = {"clip": (Local("clip_gradient", ("g", "0"), ("low", "high")),)}
    monkeypatch.setattr(maps, "MAP_RULES", {**maps.MAP_RULES, **wrong})
    assert compare(graph, replace(taken[0], parts=lambda: moved), trained=True).gradients == 3
    with pytest.raises(Differs, match="ties numbers"):
        compare(graph, replace(taken[0], parts=lambda: parts), trained=True)


def test_infinite_gradients_are_no_difference() -> None:
    class Quotient(nn.Module):
        """x over its norm: at 0 PyTorch makes NaN, ours infinity."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4, 3))

        def forward(self) -> torch.Tensor:
            return self.w / torch.linalg.vector_norm(self.w, dim=1, keepdim=True)

    assert of(Quotient())[1].gradients == 3


def test_dropout_is_off_and_the_module_stays_as_it_is() -> None:
    module = Layer(nn.Dropout(0.5))
    before = {n: t.clone() for n, t in module.state_dict().items()}
    assert of(module, *INPUTS)[1].samples == 4
    assert module.training and module.drop.p == 0.5  # type: ignore[union-attr]
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_what_draws_random_numbers_is_not_compared() -> None:
    _, found = of(Layer(lambda h: F.dropout(h, 0.5, True)), *INPUTS)
    assert found.samples == 0 and found.left_out == "it draws random numbers"


def test_a_wrong_import_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = importer.HANDLERS["sin"]
    wrong = {"sin": lambda c, node: right(c, replace(node, kind="aten.cos.default"))}
    monkeypatch.setattr(importer, "HANDLERS", {**importer.HANDLERS, **wrong})

    class Wave(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) + 1

    with pytest.raises(Differs, match="Wave: is not what PyTorch .* computes"):
        shardproof.plan(Wave(), "localhost:2", inputs=torch.zeros(4))
    assert shardproof.plan(Wave(), "localhost:2", inputs=torch.zeros(4), compare=False).status == "optimal"


def test_saved_programs_are_compared(tmp_path: Path) -> None:
    exported = torch.export.export(Layer(nn.Identity()).eval(), INPUTS)
    torch.export.save(exported, tmp_path / "layer.pt2")
    taken: list[Original] = []
    graph = load_model(str(tmp_path / "layer.pt2"), original=taken.append)
    assert compare(graph, taken[0]).samples == 4


def test_training_steps_of_their_own_are_said_to_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "step.py"
    file.write_text(
        "import torch\n"
        "def made():\n"
        "    model = torch.nn.Linear(4, 3)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    def step(model, optimizer, x, y):\n"
        "        optimizer.zero_grad()\n"
        "        loss = ((model(x) - y) ** 2).mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        return loss\n"
        "    return step, model, optimizer, (torch.zeros(2, 4), torch.zeros(2, 3))\n"
    )
    taken: list[Original] = []
    graph = load_model(f"{file}:made", original=taken.append)
    assert "a training step of its own" in compare(graph, taken[0]).left_out


def test_a_wrong_operator_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wave.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Wave(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.sin(x) + 1\n"
        "def made():\n"
        "    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), Wave(), nn.Linear(5, 3)), torch.zeros(2, 4)\n"
    )
    assert run(["import", f"{file}:made"]) == 0
    right = importer.HANDLERS["sin"]
    wrong = {"sin": lambda c, node: right(c, replace(node, kind="aten.cos.default"))}
    monkeypatch.setattr(importer, "HANDLERS", {**importer.HANDLERS, **wrong})
    assert run(["import", f"{file}:made"]) == 3
    assert "it appears first in aten.sin.default (sin) of '2' at wave.py:5" in capsys.readouterr().err


class Chosen(nn.Module):
    """Sorted rows, a loop, a constant, a scalar, two results of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.register_buffer("part", torch.tensor(0.5))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        values, places = torch.topk(x, 2, -1)
        h = torch.zeros(x.shape[0], 4)
        for k in range(3):
            h = self.cell(x[:, :4] * torch.arange(4) + k, h)
        return (h * self.part).sum() + values.sum() + x.gather(1, places).mean() + x[ids].sum()


@pytest.mark.parametrize("module", [Layer(nn.Identity()).eval(), Chosen()])
def test_every_node_computes_what_pytorch_does(module: nn.Module) -> None:
    """Nothing is named where nothing is wrong: every node as an output."""
    inputs = INPUTS if isinstance(module, Layer) else (torch.zeros(3, 5), torch.zeros(2, dtype=torch.int64))
    taken: list[Original] = []
    graph = load_module(module, inputs, lambda note: None, None, taken.append)
    assert taken[0].parts is not None
    parts = taken[0].parts()
    assert len(parts.places) >= 5
    own = {n: x.reshape(parts.graph.tensor(n).shape) for n, x in sample(graph, "generic").items()}
    own = {**sample(parts.graph, "generic"), **own}
    shaped = {n: x.reshape(parts.graph.tensor(n).source_shape or x.shape) for n, x in own.items()}
    theirs = dict(zip(parts.graph.outputs, parts.run(shaped), strict=True))
    assert difference(parts.graph, own, theirs, "generic") is None
