"""Finds preconditions: what the right side owes and cannot show, said in the names of the pattern (sizes,
degrees, parameters).
"""

from __future__ import annotations

from itertools import combinations

from ...models.rewrites.polynomial import ONE, Poly
from ...models.rewrites.rule import AtLeast, Condition, Divides, Equal, OneOrMultiple
from ...models.rewrites.types import Contradiction, Facts, Typed


def fixes_a_size(c: Condition) -> bool:
    """Whether a condition fixes an extent to a constant: tried last."""
    return isinstance(c, Equal) and any(
        a.constant is not None and not str(b).endswith(".degree") for a, b in ((c.left, c.right), (c.right, c.left))
    )


def stated_condition(c: Condition, typed: Typed, names: dict[str, Poly]) -> Condition | None:
    """A condition over unknowns, said in sizes, degrees and parameters of the pattern."""
    facts = typed.facts
    match c:
        case Equal():
            for goal in _equations(facts, facts.now(c.left - c.right)):
                said = _named_pair(facts, goal, names)
                if said is not None:
                    return said
            return None
        case AtLeast():
            least = _spoken(c.value, names)
            return None if least is None else AtLeast(least)
        case Divides() | OneOrMultiple():
            d, v = _spoken(c.divisor, names), _spoken(c.value, names)
            if d is None or v is None:
                d, v = _ratio(c, names)
            if d is None or v is None:
                return None
            return Divides(d, v) if isinstance(c, Divides) else OneOrMultiple(d, v)


def _equations(facts: Facts, goal: Poly) -> list[Poly]:
    """The equation goal = 0 without common factors, and the same with quotient unknowns multiplied out."""
    out: list[Poly] = []
    try:
        out.append(facts.reduce(goal))
        for q, value, divisor in facts.quotients:
            name = next(iter(q.names))
            parts = out[-1].coefficient(name) if name in out[-1].names else None
            if parts is not None:
                out.append(facts.reduce(parts[0] * facts.now(value) + parts[1] * facts.now(divisor)))
    except Contradiction:
        pass
    return out


def _named_pair(facts: Facts, goal: Poly, names: dict[str, Poly]) -> Condition | None:
    """Two names, or a name and 1, whose difference is the goal up to common factors; else the goal itself if it can
    be said in names.
    """
    candidates = [(n, p) for n, p in names.items() if p.constant is None]
    for (n, p), (m, q) in [*combinations(candidates, 2), *((x, ("", ONE)) for x in candidates)]:
        try:
            d = facts.reduce(p - q)
        except Contradiction:
            continue
        if d.terms and d in (goal, -goal):
            return Equal(Poly.of(n), Poly.of(m) if m else ONE)
    said = _spoken(goal, names)
    if said is None:
        return None
    (name, *more) = sorted(said.names) or [""]
    if not more and said.terms.get((name,)) in (1, -1) and len(said.terms) <= 2:
        return Equal(Poly.of(name), (Poly.of(name) - said) if said.terms[(name,)] == 1 else (said + name))
    return Equal(said, Poly({}))


def _spoken(p: Poly, names: dict[str, Poly]) -> Poly | None:
    """p with every unknown that is itself a name replaced by that name; None if some unknown has none."""
    if p.constant is not None:
        return p
    direct = {
        next(iter(q.names)): Poly.of(n)
        for n, q in reversed(names.items())
        if q.names and q == Poly.of(next(iter(q.names)))
    }
    for n, q in names.items():  # products of unknowns that have a name: d * block = size
        if len(q.terms) == 1 and len(next(iter(q.terms))) > 1:
            quotient = p.exact_quotient(q)
            if quotient is not None:
                rest = _spoken(quotient, names)
                if rest is not None:
                    return rest * n
    if p.names <= set(direct):
        return p.substitute(direct)
    parts = [(c, m) for m, c in p.terms.items()]
    if len(parts) > 1:
        total = Poly({})
        for c, m in parts:
            said = _spoken(Poly({m: c}), names)
            if said is None:
                return None
            total = total + said
        return total
    return None


def _ratio(c: Divides | OneOrMultiple, names: dict[str, Poly]) -> tuple[Poly | None, Poly | None]:
    """divisor | value with both multiplied by a quotient's divisor, so that quotient unknowns become sizes."""
    for n, q in names.items():
        value = q.exact_quotient(c.value)
        if value is not None:
            d = _spoken(c.divisor * value, names)
            if d is not None and isinstance(c, Divides):
                return d, Poly.of(n)
    return None, None


def spare_conditions(typed: Typed, names: dict[str, Poly]) -> list[Condition]:
    """Conditions worth trying when values differ: quotients of the left side are 1, degrees are 1."""
    out: list[Condition] = []
    free = {
        f"{p.name}.{a}.degree" for p in typed.rule.inputs if p.sharded for a in range(p.rank) if a not in dict(p.fixed)
    }
    degrees = [(n, p) for n, p in names.items() if n in free]
    for (n, p), (m, q) in combinations(degrees, 2):  # different constants in this case of typing
        if (p - q).constant not in (None, 0):
            out.append(Equal(Poly.of(n), Poly.of(m)))
    for q, _, _ in typed.facts.quotients:
        p = typed.facts.now(q)
        if p != ONE:
            said = stated_condition(Equal(p, ONE), typed, names)
            if said is not None:
                out.append(said)
    for n, p in names.items():
        if n.endswith(".degree") and p != ONE:
            out.append(Equal(Poly.of(n), ONE))
    return list(dict.fromkeys(out))
