"""A job that torch runs alone: what exported files compute, looked at from outside, against one process.

python program_job.py MODEL.py RANKS CASE.py ..     one JSON object per file, printed by rank 0

A whole job for all files: ranks and process group are started once.  Nothing here reads what a file says of itself but
its functions: types come from hooks on modules, calls from counters, kept bytes from hooks on saved tensors, kernels
from a dispatch mode.
"""

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


def look(plan, made, target_of):
    torch.manual_seed(0)
    one, inputs = made.net()
    torch.manual_seed(0)
    many, _ = made.net()
    draw = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(x.shape, generator=draw) if x.is_floating_point() else torch.randint(0, 7, x.shape, generator=draw)
        for x in inputs
    ]
    if hasattr(made, "LABELS"):
        inputs[made.LABELS][0, : made.IGNORED] = -100
    mesh = plan.make_mesh("cpu")
    many = plan.parallelize(many, mesh)
    found = {"types": {}, "calls": Counter(), "losses": [], "kept": 0, "weights": 0.0, "logits": 0}

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
    found["numbers"] = {k: v for k, v in own.param_groups[0].items() if k in made.NUMBERS}
    found["stored"] = sorted({str(p.dtype).removeprefix("torch.") for p in many.module.parameters()})
    reference = type(own)(one.parameters(), **found["numbers"])

    def pack(x):
        local = x.to_local() if isinstance(x, DTensor) else x
        found["kept"] += local.nbytes
        found["logits"] = max(found["logits"], local.numel() if local.shape[-1:] and local.is_floating_point() else 0)
        return x

    target = target_of(inputs)
    for s in range(STEPS):
        given = {} if target is None else {"target": target}
        with Kernels() as seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = plan.train_step(many, steps, *inputs, **given)
        if not s:
            found["kernels"] = dict(seen.found)
            found["first"] = dict(found["calls"])
            found["kept_once"] = found["kept"]
        reference.zero_grad()
        alone = made.loss(one, inputs)
        alone.backward()
        if made.CLIP.get(os.path.basename(plan.__file__)):
            torch.nn.utils.clip_grad_norm_(one.parameters(), made.CLIP[os.path.basename(plan.__file__)])
        reference.step()
        found["losses"].append([float(alone.detach()), float(loss)])
    states = [v for state in own.state.values() for k, v in state.items() if isinstance(v, torch.Tensor) and v.ndim]
    found["moments"] = sorted({str(v.dtype).removeprefix("torch.") for v in states})
    alone = dict(one.named_parameters())
    for name, p in many.module.named_parameters():
        difference = float((p.detach().full_tensor() - alone[name].detach()).abs().max())
        found["weights"] = max(found["weights"], difference)
    found["whole"] = dict(many.functions.whole)
    found["cut"] = any("Shard" in str(p.placements) for p in many.module.parameters())
    return found


def rank(number, ranks, model, files, store):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    made = load(model, "model_of_the_job")
    for i, path in enumerate(files):
        try:
            found = look(load(path, f"exported_{i}"), made, made.target)
        except Exception as error:  # noqa: BLE001
            found = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-3000:]}
        if number == 0:
            print(json.dumps({"file": os.path.basename(path), **found}), flush=True)
        if "error" in found:
            dist.destroy_process_group()
            sys.exit(1)
    dist.barrier()
    dist.destroy_process_group()


def main():
    model, ranks, *files = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as store:
        mp.start_processes(rank, (int(ranks), model, files, f"{store}/s"), nprocs=int(ranks), start_method="fork")


if __name__ == "__main__":
    main()
