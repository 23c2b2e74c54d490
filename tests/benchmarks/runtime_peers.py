"""The same programs, the same schedules, beside torch DTensor (gloo) and JAX (host devices): steps per second and
number of collectives.

    python tests/benchmarks/runtime_peers.py [--steps 20] [--size 2048] [--jax-python /path/to/python]

Two ranks, one thread each, tensors of 16 MB (float32, 2048 x 2048).  A step is timed on every rank between barriers;
the slowest rank counts; the table shows the median of 20 steps, ours and theirs in turns so that a slow moment of the
computer hits both.  Collectives: ours from the program (`backends.lowering.collectives`), DTensor's from CommDebugMode,
JAX's from the compiled HLO on 8 host devices, intermediate values pinned.

    mlp            relu(x w1) w2, w1 split by columns, w2 by rows, the result whole everywhere         (Megatron)
    matmul k       x w, the summed axis split, the result whole everywhere
    data parallel  relu(x w1) w2, rows of x split, the result stays split                             (nothing to send)
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import click

PROGRAMS = ("mlp", "matmul k", "data parallel")


def graph_of(name: str, size: int):
    from shardproof.models.sources.building.builder import Builder

    g = Builder(name, "float32")
    x, w = g.input("x", (size, size)), g.parameter("w1", (size, size))
    if name == "matmul k":
        return g.build(g.contract("y", "b k, k n -> b n", x, w))
    h = g.map("h", "relu", g.contract("a", "b k, k n -> b n", x, w), text="b n -> b n")
    return g.build(g.contract("y", "b n, n m -> b m", h, g.parameter("w2", (size, size))))


SPLITS = {  # operator, or tensor: + copy -> axis to split, per level of the machine
    "mlp": {"a": "n", "h": "n", "y": "n"},
    "matmul k": {"y": "k"},
    "data parallel": {"a": "b", "h": "b", "y": "b", "tensor:y": "0"},
}


def program_of(name: str, size: int, hierarchy: tuple[int, ...], level: int = 0):
    """Our program; other levels split the rows."""
    from shardproof.backends.execution.job import Options, build_program
    from shardproof.models.communication.choices import Choices, needs_copy
    from shardproof.models.layout.classes import axis_orders
    from shardproof.models.layout.placement import Placement

    graph, orders = graph_of(name, size), None
    orders = axis_orders(graph)

    def placed(key: str) -> Placement:
        axes = orders[key]
        rows = [[1] * len(hierarchy) for _ in (*axes, "replicated")]
        for j, n in enumerate(hierarchy):
            axis = SPLITS[name].get(key) if j == level else {"tensor:y": "0"}.get(key, "b")
            rows[axes.index(axis) if axis in axes else len(axes)][j] = n
        return Placement(axes, tuple(map(tuple, rows)))

    choices = Choices(
        tuple((op.name, placed(op.name)) for op in graph.operators),
        tuple((t.name, placed(f"tensor:{t.name}")) for t in graph.tensors if t.name in needs_copy(graph)),
    )
    return build_program(graph, hierarchy, choices, Options())


def arrays(name: str, size: int):
    import numpy as np

    rng = np.random.default_rng(0)
    names = ("x", "w1") if name == "matmul k" else ("x", "w1", "w2")
    return {n: rng.standard_normal((size, size), dtype=np.float32) / (1 if n == "x" else size**0.5) for n in names}


# --- one rank of each -------------------------------------------------------------------------------------------------


def ours(folder: Path, name: str, size: int, steps: int) -> None:
    """Started by mpiexec."""
    import numpy as np
    from mpi4py import MPI

    from shardproof.backends.execution.interpreter import run_rank
    from shardproof.backends.execution.run import slices
    from shardproof.backends.transport.mpi import MpiTransport

    world = MPI.COMM_WORLD
    program, transport = program_of(name, size, (2,)), MpiTransport(world)
    whole, kept = slices(arrays(name, size)), {}

    def source(tensor, box):
        if (tensor, box) not in kept:
            kept[tensor, box] = np.ascontiguousarray(whole(tensor, box))  # a rank holds its block, as a DTensor does
        return kept[tensor, box]

    seconds = []
    out = None
    for _ in range(steps + 2):
        world.Barrier()
        start = time.perf_counter()
        out = run_rank(program, world.Get_rank(), transport, source, np)
        seconds.append(time.perf_counter() - start)
    finish(
        folder, "ours", world.gather(seconds[2:], 0), float(np.abs(out["y"]).sum()) if out else 0.0, world.Get_rank()
    )


def dtensor(folder: Path, name: str, size: int, steps: int) -> None:
    """Started once per rank, gloo."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    layout = {
        "mlp": (Replicate(), Shard(1), Shard(0), Replicate()),
        "matmul k": (Shard(1), Shard(0), None, Replicate()),
        "data parallel": (Shard(0), Replicate(), Replicate(), Shard(0)),
    }[name]
    given = [distribute_tensor(torch.from_numpy(a), mesh, [p]) for a, p in zip(arrays(name, size).values(), layout)]

    def step():
        if name == "matmul k":
            y = given[0] @ given[1]
        else:
            y = torch.relu(given[0] @ given[1]) @ given[2]
        return y.redistribute(mesh, [layout[3]]).to_local()

    with torch.no_grad():
        with CommDebugMode() as comm:
            y = step()
            wait(y)
        seconds = []
        for _ in range(steps + 1):
            dist.barrier()
            start = time.perf_counter()
            y = step()
            wait(y)
            seconds.append(time.perf_counter() - start)
    everyone = [None, None]
    dist.all_gather_object(everyone, seconds[1:])
    finish(folder, "dtensor", everyone, float(y.abs().sum()), dist.get_rank(), sum(comm.get_comm_counts().values()))
    dist.destroy_process_group()


def wait(y) -> None:
    """Results of functional collectives are ready when they are looked at."""
    getattr(y, "wait", lambda: None)()
    y[0, 0].item()


def finish(folder: Path, who: str, seconds, checksum: float, rank: int, collectives: int = -1) -> None:
    if rank == 0:
        slowest = [max(s) for s in zip(*seconds)]
        (folder / f"{who}.json").write_text(
            json.dumps({"seconds": slowest, "checksum": checksum, "collectives": collectives})
        )


JAX = """
import json, os, re, sys, time
name, size, steps, devices = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
grid = np.array(jax.devices()).reshape((devices // 4, 4) if devices == 8 else (1, devices))
mesh = Mesh(grid, ("dp", "tp"))
spec = {
    "mlp": (P("dp", None), P(None, "tp"), P("tp", None), P("dp", "tp"), P("dp", None)),
    "matmul k": (P("dp", "tp"), P("tp", None), None, None, P("dp", None)),
    "data parallel": (P(("dp", "tp"), None), P(None, None), P(None, None), P(("dp", "tp"), None), P(("dp", "tp"), None)),
}[name]
on = lambda s: NamedSharding(mesh, s)
rng = np.random.default_rng(0)
given = [jax.device_put(rng.standard_normal((size, size), dtype=np.float32) / (1 if k == 0 else size ** 0.5), on(s)) for k, s in enumerate(spec[:3]) if s is not None]
def f(*a):
    y = a[0] @ a[1]
    if len(a) == 3:
        y = jax.lax.with_sharding_constraint(jax.nn.relu(y), on(spec[3])) @ a[2]
    return y
g = jax.jit(f, out_shardings=on(spec[4])).lower(*given).compile()
found = re.findall(r"= .*? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\\(", g.as_text())
seconds = []
for _ in range(steps + 2):
    start = time.perf_counter(); y = g(*given); y.block_until_ready(); seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": seconds[2:], "checksum": float(jnp.abs(y).sum()), "collectives": len(found)}))
"""


# --- the table --------------------------------------------------------------------------------------------------------


def start_dtensor(folder: Path, name: str, size: int, steps: int) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    base = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", "dtensor", str(folder), name, str(size), str(steps)],
            env={**base, "RANK": str(r)},
        )
        for r in range(2)
    ]
    try:
        for r in ranks:
            if r.wait(240):
                raise click.ClickException("DTensor's ranks failed")
    finally:
        for r in ranks:
            if r.poll() is None:
                r.kill()


@click.group(invoke_without_command=True)
@click.option("--steps", default=20)
@click.option("--size", default=2048)
@click.option("--rounds", default=2, help="How often ours and theirs take turns.")
@click.option("--program", "only", multiple=True, type=click.Choice(PROGRAMS), help="Leave the others out.")
@click.option("--jax-python", help="A python with jax; without it JAX is left out.")
@click.pass_context
def main(
    context: click.Context, steps: int, size: int, rounds: int, only: tuple[str, ...], jax_python: str | None
) -> None:
    """Print the table."""
    if context.invoked_subcommand is not None:
        return
    from shardproof.backends.execution.launch import launch, mpi_available
    from shardproof.backends.lowering.collectives import count

    pinned = os.environ.pop(
        "OPENBLAS_CORETYPE", None
    )  # peers bring libraries of their own: every one chooses the kernels for this processor
    if pinned:
        print(f"OPENBLAS_CORETYPE={pinned} is left out")
    if find_spec("torch") is None or not mpi_available():
        print("needs torch and MPI: pip install 'shardproof[torch,mpi]'")
        return
    print(
        f"2 ranks, one thread each, float32 {size} x {size} ({size * size * 4 / 1e6:.1f} MB), median of "
        f"{steps * rounds} steps"
    )
    print(
        f"{'program':<14} {'ours ms':>8} {'DTensor ms':>11} {'ratio':>6} {'JAX ms':>8}   collectives: ours "
        f"DTensor JAX(8: ours)"
    )
    for name in only or PROGRAMS:
        times: dict[str, list[float]] = {"ours": [], "dtensor": [], "jax": []}
        told: dict[str, dict] = {}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                launch([__file__, "rank", "ours", temporary, name, str(size), str(steps)], 2, 240)
                start_dtensor(folder, name, size, steps)
                for who in ("ours", "dtensor"):
                    told[who] = json.loads((folder / f"{who}.json").read_text())
            if jax_python:
                for devices in (2, 8):
                    shape = [name, str(size), str(steps), "2"] if devices == 2 else [name, "256", "1", "8"]
                    done = subprocess.run(
                        [jax_python, "-c", JAX, *shape], capture_output=True, text=True, timeout=240, check=True
                    )
                    told[f"jax{devices}"] = json.loads(done.stdout)
                times["jax"] += told["jax2"]["seconds"]
            for who in ("ours", "dtensor"):
                times[who] += told[who]["seconds"]
        sums = {who: t["checksum"] for who, t in told.items() if who != "jax8"}
        if (
            max(sums.values()) > 1.001 * min(sums.values()) and name != "data parallel"
        ):  # there every rank holds another half
            raise click.ClickException(f"{name}: results differ: {sums}")
        here = {who: 1e3 * median(t) for who, t in times.items() if t}
        mine = sum(count(program_of(name, size, (2,))).values())
        eight = sum(count(program_of(name, 256, (2, 4), 1)).values())
        jax_text = f"{here['jax']:>8.1f}" if "jax" in here else f"{'-':>8}"
        hlo = f"{told['jax8']['collectives']} ({eight})" if jax_python else f"- ({eight})"
        print(
            f"{name:<14} {here['ours']:>8.1f} {here['dtensor']:>11.1f} {here['ours'] / here['dtensor']:>6.2f} "
            f"{jax_text}   {mine:>17} {told['dtensor']['collectives']:>7} {hlo}"
        )


@main.command()
@click.argument("who")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name")
@click.argument("size", type=int)
@click.argument("steps", type=int)
def rank(who: str, folder: Path, name: str, size: int, steps: int) -> None:
    """One rank."""
    {"ours": ours, "dtensor": dtensor}[who](folder, name, size, steps)


if __name__ == "__main__":
    main()
