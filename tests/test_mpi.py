"""The same programs on MPI ranks: a few smoke tests, failures included.  Marked `mpi`; skipped where MPI is not
installed.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.launch import (
    CROWDED,
    LaunchError,
    cores,
    environment,
    launch,
    mpi_available,
    run_mpi,
)
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.transport import TransportError
from shardproof.backends.transport.mpi import check_counts
from shardproof.models.communication.choices import Choices, needs_copy
from shardproof.models.layout.classes import axis_orders
from shardproof.models.layout.placement import Placement
from shardproof.models.program.graph import Graph
from shardproof.models.sources.zoo import build

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")]


def split(graph: Graph, hierarchy: tuple[int, ...], axes: tuple[str, ...]) -> Choices:
    """Every operator and copy splits level j over the first of `axes[j:]` that it has; else it replicates."""
    orders = axis_orders(graph)

    def one(order: tuple[str, ...], has: set[str]) -> Placement:
        rows = [[1] * len(hierarchy) for _ in (*order, "replicated")]
        for j, size in enumerate(hierarchy):
            wanted = next((a for a in axes[j:] if a in has), None)
            rows[len(order) if wanted is None else order.index(wanted)][j] = size
        return Placement(order, tuple(tuple(r) for r in rows))

    operators = tuple(
        (op.name, one(orders[op.name], {a.name for a in op.axes if a.splittable})) for op in graph.operators
    )
    copies = [t.name for t in graph.tensors if t.name in needs_copy(graph)]
    return Choices(operators, tuple((t, one(orders["tensor:" + t], {"0"})) for t in copies))


@pytest.mark.parametrize(
    ("name", "options", "hierarchy", "axes"),
    [
        ("bert-tiny", {"batch": 4, "layers": 1}, (2, 4), ("b", "h", "f", "t", "m")),
        ("conv-stack", {"batch": 3, "size": 17, "dtype": "float64"}, (2, 2), ("y", "o", "c")),
        ("mlp-uneven", {"batch": 5, "dtype": "float64"}, (4, 2), ("b", "k", "n")),
        (
            "mlp-unity-training",
            {"batch": 8, "inputs": 20, "hidden": 12, "classes": 4, "dtype": "float64"},
            (4,),
            ("n", "k"),
        ),
    ],
)
def test_equal_to_the_reference(
    name: str, options: dict[str, int], hierarchy: tuple[int, ...], axes: tuple[str, ...]
) -> None:
    graph = build(name, **options)
    values = random_inputs(graph, 4)
    out = run_mpi(graph, hierarchy, split(graph, hierarchy, axes), values)
    for t, expected in run_graph(graph, values).items():
        np.testing.assert_allclose(out[t], expected, rtol=1e-10, atol=1e-10)


COLLECTIVES = """
import numpy as np
from mpi4py import MPI
from shardproof.backends.transport.mpi import MpiTransport
from shardproof.backends.transport.patterns import patterns
from shardproof.backends.execution.steps import Flight, reshard, reshard_steps
from shardproof.models.communication.resharding import derive
from shardproof.models.layout.layout import Layout

def layout(*intervals):
    return Layout((4,), (8,), np.array([[i] for i in intervals]))

QUARTERS = layout((0, 2), (2, 4), (4, 6), (6, 8))
WHOLE = layout(*[(0, 8)] * 4)
ROOT = layout((0, 8), (0, 0), (0, 0), (0, 0))
STRIPES = Layout((4,), (4, 4), np.array([[[r, r + 1], [0, 4]] for r in range(4)]))
CROSSED = Layout((4,), (4, 4), np.array([[[0, 4], [r, r + 1]] for r in range(4)]))
SHIFTED = layout((6, 8), (0, 3), (1, 5), (4, 8))
seen = []
for a, b in [(QUARTERS, WHOLE), (ROOT, WHOLE), (ROOT, QUARTERS), (QUARTERS, SHIFTED), (SHIFTED, QUARTERS), (QUARTERS, ROOT), (STRIPES, CROSSED)]:
    plan = derive(a, b)
    transport = MpiTransport(MPI.COMM_WORLD)
    whole = np.arange(float(np.prod(a.shape))).reshape(a.shape)
    mine, wanted = (whole[tuple(slice(*i) for i in x.box(transport.rank))] for x in (a, b))
    for run in (reshard, lambda xp, t, p, x: Flight(t, reshard_steps(xp, t.rank, p, x)).finish()):
        out = run(np, transport, plan, mine)
        assert np.array_equal(out, wanted), (a.boxes, b.boxes, out)
    seen.append(patterns(plan.steps[0])[0].kind.value)
assert seen == ["all-gather", "broadcast", "scatter", "neighbours", "neighbours", "gather", "all-to-all"], seen
"""


def test_every_pattern_over_mpi(tmp_path: Path) -> None:
    script = tmp_path / "collectives.py"
    script.write_text(COLLECTIVES)
    launch([str(script)], 4, 60)


def left_behind(folder: Path) -> list[str]:
    """Shared memory that ranks of a job noted and that is still there; they must have noted some."""
    noted = [line.split(" ", 1) for f in folder.glob("segments-*") for line in f.read_text().splitlines()]
    assert noted or not Path("/proc/self/maps").exists(), "no rank noted its shared memory"
    return [name for number, name in noted if Path(name).exists() and str(Path(name).stat().st_ino) == number]


FAILING = """
import sys
from pathlib import Path
from dataclasses import replace
from shardproof.backends.execution import interpreter, rank
from shardproof.backends.kernels.library import OURS
real = OURS.execute

def broken(xp, op, *rest):
    from mpi4py import MPI  # not before the rank has forked its guard
    if op.name == "relu1" and MPI.COMM_WORLD.Get_rank() == 2:
        raise ValueError("out of luck")
    return real(xp, op, *rest)

interpreter.library_of = lambda name: replace(OURS, execute=broken)
rank.main(Path(sys.argv[1]))
"""


@pytest.mark.timeout(50)
def test_one_failing_rank_ends_the_job_and_is_named(tmp_path: Path) -> None:
    from shardproof.backends.execution.job import read_error, write_job

    graph = build("mlp-unity", batch=8, inputs=24, hidden=16, classes=8, dtype="float64")
    (tmp_path / "job").mkdir()
    write_job(tmp_path / "job", graph, (4,), split(graph, (4,), ("k",)), random_inputs(graph, 0))
    (tmp_path / "failing.py").write_text(FAILING)
    with pytest.raises(LaunchError, match="mpiexec ended with code"):
        launch([str(tmp_path / "failing.py"), str(tmp_path / "job")], 4, 60, tmp_path / "job")
    assert not left_behind(tmp_path / "job")
    error = read_error(tmp_path / "job")
    assert isinstance(error, RankError)
    assert (error.rank, error.place, error.reason) == (
        2,
        "operator 'relu1', which writes tensor 'relu1'",
        "ValueError: out of luck",
    )


def test_a_rank_that_hangs_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "sleep.py"
    script.write_text(f"import os, time\nopen({str(tmp_path)!r} + '/pid.' + str(os.getpid()), 'w')\ntime.sleep(600)\n")
    with pytest.raises(LaunchError, match="2 ranks did not finish within 3 s"):
        launch([str(script)], 2, 3)
    started = [int(p.suffix[1:]) for p in tmp_path.glob("pid.*")]
    assert len(started) == 2
    deadline = time.monotonic() + 10
    while any(_alive(p) for p in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(p) for p in started)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ranks_sleep_while_they_wait_only_where_cores_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a core each, a sleep per piece of a message is what a resharding would cost
    (`tests/benchmarks/message_waits.py`).
    """
    for name in CROWDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert not CROWDED.keys() & environment(2).keys()
    assert CROWDED.items() <= environment(3).items()
    monkeypatch.setenv("MPIR_CVAR_ENABLE_HEAVY_YIELD", "0")
    assert environment(3)["MPIR_CVAR_ENABLE_HEAVY_YIELD"] == "0", "the caller's own setting stays"
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert cores() == 1, "no system without affinity is refused"


def test_a_wrong_number_of_ranks_is_refused(tmp_path: Path) -> None:
    from shardproof.backends.execution.job import read_error, write_job

    graph = build("mlp-unity", batch=8, inputs=8, hidden=8, classes=8, dtype="float64")
    write_job(tmp_path, graph, (4,), split(graph, (4,), ("k",)), random_inputs(graph, 0))
    with pytest.raises(LaunchError):
        launch(["-m", "shardproof.backends.execution.rank", str(tmp_path)], 2, 60, tmp_path)
    assert not left_behind(tmp_path)
    assert "the plan has 4 devices, MPI started 2 ranks" in str(read_error(tmp_path))


def test_a_launcher_of_another_mpi_is_named(tmp_path: Path) -> None:
    """Seen where Open MPI's mpi4py met MPICH's mpiexec: every rank is alone."""
    from shardproof.backends.execution.job import read_error, write_job

    graph = build("mlp-unity", batch=8, inputs=8, hidden=8, classes=8, dtype="float64")
    write_job(tmp_path, graph, (4,), split(graph, (4,), ("k",)), random_inputs(graph, 0))
    with pytest.raises(LaunchError):
        launch(["-m", "shardproof.backends.execution.rank", str(tmp_path)], 1, 60, tmp_path)
    assert not left_behind(tmp_path)
    message = str(read_error(tmp_path))
    assert "MPI started 1 rank; if mpiexec was told 4, it belongs to another MPI than mpi4py, which uses " in message
    assert re.search(r"which uses \w+", message)


def test_buffers_beyond_the_count_limit_are_refused() -> None:
    check_counts([1 << 30, (1 << 30) - 1])
    with pytest.raises(TransportError, match="2147483648 elements in one MPI buffer"):
        check_counts([1 << 30, 1 << 30])
