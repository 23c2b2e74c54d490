"""Numbers functions of forms: those that are the same but for the names and the origin of their free variables are one
head (`abstract` of `forms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from .forms import ONE, Algebra
from .index import FREED, HELD, OWN, Index, Range, Undecided, constant, substitute, variable
from .labels import greatest_step, orders, signs_in
from .terms import Form, Head, Kind


class Abstraction(Algebra):
    """Makes heads of forms."""

    def abstract(
        self,
        kind: Kind,
        name: str,
        words: tuple[str | int | Fraction, ...],
        of: Sequence[Form],
        over: Sequence[tuple[int, Range]] = (),
    ) -> Form:
        """A head made of forms, at the point where they are: their free variables get the names and the origin that
        all forms get which are the same but for names and origin.  `over`: variables that the head binds, whose ranges
        stand last among its indices.
        """
        key = (kind, name, words, tuple(of), tuple(over))
        if key in self._abstract:
            return self._abstract[key]
        bound = [v for v, _ in over]
        forms, fixed = self._freed(tuple(of))
        forms, at = self._folded(forms, set(bound), fixed)
        forms, at = self._summed(forms, at)
        free = sorted(at)
        size = sum(1 + len(factors) for form in forms for (_, factors), _ in form)
        self.work(1 + size * (len(free) + len(bound)) // 8)
        marks = {v: tuple(sorted(signs_in(forms, v))) for v in (*free, *bound)}
        best: tuple[tuple[Form, ...], list[Index]] | None = None
        for one, two in product(orders(free, [marks[v] for v in free]), orders(bound, [marks[v] for v in bound])):
            self.work(1 + size * (len(one) + len(two)) // 8)
            moved = self._origins(forms, [*one, *two])
            values: dict[int, Index] = {}
            for i, v in enumerate(one):
                values[v] = (((i, 1),), -moved[v])
            for i, v in enumerate(two):
                values[v] = (((OWN + i, 1),), -moved[v])
            made = tuple(self.substitute(f, values) for f in forms)
            if best is None or made < best[0]:
                places = [(at[v][0], at[v][1] + moved[v]) for v in one]
                ends = dict(over)
                places += [constant(x + moved[v]) for v in two for x in ends[v]]
                best = made, places
        if best is None:
            raise Undecided("a function of forms has no order")
        head = self.head(Head(kind, name, words, best[0], len(free), len(bound)))
        found = self._of([(ONE, [], [(head, tuple(best[1]), ONE)])])
        self._abstract[key] = found
        return found

    def _freed(self, forms: tuple[Form, ...]) -> tuple[tuple[Form, ...], dict[int, Index]]:
        """Positions that are numbers as free variables, one for each number: what is made of one micro-batch, or one
        head, is what is made of all of them at that place.
        """
        found: dict[int, int] = {}

        def free(h: int, k: int, index: Index) -> Index:
            head = self.heads[h]
            if index[0] or head.free <= k < head.free + 2 * head.bound:  # the ranges of a functional
                return index
            if index[1] not in found and len(found) >= HELD - FREED:
                raise Undecided("too many positions that are numbers")
            return variable(found.setdefault(index[1], FREED + len(found)))

        made = tuple(
            self._of(
                [
                    (c, list(ranges), [(h, tuple(free(h, k, i) for k, i in enumerate(at)), p) for h, at, p in factors])
                    for (ranges, factors), c in form
                ]
            )
            for form in forms
        )
        return made, {v: constant(n) for n, v in found.items()}

    def _folded(
        self, forms: tuple[Form, ...], own: set[int], fixed: dict[int, Index]
    ) -> tuple[tuple[Form, ...], dict[int, Index]]:
        """Free variables that occur only as D h + d are one; where each stands."""
        seen: dict[int, None] = {}
        for form in forms:
            for (_, factors), _ in form:
                for _, places, _ in factors:
                    seen.update((v, None) for i in places for v, _ in i[0] if v >= 0 and v not in own)
        at = {v: fixed.get(v, variable(v)) for v in seen}
        again = len(at) > 1
        while again:
            again = False
            uses = [
                dict(i[0]) for form in forms for (_, factors), _ in form for _, places, _ in factors for i in places
            ]
            self.work(1 + len(at) * len(at) * len(uses) // 64)
            for h, d in product(at, at):
                pairs = {(u.get(h, 0), u.get(d, 0)) for u in uses if h in u or d in u}
                if h == d or not all(b and a % b == 0 for a, b in pairs):
                    continue
                ratios = {a // b for a, b in pairs}
                if len(ratios) == 1 and (ratio := ratios.pop()) > 1:
                    forms = tuple(self.substitute(f, {d: (tuple(sorted(((d, 1), (h, -ratio)))), 0)}) for f in forms)
                    at[d] = substitute((tuple(sorted(((h, ratio), (d, 1)))), 0), {h: at.pop(h), d: at[d]})
                    again = len(at) > 1
                    break
        return forms, at

    def _summed(self, forms: tuple[Form, ...], at: dict[int, Index]) -> tuple[tuple[Form, ...], dict[int, Index]]:
        """Free variables whose positions occur only as D h + d, as numbers, are one: the position of that."""
        places, elsewhere = dict[int, dict[int, Fraction]](), set[int]()
        for k, form in enumerate(forms):
            for (ranges, factors), c in form:
                if not ranges and len(factors) == 1 and factors[0][0] == self.iota and factors[0][2] == 1:
                    places.setdefault(factors[0][1][0][0][0][0], {})[k] = c
                else:
                    elsewhere.update(v for _, index, _ in factors for i in index for v, _ in i[0])
        mine = sorted(v for v in places if v in at and v not in elsewhere)
        for d, h in product(mine, mine):
            if h == d or h not in at or d not in at or places[h].keys() != places[d].keys():
                continue
            ratios = {c / places[d][k] for k, c in places[h].items()}
            ratio = ratios.pop()
            if ratios or ratio.denominator != 1 or ratio <= 1:
                continue
            gone = ((), ((self.iota, (variable(h),), ONE),))
            forms = tuple(tuple(pair for pair in form if pair[0] != gone) for form in forms)
            at[d] = substitute((tuple(sorted(((h, int(ratio)), (d, 1)))), 0), {h: at.pop(h), d: at[d]})
        return forms, at

    def _origins(self, forms: Sequence[Form], order: Sequence[int]) -> dict[int, int]:
        """By how much each variable is moved so that its first index begins at 0."""
        found = dict.fromkeys(order, 0)
        sizes, lone = {v: greatest_step(forms, v) for v in order}, list[int]()
        for v in sorted(order, key=lambda v: (-sizes[v], order.index(v))):
            firsts = list[tuple[object, int]]()
            for form in forms:
                for (_, factors), c in form:
                    for h, at, p in factors:
                        for k, i in enumerate(at):
                            d = dict(i[0]).get(v)
                            if d and h != self.iota:
                                off = i[1] - sum(e * found[w] for w, e in i[0] if w >= 0 and w != v and w in found)
                                key = (h, p, k, tuple(sorted(e for _, e in i[0])), c)
                                firsts.append((key, off // d))
            if firsts:
                least = min(key for key, _ in firsts)  # type: ignore[type-var]
                found[v] = min(s for key, s in firsts if key == least)
            else:
                lone.append(v)
        self._of_positions(forms, lone, found)
        return found

    def _of_positions(self, forms: Sequence[Form], lone: Sequence[int], found: dict[int, int]) -> None:
        """Where variables begin that are known by their positions alone: so that the number beside one of them is 0,
        and nothing stands beside the position of another that is a factor, as of p in p s + 2 s.
        """
        one = next((v for v in lone if self._by_number(forms, v, found)), None)
        for v in lone:
            if v != one:
                self._by_factor(forms, v, found)

    def _by_number(self, forms: Sequence[Form], v: int, found: dict[int, int]) -> bool:
        for form in forms:
            terms = {
                f[0][1][0][0][0][0]: c
                for (r, f), c in form
                if not r and len(f) == 1 and f[0][0] == self.iota and f[0][2] == 1
            }
            beside = dict(form).get(((), ()), Fraction(0)) - sum(c * found[w] for w, c in terms.items() if w in found)
            if v in terms and (beside / terms[v]).denominator == 1:
                found[v] = int(beside / terms[v])
                return True
        return False

    def _by_factor(self, forms: Sequence[Form], v: int, found: dict[int, int]) -> None:
        shifts = list[tuple[tuple[object, ...], int]]()
        for form in forms:
            known = dict(form)
            for (ranges, factors), c in form:
                rest = tuple(f for f in factors if f[:2] != (self.iota, (variable(v),)))
                if ranges or len(rest) + 1 != len(factors) or not rest or any(h == self.iota for h, _, _ in rest):
                    continue
                beside = known.get(((), rest), Fraction(0))
                for w, moved in found.items():
                    pair = tuple(sorted((*rest, (self.iota, (variable(w),), ONE))))
                    beside -= known.get(((), pair), Fraction(0)) * moved if w != v else 0
                if (beside / c).denominator == 1:
                    shifts.append(((tuple(sorted((h, p) for h, _, p in rest)), c), int(beside / c)))
        if shifts:
            found[v] = min(shifts)[1]
