"""A job that torch runs alone: exported parallelisations of torchtitan's Llama against one process, three steps each.

python titan_job.py MODEL.py RANKS BATCH EXPORTED.py ..     one JSON object per file
"""

import importlib.util
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

STEPS = 3


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def loss_of(model, tokens, wanted):
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), wanted.flatten())


def compare(plan, made, batch):
    torch.manual_seed(0)
    one = made.net()
    torch.manual_seed(0)
    many = made.net()
    draw = torch.Generator().manual_seed(1)
    tokens, wanted = torch.randint(0, made.SIZES["vocabulary"], (2, batch, made.SEQUENCE), generator=draw)
    mesh = plan.make_mesh("cpu")
    many = plan.parallelize(many, mesh)
    options = {"lr": 1e-3, "eps": 1e-4}
    steps = [torch.optim.AdamW(m.parameters(), **options) for m in (one, many)]
    found = {"losses": [], "difference": 0.0, "gradient": 0.0}
    copies = mesh.size(0) * mesh.size(1)
    for _ in range(STEPS):
        a = loss_of(one, tokens, wanted)
        steps[0].zero_grad()
        a.backward()
        b = loss_of(many, plan.batch_of(tokens, mesh), plan.batch_of(wanted, mesh))
        steps[1].zero_grad()
        b.backward()
        mean = b.detach().clone()
        for i in (0, 1):
            dist.all_reduce(mean, group=mesh.get_group(i))
        found["losses"].append(float(a.detach()))
        found["difference"] = max(found["difference"], abs(float(mean) / copies - float(a.detach())))
        alone = dict(one.named_parameters())
        largest = max(float(p.grad.abs().max()) for p in alone.values())
        for name, p in many.named_parameters():
            own = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            difference = float((own - alone[name].grad).abs().max())
            found["gradient"] = max(found["gradient"], difference / largest)
        for s in steps:
            s.step()
    found["placements"] = {name: str(getattr(p, "placements", "")) for name, p in many.named_parameters()}
    found["mesh"] = list(mesh.shape)
    return found


def rank(number, ranks, model, batch, files, store):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    made = load(model, "model_of_the_job")
    for i, path in enumerate(files):
        found = compare(load(path, f"exported_{i}"), made, batch)
        if number == 0:
            print(json.dumps({"file": os.path.basename(path), **found}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    model, ranks, batch, *files = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as store:
        mp.start_processes(
            rank, (int(ranks), model, int(batch), files, f"{store}/s"), nprocs=int(ranks), start_method="fork"
        )


if __name__ == "__main__":
    main()
