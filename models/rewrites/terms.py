"""Sides of substitutions as terms: one expression per output, equal subterms being one operator.

    term  =  number of a pattern input   |   Apply((operator, parameters), arguments)

Terms are what rewriting speaks about: a step replaces every occurrence of one subterm.  `term_of` reads a term off a
side, `side_of` shares equal subterms again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .rule import Node, Parameter, Pattern, Substitution

Label = tuple[str, tuple[tuple[str, Parameter], ...]]
"""Operator and sorted parameters."""

COMMUTATIVE: Final = frozenset({"add", "mul"})
"""Operators whose two arguments may be exchanged (their index expressions are one sum or product of the same
entries).
"""

INFIX: Final = {"add": "+", "mul": "*", "matmul": "@"}


@dataclass(frozen=True)
class Apply:
    """An operator on terms."""

    label: Label
    arguments: tuple[Term, ...]


Term = int | Apply


def term_of(nodes: Sequence[Node], wire: int) -> Term:
    """The term of a wire of a side.

    >>> from .rule import node
    >>> term_text(term_of((node("relu", -1), node("add", 0, -2)), 1), ("x", "y"))
    'relu(x) + y'
    """
    terms: list[Term] = []
    for n in nodes[: wire + 1]:
        terms.append(Apply((n.operator, n.parameters), tuple(terms[w] if w >= 0 else -1 - w for w in n.inputs)))
    return terms[wire] if wire >= 0 else -1 - wire


def side_of(terms: Sequence[Term]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Nodes of a side that computes the terms, each subterm once, and the wire of each term."""
    nodes: list[Node] = []
    where: dict[Term, int] = {}

    def wire(t: Term) -> int:
        if isinstance(t, int):
            return -1 - t
        if t not in where:
            inputs = tuple(wire(a) for a in t.arguments)
            nodes.append(Node(t.label[0], inputs, t.label[1]))
            where[t] = len(nodes) - 1
        return where[t]

    wires = tuple(wire(t) for t in terms)
    return tuple(nodes), wires


def canonical_order(t: Term) -> Term:
    """The term with the arguments of commutative operators in a fixed order: equal results mean equal up to
    commutativity.

    >>> canonical_order(Apply(("add", ()), (1, 0))) == canonical_order(Apply(("add", ()), (0, 1)))
    True
    """
    if isinstance(t, int):
        return t
    arguments = tuple(map(canonical_order, t.arguments))
    if t.label[0] in COMMUTATIVE:
        arguments = tuple(sorted(arguments, key=repr))
    return Apply(t.label, arguments)


def replace_term(t: Term, old: Term, new: Term) -> Term:
    """Every occurrence of `old` in t replaced by `new`."""
    if t == old:
        return new
    if isinstance(t, int):
        return t
    return Apply(t.label, tuple(replace_term(a, old, new) for a in t.arguments))


def instantiate(t: Term, inputs: Sequence[Term], numbers: Mapping[str, Parameter]) -> Term:
    """A rule's term with its pattern inputs and its symbols replaced."""
    if isinstance(t, int):
        return inputs[t]
    operator, parameters = t.label
    label = (operator, tuple((k, numbers.get(v, v) if isinstance(v, str) else v) for k, v in parameters))
    return Apply(label, tuple(instantiate(a, inputs, numbers) for a in t.arguments))


def subterms(t: Term) -> tuple[Term, ...]:
    """All subterms, each once, arguments before what uses them."""
    out: dict[Term, None] = {}

    def visit(s: Term) -> None:
        if s not in out:
            if isinstance(s, Apply):
                for a in s.arguments:
                    visit(a)
            out[s] = None

    visit(t)
    return tuple(out)


def inputs_of(t: Term) -> tuple[int, ...]:
    """Pattern inputs of a term, in order of first use."""
    return tuple(s for s in subterms(t) if isinstance(s, int))


def operators_of(t: Term) -> int:
    """Number of operators, shared ones once."""
    return sum(isinstance(s, Apply) for s in subterms(t))


def term_text(t: Term, names: Sequence[str], inside: bool = False) -> str:
    """A term for people: `reduce[d](linear(partition[1,d](x), w))`."""
    if isinstance(t, int):
        return names[t]
    operator, parameters = t.label
    if operator in INFIX:
        body = f" {INFIX[operator]} ".join(term_text(a, names, True) for a in t.arguments)
        return f"({body})" if inside else body
    if operator == "specified":
        operator, parameters = str(dict(parameters)["statement"]).partition(":")[0], ()
    values = [_word(v) for k, v in parameters if (k, v) != ("activation", "none")]
    brackets = f"[{','.join(values)}]" if values else ""
    return f"{operator}{brackets}({', '.join(term_text(a, names) for a in t.arguments)})"


def _word(v: Parameter) -> str:
    return "".join(map(str, v)) if isinstance(v, tuple) else str(v)


def rule_of(name: str, inputs: tuple[Pattern, ...], left: Sequence[Term], right: Sequence[Term]) -> Substitution:
    """The substitution with these terms as mapped outputs."""
    (a, at_left), (b, at_right) = side_of(left), side_of(right)
    return Substitution(name, inputs, a, b, tuple(zip(at_left, at_right, strict=True)))


def sides_text(rule: Substitution) -> tuple[str, str]:
    """Both sides as text, outputs separated by `;`."""
    names = [p.name for p in rule.inputs]
    return (
        "; ".join(term_text(term_of(rule.left, a), names) for a, _ in rule.outputs),
        "; ".join(term_text(term_of(rule.right, b), names) for _, b in rule.outputs),
    )
