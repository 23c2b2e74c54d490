"""Training steps of plans beside PyTorch eager and DistributedDataParallel over gloo: seconds and processor seconds of a
step, computed by NumPy and by PyTorch (`run --backend`).

    python tests/benchmarks/eager_steps.py [--rounds 5] [--steps 8] [--ranks 1,2,4] [--model NAME ..] [--page FILE]

float32, one thread per rank, the same environment of the allocator for all (`launch.environment`), the same batch in every
step; SGD.  Every round starts eager (on several ranks: DDP), NumPy and PyTorch as jobs of their own, one after another; a
job does three steps first and then times `--steps`; a step is as long as on its slowest rank.  Rows: medians over the
rounds of a job's median step; ratios: medians of the ratios within a round, so that a slow moment of the computer hits
both.  Losses of the last step must agree to 1e-3 on one rank (all begin with the same parameters).

    layer      a layer of GPT-2: 2 x 256 tokens, width 768, 12 heads, causal attention, GELU
    block      a bottleneck of ResNet-50: 8 x 256 x 28 x 28, batch norm over the batch of all ranks (DDP: of each)
    mlp        four products 1024 wide with ReLU, batch 512

The plan on several ranks splits the batch in every operator that has it, as DDP does.  No plan has batch norms of each
rank: a plan computes what one process computes.  So a block on several ranks has one more peer with the same meaning,
`synchronised`: DDP whose batch norms are over the batch of all ranks.  PyTorch's `SyncBatchNorm` refuses CPUs; this
one adds up two sums of every norm, forward and backward, in one all-reduce of gloo each, between PyTorch's own kernels.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import click

WARM = 3
MODELS = ("layer", "block", "mlp")
WHO = ("eager", "synchronised", "numpy", "torch")


def module_of(name: str):
    """(module that returns its loss, shape of the batch)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Layer(nn.Module):
        def __init__(self, width: int = 768, heads: int = 12) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, n, w = x.shape
            q, k, v = (
                t.reshape(b, n, self.heads, w // self.heads).transpose(1, 2)
                for t in self.qkv(self.norm1(x)).chunk(3, -1)
            )
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(b, n, w))
            x = x + self.down(F.gelu(self.up(self.norm2(x))))
            return (x * x).mean()

    class Block(nn.Module):
        def __init__(self, channels: int = 256, inside: int = 64) -> None:
            super().__init__()
            self.c1, self.b1 = nn.Conv2d(channels, inside, 1, bias=False), nn.BatchNorm2d(inside)
            self.c2, self.b2 = nn.Conv2d(inside, inside, 3, padding=1, bias=False), nn.BatchNorm2d(inside)
            self.c3, self.b3 = nn.Conv2d(inside, channels, 1, bias=False), nn.BatchNorm2d(channels)

        def forward(self, x):
            y = F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
            y = F.relu(x + self.b3(self.c3(y)))
            return (y * y).mean()

    class Mlp(nn.Module):
        def __init__(self, width: int = 1024) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = F.relu(layer(x))
            return (x * x).mean()

    torch.manual_seed(0)
    return {
        "layer": lambda: (Layer(), (2, 256, 768)),
        "block": lambda: (Block(), (8, 256, 28, 28)),
        "mlp": lambda: (Mlp(), (512, 1024)),
    }[name]()


def synchronised(module):
    """The module with batch norms over the batch of all ranks."""
    import torch
    import torch.distributed as dist
    from torch import nn

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight, bias, epsilon):
            count = x.numel() // x.shape[1] * dist.get_world_size()
            sums = torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))])
            dist.all_reduce(sums)
            mean = sums[0] / count
            variance = sums[1] / count - mean * mean
            context.save_for_backward(x, weight, mean, torch.rsqrt(variance + epsilon))
            context.count = count
            return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, epsilon)[0]

        @staticmethod
        def backward(context, gradient):
            x, weight, mean, inverse = context.saved_tensors
            centred = x - mean[:, None, None]
            own = torch.stack([gradient.sum((0, 2, 3)), (gradient * centred).sum((0, 2, 3)) * inverse])
            sums = own.clone()
            dist.all_reduce(sums)
            means = sums / context.count
            centred.mul_((means[1] * inverse)[:, None, None]).add_(means[0][:, None, None])
            of_x = (gradient - centred).mul_((weight * inverse)[:, None, None])
            return of_x, own[1], own[0], None

    class Synchronised(nn.BatchNorm2d):
        def forward(self, x):
            return Norm.apply(x, self.weight, self.bias, self.eps)

    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d):
            child.__class__ = Synchronised
    return module


def shape_on(name: str, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """A batch that the ranks can share: the layer has four sequences on four ranks."""
    return (max(shape[0], ranks), *shape[1:])


# --- one rank of each -------------------------------------------------------------------------------------------------


def ours(folder: Path, backend: str, steps: int) -> None:
    """Started by mpiexec: the ranks of `train_rank`, without states and lines."""
    import numpy as np
    from mpi4py import MPI

    from shardproof.backends.execution.held import RankBlocks
    from shardproof.backends.execution.job import Options
    from shardproof.backends.execution.repeatable import repeatable
    from shardproof.backends.execution.run import slices
    from shardproof.backends.execution.training_run import base_of, begin
    from shardproof.front_door import FrontDoor

    world = MPI.COMM_WORLD
    found = FrontDoor().open(folder / "plan.spz")
    begun = begin(found, "plan.spz", numbers="float32", inputs=folder / "values.npz")
    runs = repeatable(found.held, found.scale, Options(backend=backend))
    step, _ = runs.over_mpi(world, np.zeros((world.Get_size(), 3), dtype=np.int64))
    held, data = RankBlocks(slices(base_of(begun))), begun.feed.at(1)
    walls, cpus, blocks = [], [], {}
    for number in range(1, WARM + steps + 1):
        world.Barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        blocks = step(number, held.source(data), held)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    everyone = world.gather({k: v for k, v in blocks.items() if k[0] == begun.loss}, 0)
    loss = 0.0 if everyone is None else float(runs.whole([begun.loss], begun.state, everyone)[begun.loss])
    finish(folder, backend, world.gather(walls, 0), world.gather(cpus, 0), loss, world.Get_rank())


def eager(folder: Path, who: str, name: str, steps: int) -> None:
    """Started once per rank; on several, DDP over gloo, with batch norms of each rank or over the batch of all."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    module, shape = module_of(name)
    batch = torch.from_numpy(np.load(folder / "values.npz")["x"].reshape(shape_on(name, shape, ranks)))
    if ranks > 1:
        dist.init_process_group("gloo")
        module = synchronised(module) if who == "synchronised" else module
        module, batch = DistributedDataParallel(module), batch.chunk(ranks)[rank].contiguous()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    walls, cpus, loss = [], [], None
    for _ in range(WARM + steps):
        if ranks > 1:
            dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = module(batch)
        loss.backward()
        optimizer.step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    everyone = [(walls, cpus)]
    if ranks > 1:
        everyone = [None] * ranks
        dist.all_gather_object(everyone, (walls, cpus))
    finish(folder, who, [w for w, _ in everyone], [c for _, c in everyone], float(loss.detach()), rank)
    if ranks > 1:
        dist.barrier()
    os._exit(0)  # threads of gloo end a process that ends before them with a signal


def finish(folder: Path, who: str, walls, cpus, loss: float, rank: int) -> None:
    if rank == 0:
        slowest = [max(s) for s in zip(*walls)][WARM:]
        together = [sum(s) for s in zip(*cpus)][WARM:]
        told = {"seconds": median(slowest), "processor": median(together), "loss": loss}
        (folder / f"{who}.json").write_text(json.dumps(told))


# --- the table --------------------------------------------------------------------------------------------------------


def prepare(folder: Path, name: str, ranks: int) -> str:
    """Writes the plan and the values that all begin with; what the plan moves, in words."""
    import numpy as np
    import torch

    import shardproof
    from shardproof.backends.execution.job import Options, build_program
    from shardproof.backends.lowering.collectives import count

    module, shape = module_of(name)
    x = torch.randn(shape_on(name, shape, ranks))
    found = shardproof.plan(module, f"localhost:{ranks}", inputs=(x,), train="sgd", compare=False)
    if ranks > 1:  # the batch, carried from the first operator to the rest
        first, level = found.graph.operators[0], found.machine.levels[0].name
        split = {first.name: {first.output.axes[0]: {level: ranks}}}
        found = shardproof.plan(module, f"localhost:{ranks}", inputs=(x,), train="sgd", compare=False, strategy=split)
    found.save(folder / "plan.spz")
    values = {n: p.detach().numpy() for n, p in module.named_parameters()} | {"x": x.numpy()}
    graph = found.opened.user_graph
    np.savez(folder / "values.npz", **{n: v.reshape(graph.tensor(n).shape) for n, v in values.items()})
    held = found.opened.held
    calls = count(build_program(held.graph, held.machine.hierarchy, held.choices, Options()))
    return ", ".join(f"{n} {what}" for what, n in calls.items()) or "nothing"


def start_eager(folder: Path, who: str, name: str, ranks: int, steps: int) -> None:
    from shardproof.backends.execution.launch import environment

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    base = {**environment(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    jobs = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", who, str(folder), name, str(steps)], env={**base, "RANK": str(r)}
        )
        for r in range(ranks)
    ]
    try:
        for job in jobs:
            if job.wait(300):
                raise click.ClickException("a rank of eager failed")
    finally:
        for job in jobs:
            if job.poll() is None:
                job.kill()


def job(folder: Path, who: str, name: str, ranks: int, steps: int) -> dict[str, float]:
    """Medians of one job."""
    from shardproof.backends.execution.launch import launch

    if who in ("eager", "synchronised"):
        start_eager(folder, who, name, ranks, steps)
    else:
        launch([__file__, "rank", who, str(folder), name, str(steps)], ranks, 300)
    return json.loads((folder / f"{who}.json").read_text())


def row(name: str, ranks: int, rounds: int, steps: int) -> str:
    """A row of the table."""
    everyone = [who for who in WHO if who != "synchronised" or (name == "block" and ranks > 1)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        moved = prepare(folder, name, ranks)
        found: dict[str, list[dict[str, float]]] = {who: [] for who in everyone}
        for _ in range(rounds):
            for who in everyone:
                found[who].append(job(folder, who, name, ranks, steps))
    losses = [found[who][0]["loss"] for who in everyone]
    if ranks == 1 and max(losses) - min(losses) > 1e-3 * abs(losses[0]):
        raise click.ClickException(f"{name}: losses differ: {losses}")
    cells = [name, str(ranks), moved]
    cells += [f"{1e3 * median(f['seconds'] for f in found[who]):.1f}" if who in found else "-" for who in WHO]
    for key in ("seconds", "processor"):
        for peer in ("eager", "synchronised"):
            for who in ("numpy", "torch"):
                pairs = [mine[key] / other[key] for mine, other in zip(found[who], found.get(peer, ()))]
                cells.append(f"{median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})" if pairs else "-")
    return "| " + " | ".join(cells) + " |"


_RATIOS = [f"{ours} / {peer}" for peer in ("eager", "synchronised") for ours in ("NumPy", "PyTorch")]
_COLUMNS = (
    *("model", "ranks", "collectives of a step", "eager ms", "synchronised ms", "NumPy ms", "PyTorch ms"),
    *_RATIOS,
    *(f"processor s, {r}" for r in _RATIOS),
)
HEAD = "| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|"


@click.group(invoke_without_command=True)
@click.option("--rounds", default=5, help="How often all take turns.")
@click.option("--steps", default=8, help="Timed steps of a job.")
@click.option("--ranks", default="1,2,4", help="Numbers of ranks.")
@click.option("--model", "only", multiple=True, type=click.Choice(MODELS), help="Leave the others out.")
@click.option("--page", type=click.Path(path_type=Path), help="Write the page here.")
@click.pass_context
def main(context: click.Context, rounds: int, steps: int, ranks: str, only: tuple[str, ...], page: Path | None) -> None:
    """Print the table."""
    if context.invoked_subcommand is not None:
        return
    from shardproof.backends.execution.launch import mpi_available

    if find_spec("torch") is None or not mpi_available():
        print("needs torch and MPI: pip install 'shardproof[torch,mpi]'")
        return
    import numpy as np
    import torch

    begun = os.getloadavg()[0]
    asked = " ".join(["--ranks", ranks, *(f"--model {m}" for m in only)])
    command = f"python tests/benchmarks/eager_steps.py --rounds {rounds} --steps {steps} {asked}"
    words = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
    lines = [HEAD]
    print(HEAD)
    for n in map(int, ranks.split(",")):
        for name in only or MODELS:
            lines.append(row(name, n, rounds, steps))
            print(lines[-1], flush=True)
            where = (
                f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {os.cpu_count()} cores, load {begun:.1f} at the beginning "
                f"and {os.getloadavg()[0]:.1f} at the end; torch {torch.__version__}, NumPy {np.__version__}; "
                f"{rounds} rounds, {steps} timed steps each."
            )
            if page is not None:
                title = "# Training steps beside PyTorch eager and DDP"
                parts = [title, f"`{command} --page FILE`", words, "\n".join(lines), where]
                page.write_text("\n\n".join(parts) + "\n")
    print(where)


def processor() -> str:
    """Its name, where the system says it."""
    file = Path("/proc/cpuinfo")
    names = file.read_text().splitlines() if file.exists() else []
    return next((n.partition(": ")[2] for n in names if n.startswith("model name")), platform.machine())


@main.command()
@click.argument("who")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name")
@click.argument("steps", type=int)
def rank(who: str, folder: Path, name: str, steps: int) -> None:
    """One rank."""
    if who in ("eager", "synchronised"):
        eager(folder, who, name, steps)
    else:
        ours(folder, who, steps)


if __name__ == "__main__":
    main()
