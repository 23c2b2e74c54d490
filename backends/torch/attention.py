"""Computes attention, and the gradients of q, k and v, with PyTorch's tiled kernels for processors.

    a, lse  =  flash(q, k, v, mask)        gradients of q, k, v  =  flash'(g, q, k, v, a, lse, mask)

on (batch, heads, positions, features): rows of k and v and groups of heads that share them become batch and heads,
without a copy where there are two of them.  Of a the gradients take  delta = sum_e g a  alone, and that is what their
operator is given; so they get another a of the same delta,  delta g / sum_e g^2.

Taken: one axis of queries and one of keys, features of k and of v in the same number, no soft cap, every key on the
rank where statistics are needed, and in every row a key that is seen.  A causal band is the kernel's own where it
begins with the box; any other, and masks, are added to the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import torch

from ...models.program.attention import OPERANDS, band, role
from ..kernels.attention import packed_gradients
from ..kernels.attention_parts import Part, shared_and_own
from ..kernels.blocks import Array, align, lengths, spread
from ..kernels.elementwise import number
from ..kernels.task import Task
from .arrays import are_real, array, tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attention(t: Task) -> Array | None:
    """softmax(scores) v; its log sums are kept for who shares them."""
    heads = _heads(t)
    if heads is None or t.collectives is not None or t.box[heads.key] != (0, t.op.axis(heads.key).extent):
        return None
    mask, causal = heads.mask()
    if mask is not None and bool((mask == -inf).all(dim=-1).any()):
        return None
    q, k, v = (heads.operand(n) for n in "qkv")
    found, sums = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=number(t.op, "scale", 1.0))
    if t.kept is not None:
        shared, own = shared_and_own(t)
        names = (*shared, *own)
        kept = align(array(heads.apart(sums)), (*heads.rows, heads.query), names)
        t.kept.log_sums = kept.reshape((*lengths(t.box, names), 1, 1))
    (feature,) = role(t.op, "value_feature")
    result = align(array(heads.apart(found)), (*heads.rows, heads.query, feature), t.op.output.axes)
    return spread(t.xp, result, t.shape)


def gradients(t: Task) -> Array | None:
    """The gradients of q, k and v side by side."""
    heads = _heads(t)
    if heads is None:
        return None
    mask, causal = heads.mask()
    q, k, v, g = (heads.operand(n) for n in "qkvg")
    sums, delta = heads.operand("lse"), heads.operand("delta")
    sums = torch.where(torch.isfinite(sums), sums, 0)  # of rows without keys every score is -inf
    like, scale = _of_delta(g, delta), number(t.op, "scale", 1.0)
    of_q, of_k, of_v = (
        heads.apart(x) for x in _flash_gradients(g, q, k, v, like, sums, 0.0, causal, attn_mask=mask, scale=scale)
    )
    count, many = len(heads.rows) - len(heads.groups), len(heads.groups)
    first = of_q.movedim(-2, count)
    first = first.reshape((*first.shape[: count + 1], prod(first.shape[count + 1 : -1]), first.shape[-1]))
    dims = [count + d for d in range(many)]
    sides = [array(x.sum(dim=dims) if dims else x) for x in (of_k, of_v)]
    return spread(t.xp, packed_gradients(t, heads.rows[:count], array(first), sides), t.shape)


def _of_delta(g: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """x with  sum_e g x = delta."""
    most = g.abs().amax(dim=-1, keepdim=True)
    unit = g / torch.where(most == 0, 1, most)  # whose squares neither vanish nor overflow
    total = (unit * unit).sum(dim=-1, keepdim=True)
    return unit.mul_(torch.where(most == 0, 0, delta.unsqueeze(-1) / most / total))


class _Heads:
    """The operands of a task as the kernels want them.  `rows`: those of k and v, then `groups`."""

    def __init__(self, task: Task) -> None:
        self.task, self._part = task, Part(task, task.box)
        (self.query,), (self.key,) = role(task.op, "query"), role(task.op, "key")
        self.groups = tuple(a for a in shared_and_own(task)[1] if a != self.query)
        self.rows = (*shared_and_own(task)[0], *self.groups)
        last = {name: role(task.op, name)[0] for name in ("feature", "value_feature")}
        self._names = {
            "q": (self.query, last["feature"]),
            "k": (self.key, last["feature"]),
            "v": (self.key, last["value_feature"]),
            "g": (self.query, last["value_feature"]),
            "lse": (self.query,),
            "delta": (self.query,),
        }

    def operand(self, name: str) -> torch.Tensor:
        """An operand as (batch, heads, positions[, features]); rows that it lacks repeat it."""
        names = (*self.rows, *self._names[name])
        found = tensor(self._part.operand(name, names)).expand(lengths(self.task.box, names))
        four = self._four(found, len(self._names[name]))
        return four if len(self._names[name]) == 1 or four.stride(-1) == 1 else four.contiguous()

    def _four(self, values: torch.Tensor, inside: int) -> torch.Tensor:
        sizes, rest = values.shape[: values.dim() - inside], values.shape[values.dim() - inside :]
        return values if len(sizes) == 2 else values.reshape((prod(sizes[:-1]), prod(sizes[-1:]), *rest))

    def apart(self, values: torch.Tensor) -> torch.Tensor:
        """A result with a dimension per row."""
        return values.reshape((*lengths(self.task.box, self.rows), *values.shape[2:]))

    def mask(self) -> tuple[torch.Tensor | None, bool]:
        """What is added to the scores, and whether the kernel's own causal band is all there is to it."""
        t, found = self.task, band(self.task.op)
        given = len(t.op.inputs) == len(OPERANDS[t.op.function])
        (low, _), (first, high) = t.box[self.query], t.box[self.key]
        causal = found is not None and found.behind is None and found.block is None and found.ahead == first - low
        if not given and (found is None or causal):
            return None, causal
        real = t.operands[0].array.dtype
        total = torch.zeros((), dtype=tensor(t.xp.zeros(0, dtype=real)).dtype)
        seen = None if found is None else self._part.seen(0, high - first)
        if seen is not None:
            flat = tensor(seen.reshape(*lengths(t.box, (self.query, self.key))))
            total = total.masked_fill(~flat, -inf)
        if not given:
            return total, False
        names = (*self.rows, self.query, self.key)
        mask = tensor(self._part.operand("mask", names))
        total = total.masked_fill(~mask, -inf) if mask.dtype == torch.bool else total + mask
        return self._four(total.expand(lengths(t.box, names)), 2), False


def _heads(t: Task) -> _Heads | None:
    """None where the kernels do not take the task."""
    if any(len(role(t.op, n)) != 1 for n in ("query", "key", "feature", "value_feature")):
        return None
    reads = OPERANDS[t.op.function]
    reals: Sequence[Array] = [
        b.array for name, b in zip(reads, t.operands, strict=False) if name != "mask" or b.array.dtype.kind != "b"
    ]
    (feature,), (value,) = role(t.op, "feature"), role(t.op, "value_feature")
    equal = t.op.axis(feature).extent == t.op.axis(value).extent
    if not equal or number(t.op, "softcap", 0.0) != 0.0 or not are_real(reals):
        return None
    return _Heads(t)
