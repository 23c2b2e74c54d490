"""Derivatives of attention: the log-sum-exp of every row, then one operator per operand, each of
which computes its scores again, tile by tile.

    lse    =  attention_lse(q, k[, mask])                  p = exp(s - lse) in every gradient
    delta  =  sum_e g * attention                          = sum_t p (sum_e g v), so no pass over the keys finds it
    grad v, grad q, grad k, grad of an additive mask       as in `models.program.attention`

Both have one number per row and are of at least single precision.  Nothing as large as the scores is kept between the
passes; what is kept are q, k, v and the result, which other adjoints read too.  One operator writes one tensor, so
scores are computed once per gradient.  Attention with attribute `gradient` = fused (`--attention fused`) has one
operator instead, which computes them once and writes the three gradients side by side; copies take them apart.

    products of a pair    lse 1, v 2, q 3, k 3: nine;  fused: lse 1, all gradients 5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...program.attention import FUSED, OPERANDS, ROLES, role
from ...program.graph import GraphError
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator, Value
from ..building.attention import log_sum_exp
from .adjoint import pull
from .backward import Backward
from .contributions import Pending

OF_OPERAND = {
    "q": "attention_query_gradient",
    "k": "attention_key_gradient",
    "v": "attention_value_gradient",
    "mask": "attention_mask_gradient",
}


def attention(b: Backward, op: Operator) -> None:
    """Gradients of q, k, v and of a mask that is added."""
    wanted = [j for j in range(len(op.inputs)) if b.wants(op, j)]
    if not wanted:
        return
    fused = op.attribute("gradient", "") == "fused"
    op = replace(op, attributes=tuple((k, v) for k, v in op.attributes if k != "gradient"))
    known = dict(zip(OPERANDS["attention"], map(b.forward, op.inputs), strict=False))
    known["g"] = b.incoming(op)
    precise = "float64" if b.tensors[op.output.tensor].dtype == "float64" else "float32"
    axes, reads, rows, given = log_sum_exp(op.axes, op.inputs, op.output, dict(op.attributes))
    lse = b.emit(
        f"grad:{op.name}/lse", "attention_lse", axes, [b.forward(a) for a in reads], rows, tuple(given.items()), precise
    )
    known["lse"] = access(lse, *rows)
    if any(OPERANDS["attention"][j] != "v" for j in wanted):
        summed = {*role(op, "value_feature")}
        parts = [*rows, *summed]
        delta = b.emit(
            f"grad:{op.name}/delta",
            "product",
            [_axis(op, a, a in summed) for a in parts],
            (known["g"], b.forward(op.output)),
            rows,
            (),
            precise,
        )
        known["delta"] = access(delta, *rows)
    left = wanted
    shapes = [(b.tensors[a.tensor].shape, b.tensors[a.tensor].dtype) for a in op.inputs[:3]]
    if fused and {0, 1, 2} <= {*wanted} and can_fuse(op, shapes):
        _give_packed(b, op, known)
        left = [j for j in wanted if j > 2]
    for j in left:
        _give(b, op, j, known)


def can_fuse(op: Operator, tensors: Sequence[tuple[tuple[int, ...], str]]) -> bool:
    """Whether the three gradients of an attention have a common layout: one query axis, one key axis, and keys and
    values whose rows are rows of the queries, each read plainly.  Dimensions of one element (a batch of one, a single
    head of keys) may be read by an axis or not: PyTorch's programs take them apart.  `tensors`: shape and type of each.
    """
    extent = {a.name: a.extent for a in op.axes}
    if any(len(role(op, name)) != 1 for name in ROLES[:2]):
        return False
    reads = _common(op)
    q, k, v = ({*a.axes} for a in reads)
    rows = k - {*role(op, "key"), *role(op, "feature")}
    same = v - {*role(op, "key"), *role(op, "value_feature")}
    left = {a.name for a in op.axes if a.extent > 1} - {*rows, *(m for n in ROLES[1:] for m in role(op, n))}
    plain = all(
        all(i.single is not None or not (i.terms or i.whole) for i in a.index)
        and tuple(extent[i.single] if i.single else 1 for i in a.index) == shape
        for a, (shape, _) in zip(reads, tensors, strict=True)
    )
    return plain and len({dtype for _, dtype in tensors}) == 1 and rows == same and rows | left <= q


def _common(op: Operator) -> list[Access]:
    """Queries, keys and values, where an axis of one element that not all of them have (a batch of one, a single head
    of keys) is read at its element.
    """
    reads = op.inputs[:3]
    inside = {m for n in ROLES for m in role(op, n)}
    everywhere = set(reads[0].axes).intersection(*(a.axes for a in reads))
    alone = {a.name for a in op.axes if a.extent == 1 and a.name not in inside} - everywhere
    return [replace(a, index=tuple(Affine() if i.single in alone else i for i in a.index)) for a in reads]


def _give_packed(b: Backward, op: Operator, known: dict[str, Access]) -> None:
    """One operator for the gradients of q, k and v, and a copy for each of them."""
    (query,), (key,), features, values = (role(op, name) for name in ROLES[:-1])
    reads = _common(op)
    rows = [n for n in reads[1].axes if n not in (key, *features)]
    many = [a.name for a in op.axes if a.name not in (*rows, query, key, *features, *values)]
    extent = {a.name: a.extent for a in op.axes}
    count, *sizes = (prod(extent[n] for n in names) for names in (many, features, values))
    packed = {
        _fresh(op, "position"): max(extent[query], extent[key]),
        _fresh(op, "slot"): count + 2,
        _fresh(op, "content"): max(sizes),
    }
    axes = [_axis(op, n, False) for n in rows] + [Axis(n, size, None, False) for n, size in packed.items()]
    axes += [replace(a, combine=Combine.SUM) for a in op.axes if a.name not in rows]
    for name, a in zip("qkv", reads, strict=True):
        known[name] = replace(known[name], index=a.index)
    inputs = [known[n] for n in OPERANDS[FUSED] if n in known]
    given = {**dict(op.attributes), "packed": tuple(packed)}
    kept = b.tensors[op.inputs[0].tensor].dtype
    out = (*rows, *packed)
    whole = b.emit(f"grad:{op.name}/qkv", FUSED, axes, inputs, out, tuple(sorted(given.items())), kept)
    feature, value = _flat(op, features), _flat(op, values)
    places = {
        0: (query, _flat(op, [n for n in many if n in reads[0].axes]), feature),
        1: (key, Affine((), count), feature),
        2: (key, Affine((), count + 1), value),
    }
    for j, where in places.items():
        source = access(whole, *rows, *where)
        names = tuple(i.single or _fresh(op, f"one{d}") for d, i in enumerate(reads[j].index))
        parallel = tuple(
            _axis(op, n, False) if i.single else Axis(n, 1, None, False)
            for n, i in zip(names, reads[j].index, strict=True)
        )
        b.give(op, j, Pending(f"{op.name}/{'qkv'[j]}", "copy", parallel, (source,), names))


def _flat(op: Operator, names: Sequence[str]) -> Affine:
    """Several axes as one number, the last the fastest."""
    found, step = Affine(), prod(op.axis(n).extent for n in names)
    for n in names:
        step //= op.axis(n).extent
        found = found.plus(n, step)
    return found


def _fresh(op: Operator, name: str) -> str:
    """A name that no axis of the operator has."""
    taken = {a.name for a in op.axes}
    return next(n for n in (name, *(f"{name}{i}" for i in range(len(taken) + 1))) if n not in taken)


def _axis(op: Operator, name: str, summed: bool) -> Axis:
    return replace(op.axis(name), combine=Combine.SUM if summed else None)


def _give(b: Backward, op: Operator, position: int, known: dict[str, Access]) -> None:
    """The gradient of one operand, over the axes that it is read along."""
    name, a = OPERANDS["attention"][position], op.inputs[position]
    function = OF_OPERAND[name]
    inputs = tuple(known[n] for n in OPERANDS[function] if n in known)
    out = a.axes
    axes = _ordered(op, out)
    given: list[tuple[str, Value]] = [(k, v) for k, v in op.attributes]
    if b.tensors[a.tensor].dtype == "bool":
        raise GraphError(f"operator {op.name!r}", "a mask of truth values has no gradient")
    singles = tuple(i.single for i in a.index)
    extents = tuple(op.axis(n).extent for n in out)
    if singles == out and extents == b.tensors[a.tensor].shape:
        b.give(op, position, Pending(op.name, function, axes, inputs, out, tuple(sorted(given))))
        return
    whole = b.emit(f"grad:{op.name}/{name}", function, axes, inputs, out, tuple(given), b.tensors[a.tensor].dtype)
    parallel = tuple(replace(op.axis(n), combine=None) for n in out)
    pull(b, replace(op, axes=parallel, output=access(whole, *out)), position, whole)


def _ordered(op: Operator, out: Sequence[str]) -> tuple[Axis, ...]:
    """All axes, those of the result first."""
    written = [replace(op.axis(n), combine=None) for n in out]
    return (*written, *(replace(a, combine=Combine.SUM) for a in op.axes if a.name not in out))
