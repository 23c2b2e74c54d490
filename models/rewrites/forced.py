"""What typing forces: names of a rule that have a single value on all its instances.

A rule whose degree can only be 1 says nothing of parallel execution, though it is true for every degree at which its
left side types.
"""

from __future__ import annotations

from collections.abc import Iterable

from .instances import cases
from .ops import OPERATORS
from .rule import Substitution
from .types import Typed, condition_names, type_left

_DEGREES = ("degree", "steps")


def forced_values(rule: Substitution, choices: Iterable[tuple[int, ...]] | None = None) -> tuple[tuple[str, int], ...]:
    """Names with one value in all cases of typing that have instances (`choices`; None: those without visible
    contradiction), and it.

    >>> from .rule import Pattern, node
    >>> conv = node("conv", 0, 1, stride_h="s", stride_w="t", padding="same", activation="none")
    >>> left = (node("partition", -1, axis=2, degree="d"), node("replicate", -2, degree="d"), conv)
    >>> forced_values(Substitution("r", (Pattern("x", 4), Pattern("w", 4)), left, left, ((2, 2),)))
    (('d', 1),)
    """
    found: set[tuple[str, int]] | None = None
    for typed in cases(rule) if choices is None else [type_left(rule, c) for c in choices]:
        here = _constants(typed)
        found = here if found is None else found & here
    order = {n: k for k, n in enumerate(_free_names(rule))}
    return tuple(sorted(found or (), key=lambda pair: order[pair[0]]))


def degree_symbols(rule: Substitution) -> tuple[str, ...]:
    """Symbols that are degrees or numbers of steps of parallel operators."""
    out: dict[str, None] = {}
    for n in (*rule.left, *rule.right):
        for key, value in n.parameters:
            if key in _DEGREES and isinstance(value, str) and key in OPERATORS[n.operator].numbers:
                out[value] = None
    return tuple(out)


def at_degree_one_only(rule: Substitution, forced: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Degrees that typing or preconditions force to be 1."""
    ones = {n for n, v in forced if v == 1}
    return tuple(s for s in degree_symbols(rule) if s in ones)


def forced_texts(rule: Substitution, forced: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """As conditions, without those that are preconditions already."""
    stated = {str(c) for c in rule.preconditions}
    return tuple(t for n, v in forced if (t := f"{n} = {v}") not in stated)


def _free_names(rule: Substitution) -> tuple[str, ...]:
    axes = [(p, a) for p in rule.inputs for a in range(p.rank) if a not in dict(p.fixed)]
    return (*rule.symbols, *(f"{p.name}.{a}" for p, a in axes), *(f"{p.name}.{a}.degree" for p, a in axes if p.sharded))


def _constants(typed: Typed) -> set[tuple[str, int]]:
    names = condition_names(typed.rule, typed.facts, typed.inputs)
    found = ((n, typed.facts.now(names[n]).constant) for n in _free_names(typed.rule))
    return {(n, v) for n, v in found if v is not None}
