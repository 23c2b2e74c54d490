"""Compiling of kernels: counted apart from all other time, so that no limit pays for it."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from shardproof.formal import compiling
from shardproof.formal.compiling import compiled_s, monotonic, njit
from shardproof.formal.plans.time_limit import SHOWN_S, TimeLimit
from shardproof.formal.selection.model.clock import Clock


def test_a_kernel_is_compiled_outside_of_the_time() -> None:
    def total(n: int) -> int:
        found = 0
        for i in range(n):
            found += i * i
        return found

    kernel = njit(cache=False)(total)
    clock, before, wall = Clock(100.0), compiled_s(), time.monotonic()
    limit = TimeLimit(clock)
    assert kernel(4) == 14
    spent, compiling_s = time.monotonic() - wall, compiled_s() - before
    assert 0 < compiling_s <= spent and clock.seconds() <= spent - compiling_s + 0.1 * spent
    before = compiled_s()
    assert kernel(5) == 30 and compiled_s() == before, "compiled once"
    assert ("compiling kernels, once" in limit.words()) == (compiling_s >= SHOWN_S)


def test_time_stands_still_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = iter(range(100))
    monkeypatch.setattr(compiling, "time", SimpleNamespace(monotonic=lambda: float(next(wall))))
    counted = compiling._Counted()
    monkeypatch.setattr(compiling, "_counted", counted)
    seen = [monotonic(), monotonic()]  # 0, 1
    counted.on_start(None)  # 2
    seen.append(monotonic())
    counted.on_start(None)  # what a kernel calls
    counted.on_end(None)
    seen.append(monotonic())
    counted.on_end(None)  # 5
    seen += [monotonic(), monotonic()]
    assert seen == [0, 1, 2, 2, 3, 4] and compiled_s() == 3
    assert all(a <= b for a, b in pairwise(seen))
