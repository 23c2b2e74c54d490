"""Builds the e-graph of a program: all rules at all places, in rounds, up to a number of operators.

    first    the rules that are built in, so that libraries take no room from them
    then     these and the rules of libraries, which build on each other; they may add more than is asked for
    at last  what no cheaper program needs is left out again (`gleaning`)

Repeated layers get the same operators: rules see an operator and what computes its operands, nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ....models.joint.egraph import EGraph
from ....models.joint.rules import EQUAL, MOST_NODES, ROUNDS
from ....models.layout.classes import axis_orders, copy_key, operator_key
from ....models.program.graph import Graph
from ....models.program.operators import Operator
from ....proofs.joint.derivation import Derivation
from .gleaning import glean
from .rules.attention import fuse_attention
from .rules.equal import congruence_closure, equal_operators
from .rules.fuse import fuse_epilogue, relu_from_output
from .rules.growing import Addition, Growing
from .rules.layout import map_of_a_part, map_of_parts, read_through
from .rules.products import product_of_parts, reassociate
from .rules.rows import greatest_of_map, into_norm, normal_of_a_part, product_of_average, product_of_rows
from .rules.siblings import merge_siblings
from .rules.sums import add_many, add_products, distribute
from .rules.worth import Pays

FILLED: Final = 2
"""How often the operators that are asked for libraries may add before what does not pay is left out: few of their steps
pay by themselves.
"""
MOST_OF_A_TENSOR: Final = 8
"""Operators of one tensor that are added when libraries are used: sums of many terms have more orders than all others
together.
"""

Rule = Callable[[Growing, Operator], Iterator[Addition]]

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        EQUAL: equal_operators,
        "fuse-epilogue": fuse_epilogue,
        "fuse-attention": fuse_attention,
        "relu-from-output": relu_from_output,
        "add-many": add_many,
        "add-products": add_products,
        "distribute": distribute,
        "reassociate": reassociate,
        "read-through-copy": read_through,
        "merge-siblings": merge_siblings,
        "product-of-parts": product_of_parts,
        "map-of-parts": map_of_parts,
        "map-of-a-part": map_of_a_part,
        "normal-of-a-part": normal_of_a_part,
        "into-norm": into_norm,
        "greatest-of-map": greatest_of_map,
        "product-of-average": product_of_average,
        "product-of-rows": product_of_rows,
    }
)
"""In the order in which they are tried."""

SEARCHED: Final[Mapping[str, Rule]] = MappingProxyType({n: r for n, r in RULES.items() if n != "normal-of-a-part"})
"""Rules that a search applies: a norm of a part gives vit 1 % and takes the search 25 times as long."""


def saturate(
    graph: Graph,
    rules: Mapping[str, Rule] = RULES,
    rounds: int = ROUNDS,
    most: int = MOST_NODES,
    over: Callable[[], bool] = lambda: False,
    pays: Pays | None = None,
) -> tuple[EGraph, Derivation]:
    """All that the rules add to a graph, with the proof; what was added until `over` says that the time is.
    `pays`: asked by rules that pay on few machines (`worth`); None: they are applied everywhere.

    >>> from ....models.sources.zoo import build
    >>> egraph, derivation = saturate(build("mlp-unity"))
    >>> [(step.rule, step.node, step.place) for step in derivation.steps]
    [('fuse-epilogue', 'relu1~1', ('relu1', 'fc1'))]
    """
    grown = Growing(graph, pays)
    if EQUAL in rules:
        congruence_closure(grown, most)
    built_in = {name: rule for name, rule in rules.items() if name in RULES}
    _grow(grown, built_in, rounds, most, over, None)
    if len(built_in) == len(rules):
        return grown.egraph(), grown.derivation(rounds)
    first = {op.name for op in grown.order}
    _grow(grown, rules, rounds, grown.added_operators + FILLED * most, over, MOST_OF_A_TENSOR)
    return glean(grown, first, rounds, most)


def _grow(
    grown: Growing, rules: Mapping[str, Rule], rounds: int, most: int, over: Callable[[], bool], ways: int | None
) -> None:
    """Try all rules at all operators in rounds, until there are `most` operators more than the user's, or nothing new
    comes.  `ways`: how many operators one tensor gets.
    """
    known = Counter(op.output.tensor for op in grown.order)
    for _ in range(rounds):
        before = grown.added_operators
        for rule in rules.values():
            for op in list(grown.order):
                if over():
                    break
                t = op.output.tensor
                if ways is not None and len(grown.nodes(t)) - known[t] >= ways:
                    continue
                for addition in list(rule(grown, op)):
                    if grown.added_operators < most and grown.add(addition) and EQUAL in rules:
                        congruence_closure(grown, most)
        if grown.added_operators == before:
            break


def same_order(egraph: EGraph) -> bool:
    """Whether the axes of the user's operators and tensors stand in the order that they have without the others: then
    the user's plans are plans of the e-graph, at the same cost.  Axes of one value are never split, so where they stand
    does not count.
    """
    base, union = axis_orders(egraph.base), axis_orders(egraph.user_order_graph)
    split = {operator_key(op.name): {a.name for a in op.axes if a.extent > 1} for op in egraph.base.operators}
    split |= {copy_key(t.name): {str(k) for k, n in enumerate(t.shape) if n > 1} for t in egraph.base.tensors}
    return all(
        [a for a in base[key] if a in some] == [a for a in union[key] if a in some] for key, some in split.items()
    )
