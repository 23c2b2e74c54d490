"""Pairs of programs that differ, each behind inputs that no comparison of numbers meets: `equal` proved them once.

An attack is the program of one device, that of a rank, their inputs, and how many ranks; what must be said of it stands
beside it.  Found by an attacker of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

One = Callable[..., torch.Tensor]
Ranks = Callable[[int], One]
Attack = tuple[One, Ranks, tuple[torch.Tensor, ...], int, str]

G = torch.Generator().manual_seed(3)
A = torch.rand(4, generator=G) + 1
TEN = tuple(torch.rand(2, generator=G) + 10 for _ in range(3))
X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def everywhere(f: One) -> Ranks:
    """Every rank does the same."""
    return lambda rank: f


def over(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return 1 / (x + 5), 1 / (y + 5), 1 / (z + 5)


def roots_apart(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    b, a, c = over(x, y, z)
    return (b * a).sqrt() * (b * c).sqrt()


def root_taken_out(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    b, a, c = over(x, y, z)
    return b * (a * c).sqrt()


def _received(kind: torch.dtype) -> Ranks:
    def ranks(rank: int) -> One:
        def f(x: torch.Tensor) -> torch.Tensor:
            y = x * 2 if rank == 0 else torch.zeros(4, dtype=kind)
            dist.broadcast(y, 0)
            return y.float()

        return f

    return ranks


def _message(rank: int) -> One:
    def f(x: torch.Tensor) -> torch.Tensor:
        if rank == 0:
            y = x * 2
            dist.send(y, 1)
            return y
        y = torch.zeros(4, dtype=torch.int32)
        dist.recv(y, 0)
        return y.float()

    return f


def _mixed(rank: int) -> One:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone() if rank == 0 else x.double()
        dist.all_reduce(y)
        return y.float()

    return f


def _exchanged(rank: int) -> One:
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4)
        dist.all_to_all_single(out, torch.cat([x[:2], x[:2]]), [1, 3], [2, 2])
        return out

    return f


def _averaged(rank: int) -> One:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone() if rank == 0 else x * 0
        dist.all_reduce(y, op=dist.ReduceOp.AVG)
        return y + 0.0

    return f


def _added(rank: int) -> One:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y.float()

    return f


INDEX = torch.tensor([1, 2, 3])
ATTACKS: Mapping[str, Attack] = {
    # at -7 the one is 1/4, the other -1/4
    "roots": (roots_apart, everywhere(root_taken_out), TEN, 1, "undecided"),
    # i = [0, 1, 6, 7]: what is known of a part is not known of the whole
    "ceiling": (
        lambda i: A[i[:2]] * (i[2:] < 4),
        everywhere(lambda i: A[i[:2]]),
        (torch.tensor([0, 1, 2, 3]),),
        1,
        "undecided",
    ),
    # i = 0: the last element
    "negative": (
        lambda i: A[i - 1],
        everywhere(lambda i: ((i - 1)[:, None] == torch.arange(4)).float() @ A),
        (INDEX,),
        1,
        "undecided",
    ),
    # infinity minus a number is infinity
    "infinity": (
        lambda x: ((float("inf") - (x - 1000).relu()) == float("inf")).float(),
        everywhere(lambda x: ((x - 1000).relu() == 0).float()),
        (A,),
        1,
        "undecided",
    ),
    "not": (
        lambda x: torch.logical_not(x).float(),
        everywhere(lambda x: 1 - x.float()),
        (torch.tensor([1, 0, 1, 0]),),
        1,
        "undecided",
    ),
    "sum of truths": (
        lambda x: ((x > 1000) + (x > 1)).float(),
        everywhere(lambda x: (x > 1000).float() + (x > 1).float()),
        (A,),
        1,
        "undecided",
    ),
    "average of integers": (lambda x: x / 2 + 0.0, _averaged, (torch.tensor([4, 6, 8, 8]),), 2, "undecided"),
    "received as integers": (lambda x: x * 2, _received(torch.int32), (X,), 2, "different"),
    "message as integers": (lambda x: x * 2, _message, (X,), 2, "different"),
    "types of ranks": (lambda x: x * 2, _mixed, (X,), 2, "different"),
    "sizes of an exchange": (lambda x: torch.cat([x[:2], x[:2]]), _exchanged, (X,), 2, "different"),
}

ASSUMED: Mapping[str, tuple[One, Ranks, tuple[torch.Tensor, ...], int]] = {
    "cast": (lambda x: x.to(torch.int8).float(), everywhere(lambda x: x.to(torch.int32).float()), (X,), 1),
    "sum over ranks": (lambda x: x.float() * 2, _added, (torch.tensor([1, 2, 3], dtype=torch.uint8),), 2),
}
"""Equal as long as whole numbers do not wrap around, which must then be said."""

READ: Mapping[str, tuple[One, tuple[torch.Tensor, ...]]] = {
    "a mask": (lambda x, m: torch.where(m, x, 0.0), (X, torch.tensor([True, False, True, True]))),
    "nothing": (lambda x: torch.cat([x[:0].reshape(0, 2).sum(1), x]).sum(), (X,)),
    "no turns": (lambda x: x.reshape(2, 2).cumsum(1)[:0].sum(0) + x[:2], (X,)),
}
"""Programs that were no verdict but an error."""


def makers(one: One, ranks: Ranks, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    """What `shardproof.equal` takes."""
    return (lambda: (one, inputs)), (lambda rank, many: (ranks(rank), inputs))
