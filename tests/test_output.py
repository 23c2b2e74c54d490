"""`-o` destroys nothing: what may be written where, what is tried before the work, and what a full disk or a kill
leaves behind.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from shardproof.__main__ import run
from shardproof.backends.verbs.run import write_arrays
from shardproof.models.files import output
from shardproof.models.files.output import OutputError, check_target, is_result, open_output, write_file
from shardproof.models.problem.selection_problem import SelectionProblem, Vertex
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.selection.problem_file import encode_problem, problem_json

PROBLEM = SelectionProblem("p", (Vertex("a", np.array([2, 1])),), (), ())


@pytest.fixture(params=["without a name", "with a name"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to write: files without a name, and file systems that have none."""
    if request.param == "with a name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_all_or_nothing(way: str, tmp_path: Path) -> None:
    target = tmp_path / "x"
    write_file(target, b"first")
    write_file(target, b"second")
    assert target.read_bytes() == b"second" and left(tmp_path) == ["x"]
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600
    with pytest.raises(KeyError), open_output(target) as file:
        file.write(b"thi")
        raise KeyError
    assert target.read_bytes() == b"second" and left(tmp_path) == ["x"]


def test_long_and_odd_names(way: str, tmp_path: Path) -> None:
    for name in ("x" * 255, "-", "a b", "\n", "ü漢", ".x", "\udcff"):
        write_file(tmp_path / name, b"1")
    assert len(left(tmp_path)) == 7
    with pytest.raises(OutputError):
        write_file(tmp_path / ("x" * 256), b"1")
    with pytest.raises(OutputError):
        check_target(tmp_path / "x\0y")


def test_a_full_disk_names_path_and_space_and_leaves_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_file(tmp_path / "x", b"before")
    monkeypatch.setattr(output.os, "fsync", full)
    with pytest.raises(OutputError, match=r"x: there is no space left in .* for 3 MiB \(.* free\)"):
        write_file(tmp_path / "x", bytes(3 << 20))
    assert (tmp_path / "x").read_bytes() == b"before" and left(tmp_path) == ["x"]


def test_a_full_disk_is_found_before_the_work(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the temporary that is tried does not fit."""
    (tmp_path / "p.json").write_bytes(problem_json(PROBLEM))
    code = textwrap.dedent("""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from shardproof.__main__ import run
        import shardproof.formal.verbs.solve as cli
        cli.load_selection_problem = lambda path: sys.exit("the work was begun")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        sys.exit(run(["solve", "p.json", "-o", "c.spz"]))
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (
        done.returncode == 3
        and "c.spz: cannot be written: File too large" in done.stderr
        and left(tmp_path) == ["p.json"]
    )


def test_killed_while_writing_leaves_no_temporary(tmp_path: Path) -> None:
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("files without a name are Linux's")
    code = "import os, signal, sys; from pathlib import Path; from shardproof.models.files.output import open_output\n" \
           "with open_output(Path('x')) as file: file.write(bytes(1 << 20)); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == -9 and left(tmp_path) == []


def test_links_are_followed_to_regular_files(way: str, tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    assert check_target(tmp_path / "link") == tmp_path / "real"
    write_file(tmp_path / "link", b"1")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"1"
    (tmp_path / "nothing").symlink_to("absent")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("nothing", "round", "device"):
        for attempt in (
            lambda name=name: check_target(tmp_path / name, force=True),
            lambda name=name: write_file(tmp_path / name, b"1"),
        ):
            with pytest.raises(OutputError, match=name):
                attempt()
        assert (tmp_path / name).is_symlink()


def test_only_regular_files(way: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (
        tmp_path / "pipe",
        tmp_path / "folder",
        Path("/dev/null"),
        Path("/dev/full"),
        tmp_path / "absent" / "x",
        tmp_path / "pipe" / "x",
    ):
        for attempt in (lambda path=path: check_target(path, force=True), lambda path=path: write_file(path, b"1")):
            with pytest.raises(OutputError):
                attempt()
    assert (
        stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
        and stat.S_ISCHR(os.stat("/dev/null").st_mode)
        and left(tmp_path) == ["folder", "pipe"]
    )


def test_what_is_replaced_without_force(tmp_path: Path) -> None:
    result = write_container(tmp_path / "result.spz", {"plan.json": b"{}"})
    write_container(tmp_path / "problem.spz", encode_problem(PROBLEM))
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("mine")
    (tmp_path / "cut.spz").write_bytes(result[:-5])
    np.savez(tmp_path / "inputs.npz", x=np.zeros(3))
    kinds = {p.name: is_result(p) for p in tmp_path.iterdir()}
    assert kinds == {
        "result.spz": True,
        "problem.spz": False,
        "empty": False,
        "text": False,
        "cut.spz": False,
        "inputs.npz": False,
    }
    for name in kinds:
        for mine in (True, False):
            check_target(tmp_path / name, force=True, replaces_results=mine)
            if name == "empty" or (name == "result.spz" and mine):
                check_target(tmp_path / name, replaces_results=mine)
            else:
                with pytest.raises(OutputError, match=rf"{name}: exists and is not .* --force"):
                    check_target(tmp_path / name, replaces_results=mine)


def test_a_read_only_file_needs_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_container(tmp_path / "c.spz", {"plan.json": b"{}"})
    monkeypatch.setattr(output.os, "access", lambda *_: False)  # root may write everything
    with pytest.raises(OutputError, match="not writable"):
        check_target(tmp_path / "c.spz", replaces_results=True)
    check_target(tmp_path / "c.spz", force=True)


ARRAYS = {"file": np.arange(3.0), "a/b:c": np.ones((2, 2), dtype=np.float32), "漢": np.zeros(0)}


def test_arrays_of_any_name_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "x.npz", ARRAYS)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as read:
        assert sorted(read.files) == sorted(ARRAYS) and all(
            (read[k] == v).all() and read[k].dtype == v.dtype for k, v in ARRAYS.items()
        )
    before = (tmp_path / "x.npz").read_bytes()
    monkeypatch.setattr(
        np.lib.format, "write_array", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    )
    with pytest.raises(OutputError, match="no space left"):
        write_arrays(tmp_path / "x.npz", ARRAYS)
    assert (tmp_path / "x.npz").read_bytes() == before and left(tmp_path) == ["x.npz"]


RULES = '{"rule": [{"name": "r", "srcOp": [{"type": "OP_RELU", "input": [{"opId": -1, "tsId": 0}]}], "dstOp": [{"type": "OP_RELU", "input": ' \
        '[{"opId": -1, "tsId": 0}]}], "mappedOutput": [{"srcOpId": 0, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}]}]}'  # fmt: skip

WRITERS = {
    "plan": ("plan", "mlp-unity", "--machine", "localhost:2", "-o"),
    "solve": ("solve", "p.json", "-o"),
    "audit": ("audit", "p.json", "--strategy", "s.json", "-o"),
    "place": ("place", "--hierarchy", "2x2", "--axes", "2,2", "-o"),
    "reduce": ("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0", "-o"),
    "reduce --svg": ("reduce", "--hierarchy", "2x2", "--axes", "2,2", "--reduce", "0", "--svg"),
    "import": ("import", "mlp-unity", "-o"),
    "rules prove": ("rules", "prove", "r.json", "-o"),
    "rules refute": ("rules", "refute", "r.json", "-o"),
    "rules generate": ("rules", "generate", "--operators", "1", "-o"),
    "rules derive": ("rules", "derive", "r.json", "--from", "library.spz", "-o"),
    "rules dtensor": ("rules", "dtensor", "--only", "aten.relu*", "--jobs", "1", "-o"),
    "rules show --svg": ("rules", "show", "r@rank2", "--library", "r.json", "--svg"),
    "rules show --flexflow": ("rules", "show", "r@rank2", "--library", "r.json", "--flexflow"),
    "rules show --smtlib": ("rules", "show", "r@rank2", "--library", "r.json", "--smtlib"),
    "machine calibrate": ("machine", "calibrate", "p2-a100", "--timings", "t.csv", "-o"),
    "machine calibrate --save": ("machine", "calibrate", "p2-a100", "--timings", "t.csv", "--save"),
    "run": ("run", "plan.spz", "-n", "2", "--virtual", "-o"),
    "run --trace": ("run", "plan.spz", "-n", "2", "--virtual", "--trace"),
}


@pytest.mark.parametrize("verb", WRITERS)
def test_every_verb_asks_before_it_works(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of the inputs exists: a refusal that names the output comes before they are looked for."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("model.py").write_text("mine")
    Path("link.py").symlink_to("model.py")
    for target, code in (
        ("-", 2),
        ("", 2),
        ("pipe", 3),
        ("folder", 3),
        ("/dev/null", 3),
        ("model.py", 3),
        ("link.py", 3),
        ("absent/x", 3),
        ("model.py/x", 3),
    ):
        assert run([*WRITERS[verb], target]) == code, (target, capsys.readouterr())
        assert (target if code == 3 else WRITERS[verb][-1]) in capsys.readouterr().err
    assert Path("model.py").read_text() == "mine" and left(tmp_path) == ["folder", "link.py", "model.py", "pipe"]


@pytest.mark.parametrize(
    "verb",
    [
        v
        for v in WRITERS
        if v not in ("rules generate", "machine calibrate", "machine calibrate --save", "rules derive")
    ],
)
def test_every_verb_writes_again(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results of ours are replaced by the verbs that write them; everything else with --force; a link stays a link."""
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_bytes(problem_json(PROBLEM))
    Path("s.json").write_text("[1]")
    Path("r.json").write_text(RULES)
    if verb.startswith("run"):
        assert run([*WRITERS["plan"], "plan.spz"]) == 0
    call = list(WRITERS[verb])
    Path("link").symlink_to("out")
    Path("out").touch()
    assert run([*call, "link"]) == 0 and "note: link is a link" in capsys.readouterr().err
    assert Path("link").is_symlink() and Path("out").stat().st_size
    assert run([*call, "out"]) == (0 if is_result(Path("out")) else 3)
    Path("out").write_text("mine")
    assert run([*call, "out"]) == 3 and Path("out").read_text() == "mine"
    assert run([*call, "out", "--force"]) == 0 and Path("out").read_text(errors="ignore") != "mine"
    assert not [name for name in left(tmp_path) if name.endswith((".tmp", ".part"))]


def test_a_model_is_not_replaced_by_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.json").write_text(build("mlp-unity").to_json())
    assert run(["plan", "m.json", "--machine", "localhost:2", "-o", "m.json"]) == 3
    assert json.loads(Path("m.json").read_text())["format"] == "shardproof-graph/1"
    assert run(["rules", "show", "g0", "--svg", "x", "--smtlib", "x"]) == 2  # one file, two outputs


def test_a_journal_is_not_written_over_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("text")
    assert run(["rules", "generate", "-o", "l.spz", "--journal", "mine"]) == 3
    assert "mine: exists and is not a journal" in capsys.readouterr().err and Path("mine").read_text() == "text"
