"""Reads output of nccl-tests, as text: one table of sizes and times per run, several runs one after
another.

    # nThread 1 nGpus 8 ..                          a run begins; devices if no rank is listed
    #  Rank  0 .. on  node0 device  0 ..            one line per rank: ranks and nodes are counted
    # Collective test starting: all_reduce_perf     newer versions; or the command itself (`all_reduce_perf -b`)
         1024  256  float  sum  -1  34.58 0.03 0.05  0  33.55 0.03 0.05  0

Times are out-of-place microseconds.  Where nothing names the operation, the ratio of bus to algorithm bandwidth
does, as far as it is that of one only: 2 (n-1)/n with a reduction is all_reduce, (n-1)/n with one reduce_scatter;
(n-1)/n without one may be all_gather or alltoall, and is asked for.

Source: NVIDIA/nccl-tests, src/common.cu (form of the lines) and doc/PERFORMANCE.md (the ratios).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from ....models.cost.collective_times import Operation
from ....models.text import InputError
from .observation import Collective, Observation

_PROGRAM: Final = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf\b")
_OTHER: Final = re.compile(r"\b(broadcast|reduce|scatter|gather|hypercube)_perf\b")
_RANK: Final = re.compile(r"#\s+Rank\s+\d+\b.*?\bon\s+(\S+)\s+device\b")
_START: Final = re.compile(r"#\s*nThread\s+(\d+)\s+nGpus\s+(\d+)\b")
_OPERATIONS: Final = {"sendrecv": Operation.SEND_RECV, **{o.value: o for o in Operation}}


@dataclass
class _Run:
    """What the comments before a table said."""

    devices: int = 0
    hosts: list[str] = field(default_factory=list)
    operation: Operation | None = None
    rows: list[tuple[int, int, str, str, float, float, float]] = field(default_factory=list)


def looks_like(text: str) -> bool:
    """Is this output of nccl-tests?"""
    return bool(_START.search(text) or ("out-of-place" in text and "busbw" in text))


def read(text: str, place: str, operation: Operation | None = None) -> list[Observation]:
    """All rows; `operation` where the file does not say which it is.  Raises `InputError` naming file and line.

    >>> text = "# nThread 1 nGpus 2 minBytes 8\\n#  Rank  0 Pid 1 on  a device  0\\n#  Rank  1 Pid 2 on  a device  1\\n"
    >>> text += "  1048576  262144  float  sum  -1  20.0  52.4  52.4  0  21.0  49.9  49.9  0\\n"
    >>> [(o.what.operation.value, o.what.ranks, round(o.seconds, 9)) for o in read(text, "x", Operation.ALL_REDUCE)]
    [('all_reduce', 2, 2e-05)]
    """
    runs, run, named = [], _Run(), operation
    for number, line in enumerate(text.splitlines(), start=1):
        if start := _START.search(line):
            run = _Run(int(start[1]) * int(start[2]), operation=named)
            runs.append(run)
        if found := _PROGRAM.search(line):
            named = run.operation = operation or _OPERATIONS[found[1]]
        elif other := _OTHER.search(line):
            raise InputError(
                f"{place}, line {number}: {other[0]} is none of the collectives that are priced: all_reduce, "
                f"all_gather, reduce_scatter, alltoall, sendrecv; leave that run out"
            )
        if host := _RANK.search(line):
            run.hosts.append(host[1])
        elif re.match(r"\s*\d", line):
            if not runs:
                runs.append(run)
            run.rows.append(_row(line, f"{place}, line {number}", number))
    out = [o for run in runs for o in _observations(run, place)]
    if not out:
        raise InputError(f"{place}: output of nccl-tests without a row of times; give the whole output")
    return out


def _row(line: str, place: str, number: int) -> tuple[int, int, str, str, float, float, float]:
    """(line, bytes, element type, reduction, microseconds, algorithm and bus bandwidth)."""
    words = line.split()
    kinds = [i for i, w in enumerate(words) if not re.fullmatch(r"-?[0-9.]+(e[+-]?\d+)?|N/A|inf", w)]
    if len(words) < 6 or not kinds or kinds[0] != 2 or not words[0].isdigit():
        raise InputError(f"{place}: is no row of nccl-tests (size, count, type, .., time, algbw, busbw): {line[:80]!r}")
    reduction = words[3] if 3 in kinds else "none"
    at = 4 if 3 in kinds else 3
    rest = words[at:]
    if len(rest) in (5, 9):  # root
        rest = rest[1:]
    try:
        time, algorithm, bus = (float(w) for w in rest[:3])
    except ValueError:
        raise InputError(f"{place}: has no time, algbw and busbw: {line[:80]!r}") from None
    return number, int(words[0]), words[2], reduction, time, algorithm, bus


def _observations(run: _Run, place: str) -> list[Observation]:
    ranks = len(run.hosts) or run.devices
    nodes = len(set(run.hosts)) or 1
    rows = [r for r in run.rows if r[1] > 0 and r[4] > 0]
    if not rows:
        return []
    first = f"{place}, line {rows[0][0]}"
    if ranks < 2:
        raise InputError(f"{first}: nothing above says how many ranks took part; keep the lines '# .. Rank .. on ..'")
    operation = run.operation or _guessed(rows, ranks, first)
    if any(run.hosts.count(h) * nodes != ranks for h in run.hosts):
        raise InputError(f"{first}: the nodes have different numbers of ranks; such runs are not priced")
    # one ring step of neighbours crosses a node's port once each way
    return [
        Observation(
            Collective(operation, ranks, nodes, size),
            time * 1e-6,
            f"{place}, line {number}",
            (
                ("operation", operation.value),
                ("ranks", str(ranks)),
                ("nodes", str(nodes)),
                ("bytes", str(size)),
                ("dtype", dtype),
            ),
        )
        for number, size, dtype, _, time, _, _ in rows
    ]


def _guessed(rows: list[tuple[int, int, str, str, float, float, float]], ranks: int, place: str) -> Operation:
    _, _, _, reduction, _, algorithm, bus = max(rows, key=lambda r: r[1])
    ratio = bus / algorithm if algorithm else 0.0
    away = (ranks - 1) / ranks
    reduces = reduction not in ("none", "")
    near = [
        o
        for o, wanted, sums in (
            (Operation.ALL_REDUCE, 2 * away, True),
            (Operation.REDUCE_SCATTER, away, True),
            (Operation.ALL_GATHER, away, False),
            (Operation.ALL_TO_ALL, away, False),
        )
        if sums == reduces and abs(ratio / wanted - 1) < 0.03
    ]
    if len(near) != 1:
        said = " or ".join(o.value for o in near) or "none that is known"
        raise InputError(
            f"{place}: the output does not name its operation (by its bandwidths: {said}); give --operation NAME, or "
            f"keep the line '# Collective test starting: .._perf'"
        )
    return near[0]
