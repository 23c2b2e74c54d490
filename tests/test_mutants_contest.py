"""Real certificates changed until they are wrong: none is accepted.  Contest-like problems here, the contest's own
instances with `-m slow`.

The classes and their arguments stand in `contest_mutants`.  A weaker but valid proof is no mutant: it must be taken for
what it shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from budgets import some_or_all, work
from contest_cases import contest_problem
from contest_mutants import CLASSES, Mutant, Original, of_class, weaker

from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Status, WithinGap
from shardproof.models.problem.selection_problem import ProblemError, SelectionProblem
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.proofs.selection.load import load_selection_problem
from shardproof.verify.selection.certificate import check_selection

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "iopddl"
Make = Callable[[Original, random.Random], Iterator[Mutant]]


def exit_code(m: Mutant) -> int:
    """What `shardproof check` would exit with."""
    try:
        return check_selection(m.problem, read_certificate(m.certificate)).exit_code
    except (ContainerError, ProblemError):
        return 3


def judge(o: Original, made: list[Mutant], seen: set[tuple[int, bytes]]) -> Counter[int]:
    """Exit codes of the mutants that differ from all before; 0 is a failure."""
    codes = Counter[int]()
    for m in made:
        assert m.problem is not o.problem or m.certificate != o.data, f"{m.what} changes nothing"
        key = (id(o), m.certificate)
        if key in seen:
            continue
        seen.add(key)
        code = exit_code(m)
        assert code in (3, 5, 10), f"{o.problem.name}: {m.what}: exit {code}"
        codes[code] += 1
    return codes


def judge_weaker(o: Original, most: int) -> Counter[str]:
    """Valid changes: either still a proof of the optimum, or of a bound that is then accepted as a claim."""
    out = Counter[str]()
    for m in islice(weaker(o, random.Random(2)), most):
        certificate = read_certificate(m.certificate)
        result = check_selection(o.problem, certificate)
        assert result.exit_code in (0, 5), (m.what, result.reason)
        out["still proved" if result.exit_code == 0 else "weaker"] += 1
        if result.exit_code == 5 and result.lower_bound is not None:
            claim = WithinGap(o.claim.solution, o.claim.cost, result.lower_bound)
            assert check_selection(o.problem, replace(certificate, claim=claim)).exit_code == 0
            out["accepted as weaker"] += 1
    return out


@cache
def made_up() -> tuple[Original, ...]:
    out = []
    for problem in (contest_problem(21, 12, 3, tight=0.45), contest_problem(6, 10, 2, tight=0.4)):
        answer = solve(problem, clock=work(60))
        assert answer.status is Status.OPTIMAL and answer.certificate is not None
        out.append(Original(problem, read_certificate(write_certificate(None, answer.certificate))))
    return tuple(out)


@pytest.mark.parametrize("most", some_or_all(8, 20))
@pytest.mark.parametrize("make", CLASSES, ids=lambda f: f.__name__)
def test_made_up_problems(make: Make, most: int) -> None:
    seen: set[tuple[int, bytes]] = set()
    codes = Counter[int]()
    for o in made_up():
        codes += judge(o, of_class(o, make, most), seen)
    assert sum(codes.values()) >= most


def test_weaker_proofs_of_made_up_problems_are_taken_for_what_they_show() -> None:
    out = Counter[str]()
    for o in made_up():
        out += judge_weaker(o, 12)
    assert out["accepted as weaker"] >= 4


@cache
def instance(letter: str) -> Original:
    problem: SelectionProblem = load_selection_problem(DATA / f"asplos-2025-iopddl-{letter}.json.gz")
    answer = solve(problem, clock=work(120))
    assert answer.status is Status.OPTIMAL and answer.certificate is not None
    return Original(problem, read_certificate(write_certificate(None, answer.certificate)))


BUDGET = {"A": 12, "B": 100, "C": 12, "G": 100}
"""Mutants per class: a check of A or C takes seconds."""


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not DATA.is_dir(), reason="the data set lies outside the repository")
def test_at_least_1000_mutants_of_contest_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    seen: set[tuple[int, bytes]] = set()
    rows = []
    for letter, most in BUDGET.items():
        o = instance(letter)
        for make in CLASSES:
            codes = judge(o, of_class(o, make, most), seen)
            rows.append(
                f"{letter} {make.__name__:<20} {sum(codes.values()):4d} mutants, exit codes "
                f"{dict(sorted(codes.items()))}"
            )
        rows.append(f"{letter} weaker but valid      {dict(judge_weaker(o, 4 if letter in 'AC' else 40))}")
    with capsys.disabled():
        print("\n" + "\n".join(rows) + f"\n{len(seen)} different mutants, none accepted")
    assert len(seen) >= 1000
