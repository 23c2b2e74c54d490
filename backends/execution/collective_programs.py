"""Executes reduction programs on real data: virtual ranks or MPI, and whether the sum asked for arrives
everywhere.

    rank d holds `data` (chunks, width) and knows from the states before and after each step which rows it holds
    AllReduce, ReduceScatter, Reduce, AllGather, Broadcast   the transport's collectives on the rows of the step
    accepted   rows of every rank  =  sum over its reduction group of everyone's input, exactly (int64)

Members of a group are ordered root first; transports want ascending ranks, so parts are permuted on the way in and out.
Every rank lowers the programs itself from their text, so a job is small.

>>> from shardproof.models.collective_programs.collectives import Collective as C
>>> from shardproof.models.collective_programs.programs import Form, Tree
>>> system = ReductionSystem(Tree.regular((2, 2)), ((0, 1, 2, 3),), 4)
>>> good = tuple(Instruction(1, f, e, c) for f, e, c in
...     ((Form.INSIDE, None, C.REDUCE_SCATTER), (Form.PARALLEL, 0, C.ALL_REDUCE), (Form.INSIDE, None, C.ALL_GATHER)))
>>> [outcome.correct for outcome in run_virtual([good, good[:2]], system)]
[True, False]
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.collective_programs.collectives import Collective, rows_of
from ...models.collective_programs.programs import Form, Instruction, Program, ReductionSystem, Tree
from ...models.files.json_text import parse_json
from ...models.program.index import Combine
from ..transport import Transport, TransportError
from ..transport.patterns import Pattern, PatternKind
from ..transport.virtual import Hub, VirtualTransport
from . import progress
from .interpreter import RankError
from .job import read_error, write_error
from .launch import LaunchError, launch
from .workplace import workplace

Data = NDArray[Any]
"""int64 blocks; the transports' `Array` is declared for floats."""

WARM_UP = 2
"""Repetitions before those that are counted."""

_ROOT = __name__.partition(".")[0]


@dataclass(frozen=True)
class Outcome:
    """Of one program: did every rank end with the sum; `seconds`: of each repetition, the slowest rank's time
    (virtual ranks: none).
    """

    correct: bool
    wrong: tuple[int, ...]
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Move:
    """What one rank does in one step; `group` root first; `rows[j]`: rows of member j before, `after[j]` after."""

    collective: Collective
    group: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def _rows(mask: int) -> tuple[int, ...]:
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return tuple(out)


def moves(system: ReductionSystem, program: Program) -> dict[int, list[_Move]]:
    """Per device its part of every step.  Raises `CollectiveError` if a step does not apply."""
    states, _ = system.execute(program)
    out: dict[int, list[_Move]] = {d: [] for row in system.members for d in row}
    for number, instruction in enumerate(program):
        before, after = states[number], states[number + 1]
        for row, g in product(system.members, system.groups(instruction)):
            held = tuple(tuple(_rows(rows_of(s[p])) for p in g) for s in (before, after))
            move = _Move(instruction.collective, tuple(row[p] for p in g), *held)
            for d in move.group:
                out[d].append(move)
    return out


def plain(system: ReductionSystem) -> dict[int, list[_Move]]:
    """What every device does where one all-reduce takes the place of a program: over those whose sum it must have.

    >>> from ...models.collective_programs.programs import Tree
    >>> [m.group for m in plain(ReductionSystem(Tree.regular((2, 2)), ((0, 1, 2, 3),), 4))[2]]
    [(0, 1, 2, 3)]
    """
    every = tuple(range(system.chunks))
    out: dict[int, list[_Move]] = {}
    for row in system.members:
        for part in system.wanted or (tuple(range(len(row))),):
            group = tuple(row[p] for p in part)
            held = (every,) * len(group)
            alone = [] if len(group) < 2 else [_Move(Collective.ALL_REDUCE, group, held, held)]
            out.update({d: alone for d in group})
    return out


def _lowered(system: ReductionSystem, programs: Sequence[Program], beside: bool) -> list[dict[int, list[_Move]]]:
    return [*(moves(system, p) for p in programs), *([plain(system)] if beside else [])]


def execute(transport: Transport, steps: Sequence[_Move], data: Data) -> Data:
    """Carry out one rank's moves on its (chunks, width) array; returns the new array."""
    data = data.copy()
    width = data.shape[1]
    for move in steps:
        ranks = tuple(sorted(move.group))
        me = move.group.index(transport.rank)
        held, gets = list(move.rows[me]), list(move.after[me])
        match move.collective:
            case Collective.ALL_REDUCE:
                data[held] = transport.all_reduce(ranks, data[held].reshape(-1), Combine.SUM).reshape(len(held), width)
            case Collective.REDUCE_SCATTER:
                parts = np.stack([data[list(move.after[move.group.index(r)])].reshape(-1) for r in ranks])
                data[gets] = transport.reduce_scatter(ranks, parts, Combine.SUM).reshape(len(gets), width)
            case Collective.REDUCE:
                total = transport.reduce(ranks, move.group[0], data[held].reshape(-1), Combine.SUM)
                if total is not None:
                    data[held] = np.asarray(total).reshape(len(held), width)
            case Collective.ALL_GATHER:
                rows = [list(move.rows[move.group.index(r)]) for r in ranks]
                arrived = transport.all_gather(ranks, data[held].reshape(-1), tuple(len(r) * width for r in rows))
                data[[k for r in rows for k in r]] = np.asarray(arrived).reshape(-1, width)
            case Collective.BROADCAST:
                root = move.group[0]
                pattern = Pattern(PatternKind.BROADCAST, ranks, root, ())
                sent = list(move.rows[0])
                if transport.rank == root:
                    payload = data[sent].reshape(-1)
                    transport.exchange(pattern, {r: payload for r in ranks if r != root}, {}, payload)
                else:
                    like = data[sent].reshape(-1)
                    data[sent] = np.asarray(
                        transport.exchange(pattern, {}, {root: int(like.size)}, like)[root]
                    ).reshape(len(sent), width)
    return data


def inputs(device: int, chunks: int, width: int, seed: int) -> Data:
    """The data that a device starts with: any rank can compute anyone's."""
    return np.random.default_rng([seed, device]).integers(-(1 << 40), 1 << 40, size=(chunks, width), dtype=np.int64)


def _asked(system: ReductionSystem, rank: int) -> tuple[int, ...]:
    """Devices whose sum this rank must end with."""
    row = next(row for row in system.members if rank in row)
    position = row.index(rank)
    part = next((part for part in system.wanted if position in part), tuple(range(len(row))))
    return tuple(row[p] for p in part)


def _run_rank(transport: Transport, system: ReductionSystem, steps: Sequence[_Move], width: int, seed: int) -> bool:
    data = execute(transport, steps, inputs(transport.rank, system.chunks, width, seed))
    wanted = sum(inputs(d, system.chunks, width, seed) for d in _asked(system, transport.rank))
    return bool(np.array_equal(data, wanted))


def run_virtual(
    programs: Sequence[Program],
    system: ReductionSystem,
    width: int = 3,
    seed: int = 0,
    timeout_s: float = 120.0,
    repeats: int = 0,
    beside: bool = False,
) -> list[Outcome]:
    """Every program on virtual ranks, one outcome each.  A program may be incomplete or even wrong: then `correct` is
    False.  `repeats`: timed repetitions, as in `run_mpi`; `beside`: one plain all-reduce as the last outcome.

    Raises `CollectiveError` if a step does not apply, `RankError` if a rank fails.
    """
    lowered = _lowered(system, programs, beside)
    devices = sorted(d for row in system.members for d in row)
    hub = Hub(timeout_s)
    hierarchy = (devices[-1] + 1,)
    good: dict[int, list[bool]] = {d: [] for d in devices}
    errors: list[RankError] = []
    seconds: dict[int, list[list[float]]] = {}
    together = threading.Barrier(len(devices))

    def work(rank: int) -> None:
        transport = VirtualTransport(hub, rank, hierarchy, np)
        place = "start"
        try:
            for number, steps in enumerate(lowered):
                place = f"reduction program {number}"
                transport.account(place)
                good[rank].append(_run_rank(transport, system, steps[rank], width, seed + number))
            place = "timing"
            mine = [steps[rank] for steps in lowered]
            data = inputs(rank, system.chunks, width, seed)
            seconds[rank] = _seconds(transport, mine, data, repeats, together.wait)
        except Exception as e:  # noqa: BLE001  whatever it is, the other ranks must not wait
            if not hub.failed:
                errors.append(RankError(rank, place, f"{type(e).__name__}: {e}"))
            hub.abort()
            together.abort()

    threads = [threading.Thread(target=work, args=(d,), name=f"rank {d}") for d in devices]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return [
        _outcome(
            {d: good[d][n] for d in devices},
            tuple(max(seconds[d][n][k] for d in devices) for k in range(repeats)),
        )
        for n in range(len(lowered))
    ]


def _seconds(
    transport: Transport, candidates: Sequence[Sequence[_Move]], data: Data, repeats: int, wait: Callable[[], object]
) -> list[list[float]]:
    """Per candidate the seconds of every repetition on this rank, in rounds over all of them; the first `WARM_UP`
    rounds are not counted.
    """
    out: list[list[float]] = [[] for _ in candidates]
    for number in range(repeats + WARM_UP if repeats else 0):
        for steps, seconds in zip(candidates, out, strict=True):
            wait()
            start = time.perf_counter()
            execute(transport, steps, data)
            if number >= WARM_UP:
                seconds.append(time.perf_counter() - start)
    return out


def _outcome(good: dict[int, bool], seconds: tuple[float, ...] = ()) -> Outcome:
    return Outcome(all(good.values()), tuple(d for d, ok in good.items() if not ok), seconds)


def run_mpi(
    programs: Sequence[Program],
    system: ReductionSystem,
    width: int = 3,
    seed: int = 0,
    repeats: int = 0,
    timeout_s: float = 120.0,
    beside: bool = False,
) -> list[Outcome]:
    """The same on one MPI rank per device (0 .. n-1), `repeats` timed repetitions each, in rounds over all programs so
    that a slow moment of the computer hits them alike.  Seconds: from a barrier to when the slowest rank has its sum.

    Raises `CollectiveError` before anything starts, `RankError` naming the rank when one fails, `LaunchError`
    otherwise.
    """
    devices = sorted(d for row in system.members for d in row)
    if devices != list(range(len(devices))):
        raise TransportError("MPI ranks are 0 .. n-1: the reduction groups must cover exactly these devices")
    for p in programs:
        system.execute(p)
    with workplace() as folder:
        progress.create(folder, len(devices))
        job = {"width": width, "seed": seed, "repeats": repeats, "beside": beside}
        (folder / "reduction.json").write_text(json.dumps(_encode(system, programs) | job))
        try:
            launch(
                ["-m", f"{_ROOT}.backends.execution.collective_programs", str(folder)], len(devices), timeout_s, folder
            )
        except LaunchError as e:
            error = read_error(folder)
            if error is not None:
                raise error from e
            raise
        results: Any = parse_json((folder / "results.json").read_text())
    return [_outcome(dict(enumerate(good)), tuple(seconds)) for good, seconds in results]


def seconds_on_ranks(
    system: ReductionSystem, programs: Sequence[Program], payload: int, repeats: int, timeout_s: float
) -> list[tuple[float, ...]]:
    """Seconds of every repetition of each program on MPI ranks; `payload`: bytes per device.  Raises `LaunchError`
    where MPI returns a wrong sum: nothing can be calibrated with it.
    """
    outcomes = run_mpi(programs, system, payload // (8 * system.chunks), repeats=repeats, timeout_s=timeout_s)
    if not all(o.correct for o in outcomes):
        raise LaunchError("MPI returned a wrong sum; nothing can be calibrated with it")
    return [o.seconds for o in outcomes]


def _encode(system: ReductionSystem, programs: Sequence[Program]) -> dict[str, object]:
    return {
        "blocks": [[list(b) for b in level] for level in system.tree.blocks],
        "members": [list(row) for row in system.members],
        "chunks": system.chunks,
        "reading": system.reading,
        "wanted": [list(part) for part in system.wanted],
        "programs": [[[i.slice, i.form.name, i.ancestor, i.collective.name] for i in p] for p in programs],
    }


def _main(folder: Path) -> None:
    """One rank of a job."""
    progress.guard(folder)
    from mpi4py import MPI

    from ..transport.mpi import MpiTransport

    world = MPI.COMM_WORLD
    place = "start"
    table = progress.enter(folder, world.Get_rank())
    try:
        job: Any = parse_json((folder / "reduction.json").read_text())
        tree = Tree(tuple(tuple((a, b) for a, b in level) for level in job["blocks"]))
        system = ReductionSystem(
            tree,
            tuple(tuple(row) for row in job["members"]),
            job["chunks"],
            job["reading"],
            tuple(map(tuple, job["wanted"])),
        )
        programs = [tuple(Instruction(s, Form[f], e, Collective[c]) for s, f, e, c in p) for p in job["programs"]]
        transport = MpiTransport(world)
        good = []
        lowered = [steps[transport.rank] for steps in _lowered(system, programs, job["beside"])]
        for number, steps in enumerate(lowered):
            place = f"reduction program {number}"
            good.append(_run_rank(transport, system, steps, job["width"], job["seed"] + number))
        place = "timing"
        data = inputs(transport.rank, system.chunks, job["width"], job["seed"])
        seconds = _seconds(transport, lowered, data, job["repeats"], world.Barrier)
        place = "collecting the results"
        gathered = world.gather((good, seconds), 0)
        if gathered is not None:
            results = [
                ([g[n] for g, _ in gathered], [max(s[n][k] for _, s in gathered) for k in range(job["repeats"])])
                for n in range(len(lowered))
            ]
            (folder / "results.json").write_text(json.dumps(results))
        table[world.Get_rank(), 1] = progress.DONE
    except Exception as e:  # the launcher sees only the traceback; the folder keeps rank and place
        error = RankError(world.Get_rank(), place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        raise error from e


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
