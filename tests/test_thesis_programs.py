"""The ten programs of the thesis as it prints them: read, scheduled as its text says, and equal to NumPy on 1 to 8 ranks.

Every resharding is proved to deliver.  Bytes are compared with what ranks must receive and do not hold: the programs
that move more are listed with the reason.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from thesis_cases import SCHEDULES, Printed, printed

from shardproof.backends.execution.job import write_job
from shardproof.backends.execution.launch import launch
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.backends.lowering.traffic import traffic
from shardproof.models.sources.numpy.recorder import TraceError
from shardproof.models.sources.numpy.trace import trace
from shardproof.verify.plan.communication import check_bytes, check_delivers

BAR = 2e-6
"""Of float32 sums of a few hundred numbers, beside the largest result."""
EXCESS = {"step": "ranks without a part take part in the sum"}  # 5 columns on 4 and 8 ranks
"""Programs that move more than the least, and why."""


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_to_numpy_and_fewest_bytes(name: str, ranks: int) -> None:
    case = Printed.of(name, ranks)
    program = lower(case.traced.graph, (ranks,), case.done.choices)
    result = run_virtual(program, case.digits())
    assert case.difference(result.outputs) <= BAR
    assert all(t.fits for t in result.traffic)
    for m in program.movements:
        for checked in (check_delivers(m.plan), check_bytes(m.plan, m.plan.loads(), m.plan.phases())):
            assert checked.verdict.value == "proved", (m.tensor, checked.reason)
    for t in traffic(case.traced.graph, (ranks,), case.done.choices):
        assert t.moved >= t.bound
        assert t.moved == t.bound or EXCESS.get(name, "moves the least") in "; ".join(t.reasons), (
            t.tensor,
            t.moved,
            t.bound,
            t.reasons,
        )


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [pytest.param(k, marks=pytest.mark.slow) if k == 4 else k for k in (2, 4)])
def test_mpi_ranks_give_the_same(ranks: int, tmp_path: Path) -> None:
    cases = [Printed.of(name, ranks) for name in SCHEDULES]
    for case in cases:
        (tmp_path / case.name).mkdir()
        write_job(tmp_path / case.name, case.traced.graph, (ranks,), case.done.choices, case.digits())
    launch([str(Path(__file__).parent / "mpi_jobs.py"), *(str(tmp_path / c.name) for c in cases)], ranks, 120)
    for case in cases:
        names = list(case.traced.graph.outputs)
        outputs = {t: np.load(tmp_path / case.name / f"outputs/{n}.npy") for n, t in enumerate(names)}
        assert case.difference(outputs) <= BAR, case.name


def test_misprints_are_refused_by_name() -> None:
    """`unstable_softmax` reads `input`, which is no argument of it in print."""

    def unstable_softmax(X: object) -> object:
        return np.exp(input)  # type: ignore[call-overload]

    with pytest.raises(TraceError, match=r"test_thesis_programs\.py:\d+: TypeError"):
        trace(unstable_softmax, "unstable_softmax", {"X": (8, 32)})


def test_notes_say_what_the_program_leaves_to_others() -> None:
    notes = trace(printed().runs_on_gpu).notes
    assert [n.partition(" ")[0] for n in notes] == ["StorageType.GPU_Global", "ScheduleType.GPU_Device"]
    (note,) = trace(printed().spmv).notes
    assert "must ascend" in note
