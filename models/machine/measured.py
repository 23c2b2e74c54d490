"""Times as measured, in place of one bandwidth and one peak: collectives of a level, matrix products
and attention of a device class.

    collective   seconds = fixed + hop (g - 1) + min( slow g s,  start d + (wire k (g - 1) + own) s )
                 g members of one level, s bytes that each of them contributes (times the devices that share its link);
                 k = 2 for all_reduce, else 1;   d = ceil(log2 g), alltoall 1;   slow, wire, own in seconds per byte
    product      b products of m x k and k x n, on the best of the tiles A x C, each cut into p parts along k:
                 seconds = launch + max( best + epilogue, bytes / bandwidth ) + result b m n
                 best    = min over tiles and p of   waves (steps time f + tail) + step steps
                                                     [ + split + sum 4 A C count p   where p > 1 ]
                 count = b ceil(m / A) ceil(n / C),   steps = ceil(k / (64 p)),   waves = ceil(count p / processors),
                 f = 1 + odd where m > 128 is no multiple of 64, else 1;   best = 0 where b, m, n or k is 0
    attention    `rows` queries (over batch and heads) and `keys` keys, of which `pairs` pairs are in the band, f
                 operations per pair:
                 seconds = launch + max( E (pace f + pair) + row rows,  bytes / bandwidth )
                 E       = pairs + (wave + [there is a band] band) 128 processors keys;   E = 0 where pairs is 0
                 (waves of 128 queries, the last of which is not full, and with a band is not even)

Every constant is an exact rational >= 0, so that no time falls with bytes, members or sizes of whole tiles.  `odd`,
`wave` and `band` are plain numbers.  The forms of the first two
are those of `models.cost.collective_times` (ring inside a level, no ramp) and `models.cost.matmul_times`; how a plan
uses them: `models.cost.collectives`, `models.cost.products`, `models.cost.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

__all__ = ["COLLECTIVES", "DEPTH", "DIRECTIONS", "QUERIES", "SPLITS", "AttentionForm", "CollectiveForm", "ProductForm"]

COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")
"""Operations of a level's table; it has all of them or none."""

DEPTH: Final = 64
"""Of k in one step of a tile."""

SPLITS: Final = tuple(1 << i for i in range(11))
"""Parts along k that are tried, up to 1,024: weight gradients of images sum over a million positions."""

MAX_TILES: Final = 64

DIRECTIONS: Final = ("forward", "backward")
"""Passes of attention that are measured apart: the result and its normaliser, or gradients."""

QUERIES: Final = 128
"""Of one block of attention."""


@dataclass(frozen=True)
class CollectiveForm:
    """Six constants of one operation on one level: `fixed`, `hop`, `start` in seconds, the others per byte."""

    fixed: Fraction
    hop: Fraction
    slow: Fraction
    start: Fraction
    wire: Fraction
    own: Fraction

    def constants(self) -> tuple[tuple[str, Fraction], ...]:
        """Name and value of each."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


@dataclass(frozen=True)
class ProductForm:
    """Constants of one element type: seconds, `sum` and `result` per element or byte, `odd` a number.

    `tiles`: (rows, columns, seconds of one step of 64 along k), sorted.
    """

    dtype: str
    processors: int
    tiles: tuple[tuple[int, int, Fraction], ...]
    launch: Fraction = Fraction(0)
    tail: Fraction = Fraction(0)
    step: Fraction = Fraction(0)
    split: Fraction = Fraction(0)
    sum: Fraction = Fraction(0)
    result: Fraction = Fraction(0)
    odd: Fraction = Fraction(0)

    def constants(self) -> tuple[tuple[str, Fraction], ...]:
        """Name and value of each but the tiles."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self)[3:])

    @property
    def pace(self) -> Fraction:
        """Seconds per operation at least, with every processor in a full tile of the fastest kind.

        >>> float(1 / ProductForm("float16", 100, ((128, 128, Fraction("1e-6")),)).pace)
        209715200000000.0
        """
        return min(time / (2 * rows * columns * DEPTH * self.processors) for rows, columns, time in self.tiles)


@dataclass(frozen=True)
class AttentionForm:
    """Constants of one element type and direction: `launch` in seconds, `pace` per operation, `pair` per pair of query
    and key, `row` per query, in seconds; `wave` and `band` numbers.
    """

    dtype: str
    direction: str
    processors: int
    launch: Fraction = Fraction(0)
    pace: Fraction = Fraction(0)
    pair: Fraction = Fraction(0)
    row: Fraction = Fraction(0)
    wave: Fraction = Fraction(0)
    band: Fraction = Fraction(0)

    def constants(self) -> tuple[tuple[str, Fraction], ...]:
        """Name and value of each."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self)[3:])

    def each(self, operations: int) -> Fraction:
        """Seconds of a pair with so many operations."""
        return self.pace * operations + self.pair

    def idle(self, banded: bool) -> Fraction:
        """Pairs per key that blocks which are not full cost."""
        return (self.wave + (self.band if banded else 0)) * QUERIES * self.processors

    def seconds(self, pairs: int, rows: int, keys: int, operations: int, banded: bool) -> Fraction:
        """Time of a box without its bytes.

        >>> form = AttentionForm("float16", "forward", 10, *map(Fraction, ("1e-6", "1e-12", "0", "0", "0.5", "0.5")))
        >>> [float(form.seconds(100 * 64, 100, 64, 1000, banded)) for banded in (False, True)]
        [4.836e-05, 8.932e-05]
        """
        spread = pairs + (self.idle(banded) * keys if pairs else 0)
        return self.launch + spread * self.each(operations) + self.row * rows
