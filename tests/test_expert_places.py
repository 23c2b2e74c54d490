"""Experts on ranks: placements that are some, bounds that hold against enumeration, and the verb."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations, permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.__main__ import run
from shardproof.formal.schedules.experts import better_places, place_experts
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Infeasible, Status
from shardproof.models.schedules.experts import ExpertPlaces
from shardproof.models.sources.loads import with_counts
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.verify.verbs.experts import makespan_and_bound

COUNTS = st.lists(st.integers(0, 40), min_size=6, max_size=6).filter(any)


def least(counts: list[int], ranks: int, more: int) -> Fraction:
    """Over all numbers of copies, and all fillings of the ranks, of which only the first expert's rank is free."""
    slots, found = len(counts) + more, None
    for extra in product(range(ranks), repeat=len(counts)):
        if sum(extra) != more:
            continue
        items = [
            (Fraction(n, c + 1), e) for e, (n, c) in enumerate(zip(counts, extra, strict=True)) for _ in range(c + 1)
        ]
        best = filled(items, ranks, slots // ranks)
        if best is not None and (found is None or best < found):
            found = best
    assert found is not None
    return found


def filled(items: list[tuple[Fraction, int]], ranks: int, width: int) -> Fraction | None:
    if ranks == 1:
        return sum((x for x, _ in items), Fraction(0)) if len({e for _, e in items}) == len(items) else None
    best = None
    for rest in combinations(range(1, len(items)), width - 1):
        here = [items[0], *(items[i] for i in rest)]
        if len({e for _, e in here}) < width:
            continue
        others = filled([x for i, x in enumerate(items) if i and i not in rest], ranks - 1, width)
        if others is not None:
            worst = max(sum((x for x, _ in here), Fraction(0)), others)
            best = worst if best is None else min(best, worst)
    return best


@given(COUNTS, st.sampled_from([(2, 0), (3, 0), (6, 0), (2, 2), (3, 3), (4, 2)]))
@settings(max_examples=60, deadline=None)
def test_bounds_hold_and_placements_are_near_them(counts: list[int], shape: tuple[int, int]) -> None:
    ranks, more = shape
    found = place_experts(counts, ranks, more)
    makespan, bound = makespan_and_bound(found)
    assert makespan == found.makespan == max(found.loads) and sum(found.loads) == sum(counts)
    assert sum(found.copies) == len(counts) + more and max(found.copies) <= ranks
    best = least(counts, ranks, more)
    assert bound <= best <= makespan
    assert makespan <= best * Fraction(4, 3) + max(counts) // 4, "as the fullest first are"


@given(COUNTS)
@settings(max_examples=10, deadline=None)
def test_the_encoding_is_infeasible_exactly_where_nothing_is_better(counts: list[int]) -> None:
    found = place_experts(counts, 2)
    if found.makespan <= 1:
        return
    worse = ExpertPlaces(found.counts, (tuple(range(3)), tuple(range(3, 6))))
    for places in (found, worse):
        if places.makespan <= 1:
            continue
        answer = solve(better_places(places))
        better = least(counts, 2, 0) < places.makespan
        assert answer.status is (Status.OPTIMAL if better else Status.INFEASIBLE)
        if not better:
            assert answer.certificate is not None and isinstance(answer.certificate.claim, Infeasible)


@pytest.mark.parametrize("seed", range(5))
def test_order_of_ranks_and_experts_changes_no_verdict_of_the_checker(seed: int) -> None:
    counts = [(7 * seed + 13 * e * e) % 50 + 1 for e in range(8)]
    found = place_experts(counts, 4)
    for ranks in permutations(found.ranks):
        assert makespan_and_bound(ExpertPlaces(tuple(counts), ranks)) == makespan_and_bound(found)


def test_the_checker_refuses_what_is_no_placement() -> None:
    for ranks in (((0, 0), (1, 2)), ((0, 1), (2,)), ((0, 1), (0, 1)), ((0, 1), (2, 9)), ((0, 1), (2, -1))):
        with pytest.raises(ValueError, match="expert|slots"):
            makespan_and_bound(ExpertPlaces((3, 2, 1), ranks))
    with pytest.raises(InputError):
        ExpertPlaces((3, 2, 1), ((0, 0), (1, 2))).check()
    with pytest.raises(InputError):
        ExpertPlaces((3, 2, 1), ((0, 1), (0, 1))).check()


def test_slots_that_cannot_be_filled_name_the_copies_that_would() -> None:
    with pytest.raises(InputError, match="2 copies more would"):
        place_experts([1] * 6, 4)
    with pytest.raises(InputError, match="more than every one"):
        place_experts([1] * 2, 2, 4)


def test_large_layers_come_within_a_percent_of_the_bound() -> None:
    counts = [10_000 // (e + 3) + (37 * e) % 100 for e in range(128)]
    for ranks, more, gap in ((8, 0, 0.001), (16, 16, 0.01), (32, 32, 0.01)):
        makespan, bound = makespan_and_bound(place_experts(counts, ranks, more))
        assert makespan <= bound * Fraction(1 + gap)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = [[40, 3, 9, 8], [50, 30, 20, 10]]
    file, new = tmp_path / "counts.json", tmp_path / "new.json"
    file.write_text(json.dumps(counts), encoding="utf-8")
    line = ["place", "--experts", str(file), "--ranks", "2"]
    assert run([*line, "--permuted", str(new), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["layers"]
    assert (first["makespan"], first["lower_bound"], first["proved"], first["as_given"]) == ("43", "43", True, "43")
    assert (second["makespan"], second["proved"], second["as_given"]) == ("60", True, "80")
    order = json.loads(new.read_text(encoding="utf-8"))
    assert [sorted(x) for x in order] == [sorted(x) for x in counts]
    assert max(sum(order[1][:2]), sum(order[1][2:])) == 60
    with_counts(build("moe", layers=2, experts=4, capacity_percent=0), order, "new.json")
    assert run([*line, "--copies", "2"]) in (0, 5)
    text = capsys.readouterr().out
    assert "layer 1: " in text and "rank 0: " in text and "in the order as it is" not in text
    for more, code, message in (
        (["--copies", "1"], 3, "1 copies more would"),
        (["--copies", "2", "--permuted", str(tmp_path / "other.json")], 2, "experts with copies are no order"),
        (["--axes", "2"], 2, "placed by their tokens alone"),
        (["-o", str(tmp_path / "x.spz")], 2, "placed by their tokens alone"),
    ):
        assert run([*line, *more]) == code
        assert message in capsys.readouterr().err
    assert run(["place", "--ranks", "2", "--hierarchy", "2", "--axes", "2"]) == 2
    assert run(["place", "--experts", str(file)]) == 2
