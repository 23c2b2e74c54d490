"""Replays a reduction program, row by row, with no code of `models/collective_programs/collectives`,
`programs` or `parallelism`.

    digits of a device     index at level j = mixed-radix number, one digit per axis, radix x[i][j], axis 0 most
                           significant
    reduction group        devices that agree in the digits of all axes that are not reduced
    position               row-major: mixed radix of (axis r1: level 0, level 1, ..; axis r2: ..); aligned: (level 0:
                           r1, r2, ..; level 1: ..)
    start[l][p]            first position of the block of level l that holds position p
    groups                 InsideGroup: equal start[l];  Parallel(e): equal (start[e], p - start[l]);  Master(e): those
                           with p = start[l]
    state                  held[p][i] = set (bit mask) of positions whose chunk i is contained

The state starts with held[p][i] = {p}; the rules are those of the paper, tested for every group, row and pair of
members.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from ...models.collective_programs.collectives import Collective, LoweredStep
from ...models.collective_programs.parallelism import Hierarchy, Order, ReductionRequest, Request
from ...models.collective_programs.programs import Form, Instruction, Program

MAX_CELLS = 1 << 20
"""Positions times chunks: 1,024 devices in one reduction group."""


class ReplayError(ValueError):
    """The program does not do what was asked for; the message names the step."""


def replay(request: Request, program: Program, first_master_only: bool, skip_empty: bool) -> list[LoweredStep]:
    """The steps on devices, if the program ends with every device holding exactly the sum of its group.  Raises
    `ReplayError`.
    """
    members, starts, wanted, chunks = _layout(request)
    n = len(members[0])
    if n * chunks > MAX_CELLS:
        raise ReplayError(f"{n} positions x {chunks} chunks are too many to replay")
    held = [[1 << p] * chunks for p in range(n)]
    steps = []
    for number, instruction in enumerate(program):
        groups = _groups(instruction, starts, first_master_only, f"step {number} {instruction}")
        before = [sum(map(bool, held[g[0]])) for g in groups]
        for g in groups:
            _step(
                [held[p] for p in g],
                instruction.collective,
                skip_empty,
                f"step {number} {instruction}, positions {list(g[:6])}",
            )
        rows = (
            [sum(map(bool, held[g[0]])) for g in groups] if instruction.collective is Collective.ALL_GATHER else before
        )
        devices = tuple(tuple(row[p] for p in g) for row in members for g in groups)
        steps.append(LoweredStep(instruction.collective, devices, tuple(rows) * len(members), chunks))
    for p in range(n):
        target = sum(1 << q for q in wanted[p])
        for i, mask in enumerate(held[p]):
            if mask != target:
                raise ReplayError(
                    f"at the end position {p} (device {members[0][p]}) holds {mask.bit_count()} of "
                    f"{len(wanted[p])} contributions to chunk {i}"
                )
    return steps


def _layout(request: Request) -> tuple[list[list[int]], list[list[int]], list[list[int]], int]:
    """(devices per group by position, start[l][p], who must be summed per position, chunks)."""
    if not isinstance(request, ReductionRequest):
        ends = [0]
        for size in request.nodes:
            ends.append(ends[-1] + size)
        n = ends[-1]
        node = [max(e for e in ends if e <= p) for p in range(n)]
        return [list(range(n))], [[0] * n, node, list(range(n))], [list(range(n))] * n, lcm(n, *request.nodes)
    matrix, levels = request.matrix, range(len(request.hierarchy))
    devices = 1
    for size in request.hierarchy:
        devices *= size
    digits = []  # per device: (axis, level) -> digit
    for device in range(devices):
        rest, at = device, {}
        for j in reversed(levels):
            for i in reversed(range(len(matrix))):
                rest, at[i, j] = divmod(rest, matrix[i][j])
        digits.append(at)
    keep = [(i, j) for i in range(len(matrix)) for j in levels if i not in request.reduce]
    if request.order is Order.ROW_MAJOR:
        cells = [(i, j) for i in request.reduce for j in levels]
    else:
        cells = [(i, j) for j in levels for i in request.reduce]
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for device, at in enumerate(digits):
        groups.setdefault(tuple(at[c] for c in keep), []).append((tuple(at[c] for c in cells), device))
    members = sorted([device for _, device in sorted(group)] for group in groups.values())
    n = len(members[0])
    match request.synthesis:
        case Hierarchy.COLLAPSED:
            sizes = [1] * len(levels)
            for i in request.reduce:
                sizes = [s * matrix[i][j] for j, s in zip(levels, sizes, strict=True)]
        case Hierarchy.REDUCTION:
            sizes = [matrix[i][j] for i, j in cells]
        case _:  # (a) to (c): one tree over all devices
            if request.synthesis is Hierarchy.SYSTEM:
                sizes = list(request.hierarchy)
            elif request.synthesis is Hierarchy.COLUMN:
                sizes = [matrix[i][j] for j in levels for i in range(len(matrix))]
            else:
                sizes = [matrix[i][j] for i in range(len(matrix)) for j in levels]
            every = list(range(devices))
            if request.synthesis is Hierarchy.ROW:
                every.sort(key=lambda d: [digits[d][i, j] for i in range(len(matrix)) for j in levels])
            position = {d: p for p, d in enumerate(every)}
            partners = {d: [position[x] for x in group] for group in members for d in group}
            return [every], _starts(sizes), [partners[d] for d in every], devices
    return members, _starts(sizes), [list(range(n))] * n, n


def _starts(sizes: Sequence[int]) -> list[list[int]]:
    n = 1
    for s in sizes:
        n *= s
    out, block = [[0] * n], n
    for s in sizes:
        block //= s
        out.append([p - p % block for p in range(n)])
    return out


def _groups(
    instruction: Instruction, starts: list[list[int]], first_master_only: bool, place: str
) -> list[tuple[int, ...]]:
    level, e = instruction.slice, instruction.ancestor
    if not 0 <= level < len(starts) or (instruction.form is not Form.INSIDE and (e is None or not 0 <= e < level)):
        raise ReplayError(f"{place}: no such levels")
    found: dict[tuple[int, int], list[int]] = {}
    for p in range(len(starts[0])):
        offset = p - starts[level][p]
        if instruction.form is Form.INSIDE or e is None:
            found.setdefault((starts[level][p], 0), []).append(p)
        elif instruction.form is Form.PARALLEL or (offset == 0 and not (first_master_only and starts[e][p])):
            found.setdefault((starts[e][p], offset), []).append(p)
    return sorted(tuple(g) for g in found.values() if len(g) > 1)


def _step(members: list[list[int]], kind: Collective, skip_empty: bool, place: str) -> None:
    """Changes the members' rows in place."""
    m, chunks = len(members), range(len(members[0]))
    root = members[0]
    if kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE):
        if skip_empty and not any(any(x) for x in members):
            return
        if not any(root):
            raise ReplayError(f"{place}: the root holds nothing")
        union = [0] * len(chunks)
        for i in chunks:
            for x in members:
                if bool(x[i]) != bool(root[i]):
                    raise ReplayError(f"{place}: chunk {i} is held by some and not by others")
                if x[i] & union[i]:
                    raise ReplayError(f"{place}: a contribution to chunk {i} would count twice")
                union[i] |= x[i]
        mine = [i for i in chunks if root[i]]
        if kind is Collective.REDUCE_SCATTER and len(mine) % m:
            raise ReplayError(f"{place}: {len(mine)} chunks cannot be scattered over {m} devices")
        part = len(mine) // m
        for j, x in enumerate(members):
            if kind is Collective.ALL_REDUCE:
                x[:] = union
            elif kind is Collective.REDUCE:
                x[:] = union if j == 0 else [0] * len(chunks)
            else:
                own = set(mine[j * part : (j + 1) * part])
                x[:] = [union[i] if i in own else 0 for i in chunks]
    elif kind is Collective.ALL_GATHER:
        whole = [0] * len(chunks)
        for x in members:
            if not any(x):
                raise ReplayError(f"{place}: a member holds nothing")
            for i in chunks:
                if x[i] and whole[i]:
                    raise ReplayError(f"{place}: chunk {i} is held twice")
                whole[i] |= x[i]
        for x in members:
            x[:] = whole
    else:
        if not any(root) or all(x == root for x in members):
            raise ReplayError(f"{place}: the root holds nothing, or nothing new")
        if any(x[i] & ~root[i] for x in members for i in chunks):
            raise ReplayError(f"{place}: a member knows something that the root does not")
        source = list(root)
        for x in members:
            x[:] = source
