"""Draws random instances of a substitution: sizes, degrees and parameters on which its left side types, and
arrays to fill them.

Sizes that are drawn blindly seldom fit; so the left side is typed with unknowns first, the unknowns that are left are
drawn, and every size follows.  What comes out is checked by numeric typing, so that a wrong general solution can only
lose instances, never pass a bad one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from .eval import Evaluator, extents, input_types
from .index_arrays import PRIME, Array, EvaluationError, Exact, Modular
from .polynomial import Poly
from .rule import Substitution, holds
from .shards import IllTyped
from .types import Contradiction, NeedsChoice, Typed, condition_names, type_left

POOLS: Final = ((1, 2), (1, 2, 3), (2, 3), (1, 2, 3, 4), (1, 2, 3, 5), (3, 4), (1,))
"""Values of unknowns: size one, small, unequal, powers of two and not."""

ELEMENTS: Final = 4096
"""Largest input that is drawn."""


def cases(rule: Substitution, most: int = 64) -> list[Typed]:
    """The left side typed, once per case of its case splits; those without an instance are left out."""
    out: list[Typed] = []
    todo: list[tuple[int, ...]] = [()]
    while todo and len(out) < most:
        choices = todo.pop()
        try:
            out.append(type_left(rule, choices))
        except NeedsChoice:
            todo += [(*choices, 1), (*choices, 0)]
        except (Contradiction, IllTyped):
            continue
    return out


def draw_instances(
    rule: Substitution, seed: int, tries: int, typed: list[Typed] | None = None
) -> Iterator[dict[str, int]]:
    """Instances (values of the names of conditions) on which the left side types and the preconditions hold; each
    is new.
    """
    rng = np.random.default_rng(seed)
    found = cases(rule) if typed is None else typed
    evaluator, seen = Evaluator(Exact()), set()
    names = [condition_names(t.rule, t.facts, t.inputs) for t in found]
    for attempt in range(tries if found else 0):
        k = attempt % len(found)
        values = _drawn(found[k], names[k], rng, POOLS[int(rng.integers(len(POOLS)))])
        if values is None:
            continue
        key = tuple(sorted(values.items()))
        if key in seen:
            continue
        seen.add(key)
        try:
            inputs = input_types(rule, values)
            if any(np.prod(extents(t), dtype=object) > ELEMENTS for t in inputs):
                continue
            evaluator.types(rule.left, inputs, values, "left")
        except (IllTyped, EvaluationError):
            continue
        if all(holds(c, values) for c in rule.preconditions):
            yield values


def _drawn(
    typed: Typed, names: Mapping[str, Poly], rng: np.random.Generator, pool: tuple[int, ...]
) -> dict[str, int] | None:
    facts = typed.facts
    unknowns = {s: max(int(rng.choice(pool)), low or 0) for s, low in facts.low.items() if s not in facts.sigma}
    out = {}
    for name, p in names.items():
        value = facts.now(p).value(unknowns)
        if not 1 <= value <= 1 << 20:
            return None
        out[name] = value
    return out


def integer_arrays(
    rule: Substitution, values: Mapping[str, int], rng: np.random.Generator, ring: Modular | Exact
) -> dict[str, Array]:
    """An array per pattern input: entries -6..6 (exact) or uniform mod p; row numbers where an embedding looks them
    up.
    """
    looked_up = _indices(rule)
    out: dict[str, Array] = {}
    for p, t in zip(rule.inputs, input_types(rule, values), strict=True):
        shape = extents(t)
        if p.name in looked_up:
            numbers = rng.integers(0, 4, shape)
        elif isinstance(ring, Exact):
            numbers = rng.integers(-6, 7, shape)
        else:
            numbers = rng.integers(1, PRIME, shape)
        out[p.name] = ring.whole(np.asarray(numbers, dtype=np.int64))
    return out


def _indices(rule: Substitution) -> set[str]:
    """Pattern inputs that reach operand 1 of an embedding."""
    out: set[str] = set()
    for nodes in (rule.left, rule.right):
        todo = [n.inputs[1] for n in nodes if n.operator in ("embedding", "embedding_rows", "embedding_bag")]
        while todo:
            w = todo.pop()
            if w < 0:
                out.add(rule.inputs[-1 - w].name)
            else:
                todo += nodes[w].inputs
    return out
