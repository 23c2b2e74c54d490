"""Runs a planned PyTorch module on one rank of a pretended job, counts what it sends, and compares with
the plan.

PyTorch's `fake` process group performs no communication: collectives return at once, whatever the number of ranks.  One
forward and one backward pass of rank 0 are run; every collective is counted where it is called, with the bytes that a
rank receives over a group of g ranks:

    all-gather, of n bytes a rank   (g - 1) n            all-reduce of n bytes    2 (g - 1) / g n
    reduce-scatter to n bytes       (g - 1) n            all-to-all of n bytes      (g - 1) / g n

which is what the plan counts at its innermost level.  Reshardings that the plan asked for are known by tensor and
reader, on the way forward and (PyTorch keeps the name with the gradient's node) on the way back; what DTensor does
besides is known by the function that it does it for.  A loss that the model computes is one function of the job and
several operators of the plan: they have one place together, with what the plan moves between them and for the maxima
and sums of its log-softmax.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...models.cost.cost import STATISTIC_BYTES
from ...models.layout.placement import Placement
from ...models.program.operators import FUNCTIONS, NodeKind, Operator
from ...models.sources.training.recompute import PREFIX
from ...proofs.plan.bundle import Plan
from .dtensor_functions import PLACE
from .modules import PART, forward_operators, micro_batches
from .read_recipe import recipe
from .rows import Row, Traffic

if TYPE_CHECKING:
    from torch import Tensor, nn

GRADIENT = "gradient of "
LOSS = "loss inside, function cross_entropy"
_LOSSES = frozenset(f"function {name}" for name in ("cross_entropy", "nll_loss"))


class _Count(TorchDispatchMode):  # type: ignore[misc]
    """Bytes and collectives by place."""

    def __init__(self, here: Callable[[], str]) -> None:
        super().__init__()
        self.here = here
        self.bytes: Counter[str] = Counter()
        self.calls: dict[str, list[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(t is DTensor for t in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional":
            name = str(func).split(".")[1]
            received = _received(name, args, out)
            if received is not None:
                place = self.here()
                self.bytes[place] += received
                self.calls.setdefault(place, []).append(name)
        return out


def _received(name: str, args: tuple[Any, ...], out: Any) -> int | None:
    """Bytes that a rank receives; None for what is no collective."""
    if name.startswith("all_gather_into_tensor"):
        return int(out.nbytes - args[0].nbytes)
    if name.startswith("reduce_scatter_tensor"):
        return int(args[0].nbytes - out.nbytes)
    if name not in ("all_reduce", "all_reduce_", "all_to_all_single", "broadcast"):
        return None
    group = dist.distributed_c10d._resolve_process_group(args[-1])
    n = int(args[0].nbytes)
    size = int(group.size())
    share = Fraction(size - 1, size)
    return n if name == "broadcast" else int((1 if name == "all_to_all_single" else 2) * n * share)


@contextmanager
def fake_process_group(ranks: int) -> Iterator[None]:
    """A process group of so many ranks that sends nothing; this process is rank 0."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError("a process group exists already; count the traffic of a job in a process of its own")
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def traffic(
    plan: Plan,
    planned: nn.Module,
    inputs: tuple[Any, ...] | Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None,
    collect: Callable[[], None],
) -> Traffic:
    """Collectives of one pass of `planned`, a module that was laid out as `plan` says.  `loss`: of what it returns; by
    default the sum of the squares of its first tensor.  `collect` brings gradients to the optimizer.
    """
    functions, passed = planned.functions, _passed_on(plan)

    def here() -> str:
        if functions.here:
            return str(functions.here)
        node = torch._C._current_autograd_node()
        if node is None:
            return "outside of functions"
        known = str(node.metadata.get(PLACE, ""))
        if not known:
            return f"{GRADIENT}function {_function(node.name())}"
        return GRADIENT + passed.get(known.partition(" -> ")[0], known.partition(" -> ")[0])

    inside = loss_operators(plan)

    def place() -> str:
        at = here()
        return LOSS if inside and at in _LOSSES else _whole(at)

    count = _Count(place)
    with count:
        for part in _parts(inputs, micro_batches(plan.graph)):
            out = planned(**part) if isinstance(part, Mapping) else planned(*part)
            value = _first(out).square().sum() if loss is None else loss(out)
            if value.requires_grad:
                value.backward()
        if value.requires_grad:
            collect()
    wanted: dict[str, int] = {}
    for at, moved in _communication_bytes(plan, inside).items():
        wanted[_whole(at)] = wanted.get(_whole(at), 0) + moved
    places = list(dict.fromkeys([*wanted, *count.bytes]))
    rows = tuple(Row(p, wanted.get(p, 0), count.bytes[p], tuple(count.calls.get(p, ()))) for p in places)
    return Traffic(tuple(r for r in rows if r.planned or r.received), tuple(sorted(functions.whole.items())))


def _whole(place: str) -> str:
    """A place of any micro-batch, and of what is computed again, by the name it has in the whole step.

    >>> _whole("fc1@3 -> relu@3"), _whole("recompute:fc1 -> recompute:relu"), _whole("gradient of fc1")
    ('fc1 -> relu', 'fc1 -> relu', 'gradient of fc1')
    """
    return " ".join(PART.sub("", word.removeprefix(PREFIX)) for word in place.split(" "))


def _parts(inputs: Any, count: int) -> Iterator[Any]:
    """Equal parts of the batch, the first dimension of every input."""
    if count == 1:
        yield inputs
        return
    kind = type(inputs)
    named = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    for i in range(count):
        part = {k: x.chunk(count)[i] if isinstance(x, torch.Tensor) and x.ndim else x for k, x in named.items()}
        yield part if isinstance(inputs, Mapping) else kind(part.values())


def _function(node: str) -> str:
    """`MmBackward0` -> `Mm`."""
    return str(node.partition("Backward")[0].rpartition("::")[2].lstrip("_"))


def _first(out: Any) -> Any:
    while not isinstance(out, torch.Tensor):
        out = next(iter(out.values() if isinstance(out, Mapping) else out))
    return out


def _passed_on(plan: Plan) -> dict[str, str]:
    """Tensor -> the one whose gradient is its own: of what is only added to something, that of the sum."""
    graph, readers = plan.graph, plan.graph.readers()
    own = {op.output.tensor for op in forward_operators(graph)}
    out: dict[str, str] = {}
    for op in reversed(list(forward_operators(graph))):
        for a in op.inputs:
            uses = [graph.operators[i].output.tensor for i, _ in readers[a.tensor]]
            alone = [t for t in uses if t in own] == [op.output.tensor]
            if op.function == "add" and alone and graph.tensor(a.tensor).shape == graph.tensor(op.output.tensor).shape:
                out[a.tensor] = out.get(op.output.tensor, op.output.tensor)
    return out


def loss_operators(plan: Plan) -> dict[str, Operator]:
    """Operators of a cross entropy that the model itself computes, by name: a log-softmax of which labels pick, and all
    that is computed of it.  Empty where the step's loss was added to the model.
    """
    graph, loss = plan.graph, recipe(plan.graph).loss
    if loss is not None and loss.kind != "returned":
        return {}
    forward = list(forward_operators(graph))
    picked = {op.inputs[0].tensor for op in forward if op.kind is NodeKind.GATHER}
    out: dict[str, Operator] = {}
    made: set[str] = set()
    for op in forward:
        first = op.function == "log_softmax" and op.output.tensor in picked
        if first or any(a.tensor in made for a in op.inputs):
            out[op.name] = op
            made.add(op.output.tensor)
    return out


def _statistics(op: Operator, placement: Placement) -> int:
    """Bytes that a device receives for the statistics of an operator, as they are priced: each is reduced in parts, and
    the parts are gathered (`models.cost.cost.statistics_terms`, innermost level).
    """
    ways = {a: prod(row) for a, row in zip(placement.axes, placement.matrix, strict=False)}
    shared = prod(n for a, n in ways.items() if a in op.over)
    own = prod(-(-a.extent // ways.get(a.name, 1)) for a in op.axes if a.name not in op.over)
    return len(FUNCTIONS[op.function].statistics) * STATISTIC_BYTES * 2 * -(-own // shared) * (shared - 1)


def _communication_bytes(plan: Plan, inside: Mapping[str, Operator]) -> dict[str, int]:
    """Bytes that a device receives in the plan, by place: what moves in the forward pass by tensor and reader, what
    moves of gradients by the tensor that they belong to.  Movements of optimizers are no part of a pass.  `inside`:
    operators that are one function of the job.
    """
    graph, passed = plan.graph, _passed_on(plan)
    forward = {op.name for op in forward_operators(graph)}
    forward |= {op.name for op in graph.operators if op.name.startswith(PREFIX)}
    written = {op.output.tensor: op.name for op in graph.operators}
    tensors = {t.name for t in graph.tensors}
    placements = dict(plan.choices.operators)
    out: dict[str, int] = {}
    for op in inside.values():
        if op.function == "log_softmax" and (moved := _statistics(op, placements[op.name])):
            out[LOSS] = out.get(LOSS, 0) + moved
    for m in plan.communication:
        if not m.loads[-1]:
            continue
        writer, base = written.get(m.tensor), m.tensor.removeprefix("grad:")
        if m.reader in inside or writer in inside or written.get(base) in inside:
            out[LOSS] = out.get(LOSS, 0) + m.loads[-1] * graph.tensor(m.tensor).element_bytes
            continue
        if m.tensor.startswith("grad:"):
            known = base if base in tensors else base.partition("/")[0].partition("#")[0]
            place = GRADIENT + passed.get(known, known)
        elif (writer is None or writer in forward) and (m.reader is None or m.reader in forward):
            place = f"{m.tensor} -> {m.reader or 'its place'}"
        elif m.reader is not None and m.reader.startswith("grad:"):
            place = f"{m.tensor} again, for gradients"
        else:
            continue
        out[place] = out.get(place, 0) + m.loads[-1] * graph.tensor(m.tensor).element_bytes
    return out
