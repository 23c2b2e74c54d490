"""Clocks of every Python of a test run made faster: `SHARDPROOF_TEST_CLOCK_SCALE=3` lets three seconds pass in one.

Nothing of the product reads the variable.  `tests/conftest.py` puts this folder on the path of what tests start, and
loads it itself; a verdict that changes under it hangs on seconds.
"""

from __future__ import annotations

import os
import time

CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time", "time")
SHARED = ("monotonic", "perf_counter")
"""Clocks that are one for all processes of a machine: ranks compare theirs, so these count from its start."""


def scale(factor: float) -> None:
    """Let the clocks of this process run so many times as fast from now on; once."""
    if getattr(time, "scaled", False):
        return
    time.scaled = True  # type: ignore[attr-defined]
    for name in CLOCKS:
        clock = getattr(time, name)
        begun = 0.0 if name in SHARED else clock()
        setattr(time, name, lambda clock=clock, begun=begun: begun + factor * (clock() - begun))


if os.environ.get("SHARDPROOF_TEST_CLOCK_SCALE"):
    scale(float(os.environ["SHARDPROOF_TEST_CLOCK_SCALE"]))
