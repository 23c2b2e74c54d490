"""Reads TASO's axioms as substitutions: which operator of the table each word of a term is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...rewrites.rule import Node, Parameter, Pattern, Substitution
from .axioms import PARAMETERS, PublicAxiom, Term

_WORDS: Final[Mapping[str, str]] = {
    "add": "add",
    "mul": "mul",
    "scale": "scale",
    "matmul": "matmul",
    "relu": "relu",
    "concat": "concat",
    "split0": "split0",
    "split1": "split1",
    "conv": "conv",
    "avgpool": "average_pool",
    "maxpool": "max_pool",
    "enlarge": "enlarge",
    "pool-kernel": "pool_kernel",
    "id-kernel": "id_kernel",
    "transpose": "transpose",
}
_KEYS: Final[Mapping[str, str]] = {
    "ax": "axis",
    "sh": "stride_h",
    "sw": "stride_w",
    "pad": "padding",
    "act": "activation",
    "kh": "kernel_h",
    "kw": "kernel_w",
}


def axiom_substitutions(axiom: PublicAxiom) -> tuple[Substitution, ...]:
    """One substitution per rank and enumerated parameter; strides, kernels and extents of constants are symbols."""
    out = []
    for ranks, chosen in axiom.instances():
        inputs = tuple(Pattern(t, ranks[t]) for t in axiom.tensors)
        where = {t: -1 - k for k, t in enumerate(axiom.tensors)}
        rank = max(ranks.values(), default=2)
        sides = [_side(term, where, chosen, rank) for term in (axiom.left, axiom.right)]
        label = ",".join([f"rank{rank}", *(f"{k}={v}" for k, v in chosen.items())])
        (left, a), (right, b) = sides
        out.append(Substitution(f"{axiom.name}[{label}]", inputs, left, right, ((a, b),)))
    return tuple(out)


def _side(term: Term, where: Mapping[str, int], chosen: Mapping[str, Term], rank: int) -> tuple[tuple[Node, ...], int]:
    nodes: list[Node] = []
    seen: dict[Term, int] = {}

    def add_node(operator: str, operands: tuple[int, ...], parameters: dict[str, Parameter]) -> int:
        nodes.append(Node(operator, operands, tuple(sorted(parameters.items()))))
        return len(nodes) - 1

    def build(t: Term) -> int:
        if isinstance(t, str) and t in where:
            return where[t]
        if t not in seen:
            seen[t] = make(t)
        return seen[t]

    def make(t: Term) -> int:
        if t == "eye":
            return add_node("eye", (), {"extent": "extent"})
        if t == "ones":
            return add_node(f"ones{rank}", (), {f"extent_{a}": f"extent_{a}" for a in range(rank)})
        assert isinstance(t, tuple)  # check_term has seen to it
        head = str(t[0])
        skip = len(PARAMETERS.get(head, ()))
        parameters: dict[str, Parameter] = {}
        for key, given in zip(PARAMETERS.get(head, ()), t[1 : 1 + skip], strict=True):
            value = chosen.get(given, given) if isinstance(given, str) else given
            assert not isinstance(value, tuple)
            parameters[_KEYS[key]] = value
        if head == "transpose":
            parameters["perm"] = (1, 0)
        if head in ("pool-kernel", "id-kernel"):
            parameters["channels"] = "channels"
        return add_node(_WORDS[head], tuple(build(a) for a in t[1 + skip :]), parameters)

    wire = build(term)
    return tuple(nodes), wire
