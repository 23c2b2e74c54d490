"""What a checker reports: one `CheckResult` per claim, and how several combine.

The order of verdicts is refuted, undecided, proved: the worst wins.  Exit codes: proved 0, undecided 5, refuted 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..models.problem.claims import Verdict

EXIT_CODES: Final = {Verdict.PROVED: 0, Verdict.UNDECIDED: 5, Verdict.REFUTED: 10}


@dataclass(frozen=True)
class Coverage:
    """Distinct entries compared, of how many."""

    checked: int = 0
    total: int = 0

    @property
    def words(self) -> str:
        """For a line of text.

        >>> Coverage(1200, 1200).words, Coverage(1200, 5000).words
        ('all 1,200 distinct entries checked', '1,200 of 5,000 distinct entries checked')
        """
        return (
            f"all {self.total:,} distinct entries checked"
            if self.checked >= self.total
            else f"{self.checked:,} of {self.total:,} distinct entries checked"
        )


@dataclass(frozen=True)
class Rounding:
    """Times of one rebuilt problem are rounded up to 1/`scale` s, `entries` of them in a solution; `name`: which
    problem, where a file has several.
    """

    scale: int
    entries: int
    name: str = ""


@dataclass(frozen=True)
class CheckResult:
    """Verdict on one claim.

    `lower_bound` is what the checker itself established (None: nothing finite), whatever the claim said; `cost` is the
    recomputed cost of the claim's solution.  Both are None when the claim is refuted.  `reason` names the place when
    the claim is not proved.  `coverage`: entries of tables compared, of how many.
    """

    kind: str
    verdict: Verdict
    cost: int | None
    lower_bound: int | None
    space: str
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    coverage: Coverage | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, object]:
        """One element of `claims` in the document of `check --json`.

        >>> CheckResult("Optimal", Verdict.PROVED, 3, 3, "complete").to_json()["verdict"]
        'proved'
        """
        return {
            "kind": self.kind,
            "verdict": self.verdict.value,
            "cost": self.cost,
            "lower_bound": self.lower_bound,
            "space": self.space,
            "assumptions": list(self.assumptions),
            "reason": self.reason,
            **(
                {}
                if self.coverage is None
                else {"entries_checked": self.coverage.checked, "entries": self.coverage.total}
            ),
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of at least one verdict; ValueError for none, because nothing checked is nothing proved.

    >>> worst([Verdict.PROVED, Verdict.UNDECIDED])
    <Verdict.UNDECIDED: 'undecided'>
    """
    found = list(verdicts)
    if not found:
        raise ValueError("no claim was checked")
    return max(found, key=lambda v: EXIT_CODES[v])


def report(results: Sequence[CheckResult], seconds: float) -> dict[str, object]:
    """The document of `check --json`."""
    return {
        "verdict": worst(r.verdict for r in results).value,
        "claims": [r.to_json() for r in results],
        "seconds": seconds,
    }
