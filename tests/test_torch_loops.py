"""Recurrent layers of PyTorch come in as loops: values, gradients, three steps of AdamW, and sizes that do not grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch_case import compare, imported

from shardproof.models.program.graph import UnsupportedOperators
from shardproof.models.sources.torch.context import TorchError
from shardproof.models.sources.training import build_step

pytestmark = pytest.mark.torch

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "lstm": ("LSTM", {"num_layers": 2, "batch_first": True}),
    "lstm, projected both ways": ("LSTM", {"bidirectional": True, "proj_size": 2}),
    "lstm without biases": ("LSTM", {"bias": False, "dropout": 0.5, "num_layers": 2}),
    "gru": ("GRU", {"num_layers": 2, "bidirectional": True}),
    "gru without biases": ("GRU", {"bias": False, "batch_first": True}),
    "rnn": ("RNN", {"num_layers": 2}),
    "rnn with relu": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
}


class Recurrent(nn.Module):  # type: ignore[misc]
    """A layer, what it leaves in its states, and the mean of squares of both."""

    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 6)
        self.layer = getattr(nn, kind)(6, 4, **options)
        self.leave = nn.LazyLinear(3)
        self(torch.zeros(2, 2, 5))

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.layer(self.enter(x))
        states = state if isinstance(state, tuple) else (state,)
        return self.leave(out).square().mean() + sum(s.square().sum() for s in states)


def made(name: str) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    kind, options = CASES[name]
    torch.manual_seed(5)
    return lambda: (Recurrent(kind, **options).eval(), (torch.randn(3, 7, 5),))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_recurrent_layer_is_a_loop(name: str) -> None:
    found = compare(made(name))
    options = CASES[name][1]
    loops = [op for op in found.graph.operators if op.function == "scan"]
    assert len(loops) == int(options.get("num_layers", 1)) * (2 if options.get("bidirectional") else 1)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", sorted(CASES))
def test_three_steps_of_adamw_are_those_of_torch(name: str) -> None:
    from benchmarks.three_steps import double_steps

    def factory() -> tuple[nn.Module, dict[str, Tensor]]:
        return made(name)()[0], {"x": torch.zeros(3, 7, 5)}

    worst, single = double_steps(factory)
    assert worst < 1e-9 and not single


def test_states_may_be_given_and_the_batch_may_be_one() -> None:
    class Given(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 3, num_layers=2)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            out, (h, c) = self.layer(x, (h, c))
            return out, h, c

    for batch in (1, 3):
        sizes = ((5, batch, 4), (2, batch, 3), (2, batch, 3))
        compare(lambda sizes=sizes: (Given(), tuple(torch.zeros(s) for s in sizes)))


def test_operators_do_not_grow_with_turns() -> None:
    def long(turns: int) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
        return lambda: (nn.GRU(4, 3), (torch.zeros(turns, 2, 4),))

    sizes = {len(imported(long(turns)).graph.operators) for turns in (2, 40)}
    assert len(sizes) == 1 and sizes < {*range(12)}


def test_packed_sequences_are_refused_by_name() -> None:
    class Packed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 3)

        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            return torch.ops.aten.lstm.data(
                x, sizes, [torch.zeros(1, 2, 3)] * 2, self.layer._flat_weights, True, 1, 0.0, False, False
            )[0]

    with pytest.raises((UnsupportedOperators, ValueError)):
        imported(lambda: (Packed(), (torch.zeros(6, 4), torch.tensor([2, 2, 2]))))


def test_packing_is_refused_with_what_to_do() -> None:
    class Packed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
            return self.layer(packed)[0].data

    with pytest.raises(TorchError, match="packs sequences .* give the recurrent layer the padded sequences"):
        imported(lambda: (Packed(), (torch.zeros(3, 5, 4), torch.tensor([3, 5, 2]))))


def test_a_step_has_one_more_loop_per_loop() -> None:
    graph = build_step(imported(made("gru")).graph, "adam").graph
    assert [op.function for op in graph.operators].count("scan") == 8
