"""Where the ranks of a job run, for all that starts ranks within: on this computer, on those of a hostfile, or where a
launcher has started them.

    with spread_over(Spread(levels, hostfile=Path("hosts"))):    # whatever calls `launch` in here
        ...
"""

from __future__ import annotations

import re
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


MOST_RANKS: Final = 1 << 16
"""Of one computer in a hostfile: as many as `run -n` takes."""
_HOST: Final = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,254}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?", re.ASCII)
"""A name or an address in brackets, with a number of ranks: nothing that a launcher or ssh takes for an option."""
_WORD: Final = re.compile(r"[A-Za-z_-]{1,40}=[A-Za-z0-9.,:_-]{1,80}", re.ASCII)
"""What launchers let follow, such as `slots=4`."""


def host_count(hostfile: Path) -> int:
    """Computers that a hostfile names, at least one.  Raises `InputError` where it cannot be read, or names none, and
    for a line that is no computer with a number of ranks.
    """
    try:
        lines = [line.partition("#")[0].split() for line in hostfile.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{hostfile}: cannot be read as a hostfile: {error}") from None
    names = set[str]()
    for number, words in enumerate(lines, 1):
        if not words:
            continue
        found = _HOST.fullmatch(words[0])
        odd = next((w for w in words[1:] if _WORD.fullmatch(w) is None), None)
        if found is None or odd is not None or (found[2] is not None and not 0 < int(found[2]) <= MOST_RANKS):
            raise InputError(
                f"{hostfile}, line {number}: {(odd or words[0])[:60]!r} is no computer with ranks; write HOST:RANKS "
                "(MPICH) or HOST slots=RANKS (Open MPI)"
            )
        names.add(found[1])
    if not names:
        raise InputError(f"{hostfile}: names no computer; write one a line, as your launcher reads it")
    return len(names)
