"""A sample of what `tests/benchmarks/forged_derivations.py` tries 10,000 times."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.derivation_forgeries import Forgery, computes_the_same, draw, refused, rules


@pytest.fixture(scope="module")
def forged() -> list[Forgery]:
    some = rules()
    return [f for seed in range(5) for f in draw(seed, some)]


def test_forged_derivations_are_refused(forged: list[Forgery]) -> None:
    kinds = Counter(f.kind for f in forged)
    assert len(kinds) >= 12 and any(f.step.book for f in forged)
    wrong = [(f.kind, f.step.rule) for f in forged if not refused(f) and (f.said or not computes_the_same(f))]
    assert wrong == []


def test_the_numbers_tell_forgeries_apart(forged: list[Forgery]) -> None:
    """Were the checker to accept everything, this would find it."""
    changed = [f for f in forged if f.kind == "another function" and f.step.rule not in ("define",)]
    assert any(not computes_the_same(f) for f in changed)
