"""What the verbs of the search say when there is no solution: the conflict that proves that none fits,
or what is known of whether one may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...models.problem.claims import Infeasible, Optimal, Verdict, WithinGap
from ...models.problem.selection_problem import SelectionProblem, Usage
from ...models.terminal.console import Exit, emit, say
from ...proofs.container.canonical import ContainerError
from ...proofs.publishing.publisher import Published, Publisher
from ...proofs.selection.certificates import SelectionCertificate
from ...proofs.selection.file import write_certificate
from ..plans.time_limit import TimeLimit
from ..selection.answer import Answer
from ..selection.tree.cut import cut_below, split_depth
from ..selection.tree.infeasible import least_use
from .results import asked_json, asked_lines, cost_text


def publish_proof(
    publisher: Publisher,
    problem: SelectionProblem,
    answer: Answer,
    clock: TimeLimit,
    output: Path | None = None,
    plan: bytes | None = None,
) -> Published | None:
    """Publish what is proved of a problem: `plan`, a file that stands alone, or else a certificate about the problem;
    None where nothing is.
    """
    with clock.phase("check"):
        if plan is not None:
            return publisher.publish(output, plan)
        if answer.certificate is None:
            return None
        return _publish_certificate(publisher, problem, answer.certificate, output)


def _publish_certificate(
    publisher: Publisher, problem: SelectionProblem, certificate: SelectionCertificate, output: Path | None
) -> Published:
    """Publish it, or, where its check would take more than the format allows, as much of its proof as is checked: with
    half as many splits below each other, until it fits.
    """
    try:
        return publisher.publish(output, write_certificate(None, certificate), problem)
    except ContainerError as error:
        claim, depth = certificate.claim, split_depth(certificate.proof)
        if "too large to be checked" not in error.message or not isinstance(claim, Optimal | WithinGap):
            raise
    while depth := depth // 2:
        shorter = replace(certificate, proof=cut_below(certificate.proof, depth))
        try:
            found = publisher.publish(None, write_certificate(None, shorter), problem)
        except ContainerError:
            continue
        if found.lower_bound is None:
            break
        least = WithinGap(claim.solution, claim.cost, found.lower_bound)
        note = f"note: the whole proof takes more than a check may (format, section 13); below {depth} splits it is cut"
        say(note, err=True)
        return publisher.publish(output, write_certificate(None, replace(shorter, claim=least)), problem)
    raise ContainerError("the proof", "is too large to be checked, whole or in part; --gap ends the search earlier")


def no_solution(
    published: Published | None,
    problem: SelectionProblem,
    answer: Answer,
    as_json: bool,
    clock: TimeLimit,
    steps: Sequence[str] = (),
    beside: tuple[Path, ...] = (),
) -> int:
    """Say what is known.  `beside`: files that are checked together with what was written; `steps`: operators of a
    plan.
    """
    claim = None if answer.certificate is None else answer.certificate.claim
    proved = published is not None and published.verdict is Verdict.PROVED
    infeasible = claim if proved and isinstance(claim, Infeasible) else None
    if as_json:
        document: dict[str, object] = {
            "status": "unknown" if infeasible is None else "infeasible",
            "cost": None,
            "lower_bound": published.lower_bound if published and infeasible is None else None,
            "scale": problem.scale,
            "gap": None,
            "seconds": round(clock.elapsed_s, 3),
            "processor_seconds": round(clock.processor_s, 3),
            "phases": clock.phase_seconds(),
            "certificate": None if published is None or published.path is None else str(published.path),
            "problem_sha256": problem.sha256(),
            **({} if published is None else published.to_json(*beside)),
            **asked_json(answer),
            **({} if infeasible is None else {"conflict": conflict(problem, infeasible)}),
        }
        emit(document)
    elif infeasible is not None:
        say(f"{problem.name}: proved infeasible", *("  " + line for line in conflict_lines(problem, infeasible, steps)))
        if steps and published is not None and published.path is not None:
            path = published.path
            say(f"wrote the proof: {path} ({published.size} bytes); confirm it: shardproof check {path}")
    else:
        _say_unknown(published, problem, steps, beside)
    if not as_json:
        say(*asked_lines(answer, problem))
    return Exit.UNDECIDED if infeasible is None else Exit.INFEASIBLE


def _say_unknown(
    published: Published | None, problem: SelectionProblem, steps: Sequence[str], beside: tuple[Path, ...]
) -> None:
    known = (
        "nothing is proved"
        if published is None or published.lower_bound is None
        else f"none costs less than {cost_text(published.lower_bound, problem)} (checked)"
    )
    say(f"{problem.name}: no solution found within the time limit; {known}. Give it more time with --time-limit.")
    say(*("  " + line for line in _room(problem, steps)))
    if published is not None and not published.checked:
        say(published.reason, *published.advice_lines(*beside))


def conflict(problem: SelectionProblem, claim: Infeasible) -> dict[str, object]:
    """The conflict of an infeasible problem as data."""
    rows = [
        {
            "step": t,
            "least_use": sum(int(u.amount.min()) for u in problem.usages if u.start <= t < u.end),
            "tensors": [u.name or problem.vertices[u.vertex].name for u in _largest(problem, t)],
        }
        for t in claim.steps
    ]
    return {
        "limit": problem.limit,
        "least_known_limit": claim.least_limit,
        "rows": rows,
        "vertices": [problem.vertices[v].name for v in claim.vertices[:20]],
    }


def conflict_lines(problem: SelectionProblem, claim: Infeasible, steps: Sequence[str] = ()) -> list[str]:
    """The conflict in words: which steps (operators `steps`, if they have names), which tensors, which limit, what
    would work.
    """
    lines = []
    use = {t: sum(int(u.amount.min()) for u in problem.usages if u.start <= t < u.end) for t in claim.steps}
    unit = " bytes" if steps else ""  # of a plan
    for t in sorted(use, key=lambda t: (-use[t], t))[:5]:
        largest = [(u.name or problem.vertices[u.vertex].name, int(u.amount.min())) for u in _largest(problem, t)]
        names = ", ".join(f"{name} ({n})" for name, n in largest)
        live = sum(u.start <= t < u.end and int(u.amount.min()) > 0 for u in problem.usages)
        if live > len(largest):
            names += f", {live - len(largest)} others ({use[t] - sum(n for _, n in largest)})"
        at = f"step {t}" + (f" ({steps[t]})" if t < len(steps) else "")
        if problem.limit is not None and use[t] > problem.limit:
            words = f"even the smallest choices use {use[t]}{unit}, the limit is {problem.limit}"
        else:
            words = (
                f"the smallest choices use {use[t]}{unit} of {problem.limit}, but not all of them are allowed together "
                "or with what the other steps need"
            )
        lines.append(f"{at}: {words}; largest: {names}")
    if not claim.steps:
        lines.append(
            "no combination of choices is allowed and fits; vertices involved: "
            + ", ".join(problem.vertices[v].name for v in claim.vertices[:10])
        )
    if claim.least_limit is not None:
        lines.append(f"the least limit for which a solution is known is {claim.least_limit}")
    return lines


def _room(problem: SelectionProblem, steps: Sequence[str]) -> list[str]:
    """What is known about whether anything fits: the step where the smallest choices need most."""
    events = np.array(problem.events(), dtype=np.int64)
    if problem.limit is None or not events.size:
        return []
    least = least_use(problem, events)
    k, limit = int(least.argmax()), problem.limit
    at = int(events[k])
    named = f"step {at}" + (f" ({steps[at]})" if at < len(steps) else "")
    fits = "so that something may fit" if int(least[k]) <= limit else "so that nothing fits"
    unit = " bytes" if steps else ""
    return [f"{named}: the smallest choices alone use {int(least[k])}{unit}, the limit is {limit}, {fits}"]


def _largest(problem: SelectionProblem, step: int) -> list[Usage]:
    live = [u for u in problem.usages if u.start <= step < u.end]
    return sorted(live, key=lambda u: (-int(u.amount.min()), u.vertex))[:5]
