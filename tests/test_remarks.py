"""Remarks on plans: which ones are made for which plans, and every number in them computed a second time.

Blocks are counted device by device from the formulas of layouts alone (digits, ranks, ceilings); prices are those of
plans made anew in the space and on the machine that the remark names; peaks are those of a problem with memory rows.
"""

from __future__ import annotations

import json
from fractions import Fraction
from math import ceil, gcd
from pathlib import Path

import pytest
from budgets import limited, work

from shardproof.__main__ import run
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.remark_prices import smaller_machines, waste
from shardproof.formal.plans.remarks import MOST, Batch, Kind, Remark, remarks
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import Placement, space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.sources.zoo import default_batch

MIXED = """
name = "mixed"
[[level]]
name = "nodes"
size = 3
bandwidth = "10 GB/s"
latency = "10 us"
[[level]]
name = "gpus"
size = 2
bandwidth = "100 GB/s"
latency = "5 us"
[[device_class]]
name = "old"
memory = "16 GiB"
bandwidth = "1 GB/s"
blocks = [2]
peaks = {float32 = "1 Gflop/s", float64 = "1 Gflop/s", int32 = "1 Gflop/s", bool = "1 Gflop/s"}
[[device_class]]
name = "new"
memory = "80 GiB"
bandwidth = "2000 GB/s"
peaks = {float32 = "20 Tflop/s", float64 = "10 Tflop/s", int32 = "20 Tflop/s", bool = "20 Tflop/s"}
[sources]
"level.nodes" = "made"
"level.gpus" = "made"
"device_class.old" = "made"
"device_class.new" = "made"
"""

TRIFLE = {"batch": 3, "inputs": 3, "hidden": 3, "classes": 3}
"""Sizes of an mlp-unity that eight devices do not divide."""

FEWER, UNEVEN, REPEATED, SPACE, BATCH, MEMORY, TOO_LARGE = (
    Kind.FEWER,
    Kind.UNEVEN,
    Kind.REPEATED,
    Kind.SPACE,
    Kind.BATCH,
    Kind.MEMORY,
    Kind.TOO_LARGE,
)

TABLE: tuple[tuple[str, str, int | None, str | None, tuple[Kind, ...]], ...] = (
    (
        "bert-tiny",
        "localhost:7",
        None,
        None,
        (FEWER, UNEVEN, REPEATED, BATCH),
    ),  # the issue's: proved optimal, at the time of one device
    ("bert-tiny", "localhost:5", None, None, (FEWER, UNEVEN, REPEATED, BATCH)),
    ("bert-tiny", "localhost:6", None, None, (FEWER, UNEVEN, REPEATED, BATCH)),
    ("bert-tiny", "localhost:7", 14, None, ()),
    ("bert-tiny", "localhost:8", None, None, (BATCH,)),
    ("bert-tiny", "localhost:8", 8, None, ()),
    ("bert-tiny", "localhost:8", 1, None, ()),
    ("bert-tiny", "localhost:1", 8, None, ()),
    ("bert-tiny", "localhost:8", 8, "one-per-level", (SPACE,)),
    ("bert-tiny", "localhost:7", 14, "one-per-level", ()),  # seven is prime: the same plans
    ("bert-tiny", "cloud-a100:1x8", 8, None, ()),
    ("bert-tiny", "cloud-a100:1x7", 7, None, ()),  # a level of size one
    ("bert-tiny", "cloud-a100:1x6", 8, None, (FEWER, UNEVEN, REPEATED, BATCH)),
    ("bert-large", "cloud-a100:4x8", None, "one-per-level", (SPACE, BATCH)),
    ("mlp-uneven", "localhost:8", 13, "complete,uneven", ()),
    ("mlp-unity", "localhost:4", 13, None, (BATCH,)),  # prime; features divide
    ("mlp-unity", "localhost:4", 13, "complete,uneven", ()),
    ("mlp-uneven", "localhost:4", 13, None, (FEWER, UNEVEN, REPEATED, BATCH)),  # nothing divides
)


def planned(
    graph: Graph, machine: Machine, where: str | None, memory: int | None = None
) -> tuple[Planning, tuple[int, ...]]:
    found = plan_graph(graph, machine, None if where is None else space(where), memory, limit=limited(60.0))
    assert found.answer.solution is not None
    return found.planning, found.answer.solution


def numbers(remark: Remark) -> dict[str, int | str]:
    return dict(remark.numbers)


def boxes(axes: dict[str, int], p: Placement, hierarchy: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    """What the devices compute, empty boxes left out: ranks of axes from the digits of every device's coordinates."""
    devices = 1
    for h in hierarchy:
        devices *= h
    found = set()
    for device in range(devices):
        coordinates, rest = [], device
        for h in reversed(hierarchy):
            rest, c = divmod(rest, h)
            coordinates.insert(0, c)
        ranks, degrees = [0] * len(p.matrix), [1] * len(p.matrix)
        for j, c in enumerate(coordinates):
            digits = []
            for row in reversed(p.matrix):
                c, digit = divmod(c, row[j])
                digits.insert(0, digit)
            for i, digit in enumerate(digits):
                ranks[i], degrees[i] = ranks[i] * p.matrix[i][j] + digit, degrees[i] * p.matrix[i][j]
        box = []
        for a, rank, degree in zip(p.axes, ranks, degrees, strict=False):
            c = ceil(Fraction(axes[a], degree))
            box.append((rank * c, min(axes[a], (rank + 1) * c)))
        if all(low < high for low, high in box):
            found.add(tuple(box))
    return found


def shares(planning: Planning, x: tuple[int, ...]) -> tuple[Fraction, Fraction]:
    """Time-weighted shares of devices without work of their own: under the plan, and under each operator's best
    choice.
    """
    n, chosen, least, total = planning.machine.devices, Fraction(0), Fraction(0), 0
    for op in planning.graph.operators:
        v = planning.operators[op.name]
        axes, decision, time = (
            {a.name: a.extent for a in op.axes},
            planning.decisions[v],
            int(planning.problem.vertices[v].cost[x[v]]),
        )
        mine = len(boxes(axes, decision.placement(x[v]), planning.machine.hierarchy))
        best = max(
            len(boxes(axes, decision.placement(k), planning.machine.hierarchy)) for k in range(len(decision.placements))
        )
        chosen, least, total = chosen + time * Fraction(n - mine, n), least + time * Fraction(n - best, n), total + time
    return chosen / total, least / total


@pytest.mark.parametrize(("model", "machine", "batch", "where", "kinds"), TABLE)
def test_kinds(model: str, machine: str, batch: int | None, where: str | None, kinds: tuple[Kind, ...]) -> None:
    size = default_batch(model) if batch is None else batch
    assert size is not None
    graph = zoo(model, layers=2, batch=size) if model == "bert-large" else zoo(model, batch=size)
    planning, x = planned(graph, load_machine(machine), where)
    found = remarks(planning, x, Batch(size, batch is None))
    assert tuple(r.kind for r in found) == kinds
    assert len(found) <= MOST
    cost = Fraction(planning.problem.cost_of(x), planning.problem.scale)
    for r in found:
        told = numbers(r)
        match r.kind:
            case Kind.FEWER:
                part = planning.machine.resized([int(n) for n in str(told["hierarchy"]).split("x")])
                small, y = planned(graph, part, str(told["space"]))
                assert (part.devices, planning.machine.devices) == (told["devices"], told["of"])
                assert (
                    Fraction(str(told["price"]))
                    == Fraction(small.problem.cost_of(y), small.problem.scale)
                    <= cost
                    == Fraction(str(told["cost"]))
                )
            case Kind.UNEVEN:
                small, y = planned(graph, planning.machine, str(told["space"]))
                assert Fraction(str(told["price"])) == Fraction(small.problem.cost_of(y), small.problem.scale) < cost
                assert f"--space {told['space']}" in r.words
            case Kind.REPEATED:
                assert (Fraction(str(told["share"])), Fraction(str(told["least_share"]))) == shares(planning, x)
            case Kind.SPACE:
                assert (told["space"], told["usual"]) == (where, "complete")
                assert (
                    space(str(told["usual"]))
                    and build(graph, planning.machine, space("complete")).problem.vertices[1].cost.size
                    > planning.problem.vertices[1].cost.size
                )
            case Kind.BATCH:
                n = planning.machine.devices
                assert (
                    told["divides_over"]
                    == max(d for d in range(1, n + 1) if n % d == 0 and size % d == 0)
                    == gcd(size, n)
                )
                assert int(told["below"]) % n == int(told["above"]) % n == 0
                assert (
                    int(told["above"]) - n < size <= int(told["above"])
                    and int(told["below"]) <= size < int(told["below"]) + n
                )
            case Kind.MEMORY | Kind.TOO_LARGE:
                pytest.fail("no memory was asked for")


@pytest.mark.parametrize("machine", ["localhost:7", "cloud-a100:2x5"])
def test_blocks_of_uneven_splits(machine: str) -> None:
    """Where a split leaves devices without a block, they count as idle: eight over seven is four blocks of two."""
    planning = build(zoo("bert-tiny"), load_machine(machine), space("complete,uneven"))
    for k in range(0, 40, 7):
        x = tuple(k * v % v_size for v, v_size in enumerate(len(d.placements) for d in planning.decisions))
        lost = waste(planning, x)
        assert (lost.chosen, lost.least) == shares(planning, x)


def test_the_issue() -> None:
    """Seven devices: the optimum is the time of one, and uneven splits are four times faster."""
    graph, machine = zoo("bert-tiny"), load_machine("localhost:7")
    planning, x = planned(graph, machine, None)
    alone, y = planned(graph, load_machine("localhost:1"), None)
    assert planning.problem.cost_of(x) == alone.problem.cost_of(y)
    by_kind = {r.kind: r for r in remarks(planning, x, Batch(8, True))}
    assert "4.3 times less" in by_kind[UNEVEN].words
    assert Fraction(str(numbers(by_kind[REPEATED])["share"])) == Fraction(6, 7)
    assert numbers(by_kind[UNEVEN])["operators"] == numbers(by_kind[UNEVEN])["of"] == len(graph.operators)


def test_one_device_is_as_fast() -> None:
    """Where nothing divides, the plan is everything everywhere, and one device does as well."""
    graph = zoo("mlp-unity", **TRIFLE)
    planning, x = planned(graph, load_machine("localhost:8"), None)
    (fewer, *_, repeated, batch) = remarks(planning, x, Batch(3, False))
    alone = build(graph, load_machine("localhost:1"), space("complete")).problem
    assert (fewer.kind, repeated.kind, batch.kind) == (FEWER, REPEATED, BATCH)
    assert fewer.words.startswith("1 of the 8 devices is as fast: ") and fewer.words.endswith(" too")
    assert Fraction(str(numbers(fewer)["price"])) == Fraction(alone.cost_of((0,) * len(alone.vertices)), alone.scale)


def test_a_slow_class_is_better_left_out(tmp_path: Path) -> None:
    """Every operator takes the time of its slowest device: four fast ones alone are faster than with two slow ones."""
    (tmp_path / "mixed.toml").write_text(MIXED)
    machine = load_machine("mixed.toml", tmp_path)
    new, old = smaller_machines(machine)
    assert [(m.device.name, m.hierarchy, m.classes) for m in (new, old)] == [
        ("new", (2, 2), (new.device,)),
        ("old", (1, 2), (old.device,)),
    ]
    graph = zoo("mlp-unity", batch=48)
    planning, x = planned(graph, machine, None)
    fewer = next(r for r in remarks(planning, x, Batch(48, False)) if r.kind is FEWER)
    small, y = planned(graph, new, str(numbers(fewer)["space"]))
    assert numbers(fewer)["devices"] == 4 and "4 of the 6 devices of class new are faster" in fewer.words
    assert Fraction(str(numbers(fewer)["price"])) == Fraction(small.problem.cost_of(y), small.problem.scale)


@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_memory(limit: int | None, tmp_path: Path) -> None:
    """A training step without a limit is told its peak; one that needs more than the device has is told the limit
    to give.
    """
    graph = build_step(zoo("mlp-unity", batch=8), "adam").graph
    text = (Path(__file__).parent.parent / "models/machine/builtin/localhost.toml").read_text(encoding="utf-8")
    for memory, fits in (("1 GiB", True), ("1 MiB", False)):
        lines = [f'memory = "{memory}"' if line.startswith("memory") else line for line in text.splitlines()]
        (tmp_path / "own.toml").write_text("\n".join(lines))
        machine = load_machine("own.toml:4", tmp_path)
        planning, x = planned(graph, machine, None, limit)
        rows = build(graph, machine, planning.space, 1 << 50).problem
        found = [r for r in remarks(planning, x) if r.kind in (MEMORY, TOO_LARGE)]
        assert len(found) == (0 if fits and limit else 1)
        for r in found:
            assert r.kind is (MEMORY if fits else TOO_LARGE)
            assert (
                numbers(r)["peak_bytes"] == rows.peak_of(x)[0] and numbers(r)["device_bytes"] == machine.device.memory
            )
            assert ("give --memory 1048576" in r.words) == (not fits)


def test_fewer_devices_must_hold_the_model(tmp_path: Path) -> None:
    """One device is as fast, and is not offered where its memory does not hold the model."""
    text = (Path(__file__).parent.parent / "models/machine/builtin/localhost.toml").read_text(encoding="utf-8")
    graph = zoo("mlp-unity", **TRIFLE)
    need = build(graph, load_machine("localhost:1"), space("complete"), 1 << 50).problem.peak_of((0, 0, 0, 0))[0]
    for memory in (need, need - 1):
        (tmp_path / "own.toml").write_text(
            "\n".join(f'memory = "{memory} B"' if line.startswith("memory") else line for line in text.splitlines())
        )
        planning, x = planned(graph, load_machine("own.toml:8", tmp_path), None)
        found = [r.kind for r in remarks(planning, x)]
        assert found[0] == (FEWER if memory == need else TOO_LARGE) and (FEWER in found) == (memory == need)


def test_nothing_is_priced_when_the_time_is_over() -> None:
    planning, x = planned(zoo("bert-tiny"), load_machine("localhost:7"), None)
    clock = work(100.0)
    clock.stop()
    assert [r.kind for r in remarks(planning, x, Batch(8, True), clock)] == [REPEATED, BATCH]


def test_plan_and_explain_say_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both verbs print the remarks after the proof, and hand them out as data."""
    monkeypatch.chdir(tmp_path)
    words = ["plan", "bert-tiny", "--machine", "localhost:7", "-o", "t.spz"]
    assert run(words) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("remark: ")]
    assert run([*words, "--json", "--force"]) == 0
    data = json.loads(capsys.readouterr().out)["remarks"]
    assert [f"remark: {r['words']}" for r in data] == lines and [r["kind"] for r in data] == [
        "fewer-devices",
        "uneven-splits",
        "repeated-work",
        "batch",
    ]
    assert text.index("proved optimal") < text.index("remark: ")
    assert run(["explain", "t.spz", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["remarks"]
    assert told[:3] == data[:3] and told[3]["unasked"] == 0 and told[3]["batch"] == 8
    assert run(["explain", "t.spz"]) == 0
    shown = capsys.readouterr().out
    assert all(f"remark: {r['words']}" in shown for r in told)
    assert run(["plan", "bert-tiny", "--machine", "localhost:8", "--batch", "8", "-o", "u.spz"]) == 0
    assert "remark: " not in capsys.readouterr().out
