"""Takes a training step apart into what a stage of a configuration repeats: layers, ends, updates.

    first   what comes before the first layer        last    what comes behind the last one, with the loss
    layer   one of each kind; equal ones cost the same
    once    of parameters alone (casts of weights): once a step, with the updates
    never   of nothing but constants (masks, tables of positions): before training
    tied    the copy that the last stage has of a table that both ends read, where they are on two (`updates`)

Every part has its kernels and its collectives.  A product whose summed axis is split leaves a sum that is open: it is
reduced where the next operator reads it that is not such a sum itself; along a sequence that is split with the tensor
parallel devices it is scattered, and gathered again for whoever reads it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from typing import Final

from ....models.cost.alone import Device, elementwise
from ....models.cost.beside import Extra, dropout, loss, masked_softmax, summed_gradients
from ....models.cost.float8 import reads
from ....models.cost.kernels import FUSED, Kernels
from ....models.cost.projections import joint_kernels
from ....models.layout.targets.degrees import Flags
from ....models.machine.machine import Machine
from ....models.program.graph import Graph, Role
from ....models.program.operators import NodeKind, Operator
from ....models.sources.frameworks.placements import shares
from ....models.sources.frameworks.roles import Roles, of_zoo, roles
from ....models.sources.training import TrainingStep
from ....models.sources.training.recompute import PREFIX
from ....models.text import InputError
from .casts import casts
from .expert_rows import SORTED, SORTS, gates, rows_exchanged, times_sent
from .parts import FIRST, LAST, NEVER, ONCE, TIED, Meeting, Part, Pass, StageWork
from .updates import moments_of, read_at_both_ends, seconds_together, sizes_of, updates_of

_TENSOR: Final = frozenset("hkgfv")
_WORKING: Final = (NodeKind.CONTRACT, NodeKind.GROUPED, NodeKind.ATTENTION)


def stage_work(
    step: TrainingStep,
    machine: Machine,
    flags: Flags,
    micro_batch: int,
    kernels: Kernels = FUSED,
    frozen: bool = False,
) -> StageWork:
    """The parts of a step under the degrees of `flags`, for micro-batches of `micro_batch` samples on a copy.

    `frozen`: weights of layers are not trained (adapters), so that their gradients are not computed.  Raises
    `InputError` for a graph without layers, and degrees that do not divide it, `MachineError` for float8 where the
    device has none.
    """
    graph = step.graph
    named = roles(graph)
    known = named.letters
    batch = max((a.extent for op in graph.operators for a in op.axes if known[op.name].get(a.name) == "b"), default=1)
    if batch % micro_batch:
        raise InputError(f"{flags.source}: micro-batches of {micro_batch} do not divide a batch of {batch}")
    where = _parts_of(step, _layer_of(named))
    narrow = [op.name for op in graph.operators if kernels.eight and _is_narrow(op, graph, where)]
    device = Device(graph, machine, shares(flags, graph, batch // micro_batch), kernels, frozenset(narrow))
    names = tuple(dict.fromkeys(p for p in where.values() if p.startswith("layer")))
    if not names:
        raise InputError(f"{graph.name}: no operator is of a layer (layer0.., layer1..): there is nothing to repeat")
    parts = {name: Part() for name in (FIRST, *names, LAST, ONCE, NEVER)}
    passes = {op.name: p for op, (p, _) in zip(graph.operators, step.passes, strict=True)}
    trained = {gradient: weight for weight, gradient in step.trained}
    free = {op.name for op in graph.operators if _is_free(op, graph, frozen, trained, where)}
    inside = gates(graph) if kernels.experts == "fused" else frozenset[str]()
    for name, part in parts.items():
        for kind in "FBU":
            here = [op for op in graph.operators if where[op.name] == name and passes[op.name] == kind]
            running = [op for op in here if op.name not in free]
            joined = None if kind == "U" or name == ONCE else kernels.joined
            _price(part.passes[kind], device, [op for op in running if op.name not in inside], joined)
            if kind != "U" and name not in (ONCE, NEVER):
                part.least += _least(device, running, kind, batch // micro_batch * flags.tp * flags.cp)
            if kind == "F":
                part.work = sum(graph.work(op) for op in here if op.kind in _WORKING) * micro_batch // batch
    _cast(parts, device, where, passes, (inside, frozen))
    _run_beside(parts, device, where, passes, known, kernels)
    _meet(parts, device, where, passes, (flags, known), free)
    _hold(parts, step, device, where, passes, (_layer_of(named), not (kernels.chains or kernels.flash)))
    _tie(parts, step, device, where, passes, free)
    if kernels.sums and not frozen:
        for part in parts.values():
            part.summed = Fraction(summed_gradients(part.learnt)) / device.stream
    if flags.cp > 1:
        _hand_on(parts, device, where, passes, free)
    if any(op.kind is NodeKind.GROUPED for op in graph.operators):
        if not of_zoo(graph):
            raise InputError(f"{flags.source}: rows that go to experts are priced for the models of the zoo alone")
        _exchange(parts, device, where, passes, flags)
    stream = max((device.bytes_of(op) for op in graph.operators if _between(op, known)), default=0)
    types = [graph.computed_in(op) for op in graph.operators if op.kind in _WORKING]
    return StageWork(parts, names, stream, max(sorted(set(types)), key=types.count) if types else "float32")


def _parts_of(step: TrainingStep, layer: Callable[[str], str]) -> dict[str, str]:
    """Operator -> part."""
    graph, readers = step.graph, step.graph.readers()
    constant, weights = set[str](), {t.name for t in graph.tensors if t.role is Role.PARAMETER}
    of, first = dict[str, str](), True
    forward, writers = graph.operators, {t: graph.operators[i].name for t, i in graph.writer().items()}
    for op, (kind, origin) in zip(graph.operators, step.passes, strict=True):
        found = layer(op.name)
        read = {a.tensor for a in op.inputs}
        if kind == "F":
            if read <= constant:
                constant.add(op.output.tensor)
                of[op.name] = NEVER
                continue
            if read <= weights | constant:
                weights.add(op.output.tensor)
                of[op.name] = ONCE
                continue
        if kind == "B" and origin >= 0:
            of[op.name] = of[forward[origin].name]
            if of[op.name] in (ONCE, NEVER):
                of[op.name] = found or FIRST
            if of[op.name] == FIRST and op.kind in _WORKING and any(of.get(writers.get(t, "")) == LAST for t in read):
                of[op.name] = LAST  # the output's product with a table that the embedding reads as well
        elif found:
            of[op.name], first = found, False
        elif kind == "U":
            at = [graph.operators[readers[t][0][0]].name for t in sorted(read & weights) if readers[t]]
            ends = {of[name] for name in at if of.get(name) in (FIRST, LAST)}
            of[op.name] = min(ends) if ends else FIRST if op.name.startswith(("embedding", "position")) else LAST
        else:
            of[op.name] = FIRST if first else LAST
    return of


def _between(op: Operator, known: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether an operator's result is what goes on from layer to layer: examples, tokens, width."""
    letters = known[op.name]
    return op.kind is NodeKind.MAP and sorted(letters.values()) == ["b", "m", "s"] and len(op.axes) == len(letters)


def _layer_of(found: Roles) -> Callable[[str], str]:
    """Name of an operator or a tensor -> the part that is its layer; empty outside."""
    named = found.repeated

    def layer(name: str) -> str:
        found = None if named is None else named.search(name)
        return "" if found is None else f"layer{found[1]}"

    return layer


def _is_free(op: Operator, graph: Graph, frozen: bool, trained: Mapping[str, str], where: Mapping[str, str]) -> bool:
    """What no framework runs: the normaliser of attention again, which its forward kernel keeps; a norm without its
    weight, which the gradient's kernel has in registers; the one-hot rows of a loss, which are subtracted in place;
    and the gradients and updates of weights that are not trained.
    """
    if (
        op.function == "attention_lse"
        or op.name.endswith("/normal")
        or (op.kind is NodeKind.SCATTER and where[op.name] == LAST)
    ):
        return True
    return frozen and (op.output.tensor in trained or op.name.endswith(".next"))


def _least(device: Device, operators: list[Operator], kind: str, devices: int) -> Fraction:
    """What no completion is below: forward as the settings place it, backward products spread as well as can be."""
    if kind == "F":
        return sum((device.planned_time(op) for op in operators if op.kind in _WORKING), Fraction(0))
    return sum((device.least(op, devices) for op in operators), Fraction(0))


def _is_narrow(op: Operator, graph: Graph, where: Mapping[str, str]) -> bool:
    """Products of layers that multiply 16-bit operands."""
    product = op.kind in (NodeKind.CONTRACT, NodeKind.GROUPED) and len(op.reduction_axes) > 0
    halves = sum(graph.tensor(a.tensor).dtype == "bfloat16" for a in op.inputs[:2]) == 2
    inside = where[op.name].startswith("layer")
    return product and halves and inside and ".scores" not in op.name and ".context" not in op.name


def _cast(
    parts: Mapping[str, Part],
    device: Device,
    where: Mapping[str, str],
    passes: Mapping[str, str],
    left_out: tuple[frozenset[str], bool],
) -> None:
    """Fill in casts to float8; `left_out`: results that their kernel casts itself, and whether no weight is trained."""
    once = {name for name, part in where.items() if part in (ONCE, NEVER)}
    for op, seconds in casts(device, once, left_out[0], learns=not left_out[1]):
        found = parts[where[op.name]].passes[passes[op.name]]
        found.seconds, found.kernels = found.seconds + seconds, found.kernels + reads(device.scaling)


def _run_beside(
    parts: Mapping[str, Part],
    device: Device,
    where: Mapping[str, str],
    passes: Mapping[str, str],
    known: Mapping[str, Mapping[str, str]],
    kernels: Kernels,
) -> None:
    """Fill in what the framework runs beside the operators; what is computed again runs its forward part again."""
    graph, written = device.graph, device.graph.writer()
    ends = [op for op in graph.operators if where[op.name] == FIRST and passes[op.name] == "F" and _between(op, known)]
    for op in graph.operators:
        kind = passes[op.name]
        if kind == "U" or where[op.name] in (ONCE, NEVER):
            continue
        elements = device.bytes_of(op) // graph.tensor(op.output.tensor).element_bytes
        extra = Extra()
        if op.function == "log_softmax" and where[op.name] == LAST:
            extra += loss(elements, kernels.loss)
        if op.function == "softmax":
            before = written.get(op.inputs[0].tensor)
            if kernels.softmax and before is not None and graph.operators[before].function == "mask_fill":
                share, letters = device.share(op), known[op.name]
                extra += masked_softmax(elements, prod(n for a, n in share.items() if letters.get(a) in set("bhkg")))
            extra += dropout(elements, fused=False) if kernels.dropout else Extra()
        if kernels.dropout and _adds_to_stream(op, graph, known):
            extra += dropout(elements, fused=True)
        if kernels.dropout and ends and op is ends[-1]:
            extra += dropout(elements, fused=False)
        found, bandwidth = parts[where[op.name]].passes, device.stream
        found[kind].seconds += extra.forward / bandwidth
        found[kind].kernels += extra.forward_kernels
        if kind == "F":
            found["B"].seconds += extra.backward / bandwidth
            found["B"].kernels += extra.backward_kernels


def _adds_to_stream(op: Operator, graph: Graph, known: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether an operator adds what a half of a layer gives to what goes from layer to layer."""
    if op.function != "add" or not _between(op, known):
        return False
    return all(graph.tensor(a.tensor).shape == graph.tensor(op.output.tensor).shape for a in op.inputs)


def _price(found: Pass, device: Device, operators: list[Operator], joined: bool | None) -> None:
    """Add the operators of a part; `joined`: products of the same rows are one, None: all are launched as one."""
    kernels = device.kernels(operators)
    if joined is None:
        found.seconds += seconds_together(kernels, device.machine.device.launch)
        found.kernels += min(1, len(kernels))
        return
    for kernel in joint_kernels(device, kernels) if joined else kernels:
        found.seconds += kernel.seconds
        found.kernels += 1
        found.again += kernel.operators[0].startswith(PREFIX)
        op = device.graph.operator(kernel.operators[0])
        if op.kind in _WORKING:
            found.products += kernel.seconds
        if op.kind is NodeKind.ATTENTION:
            found.pairs += kernel.seconds


def _meet(
    parts: Mapping[str, Part],
    device: Device,
    where: Mapping[str, str],
    passes: Mapping[str, str],
    degrees: tuple[Flags, Mapping[str, Mapping[str, str]]],
    free: set[str],
) -> None:
    """Fill in the meetings of the tensor parallel devices; `degrees`: with the roles of axes."""
    flags, known = degrees
    if flags.tp == 1:
        return

    def along(op: Operator, letter: str) -> int:
        ways = device.ways[op.name]
        return prod(ways.get(a, 1) for a, x in known[op.name].items() if x == letter)

    graph, written = device.graph, device.graph.writer()
    opened, done = set[str](), set[tuple[str, str]]()
    for op in graph.operators:
        if passes[op.name] == "U" or where[op.name] in (ONCE, NEVER) or op.name in free:
            continue
        found, ways = parts[where[op.name]].passes[passes[op.name]], device.ways[op.name]
        tensor_axes = [a for a in op.axes if known[op.name].get(a.name) in _TENSOR and ways.get(a.name, 1) > 1]
        summed = any(a.combine is not None for a in tensor_axes)
        open_inputs = [a.tensor for a in op.inputs if a.tensor in opened]
        if open_inputs and op.function == "sum_inputs" and len(open_inputs) == len(op.inputs):
            opened.add(op.output.tensor)
            continue
        for tensor in open_inputs:
            opened.discard(tensor)
            source = graph.operators[written[tensor]]
            size = device.bytes_of(source) * times_sent(source, device)
            rows = along(op, "s") if along(op, "s") > 1 else along(op, "t")
            scattered = rows > flags.cp
            leaves = parts[where[source.name]].passes[passes[source.name]]
            leaves.meetings.append(
                Meeting("reduce_scatter" if scattered else "all_reduce", size, source.kind is NodeKind.GROUPED)
            )
        if summed:
            opened.add(op.output.tensor)
        split = bool(tensor_axes)
        for position, a in enumerate(op.inputs):
            i = written.get(a.tensor)
            if i is None or not split or (a.tensor, passes[op.name]) in done:
                continue
            source = graph.operators[i]
            if along(source, "s") > flags.cp and not elementwise(op):
                done.add((a.tensor, passes[op.name]))
                size = device.read_by(op, position) * times_sent(op, device)
                found.meetings.append(Meeting("all_gather", size, op.kind is NodeKind.GROUPED))


def _hand_on(
    parts: Mapping[str, Part], device: Device, where: Mapping[str, str], passes: Mapping[str, str], free: set[str]
) -> None:
    """Fill in the keys and values that context parallel devices hand on, and their gradients."""
    for op in device.graph.operators:
        if op.kind is NodeKind.ATTENTION and op.name not in free:
            found = parts[where[op.name]].passes[passes[op.name]]
            found.keys += sum(device.read_by(op, i) for i in (1, 2)) * (1 if passes[op.name] == "F" else 2)


def _hold(
    parts: Mapping[str, Part],
    step: TrainingStep,
    device: Device,
    where: Mapping[str, str],
    passes: Mapping[str, str],
    how: tuple[Callable[[str], str], bool],
) -> None:
    """Fill in the bytes of activations, weights, gradients and moments; `how`: the layer of a name, and whether norms
    and softmaxes are written out (`_written_out`).
    """
    graph, readers, (layer, eager) = step.graph, step.graph.readers(), how
    gradient_names = {gradient for _, gradient in step.trained}
    for op in graph.operators:
        part, after = parts[where[op.name]], readers[op.output.tensor]
        if passes[op.name] != "U" and where[op.name] not in (ONCE, NEVER) and op.output.tensor not in gradient_names:
            part.largest = max(part.largest, device.bytes_of(op))
            if op.name.startswith(PREFIX) and any(not graph.operators[i].name.startswith(PREFIX) for i, _ in after):
                part.again += device.bytes_of(op) + (_written_out(op, device) if eager else 0)
        later = any(passes[graph.operators[i].name] == "B" for i, _ in after)
        if passes[op.name] == "F" and later and where[op.name] not in (ONCE, NEVER):
            part.kept += device.bytes_of(op) + (_written_out(op, device) if eager else 0)
    weights = {weight for weight, _ in step.trained} | set(step.constant)
    gradient_of = dict(step.trained)
    for tensor in graph.tensors:
        if tensor.role is not Role.PARAMETER or not readers[tensor.name]:
            continue
        i, position = readers[tensor.name][0]
        op = graph.operators[i]
        size = device.read_by(op, position)
        end = where[op.name] if where[op.name] in (FIRST, LAST) else LAST
        part = parts[layer(tensor.name) or end]
        if tensor.name in weights:
            part.stored += size
            part.used += device.bytes_of(op) if where[op.name] == ONCE else 0
            if tensor.name in gradient_of:
                width = graph.tensor(gradient_of[tensor.name]).element_bytes
                part.gradients += size * width // tensor.element_bytes
                part.learnt += size // tensor.element_bytes
        else:
            part.moments += size


def _written_out(op: Operator, device: Device) -> int:
    """What autograd keeps beside an operator's result where it is written out in float32: the operand of an RMS norm,
    the result of a softmax before it is cast (huggingface/transformers, models/llama/modeling_llama.py).
    """
    tensor = device.graph.tensor(op.output.tensor)
    if op.function not in ("rms_norm", "softmax") or tensor.element_bytes >= _FLOAT:
        return 0
    return device.bytes_of(op) // tensor.element_bytes * _FLOAT


_FLOAT: Final = 4
"""Bytes of float32."""


def _tie(
    parts: dict[str, Part],
    step: TrainingStep,
    device: Device,
    where: Mapping[str, str],
    passes: Mapping[str, str],
    free: set[str],
) -> None:
    """Add the copy of what both ends read, if there is any."""
    tied = read_at_both_ends(step, where, passes, ONCE, (FIRST, LAST))
    updates = [op for op in updates_of(step, passes, tied) if op.name not in free]
    if updates:
        stored, used, gradients, learnt = sizes_of(step, device, where, ONCE, tied)
        moments = moments_of(device, updates, tied)
        parts[TIED] = Part(stored=stored, used=used, gradients=gradients, moments=moments, learnt=learnt)
        _price(parts[TIED].passes["U"], device, updates, None)


def _exchange(
    parts: Mapping[str, Part], device: Device, where: Mapping[str, str], passes: Mapping[str, str], flags: Flags
) -> None:
    """Fill in the rows that go to experts and come back, once each, and what sorts them."""
    for op in device.graph.operators:
        if op.kind is NodeKind.GROUPED and passes[op.name] == "F" and op.name.endswith(".gate"):
            part, (size, sent) = parts[where[op.name]], rows_exchanged(op, device, flags)
            part.rows += sent
            for kind in "FB":
                part.passes[kind].seconds += SORTED * size / device.stream
                part.passes[kind].kernels += SORTS
