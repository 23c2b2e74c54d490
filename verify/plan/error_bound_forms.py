"""What two plans do differently within error bounds, a second time: entries as linear forms up to two
numbers.

    roofline     base: the one of flops and bytes that takes longer on the machine itself (bytes if equal), and a
                 launch; plus 0 .. what the other can take longer
    collective   base: the one of the two terms of its minimum that is smaller on the machine itself (slow if equal),
                 with fixed and hops; minus 0 .. what it can be larger
    product      one operator placed twice, y against x, boxes of one size: kernels (tile, parts) that can be the best
                 of x on some machine, each against the best for it of those of y with the same tile; and the bytes,
                 where y can wait for them

Written from docs/certificate-format.md, section 9, "Error bounds";
shares no formula with `formal/explain/envelopes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import NamedTuple

from ...models.machine.machine import Machine
from ...models.machine.measured import ProductForm
from .error_bound_ends import OPERATIONS, end
from .measured import Collective


class Span(NamedTuple):
    """Units of one more of something: on the machine itself, at least, at most."""

    own: Fraction
    least: Fraction
    most: Fraction

    def up(self, c: Fraction | int) -> Fraction:
        """The most of c of it, of either sign."""
        return c * (self.most if c > 0 else self.least)

    def down(self, c: Fraction | int) -> Fraction:
        """The least."""
        return -self.up(-c)


@dataclass(frozen=True)
class Bounded:
    """A form, and what is added to it."""

    form: dict[str, Fraction]
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)


@dataclass(frozen=True)
class Kernel:
    """Of a product: the tile, steps of it one after another (more if slowed), rounds, depth, cuts, bytes summed."""

    tile: int
    amounts: tuple[Fraction, ...]


class Spans:
    """Spans of all constants of a machine, units of 1/`scale` s."""

    def __init__(self, machine: Machine, scale: int) -> None:
        self.machine, three = machine, (machine, end(machine, False), end(machine, True))
        self.of: dict[str, Span] = {}
        for number, level in enumerate(machine.levels):
            at = [m.levels[number] for m in three]
            self.of[f"level.{level.name}.bandwidth"] = Span(*(scale / x.bandwidth for x in at))
            self.of[f"level.{level.name}.latency"] = Span(*(scale * x.latency for x in at))
            for k, operation in enumerate(OPERATIONS[: len(level.collectives)]):
                for key in ("fixed", "hop", "slow", "start", "wire", "own"):
                    span = Span(*(scale * getattr(x.collectives[k], key) for x in at))
                    self.of[f"level.{level.name}.{operation}.{key}"] = span
        devices = [m.device for m in three]
        self.wait = Span(*(scale / d.bandwidth for d in devices))
        self.launch = Span(*(scale * d.launch for d in devices))
        self.peaks = {t: Span(*(scale / d.peak(t) for d in devices)) for t, _ in machine.device.peaks}
        place = f"device_class.{machine.device.name}"
        self.of |= {f"{place}.bandwidth": self.wait, f"{place}.launch": self.launch}
        self.of |= {f"{place}.peaks.{t}": span for t, span in self.peaks.items()}
        self.place, self.scale, self.three = place, scale, three

    def roofline(self, dtype: str, flops: int, moved: int) -> Bounded:
        """Of an operator that brings nothing together."""
        none = Span(Fraction(0), Fraction(0), Fraction(0))
        peak = self.peaks[dtype] if flops else none
        launch = {f"{self.place}.launch": Fraction(1)}
        if moved * self.wait.own >= flops * peak.own:
            over = flops * peak.most - moved * self.wait.least
            return Bounded({f"{self.place}.bandwidth": Fraction(moved)} | launch, high=max(over, Fraction(0)))
        over = moved * self.wait.most - flops * peak.least
        return Bounded({f"{self.place}.peaks.{dtype}": Fraction(flops)} | launch, high=max(over, Fraction(0)))

    def collective(self, one: Collective, element_bytes: int) -> Bounded:
        """Of one at a level with a measured form."""
        place = f"level.{self.machine.levels[one.level].name}.{one.operation}"
        size, others, rounds = one.share * element_bytes, one.members - 1, 0
        while 1 << rounds < one.members:
            rounds += 1
        rounds = 1 if one.operation == "alltoall" else rounds
        through = others * size * (2 if one.operation == "all_reduce" else 1)
        slowly = {"slow": one.members * size}
        quickly = {"start": rounds, "wire": through, "own": size}

        def ends(amounts: dict[str, int]) -> list[Fraction]:
            spans = [(self.of[f"{place}.{key}"], n) for key, n in amounts.items()]
            return [sum((n * span[k] for span, n in spans), Fraction(0)) for k in range(3)]

        a, b = ends(slowly), ends(quickly)
        taken, mine, other = (slowly, a, b) if a[0] <= b[0] else (quickly, b, a)
        form = {"fixed": 1, "hop": others} | taken
        below = min(Fraction(0), other[1] - mine[2])
        return Bounded({f"{place}.{key}": Fraction(n) for key, n in form.items()}, low=below)

    def gap(self, y: Product, x: Product, form: ProductForm) -> Fraction:
        """What a product takes longer as `y` than as `x` at most, without roundings."""
        at = [next(f for f in m.device.products if f.dtype == form.dtype) for m in self.three]
        spans = [Span(*(self.scale * getattr(f, k) for f in at)) for k in ("tail", "step", "split", "sum")]
        tiles = [Span(*(self.scale * f.tiles[i][2] for f in at)) for i in range(len(form.tiles))]
        finishing = self.peaks[form.dtype] if y.finish or x.finish else Span(Fraction(0), Fraction(0), Fraction(0))

        def total(p: Product, k: Kernel, which: int) -> Fraction:
            rest = zip(spans, k.amounts[1:], strict=True)
            own = k.amounts[0] * tiles[k.tile][which] + p.finish * finishing[which]
            return own + sum((n * span[which] for span, n in rest), Fraction(0))

        def above(p: Product, k: Kernel, q: Product, j: Kernel) -> Fraction:
            """The most that kernel k of p takes longer than j of q."""
            if k.tile == j.tile:
                found = tiles[k.tile].up(k.amounts[0] - j.amounts[0])
            else:
                found = k.amounts[0] * tiles[k.tile].most - j.amounts[0] * tiles[j.tile].least
            found += finishing.up(p.finish - q.finish)
            for span, n, less in zip(spans, k.amounts[1:], j.amounts[1:], strict=True):
                found += span.up(n - less)
            return found

        usual = min(x.kernels, key=lambda k: total(x, k, 0))
        shortest = min(total(x, k, 1) for k in x.kernels)
        waiting = min(self.wait.up(y.moved - x.moved), y.moved * self.wait.most - shortest)
        more = Span(*(self.scale * f.result for f in at)).up(y.results - x.results)
        if y.moved * self.wait.least >= min(total(y, k, 2) for k in y.kernels):
            return waiting + more  # no machine computes for longer than it waits
        computing = max(
            min(above(y, j, x, k) for j in y.kernels if j.tile == k.tile)
            for k in x.kernels
            if above(x, usual, x, k) >= 0  # k is as fast as the usual one on some machine
        )
        if y.moved * self.wait.most <= min(total(y, k, 1) for k in y.kernels):
            return computing + more
        return max(computing, waiting) + more


class Product:
    """A product on one device: sizes (batch, rows, columns, summed), bytes, operations of its epilogue."""

    def __init__(self, form: ProductForm, sizes: Sequence[int], moved: int, finish: int) -> None:
        batch, rows, columns, summed = sizes
        self.form = form
        self.moved, self.finish, self.results = moved, finish * prod(sizes[:3]), prod(sizes[:3])
        slowed = 1 + form.odd if rows > 128 and rows % 64 else Fraction(1)
        self.kernels = []
        for tile, (high, wide, _) in enumerate(form.tiles):
            blocks = batch * ((rows + high - 1) // high) * ((columns + wide - 1) // wide)
            for parts in (1 << e for e in range(11)):
                deep = (summed + 64 * parts - 1) // (64 * parts)
                rounds = (blocks * parts + form.processors - 1) // form.processors
                cut = (1, 4 * high * wide * blocks * parts) if parts > 1 else (0, 0)
                amounts = rounds * deep * slowed, Fraction(rounds), Fraction(deep), *map(Fraction, cut)
                self.kernels.append(Kernel(tile, amounts))
