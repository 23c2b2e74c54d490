"""What verb `solve` does with an e-graph: the cheapest extraction, its certificate, and what is said
about both.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from ...models.egraphs.egraph import EGraph
from ...models.problem.claims import Verdict
from ...models.terminal.console import Exit, Watch, emit, say
from ...proofs.egraphs.certificate import Extraction
from ...proofs.egraphs.file import write_extraction
from ...proofs.publishing.publisher import Published, Publisher
from ..plans.time_limit import TimeLimit

CHECK_S = 2e-5
"""Seconds of the check per node, child and record entry: BERT of the extraction gym, 50,000 of them, takes 0.3 s."""


def solve_extraction(
    publisher: Publisher,
    egraph: EGraph,
    file: Path,
    clock: TimeLimit,
    allowed: Fraction,
    output: Path | None,
    as_json: bool,
) -> int:
    """Extract, publish, say; the exit code as of `solve`."""
    # HiGHS and compiled kernels: a second that other problems need not wait
    from ..rewriting.egraphs.solve import extract

    clock.hold_back(CHECK_S * (len(egraph.nodes) + sum(map(len, egraph.children))))
    with Watch("extracting"), clock.phase("search"):
        found = extract(egraph, clock.clock.at_most(None), allowed)
    with Watch("checking"), clock.phase("check"):
        published = publisher.publish(output, write_extraction(None, found.certificate), egraph)
    claim = found.certificate.claim
    infeasible = not isinstance(claim, Extraction) and published.verdict is Verdict.PROVED
    cost, bound = published.cost, published.lower_bound
    gap = None if cost is None or bound is None else max(0, cost - bound) / max(1, abs(cost))
    proved = published.verdict is Verdict.PROVED
    status = "infeasible" if infeasible else "optimal" if proved and cost == bound else "feasible"
    small = cost is not None and bound is not None and cost - bound <= allowed * abs(cost)
    code = Exit.INFEASIBLE if infeasible else Exit.DONE if proved and small else Exit.UNDECIDED
    chosen = claim.chosen if isinstance(claim, Extraction) else ()
    if as_json:
        emit(
            {
                "status": status,
                "cost": cost,
                "lower_bound": bound,
                "scale": egraph.scale,
                "cost_text": None if cost is None else egraph.decimal(cost),
                "lower_bound_text": None if bound is None else egraph.decimal(bound),
                "gap": gap,
                **clock.to_json(),
                "certificate": None if published.path is None else str(published.path),
                "egraph_sha256": egraph.sha256(),
                "assumptions": list(egraph.assumptions),
                "cases": found.cases,
                "cuts": found.cuts,
                **published.to_json(file),
                "solution": {egraph.classes[egraph.owner[n]]: egraph.nodes[n] for n in chosen},
            }
        )
        return code
    say(*_subject_lines(egraph))
    if infeasible:
        say("proved infeasible: some root needs itself, whatever is chosen")
    elif cost is not None:
        say(f"cost {egraph.decimal(cost)} with {len(chosen)} nodes, {_proved_words(published, egraph, gap)}")
    if published.path is not None:
        say(f"wrote {published.path} ({published.size} bytes) in {clock.words()}", *published.advice_lines(file))
    return code


def _subject_lines(egraph: EGraph) -> list[str]:
    """What is extracted from, and what cannot be asked of it."""
    absent = len(egraph.absent)
    return [
        f"{egraph.name}: {len(egraph.nodes)} nodes in {len(egraph.classes)} classes, {len(egraph.roots)} roots",
        *(
            f"note: {absent} root classes have no node, so that nothing can be asked of them: {a}"
            for a in egraph.assumptions
        ),
    ]


def _proved_words(published: Published, egraph: EGraph, gap: float | None) -> str:
    """What is proved of the cost."""
    if not published.checked:
        return f"as the search says: {published.reason}"
    if published.lower_bound is None or gap is None:
        return "no bound is proved"
    if published.cost == published.lower_bound:
        return "proved optimal"
    return f"proved within {gap:.3%} of optimal (lower bound {egraph.decimal(published.lower_bound)})"
