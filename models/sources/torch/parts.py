"""Runs an exported PyTorch program node by node, beside its import in which every node is an output, known
as an interpreter of its graph.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..building.original import Parts, Undefined, Values
from ..building.stated import with_constants
from .context import Imported
from .program import Program
from .reader import Reader

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node as FxNode


def parts_of(program: Program, convert: Callable[[Program], Imported]) -> Parts:
    """The program with every value that another operator reads as an output.  Raises `Undefined` for values that are
    not at hand, `TorchError` for what is not imported so.  `convert`: the importer.
    """
    import torch
    from torch.export.graph_signature import InputKind

    exported = _opened(program.exported)
    found = convert(replace(program, exported=exported))
    nodes = {n.name: n for n in exported.graph.nodes}
    listed = [nodes[o] for o in exported.graph_signature.user_outputs if isinstance(o, str)]
    graph = with_constants(found.graph, found.stated)
    kept = [listed[k] for k in found.results]

    class OnProcessor(torch.fx.Interpreter):  # type: ignore[misc]
        """Makes on the processor what the export, on the meta device, says is made there."""

        def call_function(self, target: object, args: object, kwargs: Mapping[str, object]) -> object:
            given = {k: torch.device("cpu") if isinstance(v, torch.device) else v for k, v in kwargs.items()}
            return super().call_function(target, args, given)

    def outputs(given: list[object]) -> list[object]:
        try:
            results = OnProcessor(exported.graph_module).run(*given)
        except Undefined:
            raise
        except Exception as error:  # whatever its operators raise
            raise Undefined(f"PyTorch refuses a node: {type(error).__name__}: {str(error)[:200]}") from error
        made = {str(s.arg.name): x for s, x in zip(exported.graph_signature.output_specs, results, strict=True)}
        return [made[n.name] for n in kept]

    def execute(values: Mapping[str, Values]) -> tuple[Values, ...]:
        with torch.no_grad():
            return tuple(map(_array, outputs(_given(program, exported, values))))

    def gradients(values: Mapping[str, Values], output: int, weights: Values) -> Mapping[str, Values]:
        given, specs = _given(program, exported, values), exported.graph_signature.input_specs
        trained = {s.target for s in specs if s.kind is InputKind.PARAMETER}
        leaves = {
            s.target: t.clone().requires_grad_()
            for s, t in zip(specs, given, strict=True)
            if s.target in trained and s.target in values and isinstance(t, torch.Tensor) and t.is_floating_point()
        }
        y = outputs([leaves.get(s.target, t) for s, t in zip(specs, given, strict=True)])[output]
        if not isinstance(y, torch.Tensor) or not y.requires_grad:
            raise Undefined("a node that depends on no weight")
        probe = torch.from_numpy(np.array(weights)).reshape(y.shape).to(y.dtype)
        slopes = torch.autograd.grad((y * probe).sum(), list(leaves.values()), allow_unused=True)
        return {str(n): _array(g) for n, g in zip(leaves, slopes, strict=True) if g is not None}

    reader = Reader(exported)
    places = {t: _place(n, reader.module(n)) for t, n in zip(graph.outputs, kept, strict=True)}
    return Parts(graph, execute, places, gradients)


def _opened(exported: ExportedProgram) -> ExportedProgram:
    """The program with all tensors that are read as outputs."""
    import torch
    from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

    graph = copy.deepcopy(exported.graph)
    signature = copy.copy(exported.graph_signature)
    end = next(n for n in graph.nodes if n.op == "output")
    asked = {o for o in signature.user_outputs if isinstance(o, str)}
    shown = [
        n
        for n in graph.nodes
        if n.op == "call_function"
        and isinstance(n.meta.get("val"), torch.Tensor)
        and (n.name in asked or any(m.op == "call_function" for m in n.users))
    ]
    end.args = (tuple(shown),)
    signature.output_specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in shown]
    opened = copy.copy(exported)
    opened._graph_module = torch.fx.GraphModule(exported.graph_module, graph)
    opened._graph_signature = signature
    return opened


def _given(program: Program, exported: ExportedProgram, values: Mapping[str, Values]) -> list[object]:
    """What every placeholder stands for."""
    import torch

    stored: dict[int, str] = {}
    out: list[object] = []
    nodes = [n for n in exported.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(nodes, exported.graph_signature.input_specs, strict=True):
        like = node.meta.get("val")
        if not isinstance(like, torch.Tensor):
            out.append(like)
            continue
        known, name = None, node.name
        if spec.target is not None:
            tensor = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
            name = spec.target if tensor is None else stored.setdefault(id(tensor), spec.target)
            known = program.contents.get(spec.target, tensor)
        if name in values:
            known = torch.from_numpy(np.array(values[name]))
        elif known is None or known.is_meta or type(known).__name__ == "FakeTensor":
            known = torch.zeros(like.shape)  # read by nothing that the graph keeps
        out.append(known.reshape(like.shape).to(like.dtype))
    return out


def _place(node: FxNode, path: str) -> str:
    """The operator, the module and the line: `aten.sin.default (sin) of 'encoder.0' at wave.py:9`."""
    maker = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node
    frames = re.findall(r'File "([^"]+)", line (\d+)', str(maker.meta.get("stack_trace") or ""))
    own = [f for f in frames if "/torch/" not in f[0]] or frames
    at = f" at {own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else ""
    return f"{maker.target} ({node.name}){f' of {path!r}' if path else ''}{at}"


def _array(value: object) -> Values:
    import torch

    if not isinstance(value, torch.Tensor):
        raise Undefined("a node that makes no tensor")
    plain = value.detach()
    found: Values = (plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain).contiguous().numpy()
    return found
