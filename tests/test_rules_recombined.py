"""Rules like those that were kept apart: development rules reversed, narrowed, extended, joined and changed, with
degrees other than 2.

Every one must be proved, refuted or vacuous, accepted by the checker and quickly; what is proved holds on random
shapes, and what is refuted with ordinary functions fails in the independent evaluator too.

Story: block sums by 3 after tiles by 2 stood undecided, because `3 divides 2 n` was not used as `3 divides n`; so did a
left side with unequal copies that a single draw of entries had made equal by chance.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardproof.formal.rewriting.facts import Reasoner
from shardproof.formal.rewriting.prove import judge
from shardproof.models.rewrites.eval import Difference, Evaluator, extents, input_types
from shardproof.models.rewrites.index_arrays import Exact
from shardproof.models.rewrites.rule import Pattern, Substitution, node
from shardproof.models.sources.rules.files import read_public_rules
from shardproof.models.sources.rules.formats import RuleError, parse_public_rules, write_public_rules
from shardproof.models.sources.rules.meaning import reading_of, substitutions
from shardproof.proofs.rewrites.judgement import Proved, Refuted, Undecided
from shardproof.verify.rewrites.soundness import check_substitution

from .rule_recombination import recombined
from .substitution_cases import differences

DATA = Path(__file__).parent / "data" / "rules"
FAILS = {Difference.RIGHT_ILL_TYPED, Difference.TYPE, Difference.RIGHT_COPIES, Difference.VALUE}


def fails(found: Refuted) -> Difference:
    """What the independent evaluator says of a stored counterexample."""
    rule, e = found.rule, found.counterexample
    values = dict(e.instance)
    types = input_types(rule, values)
    arrays = {
        p.name: np.array(v, dtype=object).reshape(extents(t))
        for p, v, t in zip(rule.inputs, e.values, types, strict=True)
    }
    return Evaluator(Exact()).compare(rule, values, arrays).difference


def decided(name: str, count: int, seed: int, shapes: int, degree: str | None = None) -> Counter[str]:
    """How many rules got which verdict; none stays undecided."""
    rules = list(read_public_rules(DATA / f"{name}.json"))
    reading, reasoner = reading_of(rules), Reasoner()
    counts: Counter[str] = Counter()
    for k, made in enumerate(recombined(rules, reading, count, seed)):
        assert parse_public_rules(write_public_rules([made])) == (made,)
        try:
            found = substitutions(made, reading, degree)
        except RuleError as error:
            assert made.name in str(error)
            counts["unreadable"] += 1
            continue
        for s in found:
            j = judge(s, reasoner=reasoner)
            counts[type(j).__name__] += 1
            assert not isinstance(j, Undecided), (s, j.reason)
            assert check_substitution(j).reason == "", s
            if isinstance(j, Proved):
                assert {d for _, d in differences(j.rule, k, shapes, 4 * shapes)} <= {Difference.NOWHERE}, s
            if isinstance(j, Refuted) and j.counterexample.functions == "true":
                assert fails(j) in FAILS, s
    return counts


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("taso-even", 6),
        ("flexflow-even", 10),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in (("taso-even", 12), ("flexflow-even", 30))),
    ],
)
def test_recombined_rules_are_decided(name: str, count: int) -> None:
    counts = decided(name, count, 11, 6)
    assert min(counts["Proved"], counts["Refuted"]) >= count // 10, counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "seed", "degree"),
    [("taso-even", 250, 21, None), ("flexflow-even", 300, 22, None), ("flexflow-even", 120, 23, "d")],
)
def test_many_recombined_rules_are_decided(name: str, count: int, seed: int, degree: str | None) -> None:
    counts = decided(name, count, seed, 50, degree)
    assert min(counts["Proved"], counts["Refuted"]) >= count // 10, counts


def test_quotients_with_common_factors() -> None:
    """3 divides 2 n says 3 divides n: sums of three blocks of a tiled axis, in either order of two other operators."""
    x = (Pattern("x", 2, (), True),)
    tiled, summed, cut = (
        node("tile", -1, axis=0, degree=2),
        node("block_sum", 1, axis=0, degree=3),
        node("partition", 0, axis=1, degree=2),
    )
    left = (tiled, cut, summed)
    right = (node("partition", -1, axis=1, degree=2), node("tile", 0, axis=0, degree=2), summed)
    found = judge(Substitution("tiles", x, left, right, ((2, 2),)))
    assert isinstance(found, Proved) and not found.rule.preconditions
    assert check_substitution(found).reason == ""
    detour = (
        node("tile", -1, axis=0, degree=4),
        node("partition", 0, axis=0, degree=6),
        node("combine", 1, axis=0, degree=6),
    )
    cut = judge(Substitution("needs", x, detour[:1], detour, ((0, 2),)))
    assert isinstance(cut, Proved) and [str(c) for c in cut.rule.preconditions] == ["6*x.0.degree divides x.0"], cut


def test_fixed_sizes_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="rule empty: input w: .*at least 1"):
        judge(Substitution("empty", (Pattern("w", 4, ((2, 0),)),), (node("relu", -1),), (node("relu", -1),), ((0, 0),)))
