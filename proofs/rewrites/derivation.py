"""Derivations: a rule shown by applying other proved rules, one after another, at named places.

A step names a rule, one of its outputs, a direction, and what stands for the rule's pattern inputs and symbols.  That
fixes both the subterm that is replaced (an instance of the rule's one side) and what replaces it; every occurrence is
replaced.  Terms are equal up to the order of the arguments of add and mul.  `verify.rewrites.derivation` replays the
steps; each must find its subterm, keep its type, and meet the preconditions of the rule it uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.rewrites.rule import Parameter, Substitution
from ...models.rewrites.terms import Term, canonical_order, instantiate, replace_term, term_of, term_text


@dataclass(frozen=True)
class Applied:
    """Rule `rule` at output `output`, read left to right if `forward`; `inputs[k]` stands for its pattern input k."""

    rule: str
    output: int
    forward: bool
    inputs: tuple[Term, ...]
    numbers: tuple[tuple[str, Parameter], ...] = ()


@dataclass(frozen=True)
class Derivation:
    """`steps[k]` turn the left term of output k of `rule` into its right term."""

    rule: Substitution
    steps: tuple[tuple[Applied, ...], ...]

    @property
    def length(self) -> int:
        """Number of steps."""
        return sum(map(len, self.steps))


def ends(step: Applied, rule: Substitution) -> tuple[Term, Term]:
    """(what the step replaces, what it puts there)."""
    numbers = dict(step.numbers)
    a, b = rule.outputs[step.output]
    left = instantiate(term_of(rule.left, a), step.inputs, numbers)
    right = instantiate(term_of(rule.right, b), step.inputs, numbers)
    left, right = canonical_order(left), canonical_order(right)
    return (left, right) if step.forward else (right, left)


def terms_along(derivation: Derivation, output: int, rules: dict[str, Substitution]) -> list[Term]:
    """All terms from left to right of one output; KeyError for a rule that is not there."""
    a, _ = derivation.rule.outputs[output]
    out = [canonical_order(term_of(derivation.rule.left, a))]
    for step in derivation.steps[output]:
        old, new = ends(step, rules[step.rule])
        out.append(canonical_order(replace_term(out[-1], old, new)))
    return out


def derivation_text(derivation: Derivation, rules: dict[str, Substitution]) -> list[str]:
    """The derivation for people, a line per term."""
    names = [p.name for p in derivation.rule.inputs]
    lines = []
    for k, steps in enumerate(derivation.steps):
        terms = terms_along(derivation, k, rules)
        lines.append(f"    {term_text(terms[0], names)}")
        for step, t in zip(steps, terms[1:], strict=True):
            lines.append(f"  = {term_text(t, names)}    by {step.rule}{'' if step.forward else ' read backwards'}")
    return lines
