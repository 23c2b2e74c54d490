"""Replays derivations: every step is an instance of a proved rule, at a place that is there, under that
rule's preconditions.

    terms up to the order of the arguments of add and mul
    t_0 = left term, t_n = right term;   t_{k+1} = t_k with every occurrence of  s[x, p]  replaced by  s'[x, p]
                                         ({s, s'} sides of a proved rule)

Checked for each step: the rule is among those given (proved); what it replaces occurs; t_{k+1} types for all shapes
whenever t_0 does, with the type of t_0; so do both instances, with equal types; what stands for a pattern input has its
rank, its fixed sizes and no time coordinates; every precondition of the rule, in the sizes and degrees of what stands
there, holds visibly (polynomials equal, or without negative coefficient, or divisible).

Why copies, partial sums and degrees of what stands for a pattern input need not be those of the pattern: call the sum
over its partial-sum coordinates what a tensor denotes.  An operator with a generated sharding rule is linear in its
partial operands and does not look at copies, so what its result denotes is its index expression applied to what its
operands denote; partition, combine, replicate and reduce do not change what is denoted, stack adds.  Hence the equality
of both sides of a rule is one between denotations, in which copies, partial sums and degrees do not occur: it holds
wherever both sides type and the sizes are as the rule says.  Operators for which this is not so (`LITERAL`: FlexFlow's
data-axis operators) and those of time are therefore not allowed in rules that derivations use.  No search: what is not
visible is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Final, assert_never

from ...models.rewrites.ops import OPERATORS
from ...models.rewrites.polynomial import ONE, Poly
from ...models.rewrites.rule import (
    AtLeast,
    Condition,
    Divides,
    Equal,
    OneOrMultiple,
    Parameter,
    Substitution,
    SubstitutionError,
)
from ...models.rewrites.shards import IllTyped, TensorType
from ...models.rewrites.terms import Term, canonical_order, inputs_of, replace_term, side_of, subterms, term_of
from ...models.rewrites.types import Contradiction, Facts, NeedsChoice, Stuck, Typed, translate, type_left, type_right
from ...proofs.rewrites.derivation import Applied, Derivation, ends

LITERAL: Final = frozenset({"tile", "block_sum", "linear3", "pipeline", "batch", "accumulate"})
"""Operators that act on data axes as devices, or on time."""


class NotDerived(ValueError):
    """A step that does not replay; the message names it."""


def check_derivation(derivation: Derivation, rules: Mapping[str, Substitution]) -> None:
    """`NotDerived` unless the steps lead from the left to the right side.  `rules`: proved ones by name."""
    rule = derivation.rule
    try:
        rule.check()
    except SubstitutionError as error:
        raise NotDerived(str(error)) from None
    if len(derivation.steps) != len(rule.outputs):
        raise NotDerived(f"rule {rule.name}: {len(derivation.steps)} chains of steps for {len(rule.outputs)} outputs")
    todo: list[tuple[int, ...]] = [()]
    shown = 0
    while todo:
        choices = todo.pop()
        try:
            typed = type_left(rule, choices)
        except NeedsChoice:
            if len(choices) > 8:
                raise NotDerived(f"rule {rule.name}: too many cases") from None
            todo += [(*choices, 0), (*choices, 1)]
            continue
        except (Contradiction, IllTyped):
            continue
        shown += 1
        for k in range(len(rule.outputs)):
            _chain(derivation, k, typed, rules)
    if not shown:
        raise NotDerived(f"rule {rule.name}: the left side has no instance")


def _chain(derivation: Derivation, output: int, typed: Typed, rules: Mapping[str, Substitution]) -> None:
    rule = derivation.rule
    a, b = rule.outputs[output]
    here: Term = canonical_order(term_of(rule.left, a))
    for number, step in enumerate(derivation.steps[output]):
        place = f"rule {rule.name}, output {output}, step {number} ({step.rule})"
        used = rules.get(step.rule)
        if used is None:
            raise NotDerived(f"{place}: no such proved rule")
        if any(n.operator in LITERAL for n in (*used.left, *used.right)):
            raise NotDerived(f"{place}: uses {', '.join(sorted(LITERAL))}, for which replay is not sound")
        if not 0 <= step.output < len(used.outputs) or len(step.inputs) != len(used.inputs):
            raise NotDerived(f"{place}: does not fit the rule")
        _well_formed(step, rule, place)
        old, new = ends(step, used)
        if old not in subterms(here):
            raise NotDerived(f"{place}: what it replaces does not occur")
        after = canonical_order(replace_term(here, old, new))
        types = _types(typed, output, [here, after, old, new, *step.inputs], place)
        if _key(typed, types[here]) != _key(typed, types[after]) or _key(typed, types[old]) != _key(typed, types[new]):
            raise NotDerived(f"{place}: changes a type")
        _meets(used, step, types, typed, place)
        here = after
    if here != canonical_order(term_of(rule.right, b)):
        raise NotDerived(f"rule {rule.name}, output {output}: the steps do not end at the right side")


def _well_formed(step: Applied, rule: Substitution, place: str) -> None:
    for t in step.inputs:
        if any(not 0 <= k < len(rule.inputs) for k in inputs_of(t)):
            raise NotDerived(f"{place}: names an input that the rule does not have")
    for _, v in step.numbers:
        if isinstance(v, str) and v not in rule.symbols:
            raise NotDerived(f"{place}: names a symbol {v!r} that the rule does not have")


def _types(typed: Typed, output: int, terms: list[Term], place: str) -> dict[Term, TensorType]:
    """Types of terms, in the unknowns of the left side; they must type whenever the left side does.  The first has
    the output's type.
    """
    rule = typed.rule
    nodes, wires = side_of(terms)
    a = rule.outputs[output][0]
    probe = replace(rule, right=nodes, outputs=((a, wires[0]),))
    if any(n.operator not in OPERATORS for n in nodes):
        raise NotDerived(f"{place}: unknown operator")
    try:
        for k, n in enumerate(nodes):
            OPERATORS[n.operator].check(n, rule.name, f"operator {k}")
        again = _with_right(typed, probe)
        type_right(again)
    except (IllTyped, Stuck, SubstitutionError, KeyError) as error:
        raise NotDerived(f"{place}: does not type whenever the left side does: {error}") from None
    for owed in again.owed:
        if owed.equation or any(c < 0 for c in owed.value.terms.values()):
            raise NotDerived(f"{place}: needs {owed.condition}, which is not visible ({owed.place})")
    return {t: again.type_of(again.right, w) for t, w in zip(terms, wires, strict=True)}


def _with_right(typed: Typed, rule: Substitution) -> Typed:
    """The same left side and facts with another right side.

    The right side only reads the facts, except for new unknowns (floors, maxima), so the facts are copied.
    """
    facts = deepcopy(typed.facts)
    return Typed(rule, facts, typed.inputs, typed.left, typed.right, [])


def _key(typed: Typed, t: TensorType) -> tuple[object, ...]:
    """What replacing may not change, in the unknowns that are left."""
    now = typed.facts.now
    sums = tuple(s for q in t.sums if (s := now(q)) != ONE)
    return (
        tuple(map(now, t.sizes)),
        tuple(map(now, t.degrees)),
        now(t.copy),
        sums,
        tuple((a, now(e)) for a, e in t.times),
    )


def _meets(used: Substitution, step: Applied, types: Mapping[Term, TensorType], typed: Typed, place: str) -> None:
    """The terms that stand for the pattern inputs are what the rule allows, and its preconditions hold."""
    now = typed.facts.now
    numbers: dict[str, Parameter] = dict(step.numbers)
    names: dict[str, Poly] = {}
    for s in used.symbols:
        v = numbers.get(s, s)
        if not isinstance(v, int | str):
            raise NotDerived(f"{place}: symbol {s} stands for {v!r}")
        names[s] = Poly.of(v) if isinstance(v, int) else now(Poly.of(f"@{v}"))
    for p, term in zip(used.inputs, step.inputs, strict=True):
        t = types[term]
        if len(t.sizes) != p.rank:
            raise NotDerived(f"{place}: input {p.name} has rank {p.rank}, what stands for it has rank {len(t.sizes)}")
        if t.times:
            raise NotDerived(f"{place}: what stands for input {p.name} has time coordinates")
        for a in range(p.rank):
            names[f"{p.name}.{a}"], names[f"{p.name}.{a}.degree"] = now(t.sizes[a]), now(t.degrees[a])
        for a, size in p.fixed:
            if names[f"{p.name}.{a}"] != Poly.of(size):
                raise NotDerived(
                    f"{place}: input {p.name} has size {size} on axis {a}, what stands for it {names[f'{p.name}.{a}']}"
                )
    for c in used.preconditions:
        if not _visible(translate(c, names), typed.facts):
            raise NotDerived(f"{place}: precondition {c} is not visible")


def _visible(c: Condition, facts: Facts) -> bool:
    """Whether a condition follows from least values alone; divisibility means a divisor >= 1 and a value >= 0
    (`rule.divides`).
    """
    now = facts.now
    match c:
        case Equal():
            return now(c.left) == now(c.right)
        case AtLeast():
            return facts.positive(now(c.value) + 1)
        case Divides():
            v, d = now(c.value), now(c.divisor)
            return facts.positive(d) and facts.positive(v + 1) and v.exact_quotient(d) is not None
        case OneOrMultiple():
            return now(c.value) == ONE or _visible(Divides(c.divisor, c.value), facts)
        case _:
            assert_never(c)
