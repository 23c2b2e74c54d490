"""Measured forms, a third time: collectives of a level and matrix products, from docs/certificate-format.md alone.

collective   c0 + c1 (g-1) + min(c2 g s, c3 d + (c4 k (g-1) + c5) s)
product      launch + max(least over tiles and parts + epilogue, bytes / bandwidth) + result * b m n
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from math import ceil, prod

from .description import Machine, Operator, ProductTable
from .tilings import Digit

Phase = tuple[str, int, int, int]
"""Operation, level, members, and elements that each contributes (of all devices behind one link)."""


def phases_of_reduction(
    tile: int, digits: Sequence[Digit], replicated: Collection[Digit], sizes: Sequence[int]
) -> tuple[Phase, ...]:
    """Reduce-scatters inwards out, all-gathers outwards in; both at the outermost level in one all-reduce if it keeps
    all of its digits.
    """
    out: list[Phase] = []
    levels = sorted({d.level for d in digits})
    kept = prod(d.prime for d in replicated)
    elements = -(-tile // kept) * prod(d.prime for d in digits)
    once = ""
    for level in reversed(levels):
        group = prod(d.prime for d in digits if d.level == level)
        elements //= group
        together = all(d in replicated for d in digits if d.level == level) and level == levels[0]
        once = "all_reduce" if together else "reduce_scatter"
        out.append((once, level, group, elements * prod(sizes[level + 1 :])))
    for level in levels:
        group = prod(d.prime for d in replicated if d.level == level)
        if group > 1 and not (level == levels[0] and once == "all_reduce"):
            out.append(("all_gather", level, group, elements * prod(sizes[level + 1 :])))
        elements *= group
    return tuple(out)


def phases_of_fetch(loads: Sequence[int], before: int, after: int, sizes: Sequence[int]) -> tuple[Phase, ...]:
    """One collective per level that something enters: a gather if the innermost load is what the largest box grew by
    at most, else an exchange of all with all.
    """
    out: list[Phase] = []
    for level, size in enumerate(sizes):
        if size == 1 or loads[level] == 0:
            continue
        name, members = "alltoall", size
        if before + loads[-1] <= after:
            name, members = "all_gather", min(size, max(2, ceil(Fraction(after, max(before, 1)))))
        out.append((name, level, members, ceil(Fraction(loads[level], members - 1))))
    return tuple(out)


def units(phases: Sequence[Phase], element_bytes: int, machine: Machine, scale: int) -> int:
    """Each collective rounded up to a unit, where its level has a table."""
    total = 0
    for name, level, g, share in phases:
        table = machine.collectives[level]
        if table and share:
            c0, c1, c2, c3, c4, c5 = table[name]
            s, d = share * element_bytes, 1 if name == "alltoall" else len(bin(g - 1)) - 2
            ring = c4 * (g - 1) * (2 if name == "all_reduce" else 1)
            time = c0 + c1 * (g - 1) + min(c2 * g * s, c3 * d + (ring + c5) * s)
            total += -(-time.numerator * scale // time.denominator)
    return total


def product_roles(op: Operator) -> tuple[list[str], ...] | None:
    """Axes of batch, m, n and k if the operator multiplies two matrices (or batches of them), else None."""
    most = {"product": 2, "fused_product": len(op.inputs)}.get(op.function, 0)
    if not 2 <= len(op.inputs) <= most:
        return None
    if any(axis in op.reduced for operand in op.inputs[2:] for index in operand.index for axis, _ in index.terms):
        return None
    seen: list[list[str]] = []
    for operand in op.inputs[:2]:
        for index in operand.index:
            if index.whole or index.offset or [factor for _, factor in index.terms] != [1]:
                return None
        seen.append([index.terms[0][0] for index in operand.index])
        if len(seen[-1]) > len({*seen[-1]}):
            return None
    found: tuple[list[str], ...] = ([], [], [], [])
    for name in op.axes:
        here = (name in seen[0]) + 2 * (name in seen[1])
        if here == 0 or (name in op.reduced and here < 3):
            return None
        found[3 if name in op.reduced else {3: 0, 1: 1, 2: 2}[here]].append(name)
    return found if found[1] and found[2] and found[3] else None


def product_time(table: ProductTable, shape: Sequence[int], epilogue: Fraction, transfer: Fraction) -> Fraction:
    """Seconds of one box."""
    b, m, n, k = shape
    best = None
    for (high, wide), time in table.tiles.items():
        for cut in [2**e for e in range(11)] if prod(shape) else []:
            tiles = b * ceil(Fraction(m, high)) * ceil(Fraction(n, wide))
            steps = ceil(Fraction(k, 64 * cut))
            step = time * (1 + table.odd) if m > 128 and m % 64 else time
            total = ceil(Fraction(tiles * cut, table.processors)) * (steps * step + table.tail) + table.step * steps
            if cut > 1:
                total += table.split + table.sum * 4 * high * wide * tiles * cut
            best = total if best is None else min(best, total)
    return table.launch + max((best or Fraction(0)) + epilogue, transfer) + table.result * b * m * n
