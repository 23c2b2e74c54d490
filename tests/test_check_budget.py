"""One budget over a whole check: small files that ask for much are refused as too large, honest files are far from the
budget.

The verdict must not depend on the speed of the computer, so the fast tests make the budget small and count; the slow
ones run `check` on the files as they are and measure processor time and memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from budget_cases import MAKERS, Files, wide, zero_messages
from random_problems import reducible

from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Optimal, Verdict
from shardproof.models.problem.selection_problem import ProblemError, SelectionProblem
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.container.effort import WORK
from shardproof.proofs.selection.certificates import Point, SelectionCertificate, Split
from shardproof.proofs.selection.file import decode_certificate
from shardproof.proofs.selection.load import selection_problem
from shardproof.verify import budget
from shardproof.verify.budget import Budget
from shardproof.verify.collective_programs.program import check_members
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.verdict import worst

SECONDS, BYTES = 60, 2 << 30
"""What a check of anything under 1 MB may take, in processor time and memory."""


FEWER = 20


def checked(files: Files) -> Verdict:
    """What `check` does with the files."""
    problems: dict[str, SelectionProblem] = {}
    certificates: list[SelectionCertificate] = []
    for name, data in files.items():
        if name == "reduction.spz":
            return worst(r.verdict for r in check_members(read_container(data)))
        if name == "certificate.spz":
            certificates.append(decode_certificate(read_container(data)))
        else:
            problem = selection_problem(data, name)
            problems[problem.sha256()] = problem
    return max((check_selection(problems[c.problem_sha256], c).verdict for c in certificates), key=str)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_small_files_that_ask_for_much_are_too_large(
    make: Callable[..., Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "WORK", 1 << 22)
    monkeypatch.setattr(budget, "WORK_PER_NUMBER", 1)
    with pytest.raises((ContainerError, ProblemError)) as caught:
        checked(make(FEWER))
    assert "too large" in str(caught.value) or "nodes" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_check_of_small_files_ends_soon_and_in_little_memory(make: Callable[..., Files], tmp_path: Path) -> None:
    files = make()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    process = subprocess.Popen(
        [sys.executable, "-m", "shardproof", "check", *(str(tmp_path / name) for name in files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    print(
        f"{make.__name__}: {sum(map(len, files.values()))} bytes, exit {process.returncode}, "
        f"{used.ru_utime + used.ru_stime:.1f} s, {used.ru_maxrss >> 10} MiB"
    )
    assert process.returncode in (0, 3, 5, 10), said
    assert used.ru_utime + used.ru_stime < SECONDS and used.ru_maxrss << 10 < BYTES


def test_the_verdict_is_the_same_on_every_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charged work is a number of the files: the same in every run, and what is left decides."""
    monkeypatch.setattr(budget, "WORK", 1 << 26)
    files, said = zero_messages(FEWER), set()
    for _ in range(2):
        with pytest.raises(ContainerError) as caught:
            checked(files)
        said.add(str(caught.value))
    assert len(said) == 1


def test_too_large_is_not_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A true claim with a true proof: proved with the budget, neither proved nor refuted without."""
    problem = wide(2, 3)
    proof = Split(0, ((0,), (1,), (2,)), (Split(1, ((0,), (1,), (2,)), (Point(),) * 3),) * 3)
    certificate = SelectionCertificate(problem.sha256(), Optimal((0, 0), 0), proof)
    assert check_selection(problem, certificate).verdict is Verdict.PROVED
    monkeypatch.setattr(budget, "WORK", 1 << 14)
    monkeypatch.setattr(budget, "WORK_PER_NUMBER", 0)
    with pytest.raises(ContainerError, match="too large to be checked"):
        check_selection(problem, certificate)


def test_honest_certificates_are_far_from_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Budget] = []
    real = Budget.of
    monkeypatch.setattr(
        Budget, "of", staticmethod(lambda numbers, whole=None: made.append(real(numbers, whole)) or made[-1])
    )
    for seed in range(20):
        problem = reducible(seed, n=12, k=6)
        answer = solve(problem, threads=1)
        assert answer.certificate is not None
        made.clear()
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
        assert len(made) == 1 and WORK - made[0].work < WORK // 100
