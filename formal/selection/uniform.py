"""Answers a large problem whose structure repeats at once: a plan that is the same in every repetition, and
messages of one block swept over the whole.

    plan      the best symmetric plan of a few columns (`decomposition/column_generation.py`), of two where none alone
              fits, none of them searched below its root
    bound     messages of one block at the best prices, given to every repetition, swept until they hardly move

Branching needs a solution to begin with and minutes to find one; this takes the time of a problem with one layer, and
of a few sweeps over all of them.  It is how the factored search begins (`decomposition/blocks.py`), in a hurry.
"""

from __future__ import annotations

from dataclasses import replace

from .answer import Answer, answer_with
from .bound.dual import score_of
from .decomposition.blocks import begin
from .model.clock import Overdue
from .model.factored import whole
from .tree.run import Run


def uniform_start(given: Run) -> Answer | None:
    """A solution that fits, and the bound of messages that know nothing of it; None where nothing repeats, the problem
    is small, or no price gives a plan that fits.
    """
    problem, at = given.problem, given.options.decomposition
    short = problem.limit is not None and bool(problem.usages) and given.clock.remaining_s() < at.uniform_s
    if len(problem.vertices) < (at.uniform_vertices_in_a_hurry if short else at.uniform_vertices):
        return None
    until = given.clock.share(at.uniform_share)
    if until.remaining_s() < at.uniform_s:
        until = given.clock.beside(min(at.uniform_s, max(given.clock.outermost.remaining_s(), at.uniform_late_s)))
    hurried = replace(given.options, tree=replace(given.options.tree, nodes=1), decomposition=replace(at, repaired=0))
    run = given.again(until)
    run.options = hurried
    try:
        record = begin(run)
    except Overdue:
        if run.incumbent.solution is not None:
            given.incumbent.offer(run.incumbent.solution)
        raise
    if record is None or run.incumbent.solution is None:
        return None
    bound = score_of(run.base, whole(problem), record).lower()
    cost = run.incumbent.cost
    return answer_with(
        problem, run.incumbent.solution, cost, record, cost if bound is None else bound, given.clock.seconds()
    )
