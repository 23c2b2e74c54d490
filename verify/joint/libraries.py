"""Checks that a step is an instance of the rule of a library that it names.

    rule      one of the library, or one read `backwards`: where both sides have types and the preconditions hold, they
              are equal
    reads     a tensor per pattern input of the rule: of its rank, and its sizes satisfy the preconditions
    numbers   what its parameters are, by name
    place     an operator per operator of both sides (the mapped one of the right side is the node): of its function,
              reads what the rule's reads, writes what has the size that typing the rule's gives

This is about names, so that a step says what it is; that both sides compute the same is decided elsewhere (`meaning`),
so nothing here rests on the library's proofs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ...models.rewrites.eval import Evaluator, extents, input_types
from ...models.rewrites.index_arrays import EvaluationError
from ...models.rewrites.rule import Node, Substitution, holds
from ...models.rewrites.shards import IllTyped
from ...proofs.joint.books import LIMITS, Book
from ...proofs.rewrites.plain import backwards, plain_rules

FUNCTIONS: Final[Mapping[str, str]] = {
    **{name: name for name in ("add", "relu", "sigmoid", "tanh", "exp", "gelu", "silu")},
    **{name: name for name in ("softmax", "layer_norm", "max_pool", "average_pool")},
    **dict.fromkeys(("mul", "scale"), "multiply"),
    **dict.fromkeys(("matmul", "batch_matmul", "linear", "conv"), "product"),
    **dict.fromkeys(("transpose", "concat", "split0", "split1", "half0", "half1"), "copy"),
    **dict.fromkeys(("take", "drop", "enlarge"), "copy"),
    **dict.fromkeys(("embedding", "embedding_rows", "embedding_bag"), "embedding"),
    "average_pool_inside": "average_pool",
    "reduce_sum": "sum",
    "reduce_max": "max",
}
"""Operator of a rule -> function of the operators of graphs that it may be; others are not understood.  A product with
an activation is a fused product with that epilogue.
"""


@lru_cache(maxsize=16)
def rules_in(book: Book) -> dict[str, Substitution]:
    """The rules of a library that steps may name, from left to right and backwards."""
    rules = plain_rules(book.data, LIMITS)
    return {rule.name: rule for rule in (*map(backwards, rules), *rules)}


def wrong_instance(
    rule: Substitution | None,
    node: Operator,
    place: Sequence[Operator],
    reads: Sequence[str],
    graph: Graph,
    numbers: Sequence[tuple[str, int]] = (),
) -> str:
    """Why a node at its place is no instance of a rule; empty if it is one."""
    if rule is None:
        return "its library proves no such rule by sums and products"
    if len(rule.outputs) != 1 or rule.outputs[0][0] < 0:
        return "a rule of other than one result that is computed is not understood"
    if tuple(name for name, _ in numbers) != rule.symbols or any(n < 1 for _, n in numbers):
        return f"it does not say what the parameters of its rule are: {', '.join(rule.symbols) or 'there are none'}"
    if len(reads) != len(rule.inputs) or any(not graph.holds(t) for t in reads):
        return "it does not say what the pattern inputs of its rule are"
    values: dict[str, int] = dict(numbers)
    for p, t in zip(rule.inputs, reads, strict=True):
        shape = graph.tensor(t).shape
        if len(shape) != p.rank or any(shape[a] != n for a, n in p.fixed):
            return f"{t!r} has not the rank or the fixed sizes of {p.name}"
        values |= {f"{p.name}.{a}": n for a, n in enumerate(shape)}
        values |= {f"{p.name}.{a}.degree": 1 for a in range(p.rank)}
    if broken := [str(c) for c in rule.preconditions if not holds(c, values)]:
        return f"its rule asks that {broken[0]}"
    a, b = rule.outputs[0]
    others = [k for k in range(len(rule.left)) if k != a]
    more = [k for k in range(len(rule.right)) if k != b]
    if len(place) != 1 + len(others) + len(more):
        return "its place has not the operators of both sides of its rule"
    left = dict(zip((a, *others), place, strict=False))
    right = dict(zip((b, *more), (node, *place[1 + len(others) :]), strict=True))
    try:
        inputs, evaluator = input_types(rule, values), Evaluator()
        for side, nodes, found in (("left", rule.left, left), ("right", rule.right, right)):
            sizes = [extents(t) for t in evaluator.types(nodes, inputs, values, side)]
            for k, n in enumerate(nodes):
                if wrong := _wrong_operator(n, found[k], [*_tensors(n, found, reads)], sizes[k], graph):
                    return f"{side} side: {wrong}"
    except (IllTyped, EvaluationError) as error:
        return f"its rule says nothing of these sizes: {error}"
    if b < 0 and (node.function, [x.tensor for x in node.inputs]) != ("copy", [reads[-1 - b]]):
        return f"operator {node.name!r} does not copy {reads[-1 - b]!r}"
    return ""


def _tensors(n: Node, found: Mapping[int, Operator], reads: Sequence[str]) -> list[str]:
    return [found[w].output.tensor if w >= 0 else reads[-1 - w] for w in n.inputs]


def _wrong_operator(n: Node, op: Operator, reads: list[str], size: tuple[int, ...], graph: Graph) -> str:
    said = f"operator {op.name!r} is no {n.operator}"
    function, word = FUNCTIONS.get(n.operator), dict(n.parameters).get("activation", "none")
    if word != "none":
        function = "fused_product" if function == "product" and op.attribute("epilogue", ()) == (word,) else None
    if function != op.function:
        return said
    if sorted(reads) != sorted(x.tensor for x in op.inputs):
        return f"{said} of {' and '.join(map(repr, reads))}"
    return "" if graph.tensor(op.output.tensor).shape == size else f"{said} of size {size}"
