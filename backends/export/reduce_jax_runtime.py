"""Runs proved reduction programs with shard_map; it is copied into exported files.

    mesh    copies of the reduction group, then the levels of its tree; DEVICES are in that order
    step    (collective, names of the mesh axes that it is over, order of the rows afterwards)

An array has one row per device, in the order of the mesh; `psum_scatter` and `all_gather` cut and join it by rows of
equal size, padded with zeros where it does not divide.  Rows that a gather leaves out of order are put back.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

Program = tuple[
    int,
    tuple[int, ...],
    tuple[tuple[str, int], ...],
    tuple[tuple[int, ...], ...],
    tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...],
]
"""Chunks, devices, mesh axes with sizes, positions that sum with one another, steps."""


def mesh_of(program: Program) -> Mesh:
    """The mesh of the devices, as the plan numbers them."""
    _, devices, axes, _, _ = program
    have = jax.devices()
    if len(have) < len(devices):
        raise ValueError(f"the program is for {len(devices)} devices, jax has {len(have)}")
    order = np.array([have[d] for d in devices], dtype=object)
    return Mesh(order.reshape([size for _, size in axes]), [name for name, _ in axes])


def reduction(program: Program) -> object:
    """A function from an array with one row per device, in the order of the mesh, to the same with every row the sum
    over its reduction group.
    """
    chunks, devices, axes, _, steps = program
    mesh, names = mesh_of(program), tuple(name for name, _ in axes)

    def on_device(x):  # type: ignore[no-untyped-def]
        flat = x.reshape(-1)
        width = -(-flat.size // chunks) or 1
        data = jnp.pad(flat, (0, chunks * width - flat.size)).reshape(chunks, width)
        for collective, over, order in steps:
            if collective == "AllReduce":
                data = lax.psum(data, over)
            elif collective == "ReduceScatter":
                data = lax.psum_scatter(data, over, scatter_dimension=0, tiled=True)
            elif collective == "AllGather":
                data = lax.all_gather(data, over, axis=0, tiled=True)
            else:
                raise ValueError(f"there is no collective {collective!r}")
            if order:
                data = data[jnp.asarray(order)]
        return data.reshape(-1)[: flat.size].reshape(x.shape)

    spec = PartitionSpec(names)
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    def reduce(x):  # type: ignore[no-untyped-def]
        if x.shape[0] != len(devices):
            raise ValueError(f"the first axis must have {len(devices)} rows, one per device, not {x.shape[0]}")
        return mapped(x)

    return jax.jit(reduce)


def compare(programs: dict[str, Program], numbers: int = 1000) -> int:
    """Run every program on drawn integers, and compare with the sum: 0 where all are equal."""
    wrong = 0
    for name, program in programs.items():
        x = np.random.default_rng(0).integers(-(1 << 20), 1 << 20, (len(program[1]), numbers), dtype=np.int32)
        wanted = np.empty_like(x)
        for part in program[3]:
            wanted[list(part)] = x[list(part)].sum(0)
        equal = bool((np.asarray(reduction(program)(x)) == wanted).all())  # type: ignore[operator]
        print(f"{name}: {'equal to the sum' if equal else 'DIFFERENT'}", flush=True)
        wrong += not equal
    return int(wrong > 0)


def main(programs: dict[str, Program]) -> None:
    """What the file does when it is run."""
    sys.exit(compare(programs))
