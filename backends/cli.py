"""The verb `run`: execute a checked plan on virtual or MPI ranks and compare with one process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from types import ModuleType

import click
import numpy as np

from ..models.choices import Choices, movements
from ..models.console import Exit, InputError, Watch, bytes_text, emit
from ..models.graph import Graph, Role
from ..proofs.publisher import Publisher
from .interpreter import RankError
from .kernels import Array
from .launch import LaunchError, mpi_available, run_mpi
from .program import lower
from .reference import random_inputs, run_graph
from .run import RunResult, Traffic, run_virtual

TOLERANCE = {"float64": 1e-10, "float32": 1e-3}
"""Largest difference from one process, relative to 1 + the largest value, that counts as equal."""

MPI_RANKS = 64
"""More local processes than this are refused; virtual ranks have no such limit."""


@click.command("run")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("-n", "ranks", type=int, required=True, help="Number of ranks; must be the number of devices of the plan.")
@click.option("--backend", type=click.Choice(["numpy", "cupy", "auto"]), default="auto", show_default=True, help="Array library (auto: CuPy if a GPU answers).")
@click.option("--virtual", is_flag=True, help="All ranks in this process, no MPI; counts the bytes moved.")
@click.option("--inputs", type=click.Path(dir_okay=False, path_type=Path), help="An .npz file with every input and parameter.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs when none are given.")
@click.option("--dtype", type=click.Choice(["float64", "float32"]), default="float64", show_default=True, help="Type of the inputs made from the seed.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds before the ranks are ended.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the outputs here (.npz).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def run_command(
    publisher: Publisher, plan_file: Path, ranks: int, backend: str, virtual: bool, inputs: Path | None, seed: int, dtype: str, timeout: float,
    output: Path | None, as_json: bool,
) -> int:
    """Execute PLAN on N ranks and compare the result with one process."""
    with Watch("checking the plan"):
        plan, identity = publisher.checked_plan(plan_file)
    devices = plan.machine.devices
    if ranks != devices:
        raise InputError(
            f"the plan is for {devices} devices, -n asks for {ranks} ranks; run it with -n {devices}, or plan for 'localhost:{ranks}' and run that"
        )
    if not virtual and ranks > MPI_RANKS:
        raise InputError(f"{ranks} processes on one machine are too many; use --virtual")
    if not virtual and not mpi_available():
        raise InputError("MPI is not installed here: pip install 'shardproof[mpi]', or use --virtual")
    xp = _library(backend, virtual)
    arrays = _read(inputs, plan.graph) if inputs is not None else random_inputs(plan.graph, seed, dtype)
    start = time.monotonic()
    traffic: tuple[Traffic, ...] = ()
    try:
        with Watch(f"running on {ranks} {'virtual' if virtual else 'MPI'} ranks"):
            if virtual:
                result: RunResult = run_virtual(lower(plan.graph, plan.machine.hierarchy, plan.choices), arrays, xp, timeout)
                outputs: Mapping[str, Array] = {k: _to_host(v) for k, v in result.outputs.items()}
                traffic = result.traffic
            else:
                outputs = run_mpi(plan.graph, plan.machine.hierarchy, plan.choices, arrays, timeout)
    except (RankError, LaunchError) as error:
        click.echo(f"error: {error}", err=True)
        return Exit.INTERNAL
    seconds = time.monotonic() - start
    with Watch("running in one process"):
        expected = run_graph(plan.graph, arrays)
    worst = max((_difference(outputs[name], expected[name]) for name in plan.graph.outputs), default=0.0)
    allowed = TOLERANCE["float64" if all(a.dtype != np.float32 for a in arrays.values()) else "float32"]
    equal = worst <= allowed
    moved = _bytes_by_collective(plan.graph, plan.machine.hierarchy, plan.choices)
    mismatched = [t.place for t in traffic if t.counted != t.priced]
    if output is not None:
        np.savez(output, **{k: np.asarray(v) for k, v in outputs.items()})  # type: ignore[arg-type]
    levels = [level.name for level in plan.machine.levels]
    if as_json:
        emit({
            "identity": identity, "ranks": ranks, "transport": "virtual" if virtual else "mpi", "seconds": round(seconds, 3), "equal": equal, "difference": worst,
            "bytes": {name: dict(zip(levels, values, strict=True)) for name, values in moved.items()},
            "bytes_counted_equal_priced": None if not virtual else not mismatched,
        })
    else:
        click.echo(f"{plan.graph.name}: plan {identity[:16]}, {ranks} {'virtual' if virtual else 'MPI'} ranks, {xp.__name__}, {seconds:.2f} s")
        for name, values in moved.items():
            click.echo(f"  {name:<36} " + ", ".join(f"{bytes_text(b)} into the busiest {level}" for b, level in zip(values, levels, strict=True)))
        if virtual:
            click.echo(f"  bytes counted = bytes priced in {len(traffic) - len(mismatched)} of {len(traffic)} movements")
        click.echo(f"  largest difference from one process: {worst:.2e} (allowed {allowed:g}): {'equal' if equal else 'DIFFERENT'}")
    if mismatched:
        click.echo(f"error: bytes counted differ from bytes priced at: {', '.join(mismatched[:5])}", err=True)
    return Exit.DONE if equal and not mismatched else Exit.REFUTED


def _library(backend: str, virtual: bool) -> ModuleType:
    if backend == "numpy":
        return np
    try:
        import cupy
    except ImportError:
        cupy = None
    available = cupy is not None and bool(cupy.is_available())
    if backend == "cupy":
        if not available:
            raise InputError("CuPy finds no GPU here: pip install 'shardproof[gpu]' on a machine with one, or use --backend numpy")
        if not virtual:
            raise InputError("MPI ranks compute with NumPy in this version; use --virtual with --backend cupy")
    return cupy if available and virtual else np


def _to_host(value: Array) -> Array:
    return value if isinstance(value, np.ndarray) else value.get()


def _read(path: Path, graph: Graph) -> dict[str, Array]:
    wanted = {t.name for t in graph.tensors if t.role is not Role.VALUE}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as an .npz file: {error}") from None
    missing = sorted(wanted - set(arrays))
    if missing:
        raise InputError(f"{path}: lacks {len(missing)} of {len(wanted)} inputs: {', '.join(missing[:5])}")
    return {name: arrays[name] for name in sorted(wanted)}


def _difference(got: Array, expected: Array) -> float:
    if got.shape != expected.shape:
        return float("inf")
    if got.size == 0:
        return 0.0
    scale = 1.0 + float(np.max(np.abs(expected)))
    difference = float(np.max(np.abs(got.astype(np.float64) - expected.astype(np.float64))))
    return float("inf") if isnan(difference) else difference / scale


def _bytes_by_collective(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> dict[str, tuple[int, ...]]:
    total: dict[str, tuple[int, ...]] = {}
    for m in movements(graph, hierarchy, choices):
        loads = m.plan.loads()
        if any(loads):
            size = graph.tensor(m.tensor).element_bytes
            name = m.plan.collective()
            before = total.get(name, (0,) * len(loads))
            total[name] = tuple(b + n * size for b, n in zip(before, loads, strict=True))
    return dict(sorted(total.items()))
