"""Rules of proved libraries, applied to graphs: a left side is found among the operators, its sizes put into the
preconditions, and the right side added, where it takes less.

    find     the operator of the left side that is mapped is an e-node; what computes its operands are e-nodes of the
             classes that it reads, and so on; a pattern input is one class wherever it stands; the order of operands
             of sums and products does not matter
    decide   both sides are typed with the sizes of the classes (all degrees 1), preconditions are evaluated, and every
             e-node must be what its operator of the left side is, index by index
    takes    points and elements that are read and written by all operators of a side; a right side that takes no less
             is left out: the rules that are built in open the way to dearer forms that pay on several devices
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import prod
from typing import Final

from .....models.program.index import Axis, access
from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .....models.rewrites.eval import apply_node, extents, input_types
from .....models.rewrites.index_arrays import EvaluationError
from .....models.rewrites.ops import OPERATORS, RankError, meaning
from .....models.rewrites.rule import Node, Substitution, holds
from .....models.rewrites.shards import IllTyped, TensorType
from .....proofs.joint.books import Book
from .....proofs.rewrites.plain import plain_rules
from .growing import Addition, Growing, identity
from .reading import one_type
from .written import TURNED, function_of, operator_of

MOST_PLACES: Final = 16
"""Places of one rule at one operator that are tried."""
MOST_SUMS: Final = 6
"""Sums inside each other, of either side: a plan's checker brings no more into one order."""
UNREAD: Final = frozenset({"linear3", "embedding", "embedding_bag"})


@dataclass(frozen=True)
class RuleMatch:
    """A left side among operators: `nodes[k]` is operator k with its operands in the rule's order, `ops[k]` as it
    stands; `reads`: pattern input -> class.
    """

    nodes: Mapping[int, Operator]
    ops: Mapping[int, Operator]
    reads: Mapping[int, str]


def usable(rule: Substitution) -> bool:
    """Whether plans can use a rule: one result, no parameters, every operator of the left side is needed for it and
    every pattern input is on it, and all operators are written in those of graphs.
    """
    if rule.symbols or len(rule.outputs) != 1 or rule.unbound:
        return False
    a, b = rule.outputs[0]
    return (
        a >= 0
        and b < len(rule.right)
        and _needed(rule.left, a) == set(range(len(rule.left)))
        and _needed(rule.right, b) == set(range(len(rule.right)))
        and max(_sums(rule.left, a), _sums(rule.right, b)) <= MOST_SUMS
        and all(n.operator not in UNREAD and len(n.inputs) in (1, 2) for n in (*rule.left, *rule.right))
    )


def _needed(nodes: Sequence[Node], wire: int) -> set[int]:
    """Operators on which a wire rests."""
    todo, out = [wire], set[int]()
    while todo:
        w = todo.pop()
        if w >= 0 and w not in out:
            out.add(w)
            todo.extend(nodes[w].inputs)
    return out


def _sums(nodes: Sequence[Node], wire: int) -> int:
    """Sums that a wire has, written out."""
    if wire < 0:
        return 0
    own = nodes[wire].operator in ("matmul", "batch_matmul", "linear", "reduce_sum")
    return own + sum(_sums(nodes, w) for w in nodes[wire].inputs)


@cache
def rules_of(book: Book) -> Callable[[Growing, Operator], Iterator[Addition]]:
    """All usable rules of a library as one: what they add for an operator."""
    rules = [rule for rule in plain_rules(book.data) if usable(rule)]
    ending: dict[tuple[str, tuple[int, ...]], list[Substitution]] = {}

    def apply(g: Growing, op: Operator) -> Iterator[Addition]:
        if op.attributes or len(op.inputs) not in (1, 2):
            return
        ranks = tuple(len(a.index) for a in op.inputs)
        key = op.function, ranks
        if key not in ending:  # rules whose left side ends with such an operator, its operands in either order
            words = {
                rule.name: {_word(rule.left[rule.outputs[0][0]], r) for r in (ranks, ranks[::-1])} for rule in rules
            }
            ending[key] = [rule for rule in rules if op.function in words[rule.name]]
        for rule in ending[key]:
            seen = set[frozenset[str]]()  # x y + z x and z x + x y are one place
            for found in islice(_places(g, rule, rule.outputs[0][0], op, RuleMatch({}, {}, {})), MOST_PLACES):
                at = frozenset(o.name for o in found.ops.values())
                addition = None if at in seen else _instance(g, rule, found)
                if addition is not None:
                    seen.add(at)
                    yield replace(addition, book=book)

    return apply


def _places(g: Growing, rule: Substitution, k: int, op: Operator, found: RuleMatch) -> Iterator[RuleMatch]:
    """What is found with operator k of the left side at an e-node."""
    if k in found.ops:
        if found.ops[k].output.tensor == op.output.tensor:
            yield found
        return
    n = rule.left[k]
    if len(op.inputs) != len(n.inputs) or op.attributes:
        return
    turned = op.function in TURNED and len(op.inputs) == 2 and op.inputs[0] != op.inputs[1]
    for inputs in (op.inputs, op.inputs[::-1])[: 1 + turned]:
        if _word(n, tuple(len(a.index) for a in inputs)) != op.function:
            continue
        here = RuleMatch({**found.nodes, k: replace(op, inputs=inputs)}, {**found.ops, k: op}, found.reads)
        yield from _operands(g, rule, list(zip(n.inputs, (a.tensor for a in inputs), strict=True)), here)


def _operands(g: Growing, rule: Substitution, left: list[tuple[int, str]], found: RuleMatch) -> Iterator[RuleMatch]:
    if not left:
        yield found
        return
    (wire, tensor), *others = left
    if wire < 0:
        if found.reads.get(-1 - wire, tensor) == tensor:
            reads = {**found.reads, -1 - wire: tensor}
            yield from _operands(g, rule, others, replace(found, reads=reads))
        return
    for node in g.nodes(tensor):
        for more in _places(g, rule, wire, node, found):
            yield from _operands(g, rule, others, more)


@cache
def _word(n: Node, ranks: tuple[int, ...]) -> str | None:
    """The function of graphs that an operator of a rule is for operands of these ranks."""
    if len(ranks) != len(n.inputs):
        return None
    try:
        return function_of(meaning(n, ranks).body)
    except (RankError, IllTyped):
        return None


def _instance(g: Growing, rule: Substitution, found: RuleMatch) -> Addition | None:
    """What the rule adds at a place; None where it does not hold there, or takes no less."""
    a, b = rule.outputs[0]
    reads = [found.reads[k] for k in range(len(rule.inputs))]
    shapes = [g.tensor(t).shape for t in reads]
    if any(
        len(s) != p.rank or any(s[axis] != n for axis, n in p.fixed) for s, p in zip(shapes, rule.inputs, strict=True)
    ):
        return None
    sizes = {f"{p.name}.{i}": n for p, s in zip(rule.inputs, shapes, strict=True) for i, n in enumerate(s)}
    values = {**sizes, **{f"{name}.degree": 1 for name in sizes}}
    out = found.ops[a].output.tensor
    tensors = {k: op.output.tensor for k, op in found.ops.items()}
    if not all(holds(c, values) for c in rule.preconditions):
        return None
    if len({*tensors.values()}) < len(tensors) or not one_type(g, *tensors.values(), *reads):
        return None
    fresh = {k: out if k == b else f"{out}.{k}" for k in range(len(rule.right))}
    try:
        types = input_types(rule, values)
        left, right = (
            _side(nodes, types, reads, names) for nodes, names in ((rule.left, tensors), (rule.right, fresh))
        )
    except (IllTyped, EvaluationError):
        return None
    if left is None or right is None:
        return None
    if any(identity(op) != identity(found.nodes[k]) for k, (op, _) in enumerate(left)):
        return None
    node = right[b][0] if b >= 0 else _copy(reads[-1 - b], out, g.tensor(out).shape)
    size = {t: prod(g.tensor(t).shape) for t in (*reads, *tensors.values())}
    size |= {fresh[k]: prod(shape) for k, (_, shape) in enumerate(right)}
    if _takes([op for k, (op, _) in enumerate(right) if k != b] + [node], size) >= _takes([op for op, _ in left], size):
        return None
    dtype = g.tensor(out).dtype
    defined = tuple((Tensor(fresh[k], shape, dtype), op) for k, (op, shape) in enumerate(right) if k != b)
    place = (found.ops[a], *(found.ops[k] for k in range(len(rule.left)) if k != a), *(op for _, op in defined))
    return Addition(rule.name, node, place, defined, reads=tuple(reads))


def _copy(tensor: str, out: str, shape: tuple[int, ...]) -> Operator:
    axes = [f"i{j}" for j in range(len(shape))]
    return Operator(
        "",
        "copy",
        tuple(Axis(a, n) for a, n in zip(axes, shape, strict=True)),
        (access(tensor, *axes),),
        access(out, *axes),
    )


def _side(
    nodes: Sequence[Node], inputs: Sequence[TensorType], reads: Sequence[str], names: Mapping[int, str]
) -> list[tuple[Operator, tuple[int, ...]]] | None:
    """Every operator of a side as one of graphs, and its shape."""
    types, out = list[TensorType](), list[tuple[Operator, tuple[int, ...]]]()
    for k, n in enumerate(nodes):
        if n.operator not in OPERATORS:
            return None
        operands = tuple(types[w] if w >= 0 else inputs[-1 - w] for w in n.inputs)
        result, _, body, _ = apply_node(Node(n.operator, (), n.parameters), operands)
        shape = extents(result)
        op = operator_of(body, shape, [names[w] if w >= 0 else reads[-1 - w] for w in n.inputs], names[k])
        if op is None or result.sums or result.times:
            return None
        types.append(result)
        out.append((op, shape))
    return out


def _takes(operators: Sequence[Operator], size: Mapping[str, int]) -> int:
    """Points, and elements read and written."""
    return sum(
        prod(a.extent for a in op.axes)
        + sum(size[t] for t in dict.fromkeys(a.tensor for a in op.inputs))
        + size[op.output.tensor]
        for op in operators
    )
