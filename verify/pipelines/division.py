"""Whether a training step falls into units as a file says, and whether its batch may be cut into
micro-batches.

Units.  An operator of no unit depends on constants alone.  Of the others, from writer to reader:

    F -> F, F -> B   the reader's unit is not before the writer's        B -> B          not behind it
    F -> U           equal                                               B -> U, U -> U  any, if updates alone read it
    F, B, U in order: nothing reads a later phase                        an update is where what it is about is

and what crosses cut c (units < c to units >= c, or back) for every micro-batch is one forward tensor of unit c - 1 and
one backward tensor of unit c, both with a layout of their own.  What updates alone read, and parameters, may cross cuts
once per step (`exchange`).  What may run once per step does: next values are written by updates, and so is what updates
alone read and no axis along the batch has.

Batch.  Axes that run along the batch are those that indices of one axis alone join to the first dimension of the
inputs.  An operator has one such axis at most, whose only use is to index dimensions along the batch, alone; nothing
with stated contents, no statistics, window, table row, position or group runs along it.  So every element of the batch
is computed without the others.  An operator that sums over it has a result without it, which only updates read, through
operators that are linear in it and do not run along the batch, or nobody.  Updates read parameters, each other, and
such sums: nothing that every micro-batch has for itself.  So the gradients of micro-batches add up to that of the
batch, and what runs once per step can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...models.pipelines.division import Division
from ...models.program.attention import role
from ...models.program.graph import Graph, Role
from ...models.program.index import Combine
from ...models.program.operators import NodeKind, Operator
from ..plan.structure import copied_tensors, replaces, uses

Places = set[tuple[str, int]]
"""(tensor, dimension)."""

MOST_UNITS = 1024
"""Units of a step; the program over cuts takes the square of their number."""

LINEAR = frozenset({"sum_inputs", "scale", "cast", "copy", "sum"})
"""Functions that are linear in all their inputs together.  `fill` depends on none of its inputs."""


def wrong_division(graph: Graph, division: Division) -> str:
    """Why the units are not what the module docstring demands; empty if they are."""
    unit = dict(zip((op.name for op in graph.operators), division.unit, strict=True))
    phase = dict(zip((op.name for op in graph.operators), division.phase, strict=True))
    writer = {op.output.tensor: op.name for op in graph.operators}
    used, own = uses(graph), set(copied_tensors(graph))
    last = max(division.unit)
    if last + 1 != division.units or min(division.unit) < -1 or last >= MOST_UNITS:
        return f"there are {last + 1} units and {len(division.cuts)} cuts"
    if wrong := _not_updating(graph, division):
        return wrong
    for t in graph.tensors:
        units = {unit[name] for name, _ in used[t.name]} | ({unit[writer[t.name]]} if t.name in writer else set())
        if t.host and len(units - {-1}) > 1:
            return f"{t.name!r} lies on hosts, and no message takes it from unit {min(units)} to {max(units)}"
    plain = {t.name for t in graph.tensors if t.role is Role.INPUT and t.contents is not None}
    once = {t for t, w in writer.items() if phase[w] != "F" and all(phase[name] == "U" for name, _ in used[t])}
    for op in graph.operators:
        if unit[op.name] == -1 and phase[op.name] != "F":
            return f"operator {op.name!r} is of no unit and not of the forward pass"
        if all(a.tensor in plain for a in op.inputs):
            plain.add(op.output.tensor)
        elif unit[op.name] == -1:
            return f"operator {op.name!r} is of no unit and depends on more than constants"
    for t in graph.tensors:
        readers = [name for name, _ in used[t.name] if unit[name] >= 0]
        if t.name not in writer or unit[writer[t.name]] == -1:
            continue
        w = writer[t.name]
        for r in readers:
            if "FBU".index(phase[r]) < "FBU".index(phase[w]):
                return f"operator {r!r} reads {t.name!r} of a later phase"
            a, b = unit[w], unit[r]
            if t.name in once:
                continue
            backwards = b < a if phase[w] == "F" else b > a if phase[w] == "B" else a != b
            if backwards or (phase[r] == "U" and a != b):
                return f"operator {r!r} of unit {b} reads {t.name!r} of unit {a}"
    for c, pair in enumerate(division.cuts, 1):
        crossing: tuple[set[str], set[str]] = (set(), set())
        for tensor, w in writer.items():
            if unit[w] == -1 or tensor in once:
                continue
            ends = [unit[name] for name, _ in used[tensor] if unit[name] >= 0]
            if unit[w] < c and any(u >= c for u in ends):
                crossing[0].add(tensor)
            if unit[w] >= c and any(u < c for u in ends):
                crossing[1].add(tensor)
        if crossing != ({pair[0]}, {pair[1]}):
            return f"cut {c}: {sorted(crossing[0])[:3]} and {sorted(crossing[1])[:3]} cross it, not {list(pair)}"
        if unit[writer[pair[0]]] != c - 1 or unit[writer[pair[1]]] != c:
            return f"cut {c}: {list(pair)} are not written beside it"
        if not set(pair) <= own:
            return f"cut {c}: {list(pair)} have no layouts of their own"
    return _updated_elsewhere(graph, unit, phase)


def micro_batch_graph(graph: Graph, count: int, division: Division) -> tuple[Graph, str]:
    """(the graph of one of `count` micro-batches, empty), or (`graph`, why there are none)."""
    first = next((t for t in graph.tensors if t.role is Role.INPUT and t.contents is None and t.shape), None)
    if count == 1:
        return graph, ""
    if first is None or first.shape[0] % count:
        return graph, f"the batch cannot be cut into {count}"
    batch = first.shape[0]
    tensors, along = batch_places(graph)
    for name, k in sorted(tensors):
        t = graph.tensor(name)
        if t.role is Role.PARAMETER or t.contents is not None:
            return graph, f"{'parameter' if t.contents is None else 'constant'} {name!r} runs along the batch"
        if t.shape[k] != batch:
            return graph, f"dimension {k} of {name!r} runs along the batch of {batch} and has {t.shape[k]}"
    used, by_name = uses(graph), {op.name: op for op in graph.operators}
    updates = {op.name for op, phase in zip(graph.operators, division.phase, strict=True) if phase == "U"}
    if reason := _unsummed(graph, division, updates, along):
        return graph, reason
    for op in graph.operators:
        if reason := _unfit(op, along.get(op.name, set()), tensors):
            return graph, reason
        summed = any(a.name in along.get(op.name, ()) for a in op.reduction_axes)
        if summed and (reason := _not_linear(op, used, by_name, updates, along)):
            return graph, reason
    new_tensors = tuple(
        replace(
            t,
            shape=tuple(n // count if (t.name, k) in tensors else n for k, n in enumerate(t.shape)),
            source_shape=None,
        )
        if any((t.name, k) in tensors for k in range(len(t.shape)))
        else t
        for t in graph.tensors
    )
    new_operators = tuple(
        replace(
            op,
            axes=tuple(replace(a, extent=a.extent // count) if a.name in along[op.name] else a for a in op.axes),
        )
        if op.name in along
        else op
        for op in graph.operators
    )
    return replace(graph, tensors=new_tensors, operators=new_operators), ""


def batch_places(graph: Graph) -> tuple[Places, dict[str, set[str]]]:
    """Dimensions of tensors that run along the batch, and the axes of every operator that has such."""
    first = next((t for t in graph.tensors if t.role is Role.INPUT and t.contents is None and t.shape), None)
    batch = 0 if first is None else first.shape[0]
    tensors = {
        (t.name, 0)
        for t in graph.tensors
        if t.role is Role.INPUT and t.contents is None and t.shape and t.shape[0] == batch
    }
    axes: set[tuple[str, str]] = set()
    beside: dict[tuple[str, int], list[tuple[str, str]]] = {}
    touched: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for op in graph.operators:
        for a in (*op.inputs, op.output):
            for k, index in enumerate(a.index):
                if index.single is not None:
                    beside.setdefault((a.tensor, k), []).append((op.name, index.single))
                    touched.setdefault((op.name, index.single), []).append((a.tensor, k))
    other = {**replaces(graph), **{p: v for v, p in replaces(graph).items()}}
    todo = list(tensors)
    while todo:  # until nothing is joined any more
        name, k = todo.pop()
        reached = [(other[name], k)] if name in other else []
        for axis in beside.get((name, k), []):
            if axis not in axes:
                axes.add(axis)
                reached += touched[axis]
        todo += [t for t in dict.fromkeys(reached) if t not in tensors]
        tensors.update(reached)
    along: dict[str, set[str]] = {}
    for operator, axis_name in axes:
        along.setdefault(operator, set()).add(axis_name)
    return tensors, along


def _not_updating(graph: Graph, division: Division) -> str:
    """What might run once per step and is said to run for every micro-batch."""
    used, next_of = uses(graph), replaces(graph)
    phase = dict(zip((op.name for op in graph.operators), division.phase, strict=True))
    unit = dict(zip((op.name for op in graph.operators), division.unit, strict=True))
    tensors, along = batch_places(graph)
    for op in graph.operators:
        if phase[op.name] == "U" or unit[op.name] == -1:
            continue
        if op.output.tensor in next_of:
            return f"operator {op.name!r} writes a next value and is no update"
        readers = {phase[name] for name, _ in used[op.output.tensor]}
        if tensors and readers == {"U"} and op.name not in along:
            return f"operator {op.name!r} is read by updates alone, does not run along the batch and is no update"
    return ""


def _updated_elsewhere(graph: Graph, unit: Mapping[str, int], phase: Mapping[str, str]) -> str:
    """Which update lies in another unit than the largest thing that it is about: a parameter is of the unit that first
    reads it in the forward pass, what updates alone read of the first update that reads it; of several as large, of the
    first unit.
    """
    next_of, of = replaces(graph), dict[str, int]()
    for op in graph.operators:
        if phase[op.name] == "F" and unit[op.name] != -1:
            for a in op.inputs:
                of.setdefault(a.tensor, unit[op.name])
    first = dict(of)
    for op in reversed(graph.operators):
        if phase[op.name] != "U":
            continue
        about = [op.output.tensor, *(a.tensor for a in op.inputs)]
        about += [next_of[t] for t in about[:1] if t in next_of]
        known = [(-graph.tensor(t).elements, of[t]) for t in about if t in of]
        here = min(known)[1] if known else 0
        if unit[op.name] != here:
            return f"operator {op.name!r} of unit {unit[op.name]} updates what unit {here} has"
        for t in about[1:]:
            if t not in first:
                of[t] = min(of.get(t, here), here)
    return ""


def _unfit(op: Operator, along: set[str], tensors: Places) -> str:
    """Why an operator with axes `along` the batch does not work on a part of it."""
    place = f"operator {op.name!r}"
    for a in (*op.inputs, op.output):
        for k, index in enumerate(a.index):
            if index.single is None and ((a.tensor, k) in tensors or any(name in along for name, _ in index.terms)):
                return f"{place} reads or writes {a.tensor!r} along the batch at more than one place"
    if len(along) > 1:
        return f"{place} joins every element of the batch with every other"
    if along and (op.kind in (NodeKind.OPAQUE, NodeKind.SCAN) or op.function in ("constant", "random", "update")):
        return f"{place} ({op.function}) looks at the whole batch"
    if along & _whole(op):
        return f"{place} ({op.function}) looks at the whole batch"
    over = [a for a in op.reduction_axes if a.name in along]
    if any(a.combine is not Combine.SUM for a in over):
        return f"{place} takes no sum over the batch"
    if over and (op.function == "fused_product" or op.kind is NodeKind.WINDOW):
        return f"{place} ({op.function}) does more with a sum over the batch"
    return ""


def _whole(op: Operator) -> set[str]:
    """Axes along which an operator depends on positions, or on all elements together."""
    named = {*op.over, str(op.attribute("rows", "")), str(op.attribute("along", ""))}
    if op.kind is NodeKind.ATTENTION:
        named |= {*role(op, "query")}
    at = op.attribute("at", ())
    if op.function == "copy_gradient" and isinstance(at, tuple):
        named |= {name for k, name in enumerate(op.output.axes) if k in at}
    return named


def _not_linear(
    op: Operator,
    used: Mapping[str, list[tuple[str, int]]],
    by_name: Mapping[str, Operator],
    updates: set[str],
    along: Mapping[str, set[str]],
) -> str:
    """Who makes more than a linear thing of a sum over the batch."""
    todo, seen = [op.output.tensor], set[str]()
    while todo:
        for reader, _ in used[todo.pop()]:
            r = by_name[reader]
            if reader in updates or reader in seen or r.function == "fill":
                continue
            seen.add(reader)
            if r.function not in LINEAR or reader in along:
                return f"operator {reader!r} ({r.function}) needs the sum of {op.name!r} over the whole batch"
            todo.append(r.output.tensor)
    return ""


def _unsummed(graph: Graph, division: Division, updates: set[str], along: Mapping[str, set[str]]) -> str:
    """Which update reads something that is no sum over the batch."""
    summed: set[str] = set()
    for op in graph.operators:
        if along.get(op.name, set()) & {a.name for a in op.reduction_axes}:
            if not along[op.name] & set(op.output.axes):
                summed.add(op.output.tensor)
        elif op.function in LINEAR and op.inputs and all(a.tensor in summed for a in op.inputs):
            summed.add(op.output.tensor)
    writer = {op.output.tensor: op.name for op in graph.operators}
    shared = {op.name for op, unit in zip(graph.operators, division.unit, strict=True) if unit == -1}
    for op in graph.operators:
        if op.name not in updates:
            continue
        if op.name in along:
            return f"operator {op.name!r} updates and runs along the batch"
        for a in op.inputs:
            known = graph.tensor(a.tensor).role is Role.PARAMETER or writer.get(a.tensor) in updates | shared
            if not known and a.tensor not in summed:
                return f"operator {op.name!r} updates and reads {a.tensor!r}, which is no sum over the batch"
    return ""
