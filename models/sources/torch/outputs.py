"""What a module returns: tensors under names; caches of decoders are left out, and the user is told.

    ModelOutput, dict       its keys               loss, logits, past_key_values ..
    tuple, list             positions              0, 1, ..
    anything else           no tensor: left out    DynamicCache, EncoderDecoderCache ..

A cache is what the next call reads; one step returns it for nobody.  Where a configuration says `use_cache`, it is
switched off, so that it is not computed either.

The loss is the floating-point scalar called `loss`, or the only one there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ...program.graph import Graph

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

LOSS: Final = "loss"
"""What the loss that a module returns is called in the graph."""


def without_caches(module: torch.nn.Module, notes: list[str]) -> None:
    """Switch caches off, and leave out outputs that hold no tensors from now on; `notes` gets it in words."""
    seen: set[int] = set()
    for part in module.modules():
        for value in vars(part).values():
            if id(value) not in seen and getattr(value, "use_cache", None) is True and hasattr(value, "__dict__"):
                seen.add(id(value))
                value.use_cache = False
    if seen:
        notes.append("use_cache is switched off: a step returns no keys and values for a next one")

    def only_tensors(module: torch.nn.Module, arguments: object, out: object) -> object:
        left: list[str] = []
        kept = _kept(out, "", left)
        words = f"outputs that hold no tensors are left out: {', '.join(left)}"
        if left and words not in notes:
            notes.append(words)
        return kept if left and kept is not None else out

    module.register_forward_hook(only_tensors)


def _kept(value: object, at: str, left: list[str]) -> object | None:
    """The value without what torch.export cannot take; None if nothing is left of it."""
    from torch.utils._pytree import SUPPORTED_NODES

    name = at or "the output"
    if value is None or isinstance(value, (int, float, str)) or hasattr(value, "shape"):
        return value
    if isinstance(value, Mapping):
        parts = {k: _kept(v, f"{at}.{k}".strip("."), left) for k, v in value.items() if v is not None}
        return {k: v for k, v in parts.items() if v is not None}
    if isinstance(value, (tuple, list)):
        if hasattr(value, "_fields"):
            return value
        rest = [_kept(v, f"{at}.{k}".strip("."), left) for k, v in enumerate(value) if v is not None]
        return type(value)(v for v in rest if v is not None)
    if type(value) in SUPPORTED_NODES and not type(value).__name__.endswith("Cache"):
        return value
    left.append(f"{name} ({type(value).__name__})")
    return None


def output_names(exported: ExportedProgram) -> list[str]:
    """Names of the outputs in the order of the program's, such as `loss`, `logits` or `hidden_states.0`."""
    from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

    spec = exported.call_spec.out_spec
    if spec is None:
        return []
    tree = tree_unflatten(list(range(spec.num_leaves)), spec)
    return [
        ".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path)
        for path, _ in tree_flatten_with_path(_of_dicts(tree))[0]
    ]


def _of_dicts(tree: object) -> object:
    """The tree with dictionaries in place of the mappings that libraries register without names of their parts."""
    if isinstance(tree, Mapping):
        return {k: _of_dicts(v) for k, v in tree.items()}
    return tree


def loss_among(scalars: Sequence[tuple[str, str]]) -> str | None:
    """Of (name, tensor) of the scalars returned, the tensor that is the loss.

    >>> loss_among([("aux_loss", "a"), ("loss", "b")]), loss_among([("0", "c")]), loss_among([("a", "d"), ("b", "e")])
    ('b', 'c', None)
    """
    called = [t for name, t in scalars if name.rpartition(".")[2] == LOSS]
    if len(called) == 1:
        return called[0]
    return scalars[0][1] if len(scalars) == 1 else None


def rename_tensor(graph: Graph, old: str, new: str) -> Graph:
    """The graph with the tensor `old`, and the operator of that name, called `new`; itself if the name is taken."""
    if new in {t.name for t in graph.tensors} | {op.name for op in graph.operators}:
        return graph
    operators = tuple(
        replace(
            op,
            name=new if op.name == old else op.name,
            inputs=tuple(replace(a, tensor=new) if a.tensor == old else a for a in op.inputs),
            output=replace(op.output, tensor=new) if op.output.tensor == old else op.output,
        )
        for op in graph.operators
    )
    tensors = tuple(replace(t, name=new) if t.name == old else t for t in graph.tensors)
    outputs = tuple(new if o == old else o for o in graph.outputs)
    return replace(graph, tensors=tensors, operators=operators, outputs=outputs)
