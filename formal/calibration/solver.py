"""This module solves linear problems of the fits by HiGHS through cvxpy, which keeps its banner to itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cvxpy


def solve(problem: cvxpy.Problem) -> str:
    """The solver's status; the variables hold the solution."""
    import cvxpy

    with _quiet():
        problem.solve(solver=cvxpy.HIGHS)
    return str(problem.status)


@contextmanager
def _quiet() -> Iterator[None]:
    """HiGHS prints its name on the process's own standard output, where `--json` must stand alone."""
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
