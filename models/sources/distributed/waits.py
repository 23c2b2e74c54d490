"""Watches asynchronous collectives and messages while a program runs: what is read before the wait for it, what is
written while it is sent, and where a rank waits.

A collective is under way from its call to the wait for its work (or the future of it).  Until then what it makes may be
there or not, and what it reads may be sent before or after a write.  Collectives of one group run in order, so that one
may follow another without a wait between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ...equality.schedule import Event, Race


@dataclass(eq=False)
class Flight:
    """What is under way: `makes` and `reads` are its tensors."""

    name: str
    ranks: tuple[int, ...]
    makes: Sequence[torch.Tensor]
    reads: Sequence[torch.Tensor]
    line: str


class _Waited(Work):  # type: ignore[misc, unused-ignore]
    """The work of a collective whose tensors are there; says when it is waited for."""

    def __init__(self, tensors: object, land: Callable[[], None]) -> None:
        super().__init__()
        self.tensors, self.land = tensors, land

    def wait(self, timeout: object = None) -> bool:
        """It is over."""
        self.land()
        return True

    def synchronize(self) -> None:
        """It is over."""
        self.land()

    def is_completed(self) -> bool:
        """It is over."""
        self.land()
        return True

    def is_success(self) -> bool:
        """Always."""
        return True

    def result(self) -> object:
        """Its tensors."""
        return self.tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that has its tensors: who asks for it waits for it."""
        self.land()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self.tensors)
        return future


@dataclass(eq=False)
class Waits:
    """Of one rank: what is under way, the first race, and in which order it calls and waits."""

    flights: list[Flight] = field(default_factory=list)
    kept: list[Work] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    race: Race | None = None
    calling: tuple[int, ...] = ()

    def work(self, flight: Flight, event: Event, tensors: object) -> object:
        """The work of a collective that begins, as PyTorch's operators return it."""
        self.flights.append(flight)
        self.events.append(event)

        def land() -> None:
            if flight in self.flights:
                self.flights.remove(flight)
                self.events.append(event.wait())

        self.kept.append(_Waited(tensors, land))
        return self.kept[-1].boxed()

    def read(self, tensor: torch.Tensor, line: str) -> None:
        """A tensor is read."""
        for flight in self.flights if self.race is None else ():
            if flight.ranks != self.calling and any(_meet(tensor, t) for t in flight.makes):
                self.race = Race(f"reads what {flight.name} ({flight.line}) makes before the wait for it", line)
                return

    def write(self, tensor: torch.Tensor, line: str) -> None:
        """A tensor is written."""
        for flight in self.flights if self.race is None else ():
            if flight.ranks == self.calling:
                continue
            for tensors, verb in ((flight.makes, "makes"), (flight.reads, "sends")):
                if any(_meet(tensor, t) for t in tensors):
                    self.race = Race(f"writes what {flight.name} ({flight.line}) {verb} before the wait for it", line)
                    return


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share an element of memory."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata or not a.numel() or not b.numel():
        return False
    if a.is_contiguous() and b.is_contiguous():
        first, second = (t.storage_offset() * t.element_size() for t in (a, b))
        return bool(first < second + b.numel() * b.element_size() and second < first + a.numel() * a.element_size())
    return bool(set(_bytes(a)) & set(_bytes(b)))


def _bytes(t: torch.Tensor) -> list[int]:
    """Where the elements of a tensor begin."""
    with torch.utils._python_dispatch._disable_current_modes():
        at = torch.zeros((), dtype=torch.int64)
        for size, stride in zip(t.shape, t.stride(), strict=True):
            at = at.unsqueeze(-1) + torch.arange(size) * stride
        return [int(i) for i in ((at + t.storage_offset()) * t.element_size()).reshape(-1)]
