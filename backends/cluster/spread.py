"""Where the ranks of a job run, for all that starts ranks within: on this computer, on those of a hostfile, or where a
launcher has started them.

    with spread_over(Spread(levels, hostfile=Path("hosts"))):    # whatever calls `launch` in here
        ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...models.text import InputError
from .launchers import Place

HEARTBEAT_S: Final = 20.0
"""Without a sign of life for so long a rank does not run: 40 of them are missing.  Much more than a crowded computer,
or a link that loses packets, lets it wait.  `run --heartbeat-timeout` sets another: 2 s, four of them, to 600 s.
"""


@dataclass
class Others:
    """The processes beside this one that a launcher has started, and that wait in MPI; `called`: to a job, once."""

    called: bool = False


@dataclass(frozen=True)
class Spread:
    """`levels`: (name, size) of the plan's machine, outermost first; `hostfile`: handed to the launcher; `place`: of
    this process among those that a launcher started, `others` the rest of them; `limit_s`: seconds without a sign of
    life that end a job; `on_gpus`: whether every rank has a GPU of its own.
    """

    levels: tuple[tuple[str, int], ...] = ()
    hostfile: Path | None = None
    place: Place | None = None
    limit_s: float = HEARTBEAT_S
    on_gpus: bool = False
    others: Others = field(default_factory=Others, compare=False)

    @property
    def is_local(self) -> bool:
        """Whether all ranks are started on this computer."""
        return self.hostfile is None and self.place is None


_CURRENT: Final[ContextVar[Spread]] = ContextVar("spread")
_HERE: Final = Spread()


def current_spread() -> Spread:
    """Where ranks that are started now run.

    >>> current_spread().is_local
    True
    """
    return _CURRENT.get(_HERE)


@contextmanager
def spread_over(spread: Spread) -> Iterator[None]:
    """Start ranks there."""
    before = _CURRENT.set(spread)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def host_count(hostfile: Path) -> int:
    """Computers that a hostfile names, at least one.  Raises `InputError` where it cannot be read, or names none."""
    try:
        lines = [line.partition("#")[0].split() for line in hostfile.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{hostfile}: cannot be read as a hostfile: {error}") from None
    names = {line[0].partition(":")[0] for line in lines if line}
    if not names:
        raise InputError(f"{hostfile}: names no computer; write one a line, as your launcher reads it")
    return len(names)
