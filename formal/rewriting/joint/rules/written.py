"""An operator of a rule, at sizes that are numbers, as the operator of graphs that computes it, read off its index
expression.

    sum over v of x[..] y[..]       product        x[..] + y[..]                        add
    f(sum over v of x[..] y[..])    product with epilogue f: nothing that it sums over is split
    sum over v of x[..]             sum            x[..] where it is, plus y[..] there  copy of both, side by side
    x[..] y[..]                     multiply       f(x[..])                             f
    x[..]                           copy           greatest x[..] over v                max, max_pool

Norms, average pools and rows of tables have expressions of their own.  Indices outside a tensor read 0 in graphs, so
guards that say only that an index is inside are left out; sums over one value are that value.  Others are not written:
None.

What a rule leaves open is as in the operators of its left side: the epsilon of a norm, the form of gelu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from .....models.program.fused import FUSED
from .....models.program.index import Access, Affine, Axis, Combine
from .....models.program.operators import Operator, Value
from .....models.rewrites.index_expressions import (
    Call,
    Digit,
    Expression,
    Most,
    Plus,
    Read,
    Times,
    Total,
    Where,
    substitute,
)
from .....models.rewrites.nodes import Node
from .....models.rewrites.polynomial import Poly
from .....models.rewrites.specified_rows import SPECIFIED, STATEMENT, function_of_statement

Attributes = tuple[tuple[str, Value], ...]

MAPS: Final = ("relu", "sigmoid", "tanh", "exp", "gelu", "silu")
POOLS: Final = ("max_pool", "average_pool", "average_pool_inside")
ROWS: Final = ("embedding", "embedding_rows", "embedding_bag")
PRODUCTS: Final = ("matmul", "batch_matmul", "linear", "conv")
FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{name: name for name in ("add", *MAPS, "softmax", "layer_norm", "max_pool", "average_pool")},
        **{name: name for name in ("subtract", "negate", "rms_norm")},
        **dict.fromkeys(("mul", "scale", "scale_along"), "multiply"),
        "add_along": "add",
        "layer_norm_affine": "layer_norm",
        "rms_norm_scaled": "rms_norm",
        **dict.fromkeys(PRODUCTS, "product"),
        **dict.fromkeys(("transpose", "concat", "split0", "split1", "half0", "half1"), "copy"),
        **dict.fromkeys(("take", "drop", "enlarge"), "copy"),
        **dict.fromkeys(ROWS, "embedding"),
        "average_pool_inside": "average_pool",
        "reduce_sum": "sum",
        "reduce_max": "max",
    }
)
"""Operator of a rule -> function of graphs, without an activation."""
TURNED: Final = ("add", "multiply", "product")
"""Functions of two operands in either order."""
OPEN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("layer_norm", "rms_norm"), ("epsilon",)),
        "gelu": ("approximate",),
        "average_pool": ("count_include_pad",),
    }
)
"""Attributes that no operator of a rule speaks of."""
NAMING: Final = ("over", "rows")
"""Attributes that name axes."""


def function_of(n: Node) -> str | None:
    """The function of graphs that an operator of a rule is; None for one that is not written."""
    if activation(n) is not None:
        return FUSED if FUNCTIONS.get(n.operator) == "product" else None
    if n.operator == SPECIFIED:
        return function_of_statement(str(n.parameter(STATEMENT)))
    return FUNCTIONS.get(n.operator)


def activation(n: Node) -> str | None:
    """The function of its result, if it has one."""
    word = dict(n.parameters).get("activation", "none")
    return None if word == "none" else str(word)


def open_attributes(op: Operator) -> Attributes:
    """Attributes of an operator that rules leave open."""
    return tuple((k, v) for k, v in op.attributes if k in OPEN.get(op.function, ()))


def operator_of(
    n: Node,
    body: Expression,
    sizes: Sequence[int],
    operands: Sequence[tuple[str, tuple[int, ...]]],
    out: str,
    said: Attributes = (),
) -> Operator | None:
    """The operator that computes `body`, the index expression of `n` with sizes that are numbers.  `operands`: tensors
    and their shapes, `out`: what it writes, `said`: the attributes that rules leave open.
    """
    function = function_of(n)
    plain = _without_digits(body, sizes)
    if function is None or plain is None:
        return None
    body = plain
    attributes = dict[str, Value](said)
    if function == FUSED:
        if not isinstance(body, Call) or len(body.arguments) != 1:
            return None
        attributes |= {"epilogue": (body.function,), "factors": 2}
        body = body.arguments[0]
    own = [Axis(f"i{j}", k) for j, k in enumerate(sizes)]
    reads: tuple[Read, ...] | None
    summed = list[Axis]()
    match n.operator:
        case "softmax" | "layer_norm" | "rms_norm" | "layer_norm_affine" | "rms_norm_scaled":
            attributes["over"] = (f"i{dict(n.parameters)['axis']}",)
            reads = (_whole(0, own), *_gains(n, len(operands)))
        case "negate" | "subtract":
            reads = tuple(_whole(k, own) for k in range(len(operands)))
        case "average_pool" | "average_pool_inside":
            if not isinstance(body, Times):
                return None
            summed, reads = _summed(body.factors[-1], operands, taps=True)
            beyond = any(_beyond(r, own, summed, operands[r.operand][1]) for r in reads or ())
            if beyond and bool(attributes.get("count_include_pad", 0)) != (n.operator == "average_pool"):
                return None
        case "embedding" | "embedding_rows" | "embedding_bag":
            summed, reads = _rows(body)
            attributes["rows"] = "r"
        case _:
            summed, reads = _summed(body, operands, taps=n.operator in (*POOLS, "conv"))
            if n.operator == SPECIFIED:
                taps = {v for r in reads or () for p in r.index if len(p.names) > 1 for v in p.names}
                summed = [replace(a, splittable=a.name not in taps) for a in summed]
    if reads is None or (function == FUSED and not summed):
        return None
    if function == FUSED:
        summed = [replace(a, splittable=False) for a in summed]
    known, inputs = {a.name for a in (*own, *summed)}, list[Access]()
    for read in reads:
        index = [_affine(p, known, len(sizes)) for p in read.index]
        if None in index or read.device or read.time:
            return None
        inputs.append(Access(operands[read.operand][0], tuple(i for i in index if i is not None)))
    here = Access(out, tuple(Affine.axis(a.name) for a in own))
    return Operator("", function, (*own, *summed), tuple(inputs), here, tuple(sorted(attributes.items())))


def _whole(k: int, own: Sequence[Axis]) -> Read:
    return Read(k, tuple(Poly.of(a.name) for a in own))


def _gains(n: Node, operands: int) -> tuple[Read, ...]:
    """The gain and bias of a norm: vectors along an axis."""
    return tuple(Read(k, (Poly.of(f"i{dict(n.parameters)['along']}"),)) for k in range(1, operands))


def _without_digits(body: Expression, sizes: Sequence[int]) -> Expression | None:
    while isinstance(body, Digit):
        index = [j for j in range(len(sizes)) if body.numerator == Poly.of(f"i{j}")]
        if index and body.modulus.constant is not None and sizes[index[0]] <= body.modulus.constant:
            value = Poly.of(0)
        elif body.modulus == Poly.of(1):
            value = body.numerator
        else:
            return None
        body = substitute(body.body, {body.variable: value})
    return body


def _summed(
    body: Expression, operands: Sequence[tuple[str, tuple[int, ...]]], taps: bool
) -> tuple[list[Axis], tuple[Read, ...] | None]:
    """Axes that are summed, or whose greatest value is taken, and what is read; `taps`: they are never split."""
    summed = list[Axis]()
    while isinstance(body, Total | Most):
        most = isinstance(body, Most)
        ranges = body.ranges if isinstance(body, Most) else ((body.variable, body.extent),)
        guards, inner = (body.guards if isinstance(body, Most) else ()), body.body
        for v, extent in ranges:
            if extent.constant is None:
                return [], None
            if extent.constant > 1:
                splittable = not taps or (v == "c" and not most)
                summed.append(Axis(v, extent.constant, Combine.MAX if most else Combine.SUM, splittable))
        ones = {v: Poly.of(0) for v, extent in ranges if extent.constant == 1}
        body = substitute(Where(guards, inner) if guards else inner, ones)
    parts: tuple[Expression, ...] = (body,)
    guards = ()
    if isinstance(body, Where):
        guards, body = body.guards, body.body
        parts = (body,)
    if isinstance(body, Times):
        parts = body.factors
    elif isinstance(body, Plus):
        beside = [t.body for t in body.terms if isinstance(t, Where)]
        parts = tuple(beside) if len(beside) == len(body.terms) else body.terms
    elif isinstance(body, Call) and not body.index:
        parts = body.arguments
    reads = tuple(p for p in parts if isinstance(p, Read))
    if len(reads) != len(parts) or not all(_says_inside(g, reads, operands) for g in guards):
        return [], None
    return summed, reads


def _says_inside(guard: Poly, reads: Sequence[Read], operands: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
    """Whether a guard says only that an index is inside its tensor, where graphs read 0 otherwise."""
    return any(
        guard in (p, size - 1 - p) for r in reads for p, size in zip(r.index, operands[r.operand][1], strict=True)
    )


def _beyond(read: Read, own: Sequence[Axis], summed: Sequence[Axis], shape: Sequence[int]) -> bool:
    """Whether some index is outside its tensor."""
    last = {a.name: a.extent - 1 for a in (*own, *summed)}
    return any(
        p.value(dict.fromkeys(last, 0)) < 0 or p.value(last) >= n for p, n in zip(read.index, shape, strict=True)
    )


def _rows(body: Expression) -> tuple[list[Axis], tuple[Read, ...] | None]:
    """Axes and reads of a sum over the rows of a table, and over the places of a bag."""
    summed = list[Axis]()
    while isinstance(body, Total) and body.extent.constant is not None:
        summed.append(Axis(body.variable, body.extent.constant, Combine.SUM))
        body = body.body
    if not isinstance(body, Times) or len(body.factors) != 2 or not isinstance(body.factors[0], Call):
        return [], None
    ids, table = body.factors[0].arguments[0], body.factors[1]
    return summed[::-1], (table, ids) if isinstance(ids, Read) and isinstance(table, Read) else None


def _affine(p: Poly, axes: set[str], rank: int) -> Affine | None:
    """An index, axes of the result first: that is the order in which windows are read, and the axes of a plan stand."""
    own = {f"i{j}" for j in range(rank)}
    terms = [(m[0], c) for m, c in sorted(p.terms.items(), key=lambda t: (not own.intersection(t[0]), t[0])) if m]
    if any(len(m) > 1 for m in p.terms) or any(c < 1 or n not in axes for n, c in terms):
        return None
    return Affine(tuple(terms), p.terms.get((), 0))


def canonical(op: Operator) -> object:
    """What two operators have in common that compute the same way: names of axes do not count, nor sums over one
    value, nor which axes are split.
    """
    single = {a.name for a in op.axes if a.combine is not None and a.extent == 1}
    names = {a: f"i{j}" for j, a in enumerate(op.output.axes)}
    for read in op.inputs:
        for i in read.index:
            for a, _ in sorted(i.terms, key=lambda t: t[0] in names):
                if a not in single:
                    names.setdefault(a, f"v{len(names)}")
    attributes = tuple(
        (k, tuple(names.get(str(a), a) for a in (v if isinstance(v, tuple) else (v,)))) if k in NAMING else (k, v)
        for k, v in op.attributes
    )

    def index(i: Affine) -> object:
        return tuple(sorted((names[a], c) for a, c in i.terms if a not in single)), i.offset, i.whole

    return (
        op.function,
        attributes,
        tuple(sorted((names.get(a.name, ""), a.extent, str(a.combine)) for a in op.axes if a.name not in single)),
        tuple((a.tensor, tuple(index(i) for i in a.index)) for a in op.inputs),
        op.output.tensor,
        tuple(index(i) for i in op.output.index),
    )


def numbers_of(n: Node, op: Operator, shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> Mapping[str, int]:
    """The numeric parameters of an operator of a rule, as they are in the operator of graphs at its place; `shapes` of
    its operands, `out` of its result, as the rule sees them.
    """
    match n.operator:
        case "conv" | "max_pool" | "average_pool" | "average_pool_inside":
            found = dict[str, int]()
            for k, word in ((2, "h"), (3, "w")):
                terms = op.inputs[0].index[k].terms if len(op.inputs[0].index) == 4 else ()
                own = op.output.axes[k] if len(op.output.axes) == 4 else ""
                found[f"stride_{word}"] = dict(terms).get(own, 1)
                found[f"kernel_{word}"] = next((op.axis(a).extent for a, _ in terms if a != own), 1)
            return found
        case "enlarge":
            return {"kernel_h": out[2], "kernel_w": out[3]} if len(out) == 4 else {}
        case "take" | "drop":
            axis = dict(n.parameters)["axis"]
            if not isinstance(axis, int) or axis >= len(out) or axis >= len(shapes[0]):
                return {}
            return {"length": out[axis] if n.operator == "take" else shapes[0][axis] - out[axis]}
        case _:
            return {}
