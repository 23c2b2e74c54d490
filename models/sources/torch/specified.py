"""Converts PyTorch's operators of the user's own, where the user has specified them in index notation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...program.index import Access, Axis
from ...program.operators import Value
from ..building.flat import Unsupported
from ..specified.expansion import expand
from ..specified.known import known_as, note_call
from ..specified.specification import Specification
from .context import Context, Handler, Node, Ref


def handler_of(kind: str) -> Handler | None:
    """What converts an operator that was specified; None for others.

    >>> handler_of("mine.unheard_of.default") is None
    True
    """
    s = known_as(kind)
    return None if s is None else lambda c, node: _convert(c, node, s)


def _convert(c: Context, node: Node, s: Specification) -> None:
    given = [v for v in node.arguments.values() if v is not None]
    refs = [v for v in given if isinstance(v, Ref)]
    if len(refs) != len(given) or len(refs) != len(s.operands) or len(node.shapes) != 1:
        raise Unsupported(f"other arguments than its specification has: {', '.join(o.name for o in s.operands)}")
    named = dict(zip((o.name for o in s.operands), refs, strict=True))
    kinds = {c.dtypes[r] for r in refs} | {node.dtype}
    if len(kinds) != 1 or not min(kinds).startswith(("float", "bfloat")):
        raise Unsupported(f"element types {', '.join(sorted(kinds))}: it is specified for one of real numbers")
    tensors, shapes = {n: c.tensor(r) for n, r in named.items()}, {n: c.shapes[r] for n, r in named.items()}

    def emit(
        part: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Mapping[str, Value],
    ) -> str:
        return c.operator(node, part, function, axes, inputs, out, attributes)

    result = expand(s, tensors, shapes, emit)
    c.specified.append(note_call(s, tensors, result))
    c.put(node, result)
