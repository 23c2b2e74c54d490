"""Measured operator times and mixed machines: read, priced, recomputed by the checker, and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.formal.explain.cost_table import cost_table, render_cost_table
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.communication.choices import single
from shardproof.models.cost.cost import FORMULAS, Formula, operator_costs
from shardproof.models.cost.forms import operator_form
from shardproof.models.cost.selection import DecisionKind, Planning, build
from shardproof.models.layout.placement import Placement, space
from shardproof.models.machine.machine import DeviceClass, Machine, MachineError, Profile, load_machine
from shardproof.models.machine.text import render, to_toml
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.zoo import TINY
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.entries import operator_entry
from shardproof.verify.plan.plan import check_plan

MIXED = """
name = "mixed"
[[level]]
name = "nodes"
size = 2
bandwidth = "9e9"
latency = "10 us"
[[level]]
name = "gpus"
size = 2
bandwidth = "270 GB/s"
latency = "5 us"
[[device_class]]
name = "new"
memory = "80 GiB"
bandwidth = "2 TB/s"
launch = "2 us"
peaks = { float32 = "20 Tflop/s", float64 = "10 Tflop/s" }
[[device_class]]
name = "old"
memory = "16 GiB"
bandwidth = "0.5 TB/s"
launch = "3 us"
blocks = [1]
peaks = { float32 = "8 Tflop/s", float64 = "4 Tflop/s" }
[[profile]]
function = "product"
dtype = "float32"
extents = [32, 10, 512]
seconds = "71 us"
[[profile]]
function = "relu"
dtype = "float32"
extents = [64, 128]
seconds = "0.4 us"
[sources]
"level.nodes" = "data sheet"
"level.gpus" = "data sheet"
"device_class.new" = "data sheet"
"device_class.old" = "data sheet"
"profile.product" = "measured on the bench"
"profile.relu.float32.64x128.seconds" = "measured twice"
"""


def read(folder: Path, text: str = MIXED) -> Machine:
    (folder / "mixed.toml").write_text(text)
    return load_machine("mixed.toml", folder)


def planned(machine: Machine, name: str = "mlp-unity", **options: int | str) -> Planning:
    return build(zoo(name, **options), machine, space("complete,uneven"))


def wrong_entries(planning: Planning, machine: Machine) -> int:
    """Entries of operators that the checker computes otherwise on `machine`."""
    wrong = 0
    for v, decision in enumerate(planning.decisions):
        if decision.kind is DecisionKind.OPERATOR:
            op = planning.graph.operator(decision.name)
            for i, cost in enumerate(planning.problem.vertices[v].cost.tolist()):
                wrong += cost != operator_entry(op, planning.graph, decision.placement(i), machine)
    return wrong


def test_classes_and_profile_are_read_and_written_back(tmp_path: Path) -> None:
    m = read(tmp_path)
    assert [m.class_of(r).name for r in range(4)] == ["new", "new", "old", "old"]
    assert m.device.name == "new" and m.others[0].blocks == (1,)
    assert m.profiles[0] == Profile("product", "float32", (32, 10, 512), Fraction(71, 10**6))
    assert Machine.from_json(m.to_json()) == m
    again = read(tmp_path, to_toml(m))
    assert again == m and again.sha256() == m.sha256()
    text = render(m)
    assert "nodes 1" in text and "32x10x512" in text and "measured twice" in text and "measured on the bench" in text


def test_a_machine_without_them_keeps_its_form() -> None:
    data = json.loads(load_machine("cloud-a100").to_json())
    assert "profile" not in data and len(data["device_class"]) == 1 and "blocks" not in data["device_class"][0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("blocks = [1]", "", ("2 of 2 classes have no blocks", "new, old", "numbers of 'nodes' from 0")),
        ("blocks = [1]", "blocks = [2]", ("there is no 'nodes' 2", "0 to 1")),
        ("blocks = [1]", "blocks = [0, 1]", ("no device is left",)),
        ("blocks = [1]", "blocks = [1, 0]", ("ascending",)),
        ('name = "old"', 'name = "new"', ("'new' is used twice",)),
        ('function = "relu"', 'function = "rleu"', ("[[profile]] 2, function", "'rleu' is not a function")),
        (
            'dtype = "float32"\nextents = [64, 128]',
            'dtype = "floats"\nextents = [64, 128]',
            ("'floats' is not an element type",),
        ),
        ("extents = [64, 128]", "extents = [64, 0]", ("local extents",)),
        ("extents = [64, 128]", "extents = []", ("local extents",)),
        ('seconds = "0.4 us"', 'seconds = "0.4 ns"\nlaunch = 3', ("'launch'", "is unknown")),
        ('seconds = "0.4 us"', 'seconds = "0.0001 ns"', ("whole number of picoseconds",)),
        ('seconds = "0.4 us"', 'seconds = "0"', ("greater than 0",)),
        (
            '"profile.product" = "measured on the bench"\n',
            "",
            ("has no source", "profile.product.float32.32x10x512.seconds"),
        ),
        (
            "[[profile]]\n",
            (
                '[[profile]]\nfunction = "product"\ndtype = "float32"\nextents = [32, 10, 512]\nseconds = "1 '
                'us"\n[[profile]]\n'
            ),
            ("given twice",),
        ),
    ],
)
def test_wrong_files_name_the_place(tmp_path: Path, old: str, new: str, words: tuple[str, ...]) -> None:
    assert old in MIXED
    with pytest.raises(MachineError) as e:
        read(tmp_path, MIXED.replace(old, new, 1))
    assert all(w in str(e.value) for w in words), str(e.value)


def test_sizes_must_keep_every_class(tmp_path: Path) -> None:
    assert read(tmp_path).resized((4, 2)).class_of(7).name == "new"
    with pytest.raises(MachineError, match="there is no 'nodes' 1"):
        read(tmp_path).resized((1, 2))


def test_a_measured_time_replaces_roofline_and_launch(tmp_path: Path) -> None:
    planning = planned(read(tmp_path), batch=64)
    seen = {f: 0 for f in Formula}
    for name in ("fc2", "relu1"):
        v = planning.operators[name]
        costs = planning.costs[v]
        assert costs is not None
        for i in range(len(costs.times)):
            placement = planning.decisions[v].placement(i)
            split = {a: int(np.prod(row)) for a, row in zip(placement.axes, placement.matrix)}
            seen[FORMULAS[costs.decided[i]]] += 1
            if name == "fc2" and split == {"b": 2, "n": 1, "k": 1}:
                assert costs.times[i] == 71_000_000 and FORMULAS[costs.decided[i]] is Formula.PROFILE
            if name == "relu1" and split == {"b": 1, "n": 4}:
                assert costs.times[i] == 400_000
    assert all(seen.values()) or seen[Formula.COMPUTE] == 0


def test_the_slowest_device_decides(tmp_path: Path) -> None:
    """Even pieces: the old class decides alone.  Rows that only new devices have: theirs against the others' launch."""
    mixed = replace(read(tmp_path), profiles=())
    slow = replace(mixed, device=replace(mixed.others[0], blocks=()), others=())
    a, b = planned(mixed), planned(slow)
    for u, v in zip(a.problem.vertices, b.problem.vertices):
        np.testing.assert_array_equal(u.cost, v.cost)
    graph = zoo("mlp-uneven", batch=2)
    op = graph.operator("fc1")
    placement = Placement(
        ("b", "n", "k"), ((2, 2), (1, 1), (1, 1), (1, 1))
    )  # two rows of the batch: ranks 0 and 1 have them
    form = operator_form(op, graph, placement.axes)
    tables = single(form.axes, placement, (2, 2))
    of_new = max(Fraction(2 * 57 * 131, 20 * 10**12), Fraction(4 * (57 + 57 * 131 + 131), 2 * 10**12)) + Fraction(
        2, 10**6
    )
    of_old = Fraction(4 * 57 * 131, 5 * 10**11) + Fraction(3, 10**6)  # no rows, but the weight is there to be read
    found = operator_costs(form, tables, mixed).times.tolist()
    assert found == [-(-max(of_new, of_old) * 10**12 // 1)]
    assert found == [operator_entry(op, graph, placement, mixed)]
    assert found < operator_costs(form, tables, slow).times.tolist()
    for blocks in ((0,), (1,)):  # wherever the old devices are
        placed = replace(mixed, others=(replace(mixed.others[0], blocks=blocks),))
        assert wrong_entries(planned(placed), placed) == 0


@pytest.mark.parametrize("name", ["mlp-unity", "mlp-uneven", "attention", "xdl", "conv-stack"])
def test_the_checker_computes_the_same_entries(tmp_path: Path, name: str) -> None:
    machine = read(tmp_path)
    planning = planned(machine, name, **({**TINY[name], "dtype": "float32"} if name == "xdl" else {}))
    profiles = []
    for op in planning.graph.operators:  # measured times for one box of every operator, so that all kinds are looked up
        v = planning.operators[op.name]
        placement = planning.decisions[v].placement(len(planning.problem.vertices[v].cost) // 2)
        parts = {a: int(np.prod(row)) for a, row in zip(placement.axes, placement.matrix)}
        order = [*op.output.axes, *(a.name for a in op.reduction_axes)]
        extents = tuple(-(-op.axis(a).extent // parts[a]) for a in order)
        profiles.append(Profile(op.function, "float32", extents, Fraction(1 + len(profiles), 10**5)))
    distinct = {p.path: p for p in profiles}
    measured = replace(machine, profiles=tuple(distinct.values()))
    planning = planned(measured, name, **({**TINY[name], "dtype": "float32"} if name == "xdl" else {}))
    assert wrong_entries(planning, measured) == 0
    assert wrong_entries(planning, replace(measured, profiles=())) > 0
    assert wrong_entries(planning, replace(measured, others=())) > 0
    slower = replace(measured.profiles[0], seconds=measured.profiles[0].seconds + Fraction(1, 10**12))
    assert wrong_entries(planning, replace(measured, profiles=(slower, *measured.profiles[1:]))) > 0


def test_a_plan_on_a_mixed_machine_is_proved_and_explained(tmp_path: Path) -> None:
    result = plan_graph(zoo("mlp-unity", batch=64), read(tmp_path))
    assert result.plan is not None and result.answer.solution is not None
    assert all(c.verdict is Verdict.PROVED for c in check_plan(write_plan(None, result.plan)).results)
    rows = cost_table(result.planning, result.answer.solution)
    assert [r.operator for r in rows] == ["fc1", "relu1", "fc2"]
    assert (
        sum(r.time for r in rows)
        + sum(
            int(
                result.planning.problem.tables[e.table][
                    result.answer.solution[e.u] if e.rows is None else e.rows[result.answer.solution[e.u]],
                    result.answer.solution[e.v] if e.cols is None else e.cols[result.answer.solution[e.v]],
                ]
            )
            for e in result.planning.problem.edges
        )
        == result.answer.cost
    )
    text = render_cost_table(result.planning, rows)
    assert (
        "new: compute = flops / 20 Tflop/s (float32); memory = bytes / 2 TB/s; launch 2 us" in text and "old: " in text
    )


def test_rows_count_flops_and_bytes_of_the_busiest_device() -> None:
    planning = build(zoo("mlp-unity", batch=64), load_machine("localhost:2"), space("complete"))
    v = planning.operators["fc1"]
    whole = next(i for i in range(99) if planning.decisions[v].placement(i).matrix == ((1,), (1,), (1,), (2,)))
    x = [0] * len(planning.decisions)
    x[v] = whole
    row = cost_table(planning, tuple(x))[0]
    assert (row.operator, row.function, row.flops) == ("fc1", "product", 2 * 64 * 784 * 512)
    assert row.bytes == 4 * (64 * 784 + 784 * 512 + 64 * 512)


def test_statistics_are_named() -> None:
    planning = build(zoo("attention", dtype="float32"), load_machine("cloud-a100:1x4"), space("complete"))
    v = planning.operators["attention.softmax"]
    decision = planning.decisions[v]
    split = next(i for i in range(999) if decision.placement(i).matrix[decision.axes.index("t")] == (1, 4))
    x = [0] * len(planning.decisions)
    x[v] = split
    row = next(r for r in cost_table(planning, tuple(x)) if r.operator == "attention.softmax")
    assert row.formula.endswith(" + statistics") and row.statistics > 0


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read(tmp_path)
    assert run(["plan", "mlp-unity", "--machine", "mixed.toml", "--explain-cost", "-o", "p.spz"]) == 0
    shown = capsys.readouterr().out
    assert "formula" in shown and "fc2" in shown and "measured: one of 2 times" in shown
    assert run(["explain", "p.spz", "--cost", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["operators"]
    assert [r["operator"] for r in rows] == ["fc1", "relu1", "fc2"] and all(
        r["time"] == r["busy"] + r["statistics"] for r in rows
    )
    assert run(["plan", "mlp-unity", "--machine", "mixed.toml", "--explain-cost", "-o", "q.spz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"] == rows
    assert run(["explain", "p.spz", "--cost", "--op", "fc1"]) == 2


def test_an_unknown_class_constant_is_a_clear_error(tmp_path: Path) -> None:
    """The slower class lacks the element type: named with its file."""
    machine = read(tmp_path, MIXED.replace(', float64 = "4 Tflop/s"', ""))
    assert isinstance(machine.others[0], DeviceClass)
    with pytest.raises(MachineError, match=r"'old', peaks: no peak for float64"):
        planned(machine, dtype="float64")
