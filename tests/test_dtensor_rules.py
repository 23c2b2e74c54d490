"""Placements of DTensor as rules: what is right is proved, what is wrong is shown by numbers, and by ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.rewriting.prove import judge
from shardproof.models.sources.rules.placements import (
    PARTIAL,
    REPLICATE,
    TABLE,
    PlacementRule,
    placement_rules,
    placements,
)
from shardproof.proofs.rewrites.judgement import Proved, Refuted
from shardproof.proofs.rewrites.library import read_library

MM = [p for p in placement_rules() if p.placed.aten == "aten.mm.default"]
RIGHT = {
    (REPLICATE, REPLICATE, REPLICATE),
    (REPLICATE, "Shard(1)", "Shard(1)"),
    (REPLICATE, PARTIAL, PARTIAL),
    ("Shard(0)", REPLICATE, "Shard(0)"),
    ("Shard(1)", "Shard(0)", PARTIAL),
    (PARTIAL, REPLICATE, PARTIAL),
}
"""What is right of a matrix product."""


def is_right(p: PlacementRule) -> bool:
    return (*p.reads, p.writes) in RIGHT


@pytest.mark.parametrize(
    "p",
    [
        pytest.param(p, id=p.rule.name.partition(": ")[2], marks=() if k % 2 or is_right(p) else pytest.mark.slow)
        for k, p in enumerate(MM)
    ],
)
def test_products_of_matrices(p: PlacementRule) -> None:
    assert isinstance(judge(p.rule), Proved if is_right(p) else Refuted)


def proved_of(aten: str, reduction: str = "sum") -> set[tuple[str, ...]]:
    """What is proved of an operator with nothing but what is stated; everything else is refuted."""
    found = set()
    for p in placement_rules(reduction=reduction):
        if p.placed.aten == aten:
            judgement = judge(p.rule)
            assert isinstance(judgement, Proved | Refuted), p.rule.name
            for_all = set(judgement.rule.preconditions) <= set(p.rule.preconditions)  # else of some sizes only
            if isinstance(judgement, Proved) and for_all:
                found.add((*p.reads, p.writes))
    return found


@pytest.mark.parametrize("aten", ["aten.max_pool2d.default", "aten.avg_pool2d.default"])
def test_pools(aten: str) -> None:
    """Of any window and stride: whole, by examples, by channels, and averages of parts of sums."""
    right = {(REPLICATE, REPLICATE), ("Shard(0)", "Shard(0)"), ("Shard(1)", "Shard(1)")}
    assert proved_of(aten) == right | ({(PARTIAL, PARTIAL)} if "avg" in aten else set())


def test_rows_of_tables() -> None:
    assert proved_of("aten.embedding.default") == {
        (REPLICATE, REPLICATE, REPLICATE),
        (REPLICATE, "Shard(0)", "Shard(0)"),
        ("Shard(1)", REPLICATE, "Shard(1)"),
        (PARTIAL, REPLICATE, PARTIAL),
    }


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(stride: int) -> None:
    """By examples, by channels of the result, by channels that are summed; no window is cut."""
    assert proved_of(f"aten.convolution.default(stride {stride})") == {
        (REPLICATE, REPLICATE, REPLICATE),
        (REPLICATE, "Shard(0)", "Shard(1)"),
        (REPLICATE, PARTIAL, PARTIAL),
        ("Shard(0)", REPLICATE, "Shard(0)"),
        ("Shard(1)", "Shard(1)", PARTIAL),
        (PARTIAL, REPLICATE, PARTIAL),
    }


def test_averages_greatest_and_least_of_ranks() -> None:
    """Linear operators keep averages, maps that never fall the greatest; a mean of shards of any sizes is no average."""
    assert proved_of("aten.mm.default", "avg") == {
        (REPLICATE, REPLICATE, "Partial(avg)"),
        (REPLICATE, "Partial(avg)", "Partial(avg)"),
        ("Partial(avg)", REPLICATE, "Partial(avg)"),
    }
    assert proved_of("aten.mean.dim", "avg") == {(REPLICATE, "Partial(avg)"), ("Partial(avg)", "Partial(avg)")}
    assert proved_of("aten.relu.default", "avg") == {(REPLICATE, "Partial(avg)")}
    assert proved_of("aten.relu.default", "max") == {(REPLICATE, "Partial(max)"), ("Partial(max)", "Partial(max)")}
    for reduction in ("avg", "max", "min"):
        own = f"Partial({reduction})"
        assert proved_of("aten.permute.default", reduction) == {(REPLICATE, own), (own, own)}


def test_every_placement_is_there_once() -> None:
    every = list(placement_rules())
    assert len({p.rule.name for p in every}) == len(every)
    for reduction in ("avg", "max", "min"):
        own = [p for p in placement_rules(reduction=reduction)]
        assert own and all(f"Partial({reduction})" in (*p.reads, p.writes) for p in own)
        assert len({p.rule.name for p in own}) == len(own)
    for placed in TABLE:
        own = [p for p in every if p.placed == placed]
        many = len(placements(placed.rank))
        for rank in placed.ranks:
            many *= len(placements(rank))
        assert len(own) == many


@pytest.mark.parametrize(
    ("reads", "writes", "asks"),
    [
        (("Shard(1)", "Shard(0)"), PARTIAL, ["x0.1 = y0.0"]),
        (("Shard(0)", "Shard(1)"), PARTIAL, []),
        (("Shard(0)", REPLICATE), "Shard(0)", []),
    ],
)
def test_equal_dimensions_are_cut_alike(reads: tuple[str, str], writes: str, asks: list[str]) -> None:
    """Not those that may be of different sizes; and a product of parts cut at different places is none."""
    (p,) = [p for p in MM if p.reads == reads and p.writes == writes]
    assert [str(c) for c in p.rule.preconditions] == asks


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("rules", "dtensor", "--only", "aten.permute*", "--jobs", "1")
    assert run([*asked, "--json", "-o", str(tmp_path / "out.spz")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["counts"] == {"proved": 4, "refuted": 12}
    assert all(r["counterexample"]["what"] for r in said["rules"] if r["verdict"] == "refuted")
    found, _ = read_library(tmp_path / "out.spz")
    assert sum(isinstance(j, Proved) for j in found.judgements) == 4 and found.origin == "rules dtensor"
    assert run(["rules", "check", str(tmp_path / "out.spz")]) == 0
    capsys.readouterr()
    assert run([*asked]) == 0
    out = capsys.readouterr().out
    assert (
        "  Shard(0) -> Shard(1): proved" in out and "4 proved, 12 refuted" in out and "Shard(0) -> Shard(0)" not in out
    )


def test_an_operator_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "dtensor", "--only", "aten.nothing"]) == 3
    assert "aten.mm.default" in capsys.readouterr().err


@pytest.mark.torch
def test_refuted_rules_are_shown_on_gloo_ranks() -> None:
    """What the prover refutes, two ranks give wrongly; what it proves, rightly.  And of torch's own table nothing is
    refuted.
    """
    from tests.benchmarks.dtensor_rules import in_torch, shown_on_ranks

    every = dict(enumerate(placement_rules()))
    numbers = [k for k, p in every.items() if p.placed.aten == "aten.mm.default"]
    wrong = {k for k in numbers if (*every[k].reads, every[k].writes) not in RIGHT}
    assert shown_on_ranks(numbers) == wrong
    gives = in_torch({k: every[k] for k in numbers})
    for k in set(numbers) - wrong:
        assert gives[k] == (every[k].writes, 0)
