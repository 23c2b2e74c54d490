"""Runs a program on MPI ranks: start `mpiexec`, wait under a time limit, read the outputs.

The parent stays free of MPI.  The child environment has one thread per rank.  With more ranks than cores MPICH sleeps
while it polls, which is 5 to 20 times faster when others want the cores as well (8 ranks and 2 busy processes on 2
cores, all-gather of 1 MiB: 52 ms, 720 ms without).  With a core for every rank it must not: every piece of a message
then costs a sleep (2 ranks, the same: 5.6 to 7.6 ms, 0.2 to 0.5 ms without).  Measured by
`tests/benchmarks/message_waits.py`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...models.communication.choices import Choices, check_choices
from ...models.files.json_text import parse_json
from ...models.program.graph import Graph
from ...models.text import InputError
from ..cluster.launchers import start_line, without_place
from ..cluster.spread import Spread, current_spread, host_count
from ..kernels import Array, widen
from ..lowering.program import Program
from ..trace import Span, read_spans
from . import progress, segments
from .heartbeat import JOB, ORDER, REFUSED, Watch
from .interpreter import RankError
from .job import Options, build_program, read_error, write_job
from .reference import as_stored, check_inputs
from .workplace import need_room, workplace

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""Added to the environment of every rank.  The allocator keeps what is freed: asking the system for every block
anew costs a third of a small step.
"""

CROWDED = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
"""Added with more ranks than cores, unless the caller's environment has its own values."""

GRACE_S = 5.0
"""How long the launcher may take to end all ranks after one has failed."""

INTERNAL: Final = 6
"""The exit status that ranks of a job that failed are given."""

_ROOT = __name__.partition(".")[0]


class LaunchError(RuntimeError):
    """MPI could not be started, took too long, or broke without a rank leaving word."""


class SilentRank(LaunchError):
    """Rank `rank` does not run any more, though its process exists."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}; all ranks were ended")
        self.rank, self.reason = rank, reason


def mpi_available() -> bool:
    """Whether mpi4py and a launcher are installed; imports neither."""
    return find_spec("mpi4py") is not None and _mpiexec() is not None


def _mpiexec() -> str | None:
    own = Path(sys.prefix) / "bin" / "mpiexec"  # the wheel's, which belongs to the mpi4py of this environment
    return str(own) if own.is_file() else shutil.which("mpiexec")


def cores() -> int:
    """Cores that this process may use; all of them where the system does not say (macOS).

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(ranks: int) -> dict[str, str]:
    """What `ranks` processes on this computer are started with: the caller's environment and what the module docstring
    says.

    >>> environment(1 << 20)["MPIR_CVAR_ENABLE_HEAVY_YIELD"]
    '1'
    """
    crowded = CROWDED if ranks > cores() else {}
    home = str(Path(next(iter(sys.modules[_ROOT].__path__))).parent)  # children must find the package that we are
    path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
    return {**crowded, **os.environ, **ENVIRONMENT, "PYTHONPATH": path}


def launch(
    arguments: Sequence[str],
    ranks: int,
    timeout_s: float,
    folder: Path | None = None,
    heard: Callable[[], bool] | None = None,
) -> None:
    """Start `python -m mpi4py ARGUMENTS` on `ranks` ranks and wait.  `heard`: asked several times a second; where it
    says that something came, the time begins anew.

    `folder`: of a job whose ranks have guards (`progress`): then a rank that has failed or was stopped is noticed here.
    MPICH's launcher should end by itself when a rank fails, but was seen not to notice that a process is gone (once in
    CI, not in 700 tries on purpose); it has `GRACE_S` for it.

    Raises `LaunchError` when MPI is missing, the time is over (all ranks are killed), or a rank ends with an error,
    `SilentRank` when one is stopped.
    """
    spread = current_spread()
    if find_spec("mpi4py") is None or (_mpiexec() is None and spread.place is None):
        raise LaunchError("MPI is not installed: pip install 'shardproof[mpi]', or run with --virtual")
    if not spread.is_local and (folder is None or arguments[0] != "-m"):
        raise LaunchError("scripts are started on this computer only")
    with ExitStack() as ends:
        watch = None if spread.is_local or folder is None else ends.enter_context(Watch(folder, spread.limit_s))
        command, added = _start(arguments, ranks, spread, folder, watch)
        code, text = _run(command, added, ranks, timeout_s, spread, folder, heard, watch)
    if folder is not None and (refused := folder / REFUSED).exists():
        raise InputError(refused.read_text())
    if code:
        who = "mpiexec" if spread.place is None else "rank 0"
        raise LaunchError(f"{who} ended with code {code}; last lines:\n" + "\n".join(text.strip().splitlines()[-12:]))


def _start(
    arguments: Sequence[str], ranks: int, spread: Spread, folder: Path | None, watch: Watch | None
) -> tuple[list[str], dict[str, str]]:
    """(command line, environment) of what starts the ranks, or of the one that is ours to start."""
    mpiexec = _mpiexec() or "mpiexec"
    if watch is None or folder is None:
        safe = ["-P"] if arguments[0] == "-m" else []
        # what lies in the current folder is not to be imported; a script may import its neighbours
        command = [mpiexec, "-n", str(ranks), sys.executable, *safe, "-m", "mpi4py", *arguments]
        return command, without_place(environment(ranks))
    order = {
        "module": arguments[1].rpartition(".")[2],
        "folder": str(folder),
        "host": platform.node(),
        "ranks": ranks,
        "levels": spread.levels or (("ranks", ranks),),
        "on_gpus": spread.on_gpus,
        "launched": spread.place is not None,
        "meeting": asdict(watch.meeting),
    }
    (folder / ORDER).write_text(json.dumps(order))
    program = [sys.executable, "-P", "-m", "mpi4py", "-m", f"{_ROOT}.backends.execution.member"]
    if spread.hostfile is None:
        return program, {**environment(1), JOB: str(folder)}
    added = {**without_place(environment(-(-ranks // host_count(spread.hostfile)))), JOB: str(folder)}
    passed = [n for n in added if n in ENVIRONMENT or n in CROWDED or n in ("PATH", "PYTHONPATH", "TMPDIR", JOB)]
    return [*start_line(mpiexec, ranks, str(spread.hostfile.resolve()), passed), *program], added


def _run(
    command: Sequence[str],
    added: Mapping[str, str],
    ranks: int,
    timeout_s: float,
    spread: Spread,
    folder: Path | None,
    heard: Callable[[], bool] | None,
    watch: Watch | None,
) -> tuple[int, str]:
    """(exit code, what was said) of the launcher."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command,
            env=added,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=spread.place is None,  # a launcher has left connections to the ranks that it started
        )
        code, spread.others.called = -1, True
        try:
            code = _wait(child, ranks, timeout_s, folder, heard, spread.limit_s, spread.is_local)
        finally:
            if watch is not None and code:
                watch.end(INTERNAL)
            if child.poll() is None:  # time-out or interrupt: the launcher passes the signal on to its ranks
                if folder is not None:
                    segments.note_running(folder)
                _end(child)
                if folder is not None:
                    _end_ranks(folder)
            if folder is not None and child.returncode:
                segments.remove(folder)
        log.seek(0)
        return code, log.read().decode(errors="replace")


def _wait(
    child: subprocess.Popen[bytes],
    ranks: int,
    timeout_s: float,
    folder: Path | None,
    heard: Callable[[], bool] | None,
    limit_s: float,
    is_local: bool,
) -> int:
    """The launcher's exit code."""
    deadline, reason = (
        time.monotonic() + timeout_s,
        f"did not finish within {timeout_s:g} s and were ended; raise the time limit",
    )
    word = False
    listener = None if folder is None else progress.Listener(folder, time.monotonic(), limit_s)
    while (left := deadline - time.monotonic()) > 0:
        try:
            return child.wait(min(left, 0.2))
        except subprocess.TimeoutExpired:
            if heard is not None and heard() and not word:
                deadline = time.monotonic() + timeout_s
            if (
                folder is not None
                and not word
                and (read_error(folder) is not None or progress.read_death(folder) is not None)
            ):
                word, deadline = True, min(deadline, time.monotonic() + (GRACE_S if is_local else 0.0))
                reason = f"were ended: one of them failed, and the launcher did not end the others within {GRACE_S:g} s"
            if listener is not None and not word and (found := listener.silent(time.monotonic())) is not None:
                raise SilentRank(found[0], found[1] + _host(folder, found[0])) from None
    raise LaunchError(f"{ranks} ranks {reason}")


def _host(folder: Path | None, rank: int) -> str:
    """Where a rank of a job on many computers is."""
    names = None if folder is None else folder / "hosts.json"
    if names is None or not names.exists():
        return ""
    hosts: Any = parse_json(names.read_text())
    return f"; it is on {hosts[rank]!r}"


def _end(child: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
            child.wait(5)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def _end_ranks(folder: Path) -> None:
    """Ranks and guards that the launcher has left behind, stopped ones for example; elsewhere than on Linux guards end
    themselves.

    They are found by the job's folder among their words: a process number may be in use again.
    """
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)
        except OSError:  # gone, or not ours
            continue


@dataclass(frozen=True, eq=False)
class MpiResult:
    """`outputs`: whole tensors in digit shape; `spans`: times of all ranks, if they were asked for; `transport`:
    what carried messages, in words.
    """

    outputs: dict[str, Array]
    spans: tuple[Span, ...]
    transport: str


def run_mpi(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices, inputs: Mapping[str, Array], timeout_s: float = 120.0
) -> dict[str, Array]:
    """Run the choices on one MPI rank per device; the graph's outputs as whole tensors in digit shape.  See
    `run_job`.
    """
    return run_job(graph, hierarchy, choices, inputs, Options(), timeout_s).outputs


def run_job(
    graph: Graph,
    hierarchy: tuple[int, ...],
    choices: Choices,
    inputs: Mapping[str, Array],
    options: Options,
    timeout_s: float = 120.0,
) -> MpiResult:
    """Run the choices on one MPI rank per device.

    Raises `ChoicesError` or `GraphError` before anything starts, `RankError` naming rank, operator and tensor when a
    rank fails, dies or does not come back in time, `LaunchError` otherwise.
    """
    check_choices(graph, hierarchy, choices)
    arrays = check_inputs(graph, inputs)
    arrays = as_stored(graph, arrays) if options.stored else arrays
    ranks = prod(hierarchy)
    with workplace() as folder:
        need_room(
            folder, sum(a.nbytes for a in arrays.values()) + sum(8 * graph.tensor(n).elements for n in graph.results)
        )
        write_job(folder, graph, hierarchy, choices, arrays, options)
        table = progress.open_table(folder)
        program = build_program(graph, hierarchy, choices, options)
        try:
            launch(["-m", f"{_ROOT}.backends.execution.rank", str(folder)], ranks, timeout_s, folder)
        except SilentRank as e:
            raise RankError(e.rank, at(program, table.tolist(), e.rank), e.reason) from e
        except LaunchError as e:
            error = read_error(folder) or post_mortem(program, table.tolist(), progress.read_death(folder), str(e))
            if error is not None:
                raise error from e
            raise
        outputs = {
            t: widen(np, np.load(folder / f"outputs/{n}.npy", allow_pickle=False)) for n, t in enumerate(graph.results)
        }
        spans = [s for r in range(ranks) if options.trace for s in read_spans(folder / f"trace/{r}.json")]
        return MpiResult(outputs, tuple(spans), (folder / "transport.txt").read_text())


def post_mortem(
    program: Program, table: Sequence[Sequence[int]], death: progress.Death | None, report: str
) -> RankError | None:
    """Who is to blame when no rank left word of an exception: the process that died first, or, after a time-out, the
    rank furthest behind.

    `table`: (process, instruction) per rank; `report`: the launcher's error.
    """
    processes = [process for process, _ in table]
    if death is not None and (found := death.rank_in(processes)) is not None:
        rank, reason = found, death.words()
    elif "did not finish" in report and (
        started := [(number, r) for r, (process, number) in enumerate(table) if process and number != progress.DONE]
    ):
        rank, reason = min(started)[1], f"did not come back; {report}"
    else:
        return None
    return RankError(rank, at(program, table, rank), reason)


def at(program: Program, table: Sequence[Sequence[int]], rank: int) -> str:
    """Where a rank is, in words."""
    number, steps = table[rank][1], program.ranks[rank]
    return (
        program.place(steps[number])
        if 0 <= number < len(steps)
        else "start"
        if number == progress.START
        else "collecting the outputs"
    )
