"""Compares two configurations of one step term by term: which is faster, and which measurement could turn that.

    d_t         seconds that the first waits longer for t than the second does (`Composed.parts`); d their sum
    bar b       all published pairs that differ in this way had a measured ratio from r / (1 + b) to r (1 + b),
                r the predicted one (`BARS`)
    verdict     faster: r (1 + b) < 1;  slower: r > 1 + b;  else undecided
    turns at    f_t = 1 - d / d_t: with t at so many times its price, both take the same
    regret      what the one that is predicted faster takes longer at worst, if t alone is off by up to 1 + b

It is an estimate with a measured error, no proof: what is proved of a configuration is said by its audit alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from math import log
from typing import Final

from ....models.cost.kernels import FUSED, Kernels
from ....models.layout.targets.degrees import Flags
from .composed import Composed


class Difference(Enum):
    """In what two configurations differ; where they differ in several, the first that is listed says the bar."""

    SOFTWARE = "framework"
    PRECISION = "precision"
    RECOMPUTE = "recomputation"
    SHARDING = "context, experts or sharded state"
    TENSOR = "tensor parallelism"
    STAGES = "stages"
    MICRO_BATCH = "micro-batches"


BARS: Final[Mapping[Difference, Fraction]] = {
    Difference.TENSOR: Fraction(81, 100),
    Difference.STAGES: Fraction(41, 100),
    Difference.MICRO_BATCH: Fraction(50, 100),
}
"""Way of differing -> bar: the largest error of the published pairs of one model, batch and machine.  Measured by
tests/benchmarks/published_pairs.py (tests/benchmarks/results/published-pairs.md), where every family is judged with the
bars of the others."""

ANY_BAR: Final = Fraction(81, 100)
"""The same over all pairs, for ways of differing of which fewer than 20 pairs are published."""


class Faster(Enum):
    """What is said of the first of two configurations."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Manner:
    """How a configuration runs: degrees, chunks of layers on a stage, what is computed again, element types, kernels,
    what is hidden behind work, and micro-batches of a step.
    """

    flags: Flags
    micro_batches: int
    chunks: int = 1
    recompute: str = "none"
    precision: str | None = None
    kernels: Kernels = FUSED
    hidden: frozenset[str] = frozenset()


def differences(a: Manner, b: Manner) -> tuple[Difference, ...]:
    """In what two configurations differ, in the order of `Difference`.

    >>> one = Manner(Flags("Megatron", tp=2), 8)
    >>> [x.value for x in differences(one, Manner(Flags("Megatron", tp=4, pp=2), 8))]
    ['tensor parallelism', 'stages']
    """
    f, g = a.flags, b.flags
    kernels = [replace(x.kernels, eight=False, scaling=FUSED.scaling) for x in (a, b)]
    found = {
        Difference.SOFTWARE: f.source != g.source or kernels[0] != kernels[1] or a.hidden != b.hidden,
        Difference.PRECISION: (a.precision, a.kernels.eight) != (b.precision, b.kernels.eight),
        Difference.RECOMPUTE: a.recompute != b.recompute,
        Difference.SHARDING: (f.cp, f.ep, f.zero) != (g.cp, g.ep, g.zero),
        Difference.TENSOR: (f.tp, f.sequence_parallel) != (g.tp, g.sequence_parallel),
        Difference.STAGES: (f.pp, a.chunks) != (g.pp, b.chunks),
        Difference.MICRO_BATCH: (f.micro_batch, a.micro_batches) != (g.micro_batch, b.micro_batches),
    }
    return tuple(kind for kind in Difference if found[kind])


def error_bound_of_pair(
    kinds: tuple[Difference, ...], bars: Mapping[Difference, Fraction] = BARS, rest: Fraction = ANY_BAR
) -> Fraction:
    """The bar of a pair that differs in these ways: that of the first; where none was measured, the widest of `rest`
    and those of the others.

    >>> error_bound_of_pair((Difference.STAGES, Difference.MICRO_BATCH)) == BARS[Difference.STAGES]
    True
    """
    if not kinds:
        return Fraction(0)
    return bars[kinds[0]] if kinds[0] in bars else max(rest, *(bars.get(k, rest) for k in kinds))


def decide(ratio: Fraction, bar: Fraction) -> Faster:
    """What a predicted ratio of two times says of the first.

    >>> [decide(Fraction(r, 10), Fraction(1, 2)).value for r in (6, 7, 15, 16)]
    ['faster', 'undecided', 'undecided', 'slower']
    """
    if ratio * (1 + bar) < 1:
        return Faster.FASTER
    return Faster.SLOWER if ratio > 1 + bar else Faster.UNDECIDED


@dataclass(frozen=True)
class Measurement:
    """Of one term: `low` and `high`, the difference of the two steps in seconds with the term within the bar; at
    `turns` times its price both take the same (None: at no price); `regret` in seconds.
    """

    term: str
    low: Fraction
    high: Fraction
    turns: Fraction | None
    regret: Fraction


@dataclass(frozen=True)
class Compared:
    """Two configurations of one step: seconds of each, in what they differ, and the bar of their ratio."""

    first: Composed
    second: Composed
    kinds: tuple[Difference, ...]
    bar: Fraction

    @property
    def difference(self) -> Fraction:
        """Seconds that the first takes longer."""
        return self.first.seconds - self.second.seconds

    @property
    def ratio(self) -> Fraction:
        """Seconds of the first over those of the second."""
        return self.first.seconds / self.second.seconds

    @property
    def verdict(self) -> Faster:
        """Of the first."""
        return decide(self.ratio, self.bar)

    @property
    def terms(self) -> list[tuple[str, Fraction, Fraction]]:
        """What is waited for, in the first and in the second, the largest difference first."""
        a, b, none = self.first.parts, self.second.parts, Fraction(0)
        found = [(name, a.get(name, none), b.get(name, none)) for name in sorted({*a, *b})]
        return sorted(found, key=lambda row: -abs(row[1] - row[2]))

    @property
    def measurements(self) -> list[Measurement]:
        """Of the terms that differ, by regret; of those without, what turns the answer with the least change first."""
        found = [self._measured(name, x - y) for name, x, y in self.terms if x != y]
        return sorted(found, key=lambda m: (-m.regret, _distance(m.turns), m.term))

    def _measured(self, term: str, own: Fraction) -> Measurement:
        moved = (own / (1 + self.bar) - own, own * (1 + self.bar) - own)
        low, high = (self.difference + x for x in (min(moved), max(moved)))
        turns = 1 - self.difference / own
        regret = high if self.difference < 0 else -low
        return Measurement(term, low, high, turns if turns > 0 else None, max(Fraction(0), regret))


def _distance(turns: Fraction | None) -> float:
    return float("inf") if turns is None else abs(log(turns))
