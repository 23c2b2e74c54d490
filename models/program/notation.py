"""Writes an operator in index notation, on one line, as the grammar of `graph` has it.

    y[b, o] = sum k: product(x[b, k], w[k, o])    b < 8, o < 16, k < 4

Whatever the operator holds can be written, well formed or not: error messages show what they are about.
"""

from __future__ import annotations

from typing import Final

from ..text import escape_text
from .index import Access, Affine, Axis
from .operators import Operator

MOST: Final = 400
"""Characters of a line; the rest of a longer one is left out."""


def index_text(index: Affine) -> str:
    """An index map.

    >>> index_text(Affine.axis("y", 2).plus("r").shift(-1)), index_text(Affine.everything()), index_text(Affine())
    ('2 y + r - 1', ':', '0')
    """
    if index.whole:
        return ":"
    terms = " + ".join(name if coef == 1 else f"{coef} {name}" for name, coef in index.terms)
    if not terms or not index.offset:
        return terms or str(index.offset)
    return f"{terms} {'+' if index.offset > 0 else '-'} {abs(index.offset)}"


def access_text(access: Access) -> str:
    """A tensor at its indices.

    >>> from .index import access
    >>> access_text(access("x", "b", "k"))
    'x[b, k]'
    """
    return f"{access.tensor}[{', '.join(index_text(i) for i in access.index)}]"


def _axis(axis: Axis) -> str:
    return f"{axis.name} < {axis.extent}" + ("" if axis.splittable else " whole")


def operator_text(op: Operator) -> str:
    """An operator: what is written, how it is combined over which axes, the function of what is read, all axes.

    >>> from .index import Combine, access
    >>> axes = (Axis("b", 8), Axis("o", 16), Axis("k", 4, Combine.SUM))
    >>> reads = (access("x", "b", "k"), access("w", "k", "o"))
    >>> operator_text(Operator("fc", "product", axes, reads, access("y", "b", "o")))
    'y[b, o] = sum k: product(x[b, k], w[k, o])    b < 8, o < 16, k < 4'
    """
    combined: dict[str, list[str]] = {}
    for axis in op.axes:
        if axis.combine is not None:
            combined.setdefault(getattr(axis.combine, "value", str(axis.combine)), []).append(axis.name)
    over = "".join(f"{how} {' '.join(names)}: " for how, names in combined.items())
    said = "".join(f", {name}={value}" for name, value in op.attributes)
    reads = ", ".join(map(access_text, op.inputs))
    line = escape_text(f"{access_text(op.output)} = {over}{op.function}({reads}{said if reads else said[2:]})")
    line += escape_text(f"    {', '.join(map(_axis, op.axes))}" if op.axes else "")
    return line if len(line) <= MOST else line[: MOST - 3] + ".."
