"""An operator of a rule, at sizes that are numbers, as the operator of graphs that computes it, read off its index
expression.

    sum over v of x[..] y[..]      product        x[..] + y[..]                        add
    sum over v of x[..]            sum            x[..] where it is, plus y[..] there  copy of both, side by side
    x[..] y[..]                    multiply       f(x[..])                             f
    x[..]                          copy

Others are not written: None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .....models.program.index import Access, Affine, Axis, Combine
from .....models.program.operators import Operator
from .....models.rewrites.index_expressions import Call, Expression, Plus, Read, Times, Total, Where
from .....models.rewrites.polynomial import Poly

MAPS: Final = ("relu", "sigmoid", "tanh", "exp")
TURNED: Final = ("add", "multiply", "product")
"""Functions of two operands in either order."""


def function_of(body: Expression) -> str | None:
    """The function of graphs that an index expression is, whatever its sizes."""
    return None if (found := _parts(body)) is None else found[0]


def _parts(body: Expression) -> tuple[str, tuple[tuple[str, Poly], ...], tuple[Read, ...]] | None:
    """Function, (variable, extent) of every sum, and reads."""
    summed = list[tuple[str, Poly]]()
    while isinstance(body, Total):
        summed.append((body.variable, body.extent))
        body = body.body
    function: str | None = None
    parts: tuple[Expression, ...] = ()
    match body:
        case Read():
            function, parts = "sum" if summed else "copy", (body,)
        case Times() if len(body.factors) == 2:
            function, parts = "product" if summed else "multiply", body.factors
        case Plus() if len(body.terms) == 2 and not summed:
            beside = [t.body for t in body.terms if isinstance(t, Where)]
            function, parts = ("copy", tuple(beside)) if len(beside) == 2 else ("add", body.terms)
        case Call() if body.function in MAPS and not body.index and not summed:
            function, parts = body.function, body.arguments
        case _:
            return None
    reads = tuple(p for p in parts if isinstance(p, Read) and not p.device and not p.time)
    return None if function is None or len(reads) != len(parts) else (function, tuple(summed), reads)


def operator_of(body: Expression, sizes: Sequence[int], tensors: Sequence[str], out: str) -> Operator | None:
    """The operator that computes an index expression whose sizes are numbers.  `tensors`: its operands, `out`: what it
    writes.
    """
    if (found := _parts(body)) is None:
        return None
    function, summed, reads = found
    axes = [Axis(f"i{j}", n) for j, n in enumerate(sizes)]
    for variable, extent in summed:
        if extent.constant is None:
            return None
        axes.append(Axis(variable, extent.constant, Combine.SUM))
    known, inputs = {a.name for a in axes}, list[Access]()
    for read in reads:
        index = [_affine(p, known) for p in read.index]
        if None in index:
            return None
        inputs.append(Access(tensors[read.operand], tuple(i for i in index if i is not None)))
    here = Access(out, tuple(Affine.axis(f"i{j}") for j in range(len(sizes))))
    return Operator("", function, tuple(axes), tuple(inputs), here)


def _affine(p: Poly, axes: set[str]) -> Affine | None:
    terms = [(m[0], c) for m, c in sorted(p.terms.items()) if m]
    if any(len(m) > 1 for m in p.terms) or any(c < 1 or n not in axes for n, c in terms):
        return None
    return Affine(tuple(terms), p.terms.get((), 0))
