"""Schedules carried from a few operators to the rest: nearest first, conflicts with both names, and the command
line around them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from array_cases import CASES, check_outputs

from shardproof.__main__ import run
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.given import plan_strategy
from shardproof.formal.plans.plan import PlacementJob, plan_graph
from shardproof.formal.plans.schedules import ScheduleConflict, propagate
from shardproof.formal.plans.strategy import StrategyError, parse_strategy
from shardproof.models.communication.choices import check_choices
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program import opaque
from shardproof.models.program.graph import Graph
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import trace
from shardproof.models.sources.training.step import training_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.verify.selection.certificate import check_selection

PROGRAM = str(Path(__file__).parent / "programs" / "prog.py")


def chain(x, a, b, c):
    first = x @ a
    second = first @ b
    return second @ c


def graph_of(function, **shapes) -> Graph:
    return trace(function, "g", {n: ArraySpec(s) for n, s in shapes.items()}).graph


CHAIN = graph_of(chain, x=(8, 8), a=(8, 16), b=(16, 16), c=(16, 8))


def words(graph: Graph, machine: str, strategy: dict) -> dict[str, str]:
    target = load_machine(machine)
    done = propagate(graph, target, parse_strategy(json.dumps(strategy)))
    check_choices(graph, target.hierarchy, done.choices)
    levels = [level.name for level in target.levels]
    return {
        n: p.words(levels) for n, p in (*done.choices.operators, *(("tensor:" + n, p) for n, p in done.choices.copies))
    }


def test_a_split_follows_the_elements() -> None:
    everywhere = words(CHAIN, "localhost:4", {"first": {"m": {"0": 4}}})
    assert everywhere == {
        "first": "m over ranks",
        "second": "m over ranks",
        "matmul": "m over ranks",
        "tensor:matmul": "0 over ranks",
    }
    megatron = words(CHAIN, "localhost:4", {"first": {"n": {"0": 4}}})
    assert megatron == {
        "first": "n over ranks",
        "second": "k over ranks",
        "matmul": "replicated over ranks",
        "tensor:matmul": "replicated over ranks",
    }


def test_levels_are_carried_one_by_one() -> None:
    both = words(CHAIN, "cloud-a100:2x4", {"first": {"m": {"0": 2}, "n": {"1": 4}}})
    assert both == {
        "first": "m over nodes, n over gpus",
        "second": "m over nodes, k over gpus",
        "matmul": "m over nodes, replicated over gpus",
        "tensor:matmul": "0 over nodes, replicated over gpus",
    }


def test_the_nearest_schedule_wins() -> None:
    far = graph_of(lambda x: [x := x + k for k in range(4)][-1], x=(8, 8))
    names = [op.name for op in far.operators]
    carried = words(far, "localhost:4", {names[0]: {"i0": {"0": 4}}, names[3]: {"i1": {"0": 4}}})
    assert [carried[n] for n in names] == ["i0 over ranks", "i0 over ranks", "i1 over ranks", "i1 over ranks"]


def test_a_conflict_names_both_operators() -> None:
    with pytest.raises(
        ScheduleConflict, match=r"'second': 'first' asks for axis 'm' 2 over ranks, 'matmul' for axis 'm' 4 over ranks"
    ) as error:
        words(CHAIN, "localhost:8", {"first": {"m": {"0": 2}}, "matmul": {"m": {"0": 4}}})
    assert {(c.name, c.first, c.second) for c in error.value.conflicts} == {("second", "first", "matmul")}
    three = graph_of(lambda x: [x := x + k for k in range(3)][-1], x=(8, 8))
    a, b, c = (op.name for op in three.operators)
    with pytest.raises(
        ScheduleConflict, match=rf"'{b}': '{a}' asks for axis 'i0' 4 over ranks, '{c}' for axis 'i1' 4 over ranks"
    ):
        words(three, "localhost:4", {a: {"i0": {"0": 4}}, c: {"i1": {"0": 4}}})
    assert words(three, "localhost:4", {a: {"i0": {"0": 4}}, b: {}, c: {"i1": {"0": 4}}})[b] == "replicated over ranks"


def test_keys_and_axes_are_checked() -> None:
    for strategy, message in (
        ({"nothing": {}}, "matches nothing"),
        ({"first": {"q": {"0": 4}}}, "no axis 'q'; axes|no axis 'q'"),
        ({"first": {"m": {"0": 3}}}, "does not divide"),
    ):
        with pytest.raises(StrategyError, match=message):
            words(CHAIN, "localhost:4", strategy)


@pytest.mark.parametrize("name", ["bert-tiny", "conv-stack", "mlp-uneven", "transformer-layer"])
def test_one_schedule_is_carried_through_a_model(name: str) -> None:
    graph = zoo(name)
    first = graph.operators[0]
    axis = first.output.axes[0]
    target = load_machine("localhost:2")
    done = propagate(graph, target, parse_strategy(json.dumps({first.name: {axis: {"0": 2}}})))
    check_choices(graph, target.hierarchy, done.choices)
    assert len(done.replicated) < len(graph.operators) / 2


def test_a_given_schedule_becomes_a_plan_with_its_gap() -> None:
    target = load_machine("localhost:4")
    planned, carried = plan_strategy(parse_strategy('{"first": {"n": {"0": 4}}}'), PlacementJob(CHAIN, target))
    assert planned.plan is not None and planned.plan.choices == carried.choices
    assert planned.answer.lower_bound <= planned.answer.cost
    best, _ = plan_strategy(parse_strategy('{"first": {"m": {"0": 4}}}'), PlacementJob(CHAIN, target))
    assert best.answer.lower_bound == planned.answer.lower_bound


@pytest.fixture
def shardproof(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, dict[str, object], str]:
        code = run([*arguments, "--json"])
        seen = capsys.readouterr()
        return code, json.loads(seen.out) if seen.out else {}, seen.err

    return call


def test_the_gap_of_a_given_schedule_is_the_whole_gap() -> None:
    """Where the optimum is proved and the given schedule is far from it: the bound is the optimum's cost, not
    what labels fixed to beat it leave.
    """
    graph, machine = training_step(zoo("attention", batch=8), "adam"), load_machine("cloud-a100:2x2")
    planned, _ = plan_strategy(parse_strategy('{"*": {"b": {"1": 2}}}'), PlacementJob(graph, machine))
    best = plan_graph(graph, machine).answer
    answer = planned.answer
    assert answer.certificate is not None and best.cost is not None
    assert answer.lower_bound == best.cost < (answer.cost or 0)
    assert check_selection(planned.planning.problem, answer.certificate).verdict is Verdict.PROVED


def test_from_a_numpy_function_to_a_run(shardproof) -> None:
    code, document, _ = shardproof("plan", f"{PROGRAM}:matmul", "--machine", "localhost:8", "-o", "p.spz")
    assert (code, document["status"]) == (0, "optimal")
    assert shardproof("check", "p.spz")[0] == 0
    code, ran, _ = shardproof("run", "p.spz", "-n", "8", "--virtual")
    assert code == 0 and ran["equal"] and ran["bytes_counted_equal_priced"]


def test_schedules_by_hand(shardproof, tmp_path: Path) -> None:
    split_sum = tmp_path / "s.json"
    split_sum.write_text('{"matmul": {"k": {"ranks": 4}}}')
    code, audited, _ = shardproof(
        "audit", f"{PROGRAM}:matmul", "--machine", "localhost:4", "--strategy", "s.json", "--propagate"
    )
    assert code == 10 and audited["completed_by_solver"] == []
    code, planned, _ = shardproof(
        "plan", f"{PROGRAM}:matmul", "--machine", "localhost:4", "--strategy", "s.json", "-o", "p.spz"
    )
    assert code == 5 and planned["cost"] == audited["strategy_cost"] and planned["lower_bound"] == audited["best_cost"]
    assert shardproof("check", "p.spz")[0] == 0
    code, ran, _ = shardproof("run", "p.spz", "-n", "4", "--virtual")
    assert code == 0 and list(ran["bytes"]) == ["all-reduce"]
    rows = tmp_path / "r.json"
    rows.write_text('{"matmul": {"m": {"ranks": 4}}}')
    code, planned, _ = shardproof(
        "plan", f"{PROGRAM}:matmul", "--machine", "localhost:4", "--strategy", "r.json", "-o", "q.spz"
    )
    assert (code, planned["status"]) == (0, "optimal")


def test_a_file_of_a_package_and_a_schedule_that_does_not_divide(shardproof, tmp_path: Path) -> None:
    """The programs of the zoo by their file, although it imports its neighbours; 16,385 pointers on 8 ranks need
    the space with uneven splits.
    """
    source = str(Path(__file__).resolve().parent.parent / "models" / "sources" / "zoo" / "array_programs.py")
    (tmp_path / "s.json").write_text('{"length": {"i0": {"ranks": 8}}}')
    code, planned, err = shardproof(
        "plan", f"{source}:spmv", "--machine", "localhost:8", "--strategy", "s.json", "-o", "p.spz"
    )
    assert code in (0, 5) and planned["space"] == "complete,uneven", err
    code, _, err = shardproof(
        "plan",
        f"{source}:spmv",
        "--machine",
        "localhost:8",
        "--strategy",
        "s.json",
        "--space",
        "complete",
        "-o",
        "p.spz",
    )
    assert code == 3 and "outside the space" in err


def test_the_users_kernel_runs_as_it_is(shardproof) -> None:
    assert shardproof("plan", f"{PROGRAM}:attention", "--machine", "localhost:4", "-o", "a.spz")[0] == 0
    assert shardproof("check", "a.spz")[0] == 0
    code, ran, _ = shardproof("run", "a.spz", "-n", "4", "--virtual")
    assert code == 0 and ran["equal"]


def test_what_the_command_line_says_of_programs_it_cannot_take(shardproof, tmp_path: Path) -> None:
    code, _, err = shardproof("plan", f"{PROGRAM}:unsupported", "--machine", "localhost:4", "-o", "p.spz")
    assert code == 3 and "np.sort (1: prog.py:" in err and "np.linalg.norm" in err
    code, _, err = shardproof("plan", f"{PROGRAM}:conditional", "--machine", "localhost:4", "-o", "p.spz")
    assert code == 3 and "prog.py:" in err and "depends on the data" in err
    (tmp_path / "s.json").write_text('{"e": {"i0": {"ranks": 2}}, "top": {"i0": {"ranks": 4}}}')
    code, _, err = shardproof(
        "plan", f"{PROGRAM}:softmax", "--machine", "localhost:4", "--strategy", "s.json", "-o", "p.spz"
    )
    assert code == 3 and "'subtract': 'e' asks for axis 'i0' 2 over ranks, 'top' for axis 'i0' 4 over ranks" in err
    code, _, err = shardproof(
        "plan", "shardproof.models.sources.zoo.no_such:f", "--machine", "localhost:4", "-o", "p.spz"
    )
    assert code == 3 and "no_such" in err


@pytest.mark.parametrize(
    "name",
    [
        "matmul m-n-k",
        "softmax whole",
        "attention by heads",
        "fused projections by heads",
        "jacobi rows",
        "convolutions by rows",
        "monte carlo",
    ],
)
def test_found_schedules_run(name: str) -> None:
    """Full search through the selection engine, executed: the plain function is the oracle."""
    case = CASES[name]
    traced = case.traced()
    planned = plan_graph(traced.graph, load_machine("localhost:4"))
    assert planned.plan is not None and planned.answer.cost == planned.answer.lower_bound
    values = case.values(traced)
    digits = {n: v.reshape(traced.graph.tensor(n).shape) for n, v in values.items()}
    result = run_virtual(lower(traced.graph, (4,), planned.plan.choices), digits)
    check_outputs(traced, result.outputs, case.expected(values))


def test_a_diagonal_over_two_levels_is_priced_as_it_moves(shardproof, tmp_path: Path) -> None:
    """One axis through two dimensions: the boxes below a node are no product of intervals.  Prices took them for
    one, and the self-check refused the plan.
    """
    (tmp_path / "diagonal.py").write_text(
        "import numpy as np\nfrom shardproof import float64\n\n\ndef f(x: float64[16, 16]):\n    y = np.exp(x)\n  "
        "  return np.einsum('ij,ij->i', y, y) + np.einsum('ii->i', y)\n"
    )
    for machine in ("cloud-a100:2x4", "cloud-a100:2x2"):
        code, planned, err = shardproof("plan", "diagonal.py:f", "--machine", machine, "-o", "d.spz")
        assert (code, planned.get("status")) == (0, "optimal"), err


def test_a_kernel_that_is_not_here_is_refused_before_ranks_start(
    shardproof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "import numpy as np\nfrom shardproof import float64, opaque\n\n\n@opaque(reference=np.exp)\ndef "
        "kernel(x):\n    return np.exp(x)\n\n\n"
        "def f(x: float64[16]):\n    return kernel(x) + 1\n"
    )
    assert shardproof("plan", "elsewhere.py:f", "--machine", "localhost:2", "-o", "e.spz")[0] == 0
    monkeypatch.delitem(opaque._REGISTRY, "elsewhere:kernel")
    monkeypatch.delitem(sys.modules, "elsewhere")
    code, _, err = shardproof("run", "e.spz", "-n", "2", "--virtual")
    assert code == 3 and "'elsewhere:kernel'" in err and "--allow-kernel elsewhere:kernel" in err
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != tmp_path.resolve()])
    code, _, err = shardproof("run", "e.spz", "-n", "2", "--virtual", "--allow-kernel", "elsewhere:kernel")
    assert code == 3 and "'elsewhere:kernel' cannot be loaded" in err and "PYTHONPATH" in err
    monkeypatch.syspath_prepend(str(tmp_path))
    assert shardproof("run", "e.spz", "-n", "2", "--virtual", "--allow-kernel", "elsewhere:kernel")[0] == 0
