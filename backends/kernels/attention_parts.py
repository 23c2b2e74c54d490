"""Computes scores of attention for a part of the rows and a tile of the keys; nothing larger exists.

A part is a box with few rows.  Rows are *shared* where k or v have them (batch, heads) and *own* otherwise (groups of
heads, queries); operands become matrices over them:

    q, g     (shared.., own, features)        k, v     (shared.., keys, features)        scores   (shared.., own, keys)

with length 1 along shared rows that an operand does not have.  Several own rows, or key axes, are one flat dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from ...models.program.attention import OPERANDS, ROLES, band, role
from .blocks import Array, align, lengths, view
from .elementwise import number
from .task import Task

SCORES: Final = 1 << 20
"""Elements of a tile of scores: 8 MiB in float64, of which a handful are alive."""
KEYS: Final = 256
"""Keys of a tile."""
QUERIES: Final = 128
"""Queries of a part under a band: what of a tile lies outside the band is computed for nothing."""

Box = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Part:
    """Some rows of a task and all keys of its box."""

    task: Task
    box: Box

    @cached_property
    def shared_rows(self) -> tuple[str, ...]:
        """Rows that k or v have."""
        return shared_and_own(self.task)[0]

    @cached_property
    def own(self) -> tuple[str, ...]:
        """All other rows."""
        return shared_and_own(self.task)[1]

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The axes of the keys."""
        return role(self.task.op, "key")

    @cached_property
    def keys(self) -> int:
        """Number of keys."""
        return prod(lengths(self.box, self.key))

    def tiles(self) -> Iterator[tuple[int, int]]:
        """Runs of keys that some query sees, counted from the first key of the box."""
        begin, end, found = 0, self.keys, band(self.task.op)
        if found is not None:
            (first, last), (low, _) = self.box[found.query], self.box[found.key]
            begin = 0 if found.behind is None else max(0, first - found.behind - low)
            end = self.keys if found.ahead is None else min(self.keys, last + found.ahead - low)
            if found.block is not None:
                begin = max(begin, first // found.block * found.block - low)
                end = min(end, ((last - 1) // found.block + 1) * found.block - low)
        for start in range(begin, end, KEYS):
            yield start, min(start + KEYS, end)

    def queries(self, name: str, columns: str = "") -> Array:
        """An operand with rows as (shared.., own, columns); without `columns` the last dimension has length 1."""
        return self._matrix(name, self.own, role(self.task.op, columns) if columns else ())

    def table(self, name: str, columns: str) -> Array:
        """k or v as (shared.., keys, columns)."""
        return self._matrix(name, self.key, role(self.task.op, columns))

    def _matrix(self, name: str, middle: Sequence[str], last: Sequence[str]) -> Array:
        found = self.operand(name, (*self.shared_rows, *middle, *last))
        lead, sizes = found.shape[: len(self.shared_rows)], lengths(self.box, (*middle, *last))
        wide = self.task.xp.broadcast_to(found, (*lead, *sizes))
        return wide.reshape((*lead, prod(sizes[: len(middle)]), prod(sizes[len(middle) :])))  # type: ignore[no-any-return]

    def operand(self, name: str, axes: Sequence[str]) -> Array:
        """An operand with one dimension per axis, length 1 where it lacks the axis."""
        t = self.task
        j = OPERANDS[t.op.function].index(name)
        a = t.op.inputs[j]
        seen = view(t.xp, t.operands[j], a, self.box, t.graph.tensor(a.tensor).shape, 0, f"{t.place}, input {j}")
        return align(seen, a.axes, axes)

    @cached_property
    def _mask(self) -> Array | None:
        """(shared.., own rows.., keys), length 1 where the mask lacks a row."""
        if len(self.task.op.inputs) < len(OPERANDS[self.task.op.function]):
            return None
        found = self.operand("mask", (*self.shared_rows, *self.own, *self.key))
        lead = found.shape[: len(self.shared_rows) + len(self.own)]
        wide = self.task.xp.broadcast_to(found, (*lead, *lengths(self.box, self.key)))
        return wide.reshape((*lead, self.keys))  # type: ignore[no-any-return]

    @cached_property
    def _q(self) -> Array:
        return self.queries("q", "feature")

    @cached_property
    def k(self) -> Array:
        """The keys."""
        return self.table("k", "feature")

    def scores(self, low: int, high: int) -> tuple[Array, Array | float]:
        """s of the keys [low, high), -inf where a key is not seen, and the slope cap' of the soft cap."""
        xp, op = self.task.xp, self.task.op
        s = xp.matmul(self._q, self.k[..., low:high, :].swapaxes(-1, -2))
        slope: Array | float = 1.0
        scale, cap = number(op, "scale", 1.0), number(op, "softcap", 0.0)
        if cap != 0.0:
            bent = xp.tanh(s * (scale / cap))
            s, slope = bent * cap, 1 - bent * bent
        elif scale != 1.0:
            s = s * scale
        if self._mask is None and band(op) is None:
            return s, slope
        apart = s.reshape((*s.shape[: len(self.shared_rows)], *lengths(self.box, self.own), high - low))
        if self._mask is not None:
            mask = self._mask[..., low:high]
            apart = xp.where(mask, apart, -xp.inf) if mask.dtype.kind == "b" else apart + mask
        seen = self.seen(low, high)
        if seen is not None:
            apart = xp.where(seen, apart, -xp.inf)
        flat = (*apart.shape[: len(self.shared_rows)], s.shape[-2], high - low)
        return apart.reshape(flat).astype(s.dtype, copy=False), slope

    def seen(self, low: int, high: int) -> Array | None:
        """Which of the keys the band leaves, as (own rows.., keys); None if all."""
        found, xp = band(self.task.op), self.task.xp
        if found is None:
            return None
        first = self.box[found.key][0]
        key, query = xp.arange(first + low, first + high)[None, :], xp.arange(*self.box[found.query])[:, None]
        apart = key - query
        seen = xp.ones(apart.shape, dtype=bool)
        if found.behind is not None:
            seen &= apart >= -found.behind
        if found.ahead is not None:
            seen &= apart <= found.ahead
        if found.block is not None:
            seen &= key // found.block == query // found.block
        return seen.reshape((*(apart.shape[0] if a == found.query else 1 for a in self.own), high - low))  # type: ignore[no-any-return]


def rows(task: Task) -> tuple[str, ...]:
    """Axes that are neither keys nor features, in the operator's order."""
    special = {a for name in ROLES[1:] for a in role(task.op, name)}
    return tuple(a.name for a in task.op.axes if a.name not in special)


def shared_and_own(task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rows of the keys' side, and all others.  A gradient of k or v is of the keys' side."""
    op = task.op
    sides = {n for name, a in zip(OPERANDS[op.function], op.inputs, strict=False) if name in "kv" for n in a.axes}
    if op.function in ("attention_key_gradient", "attention_value_gradient"):
        sides |= {*op.output.axes}
    mine = rows(task)
    return tuple(a for a in mine if a in sides), tuple(a for a in mine if a not in sides)


class Collected:
    """What parts add up to: `array` has the rows of the result (shared, then own), keys and a last dimension, flat; the
    last two have length 1 where `keys` is false and `last` empty.  `of`: the rows to keep (those of the result)."""

    def __init__(
        self,
        task: Task,
        keys: bool = False,
        last: str = "",
        fill: float = 0.0,
        of: Sequence[str] | None = None,
    ) -> None:
        self.task, self.shared, self.own = task, *shared_and_own(task)
        kept = task.op.output.axes if of is None else of
        self.rows = tuple(a for a in (*self.shared, *self.own) if a in kept)
        self.key = role(task.op, "key") if keys else ()
        self.last = role(task.op, last) if last else ()
        sizes = (prod(lengths(task.box, self.key)), prod(lengths(task.box, self.last)))
        dtype = task.operands[0].array.dtype
        self.array: Array = task.xp.full((*lengths(task.box, self.rows), *sizes), fill, dtype=dtype)

    def add(self, part: Part, found: Array, keys: tuple[int, int] = (0, 1), own: bool = True) -> None:
        """Add (shared.., own, columns), or (shared.., keys, columns) if not `own`, or scores of (shared.., own, keys)
        if both, summed over the rows that the result does not have."""
        xp, count = self.task.xp, len(self.shared)
        names = (*self.shared, *self.own)
        sizes = (*lengths(part.box, self.shared), *(lengths(part.box, self.own) if own else (1,) * len(self.own)))
        columns = found.shape[-2:] if not own else (keys[1] - keys[0], found.shape[-1] // (keys[1] - keys[0]))
        apart = found.reshape((*found.shape[:count], *sizes[count:], *columns))
        wide = xp.broadcast_to(apart, (*sizes, *columns))
        gone = tuple(d for d, a in enumerate(names) if a not in self.rows)
        self.array[(*self._place(part), slice(*keys))] += xp.sum(wide, axis=gone, dtype=self.array.dtype)

    def store(self, part: Part, found: Array) -> None:
        """Set a number per row, given as (shared.., own, 1)."""
        place, sizes = self._place(part), lengths(part.box, (*self.shared, *self.own))
        apart = found.reshape((*found.shape[: len(self.shared)], *sizes[len(self.shared) :], 1, 1))
        self.array[place] = self.task.xp.broadcast_to(apart, (*sizes, 1, 1))

    def _place(self, part: Part) -> tuple[slice, ...]:
        first = self.task.box
        return tuple(slice(part.box[a][0] - first[a][0], part.box[a][1] - first[a][0]) for a in self.rows)

    def result(self, array: Array) -> Array:
        """`array`, shaped like the collected one, along the axes of the result."""
        names, written = (*self.rows, *self.key, *self.last), self.task.op.output.axes
        apart = array.reshape(lengths(self.task.box, names))
        gone = tuple(d for d, a in enumerate(names) if a not in written)
        summed = self.task.xp.sum(apart, axis=gone, dtype=array.dtype) if gone else apart
        return align(summed, [a for a in names if a in written], written)


def parts(task: Task) -> Iterator[Part]:
    """The task in parts whose tiles of scores are small; none for an empty box."""
    if 0 not in lengths(task.box, [a.name for a in task.op.axes]):
        yield from _halved(task, dict(task.box))


def _halved(task: Task, box: Box) -> Iterator[Part]:
    mine, found = rows(task), band(task.op)
    keys = min(KEYS, prod(lengths(box, role(task.op, "key"))))
    longest = max(mine, key=lambda a: box[a][1] - box[a][0], default="")
    if found is not None and box[found.query][1] - box[found.query][0] > QUERIES:
        longest = found.query
    elif not mine or prod(lengths(box, mine)) * keys <= SCORES or box[longest][1] - box[longest][0] == 1:
        yield Part(task, box)
        return
    low, high = box[longest]
    middle = (low + high) // 2
    for part in ((low, middle), (middle, high)):
        yield from _halved(task, {**box, longest: part})
