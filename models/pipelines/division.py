"""A training step divided into units, the least pieces of a pipeline: every stage is a run of units.

Operators of the forward pass, in order, are cut wherever one tensor goes on and one gradient comes back:

    unit 0 | unit 1 | .. | unit n-1          cut c lies before unit c
    forward tensor x_c:  written by unit c-1, read behind the cut
    gradient g_c:        written by unit c, read before it

An operator of the backward pass belongs to the unit of the forward operator whose adjoint it is part of, an update to
the unit of its parameter, which is that of its first reader.  Constants that are computed (positions, masks) belong to
no unit: every stage computes those that it reads.  A cut is possible if nothing else crosses it that every micro-batch
has, and both tensors have a layout of their own (several readers).  What crosses once a step (gradients of parameters
that several units read, norms of all gradients, next values) is for `exchange`.  A step whose forward pass changes
state has one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..communication.choices import needs_copy
from ..program.graph import Graph, Role
from ..text import InputError
from .micro import batch_test

SHARED = -1
"""The unit of what every stage computes for itself."""

LEAST_SHARE = 500
"""A unit has at least 1/500 of the work of the forward pass, so that a model has some hundred units at most."""


ADDITIVE = ("sum", "sum_inputs", "scale", "cast", "copy")
"""What may be made of the parts of a sum before they are added."""


@dataclass(frozen=True)
class Division:
    """`unit[i]`, `phase[i]`: of operator i, phases "F" forward, "B" backward, "U" update.  `cuts[c - 1]`: the two
    tensors that cross cut c.
    """

    unit: tuple[int, ...]
    phase: tuple[str, ...]
    cuts: tuple[tuple[str, str], ...]

    @property
    def units(self) -> int:
        return len(self.cuts) + 1


def divide(graph: Graph, passes: Sequence[tuple[str, int]]) -> Division:
    """The units of a training step.  `passes`: of every operator, as `TrainingStep.passes`.

    >>> from ..sources.training import build_step
    >>> from ..sources.zoo import build
    >>> step = build_step(build("bert-tiny"), "sgd")
    >>> d = divide(step.graph, step.passes)
    >>> d.units, d.cuts[0]
    (9, ('embedding.norm', 'grad:embedding.norm'))
    """
    shared = constants(graph)
    passes = _late(graph, passes, shared)
    place = _places(graph, passes, shared)
    forward = [i for i, (phase, _) in enumerate(passes) if phase == "F"]
    stored = {value for _, value in graph.state}
    early = {op.output.tensor for op, (phase, _) in zip(graph.operators, passes, strict=True) if phase != "U"}
    possible = {} if stored & early else _crossings(graph, passes, place, shared)  # else micro-batches change state
    work = {passes[i][1]: graph.work(graph.operators[i]) for i in forward if i not in shared}
    total, since = sum(work.values()), 0
    ends: list[tuple[int, tuple[str, str]]] = []
    for p in range(max(work, default=0)):
        since += work.get(p, 0)
        if p + 1 in possible and since * LEAST_SHARE >= total:
            ends.append((p + 1, possible[p + 1]))
            since = 0
    while ends and since * LEAST_SHARE < total:  # too little is left behind the last cut
        last, _ = ends.pop()
        since += sum(w for p, w in work.items() if (ends[-1][0] if ends else 0) <= p < last)
    starts = [p for p, _ in ends]
    unit = tuple(SHARED if i in shared else _unit(p, starts) for i, p in enumerate(place))
    return Division(unit, tuple(phase for phase, _ in passes), tuple(names for _, names in ends))


def _late(graph: Graph, passes: Sequence[tuple[str, int]], shared: set[int]) -> list[tuple[str, int]]:
    """The passes, with what updates alone read and has no axis along the batch among the updates: sums of finished
    gradients need not run for every micro-batch.
    """
    out, readers = list(passes), graph.readers()
    if not any(t.role is Role.INPUT and t.contents is None and t.shape for t in graph.tensors):
        return out
    along = batch_test(graph)
    for i in reversed(range(len(graph.operators))):
        op = graph.operators[i]
        alone = {out[r][0] for r, _ in readers[op.output.tensor]} == {"U"}
        if alone and i not in shared and not any(along(("axis", op.name, a.name)) for a in op.axes):
            out[i] = "U", out[i][1]
    return out


def _unit(place: int, starts: Sequence[int]) -> int:
    return sum(place >= s for s in starts)


def constants(graph: Graph) -> set[int]:
    """Operators that depend on no parameter and on no input but stated constants."""
    plain = {t.name for t in graph.tensors if t.role is Role.INPUT and t.contents is not None}
    found: set[int] = set()
    for i, op in enumerate(graph.operators):
        if all(a.tensor in plain for a in op.inputs):
            found.add(i)
            plain.add(op.output.tensor)
    return found


def _places(graph: Graph, passes: Sequence[tuple[str, int]], shared: set[int]) -> list[int]:
    """Per operator the position of its forward operator; of an update, the first reader of the largest parameter, or of
    the largest of what other updates read, that it has.
    """
    place = [p for _, p in passes]
    at: dict[str, int] = {}
    for i, op in enumerate(graph.operators):
        for a in op.inputs:
            if passes[i][0] == "F" and i not in shared:
                at.setdefault(a.tensor, place[i])
    following = {value: name for name, value in graph.state}
    late: dict[str, int] = {}
    for i in reversed(range(len(graph.operators))):  # an update that only another update reads goes with that one
        if passes[i][0] != "U":
            continue
        op = graph.operators[i]
        out = op.output.tensor
        near = {n: at.get(n, late.get(n)) for n in (out, following.get(out, ""), *(a.tensor for a in op.inputs)) if n}
        known = [(-graph.tensor(n).elements, p) for n, p in near.items() if p is not None]
        if known:  # where the largest of them is: norms of gradients come to these, not these to the norm
            place[i] = min(known)[1]
            for n in (*(a.tensor for a in op.inputs), *([following[out]] if out in following else [])):
                if n not in at:
                    late[n] = min(late.get(n, place[i]), place[i])
    return place


def _crossings(
    graph: Graph, passes: Sequence[tuple[str, int]], place: Sequence[int], shared: set[int]
) -> dict[int, tuple[str, str]]:
    """Position -> the two tensors that cross a cut there, where it is possible."""
    readers, writer, copied = graph.readers(), graph.writer(), needs_copy(graph)
    end = 1 + max((p for _, p in passes), default=0)
    forward: list[list[str]] = [[] for _ in range(end + 1)]
    backward: list[list[str]] = [[] for _ in range(end + 1)]
    barred = [0] * (end + 2)
    following = {value for _, value in graph.state}

    def bar(low: int, high: int) -> None:
        if high > low:
            barred[low + 1] += 1
            barred[high + 1] -= 1

    for t in graph.tensors:
        uses = [i for i, _ in readers[t.name] if i not in shared]
        if t.name not in writer or not uses or writer[t.name] in shared:
            continue
        w = writer[t.name]
        if passes[w][0] != "F" and all(passes[i][0] == "U" for i in uses):
            continue  # once a step
        here, low, high = place[w], min(place[i] for i in uses), max(place[i] for i in uses)
        if t.host:  # no message takes it from one stage to another
            bar(min(here, low), max(here, high))
            continue
        if passes[w][0] == "F":
            bar(low, here)  # nobody before its writer may read it
            if high > here:
                if t.name in copied:
                    for p in range(here + 1, high + 1):
                        forward[p].append(t.name)
                else:
                    bar(here, high)
        elif t.name not in following:
            bar(here, high)
            if low < here:
                if t.name in copied:
                    for p in range(low + 1, here + 1):
                        backward[p].append(t.name)
                else:
                    bar(low, here)
        else:
            bar(min(low, here), max(high, here))
    found: dict[int, tuple[str, str]] = {}
    used: set[str] = set()
    depth = 0
    for p in range(1, end + 1):
        depth += barred[p]
        if depth == 0 and len(forward[p]) == len(backward[p]) == 1 and not used & {forward[p][0], backward[p][0]}:
            found[p] = forward[p][0], backward[p][0]
            used |= set(found[p])
    return found


def check_division(graph: Graph, division: Division) -> Division:
    """Self if there is one entry per operator; `InputError` else.  What it says about the graph is for `verify`."""
    if len(division.unit) != len(graph.operators) or len(division.phase) != len(graph.operators):
        raise InputError("the units are not one per operator of the graph")
    return division


def check_sums(graph: Graph, division: Division) -> None:
    """Raises `InputError` where more than a linear thing is made of a sum over the batch before the updates: the mean
    over labels that count divides by a number that micro-batches do not have.
    """
    along, sums = batch_test(graph), set[str]()
    for op, phase in zip(graph.operators, division.phase, strict=True):
        own = {a.name for a in op.axes if along(("axis", op.name, a.name))}
        read = sorted({a.tensor for a in op.inputs} & sums)
        if read and phase != "U" and op.function != "fill":
            if own or op.function not in ADDITIVE:
                raise InputError(
                    f"operator {op.name!r} ({op.function}) reads {read[0]!r}, a sum over the whole batch: no "
                    f"micro-batches in a pipeline (a mean over labels that count is one; sum, or divide by a constant)"
                )
            sums.add(op.output.tensor)
        if own & {a.name for a in op.reduction_axes}:
            sums.add(op.output.tensor)
