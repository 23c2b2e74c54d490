"""What can always be answered, however little time there was: a solution that needs no search, and
a bound that needs no messages.

    bound      that of messages that are all zero (`bound.plain`)
    solution   the cheapest that fits of those brought along, of one read off without messages, and of the one whose
               choices use least; moves of one vertex at a time, for a moment, make it fit where none does, and cheaper

None of it takes part in a search, so that answers that end by proof do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...models.problem.claims import LowerBound, Optimal, Status
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.selection.certificates import Dual, Elimination, Record, SelectionCertificate
from .answer import Answer, answer_with
from .bound.decode import decode
from .bound.dual import score_of
from .bound.plain import plain_dual
from .bound.trws import Sweeper
from .model.clock import Clock
from .model.factored import Base, allowed_domains, build, exact_cost, whole
from .model.infinity import INFINITY
from .options import Options, options_in_use
from .primal.incumbent import Incumbent
from .tree.branch_and_bound import new_run
from .tree.infeasible import leanest


def certify(problem: SelectionProblem, x: tuple[int, ...], cost: int, best: Answer) -> Answer:
    """The answer that claims `x`, with the best bound that what a search has found (`best`) proves for it.

    The solver's record where that holds whatever solution is claimed, else its messages alone, else none: records that
    leave out what cannot beat the solver's own cost do not serve another one.
    """
    record: Record
    record, bound = plain_dual(problem)
    bound <<= problem.fine_bits
    found = best.certificate
    if found is not None:
        proof, claim = found.proof, found.claim
        if isinstance(claim, Optimal) and (
            best.cost == cost or isinstance(proof, Elimination) and proof.then is None and not proof.fine
        ):
            record, bound = proof, claim.cost
        elif isinstance(proof, Dual) and proof.then is None and best.lower_bound is not None:
            record, bound = proof, best.lower_bound
        elif isinstance(proof, Dual):  # its messages bound every solution; what follows only those that beat this one
            dual = replace(proof, then=None, rounded=())
            lower = score_of(Base(problem, dual.denominator), whole(problem), dual).lower()
            if lower is not None:
                record, bound = dual, lower << problem.fine_bits
    answer = answer_with(problem, x, cost, record, bound, best.seconds)
    return replace(answer, asked=best.asked)


def fallback(
    problem: SelectionProblem,
    found: Answer,
    clock: Clock,
    brought: Iterable[tuple[int, ...]] = (),
    options: Options | None = None,
) -> Answer:
    """`found`, or what can always be answered where that is more.  `clock`: that of the search, which may be over;
    `brought`: solutions that may be cheaper, best guesses first.
    """
    if found.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return found
    best, cost = found.solution, found.cost
    for x in brought:
        if exact_cost(problem, x) is not None and (cost is None or problem.cost_of(x) < cost):
            best, cost = x, problem.cost_of(x)
    if found.solution is None:
        best = _made(problem, best, clock, options or options_in_use())
        cost = None if best is None else problem.cost_of(best)
    if best is None or cost is None:
        return with_plain_bound(problem, found)
    if best == found.solution and found.certificate is not None:
        return found
    answer = certify(problem, best, cost, found)
    return found if found.certificate is not None and found.gap() < answer.gap() else answer


def with_plain_bound(problem: SelectionProblem, found: Answer) -> Answer:
    """`found` with a certificate: where it has none, of the bound that needs no messages."""
    if found.certificate is not None:
        return found
    record, bound = plain_dual(problem)
    if bound >= INFINITY:
        return found
    lower = bound << problem.fine_bits
    if found.solution is not None and found.cost is not None:
        made = answer_with(problem, found.solution, found.cost, record, lower, found.seconds)
        return replace(made, asked=found.asked, alone=found.alone)
    return replace(
        found, certificate=SelectionCertificate(problem.sha256(), LowerBound(lower), record), lower_bound=lower
    )


def _made(
    problem: SelectionProblem, known: tuple[int, ...] | None, clock: Clock, options: Options
) -> tuple[int, ...] | None:
    """The best solution that fits without a search, from `known` if that is cheapest; None if these few steps find
    none.
    """
    domains = allowed_domains(problem)
    if any(d.size == 0 for d in domains):
        return None
    run = new_run(problem, Incumbent(problem), clock.beside(options.solve.fallback_s), options=options)
    network = build(run.unit, domains)
    starts = [decode(Sweeper(network))]
    if run.rows is not None:
        starts.insert(0, network.positions(leanest(problem, domains)))
    if known is not None:
        run.incumbent.offer(known)
    for x in starts:
        run.offer(network, x, polish=False)
    best = run.incumbent.solution
    run.offer(network, starts[0] if best is None else network.positions(best), polish=True)
    return run.incumbent.solution
