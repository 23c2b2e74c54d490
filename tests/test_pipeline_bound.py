"""The bound of pipelined steps against every cut and every order of forwards and backwards, on random times of units."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from test_pipeline_attacks import shortest

from shardproof.models.pipelines import bound as built
from shardproof.models.pipelines.bound import Bounds, all_cuts_reach, closure
from shardproof.verify.pipelines import bound as checked
from shardproof.verify.pipelines.bound import Runs, least_step


@pytest.mark.parametrize(("seed", "most"), [(0, 64), (1, 64), (2, 1), (3, 1)])
def test_no_order_of_any_cut_is_below_the_bound(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of nothing, backwards before all forwards, updates longer than the rest, one stage: what is known of every
    unit is exact, and the checker grants the best step, no picosecond more.  `most`: sums that are kept at a unit.
    """
    monkeypatch.setattr(checked, "MOST_FRONT", most)
    monkeypatch.setattr(built, "MOST_SUMS", most)
    rng, reached_it, cases = random.Random(seed), 0, 200
    for _ in range(cases):
        n, m = rng.randint(1 if most > 1 else 4, 5), rng.randint(1, 3)
        p = rng.randint(1 if most > 1 else 3, min(n, 3))
        m = min(m, 2) if p == 3 else m
        units = [(rng.choice([0, 1, rng.randint(0, 9)]), rng.randint(0, 9), rng.choice([0, rng.randint(0, 20)])) for _ in range(n)]  # fmt: skip
        lags = [(rng.choice([0, rng.randint(0, 8)]), rng.choice([0, rng.randint(0, 8)])) for _ in range(n)]
        best = 1 << 40
        for cut in itertools.combinations(range(1, n), p - 1):
            times = []
            for i, j in itertools.pairwise((0, *cut, n)):
                f, b, u = (sum(t[k] for t in units[i:j]) for k in range(3))
                times.append((f, b, u))
            sends = [(Fraction(lags[c][0]), Fraction(lags[c][1])) for c in cut]
            best = min(best, int(shortest(times, sends, m)))
        one: Runs = {(k, k + 1): f + b for k, (f, b, _) in enumerate(units)}
        updated: Runs = {(k, k + 1): f + b + u for k, (f, b, u) in enumerate(units)}
        step: Runs = {(k, k + 1): m * (f + b) + u for k, (f, b, u) in enumerate(units)}
        both, there = [sum(lag) for lag in lags], [lag[0] for lag in lags]
        forward = [f for f, _, _ in units]
        for value in (best, best + 1):
            found = least_step(n, p, m, ([one], [updated], [step]), both, None, (value, forward, there))
            assert found <= best, (units, lags, p, m)
            reached_it += found == value == best
        known = Bounds(closure(n, one), closure(n, updated), closure(n, step))
        assert not all_cuts_reach(known, forward, m, both, there, p, best + 1)
    assert reached_it > 0.3 * cases  # and it is not idle
