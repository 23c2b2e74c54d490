"""Compares where the ranks of a job are with the machine of its plan.

Levels h_0 .. h_L, ranks numbered row-major, H computers.  Ranks fit where every computer holds one consecutive run of
N / H ranks, and H = h_0 .. h_j for some j: then computers are the subtrees of level j, and what the plan prices as
communication inside one of them is.  Where a level is called `nodes`, j is that level.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from math import prod
from operator import mul
from typing import Final

_NODES: Final = ("node", "nodes", "host", "hosts")


def topology_fault(hosts: Sequence[str], levels: Sequence[tuple[str, int]]) -> str | None:
    """Why ranks on these computers are not on the machine of the levels (name, size); None where they are.

    >>> topology_fault(["a", "a", "b", "b"], [("nodes", 2), ("gpus", 2)]) is None
    True
    >>> topology_fault(["a", "b", "a", "b"], [("nodes", 2), ("gpus", 2)])
    "rank 1 is on 'b', where the plan's machine (2 nodes x 2 gpus) has ranks 0 to 1 on one node, 'a'"
    """
    words = " x ".join(f"{size} {name}" for name, size in levels)
    sizes = list(accumulate((size for _, size in levels), mul))
    named = next((sizes[k] for k, (name, _) in enumerate(levels) if name in _NODES), None)
    count = len(set(hosts))
    if named is None:
        if count not in (1, *sizes):
            return f"ranks are on {count} computers ({_listed(hosts)}); the plan's machine ({words}) has no such nodes"
        named = count
    each = prod(size for _, size in levels) // named
    for rank, host in enumerate(hosts):
        first = rank // each * each
        if host != hosts[first]:
            return (
                f"rank {rank} is on {host!r}, where the plan's machine ({words}) has ranks {first} to "
                f"{first + each - 1} on one node, {hosts[first]!r}"
            )
        if host in hosts[:first]:
            return (
                f"ranks {hosts.index(host)} and {rank} are on {host!r}, where the plan's machine ({words}) has them on "
                f"different nodes"
            )
    return None


def gpu_fault(hosts: Sequence[str], gpus: Sequence[int]) -> str | None:
    """Which computer has fewer GPUs than ranks; None where each rank has its own.  `gpus`: seen by each rank.

    >>> gpu_fault(["a", "b", "b"], [1, 2, 2]) is None, gpu_fault(["a", "b", "b"], [1, 1, 1])
    (True, "'b' has 1 GPU, and the plan has 2 devices on it (ranks 1, 2)")
    """
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, other in enumerate(hosts) if other == host]
        seen = min(gpus[rank] for rank in ranks)
        if seen < len(ranks):
            some, where = f"{seen} GPU{'' if seen == 1 else 's'}", ", ".join(map(str, ranks))
            return f"{host!r} has {some}, and the plan has {len(ranks)} devices on it (ranks {where})"
    return None


def _listed(hosts: Sequence[str]) -> str:
    """Runs of ranks, a few of them."""
    runs = [(host, len(list(run))) for host, run in groupby(hosts)]
    shown = ", ".join(f"{host!r} {n}" for host, n in runs[:6])
    return shown + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
