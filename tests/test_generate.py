"""The generator, small sizes: enumeration against brute force, a basis without derivable rules, resuming, and what
it must find.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from shardproof.formal.rewriting.generate import Pruner, generate, in_order, is_parallel, tree_size
from shardproof.formal.rewriting.generate_terms import Candidate, Enumeration, Pool, label
from shardproof.formal.rewriting.pools import POOLS, rank2_pool
from shardproof.models.rewrites.terms import Apply, Term, sides_text
from shardproof.verify.rewrites.library import check_judgement

SMALL = Pool(
    "small",
    (((1, 1), 3), ((2, 1), 1)),
    (
        label("relu"),
        label("add"),
        label("mul"),
        label("partition", axis=0, degree="d"),
        label("combine", axis=0, degree="d"),
    ),
    2,
    4,
    (("d", 2),),
)


def text(c: Candidate) -> str:
    from shardproof.formal.rewriting.generate import rule_from

    return " = ".join(sides_text(rule_from(c, "r")))


def test_enumeration_of_one_operator_is_complete() -> None:
    """With one operator a side: exactly the typed applications, up to the order of arguments of add and mul."""
    e = Enumeration(
        Pool(
            "one",
            (((1,), 2), ((2,), 1)),
            (label("add"), label("relu"), label("combine", axis=0, degree="d")),
            1,
            4,
            (("d", 2),),
        )
    )
    e.enumerate_all()
    # relu of each input, add of inputs of equal degree (a+a, a+b, b+b, c+c), combine of the sharded one
    assert e.counts.graphs == 3 + 4 + 1 and e.counts.pairs == 0 and e.counts.classes == 3 + 8


def test_candidates_are_equal_graphs_and_all_of_them() -> None:
    """Against brute force over all terms of two operators of {add, mul, relu} on three numbers mod a prime."""
    pool = Pool("scalars", (((1,), 3),), (label("add"), label("mul"), label("relu")), 2, 3)
    e = Enumeration(pool)
    e.enumerate_all()
    rng = np.random.default_rng(3)
    values = [int(v) for v in rng.integers(2, 1 << 20, 3)]

    def value(t: Term) -> int:
        if isinstance(t, int):
            return values[t]
        a = [value(s) for s in t.arguments]
        return (
            a[0] + a[1]
            if t.label[0] == "add"
            else a[0] * a[1]
            if t.label[0] == "mul"
            else a[0] ** 3 + 5 * a[0] ** 2 + 11
        )

    leaves: list[Term] = [0, 1, 2]
    ones: list[Term] = [Apply(label("relu"), (x,)) for x in leaves] + [
        Apply(label(o), (x, y)) for o in ("add", "mul") for x, y in product(leaves, leaves)
    ]
    twos: list[Term] = [Apply(label("relu"), (t,)) for t in ones]
    twos += [Apply(label(o), p) for o in ("add", "mul") for t in ones for x in [*leaves, t] for p in ((t, x), (x, t))]
    classes = {value(t) for t in (*leaves, *ones, *twos)}
    assert e.counts.classes == len(classes)
    texts = {text(c) for c in e.candidates()}
    assert "a + (b + c) = b + (a + c)" in texts or "(a + b) + c = a + (b + c)" in texts


@pytest.fixture(scope="module")
def basis() -> tuple[list[object], object]:
    kept, report = generate([SMALL], workers=1)
    return kept, report  # type: ignore[return-value]


def test_basis_is_proved_and_says_what_it_should(basis: tuple[list, object]) -> None:
    kept, report = basis
    assert kept and all(check_judgement(p).word == "proved" for p in kept)
    texts = {" = ".join(sides_text(p.rule)) for p in kept}
    assert (
        "combine[0,d](partition[0,d](a)) = a" in texts and "partition[0,d](relu(a)) = relu(partition[0,d](a))" in texts
    )
    assert report.candidates == sum(report.outcomes.values()) and report.outcomes["refuted"] == 0
    assert report.parallel == sum(is_parallel(p.rule) for p in kept) >= 4


def test_no_rule_of_the_basis_follows_from_the_others(basis: tuple[list, object]) -> None:
    kept, _ = basis
    for k in range(len(kept)):
        pruner = Pruner()
        for j, p in enumerate(kept):
            if j != k:
                pruner.add(p.rule)
        assert pruner.derivable(kept[k].rule, thorough=True) is False, kept[k].rule.name


def test_pruned_candidates_follow_from_the_basis(basis: tuple[list, object]) -> None:
    """Every candidate is kept or derivable: in one search, or because its parts are rewritten first (then it was
    never built).
    """
    kept, report = basis
    pruner = Pruner()
    for p in kept:
        pruner.add(p.rule)
    e = Enumeration(SMALL)
    e.enumerate_all()
    outcomes = [pruner.settle(c, "x").word for c in in_order(e.candidates())]
    assert set(outcomes) == {"derivable"} and len(outcomes) == report.candidates


def test_a_journal_is_taken_up_again(tmp_path: Path, basis: tuple[list, object]) -> None:
    journal = tmp_path / "journal"
    generate([SMALL], 1, journal)
    lines = journal.read_text().splitlines()
    assert len(lines) > 1
    journal.write_text("\n".join(lines[:1]) + "\n" + "\n".join(lines[1:2]) + "\n")
    kept, report = generate([SMALL], 1, journal)
    assert [sides_text(p.rule) for p in kept] == [sides_text(p.rule) for p in basis[0]]
    assert report.outcomes == basis[1].outcomes  # type: ignore[attr-defined]
    journal.write_text('{"settings": "of another run"}\n["proved"]\n')
    kept, _ = generate([SMALL], 1, journal)
    assert len(kept) == len(basis[0])


def twice_in(t: Term) -> bool:
    return isinstance(t, Apply) and (len(set(t.arguments)) < len(t.arguments) or any(map(twice_in, t.arguments)))


@pytest.mark.parametrize("name", ["vectors", "layers", "norms", "channels"])
def test_no_operator_reads_one_tensor_twice(name: str) -> None:
    e = Enumeration(POOLS[name](2))
    e.enumerate_all()
    found = e.candidates()
    assert len(found) > 20 and not any(twice_in(c.left) or twice_in(c.right) for c in found)


def test_operators_of_three_operands_are_enumerated() -> None:
    e = Enumeration(POOLS["norms"](1))
    e.enumerate_all()
    terms = [t for level in e.levels for k in level if isinstance(t := e.terms.term(k), Apply)]
    # over either axis, of two matrices, with two vectors as gain and bias or the other way round
    assert sum(t.label[0] == "layer_norm_affine" for t in terms) == 2 * 2 * 2


def test_a_gain_moves_from_what_is_multiplied_into_the_weight() -> None:
    e = Enumeration(POOLS["layers"](2))
    e.enumerate_all()
    assert "scale_along[1](a, b) @ c = a @ scale_along[0](c, b)" in {text(c) for c in e.candidates()}


def test_order_puts_general_rules_first() -> None:
    a: Term = Apply(label("add"), (0, 1))
    general, instance = (
        Candidate(a, Apply(label("add"), (1, 0)), (1, 1)),
        Candidate(Apply(label("add"), (0, 0)), Apply(label("add"), (0, 0)), (1,)),
    )
    assert in_order([instance, general]) == [general, instance] and tree_size(a) == 1


@pytest.mark.slow
def test_matrices_with_two_operators() -> None:
    kept, report = generate([rank2_pool(2)], workers=2)
    texts = {" = ".join(sides_text(p.rule)) for p in kept}
    assert {"reduce[2](stack(a, b)) = a + b", "(a @ b) @ c = a @ (b @ c)"} <= texts
    assert report.parallel > 30 and all(check_judgement(p).word == "proved" for p in kept)
