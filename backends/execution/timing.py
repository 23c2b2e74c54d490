"""Computes times of whole plans and of their parts, measured inside one MPI job: starting ranks, lowering
and reading inputs are in no one's time.

    whole        seconds of all instructions of a plan on the slowest rank, from a barrier on; blocks of inputs are in
                 memory already
    quiet        of a plan: sum over its instructions of the fastest round of the slowest rank.  On a busy computer no
                 whole step may be undisturbed while every instruction once is; it leaves out what separates
                 instructions, and waits for an uneven partner count twice
    operator     processor seconds of one operator on a rank's own box, all ranks at the same time (they share the
                 memory of a computer).  On an idle computer that is the time that passes; on a busy one it leaves out
                 what others took.  On a GPU: the time that passes
    movement     seconds of one resharding on the slowest rank, from a barrier on

What is measured takes turns, `rounds` times, so that a slow moment of the computer hits everything alike.  Operators
and reshardings that agree in function, boxes, accesses and element types are measured once.  Their operands are
random; ids are rows of their table.  Plans run one instruction after the other (no fusion, no overlap), which is what
the cost model prices, or as `run` does (`Options`).

Used by `machine calibrate`, through the front door, and by `tests/benchmarks/predicted_measured.py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...models.communication.choices import Choices, Communication, check_choices, input_layout
from ...models.communication.transfers import Box
from ...models.files.json_text import parse_json
from ...models.program.graph import Graph
from ...models.program.index import Combine
from ...models.program.operators import BY_DATA, Operator
from ..cuda import device
from ..kernels import Array, Block, execute, execution_dtype
from ..lowering.program import Compute, Program, lower
from ..transport import Transport
from . import progress
from .interpreter import RankError, Source, Watching, recorder_for, run_rank
from .job import Options, build_program, read_error, read_job, write_error, write_job
from .launch import LaunchError, launch
from .reference import _POSITIVE as POSITIVE
from .reference import check_inputs, random_inputs
from .steps import reshard
from .workplace import need_room, workplace

_ROOT = __name__.partition(".")[0]

PLAIN = Options(fuse=False, overlap=False)
"""One instruction after the other, every operator on its own: what the cost model prices."""


@dataclass(frozen=True)
class Whole:
    """One plan: `seconds` per round, those of the slowest rank; `quiet_s`: see the module docstring."""

    candidate: int
    seconds: tuple[float, ...]
    quiet_s: float


@dataclass(frozen=True)
class Part:
    """One operator (`number` in the graph) or resharding (`number` in `models.communication.choices.communications`)
    as candidate number `candidate` has it.
    """

    candidate: int
    number: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Times:
    """What one job measured."""

    wholes: tuple[Whole, ...]
    operators: tuple[Part, ...]
    movements: tuple[Part, ...]


@dataclass(frozen=True)
class Sampling:
    """How often plans are timed: as a whole, their parts, or both; `seed`: of random inputs."""

    rounds: int
    wholes: bool = True
    parts: bool = False
    seed: int = 0


def measure(
    graph: Graph,
    hierarchy: tuple[int, ...],
    candidates: Sequence[Choices],
    sampling: Sampling,
    *,
    options: Options = PLAIN,
    timeout_s: float = 300.0,
    inputs: Mapping[str, Array] | None = None,
) -> Times:
    """Time `candidates` on one MPI rank per device.  `inputs`: instead of random ones
    of the graph's own types.

    Raises `ChoicesError` before anything starts, `RankError` naming the rank and the place when one fails,
    `LaunchError` otherwise.
    """
    for choices in candidates:
        check_choices(graph, hierarchy, choices)
    arrays = check_inputs(graph, inputs if inputs is not None else random_inputs(graph, sampling.seed, None))
    with workplace() as folder:
        need_room(folder, sum(a.nbytes for a in arrays.values()))
        progress.create(folder, prod(hierarchy))
        for n, choices in enumerate(candidates):  # the inputs are written once
            (folder / str(n)).mkdir()
            write_job(folder / str(n), graph, hierarchy, choices, arrays if n == 0 else {}, options)
        what = {"candidates": len(candidates), **asdict(sampling)}
        (folder / "timing.json").write_text(json.dumps(what))
        try:
            launch(["-m", f"{_ROOT}.backends.execution.timing", str(folder)], prod(hierarchy), timeout_s, folder)
        except LaunchError as e:
            error = read_error(folder)
            if error is not None:
                raise error from e
            raise
        found: Any = parse_json((folder / "results.json").read_text())
    return Times(
        tuple(Whole(n, tuple(s), quiet) for n, (s, quiet) in enumerate(found["wholes"])),
        tuple(Part(c, n, tuple(s)) for c, n, s in found["operators"]),
        tuple(Part(c, n, tuple(s)) for c, n, s in found["movements"]),
    )


def seconds_of_parts(
    graph: Graph,
    hierarchy: tuple[int, ...],
    candidates: Sequence[Choices],
    rounds: int,
    timeout_s: float,
    backend: str,
) -> tuple[list[tuple[int, int, tuple[float, ...]]], list[tuple[int, int, tuple[float, ...]]]]:
    """(candidate, number, seconds) of the distinct operators of plans, and of their reshardings."""
    options = Options(fuse=False, overlap=False, backend=backend)
    sampling = Sampling(rounds, wholes=False, parts=True)
    times = measure(graph, hierarchy, candidates, sampling, options=options, timeout_s=timeout_s)
    operators, movements = (
        [(p.candidate, p.number, p.seconds) for p in parts] for parts in (times.operators, times.movements)
    )
    return operators, movements


def operator_key(op: Operator, graph: Graph, boxes: Sequence[Mapping[str, tuple[int, int]]]) -> tuple[object, ...]:
    """Equal for operators that do the same work: function, attributes, boxes of all ranks, accesses, element types."""
    order = {a.name: k for k, a in enumerate(op.axes)}

    def axis_number(value: object) -> object:
        """Axis names as numbers, wherever they stand."""
        if isinstance(value, tuple):
            return tuple(axis_number(v) for v in value)
        return ("axis", order[value]) if isinstance(value, str) and value in order else value

    accesses = tuple(
        (
            tuple((axis_number(i.terms), i.offset, i.whole) for i in a.index),
            graph.tensor(a.tensor).shape,
            graph.tensor(a.tensor).dtype,
        )
        for a in (*op.inputs, op.output)
    )
    return (
        op.function,
        axis_number(op.attributes),
        accesses,
        tuple(tuple(box[a.name] for a in op.axes) for box in boxes),
    )


class _Alone:
    """Statistics of a rank's own box: exchanging them is a term of its own in the cost model."""

    def all_reduce_together(self, arrays: Sequence[Array], combine: Combine) -> list[Array]:
        return list(arrays)

    def all_reduce(self, array: Array, combine: Combine) -> Array:
        """The array."""
        return array


class _Pool:
    """Random arrays by shape and element type, shared by everything that is measured."""

    def __init__(self, xp: ModuleType, seed: int) -> None:
        self.xp, self.random = xp, np.random.default_rng(seed)
        self.arrays: dict[tuple[tuple[int, ...], str, int, bool], Array] = {}

    def get(self, shape: tuple[int, ...], dtype: str, below: int = 2, positive: bool = False) -> Array:
        """Floats of either sign (branches on the sign are then as hard to foresee as in a model), or in 0.5 .. 1.5;
        integers in 0 .. below - 1.
        """
        kind = execution_dtype(dtype)
        key = (shape, kind, below, positive)
        if key not in self.arrays:
            if kind == "bool":
                made = self.random.integers(0, 2, shape).astype(bool)
            elif kind.startswith("float"):
                made = (self.random.random(shape) + 0.5 if positive else self.random.standard_normal(shape)).astype(
                    kind
                )
            else:
                made = self.random.integers(0, max(1, below), shape).astype(kind)
            self.arrays[key] = self.xp.asarray(made)
        return self.arrays[key]


def _operator_tasks(
    program: Program, choices: Choices, rank: int, pool: _Pool, seen: set[tuple[object, ...]]
) -> list[tuple[int, Callable[[], object]]]:
    """The operators of a program that are new: (number, what to time)."""
    graph, placements = program.graph, dict(choices.operators)
    steps = [[s for s in steps if isinstance(s, Compute)] for steps in program.ranks]
    out: list[tuple[int, Callable[[], object]]] = []
    for mine, everyone in zip(steps[rank], zip(*steps, strict=True), strict=True):
        op = graph.operators[mine.operator]
        boxes = [{a.name: i for a, i in zip(op.axes, s.box, strict=True)} for s in everyone]
        key = operator_key(op, graph, boxes)
        if key in seen:
            continue
        seen.add(key)
        blocks = []
        for j, (a, (_, origin)) in enumerate(zip(op.inputs, mine.operands, strict=True)):
            tensor = graph.tensor(a.tensor)
            box = input_layout(op, j, graph, placements[op.name], program.hierarchy).box(rank)
            rows = op.axis(op.rows).extent if op.kind in BY_DATA else 2
            blocks.append(
                Block(
                    pool.get(tuple(hi - lo for lo, hi in box), tensor.dtype, rows, (op.function, j) in POSITIVE), origin
                )
            )
        out.append((mine.operator, _operator_call(pool.xp, op, graph, boxes[rank], blocks)))
    return out


def _operator_call(
    xp: ModuleType, op: Operator, graph: Graph, box: Mapping[str, tuple[int, int]], blocks: Sequence[Block]
) -> Callable[[], object]:
    return lambda: execute(xp, op, graph, box, blocks, _Alone())


def _communication_tasks(
    movements: Sequence[Communication], graph: Graph, transport: Transport, pool: _Pool, seen: set[tuple[object, ...]]
) -> list[tuple[int, Callable[[], object]]]:
    """The reshardings that are new and move something: (number, what to time)."""
    out: list[tuple[int, Callable[[], object]]] = []
    for number, m in enumerate(movements):
        dtype = graph.tensor(m.tensor).dtype
        source, target = m.plan.source, m.plan.target
        key = (source.boxes.tobytes(), source.open, source.combine, target.boxes.tobytes(), source.shape, dtype)
        if key in seen or not m.plan.steps:
            continue
        seen.add(key)
        block = pool.get(tuple(hi - lo for lo, hi in source.box(transport.rank)), dtype)
        out.append((number, _communication_call(pool.xp, transport, m, block)))
    return out


def _communication_call(xp: ModuleType, transport: Transport, m: Communication, block: Array) -> Callable[[], object]:
    return lambda: reshard(xp, transport, m.plan, block)


def _cached(source: Source, xp: ModuleType) -> Source:
    """Blocks of inputs, read once."""
    known: dict[tuple[str, Box], Array] = {}

    def read(tensor: str, box: Box) -> Array:
        if (tensor, box) not in known:
            known[tensor, box] = xp.asarray(source(tensor, box))
        return known[tensor, box]

    return read


def _main(folder: Path) -> None:
    """One rank of a job."""
    progress.guard(folder)
    from mpi4py import MPI

    from .rank import _machine as machine

    world = MPI.COMM_WORLD
    rank, place = world.Get_rank(), "start"
    table = progress.enter(folder, rank)
    try:
        what: Any = parse_json((folder / "timing.json").read_text())
        jobs = [read_job(folder / str(n)) for n in range(what["candidates"])]
        graph, hierarchy, options = jobs[0].graph, jobs[0].hierarchy, jobs[0].options
        xp, transport = machine(world, options.backend)
        wait = (lambda: xp.cuda.get_current_stream().synchronize()) if device.is_device(xp) else (lambda: None)
        watching = Watching(recorder_for(xp, rank))
        pool, source = _Pool(xp, what["seed"]), _cached(jobs[0].source, xp)
        tasks: list[tuple[str, int, int, Callable[[], object]]] = []
        seen: set[tuple[object, ...]] = set()
        place = "preparing"
        for n, job in enumerate(jobs):
            if what["wholes"]:
                program = build_program(graph, hierarchy, job.choices, options)
                tasks.append(("wholes", n, 0, _whole_call(program, rank, transport, source, xp, watching)))
            if what["parts"]:
                plain = lower(graph, hierarchy, job.choices)
                calls = _operator_tasks(plain, job.choices, rank, pool, seen)
                tasks += [("operators", n, k, call) for k, call in calls]
                moves = _communication_tasks(plain.movements, graph, transport, pool, seen)
                tasks += [("movements", n, k, call) for k, call in moves]
        transport.account("timing")
        seconds: list[list[float]] = [[] for _ in tasks]
        spans: list[list[list[float]]] = [[] for _ in tasks]
        for turn in range(what["rounds"] + 1):  # the first one warms up
            for t, (kind, n, k, call) in enumerate(tasks):
                place = f"timing {kind[:-1]} {k} of candidate {n}"
                world.Barrier()
                clock = time.thread_time if kind == "operators" and not device.is_device(xp) else time.perf_counter
                start = clock()
                call()
                wait()
                if turn:
                    seconds[t].append(clock() - start)
                if watching.recorder is not None and kind == "wholes":
                    if turn:
                        spans[t].append([s.seconds for s in watching.recorder.spans])
                    watching.recorder.spans.clear()
        place = "collecting the results"
        gathered = world.gather((seconds, spans), 0)
        if gathered is not None:
            found = _found(gathered, [task[:3] for task in tasks], what["rounds"])
            (folder / "results.json").write_text(json.dumps(found))
        table[rank, 1] = progress.DONE
    except Exception as e:
        error = e if isinstance(e, RankError) else RankError(rank, place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        if error is e:
            raise
        raise error from e


def _found(
    gathered: Sequence[tuple[list[list[float]], list[list[list[float]]]]],
    tasks: Sequence[tuple[str, int, int]],
    rounds: int,
) -> dict[str, list[object]]:
    """Seconds of every task on its slowest rank, and of whole programs without waiting; `gathered`: of every rank, its
    seconds and the spans of its recorder.
    """
    found: dict[str, list[object]] = {"wholes": [], "operators": [], "movements": []}
    for t, (kind, n, k) in enumerate(tasks):
        slowest = [max(s[t][r] for s, _ in gathered) for r in range(rounds)]
        if kind == "wholes":
            quiet = float(np.array([at[t] for _, at in gathered]).max(axis=0).min(axis=0).sum())
            found[kind].append([slowest, quiet])
        else:
            found[kind].append([n, k, slowest])
    return found


def _whole_call(
    program: Program, rank: int, transport: Transport, source: Source, xp: ModuleType, watching: Watching
) -> Callable[[], object]:
    return lambda: run_rank(program, rank, transport, source, xp, watching)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
