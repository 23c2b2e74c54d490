"""What the verbs of the search say when there is no solution: the conflict that proves that none fits,
or what is known of whether one may.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...models.problem.claims import Infeasible, Verdict
from ...models.problem.selection_problem import SelectionProblem, Usage
from ...models.terminal.console import Exit, emit, say
from ...proofs.publishing.publisher import Published, Publisher
from ...proofs.selection.file import write_certificate
from ..plans.time_limit import TimeLimit
from ..selection.answer import Answer
from ..selection.tree.infeasible import least_use
from .results import asked_json, asked_lines, cost_text


def no_solution(
    publisher: Publisher,
    problem: SelectionProblem,
    answer: Answer,
    output: Path | None,
    as_json: bool,
    clock: TimeLimit,
    steps: Sequence[str] = (),
    beside: tuple[Path, ...] = (),
    data: bytes | None = None,
) -> int:
    """Publish what is known and say it.  `beside`: files that are checked together with what was written; `data`: the
    proof as a file that stands alone, in place of a certificate about `problem`.
    """
    with clock.phase("check"):
        if data is not None:
            published: Published | None = publisher.publish(output, data)
        elif answer.certificate is not None:
            published = publisher.publish(output, write_certificate(None, answer.certificate), problem)
        else:
            published = None
    claim = None if answer.certificate is None else answer.certificate.claim
    infeasible = published is not None and published.verdict is Verdict.PROVED and isinstance(claim, Infeasible)
    status = "infeasible" if infeasible else "unknown"
    document: dict[str, object] = {
        "status": status,
        "cost": None,
        "lower_bound": published.lower_bound if published and not infeasible else None,
        "scale": problem.scale,
        "gap": None,
        "seconds": round(clock.elapsed_s, 3),
        "processor_seconds": round(clock.processor_s, 3),
        "phases": clock.phase_seconds(),
        "certificate": None if published is None or published.path is None else str(published.path),
        "problem_sha256": problem.sha256(),
        **({} if published is None else published.to_json(*beside)),
        **asked_json(answer),
    }
    if isinstance(claim, Infeasible) and infeasible:
        document["conflict"] = conflict(problem, claim)
    if as_json:
        emit(document)
    elif isinstance(claim, Infeasible) and infeasible:
        say(f"{problem.name}: proved infeasible")
        for line in conflict_lines(problem, claim, steps):
            say("  " + line)
        if output is not None and published is not None and published.path is not None:
            say(f"wrote the proof: {output} ({published.size} bytes); confirm it: shardproof check {output}")
    else:
        known = (
            "nothing is proved"
            if published is None or published.lower_bound is None
            else f"none costs less than {cost_text(published.lower_bound, problem)} (checked)"
        )
        say(f"{problem.name}: no solution found within the time limit; {known}. Give it more time with --time-limit.")
        for line in _room(problem, steps):
            say("  " + line)
        if published is not None and not published.checked:
            say(published.reason, *published.advice_lines(*beside))
    if not as_json:
        for line in asked_lines(answer, problem):
            say(line)
    return Exit.INFEASIBLE if infeasible else Exit.UNDECIDED


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
        names = ", ".join(f"{name} ({n:,})" for name, n in largest)
        live = sum(u.start <= t < u.end and int(u.amount.min()) > 0 for u in problem.usages)
        if live > len(largest):
            names += f", {live - len(largest)} others ({use[t] - sum(n for _, n in largest):,})"
        at = f"step {t}" + (f" ({steps[t]})" if t < len(steps) else "")
        over = (
            ""
            if problem.limit is not None and use[t] > problem.limit
            else " (less, but not with what the other steps need)"
        )
        lines.append(
            f"{at}: even the smallest choices use {use[t]:,}{unit}, the limit is {problem.limit:,}{over}; "
            f"largest: {names}"
        )
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
    return [f"{named}: the smallest choices alone use {int(least[k]):,}{unit}, the limit is {limit:,}, {fits}"]


def _largest(problem: SelectionProblem, step: int) -> list[Usage]:
    live = [u for u in problem.usages if u.start <= step < u.end]
    return sorted(live, key=lambda u: (-int(u.amount.min()), u.vertex))[:5]
