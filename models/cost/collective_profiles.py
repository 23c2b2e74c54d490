"""How long a collective of one library takes on any machine: shapes over bytes that machines share,
six constants each.

    seconds = (a0 + a1 h) latency(B) + (w q + c o) / B  volume(B) + (b0 + b1 h) change(B)

    n, B       ranks, bytes of the buffer;   h = n - 1 hops;   q, o: bytes through a port and of a rank's own share
               (`models.cost.collective_times.parts`), both proportional to B
    latency    of small buffers, 1 at the smallest: a protocol with flags, more channels as the buffer grows
    volume     bytes as slow as the protocols make them: above B where the flags take bandwidth or few channels run
    change     the start of the protocol for large buffers, 1 at the largest

Each shape is piecewise linear over B, given at sizes of buffers for some group sizes, between two of which it is linear
in log2 n (itself linear between powers of two).  Outside them the nearest group size holds; below the smallest buffer
shapes are constant, above the largest `volume` grows as B, the others stay.

Shapes never fall with B and constants are >= 0: a time never falls with bytes.  With ranks it falls where measured
times do (an alltoall of small buffers).  Shapes belong to the library (NCCL chooses protocols by bytes and ranks),
constants to the machine; both are fitted (`formal.calibration.collective_profiles`).  Source of the protocols: J. Hu et
al., "Demystifying NCCL", arXiv 2507.04786.

>>> rising = tuple(Fraction(x) for x in (1, 1, 2))
>>> one = Shape((1024, 2048, 4096), rising, tuple(Fraction(x) for x in (1024, 3072, 4096)), (Fraction(0),) * 3)
>>> time = ProfiledTime(((2, one), (8, one)), *(Fraction(x) for x in ("4e-6", "1e-6", "1e-9", "0", "0", "0")))
>>> [float(round(time.seconds(Operation.ALL_GATHER, Group(2), b) * 10**6, 3)) for b in (0, 512, 2048, 3072, 8192)]
[5.0, 5.256, 6.536, 9.292, 14.096]
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from .collective_times import Group, Operation, parts

__all__ = ["ProfiledTime", "Shape", "halvings"]


@dataclass(frozen=True)
class Shape:
    """The three shapes of one operation and group size at rising buffer sizes, none of them falling."""

    sizes: tuple[int, ...]
    latency: tuple[Fraction, ...]
    volume: tuple[Fraction, ...]
    change: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        rows = (self.latency, self.volume, self.change)
        if len(self.sizes) < 2 or any(len(row) != len(self.sizes) for row in rows):
            raise ValueError("a shape needs two buffer sizes or more, and a value of every kind at each")
        if any(b <= a for a, b in pairwise(self.sizes)):
            raise ValueError("the buffer sizes of a shape must rise")
        if any(row[0] < 0 or any(b < a for a, b in pairwise(row)) for row in rows):
            raise ValueError("a shape must not fall, so that no time falls with bytes")

    def at(self, size: Fraction | int) -> tuple[Fraction, Fraction, Fraction]:
        """`latency`, `volume`, `change` of a buffer."""
        size, sizes = Fraction(size), self.sizes
        if size <= sizes[0]:
            return self.latency[0], self.volume[0] * size / sizes[0], self.change[0]
        if size >= sizes[-1]:
            return self.latency[-1], self.volume[-1] * size / sizes[-1], self.change[-1]
        i = bisect_right(sizes, size) - 1
        part = (size - sizes[i]) / (sizes[i + 1] - sizes[i])
        low, high = ((self.latency[j], self.volume[j], self.change[j]) for j in (i, i + 1))
        return tuple(a + (b - a) * part for a, b in zip(low, high, strict=True))  # type: ignore[return-value]


@dataclass(frozen=True)
class ProfiledTime:
    """Shapes by group size, sorted, and six constants: seconds, but `wire` and `own` in seconds per byte."""

    shapes: tuple[tuple[int, Shape], ...]
    fixed: Fraction
    hop: Fraction
    wire: Fraction
    own: Fraction
    start: Fraction
    start_hop: Fraction

    def seconds(self, operation: Operation, group: Group, size: Fraction | int) -> Fraction:
        """The exact time of one collective of one node."""
        x, hops = parts(operation, group, 1), group.ranks - 1
        first, second, share = between([n for n, _ in self.shapes], group.ranks)
        low, high = self.shapes[first][1].at(size), self.shapes[second][1].at(size)
        latency, volume, change = (a + (b - a) * share for a, b in zip(low, high, strict=True))
        pace = self.wire * x.wire + self.own * x.own
        return (self.fixed + self.hop * hops) * latency + pace * volume + (self.start + self.start_hop * hops) * change


def halvings(ranks: int) -> Fraction:
    """log2 of the ranks, linear between powers of two.

    >>> [str(halvings(n)) for n in (1, 2, 3, 4, 6, 8)]
    ['0', '1', '3/2', '2', '5/2', '3']
    """
    whole = ranks.bit_length() - 1
    return whole + Fraction(ranks - (1 << whole), 1 << whole)


def between(known: list[int], ranks: int) -> tuple[int, int, Fraction]:
    """Neighbours of a group size among known ones, by index, and how far it is from the first to the second.

    >>> between([2, 8], 4)
    (0, 1, Fraction(1, 2))
    >>> between([2, 8], 16)
    (1, 1, Fraction(0, 1))
    """
    if ranks <= known[0] or ranks >= known[-1]:
        end = 0 if ranks <= known[0] else len(known) - 1
        return end, end, Fraction(0)
    i = bisect_right(known, ranks) - 1
    low, high = halvings(known[i]), halvings(known[i + 1])
    return i, i + 1, (halvings(ranks) - low) / (high - low)
