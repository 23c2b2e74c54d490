"""Writes settings of Megatron and torchtitan: the file that their launchers take.

`models.sources.frameworks.flags.read_settings` reads both back.
"""

from __future__ import annotations

from ...models.program.graph import Graph, Role
from ...models.text import escape_text
from ...proofs.publishing.publisher import Nearest
from .exported import Parts
from .read_recipe import batch_cut, recipe

_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_FSDP = ("--use-megatron-fsdp", "--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor")
"""What Megatron-LM requires where more than the optimizer's state is sharded (its Megatron-FSDP User Guide)."""


def batch_of(graph: Graph) -> int:
    """Examples of a step: the first dimension of the first input, of a step in micro-batches all of them."""
    cut = {*batch_cut(graph)}
    first = next((t for t in graph.tensors if t.role is Role.INPUT and t.shape), None)
    return 1 if first is None else first.shape[0] * (first.shape[1] if first.name in cut else 1)


def product_type(graph: Graph) -> str:
    """The type of products: frameworks whose own is bfloat16 are told another one."""
    types = {t.dtype for t in graph.tensors}
    return next((half for half in ("bfloat16", "float16") if half in types), "float32")


def left_to_settings(graph: Graph) -> Parts:
    """What a training step of the plan says beside degrees: settings of a framework that are not written."""
    return recipe(graph).words() if graph.state else ()


def megatron_text(found: Nearest, batch: int) -> str:
    """Flags of Megatron-LM, one per line, and comments, which no shell takes out: `$(grep -v '^#' FILE)`.  `batch`:
    examples of a step.

    >>> from fractions import Fraction as F
    >>> from shardproof.models.layout.targets.degrees import Flags
    >>> from shardproof.proofs.publishing.publisher import Nearest
    >>> flags = Flags("Megatron", tp=4, sequence_parallel=True, zero=1)
    >>> made = Nearest("megatron", flags, None, "0" * 64, (F(10), F(10)), (F(11), F(11)), 3)
    >>> print(_flags(made, 16, 8))
    --tensor-model-parallel-size 4
    --sequence-parallel
    --context-parallel-size 1
    --pipeline-model-parallel-size 1
    --use-distributed-optimizer
    --micro-batch-size 2
    --global-batch-size 8
    """
    return _flags(found, found.plan.machine.devices, batch) + "\n" + _comments(found)


def torchtitan_toml(found: Nearest, batch: int) -> str:
    """The tables `[training]` and `[parallelism]` of torchtitan's configuration; comments say what they leave out."""
    f = found.flags
    copies = f.copies(found.plan.machine.devices)
    shards, replicas = (copies, 1) if f.zero or f.cp > 1 else (1, copies)  # context ranks shard what copies do
    return (
        "[training]\n"
        f"local_batch_size = {max(1, batch // copies)}\n"
        f"global_batch_size = {batch}\n"
        f'mixed_precision_param = "{product_type(found.plan.graph)}"\n\n'
        "[parallelism]\n"
        f"data_parallel_replicate_degree = {replicas}\n"
        f"data_parallel_shard_degree = {shards}\n"
        f'fsdp_reshard_after_forward = "{"always" if f.zero == 3 else "never"}"\n'
        f"tensor_parallel_degree = {f.tp}\n"
        f"context_parallel_degree = {f.cp}\n"
        f"pipeline_parallel_degree = {f.pp}\n\n"
        '[activation_checkpoint]\nmode = "none"\n' + comment_lines(left_out_words(found))
    )


def _flags(found: Nearest, devices: int, batch: int) -> str:
    f = found.flags
    copies = f.copies(devices)
    lines = [f"--tensor-model-parallel-size {f.tp}"]
    lines += ["--sequence-parallel"] if f.sequence_parallel else []
    lines += [f"--context-parallel-size {f.cp}", f"--pipeline-model-parallel-size {f.pp}"]
    lines += ["--use-distributed-optimizer"] if f.zero else []
    lines += [f"--data-parallel-sharding-strategy {_SHARDING[f.zero]}", *_FSDP] if f.zero in _SHARDING else []
    lines += [f"--micro-batch-size {max(1, batch // copies)}", f"--global-batch-size {batch}"]
    return "\n".join(lines)


def _comments(found: Nearest) -> str:
    plan = found.plan
    said = (
        f"Megatron-LM: the settings nearest to plan {found.identity[:16]}",
        f"{plan.graph.name} on {plan.machine.name} {'x'.join(map(str, plan.machine.hierarchy))}",
        found.words,
        "behind a launcher: $(grep -v '^#' FILE)",
        *(
            ("Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset, or above 1",)
            if found.flags.zero in _SHARDING
            else ()
        ),
        *left_out_words(found),
    )
    return comment_lines(said)


def left_out_words(found: Nearest) -> tuple[str, ...]:
    """What a file of degrees leaves to its owner, one line each."""
    parts = left_to_settings(found.plan.graph)
    return tuple(f"not in these settings, and yours to give: {part}: {words}" for part, words in parts)


def comment_lines(lines: tuple[str, ...]) -> str:
    """Lines behind a #, whatever stands in them."""
    return "".join(f"# {escape_text(line)}\n" for line in lines)
