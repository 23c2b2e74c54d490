"""What `--effort` means: a space, a gap that is enough and a limit, where none of them is given.

    quick       one placement axis per level, a gap of 3 %, 60 s: an answer while one waits
    normal      the default space, as far as its tables and their check fit into the time, no gap, 300 s
    thorough    the default space, no gap, an hour

Whatever the effort, beyond eight devices a first plan of the smallest space is there before the larger tables are begun
(`first.py`), and the answer is never worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, get_args

from ...models.text import InputError

EffortName = Literal["quick", "normal", "thorough"]


@dataclass(frozen=True)
class Effort:
    """What counts where nothing else is said.  `space`: None for the default one; `seconds`: of the wall."""

    space: str | None
    gap: Fraction
    seconds: float


EFFORTS: Final[dict[EffortName, Effort]] = {
    "quick": Effort("one-per-level", Fraction(3, 100), 60.0),
    "normal": Effort(None, Fraction(0), 300.0),
    "thorough": Effort(None, Fraction(0), 3600.0),
}


def effort_of(name: str) -> Effort:
    """The effort of a name; `InputError` lists the names.

    >>> effort_of("quick").space
    'one-per-level'
    """
    for known in get_args(EffortName):
        if name == known:
            return EFFORTS[known]
    raise InputError(f"effort {name[:40]!r}: choose {', '.join(get_args(EffortName))}")
