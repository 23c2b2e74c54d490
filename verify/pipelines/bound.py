"""Recomputes lower bounds of pipelined steps, a second time: least work, sends, and the program over cuts.

work   of an operator:  max( flops / (D peak), bytes written / (D bandwidth) ) + launch       rounded down per unit;
       with a measured form of products: at the rate of its fastest tile, or its launch, if that is faster;
       with one of attention: launch, and pace for every operation
send   of S bytes:      sum over the levels from the one that is crossed inwards of  S / links / bandwidth + latency
step   >=  W_0 + c_1 + sum over 0 < r < s of (A_r + c_{r+1}) + m A_s,  s > 0
step   >=  sum over r < s of (F_r + d_{r+1}) + V_s                    with F least work forward, d the send there

A bound is reached if no cut has all these below it; `cuts` looks at cuts one by one.

with W, A, V beyond any number for units whose parameters, forward tensors that their backward pass reads and, for
several micro-batches, gradients that updates alone read are more bytes than all devices of a view may hold.

The first micro-batch comes to stage s through all forwards before it; stage s then works for m micro-batches, alone
on its devices; the last backward there is followed by the backwards before it, and by the updates of stage 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from ...models.machine.machine import Machine
from ...models.pipelines.division import Division
from ...models.program.graph import Graph, Role
from ...models.program.operators import NodeKind
from ...proofs.container.effort import OBJECT, PART
from ..budget import Budget

PICO = 10**12
_WAYS = {"attention": "forward", "attention_lse": "forward"}
NEVER = 1 << 70
MOST_FRONT = 64
"""Sums in front of a unit; where there are more, the least of each kind stand for all."""
RUN = OBJECT << 3
"""Cells of one run of units that a program over cuts looks at."""
PLACE = "the program over cuts"
Runs = dict[tuple[int, int], int]
Work = list[dict[tuple[str, int, int, str | None, str], int]]
"""Per unit: how many operators have a phase, as many operations, as many bytes to write, arithmetic of a type, and (of
an attention) a direction."""


def parts(machine: Machine, stages: int) -> tuple[int, ...] | None:
    """Level sizes of one of `stages` equal parts, outermost levels cut first; None if there are none."""
    left, sizes = stages, []
    for size in machine.hierarchy:
        if size % left == 0:
            sizes.append(size // left)
            left = 1
        elif left % size == 0:
            sizes.append(1)
            left //= size
        else:
            return None
    return tuple(sizes) if left == 1 else None


def work_of(graph: Graph, division: Division) -> Work:
    """What is done in every unit, without regard to a machine."""
    work: Work = [{} for _ in range(division.units)]
    for i, op in enumerate(graph.operators):
        if (u := division.unit[i]) >= 0:
            out, flops = graph.tensor(op.output.tensor), graph.points(op) * graph.flops_per_point(op)
            way = "" if op.kind is not NodeKind.ATTENTION else _WAYS.get(op.function, "backward")
            dtype = graph.computed_in(op) if flops else None
            kind = division.phase[i], flops, out.elements * out.element_bytes, dtype, way
            work[u][kind] = work[u].get(kind, 0) + 1
    return work


def cells_of(work: Work, view: Machine) -> int:
    """Cells of the budget of a check that `least_work` takes, three times."""
    tiles = sum(len(form.tiles) for form in view.device.products)
    return PART * (16 + tiles) * sum(map(len, work))


def least_work(work: Work, view: Machine, phases: str = "FB") -> list[int]:
    """Picoseconds per unit for these phases of the graph's batch."""
    if view.profiles:
        return [0] * len(work)
    least = {kind: _least(*kind[1:], view) for kinds in work for kind in kinds if kind[0] in phases}
    return [int(sum(count * least[kind] for kind, count in kinds.items() if kind in least) * PICO) for kinds in work]


def _least(flops: int, written: int, dtype: str | None, way: str, view: Machine) -> Fraction:
    """Seconds of one operator."""
    busy, launch = Fraction(written) / view.device.bandwidth, view.device.launch
    if dtype is not None:
        rate = view.device.peak(dtype)
        for form in (p for p in view.device.products if p.dtype == dtype):
            launch = min(launch, form.launch)
            for rows, columns, time in form.tiles:
                rate = max(rate, 128 * rows * columns * form.processors / time)
        for seen in (f for f in view.device.attentions if (f.dtype, f.direction) == (dtype, way)):
            return max(busy, seen.pace * flops) / view.devices + seen.launch
        busy = max(busy, flops / rate)
    return busy / view.devices + launch


def send(machine: Machine, stages: int, size: int, far: bool) -> Fraction:
    """Seconds of `size` bytes to the next part; `far`: across the outermost level that separates any two."""
    sizes = parts(machine, stages)
    if sizes is None:
        raise ValueError(f"{machine.name} does not divide into {stages} parts")
    cut = [level for level in range(len(sizes)) if sizes[level] != machine.hierarchy[level]] or [0]
    return send_over(machine, stages, size, cut[0] if far else cut[-1])


def crossed_level(machine: Machine, stages: int, boundary: int) -> int:
    """The outermost level at which equal parts `boundary` - 1 and `boundary` differ."""
    return differ(machine, stages, boundary - 1, boundary)


def differ(machine: Machine, stages: int, one: int, other: int) -> int:
    """The outermost level at which two equal parts differ, counted in the machine's order."""
    sizes = parts(machine, stages)
    if sizes is None:
        raise ValueError(f"{machine.name} does not divide into {stages} parts")
    counts = [whole // here for whole, here in zip(machine.hierarchy, sizes, strict=True)]
    places = []
    for number in (one, other):
        digits = []
        for count in reversed(counts):
            digits.append(number % count)
            number //= count
        places.append(digits[::-1])
    return next((k for k, (a, b) in enumerate(zip(*places, strict=True)) if a != b), 0)


def send_over(machine: Machine, stages: int, size: int, level: int) -> Fraction:
    """Seconds of `size` bytes to another part, from this level inwards."""
    seconds, links = Fraction(0), 1
    for k, here in enumerate(parts(machine, stages) or ()):
        links *= here
        if k >= level:
            seconds += Fraction(size, links) / machine.levels[k].bandwidth + machine.levels[k].latency
    return seconds


def hops(machine: Machine, sizes: list[int], views: int, stages: int, ordered: bool) -> list[list[int]]:
    """Picoseconds of a send of such bytes at every cut in front of every stage: where it lies (`ordered`), or to the
    nearest.
    """
    out = [list[int]()]
    for s in range(1, stages):
        level = crossed_level(machine, views, s) if ordered else None
        times = (
            send(machine, views, n, False) if level is None else send_over(machine, views, n, level) for n in sizes
        )
        out.append([0, *(int(PICO * seconds) for seconds in times)])
    return out


def least_bytes(graph: Graph, division: Division, micro: int) -> list[int]:
    """Bytes per unit that a stage has behind its last forward operator, on all devices together."""
    unit = {op.name: u for op, u in zip(graph.operators, division.unit, strict=True)}
    phase = {op.name: p for op, p in zip(graph.operators, division.phase, strict=True)}
    writer = {op.output.tensor: op.name for op in graph.operators}
    used: dict[str, set[str]] = {t.name: set() for t in graph.tensors}
    for op in graph.operators:
        for a in op.inputs:
            used[a.tensor].add(op.name)
    found = [0] * division.units
    for t in graph.tensors:
        size, readers = t.elements * t.element_bytes, used[t.name]
        if t.role is Role.PARAMETER:
            here = {unit[name] for name in readers} - {-1}
            if len(here) == 1:
                found[min(here)] += size
        elif t.name in writer and unit[writer[t.name]] >= 0:
            u, kind = unit[writer[t.name]], phase[writer[t.name]]
            kept = kind == "F" and any(phase[name] == "B" and unit[name] == u for name in readers)
            added = kind == "B" and micro > 1 and {phase[name] for name in readers} == {"U"}
            found[u] += size if kept or added else 0
    return found


def table(units: int, groups: Sequence[Runs], memory: tuple[list[int], int] | None, budget: Budget) -> list[list[int]]:
    """[i][j]: the best sum of what runs side by side in units i .. j-1 take at least, all of one group; beyond any
    number for what does not fit `memory` (as in `least_step`).
    """
    rows = _sums(units, groups[0], budget)
    for runs in groups[1:]:
        rows = [list(map(max, a, b)) for a, b in zip(rows, _sums(units, runs, budget), strict=True)]
    if memory is not None:
        for i in range(units):
            held = 0
            for j in range(i + 1, units + 1):
                held += memory[0][j - 1]
                rows[i][j] = NEVER if held > memory[1] else rows[i][j]
    return rows


def _sums(units: int, runs: Runs, budget: Budget) -> list[list[int]]:
    """The best sums of one group."""
    budget.charge(RUN * units * (2 * units + len(runs)), PLACE)
    begins: dict[int, list[tuple[int, int]]] = {}
    for (a, b), value in runs.items():
        begins.setdefault(a, []).append((b, value))
    rows = [[0] * (units + 1) for _ in range(units + 1)]
    for i in range(units - 1, -1, -1):
        for j in range(i + 1, units + 1):
            rows[i][j] = max(rows[i + 1][j], *(value + rows[b][j] for b, value in begins.get(i, []) if b <= j), 0)
    return rows


def least_step(
    units: int,
    stages: int,
    micro: int,
    known: tuple[Sequence[Runs], Sequence[Runs], Sequence[Runs]],
    sends: list[int],
    memory: tuple[list[int], int] | None = None,
    wanted: tuple[int, list[int], list[int]] | None = None,
    budget: Budget | None = None,
) -> int:
    """The least bound over all cuts.  `known`: (A, W, V) of runs; those side by side add up in a group.  `sends[c]`:
    there and back at cut c.  `memory`: bytes per unit and what a stage may hold.  `wanted`: a value, which is the
    result too if no cut has both lines below it; least forward times of units; sends there.
    """

    budget = Budget.with_large() if budget is None else budget
    one, updated, step = (table(units, runs, memory, budget) for runs in known)
    budget.charge(RUN * stages * units * units, PLACE)
    if stages == 1:
        return step[0][units]
    behind = [micro * one[i][units] for i in range(units)]  # units i .. on the stages that are left
    for left in range(2, stages):
        behind = [
            min(
                (max(micro * one[i][j], one[i][j] + sends[j] + behind[j]) for j in range(i + 1, units - left + 2)),
                default=0,
            )
            for i in range(units)
        ]
    path = min(max(step[0][j], updated[0][j] + sends[j] + behind[j]) for j in range(1, units - stages + 2))
    longest = [step[i][units] for i in range(units)]
    for left in range(2, stages + 1):
        longest = [
            min((max(step[i][j], longest[j]) for j in range(i + 1, units - left + 2)), default=0) for i in range(units)
        ]
    value = max(path, longest[0])
    if wanted is None or value >= wanted[0]:
        return value
    return value if _below(units, stages, micro, (one, updated, step), sends, wanted, budget) else wanted[0]


def _below(
    units: int,
    stages: int,
    micro: int,
    known: tuple[list[list[int]], list[list[int]], list[list[int]]],
    sends: list[int],
    wanted: tuple[int, list[int], list[int]],
    budget: Budget,
) -> bool:
    """Whether some cut may have both lines below the value `wanted`: the sums in front of every unit that can begin a
    stage, from the first stage on, without those that another one is nowhere above.
    """
    (one, updated, step), (value, forward, there) = known, wanted
    front: dict[int, set[tuple[int, int]]] = {0: {(0, 0)}}
    upto = [0, *accumulate(forward)]
    for left in range(stages, 0, -1):
        after: dict[int, set[tuple[int, int]]] = {}
        for i, pairs in front.items():
            budget.charge(RUN * len(pairs) * (units - i), PLACE)
            for j in range(i + 1, units + 1) if left > 1 else (units,):
                if j > units - left + 1:
                    break
                for whole, ahead in pairs:
                    if ahead + step[i][j] >= value or (i and whole + micro * one[i][j] >= value):
                        continue
                    if left == 1:
                        return True
                    own = one[i][j] if i else updated[i][j]
                    after.setdefault(j, set()).add((whole + own + sends[j], ahead + upto[j] - upto[i] + there[j]))
        front = {}
        for j, pairs in after.items():
            budget.charge(RUN * len(pairs), PLACE)
            kept, least = set[tuple[int, int]](), NEVER * units
            for a, b in sorted(pairs):  # whoever is nowhere above comes before
                if b < least:
                    kept.add((a, b))
                    least = b
            many = len(kept) > MOST_FRONT
            front[j] = {(min(a for a, _ in kept), min(b for _, b in kept))} if many else kept
    return False
