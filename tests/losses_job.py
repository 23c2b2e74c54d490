"""A job on gloo ranks: losses on every layout of their operands against one process, and what they send.

python losses_job.py RANKS     prints one JSON object: the largest differences, what ran whole, and by case what differs
"""

import itertools
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

from shardproof.backends.export.dtensor_functions import Functions


def cases():
    """(shape of the logits, function, its options)."""
    for shape in ((8, 12), (7, 9), (4, 12, 6), (5, 10, 3), (12,), (3, 4, 5, 2)):
        for name in ("cross_entropy", "nll_loss"):
            for reduction in ("mean", "sum", "none"):
                for weighted, smoothing, ignored in ((0, 0.0, 0), (1, 0.0, 2), (0, 0.1, 1), (1, 0.2, 2)):
                    if smoothing and name == "nll_loss":
                        continue
                    yield shape, name, {"reduction": reduction, "smooth": smoothing}, weighted, ignored
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div"):
        for shape, reduction in itertools.product(((8, 6), (5, 7)), ("mean", "sum", "none")):
            yield shape, name, {"reduction": reduction, "smooth": 0.0}, 0, 0


def placements(shape, ndim):
    one = [Replicate(), *(Shard(d) for d in range(min(len(shape), 3)))]
    return [list(p) for p in itertools.product(one, repeat=ndim)] + [[Partial(), *[Replicate()] * (ndim - 1)]]


def compare(mesh, case, where, draw):
    shape, name, options, weighted, ignored = case
    smooth = options["smooth"]
    given = {"reduction": options["reduction"]}
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    func = getattr(F, name)
    if name in ("cross_entropy", "nll_loss"):
        rows = (shape[0], *shape[2:]) if len(shape) > 1 else ()
        classes = shape[1] if len(shape) > 1 else shape[0]
        y = torch.randint(0, classes, rows, generator=draw)
        if ignored and y.ndim:
            y.view(-1)[:ignored] = -100
        if weighted:
            given["weight"] = torch.rand(classes, generator=draw, dtype=torch.float64)
        if smooth:
            given["label_smoothing"] = smooth
    else:
        y = torch.rand(shape, generator=draw, dtype=torch.float64)
    a = x.clone().requires_grad_()
    one = func(a, y, **given)
    up = torch.randn(one.shape, generator=draw, dtype=torch.float64)
    (one * up).sum().backward()
    if any(isinstance(p, Partial) for p in where):
        local = x.clone() / mesh.shape[0]
        b = DTensor.from_local(local, mesh, where, run_check=False).requires_grad_()
    else:
        b = distribute_tensor(x, mesh, where, src_data_rank=None).requires_grad_()
    functions = Functions(mesh)
    with functions, CommDebugMode() as seen:
        many = func(b, y, **given)
    loss = many.full_tensor() if isinstance(many, DTensor) else many
    (loss * up).sum().backward()
    grad = b.grad.full_tensor()
    largest = 0
    if not any(isinstance(p, Partial) for p in where):
        largest = max((n for n in seen.get_comm_counts().values()), default=0)
    return {
        "value": float((loss.detach() - one.detach()).abs().max()),
        "gradient": float((grad - a.grad).abs().max()),
        "whole": dict(functions.whole),
        "gathered": sum(n for k, n in seen.get_comm_counts().items() if "gather" in str(k)),
        "most": largest,
    }


def rank(number, ranks, store):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    shape = (2, ranks // 2) if ranks > 2 else (ranks,)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("a", "b")[: len(shape)])
    found = {"cases": 0, "value": 0.0, "gradient": 0.0, "whole": {}, "gathered": 0, "wrong": []}
    for i, case in enumerate(cases()):
        every = placements(case[0], mesh.ndim)
        for j in range(len(every)) if i % 7 == 0 else range(i % 3, len(every), 3):
            told = compare(mesh, case, every[j], torch.Generator().manual_seed(100 * i + j))
            found["cases"] += 1
            for key in ("value", "gradient"):
                found[key] = max(found[key], told[key])
            if told["value"] > 1e-9 or told["gradient"] > 1e-9 or told["whole"] or told["gathered"]:
                found["wrong"].append([str(case), str(every[j]), told])
    if number == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main():
    ranks = int(sys.argv[1])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as store:
        mp.start_processes(rank, (ranks, f"{store}/s"), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
