"""What rules ask of operators: how an operand is read, and an operator with its axes renamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .....models.program.index import Access, Affine
from .....models.program.operators import Operator
from .growing import Growing


def pointwise(g: Growing, op: Operator, j: int) -> bool:
    """Whether the operator reads all of input j, at the index that it writes."""
    alike = g.tensor(op.inputs[j].tensor).shape == g.tensor(op.output.tensor).shape
    return alike and tuple(i.single for i in op.inputs[j].index) == op.output.axes


def singles(access: Access) -> tuple[str, ...] | None:
    """The axes of an access, one per dimension and each once; None for any other."""
    names = [i.single for i in access.index]
    found = tuple(n for n in names if n is not None)
    return found if len(found) == len(names) and len(set(found)) == len(found) else None


def rename_axes(access: Access, names: Mapping[str, str]) -> Access:
    """The access with axes renamed."""
    return Access(access.tensor, tuple(index(i, names) for i in access.index))


def index(i: Affine, names: Mapping[str, str]) -> Affine:
    """The index with axes renamed."""
    return Affine(tuple((names.get(a, a), c) for a, c in i.terms), i.offset, i.whole)


def in_axes(op: Operator, names: Mapping[str, str]) -> Operator:
    """The operator with axes renamed."""
    return replace(
        op,
        axes=tuple(replace(a, name=names.get(a.name, a.name)) for a in op.axes),
        inputs=tuple(rename_axes(a, names) for a in op.inputs),
        output=rename_axes(op.output, names),
    )


def seen_through(op: Operator, j: int, writer: Operator, taken: set[str]) -> Operator | None:
    """What computes input j, in the axes of `op`; its summed axes get names that are not `taken`.  None where the input
    is not read at one axis per dimension.
    """
    read = singles(op.inputs[j])
    if read is None or [op.axis(n).extent for n in read] != [writer.axis(n).extent for n in writer.output.axes]:
        return None
    names = dict(zip(writer.output.axes, read, strict=True))
    for a in writer.axes:
        if a.combine is not None:
            fresh = a.name
            while fresh in taken or fresh in names.values():
                fresh += "'"
            names[a.name] = fresh
    return in_axes(writer, names)


def one_type(g: Growing, *tensors: str) -> bool:
    """Whether tensors have one element type, of real numbers."""
    kinds = {g.tensor(t).dtype for t in tensors}
    return len(kinds) == 1 and min(kinds).startswith(("float", "bfloat"))


def axes_text(op: Operator) -> dict[str, int]:
    """Axis -> extent."""
    return {a.name: a.extent for a in op.axes}


def compose(i: Affine, at: Mapping[str, Affine]) -> Affine:
    """An index whose axes are indices themselves."""
    terms: dict[str, int] = {}
    offset = i.offset
    for n, c in i.terms:
        offset += c * at[n].offset
        for m, d in at[n].terms:
            terms[m] = terms.get(m, 0) + c * d
    return Affine(tuple(terms.items()), offset)
