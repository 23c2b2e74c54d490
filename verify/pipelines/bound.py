"""Lower bounds of pipelined steps, a second time: least work, sends, and the program over cuts.

work   of an operator:  max( flops / (D peak), bytes written / (D bandwidth) ) + launch       rounded down per unit
send   of S bytes:      sum over the levels from the one that is crossed inwards of  S / links / bandwidth + latency
step   >=  max over stages s of   sum over r < s of (A_r + sends there and back)  +  V_s
"""

from __future__ import annotations

from fractions import Fraction

from ...models.machine.machine import Machine
from ...models.pipelines.division import Division
from ...models.program.graph import Graph

PICO = 10**12
Runs = dict[tuple[int, int], int]


def parts(machine: Machine, stages: int) -> tuple[int, ...] | None:
    """Level sizes of one of `stages` equal parts, outermost levels cut first; None if there are none."""
    left, sizes = stages, []
    for size in machine.hierarchy:
        if left == 1:
            sizes.append(size)
        elif size % left == 0:
            sizes.append(size // left)
            left = 1
        elif left % size == 0:
            sizes.append(1)
            left //= size
        else:
            return None
    return tuple(sizes) if left == 1 else None


def least_work(graph: Graph, view: Machine, division: Division) -> list[int]:
    """Picoseconds per unit for forward and backward of the graph's batch."""
    found = []
    for u in range(division.units):
        seconds = Fraction(0)
        for i, op in enumerate(graph.operators):
            if division.unit[i] == u and division.phase[i] in "FB" and not view.profiles:
                out, flops = graph.tensor(op.output.tensor), graph.points(op) * graph.flops_per_point(op)
                busy = Fraction(out.elements * out.element_bytes) / view.device.bandwidth
                if flops:
                    busy = max(busy, flops / view.device.peak(graph.computed_in(op)))
                seconds += busy / view.devices + view.device.launch
        found.append(int(seconds * PICO))
    return found


def send(machine: Machine, stages: int, size: int, far: bool) -> Fraction:
    """Seconds of `size` bytes to the next part; `far`: across the outermost level that separates any two."""
    sizes = parts(machine, stages)
    assert sizes is not None
    cut = [level for level in range(len(sizes)) if sizes[level] != machine.hierarchy[level]] or [0]
    seconds, links = Fraction(0), 1
    for level, here in enumerate(sizes):
        links *= here
        if level >= (cut[0] if far else cut[-1]):
            seconds += Fraction(size, links) / machine.levels[level].bandwidth + machine.levels[level].latency
    return seconds


def least_step(units: int, stages: int, micro: Runs, step: Runs, sends: list[int]) -> int:
    """The least bound over all cuts; runs that are known add up side by side.  `sends[c]`: there and back at cut c."""

    def table(known: Runs) -> list[list[int]]:
        rows = [[0] * (units + 1) for _ in range(units + 1)]
        for i in range(units - 1, -1, -1):
            for j in range(i + 1, units + 1):
                options = [rows[i + 1][j] if i + 1 <= j else 0]
                options += [value + rows[b][j] for b, value in begins.get((id(known), i), []) if b <= j]
                rows[i][j] = max(options)
        return rows

    begins: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for known in (micro, step):
        for (a, b), value in known.items():
            begins.setdefault((id(known), a), []).append((b, value))
    a, v = table(micro), table(step)

    # The value of units first .. with k stages under a head h is  min over cuts of max(h + V, value(h + A + send)).
    # It is  h + w  for one number w: every term has the same h in it.
    worst = {(u, 1): v[u][units] for u in range(units)}
    for k in range(2, stages + 1):
        for first in range(units - k + 1):
            worst[first, k] = min(
                max(v[first][j], a[first][j] + sends[j] + worst[j, k - 1]) for j in range(first + 1, units - k + 2)
            )
    return worst[0, stages]
