"""Ticks: what a question raises comes at a line of our own, wherever Python is when it is asked."""

from __future__ import annotations

from types import FrameType, SimpleNamespace
from typing import cast

import pytest

from shardproof.models.terminal.ticks import _Ring


class Late(Exception):
    """Raised by the question."""


def late() -> None:
    raise Late


@pytest.mark.parametrize("line", [None, 7])
def test_a_frame_between_lines_is_taken(line: int | None) -> None:
    """Python gives a frame no line number between two lines: the next line raises all the same."""
    ring = _Ring(late, "/ours")
    code = SimpleNamespace(co_filename="/ours/a.py", co_flags=0)
    frame = cast(FrameType, SimpleNamespace(f_code=code, f_lineno=line, f_back=None, f_trace=None))
    try:
        ring.tick(frame)
        again = cast(FrameType, SimpleNamespace(f_code=code, f_lineno=line, f_back=None))
        assert ring.trace(again, "line", None) == ring.trace
        with pytest.raises(Late):
            ring.trace(cast(FrameType, SimpleNamespace(f_code=code, f_lineno=8, f_back=None)), "line", None)
    finally:
        ring.silence()
