"""Proofs about small e-graphs that somebody would write who wants a false bound, or a false extraction, to be believed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from egraph_cases import enumerated, extractions, random_egraph

from shardproof.models.egraphs.egraph import EGraph
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.egraphs.certificate import (
    ABSENT,
    Cut,
    Dual,
    Extraction,
    ExtractionCertificate,
    NoExtraction,
    Record,
    Split,
)
from shardproof.verify import budget
from shardproof.verify.egraphs.extraction import check_extraction

NOTHING = Dual(1, (), (), ())


def graph(owner: tuple[int, ...], children: tuple[tuple[int, ...], ...], cost: tuple[int, ...], *roots: int) -> EGraph:
    classes = tuple(f"c{k}" for k in range(max(owner) + 1))
    return EGraph("g", classes, tuple(f"n{k}" for k in range(len(owner))), owner, children, cost, 1, roots or (0,), ())


def says(
    g: EGraph,
    chosen: tuple[int, ...],
    cost: int,
    *records: Record,
    bound: int | None = None,
    dominated: tuple[tuple[int, int], ...] = (),
    cuts: tuple[Cut, ...] = (),
) -> str:
    """What is said of a claim; empty if it is believed."""
    low = cost if bound is None else bound
    claim = Extraction(chosen, cost, low, low == cost)
    checked = check_extraction(g, ExtractionCertificate(g.sha256(), claim, dominated, cuts, records or (NOTHING,)))
    assert checked.verdict is Verdict.PROVED or checked.reason
    return "" if checked.verdict is Verdict.PROVED else checked.reason


def test_chosen_nodes_of_negative_cost_are_not_added_to_an_extraction() -> None:
    g = graph((0, 0), ((), ()), (-3, 5))
    assert says(g, (0,), -3) == ""
    assert "two chosen nodes" in says(g, (0, 1), 2)
    g = graph((0, 1), ((), ()), (5, -3))
    assert says(g, (0,), 5) == ""
    assert "not needed" in says(g, (0, 1), 2)
    assert "needed and has no chosen node" in says(graph((0, 1), ((1,), ()), (1, 4)), (0,), 1)


def test_what_costs_nothing_is_proved_to_cost_nothing() -> None:
    assert says(graph((0, 0, 1), ((1,), (), ()), (0, 0, 0)), (1,), 0) == ""
    assert says(graph((0, 1), ((1,), (0,)), (0, 0)), (0, 1), 0)
    half = graph((0, 1, 1, 2), ((1, 2), (), (), ()), (0, 0, 0, 5))  # of two ways to have a class for nothing, neither
    assert says(half, (0, 1, 3), 5, Dual(1, ((0, 2, 5),), (), ())) == ""  # makes up for the class that costs 5


def test_a_circle_beside_something_sound_is_one() -> None:
    """A root whose child needs the root, and both a leaf; the leaf twice, on two ways, is no circle."""
    g = graph((0, 0, 1, 2), ((1, 2), (2,), (0, 2), ()), (1, 9, 1, 1))
    assert "circle" in says(g, (0, 2, 3), 3)
    twice = graph((0, 1, 2), ((1, 2), (2,), ()), (1, 1, 1))
    assert says(twice, (0, 1, 2), 3, Dual(1, ((0, 1, 1), (0, 2, 1)), (), ())) == ""
    assert "does not exist" in says(twice, (0, 1, 2, 3), 3)
    assert "cost 3, the claim says 2" in says(twice, (0, 1, 2), 2)


def test_nothing_leaves_where_costs_are_negative() -> None:
    """A node with a child more may be the better one, a class that costs nothing may cost less than that."""
    g = graph((0, 0, 1), ((1,), (), ()), (0, 0, -5))
    assert enumerated(g) == -5 and "negative somewhere" in says(g, (1,), 0, dominated=((0, 1),))
    g = graph((0, 0, 1), ((1,), (), ()), (0, 0, -5))
    split = Split(0, ((0,), (1,)), (1, 2))
    assert says(g, (1,), 0, split, NOTHING, NOTHING)
    assert says(g, (0, 2), -5, split, NOTHING, NOTHING) == ""


def test_what_is_dominated_is_looked_at() -> None:
    """Two alternatives in a root, of which the cheap one is said to leave."""
    g = graph((0, 0, 1, 2), ((1,), (2,), (), ()), (1, 1, 3, 7))
    assert enumerated(g) == 4
    paid = Dual(1, ((0, 2, 7),), (), ())  # with the first alternative gone its rest is needed, and 8 would be proved
    for dominated, said in (
        (((0, 1),), "has a child that the first has not"),
        (((0, 0),), "two nodes that are still there"),
        (((0, 9),), "two nodes that are still there"),
        (((9, 0),), "two nodes that are still there"),
        (((0, 4),), "two nodes that are still there"),
        (((4, 0),), "two nodes that are still there"),
        (((0, 2),), "no node of the same class"),
    ):
        assert said in says(g, (1, 3), 8, paid, dominated=dominated)
    other = graph((0, 0, 1), ((), (1,), ()), (4, 1, 1))
    assert enumerated(other) == 2 and "no node of the same class" in says(other, (0,), 4, dominated=((1, 2),))
    dearer = graph((0, 0), ((), ()), (2, 5))
    assert "costs no more" in says(dearer, (1,), 5, dominated=((0, 1),))
    twins = graph((0, 0, 0), ((), (), ()), (2, 2, 5))
    assert says(twins, (0,), 2, dominated=((1, 0),)) == ""
    assert "still there" in says(twins, (2,), 5, dominated=((0, 1), (1, 0)))
    assert "still there" in says(twins, (2,), 5, dominated=((0, 1), (0, 1)))
    circle = graph((0, 0), ((0,), ()), (1, 1))
    assert "still there" in says(circle, (1,), 1, dominated=((1, 0),))


def test_multipliers_are_of_rows_that_are_there() -> None:
    g = graph((0, 1, 1), ((1,), (), ()), (1, 2, 4))
    assert enumerated(g) == 3 and says(g, (0, 1), 3, Dual(1, ((0, 1, 2),), (), ())) == ""
    for dual, said in (
        (Dual(0, ((0, 1, 2),), (), ()), "denominator"),
        (Dual(-1, ((0, 1, 2),), (), ()), "denominator"),
        (Dual(1, ((0, 1, -1),), (), ()), "negative"),
        (Dual(1, (), ((1, -1),), ()), "negative"),
        (Dual(1, (), (), ((0, -1),)), "negative"),
        (Dual(1, ((-1, 1, 1),), (), ()), "class -1"),
        (Dual(1, ((2, 1, 1),), (), ()), "class 2"),
        (Dual(1, ((0, -1, 1),), (), ()), "class -1"),
        (Dual(1, ((0, 2, 1),), (), ()), "class 2"),
        (Dual(1, (), ((-1, 1),), ()), "class -1"),
        (Dual(1, (), ((2, 1),), ()), "class 2"),
        (Dual(1, (), ((0, 9),), ()), "is a root"),
        (Dual(1, (), (), ((1, 1),)), "there is no cut 1"),
        (Dual(1, (), (), ((-1, 1),)), "there is no cut -1"),
    ):
        assert said in says(g, (0, 2), 5, dual, cuts=(Cut(1, (1,)),)), dual
    for cut, said in (
        (Cut(0, (1,)), "top must be one of them"),
        (Cut(1, (1, 1)), "must ascend"),
        (Cut(1, (1, 0)), "must ascend"),
        (Cut(1, (0, 1, 1)), "must ascend"),
        (Cut(2, (0, 2)), "class 2"),
        (Cut(1, (-1, 1)), "class -1"),
    ):
        assert said in says(g, (0, 2), 5, Dual(1, (), (), ((0, 1),)), cuts=(cut,)), cut
    free = graph((0, 1, 2), ((1, 2), (), ()), (1, 0, 2))
    assert "costs nothing and has left" in says(free, (0, 1, 2), 3, Dual(1, ((0, 1, 1),), (), ()))


def test_splits_have_all_choices() -> None:
    g = graph((0, 0, 1), ((1,), (), ()), (1, 4, 2))
    assert enumerated(g) == 3
    assert "in no part" in says(g, (1,), 4, Split(0, ((1,), (1,)), (1, 2)), NOTHING, NOTHING)
    assert "leaves class 1 out" in says(g, (1,), 4, Split(1, ((2,), (2,)), (1, 2)), NOTHING, NOTHING)
    for owner in (-1, 2):
        assert "does not exist" in says(g, (1,), 4, Split(owner, ((1,), (ABSENT,)), (1, 2)), NOTHING, NOTHING)
    pays = Dual(1, ((0, 1, 2),), (), ())
    split = Split(1, ((2,), (ABSENT,)), (1, 2))
    assert says(g, (0, 2), 3, split, NOTHING, NOTHING) == ""
    assert says(g, (1,), 4, split, pays, NOTHING)  # where the class is left out, the second alternative is 4; else 3


def test_a_claim_is_one_thing() -> None:
    g = graph((0, 0), ((), ()), (2, 3))
    sha = g.sha256()

    def verdict(claim: Extraction | NoExtraction, **more: tuple) -> tuple[Verdict, str]:  # type: ignore[type-arg]
        found = check_extraction(g, ExtractionCertificate(sha, claim, **{"records": (NOTHING,), **more}))
        return found.verdict, found.reason

    assert verdict(Extraction((0,), 2, 2, True)) == (Verdict.PROVED, "")
    assert verdict(Extraction((1,), 3, 2, False)) == (Verdict.PROVED, "")
    for claim in (
        Extraction((0,), 2, 3, True),
        Extraction((0,), 2, 3, False),
        Extraction((0,), 2, 2, False),
        Extraction((0,), 2, 1, True),
    ):
        assert verdict(claim)[0] is Verdict.REFUTED and "with lower bound" in verdict(claim)[1], claim
    assert verdict(Extraction((1,), 3, 3, True))[0] is Verdict.UNDECIDED
    assert verdict(Extraction((0,), 2, 2, True), records=()) == (Verdict.REFUTED, "the proof is empty")
    assert verdict(NoExtraction(), records=())[1] == "every root can be extracted without circles"
    circle = graph((0, 1), ((1,), (0,)), (1, 1))
    none = ExtractionCertificate(circle.sha256(), NoExtraction())
    assert check_extraction(circle, none).verdict is Verdict.PROVED
    for more in ({"records": (NOTHING,)}, {"cuts": (Cut(0, ()),)}, {"dominated": ((0, 1),)}):
        other = ExtractionCertificate(circle.sha256(), NoExtraction(), **more)  # type: ignore[arg-type]
        assert "needs no proof" in check_extraction(circle, other).reason
    assert "another e-graph" in check_extraction(g, none).reason


def test_a_proof_of_more_work_than_its_size_allows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record may walk through the e-graph: what that takes is counted before."""
    g = graph((0, 1, 1), ((1,), (), ()), (1, 2, 4))
    monkeypatch.setattr(budget.Budget, "of", classmethod(lambda cls, size, whole=None: cls(300)))
    with pytest.raises(ContainerError):
        says(g, (0, 1), 3, *(Dual(1, ((0, 1, 2),), (), (), k + 1) for k in range(50)), NOTHING)


def proofs(g: EGraph, rnd: random.Random) -> Iterator[tuple[tuple[Record, ...], tuple[Cut, ...]]]:
    """Proofs as a file may hold them: trees of random multipliers and splits, in cuts random classes."""
    classes = range(len(g.classes))
    cuts = []
    for _ in range(2):
        inside = tuple(sorted(rnd.sample(classes, rnd.randint(1, len(g.classes)))))
        cuts.append(Cut(rnd.choice(inside), inside))

    def dual(then: int | None) -> Dual:
        rows = [(g.owner[n], d, rnd.randint(0, 6)) for n in range(len(g.nodes)) for d in g.children[n]]
        children = tuple(rnd.sample(rows, min(len(rows), rnd.randint(0, 4))))
        others = [c for c in classes if c not in g.roots]
        parents = tuple((c, rnd.randint(0, 6)) for c in others if rnd.random() < 0.3)
        used = tuple((k, rnd.randint(0, 6)) for k in range(len(cuts)) if rnd.random() < 0.5)
        return Dual(rnd.choice((1, 1, 2, 3)), children, parents, used, then)

    def tree(at: int, depth: int) -> list[Record]:
        if depth == 0 or rnd.random() < 0.2:
            return [dual(None)]
        if rnd.random() < 0.5:
            return [dual(at + 1), *tree(at + 1, depth - 1)]
        owner = rnd.choice(classes)
        choices = [*g.members[owner], *(() if owner in g.roots else (ABSENT,))]
        parts = tuple((c,) for c in choices) if len(choices) > 1 else ((choices[0],), ())
        out: list[Record] = []
        then = []
        for _ in parts:
            then.append(at + 1 + len(out))
            out += tree(then[-1], depth - 1)
        return [Split(owner, parts, tuple(then)), *out]

    while True:
        yield tuple(tree(0, 3)), tuple(cuts)


@pytest.mark.parametrize("signed", [False, True])
def test_no_proof_shows_more_than_the_optimum(signed: bool) -> None:
    """For the dearer extractions of random e-graphs no tree of multipliers and splits shows that nothing cheaper
    exists; a bound below the optimum may be shown, and some are.
    """
    found = Counter[str]()
    for seed in range(120):
        g, rnd = random_egraph(seed, signed=signed), random.Random(seed)
        costs = sorted(set(extractions(g).values()))
        chosen = {cost: nodes for nodes, cost in extractions(g).items()}
        stream = proofs(g, rnd)
        for dearer in costs[1:4]:
            for records, cuts in (next(stream) for _ in range(12)):
                why = says(g, chosen[dearer], dearer, *records, cuts=cuts, bound=costs[0] + 1)
                if "costs nothing and has left" in why:
                    continue
                assert why, (seed, records, cuts)
                found["refused"] += 1
                found["lower"] += not says(g, chosen[dearer], dearer, *records, cuts=cuts, bound=costs[0] - 1)
                found["tight"] += not says(g, chosen[dearer], dearer, *records, cuts=cuts, bound=costs[0])
    assert found["refused"] > 300 and found["lower"] > 50 and found["tight"] > 20, found
