"""Checks that a step is an instance of the rule of a library that it names.

    rule      one of the library, or one read `backwards`: where both sides have types and the preconditions hold, they
              are equal
    reads     a tensor per pattern input of the rule: of its rank, and its sizes satisfy the preconditions; or a number,
              for one of rank 0 that operators scale by
    numbers   what its parameters are, by name
    place     an operator per operator of both sides (the mapped one of the right side is the node): of its function,
              reads what the rule's reads, writes what has the size that typing the rule's gives
    groups    where they are stated: an axis of a pattern input is all dimensions of its group, and of BATCH ones
              the rule does not speak.  An operator leaves those as they are, and the others of what it writes fall into
              groups of the sizes that typing gives

This is about names, so that a step says what it is; that both sides compute the same is decided elsewhere (`meaning`),
so nothing here rests on the library's proofs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Final

from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ...models.rewrites.eval import Evaluator, extents, input_types
from ...models.rewrites.index_arrays import EvaluationError
from ...models.rewrites.rule import Node, Substitution, holds
from ...models.rewrites.shards import IllTyped
from ...proofs.joint.books import LIMITS, Book
from ...proofs.joint.derivation import BATCH, NUMBER
from ...proofs.rewrites.plain import backwards, plain_rules

FUNCTIONS: Final[Mapping[str, str]] = {
    **{name: name for name in ("add", "relu", "sigmoid", "tanh", "exp", "gelu", "silu")},
    **{name: name for name in ("softmax", "layer_norm", "max_pool", "average_pool")},
    **{name: name for name in ("subtract", "negate", "rms_norm")},
    **dict.fromkeys(("mul", "scale", "scale_along"), "multiply"),
    "add_along": "add",
    "layer_norm_affine": "layer_norm",
    "rms_norm_scaled": "rms_norm",
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

SPECIFIED: Final = frozenset({"product", "max"})
"""Functions that the operator of a user's specification may be."""

MOST_DEALT: Final = 4096
"""Ways of dealing out extents that are followed; tensors of a dozen dimensions have some hundred."""


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
    groups: Sequence[Sequence[int]] = (),
) -> str:
    """Why a node at its place is no instance of a rule; empty if it is one."""
    if rule is None:
        return "its library proves no such rule by sums and products"
    if len(rule.outputs) != 1 or rule.outputs[0][0] < 0:
        return "a rule of other than one result that is computed is not understood"
    if tuple(name for name, _ in numbers) != rule.symbols or any(n < 1 for _, n in numbers):
        return f"it does not say what the parameters of its rule are: {', '.join(rule.symbols) or 'there are none'}"
    if len(reads) != len(rule.inputs) or any(not graph.holds(t) and not t.startswith(NUMBER) for t in reads):
        return "it does not say what the pattern inputs of its rule are"
    values: dict[str, int] = dict(numbers)
    if groups and len(groups) != len(reads):
        return "it does not say of which axes of its rule what its pattern inputs are have part"
    for k, (p, t) in enumerate(zip(rule.inputs, reads, strict=True)):
        shape = graph.tensor(t).shape if graph.holds(t) else ()
        if groups:
            if len(groups[k]) != len(shape) or any(not BATCH <= a < p.rank for a in groups[k]):
                return f"its groups are none of axes of {p.name} in dimensions of {t!r}"
            shape = tuple(prod(n for n, a in zip(shape, groups[k], strict=True) if a == b) for b in range(p.rank))
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
            batch = {-1 - k: tuple(a == BATCH for a in of) for k, of in enumerate(groups)}
            for k, n in enumerate(nodes):
                wrong = _wrong_operator(n, found[k], [*_tensors(n, found, reads)], graph)
                if groups and not wrong:
                    batch[k], wrong = _groups(n, found[k], [*_tensors(n, found, reads)], batch, sizes[k], graph)
                elif not wrong and graph.tensor(found[k].output.tensor).shape != sizes[k]:
                    wrong = f"operator {found[k].name!r} is no {n.operator} of size {sizes[k]}"
                if wrong:
                    return f"{side} side: {wrong}"
    except (IllTyped, EvaluationError) as error:
        return f"its rule says nothing of these sizes: {error}"
    if b < 0 and (node.function, [x.tensor for x in node.inputs]) != ("copy", [reads[-1 - b]]):
        return f"operator {node.name!r} does not copy {reads[-1 - b]!r}"
    return ""


def _tensors(n: Node, found: Mapping[int, Operator], reads: Sequence[str]) -> list[str]:
    return [found[w].output.tensor if w >= 0 else reads[-1 - w] for w in n.inputs]


def _wrong_operator(n: Node, op: Operator, reads: list[str], graph: Graph) -> str:
    said = f"operator {op.name!r} is no {n.operator}"
    if any(not graph.holds(t) for t in reads):
        fits = n.operator == "scale" and op.function == "scale" and len(op.attributes) == 1
        fits = fits and reads == [op.inputs[0].tensor, f"{NUMBER}{op.attribute('scale', 1)!r}"]
        return "" if fits else f"{said} by the number that it states"
    function, word = FUNCTIONS.get(n.operator), dict(n.parameters).get("activation", "none")
    if n.operator == "specified" and op.function in SPECIFIED:
        function = op.function
    if word != "none":
        function = "fused_product" if function == "product" and op.attribute("epilogue", ()) == (word,) else None
    if function != op.function:
        return said
    return "" if sorted(reads) == sorted(x.tensor for x in op.inputs) else f"{said} of {' and '.join(map(repr, reads))}"


def _groups(
    n: Node,
    op: Operator,
    reads: Sequence[str],
    batch: Mapping[int, tuple[bool, ...]],
    size: tuple[int, ...],
    graph: Graph,
) -> tuple[tuple[bool, ...], str]:
    """Which dimensions of a result its rule does not speak of, and what is wrong with it, or nothing."""
    known = dict(zip(reads, (batch[w] for w in n.inputs), strict=True))
    spoken, free = set[str](), set[str]()
    for access in op.inputs:
        for index, is_batch in zip(access.index, known[access.tensor], strict=True):
            names = {name for name, _ in index.terms}
            if is_batch and (index.single is None or op.axis(index.single).combine is not None):
                return (), f"operator {op.name!r} does not leave a dimension of {access.tensor!r} as it is"
            (free if is_batch else spoken).update(names)
    if mixed := sorted(spoken & free):
        return (), f"axis {mixed[0]!r} of operator {op.name!r} is one of its rule's and is none"
    out = graph.tensor(op.output.tensor).shape
    if missing := sorted(free - set(op.output.axes)):
        return (), f"operator {op.name!r} does not write axis {missing[0]!r}"
    here = tuple(i.single in free for i in op.output.index)
    rest = [extent for extent, is_batch in zip(out, here, strict=True) if not is_batch]
    return here, "" if _fall_into(rest, list(size)) else f"operator {op.name!r} is no {n.operator} of size {size}"


def _fall_into(extents: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether extents can be dealt out so that their products are the sizes."""
    left = {tuple(sorted(sizes))}
    for extent in extents:  # what the sizes may be without the extents so far
        left = {
            tuple(sorted((*rest[:k], n // extent, *rest[k + 1 :])))
            for rest in left
            for k, n in enumerate(rest)
            if n % extent == 0
        }
        if len(left) > MOST_DEALT:
            return False
    return (1,) * len(sizes) in left
