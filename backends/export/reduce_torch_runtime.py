"""Runs proved reduction programs with torch.distributed; it is copied into exported files.

    step    (collective, groups);   group    (ranks, root first; rows of each before the step; rows of each after it)

A tensor is cut into rows of equal size, padded with zeros where it does not divide.  Process groups are sorted by rank,
a program's groups by position: parts are put in the order of ranks on the way in, rows say where they go.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # the same, before torch 2.13
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Runs = tuple[tuple[int, int], ...]
"""Rows as runs of [first, last)."""

Group = tuple[tuple[int, ...], tuple[Runs, ...], tuple[Runs, ...]]
Program = tuple[int, tuple[tuple[int, ...], ...], tuple[tuple[str, tuple[Group, ...]], ...]]
"""Chunks, the devices that sum with one another, the steps."""


class Reduction:
    """One program on this rank, made by all ranks together after `init_process_group`: it makes its process groups."""

    def __init__(self, program: Program) -> None:
        self.chunks, _, steps = program
        rank, made = dist.get_rank(), {}
        self.steps = []
        for collective, groups in steps:
            mine = None
            for ranks, before, after in groups:
                key = tuple(sorted(ranks))
                if key not in made:
                    made[key] = dist.new_group(list(key))
                if rank in ranks:
                    mine = (made[key], ranks, [rows(r) for r in before], [rows(r) for r in after])
            self.steps.append((collective, mine))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over this rank's reduction group, in the shape of `tensor`, which stays as it is."""
        flat = tensor.detach().reshape(-1)
        width = -(-flat.numel() // self.chunks) or 1
        data = flat.new_zeros(self.chunks * width)
        data[: flat.numel()] = flat
        data = data.view(self.chunks, width)
        for collective, mine in self.steps:
            if mine is not None:
                step(collective, data, *mine)
        return data.view(-1)[: flat.numel()].view(tensor.shape)


def rows(runs: Runs) -> torch.Tensor:
    """The rows of runs, one by one."""
    return torch.tensor([row for first, last in runs for row in range(first, last)], dtype=torch.long)


def step(
    collective: str,
    data: torch.Tensor,
    group: dist.ProcessGroup,
    ranks: tuple[int, ...],
    before: list[torch.Tensor],
    after: list[torch.Tensor],
) -> None:
    """One step on the rows of this rank, in place."""
    me = ranks.index(dist.get_rank())
    order = [ranks.index(r) for r in sorted(ranks)]
    have, get = before[me].to(data.device), after[me].to(data.device)
    if collective == "AllReduce":
        part = data[have]
        dist.all_reduce(part, group=group)
        data[have] = part
    elif collective == "ReduceScatter":
        parts = torch.cat([data[after[j].to(data.device)] for j in order])
        part = data.new_empty((len(get), data.shape[1]))
        scatter(part, parts, group=group)
        data[get] = part
    elif collective == "AllGather":
        most = max(len(b) for b in before)
        part = data.new_zeros((most, data.shape[1]))
        part[: len(have)] = data[have]
        parts = data.new_empty((len(ranks) * most, data.shape[1]))
        gather(parts, part, group=group)
        for k, j in enumerate(order):
            data[before[j].to(data.device)] = parts[k * most : k * most + len(before[j])]
    elif collective == "Reduce":
        part = data[have]
        dist.reduce(part, ranks[0], group=group)
        if me == 0:
            data[have] = part
    elif collective == "Broadcast":
        sent = before[0].to(data.device)
        part = data[sent]
        dist.broadcast(part, ranks[0], group=group)
        data[sent] = part
    else:
        raise ValueError(f"there is no collective {collective!r}")


def random_integers(device: int, numbers: int) -> torch.Tensor:
    """Integers that anybody can draw again."""
    return torch.randint(-(1 << 40), 1 << 40, (numbers,), generator=torch.Generator().manual_seed(device))


def compare(programs: dict[str, Program], numbers: int = 1000) -> int:
    """Run every program on drawn integers on gloo ranks, and compare with the sum: 0 where all are equal."""
    dist.init_process_group("gloo")
    rank, wrong = dist.get_rank(), 0
    for name, program in programs.items():
        group = next(g for g in program[1] if rank in g)
        wanted = torch.stack([random_integers(d, numbers) for d in group]).sum(0)
        equal = torch.equal(Reduction(program)(random_integers(rank, numbers)), wanted)
        print(f"rank {rank}: {name}: {'equal to the sum' if equal else 'DIFFERENT'}", flush=True)
        wrong += not equal
    dist.destroy_process_group()
    return int(wrong > 0)


def main(programs: dict[str, Program]) -> None:
    """What the file does when it is run: `torchrun --nproc-per-node RANKS FILE`."""
    if "RANK" not in os.environ:
        sys.exit("run it on ranks: torchrun --nproc-per-node N " + sys.argv[0])
    sys.exit(compare(programs))
