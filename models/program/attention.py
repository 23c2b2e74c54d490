"""Attention as an operator: softmax(scale q k + mask) v, whose scores are never stored.

Axes are told apart by four attributes, each a tuple of names: `key` (t), `feature` (f), `value_feature` (e); all others
are *rows* r (batch, heads, queries), among them `query`.  Heads that share keys (grouped queries) are a row axis that
k and v do not have: with heads h = kv * group they are two axes.

    s[r, t]      =  cap( scale * sum_f q[r, f] k[r, t, f] ) + mask[r, t]      cap(x) = softcap tanh(x / softcap), or x
    keys(r)      =  { t :  -behind <= t - query(r) <= ahead,  t // block = query(r) // block,
                           mask[r, t] true if the mask is bool }
    attention[r, e]      =  sum over t in keys(r) of  p[r, t] v[r, t, e],      p = exp(s - lse)
    attention_lse[r]     =  log  sum over t in keys(r) of  exp(s)              (-inf, and attention 0, without keys)
    gradients, of g[r, e]; lse as above; delta[r] = sum_e g[r, e] attention[r, e];  w = p (sum_e g v - delta)
      attention_value_gradient[.., t, e]   =  sum over the rows that v does not have of  p g
      attention_query_gradient[r, f]       =  scale sum_t w cap' k
      attention_key_gradient[.., t, f]     =  scale sum over the rows that k does not have of  w cap' q
      attention_mask_gradient[..]          =  sum over what the mask does not have of  w
      attention_gradients[.., x, j, c]     =  the gradient of q at query x, feature c, of the j-th of the G groups (rows
                                              that k and v lack, but the queries) for j < G;  of k at key x, feature c,
                                              for j = G;  of v at key x, value feature c, for j = G + 1;  else 0

Attribute `gradient` = fused asks a training step for `attention_gradients` instead of an operator per gradient.

`behind`, `ahead` and `block` are optional integers: causal is ahead = 0, a window of w keys ahead = 0 and
behind = w - 1, queries that continue n older keys ahead = n, chunks that see only themselves block = their length.
Such a band needs positions, hence one `query` and one `key` axis.  Features are never split (flag `unsplit-axes`): that
would move scores.  Axes x, j, c, which attribute `packed` names, hold what one pass over the scores gives (Dao et al.):
they are whole, and pairs are not counted along them.  Keys may be split: then the row maximum and sum are all-reduced
(`Function.statistics`) and the results of the parts add up, which is the running maximum and sum of a tiled kernel
across devices.  `attention_lse` combines by maximum: all parts hold the same numbers once the statistics are known.

Source: Dao et al., FlashAttention (2022); Liu et al., Ring attention (2023); Gemma 2 (2024) for soft caps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .operators import Operator

OPERANDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "attention": ("q", "k", "v", "mask"),
        "attention_lse": ("q", "k", "mask"),
        "attention_value_gradient": ("g", "q", "k", "lse", "mask"),
        "attention_query_gradient": ("g", "q", "k", "v", "lse", "delta", "mask"),
        "attention_key_gradient": ("g", "q", "k", "v", "lse", "delta", "mask"),
        "attention_mask_gradient": ("g", "q", "k", "v", "lse", "delta", "mask"),
        "attention_gradients": ("g", "q", "k", "v", "lse", "delta", "mask"),
    }
)
"""Function -> its inputs in order.  The mask is optional but where its gradient is taken."""

ROLES: Final = ("query", "key", "feature", "value_feature", "packed")
"""Attributes that name axes."""

FORWARD: Final = ("attention", "attention_lse")
"""Functions of the forward pass; the others are gradients."""

FUSED: Final = "attention_gradients"
"""The function that gives the gradients of q, k and v at once."""

PER_FEATURE: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "attention": (2, 2),
        "attention_lse": (2, 0),
        "attention_value_gradient": (2, 2),
        "attention_query_gradient": (4, 2),
        "attention_key_gradient": (4, 2),
        "attention_mask_gradient": (2, 2),
        "attention_gradients": (6, 4),
    }
)
"""Function -> floating-point operations per pair of query and key for each feature, and for each value feature: a
product that goes over them, or makes them, counts two.  What else a pair costs is `Function.flops`."""


@dataclass(frozen=True)
class Band:
    """Pairs of positions of two axes with  -behind <= key - query <= ahead,  in the same block;  None: no bound."""

    query: str
    key: str
    behind: int | None
    ahead: int | None
    block: int | None = None


BOUNDS: Final = ("behind", "ahead", "block")
"""Attributes of a band."""

MOST_POSITIONS: Final = 1 << 30
"""Queries and keys of a band: its pairs are counted in int64."""

MOST_BLOCKS: Final = 1 << 12
"""Blocks of a band: they are counted one by one."""


def role(op: Operator, name: str) -> tuple[str, ...]:
    """Axes that an attribute of `ROLES` names."""
    value = op.attribute(name, ())
    return tuple(str(v) for v in value) if isinstance(value, tuple) else ()


def inner(op: Operator) -> tuple[str, ...]:
    """Features, value features and packed axes: those inside a pair of query and key."""
    return (*role(op, "feature"), *role(op, "value_feature"), *role(op, "packed"))


def groups(op: Operator) -> tuple[str, ...]:
    """Rows that neither k nor v has, but the queries: heads that share keys."""
    sides = {n for name, a in zip(OPERANDS[op.function], op.inputs, strict=False) if name in "kv" for n in a.axes}
    special = {m for name in ROLES for m in role(op, name)}
    return tuple(a.name for a in op.axes if a.name not in sides | special)


def band(op: Operator) -> Band | None:
    """The band of keys that a query sees, if it has one."""
    found = [op.attribute(name, "") for name in BOUNDS]
    if all(v == "" for v in found):
        return None
    behind, ahead, block = (v if isinstance(v, int) else None for v in found)
    (query,), (key,) = role(op, "query"), role(op, "key")
    return Band(query, key, behind, ahead, block)


def operations(op: Operator) -> int:
    """Floating-point operations per pair of query and key.

    >>> from ..sources.building.attention import attention
    >>> from ..sources.building.builder import Builder
    >>> g = Builder("g")
    >>> q, k, v = (g.input(n, (2, 8, 64)) for n in "qkv")
    >>> _ = attention(g, "a", "b s d, b t d, b t e -> b s e", q, k, v)
    >>> operations(g.operators[0])
    268
    """
    extent = {a.name: a.extent for a in op.axes}
    each, total = PER_FEATURE[op.function], op.spec.flops
    for factor, names in zip(each, (role(op, "feature"), role(op, "value_feature")), strict=True):
        size = 1
        for name in names:
            size *= extent[name]
        total += factor * size
    return total


def wrong(op: Operator) -> str:
    """What is wrong with the axes and attributes of an attention operator, empty if nothing is."""
    axes = {a.name: a for a in op.axes}
    named = {name: role(op, name) for name in ROLES}
    for name, members in named.items():
        value = op.attribute(name, ())
        if not isinstance(value, tuple) or any(not isinstance(m, str) for m in value):
            return f"attribute {name} must be a tuple of axis names, not {value!r}"
        if lost := [m for m in members if m not in axes]:
            return f"attribute {name} names unknown axis {lost[0]!r}"
    special = [m for members in named.values() for m in members]
    if len(set(special)) < len(special):
        return "an axis has two roles among query, key, feature, value_feature and packed"
    if split := [m for m in inner(op) if axes[m].splittable]:
        return f"axis {split[0]!r} is inside a pair of query and key, so it must not be splittable"
    for name in BOUNDS:
        if type(op.attribute(name, 1)) is not int:
            return f"attribute {name} must be an integer"
    for name, default in (("scale", 1.0), ("softcap", 1.0)):
        if not isinstance(op.attribute(name, default), (int, float)):
            return f"attribute {name} must be a number"
    if op.attribute("gradient", "fused") != "fused":
        return f"attribute gradient is {op.attribute('gradient', '')!r}; there is fused, or none at all"
    banded = any(name in dict(op.attributes) for name in BOUNDS)
    if banded and (len(named["query"]) != 1 or len(named["key"]) != 1):
        return "a band of keys needs one query axis and one key axis"
    return _wrong_band(op) or _wrong_operands(op, named) or _wrong_packed(op, named)


def _wrong_band(op: Operator) -> str:
    """Whether a band has keys, and few enough of everything to be counted."""
    found = band(op)
    if found is None:
        return ""
    if found.behind is not None and found.ahead is not None and found.behind + found.ahead < 0:
        return f"no key lies from {found.behind} behind to {found.ahead} ahead of a query"
    extent = {a.name: a.extent for a in op.axes}
    longest = max(extent[found.query], extent[found.key])
    if longest > MOST_POSITIONS:
        return f"a band over {longest} positions cannot be counted; at most {MOST_POSITIONS}"
    if found.block is not None and (found.block < 1 or longest > found.block * MOST_BLOCKS):
        return f"attribute block is {found.block}: {longest} positions must be at most {MOST_BLOCKS} blocks"
    return ""


def _wrong_operands(op: Operator, named: Mapping[str, tuple[str, ...]]) -> str:
    """Whether every operand has the axes of its role and no others."""
    rows = {a.name for a in op.axes} - {m for name in ROLES[1:] for m in named[name]}
    hidden = {*named["query"]}
    own = {
        "q": ("feature",),
        "k": ("key", "feature"),
        "v": ("key", "value_feature"),
        "g": ("value_feature",),
        "mask": ("key",),
        "lse": (),
        "delta": (),
    }
    for name, a in zip(OPERANDS[op.function], op.inputs, strict=False):
        allowed = {m for n in own[name] for m in named[n]} | (rows - hidden if name in ("k", "v") else rows)
        if extra := [n for n in a.axes if n not in allowed]:
            return f"operand {name} must not be read along axis {extra[0]!r}"
        needed = {m for n in own[name] if name != "mask" for m in named[n]}
        if lost := sorted(needed - {*a.axes}):
            return f"operand {name} is not read along axis {lost[0]!r}"
    result: dict[str, tuple[str, ...]] = {
        "attention": ("value_feature",),
        "attention_lse": (),
        "attention_value_gradient": ("key", "value_feature"),
        "attention_query_gradient": ("feature",),
        "attention_key_gradient": ("key", "feature"),
        "attention_mask_gradient": ("key",),
        FUSED: ("packed",),
    }
    allowed = {m for n in result[op.function] for m in named[n]} | rows
    if extra := [n for n in op.output.axes if n not in allowed]:
        return f"the result of {op.function} has no axis {extra[0]!r}"
    whole = rows if op.function in ("attention", "attention_lse") else set()
    made = {m for n in result[op.function] if op.function != "attention_mask_gradient" for m in named[n]} | whole
    if lost := sorted(made - {*op.output.axes}):
        return f"the result of {op.function} lacks axis {lost[0]!r}"
    if op.function == "attention_mask_gradient" and len(op.inputs) < len(OPERANDS[op.function]):
        return "the gradient of a mask needs the mask"
    return ""


def _wrong_packed(op: Operator, named: Mapping[str, tuple[str, ...]]) -> str:
    """Whether packed gradients have one axis of every role, room for all of them and the axes of the keys' rows."""
    packed = named["packed"]
    if op.function != FUSED:
        return f"{op.function} has no packed axes" if packed else ""
    if any(len(named[name]) != 1 for name in ROLES[:2]) or len(packed) != 3:
        return f"{FUSED} needs one query axis, one key axis and three packed ones"
    extent = {a.name: a.extent for a in op.axes}
    query, key, feature, value = (prod(extent[a] for a in named[name]) for name in ROLES[:-1])
    need = max(query, key), prod(extent[a] for a in groups(op)) + 2, max(feature, value)
    if need != tuple(extent[a] for a in packed):
        return f"packed axes of {FUSED} must be {' x '.join(map(str, need))} long"
    reads = dict(zip(OPERANDS[op.function], op.inputs, strict=False))
    rows, inside = {*reads["k"].axes} - {*named["key"], *named["feature"]}, {*named["key"], *named["value_feature"]}
    if rows != {*reads["v"].axes} - inside or not rows <= {*reads["q"].axes}:
        return f"{FUSED} needs k and v with the same rows, all of them rows of q"
    if {*op.output.axes[:-3]} != rows or op.output.axes[-3:] != packed:
        return f"the result of {FUSED} has the rows of k, then the packed axes"
    return ""
