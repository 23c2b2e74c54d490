"""Finds instances and counterexamples, by sampling the general solution of the left side's typing.

Sizes come from small pools (equal and unequal across unknowns), entries from -6..6; the smallest failure of those found
is kept.  Seeds are fixed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...models.rewrites.enclosures import NotDecided
from ...models.rewrites.polynomial import Poly
from ...models.rewrites.rule import Condition, Substitution, holds
from ...models.rewrites.shards import IllTyped
from ...models.rewrites.types import Contradiction, Facts, NeedsChoice, Side, Typed, condition_names, type_left
from ...models.rewrites.value import (
    TooMuchWork,
    all_names,
    input_sizes,
    instance_names,
    right_fault,
    tensor,
    type_instance,
    value_fault,
)
from ...proofs.rewrites.judgement import TRUE, Counterexample, Instance

POOLS = ((1,), (1, 2), (2,), (1, 2, 3), (2, 3), (1, 2, 3, 4), (2, 4), (3, 5), (1, 2, 3, 4, 5, 6))
_SPARED, _DRAWS = 12, 6
"""Instances that a precondition rules out that are looked at, and draws of entries on each."""
_MOST_ELEMENTS = (400, 20_000)
"""Entries of all inputs together; the second bound holds for rules (large kernels, large degrees) that have no
instance within the first.
"""


def instances(
    rule: Substitution, tries: int, seed: int, pools: tuple[tuple[int, ...], ...] = POOLS
) -> Iterator[dict[str, int]]:
    """Instances on which the left side types and the preconditions hold, distinct, roughly from small to large."""
    solutions = list(_solutions(rule, ()))
    for most in _MOST_ELEMENTS if solutions else ():
        found = False
        for instance in _within(
            rule, solutions, tries if most == _MOST_ELEMENTS[0] else tries // 8, random.Random(seed), pools, most
        ):
            found = True
            yield instance
        if found:
            return


def _within(
    rule: Substitution,
    solutions: list[tuple[Facts, dict[str, Poly]]],
    tries: int,
    rng: random.Random,
    pools: tuple[tuple[int, ...], ...],
    most: int,
) -> Iterator[dict[str, int]]:
    known = [facts.all_facts() for facts, _ in solutions]
    seen: set[tuple[tuple[str, int], ...]] = set()
    for k in range(tries):
        facts, names = solutions[k % len(solutions)]
        growing = min((k // len(solutions)) * len(pools) // max(1, tries // len(solutions)), len(pools) - 1)
        pool = pools[growing if k % 2 else rng.randrange(len(pools))]
        found = _sample(rule, facts, names, known[k % len(solutions)], pool, rng, most)
        if found is None:
            continue
        key = tuple(sorted(found.items()))
        if key not in seen and satisfies(rule, rule.preconditions, found):
            seen.add(key)
            yield found


def _solutions(rule: Substitution, choices: tuple[int, ...]) -> Iterator[tuple[Facts, dict[str, Poly]]]:
    try:
        typed = type_left(rule, choices)
    except NeedsChoice:
        for c in (0, 1):
            yield from _solutions(rule, (*choices, c))
        return
    except (Contradiction, IllTyped):
        return
    names = {n: typed.facts.now(p) for n, p in condition_names(rule, typed.facts, typed.inputs).items()}
    yield typed.facts, names


def _sample(
    rule: Substitution,
    facts: Facts,
    names: Mapping[str, Poly],
    known: list[Poly],
    pool: tuple[int, ...],
    rng: random.Random,
    most: int,
) -> dict[str, int] | None:
    defined = {n for n, _, _ in (*facts.floors, *facts.largest)}
    values: dict[str, int] = {}
    same = rng.random() < 0.5
    level = rng.choice(pool)
    for s, low in facts.low.items():
        if s in facts.sigma or s in defined:
            continue
        v = level if same and rng.random() < 0.8 else rng.choice(pool)
        values[s] = max(v - 1, 0) if low == 0 else v
    for _ in range(3):
        for n, a, b in facts.floors:
            try:
                if n in facts.sigma:
                    _fit(facts.now(a), facts.now(b).value(values), facts.now(Poly.of(n)).value(values), values, rng)
                else:
                    values[n] = facts.now(a).value(values) // facts.now(b).value(values)
            except (KeyError, ZeroDivisionError):
                continue
        for n, a, b in facts.largest:
            try:
                values[n] = max(facts.now(a).value(values), facts.now(b).value(values))
            except KeyError:
                continue
    try:
        found = {n: names[n].value(values) for n in instance_names(rule)}
    except KeyError:
        return None
    if any(v < 1 for v in found.values()):
        return None
    try:
        if any(
            p.value(values) < 0 for p in known
        ):  # two floors that must be equal, an equation that could not be solved: sampling ignores those
            return None
    except KeyError:
        return None
    if sum(_product(s) for s in input_sizes(rule, found)) > most:
        return None
    return found


def unaffected_instances(rule: Substitution, keep: tuple[Condition, ...], broken: Condition) -> list[dict[str, int]]:
    """Instances that satisfy `keep` and not `broken`, and on which the rule holds all the same, among the first few."""
    against = (
        at for at in instances(replace(rule, preconditions=keep), _SPARED * 4, 3) if not satisfies(rule, (broken,), at)
    )
    return [at for at, _ in zip(against, range(_SPARED), strict=False) if holds_on(rule, at)]


def holds_on(rule: Substitution, instance: Mapping[str, int]) -> bool:
    """Whether the rule certainly types on an instance, and no draw of entries tells its sides apart."""
    try:
        typed = type_instance(rule, instance)
    except (Contradiction, IllTyped):
        return False
    return right_fault(typed) is None and all(fault(rule, instance, seed) is None for seed in range(_DRAWS))


def _fit(numerator: Poly, modulus: int, wanted: int, values: dict[str, int], rng: random.Random) -> None:
    """Change one unknown of the numerator so that floor(numerator / modulus) is the value that an equation asks for."""
    if modulus < 1 or numerator.value(values) // modulus == wanted:
        return
    free = sorted(s for s in numerator.names if numerator.terms.get((s,)) in (1, -1) and s in values)
    if free:
        s = rng.choice(free)
        missing = wanted * modulus + rng.randrange(modulus) - numerator.value(values)
        values[s] += missing * numerator.terms[(s,)]


def _product(sizes: tuple[int, ...]) -> int:
    out = 1
    for n in sizes:
        out *= n
    return out


def satisfies(rule: Substitution, conditions: tuple[Condition, ...], instance: Mapping[str, int]) -> bool:
    """Whether the conditions hold on an instance."""
    names = all_names(rule, instance)
    return all(holds(c, names) for c in conditions)


def fault(rule: Substitution, instance: Mapping[str, int], seed: int) -> Counterexample | None:
    """A counterexample on this instance with random entries, if there is one; a left side that breaks its own
    copies gives "left copy".
    """
    try:
        typed = type_instance(rule, instance)
    except (Contradiction, IllTyped):
        return None
    rng = random.Random(f"{seed} {sorted(instance.items())}")
    sizes = input_sizes(rule, instance)
    values = _entries(rng, sizes, distinct=bool(typed.left.copies))
    where = tuple(sorted(instance.items()))
    what = right_fault(typed)
    try:
        if what is not None:
            if typed.left.copies:
                broken = value_fault(_left_only(typed), [tensor(s, v) for s, v in zip(sizes, values, strict=True)])
                if broken == "left copy":
                    return Counterexample(where, values, TRUE, "left copy")
            return Counterexample(where, values, TRUE, what)
        found = value_fault(typed, [tensor(s, v) for s, v in zip(sizes, values, strict=True)])
    except (TooMuchWork, NotDecided):
        return None
    return None if found is None else Counterexample(where, values, TRUE, found)


def _entries(rng: random.Random, sizes: list[tuple[int, ...]], distinct: bool) -> tuple[tuple[int, ...], ...]:
    """Entries in -6..6; all different if copies are compared, so that none are equal by chance."""
    if not distinct:
        return tuple(tuple(rng.randint(-6, 6) for _ in range(_product(s))) for s in sizes)
    total = sum(map(_product, sizes))
    pool = [v for v in range(-total - 40, total + 41) if v]
    rng.shuffle(pool)
    out, at = [], 0
    for s in sizes:
        out.append(tuple(pool[at : at + _product(s)]))
        at += _product(s)
    return tuple(out)


def _left_only(typed: Typed) -> Typed:
    """The same typed rule with nothing on the right, to look at the left side alone."""
    return Typed(replace(typed.rule, right=(), outputs=()), typed.facts, typed.inputs, typed.left, Side((), (), ()), [])


def counterexample(
    rule: Substitution,
    keep: tuple[Condition, ...],
    broken: Condition | None = None,
    tries: int = 400,
    seed: int = 1,
) -> Counterexample | None:
    """The smallest counterexample found that satisfies `keep`, and not `broken` if given.  Left sides that break
    their copies do not count.
    """
    best: tuple[tuple[int, int], Counterexample] | None = None
    found = 0
    for k, instance in enumerate(instances(replace(rule, preconditions=keep), tries, seed)):
        if broken is not None and satisfies(rule, (broken,), instance):
            continue
        here = fault(rule, instance, seed + k)
        if here is None or here.what == "left copy":
            continue
        size = sum(_product(s) for s in input_sizes(rule, instance))
        rank = (0 if here.what in ("value", "copy") else 1, size)
        if best is None or rank < best[0]:
            best = (rank, here)
        found += 1
        if found >= (3 if broken is not None else 16 if best[0][0] == 0 else 60):
            break
    return None if best is None else best[1]


def witness(rule: Substitution, tries: int = 400, seed: int = 2) -> Instance | None:
    """An instance on which the left side types, all preconditions hold and both sides evaluate alike; of the first few
    the one with most values above 1 (a witness of ones says little)."""
    best: tuple[int, Instance] | None = None
    found = 0
    for k, instance in enumerate(instances(rule, tries, seed)):
        try:
            if right_fault(type_instance(rule, instance)) is not None:
                continue
        except (Contradiction, IllTyped):
            continue
        if fault(rule, instance, seed + k) is None:
            rank = sum(1 for v in instance.values() if v > 1)
            if best is None or rank > best[0]:
                best = (rank, tuple(sorted(instance.items())))
            found += 1
            if found >= 4:
                break
    return None if best is None else best[1]
