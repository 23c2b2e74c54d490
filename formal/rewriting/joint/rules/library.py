"""Rules of proved libraries, applied to graphs, from left to right and back: a side is found among the operators, its
sizes and parameters put into the preconditions, and the other side added.

    find     the operator of a side that is mapped is an e-node; what computes its operands are e-nodes of the classes
             that it reads, and so on; a pattern input is one class wherever it stands; the order of operands of sums
             and products does not matter
    bind     strides, kernels and lengths are read off the operators; those that only the other side has follow from
             the preconditions, or are the first size of an input with which that side has a type
    decide   both sides are typed with the sizes of the classes (all degrees 1), preconditions are evaluated, and every
             e-node must be what its operator of the side is, index by index
    lift     where operators have more axes than the rule's, several are one of its axes, or the rule holds for each
             value of those that it does not speak of (`lifted`); the same operator is not added by another rule

Whether a right side takes more or less does not count here: what no cheaper program needs is left out of the e-graph
when it has grown (`gleaning`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import prod
from typing import Final

from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .....models.rewrites.ops import RankError, meaning
from .....models.rewrites.rule import Equal, Node, Substitution, holds
from .....models.rewrites.shards import IllTyped
from .....proofs.joint.books import Book
from .growing import Addition, Growing
from .lifted import Dims, copy_of, flat, label_axes
from .numbers import by_number, is_number, scale_by_input
from .sides import copy_operator, sample_of, side_of_graph, sizes_of, typed_side
from .usable import usable_rules
from .written import ROWS, TURNED, Attributes, canonical, function_of, numbers_of, open_attributes

MOST_PLACES: Final = 16
"""Places of one rule at one operator that are tried."""


@dataclass(frozen=True)
class RuleMatch:
    """A left side among operators: `nodes[k]` is operator k with its operands in the rule's order, `ops[k]` as it
    stands; `reads`: pattern input -> class.
    """

    nodes: Mapping[int, Operator]
    ops: Mapping[int, Operator]
    reads: Mapping[int, str]


@cache
def rules_of(book: Book) -> Callable[[Growing, Operator], Iterator[Addition]]:
    """All usable rules of a library as one: what they add for an operator, first those that have its axes."""
    ending: dict[str, list[Substitution]] = {}
    for rule in usable_rules(book):
        last = rule.left[rule.outputs[0][0]]
        for function in (function_of(last), "scale" if last.operator == "scale" else None):
            ending.setdefault(function or "", []).append(rule)

    def apply(g: Growing, op: Operator) -> Iterator[Addition]:
        left = list[tuple[Substitution, RuleMatch]]()
        for rule in ending.get(op.function, ()):
            seen = set[frozenset[str]]()  # x y + z x and x y + x z are one place
            for found in islice(_places(g, rule, rule.outputs[0][0], op, RuleMatch({}, {}, {})), MOST_PLACES):
                at = frozenset(o.name for o in found.ops.values())
                addition = None if at in seen or not _own_ranks(rule, found) else _instance(g, rule, found, None)
                if addition is not None:
                    seen.add(at)
                    yield replace(addition, book=book)
                elif at not in seen and lifts(rule):
                    left.append((rule, found))
        places = set[tuple[str, frozenset[str]]]()
        for rule, found in left:
            at = frozenset(o.name for o in found.ops.values())
            for dims in _labels(g, rule, found) if (rule.name, at) not in places else ():
                addition = _instance(g, rule, found, dims)
                if addition is not None:
                    places.add((rule.name, at))
                    yield replace(addition, book=book)
                    break

    return apply


def _own_ranks(rule: Substitution, found: RuleMatch) -> bool:
    """Whether operators have the ranks of their rule's."""
    return all(_has_type(rule.left[k], tuple(len(a.index) for a in op.inputs)) for k, op in found.nodes.items())


def lifts(rule: Substitution) -> bool:
    """Whether a rule is tried at operators of more axes: not if its right side exchanges more axes than its left, as
    an operator of a graph reads its operands in any order anyway.
    """
    left, right = (sum(n.operator == "transpose" for n in nodes) for nodes in (rule.left, rule.right))
    return right <= left


def _labels(g: Growing, rule: Substitution, found: RuleMatch) -> Iterator[Mapping[int, Dims]]:
    """Dimensions of all tensors of a place."""
    sample = sample_of(rule)
    if sample is None:
        return
    tensors = {*found.reads.values(), *(op.output.tensor for op in found.ops.values())}
    shapes = {t: _shape(g, t) for t in tensors}
    yield from label_axes(rule.left, *sample, found.nodes, shapes, found.reads)


def _places(g: Growing, rule: Substitution, k: int, op: Operator, found: RuleMatch) -> Iterator[RuleMatch]:
    """What is found with operator k of the left side at an e-node."""
    if k in found.ops:
        if found.ops[k].output.tensor == op.output.tensor:
            yield found
        return
    n = rule.left[k]
    if n.operator == "scale" and op.function == "scale":
        seen = by_number(op)
        here = RuleMatch({**found.nodes, k: seen}, {**found.ops, k: op}, found.reads)
        yield from _operands(g, rule, list(zip(n.inputs, (a.tensor for a in seen.inputs), strict=True)), here)
    if len(op.inputs) != len(n.inputs) or function_of(n) != op.function:
        return
    turned = op.function in TURNED and len(op.inputs) == 2 and op.inputs[0] != op.inputs[1]
    for inputs in (op.inputs, op.inputs[::-1])[: 1 + turned]:
        seen = op if inputs == op.inputs else replace(op, inputs=inputs)
        here = RuleMatch({**found.nodes, k: seen}, {**found.ops, k: op}, found.reads)
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
    for node in () if is_number(tensor) else g.nodes(tensor):
        for more in _places(g, rule, wire, node, found):
            yield from _operands(g, rule, others, more)


@cache
def _has_type(n: Node, ranks: tuple[int, ...]) -> bool:
    """Whether an operator of a rule may have operands of these ranks."""
    try:
        meaning(n, ranks)
    except (RankError, IllTyped):
        return False
    return True


def _instance(g: Growing, rule: Substitution, found: RuleMatch, dims: Mapping[int, Dims] | None) -> Addition | None:
    """What the rule adds at a place; None where it does not hold there.  `dims`: the dimensions of the tensors, where
    they are not the rule's.
    """
    reads = [found.reads[k] for k in range(len(rule.inputs))]
    shapes = [_shape(g, t) for t in reads]
    if dims is not None:
        shapes = [flat(dims[-1 - k], p.rank) for k, p in enumerate(rule.inputs)]
    if any(
        len(s) != p.rank or any(s[axis] != n for axis, n in p.fixed) for s, p in zip(shapes, rule.inputs, strict=True)
    ):
        return None
    values = sizes_of(rule, shapes)
    tensors = [op.output.tensor for op in found.ops.values()]
    said = _said(found)
    if said is None or len({*tensors}) < len(tensors) or not _one_type(g, rule, tensors, reads):
        return None
    for numbers in _numbers(g, rule, found, values, dims):
        if all(holds(c, values | numbers) for c in rule.preconditions):
            addition = _applied(g, rule, found, reads, tuple(shapes), tuple(numbers.items()), tuple(said.items()), dims)
            if addition is not None:
                return addition
    return None


def _applied(
    g: Growing,
    rule: Substitution,
    found: RuleMatch,
    reads: Sequence[str],
    shapes: tuple[tuple[int, ...], ...],
    numbers: tuple[tuple[str, int], ...],
    said: tuple[tuple[str, Attributes], ...],
    dims: Mapping[int, Dims] | None,
) -> Addition | None:
    """What the rule adds where its sizes and parameters have values; None where a side has no type or the left side
    is not what is there.
    """
    a, b = rule.outputs[0]
    out = found.ops[a].output.tensor
    tensors = {k: op.output.tensor for k, op in found.ops.items()}
    fresh = {k: out if k == b else f"{out}.{k}" for k in range(len(rule.right))}
    template = typed_side(rule, False, shapes, numbers, said)
    if template is None:
        return None
    left = side_of_graph(template, reads, tensors, dims, dims)
    if left is None or any(canonical(op) != canonical(found.nodes[k]) for k, (op, _) in enumerate(left)):
        return None
    template = typed_side(rule, True, shapes, numbers, said)
    if template is None:
        return None
    right = side_of_graph(template, reads, fresh, dims, None if dims is None else {b: dims[a]})
    if right is None:
        return None
    right = [
        (scale_by_input(op) if n.operator == "scale" else op, shape)
        for n, (op, shape) in zip(rule.right, right, strict=True)
    ]
    if any(is_number(a.tensor) for op, _ in right for a in op.inputs) or (b < 0 and is_number(reads[-1 - b])):
        return None
    if b >= 0:
        node, shape = right[b]
    else:
        shape = g.tensor(reads[-1 - b]).shape
        source = reads[-1 - b]
        made = copy_operator(source, out, shape) if dims is None else copy_of(dims[b], source, dims[a], out)
        if made is None:
            return None
        node = made
    if dims is None and g.tensor(out).shape != shape:
        return None
    dtype = g.tensor(out).dtype
    defined = tuple((Tensor(fresh[k], shape, dtype), op) for k, (op, shape) in enumerate(right) if k != b)
    place = (found.ops[a], *(found.ops[k] for k in range(len(rule.left)) if k != a), *(op for _, op in defined))
    groups = () if dims is None else tuple(tuple(d.label for d in dims[-1 - k]) for k in range(len(reads)))
    return Addition(rule.name, node, place, defined, reads=tuple(reads), numbers=numbers, groups=groups)


def _numbers(
    g: Growing, rule: Substitution, found: RuleMatch, values: Mapping[str, int], dims: Mapping[int, Dims] | None
) -> Iterator[dict[str, int]]:
    """What the parameters of a rule may be at a place, in its order."""
    known = dict[str, int]()
    for k, n in enumerate(rule.left):
        own = numbers_of(n, found.nodes[k], *_sizes(g, n, found.nodes[k], k, dims))
        for key, value in n.parameters:
            if (
                isinstance(value, str)
                and value in rule.symbols
                and known.setdefault(value, own.get(key, 0)) != own.get(key, 0)
            ):
                return
    for c in rule.preconditions:
        if isinstance(c, Equal):
            rest = c.left - c.right
            unknown = [s for s in rule.symbols if s not in known and s in rest.names]
            if len(unknown) == 1 and abs(one := rest.terms.get((unknown[0],), 0)) == 1:
                known[unknown[0]] = -one * rest.value({**values, **known, unknown[0]: 0})
    left = [s for s in rule.symbols if s not in known]
    if any(n < 1 for n in known.values()) or len(left) > 1:
        return
    for size in sorted({*values.values()} if left else {1}):
        yield {s: known.get(s, size) for s in rule.symbols}


def _sizes(
    g: Growing, n: Node, op: Operator, k: int, dims: Mapping[int, Dims] | None
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The shapes of what an operator reads and writes, as its rule sees them."""
    if dims is None:
        return [_shape(g, a.tensor) for a in op.inputs], g.tensor(op.output.tensor).shape
    read, out = [dims[w] for w in n.inputs], dims[k]
    return [flat(d, 1 + max((x.label for x in d), default=-1)) for d in read], flat(
        out, 1 + max((x.label for x in out), default=-1)
    )


def _shape(g: Growing, tensor: str) -> tuple[int, ...]:
    return () if is_number(tensor) else g.tensor(tensor).shape


def _said(found: RuleMatch) -> Mapping[str, Attributes] | None:
    """Function -> attributes that rules leave open, where all operators of a place agree."""
    out = dict[str, Attributes]()
    for op in found.ops.values():
        if out.setdefault(op.function, open_attributes(op)) != open_attributes(op):
            return None
    return out


def _one_type(g: Growing, rule: Substitution, tensors: Sequence[str], reads: Sequence[str]) -> bool:
    """Whether all tensors are real numbers of one element type, but for ids of rows."""
    ids = {reads[-1 - n.inputs[1]] for n in rule.left if n.operator in ROWS and n.inputs[1] < 0}
    kinds = {g.tensor(t).dtype for t in (*tensors, *reads) if t not in ids and not is_number(t)}
    return len(kinds) == 1 and min(kinds).startswith(("float", "bfloat"))


def takes(op: Operator, size: Mapping[str, int]) -> int:
    """Points, and elements read and written; of a table only the rows that are looked up."""
    rows = op.attribute("rows", "")
    points = prod(a.extent for a in op.axes if a.name != rows)
    read = {a.tensor: min(size[a.tensor], points) if rows else size[a.tensor] for a in op.inputs}
    return points + sum(read.values()) + size[op.output.tensor]
