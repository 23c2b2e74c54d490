"""Cuts a PyTorch module into the stages of a plan and runs them; it is copied into exported files.

A stage is the run of calls between two cuts.  A plan's cut lies between the last module of one stage and the first of
the next, at a place where one tensor alone goes on.  What depends on no parameter, and of inputs on sizes alone
(tables, buffers), is computed by every stage that reads it, as the module does; numbers (sizes) that cross a cut are
those of the example.  What is written in place or drawn at random is made by one stage alone.

Between stages go the blocks that the plan sends: rank r of a stage to rank r of its neighbour.  Gradients add up over
the micro-batches where they are written, and are summed over the ranks of a stage once a step.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import csv
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.utils._pytree import tree_leaves, tree_map

from .dtensor_runtime import PlannedModule, placements_of, plan_module, split_dimensions
from .dtensor_steps import PlannedOptimizer, chosen_optimizer
from .pipelined_trace import Walk, has_tensors, walk_module

if TYPE_CHECKING:
    Plan = Mapping[str, Any]  # what the exported file holds: see `pipelined.document`


class Ranks(NamedTuple):
    """Where a rank stands: `number` of its stage, mesh of that stage, and mesh of stages by ranks within one."""

    number: int
    own: DeviceMesh
    across: DeviceMesh


def pipeline_ranks(plan: Plan, device_type: str) -> Ranks:
    """Meshes of all stages over all ranks of the job; rank r is device r of the plan."""
    stages, devices = plan["stages"], plan["devices"]
    if dist.get_world_size() != len(stages) * devices:
        raise ValueError(f"the job has {dist.get_world_size()} ranks, the plan {len(stages)} stages of {devices}")
    number, own = dist.get_rank() // devices, None
    for s, stage in enumerate(stages):  # every rank makes all of them: process groups are made together
        names, sizes = zip(*stage["mesh"], strict=True)
        ranks = torch.arange(s * devices, (s + 1) * devices).reshape(sizes)
        made = DeviceMesh(device_type, ranks, mesh_dim_names=names)
        own = made if s == number else own
    everyone = torch.arange(len(stages) * devices).reshape(len(stages), devices)
    across = DeviceMesh(device_type, everyone, mesh_dim_names=("stage", "rank"))
    assert own is not None
    return Ranks(number, own, across)


class Cut(NamedTuple):
    """`stages`: what each calls on `module`; it takes what crosses its left cut first, then the inputs of the whole
    module that it reads by name.  `crossing`: what goes from stage s to s + 1, as a fake tensor of a whole micro-batch;
    `results`: of the last stage.
    """

    module: nn.Module
    stages: list[fx.Graph]
    crossing: list[torch.Tensor]
    results: tuple[torch.Tensor, ...]

    def stage(self, number: int) -> fx.GraphModule:
        """A stage as a module, which shares its parameters with the whole."""
        return fx.GraphModule(self.module, self.stages[number])


def cut_module(plan: Plan, module: nn.Module, example: Sequence[Any] | Mapping[str, Any]) -> Cut:
    """The stages of `module`, which share its parameters.  `example`: inputs of one micro-batch, of which the shapes
    matter.  Raises ValueError where it is not the module that was planned, or cannot be cut so.
    """
    given = inspect.signature(module.forward)
    bound = given.bind(**example) if isinstance(example, Mapping) else given.bind(*example)
    left = {k: p.default for k, p in given.parameters.items() if k not in bound.arguments and p.default is not p.empty}
    walk = walk_module(module, bound.arguments, left)
    graph, values, _ = walk
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    order = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    steady, stage_of = _steady(module, order, walk), _stages(plan, module, order)
    ends, crossing = [], []
    for s in range(1, len(plan["stages"])):
        at, node = _place(plan, s, order, stage_of, steady, values)
        ends.append(at)
        crossing.append(node)
    result = next(n for n in graph.nodes if n.op == "output")
    final = tree_leaves(fx.node.map_arg(result.args[0], lambda n: values[n]))
    cut = Cut(module, [], [values[n] for n in crossing], tuple(v for v in final if isinstance(v, torch.Tensor)))
    for s, (low, high) in enumerate(zip((0, *ends), (*ends, len(order)), strict=True)):
        came, goes = crossing[s - 1] if s else None, crossing[s] if s < len(crossing) else None
        cut.stages.append(_stage_graph(order[low:high], inputs, came, goes, result, steady, values))
    return cut


def _steady(module: nn.Module, order: Sequence[fx.Node], walk: Walk) -> set[fx.Node]:
    """Calls that depend on no parameter, and on nothing of an input but its sizes, and give the same in every stage."""
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    values, found, sizes = walk.values, set[fx.Node](), set[fx.Node]()
    for n in order:
        reads = n.all_input_nodes
        if not has_tensors(values[n]) and all(a in sizes or has_tensors(values[a]) for a in reads):
            sizes.add(n)
        own = n.op == "get_attr" and n.target in trained
        own = own or (n.op == "call_module" and any(True for _ in module.get_submodule(n.target).parameters()))
        if not own and n not in walk.changing and all(a in found or a in sizes for a in reads):
            found.add(n)
    return found


def _stages(plan: Plan, module: nn.Module, order: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """The stage of every call that reads parameters."""
    named = dict(module.named_parameters(remove_duplicate=False))
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    stage: dict[int, int] = {}
    for s, planned in enumerate(plan["stages"]):
        optimizer = planned.get("optimizer") or {"groups": ()}
        buffers -= {name for group in optimizer["groups"] for name in group["weights"]}
        for name in (*planned["parameters"], *planned["whole"]):
            if name in buffers:
                continue  # every stage that reads it has it, whole
            if name not in named:
                raise ValueError(f"the module has no parameter {name!r}, which the plan places; is it another model?")
            stage[id(named[name])] = s
    found: dict[fx.Node, int] = {}
    for n in order:
        read = [named[n.target]] if n.op == "get_attr" and n.target in named else []
        if n.op == "call_module":
            read = list(module.get_submodule(n.target).parameters())
        mine = {stage[id(p)] for p in read if id(p) in stage}
        if len(mine) > 1:
            raise ValueError(f"the plan cuts inside {n.target!r}, which torch.fx keeps whole; write it as modules")
        if mine:
            found[n] = mine.pop()
    return found


def _place(
    plan: Plan,
    s: int,
    order: Sequence[fx.Node],
    stage_of: Mapping[fx.Node, int],
    steady: set[fx.Node],
    values: Mapping[fx.Node, Any],
) -> tuple[int, fx.Node]:
    """Where stage s begins in the order of calls, and what crosses there."""
    before = [i for i, n in enumerate(order) if stage_of.get(n, s) < s]
    behind = [i for i, n in enumerate(order) if stage_of.get(n, -1) >= s]
    low, high = max(before, default=-1) + 1, min(behind, default=len(order))
    if low > high:
        raise ValueError(f"the module calls {order[high].target!r} of a later stage before {order[low - 1].target!r}")
    at = {n: i for i, n in enumerate(order)}
    held = plan["stages"][s]["receives"]
    size = 1
    for digit in held["digits"]:
        size *= digit
    found, crossing = [], []
    for p in range(low, high + 1):
        crossing = [
            n
            for n in order[:p]
            if n not in steady and has_tensors(values[n]) and any(at.get(u, len(order)) >= p for u in n.users)
        ]
        alone = values[crossing[0]] if len(crossing) == 1 else None
        if isinstance(alone, torch.Tensor) and alone.numel() == size:
            found.append((p, crossing[0]))
    if not found:
        raise ValueError(
            f"no call before stage {s} ({held['place']}) leaves one tensor of {size} elements alone, but "
            f"{', '.join(n.name for n in crossing[:4]) or 'none'}: give an example of one of the "
            f"{plan['micro_batches']} micro-batches, of the model that was planned; what it writes in place or "
            "draws at random stays in one stage"
        )
    return found[0] if plan["stages"][s]["early"] else found[-1]


def _stage_graph(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    came: fx.Node | None,
    goes: fx.Node | None,
    result: fx.Node,
    steady: set[fx.Node],
    values: Mapping[fx.Node, Any],
) -> fx.Graph:
    """The calls of a stage as a graph of its own; inputs that it reads stand behind what crosses its left cut."""
    own = fx.Graph()
    wanted = {a for n in (*nodes, *(() if goes is not None else (result,))) for a in n.all_input_nodes}
    env: dict[fx.Node, Any] = {}
    if came is not None:
        env[came] = own.placeholder(came.name)
    for n in inputs:
        if came is None or n in wanted:
            env[n] = own.node_copy(n)

    def take(n: fx.Node) -> Any:
        if n in env:
            return env[n]
        value = values[n]
        if isinstance(value, torch.device) and came is not None:
            return own.call_function(getattr, (env[came], "device"))
        if not has_tensors(value):
            return value  # a number: that of the example
        if n not in steady:
            raise ValueError(f"a stage reads {n.name!r}, which no cut carries; is it the model that was planned?")
        env[n] = own.node_copy(n, take)
        return env[n]

    for n in nodes:
        if n not in env:
            env[n] = own.node_copy(n, take)
    own.output(env[goes] if goes is not None else fx.node.map_arg(result.args[0], take))
    own.lint()
    return own


class PlannedStage(nn.Module):  # type: ignore[misc]
    """A stage, laid out over its ranks.  It takes and gives the blocks that neighbours exchange; the first stage takes
    whole tensors, equal on its ranks, and the last gives such.
    """

    def __init__(self, plan: Plan, cut: Cut, ranks: Ranks) -> None:
        super().__init__()
        self.plan, self.mesh, self.number = plan["stages"][ranks.number], ranks.own, ranks.number
        self.first, self.last = ranks.number == 0, ranks.number + 1 == len(plan["stages"])
        module = cut.stage(ranks.number)
        self.came = None if self.first else cut.crossing[ranks.number - 1]
        self.goes = None if self.last else cut.crossing[ranks.number]
        self.planned: nn.Module = module
        if ranks.own.size() > 1:
            self.planned = plan_module(self.plan, module, ranks.own, whole=False, summed=False)

    def block(self, crossing: torch.Tensor, held: Mapping[str, Any]) -> tuple[list[Placement], tuple[int, ...]]:
        """How what crosses a cut lies on the ranks, and the shape of a rank's block."""
        splits = split_dimensions(held["splits"], held["digits"], tuple(crossing.shape), self.mesh)
        if splits is None:
            return [Replicate()] * self.mesh.ndim, tuple(crossing.shape)
        size = dict(zip(self.mesh.mesh_dim_names or (), self.mesh.shape, strict=True))
        shape = list(crossing.shape)
        for k, names in enumerate(splits):
            for name in names:
                shape[k] //= size[name]
        return placements_of(splits, [], None, self.mesh), tuple(shape)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """A micro-batch through the stage."""
        if not isinstance(self.planned, PlannedModule):
            return self.planned(*inputs, **named)
        functions, ready = self.planned.functions, list(inputs)
        if self.came is not None:
            placements, _ = self.block(self.came, self.plan["receives"])
            ready[0] = DTensor.from_local(inputs[0], self.mesh, placements, run_check=False)

        def enter(value: Any) -> Any:
            plain = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
            return functions.spread(value) if plain and value.is_floating_point() else value

        result = self.planned(*map(enter, ready), **{k: enter(v) for k, v in named.items()})
        if self.goes is None:
            return tree_map(lambda v: v.full_tensor() if isinstance(v, DTensor) else v, result)
        placements, _ = self.block(self.goes, self.plan["sends"])
        if not isinstance(result, DTensor):
            result = functions.spread(result)
        return result.redistribute(self.mesh, placements).to_local(grad_placements=placements)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the stage by the names of the module that was planned."""
        yield from self.planned.named_parameters(*args, **options)

    def collect(self) -> None:
        """Sum the gradients of a step over the ranks of the stage."""
        if self.mesh.size() == 1:
            return
        for name, parameter in self.named_parameters():
            grad, kept = parameter.grad, self.plan["state"].get(name)
            if kept is not None and placements_of(kept["splits"], [], None, self.mesh) != list(parameter.placements):
                continue  # `PlannedOptimizer` brings it to the finer layout of its moments
            if isinstance(grad, DTensor) and tuple(grad.placements) != tuple(parameter.placements):
                parameter.grad = grad.redistribute(parameter.device_mesh, parameter.placements)


def pipeline_stage(
    plan: Plan, module: nn.Module, ranks: Ranks, example: Sequence[Any] | Mapping[str, Any]
) -> PipelineStage:
    """This rank's stage for torch's schedules.  `example`: inputs of one micro-batch; its values do not matter."""
    cut = cut_module(plan, module, example)
    own = PlannedStage(plan, cut, ranks)
    device = torch.device(ranks.own.device_type)

    def block(crossing: torch.Tensor, held: Mapping[str, Any], gradient: bool) -> torch.Tensor:
        _, shape = own.block(crossing, held)
        return torch.empty(shape, dtype=crossing.dtype, device="meta", requires_grad=gradient)

    options: dict[str, Any] = {}
    if own.came is not None:
        options["input_args"] = block(own.came, own.plan["receives"], True)
    elif not isinstance(example, Mapping):
        options["input_args"] = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in example)
    if own.goes is not None:
        options["output_args"] = block(own.goes, own.plan["sends"], True)
    else:
        options["output_args"] = tuple(
            torch.empty(v.shape, dtype=v.dtype, device="meta", requires_grad=True) for v in cut.results
        )
    return PipelineStage(
        own, ranks.number, len(plan["stages"]), device, group=ranks.across.get_group("stage"), **options
    )


class PlannedSchedule(_PipelineScheduleRuntime):  # type: ignore[misc]
    """The plan's schedule, in torch's runtime; `step` leaves the step's gradients in the parameters."""

    def __init__(self, plan: Plan, stage: PipelineStage, loss: Callable[..., torch.Tensor], **options: Any) -> None:
        super().__init__([stage], plan["micro_batches"], loss_fn=loss, **options)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "actions.csv"
            with path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(row.split() for row in plan["actions"])
            self._load_csv(str(path), format="compute_comms")

    def step(self, *args: Any, **options: Any) -> Any:
        """All micro-batches forward and backward, in the order of the plan."""
        result = super().step(*args, **options)
        for stage in self._stages:
            stage.submod.collect()
        return result


def stage_optimizer(
    stage: PipelineStage, kind: type[torch.optim.Optimizer] | None, options: Mapping[str, Any]
) -> PlannedOptimizer | torch.optim.Optimizer:
    """The plan's optimizer of the stage's parameters, whose moments lie as planned.  `kind`: the class, None for the
    plan's; `options` take the place of the plan's numbers.  Raises ValueError for a class of another rule.
    """
    own = stage.submod
    chosen, groups, _ = chosen_optimizer(own.plan.get("optimizer"), kind)
    if own.mesh.size() > 1:
        return PlannedOptimizer(own.plan, own.planned, own.mesh, chosen, groups, options)
    named = dict(own.named_parameters())
    held = [
        {**numbers, **options, "params": [p for n, p in named.items() if p.requires_grad and (w is None or n in w)]}
        for numbers, w in groups
    ]
    return chosen([g for g in held if g["params"]])
