"""Lays torchtitan's Llama out over a mesh; it is copied into exported files.

What it does to a model is what torchtitan's own `parallelize_llama` does, with the degrees that were planned: tensor
parallelism by module with sequences split between blocks, one FSDP2 unit per block.  Copies are slices of the batch:
every rank feeds its own part, and gradients are means over them.

With context parallelism the step runs inside `titan_context`, as in torchtitan's own loop; PyTorch has ring attention
for GPUs only.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

if TYPE_CHECKING:
    Degrees = Mapping[str, Any]  # what the exported file holds


def titan_mesh(degrees: Degrees, device_type: str) -> DeviceMesh:
    """Copies, context, tensor, the last of neighbouring ranks: the order in which the plan's devices are numbered."""
    sizes = (degrees["replicas"], degrees["shards"], degrees["cp"], degrees["tp"])
    return init_device_mesh(device_type, sizes, mesh_dim_names=("dp_replicate", "dp_shard", "cp", "tp"))


def titan_parallelize(degrees: Degrees, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """`model`, torchtitan's Llama of the sizes that were planned, laid out in place.  Raises ValueError for another."""
    named = dict(model.named_parameters())
    for name, shape in degrees["shapes"].items():
        if name not in named:
            raise ValueError(f"the model has no parameter {name!r}; the plan is of a Llama as torchtitan writes it")
        if list(named[name].shape) != shape:
            raise ValueError(f"parameter {name!r} has shape {list(named[name].shape)}, in the plan {shape}")
    layers = list(_blocks(model))
    if len(layers) != degrees["layers"]:
        raise ValueError(f"the model has {len(layers)} layers, the plan {degrees['layers']}")
    if degrees["tp"] > 1:
        _tensor_parallel(model, layers, mesh["tp"])
    copies = degrees["shards"] * degrees["cp"]
    if copies > 1:
        over = mesh["dp_shard"] if degrees["cp"] == 1 else mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
        options: dict[str, Any] = {"mesh": over, "reshard_after_forward": degrees["reshard_after_forward"]}
        for block in layers:
            fully_shard(block, **options)
        fully_shard(model, **options)
    elif degrees["replicas"] > 1:
        from torch.distributed._composable.replicate import replicate

        replicate(model, device_mesh=mesh["dp_replicate"])
    return model


def _blocks(model: nn.Module) -> list[nn.Module]:
    kept = model.layers
    return [*(kept.values() if isinstance(kept, nn.ModuleDict) else kept)]


def _tensor_parallel(model: nn.Module, layers: list[nn.Module], mesh: DeviceMesh) -> None:
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate(), use_local_output=True),
        },
    )
    for block in layers:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.w3": ColwiseParallel(),
            },
        )


def titan_context(degrees: Degrees, mesh: DeviceMesh, tokens: list[torch.Tensor], tables: list[torch.Tensor]) -> Any:
    """A context in which sequences are split: `tokens` along their second dimension, `tables` of positions along the
    first.
    """
    if degrees["cp"] == 1:
        return contextlib.nullcontext()
    from torch.distributed.tensor.experimental import context_parallel

    dims = [1] * len(tokens) + [0] * len(tables)
    return context_parallel(mesh["cp"], buffers=[*tokens, *tables], buffer_seq_dims=dims)


def titan_batch(degrees: Degrees, mesh: DeviceMesh, batch: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch that is equal on all ranks."""
    copies = degrees["replicas"] * degrees["shards"]
    at = mesh.get_local_rank("dp_replicate") * degrees["shards"] + mesh.get_local_rank("dp_shard")
    return batch.chunk(copies)[at]
