"""Sides of a rule with sizes: typed, at some sizes for all, and as operators of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Final

from .....models.program.index import Access, Axis, access
from .....models.program.operators import Operator
from .....models.rewrites.eval import apply_node, extents, input_types
from .....models.rewrites.index_arrays import EvaluationError
from .....models.rewrites.instances import draw_instances
from .....models.rewrites.rule import Node, Substitution
from .....models.rewrites.shards import IllTyped, TensorType
from .lifted import Dims, lifted_side
from .written import OPEN, Attributes, function_of, operator_of

SAMPLES: Final = 24
"""Instances of a rule that are drawn until one has no axis of one value, which says what its operators do with axes."""
MOST_TYPED: Final = 1 << 15
"""Sides with sizes that are kept."""
Sample = tuple[tuple[Operator, ...], Mapping[str, tuple[int, ...]]]


@cache
def sample_of(rule: Substitution) -> Sample | None:
    """The operators of a left side at some sizes, none of them 1, and the shapes of what they read and write."""
    said = tuple((function, ()) for function in OPEN)
    for values in draw_instances(rule, 0, SAMPLES):
        shapes = tuple(extents(t) for t in input_types(rule, values))
        numbers = tuple((s, values[s]) for s in rule.symbols)
        if all(n > 1 for s in shapes for n in s):
            template = typed_side(rule, False, shapes, numbers, said)
            if template is not None and all(n > 1 for _, s in template for n in s):
                held = {str(-1 - k): s for k, s in enumerate(shapes)} | {str(k): s for k, (_, s) in enumerate(template)}
                return tuple(op for op, _ in template), held
    return None


def copy_operator(tensor: str, out: str, shape: tuple[int, ...]) -> Operator:
    axes = [f"i{j}" for j in range(len(shape))]
    return Operator(
        "",
        "copy",
        tuple(Axis(a, n) for a, n in zip(axes, shape, strict=True)),
        (access(tensor, *axes),),
        access(out, *axes),
    )


def side_of_graph(
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
def typed_side(
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
        inputs = input_types(rule, sizes_of(rule, shapes))
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


def sizes_of(rule: Substitution, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    sizes = {f"{p.name}.{i}": n for p, s in zip(rule.inputs, shapes, strict=True) for i, n in enumerate(s)}
    return {**sizes, **{f"{name}.degree": 1 for name in sizes}}
