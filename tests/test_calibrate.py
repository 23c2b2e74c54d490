"""Calibration: constants are found again from times made with them, the published times, hold-outs, and calm
refusals.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from p2_appendix import FILE

import shardproof.__main__ as front
from shardproof.backends.execution.launch import mpi_available
from shardproof.formal.calibration.calibrate import calibrate, predict, residuals
from shardproof.formal.calibration.fit import spearman
from shardproof.formal.calibration.timings import Timing, program_of, read_timings, select_timings, write_timings
from shardproof.formal.verbs.calibrate import calibrate_command
from shardproof.models.collective_programs.cost import Algorithm
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.parts import Resource
from shardproof.models.text import InputError

RING = Algorithm.RING


def timings_of(
    machine: Machine,
    hierarchy: tuple[int, int],
    algorithm: Algorithm = RING,
    latencies: bool = False,
    noise: float = 0.0,
) -> list[Timing]:
    """What the machine would measure, by its own constants."""
    rng = random.Random(1)
    a, b = hierarchy
    rows = []
    for matrix in (
        ((a, b),),
        ((a, 1), (1, b)),
        ((1, b), (a, 1)),
        ((a, 2), (1, b // 2)),
        ((1, 2), (a, b // 2)),
        ((1, 4), (a, b // 4)),
    ):
        two = all(x > 1 for x in matrix[0])
        for program in ("AllReduce", "RS.A AG.A", "R.A B.A", *(("RS.L AR.P AG.L", "R.L AR.M B.L") if two else ())):
            for payload in (1 << 14, 1 << 24, 1 << 30):
                row = Timing(hierarchy, matrix, (0,), program, algorithm, payload, 1.0, "made up")
                rows.append(replace(row, seconds=predict(machine, row, latencies) * (1 + noise * rng.uniform(-1, 1))))
    return rows


@pytest.mark.parametrize(
    ("spec", "algorithm", "latencies"),
    [
        ("p2-a100:4x16", RING, False),
        ("p2-v100:4x8", Algorithm.TREE, False),
        ("cloud-a100:4x8", RING, True),
        ("p2-a100:2x16", RING, True),
    ],
)
def test_constants_are_found_again(spec: str, algorithm: Algorithm, latencies: bool) -> None:
    """Times made with the true constants, fitted from constants that are wrong by factors."""
    true = load_machine(spec)
    rows = timings_of(true, true.hierarchy, algorithm, latencies)
    wrong = replace(
        true,
        levels=tuple(
            replace(x, bandwidth=x.bandwidth * f, latency=x.latency * 3)
            for x, f in zip(true.levels, (Fraction(1, 2), Fraction(3, 2)), strict=True)
        ),
    )
    result = calibrate(wrong, rows, latencies=latencies)
    assert result.before.mean > 0.2 and result.fitted.mean < 1e-3
    for found, real in zip(result.machine.levels, true.levels, strict=True):
        assert abs(found.bandwidth / real.bandwidth - 1) < Fraction(1, 100)
        assert not latencies or abs(found.latency / real.latency - 1) < Fraction(1, 20)
    assert all(c.identified for c in result.constants if c.path.startswith("level"))


def test_noise_is_reported_and_mostly_averaged_out() -> None:
    machine = load_machine("p2-a100:4x16")
    result = calibrate(machine, timings_of(machine, (4, 16), noise=0.1))
    assert 0.02 < result.fitted.mean < 0.08 and result.fitted.worst < 0.15
    assert abs(result.machine.levels[0].bandwidth / machine.levels[0].bandwidth - 1) < Fraction(1, 20)


def test_what_no_timing_depends_on_is_kept_and_said() -> None:
    machine = load_machine("p2-v100:2x8")
    inside = [t for t in timings_of(machine, (2, 8)) if t.matrix[0][0] == 1]
    result = calibrate(machine, inside)
    nodes = next(c for c in result.constants if c.path == "level.nodes.bandwidth")
    assert not nodes.identified and nodes.after == nodes.before == result.machine.levels[0].bandwidth
    assert "calibrated" not in dict(result.machine.sources)["level.nodes.bandwidth"]
    assert "calibrated" in dict(result.machine.sources)["level.gpus.bandwidth"]


def test_a_slow_link_of_its_own_is_fitted() -> None:
    """A `[[resource]]` in series with one node's link; the other links keep their rate."""
    machine = load_machine("p2-a100:4x16")
    slow = replace(
        machine,
        resources=(Resource("slow-nic", 16, Fraction(3 * 10**9), ("nodes",), (2,)),),
        sources=(*machine.sources, ("resource.slow-nic.capacity", "assumption")),
    )
    rows = timings_of(slow, (4, 16))
    guess = replace(slow, resources=(replace(slow.resources[0], capacity=Fraction(5 * 10**9)),))
    found = calibrate(guess, rows).machine.resources[0].capacity
    assert abs(found / (3 * 10**9) - 1) < Fraction(1, 100)


@pytest.mark.parametrize(
    ("system", "fit_on", "judge_on", "limit"),
    [("A100", "2", "4", 0.045), ("A100", "4", "2", 0.03), ("V100", "2", "4", 0.10), ("V100", "4", "2", 0.10)],
)
def test_hold_out_on_the_published_times(system: str, fit_on: str, judge_on: str, limit: float) -> None:
    """Ring and tree AllReduce rows of one number of nodes, judged on the rows of the other."""
    rows = select_timings(read_timings(FILE), {"system": system})
    result = calibrate(
        load_machine(f"p2-{system.lower()}"),
        select_timings(rows, {"nodes": fit_on}),
        select_timings(rows, {"nodes": judge_on}),
    )
    assert result.held_out.mean <= limit, result.held_out
    assert result.fitted.mean <= result.before.mean


def test_fitting_never_makes_the_fitted_rows_worse() -> None:
    rows = select_timings(read_timings(FILE), {"system": "V100", "algorithm": "ring"})
    result = calibrate(load_machine("p2-v100"), rows)
    assert result.fitted.rows == 42 and result.fitted.mean < 0.095 < result.before.mean and result.fitted.rank > 0.98
    assert residuals(result.machine, rows) == result.fitted


def test_rank_correlation() -> None:
    assert spearman(np.arange(5.0), np.arange(5.0) ** 3) == 1 and spearman(np.arange(5.0), -np.arange(5.0)) == -1
    assert spearman(np.ones(4), np.arange(4.0)) == 0
    assert round(spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 3, 2, 4])), 4) == 0.9487


def test_csv_round_trip(tmp_path: Path) -> None:
    rows = timings_of(load_machine("p2-a100:2x16"), (2, 16))
    write_timings(tmp_path / "t.csv", rows)
    again = read_timings(tmp_path / "t.csv")
    assert [replace(t, place="", columns=()) for t in again] == [replace(t, place="", columns=()) for t in rows]


OWN = "machine,matrix,reduce,program,algorithm,payload,seconds\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs machine"),
        ("a,b\n1,2\n", "a, b"),
        (OWN, "no timing"),
        (OWN + "2x2,[[2 2]],0,AllReduce,ring,1024\n", "line 2: has more or fewer"),
        (OWN + "2x2,[[2 2]],0,AllReduce,ring,1024,-1\n", "line 2, seconds"),
        (OWN + "2x2,[[2 2]],0,AllReduce,ring,1024,nan\n", "line 2, seconds"),
        (OWN + "2x2,[[2 2]],0,AllReduce,ring,1024,0\n", "line 2, seconds"),
        (OWN + "2x2,[[2 2]],0,AllReduce,star,1024,1\n", "ring or tree"),
        (OWN + "2x2,[[2 2]],0,AllReduce,ring,0,1\n", "payload"),
        (OWN + "2x2,hello,0,AllReduce,ring,1,1\n", "not a matrix"),
        (OWN + "2xx,[[2 2]],0,AllReduce,ring,1,1\n", "machine"),
    ],
)
def test_bad_csv_names_line_and_column(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_timings(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2x16,[[2 16]],0,RS.Q,ring,1024,1", "line 2.*unknown step 'RS.Q'; steps here: AR.A"),
        ("2x16,[[2 16]],0,AR.A AR.A,ring,1024,1", "line 2.*step 1"),
        ("2x16,[[2 8]],0,AllReduce,ring,1024,1", "do not fill"),
        ("2x16,[[2 16]],1,AllReduce,ring,1024,1", "reduction axis 1"),
        ("2x16x1,[[2 16 1]],0,AllReduce,ring,1024,1", "2 levels"),
    ],
)
def test_timings_that_do_not_fit_the_machine(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(OWN + line + "\n")
    with pytest.raises(ValueError, match=words):
        calibrate(load_machine("p2-a100"), read_timings(tmp_path / "t.csv"))


def test_empty_programs_and_empty_selections() -> None:
    rows = read_timings(FILE)
    with pytest.raises(InputError, match="is empty"):
        program_of("", rows[0].system())
    with pytest.raises(InputError, match="no column 'nods'; columns: system"):
        select_timings(rows, {"nods": "2"})
    with pytest.raises(InputError, match="no timing is left"):
        calibrate(load_machine("p2-a100"), select_timings(rows, {"nodes": "3"}))


def test_the_verb_writes_a_machine_and_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "machine",
        "calibrate",
        "p2-v100",
        "--timings",
        str(FILE),
        "--where",
        "system=V100",
        "--hold-out",
        "nodes=4",
        "-o",
        str(tmp_path / "new.toml"),
    ]
    assert front.run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (
        report["fitted"]["rows"] == 26
        and report["held_out"]["rows"] == 50
        and report["held_out"]["mean_error"] < report["held_out_before"]["mean_error"] < 0.12
    )
    machine = load_machine(str(tmp_path / "new.toml"))
    assert machine.sha256() == report["sha256"]
    assert str(machine.levels[0].bandwidth) == report["constants"]["level.nodes.bandwidth"]["after"]
    assert front.run(arguments) == 3  # it is there, and calibrated machines are nothing that is replaced unasked
    capsys.readouterr()
    assert front.run([*arguments, "--force"]) == 0
    shown = capsys.readouterr().out
    assert "after, held out" in shown and "pcie-switch" in shown and "new.toml" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere", "--timings", str(FILE)], 3, "neither a built-in"),
        (["p2-a100", "--timings", "missing.csv"], 3, "missing.csv"),
        (["p2-a100", "--timings", str(FILE), "--where", "nodes"], 2, "COLUMN=VALUE"),
        (["p2-a100", "--timings", str(FILE), "--where", "nodes=9"], 3, "no timing is left"),
        (["p2-a100"], 3, "64 devices"),
        (["cloud-a100:0x8", "--timings", str(FILE)], 3, "must be 1"),
    ],
)
def test_refusals_of_the_verb(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["machine", "calibrate", *arguments]) == code
    assert words in capsys.readouterr().err


def test_without_someone_who_can_measure() -> None:
    result = CliRunner().invoke(calibrate_command, ["localhost:2"])
    assert isinstance(result.exception, InputError) and "--timings" in str(result.exception)


def test_our_own_ground_truth() -> None:
    """Times of 47 programs on MPI ranks (tests/data/p2/local_ranks.csv): constants from every fourth program
    predict the others' order.
    """
    rows = [t for t in read_timings(FILE.parent / "local_ranks.csv") if t.matrix == ((2, 2),)]
    assert len(rows) == 3 * 47
    base = load_machine("cloud-a100:2x2")
    guess = replace(
        base,
        levels=tuple(replace(x, bandwidth=Fraction(10**9), latency=Fraction(1, 20000)) for x in base.levels),
        resources=(Resource("memory", 4, Fraction(2 * 10**9), ("nodes", "gpus")),),
        sources=(*base.sources, ("resource.memory.capacity", "guess")),
    )
    result = calibrate(guess, rows[::4], [t for n, t in enumerate(rows) if n % 4], latencies=True)
    assert (
        result.held_out.mean < 0.25
        and result.held_out.rank > 0.9
        and result.held_out.rank > result.held_out_before.rank - 0.05
    ), result.held_out


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_measuring_on_mpi_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three programs at three payloads on two ranks; the residual is whatever this computer gives, the report must
    be complete.
    """
    saved = tmp_path / "t.csv"
    assert (
        front.run(
            [
                "machine",
                "calibrate",
                "localhost:2",
                "--save",
                str(saved),
                "-o",
                str(tmp_path / "m.toml"),
                "--time-limit",
                "60",
                "--json",
            ]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["fitted"]["rows"] == 9 == len(read_timings(saved))
    assert report["fitted"]["mean_error"] <= report["before"]["mean_error"]
    assert load_machine(str(tmp_path / "m.toml")).levels[0].bandwidth > 0
