"""A job that torch runs alone: an exported pipelined plan on gloo ranks against one process.  It imports nothing of ours.

python pipelined_job.py EXPORTED.py MODEL.py RANKS STORE [ACTIONS.csv]     prints one JSON object

With a CSV of forwards and backwards, torch puts the sends between them itself.
"""

import importlib.util
import json
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loss_of(result, target):
    return ((result - target) ** 2).mean()


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def difference(a, b):
    return float((whole(a).detach() - b.detach()).abs().max())


def rank(number, ranks, exported, model, store, actions, answers):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    layout, made = load(exported, "exported"), load(model, "model")
    torch.manual_seed(0)
    single, inputs = made.net()
    torch.manual_seed(0)
    module, _ = made.net()
    inputs = tuple(
        torch.randint(0, 50, x.shape) if not x.is_floating_point() else torch.randn(x.shape, dtype=x.dtype)
        for x in inputs
    )
    with torch.no_grad():
        target = torch.randn_like(single(*inputs))
    micro = layout.PLAN["micro_batches"]
    own = layout.make_ranks("cpu")
    stage = layout.make_stage(module, own, tuple(x[: len(x) // micro] for x in inputs))
    steps = layout.make_optimizer(stage, torch.optim.Adam, lr=1e-3)
    schedule = layout.make_schedule(stage, loss_of)
    if actions:
        schedule._load_csv(actions)
    plain = torch.optim.Adam(single.parameters(), lr=1e-3)
    named = dict(single.named_parameters())
    found = {"rank": number, "stage": own.number, "loss": 0.0, "gradient": 0.0, "weights": 0.0}
    first, last = own.number == 0, own.number + 1 == len(layout.PLAN["stages"])
    for _ in range(2):
        losses = []
        schedule.step(*(inputs if first else ()), **({"target": target, "losses": losses} if last else {}))
        expected = loss_of(single(*inputs), target)
        expected.backward()
        if last:
            mean = torch.stack([whole(v).detach() for v in losses]).mean()
            found["loss"] = max(found["loss"], abs(float(mean - expected.detach())))
        for name, p in stage.submod.named_parameters():
            found["gradient"] = max(found["gradient"], difference(p.grad, named[name].grad))
        steps.step()
        plain.step()
        for name, p in stage.submod.named_parameters():
            found["weights"] = max(found["weights"], difference(p, named[name]))
        steps.zero_grad()
        plain.zero_grad()
    found["parameters"] = sorted(name for name, _ in stage.submod.named_parameters())
    found["cut"] = sorted({str(p.placements) for _, p in stage.submod.named_parameters() if isinstance(p, DTensor)})
    found["all"] = sorted(named)
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def main():
    exported, model, ranks, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    actions = sys.argv[5] if len(sys.argv) > 5 else ""
    context = mp.get_context("spawn")
    answers = context.Queue()
    jobs = [
        context.Process(target=rank, args=(k, ranks, exported, model, store, actions, answers)) for k in range(ranks)
    ]
    for job in jobs:
        job.start()
    found = [answers.get(timeout=400) for _ in jobs]
    for job in jobs:
        job.join(60)
    print(json.dumps(sorted(found, key=lambda f: f["rank"])))


if __name__ == "__main__":
    main()
