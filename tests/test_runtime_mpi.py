"""Runs on MPI ranks that go wrong, and runs with every switch: nothing hangs, and what failed is named.  Every
start has a time limit.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_mpi import split
from test_runtime import check_chrome, elementwise, two_branches

from shardproof.backends.execution import launch as launching
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import LaunchError, mpi_available, post_mortem, run_job
from shardproof.backends.execution.progress import DONE, START, Death
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.trace import chrome, summary
from shardproof.models.sources.zoo import build

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")]

DYING = """
import ctypes, os, signal, sys, time
from pathlib import Path
from dataclasses import replace
from shardproof.backends.execution import interpreter, rank
from shardproof.backends.kernels.library import OURS
real = OURS.execute

def dying(xp, op, *rest):
    from mpi4py import MPI  # not before the rank has forked its guard
    if op.name == "fc2" and MPI.COMM_WORLD.Get_rank() == 2:
        {how}
    return real(xp, op, *rest)

interpreter.library_of = lambda name: replace(OURS, execute=dying)
rank.main(Path(sys.argv[1]))
"""

WAYS = {
    "raises": ("raise MemoryError('no room')", "MemoryError: no room"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "the process died: Killed"),
    "segmentation fault": ("ctypes.string_at(0)", "the process died: Segmentation fault"),
    "leaves quietly": ("os._exit(0)", "the process ended before its work was done"),
    "dies and the launcher sees nothing": (
        """(Path(sys.argv[1]) / "death.json").write_text('{"process": %d, "status": -9}' % os.getpid()); time.sleep(600)""",
        "the process died: Killed",
    ),
    "hangs": ("time.sleep(600)", "did not come back"),
}


@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=pytest.mark.slow) if w in ("hangs", "segmentation fault") else w for w in sorted(WAYS)],
)
@pytest.mark.timeout(55)
def test_a_rank_that_goes_wrong_is_named(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 of 4 in operator fc2: the job ends within seconds, with rank, operator and tensor."""
    how, reason = WAYS[way]
    script = tmp_path / "dying.py"
    script.write_text(DYING.replace("{how}", how))
    monkeypatch.setattr(launching, "GRACE_S", 1.0)
    real, limit = launching.launch, 4.0 if way == "hangs" else 60.0
    monkeypatch.setattr(launching, "launch", lambda arguments, *rest: real([str(script), arguments[-1]], *rest))
    graph = build("mlp-unity", batch=8, inputs=24, hidden=16, classes=8, dtype="float64")
    with pytest.raises(RankError) as caught:
        run_job(graph, (4,), split(graph, (4,), ("k",)), random_inputs(graph, 0), Options(), limit)
    assert caught.value.rank == 2
    assert caught.value.place == "operator 'fc2', which writes tensor 'fc2'"
    assert reason in caught.value.reason


def test_blame_without_a_word() -> None:
    graph, choices = two_branches()
    program = build_program(graph, (4,), choices, Options())
    table = [[11, 5], [12, 3], [13, DONE], [14, 5]]
    named = post_mortem(program, table, Death(14, -7), "mpiexec ended with code 7")
    assert (
        named is not None
        and (named.rank, named.place) == (3, program.place(program.ranks[3][5]))
        and "Bus error" in named.reason
    )
    late = post_mortem(program, table, None, "4 ranks did not finish within 3 s")
    assert late is not None and late.rank == 1  # the one furthest behind
    early = post_mortem(program, [[11, START]] * 4, Death(11, 3), "")
    assert early is not None and (early.place, early.reason) == ("start", "the process ended with code 3")
    assert post_mortem(program, [[0, START]] * 4, None, "mpiexec ended with code 1") is None


@pytest.mark.parametrize("options", [Options(trace=True), Options(False, False, True)])
def test_runs_with_and_without_the_passes_are_equal_and_traced(options: Options) -> None:
    graph, choices = two_branches()
    values = random_inputs(graph, 1)
    result = run_job(graph, (4,), choices, values, options, 60)
    for name, expected in run_graph(graph, values).items():
        np.testing.assert_allclose(result.outputs[name], expected, rtol=1e-12, atol=1e-12)
    check_chrome(chrome(result.spans, graph.name), 4)
    found = summary(result.spans, 4)
    assert found.flight_s > 0
    assert any(s.kind == "flight" for s in result.spans) == options.overlap


def test_a_fused_program_on_uneven_rows() -> None:
    """37 rows on 4 ranks: softmax and layer norm with epilogue, all of it one loop per rank."""
    graph = elementwise()
    values = random_inputs(graph, 2)
    result = run_job(graph, (4,), split(graph, (4,), ("b",)), values, Options(), 60)
    for name, expected in run_graph(graph, values).items():
        np.testing.assert_allclose(result.outputs[name], expected, rtol=1e-12, atol=1e-12)


SPLIT = """
import numpy as np
from mpi4py import MPI
from shardproof.backends.transport import TransportError
from shardproof.backends.transport.mpi import MpiTransport
from shardproof.backends.transport.patterns import Pattern, PatternKind
from shardproof.backends.transport.requests import AllGather, AllReduce, ReduceScatter, array_of
from shardproof.models.program.index import Combine

t = MpiTransport(MPI.COMM_WORLD, limit=7)
group, rank = (0, 1, 2, 3), MPI.COMM_WORLD.Get_rank()
whole = np.arange(40.0)
assert np.array_equal(t.all_reduce(group, whole + rank, Combine.SUM), 4 * whole + 6)
assert np.array_equal(array_of(t.start(AllReduce(group, whole * (rank + 1), Combine.MAX)).wait()), 4 * whole)
small, counts = np.arange(6.0), (3, 0, 1, 2)  # unequal parts
mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
for scattered in (t.reduce_scatter(group, small + rank, Combine.SUM, counts), array_of(t.start(ReduceScatter(group, small + rank, Combine.SUM, counts)).wait())):
    assert np.array_equal(scattered, (4 * small + 6)[mine])
for gathered in (t.all_gather(group, small[mine], counts), array_of(t.start(AllGather(group, small[mine], counts)).wait())):
    assert np.array_equal(gathered, small)
b = Pattern(PatternKind.BROADCAST, group, 2, ())
out = t.exchange(b, {r: whole for r in group if r != 2} if rank == 2 else {}, {} if rank == 2 else {2: 40}, whole)
assert rank == 2 or np.array_equal(out[2], whole)
for call in (lambda: t.all_gather(group, whole), lambda: t.reduce_scatter(group, np.stack([whole] * 4), Combine.SUM)):
    try:
        call()
    except TransportError as e:
        assert "use more ranks or smaller tensors" in str(e)
    else:
        raise AssertionError("not refused")
"""


def test_messages_beyond_the_limit_are_split_or_refused(tmp_path: Path) -> None:
    """With a limit of 7 elements instead of 2^31: 40 elements go in six pieces, what cannot be split is refused on
    every rank.
    """
    script = tmp_path / "split.py"
    script.write_text(SPLIT)
    launching.launch([str(script)], 4, 60)


def test_a_launcher_error_keeps_its_text(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("raise SystemExit(7)\n")
    with pytest.raises(LaunchError, match=re.compile("mpiexec ended with code", re.IGNORECASE)):
        launching.launch([str(script)], 2, 60)
