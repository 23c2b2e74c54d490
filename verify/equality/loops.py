"""Finds one form for pieces of one position each, where forms differ by the same step from one to the next: what is
made in a loop over heads, experts or chunks is one tensor.
"""

from __future__ import annotations

from .digits import Box
from .forms import Algebra
from .index import Range, constant
from .terms import Form


def join_pieces(forms: Algebra, pieces: list[tuple[Box, Form]], v: int) -> list[tuple[Box, Form]]:
    """Pieces of one position of a variable each, whose forms differ by a step from one to the next, as one."""
    again = True
    while again:
        again = False
        starts = {(*box[:v], box[v][0], *box[v + 1 :]): (box, form) for box, form in pieces}
        for a, f in pieces:
            b, g = starts.get((*a[:v], a[v][1], *a[v + 1 :]), (a, f))
            if f == g or (one := _line(forms, f, a[v], g, b[v], v)) is None:
                continue
            rest = [p for p in pieces if p[0] not in (a, b)]
            pieces = [*rest, ((*a[:v], (a[v][0], b[v][1]), *a[v + 1 :]), one)]
            again = True
            break
    return pieces


def _line(forms: Algebra, f: Form, at: Range, g: Form, then: Range, v: int) -> Form | None:
    """A form that is `f` in one range and `g` in the next; `g` is for one position."""
    if len(f) != len(g) or then[1] - then[0] != 1:
        return None
    if at[1] - at[0] == 1:
        pairs = []
        for ((r, fs), c), ((s, gs), d) in zip(f, g, strict=True):
            if r != s or c != d or len(fs) != len(gs):
                return None
            new = []
            for (h, i, p), (n, j, q) in zip(fs, gs, strict=True):
                if h != n or p != q or len(i) != len(j) or any(x[0] != y[0] for x, y in zip(i, j, strict=True)):
                    return None
                if any(w == v for x in i for w, _ in x[0]):
                    return None
                places = []
                for x, y in zip(i, j, strict=True):
                    step = y[1] - x[1]
                    terms = tuple(sorted((*x[0], (v, step)))) if step else x[0]
                    places.append((terms, x[1] - step * at[0]))
                new.append((h, tuple(places), p))
            pairs.append((((r), tuple(new)), c))
        one = forms.substitute(tuple(pairs), {})
        if forms.substitute(one, {v: constant(at[0])}) != f:
            return None
    else:
        one = f
    return one if forms.substitute(one, {v: constant(then[0])}) == g else None
