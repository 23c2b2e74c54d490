"""Attention whose positions turn pairs of numbers as complex ones, as the original Llama and torchtitan write it, with
heads or positions on ranks, right and wrong, for `shardproof equal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from equality_pairs import Copy, Reduce, part

Made = tuple[Callable[..., object], Any]
B, S, H, HEADS = 2, 6, 16, 4
D = H // HEADS
G = torch.Generator().manual_seed(7)
X = torch.randn(B, S, H, generator=G)
W = [torch.randn(H, H, generator=G) / 4 for _ in range(4)]


def turns(positions: int) -> torch.Tensor:
    """cos + i sin of every position and pair."""
    rates = 1.0 / (10000.0 ** (torch.arange(0, D, 2).float() / D))
    angles = torch.outer(torch.arange(positions), rates).float()
    return torch.polar(torch.ones_like(angles), angles)


def turned(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * by.view(1, pairs.shape[1], 1, pairs.shape[-1])).flatten(3).type_as(x)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int = 0) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask = torch.arange(first, first + q.shape[2])[:, None] >= torch.arange(k.shape[2])[None]
    scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def split(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).view(*x.shape[:2], -1, D)


def rotary_one(inside: bool = False) -> Made:
    by, p = turns(S), [w.clone().requires_grad_() for w in W]

    def f(x: torch.Tensor) -> torch.Tensor:
        here = turns(S) if inside else by
        q, k, v = (split(x, w) for w in p[:3])
        return attend(turned(q, here), turned(k, here), v) @ p[3]

    return f, (X,)


def rotary_inside_one() -> Made:
    return rotary_one(inside=True)


def rotary_heads(rank: int, ranks: int, inside: bool = False, reduce: Any = Reduce) -> Made:
    by, s = turns(S), part(H, rank, ranks)
    p = [w.clone().requires_grad_() for w in (*(w[:, s] for w in W[:3]), W[3][s])]

    def f(x: torch.Tensor) -> torch.Tensor:
        here = turns(S) if inside else by
        x = Copy.apply(x)
        q, k, v = (split(x, w) for w in p[:3])
        made = attend(turned(q, here), turned(k, here), v) @ p[3]
        return reduce.apply(made) if reduce is not None else made

    return f, (X,)


def rotary_heads_inside(rank: int, ranks: int) -> Made:
    return rotary_heads(rank, ranks, inside=True)


def rotary_heads_not_summed(rank: int, ranks: int) -> Made:
    return rotary_heads(rank, ranks, reduce=None)


def rotary_positions(rank: int, ranks: int, first: int | None = None, back: bool = False) -> Made:
    """Queries of a rank's own positions, keys and values of all."""
    by, n = turns(S), S // ranks
    first = rank * n if first is None else first
    p = [w.clone() for w in W]

    def gathered(t: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(t) for _ in range(ranks)]
        dist.all_gather(parts, t.contiguous())
        return torch.cat(parts, 1)

    def f(x: torch.Tensor) -> torch.Tensor:
        here = by[first : first + n]
        q, k, v = (split(x, w) for w in p[:3])
        q = turned(q, here.conj() if back else here)
        return attend(q, gathered(turned(k, here)), gathered(v), rank * n) @ p[3]

    return f, (X[:, rank * n : rank * n + n].clone(),)


def rotary_every_rank_from_zero(rank: int, ranks: int) -> Made:
    return rotary_positions(rank, ranks, 0)


def rotary_the_other_way(rank: int, ranks: int) -> Made:
    """Queries are turned back where keys are turned forth."""
    return rotary_positions(rank, ranks, back=True)


FAMILIES: tuple[tuple[Callable[[], Made], tuple[Any, ...], tuple[Any, ...], int, bool], ...] = (
    (rotary_one, (rotary_heads,), (rotary_heads_not_summed,), 2, True),
    (rotary_inside_one, (rotary_heads_inside,), (), 2, True),
    (rotary_one, (rotary_heads,), (), 4, True),
    (rotary_one, (rotary_positions,), (rotary_every_rank_from_zero, rotary_the_other_way), 2, False),
    (rotary_one, (rotary_positions,), (rotary_every_rank_from_zero,), 3, False),
)
