"""Rewrites products and convolutions of one tensor with several others, epilogues included, made at once.

    y_k = f( sum x[..] w_k[.., o_k], c_k[o_k] )     k = 1 .. n
    y   = f( sum x[..] w[.., o],     c[o] )         w, c: all w_k, all c_k side by side along the own axis o
    y_k = the part of y at o_k

What lies side by side is copied at every run, and priced so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from .....models.program.fused import FUSED
from .....models.program.index import Access, Affine, Axis
from .....models.program.operators import Operator
from .....models.program.tensor import Tensor
from .growing import Addition, Growing, is_real_value
from .reading import axes_text, one_type

MOST_SIBLINGS: Final = 8


def merge_siblings(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` is the first of several products that read one tensor alike, and differ in one axis of the result, which
    the others have in one dimension each.
    """
    given = {t.name for t in g.base.tensors}
    for j in range(len(op.inputs)):
        key = _key(g, op, j) if op.output.tensor in given else None
        if key is None:
            continue
        group = list[Operator]()
        for x in g.readers(op.inputs[j].tensor):
            same = x.function == op.function and len(x.inputs) == len(op.inputs) and x.inputs[j] != x.inputs[j - 1]
            fresh = x.output.tensor in given - {y.output.tensor for y in group}
            if same and fresh and x.inputs[j].tensor == op.inputs[j].tensor and _key(g, x, j) == key:
                group.append(x)
        if not 2 <= len(group) <= MOST_SIBLINGS or group[0] is not op or all(_inside_another(g, x) for x in group):
            continue
        laid = [[x.inputs[i].tensor for x in group] for i in _beside(op, j)]
        if any(len(set(ts)) < len(ts) or any(is_real_value(g, t) for t in ts) for ts in laid):
            continue  # one tensor twice is no gain, and values are as large as what is read less often
        additions = list(_merged(g, j, group))
        if _pays(g, group, additions):
            yield from additions


def _pays(g: Growing, group: list[Operator], additions: list[Addition]) -> bool:
    """Whether one product, and what lies side by side for it, can cost less than several."""
    if g.pays is None:
        return True
    made = [op for _, op in additions[0].defined]
    tensors = {**g.tensors, **{t.name: t for t, _ in additions[0].defined}}
    return g.pays(group, made, made[:-1], tensors)


def _inside_another(g: Growing, op: Operator) -> bool:
    """Whether the one reader of a product has it as a fused product too: siblings are those, with the epilogue."""
    read = {x.output.tensor for x in g.readers(op.output.tensor)}
    return len(read) == 1 and any(
        x.function == FUSED and x.inputs[: len(op.inputs)] == op.inputs for t in read for x in g.nodes(t)
    )


def _own(op: Operator, j: int) -> str | None:
    """The first axis of the result that input j is not read along."""
    return next((n for n in op.output.axes if n not in op.inputs[j].axes), None)


def _beside(op: Operator, j: int) -> list[int]:
    """Inputs that are read along the own axis."""
    return [i for i, a in enumerate(op.inputs) if i != j and _own(op, j) in a.axes]


def _key(g: Growing, op: Operator, j: int) -> object | None:
    """What siblings have in common; None for an operator that can be none."""
    if op.function not in ("product", FUSED) or "reversed" in dict(op.attributes):
        return None
    own = _own(op, j)
    if own is None or not op.axis(own).splittable or any(i.whole for a in op.inputs for i in a.index):
        return None
    if not one_type(g, op.output.tensor, *(a.tensor for a in op.inputs)):
        return None
    number = {n: k for k, n in enumerate(op.output.axes)}
    for a in (op.inputs[j], *op.inputs):
        for n in a.axes:
            number.setdefault(n, len(number))
    if len(number) < len(op.axes):
        return None

    def reads(a: Access) -> tuple[object, ...]:
        return tuple((tuple((number[n], c) for n, c in i.terms), i.offset) for i in a.index)

    operands = list[object]()
    beside = _beside(op, j)
    if not beside:
        return None
    for k, a in enumerate(op.inputs):
        shape = g.tensor(a.tensor).shape
        if k not in beside:
            operands.append((a.tensor, reads(a)))
            continue
        along = [d for d, i in enumerate(a.index) if own in dict(i.terms)]
        if len(along) != 1 or a.index[along[0]].single != own or shape[along[0]] != op.axis(own).extent:
            return None
        operands.append((tuple(n for d, n in enumerate(shape) if d != along[0]), reads(a)))
    axes = sorted((number[a.name], 0 if a.name == own else a.extent, str(a.combine), a.splittable) for a in op.axes)
    return op.function, op.attributes, tuple(axes), tuple(operands), number[own]


def _merged(g: Growing, j: int, group: list[Operator]) -> Iterator[Addition]:
    """The product of all, and every sibling as a part of it."""
    op = group[0]
    own = str(_own(op, j))
    offsets, total = [], 0
    for x in group:
        offsets.append(total)
        total += axes_text(x)[str(_own(x, j))]
    defined, inputs = list[tuple[Tensor, Operator]](), list(op.inputs)
    for i in _beside(op, j):
        a = op.inputs[i]
        along = next(d for d, at in enumerate(a.index) if at.single == own)
        t = g.tensor(a.tensor)
        shape = tuple(total if d == along else n for d, n in enumerate(t.shape))
        names = tuple(f"d{d}" for d in range(len(shape)))
        at = tuple(Affine.axis(n) for n in names)
        parts = tuple(
            Access(x.inputs[i].tensor, tuple(n.shift(-begin) if d == along else n for d, n in enumerate(at)))
            for x, begin in zip(group, offsets, strict=True)
        )
        tensor = Tensor(f"{op.output.tensor}.side{i}", shape, t.dtype)
        axes = tuple(Axis(n, e) for n, e in zip(names, shape, strict=True))
        defined.append((tensor, Operator("", "copy", axes, parts, Access(tensor.name, at))))
        inputs[i] = Access(tensor.name, a.index)
    out = g.tensor(op.output.tensor)
    shape = tuple(total if n == own else e for n, e in zip(op.output.axes, out.shape, strict=True))
    result = Tensor(f"{op.output.tensor}.all", shape, out.dtype)
    axes = tuple(replace(a, extent=total) if a.name == own else a for a in op.axes)
    product = replace(op, axes=axes, inputs=tuple(inputs), output=Access(result.name, op.output.index))
    everything = (*defined, (result, product))
    copies = tuple(made for _, made in defined)
    for x, begin in zip(group, offsets, strict=True):
        mine = g.tensor(x.output.tensor).shape
        part = tuple(Axis(n, e) for n, e in zip(op.output.axes, mine, strict=True))
        read = tuple(Affine.axis(n).shift(begin) if n == own else Affine.axis(n) for n in op.output.axes)
        node = Operator("", "copy", part, (Access(result.name, read),), Access(x.output.tensor, op.output.index))
        yield Addition("merge-siblings", node, (x, product, *copies), everything)
