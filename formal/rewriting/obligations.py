"""What a proof of a rule asks of integer arithmetic: every side fact the prover used, for export."""

from __future__ import annotations

from ...models.rewrites.polynomial import Poly
from ...models.rewrites.rule import Substitution
from ...proofs.export.smtlib import Obligation
from ...proofs.rewrites.judgement import Fact
from .facts import Reasoner
from .prove import judge


class Recorder(Reasoner):
    """A reasoner that keeps what it could show (also what is visible, other than of constants), each obligation
    once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[Obligation, None] = {}

    def prove_fact(self, known: list[Poly], goal: Poly) -> Fact | None:
        found = super().prove_fact(known, goal)
        if found is not None and goal.constant is None:
            self.shown.setdefault(Obligation(tuple(known), goal, found))
        return found

    def contradiction(self, known: list[Poly]) -> Fact | None:
        found = super().contradiction(known)
        if found:
            self.shown.setdefault(Obligation(tuple(known), None, found))
        return found


def obligations(rule: Substitution) -> tuple[Obligation, ...]:
    """The obligations met while judging a rule, in order."""
    recorder = Recorder()
    judge(rule, reasoner=recorder)
    return tuple(recorder.shown)
