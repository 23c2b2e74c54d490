"""A job that torch runs alone: an exported file against one process.  It imports nothing of ours.

python dtensor_job.py EXPORTED.py MODEL.py RANKS     prints one JSON object
"""

import importlib.util
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor.debug import CommDebugMode

STEPS = 3


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def rank(number, ranks, exported, model, store, answers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    plan, made = load(exported, "exported"), load(model, "model")
    torch.manual_seed(0)
    one, inputs = made.net()
    many, _ = made.net()
    many.load_state_dict(one.state_dict())
    inputs = tuple(torch.randn_like(x) if x.is_floating_point() else torch.randint(0, 7, x.shape) for x in inputs)
    mesh = plan.make_mesh("cpu")
    many = plan.parallelize(many, mesh)
    steps_one = torch.optim.Adam(one.parameters(), lr=1e-2, eps=1e-3)
    steps_many = plan.make_optimizer(many, mesh, torch.optim.Adam, lr=1e-2, eps=1e-3)
    target = torch.randn_like(one(*inputs))
    found = {"loss": 0.0, "gradient": 0.0, "weights": 0.0, "collectives": {}}
    for _ in range(STEPS):
        a = (one(*inputs) - target).square().mean()
        steps_one.zero_grad()
        a.backward()
        with CommDebugMode() as seen:
            b = (many(*inputs) - target).square().mean()
            steps_many.zero_grad()
            b.backward()
        found["collectives"] = {str(k).rpartition(".")[2]: n for k, n in seen.get_comm_counts().items()}
        alone = dict(one.named_parameters())
        largest = max(float(p.grad.abs().max()) for p in alone.values())
        for name, p in many.module.named_parameters():
            difference = float((p.grad.full_tensor() - alone[name].grad).abs().max())
            found["gradient"] = max(found["gradient"], difference / largest)
        steps_one.step()
        steps_many.step()
        for name, p in many.module.named_parameters():
            difference = float((p.detach().full_tensor() - alone[name].detach()).abs().max())
            found["weights"] = max(found["weights"], difference)
        found["loss"] = max(found["loss"], abs(float(a.detach()) - float(b.detach())))
    found["placements"] = {name: str(p.placements) for name, p in many.module.named_parameters()}
    if number == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def main():
    exported, model, ranks, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    answers = mp.get_context("spawn").SimpleQueue()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    running = mp.spawn(rank, (ranks, exported, model, store, answers), nprocs=ranks, join=False)
    while answers.empty():
        running.join(timeout=1)  # raises what a rank raised
    found = answers.get()
    while not running.join():
        pass
    print(json.dumps(found))


if __name__ == "__main__":
    main()
