"""Computes times on a GPU without waiting for it: events in the queue of the current stream, read once at
the end.

A recorder that waited after every instruction would time a program in which nothing overlaps, and the host would never
run ahead.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..trace import Recorder


class EventRecorder(Recorder):
    """`Recorder` for arrays of `xp` (cupy): a mark is the number of an event, and becomes seconds in `settle`."""

    def __init__(self, rank: int, xp: ModuleType, origin_s: float | None = None) -> None:
        super().__init__(rank, origin_s)
        self._cuda, self._events, self._ended = xp.cuda, list[Any](), list[tuple[str, str, int, int]]()
        self._ahead_s = super().now()
        self._origin = self._queued()

    def now(self) -> float:
        """An event on the current stream."""
        self._events.append(self._queued())
        return len(self._events) - 1

    def add(self, name: str, kind: str, start: float) -> None:
        """A span that ends when the stream gets here."""
        self._ended.append((name, kind, int(start), int(self.now())))

    def settle(self) -> None:
        """Wait for the last event, the only time that the host does, and turn events into seconds."""
        if self._events:
            self._events[-1].synchronize()
        seconds = [
            self._ahead_s + 1e-3 * float(self._cuda.get_elapsed_time(self._origin, event)) for event in self._events
        ]
        for name, kind, start, end in self._ended:
            self.span(name, kind, seconds[start], seconds[end])
        self._events.clear()
        self._ended.clear()

    def _queued(self) -> Any:
        event = self._cuda.Event()
        event.record(self._cuda.get_current_stream())
        return event
