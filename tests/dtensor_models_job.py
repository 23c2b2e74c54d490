"""A job that torch runs alone: exported files of many models against one process, in ranks forked from one import.

python dtensor_models_job.py FOLDER MODELS.py RANKS NAME ..     FOLDER/NAME.py are exported files; one JSON object per model
"""

import importlib.util
import json
import os
import sys
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Collectives(TorchDispatchMode):
    """Counts collectives by name; `CommDebugMode` fails on plain ViT and ResNet, of which module names come twice."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t is DTensor for t in types):
            return NotImplemented
        if func.namespace == "_c10d_functional" and "wait" not in str(func):
            name = str(func).split(".")[1]
            self.seen[name] = self.seen.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def call(module, inputs):
    """The first tensor of what a module returns."""
    out = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    while not isinstance(out, torch.Tensor):
        out = next(iter(out.values() if isinstance(out, dict) else out))
    return out


def drawn(x):
    return torch.randn_like(x) if x.is_floating_point() else torch.randint(0, 30, x.shape)


def compare(plan, factory, planned_steps):
    """Largest differences of loss, gradients and weights after a step of Adam, relative to the largest element."""
    torch.manual_seed(0)
    one, inputs = factory()
    torch.manual_seed(0)
    many, _ = factory()
    many.load_state_dict(one.state_dict())
    kind = dict if isinstance(inputs, dict) else tuple
    inputs = kind((k, drawn(v)) for k, v in inputs.items()) if kind is dict else tuple(drawn(x) for x in inputs)
    mesh = plan.make_mesh("cpu")
    many = plan.parallelize(many, mesh)
    options = {"lr": 1e-2, "eps": 1e-3}
    steps_one = torch.optim.Adam(one.parameters(), **options)
    if planned_steps:
        steps_many = plan.make_optimizer(many, mesh, torch.optim.Adam, **options)
    else:
        steps_many = torch.optim.Adam(many.parameters(), **options)
    a = call(one, inputs)
    target = torch.randn_like(a)
    a = (a - target).square().mean()
    a.backward()
    with Collectives() as counted:
        b = (call(many, inputs) - target).square().mean()
        b.backward()
    alone, split = dict(one.named_parameters()), dict(many.named_parameters())
    found = {"loss": abs(float(a.detach()) - float(b.detach())) / max(1.0, abs(float(a.detach()))), "gradient": 0.0}
    largest = max(float(p.grad.abs().max()) for p in alone.values() if p.grad is not None)
    if set(alone) != set(split):
        raise AssertionError(f"other names: {sorted(set(alone) ^ set(split))[:4]}")
    for name, p in split.items():
        if alone[name].grad is None:
            continue
        own = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        difference = float((own - alone[name].grad).abs().max()) / largest
        if difference > found["gradient"]:
            found["gradient"], found["worst"] = difference, name
    steps_one.step()
    steps_many.step()
    found["weights"] = max(
        float((p.detach().full_tensor() - alone[name].detach()).abs().max()) for name, p in split.items()
    )
    found["collectives"] = counted.seen
    found["cut"] = sum("Shard" in str(p.placements) for p in split.values())
    found["parameters"] = len(split)
    found["whole"] = dict(many.functions.whole)
    return found


def rank(number, ranks, folder, models, names, store, planned_steps):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=ranks, init_method=f"file://{store}")
    made = load(models, "models_of_the_job")
    for name in names:
        try:
            found = compare(load(f"{folder}/{name}.py", f"exported_{name}"), getattr(made, name), planned_steps)
        except (
            ArithmeticError,
            AssertionError,
            LookupError,
            NotImplementedError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # the job reports it and goes on with the next model: all ranks fail alike
            if os.environ.get("TRACE"):
                traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:600]}
        if number == 0:
            print(json.dumps({"model": name, **found}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder, models, ranks, *names = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    planned_steps = os.environ.get("STEPS", "planned") == "planned"
    with tempfile.TemporaryDirectory() as store:
        mp.start_processes(
            rank,
            (int(ranks), folder, models, names, f"{store}/s", planned_steps),
            nprocs=int(ranks),
            start_method="fork",
        )


if __name__ == "__main__":
    main()
