"""Calibration of devices, links and operator shapes: constants are found again, profile rows are what the cost
model uses, words are read back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shardproof.formal.calibration.parts as parts_module
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.execution.timing import Sampling, measure, operator_key
from shardproof.backends.lowering.program import Compute, lower
from shardproof.formal.calibration.fit import Residuals, Row, active_unknowns, fit, objective
from shardproof.formal.calibration.parts import (
    CommunicationTime,
    OperatorTime,
    PartTimes,
    calibrate_parts,
    calibration_errors,
    calibration_graph,
    communication_times,
    coverage,
    operator_times,
    profile_rows,
)
from shardproof.formal.verbs.calibrate import calibrate_command
from shardproof.models.communication.choices import Choices, communications
from shardproof.models.cost.cost import FORMULAS, Formula
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.machine.text import to_toml
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import training_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.text import InputError


def every_operator(planning: Planning, candidates: Sequence[Choices], seconds: float = 1.0) -> PartTimes:
    """All operators of all candidates, as if measured."""
    return [
        (c, n, (seconds, 2 * seconds)) for c in range(len(candidates)) for n in range(len(planning.graph.operators))
    ]


def every_movement(planning: Planning, candidates: Sequence[Choices]) -> PartTimes:
    return [
        (c, n, (1.0,))
        for c, choices in enumerate(candidates)
        for n, m in enumerate(communications(planning.graph, planning.machine.hierarchy, choices))
        if m.plan.steps
    ]


def planned(graph: Graph, spec: str) -> Planning:
    return build(graph, load_machine(spec), space("complete"))


def test_a_device_is_found_again() -> None:
    """Times made with true peaks, bandwidth and launch; the fit starts from constants that are wrong by factors."""
    planning = planned(calibration_graph(), "localhost:2")
    candidates = coverage(planning)
    peaks, bandwidth, launch = {"float32": 7e10, "float64": 3.1e10}, 1.3e10, 2.5e-5
    made = [
        replace(o, seconds=max(o.bytes / bandwidth, o.flops / peaks[o.dtype] if o.flops else 0.0) + launch)
        for o in operator_times(planning, candidates, every_operator(planning, candidates))
    ]
    result = calibrate_parts(planning.machine, made, profile=False)
    device = result.machine.device
    assert (
        result.operators_before.mean > 0.5
        and result.operators_fitted.worst < 2e-3
        and result.profile is None
        and not result.machine.profiles
    )
    for found, real in (
        (device.peak("float32"), 7e10),
        (device.peak("float64"), 3.1e10),
        (device.bandwidth, bandwidth),
        (device.launch, launch),
    ):
        assert abs(float(found) / real - 1) < 0.01
    assert device.peak("int8") == planning.machine.device.peak("int8")
    sources = dict(result.machine.sources)
    assert (
        "calibrated" in sources["device_class.core.launch"] and "assumption" in sources["device_class.core.peaks.int8"]
    )


def test_links_of_two_levels_are_found_again() -> None:
    planning = planned(zoo("mlp-unity"), "cloud-a100:2x2")
    candidates = coverage(planning, extra=6)
    moved = communication_times(planning, candidates, every_movement(planning, candidates))
    rates, latencies = (3e9, 8e9), (4e-5, 1.5e-5)
    made = [
        replace(m, seconds=sum(b / r + p * t for b, p, r, t in zip(m.bytes, m.phases, rates, latencies, strict=True)))
        for m in moved
    ]
    one = OperatorTime("y", "add", "float32", (8, 8), 64, 768, 1e-4)
    result = calibrate_parts(planning.machine, [one], made)
    assert result.movements_before is not None and result.movements_fitted is not None
    assert result.movements_before.mean > 0.2 and result.movements_fitted.worst < 2e-3
    for level, rate, latency in zip(result.machine.levels, rates, latencies, strict=True):
        assert abs(float(level.bandwidth) / rate - 1) < 0.01 and abs(float(level.latency) / latency - 1) < 0.02


def test_the_cost_model_uses_every_shape_that_was_measured() -> None:
    """After calibration each placement of each operator with an extent costs exactly its profile row."""
    planning = planned(training_step(zoo("mlp-unity", batch=32), "sgd"), "localhost:2")
    candidates = coverage(planning)
    found = operator_times(planning, candidates, every_operator(planning, candidates))
    made = [replace(o, seconds=1e-6 * (1 + sum(k * n for k, n in enumerate(o.extents, 1)))) for o in found]
    machine = calibrate_parts(planning.machine, made).machine
    again = build(planning.graph, machine, space("complete"))
    for op in planning.graph.operators:
        costs = again.costs[again.operators[op.name]]
        assert costs is not None
        if op.output.axes or op.reduction_axes:
            assert {FORMULAS[d] for d in costs.decided.tolist()} == {Formula.PROFILE}, op.name
    fc1 = again.costs[again.operators["fc1"]]
    assert fc1 is not None
    sizes = {tuple(p.extents): int(p.seconds * 10**12) for p in machine.profiles if p.function == "product"}
    assert set(fc1.compute.tolist()) <= set(sizes.values()) and sizes[32, 512, 784] in fc1.compute.tolist()


def test_a_row_is_the_median_of_the_operators_it_stands_for() -> None:
    one = OperatorTime("a", "product", "float32", (4, 8), 10, 10, 3e-6)
    rows = profile_rows(
        [
            one,
            replace(one, name="b", seconds=9e-6),
            replace(one, name="c", seconds=4e-6),
            replace(one, name="d", extents=()),
        ]
    )
    assert [(r.extents, r.seconds) for r in rows] == [((4, 8), Fraction(4, 10**6))]
    result = calibrate_parts(
        load_machine("localhost:2"), [one, replace(one, name="b", seconds=9e-6), replace(one, name="c", seconds=4e-6)]
    )
    assert (
        result.profile is not None
        and result.profile.rows == 3
        and round(result.profile.worst, 3) == round(abs(4 / 9 - 1), 3)
    )


def test_the_calibrated_machine_is_a_machine_file_with_its_errors(tmp_path: Path) -> None:
    ones = [OperatorTime(f"o{n}", "add", "float32", (n, 8), n * 8, n * 96, 1e-5 * n) for n in (1, 2, 4, 8)]
    moved = [CommunicationTime("t", (n * 1000,), (1,), 1e-5 * n + 2e-5) for n in (1, 2, 4)]
    result = calibrate_parts(load_machine("localhost:2"), ones, moved)
    path = tmp_path / "m.toml"
    path.write_text(to_toml(result.machine))
    again = load_machine(str(path))
    assert again == result.machine and len(again.profiles) == 4
    assert calibration_errors(again) == calibration_errors(result.machine) != ()
    mean, worst = calibration_errors(again)
    assert (
        0 <= mean <= worst
        and worst
        >= Fraction(
            f"{100 * max(result.operators_fitted.worst, result.movements_fitted.worst if result.movements_fitted else 0):.1f}"
        )
        / 100
    )
    assert calibration_errors(load_machine("p2-a100")) == ()
    # calibrating again starts from the file, and drops its old rows
    assert len(calibrate_parts(again, ones[:2], profile=False).machine.profiles) == 0


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OperatorTime("a", "add", "float32", (4, 8), 32, 384, 3e-6)
    machine = load_machine("localhost:2")
    with pytest.raises(InputError, match="no operator time"):
        calibrate_parts(machine, [])
    mixed = replace(machine, others=(replace(machine.device, name="slow", blocks=(0,)),))
    with pytest.raises(InputError, match="2 device classes"):
        calibrate_parts(mixed, [one])
    monkeypatch.setattr(parts_module, "MAX_PROFILES", 1)
    with pytest.raises(InputError, match="2 shapes were measured, a machine file has at most 1"):
        calibrate_parts(machine, [one, replace(one, extents=(2, 8))])


def test_every_choice_is_covered() -> None:
    planning = planned(training_step(zoo("mlp-unity", batch=32), "sgd"), "localhost:4")
    seen = [planning.solution(c) for c in coverage(planning, extra=0)]
    assert [len({x[v] for x in seen}) for v in range(len(seen[0]))] == [len(v.cost) for v in planning.problem.vertices]


def test_fit_keeps_the_best_point_and_what_nothing_depends_on() -> None:
    rows = [Row((((0, n),),), (), 3 * n) for n in (1.0, 2.0)]
    start = np.array([1.0, 7.0])
    x = fit(rows, start)
    assert (
        round(float(x[0]), 6) == 3
        and x[1] == 7
        and active_unknowns(rows, x) == [True, False]
        and objective(rows, x) < 1e-9 < objective(rows, start)
    )
    assert Residuals.of(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == Residuals(2, 0.5, 0.5, 0.5, 1.5, None)


def test_equal_operators_have_one_key_and_transposed_ones_another() -> None:
    graph = training_step(zoo("mlp-8192", batch=4, width=8, layers=3), "sgd")
    planning = planned(graph, "localhost:2")
    choices = planning.choices((0,) * len(planning.decisions))
    program = lower(graph, (2,), choices)
    steps = [s for s in program.ranks[0] if isinstance(s, Compute)]
    keys = {}
    for s in steps:
        op = graph.operators[s.operator]
        keys[op.name] = operator_key(op, graph, [dict(zip((a.name for a in op.axes), s.box, strict=True))])
    assert keys["fc2"] == keys["fc3"] and keys["relu1"] == keys["relu2"] and keys["fc2"] != keys["relu2"]
    assert keys["grad:relu2"] != keys["fc2"] != keys["grad:fc2.weight"]


class Door:
    """Measures nothing: what the front door would hand over."""

    def measure(
        self, system: object, programs: Sequence[object], payload: int, repeats: int, timeout_s: float
    ) -> list[tuple[float, ...]]:
        return [(1e-5 + payload * 1e-9 * (k + 1),) * repeats for k in range(len(programs))]

    def measure_parts(
        self,
        graph: Graph,
        hierarchy: tuple[int, ...],
        candidates: Sequence[Choices],
        rounds: int,
        timeout_s: float,
        backend: str,
    ) -> tuple[PartTimes, PartTimes]:
        planning = build(graph, load_machine("localhost:2"), space("complete"))
        return [(c, n, (1e-4,) * rounds) for c, n, _ in every_operator(planning, candidates)], every_movement(
            planning, candidates
        )


def test_the_verb_measures_a_model(tmp_path: Path) -> None:
    out = tmp_path / "m.toml"
    arguments = [
        "localhost:2",
        "--model",
        "mlp-unity",
        "--train",
        "sgd",
        "--batch",
        "32",
        "--rounds",
        "3",
        "-o",
        str(out),
    ]
    result = CliRunner().invoke(calibrate_command, [*arguments, "--json"], obj=Door(), standalone_mode=False)
    assert result.exception is None, result.exception
    report = json.loads(result.stdout)
    machine = load_machine(str(out))
    assert report["profiles"] == len(machine.profiles) > 20 and report["sha256"] == machine.sha256()
    assert {"operators", "operators_before", "profile", "movements", "movements_before", "collectives"} <= set(report)
    assert report["profile"]["worst_error"] < 1e-9 and report["constants"]["device_class.core.launch"]["identified"]
    shown = CliRunner().invoke(calibrate_command, [*arguments, "--force"], obj=Door(), standalone_mode=False)
    assert (
        "operators, profile" in shown.output and "reshardings, after" in shown.output and "core.launch" in shown.output
    )


def test_without_a_model_only_the_device_is_fitted(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        calibrate_command, ["localhost:2", "-o", str(tmp_path / "m.toml"), "--json"], obj=Door(), standalone_mode=False
    )
    report = json.loads(result.stdout)
    assert (
        report["profiles"] == 0
        and "movements" not in {k for k, v in report.items() if v}
        and report["operators"]["rows"] > 40
    )
    assert not load_machine(str(tmp_path / "m.toml")).profiles


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["localhost:2", "--train", "sgd"], "--train needs --model"),
        (["localhost:2", "--model", "mlp-unity", "--timings", "x.csv"], "--timings and --model do not go together"),
    ],
)
def test_usage(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(calibrate_command, arguments, obj=Door())
    assert result.exit_code == 2 and words in result.output


def test_a_model_needs_someone_who_measures() -> None:
    class Half:
        measure = Door.measure

    result = CliRunner().invoke(calibrate_command, ["localhost:2", "--model", "mlp-unity"], obj=Half())
    assert isinstance(result.exception, InputError) and "--model needs them" in str(result.exception)


def test_a_failure_of_a_rank_is_bad_input_not_an_internal_error() -> None:
    class Broken(Door):
        def measure_parts(
            self,
            graph: Graph,
            hierarchy: tuple[int, ...],
            candidates: Sequence[Choices],
            rounds: int,
            timeout_s: float,
            backend: str,
        ) -> tuple[PartTimes, PartTimes]:
            raise RankError(1, "start", f"no {backend} here")

    result = CliRunner().invoke(
        calibrate_command, ["localhost:2", "--model", "mlp-unity", "--backend", "cupy"], obj=Broken()
    )
    assert isinstance(result.exception, InputError) and "rank 1, start: no cupy here" in str(result.exception)


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_measuring_plans_and_parts_on_mpi_ranks() -> None:
    graph = training_step(zoo("mlp-8192", batch=8, width=16, layers=3), "sgd")
    planning = planned(graph, "localhost:2")
    candidates = coverage(planning, extra=1)
    times = measure(graph, (2,), candidates, Sampling(3, parts=True), timeout_s=100)
    assert [w.candidate for w in times.wholes] == list(range(len(candidates)))
    assert all(len(w.seconds) == 3 and 0 < w.quiet_s for w in times.wholes)
    first = {graph.operators[p.number].name for p in times.operators if p.candidate == 0}
    assert (
        len(first & {"fc1", "fc2", "fc3"}) == 1 and len(first & {"relu1", "relu2"}) == 1
    )  # the same work is measured once
    fitted = calibrate_parts(
        planning.machine,
        operator_times(planning, candidates, [(p.candidate, p.number, p.seconds) for p in times.operators]),
        communication_times(planning, candidates, [(p.candidate, p.number, p.seconds) for p in times.movements]),
    )
    assert fitted.movements_fitted is not None and fitted.operators_fitted.mean <= fitted.operators_before.mean
    assert build(graph, fitted.machine, space("complete")).problem.cost_of((0,) * len(planning.decisions)) > 0


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_a_failing_rank_is_named() -> None:
    graph = zoo("mlp-unity", batch=8)
    planning = planned(graph, "localhost:2")
    inputs = random_inputs(graph, 0)
    bad = {**inputs, "x": inputs["x"].astype("U8")}
    with pytest.raises(RankError, match="operator 'fc1'"):
        measure(graph, (2,), [planning.choices((0,) * len(planning.decisions))], Sampling(1), inputs=bad, timeout_s=60)
