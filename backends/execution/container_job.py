"""Jobs whose plan is a file with a schedule: what the parent lays out, starts and reads back.

plan.spz         the plan                                      options.json     files of the inputs, and what is asked
inputs/N.npy     one array per input or parameter              outputs/N.npy, trace/N.json, error.json: as in jobs
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...models.files.json_text import parse_json
from ...models.program.graph import Graph
from ..kernels import Array, widen
from ..trace import Span, read_spans
from . import progress
from .job import read_error
from .launch import LaunchError, launch
from .reference import as_stored, check_inputs
from .workplace import need_room, workplace

_ROOT = __name__.partition(".")[0]


def read_options(folder: Path) -> dict[str, Any]:
    """What the parent asked for; `files`: of the inputs."""
    found: Any = parse_json((folder / "options.json").read_text())
    return dict(found)


def run_container_job(
    module: str,
    graph: Graph,
    ranks: int,
    write: Callable[[Path], object],
    inputs: Mapping[str, Array],
    options: Mapping[str, object],
    timeout_s: float,
) -> tuple[dict[str, Array], tuple[Span, ...], str]:
    """(outputs, times, transport).  `module`: beside this one, run on every rank with the folder as its argument;
    `write(path)`: writes the plan; `options`: `stored`, `trace` and what else the ranks want to know.

    Raises `GraphError` before anything starts, `RankError` naming rank and operator when one fails, `LaunchError`
    otherwise.
    """
    arrays = check_inputs(graph, inputs)
    arrays = as_stored(graph, arrays) if options["stored"] else arrays
    with workplace() as folder:
        need_room(
            folder, sum(a.nbytes for a in arrays.values()) + sum(8 * graph.tensor(n).elements for n in graph.results)
        )
        for name in ("inputs", "outputs", "trace"):
            (folder / name).mkdir()
        progress.create(folder, ranks)
        files = {name: f"inputs/{n}.npy" for n, name in enumerate(arrays)}
        for name, file in files.items():
            np.save(folder / file, np.ascontiguousarray(arrays[name]), allow_pickle=False)
        write(folder / "plan.spz")
        (folder / "options.json").write_text(json.dumps({**options, "files": files}))
        try:
            launch(["-m", f"{_ROOT}.backends.execution.{module}", str(folder)], ranks, timeout_s, folder)
        except LaunchError as e:
            if (error := read_error(folder)) is not None:
                raise error from e
            raise
        outputs = {
            t: widen(np, np.load(folder / f"outputs/{n}.npy", allow_pickle=False)) for n, t in enumerate(graph.results)
        }
        spans = [s for r in range(ranks) if options["trace"] for s in read_spans(folder / f"trace/{r}.json")]
        return outputs, tuple(spans), (folder / "transport.txt").read_text()
