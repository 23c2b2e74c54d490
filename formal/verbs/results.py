"""What the verbs of the search say about an answer once it is checked: status, cost, bound and gap,
for people and as data.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from ...models.problem.claims import Verdict
from ...models.problem.selection_problem import SelectionProblem
from ...models.terminal.console import Exit
from ...models.text import seconds_text
from ...proofs.publishing.publisher import Published
from ..plans.time_limit import TimeLimit
from ..selection.answer import Answer
from ..selection.engines.consult import conversation


def cost_text(units: int, problem: SelectionProblem) -> str:
    """A cost of the problem for people: a time if its unit is the second, else the number."""
    if problem.unit_name == "s":
        return seconds_text(units, problem.scale)
    return f"{units}" if problem.scale == 1 else f"{float(Fraction(units, problem.scale)):.12g}"


def asked_lines(answer: Answer, problem: SelectionProblem) -> list[str]:
    """What another engine was asked and answered; nothing when none was."""
    if answer.alone is not None:
        return answer.alone.words(lambda units: cost_text(units, problem), answer.cost)
    return conversation(answer.asked, answer.cost, lambda units: cost_text(units, problem))


def asked_json(answer: Answer) -> dict[str, object]:
    """The same as data, under `engine`: a list of questions, or one object of an engine that decided alone."""
    if answer.alone is not None:
        return {"engine": answer.alone.to_json()}
    return {"engine": [a.to_json() for a in answer.asked]} if answer.asked else {}


def outcome(published: Published, allowed: Fraction) -> tuple[Exit, str]:
    if published.verdict is not Verdict.PROVED or published.cost is None or published.lower_bound is None:
        return Exit.UNDECIDED, "feasible"
    if published.lower_bound >= published.cost:
        return Exit.DONE, "optimal"
    return (
        Exit.DONE if published.cost - published.lower_bound <= allowed * abs(published.cost) else Exit.UNDECIDED
    ), "feasible"


def document(
    status: str,
    published: Published,
    problem: SelectionProblem,
    allowed: Fraction,
    clock: TimeLimit,
    beside: tuple[Path, ...] = (),
) -> dict[str, object]:
    """What is said of an answer as data.  `beside`: files that are checked together with what was written."""
    gap = None
    if published.cost is not None and published.lower_bound is not None:
        gap = (
            0.0
            if published.cost <= published.lower_bound
            else (published.cost - published.lower_bound) / max(1, abs(published.cost))
        )
    return {
        "status": status,
        "cost": published.cost,
        "lower_bound": published.lower_bound,
        "scale": problem.scale,
        "gap": gap,
        **clock.to_json(),
        "certificate": None if published.path is None else str(published.path),
        "problem_sha256": problem.sha256(),
        **published.to_json(*beside),
    }


def spent(clock: TimeLimit, output: Path) -> dict[str, object]:
    """Where the answer was written, and what it took, as data."""
    return {
        "plan": str(output),
        **clock.to_json(),
    }


def exact_words(units: int, problem: SelectionProblem) -> str:
    """A cost of a problem to its last digit: of a planning problem in picoseconds, else as its numbers are.

    >>> exact_words(7, SelectionProblem("p", (), (), (), scale=10**12, unit_name="s"))
    '7 ps'
    >>> exact_words(7, SelectionProblem("p", (), (), (), scale=10**10, unit_name="s"))
    '7 x 100 ps'
    >>> exact_words(7, SelectionProblem("p", (), (), (), scale=4)), exact_words(7, SelectionProblem("p", (), (), ()))
    ('7/4', '7')
    """
    picoseconds, rest = divmod(10**12, problem.scale)
    if problem.unit_name == "s" and not rest:
        return f"{units} ps" if picoseconds == 1 else f"{units} x {picoseconds} ps"
    return f"{units}/{problem.scale}" if problem.scale > 1 else str(units)


def sentence(published: Published, problem: SelectionProblem) -> str:
    if published.cost is None:
        return f"the checker says {published.verdict.value}: {published.reason}"
    cost = cost_text(published.cost, problem)
    if not published.checked:
        return f"cost {cost}, as the search says: {published.reason}"
    if published.lower_bound is None:
        return f"cost {cost}; no lower bound proved"
    if published.lower_bound >= published.cost:
        return (
            f"cost {cost}, proved optimal over the space {problem.space!r} (checked: "
            f"{exact_words(published.cost, problem)})"
        )
    gap = (published.cost - published.lower_bound) / max(1, abs(published.cost))
    return f"cost {cost}, proved within {gap:.3%} of optimal (lower bound {cost_text(published.lower_bound, problem)})"
