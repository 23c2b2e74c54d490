"""Finds derivations of proved rules from other proved rules: a second, readable proof.

The search works on one general instance (`general_instances`); what it finds is replayed for all shapes by
`verify.rewrites.derivation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...models.rewrites.rule import Substitution
from ...models.rewrites.terms import Term, term_of
from ...proofs.rewrites.derivation import Applied, Derivation
from .generate import Pruner, general_instances
from .rewrite import derivation_steps
from .terms import Typing, same_type


class Deriver:
    """Derives rules from `rules`, all of which are proved."""

    def __init__(self, rules: Sequence[Substitution], slack: int = 4) -> None:
        self.pruner = Pruner()
        self.pruner.search.slack = slack
        for rule in rules:
            self.pruner.add(rule)

    def derive(
        self, rule: Substitution, steps: int = 4, most: int = 20_000, through: Sequence[Term] = ()
    ) -> Derivation | None:
        """A derivation of every output in at most `steps` steps each, or None.  A rule of the same name is not used.

        `through`: terms to pass on the way (rules of one output); then every leg may have `steps` steps.
        """
        search, rules = self.pruner.search, self.pruner.rules
        skip = next((k for k, r in enumerate(rules.rules) if r.name == rule.name), -1)
        for values, inputs in general_instances(rule):
            typing = Typing(rules.terms, self.pruner.evaluator, inputs, values)
            chains: list[tuple[Applied, ...]] = []
            for a, b in rule.outputs:
                left, right = rules.terms.number(term_of(rule.left, a)), rules.terms.number(term_of(rule.right, b))
                if not same_type(typing.type(left), typing.type(right)):
                    break
                stops = [left, *(rules.terms.number(t) for t in through), right]
                legs = [search.derive(p, q, typing, steps, skip, most) for p, q in pairwise(stops)]
                found = [leg for leg in legs if leg is not None]
                if len(found) < len(legs):
                    break
                chains.append(tuple(step for leg in found for step in derivation_steps(leg, rules)))
            else:
                return Derivation(rule, tuple(chains))
        return None
