"""The adjoint of reading: from a gradient over an operator's output to the gradient of what one of
its inputs touched.

    x is read at  index(o)  for every point o of the output   =>   grad x [i]  =  sum of g[o] over all o with index(o) =
                  i

Cases, simplest first (access maps have coefficients of at least 1, so an inverse exists as a map only in the first
three):

    same dimensions         the gradient itself
    permuted, shifted       `copy`, reading g at  axis - offset  (what falls outside is zero)
    axes not read           `sum` over them, shifted likewise
    a reshape               `copy` back: dimensions that were read whole become axes, axes that were not read are read
                            whole
    anything else           `copy_gradient`: strided, merged, repeated and constant indices; it reads the dimensions of
                            g that take part whole, so the dimensions of x that take part are not split (a stated
                            restriction)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator
from .backward import Backward
from .contributions import Contribution, Existing, Pending


def pull(b: Backward, op: Operator, position: int, source: str) -> None:
    """Contribute the adjoint of input `position`; `source` has the dimensions of the operator's output."""
    b.give(op, position, adjoint(op, position, source, b.tensors[op.inputs[position].tensor].shape))


def adjoint(op: Operator, position: int, source: str, shape: Sequence[int]) -> Contribution:
    """See the module docstring; `shape`: of the input."""
    a, out = op.inputs[position], op.output.axes
    if any(i.whole for i in a.index):
        return _reshape_back(op, a, source, shape)
    used = [i.terms[0][0] for i in a.index if i.terms]
    if len(set(used)) < len(a.index) or any(
        len(i.terms) != 1 or i.terms[0][1] != 1 or i.terms[0][0] not in out for i in a.index
    ):
        return _copy_gradient(op, a, source, shape)
    missing = [x for x in out if x not in used]
    if (
        not missing
        and tuple(used) == tuple(out)
        and all(i.single for i in a.index)
        and _extents(op, out) == tuple(shape)
    ):
        return Existing(source)
    axes = [Axis(x, n, None, op.axis(x).splittable) for x, n in zip(used, shape, strict=True)]
    axes += [Axis(x, op.axis(x).extent, Combine.SUM, op.axis(x).splittable) for x in missing]
    offset = {i.terms[0][0]: i.offset for i in a.index}
    read = access(source, *(Affine.axis(x).shift(-offset.get(x, 0)) for x in out))
    return Pending(op.name, "sum" if missing else "copy", tuple(axes), (read,), tuple(used))


def _extents(op: Operator, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(op.axis(n).extent for n in names)


def _reshape_back(op: Operator, a: Access, source: str, shape: Sequence[int]) -> Pending:
    names = [i.single if i.single is not None else f"{op.output.tensor}.{k}" for k, i in enumerate(a.index)]
    axes = [
        Axis(n, extent, None, i.single is not None and op.axis(n).splittable)
        for n, i, extent in zip(names, a.index, shape, strict=True)
    ]
    read = access(source, *(Affine.axis(x) if x in names else Affine.everything() for x in op.output.axes))
    return Pending(op.name, "copy", tuple(axes), (read,), tuple(names), (("reshape", 1),))


def _copy_gradient(op: Operator, a: Access, source: str, shape: Sequence[int]) -> Pending:
    """`terms`: one row per dimension of x in `at`, one column per dimension of g in `from`; offsets per row."""
    out = op.output.axes
    count = {x: sum(x == n for i in a.index for n, _ in i.terms) for x in out}
    plain = [len(i.terms) == 1 and i.terms[0][1] == 1 and count.get(i.terms[0][0], 0) == 1 for i in a.index]
    special = [k for k, ok in enumerate(plain) if not ok]
    involved = list(dict.fromkeys(x for k in special for x, _ in a.index[k].terms))
    whole = [x for x in out if x in involved]
    names = [
        i.terms[0][0] if ok else f"{op.output.tensor}.{k}" for k, (i, ok) in enumerate(zip(a.index, plain, strict=True))
    ]
    axes = [
        Axis(n, extent, None, ok and op.axis(n).splittable) for n, ok, extent in zip(names, plain, shape, strict=True)
    ]
    summed = [x for x in out if x not in names and x not in whole]
    axes += [replace(op.axis(x), combine=Combine.SUM) for x in summed]
    offset = {n: i.offset for n, i, ok in zip(names, a.index, plain, strict=True) if ok}
    read = access(
        source, *(Affine.everything() if x in whole else Affine.axis(x).shift(-offset.get(x, 0)) for x in out)
    )
    terms = tuple(dict(a.index[k].terms).get(x, 0) for k in special for x in whole)
    attributes = (
        ("at", tuple(special)),
        ("from", tuple(out.index(x) for x in whole)),
        ("offset", tuple(a.index[k].offset for k in special)),
        ("terms", terms),
    )
    return Pending(op.name, "copy_gradient", tuple(axes), (read,), tuple(names), attributes)
