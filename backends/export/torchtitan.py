"""Writes the parallelisation of torchtitan's Llama that comes nearest to a plan, as a Python file.

The plan is one of the zoo's `llama`; the file is for the model of the same sizes as torchtitan writes it:

    embedding.table                tok_embeddings.weight
    layerI.attention.query.weight  layers.I.attention.wq.weight      key wk, value wv, output wo
    layerI.ffn.gate.weight         layers.I.feed_forward.w1.weight   down w2, up w3
    layerI.attention.norm.gamma    layers.I.attention_norm.weight    layerI.ffn.norm.gamma  layers.I.ffn_norm.weight
    norm.gamma, logits.weight      norm.weight, output.weight

Torch keeps matrices of linear layers as (out, in), the plan as (in, out), of several digits each.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Final

from ...models.program.graph import Graph, Role
from ...models.text import InputError
from ...proofs.publishing.publisher import Nearest
from .exported import in_docstring, module_text, parts_text
from .flags import left_to_settings, torchtitan_toml
from .layers import RUNTIME as LAYERS
from .layers import layers_text

RUNTIME: Final = Path(__file__).with_name("torchtitan_runtime.py")
_NAMES: Final = {
    "embedding.table": "tok_embeddings.weight",
    "norm.gamma": "norm.weight",
    "logits.weight": "output.weight",
    "attention.query.weight": "attention.wq.weight",
    "attention.key.weight": "attention.wk.weight",
    "attention.value.weight": "attention.wv.weight",
    "attention.output.weight": "attention.wo.weight",
    "ffn.gate.weight": "feed_forward.w1.weight",
    "ffn.down.weight": "feed_forward.w2.weight",
    "ffn.up.weight": "feed_forward.w3.weight",
    "attention.norm.gamma": "attention_norm.weight",
    "ffn.norm.gamma": "ffn_norm.weight",
}


def torchtitan_file(found: Nearest, batch: int) -> str:
    """The file.  Raises `InputError` for a plan of another model."""
    graph, f = found.plan.graph, found.flags
    names = shapes(graph)
    copies, left = f.copies(found.plan.machine.devices), left_to_settings(graph)
    degrees = {
        "replicas": 1 if f.zero else copies,
        "shards": copies if f.zero else 1,
        "cp": f.cp,
        "tp": f.tp,
        "reshard_after_forward": f.zero == 3,
        "layers": len({n.split(".")[1] for n in names if n.startswith("layers.")}),
        "shapes": names,
    }
    runtime = "\n\n".join(map(module_text, (RUNTIME, LAYERS)))
    head = (
        f'"""Layout of torchtitan\'s Llama, nearest to plan {found.identity[:16]} ({in_docstring(graph.name)} on '
        f"{in_docstring(found.plan.machine.name)} {'x'.join(map(str, found.plan.machine.hierarchy))}), written by "
        f"shardproof.\n\n{found.words}.\n\n"
        "    mesh = make_mesh('cuda')\n"
        "    model = parallelize(model, mesh)              # in place\n"
        "    loss = step(model(batch_of(tokens, mesh)))    # every copy its part; gradients are means over copies\n\n"
        "The same as torchtitan's configuration is `CONFIG`.  It needs torch alone.\n"
        + (parts_text("Degrees alone.  Not in this file, and the job's to do", left) + "\n" if left else "")
        + '"""\n'
    )
    tail = '''

def make_mesh(device_type: str = "cuda") -> DeviceMesh:
    """The mesh over all ranks of the job; rank r is device r of the plan."""
    return titan_mesh(DEGREES, device_type)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """`model` laid out in place."""
    return titan_parallelize(DEGREES, model, mesh)


def batch_of(batch: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's part of a batch that is equal on all ranks."""
    return titan_batch(DEGREES, mesh, batch)


def context(mesh: DeviceMesh, tokens: list[torch.Tensor], tables: list[torch.Tensor]) -> Any:
    """Run a step inside it: sequences are split where the settings say so."""
    return titan_context(DEGREES, mesh, tokens, tables)
'''
    config = torchtitan_toml(found, batch).replace("\\", "\\\\").replace('"""', r"\"\"\"")  # names are no code
    return (
        f"{head}from __future__ import annotations\n{runtime}\n{tail}\n\n"
        f"DEGREES: dict[str, Any] = {layers_text(degrees)}\n\n"
        f'CONFIG = """\n{config}"""\n'
    )


def shapes(graph: Graph) -> dict[str, list[int]]:
    """Parameters of torchtitan's Llama and their shapes in torch.  Raises `InputError` for a plan of another model.

    >>> from ...models.sources.zoo import build
    >>> found = shapes(build("llama", layers=1, batch=2, sequence=4, width=16, heads=4, kv_heads=2, hidden=24,
    ...     vocabulary=20))
    >>> found["layers.0.attention.wk.weight"], found["output.weight"], len(found)
    ([8, 16], [20, 16], 12)
    """
    trained = {name for name, _ in graph.state}
    out: dict[str, list[int]] = {}
    for t in graph.tensors:
        if (
            t.role is not Role.PARAMETER or t.name.rpartition(".")[0] in trained
        ):  # moments stand beside what they are of
            continue
        layer = re.fullmatch(r"layer(\d{1,5})\.(.+)", t.name)
        name = _NAMES.get(layer[2] if layer else t.name)
        if name is None:
            raise InputError(
                f"parameter {t.name!r} is none of torchtitan's Llama: this export is for plans of the zoo's llama; "
                "for your own module take --to dtensor, or --to megatron for degrees"
            )
        width = graph.tensor("embedding.table").shape[-1]
        n = prod(t.shape)
        if len(t.shape) == 1 or name.startswith("tok"):
            shape = [n] if len(t.shape) == 1 else [n // width, width]
        else:
            shape = [width, n // width] if name.endswith(("wo.weight", "w2.weight")) else [n // width, width]
        out[f"layers.{layer[1]}.{name}" if layer else name] = shape
    if "output.weight" not in out:
        raise InputError(
            f"{graph.name} has no output layer of its own; the export is for plans of the zoo's llama models"
        )
    return out
