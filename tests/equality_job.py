"""A job on gloo ranks: collectives and messages, and the programs of `equality_pairs`, with the numbers that they give.

python equality_job.py RANK RANKS STORE FOLDER CASE..       writes FOLDER/RANK.npz, {case output: array}
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

Tensors = Mapping[str, torch.Tensor]
Case = Callable[[torch.Tensor, int, int], object]


def given(rank: int) -> torch.Tensor:
    """What every case is called with."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(rank + 7))


def _reduced(op: str) -> Case:
    def case(x: torch.Tensor, rank: int, ranks: int) -> object:
        x = x.clone()
        dist.all_reduce(x[1:3], getattr(dist.ReduceOp, op))
        return x

    return case


def _reduce(x: torch.Tensor, rank: int, ranks: int) -> object:
    x = x.clone()
    dist.reduce(x, 1, dist.ReduceOp.SUM)
    return x if rank == 1 else torch.zeros(1)


def _broadcast(x: torch.Tensor, rank: int, ranks: int) -> object:
    x = x.clone()
    dist.broadcast(x[:, 2:4].contiguous(), 0)
    dist.broadcast(x, 1)
    return x


def _gathered(x: torch.Tensor, rank: int, ranks: int) -> object:
    out = torch.empty(4 * ranks, 6)
    dist.all_gather_into_tensor(out, x)
    return out


def _listed(x: torch.Tensor, rank: int, ranks: int) -> object:
    outs = [torch.empty(4, 6) for _ in range(ranks)]
    dist.all_gather(outs, x)
    return torch.cat(outs, 1)


def _scattered(x: torch.Tensor, rank: int, ranks: int) -> object:
    out = torch.empty(4 // ranks, 6)
    dist.reduce_scatter_tensor(out, x)
    return out


def _scattered_list(x: torch.Tensor, rank: int, ranks: int) -> object:
    out = torch.empty(4, 3)
    dist.reduce_scatter(out, [x[:, 3 * (r % 2) : 3 * (r % 2) + 3].contiguous() * (r + 1) for r in range(ranks)])
    return out


def _exchanged(x: torch.Tensor, rank: int, ranks: int) -> object:
    out = torch.empty(4, 6)
    dist.all_to_all_single(out, x)
    return out


def _exchanged_unevenly(x: torch.Tensor, rank: int, ranks: int) -> object:
    sizes = [[3, 1], [2, 2]]
    if ranks != 2:
        return x
    receive = [s[rank] for s in sizes]
    out = torch.empty(sum(receive), 6)
    dist.all_to_all_single(out, x, receive, sizes[rank])
    return out


def _message(x: torch.Tensor, rank: int, ranks: int) -> object:
    out = torch.empty(4, 6)
    if rank == 0:
        dist.send(x, 1, tag=2)
        dist.send(x * 2, 1, tag=1)
        return x
    if rank == 1:
        dist.recv(out, 0, tag=2)
        more = torch.empty(4, 6)
        dist.recv(more, 0, tag=1)
        return out + more.exp()
    return x


def _functional_ones(x: torch.Tensor, rank: int, ranks: int) -> object:
    group = dist.group.WORLD
    one = functional.all_reduce(x, "max", group)
    two = functional.all_gather_tensor(x, 1, group)
    three = functional.reduce_scatter_tensor(x, "sum", 0, group)
    four = functional.all_to_all_single(x, None, None, group)
    return {"one": one + 0, "two": two * 1, "three": three + 0, "four": four + 0}


def _half(x: torch.Tensor, rank: int, ranks: int) -> object:
    """A group of one's own, in an order that is not that of ranks."""
    group = dist.new_group([1, 0])
    if rank > 1:
        return x
    out = torch.empty(8, 6)
    dist.all_gather_into_tensor(out, x, group=group)
    return out


CASES: Mapping[str, Case] = {
    **{f"all-reduce {op}": _reduced(op) for op in ("SUM", "MAX", "MIN", "PRODUCT")},
    "reduce": _reduce,
    "broadcast": _broadcast,
    "gather": _gathered,
    "gather lists": _listed,
    "scatter": _scattered,
    "scatter lists": _scattered_list,
    "exchange": _exchanged,
    "exchange unevenly": _exchanged_unevenly,
    "message": _message,
    "functional": _functional_ones,
    "half": _half,
}


def outputs(found: object, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors by name, as `equal` calls them."""
    if isinstance(found, torch.Tensor):
        yield name, found
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from outputs(value, f"{name}.{key}")
    elif isinstance(found, tuple | list):
        for i, value in enumerate(found):
            yield from outputs(value, f"{name}.{i}")


def made(case: str, rank: int, ranks: int) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """What a case calls, and its inputs."""
    if case in CASES:
        return lambda x: CASES[case](x, rank, ranks), (given(rank),)
    import equality_data_parallel
    import equality_pairs

    called, inputs = (getattr(equality_pairs, case, None) or getattr(equality_data_parallel, case))(rank, ranks)
    return called, inputs if isinstance(inputs, tuple | list) else (inputs,)


def main(rank: int, ranks: int, store: str, folder: str, cases: list[str]) -> None:
    """Run all, and write what this rank has."""
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{store}")
    found: dict[str, np.ndarray] = {}
    for case in cases:
        called, inputs = made(case, rank, ranks)
        for name, tensor in outputs(called(*inputs)):
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found[f"{case}/{name}"] = local.detach().float().numpy()
    np.savez(Path(folder) / f"{rank}.npz", **found)  # type: ignore[arg-type]
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
