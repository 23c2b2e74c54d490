"""Every sentence with which the checker of selection certificates refutes: one wrong certificate for each."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, Verdict, WithinGap
from shardproof.models.problem.selection_problem import Edge, Ints, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import (
    Dual,
    Elimination,
    Point,
    Record,
    RowConflict,
    SelectionCertificate,
    Split,
)
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.verdict import CheckResult


def array(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


A, B = Vertex("a", array(1, 0)), Vertex("b", array(0, 5))
TWO = SelectionProblem("two", (A, B), (np.array([[0, 9], [9, 0]], dtype=np.int64),), (Edge(0, 1, 0),))
"""The optimum is 1, at (0, 0); (1, 1) costs 5."""
FULL = SelectionProblem("full", (A,), (), (), (Usage(0, 0, 1, array(2, 5)),), 1)
"""Nothing fits; a limit of 2 would do for (0,)."""
ROOMY = replace(FULL, limit=2)

ORDER = Elimination((0, 1), ((1,), ()), (array(1, 0), np.array(1, dtype=np.int64)))
MESSAGES = Dual((array(0, 0),), (array(0, 0),), 1, ())
CASES = Split(0, ((0,), (1,)), (ORDER, ORDER))
BEST = Optimal((0, 0), 1)
NOTHING = Infeasible((0,), (0,), 2, (0,))


def verdict(problem: SelectionProblem, claim: SelectionClaim, proof: Record) -> CheckResult:
    return check_selection(problem, SelectionCertificate(problem.sha256(), claim, proof))


def test_the_right_ones_are_proved() -> None:
    """What is made wrong below is right as it stands."""
    assert verdict(TWO, BEST, ORDER).verdict is Verdict.PROVED
    assert verdict(TWO, BEST, CASES).verdict is Verdict.PROVED
    assert verdict(TWO, LowerBound(0), MESSAGES).verdict is Verdict.PROVED
    assert verdict(FULL, NOTHING, RowConflict(((0, 1),))).verdict is Verdict.PROVED
    assert verdict(ROOMY, LowerBound(0), Dual((), (), 1, ((0, 1),))).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("problem", "claim", "words"),
    [
        (TWO, Optimal((0, 2), 1), "choice"),
        (TWO, Optimal((0,), 1), "solution"),
        (TWO, Optimal((0, 0), 2), "cost 2 is not the cost 1 of the solution"),
        (TWO, Optimal((0, 0), 1.0), "cost 1.0 is not an integer"),  # type: ignore[arg-type]
        (TWO, WithinGap((0, 0), 1, 2), "lower bound 2 is above the cost 1 of its own solution"),
        (TWO, WithinGap((0, 0), 1, 0.5), "lower bound 0.5 is not an integer"),  # type: ignore[arg-type]
        (TWO, LowerBound(True), "lower bound True is not an integer"),
        (TWO, Infeasible((0,), (), 2, (0, 0)), "names a least limit, but the problem has no limit"),
    ],
)
def test_claims_that_are_false(problem: SelectionProblem, claim: SelectionClaim, words: str) -> None:
    found = verdict(problem, claim, ORDER)
    assert (found.verdict, found.cost) == (Verdict.REFUTED, None)
    assert words in found.reason


@pytest.mark.parametrize(
    ("problem", "claim", "words"),
    [
        (FULL, replace(NOTHING, steps=(0, 0)), "steps are not ascending integers"),
        (FULL, replace(NOTHING, steps=(0.0,)), "steps are not ascending integers"),
        (FULL, replace(NOTHING, vertices=(1, 0)), "vertices are not ascending integers"),
        (FULL, replace(NOTHING, vertices=(1,)), "vertices name a vertex that does not exist"),
        (FULL, replace(NOTHING, witness=None), "least limit and witness must come together"),
        (FULL, replace(NOTHING, least_limit=None), "least limit and witness must come together"),
        (FULL, replace(NOTHING, least_limit=2.0), "least limit 2.0 is not an integer"),
        (FULL, replace(NOTHING, witness=(2,)), "choice 2 is not in 0..1"),
        (FULL, replace(NOTHING, least_limit=3), "least limit 3 is not the usage 2 of its witness at step 0"),
        (ROOMY, NOTHING, "its own witness is feasible"),
        (FULL, replace(NOTHING, steps=(0, 7)), "names step 7, where the proof finds no conflict"),
    ],
)
def test_infeasible_claims_that_are_false(problem: SelectionProblem, claim: Infeasible, words: str) -> None:
    found = verdict(problem, claim, RowConflict(((0, 1),)))
    assert found.verdict is Verdict.REFUTED
    assert words in found.reason


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        (replace(CASES, vertex=2), "vertex 2 does not exist"),
        (replace(CASES, vertex=True), "vertex True does not exist"),
        (replace(CASES, children=(ORDER,)), "has 2 parts and 1 children"),
        (replace(CASES, parts=((0,), ())), "is empty or holds a choice outside 0..1"),
        (replace(CASES, parts=((0,), (2,))), "is empty or holds a choice outside 0..1"),
        (replace(CASES, parts=((0,), (0,))), "choices [1] of "),
        (Split(0, ((0,), (1,)), (Point(), ORDER)), "more than one choice is left"),
        (replace(ORDER, order=(0, 0)), "order must name each of the 2 vertices once"),
        (replace(ORDER, order=(0,)), "order must name each of the 2 vertices once"),
        (replace(ORDER, scopes=((1,),)), "has 1 scopes and 2 messages for 2 vertices"),
        (replace(ORDER, messages=(array(1, 0),)), "has 2 scopes and 1 messages for 2 vertices"),
        (replace(ORDER, scopes=((2,), ())), "names a vertex that is not there"),
        (replace(ORDER, scopes=((1,), (0,))), "names a vertex that is not there or already eliminated"),
        (replace(ORDER, scopes=((1, 1), ())), "does not ascend"),
        (replace(ORDER, scopes=((), ())), "leaves out [1] of the consumed tables"),
        (replace(ORDER, messages=(array(1, 0, 0), np.array(1, dtype=np.int64))), "message has shape (3,)"),
        (replace(ORDER, messages=(array(1, 0).astype(np.int32), np.array(1, dtype=np.int64))), "needs (2,) int64"),
        (replace(ORDER, messages=(array(2, 0), np.array(1, dtype=np.int64))), "above the sum of the consumed tables"),
        (replace(MESSAGES, denominator=0), "denominator 0 is not a positive integer"),
        (replace(MESSAGES, denominator=True), "denominator True is not a positive integer"),
        (replace(MESSAGES, to_u=()), "has 0 messages to u for 1 edges"),
        (replace(MESSAGES, to_v=(array(0, 0), array(0, 0))), "has 2 messages to v for 1 edges"),
        (replace(MESSAGES, to_v=(array(0),)), "message"),
        (replace(MESSAGES, multipliers=((0, 1),)), "multiplies resource rows, but the problem has no limit"),
        (RowConflict(()), "names no resource row"),
    ],
)
def test_proofs_that_are_wrong(proof: Record, words: str) -> None:
    found = verdict(TWO, LowerBound(0), proof)
    assert (found.verdict, found.lower_bound) == (Verdict.REFUTED, None)
    assert words in found.reason


@pytest.mark.parametrize(
    ("multipliers", "words"),
    [
        (((0, 0),), "multiplier 0 of step 0 is not positive"),
        (((0, 1.0),), "multiplier (0, 1.0) is not a pair of integers"),
        (((0, 1), (0, 2)), "steps of multipliers do not ascend at 0"),
    ],
)
def test_multipliers_that_are_wrong(multipliers: tuple[tuple[int, int], ...], words: str) -> None:
    for proof in (RowConflict(multipliers), Dual((), (), 1, multipliers)):
        found = verdict(ROOMY, LowerBound(0), proof)
        assert found.verdict is Verdict.REFUTED
        assert words in found.reason


def test_another_problem() -> None:
    found = check_selection(ROOMY, SelectionCertificate(FULL.sha256(), LowerBound(0), RowConflict(((0, 1),))))
    assert found.verdict is Verdict.REFUTED
    assert re.search("about another problem", found.reason)


def test_a_point_that_is_cheaper_than_the_claim() -> None:
    """A proof that holds a feasible solution below the bound that it is for."""
    leaves = tuple(Split(1, ((0,), (1,)), (Point(), Point())) for _ in range(2))
    found = verdict(TWO, LowerBound(2), Split(0, ((0,), (1,)), leaves))
    assert found.verdict is Verdict.REFUTED
    assert "holds a feasible solution of cost 1" in found.reason


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (replace(NOTHING, vertices=()), "also uses vertex 0, not named in the claim"),
        (replace(NOTHING, steps=()), "also uses step 0, not named in the claim"),
    ],
)
def test_what_is_not_named_leaves_a_claim_open(claim: Infeasible, words: str) -> None:
    found = verdict(FULL, claim, RowConflict(((0, 1),)))
    assert found.verdict is Verdict.UNDECIDED
    assert words in found.reason
