"""A job that torch runs alone: what exported files compute, looked at from outside, against one process.

python program_job.py MODEL.py RANKS CASES.json     one JSON object per case, printed by rank 0

One process group for all cases.  Nothing here reads what a file says of itself but its functions: types come from hooks
on modules, calls from counters, kept bytes from hooks on saved tensors, kernels from a dispatch mode.
"""

import copy
import importlib.util
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 2


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Kernels(TorchDispatchMode):
    """Operators of ATen that ran on parts."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types):
            return NotImplemented
        self.found[func.name().split("::")[1].split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def alone(made, one, optimizer, inputs, case):
    """A step of one process in the case's precision."""
    optimizer.zero_grad()
    rule = case["rule"]
    if rule == "master":
        half = copy.deepcopy(one).to(torch.bfloat16)
        given = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs]
        loss = made.loss(half, case["kind"], given)
        loss.backward()
        for p, q in zip(one.parameters(), half.parameters(), strict=True):
            p.grad = q.grad.float()
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=rule == "mixed"):
            loss = made.loss(one, case["kind"], inputs)
        loss.backward()
    if case["clip"]:
        torch.nn.utils.clip_grad_norm_(one.parameters(), case["clip"])
    optimizer.step()
    return float(loss.detach())


def look(plan, made, case):
    one, inputs = made.net(case["kind"])
    many, _ = made.net(case["kind"])
    before = {name: p.detach().clone() for name, p in one.named_parameters()}
    mesh = plan.make_mesh("cpu")
    many = plan.parallelize(many, mesh)
    found = {"types": {}, "calls": Counter(), "losses": [], "kept": 0}

    def typed(name):
        def hook(module, given, result):
            if isinstance(result, torch.Tensor):
                found["types"].setdefault(name, str(result.dtype).removeprefix("torch."))
            found["calls"][name] += 1

        return hook

    for name, part in many.module.named_modules():
        if next(part.parameters(recurse=False), None) is not None:
            part.register_forward_hook(typed(name))
    steps = plan.make_optimizer(many, mesh)
    own = steps.optimizer
    found["optimizer"] = type(own).__name__
    found["numbers"] = {k: v for k, v in own.param_groups[0].items() if k in case["numbers"]}
    found["stored"] = sorted({str(p.dtype).removeprefix("torch.") for p in many.module.parameters()})
    reference = getattr(torch.optim, case["optimizer"])(one.parameters(), **case["numbers"])

    def pack(x):
        found["kept"] += (x.to_local() if isinstance(x, DTensor) else x).nbytes
        return x

    target = made.target(case["kind"])
    for s in range(STEPS):
        given = {} if target is None else {"target": target}
        with Kernels() as seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = plan.train_step(many, steps, *inputs, **given)
        if not s:
            found["kernels"], found["first"] = dict(seen.found), dict(found["calls"])
            found["kept_once"] = found["kept"]
        found["losses"].append([alone(made, one, reference, inputs, case), float(loss)])
    kept = [v for state in own.state.values() for v in state.values() if isinstance(v, torch.Tensor) and v.ndim]
    found["moments"] = sorted({str(v.dtype).removeprefix("torch.") for v in kept})
    a = torch.cat([(p.detach() - before[n]).flatten() for n, p in one.named_parameters()]).double()
    mine = dict(many.module.named_parameters())
    b = torch.cat([(mine[n].detach().full_tensor() - before[n]).flatten() for n in before]).double()
    found["moved"] = float(a.norm())
    found["apart"] = float((a - b).norm() / a.norm())
    found["whole"] = dict(many.functions.whole)
    found["cut"] = any("Shard" in str(p.placements) for p in many.module.parameters())
    return found


def rank(number, ranks, model, cases, store):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    made = load(model, "model_of_the_job")
    for i, case in enumerate(cases):
        try:
            found = look(load(case["file"], f"exported_{i}"), made, case)
        except Exception as error:  # noqa: BLE001
            found = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-3000:]}
        if number == 0:
            print(json.dumps({"case": i, **found}), flush=True)
        if "error" in found:
            dist.destroy_process_group()
            sys.exit(1)
    dist.barrier()
    dist.destroy_process_group()


def main():
    model, ranks, cases = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with open(cases) as f:
        given = json.load(f)
    with tempfile.TemporaryDirectory() as store:
        mp.start_processes(rank, (int(ranks), model, given, f"{store}/s"), nprocs=int(ranks), start_method="fork")


if __name__ == "__main__":
    main()
