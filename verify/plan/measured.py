"""Recomputes times by a machine's measured forms, a second time: which collectives a movement is, and what
a product takes.

    collective  of g devices of one level, each with s bytes (of all devices that share its link together):
                fixed + (g - 1) hop + the smaller one of   g s slow   and   log start + ((g - 1) k wire + own) s
                log: least x with 2^x >= g, but 1 for alltoall;  k: 2 for all_reduce, else 1
    reduction   of parts that end as `elements` each: over the digits of each level.  All digits of the outermost level
                kept: one all_reduce there.  Otherwise a reduce_scatter at the level, and an all_gather over those kept
    fetch       a gather keeps what was there: then the last level receives no more than the largest box grows
    product     see `product_seconds`

Written from docs/certificate-format.md (section 9.5); shares no formula with `models/cost`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, lcm, prod

from ...models.machine.machine import Machine
from ...models.machine.measured import CollectiveForm, ProductForm
from ...models.program.operators import Operator
from .boxes import Digit

_OPERATIONS = {"all_gather": 0, "reduce_scatter": 1, "all_reduce": 2, "alltoall": 3}


@dataclass(frozen=True)
class Collective:
    """`share`: elements of each of `members`, of all devices behind one link."""

    operation: str
    level: int
    members: int
    share: int

    def seconds(self, form: CollectiveForm, element_bytes: int) -> Fraction:
        """Time by the constants of its operation and level."""
        size, others = self.share * element_bytes, self.members - 1
        rounds = 1
        while self.operation != "alltoall" and 1 << rounds < self.members:
            rounds += 1
        through = size * others * (2 if self.operation == "all_reduce" else 1)
        quick = form.start * rounds + form.wire * through + form.own * size
        return form.fixed + form.hop * others + min(form.slow * (size + size * others), quick)


def units(collectives: Sequence[Collective], element_bytes: int, machine: Machine, scale: int) -> int:
    """Units of 1/`scale` s, each collective rounded up; those of levels without forms are not counted."""
    total = 0
    for one in collectives:
        forms = machine.levels[one.level].collectives
        if forms and one.share:
            total += ceil(one.seconds(forms[_OPERATIONS[one.operation]], element_bytes) * scale)
    return total


def of_reduction(
    hierarchy: tuple[int, ...], digits: tuple[Digit, ...], scattered: tuple[bool, ...], elements: int
) -> Iterator[Collective]:
    """Collectives of a reduction over `digits`.

    >>> list(of_reduction((4,), (Digit(0, 2, 2), Digit(0, 1, 2)), (False, False), 8))
    [Collective(operation='all_reduce', level=0, members=4, share=2)]
    """
    sharing, keeping = [1] * len(hierarchy), [1] * len(hierarchy)
    for digit, gone in zip(digits, scattered, strict=True):
        sharing[digit.level] *= digit.prime
        keeping[digit.level] *= 1 if gone else digit.prime
    piece = -(-elements // prod(keeping))  # what a device holds when all is scattered
    top = next((j for j, g in enumerate(sharing) if g > 1), -1)
    for j, (g, r) in enumerate(zip(sharing, keeping, strict=True)):
        behind = prod(hierarchy[j + 1 :])
        if j == top and g == r:
            yield Collective("all_reduce", j, g, behind * piece)
            continue
        if g > 1:
            yield Collective("reduce_scatter", j, g, behind * piece * prod(sharing[:j]))
        if r > 1:
            yield Collective("all_gather", j, r, behind * piece * prod(keeping[:j]))


def of_fetch(hierarchy: tuple[int, ...], loads: Sequence[int], held: int, wanted: int) -> Iterator[Collective]:
    """Collectives of a fetch.  `held`, `wanted`: elements of the largest box before and after.

    >>> list(of_fetch((2, 8), [0, 12], 4, 16))
    [Collective(operation='all_gather', level=1, members=4, share=4)]
    """
    grows = wanted - held >= loads[-1]
    for level, (size, load) in enumerate(zip(hierarchy, loads, strict=True)):
        if load and size > 1:
            members = max(2, min(size, -(-wanted // max(1, held)))) if grows else size
            yield Collective("all_gather" if grows else "alltoall", level, members, -(-load // (members - 1)))


@dataclass(frozen=True)
class Product:
    """Which axes of an operator are those of a batch, of rows, of columns, and of the sum."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        return self.batch, self.rows, self.columns, self.summed


def product_of(op: Operator) -> Product | None:
    """An operator read as a matrix product: two factors, each dimension of which is one axis, and operands of an
    epilogue without an axis of the sum; every axis is in a factor, those that are summed (some are) in both, and each
    factor has one of its own.
    """
    first, others = op.inputs[:2], op.inputs[2:]
    if op.function not in ("product", "fused_product") or len(first) < 2 or (others and op.function == "product"):
        return None
    inside: list[list[str]] = []
    for operand in first:
        plain = [i.terms[0][0] for i in operand.index if len(i.terms) == 1 and i.terms[0][1] == 1]
        odd = [i for i in operand.index if i.whole or i.offset or len(i.terms) != 1 or i.terms[0][1] != 1]
        if odd or len({*plain}) != len(plain):
            return None
        inside.append(plain)
    left, right = inside
    names = {a.name: a.combine is not None for a in op.axes}
    both = [n for n in names if n in left and n in right]
    summed = tuple(n for n in names if names[n])
    if not summed or not {*names} <= {*left, *right} or not {*summed} <= {*both}:
        return None
    if {*summed} & {n for operand in others for index in operand.index for n, _ in index.terms}:
        return None  # not an operand of the epilogue
    rows, columns = (tuple(n for n in side if n not in both) for side in (left, right))
    if not rows or not columns:
        return None
    return Product(tuple(n for n in both if not names[n]), rows, columns, summed)


@lru_cache(maxsize=64)
def _whole(form: ProductForm) -> tuple[int, dict[str, int], list[tuple[int, int, int, int]]]:
    """The constants over one denominator; tiles as (rows, columns, time of a step, of a step of an odd size)."""
    named = dict(form.constants())
    odd = 1 + named.pop("odd")
    over = lcm(*(v.denominator for v in named.values()), *(t.denominator for *_, t in form.tiles))
    over *= odd.denominator
    tiles = [(a, b, int(t * over), int(t * over * odd)) for a, b, t in form.tiles]
    return over, {key: int(value * over) for key, value in named.items()}, tiles


@lru_cache(maxsize=1 << 16)
def computing(form: ProductForm, batch: int, rows: int, columns: int, summed: int) -> Fraction:
    """Seconds of the fastest kernel: a tile, and 1, 2, 4 .. 1,024 parts of the sum; 0 for an empty product."""
    if not batch * rows * columns * summed:
        return Fraction(0)
    over, c, tiles = _whole(form)
    uneven = rows > 128 and rows % 64 > 0
    times = []
    for high, wide, plain, slowed in tiles:
        tile = slowed if uneven else plain
        blocks = batch * -(-rows // high) * -(-columns // wide)
        for doubled in range(11):
            parts = 1 << doubled
            deep = -(-summed // (64 << doubled))
            rounds = -(-blocks * parts // form.processors)
            time = rounds * (deep * tile + c["tail"]) + deep * c["step"]
            if parts > 1:
                time += c["split"] + c["sum"] * 4 * high * wide * blocks * parts
            times.append(time)
    return Fraction(min(times), over)


def product_seconds(form: ProductForm, sizes: Sequence[int], finishing: Fraction, transfer: Fraction) -> Fraction:
    """launch + max(kernel + epilogue, bytes) + a constant per result; `finishing`, `transfer`: seconds of the two."""
    batch, rows, columns, summed = sizes
    busy = max(computing(form, batch, rows, columns, summed) + finishing, transfer)
    return form.launch + busy + form.result * (batch * rows * columns)
