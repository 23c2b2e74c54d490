"""Checker of rule libraries: every judgement by `verify.substitution`, every derivation replayed from the rules that were proved before.

One result per library: proved if every rule in it is what it is said to be (proved, refuted, vacuous) and nothing is left undecided.
Derived rules may use proved rules and derived rules that stand before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..models.claims import Verdict
from ..models.substitution.rule import Substitution
from ..proofs.container import Member
from ..proofs.library import HEAD, Library, decode_library
from ..proofs.substitution import Judgement, Proved, Refuted, Vacuous
from .derivation import NotDerived, check_derivation
from .substitution import check_substitution
from .verdict import CheckResult


@dataclass(frozen=True)
class RuleResult:
    """`word`: proved, refuted, vacuous, undecided, derived; or rejected: the proof does not hold, `reason` says where."""

    name: str
    word: str
    reason: str = ""


def check_judgement(judgement: Judgement) -> RuleResult:
    """What the checker says of one judgement."""
    report = check_substitution(judgement)
    name = judgement.rule.name
    if report.vacuous:
        return RuleResult(name, "vacuous")
    if isinstance(judgement, Proved) and report.verdict is Verdict.PROVED:
        return RuleResult(name, "proved")
    if isinstance(judgement, Refuted) and report.verdict is Verdict.REFUTED:
        return RuleResult(name, "refuted")
    return RuleResult(name, "rejected" if isinstance(judgement, Proved | Refuted | Vacuous) else "undecided", report.reason)


def check_library(library: Library, notify: Callable[[int, int], None] | None = None) -> list[RuleResult]:
    """A result per judgement, then per derivation."""
    out: list[RuleResult] = []
    proved: dict[str, Substitution] = {}
    total = len(library.judgements) + len(library.derivations)
    for k, judgement in enumerate(library.judgements):
        if notify is not None:
            notify(k, total)
        result = check_judgement(judgement)
        out.append(result)
        if result.word == "proved":
            proved[result.name] = judgement.rule
    for k, derivation in enumerate(library.derivations):
        if notify is not None:
            notify(len(library.judgements) + k, total)
        name = derivation.rule.name
        try:
            if name in proved:
                raise NotDerived(f"two rules are called {name!r}")
            check_derivation(derivation, proved)
            proved[name] = derivation.rule
            out.append(RuleResult(name, "derived"))
        except NotDerived as error:
            out.append(RuleResult(name, "rejected", str(error)))
    return out


def library_result(results: list[RuleResult]) -> CheckResult:
    """One claim for the whole library."""
    rejected = [r for r in results if r.word == "rejected"]
    open_ = [r for r in results if r.word == "undecided"]
    verdict = Verdict.REFUTED if rejected else Verdict.UNDECIDED if open_ or not results else Verdict.PROVED
    bad = [*rejected, *open_]
    reason = f"{bad[0].name}: {bad[0].reason or bad[0].word} ({len(bad)} of {len(results)})" if bad else "" if results else "holds no rule"
    return CheckResult("Rules", verdict, None, None, f"{len(results)} rules", (), reason)


def check_members(members: Mapping[str, Member]) -> tuple[Library, list[RuleResult]]:
    """Decode and check the library in a container."""
    library = decode_library(members)
    return library, check_library(library)


__all__ = ["HEAD", "RuleResult", "check_judgement", "check_library", "check_members", "library_result"]
