"""Writes integer obligations of substitution proofs as SMT-LIB 2.6 scripts, for any solver.

    h_1 >= 0, .., h_n >= 0   |-   g >= 0          is written as:  h_1 >= 0 and .. and g < 0  is unsatisfiable

Each obligation is one `push .. check-sat .. pop`; the expected answer of every one is unsat.  Logic QF_LIA if all
polynomials are linear, else QF_NIA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...models.rewrites.polynomial import Monomial, Poly
from ..rewrites.judgement import Fact


@dataclass(frozen=True)
class Obligation:
    """`known` are polynomials >= 0; `goal` >= 0 follows, or (None) they are contradictory.  `fact`: our own proof."""

    known: tuple[Poly, ...]
    goal: Poly | None
    fact: Fact = ()


def smtlib_script(obligations: Sequence[Obligation], title: str = "") -> str:
    """One script of all obligations.

    >>> n = Poly.of("n")
    >>> print(smtlib_script([Obligation((n - 1,), n * n)]).splitlines()[4])
    (assert (>= (+ n (- 1)) 0))
    """
    names = sorted({s for o in obligations for p in _all(o) for s in p.names})
    linear = all(len(m) <= 1 for o in obligations for p in _all(o) for m in p.terms)
    words = {s: _symbol(s) for s in names}
    lines = [
        f"(set-logic {'QF_LIA' if linear else 'QF_NIA'})",
        f'(set-info :source "shardproof {title.replace(chr(34), chr(39))}")',
    ]
    lines += [f"(declare-const {words[s]} Int)" for s in names]
    for o in obligations:
        lines.append("(push 1)")
        lines += [f"(assert (>= {_poly(p, words)} 0))" for p in o.known]
        if o.goal is not None:
            lines.append(f"(assert (< {_poly(o.goal, words)} 0))")
        lines += ["(set-info :status unsat)", "(check-sat)", "(pop 1)"]
    return "\n".join([*lines, "(exit)", ""])


def _all(o: Obligation) -> tuple[Poly, ...]:
    return (*o.known, o.goal) if o.goal is not None else o.known


def _symbol(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else f"|{name.replace('|', '!').replace(chr(92), '!')}|"


def _poly(p: Poly, words: dict[str, str]) -> str:
    parts = [_monomial(m, c, words) for m, c in sorted(p.terms.items(), key=lambda t: (-len(t[0]), t[0]))]
    return "0" if not parts else parts[0] if len(parts) == 1 else f"(+ {' '.join(parts)})"


def _monomial(m: Monomial, c: int, words: dict[str, str]) -> str:
    number = str(c) if c >= 0 else f"(- {-c})"
    if not m:
        return number
    factors = [*([] if c == 1 else [number]), *(words[s] for s in m)]
    return factors[0] if len(factors) == 1 else f"(* {' '.join(factors)})"
