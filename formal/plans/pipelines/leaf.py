"""Solves one leaf: a run of units on a view, or on its nodes, and what its certificate proves."""

from __future__ import annotations

from fractions import Fraction

from ....models.pipelines.pieces import Pieces
from ....models.pipelines.work import PER_SECOND
from ....models.problem.selection_problem import ProblemError
from ....proofs.pipelines.certificate import Leaf
from ...selection.model.clock import Clock
from ...selection.solve import solve
from .channels import Names, chain_of, chains

LEAF_GAP = Fraction(1, 1000)
"""Leaves are proved to this gap."""

LEAF_SECONDS = 6.0
"""For one leaf: what is known then is a bound too."""


def solve_leaf(
    pieces: Pieces, pair: tuple[int, int], run: tuple[int, int], times: int, once: bool, phase: str, clock: Clock
) -> Leaf | None:
    """The leaf of a run of units of a pair (stages, micro-batches); None if the time is over or nothing is proved.

    Entries of a problem of nodes are rounded up where those of the view need not be: one unit less for each.
    """
    if clock.over():
        return None
    joined, channels = pieces.joined, pieces.channels
    names: Names = ((), ()) if channels is None else chains(pieces, *run)
    if channels is not None:  # a chain that counts nothing is not said
        names = (names[0] if channels.forward[2] else (), names[1] if channels.backward[2] else ())
        names = (names[0] if phase != "B" else (), names[1] if phase != "F" else ())
    chain = chain_of(pieces, names)
    try:
        part = pieces.one_pass(*run, phase, chain) if phase else pieces.leaf(*run, times, int(once), chain)
    except ProblemError:  # costs too large for their unit
        return None
    answer = solve(part.problem, clock=clock.at_most(LEAF_SECONDS), gap=LEAF_GAP)
    if answer.certificate is None or answer.lower_bound is None:
        return None
    whole = 1 if channels is None else channels.whole
    rounded = whole * times * (len(part.problem.vertices) + len(part.problem.edges)) if joined else 0
    value = -(-max(0, answer.lower_bound - rounded) // whole) * PER_SECOND // part.problem.scale
    return Leaf(*pair, *run, times, once, value, answer.certificate, phase, joined, channels, names)
