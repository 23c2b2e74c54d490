"""Says what another engine was asked about placements and programs, and what it answered.

The answers are found again natively or checked, so that nothing here carries a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Engine = Literal["native", "ilp", "smt"]


@dataclass(frozen=True)
class EngineAnswer:
    """One subject: `questions` about `unknowns` variables, the engine's last word `says`, and how many answers it
    named before.  `cost`: of the program that it named, in units of the cost model.
    """

    engine: Engine
    about: Literal["placements", "cheapest program"]
    unknowns: int
    questions: int
    says: str
    found: int
    cost: int | None = None

    def to_json(self) -> dict[str, object]:
        """The fields."""
        return asdict(self)


def engine_json(asked: Sequence[EngineAnswer | None]) -> dict[str, object]:
    """The conversation under `engine`, question by question; nothing of the native search.

    >>> engine_json([None])
    {}
    """
    told = [a.to_json() for a in asked if a is not None]
    return {"engine": told} if told else {}


def engine_lines(asked: Sequence[EngineAnswer | None]) -> list[str]:
    """The conversation in words, a line per subject and last word.

    >>> engine_lines([EngineAnswer("ilp", "placements", 12, 3, "Infeasible", 2)])
    ["ilp was asked about placements: 3 questions, 12 unknowns; it named 2, then answered 'Infeasible'"]
    """
    told: dict[tuple[str, str, str], list[EngineAnswer]] = {}
    for a in asked:
        if a is not None:
            told.setdefault((a.engine, a.about, a.says), []).append(a)
    return [
        f"{engine} was asked about {about}: {sum(a.questions for a in same)} questions, "
        f"{sum(a.unknowns for a in same)} unknowns; it named {sum(a.found for a in same)}, then answered {says!r}"
        for (engine, about, says), same in told.items()
    ]
