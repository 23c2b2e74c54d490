"""This module writes a plan as a Python file that lays a PyTorch module out with DTensor.

DTensor gives every mesh dimension one placement: `Shard(k)`, `Replicate()`, `Partial(op)`.  Several mesh dimensions may
cut one dimension of a tensor; then the order is that of the mesh.  Blocks follow `torch.chunk`, mesh dimension after
mesh dimension, so that rows of unequal blocks over two mesh dimensions differ from ours.  What that cannot say is
listed in the file and by the exporter:

    halo       a window reads beyond its block
    window     a convolution is split through its windows or its groups of channels: that is gathered
    order      a dimension is cut by mesh dimensions in another order than the mesh's
    uneven     a dimension that its blocks do not divide is cut by two mesh dimensions

The file holds the mesh, the placements by fully qualified name, and the texts of `RUNTIME`: it needs
torch alone.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...models.communication.shardings import NotASharding, PlanShardings, plan_shardings
from ...models.layout.mesh import Mesh
from ...models.layout.sharding import Sharding, ShardingError, unfold
from ...models.program.graph import Graph, Role
from ...models.program.operators import Operator
from ...proofs.plan.bundle import Plan
from .exported import Exported, in_docstring
from .modules import Held, is_weight, micro_batches, module_layouts, moments

FORMAT: Final = "shardproof-dtensor/1"
RUNTIME: Final = tuple(
    Path(__file__).with_name(f"dtensor_{part}.py") for part in ("contractions", "functions", "runtime")
)


def export_dtensor(plan: Plan, identity: str) -> Exported:
    """The file for a plan.  Raises `MeshError` where no mesh holds the plan."""
    found = plan_shardings(plan.graph, plan.machine.hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    refused = refusals(plan.graph, found)
    data = document(plan.graph, plan.machine.name, identity, found, refused)
    mesh = tuple((d.name, d.size) for d in found.mesh.dimensions)
    said = found.count - len(refused) + len(found.refused)
    return Exported(_file(plan, data, identity), mesh, said, refused)


def refusals(graph: Graph, found: PlanShardings) -> tuple[NotASharding, ...]:
    """Layouts that are no sharding, and shardings that DTensor does not say."""
    return (*found.refused, *_unsaid(graph, found))


def document(
    graph: Graph, machine: str, identity: str, found: PlanShardings, refused: tuple[NotASharding, ...]
) -> dict[str, object]:
    """What the file holds as `PLAN`: names, numbers and lists only.  `machine`: its name."""
    stored: dict[str, object] = {}
    for t in graph.tensors:
        if is_weight(graph, t.name) and t.name in found.rests:
            try:
                flat = unfold(found.rests[t.name], t.shape, t.source_shape or t.shape, found.mesh)
            except ShardingError:
                continue
            stored[t.name] = {"shape": list(t.source_shape or t.shape), "splits": [list(s) for s in flat.splits]}
    state: dict[str, object] = {}
    for name, kept in moments(graph).items():
        t = graph.tensor(name)
        first = found.rests.get(min(kept.values()))
        if first is not None:
            try:
                flat = unfold(first, t.shape, t.source_shape or t.shape, found.mesh)
            except ShardingError:
                continue
            state[name] = {"moments": kept, "splits": [list(s) for s in flat.splits]}
    modules = {
        m.name: {
            "reads": [held_document(h) for h in m.reads],
            "parameters": {key: held_document(h) for key, h in m.parameters},
            "product": held_document(m.product),
            "result": held_document(m.result),
        }
        for m in module_layouts(graph, found)
    }
    return {
        "format": FORMAT,
        "identity": identity,
        "model": graph.name,
        "machine": machine,
        "mesh": [[d.name, d.size] for d in found.mesh.dimensions],
        **({"micro_batches": parts} if (parts := micro_batches(graph)) > 1 else {}),
        "parameters": stored,
        "whole": [t.name for t in graph.tensors if is_weight(graph, t.name) and t.name not in stored],
        "state": state,
        "modules": modules,
        "inputs": {
            t.name: held_document(Held(t.name, None, t.shape, found.rests[t.name]))
            for t in graph.tensors
            if t.role is Role.INPUT and t.name in found.rests
        },
        "not_expressed": [[r.place, r.tensor, r.reason] for r in refused],
    }


def _unsaid(graph: Graph, found: PlanShardings) -> Iterator[NotASharding]:
    """Shardings that DTensor's placements do not say."""
    for op in graph.operators:
        if cut := _cut_window(op, found):
            yield NotASharding(f"operator {op.name!r}", op.inputs[0].tensor, f"window: a convolution is {cut}")
        for i, a in enumerate(op.inputs):
            yield from reasons(
                f"input {i} of operator {op.name!r}", graph, a.tensor, found.reads.get((op.name, i)), found.mesh
            )
        yield from reasons(
            f"result of operator {op.name!r}", graph, op.output.tensor, found.writes.get(op.name), found.mesh
        )
    for name, kept in found.rests.items():
        yield from reasons(f"tensor {name!r}", graph, name, kept, found.mesh)


def _cut_window(op: Operator, found: PlanShardings) -> str:
    """Where a convolution is split that runs on whole windows and groups: `dtensor_contractions` splits batch and
    channels.
    """
    if op.function != "product" or not any(len(index.terms) > 1 for a in op.inputs for index in a.index):
        return ""
    window = {v for a in op.inputs for index in a.index if len(index.terms) > 1 for v, _ in index.terms}
    own = [{v for index in a.index for v, _ in index.terms} for a in op.inputs]
    groups = set.intersection(*own, {v for index in op.output.index for v, _ in index.terms}) - window
    for i, a in enumerate(op.inputs):
        kept = found.reads.get((op.name, i))
        for index, names in zip(a.index, () if kept is None else kept.splits, strict=False):
            axes = {v for v, _ in index.terms}
            if names and axes & (window | groups):
                return f"split through its {'windows' if axes & window else 'groups'} over {' x '.join(names)}"
    return ""


def reasons(place: str, graph: Graph, tensor: str, kept: Sharding | None, mesh: Mesh) -> Iterator[NotASharding]:
    if kept is None:
        return
    t = graph.tensor(tensor)
    try:
        flat = unfold(kept, t.shape, t.source_shape or t.shape, mesh)
    except ShardingError as error:
        if t.role is not Role.VALUE:
            yield NotASharding(place, tensor, str(error))
            return
        flat = kept  # a value may be of another shape in the program; its digits are then cut one by one
    shape = (t.source_shape or t.shape) if flat is not kept else t.shape
    for k, names in enumerate(flat.splits):
        if [*names] != sorted(names, key=mesh.names.index):
            yield NotASharding(place, tensor, f"order: dimension {k} is cut by {' x '.join(names)}")
        if len(names) > 1 and shape[k] % mesh.size(names):
            yield NotASharding(
                place,
                tensor,
                f"uneven: dimension {k} of {shape[k]} is cut into {mesh.size(names)} by {' x '.join(names)}",
            )


def held_document(held: Held | None) -> object:
    if held is None:
        return None
    s = held.sharding
    return {
        "place": f"{held.tensor} -> {held.reader or 'its place'}",
        "digits": list(held.digits),
        "splits": [list(names) for names in s.splits],
        "partial": list(s.partial),
        "combine": s.combine.value if s.partial and s.combine else None,
    }


def _file(plan: Plan, data: dict[str, object], identity: str) -> str:
    runtime = "\n\n".join(body(path) for path in RUNTIME)
    said, where = in_docstring(plan.graph.name), in_docstring(plan.machine.name)
    head = (
        f'"""Layouts of plan {identity[:16]} ({said} on {where} '
        f"{'x'.join(map(str, plan.machine.hierarchy))}) for PyTorch's DTensor, written by shardproof.\n\n"
        "    mesh = make_mesh('cuda')\n"
        "    model = parallelize(model, mesh)      # inputs: whole tensors, equal on all ranks\n"
        "    steps = make_optimizer(model, mesh, torch.optim.Adam, lr=1e-3)\n\n"
        f"{_parts(plan)}"
        'It needs torch alone.  `PLAN` names every layout, and those that DTensor cannot say.\n"""\n'
    )
    tail = '''

def make_mesh(device_type: str = "cuda") -> DeviceMesh:
    """The plan's mesh over all ranks of the job."""
    return plan_mesh(PLAN, device_type)


def parallelize(module: nn.Module, mesh: DeviceMesh, whole: bool = True) -> nn.Module:
    """`module` laid out as planned.  `whole`: inputs are whole tensors, equal on all ranks, and so are results."""
    return plan_module(PLAN, module, mesh, whole)


def make_optimizer(
    module: nn.Module, mesh: DeviceMesh, kind: type[torch.optim.Optimizer], **options: Any
) -> PlannedOptimizer:
    """An optimizer whose moments lie as planned."""
    return plan_optimizer(PLAN, module, mesh, kind, **options)
'''
    plan_text = "PLAN: dict[str, Any] = " + pprint.pformat(data, width=118, sort_dicts=False, compact=True)
    return f"{head}from __future__ import annotations\n{runtime.rstrip()}\n{tail}\n\n{plan_text}\n"


def _parts(plan: Plan) -> str:
    parts = micro_batches(plan.graph)
    return (
        ""
        if parts == 1
        else (
            f"The plan computes a step in {parts} micro-batches: call the model and `backward` on {parts} equal\n"
            "parts of the batch, one after another, with the loss divided by the whole batch; gradients add up.\n\n"
        )
    )


def body(path: Path) -> str:
    """The text of a module after its docstring, without what it takes from its neighbours here."""
    text = path.read_text(encoding="utf-8")
    lines = text[text.index("from __future__") :].splitlines()
    return "\n".join(v for v in lines if not v.startswith(("from __future__", "from ."))).strip()
