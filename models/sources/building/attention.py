"""Builds attention written as an einsum: who has a letter tells whether it is a key or a feature."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from ...program.attention import ROLES
from ...program.graph import Graph, GraphError
from ...program.index import Access, Axis, Combine, access
from ...program.operators import Value
from .builder import Builder


class Scores(TypedDict, total=False):
    """What becomes of scores: their factor (1 where it is not said), their cap, and the band of keys that counts."""

    scale: float
    softcap: float | None
    behind: int | None
    ahead: int | None
    block: int | None


def attention(
    g: Builder,
    name: str,
    text: str,
    *tensors: str,
    query: str | None = None,
    dtype: str | None = None,
    **options: Unpack[Scores],
) -> str:
    """softmax(scale q k + mask) v of q, k, v and perhaps a mask; see `models.program.attention`.

    `query`: the letter of the queries' positions (default: the rows that k does not have, if there is one such letter).
    Raises `GraphError` for index lists that are no attention.

    >>> g = Builder("g")
    >>> q, k, v = g.input("q", (2, 5, 2, 3, 4)), g.input("k", (2, 7, 2, 4)), g.input("v", (2, 7, 2, 6))
    >>> _ = attention(g, "a", "b s h g d, b t h d, b t h e -> b s h g e", q, k, v, query="s", ahead=2)
    >>> op = g.build("a").operators[0]
    >>> op.attribute("key", ()), op.attribute("feature", ()), [a.name for a in op.axes if a.splittable]
    (('t',), ('d',), ['b', 's', 'h', 'g', 't'])
    """
    left, arrow, right = text.partition("->")
    operands = [part.split() for part in left.split(",")]
    if not arrow or len(operands) != len(tensors) or len(operands) not in (3, 4):
        raise GraphError(f"operator {name!r}", f"{text!r} needs the indices of q, k, v[, mask], and '->'")
    reads = []
    for letters, t in zip(operands, tensors, strict=True):
        if len(letters) != len(g.tensors[t].shape):
            raise GraphError(f"operator {name!r}", f"{t!r} has {len(g.tensors[t].shape)} dimensions, not {letters}")
        reads.append(access(t, *letters))
    extents = {a: n for x, t in zip(operands, tensors, strict=True) for a, n in zip(x, g.tensors[t].shape, strict=True)}
    q, k, v, out = {*operands[0]}, {*operands[1]}, {*operands[2]}, right.split()
    alone = [a for a in out if a not in k and a not in v]
    key = tuple(a for a in operands[1] if a in v and a not in q and a not in out)
    feature = tuple(a for a in operands[0] if a in k and a not in v and a not in out)
    roles = {
        "query": (query,) if query is not None else tuple(alone) if len(alone) == 1 else (),
        "key": key,
        "feature": feature,
        "value_feature": tuple(a for a in operands[2] if a in out and a not in q),
    }
    given = {**roles, **attributes(**options)}
    return g.operator(name, "attention", axes_of(out, extents, roles), reads, out, given, dtype)


def axes_of(out: Sequence[str], extents: Mapping[str, int], roles: Mapping[str, tuple[str, ...]]) -> list[Axis]:
    """Axes of the operator: those of its result, then keys and features."""
    whole = {*roles["feature"], *roles["value_feature"]}
    summed = (*roles["key"], *roles["feature"])
    return [
        Axis(a, extents[a], Combine.SUM if a in summed else None, a not in whole)
        for a in (*(a for a in out if a not in summed), *summed)
    ]


def attributes(
    scale: float = 1.0,
    softcap: float | None = None,
    behind: int | None = None,
    ahead: int | None = None,
    block: int | None = None,
) -> dict[str, Value]:
    """Attributes that differ from their defaults."""
    given: dict[str, Value | None] = {
        "scale": None if scale == 1.0 else scale,
        "softcap": softcap,
        "behind": behind,
        "ahead": ahead,
        "block": block,
    }
    return {k: v for k, v in given.items() if v is not None}


def with_fused_gradients(graph: Graph, but: Collection[str] = ()) -> Graph:
    """The graph whose training step has one operator for all gradients of an attention, where they have a common
    layout (`sources.training.attention`).  `but`: operators that keep a gradient for each.
    """
    operators = tuple(
        replace(op, attributes=tuple(sorted({**dict(op.attributes), "gradient": "fused"}.items())))
        if op.function == "attention" and op.name not in but
        else op
        for op in graph.operators
    )
    return replace(graph, operators=operators)


def lse_of(g: Builder, name: str, attention_name: str) -> str:
    """The log-sum-exp of the rows of an attention operator that the builder holds, as an operator of its own.

    >>> g = Builder("g")
    >>> _ = attention(g, "a", "s d, t d, t e -> s e", *(g.input(n, (4, 8)) for n in "qkv"))
    >>> lse_of(g, "l", "a"), g.tensors["l"].shape
    ('l', (4,))
    """
    op = next(o for o in g.operators if o.name == attention_name)
    axes, reads, out, given = log_sum_exp(op.axes, op.inputs, op.output, dict(op.attributes))
    return g.operator(name, "attention_lse", axes, reads, out, given)


def log_sum_exp(
    axes: Sequence[Axis], inputs: Sequence[Access], output: Access, given: dict[str, Value]
) -> tuple[list[Axis], list[Access], list[str], dict[str, Value]]:
    """Axes, inputs, axes of the result and attributes of the log-sum-exp of an attention operator."""
    named = {n: value if isinstance(value := given.get(n, ()), tuple) else () for n in ROLES}
    gone, summed = {str(a) for a in named["value_feature"]}, {str(a) for n in ("key", "feature") for a in named[n]}
    kept = [
        Axis(a.name, a.extent, Combine.MAX if a.name in summed else None, a.splittable)
        for a in axes
        if a.name not in gone
    ]
    return (
        kept,
        [*inputs[:2], *inputs[3:]],
        [a for a in output.axes if a not in gone],
        {k: v for k, v in given.items() if k != "value_feature"} | {"value_feature": ()},
    )
