"""Keeps programs that were written down in a run as container members, so that `equal` reads them without their code.

    captured.json    {"format", "device", "programs", "ranks", "values", "stated"}
    values.i64       all numbers of all sources, one behind another, each once: whole numbers and truth values as they
                     are, real ones as the bits of their double

`stated`: for every rank, where the program says itself that inputs and outputs lie: `[name, shape of the whole, runs of
every dimension, whether the whole is of all ranks]` of each.  `device`: one device, not ranks.  `values` has, for every
rank, `[source, element type, first]` of each of its sources.
Decoding checks types, structure and sizes, that every step reads what is there, and that numbers are ones of their
element types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...models.equality.captured import Captured, Stated
from ...models.equality.pair import Runs
from ...models.equality.program import RankProgram
from ..container.archive import Member, read_array, read_json, write_container
from ..container.canonical import Reader, canonical
from .file import LARGEST, MOST, MOST_RANKS, program_json, read_program

CAPTURED: Final = "captured.json"
VALUES: Final = "values.i64"
FORMAT: Final = "shardproof-captured/2"
KINDS: Final[Mapping[str, str]] = {
    "float64": "real",
    "float32": "real",
    "int64": "whole",
    "int32": "whole",
    "int16": "whole",
    "int8": "whole",
    "uint8": "whole",
    "uint32": "whole",
    "bool": "truth",
}
"""Element types of arrays, and how their numbers are kept."""

Plain = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Program:
    """A program and the values of its sources, by number; where it says itself that inputs and outputs lie."""

    program: RankProgram
    arrays: Mapping[int, Plain]
    inputs: Mapping[str, Stated]
    outputs: Mapping[str, Stated]


@dataclass(frozen=True)
class CapturedFile:
    """`device`: one device; else what every rank does."""

    device: bool
    programs: tuple[Program, ...]


def write_captured(programs: Sequence[Captured], device: bool) -> bytes:
    """Bytes of an `.spz` file.  Raises `ContainerError` for element types that it does not keep."""
    different = list(dict.fromkeys(c.program for c in programs))
    pieces, firsts, total = list[NDArray[np.int64]](), dict[bytes, int](), 0
    rows = []
    for captured in programs:
        row = []
        for source in captured.program.sources:
            array = np.asarray(captured.arrays[source.number])
            kept = _integers(array)
            key = kept.tobytes()
            if key not in firsts:
                firsts[key], total = total, total + len(kept)
                pieces.append(kept)
            row.append([source.number, array.dtype.name, firsts[key]])
        rows.append(row)
    head = {
        "format": FORMAT,
        "device": device,
        "programs": [program_json(p) for p in different],
        "ranks": [different.index(c.program) for c in programs],
        "values": rows,
        "stated": [[_stated_json(c.inputs), _stated_json(c.outputs)] for c in programs],
    }
    values = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    return write_container(None, {CAPTURED: canonical(head), VALUES: values})


def _stated_json(stated: Mapping[str, Stated]) -> list[object]:
    return [
        [name, list(s.whole), [[list(run) for run in runs] for runs in s.runs], s.everywhere]
        for name, s in sorted(stated.items())
    ]


def _read_stated(rows: Reader) -> dict[str, Stated]:
    found = dict[str, Stated]()
    for row in rows.items(MOST):
        name, whole, runs, everywhere = row.parts(4)
        shape = tuple(n.integer(0, LARGEST) for n in whole.items(MOST))
        dims = list(runs.items(MOST))
        if len(dims) != len(shape) or name.text(MOST) in found:
            row.fail("needs runs of every dimension, and a name once")
        places = tuple(_read_runs(dim, n) for dim, n in zip(dims, shape, strict=True))
        found[name.text(MOST)] = Stated(shape, places, everywhere.flag())
    return found


def _read_runs(dim: Reader, size: int) -> Runs:
    found, next_here = list[tuple[int, int, int]](), 0
    for run in dim.items(MOST):
        here, there, many = (part.integer(0, size) for part in run.parts(3))
        if here != next_here or max(there, here) + many > size:
            run.fail("runs stand one behind another, inside the whole")
        next_here += many
        found.append((here, there, many))
    if not found:
        dim.fail("needs a run")
    return tuple(found)


def _integers(array: Plain) -> NDArray[np.int64]:
    if array.dtype.name not in KINDS:
        raise TypeError(f"an array of {array.dtype} cannot be kept; known are {', '.join(KINDS)}")
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(np.float64).view(np.int64) if KINDS[array.dtype.name] == "real" else flat.astype(np.int64)


def decode_captured(members: Mapping[str, Member]) -> CapturedFile:
    """`ContainerError` names what is wrong."""
    head = read_json(members, CAPTURED).fields("format", "device", "programs", "ranks", "values", "stated")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    values = read_array(members, VALUES).reshape(-1)
    programs = [read_program(r) for r in head["programs"].items(MOST)]
    ranks = [programs[r.integer(0, len(programs) - 1)] for r in head["ranks"].items(MOST_RANKS)]
    device = head["device"].flag()
    if not ranks or (device and len(ranks) != 1):
        head["ranks"].fail("needs ranks, and one program of one device")
    rows = list(head["values"].items(MOST_RANKS))
    if len(rows) != len(ranks):
        head["values"].fail(f"{len(ranks)} ranks need as many lists")
    if any(not p.outputs for p in ranks):
        head["programs"].fail("a program has no output")
    stated = [[_read_stated(side) for side in row.parts(2)] for row in head["stated"].items(MOST_RANKS)]
    if len(stated) != len(ranks):
        head["stated"].fail(f"{len(ranks)} ranks need as many lists")
    found = tuple(
        Program(p, _read_values(row, p, values), *sides) for p, row, sides in zip(ranks, rows, stated, strict=True)
    )
    return CapturedFile(device, found)


def _read_values(row: Reader, program: RankProgram, values: NDArray[np.int64]) -> dict[int, Plain]:
    found = dict[int, Plain]()
    numbers = {s.number for s in program.sources}
    for one in row.items(MOST):
        number, dtype, first = one.parts(3)
        n, name = number.integer(0, len(program.tensors) - 1), dtype.text(16)
        if n not in numbers or n in found:
            number.fail("is no source of the program, once")
        if name not in KINDS or KINDS[name] != _kind(program.tensors[n].dtype):
            dtype.fail(f"a tensor of {program.tensors[n].dtype} has no such numbers")
        shape = program.tensors[n].shape
        start, many = first.integer(0, len(values)), prod(shape)
        if start + many > len(values):
            first.fail("there are fewer values")
        kept = values[start : start + many]
        array = kept.view(np.float64) if KINDS[name] == "real" else kept
        with np.errstate(all="ignore"):
            made = array.astype(name)
        if not np.array_equal(_integers(made), kept):
            first.fail(f"numbers that {name} does not have")
        found[n] = made.reshape(shape)
    if set(found) != numbers:
        row.fail("every source must have its values once")
    return found


def _kind(dtype: str) -> str:
    if dtype == "bool":
        return "truth"
    return "whole" if dtype.startswith(("int", "uint")) else "real"
