"""Computes attention and its gradients in tiles: scores exist for a few queries and keys at a time.

Per tile of keys, with the running maximum m, sum l and result a of every row (formulas: `models.program.attention`)

    s = cap(scale q k) + mask,   m' = max(m, max_t s),   c = exp(m - m'),   l' = c l + sum_t exp(s - m'),
    a' = c a + sum_t exp(s - m') v;                          at the end  attention = a / l,  lse = m + log l

Where other ranks hold the rest of the keys, M = MAX m and L = SUM l exp(m - M) over the ranks come between, and the
result is  a exp(m - M) / L, the rank's part of the sum.  Gradients know lse, so every tile stands for itself.  Rows are
cut into parts, keys outside the band of a part's queries are skipped (`attention_parts`).

Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018); Dao et al., FlashAttention (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Final

from ...models.program.attention import FUSED, groups, role
from ...models.program.index import Combine
from .attention_parts import Collected, Part, parts
from .blocks import Array, KernelError, align, lengths, spread
from .elementwise import number
from .task import Task


def attention(t: Task) -> Array:
    """The rank's part of softmax(scores) v."""
    result = Collected(t, last="value_feature")
    most, total = _running(t, result)
    shift, whole = _statistics(t, most, total)
    if t.kept is not None:
        t.kept.log_sums = _logarithms(t, shift, whole)
    return result.result(result.array * t.xp.where(whole > 0, t.xp.exp(most - shift) / _positive(t, whole), 0))


def log_sum_exp(t: Task) -> Array:
    """log of the sum of exp(scores) over all keys, also those of other ranks: what attention kept, or of its own."""
    kept = None if t.kept is None else t.kept.log_sums
    return Collected(t).result(_logarithms(t, *_statistics(t, *_running(t))) if kept is None else kept)


def _logarithms(t: Task, shift: Array, whole: Array) -> Array:
    """(shared.., own, 1, 1); -inf without keys."""
    return t.xp.where(whole > 0, shift + t.xp.log(_positive(t, whole)), -t.xp.inf)  # type: ignore[no-any-return]


def _positive(t: Task, whole: Array) -> Array:
    return t.xp.where(whole > 0, whole, 1)  # type: ignore[no-any-return]


def _running(t: Task, result: Collected | None = None) -> tuple[Array, Array]:
    """Maximum and sum of every row over the keys of the box (-inf and 0 without keys); adds exp(s - maximum) v to
    `result`."""
    xp, most, total = t.xp, Collected(t, fill=-t.xp.inf), Collected(t)
    for part in parts(t):
        v = part.table("v", "value_feature") if result is not None else None
        m = xp.full((1, 1), -xp.inf, dtype=total.array.dtype)
        l = a = xp.zeros((1, 1), dtype=total.array.dtype)
        looked = False
        for low, high in part.tiles():
            s, _ = part.scores(low, high)
            new = xp.maximum(m, xp.max(s, axis=-1, keepdims=True))
            base = xp.where(xp.isfinite(new), new, 0)
            kept, p = xp.exp(m - base), xp.exp(s - base)
            l = kept * l + xp.sum(p, axis=-1, keepdims=True, dtype=s.dtype)
            if v is not None:
                a = kept * a + xp.matmul(p, v[..., low:high, :])
            m = new
            looked = True
        if looked:
            most.store(part, m)
            total.add(part, l)
            if result is not None:
                result.add(part, a)
    return most.array, total.array


def _statistics(t: Task, most: Array, total: Array) -> tuple[Array, Array]:
    """Finite maximum and sum over the keys of all ranks."""
    xp = t.xp
    if t.collectives is None:
        if not t.idle and any(t.box[a] != (0, t.op.axis(a).extent) for a in role(t.op, "key")):
            raise KernelError(t.place, "the box holds part of the keys: a reducer of statistics is needed")
        return xp.where(xp.isfinite(most), most, 0), total
    every = t.collectives.all_reduce(spread(xp, most, most.shape), Combine.MAX)
    shift = xp.where(xp.isfinite(every), every, 0)
    here = total * xp.exp(most - shift)
    return shift, t.collectives.all_reduce(spread(xp, here, here.shape), Combine.SUM)


class _Shares:
    """What the gradients of a part are made of, tile by tile."""

    def __init__(self, part: Part) -> None:
        self.part, self.xp = part, part.task.xp
        found = part.queries("lse")
        self.lse = self.xp.where(self.xp.isfinite(found), found, 0)  # of rows without keys every score is -inf
        self.g = part.queries("g", "value_feature")

    def shares(self, low: int, high: int) -> tuple[Array, Array | float]:
        """p of the keys [low, high), and cap'."""
        s, slope = self.part.scores(low, high)
        return self.xp.exp(s - self.lse), slope

    def slopes(self, low: int, high: int) -> tuple[Array, Array | float]:
        """w of the keys [low, high), and cap'."""
        p, slope = self.shares(low, high)
        return self.within(p, low, high), slope

    def within(self, p: Array, low: int, high: int) -> Array:
        """w of the keys [low, high), whose p is known."""
        inward = self.xp.matmul(self.g, self._v[..., low:high, :].swapaxes(-1, -2))
        return p * (inward - self._delta)  # type: ignore[no-any-return]

    @cached_property
    def _v(self) -> Array:
        return self.part.table("v", "value_feature")

    @cached_property
    def _delta(self) -> Array:
        return self.part.queries("delta")


def _value_gradient(t: Task) -> Array:
    result = Collected(t, keys=True, last="value_feature")
    for part in parts(t):
        of = _Shares(part)
        for keys in part.tiles():
            p, _ = of.shares(*keys)
            result.add(part, t.xp.matmul(p.swapaxes(-1, -2), of.g), keys, own=False)
    return result.result(result.array)


def _query_gradient(t: Task) -> Array:
    result, scale = Collected(t, last="feature"), number(t.op, "scale", 1.0)
    for part in parts(t):
        of = _Shares(part)
        for low, high in part.tiles():
            w, slope = of.slopes(low, high)
            result.add(part, t.xp.matmul(w * slope, part.k[..., low:high, :]) * scale)
    return result.result(result.array)


def _key_gradient(t: Task) -> Array:
    result, scale = Collected(t, keys=True, last="feature"), number(t.op, "scale", 1.0)
    for part in parts(t):
        of, q = _Shares(part), part.queries("q", "feature")
        for keys in part.tiles():
            w, slope = of.slopes(*keys)
            result.add(part, t.xp.matmul((w * slope).swapaxes(-1, -2), q) * scale, keys, own=False)
    return result.result(result.array)


def _mask_gradient(t: Task) -> Array:
    result = Collected(t, keys=True)
    for part in parts(t):
        of = _Shares(part)
        for keys in part.tiles():
            w, _ = of.slopes(*keys)
            result.add(part, w, keys)
    return result.result(result.array)


def _gradients(t: Task) -> Array:
    """The gradients of q, k and v of one pass over the scores, side by side: see `models.program.attention`."""
    op, scale = t.op, number(t.op, "scale", 1.0)
    found = Collected(t, last="feature", of=[a.name for a in op.axes])
    keys, values = (Collected(t, keys=True, last=n, of=found.shared) for n in ("feature", "value_feature"))
    for part in parts(t):
        of, q = _Shares(part), part.queries("q", "feature")
        for low, high in part.tiles():
            p, slope = of.shares(low, high)
            bent = of.within(p, low, high) * slope
            found.add(part, t.xp.matmul(bent, part.k[..., low:high, :]) * scale)
            keys.add(part, t.xp.matmul(bent.swapaxes(-1, -2), q) * scale, (low, high), own=False)
            values.add(part, t.xp.matmul(p.swapaxes(-1, -2), of.g), (low, high), own=False)
    (query,), rows, width = role(op, "query"), lengths(t.box, found.shared), found.array.shape[-1]
    apart = found.array.reshape((*rows, *lengths(t.box, found.own), width))
    first = t.xp.moveaxis(apart, len(rows) + found.own.index(query), len(rows))
    mine = first.reshape((*rows, *lengths(t.box, (query,)), prod(lengths(t.box, groups(op))), width))
    sides = [s.array.reshape((*rows, *lengths(t.box, role(op, "key")), s.array.shape[-1])) for s in (keys, values)]
    return packed_gradients(t, found.shared, mine, sides)


def packed_gradients(t: Task, shared: Sequence[str], queries: Array, sides: Sequence[Array]) -> Array:
    """The result of `attention_gradients`.  `queries`: (shared.., queries, groups, features); `sides`: of k and v,
    (shared.., keys, features).
    """
    (query,), (key,), many = role(t.op, "query"), role(t.op, "key"), groups(t.op)
    rows = lengths(t.box, shared)
    out: Array = t.xp.zeros((*rows, *(t.op.axis(a).extent for a in role(t.op, "packed"))), dtype=queries.dtype)
    begin, count = _run(t, query)
    out[..., begin : begin + count, _slots(t, many), : queries.shape[-1]] = queries
    begin, count = _run(t, key)
    for k, side in enumerate(sides):
        out[..., begin : begin + count, out.shape[-2] - 2 + k, : side.shape[-1]] = side
    return align(out, (*shared, *role(t.op, "packed")), t.op.output.axes)


def _run(t: Task, axis: str) -> tuple[int, int]:
    """First position and length of the box along an axis."""
    return t.box[axis][0], t.box[axis][1] - t.box[axis][0]


def _slots(t: Task, many: Sequence[str]) -> list[int]:
    """Where the groups of the box stand among all groups."""
    places = [0]
    for name in many:
        places = [p * t.op.axis(name).extent + i for p in places for i in range(*t.box[name])]
    return places


ATTENTION: Final = MappingProxyType[str, Callable[[Task], Array]](
    {"attention": attention, "attention_lse": log_sum_exp}
)
"""Forward function -> kernel."""

ATTENTION_GRADIENTS: Final = MappingProxyType[str, Callable[[Task], Array]](
    {
        "attention_value_gradient": _value_gradient,
        "attention_query_gradient": _query_gradient,
        "attention_key_gradient": _key_gradient,
        "attention_mask_gradient": _mask_gradient,
        FUSED: _gradients,
    }
)
"""Gradient function -> kernel."""
