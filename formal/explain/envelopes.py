r"""Computes entries of two plans over one box of machine constants: what both have cancels before ends are
taken.

    entry f         f(c) in l(c) + [low, high] on every machine within the bars, l linear in the constants c, its
                    coefficients >= 0
    roofline        max(flops / peak, bytes / bandwidth) + launch: l has the larger one at the constants as they stand;
                    high: what the other can exceed it by
    collective      fixed + hop (g - 1) + min(slow, quick): l has the smaller one; low: minus what it can exceed the
                    other by
    product         best = min over kernels k (tile, parts) of a linear L_k.  Of one product placed as y and as x:
                    best_y - best_x  <=  max over k that can be best for x, min over j of k's tile,
                                         max over c of L_y,j - L_x,k
                    max(best_y, bytes_y) - max(best_x, bytes_x)  <=  max of the differences of either, if y can wait
                    for it

Constants are called as in [bars]; rates enter as inverses.  Amounts are units of the problem, unrounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...models.communication.collective_steps import Step
from ...models.machine.machine import Machine
from ...models.machine.measured import COLLECTIVES, DEPTH, SPLITS, ProductForm
from ..plans.linear import values

Linear = Mapping[str, Fraction]
"""Coefficients by constant."""


@dataclass(frozen=True)
class Envelope:
    """`linear` plus a number from `low` to `high`; `name`: the constant that asks for what lies between."""

    linear: Linear
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)
    name: str = ""


@dataclass(frozen=True)
class Placed:
    """A product under a placement: kernels by tile, bytes, results."""

    kernels: Mapping[str, Sequence[Linear]]
    moved: Linear
    results: Linear


def every_constant(machine: Machine, scale: int) -> dict[str, Fraction]:
    """Units per byte, operation, phase or launch of all constants with a price."""
    out = values(machine)
    for level in machine.levels:
        for operation, form in zip(COLLECTIVES, level.collectives, strict=False):
            out |= {f"level.{level.name}.{operation}.{key}": value for key, value in form.constants()}
    for table in machine.device.products:
        place = f"device_class.{machine.device.name}.product.{table.dtype}"
        out |= {f"{place}.{key}": value for key, value in table.constants()}
        out |= {f"{place}.tiles.{a}x{b}": time for a, b, time in table.tiles}
    return {path: value * scale for path, value in out.items()}


class Constants:
    """The box: every constant at its own value, its least and its most."""

    def __init__(self, machine: Machine, fast: Machine, slow: Machine, scale: int) -> None:
        self.own, self.low, self.high = (every_constant(m, scale) for m in (machine, fast, slow))

    def at(self, form: Linear) -> Fraction:
        """At the constants as they stand."""
        return sum((c * self.own[p] for p, c in form.items()), Fraction(0))

    def top(self, form: Linear) -> Fraction:
        """The most in the box, coefficients of either sign."""
        return sum((c * (self.high if c > 0 else self.low)[p] for p, c in form.items()), Fraction(0))

    def bottom(self, form: Linear) -> Fraction:
        """The least in the box."""
        return sum((c * (self.low if c > 0 else self.high)[p] for p, c in form.items()), Fraction(0))

    def roofline(self, device: str, dtype: str, flops: int, moved: int) -> Envelope:
        """Of an operator without statistics."""
        wait = {f"{device}.bandwidth": Fraction(moved)}
        work = {f"{device}.peaks.{dtype}": Fraction(flops)} if flops else {}
        base, other = (wait, work) if self.at(wait) >= self.at(work) else (work, wait)
        over = max(Fraction(0), self.top(other) - self.bottom(base))
        return Envelope({**base, f"{device}.launch": Fraction(1)}, Fraction(0), over, f"{device}.bandwidth")

    def collectives(self, steps: Iterable[Step], element_bytes: int, machine: Machine) -> Iterator[Envelope]:
        """Of one pair of layouts: an envelope per collective that has a measured form."""
        for step in steps:
            level = machine.levels[step.level]
            share = int(step.share.reshape(-1)[0]) * element_bytes
            if not level.collectives or not share:
                continue
            g, place = int(step.members.reshape(-1)[0]), f"level.{level.name}.{step.operation}"
            passes = 2 if step.operation == "all_reduce" else 1
            depth = 1 if step.operation == "alltoall" else (g - 1).bit_length()
            slow = {f"{place}.slow": Fraction(g * share)}
            quick = {
                f"{place}.start": Fraction(depth),
                f"{place}.wire": Fraction(passes * (g - 1) * share),
                f"{place}.own": Fraction(share),
            }
            base, other = (slow, quick) if self.at(slow) <= self.at(quick) else (quick, slow)
            under = min(Fraction(0), self.bottom(other) - self.top(base))
            common = {f"{place}.fixed": Fraction(1), f"{place}.hop": Fraction(g - 1)}
            yield Envelope({**common, **base}, under, Fraction(0), place)

    def apart(self, y: Placed, x: Placed) -> Fraction:
        """What `y` takes longer than `x` at most."""
        least_x = min(self.bottom(k) for row in x.kernels.values() for k in row)
        best = min((k for row in x.kernels.values() for k in row), key=self.at)
        able = [(t, k) for t, row in x.kernels.items() for k in row if self.bottom(less(k, best)) <= 0]
        wait = min(self.top(less(y.moved, x.moved)), self.top(y.moved) - least_x)
        results = self.top(less(y.results, x.results))
        if self.bottom(y.moved) >= min(self.top(k) for row in y.kernels.values() for k in row):
            return wait + results
        computed = max(min(self.top(less(j, k)) for j in y.kernels[tile]) for tile, k in able)
        if self.top(y.moved) <= min(self.bottom(k) for row in y.kernels.values() for k in row):
            return computed + results
        return max(wait, computed) + results


def less(a: Linear, b: Linear) -> dict[str, Fraction]:
    """The difference of two forms.

    >>> less({"a": Fraction(2)}, {"a": Fraction(2), "b": Fraction(1)})
    {'b': Fraction(-1, 1)}
    """
    found = {p: a.get(p, Fraction(0)) - b.get(p, Fraction(0)) for p in {**a, **b}}
    return {p: c for p, c in found.items() if c}


def product_entries(
    form: ProductForm, sizes: tuple[int, int, int, int], finish: int, moved: int, device: str
) -> Placed:
    """A product of b x (m, k) and (k, n) elements on one device; `finish`: operations of its epilogue."""
    b, m, n, k = sizes
    place = f"{device}.product.{form.dtype}"
    odd = 1 + form.odd if m > 128 and m % DEPTH else Fraction(1)
    rest = {f"{device}.peaks.{form.dtype}": Fraction(finish)} if finish else {}
    kernels: dict[str, list[Linear]] = {}
    for rows, columns, _ in form.tiles:
        count, tile = b * -(-m // rows) * -(-n // columns), f"{place}.tiles.{rows}x{columns}"
        for parts in SPLITS:
            steps, waves = -(-k // (DEPTH * parts)), -(-count * parts // form.processors)
            linear = {tile: waves * steps * odd, f"{place}.tail": Fraction(waves), f"{place}.step": Fraction(steps)}
            if parts > 1:
                linear[f"{place}.split"] = Fraction(1)
                linear[f"{place}.sum"] = Fraction(4 * rows * columns * count * parts)
            kernels.setdefault(tile, []).append({**linear, **rest})
    return Placed(kernels, {f"{device}.bandwidth": Fraction(moved)}, {f"{place}.result": Fraction(b * m * n)})
