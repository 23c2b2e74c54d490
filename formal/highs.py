"""Lets HiGHS run in one process with other users of HiGHS.

All instances of a process share one pool of threads.  An instance that asks for another number of threads than the pool
was made with gets an error and `Not Set` from its run, not an answer (the story: proofs of rules were lost after a
selection problem had been solved with two threads).  `run_alone` makes the pool anew when that happens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highspy import Highs, HighsModelStatus


def fresh_pool() -> None:
    """Make the pool anew at the next run, whoever used it before (cvxpy and PuLP use HiGHS too)."""
    from highspy import Highs

    Highs.resetGlobalScheduler(True)


def silent_solver() -> Highs:
    """A solver of HiGHS that prints nothing.

    The class of `highspy` prints a banner when it is made (1.16: while its callbacks are set up, before any option can
    be); the compiled class below it, which has all that is used here, does not.
    """
    import highspy

    solver: Highs = highspy.Highs.__mro__[1]()
    solver.setOptionValue("output_flag", False)
    return solver


def run_alone(solver: Highs) -> HighsModelStatus:
    """Run `solver`; the status of its model, `kNotset` only if HiGHS refuses with a pool of its own too.

    >>> import highspy
    >>> statuses = []
    >>> for threads in (2, 1):
    ...     h = highspy.Highs()
    ...     _ = h.setOptionValue("output_flag", False), h.setOptionValue("threads", threads), h.addVar(0, 1)
    ...     statuses.append(run_alone(h).name)
    >>> statuses
    ['kOptimal', 'kOptimal']
    """
    from highspy import HighsStatus

    if solver.run() == HighsStatus.kError:
        fresh_pool()
        solver.run()
    status: HighsModelStatus = solver.getModelStatus()
    return status


@contextmanager
def without_banner() -> Iterator[None]:
    """For packages that make a solver of HiGHS themselves (cvxpy, PuLP): it prints its name on the process's own
    standard output before it can be told not to.
    """
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
