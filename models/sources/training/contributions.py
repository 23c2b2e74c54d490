"""Contributions to one gradient, and which of them are one operator.

products over the same reduced axes up to renaming (the projections of q, k and v)
                        one `product_sum`: partial sums are added before they travel, since no operator reads them
                        open (flag `closed-reads`)
parts that lie beside each other (`unbind`, `split`, the steps of a scan)
                        one `copy`, which adds what is in range of its inputs.  Each part alone would be a tensor of
                        the whole shape, zero but for its place: for T steps T^2 elements instead of T
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Value


@dataclass(frozen=True)
class Existing:
    """A contribution that is a tensor of the graph already, with the dimensions of the tensor it is the gradient of."""

    tensor: str


@dataclass(frozen=True)
class Pending:
    """A contribution that is an operator to be: `out` names one axis per dimension; `label` tells the uses apart."""

    label: str
    function: str
    axes: tuple[Axis, ...]
    inputs: tuple[Access, ...]
    out: tuple[str, ...]
    attributes: tuple[tuple[str, Value], ...] = ()


Contribution = Existing | Pending


def merge_products(parts: Sequence[Contribution]) -> list[Contribution]:
    """Products over the same reduced axes, up to renaming, as one `product_sum`, in the place of the first."""
    groups: dict[object, list[Pending]] = {}
    order: list[tuple[object, Contribution]] = []
    for n, part in enumerate(parts):
        key: object = n
        if isinstance(part, Pending) and (form := _form(part)) is not None:
            key = form
            groups.setdefault(key, []).append(part)
        if key == n or len(groups[key]) == 1:
            order.append((key, part))
    out: list[Contribution] = []
    for key, part in order:
        members = groups.get(key, [])
        if len(members) < 2 or not isinstance(part, Pending):
            out.append(part)
            continue
        names = list(_names(part))
        inputs = [_renamed(a, dict(zip(_names(m), names, strict=True))) for m in members for a in m.inputs]
        out.append(
            replace(
                part,
                function="product_sum",
                inputs=tuple(inputs),
                label="+".join(dict.fromkeys(m.label for m in members)),
            )
        )
    return out


def _names(part: Pending) -> tuple[str, ...]:
    """Axes in an order that does not depend on their names: the output's, then by first use in the inputs."""
    return tuple(dict.fromkeys((*part.out, *(a for x in part.inputs for a in x.axes))))


def _form(part: Pending) -> object | None:
    """Equal for products that can share one sum; None for what is no plain product of two with a reduction."""
    reduced = [a for a in part.axes if a.combine is Combine.SUM]
    names = _names(part)
    if (
        part.function != "product"
        or len(part.inputs) != 2
        or part.attributes
        or not reduced
        or len(names) != len(part.axes)
    ):
        return None
    number = {a: str(i) for i, a in enumerate(names)}
    flags = {a.name: (a.extent, a.combine, a.splittable) for a in part.axes}
    return tuple(flags[a] for a in names), tuple(_renamed(x, number).index for x in part.inputs)


def _renamed(a: Access, names: Mapping[str, str]) -> Access:
    return Access(a.tensor, tuple(Affine(tuple((names[n], c) for n, c in i.terms), i.offset, i.whole) for i in a.index))


def side_by_side(
    parts: Sequence[Contribution],
    whole: Mapping[str, int],
    size: Callable[[str], int],
    emit: Callable[[Pending], str],
) -> list[Contribution]:
    """The contributions with the parts among them as one copy, in the place of the first.

    `whole`: dimensions of the gradient by name.  `size`: elements of a tensor.  `emit` computes a contribution and
    names its result.
    """
    names, shape = tuple(whole), tuple(whole.values())
    members = [p for p in parts if isinstance(p, Pending) and (_slice(p, shape, size) or _index(p))]
    if len(members) < 2:
        return list(parts)
    first, own = members[0], [_dimensions(p) for p in members]
    axes = tuple(
        Axis(n, e, None, all(x[k].splittable for x in own)) for k, (n, e) in enumerate(zip(names, shape, strict=True))
    )
    inputs = tuple(_place(p, names, emit) for p in members)
    label = "+".join(dict.fromkeys(p.label for p in members)) if len(members) <= 4 else f"{first.label}+.."
    one = Pending(label, "copy", axes, inputs, names)
    return [one if p is first else p for p in parts if p is first or p not in members]


def _dimensions(part: Pending) -> list[Axis]:
    """The axis of every dimension of the whole; where one index of it was read, it may be split."""
    own = {x.name: x for x in part.axes}
    at = _integers(part, "at")
    return [replace(own[n], splittable=own[n].splittable or k in at) for k, n in enumerate(part.out)]


def _slice(part: Pending, shape: tuple[int, ...], size: Callable[[str], int]) -> bool:
    """A copy of a smaller tensor, every dimension to its place."""
    if part.function != "copy" or part.attributes or len(part.inputs) != 1:
        return False
    (read,) = part.inputs
    used = {i.terms[0][0] for i in read.index if len(i.terms) == 1 and i.terms[0][1] == 1}
    return len(used) == len(read.index) == len(shape) and size(read.tensor) < prod(shape)


def _index(part: Pending) -> bool:
    """The adjoint of reading one index of some dimensions, and the others axis by axis."""
    if part.function != "copy_gradient" or _integers(part, "from"):
        return False
    (read,) = part.inputs
    plain = all(i.single is not None for i in read.index)
    return plain and len(part.axes) == len(part.out) == len(read.index) + len(_integers(part, "at"))


def _integers(part: Pending, name: str) -> tuple[int, ...]:
    value = dict(part.attributes).get(name, ())
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _place(part: Pending, names: Sequence[str], emit: Callable[[Pending], str]) -> Access:
    """How a copy with axes `names` reads a part; one index is first viewed as a dimension of extent 1."""
    (read,) = part.inputs
    if part.function == "copy":
        axis = dict(zip(part.out, names, strict=True))
        return _renamed(read, axis)
    at = dict(zip(_integers(part, "at"), _integers(part, "offset"), strict=True))
    own = {x.name: x for x in part.axes}
    axes = tuple(Axis(n, 1, None, False) if k in at else own[n] for k, n in enumerate(part.out))
    view = emit(replace(part, function="copy", axes=axes, attributes=()))
    return access(view, *(Affine.axis(n).shift(-at.get(k, 0)) for k, n in enumerate(names)))
