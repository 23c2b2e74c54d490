"""Trains a plan on MPI ranks: `mpiexec -n N python -m mpi4py -m shardproof.backends.execution.train_rank FOLDER`.

    plan.spz          the file that was checked                      options.json   what is asked
    graph.json        the model that was asked about                 held/          blocks of every rank, where the very
    inputs/N.npy      what ranks begin with, mapped                                 plan of a checkpoint goes on
    steps.jsonl       a line per step, written by rank 0             at.bin         the step that every rank is at
    outputs/N.npy     results of the last step, if wanted

Every rank makes the data of a step itself and cuts its blocks out.  Between steps nothing is gathered but the loss; a
state is written by all ranks, each its own blocks.
"""

from __future__ import annotations

import json
import platform
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np

from ...models.communication.transfers import Box
from ...models.files.json_text import parse_json
from ...models.program.graph import Graph
from ...models.text import InputError
from ...proofs.container.archive import read_container
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.overlap.file import decode_overlap
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.pipelines.file import decode_pipeline
from ...proofs.plan.bundle import Plan, decode_plan
from ...proofs.portfolio.file import taken_plan
from ...proofs.views.certificate import SubmeshCertificate
from ...proofs.views.file import decode_submesh_plan
from ..kernels import Array, widen
from ..transport.mpi import check_ranks
from . import checkpoint, consent, progress
from .checkpoint import Origin
from .feed import PLACE, Feed
from .held import Blocks, RankBlocks
from .interpreter import RankError
from .job import Options, read_error, write_error
from .launch import LaunchError, SilentRank, launch
from .pipeline import Results
from .repeatable import Repeatable, repeatable
from .training_run import StartState, StepDone, base_of, is_due, scalar_of
from .workplace import need_room, workplace

if TYPE_CHECKING:
    from mpi4py import MPI

    from ...proofs.publishing.publisher import AnyPlan, Opened

_ROOT = __name__.partition(".")[0]


def main(folder: Path) -> None:
    """Run this process' rank.  Raises `RankError`, after leaving word in the folder."""
    progress.guard(folder)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, place = world.Get_rank(), ["start"]
    try:
        asked: Any = parse_json((folder / "options.json").read_text())
        consent.from_parent(asked["consent"]["kernels"], asked["consent"]["paths"])
        runs = repeatable(_plan(folder / "plan.spz", asked["kind"]), asked["scale"], Options(**asked["options"]))
        check_ranks(world, runs.ranks)
        table = progress.enter(folder, rank)
        step, carried = runs.over_mpi(world, table)
        if rank == 0:
            (folder / "transport.txt").write_text(carried)
        world.Barrier()
        _train(world, folder, asked, runs, step, place)
        world.Barrier()
        table[rank, 1] = progress.DONE
    except RankError as e:
        error = RankError(e.rank, f"{place[0]}, {e.place}", e.reason)
        write_error(folder, error)
        raise error from e
    except Exception as e:
        given = isinstance(e, InputError)  # of what the user gave; else the fault is ours, at that place
        error = RankError(
            rank, place[0] if given else f"at {place[0]}", str(e) if given else f"{type(e).__name__}: {e}"
        )
        write_error(folder, error)
        raise error from e


SHARED: Final = "the folder of states"
"""Where a rank is while it looks for it."""

SAVING: Final = "saving a state"
"""Where a rank is while it writes."""


def _check_shared(world: MPI.Intracomm, folder: Path) -> None:
    """Raise `InputError` where a rank does not see the folder that states go to.  A folder of the same name on each
    computer is not the same folder.
    """
    probe: Path = world.bcast(folder / f".seen-{secrets.token_hex(8)}" if world.Get_rank() == 0 else None, root=0)
    if world.Get_rank() == 0:
        try:
            probe.touch()
        except OSError as error:
            raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from None
    world.Barrier()
    everyone: list[tuple[str, bool]] = world.allgather((platform.node(), probe.exists()))
    if world.Get_rank() == 0:
        probe.unlink()
    blind = [host for host, sees in everyone if not sees]
    if blind:
        raise InputError(f"{folder}: {blind[0]!r} does not see it; --save needs a folder that all computers share")


def _train(
    world: MPI.Intracomm,
    folder: Path,
    asked: Any,
    runs: Repeatable,
    step: Callable[[int, Any, RankBlocks], Results],
    place: list[str],
) -> None:
    """All steps of this rank; `place`: is told what it is at."""
    rank, files = world.Get_rank(), dict(asked["files"])
    graph = Graph.from_json((folder / "graph.json").read_text())
    feed = Feed(graph, **asked["feed"])
    mapped = {name: np.load(folder / file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}

    def base(tensor: str, box: Box) -> Array:
        return np.array(mapped[tensor][tuple(slice(lo, hi) for lo, hi in box)])

    held = RankBlocks(base, _taken_up(folder / "held", rank, asked["held"][rank]) if asked["held"] else None)
    found: Results = {}
    data: dict[str, Array] = {}
    at = np.memmap(folder / "at.bin", dtype=np.int64, mode="r+")
    loss = [] if asked["loss"] is None else [asked["loss"]]
    if asked["save"] is not None:
        place[0] = SHARED
        _check_shared(world, Path(asked["save"]))
    for number in range(asked["first"], asked["last"] + 1):
        begun_s, place[0], at[rank] = time.perf_counter(), f"{PLACE} {number}", number
        data = feed.at(number)
        place[0] = f"step {number}"
        found = step(number, held.source(data), held)
        everyone: list[Results] | None = world.gather({k: v for k, v in found.items() if k[0] in loss}, root=0)
        value = None if everyone is None else scalar_of(runs.whole(loss, mapped | data, everyone), asked["loss"])
        seconds, saved = time.perf_counter() - begun_s, None
        if asked["save"] is not None and is_due(number, asked["last"], asked["every"]):
            place[0] = SAVING
            with checkpoint.saving(Path(asked["save"]), number):
                target = _save(world, Path(asked["save"]), number, Origin(**asked["origin"]), graph, held, mapped)
            place[0] = f"step {number}"
            saved = None if target is None else str(target)
            world.Barrier()  # nobody goes on before all of it is there
        if rank == 0:
            with (folder / "steps.jsonl").open("a") as lines:
                told = asdict(StepDone(number, value, seconds, saved))
                lines.write(json.dumps(told | {"loss": None if value is None else repr(value)}) + "\n")
    if asked["results"]:
        place[0] = "collecting the outputs"
        everything: list[Results] | None = world.gather(found, root=0)
        if everything is not None:
            whole = runs.whole(graph.results, mapped | data, everything)
            for n, name in enumerate(graph.results):
                np.save(folder / f"outputs/{n}.npy", whole[name], allow_pickle=False)


def _save(
    world: MPI.Intracomm,
    folder: Path,
    number: int,
    origin: Origin,
    graph: Graph,
    held: RankBlocks,
    mapped: Mapping[str, Array],
) -> Path | None:
    """Write the state: every rank its blocks, rank 0 the manifest; on rank 0 where it is."""
    rank = world.Get_rank()
    blocks = held.blocks
    if rank == 0:
        (blocks,) = checkpoint.with_fixed([blocks], graph, lambda n: np.array(mapped[n]))
    here: Path = world.bcast(checkpoint.begin(folder, number) if rank == 0 else None, root=0)
    rows = world.allgather(checkpoint.rows_of(blocks))
    written = checkpoint.write_rank(here, rank, blocks, checkpoint.writers(rows)[rank])
    files: list[tuple[str, int, str] | None] | None = world.gather(written, root=0)
    if files is None:
        return None
    return checkpoint.finish(here, folder, number, origin, rows, [f for f in files if f is not None])


@dataclass(frozen=True)
class Goal:
    """The `last` step, and what is left behind: `save`, `every`: see `is_due`; `results`: whether they are wanted."""

    last: int
    save: Path | None = None
    every: int | None = None
    results: bool = True


def train_job(
    opened: Opened,
    begun: StartState,
    options: Options,
    goal: Goal,
    timeout_s: float,
    told: Callable[[StepDone], None],
) -> tuple[dict[str, Array], str]:
    """(results of the last step, transport) of a plan on one MPI rank per device, from begun.step + 1 on.  `told`:
    hears of every step as it ends; `timeout_s`: how long one may take.

    Raises `RankError` naming step, rank and operator when one fails, `InputError` for data that does not fit,
    `LaunchError` otherwise.
    """
    base, graph, ranks = base_of(begun), begun.graph, opened.held.machine.devices
    with workplace() as folder:
        room = sum(a.nbytes for a in base.values()) + sum(8 * graph.tensor(n).elements for n in graph.results)
        need_room(folder, room)
        for name in ("inputs", "outputs", "held"):
            (folder / name).mkdir()
        progress.create(folder, ranks)
        np.full(ranks, begun.step + 1, dtype=np.int64).tofile(folder / "at.bin")
        files = {name: f"inputs/{n}.npy" for n, name in enumerate(base)}
        for name, file in files.items():
            np.save(folder / file, np.ascontiguousarray(base[name]), allow_pickle=False)
        (folder / "plan.spz").write_bytes(opened.data)
        (folder / "graph.json").write_text(begun.graph.to_json())
        asked = _start_json(opened, begun, options) | {
            "last": goal.last,
            "save": None if goal.save is None else str(goal.save.resolve()),
            "every": goal.every,
            "results": goal.results,
            "files": files,
            "held": [_lay_down(folder / "held", r, blocks) for r, blocks in enumerate(begun.ranks)],
        }
        (folder / "options.json").write_text(json.dumps(asked))
        lines = _Lines(folder / "steps.jsonl", told)
        try:
            launch(["-m", f"{_ROOT}.backends.execution.train_rank", str(folder)], ranks, timeout_s, folder, lines.heard)
        except LaunchError as e:
            if goal.save is not None:
                checkpoint.remove_unfinished(goal.save)
            lines.heard()
            error = _error_of(folder, e)
            if error is not None and error.place.startswith((PLACE, SHARED, SAVING)):
                raise InputError(error.reason) from e
            if error is not None:
                raise error from e
            raise
        lines.heard()
        names = graph.results if goal.results else ()
        whole = {t: np.load(folder / f"outputs/{n}.npy", allow_pickle=False) for n, t in enumerate(names)}
        return {t: widen(np, v) for t, v in whole.items()}, (folder / "transport.txt").read_text()


def _start_json(opened: Opened, begun: StartState, options: Options) -> dict[str, object]:
    """What ranks begin with: the plan's kind and options, the data, and the step behind the state."""
    return {
        "kind": _kind(opened.held),
        "scale": opened.scale,
        "options": asdict(options),
        "consent": consent.to_ranks(opened.held.graph),
        "feed": {k: getattr(begun.feed, k) for k in ("seed", "dtype", "stored", "data", "same")},
        "origin": asdict(begun.origin),
        "first": begun.step + 1,
        "loss": begun.loss,
    }


def _error_of(folder: Path, ended: LaunchError) -> RankError | None:
    """What a rank wrote down, or which rank fell silent or died, and in which step."""
    error = read_error(folder)
    death, table = progress.read_death(folder), progress.open_table(folder)
    at = np.fromfile(folder / "at.bin", dtype=np.int64)
    if error is None and isinstance(ended, SilentRank):
        return RankError(ended.rank, f"step {at[ended.rank]}", ended.reason)
    if error is None and death is not None and (rank := death.rank_in(table[:, 0].tolist())) is not None:
        return RankError(rank, f"step {at[rank]}", death.words())
    return error


class _Lines:
    """The steps that rank 0 has written about, each told once."""

    def __init__(self, path: Path, told: Callable[[StepDone], None]) -> None:
        self._path, self._told, self._read = path, told, 0

    def heard(self) -> bool:
        """Whether there were new ones."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            fields: Any = parse_json(line)
            loss = None if fields["loss"] is None else float(fields["loss"])  # it may be no number of JSON
            self._told(StepDone(**{**fields, "loss": loss}))
        return bool(whole)


def _kind(held: AnyPlan) -> str:
    match held:
        case PipelineCertificate():
            return "pipelined"
        case OverlapCertificate():
            return "overlapped"
        case SubmeshCertificate():
            return "views"
        case Plan():
            return "plan"
        case _:
            assert_never(held)


def _plan(path: Path, kind: str) -> AnyPlan:
    """The plan in a file that the parent has checked."""
    members = taken_plan(read_container(path.read_bytes()))
    match kind:
        case "pipelined":
            return decode_pipeline(members)
        case "overlapped":
            return decode_overlap(members)
        case "views":
            return decode_submesh_plan(members)
        case _:
            return decode_plan(members)


def _lay_down(folder: Path, rank: int, blocks: Blocks) -> list[list[object]]:
    """Write a rank's blocks; what they are."""
    rows = checkpoint.rows_of(blocks)
    checkpoint.write_rank(folder, rank, blocks, range(len(rows)))
    return [[name, [list(i) for i in box]] for name, box, _ in rows]


def _taken_up(folder: Path, rank: int, rows: Sequence[Any]) -> Blocks:
    """The same, read back."""
    out: dict[str, list[tuple[Box, Array]]] = {}
    if rows:
        with np.load(folder / f"rank-{rank:05}.npz", allow_pickle=False) as archive:
            for n, (name, box) in enumerate(rows):
                out.setdefault(name, []).append((tuple((lo, hi) for lo, hi in box), archive[str(n)]))
    return out


if __name__ == "__main__":
    main(Path(sys.argv[1]))
