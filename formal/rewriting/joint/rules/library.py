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
from functools import cache, lru_cache
from itertools import islice
from math import prod
from typing import Final

from .....models.program.index import Access, Axis, access
from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .....models.rewrites.eval import apply_node, extents, input_types
from .....models.rewrites.index_arrays import EvaluationError
from .....models.rewrites.instances import draw_instances
from .....models.rewrites.ops import RankError, meaning
from .....models.rewrites.rule import Equal, Node, Substitution, holds
from .....models.rewrites.shards import IllTyped, TensorType
from .....models.rewrites.specified_rows import SPECIFIED, STATEMENT, sums_of_statement
from .....proofs.joint.books import Book
from .....proofs.rewrites.plain import backwards, plain_rules
from .growing import Addition, Growing
from .lifted import Dims, copy_of, flat, label_axes, lifted_side
from .numbers import by_number, is_number, scale_by_input
from .written import OPEN, ROWS, TURNED, Attributes, canonical, function_of, numbers_of, open_attributes, operator_of

MOST_PLACES: Final = 16
"""Places of one rule at one operator that are tried."""
SAMPLES: Final = 24
"""Instances of a rule that are drawn until one has no axis of one value, which says what its operators do with axes."""
MOST_TYPED: Final = 1 << 15
"""Sides with sizes that are kept."""
MOST_SUMS: Final = 6
"""Sums inside each other, of either side: a plan's checker brings no more into one order."""
SUMS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("matmul", "batch_matmul", "linear", "reduce_sum"), 1),
    **dict.fromkeys(("embedding", "embedding_rows"), 1),
    **dict.fromkeys(("embedding_bag", "average_pool", "average_pool_inside"), 2),
    "conv": 3,
}


@dataclass(frozen=True)
class RuleMatch:
    """A left side among operators: `nodes[k]` is operator k with its operands in the rule's order, `ops[k]` as it
    stands; `reads`: pattern input -> class.
    """

    nodes: Mapping[int, Operator]
    ops: Mapping[int, Operator]
    reads: Mapping[int, str]


def usable(rule: Substitution) -> bool:
    """Whether plans can use a rule: one result, every operator of the left side is needed for it and every pattern
    input is on it, and all operators are written in those of graphs.
    """
    if len(rule.outputs) != 1 or rule.unbound:
        return False
    a, b = rule.outputs[0]
    return (
        a >= 0
        and b < len(rule.right)
        and _needed(rule.left, a) == set(range(len(rule.left)))
        and _needed(rule.right, b) == set(range(len(rule.right)))
        and max(_sums(rule.left, a), _sums(rule.right, b)) <= MOST_SUMS
        and all(function_of(n) is not None for n in (*rule.left, *rule.right))
    )


def usable_rules(book: Book) -> tuple[Substitution, ...]:
    """The rules of a library that plans can use, in either direction."""
    found = plain_rules(book.data)
    return tuple(r for rule in found for r in (rule, backwards(rule)) if usable(r))


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
    n = nodes[wire]
    own = sums_of_statement(str(n.parameter(STATEMENT))) if n.operator == SPECIFIED else SUMS.get(n.operator, 0)
    return own + sum(_sums(nodes, w) for w in n.inputs)


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


Sample = tuple[tuple[Operator, ...], Mapping[str, tuple[int, ...]]]


@cache
def _sample(rule: Substitution) -> Sample | None:
    """The operators of a left side at some sizes, none of them 1, and the shapes of what they read and write."""
    said = tuple((function, ()) for function in OPEN)
    for values in draw_instances(rule, 0, SAMPLES):
        shapes = tuple(extents(t) for t in input_types(rule, values))
        numbers = tuple((s, values[s]) for s in rule.symbols)
        if all(n > 1 for s in shapes for n in s):
            template = _typed(rule, False, shapes, numbers, said)
            if template is not None and all(n > 1 for _, s in template for n in s):
                held = {str(-1 - k): s for k, s in enumerate(shapes)} | {str(k): s for k, (_, s) in enumerate(template)}
                return tuple(op for op, _ in template), held
    return None


def _labels(g: Growing, rule: Substitution, found: RuleMatch) -> Iterator[Mapping[int, Dims]]:
    """Dimensions of all tensors of a place."""
    sample = _sample(rule)
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
    values = _values(rule, shapes)
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
    template = _typed(rule, False, shapes, numbers, said)
    if template is None:
        return None
    left = _side(template, reads, tensors, dims, dims)
    if left is None or any(canonical(op) != canonical(found.nodes[k]) for k, (op, _) in enumerate(left)):
        return None
    template = _typed(rule, True, shapes, numbers, said)
    if template is None:
        return None
    right = _side(template, reads, fresh, dims, None if dims is None else {b: dims[a]})
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
        made = _copy(reads[-1 - b], out, shape) if dims is None else copy_of(dims[b], reads[-1 - b], dims[a], out)
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
    template: Sequence[tuple[Operator, tuple[int, ...]]],
    reads: Sequence[str],
    names: Mapping[int, str],
    dims: Mapping[int, Dims] | None = None,
    given: Mapping[int, Dims] | None = None,
) -> list[tuple[Operator, tuple[int, ...]]] | None:
    """Every operator of a side as one of graphs, and its shape; `names`: of what they write; `dims`: dimensions of what
    it reads, `given`: of what they write, where they are not the rule's.
    """
    if dims is not None:
        inputs = {-1 - k: dims[-1 - k] for k in range(len(reads))}
        named = {**{-1 - k: t for k, t in enumerate(reads)}, **names}
        return lifted_side(template, inputs, named, given or {})

    def rename(a: Access) -> Access:
        wire = int(a.tensor)
        return replace(a, tensor=names[wire] if wire >= 0 else reads[-1 - wire])

    return [
        (replace(op, inputs=tuple(map(rename, op.inputs)), output=rename(op.output)), shape) for op, shape in template
    ]


@lru_cache(maxsize=MOST_TYPED)
def _typed(
    rule: Substitution,
    right: bool,
    shapes: tuple[tuple[int, ...], ...],
    numbers: tuple[tuple[str, int], ...],
    said: tuple[tuple[str, Attributes], ...],
) -> tuple[tuple[Operator, tuple[int, ...]], ...] | None:
    """The operators of a side where its inputs have these shapes and its parameters these values, with wires for
    tensors, and their shapes; None where it has no type.  Repeated layers ask again and again.
    """
    known, open_to = dict(numbers), dict(said)
    try:
        inputs = input_types(rule, _values(rule, shapes))
        types, out = list[TensorType](), list[tuple[Operator, tuple[int, ...]]]()
        for k, n in enumerate(rule.right if right else rule.left):
            operands = tuple(types[w] if w >= 0 else inputs[-1 - w] for w in n.inputs)
            plain = Node(n.operator, (), tuple((key, known.get(str(v), v)) for key, v in n.parameters))
            result, _, body, _ = apply_node(plain, operands)
            if result.sums or result.times:
                return None
            shape, function = extents(result), function_of(n) or ""
            given = [(str(w), extents(x)) for w, x in zip(n.inputs, operands, strict=True)]
            if function in OPEN and function not in open_to:
                return None
            op = operator_of(n, body, shape, given, str(k), open_to.get(function, ()))
            if op is None:
                return None
            types.append(result)
            out.append((op, shape))
    except (IllTyped, EvaluationError):
        return None
    return tuple(out)


def _values(rule: Substitution, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    sizes = {f"{p.name}.{i}": n for p, s in zip(rule.inputs, shapes, strict=True) for i, n in enumerate(s)}
    return {**sizes, **{f"{name}.degree": 1 for name in sizes}}


def takes(op: Operator, size: Mapping[str, int]) -> int:
    """Points, and elements read and written; of a table only the rows that are looked up."""
    rows = op.attribute("rows", "")
    points = prod(a.extent for a in op.axes if a.name != rows)
    read = {a.tensor: min(size[a.tensor], points) if rows else size[a.tensor] for a in op.inputs}
    return points + sum(read.values()) + size[op.output.tensor]
