"""Certificates of schedules: start times, and an argument in integers that no schedule is shorter.

All arguments are about the network of a problem: its tasks with their precedences.  For a pipeline the network also
orders equal micro-batches and lets memory be a precedence; why that loses no schedule stands in
`verify/schedules/pipeline.py`.  In a network

    head(t)    longest path to the start of t,      tail(t)    longest path from its end to the end of all

and every schedule is at least as long as each of

    Path         the longest path
    Load         the tasks of a stream with head >= r and tail >= q run one after another:  least head + times + least
                 tail
    Refutation   no schedule is as short as T, so T + 1: suppose one is, raise heads and tails by what follows, split
                 on which of two tasks of a stream comes first, and contradict every case.  Rows, in order of a
                 depth-first walk:

        RAISE_HEAD  t, s, r, q    of the tasks of stream s other than t with head >= r and tail >= q none can come after
                                  t, for  min head + times + tail > T:  t is the last, its head grows
        RAISE_TAIL  t, s, r, q    the mirror image: t is the first, its tail grows
        SPLIT       a, b, 0, 0    tasks of one stream: a before b in the rows that follow, then b before a
        LOAD        s, r, q, 0    the load of stream s is more than T: this case is done
        ORDER       a, b, 0, 0    tasks of one stream: b before a would take more than T, so a is before b
        AFTER_ALL   t, s, r, 0    the tasks of stream s with head >= r that come before t by precedence run one after
                                  another first: the head of t is at least their least head and times
        BEFORE_ALL  t, s, q, 0    the mirror image: those after t with tail >= q; the tail of t grows
        PATH        t, 0, 0, 0    head + time + tail of t is more than T: this case is done

    and of memory, about any one moment (`verify/schedules/moments.py` has the dual that bounds what has started by
    then):

        PRICE       d, p, w, 0    an argument about device d begins: p per unit of its memory, w per unit of time
        FLOW        x, u, f, 0    f of it from task x (from number tasks + k: the end of holding k) to task u, which is
                                  before x (one of the last tasks of k)
        WAITS       a, b, 0, 0    b running and a not ended hold more than the limit: a is before b
        APART       a, b, 0, 0    a and b running hold more than the limit: from here on they count as on one stream
        WORK        t, s, q, 0    when t starts, so much of the tasks of stream s with tail >= q is left that, with head
                                  of t and q, it takes more than T: this case is done
        LEFT        t, y, s, 0    of the tasks of stream s that come before y by precedence so much is left when t
                                  starts: the head of y is at least that of t and what is left

Source: Carlier and Pinson 1989 (edge finding); Jackson 1955 (one machine with heads and tails).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ...models.problem.selection_problem import Ints
from ...models.schedules.pipeline import Pipeline
from ...models.schedules.problem import ScheduleProblem
from ...models.text import seconds_text

RAISE_HEAD: Final = 0
RAISE_TAIL: Final = 1
SPLIT: Final = 2
LOAD: Final = 3
PATH: Final = 4
ORDER: Final = 5
AFTER_ALL: Final = 6
BEFORE_ALL: Final = 7
PRICE: Final = 8
FLOW: Final = 9
WAITS: Final = 10
APART: Final = 11
WORK: Final = 12
LEFT: Final = 13


@dataclass(frozen=True)
class Path:
    """The longest path of the network."""


@dataclass(frozen=True)
class Load:
    """Tasks of `stream` with head at least `head` and tail at least `tail`."""

    stream: int
    head: int
    tail: int


@dataclass(frozen=True, eq=False)
class Refutation:
    """No schedule is as short as `makespan`; `rows` has shape (steps, 5): the word and its four numbers."""

    makespan: int
    rows: Ints


Bound = Path | Load | Refutation


@dataclass(frozen=True, eq=False)
class ScheduleCertificate:
    """`starts[t]`: start of task t, shape (tasks,).  The schedule ends at `makespan`, and none ends before
    `lower_bound`, by `bound`.  `kind` names the rule that made the schedule and is not checked.
    """

    subject: Pipeline | ScheduleProblem
    starts: Ints
    makespan: int
    lower_bound: int
    bound: Bound
    kind: str

    @property
    def rows(self) -> int:
        """Rows of the argument."""
        return len(self.bound.rows) if isinstance(self.bound, Refutation) else 0

    @property
    def scale(self) -> int:
        """Times are integers of 1/scale of the unit."""
        return self.subject.scale

    def text(self, units: int) -> str:
        """A time as people read it.

        >>> import numpy as np
        >>> c = ScheduleCertificate(Pipeline(((1, 1, 1),), 1, 0, None, 2), np.zeros(6), 3, 3, Path(), "drawn")
        >>> c.text(6), c.text(7)
        ('3', '7/2')
        """
        if isinstance(self.subject, Pipeline):
            return str(Fraction(units, self.scale))
        if self.subject.unit == "s":
            return seconds_text(units, self.scale)
        return f"{Fraction(units, self.scale)} {self.subject.unit}"
