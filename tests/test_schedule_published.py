"""Published schedules: makespans and memory that their papers state, and that each is feasible as generated."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardproof.formal.schedules.drawing import peaks, picture, text
from shardproof.formal.schedules.published import KINDS, orders, starts_of, with_chunks
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.text import InputError
from shardproof.verify.schedules.network import fault
from shardproof.verify.schedules.pipeline import pipeline_network

NAMES = tuple(kind.replace("V", "2") for kind in KINDS)


def costed(kind: str, pipe: Pipeline) -> tuple[Fraction, list[Fraction]]:
    """Makespan and most activations kept, by the checker's arrays."""
    cut = with_chunks(kind, pipe)
    starts = starts_of(cut, orders(kind, cut))
    net, memory = pipeline_network(cut, False)
    assert not fault(net, memory, starts)
    most = peaks(cut.problem(), starts)
    return Fraction(int((starts + net.times).max()), cut.chunks), [Fraction(m, cut.chunks) for m in most]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_closed_forms(p: int, m: int) -> None:
    f, i, w = 2, 3, 1
    pipe = Pipeline(((f, i, w),) * p, m, 0, None)
    assert costed("gpipe", pipe) == ((m + p - 1) * (f + i + w), [m] * p)
    assert costed("1f1b", pipe) == ((m + p - 1) * (f + i + w), [p - s for s in range(p)])
    even = Pipeline(((1, 1, 1),) * p, m, 0, None)
    assert costed("zb-h1", even) == (3 * m + p - 1, [p] * p)
    assert costed("interleaved:2", even)[0] == 3 * m + Fraction(3 * (p - 1), 2)
    assert costed("zb-v", even) == (3 * m + Fraction(p - 1, 2), [p] * p)
    assert costed("dualpipe-v", even) == (3 * m + Fraction(p - 1, 2), [Fraction(2 * p + 1, 2)] * p)


@pytest.mark.parametrize("kind", NAMES)
def test_uneven_stages_and_sends_are_feasible(kind: str) -> None:
    pipe = Pipeline(((3, 1, 2), (5, 4, 1), (2, 2, 7), (1, 6, 3)), 8, 2, None)
    makespan, _ = costed(kind, pipe)
    assert makespan >= 8 * max(sum(t) for t in pipe.times)


def test_few_micro_batches() -> None:
    pipe = Pipeline(((1, 1, 1),) * 4, 2, 0, None)
    for kind in ("gpipe", "1f1b", "zb-h1", "zb-v", "interleaved:2"):
        assert costed(kind, pipe)[0] > 0
    with pytest.raises(InputError, match="at least 8 micro-batches"):
        costed("dualpipe-v", pipe)
    with pytest.raises(InputError, match="equal rounds"):
        costed("interleaved:2", Pipeline(((1, 1, 1),) * 4, 9, 0, None))


def test_unknown_kinds_are_named() -> None:
    for kind, words in (("zigzag", "is not known"), ("interleaved:1", "at least 2 chunks")):
        with pytest.raises(InputError, match=words):
            with_chunks(kind, Pipeline(((1, 1, 1),), 1, 0, None))


def test_pictures_hold_every_task() -> None:
    pipe = with_chunks("zb-v", Pipeline(((1, 2, 1),) * 3, 6, 1, 3))
    starts = starts_of(pipe, orders("zb-v", pipe))
    svg = picture(pipe.problem(), starts, "a < b")
    assert svg.count('class="t"') == pipe.tasks and "a &lt; b" in svg and svg.count("<polygon") == 3
    lines = text(pipe.problem(), starts, 60)
    assert len(lines) == 3 and {len(line) for line in lines} == {66}
    busy = sum(c not in " |" for line in lines for c in line[5:])
    assert abs(busy / 180 - 3 * 6 * 8 / (3 * int(starts.max()) + 9)) < 0.1
