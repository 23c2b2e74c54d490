"""Checks rule libraries: every judgement by `verify.rewrites.soundness`, every derivation replayed from the
rules that were proved before.

One result per library: proved if every rule in it is what it is said to be (proved, refuted, vacuous) and nothing is
left undecided.  Derived rules may use proved rules and derived rules that stand before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...models.problem.claims import Verdict
from ...models.rewrites.forced import at_degree_one_only, forced_texts, forced_values
from ...models.rewrites.rule import Substitution
from ...proofs.container.archive import Member
from ...proofs.rewrites.judgement import Judgement, Proved, Refuted, Vacuous, shown_cases
from ...proofs.rewrites.library import HEAD, Library, decode_library
from ..budget import Budget
from ..verdict import CheckResult
from .derivation import NotDerived, check_derivation
from .soundness import check_substitution

JUDGEMENT = 1 << 20
"""Cells of one judgement, or of one step of a derivation: typing both sides, and an instance."""


STEP = 1 << 10
"""Cells of one step of evaluating a side on an instance."""


@dataclass(frozen=True)
class RuleResult:
    """`word`: proved, refuted, vacuous, undecided, derived; or rejected: the proof does not hold, `reason` says
    where.
    """

    name: str
    word: str
    reason: str = ""
    forced: tuple[str, ...] = ()
    """What typing forces beside the preconditions, such as `d = 1` (proved and derived rules)."""
    degree_one: tuple[str, ...] = ()
    """Degrees that can only be 1: the rule holds at degree 1 only."""

    def to_json(self) -> dict[str, object]:
        """One element of `rules` in the document of `rules check --json`."""
        out: dict[str, object] = {"name": self.name, "verdict": self.word}
        if self.reason:
            out["reason"] = self.reason
        if self.forced:
            out["forced"] = list(self.forced)
        if self.degree_one:
            out["degree_1_only"] = list(self.degree_one)
        return out


def check_judgement(judgement: Judgement, budget: Budget | None = None) -> RuleResult:
    """What the checker says of one judgement."""
    budget = Budget.with_large() if budget is None else budget
    place = f"rule {judgement.rule.name!r}"
    budget.charge(JUDGEMENT, place)
    report = check_substitution(judgement, lambda steps: budget.charge(STEP * steps, place))
    name = judgement.rule.name
    if report.vacuous:
        return RuleResult(name, "vacuous")
    if isinstance(judgement, Proved) and report.verdict is Verdict.PROVED:
        return _holding(judgement.rule, "proved", shown_cases(judgement))
    if isinstance(judgement, Refuted) and report.verdict is Verdict.REFUTED:
        return RuleResult(name, "refuted")
    return RuleResult(
        name, "rejected" if isinstance(judgement, Proved | Refuted | Vacuous) else "undecided", report.reason
    )


def _holding(rule: Substitution, word: str, choices: tuple[tuple[int, ...], ...] | None) -> RuleResult:
    """A rule that holds, and what typing forces in the cases that are not void."""
    forced = forced_values(rule, choices)
    return RuleResult(rule.name, word, "", forced_texts(rule, forced), at_degree_one_only(rule, forced))


def check_library(
    library: Library, notify: Callable[[int, int], None] | None = None, budget: Budget | None = None
) -> list[RuleResult]:
    """A result per judgement, then per derivation."""
    budget = Budget.with_large() if budget is None else budget
    out: list[RuleResult] = []
    proved: dict[str, Substitution] = {}
    total = len(library.judgements) + len(library.derivations)
    for k, judgement in enumerate(library.judgements):
        if notify is not None:
            notify(k, total)
        result = check_judgement(judgement, budget)
        out.append(result)
        if result.word == "proved":
            proved[result.name] = judgement.rule
    for k, derivation in enumerate(library.derivations):
        if notify is not None:
            notify(len(library.judgements) + k, total)
        name = derivation.rule.name
        budget.charge(JUDGEMENT * (1 + len(derivation.steps)), f"rule {name!r}")
        try:
            if name in proved:
                raise NotDerived(f"two rules are called {name!r}")
            check_derivation(derivation, proved)
            proved[name] = derivation.rule
            out.append(_holding(derivation.rule, "derived", None))
        except NotDerived as error:
            out.append(RuleResult(name, "rejected", str(error)))
    return out


def library_result(results: Sequence[RuleResult]) -> CheckResult:
    """One claim for the whole library: `Rules` if all of them hold, `Judgements` if some were refuted or say
    nothing, `Refutations` if none holds.
    """
    words = {r.word for r in results} - {"rejected", "undecided"}
    holding, others = words & {"proved", "derived"}, words & {"refuted", "vacuous"}
    kind = "Rules" if not others else "Judgements" if holding else "Refutations"
    counts = ", ".join(f"{n} {word}" for word, n in sorted(Counter(r.word for r in results).items()))
    rejected = [r for r in results if r.word == "rejected"]
    open_ = [r for r in results if r.word == "undecided"]
    verdict = Verdict.REFUTED if rejected else Verdict.UNDECIDED if open_ or not results else Verdict.PROVED
    bad = [*rejected, *open_]
    reason = (
        f"{bad[0].name}: {bad[0].reason or bad[0].word} ({len(bad)} of {len(results)})"
        if bad
        else ""
        if results
        else "holds no rule"
    )
    return CheckResult(
        kind, verdict, None, None, f"{len(results)} rules" + (f": {counts}" if counts else ""), (), reason
    )


@dataclass(frozen=True, eq=False)
class CheckedLibrary:
    """A library, and what was found of each of its rules."""

    library: Library
    rules: tuple[RuleResult, ...]


def check_members(members: Mapping[str, Member], budget: Budget | None = None) -> CheckedLibrary:
    """Decode and check the library in a container."""
    library = decode_library(members)
    return CheckedLibrary(library, tuple(check_library(library, budget=budget)))


__all__ = [
    "HEAD",
    "CheckedLibrary",
    "RuleResult",
    "check_judgement",
    "check_library",
    "check_members",
    "library_result",
]
