"""Selection certificates of the conformance suite: every kind of record and claim by hand, and one fault at a time.

A problem of three vertices in a row, with its best solution in the comment, and variants of it: with a limit, too tight
a limit, shared tables, a fine part, and one in which every rule of a presolve log finds something.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.selection_faults import malformed, refuted
from conformance.selection_problems import (
    ALONG,
    BEST,
    CHAIN,
    EVERY,
    FINE,
    LEFT,
    LIMITED,
    LOG,
    MESSAGES,
    PACK,
    PACKED,
    ROUNDED,
    SHARED,
    STEPS,
    TIGHT,
    ZOO,
    ZOO_BEST,
    certified,
    dual,
    exact,
    ints,
    leaves,
    table,
    zeros,
)
from conformance.writing import Suite, container
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, WithinGap
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Record,
    Reduced,
    RowConflict,
)
from shardproof.proofs.selection.presolve_log import Rule
from shardproof.proofs.selection.problem_file import encode_problem, problem_json


def suite() -> tuple[Suite, dict[str, bytes]]:
    """The cases, and the files of their problems."""
    problems = {p.name: problem_json(p.check()) for p in (CHAIN, LIMITED, PACK, TIGHT, SHARED, FINE, ZOO)}
    out = Suite("selection certificate")
    _proved(out)
    _undecided(out)
    refuted(out)
    malformed(out)
    files = {f"problems/{name}.json": data for name, data in problems.items()}
    files["problems/chain.spz"] = container(encode_problem(CHAIN))
    return out, files


def _proved(out: Suite) -> None:
    def add(name: str, sentence: str, p: SelectionProblem, claim: SelectionClaim, proof: Record) -> None:
        out.add(name, "proved", sentence, container(certified(p, claim, proof)), f"problems/{p.name}.json")

    best = Optimal(BEST, 12)
    add("selection-elimination", "Optimal      proved; cost 12", CHAIN, best, MESSAGES)
    add("selection-elimination-exact", "Optimal      proved; cost 12", CHAIN, best, exact(CHAIN, ALONG))
    add("selection-dual", "Optimal      proved; cost 12", CHAIN, best, dual())
    point = leaves(((0, 1), (0, 1), (0, 1)))
    add("selection-dual-fixing", "Optimal      proved; cost 12", CHAIN, best, zeros(CHAIN, 2, point))
    add("selection-elimination-fixing", "Optimal      proved; cost 12", CHAIN, best, replace(
        exact(CHAIN, ALONG), messages=(ints(0, 0, 0), ints(0, 0), np.array(0)), then=leaves(EVERY)))  # fmt: skip
    add("selection-split", "Optimal      proved; cost 12", CHAIN, best, leaves(EVERY))
    add(
        "selection-within-gap",
        "WithinGap    proved; cost 12; lower bound 10",
        CHAIN,
        WithinGap(BEST, 12, 10),
        zeros(CHAIN),
    )
    add("selection-lower-bound", "LowerBound   proved; lower bound 12", CHAIN, LowerBound(12), dual())
    add(
        "selection-lower-bound-of-nothing",
        "LowerBound   proved; lower bound 1000",
        TIGHT,
        LowerBound(1000),
        RowConflict(((1, 1),)),
    )
    add("selection-limit-split", "Optimal      proved; cost 18", LIMITED, Optimal((0, 0, 1), 18), leaves(EVERY))
    add("selection-limit-multipliers", "Optimal      proved; cost 5", PACK, PACKED, Dual((), (), 6, ((0, 5),)))
    add("selection-limit-rounded", "Optimal      proved; cost 5", PACK, PACKED, Dual((), (), rounded=(ROUNDED,)))
    add(
        "selection-infeasible",
        "Infeasible   proved",
        TIGHT,
        Infeasible((1,), (0, 1), 5, (0, 2, 0)),
        RowConflict(((1, 1),)),
    )
    add("selection-infeasible-split", "Infeasible   proved", TIGHT, Infeasible((1,), (), None, None), leaves(EVERY))
    add(
        "selection-shared-tables",
        "Optimal      proved; cost 2 ms",
        SHARED,
        Optimal((1, 0, 0), 2),
        exact(SHARED, ((1, 2), (2,), ())),
    )
    add(
        "selection-fine",
        "Optimal      proved; cost 118",
        FINE,
        Optimal(BEST, 118),
        replace(exact(FINE, ALONG), fine=True),
    )
    add(
        "selection-fine-coarse-bound",
        "WithinGap    proved; cost 118; lower bound 96",
        FINE,
        WithinGap(BEST, 118, 96),
        exact(FINE, ALONG),
    )
    add("selection-presolve", "Optimal      proved; cost 13", ZOO, Optimal(ZOO_BEST, 13), Reduced(LOG, STEPS, LEFT))
    empty = table((Rule.OVERFULL, 1, 0, 1), (Rule.OVERFULL, 1, 1, 1), (Rule.OVERFULL, 1, 2, 1))
    add(
        "selection-presolve-empty",
        "Infeasible   proved",
        TIGHT,
        Infeasible((1,), (0, 1, 2), None, None),
        Reduced(empty, (), Open()),
    )
    within = Reduced(
        table((Rule.ELIMINATE, 0, 0, 0)), (), Reduced(table((Rule.ELIMINATE, 0, 0, 0)), (), exact(SHARED, ((),)))
    )
    add(
        "selection-presolve-twice",
        "Optimal      proved; cost 12",
        CHAIN,
        best,
        replace(within, then=replace(within.then, then=Elimination((0,), ((),), ()))),
    )
    data = container(certified(CHAIN, best, MESSAGES), deflated=True)
    out.add("selection-deflated", "proved", "Optimal      proved; cost 12", data, "problems/chain.json")
    data = container(certified(CHAIN, best, MESSAGES))
    out.add("selection-problem-in-a-container", "proved", "Optimal      proved; cost 12", data, "problems/chain.spz")


def _undecided(out: Suite) -> None:
    def add(name: str, sentence: str, p: SelectionProblem, claim: SelectionClaim, proof: Record, fault: str) -> None:
        out.add(name, "undecided", sentence, container(certified(p, claim, proof)), f"problems/{p.name}.json", fault)

    best = Optimal(BEST, 12)
    add("selection-open", "the proof shows no bound, the claim needs 12", CHAIN, best, Open(), "the proof says nothing")
    add(
        "selection-weak-dual",
        "the proof shows only the bound 10, the claim needs 12",
        CHAIN,
        best,
        zeros(CHAIN),
        "without messages the bound is 10",
    )
    add(
        "selection-worse-solution",
        "the proof shows only the bound 12, the claim needs 18",
        CHAIN,
        Optimal((0, 0, 1), 18),
        MESSAGES,
        "the solution is not the best one, which the proof does not hold",
    )
    add(
        "selection-infeasible-unnamed",
        "infeasible, but the proof also uses step 1, vertex 0, vertex 1, not named in the claim",
        TIGHT,
        Infeasible((), (), None, None),
        RowConflict(((1, 1),)),
        "the claim names nothing",
    )
