"""Signs of life between the guards of ranks and the process that watches over the job, over any network: UDP.

    guard -> watch    beat: rank, process, instruction, step, for how long it has been stopped     every BEAT_S
                      word: how it ended, or what it failed with                                   until it is answered
    watch -> guard    lives, or ends with an exit status                                           an answer to each

Datagrams, because a beat that is lost needs no repetition: the next one says more.  The watch writes beats into the
tables of `progress`, at its own clock, so that one place tells which rank is silent, wherever it runs.  A guard that
hears no answer for the time-out is cut off, and ends its rank.  A datagram counts if it has the job's token.

The watch does not know which of its addresses others reach: guards write to all of them until one answers.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from ...models.files.json_text import JsonError, parse_json
from . import progress
from .interpreter import RankError
from .job import write_error

_LARGEST: Final = 8192
_REASON: Final = 2000
_ADDRESS_OF: Final = 0x8915
"""SIOCGIFADDR of Linux."""

JOB: Final = "SHARDPROOF_JOB"
"""The variable that names the folder of the job to rank 0."""

ORDER: Final = "order.json"
"""In that folder: what there is to do."""

REFUSED: Final = "refused.txt"
"""In that folder: why the job cannot begin on these computers."""

FIRST_S: Final = 1.0
"""How much longer than the watch a guard waits."""

AGAIN_S: Final = 0.2
"""Seconds until a word that nobody answered is said again."""


@dataclass(frozen=True)
class Meeting:
    """Where the watch is: addresses, port, the token of the job, and how many seconds without a sign of life end it."""

    addresses: tuple[str, ...]
    port: int
    token: str
    limit_s: float


@dataclass(frozen=True)
class Beat:
    """What a guard says of its rank: `at`: the instruction; `step`: of training, 0 for none; `stopped_s`: for how long
    it has been stopped, 0 if it runs.
    """

    rank: int
    process: int
    at: int
    step: int
    stopped_s: float


class Watch:
    """Listens to guards on a thread, from `with` to its end.  `folder`: of the job; `limit_s`: seconds without an
    answer after which a guard ends its rank.
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._folder, self._token, self._limit_s, self._status = folder, secrets.token_hex(16), limit_s, 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self._socket.settimeout(0.2)
        self._guards: dict[int, tuple[str, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="signs of life", daemon=True)
        self._table, self._beats = progress.open_table(folder, True), progress.open_beats(folder, True)

    @property
    def meeting(self) -> Meeting:
        """Where guards find it."""
        return Meeting(own_addresses(), self._socket.getsockname()[1], self._token, self._limit_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def end(self, status: int) -> None:
        """The job has failed: guards are told to end their ranks, now and whenever one is heard of."""
        self._status = status
        for guard in list(self._guards.values()):
            self._answer(guard, status)

    def _answer(self, guard: tuple[str, int], status: int) -> None:
        with suppress(OSError):
            self._socket.sendto(json.dumps({"token": self._token, "status": status}).encode(), guard)

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                data, sender = self._socket.recvfrom(_LARGEST)
            except OSError:  # time-outs among them
                continue
            said = read(data, self._token)
            if said is not None:
                with suppress(KeyError, TypeError, ValueError, OverflowError, IndexError, OSError):
                    self._take(said, sender)

    def _take(self, said: Mapping[str, Any], sender: tuple[str, int]) -> None:
        rank = int(said["rank"])
        if not 0 <= rank < len(self._table):
            return
        self._guards[rank] = sender
        match said["kind"]:
            case "beat":
                now, stopped = time.monotonic(), float(said["stopped_s"])
                row = np.array([int(said["process"]), int(said["at"]), int(said["step"])], dtype=np.int64)
                self._table[rank] = row[:2]  # nothing is written of a beat that lacks something
                self._beats[rank] = now, now - stopped if stopped > 0 else 0.0
                _set_step(self._folder, rank, int(row[2]))
            case "error":
                write_error(self._folder, RankError(rank, str(said["place"]), str(said["reason"])))
            case "death":
                progress.write_death(self._folder, progress.Death(int(said["process"]), int(said["status"]), rank))
            case "refused":
                (self._folder / REFUSED).write_text(str(said["reason"]))
            case _:
                return
        self._answer(sender, self._status)


class Voice:
    """What a guard, or a rank, says to the watch.  `heard_s`: when it last answered; `ended`: the exit status that it
    gave the job.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting, self._socket = meeting, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._goals = [(a, meeting.port) for a in meeting.addresses]
        self.heard_s, self.ended = time.monotonic(), 0

    def beat(self, beat: Beat) -> None:
        """Say it, and hear what was answered since."""
        self._say({"kind": "beat", **asdict(beat)})
        self._hear()

    def tell(self, word: Mapping[str, object], within_s: float) -> bool:
        """Say a word until it is answered; whether it was."""
        self._hear()
        until, before = time.monotonic() + within_s, self.heard_s
        while time.monotonic() < until:
            self._say(word)
            time.sleep(AGAIN_S)
            if self._hear() > before:
                return True
        return False

    @property
    def is_cut_off(self) -> bool:
        """Whether the watch has been silent for the time-out, and a little longer: it is to speak first."""
        return time.monotonic() - self.heard_s > self._meeting.limit_s + FIRST_S

    def _say(self, word: Mapping[str, object]) -> None:
        data = json.dumps({"token": self._meeting.token, **word}).encode()
        for goal in self._goals:
            with suppress(OSError):  # no way there, at the moment or at all
                self._socket.sendto(data, goal)

    def _hear(self) -> float:
        while True:
            try:
                data, sender = self._socket.recvfrom(_LARGEST)
            except OSError:
                return self.heard_s
            said = read(data, self._meeting.token)
            if said is not None and isinstance(said.get("status"), int):
                self.heard_s, self._goals = time.monotonic(), [sender]
                self.ended = self.ended or int(said["status"])


def error_word(error: RankError) -> dict[str, object]:
    """What a rank failed with, as a word."""
    return {"kind": "error", "rank": error.rank, "place": error.place[:_REASON], "reason": error.reason[:_REASON]}


def read(data: bytes, token: str) -> dict[str, Any] | None:
    """A datagram of the job; None for any other.

    >>> read(b'{"token": "a", "rank": 1}', "a"), read(b'{"token": "b"}', "a"), read(b"[", "a")
    ({'token': 'a', 'rank': 1}, None, None)
    """
    try:
        found: Any = parse_json(data)
    except (JsonError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("token"), str):
        return None
    return found if hmac.compare_digest(found["token"].encode(), token.encode()) else None


def own_addresses() -> tuple[str, ...]:
    """Of this computer (IPv4): others first, the one that only it can reach last.

    >>> "127.0.0.1" in own_addresses()
    True
    """
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                row = fcntl.ioctl(asked.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(row[20:24]))
    with suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    return tuple(sorted(dict.fromkeys([*found, "127.0.0.1"]), key=lambda a: a.startswith("127.")))


def step_of(folder: Path, rank: int) -> int:
    """The step of training that a rank is at; 0 where there is none."""
    with suppress(OSError, ValueError, IndexError):
        return int(np.fromfile(folder / "at.bin", dtype=np.int64)[rank])
    return 0


def _set_step(folder: Path, rank: int, step: int) -> None:
    path = folder / "at.bin"
    if step and path.exists():
        np.memmap(path, dtype=np.int64, mode="r+")[rank] = step


def meeting_from(data: Mapping[str, Any]) -> Meeting:
    """What `asdict` wrote."""
    addresses: Sequence[Any] = data["addresses"]
    return Meeting(tuple(map(str, addresses)), int(data["port"]), str(data["token"]), float(data["limit_s"]))
