"""`sweep`: what its file may say, rows that go on where they were stopped, and rows whose process was killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import shardproof
from shardproof.__main__ import run
from shardproof.formal.plans import sweep
from shardproof.formal.plans.sweep import Outcome, Row, Word, read_sweep, widest_gap
from shardproof.formal.report.sweep import curves

OPTIONS = {
    **{word: Word() for word in ("machine", "batch", "train", "memory", "time-limit")},
    "overlap": Word(True),
    "compare": Word(True, "--no-compare"),
    "without": Word(several=True),
}
FILE = """
[every]
machine = "localhost:2"
time_limit = 100
[each]
model = ["mlp-8192:layers=1,width=16", "mlp-8192:layers=2,width=16"]
batch = [4, 8]
"""


SHORT = """
[every]
machine = "localhost:2"
time_limit = 100
[each]
model = ["mlp-8192:layers=1,width=16"]
batch = [4, 8]
"""
"""Each row begins a process, which takes longer to begin than to plan."""


def test_every_combination_is_a_row_and_the_last_key_runs_fastest() -> None:
    rows = read_sweep(FILE, "f", OPTIONS)
    assert [dict(r.values)["batch"] for r in rows] == ["4", "8", "4", "8"]
    assert rows[2].arguments == (
        "--machine=localhost:2",
        "--time-limit=100",
        "--batch=4",
        "--",
        "mlp-8192:layers=2,width=16",
    )
    flag = read_sweep('[every]\nmodel = "a"\nmachine = "m"\n[each]\noverlap = [false, true]', "f", OPTIONS)
    assert [r.arguments[1:-2] for r in flag] == [(), ("--overlap",)]
    no = read_sweep(
        '[every]\nmodel = "a"\nmachine = "m"\nwithout = ["data", "tensor"]\n[each]\ncompare = [false, true]',
        "f",
        OPTIONS,
    )
    assert [r.arguments[1:-2] for r in no] == [
        ("--without=data", "--without=tensor", word) for word in ("--no-compare", "--compare")
    ]


def test_a_row_is_named_by_its_options_and_by_the_content_of_their_files(tmp_path: Path) -> None:
    def name(*arguments: str) -> str:
        return Row(1, (), arguments).name

    file = tmp_path / "m.py"
    file.write_text("x = 1")
    words = (f"{file}:net", f"--machine={file}")
    before = [name(word) for word in words]
    assert len({*before, name("--", "a"), name("--", "b")}) == 4 and before == [name(word) for word in words]
    file.write_text("x = 2")
    assert not {*before} & {name(word) for word in words}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[evry]", "no table \\[evry\\]; did you mean 'every'"),
        ("[every]\nbacth = 4", "plan has no option 'bacth'; did you mean 'batch'"),
        ('[each]\nmodel = "a"', "'model' is a list of values"),
        ("[each]\nmodel = []", "'model' is a list of values"),
        ('[each]\nmodel = ["a", "a"]', "names a value twice"),
        ('[every]\nmodel = "a"\n[each]\nmodel = ["b"]', "stands in \\[every\\] and in \\[each\\]"),
        ('[each]\nmodel = ["a"]', "no 'machine'"),
        ('[every]\nmachine = "m"', "no 'model'"),
        ('[every]\nmodel = "a"\nmachine = "m"\noutput = "x"', "'output' is not for a row"),
        ('[every]\nmodel = "a"\nmachine = "m"\noverlap = 1', "'overlap' is true or false, not 1"),
        ('[every]\nmodel = ["a", "b"]\nmachine = "m"', "several belong to \\[each\\]"),
        ('[every]\nmodel = "a"\nmachine = "m"\nmemory = ["1GiB", "2GiB"]', "'memory' has one value in a plan"),
        ('[every]\nmodel = "a"\nmachine = {x = 1}', "neither text, number"),
        ("[every]\ntime-limit = 1\ntime_limit = 2", "given twice"),
        ("every = 3", "is not a table"),
        ('[every]\nmodel = "a\\u0000"', "no command line can hold"),
        ("[", "is no TOML"),
        ('[each]\nmodel = ["f.py:f:N=8..4*2"]\nmachine = ["m"]', "'N=8..4\\*2' is no range of sizes"),
        ('[each]\nmodel = ["f.py:f:N=8..16*1"]\nmachine = ["m"]', "'N=8..16\\*1' is no range of sizes"),
        ('[each]\nmodel = ["f.py:f:N=1..99999+1"]\nmachine = ["m"]', "more than 10000 plans"),
        ('[each]\nmodel = ["f.py:f:N=1..3+1", "f.py:f:N=2"]\nmachine = ["m"]', "names a value twice"),
        (f'[each]\nmodel = ["a"]\nmachine = ["m"]\nbatch = {list(range(10_001))}', "10001 plans, at most 10000"),
    ],
)
def test_mistakes_are_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_sweep(text, "f", OPTIONS)


def test_one_plan_is_judged_over_a_range_of_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row and a certificate for each size; what is said of all is their widest gap."""
    monkeypatch.chdir(tmp_path)
    Path("sized.py").write_text(
        "import numpy as np\nfrom shardproof import float64, parameter\n"
        "def layer(x: float64['N', 8], w: parameter(8, 'H'), v: parameter('H', 8)):\n"
        "    return np.maximum(x @ w, 0) @ v\n"
    )
    line = ["plan", "sized.py:layer:N=64,H=8", "--machine", "localhost:2", "-o", "one.spz"]
    assert run(line) == 0
    Path("s.toml").write_text(
        "[every]\nmachine = 'localhost:2'\nstrategy = 'one.spz'\n[each]\nmodel = ['sized.py:layer:N=2..128*8,H=8']\n"
    )
    capsys.readouterr()
    code = run(["sweep", "s.toml", "-o", "swept"])
    said = capsys.readouterr().out
    sizes = [line.split()[0] for line in said.splitlines() if line.startswith("sized.py")]
    assert sizes == ["sized.py:layer:N=2,H=8", "sized.py:layer:N=16,H=8", "sized.py:layer:N=128,H=8"]
    gaps = [float(line.split()[4]) for line in said.splitlines() if line.startswith("sized.py")]
    assert f"all 3 plans are within {max(gaps):.2f}% of the best of their space (proved)" in said
    assert code == (0 if max(gaps) == 0 else 5)
    own = shardproof.load(next(Path("swept").glob("*.spz")))
    assert own.check().verdict.value == "proved"
    assert widest_gap([Outcome(0, {"cost": 4, "lower_bound": 3, "scale": 1}, 1), Outcome(0, {}, 1)]) is None
    assert widest_gap([Outcome(0, {"cost": 4, "lower_bound": b, "scale": 1}, 1) for b in (3, 4)]) == 0.25


def sweep_json(capsys: pytest.CaptureFixture[str], file: Path, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["sweep", str(file), "-o", str(folder), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(SHORT.replace("[4, 8]", "[4, 8, 12]"))
    code, found = sweep_json(capsys, file, folder, "--workers", "2")
    assert code == 0 and found["planned"] == 3 and [r["status"] for r in found["rows"]] == ["optimal"] * 3
    lines = list(csv.reader((folder / "sweep.csv").open()))
    assert lines[0][:3] == ["model", "batch", "status"] and len(lines) == 4
    plans = [folder / line[-1] for line in lines[1:]]
    assert run(["check", *map(str, plans)]) == 0
    capsys.readouterr()
    assert "<svg" in (folder / "index.html").read_text()
    assert sweep_json(capsys, file, folder)[1]["planned"] == 0
    plans[0].write_bytes(plans[1].read_bytes())  # another plan: not what the row has answered
    plans[2].unlink()
    code, again = sweep_json(capsys, file, folder)
    assert code == 0 and again["planned"] == 2
    assert [r["cost"] for r in again["rows"]] == [r["cost"] for r in found["rows"]]
    file.write_text(SHORT.replace("[4, 8]", "[16, 4]"))
    assert sweep_json(capsys, file, folder)[1]["planned"] == 1
    assert sweep_json(capsys, file, folder, "--again")[1]["planned"] == 2


def test_bad_values_are_named_before_anything_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(FILE.replace("[4, 8]", "[4, -8]"))
    code, found = sweep_json(capsys, file, folder)
    assert code == 3 and "plan 2" in found["error"] and "--batch" in found["error"] and not folder.exists()
    file.write_text(FILE)
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    code, found = sweep_json(capsys, file, folder)
    assert code == 3 and "no sweep's" in found["error"]


def test_rows_that_fail_do_not_stop_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    file.write_text('[every]\nmachine = "localhost:2"\n[each]\nmodel = ["nothing", "mlp-8192:layers=1,width=16"]')
    code, found = sweep_json(capsys, file, tmp_path / "out")
    assert code == 3 and [r["exit"] for r in found["rows"]] == [3, 0]
    assert "nothing" in found["rows"][0]["error"]


@pytest.mark.parametrize(("deaths", "code", "words"), [(1, 0, "optimal"), (2, 3, "killed by SIGKILL, 2 times")])
def test_a_process_that_is_killed_is_begun_again(
    deaths: int,
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, real, died = tmp_path / "s.toml", subprocess.Popen, list[int]()
    file.write_text(SHORT)

    def killed(command: list[str], **given: Any) -> Any:
        if "--batch=8" in command and len(died) < deaths:
            died.append(1)
            command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
        return real(command, **given)

    monkeypatch.setattr(sweep.subprocess, "Popen", killed)
    got, found = sweep_json(capsys, file, tmp_path / "out", "--workers", "2")
    assert got == code and len(found["rows"]) == 2
    assert [r["tries"] for r in found["rows"]] == [1, 2]
    lines = list(csv.reader((tmp_path / "out" / "sweep.csv").open()))
    assert [line[2] for line in lines[1:]] == ["optimal", words]
    monkeypatch.setattr(sweep.subprocess, "Popen", real)
    if deaths == 2:
        assert sweep_json(capsys, file, tmp_path / "out")[1]["planned"] == 1  # the one without an answer


def test_a_sweep_that_is_stopped_leaves_no_process_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a row that was under way nothing is kept: it is planned again."""
    file, folder = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(
        SHORT.replace("time_limit = 100", "work_limit = 900000000").replace("layers=1,width=16", "layers=2")
    )
    command = [sys.executable, "-m", "shardproof", "sweep", str(file), "-o", str(folder), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while not folder.exists():  # rows are read; the first process begins at once
        time.sleep(0.05)
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    printed, _ = child.communicate(timeout=200)
    assert child.returncode == 5 and len(json.loads(printed)["rows"]) < 2
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        os.killpg(child.pid, 0)
    code, found = sweep_json(capsys, file, folder, "--workers", "2")
    assert code == 0 and len(found["rows"]) == 2


def test_the_picture_has_a_line_for_each_setting() -> None:
    def row(number: int, model: str, memory: str, cost: int | None) -> tuple[Row, Outcome]:
        answer: dict[str, object] = {"cost": cost, "lower_bound": None if cost is None else cost - 1, "scale": 10}
        return Row(number, (("model", model), ("memory", memory)), ()), Outcome(0, answer, 1)

    rows = [row(1, "a", "40GiB", 30), row(2, "a", "80GiB", 20), row(3, "b<", "40GiB", None), row(4, "b<", "80GiB", 9)]
    drawn = curves(rows)
    assert drawn.count("<polyline") == 4 and drawn.count("<circle") == 3  # a line and its bound for each model
    assert "b&lt;" in drawn and "over memory" in drawn and "b<" not in drawn
    assert curves(rows[:1]) == "" and curves([]) == ""
    assert Outcome(-signal.SIGTERM, {}, 2).words == "killed by SIGTERM, 2 times"


def test_ranks_of_mpi_share_the_rows(tmp_path: Path, mpiexec: str) -> None:
    file, folder = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(SHORT)
    command = ["-m", "shardproof", "sweep", str(file), "-o", str(folder), "--workers", "mpi", "--json"]
    alone = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=False)
    assert alone.returncode == 3 and "there is one rank" in alone.stdout
    both = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", *command]
    done = subprocess.run(both, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2


def test_a_range_of_limits_points_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["plan", "mlp-unity", "--machine", "localhost:2", "--memory", "1GiB..2GiB", "-o", str(tmp_path / "p.spz")]
    assert run(said) == 2
    assert "shardproof sweep" in capsys.readouterr().err
