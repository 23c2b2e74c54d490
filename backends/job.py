"""A job: everything that ranks started elsewhere need, in one folder.

    job.json          graph, hierarchy, choices, element types; the files of the inputs
    inputs/N.npy      one array per input or parameter, in digit shape; ranks map the file and read their blocks only
    outputs/N.npy     written by rank 0, N = position in the graph's outputs
    error.json        written by the first rank that failed

Every rank lowers the choices itself: lowering is deterministic and cheaper than shipping all programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..models.choices import Choices
from ..models.communication import Box
from ..models.graph import Graph
from ..models.placement import Placement
from .interpreter import RankError
from .kernels import Array

_FORMAT = "shardproof-job/1"


@dataclass(frozen=True)
class Job:
    """A job read back: see the module docstring."""

    folder: Path
    graph: Graph
    hierarchy: tuple[int, ...]
    choices: Choices
    files: dict[str, str]

    def source(self, tensor: str, box: Box) -> Array:
        """A block of an input, read from its file."""
        mapped = np.load(self.folder / self.files[tensor], mmap_mode="r", allow_pickle=False)
        return np.array(mapped[tuple(slice(lo, hi) for lo, hi in box)])


def write_job(folder: Path, graph: Graph, hierarchy: tuple[int, ...], choices: Choices, inputs: Mapping[str, Array]) -> None:
    """Fill an empty folder.  `inputs` in digit shape."""
    (folder / "inputs").mkdir()
    (folder / "outputs").mkdir()
    files = {}
    for n, (name, array) in enumerate(inputs.items()):
        files[name] = f"inputs/{n}.npy"
        np.save(folder / files[name], np.ascontiguousarray(array), allow_pickle=False)

    def listed(items: tuple[tuple[str, Placement], ...]) -> list[object]:
        return [[name, list(p.axes), [list(row) for row in p.matrix]] for name, p in items]

    data = {
        "format": _FORMAT, "graph": json.loads(graph.to_json()), "hierarchy": list(hierarchy),
        "operators": listed(choices.operators), "copies": listed(choices.copies), "files": files,
    }
    (folder / "job.json").write_text(json.dumps(data))


def read_job(folder: Path) -> Job:
    """Read `write_job`'s folder back.  Raises ValueError for another format."""
    data = json.loads((folder / "job.json").read_text())
    if data.get("format") != _FORMAT:
        raise ValueError(f"{folder}: not a job of format {_FORMAT}")

    def placements(items: list[tuple[str, list[str], list[list[int]]]]) -> tuple[tuple[str, Placement], ...]:
        return tuple((name, Placement(tuple(axes), tuple(tuple(row) for row in matrix))) for name, axes, matrix in items)

    choices = Choices(placements(data["operators"]), placements(data["copies"]))
    return Job(folder, Graph.from_json(json.dumps(data["graph"])), tuple(data["hierarchy"]), choices, dict(data["files"]))


def write_error(folder: Path, error: RankError) -> None:
    """Leave word of a failure; the first rank to fail wins."""
    try:
        with (folder / "error.json").open("x") as file:
            json.dump({"rank": error.rank, "place": error.place, "reason": error.reason}, file)
    except FileExistsError:
        pass


def read_error(folder: Path) -> RankError | None:
    """The failure that a rank left word of."""
    path = folder / "error.json"
    try:
        data = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return RankError(int(data["rank"]), str(data["place"]), str(data["reason"]))
