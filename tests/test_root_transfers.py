"""Inputs scattered from a root and outputs gathered to it: every rank gets its box, nobody more, and what it costs."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from array_cases import CASES

from shardproof.__main__ import run
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.reference import run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.movements import root_lines
from shardproof.backends.lowering.program import Load
from shardproof.backends.transport.received import receives
from shardproof.models.communication.resharding import derive
from shardproof.models.communication.root import root_layout, root_transfers, sent_loads
from shardproof.models.layout.layout import Layout
from shardproof.models.machine.machine import load_machine
from shardproof.verify.plan.communication import check_bytes, check_delivers

NAMES = ["matmul m", "matmul m-n-k", "spmv rows", "softmax split", "jacobi rows and columns", "attention by heads"]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_everyone_gets_the_box_and_nobody_more(name: str, ranks: int) -> None:
    traced = CASES[name].traced()
    graph, choices = traced.graph, CASES[name].scheduled(traced, ranks).choices
    machine = load_machine(f"localhost:{ranks}")
    found = list(root_transfers(graph, machine, choices))
    assert {m.tensor for m in found if m.direction == "scatter"} == {n for n in traced.arguments}
    assert [m.tensor for m in found if m.direction == "gather"] == [n for n in graph.outputs if graph.tensor(n).shape]
    for m in found:
        for checked in (check_delivers(m.plan), check_bytes(m.plan, m.plan.loads(), m.plan.phases())):
            assert checked.verdict.value == "proved", (m.tensor, checked.reason)
        size = graph.tensor(m.tensor).element_bytes
        assert m.moved == m.least == size * sum(levels[-1] for levels in receives(m.plan)), m.tensor
        assert m.least == size * sum(len(missing(m, rank)) for rank in range(ranks))


def missing(movement, rank: int) -> set[tuple[int, ...]]:
    """Elements that a rank wants and does not hold, one by one."""

    def elements(layout) -> set[tuple[int, ...]]:
        return set(product(*(range(lo, hi) for lo, hi in layout.box(rank))))

    return elements(movement.plan.target) - elements(movement.plan.source)


def test_the_root_sends_everything_at_the_rate_of_its_own_link() -> None:
    """Rows of a 24 x 36 matrix on 4 ranks: three parts of 6 rows leave the root, one after the other."""
    case = CASES["matmul m"]
    traced, machine = case.traced(), load_machine("localhost:4")
    moves = {m.tensor: m for m in root_transfers(traced.graph, machine, case.scheduled(traced, 4).choices)}
    (level,) = machine.levels
    rows, whole, out = moves["a"], moves["b"], moves["matmul"]
    assert (rows.moved, sent_loads(rows.plan)) == (3 * 6 * 36 * 8, (3 * 6 * 36,))
    assert rows.seconds == Fraction(rows.moved) / level.bandwidth + level.latency
    assert whole.moved == 3 * 36 * 20 * 8
    assert out.seconds == Fraction(18 * 20 * 8) / level.bandwidth + level.latency
    assert [line.partition(" a root")[0] for line in root_lines(tuple(moves.values()))] == [
        "inputs scattered from",
        "outputs gathered to",
    ]


def test_links_between_nodes_carry_an_element_once() -> None:
    """A whole matrix on 2 nodes of 4: one copy crosses, the rest is passed on inside."""
    everywhere = Layout((2, 4), (36, 20), np.tile(np.array([[0, 36], [0, 20]]), (8, 1, 1)))
    plan = derive(root_layout((36, 20), (2, 4)), everywhere)
    assert check_delivers(plan).verdict.value == "proved"
    assert (plan.loads()[0], sent_loads(plan)[0]) == (720, 720)
    assert sum(int(s.transfers.volumes().sum()) for s in plan.steps) == 7 * 720


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import numpy as np\nfrom shardproof import float64\ndef f(x: float64[8, 6]): return np.exp(x)\n"
    (tmp_path / "prog.py").write_text(text)
    plan = str(tmp_path / "p.spz")
    assert run(["plan", f"{tmp_path}/prog.py:f", "--machine", "localhost:4", "-o", plan, "--no-compare"]) == 0
    capsys.readouterr()
    assert run(["run", plan, "-n", "4", "--communication", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["root"]
    assert [(r["tensor"], r["kind"]) for r in rows] == [("x", "scatter"), ("exp", "gather")]
    assert all(r["moved"] == r["bound"] > 0 and r["seconds"] > 0 for r in rows)
    assert run(["run", plan, "-n", "4", "--communication"]) == 0
    assert "outputs gathered to a root, on top where data are there" in capsys.readouterr().out


# --- executed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_programs_run_from_the_root(name: str, ranks: int, overlap: bool) -> None:
    """Rank 0 alone reads and holds results, and what it sends and gets is what is priced."""
    case = CASES[name]
    traced = case.traced()
    choices, graph = case.scheduled(traced, ranks).choices, traced.graph
    program = build_program(graph, (ranks,), choices, Options(overlap=overlap, from_root=True))
    transfers = list(root_transfers(graph, load_machine(f"localhost:{ranks}"), choices))
    moved = {t.tensor for t in transfers}
    for rank, steps in enumerate(program.ranks):
        loads = [s for s in steps if isinstance(s, Load) and s.tensor in moved]
        assert loads and all((rank == 0) == all(lo < hi for lo, hi in s.box) for s in loads)
    for tensor, boxes in program.outputs:
        if tensor in moved:
            assert boxes[0] == tuple((0, n) for n in graph.tensor(tensor).shape)
            assert not any(hi for box in boxes[1:] for _, hi in box)
    values = {n: v.reshape(graph.tensor(n).shape) for n, v in case.values(traced).items()}
    expected, found = run_graph(graph, values), run_virtual(program, values)
    for tensor, want in expected.items():
        np.testing.assert_allclose(found.outputs[tensor], want, rtol=1e-11, atol=1e-11)
    assert all(t.fits for t in found.traffic)
    rooted = found.traffic[len(build_program(graph, (ranks,), choices, Options()).movements) :]
    size = sum(t.bytes[-1] for t in rooted)
    assert size == sum(t.plan.loads()[-1] * graph.tensor(t.tensor).element_bytes for t in transfers) > 0


@pytest.mark.parametrize(
    "ranks",
    ["virtual", pytest.param("mpi", marks=[pytest.mark.mpi, pytest.mark.skipif(not mpi_available(), reason="no MPI")])],
)
def test_the_command_runs_it(ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "import numpy as np\nfrom shardproof import float64\n"
        "def f(x: float64[8, 6], w: float64[6, 4]): return np.exp(x) @ w\n"
    )
    (tmp_path / "prog.py").write_text(text)
    plan = str(tmp_path / "p.spz")
    assert run(["plan", f"{tmp_path}/prog.py:f", "--machine", "localhost:2", "-o", plan, "--no-compare"]) == 0
    line = ["run", plan, "-n", "2", *(["--virtual"] if ranks == "virtual" else []), "--from-root"]
    for backend in ("numpy", "numba") if ranks == "virtual" else ("numpy",):
        capsys.readouterr()
        assert run([*line, "--backend", backend]) == 0
        said = capsys.readouterr().out
        assert "inputs scattered from a root" in said and "outputs gathered to a root" in said
    assert run([*line, "--steps", "2"]) == 2
    assert "--from-root" in capsys.readouterr().err
