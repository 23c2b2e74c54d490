"""A job: everything that ranks started elsewhere need, in one folder.

    job.json          graph, hierarchy, choices, element types; the files of the inputs; kernels of the user's own that
                      may run
    inputs/N.npy      one array per input or parameter, in digit shape; ranks map the file and read their blocks only
    outputs/N.npy     written by rank 0, N = position in the graph's results
    error.json        written by the first rank that failed
    transport.txt     what carried the messages, written by rank 0
    trace/N.json      times of rank N, where they are wanted
    progress.bin, death.json   where every rank is, who died first (`backends.execution.progress`)

Every rank lowers the choices itself: lowering is deterministic and cheaper than shipping all programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...models.communication.choices import Choices
from ...models.communication.transfers import Box
from ...models.files.json_text import JsonError, parse_json
from ...models.layout.placement import Placement
from ...models.layout.submesh import Submesh
from ...models.machine.machine import Collectives, Machine
from ...models.program.graph import Graph
from ..compiled.rows import RowChain
from ..kernels import Array
from ..lowering.fusion import fuse
from ..lowering.moments import share_moments
from ..lowering.overlap import overlap
from ..lowering.program import Program, lower
from ..lowering.rooted import with_root
from . import consent, progress, segments
from .interpreter import RankError

_FORMAT = "shardproof-job/1"


@dataclass(frozen=True)
class Options:
    """How a program is run.  `fuse`, `overlap`: see these modules; `trace`: record times; `backend`: numpy, numba, cupy
    or torch.  `stored`: in the element types of the graph, rounded to them after every operator, which fuses none.
    `machine`: canonical text of the one whose collective programs reductions take; empty: level by level.
    `from_root`: inputs lie on rank 0 alone, and outputs end there.
    """

    fuse: bool = True
    overlap: bool = True
    trace: bool = False
    backend: str = "numpy"
    stored: bool = False
    machine: str = ""
    from_root: bool = False

    @property
    def library(self) -> str:
        """Who computes operators: CuPy's arrays have the kernels of NumPy's."""
        return self.backend if self.backend in ("numba", "torch") else "numpy"


def machine_text(machine: Machine) -> str:
    """What `Options.machine` says of a plan's machine: nothing where reductions have no choice."""
    return "" if machine.collectives is Collectives.HIERARCHICAL else machine.to_json()


@dataclass(frozen=True)
class Job:
    """A job read back: see the module docstring."""

    folder: Path
    graph: Graph
    hierarchy: tuple[int, ...]
    choices: Choices
    files: dict[str, str]
    options: Options

    def program(self) -> Program:
        """The program of all ranks."""
        return build_program(self.graph, self.hierarchy, self.choices, self.options)

    def source(self, tensor: str, box: Box) -> Array:
        """A block of an input, read from its file."""
        mapped = np.load(self.folder / self.files[tensor], mmap_mode="r", allow_pickle=False)
        return np.array(mapped[tuple(slice(lo, hi) for lo, hi in box)])


def build_program(graph: Graph, hierarchy: tuple[int, ...], choices: Choices, options: Options) -> Program:
    """The program of all ranks, with the passes that the options ask for."""
    machine = Machine.from_json(options.machine) if options.machine else None
    program = lower(graph, hierarchy, choices, machine)
    program = replace(program, stored=options.stored, library=options.library)
    program = share_moments(with_root(program, choices) if options.from_root else program)
    if options.fuse and not options.stored:
        program = fuse(fuse(program, RowChain) if options.library == "numba" else program)
    return overlap(program) if options.overlap else program


def write_job(
    folder: Path,
    graph: Graph,
    hierarchy: tuple[int, ...],
    choices: Choices,
    inputs: Mapping[str, Array],
    options: Options | None = None,
) -> None:
    """Fill an empty folder.  `inputs` in digit shape."""
    for name in ("inputs", "outputs", "trace"):
        (folder / name).mkdir()
    progress.create(folder, prod(hierarchy))
    files = {}
    for n, (name, array) in enumerate(inputs.items()):
        files[name] = f"inputs/{n}.npy"
        np.save(folder / files[name], np.ascontiguousarray(array), allow_pickle=False)

    def placement_rows(items: tuple[tuple[str, Placement], ...]) -> list[object]:
        return [
            [name, list(p.axes), [list(row) for row in p.matrix], p.view and [p.view.starts, p.view.counts]]
            for name, p in items
        ]

    data = {
        "format": _FORMAT,
        "graph": parse_json(graph.to_json()),
        "hierarchy": list(hierarchy),
        "operators": placement_rows(choices.operators),
        "copies": placement_rows(choices.copies),
        "files": files,
        "options": asdict(options or Options()),
        "consent": consent.to_ranks(graph),
    }
    (folder / "job.json").write_text(json.dumps(data))


def read_job(folder: Path) -> Job:
    """Read `write_job`'s folder back; kernels that the parent allowed are allowed here.  Raises ValueError for
    another format.
    """
    data: Any = parse_json((folder / "job.json").read_text())
    if data.get("format") != _FORMAT:
        raise ValueError(f"{folder}: not a job of format {_FORMAT}")

    def placements(items: list[tuple[str, list[str], list[list[int]], Any]]) -> tuple[tuple[str, Placement], ...]:
        return tuple(
            (name, Placement(tuple(axes), tuple(tuple(row) for row in matrix), view and Submesh(*map(tuple, view))))
            for name, axes, matrix, view in items
        )

    consent.from_parent(data["consent"]["kernels"], data["consent"]["paths"])
    choices = Choices(placements(data["operators"]), placements(data["copies"]))
    return Job(
        folder,
        Graph.from_json(json.dumps(data["graph"])),
        tuple(data["hierarchy"]),
        choices,
        dict(data["files"]),
        Options(**data["options"]),
    )


def write_error(folder: Path, error: RankError) -> None:
    """Leave word of a failure; the first rank to fail wins.  Collectives open shared files of their own, so what this
    rank has open is noted again.
    """
    segments.note(folder)
    try:
        with (folder / "error.json").open("x") as file:
            json.dump({"rank": error.rank, "place": error.place, "reason": error.reason}, file)
    except FileExistsError:
        pass


def read_error(folder: Path) -> RankError | None:
    """The failure that a rank left word of."""
    path = folder / "error.json"
    try:
        data: Any = parse_json(path.read_text())
    except (FileNotFoundError, JsonError):
        return None
    return RankError(int(data["rank"]), str(data["place"]), str(data["reason"]))
