"""Writes the device order of a placement as a mesh of PyTorch or JAX: one mesh dimension per parallelism axis.

    mesh[i_0, .., i_m] = the device whose digits of axis k, outermost level first, spell i_k

so that the devices along dimension k are a reduction group of axis k, and a group of several axes is a sub-mesh.
"""

from __future__ import annotations

import pprint
from math import prod
from typing import Final, Literal

from ...models.collective_programs.parallelism import Matrix, matrix_text, reduction_groups

MeshTarget = Literal["devicemesh", "jax"]
TARGETS: Final[tuple[MeshTarget, ...]] = ("devicemesh", "jax")

Nested = int | list["Nested"]

_TORCH: Final = '''import torch
from torch.distributed.device_mesh import DeviceMesh

{table}


def make_mesh(device_type: str = "cuda") -> DeviceMesh:
    """The mesh over all {devices} ranks of the job; rank r is device r of the placement."""
    return DeviceMesh(device_type, torch.tensor(DEVICES), mesh_dim_names=NAMES)
'''

_JAX: Final = '''import jax
import numpy as np
from jax.sharding import Mesh

{table}


def make_mesh() -> Mesh:
    """The mesh over {devices} devices of jax; its device d is device d of the placement."""
    have = jax.devices()
    if len(have) < {devices}:
        raise ValueError(f"the mesh is of {devices} devices, jax has {{len(have)}}")
    chosen = np.empty(np.shape(DEVICES), dtype=object)
    for at, d in np.ndenumerate(np.array(DEVICES)):
        chosen[at] = have[d]
    return Mesh(chosen, NAMES)
'''


def device_order(matrix: Matrix) -> Nested:
    """Devices of a placement, shape (axis 0, axis 1, ..), as nested lists.

    >>> device_order(((1, 2), (2, 1)))  # axis 0 inside the nodes, axis 1 across them
    [[0, 2], [1, 3]]
    """
    (flat,) = reduction_groups(matrix, range(len(matrix)))
    found: list[Nested] = list(flat)
    for row in matrix[:0:-1]:
        size = prod(row)
        found = [found[i : i + size] for i in range(0, len(found), size)]
    return found


def mesh_text(matrix: Matrix, target: MeshTarget) -> str:
    """The file."""
    devices = prod(prod(row) for row in matrix)
    names = tuple(f"axis{k}" for k in range(len(matrix)))
    table = f"NAMES = {names!r}\nDEVICES = {pprint.pformat(device_order(matrix), width=110, compact=True)}"
    body = {"devicemesh": _TORCH, "jax": _JAX}[target].format(table=table, devices=devices)
    kind = {"devicemesh": "a DeviceMesh of torch", "jax": "a Mesh of jax"}[target]
    head = (
        f"The placement {matrix_text(matrix)} as {kind}.\n\nRows of the placement are axes, columns the levels of the "
        "machine, outermost first.  It needs nothing of Shardproof.\n"
    )
    return f'"""{head}"""\n\nfrom __future__ import annotations\n\n{body}'
