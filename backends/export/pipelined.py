"""Writes a pipelined plan as a Python file that torch's own pipelining runs.

    stages       parameters of every stage by fully qualified name, in the order in which the forward pass reads them
    placements   inside every stage, as `export.dtensor` writes them, over a mesh of the stage's own ranks
    cuts         what crosses them, and how it lies on the ranks: the blocks that neighbours send each other
    actions      the schedule in the words of torch.distributed.pipelining, sends and receives among them

Layouts of a stage are those of a micro-batch on its part of the machine.  What other stages do is no part of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

from ...models.communication.choices import Choices
from ...models.communication.shardings import NotASharding, PlanShardings, plan_shardings
from ...models.layout.placement import Placement
from ...models.layout.sharding import ShardingError, unfold
from ...models.pipelines.exchange import exchange
from ...models.pipelines.micro import micro_batch
from ...models.pipelines.views import submesh_sizes
from ...models.program.graph import Graph
from ...models.schedules.actions import action_rows
from ...models.schedules.pipeline import Pipeline
from ...models.text import InputError
from ...proofs.pipelines.certificate import PipelineCertificate
from .dtensor import RUNTIME, held_document, loss_document, optimizer_document, reasons, refusals
from .dtensor import document as stage_document
from .exported import Exported, Parts, in_docstring, module_text, parts_text, refuse_parts
from .layers import NOTATION, plan_texts
from .layers import RUNTIME as LAYERS
from .modules import TensorPlace, is_weight
from .read_recipe import recipe
from .recipe import LAYOUTS_ONLY, Recipe

FORMAT: Final = "shardproof-dtensor-pipeline/1"
STAGES: Final = tuple(Path(__file__).with_name(name) for name in ("pipelined_trace.py", "pipelined_runtime.py"))


@dataclass(frozen=True)
class StageLayouts:
    """Stage `number`: `parameters` that its operators read, in the order of the forward pass, and all of its layouts;
    `refused`: those that DTensor does not say.
    """

    number: int
    parameters: tuple[str, ...]
    found: PlanShardings
    refused: tuple[NotASharding, ...]


def export_pipeline(c: PipelineCertificate, identity: str, layouts_only: bool = False) -> Exported:
    """The file for a pipelined plan.  `layouts_only`: what else the plan says of a step is left to the job.  Raises
    `MeshError` where no mesh holds a stage, `InputError` for parts of a plan that no such file does.
    """
    how = recipe(c.graph)
    refuse_parts("pipelined dtensor", _refused(how), layouts_only)
    graph = micro_batch(c.graph, c.micro)
    if several := shared_weights(c):
        raise InputError(
            f"dtensor: {several[0]!r} is a parameter of several stages; torch's pipelining gives each one of its own "
            "and adds no gradients up.  Plan a model with two parameters instead, or take --to actions"
        )
    stages = [stage_layouts(c, graph, s) for s in range(len(c.stages))]
    data = document(c, graph, identity, stages)
    words = {**dict(how.words()), "micro-batches": str(c.micro)}
    does = ("micro-batches",) if layouts_only else ("precision", "micro-batches", "optimizer")
    done = tuple((part, words[part]) for part in does)
    left = tuple((part, text) for part, text in words.items() if part not in does and text != "none")
    if not layouts_only:
        for stage in data["stages"]:  # type: ignore[attr-defined]
            stage["optimizer"] = optimizer_document(how)
        data["loss"] = loss_document(how)
    data["left_out"] = [list(part) for part in left]
    refused = tuple(replace(r, place=f"stage {x.number}, {r.place}") for x in stages for r in x.refused)
    said = sum(own_count(c, x) for x in stages) - len(refused)
    view = prod(submesh_sizes(c.machine, len(c.stages)) or ())
    text = _file(c, data, identity, done, left)
    return Exported(text, (("stage", len(c.stages)), ("rank", view)), said, refused, done, left)


def shared_weights(c: PipelineCertificate) -> list[str]:
    """Parameters whose next values go to other stages than the one that writes them, in order."""
    following = {value: name for name, value in c.graph.state}
    found = exchange(c.graph, c.division, tuple(stage.end for stage in c.stages)).messages
    return list(dict.fromkeys(following[x.tensor] for x in found if x.tensor in following))


def _refused(how: Recipe) -> Parts:
    """Parts of a plan that a file of stages does not do."""
    more: list[tuple[str, str]] = []
    if how.half is not None:
        types = f"stages compute in the types of the model, not in {how.precision}: plan without --precision"
        more.append(("precision", f"{types}, or {LAYOUTS_ONLY}"))
    if how.recomputed:
        more.append(("recomputation", f"stages compute no block again: plan with --recompute none, or {LAYOUTS_ONLY}"))
    if how.clip is not None:
        norm = "stages do not clip gradients by a norm over all of them: plan without clip="
        more.append(("optimizer", f"{norm}, or {LAYOUTS_ONLY}"))
    own = [(part, why) for part, why in how.refused if part == "optimizer"]
    return (*own, *more)


def stage_layouts(c: PipelineCertificate, graph: Graph, s: int) -> StageLayouts:
    """The layouts of stage s on its view; `graph`: of a micro-batch.  Operators of other stages count as not split, so
    that they say nothing of its mesh.
    """
    sizes = submesh_sizes(c.machine, len(c.stages))
    if sizes is None:
        raise InputError(f"{len(c.stages)} stages are no equal parts of {c.machine.name}")
    operators: dict[str, Placement] = {}
    copies: dict[str, Placement] = {}
    for stage in (*(x for k, x in enumerate(c.stages) if k != s), None):
        for kept, rows in (
            (operators, (stage or c.stages[s]).choices.operators),
            (copies, (stage or c.stages[s]).choices.copies),
        ):
            kept.update({name: p if stage is None else _whole(p, sizes) for name, p in rows})
    choices = Choices(
        tuple((op.name, operators[op.name]) for op in graph.operators),
        tuple((t.name, copies[t.name]) for t in graph.tensors if t.name in copies),
    )
    found = plan_shardings(graph, sizes, [v.name for v in c.machine.levels], choices)
    mine = {name for name, _ in c.stages[s].choices.operators}
    read = [a.tensor for op in graph.operators if op.name in mine for a in op.inputs if is_weight(graph, a.tensor)]
    return StageLayouts(s, tuple(dict.fromkeys(read)), found, refusals(graph, found))


def own_count(c: PipelineCertificate, x: StageLayouts) -> int:
    """Layouts of the stage's own operators and tensors, said or not."""
    mine = dict(c.stages[x.number].choices.operators)
    read = sum(len(op.inputs) + 1 for op in c.graph.operators if op.name in mine)
    return read + len(c.stages[x.number].choices.copies)


def _whole(p: Placement, sizes: tuple[int, ...]) -> Placement:
    """The same operator, not split."""
    return Placement(p.axes, (*((1,) * len(sizes) for _ in p.axes), tuple(sizes)))


def document(c: PipelineCertificate, graph: Graph, identity: str, stages: list[StageLayouts]) -> dict[str, object]:
    """What the file holds as `PLAN`: names, numbers and lists only."""
    pipe = c.schedule.subject
    if not isinstance(pipe, Pipeline):
        raise InputError("the plan's schedule is none of a pipeline")
    actions = action_rows(pipe, c.schedule.starts)
    return {
        "format": FORMAT,
        "identity": identity,
        "model": graph.name,
        "machine": c.machine.name,
        "micro_batches": c.micro,
        "devices": prod(submesh_sizes(c.machine, len(c.stages)) or ()),
        "stages": [_stage(c, graph, identity, x) for x in stages],
        "actions": [" ".join(row) for row in actions],
    }


def _stage(c: PipelineCertificate, graph: Graph, identity: str, x: StageLayouts) -> dict[str, object]:
    full = stage_document(graph, c.machine.name, identity, x.found, x.refused)
    own = set(x.parameters)
    modules = {name.rpartition(".")[0] for name in own}
    cuts, here = c.division.cuts, c.stages[x.number]
    left = cuts[here.first - 1][0] if x.number else None
    right = cuts[here.end - 1][0] if x.number + 1 < len(c.stages) else None
    kept = {key: {k: v for k, v in _table(full[key]).items() if k in own} for key in ("parameters", "state")}
    return {
        "mesh": full["mesh"],
        **kept,
        "whole": [name for name in x.parameters if name not in kept["parameters"]],
        "modules": {k: v for k, v in _table(full["modules"]).items() if k in modules},
        "receives": None if left is None else _crossing(graph, left, x),
        "sends": None if right is None else _crossing(graph, right, x),
        "early": left is not None and _early(graph, left),
        "not_expressed": full["not_expressed"],
    }


def _table(value: object) -> dict[str, object]:
    """A part of a document that is a table."""
    assert isinstance(value, dict)
    return value


def _crossing(graph: Graph, tensor: str, x: StageLayouts) -> object:
    """The block of what crosses a cut; whole on every rank where DTensor does not say it."""
    t, kept = graph.tensor(tensor), x.found.rests.get(tensor)
    said = kept is not None and not kept.partial and not list(reasons("", graph, tensor, kept, x.found.mesh))
    try:
        if said and kept is not None:
            unfold(kept, t.shape, t.source_shape or t.shape, x.found.mesh)
            return held_document(TensorPlace(tensor, None, t.shape, kept))
    except ShardingError:
        pass
    return {"place": f"{tensor} -> its place", "digits": list(t.shape), "splits": [[] for _ in t.shape], "partial": []}


def _early(graph: Graph, tensor: str) -> bool:
    """Whether what crosses a cut is the result of a module that has parameters, and not made of it behind: where torch
    leaves several calls to cut at, the first is the plan's.
    """
    writer = graph.operators[graph.writer()[tensor]]
    return any(is_weight(graph, a.tensor) for a in writer.inputs)


def _file(c: PipelineCertificate, data: dict[str, object], identity: str, done: Parts, left: Parts) -> str:
    runtime = "\n\n".join(module_text(path) for path in (*RUNTIME, *STAGES, LAYERS))
    said, where = in_docstring(c.graph.name), in_docstring(c.machine.name)
    head = (
        f'"""Stages of plan {identity[:16]} ({said} on {where} '
        f"{'x'.join(map(str, c.machine.hierarchy))}) for torch.distributed.pipelining, written by shardproof.\n\n"
        f"    ranks = make_ranks('cuda')               # {len(c.stages)} stages of {data['devices']} ranks\n"
        f"    stage = make_stage(model, ranks, example)  # example: inputs of one of the {c.micro} micro-batches\n"
        "    steps = make_optimizer(stage)            # the plan's; or a class and numbers: torch.optim.Adam, lr=1e-3\n"
        "    schedule = make_schedule(stage, loss)    # loss(result, target): a mean over examples\n"
        "    schedule.step(*inputs)                   # first stage: whole inputs, equal on its ranks\n"
        "    schedule.step(target=target, losses=[])  # last stage; between them: schedule.step()\n"
        "    steps.step()\n\n"
        + parts_text("The job computes as planned, and raises where it does not", done)
        + "\n\n"
        + (parts_text("Not in this file, and the job's to do", left) + "\n\n" if left else "")
        + "Gradients are means over the micro-batches (`scale_grads` of torch's schedules).  It needs torch alone.\n"
        f'`LAYOUTS` names every layout, the schedule, and what DTensor cannot say.\n{NOTATION}\n"""\n'
    )
    tail = '''

def make_ranks(device_type: str = "cuda") -> Ranks:
    """Where this rank of the job stands."""
    return pipeline_ranks(PLAN, device_type)


def make_stage(
    module: nn.Module, ranks: Ranks, example: Sequence[Any] | Mapping[str, Any]
) -> PipelineStage:
    """This rank's stage of `module`, laid out as planned.  `example`: inputs of one micro-batch."""
    return pipeline_stage(PLAN, module, ranks, example)


def make_schedule(stage: PipelineStage, loss: Callable[..., torch.Tensor], **options: Any) -> PlannedSchedule:
    """The plan's schedule; `step` runs all micro-batches of a step."""
    return PlannedSchedule(PLAN, stage, loss, **options)


def make_optimizer(
    stage: PipelineStage, kind: type[torch.optim.Optimizer] | None = None, **options: Any
) -> PlannedOptimizer | torch.optim.Optimizer:
    """The plan's optimizer of the stage's parameters, whose moments lie as planned."""
    return stage_optimizer(stage, kind, options)
'''
    layouts, plan_text = plan_texts(data)
    return f"{head}from __future__ import annotations\n\n{layouts}\n\n{runtime.rstrip()}\n{tail}\n\n{plan_text}\n"
