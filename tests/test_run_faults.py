"""Whatever ends a run, nothing of it is left: real processes, ended in every way, and a rank that is stopped.

The front end runs `run` on ranks that sleep in an operator.  After the signal no process that has the job's folder
among its words may live, and the folder must be gone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_mpi import split

from shardproof.backends.execution import launch as launching
from shardproof.backends.execution import progress, segments, workplace
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.job import Options
from shardproof.backends.execution.launch import mpi_available, run_job
from shardproof.backends.execution.reference import random_inputs
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError

needs_ranks = pytest.mark.skipif(
    not mpi_available() or not Path("/proc/self/cmdline").exists(),
    reason="mpi4py or mpiexec is not installed, or no /proc",
)

SLOW = """
import sys, time
from pathlib import Path
from dataclasses import replace
from shardproof.backends.execution import interpreter, rank
from shardproof.backends.kernels.library import OURS
real = OURS.execute

def slow(xp, op, *rest):
    if op.name == "fc2":
        time.sleep(600)
    return real(xp, op, *rest)

interpreter.library_of = lambda name: replace(OURS, execute=slow)
rank.main(Path(sys.argv[1]))
"""

FRONT = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup both are ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from test_mpi import split
from shardproof.backends.execution import launch as launching
from shardproof.backends.execution.job import Options
from shardproof.backends.execution.reference import random_inputs
from shardproof.models.sources.zoo import build

real = launching.launch
launching.launch = lambda arguments, *rest: real([{script!r}, arguments[-1]], *rest)
graph = build("mlp-unity", batch=8, inputs=24, hidden=16, classes=8, dtype="float64")
launching.run_job(graph, (2,), split(graph, (2,), ("k",)), random_inputs(graph, 0), Options(), 300.0)
"""


def words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def alive(mark: str) -> list[int]:
    """Processes with `mark` in one of their words."""
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if any(mark in w for w in words(p))]


def until(condition, seconds: float) -> bool:
    """A bound on a hang, not a measurement."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A front end with two ranks in the middle of an operator, and the folder of their job."""
    script, place = tmp_path / "slow.py", tmp_path / "place"
    script.write_text(SLOW)
    place.mkdir()
    front = subprocess.Popen(
        [sys.executable, "-c", FRONT.format(tests=str(Path(__file__).parent), script=str(script))],
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": launching.environment(2)["PYTHONPATH"]},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert until(lambda: _all_in(place, "fc2"), 60), (
            front.stderr.read() if front.poll() is not None and front.stderr else "the ranks did not begin"
        )
        yield front, next(place.glob("shardproof-*"))
    finally:
        for process in [*alive(str(script)), *([] if front.poll() is not None else [front.pid])]:
            os.kill(process, signal.SIGKILL)
        front.wait(10)


def _all_in(place: Path, operator: str) -> bool:
    """Whether both ranks have begun and sleep: their instruction no longer changes."""
    found = list(place.glob("shardproof-*/progress.bin"))
    if not found or not found[0].stat().st_size:  # made, and not long yet
        return False
    before = progress.open_table(found[0].parent).tolist()
    time.sleep(0.7)
    return before == progress.open_table(found[0].parent).tolist() and all(process and at > 0 for process, at in before)


@needs_ranks
@pytest.mark.mpi
@pytest.mark.parametrize(
    "sign",
    [
        signal.SIGTERM,
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_of_a_front_end(sign: signal.Signals, job: tuple[subprocess.Popen[bytes], Path]) -> None:
    front, folder = job
    assert len(alive(str(folder))) >= 5, "mpiexec, two guards, two ranks"
    shared = shared_by(folder)
    assert shared and all(file.exists() for file in shared)
    front.send_signal(sign)
    code = front.wait(30)
    assert code == (-sign if sign != signal.SIGINT else -signal.SIGINT) or sign == signal.SIGINT and code == 1
    assert until(lambda: not alive(str(folder)), 20), [words(Path(f"/proc/{p}")) for p in alive(str(folder))]
    assert until(lambda: not folder.exists(), 10)
    assert until(lambda: not any(file.exists() for file in shared), 10), shared


@needs_ranks
@pytest.mark.mpi
def test_a_killed_rank_leaves_no_shared_memory(job: tuple[subprocess.Popen[bytes], Path]) -> None:
    """The launcher ends the others; nobody but us removes what they shared."""
    front, folder = job
    shared = shared_by(folder)
    os.kill(int(progress.open_table(folder)[1, 0]), signal.SIGKILL)
    assert front.wait(60) != 0 and shared
    assert until(lambda: not any(file.exists() for file in shared), 10), shared


def test_only_shared_memory_of_the_job_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what has another place, or came later under the same name."""
    monkeypatch.setattr(segments, "SHARED", str(tmp_path / "mpich_"))
    ours, other, elsewhere = tmp_path / "mpich_ours", tmp_path / "mpich_other", tmp_path / "elsewhere"
    for file in (ours, other, elsewhere):
        file.write_text("shared")
    named = {ours: ours.stat().st_ino, other: other.stat().st_ino + 1, elsewhere: elsewhere.stat().st_ino}
    (tmp_path / "segments-1").write_text("".join(f"{inode} {file}\n" for file, inode in named.items()) + "nonsense\n")
    segments.remove(tmp_path)
    assert not ours.exists() and other.exists() and elsewhere.exists()


def shared_by(folder: Path) -> list[Path]:
    """Files of shared memory that the ranks of a job have open, as the system says."""
    maps = [Path(f"/proc/{process}/maps").read_text() for process in alive(str(folder))]
    return sorted({Path(name) for text in maps for name in re.findall(r"/dev/shm/mpich_\S+", text)})


@needs_ranks
@pytest.mark.mpi
@pytest.mark.parametrize("who", ["rank", pytest.param("guard", marks=pytest.mark.slow)])
@pytest.mark.timeout(200)
def test_a_stopped_rank_is_named(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP for rank 1, or for its guard: an error with rank, operator and process long before the time is over,
    and nothing is left.
    """
    script = tmp_path / "stopping.py"
    stop = "os.getpid()" if who == "rank" else "os.getppid()"
    script.write_text(
        SLOW.replace("import sys, time", "import os, signal, sys, time").replace(
            "        time.sleep(600)",
            f"        from mpi4py import MPI\n        if MPI.COMM_WORLD.Get_rank() == 1:\n            "
            f"os.kill({stop}, signal.SIGSTOP)\n        time.sleep(600)",
        )
    )
    real, remove, noted = launching.launch, segments.remove, list[Path]()

    def removed(folder: Path) -> None:
        noted.extend(
            Path(line.split()[1]) for file in folder.glob("segments-*") for line in file.read_text().splitlines()
        )
        remove(folder)

    monkeypatch.setattr(segments, "remove", removed)
    monkeypatch.setattr(launching, "launch", lambda arguments, *rest: real([str(script), arguments[-1]], *rest))
    monkeypatch.setattr(progress, "SILENT_S", 6.0)
    graph = build("mlp-unity", batch=8, inputs=24, hidden=16, classes=8, dtype="float64")
    with pytest.raises(RankError, match="has been stopped for" if who == "rank" else "no sign of life") as caught:
        run_job(graph, (2,), split(graph, (2,), ("k",)), random_inputs(graph, 0), Options(), 300.0)
    assert (caught.value.rank, caught.value.place) == (1, "operator 'fc2', which writes tensor 'fc2'")
    assert until(lambda: not alive(str(script)), 15), alive(str(script))
    assert noted and not any(file.exists() for file in noted), noted


def test_who_is_silent() -> None:
    import numpy as np

    table = np.array([[11, 4], [12, 5], [13, progress.DONE], [0, progress.START]])
    beats = np.array([[100.0, 0], [100.0, 0], [50.0, 0], [0, 0]])
    assert progress.silent(table, beats, 101.0) is None, "running, running, done long ago, not begun"
    late = progress.silent(table, beats, 101.0 + progress.SILENT_S)
    assert late is not None and late[0] == 0 and "no sign of life of process 11" in late[1]
    beats[1] = 100.0, 99.0
    assert progress.silent(table, beats, 101.0) is None, "stopped for a moment"
    beats[1] = 100.0, 99.0 - progress.STOPPED_S
    found = progress.silent(table, beats, 101.0)
    assert found is not None and found[0] == 1 and "kill -CONT 12" in found[1]


def test_a_job_that_was_stopped_as_a_whole_goes_on(tmp_path: Path) -> None:
    """Suspended and resumed, front end and all: the ranks are heard again before anybody is called silent; one that
    is not, is.
    """
    progress.create(tmp_path, 2)
    table, beats = progress.open_table(tmp_path, write=True), progress.open_beats(tmp_path, write=True)
    table[:] = [[11, 4], [12, 5]]
    beats[:] = [[100.0, 0], [100.0, 0]]
    listener = progress.Listener(tmp_path, 100.0)
    assert listener.silent(100.2) is None
    assert listener.silent(4000.0) is None, "an hour later nobody has been heard, and neither have we listened"
    beats[0] = 4000.5, 0
    assert listener.silent(4000.7) is None
    for tenth in range(7, 100):
        found = listener.silent(4000.0 + tenth / 10)
    assert found is not None and found[0] == 1


def test_a_workplace_is_gone_when_its_maker_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before any rank began: nobody saw it, so the next job removes the folder; one that is in use, or not
    ours, stays.
    """
    monkeypatch.setattr(workplace.tempfile, "tempdir", str(tmp_path))
    code = (
        "from shardproof.backends.execution.workplace import workplace\nimport os, sys\nwith workplace() as f:\n    "
        "print(f, flush=True)\n    {}\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": launching.environment(1)["PYTHONPATH"]}
    killed = subprocess.run(
        [sys.executable, "-c", code.format("os.kill(os.getpid(), 9)")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9 and left.is_dir() and workplace.is_abandoned(left)
    waiting = subprocess.Popen(
        [sys.executable, "-c", code.format("sys.stdin.read()")],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None and waiting.stdin is not None
    used = Path(waiting.stdout.readline().strip())
    other = tmp_path / "shardproof-of-somebody"
    other.mkdir()
    (tmp_path / "shardproof-link").symlink_to(left)
    with workplace.workplace() as here:
        assert not left.exists() and used.is_dir() and other.is_dir() and here.is_dir()
        assert not workplace.is_abandoned(used) and not workplace.is_abandoned(here)
    assert not here.exists()
    waiting.stdin.close()
    waiting.stdout.close()
    assert waiting.wait(30) == 0 and not used.exists()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_unwind_once_and_then_end_the_process(sign: signal.Signals, tmp_path: Path) -> None:
    """A second signal while the first one tidies up changes nothing, and the exit status is the signal's."""
    code = (
        "from shardproof.backends.execution.workplace import workplace\nimport os, signal\n"
        # under nohup both are ignored
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"with workplace() as f:\n    try:\n        os.kill(os.getpid(), {int(sign)})\n        signal.pause()\n"
        f"    finally:\n        os.kill(os.getpid(), {int(signal.SIGTERM)})\n        print('tidy', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": launching.environment(1)["PYTHONPATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "tidy\n" and done.returncode == -sign
    assert not list(tmp_path.iterdir())


def test_no_room_is_said_with_the_place_and_the_space(tmp_path: Path) -> None:
    workplace.need_room(tmp_path, 1)
    with pytest.raises(InputError, match=re.escape(str(tmp_path)) + r".* 1024 TiB, and .* free there.*TMPDIR"):
        workplace.need_room(tmp_path, 1 << 50)
