"""Recurrences written as loops of Python, which `torch.export` unrolls turn by turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

LENGTH, BATCH, WIDTH, HIDDEN = 7, 3, 6, 4


class Cells(nn.Module):  # type: ignore[misc]
    """A cell over time; its states side by side, along time or behind the batch."""

    def __init__(self, kind: str, batch_first: bool = False) -> None:
        super().__init__()
        self.cell, self.out, self.first = getattr(nn, kind)(WIDTH, HIDDEN), nn.Linear(HIDDEN, 3), batch_first

    def forward(self, x: Tensor) -> Tensor:
        batch, turns = (x.shape[0], x.shape[1]) if self.first else (x.shape[1], x.shape[0])
        state = x.new_zeros(batch, HIDDEN)
        states = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        seen = []
        for t in range(turns):
            states = self.cell(x[:, t] if self.first else x[t], states)
            seen.append(states[0] if isinstance(states, tuple) else states)
        return self.out(torch.stack(seen, 1 if self.first else 0)).square().mean()


class Diagonal(nn.Module):  # type: ignore[misc]
    """A state-space model with a diagonal decay that depends on the input, as Mamba's slow path has it."""

    def __init__(self, states: int = 3) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(WIDTH, states))
        self.enter, self.b, self.c = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, states), nn.Linear(WIDTH, states)

    def forward(self, x: Tensor) -> Tensor:
        delta, b, c = nn.functional.softplus(self.enter(x)), self.b(x), self.c(x)
        a = torch.exp(-delta[..., None] * self.decay)
        u = (delta * x)[..., None] * b[:, :, None]
        state, out = x.new_zeros(x.shape[0], WIDTH, self.decay.shape[1]), []
        for t in range(x.shape[1]):
            state = a[:, t] * state + u[:, t]
            out.append((state @ c[:, t, :, None])[..., 0])
        return torch.stack(out, 1).square().mean()


class Backwards(nn.Module):  # type: ignore[misc]
    """From the last turn to the first, over parts that `unbind` takes; the loss adds up in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(HIDDEN, HIDDEN), nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, start: Tensor) -> Tensor:
        state, loss = start, x.new_zeros(())
        for now in reversed(self.u(x).unbind(0)):
            state = torch.tanh(self.w(state) + now)
            loss = loss + state.square().sum()
        return loss + state.sum()


class Layers(nn.Module):  # type: ignore[misc]
    """Two loops, of which the second reads the states of the first, and a loop of two cells at once."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.first, self.second, self.together = nn.GRUCell(WIDTH, HIDDEN), nn.RNNCell(HIDDEN, 5), together

    def forward(self, x: Tensor, h: Tensor, k: Tensor) -> Tensor:
        seen, out = [], []
        if self.together:
            for t in range(x.shape[0]):
                h = self.first(x[t], h)
                k = self.second(h, k)
                out.append(k)
        else:
            for t in range(x.shape[0]):
                h = self.first(x[t], h)
                seen.append(h)
            for s in seen:
                k = self.second(s, k)
                out.append(k)
        return torch.cat(out, -1).square().mean() + h.sum()


class Losses(nn.Module):  # type: ignore[misc]
    """A loss per turn, all of them side by side, and the states of one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(WIDTH, HIDDEN)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        losses, units = [], []
        for now in x:
            h = self.cell(now, h)
            losses.append(h.square().mean())
            units.append(h[:, 1])
        return (torch.stack(losses) * torch.stack(units, -1).exp()).sum()


class Rows(nn.Module):  # type: ignore[misc]
    """Rows of a buffer are written turn by turn, those of another from the last to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h, out, back = x[:, 0], torch.empty_like(x), x.new_zeros(x.shape[1], x.shape[0])
        for t in range(x.shape[1]):
            h = torch.tanh(self.w(h) + x[:, t])
            out[:, t] = h
            back[x.shape[1] - 1 - t] = h.mean(-1)
        return out.square().mean() + back.exp().sum()


class Scanned(nn.Module):  # type: ignore[misc]
    """`torch.scan`: two carries, two results, from the last turn to the first along the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(HIDDEN, HIDDEN), nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        def step(carry: tuple[Tensor, Tensor], now: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
            h, total = carry
            h = torch.tanh(self.w(h) + self.u(now))
            return (h, total + h.sum()), (h * 2, h.square().mean())

        (last, total), (seen, sizes) = scan(step, (h, h.new_zeros(())), x, dim=1, reverse=True)
        return seen.square().mean() + sizes.sum() + total + last.mean()


Made = tuple[nn.Module, tuple[Tensor, ...]]


def _over_time(turns: int) -> tuple[Tensor]:
    return (torch.zeros(turns, BATCH, WIDTH),)


CASES: dict[str, Callable[[int], Made]] = {
    "lstm cells": lambda turns: (Cells("LSTMCell"), _over_time(turns)),
    "gru cells, batch first": lambda turns: (Cells("GRUCell", True), (torch.zeros(BATCH, turns, WIDTH),)),
    "rnn cells": lambda turns: (Cells("RNNCell"), _over_time(turns)),
    "diagonal": lambda turns: (Diagonal(), (torch.zeros(BATCH, turns, WIDTH),)),
    "backwards": lambda turns: (Backwards(), (*_over_time(turns), torch.zeros(BATCH, HIDDEN))),
    "one after another": lambda turns: (
        Layers(False),
        (*_over_time(turns), torch.zeros(BATCH, HIDDEN), torch.zeros(BATCH, 5)),
    ),
    "losses": lambda turns: (Losses(), (*_over_time(turns), torch.zeros(BATCH, HIDDEN))),
    "torch.scan": lambda turns: (Scanned(), (torch.zeros(BATCH, turns, WIDTH), torch.zeros(BATCH, HIDDEN))),
    "rows of a buffer": lambda turns: (Rows(), (torch.zeros(BATCH, turns, WIDTH),)),
    "two at once": lambda turns: (
        Layers(True),
        (*_over_time(turns), torch.zeros(BATCH, HIDDEN), torch.zeros(BATCH, 5)),
    ),
}
