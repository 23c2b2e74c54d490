"""What a file of a composed plan says, beside what an enumeration of its own space finds.

    plain, joint     every placement, within the rows of program order
    overlapped       every placement and every order on two streams, within what is held at every moment
    with views       every division of every region and every placement (`test_views_enumerated.Every`)
    pipelined        every pair and triple, every cut, placement and order (`composed_stages`)
    several plans    each by itself

Numbers of a claim are those that `check --json` says, so nothing of a format but choices and what is enumerated is read.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
from composed_prices import NOWHERE, Priced, Tasks
from composed_stages import PICO, Stages, Step, send, shorter, view_of
from second_builder.description import BYTES, read_machine, read_program
from second_builder.memory_rows import held as rows_of
from second_builder.tables import Vertex
from test_views_enumerated import Every

from shardproof.__main__ import run
from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph
from shardproof.models.views.regions import Region
from shardproof.proofs.container.archive import Member, read_container
from shardproof.proofs.views.file import decode_submesh_plan

Read = dict[str, object]
MOST_PLACEMENTS = 1 << 18
"""Of whole overlapped plans, one by one; of more the plan is priced, and no optimum is looked for."""


@dataclass(frozen=True)
class Found:
    """`cost` and `lower_bound`: seconds, as `check` says them; `optimum`: seconds of the best of the claim's space
    (None: nothing fits), if it was found (`exact`); `priced`: seconds of the plan of the file, counted here; `held`: bytes of its fullest device.
    """

    kind: str
    cost: Fraction
    lower_bound: Fraction
    optimum: Fraction | None
    exact: bool
    priced: Fraction
    limit: int | None
    held: int
    free: Fraction | None
    """`optimum` without the limit."""

    def wrong(self) -> list[str]:
        """What cannot be."""
        found = []
        if self.priced != self.cost:
            found.append(f"the plan takes {float(self.priced)}, not {float(self.cost)}")
        if not self.exact:
            found += ["the bound is above the plan"] if self.lower_bound > self.cost else []
        elif self.optimum is None or self.lower_bound > self.optimum:
            found.append(f"the bound {float(self.lower_bound)} is above the optimum {self.optimum}")
        elif self.optimum > self.cost:
            found.append(f"the plan takes {float(self.cost)}, less than the optimum {float(self.optimum)}")
        if self.limit is not None and self.held > self.limit:
            found.append(f"the plan holds {self.held} of {self.limit} bytes")
        return [f"{self.kind}: {w}" for w in found]


def said(line: Sequence[str]) -> tuple[int, Read]:
    """Exit status of a command, and what it says in JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = run([*line, "--json"])
    return status, json.loads(out.getvalue())


def looked_at(path: Path, batch: int = 0) -> Iterator[Found]:
    """Every plan of a file.  `batch`: the extent that micro-batches cut."""
    members = read_container(path)
    inner = sorted(name for name in members if name.endswith(".spz"))
    for name in inner:
        one = path.with_name(f"{path.stem}-{Path(name).stem}.spz")
        content = members[name]
        assert isinstance(content, bytes)
        one.write_bytes(content)
        yield from looked_at(one, batch)
    if not inner:
        yield _one(path, members, batch)


def _one(path: Path, members: Mapping[str, Member], batch: int) -> Found:
    status, check = said(["check", str(path)])
    assert status in (0, 5), check
    claims = [c for c in check["claims"] if c["kind"] in ("Optimal", "WithinGap")]  # type: ignore[attr-defined]
    (claim,) = claims
    (scale, *_) = {r["scale"] for r in check["rounding"]}  # type: ignore[attr-defined]
    return compared(members, scale, claim["cost"], claim["lower_bound"], batch)


def compared(members: Mapping[str, Member], scale: int, cost: int, lower_bound: int, batch: int) -> Found:
    """What a checker established of one plan, in units of its claim, beside what is counted here.  `scale`: units of
    the problem in a second.
    """
    kinds = {"pipeline.json": _pipelined, "overlap.json": _overlapped, "views.json": _views, "plan.json": _plain}
    name = next(n for n in kinds if n in members)
    per = PICO if name == "pipeline.json" else scale
    optimum, priced, limit, held, free = kinds[name](members, scale, batch)
    return Found(
        "joint.json" if "joint.json" in members else name,
        Fraction(cost, per),
        Fraction(lower_bound, per),
        None if optimum is None else Fraction(optimum, per),
        optimum != NOWHERE,
        Fraction(priced, per),
        limit,
        held,
        None if free is None else Fraction(free, per),
    )


REMEMBERED: dict[tuple[object, ...], int | None] = {}
"""Optima of spaces that were enumerated: forgeries of one file have few."""


@lru_cache(maxsize=64)
def priced_of(
    graph: str, machine: str, space: str, scale: int, batch: int = 0, stages: int = 1, micro: int = 1
) -> Priced:
    """A program, or that of a micro-batch on one of equal parts."""
    whole = read_machine(machine)
    if stages == micro == 1:
        return Priced(read_program(graph), whole, space, scale)
    return Priced(shorter(graph, batch, micro), view_of(whole, stages), space, scale)


@lru_cache(maxsize=16)
def every_of(graph: str, machine: str, regions: tuple[Region, ...], scale: int) -> Every:
    """All choices of a plan with submeshes."""
    return Every(Graph.from_json(graph), Machine.from_json(machine), regions, scale)


def remembered(key: tuple[object, ...], find: Callable[[], int | None]) -> int | None:
    """What was found for the same space before."""
    if key not in REMEMBERED:
        REMEMBERED[key] = find()
    return REMEMBERED[key]


Numbers = tuple[int | None, int, int | None, int, int | None]
"""Optimum, what the plan takes, limit, what it holds, optimum without the limit."""


def text_of(members: Mapping[str, Member], name: str) -> str:
    content = members[name]
    assert isinstance(content, bytes)
    return content.decode()


def _chosen(priced: Priced, operators: list, copies: list) -> dict[Vertex, int]:  # type: ignore[type-arg]
    named = [(("operator", row[0]), row) for row in operators] + [(("copy", row[0]), row) for row in copies]
    return {v: priced.choice(v, row[1], row[2]) for v, row in named}


def _plain(members: Mapping[str, Member], scale: int, batch: int) -> Numbers:
    head = json.loads(text_of(members, "plan.json"))
    program, machine = read_program(text_of(members, "graph.json")), read_machine(text_of(members, "machine.json"))
    priced, limit = Priced(program, machine, head["space"], scale), head["memory_limit"]
    x = _chosen(priced, head["decisions"]["operators"], head["decisions"]["copies"])
    free, least = priced.least_total(None), priced.least_total(limit)
    if "base.json" in members:  # of a joint plan the user's program is in the space too
        other = Priced(read_program(text_of(members, "base.json")), machine, head["space"], scale)
        others = other.least_total(limit), other.least_total(None)
        least = min((n for n in (least, others[0]) if n is not None), default=None)
        free = min(n for n in (free, others[1]) if n is not None)
    return least, priced.total(x), limit, priced.held(x), free


def _overlapped(members: Mapping[str, Member], scale: int, batch: int) -> Numbers:
    head = json.loads(text_of(members, "overlap.json"))
    priced = priced_of(text_of(members, "graph.json"), text_of(members, "machine.json"), head["space"], scale)
    limit = head.get("memory_limit")
    x = _chosen(priced, head["operators"], head["copies"])
    tasks = priced.tasks(x, memory=True)
    starts = _starts(members, len(tasks.times))
    ends = [q + t for q, t in zip((head["quantum"] * s for s in starts), tasks.times, strict=True)]
    starts = [head["quantum"] * s for s in starts]
    wrong = [t for t in range(len(starts)) for u in tasks.waits[t] if ends[u] > starts[t]]
    for stream in (0, 1):
        row = sorted((starts[t], ends[t]) for t in range(len(starts)) if tasks.streams[t] == stream)
        wrong += [a for (_, a), (b, _) in itertools.pairwise(row) if a > b]
    assert not wrong, wrong
    assert head["quantum"] == 1
    if priced.placements > MOST_PLACEMENTS:
        return NOWHERE, max(ends), limit, most_held(tasks, starts, ends), NOWHERE
    key = program_key(members, head["space"], scale)
    free = remembered((*key, None), lambda: priced.least_overlapped(None))
    least = remembered((*key, limit), lambda: priced.least_overlapped(limit))
    return least, max(ends), limit, most_held(tasks, starts, ends), free


def program_key(members: Mapping[str, Member], *more: object) -> tuple[object, ...]:
    """What an enumeration is about."""
    return text_of(members, "graph.json"), text_of(members, "machine.json"), *more


def _starts(members: Mapping[str, Member], tasks: int) -> list[int]:
    rows = members["schedule.i64"]
    assert isinstance(rows, np.ndarray)
    return [int(n) for n in rows.reshape(-1)[:tasks]]


def most_held(tasks: Tasks, starts: Sequence[int], ends: Sequence[int]) -> int:
    """The most bytes at any moment of a schedule."""
    spans = [
        (size, 0 if first < 0 else starts[first], max((ends[t] for t in last), default=NOWHERE))
        for size, first, last in tasks.blocks
    ]
    return max(sum(size for size, a, b in spans if a <= moment < b) for moment in {0, *starts})


def _views(members: Mapping[str, Member], scale: int, batch: int) -> Numbers:
    c = decode_submesh_plan(members)
    every = every_of(text_of(members, "graph.json"), text_of(members, "machine.json"), c.regions, scale)
    head = json.loads(text_of(members, "views.json"))
    rows = {("operator", r[0]): r for r in head["operators"]} | {("copy", r[0]): r for r in head["copies"]}
    ways = []
    for region in c.regions:
        views = [head_view(rows["operator", branch[0][0]][3]) for branch in region.branches]
        known = [None, *region.divisions]
        plain = [None if d is None else tuple((v.starts, v.counts) for v in d) for d in known]
        ways.append(known[plain.index(None if views[0] is None else tuple(v for v in views if v is not None))])
    views_of = every.views(tuple(ways))
    vertices = list(every.on(None).choices)
    x = []
    for v, view in zip(vertices, views_of, strict=True):
        _, axes, matrix, _ = rows[v]
        known_choices = every.on(view).choices[v]
        named = {**dict(zip(axes, matrix[:-1], strict=True)), "": matrix[-1]}
        x.append(known_choices.matrices.index(tuple(tuple(named[a]) for a in (*known_choices.axes, ""))))
    held = held_on_views(every, dict(zip(vertices, zip(x, views_of, strict=True), strict=True)))
    best = remembered(program_key(members, json.dumps(head["regions"]), scale), lambda: min(every.every().values()))
    return best, every.total(tuple(ways), x), head.get("memory_limit"), held, best


def head_view(row: object) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(starts, counts) as the file has them."""
    if row is None:
        return None
    starts, counts = row  # type: ignore[misc]
    return tuple(starts), tuple(counts)


def held_on_views(every: Every, x: Mapping[Vertex, tuple[int, object]]) -> int:
    """The most bytes of a device in program order, every device with its own boxes."""
    program, sizes = every.on(None).program, every.on(None).machine.sizes
    devices, steps = prod(sizes), len(program.operators)
    total = np.zeros((steps, devices), dtype=np.int64)
    for use in rows_of(program):
        if use.writer is not None:
            v: Vertex = ("operator", use.writer)
        elif use.reader is not None:
            v = ("operator", use.reader[0])
        else:
            v = ("copy", use.tensor)
        choice, view = x[v]
        tables = every.on(view)  # type: ignore[arg-type]
        tilings = tables.leaves(v) if use.reader is None else tables.wants(v, use.reader[1])
        size = BYTES[program.tensors[use.tensor].dtype]
        for device, box in zip(_devices(view, sizes), tilings[choice].boxes, strict=True):
            total[use.start : use.end, device] += size * prod(b - a for a, b in box)
    return int(total.max())


def _devices(view: object, sizes: Sequence[int]) -> list[int]:
    """Numbers of a view's devices, in its order."""
    starts, counts = ((0,) * len(sizes), tuple(sizes)) if view is None else (view.starts, view.counts)  # type: ignore[attr-defined]
    grid = np.arange(prod(sizes)).reshape(tuple(sizes))
    return [int(d) for d in grid[tuple(slice(a, a + n) for a, n in zip(starts, counts, strict=True))].reshape(-1)]


def _pipelined(members: Mapping[str, Member], scale: int, batch: int) -> Numbers:
    head = json.loads(text_of(members, "pipeline.json"))
    text, machine = text_of(members, "graph.json"), read_machine(text_of(members, "machine.json"))
    step, limit = Step(head["units"], head["phases"], head["cuts"]), head["memory_limit"]
    shapes = [(p, m, 1) for p, m in head["pairs"]] + [(p, m, v) for p, m, v, _ in head.get("interleaved", [])]

    def stages(p: int, m: int, v: int, most: int | None, *, near: bool) -> Stages:
        priced = priced_of(text, text_of(members, "machine.json"), head["space"], scale, batch, p, m)
        return Stages(priced, step, machine, (p, m, v), most, beside="overlap" in head, near=near)

    ordered = bool(head.get("ordered"))
    key = program_key(members, head["space"], scale, str(step), ordered, "overlap" in head, batch)

    def least(shape: tuple[int, int, int], most: int | None) -> int | None:
        return remembered((*key, shape, most), lambda: stages(*shape, most, near=not ordered).least())

    best, free = ([least(shape, most) for shape in shapes] for most in (limit, None))
    chunks = head.get("chunks", 1)
    mine = stages(len(head["stages"]) // chunks, head["micro_batches"], chunks, limit, near=False)
    taken, held = _step_of(head, mine, members, ordered)
    one, other = (min((n for n in rows if n is not None), default=None) for rows in (best, free))
    return one, taken, limit, held, other


def _step_of(head: Read, mine: Stages, members: Mapping[str, Member], ordered: bool) -> tuple[int, int]:
    """Picoseconds of the step of a file, and bytes of the fullest device at any start of a task."""
    rows, m, views = head["stages"], mine.micro, mine.views
    assert isinstance(rows, list)
    count, quantum = len(rows), head["quantum"]
    assert isinstance(quantum, int)
    x = [_chosen(mine.priced, operators, copies) for _, _, operators, copies in rows]
    for s in range(1, count):
        for vertex in mine.boundary(rows[s][0]):
            assert x[s][vertex] == x[s - 1][vertex]
            assert mine.even(vertex, x[s][vertex])
    times = [_times(head, mine, s, (i, j), x[s]) for s, (i, j, _, _) in enumerate(rows)]
    starts = np.array(_starts(members, 3 * count * m)).reshape(3, count, m) * quantum
    ends = [
        [[int(starts[k, s, i]) + _up(times[s][k], quantum) for i in range(m)] for s in range(count)] for k in (0, 1)
    ]
    lags = [(0, 0), *(_far(mine, rows[s][0], s, ordered) for s in range(1, count))]
    for s in range(count):
        for i in range(m):
            far = s and (s - 1) % views != s % views
            assert s == 0 or starts[0, s, i] >= ends[0][s - 1][i] + (lags[s][0] if far else 0)
            back = ends[0][s][i] if s == count - 1 else ends[1][s + 1][i]
            far = s < count - 1 and (s + 1) % views != s % views
            assert starts[1, s, i] >= back + (lags[s + 1][1] if far else 0)
            assert starts[1, s, i] >= ends[0][s][i]
    last, most = [], 0
    for view in range(views):
        chunks = range(view, count, views)
        busy = sorted((int(starts[k, s, i]), ends[k][s][i]) for k in (0, 1) for s in chunks for i in range(m))
        assert all(b <= c for (_, b), (c, _) in itertools.pairwise(busy))
        last.append(max(e for _, e in busy) + sum(times[s][2] for s in chunks))
        for s in chunks if mine.limit is not None else ():
            kept = [sum(int(starts[0, s, i]) <= t < ends[1][s][i] for i in range(m)) for t, _ in busy]
            most = max(most, mine.held(rows[s][0], rows[s][1], x[s], max(kept)))
    return max(last), most


def _up(value: int, quantum: int) -> int:
    return -(-value // quantum) * quantum


def _far(mine: Stages, cut: int, boundary: int, ordered: bool) -> tuple[int, int]:
    """Sends there and back at a cut; without an order of stages they are not the nearest but the farthest."""
    if ordered:
        return mine.sends(cut, boundary)
    tensors = [mine.priced.program.tensors[t] for t in mine.step.cuts[cut - 1]]
    sizes = [prod(t.shape) * BYTES[t.dtype] for t in tensors]
    there, back = (max(send(mine.machine, mine.views, n, b) for b in range(1, mine.views)) for n in sizes)
    return there, back


def _times(head: Read, mine: Stages, s: int, run_of: tuple[int, int], x: Mapping[Vertex, int]) -> tuple[int, int, int]:
    """F, B and U of a stage of a file, in the order that it has for each."""
    if "overlap" not in head:
        return mine.sums(*run_of, x)
    overlap = head["overlap"]
    assert isinstance(overlap, dict)
    found = []
    for letter, number in zip("FBU", overlap["stages"][s], strict=True):
        tasks, order = mine.phase(*run_of, x, letter), overlap["orders"][number]
        found.append(in_order(tasks, order) if order else sum(tasks.times))
    return mine.pico(found)


def in_order(tasks: Tasks, order: Sequence[int]) -> int:
    """The end of a phase whose tasks begin in this order, each as early as it may behind the one before."""
    assert sorted(order) == list(range(len(tasks.times)))
    ends: dict[int, int] = {}
    free: dict[int | None, int] = {}
    now = 0
    for t in order:
        now = max([now, *(ends[u] for u in tasks.waits[t])])
        stream = tasks.streams[t]
        if stream is not None:
            now = max(now, free.get(stream, 0))
            free[stream] = now + tasks.times[t]
        ends[t] = now + tasks.times[t]
    return max(ends.values(), default=0)
