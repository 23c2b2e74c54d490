"""Network namespaces as computers, for tests: each has its own interfaces and its own host name; one bridge joins them.

A process of one reaches another by TCP and UDP alone, as between computers; files and memory are shared, which the code
under test must not use: the folder that UNSHARED names in the environment is empty on all but node0.  Needs root and
`ip netns`; see `why_not`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from threading import current_thread, main_thread

_NUMBERS = count()

AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec {name}n$((${{host##*.}} - 1)) unshare -um /bin/sh -c \\
    "hostname node$((${{host##*.}} - 1)); [ -z '$UNSHARED' ] || mount -t tmpfs none '$UNSHARED'; exec $*"
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@cache
def why_not() -> str:
    """Why there are no network namespaces here; empty where there are."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if lacking:
        return f"no {lacking[0]} here"
    try:
        with network(1, Path("/tmp")):
            return ""
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces are not allowed here: {getattr(error, 'stderr', error)!r}"


@dataclass
class Network:
    """Computers 10.77.1.1, .. called node0, ..; `mark`: in the environment of everything that is started on them."""

    name: str
    size: int
    agent: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def environment(self, **more: str) -> dict[str, str]:
        """Of a process that starts others: MPICH's launcher reaches computers by `agent`."""
        return {
            **os.environ,
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self.agent),
            "SHARDPROOF_TEST": self.mark,
            **more,
        }

    def start(self, command: list[str], **more: str) -> subprocess.Popen[str]:
        """A process on node0."""
        inside = 'hostname node0; exec "$@"'
        line = ["ip", "netns", "exec", f"{self.name}n0", "unshare", "-u", "/bin/sh", "-c", inside, "sh", *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(line, env=self.environment(**more), stdout=pipe, stderr=pipe, text=True)

    def hostfile(self, path: Path, *ranks: int) -> Path:
        """`ranks` on each computer, as MPICH reads it."""
        path.write_text("".join(f"10.77.1.{k + 1}:{n}\n" for k, n in enumerate(ranks)))
        return path

    def cut_off(self, node: int) -> None:
        """Pull the cable of a computer."""
        _ip("link", "set", f"{self.name}v{node}", "down")

    def slow_down(self, node: int, *words: str) -> None:
        """Limit what goes into a computer: words of `tc qdisc .. tbf`, which drops what does not fit."""
        line = ["tc", "qdisc", "add", "dev", f"{self.name}v{node}", "root", "tbf", *words]
        subprocess.run(line, check=True, capture_output=True, timeout=20)

    def dropped(self, node: int) -> int:
        """Packets that were lost on their way into a computer that was slowed down."""
        line = ["tc", "-s", "qdisc", "show", "dev", f"{self.name}v{node}"]
        said = subprocess.run(line, check=True, capture_output=True, text=True, timeout=20).stdout
        return int(said.partition("dropped ")[2].split(",")[0])

    def processes(self) -> dict[int, str]:
        """What runs of all that was started on the computers: number and command line."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (place / "environ").read_bytes():
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {
            pid: words for pid, words in found.items() if words
        }  # those that ended and wait for their parent have none

    def left_after(self, seconds: float) -> dict[int, str]:
        """What still runs when so much time has gone by."""
        until = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        return left


@contextmanager
def torn_down_by_sigterm() -> Iterator[None]:
    """Whoever ends the tests by SIGTERM, as a time limit does, has them tidy up as Ctrl-C has."""
    if current_thread() is not main_thread():  # only the main one may listen to signals
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def network(size: int, folder: Path) -> Iterator[Network]:
    """So many computers; they, and what runs on them, are gone at the end."""
    name = f"s{os.getpid() % 100_000}{next(_NUMBERS):x}"  # interfaces of the one before may still be on their way out
    made = Network(name, size, folder / f"{name}-agent")
    with torn_down_by_sigterm():
        yield from _joined(made)


def _joined(made: Network) -> Iterator[Network]:
    """The computers are made, and removed."""
    name, size = made.name, made.size
    try:
        made.agent.write_text(AGENT.format(name=name))
        made.agent.chmod(0o755)
        _ip("link", "add", f"{name}b", "type", "bridge")
        _ip("link", "set", f"{name}b", "up")
        for k in range(size):
            space = f"{name}n{k}"
            _ip("netns", "add", space)
            _ip("link", "add", f"{name}v{k}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", f"{name}v{k}", "master", f"{name}b", "up")
            _ip("-n", space, "addr", "add", f"10.77.1.{k + 1}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")
        yield made
    finally:
        for pid in made.processes():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        for k in range(size):
            subprocess.run(["ip", "link", "del", f"{name}v{k}"], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", f"{name}n{k}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}b"], check=False, capture_output=True)
        made.agent.unlink(missing_ok=True)
