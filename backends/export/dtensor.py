"""Writes a plan as a Python file that lays a PyTorch module out with DTensor.

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

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...models.communication.shardings import NotASharding, PlanShardings, plan_shardings
from ...models.layout.mesh import Mesh
from ...models.layout.sharding import Sharding, ShardingError, unfold
from ...models.program.graph import Graph, Role
from ...models.program.operators import Operator
from ...proofs.plan.bundle import Plan
from .exported import Exported, Parts, Whole, in_docstring, left_text, module_text, parts_text, refuse_parts
from .layers import NOTATION, plan_texts
from .layers import RUNTIME as LAYERS
from .modules import TensorPlace, is_weight, micro_batches, module_layouts, moments
from .read_recipe import batch_cut, half_inputs, recipe
from .recipe import TORCH, Recipe
from .whole import runs_whole, whole_text

FORMAT: Final = "shardproof-dtensor/1"
RUNTIME: Final = tuple(
    Path(__file__).with_name(f"dtensor_{part}.py")
    for part in ("contractions", "losses", "program", "functions", "runtime", "steps")
)


def export_dtensor(plan: Plan, identity: str, layouts_only: bool = False, beside: Parts = ()) -> Exported:
    """The file for a plan.  `layouts_only`: what else the plan says of a step is left to the job; `beside`: what it
    says that no such file does.  Raises `MeshError` where no mesh holds the plan, `InputError` for parts of it that no
    such file does.
    """
    how = recipe(plan.graph)
    refuse_parts("dtensor", (*how.refused, *beside), layouts_only)
    found = plan_shardings(plan.graph, plan.machine.hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    refused = refusals(plan.graph, found)
    data = document(plan.graph, plan.machine.name, identity, found, refused)
    whole = runs_whole(plan.graph, found)
    words = (*(how.words() if how.trained else ()), *beside)
    data["program"] = None if layouts_only or not how.trained else program_document(plan.graph, how)
    data["left_out"] = [list(part) for part in words] if layouts_only else []
    data["runs_whole"] = [[w.operator, w.function, w.bytes] for w in whole]
    mesh = tuple((d.name, d.size) for d in found.mesh.dimensions)
    said = found.count - len(refused) + len(found.refused)
    done, left = ((), words) if layouts_only else (words, ())
    text = _file(plan, data, identity, done, left, whole)
    return Exported(text, mesh, said, refused, done, left, whole)


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
            t.name: held_document(TensorPlace(t.name, None, t.shape, found.rests[t.name]))
            for t in graph.tensors
            if t.role is Role.INPUT and t.name in found.rests
        },
        "not_expressed": [[r.place, r.tensor, r.reason] for r in refused],
    }


def program_document(graph: Graph, how: Recipe) -> dict[str, object]:
    """How a step is computed, as the file holds it: names, numbers and lists only (see `dtensor_program`)."""
    kept = {name for names in moments(graph).values() for name in names.values()}
    stored = {t.name: t.dtype for t in graph.tensors if t.role is Role.PARAMETER and t.name not in kept}
    types = None
    if how.half is not None:
        types = {"name": how.precision, "half": how.half, "autocast": how.autocast, "reduce": how.reduce}
    return {
        "trained": [w for g in how.groups for w in g.weights],
        "precision": types,
        "narrowed": list(half_inputs(graph)) if how.half is not None and not how.autocast else [],
        "dtypes": {name: dtype for name, dtype in stored.items() if dtype.startswith(("float", "bfloat"))},
        "recompute": list(how.recomputed),
        "micro_batches": how.micro_batches,
        "once": how.once,
        "cut": list(batch_cut(graph)),
        "optimizer": optimizer_document(how),
        "loss": loss_document(how),
        "attention": {"kernels": how.kernels, "scores": how.scores},
    }


def loss_document(how: Recipe) -> dict[str, object] | None:
    """The loss as the file holds it; None without one."""
    if how.loss is None:
        return None
    return {
        "kind": how.loss.kind,
        "of": how.loss.of,
        "shape": list(how.loss.shape),
        "target": how.loss.target,
        "over": how.loss.over,
    }


def optimizer_document(how: Recipe) -> dict[str, object] | None:
    """The optimizer as the file holds it, under the names of torch.optim; None without one."""
    if not how.groups:
        return None
    groups = [{"numbers": dict(g.numbers), "weights": list(g.weights)} for g in how.groups]
    return {"kind": TORCH[how.groups[0].kind], "groups": groups, "clip": how.clip}


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


def held_document(held: TensorPlace | None) -> object:
    if held is None:
        return None
    s = held.sharding
    return {
        "place": f"{held.tensor} -> {held.reader or 'its place'}",
        "digits": list(held.digits),
        "splits": [list(names) for names in s.splits],
        "partial": list(s.partial),
        "combine": s.combine.value if s.partial and s.combine else None,
        **({"dtype": held.dtype} if held.dtype else {}),
    }


def _file(
    plan: Plan, data: dict[str, object], identity: str, done: Parts, left: Parts, whole: tuple[Whole, ...]
) -> str:
    runtime = "\n\n".join(module_text(path) for path in (*RUNTIME, LAYERS))
    said, where = in_docstring(plan.graph.name), in_docstring(plan.machine.name)
    trained = bool(plan.graph.state)
    head = (
        f'"""Layouts of plan {identity[:16]} ({said} on {where} '
        f"{'x'.join(map(str, plan.machine.hierarchy))}) for PyTorch's DTensor, written by shardproof.\n\n"
        "    mesh = make_mesh('cuda')\n"
        "    model = parallelize(model, mesh)      # inputs: whole tensors, equal on all ranks\n"
        + (
            "    steps = make_optimizer(model, mesh, torch.optim.Adam, lr=1e-3)\n"
            if left or not trained
            else _usage(data)
        )
        + "\n"
        + (_parts(plan) if left else "")
        + (parts_text("The job computes as planned, and raises where it does not", done) + "\n\n" if done else "")
        + (left_text("The job", left) + "\n" if left else "")
        + (whole_text(whole) + "\n\n" if whole else "")
        + "It needs torch alone.  `LAYOUTS` names every layout, and those that DTensor cannot say.\n"
        + f'{NOTATION}\n"""\n'
    )
    tail = '''

def make_mesh(device_type: str = "cuda") -> DeviceMesh:
    """The plan's mesh over all ranks of the job."""
    return plan_mesh(PLAN, device_type)


def parallelize(module: nn.Module, mesh: DeviceMesh, whole: bool = True) -> PlannedModule:
    """`module` laid out as planned, computing in the plan's types, and its blocks again where the plan does.  `whole`:
    inputs are whole tensors, equal on all ranks, and so are results.
    """
    return plan_module(PLAN, module, mesh, whole)


def make_optimizer(
    module: nn.Module, mesh: DeviceMesh, kind: type[torch.optim.Optimizer] | None = None, **options: Any
) -> PlannedOptimizer:
    """The plan's optimizer, whose moments lie as planned; `options` take the place of the plan's numbers."""
    return plan_optimizer(PLAN, module, mesh, kind, **options)


def train_step(
    module: PlannedModule, steps: PlannedOptimizer, *inputs: Any, target: Any = None, **named: Any
) -> torch.Tensor:
    """One step as planned: micro-batches, loss, optimizer.  Returned: the loss of the whole batch."""
    return plan_step(PLAN, module, steps, inputs, named, target)
'''
    layouts, plan_text = plan_texts(data)
    return f"{head}from __future__ import annotations\n\n{layouts}\n\n{runtime.rstrip()}\n{tail}\n\n{plan_text}\n"


def _usage(data: dict[str, object]) -> str:
    program = data["program"]
    assert isinstance(program, dict)
    target = ", target=target" if program["loss"]["kind"] != "returned" else ""
    return (
        "    steps = make_optimizer(model, mesh)   # the plan's; numbers may be given: lr=1e-3\n"
        f"    loss = train_step(model, steps, *inputs{target})   # a whole batch\n"
    )


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
