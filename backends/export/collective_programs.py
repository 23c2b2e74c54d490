"""Writes proved reduction programs as a Python file of another framework that needs nothing of ours.

    torch   process groups and calls of torch.distributed, the five collectives on whatever groups there are
    jax     shard_map over a mesh whose axes are the levels of the reduction group's tree: AllReduce, ReduceScatter and
            AllGather over some of its axes are psum, psum_scatter and all_gather; groups of the first positions alone
            (Master), a root (Reduce, Broadcast) and trees of unequal blocks are no such thing, and refused by name

A JAX device holds its rows in the order in which they arrived.  Which rows these are is known from the states before
and after each step, so the order that makes them ascending is written down wherever it is another one.
"""

from __future__ import annotations

import pprint
from itertools import pairwise
from pathlib import Path
from typing import Final

from ...models.collective_programs.collectives import Collective, rows_of
from ...models.collective_programs.programs import Form, Instruction, ReductionSystem
from ...models.text import InputError
from ...proofs.collective_programs.chosen import Chosen

RUNTIMES: Final = {
    "torch": Path(__file__).with_name("reduce_torch_runtime.py"),
    "jax": Path(__file__).with_name("reduce_jax_runtime.py"),
}
"""Target -> the text that its files begin with."""

Runs = tuple[tuple[int, int], ...]


def program_text(programs: tuple[Chosen, ...], identity: str, target: str) -> str:
    """The file for all `programs`; `identity`: of the file that proves them.  Raises `InputError` for a step that the
    target cannot say.
    """
    tables = {f"over {one.over}": (torch_table(one) if target == "torch" else jax_table(one)) for one in programs}
    devices = len(programs[0].request.system().members) * programs[0].request.system().tree.positions
    docstring, _, code = RUNTIMES[target].read_text(encoding="utf-8").partition('"""\n\nfrom __future__')
    rules = docstring.split("copied into exported files.\n", 1)[1].rpartition("\n\nNothing here")[0]
    start = (
        f"torchrun --nproc-per-node {devices} FILE"
        if target == "torch"
        else f"XLA_FLAGS=--xla_force_host_platform_device_count={devices} python FILE"
    )
    listed = "\n".join(f"    {name}: {one.words}" for name, one in zip(tables, programs, strict=True))
    call = "Reduction(PROGRAMS[name])(tensor)" if target == "torch" else "reduction(PROGRAMS[name])(rows)"
    head = (
        f'"""Reduction programs for {devices} devices as {target} runs them, proved in a file of identity\n\n'
        f"    {identity}\n\n{listed}\n\n"
        f"To run them on drawn integers and compare with the sum, or in a program of yours:\n\n"
        f"    {start}\n    {call}\n{rules}\n\nIt needs {target} and nothing of Shardproof.\n"
    )
    table = f"PROGRAMS: dict[str, Program] = {pprint.pformat(tables, width=116, compact=True, sort_dicts=False)}\n"
    return f'{head}"""\n\nfrom __future__{code}\n\n{table}\nif __name__ == "__main__":\n    main(PROGRAMS)\n'


def torch_table(one: Chosen) -> tuple[object, ...]:
    """Chunks, who sums with whom, and every step's groups with the rows of their members before and after."""
    system = one.request.system()
    states, _ = system.execute(one.program)
    steps = []
    for instruction, (before, after) in zip(one.program, pairwise(states), strict=True):
        groups = [
            (
                tuple(row[p] for p in g),
                tuple(_runs(rows_of(before[p])) for p in g),
                tuple(_runs(rows_of(after[p])) for p in g),
            )
            for row in system.members
            for g in system.groups(instruction)
        ]
        steps.append((instruction.collective.value, tuple(groups)))
    return system.chunks, sums(system), tuple(steps)


def jax_table(one: Chosen) -> tuple[object, ...]:
    """Chunks, devices in the order of the mesh, its axes, which positions of it sum with one another, and every step's
    axes with the order that its rows are put into.
    """
    system = one.request.system()
    sizes = [len(level) // len(above) for above, level in pairwise(system.tree.blocks)]
    if any(len({b - a for a, b in level}) > 1 for level in system.tree.blocks):
        raise InputError(f"over {one.over}: jax has meshes of equal parts, and these blocks are not; use --to torch")
    axes = [(f"level{k + 1}", size) for k, size in enumerate(sizes)]
    devices = [d for row in system.members for d in row]
    place = {d: k for k, d in enumerate(devices)}
    states, _ = system.execute(one.program)
    held = {p: list(range(system.chunks)) for p in range(system.tree.positions)}
    steps = []
    for number, (instruction, after) in enumerate(zip(one.program, states[1:], strict=True)):
        over = _axes(instruction, len(sizes))
        if over is None:
            raise InputError(
                f"over {one.over}, step {number} {instruction}: jax has collectives over whole axes of a mesh, and no "
                "roots; use --to torch, or reduce with a reading without them (--reading no_master)"
            )
        over = tuple(k for k in over if sizes[k] > 1)
        orders: set[tuple[int, ...]] = set()
        for g in system.groups(instruction):
            gathered = [row for p in g for row in held[p]]
            for p in g:
                rows = sorted(_rows(rows_of(after[p])))
                now = gathered if instruction.collective is Collective.ALL_GATHER else rows
                held[p] = rows
                orders.add(tuple(now.index(row) for row in rows))
        order = orders.pop()
        if orders:  # none is known: rows are digits of a position, of which steps fix and free some, alike everywhere
            raise InputError(
                f"over {one.over}, step {number} {instruction}: rows lie otherwise on every device; use --to torch"
            )
        kept = () if order == tuple(range(len(order))) else order
        steps.append((instruction.collective.value, tuple(axes[k][0] for k in over), kept))
    wanted = tuple(tuple(place[d] for d in group) for group in sums(system))
    return system.chunks, tuple(devices), (("copy", len(system.members)), *axes), wanted, tuple(steps)


def sums(system: ReductionSystem) -> tuple[tuple[int, ...], ...]:
    """Devices that end with one another's sum."""
    every = (tuple(range(system.tree.positions)),)
    return tuple(tuple(row[p] for p in part) for row in system.members for part in system.wanted or every)


def _axes(instruction: Instruction, levels: int) -> tuple[int, ...] | None:
    """Numbers of the tree's levels, from 0, that a step is over; None where it is over no whole ones, or has a root."""
    if instruction.collective in (Collective.REDUCE, Collective.BROADCAST) or instruction.form is Form.MASTER:
        return None
    if instruction.form is Form.INSIDE:
        return tuple(range(instruction.slice, levels))
    return tuple(range(instruction.ancestor or 0, instruction.slice))


def _rows(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def _runs(mask: int) -> Runs:
    """Rows as runs of [first, last)."""
    out: list[list[int]] = []
    for row in _rows(mask):
        if out and out[-1][1] == row:
            out[-1][1] = row + 1
        else:
            out.append([row, row + 1])
    return tuple((a, b) for a, b in out)
