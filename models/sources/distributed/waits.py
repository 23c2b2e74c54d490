"""Watches asynchronous collectives and messages while a program runs: what is read before the wait for it, what is
written while it is sent, and where a rank waits.

A collective is under way from its call to the wait for its work, for a future of it, or by `wait_tensor`.  Until then
what it makes may be there or not, and what it reads may be sent before or after a write.  Collectives of one group (not
of one set of ranks) run in order, so that one may follow another without a wait between them.  A callback of a future
runs after the collective and beside the program: what it reads and makes is under way until the wait for its future.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final

import torch
from torch._C._distributed_c10d import Work

from ...equality.captured import Unreadable
from ...equality.schedule import Event, Race

_TORCH: Final = str(Path(torch.__file__).parent) + "/"


@dataclass(eq=False)
class Flight:
    """What is under way: `makes` and `reads` are its tensors, `group` the name of a collective's group (messages and
    callbacks have none: nothing orders them).
    """

    name: str
    group: str
    makes: list[torch.Tensor]
    reads: list[torch.Tensor]
    line: str
    event: Event | None = None


class _Promise(torch.futures.Future[Any]):  # type: ignore[misc, unused-ignore]
    """A future whose value is there; says when it is waited for.  `flights` are over once it is."""

    def __init__(self, made: object, flights: Sequence[Flight], waits: Waits) -> None:
        super().__init__()
        self.set_result(made)
        self.flights, self.waits = list(flights), waits
        self.before = list[Flight]()

    def wait(self) -> Any:
        """It is over."""
        self.waits.land(self.flights)
        return super().wait()

    def value(self) -> Any:
        """It is over: PyTorch raises where it is not."""
        self.waits.land(self.flights)
        return super().value()

    def done(self) -> bool:
        """Only where it was waited for."""
        return self.waits.over(self.flights)

    def then(self, callback: Callable[[torch.futures.Future[Any]], Any]) -> torch.futures.Future[Any]:
        """The future of what a callback makes, which runs once this is over: callbacks of one future in order."""
        made, over = self.waits.call_back(self.flights, self.before, lambda: callback(self))
        self.before = over
        return _Promise(made, over, self.waits)

    def add_done_callback(self, callback: Callable[[torch.futures.Future[Any]], None]) -> None:
        """A callback whose end nobody can wait for."""
        self.then(callback)


class _Waited(Work):  # type: ignore[misc, unused-ignore]
    """The work of a collective whose tensors are there; says when it is waited for."""

    def __init__(self, tensors: object, flight: Flight, waits: Waits) -> None:
        super().__init__()
        self.tensors, self.flight, self.waits = tensors, flight, waits

    def wait(self, timeout: object = None) -> bool:
        """It is over."""
        self.waits.land([self.flight])
        return True

    def synchronize(self) -> None:
        """It is over."""
        self.waits.land([self.flight])

    def is_completed(self) -> bool:
        """Only where it was waited for."""
        return self.waits.over([self.flight])

    def is_success(self) -> bool:
        """Always: it says nothing of the time."""
        return True

    def result(self) -> object:
        """Its tensors."""
        return self.tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that has its tensors.  PyTorch's C++ (data parallel gradients) waits for it by itself, unseen."""
        code = sys._getframe(1).f_code
        if code.co_filename.startswith(_TORCH) and "get_future" not in code.co_names:
            self.waits.land([self.flight])
        return _Promise(self.tensors, [self.flight], self.waits)


@contextmanager
def seeing_futures() -> Iterator[None]:
    """While futures are waited for in C++ too: several together, and what hooks of data parallel gradients return."""
    import torch.distributed as dist

    collect, register = torch._C._collect_all, dist._register_comm_hook

    def collect_ours(futures: list[Any]) -> Any:
        ours = [f for f in futures if isinstance(f, _Promise)]
        if not ours:
            return collect(futures)
        return _Promise(list(futures), [flight for f in ours for flight in f.flights], ours[0].waits)

    def register_waiting(reducer: Any, state: object, hook: Callable[..., Any]) -> None:
        @wraps(hook)
        def wait_for_hook(*args: Any) -> Any:
            made = hook(*args)
            if isinstance(made, torch.futures.Future):
                made.wait()
            return made

        register(reducer, state, wait_for_hook)

    torch._C._collect_all, dist._register_comm_hook = collect_ours, register_waiting
    try:
        yield
    finally:
        torch._C._collect_all, dist._register_comm_hook = collect, register


@dataclass(eq=False)
class Waits:
    """Of one rank: what is under way, the first race, and in which order it calls and waits; in a callback (`inside`)
    also what is over for it; `numbers` are those of groups among the groups of the same ranks.
    """

    flights: list[Flight] = field(default_factory=list)
    kept: list[Work] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    race: Race | None = None
    calling: str = ""
    inside: Flight | None = None
    after: list[Flight] = field(default_factory=list)
    numbers: dict[tuple[str, tuple[int, ...], bool], int] = field(default_factory=dict)

    def begin(self, flight: Flight) -> None:
        """A collective or a message begins."""
        self.flights.append(flight)
        if flight.event is not None:
            self.events.append(flight.event)

    def work(self, flight: Flight, tensors: object) -> object:
        """The work of a collective that begins, as PyTorch's operators return it."""
        self.begin(flight)
        self.kept.append(_Waited(tensors, flight, self))
        return self.kept[-1].boxed()

    def land(self, flights: Sequence[Flight]) -> None:
        """These are waited for; in a callback only what it does itself comes after them."""
        if self.inside is not None:
            self.after += flights
            return
        for flight in flights:
            if flight in self.flights:
                self.flights.remove(flight)
                if flight.event is not None:
                    self.events.append(flight.event.wait())

    def land_tensor(self, tensor: torch.Tensor) -> None:
        """`wait_tensor`: for the functional collectives that made this memory."""
        storage = tensor.untyped_storage()._cdata
        found = [f for f in self.flights if f.event is None and f.group]
        self.land([f for f in found if any(t.untyped_storage()._cdata == storage for t in f.makes)])

    def over(self, flights: Sequence[Flight]) -> bool:
        """True where all are waited for; `Unreadable` where the answer hangs on the time."""
        for flight in flights:
            if flight in self.flights and flight not in self.after:
                raise Unreadable(f"asks whether {flight.name} ({flight.line}) is completed: call wait() for it")
        return True

    def call_back(
        self, flights: Sequence[Flight], callbacks: Sequence[Flight], run: Callable[[], object]
    ) -> tuple[object, list[Flight]]:
        """What a callback makes that runs after these, and after others of the same future; what is over once it is."""
        under_way = [f for f in flights if f in self.flights]
        if not under_way:
            return run(), []
        before, mine = (self.inside, self.after), Flight("a callback", "", [], [], under_way[0].line)
        self.inside, self.after = mine, [*self.after, *under_way, *callbacks]
        try:
            made = run()
            over = [*self.after, mine]
        finally:
            self.inside, self.after = before
        self.flights.append(mine)
        return made, over

    def read(self, tensor: torch.Tensor, line: Callable[[], str]) -> None:
        """A tensor is read."""
        for flight in self._beside():
            if any(_meet(tensor, t) for t in flight.makes):
                self.race = Race(f"reads what {flight.name} ({flight.line}) makes before the wait for it", line())
                return
        if self.inside is not None:
            self.inside.reads.append(tensor)

    def write(self, tensor: torch.Tensor, line: Callable[[], str]) -> None:
        """A tensor is written."""
        for flight in self._beside():
            for tensors, verb in (
                (flight.makes, "makes"),
                (flight.reads, "sends" if flight.event or flight.group else "reads"),
            ):
                if any(_meet(tensor, t) for t in tensors):
                    self.race = Race(f"writes what {flight.name} ({flight.line}) {verb} before the wait for it", line())
                    return
        self.make(tensor)

    def make(self, tensor: torch.Tensor) -> None:
        """A tensor is made."""
        if self.inside is not None:
            self.inside.makes.append(tensor)

    def _beside(self) -> list[Flight]:
        """What is under way beside what is done now; nothing once there is a race."""
        if self.race is not None:
            return []
        return [f for f in self.flights if f not in self.after and not (f.group and f.group == self.calling)]


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
