"""Small problems of every combination of parts: the bound of a plan is at most the best of its space, as an enumeration
prices it, and the plan at least; where `optimal` is said they are equal, and no plan holds more than its limit.
"""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from composed_files import looked_at, said
from composed_prices import Tasks, least_order, least_vectors
from composed_problems import BATCH, CHEAP, DEAR, Problem
from composed_stages import least_schedule


@pytest.mark.parametrize(
    "problem",
    [
        *(pytest.param(p, id=p.name) for p in CHEAP),
        *(pytest.param(p, id=p.name, marks=pytest.mark.slow) for p in DEAR),
    ],
)
def test_no_bound_is_above_and_no_plan_below_the_best_of_all(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "plan.spz"
    status, answer = said([*problem.line(tmp_path), "--work-limit", "1M", "-o", str(path)])
    assert status in (0, 5), answer
    found = list(looked_at(path, BATCH))
    assert found and [w for f in found for w in f.wrong()] == []
    scale = answer["scale"]
    assert isinstance(scale, int) and isinstance(answer["cost"], int) and isinstance(answer["lower_bound"], int)
    assert Fraction(answer["cost"], scale) == min(f.cost for f in found)
    known = [f.optimum for f in found if f.exact and f.optimum is not None]
    assert known and Fraction(answer["lower_bound"], scale) <= min(known)
    if answer["status"] == "optimal":
        assert answer["cost"] == answer["lower_bound"]
        assert len(known) < len(found) or Fraction(answer["cost"], scale) == min(known)
    assert all(f.limit == problem.memory for f in found)
    if problem.binds:
        assert any(f.exact and f.free is not None and f.optimum is not None and f.free < f.optimum for f in found)


def test_there_are_forty_problems_and_half_have_a_limit() -> None:
    problems = [*CHEAP, *DEAR]
    assert len({p.name for p in problems}) == 40
    assert sum(p.memory is not None for p in problems) >= 20
    assert sum(p.binds for p in problems) >= 8


def test_the_enumeration_of_orders_is_that_of_all_permutations() -> None:
    """On drawn networks: every permutation of the tasks, each begun as early as it may behind those before it."""
    rng = random.Random(7)
    for _ in range(40):
        n = rng.randint(2, 6)
        times = tuple(rng.randint(1, 9) for _ in range(n))
        streams = tuple(rng.randint(0, 1) for _ in range(n))
        waits = tuple(frozenset(u for u in range(t) if rng.random() < 0.3) for t in range(n))
        best = 1 << 40
        for order in itertools.permutations(range(n)):
            if all(order.index(u) < order.index(t) for t in range(n) for u in waits[t]):
                ends, free = dict[int, int](), [0, 0]
                for t in order:
                    free[streams[t]] = ends[t] = max([free[streams[t]], *(ends[u] for u in waits[t])]) + times[t]
                best = min(best, max(ends.values()))
        assert least_order(Tasks(times, streams, waits)) == best


def test_the_enumeration_of_schedules_is_that_of_all_orders_on_every_stage() -> None:
    """Two stages: every order of forwards and backwards on each, begun as early as it may be."""
    rng = random.Random(8)
    for _ in range(30):
        m, room = rng.randint(1, 3), [rng.randint(1, 3), rng.randint(1, 3)]
        times = [(rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 9)) for _ in range(2)]
        lag = rng.randint(0, 5), rng.randint(0, 5)
        words = [
            [
                w
                for w in set(itertools.permutations("F" * m + "B" * m))
                if all(0 <= _kept(w, k) <= r for k in range(2 * m + 1))
            ]
            for r in room
        ]
        best = min(_end(pair, times, lag) for pair in itertools.product(*words))
        assert least_schedule(times, [(0, 0), lag], m, 2, room) == best


def _kept(word: tuple[str, ...], until: int) -> int:
    return word[:until].count("F") - word[:until].count("B")


def _end(words: tuple[tuple[str, ...], ...], times: list[tuple[int, int, int]], lag: tuple[int, int]) -> int:
    ends: dict[tuple[str, int, int], int] = {}
    at, free = [0, 0], [0, 0]
    while any(at[s] < len(words[s]) for s in (0, 1)):
        moved = False
        for s in (0, 1):
            if at[s] == len(words[s]):
                continue
            kind = words[s][at[s]]
            i = words[s][: at[s]].count(kind)
            need = {"F": [("F", 0, i)] if s else [], "B": [("F", s, i), *([("B", 1, i)] if s == 0 else [])]}[kind]
            if all(x in ends for x in need):
                lags = [lag["FB".index(kind)] if x[1] != s else 0 for x in need]
                begin = max([free[s], *(ends[x] + more for x, more in zip(need, lags, strict=True))])
                free[s] = ends[kind, s, i] = begin + times[s]["FB".index(kind)]
                at[s], moved = at[s] + 1, True
        if not moved:
            return 1 << 40
    return max(f + t[2] for f, t in zip(free, times, strict=True))


def test_the_elimination_of_variables_is_that_of_all_choices() -> None:
    rng = random.Random(9)
    sizes = {("copy", n): 3 for n in "abcd"}
    pairs = [(("copy", a), ("copy", b)) for a, b in ("ab", "bc", "cd", "ad")]

    for _ in range(5):
        factors = [
            (p, {c: np.array([[rng.randint(0, 5) for _ in range(3)]]) for c in itertools.product(range(3), repeat=2)})
            for p in pairs
        ]
        all_of_them = set()
        for choice in itertools.product(range(3), repeat=4):
            x = dict(zip(sizes, choice, strict=True))
            row = sum(cells[x[p[0]], x[p[1]]][0] for p, cells in factors)
            if row[2] <= 9:  # type: ignore[index]
                all_of_them.add(tuple(int(n) for n in row))  # type: ignore[union-attr]
        best = {
            r
            for r in all_of_them
            if not any(s != r and all(a <= b for a, b in zip(s, r, strict=True)) for s in all_of_them)
        }
        found = least_vectors({v: range(n) for v, n in sizes.items()}, factors, [99, 99, 9])[()]
        assert {tuple(int(n) for n in row) for row in found} == best


@pytest.mark.parametrize("flags", ["--pipeline 4:2", "--pipeline 4:2 --recompute auto", "--pipeline 2:2:2"])
def test_more_stages_than_units_are_refused_by_name(flags: str, tmp_path: Path) -> None:
    """It was an internal error: no pair was left, and the least of none was asked for."""
    limit = 1 << 30 if "recompute" in flags else None
    line = Problem("products3", "1x4", flags, limit).line(tmp_path)
    status, answer = said([*line, "-o", str(tmp_path / "plan.spz")])
    assert status == 3
    assert "has 2 units, too few for" in str(answer["error"])
