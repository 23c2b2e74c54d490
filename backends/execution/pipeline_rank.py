"""Pipelined steps on MPI ranks: `mpiexec -n N python -m mpi4py -m shardproof.backends.execution.pipeline_rank FOLDER`.

    plan.spz         the pipelined step            pipeline.json    files of the inputs, element types, whether to trace
    inputs/N.npy     one array per input or parameter              outputs/N.npy, trace/N.json, error.json: as in jobs

Stages are consecutive ranks with a communicator each; what crosses a cut goes from rank to rank with `isend`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.communication.transfers import Box
from ...models.files.json_text import parse_json
from ...proofs.container.archive import read_container
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.pipelines.file import decode_pipeline, write_pipeline
from ..kernels import Array, widened
from ..lowering.stages import StagedProgram, staged
from ..trace import Recorder, Span, read_spans, write_spans
from ..transport import TransportError
from ..transport.mpi import MpiTransport
from . import progress
from .interpreter import RankError
from .job import read_error, write_error
from .launch import LaunchError, launch
from .pipeline import Results, run_stage, whole_results
from .reference import as_stored, check_inputs
from .workplace import need_room, workplace

if TYPE_CHECKING:
    from mpi4py import MPI

_ROOT = __name__.partition(".")[0]


class Mail:
    """`Post` over a communicator of all ranks."""

    def __init__(self, world: MPI.Intracomm, staged: StagedProgram) -> None:
        self._world, self._staged = world, staged
        self._under_way: list[MPI.Request] = []

    def _tag(self, tensor: str, micro_batch: int) -> int:
        forward = any(stage.leaves["F"] == tensor for stage in self._staged.stages)
        return (0 if forward else self._staged.micro) + micro_batch

    def send(self, stage: int, rank: int, tensor: str, micro_batch: int, block: Array) -> None:
        """See `Post`."""
        self._under_way = [r for r in self._under_way if not r.Test()]
        goal = stage * self._staged.devices + rank
        self._under_way.append(self._world.isend(np.ascontiguousarray(block), goal, self._tag(tensor, micro_batch)))

    def receive(self, stage: int, rank: int, tensor: str, micro_batch: int) -> Array:
        """See `Post`."""
        forward = self._tag(tensor, micro_batch) < self._staged.micro
        source = (stage - 1 if forward else stage + 1) * self._staged.devices + rank
        block: Array = self._world.recv(source=source, tag=self._tag(tensor, micro_batch))
        return block

    def settle(self) -> None:
        """Wait until everything has gone."""
        for r in self._under_way:
            r.Wait()


def main(folder: Path) -> None:
    """Run this process' rank.  Raises `RankError`, after leaving word in the folder."""
    progress.guard(folder)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    number, place = world.Get_rank(), "start"
    try:
        data: Any = parse_json((folder / "pipeline.json").read_text())
        program = staged(decode_pipeline(read_container((folder / "plan.spz").read_bytes())), bool(data["stored"]))
        if world.Get_size() != len(program.stages) * program.devices:
            raise TransportError(f"the plan has other devices than MPI ranks: {world.Get_size()}")
        table = progress.enter(folder, number)
        s, rank = divmod(number, program.devices)
        among = MPI.Intracomm(world.Split(s, rank))
        transport, mail = MpiTransport(among), Mail(world, program)
        if number == 0:
            (folder / "transport.txt").write_text(transport.name)
        files: dict[str, str] = dict(data["files"])

        def source(tensor: str, box: Box) -> Array:
            mapped = np.load(folder / files[tensor], mmap_mode="r", allow_pickle=False)
            return np.array(mapped[tuple(slice(lo, hi) for lo, hi in box)])

        def told(task: int) -> None:
            table[number, 1] = task

        world.Barrier()
        recorder = Recorder(number) if data["trace"] else None
        found = run_stage(program, s, rank, transport, mail, source, np, recorder, told)
        mail.settle()
        if recorder is not None:
            write_spans(folder / f"trace/{number}.json", recorder.spans)
        place = "collecting the outputs"
        everything: list[Results] | None = world.gather(found, root=0)
        if everything is not None:
            arrays = {name: np.load(folder / file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}
            for n, array in enumerate(whole_results(program, arrays, everything).values()):
                np.save(folder / f"outputs/{n}.npy", array, allow_pickle=False)
        world.Barrier()
        table[number, 1] = progress.DONE
    except RankError as e:
        write_error(folder, e)
        raise
    except Exception as e:
        error = RankError(number, place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        raise error from e


def run_pipeline_job(
    c: PipelineCertificate, inputs: Mapping[str, Array], stored: bool, trace: bool, timeout_s: float = 120.0
) -> tuple[dict[str, Array], tuple[Span, ...], str]:
    """(outputs, times, transport) of a pipelined step on one MPI rank per device.

    Raises `GraphError` before anything starts, `RankError` naming rank and operator when one fails, `LaunchError`
    otherwise.
    """
    arrays = check_inputs(c.graph, inputs)
    arrays = as_stored(c.graph, arrays) if stored else arrays
    ranks, results = c.machine.devices, c.graph.results
    with workplace() as folder:
        need_room(folder, sum(a.nbytes for a in arrays.values()) + sum(8 * c.graph.tensor(n).elements for n in results))
        for name in ("inputs", "outputs", "trace"):
            (folder / name).mkdir()
        progress.create(folder, ranks)
        files = {name: f"inputs/{n}.npy" for n, name in enumerate(arrays)}
        for name, file in files.items():
            np.save(folder / file, np.ascontiguousarray(arrays[name]), allow_pickle=False)
        write_pipeline(folder / "plan.spz", c)
        (folder / "pipeline.json").write_text(json.dumps({"files": files, "stored": stored, "trace": trace}))
        try:
            launch(["-m", f"{_ROOT}.backends.execution.pipeline_rank", str(folder)], ranks, timeout_s, folder)
        except LaunchError as e:
            if (error := read_error(folder)) is not None:
                raise error from e
            raise
        outputs = {
            t: widened(np, np.load(folder / f"outputs/{n}.npy", allow_pickle=False)) for n, t in enumerate(results)
        }
        spans = [s for r in range(ranks) if trace for s in read_spans(folder / f"trace/{r}.json")]
        return outputs, tuple(spans), (folder / "transport.txt").read_text()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
