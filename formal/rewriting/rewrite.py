"""Finds derivations: a rule shown by replaying others, found by meeting in the middle.

    left = t_0 -> t_1 -> .. -> t_n = right        every step an instance of a proved rule at a named place, every t_k of
                                                  the type of t_0

Breadth-first from both sides: one step from the right, one or two from the left, so that derivations of up to three
steps are found if one exists within the size bound.  Matches are structural and shared by all searches; what a search
adds is one instance, on which types and preconditions are tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...models.rewrites.rule import Parameter
from ...models.rewrites.terms import Term
from ...proofs.rewrites.derivation import Applied
from .terms import Binding, Direction, Rules, Terms, Typing, same_type


@dataclass(frozen=True)
class Move:
    """One step: `old` became `new` by `direction` under `binding`."""

    direction: Direction
    binding: Binding
    old: int
    new: int


class Search:
    """Rewriting with a growing set of rules.  `slack`: operators a term may have more than the larger side."""

    def __init__(self, rules: Rules, slack: int = 3) -> None:
        self.rules, self.terms, self.slack = rules, rules.terms, slack
        self.dead: frozenset[int] = frozenset()
        """Rules that are not used."""
        self._roots: dict[int, tuple[int, list[tuple[int, Direction, Binding]]]] = {}

    def roots(self, t: int) -> list[tuple[int, Direction, Binding]]:
        """Structural rewrites of t at its root."""
        known = len(self.rules.rules)
        seen, out = self._roots.get(t, (0, []))
        if seen < known:
            for d in self.rules.candidates(t):
                if d.rule < seen:
                    continue
                for bound, numbers in self.rules.matches(d, t):
                    new = self.rules.instance(d.target, bound, dict(numbers))
                    if new != t:
                        out.append((new, d, (bound, numbers)))
            self._roots[t] = (known, out)
        return out

    def neighbours(
        self, t: int, typing: Typing, limit: int, skip: int = -1, erasing: bool = False
    ) -> Iterator[tuple[int, Move]]:
        """(term, move) for every allowed step from t; rule `skip` is not used; only `erasing` steps if asked."""
        terms, done = self.terms, {t}
        for part in terms.parts(t):
            for new, d, binding in self.roots(part):
                if d.rule == skip or d.rule in self.dead or (erasing and not d.erasing):
                    continue
                whole = terms.substitute(t, part, new)
                if whole in done or terms.size(whole) > limit:
                    continue
                if not same_type(typing.type(part), typing.type(new)) or typing.type(whole) is None:
                    continue
                if not typing.allows(self.rules.rules[d.rule], binding):
                    continue
                done.add(whole)
                yield whole, Move(d, binding, part, new)

    def derive(
        self, left: int, right: int, typing: Typing, steps: int = 3, skip: int = -1, most: int = 100_000
    ) -> list[tuple[bool, Move]] | None:
        """Moves from left to right, at most `steps` (1 to 4); the flag says whether a move was found from the right
        (and is to be read backwards).  None if there is none.

        Steps that lose an input cannot be found backwards, so ends of length two are extended by such steps towards the
        other side.
        """
        if left == right:
            return []
        limit = max(self.terms.size(left), self.terms.size(right)) + self.slack
        ahead = dict(self.neighbours(left, typing, limit, skip))
        back = dict(self.neighbours(right, typing, limit, skip))
        if right in ahead:
            return [(False, ahead[right])]
        if left in back:
            return [(True, back[left])]
        if steps < 2:
            return None
        for t, move in ahead.items():
            if t in back:
                return [(False, move), (True, back[t])]
        seconds: list[dict[int, tuple[int, Move]]] = []
        # else two steps from the left see every path
        both = steps > 3 or bool(set(self.terms.leaves(right)) - set(self.terms.leaves(left)))
        for near, far, other, from_right in ((ahead, back, right, False), (back, ahead, left, True)):
            second: dict[int, tuple[int, Move]] = {}
            seconds.append(second)
            if from_right and not both:
                break
            for middle in sorted(near, key=lambda t: (self.terms.size(t), t)):
                for t, move in self.neighbours(middle, typing, limit, skip):
                    path = [(from_right, near[middle]), (from_right, move)]
                    if t == other:
                        return path[::-1] if from_right else path
                    if steps >= 3 and t in far:
                        path.append((not from_right, far[t]))
                        return path[::-1] if from_right else path
                    second.setdefault(t, (middle, move))
                if len(second) > most:
                    break
        if steps < 3:
            return None
        for near, second, other, from_right in ((ahead, seconds[0], right, False), (back, seconds[1], left, True)):
            for t in second:
                for end, move in self.neighbours(t, typing, limit, skip, erasing=True):
                    if end == other:
                        middle, inner = second[t]
                        path = [(from_right, near[middle]), (from_right, inner), (from_right, move)]
                        return path[::-1] if from_right else path
        if steps < 4:
            return None
        for t in seconds[0]:
            if t in seconds[1]:
                (one, inner), (two, outer) = seconds[0][t], seconds[1][t]
                return [(False, ahead[one]), (False, inner), (True, outer), (True, back[two])]
        return None


def derivation_steps(found: list[tuple[bool, Move]], rules: Rules) -> tuple[Applied, ...]:
    """Moves as steps of a derivation, all read from left to right."""
    out = []
    for from_right, move in found:
        d, (bound, numbers) = move.direction, move.binding
        rule = rules.rules[d.rule]
        inputs: tuple[Term, ...] = tuple(rules.terms.term(t) for t in bound)
        forward = d.forward != from_right
        values: tuple[tuple[str, Parameter], ...] = tuple((s, dict(numbers).get(s, s)) for s in rule.symbols)
        out.append(Applied(rule.name, d.output, forward, inputs, values))
    return tuple(out)


def store() -> Rules:
    """An empty set of rules over an empty store."""
    return Rules(Terms())
