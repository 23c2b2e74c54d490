"""Leaves out of an e-graph what no cheaper program needs, so that a search of all programs has less to choose from.

    takes      points of an operator, and elements that it reads and writes
    least(t)   the least that a tensor takes, over the operators that compute it and all that these rest on
    pays       an operator that libraries give, with what it rests on at its least, takes less than those of its tensor
               that are there without libraries
    kept       what the built-in rules give of what is kept; what pays, the cheapest first; and all that the proofs of
               these name: so a dearer program stays that a cheaper one is proved by

Steps of libraries only open the way: that one alone takes no less is no reason to leave it out before all is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod
from typing import Final

from ....models.joint.egraph import EGraph
from ....models.joint.rules import DEFINE
from ....models.program.operators import Operator
from ....proofs.joint.derivation import Derivation, Step
from .rules.growing import Growing
from .rules.library import takes

MOST_WAYS: Final = 4
"""Operators of one tensor that are kept because they pay: those that take least; others hardly ever win anywhere."""


def glean(g: Growing, first: Collection[str], rounds: int, most: int) -> tuple[EGraph, Derivation]:
    """The e-graph with what is kept, `most` operators of it added, and its proofs.  `first`: operators that are kept
    anyway, the user's and those that were there before the libraries' rules.
    """
    egraph, derivation = g.egraph(), g.derivation(rounds)
    return part_of(egraph, derivation, _kept(g, derivation, set(first), most))


def part_of(egraph: EGraph, derivation: Derivation, kept: Collection[str]) -> tuple[EGraph, Derivation]:
    """Of an e-graph and its proof the operators `kept`."""
    operators = tuple(op for op in egraph.operators if op.name in kept)
    written = {op.output.tensor for op in operators}
    steps = tuple(s for s in derivation.steps if s.node in kept)
    books = tuple(b for b in derivation.books if any(s.book == b.identity for s in steps))
    tensors = tuple(t for t in egraph.tensors if t.name in written)
    return EGraph(egraph.base, tensors, operators), Derivation(derivation.library, derivation.rounds, steps, books)


def _kept(g: Growing, derivation: Derivation, kept: set[str], most: int) -> set[str]:
    """Names of operators."""
    operators = {op.name: op for op in g.order}
    most += len(g.base.operators)
    steps = {s.node: s for s in derivation.steps}
    defined = {operators[s.node].output.tensor: s for s in derivation.steps if defines(s)}
    paying, cheapest = _paying(g, steps, kept)

    def needs(step: Step) -> Iterator[str]:
        """Operators without which a step proves nothing, or its node reads what nothing computes; and of new tensors
        the way that takes least.
        """
        yield from step.place
        for a in operators[step.node].inputs:
            if a.tensor in defined:
                yield from (defined[a.tensor].node, cheapest[a.tensor])

    def closure(name: str) -> set[str]:
        found, todo = set[str](), [name]
        while todo:
            at = todo.pop()
            if at not in kept and at not in found:
                found.add(at)
                todo.extend(needs(steps[at]))
        return found

    for name in paying:
        more = closure(name)
        if len(kept) + len(more) <= most:
            kept.update(more)
    for step in derivation.steps:  # what built-in rules give of what libraries gave
        if step.node in kept or step.book or defines(step) or g.by_libraries.isdisjoint(step.place):
            continue
        more = closure(step.node)
        if g.by_libraries.isdisjoint(more) and len(kept) + len(more) <= most:
            kept.update(more)
    return kept


def defines(step: Step) -> bool:
    """Whether a step gives a new tensor."""
    return step.rule == DEFINE and not step.book


def _paying(g: Growing, steps: dict[str, Step], first: set[str]) -> tuple[list[str], dict[str, str]]:
    """Operators that pay and that a library has a part in, those that save most first; and the one that takes least of
    every tensor.
    """
    size = {t: prod(tensor.shape) for t, tensor in g.tensors.items()}
    least, of = dict[str, int](), dict[str, list[tuple[int, int, Operator]]]()
    for number, op in enumerate(g.order):  # every operator stands behind all that compute what it reads
        total = takes(op, size) + sum(least.get(t, 0) for t in dict.fromkeys(a.tensor for a in op.inputs))
        t = op.output.tensor
        least[t] = min(total, least.get(t, total))
        of.setdefault(t, []).append((total, number, op))
    by_library = set(g.by_libraries)
    for name, step in steps.items():
        if not by_library.isdisjoint(step.place):
            by_library.add(name)
    found = list[tuple[int, int, str]]()
    for t, ways in of.items():
        plain = min((total for total, _, op in ways if op.name in first), default=None)
        if plain is None:
            continue
        pays = [(total, n, op) for total, n, op in sorted(ways, key=lambda w: w[:2]) if op.name in by_library]
        found += [(total - plain, n, op.name) for total, n, op in pays[:MOST_WAYS] if total < plain]
    return [name for _, _, name in sorted(found)], {t: min(ways, key=lambda w: w[:2])[2].name for t, ways in of.items()}
