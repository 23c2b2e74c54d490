"""How much work and memory a file may ask of whoever checks it: a part of the format, known to those
who make files as well as to those who check them.

Work is counted in cells.  A cell is an entry of a table that numpy looks at once, some nanoseconds; what is done in
Python counts as many cells as take the same time.  What may be spent grows with the numbers that the files hold, not
with what they expand to: a large honest certificate comes with a large problem, a bomb is small.
"""

from __future__ import annotations

from typing import Final

WORK: Final = 1 << 31
"""Cells that any file may take: some 10 seconds."""

WORK_PER_NUMBER: Final = 1 << 11
"""Cells more for every number that the files hold."""

HELD: Final = 1 << 26
"""Entries that any file may have in memory at a time: 512 MiB."""

HELD_PER_NUMBER: Final = 1 << 4
"""Entries more for every number."""

PART: Final = 1 << 11
"""Cells of one vertex, edge or usage in one record: a dozen calls of numpy on small arrays."""

ELIMINATED: Final = 4 * PART
"""Cells of one eliminated vertex however few entries it has: 0.1 ms of Python."""

OBJECT: Final = 1 << 5
"""Cells of one operation on a Python integer."""
