"""Starts one rank of a job on many computers: `.. python -m mpi4py -m shardproof.backends.execution.member`.

    fork          the parent is the guard: it says signs of life to the watch (`heartbeat`), where the verb runs
    MPI           rank 0, whose environment names the job's folder, tells all others what there is to do
    compare       computers of all ranks with the plan's machine; what does not fit ends the job before a step
    carry         computers that are not rank 0's get a copy of the folder
    run           `MODULE.main(folder)`, as on one computer
    bring         files that ranks wrote into copies go back to rank 0's folder

What a rank fails with is told to the watch, which ends the job with it; only where nobody listens it is said here.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ...models.files.json_text import parse_json
from ...models.terminal.console import Exit, say
from ..cluster.launchers import place_of
from ..cluster.nodes import gpu_fault, topology_fault
from . import progress, segments
from .heartbeat import JOB, ORDER, Beat, Meeting, Voice, error_word, meeting_from, step_of
from .interpreter import RankError
from .workplace import is_abandoned, workplace

if TYPE_CHECKING:
    from mpi4py import MPI

WORD_S: Final = 3.0
"""How long one tries to leave word."""

LINGER_S: Final = 5.0
"""How long one that has left word waits to be ended by the watch: its launcher would end the watch, too."""

_CHUNK: Final = 1 << 28
_LAUNCHERS: Final = ("hydra_pmi_proxy", "mpiexec", "mpiexec.hydra", "prted", "orted", "prterun", "prte", "mpirun")
_ROOT: Final = progress.__name__.partition(".")[0]
"""Ours is `__main__` here."""


class NodeKeeper:
    """The guard of a rank that may be on another computer than the watch."""

    def __init__(self) -> None:
        self._said, self._voice, self._over = b"", None, False  # type: bytes, Voice | None, bool
        self._about: dict[str, Any] = {}

    def hear(self, data: bytes) -> None:
        """See `progress.Keeper`: a line of JSON once the rank knows of its job, and one when that is done."""
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            told: Any = parse_json(line)
            self._about |= told
        if self._voice is None and "meeting" in self._about:
            self._voice = Voice(meeting_from(self._about["meeting"]))
            if self._about["copy"]:
                _remove_behind(Path(self._about["folder"]))

    def beat(self, child: int, stopped_s: float) -> None:
        """See `progress.Keeper`."""
        if self._voice is not None:
            self._voice.beat(self._beat_of(child, stopped_s))

    def _beat_of(self, child: int, stopped_s: float) -> Beat:
        rank, folder = int(self._about["rank"]), Path(self._about["folder"])
        at = progress.DONE if "done" in self._about else progress.START
        with suppress(OSError, ValueError, IndexError):
            at = int(progress.open_table(folder)[rank, 1])
        return Beat(rank, child, at, step_of(folder, rank), time.monotonic() - stopped_s if stopped_s else 0.0)

    def is_over(self, parent_gone: bool) -> bool:
        """See `progress.Keeper`."""
        voice, about = self._voice, self._about
        lost = voice is not None and (bool(voice.ended) or voice.is_cut_off or is_abandoned(Path(about["folder"])))
        self._over = parent_gone or (lost and "done" not in about)
        return self._over

    def exit_status(self, child: int, code: int) -> int:
        """See `progress.Keeper`."""
        folder = Path(self._about["folder"]) if "folder" in self._about else None
        if folder is not None and (code or self._over):
            segments.remove(folder)
            if self._over and is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
        return self._status(child, code)  # which may have the launcher end us

    def _status(self, child: int, code: int) -> int:
        voice = self._voice
        if voice is None:  # it never knew of a job, or was refused
            return code if code >= 0 else progress.ABANDONED
        rank = f"rank {self._about['rank']} on {platform.node()!r}"
        if self._over:
            if voice.is_cut_off:
                say(f"error: {rank}: no answer of the job's first computer for {self._limit:g} s; ended", err=True)
            self._end_launcher()
            return voice.ended or Exit.INTERNAL
        beat = self._beat_of(child, 0.0)
        if code == 0 and beat.at == progress.DONE:
            voice.tell({"kind": "beat", **vars(beat)}, 1.0)
            return 0
        word = {"kind": "death", "rank": beat.rank, "process": child, "status": code}
        if not voice.tell(word, WORD_S):
            say(f"error: {rank}: {progress.Death(child, code).words()}", err=True)
            return code if code > 0 else progress.ABANDONED
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until and not voice.ended:
            voice.beat(beat)
            time.sleep(0.1)
        return voice.ended or (code if code > 0 else progress.ABANDONED)

    @property
    def _limit(self) -> float:
        return float(self._about["meeting"]["limit_s"])

    def _end_launcher(self) -> None:
        """A launcher's helper on a computer that is cut off waits for a connection that nobody closes, and a launcher
        whose caller was killed for its helpers.  They are ours to end where `run --hostfile` has started them.
        """
        if self._about["launched"]:
            return
        with suppress(OSError, ValueError, IndexError):
            parent = os.getppid()
            above = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
            for process in (parent,) if self._voice is not None and self._voice.is_cut_off else (above, parent):
                if Path(f"/proc/{process}/comm").read_text().strip() in _LAUNCHERS:
                    os.kill(process, signal.SIGTERM)


def _remove_behind(folder: Path) -> None:
    """A process that removes the folder when this one is gone, however it goes: launchers kill without asking.  It is
    in a session of its own, and holds nothing open that a launcher waits for.
    """
    ours, _ = os.pipe()
    if os.fork():
        os.close(ours)  # the other end is open as long as we are
        return
    os.setsid()
    os.dup2(ours, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Run this process' rank; ends the process."""
    told = progress.keep(NodeKeeper)
    from mpi4py import MPI

    world, place, host = MPI.COMM_WORLD, place_of(os.environ), platform.node()
    rank = world.Get_rank()
    if place is not None and place.size != world.Get_size():
        library = MPI.Get_library_version().splitlines()[0].strip()
        say(
            f"error: {place.by} has started {place.size} processes, and the MPI of this Python sees "
            f"{world.Get_size()}: start them with the launcher of that MPI, {library}",
            err=True,
        )
        _leave(Exit.BAD_INPUT)
    order: Any = world.bcast(parse_json((Path(os.environ[JOB]) / ORDER).read_text()) if rank == 0 else None, root=0)
    if order is None:  # the first process has nothing for the others to do, and says why itself
        _leave(Exit.DONE)
    meeting, hosts = meeting_from(order["meeting"]), world.allgather(host)
    fault = _fault(order, hosts) or (gpu_fault(hosts, world.allgather(_gpus())) if order["on_gpus"] else None)
    if fault is not None:
        if rank == 0:
            Voice(meeting).tell({"kind": "refused", "rank": rank, "reason": fault}, WORD_S)
        world.Barrier()
        _leave(Exit.BAD_INPUT)
    with ExitStack() as ends:
        folder, first = _carried(world, hosts, Path(order["folder"]), ends)
        if rank == 0:
            (folder / "hosts.json").write_text(json.dumps(hosts))
        if told is not None:
            about = {"rank": rank, "folder": str(folder), "copy": first, "launched": order["launched"]}
            os.write(told, (json.dumps({**about, "meeting": order["meeting"]}) + "\n").encode())
        before = set(_files(folder)) if first else set[str]()
        try:
            import_module(f"{_ROOT}.backends.execution.{order['module']}").main(folder)
            _bring(world, hosts, folder, before)
        except Exception as e:  # noqa: BLE001  whatever it was, the job ends with it
            _tell(meeting, e if isinstance(e, RankError) else RankError(rank, "start", f"{type(e).__name__}: {e}"))
            world.Abort(Exit.INTERNAL)
        if told is not None:
            os.write(told, b'{"done": true}\n')
        world.Barrier()  # a copy goes with its first rank, and the guards of the others look for it


def _fault(order: Any, hosts: list[str]) -> str | None:
    """Why the job cannot begin where its ranks are."""
    if len(hosts) != order["ranks"]:
        return f"the launcher has started {len(hosts)} ranks, and the plan is for {order['ranks']} devices"
    if hosts[0] != order["host"]:
        return (
            f"rank 0 is on {hosts[0]!r}, and `run --hostfile` was called on {order['host']!r}: call it on the first "
            f"computer of the hostfile"
        )
    return topology_fault(hosts, [(str(name), int(size)) for name, size in order["levels"]])


def _gpus() -> int:
    """GPUs that this process sees."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except (ImportError, RuntimeError):  # the driver's errors are such
        return 0


def _leave(status: int) -> NoReturn:
    """End without an abort; by the way out of C, on which MPICH takes leave of its launcher."""
    from mpi4py import MPI

    MPI.Finalize()
    sys.exit(status)


def _tell(meeting: Meeting, error: RankError) -> None:
    """Leave word, and wait to be ended; say it where nobody listens."""
    if Voice(meeting).tell(error_word(error), WORD_S):
        time.sleep(LINGER_S)
    else:
        say(f"error: {error}", err=True)


def _files(folder: Path) -> Iterator[str]:
    """Names of the files of a job, in its folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("alive", ORDER) and not path.name.startswith("segments-"):
            yield str(path.relative_to(folder))


def _carried(world: MPI.Intracomm, hosts: list[str], folder: Path, ends: ExitStack) -> tuple[Path, bool]:
    """(the job's folder on this computer, whether it is a copy of this rank's)."""
    from mpi4py import MPI

    rank = world.Get_rank()
    first = hosts.index(hosts[rank]) == rank
    leaders = MPI.Intracomm(world.Split(0 if first else MPI.UNDEFINED, rank))
    here = folder
    if first and leaders.Get_size() > 1:
        names: list[str] = leaders.bcast(list(_files(folder)) if rank == 0 else None, root=0)
        places = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_dir()) if rank == 0 else None
        places = leaders.bcast(places, root=0)
        if rank != 0:
            here = ends.enter_context(workplace())
            for place in places or []:
                (here / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            _send_file(leaders, here / name, rank == 0)
    everyone: list[str] = world.allgather(str(here))
    return Path(everyone[hosts.index(hosts[rank])]), first and rank != 0


def _send_file(among: MPI.Intracomm, path: Path, has: bool) -> None:
    """Rank 0's file to all others, in pieces."""
    size: int = among.bcast(path.stat().st_size if has else None, root=0)
    with _opened(path, size, has) as data:
        for start in range(0, size, _CHUNK):
            piece = np.array(data[start : start + _CHUNK]) if has else np.empty(min(_CHUNK, size - start), np.uint8)
            among.Bcast(piece, root=0)
            if not has:
                data[start : start + _CHUNK] = piece


@contextmanager
def _opened(path: Path, size: int, has: bool) -> Iterator[np.ndarray]:
    if size == 0:
        if not has:
            path.touch()
        yield np.empty(0, np.uint8)
        return
    yield np.memmap(path, np.uint8, "r" if has else "w+", shape=(size,))


def _bring(world: MPI.Intracomm, hosts: list[str], folder: Path, before: set[str]) -> None:
    """What ranks wrote into copies, to rank 0's folder."""
    if len(set(hosts)) == 1:
        return
    rank = world.Get_rank()
    first = hosts.index(hosts[rank]) == rank
    world.Barrier()  # all have written
    new = sorted(set(_files(folder)) - before) if first and rank != 0 else []
    everyone: list[list[tuple[str, bytes]]] | None = world.gather([(n, (folder / n).read_bytes()) for n in new], root=0)
    for found in everyone or []:
        for name, data in found:
            if not (folder / name).exists():
                (folder / name).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
